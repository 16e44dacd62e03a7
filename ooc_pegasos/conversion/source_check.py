"""Check that the files from which a store was made are unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import registry
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import Stamp, hash_of, manifest_name, samples_of
from ooc_pegasos.store.manifest import Manifest, SourceInfo


def sources_by_name(made: Manifest) -> dict[str, SourceInfo]:
    """Return the sources that can be found again by their recorded names; of a name that occurs several times the last.

    Sources that are not files, like `standard input`, are left out. So are relative paths, which old versions recorded:
    their base folder is not known, and from here they may lead to other files.
    """
    there = (source for source in made.sources if is_remote(source.name) or os.path.isabs(source.name))
    return {manifest_name(source.name): source for source in there}


@lru_cache(1 << 12)
def _content_of(name: str, stamp: Stamp) -> str:
    return hash_of(name)


def content_of(name: str) -> str:
    """Return the checksum of an input, also of a folder of texts; cached while size and time are the same."""
    if is_remote(name) or os.path.isdir(name):
        return registry.hash_of(name)
    return _content_of(name, Stamp.of(os.stat(name)))


def looks_unchanged(source: SourceInfo, name: str, stamp: Stamp) -> bool:
    """True if the size, the time and the samples of a file are the recorded ones."""
    if (stamp.size, stamp.modified_ns) != (source.size, source.modified_ns):
        return False
    try:
        return source.samples is None or samples_of(name) == source.samples
    except OSError:  # the user of a store may not have access to its sources
        return True


def changed_sources(
    made: Manifest, *, every_byte: bool = False, advance: Callable[[int], None] = lambda _bytes: None
) -> list[str]:
    """Return a message for each source that still exists and has changed.

    Sources with the recorded size, time and samples count as unchanged, unless `every_byte` is to be compared.
    `advance` is called with the size of each source that is checked.
    """
    problems = []
    for name, source in sources_by_name(made).items():
        if not is_remote(name) and _is_changed(source, name, every_byte):
            problems.append(f"{name}: changed after the store was made of it")
        advance(source.size)
    return problems


def refuse_changed(store: str, made: Manifest) -> None:
    """Refuse a store whose sources have changed."""
    problems = changed_sources(made)
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise InputError(f"{problems[0]}{more}; convert {store} again, or say {{ignore_sources}}")


def _is_changed(source: SourceInfo, name: str, every_byte: bool) -> bool:
    if source.modified_ns is None:
        return False
    try:
        stamp = Stamp.of(os.stat(name))
    except OSError:
        return False  # a source that was deleted or moved does not affect the store
    if not stamp.regular:
        return False
    if stamp.size != source.size:
        return True
    if every_byte:
        return hash_of(name) != source.xxh64
    return not looks_unchanged(source, name, stamp) and content_of(name) != source.xxh64
