"""Compensated (double-double) sums as (high, low) pairs of float64, and the dual objective in this precision.

The error of a pair is about the square of that of float64: see Dekker 1971 and "Accurate sum and dot product", Ogita,
Rump and Oishi 2005. A product of two float32 is exact in float64.
"""

import numpy as np

from ooc_pegasos.compiled.fit.losses import dual_at
from ooc_pegasos.compiled.fit.pegasos import weight_of
from ooc_pegasos.compiled.fit.sdca import label_of
from ooc_pegasos.compiled.intrinsics import escape_of_type, value_at
from ooc_pegasos.compiled.jit import inlined, kernel

# Indices in `sums` of `add_up_duals`: the dual objective as a pair, and the sum of the sizes of its terms.
HIGH, LOW, MAGNITUDE = range(3)
_SPLITTER = 134217729.0  # 2^27 + 1
_MAX_SPLIT = 1e290


@inlined
def two_sum(a, b):
    """Return (a + b rounded, the rounding error)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@inlined
def two_product(a, b):
    """Return (a * b rounded, the rounding error)."""
    product = a * b
    if abs(a) > _MAX_SPLIT or abs(b) > _MAX_SPLIT:
        return product, 0.0
    c = _SPLITTER * a
    a_high = c - (c - a)
    a_low = a - a_high
    c = _SPLITTER * b
    b_high = c - (c - b)
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@kernel
def dot_compensated(indices, values, levels, begin, end, a, stride, column, more):
    """Return `more` + <a, x> in double-double precision, rounded once; NaN if an index is too large.

    The weights are column `column` of a matrix with `stride` columns.
    """
    escape = escape_of_type(indices)
    high, low = more, 0.0
    f = np.uint64(0)
    for at in range(np.uint64(begin), np.uint64(end)):
        code = np.uint64(indices[at])
        f = code + (f if escape > 0 else np.uint64(0))
        if f >= np.uint64(len(a) // stride):
            return np.nan
        if escape > 0 and code == np.uint64(escape):
            continue
        weight = a[np.int64(f) * stride + column]
        if values is None:
            product, error = weight, 0.0
        else:
            product, error = two_product(weight, value_at(values, at, levels))
        high, rest = two_sum(high, product)
        low += rest + error
    return high + low


@inlined
def _add_to(high, low, f, product, error):
    total, rest = two_sum(high[f], product)
    high[f] = total
    low[f] += rest + error


@kernel
def add_up_duals(
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
    bias,
    width,
    column,
    duals,
    high,
    low,
    sums,
):
    """Add b_i x_i to the pairs (high, low) and -l_i*(-b_i) to `sums`, for rows begin to end.

    `duals` has `width` columns, and that of the model is `column`.
    """
    escape = escape_of_type(indices)
    features = len(high) - 1 if bias != 0.0 else len(high)
    for row in range(begin, end):
        b = np.float64(duals[row * width + column])
        if b == 0.0 or (len(folds) > 0 and folds[row] == fold):
            continue
        f = np.uint64(0)
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            code = np.uint64(indices[at])
            f = code + (f if escape > 0 else np.uint64(0))
            if f >= np.uint64(features):
                return row
            if escape > 0 and code == np.uint64(escape):
                continue
            if values is None:
                _add_to(high, low, f, b, 0.0)
            else:
                product, error = two_product(b, value_at(values, at, levels))
                _add_to(high, low, f, product, error)
        if bias != 0.0:
            product, error = two_product(b, bias)
            _add_to(high, low, features, product, error)
        y = label_of(np.float64(labels[row]), one_class)
        c = weight_of(row, y, weights, class_weights)
        value = c * dual_at(loss, parameter, y, b / c)
        product, error = two_product(-b, offset)
        for term in (value, product, error):
            total, rest = two_sum(sums[HIGH], term)
            sums[HIGH] = total
            sums[LOW] += rest
        sums[MAGNITUDE] += abs(value) + abs(b) * (1.0 + abs(y) + abs(offset))
    return -1
