"""Copies of some rows of a block."""

import numpy as np

from ooc_pegasos.compiled.intrinsics import move_bytes
from ooc_pegasos.compiled.jit import kernel


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
