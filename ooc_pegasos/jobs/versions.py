"""The folder of models: a folder for each version, and `current`, a link to the version in use, switched last."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.util.files import published_error, read_file, remove_folder, sync_file, sync_folder

MODEL, RECORD = "model", "run.json"
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", re.ASCII)
FORM = "%Y-%m-%dT%H-%M-%S"
_REFUSED = "refused"


def is_version(name: str) -> bool:
    """True if the name has the form of a version's name."""
    try:
        return bool(_NAME.fullmatch(name)) and datetime.strptime(name, FORM).year < datetime.max.year
    except ValueError:
        return False


class Versions:
    """The versions in a folder. Callers that change them hold the lock."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.folder / ".lock"

    @property
    def work(self) -> Path:
        """The folder of the current run."""
        return self.folder / ".run"

    @property
    def records(self) -> Path:
        """The folder of the records of all runs."""
        return self.folder / "runs"

    def names(self) -> list[str]:
        """Return all versions, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_dir() and is_version(entry.name))

    def current(self, begun: str | None = None) -> str | None:
        """Return the version in use. `begun`: a version that may exist before the first link does."""
        link = self.folder / "current"
        try:
            name = os.readlink(link)
        except FileNotFoundError:
            lost = [name for name in self.names() if name != begun]
            if not lost:
                return None
            problem = f"no such link, though there are versions ({_some(lost)}), of which one was in use"
            advice = "put it in use again with 'oocpeg rollback --to', or move them away"
            raise CorruptFileError(f"{link}: {problem}; {advice}") from None
        except OSError as error:
            advice = "move it away, and put a version in its place with 'oocpeg rollback --to'"
            raise InputError(f"{link}: not a link to a version; {advice}") from error
        if not is_version(name) or not (self.folder / name / MODEL).is_file():
            advice = "put another version in its place with 'oocpeg rollback --to'"
            raise CorruptFileError(f"{link}: leads to {name!r}, where no model is; {advice}")
        return name

    def model(self, name: str) -> Path:
        """Return the model file of a version."""
        return self.folder / name / MODEL

    def new_name(self, now: datetime) -> str:
        """Return a name for a version of this time, after all others even if the clock was set back."""
        recorded = [name for name in map(_stem, self.records.glob("*.json")) if is_version(name)]
        taken = [*self.names(), *self._refused(), *recorded]
        if taken and now.strftime(FORM) <= max(taken):
            now = datetime.strptime(max(taken), FORM).replace(tzinfo=UTC) + timedelta(seconds=1)
        return now.strftime(FORM)

    def publish(self, candidate: Path, name: str) -> None:
        """Move a version to its final folder and put it in use; may be repeated after a crash."""
        self._put(candidate, self.folder / name)
        self.switch(name)

    def refuse(self, candidate: Path, name: str) -> Path:
        """Store a refused version; return its folder."""
        place = self.folder / _REFUSED / name
        place.parent.mkdir(exist_ok=True)
        self._put(candidate, place)
        return place

    def switch(self, name: str) -> None:
        """Make `current` a link to a version."""
        link, new = self.folder / "current", self.folder / ".current.new"
        if link.exists() and not link.is_symlink():
            raise InputError(f"{link}: not a link to a version; move it away, and try again")
        new.unlink(missing_ok=True)
        os.symlink(name, new)
        os.replace(new, link)
        try:
            sync_folder(self.folder)
        except OSError as error:
            raise published_error(link, error, "check the disk; a power failure may undo the change") from error

    def before(self, name: str) -> str | None:
        """Return the version that was in use when a version was made; None if there was none, or it is not known.

        The version made before may be another one, as that may have been rolled back.
        """
        try:
            found = json.loads(read_file(self.folder / name / RECORD))["champion"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) and is_version(found) else None

    def choose(self, to: str | None = None) -> tuple[str | None, str]:
        """Return the version in use, and the one to be used instead: `to`, or the version before."""
        names = self.names()
        link = self.folder / "current"
        was = os.readlink(link) if link.is_symlink() else None
        if to is None:
            to = self.before(was) if was in names else None
            if to not in names:
                problem = f"the version before {was} does not exist or is not known" if was else "none is in use"
                raise InputError(f"{self.folder}: {problem}; name one with {{to}}, of {_some(names)}")
        if to not in names:
            raise UsageError(f"{self.folder}: no version {to}; there are {_some(names)}")
        try:
            Model.load(self.model(to))
        except (InputError, CorruptFileError) as error:
            raise CorruptFileError(f"{error}; choose another version of {_some(names)}") from error
        return was, to

    def tried(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the record of each version, refused ones too; those without a record are left out."""
        places = [self.folder / name for name in self.names()]
        for place in [*places, *(self.folder / _REFUSED / name for name in self._refused())]:
            with suppress(OSError, ValueError, RecursionError):
                record = json.loads(read_file(place / RECORD))
                if isinstance(record, dict):
                    yield place.name, record

    def prune(self, keep: int) -> list[str]:
        """Remove old versions and as many refused ones; keep the current, those in use before it, and the newest.

        Versions that were in use have priority, because a rollback leads to them.
        """
        names, refused, kept = self.names(), self._refused(), list[str]()
        one = self.current()
        while one in names and one not in kept:
            kept.append(one)
            one = self.before(one)
        kept = [*kept, *(name for name in reversed(names) if name not in kept)][:keep]
        old = [name for name in names if name not in kept]
        for place in [self.folder / name for name in old] + [self.folder / _REFUSED / n for n in refused[:-keep]]:
            gone = self.folder / f".gone-{place.name}"
            os.rename(place, gone)  # a partly removed folder must not count as a version
        for left in self.folder.glob(".gone-*"):
            if not remove_folder(left):
                raise OSError(errno.ENOTEMPTY, f"{left}: not removed")
        return old

    def _refused(self) -> list[str]:
        place = self.folder / _REFUSED
        return sorted(entry.name for entry in os.scandir(place) if is_version(entry.name)) if place.is_dir() else []

    def _put(self, candidate: Path, place: Path) -> None:
        if not candidate.exists() and place.exists():
            return  # moved before a crash
        if not candidate.exists():
            raise CorruptFileError(f"{candidate}: no such folder; remove {candidate.parent} to begin anew")
        for path in candidate.iterdir():
            sync_file(path)
        sync_folder(candidate)
        os.rename(candidate, place)
        sync_folder(place.parent)


def _stem(path: Path) -> str:
    return path.stem


def _some(names: list[str]) -> str:
    return ", ".join(names[-5:]) or "none"
