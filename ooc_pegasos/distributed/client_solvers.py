"""The side of the client: solvers whose epoch is a round of all parts. They hold vectors, and workers hold rows."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, S, T, square
from ooc_pegasos.compiled.fit.sdca import CHANGED, DUAL, GAP, OFF, RENEWED, STRETCH, VISITED
from ooc_pegasos.compiled.fit.sdca import MAGNITUDE as DUAL_MAGNITUDE
from ooc_pegasos.distributed import partition_state, worker_round
from ooc_pegasos.distributed.worker_pool import Crew
from ooc_pegasos.distributed.worker_round import (
    CENTRES,
    LATE_LOSSES,
    LATE_ROWS,
    LOSSES,
    MAGNITUDES,
    OWN_SQUARES,
    ROWS,
    SUM,
    UPDATES,
    Ascent,
    AscentState,
    Contribution,
    Descent,
    Packed,
    next_caution,
)
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.base import ONCE, Solver
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.dual_sums import DualSums
from ooc_pegasos.solvers.pegasos import PegasosOptions
from ooc_pegasos.solvers.pegasos_group import Manner, PegasosSolver
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint, take, whole
from ooc_pegasos.util.files import writing_errors

MOST_WAITING_BYTES = 1 << 28
"""Bytes of rounds that the scheduler keeps, so that it can have them done again, before they are forgotten."""
_BYTES_A_TASK = 4000
_SECONDS_TO_LOSE, _SHARE_OF_KEEPING = 60.0, 20
"""Of rounds that may have to be done again, if fetching what is known of rows takes no more than a 20th of that."""


class Rounds(Solver):
    """A solver whose epoch is a round of all parts."""

    @abstractmethod
    def round(self, epoch: int) -> None:
        """Have all parts present their rows, and take in what they have found. If it raises, nothing has changed."""

    def present(self, window: Window, begin: int, end: int) -> int:
        """Nobody asks: rows are elsewhere."""
        raise NotImplementedError("rows are presented by workers")

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""


class RoundsOfAscent(Rounds, SdcaSolver):
    """CoCoA+: dual coordinate ascent in each part, and the changes of all parts added up.

    How cautious parts have to be, as others change what they change, is seen from round to round: `next_caution`.
    What a part knows of its rows stays where it is. Each is made of the one before, so workers can make it again; now
    and then all of it is fetched to a file and begun from anew, or the scheduler would remember all rounds for ever.
    """

    def __init__(self, problem: Problem, rows: RowStates, tolerance: float, crew: Crew, passes: int) -> None:
        super().__init__(problem, rows, tolerance)
        self._crew, self._passes = crew, passes
        self._rows_of_parts: list[int] = []
        self._states: list[Any] = [None] * len(crew.parts)
        self.caution = {model: np.full(1, float(len(crew.parts))) for model in self.active}
        self._since: list[Ascent] = []
        """The rounds since all was fetched, which are done again if what is known of rows is lost."""
        self._waiting = 0
        self._fetched = time.monotonic()
        self._cost = 0.0
        self._kept: tuple[Path, dict[str, Any]] | None = None
        self._folder: Path | None = None
        self._scratch: Path | None = None

    def keep_in(self, scratch: Path | None, rows_of_parts: list[int]) -> None:
        """Set the folder for the state of rows; None: the folder for temporary files."""
        self._scratch, self._rows_of_parts = scratch, rows_of_parts

    def begin_epoch(self, repeats: Mapping[int, int] = ONCE) -> None:
        """See `Solver`."""
        self._set_epoch(self._epoch + 1)
        for model in self.active:
            self._approach(model)
            self.state[model][[GAP, VISITED, CHANGED, OFF, DUAL_MAGNITUDE, RENEWED]] = 0.0

    def end_epoch(self) -> None:
        """See `Solver`."""

    # --- rounds -----------------------------------------------------------------------------------

    def round(self, epoch: int) -> None:
        """See `Rounds`."""
        if self._is_time_to_fetch():
            self._fetch_to_scratch()
        stretch = {model: float(self.state[model][STRETCH]) for model in self.active}
        vectors = {model: Packed.of(self.a[model].copy()) for model in self.active}  # it may be asked for again later
        caution = {model: float(self.caution[model][0]) for model in self.active}
        centres = {model: self.state[model][CENTRES] for model in self.active}
        told = Ascent(self.problem, self.tolerance, self._epoch, self._passes, vectors, stretch, centres, caution)

        def work() -> tuple[list[Any], Contribution]:
            self._crew.check_kept()
            pairs = self._ascend(told)
            states = self._states_in(pairs)
            changes = [self._crew.submit("change", _second, pair) for pair in pairs]
            found: Contribution = self._crew.summed(changes, worker_round.added)
            self._crew.wait(states)
            return states, found

        states, found = self._crew.insistently(work, self._again)
        self._keep(states)
        for model in self.active:
            change, numbers = found.vectors[model], found.numbers[model]
            change.add_to(self.a[model])
            for place in (DUAL, GAP, VISITED, CHANGED, OFF, DUAL_MAGNITUDE):
                self.state[model][place] += numbers[place]
            together, apart = square(change.numbers), float(numbers[OWN_SQUARES])
            self.caution[model][:] = next_caution(caution[model], together, apart, len(self._states))
        self._since.append(told)
        told_bytes = sum(packed.bytes for packed in vectors.values()) * self._crew.copies_of(told)
        self._waiting += told_bytes + _BYTES_A_TASK * len(self._states)

    def _ascend(self, told: Ascent) -> list[Any]:
        return self._crew.everywhere("dual-ascent", worker_round.ascend, told, self._states)

    def _states_in(self, pairs: list[Any]) -> list[Any]:
        return [self._crew.submit("known-of-rows", _first, pair) for pair in pairs]

    def _again(self) -> None:
        """Begin where all was last fetched, and do the rounds since."""
        self._keep([None] * len(self._states))
        if self._kept:
            self._place(*self._kept)
        for told in self._since:
            self._keep(self._states_in(self._ascend(told)))
        self._crew.wait(self._crew.kept)

    def _keep(self, states: list[Any]) -> None:
        self._states = states
        self._crew.kept = [state for state in states if state is not None]

    def _sums_of_parts(self) -> int:
        return 8 * len(self._crew.parts)

    def renew(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> None:
        """See `Solver`; workers have the rows."""
        asked = (self.problem, models)

        def work() -> list[DualSums]:
            self._crew.check_kept()
            sums = self._crew.everywhere("dual-sums", worker_round.renew, asked, self._states)
            found: list[DualSums] = self._crew.summed(sums, worker_round.sums_together)
            return found

        for found in self._crew.insistently(work, self._again):
            self.take_sums(found)

    # --- what is known of rows --------------------------------------------------------------------

    def _is_time_to_fetch(self) -> bool:
        seconds = time.monotonic() - self._fetched
        return self._waiting > MOST_WAITING_BYTES or seconds > max(_SECONDS_TO_LOSE, _SHARE_OF_KEEPING * self._cost)

    def _fetch_to_scratch(self) -> None:
        with writing_errors(self._scratch or Path(tempfile.gettempdir())):
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix=partition_state.PREFIX, dir=self._scratch))
            path = partition_state.next_file(self._folder)
            self._fetch(path)
            for other in self._folder.iterdir():
                if other != path:
                    other.unlink()

    def _fetch(self, path: Path) -> dict[str, Any]:
        """Write what is known of all rows to a file, and have workers begin with that."""
        began = time.monotonic()
        told: dict[str, Any] = self._crew.insistently(
            lambda: partition_state.write(path, self._fetched_states()), self._again
        )
        self._kept, self._since, self._waiting = (path.parent, told), [], 0
        self._fetched = time.monotonic()
        self._cost = self._fetched - began
        return told

    def _fetched_states(self) -> Iterator[AscentState]:
        """One at a time; each goes back at once, as something that was made of nothing."""
        for part, future in enumerate(self._states):
            if future is not None:
                (state,) = self._crew.results([future])
                self._states[part] = self._crew.scatter(part, state)
                yield state
        self._keep(self._states)

    def _place(self, folder: Path, told: dict[str, Any]) -> None:
        if told["parts"]:
            read = partition_state.read(folder, told, self._rows_of_parts, len(self.problem.specs))
            self._keep([self._crew.scatter(part, state) for part, state in enumerate(read)])

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `Solver`."""
        folder.mkdir(parents=True, exist_ok=True)
        tables = self._tables()
        arrays = {f"{model} {name}": table[model] for name, table in tables.items() for model in self.active}
        rows = self._fetch(partition_state.next_file(folder))
        return arrays, {"active": self.active, "epoch": self._epoch, "rows": rows}

    def restore(self, folder: Path, saved: Checkpoint) -> None:
        """See `Solver`."""
        facts = saved.facts["solver"]
        self.drop([model for model in self.active if model not in facts["active"]])
        self._set_epoch(whole(facts["epoch"], -1, 2**62, "epoch"))
        for name, table in self._tables().items():
            for model in self.active:
                table[model][:] = take(saved.arrays, f"{model} {name}", table[model])
        for model in self.active:
            if not 1 <= self.caution[model][0] <= len(self._states):
                raise ValueError(f"changes counted {self.caution[model][0]} times by {len(self._states)} parts")
        self._kept = folder, facts["rows"]
        self._place(*self._kept)

    def _tables(self) -> dict[str, dict[int, Any]]:
        lines = {model: lines.numbers for model, lines in self.lines.items()}
        return {"a": self.a, "mean": self.mean, "state": self.state, "caution": self.caution, "lines": lines}

    def close(self) -> None:
        """See `Solver`."""
        super().close()
        self._keep([])
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class RoundsOfDescent(Rounds, PegasosSolver):
    """Pegasos in each part, and what all have learnt averaged exactly; see `solvers/pegasos_threads.py`."""

    def __init__(
        self,
        problem: Problem,
        options: Sequence[PegasosOptions],
        manner: Manner,
        start: np.ndarray | None,
        crew: Crew,
    ) -> None:
        super().__init__(problem, options, manner, start)
        self._crew = crew

    def round(self, epoch: int) -> None:
        """See `Rounds`."""
        members = {model: self.members[model] for model in self.active}
        vectors = {model: Packed.of(member.a.copy()) for model, member in members.items()}
        states = {model: member.state.copy() for model, member in members.items()}
        rows = sum(part.rows for part in self._crew.parts)
        told = Descent(self.problem, self.all_options, rows, epoch, vectors, states)

        def work() -> Contribution:
            found: Contribution = self._crew.summed(
                self._crew.everywhere("pegasos", worker_round.descend, told), worker_round.added
            )
            return found

        found = self._crew.insistently(work)
        for model, member in members.items():
            numbers = found.numbers[model]
            member.a[:] = 0.0
            found.vectors[model].add_to(member.a)
            member.state[S] += numbers[SUM]
            member.state[LOSS] += numbers[LOSSES]
            member.state[ERRORS] += numbers[UPDATES]
            member.state[T] += numbers[ROWS]
            member.state[MAGNITUDE] += numbers[MAGNITUDES]
            member.marked = numbers[ROWS] - numbers[LATE_ROWS]
            member.loss_at_mark = numbers[LOSSES] - numbers[LATE_LOSSES]

    def _rounding_errors(self, model: int) -> tuple[float, float]:
        parts = len(self._crew.parts)
        return self.members[model].rounding_errors(parts, 1)


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _second(pair: tuple[Any, Any]) -> Any:
    return pair[1]
