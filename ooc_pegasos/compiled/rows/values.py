"""Values on the way to a store: divided by the norm of the row, rounded, dictionary-coded."""

import numpy as np

from ooc_pegasos.compiled.jit import inlined, kernel

ROUNDINGS = {None: 0, "float16": 1, "bfloat16": 2}
"""Roundings of values, by their number in compiled loops."""
SLOTS = 1024
"""Size of hash tables of levels: a power of two, so large that a search takes mostly one step."""


@inlined
def norm_of(values, begin, end):
    """Return the l2 norm of `values[begin:end]`, with the same bits for all callers."""
    squares = np.float64(0)
    for at in range(np.uint64(begin), np.uint64(end)):
        squares += np.float64(values[at]) * np.float64(values[at])
    return np.sqrt(squares)


@inlined
def bits_of(value):
    """Return the bits of a float32."""
    return np.float32(value).view(np.uint32)


@inlined
def from_bits(bits):
    """Return the float32 with these bits."""
    return np.uint32(bits).view(np.float32)


@inlined
def float16_bits(value):
    """Return the bits of the float16 nearest to a float32 within its range, ties to even."""
    bits = bits_of(value)
    size = bits & np.uint32(0x7FFFFFFF)
    if size < np.uint32(113 << 23):  # below 2^-14 the last place is 2^-24, which is that of the float32 after 0.5
        size = bits_of(from_bits(size) + np.float32(0.5)) - np.uint32(126 << 23)
    else:
        odd = (size >> np.uint32(13)) & np.uint32(1)
        size = (size - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    return np.uint32(size) | ((bits >> np.uint32(16)) & np.uint32(0x8000))


@inlined
def from_float16(half):
    """Return the value of the bits of a finite float16."""
    size = from_bits((half & np.uint32(0x7FFF)) << np.uint32(13)) * np.float32(2.0**112)
    sign = (half & np.uint32(0x8000)) << np.uint32(16)
    return from_bits(bits_of(size) | sign)


@inlined
def bfloat16_bits(value):
    """Return the upper half of a float32, rounded to nearest, ties to even."""
    bits = np.uint64(bits_of(value))
    odd = (bits >> np.uint64(16)) & np.uint64(1)
    return np.uint32((bits + np.uint64(0x7FFF) + odd) >> np.uint64(16))


@inlined
def short_bits(value, rounding):
    """Return the 16 bits of a value rounded to float16 (1) or bfloat16 (2)."""
    return float16_bits(value) if rounding == 1 else bfloat16_bits(value)


@inlined
def rounded_value(value, rounding):
    """Return a value after rounding, as float32; 0 means no rounding."""
    if rounding == 1:
        value = from_float16(float16_bits(value))
    elif rounding == 2:
        value = from_bits(bfloat16_bits(value) << np.uint32(16))
    return value


@inlined
def slot_of(bits):
    """Return the first slot of the search for a level."""
    return (np.uint64(bits) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(54)


@kernel
def round_values(values: np.ndarray, rounding: int) -> None:
    """Round all values in place to nearest, ties to even."""
    for at in range(len(values)):
        values[at] = rounded_value(values[at], rounding)


@kernel
def distinct_values(indptr: np.ndarray, values: np.ndarray, normalize: bool, rounding: int, found: np.ndarray) -> int:
    """Find the distinct values of rows as stored, as bits, in order of appearance.

    Returns their number, or -1 if those other than 0.0 would fill `found`.
    """
    keys = np.zeros(SLOTS, np.uint32)
    number, zeros = 0, 0
    before = np.uint32(0xFFFFFFFF)
    for row in range(len(indptr) - 1):
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        norm = norm_of(values, begin, end) if normalize else np.float64(0)
        for pair in range(begin, end):
            value = values[pair]
            if norm > 0:
                value = np.float32(np.float64(value) / norm)
            if rounding > 0:
                value = rounded_value(value, rounding)
            bits = bits_of(value)
            if bits == before:
                continue
            before = bits
            if bits == np.uint32(0):  # as a key, 0 marks a free slot
                if zeros == 0:
                    found[number] = bits
                    number, zeros = number + 1, 1
                continue
            slot = slot_of(bits)
            while keys[slot] != bits and keys[slot] != np.uint32(0):
                slot = (slot + np.uint64(1)) & np.uint64(SLOTS - 1)
            if keys[slot] != bits:
                if number - zeros == len(found) - 1:
                    return -1
                keys[slot] = bits
                found[number] = bits
                number += 1
    return number


@kernel
def fill_places(levels: np.ndarray, keys: np.ndarray, places: np.ndarray) -> None:
    """Fill a hash table from the bits of levels to their codes; `levels[0]`, 0.0, needs no entry."""
    for place in range(1, len(levels)):
        bits = bits_of(levels[place])
        slot = slot_of(bits)
        while keys[slot] != np.uint32(0):
            slot = (slot + np.uint64(1)) & np.uint64(SLOTS - 1)
        keys[slot] = bits
        places[slot] = place
