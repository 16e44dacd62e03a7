"""A job that is called every night: its file, its inputs, and what time it is."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from ooc_pegasos import Model, Store, verify
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.run import run
from support.file_bytes import folder_bytes
from support.rows import random_rows, svmlight_text

NIGHT = datetime(2026, 11, 18, 2, tzinfo=UTC)
FEATURES = 40
TRUTH = np.random.default_rng(99).normal(size=FEATURES)

JOB = """
store = "clicks.store"
models = "models"
inputs = ["incoming/*.svm"]
golden = ["golden.svm"]
reserve = "1MB"
log = "log.jsonl"
metrics = "oocpeg.prom"
{more}

[convert]
features = 40
index_base = 1
values = "float32"

[train]
lam = 1e-3
tolerance = 0.01
{train}

[gate]
{gate}
"""


def job_rows(rows, seed, noise=0.3, flip=False):
    rng = np.random.default_rng(seed)
    matrix = sp.random(rows, FEATURES, 0.2, "csr", np.float32, rng=rng, data_rvs=rng.standard_normal)
    scores = matrix @ TRUTH + noise * rng.normal(size=rows)
    labels = np.where(scores > 0, 1, -1)
    return matrix, -labels if flip else labels


def put_day(folder, day, rows=300, **how):
    path = folder / "incoming" / f"day-{day:02}.svm"
    path.parent.mkdir(exist_ok=True)
    path.write_text(svmlight_text(*job_rows(rows, day, **how)))
    moment = (NIGHT + timedelta(days=day)).timestamp() - 3600
    os.utime(path, (moment, moment))
    return path


def job_of(folder, more="", train="", gate=""):
    (folder / "nightly.toml").write_text(JOB.format(more=more, train=train, gate=gate))
    if not (folder / "golden.svm").exists():
        (folder / "golden.svm").write_text(svmlight_text(*job_rows(400, 1000)))
    return Job.load(folder / "nightly.toml")


def changed_job(folder, *changes):
    """The job after replacements in its file."""
    path = folder / "nightly.toml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return Job.load(path)


def clock_of(day):
    """The clock of a run in the night after a day."""
    return lambda: NIGHT + timedelta(days=day)


def version_in_use(folder):
    """The name of the version that `current` leads to."""
    return os.readlink(folder / "models" / "current")


# --- a job that expires its rows -------------------------------------------------------------------

EXPIRING_JOB = """
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


def put_random_day(folder: Path, day: int, rows: int = 1000, features: int = 60) -> Path:
    """The file of a day, last changed at its noon."""
    path = folder / "incoming" / f"day-{day}.svm"
    path.parent.mkdir(exist_ok=True)
    path.write_text(svmlight_text(*random_rows(rows, features, day, 0.2)))
    os.utime(path, (NOON + day * DAY, NOON + day * DAY))
    return path


def run_night(folder: Path | str, day: int) -> dict:
    """Run the job in a folder in the night after a day."""
    moment = datetime.fromtimestamp(NOON + day * DAY + DAY / 2, UTC)
    return run(Job.load(Path(folder) / "job.toml"), now=lambda: moment)


def after_first_night(folder: Path, place: Path, rows: int = 1000) -> Path:
    """Make a job whose first run is done and for which a new file has arrived; returns its folder."""
    place.mkdir(exist_ok=True)
    (place / "job.toml").write_text(EXPIRING_JOB)
    (folder / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 9, 0.2)))
    put_random_day(folder, 1, rows)
    run_night(place, 1)
    put_random_day(folder, 3, rows)
    return place


Outcome = tuple[str, dict[str, bytes], bytes, object]


def outcome_of(place: Path) -> Outcome:
    """Version in use, chunks of the store, weights and certificate. Manifests and models contain paths."""
    current = os.readlink(place / "models" / "current")
    store = {name: content for name, content in folder_bytes(place / "clicks.store").items() if "manifest" not in name}
    model = Model.load(place / "models" / current / "model")
    return current, store, model.weights.tobytes(), model.info.certificate


def check_untorn(place: Path, versions: set[str]) -> None:
    """Check that a whole model of one of these versions is in use, and that the store is intact."""
    current = os.readlink(place / "models" / "current")
    assert current in versions
    Model.load(place / "models" / current / "model")
    assert verify(Store.open(place / "clicks.store")).problems == []
