"""Pipes that are opened several times, for tables: their columns are found before their rows are read.

What was read is kept, in memory or, beyond a megabyte, in a temporary file without a name, until the last pass begins.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ooc_pegasos.errors import InputError

STDIN = "-"
_IN_MEMORY = 1 << 20


class PipePath(str):
    """The name of a pipe that may be opened several times."""


class _Pipe:
    """A pipe, and the part of it that is kept."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._file = open_stdin() if name == STDIN else cast(BinaryIO, open(name, "rb", buffering=0))  # noqa: SIM115
        below = None if folder is None else str(folder)
        self._kept_bytes: Any = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=below)  # noqa: SIM115
        self.kept = self._taken = 0
        self.is_last_pass = False

    def read(self, at: int, buffer: Any) -> int:
        """Read the bytes from position `at` on into a buffer; return their number."""
        if at < self.kept:
            self._kept_bytes.seek(at)
            data = self._kept_bytes.read(min(len(buffer), self.kept - at))
            buffer[: len(data)] = data
            return len(data)
        if at != self._taken:
            raise InputError("a pipe can be read only once from here on; name a file")
        count: int = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        if not self.is_last_pass:
            self._kept_bytes.seek(self.kept)
            self._kept_bytes.write(buffer[:count])
            self.kept += count
        self._taken += count
        return count

    def close(self) -> None:
        """Close the pipe, and remove what was kept."""
        self._kept_bytes.close()
        self._file.close()


class _Pass(io.RawIOBase):
    """A pass over a pipe from its beginning."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe, self._at = pipe, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._pipe.read(self._at, memoryview(buffer).cast("B"))
        self._at += count
        return count


_pipes: dict[str, _Pipe] = {}
_folder: Path | None = None


def open_pipe(name: PipePath) -> BinaryIO:
    """Open a pipe at its beginning."""
    if name not in _pipes:
        _pipes[name] = _Pipe(name, _folder)
    return _Pass(_pipes[name])  # type: ignore[return-value]


def open_stdin() -> BinaryIO:
    """Open standard input, which stays open when the file is closed."""
    if sys.stdin is None:
        raise InputError("standard input is closed; name a file")
    return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


def begin_last_pass() -> None:
    """Keep no more of any pipe: it will not be opened again."""
    for pipe in _pipes.values():
        pipe.is_last_pass = True


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Keep what is read of pipes below a folder, by default that for temporary files, until the end of the block."""
    global _folder
    before, _folder = _folder, folder
    try:
        yield
    finally:
        _folder = before
        while _pipes:
            _pipes.popitem()[1].close()
