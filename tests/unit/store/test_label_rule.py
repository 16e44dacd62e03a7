"""Several labels that are positive: patterns of words and comparisons of numbers."""

import fnmatch
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.scoring.model import Model

TOPICS = ["math.AG", "math.CO", "cs.LG", "cs.math", "physics", "Math"]


def table_of_labels(folder, labels, name="rows.csv"):
    """Write a table whose column x is the number of the row."""
    pd.DataFrame({"y": labels, "x": np.arange(len(labels))}).to_csv(folder / name, index=False)
    return str(folder / name)


def converted_labels(folder, labels, positive, **options):
    source = table_of_labels(folder, labels)
    config = ConvertConfig(label="y", positive_label=positive, shuffle=False, standardize=False, **options)
    store = convert([source], folder / "store", config, existing=Existing(force=True))
    return store, np.concatenate([block.labels for block in store.blocks()])


@pytest.mark.parametrize("pattern", ["math*", "*math", "cs.??", "[cp]*", "*[!G]", "math.AG"])
def test_patterns_of_words(tmp_path, pattern):
    store, found = converted_labels(tmp_path, TOPICS * 3, pattern)
    assert found.tolist() == [1 if fnmatch.fnmatchcase(one, pattern) else -1 for one in TOPICS] * 3
    info = store.manifest.labels
    assert (info.task, info.rest, info.classes) == ("binary", True, [f"not {pattern}", pattern])
    assert info.counts == [(found < 0).sum(), (found > 0).sum()]
    assert info.positive == (None if pattern == "math.AG" else [pattern])


@pytest.mark.parametrize(("rule", "truth"), [(">=4", {4, 5}), ("> 4", {5}), ("<2.5", {1, 2}), ("<=1", {1})])
def test_comparisons_of_numbers(tmp_path, rule, truth):
    stars = np.random.default_rng(0).integers(1, 6, 200)
    _store, found = converted_labels(tmp_path, stars, rule)
    assert np.array_equal(found > 0, np.isin(stars, list(truth)))


@pytest.mark.parametrize(
    ("rule", "truth"), [("2..4", {2, 3, 4}), ("0.5 .. 2", {1, 2}), ("1|5", {1, 5}), ("<2 | 3|4.5..9", {1, 3, 5})]
)
def test_ranges_and_alternatives(tmp_path, rule, truth):
    stars = np.random.default_rng(2).integers(1, 6, 200)
    store, found = converted_labels(tmp_path, stars, rule)
    assert np.array_equal(found > 0, np.isin(stars, list(truth)))
    again = ConvertConfig(positive_label=rule)
    more = table_of_labels(tmp_path, [3, 1], "more.csv")
    appended = convert([more], store.path, again, existing=Existing(append=True))
    assert appended.manifest.labels.counts[1] == (found > 0).sum() + len({1, 3} & truth)


def test_alternatives_of_words(tmp_path):
    _store, found = converted_labels(tmp_path, TOPICS, "math*|physics")
    assert found.tolist() == [1, 1, -1, -1, 1, -1]
    words = ["red|blue", "red", "blue", "1|2"]
    _store, found = converted_labels(tmp_path, words, "red|blue")  # a label that occurs
    assert found.tolist() == [1, -1, -1, -1]
    _store, found = converted_labels(tmp_path, words, "1|2")
    assert found.tolist() == [-1, -1, -1, 1]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("rule", ["is null", "is not null"])
def test_rows_with_and_without_a_label(tmp_path, kind, rule):
    rng = np.random.default_rng(3)
    days = pd.Series(pd.to_datetime("2026-01-01") + pd.to_timedelta(rng.integers(0, 90, 300), "D"))
    left = days.where(rng.random(300) < 0.3)
    frame = pd.DataFrame({"left": left, "x": left.isna() + rng.normal(size=300)})
    if kind == "csv":
        frame.to_csv(tmp_path / "in.csv", index=False)
    elif kind == "jsonl":
        frame.to_json(tmp_path / "in.jsonl", orient="records", lines=True, date_format="iso")
    else:
        frame.to_parquet(tmp_path / "in.parquet")
    source, config = str(tmp_path / f"in.{kind}"), ConvertConfig(label="left", positive_label=rule, shuffle=False)
    store = convert([source], tmp_path / "s", config)
    found = np.concatenate([block.labels for block in store.blocks()])
    truth = left.isna().to_numpy() == (rule == "is null")
    assert np.array_equal(found > 0, truth)
    model = train(store, TrainConfig(lam=1e-2)).model
    wrong = float(((model.decision_function(frame) > 0) != truth).mean())
    assert evaluate(model, source)["error"] == model.evaluate(frame)["error"] == wrong
    assert set(model.predict(frame)) == {"is null", "is not null"}
    more = shutil.copy(source, tmp_path / f"more.{kind}")
    appended = convert([str(more)], store.path, ConvertConfig(), existing=Existing(append=True))
    assert appended.manifest.labels.counts == [2 * (~truth).sum(), 2 * truth.sum()]


def test_fields_of_objects_are_labels(tmp_path):
    rows = [{"user": {"stars": stars, "age": 30 + stars}, "x": stars} for stars in (1, 2, 3, 4, 5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = ConvertConfig(label="user.stars", positive_label="2..3", shuffle=False)
    store = convert([str(tmp_path / "in.jsonl")], tmp_path / "s", config)
    assert np.concatenate([block.labels for block in store.blocks()]).tolist() == [-1, 1, 1, -1, -1]


def test_any_number_of_different_labels_are_compared(tmp_path):
    amounts = np.random.default_rng(1).normal(size=70_000)
    store, found = converted_labels(tmp_path, amounts, ">0.5")
    assert np.array_equal(found > 0, amounts > 0.5)
    assert store.manifest.labels.counts == [(amounts <= 0.5).sum(), (amounts > 0.5).sum()]
    with pytest.raises(InputError, match="no label matches positive_label=>1e9"):
        converted_labels(tmp_path, amounts, ">1e9")


def test_several_positive_labels(tmp_path):
    _store, found = converted_labels(tmp_path, TOPICS, ("math*", "physics"))
    assert found.tolist() == [1, 1, -1, -1, 1, -1]
    store, found = converted_labels(tmp_path, [1, 2, 3, 4, 5], ("1", ">4"))
    assert found.tolist() == [1, -1, -1, -1, 1]
    assert store.manifest.labels.classes == ["not 1, >4", "1, >4"]


def test_label_that_occurs_is_no_pattern(tmp_path):
    store, found = converted_labels(tmp_path, ["a*", "ab", "c"], "a*")
    assert (found.tolist(), store.manifest.labels.positive) == ([1, -1, -1], None)
    store, found = converted_labels(tmp_path, ["a*", "ab", "c", "d"], ("a*", "[c]"))
    assert found.tolist() == [1, -1, 1, -1]
    more = table_of_labels(tmp_path, ["ac", "a*", "c"], "more.csv")
    appended = convert([more], store.path, ConvertConfig(positive_label=("a*", "[c]")), existing=Existing(append=True))
    assert appended.manifest.labels.counts == [3, 4]
    _store, found = converted_labels(tmp_path, ["<=50", ">50", "50?"] * 2, ">50")  # words that look like comparisons
    assert found.tolist() == [-1, 1, -1] * 2


@pytest.mark.parametrize(
    ("labels", "positive", "problem"),
    [
        (TOPICS, "bio*", "no label matches positive_label=bio\\*; the labels are Math, cs.LG, cs.math, .*, \\.\\.\\."),
        (TOPICS, ("math*", "bio*"), "no label matches positive_label=bio\\*"),
        (TOPICS, "*", "every label matches positive_label=\\*, so none is negative"),
        ([1, 2, 3], ">=4", "no label matches positive_label=>=4; the labels are 1, 2, 3"),
        ([1, 2, 3], ("<3", ">=3"), "every label matches positive_label=<3,>=3"),
        ([1, 2, 3], "3..1", "no label matches positive_label=3..1; the labels are 1, 2, 3"),
        ([1, 2, 3], "1|7", "no label matches positive_label=7; the labels are 1, 2, 3"),
        (TOPICS, "math*|", "positive_label=math\\*\\|: nothing beside a '\\|'"),
        (TOPICS, ">=4", "no row has the positive label|comparisons are for labels that are numbers"),
    ],
)
def test_rules_that_match_nothing_or_everything(tmp_path, labels, positive, problem):
    with pytest.raises(InputError, match=problem):
        converted_labels(tmp_path, labels, positive)
    assert not (tmp_path / "store").exists()


def test_labels_that_occur_later(tmp_path):
    store, _found = converted_labels(tmp_path, TOPICS * 5, "math*")
    model = train(store, TrainConfig(lam=1e-2)).model
    model.save(tmp_path / "model")
    later = ["math.NT", "biology", "math.NT", "cs.LG", "biology"]
    source = table_of_labels(tmp_path, later, "later.csv")
    truth = np.array([one.startswith("math") for one in later])
    scores = Model.load(tmp_path / "model").decision_function(pd.DataFrame({"x": np.arange(5.0)}))
    wrong = float(((scores > 0) != truth).mean())
    like = convert([source], tmp_path / "like", ConvertConfig(like=str(store.path), shuffle=False))
    assert np.array_equal(np.concatenate([block.labels for block in like.blocks()]) > 0, truth)
    for data in (source, str(like.path)):
        assert evaluate(Model.load(tmp_path / "model"), data)["error"] == wrong
    frame = pd.DataFrame({"x": np.arange(5.0), "y": later})
    assert Model.load(tmp_path / "model").evaluate(frame)["error"] == wrong
    appended = convert([source], store.path, ConvertConfig(), existing=Existing(append=True))
    assert appended.manifest.labels.counts == [20 + 3, 10 + 2]
    other = table_of_labels(tmp_path, ["biology"] * 3, "other.csv")  # none matches
    appended = convert([other], store.path, ConvertConfig(), existing=Existing(append=True))
    assert appended.manifest.labels.counts == [26, 12]
    with pytest.raises(UsageError, match="positive_label=bio\\*: the store was made with math\\*; leave it out"):
        convert([other], store.path, ConvertConfig(positive_label="bio*"), existing=Existing(append=True))


def test_store_of_another_rule_is_refused(tmp_path):
    store, _found = converted_labels(tmp_path, [1, 2, 3, 4, 5], ">=4")
    model = train(store, TrainConfig(lam=1e-2)).model
    other, _found = converted_labels(tmp_path, [1, 2, 3, 4, 5], ">=3")
    with pytest.raises(InputError, match="convert it with positive_label=>=4"):
        evaluate(model, str(other.path))
    assert model.predict(np.array([[1e9], [-1e9]])).tolist() in ([">=4", "not >=4"], ["not >=4", ">=4"])


def test_store_with_one_positive_label_is_written_as_before(tmp_path):
    store, _found = converted_labels(tmp_path, TOPICS, "physics")
    written = json.loads((store.path / "manifest.json").read_text())["labels"]
    assert written == {
        "task": "binary",
        "classes": ["not physics", "physics"],
        "rest": True,
        "counts": [5, 1],
        "text": True,
    }
    assert Store.open(store.path).manifest.labels.positive is None
