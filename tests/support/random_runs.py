"""Random small training runs, each a function of its seed alone, to be compared with the truth.

Norms of rows go from 1e-6 to 1e6, weights of rows from 1e-9 to 1e9, lambda from 1e-12 to 1e3.
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, train
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.objective.losses import LOSSES
from ooc_pegasos.objective.problem import count_models
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.util.checkpoint import FILE_NAME
from support.exact import MARGIN_LOSSES, TARGET_LOSSES
from support.truth import Report, judged

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
    room: float = 1.0
    """Memory for this many times the small windows."""
    stop_after: int | None = None
    """Slices of rows after which the run is interrupted, to be resumed from its checkpoint."""
    warm: float | None = None
    """The factor by which the weights that the run begins with are too large, if it begins with a model."""
    parts: int | None = None
    """Of a distributed run."""
    saved: bool = False
    """True if the model is read from a file."""


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


def cached_case_of(seed: int) -> Case:
    """The case of a seed for a store larger than memory, of which dual coordinate ascent keeps active rows."""
    rng = np.random.default_rng([seed, 2])
    case = _case(rng, most_rows=250, least_rows=100, tasks=[0.65, 0.25, 0.1, 0])
    unknown = ("sampling", "batch_size", "project", "average", "delay", "folds")
    options = {name: value for name, value in case.options.items() if name not in unknown}
    if options.get("bias") in ("search", "unregularized", "batch"):
        del options["bias"]
    square = float(case.matrix.multiply(case.matrix).sum()) / case.matrix.shape[0]
    lam = square / case.matrix.shape[0] * float(10.0 ** rng.uniform(-2, 2))
    options |= {"algorithm": "sdca", "lam": lam if rng.random() < 0.7 or "refit" not in options else (lam, lam * 10)}
    case.options = options | {"max_epochs": min(options["max_epochs"], 40)}
    case.storing |= {"shuffle": True, "chunk_size": 1024}
    case.small_windows, case.room, case.warm = True, 2.2, None
    return case


def _case(
    rng: np.random.Generator, most_rows: int, least_rows: int = 6, tasks: Sequence[float] = (0.6, 0.25, 0.07, 0.08)
) -> Case:
    task = str(rng.choice(["binary", "regression", "one class a model", "all classes"], p=tasks))
    several = "class" in task
    rows = int(rng.integers(least_rows, (most_rows // 2 if several else most_rows) + 1))
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
    if task == "binary" and values != "float16" and rng.random() < 0.1:
        x, labels = _easily_separated(rng, rows, features, options)
    entries = sp.coo_matrix(x)
    matrix = sp.csr_matrix((entries.data, (entries.row, places[entries.col])), (rows, width), np.float32)
    case = Case(matrix, labels, weights, storing, options)
    case.small_windows = bool(rng.random() < 0.4)
    case.saved = bool(rng.random() < 0.2)
    if rng.random() < 0.08 and can_be_free(options):
        make_free(options)
    if rng.random() < 0.12 and options.get("bias") != "search":
        case.stop_after = int(rng.integers(1, 20))
    plain = "class" not in task and not isinstance(options["lam"], tuple) and "folds" not in options
    if options["algorithm"] == "sgd-s" and plain and "project" not in options and rng.random() < 0.15:
        case.warm = float(rng.choice([1.0, -30.0, 10.0 ** rng.uniform(0, 18)]))
    if isinstance(options["lam"], tuple):
        options["refit"] = bool(rng.random() < 0.5)
    elif plain and rows >= 15 and case.warm is None and "holdout" not in options and rng.random() < 0.1:
        make_search(options, rng)
    return case


def make_search(options: dict[str, Any], rng: np.random.Generator) -> None:
    """Leave lambda out, so that the best one is searched for."""
    if options["algorithm"] in ("pegasos", "sgd-m") or options.get("bias") == "search":
        return
    options["lam"], options["max_epochs"] = None, min(options["max_epochs"], 40)
    options["tolerance"] = max(options["tolerance"], 1e-3)
    if rng.random() < 0.3 and not {"batch_size", "project"} & set(options) and options["algorithm"] != "sgd-m":
        options["folds"] = 2
    elif rng.random() < 0.3:
        options["refit"] = False


def can_be_free(options: dict[str, Any]) -> bool:
    """True if the other options go together with `--bias free`."""
    at_once = options["loss"].startswith("multiclass")
    return options["algorithm"] != "pegasos" and "project" not in options and not at_once


def make_free(options: dict[str, Any]) -> None:
    """Choose a bias that is not regularised."""
    options.pop("bias_scale", None)
    options["bias"] = "free"


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
    elif loss == "epsilon-insensitive":  # whose default follows the targets
        options["loss_parameter"] = 0.1
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
            if options.get("bias") == "unregularized":
                del options["bias"]  # refused with folds
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
    return TrainConfig(**case.options, memory=int(case.room * open_loader(store, 1 << 62, **apart).shape.min_budget))


class Interrupting(TrainingProgress):
    """Interrupts the run after some slices of rows, as Ctrl-C does."""

    def __init__(self, slices: int) -> None:
        self._left = slices

    def presented(self, epoch: int, rows: int, total: int) -> None:
        self._left -= 1
        if not self._left:
            signal.raise_signal(signal.SIGINT)


def run_case(case: Case, folder: Path, trainer: Trainer = train) -> Report:
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
