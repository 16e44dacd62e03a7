"""The side of the client: solvers whose epoch is a round of all parts. They hold vectors, and workers hold rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.block import CsrBlock
from ooc_pegasos.checkpoint import Checkpoint
from ooc_pegasos.distributed.rounds import (
    LATE_LOSSES,
    LATE_ROWS,
    LOSSES,
    ROWS,
    SUM,
    UPDATES,
    Ascent,
    AscentState,
    Contribution,
    Descent,
)
from ooc_pegasos.kernels.pegasos import ERRORS, LOSS, S, T
from ooc_pegasos.kernels.sdca import CHANGED, DUAL, GAP, OFF, STRETCH, VISITED
from ooc_pegasos.loading import Window
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.solvers.solver import ONCE
from ooc_pegasos.solvers.subgradient import PegasosSolver


class RoundsOfAscent(SdcaSolver):
    """CoCoA+: dual coordinate ascent in each part, and the changes of all parts added up."""

    epoch = 0

    def begin_epoch(self, repeats: Mapping[int, int] = ONCE) -> None:
        """See `Solver`."""
        self._set_epoch(self._epoch + 1)
        for model in self.active:
            self._approach(model)
            self.state[model][[GAP, VISITED, CHANGED, OFF]] = 0.0

    def task(self, parts: int, passes: int) -> Ascent:
        """What all parts are told."""
        stretch = {model: float(self.state[model][STRETCH]) for model in self.active}
        vectors = {model: self.a[model].copy() for model in self.active}  # workers may ask for it again later
        return Ascent(self.problem, parts, self.tolerance, self._epoch, passes, vectors, stretch)

    def take(self, found: Contribution) -> None:
        """Add what all parts have found."""
        for model in self.active:
            found.vectors[model].add_to(self.a[model])
            for place in (DUAL, GAP, VISITED, CHANGED, OFF):
                self.state[model][place] += found.numbers[model][place]

    def end_epoch(self) -> None:
        """See `Solver`."""

    def present(self, window: Window, begin: int, end: int) -> int:
        """Nobody asks: rows are elsewhere."""
        raise NotImplementedError("rows are presented by workers")

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""

    def save_rounds(self, states: list[AscentState]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Vectors, and what each part knows of its rows, for a checkpoint."""
        arrays = {f"{model} {name}": table[model] for name, table in self._tables().items() for model in self.active}
        parts = []
        for number, state in enumerate(states):
            arrays |= {f"part {number} {group} {name}": array for (group, name), array in state.arrays.items()}
            arrays |= {f"part {number} model {model}": array for model, array in state.models.items()}
            parts.append(
                {
                    "groups": state.groups,
                    "arrays": [list(key) for key in state.arrays],
                    "models": list(state.models),
                    "alone": list(state.alone),
                    "seen": list(state.seen.items()),
                }
            )
        return arrays, {"active": self.active, "epoch": self._epoch, "parts": parts}

    def restore_rounds(self, saved: Checkpoint) -> list[AscentState]:
        """Take up from a checkpoint; returns what each part knew."""
        facts = saved.facts["solver"]
        self.drop([model for model in self.active if model not in facts["active"]])
        self._set_epoch(facts["epoch"])
        for name, table in self._tables().items():
            for model in self.active:
                table[model][:] = saved.arrays[f"{model} {name}"]
        states = []
        for number, told in enumerate(facts["parts"]):
            names = [(int(group), str(name)) for group, name in told["arrays"]]
            arrays = {key: saved.arrays[f"part {number} {key[0]} {key[1]}"] for key in names}
            models = {model: saved.arrays[f"part {number} model {model}"] for model in told["models"]}
            groups = [(list(chosen), int(width)) for chosen, width in told["groups"]]
            states.append(AscentState(groups, arrays, models, tuple(told["alone"]), dict(told["seen"])))
        return states

    def _tables(self) -> dict[str, dict[int, np.ndarray]]:
        return {"a": self.a, "mean": self.mean, "state": self.state}


class RoundsOfDescent(PegasosSolver):
    """Pegasos in each part, and what all have learnt averaged exactly; see `solvers/averaging.py`."""

    epoch = -1

    def begin_epoch(self, repeats: Mapping[int, int] = ONCE) -> None:
        """See `Solver`."""
        super().begin_epoch(repeats)
        self.epoch += 1

    def task(self, rows: int) -> Descent:
        """What all parts are told."""
        members = {model: self.members[model] for model in self.active}
        vectors = {model: member.a.copy() for model, member in members.items()}
        states = {model: member.state.copy() for model, member in members.items()}
        options = self.all_options
        return Descent(self.problem, options, rows, self.epoch, vectors, states)

    def take(self, found: Contribution) -> None:
        """Put what all parts have found in the place of what there was."""
        for model in self.active:
            member, numbers = self.members[model], found.numbers[model]
            member.a[:] = 0.0
            found.vectors[model].add_to(member.a)
            member.state[S] += numbers[SUM]
            member.state[LOSS] += numbers[LOSSES]
            member.state[ERRORS] += numbers[UPDATES]
            member.state[T] += numbers[ROWS]
            member.marked = numbers[ROWS] - numbers[LATE_ROWS]
            member.loss_at_mark = numbers[LOSSES] - numbers[LATE_LOSSES]

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """See `Solver`."""
        super().restore(folder, saved)
        self.epoch = saved.facts["cursor"]["epoch"] - 1
