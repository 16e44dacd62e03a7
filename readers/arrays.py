"""Arrays: scipy's CSR matrices in .npz files, dense .npy files, and matrices that are in memory already."""

from __future__ import annotations

import io
import lzma
import mmap
import os
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np

from ooc_pegasos.block import CsrBlock, read_only
from ooc_pegasos.checksums import RunningHash
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.kernels import arrays as kernels
from ooc_pegasos.kernels.weights import LEAST, MOST
from ooc_pegasos.labels import key_of, spell
from ooc_pegasos.manifest import SourceInfo
from ooc_pegasos.readers.reading import DESCRIBED_BAD_ROWS, LARGEST_INDEX, BadRow, ParsedBlock, Piece, place
from ooc_pegasos.readers.sources import STDIN, Stamp, TextBlock, TextSource, hash_of, spoken, stamp_of
from ooc_pegasos.scratch import Pool, Scratch

NAME = "arrays"

PROBLEMS = {
    kernels.INDEX_TOO_LARGE: "the column {index} is above the limit of {limit}; allow more --features "
    "(at most 4,294,967,294)",
    kernels.INDEX_DUPLICATE: "the column {index} stands twice in the row; call sum_duplicates() on the matrix first",
    kernels.VALUE_NOT_FINITE: "the value {value} in column {index} is not finite; remove the row or correct it",
    kernels.LABEL_NOT_FINITE: "the label is not finite; remove the row or correct it",
    kernels.LABEL_EMPTY: "the label is an empty word; give every row a label",
    kernels.LABEL_NOT_TEXT: "the label is not Unicode text; correct it",
    kernels.WEIGHT_OUT_OF_RANGE: "the weight is not from 1e-9 to 1e9; leave out rows that are not to count, and "
    "scale the weights of the others",
}
_VALUE_TOO_LARGE = "the value {value} in column {index} is too large for float32; scale the data"
_LINE_PROBLEMS = {
    kernels.EMPTY: "an empty line where a label should be; give every row of the inputs one",
    kernels.NO_NUMBER: "the label '{token}' is not a number; correct it, or save words as a .npy file",
    kernels.MORE_THAN_ONE: "'{token}' after the label; give one number a line",
}

_LABEL_MEMBERS = ("labels", "y")
_ZIP, _EMPTY_ZIP, _NPY = b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY"
_LONGEST_HEADER = 10_000
"""Of a .npy file; what numpy itself takes for safe to parse."""
_LARGEST_MEMBER = 1 << 56
_STEP = 1 << 20
_LONG_ROW = 1 << 20
"""Only rows with more entries than this are refused for having more than there are columns before they are read."""
_AGAIN = "save it again, or fetch it again"


@dataclass(frozen=True)
class Settings:
    """How to read the arrays; all of it is fixed before the first row."""

    text_labels: bool = False
    labels: str | None = None
    """A .npy file, or text with a number a line, with a label for each row of the inputs that have none themselves."""
    label_column: int | None = None
    """A column of dense arrays that is the label, from the end if negative; those after it move up."""
    largest_index: int = LARGEST_INDEX
    stop_at_bad: bool = True
    with_labels: bool = True
    """Otherwise labels and weights are not looked at, and all labels are 0."""


class _Column(Protocol):
    """Numbers that are taken from front to back."""

    dtype: np.dtype[Any]
    length: int
    crc: int | None
    """Of what was taken, where that must be known to go on."""

    @property
    def taken(self) -> int:
        """How many bytes of the file on disk what was taken amounts to."""

    def peek(self, count: int) -> np.ndarray:
        """The next numbers, as many as there are."""

    def take(self, count: int) -> np.ndarray:
        """The next numbers, which there must be; a later call gives those after them."""

    def go_to(self, position: int, crc: int | None) -> None:
        """Leave out all before a position further on; `crc` as it was there, if that is known."""

    def finish(self) -> None:
        """Nothing more is wanted; check what can be checked now."""


class _Array:
    """A column, or the rows of a dense array, in memory or mapped from a file."""

    crc: int | None = None

    def __init__(self, array: np.ndarray, check: Callable[[], None] = lambda: None) -> None:
        self._array, self._check = array, check
        self._at = 0
        self.dtype, self.length = array.dtype, len(array)

    @property
    def taken(self) -> int:
        return self._at * (self._array.nbytes // self.length) if self.length else 0

    def peek(self, count: int) -> np.ndarray:
        return self._array[self._at : self._at + count]

    def take(self, count: int) -> np.ndarray:
        self._check()
        piece = self.peek(count)
        self._at += len(piece)
        return piece

    def go_to(self, position: int, crc: int | None) -> None:
        self._at = position

    def finish(self) -> None:
        self._check()


class _Stored(_Array):
    """A column mapped from a member of a zip file that is not compressed."""

    def __init__(self, array: np.ndarray, name: str, member: zipfile.ZipInfo, header: bytes) -> None:
        super().__init__(array)
        self._name, self._member = name, member
        self.crc = zlib.crc32(header)

    def take(self, count: int) -> np.ndarray:
        piece = super().take(count)
        self.crc = zlib.crc32(piece.view(np.uint8).data, self.crc or 0)
        return piece

    def go_to(self, position: int, crc: int | None) -> None:
        if crc is not None:
            self._at, self.crc = position, crc
        while self._at < position:
            self.take(min(_STEP, position - self._at))

    def finish(self) -> None:
        self.go_to(self.length, None)
        if self.crc != self._member.CRC:
            raise InputError(f"{self._name}: the checksum of {self._member.filename} does not match; {_AGAIN}")


class _Compressed:
    """A column decompressed while it is taken."""

    crc: int | None = None  # zipfile keeps it: to go on, all must be decompressed once more

    def __init__(self, stream: Any, name: str, member: zipfile.ZipInfo, dtype: np.dtype[Any], length: int) -> None:
        self._stream, self._name, self._member = stream, name, member
        self.dtype, self.length = dtype, length
        self._left = length
        self._ahead = np.empty(0, dtype)

    @property
    def taken(self) -> int:
        done = (self.length - self._left - len(self._ahead)) * self.dtype.itemsize
        return self._member.compress_size * done // max(self._member.file_size, 1)

    def peek(self, count: int) -> np.ndarray:
        missing = min(count - len(self._ahead), self._left)
        if missing > 0:
            self._ahead = np.concatenate([self._ahead, self._read(missing)])
        return self._ahead[:count]

    def take(self, count: int) -> np.ndarray:
        if not len(self._ahead):
            return self._read(min(count, self._left))
        piece = self.peek(count)
        self._ahead = self._ahead[count:]
        return piece

    def go_to(self, position: int, crc: int | None) -> None:
        at = self.length - self._left - len(self._ahead)
        while at < position:
            at += len(self.take(min(_STEP, position - at)))

    def finish(self) -> None:
        self.go_to(self.length, None)
        with _sound(self._name):
            self._stream.read(1)  # so that zipfile compares the checksum, even of nothing

    def _read(self, count: int) -> np.ndarray:
        """The array grows as bytes come: the file may lie about how many there are."""
        content = bytearray()
        size = count * self.dtype.itemsize
        with _sound(self._name):
            while len(content) < size:
                piece = self._stream.read(min(_STEP, size - len(content)))
                if not piece:
                    raise EOFError(f"{self._member.filename} ends too early")
                content += piece
        self._left -= count
        return np.frombuffer(content, self.dtype, count)


@contextmanager
def _sound(name: str) -> Iterator[None]:
    """Call whatever zipfile, numpy and the decompressors say of damaged bytes by one name."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, RuntimeError) as error:
        raise _damaged(name, str(error)) from error  # RuntimeError: encrypted, or a compression nobody knows
    except (ValueError, KeyError, IndexError, TypeError, SyntaxError, OverflowError, MemoryError) as error:
        raise _damaged(name, str(error)) from error
    except OSError as error:
        if error.errno is None:  # of bz2
            raise _damaged(name, str(error)) from error
        raise InputError(f"{name}: {error.strerror} while reading; check the disk and try again") from error


def _damaged(name: str, what: str) -> InputError:
    told = what.splitlines()[0][:200] if what else "its bytes make no sense"
    return InputError(f"{name}: the file is truncated or damaged ({told}); {_AGAIN}")


@dataclass(frozen=True)
class _Header:
    """The first bytes of an array in NumPy's format, and what they say."""

    raw: bytes
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """How many bytes the array must have after the header."""
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    @classmethod
    def read(cls, read: Callable[[int], bytes], name: str, what: str) -> _Header:
        """Parse it; nothing that needs pickle to be read gets any further."""
        with _sound(name):
            raw = read(8)
            if raw[:6] != _NPY:
                raise ValueError(f"{what} is no array")
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
            except Exception as error:  # numpy hands on whatever Python's parser thinks of odd bytes
                raise ValueError(f"{what} has a header that cannot be read") from error
        if dtype.hasobject:
            raise InputError(
                f"{name}: {what} holds Python objects, which are never loaded; save numbers, or words with .astype(str)"
            )
        if min(shape, default=0) < 0:
            raise _damaged(name, f"{what} has a negative extent")
        return cls(raw, shape, by_columns, dtype)


@dataclass
class _Matrix:
    """One input that is open."""

    rows: int
    columns: int
    indptr: _Column | None
    """Of a dense array there is none, nor are there indices, and `data` has rows."""
    indices: _Column | None
    data: _Column
    entry_bytes: int
    row_bytes: int
    labels: _Column | None
    weights: _Column | None
    label_column: int
    """-1: none."""
    check: Callable[[], None]
    """Raises if the input has changed since it was opened."""

    def parts(self) -> dict[str, _Column]:
        """The columns it is read from, less labels that are not its own."""
        named = ("indptr", "indices", "data", "labels", "weights")
        return {name: part for name in named if (part := getattr(self, name)) is not None}


@dataclass
class _Rows:
    """The content of a task: some rows as they lie in the input."""

    first: int
    columns: int
    indptr: np.ndarray | None
    indices: np.ndarray | None
    data: np.ndarray
    labels: np.ndarray | None
    weights: np.ndarray | None
    label_column: int

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.data) if self.indptr is None else len(self.indptr) - 1


class _FileSource:
    """An .npz or .npy file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stamp: Stamp | None = None

    def info(self, rows: int) -> SourceInfo:
        """The fingerprint of the file, of which all was read."""
        before = self._stamp or stamp_of(self.name)
        with _sound(self.name):
            digest = hash_of(self.name)
        _check_unchanged(self.name, before)
        return SourceInfo(self.name, before.size, digest, rows)

    @contextmanager
    def open(self, settings: Settings) -> Iterator[_Matrix]:
        """Check everything that can be told from the headers."""
        with ExitStack() as stack:
            file = stack.enter_context(_open(self.name))
            stamp = self._stamp = Stamp.of(os.fstat(file.fileno()))
            if not stamp.regular:
                raise InputError(f"{self.name}: arrays are read from files alone; save it to one and name that")
            head = file.read(6)
            if head[:4] in (_ZIP, _EMPTY_ZIP):
                matrix = self._open_npz(file, stamp, settings, stack)
            elif head == _NPY:
                matrix = self._open_npy(file, stamp, settings)
            else:
                raise InputError(f"{self.name}: neither an .npz nor a .npy file; check how it was made, or {_AGAIN}")
            yield matrix

    def _open_npz(self, file: BinaryIO, stamp: Stamp, settings: Settings, stack: ExitStack) -> _Matrix:
        name = self.name
        if settings.label_column is not None:
            raise InputError(f"{name}: a sparse matrix has no label column; add a member 'labels' or say --labels")
        archive = _Archive(name, file, stamp.size, stack)
        kind = archive.small("format")
        if kind is None or kind.dtype.kind not in "SU" or kind.size != 1:
            raise InputError(f"{name}: no matrix of scipy's; save it with scipy.sparse.save_npz(file, matrix.tocsr())")
        spelled = str(np.char.decode(kind, "latin1").item() if kind.dtype.kind == "S" else kind.item())
        if spelled != "csr":
            raise InputError(f"{name}: a matrix in the format {spelled!r}; save it as CSR: matrix.tocsr()")
        shape = archive.small("shape")
        if shape is None or shape.dtype.kind not in "iu" or shape.shape != (2,) or shape.min() < 0:
            raise _damaged(name, "the member shape does not hold two counts")
        rows, columns = int(shape[0]), int(shape[1])
        indptr = archive.column("indptr", "iu", rows + 1)
        indices = archive.column("indices", "iu", None)
        data = archive.column("data", "biuf", indices.length)
        weights = labels = None
        if settings.with_labels:
            found = next((member for member in _LABEL_MEMBERS if member in archive), None)
            labels = archive.column(found, "biufU", rows) if found else None
            _check_labels(labels, settings, name)
            if labels is None and settings.labels is None:
                raise InputError(f"{name}: no labels; save them as a member 'labels' or name their file with --labels")
            weights = archive.column("weights", "biuf", rows) if "weights" in archive else None
        entry = indices.dtype.itemsize + data.dtype.itemsize
        row = indptr.dtype.itemsize + 8
        return _Matrix(
            rows, columns, indptr, indices, data, entry, row, labels, weights, -1, lambda: _check_unchanged(name, stamp)
        )

    def _open_npy(self, file: BinaryIO, stamp: Stamp, settings: Settings) -> _Matrix:
        name = self.name
        array = _map_npy(file, stamp.size, name)
        _check_dense(array, name)
        if settings.with_labels and settings.labels is None and settings.label_column is None:
            raise InputError(f"{name}: no labels; name their file with --labels or their column: --label-column")
        return _dense(array, settings, name, lambda: _check_unchanged(name, stamp))


class _Archive:
    """A zip file of arrays: members that are not compressed are mapped, the others read as streams."""

    def __init__(self, name: str, file: BinaryIO, size: int, stack: ExitStack) -> None:
        self._name, self._size, self._stack = name, size, stack
        with _sound(name):
            self._zip = stack.enter_context(zipfile.ZipFile(file))
            self._members = {member.filename: member for member in self._zip.infolist()}
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._members

    def small(self, name: str) -> np.ndarray | None:
        """A member of a few bytes, None if there is none."""
        if name not in self:
            return None
        member = self._member(name)
        with _sound(self._name), self._zip.open(member) as stream:
            header = _Header.read(stream.read, self._name, member.filename)
            if header.size > 1 << 10:
                raise ValueError(f"{member.filename} has {header.size:,} bytes")
            content = stream.read(header.size + 1)
            if len(content) != header.size or header.dtype.itemsize == 0:
                raise ValueError(f"{member.filename} has not as many bytes as its header says")
            return np.frombuffer(content, header.dtype).reshape(header.shape)

    def column(self, name: str, kinds: str, length: int | None) -> _Column:
        """A member that is an array of numbers."""
        if name not in self:
            raise _damaged(self._name, f"no member {name}.npy in it")
        member = self._member(name)
        content, begin = None, 0
        if member.compress_type == zipfile.ZIP_STORED:
            begin = self._begin(member)
            source: Any = io.BytesIO(self._map[begin : begin + min(member.file_size, _LONGEST_HEADER + 12)])
        else:
            with _sound(self._name):
                source = content = self._stack.enter_context(self._zip.open(member))
        header = _Header.read(source.read, self._name, member.filename)
        count = _length_of(header, self._name, member.filename, kinds)
        if member.file_size != len(header.raw) + header.size:
            raise _damaged(self._name, f"{member.filename} has not as many bytes as its header says")
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
            raise _damaged(self._name, f"{member.filename} claims {member.file_size:,} bytes")
        if member.flag_bits & 1:
            raise InputError(f"{self._name}: the archive is encrypted; save it again without a password")
        return member

    def _begin(self, member: zipfile.ZipInfo) -> int:
        """Where in the file the bytes of a member that is not compressed begin."""
        at = member.header_offset
        local = self._map[at : at + 30] if at >= 0 else b""
        if len(local) < 30 or local[:4] != _ZIP:
            raise _damaged(self._name, f"{member.filename} is not where it should be")
        begin = at + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        if member.compress_size != member.file_size or begin + member.file_size > self._size:
            raise _damaged(self._name, f"{member.filename} leaves the file")
        return begin


def _open(name: str) -> BinaryIO:
    """Open a file, but not standard input: arrays are not read from front to back."""
    if name == STDIN:
        raise InputError(f"{spoken(name)}: arrays are read from files alone; save it to one and name that")
    try:
        return open(name, "rb", buffering=0)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}; check the path and its permissions") from error


def _check_unchanged(name: str, stamp: Stamp) -> None:
    """Of a mapped file that was cut short not even the attempt to read is safe."""
    try:
        same = Stamp.of(os.stat(name)) == stamp
    except OSError:
        same = False
    if not same:
        raise InputError(f"{name}: changed during the conversion; convert again when nobody writes to it")


def _length_of(header: _Header, name: str, what: str, kinds: str) -> int:
    """How many numbers a column has, which must be one and of numbers that will do."""
    if len(header.shape) != 1 and header.shape[1:] != (1,):
        raise InputError(f"{name}: {what} has the shape {header.shape}; save one entry for each row")
    if header.dtype.kind not in kinds or header.dtype.itemsize == 0:
        wanted = "integers" if kinds == "iu" else "numbers or words" if "U" in kinds else "real numbers"
        raise InputError(f"{name}: {what} is of type {header.dtype}; save {wanted}, words with .astype(str)")
    return header.shape[0]


def _map_npy(file: BinaryIO, size: int, name: str) -> np.ndarray:
    """The array of a .npy file, of which nothing is read yet."""
    file.seek(0)
    header = _Header.read(file.read, name, "the file")
    if len(header.raw) + header.size != size:
        raise _damaged(name, f"{size:,} bytes where its header says {len(header.raw) + header.size:,}")
    if header.size == 0:
        return np.empty(header.shape, header.dtype)
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(content, header.dtype, offset=len(header.raw))
    return array.reshape(header.shape, order="F" if header.by_columns else "C")


def _check_dense(array: np.ndarray, name: str) -> None:
    if array.ndim != 2:
        raise InputError(f"{name}: an array of {array.ndim} dimensions; save a row for each example: two dimensions")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: an array of type {array.dtype}; save real numbers")


def _dense(array: np.ndarray, settings: Settings, name: str, check: Callable[[], None]) -> _Matrix:
    """A dense array of two dimensions as an input."""
    rows, columns = array.shape
    column = -1
    if settings.label_column is not None:
        column = settings.label_column + (columns if settings.label_column < 0 else 0)
        if not 0 <= column < columns:
            raise InputError(
                f"{name}: no column {settings.label_column} among {columns:,} (the first is 0); correct --label-column"
            )
    row = array.dtype.itemsize * columns + 8
    return _Matrix(rows, columns, None, None, _Array(array), 0, row, None, None, column, check)


def _check_labels(labels: _Column | None, settings: Settings, name: str) -> None:
    if labels is not None and labels.dtype.kind == "U" and not settings.text_labels:
        raise InputError(f"{name}: the labels are words; name them with --classes")


class _TextLabels:
    """A text file with a number a line."""

    dtype: np.dtype[Any] = np.dtype(np.float64)
    crc: int | None = None
    taken = 0

    def __init__(self, name: str, length: int) -> None:
        self.length = length
        self._name = name
        self._spare: deque[np.ndarray] = deque()
        self._blocks = TextSource(name, 0, 1 << 18, self._spare, "a text file of labels").blocks()
        self._block: TextBlock | None = None
        self._at = 0
        self._done = 0

    def peek(self, count: int) -> np.ndarray:
        raise NotImplementedError  # only indptr is looked at ahead

    def take(self, count: int) -> np.ndarray:
        labels = np.empty(count)
        filled = 0
        while filled < count:
            block = self._unread()
            if block is None:
                problem = f"the labels end after {self._done:,}, but there are {self.length:,} rows"
                raise InputError(f"{self._name}: {problem}; give every row of the inputs one, in their order")
            code, number, self._at = kernels.parse_labels(
                read_only(block.text), self._at, block.length, labels[filled:]
            )
            filled += number
            self._done += number
            if code != kernels.SOUND:
                excerpt = block.text[self._at : self._at + 41].tobytes().partition(b"\n")[0]
                token = (excerpt.split() or [excerpt])[0].decode("ascii", "backslashreplace")
                raise InputError(f"{self._name}:{self._done + 1}: {_LINE_PROBLEMS[code].format(token=token)}")
        return labels

    def go_to(self, position: int, crc: int | None) -> None:
        while self._done < position:
            self.take(min(_STEP, position - self._done))

    def finish(self) -> None:
        if self._unread() is not None:
            raise InputError(
                f"{self._name}:{self._done + 1}: a label too many: there are {self.length:,} rows; give every row of "
                "the inputs that have no labels of their own one, in their order"
            )

    def _unread(self) -> TextBlock | None:
        if self._block is None or self._at == self._block.length:
            if self._block is not None:
                self._spare.append(self._block.text)
            self._block, self._at = next(self._blocks, None), 0
        return self._block


def _labels_file(name: str, settings: Settings, length: int | None) -> _Column:
    """The file of labels, which must be that long."""
    with _open(name) as file:
        with _sound(name):
            stamp, head = Stamp.of(os.fstat(file.fileno())), file.read(6) if os.path.isfile(name) else b""
        if head != _NPY:
            return _TextLabels(name, length or 0)
        array = _map_npy(file, stamp.size, name)
    if array.ndim != 1 and array.shape[1:] != (1,):
        raise InputError(f"{name}: labels of the shape {array.shape}; save one for each row")
    if array.dtype.kind not in "biufU" or array.dtype.itemsize == 0:
        raise InputError(f"{name}: labels of type {array.dtype}; save numbers, or words with .astype(str)")
    labels = _Array(array.reshape(-1), lambda: _check_unchanged(name, stamp))
    _check_labels(labels, settings, name)
    if length is not None and labels.length != length:
        problem = f"{labels.length:,} labels where the inputs have {length:,} rows without one of their own"
        raise InputError(f"{name}: {problem}; give each of those one, in their order")
    return labels


class _ArraysReader:
    """What is the same for arrays wherever they are: cutting them into tasks, and turning those into rows."""

    unit = "row"

    def __init__(self, settings: Settings, block_size: int) -> None:
        if settings.labels is not None and settings.label_column is not None:
            raise UsageError("labels are in a file or in a column; leave out --labels or --label-column")
        self.settings = settings
        self._block_size = max(block_size, 1)
        self._pool = Pool()

    def read(self, task: Piece) -> ParsedBlock:
        """Check one task's rows and put them in order."""
        settings, content = self.settings, task.content
        count = content.count
        scratch = self._pool.take()
        faults = scratch.array("faults", count, np.int8)
        faults[:] = 0
        labels, texts = self._labels_of(content, scratch, faults)
        weights = _weights_of(content, faults)
        indptr = scratch.array("indptr", count + 1, np.int64)
        kept = scratch.array("lines", count, np.int64)
        bad = np.empty((1 if settings.stop_at_bad else DESCRIBED_BAD_ROWS, 3), np.int64)
        limit = min(settings.largest_index, LARGEST_INDEX)
        options = (limit, settings.stop_at_bad, indptr)
        values = _as(content.data, np.float32, scratch, "raw values")
        if content.indptr is None:
            entries = int(np.count_nonzero(values))
            indices = scratch.array("indices", entries, np.uint32)
            found = scratch.array("values", entries, np.float32)
            rows, bad_rows = kernels.dense_rows(
                values, read_only(faults), content.label_column, *options, indices, found, kept, bad
            )
        else:
            entries = len(content.data)
            indices = scratch.array("indices", entries, np.uint32)
            found = scratch.array("values", entries, np.float32)
            plain = _as(content.indices, np.int64, scratch, "raw indices")
            outside, row, rows, bad_rows = kernels.csr_rows(
                read_only(content.indptr),
                plain,
                values,
                read_only(faults),
                content.columns,
                *options,
                indices,
                found,
                kept,
                bad,
            )
            if outside >= 0:
                where = place(self._name_of(task.source), self.unit, content.first + row + 1)
                problem = f"the column {content.indices[outside]} is not among the {content.columns:,} of the matrix"
                raise InputError(f"{where}: {problem}; the matrix is damaged, make it again")
        problems = [self._describe(content, *row) for row in bad[:bad_rows].tolist()]
        pairs = int(indptr[rows])
        if rows < count:
            labels[:rows] = labels[kept[:rows]]
            weights = None if weights is None else weights[kept[:rows]]
        numbers = scratch.array("numbers", rows, np.uint32)
        numbers[:] = kept[:rows]
        names = texts(labels[:rows], kept)
        block = CsrBlock(indptr[: rows + 1], indices[:pairs], found[:pairs], labels[:rows], LARGEST_INDEX + 1, weights)
        return ParsedBlock(task, block, kept[:rows], numbers, count, problems, bad_rows, names, scratch)

    def release(self, parsed: ParsedBlock) -> None:
        """The arrays of `parsed` may be used for another block."""
        self._pool.give_back(parsed.scratch)

    def _name_of(self, source: int) -> str:
        raise NotImplementedError

    def _labels_of(
        self, content: _Rows, scratch: Scratch, faults: np.ndarray
    ) -> tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], dict[int, str]]]:
        """(labels or the bits of their hashes, what gives their names once it is known which rows are kept)."""
        count = content.count
        labels = scratch.array("labels", count)
        raw = content.labels
        if raw is None:
            labels[:] = 0
            return labels, _no_names
        if raw.dtype.kind == "U":
            words = np.require(raw, raw.dtype.newbyteorder("="), ["C", "A"])
            points = words.view(np.uint32).reshape(count, -1)
            kernels.hash_words(read_only(points), labels.view(np.uint64), faults)
            return labels, lambda kept_labels, kept: _words(words, kept_labels, kept)
        if raw.dtype.kind == "f":
            faults[~np.isfinite(raw)] = kernels.LABEL_NOT_FINITE
        if not self.settings.text_labels:
            with np.errstate(over="ignore"):
                labels[:] = raw
            labels += 0.0  # -0 is 0
            faults[~np.isfinite(labels)] = kernels.LABEL_NOT_FINITE  # those of more than 64 bits
            return labels, _no_names
        distinct, which = np.unique(np.where(faults == 0, raw, raw.dtype.type(0)), return_inverse=True)
        spelled = [spell(float(x)) if raw.dtype.kind == "f" else str(int(x)) for x in distinct.tolist()]
        keys = np.array([key_of(text, True) for text in spelled], np.uint64)
        labels.view(np.uint64)[:] = keys[which.reshape(-1)]
        known = dict(zip(keys.tolist(), spelled, strict=True))

        def names(kept_labels: np.ndarray, kept: np.ndarray) -> dict[int, str]:
            return {key: known[key] for key in np.unique(kept_labels.view(np.uint64)).tolist()}

        return labels, names

    def _describe(self, content: _Rows, code: int, row: int, where: int) -> BadRow:
        index, value, words = where, 0.0, PROBLEMS[code]
        if code in (kernels.INDEX_TOO_LARGE, kernels.VALUE_NOT_FINITE):
            if content.indices is not None:
                index, number = int(content.indices[where]), content.data[where]
            else:
                number = content.data[row, where]
            value = float(number)
            if code == kernels.VALUE_NOT_FINITE and np.isfinite(number):
                words = _VALUE_TOO_LARGE
        shift = 1 if code == kernels.INDEX_TOO_LARGE and 0 <= content.label_column < index else 0
        return BadRow(
            row, words.format(index=index - shift, value=f"{value:g}", limit=f"{self.settings.largest_index:,}")
        )

    def _pieces(
        self, number: int, name: str, matrix: _Matrix, labels: _Column | None, start: int, state: dict[str, Any] | None
    ) -> Iterator[Piece]:
        """Tasks from row `start` on; those before it are left out of all columns but `labels`, which may be shared."""
        parts = matrix.parts()
        if start > matrix.rows:
            raise InputError(f"{name}: shorter than when the conversion began; start over without --resume")
        self._go_to(start, name, matrix, state or {})
        at = start
        taken = sum(part.taken for part in parts.values())
        own = matrix.labels or labels
        while at < matrix.rows:
            matrix.check()
            if matrix.indptr is not None:
                rows = self._next_sparse(matrix, at, name)
            else:
                data = matrix.data.take(min(matrix.rows - at, max(1, self._block_size // matrix.row_bytes)))
                rows = _Rows(at, matrix.columns, None, None, data, None, None, matrix.label_column)
            if matrix.label_column >= 0 and self.settings.with_labels:
                rows.labels = rows.data[:, matrix.label_column]
            elif own is not None:
                rows.labels = own.take(rows.count)
            if matrix.weights is not None:
                rows.weights = matrix.weights.take(rows.count)
            at += rows.count
            before, taken = taken, sum(part.taken for part in parts.values())
            sums = {key: part.crc for key, part in parts.items() if part.crc is not None}
            yield Piece(number, at, taken - before, rows, {"crc": sums} if sums else None)
        if matrix.rows == 0 and matrix.indptr is not None:
            _check_indptr(matrix.indptr.peek(1).astype(np.int64), 0, matrix.data.length, 0, name)
        for part in parts.values():
            part.finish()
        matrix.check()

    def _go_to(self, start: int, name: str, matrix: _Matrix, state: dict[str, Any]) -> None:
        sums = state.get("crc", {})
        parts = matrix.parts()
        for key in parts.keys() & {"indptr", "labels", "weights"}:
            parts[key].go_to(start, sums.get(key))
        entry = start
        if matrix.indptr is not None:
            entry = int(matrix.indptr.peek(1).astype(np.int64)[0]) if start else 0
            if not 0 <= entry <= matrix.data.length:
                raise _damaged(name, f"indptr leaves the data at row {start:,}")
        for key in parts.keys() & {"indices", "data"}:
            parts[key].go_to(entry, sums.get(key))
        self._entry = entry

    def _next_sparse(self, matrix: _Matrix, at: int, name: str) -> _Rows:
        """As many rows as fit a block, at least one: how many depends on nothing but where they begin."""
        assert matrix.indptr is not None
        assert matrix.indices is not None
        ahead = min(matrix.rows - at, max(1, self._block_size // matrix.row_bytes))
        indptr = matrix.indptr.peek(ahead + 1).astype(np.int64)
        _check_indptr(indptr, self._entry, matrix.data.length, at, name)
        sizes = (indptr[1:] - indptr[0]) * matrix.entry_bytes + np.arange(1, ahead + 1) * matrix.row_bytes
        count = max(1, int(np.searchsorted(sizes, self._block_size, "right")))
        entries = int(indptr[count] - indptr[0])
        if count == 1 and entries > max(matrix.columns, _LONG_ROW):
            raise InputError(
                f"{place(name, self.unit, at + 1)}: {entries:,} entries, but only {matrix.columns:,} columns; call "
                "sum_duplicates() on the matrix and save it again"
            )
        matrix.indptr.take(count)
        self._entry = int(indptr[count])
        indices, data = matrix.indices.take(entries), matrix.data.take(entries)
        return _Rows(at, matrix.columns, indptr[: count + 1], indices, data, None, None, -1)


def _check_indptr(indptr: np.ndarray, first: int, entries: int, row: int, name: str) -> None:
    """Before a piece of indptr is used: it goes on from `first`, never decreases and stays within the data."""
    if indptr[0] != first:
        raise InputError(
            f"{name}: indptr begins with {indptr[0]:,}, not {first:,}; the matrix is damaged, make it again"
        )
    falling = np.flatnonzero(indptr[1:] < indptr[:-1])
    wrong = int(falling[0]) if len(falling) else None
    far = np.flatnonzero(indptr > entries)
    if len(far) and (wrong is None or far[0] <= wrong + 1):
        problem = f"indptr says {indptr[far[0]]:,}, but there are only {entries:,} entries"
        raise InputError(f"{place(name, 'row', row + int(far[0]))}: {problem}; the matrix is damaged, make it again")
    if wrong is not None:
        problem = f"indptr decreases from {indptr[wrong]:,} to {indptr[wrong + 1]:,}"
        raise InputError(f"{place(name, 'row', row + wrong + 1)}: {problem}; the matrix is damaged, make it again")


def _as(array: np.ndarray, kind: Any, scratch: Scratch, name: str) -> np.ndarray:
    """The array as kernels take it: of one type, aligned, by rows, read-only."""
    if array.dtype != kind or not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        plain = scratch.array(name, array.size, kind).reshape(array.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values are found by the kernels
            np.copyto(plain, array, casting="unsafe")
        array = plain
    view: np.ndarray = read_only(array)
    return view


def _weights_of(content: _Rows, faults: np.ndarray) -> np.ndarray | None:
    """The weights of rows, if there are any; those that will not do are noted."""
    if content.weights is None:
        return None
    weights = content.weights.astype(np.float64)
    faults[(faults == 0) & ~((weights >= LEAST) & (weights <= MOST))] = kernels.WEIGHT_OUT_OF_RANGE
    with np.errstate(over="ignore"):
        return weights.astype(np.float32)


def _no_names(labels: np.ndarray, kept: np.ndarray) -> dict[int, str]:
    return {}


def _words(words: np.ndarray, labels: np.ndarray, kept: np.ndarray) -> dict[int, str]:
    """The word behind each of the hashes, in the order in which they are met."""
    distinct, first = np.unique(labels.view(np.uint64), return_index=True)
    return {key: str(words[kept[row]]) for row, key in sorted(zip(first.tolist(), distinct.tolist(), strict=True))}


class ArraysReader(_ArraysReader):
    """See `Reader`; a task is some rows of one .npz or .npy file, its `end` how many rows are done then."""

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int) -> None:
        super().__init__(settings, block_size)
        self.sources = [_FileSource(name) for name in names]
        self._surveyed: list[tuple[int, int, bool]] | None = None

    def features(self) -> int:
        """How many columns the widest input has, empty ones included."""
        return max((columns for _rows, columns, _shared in self._survey()), default=0)

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Piece]:
        """All tasks from a position on. The headers of all inputs are checked first."""
        needed = [rows if shared else 0 for rows, _columns, shared in self._survey()]
        labels = self._shared_labels(sum(needed))
        if labels is not None:
            labels.go_to(sum(needed[:source]) + min(start, sum(needed[source : source + 1])), None)
        for number in range(source, len(self.sources)):
            this = self.sources[number]
            with this.open(self.settings) as matrix:
                own = matrix.labels is not None or matrix.label_column >= 0
                yield from self._pieces(number, this.name, matrix, None if own else labels, start, state)
            start, state = 0, None
        if labels is not None:
            labels.finish()

    def _name_of(self, source: int) -> str:
        return self.sources[source].name

    def _survey(self) -> list[tuple[int, int, bool]]:
        """(rows, columns, whether its labels are in the file of labels) of each input."""
        if self._surveyed is None:
            surveyed = []
            for source in self.sources:
                with source.open(self.settings) as matrix:
                    shared = self.settings.labels is not None and matrix.labels is None
                    surveyed.append((matrix.rows, matrix.columns - (matrix.label_column >= 0), shared))
            self._surveyed = surveyed
        return self._surveyed

    def _shared_labels(self, length: int) -> _Column | None:
        settings = self.settings
        if settings.labels is None or not settings.with_labels:
            return None
        if not any(shared for _rows, _columns, shared in self._survey()):
            raise InputError(f"{settings.labels}: the inputs have labels of their own; leave out --labels")
        return _labels_file(settings.labels, settings, length)


class _MemorySource:
    """Arrays in memory."""

    name = "memory"

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays

    def info(self, rows: int) -> SourceInfo:
        """The size and hash of all arrays, one after the other, by rows."""
        hashing = RunningHash()
        for array in self._arrays:
            step = max(1, len(array) * _STEP // max(array.nbytes, 1))
            for begin in range(0, len(array) if array.nbytes else 0, step):
                hashing.update(np.ascontiguousarray(array[begin : begin + step]).reshape(-1).view(np.uint8))
        return SourceInfo(self.name, hashing.total, hashing.hexdigest(), rows)


class MemoryReader(_ArraysReader):
    """See `Reader`; a matrix of scipy's or a dense array of two dimensions, with arrays of labels and of weights."""

    def __init__(self, matrix: Any, labels: Any, weights: Any, settings: Settings, block_size: int) -> None:
        super().__init__(settings, block_size)
        import scipy.sparse

        self._matrix, self._dense = matrix, None
        name = _MemorySource.name
        if scipy.sparse.issparse(matrix):
            if len(matrix.shape) != 2:
                raise InputError(f"{name}: a sparse array of {len(matrix.shape)} dimensions; give it two")
            self._matrix = matrix = matrix if matrix.format == "csr" else matrix.tocsr()
            arrays = [matrix.indptr, matrix.indices, matrix.data]
            for what, array, kinds in zip(("indptr", "indices", "data"), arrays, ("iu", "iu", "biuf"), strict=True):
                if array.ndim != 1 or array.dtype.kind not in kinds:
                    raise InputError(f"{name}: {what} is of type {array.dtype}; give real numbers, as scipy has them")
            if len(matrix.indptr) != matrix.shape[0] + 1 or len(matrix.indices) != len(matrix.data):
                raise InputError(f"{name}: the arrays of the matrix differ in length; make it again")
            self._rows, self._columns = matrix.shape
        else:
            self._dense = np.asarray(matrix)
            _check_dense(self._dense, name)
            arrays = [self._dense]
            self._rows, self._columns = self._dense.shape
        self._labels = self._checked(labels, "labels", "biufU") if settings.with_labels else None
        self._weights = self._checked(weights, "weights", "biuf") if settings.with_labels else None
        if settings.label_column is not None and (self._dense is None or self._labels is not None):
            raise InputError(f"{name}: a label column is for dense arrays without other labels; leave it out")
        if settings.with_labels and self._labels is None and settings.label_column is None:
            raise InputError(f"{name}: no labels; give an array with one for each row")
        arrays += [array for array in (self._labels, self._weights) if array is not None]
        self.sources = [_MemorySource(arrays)]
        self._open()

    def features(self) -> int:
        """How many columns there are, empty ones included."""
        return int(self._columns) - (self.settings.label_column is not None)

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Piece]:
        """All tasks from a position on."""
        if source == 0:
            yield from self._pieces(0, _MemorySource.name, self._open(), None, start, state)

    def _name_of(self, source: int) -> str:
        return _MemorySource.name

    def _open(self) -> _Matrix:
        labels, weights = (None if part is None else _Array(part) for part in (self._labels, self._weights))
        _check_labels(labels, self.settings, _MemorySource.name)
        if self._dense is not None:
            opened = _dense(self._dense, self.settings, _MemorySource.name, lambda: None)
            opened.labels, opened.weights = labels, weights
            return opened
        indptr, indices, data = (_Array(getattr(self._matrix, part)) for part in ("indptr", "indices", "data"))
        entry = indices.dtype.itemsize + data.dtype.itemsize
        row = indptr.dtype.itemsize + 8
        return _Matrix(self._rows, self._columns, indptr, indices, data, entry, row, labels, weights, -1, lambda: None)

    def _checked(self, given: Any, what: str, kinds: str) -> np.ndarray | None:
        """Labels or weights as an array of numbers or words, one for each row."""
        if given is None:
            return None
        array = np.asarray(given)
        if array.dtype.kind in "OT":  # as pandas, or numpy itself, may have words
            array = np.asarray(array.tolist())
        if array.ndim != 1 and array.shape[1:] != (1,):
            raise InputError(f"memory: {what} of the shape {array.shape}; give one for each row")
        if array.dtype.kind not in kinds or array.dtype.itemsize == 0:
            raise InputError(f"memory: {what} of type {array.dtype}; give numbers" + ", or words" * ("U" in kinds))
        if len(array) != self._rows:
            raise InputError(f"memory: {len(array):,} {what} for {self._rows:,} rows; give one for each row")
        return array.reshape(-1)


def labels_are_text(names: Sequence[str], labels: str | None = None) -> bool:
    """Whether the labels of some inputs, or those in a file for them, are words: as the first that has any says."""
    settings = Settings(text_labels=True, labels=labels or STDIN)  # whether there are any is not asked here
    for name in names:
        with _FileSource(name).open(settings) as matrix:
            if matrix.labels is not None:
                return matrix.labels.dtype.kind == "U"
    return labels is not None and _labels_file(labels, settings, None).dtype.kind == "U"
