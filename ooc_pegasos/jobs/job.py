"""What a job file says. Its paths are seen from the folder it stands in, wherever it is run from."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ooc_pegasos.config import GIB, MOST_MEMORY, ConvertConfig, TrainConfig, load_toml, parse_size
from ooc_pegasos.errors import UsageError
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.files import is_same_file, is_within

Metric = Literal["roc_auc", "error", "mean_loss", "mean_absolute_error"]
HOLDOUT = "holdout"
"""What the rows kept apart are called among the sets that models are compared on."""
_APART = 0.1
"""The share of the rows that are kept apart, if a job does not say: models are compared on them."""
_ASIDE = ("name", "keep", "reserve", "log", "metrics", "notify")
"""Settings that change nothing of what comes out."""


@dataclass(frozen=True)
class Gate:
    """What a new model has to show before it takes the place of the one in use."""

    metric: Metric | None = None
    """By which models are compared. None: the area under the ROC curve; the error of several classes, the mean absolute
    error of real targets."""
    min_auc: float | None = None
    """On every set, whether there is a model to compare with or not."""
    max_relative_regression: float = 0.0
    """How much worse than the champion it may be, as a share of the champion's."""
    require_certified: bool = True
    """Its distance to the optimum must be proved to be within the tolerance."""
    confidence: float | None = None
    """That it is no worse than that must be this sure, by the bootstrap. None: what was measured is enough."""

    def __post_init__(self) -> None:
        if self.min_auc is not None and not 0 <= self.min_auc <= 1:
            raise UsageError(f"gate.min_auc {self.min_auc} is out of range; choose 0 to 1")
        if not 0 <= self.max_relative_regression < 1:
            problem = "is out of range; choose 0 to below 1"
            raise UsageError(f"gate.max_relative_regression {self.max_relative_regression} {problem}")
        if self.confidence is not None and not 0.5 <= self.confidence < 1:
            raise UsageError(f"gate.confidence {self.confidence} is out of range; choose 0.5 to below 1")


@dataclass(frozen=True)
class Job:
    """One job."""

    store: str
    """Where rows are kept; made by the first run."""
    models: str
    """The folder of models: one below it for each that was promoted, and `current`, a link to the one in use."""
    inputs: tuple[str, ...]
    """Files or patterns; those that are not in the store yet are appended."""
    name: str = ""
    """For the metrics; the name of the file if none is given."""
    golden: tuple[str, ...] = ()
    """Stores or files that models are compared on, besides the rows kept apart."""
    expire_days: float | None = None
    """Rows of files that were last changed before so many days leave the store, and older files are not taken."""
    warm_start: bool = True
    """Begin with the weights in use, where the algorithm can."""
    retune: bool = False
    """Look for a lambda in every run, not only in the first."""
    keep: int = 5
    """How many versions are kept: the newest, and the one in use."""
    reserve: int = GIB
    """Bytes that must stay free on the disk."""
    log: str | None = None
    """A file to which each step adds a line of JSON."""
    metrics: str | None = None
    """A file in the text format of Prometheus, written at the end."""
    notify: str | None = None
    """A command to run at the end, with the record of the run as JSON on its standard input."""
    convert: ConvertConfig = field(default_factory=ConvertConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    gate: Gate = field(default_factory=Gate)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise UsageError("inputs: name at least one file or pattern, like inputs = ['incoming/*.parquet']")
        if self.keep < 1:
            raise UsageError(f"keep {self.keep} is out of range; choose at least 1")
        if not 0 <= self.reserve <= MOST_MEMORY:
            raise UsageError(f"reserve {str(self.reserve)[:40]} is out of range; choose a size, like '1GB', or 0")
        if self.expire_days is not None and not 0 < self.expire_days < 1e6:
            raise UsageError(f"expire_days {self.expire_days} is out of range; choose a positive number")
        if self.train.folds or self.train.bias == "search":
            raise UsageError("train: folds and bias = 'search' have no rows kept apart to compare by; leave them out")
        if self.train.holdout == 0 and not self.golden:
            raise UsageError("train: holdout = 0 leaves nothing to compare by; leave it out, or name golden sets")
        try:
            wrong = self.notify is not None and not shlex.split(self.notify)
        except ValueError as error:
            raise UsageError(f"notify: {str(error).lower()} in {self.notify}; correct the command") from error
        if wrong:
            raise UsageError("notify: names no command; leave it out if there is none")

    @classmethod
    def load(cls, path: Path, notify: str | None = None) -> Job:
        """Read and check a job file; `notify` takes the place of what stands there."""
        job = typed_json.load(cls, load_toml(cls, path, _complete))
        here = str(path.resolve().parent)

        def placed(name: str, folder: str = here) -> str:
            if not name or "\0" in name:
                raise UsageError(f"{path}: {name!r} is no name that a file can have; correct it")
            return name if "://" in name else os.path.join(folder, name)  # which keeps /./, as `Path` does not

        def sought(name: str) -> str:
            return placed(name, glob.escape(here) if glob.has_magic(name) else here)

        def maybe(name: str | None) -> str | None:
            return None if name is None else placed(name)

        convert = dataclasses.replace(job.convert, weights=None, labels=maybe(job.convert.labels))
        if job.convert.weights or job.convert.labels:
            raise UsageError(f"{path}: convert: files of weights or labels cannot follow new inputs; use columns")
        placed_job = dataclasses.replace(
            job,
            name=job.name or path.stem,
            store=placed(job.store),
            models=placed(job.models),
            inputs=tuple(map(sought, job.inputs)),
            golden=tuple(map(sought, job.golden)),
            log=maybe(job.log),
            metrics=maybe(job.metrics),
            notify=_seen_from(here, job.notify) if notify is None and job.notify else notify,
            convert=convert,
        )
        placed_job._refuse_to_overwrite(path)
        return placed_job

    def _refuse_to_overwrite(self, path: Path) -> None:
        """Refuse a log and metrics that would be written over something else of the job."""
        written = {"log": self.log, "metrics": self.metrics}
        for name, place in written.items():
            if place is None:
                continue
            problem = None
            if is_same_file(place, str(path)):
                problem = "is the job file itself"
            elif name == "metrics" and self.log is not None and is_same_file(place, self.log):
                problem = "is the log as well"
            elif is_same_file(place, self.models):
                problem = "is the folder of models"
            elif is_within(place, self.store):
                problem = f"is in the store {self.store}" if not is_same_file(place, self.store) else "is the store"
            elif any(is_within(place, golden) for golden in self.golden):
                problem = "is a golden set, or in one"
            if problem:
                raise UsageError(f"{path}: {name}: {place} {problem}; name another file")

    def digest(self) -> str:
        """What tells whether a job is the one that was begun."""
        settings = {name: value for name, value in dataclasses.asdict(self).items() if name not in _ASIDE}
        content = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sets(self) -> dict[str, str]:
        """The golden sets by a short name that tells them apart."""
        short = [os.path.basename(os.path.normpath(golden)) for golden in self.golden]
        clear = [short.count(name) == 1 and name != HOLDOUT for name in short]
        told = zip(short, clear, self.golden, strict=True)
        return {name if is_clear else golden: golden for name, is_clear, golden in told}

    def training(self) -> TrainConfig:
        """The options of the training, with rows kept apart to compare models by."""
        if self.train.holdout is None:
            return dataclasses.replace(self.train, holdout=_APART)
        return self.train


def _complete(table: dict[str, Any]) -> None:
    """Parse sizes, and add the holdout that a job has by default, which options that need one must know of."""
    if isinstance(table.get("reserve"), str):
        table["reserve"] = parse_size(table["reserve"])
    train = table.setdefault("train", {})
    if isinstance(train, dict) and "folds" not in train:
        train.setdefault("holdout", _APART)


def _seen_from(folder: str, command: str) -> str:
    """A command whose program, if it is a relative path and no name to be looked for, is seen from a folder."""
    program, *words = shlex.split(command)
    if "/" not in program or os.path.isabs(program):
        return command
    return shlex.join([os.path.join(folder, program), *words])
