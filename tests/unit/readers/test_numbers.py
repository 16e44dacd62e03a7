"""Numbers in text, against Python's own correctly rounded `float`."""

import struct
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos.compiled.parse.numbers import NOT_A_NUMBER, NOT_FINITE, NUMBER, parse_number


def parse(text: str) -> tuple[int, float, int]:
    buffer = np.frombuffer(text.encode() + b"\n" + bytes(32), np.uint8)
    return parse_number(buffer, 0)


def assert_like_python(text: str) -> None:
    status, value, end = parse(text)
    expected = float(text)
    if np.isfinite(expected):
        assert status == NUMBER
        assert struct.pack("d", value) == struct.pack("d", expected), text
        assert end == len(text)
    else:
        assert status == NOT_FINITE, text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_shortest_decimals(number):
    assert_like_python(repr(number))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_any_number_of_digits(number, digits):
    assert_like_python(f"{number:.{digits}e}")


@given(st.from_regex(r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?", fullmatch=True))
def test_any_notation(text):
    assert_like_python(text)


@given(st.floats(min_value=5e-324, max_value=1e300))
def test_halfway_between_neighbours(number):
    """The hardest inputs: an exact tie, and just above and below one."""
    with localcontext() as context:
        context.prec = 1100
        tie = (Decimal(number) + Decimal(float(np.nextafter(number, np.inf)))) / 2
        text = f"{tie:f}" if abs(tie.adjusted()) < 30 else f"{tie:e}"
    assert_like_python(text)
    mantissa, _, exponent = text.partition("e")
    longer = mantissa + ("1" if "." in mantissa else ".0000001")
    assert_like_python(longer + ("e" + exponent if exponent else ""))


@pytest.mark.parametrize("text", ["0", "-0", "1e22", "1e23", "1e-400", "1e400", "4.9e-324", "2.2250738585072011e-308"])
@pytest.mark.parametrize("zeros", ["", "000000000000000000000000"])
def test_borders(text, zeros):
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    assert_like_python(sign + zeros + digits)


@pytest.mark.parametrize(
    "text", ["", "-", "+", ".", "e5", "1e", "1e+", "1.2.3", "0x10", "1_000", "--1", "1:2", "1,5", "é"]
)
def test_not_numbers(text):
    assert parse(text)[0] == NOT_A_NUMBER


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "inf", "-Inf", "infinity"])
def test_not_finite(text):
    assert parse(text)[0] == NOT_FINITE
