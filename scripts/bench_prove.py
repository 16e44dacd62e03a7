"""How long `oocpeg prove` takes, as a multiple of a training epoch over the same rows in the same run.

    python scripts/bench_prove.py [--repeats 5]

Data: a CCAT-like set made by make_ccat_like.py, and arxiv_math of ../shared/data if it is there. Both read the store from
the page cache; an epoch is one of Pegasos (sgd-s) by one thread, in windows of half the store that are read each time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS, report
from make_ccat_like import make

from ooc_pegasos import Store, TrainConfig, train
from ooc_pegasos.proving import prove

EPOCHS = 4


def measure(name: str, matrix: sp.csr_matrix, labels: np.ndarray, folder: Path, repeats: int) -> None:
    """Train, and check the proof, by turns."""
    store = Store.from_scipy(matrix, labels, folder / "store")
    ratios: dict[str, list[float]] = {"read": [], "memory": [], "recorded": []}
    for _ in range(repeats + 1):
        epochs = {}
        for way in ratios:
            memory = int(1.2 * store.manifest.bytes) if way == "read" else 1 << 40
            config = TrainConfig(
                lam=1e-4, max_epochs=EPOCHS, tolerance=1e-12, algorithm="sgd-s", memory=memory, threads=1, delay=0.0
            )
            result = train(store, config, proof=folder / "proof" if way == "recorded" else None)
            epochs[way] = min(cost.seconds for cost in result.costs)
        result.model.save(folder / "model")
        began = time.perf_counter()
        prove(folder / "model", store.path, folder / "proof")
        took = time.perf_counter() - began
        ratios["read"].append(took / epochs["read"])
        ratios["memory"].append(took / epochs["memory"])
        ratios["recorded"].append(epochs["recorded"] / epochs["memory"])
    found = {way: statistics.median(some[1:]) for way, some in ratios.items()}
    report(f"{name}: prove / an epoch that reads the store", found["read"], "at most 1.5")
    report(f"{name}: prove / an epoch over rows in memory", found["memory"], "")
    report(f"{name}: an epoch with --proof / without", found["recorded"], "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        measure("CCAT-like", *make(200_000, 47_000, 75, 0), Path(name), repeats)
    if not DATASETS.exists():
        print("skipped: the data sets are not here (../shared/data)")
        return
    sys.path.insert(0, str(DATASETS.parent))
    from datasets import load

    matrix, labels, _matrix, _labels = load("arxiv_math")
    with tempfile.TemporaryDirectory() as name:
        measure("arxiv_math", matrix, labels, Path(name), repeats)


if __name__ == "__main__":
    main()
