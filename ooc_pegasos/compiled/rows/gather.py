"""Rows of a block in any order: prefetches, and copies of some rows."""

import numpy as np

from ooc_pegasos.compiled.intrinsics import entries_of_line, prefetch
from ooc_pegasos.compiled.jit import kernel

ROWS_AHEAD, OFFSETS_AHEAD = 4, 8
"""Distances, in rows, at which entries and offsets are prefetched."""


@kernel
def gather_entries(rows: np.ndarray, indptr: np.ndarray, source: np.ndarray, out: np.ndarray) -> None:
    """Copy the entries of rows, one row after the other."""
    at = 0
    for row in rows:
        for entry in range(indptr[row], indptr[row + 1]):
            out[at] = source[entry]
            at += 1


@kernel
def prefetch_row(indptr, indices, values, row):
    """Prefetch the entries of a row."""
    begin, end = np.int64(indptr[row]), np.int64(indptr[row + 1])
    for at in range(begin, end, entries_of_line(indices)):
        prefetch(indices, at)
    prefetch(indices, end - 1)  # rows do not begin at cache lines
    if values is not None:
        for at in range(begin, end, entries_of_line(values)):
            prefetch(values, at)
        prefetch(values, end - 1)
