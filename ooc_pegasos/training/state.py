"""What is known of a training run at an instant, and how it is kept on disk."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import CheckpointMismatchError
from ooc_pegasos.loading.window_schedule import Cursor
from ooc_pegasos.objective.certificate import relative_gap
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.lambda_path import Apart
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.training.timing import EpochCost
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.checkpoint import FILE_NAME, Checkpoint, take, whole
from ooc_pegasos.util.files import open_in_place, sync_folder, write_atomically, writing_errors

if TYPE_CHECKING:
    from ooc_pegasos.solvers.base import Solver
    from ooc_pegasos.store.store import Store

ROWS = "rows-*.checkpoint"
"""What is known of rows, beside a checkpoint that names one such file."""


REASONS = ("rounding", "holdout", "tolerance")
"""Reasons for which a model leaves the pass, the worst first."""
_MOST = 2**62
_LINE = {"estimated_gap", "holdout_loss"}
"""What is looked up in a line of history."""


@dataclass
class Progression:
    """What is known of a model so far, besides vectors."""

    bound: float | None = None
    bound_rounding: float = 0.0
    """By how much the bound would be higher if there were no rounding errors."""
    primal: float | None = None
    primal_rounding: float = 0.0
    """By how much the objective may be lower than it was measured."""
    twice: bool = False
    """True once scores have to be computed in twice the precision, as rounding errors matter."""
    apart: Apart | None = None
    """What rows it was not trained on say of the best candidate."""
    ratio: float = 1.0
    """Of the gap of the best candidate to the gap estimated, as last measured."""
    pending_gap: float | None = None
    """The gap estimated for the candidates that are being measured during this epoch."""
    history: list[dict[str, Any]] = field(default_factory=list)
    left: str = ""
    """Why it left the pass."""

    @property
    def gap(self) -> float | None:
        """The certified relative gap."""
        return relative_gap(self.primal, self.bound)

    @property
    def epochs(self) -> int:
        """That it was trained."""
        return len(self.history)


@dataclass
class RunState:
    """All that a run needs to go on from where it stands."""

    problem: Problem
    solver: Solver
    known: list[Progression]
    cursor: Cursor = field(default_factory=Cursor)
    best: dict[int, np.ndarray] = field(default_factory=dict)
    """The weights of the best candidate of each model so far."""
    pending: Measurement | None = None
    """Candidates from the end of the last epoch, measured while this one is presented."""
    costs: list[EpochCost] = field(default_factory=list)

    def save(self, folder: Path, identity: dict[str, Any], budget: int) -> None:
        """Replace the checkpoint in `folder` by one of this instant."""
        pending = self.pending
        with writing_errors(folder), _old_or_new(folder):
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
                "known": [dataclasses.asdict(known) for known in self.known],
                "best": list(self.best),
                "budget": budget,
                "pending": [pending.models, pending.windows, pending.twice] if pending else None,
                "costs": [cost.table() for cost in self.costs],
            }
            Checkpoint(arrays, facts).save(folder)
            _keep_only(folder, facts)

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """Take up a run where its checkpoint stands."""
        self.solver.restore(folder, saved)
        self.restore_knowledge(saved)
        if self.solver.record is not None:
            self.solver.record.restore(folder, saved.facts.get("record"))
        with writing_errors(folder):
            _keep_only(folder, saved.facts)  # whoever wrote it may have been killed before it came to that

    def restore_knowledge(self, saved: Checkpoint) -> None:
        """All but what the solver knows."""
        arrays, facts = saved.arrays, saved.facts
        number, vector = len(self.problem.specs), np.empty(self.problem.length)
        self.cursor = typed_json.load(Cursor, facts["cursor"], "cursor")
        for name, value in dataclasses.asdict(self.cursor).items():
            whole(int(value), 0, _MOST, name)
        self.known = [typed_json.load(Progression, known, "known") for known in facts["known"]]
        if len(self.known) != number or not all(set(line) >= _LINE for known in self.known for line in known.history):
            raise ValueError("a history that is none of these models")
        self.best = {
            whole(model, 0, number - 1, "model"): take(arrays, f"best {model}", vector) for model in facts["best"]
        }
        for model, known in enumerate(self.known):
            if known.apart is not None:
                whole(known.apart.rows, 1, _MOST, "rows apart")
            if model in self.solver.active:
                if known.left:
                    raise ValueError("a model that has left and is still trained")
            elif known.left not in REASONS:
                raise ValueError(f"a model that has left for {known.left!r:.40}")
            if (known.primal is not None or model not in self.solver.active) and model not in self.best:
                raise ValueError("a model without weights")
            if known.primal is None and model in self.best:
                raise ValueError("weights without an objective")
        if facts["pending"]:
            models, windows, twice = facts["pending"]
            models = [whole(model, 0, number - 1, "model") for model in models]
            vectors = [take(arrays, f"pending {at}", vector) for at in range(len(models))]
            twice = [whole(model, 0, number - 1, "model") for model in twice]
            self.pending = Measurement(self.problem, models, vectors, twice)
            self.pending.sums = arrays["pending sums"].reshape(self.pending.sums.shape).copy()
            self.pending.windows = whole(windows, 0, _MOST, "windows")
        self.costs = [typed_json.load(EpochCost, cost, "costs") for cost in facts["costs"]]


def next_number(folder: Path) -> int:
    """The number of a new file of rows."""
    return 1 + max((int(path.stem.split("-")[1]) for path in folder.glob(ROWS)), default=0)


def _keep_only(folder: Path, facts: dict[str, Any]) -> None:
    """Remove the rows of checkpoints that were before, or never came to be."""
    kept = {(part or {}).get("file") for part in (facts["solver"].get("rows"), facts.get("record"))}
    for path in folder.glob(ROWS):
        if path.name not in kept:
            with suppress(OSError):  # the next checkpoint tries again
                path.unlink()


@contextmanager
def _old_or_new(folder: Path) -> Iterator[None]:
    """If the checkpoint was not replaced, rows that were written for a new one are taken away again."""
    path = folder / FILE_NAME
    rows, before = set(folder.glob(ROWS)), _stamp(path)
    try:
        yield
    except BaseException:
        if _stamp(path) == before:
            for left in set(folder.glob(ROWS)) - rows:
                with suppress(OSError):
                    left.unlink()
        raise


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that takes its place."""
    try:
        return path.stat().st_ino, path.stat().st_mtime_ns
    except OSError:
        return None


def essential(config: TrainConfig) -> dict[str, Any]:
    """The options that decide the result."""
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
    settings["threads"] = config.threads or 1
    settings["bias"] = config.biased
    return settings


def identity_of(config: TrainConfig, store: Store, start: np.ndarray | None) -> dict[str, Any]:
    """What must be the same for a run to be taken up again."""
    begun = b"" if start is None else np.ascontiguousarray(start).data
    identity = {
        "config": essential(config),
        "store": store.checksum,
        "written_by": __version__,
        "start": f"{zlib.crc32(begun):08x}",
    }
    normal: dict[str, Any] = json.loads(json.dumps(identity))
    return normal


def check_same_run(place: Path, wanted: dict[str, Any], saved: Checkpoint, memory: int | None) -> None:
    """Refuse to go on with another run than the one that was interrupted."""
    found = saved.facts["identity"]
    if ("parts" in found) != ("parts" in wanted):
        where = "with {scheduler}" if "parts" in found else "without {scheduler}"
        advice = "do the same, or start over without {resume}"
        raise CheckpointMismatchError(f"{place}: the run to resume was started {where}; {advice}")
    for name, value in wanted.items():
        if found[name] != value:
            what = {
                "config": "with other options",
                "store": "on another store",
                "start": "from another model",
                "parts": "in other parts, or with another --memory for each",
            }
            how = what.get(name, "by another version")
            raise CheckpointMismatchError(
                f"{place}: the run to resume was started {how}; start over without {{resume}}"
            )
    if memory not in (None, saved.facts["budget"]):
        problem = (
            f"the run to resume was started with {{memory={saved.facts['budget']}}}, which decides the order of rows"
        )
        raise CheckpointMismatchError(f"{place}: {problem}; say the same or leave it out")


def start_over(place: Path, progress: TrainingProgress) -> None:
    """Take away the checkpoint of another run, so that --resume cannot take it for one of the run that begins."""
    if (place / FILE_NAME).exists():
        progress.note(f"the checkpoint in {place} is discarded; --resume would have continued it")
    with writing_errors(place):
        (place / FILE_NAME).unlink(missing_ok=True)  # first: the rows are nothing without it
        for rows in place.glob(ROWS):
            rows.unlink()


def sync_log(log: io.FileIO | None) -> None:
    """Bring the lines of a log to the disk before a checkpoint refers to them. A pipe or a device is left alone."""
    if log is not None and stat.S_ISREG(os.fstat(log.fileno()).st_mode):
        with writing_errors(Path(str(log.name))):
            os.fsync(log.fileno())
            sync_folder(Path(str(log.name)).parent)


def open_log(path: Path, lines: int) -> io.FileIO:
    """The log with its first lines, those that a checkpoint knows of; the rest is written again."""
    resumed = lines and path.is_file() and not path.is_symlink()
    if resumed:
        kept = path.read_bytes().splitlines(keepends=True)[:lines]
        write_atomically(path, b"".join(kept))
    file = io.FileIO(path, "a" if resumed else "w", opener=partial(open_in_place, streams=True))
    os.set_blocking(file.fileno(), True)
    return file
