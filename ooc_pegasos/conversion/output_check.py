"""Check of the output of a conversion: an existing store, and files left by a killed process."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.compatibility import comes_of, refuse_contradiction
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.formats import ANY
from ooc_pegasos.readers import registry, sources
from ooc_pegasos.store import manifest
from ooc_pegasos.store.labels import declared_by
from ooc_pegasos.store.manifest import Manifest
from ooc_pegasos.util.files import remove_folder, sync_folder
from ooc_pegasos.util.locks import locked

BESIDE = ("weights", "labels")
"""Settings that name a file with an entry for each row of the inputs."""


@dataclass(frozen=True)
class Existing:
    """The treatment of an existing store."""

    force: bool = False
    append: bool = False
    resume: bool = False
    reuse: bool = False
    """Open a finished store that was made from the same inputs with the same options."""
    grows: bool = False
    """Make a store to which inputs will be appended: its hash space is not sized by the first inputs."""


def check_output(target: Path, existing: Existing, is_published: bool = False) -> Manifest | None:
    """Return the manifest of an existing store if it may be changed; None if there is no store.

    `is_published`: an interrupted conversion has published the store.
    """
    if existing.force and existing.append:
        raise UsageError("{force} replaces the store, {append} adds to it; choose one")
    if not target.parent.exists():
        raise InputError(f"{target.parent}: no such folder; create it first")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not (target / manifest.FILE_NAME).exists():
        raise InputError(f"{target}: exists and is not a store; remove it or choose another name")
    if not (existing.force or existing.append or existing.resume or existing.reuse or is_published):
        raise already_there(target)
    try:
        return manifest.read(target)
    except OocPegasosError:
        if existing.force:
            return None
        raise


def already_there(target: Path) -> InputError:
    """Return the error for a store that may not be replaced."""
    return InputError(f"{target}: exists already; add {{force}} to replace it or {{append}} to add to it")


def refuse_options(made: Manifest, config: ConvertConfig) -> None:
    """Refuse options with which nothing could be appended to a store, before any input exists."""
    reader = made.recipe.reader
    if config.format != ANY and not registry.can_be_mixed(config.format, reader):
        raise UsageError(f"{{format={config.format}}}: the store was made of {reader}; leave it out to append")
    kind = reader if config.format == ANY else config.format
    registry.check_options(config.of_format(kind), [made.sources[-1].name])
    refuse_contradiction(made, config)


def discard(scratch: Path) -> list[Path]:
    """Remove the scratch folder and those of earlier processes; return the folders that could not be removed."""
    gone = scratch.with_name(scratch.name + "~")
    remove_folder(gone)
    with contextlib.suppress(OSError):
        os.rename(scratch, gone)  # a partly removed folder must not be resumed
        sync_folder(scratch.parent)
    return [folder for folder in (scratch, gone) if not remove_folder(folder)]


def discard_left_overs(scratch: Path, what: str) -> None:
    """Remove the files of a process that was killed after it had finished or before it had begun."""
    remove_folder(scratch.with_name(scratch.name + "~"))
    if (scratch / "lock").exists():
        with locked(scratch / "lock", what):
            discard(scratch)
    with contextlib.suppress(OSError):
        scratch.rmdir()


def made_from(
    store: Manifest, names: list[str], config: ConvertConfig, append: bool, like: Manifest | None = None
) -> bool:
    """True if a store was made of exactly these files with these options; with `append`, its last sources.

    `like`: the manifest of the store that the options name.
    """
    if not append and (len(store.sources) != len(names) or not _has_options(store, names, config, like)):
        return False
    if config.values == "float32" and store.layout.values != "float32":
        return False
    made_from = [(source.name, source.size, source.xxh64) for source in store.sources[-len(names) :]]
    if [(sources.manifest_name(name), registry.stamp_of(name).size) for name in names] != [
        known[:2] for known in made_from
    ]:
        return False
    for setting in BESIDE:
        file, digest = getattr(config, setting), None
        if file is not None:
            digest = sources.hash_of(file) if sources.stamp_of(file).regular else "?"
        if any(getattr(source, setting) != digest for source in store.sources[-len(names) :]):
            return False
    return [registry.hash_of(name) for name in names] == [xxh64 for _name, _size, xxh64 in made_from]


def _has_options(store: Manifest, names: list[str], config: ConvertConfig, like: Manifest | None) -> bool:
    """True if these options make rows as those of a store."""
    if store.shuffle_seed != (config.seed if config.shuffle else None):
        return False
    try:
        refuse_contradiction(store, config)
    except UsageError:
        return False
    if like:
        return store.recipe == like.recipe and declared_by(store.labels) == declared_by(like.labels)
    return comes_of(store.recipe, registry.new_recipe(config, names, lambda _remark: None), config)
