"""Model panels: the weights of models that are trained together, as the columns of a matrix aligned to cache lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ooc_pegasos.compiled.fit.lanes import LANES
from ooc_pegasos.compiled.fit.panel_steps import OFFSET

if TYPE_CHECKING:
    from ooc_pegasos.objective.problem import Problem

MAX_PANEL_WIDTH = 16
"""Maximum number of columns of a panel. Entries are decoded once for all columns; rows inactive in all are skipped."""


def width_of(models: int) -> int:
    """Return the number of columns for a number of models: a multiple of LANES."""
    return -(-models // LANES) * LANES


def new_panel(length: int, width: int) -> np.ndarray:
    """Return a panel of zeros: a row for each weight, aligned to cache lines."""
    room = np.zeros(length * width + LANES)
    start = -(room.ctypes.data // 8) % LANES
    return room[start : start + length * width]


def fill_panel(panel: np.ndarray, width: int, vectors: Sequence[np.ndarray]) -> None:
    """Copy vectors to the columns."""
    columns = panel.reshape(-1, width)
    for number, vector in enumerate(vectors):
        columns[:, number] = vector


def panels_of(models: Sequence[int], workers: int) -> list[list[int]]:
    """Split models into panels of at most 16 models, or of 8 if there are enough threads."""
    size = MAX_PANEL_WIDTH
    while size > LANES and -(-len(models) // size) < workers:
        size -= LANES
    return [list(models[begin : begin + size]) for begin in range(0, len(models), size)]


class Panel:
    """The vectors and states of some models while they process rows."""

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

    def write_back(self, vectors: Sequence[np.ndarray], states: Sequence[np.ndarray]) -> None:
        """Copy the columns back to vectors and states."""
        columns = self.weights.reshape(-1, self.state.shape[1])
        for number, (vector, state) in enumerate(zip(vectors, states, strict=True)):
            vector[:], state[:] = columns[:, number], self.state[:, number]
