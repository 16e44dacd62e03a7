"""Check every byte of a store, and that its rows have the structure its manifest promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ooc_pegasos import manifest as manifests
from ooc_pegasos.block import STRUCTURE_PROBLEMS, CsrBlock, escape_of
from ooc_pegasos.errors import DamagedError
from ooc_pegasos.kernels import rows as kernels
from ooc_pegasos.manifest import ChunkInfo, Manifest
from ooc_pegasos.progress import Progress
from ooc_pegasos.store import REJECTED_FILE, Store


@dataclass(frozen=True)
class Verification:
    """What was found: `problems` is empty for a sound store; `strays` are files nobody names, which do no harm."""

    chunks: int
    rows: int
    bytes: int
    problems: list[str]
    strays: list[str]


def verify(store: Store, progress: Progress | None = None) -> Verification:
    """Read all of `store`; a damaged chunk is reported and the others are still checked."""
    progress = progress or Progress()
    progress.begin("verifying", store.manifest.bytes)
    problems = []
    rows = 0
    for number, chunk in enumerate(store.manifest.chunks):
        try:
            block = store.block(number)
        except DamagedError as error:
            problems.append(str(error))
        else:
            rows += block.rows
            problems += [f"{store.path / chunk.file}: {text}" for text in block_problems(block, chunk, store.manifest)]
        progress.advance(chunk.bytes)
    progress.end()
    known = {chunk.file for chunk in store.manifest.chunks} | {manifests.FILE_NAME, REJECTED_FILE}
    strays = sorted(path.name for path in store.path.iterdir() if path.name not in known)
    return Verification(len(store.manifest.chunks), rows, store.manifest.bytes, problems, strays)


def block_problems(block: CsrBlock, chunk: ChunkInfo, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the rows of one chunk."""
    layout = manifest.layout
    found = (block.coding, str(block.labels.dtype), None if block.values is None else "float32")
    if found != (layout.index_coding, layout.labels, layout.values):
        yield f"columns {found} are not the manifest's layout"
    if (np.diff(block.indptr) < 0).any():
        yield "row offsets decrease"
        return
    values = np.empty(0, np.float32) if block.values is None else block.values
    indptr = np.empty(block.rows + 1, np.int64)
    nothing = np.empty(0, np.uint32)
    status, row = kernels.decode_rows(
        block.indptr,
        block.indices,
        values,
        escape_of(block.coding),
        block.features,
        indptr,
        nothing,
        np.empty(0, np.float32),
    )
    if status != kernels.DECODED:
        yield f"row {row}: {STRUCTURE_PROBLEMS[status]}"
    elif indptr[-1] != chunk.nonzeros:
        yield f"{indptr[-1]:,} non-zeros instead of {chunk.nonzeros:,}"
    if not np.isfinite(values).all():
        yield "a value is not finite"
    yield from label_problems(block.labels, chunk, manifest)


def label_problems(labels: np.ndarray, chunk: ChunkInfo, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the labels of one chunk."""
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
