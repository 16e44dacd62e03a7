"""Chunk files mapped side by side: for stores that fit the budget. No copy, and kept from epoch to epoch.

Each file is read once from end to end, which brings it to the page cache and checks it; then its indices and values
are mapped after those of the chunk before. The pages are shared with every other process that uses the store, and
the next start finds them there. Row offsets and labels, a few bytes a row, are in memory of their own.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import Layout, Window, index_kind, value_kind
from ooc_pegasos.store.chunk_reader import refuse_checksum
from ooc_pegasos.store.manifest import round_up
from ooc_pegasos.store.page_memory import SideBySide
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.files import unreadable
from ooc_pegasos.util.thread_map import ordered_map

_PIECE = 1 << 17  # bytes read at a time, few enough to be in the cache when the checksum wants them
_Stamp = tuple[int, int, int, int]


@dataclass
class _Held:
    """A window, its mappings, and what the system said of its files when they were mapped."""

    window: Window
    mappings: list[SideBySide]
    stamps: dict[int, _Stamp]


class MappedLoader(Loader):
    """See above."""

    name = "mapped"

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self._held: dict[int, _Held] = {}
        self._own = threading.local()

    def load(self, chunks: tuple[int, ...], slot: int) -> Window:
        """See `Loader.load`."""
        self._held.pop(slot, None)
        with self.background.measuring("mapping and checksums"):
            self._held[slot] = self._map(chunks)
        return self._held[slot].window

    def check_unchanged(self) -> None:
        """Refuse to go on if a mapped file was written to, cut short or replaced."""
        for held in list(self._held.values()):
            for chunk, stamp in held.stamps.items():
                file = self.store.path / self.store.manifest.chunks[chunk].file
                try:
                    now = _stamp(os.stat(file))
                except OSError as error:
                    raise CorruptFileError(f"{file}: {error.strerror}, while it was in use; restore it") from error
                if now != stamp:
                    raise CorruptFileError(f"{file}: changed while it was in use; restore it or convert again")
            if any(mapping.torn for mapping in held.mappings):
                raise CorruptFileError(
                    f"{self.store.path}: a chunk could not be read while it was in use; check the disk"
                )

    def _map(self, chunks: tuple[int, ...]) -> _Held:
        store = self.store
        layout = Layout.of(store, chunks)
        of_index, of_value = np.dtype(index_kind(store)), value_kind(store)
        indices = SideBySide(layout.entries * of_index.itemsize)
        values = None if of_value is None else SideBySide(layout.entries * np.dtype(of_value).itemsize)
        rows = self._new_rows(layout, np.empty)

        def one(place: int) -> _Stamp:
            info = layout.infos[place]
            path = store.path / info.file
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise unreadable(path, error, "restore it or convert again") from error
            try:
                stamp = _stamp(os.fstat(descriptor))
                head = self._read_through(descriptor, place, layout)
                at, size = layout.first_entries[place], of_index.itemsize
                indices.put(at * size, descriptor, info.starts.indices, round_up(info.entries * size))
                if values is not None and info.starts.values is not None:
                    size = np.dtype(of_value).itemsize
                    values.put(at * size, descriptor, info.starts.values, round_up(info.entries * size))
            except OSError as error:
                raise unreadable(path, error, "check the disk") from error
            finally:
                os.close(descriptor)
            self._place_rows(layout, place, head, rows)
            return stamp

        stamps = list(ordered_map(one, range(len(chunks)), self._threads))
        of_values = None if values is None else values.array(0, layout.entries, of_value)
        window = self._window(chunks, layout, indices.array(0, layout.entries, of_index), of_values, rows)
        mappings = [indices] if values is None else [indices, values]
        return _Held(window, mappings, dict(zip(chunks, stamps, strict=True)))

    def _piece(self) -> memoryview:
        """Memory of this thread to read into; new memory for each file would cost as much as reading it."""
        if not hasattr(self._own, "piece"):
            self._own.piece = memoryview(bytearray(_PIECE))
        piece: memoryview = self._own.piece
        return piece

    def _read_through(self, descriptor: int, place: int, layout: Layout) -> bytes:
        """Read a file from end to end, see that its checksum is right, and give back what precedes its entries."""
        info = layout.infos[place]
        path = self.store.path / info.file
        piece = self._piece()
        head = bytearray()
        at, seen = 0, RunningHash()
        while True:
            self._check_abandoned()
            got = os.preadv(descriptor, [piece], at)
            if got == 0:
                break
            seen.update(piece[:got])
            if len(head) < info.starts.indices:
                head += piece[: min(got, info.starts.indices - len(head))]
            at += got
        if at != info.bytes:
            raise CorruptFileError(f"{path}: {at:,} bytes instead of {info.bytes:,}; restore it or convert again")
        refuse_checksum(path, info, seen)
        self.bytes_read += at
        return bytes(head)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns
