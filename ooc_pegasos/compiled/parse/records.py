"""Ends of records of delimited text whose quoted cells may contain line breaks, as in Arrow and RFC 4180.

A cell that begins with a quote ends at the next quote that is not doubled; other quotes are ordinary characters.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel

WHOLE, BLANK, BROKEN, OPEN = 0, 1, 2, 3
"""States of a record: good, unless its cells are bad; empty; with a carriage return; with an open quote."""
_LINE_FEED, _RETURN, _QUOTE = 10, 13, 34


@inlined
def _end_of_record(text, at, delimiter):
    """Return (position of the line feed or end of text after the record at `at`, its state, its number of lines)."""
    size = len(text)
    begin = at
    state = WHOLE
    lines = np.int64(1)
    while True:  # a cell
        if at < size and text[at] == _QUOTE:
            at += 1
            while at < size:
                if text[at] == _QUOTE:
                    if at + 1 >= size or text[at + 1] != _QUOTE:
                        break
                    at += 1
                lines += text[at] == _LINE_FEED
                at += 1
            if at >= size:
                return size, OPEN, lines
            at += 1
        while at < size and text[at] != delimiter and text[at] != _LINE_FEED:
            if text[at] == _RETURN and (at + 1 >= size or text[at + 1] != _LINE_FEED):
                state = BROKEN
            at += 1
        if at >= size or text[at] == _LINE_FEED:
            break
        at += 1
    if at == begin or (at == begin + 1 and text[begin] == _RETURN):
        state = BLANK
    return at, state, lines


@kernel
def end_of_record(text: np.ndarray, delimiter: int) -> int:
    """Return the position after the first record of a text."""
    end, _state, _lines = _end_of_record(text, 0, delimiter)
    return min(end + 1, len(text))


@kernel
def end_of_records(text: np.ndarray, delimiter: int) -> int:
    """Return the position after the last whole record of a text that begins with a record; 0 if there is none."""
    last = np.int64(0)
    while last < len(text):
        end, state, _lines = _end_of_record(text, last, delimiter)
        if end >= len(text) or state == OPEN:
            break
        last = end + 1
    return last


@kernel
def cut_records(
    text: np.ndarray, delimiter: int, starts: np.ndarray, states: np.ndarray, first_lines: np.ndarray
) -> int:
    """Count the records of a text; find the beginning, the state and the line, from 0, of each."""
    at = np.int64(0)
    line = np.int64(0)
    number = np.int64(0)
    while at < len(text):
        starts[number] = at
        first_lines[number] = line
        end, state, lines = _end_of_record(text, at, delimiter)
        states[number] = state
        number += 1
        line += lines
        at = end + 1
    return number
