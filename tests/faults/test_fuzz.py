"""Fuzz tests of every format: invalid inputs are refused in one line, or read.

`OOCPEG_FUZZ=format:seed` in the environment repeats one try.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fuzzing import FORMATS, resealed

from ooc_pegasos import ConvertConfig, Model, OocPegasosError, Store, TrainConfig, convert, train, verify
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.option_texts import parse_size
from ooc_pegasos.scoring.calibration import Calibration
from ooc_pegasos.util.checkpoint import Checkpoint
from support.paths import ROOT
from support.soak import in_soak

HERE = Path(__file__).resolve().parent
GROUPS = {
    "text": {"svmlight": 250, "vw": 250, "compressed": 100, "weights": 80, "folders": 80, "text-lines": 150},
    "settings": {"recipe": 80, "config": 50, "costs": 50, "job": 150},
    "tables": {"csv": 120, "tsv": 80, "jsonlines": 120, "parquet": 150, "arrow": 150, "arrow-stream": 150},
    "arrays": {"npz": 250, "npy": 200, "labels": 100},
    "stores": {"manifest": 250, "chunk": 200, "vocabulary": 120, "ids": 120, "unfinished": 60},
    "models": {"model": 200, "checkpoint": 150, "state": 100, "record": 60},
}
"""How many tries each format gets in short; at length each gets `LONG`, or as many as OOCPEG_FUZZ_TRIES says."""
LONG = int(os.environ.get("OOCPEG_FUZZ_TRIES", "100_000"))
MEMORY = Path("/dev/shm")


def fuzz(folder: Path, *jobs: str) -> list[dict]:
    """Run some tries in a separate process; a crash is a failure."""
    command = [sys.executable, str(HERE / "fuzzing.py"), str(folder), *jobs]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    where = (folder / "try").read_text().strip() if (folder / "try").exists() else "before the first try"
    told = f"OOCPEG_FUZZ={where}: ended with {done.returncode}\n{done.stderr[:4000]}"
    assert done.returncode == 0, told
    assert "Traceback" not in done.stderr, told
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("group", GROUPS)
def test_invalid_files_are_read_or_refused(tmp_path, group):
    jobs = [f"{name}:0:{in_soak(count, LONG)}" for name, count in GROUPS[group].items()]
    only = os.environ.get("OOCPEG_FUZZ")
    if only:
        if only.split(":")[0] not in GROUPS[group]:
            pytest.skip("another format was asked for")
        jobs = [f"{only}:1"]
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else tmp_path) as folder:
        found = fuzz(Path(folder), *jobs)
    for one in found:
        print(f"{one['format']}: {one['tries']:,} tries, {one['refused']:,} refused, slowest {one['slowest']}")
    failures = [failure for one in found for failure in one["failures"]]
    assert not failures, "\n".join(failures)
    if not only:
        assert all(one["refused"] for one in found if one["format"] != "record")  # which is never refused


def test_every_format_is_tried():
    assert {name for group in GROUPS.values() for name in group} == set(FORMATS)


# --- names that lead elsewhere --------------------------------------------------------------------

HOSTILE = [
    "../outside.arrow",
    "/etc/passwd",
    "./{name}",
    "x/../{name}",
    "../store/{name}",
    "{name}\0",
    "{name}\n",
    "{name}/",
    "\0",
    "",
    ".",
    "..",
    "chunk-000000-00000000.arrow" * 200,
    "chunk-" + "0" * 5000 + "-00000000.arrow",
    "manifest.json",
    "CHUNK-000000-00000000.arrow",
    "chunk-٠٠٠٠٠٠-00000000.arrow",
    "~/{name}",
    "file:///etc/passwd",
    "\ud800",
]


@pytest.fixture
def words(tmp_path) -> Store:
    """A store that has a vocabulary."""
    file = tmp_path / "in.csv"
    file.write_text("label,colour\n" + "1,red\n-1,blue\n" * 20)
    return convert([str(file)], tmp_path / "store", ConvertConfig(dictionary=5))


@pytest.mark.parametrize("which", ["chunks", "vocabulary"])
@pytest.mark.parametrize("name", HOSTILE)
def test_path_traversal_in_a_manifest(words, which, name):
    path = words.path / "manifest.json"
    table = json.loads(path.read_text())
    holder = table["chunks"][0] if which == "chunks" else table["vocabulary"]
    holder["file"] = name.format(name=holder["file"])
    path.write_bytes(resealed(table))
    for use in (Store.open, lambda place: verify(Store.open(place))):
        with pytest.raises(CorruptFileError) as caught:
            use(words.path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "/dev/null", "..", "nowhere", "self"])
def test_links_in_place_of_files_are_refused(words, target):
    """The target of a link is not a chunk: its size or its checksum is wrong."""
    for file in [words.path / words.manifest.chunks[0].file, words.path / words.manifest.vocabulary.file]:
        content = file.read_bytes()
        file.unlink()
        file.symlink_to(file.name if target == "self" else target)
        with pytest.raises(OocPegasosError) as caught:
            train(Store.open(words.path), TrainConfig(lam=0.1, max_epochs=1, threads=1))
        assert caught.value.exit_code == 5
        file.unlink()
        file.write_bytes(content)
    assert not verify(words).problems


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_devices_and_pipes_are_not_read(words, tmp_path, target):
    """Models and ids that are devices or pipes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "in.csv").write_text("label,x,user\n" + "1,2,a\n-1,3,b\n" * 9)
    store = convert([str(tmp_path / "in.csv")], tmp_path / "named", ConvertConfig(id="user"))
    (tmp_path / "link").symlink_to(tmp_path / "pipe" if target == "pipe" else target)
    with pytest.raises(OocPegasosError, match="not a regular file"):
        Model.load(tmp_path / "link")
    file = store.path / store.manifest.chunks[0].ids.file
    file.unlink()
    (tmp_path / "link").rename(file)
    for use in (store.id_type, lambda: store.ids(0)):
        with pytest.raises(CorruptFileError, match=r"(?i)not a regular file"):
            use()


@pytest.mark.parametrize("name", ["../rows-1.checkpoint", "/etc/passwd", "rows-1.checkpoint/x", "\0", "x"])
def test_path_traversal_in_a_checkpoint(words, tmp_path, name):
    config = {"lam": 0.1, "algorithm": "sdca", "tolerance": 1e-12, "checkpoint_epochs": 1}
    train(words, TrainConfig(**config, max_epochs=1), checkpoint=tmp_path / "c")
    saved = Checkpoint.load(tmp_path / "c")
    saved.facts["solver"]["rows"]["file"] = name
    saved.save(tmp_path / "c")
    with pytest.raises(CorruptFileError, match="not the name of a file of rows"):
        train(words, TrainConfig(**config, max_epochs=2), checkpoint=tmp_path / "c", resume=True)


def test_a_model_survives_its_own_checks(words, tmp_path):
    model = train(words, TrainConfig(lam=0.1, max_epochs=1)).model
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").weights.tolist() == model.weights.tolist()


# --- what would lead a kernel astray --------------------------------------------------------------


def test_a_model_with_inconsistent_parts(tmp_path):
    """Kernels take the number of classes from one part and index the others."""
    file = tmp_path / "in.svm"
    file.write_text("0 1:1\n1 2:1\n2 3:1\n" * 9)
    store = convert([str(file)], tmp_path / "store", ConvertConfig(task="multiclass"))
    model = train(store, TrainConfig(lam=0.1, max_epochs=1, loss="multiclass-hinge")).model
    labels = model.info.labels
    more = dataclasses.replace(labels, classes=["0", "1", "2", "3"])
    for changes, problem in [
        ({"costs": [[0.0, 1.0], [1.0, 0.0]]}, "costs"),
        ({"costs": [[0.0, 1.0, 1.0], [1.0, 0.0], [1.0, 1.0, 0.0]]}, "costs"),
        ({"costs": None}, "costs"),
        ({"labels": more}, "not those of its classes"),
        ({"loss": "huber"}, "not for its labels"),
        ({"loss": "none"}, "not for its labels"),
        ({"calibrations": [Calibration("platt", [1.0, 2.0])]}, "probabilities"),
        ({"calibrations": [Calibration("platt", [1.0])] * 3}, "probabilities"),
        ({"calibrations": [Calibration("isotonic")] * 3}, "probabilities"),
        ({"features": 2}, "out of range"),
        ({"features": 2**40}, "out of range"),
    ]:
        info = dataclasses.replace(model.info, **changes)
        dataclasses.replace(model, info=info).save(tmp_path / "m")
        with pytest.raises(CorruptFileError, match=problem):
            Model.load(tmp_path / "m")
    for part, value in (("weights", np.nan), ("bias", np.inf)):
        dataclasses.replace(model, **{part: getattr(model, part) + value}).save(tmp_path / "m")
        with pytest.raises(CorruptFileError, match="a weight is not a number"):
            Model.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("cursor", "position"), -5),
        (("cursor", "window"), -1),
        (("cursor", "epoch"), "1"),
        (("solver", "rows", "groups"), [[[0, 1, 2, 3, 4, 5, 6, 7, 8], 8]]),
        (("solver", "rows", "groups"), [[[0, 1, 2], 1]]),
        (("solver", "rows", "groups"), [[[0, 1, 7], 8]]),
        (("solver", "rows", "groups"), [[[0, 1, 2], 1 << 40]]),
        (("solver", "rows", "bytes"), 8),
        (("solver", "seen"), [[4, 1]]),
        (("solver", "epoch"), 0.5),
        (("pending",), [[9], 0]),
        (("known",), []),
        (("best",), [-1]),
        (("budget",), -1),
    ],
)
def test_a_checkpoint_of_another_run(tmp_path, place, value):
    file = tmp_path / "in.svm"
    file.write_text("-1 1:1 5:2\n1 2:1 9:1\n1 3:1\n" * 9)
    store = convert([str(file)], tmp_path / "store", ConvertConfig())
    config = {"lam": (0.1, 0.2, 0.3), "algorithm": "sdca", "tolerance": 1e-12, "checkpoint_epochs": 1, "refit": False}
    train(store, TrainConfig(**config, max_epochs=2), checkpoint=tmp_path / "c")
    saved = Checkpoint.load(tmp_path / "c")
    holder = saved.facts
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    saved.save(tmp_path / "c")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(CorruptFileError, match="not a checkpoint of this run"):
        train(store, TrainConfig(**config, max_epochs=3), checkpoint=tmp_path / "c", resume=True, scratch=scratch)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        {"delimiter": "\N{SECTION SIGN}"},
        {"delimiter": '"'},
        {"memory": 10**400},
        {"threads": 10**30},
        {"weights": "a\0b"},
        {"label": "a\nb"},
        {"block_size": 1 << 32},
    ],
)
def test_invalid_settings(tmp_path, words):
    file = tmp_path / "in.csv"
    file.write_text("label,x\n1,2\n-1,3\n")
    with pytest.raises(OocPegasosError) as caught:
        convert([str(file)], tmp_path / "store", ConvertConfig(**words))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["9" * 400, "1e5", "-1"])
def test_invalid_sizes(text):
    with pytest.raises(OocPegasosError):
        parse_size(text)


def test_a_vocabulary_with_invalid_indices(tmp_path):
    """Document frequencies are stored by feature index, which must be in range."""
    file = tmp_path / "in.csv"
    file.write_text("label,text\n" + "1,some words\n-1,other words\n" * 20)
    config = ConvertConfig(text=("text",), idf=True, hash_bits=4)
    store = convert([str(file)], tmp_path / "store", config)
    model = train(store, TrainConfig(lam=0.1, max_epochs=1)).model
    recipe = model.info.recipe
    table = dataclasses.replace(recipe.table, hashing=dataclasses.replace(recipe.table.hashing, bits=1))
    info = dataclasses.replace(model.info, recipe=dataclasses.replace(recipe, table=table))
    dataclasses.replace(model, info=info).save(tmp_path / "m")
    with pytest.raises(CorruptFileError, match="no hash can be"):
        Model.load(tmp_path / "m")
