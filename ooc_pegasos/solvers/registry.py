"""Which solver suits a run, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ooc_pegasos.compiled.fit.losses import HINGE
from ooc_pegasos.compiled.fit.pegasos import NO_FREE, PROXIMAL
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.loading.loader import Loader
from ooc_pegasos.loading.samplers import EQUALLY_OFTEN
from ooc_pegasos.objective.model_panel import width_of
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.base import APART, Solver
from ooc_pegasos.solvers.dual_store import BYTES_A_MODEL, BYTES_A_ROW, LONGEST, RowStates
from ooc_pegasos.solvers.pegasos import PegasosOptions
from ooc_pegasos.solvers.pegasos_group import Manner, PegasosSolver
from ooc_pegasos.solvers.pegasos_threads import Averaging
from ooc_pegasos.solvers.sdca import SdcaSolver

AVERAGE_BELOW = 20.0
"""lam m below which the average of an epoch is a better candidate than its end."""
PEGASOS_FROM = 0.75
"""lam m times the tolerance, in units of the largest squared norm of a row, from which on an epoch or two will do."""


def choose_algorithm(config: TrainConfig, problem: Problem, warm: bool) -> tuple[str, str]:
    """(the algorithm, why), where the user leaves it open."""
    if config.algorithm == "sdca" and warm:
        raise UsageError("{algorithm=sdca} cannot begin with a model; leave out {warm_start}, or choose sgd-s")
    if config.algorithm == "sgd-m" and problem.costs is None and problem.loss.number != HINGE:
        raise UsageError(
            f"{{algorithm=sgd-m}} counts margin errors, which the {problem.loss.name} loss has not; choose sgd-s"
        )
    if config.algorithm != "auto":
        return config.algorithm, ""
    if warm:
        return "sgd-s", "it can begin with the weights of a model"
    if problem.costs is not None:
        return "sgd-s", "it can learn all classes at once"
    if config.of_pegasos:
        return "sgd-s", f"only it knows {config.of_pegasos[0]}"
    least = min(spec.clock for spec in problem.specs)
    if config.threads and config.threads > 1 and Averaging.clock_problem(least, config.threads) is None:
        return "sgd-s", "its threads can average"
    if is_easy(least, config.enough, problem.largest):
        return "sgd-s", f"lambda times rows is {least:.3g}, so an epoch or two will do"
    return "sdca", f"lambda times rows is {least:.3g}, where it needs the fewest passes"


def is_easy(clock: float, enough: float, largest: float) -> bool:
    """Whether Pegasos is certain of its model after an epoch or two, given lam m and the largest squared norm."""
    return clock * enough >= PEGASOS_FROM * largest


def why_uncertified(config: TrainConfig, algorithm: str) -> str | None:
    """Why no bound on the gap can be had, if so."""
    if config.sampler not in EQUALLY_OFTEN and algorithm != "sdca":
        return "i.i.d. sampling presents rows unequally often, so there is no certificate"
    return None


def make_solver(
    config: TrainConfig,
    algorithm: str,
    problem: Problem,
    loader: Loader,
    start: np.ndarray | None,
    scratch: Path | None,
) -> tuple[Solver, str | None]:
    """The solver, and a remark on what could not be had."""
    refuse_of_classes(config, algorithm, problem)
    if algorithm == "sdca":
        rows = RowStates(loader.store, problem.bias, loader.shape.fits, scratch)
        several = config.threads is not None and config.threads > 1 and len(problem.specs) == 1
        remark = "one thread presents rows and the others load data" if several else None
        longest = loader.store.manifest.statistics.max_row_norm
        if longest > LONGEST:
            remark = f"from rows of norm {longest:.3g} sdca cannot learn; scale the data, as --normalize l2 does"
        return SdcaSolver(problem, rows, config.enough, config.workers), remark
    if config.bias == "search" and why_uncertified(config, algorithm):
        raise UsageError("{bias=search} compares biases by their certificates; choose {algorithm=sdca}")
    options = options_of(config, algorithm, problem, start)
    unknown = [name for name in config.of_pegasos if name != "{delay}"]
    if algorithm in ("sgd-m", "pegasos"):
        unknown.append(f"--algorithm {algorithm}")
    if not problem.plain and unknown:
        what = (
            "{folds}" if config.folds else "{bias=search}" if config.bias == "search" else "one class against the rest"
        )
        raise UsageError(f"{what} and {unknown[0]} do not go together; leave one of them out")
    remark, threads = None, 1
    if config.threads and config.threads > 1:
        remark = Averaging.problem(options[0], loader.training_rows, config.threads)
        if len(options) > 1 or problem.costs is not None:
            remark = "several models are presented together"
        if remark:
            remark = f"one thread presents rows and the others load data: {remark}"
        else:
            threads = config.threads
    manner = Manner(algorithm, why_uncertified(config, algorithm) is None, threads)
    return PegasosSolver(problem, options, manner, start, config.workers), remark


def refuse_of_classes(config: TrainConfig, algorithm: str, problem: Problem) -> None:
    """Refuse what cannot learn all classes at once, if they are to be."""
    if problem.costs is None:
        return
    unknown = [name for name in config.of_pegasos if name != "{delay}"]
    if algorithm != "sgd-s":
        unknown.append(f"--algorithm {algorithm}")
    if unknown:
        raise UsageError(f"all classes at once are learnt without {unknown[0]}; leave it out, or choose {{loss=hinge}}")


def options_of(config: TrainConfig, algorithm: str, problem: Problem, start: np.ndarray | None) -> list[PegasosOptions]:
    """The options of Pegasos for each model."""
    return [_pegasos_options(config, algorithm, problem, model, start) for model in range(len(problem.specs))]


def _pegasos_options(
    config: TrainConfig, algorithm: str, problem: Problem, model: int, start: np.ndarray | None
) -> PegasosOptions:
    spec = problem.specs[model]
    paper = algorithm == "pegasos"
    delay = config.delay if config.delay is not None else (0.0 if paper else 3.0 * problem.largest / spec.lam)
    if start is not None:
        delay = max(delay, float(spec.rows))
    low = not paper and algorithm != "sgd-r" and spec.clock < AVERAGE_BELOW
    return PegasosOptions(
        spec.lam,
        delay,
        problem.loss.number,
        spec.class_weights,
        min(config.batch_size, spec.rows),
        config.project,
        config.average or (low and problem.can_average),
        paper and config.average,
        problem.parameter,
        problem.bias if problem.free in (NO_FREE, PROXIMAL) else 0.0,
        problem.free,
        problem.longest_step,
    )


def row_bytes(config: TrainConfig, models: int) -> int:
    """What a solver keeps of each row of a window, if it may be dual coordinate ascent."""
    if config.algorithm not in ("auto", "sdca") or (config.loss or "").startswith("multiclass"):
        return 0
    return BYTES_A_ROW + BYTES_A_MODEL * (models if models <= APART else width_of(models))
