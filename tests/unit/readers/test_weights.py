"""Weights of rows: from a text file, through the shuffle, to the chunks, and what may go wrong on the way."""

import bz2
import dataclasses
import gzip
import itertools
import json
import lzma
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Existing, Store, convert, verify
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.store import manifest as manifests
from ooc_pegasos.store.chunk_file import write_chunk
from ooc_pegasos.util import json_checksum
from support.file_bytes import folder_bytes
from support.fork_server import Process, program
from support.rows import random_rows, svmlight_text
from support.stores import least_memory, small_buckets

Row = tuple[float, float, tuple[tuple[int, float], ...]]  # weight, label, (index, value) pairs
APPEND = Existing(append=True)


def random_weights(rows: int, seed: int) -> list[str]:
    """Numbers as people and programs write them, some of them 1."""
    rng = np.random.default_rng(seed)
    numbers = np.exp(rng.normal(0, 3, rows))
    ways = [lambda x: repr(float(x)), lambda x: f"{x:.3e}", lambda x: f"{x + 0.001:.3f}", lambda _x: "1"]
    return [ways[way](number) for way, number in zip(rng.integers(0, 4, rows), numbers, strict=True)]


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def truth(lines: list[str], weights: list[str] | None = None) -> list[Row]:
    """What rows the text means, read by Python alone; lines that are no rows use up no weight."""
    found = []
    of_rows = iter(weights) if weights is not None else itertools.repeat("1")
    for line in lines:
        words = line.split("#")[0].split()
        if not words:
            continue
        weight = float(np.float32(float(next(of_rows))))
        try:
            pairs = [word.split(":") for word in words[1:]]
            row = tuple((int(index) - 1, float(np.float32(float(value)))) for index, value in pairs)
            found.append((weight, float(words[0]), row))
        except ValueError:
            continue
    assert weights is None or next(of_rows, None) is None
    return found


def stored_rows_of(store: Store) -> list[Row]:
    """The rows of a store in their order."""
    found = []
    for block in store.blocks():
        plain = block.decode()
        weights = np.ones(plain.rows, np.float32) if plain.weights is None else plain.weights
        assert weights.dtype == np.float32
        for row in range(plain.rows):
            begin, end = plain.indptr[row], plain.indptr[row + 1]
            pairs = zip(plain.indices[begin:end].tolist(), plain.values[begin:end].tolist(), strict=True)
            found.append((float(weights[row]), float(plain.labels[row]), tuple(pairs)))
    return found


def assert_sound(store: Store, rows: list[Row]) -> None:
    """Verification finds nothing, and the statistics are those of `rows`."""
    assert verify(store).problems == []
    made = store.manifest
    weights = [weight for weight, _label, _pairs in rows]
    assert made.weight_sum == pytest.approx(sum(weights), rel=1e-12)
    assert made.statistics.max_weight == max(weights)
    squares = [weight * sum(value**2 for _index, value in pairs) for weight, _label, pairs in rows]
    assert made.statistics.largest_square == pytest.approx(max(squares), rel=1e-12)
    assert made.weighted == any(weight != 1 for weight in weights)
    assert (made.statistics.max_weighted_square is not None) == made.weighted
    assert manifests.read(store.path) == made


@pytest.fixture
def lines() -> list[str]:
    matrix, labels = random_rows(1500, 300, seed=1)
    text = svmlight_text(matrix, labels).splitlines()
    text[10:10] = ["", "# a comment", "  \t", "   # another"]
    text.insert(700, "")
    return text


@pytest.fixture
def weights() -> list[str]:
    return random_weights(1500, seed=2)


SMALL = {"chunk_size": 5000, "block_size": 4000, "features": 300}


# --- to the chunks ------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1 << 27, 20_000])
def test_without_shuffle_weights_stand_in_the_order_of_rows(tmp_path, monkeypatch, lines, weights, limit):
    small_buckets(monkeypatch, limit)
    names = [write_lines(tmp_path / "b.svm", lines[:600]), write_lines(tmp_path / "a.svm", lines[600:])]
    file = write_lines(tmp_path / "w.txt", weights)
    store = convert(names, tmp_path / "store", ConvertConfig(shuffle=False, weights=file, **SMALL))
    expected = truth(lines, weights)
    assert stored_rows_of(store) == expected
    assert len(store.manifest.chunks) > 3
    assert store.weights().tolist() == [row[0] for row in expected]
    assert_sound(store, expected)
    assert [source.weights for source in store.manifest.sources] == [store.manifest.sources[0].weights] * 2
    import xxhash

    assert store.manifest.sources[0].weights == xxhash.xxh64(Path(file).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("limit", "why"), [(1 << 30, "one bucket"), (20_000, "many buckets"), (3_000, "buckets are split")]
)
def test_weights_follow_their_rows_through_the_shuffle(tmp_path, monkeypatch, lines, weights, limit, why):
    small_buckets(monkeypatch, limit)
    if why == "buckets are split":
        monkeypatch.setattr("ooc_pegasos.readers.registry.ROWS_PER_TEXT", 0.1)
    source, file = write_lines(tmp_path / "in.svm", lines), write_lines(tmp_path / "w.txt", weights)
    config = ConvertConfig(weights=file, **SMALL)
    store = convert([source], tmp_path / "store", config)
    expected = truth(lines, weights)
    found = stored_rows_of(store)
    assert Counter(found) == Counter(expected)
    assert found != expected
    assert_sound(store, expected)
    again = convert([source], tmp_path / "again", dataclasses.replace(config, threads=5))
    assert folder_bytes(again.path) == folder_bytes(store.path)
    if why != "buckets are split":  # into how many depends on their bytes; otherwise weights do not change the order
        plain = convert([source], tmp_path / "plain", ConvertConfig(**SMALL))
        assert [row[1:] for row in stored_rows_of(plain)] == [row[1:] for row in found]


@pytest.mark.parametrize(
    "compress",
    [gzip.compress, bz2.compress, lzma.compress, lambda raw: b"\xef\xbb\xbf" + raw.replace(b"\n", b" \r\n"), bytes],
    ids=["gzip", "bzip2", "xz", "marked with carriage returns", "no line feed at the end"],
)
def test_files_of_weights(tmp_path, lines, weights, compress):
    source, file = write_lines(tmp_path / "in.svm", lines), tmp_path / "w"
    raw = "\n".join(weights).encode()
    file.write_bytes(compress(raw if compress is bytes else raw + b"\n"))
    store = convert([source], tmp_path / "store", ConvertConfig(shuffle=False, weights=str(file), **SMALL))
    assert stored_rows_of(store) == truth(lines, weights)


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_that_are_skipped_use_up_their_weight(tmp_path, lines, weights, shuffle):
    rng = random.Random(3)
    rows = [number for number, line in enumerate(lines) if line.split("#")[0].strip()]
    kinds = ["garbage", "1 3:x", "1 2:1 1:1", "1 1:1e30", "7 1:1"]
    for number in rng.sample(rows, 300):
        lines[number] = rng.choice(kinds)  # 1e30 does not fit float16, and 7 is no class
    expected = [row for row in truth(lines, weights) if row[1] != 7 and all(abs(v) < 65_520 for _i, v in row[2])]
    expected = [row for row in expected if [i for i, _v in row[2]] == sorted({i for i, _v in row[2]})]
    assert len(expected) == 1200
    rounded = [(w, label, tuple((i, float(np.float16(v))) for i, v in pairs)) for w, label, pairs in expected]
    source, file = write_lines(tmp_path / "in.svm", lines), write_lines(tmp_path / "w.txt", weights)
    options = {"values": "float16", "classes": ("-1", "1"), "on_bad_row": "skip", **SMALL}
    store = convert([source], tmp_path / "store", ConvertConfig(shuffle=shuffle, weights=file, **options))
    assert store.manifest.rejected == 300
    assert Counter(stored_rows_of(store)) == Counter(rounded)
    assert shuffle or stored_rows_of(store) == rounded
    assert verify(store).problems == []


def test_more_bad_rows_in_a_block_than_are_described(tmp_path):
    lines = [f"{1 - 2 * (i % 2)} 1:{i}" if i % 4 else "x" for i in range(6000)]
    source = write_lines(tmp_path / "in.svm", lines)
    file = write_lines(tmp_path / "w.txt", [str(i + 1) for i in range(6000)])
    config = ConvertConfig(shuffle=False, weights=file, on_bad_row="skip")
    found = stored_rows_of(convert([source], tmp_path / "store", config))
    assert [(weight, pairs[0][1]) for weight, _label, pairs in found] == [(i + 1, i) for i in range(6000) if i % 4]


def test_normalized_rows(tmp_path, lines, weights):
    source, file = write_lines(tmp_path / "in.svm", lines), write_lines(tmp_path / "w.txt", weights)
    store = convert([source], tmp_path / "store", ConvertConfig(weights=file, normalize="l2", **SMALL))
    found = stored_rows_of(store)
    assert Counter(row[0] for row in found) == Counter(row[0] for row in truth(lines, weights))
    assert_sound(store, found)


@pytest.mark.parametrize("shuffle", [False, True])
def test_weights_that_are_all_1_are_not_stored(tmp_path, lines, shuffle):
    source = write_lines(tmp_path / "in.svm", lines)
    file = write_lines(tmp_path / "w.txt", ["1", "1.0", "1e0"] * 500)
    store = convert([source], tmp_path / "store", ConvertConfig(shuffle=shuffle, weights=file, **SMALL))
    plain = convert([source], tmp_path / "plain", ConvertConfig(shuffle=shuffle, **SMALL))
    without = [(chunk.crc32, chunk.rows) for chunk in plain.manifest.chunks]
    assert [(chunk.crc32, chunk.rows) for chunk in store.manifest.chunks] == without
    assert store.manifest.statistics == plain.manifest.statistics
    assert not store.manifest.weighted
    assert "max_weighted_square" in (plain.path / "manifest.json").read_text()


def test_chunks_whose_weights_are_all_1_have_no_column(tmp_path, lines):
    """Also in a bucket of which some blocks have weights and some do not, whichever came first."""
    source = write_lines(tmp_path / "in.svm", lines)
    for name, weights in {"late": ["1"] * 750 + ["2"] * 750, "early": ["2"] * 750 + ["1"] * 750}.items():
        file = write_lines(tmp_path / "w.txt", weights)
        store = convert([source], tmp_path / name, ConvertConfig(shuffle=False, weights=file, **SMALL))
        kinds = {chunk.starts.weights is None for chunk in store.manifest.chunks}
        assert kinds == {True, False}
        assert stored_rows_of(store) == truth(lines, weights)
        assert_sound(store, stored_rows_of(store))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.floats(1e-9, 1e9).map(repr),
            st.floats(1e-9, 1e9).map(lambda x: f"{x:.30e}"),
            st.from_regex(r"\+?(0{0,3}[0-9]{1,9}(\.[0-9]{0,30})?|\.[0-9]{1,9})([eE][+-]?0?[0-4])?", fullmatch=True),
        ),
        min_size=1,
        max_size=50,
    )
)
def test_numbers_are_those_nearest_to_what_is_written(tmp_path, texts):
    weights = [text for text in texts if 1e-9 <= float(text) <= 1e9] or ["3"]
    source = write_lines(tmp_path / "in.svm", [f"{1 - 2 * (i % 2)} 1:1" for i in range(len(weights))])
    config = ConvertConfig(
        shuffle=False, weights=write_lines(tmp_path / "w.txt", weights), classes=("-1", "1"), block_size=64
    )
    store = convert([source], tmp_path / "store", config, existing=Existing(force=True))
    expected = np.array([float(text) for text in weights]).astype(np.float32)
    assert np.array([row[0] for row in stored_rows_of(store)], np.float32).tobytes() == expected.tobytes()


def test_weights_in_blocks_of_their_own(tmp_path, monkeypatch):
    """Whatever the blocks of the data and those of the weights: each is cut where it ends."""
    monkeypatch.setattr("ooc_pegasos.readers.number_lines.BLOCK_BYTES", 64)
    lines = [f"{1 - 2 * (i % 2)} 1:{i}" for i in range(500)]
    weights = random_weights(500, seed=4)
    source, file = write_lines(tmp_path / "in.svm", lines), write_lines(tmp_path / "w.txt", weights)
    for size in (64, 100, 7000):
        config = ConvertConfig(shuffle=False, weights=file, block_size=size)
        assert stored_rows_of(convert([source], tmp_path / f"store{size}", config)) == truth(lines, weights)


# --- appending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_append(tmp_path, lines, weights, first, second):
    a, b = write_lines(tmp_path / "a.svm", lines[:800]), write_lines(tmp_path / "b.svm", lines[800:])
    count = len(truth(lines[:800]))
    of_a = write_lines(tmp_path / "wa.txt", weights[:count]) if first else None
    of_b = write_lines(tmp_path / "wb.txt", weights[count:]) if second else None
    options = {"values": "float32", "shuffle": False, **SMALL}
    convert([a], tmp_path / "store", ConvertConfig(weights=of_a, **options))
    store = convert([b], tmp_path / "store", ConvertConfig(weights=of_b, **options), existing=APPEND)
    expected = truth(lines[:800], weights[:count] if first else None)
    expected += truth(lines[800:], weights[count:] if second else None)
    assert stored_rows_of(store) == expected
    assert_sound(store, expected)
    assert [source.weights is None for source in store.manifest.sources] == [not first, not second]


def test_appending_without_weights_to_a_store_with_weights_says_so(tmp_path, oocpeg):
    write_lines(tmp_path / "a.svm", ["1 1:1", "-1 2:1"])
    write_lines(tmp_path / "w.txt", ["2", "0.5"])
    oocpeg("convert", "a.svm", "-o", "store", "--weights", "w.txt")
    write_lines(tmp_path / "b.svm", ["1 1:1", "-1 2:1"])
    done = oocpeg("convert", "b.svm", "-o", "store", "--append")
    assert "note: the new rows count 1 each: the rows of store have weights, and no --weights was given" in done.stderr
    assert oocpeg("convert", "b.svm", "-o", "plain").stderr == ""
    assert "weights" not in oocpeg("convert", "b.svm", "-o", "plain", "--append").stderr
    write_lines(tmp_path / "c.svm", ["1 1:1"])
    write_lines(tmp_path / "w.txt", ["7"])
    assert oocpeg("convert", "c.svm", "-o", "store", "--append", "--weights", "w.txt").stderr == ""
    assert sorted(row[0] for row in stored_rows_of(Store.open(tmp_path / "store"))) == [0.5, 1, 1, 2, 7]


@pytest.mark.parametrize("loading", ["mapped", "read"])
@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_chunks_with_and_without_weights_side_by_side(tmp_path, lines, weights, loading, holdout):
    """Every loader gives every row its weight, in windows of one chunk, of some, and of all."""
    file = write_lines(tmp_path / "w.txt", weights)
    config = ConvertConfig(values="float32", **SMALL)
    source = write_lines(tmp_path / "in.svm", lines)
    convert([source], tmp_path / "store", config)
    convert([source], tmp_path / "store", dataclasses.replace(config, weights=file), existing=APPEND)
    store = convert([source], tmp_path / "store", config, existing=APPEND)
    columns = [chunk.starts.weights is not None for chunk in store.manifest.chunks]
    assert [column for column, _group in itertools.groupby(columns)] == [False, True, False]
    expected = stored_rows_of(store)
    assert sum(row[0] for row in expected) == pytest.approx(store.manifest.weight_sum)
    least = least_memory(store)
    for memory in (least, 3 * least, 1 << 30):
        loader = open_loader(store, memory, loading=loading, holdout=holdout, threads=2)
        found = []
        for window in loader.stream(loader.in_order()):
            block = window.block
            for begin, end in window.row_ranges:
                of_rows = np.ones(end - begin) if block.weights is None else block.weights[begin:end]
                found += list(zip(of_rows.tolist(), block.labels[begin:end].tolist(), strict=True))
            loader.check_unchanged()
        assert found == [row[:2] for row in expected]


# --- being killed, and going on -----------------------------------------------------------------

CHILD = """
import sys
from ooc_pegasos import ConvertConfig, Existing, convert
from ooc_pegasos.conversion.pipeline import ConvertConfig as C
C.bucket_limit = lambda _config: 40_000
config = ConvertConfig(
    weights=sys.argv[3], shuffle=sys.argv[4] == "shuffle", chunk_size=20_000, block_size=4_000, threads=2,
    on_bad_row="skip",
)
existing = Existing(append=sys.argv[5] == "append", resume=sys.argv[6] == "resume")
convert(sys.argv[2].split(","), sys.argv[1], config, existing=existing)
"""


def start_weighted(target: Path, sources: str, weights: str, *words: str) -> Process:
    return program(CHILD, target, sources, weights, *words)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("shuffle", "mode"), [("shuffle", "new"), ("no-shuffle", "new"), ("shuffle", "append")])
def test_killed_at_any_moment_and_resumed_gives_the_same_bytes(tmp_path, shuffle, mode, suffix):
    matrix, labels = random_rows(12_000, 800, seed=3, density=0.02)
    text = svmlight_text(matrix, labels).splitlines()
    text[5000] = "garbage"
    weights = random_weights(12_000, seed=5)
    names = [write_lines(tmp_path / "a.svm", text[:6000]), str(tmp_path / "b.svm.gz")]
    (tmp_path / "b.svm.gz").write_bytes(gzip.compress("\n".join(text[6000:]).encode()))
    file = tmp_path / f"w.txt{suffix}"
    raw = "".join(f"{weight}\n" for weight in weights).encode()
    file.write_bytes(gzip.compress(raw) if suffix else raw)
    old = write_lines(tmp_path / "old.svm", [f"{1 - 2 * (i % 2)} 1:{i + 1}" for i in range(300)])

    def prepare(target: Path) -> None:
        if mode == "append":
            convert([old], target, ConvertConfig(shuffle=False))

    prepare(tmp_path / "whole")
    start_weighted(tmp_path / "warm", ",".join(names), str(file), shuffle, "new", "").succeed()
    began = time.monotonic()
    start_weighted(tmp_path / "whole", ",".join(names), str(file), shuffle, mode, "").succeed()
    length = time.monotonic() - began
    expected = folder_bytes(tmp_path / "whole")
    rows = stored_rows_of(Store.open(tmp_path / "whole"))[300 if mode == "append" else 0 :]
    assert Counter(rows) == Counter(truth(text, weights))
    rng = random.Random(6)
    killed = 0
    for attempt in range(2):
        target = tmp_path / f"store{attempt}"
        prepare(target)
        for _ in range(3):
            child = start_weighted(target, ",".join(names), str(file), shuffle, mode, "resume")
            while not target.with_name(target.name + ".unfinished").exists() and child.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.5) * length)
            killed += child.poll() is None
            child.kill()
            child.communicate()
        start_weighted(target, ",".join(names), str(file), shuffle, mode, "resume").succeed()
        assert folder_bytes(target) == expected
    assert killed > 0


def stop_while_reading(target: Path, source: str, weights: str) -> Path:
    """Kill a conversion when some of its blocks are on disk."""
    child = start_weighted(target, source, weights, "shuffle", "new", "")
    journal = target.with_name(target.name + ".unfinished") / "read.journal"
    while not journal.exists() or journal.stat().st_size < 20_000:
        assert child.poll() is None
        time.sleep(0.002)
    child.kill()
    child.communicate()
    return journal


def test_resume_goes_on_where_it_stood(tmp_path):
    lines = [f"{1 - 2 * (i % 2)} 1:{i}" for i in range(20_000)]
    source = write_lines(tmp_path / "in.svm", lines)
    weights = write_lines(tmp_path / "w.txt", random_weights(20_000, seed=7))
    start_weighted(tmp_path / "whole", source, weights, "shuffle", "new", "").succeed()
    journal = stop_while_reading(tmp_path / "store", source, weights)
    size = journal.stat().st_size
    config = ConvertConfig(weights=weights, chunk_size=20_000, block_size=4_000, on_bad_row="skip")
    resume = Existing(resume=True)
    other = write_lines(tmp_path / "other.txt", ["1"] * 20_000)
    for wrong in (other, None):
        with pytest.raises(UsageError, match="the weights were different when the conversion began; start over"):
            convert([source], tmp_path / "store", dataclasses.replace(config, weights=wrong), existing=resume)
    assert journal.stat().st_size == size
    content = bytearray(max(journal.parent.glob("bucket-*.rows"), key=lambda path: path.stat().st_size).read_bytes())
    content[len(content) // 2] ^= 1  # what a power cut may do
    max(journal.parent.glob("bucket-*.rows"), key=lambda path: path.stat().st_size).write_bytes(content)
    start_weighted(tmp_path / "store", source, weights, "shuffle", "new", "resume").succeed()
    assert folder_bytes(tmp_path / "store") == folder_bytes(tmp_path / "whole")
    stop_while_reading(tmp_path / "again", source, weights)
    write_lines(tmp_path / "w.txt", random_weights(20_000, seed=8))
    with pytest.raises(UsageError, match="the weights were different"):
        convert([source], tmp_path / "again", config, existing=resume)


def test_a_finished_store_is_resumed_with_the_same_weights_only(tmp_path):
    source = write_lines(tmp_path / "in.svm", ["1 1:1", "-1 1:2"])
    file, other = write_lines(tmp_path / "w.txt", ["1", "2"]), write_lines(tmp_path / "other.txt", ["1", "3"])
    resume = Existing(resume=True)
    store = convert([source], tmp_path / "store", ConvertConfig(weights=file), existing=resume)
    before = folder_bytes(store.path)
    assert convert([source], store.path, ConvertConfig(weights=file), existing=resume).rows == 2
    for wrong in (other, None):
        with pytest.raises(InputError, match="made from other inputs or with other options"):
            convert([source], store.path, ConvertConfig(weights=wrong), existing=resume)
    assert folder_bytes(store.path) == before


# --- the command --------------------------------------------------------------------------------


@pytest.mark.slow
def test_standard_input(tmp_path, oocpeg, lines, weights):
    write_lines(tmp_path / "in.svm", lines)
    write_lines(tmp_path / "w.txt", weights)
    text = (tmp_path / "in.svm").read_text()
    oocpeg("convert", "-", "-o", "store", "--weights", "w.txt", "--no-shuffle", "--features", 300, input=text)
    assert stored_rows_of(Store.open(tmp_path / "store")) == truth(lines, weights)
    numbers = (tmp_path / "w.txt").read_text()
    oocpeg("convert", "in.svm", "-o", "other", "--weights", "-", "--no-shuffle", "--features", 300, input=numbers)
    assert stored_rows_of(Store.open(tmp_path / "other")) == truth(lines, weights)
    done = oocpeg("convert", "-", "-o", "third", "--weights", "-", input=text, code=2)
    assert "--weights -: standard input is the data already; name a file" in done.stderr


def test_messages_about_weights(tmp_path, oocpeg):
    write_lines(tmp_path / "in.svm", ["1 1:3", "-1 2:1", "1 1:1"])
    write_lines(tmp_path / "w.txt", ["0.5", "4", "1"])
    done = oocpeg("convert", "in.svm", "-o", "store", "--weights", "w.txt")
    assert "weights: mean 1.833, largest 4, together 5.5" in done.stdout
    assert "mean 1.833, largest 4, together 5.5" in oocpeg("info", "store").stdout
    told = json.loads(oocpeg("info", "store", "--json").stdout)
    assert (told["weighted"], told["weight_sum"], told["max_weight"]) == (True, 5.5, 4)
    assert len(told["sources"][0]["weights"]) == 16
    (tmp_path / "job.toml").write_text('weights = "w.txt"\n')
    done = oocpeg("convert", "in.svm", "-o", "other", "--config", "job.toml", "--json")
    assert json.loads(done.stdout)["max_weight"] == 4
    assert folder_bytes(tmp_path / "other") == folder_bytes(tmp_path / "store")
    oocpeg("convert", "in.svm", "-o", "plain")
    assert "all 1, not stored" in oocpeg("info", "plain").stdout
    told = json.loads(oocpeg("info", "plain", "--json").stdout)
    assert (told["weighted"], told["weight_sum"], told["max_weight"]) == (False, 3, 1)


OUT_OF_RANGE = "is not from 1e-9 to 1e9; leave out rows that are not to count, and scale the weights of the others"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1\n2\n", "w.txt:3: the weights end after 2, and in.svm:4 is row 3 of the inputs; give every row one"),
        ("", "w.txt:1: the weights end after 0, and in.svm:1 is row 1 of the inputs"),
        ("1\n2\n3\n4\n", "w.txt:4: a line too many: all inputs together have 3 rows, bad ones included; give one"),
        ("1\n2\n3\n\n", "w.txt:4: a line too many"),
        ("1\n\n3\n", "w.txt:2: an empty line where a weight should be; give every row of the inputs one"),
        ("1\nmuch\n3\n", "w.txt:2: the weight 'much' is not a number; correct it"),
        ("# c\n1\n2\n3\n", "w.txt:1: the weight '#' is not a number"),
        ("1\n2 3\n4\n", "w.txt:2: '3' after the weight; give one number a line"),
        ("1\n2#3\n4\n", "w.txt:2: '#3' after the weight; give one number a line"),
        ("1\n0x10\n4\n", "w.txt:2: the weight '0x10' is not a number"),
        ("1\n1,5\n4\n", "w.txt:2: the weight '1,5' is not a number"),
        ("1\n2\n0\n", f"w.txt:3: the weight '0' {OUT_OF_RANGE}"),
        ("1\n2\n-0.0\n", f"w.txt:3: the weight '-0.0' {OUT_OF_RANGE}"),
        ("1\n-2\n3\n", f"w.txt:2: the weight '-2' {OUT_OF_RANGE}"),
        ("1\ninf\n3\n", f"w.txt:2: the weight 'inf' {OUT_OF_RANGE}"),
        ("1\nNaN\n3\n", f"w.txt:2: the weight 'NaN' {OUT_OF_RANGE}"),
        ("1\n1e400\n3\n", f"w.txt:2: the weight '1e400' {OUT_OF_RANGE}"),
        ("1\n1e-400\n3\n", f"w.txt:2: the weight '1e-400' {OUT_OF_RANGE}"),
        ("1\n1.0001e9\n3\n", f"w.txt:2: the weight '1.0001e9' {OUT_OF_RANGE}"),
        ("1\n9.99e-10\n3\n", f"w.txt:2: the weight '9.99e-10' {OUT_OF_RANGE}"),
        ("1\n\0\n3\n", "w.txt:2: a zero byte, so this is not text; check that it is the file of weights"),
        ("1\n\xe9\n3\n", r"w.txt:2: the weight '\xc3\xa9' is not a number"),
        ("PAR1 and so on", "w.txt: this is a Parquet file, not a text file of weights"),
    ],
)
def test_mistakes(tmp_path, oocpeg, content, problem):
    write_lines(tmp_path / "in.svm", ["1 1:1", "-1 2:1", "", "1 1:2"])
    (tmp_path / "w.txt").write_text(content)
    done = oocpeg("convert", "in.svm", "-o", "s", "--weights", "w.txt", code=3)
    assert problem in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 + ("compiling" in done.stderr)
    config = ConvertConfig(weights=str(tmp_path / "w.txt"), on_bad_row="skip", threads=2)
    with pytest.raises(InputError) as found:
        convert([str(tmp_path / "in.svm")], tmp_path / "s", config)
    assert problem in str(found.value).replace(f"{tmp_path}/", "")
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "s.unfinished").exists()


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--weights", "none.txt"], 3, "none.txt: no such file; check the path"),
        (["--weights", "none*.txt"], 3, "none*.txt: no file matches this pattern"),
        (["--weights", "."], 3, ".: is a folder"),
        (["--weights", "?.txt"], 2, "--weights ?.txt: 2 files match; name one, with the weights of all inputs"),
        (["--weights", "./in.svm"], 2, "--weights ./in.svm: is an input as well; name the file of the weights"),
        (["--weights", "cut.gz"], 3, "cut.gz: the compressed data is truncated or damaged"),
        (["--config", "job.toml"], 2, "'weights' should be str or None"),
    ],
)
def test_mistakes_about_the_file(tmp_path, oocpeg, words, code, problem):
    write_lines(tmp_path / "in.svm", ["1 1:1", "-1 2:1"])
    for name in ("a.txt", "b.txt"):
        write_lines(tmp_path / name, ["1", "2"])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1\n2\n")[:-3])
    (tmp_path / "job.toml").write_text("weights = 3\n")
    done = oocpeg("convert", "in.svm", "-o", "s", *words, code=code)
    assert problem in done.stderr
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "s.unfinished").exists()


def test_the_row_without_a_weight_is_named_where_it_stands(tmp_path):
    """In a later file, after comments, beside rows that are bad themselves."""
    names = [write_lines(tmp_path / "a.svm", ["1 1:1", "x", "-1 1:2"])]
    names.append(write_lines(tmp_path / "b.svm", ["# c", "y", "", "1 1:1", "-1 1:1"]))
    for count, where in [(3, "row 4 of the inputs is in"), (4, ":4 is row 5"), (5, ":5 is row 6")]:
        file = write_lines(tmp_path / "w.txt", ["1"] * count)
        config = ConvertConfig(weights=file, on_bad_row="skip")
        with pytest.raises(InputError, match=rf"w\.txt:{count + 1}: the weights end after {count}, and .*{where}"):
            convert(names, tmp_path / "store", config)
    config = ConvertConfig(weights=write_lines(tmp_path / "w.txt", ["1"] * 7), on_bad_row="skip")
    with pytest.raises(InputError, match=r"w\.txt:7: a line too many: all inputs together have 6 rows"):
        convert(names, tmp_path / "store", config)


def test_a_mistake_leaves_the_old_store(tmp_path):
    source = write_lines(tmp_path / "in.svm", ["1 1:1", "-1 1:2"])
    store = convert([source], tmp_path / "store")
    before = folder_bytes(store.path)
    config = ConvertConfig(weights=write_lines(tmp_path / "w.txt", ["1", "0"]))
    for existing in (APPEND, Existing(force=True)):
        with pytest.raises(InputError, match=r"w\.txt:2"):
            convert([source], store.path, config, existing=existing)
        assert folder_bytes(store.path) == before


def test_a_file_of_weights_that_changes_while_it_is_read(tmp_path, monkeypatch):
    from ooc_pegasos.readers import svmlight

    source = write_lines(tmp_path / "in.svm", [f"{1 - 2 * (i % 2)} 1:1" for i in range(1000)])
    file = Path(write_lines(tmp_path / "w.txt", ["2"] * 1000))
    read = svmlight.SvmlightReader.read

    def meddle(reader: svmlight.SvmlightReader, task: object) -> object:
        with file.open("a") as more:
            more.write("3\n")
        return read(reader, task)

    monkeypatch.setattr(svmlight.SvmlightReader, "read", meddle)
    with pytest.raises(InputError, match=r"w\.txt: changed during the conversion|w\.txt:\d+: a line too many"):
        convert([source], tmp_path / "store", ConvertConfig(weights=str(file), block_size=100, threads=1))
    assert not (tmp_path / "store").exists()


# --- damage -------------------------------------------------------------------------------------


def weighted_store(folder: Path) -> Store:
    source = write_lines(folder / "in.svm", [f"{1 - 2 * (i % 2)} 1:{i + 1}" for i in range(50)])
    file = write_lines(folder / "w.txt", [str(1 + i % 7) for i in range(50)])
    config = ConvertConfig(weights=file, shuffle=False)
    return convert([source], folder / "store", config, existing=Existing(force=True))


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (np.nan, "row 3: its weight is not a positive number"),
        (np.inf, "row 3: its weight is not a positive number"),
        (0.0, "row 3: its weight is not a positive number"),
        (-1.0, "row 3: its weight is not a positive number"),
        (9.0, "the largest weight is 9 instead of 7"),
        (2.0, "the weights add up to"),
    ],
)
def test_verify_finds_invalid_weights(tmp_path, weight, problem):
    """A chunk that was written with a wrong weight, all checksums right."""
    store = weighted_store(tmp_path)
    block = store.block(0)
    wrong = block.weights.copy()
    wrong[3] = weight
    chunk = store.manifest.chunks[0]
    written = write_chunk(tmp_path / "chunk", dataclasses.replace(block, weights=wrong))
    name = f"chunk-000000-{written.crc32}.arrow"
    (tmp_path / "chunk").rename(store.path / name)
    (store.path / chunk.file).unlink()
    changed = dataclasses.replace(chunk, file=name, crc32=written.crc32, xxh64=written.xxh64, starts=written.starts)
    manifests.write(store.path, dataclasses.replace(store.manifest, chunks=[changed]))
    problems = verify(Store.open(store.path)).problems
    assert len([line for line in problems if problem in line]) == 1, problems


def test_a_flipped_bit_in_a_weight(tmp_path, oocpeg):
    store = weighted_store(tmp_path)
    chunk = store.manifest.chunks[0]
    content = bytearray((store.path / chunk.file).read_bytes())
    content[chunk.starts.weights + 13] ^= 1
    (store.path / chunk.file).write_bytes(content)
    assert chunk.file in oocpeg("verify", "store", code=5).stdout


@pytest.mark.parametrize(
    ("statistics", "problem"),
    [
        ({"max_weight": 0.5}, "contradict each other"),
        ({"mean_weight": 0.0}, "contradict each other"),
        ({"max_weighted_square": float("1e999")}, None),
    ],
)
def test_invalid_statistics(tmp_path, statistics, problem):
    store = weighted_store(tmp_path)
    made = dataclasses.replace(store.manifest, statistics=dataclasses.replace(store.manifest.statistics, **statistics))
    if problem is None:
        assert "none that rows can have" in manifests.inconsistency(made)
        return
    manifests.write(store.path, made)
    with pytest.raises(CorruptFileError, match=problem):
        Store.open(store.path)


def test_statistics_of_weights_that_are_not_there(tmp_path):
    store = convert([write_lines(tmp_path / "in.svm", ["1 1:1", "-1 1:2"])], tmp_path / "store")
    for statistics in ({"max_weight": 2.0}, {"mean_weight": 0.5}, {"max_weighted_square": 4.0}):
        wrong = dataclasses.replace(store.manifest.statistics, **statistics)
        manifests.write(store.path, dataclasses.replace(store.manifest, statistics=wrong))
        with pytest.raises(CorruptFileError, match="the statistics mention weights, but no row has one"):
            Store.open(store.path)


def test_manifests_from_before_there_were_weights(tmp_path):
    store = convert([write_lines(tmp_path / "in.svm", ["1 1:1", "-1 1:2"])], tmp_path / "store")
    table = json.loads((store.path / "manifest.json").read_text())
    for name in ("mean_weight", "max_weight", "max_weighted_square"):
        del table["statistics"][name]
    for source in table["sources"]:
        del source["weights"]
    del table["checksum"]
    table["checksum"] = json_checksum.checksum_of(table)
    (store.path / "manifest.json").write_text(json.dumps(table))
    old = Store.open(store.path)
    assert (old.manifest.weight_sum, old.manifest.statistics.max_weight) == (2, 1)
    assert old.manifest.statistics.largest_square == 4
    assert verify(old).problems == []
    more = write_lines(tmp_path / "more.svm", ["1 1:1", "-1 1:3"])
    config = ConvertConfig(weights=write_lines(tmp_path / "w.txt", ["5", "0.25"]), values="float32")
    with pytest.raises(UsageError, match="the store was made with codes of one byte"):
        convert([more], store.path, config, existing=APPEND)
    grown = convert([more], store.path, dataclasses.replace(config, values=None), existing=APPEND)
    assert_sound(grown, stored_rows_of(grown))
    assert sorted(row[0] for row in stored_rows_of(grown)) == [0.25, 1, 1, 5]
