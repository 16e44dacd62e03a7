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
    (folder / "empty.csv").write_text("")
    (folder / "empty.svm").write_text("")
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    (folder / "book.xlsx").write_bytes(b"PK\x03\x04" + bytes(99))
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
        ("evaluate s.store models", "{0}/models is a folder of models and {0}/s.store is not; give the model first"),
        ("evaluate rows.svm models/current", "is a version of a job and {0}/rows.svm is not; give the model first"),
        ("prove s.store m.model --proof m.proof", "is a model and {0}/s.store is not; give the model first"),
        (
            "evaluate models rows.svm",
            "models: a folder of models, not a model; name a version in it, like {0}/models/c",
        ),
        ("info models", "models: a folder of models, not a model; name a version in it"),
        ("evaluate m.model models", "models: a folder of models, not a store; name a store"),
        ("train models -o new.model", "models: a folder of models, not data"),
        ("convert models/current -o new.store", "current: a version of a job, not data"),
        ("train m.proof -o new.model", "m.proof: a proof, not data"),
        ("train s.store -o s.store", "s.store: is a store; name a file to write"),
        ("train s.store -o models", "models: is a folder of models; name a file to write"),
        ("predict m.model rows.svm -o s.store", "s.store: is a store; name a file to write"),
        ("convert rows.svm -o m.model", "m.model: exists and is not a store"),
        ("train s.store --warm-start s.store -o new.model", "s.store: a store, not a model"),
        ("convert rows.svm --like m.model -o new.store", "m.model: a model, not a store"),
        ("info rows.svm", "rows.svm: a file, not a store; make a store of it"),
        ("verify rows.svm", "rows.svm: a file, not a store"),
        ("drop m.model --source rows.svm", "m.model: a model, not a store"),
        ("inspect nothing", "nothing: no such file or directory; check the path"),
        ("evaluate m.model nothing", "nothing: no such file; check the path"),
        ("train nothing -o new.model", "nothing: no such file; check the path"),
        ("train s.store -o nowhere/m.model", "nowhere: no such folder; create it first"),
        ("train empty.csv -o new.model", "empty.csv: the file is empty"),
        ("evaluate m.model empty.svm", "empty.svm: "),
        ("inspect empty.csv", "empty.csv: not a model"),
        ("train image.png -o new.model", "image.png: a PNG image, not data"),
        ("evaluate m.model image.png", "image.png: a PNG image, not data"),
        ("inspect image.png", "image.png: a PNG image, not a model"),
        ("info image.png", "image.png: a PNG image, not a store"),
        ("convert book.xlsx -o new.store", "book.xlsx: an Office document, not data"),
        ("run m.model", "m.model: a model, not a TOML file"),
        ("run s.store", "s.store: a store, not a TOML file"),
        ("rollback m.model", "m.model: not a folder; name the folder of models"),
        ("rollback s.store", "s.store: no version of a model in it"),
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
    assert len(found.stderr.splitlines()) == 1
    assert found.stdout == ""


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
