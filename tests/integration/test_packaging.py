"""The wheel alone, in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from support.paths import ROOT


def test_pandas_is_not_imported_where_it_is_not_needed(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:0.5 2:1\n-1 2:2\n" * 50)
    code = """
import sys
from ooc_pegasos import Model, TrainConfig, convert, train
train(convert(["in.svm"], "store"), TrainConfig(lam=0.1)).model.save("model")
Model.load("model")
assert "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheel_alone(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
    # What it depends on is lent by this environment: a path in a .pth file runs none of the other's .pth files,
    # so the editable install of this repository stays out of sight.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(home / "bin" / "python")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([python, *words], cwd=tmp_path, capture_output=True, text=True, env=env)

    where = run("-c", "import ooc_pegasos, ooc_pegasos.readers.svmlight as s; print(ooc_pegasos.__file__, s.__file__)")
    assert where.stdout.count(str(site)) == 2, where.stderr
    assert "convert" in run("-m", "ooc_pegasos", "--help").stdout
    assert (site / "bin" / "oocpeg").exists()
    assert (site / "ooc_pegasos" / "py.typed").exists()
    top_level = run("-c", "import readers")
    assert "ModuleNotFoundError" in top_level.stderr
    demo = run("-m", "ooc_pegasos", "demo")
    assert demo.returncode == 0, demo.stderr
