"""Copies of some rows of a block."""

import numpy as np

from ooc_pegasos.compiled.jit import kernel


@kernel
def gather_entries(rows: np.ndarray, indptr: np.ndarray, source: np.ndarray, out: np.ndarray) -> None:
    """Copy the entries of rows, one row after the other."""
    at = 0
    for row in rows:
        for entry in range(indptr[row], indptr[row + 1]):
            out[at] = source[entry]
            at += 1
