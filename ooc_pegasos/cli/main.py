"""The command `oocpeg`: parse, call, print, and turn errors into exit codes.

Each command imports its modules when it runs, so that `--help` is fast.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from ooc_pegasos.cli import streams
from ooc_pegasos.util import watchdog

# in the order in which --help shows their commands
from ooc_pegasos.cli import stores, training, models, jobs  # isort: skip
from ooc_pegasos.cli.options import app
from ooc_pegasos.errors import InputError, OocPegasosError
from ooc_pegasos.exit_codes import INTERRUPTED
from ooc_pegasos.util.memory_limits import shortage
from ooc_pegasos.util.signals import listen, stop_signals

__all__ = ["app", "jobs", "main", "models", "stores", "training"]


_AGAIN_SECONDS = 0.01


class _Interruption(KeyboardInterrupt):
    """Interruption by Ctrl-C, SIGTERM or SIGHUP.

    A subclass, because Python records a plain KeyboardInterrupt that passes through code run as a string, such as
    methods of dataclasses, and would then end the process by SIGINT instead of the exit code.
    """


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    watchdog.answered()
    raise _Interruption


def _again_if_lost(lost: Any) -> None:
    """Interrupt again soon if an interruption was raised in a callback of the interpreter, which drops exceptions."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        watchdog.expect_again()
        main_thread, number = threading.main_thread().ident, next(stop_signals())
        again = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main_thread, number))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(lost)


def main() -> None:
    """Run the `oocpeg` command."""
    streams.guard()
    watchdog.start()
    for number in stop_signals():  # registered first, so called last
        atexit.register(signal.signal, number, signal.SIG_IGN)
    code = _code_of(_interruptible) or _code_of(sys.stdout.flush)
    listen(lambda _signal, _frame: os._exit(code or 0))  # a signal ends the wait for threads
    sys.exit(code)


def _interruptible() -> None:
    """Run the command. Later interruptions are ignored, because the exit code is already that of the command."""
    listen(_interrupt)
    sys.unraisablehook = _again_if_lost
    try:
        app()
    finally:
        listen(lambda _signal, _frame: None)


def _code_of(action: Callable[[], None]) -> Any:
    """Return the exit code of an action, after printing its error, if any."""
    try:
        action()
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except OocPegasosError as error:
        if not (isinstance(error, streams.OutputError) and error.is_quiet):
            streams.say(f"error: {error.with_flags}", err=True)
        return error.exit_code
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        problem = shortage(error)
        if problem is None and isinstance(error, OSError):
            problem = f"{error.filename or 'output'}: {error.strerror or error}; check the output"
        if problem is None:
            raise
        streams.say(f"error: {problem}", err=True)
        return InputError.exit_code
    return 0
