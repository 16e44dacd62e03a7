"""The search for the best lambda: rounds of models compared on holdout rows, and a last fit on all rows."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ooc_pegasos.algorithms import ALGORITHMS, ANY
from ooc_pegasos.config import HOLDOUT, TrainConfig
from ooc_pegasos.errors import CheckpointMismatchError
from ooc_pegasos.objective.lambda_path import Range, Trial, choose, further_lambdas, lambdas_near, remark_on
from ooc_pegasos.reporting.history import HoldoutResult
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.scoring.calibration import Calibration
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.registry import OF_PLAIN_MODELS
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.default_loss import (
    CONSTANT_NOTE,
    HARD,
    NEARLY_CONSTANT,
    RANKING_NOTE,
    ROBUST_NOTE,
    errors_of,
    ranking_loss,
    robust_loss,
    share_of_constant,
)
from ooc_pegasos.training.holdout import check_criterion
from ooc_pegasos.training.report import open_log
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.training.state import ROUNDS, check_same_run, essential, identity_of
from ooc_pegasos.training.trained_model import TrainedModel
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.checkpoint import FILE_NAME, Checkpoint, sound, whole
from ooc_pegasos.util.files import writing_errors

COMPARED = 0.01
"""Tolerance of models that are only compared: the differences between lambdas are larger."""
FOLDS = 5
_FOLDS_TO, _ROWS_PER_FEATURE = 10_000, 10
"""The most rows, and the fewest rows a feature, with which lambdas are compared by cross-validation by default."""
_ENOUGH_ROWS, _MOST_HOLDOUT = 10_000, 1 / 3
"""Holdout rows for which the fraction is increased, and the largest fraction."""
_SHARE_OF_TIME = 0.5
"""Share of `max_seconds` after which no more lambdas are tried."""
_PROBABILITIES, _LAST = "probabilities", "last"


def with_test_rows(config: TrainConfig, store: Store) -> TrainConfig:
    """Return the options of a search with the default rows for the comparison: of few rows, more.

    A tenth of few rows is too small to distinguish lambdas. Of very few rows all are used, by cross-validation, unless
    there are so many features that a pass for several models takes much longer than for one.
    """
    rows = store.rows
    if not config.is_search or config.holdout is not None or config.folds is not None:
        return config
    by_loss_or_error = config.select_by in (None, "loss") and config.calibrate is None
    if (
        by_loss_or_error
        and _can_have_folds(config)
        and FOLDS * 20 <= rows <= _FOLDS_TO
        and store.features * _ROWS_PER_FEATURE <= rows
    ):
        return dataclasses.replace(config, folds=FOLDS)
    return dataclasses.replace(config, holdout=min(max(HOLDOUT, _ENOUGH_ROWS / max(rows, 1)), _MOST_HOLDOUT))


def _can_have_folds(config: TrainConfig) -> bool:
    """True if several models with different rows can have the options."""
    is_known = config.algorithm == ANY or "several models" in ALGORITHMS[config.algorithm].supports
    return is_known and not any(name in OF_PLAIN_MODELS for name in config.demands)


class EpochLog:
    """The log of all rounds, opened when the first of them begins."""

    def __init__(self, path: Path | None, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._file: IO[bytes] | None = None

    def opened(self, lines: int) -> Any:
        """Return the file, after its first `lines` if it is opened now; None without a log."""
        if self._path and self._file is None:
            with writing_errors(self._path):
                self._file = self._stack.enter_context(open_log(self._path, lines))
        return self._file


@dataclass(frozen=True)
class Round:
    """A run of the search, to be made: its options, and the place of its checkpoint."""

    config: TrainConfig
    number: int
    lines_before: int
    """Lines of the log before this round."""
    checkpoint_folder: Path | None
    resume: bool
    is_last: bool = False
    """True for the last fit, on all rows."""
    sample: Store | None = None
    """The rows to train on; None: all."""
    complete: Callable[[Model], Model] | None = None
    """Adds the results of the search to the model of the last fit."""

    @property
    def is_first(self) -> bool:
        """True for the first round, and for a run without a search."""
        return self.number <= 1

    @property
    def ends_hopeless(self) -> bool:
        """True if models are ended early that cannot be the best."""
        return not self.is_last

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume, if there is one."""
        return Checkpoint.load(self.checkpoint_folder) if self.resume and self.checkpoint_folder else None


@dataclass(frozen=True)
class RoundResult:
    """The result of a round, the number of its lines in the log, and what identifies the machines of the run."""

    result: TrainResult
    lines: int
    identity: dict[str, Any]
    is_search: bool = False
    """True if the run itself looked for the best lambda, so that no other round is needed."""


@dataclass
class _Found:
    """The results of the rounds so far: all that the checkpoint of a search contains."""

    trials: list[Trial] = field(default_factory=list)
    models: list[TrainedModel] = field(default_factory=list)
    rounds: int = 0
    lines: int = 0
    start: float | None = None
    """The lambda near which the search begins, by a sample."""
    path: list[float] = field(default_factory=list)
    """The lambdas of the first round."""
    is_complete: bool = False
    """True if no other round is needed."""
    loss: str | None = None
    """The loss of the rounds, if it is not that of the options."""
    loss_parameter: float | None = None
    robust_parameter: float | None = None
    """The parameter of a robust loss by the errors of the last round; None: no robust loss is needed."""
    default: dict[str, Any] | None = None
    """The results with the default loss, while another one is tried."""
    shares: list[float] = field(default_factory=list)
    """The share of the variance that is not explained, with the robust loss and then with the default one."""
    has_gross_errors: bool = False
    """True if the last round, with the robust loss, shows that some targets are wrong."""
    is_settled: bool = False
    """True if the loss is chosen."""
    calibrations: list[Calibration] = field(default_factory=list)
    """Maps from scores to probabilities, if they are fitted already."""

    @property
    def last_parameter(self) -> float | None:
        """The parameter of the loss for the last fit, by the errors of a model that is already robust."""
        return self.loss_parameter and (self.robust_parameter or self.loss_parameter)

    def table(self) -> dict[str, Any]:
        """Return the results as a table for a checkpoint."""
        models = [model.table() for model in self.models]
        return {**dataclasses.asdict(dataclasses.replace(self, models=[])), "models": models}

    @classmethod
    def load(cls, table: dict[str, Any]) -> _Found:
        """Return the results that `table` wrote. Raises ValueError or TypeError."""
        loaded = typed_json.load(cls, {**table, "models": []}, "rounds")
        loaded.models += [TrainedModel.from_table(model) for model in table["models"]]
        whole(loaded.rounds, 1, 1 << 20, "rounds")
        whole(loaded.lines, 0, 1 << 62, "lines")
        if not loaded.trials and loaded.start is None:
            raise ValueError("rounds without a result")
        return loaded


class LambdaSearch:
    """A search for the best lambda. `train_round` makes a run."""

    def __init__(
        self,
        config: TrainConfig,
        store: Store,
        train_round: Callable[[Round], RoundResult],
        progress: TrainingProgress,
        checkpoint_folder: Path | None = None,
        resume: bool = False,
        has_proof: bool = False,
        is_default_loss: bool = False,
        sample: Store | None = None,
    ) -> None:
        check_criterion(config.select_by, store.manifest.labels.task)
        self._config, self._store, self._progress = config, store, progress
        self._is_default_loss = is_default_loss
        self._sample = sample  # where the search begins, if the store is larger than memory
        self._has_proof = has_proof  # of the last fit, so that no other model is returned
        self._train_round, self._folder, self._resume = train_round, checkpoint_folder, resume
        self._found = _Found()
        self._results: list[TrainResult] = []
        self._sampled: list[TrainResult] = []
        self._notes: list[str] = []
        self._memory: int | None = None
        """The memory of an interrupted run, which determines the order of rows."""
        self._began = time.perf_counter()
        self._is_begun = False
        """True if a round has begun in this process."""

    def continue_from(self, saved: Checkpoint) -> None:
        """Continue the search of a checkpoint. Raises CheckpointMismatchError."""
        assert self._folder is not None
        with sound(self._folder):
            parts = {name: value for name, value in saved.facts["identity"].items() if name == "parts"}
            expected = identity_of(self._config, self._store, None) | parts
            check_same_run(self._folder, expected, saved, self._config.memory)
            if "search" not in saved.facts:
                raise CheckpointMismatchError(
                    f"{self._folder}: the run to resume was started with other options; start over without {{resume}}"
                )
            self._found = _Found.load(saved.facts["search"])
            self._memory = whole(saved.facts["budget"], 0, 1 << 62, "budget")
        for number in range(1, self._found.rounds + 1):  # the process that wrote the checkpoint may have been killed
            shutil.rmtree(self._folder / f"{ROUNDS}{number}", ignore_errors=True)

    def execute(self) -> TrainResult:
        """Compare lambdas until the best is found, and train it on all rows."""
        self._progress.expect(self._config.steps)
        self._search()
        self._try_other_loss()
        return self._refit() if self._found.trials else self._without_refit(self._results[-1])

    def _search(self) -> None:
        self._look_at_sample()
        while not self._is_over():
            lambdas = self._next_lambdas()
            if lambdas == ():
                break
            self._begin(self._describe(lambdas))
            made = self._make(self._config_of(lambdas), self._found.rounds + 1)
            self._take(made)
            if made.result.stopped_by == "seconds":
                break

    def _look_at_sample(self) -> None:
        """Find the region of the best lambda on a sample. It takes little time, so it has no checkpoint of its own."""
        sample, found = self._sample, self._found
        if sample is None or found.path or found.start is not None:
            return
        self._begin(f"comparing lambdas on a sample of {sample.rows:,} rows")
        config, holdout = self._config_of(None), self._config.holdout
        if holdout is not None:
            config = dataclasses.replace(config, holdout=max(holdout, min(_ENOUGH_ROWS / sample.rows, _MOST_HOLDOUT)))
        made = self._train_round(Round(config, found.rounds + 1, found.lines, None, False, sample=sample))
        self._sampled.append(made.result)
        found.rounds, found.lines = found.rounds + 1, found.lines + made.lines
        trials = made.result.trials
        if trials and made.result.stopped_by != "seconds":
            found.start = trials[choose(trials, "best")].lam * sample.rows / self._store.rows
            self._save_checkpoint(made)

    def _begin(self, what: str) -> None:
        (self._progress.begin_round if self._is_begun else self._progress.begin_step)(what)
        self._is_begun = True

    def _try_other_loss(self) -> None:
        """Look for the best lambda with another loss as well if the default one may not suit the rows; keep the better.

        For two classes these are rows that no model classifies well, and for real targets errors with heavy tails.
        """
        found = self._found
        other = self._other_loss() if found.default is None and not found.is_settled and not self._is_late else None
        if other:
            loss, parameter = other
            self._found = found = _Found(
                rounds=found.rounds, lines=found.lines, loss=loss, loss_parameter=parameter, default=found.table()
            )
            self._search()
        if found.default is None or found.is_settled:
            return
        default = _Found.load(found.default)
        note = self._reason_for(found, default) if found.trials else ""
        found.is_settled = True
        if note:
            self._note(note)
            return
        default.rounds, default.lines, default.is_settled = found.rounds, found.lines, True
        self._found = default

    @property
    def _may_change_loss(self) -> bool:
        config = self._config
        free = self._is_default_loss and config.algorithm == ANY and config.lambdas is None
        return free and config.select_by != "loss"

    def _other_loss(self) -> tuple[str, float | None] | None:
        """Return another loss that may be better, and its parameter."""
        found, labels = self._found, self._store.manifest.labels
        if not self._may_change_loss or found.loss or not found.trials:
            return None
        if labels.task == "regression" and found.robust_parameter:
            return robust_loss(), found.robust_parameter
        is_hard = labels.task == "binary" and share_of_constant(self._chosen, labels.counts) > HARD
        return (ranking_loss(), None) if is_hard else None

    def _reason_for(self, found: _Found, default: _Found) -> str:
        """Return a note that another loss is used; nothing if the default one is better.

        A robust loss is better where targets are wrong, and worse where they are skewed. Unless it is clear that some
        are wrong, the losses are compared on the same rows by the figure that chooses lambda.
        """
        rule = self._config.select
        one, other = (result.trials[choose(result.trials, rule)] for result in (found, default))
        if found.loss != robust_loss():
            if share_of_constant(other, self._store.manifest.labels.counts) > NEARLY_CONSTANT:
                return CONSTANT_NOTE
            return RANKING_NOTE if one.value <= other.value else ""
        if not found.has_gross_errors and not self._is_late:
            for result in (found, default)[len(found.shares) :]:
                self._compare(result)
        is_better = len(found.shares) > 1 and found.shares[0] < found.shares[1]
        return ROBUST_NOTE if found.has_gross_errors or is_better else ""

    def _compare(self, one: _Found) -> None:
        """Train the best lambda of some results without many rows, and measure it on these."""
        found, trial = self._found, one.trials[choose(one.trials, self._config.select)]
        loss: Any = one.loss or self._config.loss
        held_out = self._config.holdout or 0.0  # whose rows no model is trained on
        config = dataclasses.replace(
            self._config_of((trial.lam,)),
            loss=loss,
            loss_parameter=one.last_parameter,
            holdout=max(_MOST_HOLDOUT, held_out),
            folds=None,
            select_by=self._config.select_by or "r2",
        )
        made = self._make(config, found.rounds + 1)
        (measured,) = made.result.trials
        found.shares.append(measured.value)
        found.rounds, found.lines = found.rounds + 1, found.lines + made.lines
        self._save(made, found.rounds)

    def _note(self, text: str) -> None:
        self._progress.note(text)
        self._notes.append(text)

    # --- rounds -------------------------------------------------------------------------------------

    @property
    def _is_late(self) -> bool:
        limit = self._config.max_seconds
        return bool(limit) and time.perf_counter() - self._began > _SHARE_OF_TIME * (limit or 0.0)

    def _is_over(self) -> bool:
        return bool(self._results or self._found.trials) and self._is_late

    def _next_lambdas(self) -> tuple[float, ...] | None:
        """Return the lambdas of the next round; None: the default path; none: the search is over."""
        found = self._found
        if not found.path:
            return self._config.lambdas if found.start is None else lambdas_near(found.start)
        if self._config.lambdas is not None or found.is_complete:
            return ()
        limits = Range(max(found.path), min(found.path))
        return further_lambdas(found.trials, limits, is_costly=found.start is not None)

    @property
    def _loss(self) -> Any:
        return self._found.loss or self._config.loss

    def _describe(self, lambdas: tuple[float, ...] | None) -> str:
        if not self._found.path:
            if self._found.start is not None:
                return f"comparing lambdas near {self._found.start:.2g} on all rows"
            return f"comparing lambdas with the {self._found.loss} loss" if self._found.loss else "comparing lambdas"
        assert lambdas
        known = [trial.lam for trial in self._found.trials]
        what = "smaller" if lambdas[0] < min(known) else "larger" if lambdas[-1] > max(known) else "intermediate"
        return f"trying {len(lambdas)} {what} lambdas"

    def _config_of(self, lambdas: tuple[float, ...] | None) -> TrainConfig:
        """Return the options of a round that compares lambdas."""
        config = self._config
        single = lambdas is not None and len(lambdas) == 1
        return dataclasses.replace(
            config,
            loss=self._loss,
            loss_parameter=self._found.loss_parameter if self._found.loss else config.loss_parameter,
            lam=lambdas,
            bias=config.biased,
            tolerance=max(config.enough, COMPARED),
            holdout=config.holdout_fraction if single and not config.folds else config.holdout,
            select="best",
            calibrate=None,
            refit=False,
            max_seconds=config.max_seconds and _SHARE_OF_TIME * config.max_seconds,
        )

    def _make(
        self, config: TrainConfig, name: str | int, complete: Callable[[Model], Model] | None = None
    ) -> RoundResult:
        folder = self._folder and self._folder / f"{ROUNDS}{name}"
        is_last, is_begun = name == _LAST, self._resume and folder and (folder / FILE_NAME).exists()
        if config.memory is None and not is_begun:  # the checkpoint of the round has its own
            config = dataclasses.replace(config, memory=self._memory)
        number = self._found.rounds + (2 if is_last and self._config.calibrate else 1)
        return self._train_round(
            Round(config, number, self._found.lines, folder, self._resume, is_last, complete=complete)
        )

    def _take(self, made: RoundResult) -> None:
        """Add the results of a round, and write the checkpoint of the search."""
        found, result = self._found, made.result
        found.trials = sorted([*found.trials, *result.trials], key=lambda trial: -trial.lam)
        found.models += [model for model in result.models if model.lam in {trial.lam for trial in result.trials}]
        found.path = found.path or [trial.lam for trial in result.trials]
        found.is_complete = made.is_search
        if self._store.manifest.labels.task == "regression" and self._may_change_loss and self._store.has_files:
            errors, is_robust = errors_of(result.model, self._store), found.loss == robust_loss()
            found.robust_parameter = errors.parameter if is_robust or errors.have_heavy_tails else None
            found.has_gross_errors = is_robust and errors.are_gross
        found.rounds, found.lines = found.rounds + 1, found.lines + made.lines
        self._save(made, found.rounds)

    def _save(self, made: RoundResult, name: str | int) -> None:
        """Write the checkpoint of the search after a round, and remove that of the round."""
        result = made.result
        self._results.append(result)
        if self._resume:
            self._memory = result.memory
        if self._folder is None or result.stopped_by == "seconds":
            return
        self._save_checkpoint(made)
        shutil.rmtree(self._folder / f"{ROUNDS}{name}", ignore_errors=True)

    def _save_checkpoint(self, made: RoundResult) -> None:
        if self._folder is None:
            return
        identity = identity_of(self._config, self._store, None) | made.identity
        facts = {"identity": identity, "budget": made.result.memory, "search": self._found.table()}
        with writing_errors(self._folder):
            Checkpoint({}, facts).save(self._folder)

    # --- the end ------------------------------------------------------------------------------------

    @property
    def _chosen(self) -> Trial:
        trials = self._found.trials
        return trials[choose(trials, self._config.select)]

    def _refit(self) -> TrainResult:
        """Train the chosen lambda on all rows, or without the holdout rows if `refit` is off."""
        config, chosen = self._config, self._chosen
        remark = remark_on(self._found.trials) if config.lambdas is not None else None
        if remark:
            self._progress.note(remark)
            self._notes.append(remark)
        last = dataclasses.replace(
            config,
            loss=self._loss,
            loss_parameter=self._found.last_parameter if self._found.loss else config.loss_parameter,
            lam=chosen.lam,
            bias=config.biased,
            tolerance=config.enough,
            holdout=0.0 if config.refit else config.holdout,
            folds=None,
            select_by=None,
            calibrate=None,
        )
        is_calibrated = not config.calibrate or bool(self._found.calibrations)
        self._progress.expect(1 if is_calibrated else 2)
        if not is_calibrated:
            self._progress.begin_step("fitting probabilities")
            tolerance = max(config.enough, COMPARED)
            held_out = dataclasses.replace(
                last, tolerance=tolerance, holdout=config.holdout_fraction, calibrate=config.calibrate
            )
            made = self._make(held_out, _PROBABILITIES)
            self._found.calibrations = made.result.model.info.calibrations
            self._found.lines += made.lines
            self._save(made, _PROBABILITIES)
            if made.result.stopped_by == "seconds" and not self._has_proof:
                return self._without_refit(made.result)
        rows = "on all rows" if config.refit else "without the holdout rows"
        self._progress.begin_step(f"training lambda {chosen.lam:.4g} {rows}")
        result = self._make(last, _LAST, self._completed).result
        earlier = self._best_without_refit() if self._results and not self._has_proof else None
        is_unfinished = result.stopped_by == "seconds" and not result.converged
        if is_unfinished and earlier and earlier.gap is not None and (result.gap is None or earlier.gap < result.gap):
            return earlier
        self._results.append(result)
        return dataclasses.replace(self._joined(result), is_refit=config.refit)

    def _completed(self, model: Model) -> Model:
        """Return the model of the last fit with the results of the search."""
        found = self._found
        info = dataclasses.replace(model.info, trials=found.trials, config=essential(self._config))
        return dataclasses.replace(model, info=dataclasses.replace(info, calibrations=found.calibrations))

    def _best_without_refit(self) -> TrainResult:
        """Return the best of the models that were trained without the holdout rows."""
        best = {trial.lam: trial.value for trial in self._found.trials}
        return self._without_refit(min(self._results, key=lambda one: best.get(one.model.info.lam, float("inf"))))

    def _without_refit(self, result: TrainResult) -> TrainResult:
        """Return the result of a round as that of a search that ran out of time."""
        config = essential(dataclasses.replace(self._config, refit=False))
        info = dataclasses.replace(result.model.info, trials=self._found.trials, config=config)
        model = dataclasses.replace(result.model, info=info)
        return self._joined(dataclasses.replace(result, model=model, stopped_by="seconds", converged=False))

    def _joined(self, result: TrainResult) -> TrainResult:
        """Return the result of a round with the statistics of all rounds."""
        found, info = self._found, result.model.info
        trial = next((one for one in found.trials if one.lam == info.lam), None)
        results = [*self._sampled, *self._results]
        profile: dict[str, dict[str, float]] = {}
        for one in results:
            for place, seconds in one.profile.items():
                sums = profile.setdefault(place, {})
                for name, value in seconds.items():
                    sums[name] = sums.get(name, 0.0) + value
        return dataclasses.replace(
            result,
            models=found.models,
            trials=found.trials,
            holdout=HoldoutResult(trial.loss, trial.error) if trial else result.holdout,
            seconds=time.perf_counter() - self._began,
            seconds_computing=sum(one.seconds_computing for one in results),
            seconds_waiting=sum(one.seconds_waiting for one in results),
            bytes_read=sum(one.bytes_read for one in results),
            costs=[cost for one in results for cost in one.costs],
            notes=list(dict.fromkeys([*(note for one in results for note in one.notes), *self._notes])),
            profile=profile,
        )
