"""Appended and expired rows: the rest, the manifest, and the holdout rows."""

import dataclasses
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import xxhash

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.conversion.source_check import changed_sources, refuse_changed
from ooc_pegasos.errors import InputError, LockedError
from ooc_pegasos.loading.window import Folds
from ooc_pegasos.readers import matrices, sources, tables
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.scoring.score import score
from ooc_pegasos.store.append_expire import expire, expired_parts
from ooc_pegasos.store.verify import verify
from ooc_pegasos.util import json_checksum
from ooc_pegasos.util.locks import in_use, locked, unused
from support.rows import random_rows, same_matrix, svmlight_text

DAY = 86_400 * 10**9


def day_file(folder, day, rows=60, weighted=False):
    """A file that was last changed on some day."""
    path = folder / f"day-{day}.svm"
    path.write_text(svmlight_text(*random_rows(rows, 50, day)))
    os.utime(path, ns=(day * DAY, day * DAY))
    if weighted:
        (folder / f"day-{day}.weights").write_text("".join(f"{1 + day + row % 3}\n" for row in range(rows)))
    return str(path)


def store_of_days(folder, days, weighted=False, **options):
    settings = {"shuffle": False, "values": "float32", "chunk_size": 4096, "features": 50, "index_base": "1", **options}
    config = ConvertConfig(**settings)
    later = ConvertConfig(shuffle=settings["shuffle"], chunk_size=4096)
    for number, day in enumerate(days):
        source = day_file(folder, day, weighted=weighted)
        weights = str(folder / f"day-{day}.weights") if weighted else None
        chosen = dataclasses.replace(later if number else config, weights=weights)
        store = convert([source], folder / "store", chosen, existing=Existing(append=number > 0))
    return store


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_left_is_as_if_the_rest_had_never_been(tmp_path, weighted):
    (tmp_path / "all").mkdir()
    (tmp_path / "some").mkdir()
    store_of_days(tmp_path / "all", [1, 2, 3, 4], weighted)
    gone = expire(tmp_path / "all" / "store", 3 * DAY)
    assert gone == 120
    left, fresh = Store.open(tmp_path / "all" / "store"), store_of_days(tmp_path / "some", [3, 4], weighted)
    (a, labels), (b, others) = left.to_scipy(), fresh.to_scipy()
    assert same_matrix(a, b)
    assert np.array_equal(labels, others)
    assert np.array_equal(left.weights(), fresh.weights())
    assert dataclasses.asdict(left.manifest.statistics) == pytest.approx(dataclasses.asdict(fresh.manifest.statistics))
    assert (left.manifest.labels, left.rows, left.nonzeros) == (fresh.manifest.labels, fresh.rows, fresh.nonzeros)
    assert left.manifest.first_row == 120
    assert not verify(left).problems
    assert not verify(left).strays
    assert not list((tmp_path / "all").glob("*.unfinished"))


def test_holdout_rows_stay_the_same(tmp_path):
    store = store_of_days(tmp_path, [1, 2, 3])
    before = np.concatenate([Folds(store, 0.2, None).of(chunk) for chunk in range(len(store.manifest.chunks))])
    expire(store.path, 2 * DAY)
    left = Store.open(store.path)
    after = np.concatenate([Folds(left, 0.2, None).of(chunk) for chunk in range(len(left.manifest.chunks))])
    assert np.array_equal(after, before[60:])
    assert (after == 0).any()


def test_only_from_the_oldest_on_and_never_all(tmp_path):
    store = store_of_days(tmp_path, [2, 1, 5, 3])
    assert expired_parts(store.manifest, 2 * DAY) == 0  # the part of day 1 came after that of day 2
    assert expired_parts(store.manifest, 4 * DAY) == 2
    assert expire(store.path, 1 * DAY) == 0
    assert Store.open(store.path).manifest == store.manifest
    with pytest.raises(InputError, match="all its rows are older"):
        expire(store.path, 9 * DAY)
    with (
        locked(tmp_path / "store.unfinished" / "lock", "another"),
        pytest.raises(LockedError, match=f"process {os.getpid()} is at work"),
    ):
        expire(store.path, 4 * DAY)


def test_append_expire_append(tmp_path):
    """The same rows come again after their first coming has expired."""
    store = store_of_days(tmp_path, [1, 2, 3], shuffle=True)
    expire(store.path, 3 * DAY)
    source = day_file(tmp_path, 3)
    os.utime(source, ns=(7 * DAY, 7 * DAY))
    grown = convert([source], store.path, ConvertConfig(chunk_size=4096), existing=Existing(append=True))
    assert grown.rows == 120
    assert len({chunk.file for chunk in grown.manifest.chunks}) == len(grown.manifest.chunks)
    assert [part.rows for part in grown.manifest.all_parts()] == [60, 60]
    assert not verify(grown).problems
    assert expire(store.path, 5 * DAY) == 60
    assert train(Store.open(store.path), TrainConfig(lam=0.01, holdout=0.2)).model.info.certificate.converged


def test_inputs_of_unknown_age_do_not_expire(tmp_path):
    matrix, labels = random_rows(30, 20, 0)
    store = Store.from_scipy(matrix, labels, tmp_path / "store")
    assert store.manifest.sources[0].modified_ns is None
    assert expired_parts(store.manifest, 2**62) == 0


def test_readers_of_a_store_are_not_disturbed(tmp_path):
    """What a training or a prediction has begun with stays until it is done."""
    store = store_of_days(tmp_path, [1, 2, 3])
    old = sorted(path.name for path in store.path.glob("chunk-*"))
    with in_use(store.path), in_use(store.path):
        expire(store.path, 2 * DAY)
        assert sorted(path.name for path in store.path.glob("chunk-*")) == old
        rows = sum(block.rows for block in store.blocks())  # as it was opened
        assert rows == 180
    left = Store.open(store.path)
    assert verify(left).strays == [chunk.file for chunk in store.manifest.chunks if chunk not in left.manifest.chunks]
    assert expire(store.path, 3 * DAY) == 60
    assert not verify(Store.open(store.path)).strays


def test_training_and_scoring_hold_the_store(tmp_path):
    store = store_of_days(tmp_path, [1, 2])
    held = []

    class Listening(TrainingProgress):
        def presented(self, epoch, rows, total):
            with unused(store.path) as free:
                held.append(free)

    model = train(store, TrainConfig(lam=0.01, algorithm="sgd-s", max_epochs=2), progress=Listening()).model
    assert held
    assert not any(held)
    for _block in score(model, str(store.path), 1, with_labels=True):
        with unused(store.path) as free:
            assert not free
    with unused(store.path) as free:
        assert free


def test_sources_that_have_changed(tmp_path, oocpeg):
    store = store_of_days(tmp_path, [1, 2])
    first = tmp_path / "day-1.svm"
    words = ("train", store.path, "-o", "model", "--lambda", "0.01", "--force")
    os.utime(first, ns=(5 * DAY, 5 * DAY))  # touched, and the same
    oocpeg(*words)
    content = first.read_text()
    first.write_text(content.replace("1:", "2:", 1))
    told = oocpeg(*words, code=3).stderr
    assert f"{first}: changed after the store was made of it" in told
    assert "--ignore-sources" in told
    oocpeg(*words, "--ignore-sources")
    (tmp_path / "model").unlink()
    os.utime(first, ns=(1 * DAY, 1 * DAY))  # same size, same time: only the bytes differ
    assert f"{first}: changed after the store was made of it" in oocpeg(*words, code=3).stderr
    assert not (tmp_path / "model").exists()
    assert f"{first}: changed" in oocpeg("verify", store.path, "--sources", code=5).stdout
    first.unlink()
    oocpeg(*words)
    oocpeg("verify", store.path, "--sources")


def test_the_last_source_of_a_name_counts(tmp_path):
    store_of_days(tmp_path, [1])
    source = tmp_path / "day-1.svm"
    source.write_text(svmlight_text(*random_rows(30, 50, 7)))
    store = convert([str(source)], tmp_path / "store", ConvertConfig(), existing=Existing(append=True))
    assert changed_sources(store.manifest, every_byte=True) == []


# --- samples of sources ---------------------------------------------------------------------------

BLOCK = 16_384


def put_byte(path, at, byte):
    """Other bytes, and the size and time of before."""
    moment, content = path.stat().st_mtime_ns, bytearray(path.read_bytes())
    assert content[at : at + 1] != byte
    content[at : at + 1] = byte
    path.write_bytes(content)
    os.utime(path, ns=(moment, moment))


def big_file(folder):
    """Rows of a comment that can be changed anywhere, in a file that is much larger than its samples."""
    path = folder / "big.svm"
    path.write_text("".join(f"{1 - 2 * (i % 2)} 1:{i} # {'-' * 80}\n" for i in range(3_000)))
    return path


def test_samples_are_those_of_the_format(tmp_path):
    """Worked out once more from what docs/store-format.md says."""
    big = big_file(tmp_path)
    small, exact = tmp_path / "small.svm", tmp_path / "exact.svm"
    for path, size in ((small, 50_001), (exact, 4 * BLOCK)):
        path.write_bytes(big.read_bytes()[: size - 1] + b"\n")
    for path in (big, small, exact):
        content = path.read_bytes()
        size = len(content)
        blocks = [content[i * (size - BLOCK) // 3 :][:BLOCK] for i in range(4)] if size > 4 * BLOCK else [content]
        found = convert([str(path)], tmp_path / f"{path.stem}.store").manifest.sources[0]
        assert found.samples == xxhash.xxh64(b"".join(blocks)).hexdigest()
    assert found.samples == found.xxh64


def test_a_change_in_a_sample_is_noticed(tmp_path):
    path = big_file(tmp_path)
    size = path.stat().st_size
    made = convert([str(path)], tmp_path / "store").manifest
    before, moment = path.read_bytes(), path.stat().st_mtime_ns
    said = [f"{path}: changed after the store was made of it"]
    for begin in (i * (size - BLOCK) // 3 for i in range(4)):
        for at in (begin, begin + BLOCK - 1):
            put_byte(path, at, b"~")
            assert changed_sources(made) == said, at
            path.write_bytes(before)
            os.utime(path, ns=(moment, moment))
            assert changed_sources(made) == []
    put_byte(path, BLOCK + 1, b"~")  # between two samples: every byte has to be read
    assert changed_sources(made) == []
    assert changed_sources(made, every_byte=True) == said


def parquet_file(folder, suffix):
    path = folder / f"a{suffix}"
    pq.write_table(pa.table({"label": [0, 1] * 500, "x": np.arange(1000.0)}), path)
    return path


def npz_file(folder, _suffix):
    path = folder / "a.npz"
    matrix, labels = random_rows(100, 20, 0)
    whole = sp.csr_matrix(matrix)
    np.savez(
        path,
        format="csr",
        shape=whole.shape,
        data=whole.data,
        indices=whole.indices,
        indptr=whole.indptr,
        labels=labels,
    )
    return path


def text_file(folder, suffix):
    """The same text, plain or compressed."""
    path = folder / f"a.svm{suffix}"
    content = svmlight_text(*random_rows(100, 20, 0)).encode()
    path.write_bytes(gzip.compress(content) if suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("make", "suffix"), [(text_file, ""), (text_file, ".gz"), (parquet_file, ".parquet"), (npz_file, ".npz")]
)
def test_samples_are_of_the_file_that_was_read(tmp_path, monkeypatch, make, suffix):
    """Who writes to a file when its rows were read, and it is sampled, is noticed."""
    path = make(tmp_path, suffix)
    found = convert([str(path)], tmp_path / "store").manifest.sources[0]
    assert found.samples == xxhash.xxh64(path.read_bytes()).hexdigest()
    whole = sources.samples_of

    def written_to(file):
        sampled = whole(file)
        os.utime(path, ns=(DAY, DAY))
        return sampled

    for module in (sources, tables, matrices):
        monkeypatch.setattr(module, "samples_of", written_to)
    with pytest.raises(InputError, match=r"changed during the conversion; convert again"):
        convert([str(path)], tmp_path / "other")


def test_sources_that_may_not_be_read_any_more(tmp_path, monkeypatch):
    """Training needs none of them; only the metadata of their folder is read."""
    store = store_of_days(tmp_path, [1])

    def forbidden(file):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("ooc_pegasos.conversion.source_check.samples_of", forbidden)
    assert changed_sources(store.manifest) == []


def older(store, **changes):
    """The store as an older program has written it: without samples of sources."""
    path = store.path / "manifest.json"
    table = json.loads(path.read_text())
    del table["checksum"]
    for source in table["sources"]:
        del source["samples"]
        source.update(changes)
    path.write_bytes(json_checksum.encode(table))
    return Store.open(store.path)


def test_stores_of_older_programs(tmp_path):
    store = older(store_of_days(tmp_path, [1]))
    assert store.manifest.sources[0].samples is None
    path = tmp_path / "day-1.svm"
    put_byte(path, path.read_bytes().index(b"1:"), b"2")
    assert changed_sources(store.manifest) == []  # size and time are all that it knows
    os.utime(path, ns=(2 * DAY, 2 * DAY))
    assert changed_sources(store.manifest) == [f"{path}: changed after the store was made of it"]


# --- names of sources -----------------------------------------------------------------------------


def test_a_relative_name_means_the_same_from_everywhere(tmp_path, monkeypatch):
    (tmp_path / "here" / "in").mkdir(parents=True)
    (tmp_path / "there" / "in").mkdir(parents=True)
    first = Path(day_file(tmp_path / "here" / "in", 1))
    day_file(tmp_path / "there" / "in", 1, rows=30)  # has nothing to do with it
    monkeypatch.chdir(tmp_path / "here")
    made = convert(["in/../in/./day-1.svm"], "store").manifest
    assert [source.name for source in made.sources] == [str(first)]
    for folder in ("here", "there"):
        monkeypatch.chdir(tmp_path / folder)
        refuse_changed("store", made)
    put_byte(first, first.read_bytes().index(b"1:"), b"2")
    for folder in ("here", "there", "there/in"):
        monkeypatch.chdir(tmp_path / folder)
        with pytest.raises(InputError, match=f"^{first}: changed after the store was made of it; convert store again"):
            refuse_changed("store", made)


def test_a_relative_name_of_an_older_program_is_not_looked_at(tmp_path, monkeypatch):
    store = older(store_of_days(tmp_path, [1]), name="day-1.svm")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day-1.svm").write_text("something else")
    assert changed_sources(store.manifest, every_byte=True) == []


def test_names_are_recorded_from_the_root_on(tmp_path, monkeypatch):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    monkeypatch.chdir(tmp_path / "real")
    here = str(tmp_path / "real")
    for name, expected in (
        ("a.svm", f"{here}/a.svm"),
        ("deep/../a.svm", f"{here}/a.svm"),
        (f"{here}/./year=1/a.parquet", f"{here}/year=1/a.parquet"),
        ("../link/a.svm", f"{tmp_path}/link/a.svm"),  # where the link leads to is not recorded
        ("../link/../a.svm", f"{here}/a.svm"),  # unless one goes up from there
        ("-", "standard input"),
        ("s3://key:secret@bucket/a.svm?token=y", "s3://bucket/a.svm"),
        (sources.NamedPath("pieces/a.arrow", "memory"), "memory"),
    ):
        assert sources.manifest_name(name) == expected
