"""State of a run, recorded in a file, from which an interrupted run resumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.jobs.drift import Side
from ooc_pegasos.jobs.gate import Check
from ooc_pegasos.jobs.plan import Plan
from ooc_pegasos.jobs.set_aside import SetAside
from ooc_pegasos.jobs.versions import is_version
from ooc_pegasos.store.manifest import SourceInfo
from ooc_pegasos.util import json_checksum, typed_json
from ooc_pegasos.util.files import read_file, write_atomically

FILE_NAME = "state.json"


@dataclass(frozen=True)
class Appended:
    """Rows and sources that a run has appended."""

    rows: int = 0
    rejected: int = 0
    """Number of rejected rows."""
    sources: list[SourceInfo] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """The new model and its certificate."""

    lam: float
    algorithm: str
    epochs: int
    converged: bool
    objective: float
    lower_bound: float | None
    gap: float | None
    warm_start: bool
    why: str
    loss: str = ""


@dataclass(frozen=True)
class Compared:
    """Result of the gate. `metrics`: of challenger and champion, by set of rows; `golden`: fingerprints of the sets."""

    checks: list[Check]
    metrics: dict[str, dict[str, dict[str, Any] | None]]
    golden: dict[str, list[dict[str, Any]]]
    rows: int
    features: int
    checksum: str
    """Checksum of the store."""


@dataclass
class State:
    """The finished steps, None for the others. `job`: digest of the job; `run`: the name of the version."""

    job: str
    run: str
    began: str
    seconds: dict[str, float] = field(default_factory=dict)
    champion: str | None = None
    plan: Plan | None = None
    carried: Appended = field(default_factory=Appended)
    """Rows appended by a discarded run, on which no model was trained."""
    append: Appended | None = None
    drift: dict[str, Side] | None = None
    expire: int | None = None
    train: Trained | None = None
    compare: Compared | None = None
    set_aside: list[SetAside] = field(default_factory=list)
    """The files that are taken out of the store again, because the new model was refused."""
    failed: bool = False
    """True if ended by an error, not by an interruption: if new files have arrived since, the run begins anew."""

    def save(self, folder: Path) -> None:
        """Write the state to a folder."""
        folder.mkdir(exist_ok=True)
        write_atomically(folder / FILE_NAME, json_checksum.encode(json_checksum.plainly(self)))


def load(folder: Path) -> State | None:
    """Return the state in a folder, if there is one."""
    path = folder / FILE_NAME
    try:
        state = typed_json.load(State, json_checksum.decode(read_file(path)))
        for name in (state.run, *([state.champion] if state.champion is not None else [])):
            if not is_version(name):
                raise ValueError(f"{name!r:.60} is not the name of a version")
        if state.compare and not (state.train and state.append and state.expire is not None):
            raise ValueError("steps that were done without those before them")
        return state
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CorruptFileError(f"{path}: {error.strerror}; remove {folder} to begin anew") from error
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:160]
        raise CorruptFileError(f"{path}: {problem}; remove {folder} to begin anew") from error
