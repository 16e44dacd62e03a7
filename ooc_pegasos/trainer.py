"""The loop: present an epoch, judge, log, checkpoint, stop."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.accounting import EpochCost, Stopwatch
from ooc_pegasos.bias import Search, best_bias
from ooc_pegasos.block import CODINGS, VALUE_CODINGS, CsrBlock, all_levels
from ooc_pegasos.checkpoint import FILE_NAME, Checkpoint, sound, whole
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.files import in_use, locked, write_atomically, writing_errors
from ooc_pegasos.judging import Judge
from ooc_pegasos.kernels.pegasos import NO_FREE, square_distance
from ooc_pegasos.loading import Window, open_loader
from ooc_pegasos.machine import peak_rss
from ooc_pegasos.model import Model
from ooc_pegasos.objective import Measurement
from ooc_pegasos.outcome import Outcome, TrainResult, check_rows_apart, look_at_rows_apart, scores_apart
from ooc_pegasos.path import remark_on
from ooc_pegasos.problem import Spec, count_models, fixed_bias, problem_of, vectors_of
from ooc_pegasos.progress import TrainingProgress, default_training_progress
from ooc_pegasos.progression import ROWS, Progression, RunState, check_same_run, identity_of
from ooc_pegasos.samplers import SAMPLERS, Plan
from ooc_pegasos.solvers.choice import AVERAGE_BELOW, choose_algorithm, make_solver, row_bytes, why_uncertified
from ooc_pegasos.solvers.solver import Solver
from ooc_pegasos.store import Store

_EPOCHS, _STEPS = 100, 10  # default limits, with a certificate and without
_SDCA_EPOCHS = 5000  # its epochs cost little where most rows sleep
_REPEATS = 5  # of `sgd-m`, as in "SGD revisited"
_RATIO_OF_AVERAGES = 0.35  # what `Progression.ratio` is where averages are candidates, until it is measured
_RATIO_OF_SDCA = 0.6  # the same for `sdca`, whose gap is met before each step
_GROUPED = 0.1  # share of the variance of labels that is between chunks, from which on they count as grouped
_SHORT = 1e-3  # seconds of an epoch for which nobody asks how much memory is in use
_TRIED = 3  # epochs after which Pegasos, where it was not asked for, makes room unless it is nearly there


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM was felt between two slices; a checkpoint was written if there is a place for one."""


def train(
    store: Store,
    config: TrainConfig,
    *,
    warm_start: Model | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    log: str | Path | None = None,
    scratch: str | Path | None = None,
    progress: TrainingProgress | None = None,
) -> TrainResult:
    """Minimise objective (1) over the rows of `store` until the certified gap of each model is within the tolerance."""
    if resume and checkpoint is None:
        raise UsageError("--resume continues from a checkpoint; say where it is with --checkpoint DIR")
    place = Path(checkpoint) if checkpoint else None
    with ExitStack() as stack:
        if progress is None:
            progress = default_training_progress()
            stack.callback(progress.end)
        stack.enter_context(in_use(store.path))
        if config.bias == "search":
            if place or warm_start is not None:
                raise UsageError("--bias search trains again and again; leave out --checkpoint and --warm-start")
            return _search(store, config, log, Path(scratch) if scratch else None, progress)
        if place:
            with writing_errors(place):
                stack.enter_context(locked(place / "lock", str(place)))
        saved = Checkpoint.load(place) if resume and place else None
        run = _Run(store, config, warm_start, place, progress, saved, Path(scratch) if scratch else None)
        stack.callback(run.close)
        if place and not resume:
            _start_over(place, progress)
        if log:
            with writing_errors(Path(log)):
                run.log = stack.enter_context(_open_log(Path(log), sum(known.epochs for known in run.state.known)))
        stack.enter_context(run.listening())
        return run.go()


def _start_over(place: Path, progress: TrainingProgress) -> None:
    """Take away the checkpoint of another run, so that --resume cannot take it for one of the run that begins."""
    if (place / FILE_NAME).exists():
        progress.note(f"the checkpoint in {place} is discarded; --resume would have continued it")
    with writing_errors(place):
        (place / FILE_NAME).unlink(missing_ok=True)  # first: the rows are nothing without it
        for rows in place.glob(ROWS):
            rows.unlink()


def _search(
    store: Store, config: TrainConfig, log: str | Path | None, scratch: Path | None, progress: TrainingProgress
) -> TrainResult:
    """An outer search over the bias: models of several biases that are held fixed are trained in each pass."""
    search, began = Search(), time.perf_counter()
    with ExitStack() as stack:
        file = stack.enter_context(_open_log(Path(log), 0)) if log else None
        while True:
            seconds = time.perf_counter() - began
            left = max(config.max_seconds - seconds, 1e-3) if config.max_seconds else None
            run = _Run(
                store,
                dataclasses.replace(config, max_seconds=left),
                None,
                None,
                progress,
                None,
                scratch,
                search.offsets,
            )
            run.log = file
            with closing(run), run.listening():
                result = run.go()
            if search.is_over([model.certificate for model in result.models]) or result.stopped_by == "seconds":
                note = f"the gap is that for the bias held at {float(result.model.bias):.6g}"
                note += ", and another may be better: scale the targets" if search.gave_up else ""
                progress.note(note)
                seconds = time.perf_counter() - began
                return dataclasses.replace(result, seconds=seconds, notes=[*result.notes, note])


def _open_log(path: Path, lines: int) -> io.FileIO:
    """The log with its first lines, those that a checkpoint knows of; the rest is written again."""
    if not lines or not path.is_file():
        return io.FileIO(path, "w")
    kept = path.read_bytes().splitlines(keepends=True)[:lines]
    write_atomically(path, b"".join(kept))
    return io.FileIO(path, "a")


class _OutOfTimeError(Exception):
    """--max-seconds are over."""


def _budget_of(saved: Checkpoint, place: Path) -> int:
    """The memory that the run to resume was given."""
    with sound(place):
        return whole(saved.facts["budget"], 0, 2**62, "budget")


class _Run:
    """One training run."""

    def __init__(
        self,
        store: Store,
        config: TrainConfig,
        warm_start: Model | None,
        place: Path | None,
        progress: TrainingProgress,
        saved: Checkpoint | None,
        scratch: Path | None,
        offsets: tuple[float, ...] = (),
    ) -> None:
        square_distance(np.empty(0), np.empty(0), 1.0)  # numba gets itself ready at the first call, as an import does
        self.began = time.perf_counter()
        self.store = store
        self.config = config
        self.place = place
        self.scratch = scratch or place or Path(tempfile.gettempdir())
        self.progress = progress
        self.log: io.FileIO | None = None
        self.notes: list[str] = []
        self.watch, self.background = Stopwatch(), Stopwatch()
        self.offsets = offsets
        number = count_models(config, store) * max(len(offsets), 1)
        vectors = number * vectors_of(config, store)
        self.loader = open_loader(
            store,
            _budget_of(saved, place) if saved and place else config.budget(store.features, vectors),
            loading=config.loading,
            holdout=config.holdout_fraction,
            folds=config.folds,
            row_bytes=row_bytes(config, number),
            threads=config.workers,
            background=self.background,
            what="--memory" if config.memory else "the memory that is free,",
        )
        self.rows = self.loader.training_rows
        self._check_rows()
        if warm_start is not None and config.project:
            raise UsageError("--warm-start and --project together leave no certificate; leave one of them out")
        self.sampler = SAMPLERS[config.sampler]
        self.problem = problem_of(config, store, self.loader)
        if config.calibrate and store.manifest.labels.task == "binary":
            check_rows_apart(store, self.loader)
        if offsets:
            self.problem = fixed_bias(self.problem, offsets)
        self.start = self._start(warm_start)
        self.algorithm, self.why_algorithm = choose_algorithm(config, self.problem, self.start is not None)
        self.why_uncertified = why_uncertified(config, self.algorithm)
        self.identity = identity_of(config, store, self.start)
        if saved and place:
            with sound(place):
                check_same_run(place, self.identity, saved, config.memory)
                if saved.facts["solver_name"] != self.algorithm:
                    self._switched()
        self.state = RunState(self.problem, self._new_solver(), [*map(self._new_knowledge, self.problem.specs)])
        if saved and place:
            try:
                with sound(place):
                    self.state.restore(place, saved)
            except BaseException:
                self.close()
                raise
        self.judge = Judge(self.state, config, self.loader.shape.fits, str(store.path))
        self._note_what_slows()
        self.window: Window | None = None
        self.windows_of: dict[int, list[Plan]] = {}
        self.stream: Generator[Window, None, None] | None = None
        self.stop_asked = False
        self.last_checkpoint = self.began
        self._before_epoch = self._spent()

    def _check_rows(self) -> None:
        apart, what = self.config.holdout_fraction, "--holdout"
        if self.config.folds:
            if not self.loader.folds.sizes.all():
                raise UsageError(f"--folds {self.config.folds} leaves a fold without rows; choose fewer")
            return
        if self.rows == 0:
            raise UsageError(f"{what} {apart} leaves no row to train on; choose a smaller fraction")
        if apart and self.rows == self.store.rows:
            why = "" if self.config.holdout else " (which lambdas are compared by)"
            raise UsageError(f"{what} {apart}{why} keeps no row apart; choose a larger fraction, or one --lambda")

    def _start(self, warm_start: Model | None) -> np.ndarray | None:
        """The weights to begin with, as long as a vector of the problem."""
        if warm_start is None:
            return None
        if len(self.problem.specs) > 1 or self.problem.costs is not None or warm_start.weights.ndim > 1:
            raise UsageError("--warm-start begins one model with another; leave it out, or give one --lambda")
        if len(warm_start.weights) > self.store.features:
            raise UsageError("--warm-start: the model has more features than the store; choose a model for this data")
        start = np.zeros(self.problem.length)
        start[: len(warm_start.weights)] = warm_start.weights
        if warm_start.bias and not self.problem.bias:
            raise UsageError("--warm-start: the model has a bias; add --bias feature")
        if self.problem.bias:
            start[-1] = float(warm_start.bias) / self.problem.bias
        return start

    def _new_solver(self) -> Solver:
        solver, remark = make_solver(self.config, self.algorithm, self.problem, self.loader, self.start, self.scratch)
        if remark:
            self._note(remark)
        return solver

    def _new_knowledge(self, spec: Spec) -> Progression:
        if self.algorithm == "sdca":
            return Progression(ratio=_RATIO_OF_SDCA)
        averaged = spec.clock < AVERAGE_BELOW and self.problem.can_average
        return Progression(ratio=_RATIO_OF_AVERAGES if averaged else 1.0)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.note(text)

    def _note_what_slows(self) -> None:
        """Rows grouped by label ruin steps that see one group after the other."""
        shape, made = self.loader.shape, self.store.manifest
        if made.shuffle_seed is not None or (shape.fits and self.config.sampler != "sequential"):
            return
        if made.grouping_by_label() > _GROUPED:
            where = "one after the other" if shape.fits else f"{shape.budget / 2**20:,.0f} MB of them at a time"
            enough = f", or give --memory {-(-sum(shape.chunk_bytes) // 2**20)}MB" if not shape.fits else ""
            self._note(
                f"the rows of {self.store.path} stand grouped by label and come {where}, which ruins the training; "
                f"convert again without --no-shuffle{enough}"
            )

    def close(self) -> None:
        """Give back what is kept on disk for this run alone."""
        self.state.solver.close()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn Ctrl-C and SIGTERM into a wish to stop; asked twice, stop at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(_number: int, _frame: Any) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _look_up(self) -> None:
        """Stop if somebody wants that; asked between two pieces of work, when the state can be saved."""
        if self.stop_asked:
            if self.place:
                self._save_checkpoint()
            raise Interrupted
        if self.config.max_seconds and time.perf_counter() - self.began > self.config.max_seconds:
            raise _OutOfTimeError

    # --- the loop ---------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Epoch after epoch, until every model has a reason to leave."""
        limit = self.config.max_epochs or self._limit()
        stopped = ""
        try:
            while not (stopped := self._reason_to_stop(limit)):
                self._epoch(limit)
        except _OutOfTimeError:
            stopped = "seconds"
            if self.place:
                self._save_checkpoint()
        finally:
            self._close_stream()
        self._measure_the_rest(stopped)
        self.loader.check_unchanged()
        return self._result(stopped)

    def _limit(self) -> int:
        if self.why_uncertified:
            return _STEPS
        return _SDCA_EPOCHS if self.algorithm == "sdca" or self._may_switch() else _EPOCHS

    def _close_stream(self) -> None:
        if self.stream:
            self.stream.close()
        self.stream = None

    def _plans(self, limit: int) -> Iterator[Plan]:
        """The windows still to come."""
        cursor = self.state.cursor
        first = cursor.window
        for epoch in range(cursor.epoch, max(limit, cursor.epoch + 1)):  # one that was begun is ended in any case
            yield from self._windows(epoch)[first:]
            first = 0

    def _windows(self, epoch: int) -> list[Plan]:
        if epoch not in self.windows_of:
            made = list(self.sampler(self.loader.shape, self.config.seed, epoch))
            self.windows_of = {
                **{e: w for e, w in self.windows_of.items() if e >= self.state.cursor.epoch},
                epoch: made,
            }
        return self.windows_of[epoch]

    def _reason_to_stop(self, limit: int) -> str:
        state = self.state
        if not state.solver.active:
            reasons = {known.left for known in state.known}
            return "tolerance" if reasons == {"tolerance"} else "holdout"
        if state.cursor.epoch >= limit and not state.cursor.presented:
            return "epochs"
        return ""

    def _repeats(self) -> dict[int, int]:
        """Multiple updates, equation (6), for models whose gap is large."""
        if self.config.algorithm != "sgd-m":
            return {}
        return {model: _REPEATS for model in self.state.solver.active if self._is_far(self.state.known[model])}

    def _is_far(self, known: Progression) -> bool:
        gap = known.history[-1]["estimated_gap"] if known.history else 0.0
        return gap is None or gap > 5 * self.config.enough

    def _epoch(self, limit: int) -> None:
        """Present what is left of an epoch, and say what is known at its end."""
        state = self.state
        cursor = state.cursor
        if not cursor.begun:
            cursor.begun = True
            state.solver.begin_epoch(self._repeats())
        number = len(self._windows(cursor.epoch))
        if cursor.epoch == 0 and cursor.window < number:
            threading.Thread(target=self._load_kernels, daemon=True).start()  # while data is read
        while cursor.window < number:
            if self.stream is None:
                self.stream = self.loader.stream(self._plans(limit), self._look_up)
            with self.watch.measuring("waiting for data"):
                self.window = next(self.stream)
            self._present(self.window)
            self.loader.check_unchanged()
            cursor.window, cursor.position = cursor.window + 1, 0
        with self.watch.measuring("bounding the optimum"):
            state.solver.end_epoch()
        entries = self._judge(last=cursor.epoch + 1 >= limit)
        self._count_cost()
        self._write_log(entries)
        self._let_go()
        cursor.epoch += 1
        cursor.window = cursor.position = cursor.presented = 0
        cursor.begun = cursor.marked = False
        if self._wants_checkpoint(after_epoch=True):
            self._save_checkpoint()

    def _judge(self, last: bool) -> list[dict[str, Any]]:
        def measure(measurement: Measurement) -> None:
            self._measure_now(measurement, may_stop=True)

        active = list(self.state.solver.active)
        entries = self.judge.judge(last, measure)
        if len(self.problem.specs) > 1:
            entries = [{"model": model, **entry} for model, entry in zip(active, entries, strict=True)]
        self.progress.epoch_done(_worst(entries), self.config.enough)
        return entries

    def _let_go(self) -> None:
        """Models that are done leave the pass; and Pegasos, where it was not asked for, makes room if it is slow."""
        state = self.state
        leaving = []
        for model in state.solver.active:
            known = state.known[model]
            known.left = self.judge.reason_to_leave(known)
            if known.left:
                leaving.append(model)
        if leaving:
            state.solver.drop(leaving)
        if self.algorithm != "sdca" and self._may_switch() and self._is_slow():
            active = state.solver.active
            state.solver.close()
            self._switched()
            solver = self._new_solver()
            solver.drop([model for model in solver.active if model not in active])
            state.solver = solver

    def _may_switch(self) -> bool:
        """Whether dual coordinate ascent could go on from here, and nobody asked for what it does not know."""
        config = self.config
        asked = config.of_pegasos or config.threads not in (None, 1)
        return config.algorithm == "auto" and self.start is None and self.problem.costs is None and not asked

    def _is_slow(self) -> bool:
        histories = [self.state.known[model].history for model in self.state.solver.active]
        gaps = [history[-1]["estimated_gap"] for history in histories if len(history) >= _TRIED]
        return any(gap is not None and gap > 2 * self.config.enough for gap in gaps)

    def _switched(self) -> None:
        self.algorithm = "sdca"
        self.why_algorithm = f"after {_TRIED} epochs of Pegasos the tolerance was far"
        self._note(f"going on by dual coordinate ascent: {self.why_algorithm}")

    def _load_kernels(self) -> None:
        """Call the kernels with no rows, so that they are ready when the rows are."""
        with suppress(LookupError):  # models that leave meanwhile
            self.state.solver.warm_up(self._nothing())

    def _nothing(self) -> CsrBlock:
        """A block as the store has them, without rows."""
        layout = self.store.manifest.layout
        values = np.empty(0, VALUE_CODINGS[layout.values]) if layout.values else None
        nothing, labels = np.empty(0, CODINGS[layout.index_coding]), np.empty(0, layout.labels)
        levels = all_levels(layout.levels)
        return CsrBlock(np.zeros(1, np.int64), nothing, values, labels, self.store.features, levels=levels)

    def _present(self, window: Window) -> None:
        """Present the rest of a window slice by slice."""
        state = self.state
        cursor, solver, order = state.cursor, state.solver, window.order
        pending = state.pending
        if pending and pending.windows == cursor.window:
            with self.watch.measuring("measuring the objective"):
                pending.add(window, self.loader, self.config.workers, self._look_up)
        with self.watch.measuring("fetching what is kept of rows"):
            solver.enter(window)
        batch = solver.batch_size
        step = -(-solver.rows_at_a_time(window.block) // batch) * batch
        half = self.rows // 2
        while cursor.position < len(order):
            end = min(cursor.position + step, len(order))
            before_half = (half - cursor.presented) // batch * batch
            if solver.wants_mark and 0 < before_half < end - cursor.position:
                end = cursor.position + before_half
            with self.watch.measuring("presenting rows"):
                bad = solver.present(window, cursor.position, end)
            if bad >= 0:
                self.loader.check_unchanged()
                raise self.loader.damaged(window, bad)
            cursor.presented += end - cursor.position
            cursor.position = end
            if solver.wants_mark and not cursor.marked and cursor.presented + batch > half:
                solver.mark()
                cursor.marked = True
            self.progress.presented(cursor.epoch, cursor.presented, self.rows)
            if self._wants_checkpoint():
                self._save_checkpoint()
            if cursor.presented < self.rows or self.stop_asked:
                self._look_up()
        with self.watch.measuring("fetching what is kept of rows"):
            solver.leave(window)

    # --- objectives ---------------------------------------------------------------------------------

    def _measure_now(self, measurement: Measurement, may_stop: bool) -> None:
        """A pass over all rows: those in memory, or all of the store, read in order."""

        def check() -> None:
            if self.stop_asked or may_stop:
                self._look_up()

        with closing(self._all_windows(check)) as windows:
            for window in windows:
                with self.watch.measuring("measuring the objective"):
                    measurement.add(window, self.loader, self.config.workers, check)
                self.loader.check_unchanged()

    def _all_windows(self, check: Callable[[], None]) -> Generator[Window, None, None]:
        """The window in memory, if that is all; else all of the store, read in order."""
        if self.loader.shape.fits and self.window is not None:
            yield self.window
            return
        self._close_stream()
        with closing(self.loader.stream(self.loader.in_order(), check)) as windows:
            while True:
                with self.watch.measuring("waiting for data"):
                    window = next(windows, None)
                if window is None:
                    return
                yield window

    def _measure_the_rest(self, stopped: str) -> None:
        """Measure models of which nothing is known yet, or not their last, since time ran out."""
        state = self.state
        late = stopped == "seconds" and self.why_uncertified is not None
        models, candidates = [], []
        for model in state.solver.active:
            if state.known[model].primal is None or late:
                for candidate in state.solver.candidates(model):
                    models.append(model)
                    candidates.append(candidate)
        if candidates:
            measurement = Measurement(self.problem, models, candidates)
            self._measure_now(measurement, may_stop=False)
            self.judge.take(measurement, {})
        if self.problem.free != NO_FREE:
            self._settle_biases()

    def _settle_biases(self) -> None:
        """Replace a bias that was found on the way by the best one for the weights that are kept."""
        models, candidates = list(self.state.best), []
        for model in models:
            weights = self.state.best[model][:-1]
            bias = best_bias(self.problem, model, weights, lambda: self._all_windows(lambda: None))
            candidates.append(np.append(weights, bias))
        measurement = Measurement(self.problem, models, candidates)
        self._measure_now(measurement, may_stop=False)
        for objective, candidate in zip(measurement.result(), candidates, strict=True):
            known = self.state.known[objective.model]
            known.primal, known.apart = objective.primal, objective.apart
            self.state.best[objective.model] = candidate

    # --- what is left behind ----------------------------------------------------------------------

    def _spent(self) -> tuple[float, float, float, int]:
        """Now, seconds computing and waiting, bytes read."""
        waiting = self.watch.of("waiting for data")
        computing = sum(self.watch.seconds.values()) - waiting - self.watch.of("writing checkpoints")
        return time.perf_counter(), computing, waiting, self.loader.bytes_read

    def _count_cost(self) -> None:
        before, now = self._before_epoch, self._spent()
        self._before_epoch = now
        seconds, read = now[0] - before[0], now[3] - before[3]
        costs = self.state.costs
        # asking the system takes a tenth of an epoch over little data
        peak = costs[-1].peak_rss if costs and seconds < _SHORT else peak_rss()
        costs.append(
            EpochCost(
                self.state.cursor.epoch + 1,
                seconds,
                now[1] - before[1],
                now[2] - before[2],
                read,
                read / max(seconds, 1e-9) / 1e9,  # a clock may be set back, or be a coarse one
                peak,
            )
        )

    def _result(self, stopped: str) -> TrainResult:
        config = self.config
        outcome = Outcome(self.problem, self.state, self.store, config)
        model = outcome.model(self.algorithm)
        remark = remark_on(outcome.trials)
        if remark:
            self._note(remark)
        apart = outcome.apart
        if config.calibrate or (outcome.one_vs_rest and config.holdout_fraction):
            with closing(self._all_windows(lambda: None)) as windows, self.watch.measuring("calibrating"):
                found = scores_apart(model, windows, self.loader, config.workers)
                model, error = look_at_rows_apart(model, found, config)
            self.loader.check_unchanged()
            apart = {"loss": apart["loss"] if apart else None, "error": error}
        known = self.state.known
        seconds, computing, waiting, bytes_read = self._spent()
        return TrainResult(
            model=model,
            models=outcome.models(),
            trials=outcome.trials,
            converged=stopped == "tolerance",
            certified=all(one.gap is not None for one in known),
            stopped_by=stopped,
            seconds=seconds - self.began,
            seconds_computing=computing,
            seconds_waiting=waiting,
            bytes_read=bytes_read,
            holdout=apart,
            why_uncertified=self.why_uncertified,
            algorithm=self.algorithm,
            why_algorithm=self.why_algorithm,
            memory=self.loader.shape.budget,
            loading=self.loader.name,
            windows=len(list(self.sampler(self.loader.shape, config.seed, 0))),
            presenters=self.state.solver.threads,
            costs=self.state.costs,
            notes=self.notes,
            profile={"foreground": self.watch.seconds, "background": self.background.seconds},
        )

    def _write_log(self, entries: list[dict[str, Any]]) -> None:
        if self.log:
            costs, elapsed = self.state.costs[-1].table(), time.perf_counter() - self.began
            lines = [json.dumps({**entry, **costs, "elapsed": elapsed}) + "\n" for entry in entries]
            content = memoryview("".join(lines).encode())
            with writing_errors(Path(str(self.log.name))):
                while content:
                    content = content[self.log.write(content) :]

    def _wants_checkpoint(self, after_epoch: bool = False) -> bool:
        if self.place is None:
            return False
        every = self.config.checkpoint_epochs
        if after_epoch and every and self.state.cursor.epoch % every == 0:
            return True
        return time.perf_counter() - self.last_checkpoint > 60 * self.config.checkpoint_minutes

    def _save_checkpoint(self) -> None:
        assert self.place is not None
        with self.watch.measuring("writing checkpoints"):
            self.loader.check_unchanged()
            self.state.save(self.place, self.identity, self.loader.shape.budget)
        self.last_checkpoint = time.perf_counter()


def _worst(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of the model that is farthest from its tolerance, and how many there are."""
    return {**max(entries, key=lambda entry: entry["estimated_gap"] or 0.0), "models": len(entries)}
