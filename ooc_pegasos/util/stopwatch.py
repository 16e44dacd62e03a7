"""Seconds by activity."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by activity. Threads may share a stopwatch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Add the duration of a block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to an activity."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def of(self, *names: str) -> float:
        """Return the seconds of some activities together."""
        return sum(self.seconds.get(name, 0.0) for name in names)
