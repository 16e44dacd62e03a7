"""Manifests of stores to which rows were appended and from which rows have expired.

Rows are appended in parts, and expire part by part, the oldest first. `Manifest.first_row` counts the expired rows, so
that each row keeps its number and therefore its fold: a holdout row remains a holdout row.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from ooc_pegasos.errors import InputError
from ooc_pegasos.store import manifest
from ooc_pegasos.store.manifest import Manifest, Part, Statistics
from ooc_pegasos.util.files import remove_folder, writing_errors
from ooc_pegasos.util.locks import locked, unused


def joined(base: Manifest, new: Manifest) -> Manifest:
    """Return the manifest of the rows of `base` followed by those of `new`."""
    parts = [*base.all_parts(), *new.all_parts()]
    counts = [a + b for a, b in zip(base.labels.counts, new.labels.counts, strict=True)]
    return dataclasses.replace(
        new,
        rows=base.rows + new.rows,
        nonzeros=base.nonzeros + new.nonzeros,
        labels=dataclasses.replace(new.labels, counts=counts),
        statistics=statistics_of_all(parts),
        shuffle_seed=new.shuffle_seed if base.shuffle_seed is not None else None,
        rejected=base.rejected + new.rejected,
        chunks=[*base.chunks, *new.chunks],
        sources=[*base.sources, *new.sources],
        parts=parts,
        first_row=base.first_row,
    )


def without_first(made: Manifest, number: int) -> Manifest:
    """Return the manifest without the rows of the first `number` parts."""
    gone, parts = made.all_parts()[:number], made.all_parts()[number:]
    chunks = made.chunks[sum(part.chunks for part in gone) :]
    counts = [sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
    rows = sum(part.rows for part in gone)
    return dataclasses.replace(
        made,
        rows=made.rows - rows,
        nonzeros=sum(chunk.nonzeros for chunk in chunks),
        labels=dataclasses.replace(made.labels, counts=counts),
        statistics=statistics_of_all(parts),
        chunks=chunks,
        sources=made.sources[sum(part.sources for part in gone) :],
        parts=parts,
        first_row=made.first_row + rows,
    )


def only(made: Manifest, first: int, end: int) -> Manifest:
    """Return the manifest of consecutive chunks, whose rows keep their numbers."""
    chunks = made.chunks[first:end]
    counts = [sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
    return dataclasses.replace(
        made,
        rows=sum(chunk.rows for chunk in chunks),
        nonzeros=sum(chunk.nonzeros for chunk in chunks),
        labels=dataclasses.replace(made.labels, counts=counts),
        chunks=chunks,
        parts=[],
        first_row=made.first_row + sum(chunk.rows for chunk in made.chunks[:first]),
    )


def expired_parts(made: Manifest, before_ns: int) -> int:
    """Return the number of leading parts whose source files were all last changed before `before_ns`."""
    ends, first = [], 0
    for part in made.all_parts():
        ends.append(made.sources[first : first + part.sources])
        first += part.sources
    old = takewhile(lambda files: all(f.modified_ns is not None and f.modified_ns < before_ns for f in files), ends)
    return sum(1 for _files in old)


def expire(target: Path, before_ns: int) -> int:
    """Remove the expired parts from a store; return the number of their rows."""
    scratch = Path(os.path.abspath(target) + ".unfinished")
    with writing_errors(target), locked(scratch / "lock", str(target)):
        made = manifest.read(target)
        number = expired_parts(made, before_ns)
        test = None if made.split and made.split.is_given else manifest.with_test_rows(target, made)
        for place, one in [(target, made), *([(test, manifest.read(test))] if test else [])]:
            if not any(part.rows for part in one.all_parts()[expired_parts(one, before_ns) :]):
                raise InputError(f"{place}: all its rows are older than that; make a new store")
        left = without_first(made, number) if number else made
        if number:
            manifest.write(target, left)
        remove_strays(target, left)  # also those that a killed process has left
        if os.listdir(scratch) == ["lock"]:
            remove_folder(scratch)
        if test:
            expire(test, before_ns)
        return sum(part.rows for part in made.all_parts()[:number])


def remove_strays(target: Path, made: Manifest) -> list[Path]:
    """Remove files of chunks, ids and vocabularies that the manifest does not name; return those that remain.

    While a process reads the store, the files remain, because the process may read the old manifest.
    """
    keep = {file for chunk in made.chunks for file in chunk.files}
    if made.vocabulary:
        keep.add(made.vocabulary.file)
    left = [target / "*.arrow"]
    with suppress(OSError), unused(target) as free:
        found = [path for path in target.glob("*.arrow") if path.name.startswith(("chunk-", "ids-", "features-"))]
        left = [path for path in found if free and path.name not in keep and not _is_removed(path)]
    return left


def _is_removed(path: Path) -> bool:
    """Remove a file; return True if that succeeded."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def statistics_of_all(parts: list[Part]) -> Statistics:
    """Return the statistics of all rows from those of the parts."""
    rows = sum(part.rows for part in parts)
    known = [(part.rows, part.statistics) for part in parts if part.rows]
    weighted = any(one.max_weighted_square is not None for _rows, one in known)
    return Statistics(
        max(one.max_row_norm for _rows, one in known),
        sum(one.mean_row_norm * number for number, one in known) / rows,
        max(one.max_row_nonzeros for _rows, one in known),
        sum(one.empty_rows for _rows, one in known),
        max(one.rounding_error for _rows, one in known),
        sum(one.mean_weight * number for number, one in known) / rows,
        max(one.max_weight for _rows, one in known),
        max(one.largest_square for _rows, one in known) if weighted else None,
    )
