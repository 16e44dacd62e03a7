"""Parsers of the texts of options: sizes, lists of numbers and words, tables of costs."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from ooc_pegasos.errors import InputError, UsageError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MOST_MEMORY = 1 << 62


def parse_size(text: str) -> int:
    """Return bytes from `64MB`, `1.5GiB`, `800k` or a plain number; units are powers of 1024."""
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if not parts:
        raise UsageError(f"{text[:40]!r} is not a size; write it like 64MB or 2GB")
    if float(parts[1]) > MOST_MEMORY:
        raise UsageError(f"{text[:40]!r} is more bytes than there can be; write it like 64MB or 2GB")
    return int(float(parts[1]) * {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}[parts[2]])


def is_delimiter(text: str) -> bool:
    """True if the text can separate cells."""
    return len(text) == 1 and text.isascii() and text not in '\0\r\n"'


def split_words(text: str) -> tuple[str, ...]:
    """Return the words between commas."""
    return tuple(word.strip() for word in text.split(","))


def parse_delimiter(text: str) -> str:
    r"""Return a delimiter; `\t`, written as two characters, is a tab."""
    return "\t" if text == r"\t" else text


def number_or_text(text: str) -> float | str:
    """Return a number if the text is a number, else the text, which `parse_lambdas` parses."""
    try:
        return float(text)
    except ValueError:
        return text


def is_iso_time(text: str) -> bool:
    """True for a date or time like 2026-12-31 or 2026-12-31T13:45."""
    with suppress(ValueError):
        return bool(re.match(r"\d{4}-\d\d-\d\d($|[T ]\d\d:\d\d)", text) and datetime.fromisoformat(text))
    return False


def parse_split(text: str) -> tuple[str, str, str]:
    """Return (column, sign, value) of a rule like `fold=test` or `date>=2026-10-01`."""
    parts = re.fullmatch(r"\s*([^<>=]+?)\s*(<=|>=|=|<|>)\s*([^<>=].*?)\s*", text)
    if not parts:
        raise UsageError(f"{text[:40]!r} is not understood; write it like fold=test or 'date>=2026-10-01'")
    column, sign, value = parts.groups()
    with suppress(ValueError):
        if sign == "=" or is_iso_time(value) or math.isfinite(float(value)):
            return column, sign, value
    raise UsageError(
        f"{value[:40]!r} is not a number or a date like 2026-10-01, and only those can be compared by {sign}"
    )


def is_split(text: str) -> bool:
    """True for a rule that `parse_split` understands."""
    with suppress(UsageError):
        return bool(parse_split(text))
    return False


def canonical_split(text: str) -> str:
    """Return a rule without needless spaces."""
    return "".join(parse_split(text))


def parse_delay(text: str) -> float | None:
    """Return a number of rows, or None for `auto`."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number; write auto or a number of rows") from None


def parse_class_weight(text: str) -> str | tuple[float, ...]:
    """Return `balanced`, or the numbers between commas."""
    if text == "balanced":
        return text
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not understood; write balanced, or numbers like 1,5") from None


def read_costs(name: str) -> tuple[tuple[float, ...], ...]:
    """Return the table of numbers in a text file."""
    try:
        lines = [line for line in Path(name).read_text().splitlines() if line.strip()]
        return tuple(tuple(float(word) for word in line.replace(",", " ").split()) for line in lines)
    except OSError as error:
        raise InputError(f"{name}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    except ValueError as error:
        raise InputError(f"{name}: not a table of numbers ({error}); write a line for each class") from error


def parse_lambdas(text: str) -> tuple[float, ...]:
    """Parse `1e-4`, several as `1e-3,1e-4`, or a geometric path `1e-7:1e-3:9` of nine values."""
    try:
        if ":" in text:
            least, most, count = text.split(":")
            ends = sorted((float(least), float(most)))
            number = int(count)
            if number < 2 or not 0 < ends[0] < ends[1] < float("inf"):
                raise ValueError
            ratio = math.log(ends[1] / ends[0]) / (number - 1)
            return (*(ends[1] * math.exp(-ratio * i) for i in range(number - 1)), ends[0])
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(
            f"{{lam={text}}} is not understood; write a number, several like 1e-3,1e-4, or a path like 1e-7:1e-3:9"
        ) from None
