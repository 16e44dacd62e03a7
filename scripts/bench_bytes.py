"""Bytes of text with tf-idf and times of its epochs, with values as counts of one byte and as float32.

    python scripts/bench_bytes.py [--rows 60000] [--epochs 10] [--repeats 5] [--speed 0.1 0.02] [--ngrams 1] [--bits 18]

Text: titles and abstracts of ../shared/data/arxiv_sample.tsv.xz if present, else words by Zipf's law. Both stores are
trained on alternately. Prints the bytes of a non-zero, and shortest times: of the conversion, until all rows are in
memory, of an epoch in memory, and of an epoch with a fifth of the memory that the rows need, where reads are held to so
many GB/s. The models of both stores must be the same.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS
from bench_reads import hold_reads_to

from ooc_pegasos import ConvertConfig, Store, TrainConfig, TrainResult, convert, train
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.loading.window import cost_of

SAMPLE = DATASETS.with_name("arxiv_sample.tsv.xz")
WORDS, WORDS_OF_ROW = 200_000, 120
CODINGS: dict[str, Any] = {"counts": None, "float32": "float32"}


def texts(rows: int) -> pa.Table:
    """Return labels, titles and abstracts, of papers or made of words by Zipf's law."""
    if SAMPLE.exists():
        with lzma.open(SAMPLE, "rt", newline="") as file:
            papers = list(islice(csv.reader(file, "excel-tab", quoting=csv.QUOTE_NONE), rows))
        labels = [int(paper[2].startswith("math")) for paper in papers]
        return pa.table({"y": labels, "title": [paper[4] for paper in papers], "body": [paper[5] for paper in papers]})
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in rng.permutation(WORDS)])
    made = [words[rng.zipf(1.3, length) % WORDS] for length in rng.poisson(WORDS_OF_ROW, rows)]
    labels = [int(np.isin(words[7], row) ^ (rng.random() < 0.1)) for row in made]
    return pa.table({"y": labels, "title": [" ".join(row[:9]) for row in made], "body": list(map(" ".join, made))})


def trained(store: Store, epochs: int, **options: Any) -> TrainResult:
    """Return the result of training for a number of epochs."""
    config = TrainConfig(lam=1e-6, algorithm="sgd-s", tolerance=1e-9, max_epochs=epochs, **options)
    return train(store, config)


def load(store: Store) -> None:
    """Bring all rows to memory."""
    loader = open_loader(store, 1 << 40)
    for _window in loader.stream(loader.in_order()):
        pass


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(what: str, repeats: int, measure: Callable[[str], float]) -> None:
    """Print the shortest times of both codings, which alternate, and their ratio."""
    found: dict[str, list[float]] = {name: [] for name in CODINGS}
    for _repeat in range(repeats):
        for name in CODINGS:
            found[name].append(measure(name))
    counts, floats = (min(times) for times in found.values())
    print(f"{what}: {counts:.4f} s with counts, {floats:.4f} s with float32, ratio {counts / floats:.2f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ngrams", default="1")
    parser.add_argument("--bits", type=int, default=18)
    parser.add_argument("--speed", type=float, nargs="*", default=[0.1, 0.02])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, stores = Path(folder) / "in.parquet", {}
        pq.write_table(texts(given.rows), source, row_group_size=5000)
        columns = {"text": ("title", "body"), "ngrams": given.ngrams, "hash_bits": given.bits}

        def converted(name: str) -> float:
            config = ConvertConfig(**columns, idf=True, normalize="l2", values=CODINGS[name], chunk_size=1 << 20)
            place = Path(tempfile.mkdtemp(dir=folder)) / name
            seconds = seconds_of(lambda: convert([source], place, config))
            stores[name] = Store.open(place)
            return seconds

        compare("conversion", 2, converted)
        for name, store in stores.items():
            made = store.manifest
            size = f"{store.rows:,} rows, {store.nonzeros:,} non-zeros, {store.features:,} features"
            print(f"{name}: {size}, {made.layout.values}, {made.bytes / made.nonzeros:.2f} bytes a non-zero")
        weights = [trained(store, 2).model.weights for store in stores.values()]
        print(f"largest difference of weights: {np.abs(weights[0] - weights[1]).max():g}")
        compare("all rows to memory", given.repeats, lambda name: seconds_of(lambda: load(stores[name])))
        for how in ("mapped", "read"):
            epoch = lambda name: trained(stores[name], given.epochs, loading=how).seconds_computing / given.epochs  # noqa: B023,E731
            compare(f"an epoch in memory, {how}", given.repeats, epoch)
        made = stores["float32"].manifest
        windows = {"loading": "read", "memory": sum(cost_of(chunk) for chunk in made.chunks) // 5}
        for speed in [None, *given.speed]:
            hold_reads_to(speed)
            disk = f"a disk of {speed} GB/s" if speed else "this disk"
            compare(
                f"an epoch from {disk}", given.repeats, lambda name: trained(stores[name], 2, **windows).seconds / 2
            )
        hold_reads_to(None)


if __name__ == "__main__":
    main()
