"""Several files for evaluate and predict, and predictions on standard output."""

import json

import numpy as np
import pytest

from ooc_pegasos import TrainConfig, convert, train
from ooc_pegasos.scoring.evaluate import evaluate


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    for name, rows in (("a", 40), ("b", 25)):
        lines = [f"{rng.choice([-1, 1])} 1:{rng.random():.3f} 2:{rng.random():.3f}\n" for _ in range(rows)]
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    (tmp_path / "both.svm").write_text((tmp_path / "a.svm").read_text() + (tmp_path / "b.svm").read_text())
    store = convert([str(tmp_path / "both.svm")], tmp_path / "s.store")
    train(store, TrainConfig(lam=0.1)).model.save(tmp_path / "m.model")
    return tmp_path


def test_metrics_of_several_files_are_those_of_all_their_rows(files, oocpeg):
    wanted = json.loads(oocpeg("evaluate", files / "m.model", files / "both.svm", "--json").stdout)
    found = json.loads(oocpeg("evaluate", files / "m.model", files / "a.svm", files / "b.svm", "--json").stdout)
    assert found["rows"] == wanted["rows"] == 65
    assert found["confusion"] == wanted["confusion"]
    assert found["roc_auc"] == wanted["roc_auc"]
    assert found["mean_loss"] == pytest.approx(wanted["mean_loss"], rel=1e-12)


def test_a_store_beside_files(files):
    from ooc_pegasos import Model

    found = evaluate(Model.load(files / "m.model"), [files / "s.store", files / "a.svm"])
    assert found["rows"] == 105


def test_predictions_on_standard_output_are_those_of_a_file(files, oocpeg):
    oocpeg("predict", files / "m.model", files / "a.svm", files / "b.svm", "-o", files / "p.csv")
    printed = oocpeg("predict", files / "m.model", files / "a.svm", files / "b.svm", "-o", "-").stdout
    assert printed == (files / "p.csv").read_text()
    assert len(printed.splitlines()) == 66
    assert (
        "go to standard output"
        in oocpeg("predict", files / "m.model", files / "a.svm", "-o", "-", "--json", code=2).stderr
    )
