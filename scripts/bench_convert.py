"""Speed of conversions, relative to Vowpal Wabbit and scikit-learn on the same file in the same run.

    python scripts/bench_convert.py [TEXT] [--large]

TEXT is svmlight text, by default arxiv_math written by ../shared/data/datasets.py into a temporary folder.
With --large the peak memory is measured on four copies of it. Prints ratios; an absolute time means nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATASETS = ROOT.parent / "shared" / "data" / "datasets.py"

IN_PROCESS = """
import sys, time
from ooc_pegasos import ConvertConfig, Existing, convert
warm, path, out, shuffle, threads = sys.argv[1:6]
config = ConvertConfig(shuffle=shuffle == "yes", threads=int(threads))
convert([warm], out, config, existing=Existing(force=True))
began = time.perf_counter()
convert([path], out, config, existing=Existing(force=True))
print(time.perf_counter() - began)
"""
SCIKIT = """
import sys, time
import numpy as np
from sklearn.datasets import load_svmlight_file
began = time.perf_counter()
load_svmlight_file(sys.argv[1], dtype=np.float32)
print(time.perf_counter() - began)
"""
PEAK = """
import sys
from ooc_pegasos import ConvertConfig, convert
convert([sys.argv[1]], sys.argv[2], ConvertConfig())
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def python(code: str, *words: object) -> float:
    """Return the output of code run in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def command(*words: object) -> float:
    """Return the seconds that a command takes."""
    began = time.perf_counter()
    subprocess.run(list(map(str, words)), check=True, capture_output=True)
    return time.perf_counter() - began


def to_vw(source: Path, target: Path) -> None:
    """Convert svmlight text to Vowpal Wabbit text."""
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            out.write(line.replace(b" ", b" | ", 1))


def write_arxiv(folder: Path) -> Path | None:
    """Return the text of the benchmark, None if the data sets are missing."""
    if not DATASETS.exists():
        print("skipped: no text given and the data sets are not here (../shared/data)")
        return None
    subprocess.run([sys.executable, str(DATASETS), "arxiv_math", str(folder)], check=True, capture_output=True)
    return folder / "arxiv_math.train.svm"


def report(name: str, ratio: float, bound: str) -> None:
    """Print a line of the table."""
    print(f"{name:<66} {ratio:7.2f}   {bound}", flush=True)


def speed(folder: Path, text: Path, repeats: int) -> None:
    """Measure the ratios of times."""
    warm, out = folder / "warm.svm", folder / "out.store"
    warm.write_text("1 1:0.5 2:1\n-1 2:1\n")
    oocpeg = Path(sys.executable).with_name("oocpeg")
    scikit = statistics.median(python(SCIKIT, text) for _ in range(repeats))

    def convert(shuffle: str, threads: int) -> float:
        return statistics.median(python(IN_PROCESS, warm, text, out, shuffle, threads) for _ in range(repeats))

    def whole(*options: str) -> float:
        return statistics.median(
            command(oocpeg, "convert", text, "-o", out, "--force", *options) for _ in range(repeats)
        )

    cores = len(os.sched_getaffinity(0))
    report("scikit-learn load_svmlight_file / convert, one core", scikit / convert("no", 1), "at least 6")
    report(f"scikit-learn load_svmlight_file / convert, {cores} cores", scikit / convert("no", cores), "at least 9")
    report(f"the same with the shuffle, {cores} cores", scikit / convert("yes", cores), "")
    if importlib.util.find_spec("vowpalwabbit"):
        vw = folder / "text.vw"
        to_vw(text, vw)
        words = [sys.executable, "-m", "vowpalwabbit", "-d", vw, "-c", "-k", "--loss_function", "hinge", "-b", "18"]
        cache = ["--cache_file", folder / "text.cache"]
        wabbit = statistics.median(command(*words, *cache) for _ in range(repeats))
        report(
            "oocpeg convert --no-shuffle / Vowpal Wabbit's pass with its cache",
            whole("--no-shuffle") / wabbit,
            "at most 0.8",
        )
        report("oocpeg convert (shuffled) / Vowpal Wabbit's pass with its cache", whole() / wabbit, "at most 1.3")
        vw.unlink()
    else:
        print("skipped: Vowpal Wabbit is not installed (pip install vowpalwabbit)")
    size = sum(path.stat().st_size for path in out.iterdir())
    nonzeros = nonzeros_of(out)
    report("bytes per non-zero of the store, manifest included", size / nonzeros, "at most 6.2 (arxiv_math)")
    a9a = ROOT / "ooc_pegasos" / "data" / "a9a.svm.xz"
    command(oocpeg, "convert", a9a, "-o", out, "--force")
    size = sum(path.stat().st_size for path in out.iterdir())
    report("bytes per non-zero, one-hot data (a9a)", size / nonzeros_of(out), "at most 2.2")


def nonzeros_of(path: Path) -> int:
    """Return the number of non-zeros of a store."""
    from ooc_pegasos import Store

    return Store.open(path).nonzeros


def start_up() -> None:
    """Measure the time of --help, relative to an empty interpreter."""
    oocpeg = Path(sys.executable).with_name("oocpeg")
    seconds = statistics.median(command(oocpeg, "--help") for _ in range(9))
    report("oocpeg --help, seconds", seconds, "at most 0.25")
    report(
        "oocpeg --help / python -c pass",
        seconds / statistics.median(command(sys.executable, "-c", "") for _ in range(9)),
        "",
    )


def peak_memory(folder: Path, text: Path) -> None:
    """Measure the peak memory on at least 3 GB of text."""
    large = folder / "large.svm"
    with large.open("wb") as out:
        while out.tell() < 3 << 30:
            with text.open("rb") as part:
                shutil.copyfileobj(part, out, 1 << 24)
    peak = python(PEAK, large, folder / "large.store") * 1024
    report(
        f"peak memory, MB, for {large.stat().st_size / 2**30:.1f} GB of text and --memory 1GB",
        peak / 2**20,
        "at most 1224",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start_up()
        text = arguments.text or write_arxiv(folder)
        if text:
            speed(folder, text, arguments.repeats)
            if arguments.large:
                peak_memory(folder, text)


if __name__ == "__main__":
    main()
