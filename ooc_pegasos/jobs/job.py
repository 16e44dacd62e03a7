"""Job files. Paths in a job file are relative to the folder of the file, not to the working directory."""

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

from ooc_pegasos.config import ConvertConfig, TrainConfig, load_toml
from ooc_pegasos.errors import UsageError
from ooc_pegasos.option_texts import GIB, MOST_MEMORY, parse_size
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.files import is_same_file, is_within

Metric = Literal["roc_auc", "error", "mean_loss", "mean_absolute_error"]
HOLDOUT = "holdout"
"""Name of the holdout rows among the sets on which models are compared."""
_DEFAULT_HOLDOUT = 0.1
"""Default fraction of holdout rows, on which models are compared."""
_WITHOUT_EFFECT = ("name", "keep", "reserve", "log", "metrics", "notify")
"""Settings that do not affect the result of a run."""


@dataclass(frozen=True)
class Gate:
    """Conditions under which a new model replaces the model in use."""

    metric: Metric | None = None
    """Metric of the comparison. None: the area under the ROC curve for two classes, the error for several classes, the
    mean
    absolute error for real targets."""
    min_auc: float | None = None
    """Least area under the ROC curve on every set, also without a model to compare with."""
    max_relative_regression: float = 0.0
    """Largest allowed regression relative to the champion."""
    require_certified: bool = True
    """True if the distance to the optimum must be certified to be within the tolerance."""
    confidence: float | None = None
    """Least bootstrap confidence of the comparison. None: the measured values decide."""

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
    """A job."""

    store: str
    """The store of training rows, created by the first run."""
    models: str
    """The folder of models: a folder for each promoted version, and `current`, a link to the version in use."""
    inputs: tuple[str, ...]
    """Files or patterns; files that are not in the store yet are appended."""
    name: str = ""
    """Name in the metrics; by default the name of the job file."""
    golden: tuple[str, ...] = ()
    """Reference sets: stores or files on which models are compared, besides the holdout rows."""
    expire_days: float | None = None
    """Age in days at which files expire: their rows are removed from the store, and older files are not appended."""
    warm_start: bool = True
    """Start from the weights in use, if the algorithm can."""
    retune: bool = False
    """Search for the best lambda, and loss, in every run, not only in the first."""
    provisional: bool = False
    """Take new files out of the store again if the model trained with them is refused, and leave them out later."""
    keep: int = 5
    """Number of versions kept: the version in use, those before, and the newest."""
    reserve: int = GIB
    """Bytes of disk space that must remain free."""
    log: str | None = None
    """A log file: each step appends a line of JSON."""
    metrics: str | None = None
    """A file in the text format of Prometheus, written at the end of a run."""
    notify: str | None = None
    """A command run at the end, with the record of the run as JSON on its standard input."""
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
        self.convert.check_memory()
        if self.train.folds or self.train.bias == "search":
            raise UsageError("train: folds and bias = 'search' have no holdout rows to compare by; leave them out")
        if self.train.holdout == 0 and not self.golden:
            raise UsageError("train: holdout = 0 leaves no rows to compare models by; leave it out, or set golden")
        try:
            wrong = self.notify is not None and not shlex.split(self.notify)
        except ValueError as error:
            raise UsageError(f"notify: {str(error).lower()} in {self.notify}; correct the command") from error
        if wrong:
            raise UsageError("notify: names no command; leave it out if there is none")

    @classmethod
    def load(cls, path: Path, notify: str | None = None) -> Job:
        """Read and check a job file; `notify` overrides the command in the file."""
        job = typed_json.load(cls, load_toml(cls, path, _complete))
        here = str(path.resolve().parent)

        def placed(name: str, folder: str = here) -> str:
            if not name or "\0" in name:
                raise UsageError(f"{path}: {name!r} is not a valid file name; correct it")
            return name if "://" in name else os.path.join(folder, name)  # not `Path`, which would remove /./

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
            notify=_with_absolute_program(here, job.notify) if notify is None and job.notify else notify,
            convert=convert,
        )
        placed_job._refuse_to_overwrite(path)
        return placed_job

    def _refuse_to_overwrite(self, path: Path) -> None:
        """Refuse a log or metrics file that would overwrite other files of the job."""
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
                problem = "is a reference set, or in one"
            if problem:
                raise UsageError(f"{path}: {name}: {place} {problem}; name another file")

    def digest(self) -> str:
        """Return a hash of the settings that affect the result of a run."""
        settings = {name: value for name, value in dataclasses.asdict(self).items() if name not in _WITHOUT_EFFECT}
        content = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sets(self) -> dict[str, str]:
        """Return the reference sets by a short unique name."""
        short = [os.path.basename(os.path.normpath(golden)) for golden in self.golden]
        clear = [short.count(name) == 1 and name != HOLDOUT for name in short]
        named = zip(short, clear, self.golden, strict=True)
        return {name if is_clear else golden: golden for name, is_clear, golden in named}

    def training(self) -> TrainConfig:
        """Return the options of training, with holdout rows for the comparison of models, which are not trained on."""
        holdout = _DEFAULT_HOLDOUT if self.train.holdout is None else self.train.holdout
        return dataclasses.replace(self.train, holdout=holdout, refit=self.train.refit and not self.train.comparing)


def _complete(table: dict[str, Any]) -> None:
    """Parse sizes, and add the default holdout, which the checks of other options depend on."""
    if isinstance(table.get("reserve"), str):
        table["reserve"] = parse_size(table["reserve"])
    train = table.setdefault("train", {})
    if isinstance(train, dict) and "folds" not in train:
        train.setdefault("holdout", _DEFAULT_HOLDOUT)


def _with_absolute_program(folder: str, command: str) -> str:
    """Return a command with its program, if given as a relative path, relative to `folder`."""
    program, *words = shlex.split(command)
    if "/" not in program or os.path.isabs(program):
        return command
    return shlex.join([os.path.join(folder, program), *words])
