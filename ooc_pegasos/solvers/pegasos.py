"""Pegasos and its variants for one model: single rows, repeated updates, or batches with a projection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_pegasos.compiled.fit import pegasos as kernels
from ooc_pegasos.compiled.fit.losses import PluggedLoss
from ooc_pegasos.compiled.fit.multiclass import process_classes
from ooc_pegasos.compiled.fit.pegasos import (
    AVERAGED,
    BY_BATCH,
    BY_SUBGRADIENT,
    ERRORS,
    FREE_BIAS,
    LAST_STEP,
    LOSS,
    MAGNITUDE,
    MASS,
    NO_FREE_BIAS,
    NORM2,
    PROXIMAL,
    SCALE,
    SQUARE,
    STATE_SIZE,
    STEP_FACTOR,
    SUM,
    SUM_ERROR,
    VECTOR_ERROR,
    S,
    T,
    proximal_step,
    square,
)
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.model_panel import new_panel
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.objective.rounding import UNIT_ROUNDOFF, rounded_up, sum_error, vector_error
from ooc_pegasos.solvers.base import LARGE_WEIGHTS, SLICE_ENTRIES
from ooc_pegasos.solvers.proof_record import NOT_RECORDED, RecordTarget
from ooc_pegasos.store.csr_block import CsrBlock


@dataclass(frozen=True)
class PegasosOptions:
    """The constants of a run."""

    lam: float
    delay: float
    loss: int | PluggedLoss
    class_weights: tuple[float, ...]
    batch_size: int
    project: bool
    average: bool
    average_everything: bool
    """Average all iterates rather than those of the epoch."""
    parameter: float = 0.0
    bias: float = 0.0
    free: int = NO_FREE_BIAS
    """The method for an unregularized bias."""
    max_step: float = 0.0
    """The largest norm of an update."""


_UPDATE_OPERATIONS, _SUM_OPERATIONS = (
    16,
    32,
)  # upper bounds for an update -c g x, and for a term of S, without the classes


class Pegasos:
    """The vectors `a` and `b` and the counters in `state`; see `compiled/fit/pegasos.py`."""

    def __init__(self, options: PegasosOptions, length: int) -> None:
        self.options = options
        self.a = np.zeros(length)
        self.b = np.zeros(length if options.average else 0)
        self.state = np.zeros(STATE_SIZE)
        self.state[[SCALE, STEP_FACTOR]] = 1.0
        self.averaged_from = 0.0
        self.marked = 0.0
        """Rows of the first half of the epoch; `loss_at_mark` is the sum of their losses."""
        self.loss_at_mark = 0.0
        self.began = 0.0
        self.repeats = 1
        self.record_target: RecordTarget = NOT_RECORDED
        """The arrays in which kernels sum -g of each row for a proof."""
        self.log_scale = np.zeros(1)
        self._class_weights = np.array(options.class_weights)

    threads = 1

    def rows_at_a_time(self, block: CsrBlock) -> int:
        """Number of rows of a block in a slice."""
        return max(1, SLICE_ENTRIES * block.rows // max(len(block.indices), 1))

    @property
    def t(self) -> float:
        """Number of processed rows."""
        return float(self.state[T])

    @property
    def dual_sum(self) -> float:
        """S of equation (4); with the hinge loss, the margin errors."""
        return float(self.state[S])

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of this epoch, each before its update."""
        return float(self.state[LOSS])

    @property
    def errors(self) -> float:
        """Updates since the epoch began."""
        return float(self.state[ERRORS])

    @property
    def scale(self) -> float:
        """The sum of updates is `scale * a`."""
        return float(self.state[SCALE])

    def warm_start(self, weights: np.ndarray) -> None:
        """Set initial weights: `w = a / (lam delay)` before the first row."""
        self.a[:] = weights * (self.options.lam * self.options.delay)
        if self.options.free != NO_FREE_BIAS:
            self.state[FREE_BIAS], self.a[-1] = weights[-1] * (self.options.bias or 1.0), 0.0
        self.state[NORM2] = self.state[SQUARE] = square(self.a)

    def begin_epoch(self, repeats: int = 1) -> None:
        """Reset the counts and averages of an epoch with `repeats` updates per row."""
        self.repeats = repeats
        self.state[[LOSS, ERRORS, MAGNITUDE]] = 0.0
        self.began, self.marked, self.loss_at_mark = self.t, 0.0, 0.0
        if len(self.b) and not self.options.average_everything:
            self.b[:] = 0.0
            self.state[AVERAGED] = 0.0
            self.averaged_from = self.t

    def process(self, block: CsrBlock, order: np.ndarray, begin: int, end: int, repeats: int) -> int:
        """Process rows `order[begin:end]` of a block; return the row that has an index out of range, or -1."""
        options = self.options
        rows = (order, begin, end, *block.arrays)
        large = len(self.a) >= LARGE_WEIGHTS
        if repeats > 1:
            bad = kernels.process_rows_repeatedly(
                *rows,
                self._class_weights,
                options.bias,
                options.lam,
                options.delay,
                repeats,
                large,
                self.a,
                self.b,
                self.state,
                *self.record_target,
            )
        elif options.batch_size > 1 or options.project or options.free in (BY_SUBGRADIENT, BY_BATCH):
            bad = kernels.process_batches(
                *rows,
                self._class_weights,
                options.loss,
                options.parameter,
                options.bias,
                options.lam,
                options.delay,
                options.batch_size,
                options.project,
                NO_FREE_BIAS if options.free == PROXIMAL else options.free,
                self.a,
                self.b,
                self.state,
                *self.record_target,
                self.log_scale,
            )
        else:
            bad = kernels.process_rows(
                *rows,
                self._class_weights,
                options.loss,
                options.parameter,
                options.bias,
                options.lam,
                options.delay,
                large,
                self.a,
                self.b,
                self.state,
                *self.record_target,
            )
        return int(bad)

    def rounding_errors(self, parts: int = 1, sums: float = 0.0) -> tuple[float, float]:
        """Return bounds on the errors of S and of `a`, in norm, at the end of an epoch of `parts` concurrent learners.

        `sums` is the number of times that their vectors were scaled and added.
        """
        state, options = self.state, self.options
        errors, magnitude = float(state[ERRORS]), float(state[MAGNITUDE])
        clock = options.lam * (self.t + options.delay)
        # An update adds 2 clock (-c g z) + ||c g x||^2 to ||a||^2, and -g z = (l - g z) - l <= l - g z, as losses are
        # not negative. Of a batch all updates may point the same way.
        batch = min(options.batch_size, errors)
        # (With a centre -g z is larger by at most |g| times that.)
        magnitude_of_steps = magnitude + errors * options.max_step * abs(float(state[FREE_BIAS])) / (
            options.bias or 1.0
        )
        growth = 2 * clock * magnitude_of_steps + errors * batch * options.max_step**2
        largest = rounded_up(np.sqrt(parts * rounded_up(float(state[SQUARE]) + growth, 2 * len(self.a))), 2 * errors)
        if options.free in (BY_SUBGRADIENT, BY_BATCH):  # the bias changes with each step
            largest = rounded_up(
                np.sqrt(rounded_up(float(state[SQUARE]), len(self.a))) + errors * options.max_step, errors
            )
        updates = errors + 4 * parts * sums
        if options.project:
            updates += 8 * self.repeats * (self.t - self.began) / options.batch_size
        s_most = max(abs(self.dual_sum), abs(float(state[SUM]))) + magnitude
        of_sum = sum_error(updates, s_most, magnitude, _SUM_OPERATIONS + len(options.class_weights))
        of_vector = vector_error(updates, largest, options.max_step, _UPDATE_OPERATIONS + len(options.class_weights))
        if options.free == PROXIMAL:  # panels add the centre times the sum of g, which `_write_back_panels` subtracts
            of_sum += rounded_up(4 * abs(float(state[FREE_BIAS])) * of_vector / options.bias, 8)
        return float(state[SUM_ERROR]) + of_sum, float(state[VECTOR_ERROR]) + of_vector

    def end_epoch(self, errors: tuple[float, float]) -> None:
        """Save sums and error bounds for the next epoch."""
        self.state[[SUM_ERROR, VECTOR_ERROR]] = errors
        self.state[SUM] = self.dual_sum
        self.state[SQUARE] = rounded_up(square(self.a) * self.scale**2, len(self.a))

    def mark_half(self) -> None:
        """Mark half of the epoch: losses from here on are used for the estimate."""
        self.marked, self.loss_at_mark = self.t - self.began, self.loss_sum

    def estimate(self) -> float:
        """Return an estimate of the objective of the last iterate, from the losses since the mark."""
        rows = (self.t - self.began - self.marked) / self.repeats  # repeated updates count a loss once
        mean = (self.loss_sum - self.loss_at_mark) / max(rows, 1.0)
        clock = self.options.lam * (self.t + self.options.delay)
        last = self.scale / clock if clock else 0.0
        regularised = self.a if self.options.free == NO_FREE_BIAS else self.a[:-1]
        return float(self.options.lam / 2 * square(regularised) * last**2 + mean)

    def last(self) -> np.ndarray:
        """Return the last iterate, equation (2)."""
        clock = self.options.lam * (self.t + self.options.delay)
        return self._with_bias(self.a * (self.scale / clock) if clock else self.a.copy())

    def _with_bias(self, weights: np.ndarray) -> np.ndarray:
        """Set the unregularized bias in a weight vector."""
        if self.options.free == PROXIMAL:
            weights[-1] += self.state[FREE_BIAS] / self.options.bias
        elif self.options.free != NO_FREE_BIAS:
            weights[-1] = self.state[FREE_BIAS]
        return weights

    @property
    def mass(self) -> float:
        """The sum of -g over all updates, for an unregularized bias."""
        return float(self.state[MASS] + self.a[-1] * self.scale / (self.options.bias or 1.0))

    def updates(self) -> np.ndarray:
        """Return the sum of all updates; the element of an unregularized bias is `mass`."""
        total = self.a * self.scale
        if self.options.free != NO_FREE_BIAS:
            total[-1] = self.mass
        return total

    def update_centre(self) -> None:
        """Move the proximal centre of the bias after an epoch, with extrapolation."""
        options, state = self.options, self.state
        found = options.bias * float(self.a[-1]) / (options.lam * (self.t + options.delay))
        state[MASS], self.a[-1] = self.mass, 0.0
        state[VECTOR_ERROR] += rounded_up(4 * UNIT_ROUNDOFF * abs(float(state[MASS])) * max(options.bias, 1.0), 4)
        state[FREE_BIAS] += proximal_step(state, found, STEP_FACTOR, LAST_STEP)

    def average(self) -> np.ndarray:
        """Return the mean of the iterates, equation (2a)."""
        mean: np.ndarray = (self.a * float(self.state[AVERAGED]) - self.b) / max(self.t - self.averaged_from, 1.0)
        return self._with_bias(mean)

    def since(self, t: float, a: np.ndarray) -> np.ndarray:
        """Return the vector u of equation (5): the weights from the updates since a snapshot."""
        difference = self.a * self.scale
        if len(a):
            difference -= a
        difference /= self.options.lam * (self.t - t)
        if self.options.free != NO_FREE_BIAS:
            difference[-1] = self.last()[-1]
        return difference


class PegasosOfClasses(Pegasos):
    """Joint multiclass training: `a` is a panel with a column per class."""

    def __init__(self, options: PegasosOptions, problem: Problem, model: int) -> None:
        super().__init__(options, problem.length)
        self.a = new_panel(problem.length, 1)
        self._problem, self._spec = problem, problem.specs[model]
        self._class_weights = np.array(self._spec.class_weights)

    def process_window(self, window: Window, begin: int, end: int) -> int:
        """Process rows `window.order[begin:end]`; return the row that has an index out of range, or -1."""
        problem, block = self._problem, window.block
        return int(
            process_classes(
                window.order,
                begin,
                end,
                *block.arrays,
                window.folds,
                self._spec.fold,
                self._class_weights,
                problem.costs,
                problem.loss.number,
                problem.bias,
                self.options.lam,
                self.options.delay,
                len(self.a) >= LARGE_WEIGHTS,
                problem.features,
                problem.width,
                self.a,
                self.state,
                *self.record_target,
            )
        )
