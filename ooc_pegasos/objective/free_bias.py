"""Lower bounds where the bias is not regularised: equations (9) to (11) of the README.

The dual problem then has one more constraint: the dual variables of all rows, b_i, have to add up to 0. Training finds
dual vectors whose sum, their mass, is nearly 0. Two ways lead from there to a bound, both by the concavity of the dual
objective, and each bound is the best of both:

- A dual vector is repaired by mixing in a little of another that leans to the other side: the same part of the box for
  all rows of one class, or for all rows. For that sums of rows by class and fold are found in one pass.
- `Lines` mixes two dual vectors that training has met, of masses of opposite signs. Only their masses and objectives
  are needed, so no vector is kept, unless a proof is wanted.

Everything was computed in float64, so bounds on rounding errors go with all sums, and bounds are rounded downward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ooc_pegasos.compiled.fit.losses import dual_at
from ooc_pegasos.compiled.fit.pegasos import square
from ooc_pegasos.compiled.fit.sums import sum_rows
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import Bound, best_part
from ooc_pegasos.objective.problem import NONE, Problem
from ooc_pegasos.objective.rounding import UNIT, norm_above, raised, sum_error, vector_error
from ooc_pegasos.util.checkpoint import take

_ONE_CLASS = 40.0
"""The size of the bias where all rows are of one class: more changes nothing in float64."""
_OPERATIONS = 32
"""Of a bound, at most, once all sums are known."""
FALLING, RISING = range(2)
"""Lines, by how they change with the bias: those of dual vectors whose mass is positive fall."""


@dataclass(frozen=True)
class BalancedBound(Bound):
    """A bound where the bias is not regularised, and what makes up the dual vector behind it."""

    point: float = field(default=0.0, compare=False)
    """The part of the dual vector that was met."""
    leaning: float = field(default=0.0, compare=False)
    """The number added, before weights, to the dual variables of all rows that may have its sign."""
    crosses: bool = field(default=False, compare=False)
    """True if the bound is where both lines cross, and not that of the vector that was met."""
    line: tuple[int, float] | None = field(default=None, compare=False)
    """(FALLING or RISING, the part of the vector) if a line of the vector that was met has become one of both lines."""


@dataclass(frozen=True)
class DualPoint:
    """A dual vector: the sums of b_i x_i, b_i and -l_i*(-b_i) over the training rows, and bounds on their errors."""

    vector: np.ndarray
    vector_error: float
    mass: float
    mass_error: float
    value: float
    value_error: float

    @classmethod
    def rounded(cls, sums: np.ndarray, error: float, bias: float, value: float, value_error: float) -> DualPoint:
        """Return the point of a vector whose last place holds the mass, which `bias` times the error is a part of."""
        error = raised(error + _OPERATIONS * UNIT * norm_above(square(sums), len(sums)), _OPERATIONS)
        mass_error = raised(error / min(bias, 1.0), 4) if bias else error
        value_error = raised(value_error + _OPERATIONS * UNIT * abs(value), _OPERATIONS)
        return cls(sums[:-1], error, float(sums[-1]), mass_error, value, value_error)


class RowSums:
    """Sums of c x, c, c y and c |y| over the rows of each class and fold."""

    def __init__(self, classes: int, folds: int, features: int) -> None:
        self.classes, self.folds = classes, folds
        self.vectors = np.zeros((classes * folds, features))
        self.sums = np.zeros((classes * folds, 3))

    @classmethod
    def of(cls, problem: Problem, classes: int, folds: int | None) -> RowSums:
        """Return sums of no rows; `classes` is 0 for real targets, else the number of classes."""
        return cls(max(classes, 1), cls.lines(1, folds), problem.features)

    @staticmethod
    def lines(classes: int, folds: int | None) -> int:
        """Return the number of vectors for so many classes and folds."""
        return max(classes, 1) * max(folds or 0, 2)

    def add(self, window: Window) -> None:
        """Add the rows of a window."""
        block = window.block
        weights = np.empty(0, np.float32) if block.weights is None else block.weights
        for begin, end in window.row_ranges:
            rows = (begin, end, *block.entries, block.labels, weights, window.folds)
            sum_rows(*rows, self.classes, self.folds, self.vectors, self.sums)

    def __add__(self, other: RowSums) -> RowSums:
        total = RowSums(self.classes, self.folds, 0)
        total.vectors, total.sums = self.vectors + other.vectors, self.sums + other.sums
        return total


class Lines:
    """Lower bounds `height - mass b` on the least objective with the bias held at b, from dual vectors of any mass.

    The larger of two, of which one rises with b and one falls, is least where they cross: that height is a lower bound
    for all biases, from the mixture of both dual vectors whose mass is 0. The pair that crosses highest is kept.
    """

    def __init__(self) -> None:
        self.numbers = np.array([-np.inf, 0.0, 0.0] * 2)
        """(height, |mass|, the error of the mass) of the line that falls with b, and of the one that rises."""
        self.taken: int | None = None
        """FALLING or RISING if the last line that was added has become one of both; None if it was not kept."""

    @property
    def parts(self) -> tuple[float, float]:
        """The parts of the falling and of the rising vector in the mixture whose mass is 0."""
        falling, rising = float(self.numbers[1]), float(self.numbers[4])
        return rising / (falling + rising), falling / (falling + rising)

    def restore(self, arrays: dict[str, np.ndarray], name: str) -> None:
        """Take the lines of a checkpoint."""
        self.numbers[:] = take(arrays, name, self.numbers)

    def add(self, height: float, mass: float, error: float, bias: float) -> float:
        """Add a line met near a bias, and return the lower bound for all biases, -inf if there is none yet."""
        falling, rising = self.numbers[:3], self.numbers[3:]
        best, self.taken = _crossing(falling, rising), None
        if abs(mass) <= 2 * error:  # of no certain sign
            return best
        line, sign = np.array([height, abs(mass), error]), 1.0 if mass > 0 else -1.0
        mine, other = (falling, rising) if mass > 0 else (rising, falling)
        now = _crossing(line, other)
        if now > best or (now == best and height - mass * bias > mine[0] - sign * mine[1] * bias):
            mine[:], self.taken = line, FALLING if mass > 0 else RISING
        return max(best, now)


def _crossing(one: np.ndarray, other: np.ndarray) -> float:
    """The least height at which two lines can cross, given the errors of their masses; -inf if one is missing."""
    if not np.isfinite([one[0], other[0]]).all():
        return -np.inf
    heights = []
    for side in (-1.0, 1.0):
        mine, its = one[1] + side * one[2], other[1] - side * other[2]
        heights.append((one[0] * its + other[0] * mine) / (mine + its))
    return float(min(heights) - _OPERATIONS * UNIT * (abs(one[0]) + abs(other[0])))


class _Repaired(NamedTuple):
    """A dual vector that was made one of mass 0 by a part of another; all zero if there is no other."""

    value: float = 0.0
    """The sum of -l*."""
    square: float = 0.0
    """||vector||^2."""
    least_value: float = 0.0
    most_square: float = 0.0
    """Both at their worst."""
    point: float = 0.0
    leaning: float = 0.0
    """Its components: see `BalancedBound`."""


class Balance:
    """Dual vectors of each model of a problem to repair others with."""

    def __init__(self, problem: Problem, found: RowSums) -> None:
        self._problem, self._found = problem, found

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

    @property
    def _share(self) -> float:
        """The dual variable, in size and without weights, that all rows of a leaning vector have."""
        leaning = self._problem.loss.leaning
        assert leaning is not None  # or the problem would have been refused
        return leaning(self._problem.parameter)

    def _leaning(self, model: int, sign: int) -> DualPoint:
        """The dual vector whose variables all have this sign, and the same part of the box."""
        problem, spec = self._problem, self._problem.specs[model]
        vector, (c, cy, c_abs_y) = self._of_rows(model, self._classes(model, sign))
        number, parameter, share = problem.loss.number, problem.parameter, self._share
        if problem.loss.task == "regression":
            value = share * sign * cy + c * dual_at(number, parameter, 0.0, share * sign)
        else:
            weight = spec.class_weights[sign > 0]
            vector, c = weight * vector, weight * c
            value = c * dual_at(number, parameter, float(sign), share * sign)
            c_abs_y = c
        vector *= share * sign
        terms, most = 2.0 * spec.rows + 4.0 * len(self._found.sums), share * (c_abs_y + (1.0 + parameter) * c)
        steps = vector_error(terms, spec.rows * problem.longest_step, problem.longest_step, _OPERATIONS)
        error = sum_error(terms, most, most, _OPERATIONS)
        return DualPoint(vector, steps, float(share * c), error, float(value), error)

    def _repaired(self, model: int, point: DualPoint, sign: int) -> _Repaired:
        """Return a point whose mass has this sign or is 0, with the mass made 0.

        The share of the other vector is only known within an interval; the dual objective is concave, so the worst is
        at one of the ends.
        """
        other = self._leaning(model, -sign)
        if other.mass <= 2 * other.mass_error:  # no rows to balance with: the dual vector 0
            return _Repaired()
        mass = sign * point.mass
        low, high = max(mass - point.mass_error, 0.0), mass + point.mass_error
        ends = [
            low / (low + other.mass + other.mass_error) * (1 - 4 * UNIT),
            high / (high + other.mass - other.mass_error) * (1 + 4 * UNIT),
        ]
        part = max(mass, 0.0) / (max(mass, 0.0) + other.mass)
        mixed = (1.0 - part) * point.vector
        mixed += part * other.vector
        norm, size = square(mixed), len(mixed)
        longest = norm_above(square(point.vector), size) + norm_above(square(other.vector), size)
        error = point.vector_error + ends[1] * other.vector_error + (ends[1] - ends[0] + 4 * UNIT) * longest
        values = [
            (1 - end) * (point.value - point.value_error) + end * (other.value - other.value_error) for end in ends
        ]
        value = min(values) - _OPERATIONS * UNIT * (abs(point.value) + abs(other.value))
        exact = (1.0 - part) * point.value + part * other.value
        most = norm_above(norm, size, raised(error, _OPERATIONS)) ** 2
        return _Repaired(exact, norm, value, most, 1.0 - part, -sign * part * self._share)

    def bound(self, model: int, point: DualPoint, bias: float, lines: Lines) -> BalancedBound:
        """Return the best lower bound on the optimum from a dual vector met near a bias, and from those before.

        Of all t b with t in [0, 1] the best, as the box holds them too, and losses are at least 0.
        """
        spec = self._problem.specs[model]
        signs = [sign for sign in (1, -1) if sign * point.mass + point.mass_error > 0] or [1]
        repaired = [self._repaired(model, point, sign) for sign in signs]
        exact = max(_best_bound(one.value, one.square / spec.clock) for one in repaired)
        found = min(_rounded_bound(one.least_value, one.most_square / spec.clock) for one in repaired) / spec.rows
        cost = raised(norm_above(square(point.vector), len(point.vector), point.vector_error) ** 2 / spec.clock, 4)
        value = point.value - point.value_error
        part = best_part(value - bias * point.mass, cost)
        height = (part * value - part * part * cost / 2) - _OPERATIONS * UNIT * (abs(value) + cost)
        masses = part * point.mass / spec.rows, raised(part * point.mass_error / spec.rows, 4)
        crossing = lines.add(height / spec.rows, *masses, bias)
        best = max(found, crossing, 0.0) * (1 - 4 * UNIT)
        chosen = repaired[-1 if point.mass < 0 else 0]
        whole = best_part(chosen.value, chosen.square / spec.clock)
        return BalancedBound(
            float(best),
            float(max(exact / spec.rows - best, 0.0)),
            point=whole * chosen.point,
            leaning=whole * chosen.leaning,
            crosses=crossing > found,
            line=None if lines.taken is None else (lines.taken, part),
        )

    def first_bias(self, model: int) -> float:
        """Return a bias to begin with: that of a model without weights, more or less."""
        problem, spec = self._problem, self._problem.specs[model]
        if problem.loss.task == "regression":
            _vector, (c, cy, _c_abs_y) = self._of_rows(model, [0])
            return float(cy / c) if c else 0.0
        positive, negative = (
            float(self._of_rows(model, self._classes(model, sign))[1][0]) * spec.class_weights[sign > 0]
            for sign in (1, -1)
        )
        if not (positive and negative):
            return _ONE_CLASS if positive else -_ONE_CLASS
        if not problem.loss.has_probabilities:
            return (positive - negative) / (positive + negative)
        return float(np.log(positive / negative))


def _best_bound(gain: float, cost: float) -> float:
    part = best_part(gain, cost)
    return part * gain - part * part * cost / 2


def _rounded_bound(gain: float, cost: float) -> float:
    """The same rounded downward; boxes are rounded as well, so the dual vector is made a little smaller."""
    part = best_part(gain, raised(cost, 4))
    return part * gain - part * part * raised(cost, 4) / 2 - _OPERATIONS * UNIT * (part * abs(gain) + part * cost)
