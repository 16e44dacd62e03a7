"""Control characters shown as escapes, so that a name from a file cannot send commands to a terminal."""

from __future__ import annotations

_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that reverse the direction of the text after them."""
_LINE_SEPARATORS = (0x2028, 0x2029)
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), *_BIDIRECTIONAL, *_LINE_SEPARATORS)
_IN_LINE = {code: ascii(chr(code))[1:-1] for code in _CONTROLS if chr(code) != "\t"}
_IN_TEXT = {code: escape for code, escape in _IN_LINE.items() if chr(code) != "\n"}


def escaped(text: str) -> str:
    """Return text of several lines with its control characters escaped, except line breaks and tabs."""
    return text.translate(_IN_TEXT)


def printable(name: str) -> str:
    """Return a name on one line: line breaks are escaped as well."""
    return name.translate(_IN_LINE)
