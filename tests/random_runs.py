"""Random small training runs, each a function of its seed alone, and what is false in the results they report.

Norms of rows go from 1e-6 to 1e6, weights of rows from 1e-9 to 1e9, lambda from 1e-12 to 1e3. The truth is computed in
exact arithmetic from the rows as the store has them.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from exact import MARGIN_LOSSES, TARGET_LOSSES, Problem, objective_of_model, row_weights
from newton import Optimum, optimum

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, train
from ooc_pegasos.checkpoint import FILE_NAME
from ooc_pegasos.loading import open_loader
from ooc_pegasos.losses import LOSSES
from ooc_pegasos.outcome import TrainResult
from ooc_pegasos.problem import count_models
from ooc_pegasos.progress import TrainingProgress
from ooc_pegasos.solvers.choice import row_bytes

Trainer = Callable[..., TrainResult]


@dataclass
class Case:
    """The rows of a store and the options of a run."""

    matrix: sp.csr_matrix
    labels: np.ndarray
    weights: np.ndarray | None
    storing: dict[str, Any]
    options: dict[str, Any]
    small_windows: bool = False
    stop_after: int | None = None
    """Slices of rows after which the run is interrupted, to be resumed from its checkpoint."""
    warm: float | None = None
    """The factor by which the weights that the run begins with are too large, if it begins with a model."""
    parts: int | None = None
    """Of a distributed run."""
    saved: bool = False
    """True if the model is read from a file."""


@dataclass
class Report:
    """Statements of a run that are false, and how well the truth is known."""

    violations: list[str] = field(default_factory=list)
    statements: int = 0
    """Bounds and objectives that were compared with the truth."""
    widths: list[float] = field(default_factory=list)
    """Of the enclosures of the optima."""
    certified: bool = False
    resumed: bool = False
    inflation: float = 0.0
    """Reported objective over that of the saved model, less 1."""

    def check(self, holds: bool, what: str) -> None:
        """Count a statement, and keep what is wrong with it unless it holds."""
        self.statements += 1
        if not holds:
            self.violations.append(what)


FREE = ("free", "unregularized", "batch")
"""Ways of a bias that is not regularised."""
_ENORMOUS = 2.0**60


# --- cases ----------------------------------------------------------------------------------------


def case_of(seed: int) -> Case:
    """The case of a seed."""
    return _case(np.random.default_rng(seed), most_rows=44)


def distributed_case_of(seed: int) -> Case:
    """The case of a seed for workers, which know fewer options."""
    rng = np.random.default_rng([seed, 1])
    case = _case(rng, most_rows=120)
    unknown = ("threads", "loading", "batch_size", "project", "average")
    case.options = {name: value for name, value in case.options.items() if name not in unknown}
    if case.options["algorithm"] in ("sgd-m", "pegasos"):
        case.options["algorithm"] = "sgd-s"
    if case.options.get("bias") in ("search", "unregularized", "batch"):
        del case.options["bias"]
    case.options |= {"max_epochs": min(case.options["max_epochs"], 12), "checkpoint_epochs": 1}
    case.storing["chunk_size"] = 1024
    case.small_windows, case.parts = False, int(rng.integers(1, 4))
    return case


def _case(rng: np.random.Generator, most_rows: int) -> Case:
    task = str(rng.choice(["binary", "regression", "one class a model", "all classes"], p=[0.6, 0.25, 0.07, 0.08]))
    several = "class" in task
    rows = int(rng.integers(6, (most_rows // 2 if several else most_rows) + 1))
    features = int(rng.integers(1, 5 if several else 9))
    values = rng.choice(["float32", "float16", "bfloat16", "ones", "table"], p=[0.6, 0.1, 0.1, 0.1, 0.1])
    x = _values(rng, rows, features, str(values))
    labels = _labels(rng, task, x)
    storing: dict[str, Any] = {"shuffle": bool(rng.random() < 0.5), "chunk_size": int(rng.choice([1024, 1 << 20]))}
    width = features if rng.random() < 0.8 else int(rng.choice([300, 3000, 70_000]))
    places = np.sort(rng.choice(width, features, replace=False))
    storing["features"] = width
    if values in ("float16", "bfloat16"):
        storing["values"] = str(values)
    storing["task"] = "regression" if task == "regression" else "multiclass" if several else "binary"
    weights = _weights(rng, rows)
    options = _options(rng, task, rows)
    if task == "binary" and rng.random() < 0.1:
        x, labels = _easily_separated(rng, rows, features, options)
    entries = sp.coo_matrix(x)
    matrix = sp.csr_matrix((entries.data, (entries.row, places[entries.col])), (rows, width), np.float32)
    case = Case(matrix, labels, weights, storing, options)
    case.small_windows = bool(rng.random() < 0.4)
    case.saved = bool(rng.random() < 0.2)
    if rng.random() < 0.12 and options.get("bias") != "search":
        case.stop_after = int(rng.integers(1, 20))
    plain = "class" not in task and not isinstance(options["lam"], tuple) and "folds" not in options
    if options["algorithm"] == "sgd-s" and plain and "project" not in options and rng.random() < 0.15:
        case.warm = float(rng.choice([1.0, -30.0, 10.0 ** rng.uniform(0, 18)]))
    return case


def _values(rng: np.random.Generator, rows: int, features: int, kind: str) -> np.ndarray:
    present = rng.random((rows, features)) < rng.choice([0.3, 0.7, 1.0], p=[0.3, 0.3, 0.4])
    if kind == "ones":
        return present.astype(np.float32)
    x = rng.standard_normal((rows, features)) * present
    if kind == "table":
        return np.round(x * 4).astype(np.float32)
    if kind == "float16":
        return x.astype(np.float32)
    x *= 10.0 ** rng.uniform(-6, 6)
    spread = rng.random()
    if spread < 0.15:
        x *= 10.0 ** rng.uniform(-3, 3, (rows, 1))
    elif spread < 0.3:
        x *= rng.lognormal(0, 1, features) if rng.random() < 0.5 else 10.0 ** rng.uniform(-3, 3, features)
    if rng.random() < 0.15:  # rows that are there twice, with whatever labels
        x[rows // 2 : rows // 2 * 2] = x[: rows // 2]
    return x.astype(np.float32)


def _labels(rng: np.random.Generator, task: str, x: np.ndarray) -> np.ndarray:
    rows, features = x.shape
    if task == "regression":
        scale = 10.0 ** rng.uniform(-3, 3) if rng.random() < 0.5 else 1.0
        planted = x @ rng.standard_normal(features) / max(float(np.abs(x).max()), 1e-30)
        return np.asarray((planted + rng.standard_normal(rows) * rng.choice([0, 0.1, 1])) * scale, np.float32)
    if "class" in task:
        labels = rng.integers(0, 3, rows)
        labels[:3] = [0, 1, 2]
        return labels
    how = rng.random()
    if how < 0.4:
        labels = np.where(rng.random(rows) < rng.choice([0.1, 0.5]), 1, -1)
    else:  # separable, or nearly
        noise = 0.0 if how < 0.7 else 0.3 * float(np.abs(x).max())
        labels = np.where(x @ rng.standard_normal(features) + noise * rng.standard_normal(rows) > 0, 1, -1)
    labels[:2] = [1, -1]
    return labels


def _weights(rng: np.random.Generator, rows: int) -> np.ndarray | None:
    how = rng.random()
    if how < 0.6:
        return None
    if how < 0.75:
        return rng.exponential(size=rows).astype(np.float32) + np.float32(0.01)
    return (10.0 ** rng.uniform(-9, 9, rows if how < 0.9 else 1) * np.ones(rows)).astype(np.float32)


def _easily_separated(
    rng: np.random.Generator, rows: int, features: int, options: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Long rows that cost almost nothing at the optimum, where running sums lose all their digits on the way to it."""
    x = rng.standard_normal((rows, features)) * 10.0 ** rng.uniform(2, 6)
    labels = np.where(x @ rng.standard_normal(features) > 0, 1, -1)
    labels[:2] = [1, -1]
    x[:2] *= labels[:2, None] * np.sign(x[:2, :1])
    for name in ("sampling", "batch_size", "project", "average", "delay", "bias", "bias_scale"):
        options.pop(name, None)
    options |= {"algorithm": str(rng.choice(["sdca", "auto"])), "max_epochs": 4000, "coefficient": 1.2}
    options |= {"lam": float(10.0 ** rng.uniform(-12, -5)), "tolerance": float(10.0 ** rng.uniform(-3, -1))}
    return np.asarray(x, np.float32), labels


def _options(rng: np.random.Generator, task: str, rows: int) -> dict[str, Any]:
    options: dict[str, Any] = {"lam": float(10.0 ** rng.uniform(-12, 3)), "seed": int(rng.integers(1000))}
    losses = {"regression": TARGET_LOSSES, "all classes": ("multiclass-hinge", "multiclass-logistic")}
    loss = options["loss"] = str(rng.choice(losses.get(task, MARGIN_LOSSES)))
    if LOSSES[loss].parameter is not None and rng.random() < 0.5:
        options["loss_parameter"] = float(10.0 ** rng.uniform(-3, 2))
    options |= _algorithm(rng, task, loss)
    if task != "regression" and rng.random() < 0.25:
        number = 3 if task == "all classes" else 2
        weights = tuple(float(c) for c in 10.0 ** rng.uniform(-3, 3, number))
        options["class_weight"] = weights if rng.random() < 0.8 else "balanced"
    bias = rng.random()
    if bias < 0.35 and "bias" not in options:
        options |= {"bias": "feature", "bias_scale": float(rng.choice([1.0, 0.1, 3.0, 10.0 ** rng.uniform(-3, 3)]))}
    if task == "all classes" and loss == "multiclass-hinge" and rng.random() < 0.3:
        costs = np.round(10.0 ** rng.uniform(-2, 2, (3, 3)), 2) * (1 - np.eye(3))
        options["cost"] = tuple(tuple(float(cost) for cost in row) for row in costs)
    options["max_epochs"] = int(rng.choice([1, 3, 12, 40, 300], p=[0.1, 0.2, 0.3, 0.3, 0.1]))
    free = "bias" not in options and bias > 0.75 and task != "all classes"
    if free and "project" not in options and options["algorithm"] != "pegasos":
        options["bias"] = "free"
    options["tolerance"] = float(10.0 ** rng.uniform(-12, -1))
    options["coefficient"] = float(rng.choice([1.2, 1e30]))
    options |= {"threads": int(rng.choice([1, 2, 3])), "loading": str(rng.choice(["mapped", "read"]))}
    plain = options["algorithm"] in ("auto", "sdca", "sgd-s") and not {"batch_size", "project", "average"} & set(
        options
    )
    if plain and rng.random() < 0.12 and rows >= 15:
        apart = rng.random()
        if apart < 0.4:
            options["folds"] = 2
        else:
            options["holdout"] = 0.4
        if apart < 0.7:
            options["lam"] = (options["lam"], options["lam"] * float(10.0 ** rng.uniform(0.1, 3)))
    elif plain and options["algorithm"] != "sgd-s" and "class" not in task and rng.random() < 0.02:
        options.pop("bias_scale", None)
        options |= {"bias": "search", "max_epochs": min(options["max_epochs"], 12)}
    return options


def _algorithm(rng: np.random.Generator, task: str, loss: str) -> dict[str, Any]:
    if task == "all classes":
        return {"algorithm": "sgd-s", **({"delay": float(10.0 ** rng.uniform(0, 6))} if rng.random() < 0.2 else {})}
    kinds = ["sdca", "auto", "sgd-s", "sgd-m", "pegasos"]
    chosen = str(rng.choice(kinds, p=[0.45, 0.1, 0.25, 0.05, 0.15]))
    if chosen == "sgd-m" and loss != "hinge":
        chosen = "sgd-s"
    if task == "one class a model":
        return {"algorithm": "sdca" if chosen in ("sgd-m", "pegasos") else chosen}
    options: dict[str, Any] = {"algorithm": chosen}
    if chosen in ("sdca", "auto"):
        return options
    options["sampling"] = str(rng.choice(["permutation", "fixed", "sequential"], p=[0.6, 0.2, 0.2]))
    if rng.random() < 0.3:
        options["average"] = True
    if rng.random() < 0.3:
        options["delay"] = float(rng.choice([0.0, 10.0 ** rng.uniform(0, 6)]))
    if chosen != "sgd-m":
        if rng.random() < 0.3:
            options["batch_size"] = int(rng.integers(2, 12))
        if rng.random() < 0.3:
            options["project"] = True
        free = rng.random()
        if free < 0.06:
            options["bias"] = "unregularized"
        elif free < 0.12 and "batch_size" in options:
            options["bias"] = "batch"
    return options


# --- runs -----------------------------------------------------------------------------------------


def store_of_case(case: Case, folder: Path) -> Store:
    """The store of a case, in place of what was there."""
    config = ConvertConfig(**case.storing)
    given = (case.matrix, case.labels, folder / "store", case.weights)
    return Store.from_scipy(*given, config=config, existing=Existing(force=True))


def config_of_case(case: Case, store: Store) -> TrainConfig:
    """The options, with the memory that makes every chunk a window of its own if that is asked for."""
    config = TrainConfig(**case.options)
    if not case.small_windows:
        return config
    models = count_models(config, store) * (8 if config.bias == "search" else 1)
    apart = {"holdout": config.holdout_fraction, "folds": config.folds, "row_bytes": row_bytes(config, models)}
    return TrainConfig(**case.options, memory=open_loader(store, 1 << 62, **apart).shape.least_budget)


class Interrupting(TrainingProgress):
    """Interrupts the run after some slices of rows, as Ctrl-C does."""

    def __init__(self, slices: int) -> None:
        self._left = slices

    def presented(self, epoch: int, rows: int, total: int) -> None:
        self._left -= 1
        if not self._left:
            signal.raise_signal(signal.SIGINT)


def run(case: Case, folder: Path, trainer: Trainer = train) -> Report:
    """Train, save the model, and compare what is reported with the truth."""
    store = store_of_case(case, folder)
    config = config_of_case(case, store)
    given: dict[str, Any] = {"progress": TrainingProgress()}
    if case.warm:
        model = trainer(store, dataclasses.replace(config, max_epochs=2), **given).model
        given["warm_start"] = dataclasses.replace(model, weights=model.weights * case.warm, bias=model.bias * case.warm)
    if case.parts:
        given["parts"] = min(case.parts, len(store.manifest.chunks))
    if case.stop_after:
        given["checkpoint"] = place = folder / "checkpoint"
        shutil.rmtree(place, ignore_errors=True)
        try:
            trainer(store, config, **(given | {"progress": Interrupting(case.stop_after)}))
        except KeyboardInterrupt:
            given["resume"] = (place / FILE_NAME).exists()
    result = trainer(store, config, **given)
    if case.saved:
        result.model.save(folder / "model")
        result = dataclasses.replace(result, model=Model.load(folder / "model"))
    report = judged(result, store, config)
    report.resumed = "resume" in given
    return report


# --- judgements -----------------------------------------------------------------------------------


def judged(result: TrainResult, store: Store, config: TrainConfig) -> Report:
    """Compare all that a result says with the truth."""
    report, rows = Report(), Rows(store, config)
    certificate, model = result.model.info.certificate, result.model
    scale = config.bias_scale if config.biased == "feature" else 0.0
    # a bias that is not regularised is nearly the weight of an enormous constant feature
    true_scale = _ENORMOUS if config.biased in FREE else scale
    table, biases = model.weights[rows.columns], model.bias
    report.check(np.count_nonzero(table) == np.count_nonzero(model.weights), "weights of features that no row has")
    if table.ndim == 1 or model.info.costs is not None:
        columns, biases = [table], [biases]
    else:
        columns, biases = list(table.T), list(biases)
    value = Fraction(0)
    truths: dict[int, Optimum] = {}
    lam = result.model.info.lam
    kept = [n for n, one in enumerate(result.models) if one.lam == lam and one.fold is None]
    if config.bias == "search":
        kept = [min(kept, key=lambda n: result.models[n].certificate.primal)]
    certain = result.why_uncertified is None
    for number, weights, bias in zip(kept, columns, biases, strict=True):
        one = result.models[number]
        problem = rows.problem(one.lam, one.one_class, one.fold)
        value += objective_of_model(problem, weights, bias, scale)
        if certain:
            if config.bias == "search":
                truths[number] = optimum(_held(problem, float(bias)), [weights])
            else:
                last = np.atleast_2d(bias) / (true_scale or 1.0)
                start = np.vstack([weights.reshape(len(weights), -1), last]) if true_scale else weights
                truths[number] = optimum(_biased(problem, true_scale), [start])
    said = (certificate.primal, certificate.lower_bound, certificate.gap)
    if certain:
        Truth([truths[n] for n in kept]).check(report, "the kept model", *said)
    else:
        report.check(said[1:] == (None, None), "a bound where there is none")
    report.check(certificate.primal >= value, f"primal {certificate.primal!r} below the model's {float(value)!r}")
    report.inflation = float(Fraction(certificate.primal) / value - 1) if value else 0.0
    report.certified = bool(result.converged)
    if not certain:
        return report
    if certificate.gap is not None and value:
        least = sum(truths[n].upper for n in kept)
        report.check(
            Fraction(certificate.gap) >= 1 - least / value, f"gap {certificate.gap!r} is less than the true one"
        )
    for number, one in enumerate(result.models):
        if number not in truths:
            if config.bias == "search":
                continue  # their biases are not reported
            truths[number] = optimum(_biased(rows.problem(one.lam, one.one_class, one.fold), true_scale))
        report.widths.append(float(truths[number].width))
        truth, said = Truth([truths[number]]), one.certificate
        truth.check(report, f"model {number}", said.primal, said.lower_bound, said.gap)
        for entry in one.history:
            what = f"model {number}, epoch {entry['epoch']}"
            truth.check(report, what, entry["primal"], entry["lower_bound"], entry["gap"])
    return report


class Truth:
    """The enclosure of the sum of some optima, and the floats that are nearest to it from outside."""

    def __init__(self, optima: Sequence[Optimum]) -> None:
        self.lower, self.upper = sum(one.lower for one in optima), sum(one.upper for one in optima)
        self.most, self.least = float(self.upper), float(self.lower)
        if Fraction(self.most) > self.upper:
            self.most = math.nextafter(self.most, 0.0)
        if Fraction(self.least) < self.lower:
            self.least = math.nextafter(self.least, math.inf)

    def check(self, report: Report, what: str, primal: float | None, bound: float | None, gap: float | None) -> None:
        """Compare what is reported with the optimum."""
        if bound is not None:
            report.check(bound >= 0, f"{what}: bound {bound!r} below 0")
            over = bound / self.most - 1 if self.most else bound
            report.check(bound <= self.most, f"{what}: bound {bound!r} above the optimum {self.most!r} by {over:.3g}")
        if primal is not None:
            under = 1 - primal / self.least if self.least else 0.0
            text = f"{what}: primal {primal!r} below the optimum {self.least!r} by {under:.3g}"
            report.check(primal >= self.least, text)
        if gap is not None:
            report.check(0 <= gap <= 1, f"{what}: gap {gap!r}")
            told = max((primal - bound) / primal, 0.0) if primal else 0.0
            report.check(abs(gap - told) <= 1e-12, f"{what}: gap {gap!r} and not {told!r}")


class Rows:
    """The rows of a store in memory, and the problems that runs pose with them."""

    def __init__(self, store: Store, config: TrainConfig) -> None:
        matrix, self._labels = store.to_scipy()
        self.columns = np.union1d(np.flatnonzero(matrix.getnnz(axis=0)), [0])
        """Features that rows have, and the first: the others have no weight."""
        self._x = np.asarray(matrix[:, self.columns].toarray(), np.float64)
        self._weights, self._config, self._info = store.weights(), config, store.manifest.labels
        loader = open_loader(store, 1 << 62, holdout=config.holdout_fraction, folds=config.folds)
        parts = [loader.folds.of(number) for number in range(len(store.manifest.chunks))]
        self._folds = np.concatenate(parts)
        self._of_classes = config.loss is not None and config.loss.startswith("multiclass")

    def problem(self, lam: float, one_class: str | None, fold: int | None) -> Problem:
        """The problem of one model, without its bias."""
        config, labels = self._config, self._labels
        if one_class is not None:
            labels = np.where(labels == self._info.classes.index(one_class), 1, -1)
        kinds = labels.astype(int) if self._of_classes else (labels > 0).astype(int)
        weights: Any = config.class_weight or (1.0,) * (max(kinds) + 1)
        if weights == "balanced":
            counts = np.bincount(kinds).tolist()
            weights = [len(labels) / (len(counts) * count) for count in counts]
        by_class = np.array(weights)[kinds]
        costs = None
        if self._of_classes:
            classes = len(self._info.classes)
            costs = np.array(config.cost) if config.cost else 1.0 - np.eye(classes)
        heft = row_weights(self._weights, by_class)
        loss = config.loss or "hinge"
        parameter = config.loss_parameter if config.loss_parameter is not None else LOSSES[loss].parameter or 0.0
        whole = Problem(loss, parameter, lam, self._x, labels, heft, costs=costs)
        if config.holdout_fraction:
            return whole.only(self._folds != 0)
        return whole if fold is None else whole.only(self._folds != fold)


def _biased(problem: Problem, scale: float) -> Problem:
    """The problem with the constant feature."""
    if not scale:
        return problem
    x = np.column_stack([problem.x, np.full(problem.rows, scale)])
    return Problem(problem.loss, problem.parameter, problem.lam, x, problem.y, problem.heft, costs=problem.costs)


def _held(problem: Problem, offset: float) -> Problem:
    """The problem with a bias that is held fixed."""
    return Problem(problem.loss, problem.parameter, problem.lam, problem.x, problem.y, problem.heft, offset)
