"""Commands with injected disk faults, and the invariants that must hold afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ooc_pegasos import Model, Store, verify
from ooc_pegasos.conversion.publish import pending
from ooc_pegasos.store.manifest import FILE_NAME
from support.file_bytes import folder_bytes
from support.fork_server import ForkServer, fault
from support.rows import random_rows, svmlight_text

WARM = """
import contextlib, io, os, sys, tempfile
import scipy.sparse, pyarrow.csv
from datetime import UTC, datetime
from ooc_pegasos.cli.main import app, main
from ooc_pegasos.jobs import run as jobs

def oocpeg(folder, words, day):
    os.chdir(folder)
    sys.argv[1:] = words
    jobs.run.__kwdefaults__["now"] = lambda: datetime(2026, 11, day, 2, tzinfo=UTC)
    main()

def replace(path, synced):
    with open(path + ".new", "wb") as file:
        file.write(b"new")
        file.flush()
        if synced:
            os.fsync(file.fileno())
    os.rename(path + ".new", path)
    if synced:
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(descriptor)

with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    os.chdir(folder)
    open("in.svm", "w").write("1 1:1 3:0.25\\n-1 2:0.5 4:0.75\\n" * 100)
    open("in.csv", "w").write("label,a,b,n\\n" + "1,x,0.5,one\\n-1,y,0.25,two\\n" * 50)
    for words in (
        "convert in.svm -o store -q",
        "convert in.csv -o table --label label --id n -q",
        "train store -o model --lambda 0.1 --algorithm sdca -q",
        "train store -o model --lambda 0.1 --algorithm sgd-s --force -q",
        "evaluate model store",
        "predict model in.svm -o scores.parquet",
        "verify store",
    ):
        app(words.split(), standalone_mode=False)
"""
JOB = """
store = "clicks.store"
models = "models"
inputs = ["day-*.svm"]
golden = ["golden.svm"]
expire_days = 1.5
reserve = 1
keep = 2
log = "log.jsonl"
metrics = "job.prom"
[convert]
values = "float32"
features = 30
index_base = 1
[train]
lam = 1e-1
tolerance = 0.2
checkpoint_epochs = 2
[gate]
max_relative_regression = 0.9
"""
DAY = 86_400
MIDNIGHT = 1793491200  # of 1 November 2026, about


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail, or a skip."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed, so no library that makes system calls fail can be built")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def processes(shim: Path) -> Iterator[ForkServer]:
    with ForkServer(WARM, shim) as made:
        yield made


@dataclass(frozen=True)
class Ended:
    """A process at its end."""

    code: int
    out: str
    err: str

    def reports_in_place(self, what: str) -> bool:
        """True if the error says that the new state of `what` is in place nevertheless."""
        return re.search(rf"^error: (/.*/)?{what}: the new state is in place", self.err, re.MULTILINE) is not None


@dataclass
class Command:
    """An `oocpeg` command in the folder `place`, and checks of its outcome.

    `result(place)`: the state that must equal that of an undisturbed run. `is_new(place)`: True for the new state of
    `what`, False for the old one; fails for any other state.
    """

    name: str
    processes: ForkServer
    place: Path
    words: tuple[str, ...]
    result: Callable[[Path], dict[str, bytes]]
    is_new: Callable[[Path], bool] = field(default=lambda _place: False)
    what: str = "store"
    resume: bool = True
    """True if the command can be run again with --resume."""
    is_repeatable: bool = True
    """True if the command is idempotent."""
    is_over: Callable[[], bool] = field(default=lambda: True)
    """False if the command has to be run again although `what` is new."""
    day: int = 1
    expected: dict[str, bytes] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    @property
    def _first(self) -> Path:
        return self.place.with_name("first")

    def begin(self) -> None:
        """Record the initial state, and the result of an undisturbed run."""
        shutil.copytree(self.place, self._first, symlinks=True)
        self.succeed()
        self.expected, self.names = self.result(self.place), _names(self.place)
        self.prepare()

    def prepare(self) -> None:
        """Restore the initial state."""
        shutil.rmtree(self.place)
        shutil.copytree(self._first, self.place, symlinks=True)

    def run(self, *more: str, number: int = -1, variant: int = 0, report: object = "", journal: object = "") -> Ended:
        """Run it to its end, with a fault at a call, or with a journal."""
        chosen = fault(self.place, number, variant, report, journal) if number >= 0 else None
        child = self.processes.start("oocpeg", self.place, [*self.words, *more], self.day, fault=chosen)
        out, err = child.communicate()
        return Ended(child.wait(), out, err)

    def succeed(self) -> None:
        """Run the command and check that its exit code is 0."""
        ended = self.run()
        assert ended.code == 0, ended

    def again(self, number: int) -> Ended:
        """The same command once more, every other time with --resume."""
        return self.run(*(["--resume"] if self.resume and number % 2 else []))

    def left_overs(self) -> set[str]:
        """Files that an undisturbed run does not leave."""
        return _names(self.place) - self.names

    def check_same(self, tidy: bool = True) -> None:
        """Fail unless the state is that of an undisturbed run; without `tidy`, unreferenced files are allowed."""
        found = self.result(self.place)
        if tidy:
            assert found.keys() == self.expected.keys(), found.keys() ^ self.expected.keys()
        assert [name for name in self.expected if found.get(name) != self.expected[name]] == []
        assert not tidy or self.left_overs() == set()


def _names(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    locks = re.compile(
        r"lock(\.[0-9a-f]{16})*(\.tmp)?$"
    )  # the next process that takes a lock removes what is left of it
    return {
        name
        for name in found
        if not (name.startswith(("models/2", "models/runs")) or locks.search(name) or re.match(r"c/.*rows-\d", name))
    }


def check_disturbed(command: Command, number: int, ended: Ended) -> None:
    """Fail if a user could not continue after a fault."""
    unreadable_job = ended.code == 2 and "job.toml: " in ended.err
    assert ended.code in (0, 3, 5) or unreadable_job, ended.code
    assert "Traceback" not in ended.err
    is_new = command.is_new(command.place)
    if ended.code == 0:
        assert is_new
        found = command.result(command.place)
        assert [name for name in command.expected if found.get(name) != command.expected[name]] == []
        assert not command.left_overs() or "note: " in ended.err, command.left_overs()
        return
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended.err
    assert ";" in lines[0], lines[0]
    assert ended.reports_in_place(command.what) == is_new, (is_new, ended.err)
    if is_new and not command.is_repeatable:
        command.check_same()
        return
    once_more = command.again(number)
    assert once_more.code == 0, (ended, once_more)
    command.check_same()


def failure_of(error: BaseException) -> str:
    """Where and why a check has failed, on one line."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno} {at.line}: {str(error)[:500]!r}"


# --- the commands -------------------------------------------------------------------------------


def check_store(path: Path) -> None:
    """Fail if the store is damaged."""
    assert verify(Store.open(path)).problems == []


def conversion_command(processes: ForkServer, place: Path, mode: str) -> Command:
    """A new store of a table, or rows appended to a store or put in its place, with bad rows in all of them."""
    command = Command(mode, processes, place, (), published_files)
    target = place / "store"
    if mode == "convert":
        lines = [f"{1 - 2 * (i % 2)},{'xyz'[i % 3]}{i % 7},{i / 64},row {i}" for i in range(60)]
        lines[30] = "1,x,no number,row 30"
        (place / "in.csv").write_text("\n".join(["label,a,b,n", *lines]) + "\n")
        options = ["--label", "label", "--id", "n", "--seed", "5"]
        command.words = ("convert", "in.csv", "-o", "store", "--on-bad-row", "skip", "--chunk-size", "1kB", *options)
    else:
        (place / "old.svm").write_text(
            "rubbish\n" + "".join(f"{1 - 2 * (i % 2)} {1 + i % 40}:0.5\n" for i in range(80))
        )
        text = svmlight_text(*random_rows(60, 40, 3, 0.2)).splitlines(keepends=True)
        text[20] = "garbage\n"
        (place / "new.svm").write_text("".join(text))
        options = ["--on-bad-row", "skip", "--values", "float32"]
        command.words = ("convert", "old.svm", "-o", "store", *options)
        command.succeed()
        if mode == "append":
            options = options[:2]
        command.words = ("convert", "new.svm", "-o", "store", f"--{mode}", "--chunk-size", "1kB", *options)
    before = folder_bytes(target) if target.exists() else {}

    def is_new(_place: Path) -> bool:
        if not target.exists():
            assert mode == "convert"
            return False
        check_store(target)
        now = folder_bytes(target)
        if now["manifest.json"] == before.get("manifest.json"):
            assert {name: now.get(name) for name in before} == before
            return False
        assert now["manifest.json"] == command.expected["store/manifest.json"]
        return True

    command.is_new = is_new
    return command


def split_command(processes: ForkServer, place: Path, mode: str) -> Command:
    """A new store of rows to train on and one of test rows, or rows appended to both."""
    words = ("-o", "store", "--chunk-size", "1kB")
    command = Command(mode, processes, place, (), published_files)
    for number, name in enumerate(("old", "new")):
        (place / f"{name}.svm").write_text(svmlight_text(*random_rows(60, 40, number, 0.2)))
    command.words = ("convert", "old.svm", *words, "--test", "0.3", "--features", "40", "--values", "float32")
    if mode == "split append":
        command.succeed()
        command.words = ("convert", "new.svm", *words, "--append")
    before = folder_bytes(place / "store") if (place / "store").exists() else {}

    def is_new(_place: Path) -> bool:
        if not (place / "store").exists():
            assert not before
            return False
        stores = [place / "store", place / "store.test"]
        for store in [path for path in stores if path.exists()]:
            check_store(store)
        now = folder_bytes(place / "store")
        if now["manifest.json"] == before.get("manifest.json"):
            assert {name: now.get(name) for name in before} == before
            return False
        assert now["manifest.json"] == command.expected["store/manifest.json"]
        return True

    command.is_new = is_new
    command.is_over = lambda: not pending(place / "store")
    return command


def drop_command(processes: ForkServer, place: Path, _mode: str) -> Command:
    """Rows of the last two of three conversions, with rejected rows in all of them, are dropped again."""
    words = ("-o", "store", "--on-bad-row", "skip", "--chunk-size", "1kB")
    command = Command("drop", processes, place, (), published_files, resume=False)
    for number, name in enumerate(("old", "wrong", "wronger")):
        text = svmlight_text(*random_rows(60, 40, number, 0.2)).splitlines(keepends=True)
        text[20] = "garbage\n"
        (place / f"{name}.svm").write_text("".join(text))
        values = ("--append",) if number else ("--values", "float32", "--features", "40")
        command.words = ("convert", f"{name}.svm", *words, *values)
        command.succeed()
    before = (place / "store" / "manifest.json").read_bytes()
    command.words = ("drop", "store", "--source", "wrong.svm", "--source", "wronger.svm")

    def is_new(_place: Path) -> bool:
        check_store(place / "store")
        now = (place / "store" / "manifest.json").read_bytes()
        assert now in (before, command.expected["store/manifest.json"])
        return now != before

    command.is_new = is_new
    return command


def published_files(place: Path) -> dict[str, bytes]:
    """All files but those of a conversion that is not done."""
    return {name: content for name, content in folder_bytes(place).items() if ".unfinished" not in name}


def training_command(processes: ForkServer, place: Path, mode: str) -> Command:
    """A run with a checkpoint after each epoch and a log; `resume`: a killed run is resumed; `search`: for lambda."""
    (place / "in.svm").write_text(svmlight_text(*random_rows(120, 40, 3, 0.2)))
    command = Command(
        "", processes, place, ("convert", "in.svm", "-o", "store", "--chunk-size", "2kB"), state_of_training
    )
    command.succeed()
    (place / "model").write_bytes(b"an older one")
    command.name, command.what = mode, "model"
    options = ["--lambda", "0.01", "--tolerance", "0.3", "--algorithm", "sdca", "--memory", "95kB"]
    if mode == "search":
        options = ["--holdout", "0.3", "--tolerance", "0.3", "--algorithm", "sdca", "--memory", "200kB"]
    options += ["--checkpoint", "c", "--checkpoint-epochs", "1", "--log", "log", "--force"]
    command.words = ("train", "store", "-o", "model", *options)
    if mode == "resume":
        absolute = [str(place / word) if word in ("store", "model", "c", "log") else word for word in command.words]
        steps = processes.start("oocpeg", place, absolute, 1, under=place).steps
        (place / "model").write_bytes(b"an older one")
        child = processes.start("oocpeg", place, absolute, 1, under=place, die_before=steps * 2 // 3)
        assert child.wait() < 0
        assert (place / "c" / "training.checkpoint").exists()
        command.words = (*command.words, "--resume")
        command.resume = False

    def is_new(_place: Path) -> bool:
        if (place / "model").read_bytes() == b"an older one":
            return False
        assert (place / "model").read_bytes() == command.expected["model"]
        return True

    command.is_new = is_new
    return command


def state_of_training(place: Path) -> dict[str, bytes]:
    """The model, and the rounds and epochs that are in the log."""
    lines = [json.loads(line) for line in (place / "log").read_text().splitlines()]
    epochs = json.dumps([[line.get("round"), line["epoch"]] for line in lines])
    return {"model": (place / "model").read_bytes(), "log": epochs.encode()}


def prediction_command(processes: ForkServer, place: Path, _mode: str) -> Command:
    """Scores of a table in place of an older file."""
    lines = [f"{1 - 2 * (i % 2)},{'xyz'[i % 3]}{i % 7},{i / 64},row {i}" for i in range(60)]
    (place / "in.csv").write_text("\n".join(["label,a,b,n", *lines]) + "\n")
    words = ("convert", "in.csv", "-o", "store", "--label", "label", "--id", "n")
    command = Command("predict", processes, place, words, state_of_scores, what="scores.parquet", resume=False)
    command.succeed()
    command.words = ("train", "store", "-o", "model", "--lambda", "0.1")
    command.succeed()
    (place / "scores.parquet").write_bytes(b"older ones")
    command.words = ("predict", "model", "in.csv", "-o", "scores.parquet", "--force")

    def is_new(_place: Path) -> bool:
        if (place / "scores.parquet").read_bytes() == b"older ones":
            return False
        assert (place / "scores.parquet").read_bytes() == command.expected["scores.parquet"]
        return True

    command.is_new = is_new
    return command


def state_of_scores(place: Path) -> dict[str, bytes]:
    """The scores."""
    return {"scores.parquet": (place / "scores.parquet").read_bytes()}


def job_command(processes: ForkServer, place: Path, mode: str) -> Command:
    """The second run of a job, or a return to the model of the first."""
    (place / "job.toml").write_text(JOB)
    (place / "golden.svm").write_text(svmlight_text(*random_rows(40, 30, 9, 0.2)))
    words, result = ("run", "job.toml"), state_of_version if mode == "rollback" else state_of_job
    command = Command(mode, processes, place, words, result, what="models/current", resume=False)
    for day in (1, 3):
        path = place / f"day-{day}.svm"
        path.write_text(svmlight_text(*random_rows(80, 30, day, 0.2)))
        os.utime(path, (MIDNIGHT + (day - 1) * DAY,) * 2)
        if day == 1 or mode == "rollback":
            command.day = day
            command.succeed()
    command.day = 3
    if mode == "rollback":
        command.words, command.is_repeatable = ("rollback", "models"), False
    before = os.readlink(place / "models" / "current")

    def is_new(_place: Path) -> bool:
        current = os.readlink(place / "models" / "current")
        Model.load(place / "models" / current / "model")
        check_store(place / "clicks.store")
        return current != before

    command.is_new = is_new
    return command


def state_of_version(place: Path) -> dict[str, bytes]:
    """The version in use and its model."""
    current = os.readlink(place / "models" / "current")
    return {"current": current.encode(), "model": (place / "models" / current / "model").read_bytes()}


def state_of_job(place: Path) -> dict[str, bytes]:
    """The newest model, which is in use, and the store; names of runs are ignored."""
    versions = sorted(path.name for path in (place / "models").iterdir() if path.name[0] == "2")
    made = Store.open(place / "clicks.store").manifest
    files = [FILE_NAME, *(file for chunk in made.chunks for file in chunk.files)]
    store = {f"store/{name}": (place / "clicks.store" / name).read_bytes() for name in files}
    model = (place / "models" / versions[-1] / "model").read_bytes()
    assert os.readlink(place / "models" / "current") == versions[-1]
    return {"model": model, **store, "versions": str(len(versions)).encode()}


COMMANDS = {
    "convert": conversion_command,
    "append": conversion_command,
    "force": conversion_command,
    "drop": drop_command,
    "split": split_command,
    "split append": split_command,
    "train": training_command,
    "resume": training_command,
    "search": training_command,
    "predict": prediction_command,
    "run": job_command,
    "rollback": job_command,
}


@contextmanager
def command_of(name: str, processes: ForkServer, folder: Path) -> Iterator[Command]:
    """Return a command by name."""
    place = folder / "place"
    place.mkdir()
    command = COMMANDS[name](processes, place, name)
    command.begin()
    yield command
