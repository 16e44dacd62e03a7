"""How a row of the input becomes a row of the store. It goes from store to model, to append and to score new files."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from ooc_pegasos.config import MOST_NAMES, is_delimiter

Kind = Literal["numeric", "categorical", "text", "entries"]
Nulls = Literal["absent", "mark", "bad"]


@dataclass(frozen=True)
class Hashing:
    """Names of features to places: murmur3 of the name modulo 2^bits; signed: its sign bit is that of the value."""

    bits: int = 22
    signed: bool = True
    dictionary: int = 0
    """If not 0, so many names have a place of their own, in the vocabulary; nothing is hashed, others do not count."""

    @property
    def places(self) -> int:
        """How many there are."""
        return self.dictionary or 1 << self.bits


@dataclass(frozen=True)
class Tokens:
    """How text falls into tokens, each counted: words of two or more letters, digits or _, in lower case."""

    lowercase: bool = True
    characters: bool = False
    """Tokens are characters instead of words."""
    least: int = 1
    most: int = 1
    """n-grams from `least` to `most` are counted."""
    texts: int = 0
    """If not 0, counts are multiplied by ln((1 + texts) / (1 + those that have the n-gram)) + 1; see the vocabulary."""


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
    multiline: bool = False
    """Whether line breaks may stand in quotes."""


def named_by(patterns: Iterable[str], columns: Collection[str]) -> list[str]:
    """The columns that patterns name: a column's name as it stands is that column alone, whatever letters are in it."""
    plain = set(patterns).intersection(columns)
    others = set(patterns) - plain
    return [one for one in columns if one in plain or any(fnmatch.fnmatchcase(one, pattern) for pattern in others)]


def problem_of_hashing(hashing: Hashing) -> str | None:
    """What is out of range, if anything."""
    if not 0 <= hashing.dictionary <= MOST_NAMES:
        return f"a dictionary of {hashing.dictionary} names"
    return None if 1 <= hashing.bits <= 31 else f"{hashing.bits} bits of hash, not 1 to 31"


def problem_of_tokens(tokens: Tokens) -> str | None:
    """What is out of range, if anything."""
    if not 1 <= tokens.least <= tokens.most <= 10:
        return "lengths of n-grams that cannot be"
    return "a negative number of texts" if tokens.texts < 0 else None


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
    if not is_delimiter(table.delimiter):
        return "a delimiter that is not one character of ASCII"
    return problem_of_tokens(table.tokens) or problem_of_hashing(table.hashing)
