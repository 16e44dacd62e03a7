"""NumPy's file formats: arrays in .npy files and members of .npz files, memory-mapped or decompressed as streams.

Damage is found in the headers or when the bytes are read, and sizes in headers are not trusted before the file has as
many bytes. Nothing is unpickled.
"""

from __future__ import annotations

import io
import lzma
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import STDIN, Stamp, display_name

ZIP, EMPTY_ZIP, NPY = b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY"
_LONGEST_HEADER = 10_000
"""Bytes of the header of a .npy file; the limit that numpy itself considers safe to parse."""
_LARGEST_MEMBER = 1 << 56
STEP = 1 << 20
SAVE_AGAIN = "save it again, or fetch it again"


@contextmanager
def decoding_errors(name: str) -> Iterator[None]:
    """Convert errors of zipfile, numpy and decompressors about damaged bytes into InputError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, RuntimeError) as error:
        raise damaged(name, str(error)) from error  # RuntimeError: encrypted, or an unknown compression
    except (ValueError, KeyError, IndexError, TypeError, SyntaxError, OverflowError, MemoryError) as error:
        raise damaged(name, str(error)) from error
    except OSError as error:
        if error.errno is None:  # of bz2
            raise damaged(name, str(error)) from error
        raise InputError(f"{name}: {error.strerror} while reading; check the disk and try again") from error


def damaged(name: str, what: str) -> InputError:
    """Return the error for damaged bytes."""
    reason = what.splitlines()[0][:200] if what else "invalid bytes"
    return InputError(f"{name}: the file is truncated or damaged ({reason}); {SAVE_AGAIN}")


class Column(Protocol):
    """Numbers that are read in order."""

    dtype: np.dtype[Any]
    length: int
    crc: int | None
    """Checksum of the numbers read, where resuming needs it."""

    @property
    def bytes_read(self) -> int:
        """Bytes of the file on disk read so far."""

    def take(self, count: int) -> np.ndarray:
        """Return the next numbers."""

    def seek(self, position: int, crc: int | None) -> None:
        """Skip to a later position; `crc` is the checksum there, or None."""

    def finish(self) -> None:
        """End reading and check the checksum, if there is one."""


class PeekableColumn(Column, Protocol):
    """A column whose next numbers can be read without consuming them."""

    def peek(self, count: int) -> np.ndarray:
        """Return the next numbers, or fewer at the end, without reading past them."""


class Array:
    """A column, or the rows of a dense array, memory-mapped from a file."""

    crc: int | None = None

    def __init__(self, array: np.ndarray, check: Callable[[], None] = lambda: None) -> None:
        self._array, self._check = array, check  # before bytes are touched: the file may have been cut short
        self._at = 0
        self.dtype, self.length = array.dtype, len(array)

    @property
    def bytes_read(self) -> int:
        return self._at * (self._array.nbytes // self.length) if self.length else 0

    def peek(self, count: int) -> np.ndarray:
        return self._array[self._at : self._at + count]

    def take(self, count: int) -> np.ndarray:
        self._check()
        piece = self.peek(count)
        self._at += len(piece)
        return piece

    def seek(self, position: int, crc: int | None) -> None:
        self._at = position

    def finish(self) -> None:
        self._check()


class _Stored(Array):
    """A column memory-mapped from an uncompressed member of a zip file."""

    def __init__(self, array: np.ndarray, name: str, member: zipfile.ZipInfo, header: bytes) -> None:
        super().__init__(array)
        self._name, self._member = name, member
        self.crc = zlib.crc32(header)

    def take(self, count: int) -> np.ndarray:
        piece = super().take(count)
        self.crc = zlib.crc32(piece.view(np.uint8).data, self.crc or 0)
        return piece

    def seek(self, position: int, crc: int | None) -> None:
        if crc is not None:
            self._at, self.crc = position, crc
        while self._at < position:
            self.take(min(STEP, position - self._at))

    def finish(self) -> None:
        self.seek(self.length, None)
        if self.crc != self._member.CRC:
            raise InputError(f"{self._name}: the checksum of {self._member.filename} does not match; {SAVE_AGAIN}")


class _Compressed:
    """A column decompressed while it is read."""

    crc: int | None = None  # zipfile keeps it: to resume, all must be decompressed once more

    def __init__(self, stream: Any, name: str, member: zipfile.ZipInfo, dtype: np.dtype[Any], length: int) -> None:
        self._stream, self._name, self._member = stream, name, member
        self.dtype, self.length = dtype, length
        self._left = length
        self._buffered = np.empty(0, dtype)

    @property
    def bytes_read(self) -> int:
        done = (self.length - self._left - len(self._buffered)) * self.dtype.itemsize
        return self._member.compress_size * done // max(self._member.file_size, 1)

    def peek(self, count: int) -> np.ndarray:
        missing = min(count - len(self._buffered), self._left)
        if missing > 0:
            self._buffered = np.concatenate([self._buffered, self._read(missing)])
        return self._buffered[:count]

    def take(self, count: int) -> np.ndarray:
        if not len(self._buffered):
            return self._read(min(count, self._left))
        piece = self.peek(count)
        self._buffered = self._buffered[count:]
        return piece

    def seek(self, position: int, crc: int | None) -> None:
        at = self.length - self._left - len(self._buffered)
        while at < position:
            at += len(self.take(min(STEP, position - at)))

    def finish(self) -> None:
        self.seek(self.length, None)
        with decoding_errors(self._name):
            self._stream.read(1)  # so that zipfile compares the checksum, even of nothing

    def _read(self, count: int) -> np.ndarray:
        """Return the next bytes; the array grows with the data, because the size in the file may be wrong."""
        content = bytearray()
        size = count * self.dtype.itemsize
        with decoding_errors(self._name):
            while len(content) < size:
                piece = self._stream.read(min(STEP, size - len(content)))
                if not piece:
                    raise EOFError(f"{self._member.filename} ends too early")
                content += piece
        self._left -= count
        return np.frombuffer(content, self.dtype, count)


@dataclass(frozen=True)
class _Header:
    """The header of an array in NumPy's format."""

    raw: bytes
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes that must follow the header."""
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    @classmethod
    def read(cls, read: Callable[[int], bytes], name: str, what: str) -> _Header:
        """Parse a header; arrays that need pickle are refused."""
        with decoding_errors(name):
            raw = read(8)
            if raw[:6] != NPY:
                raise ValueError(f"{what} is not an array")
            wide = {b"\x01\x00": 2, b"\x02\x00": 4}.get(raw[6:8])
            if wide is None:
                raise ValueError(f"{what} is of an unknown version")
            raw += read(wide)
            length = int.from_bytes(raw[8:], "little")
            if length > _LONGEST_HEADER:
                raise ValueError(f"{what} has a header of {length:,} bytes")
            raw += read(length)
            parse = np.lib.format.read_array_header_1_0 if wide == 2 else np.lib.format.read_array_header_2_0
            file = io.BytesIO(raw)
            file.seek(8)
            try:
                shape, by_columns, dtype = parse(file)
            except Exception as error:  # numpy passes on any error of Python's parser
                raise ValueError(f"{what} has a header that cannot be read") from error
        if dtype.hasobject:
            raise InputError(
                f"{name}: {what} holds Python objects, which are never loaded; save numbers, or words with .astype(str)"
            )
        if min(shape, default=0) < 0:
            raise damaged(name, f"{what} has a negative extent")
        return cls(raw, shape, by_columns, dtype)


class Archive:
    """A zip file of arrays: uncompressed members are memory-mapped, others read as streams."""

    def __init__(self, name: str, file: BinaryIO, size: int, stack: ExitStack) -> None:
        self._name, self._size, self._stack = name, size, stack
        with decoding_errors(name):
            self._zip = stack.enter_context(zipfile.ZipFile(file))
            self._members = {member.filename: member for member in self._zip.infolist()}
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._members

    def small(self, name: str) -> np.ndarray | None:
        """Return a small member, or None."""
        if name not in self:
            return None
        member = self._member(name)
        with decoding_errors(self._name), self._zip.open(member) as stream:
            header = _Header.read(stream.read, self._name, member.filename)
            if header.size > 1 << 10:
                raise ValueError(f"{member.filename} has {header.size:,} bytes")
            content = stream.read(header.size + 1)
            if len(content) != header.size or header.dtype.itemsize == 0:
                raise ValueError(f"{member.filename} has another size than its header says")
            return np.frombuffer(content, header.dtype).reshape(header.shape)

    def column(self, name: str, kinds: str, length: int | None) -> PeekableColumn:
        """Return a member that is an array of numbers."""
        if name not in self:
            raise damaged(self._name, f"no member {name}.npy in it")
        member = self._member(name)
        content, begin = None, 0
        if member.compress_type == zipfile.ZIP_STORED:
            begin = self._begin(member)
            source: Any = io.BytesIO(self._map[begin : begin + min(member.file_size, _LONGEST_HEADER + 12)])
        else:
            with decoding_errors(self._name):
                source = content = self._stack.enter_context(self._zip.open(member))
        header = _Header.read(source.read, self._name, member.filename)
        check_column(header.shape, header.dtype, self._name, member.filename, kinds)
        count = header.shape[0]
        if member.file_size != len(header.raw) + header.size:
            raise damaged(self._name, f"{member.filename} has not as many bytes as its header says")
        if length is not None and count != length:
            raise InputError(
                f"{self._name}: {member.filename} has {count:,} entries where {length:,} belong; save the matrix again"
            )
        if content is not None:
            return _Compressed(content, self._name, member, header.dtype, count)
        array = np.frombuffer(self._map, header.dtype, count, begin + len(header.raw)) if count else None
        return _Stored(np.empty(0, header.dtype) if array is None else array, self._name, member, header.raw)

    def _member(self, name: str) -> zipfile.ZipInfo:
        member = self._members[f"{name}.npy"]
        if member.file_size > _LARGEST_MEMBER:
            raise damaged(self._name, f"{member.filename} claims {member.file_size:,} bytes")
        if member.flag_bits & 1:
            raise InputError(f"{self._name}: the archive is encrypted; save it again without a password")
        return member

    def _begin(self, member: zipfile.ZipInfo) -> int:
        """Return the position in the file of the bytes of an uncompressed member."""
        at = member.header_offset
        local = self._map[at : at + 30] if at >= 0 else b""
        if len(local) < 30 or local[:4] != ZIP:
            raise damaged(self._name, f"{member.filename} is not at its offset")
        begin = at + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        if member.compress_size != member.file_size or begin + member.file_size > self._size:
            raise damaged(self._name, f"{member.filename} extends beyond the file")
        return begin


def open_array(name: str) -> BinaryIO:
    """Open a file; standard input is refused, because arrays need random access."""
    if name == STDIN or is_remote(name):
        raise InputError(f"{display_name(name)}: arrays are read from files of this machine alone; save it to one")
    try:
        return open(name, "rb", buffering=0)
    except OSError as error:
        raise InputError(f"{display_name(name)}: {error.strerror}; check the path and its permissions") from error


def check_unchanged(name: str, stamp: Stamp) -> None:
    """Raise InputError if a file has changed; to read a mapped file that was truncated would crash."""
    try:
        same = Stamp.of(os.stat(name)) == stamp
    except OSError:
        same = False
    if not same:
        raise InputError(f"{display_name(name)}: changed during the conversion; convert again when nobody writes to it")


def check_column(shape: tuple[int, ...], dtype: np.dtype[Any], name: str, what: str, kinds: str) -> None:
    """Raise InputError for an array that is not a column, or not of numbers of an allowed type."""
    if len(shape) != 1 and shape[1:] != (1,):
        raise InputError(f"{name}: {what} has the shape {shape}; save one entry for each row")
    if dtype.kind not in kinds or dtype.itemsize == 0:
        wanted = "integers" if kinds == "iu" else "numbers or words" if "U" in kinds else "real numbers"
        raise InputError(f"{name}: {what} is of type {dtype}; save {wanted}, words with .astype(str)")


def map_npy(file: BinaryIO, size: int, name: str) -> np.ndarray:
    """Return the array of a .npy file, memory-mapped."""
    file.seek(0)
    header = _Header.read(file.read, name, "the file")
    if len(header.raw) + header.size != size:
        raise damaged(name, f"{size:,} bytes where its header says {len(header.raw) + header.size:,}")
    if header.size == 0:
        return np.empty(header.shape, header.dtype)
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(content, header.dtype, offset=len(header.raw))
    return array.reshape(header.shape, order="F" if header.by_columns else "C")
