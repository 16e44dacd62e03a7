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
from ooc_pegasos.distributed.client_solvers import Rounds, RoundsOfAscent, RoundsOfDescent
from ooc_pegasos.distributed.collections import RowsOfParts
from ooc_pegasos.distributed.store_parts import Part
from ooc_pegasos.distributed.worker_pool import Crew
from ooc_pegasos.distributed.worker_round import HoldoutQuestion, Packed, Question
from ooc_pegasos.errors import InputError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import RowSums
from ooc_pegasos.objective.problem import Spec
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.dual_store import RowStates
from ooc_pegasos.solvers.pegasos_group import Manner
from ooc_pegasos.solvers.pegasos_threads import LEAST
from ooc_pegasos.solvers.registry import can_take_over, choose_algorithm, options_of, refuse_of_classes
from ooc_pegasos.training.engine import Engine
from ooc_pegasos.training.report import Report
from ooc_pegasos.training.result import HoldoutScores
from ooc_pegasos.training.setup import GROUPED, Algorithm, Setting
from ooc_pegasos.training.state import Progression, RunState
from ooc_pegasos.training.stop import StopCheck
from ooc_pegasos.training.timing import EpochCost, RunCost
from ooc_pegasos.util.memory_limits import peak_rss

_ENTRIES_A_ROUND, _MOST_PASSES = 1 << 21, 4
"""A round costs more than a pass if parts are small, so several passes are made in each round."""


@dataclass(frozen=True)
class Layout:
    """Requested number of parts, memory of each in bytes, and passes in a round. None: not requested."""

    parts: int | None = None
    memory: int | None = None
    passes: int | None = None


class Coordinator(Engine):
    """Passes by workers, each over its parts of the rows; vectors are added on the way to the client.

    `rows` are those of the parts, if they are in no store; `scratch` is the folder for the state of rows.
    """

    most_epochs = 2000
    epochs_are = "rounds"

    def __init__(
        self,
        setting: Setting,
        stop: StopCheck,
        report: Report,
        client: Any,
        rows: RowsOfParts | None,
        layout: Layout,
        scratch: Path | None,
    ) -> None:
        super().__init__(setting, stop, report)
        self._client, self._scratch = client, scratch
        self._epoch = 0
        self._began, self._moved_before = time.perf_counter(), 0
        self._parts = self._cut(rows, layout)
        self._crew = Crew(client, self._parts, rows, self._check, report.note)
        entries = setting.store.nonzeros // len(self._parts)
        self._passes = layout.passes or max(1, min(_MOST_PASSES, _ENTRIES_A_ROUND // max(entries, 1)))

    def _cut(self, rows: RowsOfParts | None, layout: Layout) -> list[Part]:
        """Cut the store into parts, and share the memory of the workers among them."""
        config, store = self.setting.config, self.setting.store
        workers = cluster.workers_of(self._client)
        number = layout.parts or sum(worker.threads for worker in workers)
        bounds = data.cut(store, len(store.manifest.chunks) if rows else number)
        if len(bounds) < number:
            made = "collection has {} partitions with rows" if rows else "store has {} chunks"
            hint = "" if rows else "; convert with a smaller --chunk-size"
            self.report.note(f"the {made.format(len(bounds))}, so there are no more parts{hint}")
        together = -(-len(bounds) // len(workers))
        memory = layout.memory or cluster.memory_of_parts(workers, together)
        remade = rows is not None and rows.at_a_time is not None
        open_at_once = 0 if remade else together if all(worker.alone for worker in workers) else len(bounds)
        return data.parts_of(store, config, bounds, memory, self.setting.loader.folds.to_present, open_at_once)

    def _check(self, rows: int) -> None:
        """Display the rows that are done, and raise if the run has to stop; called while workers are at work."""
        if rows:
            self.report.presented(self._epoch, rows, self.setting.loader.training_rows)
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
        config, problem, start = self.setting.config, self.setting.problem, self.setting.start
        chosen = Algorithm(*choose_algorithm(config, problem, start is not None))
        least, other = min(spec.clock for spec in problem.specs), ALGORITHMS[chosen.name].fallback
        if not other or config.algorithm != ANY or least / len(self._parts) >= LEAST:
            return chosen
        if not can_take_over(other, config, problem, start is not None):
            return chosen
        return Algorithm(
            other, f"lambda times rows is {least:.3g}, too little for averages of {len(self._parts)} parts"
        )

    def room_problem(self) -> str | None:
        """See `Engine`."""
        return cluster.room_problem(self._client, self._parts, self.setting.store, len(self.setting.problem.specs))

    def new_solver(self, algorithm: str) -> Solver:
        """See `Engine`."""
        refuse_of_classes(self.setting.config, algorithm, self.setting.problem)
        return SOLVERS[algorithm](self)

    def new_descent(self) -> Solver:
        """Return a solver whose rounds are averages."""
        setting, problem = self.setting, self.setting.problem
        options = options_of(setting.config, SGD, problem, setting.start)
        options = [dataclasses.replace(one, average=False) for one in options]  # the iterates are on the workers
        return RoundsOfDescent(problem, options, Manner(SGD, certified=True), setting.start, self._crew)

    def new_ascent(self) -> Solver:
        """Return a solver whose rounds add up changes."""
        setting, store = self.setting, self.setting.store
        if problem := self.room_problem():
            advice = "give more workers or memory, fewer lambdas at once, or {algorithm=sgd-s}"
            raise InputError(f"{problem}; {advice}")
        states = RowStates(store, setting.problem.bias, True, None)
        solver = RoundsOfAscent(setting.problem, states, setting.config.enough, self._crew, self._passes)
        chunks = store.manifest.chunks
        rows = [sum(chunk.rows for chunk in chunks[part.first : part.end]) for part in self._parts]
        solver.keep_in(self._scratch, rows)
        return solver

    def new_progression(self, spec: Spec, algorithm: str) -> Progression:
        """See `Engine`."""
        return Progression()

    def remarks(self) -> list[str]:
        """See `Engine`."""
        manifest = self.setting.store.manifest
        if manifest.shuffle_seed is not None or manifest.grouping_by_label() <= GROUPED:
            return []
        problem = f"the rows of {self.setting.store.path} stand grouped by label, so parts see few labels each"
        return [f"{problem}, which slows the training; put them in random order first"]

    # --- passes -------------------------------------------------------------------------------------

    def train_pass(self, state: RunState, limit: int, save_if_due: Callable[[], None]) -> None:
        """See `Engine`."""
        self.stop.check()
        cursor, solver = state.cursor, state.solver
        assert isinstance(solver, Rounds)
        self._epoch = cursor.epoch
        self._began, self._moved_before = time.perf_counter(), self._crew.bytes_moved
        if solver.wants_balance:
            self.find_balance(solver)
        if not cursor.presented:
            solver.round(cursor.epoch)
            cursor.presented = self.setting.loader.training_rows

    @property
    def is_measuring_cheap(self) -> bool:
        """See `Engine`."""
        return True

    def measure(self, measurement: Measurement) -> None:
        """See `Engine`."""
        vectors = {number: Packed.of(vector) for number, vector in enumerate(measurement.candidates)}
        asked = Question(self.setting.problem, measurement.models, vectors, measurement.twice)
        measurement.sums = self._sum("measure", worker_round.measure, asked, worker_round.summed)

    def all_windows(self) -> Generator[Window, None, None]:
        """See `Engine`; the rows are on the workers."""
        yield from ()

    def sum_rows(self) -> RowSums:
        """See `Engine`."""
        setting = self.setting
        classes = len(setting.store.manifest.labels.classes)
        asked = worker_round.Sums(setting.problem, classes, setting.config.folds)
        found: RowSums = self._sum("sum-rows", worker_round.sum_rows, asked, worker_round.summed)
        return found

    def score_holdout(self, model: Model) -> HoldoutScores:
        """See `Engine`."""
        asked = HoldoutQuestion(model, self.setting.config.calibrate is not None)
        found: HoldoutScores = self._sum("score-holdout", worker_round.score_holdout, asked, worker_round.merged)
        return found

    def _sum(self, name: str, work: Callable[..., Any], asked: Any, add: Callable[[Any, Any], Any]) -> Any:
        """Return the sum of the results of some work on all parts, which is repeated if workers are lost."""
        crew = self._crew
        return crew.insistently(lambda: crew.summed(crew.everywhere(name, work, asked), add))

    # --- costs --------------------------------------------------------------------------------------

    def epoch_cost(self, number: int, costs: Sequence[EpochCost]) -> EpochCost:
        """See `Engine`."""
        seconds = time.perf_counter() - self._began
        return EpochCost(number, seconds, seconds, 0.0, 0, 0.0, peak_rss())

    def traffic(self) -> dict[str, int]:
        """See `Engine`."""
        return {"bytes_moved": self._crew.bytes_moved - self._moved_before}

    def run_cost(self, state: RunState) -> RunCost:
        """See `Engine`."""
        waiting = self._crew.seconds_waiting
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
                "rounds": {"number": float(state.cursor.epoch), "bytes": float(self._crew.bytes_moved)},
            },
        )

    def close(self) -> None:
        """Remove all that the run has left on the workers."""
        self._crew.close()


SOLVERS: dict[str, Callable[[Coordinator], Solver]] = {SDCA: Coordinator.new_ascent, SGD: Coordinator.new_descent}
"""The algorithms that workers run."""
