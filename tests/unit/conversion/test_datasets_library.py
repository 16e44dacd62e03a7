"""Datasets of the library `datasets` itself, if it is installed: the stores and models of the same table."""

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, fit
from ooc_pegasos.conversion import streams
from ooc_pegasos.errors import InputError, UsageError
from support.file_bytes import folder_bytes

datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
pytestmark = pytest.mark.slow

CONFIG = ConvertConfig(
    label="label",
    shuffle=False,
    text=("text",),
    numeric=("stars",),
    categorical=("tags",),
    hash_bits=12,
    standardize=False,
)
NUMBER = 500


@pytest.fixture(autouse=True)
def own_dataset_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    monkeypatch.setattr(streams, "ROWS", 150)
    datasets.disable_progress_bars()


def hub_features():
    words, label = datasets.Value("string"), datasets.ClassLabel(names=["ham", "spam"])
    return datasets.Features(
        {"text": words, "label": label, "stars": datasets.Value("int64"), "tags": datasets.Sequence(words)}
    )


def hub_columns():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, NUMBER).tolist()
    return {
        "text": [f"{'money' if label else 'dinner'} w{rng.integers(50)}" for label in labels],
        "label": labels,
        "stars": rng.integers(1, 6, NUMBER).tolist(),
        "tags": [["a", "b", "c"][:count] for count in rng.integers(0, 4, NUMBER).tolist()],  # some are empty
    }


def rows_of_columns(given):
    return [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]


def hub_forms(given, kinds=None):
    """Datasets of the same rows, made in several ways."""
    table = datasets.Dataset.from_dict(given, features=kinds)
    stream, generated = table.to_iterable_dataset(num_shards=3), datasets.IterableDataset
    yield from {
        "dataset": table,
        "selected": datasets.concatenate_datasets([table, table]).select(range(NUMBER)),
        "numpy": table.with_format("numpy"),
        "filtered": table.filter(lambda row: row["stars"] > 0),
        "iterable": stream,
        "mapped": stream.map(lambda row: {"text": row["text"].lower()}),
        "mapped in batches": stream.map(lambda some: {"text": list(some["text"])}, batched=True),
        "filtered stream": stream.filter(lambda row: row["stars"] > 0),
        "generated": generated.from_generator(rows_of_columns, gen_kwargs={"given": given}),
        "generated with types": generated.from_generator(rows_of_columns, gen_kwargs={"given": given}, features=kinds),
        "renamed": stream.rename_column("stars", "s").rename_column("s", "stars"),
    }.items()


def chunk_files_of(store):
    return {name: content for name, content in folder_bytes(store.path).items() if name.endswith(".arrow")}


def test_every_form_makes_the_store_of_the_table(tmp_path):
    given = hub_columns()
    frame = pd.DataFrame(given)
    truth = chunk_files_of(convert(frame, tmp_path / "truth", CONFIG))
    for name, data in hub_forms(given, hub_features()):
        store = Store.from_datasets(data, tmp_path / name.replace(" ", "-"), CONFIG)
        assert chunk_files_of(store) == truth, name
        assert store.manifest.labels.classes == ["0", "1"]


def test_models_take_every_form(tmp_path):
    given = hub_columns()
    frame = pd.DataFrame(given)
    model = fit(
        datasets.Dataset.from_dict(given, features=hub_features()), recipe=CONFIG, config=TrainConfig(lam=1e-2)
    ).model
    truth = model.decision_function(frame)
    error = float(((truth > 0) != (frame["label"] == 1)).mean())
    for name, data in hub_forms(given, hub_features()):
        assert np.array_equal(model.decision_function(data), truth), name
        assert model.evaluate(data)["error"] == error, name
        unlabelled = data.remove_columns("label")
        assert np.array_equal(model.predict(unlabelled), model.predict(frame)), name
        with pytest.raises(InputError, match="no column 'label' with labels"):
            model.evaluate(unlabelled)


def test_splits(tmp_path):
    table = datasets.Dataset.from_dict(hub_columns(), features=hub_features())
    splits = table.train_test_split(test_size=0.2, seed=0)
    streams = datasets.IterableDatasetDict({name: part.to_iterable_dataset() for name, part in splits.items()})
    stores = [convert(data, tmp_path / name, CONFIG) for name, data in (("d", splits), ("i", streams))]
    assert [(store.rows, store.test.rows) for store in stores] == [(400, 100)] * 2
    assert chunk_files_of(stores[0]) == chunk_files_of(stores[1])
    assert chunk_files_of(stores[0].test) == chunk_files_of(stores[1].test)
    model = fit(splits["train"], recipe=CONFIG, config=TrainConfig(lam=1e-2)).model
    for work in (model.predict, model.evaluate):
        with pytest.raises(UsageError, match="these are the splits train, test of a dataset; give one of them"):
            work(splits)


def test_columns_that_have_no_features_are_named(tmp_path):
    kinds = datasets.Features({"x": datasets.Array2D((2, 2), "float32"), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"x": np.ones((4, 2, 2)).tolist(), "label": [0, 1, 0, 1]}, features=kinds)
    with pytest.raises(InputError, match=r"column 'x' is of type extension.*leave it out, with ignore=x"):
        convert(data, tmp_path / "s", ConvertConfig(label="label"))
