"""JSON for files: values that JSON can represent, and tables with a checksum, which detects a change of any bit."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from typing import Any

_KEY = "checksum"


def checksum_of(table: dict[str, Any]) -> str:
    """Return the CRC-32 of a table without its checksum, independent of formatting. Raises ValueError for NaN."""
    canonical = json.dumps({key: table[key] for key in table if key != _KEY}, sort_keys=True, allow_nan=False)
    return f"{zlib.crc32(canonical.encode()):08x}"


def encode(table: dict[str, Any]) -> bytes:
    """Return readable JSON with the checksum."""
    whole = {**table, _KEY: checksum_of(table)}
    return (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode()


def decode(content: bytes) -> dict[str, Any]:
    """Return the table without its checksum. Raises ValueError or RecursionError."""
    table: Any = json.loads(content)
    if not isinstance(table, dict):
        raise ValueError("not a table")
    if not is_sound(table):
        raise ValueError("the checksum does not match, so the file was changed or damaged")
    del table[_KEY]
    return table


def is_sound(table: dict[str, Any]) -> bool:
    """True if the checksum of a table matches. Raises ValueError for NaN and inf."""
    return table.get(_KEY) == checksum_of(table)


def plainly(value: Any) -> Any:
    """Return values that JSON can represent; NaN and infinities become null."""
    if isinstance(value, dict):
        return {str(key): plainly(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plainly(dataclasses.asdict(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)
