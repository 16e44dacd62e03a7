"""Records of a training run: the state of each model after each epoch, and holdout results."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ooc_pegasos.util import typed_json


@dataclass(frozen=True)
class EpochRecord:
    """The state of one model at the end of an epoch. Values that were not measured in this epoch are None."""

    epoch: int
    counts: dict[str, int]
    """Rows and updates, by the names that the solver uses."""
    estimate: float
    """Of the objective."""
    primal: float | None
    lower_bound: float | None
    gap: float | None
    """Certified relative gap."""
    estimated_gap: float | None
    holdout_loss: float | None
    holdout_error: float | None

    def table(self) -> dict[str, Any]:
        """Return the record as it is in logs, checkpoints and models: the counts follow the epoch."""
        rest = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[2:]}
        return {"epoch": self.epoch, **self.counts, **rest}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> EpochRecord:
        """Return the record that `table` wrote. Raises ValueError."""
        names = {field.name for field in dataclasses.fields(cls)} - {"counts"}
        known = {name: value for name, value in table.items() if name in names}
        counts = {name: value for name, value in table.items() if name not in names}
        return typed_json.load(cls, {**known, "counts": counts}, "history")


@dataclass(frozen=True)
class HoldoutResult:
    """The mean loss and the error rate of a model on the holdout rows; None if not known."""

    loss: float | None
    error: float | None
