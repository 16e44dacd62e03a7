"""A search for lambda that is interrupted, killed or started again: the result is that of an undisturbed one."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ooc_pegasos import Model, Store, TrainConfig, TrainResult, train
from ooc_pegasos.errors import CheckpointMismatchError, CorruptFileError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.problem import count_models
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.training.selection import with_test_rows
from ooc_pegasos.util.checkpoint import FILE_NAME
from support.fork_server import COMMAND, common_server
from support.rows import random_rows, svmlight_text
from support.stores import interrupt_at_check, store_of
from support.subsets import covering


@pytest.fixture
def several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices an epoch, although there are few rows."""
    monkeypatch.setattr("ooc_pegasos.solvers.base.SLICE_ENTRIES", 500)


def store_of_kind(folder: Path, kind: str = "binary") -> Store:
    """240 noisy rows in several chunks."""
    matrix, _labels = random_rows(240, 8, 3, 0.6)
    rng = np.random.default_rng(4)
    score = matrix @ rng.standard_normal((8, 3)) + 2 * rng.standard_normal((240, 3))
    if kind == "several":
        return store_of(folder, matrix, score.argmax(axis=1), chunk_size=1024, classes=(), task="multiclass")
    if kind == "real":
        return store_of(folder, matrix, np.round(score[:, 0], 3), chunk_size=1024, classes=(), task="regression")
    return store_of(folder, matrix, np.where(score[:, 0] > 0, 1, -1), chunk_size=1024)


def in_windows(store: Store, config: TrainConfig) -> TrainConfig:
    """The options, with the memory that makes every chunk a window of its own in all rounds."""
    searching = with_test_rows(config, store)
    rows = {"holdout": searching.holdout_fraction, "folds": searching.folds}
    rows["row_bytes"] = row_bytes(searching, count_models(searching, store))
    return dataclasses.replace(config, memory=open_loader(store, 1 << 62, **rows).shape.min_budget)


KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "path": ("binary", {"holdout": 0.3}),
    "path by folds": ("binary", {"folds": 2}),
    "path by auc": ("binary", {"holdout": 0.3, "select_by": "auc"}),
    "panels": ("binary", {"algorithm": "sgd-s", "holdout": 0.3, "max_epochs": 6}),
    "given lambdas": ("binary", {"lam": (1.0, 0.1, 0.01), "holdout": 0.3}),
    "probabilities": ("binary", {"calibrate": "platt", "holdout": 0.3}),
    "classes": ("several", {"holdout": 0.3}),
    "joint classes": ("several", {"loss": "multiclass-hinge", "holdout": 0.3, "max_epochs": 4}),
    "free bias": ("real", {"holdout": 0.3}),
}
FAST_KINDS = ("path",)


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """The store, the options, and the result of a search that is not interrupted."""

    store: Store
    config: TrainConfig
    result: TrainResult
    model: bytes
    log: list[tuple[object, ...]]

    def check_same(self, result: TrainResult, log: Path) -> None:
        """Fail unless a resumed search has the same result, and each epoch once in its log."""
        assert result.model.encode() == self.model
        assert lines_of(log) == self.log
        assert (result.trials, result.models, result.is_refit) == (self.result.trials, self.result.models, True)
        assert (result.converged, result.stopped_by) == (self.result.converged, self.result.stopped_by)
        assert result.holdout == self.result.holdout


def lines_of(log: Path) -> list[tuple[object, ...]]:
    """What does not depend on the time in the lines of a log."""
    names = ("round", "model", "epoch", "primal", "lower_bound", "gap", "holdout_loss", "holdout_error")
    return [tuple(line.get(name) for name in names) for line in map(json.loads, log.read_text().splitlines())]


def undisturbed(folder: Path, name: str, windows: str = "one") -> Undisturbed:
    kind, options = KINDS[name]
    store, config = store_of_kind(folder, kind), TrainConfig(**{"tolerance": 0.02} | options)
    if windows == "several":
        config = in_windows(store, config)
    result = train(store, config, log=folder / "whole.log")
    return Undisturbed(store, config, result, result.model.encode(), lines_of(folder / "whole.log"))


def interrupt(whole: Undisturbed, at: int, place: Path, log: Path, resume: bool = False) -> TrainResult | None:
    """Interrupt a search before a check; return its result if it ends before that."""
    with pytest.MonkeyPatch.context() as patched:
        interrupt_at_check(patched, at)
        try:
            return train(whole.store, whole.config, checkpoint=place, log=log, resume=resume)
        except KeyboardInterrupt:
            return None


@pytest.mark.parametrize(
    ("name", "windows"),
    covering(
        [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST_KINDS)) for name in KINDS],
        ["one", "several"],
    ),
)
@pytest.mark.usefixtures("several_slices")
def test_interrupted_anywhere_and_resumed(request, tmp_path, name, windows):
    """In the first round, between rounds, in the last fit: everywhere if the test is slow, else at a few checks."""
    whole = undisturbed(tmp_path, name, windows)
    is_slow = request.node.get_closest_marker("slow") is not None
    interrupted, at = 0, 1
    while True:
        place, log = tmp_path / f"checkpoint {at}", tmp_path / f"{at}.log"
        result = interrupt(whole, at, place, log)
        if result is not None:
            whole.check_same(result, log)
            break
        interrupted += 1
        assert list(place.rglob(FILE_NAME))
        again = train(whole.store, whole.config, checkpoint=place, log=log, resume=True)
        whole.check_same(again, log)
        assert [path.name for path in place.glob("round-[0-9]*")] == []
        shutil.rmtree(place)
        at += 1 + at // 12 if is_slow else 1 + at
    assert interrupted > 3


@pytest.mark.usefixtures("several_slices")
@pytest.mark.parametrize("at", [20, 300, 800])
def test_a_resumed_search_keeps_its_memory(tmp_path, at):
    """Windows determine the order of rows: those of all rounds are those of the interrupted run."""
    whole = undisturbed(tmp_path, "path", "several")
    assert interrupt(whole, at, tmp_path / "c", tmp_path / "log") is None
    without = dataclasses.replace(whole.config, memory=None)
    again = train(whole.store, without, checkpoint=tmp_path / "c", log=tmp_path / "log", resume=True)
    assert again.windows == whole.result.windows > 1
    whole.check_same(again, tmp_path / "log")


@pytest.mark.usefixtures("several_slices")
def test_interrupted_again_and_again(tmp_path):
    whole = undisturbed(tmp_path, "path", "several")
    result, interrupted = None, 0
    while result is None:
        result = interrupt(whole, 150, tmp_path / "checkpoint", tmp_path / "log", resume=True)
        interrupted += result is None
        assert interrupted < 200
    assert interrupted > 3
    whole.check_same(result, tmp_path / "log")


def test_a_finished_search_is_resumed_to_the_same_model(tmp_path):
    whole = undisturbed(tmp_path, "path")
    place, log = tmp_path / "checkpoint", tmp_path / "log"
    for resume in (False, True, True):
        result = train(whole.store, whole.config, checkpoint=place, log=log, resume=resume)
        whole.check_same(result, log)


# --- other runs in the same folder --------------------------------------------------------------


class KeptNotes(TrainingProgress):
    """Progress that keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


STOPS = {"first round": 3, "last fit": None}


def stopped_search(folder: Path, where: str) -> tuple[Store, TrainConfig]:
    """The checkpoint of a search that was interrupted in its first round, or that is complete."""
    store, config = store_of_kind(folder), TrainConfig(holdout=0.3, checkpoint_epochs=1)
    with pytest.MonkeyPatch.context() as patched:
        if where == "first round":
            interrupt_at_check(patched, 3)
            with pytest.raises(KeyboardInterrupt):
                train(store, config, checkpoint=folder / "c")
        else:
            train(store, config, checkpoint=folder / "c")
    return store, config


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"holdout": 0.2},
        {"select_by": "auc"},
        {"tolerance": 0.1},
        {"lam": (0.1, 0.01)},
        {"lam": 0.1},
        {"refit": False},
        {"loss": "logistic"},
        {"algorithm": "sgd-s"},
    ],
    ids=str,
)
def test_other_options_are_refused(tmp_path, where, change):
    store, config = stopped_search(tmp_path, where)
    with pytest.raises(CheckpointMismatchError, match="started with other options; start over without resume"):
        train(store, dataclasses.replace(config, **change), checkpoint=tmp_path / "c", resume=True)


@pytest.mark.parametrize("where", STOPS)
def test_another_store_is_refused(tmp_path, where):
    _store, config = stopped_search(tmp_path, where)
    other = store_of(tmp_path, *random_rows(240, 8, 9, 0.6))
    with pytest.raises(CheckpointMismatchError, match="started on another store"):
        train(other, config, checkpoint=tmp_path / "c", resume=True)


@pytest.mark.parametrize("where", STOPS)
def test_other_memory_is_refused(tmp_path, where):
    store, config = stopped_search(tmp_path, where)
    with pytest.raises(CheckpointMismatchError, match="memory"):
        train(store, dataclasses.replace(config, memory=123_456_789), checkpoint=tmp_path / "c", resume=True)


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize("options", [{}, {"lam": 0.1, "holdout": None}, {"refit": False}], ids=str)
def test_without_resume_an_old_search_is_discarded_with_a_note(tmp_path, where, options):
    store, config = stopped_search(tmp_path, where)
    progress, config = KeptNotes(), dataclasses.replace(config, checkpoint_epochs=None, **options)
    result = train(store, config, checkpoint=tmp_path / "c", progress=progress)
    assert [note for note in progress.notes if "is discarded" in note] == [
        f"the checkpoint in {tmp_path / 'c'} is discarded; --resume would have continued it"
    ]
    assert result.model.encode() == train(store, config).model.encode()
    assert not list((tmp_path / "c").glob("round-[0-9]*"))


def test_a_run_of_one_lambda_is_no_search(tmp_path):
    """And its checkpoint is not that of a search."""
    store = store_of_kind(tmp_path)
    train(store, TrainConfig(lam=0.1, checkpoint_epochs=1), checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointMismatchError, match="started with other options"):
        train(store, TrainConfig(checkpoint_epochs=1), checkpoint=tmp_path / "c", resume=True)


def test_a_damaged_checkpoint_of_a_search_is_refused(tmp_path):
    store, config = stopped_search(tmp_path, "last fit")
    path = tmp_path / "c" / FILE_NAME
    content, rng = path.read_bytes(), np.random.default_rng(1)
    for _time in range(60):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError):
            train(store, config, checkpoint=tmp_path / "c", resume=True)


# --- killed ---------------------------------------------------------------------------------------

KILLED = ["--holdout", "0.3", "--tolerance", "0.02", "--checkpoint", "c", "--checkpoint-epochs", "1", "--log", "log"]


@pytest.mark.parametrize("algorithm", ["sdca", pytest.param("sgd-s", marks=pytest.mark.slow)])
def test_killed_before_a_step_and_resumed(tmp_path, algorithm):
    """`oocpeg train` without a lambda, killed before it creates, renames or removes a file."""
    (tmp_path / "in.svm").write_text(svmlight_text(*random_rows(200, 40, 3, 0.2)))
    server, place = common_server(), tmp_path / "place"
    env = {**os.environ, "NO_COLOR": "1"}

    def oocpeg_in(folder: Path, *words: str, **options: object):
        return server.start("execute", COMMAND, list(words), folder=folder, env=env, **options)

    oocpeg_in(tmp_path, "convert", "in.svm", "-o", "store").succeed()
    words = ["train", str(tmp_path / "store"), "-o", "model", *KILLED, "--algorithm", algorithm]
    # steps are found by the beginning of their paths
    words = [str(place / word) if word in ("model", "c", "log") else word for word in words]
    place.mkdir()
    child = oocpeg_in(place, *words, under=place)
    child.succeed()
    steps, model, log = child.steps, (place / "model").read_bytes(), lines_of(place / "log")
    assert Model.load(place / "model").info.trials
    for number in range(1, 6):
        shutil.rmtree(place)
        place.mkdir()
        killed = oocpeg_in(place, *words, under=place, die_before=steps * number // 6)
        assert killed.wait() < 0
        assert not (place / "model").exists()
        oocpeg_in(place, *words, "--resume").succeed()
        assert (place / "model").read_bytes() == model
        assert lines_of(place / "log") == log
