"""Feature indices of feature names: hash buckets, or positions in a dictionary."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ooc_pegasos.compiled.parse import dictionary as kernels
from ooc_pegasos.compiled.parse.hashing import hash_strings
from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.readers.arrow_strings import buffers_of, with_prefix
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.recipe import Hashing

NOT_FOUND = kernels.NOT_FOUND
MAX_BITS = 31


class FeatureIndex(Protocol):
    """Map from names to feature indices, safe for any number of threads."""

    number: int
    """Number of feature indices."""
    dictionary: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    """The dictionary for compiled functions; without strings where names are hashed."""

    def of(self, strings: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return (feature index, sign of its values) of `prefix` joined with each string of an Arrow array.

        The index of a name that is in no dictionary is NOT_FOUND.
        """

    def one(self, name: str) -> tuple[int, float]:
        """Return the same for a single name."""


class HashedIndex:
    """Hash buckets: murmur3 of names, as in scikit-learn's FeatureHasher."""

    def __init__(self, hashing: Hashing) -> None:
        if not 1 <= hashing.bits <= MAX_BITS:
            raise UsageError(f"{hashing.bits} bits for hashed features; give 1 to {MAX_BITS}")
        self.number = hashing.buckets
        self.dictionary = _table(np.empty(0, np.uint8), np.zeros(1, np.int64))
        self._hashing = hashing

    def of(self, strings: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return (feature index, sign of its values) of `prefix` joined with each string."""
        return self._hashed(*buffers_of(strings), prefix)

    def one(self, name: str) -> tuple[int, float]:
        """Return (feature index, sign of its values) of a name."""
        raw = np.frombuffer(name.encode(), np.uint8)
        indices, signs = self._hashed(raw, np.array([0, len(raw)]), "")
        return int(indices[0]), float(signs[0])

    def _hashed(self, data: np.ndarray, offsets: np.ndarray, prefix: str) -> tuple[np.ndarray, np.ndarray]:
        number = len(offsets) - 1
        indices, signs = np.empty(number, np.uint32), np.empty(number, np.float32)
        before = np.frombuffer(prefix.encode(), np.uint8)
        hashing = self._hashing
        hash_strings(data, read_only(offsets), before, hashing.bits, hashing.signed, indices, signs)
        return indices, signs


class DictionaryIndex:
    """A dictionary: name number i has index i, and other names have none."""

    def __init__(self, names: Any) -> None:
        self.number = len(names)
        data, offsets = buffers_of(names)
        self.dictionary = _table(data[int(offsets[0]) : int(offsets[-1])], (offsets - offsets[0]).astype(np.int64))

    def of(self, strings: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return (feature index, sign of its values) of `prefix` joined with each string."""
        data, offsets = buffers_of(with_prefix(prefix, strings) if prefix else strings)
        indices = np.empty(len(strings), np.uint32)
        kernels.find_strings(data, offsets, *self.dictionary, indices)
        return indices, np.ones(len(strings), np.float32)

    def one(self, name: str) -> tuple[int, float]:
        """Return (feature index, sign of its values) of a name."""
        import pyarrow as pa

        indices, signs = self.of(pa.array([name], pa.string()))
        if indices[0] == NOT_FOUND:
            raise CorruptFileError(f"the dictionary has no {name!r}, which a column of the recipe needs; convert again")
        return int(indices[0]), float(signs[0])


def _table(text: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a dictionary for compiled functions: (slots, hashes, ends, text)."""
    hashes = np.empty(len(ends) - 1, np.uint32)
    kernels.hash_all(text, ends, hashes)
    slots = np.empty(kernels.slots_for(len(hashes)), np.int32)
    kernels.fill_slots(hashes, len(hashes), slots)
    return read_only(slots), read_only(hashes), read_only(ends), read_only(text)


def feature_index_of(hashing: Hashing, names: Any = None) -> FeatureIndex:
    """Return the feature indices of a recipe; `names` are those of its vocabulary."""
    if not hashing.dictionary:
        return HashedIndex(hashing)
    if names is None or len(names) != hashing.dictionary:
        raise CorruptFileError("the recipe needs a dictionary, and there is none; convert or train again")
    return DictionaryIndex(names)
