"""Model panels: weights as `A[feature, model]`, so that each row is decoded once for all models.

A row is decoded to the offsets of its weights and to values in float64; then eight columns at a time are processed.
Results are bitwise those of separate models: sums have the order of `dot`, without fused operations. Unused columns are
0.
"""

import numpy as np

from ooc_pegasos.compiled.fit.lanes import LANES, are_zero, lanes_of, load_lanes, store_lanes
from ooc_pegasos.compiled.intrinsics import escape_of_type, prefetch, value_at
from ooc_pegasos.compiled.jit import inlined, kernel


@kernel
def row_buffers(indptr, rows):
    """Return buffers (offsets, xs) for the longest of these rows."""
    longest = 0
    for row in rows:
        longest = max(longest, np.int64(indptr[np.int64(row) + 1]) - np.int64(indptr[np.int64(row)]))
    return np.empty(longest, np.uint64), np.empty(longest)


@kernel
def decode_row(indices, values, levels, begin, end, width, features, offsets, xs):
    """Decode a row to the offsets of its weights in a panel, and values: 0 for escapes.

    Returns False if an index is not below `features`; then the offsets are invalid.
    """
    escape = escape_of_type(indices)
    first, entries = np.uint64(begin), np.uint64(end) - np.uint64(begin)
    f, step, limit = np.uint64(0), np.uint64(width), np.uint64(features)
    if values is not None:  # a separate loop, which the compiler vectorizes
        for n in range(entries):
            xs[n] = value_at(values, first + n, levels)
    for n in range(entries):
        code = np.uint64(indices[first + n])
        f = code + (f if escape > 0 else np.uint64(0))
        if escape == 0 and f >= limit:
            return False
        offsets[n] = f * step
        if values is None:
            xs[n] = 0.0 if escape > 0 and code == np.uint64(escape) else 1.0
    return f < limit or entries == np.uint64(0)  # gap-coded indices increase: the last is the largest


@kernel
def panel_dot(offsets, xs, entries, panel, column, z):
    """Compute the inner products of a decoded row with eight columns from `column` on, as `dot`."""
    sum0, sum1, sum2, sum3 = lanes_of(0.0), lanes_of(0.0), lanes_of(0.0), lanes_of(0.0)
    at, stop, first, one = np.uint64(0), np.uint64(entries), np.uint64(column), np.uint64(1)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        sum0 = sum0 + load_lanes(panel, offsets[at] + first) * lanes_of(xs[at])
        sum1 = sum1 + load_lanes(panel, offsets[at1] + first) * lanes_of(xs[at1])
        sum2 = sum2 + load_lanes(panel, offsets[at2] + first) * lanes_of(xs[at2])
        sum3 = sum3 + load_lanes(panel, offsets[at3] + first) * lanes_of(xs[at3])
        at += np.uint64(4)
    while at < stop:
        sum0 = sum0 + load_lanes(panel, offsets[at] + first) * lanes_of(xs[at])
        at += one
    store_lanes(z, first, sum0 + sum1 + sum2 + sum3)


@kernel
def panel_add(offsets, xs, entries, panel, column, factors):
    """Add `factors[j] x` to column j, for eight columns from `column` on.

    An offset may occur twice only if its first value is 0: an escape.
    """
    at, stop, first, one = np.uint64(0), np.uint64(entries), np.uint64(column), np.uint64(1)
    factor = load_lanes(factors, first)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        to, to1, to2, to3 = offsets[at] + first, offsets[at1] + first, offsets[at2] + first, offsets[at3] + first
        new = load_lanes(panel, to) + factor * lanes_of(xs[at])
        new1 = load_lanes(panel, to1) + factor * lanes_of(xs[at1])
        new2 = load_lanes(panel, to2) + factor * lanes_of(xs[at2])
        new3 = load_lanes(panel, to3) + factor * lanes_of(xs[at3])
        store_lanes(panel, to, new)
        store_lanes(panel, to1, new1)
        store_lanes(panel, to2, new2)
        store_lanes(panel, to3, new3)
        at += np.uint64(4)
    while at < stop:
        to = offsets[at] + first
        store_lanes(panel, to, load_lanes(panel, to) + factor * lanes_of(xs[at]))
        at += one


@kernel
def prefetch_panel(indptr, indices, row, panel, width):
    """Prefetch the weights of a row."""
    escape = escape_of_type(indices)
    f = np.int64(0)
    for at in range(np.int64(indptr[row]), np.int64(indptr[row + 1])):
        f = np.int64(indices[at]) + (f if escape > 0 else 0)
        for column in range(f * width, f * width + width, LANES):
            prefetch(panel, column)


@inlined
def panel_scores(indices, values, levels, begin, end, offsets, xs, panel, width, features, bias, z):
    """Decode a row and compute its inner products with all columns; return False if an index is too large."""
    is_valid = decode_row(indices, values, levels, begin, end, width, features, offsets, xs)
    if is_valid:
        for column in range(0, width, LANES):
            panel_dot(offsets, xs, end - begin, panel, column, z)
        if bias != 0.0:
            for j in range(width):
                z[j] += panel[features * width + j] * bias
    return is_valid


@inlined
def add_to_panel(offsets, xs, entries, panel, width, features, bias, factors):
    """Add `factors[j] x` to column j."""
    for column in range(0, width, LANES):
        if not are_zero(load_lanes(factors, np.uint64(column))):
            panel_add(offsets, xs, entries, panel, column, factors)
    if bias != 0.0:
        for j in range(width):
            panel[features * width + j] += factors[j] * bias
