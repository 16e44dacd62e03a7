"""Rows of sparse or dense arrays to checked and sorted rows without zeros.

Compiled functions check every index that the data controls. A row that breaks a rule is recorded with a code and
overwritten by the next row.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.lines import skip_blanks
from ooc_pegasos.compiled.parse.numbers import NOT_A_NUMBER, NUMBER, ends_token, parse_number

# Problems of a row; `readers/arrays.py` has the messages.
(
    INDEX_TOO_LARGE,
    INDEX_DUPLICATE,
    VALUE_NOT_FINITE,
    LABEL_NOT_FINITE,
    LABEL_EMPTY,
    LABEL_NOT_TEXT,
    WEIGHT_OUT_OF_RANGE,
) = range(1, 8)

# Problems of a line of a file of labels.
SOUND, EMPTY, NO_NUMBER, MORE_THAN_ONE = range(4)


@kernel
def _sort_entries(indices: np.ndarray, values: np.ndarray, begin: int, end: int) -> None:
    """Sort entries by index with an in-place heapsort: unsorted rows are rare and may have any length."""
    count = end - begin
    heaped = count // 2
    while count > 1:
        if heaped > 0:
            heaped -= 1
            root = heaped
            index, value = indices[begin + root], values[begin + root]
        else:
            count -= 1
            root = 0
            index, value = indices[begin + count], values[begin + count]
            indices[begin + count], values[begin + count] = indices[begin], values[begin]
        while True:
            child = 2 * root + 1
            if child >= count:
                break
            if child + 1 < count and indices[begin + child + 1] > indices[begin + child]:
                child += 1
            if indices[begin + child] <= index:
                break
            indices[begin + root], values[begin + root] = indices[begin + child], values[begin + child]
            root = child
        indices[begin + root], values[begin + root] = index, value


@inlined
def _is_plain(indices, values, begin, end, above, out_indices, out_values, to):
    """Copy a row and check that nothing else is needed: increasing indices within limits, finite values, no zeros.

    The loop has no early exit, so that several entries are checked with each instruction.
    """
    plain = True
    last = np.int64(-1)
    first, target = np.uint64(begin), np.uint64(to)
    for number in range(np.uint64(end - begin)):
        index = np.int64(indices[first + number])
        value = np.float32(values[first + number])
        plain &= (index > last) & (value - value == np.float32(0)) & (value != np.float32(0))
        last = index
        out_indices[target + number] = np.uint32(index)
        out_values[target + number] = value
    return plain and last < above


@kernel
def csr_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    faults: np.ndarray,
    columns: int,
    largest_index: int,
    stop_at_bad: bool,
    out_indptr: np.ndarray,
    out_indices: np.ndarray,
    out_values: np.ndarray,
    kept: np.ndarray,
    bad: np.ndarray,
) -> tuple[int, int, int, int]:
    """Copy the rows whose entries `indptr` (checked before) delimits, relative to its first number.

    `faults` holds the code of a known problem of each row, or 0. `kept` receives the numbers of the good rows, and
    `bad`, as far as there is room, (code, row, entry or duplicate index) of bad rows.
    Returns (entry whose index is outside the matrix or -1, its row or 0, rows, bad rows).
    """
    rows = 0
    bad_rows = 0
    pairs = np.int64(0)
    origin = indptr[0]
    above = min(np.int64(columns), np.int64(largest_index) + 1)
    out_indptr[0] = 0
    for row in range(len(faults)):
        code = np.int64(faults[row])
        begin, end = indptr[row] - origin, indptr[row + 1] - origin
        if _is_plain(indices, values, begin, end, above, out_indices, out_values, pairs) and code == 0:
            pairs += end - begin
            kept[rows] = row
            rows += 1
            out_indptr[rows] = pairs
            continue
        where = np.int64(-1)
        last = np.int64(-1)
        ordered = True
        to = pairs
        for at in range(begin, end):
            index = np.int64(indices[at])
            value = np.float32(values[at])
            if index < 0 or index >= columns:
                return at, row, rows, bad_rows
            if code == 0 and index > largest_index:
                code, where = INDEX_TOO_LARGE, at
            if code == 0 and not np.isfinite(value):
                code, where = VALUE_NOT_FINITE, at
            out_indices[to] = index
            out_values[to] = value
            to += 1
            ordered &= index > last
            last = index
        if code == 0 and not ordered:
            _sort_entries(out_indices, out_values, pairs, to)
            for at in range(pairs + 1, to):
                if out_indices[at] == out_indices[at - 1]:
                    code, where = INDEX_DUPLICATE, np.int64(out_indices[at])
                    break
        if code != 0:
            if bad_rows < len(bad):
                bad[bad_rows, 0] = code
                bad[bad_rows, 1] = row
                bad[bad_rows, 2] = where
            bad_rows += 1
            if stop_at_bad:
                break
            continue
        for at in range(pairs, to):
            if out_values[at] != 0:
                out_indices[pairs] = out_indices[at]
                out_values[pairs] = out_values[at]
                pairs += 1
        kept[rows] = row
        rows += 1
        out_indptr[rows] = pairs
    return -1, 0, rows, bad_rows


@kernel
def dense_rows(
    values: np.ndarray,
    faults: np.ndarray,
    label_column: int,
    largest_index: int,
    stop_at_bad: bool,
    out_indptr: np.ndarray,
    out_indices: np.ndarray,
    out_values: np.ndarray,
    kept: np.ndarray,
    bad: np.ndarray,
) -> tuple[int, int]:
    """Copy the non-zeros of dense rows, like `csr_rows`. A column may be removed, and later ones move up; -1: none.

    Returns (rows, bad rows).
    """
    rows = 0
    bad_rows = 0
    pairs = np.int64(0)
    out_indptr[0] = 0
    for row in range(len(faults)):
        code = np.int64(faults[row])
        where = np.int64(-1)
        to = pairs
        for column in range(values.shape[1]):
            value = values[row, column]
            if value == 0 or column == label_column:
                continue
            index = column - 1 if 0 <= label_column < column else column
            if code == 0 and index > largest_index:
                code, where = INDEX_TOO_LARGE, np.int64(column)
            if code == 0 and not np.isfinite(value):
                code, where = VALUE_NOT_FINITE, np.int64(column)
            out_indices[to] = index
            out_values[to] = value
            to += 1
        if code != 0:
            if bad_rows < len(bad):
                bad[bad_rows, 0] = code
                bad[bad_rows, 1] = row
                bad[bad_rows, 2] = where
            bad_rows += 1
            if stop_at_bad:
                break
            continue
        pairs = to
        kept[rows] = row
        rows += 1
        out_indptr[rows] = pairs
    return rows, bad_rows


@kernel
def hash_words(words: np.ndarray, hashes: np.ndarray, faults: np.ndarray) -> None:
    """Hash words given as zero-padded rows of code points, like `svmlight.hash_spans` for their UTF-8."""
    prime = np.uint64(1099511628211)
    for row in range(len(words)):
        length = words.shape[1]
        while length > 0 and words[row, length - 1] == 0:
            length -= 1
        if length == 0:
            faults[row] = LABEL_EMPTY
        state = np.uint64(14695981039346656037)
        for at in range(length):
            point = np.uint64(words[row, at])
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                faults[row] = LABEL_NOT_TEXT
                break
            if point < 0x80:
                state = (state ^ point) * prime
                continue
            if point < 0x800:
                more = 1
                lead = np.uint64(0xC0)
            elif point < 0x10000:
                more = 2
                lead = np.uint64(0xE0)
            else:
                more = 3
                lead = np.uint64(0xF0)
            state = (state ^ (lead | (point >> np.uint64(6 * more)))) * prime
            while more > 0:
                more -= 1
                state = (state ^ (np.uint64(0x80) | ((point >> np.uint64(6 * more)) & np.uint64(0x3F)))) * prime
        hashes[row] = state


@kernel
def parse_labels(text: np.ndarray, at: int, end: int, labels: np.ndarray) -> tuple[int, int, int]:
    """Read a number a line from `text[at:end]` (whole lines, then PADDING) until `labels` is full.

    Numbers that are not finite become NaN. Returns (code, how many were read, position of the next line or of the
    error).
    """
    number = 0
    while at < end and number < len(labels):
        where = skip_blanks(text, at)
        if text[where] == 10:
            return EMPTY, number, where
        status, value, after = parse_number(text, where)
        if status == NOT_A_NUMBER:
            return NO_NUMBER, number, where
        while not ends_token(text[after]):  # only the sign of `nan` was read
            after += 1
        after = skip_blanks(text, after)
        if text[after] != 10:
            return MORE_THAN_ONE, number, after
        labels[number] = value if status == NUMBER else np.nan
        number += 1
        at = after + 1
    return SOUND, number, at
