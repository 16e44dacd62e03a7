"""Loading: both loaders give the same bytes, stay within the budget, and detect changed files."""

import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.loading.samplers import Plan
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.store import chunk_reader, manifest
from ooc_pegasos.store.manifest import PAGE
from ooc_pegasos.store.page_memory import Arena, can_map
from ooc_pegasos.training.local_engine import LocalEngine
from ooc_pegasos.training.stop import Interrupted
from ooc_pegasos.util import json_checksum
from ooc_pegasos.util.memory_limits import available_memory
from support.rows import random_rows, svmlight_text
from support.stores import around_present, least_memory

needs_mapping = pytest.mark.skipif(not can_map(), reason="files cannot be mapped here")


def chunked_store(folder: Path, matrix: sp.csr_matrix, labels: np.ndarray, **options: object) -> Store:
    source = folder / "in.svm"
    source.write_text(svmlight_text(matrix.tocsr(), labels))
    config = ConvertConfig(**{"classes": ("-1", "1"), "features": matrix.shape[1], "chunk_size": 20_000, **options})
    return convert([str(source)], folder / "store", config, existing=Existing(force=True))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Some dozen chunks."""
    made = chunked_store(tmp_path, *random_rows(4000, 700, 1))
    assert len(made.manifest.chunks) > 9
    return made


def chunk_path(store: Store, number: int) -> Path:
    return store.path / store.manifest.chunks[number].file


def cost_of_all_chunks(store: Store) -> int:
    return sum(cost_of(chunk) for chunk in store.manifest.chunks)


def drop_from_cache(store: Store) -> None:
    for number in range(len(store.manifest.chunks)):
        descriptor = os.open(chunk_path(store, number), os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


# --- both ways are the same ---------------------------------------------------------------------

LAYOUTS = [
    {"features": 200},
    {"features": 60_000},
    {"features": 4_000_000_000},
    {"features": 200, "ones": True},
    {"features": 60_000, "values": "float16"},
    {"features": 60_000, "values": "bfloat16"},
    {"features": 200, "few": True},
]


@pytest.mark.parametrize("loading", ["mapped", "read"])
@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_windows_hold_the_rows_of_their_chunks(tmp_path, options, loading):
    """Against the matrix the store was made of, for every coding, from disk and from the page cache."""
    options = dict(options)
    features = options.pop("features")
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 30, 1500)
    indices = [np.sort(rng.choice(min(features, 10**6), n, replace=False)) * (features // 10**6 or 1) for n in lengths]
    data = rng.standard_normal(lengths.sum()).astype(np.float32)
    if options.pop("ones", False):
        data[:] = 1
    if options.pop("few", False):
        data = rng.choice(np.array([-1, 0.5, 3], np.float32), len(data))
    if options.get("values") == "float16":
        data = data.astype(np.float16).astype(np.float32)
    if options.get("values") == "bfloat16":
        data = (data.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    matrix = sp.csr_matrix((data, np.concatenate(indices), indptr), shape=(1500, features))
    store = chunked_store(tmp_path, matrix, rng.choice([-1, 1], 1500), shuffle=False, chunk_size=6000, **options)
    assert len(store.manifest.chunks) > 3
    if loading == "mapped" and not can_map():
        pytest.skip("files cannot be mapped here")
    drop_from_cache(store)
    firsts = np.concatenate([[0], np.cumsum([chunk.rows for chunk in store.manifest.chunks])])
    for memory in (1 << 30, least_memory(store)):
        for _again in range(2):
            loader = open_loader(store, memory, loading=loading, threads=2)
            for window in loader.stream(loader.in_order()):
                plain = decoded(window.block)
                for chunk, (begin, end) in zip(window.chunks, window.row_ranges, strict=True):
                    for row, expected in ((begin, firsts[chunk]), (end - 1, firsts[chunk + 1] - 1)):
                        entries = slice(matrix.indptr[expected], matrix.indptr[expected + 1])
                        found_indices, found_values = plain(row)
                        assert np.array_equal(found_indices, matrix.indices[entries])
                        assert found_values.tobytes() == matrix.data[entries].tobytes()
                    assert end - begin == store.manifest.chunks[chunk].rows
            assert loader.bytes_read == store.manifest.bytes


def decoded(block):
    """Rows of a block as (indices, values), as docs/store-format.md says."""
    kinds = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "code8": np.uint8, None: None}

    def row(number: int) -> tuple[np.ndarray, np.ndarray]:
        here = slice(block.indptr[number], block.indptr[number + 1])
        codes = block.indices[here].astype(np.int64)
        values = np.ones(len(codes), np.float32) if block.values is None else block.values[here]
        assert block.values is None or values.dtype == kinds[block.value_coding]
        if block.value_coding == "code8":
            values = block.levels[values]
        if block.value_coding == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        if block.coding == "uint32":
            return codes, values.astype(np.float32)
        keep = codes != np.iinfo(block.indices.dtype).max
        return np.cumsum(codes)[keep], values.astype(np.float32)[keep]

    return row


@needs_mapping
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": "sgd-s"},
        {"holdout": 0.2},
        {"sampling": "iid"},
        {"class_weight": (1.0, 3.0)},
        {"lam": "0.001:0.1:4", "refit": False},
    ],
    ids=str,
)
def test_mapped_and_read_train_to_the_same_model(store, tmp_path, options):
    options = {"lam": 0.01, **options}
    least = least_memory(store) * (2 if isinstance(options["lam"], str) else 1)
    for number, memory in enumerate((1 << 30, cost_of_all_chunks(store) // 2, least)):
        models = []
        for loading in ("mapped", "read"):
            config = TrainConfig(max_epochs=4, tolerance=1e-9, memory=memory, loading=loading, **options)
            result = train(store, config)
            assert result.loading == loading
            assert (result.windows == 1) == (number == 0)
            result.model.save(tmp_path / loading)
            models.append((tmp_path / loading).read_bytes())
        assert models[0] == models[1]


@needs_mapping
def test_mapped_is_without_a_copy(store):
    loader = open_loader(store, 1 << 30, threads=2)
    assert loader.name == "mapped"
    (window,) = loader.stream(loader.in_order())
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [(tuple(int(end, 16) for end in words[0].split("-")), words[-1]) for words in lines]
    for column in (window.block.indices, window.block.values):
        assert not column.flags.writeable
        assert not column.flags.owndata
        address = column.ctypes.data
        (name,) = [found[1] for found in mapped if found[0][0] <= address < found[0][1]]
        assert chunk_path(store, 0).name in name
    again = next(loader.stream(loader.in_order()))
    assert again.block.indices.ctypes.data == window.block.indices.ctypes.data  # it is kept
    assert loader.bytes_read == store.manifest.bytes


@pytest.mark.parametrize("loading", ["mapped", "read"])
def test_a_window_in_use_is_not_overwritten(store, loading):
    """Also where the next one is in memory already, as it may be where two epochs meet."""
    if loading == "mapped" and not can_map():
        pytest.skip("files cannot be mapped here")
    chunks = [0, 1, 1, 0, 2, 2, 1, 2, 0, 0, 0, 1, 3, 1, 3, 3, 2]
    loader = open_loader(store, least_memory(store), loading=loading, threads=2)
    expected = [store.block(chunk) for chunk in range(4)]
    for chunk, window in zip(chunks, loader.stream([Plan((chunk,), None) for chunk in chunks]), strict=True):
        deadline = time.monotonic() + 0.02
        while time.monotonic() < deadline:  # the next window is loaded concurrently
            (begin, end) = window.row_ranges[0]
            assert window.chunks == (chunk,)
            assert np.array_equal(window.block.labels[begin:end], expected[chunk].labels)
            entries = int(window.block.indptr[end])
            assert np.array_equal(window.block.indices[:entries], expected[chunk].indices)
            assert np.array_equal(window.block.values[:entries], expected[chunk].values)


def test_large_stores_are_not_mapped_unless_asked(store, monkeypatch):
    from ooc_pegasos.loading import loader

    monkeypatch.setattr(loader, "MAX_MAPPED_BYTES", store.manifest.bytes - 1)
    assert open_loader(store, 1 << 30).name == "read"
    assert open_loader(store, 1 << 30).shape.fits


def test_the_way_is_chosen_from_the_budget(store):
    whole = cost_of_all_chunks(store)
    assert open_loader(store, whole).name == ("mapped" if can_map() else "read")
    assert open_loader(store, whole - 1).name == "read"
    assert open_loader(store, whole - 1, loading="mapped").name == "mapped"
    assert open_loader(store, whole, loading="read").name == "read"


def test_reading_ahead_stays_within_the_budget(store, monkeypatch):
    sizes = []

    class Counted(Arena):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            sizes.append(self.size)

    from ooc_pegasos.loading import read_ahead

    monkeypatch.setattr(read_ahead, "Arena", Counted)
    for memory in (least_memory(store), cost_of_all_chunks(store) // 2):
        sizes.clear()
        result = train(store, TrainConfig(lam=0.01, max_epochs=3, tolerance=1e-9, memory=memory))
        assert result.loading == "read"
        assert len(sizes) == 2
        assert sum(sizes) <= memory + (1 << 17)


def resident(path: Path) -> float:
    """The share of a file's pages that are in the page cache."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        marks = (ctypes.c_ubyte * pages)()
        view = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(view))
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), marks) == 0
        del view
        return sum(mark & 1 for mark in marks) / pages


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is read by Linux calls")
def test_reading_leaves_the_page_cache_as_it_was(tmp_path):
    store = chunked_store(tmp_path, *random_rows(20_000, 700, 1, 0.02), chunk_size=500_000)
    paths = [chunk_path(store, number) for number in range(len(store.manifest.chunks))]
    assert len(paths) > 2
    config = TrainConfig(lam=0.01, max_epochs=2, tolerance=1e-9, memory=least_memory(store))
    drop_from_cache(store)
    if max(map(resident, paths)) > 0:
        pytest.skip("this file system keeps files in memory")
    train(store, config)
    assert max(map(resident, paths)) < 0.2
    for path in paths:
        path.read_bytes()
    train(store, config)
    assert min(map(resident, paths)) == 1  # what others have read is left there, and used


# --- the objective is measured on data that is read anyway --------------------------------------


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_the_pass_that_measures_is_shared_with_the_next_epoch(store, holdout):
    memory = least_memory(store)
    result = train(store, TrainConfig(lam=0.02, tolerance=0.003, holdout=holdout, memory=memory))
    assert result.converged
    epochs = len(result.model.info.history)
    measured = sum(entry.gap is not None for entry in result.model.info.history)
    assert measured >= 1
    most = max(chunk.bytes for chunk in store.manifest.chunks)  # of an epoch that nobody wanted any more
    assert result.bytes_read <= epochs * store.manifest.bytes + 2 * most
    matrix, labels = store.to_scipy()
    if holdout == 0:
        margins = labels * (matrix.astype(np.float64) @ result.model.weights)
        exact = 0.01 * float(result.model.weights @ result.model.weights) + np.maximum(0, 1 - margins).mean()
        assert result.model.info.certificate.primal == pytest.approx(exact, rel=1e-12)
    else:
        assert result.holdout is not None


@pytest.mark.parametrize("how", ["mapped", "read"])
def test_times_add_up(store, how):
    if how == "mapped" and not can_map():
        pytest.skip("files cannot be mapped here")
    memory = (1 << 30) if how == "mapped" else least_memory(store)
    began = time.perf_counter()
    result = train(store, TrainConfig(lam=1e-3, max_epochs=4, tolerance=1e-9, memory=memory))
    wall = time.perf_counter() - began
    assert [cost.epoch for cost in result.costs] == [1, 2, 3, 4]
    for cost in result.costs:
        assert 0 < cost.seconds_computing <= cost.seconds
        assert 0 <= cost.seconds_waiting <= cost.seconds
        assert cost.seconds_computing + cost.seconds_waiting <= cost.seconds * 1.0001
        assert cost.gigabytes_per_second == pytest.approx(cost.bytes_read / cost.seconds / 1e9)
        assert cost.peak_rss > 1 << 20
    assert sum(cost.seconds for cost in result.costs) <= result.seconds <= wall
    read = sum(cost.bytes_read for cost in result.costs)
    assert read <= result.bytes_read
    passes = 1 if how == "mapped" else 5  # one more for the last objective, less what was in memory still
    assert 0 <= passes * store.manifest.bytes - result.bytes_read <= memory * (passes > 1)


# --- what may happen to a file ------------------------------------------------------------------


def flip(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


ACCIDENTS = {
    "vanishes": Path.unlink,
    "shrinks": lambda path: os.truncate(path, path.stat().st_size // 2),
    "is emptied": lambda path: os.truncate(path, 0),
    "grows": lambda path: os.truncate(path, path.stat().st_size + 1),
    "is damaged": flip,
    "is replaced": lambda path: (path.rename(path.parent / "old"), path.write_bytes(b"\xff" * 20_000)),
    "becomes a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.slow
@pytest.mark.parametrize("loading", ["mapped", "read"])
@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_a_chunk_that_changes_while_training(store, tmp_path, monkeypatch, accident, loading, algorithm):
    """Exit code 5, the chunk named, the last checkpoint intact and good to go on from when the chunk is back."""
    if loading == "mapped" and not can_map():
        pytest.skip("files cannot be mapped here")
    memory = (1 << 30) if loading == "mapped" else least_memory(store)
    options = {"lam": 1e-3, "tolerance": 1e-9, "memory": memory, "loading": loading, "checkpoint_epochs": 1}
    options["algorithm"] = algorithm
    whole = train(store, TrainConfig(**options, max_epochs=6))
    victim = chunk_path(store, 4)
    content = victim.read_bytes()
    rows = [0]

    def present(presented: int) -> None:
        before, rows[0] = rows[0], rows[0] + presented
        if before < 2.5 * store.rows <= rows[0]:
            ACCIDENTS[accident](victim)

    with monkeypatch.context() as patched:
        around_present(patched, present)
        with pytest.raises(CorruptFileError, match=victim.name) as raised:
            train(store, TrainConfig(**options, max_epochs=6), checkpoint=tmp_path / "c")
    assert raised.value.exit_code == 5
    if victim.is_dir():
        victim.rmdir()
    victim.write_bytes(content)
    again = train(store, TrainConfig(**options, max_epochs=6), checkpoint=tmp_path / "c", resume=True)
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert again.model.info == whole.model.info


@needs_mapping
@pytest.mark.parametrize("memory", ["all", "least"])
def test_a_chunk_that_changes_and_changes_back(store, tmp_path, monkeypatch, memory):
    """Results computed from the changed chunk are never written to a checkpoint."""
    victim = chunk_path(store, 4)
    content, touched = victim.read_bytes(), []
    presented = LocalEngine.train_window

    def present(engine, state, window, save_if_due):
        if 4 in window.chunks and not touched:
            touched.append(True)
            with open(victim, "r+b") as file:
                file.write(b"\xff" * len(content))
                presented(engine, state, window, save_if_due)
                file.seek(0)
                file.write(content)
            engine.stop.is_requested = memory == "all"
        else:
            presented(engine, state, window, save_if_due)

    monkeypatch.setattr(LocalEngine, "train_window", present)
    budget = (1 << 30) if memory == "all" else least_memory(store)
    config = TrainConfig(lam=0.01, max_epochs=1, tolerance=1e-9, memory=budget, loading="mapped")
    with pytest.raises(CorruptFileError, match=victim.name):
        train(store, config, checkpoint=tmp_path / "c")
    assert touched
    assert not (tmp_path / "c" / "training.checkpoint").exists()


@needs_mapping
@pytest.mark.parametrize("last_moment", [False, True])
def test_a_chunk_that_shrinks_while_it_is_scored_or_measured(tmp_path, monkeypatch, last_moment):
    """Zeros stand where its pages were: nothing that was computed from them is given out."""
    from ooc_pegasos.objective import exact_pass
    from ooc_pegasos.scoring import score
    from ooc_pegasos.scoring.evaluate import evaluate

    store = chunked_store(tmp_path, *random_rows(3000, 700, 1), chunk_size=1 << 20)
    model = train(store, TrainConfig(lam=0.01)).model
    victim = chunk_path(store, 0)

    def pieces(window, real=exact_pass.pieces):
        os.truncate(victim, PAGE)
        return real(window)

    if last_moment:
        monkeypatch.setattr(exact_pass, "pieces", pieces)
        with pytest.raises(CorruptFileError, match=victim.name):
            train(store, TrainConfig(lam=0.01, max_epochs=1, tolerance=1e-9))
    else:
        monkeypatch.setattr(score, "pieces", pieces)
        with pytest.raises(CorruptFileError, match=victim.name):
            evaluate(model, store.path)


@needs_mapping
def test_pages_that_are_not_there_any_more_do_not_end_the_process(tmp_path):
    """Reading them would raise SIGBUS; runs in a separate process, which a failure would kill."""
    script = """
import os, sys, numpy as np
from ooc_pegasos.store.page_memory import ContiguousMapping
path = sys.argv[1]
open(path, "wb").write(bytes(range(256)) * 64)
both = ContiguousMapping(8 * 4096)
file = os.open(path, os.O_RDONLY)
both.put(0, file, 0, 4 * 4096)
both.put(4 * 4096, file, 0, 4 * 4096)
array = both.array(0, 8 * 4096, np.uint8)
assert array.sum() == 2 * 64 * 255 * 128 and not both.torn
os.truncate(path, 4096)
assert array[:4096].sum() == 16 * 255 * 128
assert array.sum(dtype=np.int64) == 2 * 16 * 255 * 128 and both.torn
print("alive")
"""
    command = [sys.executable, "-c", script, str(tmp_path / "f")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


@needs_mapping
def test_other_bus_errors_are_not_handled(tmp_path):
    script = """
import ctypes, mmap, os, sys
from ooc_pegasos.store.page_memory import ContiguousMapping
watched = ContiguousMapping(4096)
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    other = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    other[0]
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "f")], capture_output=True, check=False)
    assert done.returncode == -signal.SIGBUS


def test_an_index_too_large_with_a_valid_checksum(store):
    """A store with valid checksums and a wrong number of features."""
    path = store.path / manifest.FILE_NAME
    table = json.loads(path.read_text())
    del table["checksum"]
    table["features"] -= 100
    table["checksum"] = json_checksum.checksum_of(table)
    path.write_text(json.dumps(table))
    wrong = Store.open(store.path)
    for memory in (1 << 30, least_memory(store)):
        for algorithm in ("sdca", "sgd-s", "sgd-m", "pegasos"):
            with pytest.raises(CorruptFileError, match=r"chunk-.*: an index is not below the number of features"):
                train(wrong, TrainConfig(lam=0.01, memory=memory, algorithm=algorithm, batch_size=1))


# --- a disk that is not well --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["errors now and then", "short reads", "no direct reads", "direct reads that fail"])
def test_temporary_read_errors(store, monkeypatch, trouble):
    drop_from_cache(store)
    real_read, real_open, calls = os.preadv, os.open, [0]

    def preadv(descriptor, buffers, at, flags=0):
        if flags:
            raise BlockingIOError
        calls[0] += 1
        if trouble == "errors now and then" and calls[0] % 5 == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if trouble == "direct reads that fail" and calls[0] == 3:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if trouble == "short reads" and calls[0] % 2:
            buffers = [buffers[0][: max(len(buffers[0]) // 2 // PAGE * PAGE, PAGE)]]
        return real_read(descriptor, buffers, at)

    def open_(path, flags, *rest, **more):
        if trouble == "no direct reads" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, *rest, **more)

    config = TrainConfig(lam=0.01, max_epochs=2, tolerance=1e-9, memory=least_memory(store))
    expected = train(store, config)
    with monkeypatch.context() as patched:
        patched.setattr(chunk_reader.os, "preadv", preadv)
        patched.setattr(chunk_reader.os, "open", open_)
        found = train(store, config)
    assert calls[0] > 10
    assert found.model.weights.tobytes() == expected.model.weights.tobytes()


def test_permanent_read_errors(store, monkeypatch):
    def preadv(_descriptor, _buffers, _at, flags=0):
        raise BlockingIOError if flags else OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(chunk_reader.os, "preadv", preadv)
    with pytest.raises(CorruptFileError, match=r"chunk-.*Input/output error at byte 0; check the disk"):
        train(store, TrainConfig(lam=0.01, memory=least_memory(store)))


# --- budgets ------------------------------------------------------------------------------------


def test_the_smallest_budget_is_named_and_works(store, oocpeg):
    words = ["train", "store", "-o", "m", "--lambda", "0.01", "--max-epochs", "1", "--quiet", "--force"]
    done = oocpeg(*words, "--memory", "4kB", code=2)
    assert "largest chunk takes" in done.stderr
    assert "--chunk-size" in done.stderr
    named = done.stderr.split("give at least --memory ")[1].split(",")[0]
    oocpeg(*words, "--memory", named, code=4)
    size = int(named.removesuffix("kB"))
    oocpeg(*words, "--memory", f"{size - 1}kB", code=2)
    with pytest.raises(UsageError):
        open_loader(store, 2 * max(map(cost_of, store.manifest.chunks)) - 1)
    open_loader(store, 2 * max(map(cost_of, store.manifest.chunks)))


def test_memory_that_is_free_is_that_of_the_control_group(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:  8000000 kB\n")
    assert available_memory(tmp_path) == 8_000_000 << 10
    two = tmp_path / "sys/fs/cgroup"
    inner = two / "jobs/one"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/one\n")
    for folder, limit in ((two, "max"), (two / "jobs", "3000000000"), (inner, "max")):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text("1000000000\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 300000000\nactive_file 100000000\n")
    assert available_memory(tmp_path) == 3_000_000_000 - 600_000_000  # what is cached can be had
    (inner / "memory.max").write_text("500000000\n")
    assert available_memory(tmp_path) == 0
    one = tmp_path / "sys/fs/cgroup/memory/here"
    one.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/here\n1:cpu:/\n")
    for folder, limit in ((one, "2000000000"), (one.parent, str(2**63 - 4096))):
        (folder / "memory.limit_in_bytes").write_text(limit)
        (folder / "memory.usage_in_bytes").write_text("700000000")
        (folder / "memory.stat").write_text("total_inactive_file 0\ntotal_active_file 100000000\n")
    assert available_memory(tmp_path) == 1_400_000_000
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/a/name/from/outside/the/container\n")
    (one.parent / "memory.limit_in_bytes").write_text("900000000")
    assert available_memory(tmp_path) == 300_000_000


# --- stopping -----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["waiting for data", "measuring the objective", "presenting"])
def test_a_stop_is_handled_in_any_phase(store, tmp_path, monkeypatch, phase):
    """And leaves a checkpoint that goes on to the same bytes."""
    from ooc_pegasos.objective import exact_pass

    options = {"lam": 0.01, "max_epochs": 4, "tolerance": 1e-9, "holdout": 0.2, "memory": least_memory(store)}
    options["coefficient"] = 1e30  # each epoch is measured
    whole = train(store, TrainConfig(**options))
    calls, asked = [0], []

    def ask() -> None:
        calls[0] += 1
        if calls[0] == 14:
            asked.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    def slow(read):
        def slowly(self, at, into):
            if calls[0] >= 13:  # a disk that has become very slow
                time.sleep(0.4)
            return read(self, at, into)

        return slowly

    def asking(function):
        def asks(*words):
            ask()
            return function(*words)

        return asks

    with monkeypatch.context() as patched:
        if phase == "waiting for data":
            patched.setattr(chunk_reader.ChunkReader, "read", slow(chunk_reader.ChunkReader.read))
            patched.setattr(Solver, "rows_at_a_time", asking(Solver.rows_at_a_time))
        elif phase == "presenting":
            patched.setattr(Solver, "rows_at_a_time", asking(Solver.rows_at_a_time))
        else:
            patched.setattr(exact_pass, "pieces", asking(exact_pass.pieces))
        with pytest.raises(Interrupted):
            train(store, TrainConfig(**options), checkpoint=tmp_path / "c")
        assert time.monotonic() - asked[0] < 2
    again = train(store, TrainConfig(**options), checkpoint=tmp_path / "c", resume=True)
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert again.model.info == whole.model.info


@pytest.mark.parametrize("memory", ["all", "least"])
def test_stopped_at_any_check_while_measuring(store, tmp_path, monkeypatch, memory):
    """Also in the last pass, when candidates of the epoch before have been measured beside this one."""
    budget = (1 << 30) if memory == "all" else least_memory(store)
    options = {"lam": 0.01, "max_epochs": 3, "tolerance": 1e-9, "holdout": 0.2, "memory": budget}
    options["coefficient"] = 1e30  # each epoch is measured
    looks = [0, 0]

    def add(self, window, loader, threads, check, real=Measurement.add):
        def counted():
            looks[0] += 1
            if looks[0] == looks[1]:
                signal.raise_signal(signal.SIGINT)
            check()

        return real(self, window, loader, threads, counted)

    monkeypatch.setattr(Measurement, "add", add)
    whole = train(store, TrainConfig(**options))
    total, looks[0] = looks[0], 0
    assert total >= (3 if memory == "all" else 3 * len(store.manifest.chunks))
    for stop in {*range(1, total + 1, max(1, total // 6)), total - 1, total}:
        looks[:] = [0, stop]
        with pytest.raises(Interrupted):
            train(store, TrainConfig(**options), checkpoint=tmp_path / str(stop))
        again = train(store, TrainConfig(**options), checkpoint=tmp_path / str(stop), resume=True)
        assert again.model.weights.tobytes() == whole.model.weights.tobytes()
        assert again.model.info == whole.model.info


def test_a_closed_stream_reads_no_more(store, monkeypatch):
    """Its memory is given to somebody else: a read that comes late would change it after its checksum."""
    real, under_way = chunk_reader.ChunkReader.read, [0]

    def read(self, at, into):
        under_way[0] += 1
        time.sleep(0.02)
        real(self, at, into)
        under_way[0] -= 1

    monkeypatch.setattr(chunk_reader.ChunkReader, "read", read)
    for wait in (0.0, 0.01, 0.03, 0.05, 0.09):
        loader = open_loader(store, cost_of_all_chunks(store) // 2, loading="read")
        stream = loader.stream(loader.in_order())
        next(stream)
        time.sleep(wait)
        stream.close()
        assert under_way[0] == 0
    loader = open_loader(store, cost_of_all_chunks(store) // 2, loading="read")

    def no_more() -> None:
        raise Interrupted

    with pytest.raises(Interrupted) as raised:
        next(loader.stream(loader.in_order(), no_more))
    assert under_way[0] == 0
    del raised


# --- order --------------------------------------------------------------------------------------


def test_rows_grouped_by_label_are_noted_if_harmful(tmp_path):
    matrix, labels = random_rows(4000, 300, 2)
    labels = np.sort(labels)
    grouped = chunked_store(tmp_path, matrix, labels, shuffle=False)
    small = {"lam": 0.01, "max_epochs": 1, "memory": least_memory(grouped)}
    result = train(grouped, TrainConfig(**small))
    assert any("grouped by label" in note and "--no-shuffle" in note and "--memory" in note for note in result.notes)
    assert any("grouped by label" in n for n in train(grouped, TrainConfig(lam=0.01, sampling="sequential")).notes)
    assert train(grouped, TrainConfig(lam=0.01, max_epochs=1)).notes == []  # one window: an exact permutation
    shuffled = chunked_store(tmp_path, matrix, labels)
    assert train(shuffled, TrainConfig(**{**small, "memory": least_memory(shuffled)})).notes == []
    mixed = chunked_store(tmp_path, matrix, np.random.default_rng(1).permutation(labels), shuffle=False)
    assert train(mixed, TrainConfig(**{**small, "memory": least_memory(mixed)})).notes == []


def test_useless_threads_are_noted(tmp_path):
    matrix, labels = random_rows(3000, 100, 3)
    store = chunked_store(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=1e-4, threads=2, max_epochs=2, algorithm="sgd-s"))
    assert result.presenters == 1
    assert any("lambda times rows is 0.3" in note for note in result.notes)
    alone = train(store, TrainConfig(lam=1e-4, max_epochs=2, algorithm="sgd-s"))
    assert alone.model.weights.tobytes() == result.model.weights.tobytes()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_have_a_certificate_and_deterministic_results(tmp_path, threads):
    from sklearn.svm import LinearSVC

    matrix, labels = random_rows(3000, 100, 3)
    store = chunked_store(tmp_path, matrix, labels)
    lam = 0.05
    results = [train(store, TrainConfig(lam=lam, threads=threads, tolerance=1e-3)) for _ in range(3)]
    assert all(result.presenters == threads and result.converged for result in results)
    assert len({result.model.weights.tobytes() for result in results}) == 1
    svm = LinearSVC(C=1 / (lam * 3000), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10**6)
    w = svm.fit(matrix.astype(np.float64), labels).coef_.ravel()
    best = lam / 2 * w @ w + np.maximum(0, 1 - labels * (matrix @ w)).mean()
    for entry in results[0].model.info.history:
        assert entry.lower_bound <= best * (1 + 1e-7)
    assert results[0].model.info.certificate.primal >= best * (1 - 1e-7)
