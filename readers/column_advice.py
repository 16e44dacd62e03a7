"""Advice on columns of a table that were probably meant otherwise, from its first rows."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import columns_plan, tables
from ooc_pegasos.readers.amounts import amounts_of, decimal_mark_of
from ooc_pegasos.readers.columns_plan import WIDE
from ooc_pegasos.readers.dates import date_order_of
from ooc_pegasos.readers.spelling import spelling_of_texts
from ooc_pegasos.readers.vectorize import null_labels
from ooc_pegasos.store.recipe import Column, Table
from ooc_pegasos.util.short_names import short

_BLOCK = 1 << 20
"""Bytes of text that are read."""
_LEAST_ROWS = 100
"""Rows below which columns are too short to judge."""
_NEARLY_ALL = 0.9
"""Share of different values from which on a value says nothing about other rows."""
_WORDS = 4.0
"""Mean number of words of a cell from which on a category is probably a text."""
_FEW_AMOUNTS = 20
"""Cells below which amounts may be categories by chance."""
_REVEALING, _FEW_OF_CLASS = 0.999, 10
"""Area under the curve of a column from which on it probably holds the label, and rows of a class that show it."""
_LARGE = 1000
"""Size of whole numbers from which on they may be numbers of things."""
_AMOUNT = re.compile(r"[-+]?[$€£¥]?\s?\d{1,3}([.,' ]\d{3})*([.,]\d+)?\s?[$€£¥%]?")


class FirstRows:
    """The first rows of a table, with numbers that may be amounts as they are written."""

    def __init__(self, names: Sequence[str], table: Table, memory: int) -> None:
        self._batch: Any = None
        self._file_type = columns_plan.file_type_of(names[0]) or "delimited"
        if len(table.columns) > WIDE:  # Arrow takes much memory for each column
            return
        try:
            known = columns_plan.schema_of(names[0], table, memory)
            columns = [_as_written(column, known.get(column.name)) for column in table.columns]
            settings = tables.Settings(dataclasses.replace(table, columns=columns), stop_at_bad=False)
            reader = tables.TablesReader(names[:1], settings, _BLOCK, memory)
            task = next(iter(reader.tasks()), None)
            self._batch = None if task is None else reader.sources[0].batch(task).batch
        except InputError:
            return  # the conversion will say what is wrong

    def with_notations(self, table: Table, *, is_named: bool, note: Callable[[str], None]) -> Table:
        """Return the table with the notation of dates, and of numbers that are written as amounts.

        If columns are named by options, those of categories stay categories.
        """
        if self._batch is None:
            return table
        columns = [self._with_notation(column, is_named, note) for column in table.columns]
        if self._file_type in ("delimited", "jsonlines"):
            columns = [self._with_spelling(column) for column in columns]
        return dataclasses.replace(table, columns=columns)

    def _with_spelling(self, column: Column) -> Column:
        """Return a column of categories with the spelling of its texts."""
        if column.kind != "categorical" or column.spelling != "verbatim":
            return column
        words = _words_of(self._batch.column(column.name))
        spelling = spelling_of_texts(words, may_be_numbers=self._file_type == "delimited")
        return dataclasses.replace(column, spelling=spelling)

    def _with_notation(self, column: Column, is_named: bool, note: Callable[[str], None]) -> Column:
        words = _words_of(self._batch.column(column.name))
        if not words or (column.kind == "categorical" and is_named):
            return column
        if column.kind == "dates":
            order = date_order_of(words)
            if order is None:
                raise InputError(
                    f"column '{short(column.name)}': {words[0]!r} and other values are not all dates like 2024-12-31, "
                    "31.12.2024 or 12/31/2024; leave out {dates=" + column.name + "}"
                )
            if order != "ymd":
                first, example = {"dmy": ("day", "31.12.2024"), "mdy": ("month", "12/31/2024")}[order]
                note(f"column '{short(column.name)}': dates are read with the {first} first, like {example}")
            return dataclasses.replace(column, date_order=order)
        mark = decimal_mark_of(words) if column.kind in ("numeric", "categorical") else None
        if mark is None or (column.kind == "categorical" and len(words) < _FEW_AMOUNTS):
            return column
        what = "with a decimal comma" if mark == "," else "with a decimal point"
        note(f"column '{short(column.name)}': amounts like {words[0]!r} are read as numbers, {what}")
        return dataclasses.replace(column, kind="numeric", decimal_mark=mark)

    def advise(self, table: Table, note: Callable[[str], None]) -> None:
        """Note columns whose values nearly all differ, or are long texts, times or amounts, with the option to use."""
        if self._batch is None or self._batch.num_rows < _LEAST_ROWS:
            return
        labels = self._batch.column(str(table.label))
        is_positive = _two_classes(null_labels(labels) if table.label_is_null else labels)
        for column in table.columns:
            array = self._batch.column(column.name)
            found = list(_advice_on(column, array))
            if is_positive is not None and not found and _reveals(column, array, is_positive):
                found = [
                    "it alone separates the labels of the first rows; if it is not known at the time of a prediction, "
                    f"--ignore {_word(column)}"
                ]
            for advice in found:
                note(f"column '{short(column.name)}': {advice}")


def _two_classes(labels: Any) -> np.ndarray | None:
    """Return a mask of the rows of one of two classes; None for other labels, or few rows of a class."""
    import pyarrow as pa

    encoded = labels if pa.types.is_dictionary(labels.type) else labels.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    counts = np.bincount(codes[codes >= 0])
    used = np.flatnonzero(counts)
    if len(used) != 2 or counts[used].min() < _FEW_OF_CLASS or (codes < 0).any():
        return None
    found: np.ndarray = codes == used[0]
    return found


def _reveals(column: Column, array: Any, is_positive: np.ndarray) -> bool:
    """True if a column alone ranks nearly all rows of one class above those of the other."""
    import pyarrow as pa

    if pa.types.is_nested(array.type) or column.kind in ("text", "dates", "entries"):
        return False
    if column.decimal_mark is not None:
        array = amounts_of(array, column.decimal_mark)
    if column.kind == "numeric":
        numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        values = np.where(np.isnan(numbers), -np.inf, numbers)
    else:
        encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        counts = np.bincount(codes)
        if len(codes) < _FEW_OF_CLASS * np.count_nonzero(counts):  # rare categories separate rows by chance
            return False
        values = (np.bincount(codes, is_positive, len(counts)) / np.maximum(counts, 1))[codes]
    area = _area_under_curve(values, is_positive)
    return max(area, 1 - area) > _REVEALING


def _area_under_curve(values: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the share of pairs of both classes in which the positive row has the larger value."""
    _distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[codes]
    positive = int(is_positive.sum())
    pairs = positive * (len(values) - positive)
    return float((ranks[is_positive].sum() - positive * (positive + 1) / 2) / pairs)


def _as_written(column: Column, kind: Any) -> Column:
    """Return a column of numbers as categories if its cells are texts."""
    import pyarrow as pa

    is_text = kind is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    return dataclasses.replace(column, kind="categorical") if column.kind == "numeric" and is_text else column


def _words_of(array: Any) -> list[str]:
    """Return the cells that are not empty; nothing for columns of other types than text."""
    import pyarrow as pa

    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return []
    return [word for word in array.to_pylist() if word]


def _word(column: Column) -> str:
    """Return the name of a column as a word of a command."""
    return shlex.quote(short(column.name))


def _advice_on(column: Column, array: Any) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    kind = array.type
    if column.use not in ("numeric", "categorical") or pa.types.is_nested(kind):
        return
    rows = len(array) - array.null_count
    advice = f"if it is an id, give --id {_word(column)}, else --ignore {_word(column)}"
    is_unique = rows >= _LEAST_ROWS and pc.count_distinct(array).as_py() > _NEARLY_ALL * rows
    if column.kind == "numeric":
        numbers = np.abs(array.cast(pa.float64(), safe=False).drop_null().to_numpy(zero_copy_only=False))
        if is_unique and (numbers == np.floor(numbers)).all() and numbers.max() > _LARGE:
            yield f"nearly every row has another whole number; {advice}"
        return
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return
    some = [word for word in array.slice(0, 1000).to_pylist() if word]
    if not some:
        return
    words = float(np.mean([len(word.split()) for word in some]))
    if date_order_of(some) is not None:
        yield f"times are taken as categories; for the day of the week, the hour and so on give --dates {_word(column)}"
    elif all(_AMOUNT.fullmatch(word) for word in some) and is_unique:
        yield "amounts are taken as categories, because they are not all written alike; write them like 1234.56"
    elif words >= _WORDS:
        yield (
            f"long texts are taken as categories; for a feature for each word give --text {_word(column)}, and name "
            "the other columns that count by --numeric and --categorical"
        )
    elif is_unique:
        yield f"nearly every row has another value; {advice}"
