"""Loader that maps chunk files into contiguous memory: for stores that fit the budget, without copies.

Each file is read once, which brings it to the page cache and checks its checksum; then its indices and values are
mapped after those of the previous chunk. The pages are shared with other processes that use the store, and stay in the
page cache for the next run. Row offsets and labels, a few bytes per row, are copied.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.loading.loader import Loader, Rows
from ooc_pegasos.loading.window import Layout, Window, index_kind, value_kind
from ooc_pegasos.store.chunk_reader import refuse_checksum
from ooc_pegasos.store.manifest import round_up
from ooc_pegasos.store.page_memory import ContiguousMapping
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.files import unreadable
from ooc_pegasos.util.thread_map import ordered_map

_BUFFER_BYTES = 1 << 17  # bytes read at a time; in the CPU cache when the checksum is computed
_Stamp = tuple[int, int, int, int]


@dataclass
class _MappedWindow:
    """A window, its mappings, and the stamps of its files when they were mapped."""

    window: Window
    mappings: list[ContiguousMapping]
    stamps: dict[int, _Stamp]


class MappedLoader(Loader):
    """See `Loader`."""

    name = "mapped"

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self._mapped: dict[int, _MappedWindow] = {}
        self._thread_local = threading.local()

    def reserve(self, size: int) -> None:
        """See `Loader.reserve`."""
        super().reserve(size)
        self._mapped.clear()

    def load(self, chunks: tuple[int, ...], slot: int) -> Window:
        """See `Loader.load`."""
        self._mapped.pop(slot, None)
        with self.background.measuring("mapping and checksums"):
            self._mapped[slot] = self._map(chunks)
        return self._mapped[slot].window

    def check_unchanged(self) -> None:
        """Raise CorruptFileError if a mapped file was changed, truncated or replaced."""
        for mapped in list(self._mapped.values()):
            for chunk, stamp in mapped.stamps.items():
                file = self.store.path / self.store.manifest.chunks[chunk].file
                try:
                    now = _stamp(os.stat(file))
                except OSError as error:
                    raise CorruptFileError(f"{file}: {error.strerror}, while it was in use; restore it") from error
                if now != stamp:
                    raise CorruptFileError(f"{file}: changed while it was in use; restore it or convert again")
            if any(mapping.torn for mapping in mapped.mappings):
                raise CorruptFileError(
                    f"{self.store.path}: a chunk could not be read while it was in use; check the disk"
                )

    def _map(self, chunks: tuple[int, ...]) -> _MappedWindow:
        store = self.store
        layout = Layout.of(store, chunks)
        index_type, value_type = np.dtype(index_kind(store)), value_kind(store)
        indices = ContiguousMapping(layout.entries * index_type.itemsize)
        values = None if value_type is None else ContiguousMapping(layout.entries * np.dtype(value_type).itemsize)
        rows = self._new_rows(layout, np.empty)

        def map_chunk(number: int) -> _Stamp:
            info = layout.infos[number]
            path = store.path / info.file
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise unreadable(path, error, "restore it or convert again") from error
            try:
                stamp = _stamp(os.fstat(descriptor))
                head = self._read_through(descriptor, number, layout)
                at, size = layout.first_entries[number], index_type.itemsize
                indices.put(at * size, descriptor, info.starts.indices, round_up(info.entries * size))
                if values is not None and info.starts.values is not None:
                    size = np.dtype(value_type).itemsize
                    values.put(at * size, descriptor, info.starts.values, round_up(info.entries * size))
            except OSError as error:
                raise unreadable(path, error, "check the disk") from error
            finally:
                os.close(descriptor)
            self._copy_rows(layout, number, head, rows)
            return stamp

        stamps = list(ordered_map(map_chunk, range(len(chunks)), self._threads))
        mappings = [indices] if values is None else [indices, values]
        indices_array = indices.array(0, layout.entries, index_type)
        values_array = None if values is None else values.array(0, layout.entries, value_type)
        if values_array is not None and self._factors:
            values_array = self._decoded(layout, rows, indices_array, values_array)
        window = self._window(chunks, layout, indices_array, values_array, rows)
        return _MappedWindow(window, mappings, dict(zip(chunks, stamps, strict=True)))

    def _decoded(self, layout: Layout, rows: Rows, indices: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return the values of all chunks in new memory, of mapped codes of counts."""
        values = np.empty(layout.entries, np.float32)

        def decode(number: int) -> None:
            self._decode(layout, number, rows, indices, codes, values)

        deque(ordered_map(decode, range(len(layout.infos)), self._threads), 0)
        return values

    def _read_buffer(self) -> memoryview:
        """Return the read buffer of this thread; to allocate one for each file would cost as much as reading it."""
        if not hasattr(self._thread_local, "buffer"):
            self._thread_local.buffer = memoryview(bytearray(_BUFFER_BYTES))
        buffer: memoryview = self._thread_local.buffer
        return buffer

    def _read_through(self, descriptor: int, number: int, layout: Layout) -> bytes:
        """Read a whole file, check its checksum, and return the bytes before its entries."""
        info = layout.infos[number]
        path = self.store.path / info.file
        buffer = self._read_buffer()
        head = bytearray()
        at, checksum = 0, RunningHash()
        while True:
            self._check_abandoned()
            got = os.preadv(descriptor, [buffer], at)
            if got == 0:
                break
            checksum.update(buffer[:got])
            if len(head) < info.starts.indices:
                head += buffer[: min(got, info.starts.indices - len(head))]
            at += got
        if at != info.bytes:
            raise CorruptFileError(f"{path}: {at:,} bytes instead of {info.bytes:,}; restore it or convert again")
        refuse_checksum(path, info, checksum)
        self.bytes_read += at
        return bytes(head)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns
