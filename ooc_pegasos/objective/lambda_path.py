"""The default lambda path, and the selection of a lambda."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.store.store import Store

LENGTH = 8
_STRONG_END, _WEAK_END = 0.01, 10.0


def default_path(store: Store, loader: Loader, bias: float) -> tuple[float, ...]:
    """Return eight lambdas in geometric progression, from strong to weak, in the units of the data.

    With n rows of mean norm R, a row alone moves its own margin by at most R^2 / (lambda n): 0.01 at the strong end, 10
    at the weak end.
    """
    square = store.manifest.statistics.mean_row_norm**2 + bias * bias
    strongest = max(square, 1e-30) / (_STRONG_END * max(loader.training_rows, 1))
    ratio = (_WEAK_END / _STRONG_END) ** (1 / (LENGTH - 1))
    return tuple(strongest / ratio**number for number in range(LENGTH))


@dataclass(frozen=True)
class HoldoutLoss:
    """Mean loss of a model on its holdout rows, the standard error of the mean, and the error rate."""

    loss: float
    deviation: float
    error: float | None
    rows: int


@dataclass(frozen=True)
class Trial:
    """The holdout result of a lambda."""

    lam: float
    loss: float
    deviation: float
    """The standard error of the loss."""
    error: float | None


def choose(trials: Sequence[Trial], rule: str) -> int:
    """Return the trial with the smallest loss, or with the largest lambda within a standard error of it."""
    best = min(range(len(trials)), key=lambda number: (trials[number].loss, -trials[number].lam))
    if rule == "best":
        return best
    enough = trials[best].loss + trials[best].deviation
    within = [number for number, trial in enumerate(trials) if trial.loss <= enough]
    return max(within, key=lambda number: trials[number].lam)


def remark_on(trials: Sequence[Trial]) -> str | None:
    """Return a note if the best lambda is at an end of the path."""
    lambdas = [trial.lam for trial in trials]
    if len(trials) < 3:
        return None
    best, smallest, largest = trials[choose(trials, "best")].lam, min(lambdas), max(lambdas)
    if best == smallest:
        return (
            f"the smallest lambda was best, so try smaller ones as well: --lambda {smallest / 100:.1g}:{smallest:.1g}:5"
        )
    if best == largest:
        return f"the largest lambda was best, so try larger ones as well: --lambda {largest:.1g}:{largest * 100:.1g}:5"
    return None


def trial_of(lam: float, holdout: Sequence[tuple[int, HoldoutLoss]], *, across: bool) -> Trial:
    """Return the joint result of several models of a lambda: of classes on a holdout, or `across` folds.

    The standard error across folds is that of their losses; classes share the same rows.
    """
    loss, error = _mean([found for _fold, found in holdout])
    folds = sorted({fold for fold, _found in holdout})
    if across and len(folds) > 1:
        losses = [_mean([found for other, found in holdout if other == fold])[0] for fold in folds]
        spread = sum((one - loss) ** 2 for one in losses) / (len(folds) - 1)
        return Trial(lam, loss, math.sqrt(spread / len(folds)), error)
    return Trial(lam, loss, sum(found.deviation for _fold, found in holdout) / len(holdout), error)


def _mean(holdout: Sequence[HoldoutLoss]) -> tuple[float, float | None]:
    """Return loss and error of all rows together."""
    rows = sum(found.rows for found in holdout)
    errors = [found.error * found.rows for found in holdout if found.error is not None]
    return sum(found.loss * found.rows for found in holdout) / rows, sum(errors) / rows if errors else None
