"""States of rows for models that are trained together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_SEPARATE = 2
"""Up to this many models are trained separately: a panel of eight costs as much."""
KINDS: dict[str, Any] = {"duals": np.float32, "inactive_until": np.uint8}
"""The states of a row for a model, and their types."""


class Group:
    """Row states of models that are trained together: `width` columns, the first of which have a model."""

    def __init__(self, models: Sequence[int], width: int) -> None:
        self.models = list(models)
        self.width = width
        self.duals, self.inactive_until = (np.empty(0, kind) for kind in KINDS.values())

    def allocate(self, rows: int) -> None:
        """Make room for the states of so many rows."""
        for name, kind in KINDS.items():
            setattr(self, name, np.empty(rows * self.width, kind))

    def table(self, name: str) -> np.ndarray:
        """Return one of `KINDS` as a table with a line for each row."""
        table: np.ndarray = getattr(self, name).reshape(-1, self.width)
        return table
