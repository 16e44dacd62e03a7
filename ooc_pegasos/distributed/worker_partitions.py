"""Tasks of a worker on partitions of a collection: convert each to rows, and join some to a part.

The rows are those of a store of the collection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.rows.coding import normalize_rows, row_norms
from ooc_pegasos.compiled.rows.values import ROUNDINGS, round_values
from ooc_pegasos.conversion.partition_rows import rows_of_frame, rows_of_matrix
from ooc_pegasos.conversion.staging import batches_of
from ooc_pegasos.distributed.store_parts import InMemoryPart
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.base import LARGEST_INDEX
from ooc_pegasos.readers.vectorize import Vectorizer
from ooc_pegasos.scoring.evaluate import loss_of_constant
from ooc_pegasos.store.csr_block import OVERFLOWS, CsrBlock
from ooc_pegasos.store.labels import Distinct, LabelCollector, LabelMap, distinct_of
from ooc_pegasos.store.manifest import ChunkInfo, Manifest, Recipe, Starts, Statistics
from ooc_pegasos.store.recipe import Table
from ooc_pegasos.store.targets import TargetSizes
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.csr_matrix import csr_of

_ROW_BYTES, _ENTRY_BYTES = 30, 8
"""Bytes of a row in the memory of a worker besides its entries, and bytes of an entry."""
_SAMPLE_ROWS = 1000
_NAMED_ROWS = 100_000
"""Rows of a partition that are searched for names of features."""


@dataclass(frozen=True)
class Rows:
    """The rows of a partition; labels are still hash keys."""

    block: CsrBlock
    names: dict[int, str]


@dataclass(frozen=True)
class Summary:
    """Summary of a partition for the client."""

    rows: int
    entries: int
    """Upper bound of the number of entries; zeros may be dropped."""
    features: int
    """Number of features of the rows, or of columns of a matrix."""
    labels: Distinct
    names: dict[int, str]


@dataclass(frozen=True)
class Settings:
    """Options for reading all partitions."""

    recipe: Recipe
    text_labels: bool
    fractions: bool
    """True if fractional labels are classes."""
    allowed: dict[int, str] | None
    """The declared labels; None: any."""


@dataclass(frozen=True)
class FinishedPart:
    """A part: its training rows and their description."""

    block: CsrBlock
    chunk: ChunkInfo
    statistics: Statistics
    targets: TargetSizes
    """Of labels that are real targets."""


def bytes_of(rows: int, entries: int) -> int:
    """Return the bytes of rows in the memory of a worker."""
    return _ROW_BYTES * rows + _ENTRY_BYTES * entries


# --- rows of a partition ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionPreview:
    """Schema and sample of labels of a partition of a dataframe."""

    schema: Any
    """None if it has no rows."""
    words: list[str]
    """Some labels that are words."""
    bytes: int


def preview_of(part: Any, number: int, *, label: str | None) -> PartitionPreview:
    """Return the schema and a sample of the labels of a partition."""
    if not len(part):
        return PartitionPreview(None, [], 0)
    found = part[label].iloc[:_SAMPLE_ROWS].unique().tolist() if label in part.columns else []
    words = [word for word in found if isinstance(word, str)]
    return PartitionPreview(batches_of(part, f"part {number}")[0], words, int(part.memory_usage(deep=True).sum()))


def rows_of_block(matrix: Any, labels: Any, weights: Any, *, settings: Settings, name: str) -> Rows:
    """Return the rows of a block of an array."""
    if not settings.text_labels and np.asarray(labels).dtype.kind in "UT":
        raise InputError(f"{name}: the labels are words; name them with {{classes}}")
    features = settings.recipe.features
    largest = LARGEST_INDEX if features is None else features - 1
    parsed = rows_of_matrix(matrix, labels, weights, name, text_labels=settings.text_labels, largest_index=largest)
    return _checked(dataclasses.replace(parsed.block, features=int(matrix.shape[1])), parsed.names, settings, name)


def rows_of_part(part: Any, *, settings: Settings, name: str) -> Rows:
    """Return the rows of a partition of a dataframe."""
    table = settings.recipe.table
    assert isinstance(table, Table)
    vectorizer = Vectorizer(table, settings.text_labels)
    found = list(rows_of_frame(part, vectorizer, name))
    names = {key: word for one in found for key, word in one.names.items()}
    rows, entries = sum(one.block.rows for one in found), sum(len(one.block.indices) for one in found)
    return _checked(_concatenated((one.block for one in found), rows, entries, 0), names, settings, name)


def _checked(block: CsrBlock, names: dict[int, str], settings: Settings, name: str) -> Rows:
    """Refuse labels that were not declared, and values that cannot be rounded."""
    assert block.values is not None
    if settings.allowed is not None:
        bits = block.labels.view(np.uint64)
        wrong = np.flatnonzero(~np.isin(bits, np.array(list(settings.allowed), np.uint64)))
        if len(wrong):
            label = LabelCollector(settings.text_labels, names=names).name(int(bits[wrong[0]]))
            known = ", ".join(list(settings.allowed.values())[:5])
            problem = f"the label {label!r} is not one of {known}; correct it or declare it with {{classes}}"
            raise InputError(f"{name}: row {wrong[0] + 1:,}: {problem}")
    rounding = settings.recipe.values
    if rounding and not settings.recipe.normalize and (np.abs(block.values) >= OVERFLOWS[rounding]).any():
        raise InputError(f"{name}: a value is too large for {rounding}; use {{values=float32}}")
    return Rows(block, names)


def summary_of(rows: Rows, _number: int, *, settings: Settings) -> Summary:
    """Return the summary of some rows."""
    block = rows.block
    features = max(block.features, int(block.indices.max()) + 1 if len(block.indices) else 0)
    labels = distinct_of(block.labels, settings.text_labels, settings.fractions)
    return Summary(block.rows, len(block.indices), features, labels, rows.names)


def sizes_of_blocks(blocks: list[Any], *, settings: Settings, numbers: list[int]) -> list[Summary]:
    """Return the summaries of blocks of an array; their entries are checked later, when parts are made."""
    return [_size_of(block, settings, f"part {number}") for block, number in zip(blocks, numbers, strict=True)]


def _size_of(block: Any, settings: Settings, name: str) -> Summary:
    import scipy.sparse as sp

    matrix, labels, weights = block
    dense = isinstance(matrix, np.ndarray) and matrix.ndim == 2
    found = matrix if dense else csr_of(matrix, name)
    rows = rows_of_block(sp.csr_matrix(found.shape), labels, weights, settings=settings, name=name)
    summary = summary_of(rows, 0, settings=settings)
    return dataclasses.replace(summary, entries=int(np.count_nonzero(matrix) if dense else found.nnz))


def _concatenated(blocks: Iterable[CsrBlock], rows: int, entries: int, features: int) -> CsrBlock:
    """Concatenate the rows of blocks, with one block in memory at a time."""
    indptr, indices, values = np.zeros(rows + 1, np.int64), np.empty(entries, np.uint32), np.empty(entries, np.float32)
    labels, weights = np.empty(rows), None
    row = entry = 0
    for block in blocks:
        assert block.values is not None
        to_row, to_entry = row + block.rows, entry + len(block.indices)
        if to_row > rows or to_entry > entries:
            raise changed_collection()
        indptr[row + 1 : to_row + 1] = block.indptr[1:] + entry
        indices[entry:to_entry], values[entry:to_entry] = block.indices, block.values
        labels[row:to_row] = block.labels
        if block.weights is not None:
            weights = np.ones(rows, np.float32) if weights is None else weights
            weights[row:to_row] = block.weights
        row, entry = to_row, to_entry
        del block
    weights = None if weights is None else weights[:row]
    return CsrBlock(indptr[: row + 1], indices[:entry], values[:entry], labels[:row], features, weights)


# --- parts --------------------------------------------------------------------------------------------


def make_part(
    given: list[Any],
    *,
    settings: Settings | None,
    numbers: list[int],
    rows: int,
    entries: int,
    recipe: Recipe,
    label_map: LabelMap,
    features: int,
    part: int,
) -> FinishedPart:
    """Make a part of the rows of some partitions; `given` are rows, or with `settings`, blocks of an array."""
    if settings is None:
        blocks = (one.block for one in given)
    else:
        blocks = (
            rows_of_block(*one, settings=settings, name=f"part {number}").block
            for one, number in zip(given, numbers, strict=True)
        )
    block = _concatenated(blocks, rows, entries, features)
    values, error = block.values, 0.0
    assert values is not None
    if recipe.normalize:
        normalize_rows(block.indptr, values)
    if recipe.values:
        exact = values.astype(np.float64)
        round_values(values, ROUNDINGS[recipe.values])
        error = float(np.abs(values / np.where(exact == 0, 1, exact) - (exact != 0)).max(initial=0.0))
    weights = None if block.weights is None or (block.weights == 1).all() else block.weights
    block = dataclasses.replace(block, labels=label_map.apply(block.labels), weights=weights)
    lengths, norms = np.diff(block.indptr), row_norms(block.indptr, values)
    checksum, size = RunningHash(), 0
    for array in (block.indptr, block.indices, values, block.labels, weights):
        if array is not None:
            checksum.update(np.ascontiguousarray(array).view(np.uint8).data)
            size += array.nbytes
    digest = checksum.hexdigest()
    counts = label_map.count(block.labels)
    entries = len(block.indices)
    name = f"chunk-{part:06d}-{digest[:8]}.arrow"
    starts = Starts(0, None if weights is None else 0, 0, 0, 0)
    chunk = ChunkInfo(name, block.rows, entries, entries, size, "", digest, counts, starts)
    weights64 = np.ones(block.rows) if weights is None else weights.astype(np.float64)
    statistics = Statistics(
        float(norms.max()),
        float(norms.mean()),
        int(lengths.max()),
        int((lengths == 0).sum()),
        error,
        float(weights64.mean()),
        float(weights64.max()),
        None if weights is None else float((weights64 * norms**2).max()),
    )
    return FinishedPart(block, chunk, statistics, TargetSizes.of(block.labels))


def without_rows(part: FinishedPart) -> FinishedPart:
    """Return the description of a part, without its rows."""
    nothing = CsrBlock(np.zeros(1, np.int64), np.empty(0, np.uint32), None, np.empty(0), 0)
    return dataclasses.replace(part, block=nothing)


def checked_part(part: FinishedPart, *, made: Manifest) -> InMemoryPart:
    """Return a part in memory. Raises InputError if it was recomputed with a different result."""
    if part.chunk != made.chunks[0]:
        raise changed_collection()
    return InMemoryPart(made, part.block)


def loss_of_part(part: InMemoryPart, *, loss: str, parameter: float | None, answer: float) -> float:
    """Return the sum of the losses of the rows of a part if the answer to each is a number."""
    return loss_of_constant(loss, parameter, answer, part.block.labels)


def names_in_part(part: Any, *, recipe: Recipe, wanted: list[int]) -> dict[int, str]:
    """Return the names of some buckets that occur in the first rows of a partition."""
    assert recipe.table is not None
    vectorizer = Vectorizer(recipe.table, False, with_labels=False, names=len(wanted))
    vectorizer.search(np.array(wanted))
    found: dict[int, str] = {}
    for one in rows_of_frame(part.iloc[:_NAMED_ROWS], vectorizer, "names"):
        new = {bucket: name for bucket, name in one.features.items() if bucket not in found}
        found |= new
        vectorizer.named(new)
    return found


def changed_collection() -> InputError:
    """Return the error for a collection whose partitions change when they are recomputed."""
    problem = (
        "the partitions of the collection changed when they were recomputed, so the states of their rows are invalid"
    )
    return InputError(f"{problem}; persist it, or write a store with Store.from_dask")
