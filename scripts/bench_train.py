"""Speed of training, relative to scikit-learn, LIBLINEAR, libocas and Vowpal Wabbit on the same rows in the same run.

    python scripts/bench_train.py [--repeats 5]

Data: a CCAT-like set made by make_ccat_like.py, and arxiv_math of ../shared/data if it is there. Prints ratios;
an absolute time means nothing on a shared machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS, command, report, to_vw
from make_ccat_like import make

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.compiled.fit import pegasos as kernels
from ooc_pegasos.compiled.rows.coding import encode_rows, entries_of_rows
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.loading.samplers import SAMPLERS
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.solvers.proof_record import NOT_RECORDED
from ooc_pegasos.store.csr_block import CODINGS, CsrBlock, escape_of

OOCPEG = Path(sys.executable).with_name("oocpeg")


def coded(matrix: sp.csr_matrix, labels: np.ndarray, coding: str) -> CsrBlock:
    """Return a matrix in memory in a coding of the store."""
    order, escape = np.arange(matrix.shape[0]), escape_of(coding)
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32)
    entries = np.empty(len(order), np.int64)
    entries_of_rows(order, indptr, indices, 0, escape, entries)
    offsets, out = np.empty(len(order) + 1, np.int64), np.empty(entries.sum(), CODINGS[coding])
    values = np.empty(len(out), np.float32)
    no_table = (0, False, np.empty(0, np.float32), np.empty(0, np.uint32), np.empty(0, np.uint8))
    norms = np.empty(len(order))
    encode_rows(order, indptr, indices, matrix.data, 0, escape, False, *no_table, offsets, out, values, norms)
    return CsrBlock(offsets, out, values, labels.astype(np.float32), matrix.shape[1])


def solver(features: int, lam: float) -> Pegasos:
    """Return Pegasos as `sgd-s` runs it for large lambda m."""
    return Pegasos(PegasosOptions(lam, 3 / lam, 0, (1.0, 1.0), 1, False, False, False), features)


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def epoch_in_memory(name: str, block: CsrBlock, matrix: sp.csr_matrix, labels: np.ndarray, repeats: int) -> None:
    """Measure a shuffled epoch, relative to file order and to an epoch of SGDClassifier."""
    from sklearn.linear_model import SGDClassifier

    rows, lam = block.rows, 1e-4
    shuffled = np.random.default_rng(0).permutation(np.arange(rows, dtype=np.uint32))
    times: dict[str, list[float]] = {"in order": [], "shuffled": []}
    for kind, order in (("in order", np.arange(rows, dtype=np.uint32)), ("shuffled", shuffled)):
        one = solver(block.features, lam)
        one.process(block, order, 0, rows, 1)
        for _ in range(repeats):
            times[kind].append(seconds(lambda one=one, order=order: one.process(block, order, 0, rows, 1)))
    ours = statistics.median(times["shuffled"])
    report(f"{name}: shuffled epoch / epoch in file order", ours / statistics.median(times["in order"]), "at most 1.25")

    def fit(epochs: int) -> float:
        sgd = SGDClassifier(alpha=lam, fit_intercept=False, max_iter=epochs, tol=None)
        return seconds(lambda: sgd.fit(matrix, labels))

    per_epoch = (statistics.median(fit(7) for _ in range(3)) - statistics.median(fit(2) for _ in range(3))) / 5
    report(f"{name}: shuffled epoch / epoch of SGDClassifier", ours / per_epoch, "at most 0.45")
    print(f"{'':66} {1e9 * ours / matrix.nnz:7.2f}   ns a non-zero, shuffled")


def many_features(repeats: int) -> None:
    """Measure 2^24 features with and without prefetching weights."""
    rng = np.random.default_rng(1)
    rows, length, features = 300_000, 60, 1 << 24
    indices = np.sort(rng.integers(0, features, (rows, length), dtype=np.int32), axis=1)
    matrix = sp.csr_matrix(
        (rng.standard_normal(rows * length).astype(np.float32), indices.ravel(), np.arange(rows + 1) * length),
        shape=(rows, features),
    )
    block = coded(matrix, rng.choice([-1, 1], rows), "uint32")
    order = rng.permutation(np.arange(rows, dtype=np.uint32))
    times: dict[bool, list[float]] = {True: [], False: []}
    class_weights, none = np.ones(2), np.empty(0, np.float32)
    for _ in range(repeats + 1):
        for large in (True, False):
            one = solver(features, 1e-4)
            one.process(block, order, 0, 1000, 1)
            rest = (*block.entries, block.labels, none, class_weights, 0, 0.0, 0.0, 1e-4, 3e4, large)
            rest = (*rest, one.a, one.b, one.state, *NOT_RECORDED)
            work = lambda rest=rest: kernels.process_rows(order, 0, rows, *rest)  # noqa: E731
            times[large].append(seconds(work))
    ratio = statistics.median(times[True][1:]) / statistics.median(times[False][1:])
    report("2^24 features: epoch with weight prefetch / without", ratio, "at most 0.5")


def against_wabbit(folder: Path, text: Path, store: Store, repeats: int) -> None:
    """Measure an epoch over the store, with and without loading, relative to a pass over Vowpal Wabbit's cache."""
    if not importlib.util.find_spec("vowpalwabbit"):
        print("skipped: Vowpal Wabbit is not installed (pip install vowpalwabbit)")
        return
    vw = folder / "text.vw"
    to_vw(text, vw)
    words = [sys.executable, "-m", "vowpalwabbit", "-d", vw, "-c", "--loss_function", "hinge", "-b", "18"]
    words += ["--cache_file", folder / "text.cache"]
    command(*words)
    one, many = (statistics.median(command(*words, "--passes", n) for _ in range(3)) for n in (1, 4))
    a_pass = (many - one) / 3
    loader = open_loader(store, 1 << 33, threads=2)

    def epoch() -> None:
        (window,) = loader.stream(SAMPLERS["permutation"](loader.shape, 0, 0))
        solver(store.features, 1e-4).process(window.block, window.order, 0, store.rows, 1)

    with_load = seconds(epoch)
    later = statistics.median(seconds(epoch) for _ in range(repeats))
    report("arxiv_math: epoch over the store / VW's pass over its cache", later / a_pass, "at most 0.35")
    report("arxiv_math: the first epoch, load included / VW's pass", with_load / a_pass, "")


def to_one_percent(name: str, folder: Path, store: Store, text: Path | None, lam: float, repeats: int) -> None:
    """Measure `oocpeg train` to a certified 1 %, relative to LIBLINEAR to the same accuracy and libocas' own 1 %."""
    from sklearn.svm import LinearSVC

    matrix, labels = store.to_scipy()
    model = folder / "bench.model"
    words = [OOCPEG, "train", store.path, "-o", model, "--lambda", str(lam), "--force", "--json"]
    runs = []
    for _ in range(repeats + 1):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    ours = statistics.median(run["seconds"] for run in runs[1:])
    wide = matrix.astype(np.float64)

    def objective(w: np.ndarray) -> float:
        return lam / 2 * float(w @ w) + float(np.maximum(0, 1 - labels * (wide @ w)).mean())

    def fit(tolerance: float) -> tuple[float, float]:
        svm = LinearSVC(C=1 / (lam * len(labels)), loss="hinge", fit_intercept=False, tol=tolerance, max_iter=100_000)
        took = seconds(lambda: svm.fit(wide, labels))
        return took, objective(svm.coef_.ravel())

    best = fit(1e-4)[1]
    reached = (runs[0]["primal"] - best) / best
    print(f"{'':66} {100 * runs[0]['gap']:7.2f}   % certified, {100 * reached:.3f} % true, {runs[0]['epochs']} epochs")
    for tolerance in (3.0, 1.0, 0.5, 0.3, 0.1, 0.03, 0.01):
        took, primal = fit(tolerance)
        if (primal - best) / best <= reached:
            took = statistics.median([took, fit(tolerance)[0], fit(tolerance)[0]])
            report(f"{name}, lambda {lam:g}: train / LIBLINEAR to the same true gap", ours / took, "at most 0.3 (1e-4)")
            break
    if text is None or shutil.which("svmocas") is None:
        print("skipped: libocas is not installed (Debian package libocas-tools)")
        return
    done = subprocess.run(
        [
            "svmocas",
            "-c",
            str(1 / (lam * len(labels))),
            "-b",
            "0",
            "-r",
            "0.01",
            "-v",
            "1",
            str(text),
            str(folder / "ocas.model"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    took = float(re.findall(r"ocas_time[^0-9]*([0-9.]+)", done.stdout)[-1])
    report(f"{name}, lambda {lam:g}: train / libocas to its own certified 1 %", ours / took, "at most 0.4")


def in_threads(store: Store) -> None:
    """Measure `--threads 2` relative to one thread, on copies of the data in memory: time, and the gap reached."""
    from bench_outofcore import copies

    with tempfile.TemporaryDirectory(dir=store.path.parent) as name:
        large = copies(store, 3 << 30, Path(name) / "large")
        found = {}
        for threads in (1, 2):
            config = TrainConfig(
                lam=1e-4, max_epochs=4, tolerance=1e-12, threads=threads, memory=1 << 40, algorithm="sgd-s"
            )
            result = train(large, config)
            found[threads] = (result.profile["foreground"]["processing rows"], result.model.info.certificate.gap or 0)
        report("3 GB in memory: presenting with --threads 2 / with one", found[2][0] / found[1][0], "")
        report("the certified gap after 4 epochs, with --threads 2 / with one", found[2][1] / found[1][1], "")


def fixed_cost(folder: Path) -> None:
    """Measure the whole command on 1,000 rows, relative to importing numba and pyarrow."""
    rng = np.random.default_rng(2)
    text = folder / "small.svm"
    text.write_text("".join(f"{rng.choice([-1, 1])} 1:{rng.random():.3f} 2:{rng.random():.3f}\n" for _ in range(1000)))
    store = folder / "small.store"
    command(OOCPEG, "convert", text, "-o", store)
    words = [OOCPEG, "train", store, "-o", folder / "small.model", "--lambda", "0.1", "--force", "--quiet"]
    command(*words)
    whole = statistics.median(command(*words) for _ in range(9))
    imports = statistics.median(command(sys.executable, "-c", "import numba, pyarrow") for _ in range(9))
    report("oocpeg train on 1,000 rows / python -c 'import numba, pyarrow'", whole / imports, "at most 4")
    cold = {"NUMBA_CACHE_DIR": str(folder / "kernels"), "PATH": "/usr/bin:/bin"}
    began = time.perf_counter()
    done = subprocess.run(list(map(str, words[:-1])), env=cold, capture_output=True, text=True, check=True)
    report("the first run ever, seconds", time.perf_counter() - began, "at most 20")
    if "compiling" not in done.stderr:
        print("the first run did not say that kernels are being compiled")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fixed_cost(folder)
        many_features(repeats)
        matrix, labels = make(800_000, 47_000, 75, 0)
        epoch_in_memory("CCAT-like", coded(matrix, labels, "gap16"), matrix, labels, repeats)
        del matrix
        if not DATASETS.exists():
            print("skipped: the data sets are not here (../shared/data)")
            return
        subprocess.run([sys.executable, str(DATASETS), "arxiv_math", str(folder)], check=True, capture_output=True)
        text = folder / "arxiv_math.train.svm"
        store = convert([str(text)], folder / "arxiv.store", ConvertConfig())
        matrix, labels = store.to_scipy()
        epoch_in_memory("arxiv_math", coded(matrix, labels, "gap16"), matrix, labels, repeats)
        del matrix
        train(store, TrainConfig(lam=1e-4, max_epochs=1))
        in_threads(store)
        against_wabbit(folder, text, store, repeats)
        to_one_percent("arxiv_math", folder, store, text, 1e-4, repeats)
        to_one_percent("arxiv_math", folder, store, None, 1e-5, repeats)


if __name__ == "__main__":
    main()
