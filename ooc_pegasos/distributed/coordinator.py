"""Passes over the rows of a run on Dask workers: a round of all parts is an epoch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc_pegasos.algorithms import ALGORITHMS, ANY, SDCA, SGD
from ooc_pegasos.distributed import cluster, worker_round
from ooc_pegasos.distributed import store_parts as data
from ooc_pegasos.distributed.client_solvers import DistributedPegasos, DistributedSdca, RoundSolver
from ooc_pegasos.distributed.collections import RowsOfParts
from ooc_pegasos.distributed.store_parts import Part
from ooc_pegasos.distributed.worker_pool import WorkerPool
from ooc_pegasos.distributed.worker_round import ObjectiveRequest, PackedVector
from ooc_pegasos.errors import InputError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import RowSums
from ooc_pegasos.objective.problem import Spec
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.pegasos_group import SharedOptions
from ooc_pegasos.solvers.pegasos_threads import MIN_CLOCK
from ooc_pegasos.solvers.registry import can_take_over, choose_algorithm, options_of, refuse_of_classes
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.holdout import HoldoutRequest, HoldoutScores
from ooc_pegasos.training.report import Report
from ooc_pegasos.training.setup import GROUPED, Algorithm, RunSetup
from ooc_pegasos.training.state import Progression, RunState
from ooc_pegasos.training.stop import StopCheck
from ooc_pegasos.training.timing import EpochCost, RunCost
from ooc_pegasos.util.memory_limits import peak_rss

_MIN_ENTRIES_PER_ROUND, _MAX_PASSES = 1 << 21, 4
"""A round costs more than a pass if parts are small, so several passes are made in each round."""


@dataclass(frozen=True)
class Layout:
    """Requested number of parts, memory of each in bytes, and passes in a round. None: not requested."""

    parts: int | None = None
    memory: int | None = None
    passes: int | None = None


class Coordinator(Engine):
    """Engine for workers, each with its parts of the rows; result vectors are summed on the way to the client.

    `rows` are those of parts without a store; `scratch` is the folder for the states of rows.
    """

    most_epochs = 2000
    epochs_are = "rounds"

    def __init__(
        self,
        setup: RunSetup,
        stop: StopCheck,
        report: Report,
        client: Any,
        rows: RowsOfParts | None,
        layout: Layout,
        scratch: Path | None,
    ) -> None:
        super().__init__(setup, stop, report)
        self._client, self._scratch = client, scratch
        self._epoch = 0
        self._began, self._bytes_before = time.perf_counter(), 0
        self._parts = self._cut(rows, layout)
        self._worker_pool = WorkerPool(client, self._parts, rows, self._check, report.note)
        entries = setup.store.nonzeros // len(self._parts)
        self._passes = layout.passes or max(1, min(_MAX_PASSES, _MIN_ENTRIES_PER_ROUND // max(entries, 1)))

    def _cut(self, rows: RowsOfParts | None, layout: Layout) -> list[Part]:
        """Cut the store into parts, and share the memory of the workers among them."""
        config, store = self.setup.config, self.setup.store
        workers = cluster.workers_of(self._client)
        number = layout.parts or sum(worker.threads for worker in workers)
        bounds = data.cut_store(store, len(store.manifest.chunks) if rows else number)
        if len(bounds) < number:
            made = "collection has {} partitions with rows" if rows else "store has {} chunks"
            hint = "" if rows else "; convert with a smaller --chunk-size"
            self.report.note(f"the {made.format(len(bounds))}, so there are no more parts{hint}")
        parts_per_worker = -(-len(bounds) // len(workers))
        memory = layout.memory or cluster.memory_of_part(workers, parts_per_worker)
        remade = rows is not None and rows.max_in_memory is not None
        open_parts = 0 if remade else parts_per_worker if all(worker.own_process for worker in workers) else len(bounds)
        return data.parts_of(store, config, bounds, memory, self.setup.loader.folds.training_rows, open_parts)

    def _check(self, rows: int) -> None:
        """Display the rows that are done, and raise if the run has to stop; called while workers are at work."""
        if rows:
            self.report.presented(self._epoch, rows, self.setup.loader.training_rows)
        self.stop.check()

    # --- before the first round ---------------------------------------------------------------------

    @property
    def memory(self) -> int:
        """See `Engine`."""
        return self._parts[0].memory

    @property
    def requested_memory(self) -> None:
        """None: the memory of a part belongs to the identity."""

    def identity(self) -> dict[str, Any]:
        """See `Engine`."""
        return {"parts": [len(self._parts), self.memory, self._passes]}

    def choose_algorithm(self) -> Algorithm:
        """See `Engine`."""
        config, problem, start = self.setup.config, self.setup.problem, self.setup.start
        chosen = Algorithm(*choose_algorithm(config, problem, start is not None))
        least, other = min(spec.clock for spec in problem.specs), ALGORITHMS[chosen.name].fallback
        if not other or config.algorithm != ANY or least / len(self._parts) >= MIN_CLOCK:
            return chosen
        if not can_take_over(other, config, problem, start is not None):
            return chosen
        return Algorithm(
            other, f"lambda times rows is {least:.3g}, too little for averages of {len(self._parts)} parts"
        )

    def memory_problem(self) -> str | None:
        """See `Engine`."""
        return cluster.memory_problem(self._client, self._parts, self.setup.store, len(self.setup.problem.specs))

    def new_solver(self, algorithm: str) -> Solver:
        """See `Engine`."""
        refuse_of_classes(self.setup.config, algorithm, self.setup.problem)
        return SOLVERS[algorithm](self)

    def new_descent(self) -> Solver:
        """Return a solver whose rounds are averages."""
        setup, problem = self.setup, self.setup.problem
        options = options_of(setup.config, SGD, problem, setup.start)
        options = [dataclasses.replace(one, average=False) for one in options]  # the iterates are on the workers
        return DistributedPegasos(problem, options, SharedOptions(SGD, certified=True), setup.start, self._worker_pool)

    def new_ascent(self) -> Solver:
        """Return a solver whose rounds add up changes."""
        setup, store = self.setup, self.setup.store
        if problem := self.memory_problem():
            advice = "give more workers or memory, fewer lambdas at once, or {algorithm=sgd-s}"
            raise InputError(f"{problem}; {advice}")
        states = RowStates(store, setup.problem.bias, True, None)
        solver = DistributedSdca(setup.problem, states, setup.config.enough, self._worker_pool, self._passes)
        chunks = store.manifest.chunks
        rows = [sum(chunk.rows for chunk in chunks[part.first : part.end]) for part in self._parts]
        solver.set_scratch(self._scratch, rows)
        return solver

    def new_progression(self, spec: Spec, algorithm: str) -> Progression:
        """See `Engine`."""
        return Progression()

    def remarks(self) -> list[str]:
        """See `Engine`."""
        manifest = self.setup.store.manifest
        if manifest.shuffle_seed is not None or manifest.grouping_by_label() <= GROUPED:
            return []
        problem = f"the rows of {self.setup.store.path} are grouped by label, so parts have few labels each"
        return [f"{problem}, which slows the training; put them in random order first"]

    # --- passes -------------------------------------------------------------------------------------

    def train_pass(self, state: RunState, limit: int, save_if_due: Callable[[], None]) -> None:
        """See `Engine`."""
        self.stop.check()
        cursor, solver = state.cursor, state.solver
        assert isinstance(solver, RoundSolver)
        self._epoch = cursor.epoch
        self._began, self._bytes_before = time.perf_counter(), self._worker_pool.bytes_moved
        if solver.needs_balance:
            self.set_balance(solver)
        if not cursor.presented:
            solver.round(cursor.epoch)
            cursor.presented = self.setup.loader.training_rows

    @property
    def is_measuring_cheap(self) -> bool:
        """See `Engine`."""
        return True

    def measure(self, measurement: Measurement) -> None:
        """See `Engine`."""
        vectors = {number: PackedVector.of(vector) for number, vector in enumerate(measurement.candidates)}
        request = ObjectiveRequest(self.setup.problem, measurement.models, vectors, measurement.compensated)
        measurement.sums = self._sum("measure", worker_round.measure, request, worker_round.add)

    def all_windows(self) -> Generator[Window, None, None]:
        """See `Engine`; the rows are on the workers."""
        yield from ()

    def sum_rows(self) -> RowSums:
        """See `Engine`."""
        setup = self.setup
        classes = len(setup.store.manifest.labels.classes)
        request = worker_round.RowSumsRequest(setup.problem, classes, setup.config.folds)
        found: RowSums = self._sum("sum-rows", worker_round.sum_rows, request, worker_round.add)
        return found

    def score_holdout(self, request: HoldoutRequest) -> list[HoldoutScores]:
        """See `Engine`."""
        found: list[HoldoutScores] = self._sum(
            "score-holdout", worker_round.score_holdout, request, worker_round.merge_holdout
        )
        return found

    def _sum(self, name: str, work: Callable[..., Any], request: Any, add: Callable[[Any, Any], Any]) -> Any:
        """Return the sum of the results of some work on all parts, which is repeated if workers are lost."""
        pool = self._worker_pool
        return pool.with_retries(lambda: pool.summed(pool.submit_all(name, work, request), add))

    # --- costs --------------------------------------------------------------------------------------

    def epoch_cost(self, number: int, costs: Sequence[EpochCost]) -> EpochCost:
        """See `Engine`."""
        seconds = time.perf_counter() - self._began
        return EpochCost(number, seconds, seconds, 0.0, 0, 0.0, peak_rss())

    def traffic(self) -> dict[str, int]:
        """See `Engine`."""
        return {"bytes_moved": self._worker_pool.bytes_moved - self._bytes_before}

    def run_cost(self, state: RunState) -> RunCost:
        """See `Engine`."""
        waiting = self._worker_pool.seconds_waiting
        return RunCost(
            seconds_computing=waiting,
            seconds_waiting=0.0,
            bytes_read=0,
            memory=self.memory,
            loading="distributed",
            windows=len(self._parts),
            presenters=len(self._parts),
            profile={
                "foreground": {
                    "waiting for the workers": waiting,
                    "adding up, judging": self.stop.seconds - waiting,
                },
                "background": {},
                "rounds": {"number": float(state.cursor.epoch), "bytes": float(self._worker_pool.bytes_moved)},
            },
        )

    def close(self) -> None:
        """Remove all that the run has left on the workers."""
        self._worker_pool.close()


SOLVERS: dict[str, Callable[[Coordinator], Solver]] = {SDCA: Coordinator.new_ascent, SGD: Coordinator.new_descent}
"""The algorithms that workers run."""
