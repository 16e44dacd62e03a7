"""Training in parts on the workers of dask.distributed: the same problems, certificates that hold, the same bytes."""

import dataclasses
import os
import signal
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from ooc_pegasos import Store, TrainConfig, train
from ooc_pegasos.distributed import client_solvers as distributed_solvers
from ooc_pegasos.distributed import store_parts as data
from ooc_pegasos.distributed import train_dask, worker_round
from ooc_pegasos.distributed.worker_round import PackedVector, RoundResult
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.problem import problem_of
from ooc_pegasos.scoring.evaluate import evaluate
from support.clusters import EpochProgress, store_of_parts, weight_bytes, workers_of_this_process
from support.rows import random_rows
from support.stores import store_of
from support.subsets import covering

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.dask


@pytest.fixture(scope="module")
def client():
    """Two workers in this process."""
    with workers_of_this_process() as (_cluster, client):
        yield client


@pytest.mark.parametrize(
    ("algorithm", "lam", "parts"), covering(["auto", "sgd-s", "sdca"], [1e-1, 1e-2, 1e-4], [1, 2, 4])
)
def test_the_certificate_holds(client, tmp_path, parts, lam, algorithm):
    store = store_of_parts(tmp_path)
    matrix, labels = store.to_scipy()
    svm = LinearSVC(C=1 / (lam * store.rows), loss="hinge", fit_intercept=False, tol=1e-9, max_iter=10**6)
    w = svm.fit(matrix.astype(float), labels).coef_.ravel()
    optimum = lam / 2 * w @ w + np.maximum(0, 1 - labels * (matrix @ w)).mean()
    # where lambda m is 0.06 rounds add little: what is certified then has to be true all the same
    limit = None if algorithm != "sgd-s" and lam > 1e-3 else 40
    result = train_dask(
        client, store, TrainConfig(lam=lam, tolerance=1e-3, algorithm=algorithm, max_epochs=limit), parts=parts
    )
    certificate = result.model.info.certificate
    for entry in result.model.info.history:
        assert entry.lower_bound <= optimum * (1 + 1e-6)
    assert certificate.primal >= optimum * (1 - 1e-6)
    own = result.model.weights
    primal = lam / 2 * own @ own + np.maximum(0, 1 - labels * (matrix @ own)).mean()
    assert certificate.primal == pytest.approx(primal, rel=1e-9)
    if limit is None:
        assert result.converged
        assert certificate.gap <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("logistic", "classes"),
        ("smoothed-hinge", "classes"),
        ("epsilon-insensitive", "numbers"),
        ("huber", "numbers"),
        ("absolute", "numbers"),
    ],
)
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_all_losses_have_the_optimum_of_local_training(client, tmp_path, loss, labels, algorithm):
    matrix, found = random_rows(400, 30, 3, 0.3)
    if labels == "numbers":
        found = matrix @ np.random.default_rng(1).normal(size=30)
        store = store_of(tmp_path, matrix, found, chunk_size=4096, classes=(), task="regression")
    else:
        store = store_of(tmp_path, matrix, found, chunk_size=4096)
    config = TrainConfig(lam=0.05, loss=loss, tolerance=5e-3, algorithm=algorithm, max_epochs=100)
    local = train(store, TrainConfig(lam=0.05, loss=loss, tolerance=1e-5, algorithm="sdca")).model.info.certificate
    result = train_dask(client, store, config, parts=3)
    certificate = result.model.info.certificate
    assert certificate.lower_bound <= local.primal * (1 + 1e-9)
    assert certificate.primal >= local.lower_bound * (1 - 1e-9)
    if algorithm == "sdca":
        assert result.converged


@pytest.mark.slow
def test_many_models_weights_folds_and_a_bias(client, tmp_path):
    folder = tmp_path
    (folder / "weights").write_text("".join(f"{1 + row % 3}\n" for row in range(600)))
    store = store_of_parts(folder, weights=str(folder / "weights"))
    for config in (
        TrainConfig(lam=(0.1, 0.03, 0.01), tolerance=0.005, holdout=0.2, refit=False),
        TrainConfig(lam=(0.1, 0.01), folds=3, tolerance=0.005, refit=False),
        TrainConfig(lam=0.01, bias="feature", tolerance=0.005, class_weight=(1.0, 3.0)),
        TrainConfig(tolerance=0.01, max_epochs=30, refit=False),
    ):
        local, on_workers = train(store, config), train_dask(client, store, config, parts=3)
        assert on_workers.converged or config.max_epochs
        assert len(local.models) == len(on_workers.models)
        for one, other in zip(local.models, on_workers.models, strict=True):
            assert one.lam == other.lam
            assert other.certificate.lower_bound <= one.certificate.primal * (1 + 1e-12)
            assert one.certificate.lower_bound <= other.certificate.primal * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "multiclass-hinge", "multiclass-logistic"])
def test_several_classes(client, tmp_path, loss):
    matrix, _labels = random_rows(500, 30, 5, 0.3)
    truth = np.random.default_rng(2).normal(size=(30, 4))
    labels = (matrix @ truth).argmax(axis=1)
    store = store_of(tmp_path, matrix, labels, chunk_size=4096, classes=("0", "1", "2", "3"))
    config = TrainConfig(lam=0.05, loss=loss, tolerance=0.001, max_epochs=100)
    local, on_workers = train(store, config), train_dask(client, store, config, parts=3)
    for one, other in zip(local.models, on_workers.models, strict=True):
        assert other.certificate.lower_bound <= one.certificate.primal * (1 + 1e-12)
        assert one.certificate.lower_bound <= other.certificate.primal * (1 + 1e-12)
    errors = [evaluate(result.model, str(store.path))["error"] for result in (local, on_workers)]
    assert abs(errors[0] - errors[1]) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_results_do_not_depend_on_the_number_of_workers(tmp_path, algorithm):
    store = store_of_parts(tmp_path)
    same = {"tolerance": 1e-3, "algorithm": algorithm, "max_epochs": 12, "holdout": 0.1, "memory": 1 << 24}
    config = TrainConfig(lam=(0.03, 0.01, 0.003), refit=False, **same)
    found = set()
    for number in (1, 2, 3, 2):
        with (
            distributed.LocalCluster(
                n_workers=number, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            found.add(weight_bytes(train_dask(client, store, config, parts=4)))
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_a_lost_worker_changes_no_result(tmp_path, algorithm):
    store = store_of_parts(tmp_path, rows=3000)
    config = TrainConfig(lam=3e-5, tolerance=1e-9, algorithm=algorithm, max_epochs=60, memory=1 << 26)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        whole = train_dask(client, store, config, parts=3)
        victims = sorted(worker.pid for worker in cluster.workers.values())
        once = threading.Event()

        def kill(_epoch, *_more):
            if _epoch > 25 and not once.is_set():
                once.set()
                os.kill(victims[0], signal.SIGKILL)

        class Killing(EpochProgress):
            on_epoch = staticmethod(kill)

        again = train_dask(client, store, config, parts=3, progress=Killing())
        assert once.is_set()
        assert sorted(worker.pid for worker in cluster.workers.values()) != victims or len(cluster.workers) < 2
    assert weight_bytes(again) == weight_bytes(whole)
    assert again.model.info.certificate == whole.model.info.certificate


def test_workers_join_and_leave(tmp_path):
    store = store_of_parts(tmp_path, rows=2000)
    config = TrainConfig(lam=1e-4, tolerance=1e-9, algorithm="sdca", max_epochs=30, memory=1 << 26)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        whole = train_dask(client, store, config, parts=3)

        class Scaling(EpochProgress):
            @staticmethod
            def on_epoch(epoch):
                if epoch == 8:
                    cluster.scale(3)
                    client.wait_for_workers(3)
                if epoch == 18:
                    cluster.scale(2)
                    while len(cluster.workers) > 2:
                        time.sleep(0.05)

        again = train_dask(client, store, config, parts=3, progress=Scaling())
    assert weight_bytes(again) == weight_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_checkpoints(client, tmp_path, algorithm):
    store = store_of_parts(tmp_path)
    settings = {"lam": (0.03, 0.003), "tolerance": 1e-9, "algorithm": algorithm, "memory": 1 << 24}
    settings |= {"holdout": 0.1, "refit": False}
    whole = train_dask(client, store, TrainConfig(**settings, max_epochs=9), parts=3)
    some = TrainConfig(**settings, max_epochs=9, checkpoint_epochs=1)

    class Interrupting(EpochProgress):
        @staticmethod
        def on_epoch(epoch):
            if epoch == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_dask(client, store, some, parts=3, checkpoint=tmp_path / "kept", progress=Interrupting())
    rest = TrainConfig(**settings, max_epochs=9)
    resumed = train_dask(client, store, rest, checkpoint=tmp_path / "kept", resume=True)
    assert weight_bytes(resumed) == weight_bytes(whole)
    assert resumed.model.info.history == whole.model.info.history
    for problem, other in (
        ("with other options", {"config": TrainConfig(**settings | {"lam": 0.5}, max_epochs=9)}),
        ("in other parts", {"config": rest, "parts": 2}),
    ):
        with pytest.raises(InputError, match=problem):
            train_dask(client, store, **other, checkpoint=tmp_path / "kept", resume=True)
    with pytest.raises(UsageError, match="give its folder"):
        train_dask(client, store, rest, resume=True)


def test_cleanup_of_the_workers(client, tmp_path):
    store = store_of_parts(tmp_path)

    class Interrupting(EpochProgress):
        @staticmethod
        def on_epoch(epoch):
            if epoch == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_dask(client, store, TrainConfig(lam=1e-3, tolerance=1e-9), parts=2, progress=Interrupting())
    train_dask(client, store, TrainConfig(lam=1e-2), parts=2)
    for _wait in range(100):
        if not any(client.has_what().values()):
            break
        time.sleep(0.05)
    assert not any(client.has_what().values())
    assert not data._open_parts


def test_invalid_options(client, tmp_path):
    store = store_of_parts(tmp_path)
    for config, message in (
        (TrainConfig(algorithm="pegasos", lam=0.1), "runs on one machine"),
        (TrainConfig(bias="search", lam=0.1), "bias=search is for one machine"),
        (TrainConfig(lam=0.1, batch_size=5), "batch_size is for one machine"),
        (TrainConfig(lam=0.1, sampling="iid"), "sampling=iid is for one machine"),
        (TrainConfig(lam=0.1, threads=2), "threads is for one machine"),
    ):
        with pytest.raises(UsageError, match=message):
            train_dask(client, store, config)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as lonely,
        pytest.raises(InputError, match="no workers"),
    ):
        train_dask(lonely, store, TrainConfig(lam=0.1))


def test_another_store_under_the_same_name(client, tmp_path):
    store = store_of_parts(tmp_path)
    opened = Store.open(store.path)
    store_of_parts(tmp_path, seed=1)  # in its place
    with pytest.raises(InputError, match="not the store that the client sees"):
        train_dask(client, opened, TrainConfig(lam=0.1))


@pytest.mark.parametrize("number", [1, 2, 3, 7, 100])
def test_parts_cover_the_store_evenly(tmp_path, number):
    store = store_of_parts(tmp_path)
    bounds = data.cut_store(store, number)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == len(store.manifest.chunks)
    assert all(first < end for first, end in bounds)
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    assert len(bounds) == min(number, len(store.manifest.chunks))


def test_packed_vectors_are_exact():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.01, 0.5, 1.0):
        vectors = [rng.normal(size=1000) * (rng.random(1000) < share) for _ in range(3)]
        one, two, three = (RoundResult({0: PackedVector.of(v)}, {0: np.ones(2)}) for v in vectors)
        total = np.zeros(1000)
        (one + two + three).vectors[0].add_to(total)
        assert total.tobytes() == ((vectors[0] + vectors[1]) + vectors[2] + 0.0).tobytes()
        assert (one + two + three).numbers[0].tolist() == [3, 3]
        assert PackedVector.of(vectors[0]).bytes <= 8000


def sigmas(monkeypatch):
    """Record (sigma, ratio of norms, next sigma) of each round."""
    found = []

    def spy(sigma, combined, separate, parts):
        found.append((sigma, combined / separate, known(sigma, combined, separate, parts)))
        return found[-1][2]

    known = worker_round.next_sigma
    monkeypatch.setattr(distributed_solvers, "next_sigma", spy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("alike", [False, True])
def test_sigma_adapts_to_the_parts(client, tmp_path, monkeypatch, alike):
    """Parts without common features need sigma 1; parts with the same rows need the number of parts."""
    matrix, labels = random_rows(200, 20, 0, 0.4)
    labels = np.where(matrix @ np.random.default_rng(9).normal(size=20) + labels / 2 > 0, 1, -1)
    rows = sp.vstack([matrix] * 3) if alike else sp.block_diag([matrix] * 3)
    store = store_of(tmp_path, rows.tocsr(), np.tile(labels, 3), chunk_size=1024, shuffle=False)
    found = sigmas(monkeypatch)
    config = TrainConfig(lam=1e-3, tolerance=1e-3, algorithm="sdca", max_epochs=200)
    assert train_dask(client, store, config, parts=3, passes=1).converged
    assert found[0][0] == 3
    if alike:
        assert found[0][1] > 2.7  # later, parts change different copies of a row
        assert found[0][2] > 2.8
    else:
        assert max(ratio for _sigma, ratio, _then in found) < 1.3
        assert found[-1][2] < 1.5


@pytest.mark.slow
def test_smaller_sigma_takes_fewer_rounds(client, tmp_path, monkeypatch):
    store = store_of_parts(tmp_path)
    config = TrainConfig(lam=0.01, tolerance=0.01, algorithm="sdca", max_epochs=200)
    learnt = train_dask(client, store, config, parts=8, passes=1)
    monkeypatch.setattr(distributed_solvers, "next_sigma", lambda sigma, *_seen: sigma)
    always = train_dask(client, store, config, parts=8, passes=1)
    assert learnt.converged
    assert learnt.model.info.epochs < 0.6 * always.model.info.epochs


def test_a_round_is_a_pure_function(tmp_path, client):
    """Repeating a task gives the same result and changes no argument."""
    store = store_of_parts(tmp_path)
    config = TrainConfig(lam=(0.01, 0.001, 0.1), holdout=0.1)
    loader = open_loader(store, 1 << 40, holdout=0.1)
    problem = problem_of(config, store, loader)
    part = data.parts_of(store, config, [(1, 3)], 1 << 24, loader.folds.training_rows, 1)[0]
    state = None
    vectors = {model: np.zeros(problem.length) for model in range(3)}
    centres = dict.fromkeys(range(3), np.zeros(len(worker_round.CENTRES)))
    for epoch in range(3):
        packed = {model: PackedVector.of(vector) for model, vector in vectors.items()}
        request = worker_round.SdcaRequest(
            problem, 0.01, epoch, 1, packed, dict.fromkeys(range(3), 1.0), centres, dict.fromkeys(range(3), 2.0)
        )
        before = None if state is None else {key: array.copy() for key, array in state.arrays.items()}
        first, second = worker_round.run_sdca(part, request, state), worker_round.run_sdca(part, request, state)
        for model in range(3):
            assert first[1].vectors[model].numbers.tobytes() == second[1].vectors[model].numbers.tobytes()
            squares = (first[1].vectors[model].unpacked() ** 2).sum()
            assert first[1].numbers[model][worker_round.OWN_SQUARES] == pytest.approx(squares, rel=1e-12)
        assert all(first[0].arrays[key].tobytes() == array.tobytes() for key, array in second[0].arrays.items())
        if state is not None:
            assert all(before[key].tobytes() == array.tobytes() for key, array in state.arrays.items())
        state = first[0]
        for model, packed in first[1].vectors.items():
            vectors[model] = vectors[model].copy()
            packed.add_to(vectors[model])
    data.close_run(part.run)


@pytest.mark.slow
def test_the_command(tmp_path, oocpeg):
    store_of_parts(tmp_path)
    request = oocpeg("train", "store", "-o", "model", "--lambda", "0.01", "--scheduler", "local:2", "--json").stdout
    assert '"converged": true' in request
    assert (
        "no scheduler answers"
        in oocpeg("train", "store", "-o", "m2", "--scheduler", "tcp://127.0.0.1:9", code=3).stderr
    )
    assert "give an address" in oocpeg("train", "store", "-o", "m2", "--scheduler", "nonsense", code=2).stderr


def test_the_delay_of_pegasos(client, tmp_path):
    """The delay changes the steps; the certificate still holds."""
    store = store_of_parts(tmp_path)
    config = TrainConfig(lam=0.1, algorithm="sgd-s", max_epochs=3, tolerance=1e-9)
    plain = train_dask(client, store, config, parts=2)
    delayed = train_dask(client, store, dataclasses.replace(config, delay=5000.0), parts=2)
    assert weight_bytes(delayed) != weight_bytes(plain)
    optimum = train(store, TrainConfig(lam=0.1, tolerance=1e-6)).model.info.certificate
    assert delayed.model.info.certificate.lower_bound <= optimum.primal
    assert delayed.model.info.certificate.primal >= optimum.lower_bound
