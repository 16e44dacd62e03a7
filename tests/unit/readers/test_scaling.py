"""Scales of numeric columns against scikit-learn's StandardScaler: by the first rows by default, by all, by none."""

import json
import math
from fractions import Fraction

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import StandardScaler

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.conversion import pipeline
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import delimited, survey
from ooc_pegasos.readers.survey import Moments
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.recipe import Column, Table, problem_of_table
from ooc_pegasos.store.verify import verify
from ooc_pegasos.store.vocabulary import of_store
from ooc_pegasos.util import typed_json
from support.file_bytes import folder_bytes

ROWS = 400
FORMATS = ["in.csv", "in.csv.gz", "in.jsonl", "in.parquet", "in.arrow", "memory"]


class NotesOfConversion(Progress):
    def __init__(self):
        self.found = []

    def note(self, text):
        self.found.append(text)


def some_numbers(rows=ROWS, seed=0):
    """Columns of many kinds; `None` is a null."""
    rng = np.random.default_rng(seed)
    price = rng.normal(250, 30, rows).round(2)
    return {
        "price": [None if rng.random() < 0.2 else float(x) for x in price],
        "small": (1e-5 * rng.standard_normal(rows)).tolist(),
        "rare": [int(x) if rng.random() < 0.1 else 0 for x in rng.integers(1, 900, rows)],
        "flag": rng.integers(0, 2, rows).tolist(),
        "year": rng.integers(1950, 2020, rows).tolist(),
        "large": (3 * 10**18 + 10**15 * rng.integers(-500, 500, rows)).tolist(),
    }


def some_table(rows=ROWS, seed=0):
    """The same numbers beside a category, and labels."""
    rng = np.random.default_rng(seed + 100)
    return {"y": rng.integers(0, 2, rows).tolist(), **some_numbers(rows, seed), "town": rng.choice(["A", "B"], rows)}


def scaled(column, *, centred, fitted=None):
    """The column by scikit-learn: nulls are left out of the fit and become 0."""
    fit, values = (np.array([np.nan if x is None else x for x in some], float) for some in (fitted or column, column))
    scaler = StandardScaler(with_mean=centred).fit(fit[:, None])
    if not centred:
        scaler.scale_ = np.array([np.nanstd(fit)])
    return np.nan_to_num(scaler.transform(values[:, None])[:, 0])


def write(folder, data, name):
    path, table = folder / name, pa.table(data)
    if name == "in.parquet":
        pq.write_table(table, path, row_group_size=70)
    elif name == "in.arrow":
        pyarrow.feather.write_feather(table, path)
    elif name == "in.jsonl":
        rows = ({key: value for key, value in row.items() if value is not None} for row in table.to_pylist())
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        table.to_pandas(integer_object_nulls=True).to_csv(path, index=False)
    return str(path)


def store_by_name(folder, data, name="in.csv", progress=None, **options):
    """A store, rows in order, with hashes that keep their sign and have names."""
    tables = {"hash_signed": False, "feature_names": 100, "shuffle": False, "values": "float32", "label": "y"}
    config = ConvertConfig(**(tables | options))
    if name == "memory":
        return Store.from_arrow(pa.table(data), folder / "memory.store", config, Existing(force=True))
    files = [write(folder, data, name)] if isinstance(data, dict) else data
    target = folder / f"{name}.store"
    return convert(files, target, config, existing=Existing(force=True), progress=progress or Progress())


def columns_by_name(store):
    """The columns of a store by the names of features."""
    names = {name: place for place, name in of_store(store.path, store.manifest).known_names().items()}
    matrix = store.to_scipy()[0].toarray()
    return {name: matrix[:, place] for name, place in names.items()}


def assert_scaled(found, data, *, flags):
    for name in ("price", "small", "year", "large"):
        np.testing.assert_allclose(found[name], scaled(data[name], centred=True), rtol=2e-6, atol=2e-7, err_msg=name)
    np.testing.assert_allclose(found["rare"], scaled(data["rare"], centred=False), rtol=2e-6)
    np.testing.assert_array_equal(found["rare"] == 0, np.array(data["rare"]) == 0)
    expected = scaled(data["flag"], centred=2 * sum(data["flag"]) > len(data["flag"])) if flags else data["flag"]
    np.testing.assert_allclose(found["flag"], expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_scikit_learn(tmp_path, name):
    """By default columns of 0 and 1 are as they were, like categories; with the option all are scaled."""
    data = some_table()
    found = columns_by_name(store_by_name(tmp_path, data, name))
    assert_scaled(found, data, flags=False)
    np.testing.assert_array_equal(found["town=A"], (data["town"] == "A").astype(float))
    assert_scaled(columns_by_name(store_by_name(tmp_path, data, name, standardize=True)), data, flags=True)
    found = columns_by_name(store_by_name(tmp_path, data, name, standardize=False))
    for column in ("small", "rare", "flag", "year", "large"):
        np.testing.assert_allclose(found[column], np.array(data[column], np.float32), rtol=1e-6)


def test_all_formats_have_the_same_scales(tmp_path):
    """But for the last bits, because blocks of rows differ."""
    tables = [store_by_name(tmp_path, some_table(), name).manifest.recipe.table for name in FORMATS]
    made = [{column.name: (column.shift, column.scale) for column in table.columns} for table in tables]
    for name, scales in made[0].items():
        assert [other[name] for other in made] == [pytest.approx(scales, rel=1e-13)] * len(FORMATS)


@pytest.mark.parametrize("standardize", [None, True])
@pytest.mark.parametrize("nulls", ["absent", "mark"])
def test_cells_and_arrow_give_the_same_bytes(tmp_path, monkeypatch, standardize, nulls):
    """Numbers alone are read without Arrow."""
    data = {"y": some_table()["y"], **some_numbers()}
    options = {"standardize": standardize, "nulls": nulls, "feature_names": 0}
    files = [write(tmp_path, data, "in.csv")]
    calls, read = [], delimited.CellReader.read
    with monkeypatch.context() as patched:
        patched.setattr(delimited.CellReader, "read", lambda *given: calls.append(1) or read(*given))
        cells = folder_bytes(store_by_name(tmp_path, files, **options).path)
    assert calls
    monkeypatch.setattr(delimited.CellReader, "read", lambda *_given: None)
    store = store_by_name(tmp_path, files, **options)
    assert folder_bytes(store.path) == cells
    matrix = store.to_scipy()[0].toarray()
    assert_scaled(dict(zip(some_numbers(), matrix.T, strict=False)), data, flags=bool(standardize))
    if nulls == "mark":
        np.testing.assert_array_equal(matrix[:, 6], [price is None for price in data["price"]])


def test_a_null_is_the_mean_and_a_mark(tmp_path):
    data = {"y": [0, 1] * 10, "x": [None, 5.0, 7.0, 9.0] * 5, "c": ["a", "b"] * 10}
    found = columns_by_name(store_by_name(tmp_path, data, nulls="mark"))
    high = math.sqrt(1.5)
    np.testing.assert_allclose(found["x"], [0, -high, 0, high] * 5, rtol=1e-6)
    assert found["x=null"].tolist() == [1, 0, 0, 0] * 5


@pytest.mark.parametrize("options", [{"log1p": True}, {"clip": 300.0}, {"log1p": True, "clip": 5.5}])
def test_log1p_and_clip_come_before(tmp_path, options):
    data = some_table()

    def limited(column):
        numbers = np.array([np.nan if x is None else x for x in column], float)
        numbers = np.sign(numbers) * np.log1p(np.abs(numbers)) if "log1p" in options else numbers
        return np.clip(numbers, -options.get("clip", np.inf), options.get("clip", np.inf)).tolist()

    found = columns_by_name(store_by_name(tmp_path, data, **options))
    for name in ("price", "small"):
        np.testing.assert_allclose(found[name], scaled(limited(data[name]), centred=True), rtol=2e-6, atol=2e-7)
    np.testing.assert_allclose(found["rare"], scaled(limited(data["rare"]), centred=False), rtol=2e-6)


def test_zeros_are_counted_among_the_numbers_that_are_there(tmp_path):
    """A column of mostly nulls is centred if most of its other numbers are not 0; then nulls are its mean."""
    rng = np.random.default_rng(6)
    some = [float(x) if rng.random() < 0.2 else None for x in rng.normal(40, 3, ROWS)]
    zeros = [None if rng.random() < 0.5 else float(x) if rng.random() < 0.4 else 0.0 for x in rng.normal(40, 3, ROWS)]
    data = {"y": [0, 1] * (ROWS // 2), "c": ["a", "b"] * (ROWS // 2), "some": some, "zeros": zeros}
    for standardize in (None, True):
        found = columns_by_name(store_by_name(tmp_path, data, standardize=standardize))
        np.testing.assert_allclose(found["some"], scaled(some, centred=True), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found["zeros"], scaled(zeros, centred=False), rtol=1e-6)


def test_constant_columns_are_divided_by_their_size(tmp_path):
    """So they can be the constant feature of a user, and do not dwarf other columns."""
    data = {"y": [0, 1] * 50, "c": ["a", "b"] * 50, "x": np.arange(100.0), "year": [2024] * 100, "debt": [-1e9] * 100}
    data |= {"zero": [0.0] * 100, "empty": pa.nulls(100, pa.float64()), "one": [1] * 100, "some": [None, 4.0] * 50}
    for standardize in (None, True):
        found = columns_by_name(store_by_name(tmp_path, data, "in.parquet", standardize=standardize))
        assert set(found["year"]) == set(found["one"]) == {1}
        assert set(found["debt"]) == {-1}
        assert set(found["zero"]) == set(found["empty"]) == {0}
        assert found["some"].tolist() == [0, 1] * 50
        np.testing.assert_allclose(found["x"], scaled(data["x"].tolist(), centred=True), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("least", "step"), [(3 * 10**18, 512), (3 * 10**18, 10**6), (-(10**15), 1), (1.7e18, 3600e9)])
def test_integers_far_from_0(tmp_path, least, step):
    """Against exact fractions: differences are small beside the numbers."""
    rng = np.random.default_rng(1)
    numbers = [int(least) + int(step) * int(k) for k in rng.integers(0, 1000, ROWS)]
    data = {"y": [0, 1] * (ROWS // 2), "c": ["a", "b"] * (ROWS // 2), "x": numbers}
    found = columns_by_name(store_by_name(tmp_path, data, "in.parquet"))["x"]
    exact = [Fraction(x) for x in numbers]
    mean = sum(exact) / ROWS
    deviation = math.sqrt(sum((x - mean) ** 2 for x in exact) / ROWS)
    expected = np.array([float(x - mean) / deviation for x in exact])
    spacing = float(np.spacing(float(abs(least)))) / deviation  # the mean is a float64
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=spacing + 1e-7)


def test_infinite_and_bad_cells_do_not_count(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.normal(50, 5, ROWS)
    rows = [f"{i % 2},{float(x[i])!r},{'ab'[i % 2]}" for i in range(ROWS)]
    for at, wrong in ((3, "0,inf,a"), (50, "1,many,b"), (90, "0,1"), (91, "0,-1e999,a"), (200, "1,nan,a")):
        rows[at] = wrong
    good = [i for i in range(ROWS) if i not in (3, 50, 90, 91, 200)]
    (tmp_path / "in.csv").write_text("y,x,c\n" + "\n".join(rows) + "\n")
    for standardize in (None, True):
        files = [str(tmp_path / "in.csv")]
        options = {"on_bad_row": "skip", "numeric": ("x",), "categorical": ("c",), "standardize": standardize}
        store = store_by_name(tmp_path, files, **options)
        assert store.rows == len(good)
        np.testing.assert_allclose(
            columns_by_name(store)["x"], scaled(x[good].tolist(), centred=True), rtol=1e-6, atol=1e-7
        )
    table = pa.table({"y": [0, 1] * 50, "x": [float("nan"), *x[1:98], float("inf"), 1.0], "c": ["a"] * 100})
    pq.write_table(table, tmp_path / "in.parquet")
    store = store_by_name(tmp_path, [str(tmp_path / "in.parquet")], on_bad_row="skip")
    expected = scaled([*x[1:98].tolist(), 1.0], centred=True)
    np.testing.assert_allclose(columns_by_name(store)["x"], expected, rtol=1e-6, atol=1e-7)


def test_rows_with_a_null_that_is_bad_do_not_count(tmp_path):
    data = some_table()
    data["price"][::5] = [9e9, None] * (ROWS // 10)
    left = [i for i in range(ROWS) if data["price"][i] is not None]
    store = store_by_name(tmp_path, data, nulls="bad", on_bad_row="skip")
    assert store.rows == len(left)
    for name in ("price", "year"):
        expected = scaled([data[name][i] for i in left], centred=True)
        np.testing.assert_allclose(columns_by_name(store)[name], expected, rtol=2e-6, atol=1e-6)


def test_numbers_that_float32_cannot_hold_are_held_when_scaled(tmp_path):
    data = {"y": [0, 1] * 50, "c": ["a"] * 100, "x": (1e60 * np.arange(100)).tolist(), "z": (1e-70 * np.arange(100))}
    found = columns_by_name(store_by_name(tmp_path, data))
    for name in "xz":
        np.testing.assert_allclose(found[name], scaled(np.arange(100.0).tolist(), centred=True), rtol=1e-6, atol=1e-7)
    with pytest.raises(InputError, match="a value is too large for float32"):
        store_by_name(tmp_path, data, standardize=False)
    data["x"] = (1e300 * np.arange(100) * np.resize([1, -1], 100)).tolist()  # squares are infinite
    with pytest.raises(InputError, match="a value is too large for float32"):
        store_by_name(tmp_path, data)


# --- the sample ---------------------------------------------------------------------------------------


def test_the_sample_is_the_first_rows(tmp_path, monkeypatch):
    """Two blocks of lines; rows that follow are scaled by them."""
    monkeypatch.setattr(survey, "SAMPLED_TASKS", 2)
    x = np.concatenate([np.full(100, 7.0) + np.arange(100) % 3, np.arange(900)])
    lines = [f"{i % 2},{x[i]:08.1f},b" for i in range(1000)]
    (tmp_path / "in.csv").write_text("y,x,c\n" + "\n".join(lines) + "\n")
    files = [str(tmp_path / "in.csv")]
    block = len("y,x,c\n") + 100 * (len(lines[0]) + 1) // 2
    store = store_by_name(tmp_path, files, block_size=block)
    column = next(column for column in store.manifest.recipe.table.columns if column.name == "x")
    sampled = next(n for n in range(90, 110) if math.isclose(x[:n].mean(), column.shift, rel_tol=1e-12))
    assert math.isclose(1 / column.scale, x[:sampled].std(), rel_tol=1e-12)
    expected = scaled(x.tolist(), centred=True, fitted=x[:sampled].tolist())
    np.testing.assert_allclose(columns_by_name(store)["x"], expected, rtol=1e-6, atol=1e-6)
    whole = columns_by_name(store_by_name(tmp_path, files, block_size=block, standardize=True))["x"]
    np.testing.assert_allclose(whole, scaled(x.tolist(), centred=True), rtol=1e-6, atol=1e-7)


def test_the_sample_is_spread_over_files(tmp_path):
    """Of 20 files every third: 1, 4, 7, ..."""
    rng = np.random.default_rng(3)
    files, numbers = [], rng.normal(size=(20, 30)) + 10 * np.arange(20)[:, None]
    for number, some in enumerate(numbers):
        part = {"y": [0, 1] * 15, "x": some, "c": ["a"] * 30}
        files.append(write(tmp_path, part, "in.parquet"))
        (tmp_path / "in.parquet").rename(tmp_path / f"{number:02}.parquet")
        files[-1] = str(tmp_path / f"{number:02}.parquet")
    expected = scaled(numbers.ravel().tolist(), centred=True, fitted=numbers[::3].ravel().tolist())
    found = columns_by_name(store_by_name(tmp_path, files))["x"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    found = columns_by_name(store_by_name(tmp_path, files, standardize=True))["x"]
    np.testing.assert_allclose(found, scaled(numbers.ravel().tolist(), centred=True), rtol=1e-6, atol=1e-6)


def test_threads_do_not_change_the_scales(tmp_path):
    made = [store_by_name(tmp_path, some_table(3000), block_size=4000, threads=threads) for threads in (1, 2, 5)]
    tables = [store.manifest.recipe.table for store in made]
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize("cuts", [[], [1], [0, 0, 7], [100, 200, 399], list(range(1, 400))])
def test_moments_of_pieces_are_those_of_the_whole(cuts):
    rng = np.random.default_rng(4)
    numbers = rng.normal(size=(400, 5)) * [1, 1e-8, 1e8, 1, 1] + [0, 1, 1e12, 0, 5]
    numbers[:, 3] *= rng.random(400) < 0.3
    numbers[rng.random((400, 5)) < 0.2] = np.nan
    numbers[:250, 4] = np.nan
    numbers = np.column_stack([numbers, np.arange(400) % 2, np.arange(400) % 2, np.arange(400) % 2])
    numbers[0, 6], numbers[399, 7] = 2, -1
    found = Moments(np.empty((0, 8)))
    for piece in np.split(numbers, cuts):
        found.add(Moments(piece))
    assert found.rows == 400
    assert found.are_binary.tolist() == [False] * 5 + [True, False, False]
    np.testing.assert_array_equal(found.counts, (~np.isnan(numbers)).sum(axis=0))
    np.testing.assert_array_equal(found.others, (np.nan_to_num(numbers) != 0).sum(axis=0))
    np.testing.assert_allclose(found.means, np.nanmean(numbers, axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.deviations, np.nanstd(numbers, axis=0), rtol=1e-10)
    sizes = [np.sqrt(np.mean(column[np.nan_to_num(column) != 0] ** 2)) for column in numbers.T]
    np.testing.assert_allclose(found.sizes, sizes, rtol=1e-12)


# --- the decision -------------------------------------------------------------------------------------

X = np.random.default_rng(5).standard_normal(200)
NOTE = "numbers are scaled, because they {} ({}); --no-standardize keeps them as they are"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"a": X, "b": 9.5 * X}, None),
        ({"a": X, "b": 10.5 * X}, "differ in size"),
        ({"a": X, "b": 9.5 * X[::-1], "c": 0.095 * X}, "differ in size"),
        ({"a": X + 9, "b": 9 * X}, None),
        ({"a": X + 11, "b": 9 * X}, "are far from 0"),
        ({"a": 11 * X, "b": np.arange(200) % 2}, "differ in size"),
        ({"a": 9 * X, "b": np.arange(200) % 2}, None),
        ({"a": 9 * X, "b": np.arange(200) == 7}, None),  # a rare 1 has the size of other ones
        ({"a": 5 * X, "b": np.arange(200) != 7}, None),
        ({"a": X, "b": np.where(np.arange(200) % 50, 0, 2)}, None),
        ({"a": X, "b": np.where(np.arange(200) % 50, 0, 20)}, "differ in size"),
        ({"a": 7 + 0 * X, "b": X}, None),
        ({"a": 2024 + 0 * X, "b": X}, "differ in size"),
        ({"a": np.arange(200) % 2, "b": np.arange(200) % 3 == 0}, None),
        ({"a": np.zeros(200), "b": X}, None),
        ({"a": 0.01 * X, "town": ["b"] * 200}, "stand beside categories or texts"),
        ({"a": np.arange(200) % 2, "town": ["b"] * 200}, None),
        ({"town": ["b"] * 200, "d": ["e", "f"] * 100}, None),
    ],
)
def test_columns_that_are_scaled(tmp_path, columns, why):
    data = {"y": [0, 1] * 100}
    data |= {name: column * 1.0 if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    progress = NotesOfConversion()
    store = store_by_name(tmp_path, data, "in.parquet", progress=progress)
    table = store.manifest.recipe.table
    assert table.scaling == "sample"
    chosen = [name for name, column in columns.items() if not isinstance(column, list) and not set(column) <= {0, 1}]
    assert [column.name for column in table.columns if column.is_scaled] == (chosen if why else [])
    notes = [note for note in progress.found if "scaled" in note]
    assert notes == ([NOTE.format(why, ", ".join(chosen))] if why else [])
    assert preview([str(tmp_path / "in.parquet")], ConvertConfig(label="y")).recipe.table.columns == table.columns


def test_the_note_names_three_columns(tmp_path):
    data = {"y": [0, 1] * 100, **{f"x{i}": 10.0**i * X for i in range(5)}}
    progress = NotesOfConversion()
    store_by_name(tmp_path, data, progress=progress)
    assert NOTE.format("differ in size", "x0, x1, x2 and 2 more") in progress.found


def test_texts_are_no_numbers(tmp_path):
    data = {"y": [0, 1] * 100, "x": X, "words": ["a b", "c d"] * 100}
    progress = NotesOfConversion()
    store = store_by_name(tmp_path, data, progress=progress, numeric=("x",), text=("words",))
    assert NOTE.format("stand beside categories or texts", "x") in progress.found
    np.testing.assert_allclose(columns_by_name(store)["x"], scaled(X.tolist(), centred=True), rtol=1e-6, atol=1e-7)


def test_lists_of_indices_are_left_alone(tmp_path):
    lists = [[(3, 1000.0), (1, 0.001)]] * 20
    kind = pa.list_(pa.struct([("index", pa.int32()), ("value", pa.float64())]))
    table = pa.table({"y": [0, 1] * 10, "x": pa.array([[{"index": i, "value": v} for i, v in r] for r in lists], kind)})
    pq.write_table(table, tmp_path / "in.parquet")
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "s", ConvertConfig(label="y", shuffle=False))
    assert store.to_scipy()[0].toarray()[0].tolist() == pytest.approx([0, 0.001, 0, 1000])


@pytest.mark.parametrize("standardize", [None, True])
def test_numbers_in_other_formats_are_not_scaled(tmp_path, standardize):
    (tmp_path / "in.svm").write_text("1 1:1000 2:0.001\n-1 1:2000\n" * 10)
    if standardize:
        with pytest.raises(UsageError, match="standardize is for tables"):
            convert([str(tmp_path / "in.svm")], tmp_path / "s", ConvertConfig(standardize=True))
        return
    store = convert([str(tmp_path / "in.svm")], tmp_path / "s", ConvertConfig(shuffle=False))
    assert store.to_scipy()[0].toarray()[0].tolist() == pytest.approx([1000, 0.001])


# --- later ----------------------------------------------------------------------------------------------


def scores_in_order(model, data, out):
    predict(model, data, out)
    return pd.read_csv(out)["score"].tolist()


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl", "in.parquet"])
@pytest.mark.parametrize("columns", ["mixed", "numbers"])
def test_the_store_and_the_file_give_the_same_scores(tmp_path, name, columns):
    """Bit by bit."""
    data = some_table()
    if columns == "numbers":
        del data["town"]
    store = store_by_name(tmp_path, data, name)
    assert any(column.shift for column in store.manifest.recipe.table.columns)
    model = train(store, TrainConfig(lam=0.01)).model
    by_store = scores_in_order(model, store.path, tmp_path / "a.csv")
    assert by_store == scores_in_order(model, tmp_path / name, tmp_path / "b.csv")
    assert len(set(by_store)) > ROWS / 2
    frame = pa.table(data).to_pandas(integer_object_nulls=True)
    assert model.decision_function(frame).tolist() == by_store
    assert evaluate(model, tmp_path / name) == evaluate(model, store.path)


def test_appended_rows_have_the_scales_of_the_store(tmp_path):
    data, more = some_table(), some_table(300, seed=9)
    more["year"] = [year + 500 for year in more["year"]]
    store = store_by_name(tmp_path, data)
    columns = store.manifest.recipe.table.columns
    (tmp_path / "more").mkdir()
    progress = NotesOfConversion()
    file = write(tmp_path / "more", more, "in.csv")
    config = ConvertConfig(feature_names=100, shuffle=False)
    store = convert([file], store.path, config, existing=Existing(append=True), progress=progress)
    assert store.manifest.recipe.table.columns == columns
    assert not any("scaled" in note for note in progress.found)
    found = columns_by_name(store)
    for name in ("price", "year"):
        expected = scaled(data[name] + more[name], centred=True, fitted=data[name])
        np.testing.assert_allclose(found[name], expected, rtol=2e-6, atol=1e-6)
    assert not verify(store).problems
    for given, refused in ((None, False), (True, False), (False, True)):
        config = ConvertConfig(standardize=given)
        if refused:
            with pytest.raises(UsageError, match="no_standardize: the store was made otherwise"):
                convert([file], store.path, config, existing=Existing(append=True))
        else:
            convert([file], store.path, config, existing=Existing(append=True))


def test_a_resumed_conversion_keeps_the_scales(tmp_path, monkeypatch):
    file = write(tmp_path, some_table(), "in.csv")
    config = ConvertConfig(label="y")
    whole = convert([file], tmp_path / "whole", config)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "plan_assembly", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert([file], tmp_path / "store", config)
    with monkeypatch.context() as patched:  # nothing is sampled again
        patched.setattr(survey, "with_findings", interrupted)
        other = ConvertConfig(label="y", standardize=True)
        with pytest.raises(UsageError, match="'standardize' was different"):
            convert([file], tmp_path / "store", other, existing=Existing(resume=True))
        convert([file], tmp_path / "store", config, existing=Existing(resume=True))
    assert folder_bytes(tmp_path / "store") == folder_bytes(whole.path)


def test_a_finished_store_is_reused_only_with_the_same_option(tmp_path):
    """Also where nothing had to be scaled, so that the rows are the same."""
    reuse = Existing(reuse=True)
    for number, data in enumerate((some_table(), {"y": [0, 1] * 100, "x": X, "z": X[::-1]})):
        file = write(tmp_path, data, "in.parquet")
        for given in (None, True, False):
            made = convert([file], tmp_path / f"s{number}{given}", ConvertConfig(label="y", standardize=given))
            before = folder_bytes(made.path)
            for other in (None, True, False):
                config = ConvertConfig(label="y", standardize=other)
                if other == given:
                    convert([file], made.path, config, existing=reuse)
                else:
                    with pytest.raises(InputError, match="made from other inputs or with other options"):
                        convert([file], made.path, config, existing=reuse)
                assert folder_bytes(made.path) == before


def test_recipes_without_shifts_are_written_as_before():
    """Earlier versions read them, and this version reads those of earlier ones."""
    made = Recipe("table", 0, 1, None, None, table=Table([Column("x", "numeric", scale=2.0)], "y"))
    written = typed_json.dump(made)
    assert written["table"]["columns"] == [{"name": "x", "kind": "numeric", "scale": 2.0}]
    assert "scaling" not in written["table"]
    assert typed_json.load(Recipe, json.loads(json.dumps(written))) == made
    table = Table([Column("x", "numeric", scale=2.0, shift=3.0)], "y", scaling="all")
    scaled_one = Recipe("table", 0, 1, None, None, table=table)
    assert typed_json.load(Recipe, json.loads(json.dumps(typed_json.dump(scaled_one)))) == scaled_one


@pytest.mark.parametrize("wrong", [{"shift": float("inf")}, {"shift": float("nan")}, {"scale": 0.0}])
def test_scales_that_cannot_be_are_refused(wrong):
    assert problem_of_table(Table([Column("x", "numeric", shift=3.0)], "y")) is None
    assert problem_of_table(Table([Column("x", "numeric", **wrong)], "y"))


def test_a_preview_shows_the_scaled_rows(tmp_path):
    file = write(tmp_path, some_table(), "in.csv")
    store = store_by_name(tmp_path, [file])
    shown = preview([file], ConvertConfig(label="y", hash_signed=False))
    assert shown.recipe == store.manifest.recipe
    for number, row in enumerate(shown.rows):
        stored_row = store.to_scipy()[0][number]
        assert row["entries"] == list(zip(stored_row.indices.tolist(), stored_row.data.tolist(), strict=True))
    assert NOTE.format("stand beside categories or texts", "price, small, rare and 2 more") in shown.remarks
    assert 'scaling = "sample"' in next(line for line in shown.lines() if line.startswith("table:"))


def test_dask_collections(tmp_path):
    """A store of a collection is that of the table in memory."""
    data = some_table()
    frame = pa.table(data).to_pandas()
    config = ConvertConfig(label="y", shuffle=False, hash_bits=10)
    with dask.config.set(scheduler="synchronous"):
        store = Store.from_dask(dd.from_pandas(frame, npartitions=3), tmp_path / "dask", config=config)
    other = Store.from_arrow(frame, tmp_path / "memory", config)
    mine, others = (one.manifest.recipe.table.columns for one in (store, other))
    for one, two in zip(mine, others, strict=True):
        assert (one.shift, one.scale) == pytest.approx((two.shift, two.scale), rel=1e-12)
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), other.to_scipy()[0].toarray(), rtol=1e-5, atol=1e-6)
