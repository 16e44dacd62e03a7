"""The state of a training run, and its checkpoints."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import CheckpointMismatchError
from ooc_pegasos.loading.window_schedule import Cursor
from ooc_pegasos.objective.certificate import relative_gap
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.lambda_path import HoldoutLoss, Trial
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.reporting.history import EpochRecord
from ooc_pegasos.training.timing import EpochCost
from ooc_pegasos.training.trained_model import TrainedModel
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.checkpoint import FILE_NAME, Checkpoint, take, whole
from ooc_pegasos.util.files import writing_errors

if TYPE_CHECKING:
    from ooc_pegasos.solvers.base import Solver
    from ooc_pegasos.store.store import Store

ROUNDS = "round-"
"""Beginning of the names of folders for the checkpoints of the rounds of a search, in the folder of its checkpoint."""
ROWS = "rows-*.checkpoint"
"""Files of row states; the checkpoint has the names of its own files."""


REASONS = ("rounding", "holdout", "tolerance", "hopeless")
"""Reasons for which a model is finished, the worst first."""
_MAX = 2**62
_KEYS = {"holdout": "apart", "finished_by": "left", "compensated": "twice"}
"""Keys of `Progression` in checkpoints, where they differ from the fields."""


@dataclass
class Progression:
    """The progress of a model, without its vectors."""

    bound: float | None = None
    bound_rounding: float = 0.0
    """Difference to the bound without rounding errors."""
    primal: float | None = None
    primal_rounding: float = 0.0
    """Bound on the difference between the measured objective and a lower true one."""
    compensated: bool = False
    """True if rounding errors matter, so that scores are computed in double-double precision."""
    holdout: HoldoutLoss | None = None
    """Holdout loss and error of the best candidate."""
    ratio: float = 1.0
    """Gap of the best candidate divided by the estimated gap, at the last measurement."""
    pending_gap: float | None = None
    """Estimated gap of the candidates that are measured during this epoch."""
    history: list[EpochRecord] = field(default_factory=list)
    finished_by: str = ""
    """The reason for which the model is finished; "": it is active."""

    @property
    def gap(self) -> float | None:
        """Certified relative gap."""
        return relative_gap(self.primal, self.bound)

    @property
    def estimated_gap(self) -> float | None:
        """Estimated gap at the end of the last epoch, or None."""
        return self.history[-1].estimated_gap if self.history else None

    @property
    def epochs(self) -> int:
        """Number of epochs of this model."""
        return len(self.history)

    def table(self) -> dict[str, Any]:
        """Return the progression as a table for a checkpoint."""
        rest = {
            _KEYS.get(name, name): value
            for name, value in dataclasses.asdict(dataclasses.replace(self, history=[])).items()
        }
        return rest | {"history": [record.table() for record in self.history]}

    @classmethod
    def load(cls, table: dict[str, Any]) -> Progression:
        """Return the progression that `table` wrote. Raises ValueError or TypeError."""
        names = {key: name for name, key in _KEYS.items()}
        rest = {names.get(key, key): value for key, value in table.items()}
        loaded = typed_json.load(cls, {**rest, "history": []}, "known")
        loaded.history = [EpochRecord.from_table(line) for line in table["history"]]
        return loaded


@dataclass
class PathState:
    """The state of a run that follows the path of lambdas."""

    lam: float
    """The lambda that is trained."""
    began: int = 0
    """The epoch in which it began."""
    records: int = 0
    """Records of epochs of finished lambdas."""
    trials: list[Trial] = field(default_factory=list)
    models: list[TrainedModel] = field(default_factory=list)

    def table(self) -> dict[str, Any]:
        """Return the state as a table for a checkpoint."""
        rest = dataclasses.asdict(dataclasses.replace(self, models=[]))
        return rest | {"models": [model.table() for model in self.models]}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> PathState:
        """Return the state that `table` wrote. Raises ValueError or TypeError."""
        loaded = typed_json.load(cls, {**table, "models": []}, "path")
        loaded.models += [TrainedModel.from_table(model) for model in table["models"]]
        if not 1e-60 < loaded.lam < 1e60:
            raise ValueError(f"lambda {loaded.lam!r:.40}")
        for name in ("began", "records"):
            whole(getattr(loaded, name), 0, _MAX, name)
        return loaded


@dataclass
class RunState:
    """The state of a run: all that a checkpoint contains."""

    problem: Problem
    solver: Solver
    progress: list[Progression]
    cursor: Cursor = field(default_factory=Cursor)
    best: dict[int, np.ndarray] = field(default_factory=dict)
    """Weights of the best candidate of each model so far."""
    pending: Measurement | None = None
    """Candidates from the end of the last epoch, measured while the rows of this epoch are processed."""
    costs: list[EpochCost] = field(default_factory=list)
    path: PathState | None = None
    """For a run that follows the path of lambdas."""

    @property
    def epochs(self) -> int:
        """Number of epochs of all models, which is the number of lines of the log."""
        return sum(progress.epochs for progress in self.progress)

    def save(self, folder: Path, identity: dict[str, Any], budget: int) -> None:
        """Replace the checkpoint in `folder` by one of this state."""
        pending = self.pending
        with writing_errors(folder), _rollback_files(folder):
            arrays, solver = self.solver.save(folder)
            record = self.solver.record
            saved_record = record.save(folder / f"rows-{next_number(folder)}-proof.checkpoint") if record else None
            arrays |= {f"best {model}": weights for model, weights in self.best.items()}
            if pending:
                arrays["pending sums"] = pending.sums.ravel()
                arrays |= {f"pending {number}": vector for number, vector in enumerate(pending.candidates)}
            facts = {
                "identity": identity,
                "solver_name": self.solver.name,
                "solver": solver,
                "record": saved_record,
                "cursor": dataclasses.asdict(self.cursor),
                "known": [progress.table() for progress in self.progress],
                "best": list(self.best),
                "budget": budget,
                "pending": [pending.models, pending.windows, pending.compensated] if pending else None,
                "costs": [cost.table() for cost in self.costs],
            }
            facts |= {"path": self.path.table()} if self.path else {}
            Checkpoint(arrays, facts).save(folder)
            _keep_only(folder, facts)

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """Set the state to that of a checkpoint."""
        self.solver.restore(folder, saved)
        self._restore_models(saved)
        if self.solver.record is not None:
            self.solver.record.restore(folder, saved.facts.get("record"))
        with writing_errors(folder):
            _keep_only(folder, saved.facts)  # the process that wrote it may have been killed before this

    def _restore_models(self, saved: Checkpoint) -> None:
        """Restore all but the state of the solver."""
        arrays, facts = saved.arrays, saved.facts
        if self.path:
            self.path = PathState.from_table(facts["path"])
            self.problem = self.solver.problem = self.problem.with_lambda(self.path.lam)
        number, vector = len(self.problem.specs), np.empty(self.problem.length)
        self.cursor = typed_json.load(Cursor, facts["cursor"], "cursor")
        for name, value in dataclasses.asdict(self.cursor).items():
            whole(int(value), 0, _MAX, name)
        self.progress = [Progression.load(progress) for progress in facts["known"]]
        if len(self.progress) != number:
            raise ValueError(f"{len(self.progress)} models instead of {number}")
        self.best = {
            whole(model, 0, number - 1, "model"): take(arrays, f"best {model}", vector) for model in facts["best"]
        }
        for model, progress in enumerate(self.progress):
            if progress.holdout is not None:
                whole(progress.holdout.rows, 1, _MAX, "holdout rows")
            if model in self.solver.active:
                if progress.finished_by and not self.path:
                    raise ValueError("a model that is both finished and active")
            elif progress.finished_by not in REASONS:
                raise ValueError(f"a model that is finished by {progress.finished_by!r:.40}")
            is_left = model not in self.solver.active and progress.finished_by != "hopeless"
            if (progress.primal is not None or is_left) and model not in self.best:
                raise ValueError("a model without weights")
            if progress.primal is None and model in self.best:
                raise ValueError("weights without an objective")
        if facts["pending"]:
            models, windows, compensated = facts["pending"]
            models = [whole(model, 0, number - 1, "model") for model in models]
            vectors = [take(arrays, f"pending {at}", vector) for at in range(len(models))]
            compensated = [whole(model, 0, number - 1, "model") for model in compensated]
            self.pending = Measurement(self.problem, models, vectors, compensated)
            self.pending.sums = arrays["pending sums"].reshape(self.pending.sums.shape).copy()
            self.pending.windows = whole(windows, 0, _MAX, "windows")
        self.costs = [typed_json.load(EpochCost, cost, "costs") for cost in facts["costs"]]


def next_number(folder: Path) -> int:
    """Return the number of a new file of the state of rows."""
    return 1 + max((int(path.stem.split("-")[1]) for path in folder.glob(ROWS)), default=0)


def _keep_only(folder: Path, facts: dict[str, Any]) -> None:
    """Remove the files of rows that do not belong to this checkpoint."""
    kept = {(part or {}).get("file") for part in (facts["solver"].get("rows"), facts.get("record"))}
    for path in folder.glob(ROWS):
        if path.name not in kept:
            with suppress(OSError):  # the next checkpoint tries again
                path.unlink()


@contextmanager
def _rollback_files(folder: Path) -> Iterator[None]:
    """Remove the files of rows written for a new checkpoint if the checkpoint is not replaced."""
    path = folder / FILE_NAME
    rows, before = set(folder.glob(ROWS)), _stamp(path)
    try:
        yield
    except BaseException:
        if _stamp(path) == before:
            for unused in set(folder.glob(ROWS)) - rows:
                with suppress(OSError):
                    unused.unlink()
        raise


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return inode and time of a file, to detect its replacement; None if it does not exist."""
    try:
        return path.stat().st_ino, path.stat().st_mtime_ns
    except OSError:
        return None


def essential(config: TrainConfig) -> dict[str, Any]:
    """Return the options on which the result depends."""
    settings = dataclasses.asdict(config)
    for name in (
        "memory",
        "loading",
        "checkpoint_minutes",
        "checkpoint_epochs",
        "max_seconds",
        "max_epochs",
    ):
        del settings[name]
    for name, default in (("select_by", None), ("refit", True)):
        if settings[name] == default:
            del settings[name]
    settings["threads"] = config.threads or 1
    settings["bias"] = config.biased
    return settings


def identity_of(config: TrainConfig, store: Store, start: np.ndarray | None) -> dict[str, Any]:
    """Return what must be equal for a run to be resumed."""
    start_bytes = b"" if start is None else np.ascontiguousarray(start).data
    identity = {
        "config": essential(config),
        "store": store.checksum,
        "written_by": __version__,
        "start": f"{zlib.crc32(start_bytes):08x}",
    }
    normal: dict[str, Any] = json.loads(json.dumps(identity))
    return normal


def check_same_run(folder: Path, expected: dict[str, Any], saved: Checkpoint, memory: int | None) -> None:
    """Refuse to resume another run than the one that was interrupted."""
    found = saved.facts["identity"]
    if ("parts" in found) != ("parts" in expected):
        where = "with {scheduler}" if "parts" in found else "without {scheduler}"
        advice = "do the same, or start over without {resume}"
        raise CheckpointMismatchError(f"{folder}: the run to resume was started {where}; {advice}")
    for name in sorted(expected, key=lambda name: name != "store"):  # lambdas may depend on the store
        if found[name] != expected[name]:
            what = {
                "config": "with other options",
                "store": "on another store",
                "start": "from another model",
                "parts": "in other parts, or with another --memory for each",
            }
            how = what.get(name, "by another version")
            raise CheckpointMismatchError(
                f"{folder}: the run to resume was started {how}; start over without {{resume}}"
            )
    if memory not in (None, saved.facts["budget"]):
        problem = (
            f"the run to resume was started with {{memory={saved.facts['budget']}}}, which determines the order of rows"
        )
        raise CheckpointMismatchError(f"{folder}: {problem}; give the same or leave it out")


def refuse_search(folder: Path) -> None:
    """Refuse to resume a run of its own if the interrupted one was a search in its first round."""
    if not (folder / FILE_NAME).exists() and any(folder.glob(f"{ROUNDS}*/{FILE_NAME}")):
        raise CheckpointMismatchError(
            f"{folder}: the run to resume was started with other options; start over without {{resume}}"
        )


def discard_checkpoint(folder: Path, note: Callable[[str], None]) -> None:
    """Remove the checkpoint of another run, so that --resume cannot confuse it with the run that begins."""
    if (folder / FILE_NAME).exists() or any(folder.glob(f"{ROUNDS}*/{FILE_NAME}")):
        note(f"the checkpoint in {folder} is discarded; --resume would have continued it")
    with writing_errors(folder):
        (folder / FILE_NAME).unlink(missing_ok=True)  # first: without it the files of rows are not read
        for rows in folder.glob(ROWS):
            rows.unlink()
        for old in folder.glob(f"{ROUNDS}*"):
            shutil.rmtree(old)
