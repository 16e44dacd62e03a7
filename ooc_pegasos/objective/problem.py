"""The problem to minimise: the loss, and the models that are trained together on the same rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.compiled.fit.panel_steps import (
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
from ooc_pegasos.compiled.fit.pegasos import BY_BATCH, BY_SUBGRADIENT, NO_FREE_BIAS, PROXIMAL, square
from ooc_pegasos.config import MOST_MODELS, TrainConfig
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.objective.lambda_path import LENGTH, default_path
from ooc_pegasos.objective.losses import Loss, loss_for
from ooc_pegasos.objective.model_panel import width_of
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.store.store import Store

_PROXIMAL_LAMBDAS, _PROXIMAL_SQUARES = 10.0, (0.2, 2.0)
"""Squared value of the constant feature of a free bias: a multiple of lambda, divided by the share of the rarest class,
within bounds in squared norms of a row; the upper bound holds for several lambdas only."""
_MOST_SQUARED = 1e150
NONE = -1
"""No positive class of one versus rest; no held-out fold."""


@dataclass(frozen=True)
class Spec:
    """The parameters by which the models of a run differ."""

    lam: float
    rows: int
    """Number of training rows."""
    one_class: int = NONE
    """The positive class of one versus rest."""
    fold: int = NONE
    """The held-out fold."""
    offset: float = 0.0
    """A fixed bias, added to the scores."""
    class_weights: tuple[float, ...] = (1.0, 1.0)
    """Of the negative and the positive class, or of all classes."""

    @property
    def clock(self) -> float:
        """The rows times lambda."""
        return self.lam * self.rows


@dataclass(frozen=True)
class RowLimits:
    """Upper bounds over all rows of a store, for bounds on rounding errors."""

    norm: float = 1.0
    """The largest norm of a row, the bias included."""
    entries: int = 1
    """The largest number of entries, the bias included."""
    weight: float = 1.0
    """The largest weight, that of the class included."""


@dataclass(frozen=True)
class Problem:
    """All models of a run. A weight vector has an element for each feature, and one for the bias if it is a feature."""

    loss: Loss
    parameter: float
    features: int
    bias: float
    """The value of the constant feature, 0 if there is none; 1 for a bias that kernels handle separately."""
    largest: float
    """The largest weight of a class times the largest squared norm of a row, the bias included."""
    specs: tuple[Spec, ...]
    free: int = NO_FREE_BIAS
    """The method for an unregularized bias, which is then the last weight."""
    costs: np.ndarray | None = None
    """Costs of predicting a class (column) for rows of another (row), for joint multiclass losses."""
    limits: RowLimits = RowLimits()
    unit: float = 1.0
    """The size of scores: lambda times this is the lambda of the same problem with targets of size 1."""

    @property
    def own_parameter(self) -> float:
        """The parameter of the loss as models and proofs record it, 0 if it has none or is only a limit of duals."""
        return 0.0 if self.loss.parameter is None else self.parameter

    @property
    def max_step(self) -> float:
        """The largest norm of a row times the largest size of its dual variable."""
        slope = self.loss.largest_slope(self.parameter)
        both = 1.5 if self.costs is not None else 1.0  # x is added to one class and subtracted from others
        return both * slope * self.limits.weight * self.limits.norm

    @property
    def width(self) -> int:
        """Weights per feature: one, or the columns of a panel for joint multiclass losses."""
        return 1 if self.costs is None else width_of(len(self.costs))

    @property
    def length(self) -> int:
        """Length of a weight vector."""
        return (self.features + (self.bias != 0.0)) * self.width

    def square(self, weights: np.ndarray) -> float:
        """Return ||w||^2 of the regularized weights."""
        return square(weights if self.free == NO_FREE_BIAS else weights[:-1])

    @property
    def has_free_bias(self) -> bool:
        """True if the bias is unregularized."""
        return self.free != NO_FREE_BIAS

    @property
    def plain(self) -> bool:
        """True if every model is trained on all processed rows, with unchanged labels."""
        whole = all((spec.one_class, spec.offset) == (NONE, 0.0) for spec in self.specs)
        return whole and len({spec.fold for spec in self.specs}) == 1

    @property
    def can_average(self) -> bool:
        """True if Pegasos may keep averages of iterates."""
        return self.plain and self.costs is None

    def with_lambda(self, lam: float) -> Problem:
        """Return the problem with another lambda for all models."""
        return dataclasses.replace(self, specs=tuple(dataclasses.replace(spec, lam=lam) for spec in self.specs))

    def table(
        self,
        models: Sequence[int],
        width: int,
        delays: Sequence[float] | None = None,
        clocks: Sequence[float] | None = None,
    ) -> np.ndarray:
        """Return the parameters of some models for kernels, one column each; see `compiled/fit/panel_steps.py`."""
        table = np.zeros((TABLE_SIZE, width))
        table[[ONE_CLASS, FOLD]] = NONE
        for column, model in enumerate(models):
            spec = self.specs[model]
            clock = spec.clock if clocks is None else clocks[column]
            table[LAMBDA, column], table[CLOCK, column], table[INVERSE, column] = spec.lam, clock, 1.0 / clock
            table[NEGATIVE, column], table[POSITIVE, column] = spec.class_weights[0], spec.class_weights[1]
            table[ONE_CLASS, column], table[FOLD, column] = spec.one_class, spec.fold
            table[OFFSET, column] = spec.offset
            if delays is not None:
                table[DELAY, column] = delays[column]
        return table


def problem_of(config: TrainConfig, store: Store, loader: Loader) -> Problem:
    """Return the problem for the options and the labels of a store. Raises UsageError."""
    labels = store.manifest.labels
    loss = loss_for(config.loss, labels.task)
    parameter = config.loss_parameter if config.loss_parameter is not None else loss.parameter
    if loss.in_deviations and config.loss_parameter is None:
        sizes = store.targets  # a deviation is at most the largest target; squares of that may overflow
        parameter = (loss.parameter or 0.0) * min(sizes.deviation, sizes.largest)
    if loss.largest_dual is not None and config.loss_parameter is None:
        largest = max(store.targets.largest, 1e-30) if loss.task == "regression" else 1.0
        if largest > _MOST_SQUARED:
            raise InputError(f"{store.path}: targets of {largest:.3g} cannot be squared in float64; scale the data")
        parameter = loss.largest_dual * largest
    if config.loss_parameter == 0.0 and not loss.takes_zero:
        raise UsageError(f"{{loss_parameter=0}} is out of range for the {loss.name} loss; choose a positive number")
    if config.loss_parameter is not None and loss.parameter is None:
        raise UsageError(f"{{loss_parameter}}: the {loss.name} loss has none; leave it out")
    if loss.task == "regression" and config.class_weight is not None:
        raise UsageError("{class_weight} is for classes, and the store's labels are real targets; leave it out")
    free = {"unregularized": BY_SUBGRADIENT, "batch": BY_BATCH, "free": PROXIMAL}.get(config.biased, NO_FREE_BIAS)
    bias = config.bias_scale if config.biased == "feature" else (0.0 if free == NO_FREE_BIAS else 1.0)
    is_joint = loss.task == "multiclass"
    if free == PROXIMAL and is_joint:
        raise UsageError("{bias=free} is not for joint multiclass losses; choose {bias=feature}, or {loss=hinge}")
    if config.bias == "search" and labels.task == "multiclass":
        raise UsageError("{bias=search} is for two classes or real targets; choose {bias=feature}")
    if config.calibrate and labels.task == "regression":
        raise UsageError("{calibrate} is for classes, and the store's labels are real targets; leave it out")
    if config.calibrate and sum(count > 0 for count in labels.counts) < 2:
        raise UsageError("{calibrate} needs rows of two classes, and all of the store's are of one; leave it out")
    if config.cost is not None and not loss.takes_costs:
        suitable = " or ".join(f"{{loss={one.name}}}" for one in LOSSES.values() if one.takes_costs)
        raise UsageError(f"{{cost}} is for {suitable}; leave it out")
    functions = loss.functions
    if free != NO_FREE_BIAS and functions and (loss.leaning is None or (free == BY_BATCH and functions.kinks is None)):
        raise UsageError(
            f"{{bias={config.bias}}} is not for {{loss={loss.name}}}; choose {{bias=feature}}, or another loss"
        )
    one_vs_rest = labels.task == "multiclass" and not is_joint
    classes = list(range(len(labels.classes))) if one_vs_rest else [NONE]
    training_rows = loader.training_rows
    lambdas = config.lambdas
    if lambdas is None and config.C is not None:
        lambdas = (1.0 / (config.C * training_rows),)
    unit = _unit_of_scores(loss, parameter, store)
    if lambdas is None:
        lambdas = default_path(store, loader, bias, unit)
    if loss.is_smooth:  # its curvature, and with it the meaning of lambda, does not depend on the size of targets
        unit = 1.0
    for lam in lambdas:
        if not 1e-30 <= lam <= 1e30:
            what = "choose values from 1e-30 to 1e30"
            if config.lambdas is None and config.C is None:
                what = f"scale the data, whose rows have a mean norm of {store.manifest.statistics.mean_row_norm:.3g}"
            raise UsageError(f"lambda = {lam:g} is out of range; {what}")
    if free == PROXIMAL:
        rarest = min((count for count in labels.counts if count), default=0) / max(sum(labels.counts), 1)
        scaled = [lam * unit for lam in lambdas]
        bias = _proximal_scale(store.manifest.statistics.mean_row_norm, scaled, rarest or 0.25)
    folds = [NONE] if config.folds is None else [*range(config.folds), NONE]
    holdout_fold = 0 if config.holdout_fraction else NONE
    specs = [
        Spec(
            lam,
            loader.rows_without(fold) if fold != NONE else training_rows,
            one_class,
            holdout_fold if fold == NONE else fold,
            class_weights=_class_weights(config, store, one_class, is_joint),
        )
        for lam in lambdas
        for one_class in classes
        for fold in folds
    ]
    max_class_weight = max(max(spec.class_weights) for spec in specs)
    statistics = store.manifest.statistics
    largest = max_class_weight * (statistics.largest_square + statistics.max_weight * bias * bias)
    costs = _costs(config, labels.classes) if is_joint else None
    limits = RowLimits(
        1.0001 * math.hypot(statistics.max_row_norm, bias),  # the norms in the manifest are rounded
        statistics.max_row_nonzeros + 1,
        max_class_weight * statistics.max_weight,
    )
    # joint losses: x is added to one class and subtracted from another, so a step is longer
    largest *= 2 if is_joint else 1
    return Problem(loss, parameter or 0.0, store.features, bias, largest, tuple(specs), free, costs, limits, unit)


def _unit_of_scores(loss: Loss, parameter: float | None, store: Store) -> float:
    """Return the size of scores that rows with the largest slope have to reach: 1, or that of real targets.

    Losses that are quadratic near the target need no more than 1 where targets are small.
    """
    if loss.task != "regression" or loss.largest_dual is not None:
        return 1.0
    deviation = store.targets.deviation
    if deviation <= 1e-9 * store.targets.largest:  # all targets are equal
        return 1.0
    unit = deviation / max(loss.largest_slope(parameter or 0.0), 1e-30)
    return min(max(unit, 1.0 if loss.is_smooth else 1e-30), 1e30)


def _proximal_scale(norm: float, lambdas: Sequence[float], rarest: float) -> float:
    """Return the value s of the constant feature of an unregularized bias.

    The proximal term is lambda / (2 s^2) (b - centre)^2. It must be small compared with the curvature of the loss, at
    most about the share of the rarest class, and s small compared with the norm of a row, or the bias slows down the
    weights. The constants are measured; any value has the same optimum.
    """
    square, wanted = norm * norm, _PROXIMAL_LAMBDAS * max(lambdas) / min(max(rarest, 0.01), 0.25)
    if len(set(lambdas)) > 1:  # the best value for the largest lambda would slow down the smallest
        wanted = min(wanted, _PROXIMAL_SQUARES[1] * square)
    return math.sqrt(max(wanted, _PROXIMAL_SQUARES[0] * square, 1e-30))


def fixed_bias(problem: Problem, offsets: Sequence[float]) -> Problem:
    """Return the problem with a model for each of some fixed biases."""
    specs = tuple(dataclasses.replace(spec, offset=offset) for spec in problem.specs for offset in offsets)
    return dataclasses.replace(problem, specs=specs)


def _costs(config: TrainConfig, classes: list[str]) -> np.ndarray:
    """Return the costs of predicting one class for another: 1, or the given ones."""
    number = len(classes)
    if config.cost is None:
        return 1.0 - np.eye(number)
    if any(len(row) != number for row in config.cost) or len(config.cost) != number:
        raise UsageError(
            f"{{cost}}: a table of {number} by {number} numbers is needed, in the order {', '.join(classes)}"
        )
    costs = np.array(config.cost, np.float64)
    if not ((costs >= 0).all() and np.isfinite(costs).all() and (np.diag(costs) == 0).all()):
        raise UsageError("{cost}: costs must not be negative, and 0 for the correct class")
    return costs


def _class_weights(config: TrainConfig, store: Store, one_class: int, is_joint: bool) -> tuple[float, ...]:
    """Return the weights of the negative and the positive class, or of all; "balanced": equal sums for all classes."""
    counts = store.manifest.labels.counts
    given = config.class_weight
    if given == "balanced":
        if one_class != NONE:
            counts = [sum(counts) - counts[one_class], counts[one_class]]
        if not all(counts):
            raise UsageError("{class_weight=balanced} needs rows of every class; leave it out")
        return tuple(sum(counts) / (len(counts) * count) for count in counts)
    wanted = len(counts) if is_joint else 2
    if given is None:
        return (1.0,) * wanted
    if len(given) != wanted:
        what = f"{wanted} numbers, one for each class" if is_joint else "two numbers, negative class first"
        raise UsageError(f"{{class_weight}} takes 'balanced' or {what}, and not {len(given)}; correct it")
    return given


def vectors_of(config: TrainConfig, store: Store) -> int:
    """Return the number of weight vectors of a model: one, or one per class for joint losses."""
    labels = store.manifest.labels
    is_joint = loss_for(config.loss, labels.task).task == "multiclass"
    return width_of(len(labels.classes)) if is_joint else 1


def count_models(config: TrainConfig, store: Store) -> int:
    """Return the number of models that the options request."""
    lambdas = config.lambdas or ((1.0,) if config.C is not None else (1.0,) * LENGTH)
    labels = store.manifest.labels
    one_vs_rest = labels.task == "multiclass" and loss_for(config.loss, labels.task).task != "multiclass"
    classes = len(labels.classes) if one_vs_rest else 1
    number = len(lambdas) * classes * (config.folds + 1 if config.folds else 1)
    if number > MOST_MODELS:
        raise UsageError(
            f"{number:,} models ({len(lambdas)} lambdas, {classes} classes, {config.folds or 'no'} folds) are more "
            f"than {MOST_MODELS:,} in one run; give fewer lambdas, like {{lam=1e-4}}, or fewer folds"
        )
    return number
