"""Processes that start without imports: forks of a server that has imported the package.

A process has its own exit code, output, signals and memory, and can be killed like any other. Its standard input is
empty. Tests of the start of the interpreter (imports, standard input, peak memory) run an interpreter instead.
"""

import atexit
import ctypes
import gc
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ooc_pegasos.errors import OocPegasosError
from support.paths import ROOT

COMMAND = "from ooc_pegasos.cli.main import main\nmain()"
"""The code of `oocpeg`, for `program`."""

_WARM_UP = """
import numpy as np
import ooc_pegasos.cli.main
import ooc_pegasos.conversion.pipeline
import ooc_pegasos.scoring.evaluate
import ooc_pegasos.scoring.model
import ooc_pegasos.training.api
from ooc_pegasos.compiled.fit.pegasos import square_distance

square_distance(np.ones(3), np.empty(0), 1.0)  # initialises numba; starts no thread

def execute(code, words):
    sys.argv = ["oocpeg", *words]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})

import sys
"""
_STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class ForkServer:
    """An interpreter that forks a process for each call of `start`.

    `code` defines the functions that processes call. Its other statements are run once, before the first fork.
    `preload`: a library that is loaded before all others (tests/faults/shim.c).
    """

    def __init__(self, code: str, preload: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fork-server-")
        paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "tests", ROOT / "tests" / "faults"))
        env = {**os.environ, "PYTHONPATH": paths} | ({"LD_PRELOAD": str(preload)} if preload else {})
        # -P: modules are not looked for in the working folder
        words = [sys.executable, "-P", "-c", "from support.fork_server import serve; serve()", code]
        self._server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self._received = b""
        self._ended: dict[int, int] = {}
        self._started = 0
        assert self._report() == ["ready"]

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(
        self,
        function: str,
        *words: object,
        folder: object = ".",
        env: Mapping[str, str] | None = None,
        terminal: str | None = None,
        under: Path | None = None,
        die_before: int = 0,
        fault: Mapping[str, object] | None = None,
    ) -> "Process":
        """Start a process that calls a function of `code`.

        With `terminal`, the path of a terminal, the process leads a session on it, like the shell of a terminal.
        With `under`, the process counts its steps: files and folders below `under` that it creates, opens to write,
        renames or removes. With `die_before` it kills itself before this step.
        `fault`: arguments for the preloaded library (see `fault`).
        """
        self._started += 1
        process = Process(self, self._started, Path(self._folder.name) / str(self._started))
        request = {
            "number": process.number,
            "output": str(process.output),
            "function": function,
            "words": [str(word) if isinstance(word, Path) else word for word in words],
            "folder": os.path.abspath(str(folder)),
            "env": dict(os.environ if env is None else env),
            "terminal": terminal,
            "under": str(under) if under else None,
            "die_before": die_before,
            "fault": dict(fault) if fault else None,
        }
        process.pid = int(self._ask(request)[1])
        return process

    def kill(self, number: int) -> None:
        """Send SIGKILL to a process if it has not ended.

        The server sends the signal, because only the server knows that no other process has got the pid.
        """
        self._ask({"kill": number})

    def exit_code(self, number: int, seconds: float | None) -> int | None:
        """Return the exit code of a process, or None if it has not ended after so many seconds; None waits."""
        end = None if seconds is None else time.monotonic() + seconds
        while number not in self._ended:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            if b"\n" not in self._received and not select.select([self._server.stdout], [], [], left)[0]:
                return None
            self._note(self._report())
        return self._ended[number]

    def close(self) -> None:
        """End the server and its processes."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()
        self._folder.cleanup()

    def _ask(self, request: Mapping[str, object]) -> list[str]:
        """Send a request and return the answer; ends of processes that are reported before it are noted."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        while (report := self._report())[0] == "ended":
            self._note(report)
        return report

    def _note(self, report: list[str]) -> None:
        kind, number, code = report
        assert kind == "ended", report
        self._ended[int(number)] = int(code)

    def _report(self) -> list[str]:
        """Return the next line from the server."""
        assert self._server.stdout is not None
        while b"\n" not in self._received:
            more = os.read(self._server.stdout.fileno(), 4096)
            assert more, "the fork server has ended; see its standard error"
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line.decode().split()


class Process:
    """A fork of a server, with the methods of `subprocess.Popen` that tests use."""

    pid: int

    def __init__(self, server: ForkServer, number: int, output: Path) -> None:
        self._server, self.number, self.output = server, number, output

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended the process; None if it has not ended."""
        return self._server.exit_code(self.number, 0.0)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. After `timeout` seconds, kill the process and raise an error."""
        code = self._server.exit_code(self.number, timeout)
        if code is None:
            self.kill()
            self._server.exit_code(self.number, None)
            raise subprocess.TimeoutExpired(sys.executable, timeout or 0.0)
        return code

    def has_ended(self, seconds: float) -> bool:
        """True if the process ends within so many seconds."""
        return self._server.exit_code(self.number, seconds) is not None

    def kill(self) -> None:
        """Send SIGKILL, if the process has not ended."""
        self._server.kill(self.number)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for the end of the process and return what it wrote to standard output and standard error."""
        self.wait(timeout)
        out, err = (
            path.read_text() if path.exists() else "" for path in map(self.output.with_suffix, (".out", ".err"))
        )
        return out, err

    @property
    def steps(self) -> int:
        """The number of steps of a process that was started with `under` and not killed."""
        self.wait()
        return int(self.output.with_suffix(".steps").read_text())

    def succeed(self) -> None:
        """Wait for the end of the process and check that its exit code is 0."""
        assert self.wait() == 0, self.communicate()


def fault(under: Path, number: int, variant: int = 0, report: object = "", journal: object = "") -> dict[str, object]:
    """Arguments for the preloaded library: what it counts and records, and the call that fails, or 0 for none."""
    return {
        "under": str(under),
        "number": number,
        "variant": variant,
        "files": [str(report), str(journal)],
    }


def program(
    code: str,
    *words: object,
    folder: object = ".",
    env: Mapping[str, str] | None = None,
    terminal: str | None = None,
) -> Process:
    """Start a process that runs `code` with these command line arguments."""
    arguments = [str(word) for word in words]
    return common_server().start("execute", code, arguments, folder=folder, env=env, terminal=terminal)


@cache
def common_server() -> ForkServer:
    """Return the server of all tests of this process that need no functions of their own."""
    server = ForkServer(_WARM_UP)
    atexit.register(server.close)
    return server


# --- in the server --------------------------------------------------------------------------------


def serve() -> None:
    """Run the code given as the first argument, then fork a process for each request until standard input ends."""
    pipe, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    functions: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(sys.argv[1], "<fork server>", "exec"), functions)
    gc.collect()
    gc.freeze()  # else the garbage collector of each process would touch, and so copy, all pages
    os.write(reports, b"ready\n")
    forks = multiprocessing.get_context("fork")
    running: dict[int, tuple[int, Any]] = {}  # by sentinel
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        for ready in wait([pipe, *running]):
            if ready in running:
                number, process = running.pop(ready)
                process.join()
                os.write(reports, f"ended {number} {process.exitcode}\n".encode())
                continue
            line = _line(pipe)
            if not line:
                for _number, process in running.values():
                    process.kill()
                    process.join()
                return
            request = json.loads(line)
            if "kill" in request:
                for number, process in running.values():
                    if number == request["kill"]:
                        process.kill()
                os.write(reports, b"killed\n")
                continue
            process = forks.Process(target=_run, args=(functions, request, (pipe, reports), interrupt))
            process.start()
            running[process.sentinel] = request["number"], process
            os.write(reports, f"started {process.pid}\n".encode())


def _line(pipe: int) -> bytes:
    """Read a line; the client sends the next one when this one has been answered."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(pipe, 1 << 16)
        if not more:
            return b""
        line += more
    return line


def _run(
    functions: Mapping[str, Callable[..., object]], request: dict[str, Any], pipes: tuple[int, ...], interrupt: Any
) -> None:
    """Run a function in a fork."""
    for pipe in pipes:
        os.close(pipe)
    signal.signal(signal.SIGINT, interrupt)
    terminal = request["terminal"]
    if terminal is not None:
        os.setsid()
    for number, path, flags in _streams(request["output"], terminal):
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    count = _count_steps(request["under"], request["die_before"]) if request["under"] else [0]
    if request["fault"]:
        _arm(**request["fault"])
    try:
        functions[request["function"]](*request["words"])
    except OocPegasosError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    finally:
        if request["under"]:
            Path(f"{request['output']}.steps").write_text(str(count[0]))


def _streams(output: str, terminal: str | None) -> Iterator[tuple[int, str, int]]:
    """Yield (file descriptor, path, flags) of the standard streams of a fork."""
    if terminal is not None:
        yield from ((number, terminal, os.O_RDWR) for number in range(3))
        return
    for number, suffix in ((1, "out"), (2, "err")):
        yield number, f"{output}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _count_steps(under: str, die_before: int) -> list[int]:
    """Count the steps of this process in a list of one number; it kills itself before step `die_before`."""
    count = [0]

    def hook(event: str, words: tuple[Any, ...]) -> None:
        if event in _STEPS and str(words[0]).startswith(under) and (event != "open" or words[2] & _WRITES):
            count[0] += 1
            if count[0] == die_before:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


def _arm(under: str, number: int, variant: int, files: list[str]) -> None:
    """Set what the preloaded library counts, records and makes fail."""
    report, journal = (os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if file else -1 for file in files)
    ctypes.CDLL(None).shim_arm(under.encode(), ctypes.c_long(number), variant, report, journal)
