"""Conversion: order, memory, many inputs, appending, and being killed at any moment."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Existing, Store, convert, verify
from ooc_pegasos.conversion.buckets import Spill
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.errors import CorruptFileError, InputError, LockedError, UsageError
from ooc_pegasos.util.files import open_in_place
from support.file_bytes import folder_bytes
from support.fork_server import Process, program
from support.rows import random_rows, same_matrix, svmlight_text
from support.stores import small_buckets

FORCE = Existing(force=True)


def numbered(folder: Path, rows: int, name: str = "in.svm", start: int = 0) -> str:
    """A file whose row i has the one value i + 1: the stored order can be read off the store."""
    path = folder / name
    path.write_text("".join(f"{1 - 2 * (i % 2)} 1:{i + 1}\n" for i in range(start, start + rows)))
    return str(path)


def order_of(store: Store) -> list[int]:
    matrix, labels = store.to_scipy()
    order = (matrix.data.astype(np.int64) - 1).tolist()
    assert labels.tolist() == [1 - 2 * (i % 2) for i in order]
    return order


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shuffle", [False, True])
def test_threads_do_not_change_a_byte(tmp_path, threads, shuffle):
    matrix, labels = random_rows(2000, 500, seed=1)
    source = tmp_path / "in.svm"
    source.write_text(svmlight_text(matrix, labels))
    config = {"shuffle": shuffle, "chunk_size": 9000, "block_size": 3000}
    one = convert([str(source)], tmp_path / "one", ConvertConfig(threads=1, **config))
    many = convert([str(source)], tmp_path / "many", ConvertConfig(threads=threads, **config))
    assert folder_bytes(one.path) == folder_bytes(many.path)
    assert len(one.manifest.chunks) > 3


def test_without_shuffle_the_order_is_that_of_the_inputs(tmp_path):
    names = [numbered(tmp_path, 700, "b.svm"), numbered(tmp_path, 300, "a.svm", start=700)]
    config = ConvertConfig(shuffle=False, chunk_size=1500, block_size=333)
    assert order_of(convert(names, tmp_path / "store", config)) == list(range(1000))
    both = convert([str(tmp_path / "*.svm")], tmp_path / "glob", config)  # a pattern is opened in sorted order
    assert order_of(both) == [*range(700, 1000), *range(700)]


@pytest.mark.parametrize(
    ("limit", "why"), [(1 << 30, "one bucket"), (2000, "many buckets"), (600, "buckets are split")]
)
def test_the_shuffle_is_a_permutation_with_a_seed(tmp_path, monkeypatch, limit, why):
    small_buckets(monkeypatch, limit)
    source = numbered(tmp_path, 3000)
    config = ConvertConfig(chunk_size=4000, block_size=2000, seed=5)
    first = order_of(convert([source], tmp_path / "first", config))
    assert sorted(first) == list(range(3000)), why
    assert first == order_of(convert([source], tmp_path / "again", config))
    other = ConvertConfig(chunk_size=4000, block_size=2000, seed=6)
    assert first != order_of(convert([source], tmp_path / "other", other))


@pytest.mark.parametrize("limit", [1 << 30, 60_000, 9_000])
def test_the_shuffle_is_uniform(tmp_path, monkeypatch, limit):
    """Rows from every stretch of the input are spread evenly over every stretch of the store."""
    from scipy.stats import chi2, norm

    small_buckets(monkeypatch, limit)
    rows, cells = 20_000, 20
    source = numbered(tmp_path, rows)
    config = ConvertConfig(block_size=30_000)
    monkeypatch.setattr("ooc_pegasos.readers.registry.ROWS_PER_TEXT", 0.1)  # few buckets: some must be split
    order = np.array(order_of(convert([source], tmp_path / "store", config)))
    table = np.zeros((cells, cells))
    np.add.at(table, (order * cells // rows, np.arange(rows) * cells // rows), 1)
    expected = rows / cells**2
    assert chi2.sf(((table - expected) ** 2 / expected).sum(), (cells - 1) ** 2) > 1e-4
    rises = (np.diff(order) > 0).sum()  # Eulerian: mean (n - 1) / 2, variance (n + 1) / 12
    assert 2 * norm.sf(abs(rises - (rows - 1) / 2) / np.sqrt((rows + 1) / 12)) > 1e-4
    assert (np.abs(np.diff(order)) == 1).sum() < 20  # about 2 neighbours stay neighbours


def test_normalize_like_scikit_learn(tmp_path):
    from sklearn.preprocessing import normalize

    matrix, labels = random_rows(300, 400, seed=2)
    source = tmp_path / "in.svm"
    source.write_text(svmlight_text(matrix, labels))
    config = ConvertConfig(shuffle=False, normalize="l2", features=400)
    store = convert([str(source)], tmp_path / "store", config)
    expected = normalize(matrix.astype(np.float64)).astype(np.float32)
    assert same_matrix(store.to_scipy()[0], sp.csr_matrix(expected))
    assert store.manifest.statistics.max_row_norm == pytest.approx(1, abs=1e-6)


def test_normalize_values_left_out(tmp_path):
    source = tmp_path / "in.svm"
    source.write_text("1 1:1 2:1 3:1 4:1\n-1 2:1\n")
    store = convert([str(source)], tmp_path / "store", ConvertConfig(shuffle=False, normalize="l2"))
    assert store.to_scipy()[0].toarray().tolist() == [[0.5] * 4, [0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("lines", "base", "width"), [("1 1:1\n-1 3:1", 1, 3), ("1 0:1\n-1 3:1", 0, 4), ("1 2:1\n-1", 1, 2)]
)
def test_index_base_is_detected(tmp_path, lines, base, width):
    source = tmp_path / "in.svm"
    source.write_text(lines)
    store = convert([str(source)], tmp_path / "store")
    assert (store.manifest.recipe.index_base, store.features) == (base, width)


def test_features_may_be_declared(tmp_path):
    source = tmp_path / "in.svm"
    source.write_text("1 1:1\n-1 3:1\n")
    assert convert([str(source)], tmp_path / "a", ConvertConfig(features=7)).features == 7
    with pytest.raises(InputError, match=r"in\.svm:2: the index in '3:1' is above the limit of 2"):
        convert([str(source)], tmp_path / "b", ConvertConfig(features=2))
    source.write_text("1 0:1\n-1 3:1\n")  # 3 is the fourth feature, as the first line shows
    with pytest.raises(InputError, match=r"in\.svm:2: index 3"):
        convert([str(source)], tmp_path / "b", ConvertConfig(features=3))


# --- outputs that exist -------------------------------------------------------------------------


def test_an_existing_output_is_not_touched(tmp_path):
    source = numbered(tmp_path, 10)
    store = convert([source], tmp_path / "store")
    before = folder_bytes(store.path)
    with pytest.raises(InputError, match=r"exists already; add force .* or append"):
        convert([source], tmp_path / "store")
    assert folder_bytes(store.path) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for existing in (None, FORCE, Existing(append=True)):
        with pytest.raises(InputError, match="exists and is not a store"):
            convert([source], tmp_path / "mine", existing=existing)
    with pytest.raises(UsageError, match="choose one"):
        convert([source], tmp_path / "store", existing=Existing(force=True, append=True))
    with pytest.raises(InputError, match="no such folder"):
        convert([source], tmp_path / "no" / "store")


def test_force_replaces_all_of_it(tmp_path):
    convert([numbered(tmp_path, 900)], tmp_path / "store", ConvertConfig(chunk_size=2000))
    source = numbered(tmp_path, 10)
    replaced = convert([source], tmp_path / "store", existing=FORCE)
    fresh = convert([source], tmp_path / "fresh")
    assert folder_bytes(replaced.path) == folder_bytes(fresh.path)


def test_bad_input_leaves_the_old_store(tmp_path):
    store = convert([numbered(tmp_path, 10)], tmp_path / "store")
    before = folder_bytes(tmp_path / "store")
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:1\n-1 x\n")
    for existing in (FORCE, Existing(append=True)):
        with pytest.raises(InputError, match=r"bad\.svm:2"):
            convert([str(bad)], store.path, existing=existing)
        assert folder_bytes(tmp_path / "store") == before
        assert not (tmp_path / "store.unfinished").exists()


def test_append(tmp_path):
    config = ConvertConfig(shuffle=False, chunk_size=2000)
    convert([numbered(tmp_path, 500, "a.svm")], tmp_path / "store", config)
    second = numbered(tmp_path, 400, "b.svm", start=500)
    store = convert([second], tmp_path / "store", config, existing=Existing(append=True))
    assert order_of(store) == list(range(900))
    assert [source.rows for source in store.manifest.sources] == [500, 400]
    assert store.manifest.labels.counts == [450, 450]
    assert verify(store).problems == []
    assert verify(store).strays == []
    norms = np.arange(1, 901)
    assert store.manifest.statistics.mean_row_norm == pytest.approx(norms.mean())


def test_append_keeps_to_the_store(tmp_path):
    source = tmp_path / "a.svm"
    source.write_text("spam 0:1 5:1\nham 1:1\n")
    store = convert([str(source)], tmp_path / "store", ConvertConfig(shuffle=False))
    more = tmp_path / "b.svm"
    more.write_text("spam 9:1\n")  # alone it would be taken to count from 1
    grown = convert([str(more)], store.path, ConvertConfig(shuffle=False), existing=Existing(append=True))
    assert (grown.features, grown.manifest.recipe.index_base) == (10, 0)
    assert grown.to_scipy()[1].tolist() == [1, -1, 1]
    before = folder_bytes(store.path)
    for text, problem in [
        ("eggs 1:1\n", r"b\.svm:1: the label 'eggs' is not one of ham, spam"),
        ("ham 1:0.5\n", "all its values are 1"),
    ]:
        more.write_text(text)
        with pytest.raises(InputError, match=problem):
            convert([str(more)], store.path, ConvertConfig(shuffle=False), existing=Existing(append=True))
        assert folder_bytes(store.path) == before


# --- being killed, and going on -----------------------------------------------------------------

CHILD = """
import sys
from ooc_pegasos import ConvertConfig, Existing, convert
from ooc_pegasos.conversion.pipeline import ConvertConfig as C
C.bucket_limit = lambda _config: 40_000
config = ConvertConfig(
    shuffle=sys.argv[3] == "shuffle", chunk_size=20_000, block_size=4_000, threads=2, on_bad_row="skip"
)
existing = Existing(append=sys.argv[4] == "append", force=sys.argv[4] == "force", resume=sys.argv[5] == "resume")
convert(sys.argv[2].split(","), sys.argv[1], config, existing=existing)
"""


def start_conversion(target: Path, sources: object, shuffle: str, mode: str, resume: str = "") -> Process:
    return program(CHILD, target, sources, shuffle, mode, resume)


@pytest.mark.slow
def test_all_that_comes_through_a_pipe_counts(tmp_path, oocpeg):
    """A pipe can be read once: who looks at the first bytes has taken them away."""
    text = "".join(f"{1 - 2 * (i % 2)} {1 + i % 9}:{i}\n" for i in range(1, 500))
    (tmp_path / "in.svm").write_text(text)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def through_the_pipe(*words):
        writer = threading.Thread(target=pipe.write_text, args=[text])
        writer.start()
        done = oocpeg(*words)
        writer.join()
        return done.stdout

    oocpeg("convert", "in.svm", "-o", "plain", "--no-shuffle")
    through_the_pipe("convert", "pipe", "-o", "piped", "--no-shuffle")
    (one, labels), (other, others) = (Store.open(tmp_path / name).to_scipy() for name in ("plain", "piped"))
    assert (one != other).nnz == 0
    assert (labels == others).all()
    oocpeg("train", "plain", "-o", "model", "--lambda", "0.1")
    of_file = oocpeg("evaluate", "model", "in.svm").stdout  # and a last line: these rows are those of the training
    assert of_file.startswith(through_the_pipe("evaluate", "model", "pipe"))
    through_the_pipe("predict", "model", "pipe", "-o", "piped.csv")
    oocpeg("predict", "model", "in.svm", "-o", "plain.csv")
    assert (tmp_path / "piped.csv").read_bytes() == (tmp_path / "plain.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_by_ctrl_c(tmp_path, signal_number):
    """Ctrl-C keeps what is done; --resume goes on; nothing but the unfinished folder is left."""
    source = tmp_path / "slow.svm"
    source.write_text("".join(f"{1 - 2 * (i % 2)} 1:{i}\n" for i in range(200_000)))
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "ooc_pegasos", "convert", "pipe", "-o", "store"]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with open(tmp_path / "pipe", "w") as pipe:
        pipe.write("1 1:1\n-1 1:2\n")
        pipe.flush()
        time.sleep(1.5)
        child.send_signal(signal_number)
        _out, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "interrupted; " in err
    assert "Traceback" not in err
    assert not (tmp_path / "store").exists()


def test_resume_refuses_other_inputs_and_options(tmp_path):
    source = numbered(tmp_path, 40_000)
    child = start_conversion(tmp_path / "store", source, "shuffle", "new")
    while not (tmp_path / "store.unfinished" / "plan.json").exists():
        time.sleep(0.01)
        assert child.poll() is None
    child.kill()
    child.communicate()
    with pytest.raises(UsageError, match="'chunk-size' was different"):
        convert([source], tmp_path / "store", ConvertConfig(on_bad_row="skip"), existing=Existing(resume=True))
    numbered(tmp_path, 39_999)
    config = ConvertConfig(on_bad_row="skip", chunk_size=20_000)
    with pytest.raises(UsageError, match="the inputs were different"):
        convert([source], tmp_path / "store", config, existing=Existing(resume=True))


def test_resume_from_another_folder(tmp_path, monkeypatch):
    """Files are the same if they are where the others were, whatever they are called from here."""
    for folder, begin in (("here", 10_000), ("there", 20_000)):
        (tmp_path / folder).mkdir()
        numbered(tmp_path / folder, 3_000, start=begin)
        (tmp_path / folder / "w.txt").write_text(f"{begin // 10_000}\n4\n5\n" * 1_000)
        for name in ("in.svm", "w.txt"):
            os.utime(tmp_path / folder / name, (1, 1))

    def made(name, weights, **existing):
        config = ConvertConfig(block_size=4_000, weights=weights)
        return convert([name], tmp_path / "store", config, existing=Existing(**existing))

    monkeypatch.chdir(tmp_path / "here")
    expected = folder_bytes(made("in.svm", "w.txt").path)
    with monkeypatch.context() as patched:
        taken, whole = [], Ingest.take

        def take(ingest, prepared):
            taken.append(prepared)
            if len(taken) == 3:
                raise KeyboardInterrupt
            whole(ingest, prepared)

        patched.setattr(Ingest, "take", take)
        with pytest.raises(KeyboardInterrupt):
            made("in.svm", "w.txt", force=True)
    monkeypatch.chdir(tmp_path / "there")  # where others are called so, as large and as old
    resume = {"resume": True, "force": True}
    with pytest.raises(UsageError, match="the inputs were different"):
        made("in.svm", "../here/w.txt", **resume)
    with pytest.raises(UsageError, match="the weights were different"):
        made("../here/in.svm", "w.txt", **resume)
    with monkeypatch.context() as patched:
        again = []
        patched.setattr(Ingest, "take", lambda ingest, prepared: again.append(prepared) or whole(ingest, prepared))
        assert folder_bytes(made("../here/in.svm", "../here/./w.txt", **resume).path) == expected
        assert again[0].parsed.task.begin == taken[1].parsed.task.end  # it went on where it stood
    made("../here/in.svm", "../here/w.txt", resume=True)  # and finds that all is done
    assert folder_bytes(tmp_path / "store") == expected
    with pytest.raises(InputError, match="exists already, made from other inputs"):
        made("in.svm", "w.txt", resume=True)


def test_resume_with_nothing_to_resume(tmp_path):
    source = numbered(tmp_path, 10)
    resume = Existing(resume=True)
    first = convert([source], tmp_path / "store", existing=resume)
    before = folder_bytes(first.path)
    assert convert([source], tmp_path / "store", existing=resume).rows == 10
    assert folder_bytes(first.path) == before
    other = numbered(tmp_path, 11, "other.svm")
    with pytest.raises(InputError, match="exists already, made from other inputs"):
        convert([other], tmp_path / "store", existing=resume)


def test_damaged_scratch_data_is_read_again(tmp_path):
    """What a power cut may do: the journal is ahead of the rows on disk."""
    source = numbered(tmp_path, 20_000)
    whole = tmp_path / "whole"
    start_conversion(whole, source, "shuffle", "new").succeed()
    target = tmp_path / "store"
    child = start_conversion(target, source, "shuffle", "new")
    scratch = tmp_path / "store.unfinished"
    while not (scratch / "read.journal").exists() or (scratch / "read.journal").stat().st_size < 20_000:
        assert child.poll() is None
        time.sleep(0.002)
    child.kill()
    child.communicate()
    buckets = sorted(scratch.glob("bucket-*.rows"))
    assert buckets
    content = bytearray(buckets[0].read_bytes())
    content[len(content) // 2] ^= 1
    buckets[0].write_bytes(content)
    start_conversion(target, source, "shuffle", "new", "resume").succeed()
    assert folder_bytes(target) == folder_bytes(whole)


def opened_buckets(patched: pytest.MonkeyPatch) -> list[Path]:
    """Files of buckets that are opened to write from now on."""
    found, place = [], "ooc_pegasos.conversion.buckets.open_in_place"
    patched.setattr(place, lambda path, flags: found.append(path) or open_in_place(path, flags))
    return found


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"weights": "w.txt"}])
def test_rows_in_memory_and_in_files_give_the_same_bytes(tmp_path, monkeypatch, options):
    """No file while the rows fit; if they turn out not to, those in memory are written first."""
    matrix, labels = random_rows(3000, 500, seed=4)
    (tmp_path / "in.svm").write_text(svmlight_text(matrix, labels))
    (tmp_path / "w.txt").write_text("".join(f"{1 + row % 5}\n" for row in range(3000)))
    config = ConvertConfig(block_size=20_000, chunk_size=30_000, **options)
    monkeypatch.chdir(tmp_path)
    expected = 380_000  # if there is no room for half of that, rows go to files at once
    monkeypatch.setattr("ooc_pegasos.readers.registry.ROWS_PER_TEXT", expected / os.stat("in.svm").st_size)
    small_buckets(monkeypatch, 1 << 18)  # two, which are not split
    buckets, found = opened_buckets(monkeypatch), {}
    for name, room in (("memory", 1 << 28), ("both", 200_000), ("files", 0)):
        monkeypatch.setattr(ConvertConfig, "room_for_rows", lambda _config, room=room: room)
        buckets.clear()
        found[name] = folder_bytes(convert(["in.svm"], name, config).path), len(buckets)
    assert found["memory"][0] == found["both"][0] == found["files"][0]
    assert found["memory"][1] == 0 < found["both"][1]
    rows, stored = Store.open("memory").to_scipy()
    order = np.lexsort(rows.toarray().T), np.lexsort(matrix.toarray().T)
    assert same_matrix(rows[order[0]], matrix[order[1]])
    assert sorted(stored) == sorted(labels)


@pytest.mark.parametrize("is_in_files", [True, False])
def test_inputs_that_cannot_fit_go_to_files_at_once(tmp_path, monkeypatch, is_in_files):
    source, held = numbered(tmp_path, 3000), []
    room = 1000 if is_in_files else 1 << 20
    monkeypatch.setattr(ConvertConfig, "room_for_rows", lambda _config: room)
    monkeypatch.setattr(
        "ooc_pegasos.conversion.first_pass.Spill", lambda folder, room: held.append(room) or Spill(folder, room)
    )
    convert([source], tmp_path / "store")
    assert held == [0 if is_in_files else room]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_row_has_the_memory_of_the_rows_before_it(tmp_path, monkeypatch, threads):
    config, buckets = ConvertConfig(memory=32 << 20, threads=threads), opened_buckets(monkeypatch)
    convert([numbered(tmp_path, 90_000)], tmp_path / "short", config)
    assert not buckets
    with (tmp_path / "in.svm").open("a") as file:
        file.write("1 " + " ".join(f"{index}:1" for index in range(1, 400_000)) + "\n")
    convert([str(tmp_path / "in.svm")], tmp_path / "long", config)
    assert buckets


def test_rows_in_memory_are_written_when_a_signal_stops_the_conversion(tmp_path, monkeypatch):
    source = numbered(tmp_path, 3000)
    expected = folder_bytes(convert([source], tmp_path / "whole").path)

    def stop(*_given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ooc_pegasos.conversion.second_pass.Assembly.run", stop)
        with pytest.raises(KeyboardInterrupt):
            convert([source], tmp_path / "store")
    monkeypatch.setattr("ooc_pegasos.readers.svmlight.SvmlightReader.read", lambda *_given: pytest.fail("read again"))
    store = convert([source], tmp_path / "store", existing=Existing(resume=True))
    assert folder_bytes(store.path) == expected


# --- trouble ------------------------------------------------------------------------------------


def test_two_at_once(tmp_path):
    from ooc_pegasos.util.locks import locked

    source = numbered(tmp_path, 10)
    with locked(tmp_path / "store.unfinished" / "lock", "store"), pytest.raises(LockedError, match=str(os.getpid())):
        convert([source], tmp_path / "store")
    assert convert([source], tmp_path / "store").rows == 10


@pytest.mark.parametrize("change", ["grow", "replace", "vanish"])
def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch, change):
    from ooc_pegasos.readers import svmlight

    source = Path(numbered(tmp_path, 1000))
    read = svmlight.SvmlightReader.read

    def meddle(reader: svmlight.SvmlightReader, task: object) -> object:
        if source.exists() and change == "vanish":
            source.unlink()
        elif change == "grow":
            with source.open("a") as file:
                file.write("1 1:1\n")
        elif change == "replace":
            source.with_name("new").write_text("1 1:1\n")
            source.with_name("new").rename(source)
        return read(reader, task)

    monkeypatch.setattr(svmlight.SvmlightReader, "read", meddle)
    with pytest.raises(InputError, match=r"in\.svm: (changed|vanished) during the conversion"):
        convert([str(source)], tmp_path / "store", ConvertConfig(block_size=100, threads=1, classes=("-1", "1")))
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_memory_stays_within_the_budget(tmp_path):
    """The peak is that of a small conversion plus at most the budget, for rows of several times the budget."""
    code = """
import sys
from ooc_pegasos import ConvertConfig, convert
convert([sys.argv[1]], sys.argv[2], ConvertConfig(memory=32 << 20, threads=2, features=1000))
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    rng = np.random.default_rng(5)
    values = rng.random((200, 200))
    pairs = [" ".join(f"{5 * j + 1}:{v:.3f}" for j, v in enumerate(row)) for row in values]
    lines = [f"{1 - 2 * (i % 2)} {text}" for i, text in enumerate(pairs)]
    block = "\n".join(lines) + "\n"

    def peak(copies: int) -> int:
        source = tmp_path / "in.svm"
        source.write_text(block * copies)
        words = [sys.executable, "-c", code, str(source), str(tmp_path / f"store{copies}")]
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) << 10

    small, large = peak(1), peak(400)
    store = Store.open(tmp_path / "store400")
    assert 8 * store.nonzeros > 3 * (32 << 20)
    assert large - small < 32 << 20
    assert large < (200 + 32) << 20


@pytest.mark.slow
def test_open_files_are_few(tmp_path, monkeypatch):
    small_buckets(monkeypatch, 100)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (320, limit[1]))
    try:
        store = convert([numbered(tmp_path, 3000)], tmp_path / "store", ConvertConfig(block_size=1000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert store.rows == 3000


# --- what once went wrong -----------------------------------------------------------------------


def test_blocks_with_labels_only(tmp_path):
    source = tmp_path / "in.svm"
    source.write_text("1 1:0.5\n-1\n" * 50)
    store = convert([str(source)], tmp_path / "store", ConvertConfig(block_size=64))
    assert (store.rows, store.nonzeros) == (100, 50)


def test_the_store_does_not_depend_on_the_number_of_cores(tmp_path, monkeypatch):
    source = numbered(tmp_path, 120_000)
    one = convert([source], tmp_path / "one", ConvertConfig(memory=32 << 20, threads=1))
    monkeypatch.setattr("ooc_pegasos.config.cores", lambda: 5)
    many = convert([source], tmp_path / "five", ConvertConfig(memory=32 << 20))
    assert folder_bytes(many.path) == folder_bytes(one.path)


def test_append_to_targets_of_full_precision(tmp_path):
    source = tmp_path / "in.svm"
    source.write_text("0.1 1:1\n0.2 1:2\n0.3 1:3\n")
    config = ConvertConfig(task="regression", shuffle=False)
    convert([str(source)], tmp_path / "store", config)
    source.write_text("0.5 1:4\n0.25 1:5\n")
    store = convert([str(source)], tmp_path / "store", ConvertConfig(shuffle=False), existing=Existing(append=True))
    assert verify(store).problems == []
    assert store.to_scipy()[1].tolist() == [0.1, 0.2, 0.3, 0.5, 0.25]


@pytest.mark.parametrize(
    "options", [{"normalize": "l2"}, {"features": 9}, {"index_base": "0"}, {"classes": ("1", "2")}]
)
def test_append_with_options_of_another_store(tmp_path, options):
    source = numbered(tmp_path, 10)
    convert([source], tmp_path / "store")
    before = folder_bytes(tmp_path / "store")
    with pytest.raises(UsageError, match=r"the store was made .*; leave it out"):
        convert([source], tmp_path / "store", ConvertConfig(**options), existing=Existing(append=True))
    assert folder_bytes(tmp_path / "store") == before


def test_append_to_a_damaged_store(tmp_path):
    source = numbered(tmp_path, 10)
    store = convert([source], tmp_path / "store")
    chunk = store.path / store.manifest.chunks[0].file
    chunk.write_bytes(chunk.read_bytes()[:-1])
    before = folder_bytes(store.path)
    with pytest.raises(CorruptFileError, match=chunk.name):
        convert([source], store.path, existing=Existing(append=True))
    assert folder_bytes(store.path) == before


def test_many_bad_rows_need_little_memory(tmp_path):
    source = tmp_path / "in.svm"
    source.write_text("1 1:1\n-1 1:1\n" + "x\n" * 200_000)
    store = convert([str(source)], tmp_path / "store", ConvertConfig(on_bad_row="skip"))
    assert (store.rows, store.manifest.rejected) == (2, 200_000)
    assert len((store.path / "rejected.jsonl").read_text().splitlines()) == 1001


@pytest.mark.parametrize("first", ["1:2 3:4", "label x1 x2"])
def test_a_bad_first_row_does_not_decide_what_labels_are(tmp_path, first):
    source = tmp_path / "in.svm"
    source.write_text(f"{first}\n+1 1:1\n-1 2:1\n1 1:1\n")
    store = convert([str(source)], tmp_path / "store", ConvertConfig(on_bad_row="skip", shuffle=False))
    assert store.to_scipy()[1].tolist() == [1, -1, 1]
    assert store.manifest.labels.classes == ["-1", "1"]


def test_words_that_begin_like_nan_and_inf(tmp_path):
    source = tmp_path / "in.svm"
    source.write_text("infected 1:1\nnancy 1:2\n")
    store = convert([str(source)], tmp_path / "store")
    assert store.manifest.labels.classes == ["infected", "nancy"]


@pytest.mark.parametrize("kind", ["bz2", "lzma"])
def test_a_damaged_later_stream_is_not_taken_for_padding(tmp_path, kind):
    import importlib

    one = importlib.import_module(kind).compress(b"1 1:1\n-1 1:2\n")
    damaged = bytearray(one)
    damaged[4 if kind == "bz2" else 8] ^= 1
    source = tmp_path / "in.svm.z"
    source.write_bytes(one + damaged + one)
    with pytest.raises(InputError, match="truncated or damaged"):
        convert([str(source)], tmp_path / "store")
    source.write_bytes(one + bytes(8) + one)
    assert convert([str(source)], tmp_path / "store").rows == 4


def test_standard_input_is_not_rewound(tmp_path, oocpeg):
    numbered(tmp_path, 6)
    with (tmp_path / "in.svm").open() as file:
        os.read(file.fileno(), len(b"1 1:1\n"))
        oocpeg("convert", "-", "-o", "store", stdin=file)
    assert Store.open(tmp_path / "store").rows == 5


def test_a_folder_in_the_way_of_the_scratch_folder(tmp_path):
    (tmp_path / "store.unfinished").mkdir()
    thesis = tmp_path / "store.unfinished" / "thesis.txt"
    thesis.write_text("x")
    with pytest.raises(InputError, match="not made by oocpeg"):
        convert([numbered(tmp_path, 9)], tmp_path / "store")
    assert thesis.read_text() == "x"


def test_resume_of_a_finished_store_with_other_options(tmp_path):
    source = numbered(tmp_path, 9)
    convert([source], tmp_path / "store")
    with pytest.raises(InputError, match="with other options"):
        convert([source], tmp_path / "store", ConvertConfig(normalize="l2"), existing=Existing(resume=True))
