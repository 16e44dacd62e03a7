"""Progress displays: a status line on a terminal, a display below the cell of a notebook, else notes on stderr."""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ooc_pegasos.reporting.steps import Steps
from ooc_pegasos.util.escaping import printable

if TYPE_CHECKING:
    from ooc_pegasos.reporting.history import EpochRecord

FRAME_SECONDS = 0.1
"""Seconds between two updates of a status line."""
LOG_SECONDS = 10.0
"""Seconds between two lines of a log, and after which a command has lines at all."""
_DAY = 86_400.0
_HOOKS = (
    *("__init__", "expect", "begin", "begin_step", "begin_round"),
    *("advance", "presented", "epoch_done", "note", "end"),
)


class Progress:
    """Base class of displays, which shows nothing."""

    def expect(self, steps: int) -> None:
        """Announce the number of the next steps."""

    def begin(self, what: str, total: int) -> None:
        """Begin a step over `total` bytes (0: unknown)."""

    def advance(self, count: int) -> None:
        """Count bytes as done."""

    def note(self, text: str) -> None:
        """Show a note to the user."""

    def end(self) -> None:
        """End the display."""


class TrainingProgress:
    """Base class of displays of training, which shows nothing."""

    def expect(self, steps: int) -> None:
        """Announce the number of the next steps."""

    def begin_step(self, what: str) -> None:
        """Begin a step."""

    def begin_round(self, what: str) -> None:
        """Begin another run of the same step, whose epochs are counted from 1 again."""

    def presented(self, epoch: int, rows: int, total: int) -> None:
        """Report the number of processed rows of an epoch."""

    def epoch_done(self, record: EpochRecord, tolerance: float, models: int) -> None:
        """Report the end of an epoch: the record of the model that is farthest from its tolerance, of `models`."""

    def note(self, text: str) -> None:
        """Show a note to the user."""

    def end(self) -> None:
        """End the display."""


# --- the guard ----------------------------------------------------------------------------------------

Display = TypeVar("Display", bound=type)


def guarded(kind: Display) -> Display:
    """Decorate a class of displays so that none of its errors ends the job it displays.

    The first error is reported as a note and switches the display off; later notes are printed plainly.
    """
    for name in _HOOKS:
        if name in vars(kind):
            setattr(kind, name, _guarded(vars(kind)[name]))
    return kind


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(hook)
    def shown(display: Any, *given: Any, **named: Any) -> None:
        if not getattr(display, "has_failed", False):
            try:
                return hook(display, *given, **named)
            except Exception as error:
                display.has_failed = True
                _print_note(
                    f"the progress display failed ({type(error).__name__}: {error}); the job continues without it"
                )
        if hook.__name__ == "note":
            _print_note(*given, **named)
        return None

    return shown


# --- the status line of a terminal --------------------------------------------------------------------


class StatusLine:
    """A line on a terminal that is overwritten in place. The width is read each time, because terminals are resized."""

    def __init__(self) -> None:
        self._written = -math.inf
        self._is_shown = False

    def show(self, text: str) -> None:
        """Overwrite the line, unless done within the last frame; text beyond the width of the terminal is cut."""
        if time.monotonic() - self._written >= FRAME_SECONDS:
            # the last column stays empty, because some terminals wrap after it
            self._write(f"\r{printable(text)[: _columns() - 1]}\x1b[K")
            self._written, self._is_shown = time.monotonic(), True

    def clear(self) -> None:
        """Erase the line, so that other text can be printed; the next text is shown at once."""
        was_shown, self._is_shown, self._written = self._is_shown, False, -math.inf
        if was_shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """Write to the descriptor, because control characters printed on stderr are escaped."""
        sys.stderr.flush()
        with suppress(BlockingIOError):  # a slow terminal that another process made non-blocking: skip this text
            os.write(sys.stderr.fileno(), text.encode("ascii", "backslashreplace"))


def _columns() -> int:
    """Return the width of the terminal of stderr; a default if the terminal does not report any."""
    fallback = os.environ.get("COLUMNS", "")
    return os.get_terminal_size(sys.stderr.fileno()).columns or int(fallback if fallback.isdecimal() else 0) or 80


_line = StatusLine()
"""Shared by all displays, because they share the terminal."""


def _print_note(text: str) -> None:
    """Print a note on stderr, in place of the status line; a stderr that is closed or broken changes nothing."""
    with suppress(Exception):
        _line.clear()
    with suppress(Exception):
        if sys.stderr is not None:  # else print() would take stdout
            print(f"note: {printable(text)}", file=sys.stderr, flush=True)


def _has_status_line() -> bool:
    """True if stderr is a terminal with escape sequences: any terminal except those named dumb or unknown."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


# --- estimates ----------------------------------------------------------------------------------------


def epochs_left(gaps: list[float], tolerance: float) -> float | None:
    """Return the number of epochs until the gap is within the tolerance, assuming a power law.

    None if unknown, infinity if the number is too large for a float.
    """
    number = len(gaps)
    if number < 3:
        return None
    middle, last = gaps[number // 2], gaps[-1]
    if not (0 < last < middle < math.inf and tolerance > 0):
        return None
    slope = (math.log(middle) - math.log(last)) / math.log(number / (number // 2 + 1))
    growth = (math.log(last) - math.log(tolerance)) / slope if slope > 0 else math.inf
    if growth <= 0:
        return 0.0
    return number * math.expm1(growth) if growth < 700 else math.inf


def duration_words(seconds: float | None) -> str | None:
    """Return a duration in seconds, minutes, or hours as h:mm; None beyond a day, or if unknown."""
    if seconds is None or not 0 <= seconds <= _DAY:
        return None
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


def epoch_line(record: EpochRecord, models: int) -> str:
    """Return the record of an epoch as text."""
    primal, bound, gap = record.primal, record.lower_bound, record.gap
    parts = [f"epoch {record.epoch}"]
    objective = f"objective {primal:.6g}" if primal is not None else f"objective about {record.estimate:.6g}"
    if models > 1:
        objective = f"{models} models, the farthest with {objective}"
    parts.append(objective)
    if bound is not None:
        parts.append(f"at least {bound:.6g}")
    if gap is not None:
        parts.append(f"gap {100 * gap:.3g} %")
    elif record.estimated_gap is not None:
        parts.append(f"gap about {100 * record.estimated_gap:.3g} %")
    if record.holdout_error is not None:
        parts.append(f"holdout error {100 * record.holdout_error:.2f} %")
    return ", ".join(parts)


# --- displays -----------------------------------------------------------------------------------------


@guarded
class NotedProgress(Progress):
    """Notes only, one line each on stderr."""

    def note(self, text: str) -> None:
        _print_note(text)


@guarded
class MeasuredProgress(Progress):
    """Bytes done, bytes in all, speed, time left, as text for a subclass to show."""

    def __init__(self, steps: Steps | None = None) -> None:
        self.steps = steps or Steps()
        self._what, self._total, self._done, self._share, self._began = "", 0, 0, 0, 0.0

    def expect(self, steps: int) -> None:
        self.steps.expect(steps)

    def begin(self, what: str, total: int) -> None:
        self.steps.begin()
        self._what, self._total, self._done, self._share = self.steps.mark + what, total, 0, 0
        self._began = time.monotonic()
        self._show(is_new=True)

    def advance(self, count: int) -> None:
        self._done += count
        self._show(is_new=False)

    def note(self, text: str) -> None:
        _print_note(text)

    def _show(self, is_new: bool) -> None:
        """Show the text."""

    def _text(self) -> str:
        speed = self._done / max(time.monotonic() - self._began, 1e-9)
        amount = f"{self._done / 1e6:,.1f} MB"
        parts = [self._what, amount, f"{speed / 1e6:,.1f} MB/s"]
        if self._total:
            self._share = max(self._share, min(100 * self._done // self._total, 100))
            parts[:2] = [f"{self._what} {self._share} %", f"{amount} of {self._total / 1e6:,.1f} MB"]
            left = duration_words(max(self._total - self._done, 0) / speed if speed else None)
            parts += [f"about {left} left"] if left else []
        return ", ".join(parts)


@guarded
class LiveProgress(MeasuredProgress):
    """A status line on a terminal."""

    def _show(self, is_new: bool) -> None:
        if is_new:
            _line.clear()
        _line.show(self._text())

    def end(self) -> None:
        _line.clear()


@guarded
class LoggedProgress(MeasuredProgress):
    """A line from time to time and at the beginning of steps, without a terminal; none of short commands."""

    def __init__(self, steps: Steps | None = None) -> None:
        super().__init__(steps)
        self._last = self.steps.began

    def _show(self, is_new: bool) -> None:
        now = time.monotonic()
        if now - (self.steps.began if is_new else self._last) >= LOG_SECONDS:
            self._last = now
            _print_note(self._what if is_new else self._text())


@guarded
class LoggedTraining(TrainingProgress):
    """A line from time to time and at the beginning of steps, without a terminal; none of short commands."""

    def __init__(self, seconds: float | None = None, steps: Steps | None = None) -> None:
        self.steps = steps or Steps()
        self._seconds = LOG_SECONDS if seconds is None else seconds
        self._last, self._step, self._round = time.monotonic(), "", 1

    def expect(self, steps: int) -> None:
        self.steps.expect(steps)

    def begin_step(self, what: str) -> None:
        self.steps.begin()
        self._round, self._step = 1, f"{self.steps.mark}{what}"
        self._log_step()

    def begin_round(self, what: str) -> None:
        self._round += 1
        self._step = f"{self.steps.mark}round {self._round}, {what}"
        self._log_step()

    def _log_step(self) -> None:
        if time.monotonic() - self.steps.began >= self._seconds:
            self._last = time.monotonic()
            self.note(self._step)

    def epoch_done(self, record: EpochRecord, tolerance: float, models: int) -> None:
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self.note(f"{self._step}: {epoch_line(record, models)}" if self._step else epoch_line(record, models))

    def note(self, text: str) -> None:
        _print_note(text)


@guarded
class LiveTraining(TrainingProgress):
    """A status line on a terminal: the step, the epoch, rows a second, objective and gap, time left."""

    def __init__(self, steps: Steps | None = None) -> None:
        self.steps = steps or Steps()
        self._step, self._round = "", 1
        self._begin_run()
        _line.show("loading")

    def _begin_run(self) -> None:
        self._began, self._gaps, self._known, self._left = time.monotonic(), list[float](), "", ""
        self._most = (0, 0)  # epoch and rows, which never go back in a run

    def expect(self, steps: int) -> None:
        self.steps.expect(steps)

    def begin_step(self, what: str) -> None:
        self.steps.begin()
        self._round = 1
        self._show_run(what)

    def begin_round(self, what: str) -> None:
        self._round += 1
        self._show_run(f"round {self._round}, {what}")

    def _show_run(self, what: str) -> None:
        self._begin_run()
        self._step = f"{self.steps.mark}{what}: "
        _line.clear()
        _line.show(self._step.removesuffix(": "))

    def presented(self, epoch: int, rows: int, total: int) -> None:
        epoch, rows = self._most = max(self._most, (epoch, rows))
        rate = (epoch * total + rows) / max(time.monotonic() - self._began, 1e-9)
        share = min(100 * rows // max(total, 1), 100)
        _line.show(f"{self._step}epoch {epoch + 1}, {share} % of it{self._left}, {rate:,.0f} rows/s{self._known}")

    def epoch_done(self, record: EpochRecord, tolerance: float, models: int) -> None:
        line = epoch_line(record, models)
        self._known = "; after " + line
        gap = record.estimated_gap if record.gap is None else record.gap
        if gap is not None:
            self._extrapolate(gap, tolerance)
        _line.show(self._step + line + self._left)

    def _extrapolate(self, gap: float, tolerance: float) -> None:
        self._gaps.append(gap)
        epochs = epochs_left(self._gaps, tolerance)
        seconds = (time.monotonic() - self._began) / len(self._gaps)
        left = duration_words(None if epochs is None else epochs * seconds)
        self._left = f", about {left} left" if left else ""

    def note(self, text: str) -> None:
        _print_note(text)

    def end(self) -> None:
        _line.clear()


# --- which display ------------------------------------------------------------------------------------


def progress_for(quiet: bool, steps: Steps | None = None) -> Progress:
    """Return a status line on a terminal, notes and occasional lines elsewhere, nothing if quiet."""
    if quiet:
        return Progress()
    return LiveProgress(steps) if _has_status_line() else LoggedProgress(steps)


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook; without IPython imported, it is not."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def default_training_progress() -> TrainingProgress:
    """Return the default display of a call from Python: a live display in a notebook, else nothing."""
    if not in_notebook():
        return TrainingProgress()
    from ooc_pegasos.reporting.notebook import NotebookTraining

    return NotebookTraining()


def training_progress_for(quiet: bool, steps: Steps | None = None) -> TrainingProgress:
    """Return a status line on a terminal, a display in a notebook, occasional lines elsewhere, nothing if quiet."""
    if quiet:
        return TrainingProgress()
    if in_notebook():
        return default_training_progress()
    return LiveTraining(steps) if _has_status_line() else LoggedTraining(steps=steps)
