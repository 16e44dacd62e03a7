"""The losses by name, and their properties besides the compiled functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ooc_pegasos.algorithms import ALGORITHMS, ANY
from ooc_pegasos.compiled.fit import losses as kernels
from ooc_pegasos.compiled.fit.losses import LossFunctions, PluggedLoss
from ooc_pegasos.compiled.fit.multiclass import MULTICLASS_HINGE, MULTICLASS_LOGISTIC
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.registry import LOSSES

Kind = Literal["binary", "regression", "multiclass"]


def _half(_parameter: float) -> float:
    return 0.5


def _whole(_parameter: float) -> float:
    return 1.0


@dataclass(frozen=True)
class Loss:
    """A loss. `task` is binary, regression, or multiclass for joint losses."""

    name: str
    number: int | PluggedLoss
    """The identifier of the loss in compiled functions."""
    task: Kind
    parameter: float | None = None
    """The default of its parameter; None if it has none."""
    meaning: str = ""
    """The meaning of the parameter."""
    leaning: Callable[[float], float] | None = None
    """The size, given the parameter, of constant dual variables that make others feasible for an unregularized bias:
        any value in the domain of the conjugate; None if the loss supports no unregularized bias."""
    largest_dual: float | None = None
    """For a loss without a largest slope: the largest size of the dual variables, for real targets as a multiple of
    the largest target. They need not be larger for a bound that holds; None if the loss has a largest slope."""
    counts_margin_errors: bool = False
    """True if the subgradient is 0 or -y, so that a row with a margin error is a unit step."""
    takes_zero: bool = False
    """True if the parameter may be 0."""
    takes_costs: bool = False
    """True if each pair of classes may have a cost of its own."""
    has_probabilities: bool = False
    """True if scores are log odds."""
    in_deviations: bool = False
    """True if the default of the parameter is a multiple of the standard deviation of the targets."""
    is_robust: bool = False
    """True for the loss of real targets of which some are wrong; its parameter is in the units of targets."""

    @property
    def functions(self) -> LossFunctions | None:
        """The compiled functions; None for joint multiclass losses."""
        if isinstance(self.number, PluggedLoss):
            return self.number.functions
        return kernels.BUILT_IN[self.number] if self.number < len(kernels.BUILT_IN) else None

    @property
    def has_dual_step(self) -> bool:
        """True if dual coordinate ascent can minimise it."""
        return self.functions is not None and self.functions.best_dual is not None

    @property
    def is_smooth(self) -> bool:
        """True if the slope has no jumps."""
        return self.functions is not None and self.functions.kinks is kernels.no_kinks

    @property
    def is_unit_hinge(self) -> bool:
        """True if kernels have shorter ways for it, see `LossFunctions`."""
        return self.functions is not None and self.functions.is_unit_hinge

    def largest_slope(self, parameter: float) -> float:
        """Return the largest size of a subgradient."""
        if self.functions is None:
            return 1.0
        slope: Any = self.functions.largest_slope
        return float(getattr(slope, "py_func", slope)(parameter))

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)


def _named(name: str) -> Loss:
    loss: Loss = LOSSES.find(name)
    return loss


def register(
    name: str,
    task: Literal["binary", "regression"],
    functions: LossFunctions,
    parameter: float | None = None,
    meaning: str = "",
    **more: Any,
) -> None:
    """Add a loss from outside, whose functions numba can compile; `more` are other fields of `Loss`."""
    LOSSES.register(name, Loss(name, PluggedLoss(name, functions), task, parameter, meaning, **more))


for _loss in (
    Loss("hinge", kernels.HINGE, "binary", leaning=_whole, counts_margin_errors=True),
    Loss("logistic", kernels.LOGISTIC, "binary", leaning=_half, has_probabilities=True),
    Loss(
        "smoothed-hinge",
        kernels.SMOOTHED_HINGE,
        "binary",
        1.0,
        "the margin over which the slope grows to 1",
        leaning=_half,
    ),
    Loss("squared-hinge", kernels.SQUARED_HINGE, "binary", leaning=_whole, largest_dual=64.0),
    Loss(
        "epsilon-insensitive",
        kernels.EPSILON_INSENSITIVE,
        "regression",
        0.1,
        "the error that costs nothing",
        leaning=_whole,
        takes_zero=True,
        in_deviations=True,
    ),
    Loss("absolute", kernels.ABSOLUTE, "regression", leaning=_whole),
    Loss(
        "huber",
        kernels.HUBER,
        "regression",
        1.0,
        "the error from which on the loss is a line",
        leaning=float,
        is_robust=True,
    ),
    Loss("squared", kernels.SQUARED, "regression", leaning=lambda largest: largest / 16.0, largest_dual=16.0),
    Loss("multiclass-hinge", MULTICLASS_HINGE, "multiclass", takes_costs=True),
    Loss("multiclass-logistic", MULTICLASS_LOGISTIC, "multiclass", has_probabilities=True),
):
    LOSSES.register(_loss.name, _loss)
DEFAULT_LOSS: dict[str, str] = {"binary": "hinge", "multiclass": "hinge", "regression": "epsilon-insensitive"}
"""Default losses by kind of labels. Several classes are trained one versus rest."""


def completed(config: TrainConfig, task: str, warm: bool = False) -> TrainConfig:
    """Return a configuration with the default loss and bias for real targets filled in.

    They are the squared loss and, if lambda is not given, a free bias, unless an option or a start (`warm`) needs
    Pegasos, which diverges with the squared loss.
    """
    dual = ALGORITHMS["sdca"]
    is_dual = config.algorithm in (ANY, dual.name) and set(config.demands) <= dual.supports
    if task != "regression" or warm or not is_dual:
        return config
    if config.loss is None and config.loss_parameter is None:
        config = dataclasses.replace(config, loss="squared")
    loss = LOSSES.find(config.loss) if config.loss else None
    can_be_free = loss is not None and loss.task == task and loss.leaning is not None
    if can_be_free and config.bias is None and config.lam is None and config.C is None:
        config = dataclasses.replace(config, bias="free")
    return config


def loss_for(name: str | None, task: str) -> Loss:
    """Return the loss of this name, or the default. Raises UsageError if it does not suit the labels."""
    loss = _named(name or DEFAULT_LOSS[task])
    fits = {"binary": ("binary",), "regression": ("regression",), "multiclass": ("binary", "multiclass")}[task]
    if loss.task not in fits:
        suitable = [other.name for other in LOSSES.values() if other.task in fits]
        raise UsageError(
            f"{{loss={loss.name}}} is for {loss.task} labels, the store's are for {task}; "
            f"choose {' or '.join(suitable)}"
        )
    return loss
