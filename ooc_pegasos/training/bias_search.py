"""Unregularized biases: the best bias for given weights, and an outer search (section 6 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import score_rows
from ooc_pegasos.compiled.fit.sums import sum_losses_at
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.scoring.model import Certificate
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.state import RunState

_GRID_SIZE = 33
_PASSES = 12
_RELATIVE_TOLERANCE = 1e-7
_GRID_REACH = 9.0
_BIASES_PER_ROUND = 8
"""Biases in a round: the width of a model panel."""
_MAX_ROUNDS = 80
_MAX_BIAS = 1e307


def best_bias(problem: Problem, model: int, weights: np.ndarray, windows: Callable[[], Iterator[Window]]) -> float:
    """Return the bias with the smallest loss for these weights, by a grid of 33 biases that is refined in each pass.

    The loss is convex in the bias, so once both neighbours of the best bias are hardly worse, no other is much better.
    """
    grid, last = np.linspace(-_GRID_REACH, _GRID_REACH, _GRID_SIZE), _GRID_SIZE - 1
    best = 0.0
    for _ in range(_PASSES):
        offsets, sums = np.sinh(grid), np.zeros(_GRID_SIZE)  # first from -4000 to 4000, denser around 0
        for window in windows():
            _add_losses(problem, model, weights, window, offsets, sums)
        least = np.flatnonzero(sums == sums.min())
        at = int(least[len(least) // 2])  # the middle of several minima
        best = float(offsets[at])
        if 0 < at < last and max(sums[at - 1], sums[at + 1]) - sums[at] <= _RELATIVE_TOLERANCE * sums[at]:
            break
        # at an edge the grid is extended, as for targets in the millions
        first = grid[at - 1] if at else grid[0] - 2 * _GRID_REACH
        grid = np.linspace(first, grid[at + 1] if at < last else grid[last] + 2 * _GRID_REACH, _GRID_SIZE)
    return best


def optimize_biases(state: RunState, engine: Engine) -> None:
    """Replace the biases by the best ones for the weights of each model."""
    models, candidates = list(state.best), []
    for model in models:
        weights = state.best[model][:-1]
        candidates.append(np.append(weights, best_bias(state.problem, model, weights, engine.all_windows)))
    measurement = Measurement(state.problem, models, candidates)
    engine.measure(measurement)
    for objective, candidate in zip(measurement.result(), candidates, strict=True):
        progress = state.progress[objective.model]
        progress.primal, progress.holdout = objective.primal, objective.holdout
        state.best[objective.model] = candidate


def _add_losses(
    problem: Problem, model: int, weights: np.ndarray, window: Window, offsets: np.ndarray, sums: np.ndarray
) -> None:
    spec, block = problem.specs[model], window.block
    for begin, end in window.row_ranges:
        scores = np.empty(end - begin)
        score_rows(begin, end, *block.entries, weights, scores)
        chosen = np.arange(begin, end)
        if len(window.folds):
            chosen = chosen[window.folds[begin:end] != spec.fold]
        row_weights = np.empty(0, np.float32) if block.weights is None else block.weights[chosen]
        class_weights = np.array(spec.class_weights)
        loss_arguments = (class_weights, float(spec.one_class), problem.loss.number, problem.parameter)
        sum_losses_at(scores[chosen - begin], block.labels[chosen], row_weights, *loss_arguments, offsets, sums)


class BiasSearch:
    """Minimise over b the optimum with the bias fixed at b, a convex function, with eight biases per round.

    The optimum for a bias lies between the bound and the objective of its certificate, so the minimum is between two
    biases whose bounds are above the best objective. The bracket grows exponentially until both sides have such a bias;
    then it shrinks until no neighbour of the best bias is certainly worse. `gave_up` is True if the search ended before
    that.
    """

    def __init__(self) -> None:
        self.gave_up = False
        self._rounds = 0
        self._low, self._high = -np.inf, np.inf
        self.offsets = tuple(np.linspace(-1.75, 1.75, _BIASES_PER_ROUND).tolist())

    def is_over(self, found: list[Certificate]) -> bool:
        """Update the bracket with the certificates of the offsets. Returns True at the end, else sets new offsets."""
        self._rounds += 1
        primals = [one.primal for one in found]
        at = int(np.argmin(primals))
        best, least, most = self.offsets[at], self.offsets[0], self.offsets[-1]
        worse = [one.lower_bound is not None and one.lower_bound > primals[at] for one in found]
        far = [offset for offset, is_worse in zip(self.offsets, worse, strict=True) if is_worse]
        self._low = max([self._low, *(offset for offset in far if offset < best)])
        self._high = min([self._high, *(offset for offset in far if offset > best)])
        if primals[at] <= 0:  # the minimum of any loss
            return True
        if self._rounds >= _MAX_ROUNDS:
            self.gave_up = True
            return True
        if not np.isfinite([self._low, self._high]).all():
            reach = 2.0**self._rounds * (most - least)
            ends = max(self._low, least - reach, -_MAX_BIAS), min(self._high, most + reach, _MAX_BIAS)
            self.offsets = tuple(np.linspace(*ends, _BIASES_PER_ROUND).tolist())
            return False
        inside = 0 < at < len(primals) - 1
        if not any(worse[at - 1 : at + 2] if inside else worse):
            return True
        self.offsets = tuple(np.linspace(self._low, self._high, _BIASES_PER_ROUND + 2)[1:-1].tolist())
        return False
