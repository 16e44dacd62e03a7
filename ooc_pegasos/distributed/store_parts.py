"""Parts of the data: their rows, and the cache of open parts on a worker.

A part is described by a few numbers and names; rows in memory are passed with it. A worker opens a part with its first
task and keeps it open for the next round; any other worker that sees the store can open the same part. The cache is
bounded, is emptied when the run is over, and after a time without requests, since a client may be killed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import InputError, OocPegasosError
from ooc_pegasos.loading.loader import Loader, Rows, open_loader
from ooc_pegasos.loading.samplers import Plan, Shape
from ooc_pegasos.loading.window import Folds, Layout, Window
from ooc_pegasos.registry import SAMPLERS
from ooc_pegasos.store.append_expire import only
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.manifest import Manifest
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.stopwatch import Stopwatch

IDLE_SECONDS = 600.0
"""Seconds without requests after which a worker closes a part."""
_REMEMBERED_RUNS = 1000
"""Number of finished runs that a worker remembers."""


class EndedError(OocPegasosError):
    """The run of a task is over."""


@dataclass(frozen=True)
class Part:
    """Consecutive chunks of a store, and the order in which their rows are processed."""

    run: str
    """Identifier of the run, for the cleanup of workers."""
    number: int
    path: str
    checksum: str
    first: int
    end: int
    rows: int
    """Training rows."""
    memory: int
    """Memory budget in bytes: a part that fits is one window. The order of the rows depends on it."""
    holdout: float
    folds: int | None
    sampler: str
    seed: int
    open_at_once: int
    """Number of parts of a run that a worker keeps open, each with its memory."""
    written_by: str = __version__
    """Version of the client; results of other versions may differ."""


@dataclass(frozen=True)
class InMemoryPart:
    """The rows of a part in the memory of a worker, as one chunk of its manifest."""

    manifest: Manifest
    block: CsrBlock


class InMemoryLoader(Loader):
    """Loader of a part in memory: all rows are one window, whose entries are not copied."""

    name = "mapped"

    def __init__(self, store: Store, block: CsrBlock, part: Part) -> None:
        folds = Folds(store, part.holdout, part.folds)
        shape = Shape(tuple(folds.training_rows), (block.rows + 1,), 1 << 62)
        super().__init__(store, shape, folds, 1, Stopwatch())
        self._block = block

    def load(self, chunks: tuple[int, ...], slot: int) -> Window:
        """See `Loader.load`."""
        block = self._block
        weights = None if block.weights is None else np.append(block.weights, np.float32(1))
        rows = Rows(_aligned(block.indptr), np.append(block.labels, block.labels.dtype.type(0)), weights)
        layout = Layout.of(self.store, chunks)
        values = None if block.values is None else _aligned(block.values)
        return self._window(chunks, layout, _aligned(block.indices), values, rows)


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return the array aligned for compiled loops; an array from another process may be unaligned."""
    return np.require(array, requirements=["C", "A"])


class OpenPart:
    """An open part on a worker."""

    def __init__(self, part: Part, in_memory: InMemoryPart | None = None) -> None:
        self.part = part
        self.inverses = np.empty(0, np.float32)
        self.lock = threading.Lock()
        """Lock of the task that uses the part."""
        self.last_used = time.monotonic()
        if in_memory is not None:
            self.store = Store(Path(part.path), in_memory.manifest)
            self.loader: Loader = InMemoryLoader(self.store, in_memory.block, part)
            return
        try:
            whole = Store.open(part.path)
        except InputError as error:
            problem = f"{error}; every worker must see the store under this path"
            raise InputError(problem) from error
        if whole.checksum != part.checksum:
            raise InputError(f"{part.path}: not the store that the client sees; give all machines the same one")
        self.store = Store(whole.path, only(whole.manifest, part.first, part.end))
        self.loader = open_loader(
            self.store, part.memory, holdout=part.holdout, folds=part.folds, what="the memory of a worker,"
        )

    def windows(self, epoch: int) -> Iterator[Window]:
        """Yield the training rows in the order of an epoch."""
        part = self.part
        plans = SAMPLERS[part.sampler](self.loader.shape, part.seed + (part.number << 40), epoch)
        yield from self._stream(plans)

    def all_windows(self) -> Iterator[Window]:
        """Yield all rows in the order of the store."""
        yield from self._stream(self.loader.in_order())

    def _stream(self, plans: Iterable[Plan]) -> Iterator[Window]:
        with closing(self.loader.stream(plans, self.check)) as windows:
            for window in windows:
                self.check()
                yield window
                self.last_used = time.monotonic()
        self.loader.check_unchanged()

    def check(self) -> None:
        """Raise EndedError if the run is over."""
        if self.part.run in _ended_runs:
            raise EndedError("the run is over")


_open_parts: OrderedDict[Part, OpenPart] = OrderedDict()
_open_lock = threading.Lock()
_ended_runs: deque[str] = deque(maxlen=_REMEMBERED_RUNS)


def open_part(part: Part, in_memory: InMemoryPart | None = None) -> OpenPart:
    """Return an open part; `in_memory` are its rows if they are not in a store."""
    if part.written_by != __version__:
        problem = f"a worker has ooc-pegasos {__version__}, and the client {part.written_by}"
        raise InputError(f"{problem}; install the same everywhere")
    with _open_lock:
        if part.run in _ended_runs:
            raise EndedError("the run is over")
        found = _open_parts.pop(part, None) or OpenPart(part, in_memory)
        found.last_used = time.monotonic()
        _open_parts[part] = found
        of_run = [other for other in _open_parts if other.run == part.run]
        for other in of_run[: max(len(of_run) - part.open_at_once, 0)]:
            del _open_parts[other]
        _schedule_cleanup()
        return found


def close_run(run: str) -> None:
    """Close all parts of a finished run, and stop its tasks."""
    with _open_lock:
        _ended_runs.append(run)
        for part in [part for part in _open_parts if part.run == run]:
            del _open_parts[part]


cleanup_scheduled = threading.Event()


def _schedule_cleanup() -> None:
    """Schedule a check for idle parts if any part is open."""
    if _open_parts and not cleanup_scheduled.is_set():
        cleanup_scheduled.set()
        timer = threading.Timer(IDLE_SECONDS / 4, _close_idle_parts)
        timer.daemon = True
        timer.start()


def _close_idle_parts() -> None:
    """Close parts without recent requests: the client may have been killed."""
    with _open_lock:
        now = time.monotonic()
        for part, opened in list(_open_parts.items()):
            if not opened.lock.locked() and now - opened.last_used > IDLE_SECONDS:
                del _open_parts[part]
        cleanup_scheduled.clear()
        _schedule_cleanup()


def cut_store(store: Store, number: int) -> list[tuple[int, int]]:
    """Return (first chunk, end) of parts of about the same size; fewer than `number` if there are fewer chunks."""
    chunks = store.manifest.chunks
    number = max(1, min(number, len(chunks)))
    ends = np.cumsum([chunk.bytes for chunk in chunks])
    targets = ends[-1] * np.arange(1, number) / number
    middles = ends - np.array([chunk.bytes for chunk in chunks]) / 2
    cuts = np.searchsorted(middles, targets)
    cuts = np.maximum.accumulate(np.maximum(cuts, np.arange(1, number)))  # no part is empty
    cuts = np.minimum(cuts, len(chunks) - number + np.arange(1, number))
    bounds = [0, *cuts.tolist(), len(chunks)]
    return list(pairwise(bounds))


def shared_path(path: str | Path) -> str:
    """Return the path under which workers open the store."""
    return str(Path(path).resolve())


def parts_of(
    store: Store, config: TrainConfig, bounds: list[tuple[int, int]], memory: int, rows: list[int], open_at_once: int
) -> list[Part]:
    """Return the parts of a run; `rows` are the training rows of each chunk."""
    run, checksum, path = secrets.token_hex(4), store.checksum, shared_path(store.path)
    return [
        Part(
            run=run,
            number=number,
            path=path,
            checksum=checksum,
            first=first,
            end=end,
            rows=sum(rows[first:end]),
            memory=memory,
            holdout=config.holdout_fraction,
            folds=config.folds,
            sampler=config.sampler,
            seed=config.seed,
            open_at_once=open_at_once,
        )
        for number, (first, end) in enumerate(bounds)
    ]
