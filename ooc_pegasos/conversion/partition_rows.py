"""Sparse rows of tables in memory and of partitions of Dask collections, read as rows of files are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ooc_pegasos.conversion.staging import batches_of, plain_of
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import columns_plan, nested
from ooc_pegasos.readers.arrays import ArraysReader, rows_of
from ooc_pegasos.readers.base import LARGEST_INDEX, ParsedBlock, row_location
from ooc_pegasos.readers.matrices import Settings
from ooc_pegasos.readers.vectorize import Vectorizer, Vectors
from ooc_pegasos.util.csr_matrix import csr_of


def rows_of_matrix(
    matrix: Any,
    labels: Any,
    weights: Any,
    name: str,
    *,
    text_labels: bool = False,
    first_index: int = 0,
    largest_index: int = LARGEST_INDEX,
) -> ParsedBlock:
    """Return the rows of a matrix, dense or sparse; without labels, all labels are 0."""
    rows = csr_of(matrix, name)
    count = int(rows.shape[0])
    settings = Settings(text_labels, None, None, first_index, largest_index, with_labels=labels is not None)
    parsed = ArraysReader([name], settings, 1).read(
        rows_of(
            rows,
            None if labels is None else plain_of(labels, count, "labels", name),
            None if weights is None else plain_of(weights, count, "weights", name),
        )
    )
    if parsed.bad:
        raise InputError(f"{row_location(name, 'row', parsed.bad[0].line + 1)}: {parsed.bad[0].problem}")
    return parsed


def rows_of_frame(part: Any, vectorizer: Vectorizer, name: str) -> Iterator[Vectors]:
    """Yield the rows of a dataframe in batches."""
    refuse_missing(nested.missing_columns(vectorizer.wanted, part.columns), part.columns, name)
    if len(part):
        yield from rows_of_table(part[nested.outer_columns(vectorizer.wanted, part.columns)], vectorizer, name)


def rows_of_table(data: Any, vectorizer: Vectorizer, name: str) -> Iterator[Vectors]:
    """Yield the rows of any kind of table in batches."""
    schema, batches = batches_of(data, name)
    kinds = {field.name: field.type for field in schema}
    holders = {column: nested.holder_of(column, kinds) for column in vectorizer.wanted}
    refuse_missing([column for column, holder in holders.items() if holder is None], kinds, name)
    done = 0
    for batch in batches:
        found = vectorizer.vectors(_with_supported_types(batch.select(list(holders.values())), vectorizer, name))
        if found.bad:
            raise InputError(f"{row_location(name, 'row', done + found.bad[0].line + 1)}: {found.bad[0].problem}")
        done += batch.num_rows
        yield found


def refuse_missing(missing: list[str], known: Iterable[Any], name: str) -> None:
    """Raise InputError if columns are missing."""
    if missing:
        raise InputError(f"{name}: {columns_plan.difference(missing, dict.fromkeys(map(str, known)))}")


def _with_supported_types(batch: Any, vectorizer: Vectorizer, name: str) -> Any:
    """Return the required columns, which `batch` has in order, converted to supported types."""
    import pyarrow as pa

    table, columns = vectorizer.table, []
    kinds = {column.name: column.use for column in table.columns}
    for found, column in zip(batch.columns, vectorizer.wanted, strict=True):
        kind = kinds.get(column, "id" if column == table.id else "label")
        if pa.types.is_null(found.type):  # other partitions may have values
            types = {"numeric": pa.float64(), "amount": pa.float64(), "entries": pa.list_(pa.uint32())}
            found = pa.nulls(len(found), types.get(kind, pa.string()))
        columns_plan.check_type(name, column, found.type, kind)
        if pa.types.is_dictionary(found.type) and found.dictionary.null_count:
            found = found.dictionary_decode()
        columns.append(found)
    return pa.RecordBatch.from_arrays(columns, names=vectorizer.wanted)
