"""The result of a training run: the selected model, and the certificates of all models."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.certificate import relative_gap
from ooc_pegasos.objective.lambda_path import Trial, choose, trial_of
from ooc_pegasos.objective.problem import NONE, Problem
from ooc_pegasos.proof.proof_file import Claim, write_proof
from ooc_pegasos.reporting.history import EpochRecord, HoldoutResult
from ooc_pegasos.scoring.calibration import ScoreSummary, fitted
from ooc_pegasos.scoring.model import Certificate, Model, ModelInfo
from ooc_pegasos.scoring.score import Scorer
from ooc_pegasos.solvers.proof_record import DualRecord
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.state import RunState, essential
from ooc_pegasos.training.timing import EpochCost

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True)
class TrainedModel:
    """One of the models of a run."""

    lam: float
    one_class: str | None
    fold: int | None
    certificate: Certificate
    epochs: int
    holdout: HoldoutResult | None
    history: list[EpochRecord]


@dataclass(frozen=True, repr=False)
class TrainResult:
    """The selected model, and statistics of the run."""

    model: Model
    models: list[TrainedModel]
    """All models of the run."""
    trials: list[Trial]
    """Holdout loss and error of each lambda, if there are holdout rows."""
    converged: bool
    certified: bool
    stopped_by: str
    seconds: float
    seconds_computing: float
    seconds_waiting: float
    bytes_read: int
    holdout: HoldoutResult | None
    why_uncertified: str | None
    algorithm: str
    why_algorithm: str
    memory: int
    """Budget for data in bytes, which determines the windows and so the order of rows."""
    loading: str
    windows: int
    presenters: int
    """Threads that processed rows concurrently."""
    costs: list[EpochCost]
    notes: list[str]
    profile: dict[str, dict[str, float]]
    """Seconds by activity, of the run (`foreground`) and of the threads that load data (`background`)."""

    @property
    def primal(self) -> float:
        """Objective of the model that was kept."""
        return self.model.info.certificate.primal

    @property
    def lower_bound(self) -> float | None:
        """Lower bound on the optimum; None if not known."""
        return self.model.info.certificate.lower_bound

    @property
    def gap(self) -> float | None:
        """Certified relative gap; None if there is no certificate."""
        return self.model.info.certificate.gap

    @property
    def epochs(self) -> int:
        """Epochs of the model that was kept."""
        return self.model.info.epochs

    @property
    def history(self) -> pa.Table:
        """History of the selected model, one row for each epoch, as an Arrow table."""
        import pyarrow as pa

        # columns depend on the algorithm, which may have changed
        tables = [record.table() for record in self.model.info.history]
        names = dict.fromkeys(name for table in tables for name in table)
        return pa.Table.from_pylist([{**dict.fromkeys(names), **table} for table in tables])

    def __repr__(self) -> str:
        info = self.model.info
        gap = "no certificate" if info.certificate.gap is None else f"certified gap {100 * info.certificate.gap:.3g} %"
        return f"TrainResult({self.algorithm}, lambda {info.lam:.6g}, {info.epochs:,} epochs, {gap})"

    def _repr_html_(self) -> str:
        from ooc_pegasos.reporting.notebook import result_html

        return result_html(self)


class Outcome:
    """The models at the end of a run, and the selection of the best."""

    def __init__(self, problem: Problem, state: RunState, store: Store, config: TrainConfig) -> None:
        self._problem, self._progress, self._best = problem, state.progress, state.best
        self._store, self._config = store, config
        self.trials = self._compare()
        self._selected = self._select()

    @property
    def one_vs_rest(self) -> bool:
        """True if each class has a model of its own."""
        return self._problem.specs[0].one_class != NONE

    @property
    def holdout(self) -> HoldoutResult | None:
        """Holdout loss and error of the selected lambda. One versus rest: the error is computed later."""
        lam = self._problem.specs[self._selected[0]].lam
        trials_of_lambda = [trial for trial in self.trials if trial.lam == lam]
        return HoldoutResult(trials_of_lambda[0].loss, trials_of_lambda[0].error) if trials_of_lambda else None

    def _compare(self) -> list[Trial]:
        """Return holdout loss and error of each lambda."""
        specs, folds = self._problem.specs, self._config.folds is not None
        trials = []
        for lam in dict.fromkeys(spec.lam for spec in specs):
            found = [(spec.fold, self._progress[model].holdout) for model, spec in enumerate(specs) if spec.lam == lam]
            holdout = [(fold, one) for fold, one in found if one is not None]
            if holdout:
                trial = trial_of(lam, holdout, across=folds)
                # errors of one class against the rest are not multiclass errors
                trials.append(dataclasses.replace(trial, error=None) if self.one_vs_rest else trial)
        return trials

    def _select(self) -> list[int]:
        """Return the models of the selected lambda: one, or one for each class."""
        specs, trials = self._problem.specs, self.trials
        lam = trials[choose(trials, self._config.select)].lam if len(trials) > 1 else specs[0].lam
        models = [model for model, spec in enumerate(specs) if spec.lam == lam]
        if self._config.folds:
            models = [model for model in models if specs[model].fold == NONE]
        if not self.one_vs_rest:  # the best of several fixed biases
            models = [min(models, key=lambda model: self._progress[model].primal or 0.0)]
        return models

    def model(self, algorithm: str) -> Model:
        """Return the selected model."""
        problem, progress, config = self._problem, [self._progress[model] for model in self._selected], self._config
        info = ModelInfo(
            features=self._store.features,
            lam=problem.specs[self._selected[0]].lam,
            loss=problem.loss.name,
            parameter=problem.own_parameter,
            costs=None if problem.costs is None else problem.costs.tolist(),
            algorithm=algorithm,
            sampling=config.sampler,
            seed=config.seed,
            epochs=max(one.epochs for one in progress),
            certificate=self._certificate(),
            history=progress[0].history,
            trials=self.trials,
            calibrations=[],
            labels=self._store.manifest.labels,
            recipe=self._store.manifest.recipe,
            config=essential(config),
            store_checksum=self._store.checksum,
            versions={"ooc-pegasos": __version__, "numpy": np.__version__},
        )
        return Model(*self._weights(info), vocabulary.of_store(self._store.path, self._store.manifest))

    def write_proof(self, path: Path, model: Model, record: DualRecord) -> None:
        """Write the dual variables of the selected models, with the certificate of `model`."""
        progress = [self._progress[number] for number in self._selected]
        claims = [Claim(one.primal or 0.0, max(one.bound or 0.0, 0.0)) for one in progress]
        holdout = self._config.holdout_fraction
        write_proof(path, self._store, model, self._problem, self._selected, claims, record, holdout)

    def _weights(self, info: ModelInfo) -> tuple[np.ndarray, ModelInfo, np.ndarray]:
        """Return weights and biases of the selected models."""
        problem, features = self._problem, self._store.features
        if problem.costs is not None:
            table = self._best[self._selected[0]].reshape(-1, problem.width)[:, : len(problem.costs)]
            bias = table[features] * problem.bias if problem.bias else np.zeros(len(problem.costs))
            return np.ascontiguousarray(table[:features]), info, bias
        vectors = [self._best[model] for model in self._selected]
        biases = [float(vector[-1]) * problem.bias if problem.bias else 0.0 for vector in vectors]
        biases = [bias + problem.specs[model].offset for bias, model in zip(biases, self._selected, strict=True)]
        if self.one_vs_rest:
            return np.stack([vector[:features] for vector in vectors], axis=1), info, np.array(biases)
        return vectors[0][:features], info, np.array(biases[0])

    def _certificate(self) -> Certificate:
        """Return one certificate for all selected models: the sums of objectives and bounds."""
        progress = [self._progress[model] for model in self._selected]
        primal = sum(one.primal or 0.0 for one in progress)
        bounds = [one.bound for one in progress if one.bound is not None]
        bound = sum(bounds) if len(bounds) == len(progress) else None
        gap = progress[0].gap if len(progress) == 1 else relative_gap(primal, bound)
        return Certificate(primal, bound, gap, all(one.finished_by == "tolerance" for one in progress))

    def models(self) -> list[TrainedModel]:
        """Return history and certificate of each model."""
        return [self._trained(model) for model in range(len(self._progress))]

    def _trained(self, model: int) -> TrainedModel:
        spec, progress = self._problem.specs[model], self._progress[model]
        assert progress.primal is not None
        classes = self._store.manifest.labels.classes
        return TrainedModel(
            spec.lam,
            classes[spec.one_class] if spec.one_class != NONE else None,
            spec.fold if self._config.folds and spec.fold != NONE else None,
            Certificate(progress.primal, progress.bound, progress.gap, progress.finished_by == "tolerance"),
            progress.epochs,
            HoldoutResult(progress.holdout.loss, progress.holdout.error) if progress.holdout else None,
            progress.history,
        )


def check_holdout_classes(store: Store, loader: Loader) -> None:
    """Refuse holdout rows of a single class, to which probabilities cannot be fitted, before training begins.

    Usually the first chunk has both classes.
    """
    found: set[float] = set()
    for number, labels in enumerate(store.labels_by_chunk()):
        found |= set(np.sign(labels[loader.folds.of(number) == 0]).tolist())
        if len(found) > 1:
            return
    what = "all holdout rows are of one class" if found else "there are no holdout rows"
    raise UsageError(f"{{calibrate}}: {what}, so probabilities cannot be fitted; choose a larger {{holdout}}")


@dataclass(frozen=True)
class ScoredRows:
    """Scores, labels and weights of some holdout rows."""

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None


def score_holdout_rows(model: Model, windows: Iterator[Window], loader: Loader, threads: int) -> Iterator[ScoredRows]:
    """Yield the scores of the holdout rows."""
    scorer = Scorer(model, model.info.features)
    for window in windows:
        scores, block = scorer.window(loader, window, threads), window.block
        for begin, end in window.row_ranges:
            rows = begin + np.flatnonzero(window.folds[begin:end] == 0)
            weights = None if block.weights is None else block.weights[rows]
            yield ScoredRows(scores[rows], block.labels[rows], weights)


class HoldoutScores:
    """Statistics of the scores of holdout rows. Those of several machines can be merged."""

    def __init__(self, model: Model, calibrate: bool) -> None:
        self.classes = range(len(model.info.labels.classes)) if model.bias.ndim else [NONE]
        self.summaries = [ScoreSummary() for _ in self.classes] if calibrate else []
        self.errors = self.count = 0

    def take(self, scored: Iterable[ScoredRows]) -> None:
        """Add some rows."""
        for some in scored:
            scores, labels = some.scores, some.labels
            predicted = scores.argmax(axis=1) if scores.ndim > 1 else np.where(scores > 0, 1, -1)
            self.errors += int((predicted != labels).sum())
            self.count += len(labels)
            for one_class, summary in zip(self.classes, self.summaries, strict=False):
                positive = labels > 0 if one_class == NONE else labels == one_class
                summary.add(scores if one_class == NONE else scores[:, one_class], positive, some.weights)

    def merged(self, other: HoldoutScores) -> HoldoutScores:
        """Return the statistics of the rows of both; neither is changed."""
        new = copy.deepcopy(self)
        new.errors, new.count = self.errors + other.errors, self.count + other.count
        for summary, more in zip(new.summaries, other.summaries, strict=True):
            summary.merge(more)
        return new

    def calibrate(self, model: Model, config: TrainConfig) -> tuple[Model, float | None]:
        """Return (the model, with probabilities fitted to these rows if requested; its error rate)."""
        if config.calibrate:
            found = [fitted(summary, config.calibrate, alone=len(self.summaries) == 1) for summary in self.summaries]
            info = dataclasses.replace(model.info, calibrations=found)
            model = dataclasses.replace(model, info=info)
        return model, self.errors / self.count if self.count else None
