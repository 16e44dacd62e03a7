"""Requests to stop a run: signals, and the time limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ooc_pegasos.util import watchdog
from ooc_pegasos.util.signals import stop_signals


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP came between two slices; a checkpoint was written if the run has a folder for it."""


class OutOfTimeError(Exception):
    """The time of --max-seconds is over."""


@contextmanager
def signals_to(request: Callable[[], None]) -> Iterator[None]:
    """Call `request` at Ctrl-C, SIGTERM and SIGHUP, whatever the main thread is doing; `request` may raise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: Any) -> None:
        watchdog.answered()
        request()

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopCheck:
    """Check, called between slices of work, that raises if a run has to stop."""

    def __init__(self, max_seconds: float | None = None, began: float | None = None) -> None:
        self.is_requested = False
        self._began = time.perf_counter() if began is None else began
        self._max_seconds = max_seconds
        self._is_paused = False

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def check(self) -> None:
        """Raise Interrupted if a stop was requested, OutOfTimeError if the time is over."""
        if self._is_paused:
            return
        if self.is_requested:
            raise Interrupted
        if self._max_seconds and self.seconds > self._max_seconds:
            raise OutOfTimeError

    def allow_more_time(self) -> None:
        """Remove the time limit: the run is ending."""
        self._max_seconds = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not raise within the block, as when a checkpoint is written."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn Ctrl-C, SIGTERM and SIGHUP into a request to stop; the second one stops at once."""

        def request() -> None:
            if self.is_requested:
                raise KeyboardInterrupt
            self.is_requested = True

        with signals_to(request):
            yield
