"""Killed at any instant: no file is torn, and the resumed run has the result of an undisturbed one."""

import gzip
import json
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from machine import Job, kill_at_random, kill_at_steps

from ooc_pegasos import ConvertConfig, Model, Store, convert, verify
from ooc_pegasos.util.checkpoint import FILE_NAME, Checkpoint
from support.file_bytes import folder_bytes
from support.fork_server import ForkServer, Process
from support.rows import random_rows, svmlight_text
from support.soak import in_soak
from support.stores import least_memory, store_of

CONVERT = """
import tempfile
from ooc_pegasos import ConvertConfig, Existing, Store, convert
ConvertConfig.bucket_limit = lambda _config: 40_000

def convert_to(target, sources, shuffle, mode, resume):
    config = ConvertConfig(shuffle=shuffle, chunk_size=20_000, block_size=4_000, threads=2, on_bad_row="skip")
    existing = Existing(append=mode == "append", force=mode == "force", resume=resume)
    convert(sources, target, config, existing=existing)

with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/in.svm", "w").write("1 1:1\\n-1 2:0.5\\n" * 1000)
    for shuffle in (True, False):
        convert_to(f"{folder}/store", [f"{folder}/in.svm"], shuffle, "force", False)
"""
TRAIN = """
import tempfile
from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train

def train_on(store, folder, algorithm, memory, epochs, resume):
    config = TrainConfig(lam=1e-4, tolerance=1e-12, max_epochs=epochs, checkpoint_epochs=1,
                         checkpoint_minutes=0.0002, memory=memory, algorithm=algorithm)
    result = train(Store.open(store), config, checkpoint=f"{folder}/c", log=f"{folder}/log", resume=resume)
    result.model.save(f"{folder}/model")

def search_on(store, folder, algorithm, memory, calibrate, resume):
    config = TrainConfig(tolerance=0.02, checkpoint_epochs=1, checkpoint_minutes=0.0002, memory=memory, holdout=0.3,
                         algorithm=algorithm, calibrate=calibrate, max_epochs=20, loss="hinge")
    result = train(Store.open(store), config, checkpoint=f"{folder}/c", log=f"{folder}/log", resume=resume)
    result.model.save(f"{folder}/model")

with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/in.svm", "w").write("1 1:1 3:0.25\\n-1 2:0.5 4:0.75\\n" * 1000)
    convert([f"{folder}/in.svm"], f"{folder}/store", ConvertConfig())
    for algorithm in ("sgd-s", "sdca"):
        train_on(f"{folder}/store", folder, algorithm, None, 2, False)
        search_on(f"{folder}/store", folder, algorithm, None, None, False)
"""


@pytest.fixture(scope="module")
def converting() -> Iterator[ForkServer]:
    with ForkServer(CONVERT) as made:
        yield made


@pytest.fixture(scope="module")
def training() -> Iterator[ForkServer]:
    with ForkServer(TRAIN) as made:
        yield made


def empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


# --- conversions --------------------------------------------------------------------------------


def conversion_job(converting: ForkServer, folder: Path, mode: str, shuffle: bool, rows: int) -> Job:
    """Plain and compressed text with a bad row each; the store that is there already, if any, has bad rows as well."""
    text = svmlight_text(*random_rows(rows, 800, seed=3, density=0.02)).splitlines(keepends=True)
    text[rows // 3] = text[2 * rows // 3] = "garbage\n"
    (folder / "a.svm").write_text("".join(text[: rows // 2]))
    (folder / "b.svm.gz").write_bytes(gzip.compress("".join(text[rows // 2 :]).encode()))
    old = folder / "old.svm"
    old.write_text("rubbish\n" + "".join(f"{1 - 2 * (i % 2)} 1:{i + 1}\n" for i in range(300)))
    place, sources = folder / "place", [str(folder / "a.svm"), str(folder / "b.svm.gz")]
    target = place / "store"
    skip = ConvertConfig(shuffle=False, on_bad_row="skip")

    def prepare() -> None:
        empty(place)
        if mode != "new":
            convert([str(old)], target, skip)

    rng = random.Random(rows)

    def start(die_before: int, again: bool) -> Process:
        """Resume, or run again, unless the command had completed."""
        plan, made = target.with_name("store.unfinished") / "plan.json", target / "manifest.json"
        done = made.exists() and made.read_bytes() != before.get("manifest.json")
        resume = again and (rng.random() < 0.5 or (done and (mode == "new" or not plan.exists())))
        words = (target, sources, shuffle, mode, resume)
        return converting.start("convert_to", *words, under=place, die_before=die_before)

    prepare()
    before = folder_bytes(target) if target.exists() else {}
    start(0, False).succeed()
    expected = folder_bytes(place)
    assert sorted(path.name for path in place.iterdir()) == ["store"]

    def check_untorn() -> None:
        if not target.exists():
            assert mode == "new"
            return
        found = verify(Store.open(target))
        assert found.problems == []
        now = folder_bytes(target)
        if now["manifest.json"] == before.get("manifest.json"):
            assert {name: now.get(name) for name in before} == before
        else:
            assert now["manifest.json"] == expected["store/manifest.json"]

    def same() -> None:
        assert folder_bytes(place) == expected
        assert sorted(path.name for path in place.iterdir()) == ["store"]

    return Job(prepare, start, check_untorn, same)


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffle", "no-shuffle"])
@pytest.mark.parametrize("mode", ["new", "append", "force"])
def test_conversions_killed_at_random(converting, tmp_path, mode, shuffle):
    job = conversion_job(converting, tmp_path, mode, shuffle, 6000)
    hit = kill_at_random(job, in_soak(4, 100))
    print(f"{hit} kills")
    assert hit >= in_soak(4, 100)


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffle", "no-shuffle"])
@pytest.mark.parametrize("mode", ["new", "append", "force"])
def test_conversions_killed_before_each_step(converting, tmp_path, mode, shuffle):
    job = conversion_job(converting, tmp_path, mode, shuffle, 600)
    tried, steps = kill_at_steps(job, in_soak(10, 10_000))
    print(f"{tried} of {steps} steps")
    assert tried >= min(steps, 10)


# --- training -----------------------------------------------------------------------------------


def training_job(training: ForkServer, folder: Path, algorithm: str, memory: str, rows: int, epochs: int) -> Job:
    """A run with frequent checkpoints, on a store of one window or several."""
    store = store_of(folder, *random_rows(rows, 500, 10, 0.02), chunk_size=rows * 8)
    place = folder / "place"
    budget = None if memory == "all" else least_memory(store)
    rng = random.Random(rows)

    def start(die_before: int, again: bool) -> Process:
        """Resume, or sometimes start from the beginning."""
        words = (store.path, place, algorithm, budget, epochs, again and rng.random() < 0.7)
        return training.start("train_on", *words, under=place, die_before=die_before)

    empty(place)
    (place / "model").write_bytes(b"an older one")
    start(0, False).succeed()
    expected = (place / "model").read_bytes()

    def prepare() -> None:
        empty(place)
        (place / "model").write_bytes(b"an older one")

    def check_untorn() -> None:
        check_old_or_new(place / "model", expected)
        check_checkpoint(place / "c")

    def same() -> None:
        assert (place / "model").read_bytes() == expected
        lines = [json.loads(line) for line in (place / "log").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == list(range(1, epochs + 1))
        assert sorted(path.name for path in place.iterdir()) == ["c", "log", "model"]
        names = {path.name for path in (place / "c").iterdir()}
        assert {name for name in names if not name.startswith("rows-")} == {"lock", FILE_NAME}
        assert len(names) <= 3, names

    return Job(prepare, start, check_untorn, same)


def check_old_or_new(model: Path, expected: bytes) -> None:
    """Fail if a model is torn."""
    if model.read_bytes() != b"an older one":
        assert model.read_bytes() == expected
        Model.load(model)


def check_checkpoint(folder: Path) -> None:
    """Fail if a checkpoint is damaged, or if it refers to rows that are not there."""
    saved = Checkpoint.load(folder)  # refuses what is damaged
    if saved and "rows" in saved.facts.get("solver", {}):
        told = saved.facts["solver"]["rows"]
        content = (folder / told["file"]).read_bytes()
        assert (len(content), zlib.crc32(content)) == (told["bytes"], told["crc32"])


def search_job(training: ForkServer, folder: Path, algorithm: str, memory: str, calibrate: str | None) -> Job:
    """A search for lambda with frequent checkpoints, on a store of one window or several."""
    matrix, _labels = random_rows(400, 12, 10, 0.5)
    rng = np.random.default_rng(1)
    labels = np.where(matrix @ rng.standard_normal(12) + rng.standard_normal(400) > 0, 1, -1)
    store = store_of(folder, matrix, labels, chunk_size=4096)
    place, budget = folder / "place", None if memory == "all" else 20 * least_memory(store) // 10
    rng = random.Random(memory)

    def start(die_before: int, again: bool) -> Process:
        """Resume, or sometimes start from the beginning."""
        words = (store.path, place, algorithm, budget, calibrate, again and rng.random() < 0.7)
        return training.start("search_on", *words, under=place, die_before=die_before)

    def prepare() -> None:
        empty(place)
        (place / "model").write_bytes(b"an older one")

    def epochs() -> list[tuple[int, int | None, int]]:
        lines = map(json.loads, (place / "log").read_text().splitlines())
        return [(line["round"], line.get("model"), line["epoch"]) for line in lines]

    prepare()
    start(0, False).succeed()
    expected, expected_epochs = (place / "model").read_bytes(), epochs()
    rounds = 2 + (calibrate is not None)
    assert len({number for number, _model, _epoch in expected_epochs}) >= rounds

    def check_untorn() -> None:
        check_old_or_new(place / "model", expected)
        for found in [place / "c", *place.glob("c/round-*")]:
            check_checkpoint(found)

    def same() -> None:
        assert (place / "model").read_bytes() == expected
        assert epochs() == expected_epochs
        assert sorted(path.name for path in place.iterdir()) == ["c", "log", "model"]
        names = {path.name for path in (place / "c").iterdir()}
        assert names == {"lock", FILE_NAME, "round-last"}

    return Job(prepare, start, check_untorn, same)


SEARCHES = [("sdca", "all", None), ("sdca", "several", None), ("sgd-s", "several", None), ("sdca", "all", "platt")]


@pytest.mark.parametrize(("algorithm", "memory", "calibrate"), SEARCHES)
def test_searches_killed_at_random(training, tmp_path, algorithm, memory, calibrate):
    job = search_job(training, tmp_path, algorithm, memory, calibrate)
    hit = kill_at_random(job, in_soak(4, 100))
    print(f"{hit} kills")
    assert hit >= in_soak(4, 100)


@pytest.mark.parametrize(("algorithm", "memory", "calibrate"), SEARCHES)
def test_searches_killed_before_each_step(training, tmp_path, algorithm, memory, calibrate):
    job = search_job(training, tmp_path, algorithm, memory, calibrate)
    tried, steps = kill_at_steps(job, in_soak(10, 10_000))
    print(f"{tried} of {steps} steps")
    assert tried >= min(steps, 10)


@pytest.mark.parametrize("memory", ["all", "several"])
@pytest.mark.parametrize("algorithm", in_soak(["sgd-s", "sdca"], ["sgd-s", "sgd-m", "sdca"]))
def test_runs_killed_at_random(training, tmp_path, algorithm, memory):
    job = training_job(training, tmp_path, algorithm, memory, 8000, 30)
    hit = kill_at_random(job, in_soak(4, 100))
    print(f"{hit} kills")
    assert hit >= in_soak(4, 100)


@pytest.mark.parametrize("memory", ["all", "several"])
@pytest.mark.parametrize("algorithm", ["sgd-s", "sdca"])
def test_runs_killed_before_each_step(training, tmp_path, algorithm, memory):
    job = training_job(training, tmp_path, algorithm, memory, 600, 4)
    tried, steps = kill_at_steps(job, in_soak(10, 10_000))
    print(f"{tried} of {steps} steps")
    assert tried >= min(steps, 10)
