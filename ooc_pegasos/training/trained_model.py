"""One of the models of a run, without its weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ooc_pegasos.reporting.history import EpochRecord, HoldoutResult
from ooc_pegasos.scoring.model import Certificate
from ooc_pegasos.util import typed_json


@dataclass(frozen=True)
class TrainedModel:
    """One of the models of a run."""

    lam: float
    one_class: str | None
    fold: int | None
    certificate: Certificate
    epochs: int
    holdout: HoldoutResult | None
    history: list[EpochRecord]

    def table(self) -> dict[str, Any]:
        """Return the model as a table for a checkpoint."""
        rest = dataclasses.asdict(dataclasses.replace(self, history=[]))
        return rest | {"history": [record.table() for record in self.history]}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> TrainedModel:
        """Return the model that `table` wrote. Raises ValueError or TypeError."""
        loaded = typed_json.load(cls, {**table, "history": []}, "model")
        return dataclasses.replace(loaded, history=[EpochRecord.from_table(line) for line in table["history"]])
