"""Run time of `oocpeg prove`, as a multiple of a training epoch over the same rows in the same run.

    python scripts/bench_prove.py [--repeats 5]

Data: a CCAT-like set made by make_ccat_like.py, and arxiv_math of ../shared/data if present. Both read the store from
the page cache; the epoch is one of Pegasos (sgd-s) in one thread, the check has two. Wall-clock seconds, the minimum of
some alternating runs, need both cores to be free; processor seconds do not.
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
from ooc_pegasos.proof.check import prove

EPOCHS = 4


def measure(name: str, matrix: sp.csr_matrix, labels: np.ndarray, folder: Path, repeats: int) -> None:
    """Train and check the proof alternately."""
    store = Store.from_scipy(matrix, labels, folder / "store")
    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    for _ in range(repeats + 1):
        for way in ("read", "memory", "recorded"):
            memory = int(1.2 * store.manifest.bytes) if way == "read" else 1 << 40
            config = TrainConfig(
                lam=1e-4, max_epochs=EPOCHS, tolerance=1e-12, algorithm="sgd-s", memory=memory, threads=1, delay=0.0
            )
            began = time.process_time()
            result = train(store, config, proof=folder / "proof" if way == "recorded" else None)
            note(f"{way}, processors", (time.process_time() - began) / EPOCHS)
            note(way, statistics.median(cost.seconds for cost in result.costs[1:]))
        result.model.save(folder / "model")
        began, began_processors = time.perf_counter(), time.process_time()
        prove(folder / "model", store.path, folder / "proof")
        note("prove", time.perf_counter() - began)
        note("prove, processors", time.process_time() - began_processors)
    least = {way: min(some[1:]) for way, some in found.items()}
    report(f"{name}: prove / an epoch that reads the store", least["prove"] / least["read"], "at most 1.5")
    report(f"{name}: prove / an epoch over rows in memory", least["prove"] / least["memory"], "at most 1.5")
    processors = least["prove, processors"] / least["read, processors"]
    report(f"{name}: the same in seconds of processors, the store read", processors, "")
    report(f"{name}: an epoch with --proof / without", least["recorded"] / least["memory"], "")


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
