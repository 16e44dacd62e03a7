"""Probabilities from scores: Platt's sigmoid or an isotonic table, fitted on a summary of held-out rows.

The summary has a fixed size, 1.5 MB. Its bins are the leading bits of the scores' floats, 512 to each power of two, and
each knows the mean of the scores in it. What is fitted differs from a fit to all rows by much less than chance makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from ooc_pegasos.errors import InputError, UsageError

BINS = 1 << 16
MOST_KNOTS = 1000
"""A table is kept as JSON and searched for every row, and a thousand knots are within 0.006 of all there could be."""

_OFFSET_BITS = 14
_OCTAVES = 32
"""Scores are told apart from 2^-32 to 2^32; what is nearer to 0 or farther counts as that."""
_LEAST, _MOST = np.array([2.0**-_OCTAVES, 2.0**_OCTAVES], np.float32).view(np.int32).astype(np.int64)
_HALF = int(_MOST - _LEAST)

_NEWTON_STEPS = 200
_SMALLEST_STEP = 1e-10


class ScoreSummary:
    """Sums over the rows in each bin of scores: weights of both classes, and where in the bin the scores are.

    All are sums of float64 in the order of the rows, so how rows are grouped in blocks makes no difference. If weights
    are whole numbers, or not given, all sums are exact, and the order and merging make none either.
    """

    def __init__(self) -> None:
        self._weights = np.zeros(2 * BINS)  # negatives, then positives
        self._offsets = np.zeros(BINS)

    def add(self, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Take in some rows; those without a weight have weight 1."""
        _check_finite(scores)
        if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
            raise InputError("a row's weight is negative or not a number; correct it")
        keys = _keys(scores)
        bins, offsets = keys >> _OFFSET_BITS, (keys & ((1 << _OFFSET_BITS) - 1)).astype(np.float64)
        ones = np.ones(len(keys)) if weights is None else np.asarray(weights, np.float64)
        # not bincount: its sums begin at 0 in every block, which would make them depend on the blocks
        np.add.at(self._weights, bins + BINS * np.asarray(positive, bool), ones)
        np.add.at(self._offsets, bins, offsets if weights is None else offsets * ones)

    def merge(self, other: ScoreSummary) -> None:
        """Take in all rows of another summary."""
        self._weights += other._weights
        self._offsets += other._offsets

    def arrays(self) -> dict[str, np.ndarray]:
        """All there is to keep, as arrays by name: the bins with rows in them and their sums."""
        negatives, positives = self._weights[:BINS], self._weights[BINS:]
        chosen = np.flatnonzero(negatives + positives)
        return {
            "bins": chosen,
            "negatives": negatives[chosen],
            "positives": positives[chosen],
            "offsets": self._offsets[chosen],
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ScoreSummary:
        """The summary that `arrays` came from; float64 is a good type for all of them."""
        made = cls()
        chosen = np.asarray(arrays["bins"]).astype(np.int64)
        made._weights[chosen] = arrays["negatives"]
        made._weights[BINS + chosen] = arrays["positives"]
        made._offsets[chosen] = arrays["offsets"]
        return made

    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(mean score, weight of negatives, weight of positives) of each bin with rows in it, by rising score."""
        chosen, negatives, positives, offsets = self.arrays().values()
        lower = _score_of(chosen << _OFFSET_BITS)
        upper = _score_of((chosen << _OFFSET_BITS) + (1 << _OFFSET_BITS) - 1)
        share = np.minimum(offsets / (negatives + positives) / ((1 << _OFFSET_BITS) - 1), 1.0)
        return lower + (upper - lower) * share, negatives, positives


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

    scores, negatives, positives = _points_of_both_classes(summary)
    weights = negatives + positives
    begins = isotonic_regression(positives / weights, weights=weights).blocks[:-1]
    if len(begins) > MOST_KNOTS // 2:
        begins = begins[_coarse(np.add.reduceat(negatives, begins), np.add.reduceat(positives, begins))]
    levels = np.maximum.accumulate(np.add.reduceat(positives, begins) / np.add.reduceat(weights, begins))
    ends = np.append(begins[1:], len(scores)) - 1
    knots = np.stack([begins, ends], axis=1).ravel()
    first_seen = np.diff(knots, prepend=-1) > 0  # a level of a single bin is a single knot
    table = scores[knots[first_seen]], np.minimum(np.repeat(levels, 2)[first_seen], 1.0)
    return Calibration("isotonic", scores=table[0].tolist(), probabilities=table[1].tolist())


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


def _keys(scores: np.ndarray) -> np.ndarray:
    """Whole numbers that rise with the scores' float32: the bin, and where in it the score is."""
    size = np.minimum(np.abs(np.asarray(scores, np.float64)), 2.0**_OCTAVES).astype(np.float32).view(np.int32)
    size = np.clip(size.astype(np.int64), _LEAST, _MOST - 1) - _LEAST
    return np.asarray(np.where(np.asarray(scores) < 0, _HALF - 1 - size, _HALF + size))


def _score_of(keys: np.ndarray) -> np.ndarray:
    """The score a key stands for."""
    size = np.where(keys < _HALF, _HALF - 1 - keys, keys - _HALF) + _LEAST
    return np.asarray(np.where(keys < _HALF, -1.0, 1.0) * size.astype(np.int32).view(np.float32))
