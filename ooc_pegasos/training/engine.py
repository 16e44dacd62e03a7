"""Interface between a run and the machine or machines that process its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar

from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.exact_pass import Measurement
from ooc_pegasos.objective.free_bias import Balance, RowSums
from ooc_pegasos.objective.problem import Spec
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.training.holdout import HoldoutRequest, HoldoutScores
from ooc_pegasos.training.report import Report
from ooc_pegasos.training.setup import Algorithm, RunSetup
from ooc_pegasos.training.state import Progression, RunState
from ooc_pegasos.training.stop import StopCheck
from ooc_pegasos.training.timing import EpochCost, RunCost
from ooc_pegasos.util.stopwatch import Stopwatch


class Engine(ABC):
    """Passes over the rows of a run. The run decides which passes are made, and judges their results.

    Passes call `stop.check` regularly. If it raises, the state of the run can be saved.
    """

    most_epochs: ClassVar[int]
    """Upper bound of the default limit of epochs, which the algorithm declares."""
    epochs_are: ClassVar[str] = "epochs"
    """The name of an epoch in notes."""

    def __init__(self, setup: RunSetup, stop: StopCheck, report: Report) -> None:
        self.setup, self.stop, self.report = setup, stop, report
        self.watch = Stopwatch()
        self._row_sums: RowSums | None = None

    # --- before the first pass ----------------------------------------------------------------------

    @property
    @abstractmethod
    def memory(self) -> int:
        """The budget for data, in bytes, which decides the windows and so the order of rows."""

    @property
    def requested_memory(self) -> int | None:
        """The memory that a run must have had to be resumed; None: any."""
        return self.setup.config.memory

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for a run to be resumed, in addition to options and store."""
        return {}

    @abstractmethod
    def choose_algorithm(self) -> Algorithm:
        """Return the algorithm to begin with."""

    def memory_problem(self) -> str | None:
        """Return why there is too little memory for dual coordinate ascent, or None."""
        return None

    @abstractmethod
    def new_solver(self, algorithm: str) -> Solver:
        """Return a new solver."""

    @abstractmethod
    def new_progression(self, spec: Spec, algorithm: str) -> Progression:
        """Return the progression of a model before its first epoch."""

    @abstractmethod
    def remarks(self) -> list[str]:
        """Return notes on data and options, to be displayed before the first epoch."""

    # --- passes -------------------------------------------------------------------------------------

    @abstractmethod
    def train_pass(self, state: RunState, limit: int, save_if_due: Callable[[], None]) -> None:
        """Process the rows that are left of the epoch at the cursor; `limit` epochs are made at most.

        `save_if_due` may be called between slices of rows.
        """

    @property
    @abstractmethod
    def is_measuring_cheap(self) -> bool:
        """True if a pass to measure objectives is cheap, and need not be combined with the next epoch."""

    @abstractmethod
    def measure(self, measurement: Measurement) -> None:
        """Sum the losses of some candidates over all rows."""

    @abstractmethod
    def all_windows(self) -> Generator[Window, None, None]:
        """Yield all rows on this machine in order."""

    @abstractmethod
    def sum_rows(self) -> RowSums:
        """Return sums of the rows of each class and fold."""

    def set_balance(self, solver: Solver) -> None:
        """Set the sums over rows that an unregularized bias needs."""
        if self._row_sums is None:
            self._row_sums = self.sum_rows()
        solver.balance = Balance(self.setup.problem, self._row_sums)
        solver.init_centres()

    @abstractmethod
    def score_holdout(self, request: HoldoutRequest) -> list[HoldoutScores]:
        """Return statistics of the scores of the holdout rows, for each model of the request."""

    def check_unchanged(self) -> None:  # noqa: B027
        """Raise if files of the store have changed since they were read."""

    # --- costs --------------------------------------------------------------------------------------

    @abstractmethod
    def epoch_cost(self, number: int, costs: Sequence[EpochCost]) -> EpochCost:
        """Return the costs of the epoch that ends now; `costs` are those of the epochs before."""

    def traffic(self) -> dict[str, int]:
        """Return further numbers for the log of the epoch that ends now."""
        return {}

    @abstractmethod
    def run_cost(self, state: RunState) -> RunCost:
        """Return the costs of the finished run."""

    # --- the end ------------------------------------------------------------------------------------

    def end_training(self) -> None:  # noqa: B027
        """Stop reading ahead after the last `train_pass`."""
