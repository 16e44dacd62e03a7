"""Commands run in a warm process, and folders that are full, read-only or without permission."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine import small_disk

from ooc_pegasos.util.locks import Owner
from support.file_bytes import folder_bytes
from support.fork_server import ForkServer
from support.rows import random_rows, svmlight_text

Command = Callable[..., subprocess.CompletedProcess[str]]
COMMANDS = """
import os, sys, tempfile
import pyarrow.parquet, pyarrow.csv
from machine import without_power as try_without_power
from ooc_pegasos import ConvertConfig, TrainConfig, convert
from ooc_pegasos.conversion import preview
from ooc_pegasos.training import api as trainer
import ooc_pegasos.jobs.run
from ooc_pegasos.cli.main import main
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store.verify import verify

def oocpeg(folder, words, power):
    if not power:
        try_without_power()
    os.chdir(folder)
    sys.argv[1:] = words
    main()

with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/in.svm", "w").write("1 1:1 3:0.25\\n-1 2:0.5 4:0.75\\n" * 100)
    store = convert([f"{folder}/in.svm"], f"{folder}/store")
    for algorithm in ("sdca", "sgd-s"):
        model = trainer.train(store, TrainConfig(lam=0.1, algorithm=algorithm)).model
    evaluate(model, store.path)
"""


@pytest.fixture(scope="module")
def commands() -> Iterator[ForkServer]:
    with ForkServer(COMMANDS) as made:
        yield made


def run_fork(
    commands: ForkServer, folder: Path, words: tuple[object, ...], code: int | None, power: bool = True
) -> subprocess.CompletedProcess[str]:
    """As `oocpeg` of all tests, without the second that it takes to load everything."""
    child = commands.start("oocpeg", folder, [str(word) for word in words], power)
    out, err = child.communicate()
    ended = child.wait()
    assert "Traceback" not in err, err
    assert code is None or ended == code, (ended, out, err)
    return subprocess.CompletedProcess(words, ended, out, err)


@pytest.fixture
def quick(commands: ForkServer, tmp_path: Path) -> Command:
    """Run `oocpeg` with these words in the temporary folder."""
    return lambda *words, code=0: run_fork(commands, tmp_path, words, code)


def one_error(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """The one line of error, which has these words and says what to do."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in words), lines[0]
    assert ";" in lines[0], lines[0]
    return lines[0]


def spread(rows: int, folder: Path, name: str = "in.svm", seed: int = 1) -> Path:
    path = folder / name
    path.write_text(svmlight_text(*random_rows(rows, 300, seed)))
    return path


def files_without_locks(folder: Path) -> dict[str, bytes]:
    """As `folder_bytes`, without locks, which say who was there last."""
    return {name: content for name, content in folder_bytes(folder).items() if not name.endswith("lock")}


@contextmanager
def filled(place: Path, free: int) -> Iterator[None]:
    """Leave a number of free bytes on the file system at `place`."""
    ballast = place / "ballast"
    there = os.statvfs(place)
    size = there.f_bavail * there.f_frsize - free
    try:
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
        yield
    finally:
        ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "8m"):
        yield tmp_path / "small"


@pytest.fixture
def powerless(commands: ForkServer, tmp_path: Path) -> Command:
    """Run `oocpeg` as an unprivileged user, even if the tests run as root."""
    if commands.start("try_without_power").wait():
        pytest.skip("root cannot give up its power here")
    return lambda *words, code=0: run_fork(commands, tmp_path, words, code, power=False)


@contextmanager
def mode_of(path: Path, mode: int) -> Iterator[None]:
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


@pytest.fixture(params=["read-only", "not permitted"])
def closed(request: pytest.FixtureRequest, tmp_path: Path, quick: Command) -> Iterator[Callable[..., object]]:
    """A folder `place`, and what closes it: its file system becomes read-only, or nobody may write to it."""
    place = tmp_path / "place"
    if request.param == "read-only":
        with small_disk(place, "8m") as mount:

            @contextmanager
            def close() -> Iterator[tuple[Command, str]]:
                mount("ro")
                try:
                    yield quick, "read-only file system"
                finally:
                    mount("rw")

            yield close
        return
    powerless = request.getfixturevalue("powerless")
    place.mkdir()

    @contextmanager
    def forbid() -> Iterator[tuple[Command, str]]:
        with mode_of(place, 0o555):
            yield powerless, "permission denied"

    yield forbid


@contextmanager
def holding(folder: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a command until it is killed."""
    command = [sys.executable, "-m", "ooc_pegasos", *map(str, words)]
    child = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    while not (path.exists() and (owner := Owner.parse(path.read_bytes())) and owner.pid == child.pid):
        assert child.poll() is None
        time.sleep(0.01)


CLOCKS = """
import itertools, sys, time
import concurrent.futures, queue, subprocess, threading  # these wait by the real clock
real = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
count = itertools.count()
turn = {
    "backwards": lambda now: now - 3600.0 * next(count),
    "jumping": lambda now: now + 86400.0 * (next(count) % 2),
    "standing still": lambda now: 1e9,
}[sys.argv[1]]
for name, clock in real.items():
    setattr(time, name, lambda clock=clock: turn(clock()))
from ooc_pegasos.cli.main import main
sys.argv[1:] = sys.argv[2:]
main()
"""

MEDDLE = {
    "grows": lambda path: path.write_bytes(path.read_bytes() + b"1 1:1\n"),
    "shrinks": lambda path: os.truncate(path, path.stat().st_size // 2),
    "is emptied": lambda path: os.truncate(path, 0),
    "is replaced": lambda path: (
        path.with_name("x").write_bytes(path.read_bytes()[::-1]),
        path.with_name("x").rename(path),
    ),
    "vanishes": Path.unlink,
    "is touched": lambda path: os.utime(path, (1, 1)),
}

fixtures = commands, quick, powerless, disk, closed
"""For who writes `commands, quick, powerless, disk, closed = fixtures`."""
