"""The losses, by number: numba serves kernels that take functions as arguments from no cache.

A new loss is a branch in each of the three functions here and an entry in `objective/losses.py`. `parameter` is
whatever the loss has of its own: the width of a tube, where a curve becomes a line.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel

HINGE, LOGISTIC, SMOOTHED_HINGE, EPSILON_INSENSITIVE, ABSOLUTE, HUBER = range(6)

_NEWTON_STEPS = 20  # four are enough where rounding lets them be
_TINY = 1e-300
ALMOST_ONE = 1.0 - 2.0**-23
_SCORE_UNITS = 8.0 * 2.0**-53


@inlined
def loss_at(loss, parameter, z, y):
    """(value l(z), a subgradient g at z, l(z) - g z) for score z and label y.

    The last is -l*(g), what the row adds to the dual, equation (4). It is written out, not computed from the
    other two, where that is exact: the hinge adds exactly 1 for each margin error.
    """
    value, slope, dual = 0.0, 0.0, 0.0
    if loss == HINGE:
        margin = y * z
        if margin <= 1.0:
            value, slope, dual = 1.0 - margin, -y, 1.0
    elif loss == LOGISTIC:
        value, slope, dual = _logistic(z, y)
    elif loss == SMOOTHED_HINGE:
        short = 1.0 - y * z
        if short > parameter:
            value, slope, dual = short - parameter / 2.0, -y, 1.0 - parameter / 2.0
        elif short > 0.0:
            part = short / parameter
            value, slope, dual = short * part / 2.0, -y * part, part - parameter * part * part / 2.0
    elif loss == HUBER:
        off = z - y
        if abs(off) > parameter:
            slope = parameter if off > 0.0 else -parameter
            value = parameter * (abs(off) - parameter / 2.0)
        else:
            slope, value = off, off * off / 2.0
        dual = -slope * y - slope * slope / 2.0
    else:  # epsilon-insensitive; absolute is that without a tube
        off, tube = z - y, parameter if loss == EPSILON_INSENSITIVE else 0.0
        if abs(off) > tube:
            slope = 1.0 if off > 0.0 else -1.0
            value, dual = abs(off) - tube, -slope * y - tube
    return value, slope, dual


@kernel
def _logistic(z, y):
    margin = y * z
    less = np.exp(-abs(margin))  # no overflow
    value = np.log1p(less) + max(-margin, 0.0)
    p = (less if margin > 0.0 else 1.0) / (1.0 + less)  # of the other class
    return value, -y * p, np.log1p(less) + abs(margin) * less / (1.0 + less)


@inlined
def worst_score(loss, z, y, error):
    """The score within `error`, and what computing the loss of it rounds away, whose loss is the largest."""
    more = error + _SCORE_UNITS * (abs(z) + abs(y))
    if loss <= SMOOTHED_HINGE:
        return z - y * more
    return z + more if z >= y else z - more


@kernel
def dual_at(loss, parameter, y, b):
    """-l*(-b): what a row whose dual variable is b adds to the dual; b is minus a subgradient."""
    if loss == HINGE:
        return b * y
    if loss == LOGISTIC:
        p = b * y
        rest = 1.0 - p
        log_rest = np.log1p(-p) if p < 0.5 else np.log(max(rest, _TINY))  # of a tiny p `rest` has no digits
        return -(p * np.log(max(p, _TINY)) + rest * log_rest)
    if loss == SMOOTHED_HINGE:
        return b * y - parameter * b * b / 2.0
    if loss == HUBER:
        return b * y - b * b / 2.0
    return b * y - (parameter * abs(b) if loss == EPSILON_INSENSITIVE else 0.0)


@kernel
def best_dual(loss, parameter, z, y, b, r):
    """The b' that maximises -l*(-b') - z (b' - b) - (r/2) (b' - b)^2: an ascent step on one row, equation (7)."""
    if loss == LOGISTIC:
        return y * _best_probability(y * z, b * y, r)
    if loss == HINGE:
        return y * min(max(b * y + (1.0 - y * z) / r, 0.0), 1.0)
    if loss == SMOOTHED_HINGE:
        p = b * y
        return y * min(max((p * r + 1.0 - y * z) / (r + parameter), 0.0), 1.0)
    if loss == HUBER:
        return min(max((b * r + y - z) / (r + 1.0), -parameter), parameter)
    tube = parameter if loss == EPSILON_INSENSITIVE else 0.0
    free = b * r + y - z
    if free > tube:
        return min((free - tube) / r, 1.0)
    if free < -tube:
        return max((free + tube) / r, -1.0)
    return 0.0


@kernel
def _best_probability(margin, p, r):
    """The root in (0, 1) of log(q / (1 - q)) + margin + r (q - p), which increases.

    Of q and 1 - q the smaller is looked for, which then has all its digits. In u = log(q / (1 - q)) the function is
    u + r q(u) - most, convex where u < 0, and Newton's steps reach the root from either side. They begin near it, for
    from afar each would come closer by 1 only if r is enormous.
    """
    swapped = margin + r * (0.5 - p) < 0.0
    if swapped:
        margin, p = -margin, 1.0 - p
    most = r * p - margin
    u = min(most, 0.0)
    if r > 1.0:
        u = min(u, np.log(max(most + np.log(r), 1.0) / r))
    for _ in range(_NEWTON_STEPS):
        odds = np.exp(u)
        q = odds / (1.0 + odds)
        step = (u + margin + r * (q - p)) / (1.0 + r * q / (1.0 + odds))
        before, u = u, min(u - step, 0.0)
        if abs(u - before) <= 1e-12 * (1.0 + abs(u)):
            break
    odds = np.exp(u)
    return 1.0 / (1.0 + odds) if swapped else odds / (1.0 + odds)


@inlined
def largest_dual(loss, parameter, c):
    """The largest size that the dual variable of a row with weight c may have, and that float32 can hold."""
    most = c * parameter if loss == HUBER else c
    single = np.float64(np.float32(most))
    return single if single <= most else np.float64(np.float32(most * ALMOST_ONE))


@inlined
def slack_of(loss, parameter, z, y, b, box, unit):
    """How far the score is from where this row's dual variable would leave its bound, in margins; 0 if it is not there.

    `box` is the largest size of the variable, `unit` what a margin is for real targets, 0 if that is not known yet. A
    row far from there can be left alone for some epochs: shrinking.
    """
    slack = 0.0
    if loss == HINGE or loss == SMOOTHED_HINGE:
        short = 1.0 - y * z
        if b == 0.0:
            slack = -short
        elif b == y * box:
            slack = short - (parameter if loss == SMOOTHED_HINGE else 0.0)
    elif (loss == EPSILON_INSENSITIVE or loss == ABSOLUTE) and unit > 0.0:
        tube = parameter if loss == EPSILON_INSENSITIVE else 0.0
        if b == 0.0:
            slack = (tube - abs(z - y)) / unit
        elif abs(b) == box:
            slack = (abs(z - y) - tube) / unit
    return slack
