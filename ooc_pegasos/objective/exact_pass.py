"""The objective (1) exactly, for several candidates at once, added up window by window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit import sums as kernels
from ooc_pegasos.compiled.fit.many import SCORE_ERROR, TWICE
from ooc_pegasos.compiled.fit.multiclass import sum_class_losses
from ooc_pegasos.compiled.fit.pegasos import NO_FREE
from ooc_pegasos.compiled.fit.sums import APART, APART_ERRORS, APART_ROWS, APART_SQUARES, SLOPES, SUMS_SIZE, TRAINING
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.lambda_path import Apart
from ooc_pegasos.objective.model_panel import fill_panel, new_panel, width_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.objective.rounding import TINY, UNIT, norm_above, raised
from ooc_pegasos.util.thread_map import ordered_map

# Entries; sums are added piece by piece, so they do not depend on the number of threads. Small data is cut as well.
_PIECE, _LEAST_PIECE, _SOME_PIECES = 1 << 22, 1 << 17, 4
_OPERATIONS = 64
"""Of the loss of a row, at most, and what is done with it."""
_ONE_BY_ONE = 3
"""Up to so many candidates are scored one after the other: a panel of eight costs as much."""


@dataclass(frozen=True)
class Objective:
    """Of one candidate of a model: the objective on the training rows, and what is known of those kept apart."""

    model: int
    primal: float
    """Rounded upward."""
    apart: Apart | None
    rounding: float = 0.0
    """By how much the objective may be lower than that."""


class Measurement:
    """Candidates of some models, and their sums of losses over the windows so far.

    Losses are measured at the worst scores within the rounding errors of scores, so that sums are never too low.
    Those of the models in `twice` are computed in twice the precision; all candidates are then scored one by one.
    """

    def __init__(
        self, problem: Problem, models: Sequence[int], candidates: Sequence[np.ndarray], twice: Collection[int] = ()
    ) -> None:
        self.models = list(models)
        self.candidates = list(candidates)
        self.twice = sorted(twice)
        self.sums = np.zeros((SUMS_SIZE, len(candidates)))
        self.windows = 0
        self._problem = problem
        one_by_one = bool(twice) or len(candidates) <= _ONE_BY_ONE
        width = len(candidates) if one_by_one else width_of(len(candidates))
        self._table = problem.table(self.models, width)
        self._errors = [self._score_error(number) for number in range(len(candidates))]
        self._table[SCORE_ERROR, : len(candidates)] = self._errors
        self._table[TWICE, : len(candidates)] = [model in self.twice for model in self.models]
        self._panel: np.ndarray | None = None

    def _score_error(self, number: int) -> float:
        """Bound the rounding error of a score: |sum of w_f x_f| is at most ||w|| ||x||, with or without signs."""
        problem, weights = self._problem, self.candidates[number]
        entries = problem.limits.entries + 4
        length = norm_above(problem.square(weights), len(weights)) * problem.limits.norm
        if problem.free != NO_FREE:
            length += abs(float(weights[-1])) * problem.bias
        error = ((entries * UNIT) ** 2 if self.models[number] in self.twice else entries * UNIT) * length
        return raised(error + 4 * UNIT * abs(problem.specs[self.models[number]].offset), entries)

    def add(self, window: Window, loader: Loader, threads: int, check: Callable[[], None]) -> None:
        """Pass over the rows of a window; `check` is called now and then and may raise, and then nothing is added."""
        score = self._kernel(window)

        def piece(row_ranges: list[tuple[int, int]]) -> np.ndarray:
            sums = np.zeros_like(self.sums)
            for begin, end in row_ranges:
                bad = score(begin, end, sums)
                if bad >= 0:
                    raise loader.damaged(window, bad)
            return sums

        total, work = self.sums.copy(), pieces(window)
        for sums in ordered_map(piece, work, min(threads, len(work))):
            check()
            total += sums
        self.sums = total
        self.windows += 1

    def _kernel(self, window: Window) -> Callable[[int, int, np.ndarray], int]:
        """Return the function that adds the losses of some rows of a window to sums."""
        problem, block, count = self._problem, window.block, len(self.candidates)
        weights = np.empty(0, np.float32) if block.weights is None else block.weights
        rows: tuple[Any, ...] = (*block.entries, block.labels, weights, window.folds)
        what: tuple[Any, ...] = (problem.loss.number, problem.parameter, problem.bias)
        if problem.costs is not None:
            return self._kernel_of_classes(rows)
        if self.twice or count <= _ONE_BY_ONE:
            stacked = np.stack(self.candidates)
            rest: tuple[Any, ...] = (*rows, *what, self._table, stacked)
            return lambda begin, end, sums: int(kernels.sum_losses(*(begin, end, *rest, sums)))
        if self._panel is None:
            self._panel = new_panel(problem.length, self._table.shape[1])
            fill_panel(self._panel, self._table.shape[1], self.candidates)
        rest = (*rows, *what, problem.features, self._table, count, self._panel)
        return lambda begin, end, sums: int(kernels.sum_losses_of_panel(*(begin, end, *rest, sums)))

    def _kernel_of_classes(self, rows: tuple[Any, ...]) -> Callable[[int, int, np.ndarray], int]:
        """The same for losses of all classes at once."""
        problem = self._problem
        what = (problem.costs, problem.loss.number, problem.bias, problem.features, problem.width)

        def score(begin: int, end: int, sums: np.ndarray) -> int:
            for number, (model, candidate) in enumerate(zip(self.models, self.candidates, strict=True)):
                spec = problem.specs[model]
                mine = (spec.fold, np.array(spec.class_weights))
                total = np.ascontiguousarray(sums[:, number])
                precision = (model in self.twice, self._errors[number])
                bad = sum_class_losses(*(begin, end, *rows, *mine, *what, *precision, candidate, total))
                if bad >= 0:
                    return int(bad)
                sums[:, number] = total
            return -1

        return score

    def result(self) -> list[Objective]:
        """The objective of each candidate, once all windows were added."""
        return [self._objective(number) for number in range(len(self.candidates))]

    def _objective(self, number: int) -> Objective:
        model, candidate, sums = self.models[number], self.candidates[number], self.sums[:, number]
        spec = self._problem.specs[model]
        primal = spec.lam / 2 * self._problem.square(candidate) + float(sums[TRAINING]) / spec.rows
        high = raised(primal, spec.rows + len(candidate) + _OPERATIONS)
        regularised = candidate if self._problem.free == NO_FREE else candidate[:-1]
        if high < TINY and regularised.any():
            high += TINY  # what underflow may have taken
        rounding = 2 * (high - primal) + self._errors[number] * float(sums[SLOPES]) / spec.rows
        rows = int(sums[APART_ROWS])
        if not rows:
            return Objective(model, high, None, rounding)
        mean = float(sums[APART]) / rows
        variance = max(float(sums[APART_SQUARES]) / rows - mean * mean, 0.0)
        error = float(sums[APART_ERRORS]) / rows if self._problem.loss.task != "regression" else None
        return Objective(model, high, Apart(mean, float(np.sqrt(variance / rows)), error, rows), rounding)


def pieces(window: Window) -> list[list[tuple[int, int]]]:
    """Cut the rows of a window into pieces of about the same number of entries, wherever its chunks begin.

    A piece is a list of row_ranges of rows, more than one if it goes over the end of a chunk.
    """
    indptr = window.block.indptr
    lengths = [int(indptr[end] - indptr[begin]) for begin, end in window.row_ranges]
    number = max(1, min(_SOME_PIECES, sum(lengths) // _LEAST_PIECE), -(-sum(lengths) // _PIECE))
    goals = [sum(lengths) * i // number for i in range(1, number)]
    found: list[list[tuple[int, int]]] = [[]]
    before = 0
    for (begin, end), length in zip(window.row_ranges, lengths, strict=True):
        while goals and goals[0] < before + length:
            cut = begin + int(np.searchsorted(indptr[begin : end + 1], indptr[begin] + goals.pop(0) - before))
            found[-1].append((begin, cut))
            found.append([])
            before, length, begin = before + int(indptr[cut] - indptr[begin]), int(indptr[end] - indptr[cut]), cut
        found[-1].append((begin, end))
        before += length
    return [[(begin, end) for begin, end in piece if end > begin] for piece in found]
