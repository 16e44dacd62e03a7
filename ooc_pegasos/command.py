"""Entry point of `oocpeg`: listen to signals first, since what comes first is imports, which take a while.

Python itself takes some milliseconds before the first line here; Ctrl-C in these is handled by Python.
"""

import os

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    import signal as signals
    from collections.abc import Callable, Iterator
    from types import FrameType
else:
    import _signal as signals  # part of the interpreter, while `signal` imports a dozen modules

INTERRUPTED = 130


def stop_signals() -> "Iterator[int]":
    """Return the signals that ask the process to stop, except those that it was started to ignore.

    A shell has what it starts in the background ignore Ctrl-C, and nohup has it ignore SIGHUP.
    """
    wanted = (signals.SIGINT, signals.SIGTERM, signals.SIGHUP)
    return filter(lambda number: signals.getsignal(number) != signals.SIG_IGN, wanted)


def listen(handler: "Callable[[int, FrameType | None], object]") -> None:
    """Have this called at the signals that ask the process to stop."""
    for number in stop_signals():
        signals.signal(number, handler)


def _end(_signal: int, _frame: "FrameType | None") -> None:
    """End at once: there is nothing to clean up yet, and a module that is being imported might catch an exception."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run `oocpeg`; the command line listens to signals itself as soon as it is there."""
    listen(_end)
    # Its threads are not used here, and without memory for them their start never returns.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ooc_pegasos.cli import main as command_line

    command_line()
