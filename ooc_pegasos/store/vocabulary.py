"""Vocabulary: names and document frequencies of features, by feature index.

The vocabulary is the file `features-XXXX.arrow` of a store, and columns of the file of a model. If the recipe has a
dictionary, the names determine the indices; otherwise they are for display only. Document frequencies are present if
the recipe applies tf-idf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store.manifest import Manifest, Recipe, VocabularyInfo
from ooc_pegasos.store.recipe import Hashing
from ooc_pegasos.util.arrow import array_of, numbers_of
from ooc_pegasos.util.checksums import xxh64_hex
from ooc_pegasos.util.files import read_file, unreadable, write_atomically

_LOG_ERROR = 1e-13
"""Far above the error of a logarithm below 50 in float64."""


@dataclass(frozen=True)
class Vocabulary:
    """Some features, sorted by index."""

    places: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint32))
    names: Any = None
    """An Arrow array of strings, null where a feature has no name; None if there are none."""
    texts: np.ndarray | None = None
    """The document frequency of each feature."""

    @classmethod
    def of_names(cls, names: Mapping[int, str]) -> Vocabulary:
        """Return a vocabulary of the given names."""
        import pyarrow as pa

        places = sorted(names)
        return cls(np.array(places, np.uint32), pa.array([names[place] for place in places], pa.string()))

    def __len__(self) -> int:
        """Return the number of features in the vocabulary."""
        return len(self.places)

    def known_names(self) -> dict[int, str]:
        """Return the known names by feature index."""
        if self.names is None:
            return {}
        known = zip(self.places.tolist(), self.names.to_pylist(), strict=True)
        return {place: name for place, name in known if name is not None}

    def names_of(self, places: Iterable[int]) -> list[str | None]:
        """Return the names of some features."""
        wanted = np.fromiter(places, np.int64)
        if self.names is None or not len(self.places):
            return [None] * len(wanted)
        at = np.minimum(np.searchsorted(self.places, wanted), len(self.places) - 1)
        there = self.places[at] == wanted
        found = self.names.take(array_of(at)).to_pylist()
        return [name if known else None for name, known in zip(found, there.tolist(), strict=True)]

    def named(self, names: Mapping[int, str]) -> Vocabulary:
        """Return the vocabulary with additional names of features that had none."""
        return self.at(np.union1d(self.places, np.array(sorted(names), np.uint32)), names)

    def at(self, places: np.ndarray, names: Mapping[int, str] | None = None) -> Vocabulary:
        """Return the vocabulary of the features with increasing indices `places`, with additional names."""
        import pyarrow as pa

        found = self.names_of(places)
        if names:
            found = [names.get(place, known) for place, known in zip(places.tolist(), found, strict=True)]
        texts = None
        if self.texts is not None:
            texts = np.zeros(len(places), np.int64)
            both, mine, theirs = np.intersect1d(self.places, places, assume_unique=True, return_indices=True)
            texts[theirs[: len(both)]] = self.texts[mine]
        some = any(name is not None for name in found)
        return Vocabulary(places.astype(np.uint32), pa.array(found, pa.string()) if some else None, texts)

    def columns(self) -> dict[str, Any]:
        """Return the columns of an Arrow table."""
        found = {} if self.names is None else {"name": self.names}
        return found if self.texts is None else found | {"texts": array_of(self.texts)}

    @classmethod
    def of_columns(cls, table: Any) -> Vocabulary:
        """Return the vocabulary of an Arrow table with the columns of `columns` and `feature`. Raises ValueError."""
        columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
        if any(column.null_count for name, column in columns.items() if name != "name"):
            raise ValueError("numbers that are missing")
        places = numbers_of(columns["feature"])
        if places.dtype != np.uint32 or (len(places) and (np.diff(places.astype(np.int64)) <= 0).any()):
            raise ValueError("features that do not increase")
        names, texts = columns.get("name"), columns.get("texts")
        if names is not None:
            if str(names.type) not in ("string", "large_string"):
                raise ValueError("names that are no words")
            names.validate(full=True)
        counts = None if texts is None else numbers_of(texts)
        if counts is not None and (counts.dtype != np.int64 or (counts < 0).any()):
            raise ValueError("counts of texts that are none")
        return cls(places, names, counts)

    def serves_as(self, other: Vocabulary, recipe: Recipe) -> bool:
        """True if the recipe makes the same rows with either vocabulary."""
        places = np.union1d(self.places, other.places)  # models may omit features of weight 0
        mine, theirs = self.at(places), other.at(places)
        hashing = recipe.hashing_of_names
        same_names = not (hashing and hashing.dictionary) or mine.names.equals(theirs.names)
        if mine.texts is None or theirs.texts is None:
            return same_names and mine.texts is theirs.texts
        return same_names and np.array_equal(mine.texts, theirs.texts)

    def check(self, recipe: Recipe) -> str | None:
        """Return a problem that prevents rows from being made by a recipe, or None."""
        hashing, tokens = recipe.hashing_of_names, recipe.tokens_of_texts
        if hashing and hashing.dictionary:
            whole = len(self) == hashing.dictionary == int(self.places[-1]) + 1
            if not whole or self.names is None or self.names.null_count:
                return "a dictionary that is not whole"
        if tokens and tokens.texts and (self.texts is None or int(self.texts.max(initial=0)) > tokens.texts):
            return "no numbers of texts, or such as cannot be"
        if tokens and tokens.texts and len(self) and int(self.places[-1]) >= (hashing or Hashing()).buckets:
            return "features that no hash can be"
        return None


def write(folder: Path, vocabulary: Vocabulary) -> VocabularyInfo:
    """Write a vocabulary; its file is named after the content, so that no older file is overwritten."""
    import pyarrow as pa

    columns = {"feature": array_of(vocabulary.places)} | vocabulary.columns()
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    checksum = xxh64_hex(content)
    file = f"features-{checksum}.arrow"
    write_atomically(folder / file, content.to_pybytes())
    return VocabularyInfo(file, len(vocabulary), content.size, checksum)


def read(folder: Path, info: VocabularyInfo) -> Vocabulary:
    """Read a vocabulary and check every byte."""
    import pyarrow as pa

    file = folder / info.file
    advice = "restore it or convert again"
    try:
        content = read_file(file, info.bytes)
    except OSError as error:
        raise unreadable(file, error, advice) from error
    if len(content) != info.bytes or xxh64_hex(content) != info.xxh64:
        raise CorruptFileError(f"{file}: the checksum does not match, so the file was changed or damaged; {advice}")
    try:
        table = pa.ipc.open_file(content).read_all()
        table.validate()
        return Vocabulary.of_columns(table)
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        problem = " ".join(str(error).split())[:100]
        raise CorruptFileError(f"{file}: not what it should hold ({problem}); {advice}") from error


def of_store(folder: Path, made: Manifest) -> Vocabulary:
    """Return the vocabulary of a store."""
    if made.vocabulary is None:
        return of_recipe(made.recipe)
    found = read(folder, made.vocabulary)
    problem = found.check(made.recipe)
    if problem:
        raise CorruptFileError(f"{folder / made.vocabulary.file}: {problem}; restore it or convert again")
    return found


def idf_of(recipe: Recipe, known: Vocabulary | None) -> np.ndarray:
    """Return the idf of each feature as float32; empty if the recipe has no tf-idf."""
    tokens, hashing = recipe.tokens_of_texts, recipe.hashing_of_names
    if tokens is None or not tokens.texts:
        return np.empty(0, np.float32)
    return idf_weights(tokens.texts, (hashing or Hashing()).buckets, known)


def idf_weights(texts: int, features: int, known: Vocabulary | None) -> np.ndarray:
    """Return the idf of each feature: the float32 nearest to ln((1 + texts) / (1 + texts that contain it)) + 1."""
    if known is None or known.texts is None:
        raise CorruptFileError(
            "the recipe weighs words by document frequency, and the frequencies are missing; convert or train again"
        )
    idf = np.full(features, _nearest_idf(texts, np.zeros(1, np.int64))[0])
    idf[known.places] = _nearest_idf(texts, known.texts)
    return idf


def _nearest_idf(texts: int, frequencies: np.ndarray) -> np.ndarray:
    """Return the correctly rounded idf, the same on all machines, whose logarithms differ in the last digit."""
    exact = np.log((1 + texts) / (1 + frequencies)) + 1
    idf = exact.astype(np.float32)
    neighbour = np.nextafter(idf, np.where(exact > idf, np.inf, -np.inf).astype(np.float32))
    middle = (idf.astype(np.float64) + neighbour) / 2
    close = np.abs(exact - middle) < _LOG_ERROR
    for number in np.unique(frequencies[close]).tolist():
        alike = close & (frequencies == number)
        pair = sorted((float(idf[alike][0]), float(neighbour[alike][0])))
        with localcontext(prec=50):
            is_above = (Decimal(1 + texts) / Decimal(1 + number)).ln() + 1 > (Decimal(pair[0]) + Decimal(pair[1])) / 2
        idf[alike] = pair[is_above]
    return idf


def of_recipe(recipe: Recipe) -> Vocabulary:
    """Return the names that follow from the columns: if all are numeric, each column is a feature."""
    table = recipe.table
    if table is None or not all(column.kind == "numeric" for column in table.columns):
        return Vocabulary()
    names = [column.name for column in table.columns]
    if table.nulls == "mark":
        names += [f"{name}=null" for name in names]
    return Vocabulary.of_names(dict(enumerate(names)))
