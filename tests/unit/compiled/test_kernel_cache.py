"""The cache of compiled kernels: where it is, when it is not used, and that no state of it makes a command fail."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ooc_pegasos
from ooc_pegasos.compiled import jit
from ooc_pegasos.compiled.fit import losses
from ooc_pegasos.compiled.fit.pegasos import square_distance
from ooc_pegasos.compiled.jit import Compiled, cache_folder, kernel
from support.paths import ROOT

CODE = """
import numpy as np
from ooc_pegasos.compiled.jit import cache_folder, is_compiled
before = is_compiled("fit")
from ooc_pegasos.compiled.fit.pegasos import square_distance
square_distance(np.ones(3), np.empty(0), 1.0)
print(before, cache_folder(), square_distance.loads)
"""
PACKAGE = Path(ooc_pegasos.__file__).parent
KERNELS = Path(jit.__file__).parent.relative_to(PACKAGE)
LOSSES = Path(losses.__file__).relative_to(PACKAGE)
TYPES = (np.float64, np.float32, np.int64)


def run_kernel(site: Path, cache: Path, **more: str) -> list[str]:
    env = {
        "PYTHONPATH": str(site),
        "XDG_CACHE_HOME": str(cache),
        "PATH": os.environ["PATH"],
        "HOME": str(cache),
        **more,
    }
    done = subprocess.run([sys.executable, "-c", CODE], env=env, cwd=site, capture_output=True, text=True, check=True)
    return done.stdout.split()


def copy_package(site: Path) -> Path:
    package = site / "ooc_pegasos"
    shutil.copytree(ROOT / "ooc_pegasos", package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


# --- the folder ---------------------------------------------------------------------------------


def test_beside_the_kernels_if_that_can_be_written(tmp_path):
    package = copy_package(tmp_path)
    first, second = run_kernel(tmp_path, tmp_path / "cache"), run_kernel(tmp_path, tmp_path / "cache")
    assert (first[0], first[2]) == ("False", "0")
    assert (second[0], second[2]) == ("True", "1")
    assert Path(first[1]).is_relative_to(package)


@pytest.mark.slow
def test_in_the_users_cache_if_not(tmp_path):
    package = copy_package(tmp_path)
    (package / KERNELS / "__pycache__").write_text("a file where the folder should be")
    first, second = run_kernel(tmp_path, tmp_path / "cache"), run_kernel(tmp_path, tmp_path / "cache")
    assert (first[2], second[2]) == ("0", "1")
    assert Path(first[1]).is_relative_to(tmp_path / "cache")


@pytest.mark.slow
def test_not_in_a_folder_that_others_may_write_to(tmp_path):
    copy_package(tmp_path)
    first = Path(run_kernel(tmp_path, tmp_path / "cache")[1])
    first.chmod(0o775)
    second = run_kernel(tmp_path, tmp_path / "cache")
    assert Path(second[1]).is_relative_to(tmp_path / "cache")
    assert second[2] == "0"


@pytest.mark.slow
def test_in_the_folder_of_choice(tmp_path):
    chosen = str(tmp_path / "chosen")
    first, second = (run_kernel(ROOT, tmp_path / "cache", NUMBA_CACHE_DIR=chosen) for _ in range(2))
    assert (first[2], second[2]) == ("0", "1")
    assert Path(first[1]).is_relative_to(chosen)
    assert Path(first[1]).stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_change_in_any_kernel_file_empties_the_cache(tmp_path):
    """A file that is changed, added or moved, in the folder of the kernels or in one below."""
    package = copy_package(tmp_path)
    kernels = package / KERNELS
    nested = kernels / "nested"
    nested.mkdir()
    (nested / "first.py").write_text("a = 1\n")
    run_kernel(tmp_path, tmp_path / "cache")
    assert run_kernel(tmp_path, tmp_path / "cache")[2] == "1"
    changes = (
        lambda: (package / LOSSES).write_text((package / LOSSES).read_text() + "# changed\n"),
        lambda: (nested / "first.py").write_text("a = 2\n"),
        lambda: (nested / "second.py").write_text(""),
        lambda: (nested / "second.py").rename(kernels / "second.py"),
    )
    for change in changes:
        change()
        assert run_kernel(tmp_path, tmp_path / "cache")[2] == "0"


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "kernels"
    place.mkdir()
    monkeypatch.setattr(jit, "cache_folder", lambda: place)
    monkeypatch.setattr(Compiled, "can_write", True)
    return place


def is_loaded() -> bool:
    """True if a kernel that is new to this process comes from the cache; what it computes is right either way."""
    fresh = kernel(square_distance.py_func)
    assert fresh(np.array([1.0, 2.0]), np.array([1.0, 5.0]), 1.0) == 9
    return fresh.loads == 1


def replaced_by(make):
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def flipped_at(position: float):
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(position * (len(content) - 1))] ^= 16
        path.write_bytes(content)

    return flip


def cut_to(part: float):
    return lambda path: os.truncate(path, int(part * path.stat().st_size))


def linked(path: Path) -> None:
    """Put a link to an intact file in the place of the file."""
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def of_another_user(path: Path) -> None:
    try:
        os.chown(path, 12345, -1)
    except PermissionError:
        pytest.skip("only root can give files away")


DAMAGE = {
    "emptied": lambda path: path.write_bytes(b""),
    **{f"cut at {part}": cut_to(part) for part in (0.0001, 0.002, 0.5, 0.999)},
    **{f"flipped at {part}": flipped_at(part) for part in (0, 0.001, 0.01, 0.3, 0.9, 1)},
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "removed": lambda path: path.unlink(),
    "a pipe": replaced_by(os.mkfifo),
    "a dangling link": replaced_by(lambda path: path.symlink_to("nowhere")),
    "a link": linked,
    "without permission": lambda path: path.chmod(0),
    "of a group": lambda path: path.chmod(0o660),
    "of everybody": lambda path: path.chmod(0o606),
    "of another user": of_another_user,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_as_it_was_written_is_replaced(folder, caplog, damage):
    assert not is_loaded()
    (path,) = folder.glob("*.nbc")
    DAMAGE[damage](path)
    if damage == "without permission" and os.access(path, os.R_OK):
        assert is_loaded()  # root may read it
        return
    assert not is_loaded()
    assert is_loaded()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert caplog.records == []
    assert [left.name for left in folder.iterdir() if left.suffix == ".tmp"] == []


def test_every_bit_counts(tmp_path):
    """A file that differs in any bit, ends anywhere, or was written for another key is not read."""
    path, key, code = tmp_path / "code", b"signature", os.urandom(40)
    jit._write(path, key, code)
    assert jit._read(path, key) == code
    assert jit._read(path, b"another") is None
    content = path.read_bytes()
    changed = [content[:length] for length in range(len(content))]
    for at in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        changed.append(bytes(flipped))
    for wrong in changed:
        path.write_bytes(wrong)
        assert jit._read(path, key) is None


def test_code_of_another_signature_is_not_loaded(folder):
    """The file of one argument type under the name of another, as two processes with numba's cache could leave it."""
    fresh = kernel(square_distance.py_func)
    files = {}
    for kind in TYPES[:2]:
        before = set(folder.iterdir())
        assert fresh(np.array([3, 4], kind), np.zeros(2, kind), 1.0) == 25
        (files[kind],) = set(folder.iterdir()) - before
    shutil.copy(files[np.float64], files[np.float32])
    again = kernel(square_distance.py_func)
    assert again(np.array([3, 4], np.float32), np.zeros(2, np.float32), 1.0) == 25
    assert again.loads == 0


def test_a_folder_in_the_place_of_a_file(folder, caplog):
    is_loaded()
    (path,) = folder.glob("*.nbc")
    replaced_by(Path.mkdir)(path)
    assert not is_loaded()
    assert not is_loaded()
    (record,) = caplog.records
    assert "is a directory" in record.getMessage()


def test_what_cannot_be_written_is_reported_once(folder, caplog, monkeypatch):
    """Whichever step fails, nothing is left and the kernel works."""
    for step in ("fsync", "replace"):
        monkeypatch.setattr(Compiled, "can_write", True)
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, step, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            assert not is_loaded()
            assert not is_loaded()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert f"{folder}: no space left on device; each command compiles them in memory" in record.getMessage()
        assert list(folder.iterdir()) == []


def test_without_a_folder(monkeypatch, caplog):
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    monkeypatch.setattr(Compiled, "can_write", True)
    assert not jit.is_compiled("fit")
    assert not is_loaded()
    assert not is_loaded()
    (record,) = caplog.records
    assert "it cannot be written, or other users may" in record.getMessage()


def test_bytes_are_on_disk_before_the_name(folder, monkeypatch):
    """A power cut after the rename finds the whole file, because its content was synced before."""
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append(os.fstat(file).st_size), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("rename"), replace(*names)))
    is_loaded()
    (path,) = folder.iterdir()
    assert steps == [path.stat().st_size, "rename"]


# --- commands -----------------------------------------------------------------------------------

RACE = """
import sys
import numpy as np
from ooc_pegasos.compiled.jit import cache_folder
from ooc_pegasos.compiled.fit.pegasos import square_distance
sys.stdin.readline()
hits = []
for kind in sys.argv[1:]:
    before = square_distance.loads
    assert square_distance(np.array([3, 4], kind), np.zeros(2, kind), 1.0) == 25
    hits.append(square_distance.loads - before)
print(*hits)
"""


@pytest.mark.slow
def test_processes_that_compile_one_kernel_at_once(tmp_path):
    """None disturbs another, whether for the same types or others; afterwards all that they compiled is there."""
    orders = [TYPES, TYPES[::-1], TYPES]
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start(order):
        words = [sys.executable, "-c", RACE, *(kind.__name__ for kind in order)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=env, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    racing = [start(order) for order in orders]
    for process in racing:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in racing:
        _out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    later = start(TYPES)
    assert later.communicate("\n", timeout=120) == ("1 1 1\n", "")
    assert len(list(tmp_path.rglob("*.nbc"))) == len(TYPES)
    assert list(tmp_path.rglob("*.tmp")) == []


def run_oocpeg(tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ooc_pegasos", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:0.5 2:1\n-1 2:2\n" * 50)
    return "in.svm"


@pytest.mark.slow
def test_a_command_with_a_cache_in_which_every_file_is_damaged(tmp_path, text):
    """It compiles again, says nothing of it, writes the same bytes, and the next one finds a sound cache."""
    convert = ("convert", text, "-o", "store", "--force", "--quiet")
    assert run_oocpeg(tmp_path, *convert).returncode == 0
    stored = (tmp_path / "store" / "manifest.json").read_bytes()
    chosen = tmp_path / f"ooc-pegasos-{os.getuid()}-{cache_folder().name}"
    shutil.copytree(cache_folder(), chosen)
    kinds = [damage for name, damage in DAMAGE.items() if name not in ("of another user", "without permission")]
    for number, path in enumerate(sorted(chosen.glob("*.nbc"))):
        kinds[number % len(kinds)](path)

    def renewed() -> dict[Path, int]:
        found = {path: path.lstat() for path in chosen.glob("*.nbc")}
        return {path: status.st_ino for path, status in found.items() if status.st_mtime_ns > damaged}

    damaged = max(path.lstat().st_mtime_ns for path in chosen.glob("*.nbc"))
    files = {}
    for _ in range(2):
        done = run_oocpeg(tmp_path, *convert, NUMBA_CACHE_DIR=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "store" / "manifest.json").read_bytes() == stored
        assert len(renewed()) > 10
        assert files in ({}, renewed())
        files = renewed()


def test_a_file_in_the_place_of_the_folder_of_choice(tmp_path):
    (tmp_path / "chosen").write_text("")
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "chosen")}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False None 0\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"note: compiled kernels cannot be kept in {tmp_path / 'chosen'}: ")


@pytest.mark.parametrize("words", [("convert", "in.svm", "-o", "store"), ("demo", "--folder", "demo")])
def test_without_the_compiler(tmp_path, text, words):
    """NUMBA_DISABLE_JIT is refused on one line; what needs no kernel works."""
    done = run_oocpeg(tmp_path, *words, NUMBA_DISABLE_JIT="1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: numba's compiler is switched off (NUMBA_DISABLE_JIT)")
    assert run_oocpeg(tmp_path, "--version", NUMBA_DISABLE_JIT="1").returncode == 0
