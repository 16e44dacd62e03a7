"""Panels: the weights of many models side by side, in memory that begins where cache lines do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc_pegasos.kernels.lanes import LANES


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
