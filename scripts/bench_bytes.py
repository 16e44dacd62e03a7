"""Bytes of text with tf-idf and times of its epochs, with values as counts of one byte and as float32.

    python scripts/bench_bytes.py [--rows 60000] [--epochs 10] [--repeats 3] [--speed 0.1 0.5] [--ngrams 1:2]

Text: titles and abstracts of ../shared/data/arxiv_sample.tsv.xz if present, else words by Zipf's law. Both stores are
trained on alternately. Prints bytes of a non-zero, seconds of the conversion, seconds of an epoch in memory, seconds
until the first window is in memory, and seconds of an epoch with 20 % of the memory that the rows need, where reads are
held to so many GB/s. The models must be the same.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import sys
import tempfile
import time
from pathlib import Path

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
CODINGS = {"counts": None, "float32": "float32"}


def texts(rows: int) -> pa.Table:
    """Return labels, titles and abstracts, of papers or made of words by Zipf's law."""
    if SAMPLE.exists():
        with lzma.open(SAMPLE, "rt", newline="") as file:
            found = [line for _row, line in zip(range(rows), csv.reader(file, "excel-tab", quoting=csv.QUOTE_NONE))]
        labels, titles, abstracts = [int(line[2].startswith("math")) for line in found], *list(zip(*found))[4:6]
        return pa.table({"y": labels, "title": titles, "abstract": abstracts})
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(WORDS)])
    lengths, ranks = rng.poisson(WORDS_OF_ROW, rows), rng.permutation(WORDS)
    made = [words[ranks[rng.zipf(1.3, length) % WORDS]] for length in lengths]
    labels = [int(np.isin("word7", row) ^ (rng.random() < 0.1)) for row in made]
    return pa.table({"y": labels, "title": [" ".join(row[:9]) for row in made], "abstract": list(map(" ".join, made))})


def epochs(store: Store, number: int, **options: object) -> TrainResult:
    """Return the result of training for a number of epochs."""
    config = TrainConfig(lam=1e-6, algorithm="sgd-s", tolerance=1e-9, max_epochs=number, **options)  # type: ignore[arg-type]
    return train(store, config)


def seconds_of_loading(store: Store) -> float:
    """Return the seconds until all rows are in memory."""
    began = time.perf_counter()
    loader = open_loader(store, 1 << 40)
    for _window in loader.stream(loader.in_order()):
        pass
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ngrams", default="1:2")
    parser.add_argument("--speed", type=float, nargs="*", default=[0.1, 0.5])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(texts(arguments.rows), Path(folder) / "in.parquet", row_group_size=5000)
        stores = {}
        for name, values in CODINGS.items():
            config = ConvertConfig(
                text=("title", "abstract"),
                ngrams=arguments.ngrams,
                idf=True,
                normalize="l2",
                values=values,  # type: ignore[arg-type]
                chunk_size=1 << 20,
            )
            seconds = []
            for number in range(arguments.repeats):
                began = time.perf_counter()
                stores[name] = convert([Path(folder) / "in.parquet"], Path(folder) / f"{name}-{number}", config)
                seconds.append(time.perf_counter() - began)
            made = stores[name].manifest
            print(
                f"{name}: {made.rows:,} rows, {made.nonzeros:,} non-zeros, {made.features:,} features, values as "
                f"{made.layout.values}, {made.bytes / made.nonzeros:.2f} bytes a non-zero, converted in {min(seconds):.1f} s"
            )
        compare("loading all rows", {name: lambda one=one: seconds_of_loading(one) for name, one in stores.items()}, 5)
        for loading in ("mapped", "read"):
            times = {
                name: lambda one=one, loading=loading: (
                    epochs(one, arguments.epochs, loading=loading).seconds / arguments.epochs
                )
                for name, one in stores.items()
            }
            compare(f"an epoch in memory, {loading}", times, arguments.repeats)
        weights = [epochs(store, 2).model.weights for store in stores.values()]
        print(f"largest difference of weights: {np.abs(weights[0] - weights[1]).max():g}")
        made = stores["float32"].manifest
        budget = sum(cost_of(chunk, made.layout) for chunk in made.chunks) // 5
        for speed in [None, *arguments.speed]:
            hold_reads_to(speed)
            times = {
                name: lambda one=one: epochs(one, 2, memory=budget, loading="read").seconds / 2
                for name, one in stores.items()
            }
            compare(f"an epoch from {f'a disk of {speed} GB/s' if speed else 'this disk'}", times, arguments.repeats)
        hold_reads_to(None)


def compare(what: str, times: dict, repeats: int) -> None:
    """Print the shortest times of both codings, which alternate, and their ratio."""
    found = {name: [] for name in times}
    for _repeat in range(repeats):
        for name, measure in times.items():
            found[name].append(measure())
    counts, floats = min(found["counts"]), min(found["float32"])
    print(f"{what}: {counts:.3f} s with counts, {floats:.3f} s with float32, ratio {counts / floats:.2f}", flush=True)


if __name__ == "__main__":
    main()
