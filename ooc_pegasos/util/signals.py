"""Signals that ask the process to stop. Its import takes no time: it is imported before anything else."""

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    import signal as signals
    from collections.abc import Callable, Iterator
    from types import FrameType
else:
    import _signal as signals  # part of the interpreter, while `signal` imports a dozen modules

"""The exit code of a process that was stopped."""


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
