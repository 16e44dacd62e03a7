"""Programs as processes of their own that begin where everything is imported already.

A server is started once, imports the package (warm.py) and does nothing else; every program is a fork of it, so
it costs no second of imports. Each has its own exit code, output, signals and memory, and can be killed like any other.
What a start of the interpreter is to show (imports, standard input, the peak of memory) is started as usual.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing import forkserver
from pathlib import Path

from support.paths import ROOT

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["support.warm"])

COMMAND = "from ooc_pegasos.cli.main import main\nmain()"


class Forked:
    """As much of `subprocess.Popen` as is needed here; standard input is empty.

    With a `terminal`, the path of one, the program leads a session on it, as the shell of a terminal does.
    """

    def __init__(
        self,
        code: str,
        *words: object,
        folder: object = ".",
        env: Mapping[str, str] | None = None,
        terminal: str | None = None,
    ) -> None:
        self._outputs = tempfile.TemporaryDirectory(prefix="forked-")
        self._paths = [Path(self._outputs.name) / name for name in ("out", "err")]
        told = (code, [str(word) for word in words], os.path.abspath(str(folder)), dict(env or os.environ))
        self._process = _server.Process(target=_run, args=(*told, terminal, *map(str, self._paths)))
        warm_up()
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.poll()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it wrote, when it has ended."""
        self._process.join(timeout)
        if self.poll() is None:
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired(sys.executable, timeout)
        out, err = (path.read_text() if path.exists() else "" for path in self._paths)
        self._outputs.cleanup()
        return out, err


@cache
def warm_up() -> None:
    """Start the server, once in a run; it looks for modules here, not where something else of that name may be."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    first = _server.Process(target=int)
    first.start()  # it waits for the imports
    first.join()


def _run(
    code: str, words: list[str], folder: str, env: dict[str, str], terminal: str | None, out: str, err: str
) -> None:
    """What the fork does: be the program."""
    if terminal is not None:
        os.setsid()
        places = [(number, terminal, os.O_RDWR) for number in range(3)]
    else:
        places = [(1, out, os.O_WRONLY | os.O_CREAT), (2, err, os.O_WRONLY | os.O_CREAT)]
    for descriptor, path, how in places:
        file = os.open(path, how)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["oocpeg", *words]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
