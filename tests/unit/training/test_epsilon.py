"""The default epsilon of the epsilon-insensitive loss, which follows the size of the targets."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVR

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, train
from support.rows import svmlight_text
from support.stores import interrupted_after

LOSS = "epsilon-insensitive"


def rows_and_targets(rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 8)).astype(np.float32)
    y = x @ np.linspace(-1, 2, 8) + 0.5 * rng.standard_normal(rows)
    return x, (y - y.mean()) / y.std()


def explained(model, x, y):
    return 1 - np.square(y - model.decision_function(x)).mean() / y.var()


@pytest.fixture(scope="module")
def store_of(tmp_path_factory):
    """Stores of the same targets in other units, by unit and offset."""
    made, (x, y) = {}, rows_and_targets(2000, 0)
    for unit, offset in ((1.0, 0.0), (1e6, 0.0), (1e-6, 0.0), (1.0, 1000.0)):
        path = tmp_path_factory.mktemp("epsilon") / "s"
        made[unit, offset] = Store.from_scipy(x, unit * (y + offset), path)
    return made


@pytest.mark.parametrize(
    ("unit", "offset", "algorithm"),
    [
        *((1e6, 0.0, "sdca"), (1e-6, 0.0, "sdca"), (1.0, 1000.0, "auto")),
        *(pytest.param(unit, 0.0, "sgd-s", marks=pytest.mark.slow) for unit in (1e6, 1e-6)),
    ],
)
def test_models_do_not_depend_on_the_unit_of_targets(store_of, unit, offset, algorithm):
    config = TrainConfig(loss=LOSS, algorithm=algorithm, tolerance=0.03 if algorithm == "sgd-s" else 0.005)
    x, y = rows_and_targets(1000, 1)
    wanted = train(store_of[1.0, 0.0], config)
    found = train(store_of[unit, offset], config)
    deviation = store_of[unit, offset].to_scipy()[1].astype(np.float64).std()
    assert found.model.info.parameter == pytest.approx(0.1 * deviation, rel=1e-6)
    assert found.converged
    best = explained(wanted.model, x, y)
    assert best > 0.75
    assert abs(explained(found.model, x, unit * (y + offset)) - best) < 0.01
    known = LinearSVR(epsilon=0.1, C=1.0, max_iter=100_000, random_state=0).fit(*rows_and_targets(2000, 0))
    assert best > 1 - np.square(y - known.predict(x)).mean() / y.var() - 0.01


def test_an_epsilon_that_is_given_is_used(store_of):
    for epsilon in (0.0, 0.1, 5e4):
        config = TrainConfig(loss=LOSS, loss_parameter=epsilon, lam=1e-9, bias="free", algorithm="sdca")
        assert train(store_of[1e6, 0.0], config).model.info.parameter == epsilon


def test_equal_and_huge_targets(tmp_path):
    x = rows_and_targets(50, 0)[0]
    same = Store.from_scipy(x, np.full(50, 7.25), tmp_path / "a", config=ConvertConfig(task="regression"))
    same = train(same, TrainConfig(loss=LOSS, lam=1.0))
    assert same.model.info.parameter == 0.0
    targets, config = np.where(x[:, 0] > 0, 1e200, -1e200), ConvertConfig(task="regression")
    huge = Store.from_scipy(x, targets, tmp_path / "b", config=config)
    assert train(huge, TrainConfig(loss=LOSS, lam=1.0, max_epochs=1)).model.info.parameter == pytest.approx(1e199)


def test_the_certificate_and_the_model_file_have_the_epsilon(store_of, tmp_path):
    store, unit = store_of[1e6, 0.0], 1e6
    train(store, TrainConfig(loss=LOSS, lam=1e-9, bias="free", algorithm="sdca")).model.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    x, y = store.to_scipy()
    short = np.abs(y - model.decision_function(x)) - 0.1 * y.std()
    primal = 0.5e-9 * np.square(model.weights).sum() + np.maximum(short, 0).mean()
    assert model.info.certificate.primal == pytest.approx(primal, rel=1e-6)
    assert model.info.parameter == pytest.approx(0.1 * unit, rel=1e-6)


@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_an_interrupted_run_has_the_same_epsilon(store_of, tmp_path, algorithm):
    store = store_of[1e6, 0.0]
    config = TrainConfig(loss=LOSS, lam=1e-8, algorithm=algorithm, checkpoint_epochs=1, tolerance=1e-3, max_epochs=30)
    wanted = train(store, config)
    with interrupted_after(4):
        train(store, config, checkpoint=tmp_path / "c")
    assert train(store, config, checkpoint=tmp_path / "c", resume=True).model.encode() == wanted.model.encode()


def test_the_output_has_the_epsilon(tmp_path, oocpeg):
    x, y = rows_and_targets(300, 0)
    (tmp_path / "in.svm").write_text(svmlight_text(sp.csr_matrix(x), 1000 * y))
    oocpeg("convert", "in.svm", "-o", "s", "--task", "regression")
    wanted = 0.1 * Store.open(tmp_path / "s").to_scipy()[1].std()
    words = f"epsilon-insensitive loss with parameter {wanted:.6g}, the error that costs nothing"
    assert f"{words}, 0.1 times the standard deviation" in oocpeg("train", "s", "-o", "m", "--loss", LOSS).stdout
    assert words in oocpeg("info", "m").stdout
    assert json.loads(oocpeg("info", "m", "--json").stdout)["loss_parameter"] == pytest.approx(wanted)
    given = oocpeg("train", "s", "-o", "n", "--loss", LOSS, "--loss-parameter", "12", "--json").stdout
    assert json.loads(given)["loss_parameter"] == 12
    assert "parameter 12, the error that costs nothing\n" in oocpeg("info", "n").stdout
    assert json.loads(oocpeg("train", "s", "-o", "o", "--json").stdout)["loss_parameter"] is None
