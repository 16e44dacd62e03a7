"""Processor time of conversions by kind of input, relative to other work on the same bytes in the same run.

    python scripts/bench_conversion_inputs.py [--rows 500000] [--repeats 3]

Data made here: svmlight text of short and of long numbers, the same in four gzip files, and click logs (13 numbers, 26
categories) as Parquet and CSV. Prints user and system seconds as ratios, minima of several runs that alternate.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import report
from bench_readers import clicks

from ooc_pegasos import ConvertConfig, Existing, convert
from ooc_pegasos.readers.svmlight import Settings, SvmlightReader

_FEATURES, _ENTRIES = 100_000, 395


def svmlight(rows: int, value: Callable[[float], str]) -> bytes:
    """Return rows with random indices."""
    rng, lines = np.random.default_rng(0), []
    for row in range(rows):
        indices = np.unique(rng.integers(1, _FEATURES, _ENTRIES)).tolist()
        pairs = (f"{index}:{value(x)}" for index, x in zip(indices, rng.random(len(indices)), strict=True))
        lines.append(f"{row % 2} {' '.join(pairs)}\n")
    return "".join(lines).encode()


def fastest(repeats: int, *works: Callable[[], object]) -> list[float]:
    """Return the least processor seconds of each work; the first run of each, which may compile, does not count."""
    seconds = [float("inf")] * len(works)
    for repeat in range(repeats + 1):
        for number, work in enumerate(works):
            began = time.process_time()
            work()
            if repeat:
                seconds[number] = min(seconds[number], time.process_time() - began)
    return seconds


def converting(folder: Path, sources: list[Path], config: ConvertConfig | None = None) -> Callable[[], object]:
    """Return the conversion of some files."""
    return lambda: convert(list(map(str, sources)), folder / "store", config, existing=Existing(force=True))


def parser(folder: Path, repeats: int) -> bytes:
    """Measure the svmlight parser alone; return the text of short numbers."""
    from sklearn.datasets import load_svmlight_file

    texts = {"short": svmlight(10_000, lambda _x: "1"), "long": svmlight(5_000, lambda x: f"{x / 10:.7f}")}
    for name, text in texts.items():
        path = folder / f"{name}.svm"
        path.write_bytes(text)

        def ours(path: Path = path) -> None:
            reader = SvmlightReader([str(path)], Settings(), 16 << 20)
            for task in reader.tasks():
                reader.release(reader.read(task))

        alone, scikit = fastest(repeats, ours, lambda text=text: load_svmlight_file(io.BytesIO(text)))  # type: ignore[misc]
        report(f"scikit-learn load_svmlight_file / parser, {name} numbers", scikit / alone, "")
        report(f"parser, {name} numbers, MB a second of one core", len(text) / alone / 1e6, "at least 900")
    return texts["short"]


def compressed(folder: Path, text: bytes, repeats: int) -> None:
    """Measure gzip files."""
    lines, parts = text.splitlines(keepends=True), []
    for number in range(4):
        path = folder / f"part-{number}.svm.gz"
        path.write_bytes(gzip.compress(b"".join(lines[number::4]), 6))
        parts.append(path)
    plain, packed, alone = fastest(
        repeats,
        converting(folder, [folder / "short.svm"]),
        converting(folder, parts),
        lambda: [zlib.decompress(path.read_bytes(), 31) for path in parts],
    )
    report("conversion of four gzip files / zlib alone and conversion of the text", packed / (alone + plain), "")


def written() -> int:
    """Return the bytes that this process has written to files."""
    return next(int(line.split()[1]) for line in open("/proc/self/io") if line.startswith("wchar"))


def in_memory(folder: Path, repeats: int) -> None:
    """Measure the shuffle in memory and through files."""
    work = converting(folder, [folder / "short.svm", folder / "long.svm"])

    def through_files() -> None:
        with patch.object(ConvertConfig, "room_for_rows", lambda _config: 0):
            work()

    files, memory = fastest(repeats, through_files, work)
    report("processor time of a conversion with rows in files / in memory between the passes", files / memory, "")
    before = written()
    through_files()
    between = written()
    work()
    report("bytes written, the same", (between - before) / (written() - between), "")


def tables(folder: Path, rows: int, repeats: int) -> None:
    """Measure Parquet and CSV."""
    parquet, csv, table = folder / "clicks.parquet", folder / "clicks.csv", clicks(rows, 0)
    pa.parquet.write_table(table, parquet, row_group_size=100_000)
    pa.csv.write_csv(table, csv)
    coded = {field.name: pa.dictionary(pa.int32(), pa.string()) for field in table.schema if field.name[0] == "C"}
    config = ConvertConfig(label="label", numeric=("I*",), categorical=("C*",))
    as_codes = pa.csv.ConvertOptions(column_types=coded, strings_can_be_null=True, quoted_strings_can_be_null=False)
    found = fastest(
        repeats,
        converting(folder, [parquet], config),
        lambda: pa.parquet.read_table(parquet, read_dictionary=list(coded)),
        converting(folder, [csv], config),
        lambda: pa.csv.read_csv(csv, convert_options=as_codes),
    )
    for name, ours, arrow in (("Parquet", *found[:2]), ("CSV", *found[2:])):
        report(f"conversion of {name} / Arrow's reader alone", ours / arrow, "")
        report(f"conversion of {name}, rows a second of one core, thousands", rows / ours / 1e3, "")


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=500_000)
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = parser(folder, options.repeats)
        compressed(folder, text, options.repeats)
        in_memory(folder, options.repeats)
        tables(folder, options.rows, options.repeats)


if __name__ == "__main__":
    main()
