"""Advice on columns of a table that were probably meant otherwise, from its first rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import tables
from ooc_pegasos.readers.columns_plan import WIDE
from ooc_pegasos.store.recipe import Column, Table

_BLOCK = 1 << 20
"""Bytes of text that are read."""
_LEAST_ROWS = 100
"""Rows below which columns are too short to judge."""
_NEARLY_ALL = 0.9
"""Share of different values from which on a value says nothing about other rows."""
_WORDS = 4.0
"""Mean number of words of a cell from which on a category is probably a text."""
_LARGE = 1000
"""Size of whole numbers from which on they may be numbers of things."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d?[./]\d\d?[./]\d{4}.*")
_AMOUNT = re.compile(r"[-+]?[$€£¥]?\s?\d{1,3}([.,' ]\d{3})*([.,]\d+)?\s?[$€£¥%]?")


def advise(names: Sequence[str], table: Table, memory: int, note: Callable[[str], None]) -> None:
    """Note columns whose values nearly all differ, or are long texts, times or amounts, with the option to use."""
    if len(table.columns) > WIDE:  # Arrow takes much memory for each column
        return
    settings = tables.Settings(table, stop_at_bad=False, with_labels=False)
    try:
        reader = tables.TablesReader(names[:1], settings, _BLOCK, memory)
        task = next(iter(reader.tasks()), None)
        batch = None if task is None else reader.sources[0].batch(task).batch
    except InputError:
        return  # the conversion will say what is wrong
    if batch is None or batch.num_rows < _LEAST_ROWS:
        return
    for column in table.columns:
        for advice in _advice_on(column, batch.column(column.name)):
            note(f"column '{column.name}': {advice}")


def _advice_on(column: Column, array: Any) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    kind = array.type
    if column.kind not in ("numeric", "categorical") or pa.types.is_nested(kind):
        return
    rows = len(array) - array.null_count
    is_unique = rows >= _LEAST_ROWS and pc.count_distinct(array).as_py() > _NEARLY_ALL * rows
    if column.kind == "numeric":
        numbers = np.abs(array.cast(pa.float64(), safe=False).drop_null().to_numpy(zero_copy_only=False))
        if is_unique and (numbers == np.floor(numbers)).all() and numbers.max() > _LARGE:
            yield f"nearly every row has another whole number; if it is an id, give --id {column.name}, or leave it out"
        return
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return
    some = [word for word in array.slice(0, 1000).to_pylist() if word]
    if not some:
        return
    words = float(np.mean([len(word.split()) for word in some]))
    if all(_TIME.fullmatch(word) for word in some):
        yield "times are taken as categories; give the day of the week, the hour or the age as columns, or leave it out"
    elif all(_AMOUNT.fullmatch(word) for word in some) and is_unique:
        yield "amounts are taken as categories, because they are not written as plain numbers; write them like 1234.56"
    elif words >= _WORDS:
        yield f"long texts are taken as categories; for a feature for each word give --text {column.name}"
    elif is_unique:
        yield f"nearly every row has another value; if it is an id, give --id {column.name}, or leave it out"
