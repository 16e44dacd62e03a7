"""What is known of each model at the end of an epoch: bound, estimate, objective; and which models may leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import InputError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import relative_gap
from ooc_pegasos.objective.exact_pass import Measurement, Objective
from ooc_pegasos.solvers.base import NEAR
from ooc_pegasos.training.state import REASONS, Progression, RunState

_FIRST = 3.0
"""How much further away the first measurement is worth it: only then is it known how far estimates are off."""
_WORTH_TWICE = 0.1
"""Share of the tolerance that rounding errors of an objective may take before scores are computed more precisely."""
_FAIR_CHANCE = 10  # epochs before a run is given up for rounding errors
_PATIENCE = 3  # epochs without improvement on the holdout, where nothing else can stop a run


def reason_of(known: Sequence[Progression]) -> str:
    """Return why a run is over in which every model has left the pass: the worst reason of any."""
    return min((one.left for one in known), key=REASONS.index)


@dataclass
class Judge:
    """Judges the models of a run. `in_memory` says whether a pass for the objective is cheap."""

    state: RunState
    config: TrainConfig
    in_memory: bool
    name: str
    """Of the store, for complaints."""

    def judge(
        self, last: bool, measure_now: Callable[[Measurement], None], windows: Callable[[], Iterator[Window]]
    ) -> list[dict[str, Any]]:
        """Bound the optima, estimate the objectives, and have those measured that may be the end.

        Returns a line of history for each model that was in the pass. `windows` are all rows, for sums that have to be
        added up anew before anything is certified.
        """
        state, solver = self.state, self.state.solver
        estimates = {model: self._estimate(model) for model in solver.active}
        stale = [
            model
            for model, (_estimate, gap) in estimates.items()
            if solver.wants_renewal(model, 1.0 if gap is None else gap)
        ]
        if stale:
            solver.renew(stale, windows)
            estimates |= {model: self._estimate(model) for model in stale}
        pending = [] if state.pending is None else state.pending.result()
        due = [
            model
            for model, (_estimate, gap) in estimates.items()
            if (last or self._near(model, gap) or self._wants_holdout(gap))
            and (self.in_memory or not self._will_do(model, pending))
        ]
        measured, later = None, None
        if due:
            models, candidates = [], []
            for model in due:
                for candidate in solver.candidates(model):
                    models.append(model)
                    candidates.append(candidate)
            twice = [model for model in due if state.known[model].twice]
            measurement = Measurement(state.problem, models, candidates, twice)
            if self.in_memory or last:
                measure_now(measurement)
                measured = measurement
            else:  # together with the next epoch, whose data is read anyway
                later = measurement
        # From here on nothing may interrupt: what is stopped before does the whole of this again.
        found: dict[int, Objective] = {}
        if state.pending is not None:
            found |= self.take(state.pending, {m: state.known[m].pending_gap for m in state.pending.models})
            state.pending = None
            for known in state.known:
                known.pending_gap = None
        if measured is not None:
            found |= self.take(measured, {model: estimates[model][1] for model in due})
        if later is not None:
            state.pending = later
            for model in due:
                state.known[model].pending_gap = estimates[model][1]
        entries = []
        for model, (estimate, gap) in estimates.items():
            entry = self._entry(model, estimate, gap, found.get(model))
            state.known[model].history.append(entry)
            entries.append(entry)
        solver.advance()
        return entries

    def _estimate(self, model: int) -> tuple[float, float | None]:
        """(the objective, the relative gap), more or less."""
        known, solver = self.state.known[model], self.state.solver
        bound = solver.bound(model)
        if bound is not None and (known.bound is None or max(bound.value, 0.0) >= known.bound):
            known.bound, known.bound_rounding = max(bound.value, 0.0), bound.rounding  # no loss is negative
            solver.keep_duals(model, bound)
        estimate = solver.estimate(model)
        if known.bound is None or bound is None:
            return estimate, None
        likely = max(known.bound, bound.value + bound.rounding)
        return estimate, known.ratio * max((estimate - likely) / estimate if estimate > 0 else 0.0, 0.0)

    def _near(self, model: int, gap: float | None) -> bool:
        """Whether a pass to measure is worth its time, which is about a quarter of an epoch."""
        first = _FIRST if self.state.known[model].primal is None else 1.0
        return gap is not None and gap <= first * self.config.coefficient * self.config.enough

    def _wants_holdout(self, gap: float | None) -> bool:
        """Without a certificate only the rows kept apart can say when to stop."""
        return gap is None and bool(self.config.holdout_fraction)

    def _will_do(self, model: int, pending: list[Objective]) -> bool:
        """Whether the tolerance is reached as soon as what was measured beside this epoch is taken in."""
        known = self.state.known[model]
        primals = [] if known.primal is None else [known.primal]
        primals += [found.primal for found in pending if found.model == model]
        gap = relative_gap(min(primals, default=None), known.bound)
        return gap is not None and gap <= self.config.enough

    def _entry(self, model: int, estimate: float, gap: float | None, found: Objective | None) -> dict[str, Any]:
        """A line of history."""
        known = self.state.known[model]
        told = found is not None or self.is_enough(known)
        apart = found.apart if found else None
        return {
            "epoch": self.state.cursor.epoch + 1,
            **self.state.solver.counts(model),
            "estimate": estimate,
            "primal": known.primal if told else None,
            "lower_bound": known.bound,
            "gap": known.gap if told else None,
            "estimated_gap": gap,
            "holdout_loss": apart.loss if apart else None,
            "holdout_error": apart.error if apart else None,
        }

    def take(self, measurement: Measurement, gaps: dict[int, float | None]) -> dict[int, Objective]:
        """Keep the best candidate of each model, if it is the best so far; returns what was found of each."""
        best: dict[int, tuple[Objective, int]] = {}
        for number, objective in enumerate(measurement.result()):
            if objective.model not in self.state.solver.active:
                continue  # it has left, and alone it would be over
            if objective.model not in best or objective.primal < best[objective.model][0].primal:
                best[objective.model] = (objective, number)
        for model, (objective, number) in best.items():
            self._keep(model, objective, measurement.candidates[number], gaps.get(model))
        return {model: objective for model, (objective, _number) in best.items()}

    def _keep(self, model: int, found: Objective, weights: np.ndarray, estimated_gap: float | None) -> None:
        known = self.state.known[model]
        if not np.isfinite([found.primal, found.apart.deviation if found.apart else 0.0]).all():
            raise InputError(f"{self.name}: weights or losses became infinite; choose another lambda or scale the data")
        if not self.state.solver.keeps_best or known.primal is None or found.primal < known.primal:
            known.primal, known.apart, self.state.best[model] = found.primal, found.apart, weights.copy()
            known.primal_rounding = found.rounding
        known.twice = known.twice or found.rounding > _WORTH_TWICE * self.config.enough * found.primal
        if known.gap is not None and estimated_gap:
            known.ratio = min(max(known.ratio * known.gap / estimated_gap, 0.05), 1.5)

    def let_go(self) -> None:
        """Have models that are done leave the pass."""
        state, leaving = self.state, []
        for model in state.solver.active:
            known = state.known[model]
            known.left = self.reason_to_leave(known)
            if known.left:
                leaving.append(model)
        if leaving:
            state.solver.drop(leaving)

    def is_enough(self, known: Progression) -> bool:
        """Whether the tolerance is certified."""
        return known.gap is not None and known.gap <= self.config.enough

    def reason_to_leave(self, known: Progression) -> str:
        """Why a model need not be trained any more, if so."""
        if self.is_enough(known):
            return "tolerance"
        if self._is_rounded_away(known):
            return "rounding"
        if known.bound is None and self.config.holdout_fraction:
            losses = [entry["holdout_loss"] for entry in known.history if entry["holdout_loss"] is not None]
            if len(losses) > _PATIENCE and min(losses[-_PATIENCE:]) >= min(losses[:-_PATIENCE]):
                return "holdout"
        return ""

    def _is_rounded_away(self, known: Progression) -> bool:
        """True if rounding errors alone are more than the tolerance, and at least half of the gap."""
        if known.gap is None or known.primal is None or known.epochs < _FAIR_CHANCE:
            return False
        estimated = known.history[-1]["estimated_gap"]
        if estimated is None or estimated > NEAR * self.config.enough:
            return False  # sums may not have been added up anew
        rounding = (known.primal_rounding + known.bound_rounding) / known.primal
        return rounding > self.config.enough and known.gap <= 2 * rounding
