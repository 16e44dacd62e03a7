"""Optima of small problems: enclosed between the objective of a primal point and the value of a dual point, both exact.

The points come from Newton's method in integers of fixed point. How good they are decides how far the two values are
apart, never that the optimum is between them. Kinks of losses are rounded over a width that is reduced until the values
agree to 20 digits. Scores and weights have `POINT` binary places, the data `DATA`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import mpmath
import numpy as np

from support.exact import (
    CLASS_LOSSES,
    DATA,
    FLOAT,
    MARGIN_LOSSES,
    POINT,
    PRECISION,
    TARGET_LOSSES,
    Problem,
    dual_at,
    integers,
    number_of,
    objective_at,
)

_TIGHT = Fraction(1, 10**20)
_STEPS = 300
_STAGES = 20
_PARTS = 300
"""Binary places of the part of a step that is taken."""


@dataclass(frozen=True)
class Optimum:
    """The least objective is between `lower` and `upper`: both are proved, however near they are."""

    lower: Fraction
    upper: Fraction

    @property
    def width(self) -> Fraction:
        """Relative to the optimum."""
        return (self.upper - self.lower) / self.upper if self.upper else Fraction(0)


def optimum(problem: Problem, starts: Sequence[np.ndarray] = ()) -> Optimum:
    """Enclose the least objective, beginning with the best of some float64 weights."""
    shape = problem.x.shape[1], problem.outputs
    points = [integers(np.zeros(shape), POINT)]
    points += [integers(np.asarray(w, np.float64), FLOAT).reshape(shape) >> (FLOAT - POINT) for w in starts]
    values = [objective_at(problem, w, POINT) for w in points]
    best = min(range(len(points)), key=lambda at: values[at])
    found = Optimum(Fraction(0), values[best])
    w = points[best]
    smooth = problem.loss not in ("hinge", "absolute", "epsilon-insensitive", "multiclass-hinge")
    scale = max(float(abs(problem.y - problem.offset).max()), 1e-30) if problem.loss in TARGET_LOSSES else 1.0
    scale = max(scale, abs(problem.offset))
    bend = 0 if smooth else int(integers(2.0 ** np.floor(np.log2(scale)), POINT)) >> 3
    pieces: Pieces | None = None
    for _ in range(_STAGES):
        w, pieces = _minimise(problem, w, bend, pieces)
        b = -_slopes(problem, _scores(problem, w), bend).g
        upper = min(found.upper, objective_at(problem, w, POINT))
        found = Optimum(max(found.lower, dual_at(problem, b) - _freedom(problem, w)), upper)
        if smooth or found.upper - found.lower <= _TIGHT * found.upper:
            break
        bend >>= 12
        if not bend >> 100:
            break
    return found


def _freedom(problem: Problem, w: np.ndarray) -> Fraction:
    """What regularising the bias adds to the least objective at most, if the bias is less than a million times as large
    as the one found.

    The constant feature is so large that this is nothing. Newton's method then needs no other equations.
    """
    if not problem.free:
        return Fraction(0)
    largest = Fraction(2**20) * (Fraction(abs(int(w[-1, 0])), 1 << POINT) + 1 / Fraction(problem.x[0, -1]))
    return problem.strength / 2 * largest**2


@dataclass(frozen=True)
class Pieces:
    """Slopes g of smoothed losses at some scores, and their curvatures as sums of s v v^T: `h` is rows by outputs by
    outputs."""

    g: np.ndarray
    h: np.ndarray
    which: np.ndarray
    """The piece of the loss that each score is on."""


def _scores(problem: Problem, w: np.ndarray) -> np.ndarray:
    z = (problem.data @ w) >> DATA
    return z + integers(problem.offset, POINT) if problem.offset else z


def _slopes(problem: Problem, z: np.ndarray, bend: int, held: np.ndarray | None = None) -> Pieces:
    """Slopes and curvatures where kinks are rounded over a width of `bend`, on the pieces `held` if they are given."""
    unit = 1 << POINT
    if problem.loss in CLASS_LOSSES:
        return _class_slopes(problem, z, bend, held)
    z = z[:, 0]
    zero = np.zeros(problem.rows, object)
    signs = problem.y.astype(np.int64).astype(object)
    if problem.loss == "logistic":
        with mpmath.workprec(PRECISION):
            p = np.array([_chance(int(m), unit) for m in signs * z], object)
        return Pieces((-signs * p)[:, None], ((p * (unit - p)) >> POINT)[:, None, None], zero)
    if problem.loss in MARGIN_LOSSES:
        width = int(Fraction(problem.parameter) * unit) if problem.loss == "smoothed-hinge" else bend
        off, direction = unit - signs * z, -signs
    else:
        off = z - (problem.targets << (POINT - DATA))
        direction = np.where(off < 0, -1, 1).astype(object)
        if held is not None:
            direction = np.where(held < 0, -1, 1).astype(object)
        tube = int(Fraction(problem.parameter) * unit) if problem.loss == "epsilon-insensitive" else 0
        off, width = off * direction - tube, bend
        if problem.loss == "huber":
            width = int(Fraction(problem.parameter) * unit)
    which = np.where(off <= 0, 0, np.where(off >= width, 2, 1)).astype(object)
    if held is not None:
        which = abs(held)
    top = width if problem.loss == "huber" else unit
    slope = np.array([(0, r * top // width, top)[piece] for piece, r in zip(which, off, strict=True)], object)
    curve = np.array([top * unit // width if piece == 1 else 0 for piece in which], object)
    signed = direction * which if problem.loss in TARGET_LOSSES else which
    return Pieces((direction * slope)[:, None], curve[:, None, None], signed)


def _chance(margin: int, unit: int) -> int:
    """1 / (1 + exp(margin)) in `POINT` places."""
    if margin > 400 << POINT:
        return 0
    if margin < -(400 << POINT):
        return unit
    small = int(mpmath.ldexp(mpmath.exp(-number_of(abs(margin), unit)), POINT))
    return (small if margin > 0 else unit) * unit // (unit + small)


def _class_slopes(problem: Problem, z: np.ndarray, bend: int, held: np.ndarray | None) -> Pieces:
    """Of the smoothed multiclass hinge: the projection of (costs + z) / bend on the simplex; or the softmax."""
    unit, classes = 1 << POINT, problem.outputs
    labels = problem.y.astype(np.int64)
    g = np.zeros((problem.rows, classes), object)
    h = np.zeros((problem.rows, classes, classes), object)
    which = np.zeros((problem.rows, classes), object)
    eye = np.eye(classes, dtype=np.int64).astype(object)
    for row, label in enumerate(labels):
        if problem.loss == "multiclass-logistic":
            with mpmath.workprec(PRECISION):
                most = max(z[row])
                powers = [int(mpmath.ldexp(mpmath.exp(number_of(int(k - most), unit)), POINT)) for k in z[row]]
            p = np.array([power * unit // sum(powers) for power in powers], object)
            h[row] = eye * p[:, None] - ((p[:, None] * p[None]) >> POINT)
        else:
            v = z[row] + (problem.price[label] << (POINT - DATA))
            if held is None:
                order = sorted(range(classes), key=lambda k: -v[k])
                chosen = order[:1]
                for k in order[1:]:
                    if sum(int(v[j] - v[k]) for j in chosen) < bend:
                        chosen.append(k)
                    else:
                        break
            else:
                chosen = [k for k in range(classes) if held[row, k]]
            mean = (sum(int(v[k]) for k in chosen) - bend) // len(chosen)
            p = np.array([int(v[k] - mean) * unit // bend if k in chosen else 0 for k in range(classes)], object)
            which[row] = [int(k in chosen) for k in range(classes)]
            curve = unit * unit // bend
            for j in chosen:
                for k in chosen:
                    h[row, j, k] = (curve if j == k else 0) - curve // len(chosen)
        g[row] = p - eye[label] * unit
    return Pieces(g, h, which)


def _minimise(problem: Problem, w: np.ndarray, bend: int, before: Pieces | None) -> tuple[np.ndarray, Pieces]:
    """Newton's method with a line search on the objective with rounded kinks.

    The first step holds the pieces that were right for a larger bend, as those are nearly always right again.
    """
    at = _slopes(problem, _scores(problem, w), bend)
    if before is not None:
        held = _slopes(problem, _scores(problem, w), bend, before.which)
        jumped = w + _newton_step(problem, w, held)
        there = _slopes(problem, _scores(problem, jumped), bend)
        if _size(_gradient(problem, jumped, there)) < _size(_gradient(problem, w, at)):
            w, at = jumped, there
    for _ in range(_STEPS):
        step = _newton_step(problem, w, at)
        if not step.any():
            break
        gradient = _gradient(problem, w, at)
        slope = int((gradient * step).sum())
        if slope >= 0:
            break
        w, at, moved = _line_search(problem, w, step, slope, bend)
        if not moved or _is_solved(problem, w, at):
            break
    return w, at


def _is_solved(problem: Problem, w: np.ndarray, at: Pieces) -> bool:
    """True if the square of the gradient over 2 lam, which is the distance of P and D, is nothing beside P."""
    return _size(_gradient(problem, w, at)) << 40 <= (_lam(problem) * _size(w)) >> POINT


def _size(gradient: np.ndarray) -> int:
    return int(abs(gradient).max())


def _lam(problem: Problem) -> int:
    return int(problem.strength * (1 << POINT))


def _gradient(problem: Problem, w: np.ndarray, at: Pieces) -> np.ndarray:
    pull = problem.data.T @ (problem.heft[:, None] * at.g)
    return ((_lam(problem) * w) >> POINT) + (pull >> (2 * DATA)) // problem.rows


def _newton_step(problem: Problem, w: np.ndarray, at: Pieces) -> np.ndarray:
    features, outputs = w.shape
    size = features * outputs
    matrix = np.zeros((features, outputs, features, outputs), object)
    for j in range(outputs):
        for k in range(j + 1):
            curved = np.flatnonzero(at.h[:, j, k])
            if len(curved):
                x = problem.data[curved]
                heft = (problem.heft[curved] * at.h[curved, j, k]) >> DATA
                block = ((x * heft[:, None]).T @ x >> (2 * DATA)) // problem.rows
                matrix[:, j, :, k] += block
                if j != k:
                    matrix[:, k, :, j] += block
    full = matrix.reshape(size, size)
    full[np.arange(size), np.arange(size)] += _lam(problem)
    return _solve(full, -_gradient(problem, w, at).reshape(-1)).reshape(features, outputs)


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution of a positive definite system in fixed point."""
    size = len(right)
    matrix, right = matrix.copy(), right.copy()
    for k in range(size - 1):
        factors = (matrix[k + 1 :, k] << POINT) // matrix[k, k]
        matrix[k + 1 :, k + 1 :] -= (factors[:, None] * matrix[k, k + 1 :][None]) >> POINT
        right[k + 1 :] -= (factors * right[k]) >> POINT
    found = np.zeros(size, object)
    for k in range(size - 1, -1, -1):
        found[k] = ((right[k] - (int(matrix[k, k + 1 :] @ found[k + 1 :]) >> POINT)) << POINT) // matrix[k, k]
    return found


def _line_search(
    problem: Problem, w: np.ndarray, step: np.ndarray, slope: int, bend: int
) -> tuple[np.ndarray, Pieces, bool]:
    """Go a whole step if that is nearly the least along it, else to where the slope is still negative but less than
    half of what it was: regula falsi, in which the interval shrinks by many powers of two if it has to."""

    def there(part: int) -> tuple[np.ndarray, Pieces, int]:
        point = w + ((step * part) >> _PARTS)
        at = _slopes(problem, _scores(problem, point), bend)
        return point, at, int((_gradient(problem, point, at) * step).sum())

    low, low_slope, high = 0, slope, 1 << _PARTS
    point, at, high_slope = there(high)
    for _ in range(6):
        if high_slope >= slope // 2:
            break
        low, low_slope, high = high, high_slope, 2 * high
        point, at, high_slope = there(high)
    if high_slope <= -slope >> 10:
        return point, at, True
    side, shrink = 0, 2
    for _ in range(100):
        if high <= 1 << 20:
            return w, _slopes(problem, _scores(problem, w), bend), False
        middle = low + (high - low) * -low_slope // (high_slope - low_slope)
        if low:
            middle = min(max(middle, low + (high - low) // 16), high - (high - low) // 16)
        else:
            middle = min(max(middle, high >> shrink), high - high // 16)
        point, at, here = there(middle)
        if slope // 2 <= here <= 0 or (high - low) << 8 <= high:
            break
        if here < 0:
            low, low_slope = middle, here
            high_slope, side = (high_slope // 2, -1) if side == -1 else (high_slope, -1)
        else:
            high, high_slope = middle, here
            low_slope, side = (low_slope // 2, 1) if side == 1 else (low_slope, 1)
            shrink = min(2 * shrink, 40)
    return point, at, True
