"""Conversion of click logs and texts, relative to scikit-learn's FeatureHasher and HashingVectorizer on the same rows.

    python scripts/bench_readers.py [--rows 5000000] [--memory 1GB]

Data: Criteo-like (13 numbers, 26 categories, some of them missing), made here; and documents whose words follow Zipf's
law, of the length of those in 20 newsgroups. Prints ratios within one run; an absolute time means nothing on a shared
machine.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import report

from ooc_pegasos.option_texts import parse_size
from ooc_pegasos.readers.tokens import TextHasher
from ooc_pegasos.store.recipe import Hashing, Tokens

OOCPEG = Path(sys.executable).with_name("oocpeg")
_NUMBERS, _CATEGORIES = 13, 26
_HASHED_ROWS, _BATCH = 40_000, 100_000


def clicks(rows: int, seed: int) -> pa.Table:
    """Return rows like those of the Criteo logs."""
    rng = np.random.default_rng(seed)
    columns = {"label": pa.array(rng.integers(0, 2, rows).astype(np.int8))}
    for i in range(_NUMBERS):
        columns[f"I{i + 1}"] = pa.array(
            rng.geometric(0.02 + 0.03 * i, rows).astype(np.int32), mask=rng.random(rows) < 0.1
        )
    for i in range(_CATEGORIES):
        kinds = int(10 ** (1 + 4 * i / _CATEGORIES))
        words = np.array([f"{word:08x}" for word in rng.integers(0, 2**32, kinds)])
        chosen = words[np.minimum(rng.zipf(1.2, rows) - 1, kinds - 1)]
        columns[f"C{i + 1}"] = pa.array(chosen, mask=rng.random(rows) < 0.05)
    return pa.table(columns)


def feature_hasher_rates(table: pa.Table) -> tuple[float, float]:
    """Return the rows a second of FeatureHasher on the same columns: from Arrow, and from dictionaries."""
    from sklearn.feature_extraction import FeatureHasher

    some = table.slice(0, _HASHED_ROWS).drop_columns(["label"])
    began = time.perf_counter()
    rows = [{name: value for name, value in row.items() if value is not None} for row in some.to_pylist()]
    between = time.perf_counter()
    FeatureHasher(2**22).transform(rows)
    ended = time.perf_counter()
    return len(rows) / (ended - began), len(rows) / (ended - between)


def convert(source: Path, store: Path, rows: int, memory: str, *options: str) -> tuple[float, float]:
    """Return (rows a second, peak memory in bytes) of the second of two runs of `oocpeg convert`."""
    rate, peak = 0.0, 0.0
    for _ in range(2):
        began = time.perf_counter()
        command = [str(OOCPEG), "convert", str(source), "-o", str(store), "--force", "--quiet", "--memory", memory]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        subprocess.run([*command, *options], check=True)
        rate = max(rate, rows / (time.perf_counter() - began))
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, before) * 1.0
    return rate, peak * 1024


def against_feature_hasher(folder: Path, rows: int, memory: str) -> None:
    """Measure Parquet and CSV."""
    parquet, csv = folder / "clicks.parquet", folder / "clicks.csv"
    first = clicks(_BATCH, 0)
    with (
        pyarrow.parquet.ParquetWriter(parquet, first.schema) as to_parquet,
        pyarrow.csv.CSVWriter(csv, first.schema) as to_csv,
    ):
        for number in range(-(-rows // _BATCH)):
            batch = clicks(_BATCH, number % 10)
            to_parquet.write_table(batch)
            to_csv.write_table(batch)
    rows = -(-rows // _BATCH) * _BATCH
    whole, alone = feature_hasher_rates(first)
    columns = ["--label", "label", "--numeric", "I*", "--categorical", "C*"]
    for name, source, limit in (("Parquet", parquet, 5), ("CSV", csv, 3)):
        rate, peak = convert(source, folder / "store", rows, memory, *columns)
        report(f"{name} to store: rows a second / FeatureHasher's from Arrow", rate / whole, f"at least {limit}")
        report(f"{name} to store: rows a second / FeatureHasher's from dictionaries", rate / alone, "")
        report(f"{name}: peak memory / --memory {memory}", peak / parse_size(memory), "at most 1")


def against_hashing_vectorizer() -> None:
    """Measure texts, with one core each."""
    from sklearn.feature_extraction.text import HashingVectorizer

    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = np.array(["".join(rng.choice(letters, size)) for size in rng.integers(2, 12, 30_000)])
    documents = [" ".join(words[np.minimum(rng.zipf(1.3, 250) - 1, 29_999)]) + ". Also: Été!" for _ in range(4000)]
    strings = pa.array(documents)
    hasher = TextHasher(Tokens(), Hashing())
    hasher.part(strings.slice(0, 10))
    began = time.perf_counter()
    lengths, indices, values = hasher.part(strings)
    ours = time.perf_counter() - began
    vectorizer = HashingVectorizer(n_features=2**22, norm=None)
    began = time.perf_counter()
    found = vectorizer.transform(documents)
    theirs = time.perf_counter() - began
    found.sort_indices()
    found.eliminate_zeros()
    same = np.array_equal(np.diff(found.indptr), lengths) and np.array_equal(found.indices, indices)
    same = same and np.array_equal(found.data, values)
    report(
        f"texts: HashingVectorizer's time / ours, {'identical' if same else 'DIFFERENT'} vectors",
        theirs / ours,
        "at least 4",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--memory", default="1GB")
    options = parser.parse_args()
    against_hashing_vectorizer()
    with tempfile.TemporaryDirectory() as name:
        against_feature_hasher(Path(name), options.rows, options.memory)


if __name__ == "__main__":
    main()
