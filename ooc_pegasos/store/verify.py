"""Check of every byte of a store, and of the structure of its rows."""

from __future__ import annotations

import math
import queue
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.compiled.rows import coding as kernels
from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.store import manifest as manifests
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.chunk_reader import read_whole
from ooc_pegasos.store.csr_block import STRUCTURE_PROBLEMS, CsrBlock, all_levels, coding_in_files, escape_of
from ooc_pegasos.store.manifest import ChunkInfo, Manifest, round_up
from ooc_pegasos.store.page_memory import Arena
from ooc_pegasos.store.store import REJECTED_FILE, Store
from ooc_pegasos.util.memory_limits import available_memory
from ooc_pegasos.util.thread_map import cores, ordered_map


@dataclass(frozen=True)
class Verification:
    """Result of a check: `problems` is empty for a sound store; `strays` are files that do not belong to it."""

    chunks: int
    rows: int
    bytes: int
    problems: list[str]
    strays: list[str]


def verify(store: Store, progress: Progress | None = None, memory: int | None = None) -> Verification:
    """Read all of `store`; a damaged chunk is reported, and the others are still checked.

    As many chunks are in memory at a time as there are cores, and as fit into `memory`: by default half of what is
    free.
    """
    room = (available_memory() // 2 if memory is None else memory) // _memory_of(store)
    threads = max(min(cores(), room), 1)
    if memory is not None and not room:
        raise UsageError(f"{{memory={memory}}}: a chunk takes {_memory_of(store):,} bytes; give at least as much")
    progress = progress or Progress()
    progress.begin("verifying", store.manifest.bytes)
    problems: list[str] = []
    rows, weight_sum, max_weight = 0, 0.0, 0.0
    arenas: queue.SimpleQueue[Arena] = queue.SimpleQueue()

    def check(number: int) -> tuple[int, float, float, list[str]]:
        chunk = store.manifest.chunks[number]
        try:
            arena = arenas.get_nowait()
        except queue.Empty:
            arena = Arena(_memory_of(store))
        try:
            content = read_whole(store.path / chunk.file, chunk, arena)
            block = store.parse(number, content)
            problems = list(block_problems(block, chunk, store.manifest))
            if f"{zlib.crc32(content):08x}" != chunk.crc32:
                problems.append("the CRC-32 does not match")
            messages = [f"{store.path / chunk.file}: {problem}" for problem in problems]
            return block.rows, *_sum_and_largest(block), messages
        except CorruptFileError as error:
            return 0, 0.0, 0.0, [str(error)]
        finally:
            arenas.put(arena)

    def check_ids(number: int) -> list[str]:
        try:
            store.ids(number)
        except CorruptFileError as error:
            return [str(error)]
        return []

    checked = ordered_map(check, range(len(store.manifest.chunks)), threads)
    for number, (of_chunk, sum_of_weights, largest_weight, found) in enumerate(checked):
        rows += of_chunk
        weight_sum += sum_of_weights
        max_weight = max(max_weight, largest_weight)
        problems += found
        problems += check_ids(number)
        progress.advance(store.manifest.chunks[number].bytes)
    progress.end()
    if not problems:
        problems += weight_problems(weight_sum, max_weight, store)
    known = {file for chunk in store.manifest.chunks for file in chunk.files} | {manifests.FILE_NAME, REJECTED_FILE}
    if store.manifest.vocabulary:
        known.add(store.manifest.vocabulary.file)
        try:
            vocabulary.of_store(store.path, store.manifest)
        except CorruptFileError as error:
            problems.append(str(error))
    strays = sorted(path.name for path in store.path.iterdir() if path.name not in known)
    return Verification(len(store.manifest.chunks), rows, store.manifest.bytes, problems, strays)


def _memory_of(store: Store) -> int:
    """Return the bytes that the largest chunk takes in memory."""
    return max((round_up(chunk.bytes) for chunk in store.manifest.chunks), default=1)


def block_problems(block: CsrBlock, chunk: ChunkInfo, manifest: Manifest) -> Iterator[str]:
    """Yield the problems of the rows of a chunk."""
    layout = manifest.layout
    found = (block.coding, str(block.labels.dtype), block.value_coding)
    if found != (layout.index_coding, layout.labels, coding_in_files(layout.values)):
        yield f"columns {found} are not the manifest's layout"
        return
    levels, known = block.levels.view(np.uint32), all_levels(layout.levels).view(np.uint32)
    length = np.flatnonzero(levels).max(initial=-1) + 1  # chunks from before an append have fewer
    if not np.array_equal(levels[:length], known[:length]):
        yield "its table of levels is not the manifest's"
    if (np.diff(block.indptr) < 0).any():
        yield "row offsets decrease"
        return
    indptr = np.empty(block.rows + 1, np.int64)
    nothing, none = np.empty(0, np.uint32), np.empty(0, np.float32)
    escape = escape_of(block.coding)
    status, row = kernels.decode_rows(*block.entries, escape, block.features, indptr, nothing, none)
    if status != kernels.DECODED:
        yield f"row {row}: {STRUCTURE_PROBLEMS[status]}"
    elif indptr[-1] != chunk.nonzeros:
        yield f"{indptr[-1]:,} non-zeros instead of {chunk.nonzeros:,}"
    yield from label_problems(block.labels, chunk, manifest)
    if block.weights is not None:
        wrong = np.flatnonzero(~(np.isfinite(block.weights) & (block.weights > 0)))
        if len(wrong):
            yield f"row {wrong[0]}: its weight is not a positive number"


def _sum_and_largest(block: CsrBlock) -> tuple[float, float]:
    """Return the sum and the maximum of the weights of some rows."""
    if block.weights is None:
        return float(block.rows), 1.0 if block.rows else 0.0
    return float(block.weights.sum(dtype=np.float64)), float(block.weights.max(initial=0))


def weight_problems(weight_sum: float, max_weight: float, store: Store) -> Iterator[str]:
    """Yield contradictions between the weights and the manifest."""
    made = store.manifest
    if not math.isclose(weight_sum, made.weight_sum, rel_tol=1e-9):  # sums in different orders
        yield f"{store.path}: the weights add up to {weight_sum:g} instead of {made.weight_sum:g}"
    if max_weight != made.statistics.max_weight:
        yield f"{store.path}: the largest weight is {max_weight:g} instead of {made.statistics.max_weight:g}"


def label_problems(labels: np.ndarray, chunk: ChunkInfo, manifest: Manifest) -> Iterator[str]:
    """Yield the problems of the labels of a chunk."""
    task, classes = manifest.labels.task, manifest.labels.classes
    if not np.isfinite(labels).all():
        yield "a label is not finite"
    elif task != "regression":
        allowed = [-1, 1] if task == "binary" else list(range(len(classes)))
        counts = [int((labels == code).sum()) for code in allowed]
        if sum(counts) != len(labels):
            yield "a label is not one of the classes"
        elif counts != chunk.label_counts:
            yield f"label counts {counts} instead of {chunk.label_counts}"
