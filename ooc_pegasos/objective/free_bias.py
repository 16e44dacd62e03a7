"""Lower bounds for an unregularized bias: equations (9) to (11) of the README.

The dual problem has the equality constraint that the dual variables of all rows, b_i, add up to 0. Training finds dual
vectors whose sum, their mass, is nearly 0. Two methods make bounds from them, both by concavity of the dual objective,
and each bound is the better of both:


- A dual vector becomes feasible as a convex combination with a vector of opposite mass: a constant for all rows of one
  class, or for all rows. The sums of rows by class and fold that this needs take one pass.
- `Lines` combines two dual vectors of training with masses of opposite signs. Only their masses and objectives are
  needed, so vectors are kept for proofs only.

All sums are computed in float64 with bounds on their rounding errors, and bounds are rounded downward.
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
from ooc_pegasos.objective.certificate import Bound, best_scale
from ooc_pegasos.objective.problem import NONE, Problem
from ooc_pegasos.objective.rounding import UNIT_ROUNDOFF, norm_upper_bound, rounded_up, sum_error, vector_error
from ooc_pegasos.util.checkpoint import take

_ONE_CLASS_BIAS = 40.0
"""Size of the bias if all rows are of one class; larger values make no difference in float64."""
_OPERATIONS = 32
"""Upper bound of the number of operations for a bound, given all sums."""
DECREASING, INCREASING = range(2)
"""Slope of a linear bound as a function of the bias: decreasing if the mass of the dual vector is positive."""


@dataclass(frozen=True)
class BalancedBound(Bound):
    """A bound for an unregularized bias, and the components of its dual vector."""

    point: float = field(default=0.0, compare=False)
    """Coefficient of the dual vector of training."""
    leaning: float = field(default=0.0, compare=False)
    """The constant added, before weights, to the dual variables of all rows that may have its sign."""
    is_intersection: bool = field(default=False, compare=False)
    """True if the bound is the intersection of two lines, False if it is that of the feasible vector."""
    line: tuple[int, float] | None = field(default=None, compare=False)
    """(DECREASING or INCREASING, coefficient of the vector) if its line replaced one of both lines."""


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
        """Return the point of a vector whose last element is the mass."""
        error = rounded_up(error + _OPERATIONS * UNIT_ROUNDOFF * norm_upper_bound(square(sums), len(sums)), _OPERATIONS)
        mass_error = rounded_up(error / min(bias, 1.0), 4) if bias else error
        value_error = rounded_up(value_error + _OPERATIONS * UNIT_ROUNDOFF * abs(value), _OPERATIONS)
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
        for begin, end in window.row_ranges:
            sum_rows(begin, end, *window.block.arrays, window.folds, self.classes, self.folds, self.vectors, self.sums)

    def __add__(self, other: RowSums) -> RowSums:
        total = RowSums(self.classes, self.folds, 0)
        total.vectors, total.sums = self.vectors + other.vectors, self.sums + other.sums
        return total


class Lines:
    """Linear lower bounds `height - mass b` on the optimum with the bias fixed at b, from dual vectors of any mass.

    Of an increasing and a decreasing line, the maximum is smallest at their intersection, whose height is a lower bound
    for all biases: that of the convex combination with mass 0. The pair with the highest intersection is kept.
    """

    def __init__(self) -> None:
        self.numbers = np.array([-np.inf, 0.0, 0.0] * 2)
        """(height, |mass|, error of the mass) of the decreasing line, and of the increasing line."""
        self.kept_line: int | None = None
        """DECREASING or INCREASING if the line added last was kept, else None."""

    @property
    def parts(self) -> tuple[float, float]:
        """Coefficients of the convex combination of mass 0, for the decreasing and the increasing line."""
        decreasing, increasing = float(self.numbers[1]), float(self.numbers[4])
        return increasing / (decreasing + increasing), decreasing / (decreasing + increasing)

    def restore(self, arrays: dict[str, np.ndarray], name: str) -> None:
        """Restore the lines of a checkpoint."""
        self.numbers[:] = take(arrays, name, self.numbers)

    def add(self, height: float, mass: float, error: float, bias: float) -> float:
        """Add a line found near a bias, and return the lower bound for all biases, -inf without one."""
        decreasing, increasing = self.numbers[:3], self.numbers[3:]
        best, self.kept_line = _intersection(decreasing, increasing), None
        if abs(mass) <= 2 * error:  # the sign is not certain
            return best
        line, sign = np.array([height, abs(mass), error]), 1.0 if mass > 0 else -1.0
        kept, other = (decreasing, increasing) if mass > 0 else (increasing, decreasing)
        now = _intersection(line, other)
        if now > best or (now == best and height - mass * bias > kept[0] - sign * kept[1] * bias):
            kept[:], self.kept_line = line, DECREASING if mass > 0 else INCREASING
        return max(best, now)


def _intersection(one: np.ndarray, other: np.ndarray) -> float:
    """Return a lower bound on the height of the intersection of two lines; -inf if one is missing."""
    if not np.isfinite([one[0], other[0]]).all():
        return -np.inf
    heights = []
    for side in (-1.0, 1.0):
        kept, other_mass = one[1] + side * one[2], other[1] - side * other[2]
        heights.append((one[0] * other_mass + other[0] * kept) / (kept + other_mass))
    return float(min(heights) - _OPERATIONS * UNIT_ROUNDOFF * (abs(one[0]) + abs(other[0])))


class _Feasible(NamedTuple):
    """A feasible dual vector of mass 0, the combination of two; all zero if there is no second vector."""

    value: float = 0.0
    """The sum of -l*."""
    square: float = 0.0
    """||vector||^2."""
    min_value: float = 0.0
    max_square: float = 0.0
    """Bounds of value and square, with rounding errors."""
    point: float = 0.0
    leaning: float = 0.0
    """Components, see `BalancedBound`."""


class Balance:
    """Constant dual vectors of each model, to make other dual vectors feasible."""

    def __init__(self, problem: Problem, found: RowSums) -> None:
        self._problem, self._found = problem, found

    def _of_rows(self, model: int, wanted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums over the training rows of some classes."""
        found, spec = self._found, self._problem.specs[model]
        groups = [k * found.folds + fold for k in wanted for fold in range(found.folds) if fold != spec.fold]
        return found.vectors[groups].sum(axis=0), found.sums[groups].sum(axis=0)

    def _classes(self, model: int, sign: int) -> list[int]:
        """Return the classes whose rows have dual variables of a sign."""
        one_class, classes = self._problem.specs[model].one_class, range(self._found.classes)
        if self._problem.loss.task == "regression":
            return [0]
        if one_class == NONE:
            return [1] if sign > 0 else [0]
        return [k for k in classes if (k == one_class) == (sign > 0)]

    @property
    def _constant_size(self) -> float:
        """Size, without weights, of the dual variables of a constant vector."""
        leaning = self._problem.loss.leaning
        assert leaning is not None  # checked by `problem_of`
        return leaning(self._problem.parameter)

    def _constant_dual(self, model: int, sign: int) -> DualPoint:
        """Return the constant dual vector with this sign."""
        problem, spec = self._problem, self._problem.specs[model]
        vector, (c, cy, c_abs_y) = self._of_rows(model, self._classes(model, sign))
        number, parameter, share = problem.loss.number, problem.parameter, self._constant_size
        if problem.loss.task == "regression":
            value = share * sign * cy + c * dual_at(number, parameter, 0.0, share * sign)
        else:
            weight = spec.class_weights[sign > 0]
            vector, c = weight * vector, weight * c
            value = c * dual_at(number, parameter, float(sign), share * sign)
            c_abs_y = c
        vector *= share * sign
        terms, most = 2.0 * spec.rows + 4.0 * len(self._found.sums), share * (c_abs_y + (1.0 + parameter) * c)
        steps = vector_error(terms, spec.rows * problem.max_step, problem.max_step, _OPERATIONS)
        error = sum_error(terms, most, most, _OPERATIONS)
        return DualPoint(vector, steps, float(share * c), error, float(value), error)

    def _make_feasible(self, model: int, point: DualPoint, sign: int) -> _Feasible:
        """Return the feasible combination of a point whose mass has this sign or is 0.

        The coefficient is known within an interval; the dual objective is concave, so its minimum is at an end.
        """
        other = self._constant_dual(model, -sign)
        if other.mass <= 2 * other.mass_error:  # no rows of this sign: the dual vector 0
            return _Feasible()
        mass = sign * point.mass
        low, high = max(mass - point.mass_error, 0.0), mass + point.mass_error
        ends = [
            low / (low + other.mass + other.mass_error) * (1 - 4 * UNIT_ROUNDOFF),
            high / (high + other.mass - other.mass_error) * (1 + 4 * UNIT_ROUNDOFF),
        ]
        part = max(mass, 0.0) / (max(mass, 0.0) + other.mass)
        mixed = (1.0 - part) * point.vector
        mixed += part * other.vector
        norm, size = square(mixed), len(mixed)
        longest = norm_upper_bound(square(point.vector), size) + norm_upper_bound(square(other.vector), size)
        error = point.vector_error + ends[1] * other.vector_error + (ends[1] - ends[0] + 4 * UNIT_ROUNDOFF) * longest
        values = [
            (1 - end) * (point.value - point.value_error) + end * (other.value - other.value_error) for end in ends
        ]
        value = min(values) - _OPERATIONS * UNIT_ROUNDOFF * (abs(point.value) + abs(other.value))
        exact = (1.0 - part) * point.value + part * other.value
        most = norm_upper_bound(norm, size, rounded_up(error, _OPERATIONS)) ** 2
        return _Feasible(exact, norm, value, most, 1.0 - part, -sign * part * self._constant_size)

    def bound(self, model: int, point: DualPoint, bias: float, lines: Lines) -> BalancedBound:
        """Return the best lower bound from a dual vector found near a bias, and from earlier ones.

        The best of all t b with t in [0, 1] is used, which are in the box as well; losses are not negative.
        """
        spec = self._problem.specs[model]
        signs = [sign for sign in (1, -1) if sign * point.mass + point.mass_error > 0] or [1]
        feasible = [self._make_feasible(model, point, sign) for sign in signs]
        exact = max(_best_bound(one.value, one.square / spec.clock) for one in feasible)
        found = min(_rounded_bound(one.min_value, one.max_square / spec.clock) for one in feasible) / spec.rows
        cost = rounded_up(
            norm_upper_bound(square(point.vector), len(point.vector), point.vector_error) ** 2 / spec.clock, 4
        )
        value = point.value - point.value_error
        part = best_scale(value - bias * point.mass, cost)
        height = (part * value - part * part * cost / 2) - _OPERATIONS * UNIT_ROUNDOFF * (abs(value) + cost)
        masses = part * point.mass / spec.rows, rounded_up(part * point.mass_error / spec.rows, 4)
        crossing = lines.add(height / spec.rows, *masses, bias)
        best = max(found, crossing, 0.0) * (1 - 4 * UNIT_ROUNDOFF)
        chosen = feasible[-1 if point.mass < 0 else 0]
        whole = best_scale(chosen.value, chosen.square / spec.clock)
        return BalancedBound(
            float(best),
            float(max(exact / spec.rows - best, 0.0)),
            point=whole * chosen.point,
            leaning=whole * chosen.leaning,
            is_intersection=crossing > found,
            line=None if lines.kept_line is None else (lines.kept_line, part),
        )

    def initial_bias(self, model: int) -> float:
        """Return an initial bias: about that of a model without weights."""
        problem, spec = self._problem, self._problem.specs[model]
        if problem.loss.task == "regression":
            _vector, (c, cy, _c_abs_y) = self._of_rows(model, [0])
            return float(cy / c) if c else 0.0
        positive, negative = (
            float(self._of_rows(model, self._classes(model, sign))[1][0]) * spec.class_weights[sign > 0]
            for sign in (1, -1)
        )
        if not (positive and negative):
            return _ONE_CLASS_BIAS if positive else -_ONE_CLASS_BIAS
        if not problem.loss.has_probabilities:
            return (positive - negative) / (positive + negative)
        return float(np.log(positive / negative))


def _best_bound(gain: float, cost: float) -> float:
    part = best_scale(gain, cost)
    return part * gain - part * part * cost / 2


def _rounded_bound(gain: float, cost: float) -> float:
    """Return the same rounded downward; the dual vector is shrunk a little, as boxes are rounded as well."""
    part = best_scale(gain, rounded_up(cost, 4))
    return (
        part * gain
        - part * part * rounded_up(cost, 4) / 2
        - _OPERATIONS * UNIT_ROUNDOFF * (part * abs(gain) + part * cost)
    )
