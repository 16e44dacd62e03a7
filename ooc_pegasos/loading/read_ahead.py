"""Loader that reads windows ahead into two alternating buffers: for stores larger than memory.

Chunk files are read directly into the arrays of the window: their indices and values begin at page boundaries, as
direct I/O requires. Only row offsets and labels, a few bytes per row, are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import CHUNK_BYTES, Layout, Window, index_kind, value_kind
from ooc_pegasos.store.chunk_reader import ChunkReader, Part, parts_of, read_checked, refuse_checksum
from ooc_pegasos.store.manifest import ChunkInfo, round_up
from ooc_pegasos.store.page_memory import Arena


class ReadAheadLoader(Loader):
    """See `Loader`."""

    name = "read"

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self._arenas: dict[int, Arena] = {}

    def reserve(self, size: int) -> None:
        """See `Loader.reserve`."""
        super().reserve(size)
        self._arenas.clear()

    def load(self, chunks: tuple[int, ...], slot: int) -> Window:
        """See `Loader.load`."""
        return self._read(chunks, self._arena(slot))

    def _arena(self, slot: int) -> Arena:
        if slot not in self._arenas:
            self._arenas[slot] = Arena(self.shape.largest_window + CHUNK_BYTES)
        self._arenas[slot].clear()
        return self._arenas[slot]

    def _read(self, chunks: tuple[int, ...], arena: Arena) -> Window:
        store = self.store
        layout = Layout.of(store, chunks)
        value_type = value_kind(store)
        indices = arena.take(layout.entries, index_kind(store))
        stored = None if value_type is None or self._factors else arena.take(layout.entries, value_type)
        values = stored
        if self._factors:  # codes are read to the last quarter of the values, which are then decoded from the first on
            values = arena.take(layout.entries, np.float32)
            stored = values.view(np.uint8)[3 * layout.entries :]
        heads = [arena.take(info.starts.indices, np.uint8) for info in layout.infos]
        ends = [_end_of_entries(info, indices, stored) for info in layout.infos]
        tails = [
            arena.take(max(round_up(info.bytes) - end, 0), np.uint8)
            for info, end in zip(layout.infos, ends, strict=True)
        ]
        rows = self._new_rows(layout, arena.take)
        readers: list[ChunkReader] = []

        def parts() -> Iterator[Part]:
            for number, info in enumerate(layout.infos):
                reader = ChunkReader(store.path / info.file, info)
                readers.append(reader)
                first = layout.first_entries[number]
                targets = [heads[number].data]
                for column in (indices, stored):
                    if column is not None:
                        size = round_up(info.entries * column.itemsize)
                        targets.append(column[first : first + size // column.itemsize].data.cast("B"))
                targets.append(tails[number].data)
                yield from parts_of(reader, targets)

        try:
            number = 0
            with (
                self.background.measuring("reading and checksums"),
                closing(read_checked(parts(), self._check_abandoned)) as arrived,
            ):
                for part, checksum in arrived:
                    self.bytes_read += min(len(part.into), part.reader.size - part.at)
                    if part.last:
                        refuse_checksum(part.reader.path, layout.infos[number], checksum)
                        self._copy_rows(layout, number, heads[number].data, rows)
                        if values is not None and stored is not None:
                            self._decode(layout, number, rows, indices, stored, values)
                        number += 1
        finally:
            for reader in readers:
                reader.close()
        return self._window(chunks, layout, indices, values, rows)


def _end_of_entries(info: ChunkInfo, indices: np.ndarray, values: np.ndarray | None) -> int:
    """Return the offset of the end of the last page with entries in a chunk file."""
    end = info.starts.indices + round_up(info.entries * indices.itemsize)
    return end if values is None else end + round_up(info.entries * values.itemsize)
