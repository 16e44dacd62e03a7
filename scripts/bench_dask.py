"""Training on several processes, relative to one process and to dask-ml, and rounds and bytes by the number of parts.

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
from make_ccat_like import make

from ooc_pegasos import ConvertConfig, Store, TrainConfig, train
from ooc_pegasos.distributed import train_dask

ROWS = 1_200_000
LAMBDAS_M = (800, 80)
"""Lambda times rows."""


def store_in(folder: Path) -> Store:
    """Return the store, made if missing."""
    path = folder / "ccat-parts.store"
    if path.exists():
        return Store.open(path)
    matrix, labels = make(ROWS, 47_000, 75, 0)
    return Store.from_scipy(matrix, labels, path, config=ConvertConfig(chunk_size=4 << 20))


def against_one_process(client: Any, store: Store, repeats: int) -> None:
    """Measure the seconds to a certified 1 %: two worker processes, relative to one process."""
    for clock in LAMBDAS_M:
        config = TrainConfig(lam=clock / store.rows, tolerance=0.01)
        one, two = [], []
        for _ in range(repeats + 1):
            one.append(train(store, config))
            two.append(train_dask(client, store, config))
        ratio = _median(two[1:]) / _median(one[1:])
        report(f"lambda m = {clock}: two processes / one, to a certified 1 %", ratio, "at most 0.75")
        moved, rounds = two[-1].profile["rounds"]["bytes"], two[-1].profile["rounds"]["number"]
        seconds = _median(two[1:])
        gaps = [100 * (r.model.info.certificate.gap or 1) for r in (one[-1], two[-1])]
        print(f"{'':20}one process: {one[-1].algorithm}, {one[-1].model.info.epochs} epochs, certified {gaps[0]:.3f} %")
        print(f"{'':20}two: {two[-1].algorithm}, {rounds:.0f} rounds, certified {gaps[1]:.3f} %")
        print(f"{'':20}{moved / rounds / 1e6:.2f} MB and {seconds / rounds:.2f} s a round")
        same = {r.model.weights.tobytes() for r in two}
        print(f"{'':20}the weights of {len(two)} runs: {len(same)} different")


def in_parts(client: Any, store: Store) -> None:
    """Measure rounds to a certified 1 %, and bytes, by the number of parts; workers process one part at a time."""
    print("parts  lambda m   algorithm  rounds  certified %  bytes up a round")
    for clock in (800, 80, 8, 1):
        lam = clock / store.rows
        best = train(store, TrainConfig(lam=lam, tolerance=1e-4)).model.info.certificate
        for parts in (1, 2, 4, 8, 16, 32, 64):
            config = TrainConfig(lam=lam, tolerance=0.01, max_epochs=200)
            result = train_dask(client, store, config, parts=parts, passes=1)
            certificate = result.model.info.certificate
            assert (certificate.lower_bound or 0) <= best.primal * (1 + 1e-9)
            rounds = result.profile["rounds"]
            print(
                f"{parts:5}  {clock:8}  {result.algorithm:>10}  {rounds['number']:6.0f}  "
                f"{100 * (certificate.gap or 1):11.3f}  {8 * store.features * parts:16,}"
            )


def collection_of(client: Any, store: Store) -> tuple[Any, Any]:
    """Return the rows of a store as a sparse dask.array and their labels, in the memory of the workers.

    Blocks of about 60 MB, near what Dask recommends, of float64, which scikit-learn would make of others.
    """
    import dask.array as da
    import distributed
    import scipy.sparse as sp
    from dask import delayed

    chunks = store.manifest.chunks
    groups = [range(first, min(first + 8, len(chunks))) for first in range(0, len(chunks), 8)]
    blocks = [delayed(_rows_of)(str(store.path), group) for group in groups]
    labels = [delayed(_labels_of)(str(store.path), group) for group in groups]
    rows = [sum(chunks[number].rows for number in group) for group in groups]
    nothing, kind = sp.csr_matrix((0, store.features), dtype=np.float64), np.dtype(np.int64)
    x = [
        da.from_delayed(block, (count, store.features), meta=nothing) for block, count in zip(blocks, rows, strict=True)
    ]
    y = [da.from_delayed(label, (count,), kind) for label, count in zip(labels, rows, strict=True)]
    both: list[Any] = client.persist([da.concatenate(x), da.concatenate(y)])
    wait: Any = distributed.wait
    wait(both)
    return both[0], both[1]


def _rows_of(path: str, numbers: range) -> Any:
    import scipy.sparse as sp

    store = Store.open(path)
    return sp.vstack([store.block(number).to_scipy() for number in numbers], format="csr").astype(np.float64)


def _labels_of(path: str, numbers: range) -> np.ndarray:
    store = Store.open(path)
    return np.concatenate([store.block(number).labels for number in numbers]).astype(np.int64)


def against_incremental(client: Any, store: Store, repeats: int) -> None:
    """Train with dask-ml, which passes a scikit-learn model from block to block, on the same collection."""
    x, y = collection_of(client, store)
    _passes_of_peer(x, y, store, 1.0, False, {"a first one, in which libraries are loaded": np.inf})
    for clock in (80, 8, 1):
        lam = clock / store.rows
        goals, took = {}, {}
        for tolerance in (0.01, 0.001):
            config = TrainConfig(lam=lam, tolerance=tolerance)
            ours = [train_dask(client, x, config, labels=y) for _ in range(repeats + 1)]
            name = f"lambda m = {clock}, certified to {100 * tolerance:g} %"
            goals[name], took[name] = ours[0].model.info.certificate.primal, _median(ours[1:])
        for average in (False, True):
            for name, (seconds, line) in _passes_of_peer(x, y, store, lam, average, goals).items():
                report(f"Incremental(SGDClassifier), average={average}: {name}", seconds / took[name], "at least 5")
                print(f"{'':20}{line}")


def _passes_of_peer(
    x: Any, y: Any, store: Store, lam: float, average: bool, goals: dict[str, float]
) -> dict[str, tuple[float, str]]:
    """Measure the seconds and the passes to each objective, which is computed after each pass."""
    from dask_ml.wrappers import Incremental
    from sklearn.linear_model import SGDClassifier

    one = SGDClassifier(loss="hinge", alpha=lam, fit_intercept=False, average=average, random_state=0)
    model = Incremental(one, assume_equal_chunks=True)
    found: dict[str, tuple[float, str]] = {}
    seconds, reached = 0.0, np.inf
    for passes in range(1, _MOST_PASSES + 1):
        began = time.perf_counter()
        model.partial_fit(x, y, classes=[-1, 1])
        seconds += time.perf_counter() - began
        weights = model.coef_.ravel()
        losses = 0.0
        for block in store.blocks():
            losses += float(np.maximum(0, 1 - block.labels * (block.to_scipy() @ weights)).sum())
        reached = min(reached, lam / 2 * float(weights @ weights) + losses / store.rows)
        found |= {name: (seconds, f"{passes} passes") for name, goal in goals.items() if reached <= goal} | found
        if len(found) == len(goals):
            return found
    told = f"not in {_MOST_PASSES} passes: {reached:.5f}"
    return {name: (seconds, f"{told} instead of {goal:.5f}") for name, goal in goals.items()} | found


_MOST_PASSES = 30


def _median(results: list[Any]) -> float:
    return statistics.median(result.seconds for result in results)


def main() -> None:
    """Print the tables."""
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["time", "peer", "parts"])
    parser.add_argument("--folder", type=Path, help="folder for the data, which later runs reuse")
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
