"""What all tests share: where data is, how to run the command, how to write a matrix as text."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from forked import COMMAND, Forked
from hypothesis import settings

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.solvers.pegasos_group import PegasosSolver
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.store.manifest import ChunkInfo

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as it is for what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("here", deadline=None, print_blob=True)
settings.load_profile("here")


def svmlight_text(matrix: sp.csr_matrix, labels: np.ndarray, base: int = 1) -> str:
    """A matrix as svmlight text, values with all their digits."""
    lines = []
    for row, label in enumerate(labels):
        entries = range(matrix.indptr[row], matrix.indptr[row + 1])
        pairs = (f"{matrix.indices[at] + base}:{float(matrix.data[at])!r}" for at in entries)
        lines.append(" ".join([f"{label:g}" if isinstance(label, float) else str(label), *pairs]))
    return "\n".join(lines) + "\n"


def random_rows(rows: int, features: int, seed: int, density: float = 0.05) -> tuple[sp.csr_matrix, np.ndarray]:
    """Random float32 rows (some empty) with labels of -1 and 1."""
    rng = np.random.default_rng(seed)
    matrix = sp.random(rows, features, density, "csr", np.float32, rng=rng, data_rvs=rng.standard_normal)
    matrix.sort_indices()
    return matrix, rng.choice([-1, 1], rows)


def same_matrix(left: sp.csr_matrix, right: sp.csr_matrix) -> bool:
    """Same rows, same entries, bit by bit."""
    return (
        left.shape == right.shape
        and np.array_equal(left.indptr, right.indptr)
        and np.array_equal(left.indices, right.indices)
        and left.data.astype(np.float32).tobytes() == right.data.astype(np.float32).tobytes()
    )


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flipped(rng: np.random.Generator, content: bytes) -> tuple[bytes, str]:
    """The same with one bit that is another, and where it is.

    A digit that is beyond what a number can hold, as the last of some in JSON, means nothing, and is not chosen.
    """
    while True:
        at, bit = int(rng.integers(len(content))), int(rng.integers(8))
        other = bytearray(content)
        other[at] ^= 1 << bit
        if not _says_the_same(content, bytes(other)):
            return bytes(other), f"bit {bit} of byte {at:,} of {len(content):,}"


def _says_the_same(content: bytes, other: bytes) -> bool:
    if not content.startswith(b"{"):
        return False
    try:
        return bool(json.loads(content) == json.loads(other))
    except ValueError:
        return False


def store_of(folder: Path, matrix: sp.csr_matrix, labels: np.ndarray, **options: object) -> Store:
    """A store of these rows, in their order unless `options` say otherwise, in place of what was there."""
    source = folder / "in.svm"
    source.write_text(svmlight_text(matrix.tocsr(), labels))
    config = ConvertConfig(**{"shuffle": False, "classes": ("-1", "1"), "features": matrix.shape[1], **options})
    return convert([str(source)], folder / "store", config, existing=Existing(force=True))


def least_memory(store: Store) -> int:
    """So little that every chunk is a window of its own, for a run of one model."""
    return 2 * max(_cost(chunk) for chunk in store.manifest.chunks)


def all_memory(store: Store) -> int:
    """So much that all chunks are one window, and no more."""
    return sum(_cost(chunk) for chunk in store.manifest.chunks)


def _cost(chunk: ChunkInfo) -> int:
    return cost_of(chunk) + row_bytes(TrainConfig(lam=1.0), 1) * (chunk.rows + 1)


def around_present(patched: pytest.MonkeyPatch, after: Callable[[int], None]) -> None:
    """Have `after` called with the number of rows whenever some were presented, by whatever solver."""
    for kind in (SdcaSolver, PegasosSolver):

        def present(solver, window, begin, end, real=kind.present):
            bad = real(solver, window, begin, end)
            if end > begin:  # a call with no rows loads the kernels
                after(end - begin)
            return bad

        patched.setattr(kind, "present", present)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ROOT / "tests" / "faults" in item.path.parents:
            item.add_marker("faults")


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets, or a skip that says so."""
    if not SHARED_DATA.exists():
        pytest.skip("the real data sets are not here (../shared/data)")
    return SHARED_DATA


@pytest.fixture
def oocpeg(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `oocpeg` with these words in the temporary folder, as a new interpreter if it is given an input."""

    def run(*words: object, code: int | None = 0, **given: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ooc_pegasos", *map(str, words)]
        env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
        if given:
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env, **given)
        else:
            child = Forked(COMMAND, *words, folder=tmp_path, env=env)
            out, err = child.communicate()
            done = subprocess.CompletedProcess(command, child.returncode, out, err)
        assert "Traceback" not in done.stderr, done.stderr
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return run


@contextmanager
def workers_of_this_process(number=2):
    """(cluster, client): workers of a thread each, in the process of the tests."""
    import distributed

    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0", "memory_limit": "1GB"}
    with (
        workers_that_never_pause(),
        distributed.LocalCluster(n_workers=number, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster, client


def workers_that_never_pause():
    """For workers in this process: what tests before them have left in its memory counts as theirs."""
    import dask

    return dask.config.set({f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause")})
