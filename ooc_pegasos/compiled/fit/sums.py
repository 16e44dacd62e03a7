"""Scores and losses of rows, for one vector or for many side by side; see `compiled/fit/many.py` for `table`."""

import numpy as np

from ooc_pegasos.compiled.fit.exact_sums import dot_twice
from ooc_pegasos.compiled.fit.losses import loss_at, worst_score
from ooc_pegasos.compiled.fit.many import FOLD, NEGATIVE, NO_FOLD, OFFSET, ONE_CLASS, POSITIVE, SCORE_ERROR, TWICE
from ooc_pegasos.compiled.fit.panel import panel_scores, room_for
from ooc_pegasos.compiled.fit.pegasos import add_row, dot, is_sound, weight_of
from ooc_pegasos.compiled.fit.sdca import label_of
from ooc_pegasos.compiled.jit import inlined, kernel

# Lines of the sums of losses: rows trained on, with scores off by as much as rounding may have made them; rows kept
# apart, their squares, their errors, how many they are; and of rows trained on the sizes of subgradients.
TRAINING, APART, APART_SQUARES, APART_ERRORS, APART_ROWS, SLOPES = range(6)
SUMS_SIZE = 6

_ROWS_AT_A_TIME = 256


@inlined
def _count_loss(label, weight, fold, loss, parameter, z, table, j, sums):
    """Add what a row with score z costs candidate j to its sums."""
    y = label_of(label, table[ONE_CLASS, j])
    c = weight * (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j])
    apart = table[FOLD, j] == fold
    value, g, _dual = loss_at(loss, parameter, z if apart else worst_score(loss, z, y, table[SCORE_ERROR, j]), y)
    if apart:
        sums[APART, j] += c * value
        sums[APART_SQUARES, j] += c * value * c * value
        sums[APART_ERRORS, j] += 1.0 if (z > 0) != (y > 0) else 0.0
        sums[APART_ROWS, j] += 1.0
    else:
        sums[TRAINING, j] += c * value
        sums[SLOPES, j] += c * abs(g)


@kernel
def sum_losses(
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
    table,
    candidates,
    sums,
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
                label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
                weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
                first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
                if table[TWICE, j] != 0.0:
                    z = dot_twice(indices, values, levels, first, last, body, 1, 0, more + table[OFFSET, j])
                else:
                    z = dot(indices, values, levels, first, last, body) + more + table[OFFSET, j]
                if np.isnan(z) and not is_sound(indices, first, last, len(body)):
                    return row
                _count_loss(label, weight, fold, loss, parameter, z, table, j, sums)
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
    places, xs = room_for(indptr, range(begin, end))
    for row in range(begin, end):
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, places, xs, panel, width, features, bias, z):
            return row
        for j in range(candidates):
            _count_loss(label, weight, fold, loss, parameter, z[j] + table[OFFSET, j], table, j, sums)
    return -1


@kernel
def score_panel(begin, end, indptr, indices, values, levels, features, width, panel, bias, scores):
    """The scores of rows begin to end by all columns that `bias` has; returns the row with a bad index, or -1."""
    z = np.zeros(width)
    places, xs = room_for(indptr, range(begin, end))
    for row in range(begin, end):
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, places, xs, panel, width, features, 0.0, z):
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
def sum_rows(begin, end, indptr, indices, values, levels, labels, weights, folds, classes, many_folds, vectors, sums):
    """Add c x, and c, c y and c |y|, to the line of each row's class and fold; with one class labels are targets."""
    for row in range(begin, end):
        y = np.float64(labels[row])
        c = np.float64(weights[row]) if len(weights) > 0 else 1.0
        line = 0
        if classes == 2:
            line = 1 if y > 0 else 0
        elif classes > 2:
            line = np.int64(y)
        line = line * many_folds + (np.int64(folds[row]) if len(folds) > 0 else 0)
        add_row(indices, values, levels, np.int64(indptr[row]), np.int64(indptr[row + 1]), vectors[line], c)
        sums[line, 0] += c
        sums[line, 1] += c * y
        sums[line, 2] += c * abs(y)


@kernel
def sum_losses_at(scores, labels, weights, class_weights, one_class, loss, parameter, offsets, sums):
    """Add up what rows cost with each of several biases."""
    for row in range(len(scores)):
        y = label_of(np.float64(labels[row]), one_class)
        c = weight_of(row, y, weights, class_weights)
        for j in range(len(offsets)):
            value, _g, _dual = loss_at(loss, parameter, scores[row] + offsets[j], y)
            sums[j] += c * value
