"""The number of buckets for hashed feature names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.readers.sources import stamp_of
from ooc_pegasos.store.recipe import Hashing

_LEAST_BITS = 10
_BYTES = 4
"""Bytes of the inputs for each bucket. Words occur several times, so that few of them share a bucket."""


def hashing_of(config: ConvertConfig, names: Sequence[str]) -> Hashing:
    """Return the hashing of feature names that the options ask for; small inputs get fewer buckets."""
    if config.dictionary is not None:  # instead of a hash: its size must not make stores differ
        return Hashing(signed=config.hash_signed)
    return Hashing(config.hash_bits or bits_for(names), config.hash_signed)


def bits_for(names: Sequence[str], most_bits: int = Hashing.bits) -> int:
    """Return the bits of a hash with a bucket for every few bytes of the inputs, at most `most_bits`."""
    size, most = 0, _BYTES << most_bits
    for path in names:
        size += sum(_sizes_in(path)) if os.path.isdir(path) else stamp_of(path).size or most
        if size >= most:
            return most_bits
    return max(math.ceil(math.log2(max(size, _BYTES) / _BYTES)), _LEAST_BITS)


def _sizes_in(folder: str) -> Iterator[int]:
    """Yield the sizes of the files in a folder, until they need the most bits."""
    total = 0
    for place, _folders, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                size = os.stat(os.path.join(place, file)).st_size
                total += size
                yield size
            if total >= _BYTES << Hashing.bits:
                return
