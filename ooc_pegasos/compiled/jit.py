"""Compilation of functions: without the GIL, and with machine code cached on disk.

numba's own cache does not suit. It compares only the file of a function with the cached code, so that a change in a
function that is called goes unnoticed: here the cache folder is named after the content of all compiled files. And
numba loads its two files of a function unchecked. After a power failure these may be empty, or, if two processes
compile a function for different types at the same time, from different processes: here each compiled signature is a
file with a checksum. numba unpickles the files that it loads, so only files are read that no other user could have
written.
"""

import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import serialize, sigutils
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

from ooc_pegasos.errors import UsageError

if numba.config.DISABLE_JIT:
    raise UsageError(
        "numba's compiler is switched off (NUMBA_DISABLE_JIT), but nothing here runs without it; "
        "unset NUMBA_DISABLE_JIT, then run again"
    )

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = __name__.rpartition(".")[0]
_SUFFIX = ".nbc"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_VERSIONS = (numba.__version__, np.__version__, sys.implementation.cache_tag, sys.version)


def kernel(function: Function, *, is_inlined: bool = False) -> Function:
    """Compile `function` on first use, without the GIL, cached on disk if it is part of this package.

    `is_inlined` is for kernels that choose among other functions, which `inlined` cannot compile.
    """
    compiled: Any = numba.njit(nogil=True, boundscheck=False, forceinline=is_inlined)(function)
    if function.__module__.startswith(f"{_PACKAGE}."):  # the name of the folder does not depend on other files
        compiled._cache = KernelCache(f"{function.__module__.removeprefix(f'{_PACKAGE}.')}.{function.__qualname__}")
    return compiled


def called(function: Function) -> Function:
    """Compile a small function that kernels call; it is cached as a part of them."""
    compiled: Function = numba.njit(nogil=True, boundscheck=False)(function)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a small function that is inlined in the kernels that call it."""
    compiled: Function = numba.njit(nogil=True, inline="always", boundscheck=False)(function)
    return compiled


class OnlyInMemory(numba.types.Type):  # type: ignore[misc]
    """A type of arguments for which kernels are never kept on disk: the sources of this package say not all of it."""


class KernelCache(NullCache):  # type: ignore[misc]
    """Machine code of a kernel on disk, a file for each compiled signature."""

    can_write = True
    """False for all kernels of this process after a file could not be written."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for these argument types, or None if there is no usable file."""
        target_context.refresh()
        if _is_only_in_memory(sig):
            return None
        key = self._key(sig, target_context.codegen())
        code = _read(self._path(key), key)
        if code is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *serialize.loads(code))
        except Exception:  # intact, but incompatible with the installed packages in a way that the key does not cover
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled function. A failure is reported once; the function remains usable in memory."""
        if not KernelCache.can_write or data.library.has_dynamic_globals or _is_only_in_memory(sig):
            return
        key = self._key(sig, data.codegen)
        code = serialize.dumps(data._reduce())
        try:
            _write(self._path(key), key, code)
        except OSError as error:
            KernelCache.can_write = False
            logging.getLogger(__name__).warning(
                "note: compiled kernels cannot be kept in %s: %s; each command compiles them in memory, "
                "which takes some seconds; set NUMBA_CACHE_DIR to a folder of your own with free space",
                cache_folder() or numba.config.CACHE_DIR or "the cache folder",
                (error.strerror or str(error)).lower(),
            )

    def _key(self, sig: Any, codegen: Any) -> bytes:
        """Return the key of the code: everything that it depends on except the sources."""
        return repr((self._name, str(sig), codegen.magic_tuple(), _VERSIONS)).encode()

    def _path(self, key: bytes) -> Path | None:
        folder = cache_folder()
        return folder and folder / f"{self._name}-{hashlib.sha256(key).hexdigest()[:16]}{_SUFFIX}"


def _is_only_in_memory(sig: Any) -> bool:
    arguments, _result = sigutils.normalize_signature(sig)
    return any(isinstance(one, OnlyInMemory) for one in arguments)


def is_compiled(folder: str) -> bool:
    """True if kernels of a folder of this package are on disk already; if not, their first use takes a few seconds."""
    found = cache_folder()
    return found is not None and any(found.glob(f"{folder}.*{_SUFFIX}"))


# --- files --------------------------------------------------------------------------------------


def _checksum(key: bytes, code: bytes) -> bytes:
    return hashlib.sha256(key + code).digest()


def _read(path: Path | None, key: bytes) -> bytes | None:
    """Return the code in a file if it is intact, compiled for `key`, and writable by this user only."""
    if path is None:
        return None
    try:
        # O_NONBLOCK: opening a pipe would wait for a writer
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read() if stat.S_ISREG(status.st_mode) and _is_private(status) else b""
    except OSError:
        return None
    checksum, code = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return code if checksum == _checksum(key, code) else None


def _write(path: Path | None, key: bytes, code: bytes) -> None:
    """Replace a file atomically."""
    if path is None:
        raise OSError("it cannot be written, or other users may write to it as well")
    descriptor, temporary = tempfile.mkstemp(".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(_checksum(key, code) + code)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _is_private(status: os.stat_result) -> bool:
    """True if a file or folder belongs to this user, and no other user may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


# --- the folder ---------------------------------------------------------------------------------


@cache
def cache_folder() -> Path | None:
    """Return the folder in NUMBA_CACHE_DIR, or the first usable one next to the kernels, in ~/.cache and in /tmp.

    A folder on a read-only disk is usable if it has files, as in a container image.
    """
    here = Path(__file__).parent
    name = f"kernels-{_checksum_of_sources(here)[:16]}"
    for folder in _candidates(here, name):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
        except OSError:
            continue
        is_own = stat.S_ISDIR(status.st_mode) and _is_private(status)
        if is_own and (os.access(folder, os.W_OK) or _has_files(folder)):
            return folder
    return None


def _checksum_of_sources(here: Path) -> str:
    """Return a checksum of the names and contents of all Python files in a folder and its subfolders."""
    content = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        source = path.read_bytes()
        content.update(f"{path.relative_to(here)}\0{len(source)}\0".encode() + source)
    return content.hexdigest()


def _has_files(folder: Path) -> bool:
    return any(folder.glob(f"*{_SUFFIX}"))


def _candidates(here: Path, name: str) -> Iterator[Path]:
    """Yield folders in order of preference. In folders of several users, each user has a folder of another name."""
    own = f"ooc-pegasos-{os.getuid()}-{name}"
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR) / own
        return
    yield here / "__pycache__" / name
    with suppress(RuntimeError):  # no home folder
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ooc-pegasos" / name
    with suppress(OSError):  # no temporary folder
        yield Path(tempfile.gettempdir()) / own
