"""Scores and sums over rows of each feature, for the check of proofs only.

Two methods with bounds on rounding errors: plain float64, and double-double pairs (high, low) if the bounds of float64
are too large. For pairs a float64 is split into halves before it is multiplied by a float32, so that products are
exact. Pairs are interleaved: high at 2 f, low at 2 f + 1.

Each kernel writes (score, low part of the score, bound on the error of the score, bound on the size of the row) to
`out` for each row, adds q x to the sums of the features, and returns the first row with invalid indices, or -1.
"""

import math

import numpy as np

from ooc_pegasos.compiled.intrinsics import escape_of_type, value_at
from ooc_pegasos.compiled.jit import kernel

SPLITTER = 2.0**24 + 1  # leaves 29 bits in the upper half: times the 24 of a float32 they are 53
U, TINY = 2.0**-53, 2.0**-78


@kernel
def add_rows(begin, end, indptr, indices, values, levels, weights, bias, q, sums, out):
    """Compute scores and sums in plain float64. The size of a row is its Euclidean norm."""
    escape, limit = escape_of_type(indices), np.uint64(min(len(weights), len(sums)))
    for row in range(begin, end):
        score, size, square, f, least = bias, abs(bias), 0.0, np.uint64(0), np.uint64(0)
        factor = q[row - begin]
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
            if escape > 0 and indices[at] == escape:
                continue
            if f >= limit or f < least:
                return row
            least = f + np.uint64(1)
            x = 1.0 if values is None else np.float64(value_at(values, at, levels))
            product = weights[f] * x
            score, size, square = score + product, size + abs(product), square + x * x
            if factor != 0.0:
                sums[f] += factor * x
        n = np.float64(indptr[row + 1] - indptr[row]) + 2.0
        out[row - begin, 0], out[row - begin, 1] = score, 0.0
        out[row - begin, 2] = size * (1.01 * n * U) + 1e-290
        out[row - begin, 3] = math.sqrt(square) * (1.0 + n * U) + 1e-290
    return -1


@kernel
def add_rows_in_pairs(begin, end, indptr, indices, values, levels, halves, bias, q, rest, pairs, out):
    """Compute scores and sums of (q + rest) x in pairs. The size of a row is its largest absolute value."""
    escape, limit = escape_of_type(indices), np.uint64(min(len(halves), len(pairs)) // 2)
    for row in range(begin, end):
        score, below, size, largest, f, least = bias, 0.0, abs(bias), 0.0, np.uint64(0), np.uint64(0)
        factor, more = q[row - begin], rest[row - begin]
        top = factor * SPLITTER
        top = top - (top - factor)
        bottom = factor - top
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
            if escape > 0 and indices[at] == escape:
                continue
            if f >= limit or f < least:
                return row
            least = f + np.uint64(1)
            upper, lower = np.uint64(2) * f, np.uint64(2) * f + np.uint64(1)
            x = 1.0 if values is None else np.float64(value_at(values, at, levels))
            product = halves[upper] * x
            total = score + product
            part = total - score
            below += (score - (total - part)) + (product - part) + halves[lower] * x
            score, size, largest = total, size + abs(product), max(largest, abs(x))
            if factor != 0.0:
                high, low, product = pairs[upper], pairs[lower], top * x
                total = high + product
                part = total - high
                low += (high - (total - part)) + (product - part) + (bottom * x + more * x)
                pairs[upper] = high = total + low
                pairs[lower] = low - (high - total)
        n = np.float64(indptr[row + 1] - indptr[row]) + 2.0
        both = score + below
        out[row - begin, 0], out[row - begin, 1] = both, below - (both - score)
        out[row - begin, 2], out[row - begin, 3] = size * n * (TINY + 4 * n * U * U) + 1e-290, largest
    return -1
