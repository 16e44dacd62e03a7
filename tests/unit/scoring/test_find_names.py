"""Names of hashed features that matter, found in the files of a store when a model is trained."""

import json

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, convert, train
from ooc_pegasos.proof.check import prove
from ooc_pegasos.scoring import find_names
from support.table_files import write_frame

WORDS = ["bad", "good", "cheap", "dear", "slow", "quick"]
CONFIG = TrainConfig(lam=1e-3)


def opinions(rows=400, seed=0):
    """Texts and towns; some words and one town speak for a class."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice([*WORDS, *(f"w{i}" for i in range(40))], 8)) for _row in range(rows)]
    towns = rng.choice(["Oslo", "Rome", "Bern"], rows)
    score = np.array([text.count("good") - text.count("bad") for text in texts]) + 1.0 * (towns == "Rome")
    labels = np.where(score + 0.3 * rng.standard_normal(rows) > 0.4, "yes", "no")
    return pd.DataFrame({"text": texts, "town": towns, "y": labels})


def opinion_files(folder, kind):
    table = opinions()
    if kind == "folders":
        for number, (text, label) in enumerate(zip(table["text"], table["y"], strict=True)):
            (folder / "in" / label).mkdir(parents=True, exist_ok=True)
            (folder / "in" / label / f"{number}.txt").write_text(text)
        return folder / "in", ConvertConfig()
    if kind == "vw":
        pairs = zip(table["y"], table["text"], table["town"], strict=True)
        lines = (f"{1 if y == 'yes' else -1} |text {text} |town {town}\n" for y, text, town in pairs)
        (folder / "in.vw").write_text("".join(lines))
        return folder / "in.vw", ConvertConfig()
    return write_frame(table, folder / f"in{kind}"), ConvertConfig(label="y", text=("text",), categorical=("town",))


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".jsonl", "vw", "folders"])
def test_names_are_those_that_would_have_been_kept(tmp_path, kind):
    path, config = opinion_files(tmp_path, kind)
    store = convert(path, tmp_path / "s", config)
    model = train(store, CONFIG).model
    kept = convert(path, tmp_path / "kept", ConvertConfig(**{**vars(config), "feature_names": 10**4}))
    wanted = train(kept, CONFIG).model
    assert model.top_features(20) == wanted.top_features(20)
    best = {name.rpartition("^")[2] for name, weight in model.top_features(4) if weight > 0}
    assert "good" in best
    assert (model.weights == wanted.weights).all()
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").top_features(20) == wanted.top_features(20)
    assert train(store, CONFIG).model.encode() == model.encode()


def test_without_the_files_features_have_numbers(tmp_path):
    path, config = opinion_files(tmp_path, ".csv")
    store = convert(path, tmp_path / "s", config)
    named = train(store, CONFIG).model
    path.write_text(path.read_text() + "more,Oslo,yes\n")
    assert all(name.isdigit() for name, _weight in train(store, CONFIG).model.top_features(5))
    path.unlink()
    model = train(store, CONFIG).model
    assert all(name.isdigit() for name, _weight in model.top_features(5))
    assert (model.weights == named.weights).all()
    frame = opinions(100, 1)
    assert (model.decision_function(frame) == named.decision_function(frame)).all()


def test_no_more_is_read_than_the_limit(tmp_path, monkeypatch):
    path, config = opinion_files(tmp_path, ".csv")
    store = convert(path, tmp_path / "s", config)
    model = train(store, CONFIG).model
    read = []
    real = find_names.registry.reader_for

    def counting(*words):
        reader = real(*words)
        tasks = reader.tasks
        reader.tasks = lambda: (read.append(task) or task for task in tasks())
        return reader

    monkeypatch.setattr(find_names.registry, "reader_for", counting)
    monkeypatch.setattr(find_names, "MOST_BYTES", 10)
    bare = Model(model.weights, model.info, model.bias)
    found = find_names.with_names(bare, store)
    assert len(read) == 1
    assert found.top_features(3) == model.top_features(3)


def test_classes_of_several_have_names_each(tmp_path, oocpeg):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 600)
    texts = [f"topic{label} " + " ".join(rng.choice([f"w{i}" for i in range(60)], 5)) for label in labels]
    pd.DataFrame({"text": texts, "y": [f"c{label}" for label in labels]}).to_csv(tmp_path / "in.csv", index=False)
    oocpeg("train", "in.csv", "--label", "y", "--text", "text", "-o", "m", "--lambda", "0.001")
    lines = oocpeg("inspect", "m").stdout.splitlines()
    for label in range(5):
        assert lines[lines.index(f"for c{label}:") + 1].split()[1] == f"topic{label}"
    assert len(json.loads(oocpeg("inspect", "m", "--json").stdout)["features"]) == 30


def test_both_sides_are_shown(tmp_path, oocpeg):
    opinion_files(tmp_path, ".csv")
    oocpeg("train", "in.csv", "--label", "y", "--text", "text", "--categorical", "town", "-o", "m", "--lambda", "0.001")
    lines = oocpeg("inspect", "m", "--top", "4").stdout.splitlines()
    assert [lines[1], lines[4]] == ["for yes:", "for no:"]
    assert {line.split()[1] for line in lines[2:4]} == {"good", "town=Rome"}
    assert "bad" in {line.split()[1] for line in lines[5:7]}
    assert all(float(line.split()[0]) < 0 for line in lines[5:7])


def test_a_proof_holds_for_the_model_with_names(tmp_path):
    path, config = opinion_files(tmp_path, ".csv")
    store = convert(path, tmp_path / "s", config)
    result = train(store, CONFIG, proof=tmp_path / "proof")
    result.model.save(tmp_path / "m")
    assert len(result.model.vocabulary)
    prove(tmp_path / "m", store.path, tmp_path / "proof", 1)


def test_numbers_of_svmlight_text_have_no_names(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    model = train(convert(tmp_path / "in.svm", tmp_path / "s"), CONFIG).model
    assert not len(model.vocabulary)
    assert Store.open(tmp_path / "s").rows == 40
