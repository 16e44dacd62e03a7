"""Names of columns, features and classes in messages and tables: shortened in the middle, and only some of many."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from itertools import accumulate, islice

from ooc_pegasos.util.escaping import printable

WIDTH = 40
"""Columns of a terminal that a name takes at most."""
_TOTAL = 240
"""Columns of a terminal that a list of names takes at most."""


def width_of(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_width_of_character, text))


def _width_of_character(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def short(name: object, width: int = WIDTH) -> str:
    """Return a name on one line, without its middle if it is wider than `width`; control characters are escaped."""
    return printable(shortened(str(name), width))


def shortened(text: str, width: int = WIDTH) -> str:
    """Return a text without its middle if it is wider than `width`."""
    if width_of(text) <= width:
        return text
    half, rest = divmod(width - 3, 2)
    return f"{_beginning(text, half + rest)}...{_beginning(text[::-1], half)[::-1]}"


def _beginning(text: str, width: int) -> str:
    used = 0
    for at, character in enumerate(text):
        used += _width_of_character(character)
        if used > width:
            return text[:at]
    return text


def listed(names: Collection[object], most: int = 8, width: int = WIDTH) -> str:
    """Return the first names, as many as are short enough for a message, and how many more there are."""
    first = [short(name, width) for name in islice(names, most)]
    ends = accumulate(width_of(name) + 2 for name in first)
    shown = first[: max(sum(end <= _TOTAL for end in ends), 1)]
    return ", ".join(shown) + (f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else "")


def padded(text: str, width: int) -> str:
    """Return a text with blanks at its end up to a width."""
    return text + " " * (width - width_of(text))
