"""How a run is asked to stop before it is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ooc_pegasos.util import watchdog
from ooc_pegasos.util.signals import stop_signals


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP came between two slices; a checkpoint was written if there is a place for one."""


class OutOfTimeError(Exception):
    """--max-seconds are over."""


@contextmanager
def signals_to(ask: Callable[[], None]) -> Iterator[None]:
    """Have `ask` called at Ctrl-C, SIGTERM and SIGHUP, in whatever the main thread is doing; it may raise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(_number: int, _frame: Any) -> None:
        watchdog.answered()
        ask()

    before = {number: signal.signal(number, heard) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stoppable:
    """A run that looks now and then whether somebody wants it to stop."""

    stop_asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn Ctrl-C, SIGTERM and SIGHUP into a wish to stop; asked twice, stop at once."""

        def ask() -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True

        with signals_to(ask):
            yield
