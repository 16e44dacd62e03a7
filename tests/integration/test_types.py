"""A user's script is checked by mypy and pyright, and a mistake in it is found."""

import json
import re
import subprocess
import sys

import pytest

from support.paths import ROOT

SCRIPT = """
from pathlib import Path

import numpy as np

from ooc_pegasos import ConvertConfig, Existing, Model, OocPegasosError, Store, TrainConfig, TrainResult, convert, train

store: Store = convert(["clicks.csv"], "clicks.store", ConvertConfig(label="clicked", hash_bits=18))
rows: int = store.rows
config = TrainConfig(lam=1e-4, loss="logistic", bias="feature", tolerance=0.01, class_weight=(1.0, 2.0))
result: TrainResult = train(store, config, checkpoint=Path("checkpoints"), resume=True)
gap: float | None = result.model.info.certificate.gap
result.model.save("clicks.model")
scores: np.ndarray = Model.load(Path("clicks.model")).decision_function([[0.0, 1.0]])
other = Store.from_scipy(np.eye(3), [1, -1, 1], "other.store", existing=Existing(force=True))
weights: np.ndarray = other.weights()
try:
    train(other, TrainConfig(lam=(1e-3, 1e-4), folds=3))
except OocPegasosError as error:
    code: int = error.exit_code
"""
MISTAKES = {
    "option": ("tolerance=0.01", "tolerence=0.01"),
    "choice": ('bias="feature"', 'bias="fixture"'),
    "type": ("hash_bits=18", 'hash_bits="18"'),
    "argument": ("resume=True", "resumed=True"),
    "attribute": ("store.rows", "store.row"),
    "name": ("import ConvertConfig, Existing,", "import ConvertConfigs as ConvertConfig, Existing,"),
    "result": ("gap: float | None", "gap: str"),
    "exception": ("code: int", "code: str"),
}


def mypy(files):
    """The files in which mypy finds mistakes."""
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=files[0].parent)
    assert done.returncode in (0, 1), done.stderr
    return set(re.findall(r"^(\w+)\.py:\d+: error", done.stdout, re.MULTILINE)), done.stdout


def pyright(files):
    """The files in which pyright finds mistakes."""
    settings = {"typeCheckingMode": "standard", "include": ["."], "pythonVersion": "3.11"}
    (files[0].parent / "pyrightconfig.json").write_text(json.dumps(settings))
    words = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=files[0].parent)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {re.search(r"(\w+)\.py$", one["file"])[1] for one in found if one["severity"] == "error"}, done.stdout


@pytest.mark.parametrize("checker", [mypy, pytest.param(pyright, marks=pytest.mark.slow)])
def test_a_user_script(checker, tmp_path, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    names = {"right": SCRIPT} | {name: SCRIPT.replace(*change) for name, change in MISTAKES.items()}
    assert len(set(names.values())) == len(names)
    for name, text in names.items():
        (tmp_path / f"{name}.py").write_text(text)
    found, output = checker([tmp_path / f"{name}.py" for name in names])
    assert found == set(MISTAKES), output
