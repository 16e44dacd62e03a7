"""Training on the workers of a Dask client: locks, checkpoints and logs of a run."""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ooc_pegasos.algorithms import ANY
from ooc_pegasos.config import ConvertConfig, TrainConfig
from ooc_pegasos.distributed import cluster, partition_state
from ooc_pegasos.distributed.collections import RowsOfParts, is_collection, read_collection
from ooc_pegasos.distributed.coordinator import SOLVERS, Coordinator, Layout
from ooc_pegasos.distributed.worker_pool import scheduler_errors
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.losses import completed
from ooc_pegasos.objective.problem import count_models, problem_of
from ooc_pegasos.registry import SAMPLERS
from ooc_pegasos.reporting.progress import TrainingProgress, default_training_progress
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.finish import compared_with_constant, finished, warned
from ooc_pegasos.training.report import Report
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.training.run import Run
from ooc_pegasos.training.selection import EpochLog, LambdaSearch, Round, RoundResult, with_test_rows
from ooc_pegasos.training.setup import ONE_MODEL, RunSetup, check_rows, weights_of
from ooc_pegasos.training.state import ROUNDS, discard_checkpoint, refuse_search
from ooc_pegasos.training.stop import StopCheck
from ooc_pegasos.util.checkpoint import Checkpoint, sound, whole
from ooc_pegasos.util.files import writing_errors
from ooc_pegasos.util.locks import in_use, locked

if TYPE_CHECKING:
    from ooc_pegasos.aliases import DaskClient, DaskCollection, Labels


def train_dask(
    client: DaskClient,
    store: Store | str | Path | DaskCollection,
    config: TrainConfig | None = None,
    *,
    labels: DaskCollection | Labels | None = None,
    weights: DaskCollection | Labels | None = None,
    recipe: ConvertConfig | None = None,
    parts: int | None = None,
    passes: int | None = None,
    warm_start: Model | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: str | Path | None = None,
    scratch: str | Path | None = None,
    progress: TrainingProgress | None = None,
) -> TrainResult:
    """Train on the workers of a `dask.distributed` client, to the same certified gap as on one machine.

    The store is cut into `parts`, by default one for each thread of the workers; every worker must see the store under
    the same path. The result depends on the parts, not on the workers; where a part does not fit `config.memory` (by
    default a share of a worker's limit) the result depends on the memory as well. In a round of dual coordinate ascent
    each part makes `passes` over its rows, by default one unless parts are small.

    Instead of a store, or its path, `store` may be a dask.array with `labels` and perhaps `weights`, or a
    dask.dataframe with a `recipe` that names the columns. Then no store is written: workers convert each partition to
    rows and keep them in memory, or, with a note, convert it again in every round if the rows do not fit.
    """
    began = time.perf_counter()
    cluster.check(client)
    checkpoint_folder = Path(checkpoint) if checkpoint else None
    if resume and checkpoint_folder is None:
        raise UsageError("resume continues from a checkpoint; give its folder with checkpoint=DIR")
    config = config or TrainConfig()
    _refuse(config)
    cluster.check_registered(client, {"loss": config.loss, "sampling": config.sampler})
    is_displayed = progress is not None
    with ExitStack() as stack:
        if progress is None:
            progress = default_training_progress()
            stack.callback(progress.end)
        report = Report(progress)
        if checkpoint_folder:
            with writing_errors(checkpoint_folder):
                stack.enter_context(locked(checkpoint_folder / "lock", str(checkpoint_folder), progress.note))
                partition_state.remove_left_overs(checkpoint_folder)
        saved = Checkpoint.load(checkpoint_folder) if resume and checkpoint_folder else None
        stack.enter_context(scheduler_errors(client))
        stack.enter_context(client.as_current())  # it need not be the default client
        previous = _layout_of(checkpoint_folder, saved) if saved else _layout_of_round(checkpoint_folder, resume)
        layout = Layout(parts or previous.parts, config.memory or previous.memory, passes or previous.passes)
        rows: RowsOfParts | None = None
        if is_collection(store):
            fixed_parts = layout.parts or (
                sum(client.nthreads().values()) if checkpoint_folder else None
            )  # a resumed run needs the same number of parts
            opened, rows = read_collection(
                client, store, labels, weights, recipe or ConvertConfig(), fixed_parts, report.note
            )
            stack.callback(rows.close)
            if rows.remark:
                report.notes.append(rows.remark)
                warnings.warn(rows.remark, stacklevel=2)
        elif labels is not None or weights is not None or recipe is not None:
            raise UsageError("labels, weights and a recipe go with a collection; a store has its own")
        else:
            opened = store if isinstance(store, Store) else Store.open(store)
            stack.enter_context(in_use(opened.path))
        is_default_loss = config.loss is None
        config = completed(config, opened.manifest.labels.task, warm_start is not None)
        config = with_test_rows(config, opened)

        def told(result: TrainResult) -> TrainResult:
            compared = result
            if not (rows and rows.max_in_memory):  # a pass over the rows is cheap
                compared = compared_with_constant(result, opened, config, rows.sum_of if rows else None)
            return compared if is_displayed else warned(compared)

        epoch_log = EpochLog(Path(log) if log else None, stack)

        def train_round(one: Round) -> RoundResult:
            setup = _new_setup(opened, one.config, warm_start)
            stop = StopCheck(config.max_seconds, began)
            place = Path(scratch) if scratch else checkpoint_folder
            with ExitStack() as of_round:
                of_round.enter_context(stop.listening())
                engine = Coordinator(setup, stop, report, client, rows, layout, place)
                of_round.callback(engine.close)
                known = saved if one.number == 0 else one.load_checkpoint()
                run = Run(setup, engine, checkpoint_folder=one.checkpoint_folder, saved=known)
                of_round.callback(run.close)
                if checkpoint_folder and not resume and one.is_first:
                    discard_checkpoint(checkpoint_folder, report.note)
                run.judge.ends_hopeless = one.ends_hopeless
                report.log, report.round = epoch_log.opened(one.lines_before + run.lines), one.number
                run.complete = (
                    partial(finished, one, opened, find=rows.find_names if rows else None)
                    if one.is_last
                    else one.complete
                )
                result = run.execute()
                report.sync_log()  # before the checkpoint of a search refers to its lines
                return RoundResult(result, run.lines, engine.identity())

        if not config.is_search:
            if resume and checkpoint_folder:
                refuse_search(checkpoint_folder)
            progress.expect(config.steps)
            progress.begin_step("training")
            return told(train_round(Round(config, 0, 0, checkpoint_folder, resume, is_last=True)).result)
        if warm_start is not None:
            raise UsageError(ONE_MODEL)
        search = LambdaSearch(
            config, opened, train_round, progress, checkpoint_folder, resume, is_default_loss=is_default_loss
        )
        if saved:
            search.continue_from(saved)
        return told(search.execute())


def _new_setup(store: Store, config: TrainConfig, warm_start: Model | None) -> RunSetup:
    """Return the setup of a run. The loader of the whole store provides sizes only."""
    count_models(config, store)
    loader = open_loader(store, 1 << 62, holdout=config.holdout_fraction, folds=config.folds)
    check_rows(config, store, loader)
    problem = problem_of(config, store, loader)
    return RunSetup(store, config, loader, problem, weights_of(warm_start, config, problem))


def _layout_of(checkpoint_folder: Path | None, saved: Checkpoint | None) -> Layout:
    """Return the layout of the run that is resumed, if there is one."""
    if not saved or not checkpoint_folder:
        return Layout()
    with sound(checkpoint_folder):
        parts, memory, passes = saved.facts["identity"].get("parts") or (None, None, None)
        return Layout(*(None if one is None else whole(one, 1, 2**62, "parts") for one in (parts, memory, passes)))


def _layout_of_round(checkpoint_folder: Path | None, resume: bool) -> Layout:
    """Return the layout of a search for lambda that was interrupted in its first round."""
    first = checkpoint_folder / f"{ROUNDS}1" if checkpoint_folder and resume else None
    return _layout_of(first, Checkpoint.load(first)) if first else Layout()


def _refuse(config: TrainConfig) -> None:
    """Refuse options that are supported on one machine only."""
    known = (ANY, *SOLVERS)
    if config.algorithm not in known:
        raise UsageError(f"{{algorithm={config.algorithm}}} runs on one machine; choose {', '.join(known)}")
    local_only = {"{bias=search}": config.bias == "search", "{threads}": (config.threads or 1) > 1}
    local_only |= {f"{{loading={config.loading}}}": config.loading is not None}
    local_only |= {mark: name not in ("bias=free", "delay") for name, mark in config.demands.items()}
    local_only |= {f"{{sampling={config.sampler}}}": not SAMPLERS[config.sampler].is_equally_often}
    for option, given in local_only.items():
        if given:
            raise UsageError(f"{option} is for one machine; leave it out")
