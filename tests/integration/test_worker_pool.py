"""The worker pool of dask.distributed: assignment of parts, lost workers, killed clients and schedulers, cleanup."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from dask.utils import key_split

import ooc_pegasos
from ooc_pegasos import Model, TrainConfig, train
from ooc_pegasos.compiled.fit.sdca import STATE_SIZE
from ooc_pegasos.distributed import client_solvers, partition_state, train_dask, worker_pool, worker_round
from ooc_pegasos.distributed import cluster as cluster_module
from ooc_pegasos.distributed import store_parts as data
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.solvers import registry
from ooc_pegasos.training import run as running
from ooc_pegasos.training import stop
from ooc_pegasos.training.stop import Interrupted, OutOfTimeError
from support.clusters import EpochProgress, store_of_parts, weight_bytes, workers_of_this_process
from support.stores import store_of

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.dask

SETTINGS = {"lam": 1e-3, "tolerance": 1e-9, "max_epochs": 8, "memory": 1 << 26}


@pytest.fixture(scope="module")
def local():
    """Two workers in this process."""
    with workers_of_this_process() as (cluster, client):
        yield SimpleNamespace(cluster=cluster, client=client)


@pytest.fixture(scope="module")
def processes():
    """Two workers in processes that are restarted if killed."""
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=120)
        yield SimpleNamespace(cluster=cluster, client=client)


def wait_until(what, seconds=120):
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.05)


def act_at_epoch(number, act):
    """Return progress that calls `act` once, after a round."""

    class Acting(EpochProgress):
        @staticmethod
        def on_epoch(epoch):
            if epoch == number:
                act()

    return Acting()


def run_before(patched, name, act):
    """Have workers of this process call `act` before they call a function of `worker_round`."""
    real = getattr(worker_round, name)

    def make(*arguments, **options):
        act()
        return real(*arguments, **options)

    patched.setattr(worker_round, name, make)


# --- names and progress ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (TrainConfig(**SETTINGS, algorithm="sdca"), {"sdca-round", "row-states", "change", "sum", "measure"}),
        (TrainConfig(**SETTINGS, algorithm="sgd-s"), {"descent", "sum", "measure"}),
    ],
)
def test_names_of_tasks(local, tmp_path, monkeypatch, config, names):
    monkeypatch.setattr(worker_pool, "SMALL_BYTES", 0)
    seen = set()
    submit = local.client.submit

    def watched(*arguments, **options):
        seen.add(key_split(options["key"]))
        return submit(*arguments, **options)

    local.client.submit = watched
    try:
        train_dask(local.client, store_of_parts(tmp_path), config, parts=3)
    finally:
        del local.client.submit
    assert seen == names | {"broadcast"}


def test_progress_within_a_round(local, tmp_path):
    messages = []

    class Watching(EpochProgress):
        def presented(self, epoch, rows, total):
            messages.append((epoch, rows, total))

    store, calls = store_of_parts(tmp_path), []

    def wait():  # all but the first wait until the client has reported it
        calls.append(1)
        if len(calls) > 1:
            wait_until(lambda: any(rows > 0 for _epoch, rows, _total in messages))

    config = TrainConfig(**SETTINGS | {"max_epochs": 1}, algorithm="sdca")
    with pytest.MonkeyPatch.context() as patched:
        run_before(patched, "SdcaSolver", wait)
        train_dask(local.client, store, config, parts=2, progress=Watching())
    assert {(epoch, total) for epoch, _rows, total in messages} == {(0, store.rows)}
    assert all(0 < rows <= store.rows for _epoch, rows, _total in messages)


# --- assignment of parts ----------------------------------------------------------------------------------


def test_parts_stay_with_their_workers():
    threads = {"a": 1, "b": 1}
    parts = [SimpleNamespace(run="run", number=number, rows=1) for number in range(6)]
    client = SimpleNamespace(nthreads=lambda: dict(threads))
    mine = worker_pool.WorkerPool(client, parts, None, lambda rows: None, lambda text: None)

    def assigned():
        mine._assign_workers()
        return list(mine._assigned_workers)

    first = assigned()
    assert sorted(first) == ["a"] * 3 + ["b"] * 3
    assert assigned() == first
    threads["c"] = 1
    second = assigned()
    assert sorted(second) == ["a", "a", "b", "b", "c", "c"]
    assert sum(one != other for one, other in zip(first, second, strict=True)) == 2
    del threads["a"]
    third = assigned()
    assert sorted(third) == ["b"] * 3 + ["c"] * 3
    assert all(one == other for one, other in zip(second, third, strict=True) if one != "a")
    threads["d"] = 6
    fourth = assigned()
    assert fourth.count("d") == 5
    assert assigned() == fourth


def test_a_part_for_each_thread(tmp_path):
    store = store_of_parts(tmp_path)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, dashboard_address="127.0.0.1:0", memory_limit="1GB"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert train_dask(client, store, TrainConfig(**SETTINGS)).windows == 3


def test_number_of_open_parts(local, tmp_path):
    store = store_of_parts(tmp_path, rows=1000)
    opened = []

    def count_open():
        opened.append(len(data._open_parts))

    for algorithm in ("sdca", "sgd-s"):
        config = TrainConfig(**SETTINGS | {"max_epochs": 3}, algorithm=algorithm)
        train_dask(local.client, store, config, parts=7, progress=act_at_epoch(2, count_open))
    assert opened == [7, 7]  # of two workers in one process
    loader = open_loader(store, 1 << 40)
    some = data.parts_of(store, TrainConfig(), data.cut_store(store, 7), 1 << 26, loader.folds.training_rows, 3)
    for part in [*some, *some]:
        data.open_part(part)
    assert len(data._open_parts) == 3
    data.close_run(some[0].run)
    assert not data._open_parts
    with pytest.raises(data.EndedError):
        data.open_part(some[0])


def test_idle_parts_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(data, "cleanup_scheduled", threading.Event())
    store = store_of_parts(tmp_path)
    loader = open_loader(store, 1 << 40)
    part, locked = data.parts_of(store, TrainConfig(), [(0, 2), (2, 3)], 1 << 26, loader.folds.training_rows, 2)
    data.open_part(part)
    with data.open_part(locked).lock:
        wait_until(lambda: part not in data._open_parts)
        assert locked in data._open_parts  # in use
    wait_until(lambda: not data._open_parts)
    data.open_part(part)  # a client that was only slow
    wait_until(lambda: not data._open_parts)


def test_broadcast(local, tmp_path, monkeypatch):
    """Vectors are relayed by workers, with identical results."""
    store = store_of_parts(tmp_path)
    config = TrainConfig(**SETTINGS, algorithm="sdca")
    once = train_dask(local.client, store, config, parts=5)
    monkeypatch.setattr(worker_pool, "FAN_OUT", 2)
    monkeypatch.setattr(worker_pool, "SMALL_BYTES", 0)
    submitted, real = [], worker_pool.WorkerPool.submit

    def watched(mine, what, *more, **options):
        submitted.append(what)
        return real(mine, what, *more, **options)

    monkeypatch.setattr(worker_pool.WorkerPool, "submit", watched)
    with workers_of_this_process(5) as (_cluster, client):
        again = train_dask(client, store, config, parts=5)
    messages = submitted.count("broadcast")
    assert messages
    assert submitted.count("relay") == messages * (2 + 4)
    assert weight_bytes(again) == weight_bytes(once)


def test_small_messages_are_sent_with_each_task(local, tmp_path, monkeypatch):
    """Pending bytes count each copy on the scheduler; larger messages are broadcast, with identical results."""
    store = store_of_parts(tmp_path)
    config = TrainConfig(**SETTINGS, algorithm="sdca")
    bytes_each = 8 * store.features
    found = []
    for small_bytes in (1 << 22, 0):
        monkeypatch.setattr(worker_pool, "SMALL_BYTES", small_bytes)
        pending = []
        with monkeypatch.context() as patched:
            real = client_solvers.DistributedSdca.round

            def watched(mine, epoch, pending=pending, real=real):
                real(mine, epoch)
                pending.append(mine._pending_bytes)

            patched.setattr(client_solvers.DistributedSdca, "round", watched)
            found.append(train_dask(local.client, store, config, parts=3))
        rounds = np.diff(pending)
        tasks = 3 * client_solvers._BYTES_PER_TASK
        assert (rounds == tasks + bytes_each * (3 if small_bytes else 1)).all()
    assert weight_bytes(found[0]) == weight_bytes(found[1])
    assert found[0].profile["rounds"]["bytes"] > found[1].profile["rounds"]["bytes"]


# --- lost workers ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_all_workers_are_killed(processes, tmp_path, algorithm):
    """All states of rows are lost and recomputed."""
    store = store_of_parts(tmp_path, rows=2000)
    config = TrainConfig(**SETTINGS | {"max_epochs": 12, "lam": 1e-4}, algorithm=algorithm)
    whole = train_dask(processes.client, store, config, parts=3)

    def kill():
        for pid in processes.client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)

    again = train_dask(processes.client, store, config, parts=3, progress=act_at_epoch(6, kill))
    assert weight_bytes(again) == weight_bytes(whole)
    assert again.model.info.certificate == whole.model.info.certificate
    processes.client.wait_for_workers(2, timeout=120)


@pytest.mark.slow
def test_states_are_fetched_regularly(processes, tmp_path, monkeypatch):
    """The scheduler releases earlier rounds, and lost states are recomputed from the fetched ones."""
    store = store_of_parts(tmp_path, rows=2000)
    config = TrainConfig(**SETTINGS | {"lam": (1e-4, 1e-3)}, algorithm="sdca", holdout=0.1, refit=False)
    whole = train_dask(processes.client, store, config, parts=3)
    counts = []

    def count(dask_scheduler):
        return len(dask_scheduler.tasks)

    class Counting(EpochProgress):
        @staticmethod
        def on_epoch(epoch):
            counts.append(processes.client.run_on_scheduler(count))
            if epoch == 6:
                os.kill(min(processes.client.run(os.getpid).values()), signal.SIGKILL)

    monkeypatch.setattr(client_solvers, "MAX_PENDING_BYTES", 0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    again = train_dask(processes.client, store, config, parts=3, progress=Counting(), scratch=scratch)
    assert weight_bytes(again) == weight_bytes(whole)
    assert max(counts) < 60
    assert not list(scratch.iterdir())
    processes.client.wait_for_workers(2, timeout=120)


def test_repeated_loss_of_workers(local, tmp_path, monkeypatch):
    store, tried = store_of_parts(tmp_path), []

    def lose(mine, *more):
        tried.append(1)
        raise worker_pool.LostError("tcp://nobody")

    monkeypatch.setattr(worker_pool.WorkerPool, "summed", lose)
    with pytest.raises(InputError, match=r"again and again \(the last: tcp://nobody\).*give them more"):
        train_dask(local.client, store, TrainConfig(**SETTINGS), parts=2)
    assert len(tried) == 5


def test_no_worker_comes_back(tmp_path, monkeypatch):
    store = store_of_parts(tmp_path)
    monkeypatch.setattr(worker_pool, "WORKER_TIMEOUT", 0.5)
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": False}
    with distributed.LocalCluster(n_workers=1, **options) as cluster, distributed.Client(cluster) as client:

        def end():
            cluster.scale(0)
            wait_until(lambda: not client.nthreads())

        with pytest.raises(InputError, match="all workers are gone, and no other has come in"):
            train_dask(client, store, TrainConfig(**SETTINGS), parts=2, progress=act_at_epoch(3, end))
    data._open_parts.clear()  # the worker was a part of this process


@pytest.mark.slow
def test_a_lost_scheduler(tmp_path):
    store = store_of_parts(tmp_path)
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with (
        distributed.LocalCluster(n_workers=1, **options) as cluster,
        distributed.Client(cluster.scheduler_address, timeout=3) as client,
        pytest.raises(InputError, match=r"the scheduler does not answer .*checkpoint"),
    ):
        train_dask(client, store, TrainConfig(**SETTINGS), parts=2, progress=act_at_epoch(3, cluster.close))


def test_a_store_that_changes_between_rounds(local, tmp_path):
    store = store_of_parts(tmp_path)
    file = store.path / store.manifest.chunks[1].file

    def change():
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)

    with pytest.raises(CorruptFileError, match=re.escape(file.name)):
        train_dask(local.client, store, TrainConfig(**SETTINGS), parts=2, progress=act_at_epoch(3, change))


def test_a_store_that_workers_do_not_see(local, tmp_path, monkeypatch):
    store = store_of_parts(tmp_path)
    monkeypatch.setattr(data, "shared_path", lambda path: "/nowhere/store")
    with pytest.raises(InputError, match=r"/nowhere/store: .*every worker must see the store under this path"):
        train_dask(local.client, store, TrainConfig(**SETTINGS))


# --- interrupted runs ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
@pytest.mark.parametrize("within", ["a round", "a measurement"])
def test_ctrl_c(local, tmp_path, monkeypatch, algorithm, within):
    """The checkpoint has the state before the unfinished round or measurement."""
    store = store_of_parts(tmp_path)
    config = TrainConfig(**SETTINGS | {"lam": (1e-3, 1e-2)}, algorithm=algorithm, holdout=0.2, refit=False)
    whole = train_dask(local.client, store, config, parts=3)
    name = "Measurement" if within == "a measurement" else {"sdca": "SdcaSolver", "sgd-s": "PegasosSolver"}[algorithm]
    calls, saved = [], threading.Event()

    def interrupt():
        calls.append(1)
        if len(calls) == (2 if name == "Measurement" else 11):
            os.kill(os.getpid(), signal.SIGINT)
            assert saved.wait(60)

    save = running.Run.save_checkpoint

    def x(mine):
        try:
            save(mine)
        finally:
            saved.set()

    others = set(data._open_parts)
    with monkeypatch.context() as patched:
        run_before(patched, name, interrupt)
        patched.setattr(running.Run, "save_checkpoint", x)
        with pytest.raises(Interrupted):
            train_dask(local.client, store, config, parts=3, checkpoint=tmp_path / "kept", log=tmp_path / "log")
    assert (tmp_path / "kept" / "training.checkpoint").exists()
    wait_until(lambda: not set(data._open_parts) - others)
    wait_until(lambda: not any(local.client.has_what().values()))
    resumed = train_dask(local.client, store, config, checkpoint=tmp_path / "kept", resume=True, log=tmp_path / "log")
    assert weight_bytes(resumed) == weight_bytes(whole)
    assert [one.history for one in resumed.models] == [one.history for one in whole.models]
    assert len((tmp_path / "log").read_text().splitlines()) == sum(one.epochs for one in whole.models)


def test_tasks_of_finished_runs_are_stopped(local, tmp_path):
    """A long pass ends when its run is over."""
    store = store_of_parts(tmp_path)
    loader = open_loader(store, 1 << 40)
    part = data.parts_of(store, TrainConfig(), [(0, 5)], 1 << 26, loader.folds.training_rows, 1)[0]
    opened = data.open_part(part)
    windows = opened.windows(0)
    next(windows)
    data.close_run(part.run)
    with pytest.raises(data.EndedError):
        opened.check()
    with pytest.raises(data.EndedError):
        list(opened.windows(1))


def test_time_limit(local, tmp_path, monkeypatch):
    """The time limit also ends a round, whose result is discarded."""
    store = store_of_parts(tmp_path)
    over = threading.Event()

    class Noted(OutOfTimeError):
        def __init__(self, *words):
            super().__init__(*words)
            over.set()

    monkeypatch.setattr(stop, "OutOfTimeError", Noted)
    calls = []

    def wait():
        calls.append(1)
        if len(calls) > 6:
            assert over.wait(60)

    run_before(monkeypatch, "SdcaSolver", wait)
    config = TrainConfig(lam=1e-3, tolerance=1e-9, algorithm="sdca", max_seconds=4.0)
    result = train_dask(local.client, store, config, parts=2, checkpoint=tmp_path / "kept")
    assert result.stopped_by == "seconds"
    assert result.model.info.epochs <= 3
    assert result.model.info.certificate.gap is not None
    assert (tmp_path / "kept" / "training.checkpoint").exists()


COMMAND = "import sys; from ooc_pegasos.cli.main import main; sys.argv[0] = 'oocpeg'; main()"


@pytest.mark.slow
def test_a_killed_client(processes, tmp_path, oocpeg):
    store = store_of_parts(tmp_path, rows=2000)
    words = ["train", "store", "--lambda", "1e-4", "--tolerance", "1e-9", "--algorithm", "sdca", "--memory", "64MB"]
    words += ["--scheduler", processes.cluster.scheduler_address, "--parts", "3"]
    oocpeg(*words, "--max-epochs", "12", "-o", "whole", code=4)
    more = ["--checkpoint", "kept", "--checkpoint-epochs", "1", "-o", "model"]
    command = [sys.executable, "-m", "ooc_pegasos", *words, *more, "--max-epochs", "100000"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "kept" / "training.checkpoint").exists() or process.poll() is not None)
        process.kill()
    oocpeg(*words, *more, "--max-epochs", "12", "--resume", code=4)
    one, other = (Model.load(tmp_path / name) for name in ("whole", "model"))
    assert one.weights.tobytes() == other.weights.tobytes()
    assert one.info.history == other.info.history
    wait_until(lambda: not any(processes.client.has_what().values()))
    assert store.rows == 2000


# --- checkpoints --------------------------------------------------------------------------------------


def test_checkpoints_of_other_runs(local, tmp_path):
    store = store_of_parts(tmp_path)
    config = TrainConfig(**SETTINGS | {"max_epochs": 3}, algorithm="sdca", checkpoint_epochs=1)
    here, there = tmp_path / "here", tmp_path / "there"
    train(store, config, checkpoint=here)
    train_dask(local.client, store, config, checkpoint=there, parts=2, passes=2)
    with pytest.raises(InputError, match="was started without scheduler; do the same"):
        train_dask(local.client, store, config, checkpoint=here, resume=True)
    with pytest.raises(InputError, match="was started with scheduler; do the same"):
        train(store, config, checkpoint=there, resume=True)
    more = TrainConfig(**SETTINGS | {"max_epochs": 5}, algorithm="sdca")
    resumed = train_dask(local.client, store, more, checkpoint=there, resume=True)
    assert weight_bytes(resumed) == weight_bytes(train_dask(local.client, store, more, parts=2, passes=2))
    notes = train_dask(local.client, store, more, checkpoint=there).notes
    assert [note for note in notes if "is discarded" in note]
    assert not (there / "training.checkpoint").exists()
    assert not list(there.glob("rows-*"))


def test_damaged_row_states(local, tmp_path):
    store = store_of_parts(tmp_path)
    config = TrainConfig(**SETTINGS | {"max_epochs": 3}, algorithm="sdca", checkpoint_epochs=1)
    checkpoint = tmp_path / "kept"
    train_dask(local.client, store, config, checkpoint=checkpoint, parts=2)
    file = next(checkpoint.glob("rows-*.checkpoint"))
    content = file.read_bytes()
    for wrong, problem in (
        (content[:-1], "bytes instead of"),
        (content[:-1] + bytes([content[-1] ^ 1]), "checksum does not match"),
        (None, "No such file"),
    ):
        file.unlink() if wrong is None else file.write_bytes(wrong)
        with pytest.raises(CorruptFileError, match=problem):
            train_dask(local.client, store, config, checkpoint=checkpoint, resume=True)


def test_invalid_row_states(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {(0, "duals"): rng.random(50, np.float32), (0, "inactive_until"): rng.integers(0, 9, 50, np.uint8)}
    arrays |= {(1, "duals"): rng.random(80, np.float32), (1, "inactive_until"): rng.integers(0, 9, 80, np.uint8)}
    models = {number: np.arange(float(STATE_SIZE)) + number for number in (2, 0, 1)}
    state = worker_round.SdcaState(
        [([2], 1), ([0, 1], 8)],
        arrays | {(1, "duals"): rng.random(400, np.float32), (1, "inactive_until"): rng.integers(0, 9, 400, np.uint8)},
        models,
        (2,),
        {1: 3},
    )
    path = tmp_path / "rows-1.checkpoint"
    messages = partition_state.write(path, [state])
    (found,) = partition_state.read(tmp_path, messages, [50], 3)
    assert (found.groups, found.separate, found.panel_rows) == (state.groups, state.separate, state.panel_rows)
    assert list(found.models) == [2, 0, 1]
    assert all(found.arrays[key].tobytes() == array.tobytes() for key, array in state.arrays.items())
    part = messages["parts"][0]
    for wrong in (
        messages | {"file": "../rows-1.checkpoint"},
        messages | {"parts": []},
        messages | {"bytes": 5},
        messages | {"parts": [part | {"models": [7]}]},
        messages | {"parts": [part | {"groups": [[[2], 5]]}]},
        messages | {"parts": [part | {"groups": [[[9], 1]]}]},
        messages | {"parts": [part | {"alone": [-1]}]},
        messages | {"parts": [part | {"seen": [[5, 1]]}]},
    ):
        with pytest.raises((ValueError, KeyError)):
            list(partition_state.read(tmp_path, wrong, [50], 3))


# --- invalid input ----------------------------------------------------------------------------------


def test_invalid_clients_and_workers(local, tmp_path, monkeypatch):
    store = store_of_parts(tmp_path)
    config = TrainConfig(lam=0.1)
    with pytest.raises(UsageError, match="a LocalCluster is not a client"):
        train_dask(local.cluster, store, config)
    with pytest.raises(UsageError, match="the client is asynchronous"):
        train_dask(SimpleNamespace(asynchronous=True, submit=None, scheduler_info=None), store, config)
    with monkeypatch.context() as patched:
        patched.setattr(cluster_module, "__version__", "99")
        with pytest.raises(InputError, match=f"has ooc-pegasos {ooc_pegasos.__version__}, and the client 99"):
            train_dask(local.client, store, config)
    with monkeypatch.context() as patched:  # a worker that is started later
        patched.setattr(data, "__version__", "99")
        with pytest.raises(InputError, match=f"has ooc-pegasos 99, and the client {ooc_pegasos.__version__}"):
            train_dask(local.client, store, config)


def test_scheduler_info_of_the_client_is_not_used(local, tmp_path, monkeypatch):
    """The client refreshes it every two seconds, and it is empty for a moment."""
    monkeypatch.setattr(local.client, "scheduler_info", lambda n_workers=0: {"workers": {}})
    assert train_dask(local.client, store_of_parts(tmp_path), TrainConfig(**SETTINGS), parts=2).windows == 2


def test_row_states_that_exceed_memory(local, tmp_path, monkeypatch):
    store = store_of_parts(tmp_path)
    monkeypatch.setattr(cluster_module, "STATES_SHARE", 1e-9)
    with pytest.raises(InputError, match=r"dual coordinate ascent needs .* algorithm=sgd-s"):
        train_dask(local.client, store, TrainConfig(lam=1e-4))
    assert train_dask(local.client, store, TrainConfig(lam=0.5, tolerance=0.1)).algorithm == "sgd-s"


@pytest.mark.slow
def test_command_line_errors(tmp_path, oocpeg):
    store_of_parts(tmp_path)
    words = ["train", "store", "-o", "model", "--lambda", "0.01"]
    assert "--parts are for several machines" in oocpeg(*words, "--parts", "2", code=2).stderr
    for more, problem in (
        (["--loading", "read"], "--loading read is for one machine"),
        (["--bias", "unregularized"], "--bias unregularized is for one machine"),
    ):
        assert problem in oocpeg(*words, *more, "--scheduler", "local:1", code=2).stderr
    with socket.create_server(("127.0.0.1", 0)) as server:  # another service

        def answer():
            while True:
                try:
                    connection, _address = server.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert f"{address}: no scheduler answers" in oocpeg(*words, "--scheduler", address, code=3).stderr
        server.shutdown(socket.SHUT_RDWR)


# --- features of local training ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_warm_start(local, tmp_path):
    """A warm start begins near the optimum, with a valid certificate."""
    store = store_of_parts(tmp_path)
    config = TrainConfig(lam=0.05, tolerance=1e-3, bias="feature")
    exact = train(store, TrainConfig(lam=0.05, tolerance=1e-6, bias="feature")).model
    optimum = exact.info.certificate
    cold = train_dask(
        local.client,
        store,
        TrainConfig(lam=0.05, tolerance=1e-9, bias="feature", algorithm="sgd-s", max_epochs=1),
        parts=3,
    )
    warm = train_dask(local.client, store, config, parts=3, warm_start=exact)
    assert warm.algorithm == "sgd-s"
    assert warm.model.info.certificate.primal < cold.model.info.certificate.primal
    for entry in warm.model.info.history:
        assert entry.lower_bound <= optimum.primal * (1 + 1e-9)
    assert warm.model.info.certificate.primal >= optimum.lower_bound * (1 - 1e-9)
    for config, problem in (
        (TrainConfig(lam=(0.1, 0.2), bias="feature"), "begins one model with another"),
        (TrainConfig(lam=0.1, algorithm="sdca", bias="feature"), "choose algorithm=sgd-s"),
        (TrainConfig(lam=0.1), "add bias=feature"),
    ):
        with pytest.raises(UsageError, match=problem):
            train_dask(local.client, store, config, warm_start=exact)


def test_slow_pegasos_is_replaced(local, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PEGASOS_FROM", 0.0)
    store = store_of_parts(tmp_path, rows=3000)
    config = TrainConfig(lam=0.05, tolerance=0.0201, max_epochs=30)  # lambda m = 150: Pegasos to begin with
    assert train_dask(local.client, store, config, parts=2).algorithm == "sgd-s"
    config = TrainConfig(lam=0.05, tolerance=3 / 150, max_epochs=30)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running.Run, "is_slow", lambda mine: len(mine.state.progress[0].history) >= 2)
        patched.setattr(
            running.Judge,
            "is_enough",
            lambda mine, done: len(done.history) > 5 and done.gap <= 0.02,
        )
        result = train_dask(local.client, store, config, parts=2, checkpoint=tmp_path / "kept")
    assert result.algorithm == "sdca"
    assert "continuing with dual coordinate ascent" in " ".join(result.notes)
    alone = train(store, config).model.info.certificate
    assert result.model.info.certificate.lower_bound <= alone.primal * (1 + 1e-12)
    assert alone.lower_bound <= result.model.info.certificate.primal * (1 + 1e-12)


def test_rows_grouped_by_label(local, tmp_path):
    matrix = np.random.default_rng(0).random((400, 5)).astype(np.float32)
    store = store_of(tmp_path, sp.csr_matrix(matrix), np.repeat([-1, 1], 200), chunk_size=4096)
    notes = train_dask(local.client, store, TrainConfig(lam=0.1, max_epochs=3), parts=2).notes
    assert any("are grouped by label" in note for note in notes)


@pytest.mark.slow
def test_workers_in_other_processes(local, processes, tmp_path):
    """Results are identical with workers in other processes, for all kinds of problems."""
    matrix = np.random.default_rng(0).random((500, 30)) * (np.random.default_rng(1).random((500, 30)) < 0.3)
    labels = (matrix @ np.random.default_rng(2).normal(size=(30, 4))).argmax(axis=1)
    store = store_of(
        tmp_path, sp.csr_matrix(matrix.astype(np.float32)), labels, chunk_size=4096, classes=("0", "1", "2", "3")
    )
    cost = tuple(tuple(float(i != j) * (1 + i) for j in range(4)) for i in range(4))
    for config in (
        TrainConfig(lam=(0.05, 0.01), max_epochs=6, calibrate="isotonic", refit=False),
        TrainConfig(lam=(0.05, 0.01), max_epochs=6, calibrate="platt"),
        TrainConfig(lam=0.05, max_epochs=6, folds=3, class_weight="balanced"),
        TrainConfig(lam=0.05, max_epochs=6, loss="multiclass-hinge", cost=cost, bias="feature"),
        TrainConfig(lam=0.05, max_epochs=6, loss="multiclass-logistic", holdout=0.1),
    ):
        one = train_dask(local.client, store, config, parts=3)
        other = train_dask(processes.client, store, config, parts=3)
        assert weight_bytes(one) == weight_bytes(other)
        assert one.model.info.calibrations == other.model.info.calibrations
        assert one.trials == other.trials
