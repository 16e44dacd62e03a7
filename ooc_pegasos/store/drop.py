"""Removal of the rows of some source files from a store, as if they had never been appended."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.store import manifest
from ooc_pegasos.store.append_expire import remove_strays, statistics_of_all
from ooc_pegasos.store.manifest import Manifest, Part, SourceInfo
from ooc_pegasos.store.store import REJECTED_FILE
from ooc_pegasos.util import json_checksum
from ooc_pegasos.util.files import (
    published_error,
    read_file,
    remove_folder,
    sync_folder,
    write_atomically,
    writing_errors,
)
from ooc_pegasos.util.locks import locked

_SHOWN = 5
_BEGUN = "drop.json"
"""The file that records, until all files are removed, which sources are dropped."""


@dataclass(frozen=True)
class Dropped:
    """Numbers of rows that were removed, and of those that are left."""

    rows: int
    left: int


def drop(target: str | Path, names: Sequence[str], note: Callable[[str], None] = lambda _text: None) -> Dropped:
    """Remove the rows of the sources of these names, also from the test rows of the store.

    Rows of one conversion are in random order, so all files of a conversion are dropped together. The manifest is
    replaced at once, so that a crash leaves the old or the new store. The remaining rows, their order, and thereby the
    models trained on them, are those of a store to which the others were never appended; its number of features stays.
    """
    target = Path(target)
    made = manifest.read(target)
    test = manifest.with_test_rows(target, made)
    if test is None or (made.split and made.split.is_given):  # test rows of other sources
        return _drop(target, names, note)
    known = manifest.read(test)
    with suppress(UnknownSourceError):  # before anything is dropped; an interrupted process may have dropped them
        _chosen_parts(test, known, {full_name(name, {one.name for one in known.sources}) for name in names})
    try:
        first = _drop(target, names, note)
    except UnknownSourceError:  # an interrupted process may have dropped them from the first store
        return Dropped(_drop(test, names, note).rows, made.rows)
    return Dropped(first.rows + _drop(test, names, note).rows, first.left)


class UnknownSourceError(UsageError):
    """A name that is not among the sources of a store."""


def _drop(target: Path, names: Sequence[str], note: Callable[[str], None]) -> Dropped:
    scratch = Path(os.path.abspath(target) + ".unfinished")
    with writing_errors(target), locked(scratch / "lock", str(target)):
        made, begun = manifest.read(target), scratch / _BEGUN
        known = {source.name for source in made.sources}
        wanted = {full_name(name, known) for name in names}
        rows = 0 if wanted & known else _rows_dropped_before(begun, wanted)
        if not rows:
            left = _without(made, _chosen_parts(target, made, wanted))
            rows = made.rows - left.rows
            write_atomically(begun, json_checksum.encode({"names": sorted(wanted), "rows": rows}))
            sync_folder(scratch.parent)
        else:
            left = made
        try:
            if left is not made:
                manifest.write(target, left)
            _keep_rejected_of(target, left)
            for path in remove_strays(target, left):
                note(f"{path}: could not be removed; it is not part of the store any more")
            begun.unlink()
        except OSError as error:
            if not _is_in_place(target, left):
                raise
            raise published_error(target, error, "run the same command again to finish") from error
        if all(name == "lock" or name.startswith(".lock.") for name in os.listdir(scratch)):  # no unfinished conversion
            remove_folder(scratch)
        return Dropped(rows, left.rows)


def _is_in_place(target: Path, made: Manifest) -> bool:
    """True if a store has this manifest."""
    with suppress(OSError):
        return read_file(target / manifest.FILE_NAME) == manifest.encode(made)
    return False


def _rows_dropped_before(begun: Path, wanted: set[str]) -> int:
    """Return the number of rows that an interrupted process has dropped with these sources; 0 if there was none."""
    try:
        found = json_checksum.decode(read_file(begun))
        return int(found["rows"]) if set(found["names"]) == wanted else 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _sources_of_parts(made: Manifest) -> Iterator[tuple[Part, list[SourceInfo]]]:
    """Yield the parts of a store with their sources."""
    first = 0
    for part in made.all_parts():
        yield part, made.sources[first : first + part.sources]
        first += part.sources


def _chosen_parts(target: Path, made: Manifest, wanted: set[str]) -> set[int]:
    """Return the numbers of the parts that consist of the wanted sources."""
    known = {source.name for source in made.sources}
    missing = sorted(wanted - known)
    if missing:
        shown = ", ".join(sorted(known)[-_SHOWN:]) + (", ..." if len(known) > _SHOWN else "")
        raise UnknownSourceError(f"{{source={missing[0]}}}: {target} has no such source; the sources are {shown}")
    found = set()
    for number, (_part, sources) in enumerate(_sources_of_parts(made)):
        others = [source.name for source in sources if source.name not in wanted]
        if len(others) == len(sources):
            continue
        if others:
            one = next(source.name for source in sources if source.name in wanted)
            raise InputError(
                f"{target}: the rows of {one} are mixed with those of {len(others):,} other files of the same "
                f"conversion, like {others[0]}; name them all, or convert again without it"
            )
        found.add(number)
    if not any(part.rows for number, part in enumerate(made.all_parts()) if number not in found):
        raise InputError(f"{target}: all its rows are of these files; remove the store instead")
    return found


def full_name(name: str, known: set[str]) -> str:
    """Return the name of a source in the manifest: the path, or the only one that ends in the given name."""
    path = os.path.abspath(name)
    if path in known or name in known:
        return path if path in known else name
    alike = [one for one in known if one.endswith(f"/{name}")]
    return alike[0] if len(alike) == 1 else path


def _without(made: Manifest, gone: set[int]) -> Manifest:
    """Return the manifest without some parts."""
    parts, chunks, sources, first = [], [], [], 0
    for number, (part, its_sources) in enumerate(_sources_of_parts(made)):
        if number not in gone:
            parts.append(part)
            sources += its_sources
            chunks += made.chunks[first : first + part.chunks]
        first += part.chunks
    is_whole = len(parts) == 1 and not made.first_row
    return dataclasses.replace(
        made,
        rows=sum(part.rows for part in parts),
        nonzeros=sum(chunk.nonzeros for chunk in chunks),
        labels=dataclasses.replace(
            made.labels, counts=[sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
        ),
        statistics=parts[0].statistics if len(parts) == 1 else statistics_of_all(parts),
        rejected=made.rejected - sum(part.rejected for number, part in enumerate(made.all_parts()) if number in gone),
        chunks=chunks,
        sources=sources,
        parts=[] if is_whole else parts,
    )


def _keep_rejected_of(target: Path, made: Manifest) -> None:
    """Remove the rejected rows of files that are not among the sources from their list."""
    listing, known = target / REJECTED_FILE, {os.path.basename(source.name) for source in made.sources}
    if not listing.exists():
        return
    lines = listing.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if os.path.basename(str(json.loads(line)["source"])) in known]
    if not made.rejected:
        listing.unlink()
    elif len(kept) < len(lines):
        write_atomically(listing, b"".join(kept))
