"""Guard against loss of speed: hot paths of the package, compared with the baseline in bench_guard.json.

    python scripts/bench_guard.py [--measure instructions|ratio] [--update]

Where valgrind runs, instructions are counted, in machine code for one kind of processor: the counts of a program vary
by less than a percent, whatever else the machine does. They do not include the time of cache misses. Elsewhere the
measure is the CPU time of a path relative to the CPU time of a reference of the same kind, which alternates with it:
the minima of several rounds. The exit code is 1 if a path is slower than its baseline by more than its tolerance, by
instructions or by the measure that was asked for.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
BASELINE = Path(__file__).with_suffix(".json")
INSTRUCTIONS, RATIO = "instructions", "ratio"
PATHS = {
    "parse svmlight text": "parse",
    "parse CSV, 39 columns": "parse",
    "hash words of texts": "parse",
    "second pass of a conversion": "scan",
    "load a window": "scan",
    "epoch of sgd-s, one model": "gather",
    "epoch of sgd-s, eight models": "gather",
    "epoch of sdca, one model": "gather",
    "epoch of sdca, eight models": "gather",
    "measure the objective": "gather",
    "evaluate": "gather",
    "oocpeg --help": "start",
    "oocpeg info": "start",
}
"""The hot paths, and the kind of reference of each."""
EIGHT = tuple(np.geomspace(1e-2, 1e-4, 8).tolist())
_ROUNDS = 15
_TOLERANCES = {INSTRUCTIONS: 0.05, RATIO: 0.4}
_TOLERANCE_OF_VERSIONS = 0.3
"""The least tolerance where Python or a package has another version than in the baseline."""
_START = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import numpy"
"""The reference of commands; the start of threads would take varying time."""
_PACKAGES = ("llvmlite", "numba", "numpy", "pyarrow", "typer")
_PROCESSOR = "haswell"
_FEATURES = ("avx", "avx2", "bmi", "bmi2", "cmov", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.1", "sse4.2")
"""The processor for which kernels are compiled where instructions are counted: valgrind supports no later one."""

Meter = AbstractContextManager[None]
Work = Callable[[Meter], object]


# --- meters -------------------------------------------------------------------------------------


class Seconds:
    """The CPU time of this process."""

    def __init__(self) -> None:
        self.total = 0.0

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_error: object) -> None:
        self.total += time.process_time() - self._began


class Instructions:
    """The instructions of this process, which valgrind counts and writes to a file when a path is finished.

    `valgrind.h` defines the requests: a sequence of instructions without effect that valgrind recognises.
    """

    # mov rax, rdi; mov rdx, rsi; rol rdi, 3, 13, 61 and 51, the sign for valgrind; xchg rbx, rbx; mov rax, rdx; ret
    _CODE = bytes.fromhex("4889f84889f2 48c1c70348c1c70d48c1c73d48c1c733 4887db 4889d0c3")
    _WRITE, _START, _STOP = (0x43540000 + number for number in (3, 4, 5))

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(self._CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)(address)

    def __enter__(self) -> None:
        self._request(self._START)

    def __exit__(self, *_error: object) -> None:
        self._request(self._STOP)

    def finish(self, path: str) -> None:
        """Write the count since the last call."""
        self._request(self._WRITE, path)

    def _request(self, number: int, text: str = "") -> None:
        content = ctypes.create_string_buffer(text.encode())
        words = (ctypes.c_uint64 * 6)(number, ctypes.addressof(content))
        self._call(ctypes.addressof(words), 0)


def count(works: dict[str, Work]) -> None:
    """Count the instructions of each path, in a process that valgrind runs; the first run loads kernels."""
    meter = Instructions()
    for path, work in works.items():
        work(nullcontext())
        work(meter)
        meter.finish(path)


def ratio(work: Callable[[], float], reference: Callable[[], float]) -> float:
    """Return the time of a path relative to that of its reference; both alternate, and the minima count."""
    work()
    rounds = [(work(), reference()) for _ in range(_ROUNDS)]
    fastest, fastest_reference = map(min, zip(*rounds, strict=True))
    return fastest / fastest_reference


def seconds(work: Work) -> float:
    """Return the CPU time that a path measures."""
    meter = Seconds()
    work(meter)
    return meter.total


def seconds_of_command(words: list[str]) -> float:
    """Return the CPU time of a command."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return usage.ru_utime + usage.ru_stime


def references() -> dict[str, Work]:
    """Return work of the kinds of the paths, without this package."""
    rng = np.random.default_rng(0)
    numbers, copy = np.ones((2, 4_000_000), np.float32)
    places = rng.integers(0, 1 << 20, 1_000_000)
    text = " ".join(map(str, rng.integers(0, 10**6, 100_000).tolist()))
    return {
        "scan": whole(lambda: [np.copyto(copy, numbers) for _ in range(3)]),
        "gather": whole(lambda: [np.take(numbers, places).sum() for _ in range(3)]),
        "parse": whole(lambda: np.fromstring(text, np.int64, sep=" ")),
    }


# --- paths --------------------------------------------------------------------------------------


def whole(work: Callable[[], object]) -> Work:
    """Return work all of which is measured."""

    def run(meter: Meter) -> None:
        with meter:
            work()

    return run


def inside(kind: type, method: str, work: Callable[[], object]) -> Work:
    """Return work of which the calls of a method are measured."""
    original = getattr(kind, method)

    def run(meter: Meter) -> None:
        def measured(*arguments: Any, **named: Any) -> Any:
            with meter:
                return original(*arguments, **named)

        setattr(kind, method, measured)
        try:
            work()
        finally:
            setattr(kind, method, original)

    return run


def prepare(folder: Path) -> None:
    """Make the data, and compile the kernels of the paths."""
    import pyarrow.csv
    from bench_readers import clicks
    from make_ccat_like import make, write

    from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, train

    matrix, labels = make(40_000, 47_000, 75, 0)
    write(folder / "rows.svm", matrix[:8000], labels[:8000])
    pyarrow.csv.write_csv(clicks(10_000, 0), folder / "clicks.csv")
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("etaoinshrdlucmfw"), size)) for size in rng.integers(2, 12, 30_000)]
    texts = (" ".join(words[number] for number in np.minimum(rng.zipf(1.3, 250), 30_000) - 1) for _ in range(2000))
    (folder / "texts").write_text("\n".join(texts))
    store = Store.from_scipy(matrix, labels, folder / "store", None, ConvertConfig(threads=1), Existing(force=True))
    train(store, TrainConfig(lam=1e-3, max_epochs=1)).model.save(folder / "model")
    for work in hot_paths(folder).values():
        work(nullcontext())


def hot_paths(folder: Path) -> dict[str, Work]:
    """Return the paths that run in this process."""
    from ooc_pegasos import ConvertConfig, Model, Store
    from ooc_pegasos.scoring.evaluate import evaluate

    table = ConvertConfig(label="label", numeric=("I*",), categorical=("C*",), hash_bits=18)
    model, store = Model.load(folder / "model"), Store.open(folder / "store")
    return {
        "parse svmlight text": whole(reading(folder / "rows.svm", ConvertConfig())),
        "parse CSV, 39 columns": whole(reading(folder / "clicks.csv", table)),
        "hash words of texts": whole(hashing(folder / "texts")),
        "second pass of a conversion": converting(store, folder / "copy"),
        "load a window": whole(loading(store)),
        **training(store),
        "evaluate": whole(lambda: evaluate(model, store.path, threads=1)),
    }


def reading(path: Path, config: Any) -> Callable[[], None]:
    """Return work that parses a file."""
    from ooc_pegasos.readers import registry
    from ooc_pegasos.readers.base import ReadOptions

    names, kind = registry.find([str(path)])
    recipe = registry.new_recipe(replace(config, format=kind), names, lambda _note: None)

    def work() -> None:
        reader = registry.reader_for(names, recipe, ReadOptions())
        for task in reader.tasks():
            reader.release(reader.read(task))

    return work


def hashing(path: Path) -> Callable[[], object]:
    """Return work that hashes texts."""
    import pyarrow as pa

    from ooc_pegasos.readers.tokens import TextHasher
    from ooc_pegasos.store.recipe import Hashing, Tokens

    texts, hasher = pa.array(path.read_text().split("\n")), TextHasher(Tokens(), Hashing())
    return lambda: hasher.part(texts)


def converting(store: Any, path: Path) -> Work:
    """Return a conversion, of which the second pass is measured."""
    from ooc_pegasos import ConvertConfig, Existing, Store
    from ooc_pegasos.conversion.second_pass import Assembly

    matrix, labels = store.to_scipy()
    options = None, ConvertConfig(threads=1), Existing(force=True)
    return inside(Assembly, "run", lambda: Store.from_scipy(matrix, labels, path, *options))


def loading(store: Any) -> Callable[[], object]:
    """Return work that loads the whole store."""
    from ooc_pegasos.loading.loader import open_loader

    loader = open_loader(store, 1 << 32, loading="read")
    chunks = tuple(range(len(store.manifest.chunks)))
    return lambda: loader.load(chunks, 0)


def training(store: Any) -> dict[str, Work]:
    """Return first epochs, in which all rows are active, and the pass that measures the objective."""
    from ooc_pegasos import TrainConfig, train
    from ooc_pegasos.objective.exact_pass import Measurement
    from ooc_pegasos.solvers.pegasos_group import PegasosSolver
    from ooc_pegasos.solvers.sdca import SdcaSolver

    def epoch(lam: Any, algorithm: str) -> Callable[[], object]:
        options: Any = {"max_epochs": 1, "tolerance": 1e-12, "holdout": 1e-3, "threads": 1}
        return lambda: train(store, TrainConfig(lam=lam, algorithm=algorithm, **options))

    return {
        "epoch of sgd-s, one model": inside(PegasosSolver, "process", epoch(EIGHT[0], "sgd-s")),
        "epoch of sgd-s, eight models": inside(PegasosSolver, "process", epoch(EIGHT, "sgd-s")),
        "epoch of sdca, one model": inside(SdcaSolver, "process", epoch(EIGHT[0], "sdca")),
        "epoch of sdca, eight models": inside(SdcaSolver, "process", epoch(EIGHT, "sdca")),
        "measure the objective": inside(Measurement, "add", epoch(EIGHT[0], "sgd-s")),
    }


# --- measures -----------------------------------------------------------------------------------


def can_count() -> bool:
    """True if there is a valgrind whose processor is the one for which kernels are compiled."""
    return shutil.which("valgrind") is not None and platform.machine() == "x86_64"


class NoCounterError(Exception):
    """Instructions cannot be counted here."""


def counts_of(words: list[str], *, on_request: bool = False) -> dict[str, float]:
    """Return the instructions of a command, by the path that a request names, or "" for the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder}/counts"]
        if on_request:  # twice as slow
            options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        run(["valgrind", "-q", *options, *words])
        return dict(map(count_in, Path(folder).iterdir()))


def count_in(file: Path) -> tuple[str, float]:
    """Return the path and the number of instructions in a file of valgrind."""
    text = file.read_text(errors="replace")
    path = re.search("^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
    numbers = re.findall("^(?:totals|summary): ([0-9]+)", text, re.MULTILINE)
    return (path[1] if path else ""), float(numbers[-1])


def run(words: list[str]) -> str:
    """Return the output of a command. Hashes of strings, and so the order of sets, are the same in each run."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "COLUMNS": "100", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCounterError(f"{words[0]} ended with code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands whose start is measured."""
    start = [sys.executable, "-m", "ooc_pegasos"]
    return {"oocpeg --help": [*start, "--help"], "oocpeg info": [*start, "info", str(folder / "store")]}


def measure_instructions(folder: Path) -> dict[str, float]:
    """Return the instructions of all paths."""
    if not can_count():
        raise NoCounterError("there is no valgrind for this machine")
    run(step("prepare", folder))
    found = counts_of(step("count", folder), on_request=True)
    for path, words in commands(folder).items():
        run(words)  # writes compiled modules
        found[path] = counts_of(words)[""]
    return {path: found[path] for path in PATHS}


def measure_ratios(folder: Path) -> dict[str, float]:
    """Return the time of all paths, relative to that of their references."""
    prepare(folder)
    known = references()
    found = {
        path: ratio(lambda work=work: seconds(work), lambda other=known[PATHS[path]]: seconds(other))
        for path, work in hot_paths(folder).items()
    }
    start = [sys.executable, "-c", _START]
    for path, words in commands(folder).items():
        found[path] = ratio(lambda words=words: seconds_of_command(words), lambda: seconds_of_command(start))
    return found


def step(name: str, folder: Path) -> list[str]:
    """Return the command for a step in a process with kernels for one kind of processor."""
    return [sys.executable, __file__, "--step", name, str(folder)]


def take(name: str, folder: Path) -> None:
    """Take a step, as `step` calls it."""
    import llvmlite.binding as llvm

    llvm.get_host_cpu_name = lambda: _PROCESSOR
    llvm.get_host_cpu_features = lambda: llvm.FeatureMap(dict.fromkeys(_FEATURES, True))
    if name == "prepare":
        prepare(folder)
    else:
        count(hot_paths(folder))


def measure(wanted: str | None) -> tuple[str, dict[str, float]]:
    """Return (the measure, the value of each path): instructions if they can be counted and nothing else is wanted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if wanted == RATIO:
            return RATIO, measure_ratios(folder)
        try:
            return INSTRUCTIONS, measure_instructions(folder)
        except NoCounterError as error:
            problem = f"instructions cannot be counted: {error}"
    if wanted == INSTRUCTIONS:
        sys.exit(f"error: {problem}; install valgrind, or give --measure {RATIO}")
    print(f"note: times are compared, because {problem}")
    return measure(RATIO)


# --- comparison ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A path, its value, and its baseline."""

    path: str
    value: float
    baseline: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Return the value relative to the baseline."""
        return self.value / self.baseline

    @property
    def is_slower(self) -> bool:
        """True if the path is slower than the tolerance allows."""
        return self.ratio > 1 + self.tolerance

    def __str__(self) -> str:
        verdict = "SLOWER" if self.is_slower else "faster" if self.ratio < 1 / (1 + self.tolerance) else "ok"
        numbers = f"{self.value:16,.2f}{self.baseline:18,.2f}{self.ratio:8.3f}{1 + self.tolerance:9.2f}"
        return f"{self.path:30}{numbers}  {verdict}"


def compare(kind: str, values: dict[str, float], baseline: dict[str, Any]) -> list[Compared]:
    """Return each path with its baseline in this measure."""
    if idle := [path for path, value in values.items() if not value]:
        sys.exit(f"error: nothing was measured in {', '.join(idle)}; name the method that does the work in hot_paths")
    least = _TOLERANCE_OF_VERSIONS if baseline["versions"][kind] != versions() else 0.0
    known = {path: baseline["paths"][path][kind] for path in values}
    return [Compared(path, values[path], one["value"], max(one["tolerance"], least)) for path, one in known.items()]


def advice(found: Iterable[Compared]) -> str | None:
    """Return what to do if paths are slower; None if no path is."""
    slower = [f"{one.path} ({one.ratio:.2f} times the baseline)" for one in found if one.is_slower]
    if not slower:
        return None
    return (
        f"error: slower than before: {', '.join(slower)}; find the commit that made the loss and correct it, or, if "
        f"the loss is worth its cost, run `python scripts/{Path(__file__).name} --update` and commit {BASELINE.name}"
    )


def versions() -> dict[str, str]:
    """Return the versions that values depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES}


def updated(kind: str, values: dict[str, float], baseline: dict[str, Any]) -> dict[str, Any]:
    """Return a baseline with new values in this measure. Tolerances remain, and so do values in the other measure."""
    paths = {}
    for path, value in values.items():
        known = baseline["paths"].get(path, {})
        tolerance = known.get(kind, {}).get("tolerance", _TOLERANCES[kind])
        paths[path] = {**known, kind: {"value": float(f"{value:.4g}"), "tolerance": tolerance}}
    return {"versions": {**baseline["versions"], kind: versions()}, "paths": paths}


def main() -> None:
    """Print the table, or write the baseline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--measure", choices=[INSTRUCTIONS, RATIO], help="by default instructions if they can be counted"
    )
    parser.add_argument("--update", action="store_true", help=f"write the values to {BASELINE.name}")
    parser.add_argument("--step", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="no better than always answering")  # after one epoch
    if options.step:
        take(options.step[0], Path(options.step[1]))
        return
    baseline = json.loads(BASELINE.read_text())
    if options.update:
        for kind in [options.measure] if options.measure else _TOLERANCES:
            baseline = updated(*measure(kind), baseline)
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n")
        return
    kind, values = measure(options.measure)
    if (made := baseline["versions"][kind]) != versions():
        print(f"note: the baseline was made with {made}, and here is {versions()}; tolerances are larger")
    found = compare(kind, values, baseline)
    print(f"{kind:30}{'measured':>16}{'baseline':>18}{'ratio':>8}{'at most':>9}", *found, sep="\n")
    problem = advice(found)
    if problem and kind == RATIO and not options.measure:  # nobody asked for times, which other work changes
        print(f"note: {problem.removeprefix('error: ')}")
        return
    sys.exit(problem)


if __name__ == "__main__":
    main()
