"""A search for lambda on a store larger than memory, which begins on a sample."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from ooc_pegasos import Store, TrainConfig, train
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.training.sample import sample_of
from support.rows import random_rows
from support.stores import all_memory, interrupt_at_check, store_of


class Steps(TrainingProgress):
    """Steps and rounds, and the epochs of each."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin_step(self, what: str) -> None:
        self.begun.append(what)

    def begin_round(self, what: str) -> None:
        self.begun.append(what)


def store_with_noise(folder: Path, rows: int = 8000, task: str = "binary", **options: object) -> Store:
    matrix, _labels = random_rows(rows, 300, 0, 0.05)
    rng = np.random.default_rng(0)
    scores = matrix @ rng.standard_normal((300, 3))
    scores += 0.4 * scores.std() * rng.standard_normal(scores.shape)
    labels = {"binary": np.where(scores[:, 0] > 0, 1, -1), "several": scores.argmax(axis=1), "real": scores[:, 0]}
    more = {} if task == "binary" else {"classes": (), "task": "regression" if task == "real" else "multiclass"}
    return store_of(folder, matrix, labels[task], **{"chunk_size": 8_000, "shuffle": True} | more | options)


def half(store: Store, **options: object) -> TrainConfig:
    return TrainConfig(memory=int(0.5 * all_memory(store)), **options)


def test_the_sample_is_some_chunks_that_fit_the_memory(tmp_path):
    store = store_with_noise(tmp_path)
    everything = all_memory(store)
    for share in (0.05, 0.2, 0.5, 0.9):
        sample = sample_of(open_loader(store, int(share * everything)))
        if sample is None:
            assert share == 0.05
            continue
        rows, labels = sample.to_scipy()
        assert 1000 <= sample.rows == rows.shape[0] <= 0.25 * store.rows
        assert all_memory(sample) <= share * everything
        assert sample.manifest.labels.counts == [int((labels == label).sum()) for label in (-1, 1)]
        assert sample.nonzeros == pytest.approx(rows.nnz, rel=0.05)
        numbers = [store.manifest.chunks.index(chunk) for chunk in sample.manifest.chunks]
        assert np.diff(numbers).max() - np.diff(numbers).min() <= 1


def test_rows_in_another_order_are_not_sampled(tmp_path):
    store = store_with_noise(tmp_path, shuffle=False)
    assert sample_of(open_loader(store, int(0.5 * all_memory(store)))) is None


@pytest.mark.parametrize("task", ["binary", pytest.param("several", marks=pytest.mark.slow), "real"])
def test_few_reads_find_a_lambda_as_good_as_that_of_a_search_in_memory(tmp_path, task):
    store = store_with_noise(tmp_path, task=task)
    steps, options = Steps(), {"bias": "none", "loss": "squared" if task == "real" else None}
    found, in_memory = train(store, half(store, **options), progress=steps), train(store, TrainConfig(**options))
    assert steps.begun[0].startswith("comparing lambdas on a sample of ")
    assert steps.begun[1].startswith("comparing lambdas near ")
    assert found.converged
    assert found.windows > 3
    best = min(in_memory.trials, key=lambda trial: trial.value)
    chosen = next(trial for trial in found.trials if trial.lam == found.model.info.lam)
    assert chosen.value <= best.value + 2 * best.uncertainty
    if task == "binary":
        assert found.bytes_read <= 10 * store.manifest.bytes
    alone = train(store, half(store, **options, lam=found.model.info.lam, tolerance=0.005))
    assert found.model.weights.tobytes() == alone.model.weights.tobytes()


def test_no_sample_where_lambda_is_given_or_the_store_fits(tmp_path):
    store = store_with_noise(tmp_path, rows=4500)
    coarse = {"max_epochs": 3, "holdout": 0.1}
    for config in (half(store, lam=(1e-2, 1e-3)), TrainConfig(**coarse), half(store, algorithm="sgd-s", **coarse)):
        steps = Steps()
        train(store, config, progress=steps)
        assert not any("sample" in step for step in steps.begun)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"calibrate": "platt"}, {"max_seconds": 1000.0}], ids=str)
def test_interrupted_anywhere_and_resumed(tmp_path, options):
    """While there is no checkpoint too, in the sample."""
    store = store_with_noise(tmp_path, rows=5000)
    config = half(store, bias="none", tolerance=0.02, **options)
    whole = train(store, config)
    interrupted, at = 0, 1
    while True:
        place = tmp_path / "checkpoint"
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at_check(patched, at)
            try:
                result = train(store, config, checkpoint=place)
                break
            except KeyboardInterrupt:
                interrupted += 1
        again = train(store, config, checkpoint=place, resume=True)
        assert again.model.encode() == whole.model.encode()
        assert again.trials == whole.trials
        shutil.rmtree(place)
        at += 1 + at // 3
    assert result.model.encode() == whole.model.encode()
    assert interrupted > 8


def test_a_search_that_is_out_of_time_in_the_sample_has_a_model_of_the_whole_store(tmp_path):
    store = store_with_noise(tmp_path)
    result = train(store, half(store, bias="none", max_seconds=1e-6))
    assert result.stopped_by == "seconds"
    assert result.model.info.store_checksum == store.checksum
    assert result.bytes_read > 0


@pytest.mark.slow
def test_a_large_store_in_memory_is_sampled_too(tmp_path):
    matrix, _labels = random_rows(120_000, 20, 0, 0.2)
    scores = matrix @ default_rng(0).standard_normal(20)
    labels = np.where(scores + 2 * scores.std() * default_rng(1).standard_normal(len(scores)) > 0, 1, -1)
    store, steps = store_of(tmp_path, matrix, labels, chunk_size=400_000, shuffle=True), Steps()
    result = train(store, TrainConfig(loss="hinge"), progress=steps)
    assert steps.begun[0].startswith("comparing lambdas on a sample of ")
    assert result.converged
    assert result.windows == 1
    errors = [trial.error for trial in result.trials]
    assert max(errors) - min(errors) < 0.01
