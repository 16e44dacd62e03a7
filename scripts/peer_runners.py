"""Train with one program in its own environment, for bench_peers.py; imports numpy, scipy and that program alone.

    python scripts/peer_runners.py REQUEST.json

A runner has `load`, which reads svmlight text, and `fit`, which returns the weights for C = 1 / (lambda m) without a
bias. Writes one JSON line for each step to the file `results` of the request, so that steps before a failure count.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Runner:
    """Base class: keeps the request; `seconds` is set where a program measures its own time."""

    disk = 0
    needs_warm_up = True
    reads_in_fit = False
    seconds: float | None = None
    load_seconds = 0.0
    """Seconds of reading, where `reads_in_fit` and the program measures them."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.folder = Path(request["folder"])

    def load(self, text: str) -> None:
        """Read a text of one of the two files."""
        self.disk = os.path.getsize(text)

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        """Return the weights; `clock` is lambda m."""
        raise NotImplementedError


class InMemory(Runner):
    """A matrix in memory, read by scikit-learn, the fastest reader that these programs can be given."""

    def load(self, text: str) -> None:
        super().load(text)
        self.x, self.y = read(text, self.request["features"])


def read(text: str, features: int, **part: int) -> tuple[Any, Any]:
    """Return (CSR matrix with 32-bit indices, labels of -1 and 1)."""
    import numpy as np
    from sklearn.datasets import load_svmlight_file

    x, y = load_svmlight_file(text, n_features=features, zero_based=False, **part)
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    return x, np.where(y > 0, 1.0, -1.0)


class Sklearn(InMemory):
    """LinearSVC, SGDClassifier or LogisticRegression of scikit-learn."""

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        from sklearn.linear_model import LogisticRegression, SGDClassifier
        from sklearn.svm import LinearSVC

        made: Any = {
            "svc": lambda: LinearSVC(loss="hinge", C=1 / clock, fit_intercept=False, random_state=0, **setting),
            "sgd": lambda: SGDClassifier(alpha=clock / len(self.y), fit_intercept=False, random_state=0, **setting),
            "logistic": lambda: LogisticRegression(C=1 / clock, fit_intercept=False, **setting),
        }[self.request["kind"]]()
        return made.fit(self.x, self.y).coef_


class Liblinear(InMemory):
    """LIBLINEAR through its Python package, with the loss as its type of solver."""

    def load(self, text: str) -> None:
        from liblinear.liblinear import problem

        super().load(text)
        self.problem = problem(self.y, self.x)

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        import numpy as np
        from liblinear.liblinearutil import parameter, train

        kind = {"hinge": 3, "logistic": 7}[self.request["loss"]]
        model = train(self.problem, parameter(f"-s {kind} -c {1 / clock!r} -B -1 -e {setting['e']!r} -q"))
        return np.array(model.get_decfun()[0]) * model.get_labels()[0]


class Snapml(InMemory):
    """Support vector machine of Snap ML."""

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        from snapml import SupportVectorMachine

        made = SupportVectorMachine(loss="hinge", regularizer=float(clock), random_state=0, **setting)
        made.fit(self.x, self.y)
        return made.coef_


class Skglm(InMemory):
    """LinearSVC of skglm."""

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        from skglm import LinearSVC

        return LinearSVC(C=1 / clock, fit_intercept=False, **setting).fit(self.x, self.y).coef_


class DaskMl(Runner):
    """Incremental(SGDClassifier) of dask-ml on blocks of the text: in memory, or read in each pass."""

    def load(self, text: str) -> None:
        import dask
        import dask.array as da
        import numpy as np
        import scipy.sparse as sp

        super().load(text)
        dask.config.set(scheduler="threads", num_workers=1)  # passes are sequential; a block at a time is in memory
        features = self.request["features"]
        x, y = [], []
        for start, length, rows in blocks_of(text, 1 << 25):
            part = dask.delayed(read, nout=2)(text, features, offset=start, length=length)
            x.append(da.from_delayed(part[0], (rows, features), meta=sp.csr_matrix((0, features))))
            y.append(da.from_delayed(part[1], (rows,), dtype=np.float64))
        self.x, self.y = da.concatenate(x), da.concatenate(y)
        if not self.request["limited"]:
            self.x, self.y = dask.persist(self.x, self.y)

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        from dask_ml.wrappers import Incremental
        from sklearn.linear_model import SGDClassifier

        one = SGDClassifier(alpha=clock / len(self.y), fit_intercept=False, random_state=0)
        model = Incremental(one, assume_equal_chunks=True)
        for _ in range(setting["passes"]):
            model.partial_fit(self.x, self.y, classes=[-1, 1])
        return model.coef_


def blocks_of(text: str, size: int) -> list[tuple[int, int, int]]:
    """Return (offset, bytes, rows) of parts of a text that end with a line."""
    found = []
    with open(text, "rb") as file:
        while lines := file.readlines(size):
            length = sum(map(len, lines))
            found.append((file.tell() - length, length, len(lines)))
    return found


class Oocpeg(Runner):
    """`convert` and `train` of ooc-pegasos."""

    def load(self, text: str) -> None:
        from ooc_pegasos import ConvertConfig, Existing, convert

        config = ConvertConfig(features=self.request["features"])
        self.store = convert([text], self.folder / "store", config, existing=Existing(force=True))
        self.disk = self.store.manifest.bytes

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        from ooc_pegasos import TrainConfig, train

        lam = clock / self.store.rows
        return train(self.store, TrainConfig(lam=lam, loss=self.request["loss"], **setting)).model.weights


class VowpalWabbit(Runner):
    """Vowpal Wabbit with the hinge loss and adaptive steps; with `--l2` these diverged on a9a, so it is not used."""

    reads_in_fit = True

    def load(self, text: str) -> None:
        self.text = self.folder / f"{Path(text).stem}.vw"  # bench_peers.py wrote it
        self.cache = self.text.with_suffix(".cache")
        self.disk = self.text.stat().st_size

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        import numpy as np
        from vowpalwabbit import Workspace

        features, passes = self.request["features"], setting["passes"]
        model = str(self.folder / "vw.model")
        words = ["-d", str(self.text), "-f", model, "--loss_function", "hinge", "--noconstant", "--quiet"]
        words += ["-b", str(math.ceil(math.log2(features + 1)))]
        if passes > 1:
            words += ["--passes", str(passes), "--holdout_off", "-k", "-c", "--cache_file", str(self.cache)]
        began = time.perf_counter()
        Workspace(arg_list=words).finish()
        self.seconds = time.perf_counter() - began
        if self.cache.exists():
            self.disk = self.cache.stat().st_size
        made = Workspace(arg_list=["-i", model, "--quiet"])
        return np.array([made.get_weight(feature) for feature in range(1, features + 1)])


class Ocas(Runner):
    """The program `svmocas` of libocas, which reads the text and prints how long that took."""

    needs_warm_up = False
    reads_in_fit = True

    def load(self, text: str) -> None:
        super().load(text)
        self.text = text

    def fit(self, clock: float, setting: dict[str, Any]) -> Any:
        model = self.folder / "ocas.model"
        words = [self.request["program"], "-c", repr(1 / clock), "-b", "0", "-r", repr(setting["r"]), self.text, model]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise MemoryError if done.returncode < 0 else RuntimeError(done.stdout[-200:] + done.stderr[-200:])
        self.load_seconds, self.seconds = (
            float(re.findall(rf"{name}_time\s*: ([0-9.]+)", done.stdout)[-1]) for name in ("load", "ocas")
        )
        import numpy as np

        weights = np.loadtxt(model)[:-1]
        return np.pad(weights, (0, self.request["features"] - len(weights)))


RUNNERS = {
    "oocpeg": Oocpeg,
    "liblinear": Liblinear,
    "sklearn": Sklearn,
    "snapml": Snapml,
    "skglm": Skglm,
    "dask-ml": DaskMl,
    "vw": VowpalWabbit,
    "ocas": Ocas,
}


def peak() -> int:
    """Return the largest resident memory of this process and of the programs it ran, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024 * max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def run(request: dict[str, Any], report: Any) -> None:
    """Load once and train with each setting; report each step."""
    runner = RUNNERS[request["runner"]](request)
    if runner.needs_warm_up:  # imports, and compilation, which are reported as the time to start
        runner.load(request["warm_up"])
        runner.fit(10.0, request["fits"][0][1])
    began = time.monotonic()
    start = began - request["began"]
    runner.load(request["text"])
    load = time.monotonic() - began
    report(start=start, **({} if runner.reads_in_fit else {"load": load}), peak=peak(), disk=runner.disk)
    for number, (clock, setting) in enumerate(request["fits"]):
        began = time.monotonic()
        weights = runner.fit(clock, setting)
        seconds = runner.seconds if runner.seconds is not None else time.monotonic() - began
        name = Path(request["results"]).with_suffix(f".{number}.npy")
        import numpy as np

        np.save(name, np.asarray(weights, np.float64).ravel())
        load = runner.load_seconds if runner.reads_in_fit else load
        report(fit=number, load=load, training=seconds, peak=peak(), disk=runner.disk, weights=str(name))


def main() -> None:
    """Run the request; report a failure as the last line."""
    request = json.loads(Path(sys.argv[1]).read_text())
    if request["address_space"]:
        resource.setrlimit(resource.RLIMIT_AS, (request["address_space"],) * 2)
    with open(request["results"], "w") as out:

        def report(**step: object) -> None:
            out.write(json.dumps(step) + "\n")
            out.flush()

        try:
            run(request, report)
        except Exception as error:
            is_memory = isinstance(error, MemoryError) or re.search("memory|bad_alloc", str(error).lower())
            report(failure="out of memory" if is_memory else f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()
