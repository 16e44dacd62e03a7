"""Tables: Parquet, Arrow IPC (Feather), CSV, TSV and JSON lines, read batch by batch; see `vectors.py` for the rows."""

from __future__ import annotations

import difflib
import json
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.ids import plain
from ooc_pegasos.manifest import SourceInfo
from ooc_pegasos.readers import delimited, jsonlines
from ooc_pegasos.readers.reading import DESCRIBED_BAD_ROWS, BadRow, ParsedBlock, Piece
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import STDIN, TextBlock, TextSource, hash_of, open_input, path_of, spoken, stamp_of
from ooc_pegasos.readers.strings import as_strings
from ooc_pegasos.recipe import Table
from ooc_pegasos.scratch import Pool
from ooc_pegasos.vocabulary import Vocabulary

NAME = "table"
Form = Literal["parquet", "arrow", "delimited", "jsonlines"]
_ENTRIES = 1 << 20
"""Of a batch, about."""
_HEAD = 1 << 20
"""Of a text, where its columns are looked for."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_FORMS: dict[str, Form] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "delimited",
    ".tsv": "delimited",
    ".tab": "delimited",
    ".jsonl": "jsonlines",
    ".ndjson": "jsonlines",
}
_MAGIC: dict[bytes, Form] = {b"PAR1": "parquet", b"ARROW1": "arrow"}


def form_of(name: str) -> Form | None:
    """What kind of table a file is by its first bytes, or else by the end of its name; None if it is none.

    Of a pipe only the name is looked at: what is read from it is gone.
    """
    if name == STDIN:
        return None
    head = b""
    try:
        if is_remote(name) or os.path.isfile(name):
            with open_input(name) as file:
                head = file.read(8)
    except OSError:
        return None
    for magic, form in _MAGIC.items():
        if head.startswith(magic):
            return form
    path = Path(path_of(name))
    suffix = Path(path.stem).suffix if path.suffix.lower() in _COMPRESSED else path.suffix
    return _FORMS.get(suffix.lower())


@dataclass(frozen=True)
class Settings:
    """How to read tables; all of it is fixed before the first row."""

    table: Table
    text_labels: bool = False
    stop_at_bad: bool = True
    with_labels: bool = True
    names: int = 0
    """How many names of features are wanted."""
    vocabulary: Vocabulary | None = None
    """That the table needs."""


@dataclass
class Batch:
    """Some rows of a table."""

    batch: Any
    lines: np.ndarray
    """Of each row: its line or number, counted from 0 at the start of the piece."""
    line_count: int
    bad: list[BadRow]
    """All of them."""


class TablesReader:
    """See `Reader`; a task is a record batch, or a block of lines that is to become one."""

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int) -> None:
        self.settings = settings
        from ooc_pegasos.readers.vectors import Vectorizer

        self.vectorizer = Vectorizer(
            settings.table,
            settings.text_labels,
            with_labels=settings.with_labels,
            names=settings.names,
            vocabulary=settings.vocabulary,
        )
        self._pool = Pool()
        spare: deque[np.ndarray] = deque()
        self.sources = [
            _source_of(name, number, settings.table, self.vectorizer.wanted, block_size, spare)
            for number, name in enumerate(names)
        ]
        self.unit = "line" if any(isinstance(source, _TextTable) for source in self.sources) else "row"

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """See `Reader`."""
        for number in range(source, len(self.sources)):
            yield from self.sources[number].pieces(start, state)
            start, state = 0, None

    def read(self, task: Any) -> ParsedBlock:
        """See `Reader`."""
        source = self.sources[task.source]
        with _arrow_errors(spoken(source.name)):
            batch = source.batch(task)
            found = self.vectorizer.vectors(batch.batch)
        numbers = _numbers(batch.lines, batch.bad)
        bad = sorted(
            [*batch.bad, *(BadRow(int(batch.lines[row.line]), row.problem) for row in found.bad)],
            key=lambda row: row.line,
        )
        id_column = self.settings.table.id
        ids = plain(batch.batch.column(id_column)).take(found.good) if id_column is not None else None
        return ParsedBlock(
            task,
            found.block,
            batch.lines[found.good],
            numbers[found.good],
            batch.line_count,
            bad[:DESCRIBED_BAD_ROWS],
            len(batch.bad) + found.bad_rows,
            found.names,
            self._pool.take(),
            ids,
            found.features,
        )

    def strings(self, task: Any) -> Iterator[tuple[str | None, Any]]:
        """What the columns of a task hold, and what comes before it in names of features; None: they are texts."""
        source = self.sources[task.source]
        with _arrow_errors(spoken(source.name)):
            batch = source.batch(task).batch
            for column in self.settings.table.columns:
                prefix = None if column.kind == "text" else f"{column.name}="
                yield prefix, as_strings(batch.column(column.name))

    def named(self, features: dict[int, str]) -> None:
        """These places have a name now."""
        self.vectorizer.named(features)

    def release(self, parsed: ParsedBlock) -> None:
        """See `Reader`."""
        source = self.sources[parsed.task.source]
        if isinstance(source, _TextTable):
            source.spare.append(parsed.task.text)
        self._pool.give_back(parsed.scratch)


def schema_of(name: str, table: Table | None = None) -> dict[str, Any]:
    """The columns of a file and their Arrow types; of text, those that its first rows seem to have."""
    import pyarrow as pa

    form = form_of(name)
    if form == "parquet":
        import pyarrow.parquet as pq

        with _arrow_errors(spoken(name)):
            schema = pq.read_schema(open_input(name) if is_remote(name) else name)
    elif form == "arrow":
        with _arrow_errors(spoken(name)), _opened_ipc(name) as opened:
            schema = opened.schema
    else:
        _refuse_pipe(name)
        schema = _schema_of_text(name, form, table)
    with _arrow_errors(spoken(name)):
        columns = {field.name: field.type for field in schema}
    if len(columns) != len(schema):
        twice = next(column for column in schema.names if schema.names.count(column) > 1)
        raise InputError(f"{spoken(name)}: two columns have the name '{twice}'; rename one")
    return columns | {key: pa.string() for key in partition_of(name) if key not in columns}


def _refuse_pipe(name: str) -> None:
    """What can be read only once is no table, as its columns are looked for first."""
    if not stamp_of(name).regular:
        raise InputError(f"{spoken(name)}: a table is read more than once, so it cannot come from a pipe; name a file")


def rows_of(name: str) -> int | None:
    """How many rows a file has, if it says so."""
    if form_of(name) != "parquet":
        return None
    import pyarrow.parquet as pq

    with _arrow_errors(spoken(name)):
        rows: int = pq.read_metadata(open_input(name) if is_remote(name) else name).num_rows
    return rows


def partition_of(name: str) -> dict[str, str]:
    """Columns that a path says by folders `key=value` below `/./`, which stands after a folder that was given."""
    from urllib.parse import unquote

    found = {}
    below = path_of(name) if is_remote(name) else name.partition("/./")[2]
    for part in Path(below).parts[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            found[key] = unquote(value)
    return found


def patterns() -> list[str]:
    """The names that tables have."""
    texts = [suffix for suffix, form in _FORMS.items() if form in ("delimited", "jsonlines")]
    return [f"*{suffix}" for suffix in _FORMS] + [f"*{suffix}{packed}" for suffix in texts for packed in _COMPRESSED]


def delimiter_of(name: str) -> str:
    """Of a file whose name says so."""
    stem = path_of(name)
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    return "\t" if stem.endswith((".tsv", ".tab")) else ","


def _source_of(
    name: str, number: int, table: Table, wanted: list[str], block_size: int, spare: deque[np.ndarray]
) -> _ParquetTable | _IpcTable | _TextTable:
    form = form_of(name) or "delimited"
    known = schema_of(name, table)
    missing = [column for column in wanted if column not in known]
    if missing and form == "delimited" and delimiter_of(name) != table.delimiter:  # as other files had it
        other = replace(table, delimiter=delimiter_of(name))
        columns = schema_of(name, other)
        if len(still := [column for column in wanted if column not in columns]) < len(missing):
            table, known, missing = other, columns, still
    if missing:
        raise InputError(f"{spoken(name)}: {difference(missing, known)}")
    binary = form in ("parquet", "arrow")
    from_path = partition_of(name)
    for column in table.columns:
        if column.name in wanted and (binary or column.name in from_path):
            check_type(spoken(name), column.name, known[column.name], column.kind)
    if table.id in wanted and form != "delimited":
        check_type(spoken(name), table.id, known[table.id], "id")
    for extra in (table.label, table.weight):
        if binary and extra in wanted:
            check_type(spoken(name), str(extra), known[str(extra)], "label")
    rows = max(256, min(1 << 16, _ENTRIES // max(len(table.columns), 1), block_size))
    if form == "parquet":
        return _ParquetTable(name, number, table, wanted, rows)
    if form == "arrow":
        return _IpcTable(name, number, table, wanted, rows)
    return _TextTable(name, number, table, wanted, block_size, spare, form)


def difference(missing: Sequence[str], known: dict[str, Any]) -> str:
    """That some columns are not there, and what they may be called."""
    told = []
    for column in missing[:5]:
        near = difflib.get_close_matches(column, known, 1)
        told.append(f"'{column}'" + (f" (is it '{near[0]}'?)" if near else ""))
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    shown = ", ".join(list(known)[:12]) + (", ..." if len(known) > 12 else "")
    return f"no column {', '.join(told)}{more}; the columns are {shown}"


class _BinaryTable:
    """A file of record batches."""

    def __init__(self, name: str, number: int, table: Table, wanted: list[str], rows: int) -> None:
        self.name = name
        self._number = number
        self._partition = partition_of(name)
        self._wanted = wanted
        self._categorical = [column.name for column in table.columns if column.kind == "categorical"]
        self._rows = rows
        self._stamp = stamp_of(name)

    def pieces(self, start: int, _state: dict[str, Any] | None) -> Iterator[Piece]:
        """The batches from row `start` on."""
        done = start
        for batch in self._batches(start):
            done += batch.num_rows
            share = self._stamp.size * batch.num_rows / max(self._total, 1)
            yield Piece(self._number, done, int(share), batch)
        if stamp_of(self.name) != self._stamp:
            raise InputError(f"{spoken(self.name)}: changed meanwhile; convert again when nobody writes to it")

    _total = 0

    def _batches(self, start: int) -> Generator[Any, None, None]:
        raise NotImplementedError

    def batch(self, task: Piece) -> Batch:
        """The record batch of a task, with the columns that are wanted."""
        import pyarrow as pa

        given = task.content
        columns = []
        for name in self._wanted:
            if name in given.schema.names:
                column = given.column(name)
            else:
                column = pa.repeat(pa.scalar(self._partition[name]), given.num_rows)
            column.validate(full=True)  # nobody has looked yet at offsets, codes and UTF-8
            if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
                column = column.dictionary_decode()  # nulls by their code
            columns.append(column)
        made = pa.RecordBatch.from_arrays(columns, names=self._wanted)
        return Batch(made, np.arange(given.num_rows), given.num_rows, [])

    def info(self, rows: int) -> SourceInfo:
        """See `Source`."""
        return SourceInfo(spoken(self.name), self._stamp.size, hash_of(self.name), rows)


class _ParquetTable(_BinaryTable):
    def _batches(self, start: int) -> Generator[Any, None, None]:
        import pyarrow.parquet as pq

        with _arrow_errors(spoken(self.name)):
            place = open_input(self.name) if is_remote(self.name) else self.name
            named = set(pq.read_schema(place).names)
            file = pq.ParquetFile(
                place,
                memory_map=True,
                read_dictionary=[name for name in self._categorical if name in named],
                page_checksum_verification=True,
            )
        with file:
            there = set(file.schema_arrow.names)
            columns = [name for name in self._wanted if name in there]
            self._total, end = file.metadata.num_rows, 0
            for group in range(file.num_row_groups):
                begin, end = end, end + file.metadata.row_group(group).num_rows
                if end <= start:  # read before
                    continue
                at = begin
                with _arrow_errors(f"{spoken(self.name)}: row group {group}"):
                    # of how many rows is up to Arrow: where a dictionary ends there are fewer
                    for batch in file.iter_batches(self._rows, row_groups=[group], columns=columns):
                        at += batch.num_rows
                        if at > start and batch.num_rows:
                            yield batch
                if at != end:
                    problem = f"{at - begin:,} rows in row group {group} instead of {end - begin:,}"
                    raise InputError(f"{spoken(self.name)}: {problem}; fetch or write it again")


class _IpcTable(_BinaryTable):
    def _batches(self, start: int) -> Generator[Any, None, None]:
        at = 0
        with _arrow_errors(spoken(self.name)), _opened_ipc(self.name) as opened:
            counts = opened.num_record_batches if hasattr(opened, "num_record_batches") else None
            stream = (opened.get_batch(i) for i in range(counts)) if counts is not None else iter(opened)
            for batch in stream:
                self._total = batch.num_rows if counts is None else batch.num_rows * counts
                for begin in range(0, batch.num_rows, self._rows):
                    part = batch.slice(begin, self._rows)
                    at += part.num_rows
                    if at > start:
                        yield part


class _TextTable(TextSource):
    """Lines that become record batches."""

    def __init__(
        self,
        name: str,
        number: int,
        table: Table,
        wanted: list[str],
        block_size: int,
        spare: deque[np.ndarray],
        form: Form,
    ) -> None:
        super().__init__(name, number, block_size, spare, "a text table")
        self.spare = spare
        self._table, self._form = table, form
        self._fields = {field.name: field.type for field in _schema_of_text(name, form, table)}
        self._wanted = wanted
        numbers = {column.name for column in table.columns if column.kind == "numeric"}
        self._kinds = {column: "number" if column in numbers else "string" for column in wanted}
        self._own = list(self._fields)
        self._partition = {key: value for key, value in partition_of(name).items() if key not in self._own}

    def pieces(self, start: int, state: dict[str, Any] | None) -> Iterator[TextBlock]:
        """The blocks of lines from position `start` on."""
        yield from self.blocks(start, state)

    def batch(self, task: TextBlock) -> Batch:
        """The record batch of a block of lines."""
        import pyarrow as pa

        inside: dict[str, Any] = {name: kind for name, kind in self._kinds.items() if name in self._own}
        if self._form == "jsonlines":
            types = {name: self._type_of(name) for name in inside}
            found = jsonlines.batch_of(task.text, task.length, types, task.length)
        else:
            first = self._table.header and task.begin == 0
            found = delimited.batch_of(
                task.text, task.length, self._own, inside, self._table.delimiter, first, task.length
            )
        batch, lines, line_count, bad, _bad_rows = found
        columns = [
            batch.column(name) if name in inside else pa.repeat(pa.scalar(self._partition[name]), batch.num_rows)
            for name in self._wanted
        ]
        return Batch(pa.RecordBatch.from_arrays(columns, names=self._wanted), lines, line_count, bad)

    def _type_of(self, name: str) -> Any:
        import pyarrow as pa

        kind = self._fields[name]
        if self._kinds[name] == "number" or pa.types.is_floating(kind):
            return pa.float64()
        if name in (self._table.label, self._table.weight) and pa.types.is_integer(kind):
            return pa.float64()
        if pa.types.is_list(kind):
            return _widened(kind)
        return kind if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else pa.string()


def _widened(kind: Any) -> Any:
    """A list of (index, value) whose first values were whole numbers may have others later."""
    import pyarrow as pa

    from ooc_pegasos.readers.vectors import fields_of_entries

    inner = kind.value_type
    if not pa.types.is_struct(inner) or _problem_of_entries(kind) is not None:
        return kind
    _index, value = fields_of_entries(inner)
    fields = [inner.field(at) for at in range(inner.num_fields)]
    return pa.list_(
        pa.struct([field.with_type(pa.float64()) if at == value else field for at, field in enumerate(fields)])
    )


def check_type(where: str, name: str, kind: Any, wanted: str) -> None:
    """Refuse a column whose type cannot be what it is wanted as."""
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_number = _is_number(inner)
    is_text = pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner)
    nested, unknown = pa.types.is_nested(inner), pa.types.is_null(inner)
    column = f"{where}: column '{name}' is of type {kind}"
    if wanted == "numeric" and not unknown and (not is_number or pa.types.is_dictionary(kind)):
        raise InputError(f"{column}, not a number; write it as numbers, or convert with --categorical {name}")
    if wanted == "text" and not unknown and not is_text:
        raise InputError(f"{column}, not text; write it as text, or convert with --categorical {name}")
    if wanted == "categorical" and nested:
        raise InputError(f"{column}, which is no category; leave it out")
    if wanted == "label" and not unknown and not (is_number or is_text):
        raise InputError(f"{column}, and labels and weights are numbers or words; write it as one of these")
    is_time = pa.types.is_temporal(inner) and not pa.types.is_duration(inner)
    if wanted == "id" and not unknown and not (is_number or is_text or is_time):
        raise InputError(f"{column}, and ids are numbers, words or times; write it as one of these")
    if wanted == "entries":
        with _arrow_errors(where):
            problem = _problem_of_entries(kind)
        if problem is not None:
            raise InputError(
                f"{column}, {problem}; write lists of indices, of (index, value), or maps, or leave it out"
            )


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _problem_of_entries(kind: Any) -> str | None:
    """Why a column of this type is none of entries."""
    import pyarrow as pa

    from ooc_pegasos.readers.vectors import fields_of_entries

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
def _arrow_errors(where: str) -> Iterator[None]:
    """Say what pyarrow found in the words of this program."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{where}: {error.strerror}; check the path and its permissions") from error
        problem = " ".join(str(error).split())[:160]
        raise InputError(f"{where}: damaged or not what its name says ({problem}); fetch or write it again") from error


@contextmanager
def _opened_ipc(name: str) -> Iterator[Any]:
    """A file or a stream of record batches."""
    import pyarrow as pa

    with open_input(name) if is_remote(name) else pa.memory_map(name) as mapped:
        try:
            opened: Any = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            opened = pa.ipc.open_stream(mapped)
        yield opened


def _schema_of_text(name: str, form: Form | None, table: Table | None) -> Any:
    """The columns of a text and what the first megabyte of it seems to hold."""
    import pyarrow as pa

    head = _head_of(name)
    with _arrow_errors(spoken(name)):
        names = _names_in(name, head, form, table)
        if form == "jsonlines":
            kinds = _kinds_of_json(head)
            return pa.schema([(column, kinds.get(column, pa.string())) for column in dict.fromkeys([*names, *kinds])])
        import pyarrow.csv

        header = table.header if table else True
        delimiter = table.delimiter if table else delimiter_of(name)
        options = pyarrow.csv.ReadOptions(
            column_names=names, skip_rows=int(header), use_threads=False, block_size=len(head) + 1
        )
        parse = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=lambda _row: "skip")
        kinds = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
        # of good rows: of others is told where they stand
        text = np.frombuffer(head, np.uint8)
        lines = delimited.batch_of(text, len(text), names, dict.fromkeys(names, "string"), delimiter, header, 0)[1]
        rows = [line + b"\n" for line in head.split(b"\n")]
        if len(lines) and len(rows) > lines[-1]:
            head = b"".join([*rows[: int(header)], *(rows[line] for line in lines.tolist())])
        head = head.decode(errors="replace").encode()  # what pyarrow cannot decode it cannot hand to the handler
        try:
            return pyarrow.csv.read_csv(pa.BufferReader(head), options, parse, kinds).schema
        except pa.ArrowInvalid:
            return pa.schema([(column, pa.string()) for column in names])


def _head_of(name: str) -> bytes:
    """The first lines of a text."""
    block = next(iter(TextSource(name, 0, _HEAD, deque(), "a text table").blocks()), None)
    if block is None:
        raise InputError(f"{spoken(name)}: the file is empty; leave it out or check how it was made")
    return block.text[: block.length].tobytes().removeprefix(b"   ")  # of a mark of UTF-8


def _names_in(name: str, head: bytes, form: Form | None, table: Table | None) -> list[str]:
    """The columns that the first line of a text names."""
    try:
        if form == "jsonlines":
            return jsonlines.names_of(head)
        return delimited.names_of(
            head, table.delimiter if table else delimiter_of(name), table.header if table else True
        )
    except InputError as error:
        raise InputError(f"{spoken(name)}: {error}") from error


def _kinds_of_json(head: bytes) -> dict[str, Any]:
    """What the keys of the first objects seem to hold; lines that are none are told of where they stand."""
    import pyarrow as pa

    schema = _guessed_json(head)
    if schema is None:
        objects = []
        for line in head.splitlines():
            with suppress(ValueError, RecursionError):
                objects.append(json.loads(line))
        objects = [one for one in objects if isinstance(one, dict)]
        kinds = {}
        for column in dict.fromkeys(key for one in objects for key in one):
            lines = [json.dumps({column: one[column]}) for one in objects if column in one]
            found = _guessed_json("\n".join(lines).encode())
            kinds[column] = pa.string() if found is None else found.field(0).type
    else:
        kinds = {field.name: field.type for field in schema}
    # words that look like dates are words
    return {column: pa.string() if pa.types.is_temporal(kind) else kind for column, kind in kinds.items()}


def _guessed_json(text: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.json

    try:
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        return pyarrow.json.read_json(pa.BufferReader(text), options).schema
    except pa.ArrowInvalid:
        return None


def _numbers(lines: np.ndarray, bad: list[BadRow]) -> np.ndarray:
    """Which row of the piece each is, bad ones included, blank lines not."""
    before = np.searchsorted(np.array([row.line for row in bad], np.int64), lines)
    numbers: np.ndarray = (np.arange(len(lines)) + before).astype(np.uint32)
    return numbers
