"""Training: valid bounds, exact objectives, and resumed runs with identical results."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.svm import LinearSVC

from ooc_pegasos import ConvertConfig, Model, OocPegasosError, Store, TrainConfig, convert, train
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.solvers.registry import row_bytes
from support.rows import random_rows
from support.stores import all_memory, around_present, interrupted_after, least_memory, store_of
from support.subsets import covering


def liblinear_optimum(matrix, labels, lam, class_weight=None, row_weights=None) -> float:
    """The least value of (1), by LIBLINEAR to a tight tolerance."""
    rows = matrix.shape[0]
    weight = {-1: class_weight[0], 1: class_weight[1]} if class_weight else None
    options = {"loss": "hinge", "fit_intercept": False, "tol": 1e-10, "max_iter": 3_000_000, "dual": True}
    svm = LinearSVC(C=1 / (lam * rows), class_weight=weight, **options)
    svm.fit(matrix.astype(np.float64), labels, sample_weight=row_weights)
    return svm_objective(svm.coef_.ravel(), matrix, labels, lam, class_weight)


def windows_of(store: Store, memory: int) -> int:
    return len(open_loader(store, memory, row_bytes=row_bytes(TrainConfig(lam=1.0), 1)).in_order())


def svm_objective(w, matrix, labels, lam, class_weight=None) -> float:
    c = np.where(labels > 0, class_weight[1], class_weight[0]) if class_weight else 1.0
    hinge = np.maximum(0, 1 - labels * (matrix.astype(np.float64) @ w))
    return lam / 2 * float(w @ w) + float((c * hinge).mean())


def data_sets(folder: Path | None) -> dict[str, tuple[sp.csr_matrix, np.ndarray, float]]:
    sparse, sparse_labels = random_rows(800, 300, 1, 0.03)
    noisy = np.random.default_rng(2).standard_normal((400, 6))
    noisy_labels = np.where(noisy @ np.arange(1, 7) + np.random.default_rng(3).standard_normal(400) > 0, 1, -1)
    separable = sp.csr_matrix(np.vstack([np.eye(20), -np.eye(20)]), dtype=np.float32)
    return {
        "sparse": (sparse, sparse_labels, 0.01),
        "sparse, little regularised": (sparse, sparse_labels, 1e-4),
        "dense": (sp.csr_matrix(noisy, dtype=np.float32), noisy_labels, 0.05),
        "separable": (separable, np.repeat([1, -1], 20), 0.1),
    }


ALGORITHMS = [
    {},
    {"algorithm": "sgd-m"},
    {"algorithm": "pegasos", "sampling": "permutation"},
    {"algorithm": "pegasos", "sampling": "fixed", "project": True},
    {"batch_size": 16},
    {"sampling": "sequential", "delay": 0.0},
    {"average": True, "delay": 1000.0},
    {"class_weight": (0.5, 4.0)},
    {"class_weight": (0.5, 4.0), "algorithm": "sgd-m"},
]


@pytest.mark.parametrize(("name", "options"), covering(data_sets(None), ALGORITHMS))
def test_the_bound_is_below_and_the_objective_above_the_optimum(tmp_path, name, options):
    matrix, labels, lam = data_sets(None)[name]
    store = store_of(tmp_path, matrix, labels, chunk_size=4096)
    weights = options.get("class_weight")
    best = liblinear_optimum(matrix, labels, lam, weights)
    result = train(store, TrainConfig(lam=lam, max_epochs=30, tolerance=1e-5, coefficient=1e30, **options))
    assert len(result.model.info.history) > 3 or result.converged
    for entry in result.model.info.history:
        assert entry.lower_bound <= best * (1 + 1e-7)
        assert entry.primal >= best * (1 - 1e-7)
    found = result.model.info.certificate
    assert found.primal == pytest.approx(svm_objective(result.model.weights, matrix, labels, lam, weights), rel=1e-9)
    assert found.gap == pytest.approx((found.primal - found.lower_bound) / found.primal)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a9a", "w8a", "reuters_money_fx", "usps", "news20", "covtype"])
def test_the_bound_on_real_data(tmp_path, shared_data, name):
    sys.path.insert(0, str(shared_data))
    try:
        import datasets
    finally:
        sys.path.remove(str(shared_data))
    matrix, labels, _test, _labels = datasets.load(name)
    rows = np.random.default_rng(1).permutation(matrix.shape[0])[:4000]
    matrix = matrix[rows].tocsr()
    matrix.sort_indices()
    distinct = np.unique(labels)
    labels = np.where(np.isin(labels[rows], distinct[len(distinct) // 2 :]), 1, -1)
    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1))).ravel()
    matrix = sp.diags(1 / np.where(norms > 0, norms, 1)).dot(matrix).astype(np.float32).tocsr()
    matrix.sort_indices()
    lam = 20 / len(labels)
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=lam, tolerance=1e-4, max_epochs=2000))
    best = liblinear_optimum(matrix, labels, lam)
    assert result.model.info.certificate.lower_bound <= best * (1 + 1e-7)
    assert result.model.info.certificate.primal >= best * (1 - 1e-7)
    assert result.converged, result.model.info.certificate  # the gap reaches 1e-4 where lam m >= 20


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.integers(2, 40),
    st.integers(1, 8),
    st.sampled_from([1e-4, 0.01, 1.0]),
    st.sampled_from(ALGORITHMS),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_bound_on_any_data(tmp_path, seed, rows, features, lam, options):
    rng = np.random.default_rng(seed)
    matrix = sp.csr_matrix(np.round(rng.standard_normal((rows, features)), 1), dtype=np.float32)
    labels = rng.choice([-1, 1], rows)
    labels[:2] = [-1, 1]
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=lam, max_epochs=12, tolerance=1e-9, coefficient=1e30, **options))
    weights = options.get("class_weight")
    c = np.where(labels > 0, weights[1], weights[0]) if weights else np.ones(rows)
    below, above = around_the_optimum(matrix.toarray().astype(np.float64), labels, lam, c)
    for entry in result.model.info.history:
        assert entry.lower_bound <= above + 1e-9 * (1 + above)
        assert entry.primal >= below - 1e-9 * (1 + below)


def around_the_optimum(x, y, lam, c) -> tuple[float, float]:
    """A dual and a primal value of a small problem, from L-BFGS-B on the dual: the optimum is between them."""
    from scipy.optimize import minimize

    rows = len(y)
    signed = x * y[:, None]

    def negative_dual(beta):
        u = signed.T @ beta / (lam * rows)
        return -(beta.sum() / rows - lam / 2 * u @ u), -(1 - signed @ u) / rows

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 5000}
    bounds = [(0, weight) for weight in c]
    found = minimize(negative_dual, np.minimum(0.5, c), jac=True, bounds=bounds, options=options)
    u = signed.T @ found.x / (lam * rows)
    return -found.fun, lam / 2 * float(u @ u) + float((c * np.maximum(0, 1 - signed @ u)).mean())


def test_models_without_a_certificate(tmp_path):
    matrix, labels = random_rows(300, 50, 4, 0.1)
    store = store_of(tmp_path, matrix, labels)
    for options in ({"algorithm": "sgd-r"}, {"algorithm": "pegasos"}, {"algorithm": "sgd-s", "sampling": "iid"}):
        result = train(store, TrainConfig(lam=0.01, **options))
        assert (result.certified, result.converged) == (False, False)
        assert "iid sampling" in result.why_uncertified
        assert result.model.info.certificate.lower_bound is None
        assert result.model.info.epochs == 10
        exact = svm_objective(result.model.weights, matrix, labels, 0.01)
        assert result.model.info.certificate.primal == pytest.approx(exact, rel=1e-9)


def test_iid_stops_on_the_holdout(tmp_path):
    matrix, labels = random_rows(600, 2000, 5, 0.02)  # noise: training longer does not help
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=1e-3, algorithm="sgd-r", holdout=0.3, max_epochs=200))
    assert result.stopped_by == "holdout"
    assert result.model.info.epochs < 200


def test_c_and_lambda_are_the_same_thing(tmp_path):
    matrix, labels = random_rows(300, 50, 4, 0.1)
    store = store_of(tmp_path, matrix, labels)
    one = train(store, TrainConfig(C=2.0, max_epochs=3))
    other = train(store, TrainConfig(lam=1 / (2.0 * 300), max_epochs=3))
    assert one.model.weights.tobytes() == other.model.weights.tobytes()


# --- what must not matter -----------------------------------------------------------------------


def certificate_of(store: Store, **options: object) -> tuple[bytes, list[dict[str, object]]]:
    result = train(store, TrainConfig(lam=0.005, max_epochs=6, tolerance=1e-6, **options))
    return result.model.weights.tobytes(), result.model.info.history


def test_chunks_and_threads_do_not_matter(tmp_path):
    matrix, labels = random_rows(1500, 400, 6)
    found = []
    for chunk_size in (1 << 20, 5000, 2100):
        store = store_of(tmp_path, matrix, labels, chunk_size=chunk_size)
        for sampling in ("permutation", "sequential"):
            found.append((sampling, certificate_of(store, sampling=sampling, threads=1)))
            found.append((sampling, certificate_of(store, sampling=sampling, threads=3)))
    assert len(store.manifest.chunks) > 5
    for sampling in ("permutation", "sequential"):
        same = [result for name, result in found if name == sampling]
        assert all(result == same[0] for result in same)


def test_windows_do_not_matter_where_the_order_is_the_same(tmp_path):
    matrix, labels = random_rows(1500, 400, 6)
    store = store_of(tmp_path, matrix, labels, chunk_size=2100)
    weights, history = certificate_of(store, sampling="sequential")
    for memory in (all_memory(store) - 1, least_memory(store)):
        found_weights, found_history = certificate_of(store, sampling="sequential", memory=memory)
        assert found_weights == weights
        assert windows_of(store, memory) > 1
        for found, entry in zip(found_history, history, strict=True):
            for key, value in entry.table().items():
                if key in ("gap", "estimated_gap"):
                    continue  # the exact objective, on which they depend, is added up window by window
                assert found.table()[key] == (pytest.approx(value, rel=1e-13) if key == "primal" and value else value)


def test_small_windows_still_certify(tmp_path):
    matrix, labels = random_rows(1500, 100, 6)
    store = store_of(tmp_path, matrix, labels, chunk_size=2100, shuffle=True)
    result = train(store, TrainConfig(lam=0.02, tolerance=0.01, memory=least_memory(store)))
    assert result.windows == len(store.manifest.chunks) > 3
    assert result.converged
    assert result.model.info.certificate.lower_bound <= liblinear_optimum(matrix, labels, 0.02) * (1 + 1e-7)


def test_the_holdout_is_always_the_same_and_never_trained_on(tmp_path):
    matrix, labels = random_rows(2000, 300, 7)
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=0.01, holdout=0.25, tolerance=1e-3, max_epochs=300))

    def splitmix(row: int) -> float:
        word = (row + 1) * 0x9E3779B97F4A7C15 % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return (word ^ word >> 31) / 2**64

    held = np.array([splitmix(row) < 0.25 for row in range(2000)])
    assert 0.2 < held.mean() < 0.3
    kept, kept_labels = matrix[~held], labels[~held]
    found = result.model.info.certificate
    assert found.primal == pytest.approx(svm_objective(result.model.weights, kept, kept_labels, 0.01), rel=1e-9)
    assert found.lower_bound <= liblinear_optimum(kept, kept_labels, 0.01) * (1 + 1e-7)
    scores = matrix[held].astype(np.float64) @ result.model.weights
    assert result.holdout.error == pytest.approx(((scores > 0) != (labels[held] > 0)).mean())
    assert result.holdout.loss == pytest.approx(np.maximum(0, 1 - labels[held] * scores).mean())


def test_warm_start_is_certified_and_helps(tmp_path):
    matrix, labels = random_rows(1500, 100, 8)
    store = store_of(tmp_path, matrix, labels)
    good = train(store, TrainConfig(lam=0.01, tolerance=1e-3, max_epochs=300)).model
    config = TrainConfig(lam=0.01, max_epochs=4, tolerance=1e-7, coefficient=1e9)
    again, cold = train(store, config, warm_start=good), train(store, config)
    best = liblinear_optimum(matrix, labels, 0.01)
    for entry in again.model.info.history:
        assert entry.lower_bound <= best * (1 + 1e-7)
    assert again.model.info.history[0].primal < cold.model.info.history[0].primal
    with pytest.raises(UsageError, match="algorithm=sdca does not support warm_start"):
        train(store, TrainConfig(lam=0.01, algorithm="sdca"), warm_start=good)
    bad = Model(good.weights * -30, good.info)
    for entry in train(store, config, warm_start=bad).model.info.history:
        assert entry.lower_bound <= best * (1 + 1e-7)


def test_balanced_class_weights(tmp_path):
    matrix, labels = random_rows(900, 60, 9, 0.1)
    labels = np.where(np.arange(900) % 6 == 0, 1, -1)
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=0.01, class_weight="balanced", tolerance=1e-3, max_epochs=500))
    weights = (900 / (2 * 750), 900 / (2 * 150))
    best = liblinear_optimum(matrix, labels, 0.01, weights)
    assert result.model.info.certificate.lower_bound <= best * (1 + 1e-7)
    assert result.model.info.certificate.primal == pytest.approx(best, rel=2e-3)


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_with_a_checkpoint(tmp_path, number):
    matrix, labels = random_rows(20_000, 2000, 10, 0.02)
    store = store_of(tmp_path, matrix, labels)
    words = ["train", store.path, "-o", "m", "--lambda", "1e-6", "--tolerance", "1e-9", "--max-epochs", "100000"]
    command = [sys.executable, "-m", "ooc_pegasos", *map(str, words), "--checkpoint", "c"]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    time.sleep(4)
    asked = time.monotonic()
    child.send_signal(number)
    _out, err = child.communicate(timeout=20)
    assert time.monotonic() - asked < 2
    assert child.returncode == 130, err
    assert "--resume" in err
    assert (tmp_path / "c" / "training.checkpoint").exists()
    assert not (tmp_path / "m").exists()


def test_resume_refuses_another_run(tmp_path):
    matrix, labels = random_rows(500, 50, 11)
    store = store_of(tmp_path, matrix, labels)
    place = tmp_path / "c"
    config = {"lam": 0.01, "max_epochs": 2, "tolerance": 1e-9, "checkpoint_epochs": 1}
    first = train(store, TrainConfig(**config), checkpoint=place)
    with pytest.raises(InputError, match="started with other options"):
        train(store, TrainConfig(**{**config, "seed": 1}), checkpoint=place, resume=True)
    with pytest.raises(InputError, match="started from another model"):
        train(store, TrainConfig(**config), checkpoint=place, resume=True, warm_start=first.model)
    longer = train(store, TrainConfig(**{**config, "max_epochs": 5}), checkpoint=place, resume=True)
    whole = train(store, TrainConfig(**{**config, "max_epochs": 5}))
    assert longer.model.weights.tobytes() == whole.model.weights.tobytes()
    other = store_of(tmp_path, matrix, -labels)
    with pytest.raises(InputError, match="started on another store"):
        train(other, TrainConfig(**config), checkpoint=place, resume=True)
    with pytest.raises(UsageError, match="checkpoint=DIR"):
        train(store, TrainConfig(**config), resume=True)
    path = place / "training.checkpoint"
    content = path.read_bytes()
    rng = np.random.default_rng(12)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError):
            train(store, TrainConfig(**config), checkpoint=place, resume=True)


# --- models -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """(model, the rows it was trained on)"""
    matrix, labels = random_rows(60, 5, 3, 0.6)
    store = store_of(tmp_path_factory.mktemp("small"), matrix, labels)
    return train(store, TrainConfig(lam=0.01, loss="logistic")).model, matrix


def test_models_score_whatever_is_a_matrix(small_model):
    model, matrix = small_model
    x = matrix.toarray()
    scores = x.astype(np.float64) @ model.weights
    forms = [matrix.asformat(kind) for kind in ("csc", "coo", "lil", "bsr", "dok", "dia")]
    forms += [sp.csr_array(matrix), sp.coo_array(matrix), x, x.tolist(), x.astype(np.longdouble), pd.DataFrame(x)]
    wider = np.hstack([x, np.ones((60, 2), np.float32)])  # by features it does not know
    for rows in [*forms, wider, sp.csr_matrix(wider)]:
        np.testing.assert_allclose(model.decision_function(rows), scores, rtol=1e-12, atol=1e-12)
        assert np.array_equal(model.predict(rows), np.where(scores > 0, 1, -1))
        np.testing.assert_allclose(model.predict_proba(rows)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-9)
    assert len(model.predict(np.zeros((0, 5)))) == 0
    assert len(model.predict(sp.csr_matrix((3, 5)))) == 3


@pytest.mark.parametrize("bias", ["none", "feature"])
@pytest.mark.parametrize("columns", [0, 1, 4])
def test_models_refuse_a_matrix_with_too_few_columns(tmp_path, bias, columns):
    matrix, labels = random_rows(60, 5, 3, 0.6)
    store = store_of(tmp_path, matrix, labels)
    model = train(store, TrainConfig(lam=0.01, loss="logistic", bias=bias)).model
    told = f"memory: a matrix of {columns} columns, but the model has 5 features; give it all columns"
    x = matrix.toarray()[:, :columns]
    for rows in (x, x.tolist(), sp.csr_matrix(x), pd.DataFrame(x)):
        for score in (model.predict, model.decision_function, model.predict_proba):
            with pytest.raises(InputError, match=told):
                score(rows)
    assert len(model.predict(matrix)) == 60


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.nan, "^memory: row 3: the value nan in column 1 is not finite; leave out the row or correct it$"),
        (np.inf, "row 3: the value inf in column 1 is not finite"),
        (-np.inf, "row 3: the value -inf in column 1 is not finite"),
        (1e39, r"row 3: the value 1e\+39 in column 1 is too large for float32; scale the data"),
    ],
)
def test_models_score_finite_values_alone(small_model, value, told):
    model, matrix = small_model
    rows = matrix.astype(np.float64).toarray()
    rows[2, 1] = value
    for form in (rows, rows.tolist(), sp.csr_matrix(rows), sp.coo_matrix(rows), pd.DataFrame(rows)):
        for score in (model.predict, model.decision_function, model.predict_proba):
            with pytest.raises(InputError, match=told):
                score(form)
    unknown = np.hstack([matrix.toarray(), rows[:, 1:2]])  # also where no weight is
    with pytest.raises(InputError, match=told.replace("column 1", "column 5")):
        model.predict(unknown)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([1.0, 2.0], r"rows of shape \(2,\); give a matrix"),
        (np.ones(5), r"rows of shape \(5,\); give a matrix"),
        (sp.coo_array([1.0, 2.0]), "give a matrix"),
        ([[1.0, 2.0], [1.0]], "inhomogeneous.* of one length"),
        ("words", "give a matrix"),
        (None, "give a matrix"),
        ([["a", "b"]], "give numbers"),
        (pd.DataFrame({"a": ["x"]}), "give numbers"),
        (np.ones((2, 5), complex), "give numbers"),
        (np.ma.masked_equal(np.eye(5), 0), "some values are masked"),
    ],
)
def test_models_refuse_what_is_no_matrix(small_model, rows, told):
    for score in (small_model[0].predict, small_model[0].decision_function, small_model[0].predict_proba):
        with pytest.raises(InputError, match=told):
            score(rows)


def test_models_of_tables_take_columns_by_their_names(tmp_path):
    frame = pd.DataFrame({"a": np.arange(20.0), "b": np.ones(20), "y": np.tile([0, 1], 10)})
    store = Store.from_pandas(frame, tmp_path / "s", ConvertConfig(label="y", shuffle=False))
    model = train(store, TrainConfig(lam=0.1)).model
    assert model.predict(frame[["b", "a"]]).tolist() == model.predict(store.to_scipy()[0]).tolist()
    with pytest.raises(InputError, match="a"):
        model.predict(frame[["b"]])


def test_models_come_back_alike_and_damage_is_noticed(tmp_path):
    matrix, labels = random_rows(500, 50, 13)
    store = store_of(tmp_path, matrix, labels)
    result = train(store, TrainConfig(lam=0.01, max_epochs=2))
    result.model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.weights.tobytes() == result.model.weights.tobytes()
    assert loaded.info == result.model.info
    scores = matrix.astype(np.float64) @ result.model.weights
    np.testing.assert_allclose(loaded.decision_function(matrix), scores)
    assert np.array_equal(loaded.predict(matrix), np.where(scores > 0, 1, -1))
    assert loaded.info.history[-1].epoch == 2
    assert result.history.num_rows == len(result.model.info.history)
    content = (tmp_path / "m").read_bytes()
    rng = np.random.default_rng(14)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        (tmp_path / "m").write_bytes(damaged)
        with pytest.raises(OocPegasosError):
            Model.load(tmp_path / "m")
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        (tmp_path / "m").write_bytes(content[:cut])
        with pytest.raises(CorruptFileError):
            Model.load(tmp_path / "m")


def test_the_model_is_plain_arrow(tmp_path):
    import pyarrow as pa

    matrix, labels = random_rows(500, 50, 13)
    result = train(store_of(tmp_path, matrix, labels), TrainConfig(lam=0.01, max_epochs=2))
    result.model.save(tmp_path / "m")
    table = pa.ipc.open_file((tmp_path / "m").read_bytes()).read_all()
    dense = np.zeros(50)
    dense[table["feature"].to_numpy()] = table["weight"].to_numpy()
    assert np.array_equal(dense, result.model.weights)
    info = json.loads(json.loads(table.schema.metadata[b"ooc-pegasos"])["info"])
    assert info["lam"] == 0.01
    assert info["labels"]["classes"] == ["-1", "1"]


@pytest.mark.parametrize(
    "options",
    [
        {"lam": 1.0, "C": 1.0},
        {"lam": "1:2"},
        {"lam": (1.0, 1.0)},
        {"lam": "1,2", "holdout": 0.0},
        {"lam": 1.0, "folds": 1},
        {"lam": 1.0, "folds": 3, "holdout": 0.1},
        {"lam": 1.0, "algorithm": "sdca", "batch_size": 2},
        {"lam": 1.0, "loss_parameter": -1.0},
        {"lam": 1.0, "bias_scale": 0.0},
        {"lam": 0.0},
        {"lam": float("nan")},
        {"lam": 1.0, "tolerance": -1.0},
        {"lam": 1.0, "tolerance": 1.0},
        {"lam": 1.0, "bias_scale": 2.0},
        {"lam": 1.0, "bias": "feature", "bias_scale": 1e30},
        {"lam": (1.0, 0.1), "folds": 3, "calibrate": "platt"},
        {"lam": 1.0, "holdout": 1.0},
        {"lam": 1.0, "delay": -1.0},
        {"lam": 1.0, "algorithm": "sgd-m", "batch_size": 4},
        {"lam": 1.0, "class_weight": (1.0,)},
        {"lam": 1.0, "class_weight": (1.0, 0.0)},
        {"lam": 1.0, "max_epochs": 0},
    ],
)
def test_contradictions(options):
    with pytest.raises(UsageError):
        TrainConfig(**options)


def test_other_labels_are_refused(tmp_path):
    matrix, _labels = random_rows(90, 50, 13)
    store = store_of(tmp_path, matrix, np.arange(90) / 7, classes=(), task="regression")
    with pytest.raises(UsageError, match="loss=hinge is for binary labels, the store's are for regression"):
        train(store, TrainConfig(lam=1.0, loss="hinge"))
    store = store_of(tmp_path, matrix, np.arange(90) % 2, classes=())
    with pytest.raises(UsageError, match="loss=huber is for regression labels, the store's are for binary"):
        train(store, TrainConfig(lam=1.0, loss="huber"))


# --- what once went wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("slices", [1, 3, 7])
def test_resume_keeps_the_windows_of_the_run(tmp_path, slices):
    """Windows decide the order of rows: with others, rows would be skipped and the bound would be wrong."""
    matrix, labels = random_rows(1500, 60, 20)
    store = store_of(tmp_path, matrix, labels, chunk_size=2100)
    memory = least_memory(store)
    small = {"lam": 0.01, "memory": memory, "max_epochs": 5, "tolerance": 1e-9}
    whole = train(store, TrainConfig(**small))
    with interrupted_after(slices):
        train(store, TrainConfig(**small), checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match=f"memory={memory}, which determines the order"):
        train(store, TrainConfig(**{**small, "memory": 10**9}), checkpoint=tmp_path / "c", resume=True)
    again = train(store, TrainConfig(**{**small, "memory": None}), checkpoint=tmp_path / "c", resume=True)
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert again.model.info == whole.model.info


@pytest.mark.parametrize("batch_size", [2, 7, 64])
def test_batches_stop_when_single_rows_do(tmp_path, batch_size):
    matrix, labels = random_rows(1500, 60, 20)
    store = store_of(tmp_path, matrix, labels)
    single = train(store, TrainConfig(lam=0.02, algorithm="sgd-s"))
    batches = train(store, TrainConfig(lam=0.02, batch_size=batch_size))
    assert batches.converged
    assert batches.model.info.epochs <= single.model.info.epochs + 3


def test_holdouts_without_holdout_or_training_rows(tmp_path):
    matrix, labels = random_rows(40, 9, 21, 0.5)
    store = store_of(tmp_path, matrix, labels)
    with pytest.raises(UsageError, match="selects no holdout rows"):
        train(store, TrainConfig(lam=0.1, holdout=1e-9))
    with pytest.raises(UsageError, match="leaves no training rows"):
        train(store, TrainConfig(lam=0.1, holdout=1 - 1e-9))


def test_resume_with_fewer_epochs_than_are_done(tmp_path):
    matrix, labels = random_rows(300, 30, 22)
    store = store_of(tmp_path, matrix, labels)
    config = {"lam": 1e-3, "tolerance": 1e-9, "checkpoint_epochs": 1}
    train(store, TrainConfig(**config, max_epochs=4), checkpoint=tmp_path / "c")
    result = train(store, TrainConfig(**config, max_epochs=2), checkpoint=tmp_path / "c", resume=True)
    exact = svm_objective(result.model.weights, matrix, labels, 1e-3)
    assert result.model.info.certificate.primal == pytest.approx(exact, rel=1e-9)


def test_an_epoch_that_was_begun_is_ended_though_fewer_are_wanted(tmp_path):
    store = store_of(tmp_path, *random_rows(300, 50, seed=4))
    config = {"lam": 1e-3, "tolerance": 1e-9, "threads": 1, "checkpoint_minutes": 1e-9}
    seen = []

    def after(rows: int) -> None:
        seen.append(rows)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        around_present(patched, after)
        with pytest.raises(KeyboardInterrupt):
            train(store, TrainConfig(**config, max_epochs=5), checkpoint=tmp_path / "c")
    result = train(store, TrainConfig(**config, max_epochs=1), checkpoint=tmp_path / "c", resume=True)
    assert (result.stopped_by, result.model.info.epochs) == ("epochs", 3)


def test_out_of_time_leaves_a_checkpoint_and_a_measured_model(tmp_path):
    matrix, labels = random_rows(3000, 300, 23)
    store = store_of(tmp_path, matrix, labels)
    config = TrainConfig(lam=1e-5, tolerance=1e-12, max_seconds=0.3, max_epochs=10**9)
    result = train(store, config, checkpoint=tmp_path / "c")
    assert result.stopped_by == "seconds"
    assert (tmp_path / "c" / "training.checkpoint").exists()
    exact = svm_objective(result.model.weights, matrix, labels, 1e-5)
    assert result.model.info.certificate.primal == pytest.approx(exact, rel=1e-9)


def test_one_run_a_checkpoint_folder(tmp_path):
    from ooc_pegasos.errors import LockedError
    from ooc_pegasos.util.locks import locked

    matrix, labels = random_rows(40, 9, 21, 0.5)
    store = store_of(tmp_path, matrix, labels)
    with locked(tmp_path / "c" / "lock", "c"), pytest.raises(LockedError):
        train(store, TrainConfig(lam=0.1), checkpoint=tmp_path / "c")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file"):
        train(store, TrainConfig(lam=0.1), checkpoint=tmp_path / "file")


def test_the_log_of_a_resumed_run_has_every_epoch_once(tmp_path):
    matrix, labels = random_rows(300, 30, 22)
    store = store_of(tmp_path, matrix, labels)
    config = {"lam": 1e-3, "tolerance": 1e-9, "max_epochs": 6}
    train(store, TrainConfig(**config, checkpoint_epochs=4), checkpoint=tmp_path / "c", log=tmp_path / "log")
    train(store, TrainConfig(**config), checkpoint=tmp_path / "c", log=tmp_path / "log", resume=True)
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "log").read_text().splitlines()]
    assert epochs == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("options", [{"C": 1e308}, {"C": 1e-310}, {"lam": 1e308}, {"lam": 1e-300}])
def test_extreme_values(tmp_path, options):
    matrix, labels = random_rows(40, 9, 21, 0.5)
    with pytest.raises(UsageError, match="out of range"):
        train(store_of(tmp_path, matrix, labels), TrainConfig(**options))


def test_values_that_no_lambda_suits(tmp_path):
    """The message does not suggest another lambda if none was given."""
    matrix, labels = random_rows(400, 9, 21, 0.5)
    store = store_of(tmp_path, matrix * np.float32(1e30), labels)
    with pytest.raises(UsageError, match=r"scale the data, whose rows have a mean norm of \d.*e\+30"):
        train(store, TrainConfig())
    result = train(store, TrainConfig(lam=1.0, max_epochs=9))
    assert any("scale the data" in note for note in result.notes)
    assert result.model.info.certificate.lower_bound <= result.model.info.certificate.primal


@pytest.mark.slow
def test_targets_that_cannot_be_squared(tmp_path):
    """The standard error of the holdout losses would not be finite."""
    matrix, labels = random_rows(400, 9, 21, 0.5)
    store = store_of(tmp_path, matrix, labels * 1e200, task="regression", classes=())
    with pytest.raises(InputError, match="scale the data"):
        train(store, TrainConfig())
    train(store, TrainConfig(lam=1.0, loss="absolute")).model.save(tmp_path / "m")


def test_more_weights_than_memory(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:1\n-1 4000000000:1\n")
    store = convert([str(tmp_path / "in.svm")], tmp_path / "store")
    with pytest.raises(UsageError, match=r"4,096 vectors of 4,000,000,000 weights take .* GB are free; give fewer"):
        train(store, TrainConfig(lam="1e-3:1:4096", folds=None, holdout=0.5))


def test_a_batch_larger_than_the_data(tmp_path):
    matrix, labels = random_rows(40, 9, 21, 0.5)
    result = train(store_of(tmp_path, matrix, labels), TrainConfig(lam=0.1, batch_size=10**30, max_epochs=3))
    assert result.model.info.epochs == 3


def test_rows_without_any_feature(tmp_path):
    from ooc_pegasos.scoring.evaluate import evaluate

    matrix = sp.csr_matrix((6, 0), dtype=np.float32)
    source = tmp_path / "in.svm"
    source.write_text("1\n-1\n1\n-1\n1\n1\n")
    store = convert([str(source)], tmp_path / "store")
    result = train(store, TrainConfig(lam=0.1))
    assert result.model.info.certificate.primal == pytest.approx(1.0, rel=1e-12)
    assert evaluate(result.model, source)["rows"] == matrix.shape[0]


@pytest.mark.parametrize(
    ("chosen", "weight", "task", "reason"),
    [
        ({"class_weight": (1.0, 2.0)}, None, "binary", "--class-weight"),
        ({}, 9.0, "binary", "rows that weigh more than 1"),
        ({}, None, "regression", "real targets"),
        ({}, None, "binary", None),
        ({}, 0.5, "binary", None),
    ],
)
def test_a_ball_that_may_be_too_small_is_noted(tmp_path, chosen, weight, task, reason):
    rows, target = random_rows(300, 20, 5, 0.5)
    weights = None if weight is None else np.full(300, weight)
    target = 10 * rows.toarray()[:, 0] if task == "regression" else target
    store = Store.from_scipy(rows, target, tmp_path / "s", weights=weights, config=ConvertConfig(task=task))
    config = TrainConfig(lam=0.1, algorithm="pegasos", sampling="permutation", project=True, max_epochs=200, **chosen)
    found = train(store, config)
    best = train(store, TrainConfig(lam=0.1, tolerance=1e-4, algorithm="sdca", **chosen)).model
    outside = best.weights @ best.weights > 1.02 / 0.1
    assert not outside or reason  # else nobody would know
    if reason:
        assert [note for note in found.notes if reason in note and "outside the ball" in note]
    else:
        assert found.notes == []
        assert found.model.info.certificate.primal <= 1.02 * best.info.certificate.primal


def test_a_tolerance_below_rounding_errors(tmp_path, oocpeg):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((300, 20)).astype(np.float32)
    labels = np.where(rows[:, 0] + rng.standard_normal(300) > 0, 1, -1)
    store_of(tmp_path, sp.csr_matrix(rows), labels)
    words = ["train", "store", "-o", "m", "--lambda", "1e-2", "--loss", "logistic"]
    done = oocpeg(*words, "--tolerance", "1e-15", code=4)
    assert "float64 is not enough here" in done.stdout
    assert (tmp_path / "m").exists()
    found = json.loads(oocpeg(*words, "--tolerance", "1e-12", "--json", "--force").stdout)
    assert found["stopped_by"] == "tolerance"
    assert 0 <= found["gap"] <= found["relative_accuracy"] <= 1e-12


def test_the_shortest_call(tmp_path):
    """A path, no options; the certificate is in the result."""
    (tmp_path / "rows.svm").write_text("1 1:1\n-1 2:1\n" * 40)
    store = convert(tmp_path / "rows.svm", tmp_path / "store")
    result = train(tmp_path / "store")
    certificate = result.model.info.certificate
    assert (result.primal, result.lower_bound, result.gap) == (
        certificate.primal,
        certificate.lower_bound,
        certificate.gap,
    )
    assert result.epochs == result.model.info.epochs
    assert train(store).model.weights.tobytes() == result.model.weights.tobytes()
