"""Which lambdas to try when none is given, and which to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ooc_pegasos.loading import Loader
from ooc_pegasos.store import Store

LENGTH = 8
_STRONGEST, _WEAKEST = 0.01, 10.0


def default_path(store: Store, loader: Loader, bias: float) -> tuple[float, ...]:
    """Eight lambdas in equal ratios, from strong to weak, in the units of the data.

    With n rows of mean squared norm R^2, R^2 / (lambda n) says how far a row alone may move its own margin: at a
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
    """What rows that were kept apart say of a lambda."""

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


def trial_of(lam: float, apart: Sequence[Apart], *, across: bool) -> Trial:
    """What several models of a lambda found together: of the classes of a holdout, or `across` folds.

    The folds' losses vary as the whole loss does with other rows; classes see the same rows.
    """
    rows = sum(found.rows for found in apart)
    loss = sum(found.loss * found.rows for found in apart) / rows
    errors = [found.error * found.rows for found in apart if found.error is not None]
    error = sum(errors) / rows if errors else None
    if across and len(apart) > 1:
        spread = sum((found.loss - loss) ** 2 for found in apart) / (len(apart) - 1)
        return Trial(lam, loss, math.sqrt(spread / len(apart)), error)
    return Trial(lam, loss, sum(found.deviation for found in apart) / len(apart), error)
