"""Values of texts as counts of words: value = count x idf / norm of the row, rounded as docs/store-format.md states.

The float32 values that a conversion computes are the definition, and only values that are exactly these are coded.
"""

import numpy as np

from ooc_pegasos.compiled.intrinsics import prefetch
from ooc_pegasos.compiled.jit import inlined, kernel

_IN_CACHE = 1 << 18
"""Number of factors up to which they stay in the cache, so that prefetching them would cost time."""


@inlined
def weighted(count, index, idf):
    """Return a count times the idf of its feature, rounded to float32; without idf the count."""
    return np.float32(np.float64(count) * np.float64(idf[index])) if len(idf) > 0 else np.float32(count)


@inlined
def count_of(value, index, idf):
    """Return the whole number that gives `value` when it is multiplied by the idf; without idf the value."""
    return np.float32(np.rint(np.float64(value) / np.float64(idf[index]))) if len(idf) > 0 else np.float32(value)


@kernel
def counts_of(indices: np.ndarray, values: np.ndarray, idf: np.ndarray, counts: np.ndarray) -> bool:
    """Fill `counts`, and return True if they give exactly these values."""
    for at in range(len(values)):
        if len(idf) > 0 and indices[at] >= len(idf):
            return False
        counts[at] = count_of(values[at], indices[at], idf)
        if weighted(counts[at], indices[at], idf) != values[at]:
            return False
    return True


@inlined
def _prefetch_factors(begin, end, coded, escape, idf):
    index = np.int64(0)
    for at in range(begin, end):
        index = index + np.int64(coded[at]) if escape > 0 else np.int64(coded[at])
        prefetch(idf, index)


@kernel
def decode_counts(
    offsets: np.ndarray,
    coded: np.ndarray,
    codes: np.ndarray,
    levels: np.ndarray,
    idf: np.ndarray,
    escape: int,
    normalize: bool,
    out: np.ndarray,
) -> int:
    """Write the values of rows to `out`; return the row in which an index is too large for `idf`, or -1.

    `offsets` minus the first of them must have been checked to lie within the other arrays. `codes` may lie in the last
    quarter of the memory of `out`: each value is written after its code was read.
    """
    start = np.int64(offsets[0])
    for row in range(len(offsets) - 1):
        begin, end = np.uint64(offsets[row] - start), np.uint64(offsets[row + 1] - start)
        if len(idf) > _IN_CACHE and row + 2 < len(offsets):
            _prefetch_factors(
                np.uint64(offsets[row + 1] - start), np.uint64(offsets[row + 2] - start), coded, escape, idf
            )
        index = np.int64(0)
        squares = np.float64(0)
        for at in range(begin, end):
            index = index + np.int64(coded[at]) if escape > 0 else np.int64(coded[at])
            if len(idf) > 0 and index >= len(idf):
                return row
            value = weighted(levels[codes[at]], index, idf)  # 0 for an escape, whose code is 0
            squares += np.float64(value) * np.float64(value)
            out[at] = value
        norm = np.sqrt(squares)
        if normalize and norm > 0:
            for at in range(begin, end):
                out[at] = np.float32(np.float64(out[at]) / norm)
    return -1
