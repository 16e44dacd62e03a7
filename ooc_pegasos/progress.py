"""What a long job shows on stderr while it runs: bytes done, rate, time left. Nothing unless it is a terminal."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Shows nothing; the base of those that do."""

    def begin(self, what: str, total: int) -> None:
        """A new phase over `total` bytes (0: unknown) begins."""

    def advance(self, count: int) -> None:
        """This many more bytes are done."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self) -> None:
        """The job is over."""


class NotedProgress(Progress):
    """Notes only, one line each on stderr."""

    def note(self, text: str) -> None:
        print(f"note: {text}", file=sys.stderr)


class BarProgress(Progress):
    """A bar on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True)]
        columns += [TransferSpeedColumn(), TimeRemainingColumn()]
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task: Any = None

    def begin(self, what: str, total: int) -> None:
        self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=self._bar.tasks[self._task].total)
        self._task = self._bar.add_task(what, total=total or None)

    def advance(self, count: int) -> None:
        self._bar.advance(self._task, count)

    def note(self, text: str) -> None:
        self._bar.console.print(f"note: {text}", highlight=False)

    def end(self) -> None:
        self._bar.stop()


def progress_for(quiet: bool) -> Progress:
    """A bar on a terminal, notes elsewhere, nothing when asked to be quiet."""
    if quiet:
        return Progress()
    return BarProgress() if sys.stderr.isatty() else NotedProgress()


class TrainingProgress:
    """Shows nothing of a training run; the base of those that do."""

    def presented(self, epoch: int, rows: int, total: int) -> None:
        """So many rows of an epoch are done."""

    def epoch_done(self, entry: dict[str, Any], tolerance: float) -> None:
        """What is known at the end of an epoch."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def end(self) -> None:
        """The run is over."""
