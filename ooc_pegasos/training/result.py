"""The result of a training run: the selected model, and the certificates of all models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.objective.certificate import relative_gap
from ooc_pegasos.objective.lambda_path import Trial, choose, trial_of
from ooc_pegasos.objective.problem import NONE, Problem
from ooc_pegasos.proof.proof_file import Claim, write_proof
from ooc_pegasos.reporting.history import HoldoutResult
from ooc_pegasos.scoring.model import Certificate, Model, ModelInfo
from ooc_pegasos.solvers.proof_record import DualRecord
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.state import Progression, RunState, essential
from ooc_pegasos.training.timing import EpochCost
from ooc_pegasos.training.trained_model import TrainedModel

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


_MOST_SOURCES = 1000
"""Inputs whose fingerprints are kept in a model."""


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
    is_refit: bool = False
    """True if the model was trained once more on all rows after lambdas were compared."""
    constant_loss: float | None = None
    """For real targets, the mean loss of the mean target as an answer to all rows; None if not known."""
    constant_error: float | None = None
    """For classes, the error on the holdout rows of the most frequent class as an answer; None if not known."""

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

    @property
    def warnings(self) -> list[str]:
        """Reasons why the model is of little use: its holdout rows show nothing better than a constant answer."""
        from ooc_pegasos.reporting.text import warnings_of

        return warnings_of(self)

    def __repr__(self) -> str:
        info = self.model.info
        gap = "no certificate" if info.certificate.gap is None else f"certified gap {100 * info.certificate.gap:.3g} %"
        parts = [self.algorithm, f"lambda {info.lam:.6g}", f"{info.epochs:,} epochs", gap]
        return f"TrainResult({', '.join([*parts, *(text.partition(';')[0] for text in self.warnings)])})"

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
        """Return holdout loss and error of each lambda whose models were all measured."""
        specs, folds = self._problem.specs, self._config.folds is not None
        trials = []
        for lam in dict.fromkeys(spec.lam for spec in specs):
            models = [model for model, spec in enumerate(specs) if spec.lam == lam]
            found = [(specs[model].fold, self._progress[model].holdout) for model in models]
            holdout = [(fold, one) for fold, one in found if one is not None]
            if holdout and all(model in self._best for model in models):
                # errors of one class against the rest are not multiclass errors
                by_error = not self._config.refit and self._config.select_by in (None, "error") and not self.one_vs_rest
                trial = trial_of(lam, holdout, across=folds, by_error=by_error)
                trials.append(dataclasses.replace(trial, error=None) if self.one_vs_rest else trial)
        return trials

    @property
    def metric_to_score(self) -> str | None:
        """The metric by which lambdas are compared, if it is known from scores of all holdout rows only."""
        given, config = self._config.select_by, self._config
        if given == "loss" or config.refit or config.folds:
            return None
        if given in (None, "error"):
            return "error" if self.one_vs_rest else None
        return given

    def compare_by(self, scores: Sequence[tuple[float | None, float, float]]) -> None:
        """Select by another metric than the loss: error, value and standard error, for each of `every_model`."""
        self.trials = [
            dataclasses.replace(trial, error=error, score=value, score_deviation=deviation)
            for trial, (error, value, deviation) in zip(self.trials, scores, strict=True)
        ]
        self._selected = self._select()

    def every_model(self, algorithm: str) -> list[Model]:
        """Return a model for each trial."""
        return [self.model(algorithm, self._models_of(trial.lam)) for trial in self.trials]

    def _select(self) -> list[int]:
        """Return the models of the selected lambda: one, or one for each class."""
        trials = self.trials
        is_choice = len(trials) > 1
        return self._models_of(
            trials[choose(trials, self._config.select)].lam if is_choice else self._problem.specs[0].lam
        )

    def _models_of(self, lam: float) -> list[int]:
        """Return the models of a lambda: one, or one for each class."""
        specs = self._problem.specs
        models = [model for model, spec in enumerate(specs) if spec.lam == lam]
        if self._config.folds:
            models = [model for model in models if specs[model].fold == NONE]
        if not self.one_vs_rest:  # the best of several fixed biases
            models = [min(models, key=lambda model: self._progress[model].primal or 0.0)]
        return models

    def model(self, algorithm: str, selected: Sequence[int] | None = None) -> Model:
        """Return the selected model, or that of other models of the run."""
        selected = self._selected if selected is None else selected
        problem, progress, config = self._problem, [self._progress[model] for model in selected], self._config
        info = ModelInfo(
            features=self._store.features,
            lam=problem.specs[selected[0]].lam,
            loss=problem.loss.name,
            parameter=problem.own_parameter,
            costs=None if problem.costs is None else problem.costs.tolist(),
            algorithm=algorithm,
            sampling=config.sampler,
            seed=config.seed,
            epochs=max(one.epochs for one in progress),
            certificate=self._certificate(progress),
            history=progress[0].history,
            trials=self.trials,
            calibrations=[],
            labels=self._store.manifest.labels,
            recipe=self._store.manifest.recipe,
            config=essential(config),
            store_checksum=self._store.checksum,
            versions={"ooc-pegasos": __version__, "numpy": np.__version__},
            sources=[one.fingerprint for one in self._store.manifest.sources[:_MOST_SOURCES] if one.fingerprint],
        )
        return Model(*self._weights(info, selected), vocabulary.of_store(self._store.path, self._store.manifest))

    def write_proof(self, path: Path, model: Model, record: DualRecord) -> None:
        """Write the dual variables of the selected models, with the certificate of `model`."""
        progress = [self._progress[number] for number in self._selected]
        claims = [Claim(one.primal or 0.0, max(one.bound or 0.0, 0.0)) for one in progress]
        holdout = self._config.holdout_fraction
        write_proof(path, self._store, model, self._problem, self._selected, claims, record, holdout)

    def _weights(self, info: ModelInfo, selected: Sequence[int]) -> tuple[np.ndarray, ModelInfo, np.ndarray]:
        """Return weights and biases of some models."""
        problem, features = self._problem, self._store.features
        if problem.costs is not None:
            table = self._best[selected[0]].reshape(-1, problem.width)[:, : len(problem.costs)]
            bias = table[features] * problem.bias if problem.bias else np.zeros(len(problem.costs))
            return np.ascontiguousarray(table[:features]), info, bias
        vectors = [self._best[model] for model in selected]
        biases = [float(vector[-1]) * problem.bias if problem.bias else 0.0 for vector in vectors]
        biases = [bias + problem.specs[model].offset for bias, model in zip(biases, selected, strict=True)]
        if self.one_vs_rest:
            return np.stack([vector[:features] for vector in vectors], axis=1), info, np.array(biases)
        return vectors[0][:features], info, np.array(biases[0])

    @staticmethod
    def _certificate(progress: Sequence[Progression]) -> Certificate:
        """Return one certificate for several models: the sums of objectives and bounds."""
        primal = sum(one.primal or 0.0 for one in progress)
        bounds = [one.bound for one in progress if one.bound is not None]
        bound = sum(bounds) if len(bounds) == len(progress) else None
        gap = progress[0].gap if len(progress) == 1 else relative_gap(primal, bound)
        return Certificate(primal, bound, gap, all(one.finished_by == "tolerance" for one in progress))

    def models(self) -> list[TrainedModel]:
        """Return history and certificate of each model that was measured: of all but those ended early."""
        return [self._trained(model) for model in range(len(self._progress)) if model in self._best]

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
