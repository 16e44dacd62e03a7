"""Types of what users pass in, for type checkers; nothing is imported when the program runs.

Libraries that have no types of their own are described by the methods that are called here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    class SparseMatrix(Protocol):
        """A sparse matrix or array, of scipy or pydata/sparse."""

        @property
        def shape(self) -> tuple[int, ...]:
            """Rows and columns."""

        @property
        def nnz(self) -> int:
            """Stored entries."""

    class ArrowTable(Protocol):
        """A table that exports itself as an Arrow stream: of pyarrow, pandas, polars, DuckDB."""

        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            """Export as a capsule."""

    class DaskCollection(Protocol):
        """A dataframe, array or bag of Dask."""

        def __dask_graph__(self) -> object:
            """Return the graph of tasks."""

    Matrix: TypeAlias = ArrayLike | SparseMatrix
    """Rows of numbers: a sparse matrix, an array, lists, a dataframe of numbers."""
    Labels: TypeAlias = ArrayLike
    """A number or word for each row."""
