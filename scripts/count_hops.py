"""Count the functions that hand a row on: from a file to a chunk (`convert`), and from a chunk to the model (`train`).

One row has a value that no other row has. A function gives the row to another if that value, as text or as a number,
is in the memory of an argument, or of what the function returns or yields. The hops of the row are the Python functions
of the package on the shortest chain of such handovers between those that read, parse, scatter, encode and write the
row, each counted once. Functions that only steer, like those of the command line, never hold a row, and compiled
functions are not counted. Between the passes of a conversion the row is on disk.
"""

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import ooc_pegasos
from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train

PACKAGE = f"{Path(ooc_pegasos.__file__).parent}{os.sep}"
VALUE = 7.0390625
TRACES = (str(VALUE).encode(), np.float32(VALUE).tobytes(), np.float64(VALUE).tobytes())
"""The value as text and as a number."""
ALLOCATORS = ("util/buffers.py", "store/page_memory.py")
"""Their memory may have held the row earlier."""
DEPTH = 4
"""Levels of attributes and items in which the row is looked for."""
READ = "readers/sources.py: TextSource._fill"
TABLE = "readers/tables.py: TablesReader.read"
VECTORS = "readers/vectorize.py: Vectorizer.vectors"
SPILL = ("conversion/buckets.py: scatter", "conversion/buckets.py: Spill._add")
SECOND_PASS = (
    "conversion/buckets.py: Spill.segments",
    "conversion/second_pass.py: Assembly._encode",
    "store/chunk_file.py: ChecksummedFile.write",
)
SOLVER = "solvers/sdca.py: SdcaSolver._process_model"
WAYS = {
    "convert svmlight": (20, ((READ, "readers/svmlight.py: SvmlightReader.parse", *SPILL), SECOND_PASS)),
    "convert CSV": (20, ((READ, TABLE, "readers/delimited.py: CellReader.read", VECTORS, *SPILL), SECOND_PASS)),
    "train, mapped": (14, (("loading/mapped.py: MappedLoader._map", SOLVER),)),
    "train, read ahead": (14, (("loading/read_ahead.py: ReadAheadLoader._read", SOLVER),)),
}
"""The largest number of hops, and for each part of the way the functions that read, change, use and write the row."""


def holds_row(given: Any, depth: int = DEPTH) -> bool:
    """True if the value of the row is in the memory of an object."""
    if depth == 0 or given is None or isinstance(given, str | int | float | type):
        return False
    if isinstance(given, dict):
        return any(holds_row(one, depth - 1) for one in given.values())
    if isinstance(given, list | tuple):
        return any(holds_row(one, depth - 1) for one in given)
    if dataclasses.is_dataclass(given):
        return any(holds_row(getattr(given, field.name, None), depth - 1) for field in dataclasses.fields(given))
    try:
        content = content_of(given if isinstance(given, np.ndarray) else np.frombuffer(given, np.uint8))
    except (TypeError, ValueError):  # no array, and no buffer
        return False
    return any(trace in content for trace in TRACES)


def content_of(array: np.ndarray) -> bytes:
    """Return the bytes of an array; none if its pages may not be read, as of memory that is only reserved."""
    if not array.flags.c_contiguous or not array.nbytes:
        return array.tobytes()
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), array.nbytes, array.ctypes.data)
    except OSError:
        return b""


class Handovers:
    """Handovers of the row from one function to another, in all threads."""

    def __init__(self) -> None:
        self.given: dict[str, dict[str, None]] = {}
        self._thread = threading.local()

    def see(self, frame: FrameType, event: str, result: Any) -> None:
        """Record a call or return, as `sys.setprofile` reports them."""
        code = frame.f_code
        name = name_of(frame)
        if event not in ("call", "return") or name is None or name.startswith(ALLOCATORS):
            return
        caller = self._caller(frame)
        if event == "return":
            if caller and holds_row(result):
                self.given.setdefault(name, {})[caller] = None
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if caller and any(holds_row(frame.f_locals.get(one)) for one in names if one not in ("self", "cls")):
            self.given.setdefault(caller, {})[name] = None

    def _caller(self, frame: FrameType) -> str | None:
        """Return the function of the package that called, or that gave the work to a thread."""
        above = frame.f_back
        while above is not None:
            if name := name_of(above):
                return name
            above = above.f_back
        return getattr(self._thread, "submitter", None)

    def during(self, work: Callable[[], Any]) -> None:
        """Record handovers while `work` runs."""
        submit = ThreadPoolExecutor.submit

        def watched(pool: ThreadPoolExecutor, task: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            submitter = self._caller(sys._getframe(0))

            def run() -> Any:
                self._thread.submitter = submitter
                return task(*arguments, **named)

            return submit(pool, run)

        ThreadPoolExecutor.submit = watched  # type: ignore[assignment, method-assign]
        threading.setprofile(self.see)
        sys.setprofile(self.see)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]

    def shortest(self, first: str, last: str) -> list[str]:
        """Return the shortest chain of handovers from one function to another."""
        ways, queue = {first: [first]}, deque([first])
        while queue:
            at = queue.popleft()
            for after in self.given.get(at, {}):
                if after not in ways:
                    ways[after] = [*ways[at], after]
                    queue.append(after)
        if last not in ways:
            raise SystemExit(f"the row did not get from {first} to {last}; correct WAYS in {__file__}")
        return ways[last]


@functools.cache
def _name_of(file: str, function: str) -> str | None:
    around = function.partition(".<locals>")[0]
    return f"{file.removeprefix(PACKAGE)}: {around}" if file.startswith(PACKAGE) else None


def name_of(frame: FrameType) -> str | None:
    """Return the name of a function of the package; None of others. A closure counts as the function around it."""
    return _name_of(frame.f_code.co_filename, frame.f_code.co_qualname)


def rows() -> Iterator[tuple[int, float, float]]:
    """Yield labels and two values; one row has the value that is looked for."""
    rng = np.random.default_rng(0)
    for number, (a, b) in enumerate(rng.random((500, 2)).round(3).tolist()):
        yield (1 if a > b else -1), (VALUE if number == 250 else a), b


def measured(folder: Path) -> dict[str, list[str]]:
    """Return the hops of each way."""
    (folder / "in.svm").write_text("".join(f"{y} 1:{a} 2:{b}\n" for y, a, b in rows()))
    (folder / "in.csv").write_text("y,a,b\n" + "".join(f"{y},{a},{b}\n" for y, a, b in rows()))
    store, options = folder / "a.store", {"lam": 0.1, "max_epochs": 1}
    declared = ConvertConfig(classes=("-1", "1"))  # else the first rows are read before, to see the labels
    work: dict[str, Callable[[], Any]] = {
        "convert svmlight": lambda: convert(folder / "in.svm", store, declared),
        "convert CSV": lambda: convert(folder / "in.csv", folder / "b.store", replace(declared, label="y")),
        "train, mapped": lambda: train(Store.open(store), TrainConfig(**options, loading="mapped")),
        "train, read ahead": lambda: train(Store.open(store), TrainConfig(**options, loading="read")),
    }
    found = {}
    for way, (_most, parts) in WAYS.items():
        handovers = Handovers()
        handovers.during(work[way])
        chains = [handovers.shortest(*ends) for part in parts for ends in pairwise(part)]
        found[way] = list(dict.fromkeys(name for chain in chains for name in chain))
    return found


def main() -> None:
    """Print the hops of each way, and their number; the exit code is 1 if there are too many."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    for way, hops in found.items():
        print(f"{way}: {len(hops)} functions, at most {WAYS[way][0]}")
        for name in hops:
            print(f"  {name}")
    sys.exit(any(len(hops) > WAYS[way][0] for way, hops in found.items()))


if __name__ == "__main__":
    main()
