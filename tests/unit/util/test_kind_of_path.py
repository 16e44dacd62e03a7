"""What a path holds, and messages about the wrong kind of data."""

import json

import numpy as np
import pytest

from ooc_pegasos import Model, Store, TrainConfig, train
from ooc_pegasos.util.kind_of_path import kind_of_path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 4)), rng.choice([-1, 1], 60)
    store = Store.from_scipy(x, y, folder / "s.store")
    train(store, TrainConfig(lam=0.1), checkpoint=folder / "checkpoints", proof=folder / "m.proof").model.save(
        folder / "m.model"
    )
    (folder / "rows.svm").write_text("1 1:2\n-1 2:3\n")
    (folder / "models" / "current").mkdir(parents=True)
    (folder / "models" / "current" / "model").write_bytes((folder / "m.model").read_bytes())
    return folder


def test_kinds(made):
    assert kind_of_path(made / "s.store") == "a store"
    assert kind_of_path(made / "m.model") == "a model"
    assert kind_of_path(made / "m.proof") == "a proof"
    assert kind_of_path(made / "models") == "a folder of models"
    assert kind_of_path(made / "models" / "current") == "a version of a job"
    assert kind_of_path(made) == "a folder"
    for unknown in (made / "rows.svm", made / "nothing", "-", "\0"):
        assert kind_of_path(unknown) == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("evaluate s.store m.model", "m.model is a model and {0}/s.store is not; give the model first"),
        ("evaluate rows.svm m.model", "is a model and {0}/rows.svm is not; give the model first"),
        ("predict rows.svm m.model -o out.csv", "give the model first"),
        ("evaluate s.store rows.svm", "s.store: a store, not a model"),
        ("inspect s.store", "s.store: a store, not a model"),
        ("inspect models", "models: a folder of models, not a model"),
        ("inspect rows.svm", "rows.svm: not a model; name a file made by"),
        ("verify m.model", "m.model: a model, not a store"),
        ("info m.proof", "m.proof: a proof, not a store"),
        ("convert m.model -o new.store", "m.model: a model, not data"),
        ("train m.model -o new.model", "m.model: a model, not data"),
    ],
)
def test_wrong_kinds_of_data_are_named(made, oocpeg, words, told):
    command, *rest = words.split()
    given = [one if one.startswith("-") else made / one for one in rest]
    found = oocpeg(command, *given, code=None)
    assert found.returncode in (2, 3, 5)
    assert told.format(made) in found.stderr
    assert "Traceback" not in found.stderr


def test_a_version_of_a_job_is_a_model(made, oocpeg):
    assert Model.load(made / "models" / "current").encode() == (made / "m.model").read_bytes()
    assert "rows, error" in oocpeg("evaluate", made / "models" / "current", made / "s.store").stdout


def test_info_of_a_model(made, oocpeg):
    text = oocpeg("info", made / "m.model").stdout
    for words in ("loss", "hinge", "lambda", "0.1", "certified", "-1: ", "4, of which"):
        assert words in text
    found = json.loads(oocpeg("info", made / "m.model", "--json").stdout)
    model = Model.load(made / "m.model")
    assert found["lambda"] == model.info.lam
    assert found["gap"] == model.info.certificate.gap
    assert found["labels"] == dict(zip(["-1", "1"], model.info.labels.counts, strict=True))
    assert "are for stores" in oocpeg("info", made / "m.model", "--benchmark", code=2).stderr
