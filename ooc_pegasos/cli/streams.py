"""Guards of standard streams that are closed, full, or broken pipes."""

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
    """Standard output cannot be written. Not an OSError, because Typer handles some of these itself."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror}; check the output")
        self.is_quiet = error.errno == errno.EPIPE  # a broken pipe, as with `head`
        if self.is_quiet:
            self.exit_code = BROKEN_PIPE  # the code that shells report for a process ended by SIGPIPE


class _Output(io.FileIO):
    """Standard output. A write error is raised once; later writes are dropped, so that the process can end cleanly."""

    _lost = False

    def write(self, data: Any) -> int:
        try:
            return len(data) if self._lost else _write(self.fileno(), data)
        except OSError as error:
            self._lost = True
            raise OutputError(error) from error


class _Messages(io.FileIO):
    """Standard error. Write errors are ignored, because they cannot be reported and do not affect the result."""

    def write(self, data: Any) -> int:
        try:
            return _write(self.fileno(), data)
        except OSError:
            return len(data)


class _Text(io.TextIOWrapper):
    """Text output with control characters escaped, so that names from files cannot control a terminal."""

    def write(self, text: str) -> int:
        super().write(escaped(text))
        return len(text)

    @property
    def buffer(self) -> Any:
        """Raise AttributeError, because Click would write to the buffer instead of `write` if the encoding is ASCII."""
        raise AttributeError("buffer")


def say(*lines: str, err: bool = False) -> None:
    """Print lines on standard output or standard error; line breaks within a line are escaped."""
    if lines:
        print("\n".join(map(printable, lines)), file=sys.stderr if err else sys.stdout, flush=True)


def _write(descriptor: int, data: Any) -> int:
    """Write data; wait if another process has made the pipe or terminal non-blocking."""
    while True:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:
            select.select([], [descriptor], [])


def guard() -> None:
    """Replace standard streams by guarded ones."""
    _occupy()
    sys.stdout = _guarded(sys.stdout, 1, _Output)
    sys.stderr = _guarded(sys.stderr, 2, _Messages)


def _occupy() -> None:
    """Open /dev/null in place of closed standard streams, whose numbers later files would get otherwise.

    Libraries in C that write to standard error by number would write into such a file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)


def _guarded(stream: TextIO | None, number: int, kind: type[io.FileIO]) -> TextIO:
    """Return a guarded stream with the same descriptor."""
    if stream is None:  # closed when Python started
        return _Text(io.BufferedWriter(kind(number, "wb", closefd=False)), "utf-8", "backslashreplace")
    if not isinstance(stream, io.TextIOWrapper):  # replaced by another stream, for example in memory
        return stream
    # names may be invalid UTF-8, whose bytes could be control characters
    errors = "backslashreplace" if stream.errors in ("strict", "surrogateescape") else stream.errors
    raw = io.BufferedWriter(kind(stream.fileno(), "wb", closefd=False))
    return _Text(raw, stream.encoding, errors, line_buffering=stream.line_buffering, write_through=stream.write_through)
