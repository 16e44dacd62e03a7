"""Reads of a store larger than memory: until a certified 1 % for one lambda, and of the default run.

    python scripts/bench_reads.py [--speed 1.0 0.25] [--rows 60000] [--sets ccat wide arxiv_math]

Sets: two that are generated, and arxiv_math of ../shared/data if present. Budgets of 20 % and 40 % of the store; lambda
m is 1, 0.3 and 0.1, where m is the number of rows. `--speed` repeats the default run with reads held to so many GB/s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS
from make_ccat_like import make

from ooc_pegasos import ConvertConfig, Store, TrainConfig, TrainResult, train
from ooc_pegasos.store.chunk_reader import ChunkReader

CHUNKS = 100
LIMITS = {0.4: (3, 4, 7), 0.2: (4, 8, 14)}
"""Reads that are aimed at, by budget, for lambda m = 1, 0.3 and 0.1."""


def rows_of(name: str, rows: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the rows of a set."""
    if name == "ccat":
        return make(rows, 47_000, 75, 0)
    if name == "wide":  # more features than rows, values of 1, few features that matter
        rng = np.random.default_rng(0)
        matrix = sp.random(rows, 4 * rows, 100 / (4 * rows), "csr", np.float32, rng, data_rvs=np.ones)
        scores = matrix @ (rng.standard_normal(4 * rows) * (rng.random(4 * rows) < 0.1))
        return matrix, np.where(scores + 0.2 * scores.std() * rng.standard_normal(rows) > 0, 1, -1)
    sys.path.insert(0, str(DATASETS.parent))
    import datasets

    matrix, labels, _test, _labels = datasets.load(name)
    return matrix, labels


def run(store: Store, share: float, lam: float | None) -> tuple[TrainResult, float, float]:
    """Train within a share of the size of the store; return (result, reads of the whole store, seconds)."""
    size = sum(chunk.bytes for chunk in store.manifest.chunks)
    config = TrainConfig(lam=lam, memory=int(1.1 * share * size), loading="read", tolerance=0.01 if lam else None)
    began = time.perf_counter()
    result = train(store, config)
    return result, result.bytes_read / size, time.perf_counter() - began


def hold_reads_to(speed: float | None) -> None:
    """Make all reads together take as long as from a disk of this speed, in GB/s."""
    real = _READ
    state = {"free_at": 0.0}

    def read(reader: ChunkReader, at: int, into: memoryview) -> None:
        real(reader, at, into)
        if speed:
            state["free_at"] = max(state["free_at"], time.perf_counter()) + len(into) / (speed * 1e9)
            time.sleep(max(state["free_at"] - time.perf_counter(), 0.0))

    ChunkReader.read = read  # type: ignore[method-assign]


_READ = ChunkReader.read


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, nargs="*", default=[1.0, 0.25])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--sets", nargs="*", default=["ccat", "wide", *(["arxiv_math"] if DATASETS.exists() else [])])
    arguments = parser.parse_args()
    for name in arguments.sets:
        matrix, labels = rows_of(name, arguments.rows)
        with tempfile.TemporaryDirectory() as folder:
            chunk_size = max(matrix.nnz * 6 // CHUNKS, 20_000)
            store = Store.from_scipy(matrix, labels, Path(folder) / "store", None, ConvertConfig(chunk_size=chunk_size))
            print(
                f"{name}: {store.rows:,} rows, {store.manifest.bytes / 1e6:.0f} MB, {len(store.manifest.chunks)} chunks"
            )
            for share, limits in LIMITS.items():
                for clock, limit in zip((1, 0.3, 0.1), limits, strict=True):
                    result, reads, seconds = run(store, share, clock / store.rows)
                    print(
                        f"  budget {share:.0%}, lambda m = {clock}: {reads:.1f} reads, {reads / limit:.2f} of {limit}; "
                        f"{seconds:.1f} s, gap {result.gap or 1:.2%}",
                        flush=True,
                    )
            for speed in [None, *arguments.speed]:
                hold_reads_to(speed)
                result, reads, seconds = run(store, 0.2, None)
                disk = f"{speed} GB/s" if speed else "this disk"
                alone = (
                    f", {seconds / (reads * store.manifest.bytes / speed / 1e9):.2f} of reading alone" if speed else ""
                )
                print(f"  default run, budget 20%, {disk}: {reads:.1f} reads; {seconds:.1f} s{alone}", flush=True)
            hold_reads_to(None)


if __name__ == "__main__":
    main()
