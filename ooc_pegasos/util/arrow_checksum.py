"""CRC-32 of a whole Arrow file, stored inside the file, which detects a change of any byte, padding included.

Arrow writes the metadata of a schema at both ends of a file. The metadata hold the CRC-32 of the file, computed with
zeros in the place of the CRC-32.
"""

from __future__ import annotations

import re
import zlib

_NAME = b"ooc-pegasos-crc32:"
PLACE = {b"seal": _NAME + b"00000000"}
"""Metadata that a schema must have so that `seal` can insert the checksum."""
_PATTERN = re.compile(re.escape(_NAME) + rb"([0-9a-f]{8})")


def seal(content: bytes) -> bytes:
    """Return the content of a file with the checksum inserted."""
    return _PATTERN.sub(b"%s%08x" % (_NAME, zlib.crc32(content)), content)


def is_sealed(content: bytes) -> bool:
    """True if the checksum matches the content."""
    found = set(_PATTERN.findall(content))
    blank = _PATTERN.sub(_NAME + b"00000000", content)
    return found == {b"%08x" % zlib.crc32(blank)}
