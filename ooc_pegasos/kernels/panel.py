"""Panels: weights as `A[feature, model]`, so that one look at a row's entries serves eight or sixteen models.

Each column comes out bit by bit as it would alone: sums are added in the order of `dot`, and every operation is rounded
by itself. Columns that no model has are 0 and stay 0. What is written twice here, for eight columns and for sixteen, is
decoding that must stand between sums that the compiler keeps in registers (as a function the like in `dot` cost a
fifth).
"""

import numpy as np

from ooc_pegasos.kernels.intrinsics import escape_of_type, prefetch, value_at
from ooc_pegasos.kernels.jit import inlined, kernel
from ooc_pegasos.kernels.lanes import LANES, are_zero, lanes_of, load_lanes, store_lanes


@inlined
def _factor(values, at, levels, code, escape):
    """The value of an entry; of an escape 0."""
    if values is None:
        return 0.0 if escape > 0 and code == np.uint64(escape) else 1.0
    return value_at(values, at, levels)


@kernel
def panel_dot(indices, values, levels, begin, end, panel, width, place, features, z):
    """The inner products of a row with eight columns from `place` on, as `dot`; False if an index is too large."""
    escape = escape_of_type(indices)
    sum0, sum1, sum2, sum3 = lanes_of(0.0), lanes_of(0.0), lanes_of(0.0), lanes_of(0.0)
    f, one = np.uint64(0), np.uint64(1)
    at, stop, limit = np.uint64(begin), np.uint64(end), np.uint64(features)
    step, first = np.uint64(width), np.uint64(place)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        code, code1 = np.uint64(indices[at]), np.uint64(indices[at1])
        code2, code3 = np.uint64(indices[at2]), np.uint64(indices[at3])
        f = code + (f if escape > 0 else np.uint64(0))
        f1 = code1 + (f if escape > 0 else np.uint64(0))
        f2 = code2 + (f1 if escape > 0 else np.uint64(0))
        f3 = code3 + (f2 if escape > 0 else np.uint64(0))
        if f3 >= limit or (escape == 0 and (f >= limit or f1 >= limit or f2 >= limit)):
            return False
        x, x1 = _factor(values, at, levels, code, escape), _factor(values, at1, levels, code1, escape)
        x2, x3 = _factor(values, at2, levels, code2, escape), _factor(values, at3, levels, code3, escape)
        sum0 = sum0 + load_lanes(panel, f * step + first) * lanes_of(x)
        sum1 = sum1 + load_lanes(panel, f1 * step + first) * lanes_of(x1)
        sum2 = sum2 + load_lanes(panel, f2 * step + first) * lanes_of(x2)
        sum3 = sum3 + load_lanes(panel, f3 * step + first) * lanes_of(x3)
        f = f3
        at += np.uint64(4)
    while at < stop:
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= limit:
            return False
        x = _factor(values, at, levels, code, escape)
        sum0 = sum0 + load_lanes(panel, f * step + first) * lanes_of(x)
        at += one
    store_lanes(z, first, sum0 + sum1 + sum2 + sum3)
    return True


@kernel
def panel_dot_twice(indices, values, levels, begin, end, panel, width, place, features, z):
    """As `panel_dot` for sixteen columns: entries are decoded once for all of them."""
    escape = escape_of_type(indices)
    sum0, sum1, sum2, sum3 = lanes_of(0.0), lanes_of(0.0), lanes_of(0.0), lanes_of(0.0)
    more0, more1, more2, more3 = lanes_of(0.0), lanes_of(0.0), lanes_of(0.0), lanes_of(0.0)
    f, one = np.uint64(0), np.uint64(1)
    at, stop, limit = np.uint64(begin), np.uint64(end), np.uint64(features)
    step, first = np.uint64(width), np.uint64(place)
    second = first + np.uint64(LANES)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        code, code1 = np.uint64(indices[at]), np.uint64(indices[at1])
        code2, code3 = np.uint64(indices[at2]), np.uint64(indices[at3])
        f = code + (f if escape > 0 else np.uint64(0))
        f1 = code1 + (f if escape > 0 else np.uint64(0))
        f2 = code2 + (f1 if escape > 0 else np.uint64(0))
        f3 = code3 + (f2 if escape > 0 else np.uint64(0))
        if f3 >= limit or (escape == 0 and (f >= limit or f1 >= limit or f2 >= limit)):
            return False
        x, x1 = _factor(values, at, levels, code, escape), _factor(values, at1, levels, code1, escape)
        x2, x3 = _factor(values, at2, levels, code2, escape), _factor(values, at3, levels, code3, escape)
        sum0 = sum0 + load_lanes(panel, f * step + first) * lanes_of(x)
        more0 = more0 + load_lanes(panel, f * step + second) * lanes_of(x)
        sum1 = sum1 + load_lanes(panel, f1 * step + first) * lanes_of(x1)
        more1 = more1 + load_lanes(panel, f1 * step + second) * lanes_of(x1)
        sum2 = sum2 + load_lanes(panel, f2 * step + first) * lanes_of(x2)
        more2 = more2 + load_lanes(panel, f2 * step + second) * lanes_of(x2)
        sum3 = sum3 + load_lanes(panel, f3 * step + first) * lanes_of(x3)
        more3 = more3 + load_lanes(panel, f3 * step + second) * lanes_of(x3)
        f = f3
        at += np.uint64(4)
    while at < stop:
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= limit:
            return False
        x = _factor(values, at, levels, code, escape)
        sum0 = sum0 + load_lanes(panel, f * step + first) * lanes_of(x)
        more0 = more0 + load_lanes(panel, f * step + second) * lanes_of(x)
        at += one
    store_lanes(z, first, sum0 + sum1 + sum2 + sum3)
    store_lanes(z, second, more0 + more1 + more2 + more3)
    return True


@kernel
def panel_add(indices, values, levels, begin, end, panel, width, place, features, factors):
    """Add `factors[j] x` to column j, for eight columns from `place` on."""
    escape = escape_of_type(indices)
    f, one = np.uint64(0), np.uint64(1)
    at, stop, limit = np.uint64(begin), np.uint64(end), np.uint64(features)
    step, first = np.uint64(width), np.uint64(place)
    factor = load_lanes(factors, first)
    while at + np.uint64(3) < stop:
        at1, at2, at3 = at + one, at + np.uint64(2), at + np.uint64(3)
        code, code1 = np.uint64(indices[at]), np.uint64(indices[at1])
        code2, code3 = np.uint64(indices[at2]), np.uint64(indices[at3])
        f = code + (f if escape > 0 else np.uint64(0))
        f1 = code1 + (f if escape > 0 else np.uint64(0))
        f2 = code2 + (f1 if escape > 0 else np.uint64(0))
        f3 = code3 + (f2 if escape > 0 else np.uint64(0))
        if f3 >= limit or (escape == 0 and (f >= limit or f1 >= limit or f2 >= limit)):
            return
        x, x1 = _factor(values, at, levels, code, escape), _factor(values, at1, levels, code1, escape)
        x2, x3 = _factor(values, at2, levels, code2, escape), _factor(values, at3, levels, code3, escape)
        to, to1, to2, to3 = f * step + first, f1 * step + first, f2 * step + first, f3 * step + first
        new, new1 = load_lanes(panel, to) + factor * lanes_of(x), load_lanes(panel, to1) + factor * lanes_of(x1)
        new2, new3 = load_lanes(panel, to2) + factor * lanes_of(x2), load_lanes(panel, to3) + factor * lanes_of(x3)
        store_lanes(panel, to, new)
        store_lanes(panel, to1, new1)
        store_lanes(panel, to2, new2)
        store_lanes(panel, to3, new3)
        f = f3
        at += np.uint64(4)
    while at < stop:
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= limit:
            return
        to = f * step + first
        x = _factor(values, at, levels, code, escape)
        store_lanes(panel, to, load_lanes(panel, to) + factor * lanes_of(x))
        at += one


@kernel
def panel_add_twice(indices, values, levels, begin, end, panel, width, place, features, factors):
    """As `panel_add` for sixteen columns."""
    escape = escape_of_type(indices)
    f, lanes = np.uint64(0), np.uint64(LANES)
    limit, step, first = np.uint64(features), np.uint64(width), np.uint64(place)
    factor, more = load_lanes(factors, first), load_lanes(factors, first + lanes)
    for at in range(np.uint64(begin), np.uint64(end)):
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= limit:
            return
        to = f * step + first
        x = lanes_of(_factor(values, at, levels, code, escape))
        left, right = load_lanes(panel, to) + factor * x, load_lanes(panel, to + lanes) + more * x
        store_lanes(panel, to, left)
        store_lanes(panel, to + lanes, right)


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
def panel_scores(indptr, indices, values, levels, row, panel, width, features, bias, z):
    """The inner products of a row with all columns; False if an index is too large."""
    first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
    sound, place = True, 0
    while place + 2 * LANES <= width:
        sound = sound and panel_dot_twice(indices, values, levels, first, last, panel, width, place, features, z)
        place += 2 * LANES
    if place < width:
        sound = sound and panel_dot(indices, values, levels, first, last, panel, width, place, features, z)
    if bias != 0.0:
        for j in range(width):
            z[j] += panel[features * width + j] * bias
    return sound


@inlined
def add_to_panel(indptr, indices, values, levels, row, panel, width, features, bias, factors):
    """Add `factors[j] x` to column j."""
    first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
    place = 0
    while place + 2 * LANES <= width:
        one, two = np.uint64(place), np.uint64(place + LANES)
        if not (are_zero(load_lanes(factors, one)) and are_zero(load_lanes(factors, two))):
            panel_add_twice(indices, values, levels, first, last, panel, width, place, features, factors)
        place += 2 * LANES
    if place < width and not are_zero(load_lanes(factors, np.uint64(place))):
        panel_add(indices, values, levels, first, last, panel, width, place, features, factors)
    if bias != 0.0:
        for j in range(width):
            panel[features * width + j] += factors[j] * bias
