"""Dual vectors that fulfil the constraint of an unregularised bias: equation (10) of the README.

With a bias b that is not regularised, the dual variables of all rows have to add up to 0. Dual variables that nearly do
are repaired by mixing in a little of a vector that leans to the other side: the same part of the box for all rows of
one class, or for all rows. The dual objective is concave, so the mixture has at least the mixture of the values. All
that is needed of the rows are their sums by class and fold, found in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.checkpoint import take
from ooc_pegasos.kernels.losses import ABSOLUTE, EPSILON_INSENSITIVE, HINGE, HUBER, LOGISTIC, dual_at
from ooc_pegasos.kernels.pegasos import square
from ooc_pegasos.kernels.sums import sum_rows
from ooc_pegasos.loading import Window
from ooc_pegasos.problem import NONE, Problem

_ONE_CLASS = 40.0
"""The size of the bias where all rows are of one class: more changes nothing in float64."""
_LINEAR = (HINGE, EPSILON_INSENSITIVE, ABSOLUTE)


@dataclass(frozen=True)
class Direction:
    """A dual vector of all rows of a model: the sum of b_i x_i, of b_i, and of what rows add to the dual."""

    vector: np.ndarray
    mass: float
    value: float


class RowSums:
    """Sums of c x, c, c y and c y^2 over the rows of each class and fold."""

    def __init__(self, classes: int, folds: int, features: int) -> None:
        self.classes, self.folds = classes, folds
        self.vectors = np.zeros((classes * folds, features))
        self.sums = np.zeros((classes * folds, 3))

    @classmethod
    def of(cls, problem: Problem, classes: int, folds: int | None) -> RowSums:
        """Sums of no rows; `classes` is 0 for real targets, else the number of classes."""
        return cls(max(classes, 1), max(folds or 0, 2), problem.features)

    def add(self, window: Window) -> None:
        """Add the rows of a window."""
        block = window.block
        weights = np.empty(0, np.float32) if block.weights is None else block.weights
        for begin, end in window.stretches:
            rows = (begin, end, *block.entries, block.labels, weights, window.folds)
            sum_rows(*rows, self.classes, self.folds, self.vectors, self.sums)

    def __add__(self, other: RowSums) -> RowSums:
        total = RowSums(self.classes, self.folds, 0)
        total.vectors, total.sums = self.vectors + other.vectors, self.sums + other.sums
        return total


class Lines:
    """Lower bounds `height - mass b` on the least objective with the bias held at b, from dual vectors of any mass.

    The largest of two, of which one rises with b and one falls, is least where they cross: that is a lower bound for all
    biases, and the one of the mixture of both dual vectors whose mass is 0. The pair that crosses highest is kept.
    """

    def __init__(self) -> None:
        self.numbers = np.array([-np.inf, 0.0, -np.inf, 0.0])
        """(height, mass) of the line that falls with b, and of the one that rises."""

    def restore(self, arrays: dict[str, np.ndarray], name: str) -> None:
        """Take the lines of a checkpoint."""
        self.numbers[:] = take(arrays, name, self.numbers)

    def add(self, height: float, mass: float, bias: float) -> float:
        """Add a line, and return the lower bound for all biases, -inf if there is none yet."""
        line = np.array([height, mass])
        mine, other = self.numbers[:2], self.numbers[2:]
        if mass < 0:
            mine, other = other, mine
        before, now = _crossing(mine, other), _crossing(line, other)
        if now > before or (now == before and height - mass * bias > mine[0] - mine[1] * bias):
            mine[:] = line
        return max(before, now)


def _crossing(one: np.ndarray, other: np.ndarray) -> float:
    """The height at which two lines cross, one of mass 0 alone being its own."""
    if one[1] == 0.0:
        return float(one[0])
    if not np.isfinite([one[0], other[0]]).all() or one[1] * other[1] > 0:
        return -np.inf
    return float((one[0] * other[1] - other[0] * one[1]) / (other[1] - one[1]))


def _best_part(gain: float, cost: float) -> float:
    """The t in [0, 1] for which t gain - t^2 cost / 2 is largest."""
    return min(max(gain, 0.0) / cost, 1.0) if cost else 1.0


class Balance:
    """For each model of a problem, dual vectors to repair others with."""

    def __init__(self, problem: Problem, found: RowSums) -> None:
        self._problem, self._found = problem, found
        self._known: dict[tuple[int, int], Direction] = {}

    def _of_rows(self, model: int, wanted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The sums over the training rows of some classes."""
        found, spec = self._found, self._problem.specs[model]
        groups = [k * found.folds + fold for k in wanted for fold in range(found.folds) if fold != spec.fold]
        return found.vectors[groups].sum(axis=0), found.sums[groups].sum(axis=0)

    def _classes(self, model: int, sign: int) -> list[int]:
        """The classes whose rows have dual variables of a sign."""
        one_class, classes = self._problem.specs[model].one_class, range(self._found.classes)
        if self._problem.loss.task == "regression":
            return [0]
        if one_class == NONE:
            return [1] if sign > 0 else [0]
        return [k for k in classes if (k == one_class) == (sign > 0)]

    def direction(self, model: int, sign: int) -> Direction:
        """The dual vector whose variables have all this sign."""
        if (model, sign) not in self._known:
            problem, spec = self._problem, self._problem.specs[model]
            vector, (c, cy, _cyy) = self._of_rows(model, self._classes(model, sign))
            number, parameter = problem.loss.number, problem.parameter
            share = 1.0 if number in _LINEAR else parameter if number == HUBER else 0.5
            if problem.loss.task == "regression":
                value = share * sign * cy + c * dual_at(number, parameter, 0.0, share * sign)
            else:
                weight = spec.class_weights[sign > 0]
                vector, c = weight * vector, weight * c
                value = c * dual_at(number, parameter, float(sign), share * sign)
            vector *= share * sign
            self._known[model, sign] = Direction(vector, float(share * sign * c), float(value))
        return self._known[model, sign]

    def repair(self, model: int, vector: np.ndarray, mass: float, value: float) -> tuple[float, float]:
        """(what rows add to the dual, ||vector||^2) of a dual vector with this mass, once its mass is made 0.

        All three are sums over the training rows, as those of `direction`. Gives (0, 0), which is the dual vector 0,
        if there are no rows to balance with.
        """
        if mass == 0.0:
            return value, square(vector)
        other = self.direction(model, -1 if mass > 0 else 1)
        if other.mass == 0.0:
            return 0.0, 0.0
        part = mass / (mass - other.mass)
        mixed = (1.0 - part) * vector
        mixed += part * other.vector
        return (1.0 - part) * value + part * other.value, square(mixed)

    def bound(self, model: int, vector: np.ndarray, mass: float, value: float, bias: float, lines: Lines) -> float:
        """The best lower bound on the optimum from a dual vector near the bias `bias`, and from those before."""
        spec = self._problem.specs[model]
        gain, norm = self.repair(model, vector, mass, value)
        cost = norm / spec.clock
        part = _best_part(gain, cost)
        repaired = part * gain - part * part * cost / 2
        cost = square(vector) / spec.clock
        part = _best_part(value - bias * mass, cost)
        height = part * value - part * part * cost / 2
        return max(repaired / spec.rows, lines.add(height / spec.rows, part * mass / spec.rows, bias), 0.0)

    def first_bias(self, model: int) -> float:
        """A bias to begin with: that of a model without weights, more or less."""
        problem, spec = self._problem, self._problem.specs[model]
        if problem.loss.task == "regression":
            _vector, (c, cy, _cyy) = self._of_rows(model, [0])
            return float(cy / c) if c else 0.0
        odds = [
            float(self._of_rows(model, self._classes(model, sign))[1][0]) * spec.class_weights[sign > 0]
            for sign in (1, -1)
        ]
        if not all(odds):
            return _ONE_CLASS * (1.0 if odds[0] else -1.0)
        if problem.loss.number != LOGISTIC:
            return (odds[0] - odds[1]) / (odds[0] + odds[1])
        return float(np.log(odds[0] / odds[1]))
