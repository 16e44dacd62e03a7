"""Collections to parts that workers hold in memory: a pass that turns partitions into rows, and no store.

What rows are is as for a store of the collection. Once all labels have been seen, partitions that follow each other
become parts, each one block; what is known of all of them is a manifest, though nothing of it lies on a disk.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos import __version__, manifest
from ooc_pegasos.block import OVERFLOWS, CsrBlock
from ooc_pegasos.checksums import RunningHash
from ooc_pegasos.collect import blocks_of_array, refuse_beside, refuse_delayed
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.distributed.parts import Held
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.growth import only
from ooc_pegasos.kernels.rows import normalize_rows
from ooc_pegasos.kernels.values import ROUNDINGS, round_values
from ooc_pegasos.labels import Distinct, LabelCollector, LabelMap, distinct_of, settle
from ooc_pegasos.manifest import ChunkInfo, Layout, Manifest, Recipe, Starts, Statistics
from ooc_pegasos.partitions import rows_of_frame, rows_of_matrix
from ooc_pegasos.pieces import batches_of, types_of
from ooc_pegasos.readers.opening import new_recipe
from ooc_pegasos.readers.reading import LARGEST_INDEX
from ooc_pegasos.readers.sources import Called
from ooc_pegasos.readers.svmlight import looks_like_a_number
from ooc_pegasos.readers.vectors import Vectorizer
from ooc_pegasos.recipe import Table
from ooc_pegasos.store import Store

_NAME = "the collection"
_ROW_BYTES = 60
"""What a row takes besides its entries, with what dual coordinate ascent knows of it."""
_SHARE = 0.6
"""Of the workers' memory that rows may take."""
_DEFAULTS = ConvertConfig()


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


def is_collection(given: Any) -> bool:
    """Whether it is one of Dask, or what claims to be."""
    return hasattr(given, "__dask_graph__")


def hold(
    client: Any,
    collection: Any,
    labels: Any,
    weights: Any,
    config: ConvertConfig,
    parts: int | None,
    note: Callable[[str], None],
) -> tuple[Store, list[Any]]:
    """(what would be the store, a future of the rows of each part) of a collection."""
    refuse_delayed(collection)
    _refuse(config)
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise InputError("the cluster has no workers; start some, or wait for them with client.wait_for_workers(1)")
    if hasattr(collection, "to_delayed") and hasattr(collection, "chunks"):
        settings, futures = _read_array(client, collection, labels, weights, config, note)
    elif hasattr(collection, "to_delayed") and hasattr(collection, "columns"):
        refuse_beside(labels, weights)
        settings, futures = _read_frame(client, collection, config, note)
    else:
        raise UsageError(f"a {type(collection).__name__} has no rows to train on; give a dask.dataframe or dask.array")
    told: list[Summary] = client.gather([client.submit(_summary, one, settings, pure=False) for one in futures])
    there = [(future, one) for future, one in zip(futures, told, strict=True) if one.rows]
    del futures
    if not there:
        raise InputError("the collection has no rows; check how it was made")
    _check_room(workers, sum(8 * one.entries + _ROW_BYTES * one.rows for _future, one in there))
    seen = LabelCollector(settings.text_labels)
    for _future, one in there:
        seen.add(one.labels, one.names)
    meaning, features = settle(seen, config.declared()), _features(settings.recipe, [one for _future, one in there])
    finished = [
        client.submit(
            _finish, [future for future, _one in there[first:end]], settings.recipe, meaning, features, number
        )
        for number, (first, end) in enumerate(_cut([one for _future, one in there], parts or len(workers)))
    ]
    del there
    known = client.gather([client.submit(_without_rows, one, pure=False) for one in finished])
    made = _manifest(
        settings.recipe, meaning, features, [one.chunk for one in known], [one.statistics for one in known]
    )
    held = [client.submit(_held, one, only(made, i, i + 1), pure=False) for i, one in enumerate(finished)]
    return Store(Path(_NAME), made), held


def _refuse(config: ConvertConfig) -> None:
    """Options that take more passes, or files."""
    for name in ("dictionary", "idf", "standardize", "feature_names", "weights", "labels", "preset", "on_bad_row"):
        if getattr(config, name) != getattr(_DEFAULTS, name):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is for stores; write one with Store.from_dask, and train on that")


def _check_room(workers: dict[str, Any], needed: int) -> None:
    """Refuse rows that the workers cannot hold."""
    limits = [worker["memory_limit"] for worker in workers.values()]
    if all(limits) and needed > _SHARE * sum(limits):
        problem = f"its rows take {needed / 1e9:.3g} GB, and {len(limits)} workers have {sum(limits) / 1e9:.3g} GB"
        raise InputError(f"{problem} of memory; write a store with Store.from_dask, and train on that")


def _features(recipe: Recipe, told: Sequence[Summary]) -> int:
    features = max(one.features for one in told)
    if recipe.reader == "arrays" and len({one.features for one in told}) > 1:
        raise InputError(f"blocks of {min(one.features for one in told):,} to {features:,} columns; make them alike")
    return features if recipe.features is None else recipe.features


def _cut(told: Sequence[Summary], number: int) -> list[tuple[int, int]]:
    """(first partition, the one after the last) of parts of about the same size, none of them empty."""
    number = max(1, min(number, len(told)))
    sizes = np.array([8 * one.entries + _ROW_BYTES * one.rows for one in told])
    middles = np.cumsum(sizes) - sizes / 2
    cuts = np.searchsorted(middles, sizes.sum() * np.arange(1, number) / number)
    cuts = np.maximum.accumulate(np.maximum(cuts - np.arange(1, number), 0)) + np.arange(1, number)
    bounds = [0, *np.minimum(cuts, len(told) - number + np.arange(1, number)).tolist(), len(told)]
    return list(pairwise(bounds))


# --- reading ------------------------------------------------------------------------------------------


def _settings(recipe: Recipe, config: ConvertConfig, text: bool) -> Settings:
    declared = config.declared()
    return Settings(recipe, text, declared.has_classes(), declared.keys(text))


def _read_array(
    client: Any, collection: Any, labels: Any, weights: Any, config: ConvertConfig, note: Callable[[str], None]
) -> tuple[Settings, list[Any]]:
    from dask.delayed import delayed

    if config.format not in ("auto", "arrays") or config.label is not None:
        raise UsageError("a dask.array is read as arrays, with labels=; leave out --format and --label")
    blocks = blocks_of_array(collection, labels, weights, "train_dask(client, x, labels=y)")
    recipe = new_recipe(dataclasses.replace(config, format="arrays"), [_NAME], note)
    text = config.declared().wants_text()
    if text is None:
        text = np.asarray(labels).dtype.kind in "OUT" if not hasattr(labels, "dtype") else labels.dtype.kind in "OUT"
    settings = _settings(recipe, config, text)
    read = delayed(_rows_of_block, pure=False)
    return settings, client.compute([read(*block, settings, f"part {i}") for i, block in enumerate(blocks)])


def _rows_of_block(matrix: Any, labels: Any, weights: Any, settings: Settings, name: str) -> Rows:
    if not settings.text_labels and np.asarray(labels).dtype.kind in "UT":
        raise InputError(f"{name}: the labels are words; name them with --classes")
    features = settings.recipe.features
    largest = LARGEST_INDEX if features is None else features - 1
    parsed = rows_of_matrix(matrix, labels, weights, name, text_labels=settings.text_labels, largest_index=largest)
    return _checked(dataclasses.replace(parsed.block, features=int(matrix.shape[1])), parsed.names, settings, name)


def _read_frame(
    client: Any, collection: Any, config: ConvertConfig, note: Callable[[str], None]
) -> tuple[Settings, list[Any]]:
    import pyarrow as pa

    if config.format not in ("auto", "table"):
        raise UsageError(f"--format {config.format}: a dask.dataframe is a table; leave it out")
    frames = client.compute(list(collection.to_delayed()))
    schemas = client.gather([client.submit(_schema, one, f"part {i}", pure=False) for i, one in enumerate(frames)])
    known, _where = types_of(
        [(f"part {i}", one) for i, one in enumerate(schemas) if one is not None], config.categorical
    )
    if not known:
        raise InputError("the collection has no rows; check how it was made")
    with tempfile.TemporaryDirectory() as folder:
        file, schema = Path(folder) / "empty.arrow", pa.schema(list(known.items()))
        with pa.ipc.new_file(str(file), schema):
            pass
        recipe = new_recipe(dataclasses.replace(config, format="table"), [Called(file, _NAME)], note)
    assert recipe.table is not None
    text = config.declared().wants_text()
    if text is None:
        some = [client.submit(_words, one, recipe.table.label, pure=False) for one in frames]
        words = [word for found in client.gather(some) for word in found]
        text = bool(words) and not any(map(looks_like_a_number, words))
    settings = _settings(recipe, config, text)
    read = [client.submit(_rows_of_part, one, settings, f"part {i}", pure=False) for i, one in enumerate(frames)]
    return settings, read


def _schema(part: Any, name: str) -> Any:
    return batches_of(part, name)[0] if len(part) else None


def _words(part: Any, label: str) -> list[str]:
    """Some labels that are words."""
    return [word for word in part[label].iloc[:1000].unique().tolist() if isinstance(word, str)]


def _rows_of_part(part: Any, settings: Settings, name: str) -> Rows:
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


def _summary(rows: Rows, settings: Settings) -> Summary:
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


def _finish(rows: list[Rows], recipe: Recipe, meaning: LabelMap, features: int, number: int) -> Finished:
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
    lengths = np.diff(block.indptr)
    norms, some = np.zeros(block.rows), lengths > 0
    if some.any():
        norms[some] = np.sqrt(np.add.reduceat(values.astype(np.float64) ** 2, block.indptr[:-1][some]))
    seen, size = RunningHash(), 0
    for array in (block.indptr, block.indices, values, block.labels, weights):
        if array is not None:
            seen.update(np.ascontiguousarray(array).view(np.uint8).data)
            size += array.nbytes
    digest = seen.hexdigest()
    counts = meaning.count(block.labels)
    entries = len(block.indices)
    name = f"chunk-{number:06d}-{digest[:8]}.arrow"
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


def _without_rows(part: Finished) -> Finished:
    """What the client has to know."""
    nothing = CsrBlock(np.zeros(1, np.int64), np.empty(0, np.uint32), None, np.empty(0), 0)
    return dataclasses.replace(part, block=nothing)


def _held(part: Finished, made: Manifest) -> Held:
    return Held(made, part.block)


def _manifest(
    recipe: Recipe, meaning: LabelMap, features: int, chunks: list[ChunkInfo], statistics: list[Statistics]
) -> Manifest:
    from ooc_pegasos.growth import statistics_of_all

    rows = sum(chunk.rows for chunk in chunks)
    parts = [manifest.Part(chunk.rows, 1, 0, one) for chunk, one in zip(chunks, statistics, strict=True)]
    counts = [sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
    return Manifest(
        manifest.FORMAT,
        manifest.VERSION,
        rows,
        features,
        sum(chunk.nonzeros for chunk in chunks),
        dataclasses.replace(meaning.info, counts=counts),
        Layout("uint32", "float32", meaning.kind, []),
        recipe,
        statistics_of_all(parts),
        None,
        0,
        chunks,
        [],
        __version__,
    )
