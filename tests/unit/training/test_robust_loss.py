"""The default loss of real targets where some are wrong, and where they are skewed."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import HuberRegressor, LinearRegression

from ooc_pegasos import Store, TrainConfig, train
from ooc_pegasos.training.default_loss import ROBUST_NOTE
from support.stores import interrupted_after


def made(kind, rows, seed=0):
    """(rows, targets with what is wrong, targets without)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 8)).astype(np.float32)
    clean = x @ np.linspace(-1, 2, 8) + 0.3 * rng.standard_normal(rows)
    if kind == "skewed":
        clean = clean + rng.lognormal(0, 1, rows)
    given = clean.copy()
    if kind == "wrong":
        given[rng.random(rows) < 0.05] *= 20
    if kind == "shifted":
        given[rng.random(rows) < 0.02] += 100
    return x, given, clean


def share_explained(targets, found):
    return 1 - np.square(targets - found).mean() / targets.var()


@pytest.mark.parametrize("kind", ["wrong", "shifted"])
@pytest.mark.parametrize("rows", [500, 12_000])
def test_wrong_targets_have_little_influence(tmp_path, kind, rows):
    x, given, _clean = made(kind, rows)
    result = train(Store.from_scipy(x, given, tmp_path / "s"))
    assert result.model.info.loss == "huber"
    assert ROBUST_NOTE in result.notes
    assert result.converged
    new, _given, targets = made("none", 4000, 1)
    best = share_explained(targets, HuberRegressor(max_iter=1000).fit(x, given).predict(new))
    assert share_explained(targets, result.model.decision_function(new)) > best - 0.005


@pytest.mark.parametrize("kind", ["skewed", "none"])
def test_other_targets_are_trained_with_the_squared_loss(tmp_path, kind):
    x, given, _clean = made(kind, 6000)
    result = train(Store.from_scipy(x, given, tmp_path / "s"))
    assert result.model.info.loss == "squared"
    assert ROBUST_NOTE not in result.notes
    new, _given, targets = made(kind, 4000, 1)
    best = share_explained(targets, LinearRegression().fit(x, given).predict(new))
    assert share_explained(targets, result.model.decision_function(new)) > best - 0.005


@pytest.mark.parametrize("options", [{"loss": "squared"}, {"lam": 1e-3}, {"lam": (1e-2, 1e-3)}, {"select_by": "loss"}])
def test_a_loss_or_lambda_that_was_asked_for_is_kept(tmp_path, options):
    x, given, _clean = made("wrong", 500)
    assert train(Store.from_scipy(x, given, tmp_path / "s"), TrainConfig(**options)).model.info.loss == "squared"


def test_the_parameter_follows_the_size_of_the_errors(tmp_path):
    x, given, _clean = made("wrong", 2000)
    parameters = []
    for unit in (1e-6, 1.0, 1e6):
        info = train(Store.from_scipy(x, given * unit, tmp_path / f"{unit}")).model.info
        assert info.loss == "huber"
        parameters.append(info.parameter / unit)
    assert parameters == pytest.approx([parameters[1]] * 3, rel=0.2)


@pytest.mark.parametrize("kind", ["wrong", "skewed"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.8, 0.97])
def test_an_interrupted_search_is_resumed(tmp_path, kind, share):
    x, given, _clean = made(kind, 500)
    store, config = Store.from_scipy(x, given, tmp_path / "s"), TrainConfig(checkpoint_epochs=1)
    wanted = train(store, config)
    with interrupted_after(1 + int(share * (len(wanted.costs) - 1))):
        train(store, config, checkpoint=tmp_path / "c")
    result = train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert result.model.encode() == wanted.model.encode()
