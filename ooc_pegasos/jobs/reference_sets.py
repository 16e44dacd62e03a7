"""Reference sets of a job, checked before a run begins: readable by the model, and not part of the training data.

Metrics on training rows are biased, so a reference set may neither be the store of the job nor one of its inputs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ooc_pegasos.conversion.source_check import content_of
from ooc_pegasos.errors import UsageError
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.readers import registry, sources
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.scoring.score import Meaning, check_data, files_for
from ooc_pegasos.store import manifest
from ooc_pegasos.store.manifest import Manifest, SourceInfo
from ooc_pegasos.store.store import Store


def check_reference_sets(job: Job, store: Store | None) -> None:
    """Refuse missing reference sets and, if there is a store, those on which its models cannot be evaluated."""
    known = Meaning.of_store(store) if store and job.golden else None
    for golden in job.golden:
        if known:
            check_data(known, golden)
        elif not _has_manifest(golden):
            _files(golden, job, None)


def refuse_trained_on(job: Job, new: Sequence[str], made: Manifest | None) -> None:
    """Refuse reference sets that are the store of the job, one of its inputs, or in the store.

    Files are compared by path and by content, so a copy under another name is detected as well.
    """
    inputs = _Lookup([_File(name) for name in new])
    stored = _Lookup([_File(source.name, source) for source in made.sources] if made else [])
    for golden in job.golden:
        if os.path.realpath(golden) == os.path.realpath(job.store):
            problem = "a reference set, and the store that models are trained on"
            raise UsageError(f"{golden}: {problem}; name rows that are not in the store")
        for file in _contents(golden, job, made):
            if (other := inputs.same_as(file)) is not None:
                problem = f"a reference set with rows of an input of the job, {other}"
                raise UsageError(f"{golden}: {problem}; take it out of the inputs, or out of golden")
            if (other := stored.same_as(file)) is not None:
                problem = f"a reference set with rows that models are trained on, those of {other} in the store"
                raise UsageError(f"{golden}: {problem}; leave it out, or make the store again without them")


def fingerprints(job: Job, made: Manifest) -> dict[str, list[dict[str, Any]]]:
    """Return the fingerprints of the reference sets by short name, from which later changes can be detected."""

    def fingerprint(file: _File) -> dict[str, Any]:
        return {"name": file.name, "size": file.size, "xxh64": file.digest}

    return {name: [fingerprint(file) for file in _contents(golden, job, made)] for name, golden in job.sets().items()}


class _File:
    """An input, a reference set, or a source recorded in a store."""

    def __init__(self, name: str, source: SourceInfo | None = None) -> None:
        self.name = sources.display_name(name)
        self._path, self._source = name, source

    @cached_property
    def place(self) -> str | None:
        """The path of a file; None for a file recorded in a store, because another file may have its path now."""
        if self._source and not os.path.isdir(self._path):
            return None
        return self._path if is_remote(self._path) else os.path.realpath(self._path)

    @cached_property
    def size(self) -> int:
        """The size; -1 for folders of texts and for pipes, which are compared by path alone."""
        if self._source:
            return self._source.size
        stamp = None if os.path.isdir(self._path) else sources.stamp_of(self._path)
        return stamp.size if stamp and stamp.regular else -1

    @cached_property
    def digest(self) -> str:
        """The checksum of the content."""
        return self._source.xxh64 if self._source else content_of(self._path)


class _Lookup:
    """Index of files by path and by content; contents are read only if sizes agree."""

    def __init__(self, files: Sequence[_File]) -> None:
        self._by_place = {file.place: file for file in files}
        self._by_size: dict[int, list[_File]] = {}
        for file in files:
            self._by_size.setdefault(file.size, []).append(file)

    def same_as(self, file: _File) -> str | None:
        """Return the name of the file that is this file or has its content, or None."""
        if file.place is not None and file.place in self._by_place:
            return self._by_place[file.place].name
        alike = self._by_size.get(file.size, []) if file.size >= 0 else []
        return next((other.name for other in alike if other.digest == file.digest), None)


def _contents(golden: str, job: Job, made: Manifest | None) -> list[_File]:
    """Return the files of a reference set."""
    if _has_manifest(golden):
        return [_File(source.name, source) for source in manifest.read(Path(golden)).sources]
    return [_File(name) for name in _files(golden, job, made)]


def _has_manifest(golden: str) -> bool:
    return (Path(golden) / manifest.FILE_NAME).exists()


def _files(golden: str, job: Job, made: Manifest | None) -> list[str]:
    """Return the files of a reference set, in the format of the store or of the inputs of the job."""
    return files_for(golden, made.recipe) if made else registry.find([golden], otherwise=job.convert.format)[0]
