"""States of rows for models that are trained together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_SEPARATE = 2
"""Up to this many models are trained separately: a panel of eight costs as much."""


class Group:
    """Row states of models that are trained together: `width` columns, the first of which have a model."""

    def __init__(self, models: Sequence[int], width: int) -> None:
        self.models = list(models)
        self.width = width
        self.duals = np.empty(0, np.float32)
        self.inactive_until = np.empty(0, np.uint8)

    def of(self, rows: np.ndarray) -> Group:
        """Return the states of some rows."""
        found = Group(self.models, self.width)
        found.duals, found.inactive_until = (
            array.reshape(-1, self.width)[rows].ravel() for array in (self.duals, self.inactive_until)
        )
        return found
