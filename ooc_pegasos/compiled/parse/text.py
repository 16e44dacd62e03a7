"""Documents in UTF-8 to counted, hashed n-grams of words or characters, as in scikit-learn's HashingVectorizer.

The caller passes tables of character classes and lower case by code point. Positions are checked against the ends of
the arrays for all bytes; invalid UTF-8 counts as U+FFFD.
"""

import numpy as np

from ooc_pegasos.compiled.intrinsics import load_u64
from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.dictionary import slot_of
from ooc_pegasos.compiled.parse.hashing import bucket_of, is_negative, murmur3

WORD, SPACE, CONTEXT = 1, 2, 4
"""Bits of a class: a letter, digit or _; white space; in lower case several characters or one that depends on others.
"""
CODE_POINTS = 0x110000
_REPLACEMENT = 0xFFFD
_MAX_GROWTH = 3  # bytes that a byte of invalid UTF-8 becomes (U+FFFD); no letter grows as much
_SHORT = 32
_NO_WORD, _PART = 0, 1  # no letter has these codes


@inlined
def _decoded(data, at, end):
    """Return (code point, number of its bytes) at `at < end`."""
    first = np.int64(data[at])
    code = np.int64(_REPLACEMENT)
    width = 1
    if first < 0x80:
        code = first
    elif 0xC2 <= first < 0xE0 and at + 1 < end:
        code = ((first & 0x1F) << 6) | (np.int64(data[at + 1]) & 0x3F)
        width = 2
    elif 0xE0 <= first < 0xF0 and at + 2 < end:
        code = ((first & 0x0F) << 12) | ((np.int64(data[at + 1]) & 0x3F) << 6) | (np.int64(data[at + 2]) & 0x3F)
        width = 3
    elif 0xF0 <= first < 0xF5 and at + 3 < end:
        code = ((first & 0x07) << 18) | ((np.int64(data[at + 1]) & 0x3F) << 12)
        code |= ((np.int64(data[at + 2]) & 0x3F) << 6) | (np.int64(data[at + 3]) & 0x3F)
        width = 4
        if code >= CODE_POINTS:
            code = np.int64(_REPLACEMENT)
    return code, width


@inlined
def _encoded(code, buffer, at):
    """Write a code point; return the position after it."""
    if code < 0x80:
        buffer[at] = code
        at += 1
    elif code < 0x800:
        buffer[at] = 0xC0 | (code >> 6)
        buffer[at + 1] = 0x80 | (code & 0x3F)
        at += 2
    elif code < 0x10000:
        buffer[at] = 0xE0 | (code >> 12)
        buffer[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        buffer[at + 2] = 0x80 | (code & 0x3F)
        at += 3
    else:
        buffer[at] = 0xF0 | (code >> 18)
        buffer[at + 1] = 0x80 | ((code >> 12) & 0x3F)
        buffer[at + 2] = 0x80 | ((code >> 6) & 0x3F)
        buffer[at + 3] = 0x80 | (code & 0x3F)
        at += 4
    return at


@inlined
def _span(offsets, row, size):
    """Return beginning and end of a document, clipped to the data."""
    begin = min(max(np.int64(offsets[row]), np.int64(0)), size)
    return begin, min(max(np.int64(offsets[row + 1]), begin), size)


@kernel
def find_context(data: np.ndarray, offsets: np.ndarray, classes: np.ndarray, found: np.ndarray) -> int:
    """Mark the documents with a character whose lower case is not in these tables; return their number."""
    size = np.int64(len(data))
    number = 0
    for row in range(min(len(offsets) - 1, len(found))):
        at, end = _span(offsets, row, size)
        found[row] = False
        while at < end:
            if at + 8 <= end and load_u64(data, at) & np.uint64(0x8080808080808080) == 0:
                at += 8
                continue
            code, width = _decoded(data, at, end)
            if classes[code] & CONTEXT:
                found[row] = True
                number += 1
                break
            at += width
    return number


@kernel
def _fold(classes: np.ndarray, lower: np.ndarray, lowercase: bool) -> np.ndarray:
    """Return a table of the lower case of single bytes of words; _NO_WORD for others, _PART for parts of characters."""
    fold = np.full(256, np.uint8(_PART), np.uint8)
    for byte in range(128):
        code = lower[byte] if lowercase else byte
        fold[byte] = code if classes[code] & WORD else _NO_WORD
    return fold


@kernel
def _cut_words(
    data: np.ndarray,
    begin: int,
    end: int,
    classes: np.ndarray,
    lower: np.ndarray,
    lowercase: bool,
    fold: np.ndarray,
    buffer: np.ndarray,
    starts: np.ndarray,
) -> int:
    """Write words of two or more characters, each with a blank after it, to `buffer`; return their number."""
    token = np.int64(0)
    out = np.int64(0)
    at = np.int64(begin)
    starts[0] = 0
    while at < end:
        first = out
        excess = np.int64(0)  # bytes minus characters
        while at < end:
            byte = fold[data[at]]
            if byte > _PART:
                buffer[out] = byte
                out += 1
                at += 1
            elif byte == _NO_WORD:
                at += 1
                break
            else:
                code, width = _decoded(data, at, end)
                at += width
                if lowercase:
                    code = np.int64(lower[code])
                if not classes[code] & WORD:
                    break
                before = out
                out = _encoded(code, buffer, out)
                excess += out - before - 1
        if out - first - excess > 1:
            buffer[out] = 32  # the blank after the last word is not used
            out += 1
            token += 1
            starts[token] = out
        else:
            out = first
    return token


@kernel
def _cut_characters(
    data: np.ndarray,
    begin: int,
    end: int,
    classes: np.ndarray,
    lower: np.ndarray,
    lowercase: bool,
    buffer: np.ndarray,
    starts: np.ndarray,
) -> int:
    """Write the characters to `buffer`, runs of white space as a blank; return their number."""
    token = 0
    out = np.int64(0)
    after_space = False
    at = np.int64(begin)
    starts[0] = 0
    while at < end:
        code, width = _decoded(data, at, end)
        at += width
        if lowercase:
            code = np.int64(lower[code])
        space = classes[code] & SPACE != 0
        if space and after_space:
            token -= 1
            out = starts[token]
            code = np.int64(32)
        out = _encoded(code, buffer, out)
        token += 1
        starts[token] = out
        after_space = space
    return token


@kernel
def _sorted_keys(keys: np.ndarray, spare: np.ndarray, number: int, counts: np.ndarray) -> np.ndarray:
    """Return `keys[:number]` sorted, in one of the two arrays."""
    if number <= _SHORT:
        for at in range(1, number):
            key = keys[at]
            to = at
            while to > 0 and keys[to - 1] > key:
                keys[to] = keys[to - 1]
                to -= 1
            keys[to] = key
        return keys
    all_bits = np.uint32(0)
    for at in range(number):
        all_bits |= keys[at]
    for shift in range(0, 32, 8):
        if all_bits >> np.uint32(shift) == 0:
            break
        counts[:] = 0
        for at in range(number):
            counts[(keys[at] >> np.uint32(shift)) & np.uint32(255)] += 1
        total = np.int64(0)
        for digit in range(256):
            count = counts[digit]
            counts[digit] = total
            total += count
        for at in range(number):
            digit = (keys[at] >> np.uint32(shift)) & np.uint32(255)
            spare[counts[digit]] = keys[at]
            counts[digit] += 1
        keys, spare = spare, keys
    return keys


@inlined
def _longest(offsets, size):
    """Return the bytes of the longest document."""
    longest = np.int64(0)
    for row in range(len(offsets) - 1):
        begin, end = _span(offsets, row, size)
        longest = max(longest, end - begin)
    return longest


@inlined
def _room(longest, characters):
    """Return sizes for the tokens of the longest document and for their positions; a word takes three bytes or more."""
    tokens = longest if characters else longest // 3 + 1
    return np.empty(_MAX_GROWTH * longest + 4, np.uint8), np.empty(tokens + 2, np.int64)


@inlined
def _ngrams(tokens, least, most):
    """Return the number of n-grams of a number of tokens."""
    number = np.int64(0)
    for n in range(least, min(most, tokens) + 1):
        number += tokens - n + 1
    return number


@inlined
def _cut(data, begin, end, classes, lower, lowered, characters, folded, as_is, buffer, starts):
    """Write the tokens of a document; return their number."""
    if characters:
        return _cut_characters(data, begin, end, classes, lower, lowered, buffer, starts)
    fold = folded if lowered else as_is
    return _cut_words(data, begin, end, classes, lower, lowered, fold, buffer, starts)


@inlined
def _write_sums(ordered, number, indices, values, used):
    """Write an entry for each feature among sorted keys whose counts do not cancel out; return the next position."""
    at = np.int64(0)
    while at < number:
        feature = ordered[at] >> np.uint32(1)
        total = np.int64(0)
        while at < number and ordered[at] >> np.uint32(1) == feature:
            total += 1 - 2 * np.int64(ordered[at] & np.uint32(1))
            at += 1
        if total != 0:
            indices[used] = feature
            values[used] = np.float32(total)
            used += 1
    return used


@kernel
def _keys_of(
    buffer: np.ndarray,
    starts: np.ndarray,
    tokens: int,
    gap: int,
    least: int,
    most: int,
    mask: int,
    signed: bool,
    dictionary: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    keys: np.ndarray,
) -> int:
    """Write feature index and sign of each n-gram that has an index; return their number."""
    slots, hashes, ends, text = dictionary
    number = np.int64(0)
    for n in range(least, min(most, tokens) + 1):
        for token in range(tokens - n + 1):
            begin, end = starts[token], starts[token + n] - gap
            if len(hashes) == 0:
                hashed = murmur3(buffer, begin, end)
                negative = signed and is_negative(hashed)
                keys[number] = (np.uint64(bucket_of(hashed, mask)) << np.uint64(1)) | np.uint64(negative)
                number += 1
            else:
                slot, _hashed = slot_of(buffer, begin, end, slots, hashes, ends, text)
                if slots[slot] >= 0:
                    keys[number] = np.uint64(slots[slot]) << np.uint64(1)
                    number += 1
    return number


@kernel
def hash_documents(
    data: np.ndarray,
    offsets: np.ndarray,
    is_lower: np.ndarray,
    classes: np.ndarray,
    lower: np.ndarray,
    lowercase: bool,
    characters: bool,
    least: int,
    most: int,
    bits: int,
    signed: bool,
    dictionary: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (entries of each document, their indices, their values): counts of n-grams, with increasing indices.

    Documents marked in `is_lower` are in lower case already. `bits` is at most 31. Feature indices are hashes, unless
    the `dictionary` has strings; see dictionary.py.
    """
    rows = max(len(offsets) - 1, 0)
    size = np.int64(len(data))
    mask = np.uint32((np.int64(1) << bits) - 1)
    buffer, starts = _room(_longest(offsets, size), characters)
    gap = 0 if characters else 1  # bytes between tokens
    as_is = _fold(classes, lower, False)
    folded = _fold(classes, lower, lowercase)
    keys = np.empty(1024, np.uint32)
    spare = np.empty(1024, np.uint32)
    counts = np.empty(256, np.int64)
    lengths = np.empty(rows, np.uint32)
    indices = np.empty(1024, np.uint32)
    values = np.empty(1024, np.float32)
    used = np.int64(0)
    for row in range(rows):
        begin, end = _span(offsets, row, size)
        lowered = lowercase and not is_lower[row]
        tokens = _cut(data, begin, end, classes, lower, lowered, characters, folded, as_is, buffer, starts)
        number = _ngrams(tokens, least, most)
        if number > len(keys):
            keys = np.empty(number + number // 2, np.uint32)
            spare = np.empty(len(keys), np.uint32)
        number = _keys_of(buffer, starts, tokens, gap, least, most, mask, signed, dictionary, keys)
        if used + number > len(indices):
            room = used + number + len(indices)
            more_indices = np.empty(room, np.uint32)
            more_values = np.empty(room, np.float32)
            more_indices[:used] = indices[:used]
            more_values[:used] = values[:used]
            indices, values = more_indices, more_values
        before = used
        used = _write_sums(_sorted_keys(keys, spare, number, counts), number, indices, values, used)
        lengths[row] = used - before
    return lengths, indices[:used], values[:used]


@kernel
def cut_documents(
    data: np.ndarray,
    offsets: np.ndarray,
    is_lower: np.ndarray,
    classes: np.ndarray,
    lower: np.ndarray,
    lowercase: bool,
    characters: bool,
    least: int,
    most: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (bytes, offsets, number of the document) of all n-grams, in order."""
    rows = max(len(offsets) - 1, 0)
    size = np.int64(len(data))
    buffer, starts = _room(_longest(offsets, size), characters)
    gap = 0 if characters else 1
    as_is = _fold(classes, lower, False)
    folded = _fold(classes, lower, lowercase)
    text = np.empty(1024, np.uint8)
    ends = np.zeros(1025, np.int64)
    documents = np.empty(1024, np.int64)
    number = np.int64(0)
    for row in range(rows):
        begin, end = _span(offsets, row, size)
        lowered = lowercase and not is_lower[row]
        tokens = _cut(data, begin, end, classes, lower, lowered, characters, folded, as_is, buffer, starts)
        more = _ngrams(tokens, least, most)
        needed = ends[number] + starts[tokens] * (most * (most + 1) // 2)  # each byte is in at most n n-grams of n
        if needed > len(text):
            larger = np.empty(2 * needed, np.uint8)
            larger[: ends[number]] = text[: ends[number]]
            text = larger
        if number + more > len(documents):
            room = 2 * (number + more)
            larger_ends, larger_documents = np.empty(room + 1, np.int64), np.empty(room, np.int64)
            larger_ends[: number + 1] = ends[: number + 1]
            larger_documents[:number] = documents[:number]
            ends, documents = larger_ends, larger_documents
        for n in range(least, min(most, tokens) + 1):
            for token in range(tokens - n + 1):
                to = ends[number]
                for at in range(starts[token], starts[token + n] - gap):
                    text[to] = buffer[at]
                    to += 1
                number += 1
                ends[number] = to
                documents[number - 1] = row
    return text[: ends[number]], ends[: number + 1], documents[:number]


@kernel
def count_documents(indices: np.ndarray, counts: np.ndarray) -> None:
    """Add 1 for each entry; a document has at most one entry for each feature."""
    for at in range(len(indices)):
        if indices[at] < len(counts):
            counts[indices[at]] += 1
