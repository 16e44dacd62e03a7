"""Compiled kernels are kept on disk, also where the package cannot be written, and never used when stale."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

CODE = """
import numpy as np
from ooc_pegasos.kernels.jit import cache_folder, is_compiled
before = is_compiled()
from ooc_pegasos.kernels.pegasos import square_distance
square_distance(np.ones(3), np.empty(0), 1.0)
print(before, cache_folder(), sum(square_distance.stats.cache_hits.values()))
"""


def run(site: Path, cache: Path) -> list[str]:
    env = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(cache), "PATH": os.environ["PATH"], "HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, cwd=site, capture_output=True, text=True, check=True)
    return done.stdout.split()


def copy_package(site: Path) -> Path:
    package = site / "ooc_pegasos"
    shutil.copytree(ROOT / "ooc_pegasos", package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def test_beside_the_kernels_if_that_can_be_written(tmp_path):
    package = copy_package(tmp_path)
    first, second = run(tmp_path, tmp_path / "cache"), run(tmp_path, tmp_path / "cache")
    assert (first[0], first[2]) == ("False", "0")
    assert (second[0], second[2]) == ("True", "1")
    assert Path(first[1]).is_relative_to(package)


def test_in_the_users_cache_if_not(tmp_path):
    package = copy_package(tmp_path)
    (package / "kernels" / "__pycache__").write_text("a file where the folder should be")
    first, second = run(tmp_path, tmp_path / "cache"), run(tmp_path, tmp_path / "cache")
    assert (first[2], second[2]) == ("0", "1")
    assert Path(first[1]).is_relative_to(tmp_path / "cache")


def test_a_change_in_any_kernel_file_empties_the_cache(tmp_path):
    package = copy_package(tmp_path)
    run(tmp_path, tmp_path / "cache")
    with (package / "kernels" / "losses.py").open("a") as file:
        file.write("# changed\n")
    assert run(tmp_path, tmp_path / "cache")[2] == "0"
