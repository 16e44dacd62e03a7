"""The bytes of the files of a folder, and bytes with a flipped bit."""

import json
from collections.abc import Mapping
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


def write_files(root: Path, contents: Mapping[str, str | bytes]) -> str:
    """Write files by their paths below a folder, and return the path of the folder."""
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(root)


def write_text(path: Path, text: str) -> str:
    """Write a file and return its path as text."""
    path.write_text(text)
    return str(path)
