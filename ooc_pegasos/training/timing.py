"""Costs of a run: time, bytes and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ooc_pegasos.util.memory_limits import peak_rss
from ooc_pegasos.util.stopwatch import Stopwatch

_SHORT = 1e-3  # seconds; in shorter epochs the memory in use is not read again


@dataclass(frozen=True)
class EpochCost:
    """Costs of an epoch: `seconds` in all, of which some computing and some waiting for data."""

    epoch: int
    seconds: float
    seconds_computing: float
    seconds_waiting: float
    bytes_read: int
    gigabytes_per_second: float
    peak_rss: int

    def table(self) -> dict[str, Any]:
        """Return the costs as a table for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RunCost:
    """Costs of a run, and the memory, windows and threads that it used."""

    seconds_computing: float
    seconds_waiting: float
    bytes_read: int
    memory: int
    loading: str
    windows: int
    presenters: int
    profile: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Spent:
    """Costs of a run up to the time `now`."""

    now: float
    computing: float
    waiting: float
    bytes_read: int


class Meter:
    """Costs of a run so far, and of each epoch."""

    def __init__(self, watch: Stopwatch, bytes_read: Callable[[], int]) -> None:
        self._watch, self._bytes_read = watch, bytes_read
        self._before = self.spent()

    def spent(self) -> Spent:
        """Return the costs so far."""
        waiting = self._watch.of("waiting for data")
        computing = sum(self._watch.seconds.values()) - waiting - self._watch.of("writing checkpoints")
        return Spent(time.perf_counter(), computing, waiting, self._bytes_read())

    def epoch(self, number: int, costs: Sequence[EpochCost]) -> EpochCost:
        """Return the costs since the epoch before, which is the last of `costs`."""
        before, spent = self._before, self.spent()
        self._before = spent
        seconds, read = spent.now - before.now, spent.bytes_read - before.bytes_read
        return EpochCost(
            number,
            seconds,
            spent.computing - before.computing,
            spent.waiting - before.waiting,
            read,
            read / max(seconds, 1e-9) / 1e9,  # clocks may be coarse
            # the system call takes a tenth of a short epoch
            costs[-1].peak_rss if costs and seconds < _SHORT else peak_rss(),
        )
