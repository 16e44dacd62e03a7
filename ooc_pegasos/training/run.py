"""The epoch loop of a training run, on one machine or several: train, check convergence, log, save, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc_pegasos.algorithms import ALGORITHMS, ANY
from ooc_pegasos.compiled.fit.pegasos import BY_BATCH, BY_SUBGRADIENT
from ooc_pegasos.errors import UsageError
from ooc_pegasos.objective.lambda_path import remark_on
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.reporting.history import HoldoutResult
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.proof_record import DualRecord
from ooc_pegasos.solvers.registry import can_take_over, why_uncertified
from ooc_pegasos.training.bias_search import optimize_biases
from ooc_pegasos.training.convergence import Judge, reason_of
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.holdout import HoldoutRequest
from ooc_pegasos.training.result import Outcome, TrainResult
from ooc_pegasos.training.setup import Algorithm, RunSetup
from ooc_pegasos.training.state import Progression, RunState, check_same_run, identity_of
from ooc_pegasos.training.stop import Interrupted, OutOfTimeError
from ooc_pegasos.util.checkpoint import Checkpoint, sound

_UNCERTIFIED_EPOCHS = 10  # default limit without a certificate
_SWITCH_AFTER = 3  # epochs after which slow Pegasos is replaced if `algorithm` is auto


@dataclass(frozen=True)
class Proof:
    """The file of a proof, and the folder for dual variables while the run trains."""

    path: Path
    scratch: Path


@dataclass
class CheckpointFolder:
    """The folder of the checkpoints, and the identity of the run that writes them."""

    folder: Path
    identity: dict[str, Any]
    written: float
    """Time of the last checkpoint, or of the beginning of the run."""


class Run:
    """A training run. Its checkpoints are written to `checkpoint_folder`; `saved` is the checkpoint that is resumed."""

    def __init__(
        self,
        setup: RunSetup,
        engine: Engine,
        *,
        checkpoint_folder: Path | None = None,
        saved: Checkpoint | None = None,
        proof: Proof | None = None,
    ) -> None:
        self.setup, self.engine, self.proof = setup, engine, proof
        self.stop, self.report = engine.stop, engine.report
        self.algorithm = engine.choose_algorithm()
        if proof and self.why_uncertified:
            raise UsageError(f"{{proof}}: {self.why_uncertified}; leave it out, or change that")
        name = setup.problem.loss.name
        if proof and not LOSSES.is_built_in(name):
            raise UsageError(f"{{proof}} is for built-in losses, not {{loss={name}}}; leave it out")
        self.record = DualRecord(setup.store, setup.problem, proof.scratch) if proof else None
        identity = identity_of(setup.config, setup.store, setup.start) | engine.identity()
        self.checkpoints = (
            CheckpointFolder(checkpoint_folder, identity, time.perf_counter()) if checkpoint_folder else None
        )
        self.complete: Callable[[Model], Model] | None = None
        """Adds what is known outside the run to its model, before a proof refers to it."""
        self.state = self._begin(saved)
        self.judge = Judge(self.state, setup.config, engine, str(setup.store.path))
        for remark in engine.remarks():
            self.report.note(remark)

    @property
    def why_uncertified(self) -> str | None:
        """The reason for which there is no certificate, or None."""
        return why_uncertified(self.setup.config, self.algorithm.name)

    def _begin(self, saved: Checkpoint | None) -> RunState:
        """Return the state of a new run, or of the checkpoint."""
        if saved is None or self.checkpoints is None:
            return self._new_state()
        checkpoint_folder = self.checkpoints.folder
        with sound(checkpoint_folder):
            check_same_run(checkpoint_folder, self.checkpoints.identity, saved, self.engine.requested_memory)
            if saved.facts["solver_name"] != self.algorithm.name and self.fallback:
                self._switch_algorithm()
        state = self._new_state()
        try:
            with sound(checkpoint_folder):
                state.restore(checkpoint_folder, saved)
        except BaseException:
            state.solver.close()
            raise
        return state

    def _new_state(self) -> RunState:
        problem = self.setup.problem
        progress = [self.engine.new_progression(spec, self.algorithm.name) for spec in problem.specs]
        return RunState(problem, self._new_solver(), progress)

    def _new_solver(self) -> Solver:
        solver = self.engine.new_solver(self.algorithm.name)
        solver.record = self.record
        return solver

    def close(self) -> None:
        """Remove temporary files. The engine is not closed."""
        self.state.solver.close()
        if self.record:
            self.record.close()

    # --- the loop ---------------------------------------------------------------------------------

    def execute(self) -> TrainResult:
        """Train epoch after epoch until every model is finished, or a limit is reached."""
        stopped = self._train()
        self.stop.allow_more_time()
        try:
            self._measure_remaining(stopped)
        except Interrupted:
            self.save_checkpoint()
            raise
        self.engine.check_unchanged()
        return self.result(stopped)

    def _train(self) -> str:
        """Return the reason for the end: that of the models, "epochs" or "seconds"."""
        try:
            while not (stopped := self._reason_to_stop(self._limit())):
                self._epoch(self._limit())
            return stopped
        except OutOfTimeError:
            self.save_checkpoint()
            return "seconds"
        except Interrupted:
            self.save_checkpoint()
            raise
        finally:
            self.engine.end_training()

    def _limit(self) -> int:
        """Return the number of epochs at which training ends."""
        return self.setup.config.max_epochs or self._default_limit()

    def _horizon(self) -> int:
        """Return an upper bound on the number of epochs, up to which rows may be read ahead."""
        return self._limit()

    def _default_limit(self) -> int:
        if self.why_uncertified:
            return _UNCERTIFIED_EPOCHS
        names = {self.algorithm.name} | ({self.fallback} if self._may_switch() else set())
        return min(max(ALGORITHMS[name].default_epochs for name in names), self.engine.most_epochs)

    def _reason_to_stop(self, limit: int) -> str:
        state = self.state
        if not state.solver.active:
            return reason_of(state.progress)
        if state.cursor.epoch >= limit and not state.cursor.presented:
            return "epochs"
        return ""

    def _epoch(self, limit: int) -> None:
        """Train the rows that are left of an epoch, judge the models, and report the results."""
        state, config = self.state, self.setup.config
        cursor = state.cursor
        if not cursor.begun:
            cursor.begun = True
            state.solver.begin_epoch(self._repeats())
        self.engine.train_pass(state, self._horizon(), self._save_if_due)
        with self.engine.watch.measuring("bounding the optimum"):
            state.solver.end_epoch()
        records = self.judge.judge(last=cursor.epoch + 1 >= limit)
        cost = self.engine.epoch_cost(cursor.epoch + 1, state.costs)
        state.costs.append(cost)
        self.report.epoch_done(
            records,
            len(state.progress) > 1,
            lambda: {**cost.table(), **self.engine.traffic(), "elapsed": self.stop.seconds},
            config.enough,
        )
        self._finish_models()
        self._replace_slow_pegasos()
        cursor.epoch += 1
        cursor.window = cursor.piece = cursor.position = cursor.presented = 0
        cursor.begun = cursor.marked = False
        if config.checkpoint_epochs and cursor.epoch % config.checkpoint_epochs == 0:
            self.save_checkpoint()
        else:
            self._save_if_due()

    def _finish_models(self) -> None:
        """Remove the models that are finished from the next passes."""
        self.judge.remove_finished()

    @property
    def is_search(self) -> bool:
        """True if the run itself looks for the best lambda."""
        return False

    @property
    def lines(self) -> int:
        """The number of records of models at the ends of epochs, which is the number of lines of the log."""
        return self.state.epochs

    def _repeats(self) -> dict[int, int]:
        """Return the number of updates, equation (6), for models whose gap is large."""
        repeats = ALGORITHMS[self.algorithm.name].repeats
        if repeats == 1:
            return {}
        return {model: repeats for model in self.state.solver.active if self._is_far(self.state.progress[model])}

    def _is_far(self, progress: Progression) -> bool:
        gap = progress.estimated_gap if progress.history else 0.0
        return gap is None or gap > 5 * self.setup.config.enough

    # --- from Pegasos to dual coordinate ascent -----------------------------------------------------

    def _replace_slow_pegasos(self) -> None:
        """Replace slow Pegasos by dual coordinate ascent, if `algorithm` is auto."""
        if not self._may_switch() or not self.is_slow() or self.engine.memory_problem():
            return
        state = self.state
        active = state.solver.active
        state.solver.close()
        self._switch_algorithm()
        if self.record:
            self.record.forget_sums()
        state.solver = self._new_solver()
        state.solver.drop([model for model in state.solver.active if model not in active])

    @property
    def fallback(self) -> str:
        """The algorithm to change to, or ""."""
        return ALGORITHMS[self.algorithm.name].fallback

    def _may_switch(self) -> bool:
        """True if the algorithm has a fallback that could continue here with all options that were given."""
        config, setup = self.setup.config, self.setup
        if not self.fallback or config.algorithm != ANY or config.threads not in (None, 1):
            return False
        return can_take_over(self.fallback, config, setup.problem, setup.start is not None)

    def is_slow(self) -> bool:
        progress = [self.state.progress[model] for model in self.state.solver.active]
        gaps = [one.estimated_gap for one in progress if one.epochs >= _SWITCH_AFTER]
        return any(gap is not None and gap > 2 * self.setup.config.enough for gap in gaps)

    def _switch_algorithm(self) -> None:
        why = f"after {_SWITCH_AFTER} {self.engine.epochs_are} of Pegasos the gap was far above the tolerance"
        self.algorithm = Algorithm(self.fallback, why)
        self.report.note(f"continuing with dual coordinate ascent: {why}")

    # --- the end of the run -------------------------------------------------------------------------

    def _measure_remaining(self, stopped: str) -> None:
        """Measure models without an objective, and, if the time is over without a certificate, the last candidates."""
        state = self.state
        late = stopped == "seconds" and self.why_uncertified is not None
        models = [model for model in state.solver.active if state.progress[model].primal is None or late]
        measurement = self.judge.measurement_of(models)
        if measurement:
            self.engine.measure(measurement)
            self.judge.take(measurement, {})
        if self.setup.problem.free in (BY_SUBGRADIENT, BY_BATCH):
            optimize_biases(state, self.engine)

    def result(self, stopped: str) -> TrainResult:
        setup, config, state = self.setup, self.setup.config, self.state
        outcome = self._compared(Outcome(setup.problem, state, setup.store, config))
        model = outcome.model(self.algorithm.name)
        remark = remark_on(outcome.trials)
        if remark and not self.report.round:  # a search notes it at its end
            self.report.note(remark)
        holdout = outcome.holdout
        if config.calibrate or (outcome.one_vs_rest and config.holdout_fraction):
            (found,) = self.engine.score_holdout(HoldoutRequest([model], config.calibrate is not None))
            model = found.calibrate(model, config)
            holdout = HoldoutResult(holdout.loss if holdout else None, found.error)
        if self.complete:
            model = self.complete(model)
        if self.proof and self.record:
            with self.engine.watch.measuring("writing the proof"):
                outcome.write_proof(self.proof.path, model, self.record)
        cost = self.engine.run_cost(state)
        return TrainResult(
            model=model,
            models=outcome.models(),
            trials=outcome.trials,
            converged=stopped == "tolerance",
            certified=all(one.gap is not None for one in state.progress),
            stopped_by=stopped,
            seconds=self.stop.seconds,
            seconds_computing=cost.seconds_computing,
            seconds_waiting=cost.seconds_waiting,
            bytes_read=cost.bytes_read,
            holdout=holdout,
            why_uncertified=self.why_uncertified,
            algorithm=self.algorithm.name,
            why_algorithm=self.algorithm.why,
            memory=cost.memory,
            loading=cost.loading,
            windows=cost.windows,
            presenters=cost.presenters,
            costs=state.costs,
            notes=self.report.notes,
            profile=cost.profile,
        )

    def _compared(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the metric by which lambdas are compared."""
        metric = outcome.metric_to_score
        if metric and outcome.trials:
            models = outcome.every_model(self.algorithm.name)
            scored = self.engine.score_holdout(HoldoutRequest(models, compare=True))
            outcome.compare_by(
                [(one.error, *one.criterion(model, metric)) for one, model in zip(scored, models, strict=True)]
            )
        return outcome

    # --- checkpoints ----------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        """Write a checkpoint if the last one is too old."""
        minutes = self.setup.config.checkpoint_minutes
        if self.checkpoints and time.perf_counter() - self.checkpoints.written > 60 * minutes:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.checkpoints is None:
            return
        with self.stop.paused(), self.engine.watch.measuring("writing checkpoints"):
            self.engine.check_unchanged()
            self.report.sync_log()
            self.state.save(self.checkpoints.folder, self.checkpoints.identity, self.engine.memory)
        self.checkpoints.written = time.perf_counter()
