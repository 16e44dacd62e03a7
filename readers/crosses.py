r"""Crosses: for each combination of the values of some categorical columns a feature, like `town*month=Oslo*Jan`.

In names and values a `\` and a `*`, and in names of columns a `=`, have a `\` before them, so that different
combinations have different names. A row in which one of the columns is null has no feature of the cross.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import columns_plan
from ooc_pegasos.readers.arrow_strings import is_list, without_infinite
from ooc_pegasos.readers.spelling import category_words
from ooc_pegasos.store.recipe import Column, Table


def columns_in(given: str) -> tuple[str, ...]:
    """Return the columns that a text like `A,B` names; a name with a comma is in quotes."""
    return tuple(name.strip() for name in next(csv.reader([given], skipinitialspace=True), []))


def prefix_of(columns: Sequence[str]) -> str:
    """Return the part of the names of features in front of the values."""
    names = (name.replace("\\", r"\\").replace("*", r"\*").replace("=", r"\=") for name in columns)
    return "*".join(names) + "="


def crossed(batch: Any, columns: Sequence[Column]) -> tuple[np.ndarray, Any]:
    """Return (number of the combination of each row, or -1; the values of each combination, joined)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codes, words = _coded(columns[0], batch.column(columns[0].name))
    for column in columns[1:]:
        others, other_words = _coded(column, batch.column(column.name))
        present = (codes >= 0) & (others >= 0)
        pairs, which = np.unique(codes[present] * len(other_words) + others[present], return_inverse=True)
        codes = np.full(len(codes), -1, np.int64)
        codes[present] = which
        first, second = np.divmod(pairs, max(len(other_words), 1))
        mark = pa.scalar("*", words.type)
        words = pc.binary_join_element_wise(words.take(pa.array(first)), other_words.take(pa.array(second)), mark)
    return codes, words


def strings_of_cross(batch: Any, columns: Sequence[Column]) -> Any:
    """Return the joined values of each row, with nulls."""
    import pyarrow as pa

    codes, words = crossed(batch, columns)
    return words.take(pa.array(codes, mask=codes < 0))


def _coded(column: Column, given: Any) -> tuple[np.ndarray, Any]:
    """Return (number of the value of each row, or -1; the values that occur, each as a part of a name)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_list(given.type):
        raise InputError(f"column '{column.name}' has lists, and is part of a cross; write one category a row")
    array, _rows = without_infinite(given)  # rows that are bad anyway
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    every = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    used, codes = np.unique(every[every >= 0], return_inverse=True)
    found = np.full(len(every), -1, np.int64)
    found[every >= 0] = codes
    words = category_words(column, coded.dictionary.take(pa.array(used))).cast(pa.large_string())
    return found, pc.replace_substring_regex(words, r"([\\*])", r"\\\1")


def with_crosses(table: Table, given: Sequence[str], where: str, known: Callable[[], dict[str, Any]]) -> Table:
    """Return the table with crosses, as options name them; `known` returns the types of all columns of the file."""
    if not given:
        return table
    kinds, used = known(), {column.name: column for column in table.columns}
    crosses: list[tuple[str, ...]] = []
    for option in given:
        names = columns_in(option)
        if len(names) < 2 or not all(names):
            raise UsageError(f"{{cross={option}}}: a cross has two columns or more; name them like A,B")
        if len(set(names)) < len(names):
            raise UsageError(f"{{cross={option}}}: a column is named twice; name different ones")
        if set(names) in [set(others) for others in crosses]:
            raise UsageError(f"{{cross={option}}}: these columns are crossed already; leave it out")
        missing = [name for name in names if name not in kinds]
        if missing:
            raise UsageError(f"{where}: {{cross={option}}}: {columns_plan.difference(missing, kinds)}")
        for name in names:
            if problem := _problem_of(name, used.get(name), kinds[name], table):
                raise UsageError(f"{where}: {{cross={option}}}: column '{name}' {problem}")
        if prefix_of(names)[:-1] in kinds:
            raise UsageError(f"{where}: {{cross={option}}}: a column has the name {prefix_of(names)[:-1]}; rename it")
        crosses.append(names)
    return replace(table, crosses=tuple(crosses))


def _problem_of(name: str, column: Column | None, kind: Any, table: Table) -> str | None:
    """Return why a column cannot be crossed, with advice, or None."""
    if column is None:
        if name in (table.label, table.weight, table.id):
            return "is the label, the weight or the id; cross others"
        return f"is not used; name it with {{categorical={name}}}, or cross others"
    if column.kind == "numeric":
        advice = (
            f"to take each number as a category, name it with {{categorical={name}}}, and the other columns that count"
        )
        return f"is one of numbers, and crosses are of categories; {advice}"
    if column.kind == "entries":
        return "has indices of its own, which cannot be crossed; leave it out"
    if column.kind != "categorical":
        return f"is used as {column.kind}, and crosses are of categories; cross others"
    return "has several categories in a row; cross columns with one" if is_list(kind) else None
