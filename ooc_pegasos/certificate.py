"""How far from the optimum: lower bounds on it from scalars alone, equations (3) to (5) of the README.

The bounds hold whenever every row has been presented equally often since the start of the window, `a` is the
exact sum of the updates -g x and S the sum of l(z) - g z. Nothing here looks at data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.kernels.pegasos import square_distance

MOST_SNAPSHOTS = 3


@dataclass
class Snapshot:
    """(t, S, a) at the end of an epoch; updates since then are a certificate of their own, equation (5)."""

    epoch: int
    t: float
    s: float
    a: np.ndarray
    """Empty for the start, where a is 0."""

    @classmethod
    def start(cls) -> Snapshot:
        """Before anything was presented."""
        return cls(0, 0.0, 0.0, np.empty(0))


@dataclass(frozen=True)
class Bound:
    """A lower bound on the optimum, and the window it comes from: None for all since the start, delay included."""

    value: float
    window: Snapshot | None


def lower_bound(
    lam: float,
    delay: float,
    t: float,
    s: float,
    a: np.ndarray,
    scale: float,
    windows: Sequence[Snapshot],
    whole: bool,
) -> Bound:
    """The best bound: (3) and (4) with the delayed step if `whole`, and (5) for each window.

    `scale a` is the sum of updates. After a warm start it is not, so only windows count.
    """
    clock = t + delay
    best = Bound(-np.inf, None)
    if whole:
        norm = square_distance(a, np.empty(0), scale / (lam * clock))
        best = Bound(s / clock - lam / 2 * norm, None)
    for window in windows:
        length = t - window.t
        if length <= 0:
            continue
        norm = square_distance(a, window.a, scale / (lam * length))
        value = (s - window.s) / length - lam / 2 * norm
        if value > best.value:
            best = Bound(value, window)
    return best


def relative_gap(primal: float | None, bound: float | None) -> float | None:
    """How far an objective is at most above the optimum, as a part of it."""
    if bound is None or primal is None:
        return None
    if primal <= 0:
        return 0.0 if bound >= primal else None
    return max((primal - bound) / primal, 0.0)  # rounding can put one a little beyond the other


def keep_some(snapshots: list[Snapshot], epoch: int) -> list[Snapshot]:
    """At most three snapshots, near a quarter, a half and three quarters of the epochs run.

    The best window starts at about half of them; which epochs are kept depends on their numbers alone.
    """
    if len(snapshots) <= MOST_SNAPSHOTS:
        return snapshots
    kept = {min(snapshots, key=lambda s: abs(s.epoch - epoch * part)).epoch for part in (0.25, 0.5, 0.75)}
    newest = max(s.epoch for s in snapshots)
    kept.add(newest)  # it will be wanted later
    chosen = [s for s in snapshots if s.epoch in kept]
    if len(chosen) > MOST_SNAPSHOTS:
        chosen.remove(min(chosen, key=lambda s: s.epoch))
    return chosen
