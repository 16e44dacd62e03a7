"""Start-up cost of commands, relative to `python -c 'import numba, pyarrow'` in the same run.

    python scripts/bench_short_runs.py [--repeats 7] [--rows 1000] [--first]

Prints for each command the minimum of the seconds and of the CPU seconds (user and system) of several repetitions, and
their ratios to the minima of the import. With `--first` also a first run, with an empty cache of compiled code.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORTS = "import numba, pyarrow"
TRAIN = ["train", "in.svm", "-o", "model", "--force", "--quiet"]
COMMANDS = {
    "train STORE": (["train", "in.store", "-o", "model", "--force", "--quiet"], "ratio of CPU at most 1.6"),
    "train FILE": (TRAIN, "ratio of CPU at most 1.6"),
    "convert FILE": (["convert", "in.svm", "-o", "in.store", "--force", "--quiet"], "ratio of CPU at most 1.6"),
    "evaluate MODEL STORE": (["evaluate", "model", "in.store"], ""),
    "info STORE": (["info", "in.store"], "at most 0.15 s"),
    "--help": (["--help"], "at most 0.15 s"),
    "evaluate --help": (["evaluate", "--help"], "at most 0.15 s"),
    "train --help": (["train", "--help"], "at most 0.15 s"),
    "a wrong option": (["train", "in.store", "--nothing"], "at most 0.15 s"),
    "a missing file": (["train", "missing.svm", "-o", "new"], "at most 0.15 s"),
    "a store as a model": (["evaluate", "in.store", "in.store"], "at most 0.15 s"),
}


def measure(words: list[str], folder: Path, **environment: str) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a Python process."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(ROOT), **environment}
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, cpu


def oocpeg(words: list[str]) -> list[str]:
    """Return the words that run a command with this interpreter."""
    return ["-c", "from ooc_pegasos.cli.start import main; main()", *words]


def minima(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the least seconds and the least CPU seconds."""
    return min(one[0] for one in found), min(one[1] for one in found)


def main() -> None:
    """Measure all commands in turn, several times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--first", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with lzma.open(ROOT / "ooc_pegasos" / "data" / "a9a.svm.xz", "rt") as text:
            (folder / "in.svm").write_text("".join(line for line, _ in zip(text, range(given.rows), strict=False)))
        words = {"import": ["-c", IMPORTS]} | {name: oocpeg(words) for name, (words, _goal) in COMMANDS.items()}
        for name in ("convert FILE", *words):  # makes the store, bytecode and machine code
            measure(words[name], folder)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in words}
        for _ in range(given.repeats):
            for name, one in words.items():
                found[name].append(measure(one, folder))
        wall, cpu = minima(found["import"])
        print(f"{IMPORTS}: {wall:.2f} s, CPU {cpu:.2f} s")
        for name, (_words, goal) in COMMANDS.items():
            seconds, used = minima(found[name])
            ratios = f"{seconds / wall:.2f} of the import, CPU {used / cpu:.2f}"
            print(f"{name:22}{seconds:5.2f} s, CPU {used:.2f} s; {ratios}{f' ({goal})' if goal else ''}")
        if given.first:
            seconds, used = measure(words["train FILE"], folder, NUMBA_CACHE_DIR=str(folder / "compiled"))
            print(f"{'the first train FILE':22}{seconds:5.2f} s, CPU {used:.2f} s (at most 5 s)")


if __name__ == "__main__":
    main()
