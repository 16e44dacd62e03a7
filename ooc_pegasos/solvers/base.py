"""The interface of solvers: several models, presented the same rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import NO_FREE
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import Bound
from ooc_pegasos.objective.free_bias import Balance, BalancedBound, Lines
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.proof_record import DualRecord, RowDuals
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint

SLICE = 8 << 20
"""Entries a kernel is given at a time, some ten milliseconds' work, so that Ctrl-C is felt at once."""
LARGE_WEIGHTS = 1 << 21
"""From so many weights on those of the rows to come are prefetched as well: they outgrow the caches."""
NEAR = 10.0
"""Tolerances of gap from which on sums have to be as exact as the tolerance asks for."""
NO_WEIGHTS = np.empty(0, np.float32)
ONCE: Mapping[int, int] = MappingProxyType({})
"""No model is presented a row several times at once."""
APART = 2
"""Up to so many models are presented one after the other: a panel of eight costs as much."""


class Solver(ABC):
    """Models that are trained side by side, by their numbers in the problem. `active` are those still trained."""

    name: str
    threads = 1
    """That present rows side by side."""
    batch_size = 1
    keeps_best = True
    """False if the model is the last candidate measured, not the best."""
    wants_mark = False
    """True if the solver must be notified when half of an epoch is over."""
    record: DualRecord | None = None
    """Dual variables of each row, if a proof is wanted."""

    balance: Balance | None = None
    """The repair of dual vectors, where the bias is not regularised; there is no bound before it is known."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.active = list(range(len(problem.specs)))
        self.lines = {model: Lines() for model in self.active}

    def rows_at_a_time(self, block: CsrBlock) -> int:
        """Number of rows of a block in a slice."""
        return max(1, SLICE * block.rows // max(len(block.indices) * -(-len(self.active) // 4), 1))

    @abstractmethod
    def begin_epoch(self, repeats: Mapping[int, int] = ONCE) -> None:
        """Forget what is counted by epoch, in which these models are presented each row so often at a time."""

    def enter(self, window: Window) -> None:  # noqa: B027 (most have nothing to fetch)
        """Bring what is known of each row of a window."""

    def leave(self, window: Window) -> None:  # noqa: B027
        """Keep what is known of each row of a window that will not be presented any more for now."""

    @abstractmethod
    def present(self, window: Window, begin: int, end: int) -> int:
        """Present rows `window.order[begin:end]`; returns the row that has an index out of range, or -1."""

    def mark(self) -> None:  # noqa: B027
        """Half of the epoch is over: from here on losses count for the estimate."""

    def place_centres(self) -> None:  # noqa: B027
        """Choose the biases of models that have learnt nothing yet, once `balance` is known."""

    @property
    def wants_balance(self) -> bool:
        """True if `balance` is needed and not known."""
        return self.problem.free != NO_FREE and self.balance is None

    @abstractmethod
    def end_epoch(self) -> None:
        """Every row of the epoch was presented: what follows may be asked."""

    @abstractmethod
    def bound(self, model: int) -> Bound | None:
        """A lower bound on the optimum, if there is one."""

    def wants_renewal(self, model: int, gap: float, bound: Bound) -> bool:
        """True if rounding errors of the sums behind `bound` hide much of this gap, and `renew` can mend them."""
        return False

    def renew(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> None:  # noqa: B027
        """Add up anew the sums that bounds are made of, in a pass over all rows."""

    def keep_duals(self, model: int, bound: Bound) -> None:  # noqa: B027
        """Keep the dual variables behind what `bound` has returned for a proof, if one is wanted."""

    def _keep_balanced(self, model: int, bound: BalancedBound, duals: RowDuals) -> None:
        """Keep what a bound is made of, where the bias is not regularised."""
        assert self.record is not None
        if bound.crosses:
            self.record.keep_crossing(model, self.lines[model].parts, duals.weighted)
        else:
            self.record.keep(model, duals, bound.point, bound.leaning)

    @abstractmethod
    def estimate(self, model: int) -> float:
        """The objective, more or less, from what was met in this epoch."""

    @abstractmethod
    def candidates(self, model: int) -> list[np.ndarray]:
        """Weight vectors that may be the best so far."""

    def advance(self) -> None:  # noqa: B027
        """The epoch has been judged."""

    def drop(self, models: list[int]) -> None:
        """Some models leave the pass."""
        self.active = [model for model in self.active if model not in models]

    @abstractmethod
    def counts(self, model: int) -> dict[str, int]:
        """Counts of an epoch for the history: rows presented to this model so far, and updates in this epoch."""

    @abstractmethod
    def save(self, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and facts for a checkpoint; what is large is written to `folder` under names the facts tell."""

    @abstractmethod
    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """Take up from a checkpoint."""

    @abstractmethod
    def warm_up(self, nothing: CsrBlock) -> None:
        """Have the kernels loaded that a block of this kind needs; it has no rows."""

    def close(self) -> None:  # noqa: B027
        """Give back files and threads."""
