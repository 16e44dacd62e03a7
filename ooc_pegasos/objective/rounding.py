"""Bounds on rounding errors of float64: Higham, "Accuracy and Stability of Numerical Algorithms", chapters 3 and 4.

Objectives are rounded upward and lower bounds downward, so that both hold in exact arithmetic. Kernels round to
nearest: an operation has a relative error of at most UNIT, and n operations in sequence of at most 1.01 n UNIT, for n
UNIT < 0.01.
"""

from __future__ import annotations

import math

UNIT_ROUNDOFF = 2.0**-53
TINY = 1e-290
"""Upper bound of the sum of all underflow errors."""
_SPARE = 8  # operations of outward rounding itself


def rounded_up(value: float, operations: float) -> float:
    """Return an upper bound on a sum of non-negative numbers, computed with a number of operations in sequence."""
    return value * (1.0 + 1.01 * (operations + _SPARE) * UNIT_ROUNDOFF)


def sum_error(terms: float, largest_sum: float, magnitude: float, operations: float) -> float:
    """Return a bound on the error of a running sum.

    Partial sums are at most `largest_sum`; each term takes `operations`, and the sizes of the terms add up to at most
    `magnitude`.
    """
    return 1.01 * UNIT_ROUNDOFF * (terms * largest_sum + (operations + 1) * magnitude)


def vector_error(updates: float, largest_norm: float, step: float, operations: float) -> float:
    """Return a bound on the norm of the error of a vector to which `updates` vectors of norm `step` at most were added.

    The norm of the vector was at most `largest_norm`; each step takes `operations`.
    """
    return sum_error(updates, largest_norm, updates * step, operations)


def norm_upper_bound(square: float, length: int, error: float = 0.0) -> float:
    """Return an upper bound on the norm of a vector, given its computed square and a bound on its error."""
    return rounded_up(math.sqrt(rounded_up(square, length)), 1) + error
