"""Whether a new model may take the place of the one in use: measured on the same rows, and how sure that is."""

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
    """A model on a set of rows."""

    metrics: dict[str, Any]
    scores: np.ndarray
    """Of some rows, the same for every model."""
    labels: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class Check:
    """One thing that was asked for."""

    what: str
    passed: bool
    found: float | None
    needed: float | None


def measure(model: Model, data: str, judge: Model) -> Measured:
    """A model on a store or file, by the loss of another."""
    return _measured(model, score(model, data, cores(), with_labels=True), data, judge)


def measure_apart(model: Model, store: Store, holdout: float, judge: Model) -> Measured:
    """A model on a fraction of the rows of a store that are kept apart from every training."""
    folds = Folds(store, holdout, None)

    def kept() -> Iterator[Scored]:
        blocks = score(model, str(store.path), cores(), with_labels=True)  # a block for each chunk
        for number, block in enumerate(blocks):
            chosen = folds.of(number) == 0
            if chosen.any():
                assert block.labels is not None
                yield Scored(block.scores[chosen], block.labels[chosen])

    return _measured(model, kept(), f"{store.path}, rows kept apart", judge)


def _measured(model: Model, blocks: Iterable[Scored], what: str, judge: Model) -> Measured:
    differ = _loss_of(model) != _loss_of(judge)
    sample = _Sample(judge if differ else None)
    metrics = metrics_of(model, sample.watch(blocks), what)
    if differ:  # means of two losses tell nothing of each other
        metrics["mean_loss"] = sample.mean_loss()
    scores, labels = sample.rows()
    return Measured(metrics, scores, labels, losses_of_rows(judge, scores, labels))


def _loss_of(model: Model) -> tuple[Any, ...]:
    return model.info.loss, model.info.parameter, model.info.costs


class _Sample:
    """Every row, or every second, fourth, ... so that they are not too many; and the mean loss of all, by a judge's."""

    def __init__(self, judge: Model | None = None) -> None:
        self._judge, self._loss = judge, 0.0
        self._stride, self._seen = 1, 0
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._kept = 0

    def watch(self, blocks: Iterable[Scored]) -> Iterator[Scored]:
        """The same blocks, while some of their rows are remembered."""
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
        """Of all rows so far."""
        return self._loss / self._seen

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """(scores, labels) of the rows that were remembered."""
        return np.concatenate(self._scores), np.concatenate(self._labels)


def metric_for(gate: Gate, labels: LabelInfo) -> Metric:
    """The metric by which models are compared."""
    default: dict[str, Metric] = {"binary": "roc_auc", "multiclass": "error", "regression": "mean_absolute_error"}
    return gate.metric or default[labels.task]


def refuse_unfit(gate: Gate, labels: LabelInfo) -> None:
    """Refuse a gate that no model for such labels could pass."""
    if gate.metric is not None and labels.task not in _TASKS[gate.metric]:
        problem = f"is not for {_LABELS[labels.task]}"
        fit = ", ".join(name for name, tasks in _TASKS.items() if labels.task in tasks)
        raise UsageError(f"gate.metric {gate.metric} {problem}; choose {fit}")
    if gate.min_auc is not None and labels.task not in _TASKS["roc_auc"]:
        raise UsageError(f"gate.min_auc is not for {_LABELS[labels.task]}; leave it out")


def regression(metric: str, champion: float, challenger: float) -> float:
    """How much worse the challenger is, as a share of the champion's; negative if it is better.

    Infinite if it is worse than a champion that is without fault.
    """
    worse = champion - challenger if metric in _LARGER_IS_BETTER else challenger - champion
    if champion == 0:
        return 0.0 if worse <= 0 else math.inf
    return worse / abs(champion)


def sureness(metric: Metric, champion: Measured, challenger: Measured, allowed: float) -> float:
    """In which share of resamples of the rows the challenger is worse by no more than is allowed.

    A resample that cannot tell, as it has rows of one class alone, is no reason to be sure.
    """
    rng = np.random.default_rng(0)
    rows = len(champion.labels)
    measures = [_resampled(metric, one) for one in (champion, challenger)]
    good = 0
    for _resample in range(_RESAMPLES):
        times = np.bincount(rng.integers(0, rows, rows), minlength=rows).astype(np.float64)
        before, after = (one(times) for one in measures)
        good += regression(metric, before, after) <= allowed  # which NaN is not
    return good / _RESAMPLES


def _resampled(metric: Metric, found: Measured) -> Any:
    """What gives the metric where each row counts so many times."""
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
    """All checks; the challenger is promoted if each is passed. `sets` has (challenger, champion) by name."""
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
            checks.append(Check(f"{name}: {metric}, which these rows do not tell", False, after, before))
            continue
        worse = regression(metric, before, after)
        if math.isinf(worse):
            checks.append(Check(f"{name}: {metric}, of which the champion has none,", False, after, before))
        else:
            checks.append(Check(f"{name}: {metric} worse than the champion's by", worse <= allowed, worse, allowed))
        if gate.confidence is not None:
            sure = sureness(metric, old, new, allowed)
            checks.append(Check(f"{name}: {metric}, sure of that", sure >= gate.confidence, sure, gate.confidence))
    return checks
