"""Rows of a block in any order: prefetches, and copies of some rows."""

import numpy as np

from ooc_pegasos.compiled.intrinsics import entries_of_line, move_bytes, prefetch
from ooc_pegasos.compiled.jit import kernel

ROWS_AHEAD, OFFSETS_AHEAD = 4, 8
"""Distances, in rows, at which entries and offsets are prefetched."""


@kernel
def gather_entries(
    rows: np.ndarray, indptr: np.ndarray, size: int, source: np.ndarray, out: np.ndarray, at: int
) -> None:
    """Copy the entries of rows, of `size` bytes, to `out` from the entry `at` on, one row after the other.

    `out` may be `source` if that moves no entry to the right. Rows that follow each other are copied at once.
    """
    at *= size
    number = 0
    while number < len(rows):
        first = number
        while number + 1 < len(rows) and rows[number + 1] == rows[number] + 1:
            number += 1
        begin = indptr[rows[first]] * size
        count = indptr[rows[number] + 1] * size - begin
        move_bytes(source, begin, out, at, count)
        at += count
        number += 1


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
