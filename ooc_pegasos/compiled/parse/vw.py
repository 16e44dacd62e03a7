"""Vowpal Wabbit text to CSR arrays: `[label [importance]] ['tag]|[namespace[:scale]] feature[:value] ... |...`.

The kernel checks every bound the data controls. A line that breaks a rule is recorded with a code
and not written to the output; parsing continues at the next line.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.hashing import ROOM_FOR_KEYS, bucket_of, in_order, is_negative, murmur3, sort_row
from ooc_pegasos.compiled.parse.lines import PADDING, end_of_line, end_row, record_bad, skip_blanks
from ooc_pegasos.compiled.parse.numbers import (
    NOT_A_NUMBER,
    NOT_FINITE,
    NUMBER,
    ROUNDS_TO_INFINITY,
    is_digit,
    ordinary_number,
    parse_number,
)
from ooc_pegasos.compiled.parse.weights import MAX_WEIGHT, MIN_WEIGHT

# Problems of a line; `readers/vw.py` has the messages.
(
    BAR_MISSING,
    LABEL_MISSING,
    LABEL_NOT_NUMBER,
    LABEL_NOT_FINITE,
    LABEL_SEVERAL,
    LABEL_WITH_COST,
    LABEL_NOT_UTF8,
    IMPORTANCE_NOT_NUMBER,
    IMPORTANCE_OUT_OF_RANGE,
    BASE,
    TAG_MISPLACED,
    TAG_NOT_UTF8,
    NAMESPACE_UNNAMED,
    NAMESPACE_TOO_LONG,
    NAMESPACES_SEVERAL,
    SCALE_NOT_NUMBER,
    SCALE_NOT_FINITE,
    FEATURE_NO_INDEX,
    INDEX_TOO_SMALL,
    INDEX_TOO_LARGE,
    INDEX_DUPLICATE,
    VALUE_NOT_NUMBER,
    VALUE_NOT_FINITE,
    VALUE_TOO_LARGE,
    SUM_TOO_LARGE,
    NUL_BYTE,
) = range(1, 27)

PLAIN = -1
"""Instead of a number of bits: names are indices."""
LONGEST_NAMESPACE = 4096
"""Bytes. The name is hashed again with each feature, so without a limit invalid input could take hours."""

_BAR, _COLON, _LINE_FEED, _QUOTE, _COMMA, _CARET = 124, 58, 10, 39, 44, 94
_ENDS_NAME = np.zeros(256, np.bool_)
_ENDS_NAME[[0, 9, _LINE_FEED, 11, 12, 13, 32, _COLON, _BAR]] = True


@kernel
def count_lines_and_blanks(text: np.ndarray) -> tuple[int, int]:
    """Count line feeds and blanks: upper bounds of the numbers of rows, less one, and of entries."""
    lines = np.int64(0)
    blanks = np.int64(0)
    for at in range(len(text)):
        char = text[at]
        lines += char == 10
        blanks += (char == 32) | (char == 9) | ((char >= 11) & (char <= 13))
    return lines, blanks


@inlined
def _ends_word(char):
    """True for a blank, a bar or the end of the line."""
    return char == 32 or 9 <= char <= 13 or char == _BAR


@kernel
def _is_utf8(text: np.ndarray, at: int, end: int) -> bool:
    """True if `text[at:end]` is UTF-8, by the table of well-formed sequences in the Unicode standard."""
    while at < end:
        lead = text[at]
        more = 0
        low, high = 0x80, 0xBF  # of the second byte
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        elif lead >= 0x80:
            return False
        if at + more >= end:
            return False
        for k in range(1, more + 1):
            if not low <= text[at + k] <= high:
                return False
            low, high = 0x80, 0xBF
        at += more + 1
    return True


@kernel
def _read_number(text: np.ndarray, at: int) -> tuple[int, float, int]:
    """Return (status, value, position after it) of the number at `at`, which ends at a blank, a bar or the line end."""
    status, value, after = parse_number(text, at)
    if status == NOT_A_NUMBER and text[after] == _BAR and after > at:
        # parse_number does not stop at bars, so it gets the token alone
        token = np.zeros(after - at + PADDING, np.uint8)
        token[: after - at] = text[at:after]
        token[after - at] = _LINE_FEED
        status, value, _after = parse_number(token, 0)
    elif status == NUMBER and text[after] == 35:  # a comment for parse_number
        status = NOT_A_NUMBER
    return status, value, after


@kernel
def _read_label(text: np.ndarray, begin: int, end: int, as_text: bool) -> tuple[int, float]:
    """Return (0 or an error code, number) of the label `text[begin:end]`."""
    for at in range(begin, end):
        if text[at] == _COLON:
            return LABEL_WITH_COST, 0.0
        if text[at] == _COMMA:
            return LABEL_SEVERAL, 0.0
    if as_text:
        return 0 if _is_utf8(text, begin, end) else LABEL_NOT_UTF8, 0.0
    status, label, _after = _read_number(text, begin)
    if status == NOT_FINITE:
        return LABEL_NOT_FINITE, 0.0
    return LABEL_NOT_NUMBER if status == NOT_A_NUMBER else 0, label + 0.0  # + 0.0: -0 is 0


@kernel
def _read_head(
    text: np.ndarray, at: int, as_text: bool, label_wanted: bool, label_span: np.ndarray, tag_span: np.ndarray
) -> tuple[int, float, float, int, int]:
    """Parse up to the first bar; return (0 or an error code, label, importance, wrong token, position of the bar).

    The last word is a tag if it begins with a quote or touches the bar; the others are label and importance.
    """
    label = 0.0
    importance = 1.0
    words = 0
    tagged = False
    code = 0
    first, begin = at, at
    label_span[:] = 0
    tag_span[:] = 0
    while True:
        at = skip_blanks(text, at)
        if text[at] == _BAR:
            break
        if text[at] == _LINE_FEED:
            return BAR_MISSING, 0.0, 1.0, first, at
        begin = at
        while not _ends_word(text[at]):
            if text[at] == 0:
                return NUL_BYTE, 0.0, 1.0, begin, at
            at += 1
        if tagged:
            code = TAG_MISPLACED
            begin = tag_span[0] - 1
        elif text[begin] == _QUOTE or text[at] == _BAR:
            tagged = True
            tag_span[0] = begin + 1 if text[begin] == _QUOTE else begin
            tag_span[1] = at
            if not _is_utf8(text, begin, at):
                code = TAG_NOT_UTF8
        elif words == 0:
            code, label = _read_label(text, begin, at, as_text)
            label_span[0] = begin
            label_span[1] = at
            words = 1
        elif words == 1:
            status, importance, _after = _read_number(text, begin)
            if status == NOT_A_NUMBER:
                code = IMPORTANCE_NOT_NUMBER
            elif status != NUMBER or not MIN_WEIGHT <= importance <= MAX_WEIGHT:
                code = IMPORTANCE_OUT_OF_RANGE
            words = 2
        else:
            code = BASE
        if code != 0:
            break
    if code == 0 and label_wanted and words == 0:
        code = LABEL_MISSING
    if code != 0:  # a missing bar is the problem to report
        while text[at] != _BAR and text[at] != _LINE_FEED:
            at += 1
        if text[at] == _LINE_FEED:
            code, begin = BAR_MISSING, first
    return code, label, importance, begin, at


@inlined
def _same_bytes(text, one, one_end, other, other_end):
    same = one_end - one == other_end - other
    at = 0
    while same and one + at < one_end:
        same = text[one + at] == text[other + at]
        at += 1
    return same


@inlined
def _end_of_name(text, at):
    """Return the position of the first character from `at` on that is no part of a name."""
    while not _ENDS_NAME[text[at]]:
        at += 1
    return at


@inlined
def _append(name, to, text, begin, end):
    """Copy `text[begin:end]` to `name[to]`; return the position after it."""
    for at in range(begin, end):
        name[to] = text[at]
        to += 1
    return to


@kernel
def _read_namespace(text: np.ndarray, at: int, name: np.ndarray) -> tuple[int, float, int, int, int]:
    """Parse a namespace after a bar; return (0 or an error code, scale, end of the name, bytes of its prefix in
    `name`, position after, or that of an invalid scale).
    """
    space = at
    scale = 1.0
    code = 0
    space_end = at = _end_of_name(text, at)
    prefix = _append(name, 0, text, space, at)
    if prefix > 0:
        name[prefix] = _CARET
        prefix += 1
    if text[at] == 0:
        code = NUL_BYTE
    elif at - space > LONGEST_NAMESPACE:
        code = NAMESPACE_TOO_LONG
    elif text[at] == _COLON and at == space:
        code = NAMESPACE_UNNAMED
    elif text[at] == _COLON:
        status, scale, after = _read_number(text, at + 1)
        at = after if status == NUMBER else at + 1
        if status != NUMBER:
            code = SCALE_NOT_FINITE if status == NOT_FINITE else SCALE_NOT_NUMBER
    return code, scale, space_end, prefix, at


@inlined
def _append_number(name, to, number):
    """Write decimal digits to `name[to]`; return the position after them."""
    power = np.int64(1)
    while power * 10 <= number:
        power *= 10
    while power > 0:
        name[to] = 48 + number // power % 10
        to += 1
        power //= 10
    return to


@kernel
def _read_index(text: np.ndarray, begin: int, end: int, number: int, smallest: int, largest: int) -> tuple[int, int]:
    """Return (0 or an error code, index) of a feature whose name `text[begin:end]` is its index, else `number`."""
    index = np.int64(0) if begin < end else np.int64(number)
    for at in range(begin, end):
        if not is_digit(text[at]):
            return FEATURE_NO_INDEX, 0
        if index < 10_000_000_000:
            index = index * 10 + np.int64(text[at] - 48)
    if index < smallest:
        return INDEX_TOO_SMALL, 0
    if index > largest:
        return INDEX_TOO_LARGE, 0
    return 0, index


@kernel
def _read_value(text: np.ndarray, at: int) -> tuple[int, float, int]:
    """Return (0 or an error code, value, position after it) of the value at `at`, of any form."""
    status, value, after = _read_number(text, at)
    code = 0
    if status == NOT_FINITE:
        code = VALUE_NOT_FINITE if np.isnan(value) else VALUE_TOO_LARGE
    elif status != NUMBER:
        code = VALUE_NOT_NUMBER
    return code, value, after


@inlined
def _slot(seen, bucket):
    """Return the slot of a bucket in a hash table of buckets plus 1, or the free slot (0) for it."""
    last = len(seen) - 1
    at = (bucket * 0x9E3779B1 >> 15) & last
    while seen[at] != 0 and seen[at] != bucket + 1:
        at = (at + 1) & last
    return at


@kernel
def _record_name(seen: np.ndarray, named: np.ndarray, names: int, found: tuple[int, int, int, int, int, int]) -> int:
    """Record the position in the text of the name of a bucket, unless known; return the number of names."""
    slot = _slot(seen, found[0])
    if seen[slot] != 0:
        return names
    seen[slot] = found[0] + 1
    for k in range(6):
        named[names, k] = found[k]
    return names + 1


@kernel
def _remove_names(seen: np.ndarray, named: np.ndarray, names: int, kept: int) -> None:
    """Remove all names but the first `kept`, the last first, so that searches in `seen` stay valid."""
    for at in range(names - 1, kept - 1, -1):
        seen[_slot(seen, named[at, 0])] = 0


@kernel
def _read_features(
    text: np.ndarray,
    at: int,
    bits: int,
    signed: bool,
    smallest: int,
    largest: int,
    name: np.ndarray,
    buckets: np.ndarray,
    values: np.ndarray,
    known: np.ndarray | None,
    seen: np.ndarray | None,
    named: np.ndarray | None,
    names: int,
) -> tuple[int, int, int, int, int, int]:
    """Parse the entries of a row from its first bar at `at` to `buckets` and `values`, in the order of the text.

    Returns (0 or an error code, number of entries, positions of the wrong name and of the wrong number, position
    after, number of names).
    """
    mask = np.uint32((np.int64(1) << max(bits, 0)) - 1)
    count = np.int64(0)
    scale = 1.0
    space, space_end = at, at  # the namespace
    used, used_end = np.int64(-1), np.int64(-1)  # the first namespace with a feature
    prefix, end = 0, np.int64(0)  # bytes of the namespace in `name`: its own and a ^
    unnamed = np.int64(0)  # features without a name, which have numbers for names, as in Vowpal Wabbit
    while True:
        at = skip_blanks(text, at)
        begin = at
        if text[at] == _LINE_FEED:
            return 0, count, begin, begin, at, names
        if text[at] == _BAR:
            space = at + 1
            unnamed = np.int64(0)
            code, scale, space_end, prefix, at = _read_namespace(text, space, name)
            if code != 0:
                return code, count, space, at, at, names
            continue
        at = _end_of_name(text, at)
        if text[at] == 0:
            return NUL_BYTE, count, begin, at, at, names
        negative = False
        if bits == PLAIN:
            code, bucket = _read_index(text, begin, at, unnamed, smallest, largest)
            if code != 0:
                return code, count, begin, begin, at, names
            if used < 0:
                used, used_end = space, space_end
            elif used != space and not _same_bytes(text, used, used_end, space, space_end):
                return NAMESPACES_SEVERAL, count, used, space, at, names
        else:
            end = _append(name, prefix, text, begin, at)
            if at == begin:
                end = _append_number(name, prefix, unnamed)
            hashed = murmur3(name, 0, end)
            bucket = np.int64(bucket_of(hashed, mask))
            negative = signed and is_negative(hashed)
        name_end = at
        value = 1.0
        if text[at] == _COLON:
            ordinary, value, after, follows = ordinary_number(text, at + 1)
            if not ordinary or not _ends_word(follows):
                code, value, after = _read_value(text, at + 1)
                if code != 0:
                    return code, count, begin, at + 1, after, names
            at = after
        value *= -scale if negative else scale
        if abs(value) >= ROUNDS_TO_INFINITY:
            return VALUE_TOO_LARGE, count, begin, begin, at, names
        if known is not None:  # numba removes this branch if `known` is None
            assert seen is not None
            assert named is not None
            if names < len(named) and not known[bucket] and _is_utf8(name, 0, end):
                names = _record_name(seen, named, names, (bucket, space, space_end, begin, name_end, unnamed))
        unnamed += name_end == begin
        buckets[count] = bucket
        values[count] = value
        count += 1


@kernel
def _merge_duplicates(
    buckets: np.ndarray,
    sums: np.ndarray,
    count: int,
    repeats: bool,
    pairs: int,
    indices: np.ndarray,
    values: np.ndarray,
) -> tuple[int, int, int]:
    """Append sorted entries, those of a bucket added; return (0 or an error code, pairs, last bucket)."""
    at = np.int64(0)
    while at < count:
        bucket = buckets[at]
        total = sums[at]
        at += 1
        while at < count and buckets[at] == bucket:
            if not repeats:
                return INDEX_DUPLICATE, pairs, bucket
            total += sums[at]
            at += 1
        if abs(total) >= ROUNDS_TO_INFINITY:
            return SUM_TOO_LARGE, pairs, bucket
        value = np.float32(total)
        if value != 0:
            indices[pairs] = bucket
            values[pairs] = value
            pairs += 1
    return 0, pairs, 0


@kernel
def parse_vw(
    text: np.ndarray,
    end: int,
    text_labels: bool,
    label_wanted: bool,
    bits: int,
    signed: bool,
    smallest_index: int,
    largest_index: int,
    stop_at_bad: bool,
    labels: np.ndarray,
    weights: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    lines: np.ndarray,
    numbers: np.ndarray,
    label_spans: np.ndarray,
    tag_spans: np.ndarray,
    name: np.ndarray,
    buckets: np.ndarray,
    sums: np.ndarray,
    spare_buckets: np.ndarray,
    spare_sums: np.ndarray,
    bad: np.ndarray,
    known: np.ndarray | None,
    seen: np.ndarray | None,
    named: np.ndarray | None,
) -> tuple[int, int, int, int]:
    """Parse `text[:end]` (whole lines, then PADDING) into the arrays.

    Per row: `labels` (float64), `weights`, `indptr`, `lines` (its line, counted from 0), `numbers` (its number,
    bad rows included) and (start, end) of its label in `label_spans` and of its tag in `tag_spans`. `bits` is PLAIN
    where names are indices. `name` has as much room as the text; `buckets`, `sums` and their spares have room for
    every entry of the block. Per bad line, as far as there is room: (code, line, position, position) in `bad`.
    The first name of each bucket that is not `known` is recorded in `named`, as far as there is room: (bucket, begin
    and end of the namespace, begin and end of the name, number of a feature that has no name). Names of invalid UTF-8
    are skipped. `seen` is a hash table of buckets, zeros at first: a power of two, at least twice as long as `named`.
    All three are None if no names are kept.
    Returns (rows, bad lines, lines read, names).
    """
    names = 0
    keys, counts = np.empty(ROOM_FOR_KEYS, np.uint64), np.empty(256, np.int64)
    at = np.int64(0)
    row = 0
    pairs = np.int64(0)
    bad_lines = 0
    line = 0
    indptr[0] = 0
    while at < end:
        at = skip_blanks(text, at)
        if text[at] == _LINE_FEED:
            at += 1
            line += 1
            continue
        detail = at
        names_before = names
        code, labels[row], weights[row], where, at = _read_head(
            text, at, text_labels, label_wanted, label_spans[row], tag_spans[row]
        )
        if code == 0:
            code, count, where, detail, at, names = _read_features(
                text,
                at,
                bits,
                signed,
                smallest_index,
                largest_index,
                name,
                buckets,
                sums,
                known,
                seen,
                named,
                names,
            )
            if code == 0:
                if not in_order(buckets, count):
                    sort_row(buckets, sums, count, keys, counts, spare_buckets, spare_sums)
                code, pairs, detail = _merge_duplicates(buckets, sums, count, bits != PLAIN, pairs, indices, values)
        if code != 0:
            record_bad(bad, bad_lines, (code, line, where, detail))
            if seen is not None:
                _remove_names(seen, named, names, names_before)
            names = names_before
        row, bad_lines, pairs = end_row(code == 0, line, row, bad_lines, pairs, indptr, lines, numbers)
        if code != 0 and stop_at_bad:
            break
        at = end_of_line(text, at) + 1
        line += 1
    return row, bad_lines, line, names


@kernel
def gather_spans(text: np.ndarray, spans: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Concatenate the bytes of all spans; `offsets` are their ends in `out`."""
    for row in range(len(spans)):
        to = offsets[row]
        for at in range(spans[row, 0], spans[row, 1]):
            out[to] = text[at]
            to += 1
