"""A hash table of numbered strings, compared byte by byte.

The number of `slots` is a power of two, at least two for each string; a slot holds the number of a string, or -1.
String number i has the hash `hashes[i]` and the bytes `text[ends[i]:ends[i + 1]]`.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.hashing import murmur3

NOT_FOUND = 0xFFFFFFFF
"""The number of strings that are not in the table."""


@inlined
def _is(number, hashed, data, begin, end, hashes, ends, text):
    """True if string `number` is `data[begin:end]`."""
    first = ends[number]
    same = hashes[number] == hashed and ends[number + 1] - first == end - begin
    at = np.int64(0)
    while same and at < end - begin:
        same = text[first + at] == data[begin + at]
        at += 1
    return same


@kernel
def slot_of(
    data: np.ndarray,
    begin: int,
    end: int,
    slots: np.ndarray,
    hashes: np.ndarray,
    ends: np.ndarray,
    text: np.ndarray,
) -> tuple[int, int]:
    """Return (the slot of `data[begin:end]`, or the free slot for it; its hash); the caller has checked the bounds."""
    hashed = murmur3(data, begin, end)
    last = np.int64(len(slots) - 1)
    slot = np.int64(hashed) & last
    while slots[slot] >= 0 and not _is(slots[slot], hashed, data, begin, end, hashes, ends, text):
        slot = (slot + 1) & last
    return slot, hashed


@kernel
def find_strings(
    data: np.ndarray,
    offsets: np.ndarray,
    slots: np.ndarray,
    hashes: np.ndarray,
    ends: np.ndarray,
    text: np.ndarray,
    numbers: np.ndarray,
) -> None:
    """Look up the number, or NOT_FOUND, of each string `data[offsets[i]:offsets[i + 1]]`."""
    size = np.int64(len(data))
    for i in range(min(len(offsets) - 1, len(numbers))):
        begin = min(max(np.int64(offsets[i]), np.int64(0)), size)
        end = min(max(np.int64(offsets[i + 1]), begin), size)
        slot, _hashed = slot_of(data, begin, end, slots, hashes, ends, text)
        numbers[i] = slots[slot] if slots[slot] >= 0 else NOT_FOUND


def slots_for(number: int) -> int:
    """Return the number of slots for a number of strings."""
    return 1 << max(2 * number - 1, 1).bit_length()


@kernel
def hash_all(text: np.ndarray, ends: np.ndarray, hashes: np.ndarray) -> None:
    """Hash each string of a table."""
    for i in range(min(len(hashes), len(ends) - 1)):
        if 0 <= ends[i] <= ends[i + 1] <= len(text):
            hashes[i] = murmur3(text, ends[i], ends[i + 1])


@kernel
def fill_slots(hashes: np.ndarray, number: int, slots: np.ndarray) -> None:
    """Insert the first strings, all distinct, into the slots."""
    slots[:] = -1
    last = np.int64(len(slots) - 1)
    for i in range(number):
        slot = np.int64(hashes[i]) & last
        while slots[slot] >= 0:
            slot = (slot + 1) & last
        slots[slot] = i


@kernel
def count_strings(
    data: np.ndarray,
    offsets: np.ndarray,
    rows: np.ndarray,
    first_row: int,
    first: int,
    number: int,
    slots: np.ndarray,
    hashes: np.ndarray,
    ends: np.ndarray,
    text: np.ndarray,
    counts: np.ndarray,
    last_rows: np.ndarray,
) -> tuple[int, int]:
    """Count the rows in which each string occurs, from string `first` on; new strings are added to the table.

    `rows` holds the row of each string, relative to `first_row`; the strings of a row are consecutive. Returns
    (strings counted, strings in the table); counting stops when the table is full.
    """
    size = np.int64(len(data))
    for i in range(first, min(len(offsets) - 1, len(rows))):
        begin = min(max(np.int64(offsets[i]), np.int64(0)), size)
        end = min(max(np.int64(offsets[i + 1]), begin), size)
        slot, hashed = slot_of(data, begin, end, slots, hashes, ends, text)
        known = np.int64(slots[slot])
        if known < 0:
            to = ends[number]
            if 2 * (number + 1) > len(slots) or number >= len(hashes) or to + end - begin > len(text):
                return i, number
            for at in range(end - begin):
                text[to + at] = data[begin + at]
            known = np.int64(number)
            hashes[known], ends[known + 1], counts[known], last_rows[known] = hashed, to + end - begin, 0, -1
            slots[slot] = known
            number += 1
        row = first_row + rows[i]
        if last_rows[known] != row:
            last_rows[known] = row
            counts[known] += 1
    return min(len(offsets) - 1, len(rows)), number
