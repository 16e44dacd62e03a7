"""In which order rows are presented. A sampler emits a plan and never touches data.

A window is as many chunks as fit in the memory budget, laid out as one block; its rows are ordered at random
within it. If the whole store is one window the order is an exactly uniform permutation; if not, it is a
two-level shuffle of chunks and of rows within windows. Randomness comes from (seed, epoch, window) alone, so
a checkpoint needs no generator state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

SamplingName = Literal["permutation", "fixed", "iid", "sequential"]


@dataclass(frozen=True)
class Shape:
    """All that a sampler knows of a store: rows and bytes of each chunk, and the bytes that fit in memory."""

    chunk_rows: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    budget: int


@dataclass(frozen=True)
class Window:
    """The chunks to lay out as one block, and the rows of that block in the order to present them."""

    chunks: tuple[int, ...]
    order: Callable[[], np.ndarray]


Sampler = Callable[[Shape, int, int], Iterator[Window]]


def groups(shape: Shape, chunks: np.ndarray) -> list[tuple[int, ...]]:
    """Cut a sequence of chunks into windows that fit the budget, at least one chunk each."""
    windows: list[list[int]] = []
    room = -1
    for chunk in chunks.tolist():
        if not windows or shape.chunk_bytes[chunk] > room:
            windows.append([])
            room = shape.budget
        windows[-1].append(chunk)
        room -= shape.chunk_bytes[chunk]
    return [tuple(window) for window in windows]


def _rows(shape: Shape, chunks: tuple[int, ...]) -> int:
    return sum(shape.chunk_rows[chunk] for chunk in chunks)


def _numbers(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32 if count < 2**32 else np.int64)


def _shuffled(count: int, seed: int, epoch: int, window: int) -> np.ndarray:
    order = _numbers(count)
    np.random.default_rng([seed, epoch, window]).shuffle(order)
    return order


def sequential(shape: Shape, _seed: int, _epoch: int) -> Iterator[Window]:
    """Rows as they stand."""
    for chunks in groups(shape, np.arange(len(shape.chunk_rows))):
        yield Window(chunks, partial(_numbers, _rows(shape, chunks)))


def permutation(shape: Shape, seed: int, epoch: int) -> Iterator[Window]:
    """A new order every epoch."""
    everything = np.arange(len(shape.chunk_rows))
    windows = groups(shape, everything)
    if len(windows) > 1:
        windows = groups(shape, np.random.default_rng([seed, epoch]).permutation(everything))
    for number, chunks in enumerate(windows):
        yield Window(chunks, partial(_shuffled, _rows(shape, chunks), seed, epoch, number))


def fixed(shape: Shape, seed: int, _epoch: int) -> Iterator[Window]:
    """One permutation, the same every epoch."""
    return permutation(shape, seed, 0)


def iid(shape: Shape, seed: int, epoch: int) -> Iterator[Window]:
    """As many rows as the store has, drawn with replacement. Rows are presented unequally often: no certificate.

    With several windows the number drawn from each is multinomial, so the draws as a set are i.i.d., but they
    come window by window.
    """
    everything = np.arange(len(shape.chunk_rows))
    windows = groups(shape, everything)
    rng = np.random.default_rng([seed, epoch])
    if len(windows) > 1:
        windows = groups(shape, rng.permutation(everything))
    sizes = np.array([_rows(shape, chunks) for chunks in windows])
    draws = rng.multinomial(sizes.sum(), sizes / sizes.sum())
    for number, (chunks, size, count) in enumerate(zip(windows, sizes.tolist(), draws.tolist(), strict=True)):
        yield Window(chunks, partial(_drawn, size, count, seed, epoch, number))


def _drawn(size: int, count: int, seed: int, epoch: int, window: int) -> np.ndarray:
    kind = np.uint32 if size < 2**32 else np.int64
    return np.random.default_rng([seed, epoch, window]).integers(0, size, count, dtype=kind)


SAMPLERS: dict[str, Sampler] = {
    "permutation": permutation,
    "fixed": fixed,
    "iid": iid,
    "sequential": sequential,
}
EQUALLY_OFTEN = ("permutation", "fixed", "sequential")
"""Samplers that present every row once an epoch, as the certificate demands."""
