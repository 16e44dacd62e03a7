"""Passes over the rows of a store on this machine, window by window."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from ooc_pegasos.loading.window import Window
from ooc_pegasos.loading.window_schedule import WindowSchedule
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import RowSums
from ooc_pegasos.objective.problem import Spec
from ooc_pegasos.registry import SAMPLERS
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.registry import choose_algorithm, make_solver
from ooc_pegasos.solvers.row_cache import Piece
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.holdout import HoldoutRequest, HoldoutScores, score_holdout_rows
from ooc_pegasos.training.report import Report
from ooc_pegasos.training.setup import (
    Algorithm,
    RunSetup,
    new_progression,
    no_rows,
    remark_on_grouping,
    remark_on_projection,
)
from ooc_pegasos.training.state import Progression, RunState
from ooc_pegasos.training.stop import StopCheck
from ooc_pegasos.training.timing import EpochCost, Meter, RunCost
from ooc_pegasos.util.stopwatch import Stopwatch

_SURELY = 0.5
"""Estimated gap, in tolerances, that is probably found to be small enough."""


class LocalEngine(Engine):
    """Passes over windows that are read within the memory budget.

    `background` measures the threads that load data; `scratch` is the folder for the state of rows.
    """

    most_epochs = 1 << 62

    def __init__(
        self, setup: RunSetup, stop: StopCheck, report: Report, background: Stopwatch, scratch: Path | None
    ) -> None:
        super().__init__(setup, stop, report)
        self._loader, self._background, self._scratch = setup.loader, background, scratch
        self._schedule = WindowSchedule(self._loader, SAMPLERS[setup.config.sampler], setup.config.seed, self.watch)
        self._meter = Meter(self.watch, lambda: self._loader.bytes_read)

    @property
    def memory(self) -> int:
        """See `Engine`."""
        return self._loader.shape.budget + self._loader.reserved

    def choose_algorithm(self) -> Algorithm:
        """See `Engine`."""
        setup = self.setup
        return Algorithm(*choose_algorithm(setup.config, setup.problem, setup.start is not None))

    def new_solver(self, algorithm: str) -> Solver:
        """See `Engine`."""
        setup, before = self.setup, self._loader.shape
        made = make_solver(setup.config, algorithm, setup.problem, self._loader, setup.start, self._scratch)
        solver, remark = made
        if self._loader.shape != before:
            self._schedule.plan_again()
        if remark:
            self.report.note(remark)
        return solver

    def new_progression(self, spec: Spec, algorithm: str) -> Progression:
        """See `Engine`."""
        return new_progression(spec, self.setup.problem, algorithm)

    def remarks(self) -> list[str]:
        """See `Engine`."""
        config, store = self.setup.config, self.setup.store
        remarks = [
            remark_on_grouping(config, store, self._loader),
            remark_on_projection(config, store, self.setup.problem),
        ]
        return [remark for remark in remarks if remark]

    # --- passes that train --------------------------------------------------------------------------

    def train_pass(self, state: RunState, limit: int, save_if_due: Callable[[], None]) -> None:
        """See `Engine`."""
        cursor = state.cursor
        state.solver.read_again(self.all_windows)
        number = len(self._schedule.plans(cursor.epoch))
        if cursor.epoch == 0 and cursor.window < number:
            threading.Thread(target=self._load_compiled_code, args=(state,), daemon=True).start()  # while data is read
        if state.solver.needs_balance and not self._loader.shape.fits:
            self.set_balance(state.solver)
            self._loader.check_unchanged()
        while cursor.window < number:
            window = self._schedule.next(cursor, limit, self.stop.check)
            self.train_window(state, window, save_if_due)
            self._loader.check_unchanged()
            cursor.window, cursor.position = cursor.window + 1, 0
        if state.solver.needs_balance:  # resumed after the last row of an epoch
            self.set_balance(state.solver)

    def _load_compiled_code(self, state: RunState) -> None:
        """Call the compiled loops without rows, to load their machine code while the first rows are read."""
        with suppress(LookupError):  # models may be finished concurrently
            state.solver.warm_up(no_rows(self.setup.store))

    def train_window(self, state: RunState, window: Window, save_if_due: Callable[[], None]) -> None:
        """Process the rows of a window from the cursor on, slice by slice."""
        cursor, solver, pending = state.cursor, state.solver, state.pending
        if pending and pending.windows == cursor.window:
            with self.watch.measuring("measuring the objective"):
                pending.add(window, self._loader, self.setup.config.workers, self.stop.check)
        if solver.needs_balance and self._loader.shape.fits:
            self.set_balance(solver)
        with self.watch.measuring("copying row states"):
            solver.enter(window)
        seed = [self.setup.config.seed, cursor.epoch, cursor.window]
        solver.is_nearly_done = self._is_nearly_done(state)
        while piece := solver.piece(window, cursor.piece, seed):
            solver.start(piece, is_resumed=cursor.position > 0)
            self._train_piece(state, piece, save_if_due)
            solver.finish(piece)
            cursor.piece, cursor.position = cursor.piece + 1, 0
        with self.watch.measuring("copying row states"):
            solver.leave(window)
        cursor.piece = 0

    def _is_nearly_done(self, state: RunState) -> bool:
        """True if the gaps of all models are probably small enough, which this epoch is to show."""
        enough = self.setup.config.enough
        known = (state.progress[model] for model in state.solver.active)
        estimates = [one.estimated_gap if one.gap is None else None for one in known]  # a measured gap was too large
        return all(gap is not None and gap <= _SURELY * enough for gap in estimates)

    def _train_piece(self, state: RunState, piece: Piece, save_if_due: Callable[[], None]) -> None:
        """Process the rows of a piece from the cursor on, slice by slice."""
        cursor, rows = state.cursor, self._loader.training_rows
        while cursor.position < len(piece.window.order):
            self._train_slice(state, piece)
            self.report.presented(cursor.epoch, cursor.presented, rows)
            save_if_due()
            if cursor.presented < rows or self.stop.is_requested:
                self.stop.check()

    def _train_slice(self, state: RunState, piece: Piece) -> None:
        """Process a slice of rows, some milliseconds of work. It ends at half of the epoch if the solver needs that."""
        cursor, solver, batch, window = state.cursor, state.solver, state.solver.batch_size, piece.window
        step = -(-solver.rows_at_a_time(window.block) // batch) * batch
        end = min(cursor.position + step, len(window.order))
        half = self._loader.training_rows // 2
        before_half = (half - cursor.presented) // batch * batch
        if solver.needs_half_mark and 0 < before_half < end - cursor.position:
            end = cursor.position + before_half
        with self.watch.measuring("processing rows"):
            bad = solver.process(window, cursor.position, end)
        if bad >= 0:
            self._loader.check_unchanged()
            raise self._loader.damaged(window, bad)
        if piece.number == 0 and not piece.is_cached:
            cursor.presented += end - cursor.position
        cursor.position = end
        if solver.needs_half_mark and not cursor.marked and cursor.presented + batch > half:
            solver.mark_half()
            cursor.marked = True

    def end_training(self) -> None:
        """See `Engine`."""
        self._schedule.close()

    # --- passes that measure ------------------------------------------------------------------------

    @property
    def is_measuring_cheap(self) -> bool:
        """See `Engine`."""
        return self._loader.shape.fits

    def all_windows(self) -> Generator[Window, None, None]:
        """See `Engine`."""
        return self._schedule.all_windows(self.stop.check)

    def measure(self, measurement: Measurement) -> None:
        """See `Engine`."""
        with closing(self.all_windows()) as windows:
            for window in windows:
                with self.watch.measuring("measuring the objective"):
                    measurement.add(window, self._loader, self.setup.config.workers, self.stop.check)
                self._loader.check_unchanged()

    def sum_rows(self) -> RowSums:
        """See `Engine`."""
        setup = self.setup
        found = RowSums.of(setup.problem, len(setup.store.manifest.labels.classes), setup.config.folds)
        with closing(self.all_windows()) as windows, self.watch.measuring("adding up rows"):
            for window in windows:
                found.add(window)
        return found

    def score_holdout(self, request: HoldoutRequest) -> list[HoldoutScores]:
        """See `Engine`."""
        windows = self._schedule.all_windows(lambda: None)  # training is complete, so it is not interrupted
        with closing(windows), self.watch.measuring("scoring holdout rows"):
            found = score_holdout_rows(request, windows, self._loader, self.setup.config.workers)
        self._loader.check_unchanged()
        return found

    def check_unchanged(self) -> None:
        """See `Engine`."""
        self._loader.check_unchanged()

    # --- costs --------------------------------------------------------------------------------------

    def epoch_cost(self, number: int, costs: Sequence[EpochCost]) -> EpochCost:
        """See `Engine`."""
        return self._meter.epoch(number, costs)

    def run_cost(self, state: RunState) -> RunCost:
        """See `Engine`."""
        spent = self._meter.spent()
        return RunCost(
            seconds_computing=spent.computing,
            seconds_waiting=spent.waiting,
            bytes_read=spent.bytes_read,
            memory=self.memory,
            loading=self._loader.name,
            windows=len(self._schedule.plans(0)),
            presenters=state.solver.threads,
            profile={"foreground": self.watch.seconds, "background": self._background.seconds},
        )
