"""Declarations of the algorithms: what each can do. Choice, defaults, messages and the epoch loop read them.

`solvers/registry.py` makes their solvers; `solvers.registry.register` adds an algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ooc_pegasos.registry import Registry

ANY: Final = "auto"
"""The choice that leaves the algorithm to the program."""
SDCA: Final = "sdca"
SGD: Final = "sgd-s"
"""The algorithms that the program chooses: SGD supports all options, SDCA needs fewer passes for a small lambda."""


@dataclass(frozen=True)
class Algorithm:
    """The capabilities of an algorithm.

    `supports` names what not every algorithm can do: the options `batch_size`, `project`, `average`, `delay`,
    `warm_start`; ways of the bias, `bias=free`, `bias=unregularized`, `bias=batch`; `several models` in a pass, as
    folds and one class against the rest need; and losses of `all classes` at once.
    """

    name: str
    supports: frozenset[str] = frozenset()
    is_certified: bool = True
    """True if it bounds the optimum."""
    needs_equal_sampling: bool = True
    """True if its bound holds only where rows are presented equally often."""
    needs_margin_errors: bool = False
    """True if it is for losses that count margin errors."""
    needs_dual_step: bool = False
    """True if it is for losses that have a dual step."""
    keeps_row_state: bool = False
    """True if it keeps numbers of each row between epochs."""
    keeps_best: bool = True
    """True if the model is the best candidate measured, not the last."""
    default_epochs: int = 100
    """The default limit of epochs, if there is a certificate."""
    default_sampling: str = "permutation"
    default_delay: float | None = None
    """Rows by which steps are shortened; None: from the data."""
    may_average: bool = False
    """True if it averages iterates where that is better than the last."""
    repeats: int = 1
    """Updates by a row at a time while the gap is large."""
    first_ratio: float = 1.0
    """The gap by the gap that an epoch estimates, until it is measured."""
    fallback: str = ""
    """The algorithm to change to, where the user leaves the choice open and this one is slow."""

    def alternative(self, capability: str) -> str:
        """Return the name of the first algorithm that has a capability, as a mark for messages."""
        return next((f"{{algorithm={one.name}}}" for one in ALGORITHMS.values() if capability in one.supports), "")


def lacking(algorithm: Algorithm, capability: str, mark: str) -> str:
    """Return the message that an algorithm has no capability, which the option `mark` asks for."""
    other = algorithm.alternative(capability)
    advice = f"leave it out, or choose {other}" if other else "leave it out"
    return f"{{algorithm={algorithm.name}}} does not support {mark}; {advice}"


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
_STEPS = frozenset({"average", "delay", "warm_start"})
_BATCHES = frozenset({"batch_size", "project", "bias=unregularized", "bias=batch"})
for _declared in (
    Algorithm(
        SDCA,
        frozenset({"bias=free", "several models"}),
        needs_equal_sampling=False,
        needs_dual_step=True,
        keeps_row_state=True,
        default_epochs=5000,  # they cost little where most rows are inactive
        first_ratio=0.6,
    ),
    Algorithm(
        SGD,
        _STEPS | _BATCHES | {"bias=free", "several models", "all classes"},
        may_average=True,
        fallback=SDCA,
    ),
    Algorithm("sgd-m", _STEPS | {"bias=free"}, needs_margin_errors=True, may_average=True, repeats=5),
    Algorithm("sgd-r", _STEPS | _BATCHES | {"several models"}, default_sampling="iid"),
    Algorithm("pegasos", _STEPS | _BATCHES, default_sampling="iid", default_delay=0.0, keeps_best=False),
):
    ALGORITHMS.register(_declared.name, _declared)
