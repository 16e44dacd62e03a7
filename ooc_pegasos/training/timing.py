"""What epochs cost: time, bytes and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ooc_pegasos.util.memory_limits import peak_rss
from ooc_pegasos.util.stopwatch import Stopwatch

_SHORT = 1e-3  # seconds of an epoch for which nobody asks how much memory is in use


@dataclass(frozen=True)
class EpochCost:
    """What an epoch took: `seconds` in all, of which some computing and some waiting for data."""

    epoch: int
    seconds: float
    seconds_computing: float
    seconds_waiting: float
    bytes_read: int
    gigabytes_per_second: float
    peak_rss: int

    def table(self) -> dict[str, Any]:
        """As for JSON."""
        return asdict(self)


class Meter:
    """What a run has spent so far, and what each epoch cost."""

    def __init__(self, watch: Stopwatch, bytes_read: Callable[[], int]) -> None:
        self._watch, self._bytes_read = watch, bytes_read
        self._before = self.spent()

    def spent(self) -> tuple[float, float, float, int]:
        """Now, seconds computing and waiting, bytes read."""
        waiting = self._watch.of("waiting for data")
        computing = sum(self._watch.seconds.values()) - waiting - self._watch.of("writing checkpoints")
        return time.perf_counter(), computing, waiting, self._bytes_read()

    def epoch(self, number: int, costs: Sequence[EpochCost]) -> EpochCost:
        """What was spent since the epoch before, the last of `costs`."""
        before, now = self._before, self.spent()
        self._before = now
        seconds, read = now[0] - before[0], now[3] - before[3]
        return EpochCost(
            number,
            seconds,
            now[1] - before[1],
            now[2] - before[2],
            read,
            read / max(seconds, 1e-9) / 1e9,  # a clock may be set back, or be a coarse one
            # asking the system takes a tenth of an epoch over little data
            costs[-1].peak_rss if costs and seconds < _SHORT else peak_rss(),
        )
