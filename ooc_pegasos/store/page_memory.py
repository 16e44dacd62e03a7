"""Page-aligned memory: reusable buffers, and parts of files mapped contiguously without a copy."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
from typing import Any

import numpy as np

from ooc_pegasos.store.manifest import PAGE, round_up

_FIXED = 0x10  # MAP_FIXED, for which Python has no name
_NO_RESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


class Arena:
    """Reusable memory, because the system must find and clear fresh pages."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, max(round_up(size), PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if _HUGE is not None:
            with contextlib.suppress(OSError):  # of a system without huge pages
                self._map.madvise(_HUGE)
        self.size = len(self._map)
        self._next = 0

    def clear(self) -> None:
        """Release everything that was taken."""
        self._next = 0

    def bytes(self, count: int) -> memoryview:
        """Return the next `count` bytes."""
        view = memoryview(self._map)[self._next : self._next + count]
        self._next = round_up(self._next + count)
        return view

    def take(self, count: int, kind: Any) -> np.ndarray:
        """Return an array with arbitrary content that shares no page with other arrays."""
        array = np.frombuffer(self._map, kind, count, self._next) if count else np.empty(0, kind)
        self._next = round_up(self._next + array.nbytes)
        return array


def can_map() -> bool:
    """True if parts of files can be mapped contiguously: on Linux, with pages of the size that stores use."""
    return sys.platform == "linux" and mmap.PAGESIZE == PAGE and sys.maxsize > 2**32


class ContiguousMapping:
    """Parts of files mapped contiguously, so that they are one array without a copy.

    Accessing a mapped page of a file that was truncated raises SIGBUS, which ends the process. To avoid that, zeros are
    mapped in place of such pages, and `torn` is set.
    """

    def __init__(self, size: int) -> None:
        self.size = round_up(max(size, 1))
        self.torn = False
        self._parts: list[tuple[int, int]] = []
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        address = _libc().mmap(None, self.size, 0, flags, -1, 0)
        if address == _FAILED:
            raise _last_error()
        self.address = int(address)
        _watch(self)

    def put(self, at: int, descriptor: int, offset: int, length: int) -> None:
        """Map `length` bytes of a file at offset `at`. All numbers are multiples of a page."""
        assert 0 <= at <= at + length <= self.size
        if not length:
            return
        where = ctypes.c_void_p(self.address + at)
        found = _libc().mmap(where, length, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor, offset)
        if found == _FAILED:
            raise _last_error()
        self._parts.append((self.address + at, length))

    def array(self, at: int, count: int, kind: Any) -> np.ndarray:
        """Return a read-only array over the mapping, which exists as long as the array."""
        if not count:
            return np.empty(0, kind)
        memory = (ctypes.c_ubyte * (count * np.dtype(kind).itemsize)).from_address(self.address + at)
        memory._side_by_side = self
        array = np.frombuffer(memory, kind)
        array.flags.writeable = False
        return array

    def mend(self, address: int) -> bool:
        """Map zeros from the page at `address` to the end of its part; return False if no part contains it."""
        for start, length in self._parts:
            if start <= address < start + length:
                page = address // PAGE * PAGE
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
                self.torn = True
                left = start + length - page
                return bool(_libc().mmap(ctypes.c_void_p(page), left, mmap.PROT_READ, flags, -1, 0) != _FAILED)
        return False

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _forget(self)
            _libc().munmap(ctypes.c_void_p(self.address), self.size)


# --- SIGBUS -------------------------------------------------------------------------------------
# Python runs signal handlers between two bytecode instructions, which is too late: the machine instruction that failed
# would be repeated forever. So this handler is given to the system directly. The handler runs in the thread that
# accessed the page, between two machine instructions of a compiled loop, a checksum or a copy, which hold no lock.


class _SignalAction(ctypes.Structure):
    """struct sigaction of Linux with glibc or musl, 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SIGINFO = 4  # SA_SIGINFO
_ADDRESS = 16  # of the page, in siginfo_t
_mappings: dict[int, Any] = {}
_before = _SignalAction()
_loaded: list[Any] = []


def _libc() -> Any:
    if not _loaded:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        number = ctypes.c_int
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        _loaded.append(libc)
    return _loaded[0]


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _on_bus_error(_number: int, info: int, _context: int) -> None:
    address = ctypes.c_void_p.from_address(info + _ADDRESS).value or 0
    for reference in list(_mappings.values()):
        mapping = reference()
        if mapping is not None and mapping.mend(address):
            return
    # not a page of ours: let the signal recur with the previous handler
    _libc().sigaction(signal.SIGBUS, ctypes.byref(_before), None)


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_bus_error)


def _watch(mapping: ContiguousMapping) -> None:
    import weakref

    if not _mappings:
        ours = _SignalAction(ctypes.cast(_handler, ctypes.c_void_p), flags=_SIGINFO)
        _libc().sigaction(signal.SIGBUS, ctypes.byref(ours), ctypes.byref(_before))
    _mappings[mapping.address] = weakref.ref(mapping)


def _forget(mapping: ContiguousMapping) -> None:
    if _mappings.pop(mapping.address, None) is not None and not _mappings:
        _libc().sigaction(signal.SIGBUS, ctypes.byref(_before), None)
