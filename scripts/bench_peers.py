"""Time, memory and true accuracy of ooc-pegasos and other programs on the same files; writes docs/peers.json and .md.

    python scripts/bench_peers.py --install DIR              # an environment for each program below DIR
    python scripts/bench_peers.py --environments DIR [--data DATA] [--sets a9a w8a] [--folder DIR] [--repeats 3]
    python scripts/bench_peers.py                            # what is installed here; prints the page
    python scripts/bench_peers.py --page                     # docs/peers.md from docs/peers.json

DATA has NAME.train.svm and NAME.test.svm with labels -1 and 1, or datasets.py as ../shared/data; `ccat` is generated.
Runs of different programs alternate, and the minimum of the times counts. A program that is in no environment below DIR
is run with this interpreter if installed, and reported as missing if not. Suboptimality is (J(w) - bound) / J(w), with
J in float64 of the weights that the program returns, and the lower bound of `train` at a tolerance of 1e-5.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peers_page import page

SCRIPTS = Path(__file__).resolve().parent
DATA = SCRIPTS.parents[1] / "shared" / "data"
RESULTS = SCRIPTS.parent / "docs" / "peers.json"
CLOCKS = (10.0, 1.0, 0.1)
"""Values of lambda m, where m is the number of rows: C = 1 / (lambda m)."""
REAL = ("a9a", "w8a", "reuters_money_fx", "news20", "covtype", "arxiv_math")
SMALL = ("a9a", "w8a", "reuters_money_fx", "news20", "ccat")


@dataclasses.dataclass(frozen=True)
class Peer:
    """A program, and the settings with which it is run; the first are its defaults."""

    name: str
    runner: str
    module: str
    settings: tuple[dict[str, Any], ...]
    note: str
    loss: str = "hinge"
    kind: str = ""
    environment: str = ""
    packages: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    program: str = ""


def values(name: str, *several: float) -> tuple[dict[str, Any], ...]:
    """Return a setting for each value of an option, after the defaults."""
    return ({}, *({name: one} for one in several))


OURS = {"runner": "oocpeg", "module": "ooc_pegasos", "settings": values("tolerance", 1e-3, 1e-4)}
SKLEARN = {"runner": "sklearn", "module": "sklearn", "environment": "scikit-learn", "packages": ("scikit-learn",)}
LIBLINEAR = {"runner": "liblinear", "module": "liblinear", "settings": ({"e": 0.1}, {"e": 1.0}, {"e": 0.01})} | {
    "environment": "liblinear",
    "packages": ("liblinear-official", "scipy", "scikit-learn"),
}
SNAPML = {"runner": "snapml", "module": "snapml", "environment": "snapml", "packages": ("snapml", "scikit-learn")}
PASSES = tuple({"passes": number} for number in (1, 5, 20))
PEERS = (
    Peer("oocpeg", note="`convert` + `train`; certified", **OURS),
    Peer("oocpeg, logistic", note="the same with another loss", loss="logistic", **OURS),
    Peer("LIBLINEAR", note="`-s 3`, dual coordinate descent", **LIBLINEAR),
    Peer("LIBLINEAR, logistic", note="`-s 7`, dual coordinate descent", loss="logistic", **LIBLINEAR),
    Peer("LinearSVC", kind="svc", settings=values("tol", 1e-1, 1e-2), note="hinge loss", **SKLEARN),
    Peer(
        "SGDClassifier",
        kind="sgd",
        settings=(*values("tol", 1e-4, 1e-5), {"average": True}),
        note="the same objective; stops when the training loss stops to fall",
        **SKLEARN,
    ),
    Peer(
        "LogisticRegression",
        kind="logistic",
        settings=(*values("tol", 1e-2), {"tol": 1e-6, "max_iter": 1000}),
        loss="logistic",
        note="L-BFGS",
        **SKLEARN,
    ),
    Peer(
        "snapml", settings=values("tol", 1e-2, 1e-4, 1e-5, 1e-6), note="dual coordinate descent, one thread", **SNAPML
    ),
    Peer(
        "snapml, two threads",
        settings=tuple({"n_jobs": 2} | one for one in values("tol", 1e-2, 1e-4, 1e-5, 1e-6)),
        note="the same",
        **SNAPML,
    ),
    Peer(
        "skglm",
        "skglm",
        "skglm",
        values("max_iter", 1000),
        "LinearSVC; coordinate descent on working sets; numba compiles in each process",
        environment="skglm",
        packages=("skglm", "scikit-learn"),
    ),
    Peer(
        "dask-ml",
        "dask-ml",
        "dask_ml",
        PASSES,
        "Incremental(SGDClassifier), 1, 5 or 20 passes; the same objective, no stopping rule",
        environment="dask-ml",
        packages=("dask-ml",),
    ),
    Peer(
        "Vowpal Wabbit",
        "vw",
        "vowpalwabbit",
        PASSES,
        "another objective: no regularisation, since its L2 option with adaptive steps diverged on a9a; 1, 5 or 20 "
        "passes; text in its format is written before and not counted",
        environment="vowpalwabbit",
        packages=("vowpalwabbit", "numpy"),
    ),
    Peer(
        "libocas",
        "ocas",
        "",
        ({"r": 0.01}, {"r": 0.001}),
        "cutting planes; certified; reads its text itself",
        environment="libocas",
        packages=("numpy",),
        debian=("libocas0", "libocas-tools"),
        program="svmocas",
    ),
)
NOT_AVAILABLE = {"LIBLINEAR cdblock": "neither on PyPI nor a Debian package"}


# --- environments -------------------------------------------------------------------------------


def install(folder: Path) -> None:
    """Make an environment for each program; print those that cannot be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    for peer in {peer.environment: peer for peer in PEERS if peer.environment}.values():
        place = folder / peer.environment
        commands: list[list[object]] = [[sys.executable, "-m", "venv", place]]
        commands += [[place / "bin" / "pip", "install", "--quiet", *peer.packages]]
        if peer.debian:
            commands += [["apt-get", "download", *peer.debian]]
        try:
            place.mkdir(exist_ok=True)
            for command in commands:
                subprocess.run(list(map(str, command)), cwd=place, check=True, capture_output=True, text=True)
            for package in place.glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, place / "debian"], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            print(f"{peer.name}: not installed: {lines[-1]}")


def command_of(peer: Peer, environments: Path | None) -> tuple[str, str]:
    """Return (interpreter, program) of a peer; both may be absent from the environment, see `version_of`."""
    place = environments / peer.environment if environments and peer.environment else None
    python = place / "bin" / "python" if place else Path()
    program = place / "debian" / "usr" / "bin" / peer.program if place and peer.program else Path(peer.program)
    return str(python if place and python.exists() else sys.executable), str(program)


def environment_of(program: str) -> dict[str, str]:
    """Return the variables for a peer: its libraries; no warnings of solvers that stop early."""
    known = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(SCRIPTS.parent)}
    if "/debian/" in program:
        known["LD_LIBRARY_PATH"] = ":".join(map(str, Path(program).parents[1].glob("lib/*-linux-gnu*")))
    return known


def version_of(peer: Peer, environments: Path | None) -> str | None:
    """Return the version of a peer, None if it is not installed."""
    python, program = command_of(peer, environments)
    code = f"import importlib, importlib.metadata as m; importlib.import_module({peer.module!r}); print(m.version(%r))"
    name = peer.packages[0] if peer.packages else "ooc-pegasos"
    words = [program] if peer.program else [python, "-c", code % name]
    try:
        done = subprocess.run(words, env=environment_of(program), capture_output=True, text=True, check=False)
    except OSError:
        return None
    if peer.program:
        found = [word for word in done.stdout.split() if word[:1] == "v" and word[1:2].isdigit()]
        return found[0][1:].rstrip(",") if found else None
    return done.stdout.strip() or None


# --- data ---------------------------------------------------------------------------------------


def write_set(name: str, data: Path, folder: Path, rows: int) -> None:
    """Write a set as NAME.train.svm and NAME.test.svm, and the files derived from it, unless they exist."""
    from make_ccat_like import make, write

    texts = [folder / f"{name}.{part}.svm" for part in ("train", "test")]
    given = [data / text.name for text in texts]
    if not all(text.exists() for text in texts):
        if all(one.exists() for one in given):
            for text, one in zip(texts, given, strict=True):
                text.symlink_to(one.resolve())
        elif name == "ccat":
            x, y = make(rows + rows // 5, 47_000, 75, 0)
            write(texts[0], x[:rows], y[:rows])
            write(texts[1], x[rows:], y[rows:])
        else:
            if not (data / "datasets.py").exists():
                raise SystemExit(
                    f"{name}: neither {given[0].name} nor datasets.py in {data}; name a folder that has it"
                )
            sys.path.insert(0, str(data))
            import datasets

            if name not in datasets.NAMES:
                raise SystemExit(
                    f"{name}: no {given[0].name} in {data}; the sets are {', '.join([*datasets.NAMES, 'ccat'])}"
                )
            x, y, x_test, y_test = datasets.load(name)
            middle = np.median(np.unique(y))  # of several classes the upper half is positive
            write(texts[0], x, np.where(y > middle, 1, -1))
            write(texts[1], x_test, np.where(y_test > middle, 1, -1))
    write_warm_up(texts[0], folder / f"{name}.warm.svm")
    write_wabbit(texts[0], folder / f"{name}.train.vw")
    write_wabbit(folder / f"{name}.warm.svm", folder / f"{name}.warm.vw")


def write_warm_up(text: Path, target: Path) -> None:
    """Write up to 150 rows of each class."""
    taken: dict[bool, list[str]] = {True: [], False: []}
    with text.open() as lines:
        for line in lines:
            of_class = taken[float(line.split(None, 1)[0]) > 0]
            if len(of_class) < 150:
                of_class.append(line)
            if all(len(one) == 150 for one in taken.values()):
                break
    target.write_text("".join(taken[True] + taken[False]))


def write_wabbit(source: Path, target: Path) -> None:
    """Convert svmlight text to Vowpal Wabbit text."""
    if not target.exists():
        with source.open("rb") as lines, target.open("wb") as out:
            for line in lines:
                out.write(line.rstrip().replace(b" ", b" | ", 1) + b"\n")


class Data:
    """A set in float64, with the bounds on the optima."""

    def __init__(self, name: str, folder: Path) -> None:
        from sklearn.datasets import load_svmlight_files

        self.name, self.folder = name, folder
        self.text = folder / f"{name}.train.svm"
        files = [str(self.text), str(folder / f"{name}.test.svm")]
        self.x, y, self.x_test, y_test = load_svmlight_files(files, zero_based=False)
        self.y, self.y_test = np.where(y > 0, 1.0, -1.0), np.where(y_test > 0, 1.0, -1.0)

    def facts(self) -> dict[str, Any]:
        """Return the sizes that the page shows."""
        rows, features = self.x.shape
        sizes = {"rows": rows, "features": features, "nonzeros": self.x.nnz, "test_rows": len(self.y_test)}
        return sizes | {"text_bytes": self.text.stat().st_size, "positive": round(float((self.y > 0).mean()), 4)}

    def test_error(self, weights: np.ndarray) -> float:
        """Return the share of test rows that are classified wrongly."""
        return float(((self.x_test @ weights > 0) != (self.y_test > 0)).mean())

    def bounds(self) -> dict[str, dict[str, float]]:
        """Return lower bounds of the optimal objective, by loss and lambda m."""
        from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train

        config = ConvertConfig(features=self.x.shape[1])
        store = convert([str(self.text)], self.folder / "bound.store", config, existing=Existing(force=True))
        found: dict[str, dict[str, float]] = {}
        for loss in ("hinge", "logistic"):
            for clock in CLOCKS:
                given = TrainConfig(lam=clock / store.rows, loss=loss, tolerance=1e-5, max_seconds=60)
                bound = train(store, given).model.info.certificate.lower_bound
                if bound is None:
                    raise SystemExit(f"{self.name}: no lower bound for the {loss} loss at lambda m = {clock:g}")
                found.setdefault(loss, {})[f"{clock:g}"] = bound
        return found


def objective(x: sp.csr_matrix, y: np.ndarray, weights: np.ndarray, clock: float, loss: str) -> float:
    """Return lambda / 2 |w|^2 + the mean loss, in float64; `clock` is lambda m."""
    margins = y * (x @ weights)
    losses = np.maximum(0.0, 1.0 - margins) if loss == "hinge" else np.logaddexp(0.0, -margins)
    return clock / len(y) / 2 * float(weights @ weights) + float(losses.mean())


def suboptimality(value: float, bound: float, name: str) -> float:
    """Return (J - bound) / J; an objective below the bound disproves the bound and ends the benchmark."""
    if value < bound * (1 - 1e-7):
        raise SystemExit(f"{name}: objective {value!r} below the lower bound {bound!r}; one of them is wrong")
    return max(value - bound, 0.0) / value


# --- runs ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Limit:
    """Memory limit: by a control group where this user may create one, else on the address space."""

    size: int
    group: Any

    @property
    def by(self) -> str:
        """Name of what limits the memory."""
        return "control group" if self.group.folder else "address space"

    def kills(self) -> int:
        """Return the number of processes that the control group ended."""
        return int(self.group.killed()) if self.group.folder else 0


Fit = tuple[float, dict[str, Any]]


def run_peer(
    peer: Peer, data: Data, fits: list[Fit], environments: Path | None, timeout: float, limit: Limit | None
) -> list[dict[str, Any]]:
    """Return the steps of a process, the last of which may be a failure."""
    python, program = command_of(peer, environments)
    with tempfile.TemporaryDirectory(dir=data.folder) as name:
        folder = Path(name)
        for part in ("train", "warm"):
            (folder / f"{data.name}.{part}.vw").symlink_to(data.folder / f"{data.name}.{part}.vw")
        request = dataclasses.asdict(peer) | {"fits": fits, "folder": name, "features": data.x.shape[1]}
        request |= {"text": str(data.text), "warm_up": str(data.folder / f"{data.name}.warm.svm")}
        request |= {"program": program, "results": str(folder / "results"), "limited": limit is not None}
        request["address_space"] = limit.size if limit and not limit.group.folder else 0
        request["began"] = time.monotonic()
        (folder / "request.json").write_text(json.dumps(request))
        words = [python, str(SCRIPTS / "peer_runners.py"), str(folder / "request.json")]
        failure = wait(words, environment_of(program), timeout, limit)
        lines = (folder / "results").read_text().splitlines() if (folder / "results").exists() else []
        steps = [json.loads(line) for line in lines]
        for step in steps:
            if "weights" in step:
                weights = np.load(step.pop("weights"))
                clock = fits[step["fit"]][0]
                step["objective"] = objective(data.x, data.y, weights, clock, peer.loss)
                step["test_error"] = data.test_error(weights)
    if failure and not (steps and "failure" in steps[-1]):
        steps.append({"failure": failure})
    return steps


def wait(words: list[str], env: dict[str, str], timeout: float, limit: Limit | None) -> str | None:
    """Run a process, in a group if there is a limit; return the reason if it failed."""
    before = limit.kills() if limit else 0
    enter: Callable[[], None] | None = limit.group.enter if limit else None
    child = subprocess.Popen(
        words, env=env, preexec_fn=enter, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = child.communicate(timeout=timeout)
    except BaseException as error:  # also an interrupt, which does not reach the session of the process
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"not within {timeout:g} s"
        raise
    if limit and (limit.kills() > before or child.returncode < 0):  # allocations that fail also end in signals
        return "out of memory"
    if child.returncode:
        return f"exit code {child.returncode}: {errors.decode(errors='replace').strip()[-200:]}"
    return None


def merge(peer: Peer, data: Data, bounds: dict[str, dict[str, float]], fits: list[Fit], repeats: Any) -> dict[str, Any]:
    """Return what the page needs of several runs of a program: minima of times, the worst suboptimality."""
    steps = [step for run in repeats for step in run]
    found: dict[str, Any] = {}
    for key in ("start", "load", "peak", "disk"):
        several = [step[key] for run in repeats for step in run if key in step]
        if several:
            found[key] = round_to(max(several) if key in ("peak", "disk") else min(several))
    found["fits"] = []
    for number, (clock, setting) in enumerate(fits):
        same = [step for step in steps if step.get("fit") == number]
        if same:
            bound, what = bounds[peer.loss][f"{clock:g}"], f"{peer.name}, {data.name}, {setting}"
            gap = max(suboptimality(step["objective"], bound, what) for step in same)
            one = {"lambda_m": clock, "setting": peer.settings.index(setting)}
            one |= {"training": round_to(min(step["training"] for step in same)), "suboptimality": round_to(gap)}
            found["fits"].append(one | {"test_error": round_to(max(step["test_error"] for step in same))})
    failures = [step["failure"] for step in steps if "failure" in step]
    return found | ({"failure": failures[0]} if failures else {})


def round_to(number: float) -> float:
    """Return a number with four significant digits."""
    return number if isinstance(number, int) else float(f"{number:.4g}")


def measure(
    peers: list[Peer], data: Data, bounds: Any, options: argparse.Namespace, limit: Limit | None
) -> list[dict[str, Any]]:
    """Run all programs on a set, repeatedly and by turns; after a failure a program is not run again."""
    runs: dict[str, list[Any]] = {peer.name: [] for peer in peers}
    fits: dict[str, list[Fit]] = {}
    for peer in peers:
        several = [1.0] if limit else list(CLOCKS)
        fits[peer.name] = [(clock, one) for one in peer.settings[: 1 if limit else None] for clock in several]
    for repeat in range(options.repeats):
        for peer in peers:
            before = runs[peer.name]
            if before and "failure" in before[-1][-1]:
                continue
            steps = run_peer(peer, data, fits[peer.name], options.environments, options.timeout, limit)
            before.append(steps)
            print(f"{data.name}, run {repeat + 1}, {peer.name}: {steps[-1]}", flush=True)
    return [
        {"set": data.name, "peer": peer.name, "limited": limit is not None}
        | merge(peer, data, bounds, fits[peer.name], runs[peer.name])
        for peer in peers
    ]


def processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results of all programs after each set."""
    from bench_outofcore import group_of

    from ooc_pegasos.option_texts import parse_size

    versions = {peer.name: version_of(peer, options.environments) for peer in PEERS}
    missing = {name: "not installed" for name, version in versions.items() if version is None} | NOT_AVAILABLE
    peers = [peer for peer in PEERS if versions[peer.name] is not None]
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}")
    size = parse_size(options.limit)
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "repeats": options.repeats,
        "timeout": options.timeout,
        "lambda_m": list(CLOCKS),
        "limit": {"bytes": size, "by": ""},
        "peers": [
            {"name": peer.name, "version": versions[peer.name], "loss": peer.loss, "note": peer.note}
            | {"settings": [", ".join(f"{k}={v:g}" for k, v in one.items()) or "defaults" for one in peer.settings]}
            for peer in peers
        ],
        "missing": missing,
        "sets": {},
        "runs": [],
    }
    with tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder) as name:
        folder = Path(name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for one in options.sets:
            write_set(one, options.data, folder, options.rows)
            data = Data(one, folder)
            bounds = data.bounds()
            result["sets"][one] = data.facts() | {"bounds": bounds}
            result["runs"] += measure(peers, data, bounds, options, None)
            if 12 * data.x.nnz > size / 4:  # bytes of a matrix in float64
                with group_of(size) as group:
                    limit = Limit(size, group)
                    result["limit"]["by"] = limit.by
                    result["runs"] += measure(peers, data, bounds, options, limit)
            yield result


def write_results(result: dict[str, Any], path: Path) -> None:
    """Write the results with a line for each run, and the page."""
    runs = ",\n".join("  " + json.dumps(run) for run in result["runs"])
    text = json.dumps(result | {"runs": []}, indent=1)
    assert text.endswith('"runs": []\n}')
    path.write_text(text.removesuffix("[]\n}") + f"[\n{runs}\n ]\n}}\n")
    path.with_suffix(".md").write_text(page(json.loads(path.read_text())))


def main() -> None:
    """Install, compare, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, metavar="DIR", help="make the environments and stop")
    parser.add_argument("--page", action="store_true", help="write the page of the results and stop")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="folder given to --install")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", help=f"by default {' '.join(SMALL)}; `all` adds covtype and arxiv_math")
    parser.add_argument("--rows", type=int, default=150_000, help="rows of the generated set ccat")
    parser.add_argument("--folder", type=Path, help="folder for the texts, which later runs reuse")
    parser.add_argument(
        "--output", type=Path, help="file of the results, docs/peers.json with --environments; the page is next to it"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a process")
    parser.add_argument(
        "--limit", default="350MB", help="memory limit, for sets whose matrix takes a quarter of it or more"
    )
    options = parser.parse_args()
    options.sets = [*REAL, "ccat"] if options.sets == ["all"] else options.sets or list(SMALL)
    if options.install:
        install(options.install)
    elif options.page:
        path = options.output or RESULTS
        path.with_suffix(".md").write_text(page(json.loads(path.read_text())))
    else:
        if not options.data.exists():
            print(f"the data sets are not in {options.data}: CCAT-like data instead")
            options.sets = ["ccat"]
        if options.environments and not options.environments.is_dir():
            raise SystemExit(f"{options.environments}: no such folder; make it with --install")
        output = options.output or (RESULTS if options.environments else None)
        for result in compare(options):
            if output:
                write_results(result, output)
        if not output:
            print(page(result))


if __name__ == "__main__":
    main()
