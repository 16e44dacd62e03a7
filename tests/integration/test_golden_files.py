"""Files of tests/golden, which an earlier version wrote: they are read as before, and made again they are the same.

The reference sets of jobs are in test_golden.py.
"""

import dataclasses
import importlib.util
import json
import shutil

import numpy as np
import pyarrow.csv
import pytest

from ooc_pegasos import Model, Store, __version__, verify
from ooc_pegasos.errors import CheckpointMismatchError
from ooc_pegasos.proof.check import prove
from ooc_pegasos.scoring.evaluate import predict
from ooc_pegasos.util.checkpoint import Checkpoint
from support.file_bytes import folder_bytes
from support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden"
SOURCES, STORES, MODELS, SCORES = (GOLDEN / name for name in ("sources", "stores", "models", "scores"))
CHECKPOINTS = GOLDEN / "checkpoints"
MADE = json.loads((GOLDEN / "made.json").read_text())

_spec = importlib.util.spec_from_file_location("make_golden", ROOT / "scripts" / "make_golden.py")
assert _spec is not None
assert _spec.loader is not None
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

DEPEND_ON_LIBRARIES = ("logistic", "calibrated")
"""Models with exponentials, of which processors and libraries differ in the last bits."""
IS_SAME_MACHINE = {**make.here(), "version": ""} == {**MADE, "version": ""}
SVMLIGHT = [name for name in make.STORES if name not in ("hashed", "dictionary", "counts")]


@pytest.fixture
def stores(tmp_path):
    """The stores in a writable folder, since readers lock a store."""
    return shutil.copytree(STORES, tmp_path / "stores")


def parsed(line):
    """A row of svmlight text as a row of `make.rows_of`, with single-precision values."""
    label, *pairs = line.split()
    entries = sorted((int(index), np.float32(value)) for index, value in (pair.split(":") for pair in pairs))
    return label, [(index, value) for index, value in entries if value != 0]


def expected_rows(name):
    """The rows of a store, in the order of the sources, by a parser of a few lines."""
    names, options = make.STORES[name]
    base = int(options.get("index_base", 1))
    classes = options.get("classes", ("-1", "1"))
    numbers = dict(zip(classes, [0, 1, 2] if len(classes) == 3 else [-1, 1], strict=True))
    weights = (SOURCES / "weights.txt").read_text().split() if "weights" in options else None
    rows = []
    for line in "".join((SOURCES / source).read_text() for source in names).splitlines():
        label, entries = parsed(line)
        if "normalize" in options:
            norm = np.sqrt(sum(float(value) ** 2 for _index, value in entries))
            entries = [(index, np.float32(value / norm)) for index, value in entries]
        number = float(label) if name == "regression" else float(numbers[label])
        weight = float(weights[len(rows)]) if weights else 1.0
        pairs = [f"{index - base}:{value!s}" for index, value in entries]
        rows.append(" ".join([repr(number), repr(weight), "-", *pairs]))
    return rows


@pytest.mark.parametrize("name", SVMLIGHT)
def test_expected_rows_are_those_of_the_sources(name):
    truth = (STORES / f"{name}.rows").read_text().splitlines()
    expected = expected_rows(name)
    if name != "in-order":
        assert truth != expected
        truth, expected = sorted(truth), sorted(expected)
    assert truth == expected


@pytest.mark.parametrize("name", make.STORES)
def test_stores_are_read(stores, name):
    store = Store.open(stores / name)
    assert make.rows_of(store) == (STORES / f"{name}.rows").read_text().splitlines()
    found = verify(store)
    assert (found.problems, found.strays, found.rows) == ([], [], store.rows)


@pytest.mark.parametrize("name", make.STORES)
def test_conversions_are_the_same(tmp_path, name):
    again = make.make_store(name, SOURCES, tmp_path / name)
    golden = Store.open(STORES / name)
    found, expected = folder_bytes(again.path), folder_bytes(golden.path)
    for files in (found, expected):
        del files["manifest.json"]
    assert {file: content for file, content in found.items() if file.endswith(".arrow")} == expected
    there = {"sources": [], "written_by": ""}
    assert dataclasses.replace(again.manifest, **there) == dataclasses.replace(golden.manifest, **there)
    for one, other in zip(again.manifest.sources, golden.manifest.sources, strict=True):
        kept = {"name": "", "modified_ns": 0}
        assert dataclasses.replace(one, **kept) == dataclasses.replace(other, **kept)


def as_before(model, golden):
    """The bytes of a model, if versions, inputs and new options in it were those of the golden one."""
    options = {name: value for name, value in model.info.config.items() if name in golden.info.config}
    info = dataclasses.replace(model.info, versions=golden.info.versions, sources=golden.info.sources, config=options)
    return dataclasses.replace(model, info=info).encode()


def is_exact(name):
    return name not in DEPEND_ON_LIBRARIES or IS_SAME_MACHINE


def assert_close(model, golden):
    """Compare what depends on exponentials."""
    np.testing.assert_allclose(model.weights, golden.weights, rtol=1e-12, atol=0)
    np.testing.assert_allclose(model.bias, golden.bias, rtol=1e-12, atol=0)
    assert np.isclose(model.info.certificate.primal, golden.info.certificate.primal, rtol=1e-12, atol=0)
    for one, other in zip(model.info.calibrations, golden.info.calibrations, strict=True):
        np.testing.assert_allclose(one.coefficients, other.coefficients, rtol=1e-12, atol=0)


KERNELS_OF_ITS_OWN = {"classes-at-once", "one-vs-rest", "regression", "hashed"}
"""Models that are trained by kernels that take seconds to compile and that no other fast test uses."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in KERNELS_OF_ITS_OWN)) for name in make.MODELS]
)
def test_models_are_the_same(stores, tmp_path, name):
    path = MODELS / f"{name}.model"
    golden = Model.load(path)
    assert golden.encode() == path.read_bytes()
    proof = tmp_path / "proof" if name == make.PROOF else None
    model = make.make_model(name, stores, proof)
    if is_exact(name):
        assert as_before(model, golden) == path.read_bytes()
    else:
        assert_close(model, golden)


@pytest.mark.parametrize("name", make.MODELS)
def test_models_predict_the_same(tmp_path, name):
    model = Model.load(MODELS / f"{name}.model")
    predict(model, make.source_of(name, SOURCES), tmp_path / "scores.csv", proba=model.has_probabilities)
    if is_exact(name):
        assert (tmp_path / "scores.csv").read_bytes() == (SCORES / f"{name}.csv").read_bytes()
    else:
        found, expected = (pyarrow.csv.read_csv(path) for path in (tmp_path / "scores.csv", SCORES / f"{name}.csv"))
        assert found.column_names == expected.column_names
        for one, other in zip(found.columns, expected.columns, strict=True):
            np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=1e-12, atol=0)


def test_the_proof_holds(stores):
    golden = Model.load(MODELS / f"{make.PROOF}.model")
    (claim,) = prove(MODELS / f"{make.PROOF}.model", stores / make.MODELS[make.PROOF][0], GOLDEN / "binary.proof")
    certificate = golden.info.certificate
    assert claim.primal == pytest.approx(certificate.primal, rel=1e-9)
    assert claim.lower_bound == pytest.approx(certificate.lower_bound, rel=1e-9)
    assert certificate.gap is not None
    assert certificate.gap < 0.1


@pytest.mark.parametrize("name", make.CHECKPOINTS)
def test_checkpoints_resume_to_the_same_model(stores, tmp_path, name):
    folder = shutil.copytree(CHECKPOINTS / name, tmp_path / name)
    cursor = Checkpoint.load(folder).facts["cursor"]
    assert (cursor["epoch"], cursor["window"]) == (2, 1)
    assert cursor["position"] > 0  # in the middle of a window in the middle of an epoch
    if __version__ != MADE["version"]:  # a checkpoint is resumed by the version that wrote it
        with pytest.raises(CheckpointMismatchError, match="by another version"):
            make.resume(name, stores, folder)
        return
    golden = Model.load(CHECKPOINTS / f"{name}.model")
    model = make.resume(name, stores, folder)
    assert as_before(model, golden) == (CHECKPOINTS / f"{name}.model").read_bytes()


def test_nothing_names_the_machine():
    content = b"".join(folder_bytes(GOLDEN).values())
    for name in (b"/work", b"/home", b"/root", b"/tmp", b'"host"', b'"boot"'):
        assert name not in content
