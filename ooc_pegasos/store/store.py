"""Store: a folder of chunk files and their manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store import manifest as manifests
from ooc_pegasos.store.csr_block import COUNTS, NO_LEVELS, CsrBlock, read_only
from ooc_pegasos.store.manifest import ChunkInfo, Manifest
from ooc_pegasos.store.targets import TargetSizes
from ooc_pegasos.util.checksums import xxh64_hex
from ooc_pegasos.util.files import unreadable

if TYPE_CHECKING:
    import pyarrow as pa
    import scipy.sparse

    from ooc_pegasos.aliases import DaskCollection, Labels, Matrix, Table
    from ooc_pegasos.config import ConvertConfig
    from ooc_pegasos.conversion.output_check import Existing
    from ooc_pegasos.store.counts import Factors

REJECTED_FILE = "rejected.jsonl"


@dataclass(frozen=True)
class Store:
    """An open store. `blocks()` yields its chunks, `to_scipy()` returns all rows of a small one."""

    path: Path
    manifest: Manifest
    known_targets: TargetSizes | None = None
    """The size of the targets of a store without files."""

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Read the manifest and check that every chunk file is there with its full size."""
        folder = Path(path)
        store = cls(folder, manifests.read(folder))
        for chunk in store.manifest.chunks:
            store.check_size(chunk)
        return store

    @classmethod
    def from_arrow(
        cls, data: Table, path: str | Path, config: ConvertConfig | None = None, existing: Existing | None = None
    ) -> Store:
        """Make a store of a table: of pyarrow, pandas, polars, datasets, or any object with an Arrow stream interface.

        Streams, which may be larger than memory, are read once and staged next to the store: a RecordBatchReader, a
        LazyFrame, a dataset of Hugging Face, dictionaries of an iterator. Of several splits of a dataset, `train`
        becomes the store and `test` its test rows.
        """
        from ooc_pegasos.conversion.from_memory import store_from_arrow

        return store_from_arrow(data, path, config, existing)

    from_pandas = from_polars = from_datasets = from_arrow

    @classmethod
    def from_scipy(
        cls,
        matrix: Matrix,
        labels: Labels,
        path: str | Path,
        weights: Labels | None = None,
        config: ConvertConfig | None = None,
        existing: Existing | None = None,
    ) -> Store:
        """Make a store of a sparse matrix of scipy or pydata, or a dense array, and the labels of its rows."""
        from ooc_pegasos.conversion.from_memory import store_from_matrix

        return store_from_matrix(matrix, labels, path, weights, config, existing)

    @classmethod
    def from_dask(
        cls,
        collection: DaskCollection,
        path: str | Path,
        labels: DaskCollection | Labels | None = None,
        config: ConvertConfig | None = None,
        existing: Existing | None = None,
        *,
        weights: DaskCollection | Labels | None = None,
    ) -> Store:
        """Make a store of a Dask dataframe, bag of dictionaries, or array with labels, on the active scheduler."""
        from ooc_pegasos.conversion.from_memory import store_from_dask

        return store_from_dask(collection, path, labels, weights, config, existing)

    @cached_property
    def checksum(self) -> str:
        """The checksum of the manifest, which identifies the content."""
        return manifests.checksum_of(self.manifest)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.manifest.rows

    @property
    def features(self) -> int:
        """The number of columns."""
        return self.manifest.features

    @property
    def nonzeros(self) -> int:
        """The number of stored entries without escapes."""
        return self.manifest.nonzeros

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}: {self.rows:,} rows, {self.features:,} features, {self.nonzeros:,} non-zeros)"

    def _repr_html_(self) -> str:
        from ooc_pegasos.reporting.notebook import store_html

        return store_html(self)

    @property
    def test(self) -> Store | None:
        """The store of the test rows that the option `test` reserved; None if there is none."""
        place = manifests.with_test_rows(self.path, self.manifest)
        return Store.open(place) if place else None

    def check_size(self, chunk: ChunkInfo) -> None:
        """Refuse a chunk file that is missing, or shorter or longer than it was written."""
        file = self.path / chunk.file
        try:
            size = file.stat().st_size
        except OSError as error:
            raise unreadable(file, error, "restore it or convert again") from error
        if size != chunk.bytes:
            raise CorruptFileError(f"{file}: {size:,} bytes instead of {chunk.bytes:,}; restore it or convert again")

    def labels_by_chunk(self) -> Iterator[np.ndarray]:
        """Yield the stored labels of each chunk. Checksums are not compared."""
        kind = np.dtype(self.manifest.layout.labels)
        for chunk in self.manifest.chunks:
            self.check_size(chunk)
            yield np.fromfile(self.path / chunk.file, kind, chunk.rows, offset=chunk.starts.labels)

    @property
    def has_files(self) -> bool:
        """True if the store is a folder; rows of Dask collections are in the memory of workers."""
        return (self.path / manifests.FILE_NAME).exists()

    @cached_property
    def targets(self) -> TargetSizes:
        """The size of real targets."""
        return self.known_targets or sum(map(TargetSizes.of, self.labels_by_chunk()), TargetSizes())

    @cached_property
    def factors(self) -> Factors | None:
        """The factors of values that files contain as counts; None if they contain the values."""
        if self.manifest.layout.values != COUNTS:
            return None
        from ooc_pegasos.store.counts import Factors

        return Factors.of(self.path, self.manifest)

    def block(self, number: int) -> CsrBlock:
        """Return chunk `number` as read-only views of its mapped file, after a check of its checksum.

        Values that the file contains as counts are decoded to new memory.
        """
        import pyarrow as pa

        chunk = self.manifest.chunks[number]
        file = self.path / chunk.file
        self.check_size(chunk)
        try:
            with pa.memory_map(str(file)) as mapped:
                buffer = mapped.read_buffer()
        except OSError as error:
            raise unreadable(file, error, "restore it or convert again") from error
        if xxh64_hex(buffer) != chunk.xxh64:
            raise CorruptFileError(
                f"{file}: the checksum does not match, so it is damaged; restore it or convert again"
            )
        block = self.parse(number, buffer)
        if self.factors is None or block.values is None:
            return block
        values = np.empty(len(block.indices), np.float32)
        self.factors.decode(block.indptr.astype(np.int64), block.indices, block.values, values, file)
        return replace(block, values=read_only(values), levels=NO_LEVELS)

    def parse(self, number: int, content: bytes | np.ndarray | pa.Buffer) -> CsrBlock:
        """Return chunk `number` as views of the bytes of its file, whose checksum was checked; counts stay."""
        import pyarrow as pa

        from ooc_pegasos.store.chunk_file import read_chunk

        chunk = self.manifest.chunks[number]
        file = self.path / chunk.file
        block, starts = read_chunk(pa.py_buffer(content), self.features, str(file))
        same_places = starts == chunk.starts or chunk.entries == 0  # Arrow gives no address to empty columns
        if (block.rows, int(block.indptr[-1]), same_places) != (chunk.rows, chunk.entries, True):
            raise CorruptFileError(f"{file}: not the rows the manifest counts; restore it or convert again")
        return block

    def blocks(self) -> Iterator[CsrBlock]:
        """Yield all chunks in order."""
        for number in range(len(self.manifest.chunks)):
            yield self.block(number)

    def ids(self, number: int) -> pa.Array | None:
        """Return the row identifiers of chunk `number` after a check of their checksum; None if there are none."""
        from ooc_pegasos.store import row_ids

        chunk = self.manifest.chunks[number]
        return row_ids.read(self.path / chunk.ids.file, chunk.ids, chunk.rows) if chunk.ids else None

    def id_type(self) -> pa.DataType | None:
        """Return the common Arrow type of the ids of all chunks; None if the store has no ids."""
        from ooc_pegasos.store import row_ids

        files, table = [chunk.ids.file for chunk in self.manifest.chunks if chunk.ids], self.manifest.recipe.table
        if not files and not (table and table.id):
            return None
        return row_ids.common_type(row_ids.type_of(self.path / file) for file in files)

    def weights(self) -> np.ndarray:
        """Return the weights of all rows, 1 by default."""
        parts = [np.ones(block.rows, np.float32) if block.weights is None else block.weights for block in self.blocks()]
        return np.concatenate(parts)

    def to_scipy(self) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
        """Return the whole store in memory: (float32 CSR matrix, labels). `weights` returns the weights of its rows."""
        import scipy.sparse

        parts = list(self.blocks())
        if not parts:
            return scipy.sparse.csr_matrix((0, self.features), dtype=np.float32), np.empty(0)
        matrix = scipy.sparse.vstack([block.to_scipy() for block in parts], format="csr")
        return matrix, np.concatenate([block.labels for block in parts])
