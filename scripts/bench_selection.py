"""The default model, whose lambda is searched for, relative to a grid search of scikit-learn that sees the test set.

    python scripts/bench_selection.py [--only NAME ...] [--grid FILE] [--losses hinge logistic]
    python scripts/bench_selection.py --joint --only usps news20 sector

For each data set: the test error of the default model minus that of the best of 13 models of LinearSVC (hinge) or
LogisticRegression, in points, and the time of the default search relative to that of the eight lambdas alone to 0.5 %
(`refit=False`) and to the time of one lambda. Real sets are those of ../shared/data, if they are there; the others
are generated. `--grid` keeps the errors of the grid in a file, because scikit-learn takes most of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS

from ooc_pegasos import ConvertConfig, Store, TrainConfig, train
from ooc_pegasos.reporting.progress import TrainingProgress

GRID = np.logspace(-4, 2, 13)
REAL = ("usps", "mnist8", "mnist", "a9a", "w8a", "sector", "news20", "reuters_money_fx", "covtype", "arxiv_math")
Data = tuple[sp.csr_matrix, np.ndarray, sp.csr_matrix, np.ndarray]


def real(name: str) -> Data:
    """Load a real set."""
    sys.path.insert(0, str(DATASETS.parent))
    import datasets

    train_rows, train_labels, test_rows, test_labels = datasets.load(name.removesuffix("8"))
    if name == "mnist8":
        train_labels, test_labels = (np.where(labels == 8, 1.0, -1.0) for labels in (train_labels, test_labels))
    return train_rows, train_labels, test_rows, test_labels


def generated(name: str) -> Data:
    """Make a set: `noisy` has few rows and many flipped labels, `rare` 1 % of positive rows, `wide` more columns."""
    kind, seed = name.split("-")
    rng = np.random.default_rng([len(kind), int(seed)])
    rows, columns, density, noise, share = {
        "noisy": (5_000, 200, 0.3, 0.2, 0.5),
        "rare": (60_000, 300, 0.1, 0.002, 0.01),
        "wide": (4_000, 40_000, 0.002, 0.05, 0.3),
        "clean": (20_000, 1_000, 0.05, 0.0, 0.5),
        "dense": (30_000, 60, 1.0, 0.1, 0.2),
    }[kind]
    number = rows + 20_000
    matrix = sp.random(number, columns, density, "csr", np.float32, rng, data_rvs=rng.standard_normal)
    scores = matrix @ (rng.standard_normal(columns) * np.geomspace(1, 0.03, columns))
    scores += 0.3 * scores.std() * rng.standard_normal(number)
    labels = np.where(scores > np.quantile(scores, 1 - share), 1.0, -1.0)
    labels[rng.random(number) < noise] *= -1
    return matrix[:rows], labels[:rows], matrix[rows:], labels[rows:]


def sets(only: list[str]) -> Iterator[tuple[str, Data]]:
    """Yield the data sets."""
    made = [f"{kind}-{seed}" for kind in ("noisy", "rare", "wide", "clean", "dense") for seed in (0, 1)]
    for name in only or [*made, *(REAL if DATASETS.exists() else ())]:
        yield name, generated(name) if "-" in name else real(name)
    if not DATASETS.exists():
        print("the real sets are not there: skipped")


def grid_errors(loss: str, data: Data) -> tuple[list[float], float]:
    """Return the test errors of the grid of scikit-learn, and its time."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    rows, labels, test_rows, test_labels = data
    errors, began = [], time.perf_counter()
    warnings.simplefilter("ignore")
    for c in GRID:
        several = len(np.unique(labels)) > 2
        model: Any = LinearSVC(C=c, loss="hinge", max_iter=1000)
        if loss == "logistic":
            model = LogisticRegression(C=c, max_iter=200, solver="lbfgs" if several else "liblinear")
        model.fit(rows, labels)
        errors.append(float((model.predict(test_rows) != test_labels).mean()))
    return errors, time.perf_counter() - began


def test_error(model: Any, rows: sp.csr_matrix, labels: np.ndarray) -> float:
    """Return the error of one of our models."""
    weights = model.weights
    scores = rows[:, : len(weights)] @ weights + model.bias
    classes = np.array([float(name) for name in model.info.labels.classes])
    found = classes[scores.argmax(axis=1)] if scores.ndim > 1 else np.where(scores > 0, classes[1], classes[0])
    return float((found != labels).mean())


def measure(name: str, loss: str, data: Data, folder: Path, known: dict[str, Any]) -> float:
    """Print the line of a set; returns the regret in points."""
    rows, labels, test_rows, test_labels = data
    path = folder / f"{name}.store"
    store = Store.open(path) if path.exists() else Store.from_scipy(rows, labels, path)
    key = f"{name} {loss}"
    if key not in known:
        known[key] = grid_errors(loss, data)
    errors, seconds_of_grid = known[key]
    given = None if loss == "hinge" else loss
    train(store, TrainConfig(loss=given, max_epochs=1))  # compiles, and reads the data
    found = train(store, TrainConfig(loss=given))
    eight = train(store, TrainConfig(loss=given, refit=False))
    one = train(store, TrainConfig(loss=given, lam=found.model.info.lam, bias="feature", tolerance=0.005))
    error, before = (test_error(one.model, test_rows, test_labels) for one in (found, eight))
    regret = 100 * (error - min(errors))
    lambdas = [trial.lam for trial in found.trials]
    print(
        f"{name:17} {loss:9} regret {regret:6.2f} points ({100 * error:5.2f} % / {100 * min(errors):5.2f} %; eight "
        f"lambdas: {100 * (before - min(errors)):5.2f})  time / eight lambdas {found.seconds / eight.seconds:5.2f}, "
        f"/ the chosen one {found.seconds / one.seconds:5.1f}, / scikit-learn's grid "
        f"{found.seconds / seconds_of_grid:6.3f}; {len(lambdas)} lambdas, place {lambdas.index(found.model.info.lam)}",
        flush=True,
    )
    return regret


def compare_joint(name: str, data: Data, folder: Path) -> None:
    """Print test error, processor time and gap of joint training of all classes and of one model for each class."""
    rows, labels, test_rows, test_labels = data
    store = Store.from_scipy(rows, labels, folder / f"{name}.joint", config=ConvertConfig(task="multiclass"))
    for loss in ("logistic", "multiclass-logistic", "hinge", "multiclass-hinge"):
        train(store, TrainConfig(loss=loss, max_epochs=1), progress=TrainingProgress())  # compiles
        began = time.process_time()
        found = train(store, TrainConfig(loss=loss), progress=TrainingProgress())
        seconds, error = time.process_time() - began, 100 * test_error(found.model, test_rows, test_labels)
        print(
            f"{name:17} {loss:19} error {error:5.2f} %, {seconds:6.1f} s, gap {100 * (found.gap or 0):.2g} %",
            flush=True,
        )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--losses", nargs="*", default=["hinge", "logistic"])
    parser.add_argument("--joint", action="store_true", help="joint training of several classes against one a class")
    parser.add_argument("--rows", type=int, help="train on so many rows, chosen at random")
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    known = json.loads(given.grid.read_text()) if given.grid and given.grid.exists() else {}
    regrets = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in sets(given.only):
            if given.joint:
                chosen = np.random.default_rng(0).permutation(len(data[1]))[: given.rows]
                compare_joint(name, (data[0][chosen], data[1][chosen], *data[2:]), Path(scratch))
                continue
            for loss in given.losses:
                regrets.append(measure(name, loss, data, given.folder or Path(scratch), known))
                if given.grid:
                    given.grid.write_text(json.dumps(known))
    if regrets:
        print(
            f"{len(regrets)} results: mean regret {np.mean(regrets):.3f} points (at most 0.1), worst {max(regrets):.2f}"
        )


if __name__ == "__main__":
    main()
