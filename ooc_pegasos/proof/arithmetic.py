"""Scores and sums over rows for the check of proofs, in plain float64 or in pairs of float64, with error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from ooc_pegasos.compiled.fit.proof_sums import SPLITTER, TINY, U, add_rows, add_rows_in_pairs
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.thread_map import ordered_map

_ENTRIES_A_FEATURE = 16
"""Entries in a block of rows: more entries loosen the error bounds, fewer cost time to add blocks."""


class Arithmetic(Protocol):
    """The sums of one thread: for each column of the model a vector with a number a feature."""

    def __init__(self, weights: np.ndarray, biases: np.ndarray) -> None: ...

    def add(self, column: int, begin: int, block: CsrBlock, q: np.ndarray, rest: np.ndarray, z: np.ndarray) -> int:
        """Add (q + rest) x of rows from `begin` on and put lines (score, its low part, its error, size of x) into `z`.

        Returns the first row with wrong indices, or -1.
        """

    def end_rows(self, rows: int, entries: int) -> None:
        """Record that rows were added to all columns."""

    def total(self, others: list[Any]) -> tuple[np.ndarray, float, float]:
        """Return the sums of all threads, a bound on the norm of their error and one on the norm of a row.

        Both bounds are relative, the first to the sum of |q| times the size of x, the second to the size of x.
        """


class Plain:
    """Plain float64. Sums are accumulated over blocks of rows, so that errors grow with the size of a block."""

    def __init__(self, weights: np.ndarray, biases: np.ndarray) -> None:
        self._weights, self._biases = weights, biases
        self._sums, self._block = np.zeros(weights.shape), np.zeros(weights.shape)
        self._rows, self._entries, self._most_rows, self._blocks = 0, 0, 0, 1

    def add(self, column: int, begin: int, block: CsrBlock, q: np.ndarray, rest: np.ndarray, z: np.ndarray) -> int:
        """Add rows; `rest` is within the error bound."""
        weights, bias = self._weights[column], self._biases[column]
        return int(add_rows(begin, begin + len(q), *block.entries, weights, bias, q, self._block[column], z))

    def end_rows(self, rows: int, entries: int) -> None:
        """Add the block to the sums once it has enough entries."""
        self._rows, self._entries = self._rows + rows, self._entries + entries
        self._most_rows = max(self._most_rows, self._rows)
        if self._entries > _ENTRIES_A_FEATURE * self._weights.shape[1]:
            self._sums += self._block
            self._block[:] = 0
            self._rows, self._entries, self._blocks = 0, 0, self._blocks + 1

    def total(self, others: list[Plain]) -> tuple[np.ndarray, float, float]:
        """Return the sums; the longest chain of additions is over rows, blocks and threads, and one a column for q."""
        threads = [self, *others]
        vector = sum((thread._sums + thread._block for thread in threads), np.zeros(self._sums.shape))
        rows, blocks = (max(numbers) for numbers in zip(*((t._most_rows, t._blocks) for t in threads), strict=True))
        return vector, 1.02 * (rows + blocks + len(threads) + len(vector) + 8) * U, 1.0


class Pairs:
    """Pairs of float64: slower, with double-double precision."""

    def __init__(self, weights: np.ndarray, biases: np.ndarray) -> None:
        top = weights * SPLITTER
        top = top - (top - weights)
        self._halves = np.stack([top, weights - top], axis=2).reshape(len(weights), -1)
        self._biases, self._pairs, self._rows = biases, np.zeros(self._halves.shape), 0

    def add(self, column: int, begin: int, block: CsrBlock, q: np.ndarray, rest: np.ndarray, z: np.ndarray) -> int:
        """Add rows."""
        model = self._halves[column], self._biases[column]
        sums = q, rest, self._pairs[column], z
        return int(add_rows_in_pairs(begin, begin + len(q), *block.entries, *model, *sums))

    def end_rows(self, rows: int, entries: int) -> None:
        """Count the rows."""
        self._rows += rows

    def total(self, others: list[Pairs]) -> tuple[np.ndarray, float, float]:
        """Return the sums; the size of a row is its largest absolute value here."""
        high, low = self._pairs[:, 0::2], self._pairs[:, 1::2]
        for other in others:
            total = high + other._pairs[:, 0::2]
            part = total - high
            low = low + (high - (total - part)) + (other._pairs[:, 0::2] - part) + other._pairs[:, 1::2]
            high = total
        rows, norm = sum(thread._rows for thread in [self, *others]), math.sqrt(high.shape[1])
        return high + low, 8 * (rows * U * U + TINY) * norm, norm


def sum_over(
    store: Store,
    threads: int,
    step: int,
    work: Callable[[CsrBlock, int, int, int, int], np.ndarray],
    advance: Callable[[int], None] = lambda _bytes: None,
) -> np.ndarray:
    """Return the sum of `work(chunk, begin, end, first row of the chunk, thread)` over all rows, in steps of `step`.

    `advance` counts the bytes of chunks that are done.

    The order of additions depends on the number of threads alone, and each chunk is rounded once.
    """
    found, first = list[np.ndarray](), 0
    chunks = ordered_map(store.block, range(len(store.manifest.chunks)), 2)
    with ThreadPoolExecutor(threads) as pool, closing(chunks) as blocks:
        for block, chunk in zip(blocks, store.manifest.chunks, strict=True):

            def work_of(thread: int, block: CsrBlock = block, first: int = first) -> list[np.ndarray]:
                begins = range(thread * step, block.rows, threads * step)
                return [work(block, begin, min(begin + step, block.rows), first, thread) for begin in begins]

            found.append(_exact_sum([sums for parts in pool.map(work_of, range(threads)) for sums in parts]))
            first += block.rows
            advance(chunk.bytes)
    return _exact_sum(found)


def _exact_sum(parts: list[np.ndarray]) -> np.ndarray:
    return np.array([[math.fsum(numbers) for numbers in line] for line in np.stack(parts, axis=2)])
