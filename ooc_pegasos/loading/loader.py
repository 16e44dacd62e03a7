"""The common part of both ways of loading: the next window is made ready while this one is worked on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ooc_pegasos.compiled.rows.coding import place_offsets
from ooc_pegasos.errors import CorruptFileError, OocPegasosError, UsageError
from ooc_pegasos.loading.samplers import Plan, Shape, in_order
from ooc_pegasos.loading.window import Folds, Layout, Window, cost_of
from ooc_pegasos.store.csr_block import NO_LEVELS, CsrBlock, all_levels, read_only
from ooc_pegasos.store.page_memory import can_map
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.stopwatch import Stopwatch

Loading = Literal["mapped", "read"]

MAPPED_UP_TO = 1 << 30
"""Larger stores that fit are read once and kept: mapped files have small pages, which cost the more the more there are.

Measured with rows in random order: nothing at 0.3 GB, 5 % at 1 GB, 20 % at 2 GB, 80 % at 4 GB.
"""
_LOOK_UP = 0.05  # seconds between two looks at whether somebody wants to stop
_MOST_MAPPINGS = 20_000  # of the 65,530 that Linux gives a process


class AbandonedError(OocPegasosError):
    """Nobody wants the window any more that is being loaded."""


@dataclass(frozen=True)
class Rows:
    """The data of a window about each row, besides the entries."""

    indptr: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None


class Loader(ABC):
    """Brings the windows of a store to memory in the order of a plan."""

    name: Loading

    def __init__(self, store: Store, shape: Shape, folds: Folds, threads: int, background: Stopwatch) -> None:
        self.store = store
        self.shape = shape
        self.bytes_read = 0
        self.background = background
        self.folds = folds
        self._threads = threads
        self._abandon = threading.Event()
        self._windows: dict[int, Window] = {}
        self._last = 1  # the slot of the window made last
        labels, levels = store.manifest.labels, store.manifest.layout.levels
        self._classes = len(labels.classes) if labels.task == "multiclass" else 0
        self._levels = all_levels(levels) if levels else NO_LEVELS

    @property
    def training_rows(self) -> int:
        """Rows that are presented: all that are not held out."""
        return sum(self.shape.chunk_rows)

    def rows_without(self, fold: int) -> int:
        """Rows in all folds but one."""
        return self.store.rows - int(self.folds.sizes[fold])

    @abstractmethod
    def load(self, chunks: tuple[int, ...], slot: int) -> Window:
        """Chunks laid out as one block, in place of what was in this slot (0 or 1) before. The order is empty."""

    def _load(self, chunks: tuple[int, ...]) -> Window:
        """The chunks that are in memory already, or else chunks in place of the window that is not in use.

        In use is the one made last: who asks for a window has done with those before it.
        """
        for slot, window in self._windows.items():
            if window.chunks == chunks:
                self._last = slot
                return window
        slot = 1 - self._last
        self._windows.pop(slot, None)
        self._windows[slot] = self.load(chunks, slot)
        self._last = slot
        return self._windows[slot]

    def stream(self, plans: Iterable[Plan], check: Callable[[], None] = lambda: None) -> Generator[Window, None, None]:
        """The windows of some plans one after the other; each may be used until the next is asked for.

        While one is used, the next is loaded and its order made. `check` is called now and then and may raise.
        """
        pool = ThreadPoolExecutor(1)
        self._abandon.clear()
        ready: Future[Window] | None = None
        try:
            for plan in plans:
                coming = pool.submit(self.prepare, plan)
                if ready is not None:
                    yield _result(ready, check)
                ready = coming
            if ready is not None:
                yield _result(ready, check)
        finally:
            self._abandon.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def in_order(self) -> list[Plan]:
        """All rows of the store as they stand."""
        return in_order(self.shape)

    def check_unchanged(self) -> None:  # noqa: B027 (what is in memory of its own cannot change)
        """See that what was loaded is still what lies on the disk, where that could have changed."""

    def damaged(self, window: Window, row: int) -> CorruptFileError:
        """Error for an index that is too large, found by a kernel."""
        file = self.store.path / self.store.manifest.chunks[window.chunk_of(row)].file
        return CorruptFileError(f"{file}: an index is not below the number of features; restore it or convert again")

    def prepare(self, plan: Plan) -> Window:
        with self.background.measuring("ordering rows"):
            layout = Layout.of(self.store, plan.chunks)
            order = np.empty(0, np.uint32)
            if plan.order is not None:
                order = plan.order(self.folds.rows_to_present(plan.chunks, layout))
        window = self._load(plan.chunks)
        return Window(window.chunks, window.block, window.stretches, window.folds, order)

    def _check_abandoned(self) -> None:
        if self._abandon.is_set():
            raise AbandonedError("nobody waits for this window")

    def _new_rows(self, layout: Layout, make: Callable[[int, Any], np.ndarray]) -> Rows:
        """Room for what is known of each row."""
        weighted = any(info.starts.weights is not None for info in layout.infos)
        return Rows(
            make(layout.rows, np.int64),
            make(layout.rows, np.dtype(self.store.manifest.layout.labels)),
            make(layout.rows, np.float32) if weighted else None,
        )

    def _place_rows(self, layout: Layout, place: int, head: bytes | memoryview, rows: Rows) -> None:
        """Take offsets, labels and weights from the head of a chunk file to where the window wants them.

        No row leaves its chunk, every label is a class that there is or a number, and every weight is positive, or the
        chunk is refused: kernels do not look.
        """
        info, starts = layout.infos[place], layout.infos[place].starts
        first = layout.first_rows[place]
        offsets = read_only(np.frombuffer(head, "<i4", info.rows + 1, starts.offsets))
        if not place_offsets(
            offsets, layout.first_entries[place], info.entries, rows.indptr[first : first + info.rows + 1]
        ):
            file = self.store.path / info.file
            raise CorruptFileError(f"{file}: row offsets decrease or leave the file; restore it or convert again")
        labels = np.frombuffer(head, rows.labels.dtype, info.rows, starts.labels)
        if not self._are_labels(labels):
            file = self.store.path / info.file
            known = f"none of the {self._classes} classes" if self._classes else "not a number that it can be"
            raise CorruptFileError(f"{file}: a label is {known}; restore it or convert again")
        rows.labels[first : first + info.rows] = labels
        rows.labels[first + info.rows] = 0  # the gap after it
        if rows.weights is not None:
            rows.weights[first : first + info.rows + 1] = 1
            if starts.weights is not None:
                weights = np.frombuffer(head, "<f4", info.rows, starts.weights)
                if not ((weights > 0) & np.isfinite(weights)).all():
                    file = self.store.path / info.file
                    raise CorruptFileError(f"{file}: a weight is not a positive number; restore it or convert again")
                rows.weights[first : first + info.rows] = weights

    def _are_labels(self, labels: np.ndarray) -> bool:
        if self._classes:
            return bool(((labels >= 0) & (labels < self._classes)).all())
        regression = self.store.manifest.labels.task == "regression"
        return bool((np.isfinite(labels) if regression else np.abs(labels) == 1).all())

    def _window(
        self, chunks: tuple[int, ...], layout: Layout, indices: np.ndarray, values: np.ndarray | None, rows: Rows
    ) -> Window:
        features = self.store.features
        block = CsrBlock(rows.indptr, indices, values, rows.labels, features, rows.weights, self._levels)
        marks = self.folds.of_window(chunks, layout)
        return Window(chunks, block, layout.stretches(), marks, np.empty(0, np.uint32))


def _result(future: Future[Window], check: Callable[[], None]) -> Window:
    while not future.done():
        check()
        wait([future], timeout=_LOOK_UP)
    return future.result()


def open_loader(
    store: Store,
    budget: int,
    *,
    loading: Loading | None = None,
    holdout: float = 0.0,
    folds: int | None = None,
    row_bytes: int = 0,
    threads: int = 1,
    background: Stopwatch | None = None,
    what: str = "--memory",
) -> Loader:
    """The way of loading asked for, or the one that suits: mapped where the store fits the budget and is not large.

    `row_bytes` is what somebody else keeps in memory for each row of a window.
    """
    from ooc_pegasos.loading.mapped import MappedLoader
    from ooc_pegasos.loading.read_ahead import ReadAheadLoader

    chunks = store.manifest.chunks
    apart = Folds(store, holdout, folds)
    costs = tuple(cost_of(chunk) + row_bytes * (chunk.rows + 1) for chunk in chunks)
    shape = Shape(tuple(apart.to_present), costs, budget)
    if budget < shape.least_budget:
        whole = shape.least_budget == sum(shape.chunk_bytes)
        largest = f"whose largest chunk takes {_size(max(shape.chunk_bytes))}, two at a time"
        raise UsageError(
            f"{what} {_size(budget)} is too little for {store.path}, {'all of which is needed' if whole else largest}; "
            f"give at least {{memory={_size(shape.least_budget)}}}, or convert with a smaller {{chunk_size}}"
        )
    mappable = can_map() and 2 * len(chunks) <= _MOST_MAPPINGS
    small = shape.fits and store.manifest.bytes <= MAPPED_UP_TO
    if loading == "mapped" and not mappable:
        raise UsageError(
            "{loading=mapped} needs 64-bit Linux with pages of 4 kB and a store of few chunks; leave it out"
        )
    wanted = loading or ("mapped" if small and mappable else "read")
    kind = MappedLoader if wanted == "mapped" else ReadAheadLoader
    return kind(store, shape, apart, threads, background or Stopwatch())


def _size(count: int) -> str:
    """A size as `--memory` takes it, not below `count`."""
    return f"{-(-count // 2**20)}MB" if count >= 10 << 20 else f"{-(-count // 2**10)}kB"
