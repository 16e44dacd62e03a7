"""An unregularized bias with a certificate: against other solvers with a free bias, and L-BFGS."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Store, TrainConfig, train
from ooc_pegasos.compiled.fit.pegasos import folds_of_rows, multiple_errors, proximal_step
from ooc_pegasos.distributed import train_dask
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.free_bias import Balance, DualPoint, Lines, RowSums
from ooc_pegasos.objective.losses import LOSSES
from ooc_pegasos.objective.problem import problem_of
from ooc_pegasos.scoring.evaluate import evaluate
from support.biased_rows import holdout_masks, rows_with_a_bias, store_of_task, weights_in_file
from support.optima import FORMULAS, LIPSCHITZ, SLOPES, optimum_with_bias, parameter_of, primal_with_bias
from support.soak import SOAK
from support.stores import interrupted_after, store_of


def check_bound(found, best, tolerance):
    """A certificate is true, and as good as was asked for."""
    assert found.lower_bound <= best * (1 + 1e-9)
    assert found.primal >= best * (1 - 1e-6)  # the other program is not exact either
    assert found.gap <= tolerance


ALGORITHMS = [(name, "sdca") for name in FORMULAS] + [(name, "sgd-s") for name in LIPSCHITZ] + [("hinge", "sgd-m")]


@pytest.mark.slow
@pytest.mark.parametrize("some", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize(("name", "algorithm"), ALGORITHMS)
def test_the_optimum_with_a_free_bias(tmp_path, name, algorithm, some):
    task, weights = LOSSES[name].task, {"loss_parameter": LOSSES[name].parameter}
    matrix, labels = rows_with_a_bias(task, 31, rows=300, bias=1.5 if task == "binary" else 1000.0)
    x, c, files = matrix.toarray().astype(np.float64), np.ones(300), {}
    if some:
        c, files["weights"] = weights_in_file(tmp_path, 300)
        if task == "binary":
            weights["class_weight"] = (0.5, 2.0)
            c = c * np.where(labels > 0, 2.0, 0.5)
    store = store_of_task(tmp_path, task, matrix, labels, **files)
    labels = store.to_scipy()[1].astype(np.float64)
    for lam, tolerance in ((3.0, 0.001), (0.05, 0.003), (0.005, 0.01)):
        config = TrainConfig(
            lam=lam, loss=name, bias="free", algorithm=algorithm, tolerance=tolerance, max_epochs=1000, **weights
        )
        result = train(store, config)
        w, b, kept = result.model.weights, float(result.model.bias), result.model.info.certificate
        assert kept.primal == pytest.approx(primal_with_bias(name, w, b, x, labels, lam, c), rel=1e-9)
        best = optimum_with_bias(name, x, labels, lam, c)
        check_bound(kept, best, tolerance)
        assert result.converged
        for entry in result.model.info.history:
            assert 0 <= entry.lower_bound <= best * (1 + 1e-9)
    assert evaluate(result.model, store.path)["objective"] == pytest.approx(
        primal_with_bias(name, w, b, x, labels, lam), rel=1e-6
    )


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_many_models_have_their_own_bias(tmp_path, algorithm):
    matrix, labels = rows_with_a_bias("binary", 32, rows=600)
    x, store = matrix.toarray().astype(np.float64), store_of_task(tmp_path, "binary", matrix, labels)
    same = {"bias": "free", "algorithm": algorithm, "max_epochs": 500}
    kept = holdout_masks(600, 0.2)[1]
    for name in ("hinge", "logistic"):
        lambdas = (1.0, 0.3, 0.1, 0.03, 0.01)
        path = TrainConfig(lam=lambdas, loss=name, holdout=0.2, tolerance=0.005, refit=False, **same)
        for one in train(store, path).models:
            check_bound(one.certificate, optimum_with_bias(name, x[kept], labels[kept], one.lam), 0.005)
    marks = np.empty(600, np.uint8)
    folds_of_rows(0, 0, 3, marks)
    for one in train(store, TrainConfig(lam=0.05, folds=3, tolerance=0.005, **same)).models:
        rows = marks != (99 if one.fold is None else one.fold)
        check_bound(one.certificate, optimum_with_bias("hinge", x[rows], labels[rows], one.lam), 0.005)


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_one_versus_rest_models_have_their_own_bias(tmp_path, algorithm):
    rng = np.random.default_rng(33)
    matrix, _labels = rows_with_a_bias("binary", 33, rows=400)
    x = matrix.toarray().astype(np.float64)
    labels = np.argmax(x[:, :3] + rng.standard_normal((400, 3)) + [0.5, 0, -0.7], axis=1)
    store = store_of(tmp_path, matrix, labels, task="multiclass", classes=())
    labels = store.to_scipy()[1]
    config = TrainConfig(lam=0.05, bias="free", algorithm=algorithm, tolerance=0.003, class_weight="balanced")
    result = train(store, config)
    assert result.model.bias.shape == (3,)
    for number, one in enumerate(result.models):
        y = np.where(labels == number, 1, -1)
        c = np.where(y > 0, 200 / (y > 0).sum(), 200 / (y < 0).sum())
        check_bound(one.certificate, optimum_with_bias("hinge", x, y, 0.05, c), 0.003)


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_windows_and_a_resumed_run_have_the_same_bytes(tmp_path, algorithm):
    matrix, labels = rows_with_a_bias("regression", 34, rows=900, bias=30.0)
    store = store_of_task(tmp_path, "regression", matrix, labels, chunk_size=6000)
    name = "epsilon-insensitive"
    same = {"loss": name, "loss_parameter": 0.1, "bias": "free", "algorithm": algorithm}
    same |= {"tolerance": 0.01, "max_epochs": 300}
    config = TrainConfig(lam=(0.1, 0.03, 0.01), memory=120_000, holdout=0.1, refit=False, **same)
    whole = train(store, config)
    assert whole.windows > 1
    x, y = matrix.toarray().astype(np.float64), store.to_scipy()[1].astype(np.float64)
    kept = holdout_masks(900, 0.1)[1]
    for one in whole.models:
        check_bound(one.certificate, optimum_with_bias(name, x[kept], y[kept], one.lam), 0.01)
    for when in (1, 8):
        with interrupted_after(when):
            train(store, config, checkpoint=tmp_path / f"c{when}")
        again = train(store, config, checkpoint=tmp_path / f"c{when}", resume=True)
        assert again.model.weights.tobytes() == whole.model.weights.tobytes()
        assert again.model.bias.tobytes() == whole.model.bias.tobytes()
        assert [one.certificate for one in again.models] == [one.certificate for one in whole.models]


def test_other_orders_and_batches(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 35, rows=3000)
    x, store = matrix.toarray().astype(np.float64), store_of_task(tmp_path, "binary", matrix, labels)
    manners = [
        {"algorithm": "sgd-s", "threads": 2, "lam": 1.0},
        {"algorithm": "sgd-s", "batch_size": 10, "lam": 0.05},
        {"algorithm": "sgd-s", "average": True, "lam": 0.05},
        {"algorithm": "sgd-s", "sampling": "fixed", "lam": 0.05},
        {"lam": 0.002},  # whatever suits
    ]
    for manner in manners:
        result = train(store, TrainConfig(bias="free", tolerance=0.005, **manner))
        check_bound(result.model.info.certificate, optimum_with_bias("hinge", x, labels, manner["lam"]), 0.005)
    assert train(store, TrainConfig(bias="free", **manners[0])).presenters == 2
    good = train(store, TrainConfig(bias="free", lam=0.05)).model
    warm = train(store, TrainConfig(bias="free", lam=0.05, tolerance=0.005), warm_start=good)
    check_bound(warm.model.info.certificate, optimum_with_bias("hinge", x, labels, 0.05), 0.005)


@pytest.mark.slow
@pytest.mark.dask
def test_workers_find_the_optimum_and_resume_to_the_same_bytes(tmp_path):
    matrix, labels = rows_with_a_bias("binary", 42, rows=900)
    store = store_of_task(tmp_path, "binary", matrix, labels, chunk_size=6000)
    x, kept = matrix.toarray().astype(np.float64), holdout_masks(900, 0.1)[1]
    local = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
    with local as cluster, Client(cluster) as client:
        for name, algorithm in (("hinge", "sdca"), ("logistic", "sgd-s"), ("logistic", "sdca")):
            same = {"lam": (0.1, 0.02), "loss": name, "bias": "free", "algorithm": algorithm, "holdout": 0.1}
            config = TrainConfig(tolerance=0.003, refit=False, **same)
            whole = train_dask(client, store, config, parts=3)
            for one in whole.models:
                check_bound(one.certificate, optimum_with_bias(name, x[kept], labels[kept], one.lam), 0.003)
            place = tmp_path / f"{name} {algorithm}"
            train_dask(
                client, store, dataclasses.replace(config, max_epochs=2, checkpoint_epochs=1), parts=3, checkpoint=place
            )
            again = train_dask(client, store, config, parts=3, checkpoint=place, resume=True)
            assert again.model.weights.tobytes() == whole.model.weights.tobytes()
            assert again.model.bias.tobytes() == whole.model.bias.tobytes()


@pytest.mark.parametrize("options", [{"bias": "unregularized"}, {"bias": "batch", "batch_size": 1000}], ids=str)
@pytest.mark.parametrize("name", ["hinge", "logistic", "absolute", "huber"])
def test_the_ways_of_the_paper_have_a_certificate(tmp_path, name, options):
    task = LOSSES[name].task
    matrix, labels = rows_with_a_bias(task, 36, rows=2000, bias=0.7)
    store = store_of_task(tmp_path, task, matrix, labels)
    x, labels = matrix.toarray().astype(np.float64), store.to_scipy()[1].astype(np.float64)
    result = train(store, TrainConfig(lam=0.1, loss=name, tolerance=0.001, max_epochs=60, **options))
    best, kept = optimum_with_bias(name, x, labels, 0.1), result.model.info.certificate
    assert result.why_uncertified is None
    assert best * 0.9 <= kept.lower_bound <= best * (1 + 1e-9)
    assert best * (1 - 1e-6) <= kept.primal <= best * 1.1


def test_at_most_twice_the_epochs(tmp_path):
    rng = np.random.default_rng(37)
    matrix = sp.csr_matrix(rng.standard_normal((20_000, 8)).astype(np.float32))
    score = matrix @ rng.standard_normal(8) + 2.0 + rng.standard_normal(20_000)
    store = Store.from_scipy(matrix, np.where(score > 0, 1, -1), tmp_path / "s")
    for name in ("hinge", "logistic"):
        for algorithm in ("sdca", "sgd-s"):
            for lam in (10.0, 0.3, 0.01, 0.001):
                same = {"lam": lam, "loss": name, "algorithm": algorithm, "max_epochs": 200}
                feature, free = (train(store, TrainConfig(bias=bias, **same)) for bias in ("feature", "free"))
                assert free.converged
                assert free.model.info.epochs <= 2 * feature.model.info.epochs, (name, algorithm, lam)


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_rows_of_one_class(tmp_path, algorithm):
    """The optimum is 0, with a bias that is large enough; of the logistic loss only nearly."""
    matrix, _labels = rows_with_a_bias("binary", 38, rows=60)
    for label in (-1, 1):
        store = store_of_task(tmp_path / str(label), "binary", matrix, np.full(60, label))
        same = {"lam": 0.1, "bias": "free", "algorithm": algorithm, "max_epochs": 5}
        result = train(store, TrainConfig(**same))
        assert (result.converged, result.model.info.certificate.primal) == (True, 0.0)
        assert label * result.model.bias >= 1
        result = train(store, TrainConfig(loss="logistic", **same))
        assert (result.converged, result.model.info.certificate.lower_bound) == (False, 0.0)
        assert result.model.info.certificate.primal < 1e-15


def test_joint_multiclass_losses_are_refused(tmp_path):
    matrix, _labels = rows_with_a_bias("binary", 39, rows=60)
    store = store_of(tmp_path, matrix, np.arange(60) % 3, task="multiclass", classes=())
    with pytest.raises(UsageError, match="bias=free is not for joint multiclass losses; choose"):
        train(store, TrainConfig(lam=0.1, bias="free", loss="multiclass-logistic"))


# --- bounds from any dual vector --------------------------------------------------------------------


def dual_value(name, y, b, p):
    """-l*(-b) by the definition, over many scores."""
    scores = np.linspace(y - 60, y + 60, 24_001)
    return float(np.min(FORMULAS[name](scores, y, p) + b * scores))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
def test_any_dual_vectors_give_bounds(tmp_path, name):
    """Dual vectors of good weights and any bias, or random vectors in the box, of any size."""
    rng, task, p = np.random.default_rng(40), LOSSES[name].task, parameter_of(name)
    matrix, labels = rows_with_a_bias(task, 40, rows=40)
    store = store_of_task(tmp_path, task, matrix, labels)
    x, y = matrix.toarray().astype(np.float64), store.to_scipy()[1].astype(np.float64)
    config = TrainConfig(lam=0.1, loss=name, bias="free")
    loader = open_loader(store, 1 << 30)
    problem = problem_of(config, store, loader)
    found = RowSums.of(problem, len(store.manifest.labels.classes), None)
    for window in loader.stream(loader.in_order(), lambda: None):
        found.add(window)
    balance, lines, best = Balance(problem, found), Lines(), optimum_with_bias(name, x, y, 0.1)
    good, bounds = train(store, config).model, []
    for number in range(120):
        part = rng.random(40) ** rng.choice([0.5, 2.0, 8.0]) * rng.random()
        sign = y if task == "binary" else rng.choice([-1.0, 1.0], 40)
        box = p if name == "huber" else 1.0
        b = box * part * sign * np.where(sign > 0, rng.random(), rng.random())
        if number % 2:
            scores = x @ good.weights + good.bias + rng.normal() * 10 ** rng.uniform(-2, 0.5)
            b = -SLOPES[name](scores, y, p) * rng.uniform(0.9, 1)
        value = sum(dual_value(name, *pair, p) for pair in zip(y, b, strict=True))
        point = DualPoint.rounded(np.append(b @ x, b.sum()), 1e-13, problem.bias, value, 1e-9)
        bounds.append(balance.bound(0, point, float(rng.normal()), lines).value)
        assert 0 <= bounds[-1] <= best
    assert max(bounds) >= 0.7 * best


NUMBERS = st.floats(-100, 100)


@given(st.lists(st.tuples(NUMBERS, st.floats(-2, 2), st.floats(0, 0.1)), min_size=1, max_size=8), NUMBERS)
def test_lines_are_lower_bounds(some, bias):
    """The bound is at most the minimum of the largest line, for masses within their errors."""
    lines, bound = Lines(), -np.inf
    for height, mass, error in some:
        bound = lines.add(height, mass, error, bias)
    rng = np.random.default_rng(0)
    for _ in range(20):
        masses = [mass + error * rng.choice([-1, 1]) for _height, mass, error in some]
        crossings = [
            (one[0] - other[0]) / (kept - other_mass)
            for one, kept in zip(some, masses, strict=True)
            for other, other_mass in zip(some, masses, strict=True)
            if abs(kept - other_mass) > 1e-300
        ]
        for b in [*crossings, *np.linspace(-1e4, 1e4, 11)]:
            largest = max(height - mass * b for (height, _mass, _error), mass in zip(some, masses, strict=True))
            assert bound <= largest + 1e-9 * (1 + abs(largest) + abs(b))


def test_intersection_of_two_lines():
    lines = Lines()
    assert lines.add(5.0, 1.0, 0.0, 0.0) == -np.inf
    assert lines.add(1.0, -1.0, 0.0, 0.0) == pytest.approx(3.0, rel=1e-12)
    assert lines.add(0.0, -1.0, 0.0, 0.0) == pytest.approx(3.0, rel=1e-12)  # the best is kept
    assert lines.add(3.0, -0.5, 0.0, 0.0) == pytest.approx(11 / 3, rel=1e-12)
    assert lines.add(9.0, 0.1, 0.2, 0.0) == pytest.approx(11 / 3, rel=1e-12)  # of no certain sign


# --- steps ------------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.floats(0.01, 1), st.sampled_from([0.0, 1.0]))
def test_the_centre_reaches_any_minimum(best, steepness, share, power):
    """Steps are a share of the way, or of constant size as on the slopes of the hinge loss."""
    state, centre, steps = np.array([1.0, 0.0]), 0.0, []
    for _ in range(300):
        off = best - centre
        move = share * off if power else np.clip(off, -steepness, steepness)
        step = proximal_step(state, float(move), 0, 1)
        centre += step
        steps.append(abs(step))
    assert abs(best - centre) <= 1e-3 * (1 + abs(best))
    assert max(steps) <= 8 * (abs(best) + steepness)


def test_margin_errors_with_a_bias_are_those_of_a_loop():
    rng = np.random.default_rng(41)
    for _ in range(5000):
        lam, square, repeats = rng.normal() * 0.3, rng.random() * (rng.random() < 0.9), int(rng.integers(1, 8))
        delta = rng.normal()
        errors, margin = 0, delta
        for k in range(repeats):
            if margin <= k * lam:
                errors, margin = errors + 1, margin + square
        near = any(abs(delta + n * square - k * lam) < 1e-9 for n in range(9) for k in range(9))
        assert near or multiple_errors(delta, repeats, lam, square) == errors


# --- random problems --------------------------------------------------------------------------------


def random_case(seed, folder):
    """(store, options, x, labels, weights) of a small problem in any units."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(list(FORMULAS)))
    binary, rows = LOSSES[name].task == "binary", int(rng.integers(4, 80))
    scale = 10 ** rng.uniform(-3, 3) if rng.random() < 0.5 else 1.0
    x = rng.standard_normal((rows, int(rng.integers(1, 6)))) + 3 * rng.normal() * (rng.random() < 0.3)
    matrix = sp.csr_matrix((scale * x).astype(np.float32))
    score = x @ rng.standard_normal(x.shape[1]) + rng.normal() * 10 ** rng.uniform(-1, 0.3 if binary else 3)
    labels = np.where(score > 0, 1, -1) if binary else np.round(score + rng.standard_normal(rows), 2)
    if binary:
        labels[0] = -labels[1]
    weights = 10 ** rng.uniform(-3, 3, rows) if rng.random() < 0.3 else np.ones(rows)
    weights = weights.astype(np.float32)
    algorithms = [algorithm for loss, algorithm in ALGORITHMS if loss == name]
    options = {"loss": name, "loss_parameter": LOSSES[name].parameter, "bias": "free"}
    options["algorithm"] = str(rng.choice(algorithms))
    if name in LIPSCHITZ and rng.random() < 0.2:
        options |= {"algorithm": "sgd-s", "bias": str(rng.choice(["unregularized", "batch"])), "batch_size": 5}
    options |= {"lam": 10 ** rng.uniform(-4, 1.5) * max(1, scale) ** rng.uniform(0, 2), "tolerance": 1e-3}
    options["max_epochs"] = int(rng.integers(1, 100))
    declared = {"classes": ("-1", "1")} if binary else {"task": "regression"}
    store = Store.from_scipy(matrix, labels, folder, config=ConvertConfig(**declared), weights=weights)
    matrix, labels = store.to_scipy()
    weights = np.concatenate([np.ones(b.rows) if b.weights is None else b.weights for b in store.blocks()])
    return store, options, matrix.toarray().astype(np.float64), labels.astype(np.float64), weights.astype(np.float64)


@pytest.mark.slow
def test_no_bound_of_a_random_problem_is_above_an_objective(tmp_path):
    for seed in range(2000 if SOAK else 12):
        store, options, x, labels, c = random_case(seed, tmp_path / str(seed))
        name, lam = options["loss"], options["lam"]
        result = train(store, TrainConfig(**options))
        kept = result.model.info.certificate
        exact = primal_with_bias(name, result.model.weights, float(result.model.bias), x, labels, lam, c)
        same = {"loss": name, "loss_parameter": options["loss_parameter"], "lam": lam, "bias": "free"}
        near = train(store, TrainConfig(algorithm="sdca", max_epochs=200, **same)).model
        other = primal_with_bias(name, near.weights, float(near.bias), x, labels, lam, c)
        best = min(exact, other)  # any is an upper bound
        assert 0 <= kept.lower_bound <= best * (1 + 1e-14), seed
        assert exact * (1 - 1e-14) <= kept.primal <= exact * (1 + 1e-6), seed
        assert kept.gap <= 1
