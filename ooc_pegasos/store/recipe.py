"""Recipe: the map from a row of the input to a row of the store, kept in stores and models to score new files."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from ooc_pegasos.config import MOST_NAMES
from ooc_pegasos.option_texts import is_delimiter
from ooc_pegasos.util.typed_json import omitted_default

Kind = Literal["numeric", "categorical", "text", "dates", "entries"]
DecimalMark = Literal[".", ","]
DateOrder = Literal["ymd", "dmy", "mdy"]
Spelling = Literal["verbatim", "number", "plain number", "bool", "date", "time"]
Nulls = Literal["absent", "mark", "bad"]

MOST_TEXTS = 2**53
"""Numbers of texts are below it, and so exact in float64."""


@dataclass(frozen=True)
class Hashing:
    """Feature hashing to 2^bits buckets: murmur3 of the name modulo 2^bits; signed: the sign bit gives the sign."""

    bits: int = 22
    signed: bool = True
    dictionary: int = 0
    """If not 0, the number of names in the dictionary, which replaces hashing; other names are ignored."""

    @property
    def buckets(self) -> int:
        """The number of buckets, or of names in the dictionary."""
        return self.dictionary or 1 << self.bits


@dataclass(frozen=True)
class Tokens:
    """Tokenisation: words of two or more letters, digits or _, or characters; tokens or their n-grams are counted."""

    lowercase: bool = True
    characters: bool = False
    """Tokens are characters instead of words."""
    least: int = 1
    most: int = 1
    """n-grams of lengths from `least` to `most` are counted."""
    texts: int = 0
    """If not 0, the number of documents; counts are multiplied by ln((1 + texts) / (1 + document frequency)) + 1."""


@dataclass(frozen=True)
class Column:
    """A column of a table that becomes features.

    numeric: the feature `name` with the number as value; categorical: `name=value`, 1; text: its tokens, counted;
    dates: `name:weekday=Mon`, `name:month=Jan`, `name:hour=13`, and `name:years`, the years since 2020;
    entries: a list of indices, or of indices and values, or a map, used as they are.
    """

    name: str
    kind: Kind
    scale: float = 1.0
    """Factor applied to numbers as the last step."""
    shift: float = omitted_default(0.0)
    """Subtracted from numbers before they are multiplied by `scale`; a null has the value `shift`."""
    decimal_mark: Literal[".", ","] | None = omitted_default(None)
    """Numbers are amounts with this decimal mark, like $1,234.56 or 1.234,56 %; None: plain numbers."""
    date_order: Literal["ymd", "dmy", "mdy"] = omitted_default("ymd")
    """Order of year, month and day in dates that are texts."""

    spelling: Literal["verbatim", "number", "plain number", "bool", "date", "time"] = omitted_default("verbatim")
    """The values of categories, by which texts are spelled; plain number: a text in which only `.0` is left out."""

    @property
    def use(self) -> str:
        """The kind, and "amount" for numbers that are amounts: what the type of the column has to suit."""
        return self.kind if self.decimal_mark is None else "amount"

    @property
    def is_scaled(self) -> bool:
        """True if numbers are not used as they are."""
        return self.scale != 1 or self.shift != 0


@dataclass(frozen=True)
class Table:
    """Columns of a table and their use."""

    columns: list[Column]
    label: str | None
    label_is_null: bool = omitted_default(False)
    """The class of a row says if its label is missing: "is null" or "is not null"."""
    weight: str | None = None
    id: str | None = None
    nulls: Nulls = "absent"
    """A null: no entry; or a feature `name=null` with value 1; or a bad row."""
    log1p: bool = False
    """Numbers x become sign(x) log(1 + |x|)."""
    clip: float | None = None
    """Numbers are clipped to at most this size, after log1p."""
    scaling: Literal["none", "sample", "all"] = omitted_default("none")
    """Rows that determined the scales of columns; sample: the first rows, by which numbers may be left as they are."""
    hashing: Hashing = field(default_factory=Hashing)
    tokens: Tokens = field(default_factory=Tokens)
    header: bool = True
    """Delimited text: True if the first line names the columns; else the names are 0, 1, ..."""
    delimiter: str = ","
    multiline: bool = False
    """True if quoted cells may contain line breaks."""
    crosses: tuple[tuple[str, ...], ...] = omitted_default(())
    """Categorical columns of which each combination of values is a feature `A*B=x*y`."""


def named_by(patterns: Iterable[str], columns: Collection[str]) -> list[str]:
    """Return the columns that match patterns; a pattern equal to a column's name matches that column alone."""
    plain = set(patterns).intersection(columns)
    others = set(patterns) - plain
    return [one for one in columns if one in plain or any(fnmatch.fnmatchcase(one, pattern) for pattern in others)]


def problem_of_hashing(hashing: Hashing) -> str | None:
    """Return the value that is out of range, or None."""
    if not 0 <= hashing.dictionary <= MOST_NAMES:
        return f"a dictionary of {hashing.dictionary} names"
    return None if 1 <= hashing.bits <= 31 else f"{hashing.bits} bits of hash, not 1 to 31"


def problem_of_tokens(tokens: Tokens) -> str | None:
    """Return the value that is out of range, or None."""
    if not 1 <= tokens.least <= tokens.most <= 10:
        return "lengths of n-grams that cannot be"
    return None if 0 <= tokens.texts < MOST_TEXTS else f"{tokens.texts} texts"


def problem_of_table(table: Table) -> str | None:
    """Return a contradiction, or None."""
    if not table.columns:
        return "a table without columns"
    if len({column.name for column in table.columns}) != len(table.columns):
        return "a column named twice"
    if not all(math.isfinite(column.scale) and column.scale > 0 for column in table.columns):
        return "a scale that is no positive number"
    if not all(math.isfinite(column.shift) for column in table.columns):
        return "a shift that is not finite"
    kinds = {column.name: column.kind for column in table.columns}
    for cross in table.crosses:
        if len(set(cross)) < max(len(cross), 2) or any(kinds.get(name) != "categorical" for name in cross):
            return f"a cross of {', '.join(cross)}, which are not different categorical columns"
    if table.clip is not None and not 0 < table.clip < math.inf:
        return "a --clip that is no positive number"
    if not is_delimiter(table.delimiter):
        return "a delimiter that is not one character of ASCII"
    return problem_of_tokens(table.tokens) or problem_of_hashing(table.hashing)
