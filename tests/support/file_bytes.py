"""The bytes of the files of a folder, and bytes with a flipped bit."""

import json
from pathlib import Path

import numpy as np


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flipped(rng: np.random.Generator, content: bytes) -> tuple[bytes, str]:
    """The same with one bit that is another, and where it is.

    A digit that is beyond what a number can hold, as the last of some in JSON, means nothing, and is not chosen.
    """
    while True:
        at, bit = int(rng.integers(len(content))), int(rng.integers(8))
        other = bytearray(content)
        other[at] ^= 1 << bit
        if not _says_the_same(content, bytes(other)):
            return bytes(other), f"bit {bit} of byte {at:,} of {len(content):,}"


def _says_the_same(content: bytes, other: bytes) -> bool:
    if not content.startswith(b"{"):
        return False
    try:
        return bool(json.loads(content) == json.loads(other))
    except ValueError:
        return False
