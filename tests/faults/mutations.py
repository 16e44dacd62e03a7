"""Random mutations of valid files; the same seed makes the same file."""

import copy
import re
import struct
from typing import Any

import numpy as np

WORDS = [
    *(b"0", b"-1", b"-0", b"1", b"255", b"256", b"65535", b"2147483647", b"2147483648", b"-2147483649"),
    *(b"4294967294", b"4294967295", b"4294967296", b"9223372036854775807", b"9223372036854775808"),
    *(b"18446744073709551616", b"NaN", b"nan(1)", b"inf", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"3.5e38"),
    *(
        b"1e38",
        b"0x10",
        b"1_000",
        b"9" * 400,
        b"0." + b"0" * 400 + b"1",
        b".",
        b"+",
        b"-",
        b"e5",
        b"",
        b"null",
        b"true",
    ),
    *(b"\0", b"\n", b"\r\n", b"\r", b" ", b"\t", b",", b":", b"|", b"'", b'"', b"#", b"\\", b"\\u0000", b"\\ud800"),
    *(b"[", b"]", b"{", b"}", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc3", "\N{SNOWMAN}".encode()),
    *(b"qid:1", b"1:", b":1", b"a:b:c", b"A" * 5000, b"[" * 3000, b"../../etc/passwd", b"1:1 " * 3000),
]
NUMBERS = [0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
NUMBERS += [2**63 - 1, -(2**31), -(2**63), 2**62, 2**40]
VALUES: list[Any] = [
    *NUMBERS,
    *(2**63, 2**64, 10**400, 0.5, -0.0, 1e-320, 1e155, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *(None, True, False, "", "0", "nan", "\0", "\ud800", "../x", "/etc/passwd", "x" * 5000, [], {}, [[]], [0], [None]),
    {"a": 1},
]


def damaged(rng: np.random.Generator, content: bytes, other: bytes = b"") -> bytes:
    """Apply one to four mutations to some bytes."""
    for _ in range(1 + int(rng.geometric(0.6)) % 4):
        content = _once(rng, content, other)
    return content


def _once(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    size = len(content)
    if not size:
        return _word(rng)
    at = int(rng.integers(size))
    end = min(size, at + int(rng.geometric(0.02)))
    what = rng.integers(12)
    if what < 3:
        return content[:at] + bytes([content[at] ^ 1 << int(rng.integers(8))]) + content[at + 1 :]
    if what == 3:
        return content[:at] + bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x0A])]) + content[at + 1 :]
    if what == 4:
        return content[:at]
    if what == 5:
        return content[:at] + content[end:]
    if what == 6:
        return content[:end] + content[at:end] * int(rng.integers(1, 4)) + content[end:]
    if what == 7:
        to = int(rng.integers(len(other))) if other else 0
        return content[:at] + other[to:]
    if what == 8:
        return content[:at] + _word(rng) + content[at:]
    if what == 9:
        numbers = list(re.finditer(rb"[-+.0-9eE]+", content[:100_000]))
        if numbers:
            found = numbers[int(rng.integers(len(numbers)))]
            return content[: found.start()] + _word(rng) + content[found.end() :]
    kind = "bhiq"[int(rng.integers(4))]
    number = struct.pack("<q", NUMBERS[int(rng.integers(len(NUMBERS)))])[: struct.calcsize(kind)]
    if what == 10 and size >= 8:
        at &= ~7
    return content[:at] + number + content[at + len(number) :]


def _word(rng: np.random.Generator) -> bytes:
    return WORDS[int(rng.integers(len(WORDS)))]


def _places(table: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in nested dictionaries and lists."""
    found, waiting = [], [table]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list):
                waiting.append(one[key])
    return found


def changed(rng: np.random.Generator, table: Any) -> Any:
    """Return a copy of nested dictionaries and lists with one to three changed values."""
    table = copy.deepcopy(table)
    for _ in range(1 + int(rng.geometric(0.7)) % 3):
        places = _places(table)
        if not places:
            return table
        holder, key = places[int(rng.integers(len(places)))]
        old, what = holder[key], rng.integers(8)
        number = isinstance(old, int | float) and not isinstance(old, bool)
        if what == 0:
            del holder[key]
        elif what == 1 and number:
            holder[key] = old + int(rng.choice([-1, 1, -8, 8, 4096, -4096]))
        elif what == 2 and number:
            holder[key] = NUMBERS[int(rng.integers(len(NUMBERS)))]
        elif what == 3 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        elif what == 4:
            other, there = places[int(rng.integers(len(places)))]
            holder[key] = copy.deepcopy(other[there])
        elif what == 5 and isinstance(old, str):
            holder[key] = damaged(rng, old.encode(errors="replace")).decode(errors="replace")
        elif what == 6 and isinstance(holder, dict):
            holder[f"{key}x"] = old
        else:
            holder[key] = copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])
    return table
