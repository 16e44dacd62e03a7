"""Scores and losses of rows, for single vectors and for model panels; see `compiled/fit/panel_steps.py` for `table`."""

import numpy as np

from ooc_pegasos.compiled.fit.exact_sums import dot_compensated
from ooc_pegasos.compiled.fit.losses import loss_at, worst_score
from ooc_pegasos.compiled.fit.panel import panel_scores, row_buffers
from ooc_pegasos.compiled.fit.panel_steps import (
    COMPENSATED,
    FOLD,
    NEGATIVE,
    NO_FOLD,
    OFFSET,
    ONE_CLASS,
    POSITIVE,
    SCORE_ERROR,
)
from ooc_pegasos.compiled.fit.pegasos import add_row, dot, has_valid_indices, weight_of
from ooc_pegasos.compiled.fit.sdca import label_of
from ooc_pegasos.compiled.jit import inlined, kernel

# Rows of the sums of losses: of training rows, at the worst scores within rounding errors; of holdout rows the sum, the
# sum of squares, the number of errors and of rows; the sizes of the subgradients of training rows.
TRAINING, HOLDOUT_LOSS, HOLDOUT_SQUARES, HOLDOUT_ERRORS, HOLDOUT_ROWS, SLOPES = range(6)
SUMS_SIZE = 6

_ROWS_AT_A_TIME = 256


@inlined
def _add_loss(label, weight, fold, loss, parameter, z, table, j, sums):
    """Add the loss of a row with score z to the sums of candidate j."""
    y = label_of(label, table[ONE_CLASS, j])
    c = weight * (table[POSITIVE, j] if y > 0 else table[NEGATIVE, j])
    is_holdout = table[FOLD, j] == fold
    value, g, _dual = loss_at(loss, parameter, z if is_holdout else worst_score(loss, z, y, table[SCORE_ERROR, j]), y)
    if is_holdout:
        sums[HOLDOUT_LOSS, j] += c * value
        sums[HOLDOUT_SQUARES, j] += c * value * c * value
        sums[HOLDOUT_ERRORS, j] += 1.0 if (z > 0) != (y > 0) else 0.0
        sums[HOLDOUT_ROWS, j] += 1.0
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
    # in blocks of rows: a view of each candidate for every row would cost more than the row
    for block in range(begin, end, _ROWS_AT_A_TIME):
        stop = min(block + _ROWS_AT_A_TIME, end)
        for j in range(len(candidates)):
            w = candidates[j]
            body = w[: len(w) - 1] if bias != 0.0 else w
            more = w[len(w) - 1] * bias if bias != 0.0 else 0.0
            for row in range(block, stop):
                label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
                weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
                first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
                if table[COMPENSATED, j] != 0.0:
                    z = dot_compensated(indices, values, levels, first, last, body, 1, 0, more + table[OFFSET, j])
                else:
                    z = dot(indices, values, levels, first, last, body) + more + table[OFFSET, j]
                if np.isnan(z) and not has_valid_indices(indices, first, last, len(body)):
                    return row
                _add_loss(label, weight, fold, loss, parameter, z, table, j, sums)
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
    """Do the same as `sum_losses` for `candidates` in a panel."""
    width = table.shape[1]
    z = np.zeros(width)
    offsets, xs = row_buffers(indptr, range(begin, end))
    for row in range(begin, end):
        label, fold = np.float64(labels[row]), np.float64(folds[row]) if len(folds) > 0 else NO_FOLD
        weight = np.float64(weights[row]) if len(weights) > 0 else 1.0
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, offsets, xs, panel, width, features, bias, z):
            return row
        for j in range(candidates):
            _add_loss(label, weight, fold, loss, parameter, z[j] + table[OFFSET, j], table, j, sums)
    return -1


@kernel
def score_panel(begin, end, indptr, indices, values, levels, features, width, panel, bias, scores):
    """Compute the scores of rows begin to end by the columns of `bias`; return a row with an invalid index, or -1."""
    z = np.zeros(width)
    offsets, xs = row_buffers(indptr, range(begin, end))
    for row in range(begin, end):
        first, last = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if not panel_scores(indices, values, levels, first, last, offsets, xs, panel, width, features, 0.0, z):
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
def sum_rows(begin, end, indptr, indices, values, levels, labels, weights, folds, classes, fold_count, vectors, sums):
    """Add c x, and c, c y and c |y|, to the line of each row's class and fold; with one class labels are targets."""
    for row in range(begin, end):
        y = np.float64(labels[row])
        c = np.float64(weights[row]) if len(weights) > 0 else 1.0
        line = 0
        if classes == 2:
            line = 1 if y > 0 else 0
        elif classes > 2:
            line = np.int64(y)
        line = line * fold_count + (np.int64(folds[row]) if len(folds) > 0 else 0)
        add_row(indices, values, levels, np.int64(indptr[row]), np.int64(indptr[row + 1]), vectors[line], c)
        sums[line, 0] += c
        sums[line, 1] += c * y
        sums[line, 2] += c * abs(y)


@kernel
def sum_losses_at(scores, labels, weights, class_weights, one_class, loss, parameter, offsets, sums):
    """Add the losses of rows for each of several biases."""
    for row in range(len(scores)):
        y = label_of(np.float64(labels[row]), one_class)
        c = weight_of(row, y, weights, class_weights)
        for j in range(len(offsets)):
            value, _g, _dual = loss_at(loss, parameter, scores[row] + offsets[j], y)
            sums[j] += c * value
