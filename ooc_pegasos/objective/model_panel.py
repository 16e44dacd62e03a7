"""Panels: the weights of many models side by side, in memory that begins where cache lines do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ooc_pegasos.compiled.fit.lanes import LANES
from ooc_pegasos.compiled.fit.many import OFFSET

if TYPE_CHECKING:
    from ooc_pegasos.objective.problem import Problem

MOST_TOGETHER = 16
"""Columns of a panel, for which entries are decoded once; it looks only at rows that one of its models wants."""


def width_of(models: int) -> int:
    """Columns that so many models take: whole lanes."""
    return -(-models // LANES) * LANES


def new_panel(length: int, width: int) -> np.ndarray:
    """Zeros, a line a weight, each beginning where a cache line does."""
    room = np.zeros(length * width + LANES)
    start = -(room.ctypes.data // 8) % LANES
    return room[start : start + length * width]


def fill_panel(panel: np.ndarray, width: int, vectors: Sequence[np.ndarray]) -> None:
    """Put vectors in the columns."""
    columns = panel.reshape(-1, width)
    for number, vector in enumerate(vectors):
        columns[:, number] = vector


def panels_of(models: Sequence[int], workers: int) -> list[list[int]]:
    """Cut models into panels of at most 16; of 8, if that gives every thread one."""
    size = MOST_TOGETHER
    while size > LANES and -(-len(models) // size) < workers:
        size -= LANES
    return [list(models[begin : begin + size]) for begin in range(0, len(models), size)]


class Panel:
    """The vectors and sums of some models side by side, while they are presented."""

    def __init__(
        self,
        problem: Problem,
        models: list[int],
        vectors: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        delays: Sequence[float] | None = None,
        clocks: Sequence[float] | None = None,
        offsets: Sequence[float] = (),
    ) -> None:
        self.models = models
        width = width_of(len(models))
        self.table = problem.table(models, width, delays, clocks)
        self.table[OFFSET, : len(offsets)] += offsets
        self.weights = new_panel(problem.length, width)
        fill_panel(self.weights, width, vectors)
        self.state = np.zeros((len(states[0]), width))
        self.state[:, : len(models)] = np.stack(states, axis=1)

    def part(self, vectors: Sequence[np.ndarray], states: Sequence[np.ndarray]) -> None:
        """Take them out again."""
        columns = self.weights.reshape(-1, self.state.shape[1])
        for number, (vector, state) in enumerate(zip(vectors, states, strict=True)):
            vector[:], state[:] = columns[:, number], self.state[:, number]
