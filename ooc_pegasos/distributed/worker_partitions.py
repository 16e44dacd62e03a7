"""Partitions of a collection on a worker: rows of each, and of some of them a part.

What rows are is as for a store of the collection.
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
from ooc_pegasos.distributed.store_parts import Held
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.base import LARGEST_INDEX
from ooc_pegasos.readers.vectorize import Vectorizer
from ooc_pegasos.store.csr_block import OVERFLOWS, CsrBlock
from ooc_pegasos.store.labels import Distinct, LabelCollector, LabelMap, distinct_of
from ooc_pegasos.store.manifest import ChunkInfo, Manifest, Recipe, Starts, Statistics
from ooc_pegasos.store.recipe import Table
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.csr_matrix import csr_of

_ROW_BYTES, _ENTRY_BYTES = 30, 8
"""Bytes of a row in the memory of a worker besides its entries, and bytes of an entry."""
_SOME = 1000


@dataclass(frozen=True)
class Rows:
    """The rows of a partition, whose labels are keys as yet."""

    block: CsrBlock
    names: dict[int, str]


@dataclass(frozen=True)
class Summary:
    """The report to the client."""

    rows: int
    entries: int
    """At most; some may turn out to be 0."""
    features: int
    """As many as the rows have, or, of a matrix, as many columns."""
    labels: Distinct
    names: dict[int, str]


@dataclass(frozen=True)
class Settings:
    """The settings by which all partitions are read."""

    recipe: Recipe
    text_labels: bool
    fractions: bool
    """True if fractional labels are classes."""
    allowed: dict[int, str] | None
    """The labels that there may be."""


@dataclass(frozen=True)
class Finished:
    """A part: its rows as they are trained on, and what is known of them."""

    block: CsrBlock
    chunk: ChunkInfo
    statistics: Statistics


def bytes_of(rows: int, entries: int) -> int:
    """Bytes of rows in the memory of a worker."""
    return _ROW_BYTES * rows + _ENTRY_BYTES * entries


# --- rows of a partition ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """The report to the client on a partition of a dataframe, before the recipe is known."""

    schema: Any
    """None if it has no rows."""
    words: list[str]
    """Some labels that are words."""
    bytes: int


def look_at(part: Any, number: int, *, label: str | None) -> Look:
    """A first look at a partition of a dataframe."""
    if not len(part):
        return Look(None, [], 0)
    found = part[label].iloc[:_SOME].unique().tolist() if label in part.columns else []
    words = [word for word in found if isinstance(word, str)]
    return Look(batches_of(part, f"part {number}")[0], words, int(part.memory_usage(deep=True).sum()))


def rows_of_block(matrix: Any, labels: Any, weights: Any, *, settings: Settings, name: str) -> Rows:
    """The rows of a block of an array."""
    if not settings.text_labels and np.asarray(labels).dtype.kind in "UT":
        raise InputError(f"{name}: the labels are words; name them with {{classes}}")
    features = settings.recipe.features
    largest = LARGEST_INDEX if features is None else features - 1
    parsed = rows_of_matrix(matrix, labels, weights, name, text_labels=settings.text_labels, largest_index=largest)
    return _checked(dataclasses.replace(parsed.block, features=int(matrix.shape[1])), parsed.names, settings, name)


def rows_of_part(part: Any, *, settings: Settings, name: str) -> Rows:
    """The rows of a partition of a dataframe."""
    table = settings.recipe.table
    assert isinstance(table, Table)
    vectorizer = Vectorizer(table, settings.text_labels)
    found = list(rows_of_frame(part, vectorizer, name))
    names = {key: word for one in found for key, word in one.names.items()}
    rows, entries = sum(one.block.rows for one in found), sum(len(one.block.indices) for one in found)
    return _checked(_joined((one.block for one in found), rows, entries, 0), names, settings, name)


def _checked(block: CsrBlock, names: dict[int, str], settings: Settings, name: str) -> Rows:
    """Refuse labels that were not declared, and values that cannot be rounded."""
    assert block.values is not None
    if settings.allowed is not None:
        bits = block.labels.view(np.uint64)
        wrong = np.flatnonzero(~np.isin(bits, np.array(list(settings.allowed), np.uint64)))
        if len(wrong):
            told = LabelCollector(settings.text_labels, names=names).name(int(bits[wrong[0]]))
            known = ", ".join(list(settings.allowed.values())[:5])
            problem = f"the label {told!r} is not one of {known}; correct it or declare it with {{classes}}"
            raise InputError(f"{name}: row {wrong[0] + 1:,}: {problem}")
    rounding = settings.recipe.values
    if rounding and not settings.recipe.normalize and (np.abs(block.values) >= OVERFLOWS[rounding]).any():
        raise InputError(f"{name}: a value is too large for {rounding}; use {{values=float32}}")
    return Rows(block, names)


def summary_of(rows: Rows, _number: int, *, settings: Settings) -> Summary:
    """The report to the client on some rows."""
    block = rows.block
    features = max(block.features, int(block.indices.max()) + 1 if len(block.indices) else 0)
    labels = distinct_of(block.labels, settings.text_labels, settings.fractions)
    return Summary(block.rows, len(block.indices), features, labels, rows.names)


def sizes_of_blocks(blocks: list[Any], *, settings: Settings, numbers: list[int]) -> list[Summary]:
    """The same of blocks of an array, without a look at their entries: that is taken when a part is made of them."""
    return [_size_of(block, settings, f"part {number}") for block, number in zip(blocks, numbers, strict=True)]


def _size_of(block: Any, settings: Settings, name: str) -> Summary:
    import scipy.sparse as sp

    matrix, labels, weights = block
    dense = isinstance(matrix, np.ndarray) and matrix.ndim == 2
    found = matrix if dense else csr_of(matrix, name)
    rows = rows_of_block(sp.csr_matrix(found.shape), labels, weights, settings=settings, name=name)
    summary = summary_of(rows, 0, settings=settings)
    return dataclasses.replace(summary, entries=int(np.count_nonzero(matrix) if dense else found.nnz))


def _joined(blocks: Iterable[CsrBlock], rows: int, entries: int, features: int) -> CsrBlock:
    """The rows of some blocks one after the other; of the blocks themselves one at a time is kept."""
    indptr, indices, values = np.zeros(rows + 1, np.int64), np.empty(entries, np.uint32), np.empty(entries, np.float32)
    labels, weights = np.empty(rows), None
    row = entry = 0
    for block in blocks:
        assert block.values is not None
        to_row, to_entry = row + block.rows, entry + len(block.indices)
        if to_row > rows or to_entry > entries:
            raise otherwise()
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


def finish(
    given: list[Any],
    *,
    settings: Settings | None,
    numbers: list[int],
    rows: int,
    entries: int,
    recipe: Recipe,
    meaning: LabelMap,
    features: int,
    place: int,
) -> Finished:
    """The rows of some partitions as a part: rows that were made of them, or, with settings, blocks as they are."""
    if settings is None:
        blocks = (one.block for one in given)
    else:
        blocks = (
            rows_of_block(*one, settings=settings, name=f"part {number}").block
            for one, number in zip(given, numbers, strict=True)
        )
    block = _joined(blocks, rows, entries, features)
    values, error = block.values, 0.0
    assert values is not None
    if recipe.normalize:
        normalize_rows(block.indptr, values)
    if recipe.values:
        exact = values.astype(np.float64)
        round_values(values, ROUNDINGS[recipe.values])
        error = float(np.abs(values / np.where(exact == 0, 1, exact) - (exact != 0)).max(initial=0.0))
    weights = None if block.weights is None or (block.weights == 1).all() else block.weights
    block = dataclasses.replace(block, labels=meaning.apply(block.labels), weights=weights)
    lengths, norms = np.diff(block.indptr), row_norms(block.indptr, values)
    seen, size = RunningHash(), 0
    for array in (block.indptr, block.indices, values, block.labels, weights):
        if array is not None:
            seen.update(np.ascontiguousarray(array).view(np.uint8).data)
            size += array.nbytes
    digest = seen.hexdigest()
    counts = meaning.count(block.labels)
    entries = len(block.indices)
    name = f"chunk-{place:06d}-{digest[:8]}.arrow"
    places = Starts(0, None if weights is None else 0, 0, 0, 0)
    chunk = ChunkInfo(name, block.rows, entries, entries, size, "", digest, counts, places)
    heavy = np.ones(block.rows) if weights is None else weights.astype(np.float64)
    statistics = Statistics(
        float(norms.max()),
        float(norms.mean()),
        int(lengths.max()),
        int((lengths == 0).sum()),
        error,
        float(heavy.mean()),
        float(heavy.max()),
        None if weights is None else float((heavy * norms**2).max()),
    )
    return Finished(block, chunk, statistics)


def without_rows(part: Finished) -> Finished:
    """The facts that the client needs."""
    nothing = CsrBlock(np.zeros(1, np.int64), np.empty(0, np.uint32), None, np.empty(0), 0)
    return dataclasses.replace(part, block=nothing)


def held_of(part: Finished, *, made: Manifest) -> Held:
    """A part as it is trained on; if it had to be made again, the same that it was."""
    if part.chunk != made.chunks[0]:
        raise otherwise()
    return Held(made, part.block)


def otherwise() -> InputError:
    """Message on a collection whose partitions change when they are computed again."""
    problem = "the collection came out otherwise than before, and then nothing that is known of its rows is true"
    return InputError(f"{problem}; persist it, or write a store with Store.from_dask")
