"""Reads of chunk files: around the page cache, several requests at a time, into existing memory.

A file that is larger than memory and read once an epoch would evict other files from the page cache, and buffering
costs a copy. So the file is read with O_DIRECT, unless the page cache already contains it, as after a conversion.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store.manifest import PAGE, ChunkInfo, round_up
from ooc_pegasos.store.page_memory import Arena
from ooc_pegasos.util.checksums import RunningHash
from ooc_pegasos.util.files import unreadable
from ooc_pegasos.util.thread_map import ordered_map

REQUEST = 4 << 20
"""Bytes in a request: larger requests are no faster."""
READERS = 4
"""Requests in flight, enough to saturate a network disk or a fast local disk."""
_TRIES = 3
_LOOKS = 4
_ADVICE = "restore it or convert again"
_DIRECT = getattr(os, "O_DIRECT", 0)
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)


class ChunkReader:
    """An open chunk file. Reads begin and end at page boundaries, except at the end of the file."""

    def __init__(self, path: Path, info: ChunkInfo, cached: bool | None = None) -> None:
        """`cached`: True to read through the page cache, False to bypass it, None to decide by its content."""
        self.path = path
        self.size = info.bytes
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self._descriptor).st_size
        except OSError as error:
            self.close()
            raise unreadable(path, error, _ADVICE) from error
        if found != info.bytes:
            self.close()
            raise CorruptFileError(f"{path}: {found:,} bytes instead of {info.bytes:,}; {_ADVICE}")
        self._drop = False
        if not (self._is_cached() if cached is None else cached):
            self._go_direct()

    def _is_cached(self) -> bool:
        """True if the file is in the page cache, judged by some pages.

        The probe may load a page into the cache. So the pages are random and few.
        """
        if not _NO_WAIT:
            return False
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for at in random.sample(range(0, self.size, PAGE), min(_LOOKS, -(-self.size // PAGE))):
            try:
                os.preadv(self._descriptor, [bytearray(1)], at, _NO_WAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True  # a file system without RWF_NOWAIT, such as tmpfs
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return True

    def _go_direct(self) -> None:
        self._drop = True
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        if _DIRECT:
            try:
                direct = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT)
            except OSError:
                return  # a file system without it: read as usual, and leave nothing in the page cache
            os.close(self._descriptor)
            self._descriptor, self._drop = direct, False

    def read(self, at: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `at` on, up to the end of the file."""
        wanted = min(len(into), self.size - at)
        done = tries = 0
        while done < wanted:
            try:
                got = os.preadv(self._descriptor, [into[done:]], at + done)
            except OSError as error:
                tries += 1
                if error.errno == errno.EINVAL and not self._drop and _DIRECT:
                    self._go_buffered()
                elif error.errno in (errno.EIO, errno.EAGAIN) and tries < _TRIES:
                    time.sleep(0.1 * tries)
                else:
                    raise CorruptFileError(
                        f"{self.path}: {error.strerror} at byte {at + done:,}; check the disk"
                    ) from error
                continue
            if got == 0:
                raise CorruptFileError(f"{self.path}: ends at byte {at + done:,} instead of {self.size:,}; {_ADVICE}")
            done += got
            if done < wanted:
                done = done // PAGE * PAGE  # direct reads must begin at a page boundary
        if self._drop:
            os.posix_fadvise(self._descriptor, at, wanted, os.POSIX_FADV_DONTNEED)

    def _go_buffered(self) -> None:
        """Reopen without O_DIRECT, for a file system that accepts O_DIRECT and then refuses to read."""
        plain = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(plain, self._descriptor)  # other threads may be reading
        os.close(plain)
        self._drop = True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True)
class Part:
    """A range of a chunk file and its destination; `last` ends the file."""

    reader: ChunkReader
    at: int
    into: memoryview
    last: bool


def parts_of(reader: ChunkReader, places: Iterable[memoryview]) -> Iterator[Part]:
    """Split a file into requests; `places` are the consecutive destinations, in multiples of a page."""
    at = 0
    for place in places:
        if at >= reader.size:
            return
        for begin in range(0, len(place), REQUEST):
            into = place[begin : begin + REQUEST]
            yield Part(reader, at, into, at + len(into) >= reader.size)
            at += len(into)


def read_checked(parts: Iterable[Part], check: Any = None) -> Generator[tuple[Part, RunningHash], None, None]:
    """Read all parts, several at a time, and yield them in order with the checksum of the file so far.

    `check` is called between two parts and may raise. Close the generator if it is left early.
    """
    seen = RunningHash()
    # closed here, not by the garbage collector: no read may be in flight when the memory is reused
    with closing(ordered_map(_read, parts, READERS)) as arrived:
        for part in arrived:
            if check:
                check()
            seen = seen if part.at else RunningHash()
            seen.update(part.into[: part.reader.size - part.at])
            yield part, seen
            if part.last:
                part.reader.close()


def refuse_checksum(path: Path, info: ChunkInfo, seen: RunningHash) -> None:
    """Refuse a file whose checksum does not match."""
    if seen.hexdigest() != info.xxh64:
        raise CorruptFileError(f"{path}: the checksum does not match, so it is damaged; {_ADVICE}")


def read_whole(path: Path, info: ChunkInfo, arena: Arena) -> memoryview:
    """Return the bytes of a chunk file after a check of the checksum."""
    arena.clear()
    place = arena.bytes(round_up(info.bytes))
    reader = ChunkReader(path, info)
    try:
        with closing(read_checked(parts_of(reader, [place]))) as arrived:
            for part, seen in arrived:
                if part.last:
                    refuse_checksum(path, info, seen)
    finally:
        reader.close()
    return place[: info.bytes]


def measure_speed(folder: Path, chunks: list[ChunkInfo], seconds: float = 0.3) -> tuple[float, int]:
    """Return the read speed of the disk in bytes a second, and the bytes read; takes about `seconds`."""
    arena = Arena(READERS * REQUEST)
    began, total = time.perf_counter(), 0
    slots = [arena.bytes(REQUEST) for _ in range(READERS)]
    for info in chunks:
        reader = ChunkReader(folder / info.file, info, cached=False)
        try:
            places = (slots[number % READERS] for number in range(-(-info.bytes // REQUEST)))
            with closing(ordered_map(_read, parts_of(reader, places), READERS - 1)) as arrived:
                for part in arrived:
                    total += min(len(part.into), info.bytes - part.at)
                    if time.perf_counter() - began > seconds:
                        return total / (time.perf_counter() - began), total
        finally:
            reader.close()
    return total / max(time.perf_counter() - began, 1e-9), total


def _read(part: Part) -> Part:
    part.reader.read(part.at, part.into)
    return part
