"""Pegasos for all models of a run, in model panels where possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit import panel_steps
from ooc_pegasos.compiled.fit.pegasos import FREE_BIAS, NO_FREE_BIAS, PROXIMAL, S
from ooc_pegasos.errors import OocPegasosError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import Bound, Snapshot, lower_bound, thin_snapshots
from ooc_pegasos.objective.free_bias import BalancedBound, DualPoint
from ooc_pegasos.objective.model_panel import Panel, panels_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.base import LARGE_WEIGHTS, NO_REPEATS, Solver
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOfClasses, PegasosOptions
from ooc_pegasos.solvers.pegasos_threads import Averaging
from ooc_pegasos.solvers.proof_record import NOT_RECORDED, RowDuals
from ooc_pegasos.solvers.row_group import MAX_SEPARATE
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint, take, whole


@dataclass(frozen=True)
class SharedOptions:
    """The options of Pegasos that all models of a run share."""

    algorithm: str
    certified: bool
    threads: int = 1

    keeps_best: bool = True
    """False if the only candidate is the iterate or its average, as in the paper."""


class PegasosSolver(Solver):
    """Each model is a `Pegasos`; plain models are trained together in panels."""

    needs_half_mark = True

    def __init__(
        self,
        problem: Problem,
        options: Sequence[PegasosOptions],
        shared: SharedOptions,
        start: np.ndarray | None = None,
        workers: int = 1,
    ) -> None:
        super().__init__(problem)
        self.shared = shared
        self.name = shared.algorithm
        self.all_options = list(options)
        self.threads = shared.threads
        self.batch_size, self.keeps_best = options[0].batch_size, shared.keeps_best
        self.members = {
            model: PegasosOfClasses(options[model], problem, model)
            if problem.costs is not None
            else Pegasos(options[model], problem.length)
            for model in self.active
        }
        self.snapshots = {model: [Snapshot.start()] for model in self.active}
        self.warm = start is not None
        for model, member in self.members.items():
            if start is not None:
                member.warm_start(start)
                self.snapshots[model][0].a = member.a.copy()
        self._averaging = Averaging(self.members[0], shared.threads) if shared.threads > 1 else None
        self._bounds: dict[int, Bound | None] = {}
        self._rounds = 0
        """Rounds of averaging in this epoch."""
        self._panels: list[Panel] = []
        self._masses: dict[int, float] = {}
        """The sums of -g of the models in panels when the panels were made."""
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers) if workers > 1 and len(self.active) > 1 else None

    def rows_at_a_time(self, block: CsrBlock) -> int:
        """See `Solver`."""
        return self._averaging.rows_at_a_time(block) if self._averaging else super().rows_at_a_time(block)

    def begin_epoch(self, repeats: Mapping[int, int] = NO_REPEATS) -> None:
        """See `Solver`."""
        for model in self.active:
            self.members[model].begin_epoch(repeats.get(model, 1))
        self._bounds = {}
        self._rounds = 0

    def process(self, window: Window, begin: int, end: int) -> int:
        """See `Solver`. Models are independent, so each panel can have a thread."""
        if self._averaging:
            self._rounds += 1
            return self._averaging.process(window.block, window.order, begin, end, self.members[0].repeats)
        if not self._panels:
            self._make_panels()
        in_panels = {model for panel in self._panels for model in panel.models}

        def work(learner: Panel | Pegasos) -> int:
            if isinstance(learner, Panel):
                return self._process_panel(learner, window, begin, end)
            if isinstance(learner, PegasosOfClasses):
                return learner.process_window(window, begin, end)
            return learner.process(window.block, window.order, begin, end, learner.repeats)

        separate = [self.members[model] for model in self.active if model not in in_panels]
        jobs: list[Panel | Pegasos] = [*self._panels, *separate]
        if self._pool is None or len(jobs) < 2:
            return max(map(work, jobs))
        return max(self._pool.map(work, jobs))

    def _process_panel(self, panel: Panel, window: Window, begin: int, end: int) -> int:
        block, problem = window.block, self.problem
        return int(
            panel_steps.process_panel(
                window.order,
                begin,
                end,
                *block.arrays,
                window.folds,
                problem.loss.number,
                problem.parameter,
                problem.bias,
                len(panel.weights) >= LARGE_WEIGHTS,
                problem.features,
                panel.table,
                panel.weights,
                panel.state,
                *self._record_arguments(panel),
            )
        )

    def _record_arguments(self, panel: Panel) -> tuple[np.ndarray | None, int, np.ndarray]:
        """Return the record arguments of a kernel for the models of a panel."""
        record, stride, _column = NOT_RECORDED if self.record is None else self.record.target(0)
        return record, stride, np.array(panel.models, np.int64)

    def enter(self, window: Window) -> None:
        """See `Solver`."""
        if self.record is not None:
            self.record.enter(window)
            for model in self.active:
                self.members[model].record_target = self.record.target(model)
                self.members[model].log_scale = self.record.log_scales[model]

    def leave(self, window: Window) -> None:
        """See `Solver`."""
        if self.record is not None:
            self.record.leave()

    def _make_panels(self) -> None:
        """Make panels of the models that can be trained together."""
        plain_models = [model for model in self.active if self._fits_panel(model)]
        if self.problem.costs is not None or (len(plain_models) <= MAX_SEPARATE and self.problem.plain):
            return
        for models in panels_of(plain_models, self._workers):
            members = [self.members[model] for model in models]
            vectors, states = [member.a for member in members], [member.state for member in members]
            delays = [member.options.delay for member in members]
            centres = [float(member.state[FREE_BIAS]) for member in members]
            self._panels.append(Panel(self.problem, models, vectors, states, delays, offsets=centres))
            self._masses |= {model: self.members[model].mass for model in models}

    def _fits_panel(self, model: int) -> bool:
        member = self.members[model]
        options = member.options
        simple = options.batch_size == 1 and options.free in (NO_FREE_BIAS, PROXIMAL)
        return simple and member.repeats == 1 and not options.project and not options.average

    def _write_back_panels(self) -> None:
        """Copy the vectors back from the panels."""
        for panel in self._panels:
            members = [self.members[model] for model in panel.models]
            panel.write_back([member.a for member in members], [member.state for member in members])
            if self.problem.free == PROXIMAL:  # panels treat the centre as a fixed bias
                for model, member in zip(panel.models, members, strict=True):
                    member.state[S] += member.state[FREE_BIAS] * (member.mass - self._masses[model])
        self._panels = []

    def mark_half(self) -> None:
        """See `Solver`."""
        self._write_back_panels()
        for model in self.active:
            self.members[model].mark_half()

    def end_epoch(self) -> None:
        """See `Solver`."""
        self._write_back_panels()
        for model in self.active:
            self._bounds[model] = self._bound(model)

    def _bound(self, model: int) -> Bound | None:
        member = self.members[model]
        if not self.shared.certified:
            return None
        spec, options = self.problem.specs[model], member.options
        processed = member.t - member.began
        if processed != spec.rows * member.repeats:
            problem = f"an epoch processed {processed:,.0f} rows of {spec.rows * member.repeats:,}"
            raise OocPegasosError(f"{problem}; this is an internal error, please report it")
        windows = [] if options.project else self.snapshots[model]
        if self.problem.free != NO_FREE_BIAS:
            return self._bound_of_free(model, windows)
        s_error, a_error = self._rounding_errors(model)
        now = Snapshot(0, member.t, member.dual_sum, member.a, s_error, a_error)
        return lower_bound(spec.lam, options.delay, now, member.scale, windows, whole=not self.warm)

    def _bound_of_free(self, model: int, windows: list[Snapshot]) -> Bound | None:
        """Return the best bound of equations (10) and (11), for all updates and for each window."""
        if self.balance is None:
            return None
        member, problem = self.members[model], self.problem
        now = Snapshot(0, member.t, member.dual_sum, member.updates(), *self._rounding_errors(model))
        bias, lines = float(member.last()[-1]) * problem.bias, self.lines[model]
        begins: list[Snapshot | None] = [] if self.warm else [None]
        begins += [window for window in windows if now.t > window.t]
        best = Bound(-np.inf)
        for window in begins:
            begin, delay = (Snapshot.start(), member.options.delay) if window is None else (window, 0.0)
            found = self.balance.bound(model, self._dual_point(begin, now, model, delay), bias, lines)
            if self.record is not None and found.line is not None:
                line, part = found.line
                self.record.keep_line(model, line, self._duals_of(model, window), part)
            if found.value > best.value:
                best = dataclasses.replace(found, window=window)
        return best

    def _dual_point(self, begin: Snapshot, now: Snapshot, model: int, delay: float) -> DualPoint:
        """Return the dual vector of the updates of a window, normalised to one update per training row."""
        share = self.problem.specs[model].rows / (now.t - begin.t + delay)
        sums = (now.a - begin.a if len(begin.a) else now.a) * share
        s, s_error, a_error = now.s - begin.s, now.s_error - begin.s_error, now.a_error - begin.a_error
        return DualPoint.rounded(sums, share * a_error, self.problem.bias, share * s, share * s_error)

    def _rounding_errors(self, model: int) -> tuple[float, float]:
        rounds = self._rounds if self._averaging else 0
        return self.members[model].rounding_errors(self.threads, rounds)

    def init_centres(self) -> None:
        """See `Solver`."""
        assert self.balance is not None
        if self.problem.free == PROXIMAL and not self.warm:
            for model in self.active:
                if not self.members[model].t:
                    self.members[model].state[FREE_BIAS] = self.balance.initial_bias(model)

    def bound(self, model: int) -> Bound | None:
        """See `Solver`."""
        return self._bounds[model]

    def keep_duals(self, model: int, bound: Bound) -> None:
        """See `Solver`. The dual variables are means over the window of the bound."""
        if self.record is None:
            return
        duals = self._duals_of(model, bound.window)
        if isinstance(bound, BalancedBound):
            self._keep_balanced(model, bound, duals)
        else:
            self.record.keep(model, duals)

    def _duals_of(self, model: int, window: Snapshot | None) -> RowDuals:
        """Return the means over a window, or over all updates, for a proof."""
        assert self.record is not None
        member = self.members[model]
        processed = member.t - window.t if window else member.t + member.options.delay
        factor = self.problem.specs[model].rows * member.scale / processed
        return self.record.since(model, window.epoch if window else 0, factor)

    def estimate(self, model: int) -> float:
        """See `Solver`."""
        return self.members[model].estimate()

    def candidates(self, model: int) -> list[np.ndarray]:
        """See `Solver`."""
        member, bound = self.members[model], self._bounds.get(model)
        average = member.options.average
        if not self.shared.keeps_best:
            return [member.average() if average else member.last()]
        found = [member.last()]
        if average:
            found.append(member.average())
        if self.warm and bound is not None and bound.window is not None:  # without the initial weights
            found.append(member.since(bound.window.t, bound.window.a))
        return found

    def advance(self) -> None:
        """See `Solver`."""
        for model in self.active:
            member, snapshots = self.members[model], self.snapshots[model]
            errors = self._rounding_errors(model)
            member.end_epoch(errors)
            if not member.options.project and self.shared.certified:
                epoch = snapshots[-1].epoch + 1
                snapshots.append(Snapshot(epoch, member.t, member.dual_sum, member.updates(), *errors))
                self.snapshots[model] = [snapshots[0], *thin_snapshots(snapshots[1:], epoch)]
            if self.problem.free == PROXIMAL:
                member.update_centre()
        if self.record is not None and self.active and not self.all_options[0].project:
            kept = {snapshot.epoch for model in self.active for snapshot in self.snapshots[model][1:]}
            self.record.snapshot(self.snapshots[self.active[0]][-1].epoch, kept)

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""
        window = Window((), nothing, [], np.empty(0, np.uint8), np.empty(0, np.uint32))
        little = Problem(self.problem.loss, 0.0, 1, 0.0, 1.0, self.problem.specs, costs=self.problem.costs)
        options = [dataclasses.replace(self.members[model].options, bias=0.0) for model in self.active]
        PegasosSolver(little, options, SharedOptions(self.name, False)).process(window, 0, 0)

    def drop(self, models: list[int]) -> None:
        """See `Solver`."""
        super().drop(models)
        for model in models:
            del self.members[model], self.snapshots[model]

    def counts(self, model: int) -> dict[str, int]:
        """See `Solver`."""
        member = self.members[model]
        return {"rows": int(member.t), "repeats": member.repeats, "margin_errors": int(member.errors)}

    def save(self, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See `Solver`."""
        self._write_back_panels()
        arrays: dict[str, np.ndarray] = {}
        facts = {}
        for model in self.active:
            member, snapshots = self.members[model], self.snapshots[model]
            arrays |= {f"{model} a": member.a, f"{model} b": member.b, f"{model} state": member.state}
            arrays[f"{model} lines"] = self.lines[model].numbers
            arrays |= {f"{model} snapshot {number}": snapshot.a for number, snapshot in enumerate(snapshots)}
            facts[str(model)] = {
                "epoch": [member.averaged_from, member.marked, member.loss_at_mark, member.began, member.repeats],
                "rounds": self._rounds,
                "snapshots": [[one.epoch, one.t, one.s, one.s_error, one.a_error] for one in snapshots],
            }
        return arrays, {"active": self.active, "members": facts}

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """See `Solver`."""
        arrays, facts = saved.arrays, saved.facts["solver"]
        self.drop([model for model in self.active if model not in facts["active"]])
        for model in self.active:
            member, description = self.members[model], facts["members"][str(model)]
            member.a[:], member.b[:] = take(arrays, f"{model} a", member.a), take(arrays, f"{model} b", member.b)
            member.state[:] = take(arrays, f"{model} state", member.state)
            self.lines[model].restore(arrays, f"{model} lines")
            *numbers, member.repeats = description["epoch"]
            member.averaged_from, member.marked, member.loss_at_mark, member.began = map(float, numbers)
            whole(member.repeats, 1, 2**31, "repeats")
            if not description["snapshots"]:
                raise ValueError("no snapshots")
            self._rounds = whole(description["rounds"], 0, 2**62, "rounds")
            self.snapshots[model] = []
            for at, (epoch, t, s, *errors) in enumerate(description["snapshots"]):
                a = arrays[f"{model} snapshot {at}"]
                a = take(arrays, f"{model} snapshot {at}", member.a) if len(a) else a
                self.snapshots[model].append(
                    Snapshot(whole(epoch, -1, 2**62, "epoch"), float(t), float(s), a, *map(float, errors))
                )

    def close(self) -> None:
        """See `Solver`."""
        if self._pool:
            self._pool.shutdown()
