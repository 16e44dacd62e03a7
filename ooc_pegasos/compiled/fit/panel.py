"""Panels: weights as `A[feature, model]`, so that one look at a row's entries serves all models.

A row is decoded once, to the places of its weights and to factors in float64; then eight columns at a time are added
up, and changed. Each column comes out bit by bit as it would alone: sums are added in the order of `dot`, and every
operation is rounded by itself. Columns that no model has are 0 and stay 0.
"""

import numpy as np

from ooc_pegasos.compiled.fit.lanes import LANES, are_zero, lanes_of, load_lanes, store_lanes
from ooc_pegasos.compiled.intrinsics import escape_of_type, prefetch, value_at
from ooc_pegasos.compiled.jit import inlined, kernel


@kernel
def room_for(indptr, rows):
    """(places, xs) that hold any of these rows."""
    longest = 0
    for row in rows:
        longest = max(longest, np.int64(indptr[np.int64(row) + 1]) - np.int64(indptr[np.int64(row)]))
    return np.empty(longest, np.uint64), np.empty(longest)


@kernel
def decode_row(indices, values, levels, begin, end, width, features, places, xs):
    """Write where the weights of each entry begin in a panel, and its factor: of an escape 0.

    False if an index is not below `features`; no place is then to be used.
    """
    escape = escape_of_type(indices)
    first, entries = np.uint64(begin), np.uint64(end) - np.uint64(begin)
    f, step, limit = np.uint64(0), np.uint64(width), np.uint64(features)
    if values is not None:  # by themselves, so that the compiler does some at once
        for n in range(entries):
            xs[n] = value_at(values, first + n, levels)
    for n in range(entries):
        code = np.uint64(indices[first + n])
        f = code + (f if escape > 0 else np.uint64(0))
        if escape == 0 and f >= limit:
            return False
        places[n] = f * step
        if values is None:
            xs[n] = 0.0 if escape > 0 and code == np.uint64(escape) else 1.0
    return f < limit or entries == np.uint64(0)  # gaps only advance: the last index is the largest


@kernel
def panel_dot(places, xs, entries, panel, place, z):
    """The inner products of a decoded row with eight columns from `place` on, as `dot`."""
    sum0, sum1, sum2, sum3 = lanes_of(0.0), lanes_of(0.0), lanes_of(0.0), lanes_of(0.0)
    at, stop, first, one = np.uint64(0), np.uint64(entries), np.uint64(place), np.uint64(1)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        sum0 = sum0 + load_lanes(panel, places[at] + first) * lanes_of(xs[at])
        sum1 = sum1 + load_lanes(panel, places[at1] + first) * lanes_of(xs[at1])
        sum2 = sum2 + load_lanes(panel, places[at2] + first) * lanes_of(xs[at2])
        sum3 = sum3 + load_lanes(panel, places[at3] + first) * lanes_of(xs[at3])
        at += np.uint64(4)
    while at < stop:
        sum0 = sum0 + load_lanes(panel, places[at] + first) * lanes_of(xs[at])
        at += one
    store_lanes(z, first, sum0 + sum1 + sum2 + sum3)


@kernel
def panel_add(places, xs, entries, panel, place, factors):
    """Add `factors[j] x` to column j, for eight columns from `place` on.

    A place may come twice only if its factor is 0 the first time: that of an escape.
    """
    at, stop, first, one = np.uint64(0), np.uint64(entries), np.uint64(place), np.uint64(1)
    factor = load_lanes(factors, first)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        to, to1, to2, to3 = places[at] + first, places[at1] + first, places[at2] + first, places[at3] + first
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
        to = places[at] + first
        store_lanes(panel, to, load_lanes(panel, to) + factor * lanes_of(xs[at]))
        at += one


@kernel
def prefetch_panel(indptr, indices, row, panel, width):
    """Ask for the weights of a row: where they outgrow the caches."""
    escape = escape_of_type(indices)
    f = np.int64(0)
    for at in range(np.int64(indptr[row]), np.int64(indptr[row + 1])):
        f = np.int64(indices[at]) + (f if escape > 0 else 0)
        for place in range(f * width, f * width + width, LANES):
            prefetch(panel, place)


@inlined
def panel_scores(indices, values, levels, begin, end, places, xs, panel, width, features, bias, z):
    """The inner products of a row with all columns, and the row decoded; False if an index is too large."""
    sound = decode_row(indices, values, levels, begin, end, width, features, places, xs)
    if sound:
        for place in range(0, width, LANES):
            panel_dot(places, xs, end - begin, panel, place, z)
        if bias != 0.0:
            for j in range(width):
                z[j] += panel[features * width + j] * bias
    return sound


@inlined
def add_to_panel(places, xs, entries, panel, width, features, bias, factors):
    """Add `factors[j] x` to column j."""
    for place in range(0, width, LANES):
        if not are_zero(load_lanes(factors, np.uint64(place))):
            panel_add(places, xs, entries, panel, place, factors)
    if bias != 0.0:
        for j in range(width):
            panel[features * width + j] += factors[j] * bias
