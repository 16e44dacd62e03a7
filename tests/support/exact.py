"""Objective and dual of small problems in exact arithmetic: the truth that reported bounds are tested against.

Every float64 is an integer times a power of two, so the objective of given weights is computed without rounding: in
integers for the losses made of lines and parabolas, with mpmath to 70 digits for the logistic ones. So is the value of
dual variables, and the optimum is between the two. Nothing here uses code of the package.

    P(w) = (lam/2) ||w||^2 + (1/rows) sum_i c_i l_i(<w, x_i> + offset)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import mpmath
import numpy as np

DATA = 256
"""Binary places of the data. Every float32 above 1e-60 and every float64 above 1e-50 is exact in so many."""
POINT = 512
"""Binary places of points that Newton's method finds."""
FLOAT = 1100
"""Binary places in which every float64 is exact."""
PRECISION = 240
"""Bits of logarithms and exponentials."""
_NOTHING = mpmath.ldexp(1, -4000)
"""Sums of losses below this count as 0."""

CLASS_LOSSES = ("multiclass-hinge", "multiclass-logistic")
MARGIN_LOSSES = ("hinge", "smoothed-hinge", "logistic")
TARGET_LOSSES = ("absolute", "epsilon-insensitive", "huber")


def integers(values: object, places: int) -> np.ndarray:
    """Floats as integers times 2^-places, exactly."""
    numbers = np.asarray(values, np.float64)
    mantissas, exponents = np.frexp(numbers)
    whole = (mantissas * 2.0**53).astype(np.int64)
    found = np.empty(numbers.shape, object)
    flat = found.reshape(-1)
    for at, (number, exponent) in enumerate(zip(whole.ravel().tolist(), exponents.ravel().tolist(), strict=True)):
        shift = exponent - 53 + places
        assert shift >= 0 or number % (1 << -shift) == 0, f"{numbers.ravel()[at]!r} needs more binary places"
        flat[at] = number << shift if shift >= 0 else number >> -shift
    return found


@dataclass(frozen=True, eq=False)
class Problem:
    """One problem, without a model: `y` are -1 and 1, real targets, or numbers of classes."""

    loss: str
    parameter: float
    lam: float
    x: np.ndarray
    """Rows by features, floats, with the constant feature of the bias as the last if it has one."""
    y: np.ndarray
    c: np.ndarray = field(default_factory=lambda: np.ones(1))
    """Weights of rows: integers of `DATA` places (see `row_weights`), or floats."""
    offset: float = 0.0
    costs: np.ndarray | None = None
    free: bool = False
    """True if the last weight, that of the bias, is not regularised."""

    @property
    def rows(self) -> int:
        return len(self.y)

    @property
    def outputs(self) -> int:
        """Scores of a row: one, or one a class."""
        return len(self.costs) if self.costs is not None else 1

    @cached_property
    def data(self) -> np.ndarray:
        return integers(self.x, DATA)

    @cached_property
    def targets(self) -> np.ndarray:
        return integers(self.y, DATA)

    @cached_property
    def heft(self) -> np.ndarray:
        """Weights of rows in `DATA` places."""
        known = self.c if self.c.dtype == object else integers(self.c, DATA)
        return np.broadcast_to(known, self.rows)

    @cached_property
    def price(self) -> np.ndarray:
        assert self.costs is not None
        return integers(self.costs, DATA)

    @cached_property
    def strength(self) -> Fraction:
        return Fraction(self.lam)

    def only(self, chosen: np.ndarray) -> Problem:
        """The problem of some of its rows."""
        heft = self.heft[chosen]
        return Problem(
            *(self.loss, self.parameter, self.lam, self.x[chosen], self.y[chosen], heft),
            *(self.offset, self.costs, self.free),
        )


def row_weights(rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The exact products of the weights of rows and of their classes."""
    product = integers(rows, DATA) * integers(classes, DATA)
    assert all(number % (1 << DATA) == 0 for number in product), "weights that need more binary places"
    return product >> DATA


# --- values ---------------------------------------------------------------------------------------


def objective(problem: Problem, weights: np.ndarray) -> Fraction:
    """P at float64 weights: features, or features by classes."""
    return objective_at(problem, integers(weights, FLOAT).reshape(problem.x.shape[1], -1), FLOAT)


def objective_at(problem: Problem, w: np.ndarray, places: int) -> Fraction:
    """P at a point of so many binary places, features by outputs."""
    z = problem.data @ w
    if problem.offset:
        z = z + (integers(problem.offset, places) << DATA)
    counted = w[:-1] if problem.free else w
    squares = Fraction(int((counted * counted).sum()), 1 << (2 * places))
    return problem.strength / 2 * squares + _losses(problem, z, 1 << (DATA + places)) / problem.rows


def objective_of_model(problem: Problem, weights: np.ndarray, bias: np.ndarray, scale: float) -> Fraction:
    """P of a saved model for a problem without its bias: `scale` is the value of the constant feature whose weights
    are regularised, 0 if the bias is not.
    """
    w, b = integers(weights, FLOAT).reshape(problem.x.shape[1], -1), integers(bias, FLOAT).reshape(-1)
    z = problem.data @ w + (b << DATA)
    squares = Fraction(int((w * w).sum()), 1 << (2 * FLOAT))
    if scale:
        squares += Fraction(int((b * b).sum()), 1 << (2 * FLOAT)) / Fraction(scale) ** 2
    return problem.strength / 2 * squares + _losses(problem, z, 1 << (DATA + FLOAT)) / problem.rows


def _losses(problem: Problem, z: np.ndarray, unit: int) -> Fraction:
    """The weighted sum of losses at scores that are integers times 1/unit."""
    if problem.loss in CLASS_LOSSES:
        return _class_losses(problem, z, unit)
    z, y, scale = z[:, 0], problem.targets, unit >> DATA
    if problem.loss == "logistic":
        signs = problem.y.astype(np.int64).astype(object)
        with mpmath.workprec(PRECISION):
            margins = [number_of(-int(m), unit) for m in signs * z]
            return _total(problem, [_softplus(m) for m in margins])
    width = Fraction(problem.parameter) * unit if problem.loss != "absolute" else Fraction(0)
    assert width.denominator == 1
    parameter, whole = int(width), Fraction(1 << DATA)
    if problem.loss in ("hinge", "smoothed-hinge"):
        short = unit - problem.y.astype(np.int64).astype(object) * z
        if problem.loss == "hinge":
            return Fraction(int((problem.heft * np.maximum(short, 0)).sum()), unit) / whole
        parts = [(2 * s - parameter) * parameter if s > parameter else s * s if s > 0 else 0 for s in short]
        return Fraction(int(problem.heft @ np.array(parts, object)), 2 * parameter * unit) / whole
    off = abs(z - y * scale)
    if problem.loss == "huber":
        parts = [parameter * (2 * r - parameter) if r > parameter else r * r for r in off]
        return Fraction(int(problem.heft @ np.array(parts, object)), 2 * unit * unit) / whole
    return Fraction(int((problem.heft * np.maximum(off - parameter, 0)).sum()), unit) / whole


def _class_losses(problem: Problem, z: np.ndarray, unit: int) -> Fraction:
    labels = problem.y.astype(np.int64)
    apart = z - z[np.arange(problem.rows), labels][:, None]
    if problem.loss == "multiclass-hinge":
        most = (apart + problem.price[labels] * (unit >> DATA)).max(axis=1)
        return Fraction(int(problem.heft @ most), unit << DATA)
    with mpmath.workprec(PRECISION):
        values = []
        for row, label in zip(apart, labels, strict=True):
            numbers = [number_of(int(other), unit) for k, other in enumerate(row) if k != label]
            most = max(numbers)
            if most <= 0:
                values.append(mpmath.log1p(mpmath.fsum(mpmath.exp(number) for number in numbers)))
            else:
                rest = [mpmath.exp(number - most) for number in numbers]
                values.append(most + mpmath.log(mpmath.fsum([*rest, mpmath.exp(-most)])))
        return _total(problem, values)


def _softplus(number: mpmath.mpf) -> mpmath.mpf:
    return max(number, mpmath.mpf(0)) + mpmath.log1p(mpmath.exp(-abs(number)))


def number_of(whole: int, unit: int) -> mpmath.mpf:
    return mpmath.ldexp(mpmath.mpf(whole), 1 - unit.bit_length())


def _fraction(number: mpmath.mpf) -> Fraction:
    if number < _NOTHING:
        return Fraction(0)
    mantissa, exponent = int(number.man), int(number.exp)
    return Fraction(mantissa << exponent) if exponent >= 0 else Fraction(mantissa, 1 << -exponent)


def _total(problem: Problem, values: Sequence[mpmath.mpf]) -> Fraction:
    return _fraction(mpmath.fsum(number_of(int(c), 1 << DATA) * v for c, v in zip(problem.heft, values, strict=True)))


def dual_at(problem: Problem, b: np.ndarray) -> Fraction:
    """The dual value of variables of `POINT` places, rows by outputs, which are first brought into their domain.

    They are minus subgradients: of a class loss the class itself less the chances of all. All weights are regularised.
    """
    unit = 1 << POINT
    b = _feasible(problem, b)
    whole = Fraction(unit << DATA)
    u = problem.data.T @ (problem.heft[:, None] * b)
    fixed = Fraction(problem.offset) * Fraction(int(problem.heft @ b.sum(axis=1))) / whole
    norm = Fraction(int((u * u).sum()), 1 << (2 * (POINT + 2 * DATA)))
    gain = _gains(problem, b, unit) - (fixed if problem.outputs == 1 else 0)
    return gain / problem.rows - norm / (2 * problem.strength * problem.rows**2)


def _feasible(problem: Problem, b: np.ndarray) -> np.ndarray:
    unit = 1 << POINT
    if problem.loss in CLASS_LOSSES:
        labels = problem.y.astype(np.int64)
        chances = _between(0, -b, unit)
        for row, label in zip(chances, labels, strict=True):
            row[label] = 0
            total = int(row.sum())
            if total > unit:
                row[:] = [int(p) * unit // total for p in row]
            row[label] = -sum(int(p) for p in row)
        return -chances
    if problem.loss in MARGIN_LOSSES:
        signs = problem.y.astype(np.int64).astype(object)[:, None]
        return signs * _between(0, signs * b, unit)
    most = int(Fraction(problem.parameter) * unit) if problem.loss == "huber" else unit
    return _between(-most, b, most)


def _between(low: int, values: np.ndarray, high: int) -> np.ndarray:
    found = np.empty_like(values)
    found.reshape(-1)[:] = [min(max(value, low), high) for value in values.ravel()]
    return found


def _gains(problem: Problem, b: np.ndarray, unit: int) -> Fraction:
    """The weighted sum of -l*(-b)."""
    heft, whole = problem.heft, 1 << DATA
    if problem.loss in CLASS_LOSSES:
        labels = problem.y.astype(np.int64)
        if problem.loss == "multiclass-hinge":
            return Fraction(int(heft @ (-b * problem.price[labels]).sum(axis=1)), unit * whole * whole)
        with mpmath.workprec(PRECISION):
            chances = -b
            chances[np.arange(problem.rows), labels] += unit
            return _total(problem, [_entropy([number_of(int(p), unit) for p in row]) for row in chances])
    b = b[:, 0]
    if problem.loss in MARGIN_LOSSES:
        p = problem.y.astype(np.int64).astype(object) * b
        if problem.loss == "logistic":
            with mpmath.workprec(PRECISION):
                pairs = [[number_of(int(q), unit), number_of(unit - int(q), unit)] for q in p]
                return _total(problem, [_entropy(pair) for pair in pairs])
        gain = Fraction(int(heft @ p), unit * whole)
        if problem.loss == "smoothed-hinge":
            gain -= Fraction(problem.parameter) / 2 * Fraction(int(heft @ (p * p)), unit * unit * whole)
        return gain
    gain = Fraction(int(heft @ (b * problem.targets)), unit * whole * whole)
    if problem.loss == "huber":
        return gain - Fraction(int(heft @ (b * b)), 2 * unit * unit * whole)
    if problem.loss == "epsilon-insensitive":
        gain -= Fraction(problem.parameter) * Fraction(int(heft @ abs(b)), unit * whole)
    return gain


def _entropy(chances: Sequence[mpmath.mpf]) -> mpmath.mpf:
    largest = max(range(len(chances)), key=lambda k: chances[k])
    rest = mpmath.fsum(p for k, p in enumerate(chances) if k != largest)
    terms = [-p * mpmath.log(p) for k, p in enumerate(chances) if k != largest and p > 0]
    return mpmath.fsum([*terms, -(1 - rest) * mpmath.log1p(-rest)])
