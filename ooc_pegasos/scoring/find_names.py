"""Names of the hashed features that matter in a model, searched in the files that its store was made of."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ooc_pegasos.errors import OocPegasosError
from ooc_pegasos.readers import registry
from ooc_pegasos.readers.base import ReadOptions
from ooc_pegasos.readers.sources import samples_of
from ooc_pegasos.readers.vectorize import features_of, is_dense
from ooc_pegasos.scoring.heaviest_features import heaviest
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.manifest import SourceInfo
from ooc_pegasos.store.store import Store

_NAMED, _OF_CLASS, _MOST = 200, 20, 2000
"""Features to name: of all, of each class, and at most."""
MOST_BYTES, _FILES = 64 << 20, 16
"""Bytes and files that are read at most."""


FindNames = Callable[[Model, list[int]], dict[int, str]]
"""Returns the names of some buckets of a model."""


def with_names(model: Model, store: Store, find: FindNames | None = None) -> Model:
    """Return a model with the names of its heaviest features.

    Names of hashed features are not kept while rows are made, unless that was asked for. The beginnings of the source
    files are read again, if they are there and unchanged; what is found depends on them alone. `find` is for rows that
    come from no files.
    """
    hashing = model.info.recipe.hashing_of_names
    table = model.info.recipe.table
    if hashing is None or hashing.dictionary or (table and (is_dense(table) or features_of(table) is None)):
        return model
    chosen = _chosen(model)
    known = model.vocabulary.names_of(chosen)
    unnamed = [place for place, name in zip(chosen, known, strict=True) if name is None]
    files = [source.name for source in store.manifest.sources[:_FILES] if _is_there(source)]
    if not unnamed or not (files or find):
        return model
    with suppress(Exception):  # names are only displayed, and must not end a run of hours
        found = find(model, unnamed) if find else _find(model, files, unnamed)
        return dataclasses.replace(model, vocabulary=model.vocabulary.named(found)) if found else model
    return model


def _chosen(model: Model) -> list[int]:
    """Return the heaviest features, and those of each class."""
    weights = model.weights
    found = set(heaviest(weights, _NAMED).tolist())
    if weights.ndim > 1:
        each = max(min(_OF_CLASS, _MOST // weights.shape[1]), 1)
        for one_class in range(weights.shape[1]):
            found.update(heaviest(weights[:, one_class], each).tolist())
    return sorted(found)


def _is_there(source: SourceInfo) -> bool:
    """True if a source is a file, or a folder, that has not changed as far as size and samples show."""
    try:
        if Path(source.name).is_dir():
            return True
        return os.stat(source.name).st_size == source.size and source.samples in (None, samples_of(source.name))
    except (OSError, OocPegasosError):
        return False


def _find(model: Model, files: Sequence[str], wanted: Sequence[int]) -> dict[int, str]:
    """Return the names of some buckets that occur in the first bytes of files."""
    labels = model.info.labels
    options = ReadOptions(
        text_labels=labels.text, with_labels=False, feature_names=len(wanted), vocabulary=model.vocabulary
    )
    reader = registry.reader_for(list(files), model.info.recipe, options)
    search = getattr(reader, "search", None)
    found: dict[int, str] = {}
    if search is None:
        return found
    search(np.array(wanted))
    read = 0
    for task in reader.tasks():
        parsed = reader.read(task)
        new = {bucket: name for bucket, name in parsed.features.items() if bucket not in found}
        found |= new
        reader.named(new)  # type: ignore[attr-defined]
        reader.release(parsed)
        read += task.consumed
        if len(found) == len(wanted) or read > MOST_BYTES:
            break
    return found
