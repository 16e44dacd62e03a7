"""What a run is going to do, and what it takes, found out before anything is done."""

from __future__ import annotations

import dataclasses
import glob
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ooc_pegasos import manifest
from ooc_pegasos.config import VECTORS
from ooc_pegasos.describe import size_text
from ooc_pegasos.errors import InputError
from ooc_pegasos.growth import expired_parts
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.manifest import Manifest, SourceInfo
from ooc_pegasos.readers import opening, sources
from ooc_pegasos.readers.remote import is_remote

_DAY_NS = 86_400 * 10**9
_CHUNKS = 0.6
"""Bytes of chunks for each byte of rows while they are shuffled, at most, more or less."""


@dataclass(frozen=True)
class Plan:
    """Files to append, what expires, and the space that is needed."""

    new: list[str]
    known: int
    """Files that are in the store already."""
    too_old: int
    expire_before_ns: int | None
    rows_before: int
    rows_expiring: int
    bytes_needed: int
    bytes_free: int

    def lines(self) -> list[str]:
        """For people."""
        told = [f"append {len(self.new):,} files ({self.known:,} are in the store already)"]
        told += [f"  {name}" for name in self.new[:20]]
        if len(self.new) > 20:
            told.append(f"  and {len(self.new) - 20:,} more")
        if self.too_old:
            told.append(f"leave out {self.too_old:,} files that are older than the window")
        if self.expire_before_ns is not None:
            told.append(f"take {self.rows_expiring:,} of {self.rows_before:,} rows out of the store: they are older")
        told.append(f"space: about {size_text(self.bytes_needed)} of {size_text(self.bytes_free)} that are free")
        return told


def plan(job: Job, now: datetime) -> Plan:
    """Look at the inputs, the store and the disk."""
    target = Path(job.store)
    made = manifest.read(target) if (target / manifest.FILE_NAME).exists() else None
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
    needed = _bytes_needed(job, made, new)
    there = next(folder for folder in (target, *target.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    found = Plan(new, known, too_old, before, made.rows if made else 0, expiring, needed, free)
    if needed + job.reserve > free:
        raise InputError(
            f"{there}: the run needs about {size_text(needed)} and {size_text(job.reserve)} are to stay free, but "
            f"{size_text(free)} are; free some space, or set reserve in the job"
        )
    return found


def _sorted(job: Job, made: Manifest | None, before: int | None) -> tuple[list[str], int, int]:
    """(files to append, how many are known, how many are too old)."""
    by_name: dict[str, SourceInfo] = {}
    by_size: dict[int, set[str]] = {}
    for source in made.sources if made else []:
        by_name[source.name] = source
        by_size.setdefault(source.size, set()).add(source.xxh64)
    new, known, too_old = [], 0, 0
    for name in _files(job):
        stamp = sources.stamp_of(name)
        if before is not None and stamp.modified_ns < before:
            too_old += 1
            continue
        before_it = by_name.get(sources.spoken(name))
        if before_it and (before_it.size, before_it.modified_ns) == (stamp.size, stamp.modified_ns):
            known += 1
        elif stamp.size in by_size and sources.hash_of(name) in by_size[stamp.size]:
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
        if not is_pattern or glob.glob(pattern, recursive=True):
            names += opening.find([pattern], job.convert.format)[0]
    return list(dict.fromkeys(names))


def _bytes_needed(job: Job, made: Manifest | None, new: list[str]) -> int:
    """Rows while they are shuffled, their chunks, and what training keeps on the disk."""
    rows = 0.0
    if new:
        if made:
            recipe = made.recipe
        else:
            kind = opening.find(new, job.convert.format)[1]
            recipe = opening.new_recipe(dataclasses.replace(job.convert, format=kind), new, lambda _remark: None)
        rows = sum(opening.bytes_of_rows(name, sources.stamp_of(name).size, recipe) for name in new)
    features = made.features if made else 1 << 20
    return int(rows * (1 + _CHUNKS)) + VECTORS * 8 * features
