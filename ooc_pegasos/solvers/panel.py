"""Panels: the weights of many models side by side, in memory that begins where cache lines do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc_pegasos.kernels.lanes import LANES

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


def column_of(panel: np.ndarray, width: int, column: int, out: np.ndarray) -> None:
    """Copy a column."""
    out[:] = panel.reshape(-1, width)[:, column]


def panels_of(models: Sequence[int], workers: int) -> list[list[int]]:
    """Cut models into panels of at most 16; of 8, if that gives every thread one."""
    size = MOST_TOGETHER
    while size > LANES and -(-len(models) // size) < workers:
        size -= LANES
    return [list(models[begin : begin + size]) for begin in range(0, len(models), size)]
