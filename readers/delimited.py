"""Delimited text (CSV, TSV): blocks of whole lines to record batches, and the problems of bad lines.

Arrow reads cells as in RFC 4180: quoted where they hold the delimiter, a quote within quotes doubled. An
empty cell without quotes is a null, and nothing else is. A row is a line: unless quoted cells may contain line
breaks (`multiline`), an open quote affects no other row.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ooc_pegasos.compiled.parse import cells as kernels_of_cells
from ooc_pegasos.compiled.parse import records as kernels
from ooc_pegasos.errors import InputError, literal
from ooc_pegasos.readers.arrow_strings import not_utf8
from ooc_pegasos.readers.base import TO_UTF8, BadRow
from ooc_pegasos.readers.sources import UTF8_MARK
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.util.buffers import Pool, Scratch
from ooc_pegasos.util.short_names import short, shortened

if TYPE_CHECKING:
    import pyarrow as pa

CellKind = Literal["number", "string"]

_NUMBER = r"^[ \t]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*$"
_GOOD, _BLANK, _BROKEN, _OPEN, _RAGGED, _CELL = range(6)
"""States of a row, the first as in compiled/parse/records.py. From _CELL on: a bad cell of that column."""
ORDINARY = ",;\t|"
"""Delimiters that cannot be part of a number."""
_OPEN_ADVICE = "close it, or convert with {multiline} if quoted cells may contain line breaks"


class _Rows(NamedTuple):
    """The rows of a text, blank rows included."""

    starts: np.ndarray
    states: np.ndarray
    first_lines: np.ndarray
    """The line on which each row begins."""
    line_count: int


def names_of(head: bytes, delimiter: str, header: bool, multiline: bool = False) -> list[str]:
    """Return the column names in the first row of `head`, or "0", "1", ... for its cells."""
    line = head[: _first_row(np.frombuffer(head, np.uint8), delimiter, multiline)[0]]
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise InputError("the first line is empty; begin the file with the names of its columns, or its first row")
    if _is_open(line, delimiter):
        raise InputError(f"the first line ends within a quote; {_OPEN_ADVICE}")
    try:
        cells = _cells_of(line.decode(), delimiter)
    except UnicodeDecodeError:
        raise InputError(f"the first line is not UTF-8 text; {TO_UTF8}") from None
    except csv.Error as error:
        if b"\r" in line:
            raise InputError("a carriage return within the first line; end lines with a line feed") from None
        raise InputError(f"the first line cannot be read ({error}); is this delimited text?") from None
    if not header:
        return [str(number) for number in range(len(cells))]
    cells = [name or f"Unnamed: {number}" for number, name in enumerate(cells)]  # as pandas names them
    seen: set[str] = set()
    for name in cells:
        if name in seen:
            raise InputError(f"two columns have the name {name!r}; rename one, or use {{no_header}}")
        seen.add(name)
    return cells


def _cells_of(line: str, delimiter: str) -> list[str]:
    before = csv.field_size_limit(len(line) + 1)  # a limit of the process, too small for long texts
    try:
        return next(csv.reader([line], delimiter=delimiter))
    finally:
        csv.field_size_limit(before)


def batch_of(
    text: np.ndarray,
    length: int,
    names: list[str],
    kinds: Mapping[str, CellKind],
    delimiter: str,
    skip_first: bool,
    max_described: int,
    multiline: bool = False,
) -> tuple[pa.RecordBatch, np.ndarray, int, list[BadRow], int]:
    """Read the rows in `text[:length]`, which ends with a line feed.

    (the columns in `kinds` of the good rows: numbers as float64, strings as dictionaries; the line on which each such
    row begins; number of lines; the first bad rows, at most `max_described`; number of bad rows.)
    `kinds` names at least one column. `skip_first` skips the header.
    """
    text = text[:length]
    first = 0
    if skip_first and length:
        end, first = _first_row(text, delimiter, multiline)
        text = text[end:]
    multiline = multiline and bool(_count(text, 34))
    batch = _read_typed(text, names, kinds, delimiter)
    if batch is not None:
        find = _lines_of_records if multiline else _lines_of_rows
        found = find(text, batch.num_rows, delimiter)
        if found is not None:
            lines, line_count = found
            return batch, lines + first, line_count + first, [], 0
    rows = _records_of(text, delimiter) if multiline else _rows_of_lines(text, delimiter)
    batch, lines, line_count, described, bad = _without_bad_rows(text, rows, names, kinds, delimiter, max_described)
    described = [BadRow(row.line + first, row.problem) for row in described]
    return batch, lines + first, line_count + first, described, bad


class Cells(NamedTuple):
    """Rows with mostly numeric columns."""

    numbers: np.ndarray
    """A matrix with a column for each numeric column; an empty cell is NaN."""
    words: pa.RecordBatch
    """The other columns."""
    lines: np.ndarray
    line_count: int


class CellReader:
    """Reader of the same rows as `batch_of`, for ordinary lines, at a cost proportional to the cells.

    The delimiter is one of `ORDINARY`.
    Arrow takes some 10 KB of memory for a column, however few rows there are.
    """

    def __init__(
        self, names: Sequence[str], kinds: Mapping[str, CellKind], delimiter: str, multiline: bool = False
    ) -> None:
        self._kinds, self._multiline = kinds, multiline
        self._pool = Pool()
        self._words = [name for name, kind in kinds.items() if kind == "string"]
        self._numeric = [name for name, kind in kinds.items() if kind == "number"]
        targets = {name: kernels_of_cells.WORD - number for number, name in enumerate(self._words)}
        targets |= {name: number for number, name in enumerate(self._numeric)}
        self._targets = np.array([targets.get(name, kernels_of_cells.IGNORED) for name in names], np.int32)
        self._delimiter = ord(delimiter)

    def read(self, text: np.ndarray, length: int, skip_first: bool) -> Cells | None:
        """Read a text that ends with a line feed and padding; None if a line is bad or unusual."""
        import pyarrow as pa

        end, skipped = 0, 0
        if skip_first and length:
            end, skipped = _first_row(text[:length], chr(self._delimiter), self._multiline)
        text, length = text[end:], length - end
        scratch = self._pool.take()
        try:
            return self._cells(read_only(text), length, skipped, scratch)
        except pa.ArrowInvalid:  # not UTF-8
            return None
        finally:
            self._pool.give_back(scratch)

    def _cells(self, text: np.ndarray, length: int, skipped: int, scratch: Scratch) -> Cells | None:
        """Return the rows of `text[:length]`; raises ArrowInvalid if not UTF-8. `skipped` is the lines before it."""
        import pyarrow as pa

        most, words = _count(text[:length], 10), len(self._words)
        numbers, lines = np.empty((most, len(self._numeric))), np.empty(most, np.int64)
        spans = scratch.array("spans", words * most * 2, np.int32).reshape(words, most, 2)
        keys = scratch.array("keys", words * most, np.uint64).reshape(words, most)
        rows, line_count = kernels_of_cells.parse_cells(
            text, length, self._delimiter, self._targets, numbers, spans, keys, lines
        )
        if rows < 0:
            return None
        columns = _coded_words(text, spans[:, :rows], keys[:, :rows], scratch)
        batch = pa.RecordBatch.from_arrays(columns, names=self._words)
        return Cells(numbers[:rows], batch, lines[:rows] + skipped, line_count + skipped)

    def batch(self, text: np.ndarray, length: int, skip_first: bool) -> tuple[Any, np.ndarray, int] | None:
        """Return the same as (record batch, lines, number of lines)."""
        import pyarrow as pa

        cells = self.read(text, length, skip_first)
        if cells is None:
            return None
        columns = dict(zip(cells.words.schema.names, cells.words.columns, strict=True))
        numbers = {name: pa.array(cells.numbers[:, at], from_pandas=True) for at, name in enumerate(self._numeric)}
        made = pa.RecordBatch.from_pydict({name: (columns | numbers)[name] for name in self._kinds})
        return made, cells.lines, cells.line_count


def _coded_words(text: np.ndarray, spans: np.ndarray, keys: np.ndarray, scratch: Scratch) -> list[Any]:
    """Return the words of each column as a dictionary array. Raises ArrowInvalid if not UTF-8."""
    import pyarrow as pa

    rows = keys.shape[1]
    slots = scratch.array("slots", 2 << max(2 * rows - 1, 1).bit_length(), np.uint64).reshape(-1, 2)
    slots[:] = 0
    firsts = scratch.array("firsts", 2 * rows, np.int32).reshape(rows, 2)
    columns = []
    for column, (of_column, its_keys) in enumerate(zip(spans, keys, strict=True)):
        codes = np.empty(rows, np.int32)
        words, total = kernels_of_cells.code_words(text, of_column, its_keys, column + 1, slots, codes, firsts)
        offsets, joined = np.empty(words + 1, np.int32), np.empty(total, np.uint8)
        kernels_of_cells.copy_words(text, firsts[:words], offsets, joined)
        dictionary = pa.StringArray.from_buffers(words, pa.py_buffer(offsets), pa.py_buffer(joined))
        dictionary.validate(full=True)
        columns.append(pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), dictionary, safe=False))
    return columns


def good_rows(head: bytes, names: list[str], delimiter: str, header: bool, multiline: bool) -> bytes:
    """Return the good rows of the first bytes of a text; bad rows are reported when they are read."""
    text = np.frombuffer(head, np.uint8)
    if header:
        text = text[_first_row(text, delimiter, multiline)[0] :]
    good = batch_of(text, len(text), names, dict.fromkeys(names, "string"), delimiter, False, 0, multiline)[1]
    rows = _records_of(text, delimiter) if multiline else _rows_of_lines(text, delimiter)
    ends = np.append(rows.starts[1:], len(text))
    wanted = np.isin(rows.first_lines, good)
    pairs = zip(rows.starts[wanted].tolist(), ends[wanted].tolist(), strict=True)
    return b"".join(text[begin:end].tobytes() for begin, end in pairs) if len(good) else text.tobytes()


def last_end(delimiter: str) -> Callable[[np.ndarray, int], int]:
    """Return the function that finds the end of the last whole row where quoted cells may contain line breaks."""

    def find(text: np.ndarray, filled: int) -> int:
        begin = 3 * (text[:3].tobytes() == UTF8_MARK)
        end = int(kernels.end_of_records(read_only(text[begin:filled]), ord(delimiter)))
        return begin + end if end else 0

    return find


def cut_lines(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (positions where lines begin, positions of their line feeds)."""
    ends = np.flatnonzero(text == 10)
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    return starts, ends


def line_array(text: np.ndarray, starts: np.ndarray, kind: Any) -> Any:
    """Return an Arrow array of the lines with their line feeds, a view of the text."""
    import pyarrow as pa

    offsets = np.append(starts, len(text)).astype(np.int32)
    return pa.Array.from_buffers(kind, len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def batch_from(table: Any) -> pa.RecordBatch:
    """Return a table as a single record batch."""
    import pyarrow as pa

    columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _first_row(text: np.ndarray, delimiter: str, multiline: bool) -> tuple[int, int]:
    """Return (position where the second row begins, number of lines of the first row)."""
    if multiline and _count(text, 34):
        end = int(kernels.end_of_record(read_only(text), ord(delimiter)))
        return end, _count(text[:end], 10)
    feeds = text == 10
    return (int(np.argmax(feeds)) + 1 if feeds.any() else len(text)), 1


def _records_of(text: np.ndarray, delimiter: str) -> _Rows:
    most = _count(text, 10) + 1
    starts, states, lines = (np.empty(most, np.int64) for _array in range(3))
    number = int(kernels.cut_records(read_only(text), ord(delimiter), starts, states, lines))
    return _Rows(starts[:number], states[:number], lines[:number], most - 1)


def _rows_of_lines(text: np.ndarray, delimiter: str) -> _Rows:
    import pyarrow as pa
    import pyarrow.compute as pc

    starts, ends = cut_lines(text)
    every = line_array(text, starts, pa.binary())
    states = np.zeros(len(starts), np.int64)
    states[pc.match_substring_regex(every, _open_quote(delimiter)).to_numpy(zero_copy_only=False)] = _OPEN
    lone = np.flatnonzero((text[:-1] == 13) & (text[1:] != 10))
    states[np.searchsorted(ends, lone)] = _BROKEN
    empty = ends == starts
    empty |= (ends == starts + 1) & (text[starts] == 13)
    states[empty] = _BLANK
    return _Rows(starts, states, np.arange(len(starts)), len(starts))


def _read_typed(
    text: np.ndarray, names: list[str], kinds: Mapping[str, CellKind], delimiter: str
) -> pa.RecordBatch | None:
    """Return all rows, or None if a row is bad."""
    import pyarrow as pa
    import pyarrow.compute as pc

    strings = pa.dictionary(pa.int32(), pa.string())
    types = {name: pa.float64() if kind == "number" else strings for name, kind in kinds.items()}
    try:
        batch = batch_from(read_csv(text, names, types, delimiter))
    except pa.ArrowInvalid:
        return None
    for column, kind in zip(batch.columns, kinds.values(), strict=True):
        if kind == "number" and pc.all(pc.is_finite(column)).as_py() is False:
            return None
    return batch


def read_csv(
    text: np.ndarray, names: Sequence[str], types: Mapping[str, Any], delimiter: str, ragged: Any = None
) -> Any:
    """Return the columns in `types` as a table. Blank lines are skipped; `ragged` is called with rows left out."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not len(text):  # an error in Arrow
        return pa.schema(list(types.items())).empty_table()
    if text[:3].tobytes() == UTF8_MARK:  # Arrow would remove these bytes from any block
        text = np.concatenate([np.array([10], np.uint8), text])
    return arrow_csv.read_csv(
        pa.BufferReader(pa.py_buffer(text)),
        # A single block of all bytes, and one more so that Arrow sees the end at once.
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=False, ignore_empty_lines=True, invalid_row_handler=ragged
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _lines_of_rows(text: np.ndarray, rows: int, delimiter: str) -> tuple[np.ndarray, int] | None:
    """Return (line of each row that Arrow found, number of lines), or None if a row is not a single line.

    Arrow takes a lone carriage return for a line end, and what follows an open quote for part of a cell.
    """
    feeds, returns = _count(text, 10), _count(text, 13)
    if rows == feeds and not returns:
        lines = np.arange(rows)
        last = text[_start_of_last(text) :]
    else:
        starts, ends = cut_lines(text)
        before = ends > starts
        before[before] = text[ends[before] - 1] == 13
        if np.count_nonzero(before) != returns:
            return None
        lines = np.flatnonzero(ends - before > starts)
        if len(lines) != rows:
            return None
        last = text[starts[lines[-1]] :] if rows else text[:0]
    # As many rows as lines that are not empty: no quote spans two lines.
    if _is_open(last.tobytes(), delimiter):
        return None
    return lines, feeds


def _lines_of_records(text: np.ndarray, rows: int, delimiter: str) -> tuple[np.ndarray, int] | None:
    """Return the same where quoted cells may contain line breaks."""
    found = _records_of(text, delimiter)
    lines = found.first_lines[found.states == _GOOD]
    if len(lines) != rows or (found.states > _BLANK).any():
        return None
    return lines, found.line_count


def _count(text: np.ndarray, byte: int) -> int:
    step = 1 << 16  # the comparisons stay in the cache
    return sum(int(np.count_nonzero(text[at : at + step] == byte)) for at in range(0, len(text), step))


def _start_of_last(text: np.ndarray) -> int:
    """Return the position where the last line begins."""
    step = 1 << 12
    for end in range(len(text) - 1, 0, -step):
        begin = max(end - step, 0)
        at = text[begin:end].tobytes().rfind(b"\n")
        if at >= 0:
            return begin + at + 1
    return 0


def _open_quote(delimiter: str) -> str:
    """Return a pattern of lines that end within a quote: whole cells, then a quoted cell without an end."""
    mark = f"\\x{ord(delimiter):02x}"
    rest = f'(?:[^"{mark}][^{mark}]*)?'
    quoted = '"(?:[^"]|"")*'
    return f'^(?:(?:{quoted}")?{rest}{mark})*{quoted}$'


def _is_open(line: bytes, delimiter: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if b'"' not in line:
        return False
    return bool(pc.match_substring_regex(pa.array([line], pa.binary()), _open_quote(delimiter))[0].as_py())


def _without_bad_rows(
    text: np.ndarray,
    rows: _Rows,
    names: list[str],
    kinds: Mapping[str, CellKind],
    delimiter: str,
    max_described: int,
) -> tuple[pa.RecordBatch, np.ndarray, int, list[BadRow], int]:
    """Return the result of `batch_of` for a text with bad rows, which are removed step by step."""
    import pyarrow as pa

    every, state = line_array(text, rows.starts, pa.binary()), rows.states
    cells = np.zeros(len(state), np.int64)

    lines, rest = _good_text(every, state)
    numbers, counts = _ragged(rest, names, delimiter)
    state[lines[numbers]] = _RAGGED
    cells[lines[numbers]] = counts

    lines, rest = _good_text(every, state)
    table = batch_from(read_csv(rest, names, dict.fromkeys(kinds, pa.binary()), delimiter))
    if table.num_rows != len(lines):  # never seen; protects from rows with wrong lines
        raise InputError("the rows cannot be separated; write one row a line, and quotes only around whole cells")
    columns = []
    for number, (column, kind) in enumerate(zip(table.columns, kinds.values(), strict=True)):
        numeric, wrong = _numbers_of(column) if kind == "number" else (column, not_utf8(column))
        columns.append(numeric)
        affected = lines[wrong]
        state[affected[state[affected] == _GOOD]] = _CELL + number

    good = state[lines] == _GOOD
    arrays = [column.filter(pa.array(good)) for column in columns]
    arrays = [
        array if kind == "number" else array.cast(pa.string()).dictionary_encode()
        for array, kind in zip(arrays, kinds.values(), strict=True)
    ]
    bad = np.flatnonzero(state > _BLANK)
    described = []
    after = np.append(rows.first_lines[1:], rows.line_count)
    for line in bad[:max_described].tolist():
        code, first, over = int(state[line]), int(rows.first_lines[line]), int(after[line] - rows.first_lines[line])
        if code < _CELL:
            described.append(BadRow(first, _problem_of_line(code, int(cells[line]), len(names), over)))
        else:
            name = list(kinds)[code - _CELL]
            cell = table.column(code - _CELL)[int(np.searchsorted(lines, line))].as_py()
            described.append(BadRow(first, _problem_of_cell(cell, name, kinds[name])))
    made = pa.RecordBatch.from_arrays(arrays, names=list(kinds))
    return made, rows.first_lines[lines[good]], rows.line_count, described, len(bad)


def _good_text(every: Any, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (numbers of the lines that are good so far, their text)."""
    import pyarrow as pa

    good = state == _GOOD
    taken = every.filter(pa.array(good))
    lines = np.flatnonzero(good)
    if not len(lines):
        return lines, np.empty(0, np.uint8)
    _, offsets, data = taken.buffers()
    bounds = np.frombuffer(offsets, np.int32)[taken.offset : taken.offset + len(taken) + 1]
    return lines, np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]


def _ragged(text: np.ndarray, names: list[str], delimiter: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (mask of rows with another number of cells than there are names, numbers of cells)."""
    import pyarrow as pa

    found: list[tuple[int, int]] = []

    def note(row: Any) -> str:
        found.append((row.number - 1, row.actual_columns))
        return "skip"

    # Arrow decodes the rows that it reports, and fails on invalid UTF-8. ASCII has the same number of cells.
    plain = np.where(text < 128, text, np.uint8(120))
    read_csv(plain, names, {names[0]: pa.binary()}, delimiter, note)
    both = np.array(found, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _numbers_of(column: Any) -> tuple[Any, np.ndarray]:
    """Return (cells as numbers, mask of cells that are not finite numbers). Others may be null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_number = pc.match_substring_regex(column, _NUMBER)
    words = pc.if_else(is_number, column, pa.scalar(None, pa.binary())).cast(pa.string())
    numbers = pc.ascii_ltrim(pc.ascii_trim(words, " \t"), "+").cast(pa.float64())
    fine = pc.fill_null(pc.is_finite(numbers), False).to_numpy(zero_copy_only=False)
    return numbers, np.flatnonzero(~(fine | column.is_null().to_numpy(zero_copy_only=False)))


def _problem_of_line(code: int, cells: int, names: int, over: int) -> str:
    """Return the problem of an open quote in a row that spans `over` lines."""
    span = f", over {over:,} lines" if over > 1 else ""
    if code == _BROKEN:
        return "a carriage return within the line; end lines with a line feed"
    if code == _OPEN and over > 1:
        return f"a quote that is never closed{span}; close it"
    if code == _OPEN:
        return f"a quote is still open where the line ends; {_OPEN_ADVICE}"
    return f"{cells} cell{'s' * (cells != 1)} instead of {names}{span}; quote cells that hold the delimiter"


def _problem_of_cell(cell: bytes, name: str, kind: CellKind) -> str:
    if kind == "string":
        return f"the value {cell[:40]!r} in column {shortened(name)!r} is not UTF-8 text; {TO_UTF8}"
    shown = cell[:40].decode("utf-8", "backslashreplace")
    advice = f"or give the column by {{categorical={shlex.quote(short(name))}}}"
    column = f"in column {shortened(name)!r}"
    if not cell:
        return f"quotes with nothing between them {column} are not a number; leave the quotes out, {advice}"
    infinite = re.match(_NUMBER, shown) or re.match(r"[ \t]*[+-]?(?:nan|inf)", shown, re.IGNORECASE)
    what = "a finite number" if infinite else "a number"
    return f"the value {literal(repr(shown))} {column} is not {what}; correct it, {advice}"
