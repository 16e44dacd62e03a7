"""The exact arithmetic that bounds are tested against: objectives in fractions, optima by brute force and others."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC, LinearSVR

from support.exact import CLASS_LOSSES, MARGIN_LOSSES, POINT, TARGET_LOSSES, Problem, dual_at, integers, objective
from support.newton import optimum

LOSSES = (*MARGIN_LOSSES, *TARGET_LOSSES, *CLASS_LOSSES)
PARAMETERS = {"smoothed-hinge": 0.7, "epsilon-insensitive": 0.1, "huber": 0.3}


def problem_of(loss, rng, rows=20, features=4, lam=0.01, scale=1.0, spread=0.0, offset=0.0) -> Problem:
    x = np.asarray(rng.standard_normal((rows, features)) * scale, np.float32).astype(np.float64)
    costs = None
    if loss in CLASS_LOSSES:
        y, costs = rng.integers(0, 3, rows), np.array([[0, 1, 2.5], [1, 0, 0.5], [3, 1, 0]])
    else:
        y = rng.choice([-1.0, 1.0], rows) if loss in MARGIN_LOSSES else rng.standard_normal(rows)
    c = 10.0 ** rng.uniform(-spread, spread, rows)
    return Problem(loss, PARAMETERS.get(loss, 0.0), lam, x, y, c, offset, costs)


def loss_of(problem: Problem, z: list[Fraction], y: float):
    """The loss as it is defined, in fractions, or by mpmath."""
    parameter = Fraction(problem.parameter)
    if problem.loss in CLASS_LOSSES:
        label = int(y)
        if problem.loss == "multiclass-hinge":
            return max(Fraction(problem.costs[label, k]) + z[k] - z[label] for k in range(3))
        return mpmath.log(sum(mpmath.exp(_mpf(k - z[label])) for k in z))
    margin, off = Fraction(y) * z[0], abs(z[0] - Fraction(y))
    if problem.loss == "hinge":
        return max(Fraction(0), 1 - margin)
    if problem.loss == "smoothed-hinge":
        short = max(Fraction(0), 1 - margin)
        return short - parameter / 2 if short > parameter else short**2 / (2 * parameter)
    if problem.loss == "logistic":
        return mpmath.log(1 + mpmath.exp(_mpf(-margin)))
    if problem.loss == "huber":
        return parameter * (off - parameter / 2) if off > parameter else off**2 / 2
    return max(Fraction(0), off - (parameter if problem.loss == "epsilon-insensitive" else 0))


def _mpf(number: Fraction):
    return mpmath.mpf(number.numerator) / number.denominator


@pytest.mark.parametrize("loss", LOSSES)
def test_the_objective_by_its_definition(loss):
    for seed, scale in enumerate([1e-6, 1.0, 1.0, 1e3]):
        rng = np.random.default_rng(seed)
        problem = problem_of(
            loss, rng, rows=6, features=3, scale=scale, spread=5, offset=float(rng.normal()) * (seed % 2)
        )
        if loss in CLASS_LOSSES:
            problem = problem_of(loss, rng, rows=6, features=3, scale=scale, spread=5)
        w = rng.standard_normal((3, problem.outputs)) / scale
        with mpmath.workprec(400):
            total = 0
            for x, y, c in zip(problem.x, problem.y.tolist(), problem.c, strict=True):
                pairs = [zip(x.tolist(), column.tolist(), strict=True) for column in w.T]
                z = [sum(Fraction(a) * Fraction(b) for a, b in pair) + Fraction(problem.offset) for pair in pairs]
                value = loss_of(problem, z, y)
                total += (_mpf(Fraction(c)) if isinstance(value, mpmath.mpf) else Fraction(c)) * value
            norm = sum(Fraction(b) ** 2 for b in w.ravel().tolist())
            share = total / 6 if isinstance(total, mpmath.mpf) else _mpf(total / 6)
            expected = _mpf(Fraction(problem.lam) / 2 * norm) + share
            found = _mpf(objective(problem, w))
            assert abs(found - expected) <= mpmath.mpf(2) ** -200 * expected
        if loss not in ("logistic", "multiclass-logistic"):
            assert objective(problem, w) == Fraction(problem.lam) / 2 * norm + total / 6


@pytest.mark.parametrize("loss", LOSSES)
def test_no_dual_value_is_above_an_objective(loss):
    rng = np.random.default_rng(1)
    for lam in (1e-3, 1.0):
        problem = problem_of(loss, rng, lam=lam, spread=2, offset=0.0 if loss in CLASS_LOSSES else 0.3)
        best = optimum(problem)
        assert 0 < best.lower <= best.upper
        for _ in range(20):
            b = integers(rng.standard_normal((problem.rows, problem.outputs)), POINT)
            assert dual_at(problem, b) <= best.upper
            w = rng.standard_normal((problem.x.shape[1], problem.outputs))
            assert objective(problem, w) >= best.lower


@pytest.mark.parametrize("loss", [*MARGIN_LOSSES, *TARGET_LOSSES])
def test_optima_of_one_weight_by_brute_force(loss):
    for seed in range(3):
        offset = 0.4 * (seed - 1)
        problem = problem_of(loss, np.random.default_rng(seed), features=1, lam=0.1, offset=offset)

        def value(w, problem=problem):
            return float(objective(problem, np.array([w])))

        found = optimum(problem)
        assert found.width < 1e-18
        least = minimize_scalar(value, bounds=(-30, 30), method="bounded", options={"xatol": 1e-10}).fun
        assert float(found.upper) == pytest.approx(least, rel=1e-9)
        assert float(found.upper) <= least


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_optima_of_badly_scaled_problems_are_known(loss):
    for seed, (scale, lam, spread) in enumerate([(1e4, 1e-9, 0), (1e-5, 1e-9, 0), (1.0, 1e-6, 9), (1e6, 1e-12, 9)]):
        problem = problem_of(loss, np.random.default_rng(seed), lam=lam, scale=scale, spread=spread)
        assert optimum(problem).width < 1e-18
        assert optimum(problem, [np.ones((4, problem.outputs)) / scale]).width < 1e-18


@pytest.mark.parametrize("lam", [0.1, 0.01])
def test_optima_as_others_find_them(lam):
    rng = np.random.default_rng(5)
    for loss in ("hinge", "logistic", "absolute", "epsilon-insensitive", "multiclass-hinge", "multiclass-logistic"):
        problem = problem_of(loss, rng, rows=60, lam=lam)
        penalty = 1 / (lam * 60)
        tight = {"fit_intercept": False, "C": penalty, "tol": 1e-10, "max_iter": 1_000_000}
        if loss == "multiclass-hinge":
            costs = 1.0 - np.eye(3)
            problem = Problem(loss, 0.0, lam, problem.x, problem.y, problem.c, costs=costs)
            w = LinearSVC(multi_class="crammer_singer", **tight).fit(problem.x, problem.y).coef_.T
        elif loss == "hinge":
            w = LinearSVC(loss="hinge", **tight).fit(problem.x, problem.y).coef_.T
        elif "logistic" in loss:
            w = LogisticRegression(**tight).fit(problem.x, problem.y).coef_.T
        else:
            w = LinearSVR(epsilon=problem.parameter, **tight).fit(problem.x, problem.y).coef_
        found = optimum(problem)
        theirs = float(objective(problem, np.asarray(w)))
        assert float(found.upper) <= theirs
        assert float(found.lower) == pytest.approx(theirs, rel=1e-6), loss
