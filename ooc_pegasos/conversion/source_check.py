"""Whether the files that a store was made of are still what they were."""

from __future__ import annotations

import os
from functools import lru_cache

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import registry
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import Stamp, hash_of, recorded, samples_of
from ooc_pegasos.store.manifest import Manifest, SourceInfo


def sources_by_name(made: Manifest) -> dict[str, SourceInfo]:
    """The sources that can be found again, as `recorded` calls them; of those that came several times the last.

    What never was a file, like `standard input`, is left out. So are the relative paths that older programs have
    recorded: nothing is known of where they were seen from, and from here they may lead to other files.
    """
    there = (source for source in made.sources if is_remote(source.name) or os.path.isabs(source.name))
    return {recorded(source.name): source for source in there}


@lru_cache(1 << 12)
def _content_of(name: str, stamp: Stamp) -> str:
    return hash_of(name)


def content_of(name: str) -> str:
    """The checksum of an input, folders of texts included; of a file whose size and time are the same read once."""
    if is_remote(name) or os.path.isdir(name):
        return registry.hash_of(name)
    return _content_of(name, Stamp.of(os.stat(name)))


def looks_unchanged(source: SourceInfo, name: str, stamp: Stamp) -> bool:
    """Whether the size, the time and the samples of a file are those that were recorded."""
    if (stamp.size, stamp.modified_ns) != (source.size, source.modified_ns):
        return False
    try:
        return source.samples is None or samples_of(name) == source.samples
    except OSError:  # whoever uses the store may not be allowed to read what it was made of
        return True


def changed_sources(made: Manifest, *, every_byte: bool = False) -> list[str]:
    """What is wrong with sources that are still where they were: one line each.

    Those with the size, the time and the samples that were recorded are taken to be the same, unless every byte is to
    be looked at.
    """
    return [
        f"{name}: changed after the store was made of it"
        for name, source in sources_by_name(made).items()
        if not is_remote(name) and _is_changed(source, name, every_byte)
    ]


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
        return False  # gone, or moved, which changes nothing in the store
    if not stamp.regular:
        return False
    if stamp.size != source.size:
        return True
    if every_byte:
        return hash_of(name) != source.xxh64
    return not looks_unchanged(source, name, stamp) and content_of(name) != source.xxh64
