"""Compiled kernels on a full or read-only disk or in a folder without permission: commands succeed."""

import os
import subprocess
import sys
from pathlib import Path

from machine import small_disk, without_power

from support.paths import ROOT

CODE = """
import numpy as np
from ooc_pegasos.compiled.fit.pegasos import square_distance
assert square_distance(np.array([3., 4]), np.zeros(2), 1.0) == 25
print(square_distance.loads)
"""


def run_with_cache(place: Path, *words: object, power: bool = True) -> tuple[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(place)}
    command = [sys.executable, *map(str, words or ("-c", CODE))]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, preexec_fn=None if power else without_power, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def check_note(err: str, place: Path, reason: str) -> None:
    (line,) = err.splitlines()
    assert line.startswith(f"note: compiled kernels cannot be kept in {place}")
    assert reason in line


def test_a_full_disk(tmp_path):
    """Commands succeed with a single note, and leave no partial files."""
    place = tmp_path / "small"
    (tmp_path / "in.svm").write_text("1 1:0.5 2:1\n-1 2:2\n" * 50)
    with small_disk(place, "40k"):
        convert = ("-m", "ooc_pegasos", "convert", tmp_path / "in.svm", "-o", tmp_path / "store", "--quiet")
        check_note(run_with_cache(place, *convert)[1], place, "no space left on device")
        assert [path.name for path in place.rglob("*") if path.is_file() and path.suffix != ".nbc"] == []


def test_a_disk_that_is_read_only(tmp_path):
    """Cached kernels are loaded; others are compiled in memory."""
    place = tmp_path / "small"
    with small_disk(place, "8m") as mount:
        mount("ro")
        check_note(run_with_cache(place)[1], place, "it cannot be written")
        mount("rw")
        assert run_with_cache(place) == ("0\n", "")
        mount("ro")
        assert run_with_cache(place) == ("1\n", "")
        mount("rw")
        for path in place.rglob("*.nbc"):
            path.rename(path.with_name(f"other{path.name}"))
        mount("ro")
        check_note(run_with_cache(place)[1], place, "read-only file system")
        mount("rw")


def test_folders_and_files_without_permission(tmp_path):
    place = tmp_path / "place"
    place.mkdir(0o555)
    check_note(run_with_cache(place, power=False)[1], place, "it cannot be written")
    place.chmod(0o755)
    assert run_with_cache(place, power=False) == ("0\n", "")
    (path,) = place.rglob("*.nbc")
    path.chmod(0)
    assert run_with_cache(place, power=False) == ("0\n", "")
    assert run_with_cache(place, power=False) == ("1\n", "")
    path.chmod(0)
    path.parent.chmod(0o500)
    check_note(run_with_cache(place, power=False)[1], place, "permission denied")
    path.parent.chmod(0o700)
