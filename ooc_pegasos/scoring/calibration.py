"""Calibrated probabilities: Platt's sigmoid or isotonic regression, fitted on a summary of holdout rows.

The summary takes at most 1.3 MB. It is exact up to 32,768 different scores; beyond, scores share bins, which adapt to
the distribution of the scores, whatever its offset and scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from ooc_pegasos.errors import InputError, UsageError

BINS = 1 << 15
MOST_KNOTS = 1000
"""Limit on the size of a table, which is stored as JSON; its probabilities are within 0.006 of the exact ones."""

_LEAST, _MOST = 2.0**-100, 2.0**100
"""Range of absolute scores: smaller ones count as 0, larger ones as the maximum, so that no slope overflows."""

_NEWTON_STEPS = 200
_SMALLEST_STEP = 1e-10


class ScoreSummary:
    """Histogram of scores: weights of both classes, and the smallest and largest score in each bin.

    The bits of a float64 give scores an integer order, and a bin holds scores whose integers differ in the last `level`
    bits only. With more than `BINS` bins the level increases, and pairs of bins are merged. That happens at the same
    row however rows are grouped in blocks. If weights are integers, or not given, all sums are exact; then neither the
    order of rows nor the order of merges changes the result.
    """

    def __init__(self) -> None:
        self._level = 0
        self._bins = np.empty(0, np.int64)
        self._columns = np.empty((4, 0))  # least and largest score, weights of negatives and positives

    def add(self, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add rows; rows without a weight have weight 1."""
        _check_finite(scores)
        if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
            raise InputError("a row's weight is negative or not a number; correct it")
        scores = _within_range(scores)
        ones = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
        counts = ones > 0
        rows = np.stack([scores, scores, np.where(positive, 0.0, ones), np.where(positive, ones, 0.0)])[:, counts]
        while rows.shape[1]:
            rows = rows[:, self._take(_keys(rows[0]) >> self._level, rows) :]

    def merge(self, other: ScoreSummary) -> None:
        """Add all rows of another summary."""
        level = max(self._level, other._level)
        self._raise_to(level)
        self._put(other._bins >> (level - other._level), other._columns)
        self._make_room(self._bins)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as arrays by name, which float64 represents exactly."""
        names = ("lows", "highs", "negatives", "positives")
        return {"level": np.array([self._level]), **{name: self._columns[at] for at, name in enumerate(names)}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ScoreSummary:
        """Return the summary with the state that `arrays` returned."""
        made = cls()
        made._level = int(arrays["level"][0])
        made._columns = np.array([arrays[name] for name in ("lows", "highs", "negatives", "positives")], np.float64)
        made._bins = _keys(made._columns[0]) >> made._level
        return made

    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (middle of the scores, weight of negatives, weight of positives) of each bin, by increasing score."""
        lows, highs, negatives, positives = self._columns
        return (lows + highs) / 2, negatives, positives

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest score of each bin."""
        return self._columns[0], self._columns[1]

    def _take(self, bins: np.ndarray, rows: np.ndarray) -> int:
        """Add rows until there are too many bins, then increase the level; return the number of rows added."""
        different, first = np.unique(bins, return_index=True)
        opening = np.sort(first[~np.isin(different, self._bins)])  # the rows that open a bin
        room = BINS - len(self._bins)
        taken = len(bins) if len(opening) <= room else int(opening[room])
        self._put(bins[:taken], rows[:, :taken])
        if taken < len(bins):
            self._make_room(np.union1d(self._bins, bins[taken]))
        return taken

    def _make_room(self, wanted: np.ndarray) -> None:
        """Increase the level until these bins are few enough."""
        shift = 0
        while np.count_nonzero(np.diff(wanted >> shift)) >= BINS:
            shift += 1
        self._raise_to(self._level + shift)

    def _raise_to(self, level: int) -> None:
        bins, columns = self._bins >> (level - self._level), self._columns
        self._level, self._bins, self._columns = level, np.empty(0, np.int64), np.empty((4, 0))
        self._put(bins, columns)

    def _put(self, bins: np.ndarray, rows: np.ndarray) -> None:
        """Add rows, or bins of another summary, to bins."""
        known = np.union1d(self._bins, bins)
        columns = np.zeros((4, len(known)))
        columns[0], columns[1] = np.inf, -np.inf
        columns[:, np.searchsorted(known, self._bins)] = self._columns
        places = np.searchsorted(known, bins)
        np.minimum.at(columns[0], places, rows[0])
        np.maximum.at(columns[1], places, rows[1])
        # not bincount, whose sums begin at 0 in every block, so that rounding would depend on the blocks
        np.add.at(columns[2], places, rows[2])
        np.add.at(columns[3], places, rows[3])
        self._bins, self._columns = known, columns


@dataclass(frozen=True)
class Calibration:
    """Map from scores to probabilities.

    "platt": 1 / (1 + exp(A s + B)) with `coefficients` A and B. "isotonic": linear interpolation between the
    `probabilities` at the increasing `scores`, constant beyond.
    """

    kind: Literal["platt", "isotonic"]
    coefficients: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)

    def is_sound(self) -> bool:
        """True if the map is valid."""
        if self.kind == "platt":
            return len(self.coefficients) == 2
        rising = all(low < high for low, high in pairwise(self.scores))
        same = len(self.scores) == len(self.probabilities) > 0
        return same and rising and all(0 <= share <= 1 for share in self.probabilities)

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """Return the probability of the positive class for each score."""
        _check_finite(scores)
        scores = np.asarray(scores, np.float64)
        if self.kind == "platt":
            a, b = self.coefficients
            with np.errstate(over="ignore"):  # infinity gives the correct probability, 0 or 1
                return np.asarray(1.0 / (1.0 + np.exp(a * scores + b)))
        knots, levels = np.array(self.scores), np.array(self.probabilities)
        # rounding could raise the end of a segment above the next knot
        above = levels[np.minimum(np.searchsorted(knots, scores, "right"), len(levels) - 1)]
        return np.asarray(np.minimum(np.interp(scores, knots, levels), above))


def fitted(summary: ScoreSummary, kind: Literal["platt", "isotonic"], *, alone: bool) -> Calibration:
    """Fit probabilities of a binary model (`alone`) or of one class among several, which may have no rows, or all rows.

    With all rows or none, the probability is the same for all scores: Laplace's estimate.
    """
    _scores, negatives, positives = summary.points()
    if alone or (negatives.any() and positives.any()):
        return platt(summary) if kind == "platt" else isotonic(summary)
    share = (float(positives.sum()) + 1) / (float((negatives + positives).sum()) + 2)
    return Calibration("isotonic", scores=[0.0], probabilities=[share])


def platt(summary: ScoreSummary) -> Calibration:
    """Fit Platt's sigmoid with his regularised targets, by the safeguarded Newton method of Lin, Lin and Weng (2007).

    Each step is computed relative to the mean score, weighted by curvature. Then the Hessian is diagonal, so that
    scores may have any scale and offset and no ridge is needed. A is negative unless low scores are the positive ones.
    """
    scores, negatives, positives = _points_of_both_classes(summary)
    weights, all_negatives, all_positives = negatives + positives, float(negatives.sum()), float(positives.sum())
    target = (all_positives + 1) / (all_positives + 2)
    wanted = (positives * target + negatives / (all_negatives + 2)) / weights

    def loss(a: float, b: float) -> float:
        exponent = a * scores + b
        return float((weights * (wanted * exponent + np.logaddexp(0.0, -exponent))).sum())

    a, b = 0.0, math.log((all_negatives + 1) / (all_positives + 1))
    value = loss(a, b)
    for _ in range(_NEWTON_STEPS):
        exponent = a * scores + b
        small = np.exp(-np.abs(exponent))
        p = np.where(exponent >= 0, small, 1.0) / (1.0 + small)
        residual, curvature = weights * (wanted - p), weights * small / (1.0 + small) ** 2
        height = float(curvature.sum())
        centre = float((curvature * scores).sum()) / height if height else 0.0
        # rounding must not move the centre out of the range of scores
        centre = min(max(centre, float(scores[0])), float(scores[-1]))
        slope_a, slope_b = float((residual * (scores - centre)).sum()), float(residual.sum())
        width = float((curvature * (scores - centre) ** 2).sum())
        step_a, step_b = (-slope_a / width if width else 0.0), (-slope_b / height if height else 0.0)
        decrease = -(slope_a * step_a + slope_b * step_b)
        step_b -= step_a * centre
        if decrease <= 1e-12 * value:  # below the precision of the loss: take the full step
            a, b = a + step_a, b + step_b
            break
        part = 1.0
        while (found := loss(a + part * step_a, b + part * step_b)) > value - 1e-4 * part * decrease:
            part /= 2
            if part < _SMALLEST_STEP:
                return Calibration("platt", [a, b])
        a, b, value = a + part * step_a, b + part * step_b, found
    return Calibration("platt", [a, b])


def isotonic(summary: ScoreSummary) -> Calibration:
    """Fit non-decreasing probabilities to the holdout labels by least squares.

    A level of the fit becomes two knots, its first and its last score. If there are too many levels, neighbours are
    merged to their mean, so that the mean probability remains the share of positives. Merged levels differ by at most
    0.006 and hold at most 1.2 % of each class, so the end of a rare class keeps its detail.
    """
    from scipy.optimize import isotonic_regression

    _middles, negatives, positives = _points_of_both_classes(summary)
    lows, highs = summary.ends()
    weights = negatives + positives
    begins = isotonic_regression(positives / weights, weights=weights).blocks[:-1]
    if len(begins) > MOST_KNOTS // 2:
        begins = begins[_coarse(np.add.reduceat(negatives, begins), np.add.reduceat(positives, begins))]
    levels = np.maximum.accumulate(np.add.reduceat(positives, begins) / np.add.reduceat(weights, begins))
    ends = np.append(begins[1:], len(lows)) - 1
    knots = np.stack([lows[begins], highs[ends]], axis=1).ravel()
    first_seen = np.diff(knots, prepend=-np.inf) > 0  # a level of a single score is a single knot
    probabilities = np.minimum(np.repeat(levels, 2)[first_seen], 1.0)
    return Calibration("isotonic", scores=knots[first_seen].tolist(), probabilities=probabilities.tolist())


def _coarse(negatives: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Return the starts of groups of levels: even steps of negatives, positives and probability together."""
    below = [(np.cumsum(sums) - sums / 2) / sums.sum() for sums in (negatives, positives)]
    groups = ((sum(below) + positives / (negatives + positives)) / 3 * (MOST_KNOTS // 2)).astype(np.int64)
    groups = np.maximum.accumulate(np.minimum(groups, MOST_KNOTS // 2 - 1))
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _points_of_both_classes(summary: ScoreSummary) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points = summary.points()
    found = [name for name, sums in zip(("negative", "positive"), points[1:], strict=True) if sums.any()]
    if len(found) < 2:
        problem = f"all held-out rows are {found[0]}" if found else "no rows are held out"
        raise UsageError(f"{problem}, so probabilities cannot be fitted; hold out more rows")
    return points


def _check_finite(scores: np.ndarray) -> None:
    if not np.isfinite(scores).all():
        raise InputError("a score is infinite or not a number, so it has no probability; train again")


def _within_range(scores: np.ndarray) -> np.ndarray:
    """Return scores as float64, clipped to the largest size; tiny scores and -0 become 0."""
    clipped = np.clip(np.asarray(scores, np.float64), -_MOST, _MOST)
    return np.where(np.abs(clipped) < _LEAST, 0.0, clipped)


def _keys(scores: np.ndarray) -> np.ndarray:
    """Return integers in the order of the scores: their bits as sign and magnitude."""
    bits = scores.view(np.int64)
    return np.where(bits < 0, -(bits & np.iinfo(np.int64).max), bits)
