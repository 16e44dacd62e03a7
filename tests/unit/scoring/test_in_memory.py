"""Models in Python: training and scoring of tables and matrices in memory."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from ooc_pegasos import ConvertConfig, Store, TrainConfig, fit
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate

FORMS = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "lazy polars": lambda frame: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    rows = 400
    frame = pd.DataFrame(
        {
            "size": rng.lognormal(3, 1, rows),
            "town": rng.choice(["Oslo", "Tromsø", "Bergen"], rows),
            "title": rng.choice(["big red house", "small blue house", "flat"], rows),
        }
    )
    better = np.log(frame["size"]) + (frame["town"] == "Oslo") + rng.standard_normal(rows) > 3.3
    frame["sold"] = np.where(better, "yes", "no")
    return frame


@pytest.fixture(scope="module")
def model(frame):
    return fit(frame, label="sold", config=TrainConfig(lam=1e-3, bias="feature", loss="logistic")).model


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_scored_by_the_names_of_its_columns(frame, model, tmp_path, form):
    frame.to_parquet(tmp_path / "rows.parquet")
    shuffled = frame[["town", "sold", "title", "size"]]
    scores = model.decision_function(FORMS[form](shuffled))
    metrics = evaluate(model, tmp_path / "rows.parquet")  # reads the file
    assert accuracy_score(frame["sold"] == "yes", scores > 0) == pytest.approx(metrics["accuracy"])
    assert roc_auc_score(frame["sold"] == "yes", scores) == pytest.approx(metrics["roc_auc"])
    assert model.predict(FORMS[form](shuffled)).tolist() == np.where(scores > 0, "yes", "no").tolist()
    chances = model.predict_proba(FORMS[form](shuffled))
    assert chances.shape == (400, 2)
    np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-9)
    np.testing.assert_allclose(chances.sum(axis=1), 1)


def test_metrics_of_a_table_are_those_of_its_file(frame, model, tmp_path):
    frame.to_parquet(tmp_path / "rows.parquet")
    wanted = evaluate(model, tmp_path / "rows.parquet")
    for found in (
        model.evaluate(tmp_path / "rows.parquet"),
        model.evaluate(frame),
        model.evaluate(FORMS["arrow"](frame)),
        model.evaluate(frame.drop(columns="sold"), frame["sold"]),
    ):
        assert found == wanted


def test_metrics_of_matrices_with_labels():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((300, 5))
    classes = (x[:, 0] + 0.3 * rng.standard_normal(300) > 0).astype(int) + (x[:, 1] > 0)
    for labels in (classes, np.array(["a", "b", "c"])[classes]):
        model = fit(x, labels, TrainConfig(lam=1e-2, bias="feature")).model
        assert model.evaluate(x, labels)["accuracy"] == pytest.approx(accuracy_score(labels, model.predict(x)))
        assert model.classes_.tolist() == sorted(set(labels.tolist()))
        with pytest.raises(InputError, match="no class"):
            model.evaluate(x, np.array(["?" if labels.dtype.kind == "U" else 7] * 300))
        with pytest.raises(InputError, match="300 rows and 299 labels"):
            model.evaluate(x, labels[1:])
    targets = x @ np.arange(5.0)
    model = fit(x, targets, TrainConfig(lam=1e-4)).model
    assert model.evaluate(x, targets)["r2"] == pytest.approx(r2_score(targets, model.predict(x)))
    assert model.classes_.tolist() == []
    with pytest.raises(UsageError, match="needs labels"):
        model.evaluate(x)


def test_a_store_of_the_rows_has_the_same_metrics(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((200, 4)).astype(np.float32)
    labels = np.where(x[:, 0] > 0, 1, -1)
    store = Store.from_scipy(x, labels, tmp_path / "s")
    model = fit(x, labels, TrainConfig(lam=1e-2)).model
    wanted = evaluate(model, tmp_path / "s")
    assert model.evaluate(store) == model.evaluate(tmp_path / "s") == wanted
    found = model.evaluate(x, labels)
    assert found["confusion"] == wanted["confusion"]
    assert found["roc_auc"] == wanted["roc_auc"]
    assert found["mean_loss"] == pytest.approx(wanted["mean_loss"], rel=1e-12)  # values of other types


def test_missing_and_wrong_columns_are_named(frame, model):
    with pytest.raises(InputError, match="no column 'size'"):
        model.predict(frame.drop(columns="size"))
    with pytest.raises(InputError, match="no column 'sold'"):
        model.evaluate(frame.drop(columns="sold"))
    with pytest.raises(InputError, match="column 'size' is of type"):
        model.predict(frame.assign(size="much"))


def test_top_features_have_names_and_signs(frame):
    recipe = ConvertConfig(feature_names=100)
    model = fit(frame, label="sold", recipe=recipe, config=TrainConfig(lam=1e-3, bias="feature")).model
    found = dict(model.top_features(50))
    assert {"size", "town=Oslo"} <= set(found)
    assert found["size"] > 0
    assert found["town=Oslo"] > found["town=Bergen"]
    heaviest = [abs(weight) for _name, weight in model.top_features(3)]
    assert heaviest == sorted(heaviest, reverse=True)
    assert len(heaviest) == 3


def test_models_and_results_have_short_representations(frame, model):
    assert repr(model).startswith("Model(logistic, 2 classes, ")
    assert len(repr(model)) < 120
