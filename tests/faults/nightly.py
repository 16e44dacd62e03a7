"""A job of which the first night is over and new files have come for the second."""

import os
from datetime import UTC, datetime
from pathlib import Path

from ooc_pegasos import Model, Store, verify
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.run import run
from support.file_bytes import folder_bytes
from support.rows import random_rows, svmlight_text

JOB = """
store = "clicks.store"
models = "models"
inputs = ["../incoming/*.svm*"]
golden = ["../golden.svm"]
expire_days = 1.5
reserve = 0
keep = 1
log = "log.jsonl"
metrics = "job.prom"
[convert]
values = "float32"
features = 60
index_base = 1
classes = ["-1", "1"]
chunk_size = "20kB"
[train]
lam = 1e-3
tolerance = 1e-3
checkpoint_epochs = 1
[gate]
max_relative_regression = 0.9
"""
DAY = 86_400
NOON = 1793491200


def put(folder: Path, day: int, rows: int = 1000, features: int = 60) -> Path:
    """The file of a day, last changed at its noon."""
    path = folder / "incoming" / f"day-{day}.svm"
    path.parent.mkdir(exist_ok=True)
    path.write_text(svmlight_text(*random_rows(rows, features, day, 0.2)))
    os.utime(path, (NOON + day * DAY, NOON + day * DAY))
    return path


def night(folder: Path, day: int) -> dict:
    moment = datetime.fromtimestamp(NOON + day * DAY + DAY / 2, UTC)
    return run(Job.load(folder / "job.toml"), now=lambda: moment)


def begun(folder: Path, place: Path) -> Path:
    """A job of which the first night is over, and new files have come for the second."""
    place.mkdir(exist_ok=True)
    (place / "job.toml").write_text(JOB)
    (folder / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 9, 0.2)))
    put(folder, 1)
    night(place, 1)
    put(folder, 3)
    return place


Outcome = tuple[str, dict[str, bytes], bytes, object]


def outcome(place: Path) -> Outcome:
    """The result: the version in use, the store, and the model."""
    current = os.readlink(place / "models" / "current")
    store = {name: content for name, content in folder_bytes(place / "clicks.store").items() if "manifest" not in name}
    model = Model.load(place / "models" / current / "model")
    return current, store, model.weights.tobytes(), model.info.certificate


def check_untorn(place: Path, versions: set[str]) -> None:
    current = os.readlink(place / "models" / "current")
    assert current in versions
    Model.load(place / "models" / current / "model")
    assert verify(Store.open(place / "clicks.store")).problems == []
