"""Structured prediction: outputs that are sequences, rankings or trees, trained with the same certificate.

The user describes outputs by three functions (`StructuredTask`). Minimises the structured hinge loss:

    P(w) = (lam/2) ||w||^2 + (1/m) sum_i max_y' [cost(y_i, y') - <w, phi(x_i, y_i) - phi(x_i, y')>]

If y^ is the maximum, -g = phi(x_i, y_i) - phi(x_i, y^), and equation (2) of the README is
a <- a + phi(x_i, y_i) - phi(x_i, y^). The term of equation (4), l - <g, w>, is the cost of y^. So (3) and (5) are lower
bounds on the optimum for any y^: an inexact maximum makes the bound worse but not wrong. The objective, and so the gap,
is only as exact as the maximum.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import square
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.objective.certificate import Snapshot, lower_bound, relative_gap, thin_snapshots

if TYPE_CHECKING:
    import pyarrow as pa

X = TypeVar("X")
Y = TypeVar("Y")
X_in = TypeVar("X_in", contravariant=True)
X_out = TypeVar("X_out", covariant=True)
Y_out = TypeVar("Y_out", covariant=True)

COEFFICIENT = 1.2  # the objective is measured when the estimated gap is within this factor of the tolerance
STALE = 1.001  # lazy scaling: weights without updates may be too large by this factor
_MAX_WATCHED = 100  # at most this many examples, whose last maximum checks the next one
_ROUNDING = 1e-5  # relative to the terms of a score; a task may compute in float32


class StructuredTask(Protocol[X_in, Y]):
    """Functions that describe a task with inputs x and outputs y.

    `weights` are `n_features` numbers of float64, read-only; the array is reused, so copy it to keep it.
    """

    def features(self, x: X_in, y: Y) -> tuple[np.ndarray, np.ndarray]:
        """Return the joint feature map phi(x, y): indices from 0, and values; those of equal indices are added."""

    def most_violating(self, weights: np.ndarray, x: X_in, y: Y) -> tuple[Y, float]:
        """Return the output y' with the largest cost(y, y') + <weights, phi(x, y')>, and its cost.

        Costs are not negative, the cost of y itself is 0, and y is among the outputs to choose from.
        """

    def best(self, weights: np.ndarray, x: X_in) -> Y:
        """Return the output with the largest <weights, phi(x, y)>: the prediction."""


class Examples(Protocol[X_out, Y_out]):
    """Pairs (x, y) by number, like a list; they may be read from disk on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> tuple[X_out, Y_out]: ...


@dataclass(frozen=True)
class StructuredConfig:
    """Options of `train_structured`."""

    lam: float
    tolerance: float = 0.01
    max_epochs: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1e-30 <= self.lam <= 1e30:
            raise UsageError(f"lam = {self.lam} is out of range; choose a value from 1e-30 to 1e30")
        if not 0 < self.tolerance < float("inf"):
            raise UsageError(f"tolerance = {self.tolerance} is out of range; choose a positive number")
        if self.max_epochs < 1:
            raise UsageError(f"max_epochs = {self.max_epochs} is out of range; choose at least 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed = {self.seed} is out of range; choose 0 to 2^63 - 1")


@dataclass(frozen=True)
class StructuredEpoch:
    """The state at the end of an epoch. Values that were not measured in this epoch are None."""

    epoch: int
    estimate: float
    """Of the objective."""
    primal: float | None
    lower_bound: float
    gap: float | None
    """Certified relative gap."""
    estimated_gap: float


@dataclass(frozen=True)
class StructuredResult:
    """The best weights, and a bound on their distance from the optimum."""

    weights: np.ndarray
    primal: float
    lower_bound: float
    gap: float
    """(primal - lower_bound) / primal."""
    converged: bool
    history: pa.Table
    """A `StructuredEpoch` in each row."""


def train_structured(
    task: StructuredTask[X, Y], examples: Examples[X, Y], n_features: int, config: StructuredConfig
) -> StructuredResult:
    """Minimise the structured hinge loss over `examples` until the certified gap is within the tolerance.

    Each epoch reads all examples by number once, in a new random order; they are not kept.
    """
    import pyarrow as pa

    run = _Run(_Oracle(task, examples, n_features), config)
    for epoch in range(1, config.max_epochs + 1):
        run.process(epoch)
        run.certify(epoch, last=epoch == config.max_epochs)
        if run.gap is not None and run.gap <= config.tolerance:
            break
    assert run.gap is not None
    converged = run.gap <= config.tolerance
    history = pa.Table.from_pylist([dataclasses.asdict(record) for record in run.history])
    return StructuredResult(run.best, run.primal, run.bound, run.gap, converged, history)


@dataclass(frozen=True)
class _Choice:
    """An output as a linear lower bound of the loss: cost - <w, change> with change = phi(x, y) - phi(x, y^)."""

    cost: float
    touched: np.ndarray
    change: np.ndarray
    magnitude: float
    """Sum of the sizes of all terms of cost and scores, for bounds on rounding errors."""

    def value(self, weights: np.ndarray) -> float:
        return self.cost - float(weights[self.touched] @ self.change)


class _Oracle(Generic[X, Y]):
    """Calls the functions of a task, and checks their results where that is cheap."""

    def __init__(self, task: StructuredTask[X, Y], examples: Examples[X, Y], n_features: int) -> None:
        self.task, self.examples = task, examples
        self.features, self.rows = operator.index(n_features), len(examples)
        if self.features < 1:
            raise UsageError(f"n_features = {n_features} is out of range; choose at least 1")
        if self.rows < 1:
            raise UsageError("there are no examples to train on; give at least one")
        self.watched = range(0, self.rows, -(-self.rows // _MAX_WATCHED))
        self.remembered: dict[int, _Choice] = {}

    def choose(self, i: int, *candidates: np.ndarray) -> list[tuple[_Choice, float]]:
        """Return the most violating output of example i, and its loss, for each vector of weights."""
        answers = []
        try:
            x, y = self.examples[i]
            true = self.task.features(x, y)
            for weights in candidates:
                y_hat, cost = self.task.most_violating(weights, x, y)
                answers.append((weights, float(cost), self.task.features(x, y_hat)))
        except Exception as error:
            error.add_note(f"raised for example {i}")
            raise
        checked = self._checked(i, true)
        return [self._judge(i, weights, cost, checked, chosen) for weights, cost, chosen in answers]

    def _judge(
        self, i: int, weights: np.ndarray, cost: float, true: tuple[np.ndarray, np.ndarray], chosen: Any
    ) -> tuple[_Choice, float]:
        """Return (linear lower bound, value) of an output. Raises InputError if it cannot be the maximum."""
        if not 0 <= cost < float("inf"):
            raise InputError(f"example {i}: the cost of an output is {cost}; costs have to be finite and not negative")
        (indices, values), (indices_hat, values_hat) = true, self._checked(i, chosen)
        magnitude = cost + float(abs(weights[indices]) @ abs(values) + abs(weights[indices_hat]) @ abs(values_hat))
        touched, where = np.unique(np.concatenate([indices, indices_hat]), return_inverse=True)
        change = np.bincount(where, np.concatenate([values, -values_hat]), len(touched))
        nonzero = change != 0.0
        choice = _Choice(cost, touched[nonzero], change[nonzero], magnitude)
        value = choice.value(weights)
        if value < -_ROUNDING * magnitude:
            raise self._not_maximal(i, value, 0.0, "the true output")
        if i in self.watched:
            before = self.remembered.get(i, choice)
            if value < before.value(weights) - _ROUNDING * (magnitude + before.magnitude):
                raise self._not_maximal(i, value, before.value(weights), "an output chosen before")
            self.remembered[i] = choice
        return choice, max(value, 0.0)  # 0 is the value of the true output

    def _checked(self, i: int, answer: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `features` as arrays of int64 and float64."""
        try:
            indices, values = np.asarray(answer[0]), np.asarray(answer[1], np.float64)
            fit = len(answer) == 2 and indices.ndim == 1 and indices.shape == values.shape
        except (IndexError, TypeError, ValueError):
            fit = False
        if not fit or (indices.dtype.kind not in "iu" and len(indices)):
            raise InputError(
                f"example {i}: features() has to give two arrays of one length, indices as integers and values as real "
                f"numbers; it gave {reprlib.repr(answer)}"
            )
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.features:
            wrong = indices.min() if indices.min() < 0 else indices.max()
            raise InputError(f"example {i}: features() gave index {wrong}; it has to be from 0 to {self.features - 1}")
        if not np.isfinite(values).all():
            raise InputError(f"example {i}: features() gave a value that is not finite; correct it")
        return indices.astype(np.int64), values

    def _not_maximal(self, i: int, value: float, better: float, what: str) -> InputError:
        rule = "most_violating() has to choose the largest cost plus score"
        return InputError(
            f"example {i}: {rule}; relative to the true output its choice has {value:g}, and {what} has {better:g}"
        )

    def check_best(self, weights: np.ndarray) -> None:
        """Check on a few examples that predictions score at least as high as the true outputs."""
        for i in self.watched[:10]:
            x, y = self.examples[i]
            pairs = [self._checked(i, self.task.features(x, output)) for output in (self.task.best(weights, x), y)]
            best, true = (float(weights[at] @ v) for at, v in pairs)
            magnitude = sum(float(abs(weights[at]) @ abs(v)) for at, v in pairs)
            if best < true - _ROUNDING * magnitude:
                scores = f"scores {best:g}, and the true one {true:g}"
                raise InputError(f"example {i}: the output that best() gave {scores}; it has to give the largest")

    def mean_losses(self, candidates: list[np.ndarray]) -> np.ndarray:
        """Return the mean loss of each candidate, by an exact pass."""
        total = np.zeros(len(candidates))
        for i in range(self.rows):
            total += [loss for _, loss in self.choose(i, *candidates)]
        return total / self.rows


class _Run:
    """One training run, in the notation of the README."""

    def __init__(self, oracle: _Oracle[Any, Any], config: StructuredConfig) -> None:
        self.oracle, self.config = oracle, config
        self.a, self.weights = np.zeros(oracle.features), np.zeros(oracle.features)
        self.read_only_weights = _read_only(self.weights)
        # Scaling the costs by c is equivalent to scaling lam, so with R the largest change, the first step is about 1
        # for a delay of R^2 / (lam c). R is estimated on some examples at weights 0. Of 3, 1, 0.3 and 0.1 times this
        # delay, 1 needed the fewest epochs to a gap of 5 %, on chains and on classes. The bounds hold for every delay.
        choices = [oracle.choose(i, self.read_only_weights)[0][0] for i in oracle.watched]
        ratios = [float(choice.change @ choice.change) / choice.cost for choice in choices if choice.cost > 0]
        self.delay = max(max(ratios, default=0.0) / config.lam, 1.0)
        self.b = np.zeros(oracle.features)
        self.t = self.s = self.r = self.mean_loss = 0.0
        self.snapshots = [Snapshot.start()]
        self.bound, self.primal, self.best = 0.0, np.inf, self.a  # costs are not negative
        self.history: list[StructuredEpoch] = []

    @property
    def gap(self) -> float | None:
        """The certified relative gap. Losses are not negative, so an objective of 0 is optimal."""
        return 0.0 if self.primal == 0.0 else relative_gap(self.primal, self.bound)

    def process(self, epoch: int) -> None:
        """Process every example once, in a new random order: equations (2), (2a) and (4)."""
        lam, a, b, m = self.config.lam, self.a, self.b, self.oracle.rows
        self.r, losses = 0.0, 0.0
        b[:] = 0.0
        refreshed = -np.inf
        for number, i in enumerate(np.random.default_rng([self.config.seed, epoch]).permutation(m).tolist()):
            clock = self.t + self.delay
            if clock > STALE * refreshed:
                np.divide(a, lam * clock, out=self.weights)
                refreshed = clock
            [(choice, loss)] = self.oracle.choose(i, self.read_only_weights)
            touched = choice.touched
            a[touched] += choice.change
            self.r += 1.0 / (lam * clock)
            b[touched] += self.r * choice.change
            self.t += 1.0
            self.s += choice.cost
            self.weights[touched] = a[touched] / (lam * (clock + 1.0))
            if number >= m // 2:
                losses += loss
        self.mean_loss = losses / (m - m // 2)

    def certify(self, epoch: int, last: bool) -> None:
        """Compute the lower bound, estimate the objective, and measure it if the tolerance may be reached."""
        lam, m = self.config.lam, self.oracle.rows
        now = Snapshot(epoch, self.t, self.s, self.a)
        self.bound = max(self.bound, lower_bound(lam, self.delay, now, 1.0, self.snapshots, whole=True).value)
        iterate = self.a / (lam * (self.t + self.delay))
        estimate = lam / 2 * square(iterate) + self.mean_loss
        estimated_gap = (estimate - self.bound) / estimate if estimate > 0 else 0.0
        if epoch == 1:
            self.oracle.check_best(_read_only(iterate))
        measured = last or estimated_gap <= COEFFICIENT * self.config.tolerance
        if measured:
            self._measure([iterate, (self.r * self.a - self.b) / m])
        self.history.append(
            StructuredEpoch(
                epoch,
                estimate,
                self.primal if measured else None,
                self.bound,
                self.gap if measured else None,
                estimated_gap,
            )
        )
        self.snapshots.append(Snapshot(epoch, self.t, self.s, self.a.copy()))
        self.snapshots = [self.snapshots[0], *thin_snapshots(self.snapshots[1:], epoch)]

    def _measure(self, candidates: list[np.ndarray]) -> None:
        """Update the best candidate."""
        losses = self.oracle.mean_losses([_read_only(weights) for weights in candidates])
        primals = [self.config.lam / 2 * square(w) + loss for w, loss in zip(candidates, losses, strict=True)]
        chosen = int(np.argmin(primals))
        if not np.isfinite(primals[chosen]):
            raise InputError("the weights became infinite; choose another lam or scale the features")
        if primals[chosen] < self.bound - _ROUNDING * abs(self.bound):
            raise InputError(
                f"the objective {primals[chosen]:g} is below its lower bound {self.bound:g}, so most_violating() does "
                "not always choose the largest cost plus score; correct it"
            )
        if primals[chosen] < self.primal:
            self.primal, self.best = primals[chosen], candidates[chosen]


def _read_only(weights: np.ndarray) -> np.ndarray:
    """Return a read-only view: a task that changes weights would invalidate the certificate."""
    view = weights.view()
    view.flags.writeable = False
    return view
