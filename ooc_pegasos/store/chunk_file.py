"""Chunk files: Arrow IPC files with a single record batch. See docs/store-format.md."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store.csr_block import LEVELS, NO_LEVELS, CsrBlock, all_levels
from ooc_pegasos.store.manifest import PAGE, Starts, round_up
from ooc_pegasos.util.arrow import array_of
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.files import create_file


class ChecksummedFile:
    """A new file with the number and the checksums of its bytes."""

    def __init__(self, path: Path) -> None:
        self._file = create_file(path, buffered=False)
        self.crc32 = 0
        self.xxh64 = RunningHash()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.xxh64.update(view)
        self.bytes += len(view)
        at = 0
        while at < len(view):
            at += self._file.write(view[at:]) or 0
        return len(view)

    def flush(self) -> None:
        """Do nothing: writes are unbuffered."""

    def close(self) -> None:
        """Close the file. Its bytes may not be on disk yet: see `files.sync_file`."""
        self.closed = True
        self._file.close()


@dataclass(frozen=True)
class Written:
    """A new chunk file."""

    bytes: int
    crc32: str
    xxh64: str
    starts: Starts


def schema_of(block: CsrBlock) -> pa.Schema:
    """Return the Arrow schema of a chunk with the columns of `block`."""
    kind = pa.from_numpy_dtype(block.indices.dtype)
    index = pa.field("index" if block.coding == "uint32" else "gap", kind, nullable=False)
    item, name = index.type, index.name
    if block.values is not None:
        of_value = pa.from_numpy_dtype(block.values.dtype)
        if block.value_coding == "code8":
            of_value = pa.dictionary(pa.uint8(), pa.float32())
        name = "bfloat16" if block.value_coding == "bfloat16" else "value"
        item, name = pa.struct([index, pa.field(name, of_value, nullable=False)]), "entry"
    fields = [pa.field("label", pa.from_numpy_dtype(block.labels.dtype), nullable=False)]
    if block.weights is not None:
        fields.append(pa.field("weight", pa.float32(), nullable=False))
    fields.append(pa.field("features", pa.list_(pa.field(name, item, nullable=False)), nullable=False))
    return pa.schema(fields)


def _batch_of(block: CsrBlock) -> pa.RecordBatch:
    schema = schema_of(block)
    items = schema.field("features").type.value_type
    content = array_of(block.indices)
    if block.values is not None:
        values = array_of(block.values)
        if block.value_coding == "code8":
            values = pa.DictionaryArray.from_arrays(values, array_of(block.levels))
        content = pa.StructArray.from_arrays([content, values], fields=list(items))
    features = pa.ListArray.from_arrays(
        array_of(block.indptr.astype(np.int32)), content, type=schema.field("features").type
    )
    columns = [array_of(block.labels)]
    if block.weights is not None:
        columns.append(array_of(block.weights))
    return pa.record_batch([*columns, features], schema=schema)


class _Recorder:
    """A file that records references to what is written, without copies."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.closed = False

    def write(self, data: Any) -> int:
        self.pieces.append(memoryview(data).cast("B"))
        return len(self.pieces[-1])

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def bytes(self, begin: int, end: int) -> bytearray:
        """Return a range of the recorded bytes."""
        found, at = bytearray(), 0
        for piece in self.pieces:
            found += piece[max(begin - at, 0) : max(end - at, 0)]
            at += len(piece)
        return found


def _arrow_file(block: CsrBlock, columns: list[np.ndarray]) -> tuple[bytearray, bytearray, bytearray]:
    """Return the Arrow file before and after the columns of the batch, and the metadata of the batch."""
    batch = _batch_of(block)
    written = _Recorder()
    with pa.ipc.new_file(pa.PythonFile(written, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    total = sum(map(len, written.pieces))
    # messages: schema, [dictionary], batch; each is a marker, the size of its metadata, the metadata and a body
    at, bodies = 8, [0] if block.value_coding != "code8" else [0, round_up(4 * LEVELS, 8)]
    for body in bodies:
        at += 8 + int.from_bytes(written.bytes(at + 4, at + 8), "little") + body
    start = at + 8 + int.from_bytes(written.bytes(at + 4, at + 8), "little")
    end = start + sum(round_up(column.nbytes, 8) for column in columns)
    return written.bytes(0, start), written.bytes(end, total), written.bytes(at, start)


# An Arrow file contains FlatBuffers. A table of FlatBuffers begins with the distance back to its vtable, the list of
# the offsets of its fields, two bytes each. A field that is a table or a list contains the distance to it.
_BODY_SIZE, _HEADER, _BUFFERS, _BATCHES = 3, 2, 2, 3  # field numbers in Message, Message, RecordBatch, Footer


def _follow(data: bytearray, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytearray, table: int, number: int) -> int:
    fields = table - struct.unpack_from("<i", data, table)[0]
    return table + int(struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])


def _move_columns(description: bytearray, foot: bytearray, places: list[int], size: int) -> None:
    """Set the offsets of the columns in the metadata of a batch, and the size of its body there and in the footer."""
    message = _follow(description, 8)
    struct.pack_into("<q", description, _field(description, message, _BODY_SIZE), size)
    batch = _follow(description, _field(description, message, _HEADER))
    buffers = _follow(description, _field(description, batch, _BUFFERS))
    left = list(places)
    for number in range(struct.unpack_from("<I", description, buffers)[0]):
        entry = buffers + 4 + 16 * number
        before, length = struct.unpack_from("<qq", description, entry)
        # an empty buffer is a validity bitmap that is left out, unless only empty columns are left
        struct.pack_into("<q", description, entry, left[0] if left else size)
        if length:
            left.pop(0)
        assert before % 8 == 0
    footer_size = struct.unpack_from("<I", foot, len(foot) - 10)[0]
    footer = _follow(foot, len(foot) - 10 - footer_size)
    batches = _follow(foot, _field(foot, footer, _BATCHES))
    struct.pack_into("<q", foot, batches + 4 + 16, size)


def write_chunk(path: Path, block: CsrBlock) -> Written:
    """Write `block` (indptr int32) to a new file.

    Arrow writes columns one after the other. Here indices and values begin at page boundaries, so that they can be
    mapped, or read with O_DIRECT, to their final address. Arrow allows a column at any offset: only the offsets in
    the metadata of the batch, and the sizes that follow from them, are changed.
    """
    columns = [block.labels, block.weights, block.indptr.astype(np.int32, copy=False), block.indices, block.values]
    present = [column for column in columns if column is not None]
    head, foot, description = _arrow_file(block, present)
    at, places = len(head), []
    for column in present:
        entries = column is block.indices or column is block.values
        places.append(round_up(at, PAGE if entries else 8))
        at = places[-1] + column.nbytes
    size = round_up(at, 8) - len(head)
    _move_columns(description, foot, [place - len(head) for place in places], size)
    head[len(head) - len(description) :] = description
    file = ChecksummedFile(path)
    try:
        file.write(head)
        for place, column in zip(places, present, strict=True):
            file.write(bytes(place - file.bytes))
            file.write(np.ascontiguousarray(column))
        file.write(bytes(len(head) + size - file.bytes))
        file.write(foot)
    finally:
        file.close()
    found = iter(places)
    starts = Starts(*(None if column is None else next(found) for column in columns))  # type: ignore[arg-type]
    return Written(file.bytes, f"{file.crc32:08x}", file.xxh64.hexdigest(), starts)


def read_chunk(buffer: pa.Buffer, features: int, name: str) -> tuple[CsrBlock, Starts]:
    """Return the rows in the bytes of a chunk file as read-only views within these bytes; indices are not checked."""
    try:
        reader = pa.ipc.open_file(buffer)
        if reader.num_record_batches != 1:
            raise CorruptFileError(f"{name}: {reader.num_record_batches} record batches instead of 1")
        batch = reader.get_batch(0)
        batch.validate()
        block, starts = _views(batch, features, buffer.address)
        if not schema_of(block).equals(batch.schema):
            raise CorruptFileError(f"{name}: not the columns of a chunk: {batch.schema}".replace("\n", ", "))
    except (
        pa.ArrowException,
        KeyError,
        OSError,
        StopIteration,
        AttributeError,
        IndexError,
        TypeError,
        ValueError,
    ) as error:
        problem = " ".join(str(error).split())
        raise CorruptFileError(f"{name}: not an Arrow file of a store: {problem}") from error
    if block.indptr[0] != 0 or block.indptr[-1] != len(block.indices):
        raise CorruptFileError(f"{name}: the row offsets do not span the entries")
    if (block.indptr[1:] < block.indptr[:-1]).any():  # compiled loops do not check
        raise CorruptFileError(f"{name}: row offsets decrease or leave the file; restore it or convert again")
    return block, starts


def _views(batch: pa.RecordBatch, features: int, base: int) -> tuple[CsrBlock, Starts]:
    listing = batch.column("features")
    content = listing.values
    values, levels, value_start = None, NO_LEVELS, None
    if pa.types.is_struct(content.type):
        column = content.field(1)
        if pa.types.is_dictionary(column.type):
            levels = all_levels(column.dictionary.to_numpy(zero_copy_only=False))
            column = column.indices
        values = column.to_numpy()
        value_start = column.buffers()[1].address - base
        content = content.field(0)
    label = batch.column("label")
    weights = batch.column("weight") if "weight" in batch.schema.names else None
    starts = Starts(
        label.buffers()[1].address - base,
        None if weights is None else weights.buffers()[1].address - base,
        listing.buffers()[1].address - base,
        content.buffers()[1].address - base,
        value_start,
    )
    block = CsrBlock(
        listing.offsets.to_numpy(),
        content.to_numpy(),
        values,
        label.to_numpy(),
        features,
        None if weights is None else weights.to_numpy(),
        levels,
    )
    return block, starts
