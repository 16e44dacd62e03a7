"""Probabilities from scores: Platt's sigmoid or an isotonic table, fitted on a summary of held-out rows.

The summary takes at most 1.3 MB. It is exact up to 32,768 different scores. Beyond that scores share bins, which are as
narrow as they can be for the scores that are there, whatever their offset and scale.
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
"""A table is kept as JSON and searched for every row, and a thousand knots are within 0.006 of all there could be."""

_LEAST, _MOST = 2.0**-100, 2.0**100
"""Sizes of scores: smaller ones count as 0, larger ones as the largest. Then no slope between two scores overflows."""

_NEWTON_STEPS = 200
_SMALLEST_STEP = 1e-10


class ScoreSummary:
    """Bins of scores: weights of both classes, and the least and the largest score in each.

    Scores are numbered in their order, as float64 are by their bits, and a bin holds those whose numbers differ in the
    last `level` bits alone. The level rises, and pairs of bins become one, when there are more than `BINS` bins. That
    happens at the same row however rows are grouped in blocks. If weights are whole numbers, or not given, all sums are
    exact, and neither the order of rows nor merging summaries makes a difference either.
    """

    def __init__(self) -> None:
        self._level = 0
        self._bins = np.empty(0, np.int64)
        self._columns = np.empty((4, 0))  # least and largest score, weights of negatives and positives

    def add(self, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Take in some rows; those without a weight have weight 1."""
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
        """Take in all rows of another summary."""
        level = max(self._level, other._level)
        self._raise_to(level)
        self._put(other._bins >> (level - other._level), other._columns)
        self._make_room(self._bins)

    def arrays(self) -> dict[str, np.ndarray]:
        """All there is to keep, as arrays by name; float64 is a good type for all of them."""
        names = ("lows", "highs", "negatives", "positives")
        return {"level": np.array([self._level]), **{name: self._columns[at] for at, name in enumerate(names)}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ScoreSummary:
        """The summary that `arrays` came from."""
        made = cls()
        made._level = int(arrays["level"][0])
        made._columns = np.array([arrays[name] for name in ("lows", "highs", "negatives", "positives")], np.float64)
        made._bins = _keys(made._columns[0]) >> made._level
        return made

    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(middle of the scores, weight of negatives, weight of positives) of each bin, by rising score."""
        lows, highs, negatives, positives = self._columns
        return (lows + highs) / 2, negatives, positives

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest score of each bin."""
        return self._columns[0], self._columns[1]

    def _take(self, bins: np.ndarray, rows: np.ndarray) -> int:
        """Take in rows until there are too many bins, then raise the level; returns how many rows were taken."""
        different, first = np.unique(bins, return_index=True)
        opening = np.sort(first[~np.isin(different, self._bins)])  # the rows that open a bin
        room = BINS - len(self._bins)
        taken = len(bins) if len(opening) <= room else int(opening[room])
        self._put(bins[:taken], rows[:, :taken])
        if taken < len(bins):
            self._make_room(np.union1d(self._bins, bins[taken]))
        return taken

    def _make_room(self, wanted: np.ndarray) -> None:
        """Raise the level as little as makes few enough bins of these."""
        shift = 0
        while np.count_nonzero(np.diff(wanted >> shift)) >= BINS:
            shift += 1
        self._raise_to(self._level + shift)

    def _raise_to(self, level: int) -> None:
        bins, columns = self._bins >> (level - self._level), self._columns
        self._level, self._bins, self._columns = level, np.empty(0, np.int64), np.empty((4, 0))
        self._put(bins, columns)

    def _put(self, bins: np.ndarray, rows: np.ndarray) -> None:
        """Put rows, or bins of another summary, into bins."""
        known = np.union1d(self._bins, bins)
        columns = np.zeros((4, len(known)))
        columns[0], columns[1] = np.inf, -np.inf
        columns[:, np.searchsorted(known, self._bins)] = self._columns
        places = np.searchsorted(known, bins)
        np.minimum.at(columns[0], places, rows[0])
        np.maximum.at(columns[1], places, rows[1])
        # not bincount: its sums begin at 0 in every block, which would make them depend on the blocks
        np.add.at(columns[2], places, rows[2])
        np.add.at(columns[3], places, rows[3])
        self._bins, self._columns = known, columns


@dataclass(frozen=True)
class Calibration:
    """How a score becomes a probability.

    "platt": 1 / (1 + exp(A s + B)) with `coefficients` A and B. "isotonic": straight lines between the `probabilities`
    at the rising `scores`, and constant beyond them.
    """

    kind: Literal["platt", "isotonic"]
    coefficients: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)

    def is_sound(self) -> bool:
        """Whether it could have been fitted to anything."""
        if self.kind == "platt":
            return len(self.coefficients) == 2
        rising = all(low < high for low, high in pairwise(self.scores))
        same = len(self.scores) == len(self.probabilities) > 0
        return same and rising and all(0 <= share <= 1 for share in self.probabilities)

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """The probability of the positive class for each score."""
        _check_finite(scores)
        scores = np.asarray(scores, np.float64)
        if self.kind == "platt":
            a, b = self.coefficients
            with np.errstate(over="ignore"):  # infinity is right: its probability is 0 or 1
                return np.asarray(1.0 / (1.0 + np.exp(a * scores + b)))
        knots, levels = np.array(self.scores), np.array(self.probabilities)
        # rounding could lift the end of a line above the next knot
        above = levels[np.minimum(np.searchsorted(knots, scores, "right"), len(levels) - 1)]
        return np.asarray(np.minimum(np.interp(scores, knots, levels), above))


def fitted(summary: ScoreSummary, kind: Literal["platt", "isotonic"], *, alone: bool) -> Calibration:
    """Probabilities of a model that is `alone`, or of a class among others, which may be that of no row, or of all.

    Then there is nothing to tell scores apart by. The probability is the same for all of them: Laplace's for n rows of
    n, or for none.
    """
    _scores, negatives, positives = summary.points()
    if alone or (negatives.any() and positives.any()):
        return platt(summary) if kind == "platt" else isotonic(summary)
    share = (float(positives.sum()) + 1) / (float((negatives + positives).sum()) + 2)
    return Calibration("isotonic", scores=[0.0], probabilities=[share])


def platt(summary: ScoreSummary) -> Calibration:
    """Platt's sigmoid with his regularised targets, by the safeguarded Newton method of Lin, Lin and Weng (2007).

    Each step is computed around the mean score, weighted by curvature. There the Hessian is diagonal, so scores of any
    scale and offset do as well, and it needs no ridge. A is negative unless low scores are the positive ones.
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
        centre = min(max(centre, float(scores[0])), float(scores[-1]))  # rounding must not move it out of all scores
        slope_a, slope_b = float((residual * (scores - centre)).sum()), float(residual.sum())
        width = float((curvature * (scores - centre) ** 2).sum())
        step_a, step_b = (-slope_a / width if width else 0.0), (-slope_b / height if height else 0.0)
        decrease = -(slope_a * step_a + slope_b * step_b)
        step_b -= step_a * centre
        if decrease <= 1e-12 * value:  # too little to be seen in the loss, and then the full step is the best
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
    """The non-decreasing probabilities nearest to the held-out labels, in the least-squares sense.

    A level of the fit becomes two knots, its first and its last score. If there are too many levels, neighbours become
    one, with their mean, so that the mean probability stays the share of positives. Those differ by at most 0.006, and
    hold at most 1.2 % of each class, so the end where a rare class stands keeps its detail.
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
    """Where to cut too many levels into groups: at even steps of the negatives, the positives and the rise together."""
    below = [(np.cumsum(sums) - sums / 2) / sums.sum() for sums in (negatives, positives)]
    groups = ((sum(below) + positives / (negatives + positives)) / 3 * (MOST_KNOTS // 2)).astype(np.int64)
    groups = np.maximum.accumulate(np.minimum(groups, MOST_KNOTS // 2 - 1))
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _points_of_both_classes(summary: ScoreSummary) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points = summary.points()
    found = [name for name, sums in zip(("negative", "positive"), points[1:], strict=True) if sums.any()]
    if len(found) < 2:
        problem = f"all held-out rows are {found[0]}" if found else "no rows are held out"
        raise UsageError(f"{problem}, so there is nothing to fit probabilities to; hold out more rows")
    return points


def _check_finite(scores: np.ndarray) -> None:
    if not np.isfinite(scores).all():
        raise InputError("a score is infinite or not a number, so it has no probability; train again")


def _within_range(scores: np.ndarray) -> np.ndarray:
    """Scores as float64 between the largest sizes; the tiny ones are 0, and so is -0."""
    clipped = np.clip(np.asarray(scores, np.float64), -_MOST, _MOST)
    return np.where(np.abs(clipped) < _LEAST, 0.0, clipped)


def _keys(scores: np.ndarray) -> np.ndarray:
    """Whole numbers in the order of the scores: the bits of their size, with their sign."""
    bits = scores.view(np.int64)
    return np.where(bits < 0, -(bits & np.iinfo(np.int64).max), bits)
