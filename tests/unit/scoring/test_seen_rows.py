"""Evaluating on the rows that a model was trained on is noticed."""

import json
import shutil

import numpy as np
import pytest

from ooc_pegasos import Model, TrainConfig, convert, train
from ooc_pegasos.scoring.evaluate import seen_in_training


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("old", "new"):
        lines = [f"{rng.choice([-1, 1])} 1:{rng.random():.3f} 2:{rng.random():.3f}\n" for _ in range(50)]
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    return tmp_path


def test_stores_and_files_of_the_training_are_recognised(files, oocpeg):
    store = convert([str(files / "old.svm")], files / "old.store")
    model = train(store, TrainConfig(lam=0.1)).model
    model.save(files / "model")
    other = convert([str(files / "new.svm")], files / "new.store")
    both = convert([str(files / "new.svm"), str(files / "old.svm")], files / "both.store")
    shutil.copy(files / "old.svm", files / "copy.svm")
    for one in (model, Model.load(files / "model")):
        for data in (store.path, both.path, files / "old.svm", files / "copy.svm", files / "*.svm"):
            assert seen_in_training(one, data), data
        for data in (other.path, files / "new.svm"):
            assert not seen_in_training(one, data), data
    assert "was trained on these rows" in oocpeg("evaluate", files / "model", files / "old.svm").stdout
    found = oocpeg("evaluate", files / "model", files / "new.svm")
    assert "was trained on" not in found.stdout
    assert json.loads(oocpeg("evaluate", files / "model", files / "old.svm", "--json").stdout)["seen_in_training"]


def test_models_of_before_know_no_sources(files):
    store = convert([str(files / "old.svm")], files / "old.store")
    model = train(store, TrainConfig(lam=0.1)).model
    model.info.sources.clear()
    assert seen_in_training(model, store.path)  # by the checksum of the store
    assert not seen_in_training(model, files / "old.svm")
