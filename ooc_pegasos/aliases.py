"""Types of what users pass in, for type checkers; nothing is imported when the program runs.

Libraries that have no types of their own are described by the methods that are called here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

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

    class DaskClient(Protocol):
        """A client of dask.distributed, connected to a cluster."""

        def nthreads(self) -> Any:
            """Return the threads of each worker; of an asynchronous client, a coroutine."""

        def as_current(self) -> AbstractContextManager[Any]:
            """Return a context in which this client is used by default."""

        def close(self) -> object:
            """Disconnect."""

    Collection = TypeVar("Collection", bound=DaskCollection)
    """A dataframe, array or bag of Dask; a function returns the kind that it is given."""
    Matrix: TypeAlias = ArrayLike | SparseMatrix
    """Rows of numbers: a sparse matrix, an array, lists, a dataframe of numbers."""
    Labels: TypeAlias = ArrayLike
    """A number or word for each row."""
