"""What a run is going to do, and what it takes, found out before anything is done."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ooc_pegasos import manifest
from ooc_pegasos.describe import printable
from ooc_pegasos.errors import InputError
from ooc_pegasos.files import writing_errors
from ooc_pegasos.growth import expired_parts
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.space import Space, refuse_too_little, space_for
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.manifest import Manifest
from ooc_pegasos.provenance import changed_sources, looks_unchanged, sources_by_name
from ooc_pegasos.readers import opening, sources
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.scoring import files_for, refuse_other_recipe

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Plan:
    """Files to append, what expires, what the new model is compared with, and the space that is needed."""

    new: list[str]
    known: int
    """Files that are in the store already."""
    too_old: int
    expire_before_ns: int | None
    rows_before: int
    rows_expiring: int
    champion: str | None
    golden: int
    """How many sets."""
    space: list[Space]

    def lines(self) -> list[str]:
        """For people."""
        told = [f"append {_files_words(len(self.new))} ({self.known:,} in the store already)"]
        told += [f"  {printable(name)}" for name in self.new[:20]]
        if len(self.new) > 20:
            told.append(f"  and {len(self.new) - 20:,} more")
        if self.too_old:
            told.append(f"leave out {_files_words(self.too_old)}, older than the window")
        if self.expire_before_ns is not None:
            told.append(f"take {self.rows_expiring:,} of {self.rows_before:,} rows out of the store: they are older")
        on = f"on the rows kept apart and {self.golden} golden set{'s' if self.golden != 1 else ''}"
        if self.champion is None:
            told.append(f"train and measure {on}; no model is in use yet")
        else:
            told.append(f"train, unless nothing has changed, and compare with version {self.champion} {on}")
        return told + [one.line() for one in self.space]


def plan(job: Job, now: datetime) -> Plan:
    """Look at the inputs, the store, the model in use and the disk, and refuse now what would fail later."""
    with writing_errors(Path(job.store)):
        return _plan(job, now)


def _plan(job: Job, now: datetime) -> Plan:
    target = Path(job.store)
    made = manifest.read(target) if (target / manifest.FILE_NAME).exists() else None
    champion = Versions(job.models).current()
    before = None
    if job.expire_days is not None:
        before = int(now.timestamp() * 10**9) - int(job.expire_days * _DAY_NS)
    new, known, too_old = _sorted(job, made, before)
    expiring = 0
    if made and before is not None:
        number = expired_parts(made, before)
        if number == len(made.all_parts()) and not new:
            raise InputError(f"{target}: all its rows are older than expire_days, and nothing new has come")
        expiring = sum(part.rows for part in made.all_parts()[:number])
    if made is None and not new:
        raise InputError(f"{job.inputs[0]}: no new file, and no store at {target}; check the inputs of the job")
    _look_at_golden_sets(job, made)
    _look_at_places(job)
    spaces = space_for(job, made, new, looking=champion is None or job.retune)
    refuse_too_little(spaces, job.reserve)
    rows = made.rows if made else 0
    return Plan(new, known, too_old, before, rows, expiring, champion, len(job.golden), spaces)


def _sorted(job: Job, made: Manifest | None, before: int | None) -> tuple[list[str], int, int]:
    """(files to append, how many are known, how many are too old)."""
    for problem in changed_sources(made) if made else []:
        raise InputError(f"{problem}, so its old rows are in it; give new data a new name, or make the store anew")
    by_name = sources_by_name(made) if made else {}
    by_size: dict[int, set[str]] = {}
    for source in made.sources if made else []:
        by_size.setdefault(source.size, set()).add(source.xxh64)
    new, known, too_old = [], 0, 0
    for name in _files(job):
        stamp = opening.stamp_of(name)
        if before is not None and 0 < stamp.modified_ns < before:  # 0: not known, of some URLs
            too_old += 1
            continue
        before_it = by_name.get(sources.recorded(name))
        if before_it and looks_unchanged(before_it, name, stamp):
            known += 1
        elif stamp.size in by_size and opening.hash_of(name) in by_size[stamp.size]:
            known += 1  # moved, or touched
        elif before_it:
            problem = "changed after it was appended, so its old rows are in the store"
            raise InputError(f"{name}: {problem}; give new data a new name, or make the store anew")
        else:
            new.append(name)
    return new, known, too_old


def _files(job: Job) -> list[str]:
    """What the patterns name; those that name nothing yet do no harm."""
    names: list[str] = []
    for pattern in job.inputs:
        is_pattern = glob.has_magic(pattern) and not is_remote(pattern) and not os.path.exists(pattern)
        found = glob.glob(pattern, recursive=True) if is_pattern else [pattern]
        for name in found:
            if not is_remote(name) and os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)):
                raise InputError(f"{name}: neither a file nor a folder, so it cannot be known again; name files")
        if found:
            names += opening.find([pattern], job.convert.format)[0]
    return list(dict.fromkeys(names))


def _look_at_golden_sets(job: Job, made: Manifest | None) -> None:
    """Refuse those that are not there, and stores that the model cannot be measured on."""
    for golden in job.golden:
        is_store = (Path(golden) / manifest.FILE_NAME).exists()
        if is_store and made:
            refuse_other_recipe(golden, manifest.read(Path(golden)).recipe, made.recipe)
        elif made:
            files_for(golden, made.recipe)
        elif not is_store:
            opening.find([golden])


def _look_at_places(job: Job) -> None:
    """Refuse a log and metrics that have no folder to be in."""
    for place in (job.log, job.metrics):
        if place is not None and not Path(place).parent.is_dir():
            raise InputError(f"{Path(place).parent}: no such folder; create it, or write {Path(place).name} elsewhere")


def _files_words(number: int) -> str:
    return f"{number:,} file{'s' if number != 1 else ''}"
