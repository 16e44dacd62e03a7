"""The size of real targets, from which defaults follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TargetSizes:
    """Count, mean, sum of squared differences to the mean, and largest absolute value of the targets of some rows."""

    rows: int = 0
    mean: float = 0.0
    squares: float = 0.0
    largest: float = 0.0

    @classmethod
    def of(cls, labels: np.ndarray) -> TargetSizes:
        """Return those of the labels of some rows."""
        if not len(labels):
            return cls()
        values = labels.astype(np.float64)
        mean = float(values.mean())
        with np.errstate(over="ignore"):
            return cls(len(values), mean, float(((values - mean) ** 2).sum()), float(np.abs(values).max()))

    def __add__(self, other: TargetSizes) -> TargetSizes:
        """Return those of both sets of rows."""
        rows = self.rows + other.rows
        if not self.rows or not other.rows:
            return other if other.rows else self
        between = other.mean - self.mean
        return TargetSizes(
            rows,
            self.mean + between * other.rows / rows,
            self.squares + other.squares + between * between * self.rows * other.rows / rows,
            max(self.largest, other.largest),
        )

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 without rows."""
        return math.sqrt(self.squares / self.rows) if self.rows else 0.0
