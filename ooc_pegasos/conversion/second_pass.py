"""Second pass of a conversion: buckets of rows to chunk files, in their final order and coding."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ooc_pegasos.compiled.rows import coding as kernels
from ooc_pegasos.compiled.rows.values import ROUNDINGS, SLOTS, fill_places
from ooc_pegasos.conversion.buckets import Columns, Spill, identify, scatter, weigh
from ooc_pegasos.conversion.journal import Journal
from ooc_pegasos.store import row_ids
from ooc_pegasos.store.chunk_file import write_chunk
from ooc_pegasos.store.csr_block import (
    CODINGS,
    COUNTS,
    NO_LEVELS,
    VALUE_CODINGS,
    CsrBlock,
    all_levels,
    coding_in_files,
    entry_bytes,
    escape_of,
    read_only,
)
from ooc_pegasos.store.labels import LabelMap
from ooc_pegasos.store.manifest import ChunkInfo, Layout
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.arrow import array_of
from ooc_pegasos.util.buffers import Pool, Scratch
from ooc_pegasos.util.checksums import xxh64_hex
from ooc_pegasos.util.files import sync_file
from ooc_pegasos.util.thread_map import ordered_map

_ROW_BYTES, _WEIGHT_BYTES = 8, 4  # label and offset; weight, if there is one
_SPLIT = 1000  # part j of bucket b is scratch bucket (b + 1) * 1000 + j


@dataclass(frozen=True)
class AssemblyPlan:
    """Layout and coding of the chunks, determined after the first pass."""

    layout: Layout
    index_base: int
    features: int
    normalize: bool
    rounding: Literal["float16", "bfloat16"] | None
    shuffle_seed: int | None
    chunk_size: int
    bucket_limit: int
    ids_as_words: bool = False
    """True if ids have several types."""


@dataclass
class RowStatistics:
    """Statistics of stored rows; the sum in bucket order gives the statistics of the store."""

    norm_sum: float = 0.0
    max_norm: float = 0.0
    max_nonzeros: int = 0
    empty: int = 0
    rounding_error: float = 0.0
    weight_sum: float = 0.0
    max_weight: float = 0.0
    max_weighted_square: float = 0.0

    def __add__(self, other: RowStatistics) -> RowStatistics:
        return RowStatistics(
            self.norm_sum + other.norm_sum,
            max(self.max_norm, other.max_norm),
            max(self.max_nonzeros, other.max_nonzeros),
            self.empty + other.empty,
            max(self.rounding_error, other.rounding_error),
            self.weight_sum + other.weight_sum,
            max(self.max_weight, other.max_weight),
            max(self.max_weighted_square, other.max_weighted_square),
        )


@dataclass
class Assembled:
    """The chunks of a bucket. Their names are temporary: `ChunkInfo.files` are in the scratch folder."""

    bucket: int
    chunks: list[ChunkInfo]
    statistics: RowStatistics


def named(number: int, chunk: ChunkInfo) -> ChunkInfo:
    """Return a chunk with the final names of its files."""
    of_ids = chunk.ids and dataclasses.replace(chunk.ids, file=f"ids-{number:06d}-{chunk.ids.xxh64[:8]}.arrow")
    return dataclasses.replace(chunk, file=f"chunk-{number:06d}-{chunk.crc32}.arrow", ids=of_ids)


def _are_whole(chunk: ChunkInfo, files: list[list[Path]]) -> bool:
    """True if each file of a chunk is intact in one of its possible places."""

    def is_chunk(path: Path) -> bool:
        return path.exists() and f"{zlib.crc32(path.read_bytes()):08x}" == chunk.crc32

    def is_ids(path: Path) -> bool:
        return path.exists() and chunk.ids is not None and xxh64_hex(path.read_bytes()) == chunk.ids.xxh64

    return all(any(map(check, places)) for check, places in zip((is_chunk, is_ids), files, strict=False))


def coded_sizes(stats: np.ndarray, index_base: int, values: str | None) -> dict[str, int]:
    """Return the bytes of rows with these summed statistics in each index coding, including values in this coding."""
    pairs = int(stats[kernels.PAIRS])
    escapes8 = int(stats[kernels.ESCAPES8_BASE1 if index_base else kernels.ESCAPES8_BASE0])
    escapes16 = int(stats[kernels.ESCAPES16_BASE1 if index_base else kernels.ESCAPES16_BASE0])
    entries = {"gap8": pairs + escapes8, "gap16": pairs + escapes16, "uint32": pairs}
    return {coding: number * entry_bytes(coding, values) for coding, number in entries.items()}


def choose_coding(stats: np.ndarray, index_base: int, values: str | None) -> str:
    """Return the index coding with the fewest bytes."""
    sizes = coded_sizes(stats, index_base, values)
    return min(sizes, key=sizes.__getitem__)


class Assembly:
    """The second pass."""

    def __init__(
        self,
        plan: AssemblyPlan,
        labels: LabelMap,
        spill: Spill,
        folder: Path,
        journal: Journal,
        idf: np.ndarray = NO_LEVELS,
    ) -> None:
        self.plan = plan
        self._idf = read_only(idf)
        self.folder = folder
        self._labels = labels
        self._spill = spill
        self._journal = journal
        self.done: dict[int, Assembled] = {}
        self._pool = Pool()
        self._levels = all_levels(plan.layout.levels) if plan.layout.levels else NO_LEVELS
        self._keys, self._places = np.zeros(SLOTS, np.uint32), np.zeros(SLOTS, np.uint8)
        fill_places(self._levels[: len(plan.layout.levels)], self._keys, self._places)
        self._disk = ThreadPoolExecutor(1)  # syncs finished chunks while others are made
        self._syncing: list[Future[None]] = []

    def replay(self, events: Iterator[tuple[int, dict[str, Any]]], first: int, target: Path) -> None:
        """Take over the buckets whose chunks are finished.

        If all were finished, chunks may already have their final names, from number `first` on, and may be in `target`.
        """
        number = first
        for event in sorted((event for _end, event in events), key=lambda event: int(event["bucket"])):
            chunks = [typed_json.load(ChunkInfo, chunk) for chunk in event["chunks"]]
            statistics = RowStatistics(**event["statistics"])
            whole, found = True, []
            for chunk in chunks:
                names = zip(chunk.files, named(number, chunk).files, strict=True)
                places = [[self.folder / old, self.folder / new, target / new] for old, new in names]
                whole &= _are_whole(chunk, places)
                found += [path for several in places for path in several if path.exists()]
                number += 1
            if whole:
                self.done[event["bucket"]] = Assembled(event["bucket"], chunks, statistics)
                for path in found:  # the process that wrote the file may have been killed before the sync
                    sync_file(path)

    def run(
        self, buckets: Iterator[tuple[int, np.ndarray]], threads: int, advance: Callable[[int], None]
    ) -> list[Assembled]:
        """Assemble the remaining buckets; return all in order."""
        left = ((bucket, stats) for bucket, stats in buckets if bucket not in self.done)
        for assembled, size in ordered_map(self._assemble, left, threads):
            event = {
                "bucket": assembled.bucket,
                "chunks": [dataclasses.asdict(chunk) for chunk in assembled.chunks],
                "statistics": dataclasses.asdict(assembled.statistics),
            }
            self._journal.add(event)
            self.done[assembled.bucket] = assembled
            self._spill.remove(assembled.bucket)
            advance(size)
        for sync in self._syncing:
            sync.result()
        self._disk.shutdown()
        return [self.done[bucket] for bucket in sorted(self.done)]

    def _assemble(self, item: tuple[int, np.ndarray]) -> tuple[Assembled, int]:
        bucket, stats = item
        size = self._spill.size(bucket)
        assembled = Assembled(bucket, [], RowStatistics())
        if self.plan.shuffle_seed is not None and size > 2 * self.plan.bucket_limit:
            for part, part_stats in self.split(bucket, math.ceil(size / self.plan.bucket_limit)):
                self._write(assembled, part, part_stats)
                self._spill.remove(part)
        else:
            self._write(assembled, bucket, stats)
        return assembled, size

    def split(self, bucket: int, parts: int) -> list[tuple[int, np.ndarray]]:
        """Scatter a bucket that is too large to smaller buckets; the permutation remains uniform."""
        assert self.plan.shuffle_seed is not None
        first = (bucket + 1) * _SPLIT
        parts = min(parts, _SPLIT - 1)
        for part in range(parts):
            self._spill.remove(first + part)
        scratch = Spill(self._spill.folder)
        total = np.zeros((parts, 6), np.int64)
        for number, (_end, rows) in enumerate(self._spill.segments(bucket)):
            buckets = np.empty(len(rows.labels), np.int64)
            kernels.random_buckets(number << 32, self.plan.shuffle_seed + 1 + bucket, buckets, parts)
            values = rows.values if len(rows.values) else np.ones(len(rows.indices), np.float32)
            scattered = scatter(number, rows.labels, _starts(rows), rows.indices, values, buckets, parts, Scratch())
            if rows.ids is not None:
                identify(scattered, rows.ids, buckets)
            if len(rows.weights):
                weigh(scattered, rows.weights, buckets, Scratch())
            scratch.append(scattered, first)
            total += scattered.stats
        scratch.close()
        return [(first + part, total[part]) for part in range(parts) if total[part, kernels.ROWS]]

    def _write(self, assembled: Assembled, bucket: int, stats: np.ndarray) -> None:
        """Permute the rows of a bucket and write them as chunks of even size."""
        scratch = self._pool.take()
        expected = int(stats[kernels.ROWS]), int(stats[kernels.PAIRS])
        rows = self._spill.load(bucket, *expected, scratch, words=self.plan.ids_as_words)
        number = len(rows.labels)
        if self.plan.shuffle_seed is None:
            order = np.arange(number)
        else:
            order = np.random.default_rng([self.plan.shuffle_seed, bucket]).permutation(number)
        indptr = _starts(rows)
        escape = escape_of(self.plan.layout.index_coding)
        entries = np.empty(number, np.int64)
        kernels.entries_of_rows(order, indptr, rows.indices, self.plan.index_base, escape, entries)
        labels = self._labels.apply(rows.labels)
        layout = self.plan.layout
        row_bytes = _ROW_BYTES + (_WEIGHT_BYTES if len(rows.weights) else 0)
        ends = np.cumsum(entries * entry_bytes(layout.index_coding, layout.values) + row_bytes)
        of_ids = rows.ids.nbytes if rows.ids is not None else 0  # in a separate file, which is read as a whole as well
        pieces = math.ceil(max(int(ends[-1]), of_ids) / self.plan.chunk_size)
        cuts = np.searchsorted(ends, [int(ends[-1]) * piece // pieces for piece in range(1, pieces)])
        for chosen in np.split(np.arange(number), cuts):
            if len(chosen):
                part = order[chosen]
                self._write_chunk(assembled, rows, indptr, part, labels[part], int(entries[chosen].sum()), scratch)
        self._pool.give_back(scratch)

    def _write_chunk(
        self,
        assembled: Assembled,
        rows: Columns,
        indptr: np.ndarray,
        order: np.ndarray,
        labels: np.ndarray,
        entries: int,
        scratch: Scratch,
    ) -> None:
        """Write rows `order` as the next chunk."""
        block, statistics = self._encode(rows, indptr, order, labels, entries, scratch)
        file = f"bucket-{assembled.bucket:06d}-{len(assembled.chunks):04d}.arrow"
        written = write_chunk(self.folder / file, block)
        self._syncing.append(self._disk.submit(sync_file, self.folder / file))
        of_ids = None
        if rows.ids is not None:
            name = file.replace(".arrow", ".ids")
            of_ids = row_ids.write(self.folder / name, rows.ids.take(array_of(order)))
            if of_ids:
                self._syncing.append(self._disk.submit(sync_file, self.folder / name))
        nonzeros = int((indptr[order + 1] - indptr[order]).sum())
        counts = self._labels.count(labels)
        assembled.chunks.append(
            ChunkInfo(
                file,
                block.rows,
                nonzeros,
                entries,
                written.bytes,
                written.crc32,
                written.xxh64,
                counts,
                written.starts,
                of_ids,
            )
        )
        assembled.statistics += statistics

    def _encode(
        self, rows: Columns, indptr: np.ndarray, order: np.ndarray, labels: np.ndarray, entries: int, scratch: Scratch
    ) -> tuple[CsrBlock, RowStatistics]:
        layout = self.plan.layout
        offsets = np.empty(len(order) + 1, np.int32)
        indices = scratch.array("coded", entries, CODINGS[layout.index_coding])
        kind = VALUE_CODINGS[coding_in_files(layout.values) or "float32"]
        values = scratch.array("coded values", entries if layout.values else 0, kind)
        norms = np.empty(len(order))
        written, rounding_error = kernels.encode_rows(
            order,
            indptr,
            rows.indices,
            rows.values,
            self.plan.index_base,
            escape_of(layout.index_coding),
            self.plan.normalize,
            ROUNDINGS[self.plan.rounding],
            layout.values == COUNTS,
            self._idf,
            self._keys,
            self._places,
            offsets,
            indices,
            values.view(np.uint16) if kind is np.float16 else values,
            norms,
        )
        assert written == entries
        lengths = indptr[order + 1] - indptr[order]
        weights = rows.weights[order] if len(rows.weights) else None
        if weights is not None and (weights == 1).all():
            weights = None
        of_weights = (float(len(order)), 1.0, float(norms.max()) ** 2)
        if weights is not None:
            exact = weights.astype(np.float64)
            of_weights = (float(exact.sum()), float(exact.max()), float((exact * norms**2).max()))
        statistics = RowStatistics(
            float(norms.sum()),
            float(norms.max()),
            int(lengths.max()),
            int((lengths == 0).sum()),
            rounding_error,
            *of_weights,
        )
        stored = values if layout.values else None
        return CsrBlock(offsets, indices, stored, labels, self.plan.features, weights, self._levels), statistics


def _starts(rows: Columns) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(rows.lengths, dtype=np.int64)])
