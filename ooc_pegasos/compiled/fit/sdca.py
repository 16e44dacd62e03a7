"""Dual coordinate ascent: equation (7) of the README, one model, one row at a step.

Names are those of the mathematics: `a` the sum of b_i x_i, z = <a, x> / (lam m) + offset the score, b_i the row's dual
variable, minus a subgradient of its loss. A row whose variable is at a bound, and would stay there if its score moved
by some margins, sleeps for some epochs: `until` says from which on (modulo 256) it is looked at again. `state` holds
what changes besides. No kernel touches a weight that is not there, and each returns the row whose index is too
large, or -1 for none.
"""

import numpy as np

from ooc_pegasos.compiled.fit.losses import best_dual, dual_at, is_unit_hinge, largest_dual, loss_at, slack_of
from ooc_pegasos.compiled.fit.pegasos import (
    OFFSETS_AHEAD,
    add_row,
    dot,
    dot_large,
    is_sound,
    look_ahead,
    square_norm,
    weight_of,
)
from ooc_pegasos.compiled.intrinsics import prefetch
from ooc_pegasos.compiled.jit import inlined, kernel

# Places in `state`: the sum of what rows add to the dual; of this epoch the gap met, rows visited, variables changed
# and a sum of how far off scores were, of the hinge loss |1 - y z| where that changed something, else |z - y|; the unit
# of slack that follows from the epoch before; how many times larger than asked for lambda is (`SdcaSolver`); the sizes
# of what was added to DUAL in this epoch (not for the hinge loss). In the rest the solver keeps bounds on the rounding
# errors of `a` and DUAL when the epoch began, 1 if both were added up anew since, and the epoch in which they last
# were.
DUAL, GAP, VISITED, CHANGED, OFF, UNIT, STRETCH, MAGNITUDE, VECTOR_ERROR, DUAL_ERROR, RENEWED, RENEWED_AT = range(12)
# Of a bias that is not regularised: the centre towards which it is, and what `next_move` keeps.
CENTRE, HASTE, MOVE = range(12, 15)
STATE_SIZE = 15

NAPS = (1, 2, 4, 8, 16)
"""A row wakes in the next multiple of one of these epochs: all together, so that many models need the same rows."""
_SLACK2, _SLACK4, _SLACK8, _SLACK16 = SLACKS = 0.1, 0.3, 0.6, 1.2
"""Units of slack from leaving its bound beyond which a row sleeps to the next multiple of 2, 4, 8, 16."""
_LEAST_GAIN = 1e-200  # of a row whose squared norm is more than float32 can be


@inlined
def sleeps(until, now):
    """True if a row is inactive in epoch `now`; `until` is at most 16 ahead, or behind."""
    return np.uint8(until - now - np.uint8(1)) < np.uint8(127)


@kernel
def rows_awake(order, begin, end, until, width, models, now, out):
    """Copy those of `order[begin:end]` to `out` that any of the models looks at; returns how many.

    `until` has `width` places a row, and the first of them have models.
    """
    count = 0
    if width == 1:
        for i in range(begin, end):
            row = order[np.uint64(i)]
            out[np.uint64(count)] = row  # no branch, which nobody could predict
            count += not sleeps(until[np.uint64(row)], now)
        return count
    for i in range(begin, end):
        if i + 16 < end:
            prefetch(until, np.int64(order[i + 16]) * width)
        row = np.int64(order[i])
        for at in range(row * width, row * width + models):
            if not sleeps(until[at], now):
                out[count] = order[i]
                count += 1
                break
    return count


@kernel
def inverse_squares(begin, end, indptr, indices, values, levels, bias, out):
    """`1 / (||x||^2 + bias^2)` of each row; of an empty one as if its norm were tiny."""
    for row in range(begin, end):
        square = square_norm(values, levels, np.int64(indptr[row]), np.int64(indptr[row + 1]), indices)
        out[row] = 1.0 / max(square + bias * bias, 1e-30)


@inlined
def label_of(label, one_class):
    """The label of a model that tells one class from the rest; as it stands if `one_class` is negative."""
    return label if one_class < 0.0 else (1.0 if label == one_class else -1.0)


@inlined
def ascend(loss, parameter, z, y, c, b, gain, offset, unit):
    """(the best b', the row's part of the gap, what the dual gains, slack, what it is off, the sizes of what it adds).

    c is the weight of the row, gain = lam m / ||x||^2.
    """
    box = largest_dual(loss, parameter, c)
    if is_unit_hinge(loss):
        short = 1.0 - y * z
        p = b * y
        met = c * (short if short > 0.0 else 0.0) - p * short
        q = p + short * gain
        q = q if q > 0.0 else 0.0
        q = q if q < box else box
        after = np.float64(np.float32(q * y))
        more = (after - b) * y - (after - b) * offset
        slack = abs(short) / unit
        off = abs(short) if after != b else 0.0
        size = 0.0
    else:
        value, _g, _dual = loss_at(loss, parameter, z, y)
        before = c * dual_at(loss, parameter, y, b / c)
        met = c * value - before + b * z
        after = np.float64(np.float32(c * best_dual(loss, parameter, z, y, b / c, c / max(gain, _LEAST_GAIN))))
        after = min(max(after, -box), box)
        now = c * dual_at(loss, parameter, y, after / c)
        more = now - before - (after - b) * offset
        size = abs(before) + abs(now) + (abs(b) + abs(after)) * (abs(y) + abs(offset))
        slack = slack_of(loss, parameter, z, y, b, box, unit)
        off = abs(z - y)
    return after, met, more, slack, off, size


@inlined
def wakes_at(wakes, slack, moved):
    """The epoch, modulo 256, when a row is looked at again; `wakes` are the next multiples of NAPS."""
    nap = 0
    if not moved and slack > _SLACK2:
        nap = 4 if slack > _SLACK16 else 3 if slack > _SLACK8 else 2 if slack > _SLACK4 else 1
    return wakes[nap]


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
    wakes,
    large,
    a,
    duals,
    until,
    state,
):
    """An ascent step on each of the rows `order[begin:end]`. `clock` is lam m; `a[-1]` is the bias if there is one."""
    dual_sum, gap_sum, visited, changed = state[DUAL], state[GAP], state[VISITED], state[CHANGED]
    off_sum, unit, sizes = state[OFF], state[UNIT], state[MAGNITUDE]
    inverse = 1.0 / clock
    now = np.uint8(wakes[0] - np.uint8(1))
    body = a[: len(a) - 1] if bias != 0.0 else a
    for i in range(begin, end):
        look_ahead(order, i, end, indptr, indices, values, labels)
        if i + OFFSETS_AHEAD < end:
            prefetch(duals, np.int64(order[i + OFFSETS_AHEAD]))
            prefetch(inverses, np.int64(order[i + OFFSETS_AHEAD]))
        row = np.int64(order[i])
        if sleeps(until[row], now):
            continue  # only where a row comes twice: see `rows_awake`
        if len(folds) > 0 and folds[row] == fold:
            until[row] = wakes[len(NAPS) - 1]
            continue
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if large:
            ahead = np.int64(order[min(i + 2, end - 1)])
            ahead, ahead_end = np.int64(indptr[ahead]), np.int64(indptr[ahead + 1])
            z = dot_large(indices, values, levels, first, last, body, ahead, ahead_end)
        else:
            z = dot(indices, values, levels, first, last, body)
        if np.isnan(z) and not is_sound(indices, first, last, len(body)):
            return row
        if bias != 0.0:
            z += a[len(a) - 1] * bias
        z = z * inverse + offset
        y = label_of(np.float64(labels[row]), one_class)
        c = weight_of(row, y, weights, class_weights)
        b = np.float64(duals[row])
        gain = clock * np.float64(inverses[row])
        after, met, more, slack, off, size = ascend(loss, parameter, z, y, c, b, gain, offset, unit)
        gap_sum += met
        dual_sum += more
        visited += 1.0
        off_sum += off
        sizes += size
        if after != b:
            add_row(indices, values, levels, first, last, body, after - b)
            if bias != 0.0:
                a[len(a) - 1] += (after - b) * bias
            duals[row] = after
            changed += 1.0
        until[row] = wakes_at(wakes, slack, after != b)
    state[DUAL], state[GAP], state[VISITED], state[CHANGED] = dual_sum, gap_sum, visited, changed
    state[OFF], state[MAGNITUDE] = off_sum, sizes
    return -1
