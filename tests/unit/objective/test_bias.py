"""Each way to find a bias, against brute force: sorting, all breakpoints, ten lines of numpy, scikit-learn's SVMs."""

import json
import time

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import brentq, lsq_linear, minimize_scalar
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, SVR, LinearSVC

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, train
from ooc_pegasos.compiled.fit.batch_bias import balanced_slopes, best_offset, point_of_level
from ooc_pegasos.compiled.fit.pegasos import BY_BATCH, BY_SUBGRADIENT, ERRORS, FREE_BIAS
from ooc_pegasos.errors import UsageError
from ooc_pegasos.objective.losses import LOSSES
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.scoring.model import Certificate
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.training.bias_search import BiasSearch
from support.biased_rows import holdout_masks, rows_with_a_bias, store_of_task, weights_in_file
from support.optima import FORMULAS, LIPSCHITZ, SLOPES, parameter_of, primal_with_bias
from support.stores import around_present, interrupted_after, least_memory, store_of
from support.subsets import covering

KINKED = ("hinge", "epsilon-insensitive", "absolute")


def breakpoints(name: str, scores: np.ndarray, labels: np.ndarray, parameter: float) -> np.ndarray:
    """Where the slope of the sum jumps: one of them is the best."""
    off = labels - scores
    return np.concatenate([off - parameter, off + parameter]) if name == "epsilon-insensitive" else off


def least_cost(name: str, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, parameter: float) -> float:
    """The least sum of losses that a bias can have."""

    def cost(b: float) -> float:
        return float((weights * FORMULAS[name](scores + b, labels, parameter)).sum())

    off = labels - scores
    if name in KINKED:
        return min(cost(b) for b in breakpoints(name, scores, labels, parameter))
    ends = off.min() - 45, off.max() + 45
    found = minimize_scalar(cost, bounds=ends, method="bounded", options={"xatol": 1e-11, "maxiter": 5000})
    return min(found.fun, *(cost(b) for b in [*ends, *off]))


# --- kernels ------------------------------------------------------------------------------------

WEIGHTS = st.sampled_from([0.0, 1e-9, 0.5, 1.0, 3.0, 2.0**40])


@given(
    st.lists(st.tuples(st.one_of(st.integers(-3, 3), st.floats(-1e9, 1e9)), WEIGHTS), min_size=1, max_size=40),
    st.floats(0, 1.2),
    st.booleans(),
)
@example([(5.0, 0.0)], 0.0, False)
@example([(5.0, 2.0), (5.0, 2.0)], 0.5, False)
def test_the_point_of_a_level_is_that_of_sorting(rows, share, whole):
    points = np.array([float(point) for point, _jump in rows])
    jumps = np.array([jump for _point, jump in rows])
    if whole:  # sums without rounding, so that a level may be met exactly
        jumps = np.round(jumps)
    places, at = np.unique(points, return_inverse=True)
    sums = np.cumsum(np.bincount(at, jumps))
    level = share * sums[-1]
    if whole:
        level = float(np.round(level))
        above = np.flatnonzero(sums > level)
        allowed = {float(places[above[0]] if len(above) else places[-1])}
    else:  # sums in another order differ in their last digits
        slack = 1e-12 * sums[-1]
        sums[-1] = np.inf  # if no sum exceeds the level, the last point is what is left
        lowest, highest = (int(np.argmax(sums > level + more)) for more in (-slack, slack))
        allowed = set(places[lowest : highest + 1].tolist())
    room = np.append(points, [-1e300, 1e300]), np.append(jumps, [1e300, 1e300])  # beyond `count` nothing counts
    assert point_of_level(*room, len(points), level) in allowed
    assert np.array_equal(np.sort(room[0][: len(points)]), np.sort(points))  # they were only put in another order
    assert room[1][: len(points)].sum() == pytest.approx(jumps.sum())


@pytest.mark.parametrize("pattern", ["sorted", "falling", "organ pipe", "alike", "two values"])
def test_the_point_of_a_level_in_many_points(pattern):
    many = 20_000
    rising = np.arange(many, dtype=np.float64)
    points = {
        "sorted": rising,
        "falling": rising[::-1].copy(),
        "organ pipe": np.minimum(rising, many - rising),
        "alike": np.full(many, 7.0),
        "two values": rising % 2,
    }[pattern]
    expected = np.sort(points)[many // 2]
    assert point_of_level(points.copy(), np.ones(many), many, many / 2) == expected


@pytest.mark.parametrize("name", FORMULAS)
def test_the_best_offset_has_the_least_loss(name):
    loss = LOSSES[name]
    parameters = st.sampled_from([0.1, 1.0, 3.0] if loss.parameter is not None else [0.0])
    label = st.sampled_from([-1.0, 1.0]) if loss.task == "binary" else st.one_of(st.integers(-2, 2), st.floats(-99, 99))
    row = st.tuples(st.one_of(st.integers(-2, 2), st.floats(-50, 50)), label, WEIGHTS)

    @given(st.lists(row, min_size=1, max_size=25), parameters)
    @example([(0.5, 1.0, 1.0)], parameter_of(name))
    @example([(0.5, -1.0, 1.0), (3.0, -1.0, 0.0)], parameter_of(name))
    @example([(0.5, -1.0, 0.0)], parameter_of(name))
    def check(rows, parameter):
        scores, labels, weights = (np.array(column, np.float64) for column in zip(*rows, strict=True))
        count = len(rows)
        room = np.full(2 * count + 2, np.nan), np.full(2 * count + 2, np.nan)
        b = best_offset(loss.number, parameter, scores.copy(), labels, weights, count, *room)
        assert np.isfinite(b)
        found = float((weights * FORMULAS[name](scores + b, labels, parameter)).sum())
        best = least_cost(name, scores, labels, weights, parameter)
        assert found <= best * (1 + 1e-9) + 1e-12 * weights.sum()

    check()


def test_the_best_offset_of_targets_far_out():
    scores = np.zeros(5)
    labels = 1e7 + np.array([0, 1, 2, 30, 40.0])
    room = np.empty(10), np.empty(10)
    for name, expected in (("absolute", 1e7 + 2), ("epsilon-insensitive", 1e7 + 2), ("huber", None)):
        b = best_offset(LOSSES[name].number, parameter_of(name), scores, labels, np.ones(5), 5, *room)
        if expected is None:
            expected = brentq(lambda b: np.clip(b - labels, -1, 1).sum(), 1e7, 1e7 + 40, xtol=1e-9)
        assert b == pytest.approx(expected, abs=0.11 if name == "epsilon-insensitive" else 1e-6)


# --- a constant feature ---------------------------------------------------------------------------

MANNERS = [
    {"algorithm": "sdca"},
    {"algorithm": "sgd-s"},
    {"algorithm": "sgd-m"},
    {"batch_size": 16},
    {"batch_size": 16, "project": True, "sampling": "fixed"},
    {"batch_size": 16, "project": True, "average": True},
    {"average": True},
    {"algorithm": "pegasos", "sampling": "permutation", "project": True},
    {"algorithm": "pegasos", "average": True, "batch_size": 4, "project": True},
    {"algorithm": "sgd-r"},
    {"threads": 2, "algorithm": "sgd-s"},
    {"class_weight": (0.5, 4.0), "algorithm": "sgd-s"},
]


@pytest.mark.parametrize(("manner", "scale"), covering(MANNERS, [2.0, 0.25]))
def test_a_constant_feature_is_a_constant_column(tmp_path, manner, scale):
    """Epoch by epoch: the same run as on rows with a column more; at lambdas where neither begins with a larger one."""
    matrix, labels = rows_with_a_bias("binary", 1)
    column = sp.csr_matrix(np.full((200, 1), scale, np.float32))
    one = store_of_task(tmp_path / "one", "binary", matrix, labels)
    other = store_of_task(tmp_path / "other", "binary", sp.hstack([matrix, column], "csr"), labels)
    for lam in (0.3, 0.1 if manner == {"algorithm": "sdca"} else 0.01):
        same = {"lam": lam, "max_epochs": 5, "tolerance": 1e-9, "coefficient": 1e30, **manner}
        found = train(one, TrainConfig(**same, bias="feature", bias_scale=scale))
        expected = train(other, TrainConfig(**same))
        w = np.append(found.model.weights, found.model.bias / scale)
        np.testing.assert_allclose(w, expected.model.weights, rtol=1e-5, atol=1e-6)
        for mine, theirs in zip(found.model.info.history, expected.model.info.history, strict=True):
            for name in ("estimate", "primal", "lower_bound"):
                ours, other_one = getattr(mine, name), getattr(theirs, name)
                assert ours == (other_one and pytest.approx(other_one, rel=1e-5, abs=1e-6))
        assert (found.why_uncertified is None) == (expected.why_uncertified is None)


@pytest.mark.parametrize("scale", [1.0, 5.0])
@pytest.mark.parametrize("manner", [m for m in MANNERS if m.get("algorithm") not in ("sgd-r", "pegasos")], ids=str)
def test_the_certificate_with_a_constant_feature(tmp_path, manner, scale):
    """Against LIBLINEAR, whose intercept_scaling is the value of the feature."""
    matrix, labels = rows_with_a_bias("binary", 3)
    x, lam, c = matrix.toarray().astype(np.float64), 0.05, np.ones(200)
    weights = manner.get("class_weight")
    c = np.where(labels > 0, weights[1], weights[0]) if weights else c
    svm = LinearSVC(C=1 / (lam * 200), loss="hinge", intercept_scaling=scale, tol=1e-10, max_iter=10_000_000)
    svm.fit(x, labels, sample_weight=c)
    w, b = svm.coef_.ravel(), float(svm.intercept_[0])
    best = primal_with_bias("hinge", w, b, x, labels, lam, c) + lam / 2 * (b / scale) ** 2
    config = TrainConfig(
        lam=lam, bias="feature", bias_scale=scale, tolerance=1e-6, coefficient=1e30, max_epochs=30, **manner
    )
    result = train(store_of_task(tmp_path, "binary", matrix, labels), config)
    assert result.certified
    for entry in result.model.info.history:
        assert entry.lower_bound <= best * (1 + 1e-7)
        assert entry.primal >= best * (1 - 1e-7)
    kept, b = result.model.info.certificate, float(result.model.bias)
    exact = primal_with_bias("hinge", result.model.weights, b, x, labels, lam, c) + lam / 2 * (b / scale) ** 2
    assert kept.primal == pytest.approx(exact, rel=1e-9)
    assert kept.gap < 0.4


def test_models_in_a_panel_have_their_constant_features(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 4)
    store = store_of_task(tmp_path, "binary", matrix, labels)
    for algorithm in ("sdca", "sgd-s"):
        same = {"bias": "feature", "bias_scale": 2.0, "algorithm": algorithm, "holdout": 0.2, "max_epochs": 4}
        together = train(store, TrainConfig(lam=(1.0, 0.2, 0.1), tolerance=1e-9, refit=False, **same))
        for model in together.models:
            alone = train(store, TrainConfig(lam=model.lam, tolerance=1e-9, **same))
            assert alone.model.info.certificate == model.certificate


# --- not regularised: textbook loops --------------------------------------------------------------


def block_of(matrix: sp.csr_matrix, labels: np.ndarray, weights: np.ndarray | None = None) -> CsrBlock:
    heft = None if weights is None else weights.astype(np.float32)
    arrays = matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data, labels.astype(np.float64)
    return CsrBlock(*arrays, matrix.shape[1], heft)


def member(name: str, free: int, features: int, lam: float, **options: object) -> Pegasos:
    chosen = {"delay": 0.0, "class_weights": (1.0, 1.0), "batch_size": 1, "project": False, "average": False}
    chosen |= {"average_everything": True, "parameter": parameter_of(name), "free": free}
    return Pegasos(PegasosOptions(lam=lam, loss=LOSSES[name].number, **{**chosen, **options}), features + 1)


def pegasos_with_bias(name, x, y, c, order, lam, k, project=False, delay=0.0):
    """Subgradients on w and b in batches of k, steps 1 / (lam t) of a row; w alone is regularised and projected."""
    w, b, means = np.zeros(x.shape[1]), 0.0, np.zeros(x.shape[1])
    for begin in range(0, len(order), k):
        rows = order[begin : begin + k]
        t = begin + len(rows) + delay
        g = c[rows] * SLOPES[name](x[rows] @ w + b, y[rows], parameter_of(name))
        w = (begin + delay) / t * w - g @ x[rows] / (lam * t)
        b -= g.sum() / (lam * t)
        if project and np.linalg.norm(w) > 0:
            w = min(1, 1 / np.sqrt(lam) / np.linalg.norm(w)) * w
        means += len(rows) * w
    return w, b, means / len(order)


@pytest.mark.parametrize(("project", "delay"), [(False, 0.0), (True, 0.0), (False, 50.0)])
@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("name", LIPSCHITZ)
def test_subgradients_on_the_bias_are_the_textbooks(name, k, project, delay):
    task = LOSSES[name].task
    matrix, labels = rows_with_a_bias(task, 5, rows=320)
    x, lam = matrix.toarray().astype(np.float64), 0.05
    weights = np.random.default_rng(6).integers(1, 4, 320).astype(np.float64)
    order = np.random.default_rng(7).permutation(317)  # the last batch is smaller
    classes = (0.5, 2.0) if task == "binary" else (1.0, 1.0)
    c = weights * np.where(labels > 0, classes[1], classes[0])
    options = {"batch_size": k, "project": project, "delay": delay, "class_weights": classes}
    found = member(name, BY_SUBGRADIENT, 5, lam, average=True, **options)
    block = block_of(matrix, labels, weights)
    for begin, end in ((0, 64), (64, 200), (200, 317)):  # in three calls, as the trainer does
        assert found.process(block, order, begin, end, 1) == -1
    w, b, mean = pegasos_with_bias(name, x, labels, c, order, lam, k, project, delay)
    np.testing.assert_allclose(found.last(), np.append(w, b), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.average()[:-1], mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in LIPSCHITZ if name not in KINKED])
def test_the_bias_of_a_batch_is_the_textbooks(name):
    """Each batch takes the best bias for its scores, by a root finder here."""
    matrix, labels = rows_with_a_bias(LOSSES[name].task, 8, rows=320)
    x, lam, k, p = matrix.toarray().astype(np.float64), 0.05, 20, parameter_of(name)
    order = np.random.default_rng(9).permutation(320)
    found = member(name, BY_BATCH, 5, lam, batch_size=k)
    w = np.zeros(5)
    for t, begin in enumerate(range(0, 320, k), start=1):
        rows = order[begin : begin + k]
        z, y = x[rows] @ w, labels[rows]

        def slope(b, z=z, y=y):
            return SLOPES[name](z + b, y, p).sum()

        b = brentq(slope, (y - z).min() - 50, (y - z).max() + 50, xtol=1e-14, rtol=1e-15, maxiter=1000)
        w = (1 - 1 / t) * w - 1 / (lam * t) * (SLOPES[name](z + b, y, p) @ x[rows]) / k
        found.process(block_of(matrix, labels), order, begin, begin + k, 1)
        np.testing.assert_allclose(found.last()[:-1], w, rtol=1e-8, atol=1e-8)
        assert slope(found.state[FREE_BIAS]) == pytest.approx(0, abs=1e-9)  # it need not be the only one


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("name", KINKED)
def test_the_bias_of_a_batch_where_there_are_kinks(name, project):
    """At the best bias some row is on a kink; a subgradient of the batch has slopes that add up to 0."""
    matrix, labels = rows_with_a_bias(LOSSES[name].task, 10, rows=300)
    x, lam, k, p = matrix.toarray().astype(np.float64), 0.02, 16, parameter_of(name)
    weights = np.random.default_rng(11).integers(1, 4, 300).astype(np.float64)
    order = np.random.default_rng(12).permutation(300)
    found = member(name, BY_BATCH, 5, lam, batch_size=k, project=project)
    block = block_of(matrix, labels, weights)
    for begin in range(0, 300, k):  # the last batch is smaller
        rows = order[begin : begin + k]
        before, clock = found.last()[:-1], lam * begin
        found.process(block, order, begin, begin + len(rows), 1)
        after, b = found.last()[:-1], found.state[FREE_BIAS]
        z, y, c = x[rows] @ before, labels[rows], weights[rows]
        cost = float((c * FORMULAS[name](z + b, y, p)).sum())
        assert cost <= least_cost(name, z, y, c, p) * (1 + 1e-12) + 1e-12
        distance = np.abs(breakpoints(name, z, y, p) + 0.0 - b).reshape(-1, len(rows)).min(axis=0)
        clear = distance > 1e-9
        assert (~clear).sum() >= 1
        sums = before * clock - (c * SLOPES[name](z + b, y, p))[clear] @ x[rows][clear]
        clock = lam * (begin + len(rows))
        if project:
            radius = np.linalg.norm(after) * np.sqrt(lam)
            assert radius <= 1 + 1e-9
            if radius > 1 - 1e-9:
                continue  # the projection hides the length
        # what is left over is made by the rows on a kink, each with a slope from -1 to 1, and all slopes add up to 0
        slopes = (c * SLOPES[name](z + b, y, p))[clear]
        rest = np.append(after * clock - sums, slopes.sum())
        on_kink = np.vstack([x[rows][~clear].T, np.ones((~clear).sum())]) * c[~clear]
        part = lsq_linear(on_kink, rest, (-1, 1), tol=1e-14).x
        np.testing.assert_allclose(on_kink @ part, rest, atol=1e-6 * (1 + np.abs(sums).max()))


@pytest.mark.parametrize("name", [name for name in FORMULAS if LOSSES[name].task == "binary"])
def test_a_batch_of_one_class_makes_no_step(name):
    """The least loss over the bias is 0 whatever the weights are, so its subgradient is 0."""
    matrix, _labels = rows_with_a_bias("binary", 10, rows=60)
    for label in (-1, 1):
        found = member(name, BY_BATCH, 5, 0.05, batch_size=10)
        assert found.process(block_of(matrix, np.full(60, label)), np.arange(60), 0, 60, 1) == -1
        assert not found.a.any()
        assert found.state[ERRORS] == 0


def test_slopes_of_a_batch_add_up_to_0_with_their_duals():
    """Where several rows are on the kink; each -l*(g) is at least l(z) - g z at any z."""
    rng = np.random.default_rng(44)
    for name in KINKED:
        loss, p = LOSSES[name], parameter_of(name)
        for _ in range(50):
            count = int(rng.integers(2, 12))
            scores = rng.integers(-3, 4, count) / 2.0
            labels = rng.choice([-1.0, 1.0], count) if loss.task == "binary" else rng.integers(-3, 4, count) / 2.0
            weights, slopes = rng.integers(1, 4, count).astype(np.float64), np.empty(count)
            b = best_offset(loss.number, p, scores, labels, weights, count, np.empty(2 * count), np.empty(2 * count))
            total, magnitude = balanced_slopes(loss.number, p, scores, labels, weights, count, b, slopes)
            assert slopes.sum() == pytest.approx(0, abs=1e-12)
            least = [
                min(c * FORMULAS[name](z, y, p) - g * z for z in np.linspace(y - 4, y + 4, 801))
                for y, c, g in zip(labels, weights, slopes, strict=True)
            ]
            assert total == pytest.approx(sum(least), abs=1e-9)
            assert magnitude >= abs(total) - 1e-12


# --- not regularised: whole runs ------------------------------------------------------------------

FREE_WAYS = [
    {"bias": "unregularized"},
    {"bias": "unregularized", "batch_size": 8},
    {"bias": "unregularized", "algorithm": "pegasos", "project": True},
    {"bias": "unregularized", "average": True},
    {"bias": "batch", "batch_size": 20},
    {"bias": "batch", "batch_size": 50, "algorithm": "pegasos", "project": True, "average": True},
]
FREE_RESUMED = [{"bias": "free", "algorithm": "sdca"}, {"bias": "free", "algorithm": "sgd-s"}]


@pytest.mark.parametrize(("name", "options"), covering(LIPSCHITZ, FREE_WAYS))
def test_a_free_bias_is_the_best_for_its_weights(tmp_path, name, options):
    task, lam = LOSSES[name].task, 0.05
    matrix, labels = rows_with_a_bias(task, 13)
    c, file = weights_in_file(tmp_path, 200)
    store = store_of_task(tmp_path, task, matrix, labels, weights=file)
    if task == "binary":
        options = {**options, "class_weight": (0.5, 2.0)}
        c = c * np.where(labels > 0, 2.0, 0.5)
    options = {**options, "loss_parameter": LOSSES[name].parameter}
    result = train(store, TrainConfig(lam=lam, loss=name, max_epochs=3, **options))
    kept, x = result.model.info.certificate, matrix.toarray().astype(np.float64)
    if options.get("algorithm") == "pegasos":
        assert (kept.lower_bound, kept.gap, result.certified, result.converged) == (None, None, False, False)
        assert "iid sampling" in result.why_uncertified
    else:
        assert result.why_uncertified is None
        assert 0 <= kept.lower_bound <= kept.primal
    w, b = result.model.weights, float(result.model.bias)
    assert kept.primal == pytest.approx(primal_with_bias(name, w, b, x, labels, lam, c), rel=1e-9)
    best = lam / 2 * w @ w + least_cost(name, x @ w, labels, c, parameter_of(name)) / 200
    assert kept.primal == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("options", FREE_WAYS, ids=str)
def test_a_free_bias_does_not_use_holdout_rows(tmp_path, options):
    matrix, labels = rows_with_a_bias("regression", 28, rows=600)
    store = store_of_task(tmp_path, "regression", matrix, labels)
    result = train(store, TrainConfig(lam=0.05, loss_parameter=0.1, holdout=0.3, max_epochs=3, **options))
    w, x, epsilon = result.model.weights, matrix.toarray().astype(np.float64), 0.1
    losses = np.maximum(0, abs(x @ w + result.model.bias - labels) - epsilon)
    held = [abs(losses[rows].mean() - result.holdout.loss) for rows in holdout_masks(600, 0.3)]
    assert held[0] < 1e-9 < held[1]
    kept = holdout_masks(600, 0.3)[1]
    least = least_cost("epsilon-insensitive", x[kept] @ w, labels[kept], np.ones(kept.sum()), epsilon) / kept.sum()
    assert result.model.info.certificate.primal == pytest.approx(0.025 * w @ w + losses[kept].mean(), rel=1e-9)
    assert result.model.info.certificate.primal == pytest.approx(0.025 * w @ w + least, rel=1e-6)


def test_a_run_of_subgradients_is_the_textbooks(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 14)
    x, lam = matrix.toarray().astype(np.float64), 0.05
    config = TrainConfig(lam=lam, bias="unregularized", algorithm="pegasos", sampling="sequential", max_epochs=3)
    model = train(store_of_task(tmp_path, "binary", matrix, labels), config).model
    w, _b, _mean = pegasos_with_bias("hinge", x, labels, np.ones(200), np.tile(np.arange(200), 3), lam, 1)
    np.testing.assert_allclose(model.weights, w, rtol=1e-9, atol=1e-9)


def test_a_free_bias_comes_near_the_optimum(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 15, rows=400)
    x, lam = matrix.toarray().astype(np.float64), 0.1
    svm = SVC(kernel="linear", C=1 / (lam * 400), tol=1e-8).fit(x, labels)
    best = primal_with_bias("hinge", svm.coef_.ravel(), svm.intercept_[0], x, labels, lam)
    store = store_of_task(tmp_path, "binary", matrix, labels)
    for options in ({"bias": "unregularized"}, {"bias": "batch", "batch_size": 100}):
        found = train(store, TrainConfig(lam=lam, max_epochs=30, **options)).model.info.certificate.primal
        assert best * (1 - 1e-7) <= found <= 1.03 * best


def test_threads_do_not_lose_a_free_bias(tmp_path):
    matrix, labels = rows_with_a_bias("regression", 15, rows=2000, bias=3.0)
    store = store_of_task(tmp_path, "regression", matrix, labels)
    primals = [
        train(store, TrainConfig(lam=0.05, bias="unregularized", threads=threads)).model.info.certificate.primal
        for threads in (1, 2)
    ]
    assert primals[1] == pytest.approx(primals[0], rel=0.02)


@pytest.mark.parametrize("bias", [-3e6, -5000.0, 1e5])
@pytest.mark.parametrize("name", ["epsilon-insensitive", "huber"])
def test_a_free_bias_of_targets_far_out(tmp_path, name, bias):
    matrix, labels = rows_with_a_bias("regression", 16, bias=bias)
    x, lam = matrix.toarray().astype(np.float64), 0.05
    store = store_of_task(tmp_path, "regression", matrix, labels)
    labels = store.to_scipy()[1].astype(np.float64)  # as text with six digits has them
    parameter = LOSSES[name].parameter
    config = TrainConfig(lam=lam, loss=name, loss_parameter=parameter, bias="batch", batch_size=50, max_epochs=4)
    model = train(store, config).model
    w = model.weights
    best = lam / 2 * w @ w + least_cost(name, x @ w, labels, np.ones(200), parameter_of(name)) / 200
    assert model.info.certificate.primal == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("options", [*FREE_WAYS, *FREE_RESUMED], ids=str)
def test_a_free_bias_interrupted_and_resumed_to_the_same_bytes(tmp_path, options):
    matrix, labels = rows_with_a_bias("binary", 27, rows=900)
    store = store_of_task(tmp_path, "binary", matrix, labels, chunk_size=6000)
    config = TrainConfig(lam=0.01, memory=least_memory(store), max_epochs=3, **options)
    whole = train(store, config)
    assert whole.windows > 1
    with interrupted_after(5):
        train(store, config, checkpoint=tmp_path / "c")
    again = train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert again.model.bias.tobytes() == whole.model.bias.tobytes()
    assert again.model.info == whole.model.info
    if options["bias"] == "free":
        return
    # the bias was looked for window by window
    w = whole.model.weights
    cost = least_cost("hinge", matrix.astype(np.float64) @ w, labels, np.ones(900), 0.0) / 900
    assert whole.model.info.certificate.primal == pytest.approx(0.005 * w @ w + cost, rel=1e-6)


def test_a_free_bias_where_all_rows_are_of_one_class(tmp_path):
    matrix, _labels = rows_with_a_bias("binary", 17, rows=60)
    for label in (-1, 1):
        store = store_of_task(tmp_path / str(label), "binary", matrix, np.full(60, label))
        for name in ("hinge", "logistic"):
            result = train(store, TrainConfig(lam=0.1, loss=name, bias="batch", batch_size=10, max_epochs=2))
            assert np.isfinite(result.model.bias)
            assert label * result.model.bias > 0
            assert result.model.info.certificate.primal < 1e-3


def test_a_warm_start_brings_its_bias(tmp_path):
    matrix, labels = rows_with_a_bias("regression", 18, bias=50.0)
    store = store_of_task(tmp_path, "regression", matrix, labels)
    good = train(store, TrainConfig(lam=0.05, loss="huber", bias="batch", batch_size=50)).model
    for options in ({"bias": "unregularized"}, {"bias": "feature", "bias_scale": 100.0}):
        config = TrainConfig(lam=0.05, loss="huber", max_epochs=1, **options)
        again, cold = train(store, config, warm_start=good), train(store, config)
        assert again.model.info.certificate.primal < cold.model.info.certificate.primal
        assert abs(float(again.model.bias) - 50) < 1
    with pytest.raises(UsageError, match="warm_start"):
        train(store, TrainConfig(lam=0.05, loss="huber"), warm_start=good)


# --- the outer search -----------------------------------------------------------------------------


def joint_optimum(name: str, x: np.ndarray, y: np.ndarray, lam: float, c: np.ndarray) -> float:
    """The least objective over weights and bias, by a program that leaves the bias free as well."""
    known = {"C": 1 / (lam * len(y)), "tol": 1e-9}
    if name == "logistic":
        theirs = LogisticRegression(**known, max_iter=100_000).fit(x, y, sample_weight=c)
        return primal_with_bias(name, theirs.coef_.ravel(), theirs.intercept_[0], x, y, lam, c)
    if name == "hinge":
        theirs = SVC(kernel="linear", **known).fit(x, y, sample_weight=c)
        return primal_with_bias(name, theirs.coef_.ravel(), theirs.intercept_[0], x, y, lam, c)
    middle = np.median(y)
    theirs = SVR(kernel="linear", epsilon=parameter_of(name), **known).fit(x, y - middle, sample_weight=c)
    return primal_with_bias(name, theirs.coef_.ravel(), theirs.intercept_[0] + middle, x, y, lam, c)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.01, 0.001])
@pytest.mark.parametrize("manner", [{}, {"algorithm": "sdca"}, {"algorithm": "sgd-s"}, {"weighted": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "bias"), [("hinge", 1.5), ("logistic", 5.0), ("epsilon-insensitive", 1000.0), ("absolute", -300.0)]
)
def test_the_search_finds_the_joint_optimum(tmp_path, name, bias, manner, tolerance):
    task, lam, manner = LOSSES[name].task, 0.2, dict(manner)
    matrix, labels = rows_with_a_bias(task, 19, bias=bias)
    x, c, files = matrix.toarray().astype(np.float64), np.ones(200), {}
    if manner.pop("weighted", False):
        c, file = weights_in_file(tmp_path, 200)
        files["weights"] = file
    best = joint_optimum(name, x, labels, lam, c)
    store = store_of_task(tmp_path, task, matrix, labels, **files)
    manner["loss_parameter"] = LOSSES[name].parameter
    config = TrainConfig(lam=lam, loss=name, bias="search", tolerance=tolerance, max_epochs=3000, **manner)
    result = train(store, config)
    kept, b = result.model.info.certificate, float(result.model.bias)
    assert kept.primal == pytest.approx(primal_with_bias(name, result.model.weights, b, x, labels, lam, c), rel=1e-9)
    assert best * (1 - 1e-6) <= kept.primal <= best * (1 + 3 * tolerance)
    assert result.converged
    assert kept.gap <= tolerance
    assert result.notes[-1] == f"the gap is that for the bias fixed at {b:.6g}"
    # the bound is one for this bias; a constant added to every score is data like any other
    held = [result_of_model for result_of_model in result.models if result_of_model.certificate == kept]
    assert len(held) == 1
    bounds = [entry.lower_bound for entry in held[0].history]
    assert kept.lower_bound == max(bounds) <= kept.primal


@pytest.mark.parametrize("far", [1e9, -1e11])
def test_the_search_reaches_targets_far_out(tmp_path, far):
    matrix, labels = rows_with_a_bias("regression", 22, rows=80)
    found = {}
    for name, targets in (("near", labels), ("far", np.round(labels + far, 2))):
        store = Store.from_scipy(matrix, targets, tmp_path / name, config=ConvertConfig(task="regression"))
        found[name] = train(store, TrainConfig(lam=0.1, bias="search"))
        assert found[name].converged
    near, away = (result.model.info.certificate.primal for result in found.values())
    assert away == pytest.approx(near, rel=0.03)
    assert len(found["far"].notes) == 1


def test_the_search_reaches_targets_beyond_all_measure(tmp_path):
    matrix, labels = rows_with_a_bias("regression", 22, rows=80)
    targets = np.sign(labels) * 1e200
    store = store_of(tmp_path, matrix, targets, task="regression", classes=())
    config = TrainConfig(lam=0.1, loss="absolute", bias="search")  # squares of the targets would be infinite
    kept = train(store, config).model.info.certificate
    assert kept.converged
    assert kept.primal == pytest.approx(2e200 * (targets < 0).mean(), rel=1e-9)  # as the median is 1e200


def test_a_search_without_an_end_gives_up():
    search = BiasSearch()
    while not search.is_over([Certificate(1.0, None, None, False)] * len(search.offsets)):
        assert np.isfinite(search.offsets).all()
    assert search.gave_up


def test_the_search_is_not_misled_by_what_is_within_the_tolerance(tmp_path):
    """Far from the targets all biases of a round are about as bad, and a tolerance may hide which is better."""
    rng = np.random.default_rng(20)
    matrix = sp.csr_matrix(np.abs(rng.standard_normal((300, 30))).astype(np.float32))
    labels = np.round(1000 + 3 * matrix.toarray()[:, 0] + 0.3 * rng.standard_normal(300), 2)
    x = matrix.toarray().astype(np.float64)
    store = store_of_task(tmp_path, "regression", matrix, labels)
    labels = store.to_scipy()[1].astype(np.float64)
    name = "epsilon-insensitive"
    for lam in (0.1, 0.01):
        best = joint_optimum(name, x, labels, lam, np.ones(300))
        result = train(store, TrainConfig(lam=lam, loss=name, bias="search", tolerance=0.1, max_epochs=3000))
        assert result.converged
        assert result.model.info.certificate.primal <= 1.3 * best


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e3), st.floats(0, 10), st.sampled_from([1, 2]), st.integers(0, 1000))
def test_the_search_on_any_valley(centre, steepness, floor, power, seed):
    """Objectives with errors of up to the tolerance, as training has them."""
    rng, tolerance = np.random.default_rng(seed), 0.01
    floor = max(floor, 1e-3 * steepness)

    def valley(b):
        return floor + steepness * abs(b - centre) ** power

    search = BiasSearch()
    for _ in range(100):
        offsets = search.offsets
        primals = [valley(b) / (1 - tolerance * rng.random()) for b in offsets]
        if search.is_over([Certificate(p, p * (1 - tolerance), tolerance, True) for p in primals]):
            break
    assert search.offsets == offsets
    assert not search.gave_up
    assert min(primals) <= floor * (1 + 6 * tolerance)


@pytest.mark.parametrize("loss", ["hinge", pytest.param("logistic", marks=pytest.mark.slow)])
def test_a_search_where_all_rows_are_of_one_class_ends(tmp_path, loss):
    """Any bias that is large enough is the best."""
    matrix, _labels = rows_with_a_bias("binary", 24, rows=60)
    store = store_of(tmp_path, matrix, np.ones(60, int))
    result = train(store, TrainConfig(lam=0.1, bias="search", loss=loss))
    assert result.model.info.certificate.primal == 0
    assert 1 <= result.model.bias < 1e4


@pytest.mark.parametrize("options", [{"max_epochs": 1}, {"max_epochs": 1, "algorithm": "sgd-s"}], ids=str)
def test_an_interrupted_bias_search_reports_its_bias(tmp_path, options):
    matrix, labels = rows_with_a_bias("binary", 21)
    store = store_of_task(tmp_path, "binary", matrix, labels)
    result = train(store, TrainConfig(lam=0.01, bias="search", tolerance=1e-6, **options))
    assert not result.converged
    assert result.notes[-1] == f"the gap is that for the bias fixed at {float(result.model.bias):.6g}"


def test_a_search_keeps_to_its_seconds(tmp_path, monkeypatch):
    """All rounds together."""
    matrix, labels = rows_with_a_bias("regression", 22, bias=9000.0)
    store = store_of_task(tmp_path, "regression", matrix, labels)
    config = TrainConfig(lam=0.2, bias="search", tolerance=1e-3, max_seconds=0.6)
    train(store, config)  # so that kernels are ready
    around_present(monkeypatch, lambda _rows: time.sleep(0.05))
    result = train(store, config)
    assert result.stopped_by == "seconds"
    assert result.seconds < 1.2


def test_a_bias_search_reports_holdout_rows(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 23)
    store = store_of_task(tmp_path, "binary", matrix, labels)
    result = train(store, TrainConfig(lam=0.05, bias="search", holdout=0.3, calibrate="platt"))
    assert [trial.loss for trial in result.trials] in ([], [result.holdout.loss])
    assert result.model.has_probabilities


@pytest.mark.parametrize(
    "options",
    [
        {"lam": (0.1, 0.01), "bias": "search"},
        {"bias": "search"},
        {"lam": 0.1, "bias": "search", "folds": 3},
        {"lam": 0.1, "bias": "batch"},
        {"lam": 0.1, "bias": "unregularized", "algorithm": "sgd-m"},
        {"lam": 0.1, "bias": "unregularized", "algorithm": "sdca"},
        {"lam": 0.1, "bias": "batch", "batch_size": 9, "algorithm": "sdca"},
        {"lam": 0.1, "bias": "feature", "bias_scale": -1.0},
        {"lam": 0.1, "bias": "free", "bias_scale": 2.0},
        {"lam": 0.1, "bias": "free", "project": True, "batch_size": 9},
        {"lam": 0.1, "bias": "free", "algorithm": "pegasos"},
        {"lam": 0.1, "bias": "free", "algorithm": "sgd-r"},
    ],
)
def test_contradictions(options):
    with pytest.raises(UsageError):
        TrainConfig(**options)


def test_unsupported_options_of_a_bias_search(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 24, rows=60)
    store = store_of_task(tmp_path / "two", "binary", matrix, labels)
    config = TrainConfig(lam=0.1, bias="search")
    model = train(store, TrainConfig(lam=0.1)).model
    with pytest.raises(UsageError, match="checkpoint"):
        train(store, config, checkpoint=tmp_path / "c")
    with pytest.raises(UsageError, match="warm_start"):
        train(store, config, warm_start=model)
    without = ({"algorithm": "sgd-r"}, {"algorithm": "sgd-s", "sampling": "iid"})  # no certificate to compare by
    for options in ({"batch_size": 4}, {"algorithm": "pegasos"}, {"average": True}, *without):
        with pytest.raises(UsageError):
            train(store, TrainConfig(lam=0.1, bias="search", **options))


def test_a_bias_search_does_not_support_one_versus_rest(tmp_path):
    matrix, _labels = rows_with_a_bias("binary", 24, rows=60)
    store = store_of(tmp_path, matrix, np.arange(60) % 3, task="multiclass", classes=())
    with pytest.raises(UsageError, match="bias=search"):
        train(store, TrainConfig(lam=0.1, bias="search"))


# --- what a bias is good for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"bias": "feature", "bias_scale": 3.0},
        {"bias": "unregularized"},
        {"bias": "batch", "batch_size": 20},
        {"bias": "free"},
        {"bias": "free", "algorithm": "sgd-s"},
        {"bias": "search"},
    ],
    ids=str,
)
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_models_keep_their_bias(tmp_path, task, options):
    matrix, labels = rows_with_a_bias(task, 25)
    store = store_of_task(tmp_path, task, matrix, labels)
    model = train(store, TrainConfig(lam=0.1, **options)).model
    assert abs(model.bias) > 0.3
    model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.bias.tobytes() == model.bias.tobytes()
    assert loaded.bias.shape == ()
    scores = matrix.astype(np.float64) @ model.weights + float(model.bias)
    np.testing.assert_allclose(loaded.decision_function(matrix), scores, rtol=1e-12)
    # what is said of the training rows is what training minimised
    for data, digits in ((store.path, 1e-9), (tmp_path / "in.svm", 1e-6)):
        found = evaluate(loaded, data)
        assert found["objective"] == pytest.approx(model.info.certificate.primal, rel=digits)


@pytest.mark.slow
def test_the_commands(oocpeg, tmp_path):
    matrix, labels = rows_with_a_bias("binary", 26)
    store_of_task(tmp_path, "binary", matrix, labels)
    words = ["train", "store", "--lambda", "0.1", "-o"]
    told = oocpeg(*words, "free", "--bias", "free").stdout
    assert "certified" in told
    told = oocpeg(*words, "batch", "--bias", "batch", "--batch-size", "50", "--max-epochs", "2", code=4).stdout
    assert "NOT within the tolerance" in told
    found = oocpeg(*words, "search", "--bias", "search", "--json")
    told = json.loads(found.stdout.splitlines()[-1])
    model = Model.load(tmp_path / "search")
    assert told["notes"][-1].endswith(f"fixed at {float(model.bias):.6g}")
    assert "fixed at" in found.stderr
    oocpeg("predict", "search", "in.svm", "-o", "p.csv")
    written = np.genfromtxt(tmp_path / "p.csv", delimiter=",", skip_header=1)[:, 0]
    np.testing.assert_allclose(written, matrix.astype(np.float64) @ model.weights + model.bias, rtol=1e-9)
    assert "--bias batch" in oocpeg(*words, "m", "--bias", "batch", code=2).stderr
