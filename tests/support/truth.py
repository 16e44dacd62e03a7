"""The truth about the results of training runs on small stores, in exact arithmetic, and what is false in them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ooc_pegasos import Store, TrainConfig
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.losses import LOSSES
from ooc_pegasos.scoring.model import Certificate
from ooc_pegasos.training.result import TrainResult
from support.exact import Problem, objective_of_model, row_weights
from support.newton import Optimum, optimum


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

    def check(self, holds: bool, what: str) -> None:
        """Count a statement, and keep what is wrong with it unless it holds."""
        self.statements += 1
        if not holds:
            self.violations.append(what)


def judged(result: TrainResult, store: Store, config: TrainConfig) -> Report:
    """Compare all that a result says with the truth."""
    report, certificate = Report(certified=bool(result.converged)), result.model.info.certificate
    how = result.model.info.config
    config = dataclasses.replace(config, bias=config.bias or how["bias"] or config.biased)
    if config.is_search:
        config = dataclasses.replace(config, holdout=how["holdout"], folds=how["folds"])
    rows = Rows(store, config)
    value, truths, of_kept = Fraction(0), {}, []
    certain = result.why_uncertified is None
    for number, problem, weights, bias in _kept(result, store, config, rows):
        value += objective_of_model(problem, weights, bias, rows.scale)
        if certain:
            of_kept.append(_truth_of(problem, config, rows.scale, weights, bias))
            truths |= {number: of_kept[-1]} if number is not None else {}
    report.check(certificate.primal >= value, f"primal {certificate.primal!r} below the model's {float(value)!r}")
    if not certain:
        report.check((certificate.lower_bound, certificate.gap) == (None, None), "a bound where there is none")
        return report
    Truth(of_kept).check_certificate(report, certificate, value)
    for number, one in enumerate(result.models):
        if number not in truths:
            if config.bias == "search":
                continue  # their biases are not reported
            truths[number] = _truth_of(rows.problem(one.lam, one.one_class, one.fold), config, rows.scale)
        report.widths.append(float(truths[number].width))
        truth, said = Truth([truths[number]]), one.certificate
        truth.check(report, f"model {number}", said.primal, said.lower_bound, said.gap)
        for entry in one.history:
            what = f"model {number}, epoch {entry.epoch}"
            truth.check(report, what, entry.primal, entry.lower_bound, entry.gap)
    return report


def _kept(
    result: TrainResult, store: Store, config: TrainConfig, rows: Rows
) -> Iterator[tuple[int | None, Problem, np.ndarray, np.ndarray]]:
    """(number among the models or None, problem, weights, bias) of each of the models that are kept."""
    model = result.model
    table, biases = model.weights[rows.columns], model.bias
    assert np.count_nonzero(table) == np.count_nonzero(model.weights), "weights of features that no row has"
    if result.is_refit:
        of_all = Rows(store, dataclasses.replace(config, lam=model.info.lam, holdout=0.0, folds=None))
        is_one = table.ndim == 1 or model.info.costs is not None
        names = [None] if is_one else store.manifest.labels.classes
        columns = [(table, biases)] if is_one else zip(table.T, biases, strict=True)
        for name, (weights, bias) in zip(names, columns, strict=True):
            yield None, of_all.problem(model.info.lam, name, None), weights, bias
        return
    for number, weights, bias in _kept_of_run(result, config, table, biases):
        one = result.models[number]
        yield number, rows.problem(one.lam, one.one_class, one.fold), weights, bias


def _kept_of_run(
    result: TrainResult, config: TrainConfig, table: np.ndarray, biases: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(number among the models, weights, bias) of each of the models that are kept, without a search."""
    model = result.model
    numbers = [n for n, one in enumerate(result.models) if one.lam == model.info.lam and one.fold is None]
    if config.bias == "search":
        numbers = [min(numbers, key=lambda n: result.models[n].certificate.primal)]
    if table.ndim == 1 or model.info.costs is not None:
        return zip(numbers, [table], [biases], strict=True)
    return zip(numbers, table.T, biases, strict=True)


def _truth_of(
    problem: Problem, config: TrainConfig, scale: float, weights: np.ndarray | None = None, bias: object = 0.0
) -> Optimum:
    """Enclose the optimum of a problem with the bias of a run, beginning with the weights of a model."""
    what = (problem.loss, problem.parameter, problem.lam)
    starts = [] if weights is None else [weights.reshape(len(weights), -1)]
    if config.bias == "search":
        held = Problem(*what, problem.x, problem.y, problem.heft, float(np.asarray(bias)))
        return optimum(held, starts)
    free = config.biased in ("free", "unregularized", "batch")
    if not scale and not free:
        return optimum(problem, starts)
    constant = 2.0**80 if free else scale
    x = np.column_stack([problem.x, np.full(problem.rows, constant)])
    biased = Problem(*what, x, problem.y, problem.heft, costs=problem.costs, free=free)
    return optimum(biased, [np.vstack([start, np.atleast_2d(bias) / constant]) for start in starts])


class Truth:
    """The enclosure of the sum of some optima, and the floats that are nearest to it from outside."""

    def __init__(self, optima: Sequence[Optimum]) -> None:
        self.lower, self.upper = sum(one.lower for one in optima), sum(one.upper for one in optima)
        self.most, self.least = float(self.upper), float(self.lower)
        if Fraction(self.most) > self.upper:
            self.most = math.nextafter(self.most, 0.0)
        if Fraction(self.least) < self.lower:
            self.least = math.nextafter(self.least, math.inf)

    def check_certificate(self, report: Report, said: Certificate, value: Fraction) -> None:
        """Compare what is reported of the kept model with the optimum and with its exact objective."""
        self.check(report, "the kept model", said.primal, said.lower_bound, said.gap)
        if said.gap is not None and value:
            right = Fraction(said.gap) >= 1 - self.upper / value
            report.check(right, f"gap {said.gap!r} is less than the true one")
        if said.relative_accuracy is not None and self.upper:
            right = Fraction(said.relative_accuracy) >= value / self.upper - 1
            report.check(right, f"accuracy {said.relative_accuracy!r} is better than the true one")

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
        self.scale = config.bias_scale if config.biased == "feature" else 0.0
        """The value of the constant feature, if its weight is the bias."""
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
