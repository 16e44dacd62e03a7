"""One chunk of a store: an Arrow IPC file with a single record batch. See docs/store-format.md."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from ooc_pegasos.block import CsrBlock
from ooc_pegasos.errors import DamagedError


class ChecksummedFile:
    """A new file that knows the CRC-32 and the number of the bytes written to it."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (closed by close)
        self.crc32 = 0
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += len(view)
        at = 0
        while at < len(view):
            at += self._file.write(view[at:]) or 0
        return len(view)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Close the file. Its bytes are not on the disk yet: see `files.sync_file`."""
        self.closed = True
        self._file.close()


def schema_of(block: CsrBlock) -> pa.Schema:
    """The Arrow schema of a chunk with the columns of `block`."""
    kind = pa.from_numpy_dtype(block.indices.dtype)
    index = pa.field("index" if block.coding == "uint32" else "gap", kind, nullable=False)
    item = index.type if block.values is None else pa.struct([index, pa.field("value", pa.float32(), nullable=False)])
    name = index.name if block.values is None else "entry"
    fields = [pa.field("label", pa.from_numpy_dtype(block.labels.dtype), nullable=False)]
    if block.weights is not None:
        fields.append(pa.field("weight", pa.float32(), nullable=False))
    fields.append(pa.field("features", pa.list_(pa.field(name, item, nullable=False)), nullable=False))
    return pa.schema(fields)


def write_chunk(path: Path, block: CsrBlock) -> tuple[int, str]:
    """Write `block` (indptr int32) to a new file: (its size, its CRC-32)."""
    schema = schema_of(block)
    items = schema.field("features").type.value_type
    content = pa.array(block.indices)
    if block.values is not None:
        content = pa.StructArray.from_arrays([content, pa.array(block.values)], fields=list(items))
    features = pa.ListArray.from_arrays(pa.array(block.indptr, pa.int32()), content, type=schema.field("features").type)
    columns = [pa.array(block.labels)]
    if block.weights is not None:
        columns.append(pa.array(block.weights))
    batch = pa.record_batch([*columns, features], schema=schema)
    file = ChecksummedFile(path)
    try:
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
            writer.write_batch(batch)
    finally:
        file.close()
    return file.bytes, f"{file.crc32:08x}"


def read_chunk(buffer: pa.Buffer, features: int, name: str) -> CsrBlock:
    """The rows of a chunk file's bytes as read-only views of them; only the frame is checked, not the structure."""
    try:
        reader = pa.ipc.open_file(buffer)
        if reader.num_record_batches != 1:
            raise DamagedError(f"{name}: {reader.num_record_batches} record batches instead of 1")
        batch = reader.get_batch(0)
        batch.validate()
        listing = batch.column("features")
        block = _views(batch, listing, features)
        if not schema_of(block).equals(batch.schema):
            raise DamagedError(f"{name}: not the columns of a chunk: {batch.schema}".replace("\n", ", "))
    except (pa.ArrowException, KeyError, OSError, StopIteration, AttributeError, IndexError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise DamagedError(f"{name}: not an Arrow file of a store: {problem}") from error
    offsets = block.indptr
    if offsets[0] != 0 or offsets[-1] != len(block.indices):
        raise DamagedError(f"{name}: the row offsets do not span the entries")
    return block


def _views(batch: pa.RecordBatch, listing: pa.ListArray, features: int) -> CsrBlock:
    content = listing.values
    values = None
    if pa.types.is_struct(content.type):
        values = content.field(1).to_numpy()
        content = content.field(0)
    weights = batch.column("weight").to_numpy() if "weight" in batch.schema.names else None
    offsets = listing.offsets.to_numpy()
    return CsrBlock(offsets, content.to_numpy(), values, batch.column("label").to_numpy(), features, weights)
