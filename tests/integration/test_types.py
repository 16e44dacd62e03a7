"""A user's script is checked by mypy and pyright, and a mistake in it is found."""

import inspect
import json
import re
import subprocess
import sys

import pytest

import ooc_pegasos
import ooc_pegasos.distributed
from support.paths import ROOT

SCRIPT = """
import os
from pathlib import Path

import dask.array as da
import numpy as np
from distributed import Client

from ooc_pegasos import ConvertConfig, Existing, Model, OocPegasosError, Store, TrainConfig, TrainResult, convert, train
from ooc_pegasos.distributed import predict_dask, predict_store, train_dask
from ooc_pegasos.registry import Registered

store: Store = convert(["clicks.csv"], "clicks.store", ConvertConfig(label="clicked", hash_bits=18, format="table"))
rows: int = store.rows
config = TrainConfig(lam=1e-4, loss="logistic", bias="feature", tolerance=0.01, class_weight=(1.0, 2.0))
result: TrainResult = train(store, config, checkpoint=Path("checkpoints"), resume=True)
gap: float | None = result.model.info.certificate.gap
result.model.save("clicks.model")
scores: np.ndarray = Model.load(Path("clicks.model")).decision_function([[0.0, 1.0]])
other = Store.from_scipy(np.eye(3), [1, -1, 1], "other.store", existing=Existing(force=True))
weights: np.ndarray = other.weights()
try:
    train(other, TrainConfig(lam=(1e-3, 1e-4), folds=3, algorithm="sdca", sampling="fixed"))
    train(other, TrainConfig(loss=Registered("mine"), algorithm=Registered(os.environ["ALGORITHM"])))
except OocPegasosError as error:
    code: int = error.exit_code


def on_workers(client: Client, rows: da.Array, labels: da.Array) -> None:
    first: TrainResult = train_dask(client, "clicks.store", config, parts=4)
    second: TrainResult = train_dask(client, rows, config, labels=labels, weights=np.ones(10))
    found: da.Array = predict_dask(first.model, rows)
    written: int = predict_store(client, second.model, store, "scores")
"""
MISTAKES = {
    "option": ("tolerance=0.01", "tolerence=0.01"),
    "loss": ('loss="logistic"', 'loss="logistik"'),
    "algorithm": ('algorithm="sdca"', 'algorithm="sdac"'),
    "sampling": ('sampling="fixed"', 'sampling="fixd"'),
    "format": ('format="table"', 'format="tabel"'),
    "choice": ('bias="feature"', 'bias="fixture"'),
    "type": ("hash_bits=18", 'hash_bits="18"'),
    "argument": ("resume=True", "resumed=True"),
    "attribute": ("store.rows", "store.row"),
    "name": ("import ConvertConfig, Existing,", "import ConvertConfigs as ConvertConfig, Existing,"),
    "result": ("gap: float | None", "gap: str"),
    "exception": ("code: int", "code: str"),
    "client": ("train_dask(client,", "train_dask('tcp://scheduler:8786',"),
    "rows": ('"clicks.store", config, parts', "5, config, parts"),
    "labels": ("labels=labels", "labels=train"),
    "scores": ("found: da.Array", "found: int"),
}
METRICS = {"Model.evaluate -> return", "evaluate_dask -> return"}
"""An object of JSON, with values of several types."""


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


def signatures(module):
    """The public functions of a module, and the public methods of its public classes, by name."""
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.isclass(thing):
            yield name, thing
            continue
        for attribute, value in inspect.getmembers_static(thing):
            method = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", value)
            if inspect.isfunction(method) and (attribute == "__init__" or not attribute.startswith("_")):
                yield f"{name}.{attribute}", method


@pytest.mark.parametrize("module", [ooc_pegasos, ooc_pegasos.distributed])
def test_public_signatures_have_types(module):
    found = dict(signatures(module))
    assert len(found) >= len(module.__all__)
    unclear = set()
    for name, function in found.items():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in ("self", "cls") and parameter.annotation is inspect.Parameter.empty:
                unclear.add(f"{name}: {parameter.name}")
        for parameter, annotation in function.__annotations__.items():
            if re.search(r"\bAny\b", str(annotation)):
                unclear.add(f"{name} -> {parameter}")
    assert unclear == METRICS & {f"{name} -> return" for name in found}
