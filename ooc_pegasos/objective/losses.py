"""The losses by name. A loss is a number that kernels branch on, and what else must be known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ooc_pegasos.compiled.fit import losses as kernels
from ooc_pegasos.compiled.fit.multiclass import MULTICLASS_HINGE, MULTICLASS_LOGISTIC
from ooc_pegasos.config import LossName
from ooc_pegasos.errors import UsageError


@dataclass(frozen=True)
class Loss:
    """`number` chooses the branch in `compiled/fit/losses.py`; `task` is what is learnt: two classes, real targets, or
    all classes at once.

    `parameter` is its default, and `meaning` what it is; None if it has none.
    """

    name: LossName
    number: int
    task: Literal["binary", "regression", "multiclass"]
    parameter: float | None = None
    meaning: str = ""


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in [
        Loss("hinge", kernels.HINGE, "binary"),
        Loss("logistic", kernels.LOGISTIC, "binary"),
        Loss("smoothed-hinge", kernels.SMOOTHED_HINGE, "binary", 1.0, "the margin over which the slope grows to 1"),
        Loss("epsilon-insensitive", kernels.EPSILON_INSENSITIVE, "regression", 0.1, "the error that costs nothing"),
        Loss("absolute", kernels.ABSOLUTE, "regression"),
        Loss("huber", kernels.HUBER, "regression", 1.0, "the error from which on the loss is a line"),
        Loss("multiclass-hinge", MULTICLASS_HINGE, "multiclass"),
        Loss("multiclass-logistic", MULTICLASS_LOGISTIC, "multiclass"),
    ]
}
DEFAULT_LOSS: dict[str, LossName] = {"binary": "hinge", "multiclass": "hinge", "regression": "epsilon-insensitive"}
"""By what the labels are. Several classes are learnt one against the rest."""


def loss_for(name: str | None, task: str) -> Loss:
    """The loss of this name, or the default, if it suits the labels."""
    loss = LOSSES[name or DEFAULT_LOSS[task]]
    fits = {"binary": ("binary",), "regression": ("regression",), "multiclass": ("binary", "multiclass")}[task]
    if loss.task not in fits:
        suitable = [other.name for other in LOSSES.values() if other.task in fits]
        raise UsageError(
            f"{{loss={loss.name}}} is for {loss.task} labels, the store's are for {task}; "
            f"choose {' or '.join(suitable)}"
        )
    return loss
