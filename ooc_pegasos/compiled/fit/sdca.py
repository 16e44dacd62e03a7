"""Dual coordinate ascent: equation (7) of the README, one model, one row per step.

Names are those of the mathematics: `a` the sum of b_i x_i, z = <a, x> / (lam m) + offset the score, b_i the row's dual
variable, minus a subgradient of its loss. Shrinking with scheduled re-activation: a row whose variable is at a bound,
and would stay there if its score moved by some margins, is inactive until the epoch `inactive_until` (modulo 256).
`state` holds scalar sums. Kernels check all indices, and return the row whose index is too large, or -1 for none.
"""

import numpy as np

from ooc_pegasos.compiled.fit.losses import best_dual, box_size, dual_at, is_unit_hinge, loss_at, slack_of
from ooc_pegasos.compiled.fit.pegasos import (
    add_row,
    dot,
    dot_prefetching,
    has_valid_indices,
    prefetch_next_rows,
    square_norm,
    weight_of,
)
from ooc_pegasos.compiled.intrinsics import prefetch
from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.rows.gather import OFFSETS_AHEAD

# Indices in `state`: the dual objective without its quadratic term; of this epoch the sum of gaps of rows, visited
# rows, changed variables, and the sum of deviations of scores (hinge loss: |1 - y z| of changed rows, else |z - y|);
# the unit of slack from the last epoch; the factor of lambda continuation (`SdcaSolver`); the sizes of the terms added
# to DUAL in this epoch (not for the hinge loss); bounds on the rounding errors of `a` and DUAL at the beginning of the
# epoch; 1 if both were recomputed since; the epoch of the last recomputation.
(
    DUAL,
    GAP,
    VISITED,
    CHANGED,
    DEVIATION,
    SLACK_UNIT,
    LAMBDA_FACTOR,
    MAGNITUDE,
    VECTOR_ERROR,
    DUAL_ERROR,
    RECOMPUTED,
    RECOMPUTED_AT,
) = range(12)
# For an unregularized bias: the proximal centre, and the state of `proximal_step`.
CENTRE, STEP_FACTOR, LAST_STEP = range(12, 15)
STATE_SIZE = 15

PERIODS = (1, 2, 4, 8, 16)
"""A row is re-activated in the next multiple of one of these numbers of epochs, so that models share active rows."""
_SLACK2, _SLACK4, _SLACK8, _SLACK16 = SLACKS = 0.1, 0.3, 0.6, 1.2
"""Slack, in units, above which a row is inactive until the next multiple of 2, 4, 8, 16 epochs."""
_LEAST_GAIN = 1e-200  # for a squared norm that overflows float32


@inlined
def is_inactive(inactive_until, now):
    """True if a row is inactive in epoch `now`; `inactive_until` is at most 16 epochs ahead."""
    return np.uint8(inactive_until - now - np.uint8(1)) < np.uint8(127)


@kernel
def select_active_rows(order, begin, end, inactive_until, width, models, now, out):
    """Copy the rows of `order[begin:end]` that are active in any of the models to `out`; return their number.

    `inactive_until` has `width` columns, the first `models` of which are used.
    """
    count = 0
    if width == 1:
        for i in range(begin, end):
            row = order[np.uint64(i)]
            out[np.uint64(count)] = row  # branchless: the branch would be unpredictable
            count += not is_inactive(inactive_until[np.uint64(row)], now)
        return count
    for i in range(begin, end):
        if i + 16 < end:
            prefetch(inactive_until, np.int64(order[i + 16]) * width)
        row = np.int64(order[i])
        for at in range(row * width, row * width + models):
            if not is_inactive(inactive_until[at], now):
                out[count] = order[i]
                count += 1
                break
    return count


@kernel
def inverse_squares(begin, end, indptr, indices, values, levels, bias, out):
    """Compute `1 / (||x||^2 + bias^2)` of each row, bounded for empty rows."""
    for row in range(begin, end):
        square = square_norm(values, levels, np.int64(indptr[row]), np.int64(indptr[row + 1]), indices)
        out[row] = 1.0 / max(square + bias * bias, 1e-30)


@inlined
def label_of(label, one_class):
    """Return the label in a one-versus-rest model; unchanged if `one_class` is negative."""
    return label if one_class < 0.0 else (1.0 if label == one_class else -1.0)


@inlined
def ascend(loss, parameter, z, y, c, b, gain, offset, unit):
    """Return (the new b, gap of the row, increase of the dual, slack, deviation of the score, sizes of the terms).

    c is the weight of the row, gain = lam m / ||x||^2.
    """
    box = box_size(loss, parameter, c)
    if is_unit_hinge(loss):
        violation = 1.0 - y * z
        p = b * y
        row_gap = c * (violation if violation > 0.0 else 0.0) - p * violation
        q = p + violation * gain
        q = q if q > 0.0 else 0.0
        q = q if q < box else box
        b_new = np.float64(np.float32(q * y))
        dual_gain = (b_new - b) * y - (b_new - b) * offset
        slack = abs(violation) / unit
        deviation = abs(violation) if b_new != b else 0.0
        size = 0.0
    else:
        value, _g, _dual = loss_at(loss, parameter, z, y)
        before = c * dual_at(loss, parameter, y, b / c)
        row_gap = c * value - before + b * z
        b_new = np.float64(np.float32(c * best_dual(loss, parameter, z, y, b / c, c / max(gain, _LEAST_GAIN))))
        b_new = min(max(b_new, -box), box)
        now = c * dual_at(loss, parameter, y, b_new / c)
        dual_gain = now - before - (b_new - b) * offset
        size = abs(before) + abs(now) + (abs(b) + abs(b_new)) * (abs(y) + abs(offset))
        slack = slack_of(loss, parameter, z, y, b, box, unit)
        deviation = abs(z - y)
    return b_new, row_gap, dual_gain, slack, deviation, size


@inlined
def reactivation_epoch(next_epochs, slack, moved):
    """Return the epoch of re-activation, modulo 256; `next_epochs` are the next multiples of PERIODS."""
    period = 0
    if not moved and slack > _SLACK2:
        period = 4 if slack > _SLACK16 else 3 if slack > _SLACK8 else 2 if slack > _SLACK4 else 1
    return next_epochs[period]


@kernel
def ascend_rows(
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
    class_weights,
    one_class,
    fold,
    offset,
    loss,
    parameter,
    clock,
    bias,
    inverses,
    next_epochs,
    large,
    a,
    duals,
    inactive_until,
    state,
):
    """Make an ascent step on each row of `order[begin:end]`. `clock` is lam m; `a[-1]` is the bias if there is one."""
    dual_sum, gap_sum, visited, changed = state[DUAL], state[GAP], state[VISITED], state[CHANGED]
    deviation_sum, unit, sizes = state[DEVIATION], state[SLACK_UNIT], state[MAGNITUDE]
    inverse = 1.0 / clock
    now = np.uint8(next_epochs[0] - np.uint8(1))
    body = a[: len(a) - 1] if bias != 0.0 else a
    for i in range(begin, end):
        prefetch_next_rows(order, i, end, indptr, indices, values, labels)
        if i + OFFSETS_AHEAD < end:
            prefetch(duals, np.int64(order[i + OFFSETS_AHEAD]))
            prefetch(inverses, np.int64(order[i + OFFSETS_AHEAD]))
        row = np.int64(order[i])
        if is_inactive(inactive_until[row], now):
            continue  # possible only for duplicate rows, see `select_active_rows`
        if len(folds) > 0 and folds[row] == fold:
            inactive_until[row] = next_epochs[len(PERIODS) - 1]
            continue
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if large:
            ahead = np.int64(order[min(i + 2, end - 1)])
            ahead, ahead_end = np.int64(indptr[ahead]), np.int64(indptr[ahead + 1])
            z = dot_prefetching(indices, values, levels, first, last, body, ahead, ahead_end)
        else:
            z = dot(indices, values, levels, first, last, body)
        if np.isnan(z) and not has_valid_indices(indices, first, last, len(body)):
            return row
        if bias != 0.0:
            z += a[len(a) - 1] * bias
        z = z * inverse + offset
        y = label_of(np.float64(labels[row]), one_class)
        c = weight_of(row, y, weights, class_weights)
        b = np.float64(duals[row])
        gain = clock * np.float64(inverses[row])
        b_new, row_gap, dual_gain, slack, deviation, size = ascend(loss, parameter, z, y, c, b, gain, offset, unit)
        gap_sum += row_gap
        dual_sum += dual_gain
        visited += 1.0
        deviation_sum += deviation
        sizes += size
        if b_new != b:
            add_row(indices, values, levels, first, last, body, b_new - b)
            if bias != 0.0:
                a[len(a) - 1] += (b_new - b) * bias
            duals[row] = b_new
            changed += 1.0
        inactive_until[row] = reactivation_epoch(next_epochs, slack, b_new != b)
    state[DUAL], state[GAP], state[VISITED], state[CHANGED] = dual_sum, gap_sum, visited, changed
    state[DEVIATION], state[MAGNITUDE] = deviation_sum, sizes
    return -1
