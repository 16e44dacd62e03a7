"""A sample of the rows of a large store, where the search for the best lambda begins."""

from __future__ import annotations

import dataclasses

from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.store.store import Store

_LARGEST = 0.25
"""Share of the store that is enough."""
_FEWEST_ROWS, _FEWEST_IN_MEMORY = 1000, 25_000
"""Rows of a sample of a store that is larger than memory, or fits it: there a search on all rows takes less time."""
_FILLED = 0.9
"""Share of the memory that the sample fills."""


def sample_of(loader: Loader) -> Store | None:
    """Return a store of some chunks that fit the memory together; None if these have few rows, or in another order.

    Chunks are spread over all of the store, since it may have grown by parts.
    """
    store, costs = loader.store, loader.shape.chunk_bytes
    if store.manifest.shuffle_seed is None:
        return None
    number = int(len(costs) * min(_LARGEST, _FILLED * loader.shape.budget / sum(costs)))
    chosen = _spread(number, len(costs))
    while chosen and sum(costs[chunk] for chunk in chosen) > loader.shape.budget:
        chosen = _spread(len(chosen) - 1, len(costs))
    made = store.manifest
    chunks = [made.chunks[chunk] for chunk in chosen]
    rows = sum(chunk.rows for chunk in chunks)
    if rows < (_FEWEST_IN_MEMORY if loader.shape.fits else _FEWEST_ROWS):
        return None
    counts = [sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
    labels = dataclasses.replace(made.labels, counts=counts)
    nonzeros = round(made.nonzeros * rows / made.rows)
    return Store(store.path, dataclasses.replace(made, chunks=chunks, rows=rows, labels=labels, nonzeros=nonzeros))


def _spread(number: int, chunks: int) -> list[int]:
    """Return numbers of chunks, at equal distances."""
    return [int((place + 0.5) * chunks / number) for place in range(number)]
