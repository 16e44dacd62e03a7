"""The loop on the client: a round of all parts, a judgement as on one machine, a checkpoint."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.distributed import cluster, worker_round
from ooc_pegasos.distributed import store_parts as data
from ooc_pegasos.distributed.client_solvers import Rounds, RoundsOfAscent, RoundsOfDescent
from ooc_pegasos.distributed.collections import RowsOfParts
from ooc_pegasos.distributed.store_parts import Part
from ooc_pegasos.distributed.worker_pool import Crew
from ooc_pegasos.distributed.worker_round import Packed, Question
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import Balance, RowSums
from ooc_pegasos.objective.lambda_path import remark_on
from ooc_pegasos.objective.problem import count_models, problem_of
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.pegasos_group import Manner
from ooc_pegasos.solvers.pegasos_threads import LEAST
from ooc_pegasos.solvers.registry import choose_algorithm, options_of, refuse_of_classes
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.convergence import Judge, reason_of
from ooc_pegasos.training.result import Outcome, TrainResult
from ooc_pegasos.training.setup import check_rows, weights_of
from ooc_pegasos.training.state import Progression, RunState, check_same_run, identity_of, sync_log
from ooc_pegasos.training.stop import Interrupted, OutOfTimeError, Stoppable
from ooc_pegasos.training.timing import EpochCost
from ooc_pegasos.util.checkpoint import Checkpoint, sound
from ooc_pegasos.util.files import writing_errors
from ooc_pegasos.util.memory_limits import peak_rss

_ROUNDS_OF_ASCENT, _ROUNDS_OF_DESCENT = 2000, 100
_ENTRIES_A_ROUND, _MOST_PASSES = 1 << 21, 4
"""Where parts are small a round costs more than a pass, so more passes are made in it."""
_TRIED = 3
"""Rounds after which Pegasos, where it was not asked for, makes room unless it is nearly there."""
_GROUPED = 0.1
"""Share of the variance of labels that is between chunks, from which on they count as grouped."""


class Noted(TrainingProgress):
    """Progress that remembers its notes."""

    def __init__(self, shown: TrainingProgress) -> None:
        self.notes: list[str] = []
        self._shown = shown

    def presented(self, epoch: int, rows: int, total: int) -> None:
        self._shown.presented(epoch, rows, total)

    def epoch_done(self, entry: dict[str, Any], tolerance: float) -> None:
        self._shown.epoch_done(entry, tolerance)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._shown.note(text)


@dataclass(frozen=True)
class Given:
    """What a run is given."""

    began: float
    """When, by `time.perf_counter`: what is made of a collection before counts as well."""
    client: Any
    store: Store
    rows: RowsOfParts | None
    """Those of parts, if they are in no store."""
    config: TrainConfig
    parts: int | None
    memory: int | None
    passes: int | None
    warm_start: Model | None
    place: Path | None
    saved: Checkpoint | None
    progress: Noted


class Run(Stoppable):
    """One run."""

    def __init__(self, given: Given) -> None:
        self.began = given.began
        self.given = given
        store, config = given.store, given.config
        self.store, self.config, self.place, self.progress = store, config, given.place, given.progress
        self.log: io.FileIO | None = None
        self._saving = self._ending = False
        self._row_sums: RowSums | None = None
        count_models(config, store)
        # of the whole store, of which nothing is read here
        self.loader = open_loader(store, 1 << 62, holdout=config.holdout_fraction, folds=config.folds)
        check_rows(config, store, self.loader)
        self.problem = problem_of(config, store, self.loader)
        self.start = weights_of(given.warm_start, config, self.problem)
        self.parts = self._cut()
        self.crew = Crew(given.client, self.parts, given.rows, self._look_up, given.progress.note)
        entries = store.nonzeros // len(self.parts)
        self.passes = given.passes or max(1, min(_MOST_PASSES, _ENTRIES_A_ROUND // max(entries, 1)))
        self.identity = identity_of(config, store, self.start) | {
            "parts": [len(self.parts), self.parts[0].memory, self.passes],
        }

    def _cut(self) -> list[Part]:
        given, config, store = self.given, self.config, self.store
        workers = cluster.workers_of(given.client)
        number = given.parts or sum(worker.threads for worker in workers)
        bounds = data.cut(store, len(store.manifest.chunks) if given.rows else number)
        if len(bounds) < number:
            made = "collection has {} partitions with rows" if given.rows else "store has {} chunks"
            hint = "" if given.rows else "; convert with a smaller --chunk-size"
            self.progress.note(f"the {made.format(len(bounds))}, so there are no more parts{hint}")
        together = -(-len(bounds) // len(workers))
        memory = given.memory or cluster.memory_of_parts(workers, together)
        remade = given.rows is not None and given.rows.at_a_time is not None
        open_at_once = 0 if remade else together if all(worker.alone for worker in workers) else len(bounds)
        return data.parts_of(store, config, bounds, memory, self.loader.folds.to_present, open_at_once)

    def begin(self, scratch: Path | None) -> None:
        """Make ready, from a checkpoint if there is one."""
        config, saved, place = self.config, self.given.saved, self.place
        self.scratch = scratch
        self.algorithm, self.why = self._choose()
        refuse_of_classes(config, self.algorithm, self.problem)
        if saved and place:
            with sound(place):
                check_same_run(place, self.identity, saved, None)
                if saved.facts["solver_name"] != self.algorithm:
                    self._switched()
        known = [Progression() for _spec in self.problem.specs]
        self.state = RunState(self.problem, self._new_solver(), known)
        if saved and place:
            with sound(place):
                self.state.restore(place, saved)
        self.judge = Judge(self.state, config, True, str(self.store.path))
        if self.store.manifest.shuffle_seed is None and self.store.manifest.grouping_by_label() > _GROUPED:
            problem = f"the rows of {self.store.path} stand grouped by label, so parts see few labels each"
            self.progress.note(f"{problem}, which slows the training; put them in random order first")

    def _choose(self) -> tuple[str, str]:
        """(the algorithm, why), where the user leaves it open."""
        algorithm, why = choose_algorithm(self.config, self.problem, self.start is not None)
        least = min(spec.clock for spec in self.problem.specs)
        open_ = self.config.algorithm == "auto" and self.start is None and self.problem.costs is None
        if open_ and algorithm == "sgd-s" and least / len(self.parts) < LEAST:
            return "sdca", f"lambda times rows is {least:.3g}, too little for averages of {len(self.parts)} parts"
        return algorithm, why

    def _new_solver(self) -> Rounds:
        config, problem = self.config, self.problem
        if self.algorithm == "sdca":
            if self.start is not None:
                raise UsageError("{warm_start} begins with weights, of which sdca makes no use; choose sgd-s")
            if self._no_room():
                advice = "give more workers or memory, fewer lambdas at once, or {algorithm=sgd-s}"
                raise InputError(f"{self._no_room()}; {advice}")
            rows = RowStates(self.store, problem.bias, True, None)
            made = RoundsOfAscent(problem, rows, config.enough, self.crew, self.passes)
            chunks = self.store.manifest.chunks
            made.keep_in(
                self.scratch, [sum(chunk.rows for chunk in chunks[part.first : part.end]) for part in self.parts]
            )
            return made
        options = options_of(config, "sgd-s", problem, self.start)
        options = [dataclasses.replace(one, average=False) for one in options]  # of iterates that are elsewhere
        return RoundsOfDescent(problem, options, Manner("sgd-s", certified=True), self.start, self.crew)

    def _no_room(self) -> str | None:
        return cluster.room_problem(self.given.client, self.parts, self.store, len(self.problem.specs))

    # --- the loop ---------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Round after round, until every model has a reason to leave."""
        default = _ROUNDS_OF_ASCENT if self.algorithm == "sdca" or self._may_switch() else _ROUNDS_OF_DESCENT
        limit = self.config.max_epochs or default
        self.last_checkpoint = time.perf_counter()
        try:
            while not (stopped := self._reason_to_stop(limit)):
                self._round(last=self.state.cursor.epoch + 1 >= limit)
        except OutOfTimeError:
            stopped = "seconds"
            self._save()
        except Interrupted:
            self._save()
            raise
        self._measure_the_rest()
        return self._result(stopped)

    def _look_up(self, rows: int) -> None:
        """Stop if somebody wants that; asked while workers are at work, when nothing here changes."""
        if self._saving:
            return
        if rows:
            self.progress.presented(self.state.cursor.epoch, rows, self.loader.training_rows)
        if self.stop_asked:
            raise Interrupted
        seconds = time.perf_counter() - self.began
        if self.config.max_seconds and seconds > self.config.max_seconds and not self._ending:
            raise OutOfTimeError

    def _reason_to_stop(self, limit: int) -> str:
        state = self.state
        if not state.solver.active:
            return reason_of(state.known)
        if state.cursor.epoch >= limit and not state.cursor.presented:
            return "epochs"
        self._look_up(0)
        return ""

    def _round(self, last: bool) -> None:
        """A round of all parts, and what is known at its end."""
        state, cursor = self.state, self.state.cursor
        began, moved = time.perf_counter(), self.crew.bytes_moved
        solver = state.solver
        assert isinstance(solver, Rounds)
        if solver.wants_balance:
            self._weigh(solver)
        if not cursor.begun:
            cursor.begun = True
            solver.begin_epoch()
        if not cursor.presented:
            solver.round(cursor.epoch)
            cursor.presented = self.loader.training_rows
        solver.end_epoch()
        active = list(solver.active)
        entries = self.judge.judge(last, self._measure, lambda: iter(()))  # workers have the rows
        if len(self.problem.specs) > 1:
            entries = [{"model": model, **entry} for model, entry in zip(active, entries, strict=True)]
        self._let_go()
        cursor.epoch, cursor.presented, cursor.begun = cursor.epoch + 1, 0, False
        self._tell(entries, time.perf_counter() - began, self.crew.bytes_moved - moved)
        every = self.config.checkpoint_epochs
        due = time.perf_counter() - self.last_checkpoint > 60 * self.config.checkpoint_minutes
        if due or (every and cursor.epoch % every == 0):
            self._save()

    def _tell(self, entries: list[dict[str, Any]], seconds: float, moved: int) -> None:
        """What a round has shown and cost."""
        cost = EpochCost(self.state.cursor.epoch, seconds, seconds, 0.0, 0, 0.0, peak_rss())
        self.state.costs.append(cost)
        if self.log:
            more = {**cost.table(), "bytes_moved": moved, "elapsed": time.perf_counter() - self.began}
            with writing_errors(Path(str(self.log.name))):
                content = memoryview("".join(json.dumps({**entry, **more}) + "\n" for entry in entries).encode())
                while content:
                    content = content[self.log.write(content) :]
        worst = max(entries, key=lambda entry: entry["estimated_gap"] or 0.0)
        self.progress.epoch_done({**worst, "models": len(entries)} if len(entries) > 1 else worst, self.config.enough)

    def _let_go(self) -> None:
        """Models that are done leave; and Pegasos, where it was not asked for, makes room if it is slow."""
        state = self.state
        self.judge.let_go()
        if self.algorithm != "sdca" and self._may_switch() and self._is_slow() and not self._no_room():
            active = state.solver.active
            self._switched()
            state.solver = self._new_solver()
            state.solver.drop([model for model in state.solver.active if model not in active])

    def _may_switch(self) -> bool:
        """Whether dual coordinate ascent could go on from here."""
        return self.config.algorithm == "auto" and self.start is None and self.problem.costs is None

    def _is_slow(self) -> bool:
        histories = [self.state.known[model].history for model in self.state.solver.active]
        gaps = [history[-1]["estimated_gap"] for history in histories if len(history) >= _TRIED]
        return any(gap is not None and gap > 2 * self.config.enough for gap in gaps)

    def _switched(self) -> None:
        self.algorithm = "sdca"
        self.why = f"after {_TRIED} rounds of Pegasos the tolerance was far"
        self.progress.note(f"going on by dual coordinate ascent: {self.why}")

    def _weigh(self, solver: Rounds) -> None:
        """Find what a bias that is not regularised needs: sums over all rows."""
        if self._row_sums is None:
            asked = worker_round.Sums(self.problem, len(self.store.manifest.labels.classes), self.config.folds)
            self._row_sums = self.crew.insistently(
                lambda: self.crew.summed(
                    self.crew.everywhere("sum-rows", worker_round.sum_rows, asked), worker_round.summed
                )
            )
        solver.balance = Balance(self.problem, self._row_sums)
        solver.place_centres()

    # --- objectives -------------------------------------------------------------------------------

    def _measure(self, measurement: Measurement) -> None:
        """The sums of all parts."""
        vectors = {number: Packed.of(vector) for number, vector in enumerate(measurement.candidates)}
        asked = Question(self.problem, measurement.models, vectors, measurement.twice)
        measurement.sums = self.crew.insistently(
            lambda: self.crew.summed(self.crew.everywhere("measure", worker_round.measure, asked), worker_round.summed)
        )

    def _measure_the_rest(self) -> None:
        """Measure models of which nothing is known yet, since time ran out."""
        self._ending = True
        models, candidates = [], []
        for model in self.state.solver.active:
            if self.state.known[model].primal is None:
                for candidate in self.state.solver.candidates(model):
                    models.append(model)
                    candidates.append(candidate)
        if candidates:
            measurement = Measurement(self.problem, models, candidates)
            self._measure(measurement)
            self.judge.take(measurement, {})

    # --- what is left behind ----------------------------------------------------------------------

    def _save(self) -> None:
        """Write a checkpoint, if there is a place for one."""
        if self.place is None:
            return
        self._saving = True
        sync_log(self.log)
        self.state.save(self.place, self.identity, self.parts[0].memory)
        self.last_checkpoint, self._saving = time.perf_counter(), False

    def close(self) -> None:
        """Leave nothing on the workers, and no files."""
        if hasattr(self, "state"):
            self.state.solver.close()
        self.crew.close()

    def _result(self, stopped: str) -> TrainResult:
        config, state, crew = self.config, self.state, self.crew
        outcome = Outcome(self.problem, state, self.store, config)
        model = outcome.model(self.algorithm)
        remark = remark_on(outcome.trials)
        if remark:
            self.progress.note(remark)
        apart = outcome.apart
        if config.calibrate or (outcome.one_vs_rest and config.holdout_fraction):
            asked, scored = (model, config.calibrate is not None), model
            found = crew.insistently(
                lambda: crew.summed(
                    crew.everywhere("rows-apart", worker_round.look_at_rows_apart, asked), worker_round.rows_together
                )
            )
            model, error = found.look(scored, config)
            apart = {"loss": apart["loss"] if apart else None, "error": error}
        seconds = time.perf_counter() - self.began
        waiting = crew.seconds_waiting
        return TrainResult(
            model=model,
            models=outcome.models(),
            trials=outcome.trials,
            converged=stopped == "tolerance",
            certified=all(known.gap is not None for known in state.known),
            stopped_by=stopped,
            seconds=seconds,
            seconds_computing=waiting,
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
            costs=state.costs,
            notes=self.progress.notes,
            profile={
                "foreground": {"waiting for the workers": waiting, "adding up, judging": seconds - waiting},
                "background": {},
                "rounds": {"number": float(state.cursor.epoch), "bytes": float(crew.bytes_moved)},
            },
        )
