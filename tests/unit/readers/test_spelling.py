"""Equal values are equal categories, in files of any format and in dataframes."""

import dataclasses
import datetime
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.compatibility import comes_of
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.readers.registry import new_recipe
from ooc_pegasos.readers.spelling import category_words, spelling_of_texts
from ooc_pegasos.readers.vectorize import Vectorizer
from ooc_pegasos.scoring.evaluate import predict
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.recipe import Column

ROWS = 30
DAYS = [datetime.date(2020, 1, 1 + row % 9) for row in range(ROWS)]
TIMES = [datetime.datetime(2020, 1, 1 + row % 9, row % 3) for row in range(ROWS)]
VALUES = {
    "int": (pa.array([row % 5 for row in range(ROWS)]), "c=3"),
    "int with nulls": (pa.array([None if row % 7 == 0 else row % 5 for row in range(ROWS)], pa.int64()), "c=3"),
    "large int": (pa.array([2**60 + row % 5 for row in range(ROWS)]), "c=1152921504606846979"),
    "whole float": (pa.array([float(row % 5) for row in range(ROWS)]), "c=3"),
    "float": (pa.array([row % 5 / 2 for row in range(ROWS)]), "c=1.5"),
    "bool": (pa.array([row % 3 == 0 for row in range(ROWS)]), "c=true"),
    "bool with nulls": (pa.array([[True, False, None][row % 3] for row in range(ROWS)]), "c=true"),
    "string": (pa.array([["a", "1.10", "03"][row % 3] for row in range(ROWS)]), "c=1.10"),
    "date": (pa.array(DAYS), "c=2020-01-04"),
    "time": (pa.array(TIMES), "c=2020-01-05 01:00:00"),
    "midnight": (pa.array([datetime.datetime(2020, 1, 1 + row % 9) for row in range(ROWS)]), "c=2020-01-04 00:00:00"),
}
SOURCES = ("arrow.parquet", "pandas.parquet", "arrow.csv", "pandas.csv", "pandas.jsonl", "python.jsonl")


def table_of(kind):
    values = VALUES[kind][0]
    labels = [code % 2 for code in values.dictionary_encode().indices.fill_null(0).to_pylist()]
    return pa.table({"c": values, "d": values, "x": np.arange(ROWS) * 0.5, "y": labels})


def write_as_programs_do(table, folder):
    """The same rows as different programs write them."""
    frame = table.to_pandas()
    pq.write_table(table, folder / "arrow.parquet")
    frame.to_parquet(folder / "pandas.parquet")
    pyarrow.csv.write_csv(table, folder / "arrow.csv")
    frame.to_csv(folder / "pandas.csv", index=False)
    frame.to_json(folder / "pandas.jsonl", orient="records", lines=True, date_format="iso")
    rows = (json.dumps(row, default=str) + "\n" for row in table.to_pylist())
    (folder / "python.jsonl").write_text("".join(rows))
    return frame


@pytest.mark.parametrize("source", ["arrow.parquet", "pandas.csv", "arrow.csv", "pandas.jsonl"])
@pytest.mark.parametrize("kind", VALUES)
def test_predictions_do_not_depend_on_the_format(tmp_path, kind, source):
    table = table_of(kind)
    frame = write_as_programs_do(table, tmp_path)
    config = ConvertConfig(
        label="y",
        categorical=("c", "d"),
        numeric=("x",),
        cross=("c,d",),
        feature_names=200,
        hash_bits=16,
        shuffle=False,
    )
    store = convert(tmp_path / source, tmp_path / "s", config)
    model = train(store, TrainConfig(lam=1e-2, loss="logistic")).model
    if source == "arrow.parquet":
        names = vocabulary.of_store(tmp_path / "s", store.manifest).names_of(
            np.unique(store.to_scipy()[0].indices).tolist()
        )
        assert VALUES[kind][1] in names  # as without a recorded spelling
        assert VALUES[kind][1].replace("c=", "c*d=") + "*" + VALUES[kind][1].removeprefix("c=") in names
    predict(model, str(tmp_path / source), tmp_path / "out.csv")
    wanted = pd.read_csv(tmp_path / "out.csv")["score"]
    assert wanted.std() > 0.01
    for other in SOURCES:
        predict(model, str(tmp_path / other), tmp_path / "out.csv")
        np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["score"], wanted, atol=1e-6, err_msg=other)
    for data in (frame, pd.read_csv(tmp_path / "pandas.csv"), table):
        np.testing.assert_allclose(model.decision_function(data), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["int with nulls", "bool", "midnight"])
def test_rows_that_are_appended_or_made_alike(tmp_path, kind):
    write_as_programs_do(table_of(kind), tmp_path)
    for options in ({}, {"dictionary": 6}):
        path = tmp_path / f"s{len(options)}"
        config = ConvertConfig(label="y", categorical=("c",), shuffle=False, **options)
        store = convert(tmp_path / "arrow.parquet", path, config)
        rows = store.to_scipy()[0]
        assert rows.nnz > ROWS / 3
        for name in ("pandas.csv", "pandas.jsonl"):
            like = convert(
                tmp_path / name, tmp_path / f"{name}{len(options)}", ConvertConfig(like=str(path), shuffle=False)
            )
            assert (like.to_scipy()[0] != rows).nnz == 0
            both = convert(tmp_path / name, path, ConvertConfig(shuffle=False), existing=Existing(append=True))
            assert (both.to_scipy()[0][-ROWS:] != rows).nnz == 0


def test_dictionaries_of_csv_count_values(tmp_path):
    (tmp_path / "in.csv").write_text(
        "c,y\n" + "".join(f"{['3.0', '3', '4', '5', '5'][n % 5]},{n % 2}\n" for n in range(50))
    )
    store = convert(tmp_path / "in.csv", tmp_path / "s", ConvertConfig(label="y", categorical=("c",), dictionary=2))
    assert store.to_scipy()[0].sum() == 40


def test_codes_of_csv_are_verbatim(tmp_path):
    (tmp_path / "in.csv").write_text("zip,version,n\n01067,1.1,3\n10115,1.10,3.0\n")
    config = ConvertConfig(label="n", categorical=("zip", "version"), hash_bits=12, feature_names=9)
    recipe = new_recipe(config.of_format("table"), [str(tmp_path / "in.csv")], lambda _remark: None)
    assert [column.spelling for column in recipe.table.columns] == ["verbatim", "verbatim"]


def test_recipes_without_spellings(tmp_path):
    """Stores of earlier versions: texts stay as they are, and the same command finds the store finished."""
    frame = pd.DataFrame({"c": [3, 4, None], "y": [0, 1, 1]})
    frame.to_parquet(tmp_path / "in.parquet")
    config = ConvertConfig(label="y", categorical=("c",), hash_bits=12).of_format("table")
    recipe = new_recipe(config, [str(tmp_path / "in.parquet")], lambda _remark: None)
    (column,) = recipe.table.columns
    assert column.spelling == "number"
    old = dataclasses.replace(recipe.table, columns=[dataclasses.replace(column, spelling="verbatim")])
    batch = pa.record_batch({"c": ["3", "3.0", None], "y": [0, 1, 1]})
    new_names, old_names = ({}, {})
    for table, names in ((recipe.table, new_names), (old, old_names)):
        found = Vectorizer(table, False, names=9).vectors(batch)
        names.update(found.features)
    assert (sorted(new_names.values()), sorted(old_names.values())) == (["c=3"], ["c=3", "c=3.0"])
    config = dataclasses.replace(config, hash_bits=None)
    found = dataclasses.replace(recipe, table=dataclasses.replace(old, scaling="sample"))
    assert comes_of(found, recipe, config)
    assert not comes_of(
        found, new_recipe(dataclasses.replace(config, nulls="mark"), [str(tmp_path / "in.parquet")], print), config
    )


def test_texts_of_values():
    texts = {
        "number": {
            " 3": "3",
            "+3.00": "3",
            "-0": "0",
            "1e2": "100",
            ".5": "0.5",
            "18446744073709551615": None,
            "x": None,
        },
        "plain number": {"3.0": "3", "1.10": None, "03": None, "1e+16": "10000000000000000", "x": None},
        "bool": {"TRUE": "true", "False": "false", "1": None},
        "date": {"2020-01-04T00:00:00.000Z": "2020-01-04", "2020-01-04 01:00:00": None, "soon": None},
        "time": {
            "2020-01-04": "2020-01-04 00:00:00",
            "2020-01-04T10:00": "2020-01-04 10:00:00",
            "2020-01-04T10:00:00.120Z": "2020-01-04 10:00:00.12Z",
            "2020-01-04 10:00:00.000+00:00": "2020-01-04 10:00:00Z",
            "2020-01-04 10:00:00+01:00": "2020-01-04 10:00:00+0100",
            "soon": None,
        },
    }
    for spelling, wanted in texts.items():
        found = category_words(Column("c", "categorical", spelling=spelling), pa.array([*wanted, None]))
        assert found.to_pylist() == [*(new or old for old, new in wanted.items()), None]
    zone = pa.array(TIMES, pa.timestamp("us", "Europe/Oslo"))
    assert (
        category_words(Column("c", "categorical"), zone)[0].as_py()
        == category_words(Column("c", "categorical", spelling="time"), pa.array(zone.to_pandas().astype(str)))[
            0
        ].as_py()
    )


@pytest.mark.parametrize(
    ("words", "spelling"),
    [
        (["3", "4.0"], "plain number"),
        (["3", "04"], "verbatim"),
        (["1.1", "1.10"], "verbatim"),
        (["True", "FALSE"], "bool"),
        (["true", "1"], "verbatim"),
        (["2020-01-04"], "date"),
        (["2020-01-04", "2020-01-04T10:00"], "time"),
        ([], "verbatim"),
    ],
)
def test_spellings_of_texts(words, spelling):
    assert spelling_of_texts(words, may_be_numbers=True) == spelling
    expected = spelling if spelling in ("date", "time") else "verbatim"
    assert spelling_of_texts(words, may_be_numbers=False) == expected


def test_labels_of_dataframes(tmp_path):
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40) >= 20})
    model = train(Store.from_pandas(frame, tmp_path / "s", ConvertConfig(label="y")), TrainConfig(lam=1e-3)).model
    assert model.evaluate(frame)["accuracy"] == ((model.decision_function(frame) > 0) == frame.y).mean()
