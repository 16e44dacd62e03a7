"""Stores made by workers in other processes: dask.distributed."""

import dataclasses
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import sparse
from dask.delayed import delayed
from distributed import Client, LocalCluster
from distributed.protocol import serialize

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion import staging
from ooc_pegasos.distributed import train_dask
from ooc_pegasos.errors import InputError, UsageError
from support.file_bytes import folder_bytes
from support.rows import random_rows, same_matrix

pytestmark = pytest.mark.dask

PLAIN = ConvertConfig(label="y", shuffle=False, hash_bits=10)
SMALL = 10_000
"""Limit of the bytes sent to the client, for data 100 times as large."""


@pytest.fixture(scope="module")
def cluster():
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        ) as started,
    ):
        yield started


@pytest.fixture
def client(cluster):
    with Client(cluster) as connected:
        connected.wait_for_workers(2, timeout=60)
        yield connected


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Whatever happens."""
    yield
    assert not [*tmp_path.glob("*.incoming"), *tmp_path.glob("*.unfinished*")]


@pytest.fixture
def received(client, monkeypatch):
    """Record all messages to the client: (kind, bytes)."""
    log = []
    gather = client.gather

    def watched(futures, *arguments, **options):
        results = gather(futures, *arguments, **options)
        for result in results:
            _header, frames = serialize(result)
            log.append((result, sum(memoryview(frame).nbytes for frame in frames)))
        return results

    monkeypatch.setattr(client, "gather", watched)
    return log


def frame_of_partition(number: int) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    rows = 5_000
    columns = {"y": rng.integers(0, 2, rows), "a": rng.random(rows), "b": rng.random(rows)}
    return pd.DataFrame(columns | {"word": rng.choice(["Rome", "Oslo", "Lima"], rows)})


def partitioned_frame() -> dd.DataFrame:
    return dd.from_delayed(
        [delayed(frame_of_partition)(i) for i in range(6)], meta=frame_of_partition(0), verify_meta=False
    )


def bag() -> db.Bag:
    return db.from_sequence(range(6), npartitions=6).map_partitions(
        lambda numbers: [row for number in numbers for row in frame_of_partition(number).to_dict("records")]
    )


def blocks(kind, columns: int) -> da.Array:
    """Return a dataframe of 3,000 rows and 40 columns, made by the workers."""

    def make(block_id):
        matrix = random_rows(500, 40, block_id[0], 0.3)[0].toarray()
        begin = block_id[1] * columns
        return kind(matrix[:, begin : begin + columns])

    chunks = ((500,) * 6, (columns,) * (40 // columns))
    return da.map_blocks(make, chunks=chunks, dtype=np.float64, meta=kind(np.empty((0, 0))))


def whole_matrix() -> sp.csr_matrix:
    return sp.vstack([random_rows(500, 40, seed, 0.3)[0] for seed in range(6)], format="csr")


def check_received(received, number: int) -> None:
    assert len(received) == number
    assert all(type(result) is staging.Written for result, _size in received)
    assert sum(size for _result, size in received) < SMALL


@pytest.mark.slow
@pytest.mark.parametrize("make", [partitioned_frame, bag])
def test_tables(tmp_path, client, received, make):
    store = Store.from_dask(make(), tmp_path / "store", config=PLAIN)
    check_received(received, 6)
    with dask.config.set(scheduler="synchronous"):
        other = Store.from_dask(make(), tmp_path / "other", config=PLAIN)
    assert len(received) == 6
    assert folder_bytes(store.path) == folder_bytes(other.path)
    plain = Store.from_pandas(pd.concat(map(frame_of_partition, range(6))), tmp_path / "plain", PLAIN)
    assert same_matrix(store.to_scipy()[0], plain.to_scipy()[0])
    assert np.array_equal(store.to_scipy()[1], plain.to_scipy()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "columns"),
    [(np.asarray, 40), (np.asarray, 10), (sp.csr_matrix, 40), (sparse.COO, 40), (sparse.COO, 20), (sparse.GCXS, 40)],
)
def test_arrays(tmp_path, client, received, kind, columns):
    matrix, labels = whole_matrix(), np.resize([1, -1, -1], 3000)
    weights = np.linspace(0.5, 2, 3000)
    given = {"labels": da.from_array(labels, 700), "weights": weights}
    config = ConvertConfig(shuffle=False)
    store = Store.from_dask(blocks(kind, columns), tmp_path / "store", config=config, **given)
    check_received(received, 6)
    with dask.config.set(scheduler="synchronous"):
        other = Store.from_dask(blocks(kind, columns), tmp_path / "other", config=config, **given)
    assert folder_bytes(store.path) == folder_bytes(other.path)
    assert same_matrix(store.to_scipy()[0], matrix)
    assert np.array_equal(store.to_scipy()[1], labels)
    assert np.array_equal(store.weights(), weights.astype(np.float32))
    assert store.features == 40


def test_workers_make_and_write_partitions(tmp_path, client):
    workers = set(client.run(os.getpid).values())
    assert len(workers) == 2

    def part(number):
        return pd.DataFrame({"y": [0, 1], "pid": [os.getpid()] * 2, "number": number})

    made = dd.from_delayed([delayed(part)(i) for i in range(8)], meta=part(0), verify_meta=False)
    config = dataclasses.replace(PLAIN, standardize=False)
    store = Store.from_dask(made, tmp_path / "store", config=config)
    rows = store.to_scipy()[0].toarray()
    assert set(rows[:, 0].tolist()) <= workers
    assert rows[:, 1].tolist() == np.repeat(np.arange(8), 2).tolist()


def test_errors_of_partitions(tmp_path, client):
    rows = db.from_sequence([{"y": 1, "a": 1}, 7], npartitions=2)
    with pytest.raises(UsageError, match=r"^part 1: a row is a int; make every row a dictionary"):
        Store.from_dask(rows, tmp_path / "store", config=PLAIN)

    def part(number):
        raise ZeroDivisionError("mine")

    failing = dd.from_delayed([delayed(part)(i) for i in range(3)], meta=frame_of_partition(0), verify_meta=False)
    with pytest.raises(ZeroDivisionError, match="mine"):
        Store.from_dask(failing, tmp_path / "store", config=PLAIN)
    assert os.listdir(tmp_path) == []


# --- workers that die ---------------------------------------------------------------------------------


class Stream:
    """A table that kills its process once while it is written."""

    def __init__(self, number: int, mark: Path) -> None:
        self.number, self.mark = number, mark

    def batches(self):
        rows = pa.RecordBatch.from_pandas(frame_of_partition(self.number), preserve_index=False)
        yield rows[:2000]
        if self.number == 2 and not self.mark.exists():
            self.mark.write_text(str(len(list(self.mark.parent.glob("store.incoming/*/part-2-*.arrow")))))
            os.kill(os.getpid(), signal.SIGKILL)
        yield rows[2000:]

    def __arrow_c_stream__(self, requested_schema=None):
        schema = pa.Schema.from_pandas(frame_of_partition(self.number), preserve_index=False)
        return pa.RecordBatchReader.from_batches(schema, self.batches()).__arrow_c_stream__(requested_schema)


def test_a_worker_that_is_lost_while_it_writes(tmp_path, client):
    mark = tmp_path / "died"
    streams = SimpleNamespace(to_delayed=lambda: [delayed(Stream)(i, mark) for i in range(4)])
    store = Store.from_dask(streams, tmp_path / "store", config=PLAIN)
    assert mark.read_text() == "1", "it had begun to write"
    with dask.config.set(scheduler="synchronous"):
        other = Store.from_dask(streams, tmp_path / "other", config=PLAIN)
    assert folder_bytes(store.path) == folder_bytes(other.path)
    assert store.rows == 20_000


@pytest.mark.slow
def test_loss_of_all_workers(tmp_path, client, cluster):
    def part(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return frame_of_partition(number)

    made = dd.from_delayed([delayed(part)(i) for i in range(3)], meta=frame_of_partition(0), verify_meta=False)
    allowed, cluster.scheduler.allowed_failures = cluster.scheduler.allowed_failures, 0
    try:
        with pytest.raises(InputError, match=r"^workers died while they made .*; make partitions smaller") as caught:
            Store.from_dask(made, tmp_path / "store", config=PLAIN)
    finally:
        cluster.scheduler.allowed_failures = allowed
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_killed_process_of_the_multiprocessing_scheduler(tmp_path):
    def part(number):
        os.kill(os.getpid(), signal.SIGKILL)

    made = dd.from_delayed([delayed(part)(i) for i in range(2)], meta=frame_of_partition(0), verify_meta=False)
    with dask.config.set(scheduler="processes", num_workers=1), pytest.raises(InputError, match=r"^workers died"):
        Store.from_dask(made, tmp_path / "store", config=PLAIN)
    assert os.listdir(tmp_path) == []


# --- workers with a file system of their own ----------------------------------------------------------


def test_a_folder_that_workers_do_not_see(tmp_path, client):
    """Each partition removes the folder before it is written."""

    def part(number):
        for room in tmp_path.glob("store.incoming/????????????????"):
            room.rename(tmp_path / "elsewhere")
        return frame_of_partition(number)

    made = dd.from_delayed([delayed(part)(i) for i in range(2)], meta=frame_of_partition(0), verify_meta=False)
    told = rf"^part \d: the worker on \S+ does not see {tmp_path}, .*; workers must share the file system .*; choose"
    with pytest.raises(InputError, match=told) as caught:
        Store.from_dask(made, tmp_path / "store", config=PLAIN)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["elsewhere"]


@pytest.mark.slow
@pytest.mark.parametrize("shorter", [False, True])
def test_workers_with_another_folder_of_the_same_name(tmp_path, client, shorter):
    there = tmp_path / "there"
    there.mkdir()

    def swap(dask_worker):
        plain = staging._new_file

        def elsewhere(folder, name, suffix):
            file = plain(folder, name, suffix)
            if shorter:  # as it may look before all of it has come over the network
                file.write_bytes(b"half")
            return there / file.name

        dask_worker.plain, staging._new_file = plain, elsewhere

    def swap_back(dask_worker):
        staging._new_file = dask_worker.plain

    client.run(swap)
    try:
        with pytest.raises(InputError, match=rf"{tmp_path}/store: 6 of 6 pieces are not there; workers must share"):
            Store.from_dask(partitioned_frame(), tmp_path / "store", config=PLAIN)
    finally:
        client.run(swap_back)
    assert len(os.listdir(there)) == 6
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize("kind", ["store", "persisted", "computed"])
def test_results_of_workers_are_compared_with_the_mean_and_have_names(client, tmp_path, kind):
    rng = np.random.default_rng(0)
    town = rng.integers(0, 4, 600)
    frame = pd.DataFrame({"town": np.array(["Oslo", "Rome", "Bonn", "Bern"])[town], "x": rng.normal(size=600)})
    frame["price"] = 10.0 + town + 0.1 * rng.normal(size=600)
    recipe = ConvertConfig(label="price", hash_bits=12, standardize=False)
    frame.to_csv(tmp_path / "in.csv", index=False)
    config = TrainConfig(lam=1e-4, holdout=0.3, loss="squared")
    given = convert([str(tmp_path / "in.csv")], tmp_path / "s", recipe), {}
    if kind != "store":
        parts = dd.from_pandas(frame, npartitions=5)
        given = client.persist(parts) if kind == "persisted" else parts, {"recipe": recipe}
    result = train_dask(client, given[0], config, **given[1])
    price = frame["price"]
    assert result.constant_loss == pytest.approx(((price - price.mean()) ** 2).mean() / 2, rel=1e-5)
    names = set(result.model.vocabulary.known_names().values())
    assert names == {"town=Oslo", "town=Rome", "town=Bonn", "town=Bern", "x"}


def test_workers_warn_of_a_model_that_predicts_one_class(client, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 3)).astype(np.float32), (rng.random(400) < 0.3).astype(int)
    store = Store.from_scipy(x, y, tmp_path / "s")
    config = TrainConfig(lam=0.1, holdout=0.5, loss="hinge", bias="feature")
    with pytest.warns(UserWarning, match="^no better than always answering 0") as told:
        result = train_dask(client, store, config)
    assert [one.filename for one in told] == [__file__]
    assert result.holdout.error == result.constant_error


def test_the_default_epsilon_follows_the_targets_on_all_workers(client, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 5)).astype(np.float32)
    y = 1e6 * (x @ np.arange(5) + 0.5 * rng.standard_normal(600))
    store = Store.from_scipy(x, y, tmp_path / "s")
    config = TrainConfig(loss="epsilon-insensitive", lam=1e-7, tolerance=0.01)
    local = train(store, config).model.info
    arrays = (da.from_array(x, (200, 5)), da.from_array(y, 200))
    for found in (train_dask(client, store, config), train_dask(client, arrays[0], config, labels=arrays[1])):
        info = found.model.info
        assert found.converged
        assert info.parameter == pytest.approx(0.1 * y.std(), rel=1e-6)
        assert info.certificate.primal == pytest.approx(local.certificate.primal, rel=0.02)
