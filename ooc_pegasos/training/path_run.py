"""A run that follows the path of solutions from strong to weak lambdas, each beginning with the one before it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ooc_pegasos.objective.lambda_path import COLD_ABOVE, Range, next_lambda
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.result import Outcome, TrainResult
from ooc_pegasos.training.run import Run
from ooc_pegasos.training.setup import RunSetup
from ooc_pegasos.training.state import PathState, RunState
from ooc_pegasos.util.checkpoint import Checkpoint

_MOST_EPOCHS = 100
"""Epochs for one lambda, unless the limit is given."""


class PathRun(Run):
    """A run of dual coordinate ascent in which all models have one lambda at a time.

    Dual variables of one lambda are feasible for the next, so each lambda takes a few epochs.
    """

    def __init__(
        self,
        setup: RunSetup,
        engine: Engine,
        limits: Range,
        checkpoint_folder: Path | None = None,
        saved: Checkpoint | None = None,
    ) -> None:
        self._limits = limits
        super().__init__(setup, engine, checkpoint_folder=checkpoint_folder, saved=saved)

    @property
    def path(self) -> PathState:
        """The lambdas that are finished, and the one that is trained."""
        path = self.state.path
        assert path is not None
        return path

    def _new_state(self) -> RunState:
        state = super()._new_state()
        state.path = PathState(self.setup.problem.specs[0].lam)
        return state

    def _begin(self, saved: Checkpoint | None) -> RunState:
        state = super()._begin(saved)
        assert state.path is not None
        self._adopt(state.problem)
        return state

    def _limit(self) -> int:
        return self.path.began + (self.setup.config.max_epochs or min(self._default_limit(), _MOST_EPOCHS))

    def _horizon(self) -> int:
        return 1 << 62

    def _finish_models(self) -> None:
        """Go on to the next lambda if all models of this one are finished, or at its limit of epochs."""
        state = self.state
        for model in state.solver.active:
            progress = state.progress[model]
            progress.finished_by = progress.finished_by or self.judge.reason_to_finish(progress)
        if not all(one.finished_by for one in state.progress) and state.cursor.epoch + 1 < self._limit():
            return
        self._add_trial()
        lam = next_lambda(self.path.trials, self._limits)
        if lam is None:
            for one in state.progress:
                one.finished_by = one.finished_by or "tolerance"
            state.solver.drop(list(state.solver.active))
            return
        self._change_lambda(lam)

    def _add_trial(self) -> None:
        """Keep the holdout results of this lambda."""
        path = self.path
        outcome = self._compared(Outcome(self.setup.problem, self.state, self.setup.store, self.setup.config))
        path.trials += outcome.trials
        path.models += outcome.models()
        path.records += sum(progress.epochs for progress in self.state.progress)
        path.began = self.state.cursor.epoch + 1

    def _change_lambda(self, lam: float) -> None:
        """Train the next lambda, beginning with the dual variables of this one."""
        state = self.state
        self.path.lam = lam
        state.problem = state.problem.with_lambda(lam)
        self._adopt(state.problem)
        if min(spec.clock for spec in state.problem.specs) > COLD_ABOVE * self._square:
            state.solver.close()
            state.solver = self._new_solver()
        else:
            state.solver.change_problem(state.problem)
            if state.solver.needs_balance:
                self.engine.set_balance(state.solver)
        state.best.clear()
        state.pending = None
        ratios = [progress.ratio for progress in state.progress]
        state.progress = [
            dataclasses.replace(self.engine.new_progression(spec, self.algorithm.name), ratio=ratio)
            for spec, ratio in zip(state.problem.specs, ratios, strict=True)
        ]

    @property
    def _square(self) -> float:
        """The mean squared norm of a row."""
        return self.setup.store.manifest.statistics.mean_row_norm**2 + self.setup.problem.bias**2

    def _adopt(self, problem: Problem) -> None:
        """Use the lambda of a problem from now on."""
        self.setup = self.engine.setup = dataclasses.replace(self.setup, problem=problem)

    def result(self, stopped: str) -> TrainResult:
        """See `Run`. The model is that of the last lambda."""
        result, path = super().result(stopped), self.path
        return dataclasses.replace(result, trials=path.trials or result.trials, models=path.models or result.models)

    @property
    def is_search(self) -> bool:
        """See `Run`."""
        return True

    @property
    def lines(self) -> int:
        """See `Run`. Records of a finished lambda are counted already."""
        is_begun = self.state.cursor.epoch > self.path.began
        return self.path.records + (self.state.epochs if is_begun else 0)


def limits_of(problem: Problem) -> Range:
    """Return the range in which the best lambda is looked for, given the default path."""
    lambdas = [spec.lam for spec in problem.specs]
    return Range(max(lambdas), min(lambdas))
