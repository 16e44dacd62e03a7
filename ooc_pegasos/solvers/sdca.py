"""Dual coordinate ascent (SDCA) for all models of a run, equation (7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit import panel_steps
from ooc_pegasos.compiled.fit import sdca as kernels
from ooc_pegasos.compiled.fit.lanes import LANES
from ooc_pegasos.compiled.fit.pegasos import NO_FREE_BIAS, proximal_step, square
from ooc_pegasos.compiled.fit.sdca import (
    CENTRE,
    CHANGED,
    DEVIATION,
    DUAL,
    DUAL_ERROR,
    GAP,
    LAMBDA_FACTOR,
    LAST_STEP,
    MAGNITUDE,
    PERIODS,
    RECOMPUTED,
    RECOMPUTED_AT,
    SLACK_UNIT,
    STATE_SIZE,
    STEP_FACTOR,
    VECTOR_ERROR,
    VISITED,
)
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import Bound, best_scale
from ooc_pegasos.objective.free_bias import BalancedBound, DualPoint, Lines
from ooc_pegasos.objective.model_panel import Panel, panels_of, width_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.objective.rounding import UNIT_ROUNDOFF, norm_upper_bound, rounded_up, sum_error, vector_error
from ooc_pegasos.solvers.base import LARGE_WEIGHTS, NEAR_TOLERANCE, NO_REPEATS, Solver
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.dual_sums import DualSums
from ooc_pegasos.solvers.proof_record import RowDuals
from ooc_pegasos.solvers.row_cache import CachedRows, Piece
from ooc_pegasos.solvers.row_group import MAX_SEPARATE, Group
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint, take, whole

_PANEL_COST = 2.5
"""Cost of a row for eight models in a panel, relative to a single model."""
_AVERAGED_FROM, _MEAN_WEIGHT = 6, 0.35
"""Epochs after which the candidate is an exponential mean of the iterates; the weight of the last iterate."""


_WINDOW_WEIGHT = 0.1
"""Weight of the iterate at the end of a window in the mean, if each window is processed several times."""
_AT_PIECE, _LEVEL = range(2)
_SETTLED = 0.05
"""Gap of rows, in tolerances, below which they are not processed again while a window is in memory."""
_ENOUGH_VISITS, _PASSES = 100.0, 4
"""Factor of lambda that need not be continued if each window is processed several times, and how often that is."""
_SLOW_DECAY, _FAST_DECAY = 0.95, 0.8
"""Factors by which an increased lambda decreases in an epoch: in general, and if its problem is solved well enough."""
_MIN_SLACK_UNIT = 0.01
_MAX_CENTRE_STEP = 0.2
"""Largest step of a bias centre, in units of slack, with which rows may be inactive."""
_BOUND_OPERATIONS, _TERM_OPERATIONS = 32, 64
_RECOMPUTE_SHARE = 0.1
"""Share of the tolerance; larger rounding errors make sums be recomputed."""


class SdcaSolver(Solver):
    """The vectors `a = sum b_i x_i`, one per model, and the sums in `state`; the b_i are in `rows`.

    If lambda m is much smaller than ||x||^2 a step is a small part of the box, and dual variables would take hundreds
    of epochs to converge. Neither the box nor `a` depends on lambda, so training uses lambda continuation: it begins
    with a lambda that is `LAMBDA_FACTOR` times larger, and decreases it as its problems are solved.
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
            wanted = rows.typical_square / problem.specs[model].clock
            state[LAMBDA_FACTOR] = max(1.0, wanted / _ENOUGH_VISITS if rows.cache else wanted)
            state[SLACK_UNIT] = 1.0 if problem.loss.is_unit_hinge else 0.0
            state[STEP_FACTOR] = 1.0
        self._epoch = -1
        self._pass = 0
        self.windowed = {model: np.zeros(2) for model in self.active} if rows.cache else {}
        """If windows are processed several times: the sum of gaps before this piece of the work, and the dual objective
        of a row."""
        self._squares: dict[int, float] | None = None
        self._next_epochs = np.zeros(len(PERIODS), np.uint8)
        self._panels: dict[int, Panel] = {}
        self._separate: set[int] = set()
        self._panel_rows: dict[int, int] = {}
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers) if workers > 1 and len(self.active) > 1 else None

    @property
    def visits_rows_often(self) -> bool:  # type: ignore[override]
        """See `Solver`."""
        return self.rows.cache is not None

    def _groups(self) -> list[tuple[list[int], int]]:
        members = [model for model in self.active if model not in self._separate]
        separate = [model for model in self.active if model in self._separate]
        groups = []
        for models in panels_of(members, self._workers):
            if len(models) > MAX_SEPARATE:
                groups.append((models, width_of(len(models))))
            else:
                separate += models
        return groups + [([model], 1) for model in separate]

    def begin_epoch(self, repeats: Mapping[int, int] = NO_REPEATS) -> None:
        """See `Solver`."""
        self.rows.regroup(self._groups())
        for model in self.active:
            state = self.state[model]
            self._continue_lambda(model)
            if self.problem.loss.is_unit_hinge:
                deviation, changed = state[DEVIATION], state[CHANGED]
                state[SLACK_UNIT] = (
                    min(max(2 * deviation / changed, _MIN_SLACK_UNIT), 1.0) if changed else state[SLACK_UNIT]
                )
            else:
                state[SLACK_UNIT] = state[DEVIATION] / state[VISITED] if state[VISITED] else state[SLACK_UNIT]
            state[[GAP, VISITED, CHANGED, DEVIATION, MAGNITUDE, RECOMPUTED]] = 0.0
        self._squares = None
        self._set_epoch(self._epoch + 1)

    def _continue_lambda(self, model: int) -> None:
        """Decrease an increased lambda after an epoch."""
        state = self.state[model]
        if state[LAMBDA_FACTOR] > 1 and state[VISITED]:
            rows = self.problem.specs[model].rows
            bound = (state[DUAL] - self._square(model) / self._clock(model) / 2) / rows
            solved = state[GAP] / rows < 2 * self.tolerance * bound
            decay = (_FAST_DECAY if solved else _SLOW_DECAY) ** (_PASSES if self.rows.cache else 1)
            state[LAMBDA_FACTOR] = max(1.0, state[LAMBDA_FACTOR] * decay)

    def change_problem(self, problem: Problem) -> None:
        """See `Solver`. Neither `a` nor the box depends on lambda, but the scores do, so all rows become active.

        A lambda that is much smaller is reached in several epochs: at once the weights would be too large.
        """
        for model in self.active:
            self.state[model][LAMBDA_FACTOR] = max(1.0, self._clock(model) / problem.specs[model].clock)
            self.mean[model][:] = self._iterate(model)
            self.lines[model] = Lines()
        self.problem, self.balance = problem, None  # the balance is that of a problem
        if self.rows.cache:
            self.rows.cache.forget_activity()
        self._set_epoch(self._epoch + PERIODS[-1])

    def _clock(self, model: int) -> float:
        return self.problem.specs[model].clock * float(self.state[model][LAMBDA_FACTOR])

    def _square(self, model: int) -> float:
        """Return ||a||^2, which is computed once between two epochs."""
        if self._squares is None:
            return square(self.a[model])
        if model not in self._squares:
            self._squares[model] = square(self.a[model])
        return self._squares[model]

    @property
    def separate(self) -> set[int]:
        """Models that are trained separately, since each has few active rows."""
        return self._separate

    @property
    def panel_rows(self) -> dict[int, int]:
        """Rows processed by each panel in this epoch."""
        return self._panel_rows

    def resume(self, epoch: int, separate: Iterable[int], panel_rows: dict[int, int]) -> None:
        """Continue after an epoch, given its number, the separate models, and the rows of each panel."""
        self._set_epoch(epoch)
        self._separate, self._panel_rows = set(separate), dict(panel_rows)

    def _set_epoch(self, number: int) -> None:
        self._epoch = number
        self._set_pass(number)

    def _set_pass(self, number: int) -> None:
        """Set the number by which the activity of rows is counted: that of the epoch, or of a pass over a window."""
        self._pass = number
        periods = (1,) * len(PERIODS) if self._are_centres_moving() else PERIODS
        self._next_epochs = np.array([(number // period + 1) * period % 256 for period in periods], np.uint8)

    def _are_centres_moving(self) -> bool:
        """True while centres of biases move so far that no row may be inactive."""
        if self.problem.free == NO_FREE_BIAS:
            return False
        steady = (_MAX_CENTRE_STEP * max(float(state[SLACK_UNIT]), _MIN_SLACK_UNIT) for state in self.state.values())
        moves = (float(state[LAST_STEP] * state[STEP_FACTOR]) for state in self.state.values())
        return self._epoch == 0 or any(abs(move) > least for move, least in zip(moves, steady, strict=True))

    def enter(self, window: Window) -> None:
        """See `Solver`."""
        self.rows.release(window.chunks)
        self.rows.enter(window)

    def leave(self, window: Window) -> None:
        """See `Solver`."""
        if self.rows.cache:
            self._write_back_panels()
            for model, at_window in self.windowed.items():
                state, clock = self.state[model], self._clock(model)
                weight = _WINDOW_WEIGHT if self.mean[model].any() else 1.0
                self.mean[model] += weight * (self._iterate(model) - self.mean[model])
                dual = float(state[DUAL]) - square(self.a[model]) / clock / 2
                at_window[_LEVEL] = max(dual, 0.0) / self.problem.specs[model].rows
            self.rows.exchange()
        self.rows.leave()

    def piece(self, window: Window, index: int, seed: Sequence[int]) -> Piece | None:
        """See `Solver`."""
        cache = self.rows.cache
        once = self.is_nearly_done
        return cache.piece(window, index, seed, once) if cache else super().piece(window, index, seed)

    def start(self, piece: Piece, is_resumed: bool) -> None:
        """See `Solver`. The gap of a window is that of the first pass: later ones know the rows too well."""
        if self.rows.cache is None:
            return
        self._set_pass(self.rows.cache.passes if piece.is_cached else piece.number)
        if is_resumed:
            return
        for model, at_window in self.windowed.items():
            at_window[_AT_PIECE] = self._gap(model)[0]

    def finish(self, piece: Piece) -> None:
        """See `Solver`."""
        if self.rows.cache is None:
            return
        is_settled, rows = True, len(piece.window.order)
        for model, at_window in self.windowed.items():
            gap = self._gap(model)
            is_settled &= bool(gap[0] - at_window[_AT_PIECE] <= _SETTLED * self.tolerance * at_window[_LEVEL] * rows)
            if piece.is_cached or piece.number:
                gap[:] = at_window[_AT_PIECE]
        self.rows.cache.finish(piece, is_settled)

    def _gap(self, model: int) -> np.ndarray:
        """Return the sum of gaps of a model in this epoch, as a view of one number."""
        for panel in self._panels.values():
            if model in panel.models:
                at = panel.models.index(model)
                return panel.state[GAP, at : at + 1]
        return self.state[model][GAP : GAP + 1]

    def read_again(self, windows: Callable[[], Iterator[Window]]) -> None:
        """See `Solver`."""
        self.rows.read_again(windows)

    def process(self, window: Window, begin: int, end: int) -> int:
        """See `Solver`. Groups are independent, so each can have a thread."""
        self._squares = None
        states = window if isinstance(window, CachedRows) else self.rows
        groups = list(enumerate(states.groups))

        def work(job: tuple[int, Group]) -> int:
            return self._process_group(*job, window, states.inverses, begin, end)

        if self._pool is None or len(groups) < 2:
            return max(map(work, groups))
        return max(self._pool.map(work, groups))

    def _process_group(
        self, number: int, group: Group, window: Window, inverses: np.ndarray, begin: int, end: int
    ) -> int:
        now = np.uint8(self._pass % 256)
        active_rows = np.empty(end - begin, window.order.dtype)
        count = kernels.select_active_rows(
            window.order, begin, end, group.inactive_until, group.width, len(group.models), now, active_rows
        )
        if group.width == 1:
            return self._process_model(window, group, inverses, active_rows, count)
        panel = self._panels.get(number)
        if panel is None:
            vectors, states = [self.a[model] for model in group.models], [self.state[model] for model in group.models]
            clocks = [self._clock(model) for model in group.models]
            centres = [float(state[CENTRE]) for state in states]
            panel = Panel(self.problem, group.models, vectors, states, clocks=clocks, offsets=centres)
            self._panels[number] = panel
        self._panel_rows[number] = self._panel_rows.get(number, 0) + count
        return self._process_panel(window, group, inverses, panel, active_rows, count)

    def _process_model(
        self, window: Window, group: Group, inverses: np.ndarray, active_rows: np.ndarray, count: int
    ) -> int:
        block, problem = window.block, self.problem
        model = group.models[0]
        spec = problem.specs[model]
        return int(
            kernels.ascend_rows(
                active_rows,
                0,
                count,
                *block.arrays,
                window.folds,
                np.array(spec.class_weights),
                float(spec.one_class),
                spec.fold,
                spec.offset + float(self.state[model][CENTRE]),
                problem.loss.number,
                problem.parameter,
                self._clock(model),
                problem.bias,
                inverses,
                self._next_epochs,
                problem.length >= LARGE_WEIGHTS,
                self.a[model],
                group.duals,
                group.inactive_until,
                self.state[model],
            )
        )

    def _process_panel(
        self, window: Window, group: Group, inverses: np.ndarray, panel: Panel, active_rows: np.ndarray, count: int
    ) -> int:
        block, problem = window.block, self.problem
        return int(
            panel_steps.ascend_panel(
                active_rows,
                0,
                count,
                *block.arrays,
                window.folds,
                problem.loss.number,
                problem.parameter,
                problem.bias,
                inverses,
                np.uint8(self._pass % 256),
                self._next_epochs,
                len(panel.weights) >= LARGE_WEIGHTS,
                problem.features,
                panel.table,
                panel.weights,
                group.duals,
                group.inactive_until,
                panel.state,
            )
        )

    def _write_back_panels(self) -> None:
        """Copy the vectors from the panels."""
        for panel in self._panels.values():
            panel.write_back([self.a[model] for model in panel.models], [self.state[model] for model in panel.models])
        self._panels = {}

    def end_epoch(self) -> None:
        """See `Solver`."""
        self._write_back_panels()
        self._squares = {}
        # models with few active rows each are cheaper to train separately
        for number, rows in self._panel_rows.items():
            group = self.rows.groups[number]
            visits = sum(float(self.state[model][VISITED]) for model in group.models)
            if visits < _PANEL_COST * (group.width // LANES) * rows:
                self._separate.update(group.models)
        self._panel_rows = {}

    def bound(self, model: int) -> Bound | None:
        """See `Solver`. The best of all t b with t in [0, 1] is used, which are in the box; losses are not negative."""
        if self.problem.free != NO_FREE_BIAS:
            return self._bound_of_free(model)
        spec, state = self.problem.specs[model], self.state[model]
        gain, square = float(state[DUAL]), self._square(model)
        dual_error, vector_error_ = self._rounding_errors(model)
        min_gain = gain - dual_error
        max_cost = rounded_up(norm_upper_bound(square, self.problem.length, vector_error_) ** 2 / spec.clock, 4)
        part = best_scale(min_gain, max_cost)
        value = part * min_gain - part * part * max_cost / 2
        # boxes are rounded as well, so the dual vector is shrunk a little
        value -= _BOUND_OPERATIONS * UNIT_ROUNDOFF * (part * abs(gain) + part * max_cost)
        part, cost = best_scale(gain, square / spec.clock), square / spec.clock
        exact = part * gain - part * part * cost / 2
        return Bound(value / spec.rows * (1 - 4 * UNIT_ROUNDOFF), max(exact - value, 0.0) / spec.rows)

    def keep_duals(self, model: int, bound: Bound) -> None:
        """See `Solver`."""
        if self.record is None:
            return
        if isinstance(bound, BalancedBound):
            self._keep_balanced(model, bound, self._duals_of(model))
        else:
            part = best_scale(float(self.state[model][DUAL]), self._square(model) / self.problem.specs[model].clock)
            self.record.keep(model, self._duals_of(model), part)

    def _duals_of(self, model: int) -> RowDuals:
        return RowDuals(self.rows.duals_of(model), weighted=True)

    def _bound_of_free(self, model: int) -> BalancedBound | None:
        """Return the bound for an unregularized bias."""
        if self.balance is None:
            return None
        state, bias, mass = self.state[model], self.problem.bias, self._mass(model)
        dual_error, error = self._rounding_errors(model)
        centre = float(state[CENTRE])
        sums = self.a[model].copy()
        sums[-1] = mass
        # the running sum is that for a bias fixed at the centre
        value, value_error = float(state[DUAL]) + centre * mass, dual_error + self._centre_error(model, centre, error)
        point = DualPoint.rounded(sums, error, bias, value, value_error)
        found = self.balance.bound(model, point, centre + bias**2 * mass / self._clock(model), self.lines[model])
        if self.record is not None and found.line is not None:
            line, part = found.line
            self.record.keep_line(model, line, self._duals_of(model), part)
        return found

    def _centre_error(self, model: int, move: float, error: float) -> float:
        """Return a bound on the error of the dual sum when the centre moves, given the error of `a`."""
        mass = abs(self._mass(model))
        size = abs(float(self.state[model][DUAL])) + abs(move) * mass
        return rounded_up(abs(move) * error / self.problem.bias + 8 * UNIT_ROUNDOFF * size, 8)

    def _rounding_errors(self, model: int) -> tuple[float, float]:
        """Return bounds on the errors of the dual sum and of `a`, in norm, at the end of an epoch."""
        state, problem = self.state[model], self.problem
        if state[RECOMPUTED]:
            return float(state[DUAL_ERROR]), float(state[VECTOR_ERROR])
        changed, visited, magnitude = float(state[CHANGED]), float(state[VISITED]), float(state[MAGNITUDE])
        if problem.loss.is_unit_hinge:  # only changes are added, each at most the box
            offset = abs(problem.specs[model].offset) + abs(float(state[CENTRE]))
            visited, magnitude = changed, changed * 2 * problem.limits.weight * (1 + offset)
        dual_rounding = sum_error(
            visited + self._sums_of_parts(), abs(float(state[DUAL])) + magnitude, magnitude, _TERM_OPERATIONS
        )
        step, parts = 2 * problem.max_step, self._sums_of_parts()
        # at most the final norm plus all changes; a part lacks the changes of other parts
        largest = norm_upper_bound(self._square(model), problem.length, 2 * changed * step)
        vector_rounding = vector_error(changed + parts, largest, step, 4)
        return float(state[DUAL_ERROR]) + dual_rounding, float(state[VECTOR_ERROR]) + vector_rounding

    def _sums_of_parts(self) -> int:
        """Return the number of times that vectors of parts were scaled or added up in an epoch."""
        return 0

    def needs_recomputing(self, model: int, gap: float, bound: Bound) -> bool:
        """See `Solver`."""
        state = self.state[model]
        if state[RECOMPUTED]:
            return False
        likely_bound = bound.value + bound.rounding
        if gap <= NEAR_TOLERANCE * self.tolerance:
            return bound.rounding > _RECOMPUTE_SHARE * self.tolerance * likely_bound
        if self._epoch + 1 < 2 * state[RECOMPUTED_AT]:
            return False  # rarely while the gap is large
        is_lost = self._rounding_errors(model)[0] > _RECOMPUTE_SHARE * abs(float(state[DUAL]))
        return is_lost or bound.rounding > _RECOMPUTE_SHARE * gap * likely_bound

    def recompute_sums(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> None:
        """See `Solver`."""
        for found in self.dual_sums(models, windows):
            self.set_sums(found)

    def dual_sums(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> list[DualSums]:
        """Recompute the sums over the dual variables of some models."""
        sums = {model: DualSums(self.problem, model) for model in models}
        self.rows.flush()
        for window in windows():
            self.rows.enter(window)
            for group in self.rows.groups:
                for column, model in enumerate(group.models):
                    if model in sums:
                        sums[model].add(window, group, column)
        return list(sums.values())

    def set_sums(self, found: DualSums) -> None:
        """Replace the running sums of a model."""
        state, rows = self.state[found.model], self.problem.specs[found.model].rows
        self.a[found.model][:] = found.vector()
        self._squares = None
        state[DUAL] = found.dual
        state[DUAL_ERROR] = found.dual_error(rows)
        state[VECTOR_ERROR] = found.vector_error(rows)
        if self.problem.free != NO_FREE_BIAS:
            centre = float(state[CENTRE])
            state[DUAL] -= centre * self._mass(found.model)
            state[DUAL_ERROR] += self._centre_error(found.model, centre, float(state[VECTOR_ERROR]))
        state[RECOMPUTED], state[RECOMPUTED_AT] = 1.0, self._epoch + 1

    def estimate(self, model: int) -> float:
        """Return dual plus gap at the time of each update, less the effect of an increased lambda."""
        spec, state, clock = self.problem.specs[model], self.state[model], self._clock(model)
        half = self._square(model) / clock / 2
        bias = float(self.a[model][-1]) ** 2 / clock if self.problem.free != NO_FREE_BIAS else 0.0
        more = (half - bias / 2) * (1 - spec.clock / clock)
        return float(state[DUAL] + state[GAP] - half - bias / 2 - more) / spec.rows

    def candidates(self, model: int) -> list[np.ndarray]:
        """See `Solver`."""
        self._write_back_panels()  # the time limit may end an epoch early
        found = [self._iterate(model), self.mean[model]] if self.rows.cache else [self._mean(model)]
        return [one / self._clock(model) for one in found]

    def _mean(self, model: int) -> np.ndarray:
        """Return the exponential mean of the iterates, or in early epochs the last iterate."""
        if self._epoch < _AVERAGED_FROM or self.state[model][LAMBDA_FACTOR] > 1:
            return self._iterate(model)
        return self.mean[model] + _MEAN_WEIGHT * (self._iterate(model) - self.mean[model])

    def _iterate(self, model: int) -> np.ndarray:
        """Return lambda m times the weights at the end of this epoch, with the centre added to the bias."""
        centre = float(self.state[model][CENTRE])
        if not centre:
            return self.a[model]
        end = self.a[model].copy()
        end[-1] += centre * self._clock(model) / self.problem.bias
        return end

    def _mass(self, model: int) -> float:
        """Return the sum of the dual variables, which is 0 at the optimum of an unregularized bias."""
        return float(self.a[model][-1]) / self.problem.bias

    def init_centres(self) -> None:
        """See `Solver`."""
        assert self.balance is not None
        for model in self.active:
            if not self.a[model].any():
                self.state[model][CENTRE] = self.balance.initial_bias(model)

    def _update_centre(self, model: int) -> None:
        """Move the proximal centre of the bias, with extrapolation."""
        state, mass = self.state[model], self._mass(model)
        move = proximal_step(state, self.problem.bias**2 * mass / self._clock(model), STEP_FACTOR, LAST_STEP)
        state[DUAL_ERROR] += self._centre_error(model, move, float(state[VECTOR_ERROR]))
        state[CENTRE] += move
        state[DUAL] -= move * mass

    def advance(self) -> None:
        """See `Solver`."""
        for model in self.active:
            if not self.rows.cache:
                self.mean[model][:] = self._mean(model)
            self.state[model][[DUAL_ERROR, VECTOR_ERROR]] = self._rounding_errors(model)
            if self.problem.free != NO_FREE_BIAS:
                self._update_centre(model)

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""
        little = Problem(self.problem.loss, 0.0, 1, 0.0, 1.0, self.problem.specs[:1])
        rows = self.rows.without_rows()
        one = SdcaSolver(little, rows, 1.0)
        window = Window((), nothing, [], np.empty(0, np.uint8), np.empty(0, np.uint32))
        one._set_epoch(0)
        for models, width in ([0], 1), ([0], width_of(1)):
            rows.groups = [Group(models, width)]
            if (width == 1) == (len(self.active) <= MAX_SEPARATE):
                one.process(window, 0, 0)

    def drop(self, models: list[int]) -> None:
        """See `Solver`."""
        super().drop(models)
        for model in models:
            del self.a[model], self.mean[model], self.state[model]
            self.windowed.pop(model, None)

    def counts(self, model: int) -> dict[str, int]:
        """See `Solver`."""
        state = self.state[model]
        return {"visited": int(state[VISITED]), "changed": int(state[CHANGED])}

    def save(self, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """See `Solver`."""
        self._write_back_panels()
        arrays: dict[str, np.ndarray] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for model in self.active:
            arrays |= {f"{model} a": self.a[model], f"{model} mean": self.mean[model]}
            arrays[f"{model} state"], arrays[f"{model} lines"] = self.state[model], self.lines[model].numbers
        number = 1 + max((int(path.stem.split("-")[1]) for path in folder.glob("rows-*.checkpoint")), default=0)
        rows = self.rows.save(folder / f"rows-{number}.checkpoint")
        panel_rows = list(self._panel_rows.items())
        cached: dict[str, Any] = {}
        if self.rows.cache:
            cached, arrays["cached rows"] = self.rows.cache.facts()
            arrays |= {f"{model} windowed": numbers for model, numbers in self.windowed.items()}
        facts = {
            "active": self.active,
            "epoch": self._epoch,
            "alone": sorted(self._separate),
            "seen": panel_rows,
            "rows": rows,
            "cached": cached,
        }
        return arrays, facts

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """See `Solver`."""
        facts = saved.facts["solver"]
        models = len(self.problem.specs)
        self.drop([model for model in self.active if model not in facts["active"]])
        separate = [whole(model, 0, models - 1, "model") for model in facts["alone"]]
        self.resume(whole(facts["epoch"], -1, 2**62, "epoch"), separate, {})
        for model in self.active:
            for name, kept in (("a", self.a), ("mean", self.mean), ("state", self.state)):
                kept[model][:] = take(saved.arrays, f"{model} {name}", kept[model])
            self.lines[model].restore(saved.arrays, f"{model} lines")
        self._set_epoch(self._epoch)
        known = self.active if saved.facts["cursor"]["begun"] else range(models)
        for members, width in facts["rows"]["groups"]:
            if not set(members) <= set(known) or width not in (1, width_of(len(members))) or width < len(members):
                raise ValueError(f"a group {members} of {width}")
        groups = len(facts["rows"]["groups"])
        if saved.facts["cursor"]["begun"] and self.active and not groups:
            raise ValueError("no groups")
        self._panel_rows = {
            whole(number, 0, groups - 1, "group"): whole(rows, 0, 2**62, "rows") for number, rows in facts["seen"]
        }
        if not facts.get("cached"):  # written by a version without a cache
            self.rows.drop_cache()
            self.windowed = {}
        self.rows.restore(folder, facts["rows"])
        if self.rows.cache:
            self.rows.restore_cached(facts["cached"], saved.arrays["cached rows"])
            for model, numbers in self.windowed.items():
                numbers[:] = take(saved.arrays, f"{model} windowed", numbers)

    def close(self) -> None:
        """See `Solver`."""
        self.rows.close()
        if self._pool:
            self._pool.shutdown()
