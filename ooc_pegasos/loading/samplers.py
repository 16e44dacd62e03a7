"""Samplers: the order in which rows are processed. A sampler makes plans and never reads data.

A window is as many chunks as fit in the memory budget, laid out as one block; its rows are ordered at random
within it. If the whole store is one window the order is a uniform random permutation; if not, it is a
two-level shuffle of chunks and of rows within windows. Randomness comes from (seed, epoch, window) alone, so
a checkpoint needs no generator state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ooc_pegasos.compiled.rows.shuffle import shuffle
from ooc_pegasos.registry import SAMPLERS


@dataclass(frozen=True)
class Shape:
    """The sizes that a sampler uses: training rows and bytes of each chunk, and the memory budget in bytes."""

    chunk_rows: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    budget: int

    @property
    def fits(self) -> bool:
        """True if the whole store fits the budget, so that it is one window."""
        return sum(self.chunk_bytes) <= self.budget

    @property
    def min_budget(self) -> int:
        """The smallest budget that allows a window: a small store, or two chunks, one of them being loaded."""
        return min(sum(self.chunk_bytes), 2 * max(self.chunk_bytes, default=0))

    @property
    def largest_window(self) -> int:
        """Bytes of the largest window: half of the budget, since the next window is loaded concurrently."""
        return sum(self.chunk_bytes) if self.fits else self.budget // 2


@dataclass(frozen=True)
class Plan:
    """The chunks of a window, and a function that orders the training rows of their block.

    `order` may change its argument. It is None in passes without training, where rows stay in the order of the store.
    """

    chunks: tuple[int, ...]
    order: Callable[[np.ndarray], np.ndarray] | None


Sampler = Callable[[Shape, int, int], Iterator[Plan]]


def groups(shape: Shape, chunks: np.ndarray) -> list[tuple[int, ...]]:
    """Cut a sequence of chunks into windows that fit the budget, at least one chunk each."""
    windows: list[list[int]] = []
    room = -1
    for chunk in chunks.tolist():
        if not windows or shape.chunk_bytes[chunk] > room:
            windows.append([])
            room = shape.largest_window
        windows[-1].append(chunk)
        room -= shape.chunk_bytes[chunk]
    return [tuple(window) for window in windows]


def in_order(shape: Shape) -> list[Plan]:
    """Return plans of all rows in the order of the store, for passes without training."""
    return [Plan(chunks, None) for chunks in groups(shape, np.arange(len(shape.chunk_rows)))]


def _random_groups(shape: Shape, rng: Callable[[], np.random.Generator]) -> list[tuple[int, ...]]:
    """Return windows of randomly chosen chunks; a single window keeps the order of its chunks."""
    everything = np.arange(len(shape.chunk_rows))
    windows = groups(shape, everything)
    return windows if len(windows) == 1 else groups(shape, rng().permutation(everything))


def _in_store_order(rows: np.ndarray) -> np.ndarray:
    return rows


def _shuffled(seed: int, epoch: int, window: int, rows: np.ndarray) -> np.ndarray:
    shuffle(rows, np.random.SeedSequence([seed, epoch, window]).generate_state(4, np.uint64))
    return rows


def _drawn(count: int, seed: int, epoch: int, window: int, rows: np.ndarray) -> np.ndarray:
    kind = np.uint32 if len(rows) < 2**32 else np.int64
    drawn: np.ndarray = rows[np.random.default_rng([seed, epoch, window]).integers(0, len(rows), count, dtype=kind)]
    return drawn


def sequential(shape: Shape, _seed: int, _epoch: int) -> Iterator[Plan]:
    """Rows in the order of the store."""
    for chunks in groups(shape, np.arange(len(shape.chunk_rows))):
        yield Plan(chunks, _in_store_order)


def permutation(shape: Shape, seed: int, epoch: int) -> Iterator[Plan]:
    """A new order every epoch."""
    for number, chunks in enumerate(_random_groups(shape, partial(np.random.default_rng, [seed, epoch]))):
        yield Plan(chunks, partial(_shuffled, seed, epoch, number))


def fixed(shape: Shape, seed: int, _epoch: int) -> Iterator[Plan]:
    """One permutation, the same every epoch."""
    return permutation(shape, seed, 0)


def iid(shape: Shape, seed: int, epoch: int) -> Iterator[Plan]:
    """Rows drawn with replacement, as many as the store has. Rows are not processed equally often: no certificate.

    With several windows the number drawn from each is multinomial, so the draws as a set are i.i.d., but they
    come window by window.
    """
    rng = np.random.default_rng([seed, epoch])
    windows = _random_groups(shape, lambda: rng)
    sizes = np.array([sum(shape.chunk_rows[chunk] for chunk in chunks) for chunks in windows])
    draws = rng.multinomial(sizes.sum(), sizes / sizes.sum())
    for number, (chunks, count) in enumerate(zip(windows, draws.tolist(), strict=True)):
        yield Plan(chunks, partial(_drawn, count, seed, epoch, number))


EQUALLY_OFTEN: list[str] = []
"""Samplers that process every row exactly once in each epoch, which the certificate requires."""


def register(name: str, sampler: Sampler, *, is_equally_often: bool) -> None:
    """Add a sampler. `is_equally_often`: True if every row is processed exactly once in each epoch."""
    SAMPLERS.register(name, sampler)
    if is_equally_often:
        EQUALLY_OFTEN.append(name)


def unregister(name: str) -> None:
    """Remove a sampler."""
    SAMPLERS.unregister(name)
    EQUALLY_OFTEN[:] = [other for other in EQUALLY_OFTEN if other != name]


register("permutation", permutation, is_equally_often=True)
register("fixed", fixed, is_equally_often=True)
register("iid", iid, is_equally_often=False)
register("sequential", sequential, is_equally_often=True)
