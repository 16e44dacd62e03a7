"""Scores of the holdout rows at the end of a run: errors, probabilities, and metrics by which lambdas are compared."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.lambda_path import deviation_of_share
from ooc_pegasos.objective.problem import NONE
from ooc_pegasos.scoring.calibration import ScoreSummary, fitted
from ooc_pegasos.scoring.evaluate import Tally
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.scoring.score import Scored, Scorer
from ooc_pegasos.store.store import Store

_EXACT_ROWS = 1_000_000
"""Holdout rows up to which areas under curves are exact."""
_TASKS = {
    "error": ("binary", "multiclass"),
    "balanced-error": ("binary", "multiclass"),
    "auc": ("binary",),
    "mae": ("regression",),
    "r2": ("regression",),
}
"""The kinds of labels that each metric is for; the loss is for all."""


def check_criterion(criterion: str | None, task: str) -> None:
    """Refuse a metric that is not for these labels."""
    tasks = _TASKS.get(criterion or "")
    if tasks and task not in tasks:
        suitable = ", ".join(["loss", *(name for name, fits in _TASKS.items() if task in fits)])
        raise UsageError(f"{{select_by={criterion}}} is not for {task} labels; choose {suitable}")


def check_holdout_classes(store: Store, loader: Loader) -> None:
    """Refuse holdout rows of a single class, to which probabilities cannot be fitted, before training begins.

    Usually the first chunk has both classes.
    """
    found: set[float] = set()
    for number, labels in enumerate(store.labels_by_chunk()):
        found |= set(np.sign(labels[loader.folds.of(number) == 0]).tolist())
        if len(found) > 1:
            return
    what = "all holdout rows are of one class" if found else "there are no holdout rows"
    raise UsageError(f"{{calibrate}}: {what}, so probabilities cannot be fitted; choose a larger {{holdout}}")


@dataclass(frozen=True)
class HoldoutRequest:
    """The statistics that are wanted of the holdout rows."""

    models: list[Model]
    calibrate: bool = False
    """True if probabilities will be fitted to the scores."""
    compare: bool = False
    """True if metrics are wanted by which lambdas are compared."""

    def new(self) -> list[HoldoutScores]:
        """Return statistics of no rows, for each model."""
        return [HoldoutScores(model, self) for model in self.models]


def score_holdout_rows(
    request: HoldoutRequest, windows: Iterator[Window], loader: Loader, threads: int
) -> list[HoldoutScores]:
    """Return the statistics of the holdout rows of some windows."""
    found = request.new()
    scorers = [Scorer(model, model.info.features) for model in request.models]
    for window in windows:
        for model, statistics, scorer in zip(request.models, found, scorers, strict=True):
            statistics.take(model, scorer.window(loader, window, threads), window)
    return found


class HoldoutScores:
    """Statistics of the scores of holdout rows. Those of several machines can be merged."""

    def __init__(self, model: Model, request: HoldoutRequest) -> None:
        self.classes = range(len(model.info.labels.classes)) if model.bias.ndim else [NONE]
        self.summaries = [ScoreSummary() for _ in self.classes] if request.calibrate else []
        self.tally = Tally(model, _EXACT_ROWS) if request.compare else None
        self.errors = self.count = 0

    def take(self, model: Model, scores: np.ndarray, window: Window) -> None:
        """Add the holdout rows of a window, given the scores of all its rows."""
        for begin, end in window.row_ranges:
            rows = begin + np.flatnonzero(window.folds[begin:end] == 0)
            weights = None if window.block.weights is None else window.block.weights[rows]
            self._add(model, scores[rows], window.block.labels[rows], weights)

    def _add(self, model: Model, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        predicted = scores.argmax(axis=1) if scores.ndim > 1 else np.where(scores > 0, 1, -1)
        self.errors += int((predicted != labels).sum())
        self.count += len(labels)
        for one_class, summary in zip(self.classes, self.summaries, strict=False):
            positive = labels > 0 if one_class == NONE else labels == one_class
            summary.add(scores if one_class == NONE else scores[:, one_class], positive, weights)
        if self.tally:
            self.tally.take(model, [Scored(scores, labels)])

    def merged(self, other: HoldoutScores) -> HoldoutScores:
        """Return the statistics of the rows of both; neither is changed."""
        new = copy.deepcopy(self)
        new.errors, new.count = self.errors + other.errors, self.count + other.count
        for summary, more in zip(new.summaries, other.summaries, strict=True):
            summary.merge(more)
        if new.tally and other.tally:
            new.tally.merge(other.tally)
        return new

    @property
    def error(self) -> float | None:
        """The error rate."""
        return self.errors / self.count if self.count else None

    def calibrate(self, model: Model, config: TrainConfig) -> Model:
        """Return the model, with probabilities fitted to these rows if requested."""
        if not config.calibrate:
            return model
        found = [fitted(summary, config.calibrate, alone=len(self.summaries) == 1) for summary in self.summaries]
        return dataclasses.replace(model, info=dataclasses.replace(model.info, calibrations=found))

    def criterion(self, model: Model, name: str) -> tuple[float, float]:
        """Return a metric, smaller is better, and its standard error."""
        assert self.tally is not None
        metrics: dict[str, Any] = self.tally.result(model, "the holdout rows")
        rows = metrics["rows"]
        if name == "error":
            return metrics["error"], deviation_of_share(metrics["error"], rows)
        if name == "mae":
            spread = max(metrics["mean_squared_error"] - metrics["mean_absolute_error"] ** 2, 0.0)
            return metrics["mean_absolute_error"], math.sqrt(spread / rows)
        value = metrics[{"auc": "roc_auc", "balanced-error": "balanced_accuracy", "r2": "r2"}[name]]
        if value is None:
            why = "all holdout targets are equal" if name == "r2" else "all holdout rows are of one class"
            raise UsageError(f"{{select_by={name}}}: {why}; choose a larger {{holdout}}, or {{select_by=loss}}")
        if name == "r2":  # the standard error if errors are normally distributed
            return 1.0 - value, (1.0 - value) * math.sqrt(2.0 / rows)
        return 1.0 - value, deviation_of_share(1.0 - value, _rarest(metrics["confusion"], rows))


def _rarest(confusion: Sequence[Sequence[int]] | None, rows: int) -> int:
    """Return the number of rows of the rarest class, on which the noise of balanced metrics depends."""
    return min((sum(line) for line in confusion if sum(line)), default=rows) if confusion else rows
