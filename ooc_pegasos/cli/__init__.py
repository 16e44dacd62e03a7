"""The command line: parse, call, print, and turn errors into exit codes. No logic.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from ooc_pegasos import watchdog
from ooc_pegasos.cli import streams

# in the order in which --help shows their commands
from ooc_pegasos.cli import stores, training, models, jobs  # isort: skip
from ooc_pegasos.cli.options import app
from ooc_pegasos.command import INTERRUPTED, listen
from ooc_pegasos.errors import InputError, OocPegasosError
from ooc_pegasos.machine import shortage

__all__ = ["app", "jobs", "main", "models", "stores", "training"]


class _Interruption(KeyboardInterrupt):
    """Ctrl-C or SIGTERM.

    Of KeyboardInterrupt itself Python remembers that it passed through code that was run as a string, as dataclasses
    are made, and would let the process end by that signal, whatever the exit code.
    """


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    watchdog.answered()
    raise _Interruption


def main() -> None:
    """The `oocpeg` command."""
    streams.guard()
    watchdog.start()
    for number in (signal.SIGINT, signal.SIGTERM):  # registered first, so done last: nothing is left to be stopped
        atexit.register(signal.signal, number, signal.SIG_IGN)
    code = _code_of(_interruptible) or _code_of(sys.stdout.flush)
    listen(lambda _signal, _frame: os._exit(code or 0))  # who does not want to wait for threads to end need not
    sys.exit(code)


def _interruptible() -> None:
    """The command itself. When it is over it is too late to interrupt it: its exit code is that of what came of it."""
    listen(_interrupt)
    try:
        app()
    finally:
        listen(lambda _signal, _frame: None)


def _code_of(action: Callable[[], None]) -> Any:
    """The exit code of what is done, after a line that says what went wrong, if anything did."""
    try:
        action()
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except OocPegasosError as error:
        if not (isinstance(error, streams.OutputError) and error.is_quiet):
            print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        problem = shortage(error)
        if problem is None and isinstance(error, OSError):
            problem = f"{error.filename or 'output'}: {error.strerror or error}; check where the output goes"
        if problem is None:
            raise
        print(f"error: {problem}", file=sys.stderr)
        return InputError.exit_code
    return 0
