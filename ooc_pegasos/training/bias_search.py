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

_AT_ONCE = 33
_PASSES = 12
_CLOSE = 1e-7
_REACH = 9.0
_SIDE_BY_SIDE = 8
"""Biases that are tried in a pass: the width of a model panel."""
_MOST_ROUNDS = 80
_FARTHEST = 1e307


def best_bias(problem: Problem, model: int, weights: np.ndarray, windows: Callable[[], Iterator[Window]]) -> float:
    """Return the bias with the least loss for these weights: each pass tries 33 biases, ever closer together.

    The loss is convex in the bias, so once both neighbours of the best are hardly worse, no other bias is much better.
    """
    places, last = np.linspace(-_REACH, _REACH, _AT_ONCE), _AT_ONCE - 1
    best = 0.0
    for _ in range(_PASSES):
        offsets, sums = np.sinh(places), np.zeros(_AT_ONCE)  # at first from -4000 to 4000, close together around 0
        for window in windows():
            _add_losses(problem, model, weights, window, offsets, sums)
        least = np.flatnonzero(sums == sums.min())
        at = int(least[len(least) // 2])  # the middle of the biases without any loss
        best = float(offsets[at])
        if 0 < at < last and max(sums[at - 1], sums[at + 1]) - sums[at] <= _CLOSE * sums[at]:
            break
        # beyond an edge there may be a better one, as for targets in the millions
        first = places[at - 1] if at else places[0] - 2 * _REACH
        places = np.linspace(first, places[at + 1] if at < last else places[last] + 2 * _REACH, _AT_ONCE)
    return best


def settle_biases(state: RunState, engine: Engine) -> None:
    """Replace the biases that training has found by the best ones for the weights that are kept."""
    models, candidates = list(state.best), []
    for model in models:
        weights = state.best[model][:-1]
        candidates.append(np.append(weights, best_bias(state.problem, model, weights, engine.all_windows)))
    measurement = Measurement(state.problem, models, candidates)
    engine.measure(measurement)
    for objective, candidate in zip(measurement.result(), candidates, strict=True):
        known = state.known[objective.model]
        known.primal, known.apart = objective.primal, objective.apart
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
        heft = np.empty(0, np.float32) if block.weights is None else block.weights[chosen]
        class_weights = np.array(spec.class_weights)
        what = (class_weights, float(spec.one_class), problem.loss.number, problem.parameter)
        sum_losses_at(scores[chosen - begin], block.labels[chosen], heft, *what, offsets, sums)


class Search:
    """Search for the minimum over b of the optimum with the bias held at b, a convex function: eight biases a round.

    The optimum with a bias lies between the bound and the objective of its certificate. So the minimum is between two
    biases whose bounds are above the best objective. As long as there is no such bias on one side, the eight reach
    farther to that side, ever faster; then they close in between the two, until no neighbour of the best is certainly
    worse. `gave_up` is True if the search ended before that.
    """

    def __init__(self) -> None:
        self.gave_up = False
        self._rounds = 0
        self._low, self._high = -np.inf, np.inf
        self.offsets = tuple(np.linspace(-1.75, 1.75, _SIDE_BY_SIDE).tolist())

    def is_over(self, found: list[Certificate]) -> bool:
        """Take in the certificates of the offsets. Returns True at the end, else chooses new offsets."""
        self._rounds += 1
        primals = [one.primal for one in found]
        at = int(np.argmin(primals))
        best, least, most = self.offsets[at], self.offsets[0], self.offsets[-1]
        worse = [one.lower_bound is not None and one.lower_bound > primals[at] for one in found]
        far = [offset for offset, is_worse in zip(self.offsets, worse, strict=True) if is_worse]
        self._low = max([self._low, *(offset for offset in far if offset < best)])
        self._high = min([self._high, *(offset for offset in far if offset > best)])
        if primals[at] <= 0:  # nothing costs less, so there may be none that is worse
            return True
        if self._rounds >= _MOST_ROUNDS:
            self.gave_up = True
            return True
        if not np.isfinite([self._low, self._high]).all():
            reach = 2.0**self._rounds * (most - least)
            ends = max(self._low, least - reach, -_FARTHEST), min(self._high, most + reach, _FARTHEST)
            self.offsets = tuple(np.linspace(*ends, _SIDE_BY_SIDE).tolist())
            return False
        inside = 0 < at < len(primals) - 1
        if not any(worse[at - 1 : at + 2] if inside else worse):
            return True
        self.offsets = tuple(np.linspace(self._low, self._high, _SIDE_BY_SIDE + 2)[1:-1].tolist())
        return False
