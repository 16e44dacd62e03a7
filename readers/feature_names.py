"""Names of hashed features, up to a number, in the order in which they occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_pegasos.readers.arrow_strings import strings_of


class UnnamedBuckets:
    """Buckets of hashed features without a name so far, and the number of names still to be kept.

    One thread records new names while others search for some. These must read `left` first and `known` then, so that
    they may find too many names but never too few: the names kept do not depend on the number of threads.
    """

    def __init__(self, buckets: int, wanted: int) -> None:
        self.known = np.zeros(buckets if wanted else 0, bool)
        self.left = wanted

    def named(self, features: dict[int, str]) -> None:
        """Record names of buckets."""
        self.known[list(features)] = True
        self.left -= len(features)

    def only(self, buckets: np.ndarray) -> None:
        """Search the names of some buckets alone."""
        self.known[:] = True
        self.known[buckets] = False
        self.left = len(buckets)

    def new(self) -> NewNames:
        """Return the container for the new names of a block."""
        return NewNames(self.left)

    def name(self, buckets: np.ndarray, name: Callable[[int], str], new: NewNames) -> None:
        """Add the names of buckets that have none so far; `name` returns that of the bucket at a position."""
        for at in np.flatnonzero(~self.known[buckets]).tolist() if new.has_room else []:
            if not new.has_room:
                break
            if int(buckets[at]) not in new:
                new[int(buckets[at])] = name(at)

    def name_words(self, hasher: Any, strings: Any, new: NewNames) -> None:
        """Do the same for all n-grams that a `TextHasher` counts in texts."""
        if not new.has_room:
            return
        data, offsets, _rows = hasher.ngrams(strings)
        words = strings_of(data, offsets)
        buckets, _signs = hasher.index.of(words)
        buckets, first = np.unique(buckets, return_index=True)
        order = np.argsort(first)
        self.name(buckets[order], lambda at: words[int(first[order[at]])].as_py(), new)


class NewNames(dict[int, str]):
    """Names of buckets that had none before, at most `wanted`, a number that is read once; see `UnnamedBuckets`."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted

    @property
    def has_room(self) -> bool:
        """True if more names can be added."""
        return self.wanted > len(self)
