"""Options made in Python are checked as those of the command line and of TOML files are."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.config import load_toml
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.util import typed_json


@pytest.mark.parametrize(
    ("cls", "options", "told"),
    [
        (ConvertConfig, {"normalize": "l1"}, "^ConvertConfig: 'normalize' should be one of l2, not 'l1'$"),
        (ConvertConfig, {"nulls": "zero"}, "'nulls' should be one of absent, mark, bad, not 'zero'"),
        (ConvertConfig, {"positive_label": 1}, "'positive_label' should be str or list of str or None, not int 1"),
        (ConvertConfig, {"classes": "ab"}, "'classes' should be a list"),
        (ConvertConfig, {"classes": (-1, 1)}, r"'classes\[0\]' should be str, not int -1"),
        (ConvertConfig, {"shuffle": 1}, "'shuffle' should be bool, not int 1"),
        (ConvertConfig, {"index_base": True}, "'index_base' should be one of auto, 0, 1, not True"),
        (ConvertConfig, {"memory": 1e9}, "'memory' should be int"),
        (ConvertConfig, {"memory": "much"}, "memory: 'much' is not a size"),
        (ConvertConfig, {"format": np.array(["vw", "table"])}, "'format' should be str, not list"),
        (TrainConfig, {"bias": True}, "'bias' should be one of none, feature, .*, not True"),
        (TrainConfig, {"bias": "Feature"}, "'bias' should be one of none, feature, "),
        (TrainConfig, {"algorithm": "SDCA"}, "algorithm=SDCA is unknown; choose one of auto, sdca, "),
        (TrainConfig, {"loss": "hing"}, "loss=hing is unknown; choose one of hinge, "),
        (TrainConfig, {"class_weight": {0: 1, 1: 2}}, "'class_weight' should be balanced or list of float or None"),
        (TrainConfig, {"cost": 1.0}, "'cost' should be list of list of float or None"),
        (TrainConfig, {"max_epochs": 1.5}, "'max_epochs' should be int or None, not float 1.5"),
        (TrainConfig, {"max_epochs": True}, "'max_epochs' should be int"),
        (TrainConfig, {"lam": True}, "'lam' should be float"),
        (TrainConfig, {"lam": 10**400}, "'lam' should be float"),
        (TrainConfig, {"project": np.int64(1)}, "'project' should be bool, not int 1"),
    ],
)
def test_wrong_types_and_choices_are_refused(cls, options, told):
    with pytest.raises(UsageError, match=told):
        cls(**options)
    with pytest.raises(UsageError, match=told):
        dataclasses.replace(cls(), **options)


@pytest.mark.parametrize(
    ("cls", "given", "meant"),
    [
        (TrainConfig, {"lam": np.float32(0.5), "seed": np.int64(3)}, {"lam": 0.5, "seed": 3}),
        (TrainConfig, {"lam": 1, "average": np.True_}, {"lam": 1.0, "average": True}),
        (TrainConfig, {"lam": np.array([0.25, 0.5])}, {"lam": (0.25, 0.5)}),
        (TrainConfig, {"class_weight": [1, np.int8(2)]}, {"class_weight": (1.0, 2.0)}),
        (TrainConfig, {"cost": np.array([[0, 1], [2, 0]])}, {"cost": ((0.0, 1.0), (2.0, 0.0))}),
        (TrainConfig, {"memory": "1GB", "delay": "auto"}, {"memory": 1 << 30, "delay": None}),
        (TrainConfig, {"max_seconds": 3, "loss": np.str_("hinge")}, {"max_seconds": 3.0, "loss": "hinge"}),
        (ConvertConfig, {"memory": "64MB", "chunk_size": "8k"}, {"memory": 64 << 20, "chunk_size": 8 << 10}),
        (ConvertConfig, {"index_base": np.int64(1)}, {"index_base": "1"}),
        (ConvertConfig, {"classes": ["a", np.str_("b")]}, {"classes": ("a", "b")}),
        (ConvertConfig, {"weights": Path("w.txt")}, {"weights": "w.txt"}),
    ],
)
def test_values_are_converted_to_python_types(cls, given, meant):
    config = cls(**given)
    assert config == cls(**meant)
    # equal is not enough: 1 == True == np.int64(1)
    for name, value in meant.items():
        assert repr(getattr(config, name)) == repr(value)
    again = typed_json.load(cls, json.loads(json.dumps(typed_json.dump(config))))
    assert again == config


@pytest.mark.parametrize("cls", [ConvertConfig, TrainConfig])
def test_defaults_pass_the_check_they_are_spared(cls):
    assert typed_json.load(cls, typed_json.dump(cls())) == cls()


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("Hinge", "hinge"),
        ("svm", "hinge"),
        ("log", "logistic"),
        ("Log_Loss", "logistic"),
        ("mse", "squared"),
        ("l2", "squared"),
        ("mae", "absolute"),
        ("squared_hinge", "squared-hinge"),
        ("hinge", "hinge"),
    ],
)
def test_names_of_losses_in_other_programs(given, ours, tmp_path):
    assert TrainConfig(loss=given).loss == ours
    (tmp_path / "options.toml").write_text(f'loss = "{given}"\n')
    assert load_toml(TrainConfig, tmp_path / "options.toml")["loss"] == ours
    with pytest.raises(UsageError, match="loss=huba is unknown; choose one of hinge, logistic, "):
        TrainConfig(loss="huba")


def test_toml_files_may_still_write_it_in_two_ways(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("index_base = 1\nmemory = '64MB'\n")
    assert typed_json.load(ConvertConfig, load_toml(ConvertConfig, file)) == ConvertConfig(
        index_base="1", memory=64 << 20
    )
    file.write_text("delay = 'auto'\nlam = 1\n")
    assert typed_json.load(TrainConfig, load_toml(TrainConfig, file)) == TrainConfig(lam=1.0)


def test_a_store_survives_a_label_that_is_not_text(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    store = convert([str(tmp_path / "in.svm")], tmp_path / "store")
    with pytest.raises(UsageError, match="positive_label"):
        convert([str(tmp_path / "in.svm")], tmp_path / "store", ConvertConfig(positive_label=1))  # type: ignore[arg-type]
    assert Store.open(tmp_path / "store").checksum == store.checksum


def test_train_takes_a_path(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    store = convert([str(tmp_path / "in.svm")], tmp_path / "store")
    config = TrainConfig(lam=np.float64(0.1), seed=np.int64(3))  # type: ignore[arg-type]
    weights = train(store, config).model.weights
    for path in (store.path, str(store.path)):
        assert np.array_equal(train(path, config, checkpoint=tmp_path / "c").model.weights, weights)
    with pytest.raises(InputError, match="no such store"):
        train(tmp_path / "nowhere", config)


def test_configurations_are_only_data():
    """Their import costs no import of what compiles, reads files or calculates."""
    code = "import sys, ooc_pegasos.config; print({'numba', 'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
