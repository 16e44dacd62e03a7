"""`oocpeg run` killed at any instant: `current` is a complete model, and the resumed run has the same result."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Job, kill_at_random, kill_at_steps

from ooc_pegasos.jobs import set_aside
from support.file_bytes import folder_bytes
from support.fork_server import ForkServer, Process
from support.nights import after_first_night, check_untorn, run_night
from support.soak import in_soak

NIGHTS = """
import tempfile
from pathlib import Path
from support.nights import after_first_night, run_night

with tempfile.TemporaryDirectory() as folder:  # loads all kernels that a process needs
    run_night(after_first_night(Path(folder), Path(folder) / "first", 300), 3)
"""


@pytest.fixture(scope="module")
def nights() -> Iterator[ForkServer]:
    with ForkServer(NIGHTS) as made:
        yield made


def second_night_job(nights: ForkServer, folder: Path, rows: int) -> Job:
    """New rows are appended, those of the first night expire, and the old version goes."""
    first, place = after_first_night(folder, folder / "first", rows), folder / "place"
    started = os.readlink(first / "models" / "current")

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(first, place, symlinks=True)

    def start(die_before: int, again: bool) -> Process:
        return nights.start("run_night", place, 3, under=place, die_before=die_before)

    prepare()
    start(0, False).succeed()
    expected = folder_bytes(place / "clicks.store")
    version = os.readlink(place / "models" / "current")
    model = (place / "models" / version / "model").read_bytes()
    assert version != started

    def same() -> None:
        assert os.readlink(place / "models" / "current") == version
        assert (place / "models" / version / "model").read_bytes() == model
        assert folder_bytes(place / "clicks.store") == expected
        assert sorted(path.name for path in place.glob("*.unfinished*")) == []
        assert not (place / "models" / ".run").exists()

    return Job(prepare, start, lambda: check_untorn(place, {started, version}), same)


def refused_night_job(nights: ForkServer, folder: Path, rows: int) -> Job:
    """New rows are appended, the model trained with them is refused, and they leave the store again."""
    first, place = after_first_night(folder, folder / "first", rows), folder / "place"
    started, before = os.readlink(first / "models" / "current"), folder_bytes(first / "clicks.store")
    job = (first / "job.toml").read_text().replace("expire_days = 1.5", "provisional = true")
    (first / "job.toml").write_text(job.replace("[gate]", "[gate]\nmin_auc = 0.9999"))

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(first, place, symlinks=True)

    def start(die_before: int, again: bool) -> Process:
        return nights.start("run_night", place, 3, under=place, die_before=die_before)

    def same() -> None:
        assert os.readlink(place / "models" / "current") == started
        assert folder_bytes(place / "clicks.store") == before
        assert sorted(path.name for path in place.glob("*.unfinished*")) == []
        assert not (place / "models" / ".run").exists()
        (refused,) = set_aside.load(place / "models")
        assert Path(refused.source.name) == folder / "incoming" / "day-3.svm"
        assert (place / "models" / "refused" / refused.run / "model").exists()
        assert run_night(place, 3)["outcome"] == "unchanged"

    return Job(prepare, start, lambda: check_untorn(place, {started}), same)


def test_jobs_killed_at_random(nights, tmp_path):
    hit = kill_at_random(second_night_job(nights, tmp_path, 1500), in_soak(6, 200))
    print(f"{hit} kills")
    assert hit >= in_soak(6, 200)


def test_jobs_killed_before_each_step(nights, tmp_path):
    tried, steps = kill_at_steps(second_night_job(nights, tmp_path, 300), in_soak(12, 10_000))
    print(f"{tried} of {steps} steps")
    assert tried >= min(steps, 12)


def test_refused_jobs_killed_before_each_step(nights, tmp_path):
    tried, steps = kill_at_steps(refused_night_job(nights, tmp_path, 300), in_soak(12, 10_000))
    print(f"{tried} of {steps} steps")
    assert tried >= min(steps, 12)
