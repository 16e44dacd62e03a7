"""The losses by name. A loss is a number that kernels branch on, and what else must be known of it."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_pegasos.errors import UsageError
from ooc_pegasos.kernels import losses as kernels


@dataclass(frozen=True)
class Loss:
    """`number` chooses the branch in `kernels/losses.py`; `tasks` are the kinds of labels it is for."""

    name: str
    number: int
    tasks: tuple[str, ...]


LOSSES = {loss.name: loss for loss in [Loss("hinge", kernels.HINGE, ("binary",))]}


def loss_for(name: str, task: str) -> Loss:
    """The loss of this name, if it suits the labels."""
    loss = LOSSES[name]
    if task not in loss.tasks:
        raise UsageError(f"--loss {name} is for {' or '.join(loss.tasks)} labels, the store's are for {task}")
    return loss
