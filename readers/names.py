"""Names of inputs: files, patterns, URLs, and - for standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.pipes import STDIN
from ooc_pegasos.readers.remote import expand_url, is_remote


def refuse_missing(inputs: Sequence[str]) -> None:
    """Raise InputError for a file that does not exist; patterns and URLs are not looked up."""
    for given in inputs:
        is_there = given == STDIN or (given and Path(given).exists())
        if not is_there and not is_remote(given) and not glob.has_magic(given):
            raise InputError(f"{given or repr(given)}: no such file; check the path")


def expand(inputs: Sequence[str]) -> list[str]:
    """Return the files that inputs name, those of patterns sorted. Raises InputError for missing files."""
    refuse_missing(inputs)
    names: list[str] = []
    for given in inputs:
        if is_remote(given):
            names.extend(expand_url(given))
        elif given == STDIN or Path(given).exists():
            names.append(given)
        else:
            found = sorted(glob.glob(given, recursive=True))
            if not found:
                raise InputError(f"{given}: no file matches this pattern; check the path")
            names.extend(_without_links_to_others(found))
    for name in names:
        if Path(name).is_dir():
            raise InputError(f"{name}: is a folder; name the files in it, for example '{name}/*.svm'")
    real = [name if name == STDIN or is_remote(name) else os.path.realpath(name) for name in names]
    if len(set(real)) != len(real):
        twice = next(name for name, path in zip(names, real, strict=True) if real.count(path) > 1)
        raise InputError(f"{twice}: named twice; name each input once")
    return names


def _without_links_to_others(found: list[str]) -> list[str]:
    """Return the files of a pattern without links to other files of it, like `latest`."""
    by_real_path: dict[str, str] = {}
    for name in sorted(found, key=os.path.islink):
        by_real_path.setdefault(os.path.realpath(name), name)
    return sorted(by_real_path.values())
