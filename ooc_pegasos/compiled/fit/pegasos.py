"""Pegasos: equation (2) of the README; a step processes a row, a batch, or a row several times.

Names are those of the mathematics: `a` the sum of the updates, `t` processed rows, z = <a, x> / (lam (t + delay)) the
score, g a subgradient of the loss at z. Rows are gap-coded or plain, see `compiled/rows/coding.py`. `state` holds
scalar sums. The caller has checked `indptr` and the order. Kernels check all indices, and return the row whose index is
too large, or -1 for none.
"""

import numpy as np

from ooc_pegasos.compiled.fit.batch_bias import balanced_slopes, best_offset
from ooc_pegasos.compiled.fit.losses import loss_at
from ooc_pegasos.compiled.intrinsics import escape_of_type, prefetch, value_at
from ooc_pegasos.compiled.jit import called, inlined, kernel
from ooc_pegasos.compiled.rows.gather import OFFSETS_AHEAD, ROWS_AHEAD, prefetch_row

# Indices in `state`. MAGNITUDE is the sum of the sizes of the terms added to S in this epoch. SQUARE, SUM, VECTOR_ERROR
# and SUM_ERROR are ||a||^2, S, and bounds on the rounding errors of `a` and S at the beginning of the epoch.
T, S, LOSS, SCALE, NORM2, ERRORS, AVERAGED, FREE_BIAS, MAGNITUDE, SQUARE, SUM, VECTOR_ERROR, SUM_ERROR = range(13)
# For an unregularized bias: the sum of -g up to the last step of its centre, and the state of `proximal_step`.
MASS, STEP_FACTOR, LAST_STEP = range(13, 16)
STATE_SIZE = 16
# Method for an unregularized bias, in state[FREE_BIAS]: none; subgradient steps; the best bias of each batch; the
# proximal point method: a constant feature regularised towards the centre state[FREE_BIAS], which follows the bias.
NO_FREE_BIAS, BY_SUBGRADIENT, BY_BATCH, PROXIMAL = range(4)

_EMPTY = np.empty(0)


@kernel
def weight_or_zero(weight, code, escape):
    """Return the weight, or 0 at an escape, without a branch."""
    return weight if escape == 0 or code != np.uint64(escape) else 0.0


@kernel
def dot(indices, values, levels, begin, end, a):
    """Return <a, x>, or NaN if an index is not below len(a).

    Unsigned indices avoid numba's check for negative ones. Gap-coded indices increase, so one check for four suffices.
    """
    escape = escape_of_type(indices)
    z, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
    f = np.uint64(0)
    at, stop, limit = np.uint64(begin), np.uint64(end), np.uint64(len(a))
    if values is None:
        while at + np.uint64(3) < stop:
            code, code1 = np.uint64(indices[at]), np.uint64(indices[at + np.uint64(1)])
            code2, code3 = np.uint64(indices[at + np.uint64(2)]), np.uint64(indices[at + np.uint64(3)])
            f = code + (f if escape > 0 else np.uint64(0))
            f1 = code1 + (f if escape > 0 else np.uint64(0))
            f2 = code2 + (f1 if escape > 0 else np.uint64(0))
            f3 = code3 + (f2 if escape > 0 else np.uint64(0))
            if f3 >= limit or (escape == 0 and (f >= limit or f1 >= limit or f2 >= limit)):
                return np.nan
            z += weight_or_zero(a[f], code, escape)
            z1 += weight_or_zero(a[f1], code1, escape)
            z2 += weight_or_zero(a[f2], code2, escape)
            z3 += weight_or_zero(a[f3], code3, escape)
            f = f3
            at += np.uint64(4)
        while at < stop:
            code = np.uint64(indices[at])
            f = code + (f if escape > 0 else np.uint64(0))
            if f >= limit:
                return np.nan
            z += weight_or_zero(a[f], code, escape)
            at += np.uint64(1)
    else:
        # four independent sums, to hide the latency of additions
        while at + np.uint64(3) < stop:
            f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
            f1 = np.uint64(indices[at + np.uint64(1)]) + (f if escape > 0 else np.uint64(0))
            f2 = np.uint64(indices[at + np.uint64(2)]) + (f1 if escape > 0 else np.uint64(0))
            f3 = np.uint64(indices[at + np.uint64(3)]) + (f2 if escape > 0 else np.uint64(0))
            if f3 >= limit or (escape == 0 and (f >= limit or f1 >= limit or f2 >= limit)):
                return np.nan
            z += a[f] * value_at(values, at, levels)  # an escape's value is 0
            z1 += a[f1] * value_at(values, at + np.uint64(1), levels)
            z2 += a[f2] * value_at(values, at + np.uint64(2), levels)
            z3 += a[f3] * value_at(values, at + np.uint64(3), levels)
            f = f3
            at += np.uint64(4)
        while at < stop:
            f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
            if f >= limit:
                return np.nan
            z += a[f] * value_at(values, at, levels)
            at += np.uint64(1)
    return z + z1 + z2 + z3


@kernel
def has_valid_indices(indices, begin, end, features):
    """True if every index of a row is below `features`."""
    escape = escape_of_type(indices)
    f = np.uint64(0)
    for at in range(np.uint64(begin), np.uint64(end)):
        f = np.uint64(indices[at]) + (f if escape > 0 else np.uint64(0))
        if f >= np.uint64(features):
            return False
    return True


@kernel
def square_norm(values, levels, begin, end, indices):
    """Return <x, x>."""
    escape = escape_of_type(indices)
    total = 0.0
    for at in range(np.uint64(begin), np.uint64(end)):
        if values is None:
            if escape == 0 or indices[at] != escape:
                total += 1.0
        else:
            value = value_at(values, at, levels)
            total += value * value
    return total


@kernel
def add_row(indices, values, levels, begin, end, a, factor):
    """Compute `a += factor x`, up to the first index that is not below len(a)."""
    escape = escape_of_type(indices)
    f = np.uint64(0)
    for at in range(np.uint64(begin), np.uint64(end)):
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= np.uint64(len(a)):
            return  # a mapped file was changed after `dot`; training detects that
        if values is None:
            if escape == 0 or code != np.uint64(escape):
                a[f] += factor
        else:
            a[f] += factor * value_at(values, at, levels)  # an escape's value is 0


@kernel
def dot_prefetching(indices, values, levels, begin, end, a, ahead, ahead_end):
    """Do the same as `dot`, with prefetches of the weights of the row at `ahead`.

    Prefetches are interleaved with loads, because a burst of prefetches would fill the memory queue and block loads.
    """
    escape = escape_of_type(indices)
    z, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
    f, g = np.uint64(0), np.uint64(0)
    at, stop, limit = np.uint64(begin), np.uint64(end), np.uint64(len(a))
    to, last = np.uint64(ahead), np.uint64(ahead_end)
    while at + np.uint64(3) < stop:
        if to + np.uint64(3) < last:
            g = np.uint64(indices[to]) + (g if escape > 0 else np.uint64(0))
            g1 = np.uint64(indices[to + np.uint64(1)]) + (g if escape > 0 else np.uint64(0))
            g2 = np.uint64(indices[to + np.uint64(2)]) + (g1 if escape > 0 else np.uint64(0))
            g3 = np.uint64(indices[to + np.uint64(3)]) + (g2 if escape > 0 else np.uint64(0))
            prefetch(a, np.int64(g))
            prefetch(a, np.int64(g1))
            prefetch(a, np.int64(g2))
            prefetch(a, np.int64(g3))
            g = g3
            to += np.uint64(4)
        code, code1 = np.uint64(indices[at]), np.uint64(indices[at + np.uint64(1)])
        code2, code3 = np.uint64(indices[at + np.uint64(2)]), np.uint64(indices[at + np.uint64(3)])
        f = code + (f if escape > 0 else np.uint64(0))
        f1 = code1 + (f if escape > 0 else np.uint64(0))
        f2 = code2 + (f1 if escape > 0 else np.uint64(0))
        f3 = code3 + (f2 if escape > 0 else np.uint64(0))
        if f3 >= limit or (escape == 0 and (f >= limit or f1 >= limit or f2 >= limit)):
            return np.nan
        if values is None:
            z += weight_or_zero(a[f], code, escape)
            z1 += weight_or_zero(a[f1], code1, escape)
            z2 += weight_or_zero(a[f2], code2, escape)
            z3 += weight_or_zero(a[f3], code3, escape)
        else:
            z += a[f] * value_at(values, at, levels)  # an escape's value is 0
            z1 += a[f1] * value_at(values, at + np.uint64(1), levels)
            z2 += a[f2] * value_at(values, at + np.uint64(2), levels)
            z3 += a[f3] * value_at(values, at + np.uint64(3), levels)
        f = f3
        at += np.uint64(4)
    while to < last:
        g = np.uint64(indices[to]) + (g if escape > 0 else np.uint64(0))
        prefetch(a, np.int64(g))
        to += np.uint64(1)
    while at < stop:
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= limit:
            return np.nan
        if values is not None:
            z += a[f] * value_at(values, at, levels)
        elif escape == 0 or code != np.uint64(escape):
            z += a[f]
        at += np.uint64(1)
    return z + z1 + z2 + z3


@inlined
def prefetch_next_rows(order, i, end, indptr, indices, values, labels):
    """Prefetch the data of the next rows, which makes random order as fast as sequential order."""
    if i + OFFSETS_AHEAD < end:
        prefetch(indptr, np.int64(order[i + OFFSETS_AHEAD]))
        prefetch(labels, np.int64(order[i + OFFSETS_AHEAD]))
    if i + ROWS_AHEAD < end:
        prefetch_row(indptr, indices, values, np.int64(order[i + ROWS_AHEAD]))


@inlined
def weight_of(row, y, weights, class_weights):
    """Return the weight of a row: the weight of its class times its own."""
    c = class_weights[1] if y > 0 else class_weights[0]
    return c * weights[row] if len(weights) > 0 else c


def proximal_step(state: np.ndarray, move: float, factor: int, last: int) -> float:
    """Return the distance to move the centre of a bias: an extrapolated step of the proximal point method.

    Steps may be small compared with the distance to the optimum. So the factor of a step is doubled if it has the
    direction and at least half of the length of the last one; if the direction changes after an extrapolation, at most
    half of the last distance is undone. `factor` and `last` are the indices in `state` of the factor of the last step,
    and of the step.
    """
    size, times, before = abs(move), max(float(state[factor]), 1.0), abs(float(state[last]))
    distance = float(state[factor]) * before
    if move * state[last] < 0 and times > 1:
        size = min(size, distance / 2)
    elif move * state[last] > 0:
        times *= 2 if size > before / 2 else 1
        size = min(size * times, max(size, 4 * distance))
    state[last], state[factor] = move, size / abs(move) if move else 1.0
    return size if move > 0 else -size


@inlined
def _features_of(a, bias):
    """Return `a` without the weight of the bias, its last element if there is one."""
    return a[: max(len(a) - 1, 0)] if bias != 0.0 else a


@inlined
def _add_bias(a, b, factor, r):
    a[len(a) - 1] += factor
    if len(b) > 0:
        b[len(b) - 1] += factor * r


@kernel
def process_rows(
    order,
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    class_weights,
    loss,
    parameter,
    bias,
    lam,
    delay,
    large,
    a,
    b,
    state,
    record,
    stride,
    column,
):
    """Make a step of Pegasos for each row of `order[begin:end]`.

    With r the running sum of 1 / (lam t), kept in state[AVERAGED], a `b` that is not empty sums r times each
    update; the sum of all iterates is then r a - b (equation 2a). A `record` that is not None sums -g of each row, in
    one column of `stride`: the dual variables of a proof.
    """
    body, body_of_b = _features_of(a, bias), _features_of(b, bias)
    t, dual_sum, loss_sum, errors = state[T], state[S], state[LOSS], state[ERRORS]
    r, centre, magnitude = state[AVERAGED], state[FREE_BIAS], state[MAGNITUDE]
    # 1 / (lam (t + delay)), or 0 before the first row, where a is 0; computed before the inner product
    step = 1.0 / (lam * (t + delay)) if t + delay > 0.0 else 0.0
    for i in range(begin, end):
        prefetch_next_rows(order, i, end, indptr, indices, values, labels)
        row = np.int64(order[i])
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        y = np.float64(labels[row])
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
        z = z * step + centre
        value, g, dual = loss_at(loss, parameter, z, y)
        c = weight_of(row, y, weights, class_weights)
        loss_sum += c * value
        if g != 0.0:
            dual_sum += c * dual
            magnitude += c * (abs(dual) + abs(g * y))
            errors += 1.0
            add_row(indices, values, levels, first, last, body, -c * g)
            if len(b) > 0:
                add_row(indices, values, levels, first, last, body_of_b, -c * g * r)
            if bias != 0.0:
                _add_bias(a, b, -c * g * bias, r)
            if record is not None:
                record[row * stride + column] -= g
        t += 1.0
        step = 1.0 / (lam * (t + delay))
        r += step
    state[T], state[S], state[LOSS], state[ERRORS] = t, dual_sum, loss_sum, errors
    state[AVERAGED], state[MAGNITUDE] = r, magnitude
    return -1


@kernel
def multiple_errors(delta, repeats, lam, square):
    """Return the number of margin errors in `repeats` consecutive updates with a row, equation (6).

    `lam` is the increase of the margin in an update; an unregularized bias can make it negative.
    """
    if lam <= 0.0:  # after an update without error no further error occurs
        return 0.0 if delta > 0.0 else min(float(repeats), np.floor(-delta / max(square - lam, 1e-300)) + 1.0)
    if delta > (repeats - 1) * lam:
        return 0.0
    return min(float(repeats), np.floor(((repeats - 1) * lam - delta) / max(square, lam)) + 1.0)


@kernel
def process_rows_repeatedly(
    order,
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    class_weights,
    bias,
    lam,
    delay,
    repeats,
    large,
    a,
    b,
    state,
    record,
    stride,
    column,
):
    """Make `repeats` consecutive steps for each row with a single inner product (hinge only), equation (6)."""
    body, body_of_b = _features_of(a, bias), _features_of(b, bias)
    t, dual_sum, loss_sum, errors = state[T], state[S], state[LOSS], state[ERRORS]
    r, centre = state[AVERAGED], state[FREE_BIAS]
    for i in range(begin, end):
        prefetch_next_rows(order, i, end, indptr, indices, values, labels)
        row = np.int64(order[i])
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        y = np.float64(labels[row])
        c = weight_of(row, y, weights, class_weights)
        clock = lam * (t + delay)
        if large:
            ahead = np.int64(order[min(i + 2, end - 1)])
            ahead, ahead_end = np.int64(indptr[ahead]), np.int64(indptr[ahead + 1])
            score = dot_prefetching(indices, values, levels, first, last, body, ahead, ahead_end)
        else:
            score = dot(indices, values, levels, first, last, body)
        if np.isnan(score) and not has_valid_indices(indices, first, last, len(body)):
            return row
        if bias != 0.0:
            score += a[len(a) - 1] * bias
        if clock > 0.0:
            loss_sum += c * max(0.0, 1.0 - y * (score / clock + centre))
        else:
            loss_sum += c * max(0.0, 1.0 - y * centre)
        # with a weight of c an update moves the margin by c <x, x>
        square = c * (square_norm(values, levels, first, last, indices) + bias * bias)
        rest = 1.0 - y * centre
        mu = multiple_errors(y * score - clock * rest, repeats, lam * rest, square)
        if mu > 0.0:
            dual_sum += c * mu
            state[MAGNITUDE] += 2.0 * c * mu
            errors += mu
            add_row(indices, values, levels, first, last, body, c * mu * y)
            if len(b) > 0:
                add_row(indices, values, levels, first, last, body_of_b, c * mu * y * r)
            if bias != 0.0:
                _add_bias(a, b, c * mu * y * bias, r)
            if record is not None:
                record[row * stride + column] += mu * y
        t += repeats
        r += repeats / (lam * (t + delay))
    state[T], state[S], state[LOSS], state[ERRORS] = t, dual_sum, loss_sum, errors
    state[AVERAGED] = r
    return -1


@called
def _balanced_slopes(loss, parameter, scores, targets, row_weights, count, points, jumps, state, slopes):
    """Find the best bias for a batch and subgradients that add up to 0, and add to the sums in `state`."""
    state[FREE_BIAS] = best_offset(loss, parameter, scores, targets, row_weights, count, points, jumps)
    total, magnitude = balanced_slopes(loss, parameter, scores, targets, row_weights, count, state[FREE_BIAS], slopes)
    state[S] += total
    state[MAGNITUDE] += magnitude
    for i in range(count):
        value, _g, _dual = loss_at(loss, parameter, scores[i] + state[FREE_BIAS], targets[i])
        state[LOSS] += row_weights[i] * value
        state[ERRORS] += 1.0 if slopes[i] != 0.0 else 0.0


@called
def _project(lam, delay, a, b, state, record, stride, column, log_scale):
    """Scale `a` so that ||w|| = ||a|| / clock <= 1 / sqrt(lam)."""
    clock = lam * (state[T] + delay)
    norm = np.sqrt(max(state[NORM2], 0.0))
    shrink = clock / (np.sqrt(lam) * norm) if norm > 0.0 else 1.0
    if shrink < 1.0:
        state[SCALE] *= shrink
        state[NORM2] *= shrink * shrink
        state[S] *= shrink
        if state[SCALE] < 1e-2:  # a small scale would reduce the precision of the average
            for f in range(len(a)):
                if len(b) > 0:
                    b[f] -= state[AVERAGED] * a[f]  # keeps r a - b with r = 0
                a[f] *= state[SCALE]
            if record is not None:
                for entry in range(column, len(record), stride):
                    record[entry] *= state[SCALE]
            log_scale[0] += np.log(state[SCALE])
            state[AVERAGED] = 0.0
            state[SCALE] = 1.0


@kernel
def process_batches(
    order,
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    class_weights,
    loss,
    parameter,
    bias,
    lam,
    delay,
    size,
    project,
    free,
    a,
    b,
    state,
    record,
    stride,
    column,
    log_scale,
):
    """Process mini-batches of `size` rows: all scores with the `a` from before the batch, then all updates.

    With `project`, `a` is represented as state[SCALE] times the array, with its squared norm in state[NORM2], so that
    the projection onto the ball of radius 1 / sqrt(lam) costs no more than the rows (README, equation 2p). The `record`
    has the same scale; `log_scale` is the logarithm of all scales that were applied to the arrays.
    """
    last_weight = bias if free == NO_FREE_BIAS else 1.0
    body, body_of_b = _features_of(a, last_weight), _features_of(b, last_weight)
    # the loops over the rows are no functions: a call takes longer than a short row, 0.2 microseconds
    slopes = np.empty(size)
    room = size if free == BY_BATCH else 0
    scores, targets, row_weights = np.empty(room), np.empty(room), np.empty(room)
    points, jumps = np.empty(2 * room), np.empty(2 * room)
    at = begin
    while at < end:
        stop = min(at + size, end)
        scale = state[SCALE]
        clock = lam * (state[T] + delay)
        for i in range(at, stop):
            prefetch_next_rows(order, i, end, indptr, indices, values, labels)
            row = np.int64(order[i])
            first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
            y = np.float64(labels[row])
            z = dot(indices, values, levels, first, last, body)
            if np.isnan(z) and not has_valid_indices(indices, first, last, len(body)):
                return row
            if bias != 0.0:
                z += a[len(a) - 1] * bias
            z *= scale
            z = z / clock if clock > 0.0 else 0.0
            c = weight_of(row, y, weights, class_weights)
            if free == BY_BATCH:  # slopes are computed after the bias
                scores[i - at], targets[i - at], row_weights[i - at] = z, y, c
                continue
            value, g, dual = loss_at(loss, parameter, z + state[FREE_BIAS], y)
            state[LOSS] += c * value
            slopes[i - at] = c * g
            if g != 0.0:
                state[S] += c * dual
                state[MAGNITUDE] += c * (abs(dual) + abs(g * y))
                state[ERRORS] += 1.0
                if record is not None:
                    record[row * stride + column] -= g / scale
        if free == BY_BATCH:
            count = stop - at
            _balanced_slopes(loss, parameter, scores, targets, row_weights, count, points, jumps, state, slopes)
            if record is not None:
                for i in range(count):
                    record[np.int64(order[at + i]) * stride + column] -= slopes[i] / row_weights[i] / scale
        for i in range(at, stop):
            factor = -slopes[i - at]
            if factor == 0.0:
                continue
            row = np.int64(order[i])
            first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
            if project:
                inner = dot(indices, values, levels, first, last, body)
                if bias != 0.0:
                    inner += a[len(a) - 1] * bias
                inner *= scale
                square = square_norm(values, levels, first, last, indices) + bias * bias
                state[NORM2] += 2.0 * factor * inner + factor * factor * square
            add_row(indices, values, levels, first, last, body, factor / scale)
            if len(b) > 0:
                add_row(indices, values, levels, first, last, body_of_b, factor / scale * state[AVERAGED])
            if bias != 0.0:
                _add_bias(a, b, factor / scale * bias, state[AVERAGED])
            elif last_weight != 0.0:  # the sum of -g, which is 0 at the optimum of an unregularized bias
                a[len(a) - 1] += factor / scale
        state[T] += stop - at
        if free == BY_SUBGRADIENT:
            state[FREE_BIAS] -= slopes[: stop - at].sum() / (lam * (state[T] + delay))
        if project:
            _project(lam, delay, a, b, state, record, stride, column, log_scale)
        state[AVERAGED] += (stop - at) * state[SCALE] / (lam * (state[T] + delay))
        at = stop
    return -1


@kernel
def score_rows(begin, end, indptr, indices, values, levels, w, scores):
    """Compute `scores[i - begin] = <w, x_i>` for rows begin to end, summed in the order of features.

    So scores are bitwise independent of the coding of rows.
    """
    escape = escape_of_type(indices)
    for row in range(begin, end):
        z = 0.0
        f = np.uint64(0)
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            code = np.uint64(indices[at])
            f = code + (f if escape > 0 else np.uint64(0))
            if f >= np.uint64(len(w)):
                return row
            if escape == 0 or code != np.uint64(escape):
                z += w[f] if values is None else w[f] * value_at(values, at, levels)
        scores[row - begin] = z
    return -1


@inlined
def _square_of_difference(left, right, scale, f):
    difference = (left[f] - right[f] if len(right) > 0 else left[f]) * scale
    return difference * difference


@kernel
def square_distance(left, right, scale):
    """Return ||scale (left - right)||^2; an empty `right` is zero. Four sums hide the latency of additions."""
    one, two, three, four = 0.0, 0.0, 0.0, 0.0
    even = len(left) - len(left) % 4
    for f in range(0, even, 4):
        one += _square_of_difference(left, right, scale, f)
        two += _square_of_difference(left, right, scale, f + 1)
        three += _square_of_difference(left, right, scale, f + 2)
        four += _square_of_difference(left, right, scale, f + 3)
    for f in range(even, len(left)):
        one += _square_of_difference(left, right, scale, f)
    return (one + two) + (three + four)


def square(vector: np.ndarray) -> float:
    """Return ||vector||^2. Not by BLAS, whose threads spin for 0.1 seconds and take cores from kernels."""
    return float(square_distance(np.ascontiguousarray(vector), _EMPTY, 1.0))


@kernel
def folds_of_rows(first_row, threshold, folds, out):
    """Compute the fold of each row by the hash of its number, counted from `first_row`.

    With `folds` 0 the fold is 0 for hashes below `threshold` (of 2^53) and 1 for others.
    """
    for i in range(len(out)):
        word = np.uint64(first_row + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed = (word ^ (word >> np.uint64(31))) >> np.uint64(11)
        if folds > 0:
            out[i] = (hashed * np.uint64(folds)) >> np.uint64(53)
        else:
            out[i] = 0 if np.int64(hashed) < threshold else 1
