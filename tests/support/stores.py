"""Stores of given rows, the memory that their windows need, and hooks into the solvers."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.solvers.pegasos_group import PegasosSolver
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.solvers.row_cache import RowCache
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.store.manifest import ChunkInfo
from ooc_pegasos.training.stop import Interrupted, StopCheck
from support.rows import svmlight_text


def store_of(folder: Path, matrix: sp.csr_matrix, labels: np.ndarray, **options: object) -> Store:
    """A store of these rows, in their order unless `options` say otherwise, in place of what was there."""
    source = folder / "in.svm"
    source.write_text(svmlight_text(matrix.tocsr(), labels))
    config = ConvertConfig(**{"shuffle": False, "classes": ("-1", "1"), "features": matrix.shape[1], **options})
    return convert([str(source)], folder / "store", config, existing=Existing(force=True))


def chunk_bytes(store: Store) -> list[bytes]:
    """Contents of the chunk files."""
    return [(store.path / chunk.file).read_bytes() for chunk in store.manifest.chunks]


def small_buckets(patched: pytest.MonkeyPatch, limit: int) -> None:
    """Make the shuffle use buckets of this many bytes, as for inputs larger than memory."""
    patched.setattr(ConvertConfig, "bucket_limit", lambda _config: limit)


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

        def process(solver, window, begin, end, real=kind.process):
            bad = real(solver, window, begin, end)
            if end > begin:  # a call with no rows loads the kernels
                after(end - begin)
            return bad

        patched.setattr(kind, "process", process)


@contextmanager
def interrupted_after(slices: int) -> Iterator[None]:
    """Expect that the run within is interrupted after so many slices of rows, as by Ctrl-C."""
    left = [slices]

    def stop(_rows: int) -> None:
        left[0] -= 1
        if not left[0]:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patched:
        around_present(patched, stop)
        with pytest.raises(Interrupted):
            yield


def interrupt_at_check(patched: pytest.MonkeyPatch, number: int) -> None:
    """Request a stop just before the check with this number."""
    count = [0]

    def check(stop, real=StopCheck.check):
        count[0] += 1
        if count[0] == number:
            stop.is_requested = True
        real(stop)

    patched.setattr(StopCheck, "check", check)


def count_cached_rows(patched: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of cached rows after each window."""
    counts, add = [], RowCache.add

    def counted(cache, *arguments):
        add(cache, *arguments)
        counts.append(len(cache.sequence))

    patched.setattr(RowCache, "add", counted)
    return counts
