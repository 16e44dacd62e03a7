"""Many models in one pass: weights as `A[feature, model]`, one loop over a row for eight models at once.

Each model comes out bit by bit as it would alone: sums are added in the order of `dot`, every operation is rounded by
itself, and no model asks what another does. `table` has one line a quantity and one column a model; `state` as well,
with the places of `kernels/pegasos.py` or `kernels/sdca.py`. Columns that no model has are 0 and stay 0.
"""

import numpy as np

from ooc_pegasos.kernels.intrinsics import escape_of_type, prefetch, value_at
from ooc_pegasos.kernels.jit import inlined, kernel
from ooc_pegasos.kernels.lanes import (
    LANES,
    are_zero,
    lanes_of,
    load_lanes,
    single_lanes,
    store_lanes,
    where_less,
)
from ooc_pegasos.kernels.losses import ALMOST_ONE, HINGE, loss_at
from ooc_pegasos.kernels.pegasos import ERRORS, LOSS, S, T, dot, is_sound, prefetch_row
from ooc_pegasos.kernels.sdca import (
    CHANGED,
    DUAL,
    GAP,
    NAPS,
    OFF,
    SLACKS,
    UNIT,
    VISITED,
    ascend,
    label_of,
    sleeps,
    wakes_at,
)

# Lines of `table`: lambda; the delay; lam m and one over it; the weights of both classes; the class that is told from
# the rest, or -1; the fold whose rows are left out, or -1; what is added to every score.
LAMBDA, DELAY, CLOCK, INVERSE, NEGATIVE, POSITIVE, ONE_CLASS, FOLD, OFFSET = range(9)
TABLE_SIZE = 9
# Lines of the sums of losses: rows trained on; rows kept apart, their squares, their errors, how many they are.
TRAINING, APART, APART_SQUARES, APART_ERRORS, APART_ROWS = range(5)
SUMS_SIZE = 5

_ROWS_AHEAD = 4
_OFFSETS_AHEAD = 8
_NO_FOLD = -2.0
_ROWS_AT_A_TIME = 256


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


@inlined
def ask_ahead(order, i, end, indptr, indices, values, labels):
    """Ask for what the next rows need."""
    if i + _OFFSETS_AHEAD < end:
        prefetch(indptr, np.int64(order[i + _OFFSETS_AHEAD]))
        prefetch(labels, np.int64(order[i + _OFFSETS_AHEAD]))
    if i + _ROWS_AHEAD < end:
        prefetch_row(indptr, indices, values, np.int64(order[i + _ROWS_AHEAD]))


@inlined
def _step_each(label, weight, fold, width, table, loss, parameter, z, factors, state):
    """The step of `present_rows`, one model after the other."""
    changed = False
    for j in range(width):
        factors[j] = 0.0
        if table[LAMBDA, j] == 0.0 or table[FOLD, j] == fold:
            continue
        y = label_of(label, table[ONE_CLASS, j])
        clock = table[LAMBDA, j] * (state[T, j] + table[DELAY, j])
        step = 1.0 / clock if clock > 0.0 else 0.0
        value, g, dual = loss_at(loss, parameter, z[j] * step + table[OFFSET, j], y)
        c = weight * (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j])
        state[LOSS, j] += c * value
        if g != 0.0:
            state[S, j] += c * (dual + g * table[OFFSET, j])
            state[ERRORS, j] += 1.0
            factors[j] = -c * g
            changed = True
        state[T, j] += 1.0
    return changed


@inlined
def _weights_of(label, weight, width, flat, j):
    """(labels, weights) of a row for eight models."""
    zero, one = lanes_of(0.0), lanes_of(1.0)
    wide = np.uint64(width)
    one_class = load_lanes(flat, np.uint64(ONE_CLASS) * wide + j)
    other = one_class - lanes_of(label)
    y = where_less(one_class, zero, lanes_of(label), where_less(zero, other * other, zero - one, one))
    positive = load_lanes(flat, np.uint64(POSITIVE) * wide + j)
    negative = load_lanes(flat, np.uint64(NEGATIVE) * wide + j)
    return y, where_less(zero, y, positive, negative) * lanes_of(weight)


@inlined
def _step_hinge(label, weight, fold, width, flat, z, factors, sums):
    """The hinge loss' step of `present_rows`, eight models at once."""
    zero, one = lanes_of(0.0), lanes_of(1.0)
    still = True
    wide = np.uint64(width)
    for start in range(0, width, LANES):
        j = np.uint64(start)
        y, c = _weights_of(label, weight, width, flat, j)
        off = load_lanes(flat, np.uint64(OFFSET) * wide + j)
        lam = load_lanes(flat, np.uint64(LAMBDA) * wide + j)
        away = load_lanes(flat, np.uint64(FOLD) * wide + j) - lanes_of(fold)
        mine = where_less(zero, lam, where_less(zero, away * away, one, zero), zero)

        at_t, at_s = np.uint64(T) * wide + j, np.uint64(S) * wide + j
        at_loss, at_errors = np.uint64(LOSS) * wide + j, np.uint64(ERRORS) * wide + j
        t = load_lanes(sums, at_t)
        clock = lam * (t + load_lanes(flat, np.uint64(DELAY) * wide + j))
        step = where_less(zero, clock, one / clock, zero)
        margin = y * (load_lanes(z, j) * step + off)
        error = where_less(one, margin, zero, mine)
        store_lanes(sums, at_loss, load_lanes(sums, at_loss) + error * (c * (one - margin)))
        store_lanes(sums, at_s, load_lanes(sums, at_s) + error * (c * (one - y * off)))
        store_lanes(sums, at_errors, load_lanes(sums, at_errors) + error)
        store_lanes(sums, at_t, t + mine)
        factor = error * (c * y)
        store_lanes(factors, j, factor)
        still = still and are_zero(factor)
    return not still


@kernel
def present_panel(
    order,
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    folds,
    loss,
    parameter,
    bias,
    large,
    features,
    table,
    panel,
    state,
):
    """`present_rows` for many models. `panel` has features times width numbers, and a line more for the bias."""
    width = table.shape[1]
    z, factors = np.zeros(width), np.zeros(width)
    flat, sums = table.ravel(), state.ravel()
    for i in range(begin, end):
        ask_ahead(order, i, end, indptr, indices, values, labels)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        if not panel_scores(indptr, indices, values, levels, row, panel, width, features, bias, z):
            return row
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else _NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        if loss == HINGE:
            changed = _step_hinge(label, weight, fold, width, flat, z, factors, sums)
        else:
            changed = _step_each(label, weight, fold, width, table, loss, parameter, z, factors, state)
        if changed:
            add_to_panel(indptr, indices, values, levels, row, panel, width, features, bias, factors)
    return -1


@inlined
def _ascend_hinge(label, weight, fold, inverse, now, wakes, at, width, flat, z, factors, duals, until, sums):
    """The hinge loss' step of `ascend_rows`, eight models at once."""
    zero, one = lanes_of(0.0), lanes_of(1.0)
    today = lanes_of(np.float64(now))
    still = True
    for start in range(0, width, LANES):
        j = np.uint64(start)
        here = np.uint64(at + start)
        wide = np.uint64(width)
        clock = load_lanes(flat, np.uint64(CLOCK) * wide + j)
        off = load_lanes(flat, np.uint64(OFFSET) * wide + j)
        y, c = _weights_of(label, weight, width, flat, j)
        box = single_lanes(c)
        box = where_less(c, box, single_lanes(c * lanes_of(ALMOST_ONE)), box)
        # awake: not in the fold that is left out, and not asleep
        wake = load_lanes(until, here)
        left = wake - today - one
        left = where_less(left, zero, left + lanes_of(256.0), left)
        away = load_lanes(flat, np.uint64(FOLD) * wide + j) - lanes_of(fold)
        awake = where_less(left, lanes_of(127.0), zero, where_less(zero, clock, one, zero))
        left_out = where_less(zero, away * away, zero, awake)
        awake = awake - left_out

        score = load_lanes(z, j) * load_lanes(flat, np.uint64(INVERSE) * wide + j) + off
        short = one - y * score
        before = load_lanes(duals, here)
        p = before * y
        met = c * where_less(zero, short, short, zero) - p * short
        gap = np.uint64(GAP) * wide + j
        store_lanes(sums, gap, load_lanes(sums, gap) + met * awake)
        q = p + short * (clock * lanes_of(inverse))
        q = where_less(zero, q, q, zero)
        q = where_less(q, box, q, box)
        after = where_less(zero, awake, single_lanes(q * y), before)
        change = after - before
        dual = np.uint64(DUAL) * wide + j
        store_lanes(sums, dual, load_lanes(sums, dual) + (change * y - change * off))
        visited = np.uint64(VISITED) * wide + j
        store_lanes(sums, visited, load_lanes(sums, visited) + awake)
        square = change * change
        moved = where_less(zero, square, one, zero)
        changed = np.uint64(CHANGED) * wide + j
        store_lanes(sums, changed, load_lanes(sums, changed) + moved)
        store_lanes(duals, here, after)
        store_lanes(factors, j, change)
        still = still and are_zero(change)

        slack = where_less(short, zero, zero - short, short)
        later = lanes_of(np.float64(wakes[0]))
        later = where_less(lanes_of(SLACKS[0]), slack, lanes_of(np.float64(wakes[1])), later)
        later = where_less(lanes_of(SLACKS[1]), slack, lanes_of(np.float64(wakes[2])), later)
        later = where_less(lanes_of(SLACKS[2]), slack, lanes_of(np.float64(wakes[3])), later)
        later = where_less(lanes_of(SLACKS[3]), slack, lanes_of(np.float64(wakes[4])), later)
        later = where_less(zero, moved, lanes_of(np.float64(wakes[0])), later)
        later = where_less(zero, awake, later, wake)
        store_lanes(until, here, where_less(zero, left_out, lanes_of(np.float64(wakes[4])), later))
    return not still


@inlined
def _ascend_each(
    label, weight, fold, inverse, now, wakes, at, width, table, loss, parameter, z, factors, duals, until, state
):
    """The step of `ascend_rows`, one model after the other."""
    changed = False
    for j in range(width):
        factors[j] = 0.0
        if table[LAMBDA, j] == 0.0 or sleeps(until[at + j], now):
            continue
        if table[FOLD, j] == fold:
            until[at + j] = wakes[len(NAPS) - 1]
            continue
        y = label_of(label, table[ONE_CLASS, j])
        c = (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j]) * weight
        offset, clock = table[OFFSET, j], table[CLOCK, j]
        b = np.float64(duals[at + j])
        score = z[j] * table[INVERSE, j] + offset
        after, met, more, slack = ascend(loss, parameter, score, y, c, b, clock * inverse, offset, state[UNIT, j])
        state[GAP, j] += met
        state[DUAL, j] += more
        state[VISITED, j] += 1.0
        state[OFF, j] += abs(score - y)
        if after != b:
            duals[at + j] = after
            factors[j] = after - b
            state[CHANGED, j] += 1.0
            changed = True
        until[at + j] = wakes_at(wakes, slack, after != b)
    return changed


@kernel
def ascend_panel(
    order,
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    folds,
    loss,
    parameter,
    bias,
    inverses,
    now,
    wakes,
    large,
    features,
    table,
    panel,
    duals,
    until,
    state,
):
    """`ascend_rows` for many models; `duals` and `until` have a line a row and a column a model."""
    width = table.shape[1]
    z, factors = np.zeros(width), np.zeros(width)
    flat, sums = table.ravel(), state.ravel()
    for i in range(begin, end):
        ask_ahead(order, i, end, indptr, indices, values, labels)
        if i + _OFFSETS_AHEAD < end:
            far = np.int64(order[i + _OFFSETS_AHEAD])
            prefetch(inverses, far)
            for place in range(far * width, far * width + width, 16):
                prefetch(duals, place)
            prefetch(until, far * width)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        if not panel_scores(indptr, indices, values, levels, row, panel, width, features, bias, z):
            return row
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else _NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        inverse = np.float64(inverses[row])
        if loss == HINGE:
            changed = _ascend_hinge(
                label, weight, fold, inverse, now, wakes, row * width, width, flat, z, factors, duals, until, sums
            )
        else:
            changed = _ascend_each(
                label,
                weight,
                fold,
                inverse,
                now,
                wakes,
                row * width,
                width,
                table,
                loss,
                parameter,
                z,
                factors,
                duals,
                until,
                state,
            )
        if changed:
            add_to_panel(indptr, indices, values, levels, row, panel, width, features, bias, factors)
    return -1


@inlined
def _count_loss(label, weight, fold, loss, parameter, z, table, j, sums):
    """Add what a row with score z costs candidate j to its sums."""
    y = label_of(label, table[ONE_CLASS, j])
    value, _g, _dual = loss_at(loss, parameter, z, y)
    c = weight * (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j])
    if table[FOLD, j] == fold:
        sums[APART, j] += c * value
        sums[APART_SQUARES, j] += c * value * c * value
        sums[APART_ERRORS, j] += 1.0 if (z > 0) != (y > 0) else 0.0
        sums[APART_ROWS, j] += 1.0
    else:
        sums[TRAINING, j] += c * value


@kernel
def sum_losses(
    begin, end, indptr, indices, values, levels, labels, weights, folds, loss, parameter, bias, table, candidates, sums
):
    """Add up the weighted losses of rows begin to end for a few candidates, one vector each."""
    # some rows for one candidate after the other: a view of each for every row would cost more than the row
    for some in range(begin, end, _ROWS_AT_A_TIME):
        stop = min(some + _ROWS_AT_A_TIME, end)
        for j in range(len(candidates)):
            w = candidates[j]
            body = w[: len(w) - 1] if bias != 0.0 else w
            more = w[len(w) - 1] * bias if bias != 0.0 else 0.0
            for row in range(some, stop):
                label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else _NO_FOLD
                weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
                first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
                z = dot(indices, values, levels, first, last, body)
                if np.isnan(z) and not is_sound(indices, first, last, len(body)):
                    return row
                _count_loss(label, weight, fold, loss, parameter, z + more + table[OFFSET, j], table, j, sums)
    return -1


@kernel
def sum_losses_of_panel(
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    folds,
    loss,
    parameter,
    bias,
    features,
    table,
    candidates,
    panel,
    sums,
):
    """As `sum_losses`, for `candidates` that stand side by side in a panel."""
    width = table.shape[1]
    z = np.zeros(width)
    for row in range(begin, end):
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else _NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        if not panel_scores(indptr, indices, values, levels, row, panel, width, features, bias, z):
            return row
        for j in range(candidates):
            _count_loss(label, weight, fold, loss, parameter, z[j] + table[OFFSET, j], table, j, sums)
    return -1


@kernel
def score_panel(begin, end, indptr, indices, values, levels, features, width, panel, bias, scores):
    """The scores of rows begin to end by all columns that `bias` has; returns the row with a bad index, or -1."""
    z = np.zeros(width)
    for row in range(begin, end):
        if not panel_scores(indptr, indices, values, levels, row, panel, width, features, 0.0, z):
            return row
        for j in range(len(bias)):
            scores[row - begin, j] = z[j] + bias[j]
    return -1


@kernel
def losses_of(loss, parameter, scores, labels, one_class, out):
    """Add the loss of each row to `out`."""
    for row in range(len(labels)):
        value, _g, _dual = loss_at(loss, parameter, scores[row], label_of(np.float64(labels[row]), one_class))
        out[row] += value


@kernel
def sum_losses_at(scores, labels, weights, class_weights, one_class, loss, parameter, offsets, sums):
    """Add up what rows cost with each of several biases."""
    for row in range(len(scores)):
        y = label_of(np.float64(labels[row]), one_class)
        c = class_weights[1] if y > 0 else class_weights[0]
        if len(weights) > 0:
            c *= weights[row]
        for j in range(len(offsets)):
            value, _g, _dual = loss_at(loss, parameter, scores[row] + offsets[j], y)
            sums[j] += c * value
