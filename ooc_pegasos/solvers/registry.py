"""Choice of the solver for a run, with its reason, and the functions that make solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooc_pegasos.algorithms import ALGORITHMS, ANY, SDCA, SGD, Algorithm, lacking
from ooc_pegasos.compiled.fit.pegasos import NO_FREE_BIAS, PROXIMAL
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.objective.model_panel import width_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.registry import LOSSES, SAMPLERS
from ooc_pegasos.solvers.base import Solver
from ooc_pegasos.solvers.dual_store import BYTES_PER_MODEL, BYTES_PER_ROW, MAX_NORM, RowStates
from ooc_pegasos.solvers.pegasos import PegasosOptions
from ooc_pegasos.solvers.pegasos_group import PegasosSolver, SharedOptions
from ooc_pegasos.solvers.pegasos_threads import Averaging
from ooc_pegasos.solvers.row_cache import RowCache, capacity_of
from ooc_pegasos.solvers.row_group import MAX_SEPARATE
from ooc_pegasos.solvers.sdca import SdcaSolver

AVERAGE_BELOW = 20.0
"""lam m below which the average of an epoch is a better candidate than its end."""
PEGASOS_FROM = 0.75
"""lam m times the tolerance, in units of the largest squared norm of a row, above which one or two epochs suffice."""
OF_PLAIN_MODELS = ("batch_size", "project", "average", "bias=unregularized", "bias=batch")
"""The options that no solver supports for models with different labels, rows or biases, or with joint losses."""
_LARGEST_SQUARE = 2000.0
"""Squared norm of a row, in units of lambda m, up to which active rows are kept in memory."""


@dataclass(frozen=True)
class Run:
    """The run for which a solver is made."""

    config: TrainConfig
    problem: Problem
    loader: Loader
    start: np.ndarray | None
    """The weights to begin with."""
    scratch: Path | None
    """The folder for temporary files."""


Maker = Callable[[Algorithm, Run], tuple[Solver, str | None]]
"""Makes a solver for an algorithm, with a note on unsupported options. Raises UsageError."""


def register(algorithm: Algorithm, make: Maker) -> None:
    """Add an algorithm."""
    ALGORITHMS.register(algorithm.name, algorithm)
    _MAKERS[algorithm.name] = make


def unregister(name: str) -> None:
    """Remove an algorithm that was added."""
    ALGORITHMS.unregister(name)
    del _MAKERS[name]


def choose_algorithm(config: TrainConfig, problem: Problem, warm: bool) -> tuple[str, str]:
    """Return (algorithm, reason); check a requested algorithm."""
    if config.algorithm != ANY:
        _check(ALGORITHMS.find(config.algorithm), problem, warm)
        return config.algorithm, ""
    sdca = ALGORITHMS[SDCA]
    unsupported = [mark for capability, mark in config.demands.items() if capability not in sdca.supports]
    if problem.loss.largest_dual is not None:
        _check(sdca, problem, warm)
        if unsupported:
            raise UsageError(
                f"{{loss={problem.loss.name}}} needs dual coordinate ascent, which does not support {unsupported[0]}; "
                "leave it out, or choose another loss"
            )
        return SDCA, f"the {problem.loss.name} loss needs dual steps"
    if warm:
        return SGD, "it can begin with the weights of a model"
    if problem.costs is not None:
        return SGD, "it supports joint multiclass losses"
    if unsupported:
        return SGD, f"only it supports {unsupported[0]}"
    if not problem.loss.has_dual_step:
        return SGD, f"the {problem.loss.name} loss has no dual step"
    min_clock = min(spec.clock for spec in problem.specs)
    if config.threads and config.threads > 1 and Averaging.clock_problem(min_clock, config.threads) is None:
        return SGD, "its threads can average"
    return choice_by_clock(min_clock * problem.unit, config.enough, problem.largest)


def choice_by_clock(clock: float, enough: float, largest: float) -> tuple[str, str]:
    """Return (the algorithm, why) for a new model: Pegasos if it certainly needs at most one or two epochs.

    The arguments are lam m, the tolerance and the largest squared norm of a row.
    """
    size = f"lambda times rows is {clock:.3g}"
    if clock * enough >= PEGASOS_FROM * largest:
        return SGD, f"{size}, so one or two epochs suffice"
    return SDCA, f"{size}, where it needs the fewest passes"


def can_take_over(algorithm: str, config: TrainConfig, problem: Problem, warm: bool) -> bool:
    """True if an algorithm supports all options of a run."""
    declared = ALGORITHMS[algorithm]
    needed = set(config.demands) | ({"warm_start"} if warm else set())
    needed |= {"all classes"} if problem.costs is not None else set()
    return needed <= declared.supports and (problem.loss.has_dual_step or not declared.needs_dual_step)


def _check(algorithm: Algorithm, problem: Problem, warm: bool) -> None:
    """Raise UsageError for a loss or a beginning that an algorithm does not support."""
    loss = problem.loss
    if warm and "warm_start" not in algorithm.supports:
        raise UsageError(lacking(algorithm, "warm_start", "{warm_start}"))
    if algorithm.needs_margin_errors and problem.costs is None and not loss.counts_margin_errors:
        suitable = " or ".join(f"{{loss={one.name}}}" for one in LOSSES.values() if one.counts_margin_errors)
        raise UsageError(
            f"{{algorithm={algorithm.name}}} counts margin errors, which {{loss={loss.name}}} does not have; "
            f"choose {suitable}"
        )
    if loss.largest_dual is not None and not algorithm.needs_dual_step:
        raise UsageError(
            f"{{algorithm={algorithm.name}}} diverges with {{loss={loss.name}}}, whose slope has no limit; "
            "choose {algorithm=sdca}"
        )
    if algorithm.needs_dual_step and not loss.has_dual_step:
        raise UsageError(
            f"{{algorithm={algorithm.name}}} takes dual steps, which {{loss={loss.name}}} does not have; "
            "choose another algorithm"
        )


def why_uncertified(config: TrainConfig, algorithm: str) -> str | None:
    """Return why there is no certificate, or None."""
    declared = ALGORITHMS[algorithm]
    if not declared.is_certified:
        return f"the algorithm {algorithm} has no certificate"
    if declared.needs_equal_sampling and not SAMPLERS[config.sampler].is_equally_often:
        return f"{config.sampler} sampling does not process all rows equally often, so there is no certificate"
    return None


def make_solver(
    config: TrainConfig,
    algorithm: str,
    problem: Problem,
    loader: Loader,
    start: np.ndarray | None,
    scratch: Path | None,
) -> tuple[Solver, str | None]:
    """Return the solver, and a note on unsupported options or None."""
    declared = ALGORITHMS[algorithm]
    refuse_of_classes(config, algorithm, problem)
    if config.bias == "search" and why_uncertified(config, algorithm):
        raise UsageError("{bias=search} compares biases by their certificates; choose {algorithm=sdca}")
    _check_several_models(config, declared, problem)
    return _MAKERS[algorithm](declared, Run(config, problem, loader, start, scratch))


def caches_rows(config: TrainConfig, problem: Problem, loader: Loader) -> bool:
    """True if dual coordinate ascent keeps active rows in memory, because the store is larger.

    It does not pay where little memory is left for them, where lambda is so small that its continuation needs many
    epochs, and for several lambdas with an unregularized bias, where that of the smallest lambda takes longest.
    """
    if loader.shape.fits or 2 * capacity_of(loader) < loader.shape.budget + loader.reserved:
        return False
    sampler, statistics = SAMPLERS[config.sampler], loader.store.manifest.statistics
    square = statistics.mean_weight * (statistics.mean_row_norm**2 + problem.bias**2)
    is_small = square > _LARGEST_SQUARE * min(spec.clock for spec in problem.specs)
    is_slow = problem.free != NO_FREE_BIAS and len({spec.lam for spec in problem.specs}) > 1
    return sampler.is_equally_often and sampler.is_shuffled and not is_small and not is_slow


def _make_sdca(_algorithm: Algorithm, run: Run) -> tuple[Solver, str | None]:
    config, problem, loader = run.config, run.problem, run.loader
    rows = RowStates(loader.store, problem.bias, loader.shape.fits, run.scratch)
    if caches_rows(config, problem, loader):
        rows.cache = RowCache(loader, len(problem.specs), row_bytes(config, len(problem.specs)))
    several = config.threads is not None and config.threads > 1 and len(problem.specs) == 1
    remark = "one thread processes rows and the others load data" if several else None
    longest = loader.store.manifest.statistics.max_row_norm
    if longest > MAX_NORM:
        remark = (
            f"the norm {longest:.3g} of a row is too large for sdca; scale the data, for example with --normalize l2"
        )
    return SdcaSolver(problem, rows, config.enough, config.workers), remark


def _make_pegasos(algorithm: Algorithm, run: Run) -> tuple[Solver, str | None]:
    config, problem, loader = run.config, run.problem, run.loader
    options = options_of(config, algorithm.name, problem, run.start)
    remark, threads = None, 1
    if config.threads and config.threads > 1:
        remark = Averaging.problem(options[0], loader.training_rows, config.threads)
        if len(options) > 1 or problem.costs is not None:
            remark = "several models are trained together"
        if remark:
            remark = f"one thread processes rows and the others load data: {remark}"
        else:
            threads = config.threads
    manner = SharedOptions(
        algorithm.name, why_uncertified(config, algorithm.name) is None, threads, algorithm.keeps_best
    )
    return PegasosSolver(problem, options, manner, run.start, config.workers), remark


_MAKERS: dict[str, Maker] = {SDCA: _make_sdca} | dict.fromkeys((SGD, "sgd-m", "sgd-r", "pegasos"), _make_pegasos)


def _check_several_models(config: TrainConfig, algorithm: Algorithm, problem: Problem) -> None:
    """Refuse options that are not supported for models with different labels, rows or biases."""
    if problem.plain:
        return
    unknown = [mark for name, mark in config.demands.items() if name in OF_PLAIN_MODELS]
    if "several models" not in algorithm.supports:
        unknown.append(f"{{algorithm={algorithm.name}}}")
    if unknown:
        what = (
            "{folds}" if config.folds else "{bias=search}" if config.bias == "search" else "one class against the rest"
        )
        raise UsageError(f"{what} and {unknown[0]} do not go together; leave one of them out")


def refuse_of_classes(config: TrainConfig, algorithm: str, problem: Problem) -> None:
    """Refuse algorithms and options that do not support joint multiclass losses."""
    if problem.costs is None:
        return
    unknown = [mark for name, mark in config.demands.items() if name in OF_PLAIN_MODELS]
    if "all classes" not in ALGORITHMS[algorithm].supports:
        unknown.append(f"{{algorithm={algorithm}}}")
    if unknown:
        raise UsageError(f"joint multiclass losses do not support {unknown[0]}; leave it out, or choose {{loss=hinge}}")


def options_of(config: TrainConfig, algorithm: str, problem: Problem, start: np.ndarray | None) -> list[PegasosOptions]:
    """Return the options of Pegasos for each model."""
    return [_pegasos_options(config, algorithm, problem, model, start) for model in range(len(problem.specs))]


def _pegasos_options(
    config: TrainConfig, algorithm: str, problem: Problem, model: int, start: np.ndarray | None
) -> PegasosOptions:
    spec = problem.specs[model]
    declared = ALGORITHMS[algorithm]
    delay = config.delay if config.delay is not None else declared.default_delay
    if delay is None:
        delay = 3.0 * problem.largest / (spec.lam * problem.unit)
    if start is not None:
        delay = max(delay, float(spec.rows))
    low = declared.may_average and spec.clock < AVERAGE_BELOW
    return PegasosOptions(
        spec.lam,
        delay,
        problem.loss.number,
        spec.class_weights,
        min(config.batch_size, spec.rows),
        config.project,
        config.average or (low and problem.can_average),
        config.average and not declared.keeps_best,
        problem.parameter,
        problem.bias if problem.free in (NO_FREE_BIAS, PROXIMAL) else 0.0,
        problem.free,
        problem.max_step,
    )


def row_bytes(config: TrainConfig, models: int) -> int:
    """Return the bytes of row states for each row of a window, 0 if no possible solver has row states."""
    may_keep = config.algorithm == ANY or ALGORITHMS.find(config.algorithm).keeps_row_state
    if not may_keep or (config.loss and LOSSES.find(config.loss).task == "multiclass"):
        return 0
    return BYTES_PER_ROW + BYTES_PER_MODEL * (models if models <= MAX_SEPARATE else width_of(models))
