"""Spelling of categories: in texts, numbers, booleans and dates can be written in several ways.

A recipe records what the values of a column are. Texts that mean the same value then become the category that a column
of that type has: `3.0` of a CSV file is the 3 of a Parquet file.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ooc_pegasos.readers.arrow_strings import as_strings, is_list
from ooc_pegasos.store.recipe import Column, Spelling

_SPACE = "[ \t]*"
_FRACTION = "(?:[0-9]+[.][0-9]*|[.][0-9]+)"
_EXPONENT = "[eE][+-]?[0-9]+"
_FRACTIONS: dict[Spelling, str] = {
    "number": rf"^{_SPACE}[+-]?(?:{_FRACTION}(?:{_EXPONENT})?|[0-9]+{_EXPONENT}){_SPACE}$",
    "plain number": rf"^-?(?:0|[1-9][0-9]*)(?:[.]0+|(?:[.][0-9]+)?{_EXPONENT})$",
}
"""Texts of numbers that are parsed and written again."""
_DAY = "([0-9]{4}-[0-9]{2}-[0-9]{2})"
_TIME = "([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]*)?)?)"
_ZONE = "(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
_REPLACED: dict[Spelling, tuple[tuple[str, str], ...]] = {
    "number": ((rf"^{_SPACE}([+-]?)0*([0-9]+){_SPACE}$", r"\1\2"), (r"^(?:[+]|-(0$))(.*)$", r"\1\2")),
    "date": ((rf"^{_DAY}[T ]00:00(?::00(?:[.]0*)?)?(?:Z|[+-]00:?00)?$", r"\1"),),
    "time": (
        (rf"^{_DAY}$", r"\1 00:00:00"),
        (rf"^{_DAY}[T ]{_TIME}({_ZONE})$", r"\1 \2\3"),
        (r"^(.{10} .{5})(Z|[+-].*)?$", r"\1:00\2"),
        (r"^(.{10} .{8})[.]0*((?:Z|[+-].*)?)$", r"\1\2"),
        (r"^(.{10} .{8}[.][0-9]*[1-9])0+((?:Z|[+-].*)?)$", r"\1\2"),
        (r"^(.{10} .*[+-][0-9]{2}):([0-9]{2})$", r"\1\2"),
        (r"^(.{10} .*)[+-]0000$", r"\1Z"),
    ),
}
_TEXTS: dict[Spelling, str] = {
    "bool": "^(?i:true|false)$",
    "plain number": rf"^-?(?:0|[1-9][0-9]*)(?:[.]0+|[.][0-9]*[1-9])?(?:{_EXPONENT})?$",
    "date": rf"^{_DAY}$",
    "time": rf"^{_DAY}(?:[T ]{_TIME}{_ZONE})?$",
}
"""Texts of which all cells in the beginning of a file have to be."""


def spelling_by_type(kind: Any) -> Spelling:
    """Return the spelling of the categories in a column of some type."""
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(inner):
        return "bool"
    if pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_decimal(inner):
        return "number"
    if pa.types.is_date(inner):
        return "date"
    return "time" if pa.types.is_timestamp(inner) else "verbatim"


def spelling_of_texts(words: Collection[str], *, may_be_numbers: bool) -> Spelling:
    """Return the spelling of categories that are texts; `03` and `1.10` are no plain numbers, but may be codes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    distinct = pa.array(sorted(set(words)), pa.string())
    for spelling, pattern in _TEXTS.items():
        is_candidate = may_be_numbers or spelling in ("date", "time")
        if is_candidate and len(distinct) and pc.all(pc.match_substring_regex(distinct, pattern)).as_py():
            return spelling
    return "verbatim"


def needs_spelling(column: Column, kind: Any) -> bool:
    """True if values of some type can be written otherwise than the categories of a column."""
    import pyarrow as pa

    if column.spelling == "verbatim" or is_list(kind):
        return False
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return spelling_by_type(inner) not in ("bool", "number")


def category_words(column: Column, array: Any) -> Any:
    """Return the values of a column as strings, as its categories are written; nulls stay."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = as_strings(array)
    if not needs_spelling(column, array.type):
        return words
    spelling = column.spelling
    if spelling == "bool":
        return pc.if_else(pc.match_substring_regex(words, _TEXTS["bool"]), pc.ascii_lower(words), words)
    for pattern, replacement in _REPLACED.get(spelling, ()):
        words = pc.replace_substring_regex(words, pattern, replacement)
    if spelling in _FRACTIONS:
        parsed = pc.match_substring_regex(words, _FRACTIONS[spelling])
        numbers = pc.if_else(parsed, pc.ascii_ltrim(pc.ascii_trim(words, " \t"), "+"), pa.scalar(None, words.type))
        words = pc.if_else(parsed, as_strings(numbers.cast(pa.float64())).cast(words.type), words)
    return words
