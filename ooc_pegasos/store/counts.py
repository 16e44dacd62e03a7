"""Values of texts that files contain as counts: value = count x idf / norm of the row. See docs/store-format.md.

Compiled loops of training take float32: a feature and a row have factors that these loops do not know. So values are
decoded once, when a chunk is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooc_pegasos.compiled.rows.counts import decode_counts
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.csr_block import all_levels, escape_of, read_only
from ooc_pegasos.store.manifest import Manifest


@dataclass(frozen=True)
class Factors:
    """The factors of the values of a store, and its counts by their codes."""

    levels: np.ndarray
    idf: np.ndarray
    """The idf of each feature; empty without tf-idf."""
    normalize: bool
    escape: int

    @classmethod
    def of(cls, folder: Path, made: Manifest) -> Factors:
        """Return the factors of a store of counts."""
        known = vocabulary.of_store(folder, made) if made.recipe.needs_vocabulary else None
        idf = vocabulary.idf_of(made.recipe, known)
        levels, escape = all_levels(made.layout.levels), escape_of(made.layout.index_coding)
        return cls(read_only(levels), read_only(idf), made.recipe.normalize is not None, escape)

    def decode(self, offsets: np.ndarray, indices: np.ndarray, codes: np.ndarray, out: np.ndarray, file: Path) -> None:
        """Write the values of the rows of a chunk file to `out` (float32); `offsets` (int64) must have been checked."""
        rows = read_only(offsets), read_only(indices), read_only(codes)
        row = decode_counts(*rows, self.levels, self.idf, self.escape, self.normalize, out)
        if row >= 0:
            raise CorruptFileError(
                f"{file}: row {row}: an index is not below the number of features; restore it or convert again"
            )
