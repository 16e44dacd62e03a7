"""The loop on the client: a round of all parts, a judgement as on one machine, a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ooc_pegasos import manifest
from ooc_pegasos.checkpoint import Checkpoint, sound
from ooc_pegasos.config import MIB, ConvertConfig, TrainConfig
from ooc_pegasos.distributed import parts as data
from ooc_pegasos.distributed import rounds
from ooc_pegasos.distributed.collections import hold, is_collection
from ooc_pegasos.distributed.parts import Held, Part
from ooc_pegasos.distributed.rounds import AscentState, Contribution
from ooc_pegasos.distributed.solvers import RoundsOfAscent, RoundsOfDescent
from ooc_pegasos.errors import DamagedError, InputError, OocPegasosError, UsageError
from ooc_pegasos.files import in_use, locked, writing_errors
from ooc_pegasos.judging import Judge
from ooc_pegasos.loading import open_loader
from ooc_pegasos.model import Model
from ooc_pegasos.objective import Measurement
from ooc_pegasos.outcome import Outcome, ScoresApart, TrainResult, look_at_rows_apart, scores_apart
from ooc_pegasos.path import remark_on
from ooc_pegasos.problem import count_models, problem_of
from ooc_pegasos.progress import TrainingProgress, default_training_progress
from ooc_pegasos.progression import Progression, RunState, check_same_run, identity_of
from ooc_pegasos.solvers.averaging import LEAST
from ooc_pegasos.solvers.choice import PEGASOS_FROM, options_of
from ooc_pegasos.solvers.duals import RowStates
from ooc_pegasos.solvers.subgradient import Manner
from ooc_pegasos.store import Store

_SHARE_OF_MEMORY = 0.4
"""Of a worker's limit, for the rows of its parts."""
_ROUNDS_OF_ASCENT, _ROUNDS_OF_DESCENT = 2000, 100
_ENTRIES_A_ROUND, _MOST_PASSES = 1 << 21, 4
"""Where parts are small a round costs more than a pass, so more passes are made in it."""
_PATIENCE = 60
"""Seconds to wait for another worker when all are gone."""
_CUT_EVERY = 20
"""Rounds after which what is known of rows is kept on two workers."""


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
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: str | Path | None = None,
    progress: TrainingProgress | None = None,
) -> TrainResult:
    """Train on the workers of a `dask.distributed` client, to the same certified gap as on one machine.

    The store is cut into `parts`, one a worker by default; every worker must see it under the same path. The result
    depends on the parts and on `config.memory` (for each part), and not on the workers. `passes` over its rows are made
    by each part in a round of dual coordinate ascent, one unless parts are small.

    Instead of a store, or its path, it may be a dask.array with `labels` and perhaps `weights`, or a dask.dataframe
    with a `recipe` that says which of its columns are what. Then no store is written: workers make each partition into
    rows once, and hold them in memory.
    """
    with ExitStack() as stack:
        if progress is None:
            progress = default_training_progress()
            stack.callback(progress.end)
        shown, notes = progress, []

        def note(text: str) -> None:
            notes.append(text)
            shown.note(text)

        place = Path(checkpoint) if checkpoint else None
        if resume and place is None:
            raise UsageError("resume continues from a checkpoint; say where it is with checkpoint=DIR")
        if place:
            with writing_errors(place):
                stack.enter_context(locked(place / "lock", str(place)))
        saved = Checkpoint.load(place) if resume and place else None
        held: list[Any] = []
        if is_collection(store):
            number = parts or (saved.facts["identity"]["parts"][0] if saved else None)
            opened, held = hold(client, store, labels, weights, recipe or ConvertConfig(), number, note)
        elif labels is not None or weights is not None or recipe is not None:
            raise UsageError("labels, weights and a recipe go with a collection; a store has its own")
        else:
            opened = store if isinstance(store, Store) else Store.open(store)
            stack.enter_context(in_use(opened.path))
        run = _Run(client, opened, held, config or TrainConfig(), parts, passes, place, saved, progress)
        run.notes += notes
        stack.callback(run.close)
        if log:
            run.log = stack.enter_context(open(log, "w"))
        return run.go()


class _Run:
    """One run."""

    def __init__(
        self,
        client: Any,
        store: Store,
        held: list[Any],
        config: TrainConfig,
        parts: int | None,
        passes: int | None,
        place: Path | None,
        saved: Checkpoint | None,
        progress: TrainingProgress,
    ) -> None:
        _refuse(config)
        self.client, self.store, self.config, self.progress = client, store, config, progress
        self.held = held
        """Futures of the rows of parts, if they are in no store."""
        self.place = place
        self.began = time.perf_counter()
        self.name = secrets.token_hex(4)
        self.log: TextIO | None = None
        self.notes: list[str] = []
        count_models(config, store)
        # of the whole store, of which nothing is read here
        self.loader = open_loader(store, 1 << 62, holdout=config.holdout_fraction, folds=config.folds)
        self.problem = problem_of(config, store, self.loader)
        self.parts = self._cut(parts, saved)
        entries = store.nonzeros // len(self.parts)
        self.passes = passes or max(1, min(_MOST_PASSES, _ENTRIES_A_ROUND // max(entries, 1)))
        self.algorithm, self.why = self._choose()
        self.solver = self._new_solver()
        known = [Progression() for _spec in self.problem.specs]
        self.state = RunState(self.problem, self.solver, known)
        self.judge = Judge(self.state, config, True, str(store.path))
        self.states: list[Any] = [None] * len(self.parts)
        self.anchors: list[Any] = []
        self.kept: list[Any] = []
        self.bytes_moved = 0
        self.identity = identity_of(config, store, None) | {
            "parts": [len(self.parts), self.parts[0].memory, self.passes],
        }
        if saved and place:
            self._restore(place, saved)

    def _cut(self, number: int | None, saved: Checkpoint | None) -> list[Part]:
        if not self.client.nthreads():
            raise InputError("the cluster has no workers; start some, or wait for them with client.wait_for_workers(1)")
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        if number is None:
            number = saved.facts["identity"]["parts"][0] if saved else len(self.client.nthreads())
        bounds = data.cut(self.store, len(self.held) or number)
        if len(bounds) < number and self.held:
            self._note(f"the collection has {len(bounds)} partitions with rows, so there are no more parts")
        elif len(bounds) < number:
            self._note(f"the store has {len(bounds)} chunks, so there are no more parts; convert with --chunk-size")
        memory = self.config.memory or (saved and saved.facts["identity"]["parts"][1])
        if not memory:
            limits = [worker["memory_limit"] or 1 << 40 for worker in workers.values()] or [1 << 30]
            memory = int(_SHARE_OF_MEMORY * min(limits) / -(-len(bounds) // max(len(workers), 1))) // MIB * MIB
        checksum, rows = manifest.checksum_of(self.store.manifest), self.loader.folds.to_present
        path = data.same_store(self.store.path)
        return [
            Part(
                self.name,
                part,
                path,
                checksum,
                first,
                end,
                sum(rows[first:end]),
                max(memory, MIB),
                self.config.holdout_fraction,
                self.config.folds,
                self.config.sampler,
                self.config.seed,
            )
            for part, (first, end) in enumerate(bounds)
        ]

    def _choose(self) -> tuple[str, str]:
        """(the algorithm, why), where the user leaves it open."""
        if self.config.algorithm != "auto":
            return self.config.algorithm, ""
        if self.problem.costs is not None:
            return "sgd-s", "it can learn all classes at once"
        least = min(spec.clock for spec in self.problem.specs)
        if least * self.config.enough >= PEGASOS_FROM and least / len(self.parts) >= LEAST:
            return "sgd-s", f"lambda times rows is {least:.3g}, where averages of {len(self.parts)} parts are as good"
        return "sdca", f"lambda times rows is {least:.3g}, where it needs the fewest rounds"

    def _new_solver(self) -> RoundsOfAscent | RoundsOfDescent:
        if self.algorithm == "sdca":
            rows = RowStates(self.store, self.problem.bias, True, None)
            return RoundsOfAscent(self.problem, rows, self.config.enough)
        return RoundsOfDescent(
            self.problem, options_of(self.config, "sgd-s", self.problem, None), Manner("sgd-s", certified=True)
        )

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.note(text)

    # --- the loop ---------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Round after round, until every model has a reason to leave."""
        limit = self.config.max_epochs or (_ROUNDS_OF_ASCENT if self.algorithm == "sdca" else _ROUNDS_OF_DESCENT)
        state = self.state
        stopped = ""
        last_checkpoint = time.perf_counter()
        while not stopped:
            if not state.solver.active:
                stopped = "tolerance"
            elif state.cursor.epoch >= limit:
                stopped = "epochs"
            elif self.config.max_seconds and time.perf_counter() - self.began > self.config.max_seconds:
                stopped = "seconds"
            else:
                self._round(last=state.cursor.epoch + 1 >= limit)
                every = self.config.checkpoint_epochs
                due = time.perf_counter() - last_checkpoint > 60 * self.config.checkpoint_minutes
                if self.place and (due or (every and state.cursor.epoch % every == 0)):
                    self._save()
                    last_checkpoint = time.perf_counter()
        self._measure_the_rest()
        return self._result(stopped)

    def _round(self, last: bool) -> None:
        began, state, solver = time.perf_counter(), self.state, self.solver
        solver.begin_epoch()
        before = self.bytes_moved
        if isinstance(solver, RoundsOfAscent):
            found = self._ascend(solver)
        else:
            found = self._sum(self._everywhere("descend", rounds.descend, solver.task(self.loader.training_rows)))
        solver.take(found)
        solver.end_epoch()
        entries = self.judge.judge(last, self._measure)
        leaving = []
        for model in solver.active:
            state.known[model].left = self.judge.reason_to_leave(state.known[model])
            if state.known[model].left:
                leaving.append(model)
        if leaving:
            solver.drop(leaving)
        state.cursor.epoch += 1
        cost = {"seconds": time.perf_counter() - began, "bytes_moved": self.bytes_moved - before}
        worst = max(entries, key=lambda entry: entry["estimated_gap"] or 0.0)
        self.progress.epoch_done({**worst, "models": len(entries)} if len(entries) > 1 else worst, self.config.enough)
        if self.log:
            for entry in entries:
                self.log.write(json.dumps({**entry, **cost}) + "\n")
            self.log.flush()

    def _ascend(self, solver: RoundsOfAscent) -> Contribution:
        """Each part goes on from what it knows of its rows, which stays where it is."""
        task = solver.task(len(self.parts), self.passes)
        pairs = self._everywhere("ascend", rounds.ascend, task, self.states)
        number = self.state.cursor.epoch
        keys = [f"{self.name}-rows-{number}-{part}" for part in range(len(pairs))]
        self.states = [
            self.client.submit(_first, pair, key=key, pure=False) for pair, key in zip(pairs, keys, strict=True)
        ]
        keys = [f"{self.name}-change-{number}-{part}" for part in range(len(pairs))]
        found: Contribution = self._sum(
            [self.client.submit(_second, pair, key=key, pure=False) for pair, key in zip(pairs, keys, strict=True)]
        )
        if (number + 1) % _CUT_EVERY == 0:
            self._anchor()
        return found

    def _anchor(self) -> None:
        """Keep what is known of rows twice: what is lost later is done again from here and not from the start."""
        if len(self._workers()) > 1:
            self.client.replicate(self.states, n=2)
        self.anchors, self.kept = list(self.states), []

    def _workers(self) -> list[str]:
        """Their addresses; if all are gone others are waited for."""
        found = sorted(self.client.nthreads())
        if not found:
            try:
                self.client.wait_for_workers(1, timeout=_PATIENCE)
            except TimeoutError as error:
                problem = f"all workers are gone, and no other has come in {_PATIENCE} seconds"
                raise InputError(f"{problem}; start some, and resume from the checkpoint if there is one") from error
            found = sorted(self.client.nthreads())
        return found

    def _told(self, task: Any) -> Any:
        """Something for all workers. The scheduler keeps it, so no worker that dies takes it along."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            key = f"{self.name}-told-{self.state.cursor.epoch}-{time.monotonic_ns()}"
            return self.client.submit(_same, task, key=key, pure=False)

    def _everywhere(self, what: str, work: Callable[..., Any], task: Any, more: Sequence[Any] = ()) -> list[Any]:
        """Futures of some work on all parts; the task goes to every worker once."""
        workers, shared = self._workers(), self._told(task)
        where = self.client.who_has(self.held) if self.held else {}
        self.bytes_moved += _bytes_of(task) * len(workers)
        self.kept.append(shared)  # for rounds that have to be done again
        futures = []
        for part in self.parts:
            arguments = (part, shared, more[part.number]) if more else (part, shared)
            key = f"{self.name}-{what}-{self.state.cursor.epoch}-{part.number}"
            home, held = workers[part.number % len(workers)], {}
            if self.held:
                held = {"held": self.held[part.number]}
                home = next(iter(where.get(held["held"].key, ())), home)
            futures.append(
                self.client.submit(
                    work, *arguments, key=key, pure=False, workers=[home], allow_other_workers=True, **held
                )
            )
        return futures

    def _sum(self, futures: list[Any], add: Callable[[Any, Any], Any] = rounds.added) -> Any:
        """Added up two by two on the workers, always in the same order."""
        level = 0
        while len(futures) > 1:
            key = f"{self.name}-sum-{add.__name__}-{self.state.cursor.epoch}-{level}-{time.monotonic_ns()}"
            pairs = [futures[at : at + 2] for at in range(0, len(futures), 2)]
            futures = [
                self.client.submit(add, *pair, key=f"{key}-{number}", pure=False) if len(pair) == 2 else pair[0]
                for number, pair in enumerate(pairs)
            ]
            level += 1
        found = self._gather(futures[0])
        if isinstance(found, Contribution):
            self.bytes_moved += found.bytes + sum(packed.bytes for packed in found.vectors.values())
        return found

    def _gather(self, future: Any) -> Any:
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        try:
            return self.client.gather(future)
        except (KilledWorker, FutureCancelledError) as error:
            raise OocPegasosError(
                f"workers were lost again and again ({error}); give them more memory, or use more parts"
            ) from error

    def _measure(self, measurement: Measurement) -> None:
        """The sums of all parts."""
        task = (measurement.models, measurement.candidates)
        shared = self._told(task)
        self.bytes_moved += _bytes_of(task) * len(self.parts)
        futures = [
            self.client.submit(
                _measure_part,
                part,
                self.problem,
                shared,
                self.held[part.number] if self.held else None,
                key=f"{self.name}-measure-{self.state.cursor.epoch}-{part.number}-{time.monotonic_ns()}",
                pure=False,
            )
            for part in self.parts
        ]
        measurement.sums = self._sum(futures, rounds.summed)

    def _scores_apart(self, model: Model) -> Iterator[ScoresApart]:
        """What a model says of the rows kept apart."""
        if self.held:
            futures = [
                self.client.submit(rounds.rows_apart, part, model, held, pure=False)
                for part, held in zip(self.parts, self.held, strict=True)
            ]
            for found in self._gather(futures):
                yield from found
            return
        config, store = self.config, self.store
        budget = config.budget(store.features)
        loader = open_loader(store, budget, holdout=config.holdout_fraction, folds=config.folds)
        yield from scores_apart(model, loader.stream(loader.in_order()), loader, config.workers)

    def _measure_the_rest(self) -> None:
        models, candidates = [], []
        for model in self.solver.active:
            if self.state.known[model].primal is None:
                for candidate in self.solver.candidates(model):
                    models.append(model)
                    candidates.append(candidate)
        if candidates:
            measurement = Measurement(self.problem, models, candidates)
            self._measure(measurement)
            self.judge.take(measurement, {})

    # --- what is left behind ----------------------------------------------------------------------

    def _save(self) -> None:
        assert self.place is not None
        solver, state = self.solver, self.state
        with writing_errors(self.place):
            if isinstance(solver, RoundsOfAscent):
                arrays, facts = solver.save_rounds(self._gather(self.states))
            else:
                arrays, facts = solver.save(self.place)
            arrays |= {f"best {model}": weights for model, weights in state.best.items()}
            Checkpoint(
                arrays,
                {
                    "identity": self.identity,
                    "solver_name": self.algorithm,
                    "solver": facts,
                    "cursor": dataclasses.asdict(state.cursor),
                    "known": [dataclasses.asdict(known) for known in state.known],
                    "best": list(state.best),
                    "budget": self.config.memory,
                    "pending": None,
                    "costs": [],
                },
            ).save(self.place)

    def _restore(self, place: Path, saved: Checkpoint) -> None:
        with sound(place):
            self._take_up(place, saved)

    def _take_up(self, place: Path, saved: Checkpoint) -> None:
        check_same_run(place, self.identity, saved, None)
        if saved.facts["solver_name"] != self.algorithm:
            raise DamagedError(f"{place}: of another algorithm; start over without resume")
        if isinstance(self.solver, RoundsOfAscent):
            states: list[AscentState] = self.solver.restore_rounds(saved)
            self.states = self.client.scatter(states, hash=False)
            self.state.restore_knowledge(saved)
        else:
            self.state.restore(place, saved)

    def close(self) -> None:
        """Leave nothing on the workers."""
        with suppress(Exception):
            self.client.cancel([state for state in self.states if state is not None], force=True)
            self.states, self.anchors, self.kept, self.held = [], [], [], []
            self.client.run(data.forget, self.name, on_error="ignore")

    def _result(self, stopped: str) -> TrainResult:
        config, state = self.config, self.state
        outcome = Outcome(self.problem, state, self.store, config)
        model = outcome.model(self.algorithm)
        remark = remark_on(outcome.trials)
        if remark:
            self._note(remark)
        apart = outcome.apart
        if config.calibrate or (outcome.one_vs_rest and config.holdout_fraction):
            model, error = look_at_rows_apart(model, self._scores_apart(model), config)
            apart = {"loss": apart["loss"] if apart else None, "error": error}
        seconds = time.perf_counter() - self.began
        return TrainResult(
            model=model,
            models=outcome.models(),
            trials=outcome.trials,
            converged=stopped == "tolerance",
            certified=all(known.gap is not None for known in state.known),
            stopped_by=stopped,
            seconds=seconds,
            seconds_computing=seconds,
            seconds_waiting=0.0,
            bytes_read=0,
            holdout=apart,
            why_uncertified=None,
            algorithm=self.algorithm,
            why_algorithm=self.why,
            memory=self.parts[0].memory,
            loading="distributed",
            windows=len(self.parts),
            presenters=len(self.parts),
            costs=[],
            notes=self.notes,
            profile={
                "foreground": {},
                "background": {},
                "rounds": {"number": float(state.cursor.epoch), "bytes": float(self.bytes_moved)},
            },
        )


def _same(task: Any) -> Any:
    return task


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _second(pair: tuple[Any, Any]) -> Any:
    return pair[1]


def _measure_part(part: Part, problem: Any, task: tuple[list[int], list[np.ndarray]], held: Held | None) -> np.ndarray:
    return rounds.measure(part, problem, *task, held)


def _bytes_of(task: Any) -> int:
    vectors = task[1] if isinstance(task, tuple) else task.vectors.values()
    return sum(vector.nbytes for vector in vectors)


def _refuse(config: TrainConfig) -> None:
    """Options that only one machine knows."""
    known = ("auto", "sdca", "sgd-s")
    if config.algorithm not in known:
        raise UsageError(f"--algorithm {config.algorithm} runs on one machine; choose {', '.join(known)}")
    if config.bias == "search" or (config.threads or 1) > 1:
        what = "--bias search" if config.bias == "search" else "--threads"
        raise UsageError(f"{what} is for one machine; leave it out")
    if config.of_pegasos:
        raise UsageError(f"{config.of_pegasos[0]} is for one machine; leave it out")
    if config.sampler not in ("permutation", "fixed", "sequential"):
        raise UsageError(f"--sampling {config.sampler} is for one machine; leave it out")
