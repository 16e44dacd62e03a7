"""The number of the step that a command is at, and of how many, for all of its displays."""

from __future__ import annotations

import time


class Steps:
    """Counts the steps of a command. The number of all steps is shown once it is known, and never shrinks."""

    def __init__(self, later: int | None = 0) -> None:
        """`later` is the number of steps after those that are announced by `expect`; None: it stays unknown."""
        self.later = later
        self.began = time.monotonic()
        self._number = 0
        self._total: int | None = None

    def expect(self, count: int) -> None:
        """Announce the next `count` steps. Steps that were announced before and are not needed count as done."""
        if self.later is None:
            return
        total = self._number + count + self.later
        self._number += max((self._total or 0) - total, 0)
        self._total = max(self._total or 0, total)

    def begin(self) -> None:
        """Begin the next step."""
        self._number += 1
        if self._total is not None and self._number > self._total:
            self._total = self.later = None  # no number rather than a wrong one

    @property
    def mark(self) -> str:
        """The step as text before its name: nothing for the only step of a command."""
        if self._total is not None:
            return f"{self._number}/{self._total} " if self._total > 1 else ""
        return f"step {self._number}: " if self.later is None or self._number > 1 else ""
