"""Data in memory, or in Dask collections, to a store: written out piece by piece beside it, and converted from there.

So what is kept in memory is a piece at a time, and rows, labels and recipes are checked like those of any other input.
With Dask every worker writes its own pieces, to a folder that all of them must see; nothing is gathered.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion import Existing, convert
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.files import writing_errors
from ooc_pegasos.store import Store

_ROWS = 1 << 16


def store_from_arrow(data: Any, path: str | Path, config: ConvertConfig | None, existing: Existing | None) -> Store:
    """Of a table: pyarrow, pandas, polars, or whatever exports itself as an Arrow stream."""
    with _folder_beside(path) as folder:
        _write_table(data, folder / "memory.arrow")
        return convert([str(folder / "memory.arrow")], path, config, existing=existing)


def store_from_matrix(
    matrix: Any,
    labels: Any,
    path: str | Path,
    weights: Any,
    config: ConvertConfig | None,
    existing: Existing | None,
) -> Store:
    """Of a scipy sparse matrix or a dense numpy array, with a label for every row."""
    with _folder_beside(path) as folder:
        _write_matrix(matrix, labels, weights, folder / "memory.npz")
        return convert([str(folder / "memory.npz")], path, config, existing=existing)


def store_from_dask(
    collection: Any, path: str | Path, labels: Any, config: ConvertConfig | None, existing: Existing | None
) -> Store:
    """Of a dask.dataframe, a dask.bag of dictionaries, or a dask.array with its labels, partition by partition."""
    from dask.base import compute
    from dask.delayed import delayed

    with _folder_beside(path) as folder:
        if hasattr(collection, "to_delayed") and hasattr(collection, "chunks"):
            jobs, ending = _jobs_of_array(collection, labels, folder), "npz"
        elif hasattr(collection, "to_delayed"):
            if labels is not None:
                raise UsageError("labels are a column of the collection; say which with ConvertConfig(label=...)")
            write = delayed(_write_table, pure=False)
            parts = collection.to_delayed()
            jobs = [write(part, folder / f"part-{i:06d}.arrow") for i, part in enumerate(parts)]
            ending = "arrow"
        else:
            raise UsageError(
                f"a {type(collection).__name__} is no Dask collection; see Store.from_arrow and Store.from_scipy"
            )
        rows = compute(*jobs)  # type: ignore[no-untyped-call]
        written = sorted(folder.glob(f"*.{ending}"))
        missing = len(jobs) - len(written)
        if missing:
            raise InputError(
                f"{folder}: {missing} of {len(jobs)} pieces are not there; workers must see the folder of the store"
            )
        kept = [str(file) for file, count in zip(written, rows, strict=True) if count]
        if not kept:
            raise InputError("the collection has no rows; check how it was made")
        return convert(kept, path, config, existing=existing)


def _jobs_of_array(collection: Any, labels: Any, folder: Path) -> list[Any]:
    from dask.delayed import delayed

    if collection.ndim != 2 or labels is None:
        raise UsageError("a dask.array must have two dimensions, and its labels be given: from_dask(x, path, labels=y)")
    if len(collection.chunks[1]) > 1:
        collection = collection.rechunk({1: -1})
    if hasattr(labels, "to_delayed"):
        if any(np.isnan(size) for size in (*labels.chunks[0], *collection.chunks[0])):
            if len(labels.chunks[0]) != len(collection.chunks[0]):
                raise UsageError(
                    "rows and labels fall into different blocks, of unknown size; compute_chunk_sizes() first"
                )
        elif labels.chunks[0] != collection.chunks[0]:
            labels = labels.rechunk((collection.chunks[0],))
        cut = list(labels.to_delayed().ravel())
    else:
        ends = np.cumsum([0, *collection.chunks[0]])
        cut = [np.asarray(labels)[ends[i] : ends[i + 1]] for i in range(len(ends) - 1)]
    write = delayed(_write_matrix, pure=False)
    blocks = collection.to_delayed().ravel()
    return [
        write(block, some, None, folder / f"part-{i:06d}.npz")
        for i, (block, some) in enumerate(zip(blocks, cut, strict=True))
    ]


@contextmanager
def _folder_beside(path: str | Path) -> Iterator[Path]:
    """A folder of its own for pieces, gone afterwards."""
    target = Path(path)
    if not target.parent.exists():
        raise InputError(f"{target.parent}: no such folder; create it first")
    folder = target.with_name(f"{target.name}.incoming")
    with writing_errors(folder):
        folder.mkdir(exist_ok=False)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _write_table(data: Any, file: Path) -> int:
    """Write a table as Arrow; returns its rows."""
    import pyarrow as pa

    if isinstance(data, list):  # a partition of a bag
        data = pa.Table.from_pylist(data) if data else pa.table({})
    elif isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif not isinstance(data, pa.Table | pa.RecordBatchReader):
        if type(data).__module__.split(".")[0] == "pandas":
            data = pa.Table.from_pandas(data, preserve_index=False)
        elif hasattr(data, "__arrow_c_stream__"):
            data = pa.RecordBatchReader.from_stream(data)
        else:
            raise UsageError(f"a {type(data).__name__} is no table; give one of pyarrow, pandas or polars")
    rows = 0
    batches = data.to_batches(max_chunksize=_ROWS) if isinstance(data, pa.Table) else data
    with pa.ipc.new_file(str(file), data.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_matrix(matrix: Any, labels: Any, weights: Any, file: Path) -> int:
    """Write rows as scipy's save_npz does, with their labels; returns how many."""
    import scipy.sparse as sp

    if not sp.issparse(matrix) and hasattr(matrix, "tocsr"):  # pydata/sparse
        matrix = matrix.tocsr()
    rows = sp.csr_matrix(matrix)
    labels = np.asarray(labels)
    if labels.shape != (rows.shape[0],):
        raise InputError(f"{rows.shape[0]:,} rows and labels of shape {labels.shape}; give every row one")
    members = {"indices": rows.indices, "indptr": rows.indptr, "data": rows.data, "labels": labels}
    if weights is not None:
        members["weights"] = np.asarray(weights)
    if any(array.dtype == object for array in members.values()):
        members["labels"] = labels.astype(str)
    np.savez(file, format=np.array(b"csr"), shape=np.array(rows.shape), **members)
    return int(rows.shape[0])
