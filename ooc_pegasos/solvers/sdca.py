"""Dual coordinate ascent for all models of a run, equation (7): the bound and the gap are known exactly at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit import many
from ooc_pegasos.compiled.fit import sdca as kernels
from ooc_pegasos.compiled.fit.lanes import LANES
from ooc_pegasos.compiled.fit.losses import HINGE
from ooc_pegasos.compiled.fit.pegasos import NO_FREE, next_move, square
from ooc_pegasos.compiled.fit.sdca import (
    CENTRE,
    CHANGED,
    DUAL,
    DUAL_ERROR,
    GAP,
    HASTE,
    MAGNITUDE,
    MOVE,
    NAPS,
    OFF,
    RENEWED,
    RENEWED_AT,
    STATE_SIZE,
    STRETCH,
    UNIT,
    VECTOR_ERROR,
    VISITED,
)
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import Bound, best_part
from ooc_pegasos.objective.free_bias import BalancedBound, DualPoint
from ooc_pegasos.objective.model_panel import Panel, panels_of, width_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.objective.rounding import UNIT as UNIT_ROUNDOFF
from ooc_pegasos.objective.rounding import norm_above, raised, sum_error, vector_error
from ooc_pegasos.solvers.base import APART, LARGE_WEIGHTS, NEAR, NO_WEIGHTS, ONCE, Solver
from ooc_pegasos.solvers.dual_store import Group, RowStates
from ooc_pegasos.solvers.dual_sums import DualSums
from ooc_pegasos.solvers.proof_record import RowDuals
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint, take, whole

_LANES_COST = 2.5
"""The cost of a row for eight models trained together, if it costs 1 for one alone."""
_AVERAGED_FROM, _FRESH = 6, 0.35
"""Epochs after which a running mean of the ends of epochs is a better candidate than the last, and how fast it runs."""


_CREEP, _STRIDE = 0.95, 0.8
"""By what a lambda that is larger than asked for falls in an epoch; and where its problem is solved well enough."""
_LEAST_UNIT = 0.01
_STEADY = 0.2
"""Units of slack that the centre of a bias moves in an epoch, up to which rows may sleep."""
_BOUND_OPERATIONS, _TERM_OPERATIONS = 32, 64
_WORTH_RENEWAL = 0.1
"""Share of the tolerance that bounds on rounding errors may take before sums are added up anew."""


class SdcaSolver(Solver):
    """The vectors `a = sum b_i x_i`, one a model, and the sums in `state`; the b_i are in `rows`.

    Where lambda m is much less than ||x||^2 a step is a small part of the box, and rows would take hundreds of epochs
    to where they belong. But neither the box nor `a` depends on lambda: so a model begins with one that is `STRETCH`
    times larger and comes down to its own as its problems are solved.
    """

    name = "sdca"

    def __init__(self, problem: Problem, rows: RowStates, tolerance: float, workers: int = 1) -> None:
        super().__init__(problem)
        self.rows = rows
        self.a = {model: np.zeros(problem.length) for model in self.active}
        self.mean = {model: np.zeros(problem.length) for model in self.active}
        self.state = {model: np.zeros(STATE_SIZE) for model in self.active}
        self.tolerance = tolerance
        for model, state in self.state.items():
            state[STRETCH] = max(1.0, rows.typical_square / problem.specs[model].clock)
            state[UNIT] = 1.0 if problem.loss.number == HINGE else 0.0
            state[HASTE] = 1.0
        self._epoch = -1
        self._wakes = np.zeros(len(NAPS), np.uint8)
        self._panels: dict[int, Panel] = {}
        self._alone: set[int] = set()
        self._rows_of_panels: dict[int, int] = {}
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers) if workers > 1 and len(self.active) > 1 else None

    def _groups(self) -> list[tuple[list[int], int]]:
        together = [model for model in self.active if model not in self._alone]
        alone = [model for model in self.active if model in self._alone]
        groups = []
        for models in panels_of(together, self._workers):
            if len(models) > APART:
                groups.append((models, width_of(len(models))))
            else:
                alone += models
        return groups + [([model], 1) for model in alone]

    def begin_epoch(self, repeats: Mapping[int, int] = ONCE) -> None:
        """See `Solver`."""
        self.rows.regroup(self._groups())
        for model in self.active:
            state = self.state[model]
            self._approach(model)
            if self.problem.loss.number == HINGE:
                off, changed = state[OFF], state[CHANGED]
                state[UNIT] = min(max(2 * off / changed, _LEAST_UNIT), 1.0) if changed else state[UNIT]
            else:
                state[UNIT] = state[OFF] / state[VISITED] if state[VISITED] else state[UNIT]
            state[[GAP, VISITED, CHANGED, OFF, MAGNITUDE, RENEWED]] = 0.0
        self._set_epoch(self._epoch + 1)

    def _approach(self, model: int) -> None:
        """Bring lambda nearer to what was asked for, after an epoch."""
        state = self.state[model]
        if state[STRETCH] > 1 and state[VISITED]:
            rows = self.problem.specs[model].rows
            bound = (state[DUAL] - self._square(model) / self._clock(model) / 2) / rows
            solved = state[GAP] / rows < 2 * self.tolerance * bound
            state[STRETCH] = max(1.0, state[STRETCH] * (_STRIDE if solved else _CREEP))

    def _clock(self, model: int) -> float:
        return self.problem.specs[model].clock * float(self.state[model][STRETCH])

    def _square(self, model: int) -> float:
        return square(self.a[model])

    @property
    def alone(self) -> set[int]:
        """Models that are presented one after the other, as each looks at few rows of its own."""
        return self._alone

    @property
    def seen(self) -> dict[int, int]:
        """Rows that each panel was shown in this epoch."""
        return self._rows_of_panels

    def resume(self, epoch: int, alone: Iterable[int], seen: dict[int, int]) -> None:
        """Go on after an epoch, with what was known then."""
        self._set_epoch(epoch)
        self._alone, self._rows_of_panels = set(alone), dict(seen)

    def _set_epoch(self, number: int) -> None:
        self._epoch = number
        naps = (1,) * len(NAPS) if self._is_moving() else NAPS
        self._wakes = np.array([(number // nap + 1) * nap % 256 for nap in naps], np.uint8)

    def _is_moving(self) -> bool:
        """True while centres of biases move so far that no row may sleep: what is far from its bound may come near."""
        if self.problem.free == NO_FREE:
            return False
        steady = (_STEADY * max(float(state[UNIT]), _LEAST_UNIT) for state in self.state.values())
        moves = (float(state[MOVE] * state[HASTE]) for state in self.state.values())
        return self._epoch == 0 or any(abs(move) > least for move, least in zip(moves, steady, strict=True))

    def enter(self, window: Window) -> None:
        """See `Solver`."""
        self.rows.enter(window)

    def leave(self, window: Window) -> None:
        """See `Solver`."""
        self.rows.leave()

    def present(self, window: Window, begin: int, end: int) -> int:
        """See `Solver`. Groups have nothing in common, so each may have a thread: nothing depends on that."""
        groups = list(enumerate(self.rows.groups))

        def work(job: tuple[int, Group]) -> int:
            return self._present_group(*job, window, begin, end)

        if self._pool is None or len(groups) < 2:
            return max(map(work, groups))
        return max(self._pool.map(work, groups))

    def _present_group(self, number: int, group: Group, window: Window, begin: int, end: int) -> int:
        now = np.uint8(self._epoch % 256)
        awake = np.empty(end - begin, window.order.dtype)
        count = kernels.rows_awake(window.order, begin, end, group.until, group.width, len(group.models), now, awake)
        if group.width == 1:
            return self._present_one(window, group, awake, count)
        panel = self._panels.get(number)
        if panel is None:
            vectors, states = [self.a[model] for model in group.models], [self.state[model] for model in group.models]
            clocks = [self._clock(model) for model in group.models]
            centres = [float(state[CENTRE]) for state in states]
            panel = Panel(self.problem, group.models, vectors, states, clocks=clocks, offsets=centres)
            self._panels[number] = panel
        self._rows_of_panels[number] = self._rows_of_panels.get(number, 0) + count
        return self._present_panel(window, group, panel, awake, count)

    def _present_one(self, window: Window, group: Group, awake: np.ndarray, count: int) -> int:
        block, problem = window.block, self.problem
        model = group.models[0]
        spec = problem.specs[model]
        return int(
            kernels.ascend_rows(
                awake,
                0,
                count,
                *block.entries,
                block.labels,
                NO_WEIGHTS if block.weights is None else block.weights,
                window.folds,
                np.array(spec.class_weights),
                float(spec.one_class),
                spec.fold,
                spec.offset + float(self.state[model][CENTRE]),
                problem.loss.number,
                problem.parameter,
                self._clock(model),
                problem.bias,
                self.rows.inverses,
                self._wakes,
                problem.length >= LARGE_WEIGHTS,
                self.a[model],
                group.duals,
                group.until,
                self.state[model],
            )
        )

    def _present_panel(self, window: Window, group: Group, panel: Panel, awake: np.ndarray, count: int) -> int:
        block, problem = window.block, self.problem
        return int(
            many.ascend_panel(
                awake,
                0,
                count,
                *block.entries,
                block.labels,
                NO_WEIGHTS if block.weights is None else block.weights,
                window.folds,
                problem.loss.number,
                problem.parameter,
                problem.bias,
                self.rows.inverses,
                np.uint8(self._epoch % 256),
                self._wakes,
                len(panel.weights) >= LARGE_WEIGHTS,
                problem.features,
                panel.table,
                panel.weights,
                group.duals,
                group.until,
                panel.state,
            )
        )

    def _part(self) -> None:
        """Take the vectors out of the panels."""
        for panel in self._panels.values():
            panel.part([self.a[model] for model in panel.models], [self.state[model] for model in panel.models])
        self._panels = {}

    def end_epoch(self) -> None:
        """See `Solver`."""
        self._part()
        # where each looks at few rows of its own, one after the other is cheaper
        for number, rows in self._rows_of_panels.items():
            group = self.rows.groups[number]
            visits = sum(float(self.state[model][VISITED]) for model in group.models)
            if visits < _LANES_COST * (group.width // LANES) * rows:
                self._alone.update(group.models)
        self._rows_of_panels = {}

    def bound(self, model: int) -> Bound | None:
        """See `Solver`. Of all t b with t in [0, 1] the best, as the box holds them too, and losses are at least 0."""
        if self.problem.free != NO_FREE:
            return self._bound_of_free(model)
        spec, state = self.problem.specs[model], self.state[model]
        gain, square = float(state[DUAL]), self._square(model)
        dual_error, vector_error_ = self._rounding_errors(model)
        least_gain = gain - dual_error
        most_cost = raised(norm_above(square, self.problem.length, vector_error_) ** 2 / spec.clock, 4)
        part = best_part(least_gain, most_cost)
        value = part * least_gain - part * part * most_cost / 2
        # the box of a row is rounded as well: what lies in the rounded one lies in the true one, made a little smaller
        value -= _BOUND_OPERATIONS * UNIT_ROUNDOFF * (part * abs(gain) + part * most_cost)
        part, cost = best_part(gain, square / spec.clock), square / spec.clock
        exact = part * gain - part * part * cost / 2
        return Bound(value / spec.rows * (1 - 4 * UNIT_ROUNDOFF), max(exact - value, 0.0) / spec.rows)

    def keep_duals(self, model: int, bound: Bound) -> None:
        """See `Solver`."""
        if self.record is None:
            return
        if isinstance(bound, BalancedBound):
            self._keep_balanced(model, bound, self._duals_of(model))
        else:
            part = best_part(float(self.state[model][DUAL]), self._square(model) / self.problem.specs[model].clock)
            self.record.keep(model, self._duals_of(model), part)

    def _duals_of(self, model: int) -> RowDuals:
        return RowDuals(self.rows.duals_of(model), weighted=True)

    def _bound_of_free(self, model: int) -> BalancedBound | None:
        """The bound where the bias is not regularised."""
        if self.balance is None:
            return None
        state, bias, mass = self.state[model], self.problem.bias, self._mass(model)
        dual_error, error = self._rounding_errors(model)
        centre = float(state[CENTRE])
        sums = self.a[model].copy()
        sums[-1] = mass
        # the running sum is that for the bias held at the centre
        value, value_error = float(state[DUAL]) + centre * mass, dual_error + self._centre_error(model, centre, error)
        point = DualPoint.rounded(sums, error, bias, value, value_error)
        found = self.balance.bound(model, point, centre + bias**2 * mass / self._clock(model), self.lines[model])
        if self.record is not None and found.line is not None:
            line, part = found.line
            self.record.keep_line(model, line, self._duals_of(model), part)
        return found

    def _centre_error(self, model: int, move: float, error: float) -> float:
        """Bound the error of taking the dual sum from one centre to another, given that of `a`."""
        mass = abs(self._mass(model))
        size = abs(float(self.state[model][DUAL])) + abs(move) * mass
        return raised(abs(move) * error / self.problem.bias + 8 * UNIT_ROUNDOFF * size, 8)

    def _rounding_errors(self, model: int) -> tuple[float, float]:
        """Bounds on the errors of the dual sum and of `a`, in norm, at the end of an epoch."""
        state, problem = self.state[model], self.problem
        if state[RENEWED]:
            return float(state[DUAL_ERROR]), float(state[VECTOR_ERROR])
        changed, visited, magnitude = float(state[CHANGED]), float(state[VISITED]), float(state[MAGNITUDE])
        if problem.loss.number == HINGE:  # where only what changes is added, at most a whole box
            offset = abs(problem.specs[model].offset) + abs(float(state[CENTRE]))
            visited, magnitude = changed, changed * 2 * problem.limits.weight * (1 + offset)
        of_dual = sum_error(
            visited + self._sums_of_parts(), abs(float(state[DUAL])) + magnitude, magnitude, _TERM_OPERATIONS
        )
        step, parts = 2 * problem.longest_step, self._sums_of_parts()
        # no longer than at the end, and what was changed; that of a part lacks what others have changed
        largest = norm_above(self._square(model), problem.length, 2 * changed * step)
        of_vector = vector_error(changed + parts, largest, step, 4)
        return float(state[DUAL_ERROR]) + of_dual, float(state[VECTOR_ERROR]) + of_vector

    def _sums_of_parts(self) -> int:
        """Return the number of times that vectors of parts were scaled or added up in an epoch."""
        return 0

    def wants_renewal(self, model: int, gap: float, bound: Bound) -> bool:
        """See `Solver`."""
        state = self.state[model]
        if state[RENEWED]:
            return False
        likely = bound.value + bound.rounding
        if gap <= NEAR * self.tolerance:
            return bound.rounding > _WORTH_RENEWAL * self.tolerance * likely
        if self._epoch + 1 < 2 * state[RENEWED_AT]:
            return False  # seldom, as long as much else is missing
        is_lost = self._rounding_errors(model)[0] > _WORTH_RENEWAL * abs(float(state[DUAL]))
        return is_lost or bound.rounding > _WORTH_RENEWAL * gap * likely

    def renew(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> None:
        """See `Solver`."""
        for found in self.dual_sums(models, windows):
            self.take_sums(found)

    def dual_sums(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> list[DualSums]:
        """Add up anew what the dual variables of some models come to."""
        sums = {model: DualSums(self.problem, model) for model in models}
        for window in windows():
            self.rows.enter(window)
            for group in self.rows.groups:
                for column, model in enumerate(group.models):
                    if model in sums:
                        sums[model].add(window, group, column)
        return list(sums.values())

    def take_sums(self, found: DualSums) -> None:
        """Replace the running sums of a model."""
        state, rows = self.state[found.model], self.problem.specs[found.model].rows
        self.a[found.model][:] = found.vector()
        state[DUAL] = found.dual
        state[DUAL_ERROR] = found.dual_error(rows)
        state[VECTOR_ERROR] = found.vector_error(rows)
        if self.problem.free != NO_FREE:
            centre = float(state[CENTRE])
            state[DUAL] -= centre * self._mass(found.model)
            state[DUAL_ERROR] += self._centre_error(found.model, centre, float(state[VECTOR_ERROR]))
        state[RENEWED], state[RENEWED_AT] = 1.0, self._epoch + 1

    def estimate(self, model: int) -> float:
        """The dual and the gap as met, which was larger than it is now; less what a larger lambda adds."""
        spec, state, clock = self.problem.specs[model], self.state[model], self._clock(model)
        half = self._square(model) / clock / 2
        bias = float(self.a[model][-1]) ** 2 / clock if self.problem.free != NO_FREE else 0.0
        more = (half - bias / 2) * (1 - spec.clock / clock)
        return float(state[DUAL] + state[GAP] - half - bias / 2 - more) / spec.rows

    def candidates(self, model: int) -> list[np.ndarray]:
        """See `Solver`."""
        self._part()  # time may run out within an epoch
        return [self._mean(model) / self._clock(model)]

    def _mean(self, model: int) -> np.ndarray:
        """The running mean with this epoch's end in it; that alone as long as each epoch changes much."""
        if self._epoch < _AVERAGED_FROM or self.state[model][STRETCH] > 1:
            return self._end(model)
        return self.mean[model] + _FRESH * (self._end(model) - self.mean[model])

    def _end(self, model: int) -> np.ndarray:
        """Lambda m times the weights at the end of this epoch, the bias reckoned from 0 and not from its centre."""
        centre = float(self.state[model][CENTRE])
        if not centre:
            return self.a[model]
        end = self.a[model].copy()
        end[-1] += centre * self._clock(model) / self.problem.bias
        return end

    def _mass(self, model: int) -> float:
        """The sum of the dual variables, which is 0 at the optimum if the bias is not regularised."""
        return float(self.a[model][-1]) / self.problem.bias

    def place_centres(self) -> None:
        """See `Solver`."""
        assert self.balance is not None
        for model in self.active:
            if not self.a[model].any():
                self.state[model][CENTRE] = self.balance.first_bias(model)

    def _move_centre(self, model: int) -> None:
        """Move the centre of the bias to the bias that was found, or beyond."""
        state, mass = self.state[model], self._mass(model)
        move = next_move(state, self.problem.bias**2 * mass / self._clock(model), HASTE, MOVE)
        state[DUAL_ERROR] += self._centre_error(model, move, float(state[VECTOR_ERROR]))
        state[CENTRE] += move
        state[DUAL] -= move * mass

    def advance(self) -> None:
        """See `Solver`."""
        for model in self.active:
            self.mean[model][:] = self._mean(model)
            self.state[model][[DUAL_ERROR, VECTOR_ERROR]] = self._rounding_errors(model)
            if self.problem.free != NO_FREE:
                self._move_centre(model)

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""
        little = Problem(self.problem.loss, 0.0, 1, 0.0, 1.0, self.problem.specs[:1])
        rows = self.rows.without_rows()
        one = SdcaSolver(little, rows, 1.0)
        window = Window((), nothing, [], np.empty(0, np.uint8), np.empty(0, np.uint32))
        one._set_epoch(0)
        for models, width in ([0], 1), ([0], width_of(1)):
            rows.groups = [Group(models, width)]
            if (width == 1) == (len(self.active) <= APART):
                one.present(window, 0, 0)

    def drop(self, models: list[int]) -> None:
        """See `Solver`."""
        super().drop(models)
        for model in models:
            del self.a[model], self.mean[model], self.state[model]

    def counts(self, model: int) -> dict[str, int]:
        """See `Solver`."""
        state = self.state[model]
        return {"visited": int(state[VISITED]), "changed": int(state[CHANGED])}

    def save(self, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See `Solver`."""
        self._part()
        arrays: dict[str, np.ndarray] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for model in self.active:
            arrays |= {f"{model} a": self.a[model], f"{model} mean": self.mean[model]}
            arrays[f"{model} state"], arrays[f"{model} lines"] = self.state[model], self.lines[model].numbers
        number = 1 + max((int(path.stem.split("-")[1]) for path in folder.glob("rows-*.checkpoint")), default=0)
        rows = self.rows.save(folder / f"rows-{number}.checkpoint")
        seen = list(self._rows_of_panels.items())
        facts = {"active": self.active, "epoch": self._epoch, "alone": sorted(self._alone), "seen": seen, "rows": rows}
        return arrays, facts

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """See `Solver`."""
        facts = saved.facts["solver"]
        models = len(self.problem.specs)
        self.drop([model for model in self.active if model not in facts["active"]])
        alone = [whole(model, 0, models - 1, "model") for model in facts["alone"]]
        self.resume(whole(facts["epoch"], -1, 2**62, "epoch"), alone, {})
        for model in self.active:
            for name, mine in (("a", self.a), ("mean", self.mean), ("state", self.state)):
                mine[model][:] = take(saved.arrays, f"{model} {name}", mine[model])
            self.lines[model].restore(saved.arrays, f"{model} lines")
        self._set_epoch(self._epoch)
        known = self.active if saved.facts["cursor"]["begun"] else range(models)
        for together, width in facts["rows"]["groups"]:
            if not set(together) <= set(known) or width not in (1, width_of(len(together))) or width < len(together):
                raise ValueError(f"a group {together} of {width}")
        groups = len(facts["rows"]["groups"])
        if saved.facts["cursor"]["begun"] and self.active and not groups:
            raise ValueError("no groups")
        self._rows_of_panels = {
            whole(number, 0, groups - 1, "group"): whole(rows, 0, 2**62, "rows") for number, rows in facts["seen"]
        }
        self.rows.restore(folder, facts["rows"])

    def close(self) -> None:
        """See `Solver`."""
        self.rows.close()
        if self._pool:
            self._pool.shutdown()
