"""The exact objective (1) of several candidates, summed over windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit import sums as kernels
from ooc_pegasos.compiled.fit.multiclass import sum_class_losses
from ooc_pegasos.compiled.fit.panel_steps import COMPENSATED, SCORE_ERROR
from ooc_pegasos.compiled.fit.pegasos import NO_FREE_BIAS
from ooc_pegasos.compiled.fit.sums import (
    HOLDOUT_ERRORS,
    HOLDOUT_LOSS,
    HOLDOUT_ROWS,
    HOLDOUT_SQUARES,
    SLOPES,
    SUMS_SIZE,
    TRAINING,
)
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.lambda_path import HoldoutLoss
from ooc_pegasos.objective.model_panel import fill_panel, new_panel, width_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.objective.rounding import TINY, UNIT_ROUNDOFF, norm_upper_bound, rounded_up
from ooc_pegasos.util.thread_map import ordered_map

# Entries of a piece; pieces are added in order, so sums do not depend on the number of threads.
_PIECE, _MIN_PIECE, _MIN_PIECES = 1 << 22, 1 << 17, 4
_OPERATIONS = 64
"""Upper bound of the number of operations for the loss of a row."""
_MAX_SEPARATE = 3
"""Up to this many candidates are scored separately: a panel of eight costs as much."""


@dataclass(frozen=True)
class Objective:
    """Objective of a candidate on the training rows, and its holdout loss."""

    model: int
    primal: float
    """Rounded upward."""
    holdout: HoldoutLoss | None
    rounding: float = 0.0
    """Bound on the rounding error of `primal`."""


class Measurement:
    """Candidates of some models, and their sums of losses over the windows so far.

    Losses are measured at the worst scores within their rounding errors, so sums are never too low. Scores of the
    models in `compensated` are computed in double-double precision; then all candidates are scored separately.
    """

    def __init__(
        self,
        problem: Problem,
        models: Sequence[int],
        candidates: Sequence[np.ndarray],
        compensated: Collection[int] = (),
    ) -> None:
        self.models = list(models)
        self.candidates = list(candidates)
        self.compensated = sorted(compensated)
        self.sums = np.zeros((SUMS_SIZE, len(candidates)))
        self.windows = 0
        self._problem = problem
        separately = bool(compensated) or len(candidates) <= _MAX_SEPARATE
        width = len(candidates) if separately else width_of(len(candidates))
        self._table = problem.table(self.models, width)
        self._errors = [self._score_error(number) for number in range(len(candidates))]
        self._table[SCORE_ERROR, : len(candidates)] = self._errors
        self._table[COMPENSATED, : len(candidates)] = [model in self.compensated for model in self.models]
        self._panel: np.ndarray | None = None

    def _score_error(self, number: int) -> float:
        """Bound the rounding error of a score: |sum of w_f x_f| is at most ||w|| ||x||, with or without signs."""
        problem, weights = self._problem, self.candidates[number]
        entries = problem.limits.entries + 4
        length = norm_upper_bound(problem.square(weights), len(weights)) * problem.limits.norm
        if problem.free != NO_FREE_BIAS:
            length += abs(float(weights[-1])) * problem.bias
        error = (
            (entries * UNIT_ROUNDOFF) ** 2 if self.models[number] in self.compensated else entries * UNIT_ROUNDOFF
        ) * length
        return rounded_up(error + 4 * UNIT_ROUNDOFF * abs(problem.specs[self.models[number]].offset), entries)

    def add(self, window: Window, loader: Loader, threads: int, check: Callable[[], None]) -> None:
        """Pass over the rows of a window; `check` is called regularly; if it raises, nothing is added."""
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
        rows: tuple[Any, ...] = (*block.arrays, window.folds)
        what: tuple[Any, ...] = (problem.loss.number, problem.parameter, problem.bias)
        if problem.costs is not None:
            return self._kernel_of_classes(rows)
        if self.compensated or count <= _MAX_SEPARATE:
            stacked = np.stack(self.candidates)
            rest: tuple[Any, ...] = (*rows, *what, self._table, stacked)
            return lambda begin, end, sums: int(kernels.sum_losses(*(begin, end, *rest, sums)))
        if self._panel is None:
            self._panel = new_panel(problem.length, self._table.shape[1])
            fill_panel(self._panel, self._table.shape[1], self.candidates)
        rest = (*rows, *what, problem.features, self._table, count, self._panel)
        return lambda begin, end, sums: int(kernels.sum_losses_of_panel(*(begin, end, *rest, sums)))

    def _kernel_of_classes(self, rows: tuple[Any, ...]) -> Callable[[int, int, np.ndarray], int]:
        """Return the same function for joint multiclass losses."""
        problem = self._problem
        what = (problem.costs, problem.loss.number, problem.bias, problem.features, problem.width)

        def score(begin: int, end: int, sums: np.ndarray) -> int:
            for number, (model, candidate) in enumerate(zip(self.models, self.candidates, strict=True)):
                spec = problem.specs[model]
                mine = (spec.fold, np.array(spec.class_weights))
                total = np.ascontiguousarray(sums[:, number])
                precision = (model in self.compensated, self._errors[number])
                bad = sum_class_losses(*(begin, end, *rows, *mine, *what, *precision, candidate, total))
                if bad >= 0:
                    return int(bad)
                sums[:, number] = total
            return -1

        return score

    def result(self) -> list[Objective]:
        """Return the objective of each candidate after all windows."""
        return [self._objective(number) for number in range(len(self.candidates))]

    def _objective(self, number: int) -> Objective:
        model, candidate, sums = self.models[number], self.candidates[number], self.sums[:, number]
        spec = self._problem.specs[model]
        primal = spec.lam / 2 * self._problem.square(candidate) + float(sums[TRAINING]) / spec.rows
        upper = rounded_up(primal, spec.rows + len(candidate) + _OPERATIONS)
        regularised = candidate if self._problem.free == NO_FREE_BIAS else candidate[:-1]
        if upper < TINY and regularised.any():
            upper += TINY  # bound on underflow
        rounding = 2 * (upper - primal) + self._errors[number] * float(sums[SLOPES]) / spec.rows
        rows = int(sums[HOLDOUT_ROWS])
        if not rows:
            return Objective(model, upper, None, rounding)
        mean = float(sums[HOLDOUT_LOSS]) / rows
        variance = max(float(sums[HOLDOUT_SQUARES]) / rows - mean * mean, 0.0)
        error = float(sums[HOLDOUT_ERRORS]) / rows if self._problem.loss.task != "regression" else None
        return Objective(model, upper, HoldoutLoss(mean, float(np.sqrt(variance / rows)), error, rows), rounding)


def pieces(window: Window) -> list[list[tuple[int, int]]]:
    """Cut the rows of a window into pieces of about the same number of entries.

    A piece is a list of ranges of rows: several if it spans the end of a chunk.
    """
    indptr = window.block.indptr
    lengths = [int(indptr[end] - indptr[begin]) for begin, end in window.row_ranges]
    number = max(1, min(_MIN_PIECES, sum(lengths) // _MIN_PIECE), -(-sum(lengths) // _PIECE))
    targets = [sum(lengths) * i // number for i in range(1, number)]
    found: list[list[tuple[int, int]]] = [[]]
    before = 0
    for (begin, end), length in zip(window.row_ranges, lengths, strict=True):
        while targets and targets[0] < before + length:
            cut = begin + int(np.searchsorted(indptr[begin : end + 1], indptr[begin] + targets.pop(0) - before))
            found[-1].append((begin, cut))
            found.append([])
            before, length, begin = before + int(indptr[cut] - indptr[begin]), int(indptr[end] - indptr[cut]), cut
        found[-1].append((begin, end))
        before += length
    return [[(begin, end) for begin, end in piece if end > begin] for piece in found]
