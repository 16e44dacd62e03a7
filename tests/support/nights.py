"""A job that is called every night: its file, its inputs, and what time it is."""

import os
from datetime import UTC, datetime, timedelta

import numpy as np
import scipy.sparse as sp

from ooc_pegasos.jobs.job import Job
from support.rows import svmlight_text

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


def rows_of(rows, seed, noise=0.3, flip=False):
    rng = np.random.default_rng(seed)
    matrix = sp.random(rows, FEATURES, 0.2, "csr", np.float32, rng=rng, data_rvs=rng.standard_normal)
    scores = matrix @ TRUTH + noise * rng.normal(size=rows)
    labels = np.where(scores > 0, 1, -1)
    return matrix, -labels if flip else labels


def put(folder, day, rows=300, **how):
    path = folder / "incoming" / f"day-{day:02}.svm"
    path.parent.mkdir(exist_ok=True)
    path.write_text(svmlight_text(*rows_of(rows, day, **how)))
    moment = (NIGHT + timedelta(days=day)).timestamp() - 3600
    os.utime(path, (moment, moment))
    return path


def job_of(folder, more="", train="", gate=""):
    (folder / "nightly.toml").write_text(JOB.format(more=more, train=train, gate=gate))
    if not (folder / "golden.svm").exists():
        (folder / "golden.svm").write_text(svmlight_text(*rows_of(400, 1000)))
    return Job.load(folder / "nightly.toml")


def changed(folder, *changes):
    """The job with other words in its file."""
    path = folder / "nightly.toml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return Job.load(path)


def night(day):
    return lambda: NIGHT + timedelta(days=day)


def in_use(folder):
    return os.readlink(folder / "models" / "current")
