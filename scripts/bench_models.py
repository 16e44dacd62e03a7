"""Many models in one pass, and the automatic solver, relative to LIBLINEAR, scikit-learn and Vowpal Wabbit.

    python scripts/bench_models.py [--only passes|disk|accuracy|text|grid] [--repeats 3] [--folder DIR]

Data: a CCAT-like set made by make_ccat_like.py, and the real sets of ../shared/data if they are there. Everything is
timed in one run and printed as ratios; an absolute time means nothing on a shared machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_convert import DATASETS, command, report, to_vw
from make_ccat_like import make, write

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train

OOCPEG = Path(sys.executable).with_name("oocpeg")
REAL = ("arxiv_math", "covtype", "a9a", "w8a")


def stores(folder: Path) -> dict[str, tuple[Store, Path]]:
    """Yield each training set as a store, and the text of its test set."""
    found = {}
    text = folder / "ccat.svm"
    if not text.exists():
        matrix, labels = make(800_000, 47_000, 75, 0)
        write(text, matrix, labels)
    for name in ("ccat", *(REAL if DATASETS.exists() else ())):
        if name != "ccat":
            text = folder / f"{name}.train.svm"
            if not text.exists():
                subprocess.run([sys.executable, str(DATASETS), name, str(folder)], check=True, capture_output=True)
        path = folder / f"{name}.store"
        store = Store.open(path) if path.exists() else convert([str(text)], path, ConvertConfig())
        found[name] = (store, folder / f"{name}.test.svm")
    return found


def presenting(store: Store, **options: object) -> float:
    """Return the seconds a run spends in solver loops."""
    # type: ignore[arg-type]
    config = TrainConfig(max_epochs=1, tolerance=1e-12, holdout=1e-3, memory=1 << 40, **options)
    return min(train(store, config).profile["foreground"]["processing rows"] for _ in range(3))


def passes(name: str, store: Store) -> None:
    """Measure a pass that trains 8 or 16 models, relative to a pass that trains one."""
    # the first epoch, in which no row is inactive; Pegasos at lambdas for which it does not average
    for algorithm, most, least in (("sdca", 1e-3, 1e-5), ("sgd-s", 1e-2, 1e-4)):
        several = np.geomspace(most, least, 3).tolist()
        one = statistics.median(presenting(store, lam=lam, algorithm=algorithm) for lam in several)
        for number, limit in ((8, 2.5), (16, 3.5)):
            lam = tuple(np.geomspace(most, least, number).tolist())
            many = presenting(store, lam=lam, algorithm=algorithm)
            report(f"{name}, {algorithm}: a pass for {number} lambdas / for one", many / one, f"at most {limit}")


def runs(name: str, store: Store) -> None:
    """Measure complete runs: a path of 8 lambdas to 1 % each, relative to single runs."""
    lambdas = np.geomspace(1e-3, 1e-6, 8).tolist()
    train(store, TrainConfig(lam=tuple(lambdas), holdout=0.1))
    together = train(store, TrainConfig(lam=tuple(lambdas), holdout=0.1)).seconds
    alone = [train(store, TrainConfig(lam=lam, holdout=0.1)).seconds for lam in lambdas]
    report(f"{name}: a path of 8 to 1 % each / the longest of its runs", together / max(alone), "")
    report(f"{name}: a path of 8 to 1 % each / all its runs one by one", together / sum(alone), "")


def from_a_slow_disk(store: Store, folder: Path) -> None:
    """Measure the same from a disk limited to 1 GB/s, in windows."""
    from bench_outofcore import SlowDisk, copies, run_train

    with tempfile.TemporaryDirectory(dir=folder) as name:
        large = copies(store, 2 << 30, Path(name) / "large")
        took = {}
        disk = SlowDisk(large.path, 10**9)
        try:
            for number, lam in ((1, "1e-4"), (8, "1e-5:1e-3:8")):
                words = ["--lambda", lam, "--max-epochs", "3", "--tolerance", "1e-12", "--memory", "400MB"]
                words += ["--algorithm", "sgd-s", "--holdout", "0.001"]
                told = run_train(large, None, *words, disk=disk)
                took[number] = statistics.median(epoch["seconds"] for epoch in told["per_epoch"])
        finally:
            disk.close()
        report("from a disk of 1 GB/s: an epoch for 8 lambdas / for one", took[8] / took[1], "at most 1.3")


def against_liblinear(name: str, store: Store, repeats: int) -> None:
    """Measure `train` to a certified gap, relative to LIBLINEAR to the same true gap."""
    from sklearn.svm import LinearSVC

    matrix, labels = store.to_scipy()
    wide = matrix.astype(np.float64)

    def objective(w: np.ndarray, lam: float) -> float:
        return lam / 2 * float(w @ w) + float(np.maximum(0, 1 - labels * (wide @ w)).mean())

    for lam in (1e-4, 1e-6):
        fits: dict[float, tuple[float, float]] = {}

        def fit(tolerance: float, lam: float = lam) -> tuple[float, float]:
            svm = LinearSVC(C=1 / (lam * len(labels)), loss="hinge", fit_intercept=False, tol=tolerance, max_iter=2000)
            began = time.perf_counter()
            svm.fit(wide, labels)
            return time.perf_counter() - began, objective(svm.coef_.ravel(), lam)

        for tolerance in (0.01, 0.001):
            config = TrainConfig(lam=lam, tolerance=tolerance)
            results = [train(store, config) for _ in range(repeats + 1)]
            ours = statistics.median(result.seconds for result in results[1:])
            certificate = results[0].model.info.certificate
            bound = certificate.lower_bound or 0.0
            best = max(
                bound, train(store, TrainConfig(lam=lam, tolerance=1e-5)).model.info.certificate.lower_bound or 0
            )
            reached = certificate.primal / best - 1
            for loose in (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
                if loose not in fits:
                    fits[loose] = fit(loose)
                if fits[loose][1] / best - 1 <= reached:
                    took = statistics.median([fits[loose][0], *(fit(loose)[0] for _ in range(2))])
                    break
            else:
                took = fits[0.001][0]
            limit = 1.0 if name in ("a9a", "w8a") else (0.7 if (lam, tolerance) == (1e-6, 0.001) else 0.4)
            what = f"{name}, lambda {lam:g} to {100 * tolerance:g} %: train / LIBLINEAR to the same true gap"
            report(what, ours / took, f"at most {limit}")
            print(
                f"{'':20}certified {100 * (certificate.gap or 1):.3f} %, true {100 * reached:.4f} %, "
                f"{results[0].model.info.epochs} epochs, LIBLINEAR's tol {loose:g}"
            )


def error_of(model: Path, test: Path) -> float:
    """Return the error rate of a model file on a test set."""
    done = subprocess.run([OOCPEG, "evaluate", model, test, "--json"], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["error"])


def from_text(folder: Path) -> None:
    """Measure `convert` and `train` without a lambda, relative to Vowpal Wabbit with a cache and five passes."""
    if not importlib.util.find_spec("vowpalwabbit"):
        print("skipped: Vowpal Wabbit is not installed (pip install vowpalwabbit)")
        return
    text, test = folder / "arxiv_math.train.svm", folder / "arxiv_math.test.svm"
    files = [folder / "train.vw", folder / "test.vw"]
    for source, target in zip((text, test), files, strict=True):
        if not target.exists():
            to_vw(source, target)
    cache, vw_model, predictions = folder / "text.cache", folder / "vw.model", folder / "predictions"
    words = [sys.executable, "-m", "vowpalwabbit", "--loss_function", "hinge", "-b", "18"]
    ours, theirs = [], []
    for _ in range(3):
        cache.unlink(missing_ok=True)
        learn = ["-c", "--cache_file", cache, "-f", vw_model]
        writing = command(*words, "-d", files[0], *learn)
        five = command(*words, "-d", files[0], *learn, "--passes", "5")
        theirs.append(writing + five)
        store, model = folder / "fresh.store", folder / "fresh.model"
        took = command(OOCPEG, "convert", text, "-o", store, "--force", "-q")
        took += command(OOCPEG, "train", store, "-o", model, "--force", "-q")
        ours.append(took)
    report("text to model: convert + train, no lambda / VW's cache + 5 passes", _ratio(ours, theirs), "at most 2")
    command(*words[:3], "-d", files[1], "-t", "-i", vw_model, "-p", predictions)
    scores = np.loadtxt(predictions, usecols=0)
    truth = np.array([float(line.split(" ", 1)[0]) for line in files[1].read_text().splitlines()])
    vw_error = float(((scores > 0) != (truth > 0)).mean())
    mine = error_of(folder / "fresh.model", test)
    print(f"{'':20}test error {100 * mine:.2f} %, Vowpal Wabbit's {100 * vw_error:.2f} % (at most 0.3 points more)")


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


def against_a_grid(name: str, store: Store, test: Path, folder: Path) -> None:
    """Measure the default without a lambda, relative to a cross-validated grid of LinearSVC; compare test errors."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    if not test.exists():
        return
    matrix, labels = store.to_scipy()
    wide = matrix.astype(np.float64)
    x, y = load_svmlight_file(str(test), n_features=matrix.shape[1])
    x, y = sp.csr_matrix(x), np.where(y > 0, 1, -1)
    model = folder / "default.model"
    train(store, TrainConfig())
    began = time.perf_counter()
    train(store, TrainConfig()).model.save(model)
    ours = time.perf_counter() - began
    mine = error_of(model, test)
    grid = (10.0 ** np.arange(-3, 2.1, 0.5)).tolist()
    errors, total = {}, 0.0
    for c in grid:
        svm = LinearSVC(C=c, loss="hinge")
        began = time.perf_counter()
        svm.fit(wide, labels)
        total += time.perf_counter() - began
        errors[c] = float((svm.predict(x) != y).mean())
    if store.nonzeros < 10_000_000:  # otherwise one fit for each C, because a search would take even longer
        search = GridSearchCV(LinearSVC(loss="hinge"), {"C": grid}, cv=3)
        began = time.perf_counter()
        search.fit(wide, labels)
        total = time.perf_counter() - began
    best = min(errors, key=errors.__getitem__)
    report(f"{name}: test error by default / the best of scikit-learn's grid", mine / errors[best], "at most 1.03")
    report(f"{name}: time / that grid's", ours / total, "at most 0.1")
    print(f"{'':20}test error {100 * mine:.2f} %, the grid's best {100 * errors[best]:.2f} % at C = {best:g}")


def main() -> None:
    """Print the table."""
    warnings.filterwarnings("ignore", message="Liblinear failed to converge")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["passes", "disk", "accuracy", "text", "grid"])
    parser.add_argument("--sets", help="the data sets to run, like a9a,w8a")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the data, which later runs reuse")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(exist_ok=True)
        sets = stores(folder)
        chosen = {name: found for name, found in sets.items() if not options.sets or name in options.sets.split(",")}
        for name, (store, test) in chosen.items():
            if options.only in (None, "passes") and store.nonzeros > 10_000_000:
                passes(name, store)
                runs(name, store)
            if options.only in (None, "accuracy"):
                against_liblinear(name, store, options.repeats)
            if options.only in (None, "grid"):
                against_a_grid(name, store, test, folder)
        if options.only in (None, "disk"):
            from_a_slow_disk(sets["ccat"][0], folder)
        if options.only in (None, "text") and "arxiv_math" in sets:
            from_text(folder)


if __name__ == "__main__":
    main()
