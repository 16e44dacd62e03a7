"""Joint multiclass losses: against the formulas, scikit-learn, and the dual of tiny problems."""

import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn import metrics as reference
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, convert, train
from ooc_pegasos.compiled.fit.multiclass import MULTICLASS_HINGE, MULTICLASS_LOGISTIC, class_loss
from ooc_pegasos.config import load_toml
from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.util import json_checksum
from ooc_pegasos.util.checksums import xxh64_hex
from support.rows import svmlight_text
from support.stores import interrupted_after, least_memory, store_of
from support.subsets import covering

HINGE, LOGISTIC = "multiclass-hinge", "multiclass-logistic"

# --- the formulas -------------------------------------------------------------------------------


def value_of(name: str, z: np.ndarray, y: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """The loss of each row, from the textbook."""
    own = z[np.arange(len(y)), y]
    return (z + costs[y]).max(axis=1) - own if name == HINGE else logsumexp(z, axis=1) - own


def random_costs(classes: int, rng: np.random.Generator) -> np.ndarray:
    """Costs that are not symmetric, some of them 0, none where a class is taken for itself."""
    costs = np.round(rng.uniform(0, 3, (classes, classes)), 2)
    costs[rng.random((classes, classes)) < 0.2] = 0
    np.fill_diagonal(costs, 0)
    return costs


@given(
    st.sampled_from([HINGE, LOGISTIC]),
    st.integers(2, 6),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 30.0, 1e6, 1e150]),
    st.booleans(),
)
def test_value_subgradient_and_what_it_adds_to_the_dual(name, classes, seed, size, round_scores):
    rng = np.random.default_rng(seed)
    costs, label = random_costs(classes, rng), int(rng.integers(classes))
    z = rng.standard_normal(classes) * size
    if round_scores:
        z = np.round(z)  # ties
    g = np.full(classes + 2, np.nan)  # there is room for a panel's columns, which must not be touched
    number = {HINGE: MULTICLASS_HINGE, LOGISTIC: MULTICLASS_LOGISTIC}[name]
    value, dual = class_loss(number, z, label, costs, g)
    assert np.isnan(g[classes:]).all()
    g = g[:classes]
    assert value >= 0
    assert np.isfinite(g).all()
    assert value == pytest.approx(value_of(name, z[None], np.array([label]), costs)[0], rel=1e-12, abs=1e-12)
    largest = max(costs[label].max(), np.log(classes))
    assert -1e-12 <= dual <= largest + 1e-12  # a cost, or the entropy of p
    assert dual == pytest.approx(value - g @ z, rel=1e-9, abs=1e-9 * (1 + np.abs(z).max()))
    assert g.sum() == pytest.approx(0, abs=1e-12)
    if name == LOGISTIC:
        p = softmax(z)
        np.testing.assert_allclose(g, p - np.eye(classes)[label], atol=1e-12)
        entropy = -np.sum(p[p > 0] * np.log(p[p > 0]))
        assert dual == pytest.approx(entropy, rel=1e-9, abs=1e-12)
    others = z + rng.standard_normal((20, classes)) * rng.choice([1e-3, 1.0, 100.0], (20, 1)) * (1 + size)
    below = value + (others - z) @ g
    found = value_of(name, others, np.full(20, label), costs)
    assert (found >= below - 1e-9 * (1 + np.abs(others).max())).all()


# --- optima that others found -------------------------------------------------------------------


def rows_of_classes(rows: int, features: int, classes: int, seed: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows that a matrix of weights explains more or less; some are sparse, one is empty."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < 0.8)
    dense[2] = 0
    matrix = sp.csr_matrix(dense.astype(np.float32))
    score = matrix @ rng.standard_normal((features, classes)) + rng.standard_normal((rows, classes))
    labels = score.argmax(axis=1)
    labels[:classes] = np.arange(classes)
    return matrix, labels


def multiclass_store(folder: Path, matrix: sp.csr_matrix, labels: np.ndarray, **options: object) -> Store:
    return store_of(folder, matrix, labels, **{"task": "multiclass", "classes": (), **options})


def multiclass_primal(name, w, x, y, lam, c, costs) -> float:
    """Equation (1); w has a column a class."""
    return lam / 2 * float((w**2).sum()) + float((c * value_of(name, x @ w, y, costs)).mean())


def on_simplices(points: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex for each row."""
    falling = -np.sort(-points, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, points.shape[1] + 1)
    last = (falling > excess).sum(axis=1) - 1
    return np.maximum(points - excess[np.arange(len(points)), last][:, None], 0)


def around_the_hinge_optimum(x, y, lam, c, costs) -> tuple[float, float]:
    """A dual and a primal value, by accelerated projected gradients on the dual: the optimum is between them."""
    rows, classes = len(y), costs.shape[0]
    own = np.eye(classes)[y]

    def weights_of(alpha):
        return -(x.T @ (c[:, None] * (alpha - own))) / (lam * rows)

    def dual_of(alpha):
        return float((c[:, None] * alpha * costs[y]).sum()) / rows - lam / 2 * float((weights_of(alpha) ** 2).sum())

    smoothness = np.linalg.norm(x * c[:, None], 2) ** 2 / (lam * rows**2)
    alpha = ahead = own.copy()
    momentum, best = 1.0, np.inf
    for step in range(60_000):
        slope = c[:, None] / rows * (costs[y] + x @ weights_of(ahead))
        before, alpha = alpha, on_simplices(ahead + slope / smoothness)
        later = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if ((ahead - alpha) * (alpha - before)).sum() > 0:
            later, ahead = 1.0, alpha
        else:
            ahead = alpha + (momentum - 1) / later * (alpha - before)
        momentum = later
        if step % 200 == 199:
            best = min(best, multiclass_primal(HINGE, weights_of(alpha), x, y, lam, c, costs))
            if best - dual_of(alpha) < 1e-8 * best:
                break
    assert best - dual_of(alpha) < 1e-5 * best
    return dual_of(alpha), best


def logistic_optimum(x, y, lam, c, classes) -> float:
    shape = (x.shape[1], classes)

    def value_and_slope(flat):
        w = flat.reshape(shape)
        slope = x.T @ (c[:, None] * (softmax(x @ w, axis=1) - np.eye(classes)[y])) / len(y)
        return multiclass_primal(LOGISTIC, w, x, y, lam, c, np.zeros((classes, classes))), (lam * w + slope).ravel()

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 20_000, "maxfun": 100_000}
    return float(minimize(value_and_slope, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options).fun)


def check_history(result, below: float, above: float) -> None:
    """No bound above the optimum, no objective below it, at no time."""
    assert result.certified
    for entry in result.models[0].history:
        assert entry.lower_bound <= above * (1 + 1e-7)
        assert entry.primal is None or entry.primal >= below * (1 - 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [1.0, 0.1, 0.003])
def test_the_hinge_is_crammer_and_singers(tmp_path, lam):
    matrix, labels = rows_of_classes(300, 7, 4, 1)
    x, rows = matrix.toarray().astype(np.float64), 300
    known = {"multi_class": "crammer_singer", "fit_intercept": False, "tol": 1e-10, "max_iter": 1_000_000}
    svm = LinearSVC(C=1 / (lam * rows), random_state=0, **known).fit(x, labels)
    costs, c = 1.0 - np.eye(4), np.ones(rows)
    best = multiclass_primal(HINGE, svm.coef_.T, x, labels, lam, c, costs)
    config = TrainConfig(lam=lam, loss=HINGE, tolerance=1e-3, max_epochs=400, coefficient=1e30)
    result = train(multiclass_store(tmp_path, matrix, labels), config)
    check_history(result, best, best)
    found = result.model.info.certificate
    assert result.converged or lam * rows < 20
    assert found.gap < 0.05
    assert result.model.weights.shape == (7, 4)
    exact = multiclass_primal(HINGE, result.model.weights, x, labels, lam, c, costs)
    assert found.primal == pytest.approx(exact, rel=1e-12)
    assert result.algorithm == "sgd-s"


@pytest.mark.parametrize(
    ("lam", "classes"),
    covering([1.0, 0.1, 0.003], [3, 9]),  # 9 take more than the eight columns of a panel
)
def test_the_logistic_loss_is_multinomial_regression(tmp_path, lam, classes):
    matrix, labels = rows_of_classes(300, 7, classes, 2)
    x, rows, costs = matrix.toarray().astype(np.float64), 300, np.zeros((classes, classes))
    known = {"fit_intercept": False, "tol": 1e-10, "max_iter": 100_000}
    theirs = LogisticRegression(C=1 / (lam * rows), **known).fit(x, labels)
    best = multiclass_primal(LOGISTIC, theirs.coef_.T, x, labels, lam, np.ones(rows), costs)
    config = TrainConfig(lam=lam, loss=LOGISTIC, tolerance=1e-3, max_epochs=400, coefficient=1e30)
    result = train(multiclass_store(tmp_path, matrix, labels), config)
    check_history(result, best, best)
    assert result.converged or lam * rows < 20
    assert result.model.info.certificate.gap < 0.02
    if result.converged:
        np.testing.assert_allclose(result.model.predict_proba(matrix), theirs.predict_proba(x), atol=0.05)


def test_two_classes_at_once_are_the_binary_loss(tmp_path):
    """With w_1 = -w_0 = w / 2 a margin is y w x, and the norm half as large: lambda is twice that of two classes."""
    matrix, labels = rows_of_classes(300, 5, 2, 3)
    found = []
    for kind, loss, lam in (("multiclass", HINGE, 0.2), ("binary", "hinge", 0.1)):
        store = store_of(tmp_path, matrix, labels, task=kind, classes=())
        found.append(train(store, TrainConfig(lam=lam, loss=loss, tolerance=1e-4, max_epochs=2000)))
    assert all(result.converged for result in found)
    certificates = [result.model.info.certificate for result in found]
    assert certificates[0].primal == pytest.approx(certificates[1].primal, rel=2e-4)


OPTIONS = [
    {},
    {"cost": True},
    {"cost": True, "weighted": True, "class_weight": (0.5, 1.0, 3.0, 0.25)},
    {"class_weight": "balanced", "bias": "feature", "bias_scale": 2.0},
    {"cost": True, "weighted": True, "bias": "feature", "bias_scale": 0.5},
]


@pytest.mark.parametrize(("loss", "options"), covering([HINGE, LOGISTIC], OPTIONS))
def test_the_certificate(tmp_path, loss, options):
    chosen, classes, rows = dict(options), 4, 80
    rng = np.random.default_rng(5)
    matrix, labels = rows_of_classes(rows, 5, classes, 4)
    costs = 1.0 - np.eye(classes)
    if chosen.pop("cost", False) and loss == HINGE:
        costs = random_costs(classes, rng)
        chosen["cost"] = tuple(map(tuple, costs.tolist()))
    c, files = np.ones(rows), {}
    if chosen.pop("weighted", False):
        c = np.round(rng.exponential(size=rows) * 8 + 1) / 8
        (tmp_path / "weights.txt").write_text("".join(f"{weight}\n" for weight in c))
        files["weights"] = str(tmp_path / "weights.txt")
    store = multiclass_store(tmp_path, matrix, labels, **files)
    weights = chosen.get("class_weight", (1.0,) * classes)
    if weights == "balanced":
        weights = rows / (classes * np.bincount(labels))
    c = c * np.array(weights)[labels]
    x = matrix.toarray().astype(np.float64)
    scale = chosen.get("bias_scale")
    if scale:
        x = np.column_stack([x, np.full(rows, scale)])
    for lam in (0.5, 0.02):
        if loss == HINGE:
            below, above = around_the_hinge_optimum(x, labels, lam, c, costs)
        else:
            below = above = logistic_optimum(x, labels, lam, c, classes)
        config = TrainConfig(lam=lam, loss=loss, tolerance=1e-3, max_epochs=300, coefficient=1e30, **chosen)
        result = train(store, config)
        check_history(result, below, above)
        kept = result.model.info.certificate
        assert kept.gap == pytest.approx((kept.primal - kept.lower_bound) / kept.primal)
        assert kept.gap < (0.01 if lam * rows >= 20 else 0.2)
        w = np.vstack([result.model.weights, result.model.bias / scale]) if scale else result.model.weights
        assert kept.primal == pytest.approx(multiclass_primal(loss, w, x, labels, lam, c, costs), rel=1e-12)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 5), st.sampled_from([1e-3, 0.1, 3.0]))
def test_the_bound_on_any_data(tmp_path_factory, seed, rows, features, lam):
    rng = np.random.default_rng(seed)
    matrix = sp.csr_matrix(np.round(rng.standard_normal((rows, features)), 1), dtype=np.float32)
    labels = rng.integers(0, 3, rows)
    store = multiclass_store(tmp_path_factory.mktemp("any"), matrix, labels, classes=("0", "1", "2"))
    costs = random_costs(3, rng)
    cost = tuple(map(tuple, costs.tolist()))
    x, c = matrix.toarray().astype(np.float64), np.ones(rows)
    for loss, more in ((HINGE, {"cost": cost}), (LOGISTIC, {})):
        result = train(store, TrainConfig(lam=lam, loss=loss, max_epochs=8, tolerance=1e-9, coefficient=1e30, **more))
        history = result.models[0].history
        # the bounds of a run are below all its objectives, and those below that of any weights
        lowest = min(entry.primal for entry in history)
        at = result.model.weights * rng.uniform(0.5, 1.5, (20, 1, 1))
        anything = [multiclass_primal(loss, w, x, labels, lam, c, costs) for w in [*at, np.zeros((features, 3))]]
        for entry in history:
            assert entry.lower_bound <= min(lowest, *anything) * (1 + 1e-9) + 1e-12


# --- what must not matter -----------------------------------------------------------------------


def is_held_out(rows: int, fraction: float) -> np.ndarray:
    """Mask of the holdout rows: those with a small hash."""

    def splitmix(row: int) -> float:
        word = (row + 1) * 0x9E3779B97F4A7C15 % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return (word ^ word >> 31) / 2**64

    return np.array([splitmix(row) < fraction for row in range(rows)])


@pytest.mark.parametrize("loss", [HINGE, LOGISTIC])
def test_holdout_rows(tmp_path, loss):
    rng = np.random.default_rng(6)
    matrix, labels = rows_of_classes(600, 8, 5, 6)
    costs, lam = (random_costs(5, rng) if loss == HINGE else 1.0 - np.eye(5)), 0.1
    given_costs = tuple(map(tuple, costs.tolist())) if loss == HINGE else None
    config = TrainConfig(lam=lam, loss=loss, cost=given_costs, holdout=0.3, bias="feature")
    result = train(multiclass_store(tmp_path, matrix, labels), config)
    held = is_held_out(600, 0.3)
    scores = matrix.astype(np.float64) @ result.model.weights + result.model.bias
    losses = value_of(loss, scores, labels, costs)
    assert result.holdout.loss == pytest.approx(losses[held].mean(), rel=1e-12)
    assert result.holdout.error == pytest.approx((scores.argmax(axis=1) != labels)[held].mean(), rel=1e-12)
    assert result.trials[0].deviation == pytest.approx(losses[held].std() / np.sqrt(held.sum()), rel=1e-9)
    square = (result.model.weights**2).sum() + (result.model.bias**2).sum()
    exact = lam / 2 * square + losses[~held].mean()
    assert result.model.info.certificate.primal == pytest.approx(exact, rel=1e-12)
    x = np.column_stack([matrix.toarray().astype(np.float64), np.ones(600)])[~held]
    ones = np.ones(len(x))
    if loss == HINGE:
        below, above = around_the_hinge_optimum(x, labels[~held], lam, ones, costs)
    else:
        below = above = logistic_optimum(x, labels[~held], lam, ones, 5)
    check_history(result, below, above)


@pytest.mark.parametrize("loss", [HINGE, LOGISTIC])
def test_several_lambdas_are_separate_runs(tmp_path, loss):
    matrix, labels = rows_of_classes(500, 8, 3, 7)
    store = multiclass_store(tmp_path, matrix, labels)
    same = {"loss": loss, "holdout": 0.2, "tolerance": 0.02, "max_epochs": 12, "bias": "feature"}
    together = train(store, TrainConfig(lam=(1.0, 0.1, 0.01), refit=False, select_by="loss", **same))
    for model in together.models:
        alone = train(store, TrainConfig(lam=model.lam, **same))
        assert alone.models[0] == model
        if model.lam == together.model.info.lam:
            assert alone.model.weights.tobytes() == together.model.weights.tobytes()
    assert together.model.info.lam == min(together.trials, key=lambda trial: trial.loss).lam


@pytest.mark.parametrize("loss", [HINGE, LOGISTIC])
@pytest.mark.parametrize("slices", [1, 4])
def test_interrupted_and_resumed_to_the_same_bytes(tmp_path, loss, slices):
    matrix, labels = rows_of_classes(900, 8, 3, 8)
    store = multiclass_store(tmp_path, matrix, labels, chunk_size=6000)
    same = {"memory": least_memory(store), "max_epochs": 4, "tolerance": 1e-9, "bias": "feature", "refit": False}
    config = TrainConfig(lam=(0.01, 0.003), loss=loss, **same)
    whole = train(store, config)
    assert whole.windows > 1
    with interrupted_after(slices):
        train(store, config, checkpoint=tmp_path / "c")
    again = train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert again.model.bias.tobytes() == whole.model.bias.tobytes()
    assert again.model.info == whole.model.info
    assert again.models == whole.models


@pytest.mark.parametrize("loading", ["mapped", "read"])
def test_windows_certify_too(tmp_path, loading):
    matrix, labels = rows_of_classes(900, 8, 4, 9)
    store = multiclass_store(tmp_path, matrix, labels, chunk_size=4096)
    options = {"memory": least_memory(store)} if loading == "read" else {}
    result = train(store, TrainConfig(lam=0.1, loss=HINGE, tolerance=0.005, max_epochs=200, loading=loading, **options))
    assert (result.windows > 3) == (loading == "read")
    assert result.converged
    x, costs = matrix.toarray().astype(np.float64), 1.0 - np.eye(4)
    check_history(result, *around_the_hinge_optimum(x, labels, 0.1, np.ones(900), costs))


def test_iid_rows_have_no_certificate(tmp_path):
    matrix, labels = rows_of_classes(200, 5, 3, 10)
    result = train(multiclass_store(tmp_path, matrix, labels), TrainConfig(lam=0.1, loss=HINGE, sampling="iid"))
    assert "iid sampling" in result.why_uncertified
    assert result.model.info.certificate.lower_bound is None


def test_folds(tmp_path):
    """Each fold's model is trained on the others, and measured on its own."""
    matrix, labels = rows_of_classes(300, 5, 3, 11)
    result = train(
        multiclass_store(tmp_path, matrix, labels), TrainConfig(lam=(1.0, 0.1), loss=LOGISTIC, folds=3, refit=False)
    )
    assert [model.fold for model in result.models] == [0, 1, 2, None] * 2
    x = matrix.toarray().astype(np.float64)
    for model in result.models:
        if model.fold is None:
            best = logistic_optimum(x, labels, model.lam, np.ones(300), 3)
            assert model.certificate.lower_bound <= best * (1 + 1e-7)
            assert model.certificate.primal >= best * (1 - 1e-7)
    assert [trial.lam for trial in result.trials] == [1.0, 0.1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"algorithm": "sdca"}, "algorithm=sdca"),
        ({"algorithm": "sgd-m"}, "algorithm=sgd-m"),
        ({"batch_size": 4}, "batch_size"),
        ({"average": True}, "average"),
        ({"project": True}, "project"),
        ({"bias": "unregularized"}, "bias=unregularized"),
        ({"bias": "batch", "batch_size": 9}, "b"),
        pytest.param({"bias": "search"}, "bias=search"),
        ({"loss_parameter": 1.0}, "loss_parameter"),
        ({"class_weight": (1.0, 2.0)}, "3 numbers"),
    ],
)
def test_unsupported_options_of_joint_losses(tmp_path, options, problem):
    matrix, labels = rows_of_classes(60, 4, 3, 12)
    store = multiclass_store(tmp_path, matrix, labels)
    with pytest.raises(UsageError, match=problem):
        train(store, TrainConfig(lam=0.1, loss=HINGE, **options))


def test_a_binary_model_is_no_warm_start_for_joint_losses(tmp_path):
    """Its vector would be taken for the first numbers of a panel."""
    matrix, labels = rows_of_classes(60, 4, 3, 12)
    two = train(store_of(tmp_path, matrix, labels % 2, classes=()), TrainConfig(lam=0.1)).model
    with pytest.raises(UsageError, match="warm_start"):
        train(multiclass_store(tmp_path, matrix, labels), TrainConfig(lam=0.1, loss=HINGE), warm_start=two)


def test_other_labels_are_refused(tmp_path):
    matrix, labels = rows_of_classes(60, 4, 3, 12)
    with pytest.raises(UsageError, match="loss=multiclass-hinge is for multiclass labels"):
        train(store_of(tmp_path, matrix, labels % 2, classes=()), TrainConfig(lam=0.1, loss=HINGE))


# --- models and the command line ----------------------------------------------------------------


@pytest.mark.parametrize("loss", [HINGE, LOGISTIC])
def test_models_come_back_alike(tmp_path, loss):
    matrix, labels = rows_of_classes(200, 5, 3, 13)
    names = np.array(["ant", "bee", "cat"])[labels]
    cost = ((0.0, 1.0, 2.0), (1.0, 0.0, 1.0), (2.0, 1.0, 0.0)) if loss == HINGE else None
    config = TrainConfig(lam=0.05, loss=loss, cost=cost, bias="feature", bias_scale=3.0)
    model = train(multiclass_store(tmp_path, matrix, names), config).model
    model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.weights.tobytes() == model.weights.tobytes()
    assert loaded.bias.tobytes() == model.bias.tobytes()
    assert (loaded.info.costs, loaded.info.loss) == (model.info.costs, loss)
    scores = matrix.astype(np.float64) @ model.weights + model.bias
    assert np.array_equal(loaded.predict(matrix), np.array(["ant", "bee", "cat"])[scores.argmax(axis=1)])
    if loss == LOGISTIC:
        np.testing.assert_allclose(loaded.predict_proba(matrix), softmax(scores, axis=1), rtol=1e-12)
    else:
        with pytest.raises(UsageError, match="no probabilities"):
            loaded.predict_proba(matrix)


def test_probabilities_of_scores_far_out(tmp_path):
    matrix, labels = rows_of_classes(60, 4, 3, 12)
    model = train(multiclass_store(tmp_path, matrix, labels), TrainConfig(lam=1.0, loss=LOGISTIC)).model
    found = model.probabilities_of(np.array([[1e300, -1e300, 0], [-1e5, -1e5, -1e5], [0, 800, 801]]))
    np.testing.assert_allclose(found, [[1, 0, 0], [1 / 3] * 3, softmax([0, 800, 801])], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "options"),
    [(HINGE, ["--cost", "costs.txt"]), (LOGISTIC, []), ("hinge", []), ("logistic", ["--bias", "feature"])],
)
def test_the_commands(oocpeg, tmp_path, loss, options):
    matrix, labels = rows_of_classes(400, 6, 3, 14)
    store = multiclass_store(tmp_path, matrix, labels)
    costs = 1.0 - np.eye(3)
    if options[:1] == ["--cost"]:
        costs = np.array([[0, 1, 4], [1, 0, 1], [4, 1, 0.0]])
        (tmp_path / "costs.txt").write_text("0, 1, 4\n\n1 0 1\n4\t1 0\n")
    oocpeg("train", "store", "-o", "m", "--lambda", "0.1", "--loss", loss, *options)
    model = Model.load(tmp_path / "m")
    assert model.info.costs == (costs.tolist() if loss in (HINGE, LOGISTIC) else None)
    scores = matrix.astype(np.float64) @ model.weights + model.bias
    predicted = scores.argmax(axis=1)
    found = json.loads(oocpeg("evaluate", "m", "store", "--json").stdout)
    assert found.pop("seen_in_training")
    assert found == evaluate(model, tmp_path / "in.svm") | {  # text is read in other blocks
        name: pytest.approx(found[name], rel=1e-12) for name in ("mean_loss", "objective")
    }
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, predicted))
    assert found["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
    assert found["confusion"] == reference.confusion_matrix(labels, predicted).tolist()
    if loss in (HINGE, LOGISTIC):
        losses = value_of(loss, scores, labels, costs)
    else:
        margins = np.where(np.arange(3) == labels[:, None], 1, -1) * scores
        losses = (np.maximum(0, 1 - margins) if loss == "hinge" else np.logaddexp(0, -margins)).sum(axis=1)
    assert found["mean_loss"] == pytest.approx(losses.mean(), rel=1e-12)
    assert found["objective"] == pytest.approx(model.info.certificate.primal, rel=1e-12)
    proba = ["--proba"] if "logistic" in loss else []
    if not proba:
        with pytest.raises(UsageError, match="calibrate"):
            model.predict_proba(matrix)
    oocpeg("predict", "m", store.path, "-o", "p.parquet", *proba)
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    np.testing.assert_allclose(np.stack([table[f"score {k}"] for k in range(3)], axis=1), scores, rtol=1e-9, atol=1e-12)
    assert np.array_equal(table["label"], predicted)
    if proba:
        chances = softmax(scores, axis=1)
        if loss == "logistic":
            chances = 1 / (1 + np.exp(-scores))
            chances /= chances.sum(axis=1, keepdims=True)
        written = np.stack([table[f"probability {k}"] for k in range(3)], axis=1)
        np.testing.assert_allclose(written, chances, rtol=1e-9)


@pytest.mark.parametrize(
    ("cost", "loss", "problem"),
    [
        ("0 1 / 1 0", HINGE, "3 by 3"),
        ("0 1 1 / 1 0 / 1 1 0", HINGE, "3 by 3"),
        ("0 1 1 / 1 0 -1 / 1 1 0", HINGE, "negative"),
        ("0 1 1 / 1 0 nan / 1 1 0", HINGE, "negative"),
        ("0 1 1 / 1 0 inf / 1 1 0", HINGE, "negative"),
        ("0 1 1 / 1 2 1 / 1 1 0", HINGE, "correct class"),
        ("0 1 1 / 1 0 1 / 1 1 0", LOGISTIC, "cost is for loss=multiclass-hinge"),
        ("0 1 1 / 1 0 1 / 1 1 0", None, "cost is for loss=multiclass-hinge"),
    ],
)
def test_costs_that_make_no_sense(tmp_path, cost, loss, problem):
    matrix, labels = rows_of_classes(60, 4, 3, 12)
    table = tuple(tuple(map(float, line.split())) for line in cost.split("/"))
    with pytest.raises(UsageError, match=problem):
        train(multiclass_store(tmp_path, matrix, labels), TrainConfig(lam=0.1, loss=loss, cost=table))


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("", 2, "3 by 3"),
        ("0 1 1\n1 0 x\n1 1 0\n", 3, "costs.txt: not a table of numbers"),
        (None, 3, "costs.txt: no such file"),
    ],
)
def test_files_of_costs_that_cannot_be_read(oocpeg, tmp_path, text, code, problem):
    matrix, labels = rows_of_classes(60, 4, 3, 12)
    multiclass_store(tmp_path, matrix, labels)
    if text is not None:
        (tmp_path / "costs.txt").write_text(text)
    words = ["train", "store", "-o", "m", "--lambda", "0.1", "--loss", HINGE, "--cost", "costs.txt"]
    assert problem in oocpeg(*words, code=code).stderr
    assert not (tmp_path / "m").exists()


def test_costs_in_a_file_of_options(tmp_path):
    (tmp_path / "train.toml").write_text('loss = "multiclass-hinge"\nlam = 0.1\ncost = [[0, 2], [1.5, 0]]\n')
    assert load_toml(TrainConfig, tmp_path / "train.toml")["cost"] == [[0, 2], [1.5, 0]]


# --- probabilities from holdout rows ---------------------------------------------------------


def binned(scores: np.ndarray) -> np.ndarray:
    """Scores in steps of which each is a bin of its own, so that a fit to the bins is one to the scores."""
    return np.round(scores * 16) / 16


def fitted(kind: str, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """scikit-learn's probabilities."""
    if kind == "platt":
        return _SigmoidCalibration().fit(scores, positive, weights).predict(wanted)
    return IsotonicRegression(out_of_bounds="clip").fit(scores, positive, weights).predict(wanted)


@pytest.mark.parametrize("task", ["binary", "one against the rest", HINGE])
@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_calibration_is_scikit_learns_on_the_holdout_rows(tmp_path, kind, task):
    rng = np.random.default_rng(15)
    matrix, labels = rows_of_classes(3000, 6, 2 if task == "binary" else 3, 15)
    weights = rng.integers(1, 4, 3000).astype(np.float64)
    (tmp_path / "weights.txt").write_text("".join(f"{weight}\n" for weight in weights))
    classes = {"task": "binary" if task == "binary" else "multiclass", "classes": ()}
    store = store_of(tmp_path, matrix, labels, weights=str(tmp_path / "weights.txt"), **classes)
    loss = HINGE if task == HINGE else "hinge"
    config = TrainConfig(lam=0.01, loss=loss, bias="feature", calibrate=kind, holdout=0.4, max_epochs=20)
    model = train(store, config).model
    held = is_held_out(3000, 0.4)
    scores = (matrix.astype(np.float64) @ model.weights + model.bias).reshape(3000, -1)
    columns = [1] if task == "binary" else [0, 1, 2]
    expected = [
        fitted(kind, column[held], (labels == one_class)[held], weights[held], column)
        for column, one_class in zip(scores.T, columns, strict=True)
    ]
    found = model.predict_proba(matrix)
    if task == "binary":
        expected = np.column_stack([1 - expected[0], expected[0]])
    else:
        expected = np.stack(expected, axis=1)
        sums = expected.sum(axis=1, keepdims=True)
        expected = np.where(sums > 0, expected / np.maximum(sums, 1e-300), 1 / 3)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    # a summary knows scores to a 512th; for a fit by steps a row may then stand on the other side of one
    if kind == "platt":
        np.testing.assert_allclose(found, expected, atol=2e-3)
    else:
        assert np.abs(found - expected).mean() < 5e-3
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").predict_proba(matrix).tobytes() == found.tobytes()


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
@pytest.mark.parametrize("loss", ["hinge", HINGE])
def test_a_class_without_holdout_rows_is_improbable(tmp_path, kind, loss):
    matrix, labels = rows_of_classes(300, 6, 3, 17)
    held = is_held_out(300, 0.2)
    labels[(labels == 2) & held] = 1
    store = store_of(tmp_path, matrix, labels, task="multiclass", classes=())
    model = train(store, TrainConfig(lam=0.01, loss=loss, calibrate=kind, holdout=0.2, max_epochs=20)).model
    rare = model.info.calibrations[2]
    assert rare.apply(np.array([-1e9, 0.0, 1e9])).tolist() == [1 / (held.sum() + 2)] * 3
    found = model.predict_proba(matrix)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    assert found[:, 2].max() < 0.5
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").predict_proba(matrix).tobytes() == found.tobytes()


def test_holdout_rows_of_one_class_are_refused_before_training(tmp_path, monkeypatch):
    matrix, labels = rows_of_classes(300, 6, 2, 17)
    held = is_held_out(300, 0.2)
    monkeypatch.setattr("ooc_pegasos.training.run.Run.execute", None)  # nobody gets there
    config = TrainConfig(lam=0.01, calibrate="platt", holdout=0.2)
    with pytest.raises(UsageError, match="all holdout rows are of one class"):
        train(store_of(tmp_path, matrix, np.where(held, 0, labels), classes=(), chunk_size=1024), config)
    with pytest.raises(UsageError, match="all of the store's are of one"):
        train(store_of(tmp_path, matrix, 0 * labels, classes=("0", "1")), config)


def test_real_targets_have_no_probabilities(tmp_path):
    matrix, labels = rows_of_classes(100, 6, 2, 17)
    store = store_of(tmp_path, matrix, labels + 0.5, classes=(), task="regression")
    with pytest.raises(UsageError, match="leave out proba"):
        train(store, TrainConfig(lam=0.1)).model.check_probabilities()


def test_calibration_from_the_command_line(oocpeg, tmp_path):
    matrix, labels = rows_of_classes(500, 6, 2, 16)
    store_of(tmp_path, matrix, labels, classes=())
    train_words = ["train", "store", "--lambda", "0.05", "-o"]
    assert "--holdout" in oocpeg(*train_words, "m", "--calibrate", "platt", code=2).stderr
    oocpeg(*train_words, "plain")
    assert "--calibrate" in oocpeg("predict", "plain", "store", "-o", "p.csv", "--proba", code=2).stderr
    assert not (tmp_path / "p.csv").exists()
    oocpeg(*train_words, "m", "--calibrate", "isotonic", "--holdout", "0.3")
    oocpeg("predict", "m", "in.svm", "-o", "p.parquet", "--proba")
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["score", "label", "probability"]
    chance = np.array(table["probability"])
    assert ((chance >= 0) & (chance <= 1)).all()
    found = json.loads(oocpeg("evaluate", "m", "store", "--json").stdout)
    assert found["brier"] == pytest.approx(reference.brier_score_loss(labels, chance), rel=1e-9)
    clipped = np.clip(chance, np.finfo(float).eps, 1 - np.finfo(float).eps)
    assert found["log_loss"] == pytest.approx(reference.log_loss(labels, clipped), rel=1e-9)


# --- real targets, from text to metrics ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, "absolute", "huber"])
def test_regression_from_end_to_end(oocpeg, tmp_path, loss):
    rng = np.random.default_rng(17)
    matrix, _labels = rows_of_classes(400, 6, 2, 17)
    targets = np.round(matrix @ rng.standard_normal(6) + 5 + 0.1 * rng.standard_normal(400), 3)
    (tmp_path / "in.svm").write_text(svmlight_text(matrix, targets))
    oocpeg("convert", "in.svm", "-o", "store", "--task", "regression")
    parameter = {None: ["--loss-parameter", "0.25"], "absolute": [], "huber": ["--loss-parameter", "0.5"]}[loss]
    words = ["train", "store", "-o", "m", "--lambda", "0.05", "--bias", "feature", "--bias-scale", "9", *parameter]
    oocpeg(*words, *(["--loss", loss] if loss else []))
    model = Model.load(tmp_path / "m")
    oocpeg("predict", "m", "in.svm", "-o", "p.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    predicted = matrix.astype(np.float64) @ model.weights + model.bias
    np.testing.assert_allclose(table["score"], predicted, rtol=1e-9)
    assert np.array_equal(table["label"], table["score"])  # a real target is predicted by the score itself
    assert np.array_equal(model.predict(matrix), predicted)
    off = np.abs(predicted - targets)
    losses = {
        None: np.maximum(0, off - 0.25),
        "absolute": off,
        "huber": np.where(off > 0.5, 0.5 * (off - 0.25), off**2 / 2),
    }[loss]
    found = json.loads(oocpeg("evaluate", "m", "store", "--json").stdout)
    assert found["mean_absolute_error"] == pytest.approx(reference.mean_absolute_error(targets, predicted))
    assert found["mean_squared_error"] == pytest.approx(reference.mean_squared_error(targets, predicted))
    root = reference.root_mean_squared_error(targets, predicted)
    assert found["root_mean_squared_error"] == pytest.approx(root)
    assert found["r2"] == pytest.approx(reference.r2_score(targets, predicted))
    assert found["r2"] > 0.9
    assert found["mean_loss"] == pytest.approx(losses.mean(), rel=1e-9)
    assert found["objective"] == pytest.approx(model.info.certificate.primal, rel=1e-9)
    with pytest.raises(UsageError, match="no probabilities"):
        model.predict_proba(matrix)


def test_targets_of_raw_files_keep_their_digits(tmp_path):
    """As those of stores do: float32 would round all of these down."""
    matrix, _labels = rows_of_classes(100, 6, 2, 18)
    targets = 16_777_217.0 + 4 * np.arange(100)
    text = svmlight_text(matrix, [str(int(target)) for target in targets])
    (tmp_path / "in.svm").write_text(text)
    store = convert([str(tmp_path / "in.svm")], tmp_path / "store", ConvertConfig(task="regression", shuffle=False))
    model = train(store, TrainConfig(lam=1.0, max_epochs=2)).model
    error = reference.mean_absolute_error(targets, model.predict(matrix))
    for data in (store.path, tmp_path / "in.svm"):
        assert evaluate(model, data)["mean_absolute_error"] == pytest.approx(error, rel=1e-12)


def test_calibration_is_for_classes(tmp_path):
    matrix, _labels = rows_of_classes(100, 6, 2, 17)
    store = store_of(tmp_path, matrix, np.arange(100) / 7, task="regression", classes=())
    with pytest.raises(UsageError, match="calibrate"):
        train(store, TrainConfig(lam=0.1, calibrate="platt", holdout=0.3))


@pytest.mark.parametrize("loading", ["mapped", "read"])
@pytest.mark.parametrize("label", [7.0, -1.0, float("nan")])
def test_a_label_that_is_no_class_reaches_no_kernel(tmp_path, label, loading):
    """A store whose checksums are right and whose labels are not: kernels would write beyond their arrays."""
    matrix, _labels = rows_of_classes(60, 4, 3, 12)
    store = store_of(tmp_path, matrix, np.arange(60) % 3, task="multiclass", classes=())
    path = store.path / store.manifest.chunks[0].file
    content = bytearray(path.read_bytes())
    at = store.manifest.chunks[0].starts.labels
    content[at : at + 4] = np.float32(label).tobytes()
    path.write_bytes(content)
    table = json.loads((store.path / "manifest.json").read_text())
    del table["checksum"]
    table["chunks"][0] |= {"crc32": f"{zlib.crc32(content):08x}", "xxh64": xxh64_hex(bytes(content))}
    table["checksum"] = json_checksum.checksum_of(table)
    (store.path / "manifest.json").write_text(json.dumps(table))
    for loss in ("multiclass-hinge", "hinge"):
        with pytest.raises(CorruptFileError, match="a label is none of the 3 classes"):
            train(Store.open(store.path), TrainConfig(lam=0.1, loss=loss, loading=loading))
