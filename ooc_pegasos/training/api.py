"""Training: where things are kept, who else is at work there, and the outer search over the bias around runs."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack, closing
from pathlib import Path

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.reporting.progress import TrainingProgress, default_training_progress
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.bias_search import Search
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.training.run import Run
from ooc_pegasos.training.state import open_log, start_over
from ooc_pegasos.util.checkpoint import Checkpoint
from ooc_pegasos.util.files import writing_errors
from ooc_pegasos.util.locks import in_use, locked


def train(
    store: Store | str | Path,
    config: TrainConfig,
    *,
    warm_start: Model | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: str | Path | None = None,
    scratch: str | Path | None = None,
    progress: TrainingProgress | None = None,
    proof: str | Path | None = None,
) -> TrainResult:
    """Minimise objective (1) over the rows of `store` until the certified gap of each model is within the tolerance.

    The store is an open one, or its path. With `proof` dual variables that prove the gap of the model, as it is saved
    by `Model.save`, are written to that file; see docs/proof-format.md.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    if resume and checkpoint is None:
        raise UsageError("{resume} continues from a checkpoint; say where it is with {checkpoint=DIR}")
    place = Path(checkpoint) if checkpoint else None
    with ExitStack() as stack:
        if progress is None:
            progress = default_training_progress()
            stack.callback(progress.end)
        stack.enter_context(in_use(store.path))
        rows_in = Path(scratch) if scratch else None
        if config.bias == "search":
            if proof:
                raise UsageError("{bias=search} proves nothing of other biases; leave out {proof}, or add {bias=free}")
            if place or warm_start is not None:
                raise UsageError("{bias=search} trains again and again; leave out {checkpoint} and {warm_start}")
            return _search(store, config, log, rows_in, progress)
        if place:
            with writing_errors(place):
                stack.enter_context(locked(place / "lock", str(place), progress.note))
        saved = Checkpoint.load(place) if resume and place else None
        run = Run(
            store,
            config,
            progress,
            warm_start=warm_start,
            place=place,
            saved=saved,
            scratch=rows_in,
            proof=Path(proof) if proof else None,
        )
        stack.callback(run.close)
        if place and not resume:
            start_over(place, progress)
        if log:
            with writing_errors(Path(log)):
                run.log = stack.enter_context(open_log(Path(log), sum(known.epochs for known in run.state.known)))
        stack.enter_context(run.listening())
        return run.go()


def _search(
    store: Store, config: TrainConfig, log: str | Path | None, scratch: Path | None, progress: TrainingProgress
) -> TrainResult:
    """An outer search over the bias: models of several biases that are held fixed are trained in each pass."""
    search, began = Search(), time.perf_counter()
    with ExitStack() as stack:
        file = stack.enter_context(open_log(Path(log), 0)) if log else None
        while True:
            seconds = time.perf_counter() - began
            left = max(config.max_seconds - seconds, 1e-3) if config.max_seconds else None
            within = dataclasses.replace(config, max_seconds=left)
            run = Run(store, within, progress, scratch=scratch, offsets=search.offsets)
            run.log = file
            with closing(run), run.listening():
                result = run.go()
            if search.is_over([model.certificate for model in result.models]) or result.stopped_by == "seconds":
                note = f"the gap is that for the bias held at {float(result.model.bias):.6g}"
                note += ", and another may be better: scale the targets" if search.gave_up else ""
                progress.note(note)
                seconds = time.perf_counter() - began
                return dataclasses.replace(result, seconds=seconds, notes=[*result.notes, note])
