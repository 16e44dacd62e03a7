"""Tables of every kind against scikit-learn's hashers, each other, and plain arithmetic."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import StandardScaler

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.readers import registry
from ooc_pegasos.readers.base import ReadOptions
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.heaviest_features import signs
from ooc_pegasos.store.verify import verify
from support.stores import chunk_bytes

BITS = 10


def event_table(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array(["rain", "sun", "snow", "fine", "day", "Été", "über"])
    titles = [" ".join(rng.choice(words, rng.integers(0, 6))) for _ in range(rows)]
    return pa.table(
        {
            "label": rng.integers(0, 2, rows),
            "price": pa.array(rng.normal(size=rows).round(3), mask=rng.random(rows) < 0.2),
            "clicks": rng.integers(0, 4, rows),
            "city": pa.array(rng.choice(["Rome", "Oslo", "Lima", ""], rows), mask=rng.random(rows) < 0.2),
            "zone": rng.integers(0, 30, rows),
            "title": titles,
            "user": [f"u{i}" for i in range(rows)],
        }
    )


COLUMNS = {"numeric": ("price", "clicks"), "categorical": ("city", "zone"), "text": ("title",)}


def config_of_columns(**more):
    options = {"shuffle": False, "hash_bits": BITS, "values": "float32", "standardize": False}
    return ConvertConfig(**(options | COLUMNS | more))


def hashed_by_scikit_learn(table, signed=True, ngrams=(1, 1), mark=False):
    rows = []
    for row in table.select(["price", "clicks", "city", "zone"]).to_pylist():
        row["zone"] = str(row["zone"])
        if mark:
            row |= {f"{name}=null": 1 for name, value in row.items() if value is None}
        rows.append({name: value for name, value in row.items() if value is not None})
    found = FeatureHasher(2**BITS, alternate_sign=signed).transform(rows)
    vectorizer = HashingVectorizer(n_features=2**BITS, alternate_sign=signed, norm=None, ngram_range=ngrams)
    return (found + vectorizer.transform(table.column("title").to_pylist())).toarray()


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("nulls", ["absent", "mark"])
@pytest.mark.parametrize("dictionaries", [True, False])
def test_vectors_are_those_of_scikit_learn(tmp_path, signed, nulls, dictionaries):
    table = event_table()
    given = table
    if dictionaries:
        at = table.schema.get_field_index("city")
        given = table.set_column(at, "city", table.column("city").dictionary_encode())
    pq.write_table(given, tmp_path / "in.parquet", row_group_size=130)
    more = {"hash_signed": signed, "nulls": nulls, "ngrams": "1:2"}
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_of_columns(**more))
    expected = hashed_by_scikit_learn(table, signed, (1, 2), nulls == "mark")
    matrix, labels = store.to_scipy()
    np.testing.assert_allclose(matrix.toarray(), expected, rtol=1e-6, atol=1e-6)
    assert labels.tolist() == [1 if label else -1 for label in table.column("label").to_pylist()]
    assert not verify(store).problems


def test_the_same_rows_in_every_format(tmp_path):
    table = event_table()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    pyarrow.feather.write_feather(table, tmp_path / "a.feather")
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=77)
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    pyarrow.csv.write_csv(table, tmp_path / "a.tsv", pyarrow.csv.WriteOptions(delimiter="\t"))
    lines = [json.dumps({k: v for k, v in row.items() if v is not None}) for row in table.to_pylist()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    first = convert([str(tmp_path / "a.parquet")], tmp_path / "first", config_of_columns())
    for name in ("a.feather", "a.arrow", "a.csv", "b.csv.gz", "a.tsv", "a.jsonl"):
        other = convert([str(tmp_path / name)], tmp_path / f"{name}.store", config_of_columns(block_size=3000))
        assert chunk_bytes(other) == chunk_bytes(first), name
    np.testing.assert_allclose(first.to_scipy()[0].toarray(), hashed_by_scikit_learn(table), rtol=1e-6, atol=1e-6)


def test_folders_whose_names_are_columns(tmp_path):
    table = event_table(90)
    for city in ("Rome", "Oslo"):
        for day in ("1", "2"):
            folder = tmp_path / "days" / f"city={city}" / f"day={day}"
            folder.mkdir(parents=True)
            pq.write_table(table.drop_columns("city"), folder / "part.parquet")
    columns = {"numeric": ("clicks",), "categorical": ("city", "day"), "text": ()}
    store = convert([str(tmp_path / "days")], tmp_path / "store", config_of_columns(**columns))
    rows = [
        {"clicks": row["clicks"], "city": city, "day": day}
        for city in ("Oslo", "Rome")
        for day in ("1", "2")
        for row in table.to_pylist()
    ]
    np.testing.assert_array_equal(store.to_scipy()[0].toarray(), FeatureHasher(2**BITS).transform(rows).toarray())


def test_numbers_alone_are_not_hashed(tmp_path):
    table = event_table().select(["label", "price", "clicks"])
    pq.write_table(table, tmp_path / "in.parquet")
    source = [str(tmp_path / "in.parquet")]
    price = np.array([0 if x is None else x for x in table.column("price").to_pylist()])
    clicks = table.column("clicks").to_numpy()
    plain = np.column_stack([price, clicks])
    store = convert(source, tmp_path / "a", ConvertConfig(shuffle=False))
    assert store.features == 2
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), plain, rtol=1e-6)
    store = convert(source, tmp_path / "b", ConvertConfig(shuffle=False, standardize=True))
    missing = np.array([x is None for x in table.column("price").to_pylist()])
    scaled = StandardScaler().fit_transform(np.column_stack([np.where(missing, np.nan, price), clicks]))
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), np.nan_to_num(scaled), rtol=1e-5)
    store = convert(source, tmp_path / "c", ConvertConfig(shuffle=False, log1p=True, clip=0.5))
    squeezed = np.clip(np.sign(plain) * np.log1p(np.abs(plain)), -0.5, 0.5)
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), squeezed, rtol=1e-6)
    store = convert(source, tmp_path / "d", ConvertConfig(shuffle=False, nulls="mark"))
    assert store.features == 4
    np.testing.assert_allclose(
        store.to_scipy()[0].toarray(), np.column_stack([plain, missing, np.zeros(len(plain))]), rtol=1e-6
    )


def test_lists_of_indices(tmp_path):
    matrix = sp.random(200, 50, 0.1, "csr", np.float32, random_state=np.random.default_rng(1))
    labels = np.tile([0, 1], 100)
    rows = [list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in matrix]
    kinds = {
        "struct": pa.array(
            [[{"index": i, "value": x} for i, x in row] for row in rows],
            pa.list_(pa.struct([("index", pa.int64()), ("value", pa.float32())])),
        ),
        "map": pa.array(rows, pa.map_(pa.int32(), pa.float32())),
        "list": pa.array([[i for i, _x in row] for row in rows], pa.list_(pa.uint16())),
    }
    for name, column in kinds.items():
        table = pa.table({"label": labels, "features": column}).slice(10)
        pq.write_table(table, tmp_path / f"{name}.parquet")
        store = convert([str(tmp_path / f"{name}.parquet")], tmp_path / name, ConvertConfig(shuffle=False))
        expected = matrix[10:].toarray() if name != "list" else matrix[10:].toarray() != 0
        np.testing.assert_array_equal(store.to_scipy()[0].toarray(), expected[:, : store.features])


def test_labels_of_every_kind(tmp_path):
    x = pa.array(np.arange(6.0))
    for number, (labels, classes) in enumerate(
        [
            ([0, 1, 0, 1, 1, 0], ["0", "1"]),
            ([True, False, True, False, True, False], ["false", "true"]),
            (["no", "yes", "no", "yes", "no", "yes"], ["no", "yes"]),
            (["1", "-1", "1", "1", "-1", "1"], ["-1", "1"]),
            (["a", "b", "c", "a", "b", "c"], ["a", "b", "c"]),
            (pa.array(["a", "b", "a", "b", "a", "b"]).dictionary_encode(), ["a", "b"]),
        ]
    ):
        pq.write_table(pa.table({"label": labels, "x": x}), tmp_path / "in.parquet")
        store = convert([str(tmp_path / "in.parquet")], tmp_path / str(number), ConvertConfig(shuffle=False))
        assert store.manifest.labels.classes == classes
        given = labels.to_pylist() if isinstance(labels, pa.Array) else labels
        spelled = [str(word).lower() if isinstance(word, bool) else str(word) for word in given]
        found = store.to_scipy()[1]
        meaning = [-1, 1] if len(classes) == 2 else [0, 1, 2]
        assert found.tolist() == [meaning[classes.index(word)] for word in spelled]


def test_weights_are_a_column(tmp_path):
    table = event_table(100)
    weights = np.random.default_rng(2).exponential(size=100).astype(np.float32)
    pq.write_table(table.append_column("w", pa.array(weights)), tmp_path / "in.parquet")
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_of_columns(weight="w"))
    np.testing.assert_array_equal(np.concatenate([block.weights for block in store.blocks()]), weights)
    for wrong in (0.0, -1.0, float("nan"), None, 1e10):
        broken = [*weights.tolist()[:99], wrong]
        pq.write_table(table.append_column("w", pa.array(broken)), tmp_path / "in.parquet")
        with pytest.raises(InputError, match=r"in.parquet: row 100: the weight"):
            convert([str(tmp_path / "in.parquet")], tmp_path / "no", config_of_columns(weight="w"))


def test_predictions_of_raw_files(tmp_path):
    table = event_table(600)
    pq.write_table(table.slice(0, 400), tmp_path / "train.parquet")
    new = table.slice(400)
    pq.write_table(new, tmp_path / "new.parquet")
    pyarrow.csv.write_csv(
        new.drop_columns("label").select(["user", "title", "zone", "city", "clicks", "price"]), tmp_path / "new.csv"
    )
    store = convert([str(tmp_path / "train.parquet")], tmp_path / "store", config_of_columns(id="user"))
    model = train(store, TrainConfig(lam=0.01, bias="feature")).model
    expected = hashed_by_scikit_learn(new) @ model.weights + model.bias
    for name in ("new.parquet", "new.csv"):
        assert predict(model, tmp_path / name, tmp_path / "out.parquet") == 200
        found = pq.read_table(tmp_path / "out.parquet")
        assert found.column("user").to_pylist() == new.column("user").to_pylist()
        np.testing.assert_allclose(found.column("score").to_numpy(), expected, rtol=1e-5, atol=1e-6)
    right = (expected > 0) == (new.column("label").to_numpy() == 1)
    assert evaluate(model, tmp_path / "new.parquet")["accuracy"] == pytest.approx(right.mean())
    with pytest.raises(InputError, match="no column 'label'"):
        evaluate(model, tmp_path / "new.csv")
    pq.write_table(new.rename_columns(["label", "prise", *new.column_names[2:]]), tmp_path / "renamed.parquet")
    with pytest.raises(InputError, match=r"no column 'price' \(is it 'prise'\?\)"):
        predict(model, tmp_path / "renamed.parquet", tmp_path / "out.parquet")
    other = new.set_column(1, "price", pa.array(["cheap"] * 200))
    pq.write_table(other, tmp_path / "other.parquet")
    with pytest.raises(InputError, match="column 'price' is of type string, not a number"):
        predict(model, tmp_path / "other.parquet", tmp_path / "out.parquet")
    (tmp_path / "rows.svm").write_text("1 1:1\n0 2:1\n")
    with pytest.raises(InputError, match="read as svmlight, but the model was trained on data read as table"):
        evaluate(model, tmp_path / "rows.svm")


def test_names_of_features(tmp_path):
    table = event_table(300)
    pq.write_table(table.slice(0, 200), tmp_path / "a.parquet")
    pq.write_table(table.slice(200), tmp_path / "b.parquet")
    given = config_of_columns(text=(), feature_names=1000, hash_bits=20)
    store = convert([str(tmp_path / "a.parquet")], tmp_path / "store", given)
    store = convert(
        [str(tmp_path / "b.parquet")],
        tmp_path / "store",
        ConvertConfig(shuffle=False, feature_names=1000),
        existing=Existing(append=True),
    )
    assert not verify(store).problems
    assert not verify(store).strays
    model = train(store, TrainConfig(lam=0.01)).model
    model.save(tmp_path / "model")
    names = {name: place for place, name in model.load(tmp_path / "model").vocabulary.known_names().items()}
    sign = signs(model.vocabulary.known_names(), model.info.recipe)
    cities = {f"city={city}" for city in table.column("city").to_pylist() if city is not None}
    assert cities | {"price", "clicks"} <= set(names)
    hasher = FeatureHasher(2**20)
    for name in cities:
        row = hasher.transform([{name: 1}])
        place = names[name]
        assert (row.indices[0], row.data[0]) == (place, sign[place])
        assert (row @ model.weights)[0] == pytest.approx(model.weights[place] * sign[place])


def test_problems_of_rows_are_reported_or_listed(tmp_path):
    table = event_table(50)
    price = [float(x or 0) for x in table.column("price").to_pylist()]
    price[7], price[30] = float("nan"), float("inf")
    labels = [*table.column("label").to_pylist()]
    labels[40] = None
    broken = table.set_column(1, "price", pa.array(price)).set_column(0, "label", pa.array(labels))
    pq.write_table(broken, tmp_path / "in.parquet", row_group_size=20)
    source = [str(tmp_path / "in.parquet")]
    with pytest.raises(InputError, match=r"in.parquet: row 8: the value nan in column 'price' is not finite"):
        convert(source, tmp_path / "store", config_of_columns())
    store = convert(source, tmp_path / "store", config_of_columns(on_bad_row="skip"))
    listed = [json.loads(line) for line in (store.path / "rejected.jsonl").read_text().splitlines()]
    assert [row["line"] for row in listed] == [8, 31, 41]
    assert "no label in column 'label'" in listed[2]["problem"]
    assert (store.rows, store.manifest.rejected) == (47, 3)
    kept = [row for row in range(50) if row not in (7, 30, 40)]
    expected = hashed_by_scikit_learn(broken.take(kept))
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), expected, rtol=1e-6, atol=1e-6)
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"no value in column '(city|price)'"):
        convert(source, tmp_path / "other", config_of_columns(nulls="bad"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"label": "lable"}, r"label=lable: no column 'lable' \(is it 'label'\?\)"),
        ({"numeric": ("prize",)}, r"numeric=prize: no column 'prize' \(is it 'price'\?\)"),
        ({"numeric": ("price",), "categorical": ("pri*",)}, "'price' is given by numeric and by categorical"),
        ({"text": ("clicks",), "numeric": ()}, "'clicks' is of type int64, not text"),
        ({"numeric": ("city",), "categorical": ()}, "'city' is of type string, not a number"),
        ({"standardize": True, "numeric": ()}, "no column holds numbers"),
        ({"id": "nobody"}, "id=nobody"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(tmp_path, given, problem):
    pq.write_table(event_table(20), tmp_path / "in.parquet")
    with pytest.raises((UsageError, InputError), match=problem):
        convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_of_columns(**given))
    assert not (tmp_path / "store").exists()


def test_no_label_and_options_of_other_inputs(tmp_path):
    pq.write_table(event_table(20).drop_columns("label"), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="which column has the labels"):
        convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_of_columns())
    (tmp_path / "in.svm").write_text("1 1:1\n0 2:1\n")
    with pytest.raises(UsageError, match="label is for tables"):
        convert([str(tmp_path / "in.svm")], tmp_path / "store", ConvertConfig(label="x"))
    with pytest.raises(InputError, match="convert files of one format at a time"):
        convert([str(tmp_path / "in.svm"), str(tmp_path / "in.parquet")], tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_damaged_parquet_is_refused_or_read(tmp_path, compression):
    pq.write_table(event_table(200), tmp_path / "in.parquet", compression=compression, row_group_size=70)
    whole = (tmp_path / "in.parquet").read_bytes()
    rng = np.random.default_rng(5)
    refused = 0
    for number in range(60):
        broken = bytearray(whole)
        broken[rng.integers(4, len(whole))] ^= 1 << int(rng.integers(8))
        if number % 6 == 0:
            broken = broken[: rng.integers(1, len(whole))]
        (tmp_path / "broken.parquet").write_bytes(bytes(broken))
        try:
            store = convert(
                [str(tmp_path / "broken.parquet")],
                tmp_path / "store",
                config_of_columns(),
                existing=Existing(force=True),
            )
            assert store.rows <= 200
        except OocPegasosError as error:
            refused += 1
            assert str(error)
    assert refused >= 5


def test_every_place_to_resume_from(tmp_path):
    table = event_table()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    pyarrow.csv.write_csv(table, tmp_path / "b.csv")
    for name in ("a.parquet", "b.csv"):
        config = config_of_columns(format="table")
        recipe = registry.new_recipe(config, [str(tmp_path / name)], lambda _text: None)

        def rest(source=0, start=0, state=None, recipe=recipe, name=name):
            reader = registry.reader_for([str(tmp_path / name)], recipe, ReadOptions(3000))
            found = []
            for task in reader.tasks(source, start, state):
                parsed = reader.read(task)
                found.append((task.end, task.hash_state, parsed.block.to_scipy().toarray()))
            return found

        whole = rest()
        assert len(whole) > 3
        for place, (end, state, _rows) in enumerate(whole):
            again = rest(0, end, state)
            assert [end for end, _state, _rows in again] == [end for end, _state, _rows in whole[place + 1 :]]
            for mine, theirs in zip(again, whole[place + 1 :], strict=True):
                np.testing.assert_array_equal(mine[2], theirs[2])


def test_a_preview_writes_nothing_and_shows_the_rows(tmp_path):
    table = event_table(30)
    pq.write_table(table, tmp_path / "in.parquet")
    before = sorted(path.name for path in tmp_path.iterdir())
    found = preview([str(tmp_path / "in.parquet")], config_of_columns())
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    expected = hashed_by_scikit_learn(table)
    for row in found.rows:
        for place, value in row["entries"]:
            assert expected[row["row"] - 1, place] == pytest.approx(value, rel=1e-6)
        assert row["label"] == str(table.column("label")[row["row"] - 1].as_py())
    assert any("price" in line for line in found.lines())


def test_a_table_of_nothing(tmp_path):
    table = event_table(5)
    pq.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="no rows"):
        convert([str(tmp_path / "empty.parquet")], tmp_path / "store", config_of_columns())
    table = event_table(40)
    nothing = table.set_column(3, "city", pa.nulls(40, pa.string()))
    pq.write_table(nothing, tmp_path / "nulls.parquet")
    store = convert([str(tmp_path / "nulls.parquet")], tmp_path / "store", config_of_columns())
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), hashed_by_scikit_learn(nothing), rtol=1e-6, atol=1e-6)
    assert isinstance(store, Store)
