"""Probabilities from scores, against scikit-learn and against the textbook, all rows at once."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from ooc_pegasos import typed
from ooc_pegasos.calibration import BINS, MOST_KNOTS, Calibration, ScoreSummary, isotonic, platt
from ooc_pegasos.errors import InputError, UsageError

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


def same(one, other):
    left, right = one.arrays(), other.arrays()
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def binned(scores):
    """Each score's bin by the book: a power of two and 1/512 of it; floor for positive and ceiling for negative."""
    mantissa, exponent = np.frexp(np.abs(scores.astype(np.float32)).astype(np.float64))
    return np.sign(scores) * np.ldexp(np.floor(mantissa * 1024) / 1024, exponent)


def textbook(scores, positive, weights):
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("offset", [-4.0, 0.0])
def test_platt_is_the_textbooks_and_scikit_learns(seed, offset):
    scores, positive = some_rows(20_000, seed, offset=offset)
    found = platt(summary_of(scores, positive)).coefficients
    # Scores are known to a bin of 2^-10 to 2^-9 of them, that is to 5e-4 or less. That moves the gradient at random, as
    # the labels themselves do, but by 5e-4 as much; and what these leave unknown of A and B is 1 or 2 %.
    exact = textbook(scores, positive, np.ones(20_000))
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
    assert found == pytest.approx(textbook(scores, positive, weights), rel=1e-7)
    assert is_optimal(found, scores, positive, weights)
    if whole:
        again = np.repeat(np.arange(3000), weights)
        assert platt(summary_of(scores[again], positive[again])).coefficients == found


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 100.0), (1e-2, -1.0)])
def test_platt_at_any_scale_and_offset(scale, shift):
    scores, positive = some_rows(20_000, 7)
    found = platt(summary_of(shift + scale * scores, positive))
    expected = platt(summary_of(scores, positive))
    # near the shift a bin is 1/512 of it or less, so wide in the spread of the scores; a spread of 1 / 4 is not seen
    width = abs(shift) / 512 / (1.5 * scale)
    assert found.coefficients[0] * scale == pytest.approx(expected.coefficients[0], rel=3e-5 + width**2 / 12)
    difference = found.apply(shift + scale * scores) - expected.apply(scores)
    assert np.abs(difference).max() < 3e-5 + width**2 / 12


def test_platt_of_separable_rows_stays_finite():
    scores = np.concatenate([np.linspace(-3, -1, 50), np.linspace(1, 3, 60)])
    found = platt(summary_of(scores, scores > 0)).coefficients
    assert found == pytest.approx(textbook(scores, scores > 0, np.ones(110)), rel=1e-4)
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


@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_is_scikit_learns_on_the_means_of_the_bins(weighted):
    scores, positive = some_rows(30_000, 10)
    scores = scores.astype(np.float32).astype(np.float64)
    weights = np.random.default_rng(2).exponential(1, 30_000) if weighted else np.ones(30_000)
    _bins, place = np.unique(binned(scores), return_inverse=True)
    means = np.bincount(place, weights * scores) / np.bincount(place, weights)
    summary = summary_of(scores, positive, weights)
    np.testing.assert_allclose(summary.points()[0], means, rtol=1e-12)
    np.testing.assert_allclose(summary.points()[2], np.bincount(place, weights * positive), rtol=1e-12, atol=1e-12)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(means[place], positive, weights)
    found = isotonic(summary)
    np.testing.assert_allclose(found.apply(means), theirs.predict(means), atol=1e-9)
    # what the bins cost: a row near the edge of a level may stand on the other side of it
    exact = IsotonicRegression(out_of_bounds="clip").fit(scores, positive, weights)
    assert np.abs(found.apply(scores) - exact.predict(scores)).mean() < 2e-3


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
def test_the_summary_is_the_same_however_rows_are_grouped(fit):
    scores, positive = some_rows(5000, 11)
    weights = np.random.default_rng(3).exponential(1, 5000)
    one = summary_of(scores, positive, weights)
    for block in (1, 17, 4999):
        other = summary_of(scores, positive, weights, block)
        assert same(one, other)
        assert fit(one) == fit(other)


@given(ROWS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_whole_weights_make_order_and_merging_exact(rows, block, random):
    scores, positive, weights = columns(rows)
    one = summary_of(scores, positive, weights)
    order = list(range(len(scores)))
    random.shuffle(order)
    order = np.array(order)
    assert same(one, summary_of(scores[order], positive[order], weights[order], block))
    merged = summary_of(scores[:block], positive[:block], weights[:block])
    merged.merge(summary_of(scores[block:], positive[block:], weights[block:]))
    assert same(one, merged)
    again = np.repeat(np.arange(len(scores)), weights)
    assert same(one, summary_of(scores[again], positive[again]))


@given(ROWS, st.integers(0, 40))
def test_a_summary_from_its_arrays_goes_on_as_if_nothing_had_been(rows, cut):
    scores, positive, weights = columns(rows)
    weights = weights * 0.1
    before = summary_of(scores[:cut], positive[:cut], weights[:cut])
    kept = {name: np.array(array, np.float64) for name, array in before.arrays().items()}
    taken = ScoreSummary.from_arrays(kept)
    assert same(before, taken)
    taken.add(scores[cut:], positive[cut:], weights[cut:])
    assert same(taken, summary_of(scores, positive, weights))


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


@given(st.lists(st.floats(-LIMIT, LIMIT), min_size=2, max_size=30))
def test_bins_keep_the_order_and_scores_their_value(scores):
    ordered = np.sort(np.array(scores))
    single = [summary_of(np.array([score]), np.array([True])) for score in ordered]
    bins = np.array([taken.arrays()["bins"][0] for taken in single])
    assert (np.diff(bins) >= 0).all()
    assert ((bins >= 0) & (bins < BINS)).all()
    seen = np.array([taken.points()[0][0] for taken in single])
    assert (np.diff(seen) >= 0).all()
    told_apart = np.sign(ordered) * np.clip(np.abs(ordered), 2.0**-32, 2.0**32)
    np.testing.assert_allclose(seen, told_apart, rtol=1.3e-7, atol=2.4e-10)


def test_extreme_scores():
    extreme = np.array([-LIMIT, -1e308, -(2.0**32), -5e-324, -0.0, 0.0, 5e-324, 2.0**32, 1e308, LIMIT])
    positive = np.array([False, False, False, False, False, True, True, True, True, True])
    for fit in (platt, isotonic):
        values = fit(summary_of(extreme, positive)).apply(extreme)
        assert (np.diff(values) >= 0).all()
        assert values[4] == values[5]
        assert values[0] < 0.3
        assert values[-1] > 0.7
    assert same(summary_of(np.array([-0.0]), positive[:1]), summary_of(np.array([0.0]), positive[:1]))


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
    text = json.dumps(typed.dump(found), allow_nan=False)
    again = typed.load(Calibration, json.loads(text))
    assert again == found
    assert again.apply(scores).tobytes() == found.apply(scores).tobytes()
    assert found.apply(np.empty(0)).shape == (0,)
    assert found.apply(scores.astype(np.float32)) == pytest.approx(found.apply(scores), abs=1e-3)
