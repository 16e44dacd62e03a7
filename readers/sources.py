"""Inputs as blocks of text: files, globs, standard input; plain, gzip, bzip2, xz or zstd; cut at line ends."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import stat
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ooc_pegasos.compiled.parse.lines import PADDING
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import pipes
from ooc_pegasos.readers.base import DEFAULT_MEMORY, row_location
from ooc_pegasos.readers.pipes import PipePath, open_pipe, open_stdin
from ooc_pegasos.readers.remote import is_remote, open_remote, stat_remote, url_without_secrets
from ooc_pegasos.store.manifest import SourceInfo
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.files import ReadOnlyFile

STDIN = pipes.STDIN
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
COMPRESSED = tuple(_MAGIC)
"""First bytes of compressed files."""
_OTHER_FORMATS = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip or npz archive",
    b"\x93NUMPY": "a NumPy file",
    b"\x89HDF": "an HDF5 file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
UTF8_MARK = b"\xef\xbb\xbf"
_SAMPLES, _SAMPLE = 4, 16 << 10
MEMORY_OF_LINE = 16
"""Bytes of memory, about, that a byte of a long line takes until its row is on disk, in most formats."""


@dataclass(frozen=True)
class Stamp:
    """Size and time of a file, which change when the file changes."""

    size: int
    modified_ns: int
    regular: bool

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of a status of the operating system."""
        return cls(status.st_size, status.st_mtime_ns, stat.S_ISREG(status.st_mode))


class NamedPath(str):
    """A path with another name in messages and manifests."""

    display_name: str

    def __new__(cls, path: str | Path, display_name: str) -> NamedPath:
        made = super().__new__(cls, path)
        made.display_name = display_name
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Return the arguments for a copy."""
        return str(self), self.display_name


def display_name(name: str) -> str:
    """Return the name of an input for messages."""
    if isinstance(name, NamedPath):
        return name.display_name
    if is_remote(name):
        return url_without_secrets(name)
    return "standard input" if name == STDIN else name


def manifest_name(name: str) -> str:
    """Return the name of an input for manifests: the absolute path of a file."""
    if isinstance(name, NamedPath) or name == STDIN or is_remote(name):
        return display_name(name)
    path = os.path.abspath(name)  # links are not resolved: they may point to another file later
    if ".." in name.split("/") and os.path.realpath(path) != os.path.realpath(name):
        return os.path.realpath(name)  # `..` after a link is relative to its target
    return path


def path_of(name: str) -> str:
    """Return the name of an input without the options of a URL, so that it ends in its suffix."""
    return url_without_secrets(name) if is_remote(name) else name


def stamp_of(name: str) -> Stamp:
    """Return the stamp of a file; that of standard input has size 0."""
    if name == STDIN:
        return Stamp(0, 0, False)
    if is_remote(name):
        return Stamp(*stat_remote(name), True)
    try:
        return Stamp.of(os.stat(name))
    except OSError as error:
        raise InputError(f"{display_name(name)}: {error.strerror}; check the path and its permissions") from error
    except ValueError as error:
        raise InputError(f"{display_name(name)!r}: not a valid file name ({error}); check the path") from error


def can_be_opened_again(name: str) -> bool:
    """True for files, and for pipes whose beginning is kept."""
    return isinstance(name, PipePath) or stamp_of(name).regular


def open_input(name: str) -> Any:
    """Open a local or remote file, or a pipe that is kept, without a buffer."""
    if isinstance(name, PipePath):
        return open_pipe(name)
    return open_remote(name) if is_remote(name) else ReadOnlyFile(name)


def first_bytes(name: str) -> bytes:
    """Return the first 8 bytes of a file; none of a pipe that can be read only once."""
    head = b""
    if name == STDIN and not isinstance(name, PipePath):
        return head
    try:
        if isinstance(name, PipePath) or is_remote(name) or os.path.isfile(name):
            with open_input(name) as file:
                while len(head) < 8 and (more := file.read(8 - len(head))):
                    head += more
    except OSError as error:
        raise InputError(f"{display_name(name)}: {error.strerror}; check the path and its permissions") from error
    return head


def hash_of(name: str) -> str:
    """Return the XXH64 of a file as stored on disk."""
    hashing = RunningHash()
    with open_input(name) as file:
        while piece := file.read(1 << 22):
            hashing.update(piece)
    return hashing.hexdigest()


def samples_of(file: str | int) -> str | None:
    """Return the XXH64 of four blocks of a file, given by path or descriptor; of a small file, of all its bytes.

    The positions are fixed: the first block is at the beginning of the file and the last at its end. Returns None for
    inputs that are not local files, and for temporary files.
    """
    if isinstance(file, str) and (isinstance(file, NamedPath) or is_remote(file)):
        return None
    stamp, hashing = Stamp.of(os.stat(file)), RunningHash()
    if not stamp.regular:
        return None
    with open(file, "rb", buffering=0, closefd=isinstance(file, str)) as opened:
        for number in range(_SAMPLES):
            begin = number * max(stamp.size - _SAMPLE, 0) // (_SAMPLES - 1)
            hashing.update(_read_at(opened.fileno(), max(begin, number * _SAMPLE), _SAMPLE))
    return hashing.hexdigest()


def _read_at(descriptor: int, begin: int, size: int) -> bytes:
    """Return `size` bytes of a file, or fewer at its end; a single read may return fewer."""
    found = b""
    while len(found) < size and (more := os.pread(descriptor, size - len(found), begin + len(found))):
        found += more
    return found


@dataclass
class TextBlock:
    """Whole lines of a source: `text[:length]`, followed by a line feed and zeros.

    A byte order mark is removed.
    """

    source: int
    text: np.ndarray
    length: int
    begin: int
    end: int
    """Positions in the (decompressed) text of the source where the block begins and ends."""
    consumed: int
    """Bytes of the source on disk read for this block."""
    hash_state: dict[str, Any] | None
    """State of the checksum at `end`, for an uncompressed file."""


class _Hashing(io.RawIOBase):
    """A raw file that hashes and counts the bytes read."""

    def __init__(self, file: BinaryIO, hashing: RunningHash) -> None:
        self._file = file
        self.hashing = hashing

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        self.hashing.update(memoryview(buffer)[:count])
        return count


class LongLineError(InputError):
    """A line that is too long for the memory budget."""

    def __init__(self, name: str, source: int, begin: int, problem: str) -> None:
        where = row_location(name, "line", 1) if begin == 0 else f"{name}: byte {begin:,}"
        super().__init__(f"{where}: {problem}")
        self.source = source
        self.problem = problem


class TextSource:
    """An input, read once from `start` to its end; then `info()` is its fingerprint."""

    def __init__(
        self,
        name: str,
        number: int,
        block_size: int,
        spare: deque[np.ndarray],
        kind: str = "svmlight text",
        last_end: Callable[[np.ndarray, int], int] | None = None,
        *,
        memory: int = DEFAULT_MEMORY,
        line_memory: int = MEMORY_OF_LINE,
    ) -> None:
        """Prepare to read lines of at most `memory` / `line_memory` bytes.

        `last_end` returns the position where the last whole line in the first n bytes of a text ends, or 0.
        """
        self.name = name
        self._kind = kind
        self._number = number
        self._block_size = block_size
        self._memory = memory
        self._line_memory = line_memory
        self._longest = max(min(memory // line_memory, _LONGEST_LINE), block_size)
        self._spare = spare
        self._last_end = last_end or _after_last_line_feed
        self._hash = RunningHash()
        self._before: Stamp | None = None
        self._samples: str | None = None

    def blocks(self, start: int = 0, hash_state: dict[str, Any] | None = None) -> Generator[TextBlock, None, None]:
        """Yield the text from position `start` on, in blocks of whole lines."""
        with self._open() as raw:
            here = not (self.name == STDIN or isinstance(self.name, PipePath) or is_remote(self.name))
            self._before = Stamp.of(os.fstat(raw.fileno())) if here else stamp_of(self.name)
            try:
                stream, plain = self._decompressed(raw)
                if start:
                    self._skip(raw if plain else stream, plain, start, hash_state)
                yield from self._cut(stream, plain, start)
                self._samples = samples_of(raw.fileno()) if here else None  # before the last check of the stamp
            except (EOFError, lzma.LZMAError, zlib.error) as error:
                raise self._damaged(error) from error
            except OSError as error:
                if error.errno is None:  # errors of bz2 and pyarrow have no number
                    raise self._damaged(error) from error
                raise InputError(
                    f"{self._display_name}: {error.strerror} while reading; check the disk and try again"
                ) from error
            self._check_unchanged(raw)

    @property
    def _display_name(self) -> str:
        return display_name(self.name)

    def info(self, rows: int) -> SourceInfo:
        """Return the fingerprint of the text read."""
        digest = self._hash.hexdigest()
        return SourceInfo(display_name(self.name), self._hash.total, digest, rows, samples=self._samples)

    def _open(self) -> BinaryIO:
        if self.name == STDIN and not isinstance(self.name, PipePath):
            return open_stdin()
        try:
            return cast(BinaryIO, open_input(self.name))
        except OSError as error:
            raise InputError(f"{self._display_name}: {error.strerror}; check the path and its permissions") from error

    def _decompressed(self, raw: BinaryIO) -> tuple[BinaryIO, bool]:
        """Return (stream of text, True if this is the file itself), by the first bytes."""
        head = b""
        while len(head) < 8 and (more := raw.read(8 - len(head))):
            head += more
        source: Any = raw
        if self._before and self._before.regular:
            raw.seek(0)
        else:
            source = _Pushback(head, raw)
        for magic, what in _OTHER_FORMATS.items():
            if head.startswith(magic):
                how = "UTF-8, as with 'iconv -f utf-16 -t utf-8'" if "UTF-16" in what else "text first"
                raise InputError(f"{self._display_name}: this is {what}, not {self._kind}; convert it to {how}")
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
        if kind is None:
            return source, True
        hashing = _Hashing(source, self._hash)
        if kind == "zstd":
            import pyarrow as pa

            return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(hashing, mode="r"), "zstd")), False
        buffered = io.BufferedReader(hashing, 1 << 20)
        decompressors = {"gzip": _GzipDecompressor, "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}
        return cast(BinaryIO, _Streams(buffered, decompressors[kind])), False

    def _skip(self, stream: BinaryIO, plain: bool, start: int, hash_state: dict[str, Any] | None) -> None:
        if plain and hash_state is not None:
            stream.seek(start)
            self._hash = RunningHash.resume(hash_state)
            return
        left = start
        while left > 0:
            got = len(stream.read(min(left, 1 << 22)))
            if got == 0:
                raise InputError(
                    f"{self._display_name}: shorter than when the conversion began; start over without {{resume}}"
                )
            left -= got

    def _cut(self, stream: BinaryIO, plain: bool, at: int) -> Iterator[TextBlock]:
        """Yield blocks of the whole lines in the next `block_size` bytes, or in twice, four times ... as many.

        The end of a block depends on its beginning alone and, for lines nearly as long as memory allows, on the memory
        budget. So a resumed run has the same blocks.
        """
        carry = b""
        while True:
            consumed = self._hash.total
            text, filled, cut = self._fill(stream, carry, at)
            if filled == 0:
                return
            if plain and self._before and self._before.regular and at + cut > self._before.size:
                raise self._changed("changed")
            if plain:
                self._hash.update(text[:cut])
            carry = text[cut:filled].tobytes()
            begin, at = at, at + cut
            if begin == 0 and text[:3].tobytes() == UTF8_MARK:
                cut -= 3
                text[:cut] = text[3 : 3 + cut]
            ended = cut == 0 or text[cut - 1] != 10  # the last line has no line feed
            length = cut + 1 if ended else cut
            text[length - 1 : length + 1] = 10
            text[length + 1 : length + PADDING] = 0
            state = self._hash.state() if plain else None
            yield TextBlock(self._number, text, length, begin, at, self._hash.total - consumed, state)

    def _fill(self, stream: BinaryIO, carry: bytes, begin: int) -> tuple[np.ndarray, int, int]:
        """Return (buffer, bytes in it, end of the last whole line); at the end of the text, that of the text."""
        text = self._buffer()
        filled, room = 0, self._block_size
        while room < len(carry):  # `carry` has no line end
            room *= 2
        while True:
            if room + PADDING > len(text):
                larger = _buffer(room)
                larger[:filled] = text[:filled]
                text = larger
            if filled == 0:
                text[: len(carry)] = np.frombuffer(carry, np.uint8)
                filled = len(carry)
            while filled < room:
                got = stream.readinto(text.data[filled:room])  # type: ignore[attr-defined]
                if not got:
                    return text, filled, filled
                filled += got
            cut = self._last_end(text, filled)
            if cut:
                return text, filled, cut
            if room >= self._longest:
                del text
                raise self._long_line_error(stream, filled, begin)
            room = min(2 * room, self._longest)

    def _buffer(self) -> np.ndarray:
        """Return a used buffer, unless made for a long line, or a new one."""
        while self._spare:
            text = self._spare.popleft()
            if len(text) <= self._block_size + PADDING:
                return text
        return _buffer(self._block_size)

    def _long_line_error(self, stream: BinaryIO, size: int, begin: int) -> LongLineError:
        """Return the error for a long line; the rest of the line is read to report its length."""
        ended = False
        while size <= _LONGEST_LINE and not ended:
            piece = stream.read(1 << 20)
            end = piece.find(b"\n")
            size += len(piece) if end < 0 else end + 1
            ended = end >= 0 or not piece
        at_least = "" if ended and self._last_end is _after_last_line_feed else "more than "
        needed, given = size * self._line_memory / 1e6, self._memory / 1e6
        problem = f"a line of {at_least}{size / 1e6:,.0f} MB, which takes {at_least}{needed:,.0f} MB of memory"
        advice = "give more, with {memory}, or " if size <= _LONGEST_LINE else ""
        advice += f"check that this is {self._kind}, with a line feed after each row"
        return LongLineError(
            self._display_name, self._number, begin, f"{problem}, and {given:,.0f} MB may be used; {advice}"
        )

    def _damaged(self, error: Exception) -> InputError:
        return InputError(
            f"{self._display_name}: the compressed data is truncated or damaged ({error}); fetch the file again"
        )

    def _check_unchanged(self, raw: BinaryIO) -> None:
        if self.name == STDIN or self._before is None or not self._before.regular:
            return
        try:
            now = stamp_of(self.name)
        except InputError:
            raise self._changed("vanished") from None
        if now != self._before or (not is_remote(self.name) and Stamp.of(os.fstat(raw.fileno())) != self._before):
            raise self._changed("changed")

    def _changed(self, how: str) -> InputError:
        return InputError(f"{self._display_name}: {how} during the conversion; convert again when nobody writes to it")


class _Pushback(io.RawIOBase):
    """A raw file with some bytes pushed back."""

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head = head
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            count = min(len(self._head), len(buffer))
            buffer[:count] = self._head[:count]
            self._head = self._head[count:]
            return count
        return self._file.readinto(buffer) or 0  # type: ignore[attr-defined]


class _GzipDecompressor:
    """A gzip stream, with the interface of `BZ2Decompressor`. `GzipFile` decompresses 8 KB at a time."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(31)  # with the header and the checksum of gzip

    @property
    def eof(self) -> bool:
        """True at the end of the stream."""
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        """Bytes after the stream."""
        return self._stream.unused_data

    @property
    def needs_input(self) -> bool:
        """True if there is no output without more input: the checksum comes after the last output."""
        return not self._stream.unconsumed_tail

    def decompress(self, raw: bytes, size: int) -> bytes:
        """Return up to `size` bytes."""
        return self._stream.decompress(self._stream.unconsumed_tail + raw, size)


class _Streams(io.RawIOBase):
    """Concatenated gzip, bzip2 or xz streams. Unlike in `BZ2File`, a damaged later stream is not treated as padding."""

    def __init__(self, file: BinaryIO, make: Callable[[], Any]) -> None:
        self._file = file
        self._make = make
        self._decompressor = make()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            raw = b""
            if self._decompressor.eof:
                raw = self._decompressor.unused_data.lstrip(b"\0") or self._file.read(1 << 18).lstrip(b"\0")
                if not raw:
                    return 0
                self._decompressor = self._make()
            elif self._decompressor.needs_input:
                raw = self._file.read(1 << 18)
                if not raw:
                    raise EOFError("it ends within a stream")
            data = self._decompressor.decompress(raw, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)


_LONGEST_LINE = 1 << 30
"""Bytes; positions in longer lines would not fit int32, as Arrow uses."""


def _buffer(size: int) -> np.ndarray:
    return np.empty(size + PADDING, np.uint8)


def _after_last_line_feed(text: np.ndarray, filled: int) -> int:
    """Return the position after the last line feed in `text[:filled]`, or 0."""
    step = 1 << 12
    for begin in range((filled - 1) // step * step, -1, -step):
        at = text[begin : min(begin + step, filled)].tobytes().rfind(b"\n")
        if at >= 0:
            return begin + at + 1
    return 0
