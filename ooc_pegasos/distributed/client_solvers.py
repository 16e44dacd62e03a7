"""Solvers on the client whose epoch is a round of all parts: the client has the vectors, workers the rows."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import ERRORS, LOSS, MAGNITUDE, S, T, square
from ooc_pegasos.compiled.fit.sdca import CHANGED, DEVIATION, DUAL, GAP, LAMBDA_FACTOR, RECOMPUTED, VISITED
from ooc_pegasos.compiled.fit.sdca import MAGNITUDE as DUAL_MAGNITUDE
from ooc_pegasos.distributed import partition_state, worker_round
from ooc_pegasos.distributed.worker_pool import WorkerPool
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
    PackedVector,
    PegasosRequest,
    RoundResult,
    SdcaRequest,
    SdcaState,
    next_sigma,
)
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.base import NO_REPEATS, Solver
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.dual_sums import DualSums
from ooc_pegasos.solvers.pegasos import PegasosOptions
from ooc_pegasos.solvers.pegasos_group import PegasosSolver, SharedOptions
from ooc_pegasos.solvers.sdca import SdcaSolver
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.checkpoint import Checkpoint, take, whole
from ooc_pegasos.util.files import writing_errors

MAX_PENDING_BYTES = 1 << 28
"""Bytes of messages that the scheduler keeps to replay rounds; then states are fetched, and messages released."""
_BYTES_PER_TASK = 4000
_MIN_FETCH_INTERVAL, _FETCH_COST_FACTOR = 60.0, 20
"""States are fetched at most once in this many seconds, and in 20 times the duration of a fetch."""


class RoundSolver(Solver):
    """A solver whose epoch is a round of all parts."""

    @abstractmethod
    def round(self, epoch: int) -> None:
        """Process the rows of all parts and add up the results. If an error is raised, nothing has changed."""

    def process(self, window: Window, begin: int, end: int) -> int:
        """Never called: the rows are on the workers."""
        raise NotImplementedError("workers process the rows")

    def warm_up(self, nothing: CsrBlock) -> None:
        """See `Solver`."""


class DistributedSdca(RoundSolver, SdcaSolver):
    """CoCoA+: dual coordinate ascent in each part; the changes of all parts are added.

    The subproblem parameter sigma' of CoCoA+ is adapted from round to round, see `next_sigma`. The states of rows stay
    on the workers. Each is the result of the one before, so Dask can recompute a lost state; regularly all states are
    fetched to a file and restart from there, since the scheduler would otherwise keep the messages of all rounds.
    """

    def __init__(self, problem: Problem, rows: RowStates, tolerance: float, pool: WorkerPool, passes: int) -> None:
        super().__init__(problem, rows, tolerance)
        self._worker_pool, self._passes = pool, passes
        self._rows_of_parts: list[int] = []
        self._states: list[Any] = [None] * len(pool.parts)
        self.sigma = {model: np.full(1, float(len(pool.parts))) for model in self.active}
        self._rounds_since_fetch: list[SdcaRequest] = []
        """The rounds since states were fetched, which are replayed if states are lost."""
        self._pending_bytes = 0
        self._fetched_at = time.monotonic()
        self._fetch_seconds = 0.0
        self._saved_states: tuple[Path, dict[str, Any]] | None = None
        self._folder: Path | None = None
        self._scratch: Path | None = None

    def set_scratch(self, scratch: Path | None, rows_of_parts: list[int]) -> None:
        """Set the folder for the state of rows; None: the folder for temporary files."""
        self._scratch, self._rows_of_parts = scratch, rows_of_parts

    def begin_epoch(self, repeats: Mapping[int, int] = NO_REPEATS) -> None:
        """See `Solver`."""
        self._set_epoch(self._epoch + 1)
        for model in self.active:
            self._continue_lambda(model)
            self.state[model][[GAP, VISITED, CHANGED, DEVIATION, DUAL_MAGNITUDE, RECOMPUTED]] = 0.0

    def end_epoch(self) -> None:
        """See `Solver`."""

    # --- rounds -----------------------------------------------------------------------------------

    def round(self, epoch: int) -> None:
        """See `RoundSolver`."""
        if self._is_time_to_fetch():
            self._fetch_to_scratch()
        stretch = {model: float(self.state[model][LAMBDA_FACTOR]) for model in self.active}
        vectors = {model: PackedVector.of(self.a[model].copy()) for model in self.active}  # a round may be replayed
        sigma = {model: float(self.sigma[model][0]) for model in self.active}
        centres = {model: self.state[model][CENTRES] for model in self.active}
        request = SdcaRequest(self.problem, self.tolerance, self._epoch, self._passes, vectors, stretch, centres, sigma)

        def work() -> tuple[list[Any], RoundResult]:
            self._worker_pool.check_states()
            pairs = self._submit_round(request)
            states = self._states_of(pairs)
            changes = [self._worker_pool.submit("change", _second_of, pair) for pair in pairs]
            found: RoundResult = self._worker_pool.summed(changes, worker_round.add)
            self._worker_pool.wait(states)
            return states, found

        states, found = self._worker_pool.with_retries(work, self._replay_rounds)
        self._set_states(states)
        for model in self.active:
            change, numbers = found.vectors[model], found.numbers[model]
            change.add_to(self.a[model])
            for index in (DUAL, GAP, VISITED, CHANGED, DEVIATION, DUAL_MAGNITUDE):
                self.state[model][index] += numbers[index]
            combined, separate = square(change.numbers), float(numbers[OWN_SQUARES])
            self.sigma[model][:] = next_sigma(sigma[model], combined, separate, len(self._states))
        self._rounds_since_fetch.append(request)
        request_bytes = sum(packed.bytes for packed in vectors.values()) * self._worker_pool.scheduler_copies(request)
        self._pending_bytes += request_bytes + _BYTES_PER_TASK * len(self._states)

    def _submit_round(self, request: SdcaRequest) -> list[Any]:
        return self._worker_pool.submit_all("sdca-round", worker_round.run_sdca, request, self._states)

    def _states_of(self, pairs: list[Any]) -> list[Any]:
        return [self._worker_pool.submit("row-states", _first_of, pair) for pair in pairs]

    def _replay_rounds(self) -> None:
        """Restore the last states fetched, and replay the rounds since."""
        self._set_states([None] * len(self._states))
        if self._saved_states:
            self._scatter_states(*self._saved_states)
        for request in self._rounds_since_fetch:
            self._set_states(self._states_of(self._submit_round(request)))
        self._worker_pool.wait(self._worker_pool.row_states)

    def _set_states(self, states: list[Any]) -> None:
        self._states = states
        self._worker_pool.row_states = [state for state in states if state is not None]

    def _sums_of_parts(self) -> int:
        return 8 * len(self._worker_pool.parts)

    def recompute_sums(self, models: list[int], windows: Callable[[], Iterator[Window]]) -> None:
        """See `Solver`; workers have the rows."""
        request = (self.problem, models)

        def work() -> list[DualSums]:
            self._worker_pool.check_states()
            sums = self._worker_pool.submit_all("dual-sums", worker_round.recompute_dual_sums, request, self._states)
            found: list[DualSums] = self._worker_pool.summed(sums, worker_round.add_dual_sums)
            return found

        for found in self._worker_pool.with_retries(work, self._replay_rounds):
            self.set_sums(found)

    # --- states of rows --------------------------------------------------------------------

    def _is_time_to_fetch(self) -> bool:
        seconds = time.monotonic() - self._fetched_at
        return self._pending_bytes > MAX_PENDING_BYTES or seconds > max(
            _MIN_FETCH_INTERVAL, _FETCH_COST_FACTOR * self._fetch_seconds
        )

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
        """Write the states of all rows to a file, and have workers continue from these."""
        began = time.monotonic()
        request: dict[str, Any] = self._worker_pool.with_retries(
            lambda: partition_state.write(path, self._fetched_states()), self._replay_rounds
        )
        self._saved_states, self._rounds_since_fetch, self._pending_bytes = (path.parent, request), [], 0
        self._fetched_at = time.monotonic()
        self._fetch_seconds = self._fetched_at - began
        return request

    def _fetched_states(self) -> Iterator[SdcaState]:
        """Yield the state of each part, one at a time; each is sent back at once as a future without dependencies."""
        for part, future in enumerate(self._states):
            if future is not None:
                (state,) = self._worker_pool.results([future])
                self._states[part] = self._worker_pool.scatter(part, state)
                yield state
        self._set_states(self._states)

    def _scatter_states(self, folder: Path, request: dict[str, Any]) -> None:
        if request["parts"]:
            read = partition_state.read(folder, request, self._rows_of_parts, len(self.problem.specs))
            self._set_states([self._worker_pool.scatter(part, state) for part, state in enumerate(read)])

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
            if not 1 <= self.sigma[model][0] <= len(self._states):
                raise ValueError(f"a sigma of {self.sigma[model][0]} with {len(self._states)} parts")
        self._saved_states = folder, facts["rows"]
        self._scatter_states(*self._saved_states)

    def _tables(self) -> dict[str, dict[int, Any]]:
        lines = {model: lines.numbers for model, lines in self.lines.items()}
        return {"a": self.a, "mean": self.mean, "state": self.state, "caution": self.sigma, "lines": lines}

    def close(self) -> None:
        """See `Solver`."""
        super().close()
        self._set_states([])
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class DistributedPegasos(RoundSolver, PegasosSolver):
    """Pegasos in each part; the results are averaged exactly, see `solvers/pegasos_threads.py`."""

    def __init__(
        self,
        problem: Problem,
        options: Sequence[PegasosOptions],
        manner: SharedOptions,
        start: np.ndarray | None,
        pool: WorkerPool,
    ) -> None:
        super().__init__(problem, options, manner, start)
        self._worker_pool = pool

    def round(self, epoch: int) -> None:
        """See `RoundSolver`."""
        members = {model: self.members[model] for model in self.active}
        vectors = {model: PackedVector.of(member.a.copy()) for model, member in members.items()}
        states = {model: member.state.copy() for model, member in members.items()}
        rows = sum(part.rows for part in self._worker_pool.parts)
        shared = dataclasses.replace(self.shared, certified=False)
        request = PegasosRequest(self.problem, self.all_options, shared, rows, epoch, vectors, states)

        def work() -> RoundResult:
            found: RoundResult = self._worker_pool.summed(
                self._worker_pool.submit_all("descent", worker_round.run_pegasos, request), worker_round.add
            )
            return found

        found = self._worker_pool.with_retries(work)
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
        parts = len(self._worker_pool.parts)
        return self.members[model].rounding_errors(parts, 1)


def _first_of(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _second_of(pair: tuple[Any, Any]) -> Any:
    return pair[1]
