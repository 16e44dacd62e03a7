"""The default loss where the hinge loss gives the same answer to all rows."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from ooc_pegasos import Store, TrainConfig, train
from support.stores import interrupted_after


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    """Rows of which 4 % are positive, more of them where scores are high."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 6)).astype(np.float32)
    y = np.where(rng.random(4000) < 1 / (1 + np.exp(4 - x @ [1, 0.7, -0.5, 0, 0, 0.3])), 1, -1)
    return Store.from_scipy(x, y, tmp_path_factory.mktemp("rare") / "s"), x, y


def test_rare_classes_are_ranked(rare):
    store, x, y = rare
    result = train(store)
    assert result.model.info.loss == "logistic"
    assert "no lambda is better than always giving the same answer" in " ".join(result.notes)
    assert result.converged
    best = roc_auc_score(y, LogisticRegression().fit(x, y).decision_function(x))
    assert roc_auc_score(y, result.model.decision_function(x)) > best - 0.002


def noisy(rows, seed, hinge_is_right):
    """Rows that no model classifies well: with outliers on the wrong side, or with classes of unlike sizes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 6)).astype(np.float32)
    if hinge_is_right:
        y = np.where(x[:, 0] + 0.5 * rng.standard_normal(rows) > 0, 1, -1)
        far = rng.random(rows) < 0.1
        x[far] *= 6
        y[far] = np.where(x[far, 0] > 0, -1, 1)
    else:
        y = np.where(rng.random(rows) < 1 / (1 + np.exp(1.5 - x @ [0.9, 0.7, -0.5, 0, 0, 0.3])), 1, -1)
    return x, y


@pytest.mark.parametrize("hinge_is_right", [True, False])
def test_the_better_loss_is_kept_where_rows_are_noisy(tmp_path, hinge_is_right):
    x, y = noisy(6000, 0, hinge_is_right)
    store = Store.from_scipy(x, y, tmp_path / "s")
    result = train(store)
    other, errors = noisy(6000, 1, hinge_is_right), {}
    for loss in ("hinge", "logistic"):
        model = train(store, TrainConfig(loss=loss)).model
        errors[loss] = (np.where(model.decision_function(other[0]) > 0, 1, -1) != other[1]).mean()
    chosen = result.model.info.loss
    assert errors[chosen] <= min(errors.values()) + 0.003
    assert ("trained with the logistic loss" in " ".join(result.notes)) == (chosen == "logistic")
    assert all(trial.lam in {one.lam for one in result.models} for trial in result.trials)


@pytest.mark.parametrize("share", [0.05, 0.4, 0.6, 0.8, 0.97])
@pytest.mark.parametrize("hinge_is_right", [True, False])
def test_an_interrupted_search_over_noisy_rows_is_resumed(tmp_path, share, hinge_is_right):
    x, y = noisy(1500, 0, hinge_is_right)
    store, config = Store.from_scipy(x, y, tmp_path / "s"), TrainConfig(checkpoint_epochs=1)
    wanted = train(store, config)
    with interrupted_after(1 + int(share * (len(wanted.costs) - 1))):
        train(store, config, checkpoint=tmp_path / "c")
    result = train(store, config, checkpoint=tmp_path / "c", resume=True)
    assert result.model.encode() == wanted.model.encode()
    assert result.trials == wanted.trials


@pytest.mark.parametrize(
    "options", [{"loss": "hinge"}, {"select_by": "loss"}, {"lam": (1e-2, 1e-3)}, {"lam": 1e-2}, {"refit": False}]
)
def test_a_loss_that_was_asked_for_is_kept(rare, options):
    assert train(rare[0], TrainConfig(**options)).model.info.loss == "hinge"


def test_the_hinge_loss_is_kept_where_it_separates(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((600, 4))
    labels = np.where(x[:, 0] + 0.2 * rng.standard_normal(600) > 1.2, "yes", "no")
    assert train(Store.from_scipy(x, labels, tmp_path / "s")).model.info.loss == "hinge"


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.7, 0.95])
def test_an_interrupted_search_with_the_other_loss_is_resumed(rare, tmp_path, share):
    store = rare[0]
    wanted = train(store, TrainConfig(checkpoint_epochs=1))
    with interrupted_after(1 + int(share * (len(wanted.costs) - 1))):
        train(store, TrainConfig(checkpoint_epochs=1), checkpoint=tmp_path)
    result = train(store, TrainConfig(checkpoint_epochs=1), checkpoint=tmp_path, resume=True)
    assert result.model.encode() == wanted.model.encode()
