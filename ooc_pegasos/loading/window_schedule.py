"""The window schedule of a run: the windows of the epochs, and all rows in order for passes without training."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.samplers import Plan, Sampler
from ooc_pegasos.loading.window import Window
from ooc_pegasos.util.stopwatch import Stopwatch
from ooc_pegasos.util.typed_json import omitted_default


@dataclass
class Cursor:
    """The position of a run in the plan of epochs."""

    epoch: int = 0
    window: int = 0
    position: int = 0
    """Rows processed of the current piece of the work on a window."""
    piece: int = omitted_default(0)
    presented: int = 0
    """Rows of this epoch processed so far."""
    begun: bool = False
    """True once the solver was notified of the beginning of the epoch."""
    marked: bool = False
    """True after the first half of the epoch."""


class WindowSchedule:
    """The windows of a run; `window` is the current one."""

    def __init__(self, loader: Loader, sampler: Sampler, seed: int, watch: Stopwatch) -> None:
        self.window: Window | None = None
        self._loader, self._sampler, self._seed, self._watch = loader, sampler, seed, watch
        self._plans: dict[int, list[Plan]] = {}
        self._stream: Generator[Window, None, None] | None = None

    def plans(self, epoch: int) -> list[Plan]:
        """Return the plans of an epoch; those of the next epoch are made before this one ends."""
        if epoch not in self._plans:
            made = list(self._sampler(self._loader.shape, self._seed, epoch))
            self._plans = {
                **{number: plans for number, plans in self._plans.items() if number >= epoch - 1},
                epoch: made,
            }
        return self._plans[epoch]

    def next(self, cursor: Cursor, limit: int, check: Callable[[], None]) -> Window:
        """Return the window at the cursor; the windows after it are read concurrently, up to the last epoch."""
        if self._stream is None:
            self._stream = self._loader.stream(self._upcoming_plans(cursor, limit), check)
        with self._watch.measuring("waiting for data"):
            self.window = next(self._stream)
        return self.window

    def _upcoming_plans(self, cursor: Cursor, limit: int) -> Iterator[Plan]:
        first = cursor.window
        for epoch in range(cursor.epoch, max(limit, cursor.epoch + 1)):  # an epoch that was begun is always completed
            yield from self.plans(epoch)[first:]
            first = 0

    def all_windows(self, check: Callable[[], None]) -> Generator[Window, None, None]:
        """Yield the window in memory if it is the whole store, or else read the store in order."""
        if self._loader.shape.fits and self.window is not None:
            yield self.window
            return
        self.close()
        with closing(self._loader.stream(self._loader.in_order(), check)) as windows:
            while True:
                with self._watch.measuring("waiting for data"):
                    window = next(windows, None)
                if window is None:
                    return
                yield window

    def plan_again(self) -> None:
        """Forget plans for windows of another size, between two epochs."""
        self.close()
        self._plans = {}

    def close(self) -> None:
        """Stop reading."""
        if self._stream:
            self._stream.close()
        self._stream = None
