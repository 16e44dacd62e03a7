"""The search for the best lambda, on loss curves that are known: it ends, and the best is found."""

import itertools
import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_pegasos.objective.lambda_path import (
    COARSE,
    FINE,
    Range,
    Trial,
    choose,
    further_lambdas,
    hopeless,
    lambdas_near,
    next_lambda,
    remark_on,
    trial_of,
)
from ooc_pegasos.objective.lambda_path import HoldoutLoss as Loss

LIMITS = Range(1.0, 1e-3)
"""A default path of eight lambdas goes from 1 to 0.001, and a search at most from 100 to 0.000001."""
STRONGEST, WEAKEST = 100.0, 1e-6
PATH = np.geomspace(1.0, 1e-3, 8).tolist()
MOST_STEPS = 2 * math.ceil(math.log(STRONGEST / WEAKEST) / math.log(COARSE)) + 2
"""All lambdas of the coarse grid, and one between each two of them."""
MOST_ROUNDS = 3 * math.ceil(math.log(STRONGEST / WEAKEST) / math.log(PATH[0] / PATH[1])) + 3
Curve = Callable[[float], Trial]


def by_steps(curve: Curve) -> list[Trial]:
    """The trials of a search that trains one lambda after the other."""
    trials: list[Trial] = []
    while (lam := next_lambda(trials, LIMITS)) is not None:
        trials.append(curve(lam))
        assert len(trials) <= MOST_STEPS, "the search does not end"
    return trials


def by_rounds(curve: Curve) -> list[Trial]:
    """The trials of a search that trains a panel of lambdas in each round."""
    trials, lambdas, rounds = [], tuple(PATH), 0
    while lambdas:
        assert list(lambdas) == sorted(lambdas, reverse=True)
        trials += [curve(lam) for lam in lambdas]
        lambdas, rounds = further_lambdas(trials, LIMITS), rounds + 1
        assert len(trials) <= MOST_ROUNDS, "the search does not end"
        assert rounds <= 12
    return trials


SEARCHES = {"steps": by_steps, "rounds": by_rounds}
both = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def is_better(one: Trial, other: Trial) -> bool:
    """True if one is better than the other by more than a twentieth of a standard error, by either measure."""
    value, error = (one.loss, one.deviation) if one.score is None else (one.score, one.score_deviation)
    of_other = other.loss if one.score is None else other.score
    return of_other - value > 0.05 * error or other.loss - one.loss > 0.05 * one.deviation


def check_end(trials: list[Trial]) -> Trial:
    """Fail if a search should not have ended with these trials; return the best of them."""
    lambdas = [trial.lam for trial in trials]
    assert len(set(lambdas)) == len(lambdas)
    assert max(lambdas) <= STRONGEST * 1.01
    assert min(lambdas) >= WEAKEST / 1.01
    ordered = sorted(trials, key=lambda trial: -trial.lam)
    best = ordered.index(trials[choose(trials, "best")])
    near = ordered[max(best - 1, 0) : best + 2]
    assert all(one.lam / other.lam <= FINE * (1 + 1e-9) for one, other in itertools.pairwise(near))
    if best == 0:
        assert ordered[0].lam > STRONGEST / COARSE / 1.2 or not is_better(ordered[0], ordered[1])
    return ordered[best]


# --- curves with a single minimum ---------------------------------------------------------------


def v_shaped(at: float, slope: float = 0.1, error: float = 1e-3) -> Curve:
    """A loss that rises in proportion to the logarithm of the distance to its minimum."""
    return lambda lam: Trial(lam, 1 + slope * abs(math.log(lam / at)), error, None)


def bowl(at: float, width: float = 3.0, error: float = 1e-3) -> Curve:
    """A smooth loss, which is nearly flat around its minimum and far from it."""
    return lambda lam: Trial(lam, 1 - math.exp(-((math.log(lam / at) / width) ** 2)), error, None)


@both
@pytest.mark.parametrize("at", np.geomspace(50.0, WEAKEST, 25).tolist())
def test_the_minimum_of_a_curve_is_found(search, at):
    for curve in (v_shaped(at), v_shaped(at, slope=3.0), bowl(at, width=8.0)):
        best = check_end(search(curve))
        grid = np.geomspace(STRONGEST, WEAKEST, 4001)
        exact = min(grid, key=lambda lam: curve(float(lam)).loss)
        assert max(best.lam / exact, exact / best.lam) <= FINE * 1.01


@pytest.mark.parametrize("off", [0.02, 0.05, 0.4, 1.0, 2.0, 30.0])
def test_the_minimum_is_found_from_a_lambda_that_was_best_on_a_sample(off):
    for curve in (v_shaped(0.01), v_shaped(0.01, slope=3.0), bowl(0.01, width=8.0)):
        trials, lambdas = [], lambdas_near(0.01 * off)
        limits = Range(max(lambdas), min(lambdas))
        while lambdas:
            trials += [curve(lam) for lam in lambdas]
            lambdas = further_lambdas(trials, limits, is_costly=True)
            assert len(trials) < 40
        best = min(trials, key=lambda trial: trial.loss)
        assert 1 / FINE <= best.lam / 0.01 <= FINE
    assert len(trials) == 4 or not 0.7 < off < 3


@both
@pytest.mark.parametrize(("at", "end"), [(1e5, STRONGEST), (1e-9, WEAKEST)])
def test_a_minimum_beyond_the_limits_is_approached_up_to_them(search, at, end):
    best = check_end(search(v_shaped(at)))
    assert max(best.lam / end, end / best.lam) <= PATH[0] / PATH[1]


@both
def test_the_default_path_is_enough_for_a_minimum_inside(search):
    """Two or four lambdas around the best are added, and none beyond the ends."""
    for at in np.geomspace(0.5, 2e-3, 20).tolist():
        trials = search(v_shaped(at))
        lambdas = [trial.lam for trial in trials]
        assert max(lambdas) <= 1.0
        assert min(lambdas) >= 1e-3 / COARSE
        assert len(trials) <= 13


def test_weak_lambdas_that_cannot_be_the_best_are_not_tried():
    trials = by_steps(v_shaped(0.5))
    assert min(trial.lam for trial in trials) > 0.02
    assert len(trials) <= 7


# --- other curves -------------------------------------------------------------------------------


@both
def test_flat_curves_end_at_once(search):
    """Without differences the largest lambda is the best, and nothing beyond the ends is tried."""
    trials = search(lambda lam: Trial(lam, 1.0, 0.01, None))
    assert check_end(trials).lam == 1.0
    assert len(trials) <= 14
    assert max(trial.lam for trial in trials) == 1.0


@both
def test_differences_below_the_noise_do_not_extend_a_search(search):
    for sign in (1, -1):
        trials = search(lambda lam, sign=sign: Trial(lam, 1 + sign * 1e-4 * math.log(lam), 1.0, None))
        check_end(trials)
        assert max(trial.lam for trial in trials) <= 1.0
        assert min(trial.lam for trial in trials) >= 1e-3 / COARSE


@both
def test_a_constant_model_at_strong_lambdas(search):
    """The rare class is never predicted at strong lambdas: the error falls first, and the loss rises at its noise."""

    def curve(lam: float) -> Trial:
        weak = max(0.0, -math.log10(lam) - 1)  # nothing is learned from 1 to 0.1
        error = 0.1 - 0.06 * min(weak, 2) / 2 + 0.02 * max(weak - 2.5, 0)
        return Trial(lam, 0.2 - 0.03 * min(weak, 2) + 0.05 * max(weak - 2, 0), 0.004, error, error, 0.003)

    best = check_end(search(curve))
    assert 1e-3 / 2 <= best.lam <= 2e-3 * COARSE


@both
@settings(max_examples=200)
@given(
    st.integers(0, 10**6),
    st.floats(-13, 5),
    st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    st.booleans(),
    st.sampled_from([1.0, 1e-6, 0.0]),
)
def test_noise_does_not_keep_a_search_from_its_end(search, seed, log_at, noise, with_error, deviation):
    """Whatever the trials are, there is an end, and the best is known to a ratio of 1.5."""

    def curve(lam: float) -> Trial:
        rng = np.random.default_rng([seed, zlib.crc32(f"{math.log(lam):.6f}".encode())])
        loss = float(0.1 * abs(math.log(lam) - log_at) + noise * rng.random())
        if not with_error:
            return Trial(lam, loss, 0.1 * deviation, None)
        error = float(min(1.0, 0.01 * abs(math.log(lam) - log_at) + 0.1 * noise * rng.random()))
        return Trial(lam, loss, 0.1 * deviation, error, error, 0.01 * deviation)

    check_end(search(curve))


@both
@given(st.data())
def test_any_trials_at_all(search, data):
    numbers = st.sampled_from([0.0, 0.25, 0.5, 1.0])

    def curve(lam: float) -> Trial:
        loss, error = data.draw(numbers), data.draw(numbers)
        return Trial(lam, loss, data.draw(numbers), error, error, data.draw(numbers))

    check_end(search(curve))


# --- the rules ----------------------------------------------------------------------------------

numbers = st.integers(0, 4)


@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=7), st.randoms(use_true_random=False)
)
def test_which_trial_is_chosen_by_a_metric(found, random):
    """Of those within a standard error of the best metric, the smallest loss, or the largest lambda."""
    trials = [
        Trial(2.0**-place, float(loss), 1.0, None, float(score), float(error))
        for place, (loss, _rest, score, error) in enumerate(found)
    ]
    first = min(trials, key=lambda trial: (trial.score, -trial.lam))
    within = {trial for trial in trials if trial.score <= first.score + first.score_deviation}
    random.shuffle(trials)
    best = trials[choose(trials, "best")]
    assert best in within
    assert best.loss == min(trial.loss for trial in within)
    assert best.lam == max(trial.lam for trial in within if trial.loss == best.loss)
    assert trials[choose(trials, "1se")].lam == max(trial.lam for trial in within)


def test_hopeless_lambdas_follow_a_loss_that_rises():
    """All short sequences of losses and errors, against the rule in words."""
    seen = set()
    for losses in itertools.product([0.0, 1.0, 2.0], repeat=4):
        for errors in itertools.product([0.0, 1.0], repeat=4):
            for deviation in (1.0, 5.0):
                trials = [Trial(1.0, loss, deviation, error, error) for loss, error in zip(losses, errors, strict=True)]
                low = losses.index(min(losses))
                rises = low in (1, 2) and losses[2] < losses[3] and losses[3] - losses[low] > 0.3 * deviation
                falls = errors[2] < errors[low] or errors[3] < errors[low]
                expected = 2 if rises and not falls else 0
                assert hopeless([*trials, None, None]) == expected
                assert hopeless(trials) == 0
                assert hopeless([*trials[:3], None, None]) == 0
                seen.add(expected)
    assert seen == {0, 2}


def test_the_trial_of_several_models():
    """Means by rows; across folds the standard error is that of the losses of the folds."""
    found = [(0, Loss(1.0, 0.1, 0.5, 10)), (1, Loss(3.0, 0.3, 0.25, 30))]
    classes = trial_of(0.1, found, across=False, by_error=False)
    assert (classes.loss, classes.deviation, classes.error) == (2.5, 0.2, (5 + 7.5) / 40)
    assert classes.score is None
    folds = trial_of(0.1, found, across=True, by_error=True)
    assert folds.deviation == pytest.approx(math.sqrt(((1 - 2.5) ** 2 + (3 - 2.5) ** 2) / 1 / 2))
    assert (folds.value, folds.score) == (folds.error, folds.error)
    assert folds.uncertainty == pytest.approx(math.sqrt(folds.error * (1 - folds.error) / 40))
    unknown = trial_of(0.1, [(0, Loss(1.0, 0.1, None, 10))], across=False, by_error=True)
    assert (unknown.value, unknown.uncertainty, unknown.error) == (1.0, 0.1, None)


def test_an_end_of_given_lambdas_is_noted():
    losses = {1.0: 0.4, 0.1: 0.3, 0.01: 0.5}
    assert remark_on([Trial(lam, loss, 0.1, None) for lam, loss in losses.items()]) is None
    assert "larger ones: --lambda 1:1e+02:5" in str(remark_on([Trial(lam, -lam, 0.1, None) for lam in losses]))
    assert "smaller ones: --lambda 0.0001:0.01:5" in str(remark_on([Trial(lam, lam, 0.1, None) for lam in losses]))
    assert remark_on([Trial(lam, lam, 0.1, None) for lam in (1.0, 0.1)]) is None


@pytest.mark.parametrize("score", [None, 0.25])
def test_trials_as_tables(score):
    trial = Trial(0.5, 1.0, 0.25, 0.125, score, 0.0 if score is None else 0.5)
    assert Trial.from_table(trial.table()) == trial
    assert ("score" in trial.table()) == (score is not None)
    with pytest.raises(ValueError, match="deviation"):
        Trial.from_table({"lam": 1.0, "loss": 1.0, "error": None})
