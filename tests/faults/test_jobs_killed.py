"""`oocpeg run` killed at any instant: `current` is a complete model, and the resumed run has the same result."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Child, Job, Nursery, kill_at_random, kill_at_steps, nursery

from ooc_pegasos import Model, Store, verify
from support.file_bytes import folder_bytes
from support.rows import random_rows, svmlight_text
from support.soak import in_soak

NIGHTS = """
from datetime import UTC, datetime
from pathlib import Path
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.run import run

def night(folder, day):
    run(Job.load(Path(folder) / "job.toml"), now=lambda: datetime(2026, 11, day, 2, tzinfo=UTC))

import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    for day, rows in ((1, 100), (2, 50)):
        text = "".join(f"{1 - 2 * (i % 2)} {1 + i % 2}:1 {3 + i % 5}:0.5\\n" for i in range(rows))
        open(f"{folder}/day-{day}.svm", "w").write(text)
        open(f"{folder}/job.toml", "w").write('store = "s"\\nmodels = "m"\\ninputs = ["day-*.svm"]\\nreserve = 1\\n')
        night(folder, day)
"""
JOB = """
store = "clicks.store"
models = "models"
inputs = ["day-*.svm"]
golden = ["golden.svm"]
expire_days = 1.5
reserve = 1
keep = 1
log = "log.jsonl"
metrics = "job.prom"
[convert]
values = "float32"
features = 60
index_base = 1
[train]
lam = 1e-3
tolerance = 1e-3
checkpoint_epochs = 1
[gate]
max_relative_regression = 0.9
"""
DAY = 86_400


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(NIGHTS, tmp_path_factory.mktemp("nights")) as made:
        yield made


def second_night(nights: Nursery, folder: Path, rows: int) -> Job:
    """New rows are appended, those of the first night expire, and the old version goes."""
    first, place = folder / "first", folder / "place"
    first.mkdir()
    (first / "job.toml").write_text(JOB)
    (first / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 9, 0.2)))

    def put(where: Path, day: int) -> None:
        path = where / f"day-{day}.svm"
        path.write_text(svmlight_text(*random_rows(rows, 60, day, 0.2)))
        moment = 1793491200 + day * DAY  # noon of the day before, about
        os.utime(path, (moment - DAY, moment - DAY))

    put(first, 1)
    nights.start("night", first, 1).succeed()
    put(first, 3)
    started = os.readlink(first / "models" / "current")

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(first, place, symlinks=True)

    def start(die_before: int, again: bool) -> Child:
        return nights.start("night", place, 3, under=place, die_before=die_before)

    prepare()
    # the store knows its sources under the folder where they were
    start(0, False).succeed()
    expected = folder_bytes(place / "clicks.store")
    version = os.readlink(place / "models" / "current")
    model = (place / "models" / version / "model").read_bytes()
    assert version != started

    def check_untorn() -> None:
        current = os.readlink(place / "models" / "current")
        assert current in (started, version)
        Model.load(place / "models" / current / "model")
        assert verify(Store.open(place / "clicks.store")).problems == []

    def same() -> None:
        assert os.readlink(place / "models" / "current") == version
        assert (place / "models" / version / "model").read_bytes() == model
        assert folder_bytes(place / "clicks.store") == expected
        assert sorted(path.name for path in place.glob("*.unfinished*")) == []
        assert not (place / "models" / ".run").exists()

    return Job(prepare, start, check_untorn, same)


def test_jobs_killed_at_random(nights, tmp_path):
    hit = kill_at_random(second_night(nights, tmp_path, 1500), in_soak(6, 200))
    print(f"{hit} kills")
    assert hit >= in_soak(6, 200)


def test_jobs_killed_before_each_step(nights, tmp_path):
    tried, steps = kill_at_steps(second_night(nights, tmp_path, 300), in_soak(12, 10_000))
    print(f"{tried} of {steps} steps")
    assert tried >= min(steps, 12)
