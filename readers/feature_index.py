"""Where the names of features are in a row: at a hash of theirs, or where a dictionary says."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ooc_pegasos.compiled.parse import dictionary as kernels
from ooc_pegasos.compiled.parse.hashing import hash_strings
from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.readers.arrow_strings import buffers_of, with_prefix
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.recipe import Hashing

NOWHERE = kernels.NOWHERE
MOST_BITS = 31


class Places(Protocol):
    """What finds places. Any number of threads may use one."""

    number: int
    """How many there are."""
    dictionary: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    """For kernels that look names up themselves; without strings if there is none."""

    def of(self, strings: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
        """(place, by what values there are multiplied) of `prefix` and each of an Arrow array of strings, joined.

        The place may be NOWHERE.
        """

    def one(self, name: str) -> tuple[int, float]:
        """The same of one name."""


class HashedPlaces:
    """See `Places`: murmur3, as scikit-learn's FeatureHasher has it."""

    def __init__(self, hashing: Hashing) -> None:
        if not 1 <= hashing.bits <= MOST_BITS:
            raise UsageError(f"{hashing.bits} bits for hashed features; give 1 to {MOST_BITS}")
        self.number = hashing.places
        self.dictionary = _table(np.empty(0, np.uint8), np.zeros(1, np.int64))
        self._hashing = hashing

    def of(self, strings: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
        """See `Places`."""
        return self._hashed(*buffers_of(strings), prefix)

    def one(self, name: str) -> tuple[int, float]:
        """See `Places`."""
        raw = np.frombuffer(name.encode(), np.uint8)
        places, signs = self._hashed(raw, np.array([0, len(raw)]), "")
        return int(places[0]), float(signs[0])

    def _hashed(self, data: np.ndarray, offsets: np.ndarray, prefix: str) -> tuple[np.ndarray, np.ndarray]:
        number = len(offsets) - 1
        places, signs = np.empty(number, np.uint32), np.empty(number, np.float32)
        before = np.frombuffer(prefix.encode(), np.uint8)
        hashing = self._hashing
        hash_strings(data, read_only(offsets), before, hashing.bits, hashing.signed, places, signs)
        return places, signs


class DictionaryPlaces:
    """See `Places`: name number i is at place i, and other names are nowhere."""

    def __init__(self, names: Any) -> None:
        self.number = len(names)
        data, offsets = buffers_of(names)
        self.dictionary = _table(data[int(offsets[0]) : int(offsets[-1])], (offsets - offsets[0]).astype(np.int64))

    def of(self, strings: Any, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
        """See `Places`."""
        data, offsets = buffers_of(with_prefix(prefix, strings) if prefix else strings)
        places = np.empty(len(strings), np.uint32)
        kernels.find_strings(data, offsets, *self.dictionary, places)
        return places, np.ones(len(strings), np.float32)

    def one(self, name: str) -> tuple[int, float]:
        """See `Places`."""
        import pyarrow as pa

        places, signs = self.of(pa.array([name], pa.string()))
        if places[0] == NOWHERE:
            raise CorruptFileError(f"the dictionary has no {name!r}, which a column of the recipe needs; convert again")
        return int(places[0]), float(signs[0])


def _table(text: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What kernels look names up in: (slots, hashes, ends, text)."""
    hashes = np.empty(len(ends) - 1, np.uint32)
    kernels.hash_all(text, ends, hashes)
    slots = np.empty(kernels.slots_for(len(hashes)), np.int32)
    kernels.fill_slots(hashes, len(hashes), slots)
    return read_only(slots), read_only(hashes), read_only(ends), read_only(text)


def places_of(hashing: Hashing, names: Any = None) -> Places:
    """What finds the places of a recipe; `names` are those of its vocabulary."""
    if not hashing.dictionary:
        return HashedPlaces(hashing)
    if names is None or len(names) != hashing.dictionary:
        raise CorruptFileError("the recipe has a dictionary, which is not there; convert or train again")
    return DictionaryPlaces(names)
