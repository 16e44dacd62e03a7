"""How good scores are: errors, areas under curves, losses, in one pass and bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np

EXACT_ROWS = 20_000_000
"""Up to so many rows the areas are exact; beyond, scores are put in bins."""
_BIN_BITS = 20


class BinaryMetrics:
    """Takes scores with labels of -1 and 1, block by block."""

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._exact_rows = exact_rows
        self._confusion = np.zeros((2, 2), np.int64)
        self._loss = 0.0
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._bins: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """Rows so far."""
        return int(self._confusion.sum())

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Take in some rows. A score above 0 predicts the positive class."""
        positive, predicted = labels > 0, scores > 0
        for actual in (0, 1):
            hits = int((predicted & (positive == bool(actual))).sum())
            self._confusion[actual, 1] += hits
            self._confusion[actual, 0] += int((positive == bool(actual)).sum()) - hits
        self._loss += float(np.maximum(0.0, 1.0 - labels * scores).sum())
        if self._bins is None and self.rows <= self._exact_rows:
            self._kept.append((scores, positive))
            return
        if self._bins is None:
            self._bins = np.zeros((1 << _BIN_BITS, 2), np.int64)
            kept, self._kept = self._kept, []
            for old_scores, old_positive in kept:
                self._fill(old_scores, old_positive)
        self._fill(scores, positive)

    def _fill(self, scores: np.ndarray, positive: np.ndarray) -> None:
        assert self._bins is not None
        bins = bin_of(scores)
        for actual in (0, 1):
            self._bins[:, actual] += np.bincount(bins[positive == bool(actual)], minlength=1 << _BIN_BITS)

    def _by_threshold(self) -> tuple[np.ndarray, np.ndarray]:
        """(negatives, positives) at each distinct score or bin, from the highest down."""
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
        """All metrics; those that need both classes are None without. `norm_term` is (lam / 2) ||w||^2."""
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
            "accuracy": (true_positive + true_negative) / rows,
            "balanced_accuracy": ((recall or 0) + (specificity or 0)) / 2 if both else None,
            "precision": precision,
            "recall": recall,
            "f1": 2 * true_positive / f1_parts if f1_parts else None,
            "roc_auc": self._roc_auc() if both else None,
            "pr_auc": self._pr_auc() if positives else None,
            "auc_method": "binned" if self._bins is not None else "exact",
            "mean_loss": self._loss / rows,
            "objective": norm_term + self._loss / rows,
            "confusion": [[true_negative, false_positive], [false_negative, true_positive]],
        }

    def _roc_auc(self) -> float:
        """Area under the ROC curve; ties count half."""
        negatives, positives = self._by_threshold()
        above = np.cumsum(positives) - positives
        pairs = (negatives * (above + positives / 2)).sum()
        return float(pairs / (negatives.sum() * positives.sum()))

    def _pr_auc(self) -> float:
        """Average precision: the sum over thresholds of precision times the step in recall."""
        negatives, positives = self._by_threshold()
        found = np.cumsum(positives)
        precision = found / (found + np.cumsum(negatives))
        return float((precision * positives).sum() / positives.sum())


def bin_of(scores: np.ndarray) -> np.ndarray:
    """The high bits of the scores' float32, so arranged that a larger score has no smaller bin."""
    bits = (np.asarray(scores, np.float32) + np.float32(0)).view(np.uint32)  # -0 is 0
    ordered = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(1 << 31))
    return (ordered >> (32 - _BIN_BITS)).astype(np.int64)
