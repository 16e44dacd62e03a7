"""Joint multiclass losses: z and g are vectors, and the weights a panel with a column per class.

The multiclass hinge is max_k cost[y, k] + z_k - z_y, with -l*(g) the cost of the maximal class; the multiclass logistic
loss is -log p_y with p the softmax of z, and -l*(g) the entropy of p. Indices in `state` are those of
`compiled/fit/pegasos.py`, indices of sums those of `compiled/fit/sums.py`.
"""

import numpy as np

from ooc_pegasos.compiled.fit.exact_sums import dot_compensated
from ooc_pegasos.compiled.fit.panel import add_to_panel, panel_scores, prefetch_panel, row_buffers
from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, S, T, prefetch_next_rows
from ooc_pegasos.compiled.fit.sums import HOLDOUT_ERRORS, HOLDOUT_LOSS, HOLDOUT_ROWS, HOLDOUT_SQUARES, SLOPES, TRAINING
from ooc_pegasos.compiled.jit import kernel

MULTICLASS_HINGE, MULTICLASS_LOGISTIC = 100, 101
_SCORE_UNITS = 8.0 * 2.0**-53


@kernel
def class_loss(loss, z, label, costs, g):
    """Return (l(z), l(z) - <g, z>) of a row of class `label`, and write a subgradient to g."""
    classes = len(costs)
    if loss == MULTICLASS_HINGE:
        chosen, value = label, 0.0
        for k in range(classes):
            g[k] = 0.0
            short = costs[label, k] + z[k] - z[label]
            if short > value:
                chosen, value = k, short
        if chosen != label:
            g[chosen], g[label] = 1.0, -1.0
        return value, costs[label, chosen]
    if loss != MULTICLASS_LOGISTIC:
        raise ValueError("unknown loss")
    best = 0
    for k in range(1, classes):
        best = k if z[k] > z[best] else best
    # summed without the 1 of the best class, which would absorb tiny terms
    others = 0.0
    for k in range(classes):
        g[k] = np.exp(z[k] - z[best])
        others += g[k] if k != best else 0.0
    inner = 0.0
    for k in range(classes):
        g[k] /= 1.0 + others
        inner += g[k] * (z[k] - z[best])
    g[label] = -others / (1.0 + others) if label == best else g[label] - 1.0
    log_total = np.log1p(others)
    return log_total + (z[best] - z[label]), log_total - inner


@kernel
def process_classes(
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
    fold,
    class_weights,
    costs,
    loss,
    bias,
    lam,
    delay,
    large,
    features,
    width,
    panel,
    state,
    record,
    stride,
    column,
):
    """Make a step for each row of `order[begin:end]`, equation (2) with a vector g.

    A `record` that is not None sums -g of each row, in the columns from `column` on of `stride`.
    """
    z, g = np.zeros(width), np.zeros(width)
    offsets, xs = row_buffers(indptr, order[begin:end])
    t, dual_sum, loss_sum, errors = state[T], state[S], state[LOSS], state[ERRORS]
    for i in range(begin, end):
        prefetch_next_rows(order, i, end, indptr, indices, values, labels)
        if large and i + 2 < end:
            prefetch_panel(indptr, indices, np.int64(order[i + 2]), panel, width)
        row = np.int64(order[i])
        if len(folds) > 0 and folds[row] == fold:
            continue
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, offsets, xs, panel, width, features, bias, z):
            return row
        clock = lam * (t + delay)
        step = 1.0 / clock if clock > 0.0 else 0.0
        for k in range(len(costs)):
            z[k] *= step
        label = np.int64(labels[row])
        c = class_weights[label]
        if len(weights) > 0:
            c *= weights[row]
        value, dual = class_loss(loss, z, label, costs, g)
        loss_sum += c * value
        dual_sum += c * dual
        state[MAGNITUDE] += c * dual
        changed = False
        for k in range(len(costs)):
            changed = changed or g[k] != 0.0
            if record is not None:
                record[row * stride + column + k] -= g[k]
            g[k] *= -c
        if changed:
            errors += 1.0
            add_to_panel(offsets, xs, last - first, panel, width, features, bias, g)
        t += 1.0
    state[T], state[S], state[LOSS], state[ERRORS] = t, dual_sum, loss_sum, errors
    return -1


@kernel
def sum_class_losses(
    begin,
    end,
    indptr,
    indices,
    values,
    levels,
    labels,
    weights,
    folds,
    fold,
    class_weights,
    costs,
    loss,
    bias,
    features,
    width,
    twice,
    error,
    panel,
    sums,
):
    """Add the weighted losses of rows begin to end for a candidate, at the worst scores within `error` as in `sums`.

    With `compensated` scores are computed in double-double precision.
    """
    z, g = np.zeros(width), np.zeros(width)
    offsets, xs = row_buffers(indptr, range(begin, end))
    for row in range(begin, end):
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, offsets, xs, panel, width, features, bias, z):
            return row
        if twice:
            body = panel[: features * width]
            for k in range(len(costs)):
                more = panel[features * width + k] * bias if bias != 0.0 else 0.0
                z[k] = dot_compensated(indices, values, levels, first, last, body, width, k, more)
        label = np.int64(labels[row])
        c = class_weights[label]
        if len(weights) > 0:
            c *= weights[row]
        is_holdout = len(folds) > 0 and folds[row] == fold
        if not is_holdout:
            largest = np.max(np.abs(z[: len(costs)]))
            z[label] -= 2.0 * (error + _SCORE_UNITS * (largest + costs.max()))
        value, _dual = class_loss(loss, z, label, costs, g)
        if is_holdout:
            sums[HOLDOUT_LOSS] += c * value
            sums[HOLDOUT_SQUARES] += c * value * c * value
            sums[HOLDOUT_ERRORS] += 1.0 if np.argmax(z[: len(costs)]) != label else 0.0
            sums[HOLDOUT_ROWS] += 1.0
        else:
            sums[TRAINING] += c * value
            for k in range(len(costs)):
                sums[SLOPES] += c * abs(g[k])
    return -1


@kernel
def class_losses_of(loss, costs, scores, labels, out):
    """Compute the loss of each row."""
    g = np.zeros(len(costs))
    for row in range(len(labels)):
        out[row], _dual = class_loss(loss, scores[row], np.int64(labels[row]), costs, g)
