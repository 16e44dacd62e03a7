"""evaluate and predict, against scikit-learn's metrics on the same scores."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from ooc_pegasos import ConvertConfig, Model, TrainConfig, convert, train
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.metrics import BinaryMetrics, bin_of
from support.rows import random_rows, svmlight_text


def compare(found, scores, labels, tolerance=1e-12):
    predicted = np.where(scores > 0, 1, -1)
    close = {"rel": tolerance, "abs": tolerance}
    assert found["rows"] == len(labels)
    assert found["error"] == pytest.approx((predicted != labels).mean())
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, predicted))
    assert found["confusion"] == reference.confusion_matrix(labels, predicted, labels=[-1, 1]).tolist()
    assert found["mean_loss"] == pytest.approx(np.maximum(0, 1 - labels * scores).mean())
    if len(set(labels)) == 2:
        assert found["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(labels, predicted))
        assert found["roc_auc"] == pytest.approx(reference.roc_auc_score(labels, scores), **close)
        assert found["pr_auc"] == pytest.approx(reference.average_precision_score(labels, scores, pos_label=1), **close)
        assert (found["f1"] or 0) == pytest.approx(reference.f1_score(labels, predicted, zero_division=0))
        assert (found["precision"] or 0) == pytest.approx(reference.precision_score(labels, predicted, zero_division=0))
        assert (found["recall"] or 0) == pytest.approx(reference.recall_score(labels, predicted, zero_division=0))


@given(st.lists(st.tuples(st.sampled_from([-1, 1]), st.integers(-3, 3)), min_size=1, max_size=40), st.integers(1, 7))
def test_metrics_with_ties_like_scikit_learn(rows, block):
    labels, scores = np.array([row[0] for row in rows]), np.array([row[1] / 2 for row in rows])
    taken = BinaryMetrics()
    for begin in range(0, len(rows), block):
        part = slice(begin, begin + block)
        taken.add(scores[part], labels[part], np.maximum(0.0, 1.0 - labels[part] * scores[part]))
    compare(taken.result(0.0), scores, labels)


def test_binned_areas_are_close_and_said_to_be_binned():
    rng = np.random.default_rng(1)
    labels = rng.choice([-1, 1], 50_000)
    scores = labels * 0.5 + rng.standard_normal(50_000)
    taken = BinaryMetrics(exact_rows=10_000)
    for part in np.split(np.arange(50_000), 10):
        taken.add(scores[part], labels[part], np.maximum(0.0, 1.0 - labels[part] * scores[part]))
    found = taken.result(0.0)
    assert found["auc_method"] == "binned"
    compare(found, scores, labels, tolerance=2e-4)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20))
def test_bins_keep_the_order(scores):
    ordered = np.sort(np.array(scores, np.float32))
    assert (np.diff(bin_of(ordered)) >= 0).all()


@pytest.fixture(params=["numbers", "words", "rest", "normalized from 0"])
def trained(tmp_path, request):
    matrix, labels = random_rows(600, 80, 2, 0.1)
    spelled = {
        "numbers": np.where(labels > 0, 2, 1),
        "words": np.where(labels > 0, "yes", "no"),
        "rest": np.where(labels > 0, "c", np.where(np.arange(600) % 2, "a", "b")),
        "normalized from 0": labels,
    }[request.param]
    text = svmlight_text(matrix, spelled.tolist(), base=0 if request.param.endswith("0") else 1)
    (tmp_path / "in.svm").write_text(text)
    config = ConvertConfig(
        shuffle=False,
        positive_label="c" if request.param == "rest" else None,
        normalize="l2" if request.param.endswith("0") else None,
        chunk_size=3000,
    )
    store = convert([str(tmp_path / "in.svm")], tmp_path / "store", config)
    model = train(store, TrainConfig(lam=0.01, max_epochs=3)).model
    return model, store, tmp_path / "in.svm", labels, spelled


def test_a_store_and_its_file_score_alike(trained):
    model, store, file, labels, _spelled = trained
    matrix, stored = store.to_scipy()
    assert np.array_equal(stored, labels)
    from_store, from_file = evaluate(model, store.path), evaluate(model, file)
    assert from_store.keys() == from_file.keys()
    for key, value in from_file.items():
        assert from_store[key] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value)
    compare(from_store, matrix.astype(np.float64) @ model.weights, labels)
    norm = model.info.lam / 2 * model.weights @ model.weights
    assert from_store["objective"] == pytest.approx(norm + from_store["mean_loss"])


def test_predictions_in_order_in_every_format(trained, tmp_path):
    model, store, file, labels, spelled = trained
    scores = store.to_scipy()[0].astype(np.float64) @ model.weights
    names = {-1: model.info.labels.classes[0], 1: model.info.labels.classes[1]}
    expected = [names[1 if score > 0 else -1] for score in scores]
    if spelled.dtype.kind != "U":
        expected = [float(name) for name in expected]
    for name, read in {
        "p.parquet": pyarrow.parquet.read_table,
        "p.csv": pyarrow.csv.read_csv,
        "p.arrow": lambda path: pa.ipc.open_file(path.read_bytes()).read_all(),
    }.items():
        for data in (store.path, file):
            assert predict(model, data, tmp_path / name) == len(labels)
            table = read(tmp_path / name)
            assert table.column_names == ["score", "label"]
            np.testing.assert_allclose(table["score"].to_numpy(), scores, rtol=1e-12, atol=1e-12)
            assert table["label"].to_pylist() == expected


def test_files_with_other_features_and_without_real_labels(trained, tmp_path):
    model, _store, _file, _labels, _spelled = trained
    base = model.info.recipe.index_base
    new = tmp_path / "new.svm"
    new.write_text(f"? {base}:2 900:7\n0 \nx {70 + base}:1\n")
    predict(model, new, tmp_path / "p.parquet")
    scores = pyarrow.parquet.read_table(tmp_path / "p.parquet")["score"].to_numpy()
    scale = 2 / np.sqrt(2**2 + 7**2) if model.info.recipe.normalize else 2
    assert scores == pytest.approx([scale * model.weights[0], 0, model.weights[70]], rel=1e-6)


def test_evaluate_refuses_unknown_labels(trained, oocpeg, tmp_path):
    model, _store, _file, _labels, _spelled = trained
    model.save(tmp_path / "m")
    (tmp_path / "new.svm").write_text("surprise 1:2\n")
    done = oocpeg("evaluate", "m", "new.svm", code=None)
    if model.info.labels.rest:
        assert done.returncode == 0
    else:
        assert done.returncode == 3
        assert "new.svm:1:" in done.stderr


def test_stores_made_in_another_way_are_refused(trained, oocpeg, tmp_path):
    model, _store, file, _labels, _spelled = trained
    model.save(tmp_path / "m")
    other = None if model.info.recipe.normalize else "l2"
    convert([str(file)], tmp_path / "other", ConvertConfig(normalize=other))
    assert "normalize" in oocpeg("evaluate", "m", "other", code=3).stderr


def test_the_commands(oocpeg, tmp_path):
    matrix, labels = random_rows(900, 80, 2, 0.1)
    (tmp_path / "in.svm").write_text(svmlight_text(matrix, labels))
    oocpeg("convert", "in.svm", "-o", "store")
    words = ["train", "store", "-o", "m", "--lambda", "0.05", "--holdout", "0.2", "--log", "log.jsonl", "--json"]
    told = json.loads(oocpeg(*words).stdout.splitlines()[-1])
    keys = "model lambda loss algorithm sampling seed epochs converged certified primal lower_bound gap seconds "
    keys += "seconds_computing seconds_waiting bytes_read peak_rss holdout"
    assert set(keys.split()) <= set(told)
    assert told["converged"] is True
    assert told["gap"] <= 0.01
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log[-1]["gap"] == told["gap"]
    assert "exists already" in oocpeg(*words, code=3).stderr
    oocpeg("train", "store", "-o", "m", "--lambda", "1e-5", "--max-epochs", "2", "--force", code=4)
    assert Model.load(tmp_path / "m").info.epochs == 2
    oocpeg("train", "store", "-o", "m", "--C", "1", "--algorithm", "sgd-r", "--force")
    told = json.loads(oocpeg("evaluate", "m", "store", "--json").stdout)
    keys = "rows error constant_error accuracy balanced_accuracy precision recall f1 roc_auc pr_auc mean_loss objective"
    keys += " confusion"
    assert set(keys.split()) <= set(told)
    told = json.loads(oocpeg("predict", "m", "in.svm", "-o", "p.csv", "--json").stdout)
    assert (told["rows"], told["output"]) == (900, "p.csv")
    assert "exists already" in oocpeg("predict", "m", "in.svm", "-o", "p.csv", code=3).stderr
    assert "ends in" not in oocpeg("predict", "m", "in.svm", "-o", "p.txt", code=2).stdout


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["train", "store", "-o", "m", "--lambda", "1", "--C", "1"], 2, "--lambda and --C both"),
        (["train", "store", "-o", "m", "--lambda", "1:2"], 2, "1e-7:1e-3:9"),
        (["train", "store", "-o", "m", "--lambda", "1,x"], 2, "--lambda 1,x is not understood"),
        (["train", "store", "-o", "m", "--lambda", "-1"], 2, "positive"),
        (
            ["train", "store", "-o", "m", "--lambda", "1", "--algorithm", "magic"],
            2,
            "--algorithm magic is unknown; choose one of auto, sdca",
        ),
        (["train", "store", "-o", "m", "--lambda", "1", "--delay", "soon"], 2, "--delay: 'soon' is not a number"),
        (["train", "store", "-o", "m", "--lambda", "1", "--class-weight", "a,b"], 2, "numbers like 1,5"),
        (["train", "store", "-o", "m", "--lambda", "1", "--resume"], 2, "--checkpoint"),
        (["train", "nowhere", "-o", "m", "--lambda", "1"], 3, "nowhere: no such file"),
        (["train", "store", "-o", "no/m", "--lambda", "1"], 3, "no such folder"),
        (["train", "store", "-o", "store", "--lambda", "1"], 3, "store: is a store; name a file to write"),
        (["evaluate", "nowhere", "store"], 3, "no such file"),
        (["evaluate", "in.svm", "store"], 5, "not a model"),
        (["predict", "in.svm", "store", "-o", "p.csv"], 5, "not a model"),
    ],
)
def test_mistakes(oocpeg, tmp_path, words, code, problem):
    (tmp_path / "in.svm").write_text(svmlight_text(*random_rows(50, 9, 1, 0.5)))
    convert([str(tmp_path / "in.svm")], tmp_path / "store")
    done = oocpeg(*words, code=code)
    assert problem in done.stderr
    assert not (tmp_path / "m").exists()


def test_a_model_that_is_no_better_than_a_constant(tmp_path, oocpeg):
    rng = np.random.default_rng(3)
    for name, share in (("rare", 0.03), ("even", 0.4)):
        labels = np.where(rng.random(800) < share, "yes", "no")
        lines = [f"{label},{value:.3f}" for label, value in zip(labels, rng.standard_normal(800), strict=True)]
        (tmp_path / f"{name}.csv").write_text("answer,number\n" + "\n".join(lines) + "\n")
        words = ["--label", "answer", "--classes", "no,yes", "--lambda", "1", "--holdout", "0.5"]
        trained = oocpeg("train", f"{name}.csv", *words, "-o", name, "--numeric", "number").stdout
        found = oocpeg("evaluate", name, f"{name}.csv").stdout
        constant = f"{100 * (labels == 'yes').mean():.2f}"
        for text, pattern in ((trained, r"\d+\.\d\d"), (found, constant)):  # in training, of the holdout rows
            assert re.search(rf"always answering no: error {pattern} %; the positive class is yes", text)
            assert "NO BETTER than always answering no; " in text
            assert ("--class-weight balanced" in text) == (name == "rare")
        told = json.loads(oocpeg("evaluate", name, f"{name}.csv", "--json").stdout)
        assert told["constant_error"] == pytest.approx((labels == "yes").mean())
