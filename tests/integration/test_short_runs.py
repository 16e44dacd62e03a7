"""Imports of commands: what takes a fraction of a second is imported only by what needs it."""

import subprocess
import sys

import pytest

from ooc_pegasos.cli.main import app
from support.rows import random_rows, svmlight_text

SLOW = {"numba", "pyarrow", "dask", "scipy", "numpy", "llvmlite", "pydantic", "rich"}
CODE = f"""
import atexit, sys
sys.argv = ["oocpeg", *sys.argv[1:]]
atexit.register(lambda: print("IMPORTED", *sorted({SLOW!r} & set(sys.modules)), file=sys.stderr))
from ooc_pegasos.cli.start import main
main()
"""


def imports_of(folder, *words) -> tuple[int, set[str]]:
    command = [sys.executable, "-c", CODE, *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("IMPORTED"))
    return done.returncode, set(line.split()[1:])


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A folder with rows, their store and their model."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "in.svm").write_text(svmlight_text(*random_rows(300, 100, seed=1)))
    assert imports_of(folder, "convert", "in.svm", "-o", "store")[0] == 0
    assert imports_of(folder, "train", "store", "-o", "model")[0] == 0
    return folder


def names_of_commands() -> list[str]:
    return [command.name or command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("command", names_of_commands())
def test_imports_of_help(tmp_path, command):
    assert imports_of(tmp_path, command, "--help") == (0, {"rich"})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("train store --nothing", 2),
        ("train missing.svm -o new", 3),
        ("convert missing.svm -o new", 3),
        ("train store -o model", 3),
        ("evaluate store store", 3),
        ("evaluate missing store", 3),
        ("evaluate model missing.svm", 3),
        ("predict store store -o -", 3),
        ("inspect in.svm", 5),
    ],
)
def test_imports_of_errors(short, words, code):
    assert imports_of(short, *words.split()) == (code, set())


@pytest.mark.parametrize(("words", "code"), [("info store", 0), ("info store --json", 0), ("info missing", 3)])
def test_imports_of_info(short, words, code):
    assert imports_of(short, *words.split()) == (code, {"numpy"})


@pytest.mark.parametrize(
    "words", ["convert in.svm -o store --force", "train store -o model --force", "train in.svm -o model --force"]
)
def test_short_runs_import_no_compiler(short, words):
    """Machine code is on disk since the fixture, except that of steps that only this command takes."""
    imports_of(short, *words.split())
    returned, imported = imports_of(short, *words.split())
    assert (returned, imported & {"numba", "dask", "scipy", "pydantic"}) == (0, set())
