"""Rows between the two passes of a conversion, in buckets: in memory while they fit, then in temporary files.

A bucket is a file of segments, one for each block of input with rows in the bucket. Each segment has a checksum, so
that after a crash the valid segments of a bucket can be identified.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse.weights import scatter_weights
from ooc_pegasos.compiled.rows import coding as kernels
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store.csr_block import NO_WEIGHTS
from ooc_pegasos.store.row_ids import joined, packed, unpacked
from ooc_pegasos.util.arrow import array_of
from ooc_pegasos.util.buffers import Scratch
from ooc_pegasos.util.checksums import WORD, xxh64_hex
from ooc_pegasos.util.files import ReadOnlyFile, cut_file, open_in_place

_MAGIC = 0x6765737361676570  # "pegasseg"
_MOST_OPEN = 64
_DAMAGED = "scratch data is damaged; run again without {resume}"
_HEADER = 7  # int64: magic, block, rows, pairs, optional arrays, checksum, bytes of ids
_VALUES, _WEIGHTS = 1, 2  # bits of the optional arrays
_NO_IDS = np.empty(0, np.uint8)


@dataclass
class Columns:
    """Rows in arrays: `values` is empty if all values are 1, and `weights` if all weights are 1."""

    labels: np.ndarray
    lengths: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    weights: np.ndarray = field(default_factory=lambda: NO_WEIGHTS)
    ids: Any = None
    """An Arrow array, or None if no row has an id."""

    def bytes(self) -> int:
        """Return the size in memory and on disk."""
        return sum(array.nbytes for array in (self.labels, self.lengths, self.indices, self.values, self.weights))


@dataclass
class Scattered:
    """The rows of a block sorted by bucket: bucket b has `stats[b, ROWS]` rows and `stats[b, PAIRS]` pairs."""

    number: int
    columns: Columns
    stats: np.ndarray
    checksums: np.ndarray
    smallest: int
    smallest_row: int
    largest: int
    largest_row: int
    ids: dict[int, np.ndarray] = field(default_factory=dict)
    """Packed ids by bucket."""


def scatter(
    number: int,
    labels: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    buckets: np.ndarray,
    among: int,
    scratch: Scratch,
) -> Scattered:
    """Sort the rows of block `number` by bucket, and compute counts and checksums."""
    stats = np.zeros((among, 6), np.int64)
    kernels.count_rows(indptr, buckets, stats)
    rows, pairs = len(buckets), int(indptr[-1])
    out = Columns(scratch.array("sorted labels", rows), scratch.array("lengths", rows, np.uint32), indices, values)
    if among > 1:
        out.indices = scratch.array("sorted indices", pairs, np.uint32)
        out.values = scratch.array("sorted values", pairs, np.float32)
    ones, smallest, smallest_row, largest, largest_row = kernels.scatter_rows(
        labels, indptr, indices, values, buckets, stats, out.labels, out.lengths, out.indices, out.values
    )
    if ones:
        out.values = out.values[:0]
    checksums = np.empty(among, np.uint64)
    labels8, lengths8, indices8, values8 = _as_bytes(out)
    kernels.segment_checksums(stats, labels8, lengths8, indices8, values8, not ones, checksums)
    return Scattered(number, out, stats, checksums, smallest, smallest_row, largest, largest_row)


def identify(scattered: Scattered, ids: Any, buckets: np.ndarray) -> None:
    """Add the ids of the rows of a block, which are in the order before the sort.

    `identify` must be called before `weigh`, because checksums are verified in this order.
    """
    if ids.null_count == len(ids):
        return
    if len(scattered.stats) > 1:
        ids = ids.take(array_of(np.argsort(buckets.astype(np.uint16), kind="stable")))  # radix sort: they are few
    row = 0
    for bucket, rows in enumerate(scattered.stats[:, kernels.ROWS].tolist()):
        if rows:
            scattered.ids[bucket] = packed(ids.slice(row, rows))
            _add_ids(scattered.checksums[bucket : bucket + 1], scattered.ids[bucket])
        row += rows


def _add_ids(checksum: np.ndarray, ids: np.ndarray) -> None:
    """Extend the checksum of a segment by its ids."""
    checksum[0] = (int(checksum[0]) * 3 + int(xxh64_hex(ids), 16)) & WORD


def weigh(scattered: Scattered, weights: np.ndarray, buckets: np.ndarray, scratch: Scratch) -> None:
    """Add the weights of the rows of a block, which are in the order before the sort."""
    if (weights == 1).all():
        return
    if len(scattered.stats) > 1:
        ordered = scratch.array("sorted weights", len(weights), np.float32)
        scatter_weights(weights, buckets, scattered.stats, ordered)
        weights = ordered
    scattered.columns.weights = weights
    kernels.add_weights_to_checksums(scattered.stats, weights.view(np.uint8), scattered.checksums)


def _as_bytes(columns: Columns) -> list[np.ndarray]:
    arrays = (columns.labels, columns.lengths, columns.indices, columns.values)
    return [array.view(np.uint8) for array in arrays]


def _fresh(rows: int, pairs: int, with_values: bool, with_weights: bool) -> Columns:
    values, weights = np.empty(pairs * with_values, np.float32), np.empty(rows * with_weights, np.float32)
    return Columns(np.empty(rows), np.empty(rows, np.uint32), np.empty(pairs, np.uint32), values, weights)


class Spill:
    """The buckets of a conversion: up to `room` bytes in memory, more in files in a folder of their own."""

    def __init__(self, folder: Path, room: int = 0) -> None:
        self.folder = folder
        self.room = room
        """Bytes that can still be kept in memory."""
        self._open: dict[int, int] = {}
        self._held: dict[int, list[np.ndarray]] = {}

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(map(self.size, self._held))

    def path(self, bucket: int) -> Path:
        """Return the file of a bucket."""
        return self.folder / f"bucket-{bucket:06d}.rows"

    def size(self, bucket: int) -> int:
        """Return the size of a bucket."""
        if bucket in self._held:
            return sum(len(segment) for segment in self._held[bucket])
        try:
            return self.path(bucket).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, scattered: Scattered, first_bucket: int = 0) -> list[int]:
        """Append a block to the buckets from `first_bucket` on; return the bytes appended to each."""
        grown = []
        row, pair = 0, 0
        columns = scattered.columns
        more = _VALUES * (len(columns.values) > 0) + _WEIGHTS * (len(columns.weights) > 0)
        for bucket in range(len(scattered.stats)):
            rows, pairs = (int(x) for x in scattered.stats[bucket, :2])
            parts = [
                columns.labels[row : row + rows],
                columns.lengths[row : row + rows],
                columns.indices[pair : pair + pairs],
                columns.values[pair : pair + pairs],
                columns.weights[row : row + rows],
                scattered.ids.get(bucket, _NO_IDS),
            ]
            row, pair = row + rows, pair + pairs
            if rows == 0:
                grown.append(0)
                continue
            checksum = scattered.checksums[bucket : bucket + 1].view(np.int64)[0]
            header = np.array([_MAGIC, scattered.number, rows, pairs, more, checksum, parts[-1].nbytes], np.int64)
            grown.append(self._add(first_bucket + bucket, [header, *parts]))
        return grown

    def _add(self, bucket: int, parts: list[np.ndarray]) -> int:
        """Append a segment; return its size."""
        size = sum(part.nbytes for part in parts)
        if size > self.room:
            self.write_out()
            return _write_all(self._descriptor(bucket), parts)
        self.room -= size
        self._held.setdefault(bucket, []).append(np.concatenate([part.view(np.uint8) for part in parts]))
        return size

    def write_out(self) -> None:
        """Write the rows in memory to files, where later rows go as well."""
        self.room = 0
        for bucket in list(self._held):
            for segment in self._held[bucket]:
                _write_all(self._descriptor(bucket), [segment])
            del self._held[bucket]

    @contextmanager
    def kept_if_interrupted(self) -> Iterator[None]:
        """Write the rows in memory to files if a signal stops the conversion, which can then be resumed."""
        try:
            yield
        except KeyboardInterrupt:
            with suppress(OSError):  # then more is read again
                self.write_out()
            self.close()
            raise

    def close(self) -> None:
        """Close the files. Later appends open them again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def truncate(self, bucket: int, size: int) -> None:
        """Truncate a bucket to its first `size` bytes."""
        if self.path(bucket).exists():
            cut_file(self.path(bucket), size)

    def remove(self, bucket: int) -> None:
        """Delete a bucket."""
        self._held.pop(bucket, None)
        self.path(bucket).unlink(missing_ok=True)

    def segments(
        self, bucket: int, make: Callable[[int, int, bool, bool], Columns] | None = None
    ) -> Iterator[tuple[int, Columns]]:
        """Yield (end position, rows) of each segment up to the first that is incomplete or damaged.

        `make(rows, pairs, with values, with weights)` returns the arrays to read into.
        """
        make, at = make or _fresh, 0
        for segment in self._held.get(bucket, ()):
            left = [segment]
            yield from _segments(lambda into: _copy_from(left, into), len(segment), make, at)  # noqa: B023
            at += len(segment)
        if self.path(bucket).exists():
            with ReadOnlyFile(self.path(bucket)) as file:
                size = os.fstat(file.fileno()).st_size
                yield from _segments(lambda into: _read_all(file.fileno(), into), size, make)

    def load(self, bucket: int, rows: int, pairs: int, scratch: Scratch, *, words: bool = False) -> Columns:
        """Return all rows of a bucket that must have this size; their ids as words, if `words`."""
        whole = Columns(
            scratch.array("labels", rows),
            scratch.array("lengths", rows, np.uint32),
            scratch.array("indices", pairs, np.uint32),
            scratch.array("values", 0, np.float32),
        )
        row, pair = 0, 0
        ids = []

        def next_part(more_rows: int, more_pairs: int, with_values: bool, with_weights: bool) -> Columns:
            if row + more_rows > rows or pair + more_pairs > pairs:
                raise CorruptFileError(f"{self.path(bucket)}: {_DAMAGED}")
            if with_values and not len(whole.values):
                whole.values = scratch.array("values", pairs, np.float32)
                whole.values[:pair] = 1
            if with_weights and not len(whole.weights):
                whole.weights = scratch.array("weights", rows, np.float32)
                whole.weights[:row] = 1
            return Columns(
                whole.labels[row : row + more_rows],
                whole.lengths[row : row + more_rows],
                whole.indices[pair : pair + more_pairs],
                whole.values[pair : pair + more_pairs * with_values],
                whole.weights[row : row + more_rows * with_weights],
            )

        for _end, part in self.segments(bucket, next_part):
            next_row, next_pair = row + len(part.labels), pair + len(part.indices)
            if len(whole.values) and not len(part.values):
                whole.values[pair:next_pair] = 1
            if len(whole.weights) and not len(part.weights):
                whole.weights[row:next_row] = 1
            ids.append((len(part.labels), part.ids))
            row, pair = next_row, next_pair
        if (row, pair) != (rows, pairs):
            raise CorruptFileError(f"{self.path(bucket)}: {_DAMAGED}")
        whole.ids = joined(ids, words=words)
        return whole

    def _descriptor(self, bucket: int) -> int:
        if bucket not in self._open:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[bucket] = open_in_place(self.path(bucket), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return self._open[bucket]


def _segments(
    read: Callable[[np.ndarray], None], left: int, make: Callable[[int, int, bool, bool], Columns], at: int = 0
) -> Iterator[tuple[int, Columns]]:
    """Yield (end position, rows) of each segment of `left` bytes; `read` fills an array with the next ones."""
    while left >= 8 * _HEADER:
        header = np.empty(_HEADER, np.int64)
        read(header.view(np.uint8))
        if header[0] != _MAGIC:
            return
        rows, pairs, more, _checksum, of_ids = (int(x) for x in header[2:])
        with_values, with_weights = bool(more & _VALUES), bool(more & _WEIGHTS)
        size = 8 * _HEADER + 12 * rows + 4 * pairs * (1 + with_values) + 4 * rows * with_weights + of_ids
        if min(rows, pairs, of_ids) < 0 or size > left:
            return
        columns = make(rows, pairs, with_values, with_weights)
        labels8, lengths8, indices8, values8 = parts = _as_bytes(columns)
        weights8, ids8 = columns.weights.view(np.uint8), np.empty(of_ids, np.uint8)
        for part in [*parts, weights8, ids8]:
            read(part)
        found = np.empty(1, np.uint64)
        kernels.segment_checksums(header[None, 2:], labels8, lengths8, indices8, values8, with_values, found)
        if of_ids:
            _add_ids(found, ids8)
        if with_weights:
            kernels.add_weights_to_checksums(header[None, 2:], weights8, found)
        if found.view(np.int64)[0] != header[5]:
            return
        columns.ids = unpacked(ids8) if of_ids else None
        at += size
        left -= size
        yield at, columns


def _copy_from(left: list[np.ndarray], into: np.ndarray) -> None:
    """Copy the next bytes of `left[0]`, which then holds the rest."""
    into[:] = left[0][: len(into)]
    left[0] = left[0][len(into) :]


def _write_all(descriptor: int, parts: list[np.ndarray]) -> int:
    views = [part.data.cast("B") for part in parts if part.nbytes]
    total = sum(len(view) for view in views)
    written = os.writev(descriptor, views)
    if written < total:  # the disk is full, or a signal arrived: writing the rest shows which
        for view in views:
            at = min(written, len(view))
            written -= at
            while at < len(view):
                at += os.write(descriptor, view[at:])
    return total


def _read_all(descriptor: int, into: np.ndarray) -> None:
    view = into.data
    at = 0
    while at < len(view):
        got = os.readv(descriptor, [view[at:]])
        if got == 0:
            raise CorruptFileError(_DAMAGED)
        at += got
