"""Weights of rows: from text, to buckets."""

import numpy as np

from ooc_pegasos.compiled.jit import kernel
from ooc_pegasos.compiled.parse.lines import skip_blanks
from ooc_pegasos.compiled.parse.numbers import NOT_A_NUMBER, NUMBER, parse_number
from ooc_pegasos.compiled.rows.coding import ROWS

MIN_WEIGHT, MAX_WEIGHT = 1e-9, 1e9
# Problems of a line; `readers/weights.py` has the messages.
SOUND, EMPTY, NO_NUMBER, OUT_OF_RANGE, MORE_THAN_ONE = range(5)


@kernel
def parse_weights(text: np.ndarray, at: int, end: int, weights: np.ndarray) -> tuple[int, int, int]:
    """Read one number a line from `text[at:end]` (whole lines, then PADDING) until `weights` is full.

    Returns (code, how many were read, position of the next line or of the error).
    """
    number = 0
    while at < end and number < len(weights):
        where = skip_blanks(text, at)
        if text[where] == 10:
            return EMPTY, number, where
        status, value, after = parse_number(text, where)
        if status == NOT_A_NUMBER:
            return NO_NUMBER, number, where
        if status != NUMBER or not MIN_WEIGHT <= value <= MAX_WEIGHT:
            return OUT_OF_RANGE, number, where
        after = skip_blanks(text, after)
        if text[after] != 10:
            return MORE_THAN_ONE, number, after
        weights[number] = value
        number += 1
        at = after + 1
    return SOUND, number, at


@kernel
def scatter_weights(weights: np.ndarray, buckets: np.ndarray, stats: np.ndarray, out: np.ndarray) -> None:
    """Copy the weights of rows to the positions of the rows after `rows.scatter_rows`."""
    at = np.zeros(len(stats), np.int64)
    for bucket in range(1, len(stats)):
        at[bucket] = at[bucket - 1] + stats[bucket - 1, ROWS]
    for row in range(len(buckets)):
        out[at[buckets[row]]] = weights[row]
        at[buckets[row]] += 1
