"""Biases that are not regularised: the best one for given weights, and an outer search (section 6 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ooc_pegasos.kernels.panel import sum_losses_at
from ooc_pegasos.kernels.pegasos import score_rows
from ooc_pegasos.loading import Window
from ooc_pegasos.problem import Problem

_AT_ONCE = 33
_PASSES = 6
_SIDE_BY_SIDE = 8
"""Biases that are tried in a pass: as many as stand side by side in a panel."""
_MOST_ROUNDS = 30


def best_bias(problem: Problem, model: int, weights: np.ndarray, windows: Callable[[], Iterator[Window]]) -> float:
    """The bias with the least loss for these weights: passes that try 33 of them each, ever closer together."""
    offsets = np.sinh(np.linspace(-9.0, 9.0, _AT_ONCE))  # from -4000 to 4000, close together around 0
    best = 0.0
    for _ in range(_PASSES):
        sums = np.zeros(_AT_ONCE)
        for window in windows():
            _add_losses(problem, model, weights, window, offsets, sums)
        at = int(np.argmin(sums))
        best = float(offsets[at])
        offsets = np.linspace(offsets[max(at - 1, 0)], offsets[min(at + 1, _AT_ONCE - 1)], _AT_ONCE)
    return best


def _add_losses(
    problem: Problem, model: int, weights: np.ndarray, window: Window, offsets: np.ndarray, sums: np.ndarray
) -> None:
    spec, block = problem.specs[model], window.block
    for begin, end in window.stretches:
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
    """The minimum over b of the least objective with the bias held at b, which is convex: eight biases a round.

    Each round spreads eight between the neighbours of the best so far, or goes on beyond it if it stands at the edge,
    until the neighbours are no worse than the tolerance.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._rounds = 0
        self.offsets = tuple(np.linspace(-1.75, 1.75, _SIDE_BY_SIDE).tolist())

    def is_over(self, primals: list[float]) -> bool:
        """Judge the objectives found with the offsets, and choose new ones unless that is the end."""
        self._rounds += 1
        at = int(np.argmin(primals))
        if self._rounds >= _MOST_ROUNDS:
            return True
        if at in (0, len(primals) - 1):
            width = self.offsets[-1] - self.offsets[0]
            middle = self.offsets[at] + (width if at else -width)
            self.offsets = tuple((middle + np.linspace(-1.5, 1.5, _SIDE_BY_SIDE) * width).tolist())
            return False
        if max(primals[at - 1], primals[at + 1]) - primals[at] <= self._tolerance * primals[at]:
            return True
        self.offsets = tuple(np.linspace(self.offsets[at - 1], self.offsets[at + 1], _SIDE_BY_SIDE + 2)[1:-1].tolist())
        return False
