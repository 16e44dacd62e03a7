"""svmlight text to CSR arrays: `label [qid:n] index:value ... # comment`, one row a line.

The kernel checks every bound the data controls. A line that breaks a rule is recorded with a code
and not written to the output; parsing continues at the next line.
"""

import numpy as np

from ooc_pegasos.compiled.jit import kernel
from ooc_pegasos.compiled.parse.lines import end_of_line, end_row, record_bad, skip_blanks
from ooc_pegasos.compiled.parse.numbers import (
    NOT_FINITE,
    NUMBER,
    ROUNDS_TO_INFINITY,
    digit_run,
    digits_value,
    ends_token,
    is_digit,
    ordinary_number,
    parse_number,
)

# Problems of a line; `readers/svmlight.py` has the messages.
(
    LABEL_NOT_NUMBER,
    LABEL_NOT_FINITE,
    LABEL_MISSING,
    LABEL_SEVERAL,
    PAIR_MALFORMED,
    INDEX_NEGATIVE,
    INDEX_TOO_SMALL,
    INDEX_TOO_LARGE,
    INDEX_DUPLICATE,
    INDEX_DECREASING,
    VALUE_NOT_NUMBER,
    VALUE_NOT_FINITE,
    VALUE_TOO_LARGE,
    NUL_BYTE,
) = range(1, 15)


@kernel
def count_lines_and_pairs(text: np.ndarray) -> tuple[int, int]:
    """Count line feeds and colons: upper bounds of the numbers of rows, less one, and of pairs."""
    lines = np.int64(0)
    colons = np.int64(0)
    for at in range(len(text)):
        lines += text[at] == 10
        colons += text[at] == 58
    return lines, colons


@kernel
def _ordinary_pairs(
    text: np.ndarray,
    at: int,
    last: int,
    smallest: int,
    largest: int,
    pairs: int,
    indices: np.ndarray,
    values: np.ndarray,
) -> tuple[int, int, int]:
    """Read pairs of the form ` ddd:d.ddd` up to the first other token; return (its position, pairs, last index).

    At most 8 digits of index and 15 of value, each followed by one blank or line feed. All other shapes
    are left to `_any_pair`; this loop is the fast path and reports no errors.
    """
    while True:
        start = at
        if text[np.uint64(at)] == 32:
            at += 1
        word, count = digit_run(text, at)
        if count == 0:
            return start, pairs, last
        index = np.int64(digits_value(word, count))
        at += count
        if text[np.uint64(at)] != 58 or index <= last or index < smallest or index > largest:
            return start, pairs, last
        digit, follows = text[np.uint64(at + 1)], text[np.uint64(at + 2)]
        if is_digit(digit) and (follows == 32 or follows == 10):  # counts and indicators are mostly a single digit
            value = np.float64(digit - 48)
            at += 2
        else:
            is_plain, value, at, follows = ordinary_number(text, at + 1)
            if not is_plain or (follows != 32 and follows != 10):
                return start, pairs, last
        values[np.uint64(pairs)] = value
        indices[np.uint64(pairs)] = index
        last = index
        pairs += 1


@kernel
def _any_pair(text: np.ndarray, at: int, last: int, smallest: int, largest: int) -> tuple[int, int, float, int]:
    """Return (0 or an error code, index, value, position after the pair) of a pair of any form."""
    start = at
    index = np.int64(0)
    while is_digit(text[at]):
        if index < 10_000_000_000:
            index = index * 10 + np.int64(text[at] - 48)
        at += 1
    code = 0
    if at == start or text[at] != 58:
        code = PAIR_MALFORMED
        if text[start] == 0:
            code = NUL_BYTE
        elif text[start] == 45 and is_digit(text[start + 1]):
            code = INDEX_NEGATIVE
    elif index < smallest:
        code = INDEX_TOO_SMALL
    elif index > largest:
        code = INDEX_TOO_LARGE
    elif index <= last:
        code = INDEX_DUPLICATE if index == last else INDEX_DECREASING
    if code != 0:
        return code, index, np.float32(0), start
    status, value, at = parse_number(text, at + 1)
    if status == NOT_FINITE and is_digit(text[at - 1]):
        code = VALUE_TOO_LARGE
    elif status == NOT_FINITE:
        code = VALUE_NOT_FINITE
    elif status != NUMBER:
        code = VALUE_NOT_NUMBER
    elif abs(value) >= ROUNDS_TO_INFINITY:
        code = VALUE_TOO_LARGE
    return code, index, np.float32(value), at


@kernel
def _skip_query_id(text: np.ndarray, at: int) -> tuple[int, int]:
    """Return (0 or an error code, position after `qid:` and its digits)."""
    if text[at + 1] != 105 or text[at + 2] != 100 or text[at + 3] != 58 or not is_digit(text[at + 4]):
        return PAIR_MALFORMED, at
    at += 4
    while is_digit(text[at]):
        at += 1
    return 0 if ends_token(text[at]) else PAIR_MALFORMED, at


@kernel
def _read_label(text: np.ndarray, at: int, as_text: bool) -> tuple[int, float, int]:
    """Return (0 or an error code, number, position after the label)."""
    start = at
    status = NUMBER
    label = 0.0
    if as_text:
        while not ends_token(text[at]) and text[at] != 58 and text[at] != 44 and text[at] != 0:
            at += 1
    else:
        status, label, at = parse_number(text, at)
    code = 0
    if text[at] == 58:
        code = LABEL_MISSING
    elif text[at] == 44:
        code = LABEL_SEVERAL
    elif text[at] == 0:
        code = NUL_BYTE
    elif status != NUMBER:
        code = LABEL_NOT_FINITE if status == NOT_FINITE else LABEL_NOT_NUMBER
    return code, label + 0.0, start if code != 0 else at  # + 0.0: -0 is 0


@kernel
def parse_svmlight(
    text: np.ndarray,
    end: int,
    text_labels: bool,
    smallest_index: int,
    largest_index: int,
    stop_at_bad: bool,
    labels: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    lines: np.ndarray,
    numbers: np.ndarray,
    label_spans: np.ndarray,
    bad: np.ndarray,
) -> tuple[int, int, int]:
    """Parse `text[:end]` (whole lines, then PADDING) into the arrays.

    Per row: `labels` (float64), `indptr`, `lines` (its line, counted from 0), `numbers` (its number, bad rows
    included), and with `text_labels` its label's (start, end) in `label_spans` instead of a number. Per bad line,
    as far as there is room: (code, line, position) in `bad`.
    Returns (rows, bad lines, lines read).
    """
    at = np.int64(0)
    row = 0
    pairs = np.int64(0)
    bad_lines = 0
    line = 0
    indptr[0] = 0
    while at < end:
        at = skip_blanks(text, at)
        if text[at] == 10 or text[at] == 35:  # an empty line or a comment
            at = end_of_line(text, at) + 1
            line += 1
            continue
        where = at
        code, labels[row], at = _read_label(text, at, text_labels)
        if text_labels:
            label_spans[row, 0] = where
            label_spans[row, 1] = at
        last = np.int64(-1)
        while code == 0:
            at, pairs, last = _ordinary_pairs(text, at, last, smallest_index, largest_index, pairs, indices, values)
            at = skip_blanks(text, at)
            if text[at] == 10 or text[at] == 35:
                break
            where = at
            if pairs == indptr[row] and text[at] == 113:
                code, at = _skip_query_id(text, at)
                continue
            code, last, values[pairs], at = _any_pair(text, at, last, smallest_index, largest_index)
            indices[pairs] = last
            pairs += 1
        if code != 0:
            record_bad(bad, bad_lines, (code, line, where))
        row, bad_lines, pairs = end_row(code == 0, line, row, bad_lines, pairs, indptr, lines, numbers)
        if code != 0 and stop_at_bad:
            break
        at = end_of_line(text, at) + 1
        line += 1
    return row, bad_lines, line


@kernel
def hash_spans(text: np.ndarray, spans: np.ndarray, rows: int, hashes: np.ndarray) -> None:
    """Compute a 64-bit FNV-1a hash of each label token."""
    for row in range(rows):
        state = np.uint64(14695981039346656037)
        for at in range(spans[row, 0], spans[row, 1]):
            state = (state ^ np.uint64(text[at])) * np.uint64(1099511628211)
        hashes[row] = state
