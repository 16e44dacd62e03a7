"""Base class of the loaders: the next window is loaded while the current one is processed."""

from __future__ import annotations

import dataclasses
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

MAX_MAPPED_BYTES = 1 << 30
"""Larger stores are read into memory instead of mapped: mapped files have small pages, whose cost grows with size.

Measured with rows in random order: nothing at 0.3 GB, 5 % at 1 GB, 20 % at 2 GB, 80 % at 4 GB.
"""
_POLL_SECONDS = 0.05  # between checks whether the run has to stop
_MAX_MAPPINGS = 20_000  # of the 65,530 that Linux gives a process


class AbandonedError(OocPegasosError):
    """The window that is being loaded is no longer needed."""


@dataclass(frozen=True)
class Rows:
    """Row offsets, labels and weights of a window."""

    indptr: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None


class Loader(ABC):
    """Loader of the windows of a store, in the order of a plan."""

    name: Loading

    def __init__(self, store: Store, shape: Shape, folds: Folds, threads: int, background: Stopwatch) -> None:
        self.store = store
        self.shape = shape
        self.reserved = 0
        """Bytes of the budget that windows may not take."""
        self.bytes_read = 0
        self.background = background
        self.folds = folds
        self._threads = threads
        self._abandon = threading.Event()
        self._windows: dict[int, Window] = {}
        self._last = 1  # the slot of the latest window
        labels, levels = store.manifest.labels, store.manifest.layout.levels
        self._classes = len(labels.classes) if labels.task == "multiclass" else 0
        self._levels = all_levels(levels) if levels else NO_LEVELS
        self._factors = store.factors

    def reserve(self, size: int) -> None:
        """Make windows smaller, to leave bytes of the budget for other use. The windows in memory are released."""
        budget = self.shape.budget + self.reserved
        self.shape, self.reserved = dataclasses.replace(self.shape, budget=budget - size), size
        self._windows.clear()

    @property
    def training_rows(self) -> int:
        """Number of training rows: all but the holdout rows."""
        return sum(self.shape.chunk_rows)

    def rows_without(self, fold: int) -> int:
        """Return the number of rows in all folds but one."""
        return self.store.rows - int(self.folds.sizes[fold])

    @abstractmethod
    def load(self, chunks: tuple[int, ...], slot: int) -> Window:
        """Load chunks as one block, replacing the window in this slot (0 or 1). The order is empty."""

    def _load(self, chunks: tuple[int, ...]) -> Window:
        """Return the window with these chunks if it is in memory, or load it into the slot that is not in use.

        The latest window is in use; earlier ones are not.
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
        """Yield the windows of plans; each is valid until the next is requested.

        The next window is loaded and ordered concurrently. `check` is called periodically and may raise.
        """
        pool = ThreadPoolExecutor(1)
        self._abandon.clear()
        current: Future[Window] | None = None
        try:
            for plan in plans:
                upcoming = pool.submit(self.prepare, plan)
                if current is not None:
                    yield _result(current, check)
                current = upcoming
            if current is not None:
                yield _result(current, check)
        finally:
            self._abandon.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def in_order(self) -> list[Plan]:
        """Return plans of all rows in the order of the store."""
        return in_order(self.shape)

    def check_unchanged(self) -> None:  # noqa: B027 (copies in memory cannot change)
        """Raise CorruptFileError if a mapped file has changed on disk."""

    def damaged(self, window: Window, row: int) -> CorruptFileError:
        """Return the error for an index that a kernel found too large."""
        file = self.store.path / self.store.manifest.chunks[window.chunk_of(row)].file
        return CorruptFileError(f"{file}: an index is not below the number of features; restore it or convert again")

    def prepare(self, plan: Plan) -> Window:
        with self.background.measuring("ordering rows"):
            layout = Layout.of(self.store, plan.chunks)
            order = np.empty(0, np.uint32)
            if plan.order is not None:
                order = plan.order(self.folds.training_rows_of(plan.chunks, layout))
        window = self._load(plan.chunks)
        return Window(window.chunks, window.block, window.row_ranges, window.folds, order)

    def _check_abandoned(self) -> None:
        if self._abandon.is_set():
            raise AbandonedError("the stream of windows was closed")

    def _new_rows(self, layout: Layout, make: Callable[[int, Any], np.ndarray]) -> Rows:
        """Return arrays for offsets, labels and weights."""
        weighted = any(info.starts.weights is not None for info in layout.infos)
        return Rows(
            make(layout.rows, np.int64),
            make(layout.rows, np.dtype(self.store.manifest.layout.labels)),
            make(layout.rows, np.float32) if weighted else None,
        )

    def _copy_rows(self, layout: Layout, number: int, head: bytes | memoryview, rows: Rows) -> None:
        """Copy offsets, labels and weights from the head of a chunk file to the arrays of the window.

        Invalid offsets, labels and weights are refused, since kernels do not check them.
        """
        info, starts = layout.infos[number], layout.infos[number].starts
        first = layout.first_rows[number]
        offsets = read_only(np.frombuffer(head, "<i4", info.rows + 1, starts.offsets))
        if not place_offsets(
            offsets, layout.first_entries[number], info.entries, rows.indptr[first : first + info.rows + 1]
        ):
            file = self.store.path / info.file
            raise CorruptFileError(f"{file}: row offsets decrease or exceed the file; restore it or convert again")
        labels = np.frombuffer(head, rows.labels.dtype, info.rows, starts.labels)
        if not self._are_valid_labels(labels):
            file = self.store.path / info.file
            known = f"none of the {self._classes} classes" if self._classes else "not a valid number"
            raise CorruptFileError(f"{file}: a label is {known}; restore it or convert again")
        rows.labels[first : first + info.rows] = labels
        rows.labels[first + info.rows] = 0  # the gap after the chunk
        if rows.weights is not None:
            rows.weights[first : first + info.rows + 1] = 1
            if starts.weights is not None:
                weights = np.frombuffer(head, "<f4", info.rows, starts.weights)
                if not ((weights > 0) & np.isfinite(weights)).all():
                    file = self.store.path / info.file
                    raise CorruptFileError(f"{file}: a weight is not a positive number; restore it or convert again")
                rows.weights[first : first + info.rows] = weights

    def _are_valid_labels(self, labels: np.ndarray) -> bool:
        if self._classes:
            return bool(((labels >= 0) & (labels < self._classes)).all())
        regression = self.store.manifest.labels.task == "regression"
        return bool((np.isfinite(labels) if regression else np.abs(labels) == 1).all())

    def _decode(
        self, layout: Layout, number: int, rows: Rows, indices: np.ndarray, codes: np.ndarray, values: np.ndarray
    ) -> None:
        """Write the values of a chunk to its entries of the window, if its file contains codes of counts."""
        if self._factors is not None:
            info, first = layout.infos[number], layout.first_rows[number]
            entries = slice(layout.first_entries[number], layout.first_entries[number] + info.entries)
            offsets = rows.indptr[first : first + info.rows + 1]
            file = self.store.path / info.file
            self._factors.decode(offsets, indices[entries], codes[entries], values[entries], file)

    def _window(
        self, chunks: tuple[int, ...], layout: Layout, indices: np.ndarray, values: np.ndarray | None, rows: Rows
    ) -> Window:
        features = self.store.features
        block = CsrBlock(rows.indptr, indices, values, rows.labels, features, rows.weights, self._levels)
        marks = self.folds.of_window(chunks, layout)
        return Window(chunks, block, layout.row_ranges(), marks, np.empty(0, np.uint32))


def _result(future: Future[Window], check: Callable[[], None]) -> Window:
    while not future.done():
        check()
        wait([future], timeout=_POLL_SECONDS)
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
    """Return the requested loader, or by default a mapped one if the store fits the budget and is not large.

    `row_bytes` is the memory of the solver for each row of a window.
    """
    from ooc_pegasos.loading.mapped import MappedLoader
    from ooc_pegasos.loading.read_ahead import ReadAheadLoader

    chunks = store.manifest.chunks
    row_folds = Folds(store, holdout, folds)
    costs = tuple(cost_of(chunk, store.manifest.layout) + row_bytes * (chunk.rows + 1) for chunk in chunks)
    shape = Shape(tuple(row_folds.training_rows), costs, budget)
    if budget < shape.min_budget:
        whole = shape.min_budget == sum(shape.chunk_bytes)
        largest = f"whose largest chunk takes {_size(max(shape.chunk_bytes))}, two at a time"
        raise UsageError(
            f"{what} {_size(budget)} is too little for {store.path}, {'all of which is needed' if whole else largest}; "
            f"give at least {{memory={_size(shape.min_budget)}}}, or convert with a smaller {{chunk_size}}"
        )
    mappable = can_map() and 2 * len(chunks) <= _MAX_MAPPINGS
    small = shape.fits and store.manifest.bytes <= MAX_MAPPED_BYTES
    if loading == "mapped" and not mappable:
        raise UsageError(
            "{loading=mapped} needs 64-bit Linux with pages of 4 kB and a store of few chunks; leave it out"
        )
    chosen = loading or ("mapped" if small and mappable else "read")
    kind = MappedLoader if chosen == "mapped" else ReadAheadLoader
    return kind(store, shape, row_folds, threads, background or Stopwatch())


def _size(count: int) -> str:
    """Return a size in the form of `--memory`, rounded up."""
    return f"{-(-count // 2**20)}MB" if count >= 10 << 20 else f"{-(-count // 2**10)}kB"
