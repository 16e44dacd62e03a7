"""How a store grows by rows appended and shrinks by rows that expire: what its manifest says then.

Rows are appended in parts, and expire part by part from the oldest on. `Manifest.first_row` counts the rows that have
expired, so that each row keeps its number, and with it its fold: rows kept apart once are kept apart ever after.
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
    """The rows of one and then those of the other, which was made to fit."""
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
    """What is left without the rows of the first parts."""
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
    """The manifest of some chunks that follow each other, whose rows keep their numbers."""
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
    """How many parts, from the first on, are of files that were all last changed before an instant."""
    ends, first = [], 0
    for part in made.all_parts():
        ends.append(made.sources[first : first + part.sources])
        first += part.sources
    old = takewhile(lambda files: all(f.modified_ns is not None and f.modified_ns < before_ns for f in files), ends)
    return sum(1 for _files in old)


def expire(target: Path, before_ns: int) -> int:
    """Take the parts that are older out of a store; returns how many rows they had."""
    scratch = Path(os.path.abspath(target) + ".unfinished")
    with writing_errors(target), locked(scratch / "lock", str(target)):
        made = manifest.read(target)
        number = expired_parts(made, before_ns)
        if number == len(made.all_parts()):
            raise InputError(f"{target}: all its rows are older than that; make a new store")
        left = without_first(made, number) if number else made
        if number:
            manifest.write(target, left)
        remove_strays(target, left)  # also of a run that was killed
        if os.listdir(scratch) == ["lock"]:
            remove_folder(scratch)
        return sum(part.rows for part in made.all_parts()[:number])


def remove_strays(target: Path, made: Manifest) -> list[Path]:
    """Remove the chunks, ids and vocabularies that a store does not name any more; returns what could not be removed.

    If somebody reads the store, who may be at those still, they stay until the next time.
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
    """True if a file is removed."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def statistics_of_all(parts: list[Part]) -> Statistics:
    """The statistics of all rows, from those of parts."""
    rows = sum(part.rows for part in parts)
    told = [(part.rows, part.statistics) for part in parts]
    weighted = any(one.max_weighted_square is not None for _rows, one in told)
    return Statistics(
        max(one.max_row_norm for _rows, one in told),
        sum(one.mean_row_norm * number for number, one in told) / rows,
        max(one.max_row_nonzeros for _rows, one in told),
        sum(one.empty_rows for _rows, one in told),
        max(one.rounding_error for _rows, one in told),
        sum(one.mean_weight * number for number, one in told) / rows,
        max(one.max_weight for _rows, one in told),
        max(one.largest_square for _rows, one in told) if weighted else None,
    )
