"""Gate: comparison of a new model with the model in use on the same rows, with a bootstrap confidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.errors import UsageError
from ooc_pegasos.jobs.job import Gate, Metric
from ooc_pegasos.loading.window import Folds
from ooc_pegasos.scoring.evaluate import losses_of_rows, metrics_of
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.scoring.score import Scored, score
from ooc_pegasos.store.manifest import LabelInfo
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.thread_map import cores

_SAMPLE, _RESAMPLES = 100_000, 1000
_CHANCE = 0.05
"""Share of resamples in which the challenger is good enough, from which on a difference may be due to chance."""
_LARGER_IS_BETTER = ("roc_auc",)
_TASKS: dict[Metric, tuple[str, ...]] = {
    "roc_auc": ("binary",),
    "error": ("binary", "multiclass"),
    "mean_absolute_error": ("regression",),
    "mean_loss": ("binary", "multiclass", "regression"),
}
_LABELS = {"binary": "two classes", "multiclass": "several classes", "regression": "real targets"}


@dataclass(frozen=True)
class Measured:
    """Metrics of a model on a set of rows, with a sample of the rows."""

    metrics: dict[str, Any]
    scores: np.ndarray
    """Scores of the sample, which has the same rows for every model."""
    labels: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class Check:
    """A condition of the gate, and its outcome."""

    what: str
    passed: bool
    found: float | None
    needed: float | None


def measure(model: Model, data: str, judge: Model) -> Measured:
    """Return the metrics of a model on a store or file; the loss is that of `judge`."""
    return _measured(model, score(model, data, cores(), with_labels=True), data, judge)


def measure_holdout(model: Model, store: Store, holdout: float, judge: Model) -> Measured:
    """Return the metrics of a model on the holdout rows of a store."""
    folds = Folds(store, holdout, None)

    def kept() -> Iterator[Scored]:
        blocks = score(model, str(store.path), cores(), with_labels=True)  # a block for each chunk
        for number, block in enumerate(blocks):
            chosen = folds.of(number) == 0
            if chosen.any():
                assert block.labels is not None
                yield Scored(block.scores[chosen], block.labels[chosen])

    return _measured(model, kept(), f"{store.path}, holdout rows", judge)


def _measured(model: Model, blocks: Iterable[Scored], what: str, judge: Model) -> Measured:
    differ = _loss_of(model) != _loss_of(judge)
    sample = _Sample(judge if differ else None)
    metrics = metrics_of(model, sample.watch(blocks), what)
    if differ:  # means of different losses cannot be compared
        metrics["mean_loss"] = sample.mean_loss()
    scores, labels = sample.rows()
    return Measured(metrics, scores, labels, losses_of_rows(judge, scores, labels))


def _loss_of(model: Model) -> tuple[Any, ...]:
    return model.info.loss, model.info.parameter, model.info.costs


class _Sample:
    """A systematic sample of rows (each, every second, every fourth, ...), and the judge's mean loss of all rows."""

    def __init__(self, judge: Model | None = None) -> None:
        self._judge, self._loss = judge, 0.0
        self._stride, self._seen = 1, 0
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._kept = 0

    def watch(self, blocks: Iterable[Scored]) -> Iterator[Scored]:
        """Yield the blocks unchanged, and sample their rows."""
        for block in blocks:
            assert block.labels is not None
            if self._judge:
                self._loss += float(losses_of_rows(self._judge, block.scores, block.labels).sum())
            first = -self._seen % self._stride
            self._seen += len(block.labels)
            self._scores.append(block.scores[first :: self._stride].copy())
            self._labels.append(block.labels[first :: self._stride].copy())
            self._kept += len(self._labels[-1])
            while self._kept > _SAMPLE:
                scores, labels = self.rows()
                self._stride *= 2
                self._scores, self._labels = [scores[::2].copy()], [labels[::2].copy()]
                self._kept = len(self._labels[0])
            yield block

    def mean_loss(self) -> float:
        """Return the mean loss of all rows so far."""
        return self._loss / self._seen

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (scores, labels) of the sample."""
        return np.concatenate(self._scores), np.concatenate(self._labels)


def metric_for(gate: Gate, labels: LabelInfo) -> Metric:
    """Return the metric by which models are compared."""
    default: dict[str, Metric] = {"binary": "roc_auc", "multiclass": "error", "regression": "mean_absolute_error"}
    return gate.metric or default[labels.task]


def refuse_unfit(gate: Gate, labels: LabelInfo) -> None:
    """Refuse a gate that cannot be applied to such labels."""
    if gate.metric is not None and labels.task not in _TASKS[gate.metric]:
        problem = f"is not for {_LABELS[labels.task]}"
        fit = ", ".join(name for name, tasks in _TASKS.items() if labels.task in tasks)
        raise UsageError(f"gate.metric {gate.metric} {problem}; choose {fit}")
    if gate.min_auc is not None and labels.task not in _TASKS["roc_auc"]:
        raise UsageError(f"gate.min_auc is not for {_LABELS[labels.task]}; leave it out")


def regression(metric: str, champion: float, challenger: float) -> float:
    """Return the regression of the challenger relative to the champion; negative if the challenger is better.

    Infinite if the challenger is worse than a champion without errors.
    """
    worse = champion - challenger if metric in _LARGER_IS_BETTER else challenger - champion
    if champion == 0:
        return 0.0 if worse <= 0 else math.inf
    return worse / abs(champion)


def confidence(metric: Metric, champion: Measured, challenger: Measured, allowed: float) -> float:
    """Return the share of bootstrap resamples in which the challenger is worse by at most `allowed`.

    A resample without a defined metric, for example with rows of one class only, counts as worse.
    """
    rng = np.random.default_rng(0)
    rows = len(champion.labels)
    measures = [_resampled(metric, one) for one in (champion, challenger)]
    good = 0
    for _resample in range(_RESAMPLES):
        times = np.bincount(rng.integers(0, rows, rows), minlength=rows).astype(np.float64)
        before, after = (one(times) for one in measures)
        good += regression(metric, before, after) <= allowed  # False for NaN
    return good / _RESAMPLES


def _resampled(metric: Metric, found: Measured) -> Any:
    """Return a function from the multiplicities of the rows to the metric."""
    if metric == "roc_auc":
        order = np.argsort(found.scores, kind="stable")
        positive = (found.labels > 0)[order]
        ranked = found.scores[order]
        begins = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))

        def area(times: np.ndarray) -> float:
            times = times[order]
            positives = np.add.reduceat(times * positive, begins)
            negatives = np.add.reduceat(times * ~positive, begins)
            pairs = positives.sum() * negatives.sum()
            below = np.cumsum(negatives) - negatives
            return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else math.nan

        return area
    if metric == "mean_loss":
        each = found.losses
    elif metric == "mean_absolute_error":
        each = np.abs(found.scores - found.labels)
    elif found.scores.ndim > 1:
        each = (found.scores.argmax(axis=1) != found.labels).astype(np.float64)
    else:
        each = ((found.scores > 0) != (found.labels > 0)).astype(np.float64)
    return lambda times: float(times @ each / times.sum())


def verdict(
    gate: Gate, challenger: Model, champion: Model | None, sets: dict[str, tuple[Measured, Measured | None]]
) -> list[Check]:
    """Return all checks; the challenger is promoted if each passes. `sets` has (challenger, champion) by name."""
    checks = []
    certificate = challenger.info.certificate
    if gate.require_certified:
        checks.append(Check("the gap is certified", certificate.converged, certificate.gap, None))
    metric = metric_for(gate, challenger.info.labels)
    for name, (new, old) in sets.items():
        if gate.min_auc is not None:
            area = new.metrics.get("roc_auc")
            passed = area is not None and area >= gate.min_auc
            checks.append(Check(f"{name}: area under the ROC curve", passed, area, gate.min_auc))
        if champion is None:
            continue
        if old is None:
            if len(sets) == 1:
                problem = f"{name}: rows that the model in use was not trained on"
                checks.append(Check(problem, False, None, None))
            continue
        before, after = old.metrics.get(metric), new.metrics.get(metric)
        allowed = gate.max_relative_regression
        if before is None or after is None:
            checks.append(Check(f"{name}: {metric}, which is undefined on these rows", False, after, before))
            continue
        worse = regression(metric, before, after)
        if math.isinf(worse):
            checks.append(Check(f"{name}: {metric}, which is 0 for the champion,", False, after, before))
            continue
        sure = confidence(metric, old, new, allowed) if worse > allowed or gate.confidence is not None else 1.0
        is_chance = gate.confidence is None and worse > allowed and sure > _CHANCE
        what = _comparison(metric, before, after) + ("; that may be chance" if is_chance else "")
        checks.append(Check(f"{name}: {what}; relative regression", worse <= allowed or is_chance, worse, allowed))
        if gate.confidence is not None:
            checks.append(Check(f"{name}: {metric}, confidence", sure >= gate.confidence, sure, gate.confidence))
    return checks


def _comparison(metric: str, champion: float, challenger: float) -> str:
    """Return the comparison of two models in words."""
    difference = challenger - champion
    is_better = difference > 0 if metric in _LARGER_IS_BETTER else difference < 0
    how = f"{'better' if is_better else 'worse'} by {abs(difference):.4g}" if difference else "unchanged"
    return f"{metric} {how} ({challenger:.4g} against {champion:.4g})"
