"""The loop on the client: a round of all parts, a judgement as on one machine, a checkpoint."""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ooc_pegasos.algorithms import ALGORITHMS, ANY
from ooc_pegasos.config import ConvertConfig, TrainConfig
from ooc_pegasos.distributed import cluster, partition_state
from ooc_pegasos.distributed.collections import RowsOfParts, hold, is_collection
from ooc_pegasos.distributed.coordinator import Given, Noted, Run
from ooc_pegasos.distributed.worker_pool import speaking
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.samplers import EQUALLY_OFTEN
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.reporting.progress import TrainingProgress, default_training_progress
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.training.state import open_log, start_over
from ooc_pegasos.util.checkpoint import Checkpoint, sound, whole
from ooc_pegasos.util.files import writing_errors
from ooc_pegasos.util.locks import in_use, locked


def train_dask(
    client: Any,
    store: Any,
    config: TrainConfig | None = None,
    *,
    labels: Any = None,
    weights: Any = None,
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

    The store is cut into `parts`, by default one for each thread of the workers there are; every worker must see it
    under the same path. The result depends on the parts, not on the workers; where a part does not fit `config.memory`
    (by default a share of a worker's limit) it depends on that as well. `passes` over its rows are made by each part in
    a round of dual coordinate ascent, one unless parts are small.

    Instead of a store, or its path, it may be a dask.array with `labels` and perhaps `weights`, or a dask.dataframe
    with a `recipe` that says which of its columns are what. Then no store is written: workers make each partition into
    rows and hold them in memory, or make them again in every round where they do not fit, and a note says so.
    """
    began = time.perf_counter()
    cluster.check(client)
    place = Path(checkpoint) if checkpoint else None
    if resume and place is None:
        raise UsageError("resume continues from a checkpoint; say where it is with checkpoint=DIR")
    config = config or TrainConfig()
    _refuse(config)
    with ExitStack() as stack:
        if progress is None:
            progress = default_training_progress()
            stack.callback(progress.end)
        noted = Noted(progress)
        if place:
            with writing_errors(place):
                stack.enter_context(locked(place / "lock", str(place), progress.note))
                partition_state.remove_left_overs(place)
        saved = Checkpoint.load(place) if resume and place else None
        stack.enter_context(speaking(client))
        had = _told_by(place, saved)
        number, memory, passes = parts or had[0], config.memory or had[1], passes or had[2]
        rows: RowsOfParts | None = None
        if is_collection(store):
            settled = number or (sum(client.nthreads().values()) if place else None)  # they may lie elsewhere then
            opened, rows = hold(client, store, labels, weights, recipe or ConvertConfig(), settled, noted.note)
            stack.callback(rows.close)
            if rows.remark:
                noted.notes.append(rows.remark)
                warnings.warn(rows.remark, stacklevel=2)
        elif labels is not None or weights is not None or recipe is not None:
            raise UsageError("labels, weights and a recipe go with a collection; a store has its own")
        else:
            opened = store if isinstance(store, Store) else Store.open(store)
            stack.enter_context(in_use(opened.path))
        given = Given(began, client, opened, rows, config, number, memory, passes, warm_start, place, saved, noted)
        run = Run(given)
        stack.callback(run.close)
        run.begin(Path(scratch) if scratch else place)
        if place and not resume:
            start_over(place, noted)
        if log:
            with writing_errors(Path(log)):
                run.log = stack.enter_context(open_log(Path(log), sum(known.epochs for known in run.state.known)))
        stack.enter_context(run.listening())
        return run.go()


def _told_by(place: Path | None, saved: Checkpoint | None) -> tuple[int | None, int | None, int | None]:
    """How many parts a run had that goes on, of how much memory, and how many passes in a round."""
    if not saved or not place:
        return None, None, None
    with sound(place):
        told = saved.facts["identity"].get("parts") or (None, None, None)
        parts, memory, passes = (None if one is None else whole(one, 1, 2**62, "parts") for one in told)
        return parts, memory, passes


def _refuse(config: TrainConfig) -> None:
    """Options that only one machine knows."""
    known = [ANY, *(one.name for one in ALGORITHMS.values() if "workers" in one.supports)]
    if config.algorithm not in known:
        raise UsageError(f"{{algorithm={config.algorithm}}} runs on one machine; choose {', '.join(known)}")
    if config.loss and not LOSSES.find(config.loss).is_built_in:
        raise UsageError(f"{{loss={config.loss}}} is not built in, so workers do not know it; train on one machine")
    asked = {"--bias search": config.bias == "search", "--threads": (config.threads or 1) > 1}
    asked |= {f"--loading {config.loading}": config.loading is not None}
    asked |= {mark: name != "bias=free" for name, mark in config.demands.items()}
    asked |= {f"--sampling {config.sampler}": config.sampler not in EQUALLY_OFTEN}
    for what, given in asked.items():
        if given:
            raise UsageError(f"{what} is for one machine; leave it out")
