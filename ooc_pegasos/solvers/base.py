"""The interface of solvers, which train several models on the same rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import NO_FREE_BIAS
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import Bound
from ooc_pegasos.objective.free_bias import Balance, BalancedBound, Lines
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.proof_record import DualRecord, RowDuals
from ooc_pegasos.solvers.row_cache import Piece
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint

SLICE_ENTRIES = 8 << 20
"""Entries of a slice: about ten milliseconds of work, so that Ctrl-C has an immediate effect."""
LARGE_WEIGHTS = 1 << 21
"""Number of weights above which the weights of the next rows are prefetched: they exceed the caches."""
NEAR_TOLERANCE = 10.0
"""Gap, in tolerances, below which the precision of sums must suffice for the tolerance."""
NO_REPEATS: Mapping[int, int] = MappingProxyType({})
"""No repeated updates."""


class Solver(ABC):
    """Models that are trained together, by their numbers in the problem. `active` models are not finished."""

    name: str
    threads = 1
    """Threads that process rows concurrently."""
    batch_size = 1
    keeps_best = True
    """False if the model is the last candidate measured, not the best."""
    needs_half_mark = False
    """True if the solver must be notified when half of an epoch is over."""
    is_nearly_done = False
    """True if more work on a window than a pass over its rows is probably not needed."""
    visits_rows_often = False
    """True if rows are visited several times in an epoch, so that an epoch costs more than a measurement."""
    record: DualRecord | None = None
    """Dual variables of each row, if a proof is wanted."""

    balance: Balance | None = None
    """Constant dual vectors for an unregularized bias; without them there is no bound."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.active = list(range(len(problem.specs)))
        self.lines = {model: Lines() for model in self.active}

    def change_problem(self, problem: Problem) -> None:
        """Continue with other lambdas, from the variables of these."""
        raise NotImplementedError

    def rows_at_a_time(self, block: CsrBlock) -> int:
        """Number of rows of a block in a slice."""
        return max(1, SLICE_ENTRIES * block.rows // max(len(block.indices) * -(-len(self.active) // 4), 1))

    @abstractmethod
    def begin_epoch(self, repeats: Mapping[int, int] = NO_REPEATS) -> None:
        """Reset the counts of an epoch; `repeats` are the repeated updates for each row, by model."""

    def enter(self, window: Window) -> None:  # noqa: B027 (most have nothing to fetch)
        """Load the states of the rows of a window."""

    def leave(self, window: Window) -> None:  # noqa: B027
        """Save the states of the rows of a window."""

    def piece(self, window: Window, index: int, seed: Sequence[int]) -> Piece | None:
        """Return a part of the work while a window is in memory, which depends on the seed; None if all is done."""
        return Piece(window) if index == 0 else None

    def start(self, piece: Piece, is_resumed: bool) -> None:  # noqa: B027
        """Prepare for the rows of a piece, or for the rest of them."""

    def finish(self, piece: Piece) -> None:  # noqa: B027
        """Note that all rows of a piece were processed."""

    def read_again(self, windows: Callable[[], Iterator[Window]]) -> None:  # noqa: B027
        """Read rows that were in memory when the run was interrupted."""

    @abstractmethod
    def process(self, window: Window, begin: int, end: int) -> int:
        """Process the rows `window.order[begin:end]`; return the row that has an index out of range, or -1."""

    def mark_half(self) -> None:  # noqa: B027
        """Mark half of the epoch: losses from here on are used for the estimate."""

    def init_centres(self) -> None:  # noqa: B027
        """Initialise the biases of untrained models, after `balance` is set."""

    @property
    def needs_balance(self) -> bool:
        """True if `balance` is needed and not set."""
        return self.problem.free != NO_FREE_BIAS and self.balance is None

    @abstractmethod
    def end_epoch(self) -> None:
        """Finish the epoch: all its rows were processed. The methods below may be called after it."""

    @abstractmethod
    def bound(self, model: int) -> Bound | None:
        """Return a lower bound on the optimum, or None."""

    def needs_recomputing(self, model: int, gap: float, bound: Bound) -> bool:
        """True if rounding errors of the sums for `bound` are a large part of the gap, and `recompute_sums` helps."""
        return False

    def recompute_sums(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> None:  # noqa: B027
        """Recompute the sums for bounds, in a pass over all rows."""

    def keep_duals(self, model: int, bound: Bound) -> None:  # noqa: B027
        """Keep the dual variables of a bound for a proof, if one is requested."""

    def _keep_balanced(self, model: int, bound: BalancedBound, duals: RowDuals) -> None:
        """Keep the components of a bound for an unregularized bias."""
        assert self.record is not None
        if bound.is_intersection:
            self.record.keep_combination(model, self.lines[model].parts, duals.weighted)
        else:
            self.record.keep(model, duals, bound.point, bound.leaning)

    @abstractmethod
    def estimate(self, model: int) -> float:
        """Return an estimate of the objective from the losses of this epoch."""

    @abstractmethod
    def candidates(self, model: int) -> list[np.ndarray]:
        """Return weight vectors that may be the best so far."""

    def advance(self) -> None:  # noqa: B027
        """Prepare the next epoch, after the convergence check."""

    def drop(self, models: list[int]) -> None:
        """Remove finished models."""
        self.active = [model for model in self.active if model not in models]

    @abstractmethod
    def counts(self, model: int) -> dict[str, int]:
        """Return the counts of an epoch for the history: processed rows and updates."""

    @abstractmethod
    def save(self, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return (arrays, facts) for a checkpoint; large arrays go to files in `folder`, named in the facts."""

    @abstractmethod
    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """Restore the state of a checkpoint."""

    @abstractmethod
    def warm_up(self, nothing: CsrBlock) -> None:
        """Load the kernels for blocks of this kind; `nothing` has no rows."""

    def close(self) -> None:  # noqa: B027
        """Release files and threads."""
