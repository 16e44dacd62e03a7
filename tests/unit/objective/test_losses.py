"""Every loss of one score in the registry: against its formula, its conjugate by brute force, and others' optima."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from ooc_pegasos import Store, TrainConfig, train
from ooc_pegasos.compiled.fit import losses as kernels
from ooc_pegasos.compiled.jit import kernel
from ooc_pegasos.errors import UsageError
from ooc_pegasos.objective.losses import LOSSES, Loss
from support.optima import FORMULAS, LIPSCHITZ, least_objective, primal
from support.stores import store_of
from support.subsets import covering

# --- what a new loss has to add here ------------------------------------------------------------


PARAMETERS = {"smoothed-hinge": (1.0, 0.1, 3.0), "epsilon-insensitive": (0.1, 0.0, 2.0), "huber": (1.0, 0.05, 10.0)}
LIMITS = {"squared-hinge": (64.0, 3.0), "squared": (16.0, 1.0)}
"""Of losses without a largest slope the parameter of the kernels is the largest dual variable."""
ONE_SCORE = {name: loss for name, loss in LOSSES.items() if loss.task != "multiclass"}
CASES = [(name, parameter) for name in ONE_SCORE for parameter in (PARAMETERS | LIMITS).get(name, (0.0,))]
TRAINED = [(name, parameter) for name in ONE_SCORE for parameter in PARAMETERS.get(name, (0.0,))]
"""With the parameters that a user can choose."""

# --- functions of a score -----------------------------------------------------------------------


@kernel
def _loss_at(loss, parameter, z, y):
    return kernels.loss_at(loss, parameter, z, y)


@kernel
def _box_size(loss, parameter, c):
    return kernels.box_size(loss, parameter, c)


def labels_for(loss: Loss) -> st.SearchStrategy[float]:
    return st.sampled_from([-1.0, 1.0]) if loss.task == "binary" else st.floats(-10, 10)


def bounds_of(loss: Loss, parameter: float, y: float) -> tuple[float, float]:
    """Between which two numbers a dual variable is: minus the slopes of the loss far out on both sides, or a limit."""
    if loss.name == "squared":
        return -parameter, parameter
    if loss.name == "squared-hinge":
        return min(0.0, parameter * y), max(0.0, parameter * y)
    far = 1e4
    slopes = [float(_loss_at(loss.number, parameter, z, y)[1]) for z in (-far, far)]
    return -slopes[1] + 0.0, -slopes[0] + 0.0


def least(function, low: float, high: float, start: float) -> float:
    """The least value of a convex function between two numbers, by narrowing down from `start` and from afar."""
    found = [function(low), function(high), function(start)]
    for scale in (1.0, 1e-3):
        ends = max(low, start - scale * (high - low)), min(high, start + scale * (high - low))
        found.append(minimize_scalar(function, bounds=ends, method="bounded", options={"xatol": 1e-12}).fun)
    return float(min(found))


def test_all_losses_have_a_formula_here():
    assert set(FORMULAS) == set(ONE_SCORE)
    assert all((loss.parameter is not None) == (name in PARAMETERS) for name, loss in ONE_SCORE.items())
    assert all((loss.largest_dual is not None) == (name in LIMITS) for name, loss in ONE_SCORE.items())


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_value_slope_and_dual_term(name, parameter):
    loss, formula = LOSSES[name], FORMULAS[name]

    @given(labels_for(loss), st.floats(-50, 50), st.floats(-50, 50))
    @example(1.0, 1.0, 0.0)
    @example(1.0, 0.0, 2.0)
    @example(-1.0, -1.0, -1.0)
    @example(1.0, 1.0 - parameter, 1.0 + parameter)
    def check(y, z, elsewhere):
        value, slope, dual = _loss_at(loss.number, parameter, z, y)
        assert value == pytest.approx(float(formula(z, y, parameter)), rel=1e-12, abs=1e-12)
        assert dual == pytest.approx(value - slope * z, rel=1e-10, abs=1e-10)
        # a line through (z, value) that is nowhere above the loss
        assert formula(elsewhere, y, parameter) >= value + slope * (elsewhere - z) - 1e-9
        # and between the slopes on both sides, which are the same where there is no kink
        h = 1e-6
        left, here, right = (float(formula(at, y, parameter)) for at in (z - h, z, z + h))
        assert (here - left) / h - 1e-4 <= slope <= (right - here) / h + 1e-4
        low, high = bounds_of(loss, parameter, y)
        assert low <= -slope <= high or name in LIMITS

    check()


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_precision_at_large_scores(name, parameter):
    """Scores of the first steps may be enormous, and what they add to the dual must not be noise."""
    loss = LOSSES[name]
    for y in (-1.0, 1.0):
        for z in [sign * 10.0**power for sign in (-1, 1) for power in (-300, -30, -8, 3, 8, 16, 30, 150)]:
            value, slope, dual = _loss_at(loss.number, parameter, z, y)
            assert np.isfinite([value, slope, dual]).all()
            assert value == pytest.approx(float(FORMULAS[name](z, y, parameter)), rel=1e-12, abs=1e-15)
            exact = kernels.dual_at(loss.number, parameter, y, -slope)
            assert dual == pytest.approx(exact, rel=1e-12, abs=1e-12), (y, z)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_the_dual_is_minus_the_conjugate(name, parameter):
    """-l*(-b) is the least of l(z) + b z over all z."""
    loss, formula = LOSSES[name], FORMULAS[name]
    for y in (-1.0, 1.0) if loss.task == "binary" else (-2.5, -0.05, 0.0, 1.0):
        low, high = bounds_of(loss, parameter, y)
        for share in (0.0, 1e-6, 0.1, 0.25, 0.5, 0.8, 1.0):
            b = low + share * (high - low)
            found = kernels.dual_at(loss.number, parameter, y, b)

            def above(z, y=y, b=b):
                return float(formula(z, y, parameter)) + b * z

            scores = np.concatenate([np.linspace(-40, 40, 80_001), y + parameter * np.array([-1, 1]), [y]])
            dense = formula(scores, y, parameter) + b * scores
            start = float(scores[np.argmin(dense)])
            assert found == pytest.approx(min(least(above, -40, 40, start), float(dense.min())), abs=1e-9)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_the_inequality_of_fenchel_and_young(name, parameter):
    loss = LOSSES[name]

    @given(labels_for(loss), st.floats(-1e6, 1e6), st.floats(0, 1))
    def check(y, z, share):
        low, high = bounds_of(loss, parameter, y)
        b = low + share * (high - low)
        value, slope, dual = _loss_at(loss.number, parameter, z, y)
        assert value + b * z >= kernels.dual_at(loss.number, parameter, y, b) - 1e-9 * (1 + abs(z))
        assert dual == pytest.approx(kernels.dual_at(loss.number, parameter, y, -slope), rel=1e-9, abs=1e-9)

    check()


# --- ascent steps -------------------------------------------------------------------------------

SCORES = [0.0, *(sign * 10.0**power for sign in (-1, 1) for power in (-30, -8, -1, 0, 1, 3, 8, 30))]
CURVATURES = [10.0**power for power in (-30, -15, -8, -2, 0, 1, 4, 8, 12, 16, 20, 30)]


def step_gain(loss: Loss, parameter: float, y: float, z: float, b: float, r: float, after: float) -> float:
    """What the step from b to `after` gains, but for a constant."""
    return float(kernels.dual_at(loss.number, parameter, y, after)) - z * (after - b) - r / 2 * (after - b) ** 2


def assert_best(loss: Loss, parameter: float, y: float, z: float, b: float, r: float) -> None:
    """No other place in the box gains more; what is allowed for is that numbers are rounded."""
    low, high = bounds_of(loss, parameter, y)
    after = float(kernels.best_dual(loss.number, parameter, z, y, b, r))
    assert low <= after <= high
    found = step_gain(loss, parameter, y, z, b, r, after)

    def loses(other):
        return -step_gain(loss, parameter, y, z, b, r, other)

    others = [low, high, b, *(b + (low - b) * 10.0**-power for power in range(1, 40, 3))]
    others += [*(b + (high - b) * 10.0**-power for power in range(1, 40, 3)), *np.linspace(low, high, 33)]
    best = min(others, key=loses)
    gain = -least(loses, low, high, best)
    rounding = 1e-15 * max(abs(high), abs(low))
    allowed = 1e-9 + 1e-11 * abs(z) * abs(after - b) + (r + abs(z) / max(abs(after - b), 1e-9)) * rounding**2
    allowed += 4 * abs(z + r * (after - b)) * rounding  # a step of one unit in the last place
    assert found >= gain - allowed, (y, z, b, r, after, found, gain, allowed)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_an_ascent_step_is_the_best_there_is(name, parameter):
    loss = LOSSES[name]

    @given(labels_for(loss), st.floats(-20, 20), st.floats(0, 1), st.floats(-3, 3))
    def check(y, z, share, power):
        low, high = bounds_of(loss, parameter, y)
        assert_best(loss, parameter, y, z, low + share * (high - low), 10.0**power)

    check()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_ascent_steps_at_the_ends_of_everything(name, parameter):
    """Enormous scores, rows of enormous or tiny norms, variables at their bounds: the step stays the best."""
    loss = LOSSES[name]
    for y in (-1.0, 1.0) if loss.task == "binary" else (-2.5, 0.0, 1.0):
        low, high = bounds_of(loss, parameter, y)
        for z in SCORES:
            for r in CURVATURES:
                for b in {low, high, 0.0, low + 1e-6 * (high - low), (low + high) / 2}:
                    assert_best(loss, parameter, y, z, b, r)


@given(st.sampled_from(CASES), st.floats(1e-18, 1e18))
@example(("hinge", 0.0), 0.1)
@example(("hinge", 0.0), float(np.nextafter(1.0, 2.0)))
def test_the_box_is_rounded_down_to_float32(case, c):
    name, parameter = case
    loss = LOSSES[name]
    found = float(_box_size(loss.number, parameter, c))
    limit = c * max(bounds_of(loss, parameter, 1.0)[1], -bounds_of(loss, parameter, -1.0)[0])
    assert float(np.float32(found)) == found
    assert limit * (1 - 2.0**-22) <= found <= limit * (1 + 1e-15)
    assert found <= (c * parameter if name in ("huber", *LIMITS) else c)


# --- certificates -------------------------------------------------------------------------------


def rows_for_loss(loss: Loss, seed: int, rows: int = 90) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows, some of them sparse and one of them empty, with labels that a line explains more or less."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, 6)) * (rng.random((rows, 6)) < 0.7)
    dense[3] = 0
    matrix = sp.csr_matrix(dense.astype(np.float32))
    score = dense @ np.array([2, -1, 0.5, 0, 1, -2]) + rng.standard_normal(rows)
    return matrix, np.where(score > 0, 1, -1) if loss.task == "binary" else np.round(score * 8) / 8


def store_for_loss(folder: Path, loss: Loss, matrix: sp.csr_matrix, labels: np.ndarray, **options: object) -> Store:
    binary = loss.task == "binary"
    return store_of(folder, matrix, labels, **({} if binary else {"task": "regression", "classes": ()}), **options)


def weights_file(folder: Path, weights: np.ndarray) -> str:
    path = folder / "weights.txt"
    path.write_text("".join(f"{weight}\n" for weight in weights))
    return str(path)


OPTIONS = [
    {},
    pytest.param({"weighted": True}, marks=pytest.mark.slow),
    pytest.param({"class_weight": (0.25, 3.0)}, marks=pytest.mark.slow),
    pytest.param({"bias": "feature", "bias_scale": 2.0}, marks=pytest.mark.slow),
    {"weighted": True, "class_weight": (0.25, 3.0), "bias": "feature", "bias_scale": 0.5},
]


LARGEST_SLOPE = [case for case in TRAINED if case[0] in LIPSCHITZ]
NO_LARGEST_SLOPE = [case for case in TRAINED if case not in LARGEST_SLOPE]


@pytest.mark.parametrize(
    ("name", "parameter", "algorithm", "options"),
    covering(LARGEST_SLOPE, ["sdca", "sgd-s"], OPTIONS) + covering(NO_LARGEST_SLOPE, ["sdca"], OPTIONS),
)
def test_the_certificate(tmp_path, name, parameter, algorithm, options):
    loss, chosen = LOSSES[name], dict(options)
    if loss.task == "regression":
        chosen.pop("class_weight", None)
    matrix, labels = rows_for_loss(loss, 1)
    c, files = np.ones(len(labels)), {}
    if chosen.pop("weighted", False):
        c = np.round(np.random.default_rng(2).exponential(size=len(labels)) * 8 + 1) / 8
        files["weights"] = weights_file(tmp_path, c)
    store = store_for_loss(tmp_path, loss, matrix, labels, **files)
    if "class_weight" in chosen:
        c = c * np.where(labels > 0, chosen["class_weight"][1], chosen["class_weight"][0])
    x = matrix.toarray().astype(np.float64)
    if "bias" in chosen:
        x = np.column_stack([x, np.full(len(x), chosen["bias_scale"])])
    given = {"loss_parameter": parameter} if loss.parameter is not None else {}
    for lam in (0.05, 0.005, 5e-4):  # the last is come down to
        best = least_objective(name, parameter, x, labels, lam, c)
        limits = {"tolerance": 1e-4 if lam > 1e-3 else 2e-3, "max_epochs": 2000}
        if algorithm == "sgd-s":  # which gets there slowly: it is the bounds that count
            limits = {"tolerance": 1e-9, "max_epochs": 30}
        config = TrainConfig(lam=lam, loss=name, algorithm=algorithm, coefficient=1e30, **limits, **given, **chosen)
        result = train(store, config)
        info = result.model.info
        assert len(info.history) > 1
        for entry in info.history:
            assert entry.lower_bound <= best * (1 + 1e-7)
            assert entry.primal >= best * (1 - 1e-7)
        assert result.converged == (algorithm == "sdca")
        if algorithm == "sdca":
            assert info.history[0].lower_bound > 0
            assert info.history[0].primal < primal(name, parameter, x, labels, lam, c, 0 * x[0])
        assert info.certificate.gap < info.history[0].gap
        w = result.model.weights
        if "bias" in chosen:
            w = np.append(w, result.model.bias / chosen["bias_scale"])
        assert info.certificate.primal == pytest.approx(primal(name, parameter, x, labels, lam, c, w), rel=1e-9)


@pytest.mark.parametrize("name", [name for name in ONE_SCORE if name != "hinge"])
def test_repeated_updates_are_for_the_hinge_only(tmp_path, name):
    """Equation (6) counts margin errors: with another loss it would be another problem, and its bound no bound."""
    matrix, labels = rows_for_loss(LOSSES[name], 1)
    store = store_for_loss(tmp_path, LOSSES[name], matrix, labels)
    with pytest.raises(UsageError, match="sgd-m counts margin errors"):
        train(store, TrainConfig(lam=0.1, loss=name, algorithm="sgd-m"))


@pytest.mark.parametrize(
    ("name", "algorithm"), [(name, "sdca") for name in ONE_SCORE] + [(name, "sgd-s") for name in LIPSCHITZ]
)
def test_a_row_that_counts_twice_is_the_row_twice(tmp_path, name, algorithm):
    loss = LOSSES[name]
    parameter = loss.parameter or 0.0
    matrix, labels = rows_for_loss(loss, 3)
    times = np.random.default_rng(4).integers(1, 4, len(labels))
    many = np.repeat(np.arange(len(labels)), times)
    (tmp_path / "once").mkdir()
    (tmp_path / "again").mkdir()
    once = store_for_loss(tmp_path / "once", loss, matrix, labels, weights=weights_file(tmp_path, times))
    again = store_for_loss(tmp_path / "again", loss, matrix[many], labels[many])
    # (1) divides by the rows, so the same sum of losses needs another lambda
    lam = 0.02
    share = len(many) / len(labels)
    x = matrix.toarray().astype(np.float64)
    tolerance = 1e-6 if algorithm == "sdca" else 0.02
    limits = {"algorithm": algorithm, "loss": name, "tolerance": tolerance, "max_epochs": 5000}
    limits["loss_parameter"] = loss.parameter
    found = []
    for store, strength, unit in ((once, lam * share, 1.0), (again, lam, share)):
        result = train(store, TrainConfig(lam=strength, **limits))
        assert result.converged
        w = result.model.weights
        kept = result.model.info.certificate
        exact = primal(name, parameter, x, labels, lam * share, times, w)
        assert kept.primal * unit == pytest.approx(exact, rel=1e-9)
        found.append((kept.lower_bound * unit, kept.primal * unit))
    (low, high), (other_low, other_high) = found
    assert max(low, other_low) <= min(high, other_high) * (1 + 1e-9)  # the optimum is in both


def test_huge_and_tiny_rows(tmp_path):
    """Rows whose norms differ by fifty powers of ten: certificates hold even without progress."""
    labels = np.array([1, -1, 1, -1, 1, -1])
    dense = np.array([[1e25, 1], [1e12, -1], [1e-12, 1], [-1e-12, 3], [1e-30, 0], [0, 0]], np.float32)
    store = store_for_loss(tmp_path, LOSSES["hinge"], sp.csr_matrix(dense), labels)
    for name in ("hinge", "logistic", "smoothed-hinge"):
        parameter = LOSSES[name].parameter or 0.0
        for lam in (1e-6, 1.0, 1e6):
            result = train(store, TrainConfig(lam=lam, loss=name, algorithm="sdca", max_epochs=50, coefficient=1e30))
            bounds = [entry.lower_bound for entry in result.model.info.history]
            assert bounds == sorted(bounds)
            kept = result.model.info.certificate
            exact = primal(name, parameter, dense.astype(np.float64), labels, lam, np.ones(6), result.model.weights)
            assert kept.primal == pytest.approx(exact, rel=1e-9)
            assert kept.lower_bound <= kept.primal


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["auto", "sdca", "sgd-s"])
def test_an_optimum_of_0(tmp_path, algorithm):
    """All targets are within the tube: 0 costs nothing, and that this is the optimum is as certain as can be."""
    labels = np.array([0.0625, -0.03125, 0.0, 0.03125])
    store = store_for_loss(tmp_path, LOSSES["huber"], sp.csr_matrix(np.eye(4, dtype=np.float32)), labels)
    result = train(store, TrainConfig(lam=0.1, loss="epsilon-insensitive", loss_parameter=0.1, algorithm=algorithm))
    kept = result.model.info.certificate
    assert (kept.primal, kept.lower_bound, kept.gap) == (0.0, 0.0, 0.0)
    assert result.converged
    assert result.model.info.epochs <= 2
