"""Structs: their fields are columns with dotted names, in any kind of table."""

import dataclasses
import json

import dask.bag
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction import FeatureHasher

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate, predict

ROWS, BITS = 200, 12
PLAIN = ConvertConfig(label="y", shuffle=False, hash_bits=BITS, standardize=False)


def events(seed=0):
    """Rows with structs that are null, or have null fields, at two depths, and a column with a dot in its name."""
    rng = np.random.default_rng(seed)
    found = []
    for _row in range(ROWS):
        user = {"country": str(rng.choice(["no", "se", "fr"])), "age": float(rng.integers(1, 90))}
        system = {"name": str(rng.choice(["x", "y"])), "tags": ["a", "b", "c"][: rng.integers(4)]}
        device = {"os": None if rng.random() < 0.1 else system, "model": None if rng.random() < 0.1 else "m"}
        row = {
            "user": None if rng.random() < 0.1 else user,
            "device": None if rng.random() < 0.1 else device,
            "a.b": str(rng.choice(["p", "q"])),
            "y": int(user["country"] == "no"),
        }
        found.append(row)
    return found


def features_of_event(row):
    """The features of a row by the documentation alone."""
    user, device = row["user"] or {}, row["device"] or {}
    system = device.get("os") or {}
    words = {
        "user.country": user.get("country"),
        "device.os.name": system.get("name"),
        "device.model": device.get("model"),
        "a.b": row["a.b"],
    }
    found = {f"{name}={word}": 1 for name, word in words.items() if word is not None}
    found |= {f"device.os.tags={tag}": 1 for tag in system.get("tags", ())}
    return found | ({"user.age": user["age"]} if user else {})


def written_events(rows, path):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=70)
    else:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=60)
    return path


def hashed_events(rows):
    return FeatureHasher(2**BITS, dtype=np.float32).transform(map(features_of_event, rows))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".arrow"])
def test_fields_are_columns_from_convert_to_predictions(tmp_path, suffix):
    rows, new = events(), events(1)
    store = convert(written_events(rows, tmp_path / f"in{suffix}"), tmp_path / "s", PLAIN)
    assert (store.to_scipy()[0] != hashed_events(rows)).nnz == 0
    model = train(store, TrainConfig(lam=0.01)).model
    assert model.top_features(1)[0][0] == "user.country=no"
    scores = hashed_events(new) @ model.weights + model.bias
    for other in (".parquet", ".jsonl", ".arrow"):
        file = written_events(new, tmp_path / f"new{other}")
        predict(model, str(file), tmp_path / "out.csv")
        np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["score"], scores, rtol=1e-5, atol=1e-6)
        right = (scores > 0) == np.array([row["y"] for row in new])
        assert evaluate(model, file)["accuracy"] == pytest.approx(right.mean())
        appended = convert(file, tmp_path / f"like{other}", ConvertConfig(like=str(tmp_path / "s"), shuffle=False))
        assert (appended.to_scipy()[0] != hashed_events(new)).nnz == 0
    for data in (pd.DataFrame(new), pl.DataFrame(new), pa.Table.from_pylist(new)):
        np.testing.assert_allclose(model.decision_function(data), scores, rtol=1e-5, atol=1e-6)
    both = convert(file, tmp_path / "s", ConvertConfig(shuffle=False), existing=Existing(append=True))
    assert (both.to_scipy()[0] != hashed_events([*rows, *new])).nnz == 0


def test_data_in_memory(tmp_path):
    for number, data in enumerate((pd.DataFrame(events()), pl.DataFrame(events()), pa.Table.from_pylist(events()))):
        store = Store.from_arrow(data, tmp_path / str(number), PLAIN)
        assert (store.to_scipy()[0] != hashed_events(events())).nnz == 0


def test_columns_of_files_without_structs(tmp_path):
    """A file with the column `user.country` serves as well as one with a struct."""
    store = convert(
        written_events(events(), tmp_path / "in.parquet"),
        tmp_path / "s",
        ConvertConfig(label="y", categorical=("user.country", "device.os.n*"), hash_bits=BITS),
    )
    model = train(store, TrainConfig(lam=0.01)).model
    flat = pd.json_normalize(events(1))
    flat = pd.DataFrame({name: [f"{word}" if isinstance(word, str) else None for word in flat[name]] for name in flat})
    flat.to_csv(tmp_path / "flat.csv", index=False)
    predict(model, str(tmp_path / "flat.csv"), tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")["score"]
    np.testing.assert_allclose(found, model.decision_function(pd.DataFrame(events(1))), atol=1e-6)


def test_options_take_fields(tmp_path):
    file = written_events(events(), tmp_path / "in.jsonl")
    lines = file.read_text().replace('"y":', '"out": {"w": 2.5, "id": "k"}, "y":')
    (tmp_path / "more.jsonl").write_text(lines)
    config = ConvertConfig(
        label="y",
        categorical=("device.*",),
        numeric=("user.age",),
        ignore=("device.os.tags",),
        weight="out.w",
        id="out.id",
    )
    store = convert(tmp_path / "more.jsonl", tmp_path / "s", config)
    assert [column.name for column in store.manifest.recipe.table.columns] == [
        *("user.age", "device.os.name", "device.model"),
    ]
    assert store.manifest.weighted
    assert store.ids(0).to_pylist() == ["k"] * ROWS
    with pytest.raises(UsageError, match=r"no column 'device' \(is it 'device\.\*'\?\)"):
        convert(file, tmp_path / "t", ConvertConfig(label="y", ignore=("device",)))


def test_labels_in_structs(tmp_path):
    rows = [{"x": float(number), "out": {"label": ["no", "yes"][number % 2]}} for number in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    store = convert(tmp_path / "in.parquet", tmp_path / "s", ConvertConfig(label="out.label"))
    assert store.manifest.labels.classes == ["no", "yes"]
    model = train(store, TrainConfig(lam=0.01)).model
    of_file = evaluate(model, tmp_path / "in.parquet")["accuracy"]
    assert model.evaluate(pd.DataFrame(rows))["accuracy"] == of_file


def test_fields_that_are_not_needed_are_not_read(tmp_path):
    table = pa.table({"s": pa.array([{"a": 1.5, "b": 2.5}, {"a": 3.5, "b": 4.5}]), "y": [0, 1]})
    pq.write_table(table, tmp_path / "in.parquet", compression="none", use_dictionary=False)
    data = (tmp_path / "in.parquet").read_bytes()
    at = pq.ParquetFile(tmp_path / "in.parquet").metadata.row_group(0).column(1)
    assert at.path_in_schema == "s.b"
    begin, end = at.data_page_offset, at.data_page_offset + at.total_compressed_size
    (tmp_path / "in.parquet").write_bytes(data[:begin] + b"\xff" * (end - begin) + data[end:])
    config = ConvertConfig(label="y", numeric=("s.a",), shuffle=False, standardize=False)
    assert convert(tmp_path / "in.parquet", tmp_path / "s", config).to_scipy()[0].toarray().tolist() == [[1.5], [3.5]]
    with pytest.raises(InputError):
        convert(tmp_path / "in.parquet", tmp_path / "t", ConvertConfig(label="y"))


def test_names_that_are_not_unique(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"a": {"b": 1}, "a.b": 2, "y": 1}\n')
    with pytest.raises(InputError, match=r"two columns have the name 'a\.b'; one is a field of a struct; rename one"):
        convert(tmp_path / "in.jsonl", tmp_path / "s", ConvertConfig(label="y"))


def test_lists_of_structs_are_refused_together(tmp_path):
    rows = [{"items": [{"a": {"b": 1}}], "s": {"more": [{"c": "x", "d": "y"}]}, "x": 1.0, "y": n % 2} for n in range(9)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"'items' .*'s\.more' .*ignore=items ignore=s\.more"):
        convert(tmp_path / "in.jsonl", tmp_path / "s", ConvertConfig(label="y"))
    store = convert(tmp_path / "in.jsonl", tmp_path / "s", ConvertConfig(label="y", ignore=("items", "s.more")))
    assert store.features == 1


def test_bad_values_in_objects(tmp_path):
    lines = [json.dumps({"a": {"b": {"c": 1.5}}, "y": n % 2}) for n in range(30)]
    lines[7] = '{"a": {"b": {"c": "x"}}, "y": 1}'
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"in\.jsonl:8: the value \"x\" of key 'a\.b\.c' is not a number"):
        convert(tmp_path / "in.jsonl", tmp_path / "s", ConvertConfig(label="y", numeric=("a.b.c",)))


def test_objects_of_mixed_types(tmp_path):
    """A field with several types is refused where it is used, and does not hide the others."""
    lines = [json.dumps({"a": {"odd": [1, "x"][n % 2], "b": n % 3, "deep": {"c": "w"}}, "y": n % 2}) for n in range(30)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    config = ConvertConfig(label="y", categorical=("a.b", "a.deep.*"), shuffle=False, hash_bits=10)
    wanted = FeatureHasher(1024).transform([{f"a.b={n % 3}": 1, "a.deep.c=w": 1} for n in range(30)])
    assert (convert(tmp_path / "in.jsonl", tmp_path / "s", config).to_scipy()[0] != wanted).nnz == 0
    with pytest.raises(InputError, match=r"in\.jsonl:2: .*of key 'a\.odd'"):
        convert(tmp_path / "in.jsonl", tmp_path / "t", ConvertConfig(label="y", categorical=("a.odd",)))


def test_structs_of_other_files(tmp_path):
    rows = events()
    model = train(
        convert(written_events(rows, tmp_path / "in.parquet"), tmp_path / "s", PLAIN), TrainConfig(lam=1.0)
    ).model
    for row in rows:
        if row["device"]:
            del row["device"]["model"]
    for data in (pd.DataFrame(rows), written_events(rows, tmp_path / "new.jsonl")):
        with pytest.raises(InputError, match=r"no column 'device\.model'"):
            model.decision_function(data) if isinstance(data, pd.DataFrame) else predict(
                model, data, tmp_path / "o.csv"
            )
    with pytest.raises(InputError, match=r"no column 'device\.os\.name'"):
        model.decision_function(pd.DataFrame([{**row, "device": "phone"} for row in rows]))


def test_structs_of_which_all_are_null(tmp_path):
    """A few rows to be predicted may have nothing but nulls, from which no fields are known."""
    config = ConvertConfig(label="y", shuffle=False, hash_bits=BITS)
    model = train(
        convert(written_events(events(), tmp_path / "in.jsonl"), tmp_path / "s", config), TrainConfig(lam=0.1)
    ).model
    some = {"a.b": "p", "y": 1}
    bare = {"user": {"country": None, "age": None}, "device": {"model": None, "os": {"name": None, "tags": None}}}
    wanted = model.decision_function(
        pa.Table.from_pylist([bare | some], pq.read_schema(written_events(events(), tmp_path / "a.parquet")))
    )
    for rows in (
        [{"user": None, "device": None} | some],
        [{"user": None, "device": {"os": None, "model": None}} | some],
    ):
        np.testing.assert_array_equal(model.decision_function(pd.DataFrame(rows)), wanted)
        for suffix in (".jsonl", ".arrow", ".parquet"):
            predict(model, written_events(rows, tmp_path / f"few{suffix}"), tmp_path / "out.csv")
            np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["score"], wanted)


def test_bags_of_dictionaries(tmp_path):
    """Partitions may lack fields."""
    rows = [{key: value for key, value in row.items() if value is not None} for row in events()]
    config = dataclasses.replace(PLAIN, categorical=("user.country", "device.*", "a.b"), numeric=("user.age",))
    store = Store.from_dask(dask.bag.from_sequence(rows, npartitions=40), tmp_path / "s", config=config)
    assert (store.to_scipy()[0] != hashed_events(events())).nnz == 0
