"""Rows from disk to memory: windows of chunks laid out as one block."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.block import CODINGS, CsrBlock, escape_of
from ooc_pegasos.errors import DamagedError
from ooc_pegasos.kernels.pegasos import held_out_rows
from ooc_pegasos.kernels.rows import largest_index
from ooc_pegasos.parallel import ordered_map
from ooc_pegasos.samplers import Shape, groups
from ooc_pegasos.store import Store

ROW_BYTES = 24
"""What a row takes in memory besides its entries: offset, label, place in the order, held out or not."""


@dataclass(frozen=True)
class LoadedWindow:
    """The rows of a window and which of them are held out (empty if none are)."""

    chunks: tuple[int, ...]
    block: CsrBlock
    held_out: np.ndarray


class Loader:
    """Loads windows of a store. What was loaded last is kept: if all fits, it is read once."""

    def __init__(self, store: Store, budget: int, holdout: float, threads: int) -> None:
        self.store = store
        self.bytes_read = 0
        self._holdout = holdout
        self._threads = threads
        chunks = store.manifest.chunks
        self.shape = Shape(
            tuple(chunk.rows for chunk in chunks),
            tuple(chunk.bytes + ROW_BYTES * chunk.rows for chunk in chunks),
            budget,
        )
        self._first_rows = np.concatenate([[0], np.cumsum(self.shape.chunk_rows)])
        self._checked: set[int] = set()
        self._kept: LoadedWindow | None = None
        self.training_rows = store.rows - (self._count_held_out() if holdout else 0)

    def set_budget(self, budget: int) -> None:
        """Cut windows for another number of bytes, as the run did that is resumed."""
        self.shape = dataclasses.replace(self.shape, budget=budget)

    def _count_held_out(self) -> int:
        marks = np.empty(max(self.shape.chunk_rows), np.bool_)
        count = 0
        for first, rows in zip(self._first_rows.tolist(), self.shape.chunk_rows, strict=False):
            held_out_rows(first, int(self._holdout * 2**53), marks[:rows])
            count += int(marks[:rows].sum())
        return count

    def load(self, chunks: Sequence[int]) -> LoadedWindow:
        """Chunks laid out one after the other as one block."""
        wanted = tuple(chunks)
        if self._kept is None or self._kept.chunks != wanted:
            self._kept = None  # so that there are never two windows in memory
            self._kept = self._read(wanted)
        return self._kept

    def windows_in_order(self) -> Iterator[LoadedWindow]:
        """All rows of the store, window by window, for passes whose order does not matter."""
        everything = tuple(range(len(self.shape.chunk_rows)))
        if self._kept is not None and self._kept.chunks == everything:
            yield self._kept
            return
        for chunks in groups(self.shape, np.arange(len(everything))):
            yield self.load(chunks)

    def _read(self, chunks: tuple[int, ...]) -> LoadedWindow:
        layout = self.store.manifest.layout
        infos = [self.store.manifest.chunks[chunk] for chunk in chunks]
        rows = np.concatenate([[0], np.cumsum([info.rows for info in infos])])
        entries = np.concatenate([[0], np.cumsum([info.entries for info in infos])])
        indptr = np.zeros(rows[-1] + 1, np.int64)
        indices = np.empty(entries[-1], CODINGS[layout.index_coding])
        values = np.empty(entries[-1], np.float32) if layout.values else None
        labels = np.empty(rows[-1], layout.labels)
        held_out = np.empty(rows[-1] if self._holdout else 0, np.bool_)

        def read(place: int) -> np.ndarray | None:
            chunk = chunks[place]
            block = self.store.block(chunk)
            self._check(chunk, block)
            here, there = slice(rows[place], rows[place + 1]), slice(entries[place], entries[place + 1])
            np.add(block.indptr[1:], entries[place], out=indptr[rows[place] + 1 : rows[place + 1] + 1])
            indices[there] = block.indices
            labels[here] = block.labels
            if values is not None:
                values[there] = block.values
            if self._holdout:
                held_out_rows(int(self._first_rows[chunk]), int(self._holdout * 2**53), held_out[here])
            return block.weights

        parts = [part for part in ordered_map(read, range(len(chunks)), self._threads) if part is not None]
        weights = np.concatenate(parts) if parts else None
        self.bytes_read += sum(info.bytes for info in infos)
        return LoadedWindow(chunks, CsrBlock(indptr, indices, values, labels, self.store.features, weights), held_out)

    def _check(self, chunk: int, block: CsrBlock) -> None:
        """See once that no index is too large, whoever wrote the manifest: a kernel would not notice."""
        if chunk in self._checked:
            return
        largest = largest_index(block.indptr, block.indices, escape_of(block.coding))
        if not 0 <= largest < max(self.store.features, 1):
            file = self.store.path / self.store.manifest.chunks[chunk].file
            raise DamagedError(f"{file}: row offsets decrease or an index is too large; convert again")
        self._checked.add(chunk)
