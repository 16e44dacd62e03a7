"""Structs as columns: the field `os` of the struct `device` is the column `device.os`, at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ooc_pegasos.errors import InputError

Path = tuple[str, ...]


def paths_in(fields: Iterable[Any]) -> Iterator[tuple[Path, Any]]:
    """Yield (path, type) of all columns of a schema or of a struct; structs themselves are no columns."""
    import pyarrow as pa

    for field in fields:
        if pa.types.is_struct(field.type):
            inner = [field.type.field(place) for place in range(field.type.num_fields)]
            yield from (((field.name, *path), kind) for path, kind in paths_in(inner))
        else:
            yield (field.name,), field.type


def paths_of(fields: Iterable[Any], name: str) -> dict[str, tuple[Path, Any]]:
    """Return path and type of each column by its name. Raises InputError if two have the same name."""
    found: dict[str, tuple[Path, Any]] = {}
    for path, kind in paths_in(fields):
        column = ".".join(path)
        if column in found:
            others = {found[column][0], path}
            why = "; one is a field of a struct" if len(others) > 1 else ""
            raise InputError(f"{name}: two columns have the name '{column}'{why}; rename one")
        found[column] = path, kind
    return found


def is_nested(schema: Any) -> bool:
    """True if a schema has structs."""
    import pyarrow as pa

    return any(pa.types.is_struct(field.type) for field in schema)


def column_at(batch: Any, path: Path) -> Any:
    """Return a column of a record batch; the fields of a null struct are null."""
    import pyarrow.compute as pc

    found = batch.column(path[0])
    if len(path) == 1:
        return found
    return pc.struct_field(found, list(path[1:]))


def flat_schema(schema: Any, name: str) -> Any:
    """Return a schema without structs."""
    import pyarrow as pa

    return pa.schema([(column, kind) for column, (_path, kind) in paths_of(schema, name).items()])


def flat_batch(batch: Any, name: str) -> Any:
    """Return a record batch without structs."""
    import pyarrow as pa

    if not is_nested(batch.schema):
        return batch
    paths = paths_of(batch.schema, name)
    return pa.RecordBatch.from_arrays([column_at(batch, path) for path, _kind in paths.values()], names=list(paths))


def schema_with(types: Mapping[Path, Any]) -> Any:
    """Return the schema with structs that has these columns."""
    import pyarrow as pa

    inner: dict[str, dict[Path, Any]] = {}
    for path, kind in types.items():
        inner.setdefault(path[0], {})[path[1:]] = kind
    return pa.schema(
        [(name, below[()] if () in below else pa.struct(schema_with(below))) for name, below in inner.items()]
    )


def holder_of(column: str, kinds: Mapping[str, Any]) -> str | None:
    """Return the column with the values of a column: itself, or a struct around it that has only nulls; or None."""
    import pyarrow as pa

    if column in kinds:
        return column
    return next((name for name in _prefixes(column) if name in kinds and pa.types.is_null(kinds[name])), None)


def outer_columns(wanted: Sequence[str], known: Iterable[Any]) -> list[Any]:
    """Return the columns of a table in memory that are wanted, or may be structs with wanted fields."""
    outer = {prefix for column in wanted for prefix in _prefixes(column)}
    return [name for name in known if name in outer]


def missing_columns(wanted: Sequence[str], known: Iterable[Any]) -> list[str]:
    """Return the columns that are neither there nor can be fields of a struct."""
    there = set(known)
    return [column for column in wanted if there.isdisjoint(_prefixes(column))]


def _prefixes(column: str) -> list[str]:
    """Return a column and the structs that may have it as a field."""
    parts = column.split(".")
    return [".".join(parts[: place + 1]) for place in range(len(parts))]
