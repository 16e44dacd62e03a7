"""Losses of one score in compiled code: value, subgradient, conjugate, dual step and bounds, together for each loss.

`parameter` is the parameter of a loss, like the width of a tube. Built-in losses are identified by their index in
`BUILT_IN`, and all kernels contain all of them, so kernels are cached. A registered loss has a type of its own,
`PluggedLoss`, for which kernels are compiled in each process. The functions of a loss:

- `at(parameter, z, y)`: (value l(z), a subgradient g at z, l(z) - g z) for score z and label y. The last is -l*(g),
  the term of the row in the dual, equation (4), computed exactly if possible: the hinge adds exactly 1 for each margin
  error.
- `dual(parameter, y, b)`: -l*(-b), the term in the dual of a row whose dual variable is b, minus a subgradient.
- `best_dual(parameter, z, y, b, r)`: the b' that maximises -l*(-b') - z (b' - b) - (r/2) (b' - b)^2, an ascent step on
  one row, equation (7).
- `largest_slope(parameter)`: the largest size of a subgradient, and so of a dual variable.
- `slack(parameter, z, y, b, box, unit)`: the distance, in margins, of the score from the point where this row's dual
  variable would leave its bound; 0 if the variable is not at a bound. `box` is the largest size of the variable, `unit`
  the size of a margin for real targets, 0 if unknown. Rows with a large slack are inactive for some epochs (shrinking).
- `kinks(parameter, y)`: (n, g, d1, d2) of a piecewise linear loss: its slope is g on the left, grows by 1 at the score
  y + d1, and again at y + d2 if n is 2. n is 0 if the slope has no jumps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ooc_pegasos.compiled.jit import Deferred, called, inlined, kernel

HINGE, LOGISTIC, SMOOTHED_HINGE, SQUARED_HINGE, EPSILON_INSENSITIVE, ABSOLUTE, HUBER, SQUARED = range(8)

_NEWTON_STEPS = 20  # usually four suffice
_TINY = 1e-300
ALMOST_ONE = 1.0 - 2.0**-23
_SCORE_UNITS = 8.0 * 2.0**-53

Compiled = Callable[..., Any]


@called
def _one(parameter):
    return 1.0


@called
def no_slack(parameter, z, y, b, box, unit):
    """Return 0: no row is ever inactive."""
    return 0.0


@called
def no_kinks(parameter, y):
    """The slope has no jumps."""
    return 0, 0.0, 0.0, 0.0


@dataclass(frozen=True)
class LossFunctions:
    """The compiled functions of a loss, see the beginning of this module."""

    at: Compiled
    has_margin: bool
    """True if the loss falls with y z; False if it grows with |z - y|."""
    dual: Compiled | None = None
    best_dual: Compiled | None = None
    """`dual` and `best_dual` are None if dual coordinate ascent does not support the loss."""
    largest_slope: Compiled = _one
    slack: Compiled = no_slack
    kinks: Compiled | None = None
    """None if no best bias of a batch is to be found."""
    is_unit_hinge: bool = False
    """True if the loss is max(0, 1 - y z), whose dual step is a clip: kernels have shorter ways for it."""


# --- hinge --------------------------------------------------------------------------------------


@called
def _hinge(parameter, z, y):
    value, slope, dual = 0.0, 0.0, 0.0
    margin = y * z
    if margin <= 1.0:
        value, slope, dual = 1.0 - margin, -y, 1.0
    return value, slope, dual


@called
def _hinge_dual(parameter, y, b):
    return b * y


@called
def _hinge_best_dual(parameter, z, y, b, r):
    return y * min(max(b * y + (1.0 - y * z) / r, 0.0), 1.0)


@called
def _hinge_slack(parameter, z, y, b, box, unit):
    slack = 0.0
    short = 1.0 - y * z
    if b == 0.0:
        slack = -short
    elif b == y * box:
        slack = short
    return slack


@called
def _hinge_kinks(parameter, y):
    return 1, -1.0 if y > 0.0 else 0.0, 0.0, 0.0


# --- logistic -----------------------------------------------------------------------------------


@called
def _logistic_at(parameter, z, y):
    return _logistic(z, y)


@kernel
def _logistic(z, y):
    margin = y * z
    less = np.exp(-abs(margin))  # no overflow
    value = np.log1p(less) + max(-margin, 0.0)
    p = (less if margin > 0.0 else 1.0) / (1.0 + less)  # of the other class
    return value, -y * p, np.log1p(less) + abs(margin) * less / (1.0 + less)


@called
def _logistic_dual(parameter, y, b):
    p = b * y
    rest = 1.0 - p
    log_rest = np.log1p(-p) if p < 0.5 else np.log(max(rest, _TINY))  # for a tiny p `rest` is inexact
    return -(p * np.log(max(p, _TINY)) + rest * log_rest)


@called
def _logistic_best_dual(parameter, z, y, b, r):
    return y * _best_probability(y * z, b * y, r)


@kernel
def _best_probability(margin, p, r):
    """Return the root in (0, 1) of log(q / (1 - q)) + margin + r (q - p), an increasing function.

    The smaller of q and 1 - q is computed, for full precision. In u = log(q / (1 - q)) the function is
    u + r q(u) - most, convex for u < 0, and Newton's method converges from both sides. The initial value is near the
    root: for a large r Newton steps from far away have size 1.
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


# --- smoothed hinge -----------------------------------------------------------------------------


@called
def _smoothed_hinge(parameter, z, y):
    value, slope, dual = 0.0, 0.0, 0.0
    short = 1.0 - y * z
    if short > parameter:
        value, slope, dual = short - parameter / 2.0, -y, 1.0 - parameter / 2.0
    elif short > 0.0:
        part = short / parameter
        value, slope, dual = short * part / 2.0, -y * part, part - parameter * part * part / 2.0
    return value, slope, dual


@called
def _smoothed_hinge_dual(parameter, y, b):
    return b * y - parameter * b * b / 2.0


@called
def _smoothed_hinge_best_dual(parameter, z, y, b, r):
    p = b * y
    return y * min(max((p * r + 1.0 - y * z) / (r + parameter), 0.0), 1.0)


@called
def _smoothed_hinge_slack(parameter, z, y, b, box, unit):
    slack = 0.0
    short = 1.0 - y * z
    if b == 0.0:
        slack = -short
    elif b == y * box:
        slack = short - parameter
    return slack


# --- squared hinge; `parameter` is the largest slope that dual variables reach ---------------------


@called
def _squared_hinge(parameter, z, y):
    short = max(1.0 - y * z, 0.0)
    return short * short, -2.0 * y * short, (2.0 - short) * short


@called
def _squared_hinge_dual(parameter, y, b):
    return b * y - b * b / 4.0


@called
def _squared_hinge_best_dual(parameter, z, y, b, r):
    return y * min(max((b * y * r + 1.0 - y * z) / (r + 0.5), 0.0), parameter)


@called
def _squared_hinge_slack(parameter, z, y, b, box, unit):
    return y * z - 1.0 if b == 0.0 else 0.0


# --- epsilon-insensitive ------------------------------------------------------------------------


@called
def _tube(parameter, z, y):
    value, slope, dual = 0.0, 0.0, 0.0
    off = z - y
    if abs(off) > parameter:
        slope = 1.0 if off > 0.0 else -1.0
        value, dual = abs(off) - parameter, -slope * y - parameter
    return value, slope, dual


@called
def _tube_dual(parameter, y, b):
    return b * y - parameter * abs(b)


@called
def _tube_best_dual(parameter, z, y, b, r):
    best = 0.0
    free = b * r + y - z
    if free > parameter:
        best = min((free - parameter) / r, 1.0)
    elif free < -parameter:
        best = max((free + parameter) / r, -1.0)
    return best


@called
def _tube_slack(parameter, z, y, b, box, unit):
    slack = 0.0
    if unit > 0.0:
        if b == 0.0:
            slack = (parameter - abs(z - y)) / unit
        elif abs(b) == box:
            slack = (abs(z - y) - parameter) / unit
    return slack


@called
def _tube_kinks(parameter, y):
    return 2, -1.0, -parameter, parameter


# --- absolute: without a tube -------------------------------------------------------------------


@called
def _absolute(parameter, z, y):
    return _tube(0.0, z, y)


@called
def _absolute_dual(parameter, y, b):
    return _tube_dual(0.0, y, b)


@called
def _absolute_best_dual(parameter, z, y, b, r):
    return _tube_best_dual(0.0, z, y, b, r)


@called
def _absolute_slack(parameter, z, y, b, box, unit):
    return _tube_slack(0.0, z, y, b, box, unit)


@called
def _absolute_kinks(parameter, y):
    return _tube_kinks(0.0, y)


# --- huber --------------------------------------------------------------------------------------


@called
def _huber(parameter, z, y):
    off = z - y
    if abs(off) > parameter:
        slope = parameter if off > 0.0 else -parameter
        value = parameter * (abs(off) - parameter / 2.0)
    else:
        slope, value = off, off * off / 2.0
    return value, slope, -slope * y - slope * slope / 2.0


@called
def _huber_dual(parameter, y, b):
    return b * y - b * b / 2.0


@called
def _huber_best_dual(parameter, z, y, b, r):
    return min(max((b * r + y - z) / (r + 1.0), -parameter), parameter)


@called
def _parameter_is_slope(parameter):
    return parameter


# --- squared; `parameter` is the largest slope that dual variables reach --------------------------


@called
def _squared(parameter, z, y):
    off = z - y
    return off * off / 2.0, off, -off * y - off * off / 2.0


BUILT_IN = (
    LossFunctions(
        _hinge, True, _hinge_dual, _hinge_best_dual, slack=_hinge_slack, kinks=_hinge_kinks, is_unit_hinge=True
    ),
    LossFunctions(_logistic_at, True, _logistic_dual, _logistic_best_dual, kinks=no_kinks),
    LossFunctions(
        _smoothed_hinge,
        True,
        _smoothed_hinge_dual,
        _smoothed_hinge_best_dual,
        slack=_smoothed_hinge_slack,
        kinks=no_kinks,
    ),
    LossFunctions(
        _squared_hinge,
        True,
        _squared_hinge_dual,
        _squared_hinge_best_dual,
        _parameter_is_slope,
        slack=_squared_hinge_slack,
        kinks=no_kinks,
    ),
    LossFunctions(_tube, False, _tube_dual, _tube_best_dual, slack=_tube_slack, kinks=_tube_kinks),
    LossFunctions(_absolute, False, _absolute_dual, _absolute_best_dual, slack=_absolute_slack, kinks=_absolute_kinks),
    LossFunctions(_huber, False, _huber_dual, _huber_best_dual, _parameter_is_slope, kinks=no_kinks),
    LossFunctions(_squared, False, _huber_dual, _huber_best_dual, _parameter_is_slope, kinks=no_kinks),
)
"""By number."""


# --- registered losses ------------------------------------------------------------------------


class PluggedLoss:
    """A registered loss, passed to kernels instead of a number: its functions, as Python functions."""

    def __init__(self, name: str, functions: LossFunctions) -> None:
        found = {field: kernel(one) for field, one in vars(functions).items() if inspect.isfunction(one)}
        self.name, self.functions = name, replace(functions, **found)

    @cached_property
    def _numba_type_(self) -> Any:
        """The type of its own, for which kernels are compiled."""
        from ooc_pegasos.compiled.fit.numba_losses import PluggedLossType

        return PluggedLossType(self.name, self.functions)


# --- by loss ------------------------------------------------------------------------------------


def _by_loss(name: str, *, is_inlined: bool = False) -> Any:
    """Return a function (loss, *arguments) for kernels that calls the function `name` of the loss."""
    by_number = [getattr(functions, name) for functions in BUILT_IN]
    hinge, logistic, smoothed_hinge, squared_hinge, tube, absolute, huber, squared = by_number

    def built_in(loss, *arguments):
        if loss == HINGE:
            return hinge(*arguments)
        if loss == LOGISTIC:
            return logistic(*arguments)
        if loss == SMOOTHED_HINGE:
            return smoothed_hinge(*arguments)
        if loss == SQUARED_HINGE:
            return squared_hinge(*arguments)
        if loss == EPSILON_INSENSITIVE:
            return tube(*arguments)
        if loss == ABSOLUTE:
            return absolute(*arguments)
        if loss == HUBER:
            return huber(*arguments)
        if loss == SQUARED:
            return squared(*arguments)
        raise ValueError("unknown loss")

    return _chosen(built_in, lambda functions: getattr(functions, name), is_inlined)


def _flag_by_loss(name: str) -> Any:
    """Return a function of the loss for kernels that returns its flag `name`."""
    flags = tuple(getattr(functions, name) for functions in BUILT_IN)

    def built_in(loss):
        if 0 <= loss < len(flags):
            return flags[loss]
        raise ValueError("unknown loss")

    def plugged(functions: LossFunctions) -> Compiled:
        flag = getattr(functions, name)
        return called(lambda: flag)

    return _chosen(built_in, plugged)


def _chosen(built_in: Compiled, plugged: Callable[[LossFunctions], Compiled], is_inlined: bool = False) -> Any:
    """Return what numba replaces by `built_in`, or for a registered loss by a function of its functions."""

    def make() -> Compiled:
        from ooc_pegasos.compiled.fit import numba_losses

        return numba_losses.choice(built_in, plugged, is_inlined)

    return Deferred(make)


loss_at = _by_loss("at", is_inlined=True)
_dual = _by_loss("dual")
_best_dual = _by_loss("best_dual")
slack_of = _by_loss("slack")
kinks_of = _by_loss("kinks")
is_unit_hinge = _flag_by_loss("is_unit_hinge")
has_margin = _flag_by_loss("has_margin")
_largest_slope = _by_loss("largest_slope")


@kernel
def dual_at(loss, parameter, y, b):
    """Return -l*(-b), the term in the dual of a row whose dual variable is b."""
    return _dual(loss, parameter, y, b)


@kernel
def best_dual(loss, parameter, z, y, b, r):
    """Return the dual variable after an ascent step from b on one row."""
    return _best_dual(loss, parameter, z, y, b, r)


@inlined
def box_size(loss, parameter, c):
    """Return the box constraint: the largest size of the dual variable for a weight c, rounded down to float32."""
    most = c * _largest_slope(loss, parameter)
    single = np.float64(np.float32(most))
    return single if single <= most else np.float64(np.float32(most * ALMOST_ONE))


@inlined
def worst_score(loss, z, y, error):
    """Return the score with the largest loss within `error` and the rounding error of the loss."""
    more = error + _SCORE_UNITS * (abs(z) + abs(y))
    if has_margin(loss):
        return z - y * more
    return z + more if z >= y else z - more
