"""The default lambda path, and the search for the best lambda by holdout results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.store.store import Store
from ooc_pegasos.util import typed_json

LENGTH = 8
_STRONG_END, _WEAK_END = 0.01, 10.0
_STRONG_LIMIT, _WEAK_LIMIT = 1e-4, 1e4
"""Values of R^2 / (lambda n) at the ends of the default path, and where a search for better lambdas ends."""
_STEP = (_WEAK_END / _STRONG_END) ** (1 / (LENGTH - 1))
"""Ratio of neighbours on the default path."""
_NEAR = 4
"""Number of lambdas around one that was the best on a sample."""
_MORE, _MORE_COSTLY = 3, 2
"""Number of lambdas that are added beyond an end at a time; where each costs reads of the store."""
FINE = 1.5
"""Largest ratio of the best lambda and its neighbours at the end of a search."""
COARSE = FINE * FINE
"""Ratio of neighbours while a search looks for the region of the best lambda."""
COLD_ABOVE = 1.0
"""R^2 / (lambda n) below which dual variables begin at 0: many rows change the weights then, and their variables reach
the bounds in the first epoch."""
_NOISE, _RISE = 0.05, 0.3
"""Differences of losses, in standard errors of a loss, that matter to extend a search, or to end models early and to
extend a search where that is costly."""


def default_path(store: Store, loader: Loader, bias: float, unit: float = 1.0) -> tuple[float, ...]:
    """Return eight lambdas in geometric progression, from strong to weak, in the units of the data.

    With n rows of mean norm R, a row alone moves its own score by at most R^2 / (lambda n): 0.01 `unit` at the strong
    end, 10 `unit` at the weak end. The unit is the size of scores: 1 for margins.
    """
    square = store.manifest.statistics.mean_row_norm**2 + bias * bias
    strongest = max(square, 1e-30) / (_STRONG_END * unit * max(loader.training_rows, 1))
    return tuple(strongest / _STEP**number for number in range(LENGTH))


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
    score: float | None = None
    """The metric by which lambdas are compared, smaller is better; None: the loss."""
    score_deviation: float = 0.0
    """The standard error of the score."""

    @property
    def value(self) -> float:
        """The metric by which lambdas are compared, smaller is better."""
        return self.loss if self.score is None else self.score

    @property
    def uncertainty(self) -> float:
        """The standard error of the value."""
        return self.deviation if self.score is None else self.score_deviation

    def table(self) -> dict[str, Any]:
        """Return the trial as a table for models, without the score if the loss is the metric."""
        return {name: value for name, value in vars(self).items() if self.score is not None or "score" not in name}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Trial:
        """Return the trial that `table` wrote. Raises ValueError."""
        return typed_json.load(cls, table, "trial")


def choose(trials: Sequence[Trial], rule: str) -> int:
    """Return the best trial, or the largest lambda within a standard error of it.

    Errors and other metrics of few rows are noisy, and the loss is less so: of all trials within a standard error of
    the best metric, that with the smallest loss is the best.
    """
    numbers = range(len(trials))
    least = min(numbers, key=lambda number: (trials[number].value, -trials[number].lam))
    enough = trials[least].value + trials[least].uncertainty
    within = [number for number in numbers if trials[number].value <= enough]
    if rule == "1se":
        return max(within, key=lambda number: trials[number].lam)
    if trials[least].score is None:
        within = [number for number in numbers if trials[number].value == trials[least].value]
    return min(within, key=lambda number: (trials[number].loss, -trials[number].lam))


@dataclass(frozen=True)
class Range:
    """The lambdas of a search: the ends of the default path, and beyond them the largest and smallest ever tried."""

    strong_end: float
    weak_end: float

    @property
    def strongest(self) -> float:
        """The largest lambda."""
        return self.strong_end * _STRONG_END / _STRONG_LIMIT

    @property
    def weakest(self) -> float:
        """The smallest lambda."""
        return self.weak_end * _WEAK_END / _WEAK_LIMIT


def next_lambda(trials: Sequence[Trial], limits: Range) -> float | None:
    """Return the lambda that a search tries next which trains one after the other; None if the best is found.

    It goes from strong to weak until the best is passed, and then looks around the best if steps there were coarse.
    """
    if not trials:
        return limits.strong_end
    ordered = sorted(trials, key=lambda trial: -trial.lam)
    grid = _grid_of(limits)
    weaker = next((lam for lam in grid if lam < ordered[-1].lam * (1 - 1e-9)), None)
    on_grid = [trial for trial in ordered if any(abs(trial.lam / lam - 1) < 1e-9 for lam in grid)]
    if weaker is not None and not _is_past_best(on_grid, limits):
        return weaker
    best = choose(ordered, "best")
    stronger = ordered[0].lam * COARSE
    is_first = best == 0 and len(ordered) > 1 and _is_better(ordered[0], ordered[1])
    if is_first and stronger < limits.strongest * 1.001:
        return stronger
    return min(_between(ordered, best), default=None)


def _grid_of(limits: Range) -> list[float]:
    """Return the lambdas from strong to weak: in steps of `COARSE` while each is trained from 0, and then of `FINE`.

    From there on a lambda begins with the dual variables of a stronger one, which a step back could not do.
    """
    grid = [limits.strong_end]
    while grid[-1] > limits.weakest * 1.001:
        is_cold = limits.strong_end / grid[-1] < COLD_ABOVE / _STRONG_END
        grid.append(grid[-1] / (COARSE if is_cold else FINE))
    return grid[:-1]


def _is_past_best(coarse: Sequence[Trial], limits: Range) -> bool:
    """True if weaker lambdas than those on the grid cannot be the best."""
    if hopeless([*coarse, None]):
        return True
    if len(coarse) < 2 or coarse[-1].lam > limits.weak_end:
        return False
    return choose(coarse, "best") < len(coarse) - 1 or not _is_better(coarse[-1], coarse[-2])


def lambdas_near(lam: float) -> tuple[float, ...]:
    """Return lambdas around one that was best for fewer rows, with the same lambda n: smaller ones are often better."""
    return tuple(lam * FINE ** (0.5 - number) for number in range(_NEAR))


def further_lambdas(trials: Sequence[Trial], limits: Range, is_costly: bool = False) -> tuple[float, ...]:
    """Return the lambdas that a search tries next, strong ones first; none if the best is found.

    If the best is at an end, and better than its neighbour by more than noise, the search goes beyond that end. Else
    it looks between the best and its neighbours until the lambdas there are within a ratio of `FINE`. It goes less far
    where each lambda `is_costly`.
    """
    ordered = sorted(trials, key=lambda trial: -trial.lam)
    best = choose(ordered, "best")
    number, noise = (_MORE_COSTLY, _RISE) if is_costly else (_MORE, _NOISE)
    return _beyond_the_end(ordered, best, limits, number, noise) or _between(ordered, best)


def _beyond_the_end(ordered: Sequence[Trial], best: int, limits: Range, most: int, noise: float) -> tuple[float, ...]:
    """Return lambdas beyond the end at which the best is, if it is at one."""
    last = len(ordered) - 1
    if last < 1 or 0 < best < last:
        return ()
    neighbour = ordered[1 if best == 0 else last - 1]
    if not _is_better(ordered[best], neighbour, noise):
        return ()
    ratio = ordered[best].lam / neighbour.lam
    beyond = [ordered[best].lam * ratio**number for number in range(1, most + 1)]
    inside = (lam for lam in beyond if limits.weakest / 1.001 < lam < limits.strongest * 1.001)
    return tuple(sorted(inside, reverse=True))


def _between(ordered: Sequence[Trial], best: int) -> tuple[float, ...]:
    """Return lambdas between the best and its neighbours, unless they are near already."""
    found: list[float] = []
    for left in (best - 1, best):
        if left >= 0 and left + 1 < len(ordered):
            one, other = ordered[left].lam, ordered[left + 1].lam
            number = math.ceil(math.log(one / other) / math.log(FINE) - 1e-9)
            found += [one * (other / one) ** (part / number) for part in range(1, number)]
    return tuple(found)


def _is_better(one: Trial, other: Trial, noise: float = _NOISE) -> bool:
    """True if the difference is no noise. Both were tested on the same rows, so it varies less than each of them."""
    by_value = other.value - one.value > noise * one.uncertainty
    return by_value or other.loss - one.loss > noise * one.deviation


def hopeless(trials: Sequence[Trial | None]) -> int:
    """Return the number of lambdas at the weak end that cannot be the best, given trials, strong lambdas first.

    None is unknown. A last loss above the best by more than noise, while the error does not fall, shows that the best
    lambda is a larger one.
    """
    known = next((number for number, trial in enumerate(trials) if trial is None), len(trials))
    found = [trial for trial in trials[:known] if trial is not None]
    if len(found) < 4:
        return 0
    before, last = found[-2:]
    best = min(found, key=lambda trial: trial.loss)
    is_rising = last.loss > before.loss and last.loss - best.loss > _RISE * best.deviation
    is_falling = any(one.value < best.value for one in (before, last))
    return len(trials) - known if is_rising and best is not found[0] and not is_falling else 0


def remark_on(trials: Sequence[Trial]) -> str | None:
    """Return a note if the best of some given lambdas is the largest or the smallest of them."""
    if len(trials) < 3:
        return None
    lambdas = [trial.lam for trial in trials]
    best, smallest, largest = trials[choose(trials, "best")].lam, min(lambdas), max(lambdas)
    if best == smallest:
        return f"the smallest lambda was best; try smaller ones: --lambda {smallest / 100:.1g}:{smallest:.1g}:5"
    if best == largest:
        return f"the largest lambda was best; try larger ones: --lambda {largest:.1g}:{largest * 100:.1g}:5"
    return None


def trial_of(lam: float, holdout: Sequence[tuple[int, HoldoutLoss]], *, across: bool, by_error: bool) -> Trial:
    """Return the joint result of several models of a lambda: of classes on a holdout, or `across` folds.

    The standard error across folds is that of their losses; classes share the same rows. With `by_error` the score is
    the error rate, where it is known.
    """
    loss, error, rows = _mean([found for _fold, found in holdout])
    folds = sorted({fold for fold, _found in holdout})
    deviation = sum(found.deviation for _fold, found in holdout) / len(holdout)
    if across and len(folds) > 1:
        losses = [_mean([found for other, found in holdout if other == fold])[0] for fold in folds]
        spread = sum((one - loss) ** 2 for one in losses) / (len(folds) - 1)
        deviation = math.sqrt(spread / len(folds))
    if not by_error or error is None:
        return Trial(lam, loss, deviation, error)
    return Trial(lam, loss, deviation, error, error, deviation_of_share(error, rows))


def deviation_of_share(share: float, rows: int) -> float:
    """Return the standard error of a share of some rows."""
    return math.sqrt(max(share * (1.0 - share), 0.0) / max(rows, 1))


def _mean(holdout: Sequence[HoldoutLoss]) -> tuple[float, float | None, int]:
    """Return loss and error of all rows together, and their number."""
    rows = sum(found.rows for found in holdout)
    errors = [found.error * found.rows for found in holdout if found.error is not None]
    return sum(found.loss * found.rows for found in holdout) / rows, sum(errors) / rows if errors else None, rows
