"""Many models in one pass: the steps of Pegasos and of dual coordinate ascent for all columns of a model panel.

Models are independent. `table` has a row for each parameter and a column for each model; so has `state`, with the
indices of `compiled/fit/pegasos.py` or `compiled/fit/sdca.py`. Steps of the hinge loss use SIMD lanes, eight models at
once.
"""

import numpy as np

from ooc_pegasos.compiled.fit.lanes import (
    LANES,
    are_zero,
    lanes_of,
    load_lanes,
    round_to_float32,
    store_lanes,
    where_less,
)
from ooc_pegasos.compiled.fit.losses import ALMOST_ONE, is_unit_hinge, loss_at
from ooc_pegasos.compiled.fit.panel import add_to_panel, panel_scores, prefetch_panel, row_buffers
from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, S, T, prefetch_next_rows
from ooc_pegasos.compiled.fit.sdca import (
    CHANGED,
    DEVIATION,
    DUAL,
    GAP,
    PERIODS,
    SLACK_UNIT,
    SLACKS,
    VISITED,
    ascend,
    is_inactive,
    label_of,
    reactivation_epoch,
)
from ooc_pegasos.compiled.fit.sdca import MAGNITUDE as DUAL_MAGNITUDE
from ooc_pegasos.compiled.intrinsics import prefetch
from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.rows.gather import OFFSETS_AHEAD

# Rows of `table`: lambda; the delay; lam m and its inverse; the weights of both classes; the positive class of one
# versus rest, or -1; the held-out fold, or -1; the offset of scores; a bound on the rounding errors of scores, by which
# objectives are rounded upward; 1 if scores are computed in double-double precision.
LAMBDA, DELAY, CLOCK, INVERSE, NEGATIVE, POSITIVE, ONE_CLASS, FOLD, OFFSET, SCORE_ERROR, COMPENSATED = range(11)
TABLE_SIZE = 11

NO_FOLD = -2.0
"""The fold of rows without folds."""


@inlined
def _step_each(label, weight, fold, width, table, loss, parameter, z, factors, state):
    """Make the step of `process_rows` for each model."""
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
    """Return (labels, weights) of a row for eight models."""
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
    """Make the step of `process_rows` for the hinge loss, eight models at once."""
    zero, one = lanes_of(0.0), lanes_of(1.0)
    is_unchanged = True
    wide = np.uint64(width)
    for start in range(0, width, LANES):
        j = np.uint64(start)
        y, c = _weights_of(label, weight, width, flat, j)
        offset = load_lanes(flat, np.uint64(OFFSET) * wide + j)
        lam = load_lanes(flat, np.uint64(LAMBDA) * wide + j)
        fold_distance = load_lanes(flat, np.uint64(FOLD) * wide + j) - lanes_of(fold)
        in_training = where_less(zero, lam, where_less(zero, fold_distance * fold_distance, one, zero), zero)

        at_t, at_s = np.uint64(T) * wide + j, np.uint64(S) * wide + j
        at_loss, at_errors = np.uint64(LOSS) * wide + j, np.uint64(ERRORS) * wide + j
        t = load_lanes(sums, at_t)
        clock = lam * (t + load_lanes(flat, np.uint64(DELAY) * wide + j))
        step = where_less(zero, clock, one / clock, zero)
        margin = y * (load_lanes(z, j) * step + offset)
        error = where_less(one, margin, zero, in_training)
        store_lanes(sums, at_loss, load_lanes(sums, at_loss) + error * (c * (one - margin)))
        store_lanes(sums, at_s, load_lanes(sums, at_s) + error * (c * (one - y * offset)))
        store_lanes(sums, at_errors, load_lanes(sums, at_errors) + error)
        size = where_less(offset, zero, one - offset, one + offset)
        at_size = np.uint64(MAGNITUDE) * wide + j
        store_lanes(sums, at_size, load_lanes(sums, at_size) + error * (c * (one + size)))
        store_lanes(sums, at_t, t + in_training)
        factor = error * (c * y)
        store_lanes(factors, j, factor)
        is_unchanged = is_unchanged and are_zero(factor)
    return not is_unchanged


@kernel
def process_panel(
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
    """Do the same as `process_rows` for many models. `panel` has a row for each feature, and one for the bias.

    Model j has the column `columns[j]` of `record`.
    """
    width = table.shape[1]
    z, factors = np.zeros(width), np.zeros(width)
    offsets, xs = row_buffers(indptr, order[begin:end])
    flat, sums = table.ravel(), state.ravel()
    for i in range(begin, end):
        prefetch_next_rows(order, i, end, indptr, indices, values, labels)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, offsets, xs, panel, width, features, bias, z):
            return row
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        if is_unit_hinge(loss):
            changed = _step_hinge(label, weight, fold, width, flat, z, factors, sums)
        else:
            changed = _step_each(label, weight, fold, width, table, loss, parameter, z, factors, state)
        if changed:
            add_to_panel(offsets, xs, last - first, panel, width, features, bias, factors)
            if record is not None:
                _record_factors(label, weight, table, factors, record, np.int64(row * stride), columns)
    return -1


@inlined
def _record_factors(label, weight, table, factors, record, at, columns):
    """Add the factors of a row, divided by their weights, to the sums of a proof."""
    for j in range(len(columns)):
        if factors[j] != 0.0:
            y = label_of(label, table[ONE_CLASS, j])
            c = weight * (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j])
            record[at + columns[j]] += factors[j] / c


@inlined
def _ascend_hinge(
    label, weight, fold, inverse, now, next_epochs, at, width, flat, z, factors, duals, inactive_until, sums
):
    """Make the step of `ascend_rows` for the hinge loss, eight models at once."""
    zero, one = lanes_of(0.0), lanes_of(1.0)
    epoch = lanes_of(np.float64(now))
    is_unchanged = True
    for start in range(0, width, LANES):
        j = np.uint64(start)
        here = np.uint64(at + start)
        wide = np.uint64(width)
        clock = load_lanes(flat, np.uint64(CLOCK) * wide + j)
        offset = load_lanes(flat, np.uint64(OFFSET) * wide + j)
        y, c = _weights_of(label, weight, width, flat, j)
        box = round_to_float32(c)
        box = where_less(c, box, round_to_float32(c * lanes_of(ALMOST_ONE)), box)
        # active: not inactive, and not in the held-out fold
        until = load_lanes(inactive_until, here)
        epochs_left = until - epoch - one
        epochs_left = where_less(epochs_left, zero, epochs_left + lanes_of(256.0), epochs_left)
        fold_distance = load_lanes(flat, np.uint64(FOLD) * wide + j) - lanes_of(fold)
        active = where_less(epochs_left, lanes_of(127.0), zero, where_less(zero, clock, one, zero))
        left_out = where_less(zero, fold_distance * fold_distance, zero, active)
        active = active - left_out

        score = load_lanes(z, j) * load_lanes(flat, np.uint64(INVERSE) * wide + j) + offset
        violation = one - y * score
        before = load_lanes(duals, here)
        p = before * y
        row_gap = c * where_less(zero, violation, violation, zero) - p * violation
        gap = np.uint64(GAP) * wide + j
        store_lanes(sums, gap, load_lanes(sums, gap) + row_gap * active)
        q = p + violation * (clock * lanes_of(inverse))
        q = where_less(zero, q, q, zero)
        q = where_less(q, box, q, box)
        b_new = where_less(zero, active, round_to_float32(q * y), before)
        change = b_new - before
        dual = np.uint64(DUAL) * wide + j
        store_lanes(sums, dual, load_lanes(sums, dual) + (change * y - change * offset))
        visited = np.uint64(VISITED) * wide + j
        store_lanes(sums, visited, load_lanes(sums, visited) + active)
        square = change * change
        moved = where_less(zero, square, one, zero)
        changed = np.uint64(CHANGED) * wide + j
        store_lanes(sums, changed, load_lanes(sums, changed) + moved)
        store_lanes(duals, here, b_new)
        store_lanes(factors, j, change)
        is_unchanged = is_unchanged and are_zero(change)

        distance = where_less(violation, zero, zero - violation, violation)
        at_deviation = np.uint64(DEVIATION) * wide + j
        store_lanes(sums, at_deviation, load_lanes(sums, at_deviation) + moved * distance)
        slack = distance / load_lanes(sums, np.uint64(SLACK_UNIT) * wide + j)
        reactivation = lanes_of(np.float64(next_epochs[0]))
        reactivation = where_less(lanes_of(SLACKS[0]), slack, lanes_of(np.float64(next_epochs[1])), reactivation)
        reactivation = where_less(lanes_of(SLACKS[1]), slack, lanes_of(np.float64(next_epochs[2])), reactivation)
        reactivation = where_less(lanes_of(SLACKS[2]), slack, lanes_of(np.float64(next_epochs[3])), reactivation)
        reactivation = where_less(lanes_of(SLACKS[3]), slack, lanes_of(np.float64(next_epochs[4])), reactivation)
        reactivation = where_less(zero, moved, lanes_of(np.float64(next_epochs[0])), reactivation)
        reactivation = where_less(zero, active, reactivation, until)
        store_lanes(
            inactive_until, here, where_less(zero, left_out, lanes_of(np.float64(next_epochs[4])), reactivation)
        )
    return not is_unchanged


@inlined
def _ascend_each(
    label,
    weight,
    fold,
    inverse,
    now,
    next_epochs,
    at,
    width,
    table,
    loss,
    parameter,
    z,
    factors,
    duals,
    inactive_until,
    state,
):
    """Make the step of `ascend_rows` for each model."""
    changed = False
    for j in range(width):
        factors[j] = 0.0
        if table[LAMBDA, j] == 0.0 or is_inactive(inactive_until[at + j], now):
            continue
        if table[FOLD, j] == fold:
            inactive_until[at + j] = next_epochs[len(PERIODS) - 1]
            continue
        y = label_of(label, table[ONE_CLASS, j])
        c = (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j]) * weight
        offset, clock = table[OFFSET, j], table[CLOCK, j]
        b = np.float64(duals[at + j])
        score = z[j] * table[INVERSE, j] + offset
        b_new, row_gap, dual_gain, slack, deviation, size = ascend(
            loss, parameter, score, y, c, b, clock * inverse, offset, state[SLACK_UNIT, j]
        )
        state[GAP, j] += row_gap
        state[DUAL, j] += dual_gain
        state[VISITED, j] += 1.0
        state[DEVIATION, j] += deviation
        state[DUAL_MAGNITUDE, j] += size
        if b_new != b:
            duals[at + j] = b_new
            factors[j] = b_new - b
            state[CHANGED, j] += 1.0
            changed = True
        inactive_until[at + j] = reactivation_epoch(next_epochs, slack, b_new != b)
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
    next_epochs,
    large,
    features,
    table,
    panel,
    duals,
    inactive_until,
    state,
):
    """Do the same as `ascend_rows` for many models; `duals` and `inactive_until` have a column for each model."""
    width = table.shape[1]
    z, factors = np.zeros(width), np.zeros(width)
    offsets, xs = row_buffers(indptr, order[begin:end])
    flat, sums = table.ravel(), state.ravel()
    for i in range(begin, end):
        prefetch_next_rows(order, i, end, indptr, indices, values, labels)
        if i + OFFSETS_AHEAD < end:
            distance = np.int64(order[i + OFFSETS_AHEAD])
            prefetch(inverses, distance)
            for index in range(distance * width, distance * width + width, 16):
                prefetch(duals, index)
            prefetch(inactive_until, distance * width)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, offsets, xs, panel, width, features, bias, z):
            return row
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        inverse = np.float64(inverses[row])
        if is_unit_hinge(loss):
            changed = _ascend_hinge(
                label,
                weight,
                fold,
                inverse,
                now,
                next_epochs,
                row * width,
                width,
                flat,
                z,
                factors,
                duals,
                inactive_until,
                sums,
            )
        else:
            changed = _ascend_each(
                label,
                weight,
                fold,
                inverse,
                now,
                next_epochs,
                row * width,
                width,
                table,
                loss,
                parameter,
                z,
                factors,
                duals,
                inactive_until,
                state,
            )
        if changed:
            add_to_panel(offsets, xs, last - first, panel, width, features, bias, factors)
    return -1
