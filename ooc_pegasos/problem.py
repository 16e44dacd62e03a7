"""What is to be minimised: the loss, and the models that are trained side by side on the same rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.config import MOST_MODELS, TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.kernels.panel import (
    CLOCK,
    DELAY,
    FOLD,
    INVERSE,
    LAMBDA,
    NEGATIVE,
    OFFSET,
    ONE_CLASS,
    POSITIVE,
    TABLE_SIZE,
)
from ooc_pegasos.loading import Loader
from ooc_pegasos.losses import Loss, loss_for
from ooc_pegasos.path import LENGTH, default_path
from ooc_pegasos.store import Store

NONE = -1
"""No class that is told from the rest, no fold that is left out."""


@dataclass(frozen=True)
class Spec:
    """What makes a model differ from the others of the same run."""

    lam: float
    rows: int
    """How many it is trained on."""
    one_class: int = NONE
    """The class that it tells from the rest."""
    fold: int = NONE
    """The fold whose rows it is not trained on, but measured."""
    offset: float = 0.0
    """What is added to its scores: a bias that is held fixed."""
    class_weights: tuple[float, float] = (1.0, 1.0)

    @property
    def clock(self) -> float:
        """The rows times lambda."""
        return self.lam * self.rows


@dataclass(frozen=True)
class Problem:
    """All models of a run. A weight vector has one place a feature, and one more for the bias if that is a feature."""

    loss: Loss
    parameter: float
    features: int
    bias: float
    """The value of the constant feature, 0 if there is none."""
    largest: float
    """The largest weight of a class times the largest squared norm of a row, the bias included."""
    specs: tuple[Spec, ...]

    @property
    def length(self) -> int:
        """Of a weight vector."""
        return self.features + (self.bias != 0.0)

    @property
    def plain(self) -> bool:
        """Whether every model is trained on the same rows with the labels as they stand."""
        return all((spec.one_class, spec.fold, spec.offset) == (NONE, NONE, 0.0) for spec in self.specs)

    def table(self, models: Sequence[int], width: int, delays: Sequence[float] | None = None) -> np.ndarray:
        """What kernels must know of some models, one column each; see `kernels/panel.py`."""
        table = np.zeros((TABLE_SIZE, width))
        table[[ONE_CLASS, FOLD]] = NONE
        for column, model in enumerate(models):
            spec = self.specs[model]
            table[LAMBDA, column], table[CLOCK, column], table[INVERSE, column] = spec.lam, spec.clock, 1.0 / spec.clock
            table[NEGATIVE, column], table[POSITIVE, column] = spec.class_weights
            table[ONE_CLASS, column], table[FOLD, column], table[OFFSET, column] = (
                spec.one_class,
                spec.fold,
                spec.offset,
            )
            if delays is not None:
                table[DELAY, column] = delays[column]
        return table


def problem_of(config: TrainConfig, store: Store, loader: Loader) -> Problem:
    """The problem that the options and the labels of a store pose."""
    labels = store.manifest.labels
    loss = loss_for(config.loss, labels.task)
    parameter = config.loss_parameter if config.loss_parameter is not None else loss.parameter
    if config.loss_parameter is not None and loss.parameter is None:
        raise UsageError(f"--loss-parameter: the {loss.name} loss has none; leave it out")
    if loss.task == "regression" and config.class_weight is not None:
        raise UsageError("--class-weight is for classes, and the store's labels are real targets; leave it out")
    bias = config.bias_scale if config.bias == "feature" else 0.0
    classes = list(range(len(labels.classes))) if labels.task == "multiclass" else [NONE]
    fitted = loader.training_rows
    lambdas = config.lambdas
    if lambdas is None:
        lambdas = (1.0 / (config.C * fitted),) if config.C is not None else default_path(store, loader, bias)
    for lam in lambdas:
        if not 1e-30 <= lam <= 1e30:
            raise UsageError(f"lambda = {lam:g} is out of range; choose values from 1e-30 to 1e30")
    folds = [NONE] if config.folds is None else [*range(config.folds), NONE]
    apart = 0 if config.holdout_fraction else NONE
    specs = [
        Spec(
            lam,
            loader.rows_without(fold) if fold != NONE else fitted,
            one_class,
            apart if fold == NONE else fold,
            class_weights=_class_weights(config, store, one_class),
        )
        for lam in lambdas
        for one_class in classes
        for fold in folds
    ]
    heaviest = max(max(spec.class_weights) for spec in specs)
    statistics = store.manifest.statistics
    largest = heaviest * (statistics.largest_square + statistics.max_weight * bias * bias)
    return Problem(loss, parameter or 0.0, store.features, bias, largest, tuple(specs))


def fixed_bias(problem: Problem, offsets: Sequence[float]) -> Problem:
    """The same problem once for each of some biases that are held fixed."""
    specs = tuple(dataclasses.replace(spec, offset=offset) for spec in problem.specs for offset in offsets)
    return dataclasses.replace(problem, specs=specs)


def _class_weights(config: TrainConfig, store: Store, one_class: int) -> tuple[float, float]:
    """Weights of the negative and the positive class; balanced ones make both classes count the same."""
    if config.class_weight is None:
        return 1.0, 1.0
    if config.class_weight == "balanced":
        counts = store.manifest.labels.counts
        if one_class == NONE:
            negative, positive = counts
        else:
            positive = counts[one_class]
            negative = sum(counts) - positive
        if not negative or not positive:
            raise UsageError("--class-weight balanced needs rows of both classes; leave it out")
        rows = negative + positive
        return rows / (2 * negative), rows / (2 * positive)
    negative_weight, positive_weight = config.class_weight
    return negative_weight, positive_weight


def count_models(config: TrainConfig, store: Store) -> int:
    """How many models the options ask for."""
    lambdas = config.lambdas or ((1.0,) if config.C is not None else (1.0,) * LENGTH)
    labels = store.manifest.labels
    classes = len(labels.classes) if labels.task == "multiclass" else 1
    number = len(lambdas) * classes * (config.folds + 1 if config.folds else 1)
    if number > MOST_MODELS:
        raise UsageError(
            f"{number:,} models ({len(lambdas)} lambdas, {classes} classes, {config.folds or 'no'} folds) are more "
            f"than {MOST_MODELS:,} in one run; give fewer lambdas or folds"
        )
    return number
