"""Standard streams that are closed, full, or that nobody reads any more."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

from ooc_pegasos.errors import InputError
from ooc_pegasos.exit_codes import BROKEN_PIPE
from ooc_pegasos.util.escaping import escaped, printable


class OutputError(InputError):
    """Standard output cannot be written. No OSError, of which Typer takes some for its own."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror}; check where the output goes")
        self.is_quiet = error.errno == errno.EPIPE  # who reads has seen enough, as `head` has
        if self.is_quiet:
            self.exit_code = BROKEN_PIPE  # what shells show of a tool that the signal of a broken pipe ended


class _Output(io.FileIO):
    """Standard output. That it cannot be written is told once; nothing is left then to fail when the process ends."""

    _lost = False

    def write(self, data: Any) -> int:
        try:
            return len(data) if self._lost else _write(self.fileno(), data)
        except OSError as error:
            self._lost = True
            raise OutputError(error) from error


class _Messages(io.FileIO):
    """Standard error. If it cannot be written there is nobody to tell, and it changes nothing of what is done."""

    def write(self, data: Any) -> int:
        try:
            return _write(self.fileno(), data)
        except OSError:
            return len(data)


class _Text(io.TextIOWrapper):
    """Text for people: control characters that came with a name are escaped, so that no terminal obeys them."""

    def write(self, text: str) -> int:
        super().write(escaped(text))
        return len(text)

    @property
    def buffer(self) -> Any:
        """Refused: Click writes to it, and so past `write`, where the encoding is ASCII."""
        raise AttributeError("buffer")


def say(*lines: str, err: bool = False) -> None:
    """Print lines for people on standard output or standard error; line breaks within a line are escaped."""
    if lines:
        print("\n".join(map(printable, lines)), file=sys.stderr if err else sys.stdout, flush=True)


def _write(descriptor: int, data: Any) -> int:
    """Write some; waits as well where another process has made a pipe or a terminal one that does not wait."""
    while True:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:
            select.select([], [descriptor], [])


def guard() -> None:
    """Make standard streams such that all commands can use them, and none fails of its own words."""
    _occupy()
    sys.stdout = _guarded(sys.stdout, 1, _Output)
    sys.stderr = _guarded(sys.stderr, 2, _Messages)


def _occupy() -> None:
    """Put /dev/null where a standard stream is closed: else a file that is opened later would have its number.

    Whatever writes to standard error by number, as libraries in C do, would write into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
            os.set_inheritable(number, True)


def _guarded(stream: TextIO | None, number: int, kind: type[io.FileIO]) -> TextIO:
    """The same stream with other ways to fail."""
    if stream is None:  # Python has found it closed
        return _Text(io.BufferedWriter(kind(number, "wb", closefd=False)), "utf-8", "backslashreplace")
    if not isinstance(stream, io.TextIOWrapper):  # what somebody has put in its place, in memory perhaps
        return stream
    # names may be invalid UTF-8, whose bytes could be control characters
    errors = "backslashreplace" if stream.errors in ("strict", "surrogateescape") else stream.errors
    raw = io.BufferedWriter(kind(stream.fileno(), "wb", closefd=False))
    return _Text(raw, stream.encoding, errors, line_buffering=stream.line_buffering, write_through=stream.write_through)
