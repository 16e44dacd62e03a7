"""Plan of a run: its work and its needs, determined before anything is changed."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from ooc_pegasos.conversion.output_check import refuse_options
from ooc_pegasos.conversion.source_check import changed_sources, content_of, looks_unchanged, sources_by_name
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.jobs import gate, set_aside
from ooc_pegasos.jobs.disk_space import Space, refuse_too_little, space_for
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.reference_sets import check_reference_sets, refuse_trained_on
from ooc_pegasos.jobs.set_aside import SetAside
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.readers import registry, sources
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.store import manifest
from ooc_pegasos.store.append_expire import expired_parts
from ooc_pegasos.store.drop import full_name
from ooc_pegasos.store.manifest import Manifest
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.escaping import printable
from ooc_pegasos.util.files import writing_errors

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Plan:
    """Files to append, rows that expire, the model to compare with, and the space needed."""

    new: list[str]
    known: int
    """Number of files that are in the store already."""
    doubled: int
    """Number of files with the same content as another of the new files."""
    too_old: int
    unmatched: list[str]
    """Patterns that match no file."""
    expire_before_ns: int | None
    rows_before: int
    expired_before: int
    rejected_before: int
    rows_expiring: int
    champion: str | None
    golden_sets: int
    """Number of reference sets."""
    space: list[Space]
    unfinished: str | None = None
    """The interrupted run that is resumed."""
    set_aside: list[SetAside] = field(default_factory=list)
    """Inputs that are left out because the model trained with them was refused."""

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        lines = []
        if self.unfinished:
            lines.append(f"resume run {self.unfinished}, which was interrupted; this was its plan when it began")
        lines += [f"note: {printable(pattern)}: no such file" for pattern in self.unmatched]
        lines.append(f"append {_files_words(len(self.new))} ({self.known:,} in the store already)")
        lines += [f"  {printable(name)}" for name in self.new[:20]]
        if len(self.new) > 20:
            lines.append(f"  and {len(self.new) - 20:,} more")
        if self.doubled:
            lines.append(f"leave out {_files_words(self.doubled)}: another of them has the same content")
        if self.too_old:
            lines.append(f"leave out {_files_words(self.too_old)}, older than the window")
        if self.set_aside:
            lines.append(f"leave out {_files_words(len(self.set_aside))} set aside; --retry FILE appends one again")
            lines += [f"  {one.line()}" for one in self.set_aside]
        if self.expire_before_ns is not None:
            lines.append(f"remove {self.rows_expiring:,} of {self.rows_before:,} rows from the store: they are older")
        on = f"on the holdout rows and {self.golden_sets} reference set{'s' if self.golden_sets != 1 else ''}"
        if self.champion is None:
            lines.append(f"train and measure {on}; no model is in use yet")
        else:
            lines.append(f"train, unless nothing has changed, and compare with version {self.champion} {on}")
        return lines + [one.line() for one in self.space]


def plan(job: Job, now: datetime, retry: Sequence[str] = ()) -> Plan:
    """Check the inputs, the store, the model in use and the disk, and refuse a run that would fail later.

    `retry`: files set aside that are appended all the same.
    """
    with writing_errors(Path(job.store)):
        return _plan(job, now, retry)


def _plan(job: Job, now: datetime, retry: Sequence[str]) -> Plan:
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
    files, are_tables, unmatched = _files(job)
    sifted = _sift(files, are_tables, made, before, set_aside.load(Path(job.models)))
    left_out = _left_out(sifted.set_aside, retry)
    new, too_old = [name for name in sifted.new if name not in left_out], sifted.too_old
    expiring = 0
    if made and before is not None:
        number = expired_parts(made, before)
        if number == len(made.all_parts()) and not new:
            raise InputError(f"{target}: all its rows are older than expire_days, and there are no new files")
        expiring = sum(part.rows for part in made.all_parts()[:number])
    if made is None and not new:
        old = f"; {_files_words(too_old)} left out, older than expire_days" if too_old else ""
        old += f"; {_files_words(len(left_out))} set aside, which {{retry}} appends again" if left_out else ""
        raise InputError(f"{job.inputs[0]}: no new file, and no store at {target}{old}; check the inputs of the job")
    refuse_trained_on(job, new, made)
    check_reference_sets(job, Store.open(target) if made else None)
    _check_folders(job)
    spaces = space_for(job, made, new, looking=champion is None or job.retune)
    refuse_too_little(spaces, job.reserve)
    at_hand = (made.rows, made.first_row, made.rejected) if made else (0, 0, 0)
    found = (new, sifted.known, sifted.doubled, too_old, unmatched)
    return Plan(*found, before, *at_hand, expiring, champion, len(job.golden), spaces, set_aside=[*left_out.values()])


def refuse_changed_sources(made: Manifest) -> None:
    """Refuse a store with rows of a file that has changed since."""
    for problem in changed_sources(made):
        raise InputError(f"{problem}, so the store has its old rows; give new data a new name, or make the store again")


@dataclass
class _Sifted:
    """Files to append, and the numbers of files that are in the store already, duplicated, or too old.

    `set_aside`: the files to append that were set aside and have not changed since.
    """

    new: list[str] = field(default_factory=list)
    known: int = 0
    doubled: int = 0
    too_old: int = 0
    set_aside: dict[str, SetAside] = field(default_factory=dict)


def _left_out(found: dict[str, SetAside], retry: Sequence[str]) -> dict[str, SetAside]:
    """Return the files set aside that are not to be appended again; `retry` has their present or their former names."""
    names = {sources.manifest_name(name): name for name in found}
    names |= {one.source.name: name for name, one in found.items() if one.source.name not in names}
    left = dict(found)
    for given in retry:
        name = full_name(given, set(names))
        if name not in names:
            some = f"there are {', '.join(sorted(map(printable, names))[-5:])}" if names else "there is none"
            raise UsageError(f"{{retry={given}}}: no input of the job that is set aside; {some}")
        left.pop(names[name], None)
    return left


class _Contents:
    """Contents of files, compared by size, then by samples, then completely, reading no more than needed.

    Folders of tables named `key=value` are columns, so the same content in folders with other values is different data.
    """

    def __init__(self, of_tables: bool) -> None:
        self._of_tables = of_tables
        self._known: dict[tuple[int, tuple[str, ...]], dict[str | None, list[tuple[str, Callable[[], str]]]]] = {}

    def add(self, name: str, size: int, samples: str | None, digest: Callable[[], str]) -> None:
        """Add a file; its digest is computed when needed."""
        self._known.setdefault(self._cheap_key(name, size), {}).setdefault(samples, []).append((name, digest))

    def find(self, name: str, size: int) -> str | None:
        """Return the name of an added file with the same content, or None."""
        alike = self._known.get(self._cheap_key(name, size))
        if alike is None:
            return None
        samples = sources.samples_of(name)  # None on either side: not known, for inputs that are not local files
        maybe = [samples, None] if samples else [*alike]
        known = (pair for one in maybe for pair in alike.get(one, []))
        return next((other for other, digest in known if digest() == content_of(name)), None)

    def _cheap_key(self, name: str, size: int) -> tuple[int, tuple[str, ...]]:
        folders = Path(name).parts[:-1] if self._of_tables else ()
        return size, tuple(folder for folder in folders if "=" in folder)


def _sift(
    files: list[str], are_tables: bool, made: Manifest | None, before: int | None, aside: list[SetAside]
) -> _Sifted:
    by_name = sources_by_name(made) if made else {}
    aside_by_name = {one.source.name: one for one in aside}
    stored, refused, found, sifted = (*(_Contents(are_tables) for _ in range(3)), _Sifted())
    for contents, some in ((stored, made.sources if made else []), (refused, [one.source for one in aside])):
        for source in some:
            contents.add(source.name, source.size, source.samples, partial(getattr, source, "xxh64"))
    for name in files:
        stamp = registry.stamp_of(name)
        has_time = stamp.modified_ns or not is_remote(name)  # some URLs have no time
        if before is not None and has_time and stamp.modified_ns < before:
            sifted.too_old += 1
            continue
        before_it = by_name.get(sources.manifest_name(name))
        if (before_it and looks_unchanged(before_it, name, stamp)) or stored.find(name, stamp.size):
            sifted.known += 1  # also if moved or touched
        elif before_it:
            problem = "changed after it was appended, so the store has its old rows"
            raise InputError(f"{name}: {problem}; give new data a new name, or make the store again")
        elif found.find(name, stamp.size):
            sifted.doubled += 1  # a later run would find it in the store
        else:
            one = aside_by_name.get(sources.manifest_name(name))
            former = one and one.source.name if one and looks_unchanged(one.source, name, stamp) else None
            former = former or refused.find(name, stamp.size)
            if former:
                sifted.set_aside[name] = aside_by_name[former]
            sifted.new.append(name)
            found.add(name, stamp.size, sources.samples_of(name), partial(content_of, name))
    return sifted


def _files(job: Job) -> tuple[list[str], bool, list[str]]:
    """Return the files that the patterns match, True if they are tables, and the patterns that match no file."""
    names, kinds, unmatched = list[str](), set[str](), list[str]()
    for pattern in job.inputs:
        is_pattern = glob.has_magic(pattern) and not is_remote(pattern) and not os.path.exists(pattern)
        found = glob.glob(pattern, recursive=True) if is_pattern else [pattern]
        for name in found:
            if not is_remote(name) and os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)):
                raise InputError(f"{name}: neither a file nor a folder, so later runs cannot recognise it; name files")
        if found:
            some, kind = registry.find([pattern], job.convert.format)
            names += some
            kinds.add(kind)
        else:
            unmatched.append(pattern)
    return list(dict.fromkeys(names)), any(registry.format_of(kind).has_columns for kind in kinds), unmatched


def _check_folders(job: Job) -> None:
    """Refuse a log or metrics file whose folder does not exist."""
    for place in (job.log, job.metrics):
        if place is not None and not Path(place).parent.is_dir():
            raise InputError(f"{Path(place).parent}: no such folder; create it, or write {Path(place).name} elsewhere")


def _files_words(number: int) -> str:
    return f"{number:,} file{'s' if number != 1 else ''}"
