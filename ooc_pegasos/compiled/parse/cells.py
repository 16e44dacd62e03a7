"""Cells of delimited text to numbers, for rows without quotes: the cost of a row depends on its cells alone.

This fast path reads text on which all readers agree, and reports all other text as unusual.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.numbers import NUMBER, ordinary_number, parse_number

IGNORED, WORD = -1, -2
"""Codes of columns without numbers: IGNORED, or -2 - k for word number k."""
_LONGEST = 40
_FEED, _RETURN, _QUOTE = 10, 13, 34


@inlined
def _ends_cell(text, at, delimiter):
    """True at the delimiter and at the end of the line."""
    return text[at] == delimiter or text[at] == _FEED or (text[at] == _RETURN and text[at + 1] == _FEED)


@kernel
def _other_number(text: np.ndarray, at: int, delimiter: int, copy: np.ndarray) -> tuple[bool, float, int]:
    """Return (True if the cell at `at` is a finite number, its value, position after the cell)."""
    begin = at
    while not _ends_cell(text, at, delimiter):
        if at - begin >= _LONGEST or text[at] <= 32:
            return False, 0.0, at
        copy[at - begin] = text[at]
        at += 1
    copy[at - begin] = _FEED
    status, value, end = parse_number(copy, 0)
    return status == NUMBER and end == at - begin, value, at


@kernel
def parse_cells(
    text: np.ndarray,
    length: int,
    delimiter: int,
    targets: np.ndarray,
    numbers: np.ndarray,
    spans: np.ndarray,
    lines: np.ndarray,
) -> tuple[int, int]:
    """Return (number of rows, number of lines) of `text[:length]`, which ends with a line feed; (-1, 0) if unusual.

    `targets` has, by column, the column of `numbers` that its cells belong to, or a code. An empty cell
    is NaN. Of words, `spans` has the begin and the end; `lines`, the line of each row, counted from 0.
    """
    copy = np.zeros(_LONGEST + 32, np.uint8)
    at, row, line = np.int64(0), np.int64(0), np.int64(0)
    columns = len(targets)
    while at < length:
        if text[at] == _FEED or (text[at] == _RETURN and text[at + 1] == _FEED):
            at += 1 + (text[at] == _RETURN)
            line += 1
            continue
        for column in range(columns):
            target = targets[column]
            begin = at
            if target >= 0:
                value = np.nan
                if not _ends_cell(text, at, delimiter):
                    is_plain, value, at, _follows = ordinary_number(text, at)
                    if not is_plain or not _ends_cell(text, at, delimiter):
                        is_plain, value, at = _other_number(text, begin, delimiter, copy)
                        if not is_plain:
                            return -1, 0
                numbers[row, target] = value
            else:
                while not _ends_cell(text, at, delimiter):
                    if text[at] == _QUOTE or text[at] == _RETURN or text[at] == 0 or text[at] >= 128:
                        return -1, 0
                    at += 1
                if target <= WORD:
                    spans[row, WORD - target, 0] = begin
                    spans[row, WORD - target, 1] = at
            if (text[at] == delimiter) != (column < columns - 1):
                return -1, 0
            at += text[at] == delimiter
        lines[row] = line
        row += 1
        line += 1
        at += 1 + (text[at] == _RETURN)
    return row, line
