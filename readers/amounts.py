"""Numbers written as amounts: with currency or percent signs, thousands separators, or a decimal comma."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_pegasos.readers.arrow_strings import as_strings
from ooc_pegasos.store.recipe import DecimalMark

_SPACES = " \u00a0\u202f"
_SIGNS = "$€£¥₹%"
_SIGN = f"[{_SPACES}]*[{_SIGNS}]?[{_SPACES}]*"


def _pattern(thousands: str, mark: str) -> str:
    digits = rf"(?:[0-9]{{1,3}}(?:[{thousands}'{_SPACES}][0-9]{{3}})+|[0-9]+)(?:{mark}[0-9]+)?"
    return f"^(?:{_SIGN}[-+]?|[-+]{_SIGN}){digits}{_SIGN}$"


_PATTERNS: dict[str, str] = {".": _pattern(",", "[.]"), ",": _pattern(".", ",")}
_PLAIN = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def decimal_mark_of(words: Sequence[str]) -> DecimalMark | None:
    """Return the decimal mark of amounts, or None unless all words are amounts of one currency, not all plain numbers.

    `1,234` has a thousands separator if all commas stand before three digits.
    """
    if not words or all(_PLAIN.fullmatch(word.strip()) for word in words):
        return None
    if len({sign for word in words for sign in word if sign in _SIGNS}) > 1:
        return None
    marks: tuple[DecimalMark, ...] = (".", ",")
    return next((mark for mark in marks if all(re.match(_PATTERNS[mark], word) for word in words)), None)


def amounts_of(array: Any, mark: DecimalMark) -> Any:
    """Return a column of amounts as float64: null for nulls and empty cells, NaN for what is not an amount."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        words = amounts_of(array.dictionary, mark)
        return words.take(array.indices)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return array.cast(pa.float64(), safe=False)
    words = as_strings(array)
    fits = pc.match_substring_regex(words, _PATTERNS[mark])
    digits = pc.replace_substring_regex(words, f"[^0-9{mark}+-]", "")
    digits = pc.replace_substring(digits, ",", ".") if mark == "," else digits
    there = pc.and_(pc.is_valid(words), pc.not_equal(words, ""))
    numbers = pc.if_else(fits, digits, pa.scalar(None, digits.type)).cast(pa.float64())
    return pc.if_else(there, pc.fill_null(numbers, float(np.nan)), pa.scalar(None, pa.float64()))
