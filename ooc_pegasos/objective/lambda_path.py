"""The lambdas to try if none is given, and the choice of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.store.store import Store

LENGTH = 8
_STRONGEST, _WEAKEST = 0.01, 10.0


def default_path(store: Store, loader: Loader, bias: float) -> tuple[float, ...]:
    """Eight lambdas in equal ratios, from strong to weak, in the units of the data.

    With n rows of mean norm R, R^2 / (lambda n) says how far a row alone may move its own margin: at a
    hundredth of a margin many rows must agree, at ten margins each has its own way.
    """
    square = store.manifest.statistics.mean_row_norm**2 + bias * bias
    strongest = max(square, 1e-30) / (_STRONGEST * max(loader.training_rows, 1))
    ratio = (_WEAKEST / _STRONGEST) ** (1 / (LENGTH - 1))
    return tuple(strongest / ratio**number for number in range(LENGTH))


@dataclass(frozen=True)
class Apart:
    """Of the rows that a model was not trained on: their mean loss, its standard error, and their error rate."""

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
    """The one with the least loss, or the largest lambda within a standard error of it."""
    best = min(range(len(trials)), key=lambda number: (trials[number].loss, -trials[number].lam))
    if rule == "best":
        return best
    enough = trials[best].loss + trials[best].deviation
    within = [number for number, trial in enumerate(trials) if trial.loss <= enough]
    return max(within, key=lambda number: trials[number].lam)


def remark_on(trials: Sequence[Trial]) -> str | None:
    """Remark if the best lambda may lie beyond the end of a path."""
    lambdas = [trial.lam for trial in trials]
    if len(trials) < 3:
        return None
    best, least, most = trials[choose(trials, "best")].lam, min(lambdas), max(lambdas)
    if best == least:
        return f"the smallest lambda did best, so try smaller ones as well: --lambda {least / 100:.1g}:{least:.1g}:5"
    if best == most:
        return f"the largest lambda did best, so try larger ones as well: --lambda {most:.1g}:{most * 100:.1g}:5"
    return None


def trial_of(lam: float, apart: Sequence[tuple[int, Apart]], *, across: bool) -> Trial:
    """The joint result of several models of a lambda, each with its fold: of classes on a holdout, or `across` folds.

    The losses of folds vary as the whole loss does with other rows; classes see the same rows.
    """
    loss, error = _mean([found for _fold, found in apart])
    folds = sorted({fold for fold, _found in apart})
    if across and len(folds) > 1:
        losses = [_mean([found for of_it, found in apart if of_it == fold])[0] for fold in folds]
        spread = sum((one - loss) ** 2 for one in losses) / (len(folds) - 1)
        return Trial(lam, loss, math.sqrt(spread / len(folds)), error)
    return Trial(lam, loss, sum(found.deviation for _fold, found in apart) / len(apart), error)


def _mean(apart: Sequence[Apart]) -> tuple[float, float | None]:
    """Loss and error of all rows together."""
    rows = sum(found.rows for found in apart)
    errors = [found.error * found.rows for found in apart if found.error is not None]
    return sum(found.loss * found.rows for found in apart) / rows, sum(errors) / rows if errors else None
