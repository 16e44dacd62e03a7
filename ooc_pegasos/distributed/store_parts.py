"""Parts of the data: which rows each has, and how a worker has them at hand.

A part is told by a few numbers and names; where its rows are in memory and in no store, they are handed over with it. A
worker opens it when it is first asked for work on it, and keeps it for the next round; any other worker that sees the
store would open the same. What is kept is never more than a worker's share, is let go when the run is over, and in the
end by itself, since a client may be killed.
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
"""Seconds after which a worker lets go of a part that nobody asks for."""
_ENDED = 1000
"""Runs that a worker remembers to be over."""


class EndedError(OocPegasosError):
    """Nobody waits for this any more: the run is over."""


@dataclass(frozen=True)
class Part:
    """Some chunks of a store that follow each other, and how to go through them."""

    run: str
    """So that workers can forget what a run has left."""
    number: int
    path: str
    checksum: str
    first: int
    end: int
    rows: int
    """That are trained on."""
    memory: int
    """Bytes; if the part takes no more it is one window, else it is read window by window. It decides the order."""
    holdout: float
    folds: int | None
    sampler: str
    seed: int
    together: int
    """Number of parts of a run that a worker keeps open at once, each with its memory."""
    written_by: str = __version__
    """Other versions may do otherwise."""


@dataclass(frozen=True)
class Held:
    """The rows of a part that is in the memory of a worker, as one chunk of what its manifest describes."""

    manifest: Manifest
    block: CsrBlock


class HeldLoader(Loader):
    """Gives all rows of a part as one window, without a copy of their entries."""

    name = "mapped"

    def __init__(self, store: Store, block: CsrBlock, part: Part) -> None:
        folds = Folds(store, part.holdout, part.folds)
        shape = Shape(tuple(folds.to_present), (block.rows + 1,), 1 << 62)
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
    """Return the array as compiled loops need it; an array from another process may be unaligned."""
    return np.require(array, requirements=["C", "A"])


class OpenPart:
    """A part on a worker."""

    def __init__(self, part: Part, held: Held | None = None) -> None:
        self.part = part
        self.inverses = np.empty(0, np.float32)
        self.lock = threading.Lock()
        """Held by who works on it: one task at a time."""
        self.used = time.monotonic()
        if held is not None:
            self.store = Store(Path(part.path), held.manifest)
            self.loader: Loader = HeldLoader(self.store, held.block, part)
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
        """The rows to present, in the order of an epoch."""
        part = self.part
        plans = SAMPLERS[part.sampler](self.loader.shape, part.seed + (part.number << 40), epoch)
        yield from self._stream(plans)

    def all_windows(self) -> Iterator[Window]:
        """All rows, as they stand."""
        yield from self._stream(self.loader.in_order())

    def _stream(self, plans: Iterable[Plan]) -> Iterator[Window]:
        with closing(self.loader.stream(plans, self.check)) as windows:
            for window in windows:
                self.check()
                yield window
                self.used = time.monotonic()
        self.loader.check_unchanged()

    def check(self) -> None:
        """Stop if the run is over; asked between two pieces of work."""
        if self.part.run in _ended:
            raise EndedError("the run is over")


_open: OrderedDict[Part, OpenPart] = OrderedDict()
_opening = threading.Lock()
_ended: deque[str] = deque(maxlen=_ENDED)


def at_hand(part: Part, held: Held | None = None) -> OpenPart:
    """The part, opened if it was not; `held` are its rows if they are in memory."""
    if part.written_by != __version__:
        problem = f"a worker has ooc-pegasos {__version__}, and the client {part.written_by}"
        raise InputError(f"{problem}; install the same everywhere")
    with _opening:
        if part.run in _ended:
            raise EndedError("the run is over")
        found = _open.pop(part, None) or OpenPart(part, held)
        found.used = time.monotonic()
        _open[part] = found
        of_it = [other for other in _open if other.run == part.run]
        for other in of_it[: max(len(of_it) - part.together, 0)]:
            del _open[other]
        _look_later()
        return found


def forget(run: str) -> None:
    """Let go of all parts of a run, which is over, and stop what is still done for it."""
    with _opening:
        _ended.append(run)
        for part in [part for part in _open if part.run == run]:
            del _open[part]


idle_check = threading.Event()


def _look_later() -> None:
    """Have one look, in a while, if there is anything."""
    if _open and not idle_check.is_set():
        idle_check.set()
        timer = threading.Timer(IDLE_SECONDS / 4, _let_go_of_idle)
        timer.daemon = True
        timer.start()


def _let_go_of_idle() -> None:
    """Let go of parts that nobody has asked for in a while: whoever did may have been killed."""
    with _opening:
        now = time.monotonic()
        for part, opened in list(_open.items()):
            if not opened.lock.locked() and now - opened.used > IDLE_SECONDS:
                del _open[part]
        idle_check.clear()
        _look_later()


def cut(store: Store, number: int) -> list[tuple[int, int]]:
    """(first chunk, the one after the last) of parts of about the same size; fewer than `number` if chunks are few."""
    chunks = store.manifest.chunks
    number = max(1, min(number, len(chunks)))
    ends = np.cumsum([chunk.bytes for chunk in chunks])
    goals = ends[-1] * np.arange(1, number) / number
    middles = ends - np.array([chunk.bytes for chunk in chunks]) / 2
    cuts = np.searchsorted(middles, goals)
    cuts = np.maximum.accumulate(np.maximum(cuts, np.arange(1, number)))  # no part without chunks
    cuts = np.minimum(cuts, len(chunks) - number + np.arange(1, number))
    bounds = [0, *cuts.tolist(), len(chunks)]
    return list(pairwise(bounds))


def same_store(path: str | Path) -> str:
    """The path as every worker should see it."""
    return str(Path(path).resolve())


def parts_of(
    store: Store, config: TrainConfig, bounds: list[tuple[int, int]], memory: int, rows: list[int], together: int
) -> list[Part]:
    """The parts of a run, given how many rows of each chunk are trained on."""
    run, checksum, path = secrets.token_hex(4), store.checksum, same_store(store.path)
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
            together=together,
        )
        for number, (first, end) in enumerate(bounds)
    ]
