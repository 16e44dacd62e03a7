"""What a long job shows while it runs: on stderr if it is a terminal, in a notebook below the cell, else nothing."""

from __future__ import annotations

import sys
import time
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


def epoch_line(entry: dict[str, Any]) -> str:
    """One epoch in words."""
    primal, bound, gap = entry["primal"], entry["lower_bound"], entry["gap"]
    parts = [f"epoch {entry['epoch']}"]
    objective = f"objective {primal:.6g}" if primal is not None else f"objective about {entry['estimate']:.6g}"
    if entry.get("models", 1) > 1:
        objective = f"{entry['models']} models, the farthest with {objective}"
    parts.append(objective)
    if bound is not None:
        parts.append(f"at least {bound:.6g}")
    if gap is not None:
        parts.append(f"gap {100 * gap:.3g} %")
    elif entry["estimated_gap"] is not None:
        parts.append(f"gap about {100 * entry['estimated_gap']:.3g} %")
    if entry["holdout_error"] is not None:
        parts.append(f"holdout error {100 * entry['holdout_error']:.2f} %")
    return ", ".join(parts)


def epochs_left(gaps: list[float], tolerance: float) -> float | None:
    """How many more epochs the gap needs, if it goes on falling as a power of their number."""
    import math

    number = len(gaps)
    if number < 3 or gaps[-1] <= 0 or gaps[number // 2] <= gaps[-1]:
        return None
    slope = math.log(gaps[number // 2] / gaps[-1]) / math.log(number / (number // 2 + 1))
    return max(number * ((gaps[-1] / tolerance) ** (1 / slope) - 1), 0.0) if slope > 0 else None


class LoggedTraining(TrainingProgress):
    """A line now and then, where there is no terminal."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def epoch_done(self, entry: dict[str, Any], tolerance: float) -> None:
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self.note(epoch_line(entry))

    def note(self, text: str) -> None:
        print(f"note: {text}", file=sys.stderr)


class LiveTraining(TrainingProgress):
    """One line on a terminal that changes as the run goes on."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.status import Status

        self._console = Console(stderr=True)
        self._status = Status("loading", console=self._console)
        self._status.start()
        self._began = time.monotonic()
        self._seconds = 0.0
        self._gaps: list[float] = []
        self._known = ""

    def presented(self, epoch: int, rows: int, total: int) -> None:
        self._seconds = time.monotonic() - self._began
        rate = (epoch * total + rows) / max(self._seconds, 1e-9)
        share = min(100 * rows // max(total, 1), 100)
        self._status.update(f"epoch {epoch + 1}, {share} % of it, {rate:,.0f} rows/s{self._known}")

    def epoch_done(self, entry: dict[str, Any], tolerance: float) -> None:
        self._known = "; after " + epoch_line(entry)
        if entry["estimated_gap"] is None:
            return
        self._gaps.append(entry["gap"] if entry["gap"] is not None else entry["estimated_gap"])
        left = epochs_left(self._gaps, tolerance)
        if left is not None:
            seconds = left * (time.monotonic() - self._began) / len(self._gaps)
            self._known += f", about {seconds:,.0f} s left"

    def note(self, text: str) -> None:
        self._console.print(f"note: {text}", highlight=False)

    def end(self) -> None:
        self._status.stop()


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook; if nobody has imported IPython, it does not."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def default_training_progress() -> TrainingProgress:
    """What a call from Python shows if it is not told: a live display in a notebook, else nothing."""
    if not in_notebook():
        return TrainingProgress()
    from ooc_pegasos.display import NotebookTraining

    return NotebookTraining()


def training_progress_for(quiet: bool) -> TrainingProgress:
    """A live line on a terminal or in a notebook, a line now and then elsewhere, nothing when asked to be quiet."""
    if quiet:
        return TrainingProgress()
    if in_notebook():
        return default_training_progress()
    return LiveTraining() if sys.stderr.isatty() else LoggedTraining()
