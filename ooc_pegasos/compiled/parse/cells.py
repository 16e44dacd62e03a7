"""Cells of delimited text to numbers and to codes of words, for rows whose quotes enclose whole cells.

The cost of a row depends on its cells alone. Words are searched for their ends eight bytes at a time.
This fast path reads text on which all readers agree, and reports all other text as unusual.
"""

import numpy as np

from ooc_pegasos.compiled.intrinsics import load_u64, trailing_zeros
from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.numbers import NUMBER, ordinary_number, parse_number

IGNORED, WORD = -1, -2
"""Codes of columns without numbers: IGNORED, or -2 - k for word number k."""
_LONGEST = 40
_FEED, _RETURN, _QUOTE = 10, 13, 34
_ONES, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_FIRST_PLAIN, _QUOTES = np.uint64(_RETURN + 1) * _ONES, np.uint64(_QUOTE) * _ONES
_MIX = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _ends_cell(text, at, delimiter):
    """True at the delimiter and at the end of the line."""
    char = text[np.uint64(at)]
    return char == delimiter or char == _FEED or (char == _RETURN and text[np.uint64(at + 1)] == _FEED)


@inlined
def _end_of_word(text, at, delimiters):
    """Return the position of the next delimiter, quote, or character from 0 to 13 (zero, tab, line ends).

    `delimiters` is the delimiter eight times. The lowest bit of each mask is exact, and so is that of all together.
    """
    found = np.uint64(0)
    while found == np.uint64(0):
        word = load_u64(text, at)
        quotes, ends = word ^ _QUOTES, word ^ delimiters
        found = (word - _FIRST_PLAIN) & ~word | (quotes - _ONES) & ~quotes | (ends - _ONES) & ~ends
        found &= _HIGH_BITS
        at += 8
    return at - 8 + np.int64(trailing_zeros(found) >> np.uint64(3))


@kernel
def _key_of_long(text: np.ndarray, begin: int, end: int) -> int:
    """Return a hash of a word of more than 8 bytes."""
    key = np.uint64(end - begin)
    for at in range(begin, end - 8, 8):
        key = (key ^ load_u64(text, at)) * _MIX
        key ^= key >> np.uint64(29)
    return (key ^ load_u64(text, end - 8)) * _MIX


@kernel
def _other_number(text: np.ndarray, at: int, delimiter: int, copy: np.ndarray) -> tuple[bool, float, int]:
    """Return (True if the cell at `at` is a finite number, its value, position after the cell)."""
    begin = at
    while text[at] != _QUOTE and not _ends_cell(text, at, delimiter):
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
    keys: np.ndarray,
    lines: np.ndarray,
) -> tuple[int, int]:
    """Return (number of rows, number of lines) of `text[:length]`, which ends with a line feed; (-1, 0) if unusual.

    `targets` has, by column, the column of `numbers` that its cells belong to, or a code. An empty cell is NaN.
    `spans` has the begin and the end of each word, an end before the begin of a null, and `keys` its bytes, or
    of more than 8 a hash; `lines`, the line of each row, counted from 0.
    """
    copy = np.zeros(_LONGEST + 32, np.uint8)
    at, row, line = np.int64(0), np.int64(0), np.int64(0)
    columns = len(targets)
    delimiters = np.uint64(delimiter) * _ONES
    while at < length:
        if text[at] == _FEED or (text[at] == _RETURN and text[at + 1] == _FEED):
            at += 1 + (text[at] == _RETURN)
            line += 1
            continue
        for column in range(columns):
            target = targets[column]
            is_quoted = text[np.uint64(at)] == _QUOTE
            at += is_quoted
            begin = at
            if target >= 0:
                value = np.nan
                if is_quoted or not _ends_cell(text, at, delimiter):
                    is_plain, value, at, _follows = ordinary_number(text, at)
                    if not is_plain or not _ends_cell(text, at + is_quoted, delimiter):
                        is_plain, value, at = _other_number(text, begin, delimiter, copy)
                        if not is_plain:
                            return -1, 0
                numbers[row, target] = value
            else:
                at = _end_of_word(text, at, _QUOTES if is_quoted else delimiters)
                if target <= WORD:
                    is_null = at == begin and not is_quoted
                    spans[WORD - target, row, 0] = begin
                    spans[WORD - target, row, 1] = at - is_null
                    keys[WORD - target, row] = load_u64(text, begin) << np.uint64((64 - 8 * (at - begin)) & 63)
                    if at - begin > 8:
                        keys[WORD - target, row] = _key_of_long(text, begin, at)
            if is_quoted and text[np.uint64(at)] != _QUOTE:
                return -1, 0
            at += is_quoted
            if not _ends_cell(text, at, delimiter):
                return -1, 0
            has_next = text[np.uint64(at)] == delimiter
            if has_next != (column < columns - 1):
                return -1, 0
            at += has_next
        lines[row] = line
        row += 1
        line += 1
        at += 1 + (text[at] == _RETURN)
    return row, line


@inlined
def _same(text, one, other, size):
    """True if two words are equal."""
    same, at = True, np.int64(0)
    while same and at < size:
        same = text[one + at] == text[other + at]
        at += 1
    return same


@kernel
def code_words(
    text: np.ndarray,
    spans: np.ndarray,
    keys: np.ndarray,
    tag: int,
    slots: np.ndarray,
    codes: np.ndarray,
    firsts: np.ndarray,
) -> tuple[int, int]:
    """Number the distinct words of a column, given by `parse_cells`, in order of appearance.

    `codes` receives the number of each word, -1 for a null, and `firsts` the span of each distinct word. `slots` is a
    hash table of (key, number), of a power of two, at least twice as long as there are words. The upper half of a
    number is a tag, which is another, up to 2^30, for each column; a slot with another one is empty.
    Returns (number of distinct words, bytes in them).
    """
    number, size = np.int64(0), np.int64(0)
    last = np.uint64(len(slots) - 1)
    for row in range(len(keys)):
        length = np.int64(spans[row, 1]) - np.int64(spans[row, 0])
        if length < 0:
            codes[row] = -1
            continue
        is_long = length > 8  # shorter words of the same key are equal
        key, mine = keys[row] if length > 0 else np.uint64(0), np.uint64(2 * tag + is_long)
        slot = ((key * _MIX) >> np.uint64(32)) & last
        while True:
            held = slots[slot, 1]
            if held >> np.uint64(33) != np.uint64(tag):
                slots[slot, 0], slots[slot, 1] = key, (mine << np.uint64(32)) | np.uint64(number)
                firsts[number, 0], firsts[number, 1] = spans[row, 0], spans[row, 1]
                codes[row] = number
                number += 1
                size += length
                break
            code = held & np.uint64(0xFFFFFFFF)
            if slots[slot, 0] == key and held >> np.uint64(32) == mine:
                first = np.int64(firsts[code, 0])
                if not is_long or (
                    firsts[code, 1] - first == length and _same(text, first, np.int64(spans[row, 0]), length)
                ):
                    codes[row] = code
                    break
            slot = (slot + np.uint64(1)) & last
    return number, size


@kernel
def copy_words(text: np.ndarray, spans: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Copy words one after the other to `out`; `offsets` receives where each begins, and the end."""
    to = 0
    for word in range(len(spans)):
        offsets[word] = to
        for at in range(spans[word, 0], spans[word, 1]):
            out[to] = text[at]
            to += 1
    offsets[len(spans)] = to
