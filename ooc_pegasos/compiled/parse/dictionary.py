"""A table of strings, each with a number: found by its hash, and compared byte by byte.

`slots` has a power of two of places, at least two for each string: its number, or -1. String number i has the hash
`hashes[i]` and the bytes `text[ends[i]:ends[i + 1]]`.
"""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel
from ooc_pegasos.compiled.parse.hashing import murmur3

NOWHERE = 0xFFFFFFFF
"""Instead of the number of a string that is not in the table."""


@inlined
def _is(number, hashed, data, begin, end, hashes, ends, text):
    """Whether string `number` is `data[begin:end]`."""
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
    """(the slot where `data[begin:end]` is or would be, its hash); the caller has bounded the string."""
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
    """For each string `data[offsets[i]:offsets[i + 1]]` its number, or NOWHERE."""
    size = np.int64(len(data))
    for i in range(min(len(offsets) - 1, len(numbers))):
        begin = min(max(np.int64(offsets[i]), np.int64(0)), size)
        end = min(max(np.int64(offsets[i + 1]), begin), size)
        slot, _hashed = slot_of(data, begin, end, slots, hashes, ends, text)
        numbers[i] = slots[slot] if slots[slot] >= 0 else NOWHERE


def slots_for(number: int) -> int:
    """How many slots that many strings need."""
    return 1 << max(2 * number - 1, 1).bit_length()


@kernel
def hash_all(text: np.ndarray, ends: np.ndarray, hashes: np.ndarray) -> None:
    """The hash of each string of a table."""
    for i in range(min(len(hashes), len(ends) - 1)):
        if 0 <= ends[i] <= ends[i + 1] <= len(text):
            hashes[i] = murmur3(text, ends[i], ends[i + 1])


@kernel
def fill_slots(hashes: np.ndarray, number: int, slots: np.ndarray) -> None:
    """Give the first strings, no two of which are equal, their slots."""
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
    """Count in how many rows each string occurs, from string `first` on; new ones are added to the table.

    `rows` says of each string in which row it stands, from `first_row` on; those of a row follow each other. Returns
    (strings done, strings in the table); fewer are done than there are if the table has no room.
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
