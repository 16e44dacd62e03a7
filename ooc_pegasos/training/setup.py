"""The setup of a run: rows, problem, initial weights, and checks of data and options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooc_pegasos.algorithms import ALGORITHMS
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import Loader, open_loader
from ooc_pegasos.objective.free_bias import RowSums
from ooc_pegasos.objective.problem import Problem, Spec, count_models, vectors_of
from ooc_pegasos.registry import SAMPLERS
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.solvers.registry import AVERAGE_BELOW, row_bytes
from ooc_pegasos.store.csr_block import CODINGS, VALUE_CODINGS, CsrBlock, all_levels, coding_in_memory
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.holdout import check_criterion
from ooc_pegasos.training.state import Progression
from ooc_pegasos.util.checkpoint import Checkpoint, sound, whole
from ooc_pegasos.util.stopwatch import Stopwatch

_AVERAGED_RATIO = 0.35  # initial `Progression.ratio` where averages are candidates
ONE_MODEL = "{warm_start} begins one model with another; leave it out, or give one {lam}"
GROUPED = 0.1
"""Share of the variance of labels between chunks above which rows count as grouped."""


@dataclass(frozen=True)
class RunSetup:
    """Data and options of a run; they do not change while it trains."""

    store: Store
    config: TrainConfig
    loader: Loader
    problem: Problem
    start: np.ndarray | None
    """Weights to begin with; None: zeros."""


@dataclass(frozen=True)
class Algorithm:
    """The algorithm in use."""

    name: str
    why: str
    """The reason for which it was chosen; "": the user asked for it."""


def loader_of(
    config: TrainConfig,
    store: Store,
    biases: int,
    saved: Checkpoint | None,
    checkpoint_folder: Path | None,
    background: Stopwatch,
) -> Loader:
    """Return the loader of the rows. Its budget is that of the interrupted run if one is resumed."""
    number = count_models(config, store) * biases
    vectors = number * vectors_of(config, store)
    if config.biased in ("free", "unregularized", "batch"):  # sums of rows: five take the memory of a model
        vectors += -(-RowSums.lines(len(store.manifest.labels.classes), config.folds) // 5)
    budget = config.budget(store.features, vectors)
    if saved and checkpoint_folder:
        with sound(checkpoint_folder):
            budget = whole(saved.facts["budget"], 0, 2**62, "budget")
    loader = open_loader(
        store,
        budget,
        loading=config.loading,
        holdout=config.holdout_fraction,
        folds=config.folds,
        row_bytes=row_bytes(config, number),
        threads=config.workers,
        background=background,
        what="--memory" if config.memory else "the memory that is free,",
    )
    check_rows(config, store, loader)
    return loader


def check_rows(config: TrainConfig, store: Store, loader: Loader) -> None:
    """Refuse a holdout or folds that leave no rows to train on or to test with, and a metric for other labels."""
    check_criterion(config.select_by, store.manifest.labels.task)
    fraction, what = config.holdout_fraction, "{holdout}"
    if config.folds:
        if not loader.folds.sizes.all():
            raise UsageError(f"{{folds={config.folds}}} leaves a fold without rows; choose fewer")
        return
    if loader.training_rows == 0:
        raise UsageError(f"{what} {fraction} leaves no training rows; choose a smaller fraction")
    if fraction and loader.training_rows == store.rows:
        why = "" if config.holdout else " (for the comparison of lambdas)"
        raise UsageError(f"{what} {fraction}{why} selects no holdout rows; choose a larger fraction, or one {{lam}}")


def weights_of(warm_start: Model | None, config: TrainConfig, problem: Problem) -> np.ndarray | None:
    """Return the weights to begin with, as long as a vector of the problem."""
    if warm_start is None:
        return None
    if config.project:
        raise UsageError("{warm_start} and {project} together leave no certificate; leave one of them out")
    if len(problem.specs) > 1 or problem.costs is not None or warm_start.weights.ndim > 1:
        raise UsageError(ONE_MODEL)
    if len(warm_start.weights) > problem.features:
        raise UsageError("{warm_start}: the model has more features than the store; choose a model for this data")
    start = np.zeros(problem.length)
    start[: len(warm_start.weights)] = warm_start.weights
    if warm_start.bias and not problem.bias:
        raise UsageError("{warm_start}: the model has a bias; add {bias=feature}")
    if problem.bias:
        start[-1] = float(warm_start.bias) / problem.bias
    return start


def new_progression(spec: Spec, problem: Problem, algorithm: str) -> Progression:
    """Return the progression of a model before its first epoch."""
    declared = ALGORITHMS[algorithm]
    averaged = not declared.keeps_row_state and spec.clock < AVERAGE_BELOW and problem.can_average
    return Progression(ratio=_AVERAGED_RATIO if averaged else declared.first_ratio)


def no_rows(store: Store) -> CsrBlock:
    """Return a block in the codings of the store, without rows."""
    layout = store.manifest.layout
    coding = coding_in_memory(layout.values)
    values = np.empty(0, VALUE_CODINGS[coding]) if coding else None
    nothing, labels = np.empty(0, CODINGS[layout.index_coding]), np.empty(0, layout.labels)
    return CsrBlock(np.zeros(1, np.int64), nothing, values, labels, store.features, levels=all_levels(layout.levels))


def remark_on_projection(config: TrainConfig, store: Store, problem: Problem) -> str | None:
    """Return a note if the optimum may lie outside the ball of radius 1/sqrt(lambda).

    At the optimum lambda ||w||^2 is the mean of -l'(z) z, at most 1 for losses of classes and weights of at most 1.
    """
    if not config.project:
        return None
    reasons = {
        "real targets": problem.loss.task == "regression",
        "--class-weight": config.class_weight is not None,
        "--cost": config.cost is not None,
        "rows that weigh more than 1": store.manifest.statistics.max_weight > 1,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    return why and f"with {why} the optimum may lie outside the ball of --project, which then is never reached"


def remark_on_grouping(config: TrainConfig, store: Store, loader: Loader) -> str | None:
    """Return a note if rows are grouped by label and processed one group after the other."""
    shape, made = loader.shape, store.manifest
    if made.shuffle_seed is not None or (shape.fits and SAMPLERS[config.sampler].is_shuffled):
        return None
    if made.grouping_by_label() <= GROUPED:
        return None
    where = "one after the other" if shape.fits else f"{shape.budget / 2**20:,.0f} MB of them at a time"
    enough = f", or give --memory {-(-sum(shape.chunk_bytes) // 2**20)}MB" if not shape.fits else ""
    return (
        f"the rows of {store.path} are grouped by label and processed {where}, which slows convergence; "
        f"convert again without --no-shuffle{enough}"
    )
