"""Stores of streams: LazyFrames of polars, datasets of Hugging Face, Arrow streams, rows of an iterator."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, fit, train
from ooc_pegasos.conversion import streams
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.store.drop import drop
from ooc_pegasos.store.verify import verify
from support.file_bytes import folder_bytes

CONFIG = ConvertConfig(label="y", shuffle=False, numeric=("x",), text=("words",), hash_bits=10, standardize=False)
ROWS = 10_000


def given(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rows)
    words = rng.choice(["red", "green", "blue sky", "old tree"], rows)
    y = np.where(x + (words == "red") + 0.3 * rng.standard_normal(rows) > 0, "yes", "no")
    return pa.table({"y": y, "x": x, "words": words})


class Features(dict):
    """The types of the columns, as of `datasets`."""

    def __init__(self, schema):
        super().__init__({field.name: field.type for field in schema})
        self.arrow_schema = schema


class Dataset:
    """The methods of a dataset of Hugging Face that count here. `as_lists`: batches are dictionaries of lists."""

    def __init__(self, table, as_lists=False, has_features=True):
        self.table, self.as_lists, self.format = table, as_lists, None
        self.features = Features(table.schema) if has_features else None

    def with_format(self, kind):
        other = Dataset(self.table, self.as_lists, self.features is not None)
        other.format = kind
        return other

    def iter(self, batch_size, drop_last_batch=False):
        assert self.format == "arrow"
        for batch in self.table.to_batches(max_chunksize=batch_size):
            yield batch.to_pydict() if self.as_lists else pa.Table.from_batches([batch])

    def __iter__(self):
        raise AssertionError("row by row")

    def __getitem__(self, name):
        return self.table[name].to_pylist()


class Capsule:
    """Any object with the Arrow interface of streams."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def lazy_frame(table):
    polars = pytest.importorskip("polars")
    return polars.from_arrow(table).lazy().with_columns(x=polars.col("x") * 2).with_columns(x=polars.col("x") / 2)


KINDS = {
    "lazy": lazy_frame,
    "dataset": Dataset,
    "lists": lambda table: Dataset(table, as_lists=True),
    "iterable": lambda table: Dataset(table, as_lists=True, has_features=False),
    "capsule": Capsule,
    "reader": lambda table: table.to_reader(max_chunksize=999),
    "rows": lambda table: iter(table.to_pylist()),
}


def content_without_manifest(store):
    return {name: content for name, content in folder_bytes(store.path).items() if name != "manifest.json"}


@pytest.mark.parametrize("kind", KINDS)
def test_streams_make_the_store_of_a_table(tmp_path, kind):
    wanted = Store.from_arrow(given(), tmp_path / "wanted", CONFIG)
    make = Store.from_arrow if kind == "rows" else convert
    store = make(KINDS[kind](given()), tmp_path / "s", CONFIG)
    assert content_without_manifest(store) == content_without_manifest(wanted)
    assert store.manifest.recipe == wanted.manifest.recipe
    assert [source.name for source in store.manifest.sources] == ["memory"]
    assert {path.name for path in tmp_path.iterdir()} == {"wanted", "s"}


def test_lazy_frames_of_older_versions_of_polars(tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")
    wanted = Store.from_arrow(given(), tmp_path / "wanted", CONFIG)
    frame = lazy_frame(given())
    monkeypatch.delattr(polars.LazyFrame, "collect_batches", raising=False)
    assert content_without_manifest(Store.from_polars(frame, tmp_path / "s", CONFIG)) == content_without_manifest(
        wanted
    )


@pytest.mark.parametrize("kind", ["lazy", "dataset", "reader"])
def test_fit_takes_streams(kind):
    result = fit(KINDS[kind](given()), label="y", config=TrainConfig(lam=1e-3), recipe=CONFIG)
    wanted = fit(given(), label="y", config=TrainConfig(lam=1e-3), recipe=CONFIG)
    assert result.model.weights.tolist() == wanted.model.weights.tolist()
    if kind != "reader":
        table = given(300, 1)
        assert result.model.decision_function(KINDS[kind](table)).tolist() == (
            wanted.model.decision_function(table).tolist()
        )


def test_columns_that_come_later_and_types_that_are_known_later(tmp_path):
    """A stream without declared types: the first 5,000 rows have no words, and whole numbers."""
    table = given(9000)
    rows = table.to_pylist()
    for number, row in enumerate(rows[:5000]):
        row["x"] = number % 7
        row["words"] = None if number % 2 else row.pop("words") and None
    wanted = Store.from_arrow(
        pa.table({name: [row.get(name) for row in rows] for name in ("y", "x", "words")}), tmp_path / "wanted", CONFIG
    )
    store = Store.from_arrow(iter(rows), tmp_path / "s", CONFIG)
    assert (store.to_scipy()[0] != wanted.to_scipy()[0]).nnz == 0
    assert [source.name for source in store.manifest.sources] == ["part 0", "part 1"]
    rows[8000]["x"] = [1]
    with pytest.raises(InputError, match="column 'x'"):
        Store.from_arrow(iter(rows), tmp_path / "t", CONFIG)


STAGING = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from ooc_pegasos.conversion.staging import write_stream

texts = ["word " * 200 + str(i) for i in range(4096)]
class Dataset:
    features = None
    def with_format(self, kind): return self
    def iter(self, batch_size):
        for _ in range(int(sys.argv[1])):
            yield pa.table({"y": list(range(batch_size)), "t": texts})
(written,) = write_stream(Dataset(), Path(sys.argv[2]), "memory")
Path(sys.argv[2], written.file).unlink()
print(written.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def test_memory_does_not_grow_with_a_stream(tmp_path):
    peaks = []
    for number in (5, 60):  # 20 and 240 MB
        ran = subprocess.run([sys.executable, "-c", STAGING, str(number), tmp_path], capture_output=True, check=True)
        rows, peak = map(int, ran.stdout.split())
        assert rows == 4096 * number
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 60, peaks


# --- splits ----------------------------------------------------------------------------------------


def test_the_splits_of_a_dataset(tmp_path, capsys):
    table, test, more = given(), given(3000, 1), given(500, 2)
    splits = {"train": Dataset(table), "validation": Dataset(more), "test": Dataset(test), "odd": Dataset(more)}
    store = Store.from_datasets(splits, tmp_path / "s", CONFIG)
    assert "not used: the split validation, odd of the dataset" in capsys.readouterr().err
    assert content_without_manifest(store) == content_without_manifest(
        Store.from_arrow(table, tmp_path / "alone", CONFIG)
    )
    assert (store.rows, store.test.rows) == (10_000, 3000)
    result = train(store, TrainConfig(lam=1e-3))
    found = result.model.evaluate(store.test)
    truth = result.model.predict(test) == np.array(test["y"])
    assert found["error"] == pytest.approx(1 - truth.mean())
    assert not verify(store).problems
    assert not verify(store.test).problems

    grown = Store.from_arrow(more, tmp_path / "s", CONFIG, Existing(append=True))
    assert (grown.rows, grown.test.rows) == (10_500, 3000)  # the test rows are those of the dataset
    with pytest.raises(UsageError, match=r"test=0\.1.*: the store was made with"):
        Store.from_arrow(more, tmp_path / "s", ConvertConfig(label="y", test=0.1), Existing(append=True))
    again = Store.from_datasets(splits, tmp_path / "s", CONFIG, Existing(force=True))
    assert (again.rows, again.test.rows) == (10_000, 3000)


def test_drop_leaves_the_test_rows_of_a_dataset(tmp_path):
    store = Store.from_datasets({"train": Dataset(given()), "test": Dataset(given(300, 1))}, tmp_path / "s", CONFIG)
    before = folder_bytes(tmp_path / "s")
    pd.DataFrame(given(50, 3).to_pandas()).to_parquet(tmp_path / "more.parquet")
    convert([tmp_path / "more.parquet"], tmp_path / "s", existing=Existing(append=True))
    assert Store.open(tmp_path / "s").test.rows == 300
    drop(tmp_path / "s", [str(tmp_path / "more.parquet")])
    assert folder_bytes(tmp_path / "s") == before
    assert store.test.rows == 300


@pytest.mark.parametrize(
    ("names", "config", "existing", "told"),
    [
        (["a", "b"], CONFIG, None, "none of the splits a, b is named train; give one of them"),
        (["train", "test"], ConvertConfig(label="y", test=0.2), None, "test: the dataset has the split test"),
        (["train", "test"], CONFIG, Existing(append=True), "append: the test rows of a store"),
    ],
)
def test_splits_that_are_refused(tmp_path, names, config, existing, told):
    splits = {name: Dataset(given(50)) for name in names}
    with pytest.raises(UsageError, match=told):
        Store.from_datasets(splits, tmp_path / "s", config, existing)
    assert not [*tmp_path.iterdir()]


def test_a_test_split_that_cannot_be_read(tmp_path):
    bad = {"train": Dataset(given()), "test": Dataset(given(50).rename_columns(["y", "z", "words"]))}
    with pytest.raises(InputError, match="the split test is missing"):
        Store.from_datasets(bad, tmp_path / "s", CONFIG)
    assert Store.open(tmp_path / "s").test is None
    good = {"train": Dataset(given()), "test": Dataset(given(50))}
    assert Store.from_datasets(good, tmp_path / "s", CONFIG, Existing(force=True)).test.rows == 50


def test_fit_uses_the_split_to_train_on(capsys):
    splits = {"train": Dataset(given()), "test": Dataset(given(300, 1))}
    model = fit(splits, label="y", config=TrainConfig(lam=1e-3), recipe=CONFIG).model
    assert "trained on the split train; not used: test" in capsys.readouterr().err
    wanted = fit(given(), label="y", config=TrainConfig(lam=1e-3), recipe=CONFIG).model
    assert model.weights.tolist() == wanted.weights.tolist()


def test_dictionaries_that_are_not_of_datasets():
    assert streams.splits_of({"train": [1, 2]}) is None
    with pytest.raises(UsageError, match="a dict is not a table"):
        fit({"y": [0, 1]}, label="y")
