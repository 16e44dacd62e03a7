"""The losses without a largest slope, squared and squared-hinge, against closed forms, scikit-learn and L-BFGS."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, train
from ooc_pegasos.errors import UsageError
from ooc_pegasos.proof.check import prove
from support import proof_checker
from support.optima import least_objective, primal
from support.rows import random_rows

ROWS = 400


@pytest.fixture(scope="module")
def rows():
    matrix, _labels = random_rows(ROWS, 30, 5, 0.3)
    rng = np.random.default_rng(6)
    score = matrix @ rng.standard_normal(30) + 1.5 + rng.standard_normal(ROWS)
    return matrix, score


def store_for(folder, matrix, labels, weights=None, **options):
    config = ConvertConfig(**{"task": "regression" if len(set(labels)) > 2 else "auto", "chunk_size": 4096} | options)
    return Store.from_scipy(matrix, labels, folder / "store", weights, config)


@pytest.mark.parametrize("bias", ["none", "feature", "free"])
@pytest.mark.parametrize("lam", [1.0, 1e-3])
@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (1e9, 0), (1e-6, 0), (1, 1000), (0, 0)])
def test_ridge_regression(rows, tmp_path, scale, shift, lam, bias):
    matrix, score = rows
    y = (score * scale + shift).astype(np.float64)
    store = store_for(tmp_path, matrix, y, task="regression")
    result = train(store, TrainConfig(lam=lam, loss="squared", bias=bias, tolerance=1e-5, max_epochs=2000))
    matrix, y = store.to_scipy()  # in the order of the store
    x = np.asarray(matrix.todense(), np.float64)
    x = x if bias != "feature" else np.hstack([x, np.ones((ROWS, 1))])
    best = Ridge(alpha=lam * ROWS, fit_intercept=bias == "free", solver="svd").fit(x, y)
    least = lam / 2 * float(best.coef_ @ best.coef_) + float(((best.predict(x) - y) ** 2).mean()) / 2
    found = result.model.info.certificate
    assert found.lower_bound <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= found.primal <= least * (1 + 2e-5) + 1e-300
    assert result.algorithm == "sdca"
    error = result.model.decision_function(matrix) - best.predict(x)
    assert np.abs(error).max() <= 0.02 * np.abs(y).max()


@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_squared_hinge(rows, tmp_path, lam):
    matrix, score = rows
    labels = np.where(score > 0, 1, -1)
    weights = np.random.default_rng(2).choice(np.array([0.1, 1, 3.7], np.float32), ROWS)
    store = store_for(tmp_path, matrix, labels, weights, shuffle=False)
    result = train(store, TrainConfig(lam=lam, loss="squared-hinge", tolerance=1e-5, max_epochs=5000))
    x = np.asarray(matrix.todense(), np.float64)
    c = weights.astype(np.float64)
    least = least_objective("squared-hinge", 0.0, x, labels, lam, c)
    found = result.model.info.certificate
    assert found.lower_bound <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= found.primal <= least * (1 + 2e-5)
    assert found.primal == pytest.approx(primal("squared-hinge", 0.0, x, labels, lam, c, result.model.weights))
    svm = LinearSVC(C=1 / (lam * ROWS), fit_intercept=False, tol=1e-8, max_iter=100_000)
    svm.fit(x, labels, sample_weight=c)
    np.testing.assert_allclose(result.model.weights, svm.coef_[0], atol=0.05 * abs(svm.coef_).max())


@pytest.mark.parametrize("loss", ["squared", "squared-hinge"])
@pytest.mark.parametrize("bias", ["feature", "free"])
def test_proofs(rows, tmp_path, loss, bias):
    matrix, score = rows
    store = store_for(tmp_path, matrix, score if loss == "squared" else np.where(score > 0, 1, -1))
    config = TrainConfig(lam=0.05, loss=loss, bias=bias, tolerance=1e-4)
    result = train(store, config, proof=tmp_path / "proof")
    result.model.save(tmp_path / "model")
    (found,) = prove(tmp_path / "model", store.path, tmp_path / "proof")
    objective, bound = proof_checker.check(tmp_path / "model", store.path, tmp_path / "proof")
    assert found.primal == pytest.approx(objective, rel=1e-12)
    assert found.lower_bound == pytest.approx(bound, rel=1e-10)
    assert found.primal == pytest.approx(result.model.info.certificate.primal, rel=1e-10)
    assert (objective - bound) / objective <= 1.1e-4


def test_several_models_are_those_alone(rows, tmp_path):
    """In panels, over windows, with classes; and the parameter, which the data determines, is not in the model."""
    matrix, score = rows
    store = store_for(tmp_path, matrix, score)
    same = {"loss": "squared", "holdout": 0.2, "max_epochs": 30, "tolerance": 0.005}
    together = train(store, TrainConfig(lam=(0.1, 0.01, 0.001), refit=False, **same))
    for number, lam in enumerate((0.1, 0.01, 0.001)):
        alone = train(store, TrainConfig(lam=lam, **same))
        assert together.models[number].history == alone.models[0].history
    assert together.model.info.parameter == 0.0
    together.model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").info.loss == "squared"
    classes = Store.from_scipy(matrix, np.digitize(score, [0.0, 2.0]), tmp_path / "classes")
    result = train(classes, TrainConfig(lam=0.01, loss="squared-hinge", memory=1 << 17))
    assert result.converged
    assert (result.model.predict(matrix) == np.digitize(score, [0.0, 2.0])).mean() > 0.6


def test_options_that_do_not_fit(rows, tmp_path, oocpeg):
    matrix, score = rows
    store = store_for(tmp_path, matrix, score)
    for options, message in (
        ({"algorithm": "sgd-s"}, "algorithm=sgd-s diverges with loss=squared, whose slope has no limit; choose"),
        ({"loss_parameter": 2.0}, "the squared loss has none"),
        ({"average": True}, "loss=squared needs dual coordinate ascent, which does not support average"),
        ({"bias": "batch", "batch_size": 8}, "loss=squared needs dual coordinate ascent, which does not support"),
    ):
        with pytest.raises(UsageError, match=message):
            train(store, TrainConfig(lam=0.1, loss="squared", **options))
    with pytest.raises(UsageError, match=r"sdca.*warm_start"):
        train(store, TrainConfig(lam=0.1, loss="squared"), warm_start=train(store, TrainConfig(lam=0.1)).model)
    done = oocpeg("train", store.path, "-o", "m", "--loss", "squared", "--lambda", "0.1", "--json")
    assert json.loads(done.stdout)["loss"] == "squared"
    report = json.loads(oocpeg("evaluate", "m", store.path, "--json").stdout)
    assert report["mse"] == pytest.approx(2 * report["loss"], rel=1e-6) if "mse" in report else True


def test_workers(rows, tmp_path, oocpeg):
    matrix, score = rows
    store = store_for(tmp_path, sp.csr_matrix(matrix), score)
    words = ["train", store.path, "-o", "m", "--loss", "squared", "--lambda", "0.05", "--scheduler", "local:2"]
    done = json.loads(oocpeg(*words, "--parts", "2", "--json").stdout)
    assert done["certified"]
    assert done["gap"] <= 0.01
