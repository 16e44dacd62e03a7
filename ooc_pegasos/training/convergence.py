"""Convergence check at the end of an epoch: bound, estimate and objective of each model, and the finished models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import InputError
from ooc_pegasos.objective.certificate import Bound, relative_gap
from ooc_pegasos.objective.exact_pass import Measurement, Objective
from ooc_pegasos.objective.lambda_path import Trial, hopeless, trial_of
from ooc_pegasos.objective.problem import NONE
from ooc_pegasos.reporting.history import EpochRecord
from ooc_pegasos.solvers.base import NEAR_TOLERANCE
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.state import REASONS, Progression, RunState

_FIRST_FACTOR = 3.0
"""Factor on the gap for the first measurement, which is made early to calibrate estimates."""
_FACTOR_OF_READS = 10.0
"""The same, where a measurement costs less than another read of the store."""
_ROUNDING_SHARE = 0.1
"""Share of the tolerance; larger rounding errors of an objective make scores be computed more precisely."""
_MIN_EPOCHS = 10  # epochs before a model is stopped by rounding errors
_HOLDOUT_PATIENCE = 3  # epochs without improvement of the holdout loss, for models without a certificate


def reason_of(progress: Sequence[Progression]) -> str:
    """Return the reason for the end of a run in which every model is finished: the worst reason of any."""
    return min((one.finished_by for one in progress), key=REASONS.index)


@dataclass(frozen=True)
class Estimate:
    """Estimated objective and relative gap; the gap is None without a bound."""

    objective: float
    gap: float | None
    bound: Bound | None


@dataclass
class Judge:
    """Convergence checks of the models of a run."""

    state: RunState
    config: TrainConfig
    engine: Engine
    name: str
    """Name of the store, for error messages."""
    ends_hopeless: bool = False
    """True if models are ended early whose lambda cannot be the best by the holdout loss."""

    def judge(self, last: bool) -> dict[int, EpochRecord]:
        """Bound the optima, estimate the objectives, and measure the models that may be finished.

        Returns the record of each active model. In the `last` epoch all of them are measured.
        """
        solver = self.state.solver
        estimates = {model: self._estimate(model) for model in solver.active}
        estimates |= self._recompute_sums(estimates)
        due = self._due(estimates, last)
        measurement = self.measurement_of(due, [model for model in due if self.state.progress[model].compensated])
        is_now = self.engine.is_measuring_cheap or last
        if measurement and is_now:
            self.engine.measure(measurement)
        # A run interrupted before this point repeats all of it; from here on it must not be interrupted.
        found = self._take_pending()
        gaps = {model: estimates[model].gap for model in due}
        if measurement and is_now:
            found |= self.take(measurement, gaps)
        elif measurement:
            self._measure_with_next_epoch(measurement, gaps)
        records = self._record(estimates, found)
        solver.advance()
        return records

    # --- steps of a check -------------------------------------------------------------------

    def _estimate(self, model: int) -> Estimate:
        """Update the best bound, and estimate objective and gap."""
        progress, solver = self.state.progress[model], self.state.solver
        bound = solver.bound(model)
        if bound is not None and (progress.bound is None or max(bound.value, 0.0) >= progress.bound):
            progress.bound, progress.bound_rounding = max(bound.value, 0.0), bound.rounding  # losses are not negative
            solver.keep_duals(model, bound)
        estimate = solver.estimate(model)
        if progress.bound is None or bound is None:
            return Estimate(estimate, None, bound)
        likely_bound = max(progress.bound, bound.value + bound.rounding)
        gap = progress.ratio * max((estimate - likely_bound) / estimate if estimate > 0 else 0.0, 0.0)
        return Estimate(estimate, gap, bound)

    def _recompute_sums(self, estimates: Mapping[int, Estimate]) -> dict[int, Estimate]:
        """Recompute sums whose rounding errors hide much of the gap; returns the new estimates of their models."""
        solver = self.state.solver
        stale = [
            model
            for model, one in estimates.items()
            if one.bound and solver.needs_recomputing(model, 1.0 if one.gap is None else one.gap, one.bound)
        ]
        if stale:
            solver.recompute_sums(stale, self.engine.all_windows)
        return {model: self._estimate(model) for model in stale}

    def _due(self, estimates: Mapping[int, Estimate], last: bool) -> list[int]:
        """Return the models whose objective has to be measured."""
        pending = [] if self.state.pending is None else self.state.pending.result()
        return [
            model
            for model, one in estimates.items()
            if not self.state.progress[model].finished_by
            and (last or self._is_near(model, one.gap) or self._needs_holdout(one.gap))
            and (self.engine.is_measuring_cheap or not self._will_be_enough(model, pending))
        ]

    def _is_near(self, model: int, gap: float | None) -> bool:
        """True if the gap is small enough to be measured, which costs about a quarter of an epoch."""
        if gap is None:
            return False
        if self.state.solver.visits_rows_often:
            return gap <= _FACTOR_OF_READS * self.config.enough
        first = _FIRST_FACTOR if self.state.progress[model].primal is None else 1.0
        return gap <= first * self.config.coefficient * self.config.enough

    def _needs_holdout(self, gap: float | None) -> bool:
        """True if only the holdout loss can stop the run, as there is no certificate."""
        return gap is None and bool(self.config.holdout_fraction)

    def _will_be_enough(self, model: int, pending: Sequence[Objective]) -> bool:
        """True if the tolerance is certified by the candidates that were measured during this epoch."""
        progress = self.state.progress[model]
        primals = [] if progress.primal is None else [progress.primal]
        primals += [found.primal for found in pending if found.model == model]
        gap = relative_gap(min(primals, default=None), progress.bound)
        return gap is not None and gap <= self.config.enough

    def measurement_of(self, models: Iterable[int], compensated: Sequence[int] = ()) -> Measurement | None:
        """Return a measurement of all candidates of some models, or None if there are none."""
        solver = self.state.solver
        pairs = [(model, candidate) for model in models for candidate in solver.candidates(model)]
        if not pairs:
            return None
        return Measurement(self.state.problem, [model for model, _ in pairs], [one for _, one in pairs], compensated)

    def _take_pending(self) -> dict[int, Objective]:
        """Evaluate the candidates that were measured during this epoch."""
        pending = self.state.pending
        if pending is None:
            return {}
        found = self.take(pending, {model: self.state.progress[model].pending_gap for model in pending.models})
        self.state.pending = None
        for progress in self.state.progress:
            progress.pending_gap = None
        return found

    def _measure_with_next_epoch(self, measurement: Measurement, gaps: Mapping[int, float | None]) -> None:
        """Measure candidates during the next epoch, which reads the data anyway."""
        self.state.pending = measurement
        for model, gap in gaps.items():
            self.state.progress[model].pending_gap = gap

    def take(self, measurement: Measurement, gaps: Mapping[int, float | None]) -> dict[int, Objective]:
        """Update the best candidate of each model; return the best objectives of the measurement."""
        best: dict[int, tuple[Objective, np.ndarray]] = {}
        for objective, candidate in zip(measurement.result(), measurement.candidates, strict=True):
            model = objective.model
            if model not in self.state.solver.active:
                continue  # finished in the meantime
            if model not in best or objective.primal < best[model][0].primal:
                best[model] = (objective, candidate)
        for model, (objective, candidate) in best.items():
            self._keep(model, objective, candidate, gaps.get(model))
        return {model: objective for model, (objective, _) in best.items()}

    def _keep(self, model: int, found: Objective, weights: np.ndarray, estimated_gap: float | None) -> None:
        progress = self.state.progress[model]
        if not np.isfinite([found.primal, found.holdout.deviation if found.holdout else 0.0]).all():
            raise InputError(f"{self.name}: weights or losses became infinite; choose another lambda or scale the data")
        if not self.state.solver.keeps_best or progress.primal is None or found.primal < progress.primal:
            progress.primal, progress.holdout, self.state.best[model] = found.primal, found.holdout, weights.copy()
            progress.primal_rounding = found.rounding
        if found.rounding > _ROUNDING_SHARE * self.config.enough * found.primal:
            progress.compensated = True
        if progress.gap is not None and estimated_gap:
            progress.ratio = min(max(progress.ratio * progress.gap / estimated_gap, 0.05), 1.5)

    def _record(self, estimates: Mapping[int, Estimate], found: Mapping[int, Objective]) -> dict[int, EpochRecord]:
        """Append a record to the history of each active model."""
        records = {model: self._record_of(model, one, found.get(model)) for model, one in estimates.items()}
        for model, record in records.items():
            self.state.progress[model].history.append(record)
        return records

    def _record_of(self, model: int, estimate: Estimate, found: Objective | None) -> EpochRecord:
        progress = self.state.progress[model]
        is_known = found is not None or self.is_enough(progress)
        holdout = found.holdout if found else None
        return EpochRecord(
            epoch=self.state.cursor.epoch + 1,
            counts=self.state.solver.counts(model),
            estimate=estimate.objective,
            primal=progress.primal if is_known else None,
            lower_bound=progress.bound,
            gap=progress.gap if is_known else None,
            estimated_gap=estimate.gap,
            holdout_loss=holdout.loss if holdout else None,
            holdout_error=holdout.error if holdout else None,
        )

    # --- finished models ----------------------------------------------------------------------------

    def remove_finished(self) -> None:
        """Remove the models that are finished from the pass."""
        state = self.state
        for model in state.solver.active:
            state.progress[model].finished_by = self.reason_to_finish(state.progress[model])
        if self.ends_hopeless:
            self._end_hopeless()
        finished = [model for model in state.solver.active if state.progress[model].finished_by]
        if finished:
            state.solver.drop(finished)

    def _end_hopeless(self) -> None:
        """End the models of lambdas that are too small, as the holdout losses of larger ones show."""
        progress, specs = self.state.progress, self.state.problem.specs
        models: dict[float, list[int]] = {}
        for model, spec in enumerate(specs):
            models.setdefault(spec.lam, []).append(model)
        trials: list[Trial | None] = []
        for lam in sorted(models, reverse=True):
            found = [(specs[model].fold, progress[model].holdout) for model in models[lam] if specs[model].fold != NONE]
            known = [(fold, one) for fold, one in found if one]
            is_finished = known and all(progress[model].finished_by for model in models[lam])
            trials.append(trial_of(lam, known, across=False, by_error=True) if is_finished else None)
        for lam in sorted(models)[: hopeless(trials)]:
            for model in models[lam]:
                progress[model].finished_by = progress[model].finished_by or "hopeless"

    def is_enough(self, progress: Progression) -> bool:
        """True if the tolerance is certified."""
        return progress.gap is not None and progress.gap <= self.config.enough

    def reason_to_finish(self, progress: Progression) -> str:
        """Return the reason for which a model is finished, or ""."""
        if self.is_enough(progress):
            return "tolerance"
        if self._is_limited_by_rounding(progress):
            return "rounding"
        if progress.bound is None and self.config.holdout_fraction:
            losses = [record.holdout_loss for record in progress.history if record.holdout_loss is not None]
            if len(losses) > _HOLDOUT_PATIENCE and min(losses[-_HOLDOUT_PATIENCE:]) >= min(losses[:-_HOLDOUT_PATIENCE]):
                return "holdout"
        return ""

    def _is_limited_by_rounding(self, progress: Progression) -> bool:
        """True if rounding errors exceed the tolerance, and are at least half of the gap."""
        if progress.gap is None or progress.primal is None or progress.epochs < _MIN_EPOCHS:
            return False
        estimated = progress.estimated_gap
        if estimated is None or estimated > NEAR_TOLERANCE * self.config.enough:
            return False  # sums may not have been recomputed
        rounding = (progress.primal_rounding + progress.bound_rounding) / progress.primal
        return rounding > self.config.enough and progress.gap <= 2 * rounding
