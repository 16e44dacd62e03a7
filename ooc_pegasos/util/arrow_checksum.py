"""A checksum of a whole Arrow file, inside it: no byte can change unnoticed, padding included.

The schema's metadata, which Arrow writes at both ends of a file, holds a place for the CRC-32 of the file
with zeros in that place.
"""

from __future__ import annotations

import re
import zlib

_NAME = b"ooc-pegasos-crc32:"
PLACE = {b"seal": _NAME + b"00000000"}
"""Metadata that a schema must have for its file to be sealed."""
_PATTERN = re.compile(re.escape(_NAME) + rb"([0-9a-f]{8})")


def seal(content: bytes) -> bytes:
    """Put the checksum in its place."""
    return _PATTERN.sub(b"%s%08x" % (_NAME, zlib.crc32(content)), content)


def is_sealed(content: bytes) -> bool:
    """Whether every byte is as it was written."""
    found = set(_PATTERN.findall(content))
    blank = _PATTERN.sub(_NAME + b"00000000", content)
    return found == {b"%08x" % zlib.crc32(blank)}
