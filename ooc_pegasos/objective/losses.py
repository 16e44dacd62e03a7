"""The losses by name, and what must be known of each apart from its compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ooc_pegasos.compiled.fit import losses as kernels
from ooc_pegasos.compiled.fit.losses import LossFunctions, PluggedLoss
from ooc_pegasos.compiled.fit.multiclass import MULTICLASS_HINGE, MULTICLASS_LOGISTIC
from ooc_pegasos.errors import UsageError
from ooc_pegasos.registry import LOSSES

Kind = Literal["binary", "regression", "multiclass"]


def _half(_parameter: float) -> float:
    return 0.5


def _whole(_parameter: float) -> float:
    return 1.0


@dataclass(frozen=True)
class Loss:
    """A loss. `task` is what is learnt: two classes, real targets, or all classes at once."""

    name: str
    number: int | PluggedLoss
    """The identifier of the loss in compiled functions."""
    task: Kind
    parameter: float | None = None
    """The default of its parameter; None if it has none."""
    meaning: str = ""
    """The meaning of the parameter."""
    leaning: Callable[[float], float] | None = None
    """The size, given the parameter, of the dual variables that repair others where the bias is not regularised: any
    in the domain of the conjugate; None if the loss has none, and with it no bias that is not regularised."""
    counts_margin_errors: bool = False
    """True if the subgradient is 0 or -y, so that a row with a margin error is a unit step."""
    takes_zero: bool = False
    """True if the parameter may be 0."""
    takes_costs: bool = False
    """True if each pair of classes may have a cost of its own."""
    has_probabilities: bool = False
    """True if scores are log odds."""

    @property
    def functions(self) -> LossFunctions | None:
        """The compiled functions; None for losses of all classes at once."""
        if isinstance(self.number, PluggedLoss):
            return self.number.functions
        return kernels.BUILT_IN[self.number] if self.number < len(kernels.BUILT_IN) else None

    @property
    def has_dual_step(self) -> bool:
        """True if dual coordinate ascent can minimise it."""
        return self.functions is not None and self.functions.best_dual is not None

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
    Loss(
        "epsilon-insensitive",
        kernels.EPSILON_INSENSITIVE,
        "regression",
        0.1,
        "the error that costs nothing",
        leaning=_whole,
        takes_zero=True,
    ),
    Loss("absolute", kernels.ABSOLUTE, "regression", leaning=_whole),
    Loss("huber", kernels.HUBER, "regression", 1.0, "the error from which on the loss is a line", leaning=float),
    Loss("multiclass-hinge", MULTICLASS_HINGE, "multiclass", takes_costs=True),
    Loss("multiclass-logistic", MULTICLASS_LOGISTIC, "multiclass", has_probabilities=True),
):
    LOSSES.register(_loss.name, _loss)
DEFAULT_LOSS: dict[str, str] = {"binary": "hinge", "multiclass": "hinge", "regression": "epsilon-insensitive"}
"""By what the labels are. Several classes are learnt one against the rest."""


def loss_for(name: str | None, task: str) -> Loss:
    """The loss of this name, or the default, if it suits the labels."""
    loss = _named(name or DEFAULT_LOSS[task])
    fits = {"binary": ("binary",), "regression": ("regression",), "multiclass": ("binary", "multiclass")}[task]
    if loss.task not in fits:
        suitable = [other.name for other in LOSSES.values() if other.task in fits]
        raise UsageError(
            f"{{loss={loss.name}}} is for {loss.task} labels, the store's are for {task}; "
            f"choose {' or '.join(suitable)}"
        )
    return loss
