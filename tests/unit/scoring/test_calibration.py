"""Probabilities from scores, against scikit-learn and against the textbook, all rows at once."""

import json
import math
import struct
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring import calibration
from ooc_pegasos.scoring.calibration import BINS, MOST_KNOTS, Calibration, ScoreSummary, isotonic, platt
from ooc_pegasos.util import typed_json

FITS = pytest.mark.parametrize("fit", [platt, isotonic])
LIMIT = float(np.finfo(np.float64).max)
ROWS = st.lists(
    st.tuples(st.floats(-LIMIT, LIMIT) | st.integers(-4, 4).map(float), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=40,
)


def some_rows(number, seed=1, slope=1.3, offset=-1.0):
    rng = np.random.default_rng(seed)
    scores = 1.5 * rng.standard_normal(number)
    return scores, rng.random(number) < 1 / (1 + np.exp(-slope * scores - offset))


def summary_of(scores, positive, weights=None, block=None):
    taken = ScoreSummary()
    for begin in range(0, len(scores), block or len(scores) or 1):
        part = slice(begin, begin + (block or len(scores)))
        taken.add(scores[part], positive[part], None if weights is None else weights[part])
    return taken


def columns(rows):
    """Scores, positive?, weights; both classes are there."""
    rows = [*rows, (0.5, True, 1), (-0.5, False, 1)]
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), np.array([row[2] for row in rows])


def check_same_arrays(one, other):
    left, right = one.arrays(), other.arrays()
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def by_the_book(scores, most):
    """The bin of each score, as its rank: as fine as is possible with `most` bins.

    Floats have the order of their bits, read as whole numbers with a sign; those of a bin have the same leading bits.
    """
    numbers = [int.from_bytes(struct.pack(">d", abs(score)), "big") * (1 if score >= 0 else -1) for score in scores]
    shift = 0
    while len({number >> shift for number in numbers}) > most:
        shift += 1
    return np.unique([number >> shift for number in numbers], return_inverse=True)[1]


def platt_scaling(scores, positive, weights):
    """Algorithm 1 of Lin, Lin and Weng (2007), line by line, with weights."""
    prior1, prior0 = weights[positive].sum(), weights[~positive].sum()
    t = np.where(positive, (prior1 + 1) / (prior1 + 2), 1 / (prior0 + 2))
    a, b = 0.0, math.log((prior0 + 1) / (prior1 + 1))

    def value(a, b):
        z = a * scores + b
        each = np.where(z >= 0, t * z + np.log1p(np.exp(-np.abs(z))), (t - 1) * z + np.log1p(np.exp(-np.abs(z))))
        return (weights * each).sum()

    found = value(a, b)
    for _ in range(100):
        z = a * scores + b
        p = np.where(z >= 0, np.exp(-np.abs(z)), 1.0) / (1 + np.exp(-np.abs(z)))
        d1, d2 = weights * (t - p), weights * p * (1 - p)
        h11, h22, h21 = (scores**2 * d2).sum() + 1e-12, d2.sum() + 1e-12, (scores * d2).sum()
        g1, g2 = (scores * d1).sum(), d1.sum()
        if abs(g1) < 1e-9 and abs(g2) < 1e-9:
            break
        determinant = h11 * h22 - h21 * h21
        da, db = -(h22 * g1 - h21 * g2) / determinant, -(-h21 * g1 + h11 * g2) / determinant
        slope, step = g1 * da + g2 * db, 1.0
        while step >= 1e-10:
            if value(a + step * da, b + step * db) < found + 1e-4 * step * slope:
                break
            step /= 2
        else:
            break
        a, b = a + step * da, b + step * db
        found = value(a, b)
    return [a, b]


def is_optimal(found, scores, positive, weights, tolerance=1e-9):
    """Both derivatives of Platt's loss are 0, but for rounding."""
    prior1, prior0 = weights[positive].sum(), weights[~positive].sum()
    t = np.where(positive, (prior1 + 1) / (prior1 + 2), 1 / (prior0 + 2))
    terms = weights * (t - 1 / (1 + np.exp(np.clip(found[0] * scores + found[1], -700, 700))))
    return all(abs(math.fsum(each)) <= tolerance * np.abs(each).sum() for each in (terms, terms * scores))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("offset", [-4.0, 0.0])
def test_platt_is_the_textbooks_and_scikit_learns(seed, offset):
    scores, positive = some_rows(20_000, seed, offset=offset)
    found = platt(summary_of(scores, positive)).coefficients
    exact = platt_scaling(scores, positive, np.ones(20_000))
    assert found[0] == pytest.approx(exact[0], rel=3e-5)
    assert found[1] == pytest.approx(exact[1], rel=3e-5, abs=2e-5)
    theirs = _SigmoidCalibration().fit(scores, positive)
    assert found == pytest.approx([theirs.a_, theirs.b_], rel=1e-4)  # as far as L-BFGS goes


@pytest.mark.parametrize("whole", [True, False])
def test_platt_where_bins_lose_nothing(whole):
    scores, positive = some_rows(3000, 5)
    scores = np.round(scores * 16) / 16  # each in a bin of its own
    weights = np.random.default_rng(6).integers(0, 4, 3000) if whole else np.random.default_rng(6).exponential(1, 3000)
    found = platt(summary_of(scores, positive, weights)).coefficients
    # the textbook ends where rounding hides the fall of its loss, at about 1e-8; here the last step is taken as well
    assert found == pytest.approx(platt_scaling(scores, positive, weights), rel=1e-7)
    assert is_optimal(found, scores, positive, weights)
    if whole:
        again = np.repeat(np.arange(3000), weights)
        assert platt(summary_of(scores[again], positive[again])).coefficients == found


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 100.0), (1e-2, -1.0), (1.0, 1e5)])
def test_platt_at_any_scale_and_offset(scale, shift):
    scores, positive = some_rows(20_000, 7)
    found = platt(summary_of(shift + scale * scores, positive))
    expected = platt(summary_of(scores, positive))
    assert found.coefficients[0] * scale == pytest.approx(expected.coefficients[0], rel=1e-9)
    difference = found.apply(shift + scale * scores) - expected.apply(scores)
    assert np.abs(difference).max() < 1e-9


def test_platt_of_separable_rows_stays_finite():
    scores = np.concatenate([np.linspace(-3, -1, 50), np.linspace(1, 3, 60)])
    found = platt(summary_of(scores, scores > 0)).coefficients
    assert found == pytest.approx(platt_scaling(scores, scores > 0, np.ones(110)), rel=1e-4)
    assert np.isfinite(found).all()


def test_platt_of_scores_that_are_all_alike_is_the_share():
    found = platt(summary_of(np.full(30, 0.7), np.arange(30) < 10))
    target = (10 * 11 / 12 + 20 / 22) / 30
    assert found.coefficients[0] == 0
    assert found.apply(np.array([-5.0, 0.7])) == pytest.approx([target, target], rel=1e-9)


def test_platt_with_a_few_scores_far_out():
    scores, positive = some_rows(5000, 8)
    # Platt's targets are never quite 0 or 1, so these rows want the sigmoid flat; that is his optimum, and it is found
    for far in ([300.0], [1e4, -1e6], [1e308, 4e9, -1e300]):
        far = np.array(far)
        all_scores, all_positive = np.append(scores, far), np.append(positive, far > 0)
        found = platt(summary_of(all_scores, all_positive)).coefficients
        means, negatives, positives = summary_of(all_scores, all_positive).points()
        points = np.tile(means, 2), np.repeat([False, True], len(means)), np.concatenate([negatives, positives])
        assert is_optimal(found, *points, tolerance=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_is_scikit_learns_where_bins_lose_nothing(weighted):
    scores, positive = some_rows(3000, 9)
    scores = np.round(scores * 16) / 16
    weights = np.random.default_rng(1).exponential(1, 3000) if weighted else None
    found = isotonic(summary_of(scores, positive, weights))
    theirs = IsotonicRegression(out_of_bounds="clip").fit(scores, positive, weights)
    wanted = np.concatenate([scores, np.linspace(-9, 9, 1001)])
    np.testing.assert_allclose(found.apply(wanted), theirs.predict(wanted), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("offset", [0.0, 5.0, 50.0, 500.0, -500.0, 1e6])
def test_isotonic_is_scikit_learns_whatever_the_offset(offset):
    scores, positive = some_rows(BINS, 10)
    scores += offset
    theirs = IsotonicRegression(out_of_bounds="clip").fit(scores, positive)
    found = isotonic(summary_of(scores, positive))
    wanted = np.concatenate([scores, offset + np.linspace(-9, 9, 10_001)])
    np.testing.assert_allclose(found.apply(wanted), theirs.predict(wanted), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 5.0, 50.0, 500.0])
def test_isotonic_of_more_scores_than_bins_is_as_good_whatever_the_offset(offset):
    scores, positive = some_rows(10 * BINS, 10)
    scores += offset
    theirs = IsotonicRegression(out_of_bounds="clip").fit(scores, positive)
    summary = summary_of(scores, positive, block=50_000)
    assert BINS / 2 < len(summary.points()[0]) <= BINS
    difference = np.abs(isotonic(summary).apply(scores) - theirs.predict(scores))
    assert difference.mean() < 4e-4  # a row near the end of a level may stand on the other side of it
    assert np.quantile(difference, 0.999) < 0.02


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offset", [0.0, 500.0])
def test_bins_are_as_narrow_as_they_can_be(monkeypatch, weighted, offset):
    monkeypatch.setattr(calibration, "BINS", 100)
    scores, positive = some_rows(3000, 10)
    scores += offset
    weights = np.random.default_rng(2).exponential(1, 3000) if weighted else np.ones(3000)
    place = by_the_book(scores, 100)
    lows, highs = (np.array([ends(scores[place == one]) for one in range(place.max() + 1)]) for ends in (min, max))
    summary = summary_of(scores, positive, weights, block=170)
    middles, negatives, positives = summary.points()
    np.testing.assert_array_equal(summary.ends(), (lows, highs))
    np.testing.assert_allclose(middles, (lows + highs) / 2, rtol=1e-15)
    np.testing.assert_allclose(positives, np.bincount(place, weights * positive), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(negatives, np.bincount(place, weights * ~positive), rtol=1e-12, atol=1e-12)
    found = isotonic(summary)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(middles[place], positive, weights)
    # both are at the same level within a bin
    np.testing.assert_allclose(found.apply(lows), theirs.predict(middles), atol=1e-9)
    np.testing.assert_allclose(found.apply(highs), theirs.predict(middles), atol=1e-9)


def test_isotonic_with_too_many_levels_keeps_the_ends():
    # 20,000 different scores, each with its own share of positives: without thinning, 20,000 levels
    score = np.linspace(-3, 3, 20_000)
    share = 1e-3 + 0.01 * (score + 3) / 6 + 0.9 * (score > 2.95) * (score - 2.95) / 0.05
    taken = ScoreSummary()
    taken.add(score, np.ones(20_000, bool), 1e6 * share)
    taken.add(score, np.zeros(20_000, bool), 1e6 * (1 - share))
    found = isotonic(taken)
    scores, negatives, positives = taken.points()
    levels = positives / (negatives + positives)  # rising, so they are the unthinned fit
    assert len(levels) > 2 * MOST_KNOTS
    assert MOST_KNOTS / 2 < len(found.scores) <= MOST_KNOTS
    assert (np.diff(found.scores) > 0).all()
    assert (np.diff(found.probabilities) >= 0).all()
    difference = np.abs(found.apply(scores) - levels)
    assert difference.max() <= 0.006
    assert (difference / levels)[scores < 2.9].max() < 0.03  # where positives are rare
    assert (negatives + positives) @ found.apply(scores) == pytest.approx(positives.sum(), rel=1e-12)


@FITS
@pytest.mark.parametrize("most", [BINS, 200, 3])
def test_the_summary_is_the_same_however_rows_are_grouped(monkeypatch, fit, most):
    monkeypatch.setattr(calibration, "BINS", most)
    scores, positive = some_rows(1000, 11)
    weights = np.random.default_rng(3).exponential(1, 1000)
    one = summary_of(scores, positive, weights)
    for block in (1, 17, 999):
        other = summary_of(scores, positive, weights, block)
        assert check_same_arrays(one, other)
        assert fit(one) == fit(other)


@given(ROWS, st.integers(1, 9), st.randoms(use_true_random=False), st.sampled_from([2, 5, 20, BINS]))
def test_whole_weights_make_order_and_merging_exact(rows, block, random, most):
    scores, positive, weights = columns(rows)
    with mock.patch.object(calibration, "BINS", most):
        one = summary_of(scores, positive, weights)
        assert len(one.points()[0]) <= most
        order = list(range(len(scores)))
        random.shuffle(order)
        order = np.array(order)
        assert check_same_arrays(one, summary_of(scores[order], positive[order], weights[order], block))
        merged = summary_of(scores[:block], positive[:block], weights[:block])
        merged.merge(summary_of(scores[block:], positive[block:], weights[block:]))
        assert check_same_arrays(one, merged)
        again = np.repeat(np.arange(len(scores)), weights)
        assert check_same_arrays(one, summary_of(scores[again], positive[again]))


@given(ROWS, st.integers(0, 40), st.sampled_from([2, 5, 20, BINS]))
def test_a_summary_from_its_arrays_goes_on_as_if_nothing_had_been(rows, cut, most):
    scores, positive, weights = columns(rows)
    weights = weights * 0.1
    with mock.patch.object(calibration, "BINS", most):
        before = summary_of(scores[:cut], positive[:cut], weights[:cut])
        kept = {name: np.array(array, np.float64) for name, array in before.arrays().items()}
        taken = ScoreSummary.from_arrays(kept)
        assert check_same_arrays(before, taken)
        taken.add(scores[cut:], positive[cut:], weights[cut:])
        assert check_same_arrays(taken, summary_of(scores, positive, weights))


@pytest.mark.slow
@FITS
@given(ROWS, st.lists(st.floats(-LIMIT, LIMIT), min_size=2, max_size=30))
def test_probabilities_are_monotone_and_in_range(fit, rows, wanted):
    scores, positive, weights = columns(rows)
    found = fit(summary_of(scores, positive, weights))
    near = np.concatenate([scores, np.nextafter(scores, LIMIT), np.nextafter(scores, -LIMIT), np.array(found.scores)])
    values = found.apply(np.sort(np.append(near, wanted)))
    assert ((values >= 0) & (values <= 1)).all()
    steps = np.diff(values)
    assert (steps >= 0).all() or (fit is platt and found.coefficients[0] > 0 and (steps <= 0).all())
    if fit is isotonic:
        assert len(found.scores) <= MOST_KNOTS
        assert (np.diff(found.scores) > 0).all()


@given(st.lists(st.floats(-LIMIT, LIMIT), min_size=2, max_size=30), st.integers(2, 30))
def test_bins_keep_the_order_and_scores_their_value(scores, most):
    ordered = np.sort(np.array(scores))
    told_apart = np.where(np.abs(ordered) < 2.0**-100, 0.0, np.clip(ordered, -(2.0**100), 2.0**100))
    taken = summary_of(ordered, np.ones(len(ordered), bool))
    np.testing.assert_array_equal(taken.points()[0], np.unique(told_apart))
    with mock.patch.object(calibration, "BINS", most):
        lows, highs = summary_of(ordered, np.ones(len(ordered), bool)).ends()
    assert (lows <= highs).all()
    assert (highs[:-1] < lows[1:]).all()
    assert (lows[0], highs[-1]) == (told_apart[0], told_apart[-1])


def test_extreme_scores():
    extreme = np.array([-LIMIT, -1e308, -(2.0**32), -5e-324, -0.0, 0.0, 5e-324, 2.0**32, 1e308, LIMIT])
    positive = np.array([False, False, False, False, False, True, True, True, True, True])
    for fit in (platt, isotonic):
        values = fit(summary_of(extreme, positive)).apply(extreme)
        assert (np.diff(values) >= 0).all()
        assert values[4] == values[5]
        assert values[0] < 0.3
        assert values[-1] > 0.7
    assert check_same_arrays(summary_of(np.array([-0.0]), positive[:1]), summary_of(np.array([0.0]), positive[:1]))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_scores_without_a_value_are_refused(bad):
    taken = summary_of(np.array([1.0, -1.0]), np.array([True, False]))
    before = taken.arrays()
    with pytest.raises(InputError, match="infinite or not a number"):
        taken.add(np.array([0.0, bad]), np.array([True, False]))
    with pytest.raises(InputError, match="weight"):
        taken.add(np.zeros(2), np.array([True, False]), np.array([1.0, bad]))
    assert all(np.array_equal(before[name], array) for name, array in taken.arrays().items())
    for fit in (platt, isotonic):
        with pytest.raises(InputError, match="infinite or not a number"):
            fit(taken).apply(np.array([bad]))
    with pytest.raises(InputError, match="weight"):
        taken.add(np.zeros(2), np.array([True, False]), np.array([1.0, -0.5]))


@FITS
@pytest.mark.parametrize(
    ("positive", "weights", "problem"),
    [
        ([], [], "no rows are held out"),
        ([True, True], [1, 1], "are positive"),
        ([False, False], [1, 1], "are negative"),
        ([False, True], [1, 0], "are negative"),
        ([False, True], [0, 0], "no rows are held out"),
    ],
)
def test_one_class_is_not_enough(fit, positive, weights, problem):
    taken = summary_of(np.arange(len(positive)) * 1.0, np.array(positive, bool), np.array(weights, float))
    with pytest.raises(UsageError, match=problem):
        fit(taken)


@FITS
def test_what_is_saved_is_what_was_fitted(fit):
    scores, positive = some_rows(2000, 12)
    found = fit(summary_of(scores, positive))
    text = json.dumps(typed_json.dump(found), allow_nan=False)
    again = typed_json.load(Calibration, json.loads(text))
    assert again == found
    assert again.apply(scores).tobytes() == found.apply(scores).tobytes()
    assert found.apply(np.empty(0)).shape == (0,)
    assert found.apply(scores.astype(np.float32)) == pytest.approx(found.apply(scores), abs=1e-3)
