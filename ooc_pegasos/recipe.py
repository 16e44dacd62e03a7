"""How a row of the input becomes a row of the store. It goes from store to model, to append and to score new files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["numeric", "categorical", "text", "entries"]
Nulls = Literal["absent", "mark", "bad"]


@dataclass(frozen=True)
class Hashing:
    """Names of features to places: murmur3 of the name modulo 2^bits; signed: its sign bit is that of the value."""

    bits: int = 22
    signed: bool = True


@dataclass(frozen=True)
class Tokens:
    """How text falls into tokens, each counted: words of two or more letters, digits or _, in lower case."""

    lowercase: bool = True
    characters: bool = False
    """Tokens are characters instead of words."""
    least: int = 1
    most: int = 1
    """n-grams from `least` to `most` are counted."""


@dataclass(frozen=True)
class Column:
    """A column of a table that counts.

    numeric: the feature `name` with the number as value; categorical: `name=value`, 1; text: its tokens, counted;
    entries: a list of indices, or of indices and values, or a map, which stand as they are.
    """

    name: str
    kind: Kind
    scale: float = 1.0
    """What numbers are multiplied with, last of all."""


@dataclass(frozen=True)
class Table:
    """Which columns of a table count, and for what."""

    columns: list[Column]
    label: str | None
    weight: str | None = None
    id: str | None = None
    nulls: Nulls = "absent"
    """A null: no entry; or a feature `name=null` with value 1; or a bad row."""
    log1p: bool = False
    """Numbers x become sign(x) log(1 + |x|)."""
    clip: float | None = None
    """Numbers are cut to at most this size, after that."""
    hashing: Hashing = field(default_factory=Hashing)
    tokens: Tokens = field(default_factory=Tokens)
    header: bool = True
    """Of delimited text: whether the first line names the columns; else they are 0, 1, ..."""
    delimiter: str = ","


def problem_of_hashing(hashing: Hashing) -> str | None:
    """What is out of range, if anything."""
    return None if 1 <= hashing.bits <= 31 else f"{hashing.bits} bits of hash, not 1 to 31"


def problem_of_table(table: Table) -> str | None:
    """What contradicts itself, if anything."""
    if not table.columns:
        return "a table without columns"
    if len({column.name for column in table.columns}) != len(table.columns):
        return "a column named twice"
    if not all(math.isfinite(column.scale) and column.scale > 0 for column in table.columns):
        return "a scale that is no positive number"
    if table.clip is not None and not 0 < table.clip < math.inf:
        return "a --clip that is no positive number"
    if len(table.delimiter) != 1 or not 1 <= table.tokens.least <= table.tokens.most <= 10:
        return "a delimiter or lengths of n-grams that cannot be"
    return problem_of_hashing(table.hashing)
