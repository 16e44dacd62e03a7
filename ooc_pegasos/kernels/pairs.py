"""Scores and feature sums as pairs (high, low) of float64, for the check of proofs; training uses none of this.

A float64 is split into halves before it is multiplied by a float32, so that products are exact. A pair is flat in an
array: high at 2 f, low at 2 f + 1.
"""

import numpy as np

from ooc_pegasos.kernels.intrinsics import escape_of_type, value_at
from ooc_pegasos.kernels.jit import kernel

SPLITTER = 2.0**24 + 1  # leaves 29 bits in the upper half: times the 24 of a float32 they are 53
U, TINY = 2.0**-53, 2.0**-78


@kernel
def score_rows(begin, end, indptr, indices, values, levels, halves, bias, out):
    """Put <w, x> + bias as a pair, a bound on its error and max |x| in a line of `out` for each row.

    Returns the row that has an index out of range, or -1.
    """
    escape, limit = escape_of_type(indices), np.uint64(len(halves) // 2)
    for row in range(begin, end):
        high, low, size, largest, f = bias, 0.0, abs(bias), 0.0, np.uint64(0)
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
            if f >= limit:
                return row
            if escape > 0 and indices[at] == escape:
                continue
            x = 1.0 if values is None else value_at(values, at, levels)
            product = halves[np.uint64(2) * f] * x
            total = high + product
            part = total - high
            low += (high - (total - part)) + (product - part) + halves[np.uint64(2) * f + np.uint64(1)] * x
            high, size, largest = total, size + abs(product), max(largest, abs(x))
        n = np.float64(indptr[row + 1] - indptr[row]) + 2.0
        sum_of_both = high + low
        out[row - begin, 0], out[row - begin, 1] = sum_of_both, low - (sum_of_both - high)
        out[row - begin, 2], out[row - begin, 3] = size * n * (TINY + 4 * n * U * U) + 1e-290, largest
    return -1


@kernel
def add_rows(begin, end, indptr, indices, values, levels, q, rest, pairs):
    """Add (q + rest) x of rows begin to end to the pairs of their features: two-sum, then renormalise."""
    escape = escape_of_type(indices)
    for row in range(begin, end):
        factor, more, f = q[row - begin], rest[row - begin], np.uint64(0)
        if factor == 0.0:
            continue
        top = factor * SPLITTER
        top = top - (top - factor)
        bottom = factor - top
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
            if escape > 0 and indices[at] == escape:
                continue
            x = 1.0 if values is None else value_at(values, at, levels)
            high, low, product = pairs[np.uint64(2) * f], pairs[np.uint64(2) * f + np.uint64(1)], top * x
            total = high + product
            part = total - high
            low += (high - (total - part)) + (product - part) + (bottom * x + more * x)
            pairs[np.uint64(2) * f] = high = total + low
            pairs[np.uint64(2) * f + np.uint64(1)] = low - (high - total)
