"""Tables of every format: vectors against scikit-learn, labels, bad rows, damaged files, models on other formats."""

import gzip
import json
import re
import shutil

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

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.readers import registry, table_recipe
from ooc_pegasos.readers.base import ReadOptions
from ooc_pegasos.readers.vectorize import Vectorizer
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.heaviest_features import signs
from ooc_pegasos.store.recipe import Column, Table
from ooc_pegasos.store.verify import verify
from ooc_pegasos.store.vocabulary import of_store
from ooc_pegasos.util import json_checksum
from support.file_bytes import folder_bytes

BITS = 10


def table_config(**options):
    return ConvertConfig(**{"label": "y", "shuffle": False, "hash_bits": BITS, "standardize": False, **options})


def store_of_table(folder, data, options=None, name="in.parquet", **writing):
    """A store of a table, through Parquet."""
    pq.write_table(data if isinstance(data, pa.Table) else pa.table(data), folder / name, **writing)
    return convert([str(folder / name)], folder / "store", options or table_config(), existing=Existing(force=True))


def dense_rows(store):
    return store.to_scipy()[0].toarray()


def mixed(rows, seed=0, nulls=True):
    """Numbers, categories of all types, a text, and labels; as lists of Python values."""
    rng = np.random.default_rng(seed)
    words = [f"word{i}" for i in range(30)] + ["Straße", "naïve", "日本"]

    def some(values):
        return [value if not nulls or rng.random() > 0.15 else None for value in values]

    return {
        "y": rng.integers(0, 2, rows).tolist(),
        "n": some(rng.integers(-50, 50, rows).tolist()),
        "x": some((rng.integers(-1000, 1000, rows) / 8).tolist()),
        "s": some([words[i] for i in rng.integers(0, len(words), rows)]),
        "k": some(rng.integers(0, 400, rows).tolist()),
        "b": some((rng.random(rows) > 0.5).tolist()),
        "d": some([words[i] for i in rng.integers(0, len(words), rows)]),
        "t": some([" ".join(words[i] for i in rng.integers(0, 33, rng.integers(0, 9))) for _ in range(rows)]),
    }


KINDS = {"numeric": ("n", "x"), "categorical": ("s", "k", "b", "d"), "text": ("t",)}


def arrow_table(found):
    types = {"n": pa.int32(), "x": pa.float64(), "k": pa.int64(), "b": pa.bool_(), "y": pa.int64()}
    columns = {name: pa.array(values, types.get(name, pa.string())) for name, values in found.items()}
    if "d" in columns:
        columns["d"] = columns["d"].dictionary_encode()
    return pa.table(columns)


def spelled(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows_by_sklearn(found, signed=True, mark=False, ngrams=(1, 1), number=lambda x: x):
    """What README promises, by scikit-learn alone."""
    rows = []
    for i in range(len(found["y"])):
        row = {}
        for name in KINDS["numeric"] + KINDS["categorical"]:
            value = found[name][i]
            if value is None:
                if mark:
                    row[f"{name}=null"] = 1
            elif name in KINDS["numeric"]:
                row[name] = number(value)
            else:
                row[f"{name}={spelled(value)}"] = 1
        if mark and found["t"][i] is None:
            row["t=null"] = 1
        rows.append(row)
    hasher = FeatureHasher(2**BITS, alternate_sign=signed)
    texts = HashingVectorizer(n_features=2**BITS, alternate_sign=signed, norm=None, ngram_range=ngrams)
    return (hasher.transform(rows) + texts.transform([text or "" for text in found["t"]])).toarray()


# --- vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("nulls", ["absent", "mark"])
@pytest.mark.parametrize("names", [0, 50])
def test_vectors_are_those_of_sklearn(tmp_path, signed, nulls, names):
    found = mixed(400)
    options = table_config(**KINDS, hash_signed=signed, nulls=nulls, feature_names=names, ngrams="1:2")
    store = store_of_table(tmp_path, arrow_table(found), options, row_group_size=150)
    assert store.features == 2**BITS
    expected = rows_by_sklearn(found, signed, nulls == "mark", (1, 2))
    np.testing.assert_array_equal(dense_rows(store), expected)
    np.testing.assert_array_equal(store.to_scipy()[1], 2 * np.array(found["y"]) - 1)


def test_log1p_and_clip(tmp_path):
    found = mixed(200)
    store = store_of_table(tmp_path, arrow_table(found), table_config(**KINDS, log1p=True, clip=3.5))

    def number(x):
        return float(np.clip(np.sign(x) * np.log1p(abs(x)), -3.5, 3.5))

    np.testing.assert_allclose(dense_rows(store), rows_by_sklearn(found, number=number), rtol=1e-6, atol=1e-6)


def test_numeric_columns_are_not_hashed(tmp_path):
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((100, 3)).astype(np.float32)
    numbers[rng.random((100, 3)) < 0.2] = 0
    data = {"y": np.arange(100) % 2, "b": numbers[:, 0], "a": numbers[:, 1], "a=null": numbers[:, 2]}
    store = store_of_table(tmp_path, data)
    assert store.features == 3
    np.testing.assert_array_equal(dense_rows(store), numbers)
    assert of_store(store.path, store.manifest).known_names() == {0: "b", 1: "a", 2: "a=null"}
    data["a"] = pa.array([None if i % 3 == 0 else 1.0 for i in range(100)])
    store = store_of_table(tmp_path, data, table_config(nulls="mark"))
    expected = np.zeros((100, 6), np.float32)
    expected[:, [0, 2]] = numbers[:, [0, 2]]
    expected[:, 1] = np.arange(100) % 3 > 0
    expected[:, 4] = np.arange(100) % 3 == 0
    np.testing.assert_array_equal(dense_rows(store), expected)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.bool_(), pa.decimal128(9, 2), pa.null()]
)
def test_types_of_numbers(tmp_path, kind):
    values = (
        [None] * 4
        if pa.types.is_null(kind)
        else pa.array([0, 1, 1, None]).cast(pa.float64() if pa.types.is_decimal(kind) else kind).cast(kind)
    )
    data = {"y": [0, 1, 0, 1], "x": pa.array(values, kind), "z": [1.0, 2, 3, 4]}
    store = store_of_table(tmp_path, data, table_config(numeric=("x", "z")))
    assert dense_rows(store)[:, 0].tolist() == ([0] * 4 if pa.types.is_null(kind) else [0, 1, 1, 0])


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_standardize(tmp_path, shift):
    rng = np.random.default_rng(2)
    numbers = (shift + rng.standard_normal((500, 3)) * [1, 30, 0.25]).astype(np.float32)
    numbers[:, 2] = 7
    data = {"y": np.arange(500) % 2, "c": [f"c{i % 5}" for i in range(500)]}
    data |= {f"x{i}": numbers[:, i] for i in range(3)}
    store = store_of_table(tmp_path, data, table_config(standardize=True, numeric=("x*",)))
    expected = StandardScaler().fit_transform(numbers.astype(float))
    expected[:, 2] = 1  # a constant column is divided by its size
    np.testing.assert_allclose(dense_rows(store), expected, rtol=1e-5, atol=1e-7)


def test_nulls_may_be_bad(tmp_path):
    data = {"y": [0, 1, 0, 1], "c": ["a", None, "b", "c"], "x": [1.0, 2.0, None, 4.0]}
    with pytest.raises(InputError, match=r"in.parquet: row 2: no value in column 'c'"):
        store_of_table(tmp_path, data, table_config(nulls="bad"))
    store = store_of_table(tmp_path, data, table_config(nulls="bad", on_bad_row="skip"))
    assert store.rows == 2
    listed = [json.loads(line) for line in (store.path / "rejected.jsonl").read_text().splitlines()]
    assert [(row["line"], row["problem"].split(";")[0]) for row in listed] == [
        (2, "no value in column 'c'"),
        (3, "no value in column 'x'"),
    ]


LISTS = [[(3, 1.5), (0, -2.0)], None, [], [(7, 4.0), (7, 1.0)], [(1, 0.0)], [(2, 2.5)]]


def entries_arrays():
    pairs = [None if row is None else [{"index": i, "value": v} for i, v in row] for row in LISTS]
    swapped = [None if row is None else [{"value": v, "index": i} for i, v in row] for row in LISTS]
    index, value = pa.field("index", pa.int32()), pa.field("value", pa.float64())
    yield "struct", pa.array(pairs, pa.list_(pa.struct([index, value])))
    yield "large", pa.array(pairs, pa.large_list(pa.struct([index, value])))
    yield "swapped", pa.array(swapped, pa.list_(pa.struct([value, index])))
    yield "map", pa.array(LISTS, pa.map_(pa.int64(), pa.float32()))
    indices = [None if row is None else [i for i, _v in row] for row in LISTS]
    yield "list", pa.array(indices, pa.list_(pa.uint32()))
    fixed = [None if row is None else (indices[n] + [9, 9])[:2] for n, row in enumerate(LISTS)]
    yield "fixed", pa.array(fixed, pa.list_(pa.int16(), 2))


@pytest.mark.parametrize("form", ["parquet", "arrow", "slice"])
@pytest.mark.parametrize(("name", "array"), list(entries_arrays()))
def test_columns_of_entries(tmp_path, name, array, form):
    rows = array.to_pylist()
    expected = np.zeros((len(rows), 10), np.float32)
    for number, row in enumerate(rows):
        for entry in row or []:
            index, value = (entry["index"], entry["value"]) if isinstance(entry, dict) else (entry, 1)
            index, value = entry if isinstance(entry, tuple) else (index, value)
            expected[number, index] += value
    labels = pa.array([0, 1] * (len(rows) // 2))
    data, options = pa.table({"y": labels, "e": array}), table_config(features=10)
    if form == "parquet":
        store = store_of_table(tmp_path, data, options)
    else:
        if form == "slice":
            data, expected = data.slice(2, 3), expected[2:5]
        store = Store.from_arrow(data, tmp_path / "store", options)
    np.testing.assert_array_equal(dense_rows(store), expected)


def test_null_lists_that_have_entries(tmp_path):
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 5], pa.int32()), pa.array([1, 2, 3, 4, 0]), mask=pa.array([False, True, False])
    )
    store = Store.from_arrow(pa.table({"y": [0, 1, 0], "e": array}), tmp_path / "store", table_config())
    assert dense_rows(store).tolist() == [[0, 1, 1, 0, 0], [0] * 5, [1, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (pa.array([[1.5], [2.0]]), "indices are of type double"),
        (pa.array([{"a": [1.5]}, {"a": [2.5]}]), r"'e\.a' is of type list<.*double>"),
        (pa.array([[{"a": 1, "b": 2, "c": 3}], []]), "3 fields"),
        (pa.array([[{"a": 1, "b": "x"}], []]), "values are of type string"),
        (pa.array([[[1]], [[2]]]), "indices are of type list"),
    ],
)
def test_nested_columns_that_are_no_entries(tmp_path, array, problem):
    with pytest.raises(InputError, match=problem):
        store_of_table(tmp_path, {"y": [0, 1], "e": array})


@pytest.mark.parametrize("index", [-1, None, 2**32 - 1])
def test_bad_indices(tmp_path, index):
    with pytest.raises(InputError, match=r"row 3: an index in column 'e'"):
        store_of_table(tmp_path, {"y": [0, 1, 0], "e": pa.array([[1], [], [2, index]])})


def test_entries_stand_alone(tmp_path):
    data = {"y": [0, 1], "e": pa.array([[(1, 2)], [(2, 3)]], pa.map_(pa.int32(), pa.int32())), "c": ["a", "b"]}
    with pytest.raises(UsageError, match="indices of its own"):
        store_of_table(tmp_path, data)
    del data["c"]
    with pytest.raises(UsageError, match="nulls=mark"):
        store_of_table(tmp_path, data, table_config(nulls="mark"))


# --- formats --------------------------------------------------------------------------------------


def write_table(data, path):
    """A table in the format of its name."""
    name = path.name
    if name.endswith(".parquet"):
        pq.write_table(data, path, row_group_size=70)
    elif name.endswith(".feather"):
        pyarrow.feather.write_feather(data, path, chunksize=90)
    elif name.endswith(".stream.arrow"):
        with pa.ipc.new_stream(path, data.schema) as writer:
            writer.write_table(data, 33)
    elif ".jsonl" in name or ".ndjson" in name:
        rows = data.to_pylist()
        text = "".join(
            json.dumps({k: v for k, v in row.items() if v is not None or i == 0}) + "\n" for i, row in enumerate(rows)
        )
        path.write_text(text)
    else:
        options = pyarrow.csv.WriteOptions(delimiter="\t" if ".tsv" in name else ",")
        sink = pa.BufferOutputStream()
        plain = (
            data.set_column(data.schema.names.index("d"), "d", data["d"].cast(pa.string()))
            if "d" in data.schema.names
            else data
        )
        pyarrow.csv.write_csv(plain, sink, options)
        content = sink.getvalue().to_pybytes()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


FORMS = ["a.parquet", "a.feather", "a.stream.arrow", "a.csv", "a.csv.gz", "a.tsv", "a.jsonl"]


def chunks_of(store):
    return {chunk.file: (store.path / chunk.file).read_bytes() for chunk in store.manifest.chunks}


def test_all_formats_give_the_same_bytes(tmp_path):
    data = arrow_table(mixed(400))
    stores = {
        form: convert(
            [write_table(data, tmp_path / form)], tmp_path / f"{form}.store", table_config(**KINDS, block_size=1 << 12)
        )
        for form in FORMS
    }
    first = chunks_of(stores[FORMS[0]])
    for form, store in stores.items():
        assert chunks_of(store) == first, form


def test_several_files_and_folders_with_keys(tmp_path):
    data = arrow_table(mixed(300))
    together = data.append_column("day", pa.array(["mon"] * 100 + ["tue y"] * 100 + ["7"] * 100))
    kinds = KINDS | {"categorical": (*KINDS["categorical"], "day")}
    whole = convert([write_table(together, tmp_path / "a.parquet")], tmp_path / "whole", table_config(**kinds))
    for number, form in enumerate([".parquet", ".csv", ".ndjson"]):
        folder = tmp_path / "parts" / f"day={['mon', 'tue%20y', '7'][number]}" / "deep"
        folder.mkdir(parents=True)
        write_table(data.slice(100 * number, 100), folder / f"{number}{form}")
    found = [next((tmp_path / "parts").rglob(f"{number}.*")).relative_to(tmp_path) for number in range(3)]
    paths = [f"{tmp_path}/./{path}" for path in found]
    parts = convert(paths, tmp_path / "parts.store", table_config(**kinds))
    assert chunks_of(parts) == chunks_of(whole)
    folder = convert([str(tmp_path / "parts")], tmp_path / "folder.store", table_config(**kinds))
    assert sorted(map(bytes, dense_rows(folder))) == sorted(map(bytes, dense_rows(whole)))
    assert [source.rows for source in folder.manifest.sources] == [100, 100, 100]


def test_a_column_may_be_in_the_file_and_in_its_path(tmp_path):
    folder = tmp_path / "c=x"
    folder.mkdir()
    (folder / "a.csv").write_text("y,c\n0,u\n1,v\n")
    pq.write_table(pa.table({"y": [0, 1], "c": ["u", "v"]}), folder / "a.parquet")
    stores = [convert([f"{tmp_path}/./c=x/a.{end}"], tmp_path / end, table_config()) for end in ("csv", "parquet")]
    assert chunks_of(stores[0]) == chunks_of(stores[1])
    assert stores[0].nonzeros == 2


def test_a_number_from_a_path_is_refused(tmp_path):
    folder = tmp_path / "n=3"
    folder.mkdir()
    (folder / "a.csv").write_text("y,c\n0,u\n1,v\n")
    with pytest.raises(InputError, match="column 'n' is of type string, not a number"):
        convert([f"{tmp_path}/./n=3/a.csv"], tmp_path / "store", table_config(numeric=("n",)))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_columns_of_the_path_alone(tmp_path, suffix):
    for town, label in (("oslo", 0), ("rome", 1)):
        folder = tmp_path / f"town={town}"
        folder.mkdir()
        lines = [json.dumps({"y": label}) + "\n"] * 3 if suffix == ".jsonl" else ["y\n", *[f"{label}\n"] * 3]
        (folder / f"a{suffix}").write_text("".join(lines))
    files = [f"{tmp_path}/./town={town}/a{suffix}" for town in ("oslo", "rome")]
    model = train(convert(files, tmp_path / "store", table_config()), TrainConfig(lam=0.1)).model
    assert [evaluate(model, file)["error"] for file in files] == [0.0, 0.0]
    for file in files:
        assert predict(model, file, tmp_path / "scores.csv") == 3


@pytest.mark.parametrize("form", FORMS)
def test_going_on_after_any_task(tmp_path, form):
    rows = 700
    data = arrow_table(mixed(rows))
    wanted = [data.slice(i, 233) for i in range(0, rows, 233)]  # dictionaries that differ end batches early
    data = pa.concat_tables(
        [part.set_column(6, "d", part["d"].combine_chunks().cast(pa.string()).dictionary_encode()) for part in wanted]
    )
    names = [write_table(data, tmp_path / f"{number}{form}") for number in range(2)]
    recipe = registry.new_recipe(table_config(**KINDS, format="table"), names, lambda _remark: None)
    reader = registry.reader_for(names, recipe, ReadOptions(1 << 12))

    def read(tasks, reader=reader):
        found = []
        for task in tasks:
            parsed = reader.read(task)
            block = parsed.block
            found.append(
                (task.source, task.end, *(bytes(x) for x in (block.indptr, block.indices, block.values, block.labels)))
            )
        return found

    def ends():
        return [(task.source, task.end, task.hash_state) for task in reader.tasks()]

    every = read(reader.tasks())
    assert sum(len(block[5]) // 8 for block in every) == 2 * rows
    for number, (source, end, state) in list(enumerate(ends()))[:: max(len(every) // 8, 1)]:
        again = registry.reader_for(names, recipe, ReadOptions(1 << 12))
        assert read(again.tasks(source, end, state), again) == every[number + 1 :], number


def test_a_parquet_file_whose_dictionaries_end_batches_early(tmp_path):
    """Arrow may give more batches than rows / batch size; none may be lost after any of them."""
    rows = 3000
    words = [f"{i}-{'x' * 200}" for i in range(rows)]
    data = pa.table({"y": [0, 1] * (rows // 2), "c": words})
    pq.write_table(
        data, tmp_path / "a.parquet", row_group_size=1000, dictionary_pagesize_limit=20_000, data_page_size=5000
    )
    names = [str(tmp_path / "a.parquet")]
    recipe = registry.new_recipe(table_config(format="table"), names, lambda _remark: None)
    reader = registry.reader_for(names, recipe, ReadOptions(300))
    blocks = [(task.end, reader.read(task).block.rows) for task in reader.tasks()]
    assert blocks[-1][0] == sum(n for _end, n in blocks) == rows
    for number, (end, _rows) in enumerate(blocks):
        assert [(task.end, reader.read(task).block.rows) for task in reader.tasks(0, end)] == blocks[number + 1 :]


# --- labels, weights, ids -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([3, 5, 3, 5], ["3", "5"]),
        ([0.5, 2.0, 0.5, 2.0], ["0.5", "2"]),
        ([False, True, False, True], ["false", "true"]),
        (["no", "so so", "no", "so so"], ["no", "so so"]),
        (["1", "2.0", " 1", "+2"], ["1", "2"]),
        (pa.array(["b", "a", "b", "a"]).dictionary_encode(), ["a", "b"]),
        (pa.array([1, 2, 1, 2]).dictionary_encode(), ["1", "2"]),
        (["a", "b", "c", "a"], ["a", "b", "c"]),
        (pa.array(["x", "y", "x", "y"], pa.string_view()), ["x", "y"]),
    ],
)
def test_labels(tmp_path, labels, classes):
    data = pa.table({"y": pa.array(labels) if isinstance(labels, list) else labels, "x": [1.0, 2, 3, 4]})
    store = Store.from_arrow(data, tmp_path / "store", table_config())
    assert store.manifest.labels.classes == classes
    spelled = [str(label).strip(" +") for label in data["y"].to_pylist()]
    found = store.to_scipy()[1]
    if len(classes) == 2:
        order = dict(zip(classes, (-1, 1), strict=True))
        as_class = {"2.0": "2", "False": "false", "True": "true"}
        assert found.tolist() == [order[as_class.get(name, name)] for name in spelled]
    else:
        assert found.tolist() == [classes.index(name) for name in spelled]


@pytest.mark.parametrize(
    "labels", [[1, 2, None, 1], ["a", "b", None, "a"], ["a", "b", "", "a"], [1.0, 2.0, np.nan, 1.0]]
)
def test_rows_without_a_label(tmp_path, labels):
    data = {"y": labels, "x": [1.0, 2, 3, 4], "c": ["a", "b", "c", "d"]}
    with pytest.raises(InputError, match=r"in.parquet: row 3: .*label"):
        store_of_table(tmp_path, data)
    assert store_of_table(tmp_path, data, table_config(on_bad_row="skip")).rows == 3


@pytest.mark.parametrize("labels", [[[1], [2]], pa.array([1, 2], pa.timestamp("s"))])
def test_labels_of_impossible_types(tmp_path, labels):
    with pytest.raises(InputError, match="column 'y' is of type"):
        store_of_table(tmp_path, {"y": labels, "x": [1.0, 2.0]})


def test_weights(tmp_path):
    data = {"y": [0, 1, 0, 1], "w": [1, 2, 0.5, 4], "x": [1.0, 2, 3, 4], "i": ["p", "q", "r", "s"]}
    assert store_of_table(tmp_path, data, table_config(weight="w", id="i")).weights().tolist() == [1, 2, 0.5, 4]
    for wrong in (0, -1, None, np.nan, np.inf, 1e10):
        with pytest.raises(InputError, match=r"row 2: the weight .* is not from 1e-9 to 1e9"):
            store_of_table(tmp_path, data | {"w": [1.0, wrong, 1.0, 1.0]}, table_config(weight="w", id="i"))
    (tmp_path / "a.csv").write_text("y,w,x\n0,1,1\n1,heavy,2\n")
    with pytest.raises(InputError, match=r"a.csv:3: the weight 'heavy'"):
        convert([str(tmp_path / "a.csv")], tmp_path / "other", table_config(weight="w"))


def test_a_file_of_weights_when_many_rows_are_bad(tmp_path):
    """More bad rows in a block than are described."""
    lines = [f"{i % 2},{'bad' if 10 <= i < 2500 else i}" for i in range(3000)]
    (tmp_path / "a.csv").write_text("y,x\n" + "\n".join(lines) + "\n")
    (tmp_path / "weights").write_text("".join(f"{i + 1}\n" for i in range(3000)))
    options = table_config(weights=str(tmp_path / "weights"), on_bad_row="skip", numeric=("x",))
    store = convert([str(tmp_path / "a.csv")], tmp_path / "store", options)
    assert store.weights().tolist() == [*range(1, 11), *range(2501, 3001)]
    assert len((store.path / "rejected.jsonl").read_text().splitlines()) == 1001


# --- models on new files --------------------------------------------------------------------------


@pytest.fixture
def trained_on_table(tmp_path):
    data = arrow_table(mixed(400, seed=3))
    data = data.append_column("who", pa.array([f"id {i}" for i in range(400)])).append_column(
        "w", pa.array([1.0] * 400)
    )
    store = convert(
        [write_table(data, tmp_path / "train.parquet")], tmp_path / "store", table_config(**KINDS, id="who", weight="w")
    )
    return train(store, TrainConfig(lam=0.05)).model, store, data


def metrics_of(model, data):
    """To twelve digits: sums are made batch by batch."""
    return {name: float(f"{x:.12g}") if isinstance(x, float) else x for name, x in evaluate(model, data).items()}


def read_scores(path):
    return (pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)).to_pydict()


@pytest.mark.parametrize("form", FORMS)
def test_models_take_other_formats(tmp_path, trained_on_table, form):
    model, store, data = trained_on_table
    file = write_table(data.append_column("extra", pa.array(range(400))).drop_columns("w"), tmp_path / form)
    expected = metrics_of(model, store.path)
    assert metrics_of(model, file) == expected
    assert metrics_of(model, write_table(data.drop_columns("who"), tmp_path / f"2{form}")) == expected
    unlabelled = write_table(data.drop_columns(["y", "w"]), tmp_path / f"3{form}")
    for end in (".parquet", ".csv"):
        assert predict(model, unlabelled, tmp_path / f"out{end}") == 400
        found = read_scores(tmp_path / f"out{end}")
        assert found["who"] == data["who"].to_pylist()
        np.testing.assert_allclose(found["score"], model.decision_function(store.to_scipy()[0]), rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="no column 'y'; the columns are n, x"):
        evaluate(model, unlabelled)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_files_that_do_not_fit_a_model(tmp_path, trained_on_table, form):
    model, _store, data = trained_on_table
    with pytest.raises(InputError, match=r"no column 't'"):
        predict(model, write_table(data.drop_columns("t"), tmp_path / form), tmp_path / "o.csv")
    numbers = data.rename_columns({"x": "xx"})
    with pytest.raises(InputError, match=r"no column 'x' \(is it 'xx'\?\); the columns are"):
        predict(model, write_table(numbers, tmp_path / form), tmp_path / "o.csv")
    words = data.set_column(2, "x", pa.array(["three"] * 400))
    with pytest.raises(InputError, match=r"column .x. is of type string, not a number|not a number|number"):
        predict(model, write_table(words, tmp_path / form), tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()
    if "json" not in form:
        empty = write_table(data.slice(0, 0), tmp_path / form)
        assert predict(model, empty, tmp_path / "o.csv") == 0
        with pytest.raises(InputError, match="no rows"):
            evaluate(model, empty)
    (tmp_path / "nothing.csv").write_text("")
    with pytest.raises(InputError, match=r"nothing.csv: .*empty"):
        predict(model, tmp_path / "nothing.csv", tmp_path / "o2.csv")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["a.parquet", "a.feather", "a.stream.arrow"])
def test_truncated(tmp_path, form):
    data = arrow_table(mixed(200))
    write_table(data, tmp_path / form)
    content = (tmp_path / form).read_bytes()
    for size in [0, 3, 4, 8, 11, 40, len(content) // 2, len(content) - 9, len(content) - 1]:
        (tmp_path / form).write_bytes(content[:size])
        try:
            convert([str(tmp_path / form)], tmp_path / "store", table_config(**KINDS), existing=Existing(force=True))
        except InputError as error:
            assert form in str(error)
        else:
            assert form != "a.parquet"


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a_flipped_byte_in_parquet(tmp_path, compression):
    """Either the input is refused or a store is made."""
    file = tmp_path / "a.parquet"
    rng = np.random.default_rng(5)
    for with_checksums in (True, False):
        data = arrow_table(mixed(120))
        pq.write_table(data, file, compression=compression, row_group_size=64, write_page_checksum=with_checksums)
        content, refused = bytearray(file.read_bytes()), 0
        footer = int.from_bytes(content[-8:-4], "little") + 8
        reach = len(content) - footer
        for at in rng.integers(4, reach, 60 if with_checksums else 120).tolist():
            changed = content.copy()
            changed[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            options = table_config(**KINDS, threads=1)
            try:
                convert([str(file)], tmp_path / "store", options, existing=Existing(force=True))
            except InputError as error:
                refused += 1
                assert "a.parquet" in str(error)
        assert refused > 5
        assert not (tmp_path / "store.unfinished").exists()


@pytest.mark.slow
def test_a_flipped_byte_in_arrow(tmp_path):
    file = tmp_path / "a.arrow"
    with pa.ipc.new_file(file, (data := arrow_table(mixed(60))).schema) as writer:
        writer.write_table(data)
    content, rng = bytearray(file.read_bytes()), np.random.default_rng(6)
    for at in rng.integers(8, len(content), 150).tolist():
        changed = content.copy()
        changed[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        try:
            convert([str(file)], tmp_path / "store", table_config(**KINDS, threads=1), existing=Existing(force=True))
        except OocPegasosError as error:
            assert "a.arrow" in str(error) or "--" in str(error)


def test_names_of_columns_that_are_no_words(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"label": 1, "\\ud800": 2}\n{"label": 0}\n[')
    data = pa.table({"label": [1, 0], "abcdefgh": [1.0, 2.0]})
    with pa.ipc.new_file(tmp_path / "a.arrow", data.schema) as writer:
        writer.write_table(data)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content.replace(b"abcdefgh", b"abcd\xff\xfegh"))
    for name in ("a.jsonl", "a.arrow"):
        with pytest.raises(InputError, match=name):
            convert([str(tmp_path / name)], tmp_path / "store", table_config())


def test_invalid_utf8_prints_no_traceback(tmp_path, oocpeg):
    """pyarrow cannot hand a row to Python that it cannot decode, and prints a traceback instead."""
    (tmp_path / "a.csv").write_bytes(b'label,x,y\n1,2,3\n1,"\xb1"\r,4\n' + b'0,\xb1"a\r"b,4,5\n' + b"0,1,\xff\r1\n")
    said = oocpeg("convert", "a.csv", "-o", "s", "--on-bad-row", "skip", code=None).stderr
    assert "Exception" not in said
    assert "codec" not in said


def test_schemas_that_differ(tmp_path):
    first = write_table(pa.table({"y": [0, 1], "x": [1.0, 2.0]}), tmp_path / "a.parquet")
    second = write_table(pa.table({"y": [0, 1], "x": ["a", "b"]}), tmp_path / "b.parquet")
    third = write_table(pa.table({"y": [0, 1], "z": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"b.parquet: column 'x' is of type string, not a number"):
        convert([first, second], tmp_path / "store", table_config())
    with pytest.raises(InputError, match=r"c.parquet: no column 'x'"):
        convert([first, third], tmp_path / "store", table_config())
    (tmp_path / "d.svm").write_text("1 1:1\n")
    with pytest.raises(InputError, match=r"d.svm: read as svmlight, but .*a.parquet as table"):
        convert([first, str(tmp_path / "d.svm")], tmp_path / "store", table_config())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_none(tmp_path, value):
    with pytest.raises(InputError, match=r"in.parquet: row 3: .*(not finite|too large)"):
        store_of_table(tmp_path, {"y": [0, 1, 0], "x": [1.0, 2.0, value]})
    with pytest.raises(InputError, match=r"in.parquet: row 3: .*(not finite|too large)"):
        store_of_table(tmp_path, {"y": [0, 1, 0], "x": [1.0, 2.0, value], "c": ["a", "b", "c"]})


@pytest.mark.parametrize("form", ["a.parquet", "a.csv", "a.jsonl"])
def test_missing_columns(tmp_path, form):
    data = pa.table({"y": [0, 1], "x": [1.0, 2.0], "c": ["a", "b"]})
    file = write_table(data, tmp_path / form)
    for options, message in [
        (table_config(label="yy"), r"label=yy: no column 'yy' \(is it 'y'\?\); the columns are y, x, c"),
        (table_config(label=None), None),
        (table_config(weight="v"), "weight=v: no column 'v'"),
        (table_config(numeric=("q*",)), r"numeric=q\*: no column"),
        (table_config(numeric=("x",), categorical=("x",)), "column 'x' is given by numeric and by categorical"),
        (table_config(numeric=("y",)), "the label"),
        (table_config(weight="y"), "weight=y"),
        (table_config(hash_bits=0), "hash_bits=0"),
    ]:
        if message is None:
            assert convert([file], tmp_path / "s", options).rows == 2
            continue
        with pytest.raises(UsageError, match=message):
            convert([file], tmp_path / "store", options)
    with pytest.raises(UsageError, match="which column has the labels"):
        convert(
            [write_table(data.rename_columns({"y": "l"}), tmp_path / form)],
            tmp_path / "store",
            table_config(label=None),
        )


def test_columns_named_twice(tmp_path):
    data = pa.table([pa.array([0, 1]), pa.array([1, 2]), pa.array([3, 4])], names=["y", "x", "x"])
    pq.write_table(data, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("y,x,x\n0,1,3\n1,2,4\n")
    for form in ("a.parquet", "a.csv"):
        with pytest.raises(InputError, match=rf"{form}: two columns have the name 'x'"):
            convert([str(tmp_path / form)], tmp_path / "store", table_config())


def test_nothing_in_it(tmp_path):
    data = arrow_table(mixed(100))
    with pytest.raises(InputError, match=r"in.parquet.*no rows"):
        store_of_table(tmp_path, data.slice(0, 0), table_config(**KINDS))
    with pq.ParquetWriter(tmp_path / "a.parquet", data.schema) as writer:
        for part in (data.slice(0, 40), data.slice(0, 0), data.slice(40, 60)):
            writer.write_table(part)
    store = convert([str(tmp_path / "a.parquet")], tmp_path / "a", table_config(**KINDS))
    assert chunks_of(store) == chunks_of(store_of_table(tmp_path, data, table_config(**KINDS)))


@pytest.mark.parametrize("kind", [pa.null(), pa.string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("names", [0, 10])
def test_categories_that_are_all_null(tmp_path, kind, names):
    data = {"y": [0, 1, 0], "c": pa.array([None] * 3, kind), "d": ["a", "b", "c"]}
    assert store_of_table(tmp_path, data, table_config(feature_names=names)).nonzeros == 3
    assert store_of_table(tmp_path, data, table_config(feature_names=names, nulls="mark")).nonzeros == 6


def test_a_null_in_a_dictionary(tmp_path):
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1]), pa.array(["a", None, "b"]))
    plain = {"y": [0, 1, 0, 1], "c": ["a", None, "b", None]}
    expected = store_of_table(tmp_path, plain, table_config(nulls="mark"))
    store = Store.from_arrow(pa.table(plain | {"c": array}), tmp_path / "other", table_config(nulls="mark"))
    np.testing.assert_array_equal(dense_rows(store), dense_rows(expected))


def test_categories_of_other_types(tmp_path):
    data = pa.table({"y": [0, 1], "c": pa.array([b"\xff\xfe", b"ok"], pa.binary())})
    with pytest.raises(InputError, match=r"in\.parquet"):
        store_of_table(tmp_path, data)
    when = pa.array([0, 86_400], pa.timestamp("s"))
    assert store_of_table(tmp_path, {"y": [0, 1], "c": when}).nonzeros == 2
    view = pa.table({"y": [0, 1], "c": pa.array(["uu", "vv"], pa.string_view())})
    for options in (table_config(), table_config(feature_names=5), table_config(text=("c",))):
        assert Store.from_arrow(view, tmp_path / "view", options, Existing(force=True)).nonzeros == 2


@pytest.mark.parametrize("form", ["a.parquet", "a.csv", "a.jsonl"])
def test_bad_rows_are_listed_where_they_stand(tmp_path, form):
    values = [float(i) for i in range(500)]
    labels = [i % 2 for i in range(500)]
    for at in (3, 77, 78, 400):
        labels[at] = None
    weights = [1.0] * 500
    weights[200] = -1.0
    data = pa.table({"y": labels, "x": values, "w": weights})
    store = convert(
        [write_table(data, tmp_path / form)],
        tmp_path / "s",
        table_config(on_bad_row="skip", weight="w", block_size=1500),
    )
    listed = [json.loads(line) for line in (store.path / "rejected.jsonl").read_text().splitlines()]
    ahead = 2 if form == "a.csv" else 1
    assert [row["line"] - ahead for row in listed] == [3, 77, 78, 200, 400]
    assert all(row["source"].endswith(form) for row in listed)
    assert store.rows == 495
    assert store.manifest.rejected == 5
    with pytest.raises(
        InputError, match=r"a.csv:5:" if form == "a.csv" else r"a.jsonl:4:" if "json" in form else "row 4:"
    ):
        convert([str(tmp_path / form)], tmp_path / "s2", table_config(weight="w", block_size=1500))


def test_a_bad_line_of_json_changes_no_kinds(tmp_path):
    rows = [{"y": i % 2, "x": i / 4, "c": "a" * (i % 3 + 1), "when": "2020-01-01"} for i in range(20)]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "good.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:9], '{"y": 1,', *lines[9:]]) + "\n")
    (tmp_path / "mixed.jsonl").write_text("\n".join([*lines[:9], '{"y": 1, "c": 3}', *lines[9:]]) + "\n")
    stores = [
        convert([str(tmp_path / f"{name}.jsonl")], tmp_path / name, table_config(on_bad_row="skip"))
        for name in ("good", "bad", "mixed")
    ]
    assert [store.manifest.rejected for store in stores] == [0, 1, 1]
    assert chunks_of(stores[0]) == chunks_of(stores[1]) == chunks_of(stores[2])


def test_a_bad_line_of_csv_changes_no_kinds(tmp_path):
    lines = ["y,x,c", *(f"{i % 2},{i / 4},{'a' * (i % 3 + 1)}" for i in range(20))]
    (tmp_path / "good.csv").write_text("\n".join(lines) + "\n")
    good = convert([str(tmp_path / "good.csv")], tmp_path / "good", table_config())
    assert [column.kind for column in good.manifest.recipe.table.columns] == ["numeric", "categorical"]
    for number, line in enumerate([b'1,"2,a', b"1,2", b"1,2,3,4", b"1,2,\xff"]):
        content = "\n".join(lines[:9]).encode() + b"\n" + line + b"\n" + "\n".join(lines[9:]).encode()
        (tmp_path / "bad.csv").write_bytes(content)
        store = convert([str(tmp_path / "bad.csv")], tmp_path / f"{number}", table_config(on_bad_row="skip"))
        assert store.manifest.rejected == 1
        assert store.manifest.recipe == good.manifest.recipe
        assert chunks_of(store) == chunks_of(good)


# --- preview, presets -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_preview(tmp_path, form):
    data = arrow_table(mixed(300))
    file = write_table(data, tmp_path / form)
    before = folder_bytes(tmp_path)
    found = preview([file], table_config(**KINDS))
    assert folder_bytes(tmp_path) == before
    store = convert([file], tmp_path / "store", table_config(**KINDS))
    matrix, _labels = store.to_scipy()
    assert [row["row"] for row in found.rows] == [1, 2, 3]
    assert [row["label"] for row in found.rows] == [str(label) for label in data["y"].to_pylist()[:3]]
    for number, row in enumerate(found.rows):
        entries = sp.csr_matrix(matrix[number])
        expected = list(zip(entries.indices.tolist(), entries.data.tolist(), strict=True))
        assert row["entries"] == expected[:12]
        assert row["more"] == (len(expected) > 12)
    assert found.recipe == store.manifest.recipe
    assert found.bytes > 0
    assert json.dumps(found.table())
    assert any("numeric: n, x" in line for line in found.lines())


def test_preview_of_other_things(tmp_path):
    with pytest.raises(InputError, match="no rows"):
        preview(
            [
                write_table(
                    pa.table({"y": pa.array([], pa.int64()), "x": pa.array([], pa.int64())}), tmp_path / "a.parquet"
                )
            ],
            table_config(),
        )
    (tmp_path / "a.svm").write_text("1 1:2 5:3\n-1 2:1\n")
    found = preview([str(tmp_path / "a.svm")], ConvertConfig())
    assert [row["entries"] for row in found.rows] == [[(1, 2.0), (5, 3.0)], [(2, 1.0)]]
    np.savez(
        tmp_path / "a.npz",
        format=b"csr",
        shape=(2, 3),
        data=[1.0, 2.0],
        indices=[0, 2],
        indptr=[0, 1, 2],
        labels=[0, 1],
    )
    assert preview([str(tmp_path / "a.npz")], ConvertConfig()).rows[1]["entries"] == [(2, 2.0)]
    for name in ("good", "bad"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "1.txt").write_text("some words")
    assert preview([str(tmp_path / "texts")], ConvertConfig()).rows[0]["label"] == "bad"
    (tmp_path / "b.csv").write_text("y,x\n0,1\n1,oops\n0,3\n")
    found = preview([str(tmp_path / "b.csv")], table_config(numeric=("x",)))
    assert "b.csv, line 3" in found.problems[0]
    assert [row["row"] for row in found.rows] == [1, 3]


def test_criteo(tmp_path):
    rng = np.random.default_rng(8)
    rows, dicts, labels = [], [], []
    for _ in range(50):
        label = int(rng.integers(2))
        numbers = [None if rng.random() < 0.2 else int(n) for n in rng.integers(-2, 900, 13)]
        words = ["" if rng.random() < 0.2 else f"{n:08x}" for n in rng.integers(0, 2**32, 26)]
        rows.append("\t".join([str(label), *("" if n is None else str(n) for n in numbers), *words]))
        entries = {str(i): n for i, n in enumerate(numbers, 1) if n is not None}
        dicts.append(entries | {f"{i}={word}": 1 for i, word in enumerate(words, 14) if word})
        labels.append(2 * label - 1)
    (tmp_path / "day_0.tsv").write_text("\n".join(rows) + "\n")
    options = ConvertConfig(preset="criteo", hash_bits=BITS, shuffle=False, standardize=False)
    store = convert([str(tmp_path / "day_0.tsv")], tmp_path / "store", options)
    np.testing.assert_array_equal(dense_rows(store), FeatureHasher(2**BITS).transform(dicts).toarray())
    assert store.to_scipy()[1].tolist() == labels
    assert len(preview([str(tmp_path / "day_0.tsv")], options).rows) == 3
    with pytest.raises(UsageError, match="preset=criteo"):
        convert([str(tmp_path / "day_0.tsv")], tmp_path / "s", ConvertConfig(preset="criteo", numeric=("1",)))


# --- names ----------------------------------------------------------------------------------------


def bucket_by_sklearn(name, bits):
    matrix = FeatureHasher(2**bits, input_type="string").transform([[name]])
    return int(matrix.indices[0]), float(matrix.data[0])


def true_names(found):
    names = {"n", "x"}
    for column in KINDS["categorical"]:
        names |= {f"{column}={spelled(value)}" for value in found[column] if value is not None}
    for column in KINDS["text"]:
        names |= {word for text in found[column] if text for word in re.findall(r"\w\w+", text.lower())}
    return names


@pytest.mark.parametrize("threads", [1, 2])
def test_names_are_real_ones(tmp_path, threads):
    found = mixed(400)
    unused = pa.array(found["d"]).dictionary_encode()
    unused = pa.DictionaryArray.from_arrays(unused.indices, pa.concat_arrays([unused.dictionary, pa.array(["never"])]))
    data = arrow_table(found).set_column(6, "d", unused)
    options = table_config(**KINDS, hash_bits=16, feature_names=10_000, threads=threads, block_size=300)
    store = Store.from_arrow(data, tmp_path / "store", options)
    names = of_store(store.path, store.manifest).known_names()
    assert set(names.values()) <= true_names(found)
    places = {bucket_by_sklearn(name, 16)[0] for name in true_names(found)}
    assert set(names) == places
    assert all(bucket_by_sklearn(name, 16)[0] == place for place, name in names.items())
    assert signs(names, store.manifest.recipe) == {
        place: bucket_by_sklearn(name, 16)[1] for place, name in names.items()
    }
    assert not verify(store).problems


def test_as_many_names_as_are_wanted_and_always_the_same(tmp_path):
    data = arrow_table(mixed(900))
    kept = []
    for threads in (1, 2, 2):
        options = table_config(**KINDS, feature_names=70, threads=threads, block_size=256)
        store = store_of_table(tmp_path, data, options)
        kept.append(of_store(store.path, store.manifest).known_names())
        assert len(kept[-1]) == 70
    assert kept[0] == kept[1] == kept[2]


def test_names_taken_while_a_batch_is_read_leave_room_for_its_others(monkeypatch):
    data = pa.table({"y": [0, 1], "a": ["u", "v"], "b": ["w", "w"]})
    columns = [Column("a", "categorical"), Column("b", "categorical")]
    vectorizer = Vectorizer(Table(columns, "y"), False, names=3)
    parts = Vectorizer.parts

    def slow(self, column, array, problems, new):
        if column.name == "b":  # concurrently the previous block, with the same words, was recorded
            self.named(dict(new))
        return parts(self, column, array, problems, new)

    monkeypatch.setattr(Vectorizer, "parts", slow)
    assert list(vectorizer.vectors(data.to_batches()[0]).features.values()) == ["a=u", "a=v", "b=w"]


def test_appended_stores_keep_names(tmp_path):
    options = table_config(hash_bits=16, feature_names=100, values="float32")
    store = store_of_table(tmp_path, {"y": [0, 1, 0], "c": ["a", "b", "a"]}, options)
    before = of_store(store.path, store.manifest).known_names()
    pq.write_table(pa.table({"y": [0, 1], "c": ["z", "a"]}), tmp_path / "more.parquet")
    append = ConvertConfig(feature_names=100, shuffle=False)
    store = convert([str(tmp_path / "more.parquet")], store.path, append, existing=Existing(append=True))
    after = of_store(store.path, store.manifest).known_names()
    assert before.items() <= after.items()
    assert set(after.values()) == {"c=a", "c=b", "c=z"}
    pq.write_table(pa.table({"y": [0, 1], "c": ["q", "a"]}), tmp_path / "more.parquet")
    without = ConvertConfig(shuffle=False)
    store = convert([str(tmp_path / "more.parquet")], store.path, without, existing=Existing(append=True))
    assert of_store(store.path, store.manifest).known_names().items() >= after.items()


def test_weight_times_sign_is_the_effect_of_a_feature(tmp_path):
    rng = np.random.default_rng(9)
    words = [f"w{i}" for i in range(12)]
    chosen = rng.integers(0, 12, 600)
    labels = ((chosen % 3 == 0) ^ (rng.random(600) < 0.1)).astype(int)
    options = table_config(hash_bits=8, feature_names=1000)
    store = store_of_table(tmp_path, {"y": labels, "c": [words[i] for i in chosen], "x": rng.random(600)}, options)
    model = train(store, TrainConfig(lam=0.01)).model
    model.save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    signed = signs(model.vocabulary.known_names(), model.info.recipe)
    by_name = {name: place for place, name in model.vocabulary.known_names().items()}
    assert {bucket_by_sklearn(f"c={word}", 18)[1] for word in words} == {-1.0, 1.0}
    file = write_table(pa.table({"c": [*words, "unseen"], "x": [0.25] * 13}), tmp_path / "new.jsonl")
    predict(model, file, tmp_path / "o.parquet")
    scores = read_scores(tmp_path / "o.parquet")["score"]
    for word, score in zip(words, scores, strict=False):
        place = by_name[f"c={word}"]
        assert score - scores[-1] == pytest.approx(model.weights[place] * signed[place], abs=1e-9)
        assert (score > scores[-1]) == (int(word[1:]) % 3 == 0)


def test_pipes_are_refused():
    with pytest.raises(InputError, match="cannot come from a pipe"):
        table_recipe.plan_table("-", {"numeric": (), "categorical": (), "text": ()})
    with pytest.raises(InputError, match="cannot come from a pipe"):
        registry.new_recipe(table_config(format="table"), ["-"], lambda _remark: None)


def test_folders_of_all_names(tmp_path):
    for number, form in enumerate([".parquet", ".csv", ".csv.gz", ".ndjson", ".tsv", ".ipc"]):
        data = pa.table({"y": [0, 1], "x": [1.0, float(number)]})
        if form == ".ipc":
            pyarrow.feather.write_feather(data, tmp_path / "f.ipc")
        else:
            (tmp_path / "t").mkdir(exist_ok=True)
            write_table(data, tmp_path / "t" / f"a{form}")
    shutil.move(tmp_path / "f.ipc", tmp_path / "t" / "f.ipc")
    names, kind = registry.find([str(tmp_path / "t")])
    assert (len(names), kind) == (6, "table")
    assert convert([str(tmp_path / "t")], tmp_path / "store", table_config()).rows == 12


def test_parquet_whose_end_says_other_numbers_of_rows(tmp_path):
    """Counts of less than nothing, in the whole or in a row group, once gave kernels no place to put rows in."""
    file = tmp_path / "in.parquet"
    table = pa.table({"y": np.arange(62) % 2, "x": np.arange(62) * 0.5})
    pq.write_table(table, file)
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    number, negative = b"\x16\x7c", b"\x16\x7b"  # a 64-bit field of 62, and of -62, as Thrift writes them
    found, at = [], content.find(number, footer)
    while at >= 0:
        file.write_bytes(content[:at] + negative + content[at + 2 :])
        with pytest.raises(InputError) as error:
            convert([str(file)], tmp_path / "store", ConvertConfig(label="y"))
        found.append(str(error.value))
        at = content.find(number, at + 1)
    assert sum("62 rows, and" in problem and "in its row groups; it is damaged" in problem for problem in found) == 2


def test_a_recorded_plan_of_no_buckets_is_not_taken_up(tmp_path, monkeypatch):
    file, target = tmp_path / "in.parquet", tmp_path / "store"
    pq.write_table(pa.table({"y": np.arange(62) % 2, "x": np.arange(62) * 0.5}), file)

    def stop(_assembly, *_given):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("ooc_pegasos.conversion.second_pass.Assembly.run", stop)
        with pytest.raises(ZeroDivisionError):
            convert([str(file)], target, ConvertConfig(label="y"))
    plan = tmp_path / "store.unfinished" / "plan.json"
    recorded = json_checksum.decode(plan.read_bytes())
    recorded["ingest"]["buckets"] = 0
    plan.write_bytes(json_checksum.encode(recorded))
    assert convert([str(file)], target, ConvertConfig(label="y"), existing=Existing(resume=True)).rows == 62


def names_of(store):
    return of_store(store.path, store.manifest).names.to_pylist()


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())])
@pytest.mark.parametrize("nulls", ["absent", "mark", "bad"])
def test_categories_that_are_no_finite_numbers_make_bad_rows(tmp_path, kind, nulls):
    cells = [np.float16(x) for x in (1.5, np.nan, 2, np.inf, -np.inf, 1.5)] + [None]
    floats = pa.array(cells, pa.float16())
    column = floats.cast(pa.float64()).dictionary_encode() if pa.types.is_dictionary(kind) else floats.cast(kind)
    pa.feather.write_feather(pa.table({"y": [0, 1, 0, 1, 0, 1, 0], "c": column}), tmp_path / "in.arrow")
    given = [str(tmp_path / "in.arrow")], tmp_path / "store"
    asked = {"categorical": ("c",), "nulls": nulls}
    with pytest.raises(InputError, match=r"in\.arrow: row 2: the value nan in column 'c' is not finite; correct it"):
        convert(*given, table_config(**asked))
    for more in ({"feature_names": 9}, {"hash_bits": None, "dictionary": 9}):
        found = table_config(**asked, on_bad_row="skip", **more)
        store = convert(*given, found, existing=Existing(force=True))
        names = ["c=1.5", "c=2"] + ["c=null"] * (nulls == "mark")
        assert sorted(names_of(store)) == names
        assert (store.rows, store.manifest.rejected) == ((3, 4) if nulls == "bad" else (4, 3))
        assert store.manifest.statistics.empty_rows == (nulls == "absent")


@pytest.mark.parametrize("number", [5, 2**53, 10**16, -(10**18), -(2**63), 2**62])
def test_equal_whole_numbers_are_one_category(tmp_path, number):
    found = {
        "int.parquet": pa.array([number] * 2),
        "float.parquet": pa.array([float(number)] * 2),
        "decimal.parquet": pa.array([number] * 2, pa.decimal128(20)),
    }
    for name, column in found.items():
        pq.write_table(pa.table({"y": [0, 1], "c": column}), tmp_path / name)
    (tmp_path / "float.jsonl").write_text("".join(f'{{"y": {y}, "c": {number}.0}}\n' for y in (0, 1)))
    for name in (*found, "float.jsonl"):
        asked = table_config(categorical=("c",), feature_names=9)
        store = convert([str(tmp_path / name)], tmp_path / "store", asked, existing=Existing(force=True))
        assert names_of(store) == [f"c={number}"]


def test_strings_are_categories_as_they_stand(tmp_path):
    cells = ["3", "3.0", "True", "2020-01-04"]
    (tmp_path / "in.csv").write_text("y,c\n" + "".join(f"{row % 2},{cell}\n" for row, cell in enumerate(cells)))
    asked = table_config(categorical=("c",), feature_names=9)
    store = convert([str(tmp_path / "in.csv")], tmp_path / "csv", asked)
    assert sorted(names_of(store)) == sorted(f"c={cell}" for cell in cells)
