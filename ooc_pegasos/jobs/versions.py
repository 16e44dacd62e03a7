"""The folder of models: a folder below it for each version, and `current`, a link to the one in use, switched last."""

from __future__ import annotations

import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ooc_pegasos.errors import DamagedError, InputError, UsageError
from ooc_pegasos.files import sync_folder

MODEL, RECORD = "model", "run.json"
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", re.ASCII)
FORM = "%Y-%m-%dT%H-%M-%S"
_REFUSED = "refused"


def is_version(name: str) -> bool:
    """Whether it is a name that a version can have."""
    try:
        return bool(_NAME.fullmatch(name)) and datetime.strptime(name, FORM).year < datetime.max.year
    except ValueError:
        return False


class Versions:
    """The versions in a folder. Whoever changes them holds the lock."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def lock(self) -> Path:
        """The file to lock."""
        return self.folder / ".lock"

    @property
    def work(self) -> Path:
        """Where the run at hand keeps what it has so far."""
        return self.folder / ".run"

    def names(self) -> list[str]:
        """All versions, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_dir() and is_version(entry.name))

    def current(self) -> str | None:
        """The version in use."""
        link = self.folder / "current"
        try:
            name = os.readlink(link)
        except FileNotFoundError:
            return None
        except OSError as error:
            advice = "move it away, and put a version in its place with 'oocpeg rollback'"
            raise InputError(f"{link}: not a link to a version; {advice}") from error
        if not is_version(name) or not (self.folder / name / MODEL).is_file():
            advice = "put another version in its place with 'oocpeg rollback'"
            raise DamagedError(f"{link}: leads to {name!r}, where no model is; {advice}")
        return name

    def model(self, name: str) -> Path:
        """The model of a version."""
        return self.folder / name / MODEL

    def new_name(self, now: datetime) -> str:
        """A name for the version of this time, after all others even if the clock was set back."""
        taken = [*self.names(), *self._refused()]
        if taken and now.strftime(FORM) <= max(taken):
            now = datetime.strptime(max(taken), FORM).replace(tzinfo=UTC) + timedelta(seconds=1)
        return now.strftime(FORM)

    def publish(self, candidate: Path, name: str) -> None:
        """Put a version in its place and then in use; may be done again after a crash."""
        self._put(candidate, self.folder / name)
        self.switch(name)

    def refuse(self, candidate: Path, name: str) -> Path:
        """Keep a version that is not to be used; returns where."""
        place = self.folder / _REFUSED / name
        place.parent.mkdir(exist_ok=True)
        self._put(candidate, place)
        return place

    def switch(self, name: str) -> None:
        """Make `current` lead to a version."""
        link, new = self.folder / "current", self.folder / ".current.new"
        new.unlink(missing_ok=True)
        os.symlink(name, new)
        os.replace(new, link)
        sync_folder(self.folder)

    def rollback(self, to: str | None = None) -> tuple[str | None, str]:
        """Put an older version in use, the one before the current if none is named: (what was in use, what is)."""
        names = self.names()
        link = self.folder / "current"
        before = os.readlink(link) if link.is_symlink() else None
        if to is None:
            older = [name for name in names if before not in names or name < before]
            if not older:
                raise InputError(f"{self.folder}: no version before {before or 'any'}; there are {_some(names)}")
            to = older[-1]
        if to not in names:
            raise UsageError(f"{self.folder}: no version {to}; there are {_some(names)}")
        if not self.model(to).is_file():
            raise DamagedError(f"{self.model(to)}: no such file; choose another version of {_some(names)}")
        self.switch(to)
        return before, to

    def prune(self, keep: int) -> list[str]:
        """Remove all but the newest versions and the current one; of refused ones as many are kept."""
        current, names, refused = self.current(), self.names(), self._refused()
        old = [name for name in names[:-keep] if name != current]
        for place in [self.folder / name for name in old] + [self.folder / _REFUSED / n for n in refused[:-keep]]:
            gone = self.folder / f".gone-{place.name}"
            os.rename(place, gone)  # so that no half of it can be taken for a version
            shutil.rmtree(gone)
        for left in self.folder.glob(".gone-*"):
            shutil.rmtree(left)
        return old

    def _refused(self) -> list[str]:
        place = self.folder / _REFUSED
        return sorted(entry.name for entry in os.scandir(place) if is_version(entry.name)) if place.is_dir() else []

    def _put(self, candidate: Path, place: Path) -> None:
        if not candidate.exists() and place.exists():
            return  # before a crash
        if not candidate.exists():
            raise DamagedError(f"{candidate}: no such folder; remove {candidate.parent} to begin anew")
        for path in candidate.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        sync_folder(candidate)
        os.rename(candidate, place)
        sync_folder(place.parent)


def _some(names: list[str]) -> str:
    return ", ".join(names[-5:]) or "none"
