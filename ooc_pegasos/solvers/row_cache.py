"""Active rows that stay in memory while a store larger than memory is read.

From disk the number of reads decides, not the number of visits of a row. So each window is processed several times,
together with rows of earlier windows whose dual variables still change: those inside their box, and those with a score
near the bound where they would begin to move. The states of these rows are in the cache alone until they leave it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.sdca import PERIODS
from ooc_pegasos.compiled.rows.gather import gather_entries
from ooc_pegasos.compiled.rows.shuffle import shuffle
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import ROW_BYTES, Window
from ooc_pegasos.solvers.row_group import MAX_SEPARATE, Group
from ooc_pegasos.store.csr_block import CsrBlock

PASSES = 4
"""Passes over a window and cached rows each time that the window is read, at most."""
_WORK, _WORK_OF_MANY = (4, 4), (3, 3)
"""Passes, and cached rows that are visited in a pass for each row of the window; fewer for many models, whose steps
take longer than reading."""
_SHARE = 0.75
"""Share of the memory for the cache; the rest is for two windows."""
_PADDING = 64
WINDOW = -1
"""Stands for the rows of the window, where others are those of a chunk."""
_INSIDE = PERIODS[-1] + 1
"""Rank of a row whose dual variable is inside its box."""


@dataclass
class CachedRows(Window):
    """Some rows of a chunk, and their states."""

    numbers: np.ndarray
    """Numbers of the rows in the store."""
    groups: list[Group]
    inverses: np.ndarray
    passes: int = 0
    """Passes over these rows, by which the activity of rows is counted."""
    is_settled: bool = False
    """True if their gap was small in the last pass."""

    def without(self, keep: np.ndarray) -> CachedRows:
        """Return the rows that stay."""
        rows = np.flatnonzero(keep)
        groups = [group.of(rows) for group in self.groups]
        made = cached_rows(self, self.chunks, rows, self.numbers[rows], groups, self.inverses[rows], self.passes)
        made.is_settled = self.is_settled
        return made


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


def cached_rows(
    window: Window,
    chunks: tuple[int, ...],
    rows: np.ndarray,
    numbers: np.ndarray,
    groups: list[Group],
    inverses: np.ndarray,
    passes: int,
) -> CachedRows:
    """Return copies of some rows of a window."""
    block = window.block
    lengths = block.indptr[rows + 1] - block.indptr[rows]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    indices = _gathered(rows, block.indptr, block.indices, int(indptr[-1]))
    values = None if block.values is None else _gathered(rows, block.indptr, block.values, int(indptr[-1]))
    weights = None if block.weights is None else block.weights[rows]
    copied = CsrBlock(indptr, indices, values, block.labels[rows], block.features, weights, block.levels)
    folds = window.folds[rows] if len(window.folds) else window.folds
    order = np.arange(len(rows), dtype=np.uint32)
    return CachedRows(chunks, copied, [(0, len(rows))], folds, order, numbers, groups, inverses, passes)


def _gathered(rows: np.ndarray, indptr: np.ndarray, column: np.ndarray, size: int) -> np.ndarray:
    made = np.zeros(size + _PADDING, column.dtype)
    kind = f"u{made.itemsize}"  # values are copied as bits
    gather_entries(rows, indptr, column.view(kind), made.view(kind))
    return made


def capacity_of(loader: Loader) -> int:
    """Return the bytes for cached rows."""
    budget = loader.shape.budget + loader.reserved
    return budget - max(loader.shape.min_budget, int((1 - _SHARE) * budget))


class RowCache:
    """The cached rows of each chunk, those that came last at the end."""

    def __init__(self, loader: Loader, models: int) -> None:
        self.capacity = capacity_of(loader)
        self._loader = loader
        self._passes, self._visits = _WORK if models <= MAX_SEPARATE else _WORK_OF_MANY
        loader.reserve(self.capacity)
        self.rows: dict[int, CachedRows] = {}
        self.script: list[tuple[int, int]] = []
        """(pass, chunk or -1 for the window) of the pieces that are processed while a window is in memory."""
        self.is_settled = False
        """True if the gap of the window was small in the last pass."""
        self.wanted: list[tuple[int, int, bool, np.ndarray]] = []
        """(chunk, passes, is_settled, row numbers) of rows that an interrupted run had cached."""

    def close(self) -> None:
        """Leave the memory to windows."""
        self.rows = {}
        self._loader.reserve(0)

    def piece(self, window: Window, index: int, seed: Sequence[int], once: bool) -> Piece | None:
        """Return a piece of the work while a window is in memory; None if all is done.

        Each pass goes over the window, and over cached rows of some chunks. There is another pass while the gap of the
        window is large; with `once` there is one pass over the window alone. `script` has the pieces of the passes that
        were begun, so that a resumed run repeats them.
        """
        if index == 0:
            self.script = []
        if index == len(self.script):
            number = self.script[-1][0] + 1 if self.script else 0
            if number == (1 if once else self._passes) or (number and self.is_settled):
                return None
            self.script.append((number, WINDOW))
            room = 0 if once else self._visits * len(window.order)
            order = np.random.default_rng([*seed, index]).permutation(sorted(self.rows))
            for chunk in order.tolist():
                if room > 0 and not self.rows[chunk].is_settled:
                    self.script.append((number, chunk))
                    room -= len(self.rows[chunk].numbers)
        number, chunk = self.script[index]
        rows = window if chunk == WINDOW else self.rows[chunk]
        order = rows.order.copy()
        if number or chunk != WINDOW:
            shuffle(order, np.random.SeedSequence([*seed, index]).generate_state(4, np.uint64))
        return Piece(dataclasses.replace(rows, order=order), number)

    def finish(self, piece: Piece, is_settled: bool) -> None:
        """Note that all rows of a piece were processed; `is_settled` if their gap is small."""
        if isinstance(piece.window, CachedRows):
            rows = self.rows[piece.window.chunks[0]]
            rows.passes, rows.is_settled = rows.passes + 1, is_settled
        else:
            self.is_settled = is_settled

    def take(self, chunks: Iterable[int]) -> list[CachedRows]:
        """Remove the rows of some chunks, and return them."""
        return [self.rows.pop(chunk) for chunk in chunks if chunk in self.rows]

    def exchange(
        self, window: Window, first_rows: Sequence[int], groups: list[Group], inverses: np.ndarray
    ) -> list[CachedRows]:
        """Take the most active rows of a window instead of less active ones, and return those that leave."""
        new: list[tuple[int, np.ndarray]] = []
        order = np.unique(window.order)
        for chunk, (begin, end) in zip(window.chunks, window.row_ranges, strict=True):
            new.append((chunk, order[np.searchsorted(order, begin) : np.searchsorted(order, end)].astype(np.int64)))
        old = list(self.rows.values())
        ranks = [_ranks(one.groups, one.passes, one.block) for one in old]
        costs = [_costs(one.block, slice(None), one.groups) for one in old]
        passes = self.script[-1][0] + 1
        all_ranks = _ranks(groups, passes, window.block)
        ranks += [all_ranks[rows] for _chunk, rows in new]
        costs += [_costs(window.block, rows, groups) for _chunk, rows in new]
        kept = _heaviest(ranks, costs, self.capacity)
        left: list[CachedRows] = []
        for one, keep in zip(old, kept, strict=False):
            if not keep.all():
                left.append(one)
                del self.rows[one.chunks[0]]
                if keep.any():
                    self.rows[one.chunks[0]] = one.without(keep)
        for (chunk, rows), keep, (begin, _end) in zip(new, kept[len(old) :], window.row_ranges, strict=True):
            chosen = rows[keep]
            if len(chosen):
                states = [group.of(chosen) for group in groups]
                numbers = first_rows[chunk] + chosen - begin
                made = cached_rows(window, (chunk,), chosen, numbers, states, inverses[chosen], passes)
                self.rows[chunk] = made
        return left

    def forget_activity(self) -> None:
        """Make all rows active."""
        for one in self.rows.values():
            one.passes, one.is_settled = one.passes + PERIODS[-1], False

    def read_again(self, window: Window, first_rows: Sequence[int]) -> None:
        """Take the wanted rows of a window, without their states."""
        wanted = {one[0]: one for one in self.wanted}
        for chunk, (begin, _end) in zip(window.chunks, window.row_ranges, strict=True):
            if chunk in wanted:
                _chunk, passes, is_settled, numbers = wanted[chunk]
                rows = numbers - first_rows[chunk] + begin
                found = cached_rows(window, (chunk,), rows, numbers, [], np.empty(0, np.float32), passes)
                found.is_settled = is_settled
                self.rows[chunk] = found

    def facts(self) -> tuple[dict[str, Any], np.ndarray]:
        """Return facts for a checkpoint, and the numbers of all cached rows."""
        known = [(chunk, one.passes, one.is_settled, one.numbers) for chunk, one in self.rows.items()]
        known = self.wanted or known
        numbers = [one[-1] for one in known]
        chunks = [[*one[:-1], len(one[-1])] for one in known]
        facts = {"chunks": chunks, "script": self.script, "settled": self.is_settled}
        return facts, np.concatenate(numbers) if numbers else np.empty(0, np.int64)


def _ranks(groups: Sequence[Group], passes: int, block: CsrBlock) -> np.ndarray:
    """Return a rank of each row, larger if it is likely to change soon: the sum over all models."""
    total = np.zeros(block.rows, np.int64)
    boxes = np.ones(block.rows, np.float32) if block.weights is None else block.weights
    for group in groups:
        duals = np.abs(group.duals.reshape(-1, group.width)[:, : len(group.models)])
        until = group.inactive_until.reshape(-1, group.width)[:, : len(group.models)]
        ahead = (until - np.uint8(passes % 256)).view(np.int8)
        rank = PERIODS[-1] - np.maximum(ahead, 0).astype(np.int64)
        rank[(duals > 0) & (duals < boxes[:, None])] = _INSIDE
        total += rank.sum(axis=1)
    return total


def _costs(block: CsrBlock, rows: Any, groups: Sequence[Group]) -> np.ndarray:
    """Return the bytes of rows in the cache."""
    entry = block.indices.itemsize + (0 if block.values is None else block.values.itemsize)
    states = sum(group.width * (group.duals.itemsize + group.inactive_until.itemsize) for group in groups)
    lengths: np.ndarray = np.diff(block.indptr)[rows]
    return lengths * entry + (ROW_BYTES + states + 16)


def _heaviest(ranks: list[np.ndarray], costs: list[np.ndarray], capacity: int) -> list[np.ndarray]:
    """Return which rows stay: those of the highest ranks that fit, of equal ranks the last ones."""
    most = max((int(one.max(initial=0)) for one in ranks), default=0)
    bytes_of_rank = np.zeros(most + 1)
    for rank, cost in zip(ranks, costs, strict=True):
        bytes_of_rank += np.bincount(rank, cost, most + 1)
    above = np.cumsum(bytes_of_rank[::-1])[::-1]
    least = int(np.searchsorted(-above, -capacity))  # the lowest rank of which all rows fit
    kept = [rank >= least for rank in ranks]
    room = capacity - (above[least] if least <= most else 0.0)
    for rank, cost, keep in zip(ranks[::-1], costs[::-1], kept[::-1], strict=True):
        rows = np.flatnonzero(rank == least - 1)[::-1]
        fit = rows[np.cumsum(cost[rows]) <= room]
        keep[fit] = True
        room -= int(cost[fit].sum())
        if len(fit) < len(rows):
            break
    return kept
