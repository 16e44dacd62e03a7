"""CsrBlock: some rows of sparse data, as arrays. The only data that crosses a boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import scipy.sparse

CODINGS: dict[str, Any] = {"gap8": np.uint8, "gap16": np.uint16, "uint32": np.uint32}
"""How indices may be coded, and the type that holds them."""


def escape_of(coding: str) -> int:
    """The gap that means "advance and touch nothing"; 0 where indices are plain."""
    return 0 if coding == "uint32" else int(np.iinfo(CODINGS[coding]).max)


@dataclass(frozen=True)
class CsrBlock:
    """Rows whose entries `indptr[i]:indptr[i + 1]` stand in `indices` and `values`.

    `indices` holds gaps (uint8, uint16) or plain indices (uint32); `values` is None when all are 1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None
    labels: np.ndarray
    features: int
    weights: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.labels)

    @property
    def coding(self) -> str:
        """The name of the index coding: gap8, gap16 or uint32."""
        return next(name for name, kind in CODINGS.items() if self.indices.dtype == kind)

    def decode(self) -> CsrBlock:
        """The same rows with plain uint32 indices, checked, and values written out."""
        from ooc_pegasos.errors import DamagedError
        from ooc_pegasos.kernels import rows as kernels

        values = np.empty(0, np.float32) if self.values is None else self.values
        indptr = np.empty(self.rows + 1, np.int64)
        indices = np.empty(len(self.indices), np.uint32)
        out = np.empty(len(self.indices), np.float32)
        escape = escape_of(self.coding)
        status, row = kernels.decode_rows(
            self.indptr, self.indices, values, escape, self.features, indptr, indices, out
        )
        if status != kernels.DECODED:
            raise DamagedError(f"row {row}: {STRUCTURE_PROBLEMS[status]}")
        pairs = int(indptr[-1])
        return CsrBlock(indptr, indices[:pairs], out[:pairs], self.labels, self.features, self.weights)

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """The rows as a scipy CSR matrix of float32."""
        import scipy.sparse

        plain = self.decode()
        kind = np.int32 if self.features <= 2**31 else np.int64
        indices = plain.indices.astype(kind)
        return scipy.sparse.csr_matrix((plain.values, indices, plain.indptr), shape=(self.rows, self.features))


STRUCTURE_PROBLEMS = {
    1: "an index is not below the number of features",
    2: "indices do not increase",
    3: "a row ends with an escape",
    4: "an escape entry has a value other than 0",
}
"""Words for what `kernels.rows.decode_rows` may find."""
