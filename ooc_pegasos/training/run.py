"""One training run: present, judge, log, checkpoint, stop."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.algorithms import ALGORITHMS, ANY
from ooc_pegasos.compiled.fit.pegasos import BY_SUBGRADIENT, OF_BATCH, square_distance
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.loading.window_schedule import Course
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import Balance, RowSums
from ooc_pegasos.objective.lambda_path import remark_on
from ooc_pegasos.objective.problem import fixed_bias, problem_of
from ooc_pegasos.registry import SAMPLERS
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.proof_record import DualRecord
from ooc_pegasos.solvers.registry import can_take_over, choose_algorithm, make_solver, why_uncertified
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.bias_search import settle_biases
from ooc_pegasos.training.convergence import Judge, reason_of
from ooc_pegasos.training.result import Outcome, RowsApart, TrainResult, check_rows_apart, scores_apart
from ooc_pegasos.training.setup import (
    loader_of,
    no_rows,
    nothing_known_of,
    remark_on_grouping,
    remark_on_projection,
    weights_of,
)
from ooc_pegasos.training.state import Progression, RunState, check_same_run, identity_of, sync_log
from ooc_pegasos.training.stop import Interrupted, OutOfTimeError, Stoppable
from ooc_pegasos.training.timing import Meter
from ooc_pegasos.util.checkpoint import Checkpoint, sound
from ooc_pegasos.util.files import writing_errors
from ooc_pegasos.util.stopwatch import Stopwatch

_STEPS = 10  # the default limit without a certificate
_TRIED = 3  # epochs after which Pegasos, where it was not asked for, makes room unless it is nearly there


class Run(Stoppable):
    """A run on the rows of a store. Checkpoints are kept in `place`; `offsets` are biases that are held fixed.

    With `proof` the dual variables of the model that is kept are written there.
    """

    def __init__(
        self,
        store: Store,
        config: TrainConfig,
        progress: TrainingProgress,
        *,
        warm_start: Model | None = None,
        place: Path | None = None,
        saved: Checkpoint | None = None,
        scratch: Path | None = None,
        offsets: tuple[float, ...] = (),
        proof: Path | None = None,
    ) -> None:
        square_distance(np.empty(0), np.empty(0), 1.0)  # numba gets itself ready at the first call, as an import does
        self.began = self.last_checkpoint = time.perf_counter()
        self.store, self.config, self.place, self.progress = store, config, place, progress
        self.scratch = scratch or place or Path(tempfile.gettempdir())
        self.log: io.FileIO | None = None
        self.notes: list[str] = []
        self.watch, self.background = Stopwatch(), Stopwatch()
        self._row_sums: RowSums | None = None
        self.loader = loader_of(config, store, max(len(offsets), 1), saved, place, self.background)
        self.rows = self.loader.training_rows
        self.problem = problem_of(config, store, self.loader)
        if config.calibrate and store.manifest.labels.task == "binary":
            check_rows_apart(store, self.loader)
        if offsets:
            self.problem = fixed_bias(self.problem, offsets)
        self.start = weights_of(warm_start, config, self.problem)
        self.algorithm, self.why_algorithm = choose_algorithm(config, self.problem, self.start is not None)
        self.why_uncertified = why_uncertified(config, self.algorithm)
        if proof and self.why_uncertified:
            raise UsageError(f"{{proof}}: {self.why_uncertified}; leave it out, or change that")
        if proof and not self.problem.loss.is_built_in:
            raise UsageError(f"{{proof}} is for built-in losses, not {{loss={self.problem.loss.name}}}; leave it out")
        self.proof = proof
        self.record = DualRecord(store, self.problem, self.scratch) if proof else None
        self.identity = identity_of(config, store, self.start)
        self.state = self._begin(saved)
        self.judge = Judge(self.state, config, self.loader.shape.fits, str(store.path))
        self.course = Course(self.loader, SAMPLERS[config.sampler], config.seed, self.watch)
        self.meter = Meter(self.watch, lambda: self.loader.bytes_read)
        remarks = (remark_on_grouping(config, store, self.loader), remark_on_projection(config, store, self.problem))
        for remark in filter(None, remarks):
            self._note(remark)

    def _begin(self, saved: Checkpoint | None) -> RunState:
        """Nothing, or what was saved."""
        place = self.place
        if saved is None or place is None:
            return self._nothing_known()
        with sound(place):
            check_same_run(place, self.identity, saved, self.config.memory)
            if saved.facts["solver_name"] != self.algorithm and self.fallback:
                self._switched()
        state = self._nothing_known()
        try:
            with sound(place):
                state.restore(place, saved)
        except BaseException:
            state.solver.close()
            raise
        return state

    def _nothing_known(self) -> RunState:
        known = [nothing_known_of(spec, self.problem, self.algorithm) for spec in self.problem.specs]
        return RunState(self.problem, self._new_solver(), known)

    def _new_solver(self) -> Solver:
        solver, remark = make_solver(self.config, self.algorithm, self.problem, self.loader, self.start, self.scratch)
        if remark:
            self._note(remark)
        solver.record = self.record
        return solver

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.note(text)

    def close(self) -> None:
        """Give back what is kept on disk for this run alone."""
        self.state.solver.close()
        if self.record:
            self.record.close()

    def _look_up(self) -> None:
        """Stop if somebody wants that; asked between two pieces of work, when the state can be saved."""
        if self.stop_asked:
            if self.place:
                self._save_checkpoint()
            raise Interrupted
        if self.config.max_seconds and time.perf_counter() - self.began > self.config.max_seconds:
            raise OutOfTimeError

    # --- the loop ---------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Epoch after epoch, until every model has a reason to leave."""
        limit = self.config.max_epochs or self._limit()
        stopped = ""
        try:
            while not (stopped := self._reason_to_stop(limit)):
                self._epoch(limit)
        except OutOfTimeError:
            stopped = "seconds"
            if self.place:
                self._save_checkpoint()
        finally:
            self.course.close()
        self._measure_the_rest(stopped)
        self.loader.check_unchanged()
        return self._result(stopped)

    def _limit(self) -> int:
        if self.why_uncertified:
            return _STEPS
        algorithms = {self.algorithm} | ({self.fallback} if self._may_switch() else set())
        return max(ALGORITHMS[name].default_epochs for name in algorithms)

    def _reason_to_stop(self, limit: int) -> str:
        state = self.state
        if not state.solver.active:
            return reason_of(state.known)
        if state.cursor.epoch >= limit and not state.cursor.presented:
            return "epochs"
        return ""

    def _repeats(self) -> dict[int, int]:
        """Multiple updates, equation (6), for models whose gap is large."""
        repeats = ALGORITHMS[self.algorithm].repeats
        if repeats == 1:
            return {}
        return {model: repeats for model in self.state.solver.active if self._is_far(self.state.known[model])}

    def _is_far(self, known: Progression) -> bool:
        gap = known.history[-1]["estimated_gap"] if known.history else 0.0
        return gap is None or gap > 5 * self.config.enough

    def _epoch(self, limit: int) -> None:
        """Present what is left of an epoch, and say what is known at its end."""
        state = self.state
        cursor = state.cursor
        if not cursor.begun:
            cursor.begun = True
            state.solver.begin_epoch(self._repeats())
        number = len(self.course.plans(cursor.epoch))
        if cursor.epoch == 0 and cursor.window < number:
            threading.Thread(target=self._load_kernels, daemon=True).start()  # while data is read
        self._look_at_rows()
        while cursor.window < number:
            self._present(self.course.next(cursor, limit, self._look_up))
            self.loader.check_unchanged()
            cursor.window, cursor.position = cursor.window + 1, 0
        with self.watch.measuring("bounding the optimum"):
            state.solver.end_epoch()
        entries = self._judge(last=cursor.epoch + 1 >= limit)
        state.costs.append(self.meter.epoch(cursor.epoch + 1, state.costs))
        self._write_log(entries)
        self._let_go()
        cursor.epoch += 1
        cursor.window = cursor.position = cursor.presented = 0
        cursor.begun = cursor.marked = False
        if self._wants_checkpoint(after_epoch=True):
            self._save_checkpoint()

    def _judge(self, last: bool) -> list[dict[str, Any]]:
        active = list(self.state.solver.active)
        check = partial(self._check, may_stop=True)
        entries = self.judge.judge(
            last, partial(self._measure_now, may_stop=True), partial(self.course.everything, check)
        )
        if len(self.problem.specs) > 1:
            entries = [{"model": model, **entry} for model, entry in zip(active, entries, strict=True)]
        self.progress.epoch_done(_worst(entries), self.config.enough)
        return entries

    def _let_go(self) -> None:
        """Models that are done leave the pass; and Pegasos, where it was not asked for, makes room if it is slow."""
        state = self.state
        self.judge.let_go()
        if self._may_switch() and self._is_slow():
            active = state.solver.active
            state.solver.close()
            self._switched()
            if self.record:
                self.record.forget_sums()
            solver = self._new_solver()
            solver.drop([model for model in solver.active if model not in active])
            state.solver = solver

    @property
    def fallback(self) -> str:
        """The algorithm to change to, or nothing."""
        return ALGORITHMS[self.algorithm].fallback

    def _may_switch(self) -> bool:
        """True if the algorithm has a fallback that could go on from here, and supports what was asked for."""
        config = self.config
        if not self.fallback or config.algorithm != ANY or config.threads not in (None, 1):
            return False
        return can_take_over(self.fallback, config, self.problem, self.start is not None)

    def _is_slow(self) -> bool:
        histories = [self.state.known[model].history for model in self.state.solver.active]
        gaps = [history[-1]["estimated_gap"] for history in histories if len(history) >= _TRIED]
        return any(gap is not None and gap > 2 * self.config.enough for gap in gaps)

    def _switched(self) -> None:
        self.algorithm = self.fallback
        self.why_algorithm = f"after {_TRIED} epochs of Pegasos the tolerance was far"
        self._note(f"going on by dual coordinate ascent: {self.why_algorithm}")

    def _load_kernels(self) -> None:
        """Call the kernels with no rows, so that they are ready when the rows are."""
        with suppress(LookupError):  # models that leave meanwhile
            self.state.solver.warm_up(no_rows(self.store))

    def _present(self, window: Window) -> None:
        """Present the rest of a window slice by slice."""
        state = self.state
        cursor, solver, order = state.cursor, state.solver, window.order
        pending = state.pending
        if pending and pending.windows == cursor.window:
            with self.watch.measuring("measuring the objective"):
                pending.add(window, self.loader, self.config.workers, self._look_up)
        if solver.wants_balance and self.loader.shape.fits:
            self._weigh([window])
        with self.watch.measuring("fetching what is kept of rows"):
            solver.enter(window)
        batch = solver.batch_size
        step = -(-solver.rows_at_a_time(window.block) // batch) * batch
        half = self.rows // 2
        while cursor.position < len(order):
            end = min(cursor.position + step, len(order))
            before_half = (half - cursor.presented) // batch * batch
            if solver.wants_mark and 0 < before_half < end - cursor.position:
                end = cursor.position + before_half
            with self.watch.measuring("presenting rows"):
                bad = solver.present(window, cursor.position, end)
            if bad >= 0:
                self.loader.check_unchanged()
                raise self.loader.damaged(window, bad)
            cursor.presented += end - cursor.position
            cursor.position = end
            if solver.wants_mark and not cursor.marked and cursor.presented + batch > half:
                solver.mark()
                cursor.marked = True
            self.progress.presented(cursor.epoch, cursor.presented, self.rows)
            if self._wants_checkpoint():
                self._save_checkpoint()
            if cursor.presented < self.rows or self.stop_asked:
                self._look_up()
        with self.watch.measuring("fetching what is kept of rows"):
            solver.leave(window)

    # --- a bias that is not regularised -------------------------------------------------------------

    def _look_at_rows(self) -> None:
        """Find sums over all rows, in a pass of their own if the store is more than one window."""
        if self.state.solver.wants_balance and not self.loader.shape.fits:
            with closing(self.course.everything(self._look_up)) as windows:
                self._weigh(windows)
            self.loader.check_unchanged()

    def _weigh(self, windows: Iterable[Window]) -> None:
        labels, solver = self.store.manifest.labels, self.state.solver
        if self._row_sums is None:
            found = RowSums.of(self.problem, len(labels.classes), self.config.folds)
            with self.watch.measuring("adding up rows"):
                for window in windows:
                    found.add(window)
            self._row_sums = found
        solver.balance = Balance(self.problem, self._row_sums)
        solver.place_centres()

    # --- objectives ---------------------------------------------------------------------------------

    def _measure_now(self, measurement: Measurement, may_stop: bool) -> None:
        """A pass over all rows: those in memory, or all of the store, read in order."""
        check = partial(self._check, may_stop)
        with closing(self.course.everything(check)) as windows:
            for window in windows:
                with self.watch.measuring("measuring the objective"):
                    measurement.add(window, self.loader, self.config.workers, check)
                self.loader.check_unchanged()

    def _check(self, may_stop: bool) -> None:
        if self.stop_asked or may_stop:
            self._look_up()

    def _measure_the_rest(self, stopped: str) -> None:
        """Measure models of which nothing is known yet, or not their last, since time ran out."""
        state = self.state
        late = stopped == "seconds" and self.why_uncertified is not None
        models, candidates = [], []
        for model in state.solver.active:
            if state.known[model].primal is None or late:
                for candidate in state.solver.candidates(model):
                    models.append(model)
                    candidates.append(candidate)
        if candidates:
            measurement = Measurement(self.problem, models, candidates)
            self._measure_now(measurement, may_stop=False)
            self.judge.take(measurement, {})
        if self.problem.free in (BY_SUBGRADIENT, OF_BATCH):
            measure = partial(self._measure_now, may_stop=False)
            settle_biases(state, lambda: self.course.everything(lambda: None), measure)

    # --- what is left behind ----------------------------------------------------------------------

    def _result(self, stopped: str) -> TrainResult:
        config = self.config
        outcome = Outcome(self.problem, self.state, self.store, config)
        model = outcome.model(self.algorithm)
        remark = remark_on(outcome.trials)
        if remark:
            self._note(remark)
        apart = outcome.apart
        if config.calibrate or (outcome.one_vs_rest and config.holdout_fraction):
            with closing(self.course.everything(lambda: None)) as windows, self.watch.measuring("calibrating"):
                found = RowsApart(model, config.calibrate is not None)
                found.take(scores_apart(model, windows, self.loader, config.workers))
                model, error = found.look(model, config)
            self.loader.check_unchanged()
            apart = {"loss": apart["loss"] if apart else None, "error": error}
        if self.proof and self.record:
            with self.watch.measuring("writing the proof"):
                outcome.write_proof(self.proof, model, self.record)
        known = self.state.known
        now, computing, waiting, bytes_read = self.meter.spent()
        return TrainResult(
            model=model,
            models=outcome.models(),
            trials=outcome.trials,
            converged=stopped == "tolerance",
            certified=all(one.gap is not None for one in known),
            stopped_by=stopped,
            seconds=now - self.began,
            seconds_computing=computing,
            seconds_waiting=waiting,
            bytes_read=bytes_read,
            holdout=apart,
            why_uncertified=self.why_uncertified,
            algorithm=self.algorithm,
            why_algorithm=self.why_algorithm,
            memory=self.loader.shape.budget,
            loading=self.loader.name,
            windows=len(self.course.plans(0)),
            presenters=self.state.solver.threads,
            costs=self.state.costs,
            notes=self.notes,
            profile={"foreground": self.watch.seconds, "background": self.background.seconds},
        )

    def _write_log(self, entries: list[dict[str, Any]]) -> None:
        if self.log:
            costs, elapsed = self.state.costs[-1].table(), time.perf_counter() - self.began
            lines = [json.dumps({**entry, **costs, "elapsed": elapsed}) + "\n" for entry in entries]
            content = memoryview("".join(lines).encode())
            with writing_errors(Path(str(self.log.name))):
                while content:
                    content = content[self.log.write(content) :]

    def _wants_checkpoint(self, after_epoch: bool = False) -> bool:
        if self.place is None:
            return False
        every = self.config.checkpoint_epochs
        if after_epoch and every and self.state.cursor.epoch % every == 0:
            return True
        return time.perf_counter() - self.last_checkpoint > 60 * self.config.checkpoint_minutes

    def _save_checkpoint(self) -> None:
        assert self.place is not None
        with self.watch.measuring("writing checkpoints"):
            self.loader.check_unchanged()
            sync_log(self.log)
            self.state.save(self.place, self.identity, self.loader.shape.budget)
        self.last_checkpoint = time.perf_counter()


def _worst(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of the model that is farthest from its tolerance, and how many there are."""
    return {**max(entries, key=lambda entry: entry["estimated_gap"] or 0.0), "models": len(entries)}
