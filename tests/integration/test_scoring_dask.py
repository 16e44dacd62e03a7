"""Scoring and training on Dask collections, and scoring of stores by Dask workers."""

import dataclasses
import math
import os
import signal
import time
from itertools import pairwise

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import sparse

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, convert, train
from ooc_pegasos.distributed import collections, evaluate_dask, predict_dask, predict_store, store_parts, train_dask
from ooc_pegasos.distributed import scoring as distributed_scoring
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.scoring import evaluate as evaluation
from ooc_pegasos.scoring.evaluate import evaluate, predict
from support.clusters import workers_of_this_process, workers_that_never_pause
from support.rows import random_rows
from support.stores import store_of

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.dask


@pytest.fixture(scope="module")
def client():
    """Two workers in this process."""
    with workers_of_this_process() as (_cluster, client):
        yield client


def mixed_frame(rows=300, seed=0):
    """Return a table of numbers, categories, text and nulls."""
    rng = np.random.default_rng(seed)
    number = rng.normal(size=rows).round(3)
    color = rng.choice(["red", "green", "blue"], rows)
    made = pd.DataFrame(
        {
            "who": [f"u{i}" for i in range(rows)],
            "number": np.where(rng.random(rows) < 0.1, np.nan, number),
            "color": pd.Series(color).where(rng.random(rows) > 0.1, None),
            "words": [" ".join(rng.choice(["good", "bad", "so", "very"], 3)) for _ in range(rows)],
            "not asked for": [object()] * rows,
            "y": np.where(number + (color == "red") + rng.normal(size=rows) / 4 > 0.3, "yes", "no"),
        }
    )
    return made.set_index(pd.Index(np.arange(rows) * 2 + 7, name="at"))


TABLE = ConvertConfig(
    label="y",
    id="who",
    numeric=("number",),
    categorical=("color",),
    text=("words",),
    hash_bits=12,
    normalize="l2",
    standardize=False,
)


def of_table(folder, data, config=TABLE, **options):
    file = folder / "in.parquet"
    data.drop(columns="not asked for", errors="ignore").to_parquet(file, index=False)
    store = convert([str(file)], folder / "tables", config, existing=Existing(force=True))
    return train(store, TrainConfig(**{"lam": 0.01, "max_epochs": 5} | options)).model, file


def of_arrays(folder, classes=2, **options):
    matrix, labels = random_rows(400, 50, 3, 0.3)
    truth = np.random.default_rng(1).normal(size=(50, classes))
    labels = (matrix @ truth).argmax(axis=1)
    config = ConvertConfig(**{"chunk_size": 2048, "shuffle": False} | options)
    store = Store.from_scipy(matrix, labels, folder / "arrays", config=config, existing=Existing(force=True))
    model = train(store, TrainConfig(lam=0.01, max_epochs=5, bias="feature", loss="logistic")).model
    file = folder / "rows.npz"
    sp.save_npz(file, matrix)
    return model, matrix, labels, store, file


def told(model, data, folder, **options):
    predict(model, data, folder / "out.parquet", **options)
    return pq.read_table(folder / "out.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("config", [TABLE, ConvertConfig(label="y", numeric=("number",), values="float16")])
@pytest.mark.parametrize("scheduler", ["threads", "sync", "distributed"])
def test_dataframes(client, tmp_path, config, scheduler):
    data = mixed_frame()
    model, file = of_table(tmp_path, data, config, loss="logistic")
    wanted = told(model, file, tmp_path, proba=True)
    collection = dd.from_pandas(data, npartitions=5)
    lazy = predict_dask(model, collection, proba=True)
    assert lazy.npartitions == 5
    assert lazy.divisions == collection.divisions
    with dask.config.set(scheduler=scheduler):
        found = lazy.compute()
    assert list(found.columns) == wanted.column_names == list(lazy.columns)
    assert (found.dtypes == lazy.dtypes).all()
    assert found.index.tolist() == data.index.tolist()
    for column in wanted.column_names:
        assert found[column].tolist() == wanted[column].to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "multiclass-logistic"])
def test_dataframes_of_several_classes(client, tmp_path, loss):
    data = mixed_frame().drop(columns="not asked for")
    data["y"] = np.arange(len(data)) % 3 * 1.5
    data["color"] = data["color"].astype("category")
    model, file = of_table(tmp_path, data, dataclasses.replace(TABLE, task="multiclass"), loss=loss)
    wanted = told(model, file, tmp_path)
    found = predict_dask(model, dd.from_pandas(data, npartitions=4)).compute()
    assert found.reset_index(drop=True).to_dict("list") == wanted.to_pydict()


def test_dataframes_with_a_dictionary_and_real_targets(tmp_path):
    data = mixed_frame().drop(columns="not asked for")
    data["y"] = np.arange(len(data)) * 0.25
    data["one kind"] = [None] * 150 + ["only"] * 150
    config = ConvertConfig(label="y", categorical=("color", "one kind"), text=("words",), dictionary=20, idf=True)
    model, file = of_table(tmp_path, data, config)
    wanted = told(model, file, tmp_path)
    collection = dd.from_pandas(data, npartitions=2)
    found = predict_dask(model, collection[collection["who"] != "nobody"]).compute()
    assert found.reset_index(drop=True).to_dict("list") == wanted.to_pydict()
    nothing = predict_dask(model, collection[collection["who"] == "nobody"]).compute()
    assert (len(nothing), list(nothing.columns)) == (0, list(found.columns))


def test_lists_of_indices(tmp_path):
    data = pd.DataFrame({"y": [-1, 1] * 20, "at": [[1, 2], [3], [], [5, 7]] * 10})
    model, file = of_table(tmp_path, data, ConvertConfig(label="y"))
    with dask.config.set({"dataframe.convert-string": False}):
        lists = dd.from_pandas(data, npartitions=2)
        found = predict_dask(model, lists).compute()
    assert found["score"].tolist() == told(model, file, tmp_path)["score"].to_pylist()


def test_invalid_dataframes(tmp_path):
    data = mixed_frame()
    config = ConvertConfig(label="y", numeric=("number",), nulls="bad")
    model, _file = of_table(tmp_path, data.dropna(), config)
    with pytest.raises(InputError, match=r"no column 'number' \(is it 'numbers'\?\); the columns are who, numbers"):
        predict_dask(model, dd.from_pandas(data.rename(columns={"number": "numbers"}), npartitions=2))
    with pytest.raises(InputError, match=r"a partition: row [\d,]+: no value in column 'number'"):
        predict_dask(model, dd.from_pandas(data, npartitions=2)).compute(scheduler="sync")
    words = data.assign(number="one")
    with pytest.raises(InputError, match="not a number"):
        predict_dask(model, dd.from_pandas(words, npartitions=2)).compute(scheduler="sync")
    with pytest.raises(UsageError, match=r"on data read as table, not on an array; give a dask\.dataframe"):
        predict_dask(model, da.ones((3, 3)))
    with pytest.raises(UsageError, match="no probabilities"):
        predict_dask(model, dd.from_pandas(data, npartitions=2), proba=True)
    with pytest.raises(UsageError, match="a Bag can not be scored"):
        predict_dask(model, db.from_sequence([{"number": 1}]))
    with pytest.raises(UsageError, match="a Delayed may become anything"):
        predict_dask(model, dask.delayed(data))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", ["dense", "scipy", "pydata", "float64", "columns"])
def test_arrays(client, tmp_path, classes, kind):
    model, matrix, _labels, _store, file = of_arrays(tmp_path, classes, normalize="l2" if classes == 4 else None)
    wanted = told(model, file, tmp_path, proba=True)
    names = [name for name in wanted.column_names if name.startswith("score")]
    scores = np.stack([wanted[name].to_numpy() for name in names], axis=1).reshape(400, -1)
    x = da.from_array(matrix.toarray(), chunks=(150, -1))
    if kind == "scipy":
        x = x.map_blocks(sp.csr_matrix)
    elif kind == "pydata":
        x = x.map_blocks(sparse.COO)
    elif kind == "float64":
        x = x.astype(float)
    elif kind == "columns":
        x = x.rechunk((100, 20))
    found = predict_dask(model, x)
    assert found.shape == ((400,) if classes == 2 else (400, classes))
    assert found.chunks[0] == x.chunks[0]
    assert found.compute().tobytes() == scores.tobytes()
    assert found.compute(scheduler="sync").tobytes() == scores.tobytes()
    likely = predict_dask(model, x, proba=True).compute()
    assert likely.ravel().tolist() == model.probabilities_of(scores[:, 0] if classes == 2 else scores).ravel().tolist()
    unknown = x[x[:, 0].map_blocks(lambda block: np.ones(len(block), bool))] if kind == "dense" else None
    if unknown is not None:
        assert math.isnan(predict_dask(model, unknown).shape[0])
        assert predict_dask(model, unknown).compute().tobytes() == scores.tobytes()


def test_invalid_arrays(tmp_path):
    model, matrix, *_rest = of_arrays(tmp_path)
    wide = np.hstack([matrix.toarray(), np.ones((400, 3))])  # columns it does not know count for nothing
    assert np.allclose(predict_dask(model, da.from_array(wide)).compute(), model.decision_function(matrix))
    wide[7, 3] = np.nan
    with pytest.raises(InputError, match="a partition: row 8: the value nan in column 3 is not finite"):
        predict_dask(model, da.from_array(wide)).compute(scheduler="sync")
    with pytest.raises(InputError, match="the collection: a matrix of 3 columns, but the model has"):
        predict_dask(model, da.ones((4, 3)))
    with pytest.raises(UsageError, match="of 1 dimensions"):
        predict_dask(model, da.ones(3))
    with pytest.raises(UsageError, match=r"on data read as arrays, not on a table; give a dask\.array"):
        predict_dask(model, dd.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1))


def test_the_model_is_sent_once(tmp_path):
    model, matrix, *_rest = of_arrays(tmp_path)
    wide = Model(np.resize(np.random.default_rng(0).random(50), 200_000), model.info, model.bias)
    x = da.from_array(matrix.toarray(), chunks=(20, -1))
    data = dd.from_pandas(pd.DataFrame({"number": np.ones(200)}), npartitions=20)
    table, _file = of_table(tmp_path, mixed_frame(), ConvertConfig(label="y", numeric=("number",)))
    big = Model(wide.weights, table.info)
    array = predict_dask(wide, x)
    for lazy in (array, predict_dask(big, data)):
        graph = dict(lazy.optimize().__dask_graph__() if lazy is not array else dask.optimize(lazy)[0].__dask_graph__())
        sizes = [len(cloudpickle.dumps(task)) for task in graph.values()]
        assert sum(size > 1_000_000 for size in sizes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("with_ids", [False, True])
def test_stores(client, tmp_path, classes, with_ids):
    if with_ids:
        data = mixed_frame(3000).drop(columns="not asked for")
        if classes == 3:
            data["y"] = np.arange(len(data)) % 3
        data["who"] = [None] * 2900 + list(range(100))
        model, file = of_table(tmp_path, data, TABLE, loss="logistic")
        store = convert(
            [str(file)], tmp_path / "many", ConvertConfig(**vars(TABLE) | {"chunk_size": 8192, "shuffle": False})
        )
    else:
        model, _matrix, _labels, store, _file = of_arrays(tmp_path, classes)
    chunks = len(store.manifest.chunks)
    assert chunks > 2
    wanted = told(model, store.path, tmp_path, proba=True)
    rows = predict_store(client, model, store, tmp_path / "scores", proba=True)
    assert rows == store.rows
    files = sorted((tmp_path / "scores").iterdir())
    assert [file.name for file in files] == [f"part-{number:05d}.parquet" for number in range(chunks)]
    assert pa.concat_tables([pq.read_table(file) for file in files]).equals(wanted)
    assert ("who" in wanted.column_names) == with_ids
    assert not list(tmp_path.glob("*.incoming"))
    alone, together = evaluate(model, store.path), evaluate_dask(client, model, store.path)
    check_same_results(alone, together)


def check_same_results(alone, together):
    """Compare metrics: exact, sums up to rounding."""
    rounded = ("mean_loss", "objective", "log_loss", "brier", "r2", "root_mean_squared_error")
    rounded += ("mean_absolute_error", "mean_squared_error")
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert together[name] == (pytest.approx(value, rel=1e-14) if name in rounded and value is not None else value)


def test_real_targets_and_bins(client, tmp_path, monkeypatch):
    matrix, _labels = random_rows(500, 20, 1, 0.3)
    targets = 1e6 + matrix @ np.random.default_rng(2).normal(size=20)
    store = store_of(tmp_path, matrix, targets, classes=(), task="regression", chunk_size=2048)
    model = train(store, TrainConfig(lam=0.1, max_epochs=3)).model
    check_same_results(evaluate(model, store.path), evaluate_dask(client, model, store))
    model, _matrix, _labels, store, _file = of_arrays(tmp_path)
    for most in (100, 400):
        monkeypatch.setattr(distributed_scoring, "EXACT_ROWS", most)
        monkeypatch.setattr(evaluation, "EXACT_ROWS", most)
        alone, together = evaluate(model, store.path), evaluate_dask(client, model, store)
        check_same_results(alone, together)
        assert together["auc_method"] == ("exact" if most == 400 else "binned")


def test_stores_that_are_refused(client, tmp_path):
    model, _matrix, _labels, store, _file = of_arrays(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("")
    with pytest.raises(InputError, match="there: exists already"):
        predict_store(client, model, store, tmp_path / "there")
    with pytest.raises(InputError, match="no such folder"):
        predict_store(client, model, store, tmp_path / "nowhere" / "scores")
    table, _file = of_table(tmp_path, mixed_frame())
    with pytest.raises(InputError, match="convert it with like and the store of the model"):
        predict_store(client, table, store, tmp_path / "scores")
    with pytest.raises(InputError, match="convert it with like and the store of the model"):
        evaluate_dask(client, table, store)
    chunk = store.path / store.manifest.chunks[1].file
    chunk.write_bytes(chunk.read_bytes()[:-8] + b"damaged!")
    with pytest.raises(Exception, match="the checksum does not match"):
        predict_store(client, model, store, tmp_path / "scores")
    assert not (tmp_path / "scores").exists()
    assert not list(tmp_path.glob("*.incoming"))
    for _wait in range(100):
        if not any(client.has_what().values()):
            break
        time.sleep(0.05)
    assert not any(client.has_what().values())


@pytest.mark.slow
def test_lost_workers(tmp_path):
    model, _matrix, _labels, store, _file = of_arrays(tmp_path)
    wanted = told(model, store.path, tmp_path)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        predict_store(client, model, store, tmp_path / "scores")
        files = sorted((tmp_path / "scores").iterdir())
        assert pa.concat_tables([pq.read_table(file) for file in files]).equals(wanted)
        check_same_results(evaluate(model, store.path), evaluate_dask(client, model, store))
        x = da.from_array(_matrix.toarray(), chunks=(100, -1))
        assert predict_dask(model, x).compute().tolist() == wanted["score"].to_pylist()


# --- training on collections --------------------------------------------------------------------------


def bounds_agree(alone, together):
    """Check that two certificates hold for the same problem."""
    assert len(alone.models) == len(together.models)
    for one, other in zip(alone.models, together.models, strict=True):
        assert one.lam == other.lam
        assert other.certificate.lower_bound <= one.certificate.primal * (1 + 1e-9)
        assert one.certificate.lower_bound <= other.certificate.primal * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
@pytest.mark.parametrize("kind", ["dense", "scipy", "numpy labels", "frame labels"])
def test_training_on_arrays(client, tmp_path, algorithm, kind):
    _model, matrix, labels, store, _file = of_arrays(tmp_path)
    x, y = da.from_array(matrix.toarray(), chunks=(90, -1)), da.from_array(labels, chunks=90)
    if kind == "scipy":
        x = x.map_blocks(sp.csr_matrix)
    elif kind == "numpy labels":
        y = labels
    elif kind == "frame labels":
        y = dd.from_pandas(pd.Series(labels), npartitions=5)
        x = da.concatenate([da.from_array(matrix.toarray()[a:b]) for a, b in ((0, 80), (80, 160), (160, 240))])
        x = da.concatenate([x, da.from_array(matrix.toarray()[240:320]), da.from_array(matrix.toarray()[320:])])
    config = TrainConfig(lam=0.03, tolerance=0.005, algorithm=algorithm, max_epochs=200, holdout=0.1)
    together = train_dask(client, x, config, labels=y, parts=3)
    assert together.converged
    bounds_agree(train(store, config), together)
    assert together.model.info.features == 50
    assert together.model.info.labels == store.manifest.labels
    again = train_dask(client, x.persist(), config, labels=y, parts=3)
    assert again.model.weights.tobytes() == together.model.weights.tobytes()
    together.model.save(tmp_path / "kept")
    scores = predict_dask(Model.load(tmp_path / "kept"), x).compute()
    assert ((scores > 0) == (labels == 1)).mean() > 0.8


def laid_out(client, blocks, workers):
    """Return an array whose blocks are on these workers."""
    addresses = [sorted(client.nthreads())[at] for at in workers]
    given = [client.scatter(block, workers=[at], hash=False) for block, at in zip(blocks, addresses, strict=True)]
    x = da.concatenate([da.from_delayed(one, (60, 40), np.float32) for one in given]).persist()
    distributed.wait(x)
    assert [client.who_has(x)[key] for ((key,),) in zip(x.__dask_keys__(), strict=True)] == [[at] for at in addresses]
    return x


def test_persisted_rows_are_not_moved(client):
    matrix, labels = random_rows(360, 40, 0, 0.3)
    blocks, y = np.split(matrix.toarray(), 6), np.split(labels, 6)
    config = TrainConfig(lam=0.01, tolerance=1e-9, algorithm="sdca", max_epochs=4)

    def weights_of(x, labels, **options):
        result = train_dask(client, x, config, labels=np.concatenate(labels), **options)
        assert result.windows == 2
        return result.model.weights.tobytes()

    x = laid_out(client, blocks, (0, 1, 1, 0, 1, 0))
    found = weights_of(x, y)
    assert all(len(holders) == 1 for holders in client.who_has(x).values())
    assert weights_of(x, y) == found
    order = [0, 3, 5, 1, 2, 4]
    together = da.concatenate([da.from_array(blocks[at], chunks=(60, -1)) for at in order])
    assert weights_of(together, [y[at] for at in order], parts=2) == found
    # not where it was asked for, nor where one would have much more than the other
    as_they_follow = weights_of(da.from_array(matrix.toarray(), chunks=(60, -1)), y, parts=2)
    assert as_they_follow != found
    assert weights_of(x, y, parts=2) == as_they_follow
    assert weights_of(laid_out(client, blocks, (0, 0, 0, 1, 0, 0)), y) == as_they_follow


def test_checkpoints_of_rows_that_were_moved(client, tmp_path):
    matrix, labels = random_rows(360, 40, 0, 0.3)
    blocks = np.split(matrix.toarray(), 6)
    config = TrainConfig(lam=0.01, tolerance=1e-9, algorithm="sdca", max_epochs=4)
    first, then = laid_out(client, blocks, (0, 1, 0, 1, 0, 1)), laid_out(client, blocks, (1, 1, 1, 0, 0, 0))
    train_dask(client, first, config, labels=labels, checkpoint=tmp_path / "kept")
    longer = dataclasses.replace(config, max_epochs=6)
    resumed = train_dask(client, then, longer, labels=labels, checkpoint=tmp_path / "kept", resume=True)
    assert resumed.model.info.epochs == 6
    at_once = train_dask(client, then, longer, labels=labels, parts=2)
    assert resumed.model.weights.tobytes() == at_once.model.weights.tobytes()


@pytest.mark.parametrize("kind", ["dense", "coo", "float32, int64", "in disorder, with zeros"])
def test_persisted_arrays_give_the_same_result(client, kind):
    matrix, _labels = random_rows(240, 30, 5, 0.3)
    labels = np.array(["no", "yes"])[(matrix @ np.ones(30) > 0).astype(int)]
    weights = 1.0 + np.arange(240) % 3
    x = da.from_array(matrix.toarray(), chunks=(60, -1))
    if kind != "dense":
        x = x.map_blocks(_as_kind, kind=kind, meta=sp.csr_matrix((0, 0)))
    config = TrainConfig(lam=0.02, tolerance=1e-9, algorithm="sdca", max_epochs=3)
    recipe = ConvertConfig(normalize="l2", values="bfloat16")
    found = [
        train_dask(
            client, given, config, labels=da.from_array(labels, chunks=60), weights=weights, recipe=recipe, parts=2
        )
        for given in (x, x.persist())
    ]
    assert found[0].model.info.labels.classes == ["no", "yes"]
    assert found[0].model.weights.tobytes() == found[1].model.weights.tobytes()


def _as_kind(block, kind):
    rows = sp.csr_matrix(block)
    if kind == "coo":
        return rows.tocoo()
    if kind == "float32, int64":
        indices, indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
        rows = rows.astype(np.float32)
        rows.indices, rows.indptr = indices, indptr
        return rows
    for begin, end in pairwise(rows.indptr):
        rows.indices[begin:end], rows.data[begin:end] = (
            rows.indices[begin:end][::-1].copy(),
            rows.data[begin:end][::-1].copy(),
        )
    rows.data[::7] = 0.0
    rows.has_sorted_indices = False
    return rows


def test_training_on_dataframes(client, tmp_path):
    data = mixed_frame(600).drop(columns="not asked for")
    config = TrainConfig(lam=(0.1, 0.01), tolerance=0.005, holdout=0.1, bias="feature")
    collection = dd.from_pandas(data, npartitions=5)
    together = train_dask(client, collection, config, recipe=TABLE)
    data.to_parquet(tmp_path / "in.parquet", index=False)
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "made", dataclasses.replace(TABLE, shuffle=False))
    bounds_agree(train(store, config), together)
    info = together.model.info
    assert (info.recipe, info.labels) == (store.manifest.recipe, store.manifest.labels)
    found = predict_dask(together.model, collection).compute()
    assert found["who"].tolist() == data["who"].tolist()
    assert (found["label"] == data["y"]).mean() > 0.8


@pytest.mark.slow
def test_training_with_weights_classes_and_probabilities(client, tmp_path):
    matrix, _labels = random_rows(400, 30, 3, 0.3)
    labels = np.array(["a", "b", "c"])[(matrix @ np.random.default_rng(1).normal(size=(30, 3))).argmax(axis=1)]
    weights = 1.0 + np.arange(400) % 3
    recipe = ConvertConfig(normalize="l2", values="bfloat16", shuffle=False)
    store = Store.from_scipy(matrix, labels, tmp_path / "store", weights=weights, config=recipe)
    x = da.from_array(matrix.toarray(), chunks=(150, -1))
    for config in (
        TrainConfig(lam=0.05, tolerance=0.01, calibrate="platt", holdout=0.2),
        TrainConfig(lam=0.05, tolerance=0.01, folds=3),
        TrainConfig(lam=0.05, tolerance=0.01, loss="multiclass-logistic", max_epochs=100),
    ):
        together = train_dask(client, x, config, labels=labels, weights=weights, recipe=recipe)
        alone = train(store, config)
        bounds_agree(alone, together)
        if config.calibrate:
            assert together.holdout.error == pytest.approx(alone.holdout.error, abs=0.05)
            assert len(together.model.info.calibrations) == 3
    targets = matrix @ np.ones(30)
    store = Store.from_scipy(matrix, targets, tmp_path / "targets", config=ConvertConfig(shuffle=False))
    config = TrainConfig(lam=0.05, tolerance=0.01)
    alone, together = train(store, config), train_dask(client, x, config, labels=da.from_array(targets, chunks=70))
    assert together.model.info.loss == alone.model.info.loss == "squared"
    bounds_agree(alone, together)


@pytest.mark.slow
def test_the_default_path_for_targets_depends_on_their_size(client, tmp_path):
    matrix, _labels = random_rows(400, 30, 3, 0.3)
    noise = np.random.default_rng(5).normal(size=400)
    targets = 1000.0 * (matrix @ np.ones(30) + noise)
    alone = train(Store.from_scipy(matrix, targets, tmp_path / "targets"))
    together = train_dask(client, da.from_array(matrix.toarray(), chunks=(150, -1)), labels=targets)
    assert together.model.info.loss == alone.model.info.loss == "squared"
    errors = np.square(matrix @ together.model.weights + together.model.bias - targets)
    assert errors.mean() < 1.2 * np.square(1000.0 * noise).mean()


def test_invalid_collections(client, tmp_path):
    x = da.ones((100, 3), chunks=(50, -1))
    y = np.arange(100) % 2
    data = dd.from_pandas(mixed_frame(), npartitions=2)
    config = TrainConfig(lam=0.1)
    for kind, problem, given, options in (
        (UsageError, r"its labels be given: train_dask\(client, x, labels=y\)", x, {}),
        (UsageError, "labels are a column", data, {"labels": y}),
        (UsageError, "which column has the labels", data[["number", "words"]], {}),
        (UsageError, "dictionary is for stores", data, {"recipe": ConvertConfig(dictionary=5)}),
        (UsageError, "a Bag cannot be trained on", db.from_sequence([{"y": 1}]), {}),
        (InputError, "every row has the label 1", x, {"labels": np.ones(100)}),
        (InputError, "part 1: row 3: the value nan", x.map_blocks(_spoilt), {"labels": y}),
        (InputError, "part 1: row 3: the value nan", x.map_blocks(_spoilt).persist(), {"labels": y}),
        (
            InputError,
            "label '1' is not one of",
            x.persist(),
            {"labels": y, "recipe": ConvertConfig(classes=("0", "2"))},
        ),
        (InputError, "every row one", x.persist(), {"labels": y[:-1]}),
        (InputError, "label '1' is not one of", x, {"labels": y, "recipe": ConvertConfig(classes=("0", "2"))}),
        (UsageError, "go with a collection", tmp_path, {"labels": y}),
    ):
        with pytest.raises(kind, match=problem):
            train_dask(client, given, config, **options)


def _spoilt(block, block_info=None):
    block = block.copy()
    if block_info and block_info[0]["array-location"][0][0] == 50:
        block[2, 1] = np.nan
    return block


def test_rows_that_exceed_memory():
    with (
        workers_that_never_pause(),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", memory_limit="1MB"
        ) as cluster,
        distributed.Client(cluster) as client,
        pytest.raises(InputError, match=r"take 0\.8[\d]+ MB, and a worker has 0\.2 MB.*Store\.from_dask"),
    ):
        train_dask(client, da.ones((1000, 100)), TrainConfig(lam=0.1), labels=np.arange(1000) % 2)


@pytest.mark.slow
@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_rows_that_are_recomputed_in_each_round(client, monkeypatch, algorithm, persisted):
    """Rows that do not fit the workers' memory are recomputed, with identical results and a warning of the cost."""
    matrix, labels = random_rows(300, 40, 0, 0.3)
    x = da.from_array(matrix.toarray(), chunks=(50, -1))
    if persisted:
        x = x.persist()
        distributed.wait(x)
    config = TrainConfig(lam=0.01, tolerance=1e-9, algorithm=algorithm, max_epochs=5)
    before = contents_of_workers(client)
    in_memory = train_dask(client, x, config, labels=labels, parts=3)
    assert not [note for note in in_memory.notes if "recomputed" in note]
    monkeypatch.setattr(collections, "ROWS_SHARE", 0.0)
    with pytest.warns(UserWarning, match=r"take [\d.e-]+ GB, .*recomputed in each round, which took [\d.e-]+ seconds"):
        recomputed = train_dask(client, x, config, labels=labels, parts=3)
    assert [note for note in recomputed.notes if "recomputed" in note]
    assert recomputed.model.weights.tobytes() == in_memory.model.weights.tobytes()
    check_nothing_is_left(client, but=before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the rows of the collection:UserWarning")
def test_a_collection_that_changes(client, monkeypatch):
    monkeypatch.setattr(collections, "ROWS_SHARE", 0.0)
    matrix, labels = random_rows(300, 40, 0, 0.3)
    made = []

    def spoil(block):
        made.append(1)
        return block + (len(made) > 40)

    x = da.from_array(matrix.toarray(), chunks=(50, -1)).map_blocks(spoil, dtype=np.float64, meta=np.empty((0, 0)))
    config = TrainConfig(lam=0.01, tolerance=1e-9, algorithm="sdca", max_epochs=50)
    with pytest.raises(InputError, match="partitions of the collection changed"):
        train_dask(client, x, config, labels=labels, parts=3)


@pytest.mark.slow
def test_a_worker_that_is_lost_with_its_rows():
    matrix, _labels = random_rows(3000, 40, 0, 0.3)
    labels = np.sign(matrix @ np.random.default_rng(9).normal(size=40) + np.random.default_rng(1).normal(size=3000))
    x = da.from_array(matrix.toarray(), chunks=(500, -1))
    config = TrainConfig(lam=3e-5, tolerance=1e-9, algorithm="sdca", max_epochs=40)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        whole = train_dask(client, x, config, labels=labels, parts=3)
        victim = sorted(worker.pid for worker in cluster.workers.values())[0]
        killed = []

        class Killing(TrainingProgress):
            def epoch_done(self, record, tolerance, models):
                killed.append(len(killed))
                if len(killed) == 15:
                    os.kill(victim, signal.SIGKILL)

        again = train_dask(client, x, config, labels=labels, parts=3, progress=Killing())
    assert len(killed) == 40
    assert again.model.weights.tobytes() == whole.model.weights.tobytes()


def test_checkpoints_of_collections(client, tmp_path):
    matrix, labels = random_rows(300, 40, 0, 0.3)
    x = da.from_array(matrix.toarray(), chunks=(100, -1))
    config = TrainConfig(lam=0.01, tolerance=1e-9, algorithm="sdca", max_epochs=8, checkpoint_epochs=1)
    whole = train_dask(client, x, config, labels=labels, parts=3)

    class Interrupting(TrainingProgress):
        told = 0

        def epoch_done(self, record, tolerance, models):
            self.told += 1
            if self.told == 5:
                raise KeyboardInterrupt

    place = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        train_dask(client, x, config, labels=labels, parts=3, checkpoint=place, progress=Interrupting())
    with pytest.raises(InputError):
        train_dask(client, x + 1, config, labels=labels, checkpoint=place, resume=True)
    rest = train_dask(client, x, config, labels=labels, checkpoint=place, resume=True)
    assert rest.model.weights.tobytes() == whole.model.weights.tobytes()


def test_no_rows_are_left_on_the_workers():
    x, y = da.ones((100, 3), chunks=(50, -1)), np.arange(100) % 2
    with (
        workers_that_never_pause(),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        train_dask(client, x, TrainConfig(lam=0.1, max_epochs=2), labels=y)
        check_nothing_is_left(client)
        with pytest.raises(InputError) as kept:  # with all frames that it came through
            train_dask(client, x, TrainConfig(lam=0.1), labels=np.ones(100))
        check_nothing_is_left(client)
        assert "every row has the label 1" in str(kept.value)
    assert not store_parts._open_parts


def contents_of_workers(client):
    return {key for keys in client.has_what().values() for key in keys}


def check_nothing_is_left(client, but=frozenset()):
    for _wait in range(100):
        if contents_of_workers(client) <= but:
            return
        time.sleep(0.05)
    pytest.fail(f"left: {contents_of_workers(client) - but}")
