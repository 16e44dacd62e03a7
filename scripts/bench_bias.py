"""Epochs with an unregularised bias relative to those with a constant feature: covtype, a9a, w8a and synthetic data.

    python scripts/bench_bias.py [--folder DIR] [--tolerance 0.01] [--losses hinge,logistic]

Prints the ratio of epochs of `--bias free` to those of `--bias feature` to the same tolerance, for several lambdas.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from ooc_pegasos import Store, TrainConfig, train

DATASETS = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "datasets.py"
REAL = ("covtype", "a9a", "w8a")
LAMBDAS = (10.0, 1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5)
LIMIT = 1000


def made() -> tuple[sp.csr_matrix, np.ndarray]:
    """Return dense rows with labels separated by a hyperplane that does not contain 0."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50_000, 20)).astype(np.float32)
    score = rows @ rng.standard_normal(20) + 3.0 + rng.standard_normal(len(rows))
    return sp.csr_matrix(rows), np.where(score > 0, 1, -1)


def stores(folder: Path) -> Iterator[tuple[str, Store]]:
    """Yield each data set as a store."""
    loaders = {"made": made}
    if DATASETS.exists():
        spec = importlib.util.spec_from_file_location("datasets", DATASETS)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaders |= {name: lambda name=name: module.load(name)[:2] for name in REAL}
    for name, load in loaders.items():
        path = folder / f"{name}.store"
        yield name, Store.open(path) if path.exists() else Store.from_scipy(*load(), path)


def main() -> None:
    """Run everything and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--losses", default="hinge,logistic")
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, store in stores(options.folder or Path(temporary)):
            for loss in options.losses.split(","):
                for algorithm in ("sdca", "sgd-s"):
                    for lam in LAMBDAS if algorithm == "sdca" else LAMBDAS[:5]:
                        same = {"lam": lam, "loss": loss, "algorithm": algorithm, "tolerance": options.tolerance}
                        feature, free = (
                            train(store, TrainConfig(bias=bias, max_epochs=LIMIT, **same))  # type: ignore[arg-type]
                            for bias in ("feature", "free")
                        )
                        epochs = feature.model.info.epochs, free.model.info.epochs
                        ratios.append(epochs[1] / epochs[0])
                        state = "" if free.converged else " (not certified)"
                        ends = f"{epochs[1]} / {epochs[0]} epochs{state}"
                        print(f"{name} {loss} {algorithm} lambda {lam:g}: {ratios[-1]:.2f} ({ends})", flush=True)
    print(f"ratios: median {np.median(ratios):.2f}, largest {max(ratios):.2f}, at most 2 wanted")


if __name__ == "__main__":
    main()
