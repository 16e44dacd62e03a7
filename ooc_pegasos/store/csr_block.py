"""CsrBlock: rows of sparse data as arrays. No other form of rows passes between folders."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import scipy.sparse

CODINGS: dict[str, Any] = {"gap8": np.uint8, "gap16": np.uint16, "uint32": np.uint32}
"""Codings of indices, and the types of their arrays."""

VALUE_CODINGS: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "code8": np.uint8,
}
"""Codings of values: numbers, the upper half of a float32 (bfloat16), or codes in a dictionary of levels."""

COUNTS = "count8"
"""Coding of values in files alone: `code8` of counts, which loading turns into float32; see `store/counts.py`."""

LEVELS = 256
"""Number of levels in the dictionary of `code8`."""
NO_LEVELS = np.empty(0, np.float32)
NO_WEIGHTS = np.empty(0, np.float32)


def escape_of(coding: str) -> int:
    """Return the gap that advances the index without an entry; 0 if indices are not coded as gaps."""
    return 0 if coding == "uint32" else int(np.iinfo(CODINGS[coding]).max)


def coding_in_files(value_coding: str | None) -> str | None:
    """Return the coding of the column of values in a chunk file."""
    return "code8" if value_coding == COUNTS else value_coding


def coding_in_memory(value_coding: str | None) -> str | None:
    """Return the coding of values in a loaded block."""
    return "float32" if value_coding == COUNTS else value_coding


def entry_bytes(index_coding: str, value_coding: str | None) -> int:
    """Return the bytes of an entry in a file."""
    coding = coding_in_files(value_coding)
    value = np.dtype(VALUE_CODINGS[coding]).itemsize if coding else 0
    return int(np.dtype(CODINGS[index_coding]).itemsize) + value


@dataclass(frozen=True)
class CsrBlock:
    """Rows in CSR form: the entries `indptr[i]:indptr[i + 1]` of `indices` and `values`.

    `indices` holds gaps (uint8, uint16) or plain indices (uint32); `values` is None when all are 1. With `code8`
    a value is `levels[code]`, and there are 256 levels.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None
    labels: np.ndarray
    features: int
    weights: np.ndarray | None = None
    levels: np.ndarray = field(default_factory=lambda: NO_LEVELS)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    @property
    def coding(self) -> str:
        """The name of the index coding: gap8, gap16 or uint32."""
        return next(name for name, kind in CODINGS.items() if self.indices.dtype == kind)

    @property
    def value_coding(self) -> str | None:
        """The name of the value coding, None when all values are 1."""
        if self.values is None:
            return None
        return next(name for name, kind in VALUE_CODINGS.items() if self.values.dtype == kind)

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
        """(indptr, indices, values, levels) as compiled loops take them: read-only, and float16 as its bits."""
        values = self.values
        if values is not None and values.dtype == np.float16:
            values = values.view(np.int16)
        return read_only(self.indptr), read_only(self.indices), read_only(values), read_only(self.levels)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
        """The entries, labels and weights as compiled loops take them; the weights are empty if all are 1."""
        return *self.entries, self.labels, NO_WEIGHTS if self.weights is None else self.weights

    def decode(self) -> CsrBlock:
        """Return the rows with plain uint32 indices, checked, and decoded values."""
        from ooc_pegasos.compiled.rows import coding as kernels
        from ooc_pegasos.errors import CorruptFileError

        offsets, coded, values, levels = self.entries
        indptr = np.empty(self.rows + 1, np.int64)
        indices = np.empty(len(coded), np.uint32)
        out = np.empty(len(coded), np.float32)
        escape = escape_of(self.coding)
        status, row = kernels.decode_rows(offsets, coded, values, levels, escape, self.features, indptr, indices, out)
        if status != kernels.DECODED:
            raise CorruptFileError(f"row {row}: {STRUCTURE_PROBLEMS[status]}")
        pairs = int(indptr[-1])
        return CsrBlock(indptr, indices[:pairs], out[:pairs], self.labels, self.features, self.weights)

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the rows as a scipy CSR matrix of float32."""
        import scipy.sparse

        plain = self.decode()
        kind = np.int32 if self.features <= 2**31 else np.int64
        indices = plain.indices.astype(kind)
        return scipy.sparse.csr_matrix((plain.values, indices, plain.indptr), shape=(self.rows, self.features))


def all_levels(levels: Any) -> np.ndarray:
    """Return a table with a level for every code, so that no code is out of range; unused levels are 0."""
    table = np.zeros(LEVELS, np.float32)
    table[: len(levels)] = levels
    return table


def read_only(array: Any) -> Any:
    """Return a read-only view; numba compiles a function once more for writable arrays."""
    if array is None or not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


OVERFLOWS: dict[str, Any] = {"float16": np.float32(65_520), "bfloat16": np.uint32(0x7F7F8000).view(np.float32)}
"""The smallest values that are rounded to infinity."""

STRUCTURE_PROBLEMS = {
    1: "an index is not below the number of features",
    2: "indices do not increase",
    3: "a row ends with an escape",
    4: "an escape entry has a value other than 0",
    5: "a value is not finite",
}
"""Messages for the problems that `compiled.rows.coding.decode_rows` finds."""
