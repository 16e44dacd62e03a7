"""Training on this machine: locks, checkpoints and logs of a run, and the outer search over the bias."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ooc_pegasos.algorithms import SDCA
from ooc_pegasos.compiled.fit.pegasos import square_distance
from ooc_pegasos.config import ConvertConfig, TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.objective.losses import completed
from ooc_pegasos.objective.problem import fixed_bias, problem_of
from ooc_pegasos.reporting.progress import NotedProgress, TrainingProgress, default_training_progress
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.registry import caches_rows, choose_algorithm
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.bias_search import BiasSearch
from ooc_pegasos.training.finish import compared_with_constant, finished, warned
from ooc_pegasos.training.holdout import check_holdout_classes
from ooc_pegasos.training.local_engine import LocalEngine
from ooc_pegasos.training.path_run import PathRun, limits_of
from ooc_pegasos.training.report import Report, open_log
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.training.run import Proof, Run
from ooc_pegasos.training.sample import sample_of
from ooc_pegasos.training.selection import EpochLog, LambdaSearch, Round, RoundResult, with_test_rows
from ooc_pegasos.training.setup import ONE_MODEL, RunSetup, loader_of, weights_of
from ooc_pegasos.training.state import discard_checkpoint, refuse_search
from ooc_pegasos.training.stop import StopCheck
from ooc_pegasos.util.checkpoint import Checkpoint
from ooc_pegasos.util.files import writing_errors
from ooc_pegasos.util.locks import in_use, locked
from ooc_pegasos.util.stopwatch import Stopwatch

if TYPE_CHECKING:
    from ooc_pegasos.aliases import Labels, Matrix, Table


def train(
    store: Store | str | Path,
    config: TrainConfig | None = None,
    *,
    warm_start: Model | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: str | Path | None = None,
    scratch: str | Path | None = None,
    progress: TrainingProgress | None = None,
    proof: str | Path | None = None,
    keep_holdout: bool = False,
) -> TrainResult:
    """Minimise objective (1) over the rows of `store` until the certified gap of each model is within the tolerance.

    `store` is an open store, or its path. With `proof` dual variables that prove the gap of the model, as it is saved
    by `Model.save`, are written to that file; see docs/proof-format.md. With `keep_holdout` lambda is searched for
    although `refit` is off: the model of the best lambda is trained without the holdout rows.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    config = config or TrainConfig()
    is_default_loss = config.loss is None
    config = completed(config, store.manifest.labels.task, warm_start is not None)
    config = with_test_rows(config, store)
    is_search = config.is_search or (keep_holdout and config.comparing and config.lambdas is None)
    if resume and checkpoint is None:
        raise UsageError("{resume} continues from a checkpoint; give its folder with {checkpoint=DIR}")
    checkpoint_folder = Path(checkpoint) if checkpoint else None
    is_displayed = progress is not None

    def told(result: TrainResult) -> TrainResult:
        compared = compared_with_constant(result, store, config)
        return compared if is_displayed else warned(compared)

    with ExitStack() as stack:
        if progress is None:
            progress = default_training_progress()
            stack.callback(progress.end)
        stack.enter_context(in_use(store.path))
        scratch_folder = Path(scratch) if scratch else None
        if config.bias == "search":
            if proof:
                raise UsageError(
                    "{bias=search} has no proof for other biases; leave out {proof}, or choose {bias=free}"
                )
            if checkpoint_folder or warm_start is not None:
                raise UsageError("{bias=search} consists of several runs; leave out {checkpoint} and {warm_start}")
            return _search_bias(store, config, log, scratch_folder, progress)
        if checkpoint_folder:
            with writing_errors(checkpoint_folder):
                stack.enter_context(locked(checkpoint_folder / "lock", str(checkpoint_folder), progress.note))
        saved = Checkpoint.load(checkpoint_folder) if resume and checkpoint_folder else None
        whole = Round(config, 0, 0, checkpoint_folder, resume, is_last=True)
        epoch_log = EpochLog(Path(log) if log else None, stack)
        began = time.perf_counter()

        def train_round(one: Round) -> RoundResult:
            rows = one.sample or store
            known = saved if one is whole or one.checkpoint_folder is None else one.load_checkpoint()
            run = _new_run(
                rows,
                one.config,
                progress,
                warm_start=warm_start,
                checkpoint_folder=one.checkpoint_folder,
                saved=known,
                scratch=scratch_folder or checkpoint_folder,
                proof=Path(proof) if proof and one.is_last else None,
                began=began,
                is_search=is_search and config.lambdas is None and not one.is_last,
            )
            with closing(run), run.stop.listening():
                if checkpoint_folder and not resume and one.is_first:
                    discard_checkpoint(checkpoint_folder, progress.note)
                run.judge.ends_hopeless = one.ends_hopeless
                run.report.log = epoch_log.opened(one.lines_before + run.lines)
                run.report.round = one.number
                run.complete = partial(finished, one, store) if one.is_last else one.complete
                result = run.execute()
                run.report.sync_log()  # before the checkpoint of a search refers to its lines
                return RoundResult(result, run.lines, run.engine.identity(), run.is_search)

        if not is_search:
            if resume and checkpoint_folder:
                refuse_search(checkpoint_folder)
            progress.expect(config.steps)
            progress.begin_step("training")
            return told(train_round(whole).result)
        if warm_start is not None:
            raise UsageError(ONE_MODEL)
        search = LambdaSearch(
            config,
            store,
            train_round,
            progress,
            checkpoint_folder,
            resume,
            has_proof=proof is not None,
            is_default_loss=is_default_loss,
            sample=_sample_of(store, config) if config.lambdas is None else None,
        )
        if saved:
            search.continue_from(saved)
        return told(search.execute())


def _sample_of(store: Store, config: TrainConfig) -> Store | None:
    """Return a sample on which a search may begin; None if that does not save reads of the store, or time."""
    loader = loader_of(config, store, 1, None, None, Stopwatch())
    problem = problem_of(config, store, loader)
    is_dual = choose_algorithm(config, problem, False)[0] == SDCA
    may_pay = loader.shape.fits or caches_rows(config, problem, loader)
    return sample_of(loader) if is_dual and may_pay else None


def fit(
    data: Matrix | Table,
    labels: Labels | None = None,
    config: TrainConfig | None = None,
    *,
    label: str | None = None,
    weights: Labels | None = None,
    recipe: ConvertConfig | None = None,
    scratch: str | Path | None = None,
) -> TrainResult:
    """Train on data in memory: a table with a column of labels, named by `label`, or a matrix with `labels`.

    Tables may be streams larger than memory, as for `Store.from_arrow`; of a dataset the split `train` is used.

    `recipe` has further options of the conversion to a store, which is written below `scratch` and removed at the end.
    """
    recipe = recipe or ConvertConfig()
    if recipe.test is not None or recipe.split is not None:
        option = "split" if recipe.test is None else "test"
        raise UsageError(
            f"{{{option}}}: the store is removed at the end, and the test rows with it; make one and train on it"
        )
    if label is not None:
        recipe = dataclasses.replace(recipe, label=label)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="oocpeg-") as folder:
        path = Path(folder) / "store"
        if isinstance(data, Mapping) and "train" in data:  # the splits of a dataset
            others = ", ".join(str(name) for name in data if name != "train")
            if others:
                NotedProgress().note(f"trained on the split train; not used: {others}")
            data = data["train"]
        if labels is not None:
            store = Store.from_scipy(data, labels, path, weights, recipe)  # type: ignore[arg-type]
        else:
            store = Store.from_arrow(data, path, recipe)  # type: ignore[arg-type]
        return train(store, config, scratch=folder)


_SEARCH_TOLERANCE = 0.05
"""Tolerance of the models that are compared in few reads of the store; the last fit is more accurate."""


def _new_run(
    store: Store,
    config: TrainConfig,
    progress: TrainingProgress,
    *,
    warm_start: Model | None = None,
    checkpoint_folder: Path | None = None,
    saved: Checkpoint | None = None,
    scratch: Path | None = None,
    offsets: tuple[float, ...] = (),
    proof: Path | None = None,
    began: float | None = None,
    is_search: bool = False,
) -> Run:
    """Return a run on this machine. `offsets` are fixed biases, one for each model.

    A search without given lambdas follows their path if the algorithm can.
    """
    square_distance(np.empty(0), np.empty(0), 1.0)  # numba initialises itself at the first call
    stop, report, background = StopCheck(config.max_seconds, began), Report(progress), Stopwatch()
    scratch = scratch or checkpoint_folder or Path(tempfile.gettempdir())
    loader = loader_of(config, store, max(len(offsets), 1), saved, checkpoint_folder, background)
    problem = problem_of(config, store, loader)
    limits = None
    is_dual = is_search and choose_algorithm(config, problem, False)[0] == SDCA
    if is_dual and caches_rows(config, problem, loader):
        config = dataclasses.replace(config, algorithm=SDCA, tolerance=max(config.enough, _SEARCH_TOLERANCE))
    elif is_dual and config.lam is None:
        limits = limits_of(problem)
        config = dataclasses.replace(config, lam=limits.strong_end, algorithm=SDCA, holdout=config.holdout_fraction)
        problem = dataclasses.replace(
            problem, specs=tuple(one for one in problem.specs if one.lam == limits.strong_end)
        )
    if config.calibrate and store.manifest.labels.task == "binary":
        check_holdout_classes(store, loader)
    if offsets:
        problem = fixed_bias(problem, offsets)
    setup = RunSetup(store, config, loader, problem, weights_of(warm_start, config, problem))
    engine = LocalEngine(setup, stop, report, background, scratch)
    if limits:
        return PathRun(setup, engine, limits, checkpoint_folder, saved)
    return Run(
        setup, engine, checkpoint_folder=checkpoint_folder, saved=saved, proof=Proof(proof, scratch) if proof else None
    )


def _search_bias(
    store: Store, config: TrainConfig, log: str | Path | None, scratch: Path | None, progress: TrainingProgress
) -> TrainResult:
    """Search for the best bias: each round trains models of several fixed biases together."""
    search, began = BiasSearch(), time.perf_counter()
    progress.expect(config.steps)
    progress.begin_step("searching the bias")
    with ExitStack() as stack:
        file = stack.enter_context(open_log(Path(log), 0)) if log else None
        while True:
            seconds = time.perf_counter() - began
            left = max(config.max_seconds - seconds, 1e-3) if config.max_seconds else None
            remaining = dataclasses.replace(config, max_seconds=left)
            run = _new_run(store, remaining, progress, scratch=scratch, offsets=search.offsets)
            run.report.log = file
            with closing(run), run.stop.listening():
                result = run.execute()
            if search.is_over([model.certificate for model in result.models]) or result.stopped_by == "seconds":
                note = f"the gap is that for the bias fixed at {float(result.model.bias):.6g}"
                note += ", and another bias may be better: scale the targets" if search.gave_up else ""
                progress.note(note)
                seconds = time.perf_counter() - began
                return dataclasses.replace(result, seconds=seconds, notes=[*result.notes, note])
            progress.begin_round("other biases")
