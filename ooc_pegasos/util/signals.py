"""Signals that request a stop. Its import takes no time, because it comes before all others."""

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    import signal as signals
    from collections.abc import Callable, Iterator
    from types import FrameType
else:
    import _signal as signals  # built in, while `signal` imports a dozen modules


def stop_signals() -> "Iterator[int]":
    """Return the signals that request a stop, except those that the process was started to ignore.

    A shell makes background processes ignore Ctrl-C (SIGINT), and nohup makes a process ignore SIGHUP.
    """
    wanted = (signals.SIGINT, signals.SIGTERM, signals.SIGHUP)
    return filter(lambda number: signals.getsignal(number) != signals.SIG_IGN, wanted)


def listen(handler: "Callable[[int, FrameType | None], object]") -> None:
    """Install a handler for the signals that request a stop."""
    for number in stop_signals():
        signals.signal(number, handler)
