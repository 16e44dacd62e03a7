"""Lower bounds on the optimum from scalars alone, equations (3) to (5) of the README.

The bounds hold if every row was processed equally often since the start of the window; `a` is the sum of the updates
-g x and S the sum of l(z) - g z. Both are computed in float64; with bounds on their rounding errors, the results are
rounded downward. This module reads no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import square_distance
from ooc_pegasos.objective.rounding import UNIT_ROUNDOFF, norm_upper_bound, rounded_up

MAX_SNAPSHOTS = 3


@dataclass
class Snapshot:
    """(t, S, a) at the end of an epoch; the updates since then give a certificate, equation (5)."""

    epoch: int
    t: float
    s: float
    a: np.ndarray
    """Empty for the start, where a is 0."""
    s_error: float = 0.0
    a_error: float = 0.0
    """Bounds on the rounding errors of S and of a (in norm) since the start of the run."""

    @classmethod
    def start(cls) -> Snapshot:
        """Return the snapshot before the first row."""
        return cls(0, 0.0, 0.0, np.empty(0))


@dataclass(frozen=True)
class Bound:
    """A lower bound on the optimum, and its window; None: all updates since the start, delay included."""

    value: float
    rounding: float = 0.0
    """Loss of the bound by rounding errors."""
    window: Snapshot | None = field(default=None, compare=False)


def best_scale(gain: float, cost: float) -> float:
    """Return the t in [0, 1] with the largest t gain - t^2 cost / 2."""
    return min(max(gain, 0.0) / cost, 1.0) if cost else 1.0


def rounded_bound(gain: float, gain_error: float, norm: float, norm_error: float, length: int, lam: float) -> Bound:
    """Return the bound D = gain - (lam/2) norm^2, rounded downward; `norm` is the computed norm of `length` numbers."""
    exact = gain - lam / 2 * norm * norm
    min_gain = gain - gain_error - 4 * UNIT_ROUNDOFF * abs(gain)
    cost = rounded_up(lam / 2 * norm_upper_bound(norm * norm, length, norm_error) ** 2, 4)
    value = min_gain - cost
    value -= UNIT_ROUNDOFF * (abs(min_gain) + cost)
    return Bound(float(value), float(max(exact - value, 0.0)))


def lower_bound(
    lam: float,
    delay: float,
    now: Snapshot,
    scale: float,
    windows: Sequence[Snapshot],
    whole: bool,
) -> Bound:
    """Return the best bound: (3) and (4) with the delayed step if `whole`, and (5) for each window.

    `scale now.a` is the sum of updates, except after a warm start, where only windows give bounds.
    """
    best = Bound(-np.inf)

    def of_window(begin: Snapshot, clock: float) -> Bound:
        norm = float(np.sqrt(square_distance(now.a, begin.a, scale / (lam * clock))))
        gain, gain_error = (now.s - begin.s) / clock, (now.s_error - begin.s_error) / clock
        # each element of a difference has its own relative rounding error
        norm_error = (now.a_error - begin.a_error) / (lam * clock) + 8 * UNIT_ROUNDOFF * norm
        found = rounded_bound(gain, rounded_up(gain_error, 4), norm, rounded_up(norm_error, 8), len(now.a), lam)
        return Bound(found.value, found.rounding, begin)

    if whole:
        found = of_window(Snapshot.start(), now.t + delay)
        best = Bound(found.value, found.rounding)
    for window in windows:
        if now.t > window.t:
            found = of_window(window, now.t - window.t)
            if found.value > best.value:
                best = found
    return best


def relative_gap(primal: float | None, bound: float | None) -> float | None:
    """Return an upper bound on the distance of an objective to the optimum, relative to the optimum."""
    if bound is None or primal is None:
        return None
    if primal <= 0:
        return 0.0 if bound >= primal else None
    gap = max(rounded_up((primal - bound) / primal, 2), 0.0)
    return min(gap, 1.0) if bound >= 0 else gap


def relative_accuracy(primal: float | None, bound: float | None) -> float | None:
    """Return (P - D)/D: a bound on the distance to the optimum, relative to the lower bound."""
    if bound is None or primal is None or bound <= 0:
        return None
    return max(rounded_up((primal - bound) / bound, 2), 0.0)


def thin_snapshots(snapshots: list[Snapshot], epoch: int) -> list[Snapshot]:
    """Return at most three snapshots, near a quarter, a half and three quarters of the epochs.

    The best window starts at about half of the epochs.
    """
    if len(snapshots) <= MAX_SNAPSHOTS:
        return snapshots
    kept = {min(snapshots, key=lambda s: abs(s.epoch - epoch * part)).epoch for part in (0.25, 0.5, 0.75)}
    newest = max(s.epoch for s in snapshots)
    kept.add(newest)  # a later window starts there
    chosen = [s for s in snapshots if s.epoch in kept]
    if len(chosen) > MAX_SNAPSHOTS:
        chosen.remove(min(chosen, key=lambda s: s.epoch))
    return chosen
