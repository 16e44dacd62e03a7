"""A window: chunks laid out as one block, and the order of its training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import folds_of_rows
from ooc_pegasos.store.csr_block import CODINGS, COUNTS, VALUE_CODINGS, CsrBlock, coding_in_files, entry_bytes
from ooc_pegasos.store.manifest import PAGE, ChunkInfo, round_up
from ooc_pegasos.store.manifest import Layout as Codings
from ooc_pegasos.store.store import Store

ROW_BYTES = 32
"""Bytes of a row in memory besides its entries: offset 8, label up to 8, weight 4, fold 1, and its position in the
order, 4 or twice that while the order is made. (A window of 2^32 rows or more exceeds any memory.)"""
CHUNK_BYTES = 8 * 4096
"""Upper bound of the padding of a chunk, whose columns begin at page boundaries."""

_FLOAT32_BYTES = 4


def cost_of(chunk: ChunkInfo, codings: Codings | None = None) -> int:
    """Return the bytes of a chunk in memory as part of a window; by default values are there as in the file."""
    size = round_up(chunk.bytes)
    if codings and codings.values == COUNTS:
        size += (_FLOAT32_BYTES - 1) * _padded(chunk.entries, codings.index_coding, codings.values)
    return size + ROW_BYTES * (chunk.rows + 1) + CHUNK_BYTES


def _padded(entries: int, index_coding: str, value_coding: str | None) -> int:
    """Return the number of entries, rounded up so that indices and values each fill whole pages."""
    index = entry_bytes(index_coding, None)
    value = entry_bytes(index_coding, value_coding) - index
    return round_up(entries, PAGE // min(index, value or index))


@dataclass(frozen=True)
class Layout:
    """Positions of the chunks of a window: chunk i begins at row `first_rows[i]` and at entry `first_entries[i]`.

    The entries of each chunk begin at a page boundary. The gap after a chunk is a row that is never processed; it also
    holds the last offset of the chunk.
    """

    infos: list[ChunkInfo]
    first_rows: list[int]
    first_entries: list[int]

    @classmethod
    def of(cls, store: Store, chunks: Sequence[int]) -> Layout:
        """Return the layout of chunks of a store."""
        coding = store.manifest.layout
        infos = [store.manifest.chunks[chunk] for chunk in chunks]
        padded = [_padded(info.entries, coding.index_coding, coding.values) for info in infos]
        rows = [info.rows + 1 for info in infos]
        return cls(infos, [0, *accumulate(rows)], [0, *accumulate(padded)])

    @property
    def rows(self) -> int:
        """Rows of the block, gaps included."""
        return self.first_rows[-1]

    @property
    def entries(self) -> int:
        """Entries of the block, gaps included."""
        return self.first_entries[-1]

    def row_ranges(self) -> list[tuple[int, int]]:
        """Return (first row, end) of each chunk in the block."""
        return [(first, first + info.rows) for first, info in zip(self.first_rows, self.infos, strict=False)]


@dataclass
class Window:
    """Loaded rows: `row_ranges` are the rows of the chunks in the block, `folds` the fold of each row of the block (or
    empty), and `order` the training rows in the order of processing.
    """

    chunks: tuple[int, ...]
    block: CsrBlock
    row_ranges: list[tuple[int, int]]
    folds: np.ndarray
    order: np.ndarray

    def chunk_of(self, row: int) -> int:
        """Return the chunk of a row of the block."""
        place = next(i for i, (_begin, end) in enumerate(self.row_ranges) if row <= end)
        return self.chunks[place]


class Folds:
    """Folds of the rows of a store, by the hash of the row number.

    With a holdout fraction, fold 0 is the holdout and is not trained on; with several folds all rows are processed, and
    each model skips its own fold.
    """

    def __init__(self, store: Store, holdout: float, folds: int | None) -> None:
        self._chunks = store.manifest.chunks
        self._first_rows = [*accumulate((c.rows for c in self._chunks), initial=store.manifest.first_row)]
        self._threshold = int(holdout * 2**53)
        self._folds = folds or 0
        self.any = holdout > 0 or folds is not None
        self.sizes = np.zeros(max(self._folds, 2), np.int64)
        self.training_rows = []
        for number, chunk in enumerate(self._chunks):
            sizes = np.bincount(self.of(number), minlength=len(self.sizes)) if self.any else [0, chunk.rows]
            self.sizes += sizes
            self.training_rows.append(chunk.rows if self._folds else int(sizes[1]))

    def of(self, chunk: int) -> np.ndarray:
        """Return the fold of each row of a chunk."""
        folds = np.empty(self._chunks[chunk].rows, np.uint8)
        folds_of_rows(self._first_rows[chunk], self._threshold, self._folds, folds)
        return folds

    def training_rows_of(self, chunks: Sequence[int], layout: Layout) -> np.ndarray:
        """Return the training rows of the block, in the order of the store."""
        kind = np.uint32 if layout.rows < 2**32 else np.int64
        parts = []
        for chunk, (begin, end) in zip(chunks, layout.row_ranges(), strict=True):
            rows = np.arange(begin, end, dtype=kind)
            parts.append(rows[self.of(chunk) > 0] if self._threshold else rows)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, kind)

    def of_window(self, chunks: Sequence[int], layout: Layout) -> np.ndarray:
        """Return the fold of each row of the block; empty without folds."""
        folds = np.zeros(layout.rows if self.any else 0, np.uint8)
        if self.any:
            for chunk, (begin, end) in zip(chunks, layout.row_ranges(), strict=True):
                folds[begin:end] = self.of(chunk)
        return folds


def value_kind(store: Store) -> type | None:
    """Return the type of values in files, None if all values are 1."""
    coding = coding_in_files(store.manifest.layout.values)
    kind: type | None = VALUE_CODINGS[coding] if coding else None
    return kind


def index_kind(store: Store) -> type:
    """Return the type of stored indices, or of their differences."""
    kind: type = CODINGS[store.manifest.layout.index_coding]
    return kind
