"""A window: chunks laid out as one block, and the rows of it to present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import folds_of_rows
from ooc_pegasos.store.csr_block import CODINGS, VALUE_CODINGS, CsrBlock, entry_bytes
from ooc_pegasos.store.manifest import PAGE, ChunkInfo, round_up
from ooc_pegasos.store.store import Store

ROW_BYTES = 32
"""Bytes of a row in memory besides its entries: offset 8, label up to 8, weight 4, fold 1, and its place
in the order, 4 or twice that while the order is made. (Of 2^32 rows and more a window takes more than memory.)"""
CHUNK_BYTES = 8 * 4096
"""The most that a chunk loses by columns beginning where pages do."""


def cost_of(chunk: ChunkInfo) -> int:
    """Bytes of a chunk in memory as part of a window."""
    return round_up(chunk.bytes) + ROW_BYTES * (chunk.rows + 1) + CHUNK_BYTES


def _padded(entries: int, index_coding: str, value_coding: str | None) -> int:
    """At least so many entries, so that the indices and the values each fill whole pages."""
    index = entry_bytes(index_coding, None)
    value = entry_bytes(index_coding, value_coding) - index
    return round_up(entries, PAGE // min(index, value or index))


@dataclass(frozen=True)
class Layout:
    """Places of the chunks of a window: chunk i has rows `first_rows[i]` on and entries `first_entries[i]` on.

    Between the entries of two chunks there is a gap, so that the entries of each begin where a page does. It is
    a row of its own that nobody presents, which is also where the last offset of a chunk stands.
    """

    infos: list[ChunkInfo]
    first_rows: list[int]
    first_entries: list[int]

    @classmethod
    def of(cls, store: Store, chunks: Sequence[int]) -> Layout:
        """For these chunks of a store."""
        coding = store.manifest.layout
        infos = [store.manifest.chunks[chunk] for chunk in chunks]
        padded = [_padded(info.entries, coding.index_coding, coding.values) for info in infos]
        rows = [info.rows + 1 for info in infos]
        return cls(infos, [0, *accumulate(rows)], [0, *accumulate(padded)])

    @property
    def rows(self) -> int:
        """Rows of the block, with those that are gaps."""
        return self.first_rows[-1]

    @property
    def entries(self) -> int:
        """Entries of the block, with those in gaps."""
        return self.first_entries[-1]

    def stretches(self) -> list[tuple[int, int]]:
        """The rows of each chunk."""
        return [(first, first + info.rows) for first, info in zip(self.first_rows, self.infos, strict=False)]


@dataclass
class Window:
    """The loaded rows: `stretches` are the rows of the block that are rows of the store, `folds` says in which
    fold each is (or is empty) and `order` says which to present and when.
    """

    chunks: tuple[int, ...]
    block: CsrBlock
    stretches: list[tuple[int, int]]
    folds: np.ndarray
    order: np.ndarray

    def chunk_of(self, row: int) -> int:
        """The chunk that a row of the block is from."""
        place = next(i for i, (_begin, end) in enumerate(self.stretches) if row <= end)
        return self.chunks[place]


class Folds:
    """In which fold each row of a store is, by the hash of its number.

    With a fraction held out, fold 0 is that and is presented to nobody; with several folds all rows are presented, and
    each model leaves out its own.
    """

    def __init__(self, store: Store, holdout: float, folds: int | None) -> None:
        self._chunks = store.manifest.chunks
        self._first_rows = [*accumulate((c.rows for c in self._chunks), initial=store.manifest.first_row)]
        self._threshold = int(holdout * 2**53)
        self._folds = folds or 0
        self.any = holdout > 0 or folds is not None
        self.sizes = np.zeros(max(self._folds, 2), np.int64)
        self.to_present = []
        for number, chunk in enumerate(self._chunks):
            sizes = np.bincount(self.of(number), minlength=len(self.sizes)) if self.any else [0, chunk.rows]
            self.sizes += sizes
            self.to_present.append(chunk.rows if self._folds else int(sizes[1]))

    def of(self, chunk: int) -> np.ndarray:
        """The fold of each row of a chunk."""
        folds = np.empty(self._chunks[chunk].rows, np.uint8)
        folds_of_rows(self._first_rows[chunk], self._threshold, self._folds, folds)
        return folds

    def rows_to_present(self, chunks: Sequence[int], layout: Layout) -> np.ndarray:
        """Rows of the block that are trained on, in the order of the store."""
        kind = np.uint32 if layout.rows < 2**32 else np.int64
        parts = []
        for chunk, (begin, end) in zip(chunks, layout.stretches(), strict=True):
            rows = np.arange(begin, end, dtype=kind)
            parts.append(rows[self.of(chunk) > 0] if self._threshold else rows)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, kind)

    def of_window(self, chunks: Sequence[int], layout: Layout) -> np.ndarray:
        """The fold of each row of the block; empty if there are none."""
        folds = np.zeros(layout.rows if self.any else 0, np.uint8)
        if self.any:
            for chunk, (begin, end) in zip(chunks, layout.stretches(), strict=True):
                folds[begin:end] = self.of(chunk)
        return folds


def value_kind(store: Store) -> type | None:
    """The type that holds values, None if they are all 1."""
    coding = store.manifest.layout.values
    kind: type | None = VALUE_CODINGS[coding] if coding else None
    return kind


def index_kind(store: Store) -> type:
    """The type that holds indices or gaps."""
    kind: type = CODINGS[store.manifest.layout.index_coding]
    return kind
