"""Tables: Parquet, Arrow IPC (Feather), CSV, TSV and JSON lines, read batch by batch; `vectorize.py` makes the rows."""

from __future__ import annotations

import glob
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import delimited, jsonlines, nested
from ooc_pegasos.readers.arrow_strings import as_strings, checked, is_list, without_infinite
from ooc_pegasos.readers.base import (
    DEFAULT_MEMORY,
    DESCRIBED_BAD_ROWS,
    BadRow,
    Format,
    LoadedTask,
    Note,
    ParsedBlock,
    Reader,
    ReadOptions,
    chained,
    fixed_features,
    refuse_no_hash,
)
from ooc_pegasos.readers.columns_plan import (
    MEMORY_OF_COLUMN,
    WIDE,
    FileType,
    arrow_errors,
    check_type,
    delimiter_of,
    detect_file_type,
    difference,
    file_type_of,
    kind_of_text,
    open_ipc,
    partition_of,
    paths_of_file,
    patterns,
    problem_of_entries,
    refuse_too_wide,
    rows_of_groups,
    schema_of,
    with_partition,
)
from ooc_pegasos.readers.crosses import strings_of_cross, with_crosses
from ooc_pegasos.readers.dates import words_of_dates
from ooc_pegasos.readers.remote import is_metadata_file, is_remote
from ooc_pegasos.readers.sources import (
    TextBlock,
    TextSource,
    display_name,
    hash_of,
    open_input,
    samples_of,
    stamp_of,
)
from ooc_pegasos.readers.spelling import category_words
from ooc_pegasos.readers.table_recipe import OPTIONS, new_table
from ooc_pegasos.store.manifest import Recipe, SourceInfo
from ooc_pegasos.store.recipe import Table
from ooc_pegasos.store.row_ids import plain
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.buffers import Pool
from ooc_pegasos.util.short_names import short, shortened

if TYPE_CHECKING:
    from ooc_pegasos.readers.split_rule import SplitRule
    from ooc_pegasos.readers.vectorize import Problems

_ENTRIES = 1 << 20
"""Entries of a batch, about."""


@dataclass(frozen=True)
class Settings:
    """Options of the reader, all fixed before the first row."""

    table: Table
    text_labels: bool = False
    stop_at_bad: bool = True
    with_labels: bool = True
    names: int = 0
    """Number of names of hashed features to keep."""
    vocabulary: Vocabulary | None = None
    """The vocabulary that the table needs."""
    split: str | None = None
    """The rule for the rows that are for tests."""


@dataclass
class Batch:
    """Some rows of a table."""

    batch: Any
    lines: np.ndarray
    """Line or number of each row, counted from 0 at the start of the piece."""
    line_count: int
    bad: list[BadRow]
    """All bad rows."""


class TablesFormat(Format):
    """Tables: files with columns that have names."""

    name = "table"
    title = "tables"
    options = frozenset(OPTIONS) | {
        *("split", "standardize", "dictionary", "idf", "ngrams", "characters"),
        *("hash_bits", "hash_signed", "feature_names", "cross"),
    }
    is_text = True
    has_columns = True
    searches_folders = True

    def detect(self, first_bytes: bytes, name: str) -> bool:
        """True if a file is a table by its first bytes or by its name."""
        return detect_file_type(first_bytes, name) is not None

    def files_in(self, folder: str) -> list[str]:
        """Return the tables in a folder, without the files that other programs add: `_SUCCESS`, `.crc`."""
        found = (path for one in patterns() for path in glob.glob(f"**/{one}", root_dir=folder, recursive=True))
        return [path for path in found if not is_metadata_file(path)]

    def check_options(self, config: ConvertConfig) -> None:
        """Raise UsageError for values that an option cannot have with tables."""
        refuse_no_hash(config, self.title)

    def recipe(self, config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
        """Return the recipe of a new store: the columns that count."""
        from ooc_pegasos.readers.column_advice import FirstRows
        from ooc_pegasos.readers.vectorize import features_of

        table = new_table(config, names, note)
        if not config.preset:
            first_rows = FirstRows(names, table, config.memory)
            table = first_rows.with_notations(table, is_named=config.names_columns, note=note)
            if not config.names_columns:
                first_rows.advise(table, note)
        where, plain = display_name(names[0]), table
        table = with_crosses(table, config.cross, where, lambda: schema_of(names[0], plain, config.memory))
        features = fixed_features(features_of(table), config)
        return replace(super().recipe(config, names, note), table=table, features=features)

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open tables."""
        assert recipe.table is not None
        settings = Settings(
            recipe.table,
            options.text_labels,
            options.stop_at_bad,
            options.with_labels,
            options.feature_names,
            options.vocabulary,
            options.split,
        )
        return TablesReader(names, settings, options.block_size, options.memory)


class TablesReader:
    """Reader of tables; a task is a record batch or a block of lines."""

    memory_per_byte = 14

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int, memory: int = DEFAULT_MEMORY) -> None:
        self.settings = settings
        from ooc_pegasos.readers.split_rule import SplitRule
        from ooc_pegasos.readers.vectorize import Vectorizer

        self._split = SplitRule(settings.split) if settings.split else None
        self.vectorizer = Vectorizer(
            settings.table,
            settings.text_labels,
            with_labels=settings.with_labels,
            names=settings.names,
            vocabulary=settings.vocabulary,
        )
        self._pool = Pool()
        wanted = self.vectorizer.wanted
        if self._split and self._split.column not in wanted:
            wanted.append(self._split.column)
        spare: deque[np.ndarray] = deque()
        self.sources = [
            _source_of(name, number, settings.table, wanted, block_size, spare, memory, self._split)
            for number, name in enumerate(names)
        ]
        self._memory = memory
        self._lock_of_wide_tables: Any = nullcontext()
        if len(self.vectorizer.wanted) > WIDE:  # each of several threads would take as much
            self._lock_of_wide_tables = threading.Lock()
        for source in self.sources:
            if not (isinstance(source, _TextTable) and source.cell_reader and self.vectorizer.takes_numbers):
                self._refuse_too_wide(source)
        self.unit = "line" if any(isinstance(source, _TextTable) for source in self.sources) else "row"

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """See `Reader`."""
        return chained((one.blocks for one in self.sources[source:]), start, state)

    def read(self, task: Any) -> ParsedBlock:
        """See `Reader`."""
        from ooc_pegasos.readers.vectorize import Problems

        source, work = self.sources[task.source], self.vectorizer.vectors
        with arrow_errors(display_name(source.name)):
            cells = None
            if isinstance(source, _TextTable) and source.cell_reader and self.vectorizer.takes_numbers:
                cells = source.cell_reader.read(task.text, task.length, source.begins_with_header(task))
            if cells is not None:
                batch = Batch(cells.words, cells.lines, cells.line_count, [])
                problems = Problems(len(cells.numbers))
                is_test = self._test_rows(cells.words, cells.numbers, problems)
                found = work(cells.words, cells.numbers, problems)
            else:
                self._refuse_too_wide(source)
                with self._lock_of_wide_tables:
                    batch = source.batch(task)
                    problems = Problems(batch.batch.num_rows)
                    is_test = self._test_rows(batch.batch, None, problems)
                    found = work(batch.batch, None, problems)
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
            None if is_test is None else is_test[found.good],
        )

    def _test_rows(self, batch: Any, numbers: np.ndarray | None, problems: Problems) -> np.ndarray | None:
        """Return a mask of the rows for tests; None without a rule. See `Vectorizer.vectors`."""
        if self._split is None:
            return None
        if numbers is not None and self._split.column not in batch.schema.names:
            import pyarrow as pa

            at = [column.name for column in self.settings.table.columns].index(self._split.column)
            return self._split.test_rows(pa.array(numbers[:, at], from_pandas=True), problems)
        return self._split.test_rows(batch.column(self._split.column), problems)

    def numbers(self, task: Any) -> np.ndarray:
        """Return the numeric columns of the good rows of a task before they are scaled, NaN for nulls."""
        source = self.sources[task.source]
        with arrow_errors(display_name(source.name)):
            cells = self._cells(source, task)
            if cells is not None:
                return self.vectorizer.numbers(cells.words, cells.numbers)
            self._refuse_too_wide(source)
            with self._lock_of_wide_tables:
                return self.vectorizer.numbers(source.batch(task).batch)

    def _cells(self, source: _BinaryTable | _TextTable, task: Any) -> Any:
        """Return the cells of a task as `read` does."""
        if not (isinstance(source, _TextTable) and source.cell_reader and self.vectorizer.takes_numbers):
            return None
        return source.cell_reader.read(task.text, task.length, source.begins_with_header(task))

    def _refuse_too_wide(self, source: _BinaryTable | _TextTable) -> None:
        """Raise InputError for a source whose columns take too much memory in Arrow."""
        refuse_too_wide(source.name, len(self.vectorizer.wanted), MEMORY_OF_COLUMN[source.file_type], self._memory)

    def strings(self, task: Any) -> Iterator[tuple[str | None, Any]]:
        """Yield (prefix of feature names, or None for texts; strings) of each column of a task."""
        source = self.sources[task.source]
        with arrow_errors(display_name(source.name)):
            batch = source.batch(task).batch
            for column in self.settings.table.columns:
                if column.kind == "dates":
                    yield from words_of_dates(column, batch.column(column.name))
                    continue
                prefix = None if column.kind == "text" else f"{column.name}="
                if is_list(batch.column(column.name).type):
                    yield prefix, batch.column(column.name)
                    continue
                cells, _where = without_infinite(batch.column(column.name))  # rows that will be bad ones
                yield prefix, as_strings(cells) if prefix is None else category_words(column, cells)
            for prefix, columns in self.vectorizer.crosses:
                yield prefix, strings_of_cross(batch, columns)

    def search(self, buckets: np.ndarray) -> None:
        """Record the names of some buckets alone."""
        self.vectorizer.search(buckets)

    def named(self, features: dict[int, str]) -> None:
        """Record names of buckets."""
        self.vectorizer.named(features)

    def release(self, parsed: ParsedBlock) -> None:
        """See `Reader`."""
        source = self.sources[parsed.task.source]
        if isinstance(source, _TextTable):
            source.spare.append(parsed.task.text)
        self._pool.give_back(parsed.scratch)


def _source_of(
    name: str,
    number: int,
    table: Table,
    wanted: list[str],
    block_size: int,
    spare: deque[np.ndarray],
    memory: int,
    split: SplitRule | None,
) -> _ParquetTable | _IpcTable | _TextTable:
    file_type = file_type_of(name) or "delimited"
    own = paths_of_file(name, table, memory)
    if file_type != "delimited":
        kinds = {column: kind for column, (_path, kind) in own.items()}
        holders = {column: nested.holder_of(column, kinds) for column in wanted}
        own |= {column: own[holder] for column, holder in holders.items() if holder is not None}
    known = _known(name, own)
    missing = [column for column in wanted if column not in known]
    if (
        missing and file_type == "delimited" and delimiter_of(name) != table.delimiter
    ):  # other files had another delimiter
        other = replace(table, delimiter=delimiter_of(name))
        columns_then = paths_of_file(name, other, memory)
        columns = _known(name, columns_then)
        if len(still := [column for column in wanted if column not in columns]) < len(missing):
            table, own, known, missing = other, columns_then, columns, still
    if missing:
        raise InputError(f"{display_name(name)}: {difference(missing, known)}")
    binary = file_type in ("parquet", "arrow")
    from_path, needed = partition_of(name), set(wanted)
    for column in table.columns:
        if column.name in needed and (binary or column.name in from_path):
            check_type(display_name(name), column.name, known[column.name], column.use)
    if table.id in wanted and file_type != "delimited":
        check_type(display_name(name), table.id, known[table.id], "id")
    for extra in (table.label, table.weight):
        if binary and extra in wanted and not (extra == table.label and table.label_is_null):
            check_type(display_name(name), str(extra), known[str(extra)], "label")
    rows = max(256, min(1 << 16, _ENTRIES // max(len(table.columns), 1), block_size))
    if file_type == "parquet":
        return _ParquetTable(name, number, table, wanted, own, rows)
    if file_type == "arrow":
        return _IpcTable(name, number, table, wanted, own, rows)
    used_as_numbers = {table.label, table.weight, split.column if split else None}
    return _TextTable(name, number, table, wanted, own, block_size, spare, file_type, memory, used_as_numbers)


Columns = dict[str, tuple[nested.Path, Any]]
"""Path and type of each column of a file."""


def _known(name: str, own: Columns) -> dict[str, Any]:
    """Return the types of the columns of a file and of its path."""
    return with_partition(name, {column: kind for column, (_path, kind) in own.items()})


class _BinaryTable:
    """A file of record batches."""

    file_type: FileType

    def __init__(self, name: str, number: int, table: Table, wanted: list[str], own: Columns, rows: int) -> None:
        self.name = name
        self._own = own
        self._number = number
        self._partition = partition_of(name)
        self._wanted = wanted
        self._paths = [own[column][0] for column in wanted if column in own]
        self._categorical = [column.name for column in table.columns if column.kind == "categorical"]
        self._rows = rows
        self._stamp = stamp_of(name)

    def blocks(self, start: int, _state: dict[str, Any] | None) -> Iterator[LoadedTask]:
        """Yield the batches from row `start` on."""
        done = start
        for batch in self._batches(start):
            done += batch.num_rows
            share = self._stamp.size * batch.num_rows / max(self._total, 1)
            yield LoadedTask(self._number, done, int(share), batch)
        self._check_unchanged()

    _total = 0

    def _batches(self, start: int) -> Generator[Any, None, None]:
        raise NotImplementedError

    def batch(self, task: LoadedTask) -> Batch:
        """Return the record batch of a task with the wanted columns."""
        import pyarrow as pa

        given = task.content
        bad: dict[int, BadRow] = {}
        columns = []
        for struct in {path[0] for path in self._paths if len(path) > 1}:
            with arrow_errors(f"{display_name(self.name)}: rows up to {task.end:,}: column '{struct}'"):
                given.column(struct).validate()  # lengths of the fields, which a damaged file may have wrong
        for name in self._wanted:
            if name not in self._own:
                columns.append(pa.repeat(pa.scalar(self._partition[name]), given.num_rows))
                continue
            with arrow_errors(f"{display_name(self.name)}: rows up to {task.end:,}: column '{short(name)}'"):
                column, wrong, cells = checked(nested.column_at(given, self._own[name][0]))
            for row in wrong.tolist():
                problem = f"the value {cells[row].as_py()[:40]!r} in column {shortened(name)!r} is not UTF-8 text"
                bad.setdefault(row, BadRow(row, f"{problem}; write it as UTF-8"))
            if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
                column = column.dictionary_decode()  # nulls by their code
            columns.append(column)
        made = pa.RecordBatch.from_arrays(columns, names=self._wanted)
        lines = np.arange(given.num_rows)
        if bad:
            lines = np.delete(lines, list(bad))
            made = made.take(pa.array(lines))
        return Batch(made, lines, given.num_rows, [bad[row] for row in sorted(bad)])

    def info(self, rows: int) -> SourceInfo:
        """See `Source`."""
        digest, samples = hash_of(self.name), samples_of(self.name)
        self._check_unchanged()  # again: the fingerprint is of the file that the rows came from
        return SourceInfo(display_name(self.name), self._stamp.size, digest, rows, samples=samples)

    def _check_unchanged(self) -> None:
        if stamp_of(self.name) != self._stamp:
            raise InputError(
                f"{display_name(self.name)}: changed during the conversion; convert again when nobody writes to it"
            )


class _ParquetTable(_BinaryTable):
    file_type: FileType = "parquet"

    def _batches(self, start: int) -> Generator[Any, None, None]:
        import pyarrow.parquet as pq

        with arrow_errors(display_name(self.name)):
            file_or_path = open_input(self.name) if is_remote(self.name) else self.name
            coded = [name for name in self._categorical if name in self._own and _can_be_coded(self._own[name][1])]
            file = pq.ParquetFile(
                file_or_path,
                memory_map=True,
                read_dictionary=[".".join(self._own[name][0]) for name in coded],
                page_checksum_verification=True,
            )
        with file:
            # of a struct, its wanted fields alone are read
            columns = list(dict.fromkeys(map(".".join, self._paths)))
            rows = rows_of_groups(file.metadata, self.name)
            self._total, end = sum(rows), 0
            for group, count in enumerate(rows):
                begin, end = end, end + count
                if end <= start:  # read before
                    continue
                at = begin
                with arrow_errors(f"{display_name(self.name)}: row group {group}"):
                    # Arrow chooses the number of rows: fewer where a dictionary ends
                    for batch in file.iter_batches(self._rows, row_groups=[group], columns=columns):
                        at += batch.num_rows
                        if at > start and batch.num_rows:
                            yield batch
                if at != end:
                    problem = f"{at - begin:,} rows in row group {group} instead of {end - begin:,}"
                    raise InputError(f"{display_name(self.name)}: {problem}; fetch or write it again")


def _can_be_coded(kind: Any) -> bool:
    import pyarrow as pa

    return not is_list(kind) and not pa.types.is_null(kind)


class _IpcTable(_BinaryTable):
    file_type: FileType = "arrow"

    def _batches(self, start: int) -> Generator[Any, None, None]:
        at = 0
        with arrow_errors(display_name(self.name)), open_ipc(self.name) as file:
            counts = file.num_record_batches if hasattr(file, "num_record_batches") else None
            stream = (file.get_batch(i) for i in range(counts)) if counts is not None else iter(file)
            for batch in stream:
                self._total = batch.num_rows if counts is None else batch.num_rows * counts
                for begin in range(0, batch.num_rows, self._rows):
                    part = batch.slice(begin, self._rows)
                    at += part.num_rows
                    if at > start:
                        yield part


class _TextTable(TextSource):
    """A text file: lines become record batches."""

    def __init__(
        self,
        name: str,
        number: int,
        table: Table,
        wanted: list[str],
        own: Columns,
        block_size: int,
        spare: deque[np.ndarray],
        file_type: FileType,
        memory: int,
        used_as_numbers: set[str | None],
    ) -> None:
        super().__init__(name, number, block_size, spare, *kind_of_text(file_type, table), memory=memory)
        self.spare = spare
        self._table, self.file_type = table, file_type
        self._own, self._used_as_numbers = own, used_as_numbers
        self._partition = {key: value for key, value in partition_of(name).items() if key not in own}
        self._wanted = wanted
        numbers = {column.name for column in table.columns if column.use == "numeric"}
        self._kinds: dict[str, delimited.CellKind] = {
            column: "number" if column in numbers else "string" for column in wanted
        }
        self.cell_reader: delimited.CellReader | None = None
        """The reader of blocks of ordinary lines; None if Arrow must read them."""
        if (
            file_type != "jsonlines"
            and not self._partition.keys() & set(wanted)
            and table.delimiter in delimited.ORDINARY
        ):
            self.cell_reader = delimited.CellReader(list(own), self._kinds, table.delimiter, table.multiline)

    def begins_with_header(self, task: TextBlock) -> bool:
        """True if the first line of a block is the header."""
        return self._table.header and task.begin == 0

    def batch(self, task: TextBlock) -> Batch:
        """Return the record batch of a block of lines."""
        import pyarrow as pa

        if self.cell_reader is not None:
            cells = self.cell_reader.batch(task.text, task.length, self.begins_with_header(task))
            if cells is not None:
                return Batch(*cells, [])
        own_kinds: dict[str, Any] = {name: kind for name, kind in self._kinds.items() if name in self._own}
        if not own_kinds:  # all columns are those of the path: one is read for the number of rows
            own_kinds = {next(iter(self._own)): "string"}
        if self.file_type == "jsonlines":
            paths = {name: self._own[name][0] for name in own_kinds}
            fields = nested.schema_with({path: self._type_of(name) for name, path in paths.items()})
            types = {field.name: field.type for field in fields}
            batch, *rest = jsonlines.batch_of(task.text, task.length, types, task.length)
            columns = [nested.column_at(batch, path) for path in paths.values()]
            found = pa.RecordBatch.from_arrays(columns, names=list(paths)), *rest
        else:
            found = delimited.batch_of(
                task.text,
                task.length,
                list(self._own),
                own_kinds,
                self._table.delimiter,
                self.begins_with_header(task),
                task.length,
                self._table.multiline,
            )
        batch, lines, line_count, bad, _bad_rows = found
        columns = [
            batch.column(name) if name in self._own else pa.repeat(pa.scalar(self._partition[name]), batch.num_rows)
            for name in self._wanted
        ]
        return Batch(pa.RecordBatch.from_arrays(columns, names=self._wanted), lines, line_count, bad)

    def _type_of(self, name: str) -> Any:
        import pyarrow as pa

        kind = self._own[name][1]
        if self._kinds.get(name) == "number" or pa.types.is_floating(kind):
            return pa.float64()
        if name in self._used_as_numbers and pa.types.is_integer(kind):
            return pa.float64()
        if pa.types.is_list(kind):
            return _with_float_values(kind)
        return kind if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else pa.string()


def _with_float_values(kind: Any) -> Any:
    """Return a type for lists of (index, value) that also takes fractions, which may follow whole numbers."""
    import pyarrow as pa

    from ooc_pegasos.readers.vectorize import fields_of_entries

    inner = kind.value_type
    if not pa.types.is_struct(inner) or problem_of_entries(kind) is not None:
        return kind
    _index, value = fields_of_entries(inner)
    fields = [inner.field(at) for at in range(inner.num_fields)]
    return pa.list_(
        pa.struct([field.with_type(pa.float64()) if at == value else field for at, field in enumerate(fields)])
    )


def _numbers(lines: np.ndarray, bad: list[BadRow]) -> np.ndarray:
    """Return the number of each row in the piece, bad rows included, blank lines not."""
    before = np.searchsorted(np.array([row.line for row in bad], np.int64), lines)
    numbers: np.ndarray = (np.arange(len(lines)) + before).astype(np.uint32)
    return numbers
