"""What is known of a training run at an instant, and how it is kept on disk."""

from __future__ import annotations

import dataclasses
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos import __version__, manifest
from ooc_pegasos.accounting import EpochCost
from ooc_pegasos.certificate import Snapshot, relative_gap
from ooc_pegasos.checkpoint import Checkpoint
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import InputError
from ooc_pegasos.files import writing_errors

if TYPE_CHECKING:
    from ooc_pegasos.objective import Measurement
    from ooc_pegasos.solvers.pegasos import Pegasos
    from ooc_pegasos.store import Store


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
    """What is known so far, besides vectors."""

    cursor: Cursor = field(default_factory=Cursor)
    bound: float | None = None
    primal: float | None = None
    holdout: dict[str, float] | None = None
    ratio: float = 1.0
    """Of the gap of the best candidate to the gap estimated for the last iterate, as last measured."""
    pending_gap: float | None = None
    """The gap estimated for the candidates that are being measured during this epoch."""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def gap(self) -> float | None:
        """The certified relative gap."""
        return relative_gap(self.primal, self.bound)


@dataclass
class RunState:
    """All that a run needs to go on from where it stands."""

    solver: Pegasos
    snapshots: list[Snapshot]
    known: Progression
    best: np.ndarray
    """The weights of the best candidate so far."""
    pending: Measurement | None
    """Candidates from the end of the last epoch, measured while this one is presented."""
    costs: list[EpochCost]

    def save(self, folder: Path, identity: dict[str, Any], budget: int) -> None:
        """Replace the checkpoint in `folder` by one of this instant."""
        solver, pending = self.solver, self.pending
        arrays = {"a": solver.a, "b": solver.b, "state": solver.state, "best": self.best}
        for number, snapshot in enumerate(self.snapshots):
            arrays[f"snapshot {number}"] = snapshot.a
        if pending:
            arrays["pending sums"] = pending.sums.ravel()
            for number, candidate in enumerate(pending.candidates):
                arrays[f"pending {number}"] = candidate
        facts = {
            "identity": identity,
            "state": dataclasses.asdict(self.known),
            "averaged_from": solver.averaged_from,
            "budget": budget,
            "snapshots": [[s.epoch, s.t, s.s] for s in self.snapshots],
            "pending": [len(pending.candidates), pending.windows] if pending else None,
            "costs": [cost.table() for cost in self.costs],
        }
        with writing_errors(folder):
            Checkpoint(arrays, facts).save(folder)

    def restore(self, saved: Checkpoint, measurement: Any) -> None:
        """Take up a run where its checkpoint stands; `measurement` makes one of candidates."""
        solver, arrays, facts = self.solver, saved.arrays, saved.facts
        solver.a[:] = arrays["a"]
        solver.b[:] = arrays["b"]
        solver.state[:] = arrays["state"]
        solver.averaged_from = facts["averaged_from"]
        self.best = arrays["best"]
        known = facts["state"]
        self.known = Progression(**{**known, "cursor": Cursor(**known["cursor"])})
        self.snapshots = [
            Snapshot(epoch, t, s, arrays[f"snapshot {number}"])
            for number, (epoch, t, s) in enumerate(facts["snapshots"])
        ]
        if facts["pending"]:
            number, windows = facts["pending"]
            self.pending = measurement([arrays[f"pending {i}"] for i in range(number)])
            assert self.pending is not None
            self.pending.sums = arrays["pending sums"].reshape(number, -1).copy()
            self.pending.windows = windows
        self.costs = [EpochCost(**cost) for cost in facts["costs"]]


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
    return settings


def identity_of(config: TrainConfig, store: Store, start: np.ndarray) -> dict[str, Any]:
    """What must be the same for a run to be taken up again."""
    identity = {
        "config": essential(config),
        "store": manifest.checksum_of(store.manifest),
        "written_by": __version__,
        "start": f"{zlib.crc32(np.ascontiguousarray(start).data):08x}",
    }
    normal: dict[str, Any] = json.loads(json.dumps(identity))
    return normal


def check_same_run(place: Path, wanted: dict[str, Any], saved: Checkpoint, memory: int | None) -> None:
    """Refuse to go on with another run than the one that was interrupted."""
    found = saved.facts["identity"]
    for name, value in wanted.items():
        if found[name] != value:
            what = {"config": "with other options", "store": "on another store", "start": "from another model"}
            how = what.get(name, "by another version")
            raise InputError(f"{place}: the run to resume was started {how}; start over without --resume")
    if memory not in (None, saved.facts["budget"]):
        problem = (
            f"the run to resume was started with --memory {saved.facts['budget']}, which decides the order of rows"
        )
        raise InputError(f"{place}: {problem}; say the same or leave it out")
