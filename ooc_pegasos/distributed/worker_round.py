"""Tasks of a worker in a round: pure functions of a part, vectors and the state of its rows.

So a task that was lost with its worker can be repeated elsewhere, with the same result. Arguments are not changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, NORM2, S, T, square
from ooc_pegasos.compiled.fit.sdca import (
    CENTRE,
    CHANGED,
    DUAL,
    GAP,
    LAMBDA_FACTOR,
    LAST_STEP,
    STATE_SIZE,
    STEP_FACTOR,
    VISITED,
)
from ooc_pegasos.compiled.fit.sdca import MAGNITUDE as DUAL_MAGNITUDE
from ooc_pegasos.distributed.store_parts import InMemoryPart, OpenPart, Part, open_part
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import RowSums
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.dual_sums import DualSums
from ooc_pegasos.solvers.pegasos import PegasosOptions
from ooc_pegasos.solvers.pegasos_group import PegasosSolver, SharedOptions
from ooc_pegasos.solvers.row_group import Group
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.training.holdout import HoldoutRequest, HoldoutScores, score_holdout_rows

CENTRES = [CENTRE, STEP_FACTOR, LAST_STEP]
_MAX_DENSITY = 1 / 3
"""Share of nonzeros below which a vector is sent as indices and values."""


@dataclass(frozen=True)
class PackedVector:
    """A vector to be sent: dense, or indices and values of its nonzeros."""

    length: int
    indices: np.ndarray | None
    numbers: np.ndarray

    @classmethod
    def of(cls, vector: np.ndarray) -> PackedVector:
        """Return the shorter form; nothing is rounded."""
        indices = np.flatnonzero(vector)
        if len(indices) >= _MAX_DENSITY * len(vector):
            return cls(len(vector), None, vector)
        kind = np.uint32 if len(vector) < 2**32 else np.int64
        return cls(len(vector), indices.astype(kind), vector[indices])

    def unpacked(self) -> np.ndarray:
        """Return the dense vector, aligned for kernels; it must not be written to."""
        if self.indices is None:
            return np.require(self.numbers, requirements=["C", "A", "W"])
        vector = np.zeros(self.length)
        vector[self.indices] = self.numbers
        return vector

    def add_to(self, vector: np.ndarray) -> None:
        """Add the vector to another one."""
        if self.indices is None:
            vector += self.numbers
        else:
            vector[self.indices] += self.numbers

    @property
    def bytes(self) -> int:
        """Bytes to send."""
        return self.numbers.nbytes + (0 if self.indices is None else self.indices.nbytes)


@dataclass(frozen=True)
class RoundResult:
    """Result of a round, summed over some parts: a vector and a few numbers for each model."""

    vectors: dict[int, PackedVector]
    numbers: dict[int, np.ndarray]
    bytes: int = 0
    """Bytes sent between workers for this sum."""

    def __add__(self, other: RoundResult) -> RoundResult:
        vectors = {}
        for model, one in self.vectors.items():
            total = np.zeros(one.length)
            one.add_to(total)
            other.vectors[model].add_to(total)
            vectors[model] = PackedVector.of(total)
        numbers = {model: mine + other.numbers[model] for model, mine in self.numbers.items()}
        return RoundResult(vectors, numbers, self.bytes + other.bytes + other.own_bytes)

    @property
    def own_bytes(self) -> int:
        """Bytes of the vectors."""
        return sum(packed.bytes for packed in self.vectors.values())


def add(one: Any, other: Any) -> Any:
    """Return the sum."""
    return one + other


# --- dual coordinate ascent ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SdcaState:
    """State of a part between rounds: of its rows, and of each model."""

    groups: list[tuple[list[int], int]] = field(default_factory=list)
    arrays: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    models: dict[int, np.ndarray] = field(default_factory=dict)
    separate: tuple[int, ...] = ()
    panel_rows: dict[int, int] = field(default_factory=dict)


class _InMemoryRowStates(RowStates):
    """The state of all rows of a part in memory, in the order of the part."""

    def __init__(self, opened: OpenPart, bias: float) -> None:
        super().__init__(opened.store, bias, False, None)
        if not len(opened.inverses):
            opened.inverses = np.zeros(opened.store.rows, np.float32)
        self._inverses_file = opened.inverses

    def _new_file(self, kind: Any, items: int) -> np.ndarray:
        return np.zeros(items, kind)

    def load(self, state: SdcaState) -> None:
        """Load a copy of a state."""
        self.groups = [Group(models, width) for models, width in state.groups]
        self._files = {key: array.copy() for key, array in state.arrays.items()}

    def result(self) -> tuple[list[tuple[list[int], int]], dict[tuple[int, str], np.ndarray]]:
        """Return the state now."""
        self.leave()
        return [(group.models, group.width) for group in self.groups], self._files


_COUNTS = [VISITED, CHANGED, DUAL_MAGNITUDE]
"""Elements of a state that are added up over the passes of a round."""


@dataclass(frozen=True)
class SdcaRequest:
    """The message to all parts for a round of dual coordinate ascent."""

    problem: Problem
    tolerance: float
    epoch: int
    passes: int
    vectors: dict[int, PackedVector]
    """The sum of b_i x_i over all rows, for each active model."""
    stretch: dict[int, float]
    centres: dict[int, np.ndarray]
    """For an unregularized bias: the proximal centre and its extrapolation."""
    sigma: dict[int, float]
    """Factor by which each part scales its own changes, from 1 to the number of parts."""


def run_sdca(
    part: Part, request: SdcaRequest, state: SdcaState | None, in_memory: InMemoryPart | None = None
) -> tuple[SdcaState, RoundResult]:
    """Make some passes of dual coordinate ascent over a part.

    CoCoA+: the changes of all parts are added up, so each part scales its own changes by s = sigma'. A kernel that
    starts from a / s with the clock lambda m / s does so: its score is <a + s (a' - a), x> / (lambda m).
    """
    opened, state = open_part(part, in_memory), state or SdcaState()
    shares = {model: 1.0 / sigma for model, sigma in request.sigma.items()}
    specs = tuple(
        dataclasses.replace(spec, lam=spec.lam * shares.get(model, 1.0))
        for model, spec in enumerate(request.problem.specs)
    )
    with opened.lock:
        rows = _InMemoryRowStates(opened, request.problem.bias)
        solver = SdcaSolver(dataclasses.replace(request.problem, specs=specs), rows, request.tolerance)
        solver.drop([model for model in solver.active if model not in request.vectors])
        rows.load(state)
        solver.resume(request.epoch * request.passes - 1, state.separate, state.panel_rows)
        start_vectors = {model: packed.unpacked() * shares[model] for model, packed in request.vectors.items()}
        for model, vector in start_vectors.items():
            solver.a[model][:] = vector
            if model in state.models:
                solver.state[model][:] = state.models[model]
            solver.state[model][DUAL] = 0.0
            solver.state[model][CENTRES] = request.centres[model]
        gaps: dict[int, float] = {}
        counts = {model: np.zeros(len(_COUNTS)) for model in request.vectors}
        for number in range(request.passes):
            solver.begin_epoch()
            for model, stretch in request.stretch.items():
                solver.state[model][LAMBDA_FACTOR] = stretch
            for window in opened.windows(request.epoch * request.passes + number):
                solver.enter(window)
                _process_rows(solver, opened, window, 0, len(window.order))
                solver.leave(window)
            if not number:  # the gap of the first pass; later passes know the changes of this part only
                gaps = {model: float(solver.state[model][GAP]) for model in request.vectors}
            solver.end_epoch()
            for model in request.vectors:
                counts[model] += solver.state[model][_COUNTS]
        groups, arrays = rows.result()
        new = SdcaState(groups, arrays, solver.state, tuple(sorted(solver.separate)), solver.panel_rows)
        changed = {model: solver.a[model] - vector for model, vector in start_vectors.items()}
        numbers = {model: np.append(solver.state[model], square(vector)) for model, vector in changed.items()}
        for model, gap in gaps.items():
            numbers[model][GAP] = gap
            numbers[model][_COUNTS] = counts[model]
        return new, RoundResult({model: PackedVector.of(vector) for model, vector in changed.items()}, numbers)


def recompute_dual_sums(
    part: Part, request: tuple[Problem, list[int]], state: SdcaState, in_memory: InMemoryPart | None = None
) -> list[DualSums]:
    """Recompute the sums over the dual variables of the rows of a part."""
    problem, models = request
    opened = open_part(part, in_memory)
    with opened.lock:
        rows = _InMemoryRowStates(opened, problem.bias)
        rows.load(state)
        solver = SdcaSolver(problem, rows, 1.0)
        return solver.dual_sums(models, opened.all_windows)


def add_dual_sums(one: list[DualSums], other: list[DualSums]) -> list[DualSums]:
    """Return the sums of the rows of both."""
    return [mine + more for mine, more in zip(one, other, strict=True)]


OWN_SQUARES = STATE_SIZE
"""Index, after the elements of a state, of the sum of the squared norms of the changes of each part."""
_RAISE_ABOVE, _LOWER_BELOW = 0.9, 0.6
_LOWER_FACTOR, _RAISE_FACTOR = 0.8, 1.25


def next_sigma(sigma: float, combined: float, separate: float, parts: int) -> float:
    """Return sigma' for the next round: the factor by which parts scale their own changes.

    The number of parts is always safe, and needed only if all parts make the same change. If the sum of the changes has
    the squared norm `combined`, and the squared norms of the parts' changes add up to `separate`, then combined /
    separate was the right value. Too small a value makes the next round undo changes, so sigma' falls slowly and rises
    at once.
    """
    ratio = combined / separate if separate else 0.0
    if ratio > _RAISE_ABOVE * sigma:
        return min(max(ratio, _RAISE_FACTOR * sigma), float(parts))
    return max(_LOWER_FACTOR * sigma, 1.0) if ratio < _LOWER_BELOW * sigma else sigma


def _process_rows(solver: Solver, opened: OpenPart, window: Window, begin: int, end: int) -> None:
    step = solver.rows_at_a_time(window.block)
    for first in range(begin, end, step):
        opened.check()
        bad = solver.process(window, first, min(first + step, end))
        if bad >= 0:
            raise opened.loader.damaged(window, bad)


# --- sums over rows ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSumsRequest:
    """The request for sums over the rows of each class and fold."""

    problem: Problem
    classes: int
    folds: int | None


def sum_rows(part: Part, request: RowSumsRequest, in_memory: InMemoryPart | None = None) -> RowSums:
    """Return the sums over the rows of a part."""
    opened = open_part(part, in_memory)
    with opened.lock:
        found = RowSums.of(request.problem, request.classes, request.folds)
        for window in opened.all_windows():
            found.add(window)
        return found


# --- Pegasos ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PegasosRequest:
    """The message to all parts for a round of Pegasos."""

    problem: Problem
    options: list[PegasosOptions]
    shared: SharedOptions
    rows: int
    """Rows of all parts."""
    epoch: int
    vectors: dict[int, PackedVector]
    states: dict[int, np.ndarray]


SUM, LOSSES, UPDATES, ROWS, LATE_LOSSES, LATE_ROWS, MAGNITUDES = range(7)
"""The numbers of a result: S, losses, updates and rows of the round; those of its second half; sizes of S's terms."""


def run_pegasos(part: Part, request: PegasosRequest, in_memory: InMemoryPart | None = None) -> RoundResult:
    """Make a pass of Pegasos over a part, the result of which is averaged: see `solvers/pegasos_threads.py`."""
    opened = open_part(part, in_memory)
    share = part.rows / request.rows
    options = [dataclasses.replace(one, delay=one.delay * share) for one in request.options]
    with opened.lock:
        solver = PegasosSolver(request.problem, options, request.shared)
        solver.drop([model for model in solver.active if model not in request.vectors])
        for model, packed in request.vectors.items():
            member = solver.members[model]
            np.multiply(packed.unpacked(), share, out=member.a)
            member.state[:] = request.states[model]
            member.state[[S, LOSS, ERRORS, NORM2, MAGNITUDE]] = 0.0
            member.state[T] = request.states[model][T] * share
        solver.begin_epoch()
        presented, half = 0, part.rows // 2
        for window in opened.windows(request.epoch):
            rows = len(window.order)
            middle = min(max(half - presented, 0), rows)
            _process_rows(solver, opened, window, 0, middle)
            if presented <= half < presented + rows:
                solver.mark_half()
            _process_rows(solver, opened, window, middle, rows)
            presented += rows
        solver.end_epoch()
        vectors, numbers = {}, {}
        for model in request.vectors:
            member = solver.members[model]
            rows = round(member.t - member.began)
            late = (member.loss_sum - member.loss_at_mark, rows - round(member.marked))
            vectors[model] = PackedVector.of(member.a)
            numbers[model] = np.array(
                [member.dual_sum, member.loss_sum, member.errors, rows, *late, member.state[MAGNITUDE]]
            )
        return RoundResult(vectors, numbers)


# --- objectives ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectiveRequest:
    """The request for the objectives of candidates of some models."""

    problem: Problem
    models: list[int]
    vectors: dict[int, PackedVector]
    """The candidates, by number."""
    compensated: list[int]
    """Models whose scores are computed in double-double precision."""


def measure(part: Part, request: ObjectiveRequest, in_memory: InMemoryPart | None = None) -> np.ndarray:
    """Return the sums of losses of candidates over a part."""
    opened = open_part(part, in_memory)
    with opened.lock:
        vectors = [one.unpacked() for one in request.vectors.values()]
        measurement = Measurement(request.problem, request.models, vectors, request.compensated)
        for window in opened.all_windows():
            measurement.add(window, opened.loader, 1, opened.check)
        return measurement.sums


def score_holdout(part: Part, request: HoldoutRequest, in_memory: InMemoryPart | None = None) -> list[HoldoutScores]:
    """Return statistics of the scores of the holdout rows of a part."""
    opened = open_part(part, in_memory)
    with opened.lock:
        return score_holdout_rows(request, opened.all_windows(), opened.loader, 1)


def merge_holdout(ones: list[HoldoutScores], others: list[HoldoutScores]) -> list[HoldoutScores]:
    """Return the statistics of both; neither is changed, as the sum may be repeated."""
    return [one.merged(other) for one, other in zip(ones, others, strict=True)]
