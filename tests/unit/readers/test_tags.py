"""Columns of lists of words: each word is a category of its row."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction import FeatureHasher

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.errors import InputError
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
