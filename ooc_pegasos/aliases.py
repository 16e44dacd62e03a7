"""Types of what users pass in, for type checkers; nothing is imported when the program runs.

Libraries that have no types of their own are described by the methods that are called here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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

    class LazyFrame(Protocol):
        """A query of polars."""

        def collect_schema(self) -> Any:
            """Return the names and types of the columns."""

    class Dataset(Protocol):
        """A dataset of Hugging Face, iterable or not."""

        def with_format(self, type: Any) -> Any:  # noqa: A002 (the name that datasets use)
            """Return the dataset with batches of another form."""

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
    Table: TypeAlias = ArrowTable | LazyFrame | Dataset | Iterable[dict[str, Any]] | Mapping[str, Dataset]
    """A table or a stream of one; with several splits, a dictionary of datasets."""
    Matrix: TypeAlias = ArrayLike | SparseMatrix
    """Rows of numbers: a sparse matrix, an array, lists, a dataframe of numbers."""
    Labels: TypeAlias = ArrayLike
    """A number or word for each row."""
