"""Sums for bounds, recomputed from the dual variables in double-double precision."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ooc_pegasos.compiled.fit.exact_sums import HIGH, LOW, MAGNITUDE, add_up_duals
from ooc_pegasos.compiled.fit.pegasos import square
from ooc_pegasos.errors import InputError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.objective.rounding import UNIT_ROUNDOFF, norm_upper_bound, rounded_up
from ooc_pegasos.solvers.row_group import Group

_VALUE_OPERATIONS = 64  # upper bound for -l*(-b) of a row; the worst case is the entropy near a bound


@dataclass
class DualSums:
    """Sums of a model: b_i x_i as double-double numbers, and -l_i*(-b_i)."""

    problem: Problem
    model: int
    high: np.ndarray = field(default_factory=lambda: np.empty(0))
    low: np.ndarray = field(default_factory=lambda: np.empty(0))
    sums: np.ndarray = field(default_factory=lambda: np.zeros(3))

    def __post_init__(self) -> None:
        if not len(self.high):
            self.high, self.low = np.zeros(self.problem.length), np.zeros(self.problem.length)

    def add(self, window: Window, group: Group, column: int) -> None:
        """Add the rows of a window, whose dual variables are a column of a group."""
        problem, block = self.problem, window.block
        spec = problem.specs[self.model]
        for begin, end in window.row_ranges:
            bad = add_up_duals(
                begin,
                end,
                *block.arrays,
                window.folds,
                np.array(spec.class_weights),
                float(spec.one_class),
                spec.fold,
                spec.offset,
                problem.loss.number,
                problem.parameter,
                problem.bias,
                group.width,
                column,
                group.duals,
                self.high,
                self.low,
                self.sums,
            )
            if bad >= 0:  # the index was valid before, so a mapped file has changed
                raise InputError(f"row {bad} of a window has changed while it was read; start again")

    def __add__(self, other: DualSums) -> DualSums:
        """Return the sums of the rows of both."""
        high, low = _pairs_added(self.high, self.low, other.high, other.low)
        sums = self.sums + other.sums
        sums[[HIGH]], sums[[LOW]] = _pairs_added(*(one.sums[[at]] for one in (self, other) for at in (HIGH, LOW)))
        return DualSums(self.problem, self.model, high, low, sums)

    def vector(self) -> np.ndarray:
        """Return the sum of b_i x_i, rounded once."""
        total: np.ndarray = self.high + self.low
        return total

    @property
    def dual(self) -> float:
        """The sum of -l_i*(-b_i), rounded once."""
        return float(self.sums[HIGH] + self.sums[LOW])

    def dual_error(self, rows: int) -> float:
        """Return a bound on the error of `dual`."""
        magnitude = float(self.sums[MAGNITUDE])
        return rounded_up(
            UNIT_ROUNDOFF * (2 * abs(self.dual) + (_VALUE_OPERATIONS + 32 * rows**2 * UNIT_ROUNDOFF) * magnitude), 8
        )

    def vector_error(self, rows: int) -> float:
        """Return a bound on the norm of the error of `vector`."""
        of_pairs = 8 * ((rows + 4) * UNIT_ROUNDOFF) ** 2 * rows * self.problem.max_step
        return rounded_up(
            2 * UNIT_ROUNDOFF * norm_upper_bound(square(self.vector()), self.problem.length) + of_pairs, 8
        )


def _pairs_added(
    high: np.ndarray, low: np.ndarray, more: np.ndarray, more_low: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    total = high + more
    part = total - high
    return total, low + more_low + ((high - (total - part)) + (more - part))
