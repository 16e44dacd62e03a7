"""Whether the files that a store was made of are still what they were."""

from __future__ import annotations

import os

from ooc_pegasos.errors import InputError
from ooc_pegasos.manifest import Manifest, SourceInfo
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import Stamp, hash_of


def changed_sources(made: Manifest, *, every_byte: bool = False) -> list[str]:
    """What is wrong with sources that are still where they were: one line each.

    Those with the size and the time that were recorded are taken to be the same, unless every byte is to be looked
    at. Of a name that came several times the last counts.
    """
    problems = []
    for source in {source.name: source for source in made.sources}.values():
        if not is_remote(source.name) and _is_changed(source, every_byte):
            problems.append(f"{source.name}: changed after the store was made of it")
    return problems


def refuse_changed(store: str, made: Manifest) -> None:
    """Refuse a store whose sources have changed."""
    problems = changed_sources(made)
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise InputError(f"{problems[0]}{more}; convert {store} again, or say --ignore-sources")


def _is_changed(source: SourceInfo, every_byte: bool) -> bool:
    if source.modified_ns is None:
        return False
    try:
        stamp = Stamp.of(os.stat(source.name))
    except OSError:
        return False  # gone, or moved, which changes nothing in the store
    if not stamp.regular:
        return False
    if stamp.size != source.size:
        return True
    if stamp.modified_ns == source.modified_ns and not every_byte:
        return False
    return hash_of(source.name) != source.xxh64
