"""What a worker does with partitions of a collection: rows of each, and of some that follow each other a part.

What rows are is as for a store of the collection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.block import OVERFLOWS, CsrBlock
from ooc_pegasos.checksums import RunningHash
from ooc_pegasos.distributed.parts import Held
from ooc_pegasos.errors import InputError
from ooc_pegasos.kernels.rows import normalize_rows, row_norms
from ooc_pegasos.kernels.values import ROUNDINGS, round_values
from ooc_pegasos.labels import Distinct, LabelCollector, LabelMap, distinct_of
from ooc_pegasos.manifest import ChunkInfo, Manifest, Recipe, Starts, Statistics
from ooc_pegasos.partitions import rows_of_frame, rows_of_matrix
from ooc_pegasos.pieces import batches_of
from ooc_pegasos.readers.reading import LARGEST_INDEX
from ooc_pegasos.readers.vectors import Vectorizer
from ooc_pegasos.recipe import Table

_ROW_BYTES, _ENTRY_BYTES = 30, 8
"""What a row takes in the memory of a worker besides its entries, and what each of these takes."""
_SOME = 1000


@dataclass(frozen=True)
class Rows:
    """The rows of a partition, whose labels are keys as yet."""

    block: CsrBlock
    names: dict[int, str]


@dataclass(frozen=True)
class Summary:
    """What the client is told of them."""

    rows: int
    entries: int
    features: int
    """As many as the rows have, or, of a matrix, as many columns."""
    labels: Distinct
    names: dict[int, str]


@dataclass(frozen=True)
class Settings:
    """What all partitions are read by."""

    recipe: Recipe
    text_labels: bool
    fractions: bool
    """Whether labels that are fractions are classes all the same."""
    allowed: dict[int, str] | None
    """The labels that there may be."""


@dataclass(frozen=True)
class Finished:
    """A part: its rows as they are trained on, and what is known of them."""

    block: CsrBlock
    chunk: ChunkInfo
    statistics: Statistics


def bytes_of(rows: int, entries: int) -> int:
    """What rows take in the memory of a worker."""
    return _ROW_BYTES * rows + _ENTRY_BYTES * entries


# --- rows of a partition ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What the client is told of a partition of a dataframe before it knows what to make of it."""

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
        raise InputError(f"{name}: the labels are words; name them with --classes")
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
    block = _joined([one.block for one in found], 0)
    return _checked(block, names, settings, name)


def _checked(block: CsrBlock, names: dict[int, str], settings: Settings, name: str) -> Rows:
    """Refuse labels that were not declared, and values that cannot be rounded."""
    assert block.values is not None
    if settings.allowed is not None:
        bits = block.labels.view(np.uint64)
        wrong = np.flatnonzero(~np.isin(bits, np.array(list(settings.allowed), np.uint64)))
        if len(wrong):
            told = LabelCollector(settings.text_labels, names=names).name(int(bits[wrong[0]]))
            known = ", ".join(list(settings.allowed.values())[:5])
            problem = f"the label {told!r} is not one of {known}; correct it or declare it with --classes"
            raise InputError(f"{name}: row {wrong[0] + 1:,}: {problem}")
    rounding = settings.recipe.values
    if rounding and not settings.recipe.normalize and (np.abs(block.values) >= OVERFLOWS[rounding]).any():
        raise InputError(f"{name}: a value is too large for {rounding}; use --values float32")
    return Rows(block, names)


def summary_of(rows: Rows, _number: int, *, settings: Settings) -> Summary:
    """What the client is told of some rows."""
    block = rows.block
    features = max(block.features, int(block.indices.max()) + 1 if len(block.indices) else 0)
    labels = distinct_of(block.labels, settings.text_labels, settings.fractions)
    return Summary(block.rows, len(block.indices), features, labels, rows.names)


def _joined(blocks: Sequence[CsrBlock], features: int) -> CsrBlock:
    """The rows of some blocks one after the other."""
    lengths = [np.diff(block.indptr) for block in blocks]
    indptr = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    weights = None
    if any(block.weights is not None for block in blocks):
        found = [np.ones(block.rows, np.float32) if block.weights is None else block.weights for block in blocks]
        weights = np.concatenate(found)
    return CsrBlock(
        indptr,
        np.concatenate([np.empty(0, np.uint32), *(block.indices for block in blocks)]),
        np.concatenate([np.empty(0, np.float32), *(block.values for block in blocks)]),
        np.concatenate([np.empty(0), *(block.labels for block in blocks)]),
        features,
        weights,
    )


# --- parts --------------------------------------------------------------------------------------------


def finish(rows: list[Rows], *, recipe: Recipe, meaning: LabelMap, features: int, place: int) -> Finished:
    """The rows of some partitions as a part."""
    block = _joined([one.block for one in rows], features)
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
    """What the client has to know."""
    nothing = CsrBlock(np.zeros(1, np.int64), np.empty(0, np.uint32), None, np.empty(0), 0)
    return dataclasses.replace(part, block=nothing)


def held_of(part: Finished, *, made: Manifest) -> Held:
    """A part as it is trained on; if it had to be made again, the same that it was."""
    if part.chunk != made.chunks[0]:
        problem = "the collection came out otherwise than before, and then nothing that is known of its rows is true"
        raise InputError(f"{problem}; persist it, or write a store with Store.from_dask")
    return Held(made, part.block)
