"""Tables before their rows are read: the type of the file, and names and types of its columns."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import delimited, jsonlines, nested
from ooc_pegasos.readers.arrow_strings import is_tags
from ooc_pegasos.readers.base import (
    COMPRESSIONS,
    DEFAULT_MEMORY,
    looks_like_a_number,
    row_location,
    without_compression,
)
from ooc_pegasos.readers.pipes import PipePath
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import (
    COMPRESSED,
    UTF8_MARK,
    LongLineError,
    TextSource,
    can_be_opened_again,
    display_name,
    first_bytes,
    open_input,
    path_of,
)
from ooc_pegasos.store.recipe import Table
from ooc_pegasos.store.row_ids import is_id
from ooc_pegasos.util.kind_of_path import kind_of_path
from ooc_pegasos.util.short_names import listed, short

FileType = Literal["parquet", "arrow", "delimited", "jsonlines"]
_HEAD = 1 << 20
"""Bytes of a text in which columns are searched."""
MEMORY_OF_NAME = 2500
"""Bytes of memory that the name of a column takes in all structures, measured."""
MEMORY_OF_COLUMN: dict[FileType, int] = {"delimited": 14_000, "parquet": 14_000, "jsonlines": 8_000, "arrow": 4_000}
"""Bytes of memory that a column takes while Arrow reads some rows, measured."""
_MEMORY_OF_FOOTER = 16
_DELIMITERS, _QUOTED = ",;\t|", re.compile(rb'"[^"]*"')
_LINE = 1 << 16
"""Bytes of text in which the delimiter is searched."""
WIDE = 2000
"""Number of columns above which Arrow does not infer types, which takes 10 KB of memory for each."""
_NUMBER = re.compile(rb"[ \t]*-?(?:[0-9]+\.?[0-9]*|\.[0-9]+|nan|inf)(?:[eE][+-]?[0-9]+)?[ \t]*", re.IGNORECASE)
_FILE_TYPES: dict[str, FileType] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "delimited",
    ".tsv": "delimited",
    ".tab": "delimited",
    ".jsonl": "jsonlines",
    ".ndjson": "jsonlines",
    ".json": "jsonlines",
}
_MAGIC: dict[bytes, FileType] = {b"PAR1": "parquet", b"ARROW1": "arrow"}


def file_type_of(name: str) -> FileType | None:
    """Return the type of a file by its first bytes, or else by the end of its name; None if neither is known."""
    begin = first_bytes(name)
    found = detect_file_type(begin, path_of(name))
    if found in ("parquet", "arrow") and isinstance(name, PipePath):
        raise InputError(f"{display_name(name)}: a table of {found} cannot come from a pipe; name a file")
    if found is None and begin:
        begin = _first_line_of(name) if begin.startswith(COMPRESSED) else begin.removeprefix(UTF8_MARK)
    return "jsonlines" if found is None and begin.lstrip().startswith(b"{") else found


def detect_file_type(begin: bytes, name: str) -> FileType | None:
    """Return the type of a table that begins with some bytes, or None."""
    for magic, file_type in _MAGIC.items():
        if begin.startswith(magic):
            return file_type
    path = Path(name)
    suffix = Path(path.stem).suffix if path.suffix.lower() in COMPRESSIONS else path.suffix
    return _FILE_TYPES.get(suffix.lower())


def schema_of(name: str, table: Table | None = None, memory: int = DEFAULT_MEMORY) -> dict[str, Any]:
    """Return the columns of a file and of its path with their Arrow types, which are inferred for text."""
    return with_partition(name, columns_of_file(name, table, memory))


def with_partition(name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a file and those of its path."""
    import pyarrow as pa

    return own | {key: pa.string() for key in partition_of(name) if key not in own}


def columns_of_file(name: str, table: Table | None, memory: int = DEFAULT_MEMORY) -> dict[str, Any]:
    """Return the columns of a file with their types."""
    return {column: kind for column, (_path, kind) in paths_of_file(name, table, memory).items()}


def paths_of_file(name: str, table: Table | None, memory: int = DEFAULT_MEMORY) -> dict[str, tuple[nested.Path, Any]]:
    """Return path and type of each column of a file; fields of structs are columns."""
    file_type = file_type_of(name)
    if file_type == "parquet":
        import pyarrow.parquet as pq

        with arrow_errors(display_name(name)):
            _refuse_large_footer(name, memory)
            schema = pq.read_schema(open_input(name) if is_remote(name) else name)
    elif file_type == "arrow":
        with arrow_errors(display_name(name)), open_ipc(name) as file:
            schema = file.schema
        if any(key.startswith(b"ooc-pegasos") for key in schema.metadata or {}):
            kind = kind_of_path(name) or "a file of oocpeg"
            raise InputError(f"{display_name(name)}: {kind}, not data; name files with rows, or a store")
    else:
        if not can_be_opened_again(name):
            raise InputError(
                f"{display_name(name)}: a table is read more than once, so it cannot come from a pipe; name a file"
            )
        schema = _schema_of_text(name, file_type, table, memory)
    with arrow_errors(display_name(name)):
        paths = nested.paths_of(schema, display_name(name))
    return (
        {column: (path, _kind_in_text(kind)) for column, (path, kind) in paths.items()}
        if file_type == "jsonlines"
        else paths
    )


def refuse_too_wide(name: str, columns: int, each: int, memory: int) -> None:
    """Raise InputError if the columns take more memory than allowed."""
    if columns * each > memory:
        needed, given = columns * each / 1e6, memory / 1e6
        problem = f"{columns:,} columns take {needed:,.0f} MB of memory, and {given:,.0f} MB may be used"
        advice = "give more, with {memory}, name fewer, with {numeric}, {categorical} or {text}, or write svmlight text"
        raise InputError(f"{display_name(name)}: {problem}; {advice}")


def _refuse_large_footer(name: str, memory: int) -> None:
    """Raise InputError for a Parquet file whose footer does not fit in memory, where it grows several times."""
    with open_input(name) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(8)[:4], "little")
    if _MEMORY_OF_FOOTER * min(footer, size) > memory:
        needed = f"{footer / 1e6:,.0f} MB, which take {_MEMORY_OF_FOOTER * footer / 1e6:,.0f} MB of memory"
        problem = f"its columns and row groups are described in {needed}, and {memory / 1e6:,.0f} MB may be used"
        raise InputError(
            f"{display_name(name)}: {problem}; give more, with {{memory}}, or write fewer columns or row groups"
        )


def rows_of(name: str) -> int | None:
    """Return the number of rows in the metadata of a file, or None."""
    if file_type_of(name) != "parquet":
        return None
    import pyarrow.parquet as pq

    with arrow_errors(display_name(name)):
        metadata = pq.read_metadata(open_input(name) if is_remote(name) else name)
    return sum(rows_of_groups(metadata, name))


def rows_of_groups(metadata: Any, name: str) -> list[int]:
    """Return the number of rows of each row group of a Parquet file. Raises InputError if their sum is wrong."""
    rows = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
        problem = f"{metadata.num_rows:,} rows, and {sum(rows):,} in its row groups"
        raise InputError(f"{display_name(name)}: {problem}; it is damaged, fetch or write it again")
    return rows


def partition_of(name: str) -> dict[str, str]:
    """Return the columns in a path: folders `key=value` after `/./`, which separates the folder given from the rest."""
    from urllib.parse import unquote

    found = {}
    below = path_of(name) if is_remote(name) else name.partition("/./")[2]
    for part in Path(below).parts[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            found[key] = unquote(value)
    return found


def patterns() -> list[str]:
    """Return the patterns of the names of tables in folders; `.json` files are often metadata."""
    suffixes = [suffix for suffix in _FILE_TYPES if suffix != ".json"]
    texts = [suffix for suffix in suffixes if _FILE_TYPES[suffix] in ("delimited", "jsonlines")]
    return [f"*{suffix}" for suffix in suffixes] + [f"*{suffix}{packed}" for suffix in texts for packed in COMPRESSIONS]


def usual_delimiter(name: str) -> str:
    """Return the delimiter for the name of a file."""
    return "\t" if without_compression(path_of(name)).endswith((".tsv", ".tab")) else ","


def delimiter_of(name: str) -> str:
    """Return the delimiter of a text: that for the name of its file, or another if only that cuts the first line."""
    usual = usual_delimiter(name)
    line = _QUOTED.sub(b"", _first_line(name))
    if usual.encode() in line:
        return usual
    return max(_DELIMITERS, key=lambda mark: (line.count(mark.encode()), mark == usual))


def _first_line(name: str) -> bytes:
    """Return the beginning of the first line of a text; nothing if it cannot be read, which is reported later."""
    with suppress(InputError):
        if file_type_of(name) in ("delimited", None) and can_be_opened_again(name):
            return _first_line_of(name)
    return b""


def _first_line_of(name: str) -> bytes:
    """Return the beginning of the first line of a text."""
    for block in TextSource(name, 0, _LINE, deque()).blocks():
        return block.text[: block.length].tobytes().partition(b"\n")[0]
    return b""


def difference(missing: Sequence[str], known: dict[str, Any]) -> str:
    """Return a message that columns are missing, with similar names."""
    described = []
    for column in missing[:5]:
        near = difflib.get_close_matches(column, known, 1)
        is_struct = any(name.startswith(f"{column}.") for name in known)
        near = [f"{column}.*"] if is_struct else near
        described.append(f"'{short(column)}'" + (f" (is it '{short(near[0])}'?)" if near else ""))
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    return f"no column {', '.join(described)}{more}; {columns_in_words(known)}"


def columns_in_words(known: dict[str, Any]) -> str:
    """Return a message that lists the columns; for a single column, with the delimiter that may be meant."""
    columns = f"the columns are {listed(known, 12)}"
    inside = [mark for mark in ",;\t| " if len(known) == 1 and mark in next(iter(known))]
    spelled = {"\t": r"\t"}.get(inside[0], inside[0]) if inside else ""
    has_header = set(known) != {str(at) for at in range(len(known))}
    if len(known) > 1 and has_header and any(map(looks_like_a_number, known)):
        return f"{columns}; if the first line is data, give {{no_header}}"
    return columns + (f"; if that is more than one, give {{delimiter='{spelled}'}}" if inside else "")


def check_type(where: str, name: str, kind: Any, wanted: str) -> None:
    """Raise InputError for a column whose type does not suit its use."""
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    inner = inner.storage_type if isinstance(inner, pa.BaseExtensionType) else inner
    is_number = _is_number(inner)
    is_words = is_text(inner)
    nested, unknown = pa.types.is_nested(inner), pa.types.is_null(inner)
    column = f"{where}: column '{short(name)}' is of type {kind}"
    if wanted == "numeric" and not unknown and (not is_number or pa.types.is_dictionary(kind)):
        raise InputError(f"{column}, not a number; write it as numbers, or convert with {{categorical={short(name)}}}")
    if wanted == "amount" and not unknown and not (is_number or is_words):
        raise InputError(f"{column}, not a number; write it as numbers, or convert with {{categorical={short(name)}}}")
    if wanted == "dates" and not unknown and not (is_number or is_words or pa.types.is_temporal(inner)):
        raise InputError(f"{column}, not a date or time; write it like 2024-12-31, or leave it out")
    if wanted == "text" and not unknown and not is_words:
        raise InputError(f"{column}, not text; write it as text, or convert with {{categorical={short(name)}}}")
    if wanted == "categorical" and nested and not is_tags(inner, "all"):
        raise InputError(f"{column}, which cannot be a category; leave it out, with {{ignore={short(name)}}}")
    if wanted == "label" and not unknown and not (is_number or is_words):
        raise InputError(f"{column}, and labels and weights are numbers or words; write it as one of these")
    if wanted == "id" and not unknown and not is_id(inner):
        raise InputError(f"{column}, and ids are numbers, words or times; write it as one of these")
    if wanted == "entries":
        with arrow_errors(where):
            problem = problem_of_entries(kind)
        if problem is not None:
            raise InputError(
                f"{column}, {problem}; write lists of indices, of (index, value), or maps, or leave it out, with "
                f"{{ignore={name}}}"
            )


def is_text(kind: Any) -> bool:
    """True for Arrow types of text."""
    import pyarrow as pa

    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def problem_of_entries(kind: Any) -> str | None:
    """Return why a column of this type cannot hold entries, or None."""
    import pyarrow as pa

    from ooc_pegasos.readers.vectorize import fields_of_entries

    if pa.types.is_map(kind):
        index, value = kind.key_type, kind.item_type
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        index, value = kind.value_type, None
        if pa.types.is_struct(index):
            if index.num_fields != 2:
                return f"and its entries have {index.num_fields} fields, not an index and a value"
            places = fields_of_entries(index)
            index, value = (index.field(at).type for at in places)
    else:
        return "not a list of indices"
    if not pa.types.is_integer(index):
        return f"and its indices are of type {index}, not whole numbers"
    return None if value is None or _is_number(value) else f"and its values are of type {value}, not numbers"


@contextmanager
def arrow_errors(where: str) -> Iterator[None]:
    """Convert errors of pyarrow into InputError."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowMemoryError as error:
        advice = "give more memory, or, if the file is damaged, fetch or write it again"
        raise InputError(f"{where}: not enough memory ({error}); {advice}") from error
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{where}: {error.strerror}; check the path and its permissions") from error
        problem = " ".join(str(error).split())[:160]
        raise InputError(
            f"{where}: damaged, or of another format than its name ({problem}); fetch or write it again"
        ) from error


@contextmanager
def open_ipc(name: str) -> Iterator[Any]:
    """Open a file or a stream of record batches."""
    import pyarrow as pa

    with open_input(name) if is_remote(name) else pa.memory_map(name) as mapped:
        try:
            file: Any = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            file = pa.ipc.open_stream(mapped)
        yield file


def _schema_of_text(name: str, file_type: FileType | None, table: Table | None, memory: int) -> Any:
    """Return the columns of a text with types inferred from its first megabyte."""
    import pyarrow as pa

    head = _head_of(name, file_type, table, memory)
    if file_type != "jsonlines":
        delimiter = table.delimiter if table else delimiter_of(name)
        refuse_too_wide(name, head.partition(b"\n")[0].count(delimiter.encode()) + 1, MEMORY_OF_NAME, memory)
    with arrow_errors(display_name(name)):
        names = _names_in(name, head, file_type, table)
        if file_type == "jsonlines":
            refuse_too_wide(name, len(names), MEMORY_OF_COLUMN["jsonlines"], memory)
            kinds = _kinds_of_json(head)
            return pa.schema([(column, kinds.get(column, pa.string())) for column in dict.fromkeys([*names, *kinds])])
        import pyarrow.csv

        header = table.header if table else True
        multiline = table is not None and table.multiline
        if len(names) > WIDE and b'"' not in head:
            numeric = _numeric_columns(head.partition(b"\n")[2] if header else head, delimiter, len(names))
            types = [pa.float64() if is_number else pa.string() for is_number in numeric]
            return pa.schema(list(zip(names, types, strict=True)))
        options = pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(head) + 1)
        parse = pyarrow.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=multiline, invalid_row_handler=lambda _row: "skip"
        )
        kinds = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
        head = delimited.good_rows(head, names, delimiter, header, multiline)
        head = head.decode(errors="replace").encode()  # pyarrow cannot pass invalid UTF-8 to the handler
        try:
            return pyarrow.csv.read_csv(pa.BufferReader(head), options, parse, kinds).schema
        except pa.ArrowInvalid:
            return pa.schema([(column, pa.string()) for column in names])


def _numeric_columns(rows: bytes, delimiter: str, columns: int) -> np.ndarray:
    """Return a mask of the columns that hold numbers in the first rows, as Arrow would infer."""
    numeric, filled = np.ones(columns, bool), np.zeros(columns, bool)
    for line in rows.split(b"\n"):
        cells = line.removesuffix(b"\r").split(delimiter.encode())
        if len(cells) == columns:
            there = np.fromiter(map(bool, cells), bool, columns)
            numeric &= ~there | np.fromiter((_NUMBER.fullmatch(cell) is not None for cell in cells), bool, columns)
            filled |= there
    return numeric & filled


def kind_of_text(
    file_type: FileType | None, table: Table | None
) -> tuple[str, Callable[[np.ndarray, int], int] | None]:
    """Return (title of the text in messages, function that finds the end of rows where they are not lines, or None)."""
    if file_type != "jsonlines" and table is not None and table.multiline:
        return "a text table whose quotes are closed", delimited.last_end(table.delimiter)
    return "a text table", None


def _head_of(name: str, file_type: FileType | None, table: Table | None, memory: int) -> bytes:
    """Return the first rows of a text."""
    source = TextSource(name, 0, _HEAD, deque(), *kind_of_text(file_type, table), memory=memory)
    head = b""
    try:
        for block in source.blocks():
            head += block.text[: block.length].tobytes()
            if head.count(b"\n") > 1:  # the first block of a wide table may hold its names alone
                break
    except LongLineError as error:
        where = row_location(display_name(name), "line", head.count(b"\n") + 1)
        raise InputError(f"{where}: {error.problem}") from error
    if not head:
        raise InputError(f"{display_name(name)}: the file is empty; leave it out or check how it was made")
    return head


def _names_in(name: str, head: bytes, file_type: FileType | None, table: Table | None) -> list[str]:
    """Return the columns in the first line of a text."""
    try:
        if file_type == "jsonlines":
            return jsonlines.names_of(head)
        if table is None:
            return delimited.names_of(head, delimiter_of(name), True)
        return delimited.names_of(head, table.delimiter, table.header, table.multiline)
    except InputError as error:
        raise InputError(f"{display_name(name)}: {error}") from error


def _kinds_of_json(head: bytes) -> dict[str, Any]:
    """Return the types inferred from the first objects; bad lines are reported when they are read."""
    schema = _infer_json_schema(head)
    if schema is not None:
        return {field.name: field.type for field in schema}
    objects = []
    for line in head.splitlines():
        with suppress(ValueError, RecursionError):
            objects.append(json.loads(line))
    return _kinds_of_objects([one for one in objects if isinstance(one, dict)])


def _kinds_of_objects(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the types of the keys of objects, also if some cannot be read together."""
    import pyarrow as pa

    kinds = {}
    for column in dict.fromkeys(key for one in objects for key in one):
        values = [one[column] for one in objects if one.get(column) is not None]
        lines = [json.dumps({column: value}) for value in values]
        found = _infer_json_schema("\n".join(lines).encode()) if lines else None
        if found is None and lines and isinstance(values[0], dict):
            kinds[column] = pa.struct(_kinds_of_objects([one for one in values if isinstance(one, dict)]).items())
            continue
        if found is None and lines:  # mixed types: the first; others are reported when they are read
            found = _infer_json_schema(lines[0].encode())
        kinds[column] = pa.string() if found is None else found.field(0).type
    return kinds


def _kind_in_text(kind: Any) -> Any:
    """Return the type of a column of JSON lines: text that looks like dates stays text, empty lists are of words."""
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return pa.string()
    return pa.list_(pa.string()) if kind == pa.list_(pa.null()) else kind


def _infer_json_schema(text: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.json

    try:
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        return pyarrow.json.read_json(pa.BufferReader(text), options).schema
    except pa.ArrowInvalid:
        return None
