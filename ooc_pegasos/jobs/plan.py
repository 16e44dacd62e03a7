"""What a run is going to do, and what it takes, found out before anything is done."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from ooc_pegasos import manifest
from ooc_pegasos.describe import printable
from ooc_pegasos.errors import InputError
from ooc_pegasos.existing import refuse_options
from ooc_pegasos.files import writing_errors
from ooc_pegasos.growth import expired_parts
from ooc_pegasos.jobs import gate
from ooc_pegasos.jobs.golden import look_at_golden_sets, refuse_trained_on
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.space import Space, refuse_too_little, space_for
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.manifest import Manifest
from ooc_pegasos.provenance import changed_sources, looks_unchanged, sources_by_name
from ooc_pegasos.readers import opening, sources
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.store import Store

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Plan:
    """Files to append, what expires, what the new model is compared with, and the space that is needed."""

    new: list[str]
    known: int
    """Files that are in the store already."""
    doubled: int
    """Files whose content another of them has."""
    too_old: int
    unmatched: list[str]
    """Patterns that name nothing."""
    expire_before_ns: int | None
    rows_before: int
    expired_before: int
    rejected_before: int
    rows_expiring: int
    champion: str | None
    golden: int
    """How many sets."""
    space: list[Space]
    unfinished: str | None = None
    """A run that was interrupted and goes on with this."""

    def lines(self) -> list[str]:
        """For people."""
        told = []
        if self.unfinished:
            told.append(f"go on with run {self.unfinished}, which was interrupted; this is what it found when it began")
        told += [f"note: {printable(pattern)}: no such file" for pattern in self.unmatched]
        told.append(f"append {_files_words(len(self.new))} ({self.known:,} in the store already)")
        told += [f"  {printable(name)}" for name in self.new[:20]]
        if len(self.new) > 20:
            told.append(f"  and {len(self.new) - 20:,} more")
        if self.doubled:
            told.append(f"leave out {_files_words(self.doubled)}: another of them has the same content")
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
    if made:
        refuse_options(made, job.convert)
    champion = Versions(job.models).current()
    if made:
        gate.refuse_unfit(job.gate, made.labels)
        refuse_changed_sources(made)
    before = None
    if job.expire_days is not None:
        before = int(now.timestamp() * 10**9) - int(job.expire_days * _DAY_NS)
    files, unmatched = _files(job)
    new, known, doubled, too_old = _sorted(files, made, before)
    expiring = 0
    if made and before is not None:
        number = expired_parts(made, before)
        if number == len(made.all_parts()) and not new:
            raise InputError(f"{target}: all its rows are older than expire_days, and nothing new has come")
        expiring = sum(part.rows for part in made.all_parts()[:number])
    if made is None and not new:
        old = f"; {_files_words(too_old)} left out, older than expire_days" if too_old else ""
        raise InputError(f"{job.inputs[0]}: no new file, and no store at {target}{old}; check the inputs of the job")
    refuse_trained_on(job, new, made)
    look_at_golden_sets(job, Store.open(target) if made else None)
    _look_at_places(job)
    spaces = space_for(job, made, new, looking=champion is None or job.retune)
    refuse_too_little(spaces, job.reserve)
    at_hand = (made.rows, made.first_row, made.rejected) if made else (0, 0, 0)
    return Plan(new, known, doubled, too_old, unmatched, before, *at_hand, expiring, champion, len(job.golden), spaces)


def refuse_changed_sources(made: Manifest) -> None:
    """Refuse a store that has rows of a file as it was before it changed."""
    for problem in changed_sources(made):
        raise InputError(f"{problem}, so its old rows are in it; give new data a new name, or make the store anew")


def _sorted(files: list[str], made: Manifest | None, before: int | None) -> tuple[list[str], int, int, int]:
    """(files to append, how many are known, how many are like another of them, how many are too old)."""
    by_name = sources_by_name(made) if made else {}
    by_size: dict[int, set[str]] = {}
    for source in made.sources if made else []:
        by_size.setdefault(source.size, set()).add(source.xxh64)
    new, known, doubled, too_old = list[str](), 0, 0, 0
    new_by_size: dict[int, list[str]] = {}
    content = cache(opening.hash_of)
    for name in files:
        stamp = opening.stamp_of(name)
        has_time = stamp.modified_ns or not is_remote(name)  # some URLs have none
        if before is not None and has_time and stamp.modified_ns < before:
            too_old += 1
            continue
        before_it = by_name.get(sources.recorded(name))
        if before_it and looks_unchanged(before_it, name, stamp):
            known += 1
        elif stamp.size in by_size and content(name) in by_size[stamp.size]:
            known += 1  # moved, or touched
        elif before_it:
            problem = "changed after it was appended, so its old rows are in the store"
            raise InputError(f"{name}: {problem}; give new data a new name, or make the store anew")
        elif stamp.size in new_by_size and content(name) in map(content, new_by_size[stamp.size]):
            doubled += 1  # as it would be known if it came tomorrow
        else:
            new.append(name)
            new_by_size.setdefault(stamp.size, []).append(name)
    return new, known, doubled, too_old


def _files(job: Job) -> tuple[list[str], list[str]]:
    """(what the patterns name, the patterns that name nothing), which does no harm."""
    names, unmatched = list[str](), list[str]()
    for pattern in job.inputs:
        is_pattern = glob.has_magic(pattern) and not is_remote(pattern) and not os.path.exists(pattern)
        found = glob.glob(pattern, recursive=True) if is_pattern else [pattern]
        for name in found:
            if not is_remote(name) and os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)):
                raise InputError(f"{name}: neither a file nor a folder, so it cannot be known again; name files")
        if found:
            names += opening.find([pattern], job.convert.format)[0]
        else:
            unmatched.append(pattern)
    return list(dict.fromkeys(names)), unmatched


def _look_at_places(job: Job) -> None:
    """Refuse a log and metrics that have no folder to be in."""
    for place in (job.log, job.metrics):
        if place is not None and not Path(place).parent.is_dir():
            raise InputError(f"{Path(place).parent}: no such folder; create it, or write {Path(place).name} elsewhere")


def _files_words(number: int) -> str:
    return f"{number:,} file{'s' if number != 1 else ''}"
