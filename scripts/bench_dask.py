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
        one, two = [], []
        for _ in range(repeats + 1):
            one.append(train(store, config))
            two.append(train_dask(client, store, config))
        ratio = _median(two[1:]) / _median(one[1:])
        report(f"lambda m = {lam * store.rows:.0f}: two processes / one, to a certified 1 %", ratio, "at most 0.75")
        moved, rounds = two[-1].profile["rounds"]["bytes"], two[-1].profile["rounds"]["number"]
        seconds = _median(two[1:])
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


def collection_of(client: Any, store: Store) -> tuple[Any, Any]:
    """The rows of a store as a sparse dask.array and their labels, in the memory of the workers."""
    import dask.array as da
    import distributed
    import scipy.sparse as sp
    from dask import delayed

    numbers = range(len(store.manifest.chunks))
    blocks = [delayed(_rows_of)(str(store.path), number) for number in numbers]
    labels = [delayed(_labels_of)(str(store.path), number) for number in numbers]
    rows = [chunk.rows for chunk in store.manifest.chunks]
    nothing, kind = sp.csr_matrix((0, store.features), dtype=np.float64), np.dtype(np.int64)
    x = [
        da.from_delayed(block, (count, store.features), meta=nothing) for block, count in zip(blocks, rows, strict=True)
    ]
    y = [da.from_delayed(label, (count,), kind) for label, count in zip(labels, rows, strict=True)]
    both: list[Any] = client.persist([da.concatenate(x), da.concatenate(y)])
    wait: Any = distributed.wait
    wait(both)
    return both[0], both[1]


def _rows_of(path: str, number: int) -> Any:
    matrix = Store.open(path).block(number).to_scipy()
    return matrix.astype(np.float64)  # as scikit-learn would make it


def _labels_of(path: str, number: int) -> np.ndarray:
    return Store.open(path).block(number).labels.astype(np.int64)


def against_incremental(client: Any, store: Store, repeats: int) -> None:
    """dask-ml's way, which hands one scikit-learn model from block to block, on the same collection."""
    from dask_ml.wrappers import Incremental
    from sklearn.linear_model import SGDClassifier

    lam = 1e-4
    x, y = collection_of(client, store)
    ours = [train_dask(client, x, TrainConfig(lam=lam, tolerance=0.01), labels=y) for _ in range(repeats + 1)]
    certificate = ours[0].model.info.certificate
    assert certificate.lower_bound is not None
    goals = {"our objective": certificate.primal, "1 % above our bound": 1.01 * certificate.lower_bound}
    took = _median(ours[1:])
    for average in (False, True):
        one = SGDClassifier(loss="hinge", alpha=lam, fit_intercept=False, average=average, random_state=0)
        model = Incremental(one, assume_equal_chunks=True)
        left, seconds, passes, reached = dict(goals), 0.0, 0, np.inf
        while left and passes < _MOST_PASSES:
            began = time.perf_counter()
            model.partial_fit(x, y, classes=[-1, 1])
            seconds += time.perf_counter() - began
            passes += 1
            weights = model.coef_.ravel()
            losses = 0.0
            for block in store.blocks():
                losses += float(np.maximum(0, 1 - block.labels * (block.to_scipy() @ weights)).sum())
            reached = min(reached, lam / 2 * float(weights @ weights) + losses / store.rows)
            for name in [name for name, goal in left.items() if reached <= goal]:
                _tell_peer(average, name, seconds / took, f"{passes} passes")
                del left[name]
        for name, goal in left.items():
            problem = f"not in {passes} passes: {reached:.5f} instead of {goal:.5f}"
            _tell_peer(average, name, seconds / took, problem)


_MOST_PASSES = 30


def _tell_peer(average: bool, goal: str, ratio: float, told: str) -> None:
    report(f"Incremental(SGDClassifier(average={average})) / train_dask, to {goal}", ratio, "at least 5")
    print(f"{'':20}{told}")


def _median(results: list[Any]) -> float:
    return statistics.median(result.seconds for result in results)


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
