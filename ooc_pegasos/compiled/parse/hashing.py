"""Names to buckets: murmur3 as in scikit-learn's FeatureHasher, and rows joined from hashed parts."""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_SHORT_ROW = 64
"""Rows with at most this number of entries are sorted by rank."""
ROOM_FOR_KEYS = 2 * _SHORT_ROW


# numba widens uint32 arithmetic to 64 bits, so each result is cut to 32 again.


@inlined
def _rotated(word, bits):
    return np.uint32((np.uint64(word) << np.uint64(bits)) | (np.uint64(word) >> np.uint64(32 - bits)))


@inlined
def _scrambled(word):
    return np.uint32(_rotated(np.uint32(word * _C1), 15) * _C2)


@kernel
def murmur3(data: np.ndarray, begin: int, end: int) -> int:
    """MurmurHash3_x86_32 with seed 0 of `data[begin:end]`, whose bounds the caller has checked."""
    state = np.uint32(0)
    at = begin
    while at + 4 <= end:
        word = np.uint32(data[at])
        word |= np.uint32(data[at + 1]) << np.uint32(8)
        word |= np.uint32(data[at + 2]) << np.uint32(16)
        word |= np.uint32(data[at + 3]) << np.uint32(24)
        state = np.uint32(state ^ _scrambled(np.uint32(word)))
        state = np.uint32(_rotated(state, 13) * np.uint32(5) + np.uint32(0xE6546B64))
        at += 4
    if at < end:
        word = np.uint32(data[at])
        if at + 1 < end:
            word |= np.uint32(data[at + 1]) << np.uint32(8)
        if at + 2 < end:
            word |= np.uint32(data[at + 2]) << np.uint32(16)
        state = np.uint32(state ^ _scrambled(np.uint32(word)))
    state = np.uint32(state ^ np.uint32(end - begin))
    state = np.uint32((state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    state = np.uint32((state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(state ^ (state >> np.uint32(16)))


@inlined
def is_negative(hashed):
    """True if the hash, read as a signed number, is negative."""
    return hashed >= np.uint32(0x80000000)


@inlined
def bucket_of(hashed, mask):
    """Return |hash| modulo the power of two `mask` + 1; 0 for -2^31, as in scikit-learn."""
    size = np.uint32(0) - hashed if is_negative(hashed) else hashed
    return np.uint32(size) & np.uint32(mask)


@kernel
def hash_strings(
    data: np.ndarray,
    offsets: np.ndarray,
    prefix: np.ndarray,
    bits: int,
    signed: bool,
    indices: np.ndarray,
    signs: np.ndarray,
) -> None:
    """Compute bucket and sign of `prefix` joined with each string `data[offsets[i]:offsets[i + 1]]`."""
    mask = np.uint32((np.int64(1) << bits) - 1)
    size = np.int64(len(data))
    fixed = len(prefix)
    joined = np.empty(fixed + 64, np.uint8)
    for at in range(fixed):
        joined[at] = prefix[at]
    for i in range(min(len(offsets) - 1, len(indices), len(signs))):
        begin = min(max(np.int64(offsets[i]), np.int64(0)), size)
        end = min(max(np.int64(offsets[i + 1]), begin), size)
        if fixed == 0:
            hashed = murmur3(data, begin, end)
        else:
            if fixed + end - begin > len(joined):
                joined = np.empty(fixed + 2 * (end - begin), np.uint8)
                for at in range(fixed):
                    joined[at] = prefix[at]
            for at in range(end - begin):
                joined[fixed + at] = data[begin + at]
            hashed = murmur3(joined, 0, fixed + end - begin)
        indices[i] = bucket_of(hashed, mask)
        signs[i] = np.float32(-1) if signed and is_negative(hashed) else np.float32(1)


@kernel
def _sort_by_rank(
    indices: np.ndarray, values: np.ndarray, begin: int, end: int, keys: np.ndarray, saved_values: np.ndarray
) -> None:
    """Sort by rank: the position of an entry is the number of smaller entries, counted without branches in SIMD lanes.

    Keys are indices with the position behind them, so that no two are equal. `keys` has room for two rows,
    `saved_values` for the values of a row.
    """
    number = end - begin
    for at in range(number):
        keys[at] = (np.uint64(indices[begin + at]) << np.uint64(32)) | np.uint64(at)
        saved_values[at] = values[begin + at]
    for at in range(number):
        key, rank = keys[at], np.int64(0)
        for other in range(number):
            rank += np.int64(keys[other] < key)
        keys[_SHORT_ROW + rank] = key
    for at in range(number):
        key = keys[_SHORT_ROW + at]
        indices[begin + at] = np.uint32(key >> np.uint64(32))
        values[begin + at] = saved_values[np.int64(key & np.uint64(0xFFFFFFFF))]


@kernel
def _sort_by_digits(
    indices: np.ndarray,
    values: np.ndarray,
    begin: int,
    end: int,
    spare_indices: np.ndarray,
    spare_values: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Sort by radix, a byte at a time from the lowest, stable; the spare arrays hold a row."""
    number = end - begin
    differing = np.uint32(0)
    for at in range(begin, end):
        differing |= indices[at] ^ indices[begin]
    for shift in range(0, 32, 8):
        if (differing >> np.uint32(shift)) & np.uint32(255) == 0:
            continue
        counts[:] = 0
        for at in range(begin, end):
            counts[(indices[at] >> np.uint32(shift)) & np.uint32(255)] += 1
        total = np.int64(0)
        for digit in range(256):
            count = counts[digit]
            counts[digit] = total
            total += count
        for at in range(begin, end):
            digit = (indices[at] >> np.uint32(shift)) & np.uint32(255)
            to = counts[digit]
            counts[digit] = to + 1
            spare_indices[to] = indices[at]
            spare_values[to] = values[at]
        for at in range(number):
            indices[begin + at] = spare_indices[at]
            values[begin + at] = spare_values[at]


@inlined
def in_order(indices, end):
    """True if `indices[:end]` do not decrease."""
    at = 1
    while at < end and indices[at - 1] <= indices[at]:
        at += 1
    return at >= end


@kernel
def sort_row(
    indices: np.ndarray,
    values: np.ndarray,
    end: int,
    keys: np.ndarray,
    counts: np.ndarray,
    spare_indices: np.ndarray,
    spare_values: np.ndarray,
) -> None:
    """Sort `indices[:end]` and their values, stable.

    `keys` has room for ROOM_FOR_KEYS, `counts` for 256, the spares for the row. `merge_rows` does the same in place,
    because a call for each short row would be slow.
    """
    if end <= _SHORT_ROW:
        _sort_by_rank(indices, values, 0, end, keys, spare_values)
    else:
        _sort_by_digits(indices, values, 0, end, spare_indices, spare_values, counts)


@kernel
def merge_rows(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray) -> int:
    """Make the indices of each row increase, in place, and return the number of entries left.

    Equal indices are added up in float64, in their order, and the sum is rounded once (it may
    become infinite); entries of 0 are dropped. `indptr` comes out as that of the compacted rows.
    """
    most = np.int64(min(len(indices), len(values)))
    longest = np.int64(0)
    for row in range(len(indptr) - 1):
        longest = max(longest, min(indptr[row + 1], most) - max(indptr[row], np.int64(0)))
    room = longest if longest > _SHORT_ROW else 0
    spare_indices = np.empty(room, np.uint32)
    spare_values = np.empty(room, np.float32)
    counts = np.empty(256, np.int64)
    keys, saved_values = np.empty(ROOM_FOR_KEYS, np.uint64), np.empty(_SHORT_ROW, np.float32)
    kept = np.int64(0)
    end = np.int64(0)
    if len(indptr) > 0:
        end = min(max(np.int64(indptr[0]), np.int64(0)), most)
        indptr[0] = 0
    for row in range(len(indptr) - 1):
        begin = end
        end = min(max(np.int64(indptr[row + 1]), begin), most)
        sorted_already = True
        for at in range(begin + 1, end):
            if indices[at - 1] > indices[at]:
                sorted_already = False
                break
        if not sorted_already:
            if end - begin <= _SHORT_ROW:
                _sort_by_rank(indices, values, begin, end, keys, saved_values)
            else:
                _sort_by_digits(indices, values, begin, end, spare_indices, spare_values, counts)
        at = begin
        while at < end:
            index = indices[at]
            total = np.float64(values[at])
            at += 1
            while at < end and indices[at] == index:
                total += np.float64(values[at])
                at += 1
            if total != 0.0:  # which float32 cannot round to 0: sums of float32 are multiples of its smallest number
                indices[kept] = index
                values[kept] = np.float32(total)
                kept += 1
        indptr[row + 1] = kept
    return kept


@kernel
def append_part(
    lengths: np.ndarray,
    part_indices: np.ndarray,
    part_values: np.ndarray,
    cursor: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
) -> bool:
    """Copy the next `lengths[r]` entries of a part to `cursor[r]` for each row r, and advance the cursors.

    Stops and returns False if a position is out of bounds or the part has fewer entries.
    """
    at = np.int64(0)
    available = np.int64(min(len(part_indices), len(part_values)))
    room = np.int64(min(len(indices), len(values)))
    if len(cursor) < len(lengths):
        return False
    for row in range(len(lengths)):
        length = np.int64(lengths[row])
        to = np.int64(cursor[row])
        if to < 0 or length > room - to or length > available - at:
            return False
        for entry in range(length):
            indices[to + entry] = part_indices[at + entry]
            values[to + entry] = part_values[at + entry]
        at += length
        cursor[row] = to + length
    return True
