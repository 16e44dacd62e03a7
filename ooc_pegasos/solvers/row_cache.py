"""Active rows that stay in memory while a store larger than memory is read.

From disk the number of reads decides, not the number of visits of a row. So each window is processed several times,
together with rows of earlier windows whose dual variables still change: those inside their box, and those with a score
near the bound where they would begin to move. The states of these rows are in the cache alone until they leave it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.sdca import PERIODS
from ooc_pegasos.compiled.rows.gather import gather_entries
from ooc_pegasos.compiled.rows.shuffle import shuffle
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import ROW_BYTES, Window
from ooc_pegasos.solvers.row_group import KINDS, MAX_SEPARATE, Group
from ooc_pegasos.store.csr_block import CsrBlock, read_only

PASSES = 4
"""Passes over a window and cached rows each time that the window is read, at most."""
_WORK, _WORK_OF_MANY = (4, 4), (3, 3)
"""Passes, and cached rows that are visited in a pass for each row of the window; fewer for many models, whose steps
take longer than reading."""
_SHARE = 0.8
"""Share of the memory for the cache; the rest is for two windows."""
_FILLED = 0.98
"""Share of the memory that cached rows fill. Gaps of rows that left are closed when new ones have no room."""
_TEMPORARY_BYTES = 16
"""Bytes of a row while rows are chosen, and for its number."""
_INSIDE = PERIODS[-1] + 1
"""Rank of a row whose dual variable is inside its box."""


@dataclass
class CachedRows(Window):
    """A block with room for more rows, and the states of its rows."""

    numbers: np.ndarray
    """Numbers of the rows in the store."""
    inverses: np.ndarray
    first_rows: Sequence[int]
    """Numbers of the first rows of all chunks."""
    groups: list[Group] = dataclasses.field(default_factory=list)

    def chunk_of(self, row: int) -> int:
        """See `Window`."""
        return int(np.searchsorted(self.first_rows, self.numbers[row], side="right")) - 1

    @classmethod
    def like(cls, window: Window, first_rows: Sequence[int], rows: int, entries: int) -> CachedRows:
        """Return a block for so many rows and entries like those of a window."""
        block = window.block
        values = None if block.values is None else np.empty(entries, block.values.dtype)
        weights = None if block.weights is None else np.empty(rows, block.weights.dtype)
        indptr, labels = np.zeros(rows + 1, np.int64), np.empty(rows, block.labels.dtype)
        made = CsrBlock(
            indptr, np.empty(entries, block.indices.dtype), values, labels, block.features, weights, block.levels
        )
        folds = np.empty(rows if len(window.folds) else 0, window.folds.dtype)
        none = np.empty(0, np.uint32)
        return cls((), made, [], folds, none, np.empty(rows, np.int64), np.empty(rows, np.float32), first_rows)

    def columns(self) -> list[np.ndarray]:
        """Return the arrays with a number for each row, without the states of groups."""
        weights = [] if self.block.weights is None else [self.block.weights]
        return [self.block.labels, self.numbers, self.inverses, *weights, *([self.folds] if len(self.folds) else [])]

    def part(self, rows: int, order: np.ndarray) -> CachedRows:
        """Return the first rows, to be processed in an order."""
        block = self.block
        weights = None if block.weights is None else block.weights[:rows]
        some = dataclasses.replace(block, indptr=block.indptr[: rows + 1], labels=block.labels[:rows], weights=weights)
        return dataclasses.replace(self, block=some, order=order)


@dataclass(frozen=True)
class Piece:
    """Rows that a solver processes one after the other, `window.order`."""

    window: Window
    number: int = 0
    """Pass over the window."""

    @property
    def is_cached(self) -> bool:
        """True if the rows are those of earlier windows."""
        return isinstance(self.window, CachedRows)


def capacity_of(loader: Loader) -> int:
    """Return the bytes for cached rows."""
    budget = loader.shape.budget + loader.reserved
    return budget - max(loader.shape.min_budget, int((1 - _SHARE) * budget))


class RowCache:
    """The cached rows, in `sequence` in the order in which they came."""

    def __init__(self, loader: Loader, models: int, row_bytes: int) -> None:
        self.capacity = capacity_of(loader)
        self._loader, self._row_bytes = loader, row_bytes + ROW_BYTES + _TEMPORARY_BYTES
        self._passes, self._visits = _WORK if models <= MAX_SEPARATE else _WORK_OF_MANY
        loader.reserve(self.capacity)
        self.rows: CachedRows | None = None
        """None before the first window."""
        self.sequence = np.empty(0, np.int64)
        self._end = 0
        """Rows of the block, gaps included."""
        self.passes = 0
        """Passes over cached rows, by which their activity is counted."""
        self.script: list[tuple[int, bool]] = []
        """(pass, is_cached) of the pieces that are processed while a window is in memory."""
        self.is_settled = self.are_rows_settled = False
        """True if the gap of the window, or of the cached rows, was small in the last pass."""
        self.wanted = np.empty(0, np.int64)
        """Numbers of rows that an interrupted run had cached."""
        self._chosen = np.empty(0, np.int64)

    def close(self) -> None:
        """Leave the memory to windows."""
        self.rows, self.sequence = None, np.empty(0, np.int64)
        self._loader.reserve(0)

    # --- the work while a window is in memory -------------------------------------------------------

    def piece(self, window: Window, index: int, seed: Sequence[int], once: bool) -> Piece | None:
        """Return a piece of the work while a window is in memory; None if all is done.

        Each pass goes over the window, and over cached rows. There is another pass while the gap of the window is
        large; with `once` there is one pass over the window alone. `script` has the pieces of the passes that were
        begun, so that a resumed run repeats them.
        """
        if index == 0:
            self.script = []
        if index == len(self.script):
            number = self.script[-1][0] + 1 if self.script else 0
            if number == (1 if once else self._passes) or (number and self.is_settled):
                return None
            self.script.append((number, False))
            if len(self.sequence) and not once:
                self.script.append((number, True))
        number, is_cached = self.script[index]
        order = self.sequence.astype(np.uint32) if is_cached else window.order.copy()
        if number or is_cached:
            shuffle(order, np.random.SeedSequence([*seed, index]).generate_state(4, np.uint64))
        if not is_cached:
            return Piece(dataclasses.replace(window, order=order), number)
        assert self.rows is not None
        visits = 1 if self.are_rows_settled else self._visits
        return Piece(self.rows.part(self._end, order[: visits * len(window.order)]), number)

    def finish(self, piece: Piece, is_settled: bool) -> None:
        """Note that all rows of a piece were processed; `is_settled` if their gap is small."""
        if piece.is_cached:
            self.passes, self.are_rows_settled = self.passes + 1, is_settled
        else:
            self.is_settled = is_settled

    def forget_activity(self) -> None:
        """Make all rows active."""
        self.passes, self.are_rows_settled = self.passes + PERIODS[-1], False

    # --- which rows are cached ----------------------------------------------------------------------

    def take(self, chunks: Sequence[int]) -> np.ndarray:
        """Remove the rows of some chunks, and return their places in the block, where their states are still."""
        if self.rows is None:
            return self.sequence
        numbers, first_rows = self.rows.numbers[self.sequence], self.rows.first_rows
        is_taken = np.zeros(len(numbers), np.bool_)
        for chunk in chunks:
            is_taken |= (numbers >= first_rows[chunk]) & (numbers < first_rows[chunk + 1])
        return self._remove(is_taken)

    def exchange(self, window: Window, first_rows: Sequence[int], groups: list[Group]) -> np.ndarray:
        """Choose the most active rows of a window instead of less active ones.

        Returns the places of those that leave, where their states are until `add` copies the rows.
        """
        if self.rows is None:
            self._allocate(window, first_rows, groups)
        assert self.rows is not None
        self._keep_stale_rows_active()
        order = np.sort(window.order).astype(np.int64)
        ranks = [
            _ranks(self.rows.block, self.rows.groups, self.sequence, self.passes),
            _ranks(window.block, groups, order, self.script[-1][0] + 1),
        ]
        costs = [self._costs(self.rows.block, self.sequence), self._costs(window.block, order)]
        kept, chosen = _heaviest(ranks, costs, int(_FILLED * self.capacity))
        self._chosen = order[chosen]
        return self._remove(~kept)

    def add(self, window: Window, groups: list[Group], inverses: np.ndarray) -> None:
        """Copy the rows of the window that `exchange` chose."""
        assert self.rows is not None
        shift = np.uint8((self.passes - self.script[-1][0] - 1) % 256)
        added = self._append(window, self._chosen)
        self.rows.inverses[added] = inverses[self._chosen[: len(added)]]
        for mine, other in zip(self.rows.groups, groups, strict=True):
            for name in KINDS:
                mine.table(name)[added] = other.table(name)[self._chosen[: len(added)]]
            mine.table("inactive_until")[added] += shift

    def read_again(self, window: Window, first_rows: Sequence[int], groups: list[Group]) -> None:
        """Copy the wanted rows of a window, without their states."""
        if self.rows is None:
            self._allocate(window, first_rows, groups)
        for chunk, (begin, _end) in zip(window.chunks, window.row_ranges, strict=True):
            inside = (self.wanted >= first_rows[chunk]) & (self.wanted < first_rows[chunk + 1])
            self._append(window, np.sort(self.wanted[inside]) - first_rows[chunk] + begin)

    def restore_sequence(self) -> None:
        """Put the rows that were read again into the sequence of the interrupted run."""
        if self.rows is not None and len(self.wanted):
            numbers = self.rows.numbers[: self._end]
            places = np.argsort(numbers)
            found = np.searchsorted(numbers, self.wanted, sorter=places)
            self.sequence = places[np.minimum(found, len(places) - 1)]
            if not np.array_equal(numbers[self.sequence], self.wanted):
                raise CorruptFileError(
                    "the checkpoint has more cached rows than fit the memory; start without {resume}"
                )
        self.wanted = np.empty(0, np.int64)

    def facts(self) -> tuple[dict[str, Any], np.ndarray]:
        """Return facts for a checkpoint, and the numbers of all cached rows."""
        settled = [self.is_settled, self.are_rows_settled]
        facts = {"passes": self.passes, "script": self.script, "settled": settled}
        if len(self.wanted) or self.rows is None:
            return facts, self.wanted
        return facts, self.rows.numbers[self.sequence]

    # --- the block ----------------------------------------------------------------------------------

    def _allocate(self, window: Window, first_rows: Sequence[int], groups: list[Group]) -> None:
        """Reserve addresses for rows and entries, each for the whole memory: together they fill no more than that."""
        entry = self._entry_bytes(window.block)
        made = CachedRows.like(window, first_rows, self.capacity // self._row_bytes, self.capacity // entry)
        made.groups = [Group(group.models, group.width) for group in groups]
        for group in made.groups:
            group.allocate(len(made.numbers))
        self.rows = made

    @staticmethod
    def _entry_bytes(block: CsrBlock) -> int:
        return block.indices.itemsize + (0 if block.values is None else block.values.itemsize)

    def _costs(self, block: CsrBlock, rows: np.ndarray) -> np.ndarray:
        """Return the bytes of rows in the cache."""
        lengths = block.indptr[rows + 1] - block.indptr[rows]
        costs: np.ndarray = (lengths * self._entry_bytes(block) + self._row_bytes).astype(np.float32)
        return costs

    def _room(self) -> int:
        """Return the bytes that are left at the end of the block."""
        assert self.rows is not None
        block = self.rows.block
        return self.capacity - self._end * self._row_bytes - int(block.indptr[self._end]) * self._entry_bytes(block)

    def _remove(self, is_removed: np.ndarray) -> np.ndarray:
        removed: np.ndarray = self.sequence[is_removed]
        self.sequence = self.sequence[~is_removed]
        return removed

    def _append(self, window: Window, rows: np.ndarray) -> np.ndarray:
        """Copy rows of a window to the end of the block, as many as fit, and return their places."""
        mine, block = self.rows, window.block
        assert mine is not None
        used = np.cumsum(self._costs(block, rows), dtype=np.float64)
        if len(rows) and used[-1] > self._room():
            self._close_gaps()
        count = int(np.searchsorted(used, self._room(), side="right"))
        ends = np.cumsum(block.indptr[rows + 1] - block.indptr[rows])
        first = int(mine.block.indptr[self._end])
        rows, begin, self._end = rows[:count], self._end, self._end + count
        mine.block.indptr[begin + 1 : self._end + 1] = first + ends[:count]
        _copy_entries(rows, block, mine.block, first)
        mine.block.labels[begin : self._end] = block.labels[rows]
        mine.numbers[begin : self._end] = _numbers(window, mine.first_rows, rows)
        if mine.block.weights is not None:
            mine.block.weights[begin : self._end] = 1.0 if block.weights is None else block.weights[rows]
        if len(mine.folds):
            mine.folds[begin : self._end] = window.folds[rows]
        added = np.arange(begin, self._end)
        self.sequence = np.concatenate([self.sequence, added])
        return added

    def _close_gaps(self) -> None:
        """Move the rows of the sequence to the left end of the block."""
        mine = self.rows
        assert mine is not None
        rows = np.sort(self.sequence)
        lengths = mine.block.indptr[rows + 1] - mine.block.indptr[rows]
        _copy_entries(rows, mine.block, mine.block, 0)
        mine.block.indptr[1 : len(rows) + 1] = np.cumsum(lengths)
        for column in (*mine.columns(), *(group.table(name) for group in mine.groups for name in KINDS)):
            column[: len(rows)] = column[rows]
        self.sequence, self._end = np.searchsorted(rows, self.sequence), len(rows)

    def _keep_stale_rows_active(self) -> None:
        """Set the pass from which long active rows are active to this one: passes are counted modulo 256."""
        assert self.rows is not None
        now = np.uint8(self.passes % 256)
        for group in self.rows.groups:
            until = group.table("inactive_until")
            mine = until[self.sequence]
            mine[(mine - now).view(np.int8) < 0] = now
            until[self.sequence] = mine


def _copy_entries(rows: np.ndarray, source: CsrBlock, out: CsrBlock, at: int) -> None:
    for name in ("indices", "values"):
        column, copy = getattr(source, name), getattr(out, name)
        if column is not None:
            indptr, data = read_only(source.indptr), read_only(column.view(np.uint8))
            gather_entries(rows, indptr, column.itemsize, data, copy.view(np.uint8), at)


def _numbers(window: Window, first_rows: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """Return the numbers in the store of rows of a window."""
    begins = np.array([begin for begin, _end in window.row_ranges])
    firsts = np.array([first_rows[chunk] for chunk in window.chunks])
    places = np.searchsorted(begins, rows, side="right") - 1
    numbers: np.ndarray = rows - begins[places] + firsts[places]
    return numbers


def _ranks(block: CsrBlock, groups: Sequence[Group], rows: np.ndarray, passes: int) -> np.ndarray:
    """Return a rank of each row, larger if it is likely to change soon: the sum over all models."""
    total = np.zeros(len(rows), np.int32)
    boxes = np.float32(1) if block.weights is None else block.weights[rows]
    for group in groups:
        for column in range(len(group.models)):
            ahead = (group.table("inactive_until")[rows, column] - np.uint8(passes % 256)).view(np.int8)
            rank = np.int8(PERIODS[-1]) - np.maximum(ahead, 0)
            dual = np.abs(group.table("duals")[rows, column])
            rank[(dual > 0) & (dual < boxes)] = _INSIDE
            total += rank
    return total


def _heaviest(ranks: Sequence[np.ndarray], costs: Sequence[np.ndarray], capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which old and which new rows stay: those of the highest ranks that fit, of equal ranks the last ones.

    Rows of rank 0 do not stay: they are read again before they are active.
    """
    rank, cost = np.concatenate(ranks), np.concatenate(costs)
    bytes_of_rank = np.bincount(rank, cost)
    above = np.cumsum(bytes_of_rank[::-1])[::-1]
    least = int(np.searchsorted(-above, -capacity))  # the lowest rank of which all rows fit
    keep = rank >= least
    last = np.flatnonzero(rank == least - 1)[::-1]
    room = capacity - (above[least] if least < len(above) else 0.0)
    keep[last[np.cumsum(cost[last], dtype=np.float64) <= room]] = True
    keep &= rank > 0
    return keep[: len(ranks[0])], keep[len(ranks[0]) :]
