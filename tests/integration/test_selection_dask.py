"""The search for lambda on Dask workers: stores and collections, interrupted and resumed."""

import json

import numpy as np
import pytest

from ooc_pegasos import TrainConfig, train
from ooc_pegasos.distributed import train_dask
from ooc_pegasos.errors import InputError, UsageError
from support.biased_rows import holdout_masks
from support.clusters import EpochProgress, store_of_parts, weight_bytes, workers_of_this_process
from support.optima import least_objective
from support.rows import random_rows
from support.stores import store_of

pytest.importorskip("distributed")
pytestmark = pytest.mark.dask
MEMORY = 1 << 26


@pytest.fixture(scope="module")
def client():
    """Two workers in this process."""
    with workers_of_this_process(by_default=False) as (_cluster, client):
        yield client


def noisy_store(folder):
    """400 rows of 12 features in several chunks, whose best lambda is inside the default path."""
    matrix, _labels = random_rows(400, 12, 1, 0.5)
    score = matrix @ np.random.default_rng(2).standard_normal(12) + 2 * np.random.default_rng(3).standard_normal(400)
    return store_of(folder, matrix, np.where(score > 0, 1, -1), chunk_size=2048)


def search_config(**options):
    usual = {"tolerance": 0.02, "holdout": 0.3, "memory": MEMORY, "max_epochs": 60, "loss": "hinge"}
    return TrainConfig(**usual | options)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"algorithm": "sgd-s"}, marks=pytest.mark.slow),
        pytest.param({"holdout": None, "folds": 2}, marks=pytest.mark.slow),
        {"select_by": "auc", "lam": (1.0, 0.1, 0.01)},
        {"calibrate": "platt", "lam": (1.0, 0.1)},
    ],
    ids=str,
)
def test_the_last_fit_is_that_of_a_run_with_the_chosen_lambda(client, tmp_path, options):
    store = noisy_store(tmp_path)
    result = train_dask(client, store, search_config(**options), parts=3, log=tmp_path / "log")
    assert result.is_refit
    info = result.model.info
    ordinary = search_config(lam=info.lam, bias=info.config["bias"], holdout=None)
    if "algorithm" in options:
        ordinary = search_config(lam=info.lam, bias="feature", holdout=None, algorithm=options["algorithm"])
    again = train_dask(client, store, ordinary, parts=3)
    assert weight_bytes(result) == weight_bytes(again)
    assert (info.certificate, info.history) == (again.model.info.certificate, again.model.info.history)
    assert len(info.calibrations) == ("calibrate" in options)
    rounds = [json.loads(line)["round"] for line in (tmp_path / "log").read_text().splitlines()]
    assert rounds == sorted(rounds)
    assert len(set(rounds)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sdca", "sgd-s"])
def test_trials_are_true_and_begin_with_the_path_of_one_machine(client, tmp_path, algorithm):
    store = noisy_store(tmp_path)
    result = train_dask(client, store, search_config(algorithm=algorithm), parts=3)
    path = [trial.lam for trial in train(store, search_config(algorithm=algorithm, refit=False)).trials]
    assert set(path[:5]) <= {trial.lam for trial in result.trials}  # weak lambdas are ended early
    matrix, y = store.to_scipy()
    x, kept = np.column_stack([matrix.toarray().astype(float), np.ones(400)]), holdout_masks(400, 0.3)[1]
    for one in result.models:
        exact = least_objective("hinge", 0.0, x[kept], y[kept], one.lam, np.ones(kept.sum()))
        assert one.certificate.lower_bound <= exact * (1 + 1e-7)
        assert exact * (1 - 1e-7) <= one.certificate.primal
        assert one.certificate.gap <= 0.02 or not one.certificate.converged
    converged = {one.lam for one in result.models if one.certificate.converged}
    assert len(converged) > 4
    for trial in [one for one in result.trials if one.lam in converged]:
        (alone,) = train(store, TrainConfig(lam=trial.lam, bias="feature", holdout=0.3, tolerance=1e-4)).trials
        assert trial.loss == pytest.approx(alone.loss, rel=0.1)
        assert trial.error == pytest.approx(alone.error, abs=0.06)


# --- interrupted --------------------------------------------------------------------------------


def interrupted_at(number):
    """Progress that interrupts a run after so many epochs of all rounds."""

    class Interrupting(EpochProgress):
        def epoch_done(self, record, tolerance, models):
            self.epochs += 1
            if self.epochs == number:
                raise KeyboardInterrupt

    return Interrupting()


@pytest.mark.parametrize(
    "kind",
    ["given", pytest.param("pegasos", marks=pytest.mark.slow), pytest.param("probabilities", marks=pytest.mark.slow)],
)
def test_an_interrupted_search_is_resumed(client, tmp_path, kind):
    more = {"calibrate": "platt"} if kind == "probabilities" else {"lam": (1.0, 0.2), "max_epochs": 5}
    algorithm = "sgd-s" if kind == "pegasos" else "sdca"
    store, config = noisy_store(tmp_path), search_config(algorithm=algorithm, checkpoint_epochs=1, **more)
    counted = EpochProgress()
    whole = train_dask(client, store, config, parts=3, log=tmp_path / "whole.log", progress=counted)
    lines = [json.loads(line) for line in (tmp_path / "whole.log").read_text().splitlines()]
    for share in (0.1, 0.5, 0.9) if kind == "probabilities" else (0.2, 0.7):
        place, log = tmp_path / f"{share}", tmp_path / f"{share}.log"
        stop = interrupted_at(max(2, int(share * counted.epochs)))
        with pytest.raises(KeyboardInterrupt):
            train_dask(client, store, config, parts=3, checkpoint=place, log=log, progress=stop)
        again = train_dask(client, store, config, checkpoint=place, log=log, resume=True)
        assert again.model.encode() == whole.model.encode()
        assert again.trials == whole.trials
        found = [json.loads(line) for line in log.read_text().splitlines()]
        names = ("round", "model", "epoch", "lower_bound")
        assert [[one.get(name) for name in names] for one in found] == [
            [one.get(name) for name in names] for one in lines
        ]
    with pytest.raises(InputError, match="with other options"):
        train_dask(client, store, search_config(algorithm=algorithm, seed=1), checkpoint=place, resume=True)
    with pytest.raises(InputError, match="with other options"):
        train_dask(client, store, TrainConfig(lam=0.1), checkpoint=place, resume=True)
    with pytest.raises(InputError, match=r"in other parts|memory"):
        train_dask(client, store, config, parts=2, checkpoint=place, resume=True)
    with pytest.raises(InputError, match="do the same, or start over"):
        train(store, config, checkpoint=place, resume=True)


def test_a_search_of_one_machine_is_not_resumed_by_workers(client, tmp_path):
    store, config = noisy_store(tmp_path), search_config(checkpoint_epochs=1)
    train(store, config, checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="was started without scheduler; do the same, or start over"):
        train_dask(client, store, config, checkpoint=tmp_path / "c", resume=True)


def test_too_little_time_on_workers_leaves_a_model(client, tmp_path):
    store = store_of_parts(tmp_path)
    for seconds in (1e-9, 0.5):
        config = TrainConfig(max_seconds=seconds, tolerance=1e-9, memory=MEMORY, algorithm="sgd-s", max_epochs=10**6)
        result = train_dask(client, store, config, parts=2)
        assert (result.stopped_by, result.converged) == ("seconds", False)
        result.model.save(tmp_path / "model")


def test_a_warm_start_of_a_search_on_workers_is_refused(client, tmp_path):
    store = noisy_store(tmp_path)
    model = train(store, TrainConfig(lam=0.1, bias="feature")).model
    with pytest.raises(UsageError, match="begins one model with another"):
        train_dask(client, store, search_config(), warm_start=model)


# --- collections --------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_of_a_collection_are_kept_for_all_rounds(client, tmp_path):
    import dask.array as da

    matrix, y = noisy_store(tmp_path).to_scipy()
    x = matrix.toarray()
    delayed = da.from_array(x, chunks=(100, -1))
    for rows, name in ((delayed, "delayed"), (delayed.persist(), "persisted")):
        result = train_dask(client, rows, search_config(algorithm="sdca"), labels=y)
        assert result.is_refit, name
        assert len(result.trials) > 4
        info = result.model.info
        ordinary = search_config(lam=info.lam, bias="feature", holdout=None, algorithm="sdca")
        assert weight_bytes(train_dask(client, rows, ordinary, labels=y)) == weight_bytes(result)
        with_constant = np.column_stack([x.astype(float), np.ones(400)])
        exact = least_objective("hinge", 0.0, with_constant, y, info.lam, np.ones(400))
        assert info.certificate.lower_bound <= exact * (1 + 1e-7)
        assert exact * (1 - 1e-7) <= info.certificate.primal
    assert not any(client.has_what().values()) or name == "persisted"
