"""The work of a worker in a round: pure functions of a part, vectors and the state of its rows.

So a round that was lost with its worker can be repeated elsewhere, with the same result. Arguments are not changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, NORM2, S, T, square
from ooc_pegasos.compiled.fit.sdca import CENTRE, CHANGED, DUAL, GAP, HASTE, MOVE, STATE_SIZE, STRETCH, VISITED
from ooc_pegasos.compiled.fit.sdca import MAGNITUDE as DUAL_MAGNITUDE
from ooc_pegasos.distributed.store_parts import Held, OpenPart, Part, at_hand
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import RowSums
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.dual_store import Group, RowStates
from ooc_pegasos.solvers.dual_sums import DualSums
from ooc_pegasos.solvers.pegasos import PegasosOptions
from ooc_pegasos.solvers.pegasos_group import Manner, PegasosSolver
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.training.result import HoldoutScores, score_holdout_rows

CENTRES = [CENTRE, HASTE, MOVE]
_WORTH_PACKING = 1 / 3
"""Share of a vector that is not 0, below which its places are sent with its numbers."""


@dataclass(frozen=True)
class Packed:
    """A vector as it travels: all of it, or the places where it is not 0."""

    length: int
    places: np.ndarray | None
    numbers: np.ndarray

    @classmethod
    def of(cls, vector: np.ndarray) -> Packed:
        """Whichever is shorter; nothing is rounded."""
        places = np.flatnonzero(vector)
        if len(places) >= _WORTH_PACKING * len(vector):
            return cls(len(vector), None, vector)
        kind = np.uint32 if len(vector) < 2**32 else np.int64
        return cls(len(vector), places.astype(kind), vector[places])

    def unpacked(self) -> np.ndarray:
        """All of it, not to be written to, where kernels want it, which what has travelled may not be."""
        if self.places is None:
            return np.require(self.numbers, requirements=["C", "A", "W"])
        vector = np.zeros(self.length)
        vector[self.places] = self.numbers
        return vector

    def add_to(self, vector: np.ndarray) -> None:
        """Add it up."""
        if self.places is None:
            vector += self.numbers
        else:
            vector[self.places] += self.numbers

    @property
    def bytes(self) -> int:
        """That travel."""
        return self.numbers.nbytes + (0 if self.places is None else self.places.nbytes)


@dataclass(frozen=True)
class Contribution:
    """Result of a round of some parts: a vector and a few numbers for each model."""

    vectors: dict[int, Packed]
    numbers: dict[int, np.ndarray]
    bytes: int = 0
    """That have travelled to come to this sum."""

    def __add__(self, other: Contribution) -> Contribution:
        vectors = {}
        for model, one in self.vectors.items():
            total = np.zeros(one.length)
            one.add_to(total)
            other.vectors[model].add_to(total)
            vectors[model] = Packed.of(total)
        numbers = {model: mine + other.numbers[model] for model, mine in self.numbers.items()}
        return Contribution(vectors, numbers, self.bytes + other.bytes + other.own_bytes)

    @property
    def own_bytes(self) -> int:
        """Of its vectors."""
        return sum(packed.bytes for packed in self.vectors.values())


def added(one: Contribution, other: Contribution) -> Contribution:
    """Two contributions as one."""
    return one + other


# --- dual coordinate ascent ---------------------------------------------------------------------------


@dataclass(frozen=True)
class AscentState:
    """State of a part between rounds: of its rows, and of each model."""

    groups: list[tuple[list[int], int]] = field(default_factory=list)
    arrays: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    models: dict[int, np.ndarray] = field(default_factory=dict)
    alone: tuple[int, ...] = ()
    seen: dict[int, int] = field(default_factory=dict)


class _HeldRows(RowStates):
    """The state of all rows of a part in memory, in the order of the part."""

    def __init__(self, opened: OpenPart, bias: float) -> None:
        super().__init__(opened.store, bias, False, None)
        if not len(opened.inverses):
            opened.inverses = np.zeros(opened.store.rows, np.float32)
        self._inverses_file = opened.inverses

    def _new_file(self, kind: Any, items: int) -> np.ndarray:
        return np.zeros(items, kind)

    def take(self, state: AscentState) -> None:
        """Begin with a copy of what is known."""
        self.groups = [Group(models, width) for models, width in state.groups]
        self._files = {key: array.copy() for key, array in state.arrays.items()}

    def give(self) -> tuple[list[tuple[list[int], int]], dict[tuple[int, str], np.ndarray]]:
        """Return the state now."""
        self.leave()
        return [(group.models, group.width) for group in self.groups], self._files


_COUNTS = [VISITED, CHANGED, DUAL_MAGNITUDE]
"""Places of a state that are added up over the passes of a round."""


@dataclass(frozen=True)
class Ascent:
    """A round of dual coordinate ascent: what all parts are told."""

    problem: Problem
    tolerance: float
    epoch: int
    passes: int
    vectors: dict[int, Packed]
    """Of each model that is still trained: the sum of b_i x_i over all rows."""
    stretch: dict[int, float]
    centres: dict[int, np.ndarray]
    """Of a bias that is not regularised: its centre, and how that moves."""
    caution: dict[int, float]
    """Factor by which each part scales its own changes, from 1 to the number of parts."""


def ascend(
    part: Part, told: Ascent, state: AscentState | None, held: Held | None = None
) -> tuple[AscentState, Contribution]:
    """Some passes over a part, each row seen as if other parts did the same.

    CoCoA+: what parts change at once is added up, so each counts its own changes s times. A kernel that starts from
    a / s with the clock lambda m / s does just that: its score is <a + s (a' - a), x> / (lambda m).
    """
    opened, state = at_hand(part, held), state or AscentState()
    shares = {model: 1.0 / caution for model, caution in told.caution.items()}
    specs = tuple(
        dataclasses.replace(spec, lam=spec.lam * shares.get(model, 1.0))
        for model, spec in enumerate(told.problem.specs)
    )
    with opened.lock:
        rows = _HeldRows(opened, told.problem.bias)
        solver = SdcaSolver(dataclasses.replace(told.problem, specs=specs), rows, told.tolerance)
        solver.drop([model for model in solver.active if model not in told.vectors])
        rows.take(state)
        solver.resume(told.epoch * told.passes - 1, state.alone, state.seen)
        begun = {model: packed.unpacked() * shares[model] for model, packed in told.vectors.items()}
        for model, vector in begun.items():
            solver.a[model][:] = vector
            if model in state.models:
                solver.state[model][:] = state.models[model]
            solver.state[model][DUAL] = 0.0
            solver.state[model][CENTRES] = told.centres[model]
        met: dict[int, float] = {}
        counts = {model: np.zeros(len(_COUNTS)) for model in told.vectors}
        for number in range(told.passes):
            solver.begin_epoch()
            for model, stretch in told.stretch.items():
                solver.state[model][STRETCH] = stretch
            for window in opened.windows(told.epoch * told.passes + number):
                solver.enter(window)
                _present(solver, opened, window, 0, len(window.order))
                solver.leave(window)
            if not number:  # later passes meet what is left of the part alone
                met = {model: float(solver.state[model][GAP]) for model in told.vectors}
            solver.end_epoch()
            for model in told.vectors:
                counts[model] += solver.state[model][_COUNTS]
        groups, arrays = rows.give()
        new = AscentState(groups, arrays, solver.state, tuple(sorted(solver.alone)), solver.seen)
        changed = {model: solver.a[model] - vector for model, vector in begun.items()}
        numbers = {model: np.append(solver.state[model], square(vector)) for model, vector in changed.items()}
        for model, gap in met.items():
            numbers[model][GAP] = gap
            numbers[model][_COUNTS] = counts[model]
        return new, Contribution({model: Packed.of(vector) for model, vector in changed.items()}, numbers)


def renew(part: Part, asked: tuple[Problem, list[int]], state: AscentState, held: Held | None = None) -> list[DualSums]:
    """Add up anew what the dual variables of the rows of a part come to."""
    problem, models = asked
    opened = at_hand(part, held)
    with opened.lock:
        rows = _HeldRows(opened, problem.bias)
        rows.take(state)
        solver = SdcaSolver(problem, rows, 1.0)
        return solver.dual_sums(models, opened.all_windows)


def sums_together(one: list[DualSums], other: list[DualSums]) -> list[DualSums]:
    """Return the sums of the rows of both."""
    return [mine + more for mine, more in zip(one, other, strict=True)]


OWN_SQUARES = STATE_SIZE
"""The place, after those of a state, of the squared norms of what each part has changed."""
_TOO_BOLD, _TOO_CAUTIOUS = 0.9, 0.6
_BOLDER, _MORE_CAUTIOUS = 0.8, 1.25


def next_caution(caution: float, together: float, apart: float, parts: int) -> float:
    """Return the factor by which parts scale their own changes in the next round.

    As often as there are parts is always enough, and needed only if all change the same. If the changes of this round
    have the squared norm `together`, and each part's own add up to `apart`, then together / apart would have been right
    for them. Too little makes the next round take back what was too much, so it falls slowly and rises at once.
    """
    ratio = together / apart if apart else 0.0
    if ratio > _TOO_BOLD * caution:
        return min(max(ratio, _MORE_CAUTIOUS * caution), float(parts))
    return max(_BOLDER * caution, 1.0) if ratio < _TOO_CAUTIOUS * caution else caution


def _present(solver: Solver, opened: OpenPart, window: Window, begin: int, end: int) -> None:
    step = solver.rows_at_a_time(window.block)
    for first in range(begin, end, step):
        opened.check()
        bad = solver.present(window, first, min(first + step, end))
        if bad >= 0:
            raise opened.loader.damaged(window, bad)


# --- sums over rows ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """The question for sums over the rows of each class and fold."""

    problem: Problem
    classes: int
    folds: int | None


def sum_rows(part: Part, asked: Sums, held: Held | None = None) -> RowSums:
    """The sums over the rows of a part."""
    opened = at_hand(part, held)
    with opened.lock:
        found = RowSums.of(asked.problem, asked.classes, asked.folds)
        for window in opened.all_windows():
            found.add(window)
        return found


# --- Pegasos ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descent:
    """A round of Pegasos: what all parts are told."""

    problem: Problem
    options: list[PegasosOptions]
    manner: Manner
    rows: int
    """Of all parts."""
    epoch: int
    vectors: dict[int, Packed]
    states: dict[int, np.ndarray]


SUM, LOSSES, UPDATES, ROWS, LATE_LOSSES, LATE_ROWS, MAGNITUDES = range(7)
"""The numbers of a contribution: S, losses, updates and rows of the round; those since its half; sizes of S's terms."""


def descend(part: Part, told: Descent, held: Held | None = None) -> Contribution:
    """One pass over a part, as one of several that average: see `solvers/pegasos_threads.py`."""
    opened = at_hand(part, held)
    share = part.rows / told.rows
    options = [dataclasses.replace(one, delay=one.delay * share) for one in told.options]
    with opened.lock:
        solver = PegasosSolver(told.problem, options, told.manner)
        solver.drop([model for model in solver.active if model not in told.vectors])
        for model, packed in told.vectors.items():
            member = solver.members[model]
            np.multiply(packed.unpacked(), share, out=member.a)
            member.state[:] = told.states[model]
            member.state[[S, LOSS, ERRORS, NORM2, MAGNITUDE]] = 0.0
            member.state[T] = told.states[model][T] * share
        solver.begin_epoch()
        presented, half = 0, part.rows // 2
        for window in opened.windows(told.epoch):
            rows = len(window.order)
            middle = min(max(half - presented, 0), rows)
            _present(solver, opened, window, 0, middle)
            if presented <= half < presented + rows:
                solver.mark()
            _present(solver, opened, window, middle, rows)
            presented += rows
        solver.end_epoch()
        vectors, numbers = {}, {}
        for model in told.vectors:
            member = solver.members[model]
            rows = round(member.t - member.began)
            late = (member.loss_sum - member.loss_at_mark, rows - round(member.marked))
            vectors[model] = Packed.of(member.a)
            numbers[model] = np.array(
                [member.dual_sum, member.loss_sum, member.errors, rows, *late, member.state[MAGNITUDE]]
            )
        return Contribution(vectors, numbers)


# --- objectives ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """Candidates of some models, whose objectives are wanted."""

    problem: Problem
    models: list[int]
    vectors: dict[int, Packed]
    """By their places."""
    twice: list[int]
    """Models whose scores are to be computed in twice the precision."""


def measure(part: Part, asked: Question, held: Held | None = None) -> np.ndarray:
    """The sums of losses of some candidates over a part."""
    opened = at_hand(part, held)
    with opened.lock:
        vectors = [one.unpacked() for one in asked.vectors.values()]
        measurement = Measurement(asked.problem, asked.models, vectors, asked.twice)
        for window in opened.all_windows():
            measurement.add(window, opened.loader, 1, opened.check)
        return measurement.sums


def summed(one: Any, other: Any) -> Any:
    """Two sums as one."""
    return one + other


@dataclass(frozen=True)
class HoldoutQuestion:
    """The model whose scores of holdout rows are wanted."""

    model: Model
    calibrate: bool
    """True if probabilities will be fitted to the scores."""


def score_holdout(part: Part, asked: HoldoutQuestion, held: Held | None = None) -> HoldoutScores:
    """Return statistics of the scores of the holdout rows of a part."""
    opened = at_hand(part, held)
    with opened.lock:
        found = HoldoutScores(asked.model, asked.calibrate)
        found.take(score_holdout_rows(asked.model, opened.all_windows(), opened.loader, 1))
        return found


def merged(one: HoldoutScores, other: HoldoutScores) -> HoldoutScores:
    """Return the statistics of both; neither is changed, as the sum may be repeated."""
    return one.merged(other)
