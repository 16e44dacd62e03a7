"""Staging: write tables and matrices in memory to files that readers know, and check that partitions are compatible."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc_pegasos.conversion.streams import (
    batches_of_dataset,
    batches_of_lazy,
    batches_of_rows,
    is_dataset,
    is_lazy,
    table_of_rows,
)
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import nested
from ooc_pegasos.store.recipe import named_by
from ooc_pegasos.util.csr_matrix import csr_of, refuse_masked
from ooc_pegasos.util.files import create_file
from ooc_pegasos.util.short_names import short

_ROWS = 1 << 16
_KINDS = {"labels": "biufU", "weights": "biuf"}
SHARED = "workers must share the file system of the store; choose a path that all of them see"


class Written(NamedTuple):
    """A staged file, as reported by the worker that wrote it."""

    file: str
    """The name within the folder."""
    bytes: int
    rows: int
    schema: Any = None
    """The schema of a table."""
    columns: int = 0
    """The number of columns of a matrix."""
    words: bool = False
    """True if the labels of a matrix are words."""


def _new_file(folder: Path, name: str, suffix: str) -> Path:
    """Return the path of a new file for a partition, unique to this attempt."""
    if not folder.is_dir():
        here = f"the worker on {socket.gethostname()} does not see {folder.parent.parent}, or not what is new in it"
        raise InputError(f"{name}: {here}; {SHARED}")
    return folder / f"{name.replace(' ', '-')}-{secrets.token_hex(4)}{suffix}"


def write_table(data: Any, folder: Path, name: str) -> Written:
    """Write a table as an Arrow stream, in which dictionaries may change from batch to batch."""
    data = table_of_rows(list(data), name) if _is_rows(data) else data
    return _write(*batches_of(data, name), folder, name)


def write_stream(data: Any, folder: Path, name: str) -> list[Written]:
    """Write a table or a stream, of which memory holds one batch; a new file begins where the types change."""
    if not (is_lazy(data) or is_dataset(data) or _is_rows(data)):
        return [write_table(data, folder, name)]
    schema, batches = batches_of(data, name)
    groups = groupby(batches, key=attrgetter("schema"))
    written = [_write(own, some, folder, name) for own, some in groups]
    return written or [_write(schema, (), folder, name)]


def _write(schema: Any, batches: Iterable[Any], folder: Path, name: str) -> Written:
    import pyarrow as pa

    file, rows = _new_file(folder, name, ".arrow"), 0
    with create_file(file) as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return Written(file.name, file.stat().st_size, rows, schema)


def batches_of(data: Any, name: str) -> tuple[Any, Iterable[Any]]:
    """Return (schema, record batches) of any kind of table; fields of structs are columns.

    Batches of a stream of rows may have other types.
    """
    schema, batches = _given_batches(data, name)
    flat = nested.flat_schema(schema, name) if nested.is_nested(schema) else schema
    return flat, (nested.flat_batch(one, name) if nested.is_nested(one.schema) else one for one in batches)


def _given_batches(data: Any, name: str) -> tuple[Any, Iterable[Any]]:
    """Return (schema, record batches) of a table as it is."""
    import pyarrow as pa

    origin, kind = type(data).__module__.split(".")[0], type(data).__name__
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif origin == "pandas" and kind == "DataFrame":
        try:
            data = pa.Table.from_pandas(data, preserve_index=False)
        except (pa.ArrowException, ValueError, TypeError) as error:
            problem = " ".join(" ".join(map(str, error.args)).split())[:200]
            raise InputError(f"{name}: {problem}; give every column a name and one type of its own") from error
    elif origin == "polars" and kind == "DataFrame":  # its own stream has strings of a type that few can read
        tables = (piece.to_arrow() for piece in data.iter_slices(_ROWS))
        return data.head(0).to_arrow().schema, (batch for table in tables for batch in table.to_batches())
    elif is_lazy(data) or is_dataset(data) or _is_rows(data):
        make = batches_of_lazy if is_lazy(data) else batches_of_dataset if is_dataset(data) else batches_of_rows
        batches = make(data, name)
        first = next(batches, None)
        return (pa.schema([]), ()) if first is None else (first.schema, chain([first], batches))
    elif isinstance(data, pa.Table):
        pass
    elif origin in ("pandas", "polars") or not hasattr(data, "__arrow_c_stream__"):
        raise UsageError(f"{name}: a {kind} is not a table; give one of pyarrow, pandas, polars or datasets")
    else:
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader
    return data.schema, data.to_batches(max_chunksize=_ROWS)


def _is_rows(data: Any) -> bool:
    """True if the data can only be dictionaries, as in a Dask bag."""
    is_table = hasattr(data, "__arrow_c_stream__") or is_dataset(data) or is_lazy(data)
    other = is_table or type(data).__module__.split(".")[0] in ("pandas", "polars", "pyarrow")
    return not other and isinstance(data, Iterable) and not isinstance(data, str | bytes | dict)


def make_alike(
    pieces: dict[Path, tuple[str, Written]], categorical: tuple[str, ...], *, may_lack_columns: bool
) -> None:
    """Refuse partitions with incompatible columns; fill columns that are missing in a partition or of type null."""
    import pyarrow as pa

    known, where = types_of([(name, piece.schema) for name, piece in pieces.values()], categorical)
    for file, (name, piece) in pieces.items():
        own = {field.name: field.type for field in piece.schema}
        lacking = [column for column in known if column not in own]
        if lacking and not may_lack_columns:
            raise InputError(
                f"{name}: no column '{short(lacking[0])}', which {where[lacking[0]]} has; make partitions alike"
            )
        if lacking or any(pa.types.is_null(own[column]) and not pa.types.is_null(known[column]) for column in own):
            _fill_in(file, {column: known[column] for column in (*own, *lacking)})


def types_of(schemas: Iterable[tuple[str, Any]], categorical: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (types, names of the partitions they come from) of all columns; refuse incompatible types."""
    import pyarrow as pa

    known: dict[str, Any] = {}
    where: dict[str, str] = {}
    for name, schema in schemas:
        meant = set(named_by(categorical, schema.names))
        for field in schema:
            before = known.get(field.name)
            if before is None or pa.types.is_null(before):
                known[field.name], where[field.name] = field.type, name
            elif not pa.types.is_null(field.type):
                exact = field.name in meant
                if _sort_of(field.type, exact) != _sort_of(before, exact):
                    problem = (
                        f"column '{short(field.name)}' is of type {field.type}, but in {where[field.name]} {before}"
                    )
                    raise InputError(f"{name}: {problem}; make partitions alike, for example with astype")
    return known, where


def _sort_of(kind: Any, exact: bool) -> str:
    """Return the class of a type; if `exact`, integers differ from other numbers, as their categories are spelled."""
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(inner):
        return "nested"
    if pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_decimal(inner):
        sort = ("integer" if pa.types.is_integer(inner) else "other number") if exact or inner is not kind else "number"
        return f"{sort} as a category" if inner is not kind else sort
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return "text" if any(test(inner) for test in texts) else str(inner)


def _fill_in(file: Path, columns: dict[str, Any]) -> None:
    """Rewrite a partition with columns of nulls in place of missing columns and of columns of type null."""
    import pyarrow as pa

    new = file.with_suffix(".new")
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as reader:
        types = {
            name: reader.schema.field(name).type
            if name in reader.schema.names and not pa.types.is_null(reader.schema.field(name).type)
            else kind
            for name, kind in columns.items()
        }
        schema = pa.schema(list(types.items()))
        with create_file(new) as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in reader:
                arrays = [
                    batch.column(name)
                    if name in batch.schema.names and batch.column(name).type == kind
                    else pa.nulls(batch.num_rows, kind)
                    for name, kind in types.items()
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    os.replace(new, file)


def write_matrix(matrix: Any, labels: Any, weights: Any, folder: Path, name: str) -> Written:
    """Write rows in the format of scipy's save_npz, with their labels."""
    rows = csr_of(matrix, name)
    count = int(rows.shape[0])
    members = {"indices": rows.indices, "indptr": rows.indptr, "data": rows.data}
    members["labels"] = plain_of(labels, count, "labels", name)
    if weights is not None:
        members["weights"] = plain_of(weights, count, "weights", name)
    file = _new_file(folder, name, ".npz")
    with create_file(file) as sink:
        np.savez(sink, format=np.array(b"csr"), shape=np.array(rows.shape), **members)
    words = members["labels"].dtype.kind == "U"
    return Written(file.name, file.stat().st_size, count, columns=int(rows.shape[1]), words=words)


def plain_of(given: Any, rows: int, what: str, name: str) -> np.ndarray:
    """Return labels or weights as an array of numbers or words, one a row."""
    refuse_masked(given, what, name)
    array, kinds = np.asarray(given), _KINDS[what]
    if array.shape != (rows,):
        raise InputError(f"{name}: {rows:,} rows and {what} of shape {array.shape}; give every row one")
    if array.dtype.kind in "OT":  # object or StringDType arrays, the forms of words in pandas and numpy
        items = array.tolist()
        odd = sum(not isinstance(item, str) for item in items)
        if 0 < odd < len(items):
            raise InputError(f"{name}: {what} of which {odd:,} are not words, and the others are; give every row one")
        array = np.asarray(items, None if odd else str)
    if array.dtype.kind not in kinds:
        raise InputError(f"{name}: {what} of type {array.dtype}; give numbers" + ", or words" * ("U" in kinds))
    return array


def check_alike(pieces: list[tuple[str, Written]]) -> None:
    """Refuse matrices of different widths, and labels that are words in one partition and numbers in another."""
    kinds = {True: "words", False: "numbers"}
    (first, one), *others = pieces
    for name, piece in others:
        if piece.columns != one.columns:
            raise InputError(f"{name}: {piece.columns:,} columns, but {first} has {one.columns:,}; make blocks alike")
        if piece.words != one.words:
            raise InputError(
                f"{name}: its labels are {kinds[piece.words]}, those of {first} {kinds[one.words]}; make them alike"
            )
