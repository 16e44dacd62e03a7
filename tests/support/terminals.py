"""A terminal of a size, in which a program runs, and what of its output a terminal should never get."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from support.fork_server import COMMAND, Process, program

EVERY_TEXT = "import ooc_pegasos.reporting.progress\nooc_pegasos.reporting.progress.FRAME_SECONDS = 0.0\n"
"""Code after which a status line shows every text, however fast they come."""

_STREAMS = """
import sys
for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
    setattr(sys, name, open(number, mode, encoding={!r}, errors="strict", closefd=False))
"""
_STATUS = re.compile(r"\r([^\r\n\x1b]*)\x1b\[K")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


class Terminal:
    """A program in a terminal of its own: a fork that runs some code and the command, or a new interpreter."""

    def __init__(
        self,
        folder: Path,
        *words: object,
        columns: int = 80,
        encoding: str = "utf-8",
        before: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.encoding, self._output, self._is_over = encoding, b"", False
        self._ours, self._theirs = os.openpty()
        self.resize(columns)
        env = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "xterm"}
        name = os.ttyname(self._theirs)
        if environment is None:
            code = _STREAMS.format(encoding) + before + "\n" + COMMAND
            self._child: Process | subprocess.Popen[bytes] = program(
                code, *words, folder=folder, env=env, terminal=name
            )
        else:
            command = [sys.executable, "-m", "ooc_pegasos", *map(str, words)]
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), self._theirs)
            self._child = subprocess.Popen(
                command,
                cwd=folder,
                env={**env, **environment},
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                **streams,
            )
        self.pid = self._child.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, pattern: str, seconds: float = 120) -> int:
        """Wait until something is shown; returns how much was shown by then."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.shown()):
            assert self._child.poll() is None, self.shown()
            assert time.monotonic() < end, self.shown()
            time.sleep(0.01)
        return len(self._output)

    def shown(self, begin: int = 0) -> str:
        return self._output[begin:].decode(self.encoding, "replace")

    def close(self) -> int:
        """Take the terminal away, wait for the end of the program, and return its exit code."""
        self._is_over = True
        self._reader.join()
        os.close(self._theirs)
        os.close(self._ours)
        return self._wait()

    def end(self) -> tuple[int, str]:
        """Wait for the end of the program; returns its exit code and what was shown."""
        code = self._wait()
        self._is_over = True
        self._reader.join()
        os.close(self._theirs)
        os.close(self._ours)
        return code, self.shown()

    def _wait(self) -> int:
        self._child.communicate(timeout=200)
        code = self._child.poll()
        assert code is not None
        return code

    def _read(self) -> None:
        while select.select([self._ours], [], [], 0.02)[0] or not self._is_over:
            if select.select([self._ours], [], [], 0)[0]:
                self._output += os.read(self._ours, 65536)


def check_shown(text: str, columns: int) -> list[str]:
    """Check that a terminal of this width gets lines, status lines that fit, and nothing else; returns the latter."""
    statuses = _STATUS.findall(text)
    assert all(len(status) < columns for status in statuses), statuses
    rest = _STATUS.sub("", text).replace("\r\n", "\n")
    assert not _CONTROLS.search(rest), repr(rest)
    assert "Traceback" not in rest, rest
    assert "Exception ignored" not in rest, rest
    return statuses
