"""The loop: present an epoch, certify, log, checkpoint, stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ooc_pegasos import __version__, manifest
from ooc_pegasos.accounting import EpochCost, Stopwatch
from ooc_pegasos.block import CODINGS, VALUE_CODINGS, CsrBlock, all_levels
from ooc_pegasos.certificate import Bound, Snapshot, keep_some, lower_bound, relative_gap
from ooc_pegasos.checkpoint import Checkpoint
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.files import locked, writing_errors
from ooc_pegasos.kernels.pegasos import square_distance
from ooc_pegasos.loading import Window, open_loader
from ooc_pegasos.losses import loss_for
from ooc_pegasos.machine import peak_rss
from ooc_pegasos.model import Certificate, Model, ModelInfo
from ooc_pegasos.objective import Measurement, Objective, ObjectiveOptions
from ooc_pegasos.progress import TrainingProgress
from ooc_pegasos.progression import Progression, RunState, check_same_run, essential, identity_of
from ooc_pegasos.samplers import EQUALLY_OFTEN, SAMPLERS, Plan
from ooc_pegasos.solvers.averaging import Averaging
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCHS, _STEPS = 100, 10  # default limits, with a certificate and without
_REPEATS = 5  # of `sgd-m`, as in "SGD revisited"
_AVERAGE_BELOW = 20.0  # lam m; below it the average of an epoch is a better candidate than its end
_RATIO_OF_AVERAGES = 0.35  # what `Progression.ratio` is where averages are candidates, until it is measured
_GROUPED = 0.1  # share of the variance of labels that is between chunks, from which on they count as grouped
_PATIENCE = 3  # epochs without improvement on the holdout, where nothing else can stop a run


@dataclass(frozen=True)
class TrainResult:
    """A model and how the run went."""

    model: Model
    converged: bool
    certified: bool
    stopped_by: str
    seconds: float
    seconds_computing: float
    seconds_waiting: float
    bytes_read: int
    holdout: dict[str, float] | None
    why_uncertified: str | None
    memory: int
    """The budget for data, which decides the windows and so the order of rows."""
    loading: str
    windows: int
    presenters: int
    """Threads that presented rows side by side."""
    costs: list[EpochCost]
    notes: list[str]
    profile: dict[str, dict[str, float]]
    """Seconds of the run (`foreground`), and of the threads that load beside it (`background`), by what they did."""

    @property
    def history(self) -> pa.Table:
        """One row an epoch, as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.model.info.history)


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
    progress: TrainingProgress | None = None,
) -> TrainResult:
    """Minimise objective (1) over the rows of `store` until the certified gap is within the tolerance."""
    if resume and checkpoint is None:
        raise UsageError("--resume continues from a checkpoint; say where it is with --checkpoint DIR")
    place = Path(checkpoint) if checkpoint else None
    with ExitStack() as stack:
        if place:
            with writing_errors(place):
                stack.enter_context(locked(place / "lock", str(place)))
        saved = Checkpoint.load(place) if resume and place else None
        run = _Run(store, config, warm_start, place, progress or TrainingProgress(), saved)
        if log:
            with writing_errors(Path(log)):
                run.log = stack.enter_context(_open_log(Path(log), len(run.known.history)))
        stack.enter_context(run.listening())
        return run.go()


def _open_log(path: Path, epochs: int) -> TextIO:
    """The log with the lines of the first `epochs` epochs, those of a checkpoint; the rest is written again."""
    kept = path.read_text().splitlines(keepends=True)[:epochs] if epochs and path.is_file() else []
    file = open(path, "w")  # noqa: SIM115 (closed by the caller)
    file.writelines(kept)
    return file


class _OutOfTimeError(Exception):
    """--max-seconds are over."""


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
    ) -> None:
        square_distance(np.empty(0), np.empty(0), 1.0)  # numba gets itself ready at the first call, as an import does
        self.began = time.perf_counter()
        self.store = store
        self.config = config
        self.place = place
        self.progress = progress
        self.log: TextIO | None = None
        self.notes: list[str] = []
        self.watch, self.background = Stopwatch(), Stopwatch()
        self.loss = loss_for(config.loss, store.manifest.labels.task)
        self.loader = open_loader(
            store,
            saved.facts["budget"] if saved else config.budget(store.features),
            loading=config.loading,
            holdout=config.holdout,
            threads=config.workers,
            background=self.background,
            what="--memory" if config.memory else "the memory that is free,",
        )
        self.rows = self.loader.training_rows
        if self.rows == 0:
            raise UsageError(f"--holdout {config.holdout} leaves no row to train on; choose a smaller fraction")
        if config.holdout and self.rows == store.rows:
            raise UsageError(f"--holdout {config.holdout} keeps no row apart; choose a larger fraction")
        if warm_start is not None and config.project:
            raise UsageError("--warm-start and --project together leave no certificate; leave one of them out")
        self.lam = config.lam if config.lam is not None else 1.0 / (float(config.C or 0) * self.rows)
        if not 1e-30 <= self.lam <= 1e30:
            raise UsageError(f"lambda = {self.lam:g} is out of range; choose a value from 1e-30 to 1e30")
        self.class_weights = _class_weights(config, store)
        self.sampler = SAMPLERS[config.sampler]
        self.why_uncertified = _why_uncertified(config)
        self.warm = warm_start is not None
        self.state = self._new_state(warm_start)
        self.presenter = self._presenter()
        self.identity = identity_of(config, store, self.state.snapshots[0].a)
        if saved and place:
            check_same_run(place, self.identity, saved, config.memory)
            self.state.restore(saved, self._measurement)
        self._note_what_slows()
        self.window: Window | None = None
        self.stream: Generator[Window, None, None] | None = None
        self.stop_asked = False
        self.last_checkpoint = self.began
        self._before_epoch = self._spent()

    def _new_state(self, warm_start: Model | None) -> RunState:
        solver = self._new_solver(warm_start)
        start = Snapshot.start()
        if warm_start is not None:
            start.a = solver.a.copy()
        known = Progression(ratio=_RATIO_OF_AVERAGES if solver.options.average else 1.0)
        return RunState(solver, [start], known, np.zeros(0), None, [])

    def _new_solver(self, warm_start: Model | None) -> Pegasos:
        config = self.config
        largest = self.store.manifest.statistics.max_row_norm**2 * max(self.class_weights)
        paper = config.algorithm == "pegasos"
        delay = config.delay if config.delay is not None else (0.0 if paper else 3.0 * largest / self.lam)
        if warm_start is not None:
            delay = max(delay, float(self.rows))
        average = config.average or (
            not paper and config.algorithm != "sgd-r" and self.lam * self.rows < _AVERAGE_BELOW
        )
        options = PegasosOptions(
            self.lam,
            delay,
            self.loss.number,
            self.class_weights,
            min(config.batch_size, self.rows),
            config.project,
            average,
            paper and config.average,
        )
        solver = Pegasos(options, self.store.features)
        if warm_start is not None:
            if len(warm_start.weights) > self.store.features:
                raise UsageError(
                    "--warm-start: the model has more features than the store; choose a model for this data"
                )
            solver.warm_start(warm_start.weights)
        return solver

    def _presenter(self) -> Pegasos | Averaging:
        """Who presents rows: the solver, or as many threads as were asked for where that pays."""
        threads, solver = self.config.threads or 1, self.state.solver
        if threads == 1:
            return solver
        problem = Averaging.problem(solver.options, self.rows, threads)
        if problem:
            self._note(f"one thread presents rows and the others load data: {problem}")
            return solver
        return Averaging(solver, threads)

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

    @property
    def known(self) -> Progression:
        """What is known so far."""
        return self.state.known

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
        """Epoch after epoch, until a reason to stop."""
        limit = self.config.max_epochs or (_STEPS if self.why_uncertified else _EPOCHS)
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
        if self.known.primal is None or (stopped == "seconds" and self.why_uncertified):
            self._take(self._measure_now(self._candidates(None), may_stop=False))
        self.loader.check_unchanged()
        return self._result(stopped)

    def _close_stream(self) -> None:
        if self.stream:
            self.stream.close()
        self.stream = None

    def _plans(self, limit: int) -> Iterator[Plan]:
        """The windows still to come."""
        cursor = self.known.cursor
        first = cursor.window
        for epoch in range(cursor.epoch, limit):
            yield from self._windows(epoch)[first:]
            first = 0

    def _windows(self, epoch: int) -> list[Plan]:
        return list(self.sampler(self.loader.shape, self.config.seed, epoch))

    def _reason_to_stop(self, limit: int) -> str:
        gap, history = self.known.gap, self.known.history
        if not history or self.known.cursor.presented:
            return ""
        if gap is not None and gap <= self.config.tolerance:
            return "tolerance"
        if self.known.cursor.epoch >= limit:
            return "epochs"
        if self.why_uncertified and self.config.holdout:
            losses = [entry["holdout_loss"] for entry in history if entry["holdout_loss"] is not None]
            if len(losses) > _PATIENCE and min(losses[-_PATIENCE:]) >= min(losses[:-_PATIENCE]):
                return "holdout"
        return ""

    def _repeats(self) -> int:
        """Multiple updates, equation (6), while the gap is large."""
        if self.config.algorithm != "sgd-m" or not self.known.history:
            return 1
        estimate = self.known.history[-1]["estimated_gap"]
        return _REPEATS if estimate is None or estimate > 5 * self.config.tolerance else 1

    def _epoch(self, limit: int) -> None:
        """Present what is left of an epoch, and say what is known at its end."""
        cursor = self.known.cursor
        if (cursor.window, cursor.position, cursor.presented) == (0, 0, 0):
            self.state.solver.begin_epoch()
            cursor.repeats = self._repeats()
        number = len(self._windows(cursor.epoch))
        if not self.known.history and cursor.window < number:
            threading.Thread(target=self._load_kernels, daemon=True).start()  # while data is read
        while cursor.window < number:
            if self.stream is None:
                self.stream = self.loader.stream(self._plans(limit), self._look_up)
            with self.watch.measuring("waiting for data"):
                self.window = next(self.stream)
            self._present(self.window)
            self.loader.check_unchanged()
            cursor.window, cursor.position = cursor.window + 1, 0
        entry = self._certify(last=cursor.epoch + 1 >= limit)
        self._count_cost()
        self._write_log(entry)
        cursor.epoch += 1
        cursor.window = cursor.position = cursor.presented = cursor.marked = 0
        cursor.loss_at_mark = 0.0
        if self._wants_checkpoint(after_epoch=True):
            self._save_checkpoint()

    def _load_kernels(self) -> None:
        """Call the kernels with no rows, so that they are ready when the rows are."""
        layout = self.store.manifest.layout
        values = np.empty(0, VALUE_CODINGS[layout.values]) if layout.values else None
        nothing, labels = np.empty(0, CODINGS[layout.index_coding]), np.empty(0, layout.labels)
        levels = all_levels(layout.levels)
        block = CsrBlock(np.zeros(1, np.int64), nothing, values, labels, self.store.features, levels=levels)
        Pegasos(self.state.solver.options, 1).present(block, np.empty(0, np.uint32), 0, 0, 1)

    def _present(self, window: Window) -> None:
        """Present the rest of a window slice by slice."""
        cursor, solver, order = self.known.cursor, self.state.solver, window.order
        pending = self.state.pending
        if pending and pending.windows == cursor.window:
            with self.watch.measuring("measuring the objective"):
                pending.add(window, self.loader, self.config.workers, self._look_up)
        step = self.presenter.rows_at_a_time(window.block)
        batch = solver.options.batch_size
        step = -(-step // batch) * batch
        half = self.rows // 2
        while cursor.position < len(order):
            end = min(cursor.position + step, len(order))
            before_half = (half - cursor.presented) // batch * batch
            if 0 < before_half < end - cursor.position:
                end = cursor.position + before_half
            with self.watch.measuring("presenting rows"):
                bad = self.presenter.present(window.block, order, cursor.position, end, cursor.repeats)
            if bad >= 0:
                self.loader.check_unchanged()
                raise self.loader.damaged(window, bad)
            cursor.presented += end - cursor.position
            cursor.position = end
            if cursor.presented <= half:
                cursor.marked, cursor.loss_at_mark = cursor.presented, solver.loss_sum
            self.progress.presented(cursor.epoch, cursor.presented, self.rows)
            if self._wants_checkpoint():
                self._save_checkpoint()
            if cursor.presented < self.rows or self.stop_asked:
                self._look_up()

    # --- what is known at the end of an epoch -----------------------------------------------------

    def _certify(self, last: bool) -> dict[str, Any]:
        """Bound the optimum from below, estimate the objective, and have it measured if that may be the end."""
        with self.watch.measuring("bounding the optimum"):
            config, known, solver = self.config, self.known, self.state.solver
            bound = self._bound()
            if bound is not None and (known.bound is None or bound.value > known.bound):
                known.bound = bound.value
            estimate = self._estimate()
            estimated_gap = None
            if known.bound is not None:
                estimated_gap = known.ratio * ((estimate - known.bound) / estimate if estimate > 0 else 0.0)
        near = estimated_gap is not None and estimated_gap <= config.coefficient * config.tolerance
        in_memory = self.loader.shape.fits
        later = measured = None
        if (near or last or config.holdout) and (in_memory or not self._will_be_enough()):
            measurement = self._candidates(bound)
            if in_memory or last:
                measured = self._measure_now(measurement, may_stop=True)
            else:
                later = measurement
        # From here on nothing may interrupt: what is stopped before does the whole of this again.
        objective = self._take_pending()
        if measured is not None:
            objective = self._take(measured, estimated_gap)
        elif later is not None:  # together with the next epoch, whose data is read anyway
            self.state.pending, known.pending_gap = later, estimated_gap
        enough = known.gap is not None and known.gap <= config.tolerance
        entry = {
            "epoch": known.cursor.epoch + 1,
            "rows": int(solver.t),
            "repeats": known.cursor.repeats,
            "margin_errors": int(solver.errors),
            "estimate": estimate,
            "primal": known.primal if objective or enough else None,
            "lower_bound": known.bound,
            "gap": known.gap if objective or enough else None,
            "estimated_gap": estimated_gap,
            "holdout_loss": objective.holdout_loss if objective else None,
            "holdout_error": objective.holdout_error if objective else None,
        }
        known.history.append(entry)
        self.progress.epoch_done(entry, config.tolerance)
        if not config.project:
            snapshots = self.state.snapshots
            snapshots.append(Snapshot(known.cursor.epoch + 1, solver.t, solver.dual_sum, solver.a.copy()))
            self.state.snapshots = [snapshots[0], *keep_some(snapshots[1:], known.cursor.epoch + 1)]
        return entry

    def _will_be_enough(self) -> bool:
        """Whether the tolerance is reached as soon as what was measured beside this epoch is taken in."""
        known, pending = self.known, self.state.pending
        primals = [measured.primal for measured in pending.result()] if pending else []
        least = min(primals if known.primal is None else [known.primal, *primals], default=None)
        gap = relative_gap(least, known.bound)
        return gap is not None and gap <= self.config.tolerance

    def _bound(self) -> Bound | None:
        if self.why_uncertified:
            return None
        solver, known = self.state.solver, self.known
        if known.cursor.presented != self.rows:
            presented = f"{known.cursor.presented:,} of {self.rows:,} rows"
            raise OocPegasosError(f"an epoch presented {presented}; this is a mistake in oocpeg, please report it")
        windows = [] if self.config.project else self.state.snapshots
        clock = (solver.t, solver.dual_sum, solver.a, solver.scale)
        return lower_bound(self.lam, solver.options.delay, *clock, windows, whole=not self.warm)

    def _estimate(self) -> float:
        """The objective of the last iterate, from the losses met in the second half of the epoch."""
        solver, cursor = self.state.solver, self.known.cursor
        mean = (solver.loss_sum - cursor.loss_at_mark) / max(cursor.presented - cursor.marked, 1)
        clock = self.lam * (solver.t + solver.options.delay)
        last = solver.scale / clock if clock else 0.0
        return self.lam / 2 * float(solver.a @ solver.a) * last**2 + mean

    def _measurement(self, candidates: list[np.ndarray]) -> Measurement:
        held_out = self.store.rows - self.rows
        return Measurement(
            candidates, ObjectiveOptions(self.lam, self.loss.number, self.class_weights, self.rows, held_out)
        )

    def _candidates(self, bound: Bound | None) -> Measurement:
        """The vectors that may be the best this epoch has to offer."""
        solver, config = self.state.solver, self.config
        paper = config.algorithm == "pegasos"
        candidates = [solver.average()] if paper and config.average else [solver.last()]
        if not paper:
            if solver.options.average:
                candidates.append(solver.average())
            if bound is not None and bound.window is not None:
                candidates.append(solver.since(bound.window.t, bound.window.a))
        return self._measurement(candidates)

    def _measure_now(self, measurement: Measurement, may_stop: bool) -> Measurement:
        """A pass over all rows: those in memory, or all of the store, read in order."""

        def check() -> None:
            if self.stop_asked or may_stop:
                self._look_up()

        with self.watch.measuring("measuring the objective"):
            if self.loader.shape.fits and self.window is not None:
                measurement.add(self.window, self.loader, self.config.workers, check)
                self.loader.check_unchanged()
                return measurement
        self._close_stream()
        with closing(self.loader.stream(self.loader.in_order(), check)) as windows:
            while True:
                with self.watch.measuring("waiting for data"):
                    window = next(windows, None)
                if window is None:
                    return measurement
                with self.watch.measuring("measuring the objective"):
                    measurement.add(window, self.loader, self.config.workers, check)
                self.loader.check_unchanged()

    def _take_pending(self) -> Objective | None:
        """What was measured beside this epoch."""
        pending, gap = self.state.pending, self.known.pending_gap
        if pending is None:
            return None
        self.state.pending = self.known.pending_gap = None
        return self._take(pending, gap)

    def _take(self, measurement: Measurement, estimated_gap: float | None = None) -> Objective:
        """Keep the best candidate, if it is the best so far."""
        known = self.known
        measured = measurement.result()
        chosen = min(range(len(measured)), key=lambda i: measured[i].primal)
        best = measured[chosen]
        if not np.isfinite(best.primal):
            raise InputError(f"{self.store.path}: the weights became infinite; choose another lambda or scale the data")
        if known.bound is not None and best.primal < known.bound * (1 - 1e-9):
            raise OocPegasosError("an objective below its lower bound; this is a mistake in oocpeg, please report it")
        if self.config.algorithm == "pegasos" or known.primal is None or best.primal < known.primal:
            known.primal, self.state.best = best.primal, measurement.candidates[chosen].copy()
            if best.holdout_loss is not None and best.holdout_error is not None:
                known.holdout = {"loss": best.holdout_loss, "error": best.holdout_error}
        if known.gap is not None and estimated_gap:
            known.ratio = min(max(known.ratio * known.gap / estimated_gap, 0.05), 1.0)
        return best

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
        self.state.costs.append(
            EpochCost(
                self.known.cursor.epoch + 1,
                seconds,
                now[1] - before[1],
                now[2] - before[2],
                read,
                read / seconds / 1e9,
                peak_rss(),
            )
        )

    def _result(self, stopped: str) -> TrainResult:
        known, config = self.known, self.config
        assert known.primal is not None
        converged = stopped == "tolerance"
        info = ModelInfo(
            features=self.store.features,
            lam=self.lam,
            loss=self.loss.name,
            algorithm=config.algorithm,
            sampling=config.sampler,
            seed=config.seed,
            epochs=known.cursor.epoch,
            certificate=Certificate(known.primal, known.bound, known.gap, converged),
            history=known.history,
            labels=self.store.manifest.labels,
            recipe=self.store.manifest.recipe,
            config=essential(config),
            store_checksum=manifest.checksum_of(self.store.manifest),
            versions={"ooc-pegasos": __version__, "numpy": np.__version__},
        )
        seconds, computing, waiting, bytes_read = self._spent()
        return TrainResult(
            model=Model(self.state.best, info),
            converged=converged,
            certified=known.gap is not None,
            stopped_by=stopped,
            seconds=seconds - self.began,
            seconds_computing=computing,
            seconds_waiting=waiting,
            bytes_read=bytes_read,
            holdout=known.holdout,
            why_uncertified=self.why_uncertified,
            memory=self.loader.shape.budget,
            loading=self.loader.name,
            windows=len(self._windows(0)),
            presenters=self.presenter.threads,
            costs=self.state.costs,
            notes=self.notes,
            profile={"foreground": self.watch.seconds, "background": self.background.seconds},
        )

    def _write_log(self, entry: dict[str, Any]) -> None:
        if self.log:
            line = {**entry, **self.state.costs[-1].table(), "elapsed": time.perf_counter() - self.began}
            with writing_errors(Path(self.log.name)):
                self.log.write(json.dumps(line) + "\n")
                self.log.flush()

    def _wants_checkpoint(self, after_epoch: bool = False) -> bool:
        if self.place is None:
            return False
        every = self.config.checkpoint_epochs
        if after_epoch and every and self.known.cursor.epoch % every == 0:
            return True
        return time.perf_counter() - self.last_checkpoint > 60 * self.config.checkpoint_minutes

    def _save_checkpoint(self) -> None:
        assert self.place is not None
        with self.watch.measuring("writing checkpoints"):
            self.loader.check_unchanged()
            self.state.save(self.place, self.identity, self.loader.shape.budget)
        self.last_checkpoint = time.perf_counter()


def _class_weights(config: TrainConfig, store: Store) -> tuple[float, float]:
    """Weights of the negative and the positive class; balanced ones make both classes count the same."""
    if config.class_weight is None:
        return 1.0, 1.0
    if config.class_weight == "balanced":
        negative, positive = store.manifest.labels.counts
        if not negative or not positive:
            raise UsageError("--class-weight balanced needs rows of both classes; leave it out")
        rows = negative + positive
        return rows / (2 * negative), rows / (2 * positive)
    negative_weight, positive_weight = config.class_weight
    return negative_weight, positive_weight


def _why_uncertified(config: TrainConfig) -> str | None:
    """Why no bound on the gap can be had, if so."""
    if config.sampler not in EQUALLY_OFTEN:
        return "i.i.d. sampling presents rows unequally often, so there is no certificate"
    return None
