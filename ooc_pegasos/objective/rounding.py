"""Bounds on rounding errors of float64: Higham, "Accuracy and Stability of Numerical Algorithms", chapters 3 and 4.

Objectives are rounded upward and lower bounds downward by these, so that both are true of the real-number problem. The
kernels compute with rounding to nearest: an operation has a relative error of at most UNIT, and n of them in a row one
of at most 1.01 n UNIT while n UNIT is below 0.01.
"""

from __future__ import annotations

import math

UNIT = 2.0**-53
TINY = 1e-290
"""Larger than the sum of all errors that underflow can make."""
_SPARE = 8  # operations made in rounding outward itself


def raised(value: float, operations: float) -> float:
    """Return an upper bound on a sum of non-negative numbers that was computed with so many operations in a row."""
    return value * (1.0 + 1.01 * (operations + _SPARE) * UNIT)


def sum_error(terms: float, largest_sum: float, magnitude: float, operations: float) -> float:
    """Return a bound on the error of a running sum.

    No partial sum is larger than `largest_sum`; the terms have `operations` each and are together not larger than
    `magnitude`.
    """
    return 1.01 * UNIT * (terms * largest_sum + (operations + 1) * magnitude)


def vector_error(updates: float, largest_norm: float, step: float, operations: float) -> float:
    """Return a bound on the norm of the error of a vector to which `updates` vectors of norm `step` at most were added.

    The vector itself was never longer than `largest_norm`; the steps have `operations` each.
    """
    return sum_error(updates, largest_norm, updates * step, operations)


def norm_above(square: float, length: int, error: float = 0.0) -> float:
    """Return an upper bound on the norm of a vector, given its computed square and how far the vector itself is off."""
    return raised(math.sqrt(raised(square, length)), 1) + error
