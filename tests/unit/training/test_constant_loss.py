"""Real targets: the model is compared with the mean of the targets as an answer to all rows."""

import json

import numpy as np
import pytest

from ooc_pegasos import Store, TrainConfig, fit, train
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.reporting.text import training_lines

LOSSES = {
    "squared": (None, lambda error: error**2 / 2),
    "absolute": (None, np.abs),
    "huber": (0.5, lambda error: np.where(np.abs(error) < 0.5, error**2 / 2, 0.5 * (np.abs(error) - 0.25))),
    "epsilon-insensitive": (0.2, lambda error: np.maximum(np.abs(error) - 0.2, 0)),
}


def targets_of(x, noise):
    return x @ [2.0, -1.0, 0.0] + 5 + noise * np.random.default_rng(1).standard_normal(len(x))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("options", [{}, {"lam": 0.01, "holdout": 0.3}])
def test_the_loss_of_the_mean(tmp_path, loss, options):
    x = np.random.default_rng(0).standard_normal((600, 3)).astype(np.float32)
    y = targets_of(x, 0.5)
    parameter, of_errors = LOSSES[loss]
    config = TrainConfig(loss=loss, loss_parameter=parameter, bias="free", **options)
    result = train(Store.from_scipy(x, y, tmp_path / "s"), config)
    assert result.constant_loss == pytest.approx(of_errors(y - y.mean()).mean(), rel=1e-5)
    shown = "\n".join(training_lines(result, "m"))
    assert f"always answering the mean: mean loss {result.constant_loss:.4g}, which is reduced by " in shown
    assert "NO BETTER" not in shown


def test_the_share_is_r2_with_the_squared_loss(tmp_path):
    x = np.random.default_rng(0).standard_normal((4000, 3)).astype(np.float32)
    y = targets_of(x, 0.5)
    result = train(Store.from_scipy(x, y, tmp_path / "s"))
    errors = y - result.model.decision_function(x)
    assert 1 - result.holdout.loss / result.constant_loss == pytest.approx(1 - errors.var() / y.var(), abs=0.01)


def test_a_model_that_knows_nothing_is_no_success(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 40)), rng.standard_normal(60)
    with pytest.warns(UserWarning, match="^no better than the mean of the targets; look at the features") as told:
        result = train(Store.from_scipy(x, y, tmp_path / "s"), TrainConfig(lam=1e-6, holdout=0.3, bias="free"))
    assert [one.filename for one in told] == [__file__]
    assert repr(result).endswith(", no better than the mean of the targets)")
    assert "no better than the mean" in result._repr_html_()
    assert "NO BETTER than the mean of the targets" in "\n".join(training_lines(result, "m"))


@pytest.mark.parametrize("rare", [False, True])
def test_python_warns_of_a_model_that_predicts_one_class(tmp_path, recwarn, rare):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 3)), (rng.random(400) < (0.05 if rare else 0.3)).astype(int)
    config = TrainConfig(lam=0.1, holdout=0.5, loss="hinge", bias="feature")
    advice = "train with class_weight=balanced, or with loss=logistic" if rare else "try another lambda"
    with pytest.warns(UserWarning, match=f"^no better than always answering 0; {advice}") as told:
        result = fit(x, y, config)
    assert [one.filename for one in told] == [__file__]
    assert np.unique(result.model.predict(x)).tolist() == [0.0]
    assert result.holdout.error == result.constant_error
    assert [str(one.message) for one in told] == result.warnings
    assert "--class-weight balanced" in (shown := "\n".join(training_lines(result, "m"))) or not rare, shown
    train(Store.from_scipy(x, y, tmp_path / "s"), config, progress=TrainingProgress())  # displays the result itself
    assert not recwarn.list
    assert not fit(x, (x[:, 0] > 0).astype(int), config).warnings


def test_classes_and_runs_without_holdout_rows_have_none(tmp_path, oocpeg):
    x = np.random.default_rng(0).standard_normal((60, 3))
    assert train(Store.from_scipy(x, np.arange(60) % 2, tmp_path / "c")).constant_loss is None
    store = Store.from_scipy(x, x[:, 0], tmp_path / "s")
    assert train(store, TrainConfig(lam=0.1)).constant_loss is None
    found = json.loads(oocpeg("train", "s", "-o", "m", "--json").stdout)
    assert found["constant_loss"] > found["holdout"]["loss"]
