"""Row identifiers: Arrow arrays that follow the rows through a conversion, stored in separate files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError, OocPegasosError
from ooc_pegasos.store.manifest import IdsInfo
from ooc_pegasos.util.checksums import xxh64_hex
from ooc_pegasos.util.files import open_file, read_file, unreadable

COLUMN = "id"
_ADVICE = "restore it or convert again"


def plain(ids: Any) -> Any:
    """Return the ids without a dictionary, as int64, float64 or strings if they are numbers or text."""
    import pyarrow as pa

    kind = ids.type
    if pa.types.is_dictionary(kind):
        return plain(ids.dictionary_decode())
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):  # of which some are too large
        return ids.cast(pa.int64())
    if pa.types.is_floating(kind):
        return ids.cast(pa.float64())
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return ids.cast(pa.string()) if is_text else ids


def common_type(kinds: Iterable[Any]) -> Any:
    """Return the common type: the type of all, or else strings."""
    import pyarrow as pa

    found = set(kinds)
    return found.pop() if len(found) == 1 else pa.string()


def of_type(ids: Any, rows: int, kind: Any) -> Any:
    """Return the ids of `rows` rows as a type; nulls if `ids` is None."""
    import pyarrow as pa

    return pa.nulls(rows, kind) if ids is None else ids.cast(kind)


def packed(ids: Any) -> np.ndarray:
    """Return ids as bytes, for the temporary files of a conversion."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    batch = pa.record_batch([ids], names=[COLUMN])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def unpacked(content: np.ndarray) -> Any:
    """Return the ids that `packed` has encoded, without a copy."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        return reader.read_next_batch().column(0)


def joined(parts: Sequence[tuple[int, Any]], *, words: bool) -> Any:
    """Concatenate the ids of parts, given with their row counts; nulls for parts without ids, None if all lack ids.

    `words`: return strings, because other rows have ids of another type.
    """
    import pyarrow as pa

    kinds = [ids.type for _rows, ids in parts if ids is not None]
    if not kinds:
        return None
    kind = pa.string() if words else kinds[0]
    if pa.types.is_string(kind):
        kind = pa.large_string()  # the text may exceed 2 GB
    return pa.concat_arrays([of_type(ids, rows, kind) for rows, ids in parts])


def write(path: Path, ids: Any) -> IdsInfo | None:
    """Write the ids of a chunk to a new file, unless all are null."""
    import pyarrow as pa

    from ooc_pegasos.store.chunk_file import ChecksummedFile

    if ids.null_count == len(ids):
        return None
    batch = pa.record_batch([plain(ids)], names=[COLUMN])
    file = ChecksummedFile(path)
    try:
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
    finally:
        file.close()
    return IdsInfo(path.name, file.bytes, file.xxh64.hexdigest())


def type_of(path: Path) -> Any:
    """Return the type of the ids in a file."""
    import pyarrow as pa

    try:
        with open_file(path) as file:
            kind = pa.ipc.open_file(file).schema.field(COLUMN).type
        _check_type(kind)
        return kind
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def read(path: Path, info: IdsInfo, rows: int) -> Any:
    """Return the ids of a chunk with `rows` rows, after a check of every byte."""
    import pyarrow as pa

    try:
        content = read_file(path)
        if len(content) != info.bytes:
            raise ValueError(f"{len(content):,} bytes instead of {info.bytes:,}")
        if xxh64_hex(content) != info.xxh64:
            raise ValueError("the checksum does not match")
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)
        if table.column_names != [COLUMN] or table.num_rows != rows:
            raise ValueError("not the ids of these rows")
        _check_type(table.column(0).type)
        return table.column(0).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def is_id(kind: Any) -> bool:
    """True if values of this Arrow type can identify rows: numbers, words, times."""
    from pyarrow import types

    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    is_time = types.is_temporal(kind) and not types.is_duration(kind)
    return is_time or any(test(kind) for test in (*numbers, *texts))


def _check_type(kind: Any) -> None:
    if not is_id(kind):
        raise ValueError(f"ids of type {kind}")


def _damaged(path: Path, error: Exception) -> OocPegasosError:
    if isinstance(error, OSError) and error.errno:
        return unreadable(path, error, _ADVICE)
    problem = " ".join(str(error).split())[:160]
    return CorruptFileError(f"{path}: {problem}; {_ADVICE}")
