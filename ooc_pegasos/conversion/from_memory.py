"""Stores from data in memory or in Dask collections, which are first staged in files.

Memory holds one partition at a time, and rows, labels and recipes are checked as for any other input. With Dask each
worker writes its own partitions to a folder that all workers must share; no data is gathered. Each attempt to write a
partition has a file of its own, because a worker that was given up may still be writing. The folder is
`STORE.incoming`, locked by the process that converts; the next process removes what a killed process has left there.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.output_check import Existing, already_there, check_output
from ooc_pegasos.conversion.pipeline import convert, convert_part
from ooc_pegasos.conversion.staging import (
    SHARED,
    Written,
    check_alike,
    make_alike,
    plain_of,
    write_matrix,
    write_stream,
    write_table,
)
from ooc_pegasos.conversion.streams import TEST, TRAIN, note_on_splits, splits_of
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.readers.sources import NamedPath
from ooc_pegasos.reporting.progress import NotedProgress, Progress
from ooc_pegasos.store.manifest import Split, test_path
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.files import published_error, remove_folder, writing_errors
from ooc_pegasos.util.locks import has_lock, locked

_LOCK = "lock"


def store_from_arrow(data: Any, path: str | Path, config: ConvertConfig | None, existing: Existing | None) -> Store:
    """Make a store of a table or a stream: pyarrow, pandas, polars, datasets, or an Arrow stream interface.

    Of the splits of a dataset, `train` becomes the store, and `test` the store of its test rows.
    """
    splits = splits_of(data)
    if splits is None:
        return _store_of_table(data, path, config, existing)
    config, existing = config or ConvertConfig(), existing or Existing()
    note = note_on_splits(splits, (TRAIN, TEST))
    if note:
        NotedProgress().note(note)
    if TEST not in splits:
        return _store_of_table(splits[TRAIN], path, config, existing)
    if config.test is not None:
        raise UsageError(f"{{test}}: the dataset has the split {TEST}; leave it out, or give the split {TRAIN} alone")
    if existing.append:
        raise UsageError(
            f"{{append}}: the test rows of a store are those it was made with; give the split {TRAIN} alone"
        )
    place = test_path(Path(path).absolute())
    if place.exists() and not existing.force:
        raise already_there(place)
    store = _store_of_table(splits[TRAIN], path, config, existing, Split("train", 0.0, is_given=True))
    try:  # in a coding to which any values can be appended, as rows of other files have them
        config = dataclasses.replace(config, like=str(path), values=config.values or "float32")
        _store_of_table(splits[TEST], place, config, existing, Split("test", 0.0, is_given=True))
    except (OocPegasosError, OSError, MemoryError) as error:
        raise published_error(
            Path(path), error, f"the split {TEST} is missing; correct it and use {{force}}"
        ) from error
    return store


def _store_of_table(
    data: Any, path: str | Path, config: ConvertConfig | None, existing: Existing | None, split: Split | None = None
) -> Store:
    with _staging_folder(path, config, existing) as folder:
        written = [one for one in write_stream(data, folder, "memory") if one.rows]
        if not written:
            raise InputError("the table has no rows; check how it was made")
        names = [f"part {number}" for number in range(len(written))] if len(written) > 1 else ["memory"]
        pieces = {folder / one.file: (name, one) for one, name in zip(written, names, strict=True)}
        if len(pieces) > 1:
            make_alike(pieces, config.categorical if config else (), may_lack_columns=True)
        return _converted({file: name for file, (name, _one) in pieces.items()}, path, config, existing, split)


def store_from_matrix(
    matrix: Any,
    labels: Any,
    path: str | Path,
    weights: Any,
    config: ConvertConfig | None,
    existing: Existing | None,
) -> Store:
    """Make a store of a scipy sparse matrix or a dense numpy array, and a label for every row."""
    with _staging_folder(path, config, existing) as folder:
        written = write_matrix(matrix, labels, weights, folder, "memory")
        if not written.rows:
            raise InputError("the matrix has no rows; check how it was made")
        return _converted({folder / written.file: "memory"}, path, config, existing)


def store_from_dask(
    collection: Any,
    path: str | Path,
    labels: Any,
    weights: Any,
    config: ConvertConfig | None,
    existing: Existing | None,
) -> Store:
    """Make a store of a dask.dataframe, a dask.bag of dictionaries, or a dask.array with labels, by partitions."""
    with _staging_folder(path, config, existing) as folder:
        refuse_delayed(collection)
        is_array = hasattr(collection, "to_delayed") and hasattr(collection, "chunks")
        if is_array:
            jobs = _jobs_of_array(collection, labels, weights, folder)
        elif hasattr(collection, "to_delayed"):
            jobs = _jobs_of_tables(collection, labels, weights, folder)
        else:
            raise UsageError(
                f"a {type(collection).__name__} is no Dask collection; see Store.from_arrow and Store.from_scipy"
            )
        written = computed(jobs)
        missing = [piece for piece in written if _size_of(folder / piece.file) != piece.bytes]
        if missing:
            raise InputError(f"{Path(path).absolute()}: {len(missing)} of {len(jobs)} pieces are not there; {SHARED}")
        pieces = {folder / piece.file: (f"part {i}", piece) for i, piece in enumerate(written) if piece.rows}
        if not pieces:
            raise InputError("the collection has no rows; check how it was made")
        if is_array:
            check_alike(list(pieces.values()))
        else:
            categorical = config.categorical if config else ()
            make_alike(pieces, categorical, may_lack_columns=not hasattr(collection, "columns"))
        return _converted({file: name for file, (name, _piece) in pieces.items()}, path, config, existing)


def computed(jobs: list[Any]) -> tuple[Written, ...]:
    """Run jobs on the active Dask scheduler."""
    from dask.base import compute

    try:
        written: tuple[Written, ...] = compute(*jobs)  # type: ignore[no-untyped-call]
    except OocPegasosError as error:  # an error from another process has a traceback in its text
        original = getattr(error, "exception", None)
        raise original if isinstance(original, OocPegasosError) else error from None
    except Exception as error:
        # errors of dask.distributed and of the multiprocessing scheduler
        if type(error).__name__ not in ("KilledWorker", "BrokenProcessPool"):
            raise
        problem = "workers died while they made or wrote a partition, most likely out of memory"
        raise InputError(f"{problem}; make partitions smaller, or give workers more memory") from error
    return written


def _size_of(file: Path) -> int | None:
    """Return the size of a file, None if the file does not exist."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def refuse_delayed(given: Any) -> None:
    """Refuse a Delayed, which pretends to have every attribute."""
    from dask.delayed import Delayed

    if isinstance(given, Delayed):
        raise UsageError("a Delayed may become anything; make a collection of it, for example with dd.from_delayed")


def _jobs_of_tables(collection: Any, labels: Any, weights: Any, folder: Path) -> list[Any]:
    """Return the jobs that write the partitions of a table."""
    from dask.delayed import delayed

    refuse_beside(labels, weights)
    write = delayed(write_table, pure=False)
    return [write(part, folder, f"part {number}") for number, part in enumerate(collection.to_delayed())]


def refuse_beside(labels: Any, weights: Any) -> None:
    """Refuse labels and weights given separately; those of a dataframe are columns."""
    for what, given in (("label", labels), ("weight", weights)):
        if given is not None:
            raise UsageError(f"{what}s are a column of the collection; say which with ConvertConfig({what}=...)")


def _jobs_of_array(collection: Any, labels: Any, weights: Any, folder: Path) -> list[Any]:
    """Return the jobs that write the blocks of an array."""
    from dask.delayed import delayed

    write = delayed(write_matrix, pure=False)
    blocks = blocks_of_array(collection, labels, weights, "from_dask(x, path, labels=y)")
    return [write(*block, folder, f"part {number}") for number, block in enumerate(blocks)]


def blocks_of_array(collection: Any, labels: Any, weights: Any, example: str) -> list[tuple[Any, Any, Any]]:
    """Return (rows, labels, weights) of all blocks; `example` shows in messages how to give labels."""
    if collection.ndim != 2 or labels is None:
        raise UsageError(f"a dask.array must have two dimensions, and its labels be given: {example}")
    if len(collection.chunks[1]) > 1:
        if np.isnan(collection.shape[1]):
            raise UsageError("columns fall into several blocks, of unknown size; compute_chunk_sizes() first")
        collection = collection.rechunk({1: -1})
    sizes = collection.chunks[0]
    labels = _cut(labels, sizes, "labels")
    weights = [None] * len(sizes) if weights is None else _cut(weights, sizes, "weights")
    return list(zip(collection.to_delayed().ravel(), labels, weights, strict=True))


def _cut(given: Any, sizes: tuple[float, ...], what: str) -> list[Any]:
    """Split labels or weights into blocks of the given sizes; nan: unknown size."""
    refuse_delayed(given)
    unknown = any(np.isnan(size) for size in sizes)
    if hasattr(given, "to_dask_array"):  # a column of dask.dataframe
        parts = list(given.to_delayed())
        if len(parts) != len(sizes):
            problem = f"{what} fall into {len(parts):,} partitions, and rows into {len(sizes):,} blocks"
            raise UsageError(f"{problem}; make them alike, or give {what}.to_dask_array(lengths=True)")
        return parts
    if not hasattr(given, "to_delayed"):
        if unknown:
            raise UsageError("rows fall into blocks of unknown size; compute_chunk_sizes() first, or give a dask.array")
        given = plain_of(given, int(sum(sizes)), what, "the collection")
        return np.split(given, np.cumsum(sizes)[:-1].astype(np.int64))
    if not hasattr(given, "chunks"):
        raise UsageError(f"{what} in a {type(given).__name__}; give a dask.array or a column of a dask.dataframe")
    if given.ndim != 1:
        raise UsageError(f"{what} of {given.ndim} dimensions; give one for each row, like {what}[:, 0]")
    if unknown or any(np.isnan(size) for size in given.chunks[0]):
        if len(given.chunks[0]) != len(sizes):
            raise UsageError(
                f"rows and {what} fall into different blocks, of unknown size; compute_chunk_sizes() first"
            )
    elif sum(given.chunks[0]) != sum(sizes):
        raise InputError(f"{sum(sizes):,} rows and {sum(given.chunks[0]):,} {what}; give every row one")
    elif given.chunks[0] != sizes:
        given = given.rechunk((sizes,))
    return list(given.to_delayed().ravel())


@contextmanager
def _staging_folder(path: str | Path, config: ConvertConfig | None, existing: Existing | None) -> Iterator[Path]:
    """Yield a temporary folder for partitions, after the check that the store may be made."""
    existing = existing or Existing()
    if config:
        config.check_memory()
    if existing.resume:
        raise UsageError("resume: what is in memory cannot be read again later; start over without it")
    target = Path(path).absolute()
    with writing_errors(target):
        check_output(target, existing)  # before hours of computing
        with room_beside(target) as room:
            yield room


@contextmanager
def room_beside(target: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `target`, removed afterwards unless moved; for one process at a time."""
    folder = target.with_name(f"{target.name}.incoming")
    with writing_errors(folder):
        if folder.is_dir() and any(folder.iterdir()) and not has_lock(folder / _LOCK):
            raise InputError(f"{folder}: not made by oocpeg, and in the way; move it elsewhere")
        with locked(folder / _LOCK, str(target)):
            try:
                for left in folder.iterdir():  # left by a killed process
                    if left.is_dir():
                        shutil.rmtree(left)
                    elif left.name != _LOCK:
                        left.unlink()
                room = folder / secrets.token_hex(8)  # unknown to workers of earlier attempts
                room.mkdir()
                yield room
            finally:
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder, to which other workers may still be writing after one worker has failed."""
    for _attempt in range(50):
        if remove_folder(folder):
            return
        time.sleep(0.1)


def _converted(
    pieces: dict[Path, str],
    path: str | Path,
    config: ConvertConfig | None,
    existing: Existing | None,
    split: Split | None = None,
) -> Store:
    """Convert files with names for messages: `memory` or `part 3`; `split`: the part that they are."""
    inputs: list[str] = [NamedPath(file, name) for file, name in pieces.items()]
    if split is None:
        return convert(inputs, path, config, existing=existing)
    return convert_part(inputs, Path(path), config or ConvertConfig(), existing or Existing(), Progress(), split)
