"""Metrics of scores: errors, areas under curves, losses, in one pass and bounded memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

EXACT_ROWS = 20_000_000
"""Number of rows up to which areas are exact; beyond, scores are binned."""
MOST_CLASSES = 4096
MOST_LISTED = 100
"""Number of classes up to which the confusion matrix is among the metrics."""
_BIN_BITS = 20
_LEAST_CHANCE = float(np.finfo(np.float64).eps)


class BinaryMetrics:
    """Metrics of scores with labels of -1 and 1, accumulated block by block."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._exact_rows = exact_rows
        self._confusion = np.zeros((2, 2), np.int64)
        self._loss = _Sum()
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._bins: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return int(self._confusion.sum())

    def add(self, scores: np.ndarray, labels: np.ndarray, losses: np.ndarray) -> None:
        """Add rows with their losses. A score above 0 predicts the positive class."""
        positive, predicted = labels > 0, scores > 0
        for actual in (0, 1):
            hits = int((predicted & (positive == bool(actual))).sum())
            self._confusion[actual, 1] += hits
            self._confusion[actual, 0] += int((positive == bool(actual)).sum()) - hits
        self._loss.add(float(losses.sum()))
        self._kept.append((scores, positive))
        self._settle()

    def merge(self, other: BinaryMetrics) -> None:
        """Add the rows of another, which follow those of this one."""
        self._confusion += other._confusion
        self._loss.merge(other._loss)
        self._kept += other._kept
        if other._bins is not None:
            self._bins = other._bins.copy() if self._bins is None else self._bins + other._bins
        self._settle()

    def _settle(self) -> None:
        """Bin the kept scores if there are too many, or if other scores are binned."""
        if self._bins is None:
            if self.rows <= self._exact_rows:
                return
            self._bins = np.zeros((1 << _BIN_BITS, 2), np.int64)
        kept, self._kept = self._kept, []
        for scores, positive in kept:
            self._fill(scores, positive)

    def _fill(self, scores: np.ndarray, positive: np.ndarray) -> None:
        assert self._bins is not None
        bins = bin_of(scores)
        for actual in (0, 1):
            self._bins[:, actual] += np.bincount(bins[positive == bool(actual)], minlength=1 << _BIN_BITS)

    def _by_threshold(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (negatives, positives) at each distinct score or bin, in decreasing order."""
        if self._bins is not None:
            counts = self._bins[self._bins.any(axis=1)][::-1]
            return counts[:, 0], counts[:, 1]
        scores = np.concatenate([part[0] for part in self._kept]) if self._kept else np.empty(0)
        positive = np.concatenate([part[1] for part in self._kept]) if self._kept else np.empty(0, bool)
        _distinct, place = np.unique(scores, return_inverse=True)
        number = len(_distinct)
        positives = np.bincount(place[positive], minlength=number)
        negatives = np.bincount(place[~positive], minlength=number)
        return negatives[::-1], positives[::-1]

    def result(self, norm_term: float) -> dict[str, Any]:
        """Return all metrics; those that need both classes are None without. `norm_term` is (lam / 2) ||w||^2."""
        (true_negative, false_positive), (false_negative, true_positive) = self._confusion.tolist()
        rows = max(self.rows, 1)
        negatives, positives = true_negative + false_positive, false_negative + true_positive
        recall = true_positive / positives if positives else None
        specificity = true_negative / negatives if negatives else None
        precision = true_positive / (true_positive + false_positive) if true_positive + false_positive else None
        both = recall is not None and specificity is not None
        f1_parts = 2 * true_positive + false_positive + false_negative
        return {
            "rows": self.rows,
            "error": (false_positive + false_negative) / rows,
            "constant_error": min(negatives, positives) / rows,
            "accuracy": (true_positive + true_negative) / rows,
            "balanced_accuracy": ((recall or 0) + (specificity or 0)) / 2 if both else None,
            "precision": precision,
            "recall": recall,
            "f1": 2 * true_positive / f1_parts if f1_parts else None,
            "roc_auc": self._roc_auc() if both else None,
            "pr_auc": self._pr_auc() if positives else None,
            "auc_method": "binned" if self._bins is not None else "exact",
            "mean_loss": self._loss.value / rows,
            "objective": norm_term + self._loss.value / rows,
            "confusion": [[true_negative, false_positive], [false_negative, true_positive]],
        }

    def _roc_auc(self) -> float:
        """Return the area under the ROC curve; ties count half."""
        negatives, positives = self._by_threshold()
        above = np.cumsum(positives) - positives
        pairs = (negatives * (above + positives / 2)).sum()
        return float(pairs / (negatives.sum() * positives.sum()))

    def _pr_auc(self) -> float:
        """Return the average precision: the sum over thresholds of precision times the step in recall."""
        negatives, positives = self._by_threshold()
        found = np.cumsum(positives)
        precision = found / (found + np.cumsum(negatives))
        return float((precision * positives).sum() / positives.sum())


class ProbabilityMetrics:
    """Metrics of probabilities of the positive class with labels of -1 and 1, accumulated block by block."""

    def __init__(self) -> None:
        self._rows = 0
        self._weight, self._log_loss, self._brier = _Sum(), _Sum(), _Sum()

    def add(self, probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add rows; rows without a weight have weight 1."""
        positive = labels > 0
        self._rows += len(labels)
        self._weight.add(_total(np.ones(len(labels)), weights))
        # clipped as in scikit-learn, because a probability of 0 for a positive would be an infinite loss
        probabilities = np.asarray(probabilities, np.float64)
        chance = np.clip(probabilities, _LEAST_CHANCE, 1.0 - _LEAST_CHANCE)
        self._log_loss.add(_total(-np.where(positive, np.log(chance), np.log1p(-chance)), weights))
        self._brier.add(_total((probabilities - positive) ** 2, weights))

    def merge(self, other: ProbabilityMetrics) -> None:
        """Add the rows of another."""
        self._rows += other._rows
        for mine, more in ((self._weight, other._weight), (self._log_loss, other._log_loss)):
            mine.merge(more)
        self._brier.merge(other._brier)

    def result(self) -> dict[str, Any]:
        """Return all metrics; None where no row has weight."""
        total = self._weight.value
        return {
            "rows": self._rows,
            "log_loss": _ratio(self._log_loss.value, total),
            "brier": _ratio(self._brier.value, total),
        }


class RegressionMetrics:
    """Metrics of predictions with targets, accumulated block by block."""

    def __init__(self) -> None:
        self._rows = 0
        self._weight, self._absolute, self._square, self._loss = _Sum(), _Sum(), _Sum(), _Sum()
        self._origin = 0.0
        self._mean = 0.0  # of the targets minus the origin
        self._spread = 0.0  # sum of the squared distances of targets to their mean

    def add(
        self, predictions: np.ndarray, targets: np.ndarray, losses: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows; rows without a weight have weight 1."""
        targets = np.asarray(targets, np.float64)
        off = predictions - targets
        before, weight = self._weight.value, _total(np.ones(len(targets)), weights)
        self._rows += len(targets)
        if weight == 0:
            return
        self._weight.add(weight)
        self._absolute.add(_total(np.abs(off), weights))
        self._square.add(_total(off * off, weights))
        self._loss.add(_total(losses, weights))
        if before == 0:
            self._origin = float(targets[0 if weights is None else np.argmax(weights > 0)])
        # relative to one target: no cancellation for targets far from 0, and no variance if all are equal
        shifted = targets - self._origin
        mean = _total(shifted, weights) / weight
        self._spread_more(before, weight, mean, _total((shifted - mean) ** 2, weights))

    def merge(self, other: RegressionMetrics) -> None:
        """Add the rows of another."""
        self._rows += other._rows
        before, weight = self._weight.value, other._weight.value
        if weight == 0:
            return
        for name in ("_weight", "_absolute", "_square", "_loss"):
            getattr(self, name).merge(getattr(other, name))
        if before == 0:
            self._origin = other._origin
        self._spread_more(before, weight, other._mean + (other._origin - self._origin), other._spread)

    def _spread_more(self, before: float, weight: float, mean: float, spread: float) -> None:
        """Merge variances by Chan's rule: the sum of both, plus the variance between the means."""
        between = mean - self._mean
        self._spread += spread + between * between * before * weight / (before + weight)
        self._mean += between * weight / (before + weight)

    def result(self, norm_term: float) -> dict[str, Any]:
        """Return all metrics; None where no row has weight, and R^2 None if all targets are equal."""
        total, square = self._weight.value, self._square.value
        mean_square, mean_loss = _ratio(square, total), _ratio(self._loss.value, total)
        return {
            "rows": self._rows,
            "mean_absolute_error": _ratio(self._absolute.value, total),
            "mean_squared_error": mean_square,
            "root_mean_squared_error": None if mean_square is None else math.sqrt(mean_square),
            "r2": 1.0 - square / self._spread if self._spread else None,
            "mean_loss": mean_loss,
            "objective": None if mean_loss is None else norm_term + mean_loss,
        }


class MulticlassMetrics:
    """Metrics of predicted and true classes, numbered from 0, accumulated block by block."""

    def __init__(self, classes: int) -> None:
        if not 0 < classes <= MOST_CLASSES:
            raise ValueError(f"from 1 to {MOST_CLASSES} classes, not {classes}")
        self._classes = classes
        self._rows = 0
        self._loss = _Sum()
        self._weighted = False
        self._confusion = np.zeros(classes * classes)

    @property
    def confusion(self) -> np.ndarray:
        """The weight of the rows of each class (rows of the matrix) predicted as each class (columns)."""
        matrix = self._confusion.reshape(self._classes, self._classes)
        return matrix.copy() if self._weighted else matrix.astype(np.int64)

    def add(
        self, predicted: np.ndarray, labels: np.ndarray, losses: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows; rows without a weight have weight 1."""
        for numbers in (predicted, labels):
            if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self._classes):
                raise ValueError(f"classes are numbered from 0 to {self._classes - 1}")
        place = np.asarray(labels).astype(np.int64) * self._classes + np.asarray(predicted).astype(np.int64)
        # not bincount, which would allocate a whole matrix for every block
        np.add.at(self._confusion, place, 1.0 if weights is None else np.asarray(weights, np.float64))
        self._weighted |= weights is not None
        self._loss.add(_total(losses, weights))
        self._rows += len(labels)

    def merge(self, other: MulticlassMetrics) -> None:
        """Add the rows of another, of the same classes."""
        self._confusion += other._confusion
        self._weighted |= other._weighted
        self._loss.merge(other._loss)
        self._rows += other._rows

    def result(self, norm_term: float) -> dict[str, Any]:
        """Return all metrics; None where no row has weight. Classes that do not occur are ignored.

        Balanced accuracy is the mean recall of the classes among the labels; macro F1 is the mean F1 of the classes
        among labels and predictions. A large confusion matrix is None here; the property `confusion` returns it.
        """
        matrix = self._confusion.reshape(self._classes, self._classes)
        actual, predicted, hits = matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal()
        total, right, occurs = float(actual.sum()), float(hits.sum()), actual + predicted > 0
        mean_loss = _ratio(self._loss.value, total)
        return {
            "rows": self._rows,
            "error": _ratio(total - right, total),
            "constant_error": _ratio(total - float(actual.max(initial=0.0)), total),
            "accuracy": _ratio(right, total),
            "balanced_accuracy": float((hits[actual > 0] / actual[actual > 0]).mean()) if total else None,
            "macro_f1": float((2 * hits[occurs] / (actual + predicted)[occurs]).mean()) if total else None,
            "mean_loss": mean_loss,
            "objective": None if mean_loss is None else norm_term + mean_loss,
            "confusion": self.confusion.tolist() if self._classes <= MOST_LISTED else None,
        }


class _Sum:
    """Compensated sum (Neumaier), exact enough for any number of blocks."""

    def __init__(self) -> None:
        self._high = self._low = 0.0

    def add(self, term: float) -> None:
        total = self._high + term
        larger, smaller = (self._high, term) if abs(self._high) >= abs(term) else (term, self._high)
        self._low += (larger - total) + smaller
        self._high = total

    def merge(self, other: _Sum) -> None:
        """Add another sum."""
        self.add(other._high)
        self._low += other._low

    @property
    def value(self) -> float:
        return self._high + self._low


def _total(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the weighted sum; numpy sums pairwise, so that rounding errors hardly grow with the rows."""
    exact = np.asarray(values, np.float64)
    return float((exact if weights is None else exact * weights).sum())


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def bin_of(scores: np.ndarray) -> np.ndarray:
    """Return bins in the order of the scores: the high bits of float32, rearranged to be monotonic."""
    bits = (np.asarray(scores, np.float32) + np.float32(0)).view(np.uint32)  # -0 is 0
    ordered = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(1 << 31))
    return (ordered >> (32 - _BIN_BITS)).astype(np.int64)
