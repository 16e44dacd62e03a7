"""Many models in one pass: the steps of Pegasos and of dual coordinate ascent for all columns of a panel.

No model depends on another. `table` has one line a quantity and one column a model; `state` as well, with the
places of `compiled/fit/pegasos.py` or `compiled/fit/sdca.py`. Steps of the hinge loss are written in lanes, eight at
once.
"""

import numpy as np

from ooc_pegasos.compiled.fit.lanes import LANES, are_zero, lanes_of, load_lanes, single_lanes, store_lanes, where_less
from ooc_pegasos.compiled.fit.losses import ALMOST_ONE, is_unit_hinge, loss_at
from ooc_pegasos.compiled.fit.panel import add_to_panel, panel_scores, prefetch_panel, room_for
from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, OFFSETS_AHEAD, S, T, look_ahead
from ooc_pegasos.compiled.fit.sdca import (
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
from ooc_pegasos.compiled.fit.sdca import MAGNITUDE as DUAL_MAGNITUDE
from ooc_pegasos.compiled.intrinsics import prefetch
from ooc_pegasos.compiled.jit import inlined, kernel

# Lines of `table`: lambda; the delay; lam m and one over it; the weights of both classes; the class that is told from
# the rest, or -1; the fold whose rows are left out, or -1; what is added to every score; a bound on rounding errors of
# scores, by which objectives are measured too high; 1 if scores are to be computed in twice the precision.
LAMBDA, DELAY, CLOCK, INVERSE, NEGATIVE, POSITIVE, ONE_CLASS, FOLD, OFFSET, SCORE_ERROR, TWICE = range(11)
TABLE_SIZE = 11

NO_FOLD = -2.0
"""The fold of rows that have none."""


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
            state[MAGNITUDE, j] += c * (abs(dual) + abs(g * y) + abs(g * table[OFFSET, j]))
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
        size = where_less(off, zero, one - off, one + off)
        at_size = np.uint64(MAGNITUDE) * wide + j
        store_lanes(sums, at_size, load_lanes(sums, at_size) + error * (c * (one + size)))
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
    record,
    stride,
    columns,
):
    """`present_rows` for many models. `panel` has features times width numbers, and a line more for the bias.

    Model j has the column `columns[j]` of `record`.
    """
    width = table.shape[1]
    z, factors = np.zeros(width), np.zeros(width)
    places, xs = room_for(indptr, order[begin:end])
    flat, sums = table.ravel(), state.ravel()
    for i in range(begin, end):
        look_ahead(order, i, end, indptr, indices, values, labels)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, places, xs, panel, width, features, bias, z):
            return row
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        if is_unit_hinge(loss):
            changed = _step_hinge(label, weight, fold, width, flat, z, factors, sums)
        else:
            changed = _step_each(label, weight, fold, width, table, loss, parameter, z, factors, state)
        if changed:
            add_to_panel(places, xs, last - first, panel, width, features, bias, factors)
            if record is not None:
                _record_factors(label, weight, table, factors, record, np.int64(row * stride), columns)
    return -1


@inlined
def _record_factors(label, weight, table, factors, record, at, columns):
    """Add the factors of a row, without the weights that they have, to the sums of a proof."""
    for j in range(len(columns)):
        if factors[j] != 0.0:
            y = label_of(label, table[ONE_CLASS, j])
            c = weight * (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j])
            record[at + columns[j]] += factors[j] / c


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

        far = where_less(short, zero, zero - short, short)
        off_by = np.uint64(OFF) * wide + j
        store_lanes(sums, off_by, load_lanes(sums, off_by) + moved * far)
        slack = far / load_lanes(sums, np.uint64(UNIT) * wide + j)
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
        after, met, more, slack, off, size = ascend(
            loss, parameter, score, y, c, b, clock * inverse, offset, state[UNIT, j]
        )
        state[GAP, j] += met
        state[DUAL, j] += more
        state[VISITED, j] += 1.0
        state[OFF, j] += off
        state[DUAL_MAGNITUDE, j] += size
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
    places, xs = room_for(indptr, order[begin:end])
    flat, sums = table.ravel(), state.ravel()
    for i in range(begin, end):
        look_ahead(order, i, end, indptr, indices, values, labels)
        if i + OFFSETS_AHEAD < end:
            far = np.int64(order[i + OFFSETS_AHEAD])
            prefetch(inverses, far)
            for place in range(far * width, far * width + width, 16):
                prefetch(duals, place)
            prefetch(until, far * width)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, places, xs, panel, width, features, bias, z):
            return row
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        inverse = np.float64(inverses[row])
        if is_unit_hinge(loss):
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
            add_to_panel(places, xs, last - first, panel, width, features, bias, factors)
    return -1
