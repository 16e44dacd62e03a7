"""Cost of certificates that hold in floating point, relative to a revision that did not bound rounding errors.

    python scripts/bench_certify.py [--base REVISION] [--repeats 5]

Both train on the same stores alternately, each run in a process of its own. Prints ratios of the medians of the
training times. Data: a CCAT-like set made by make_ccat_like.py, and arxiv_math of ../shared/data if present.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import report, write_arxiv
from make_ccat_like import make

from ooc_pegasos import Store, convert

ROOT = Path(__file__).resolve().parent.parent
TRAIN = """
import sys
from ooc_pegasos import Store, TrainConfig, train
store = Store.open(sys.argv[1])
lam = float(sys.argv[2]) if sys.argv[2] else None
config = TrainConfig(lam=lam, loss=sys.argv[3])
train(store, config)  # loads compiled code
result = train(store, config)
print(result.seconds)
"""
RUNS = [("1e-4", "hinge"), ("1e-5", "hinge"), ("1e-6", "hinge"), ("1e-5", "logistic"), ("", "hinge")]


def seconds(tree: Path, store: Path, lam: str, loss: str) -> float:
    """Return the training time of a version of the code."""
    env = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(store), lam, loss], env=env, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def stores(folder: Path) -> list[Path]:
    """Return the stores to train on."""
    matrix, labels = make(300_000, 47_000, 75, 0)
    Store.from_scipy(matrix, labels, folder / "ccat-like")
    arxiv = write_arxiv(folder)
    if arxiv:
        convert([str(arxiv)], folder / "arxiv_math")
        arxiv.unlink()
    return [folder / "ccat-like"] + ([folder / "arxiv_math"] if arxiv else [])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="f196c10", help="the revision to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, base = Path(name), Path(name) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(base), given.base], check=True, capture_output=True)
        try:
            for store in stores(folder):
                for lam, loss in RUNS:
                    times: dict[Path, list[float]] = {base: [], ROOT: []}
                    for _ in range(given.repeats):
                        for tree, found in times.items():
                            found.append(seconds(tree, store, lam, loss))
                    ratio = statistics.median(times[ROOT]) / statistics.median(times[base])
                    what = f"lambda {lam} to 1 %" if lam else "eight lambdas to 0.5 %"
                    report(f"{store.name}: {loss}, {what}: this tree / {given.base}", ratio, "at most 1.05")
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True, capture_output=True)


if __name__ == "__main__":
    main()
