"""Decimal text to float64, correctly rounded, from a byte buffer.

Eight characters are read at once: `digit_run` finds how many leading ones are digits, `digits_value`
folds them into an integer with three multiplications. Positions are uint64 where they index an array, because numba
checks whether a signed one counts from the end. Mantissas below 2^53 with small exponents are
then exact in one division (Clinger 1990); all others go through a 128-bit product (Lemire 2021,
"Number parsing at a gigabyte per second"); the rare ties that product cannot decide go to `strtod`.
"""

from typing import Any

import numpy as np

from ooc_pegasos.compiled.intrinsics import float_from_bits, leading_zeros, load_u64, multiply_high, trailing_zeros
from ooc_pegasos.compiled.jit import Deferred, inlined, kernel

NUMBER, NOT_A_NUMBER, NOT_FINITE = 0, 1, 2

_ZEROS = np.uint64(0x3030303030303030)
_TO_HIGH_BIT = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)
_PAIRS = np.uint64(0x000000FF000000FF)
_TEN_TO = np.array([10.0**k for k in range(23)])
_INTEGER_TEN_TO = np.array([10**k for k in range(20)], dtype=np.uint64)
ROUNDS_TO_INFINITY = float(np.finfo(np.float32).max) + 2.0**103
"""Half a unit in the last place above the largest float32."""

_NAN, _INF, _INFINITY = (np.frombuffer(word, np.uint8) for word in (b"nan", b"inf", b"infinity"))
_SMALLEST_POWER, _LARGEST_POWER = -342, 308


def _make_strtod() -> Any:
    """Declare the function of the C library."""
    from numba import types

    return types.ExternalFunction("strtod", types.float64(types.voidptr, types.voidptr))


_strtod: Any = Deferred(_make_strtod)


def _powers_of_five() -> tuple[np.ndarray, np.ndarray]:
    """5^q for every power a float64 can have, as 128 bits with the highest set: (high, low) words."""
    high, low = [], []
    for q in range(_SMALLEST_POWER, _LARGEST_POWER + 1):
        if q >= 0:
            power = 5**q
            length = power.bit_length()
            power = power << (128 - length) if length <= 128 else power >> (length - 128)
        else:
            divisor = 5**-q
            bits = (divisor - 1).bit_length()
            power = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // divisor + 1
            power >>= max(power.bit_length() - 128, 0)
        high.append(power >> 64)
        low.append(power & 0xFFFFFFFFFFFFFFFF)
    return np.array(high, dtype=np.uint64), np.array(low, dtype=np.uint64)


_FIVE_HIGH, _FIVE_LOW = _powers_of_five()


@inlined
def digit_run(buffer, at):
    """Return (digits as bytes 0..9, number of leading digits among the eight characters from `at`)."""
    word = load_u64(buffer, at) ^ _ZEROS
    non_digits = ((word + _TO_HIGH_BIT) | word) & _HIGH_BITS
    return word, np.int64(trailing_zeros(non_digits) >> np.uint64(3))


@inlined
def digits_value(word, count):
    """Return the integer of the first `count` (1 to 8) digits of a `digit_run`."""
    word = word << np.uint64(64 - 8 * count)
    word = word * np.uint64(10) + (word >> np.uint64(8))
    low = (word & _PAIRS) * np.uint64(0x000F424000000064)
    high = ((word >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return (low + high) >> np.uint64(32)


@inlined
def is_digit(char):
    """True for the digits 0 to 9."""
    return 48 <= char <= 57


@inlined
def ends_token(char):
    """True for white space (9 to 13 and 32) and the # of a comment."""
    return char == 32 or 9 <= char <= 13 or char == 35


@inlined
def ordinary_number(buffer, at):
    """Return (True if a number of the form ddd or ddd.ddd is at `at`, its value, position after it).

    At most 7 digits before the point and 15 in all. This is the fast path and reports no errors: all other
    forms, and invalid characters after a number, are left to `parse_number`.
    """
    negative = buffer[np.uint64(at)] == 45
    if negative:
        at += 1
    if buffer[np.uint64(at + 1)] == 46:  # mostly 0.ddd: a branch costs less than to count the digits
        is_plain, whole, mantissa = is_digit(buffer[np.uint64(at)]), np.int64(1), np.uint64(buffer[np.uint64(at)] - 48)
    else:
        word, whole = digit_run(buffer, at)
        is_plain, mantissa = 0 < whole < 8, digits_value(word, whole)
    at += whole
    fraction = np.int64(0)
    if is_plain and buffer[np.uint64(at)] == 46:
        at += 1
        word, fraction = digit_run(buffer, at)
        if fraction > 0:
            mantissa = mantissa * _INTEGER_TEN_TO[np.uint64(fraction)] + digits_value(word, fraction)
            at += fraction
            if fraction == 8:
                word, more = digit_run(buffer, at)
                is_plain = whole + more <= 7
                if is_plain and more > 0:
                    mantissa = mantissa * _INTEGER_TEN_TO[np.uint64(more)] + digits_value(word, more)
                    at += more
                    fraction += more
    # at most 15 digits: both operands are exact in float64, so the quotient is correctly rounded
    value = np.float64(mantissa) / _TEN_TO[np.uint64(fraction)]
    if negative:
        value = -value
    return is_plain, value, at, buffer[np.uint64(at)]


@kernel
def decimal_to_float(mantissa: int, power: int) -> tuple[bool, float]:
    """Return (decided, mantissa * 10^power) by the 128-bit product; `mantissa` is a nonzero uint64."""
    if power < _SMALLEST_POWER:
        return True, 0.0
    if power > _LARGEST_POWER:
        return True, np.inf
    zeros = leading_zeros(mantissa)
    scaled = mantissa << zeros
    five = power - _SMALLEST_POWER
    high = multiply_high(scaled, _FIVE_HIGH[five])
    low = scaled * _FIVE_HIGH[five]
    if (high & np.uint64(0x1FF)) == np.uint64(0x1FF):
        carry = multiply_high(scaled, _FIVE_LOW[five])
        low = low + carry
        if carry > low:
            high = high + np.uint64(1)
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and (power < -27 or power > 55):
        return False, 0.0
    top = high >> np.uint64(63)
    shift = top + np.uint64(9)
    bits = high >> shift
    exponent = ((217706 * power) >> 16) + 63 + np.int64(top) - np.int64(zeros) + 1023
    if exponent <= 0:
        if exponent <= -63:
            return True, 0.0
        bits = bits >> np.uint64(1 - exponent)
        bits = (bits + (bits & np.uint64(1))) >> np.uint64(1)
        return True, float_from_bits(bits)  # a carry into bit 52 is the smallest normal number
    if low <= np.uint64(1) and -4 <= power <= 23 and (bits & np.uint64(3)) == np.uint64(1):
        if (bits << shift) == high:
            bits = bits & ~np.uint64(1)
    bits = (bits + (bits & np.uint64(1))) >> np.uint64(1)
    if bits >= np.uint64(1) << np.uint64(53):
        bits = np.uint64(1) << np.uint64(52)
        exponent += 1
    if exponent >= 2047:
        return True, np.inf
    bits = bits & ((np.uint64(1) << np.uint64(52)) - np.uint64(1))
    return True, float_from_bits((np.uint64(exponent) << np.uint64(52)) | bits)


@kernel
def parse_number(buffer: np.ndarray, at: int) -> tuple[int, float, int]:
    """Return (status, value, position after it) of any decimal number that starts at `at`; a token must end there.

    The buffer must end with something that is not part of a number (a line feed and padding).
    """
    start = at
    negative = buffer[at] == 45
    if negative or buffer[at] == 43:
        at += 1
    mantissa = np.uint64(0)
    kept = 0  # significant digits in the mantissa, at most 19
    power = 0
    any_digit = False
    truncated = False  # True if digits beyond the 19th were dropped
    after_point = False
    while True:
        char = buffer[at]
        if is_digit(char):
            any_digit = True
            if kept < 19:
                mantissa = mantissa * np.uint64(10) + np.uint64(char - 48)
                if mantissa > np.uint64(0):
                    kept += 1
                if after_point:
                    power -= 1
            else:
                truncated = truncated or char != 48
                if not after_point:
                    power += 1
        elif char == 46 and not after_point:
            after_point = True
        else:
            break
        at += 1
    if not any_digit:
        return _not_a_decimal(buffer, start)
    if buffer[at] == 101 or buffer[at] == 69:  # e, E
        at += 1
        minus = buffer[at] == 45
        if minus or buffer[at] == 43:
            at += 1
        if not is_digit(buffer[at]):
            return NOT_A_NUMBER, 0.0, at
        exponent = 0
        while is_digit(buffer[at]):
            if exponent < 100_000_000:
                exponent = exponent * 10 + np.int64(buffer[at] - 48)
            at += 1
        power += -exponent if minus else exponent
    if not ends_token(buffer[at]):
        return NOT_A_NUMBER, 0.0, at
    value = 0.0
    if mantissa > np.uint64(0):
        if not truncated and mantissa <= np.uint64(1 << 53) and -22 <= power <= 22:
            value = np.float64(mantissa)
            value = value / _TEN_TO[-power] if power < 0 else value * _TEN_TO[power]
        else:
            decided, value = decimal_to_float(mantissa, power)
            if truncated and decided:  # right only if the dropped digits do not change the result
                decided, above = decimal_to_float(mantissa + np.uint64(1), power)
                decided = decided and above == value
            if not decided:
                value = abs(_strtod(buffer[start:].ctypes, np.zeros(1, np.int64).ctypes))
    if not np.isfinite(value):
        return NOT_FINITE, value, at
    return NUMBER, -value if negative else value, at


@kernel
def _not_a_decimal(buffer: np.ndarray, start: int) -> tuple[int, float, int]:
    """Recognise `nan` and `inf` (any case, any sign)."""
    at = start
    if buffer[at] == 45 or buffer[at] == 43:
        at += 1
    if _spells(buffer, at, _NAN) or _spells(buffer, at, _INF) or _spells(buffer, at, _INFINITY):
        return NOT_FINITE, np.nan, at
    return NOT_A_NUMBER, 0.0, at


@inlined
def _spells(buffer, at, word):
    """True if the token at `at` is this word, in any case."""
    same = 0
    while same < len(word) and (buffer[at + same] | 32) == word[same]:
        same += 1
    return same == len(word) and ends_token(buffer[at + same])
