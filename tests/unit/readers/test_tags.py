"""Columns of lists of words: each word is a category of its row."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction import FeatureHasher

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.registry import new_recipe
from ooc_pegasos.scoring.evaluate import predict

ROWS = 300
RNG = np.random.default_rng(0)
TAGS = [list(RNG.choice(["a", "b", "c", "d e", "é"], RNG.integers(0, 5))) for _row in range(ROWS)]
TAGS[3] = None
TOWNS = RNG.choice(["Oslo", "Rome"], ROWS).tolist()
LABELS = [int("a" in (tags or ())) for tags in TAGS]


def tagged(path):
    """The rows in a file."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"tags": TAGS, "town": TOWNS, "y": LABELS}), path)
    elif path.suffix == ".arrow":
        kind = pa.large_list(pa.dictionary(pa.int32(), pa.string()))
        lists = pa.array(TAGS, pa.large_list(pa.string()))
        coded = pa.LargeListArray.from_arrays(
            lists.offsets, lists.values.dictionary_encode(), mask=lists.is_null()
        ).cast(kind)
        table = pa.table({"tags": coded, "town": TOWNS, "y": LABELS})
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        rows = zip(TAGS, TOWNS, LABELS, strict=True)
        path.write_text("".join(json.dumps({"tags": t, "town": w, "y": y}) + "\n" for t, w, y in rows))
    return path


def of_scikit_learn(bits):
    dicts = [
        {f"town={town}": 1} | {f"tags={tag}": 1 for tag in tags or ()} for tags, town in zip(TAGS, TOWNS, strict=True)
    ]
    return FeatureHasher(2**bits).transform(dicts)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".arrow"])
def test_rows_are_those_of_scikit_learn(tmp_path, suffix):
    config = ConvertConfig(label="y", shuffle=False, hash_bits=12, feature_names=20)
    store = convert(tagged(tmp_path / f"in{suffix}"), tmp_path / "s", config)
    assert (store.to_scipy()[0] != of_scikit_learn(12)).nnz == 0
    model = train(store, TrainConfig(lam=1e-3)).model
    assert model.top_features(1)[0][0] == "tags=a"
    predict(model, str(tmp_path / f"in{suffix}"), tmp_path / "scores.csv")
    assert pd.read_csv(tmp_path / "scores.csv")["label"].tolist() == LABELS


def test_a_dictionary_counts_rows(tmp_path):
    config = ConvertConfig(label="y", shuffle=False, dictionary=4)
    store = convert(tagged(tmp_path / "in.parquet"), tmp_path / "s", config)
    counts = pd.Series([tag for tags in TAGS for tag in set(tags or ())]).value_counts()
    counts = pd.concat(
        [counts.rename(lambda tag: f"tags={tag}"), pd.Series(TOWNS).value_counts().rename("town={}".format)]
    )
    wanted = sorted(counts.nlargest(4).index)
    model = train(store, TrainConfig(lam=0.1)).model
    assert sorted(name for name, _weight in model.top_features(10)) == wanted
    for column, name in enumerate(wanted):
        rows = store.to_scipy()[0].toarray()[:, column]
        assert rows.sum() == counts[name]


def test_nulls_are_marked(tmp_path):
    config = ConvertConfig(label="y", shuffle=False, hash_bits=12, nulls="mark")
    store = convert(tagged(tmp_path / "in.parquet"), tmp_path / "s", config)
    plain = of_scikit_learn(12).toarray()
    extra = store.to_scipy()[0].toarray() - plain
    assert np.flatnonzero(np.abs(extra).sum(axis=1)).tolist() == [3]


def test_numbers_are_tags_where_that_is_asked_for(tmp_path):
    table = pa.table({"ids": [[7, 8], [], [7, 7, 9], None], "y": [0, 1, 0, 1]})
    config = ConvertConfig(label="y", shuffle=False, categorical=("ids",), hash_bits=10)
    store = Store.from_arrow(table, tmp_path / "s", config)
    wanted = FeatureHasher(1024).transform([{"ids=7": 1, "ids=8": 1}, {}, {"ids=7": 1, "ids=9": 1}, {}])
    assert (store.to_scipy()[0] != wanted).nnz == 0
    with pytest.raises(InputError, match="cannot be a category"):
        Store.from_arrow(
            pa.table({"x": [[[1]], []], "y": [0, 1]}), tmp_path / "t", ConvertConfig(label="y", categorical=("x",))
        )


def test_lists_that_are_empty_at_first(tmp_path):
    lines = [json.dumps({"tags": [], "y": number % 2}) for number in range(40_000)]
    lines += [json.dumps({"tags": ["x"], "y": 1}) for _row in range(10)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    store = convert(tmp_path / "in.jsonl", tmp_path / "s", ConvertConfig(label="y"))
    assert store.nonzeros == 10


def integers_and_towns():
    """Rows of integers in lists, some null, and a town."""
    rng = np.random.default_rng(5)
    ids = [rng.choice(30, rng.integers(0, 6)).tolist() for _row in range(ROWS)]
    return pd.DataFrame({"ids": [None, *ids[1:]], "town": TOWNS, "y": [int(7 in one) for one in [[], *ids[1:]]]})


def lists_file(frame, path):
    frame.to_parquet(path) if path.suffix == ".parquet" else path.write_text(
        frame.to_json(orient="records", lines=True)
    )
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_integers_beside_other_columns_are_tags(tmp_path, suffix):
    frame, remarks = integers_and_towns(), []
    config = ConvertConfig(label="y", shuffle=False, hash_bits=12)
    file = lists_file(frame, tmp_path / f"in{suffix}")
    new_recipe(config.of_format("table"), [str(file)], remarks.append)
    told = "lists of integers taken as categories, not as indices, because there are other columns: ids"
    assert remarks == ["categorical: ids, town", told]
    store = convert(file, tmp_path / "s", config)
    rows = [{f"town={t}": 1} | {f"ids={i}": 1 for i in ids or ()} for ids, t in zip(frame.ids, frame.town, strict=True)]
    hashed = FeatureHasher(2**12).transform(rows)
    assert (store.to_scipy()[0] != hashed).nnz == 0
    model = train(store, TrainConfig(lam=1e-3)).model
    assert model.top_features(1)[0][0] == "ids=7"
    scores = hashed @ model.weights + model.bias
    np.testing.assert_allclose(model.decision_function(frame), scores, rtol=1e-5, atol=1e-6)
    floats = frame.assign(ids=[None if one is None else [float(i) for i in one] for one in frame.ids])
    np.testing.assert_allclose(model.decision_function(floats), scores, rtol=1e-5, atol=1e-6)
    for other in (".parquet", ".jsonl"):
        predict(model, str(lists_file(frame, tmp_path / f"new{other}")), tmp_path / "out.csv")
        np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["score"], scores, rtol=1e-5, atol=1e-6)
        like = convert(
            tmp_path / f"new{other}", tmp_path / other, ConvertConfig(like=str(tmp_path / "s"), shuffle=False)
        )
        assert (like.to_scipy()[0] != hashed).nnz == 0
    both = convert(file, tmp_path / "s", ConvertConfig(shuffle=False), existing=Existing(append=True))
    assert (both.to_scipy()[0][ROWS:] != hashed).nnz == 0


def test_integers_alone_are_indices(tmp_path):
    frame = integers_and_towns()
    file = lists_file(frame, tmp_path / "in.parquet")
    store = convert(file, tmp_path / "s", ConvertConfig(label="y", ignore=("town",), shuffle=False))
    assert store.features == 30
    wanted = np.zeros((ROWS, 30))
    for row, ids in enumerate(frame.ids):
        np.add.at(wanted[row], ids or [], 1)
    np.testing.assert_array_equal(store.to_scipy()[0].toarray(), wanted)
    assert convert(file, tmp_path / "t", ConvertConfig(label="y", id="town", shuffle=False)).features == 30


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_numbers_in_lists_must_be_finite(tmp_path, odd):
    table = pa.table({"ids": [[7.0, 8.0], [1.0, odd], [None, 9.0]], "y": [0, 1, 1]})
    config = ConvertConfig(label="y", shuffle=False, categorical=("ids",), hash_bits=10, on_bad_row="skip")
    store = Store.from_arrow(table, tmp_path / "s", config)
    wanted = FeatureHasher(1024).transform([{"ids=7": 1, "ids=8": 1}, {"ids=9": 1}])
    assert (store.to_scipy()[0] != wanted).nnz == 0
    with pytest.raises(InputError, match="row 2: a number in a list in column 'ids' is not finite"):
        Store.from_arrow(table, tmp_path / "t", ConvertConfig(label="y", categorical=("ids",)))
