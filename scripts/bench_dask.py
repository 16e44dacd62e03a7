"""Training on several processes against one, against dask-ml's way of doing it, and what more parts would need.

    python scripts/bench_dask.py [--only time|peer|parts] [--folder DIR] [--store STORE]

Data: the CCAT-like set of make_ccat_like.py, or a store. Everything is timed in one run and printed as ratios; an
absolute time means nothing on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import report
from make_ccat_like import make, write

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.distributed import train_dask

LAMBDAS = (1e-3, 1e-4)
"""With 800,000 rows lambda m is 800 and 80."""


def store_in(folder: Path) -> Store:
    """The store, made if it is not there."""
    path, text = folder / "ccat-parts.store", folder / "ccat.svm"
    if path.exists():
        return Store.open(path)
    if not text.exists():
        matrix, labels = make(800_000, 47_000, 75, 0)
        write(text, matrix, labels)
    return convert([str(text)], path, ConvertConfig(chunk_size=4 << 20))


def against_one_process(client: Any, store: Store, repeats: int) -> None:
    """Seconds to a certified 1 %, two worker processes against one process."""
    for lam in LAMBDAS:
        config = TrainConfig(lam=lam, tolerance=0.01)
        one, two, moved, rounds = [], [], [], []
        for _ in range(repeats + 1):
            one.append(train(store, config))
            two.append(train_dask(client, store, config))
        ratio = statistics.median(r.seconds for r in two[1:]) / statistics.median(r.seconds for r in one[1:])
        report(f"lambda m = {lam * store.rows:.0f}: two processes / one, to a certified 1 %", ratio, "at most 0.75")
        moved, rounds = two[-1].profile["rounds"]["bytes"], two[-1].profile["rounds"]["number"]
        seconds = statistics.median(r.seconds for r in two[1:])
        gaps = [100 * (r.model.info.certificate.gap or 1) for r in (one[-1], two[-1])]
        print(f"{'':20}one process: {one[-1].algorithm}, {one[-1].model.info.epochs} epochs, certified {gaps[0]:.3f} %")
        print(f"{'':20}two: {two[-1].algorithm}, {rounds:.0f} rounds, certified {gaps[1]:.3f} %")
        print(f"{'':20}{moved / rounds / 1e6:.2f} MB and {seconds / rounds:.2f} s a round")
        same = {r.model.weights.tobytes() for r in two}
        print(f"{'':20}the weights of {len(two)} runs: {len(same)} different")


def in_parts(client: Any, store: Store) -> None:
    """What more parts need: rounds to a certified 1 % and bytes, with workers that do one part after the other."""
    print("parts  lambda m   algorithm  rounds  certified %  bytes up a round")
    for lam in (1e-3, 1e-4, 1e-5):
        best = train(store, TrainConfig(lam=lam, tolerance=1e-4)).model.info.certificate
        for parts in (1, 2, 4, 8, 16, 32, 64):
            config = TrainConfig(lam=lam, tolerance=0.01, max_epochs=100)
            result = train_dask(client, store, config, parts=parts, passes=1)
            certificate = result.model.info.certificate
            assert (certificate.lower_bound or 0) <= best.primal * (1 + 1e-9)
            rounds = result.profile["rounds"]
            print(
                f"{parts:5}  {lam * store.rows:8.0f}  {result.algorithm:>10}  {rounds['number']:6.0f}  "
                f"{100 * (certificate.gap or 1):11.3f}  {8 * store.features * parts:16,}"
            )


def against_incremental(client: Any, store: Store, repeats: int) -> None:
    """scikit-learn's SGDClassifier fed block by block, as dask-ml's Incremental does it, to the same objective."""
    from sklearn.linear_model import SGDClassifier

    lam = 1e-4
    blocks = []
    for block in store.blocks():
        blocks.append((block.to_scipy(), block.labels.copy()))
    result = [train_dask(client, store, TrainConfig(lam=lam, tolerance=0.01)) for _ in range(repeats + 1)]
    ours = statistics.median(r.seconds for r in result[1:])
    goal = result[0].model.info.certificate.primal
    theirs, passes = 0.0, 0
    model = SGDClassifier(loss="hinge", alpha=lam, fit_intercept=False, average=False, random_state=0)
    reached = np.inf
    while reached > goal and passes < 30:
        began = time.perf_counter()
        for rows, labels in blocks:
            model.partial_fit(rows, labels, classes=[-1, 1])
        theirs += time.perf_counter() - began
        passes += 1
        w = model.coef_.ravel()
        losses = sum(np.maximum(0, 1 - labels * (rows @ w)).sum() for rows, labels in blocks)
        reached = lam / 2 * float(w @ w) + losses / store.rows
    told = "reached" if reached <= goal else f"not reached in {passes} passes ({reached:.5f} instead of {goal:.5f})"
    report("SGDClassifier block by block / two processes, to the same objective", theirs / ours, "at least 5")
    print(f"{'':20}{told}, {passes} passes")


def main() -> None:
    """Print the tables."""
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["time", "peer", "parts"])
    parser.add_argument("--folder", type=Path, help="where to keep the data, to be used again")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        store = Store.open(options.store) if options.store else store_in(folder)
        cluster_of: Any = LocalCluster
        with (
            cluster_of(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster) as client,
        ):
            if options.only in (None, "time"):
                against_one_process(client, store, options.repeats)
            if options.only in (None, "peer"):
                against_incremental(client, store, options.repeats)
            if options.only in (None, "parts"):
                in_parts(client, store)


if __name__ == "__main__":
    main()
