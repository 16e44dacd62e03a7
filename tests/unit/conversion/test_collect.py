"""Stores of what is in memory or in Dask collections."""

import dataclasses
import fcntl
import itertools
import json
import os
import threading
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import sparse
from dask.delayed import delayed

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.conversion import from_memory
from ooc_pegasos.errors import InputError, LockedError, UsageError
from ooc_pegasos.util.locks import Owner
from support.file_bytes import folder_bytes
from support.rows import random_rows, same_matrix

PLAIN = ConvertConfig(label="y", shuffle=False)
NO_SHUFFLE = ConvertConfig(shuffle=False)
FRAME = {"y": [-1, 1, 1], "a": [1.0, 2.0, 0.5], "b": [3.0, 0.0, 1.0]}
DENSE = [[1.0, 3.0], [2.0, 0.0], [0.5, 1.0]]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Neither here nor in the working directory, whatever happens."""
    before = set(os.listdir())
    yield
    assert not [*tmp_path.glob("*.incoming"), *tmp_path.glob("*.unfinished*")]
    assert set(os.listdir()) == before


def dense(store: Store) -> list:
    return store.to_scipy()[0].toarray().tolist()


def labels(store: Store) -> list:
    return store.to_scipy()[1].tolist()


def chunks(store: Store) -> dict:
    return {name: content for name, content in folder_bytes(store.path).items() if name != "manifest.json"}


def check_call_refused(kind, told, function, *arguments, path, **options):
    with pytest.raises(kind, match=told) as caught:
        function(*arguments, path=path, **options)
    assert "\n" not in str(caught.value)
    assert ".incoming" not in str(caught.value)
    assert not path.exists()


# --- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(FRAME),
        pd.DataFrame(FRAME, index=[7, 7, 9]),
        pl.DataFrame(FRAME),
        pa.table(FRAME),
        pa.record_batch(FRAME),
        [dict(zip(FRAME, row, strict=True)) for row in zip(*FRAME.values(), strict=True)],
    ],
    ids=lambda table: f"{type(table).__module__.split('.')[0]} {type(table).__name__}",
)
def test_tables_of_all_kinds(tmp_path, table):
    store = Store.from_arrow(table, tmp_path / "s", PLAIN)
    assert dense(store) == DENSE
    assert labels(store) == [-1, 1, 1]
    assert [(source.name, source.rows) for source in store.manifest.sources] == [("memory", 3)]
    assert chunks(store) == chunks(Store.from_pandas(pd.DataFrame(FRAME), tmp_path / "t", PLAIN))
    assert os.listdir(store.path) == os.listdir(tmp_path / "t")


def test_the_same_data_gives_the_same_manifest(tmp_path):
    for name in "ab":
        Store.from_scipy(np.array(DENSE), [1, 2, 1], tmp_path / name)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")


def test_a_stream_is_read_once_and_batch_by_batch(tmp_path):
    seen = []

    def batches():
        for i in range(20):
            written = next(tmp_path.glob("s.incoming/*/memory-*.arrow")).stat().st_size
            seen.append(written)
            yield pa.record_batch({"y": [i % 2] * 1000, "a": np.arange(1000.0)})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("y", pa.int64()), ("a", pa.float64())]), batches())
    assert Store.from_arrow(reader, tmp_path / "s", PLAIN).rows == 20_000
    assert len(seen) == 20
    assert all(after > before for before, after in itertools.pairwise(seen))


def test_dictionaries_that_change_from_batch_to_batch(tmp_path):
    batches = [pa.record_batch({"y": [0, 1], "c": pa.array(words).dictionary_encode()}) for words in ("uv", "vw")]
    config = ConvertConfig(label="y", shuffle=False, hash_bits=10)
    store = Store.from_arrow(pa.Table.from_batches(batches), tmp_path / "s", config)
    plain = Store.from_arrow(pa.table({"y": [0, 1, 0, 1], "c": ["u", "v", "v", "w"]}), tmp_path / "t", config)
    assert chunks(store) == chunks(plain)


def test_pandas_columns(tmp_path):
    frame = pd.DataFrame({
        "y": ["no", "yes", "no"],
        "with nan": [1, np.nan, 3],
        "nullable": pd.array([None, 2, 3], "Int64"),
        "category": pd.Categorical(["u", None, "v"]),
        "word": ["a", "b", None],
        "flag": [True, False, True],
        "day": pd.to_datetime(["2020-01-01", None, "2020-01-03"]),
        "nothing": [None, None, None],
    })  # fmt: skip
    store = Store.from_pandas(frame, tmp_path / "s", ConvertConfig(label="y", shuffle=False, feature_names=99))
    assert store.manifest.labels.classes == ["no", "yes"]
    assert np.diff(store.to_scipy()[0].indptr).tolist() == [5, 3, 5]  # NaN and null add nothing
    # a time is a category: every instant a feature of its own
    kinds = {column.name: column.kind for column in store.manifest.recipe.table.columns}
    assert {name for name, kind in kinds.items() if kind == "numeric"} == {"with nan", "nullable"}
    check_call_refused(
        InputError,
        "column 'day' is of type timestamp.*not a number; write it as numbers, or convert with categorical=day",
        Store.from_pandas,
        frame,
        path=tmp_path / "t",
        config=ConvertConfig(label="y", numeric=("day",)),
    )


@pytest.mark.parametrize(
    ("table", "kind", "told"),
    [
        (pd.DataFrame({"y": [0, 1], "a": [1, "x"]}), InputError, "column a.*give every column a name and one type"),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["y", "y"]), InputError, "uplicate column names"),
        (pd.Series([1, 2]), UsageError, "a Series is not a table"),
        (pl.Series([1, 2]), UsageError, "a Series is not a table"),
        (pl.LazyFrame(FRAME).select("z"), InputError, "the LazyFrame cannot be computed: .*z.*; correct the query"),
        (pl.LazyFrame(FRAME).filter(pl.col("a") > 9), InputError, "no rows"),
        (np.ones((2, 2)), UsageError, "a row is a ndarray; make every row a dictionary"),
        ("words", UsageError, "a str is not a table"),
        (7, UsageError, "a int is not a table"),
        (pa.table({"y": pa.array([], pa.int8())}), InputError, "no rows"),
        (pd.DataFrame({"y": [], "a": []}), InputError, "no rows"),
        (pl.DataFrame({"y": [], "a": []}), InputError, "no rows"),
        ([], InputError, "no rows"),
        ([{"y": 1, "a": 1}, {"y": 2, "a": "x"}], InputError, "column 'a'"),
        (pl.DataFrame({"y": [0, 1], "a": [1.0, np.nan]}), InputError, "^memory: row 2: .*nan.*not finite"),
        (pl.DataFrame({"y": [0, None], "a": [1.0, 2.0]}), InputError, "^memory: row 2: no label"),
        (pa.table({"x": [0, 1], "a": [1, 2]}), UsageError, "label=y: no column 'y'"),
    ],
)
def test_objects_that_are_not_tables_are_refused(tmp_path, table, kind, told):
    check_call_refused(kind, told, Store.from_arrow, table, path=tmp_path / "s", config=PLAIN)


@pytest.mark.slow
def test_polars_words_categories_and_texts(tmp_path):
    frame = pl.DataFrame({"y": [0, 1], "t": ["one two", "two"], "c": pl.Series(["u", None], dtype=pl.Categorical)})
    config = ConvertConfig(label="y", shuffle=False, text=("t",), categorical=("c",), hash_bits=10)
    store = Store.from_polars(frame, tmp_path / "s", config)
    same = pa.table({"y": [0, 1], "t": ["one two", "two"], "c": ["u", None]})
    assert chunks(store) == chunks(Store.from_arrow(same, tmp_path / "t", config))


def test_folders_named_key_is_value_above_the_store_make_no_columns(tmp_path):
    folder = tmp_path / "seed=3"
    folder.mkdir()
    store = Store.from_pandas(pd.DataFrame(FRAME), folder / "s", PLAIN)
    assert dense(store) == DENSE
    assert [source.name for source in store.manifest.sources] == ["memory"]
    assert os.listdir(folder) == ["s"]


# --- matrices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (["u", "v", "u"], ["u", "v"]),
        (np.array(["u", "v", "u"], object), ["u", "v"]),
        (pd.Series(["u", "v", "u"]), ["u", "v"]),
        (pd.Categorical(["u", "v", "u"]), ["u", "v"]),
        (pl.Series(["u", "v", "u"]), ["u", "v"]),
        (np.array([1, 2, 1], object), ["1", "2"]),
        (np.array([True, False, True]), ["0", "1"]),
        *(
            [(np.array(["u", "v", "u"], np.dtypes.StringDType()), ["u", "v"])]
            if hasattr(np.dtypes, "StringDType")
            else []
        ),
        (np.ma.array([1, 2, 1], mask=False), ["1", "2"]),
    ],
)
def test_labels_of_a_matrix(tmp_path, given, classes):
    store = Store.from_scipy(np.array(DENSE), given, tmp_path / "s", config=ConvertConfig(shuffle=False))
    assert store.manifest.labels.classes == classes
    assert dense(store) == DENSE


@pytest.mark.parametrize(
    ("matrix", "given", "weights", "told"),
    [
        (DENSE, [1, 2], None, r"3 rows and labels of shape \(2,\)"),
        (DENSE, [[1], [2], [1]], None, r"labels of shape \(3, 1\)"),
        (DENSE, [1, 2, 1], [1, 2], r"weights of shape \(2,\)"),
        (DENSE, [1, 2, 1], ["a", "b", "c"], "weights of type <U1; give numbers"),
        (DENSE, [1, 2, 1], [1, 0, 1], "row 2: the weight is not from"),
        (DENSE, ["u", None, "v"], None, "1 are not words"),
        (DENSE, [1, None, 2], None, "labels of type object"),
        (DENSE, [b"u", b"v", b"u"], None, "labels of type"),
        (DENSE, [1, np.nan, 2], None, "^memory: row 2: the label is not finite"),
        ([1.0, 2.0, 3.0], [1, 2, 1], None, "give a matrix"),
        (np.array(DENSE, complex), [1, 2, 1], None, "values of type complex128"),
        (np.array(DENSE, object), [1, 2, 1], None, "values of type object"),
        ([[1.0], [np.inf], [2.0]], [1, 2, 1], None, "^memory: row 2: the value inf"),
        (sp.csr_matrix((0, 3)), [], None, "no rows"),
        (sp.coo_array([1.0, 2.0, 3.0]), [1, 2, 1], None, "give a matrix"),
        ([[1.0, 2.0], [1.0], [2.0]], [1, 2, 1], None, "^memory: .*inhomogeneous.*; give a matrix .* of one length"),
        (sparse.COO.from_numpy(np.array(DENSE), fill_value=1), [1, 2, 1], None, "that are not stored are 1.0; give a"),
        (sparse.COO.from_numpy(np.array(DENSE))[0], [1, 2, 1], None, "give a matrix"),
        (np.ma.masked_equal(DENSE, 0), [1, 2, 1], None, r"some values are masked; leave out .* \.filled\(value\)"),
        (DENSE, np.ma.masked_equal([1, 2, 1], 2), None, "some labels are masked"),
        (DENSE, [1, 2, 1], np.ma.masked_equal([1, 2, 1], 2), "some weights are masked"),
    ],
)
def test_matrices_that_are_refused(tmp_path, matrix, given, weights, told):
    check_call_refused(InputError, told, Store.from_scipy, matrix, given, path=tmp_path / "s", weights=weights)


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("indptr", [0, 2, 1, 3], "^memory: row 2: indptr decreases"),
        ("indices", [0, -1, 2], "^memory: row 2: the column -1"),
        ("indices", [0, 1, 7], "^memory: row 3: the column 7"),
    ],
)
def test_spoiled_matrices(tmp_path, part, value, told):
    matrix = sp.csr_matrix(np.eye(3))
    getattr(matrix, part)[:] = value
    check_call_refused(InputError, told, Store.from_scipy, matrix, [1, 2, 1], path=tmp_path / "s")


@pytest.mark.parametrize("kind", ["csc", "coo", "lil", "bsr", "dok", "dia"])
def test_matrices_in_any_format(tmp_path, kind):
    matrix, y = random_rows(30, 8, 3, 0.3)
    store = Store.from_scipy(matrix.asformat(kind), y, tmp_path / "s", config=ConvertConfig(shuffle=False))
    assert same_matrix(store.to_scipy()[0], matrix)


def test_rows_that_are_skipped_are_listed_by_the_name_that_the_caller_knows(tmp_path):
    table = pa.table({"y": [0, 1, 1], "a": [1.0, np.nan, 2.0]})
    config = ConvertConfig(label="y", shuffle=False, on_bad_row="skip")
    bag = db.from_sequence(table.to_pylist(), npartitions=3)
    for name, make, source, row in (
        ("table", lambda path: Store.from_arrow(table, path, config), "memory", 2),
        ("bag", lambda path: Store.from_dask(bag, path, config=config), "part 1", 1),
        (
            "matrix",
            lambda path: Store.from_scipy(
                table["a"].to_numpy()[:, None], table["y"].to_numpy(), path, config=ConvertConfig(on_bad_row="skip")
            ),
            "memory",
            2,
        ),
    ):
        store = make(tmp_path / name)
        (listed,) = map(json.loads, (store.path / "rejected.jsonl").read_text().splitlines())
        assert (listed["source"], listed["line"]) == (source, row)
        assert "incoming" not in "".join(path.read_text("latin1") for path in store.path.iterdir())


@pytest.mark.parametrize("kind", [np.float16, np.int8, np.uint64, bool, np.float64])
def test_numbers_of_any_type(tmp_path, kind):
    matrix = np.array([[1, 0], [0, 1]], kind)
    for name, given in (("dense", matrix), ("coo", sp.coo_array(matrix.astype(np.float32)))):
        assert dense(Store.from_scipy(given, [1, 2], tmp_path / name, config=ConvertConfig(shuffle=False))) == [
            [1, 0],
            [0, 1],
        ]


@pytest.mark.parametrize("kind", [sparse.COO, sparse.GCXS, sparse.DOK])
def test_matrices_of_pydata(tmp_path, kind):
    store = Store.from_scipy(kind.from_numpy(np.array(DENSE)), [1, 2, 1], tmp_path / "s", config=NO_SHUFFLE)
    assert dense(store) == DENSE


def test_columns_that_are_empty_count(tmp_path):
    matrix, y = random_rows(30, 8, 3, 0.3)
    wide = np.hstack([matrix.toarray(), np.zeros((30, 2))])
    assert Store.from_scipy(wide, y, tmp_path / "dense").features == 10
    assert Store.from_scipy(sp.csr_matrix(wide), y, tmp_path / "sparse").features == 10
    assert Store.from_dask(da.from_array(wide, (10, 4)), tmp_path / "dask", y).features == 10
    config = ConvertConfig(shuffle=False, features=12)
    store = Store.from_scipy(wide, y, tmp_path / "more", config=config)
    assert store.features == 12
    assert np.array_equal(store.to_scipy()[0].toarray()[:, :10], wide.astype(np.float32))


# --- dask ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_dataframes_on_all_schedulers(tmp_path, scheduler):
    frame = pd.DataFrame({"y": np.arange(40) % 2, "a": np.arange(40.0), "c": list("uvwx") * 10})
    config = ConvertConfig(label="y", shuffle=False, hash_bits=10)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        store = Store.from_dask(dd.from_pandas(frame, npartitions=4), tmp_path / "s", config=config)
    whole = Store.from_pandas(frame, tmp_path / "t", config)
    assert same_matrix(store.to_scipy()[0], whole.to_scipy()[0])
    assert labels(store) == labels(whole)
    assert [source.name for source in store.manifest.sources] == [f"part {i}" for i in range(4)]


def test_an_error_in_another_process_is_one_line(tmp_path):
    bag = db.from_sequence([{"y": 1, "a": 1}, 7], npartitions=2)
    with dask.config.set(scheduler="processes", num_workers=1):
        check_call_refused(
            UsageError, "^part 1: a row is a int; make", Store.from_dask, bag, path=tmp_path / "s", config=PLAIN
        )


def test_empty_partitions_are_left_out(tmp_path):
    frame = dd.from_pandas(pd.DataFrame(FRAME), npartitions=3)
    store = Store.from_dask(frame[frame.a != 2.0], tmp_path / "s", config=PLAIN)
    assert dense(store) == [DENSE[0], DENSE[2]]
    assert [source.name for source in store.manifest.sources] == ["part 0", "part 2"]
    check_call_refused(InputError, "no rows", Store.from_dask, frame[frame.a > 9], path=tmp_path / "t", config=PLAIN)


def frame_of_parts(*frames: pd.DataFrame) -> dd.DataFrame:
    return dd.from_delayed([delayed(frame) for frame in frames], meta=frames[0], verify_meta=False)


def test_partitions_that_differ_are_refused(tmp_path):
    one = pd.DataFrame({"y": [0, 1], "a": [1, 2]})
    for other, told in (
        (one.assign(a=["x", "z"]), "^part 1: column 'a' is of type .*string, but in part 0 int64; make partitions"),
        (one.assign(a=[True, False]), "column 'a' is of type bool"),
        (one.drop(columns="a"), "part 1: no column 'a', which part 0 has"),
        (one.assign(b=1), "part 0: no column 'b', which part 1 has"),
    ):
        check_call_refused(
            InputError, told, Store.from_dask, frame_of_parts(one, other), path=tmp_path / "s", config=PLAIN
        )
    floats = one.assign(a=[0.5, np.nan])
    assert dense(Store.from_dask(frame_of_parts(one, floats), tmp_path / "s", config=PLAIN)) == [[1], [2], [0.5], [0]]
    categories = ConvertConfig(label="y", categorical=("a",))  # 'a=1' here, 'a=1.0' there
    told = "type double, but in part 0 int64"
    check_call_refused(
        InputError, told, Store.from_dask, frame_of_parts(one, floats), path=tmp_path / "t", config=categories
    )


def test_a_partition_of_nulls_takes_the_type_of_the_others(tmp_path):
    rows = [{"y": 0, "a": None}, {"y": 1, "a": None}, {"y": 0, "a": 1.0}, {"y": 1, "a": 2}]
    store = Store.from_dask(db.from_sequence(rows, npartitions=2), tmp_path / "s", config=PLAIN)
    assert dense(store) == [[0], [0], [1], [2]]


def test_bags_whose_rows_lack_columns(tmp_path):
    rows = [{"y": 0, "a": 1}, {"y": 1, "b": 2.5}, {"y": 0, "b": 3}, {"y": 1, "c": 4}]
    for parts in (1, 2, 4):
        bag = db.from_sequence(rows, npartitions=parts).map(dict)
        config = dataclasses.replace(PLAIN, standardize=False)
        store = Store.from_dask(bag, tmp_path / f"{parts}", config=config)
        assert dense(store) == [[1, 0, 0], [0, 2.5, 0], [0, 3, 0], [0, 0, 4]]


@pytest.mark.parametrize("kind", ["numpy", "list", "series", "same chunks", "other chunks", "dataframe"])
@pytest.mark.parametrize("words", [False, True])
def test_arrays_and_their_labels(tmp_path, kind, words):
    matrix, y = random_rows(30, 8, 3, 0.3)
    y = np.where(y == 1, "yes", "no") if words else y
    given = {
        "numpy": lambda: y,
        "list": y.tolist,
        "series": lambda: pd.Series(y),
        "same chunks": lambda: da.from_array(y, 10),
        "other chunks": lambda: da.from_array(y, 7),
        "dataframe": lambda: dd.from_pandas(pd.DataFrame({"y": y}), npartitions=3)["y"],
    }[kind]()
    x = da.from_array(matrix.toarray(), (10, 3))
    store = Store.from_dask(x, tmp_path / "s", given, ConvertConfig(shuffle=False))
    assert same_matrix(store.to_scipy()[0], matrix)
    assert store.manifest.labels.classes == (["no", "yes"] if words else ["-1", "1"])
    assert labels(store) == np.where((y == "yes") | (y == "1") if words else y == 1, 1, -1).tolist()


@pytest.mark.parametrize("kind", ["numpy", "list", "series", "same chunks", "other chunks", "dataframe"])
def test_arrays_and_their_weights(tmp_path, kind):
    matrix, y = random_rows(30, 8, 3, 0.3)
    weights = np.linspace(0.5, 3, 30)
    given = {
        "numpy": lambda: weights,
        "list": weights.tolist,
        "series": lambda: pd.Series(weights),
        "same chunks": lambda: da.from_array(weights, 10),
        "other chunks": lambda: da.from_array(weights, 7),
        "dataframe": lambda: dd.from_pandas(pd.DataFrame({"w": weights}), npartitions=3)["w"],
    }[kind]()
    x = da.from_array(matrix.toarray(), (10, 3))
    store = Store.from_dask(x, tmp_path / "s", y, NO_SHUFFLE, weights=given)
    assert same_matrix(store.to_scipy()[0], matrix)
    assert np.array_equal(store.weights(), weights.astype(np.float32))
    assert chunks(store) == chunks(Store.from_scipy(matrix, y, tmp_path / "t", weights, NO_SHUFFLE))


def test_weights_that_are_refused(tmp_path):
    matrix, y = random_rows(30, 8, 3, 0.3)
    x, path = da.from_array(matrix.toarray(), (10, 8)), tmp_path / "s"
    frame = dd.from_pandas(pd.DataFrame(FRAME), npartitions=1)
    for weights, kind, told in (
        (np.ones(29), InputError, r"30 rows and weights of shape \(29,\)"),
        (da.ones(29, chunks=10), InputError, "30 rows and 29 weights; give every row one"),
        (da.ones((30, 1), chunks=10), UsageError, r"weights of 2 dimensions; .* weights\[:, 0\]"),
        (["a"] * 30, InputError, "weights of type <U1; give numbers"),
        (da.from_array(np.array(["a"] * 30), 10), InputError, r"part \d: weights of type <U1; give numbers$"),
        (np.where(np.arange(30) == 13, 0, 1), InputError, "^part 1: row 4: the weight is not from 1e-9"),
        (dd.from_pandas(pd.Series(np.ones(30)), npartitions=2), UsageError, "weights fall into 2 partitions"),
        (db.from_sequence([1] * 30, npartitions=3), UsageError, "weights in a Bag; give a dask.array"),
        (delayed(np.ones)(30), UsageError, "a Delayed may become anything"),
        (da.from_array(np.ma.masked_equal(np.arange(1, 31), 5), 10), InputError, "^part 0: some weights are masked"),
    ):
        check_call_refused(kind, told, Store.from_dask, x, path=path, labels=y, weights=weights)
    check_call_refused(
        UsageError, r"weights are a column .*weight=", Store.from_dask, frame, path=path, weights=[1, 1, 1]
    )
    check_call_refused(UsageError, "a Delayed may", Store.from_dask, delayed(np.ones)((3, 3)), path=path, labels=y)


def test_sparse_blocks_of_unknown_size(tmp_path):
    matrix, y = random_rows(30, 8, 3, 0.3)
    x = da.from_array(matrix.toarray(), (10, 8)).map_blocks(sp.csr_matrix)
    keep = da.from_array(np.arange(30) % 3 > 0, 10)
    unknown = da.from_array(matrix.toarray(), (10, 8))[keep].map_blocks(sp.csr_matrix)
    config = ConvertConfig(shuffle=False)
    store = Store.from_dask(unknown, tmp_path / "s", da.from_array(y, 10)[keep], config)
    assert same_matrix(store.to_scipy()[0], matrix[np.arange(30) % 3 > 0])
    path = tmp_path / "t"
    for labels, kind, told in (
        (y[np.arange(30) % 3 > 0], UsageError, "compute_chunk_sizes"),
        (da.from_array(y, 7), UsageError, "compute_chunk_sizes"),
        (da.from_array(y, 10), InputError, r"part \d: [67] rows and labels of shape \(10,\)"),
    ):
        check_call_refused(kind, told, Store.from_dask, unknown, path=path, labels=labels)
    for labels, kind, told in (
        (y[:29], InputError, r"30 rows and labels of shape \(29,\)"),
        ([*y, 1], InputError, r"30 rows and labels of shape \(31,\)"),
        (da.from_array(y[:29], 10), InputError, "30 rows and 29 labels"),
        (da.from_array(y[:, None], 10), UsageError, "labels of 2 dimensions"),
        (None, UsageError, "its labels be given"),
        (dd.from_pandas(pd.Series(y), npartitions=2), UsageError, "2 partitions, and rows into 3 blocks"),
        (dd.from_pandas(pd.Series(y[:29]), npartitions=3), InputError, r"labels of shape \(9,\)"),
        (da.from_array(np.array(["u", 1, None] * 10, object), 10), InputError, r"part \d: labels of which [67] are"),
    ):
        check_call_refused(kind, told, Store.from_dask, x, path=path, labels=labels)
    mixed = da.from_array(y, 10).map_blocks(
        lambda block, block_id: block.astype(str) if block_id[0] else block, dtype=y.dtype
    )
    check_call_refused(
        InputError, "part 1: its labels are words, those of part 0", Store.from_dask, x, path=path, labels=mixed
    )
    wider = da.from_array(matrix.toarray(), (10, 8)).map_blocks(
        lambda block, block_id: np.pad(block, ((0, 0), (0, block_id[0]))), dtype=float
    )
    check_call_refused(
        InputError, "^part 1: 9 columns, but part 0 has 8; make", Store.from_dask, wider, path=path, labels=y
    )
    check_call_refused(UsageError, "a list is no Dask collection", Store.from_dask, [1], path=path)
    frame = dd.from_pandas(pd.DataFrame(FRAME), npartitions=1)
    check_call_refused(UsageError, "labels are a column", Store.from_dask, frame, path=path, labels=y)


def test_no_more_than_a_partition_a_worker(tmp_path):
    """Partitions are made when they are written, one by one: not all of them and then all files."""
    order = []

    def part(number):
        order.append((number, len(list(tmp_path.glob("s.incoming/*/part-*.arrow")))))
        return pd.DataFrame({"y": [0, 1], "a": [1.0 + number, 2.0]})

    frame = dd.from_delayed([delayed(part)(i) for i in range(6)], meta=pd.DataFrame({"y": [0], "a": [0.0]}))
    with dask.config.set(scheduler="synchronous"):
        Store.from_dask(frame, tmp_path / "s", config=PLAIN)
    assert [written for _number, written in order] == list(range(6))
    assert sorted(number for number, _written in order) == list(range(6))


# --- what is there already, and what is left ----------------------------------------------------------


def test_too_little_memory_is_refused_before_anything_is_staged(tmp_path, monkeypatch):
    monkeypatch.setattr(from_memory, "write_matrix", None)
    with pytest.raises(UsageError, match=r"^memory=1,000,000 is too little for a conversion; choose at least 32MB$"):
        Store.from_scipy(DENSE, [1, 2, 1], tmp_path / "s", config=ConvertConfig(memory=10**6))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_exists(tmp_path):
    made = []

    def part(number):
        made.append(number)
        return pd.DataFrame({"y": [0, 1], "a": [1.0, 2.0]})

    frame = dd.from_delayed([delayed(part)(0)], meta=pd.DataFrame({"y": [0], "a": [0.0]}))
    path = tmp_path / "s"
    Store.from_pandas(pd.DataFrame({"y": [0, 1], "a": [1.0, 2.0]}), path, PLAIN)
    with pytest.raises(InputError, match="exists already"):
        Store.from_dask(frame, path, config=PLAIN)
    assert not made  # refused before anything is computed
    assert Store.from_dask(frame, path, config=PLAIN, existing=Existing(append=True)).rows == 4
    assert [source.name for source in Store.open(path).manifest.sources] == ["memory", "part 0"]
    assert Store.from_dask(frame, path, config=PLAIN, existing=Existing(force=True)).rows == 2
    with pytest.raises(UsageError, match=r"resume: .*cannot be read again"):
        Store.from_dask(frame, path, config=PLAIN, existing=Existing(resume=True))
    with pytest.raises(InputError, match="no such folder; create it first"):
        Store.from_dask(frame, tmp_path / "a" / "s", config=PLAIN)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_an_exception_in_a_partition_leaves_nothing(tmp_path, scheduler):
    def part(number):
        if number == 2:
            raise ZeroDivisionError("mine")
        return pd.DataFrame({"y": [0, 1], "a": [1.0, 2.0]})

    frame = dd.from_delayed([delayed(part)(i) for i in range(5)], meta=pd.DataFrame({"y": [0], "a": [0.0]}))
    with dask.config.set(scheduler=scheduler), pytest.raises(ZeroDivisionError, match="mine"):
        Store.from_dask(frame, tmp_path / "s", config=PLAIN)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / "s.incoming"
    (left / "0123").mkdir(parents=True)
    (left / "0123" / "part-000000.npz").write_bytes(b"half")
    (left / "lock").write_text("1")
    assert dense(Store.from_scipy(DENSE, [1, 2, 1], tmp_path / "s", config=ConvertConfig(shuffle=False))) == DENSE


@pytest.mark.parametrize("content", [b"", Owner.this_process().record()], ids=["empty", "with a record"])
def test_folder_with_half_a_lock_file_only(tmp_path, content):
    """The power may be cut between the creation of a lock file under a temporary name and its renaming."""
    path = tmp_path / "rows.csv"
    path.write_text("label,x\n1,2\n-1,3\n")
    for left in (tmp_path / "s.incoming", tmp_path / "t.unfinished"):
        left.mkdir()
        (left / ".lock.0123456789abcdef.tmp").write_bytes(content)
    Store.from_scipy(DENSE, [1, 2, 1], tmp_path / "s", config=ConvertConfig(shuffle=False))
    convert([str(path)], tmp_path / "t", ConvertConfig(label="label"))
    assert sorted(os.listdir(tmp_path)) == ["rows.csv", "s", "t"]


def test_a_folder_of_another_user_is_not_touched(tmp_path):
    other = tmp_path / "s.incoming"
    other.mkdir()
    (other / "letter").write_text("dear")
    with pytest.raises(InputError, match="not made by oocpeg, and in the way; move it elsewhere"):
        Store.from_scipy(DENSE, [1, 2, 1], tmp_path / "s")
    assert (other / "letter").read_text() == "dear"
    other.rename(tmp_path / "elsewhere")


def test_a_process_at_work_is_not_disturbed(tmp_path):
    folder = tmp_path / "s.incoming"
    folder.mkdir()
    with open(folder / "lock", "w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process is at work on it"):
            Store.from_scipy(DENSE, [1, 2, 1], tmp_path / "s")
        assert folder.exists()
    Store.from_scipy(DENSE, [1, 2, 1], tmp_path / "s")


def test_two_stores_side_by_side(tmp_path):
    failed = []

    def make(number: int) -> None:
        try:
            x = da.from_array(np.full((30, 3), number, np.float32), (10, 3))
            Store.from_dask(x, tmp_path / f"{number}", np.arange(30) % 2)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for number in (1, 2):
        assert (Store.open(tmp_path / f"{number}").to_scipy()[0].toarray() == number).all()


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Store.from_scipy(DENSE, [1, 2, 1], "s").path == Path("s")
    assert os.listdir() == ["s"]
    Store.from_scipy(DENSE, [1, 2, 1], "s", existing=Existing(force=True))
    monkeypatch.undo()
