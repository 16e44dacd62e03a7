"""Names of hashed features, as many as are wanted, as they are met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_pegasos.readers.arrow_strings import strings_of


class Unnamed:
    """Which places of hashed features have no name yet, and how many names are wanted still.

    One thread tells of new names while others look for some. These must ask for `left` first and for `known` then: so
    they may offer names too many but never too few, and which are kept does not depend on the number of threads.
    """

    def __init__(self, places: int, wanted: int) -> None:
        self.known = np.zeros(places if wanted else 0, bool)
        self.left = wanted

    def named(self, features: dict[int, str]) -> None:
        """These places have a name now."""
        self.known[list(features)] = True
        self.left -= len(features)

    def new(self) -> NewNames:
        """What is to be found in one block of rows."""
        return NewNames(self.left)

    def name(self, places: np.ndarray, name: Callable[[int], str], new: NewNames) -> None:
        """Note the names of places that have none yet: `name` is asked for that of place number so many."""
        for at in np.flatnonzero(~self.known[places]).tolist() if new.wants_more else []:
            if not new.wants_more:
                break
            if int(places[at]) not in new:
                new[int(places[at])] = name(at)

    def name_words(self, hasher: Any, strings: Any, new: NewNames) -> None:
        """The same for all that a `TextHasher` counts in texts."""
        if not new.wants_more:
            return
        data, offsets, _rows = hasher.ngrams(strings)
        words = strings_of(data, offsets)
        places, _signs = hasher.places.of(words)
        places, first = np.unique(places, return_index=True)
        order = np.argsort(first)
        self.name(places[order], lambda at: words[int(first[order[at]])].as_py(), new)


class NewNames(dict[int, str]):
    """Of places that had no name before; `wanted` is how many there may be, asked for once as `Unnamed` says."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted

    @property
    def wants_more(self) -> bool:
        """Whether there may be more."""
        return self.wanted > len(self)
