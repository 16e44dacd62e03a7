"""The loop: present an epoch, certify, log, checkpoint, stop."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ooc_pegasos import __version__, manifest
from ooc_pegasos.block import CODINGS, CsrBlock
from ooc_pegasos.certificate import Bound, Snapshot, keep_some, lower_bound
from ooc_pegasos.checkpoint import Checkpoint
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.files import locked, writing_errors
from ooc_pegasos.kernels.pegasos import square_distance
from ooc_pegasos.loader import LoadedWindow, Loader
from ooc_pegasos.losses import loss_for
from ooc_pegasos.model import Certificate, Model, ModelInfo
from ooc_pegasos.objective import Objective, ObjectiveOptions, evaluate
from ooc_pegasos.progress import TrainingProgress
from ooc_pegasos.samplers import EQUALLY_OFTEN, SAMPLERS, Window
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_SLICE = 8 << 20  # entries a kernel is given at a time, some ten milliseconds, so that Ctrl-C is felt at once
_EPOCHS, _STEPS = 100, 10  # default limits, with a certificate and without
_REPEATS = 5  # of `sgd-m`, as in "SGD revisited"
_AVERAGE_BELOW = 20.0  # lam m; below it the average of an epoch is a better candidate than its end
_RATIO_OF_AVERAGES = 0.35  # what `Progression.ratio` is where averages are candidates, until it is measured
_PATIENCE = 3  # epochs without improvement on the holdout, where nothing else can stop a run


@dataclass
class Cursor:
    """Where in the plan of epochs a run stands."""

    epoch: int = 0
    window: int = 0
    position: int = 0
    presented: int = 0
    """Rows of this epoch so far."""
    marked: int = 0
    """Of these, the rows up to about half of the epoch, and the losses met in them."""
    loss_at_mark: float = 0.0
    repeats: int = 1


@dataclass
class Progression:
    """What is known so far, besides the solver's vectors."""

    cursor: Cursor = field(default_factory=Cursor)
    bound: float | None = None
    primal: float | None = None
    holdout: dict[str, float] | None = None
    ratio: float = 1.0
    """Of the gap of the best candidate to the gap estimated for the last iterate, as last measured."""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def gap(self) -> float | None:
        """The certified relative gap."""
        if self.bound is None or self.primal is None or not self.primal > 0:
            return None
        return (self.primal - self.bound) / self.primal


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
        run = _Run(store, config, warm_start, place, progress or TrainingProgress())
        saved = Checkpoint.load(place) if resume and place else None
        if saved:
            run.restore(saved)
        if log:
            with writing_errors(Path(log)):
                run.log = stack.enter_context(_open_log(Path(log), len(run.state.history)))
        stack.enter_context(run.listening())
        return run.go()


def _open_log(path: Path, epochs: int) -> TextIO:
    """The log with the lines of the first `epochs` epochs, those of a checkpoint; the rest is written again."""
    kept = path.read_text().splitlines(keepends=True)[:epochs] if epochs and path.is_file() else []
    file = open(path, "w")  # noqa: SIM115 (closed by the caller)
    file.writelines(kept)
    return file


class _Run:
    """One training run."""

    def __init__(
        self,
        store: Store,
        config: TrainConfig,
        warm_start: Model | None,
        place: Path | None,
        progress: TrainingProgress,
    ) -> None:
        square_distance(np.empty(0), np.empty(0), 1.0)  # numba gets itself ready at the first call, as an import does
        self.began = time.perf_counter()
        self.store = store
        self.config = config
        self.place = place
        self.progress = progress
        self.log: TextIO | None = None
        self.loss = loss_for(config.loss, store.manifest.labels.task)
        self.loader = Loader(store, config.budget(), config.holdout, config.workers)
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
        self.solver = self._new_solver(warm_start)
        self.warm = warm_start is not None
        start = Snapshot.start()
        if warm_start is not None:
            start.a = self.solver.a.copy()
        self.snapshots = [start]
        self.state = Progression(ratio=_RATIO_OF_AVERAGES if self.solver.options.average else 1.0)
        self.best = np.zeros(0)
        self.stop_asked = False
        self.computing = self.waiting = 0.0
        self.last_checkpoint = self.began
        self._planner = ThreadPoolExecutor(1)
        self._orders: dict[tuple[int, int], Future[np.ndarray]] = {}

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

    # --- the loop ---------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Epoch after epoch, until a reason to stop."""
        config, cursor = self.config, self.state.cursor
        limit = config.max_epochs or (_STEPS if self.why_uncertified else _EPOCHS)
        stopped = ""
        while not stopped:
            if self.state.history and (stopped := self._reason_to_stop(limit)):
                break
            if cursor.presented == 0 and cursor.window == 0 and cursor.position == 0:
                self.solver.begin_epoch()
                cursor.repeats = self._repeats()
            if not self._epoch():
                stopped = "seconds"
                if self.place:
                    self._save_checkpoint()
                break
            self._certify(last=cursor.epoch + 1 >= limit)
            cursor.epoch += 1
            cursor.window = cursor.position = cursor.presented = cursor.marked = 0
            cursor.loss_at_mark = 0.0
            if self._wants_checkpoint(after_epoch=True):
                self._save_checkpoint()
        if self.state.primal is None or (stopped == "seconds" and self.why_uncertified):
            self._measure(None)
        self._planner.shutdown(cancel_futures=True)
        return self._result(stopped)

    def _reason_to_stop(self, limit: int) -> str:
        gap, history = self.state.gap, self.state.history
        if gap is not None and gap <= self.config.tolerance:
            return "tolerance"
        if self.state.cursor.epoch >= limit:
            return "epochs"
        if self.why_uncertified and self.config.holdout:
            losses = [entry["holdout_loss"] for entry in history]
            if len(losses) > _PATIENCE and min(losses[-_PATIENCE:]) >= min(losses[:-_PATIENCE]):
                return "holdout"
        return ""

    def _repeats(self) -> int:
        """Multiple updates, equation (6), while the gap is large."""
        if self.config.algorithm != "sgd-m" or not self.state.history:
            return 1
        estimate = self.state.history[-1]["estimated_gap"]
        return _REPEATS if estimate is None or estimate > 5 * self.config.tolerance else 1

    def _epoch(self) -> bool:
        """Present what is left of the epoch; False if time ran out before its end."""
        cursor = self.state.cursor
        windows = self._windows(cursor.epoch)
        while cursor.window < len(windows):
            loaded, order = self._load(windows, cursor.window)
            if not self._present(loaded, order):
                return False
            cursor.window, cursor.position = cursor.window + 1, 0
        return True

    def _windows(self, epoch: int) -> list[Window]:
        return list(self.sampler(self.loader.shape, self.config.seed, epoch))

    def _planned_order(self, epoch: int, windows: list[Window], number: int) -> Future[np.ndarray]:
        """The order of a window, made in the background; only the one asked for and the next are kept."""
        if number == len(windows):
            epoch, windows, number = epoch + 1, self._windows(epoch + 1), 0
        if (epoch, number) not in self._orders:
            self._orders[epoch, number] = self._planner.submit(windows[number].order)
        return self._orders[epoch, number]

    def _load(self, windows: list[Window], number: int) -> tuple[LoadedWindow, np.ndarray]:
        """A window and its order, while the next order is being made."""
        began = time.perf_counter()
        epoch, window = self.state.cursor.epoch, windows[number]
        order = self._planned_order(epoch, windows, number)
        self._orders = {(epoch, number): order}
        if not self.loader.bytes_read:
            self._planner.submit(self._load_kernels)  # from disk, or compile them, while the data is read
        loaded = self.loader.load(window.chunks)
        rows = order.result()
        self._planned_order(epoch, windows, number + 1)
        if len(loaded.held_out):
            rows = rows[~loaded.held_out[rows]]
        self.waiting += time.perf_counter() - began
        return loaded, rows

    def _load_kernels(self) -> None:
        """Call the kernels with no rows, so that they are ready when the rows are."""
        layout = self.store.manifest.layout
        values = np.empty(0, np.float32) if layout.values else None
        nothing = np.empty(0, CODINGS[layout.index_coding])
        block = CsrBlock(np.zeros(1, np.int64), nothing, values, np.empty(0, layout.labels), self.store.features)
        self.solver.present(block, np.empty(0, np.uint32), 0, 0, 1)

    def _present(self, loaded: LoadedWindow, order: np.ndarray) -> bool:
        """Present the rest of a window slice by slice; False if time ran out."""
        config, cursor = self.config, self.state.cursor
        block = loaded.block
        step = max(1, _SLICE * block.rows // max(len(block.indices), 1))
        batch = self.solver.options.batch_size
        step = -(-step // batch) * batch
        half = self.rows // 2
        while cursor.position < len(order):
            end = min(cursor.position + step, len(order))
            before_half = (half - cursor.presented) // batch * batch
            if 0 < before_half < end - cursor.position:
                end = cursor.position + before_half
            began = time.perf_counter()
            self.solver.present(block, order, cursor.position, end, cursor.repeats)
            self.computing += time.perf_counter() - began
            cursor.presented += end - cursor.position
            cursor.position = end
            if cursor.presented <= half:
                cursor.marked, cursor.loss_at_mark = cursor.presented, self.solver.loss_sum
            self.progress.presented(cursor.epoch, cursor.presented, self.rows)
            if self._wants_checkpoint():
                self._save_checkpoint()
            if self.stop_asked:
                raise Interrupted
            if config.max_seconds and time.perf_counter() - self.began > config.max_seconds:
                return cursor.presented >= self.rows
        return True

    # --- what is known at the end of an epoch -----------------------------------------------------

    def _certify(self, last: bool) -> None:
        """Bound the optimum from below, estimate the objective, and measure it if that may be the end."""
        config, state, solver = self.config, self.state, self.solver
        bound = self._bound()
        if bound is not None and (state.bound is None or bound.value > state.bound):
            state.bound = bound.value
        estimate = self._estimate()
        near = False
        estimated_gap = None
        if state.bound is not None:
            of_last = (estimate - state.bound) / estimate if estimate > 0 else 0.0
            estimated_gap = state.ratio * of_last
            near = estimated_gap <= config.coefficient * config.tolerance
        objective = None
        if near or last or config.holdout:
            objective = self._measure(bound)
            if state.gap is not None and estimated_gap:
                state.ratio = min(max(state.ratio * state.gap / estimated_gap, 0.05), 1.0)
        entry = {
            "epoch": state.cursor.epoch + 1,
            "rows": int(solver.t),
            "repeats": state.cursor.repeats,
            "margin_errors": int(solver.errors),
            "estimate": estimate,
            "primal": state.primal if objective else None,
            "lower_bound": state.bound,
            "gap": state.gap if objective else None,
            "estimated_gap": estimated_gap,
            "holdout_loss": objective.holdout_loss if objective else None,
            "holdout_error": objective.holdout_error if objective else None,
        }
        state.history.append(entry)
        self._write_log(entry)
        self.progress.epoch_done(entry, config.tolerance)
        if not config.project:
            self.snapshots.append(Snapshot(state.cursor.epoch + 1, solver.t, solver.dual_sum, solver.a.copy()))
            start, later = self.snapshots[0], self.snapshots[1:]
            self.snapshots = [start, *keep_some(later, state.cursor.epoch + 1)]

    def _bound(self) -> Bound | None:
        if self.why_uncertified:
            return None
        solver = self.solver
        if self.state.cursor.presented != self.rows:
            presented = f"{self.state.cursor.presented:,} of {self.rows:,} rows"
            raise OocPegasosError(f"an epoch presented {presented}; this is a mistake in oocpeg, please report it")
        windows = [] if self.config.project else self.snapshots
        clock = (solver.t, solver.dual_sum, solver.a, solver.scale)
        return lower_bound(self.lam, solver.options.delay, *clock, windows, whole=not self.warm)

    def _estimate(self) -> float:
        """The objective of the last iterate, from the losses met in the second half of the epoch."""
        solver, cursor = self.solver, self.state.cursor
        mean = (solver.loss_sum - cursor.loss_at_mark) / max(cursor.presented - cursor.marked, 1)
        clock = self.lam * (solver.t + solver.options.delay)
        last = solver.scale / clock if clock else 0.0
        return self.lam / 2 * float(solver.a @ solver.a) * last**2 + mean

    def _measure(self, bound: Bound | None) -> Objective:
        """The exact objective of all candidates; the best so far is kept."""
        began = time.perf_counter()
        solver, config = self.solver, self.config
        paper = config.algorithm == "pegasos"
        candidates = [solver.average()] if paper and config.average else [solver.last()]
        if not paper:
            if solver.options.average:
                candidates.append(solver.average())
            if bound is not None and bound.window is not None:
                candidates.append(solver.since(bound.window.t, bound.window.a))
        options = ObjectiveOptions(
            self.lam, self.loss.number, self.class_weights, self.rows, self.store.rows - self.rows
        )
        measured = evaluate(self.loader, candidates, options, config.workers)
        chosen = min(range(len(measured)), key=lambda i: measured[i].primal)
        best = measured[chosen]
        if not np.isfinite(best.primal):
            raise InputError(f"{self.store.path}: the weights became infinite; choose another lambda or scale the data")
        if self.state.bound is not None and best.primal < self.state.bound * (1 - 1e-9):
            raise OocPegasosError("an objective below its lower bound; this is a mistake in oocpeg, please report it")
        if paper or self.state.primal is None or best.primal < self.state.primal:
            self.state.primal, self.best = best.primal, candidates[chosen]
            if best.holdout_loss is not None and best.holdout_error is not None:
                self.state.holdout = {"loss": best.holdout_loss, "error": best.holdout_error}
        self.computing += time.perf_counter() - began
        return best

    # --- what is left behind ----------------------------------------------------------------------

    def _result(self, stopped: str) -> TrainResult:
        state, config = self.state, self.config
        assert state.primal is not None
        converged = stopped == "tolerance"
        info = ModelInfo(
            features=self.store.features,
            lam=self.lam,
            loss=self.loss.name,
            algorithm=config.algorithm,
            sampling=config.sampler,
            seed=config.seed,
            epochs=state.cursor.epoch,
            certificate=Certificate(state.primal, state.bound, state.gap, converged),
            history=state.history,
            labels=self.store.manifest.labels,
            recipe=self.store.manifest.recipe,
            config=_essential(config),
            store_checksum=manifest.checksum_of(self.store.manifest),
            versions={"ooc-pegasos": __version__, "numpy": np.__version__},
        )
        return TrainResult(
            model=Model(self.best, info),
            converged=converged,
            certified=state.gap is not None,
            stopped_by=stopped,
            seconds=time.perf_counter() - self.began,
            seconds_computing=self.computing,
            seconds_waiting=self.waiting,
            bytes_read=self.loader.bytes_read,
            holdout=state.holdout,
            why_uncertified=self.why_uncertified,
        )

    def _write_log(self, entry: dict[str, Any]) -> None:
        if self.log:
            line = {**entry, "seconds": time.perf_counter() - self.began, "seconds_waiting": self.waiting}
            with writing_errors(Path(self.log.name)):
                self.log.write(json.dumps(line) + "\n")
                self.log.flush()

    def _wants_checkpoint(self, after_epoch: bool = False) -> bool:
        if self.place is None:
            return False
        every = self.config.checkpoint_epochs
        if self.stop_asked or (after_epoch and every and self.state.cursor.epoch % every == 0):
            return True
        return time.perf_counter() - self.last_checkpoint > 60 * self.config.checkpoint_minutes

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to be taken up again."""
        identity = {"config": _essential(self.config), "store": manifest.checksum_of(self.store.manifest)}
        identity["written_by"] = __version__
        identity["start"] = _crc32(self.snapshots[0].a)
        normal: dict[str, Any] = json.loads(json.dumps(identity))
        return normal

    def _save_checkpoint(self) -> None:
        assert self.place is not None
        arrays = {"a": self.solver.a, "b": self.solver.b, "state": self.solver.state, "best": self.best}
        for number, snapshot in enumerate(self.snapshots):
            arrays[f"snapshot {number}"] = snapshot.a
        facts = {
            "identity": self._identity(),
            "state": dataclasses.asdict(self.state),
            "averaged_from": self.solver.averaged_from,
            "budget": self.loader.shape.budget,
            "snapshots": [[s.epoch, s.t, s.s] for s in self.snapshots],
        }
        with writing_errors(self.place):
            Checkpoint(arrays, facts).save(self.place)
        self.last_checkpoint = time.perf_counter()

    def restore(self, saved: Checkpoint) -> None:
        """Take up a run where its checkpoint stands."""
        wanted, found = self._identity(), saved.facts["identity"]
        for name, value in wanted.items():
            if found[name] != value:
                what = {"config": "with other options", "store": "on another store", "start": "from another model"}
                how = what.get(name, "by another version")
                raise InputError(f"{self.place}: the run to resume was started {how}; start over without --resume")
        if self.config.memory not in (None, saved.facts["budget"]):
            problem = (
                f"the run to resume was started with --memory {saved.facts['budget']}, which decides the order of rows"
            )
            raise InputError(f"{self.place}: {problem}; say the same or leave it out")
        self.loader.set_budget(saved.facts["budget"])
        self.solver.a[:] = saved.arrays["a"]
        self.solver.b[:] = saved.arrays["b"]
        self.solver.state[:] = saved.arrays["state"]
        self.solver.averaged_from = saved.facts["averaged_from"]
        self.best = saved.arrays["best"]
        facts = saved.facts["state"]
        self.state = Progression(**{**facts, "cursor": Cursor(**facts["cursor"])})
        self.snapshots = [
            Snapshot(epoch, t, s, saved.arrays[f"snapshot {number}"])
            for number, (epoch, t, s) in enumerate(saved.facts["snapshots"])
        ]


def _essential(config: TrainConfig) -> dict[str, Any]:
    """The options that decide the result."""
    settings = dataclasses.asdict(config)
    for name in ("memory", "threads", "checkpoint_minutes", "checkpoint_epochs", "max_seconds", "max_epochs"):
        del settings[name]
    return settings


def _crc32(array: np.ndarray) -> str:
    import zlib

    return f"{zlib.crc32(np.ascontiguousarray(array).data):08x}"


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
