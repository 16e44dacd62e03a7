"""Compilation of functions: without the GIL, and with machine code cached on disk.

numba is imported only to compile. Machine code on disk is loaded and called without numba (`native.py`), whose import
takes longer than a short run. The cache folder is named after the content of all compiled files, and each compiled
signature is a file with a checksum, which is read only if no other user could have written it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property, partial, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ooc_pegasos.compiled import native
from ooc_pegasos.errors import UsageError

if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
    raise UsageError(
        "numba's compiler is switched off (NUMBA_DISABLE_JIT), but nothing here runs without it; "
        "unset NUMBA_DISABLE_JIT, then run again"
    )

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = __name__.rpartition(".")[0]
_SUFFIX = ".nbc"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_compiling = threading.RLock()


def kernel(function: Function, *, is_inlined: bool = False) -> Function:
    """Compile `function` on first use, without the GIL, cached on disk if it is part of this package.

    `is_inlined` is for kernels that choose among other functions, which `inlined` cannot compile.
    """
    is_own = function.__module__.startswith(f"{_PACKAGE}.")  # the name of the folder does not depend on other files
    compiled: Any = Compiled(function, is_cached=is_own, forceinline=is_inlined)
    return compiled


def called(function: Function) -> Function:
    """Compile a small function that kernels call; it is cached as a part of them."""
    compiled: Any = Compiled(function)
    return compiled


def inlined(function: Function) -> Function:
    """Compile a small function that is inlined in the kernels that call it, by LLVM: numba itself takes longer."""
    compiled: Any = Compiled(function, forceinline=True)
    return compiled


class Deferred:
    """An object for numba's compiler alone, made when a function that uses it is compiled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def _numba_type_(self) -> Any:
        """The type that numba gives to this object in compiled functions."""
        from numba.core.registry import cpu_target

        made = self._make()
        cpu_target.typing_context.refresh()  # what was defined just now
        return cpu_target.typing_context.resolve_value_type(made)


def deferred(module: str, *names: str) -> tuple[Any, ...]:
    """Return stand-ins for objects of a module of this folder that imports numba."""

    def find(name: str) -> Any:
        return getattr(import_module(f"{_PACKAGE}.{module}"), name)

    return tuple(Deferred(partial(find, name)) for name in names)


class Compiled:
    """A function that is compiled, or loaded from disk, when it is first called with arguments of some types."""

    can_write = True
    """False for all functions of this process after a file could not be written."""

    def __init__(self, function: Callable[..., Any], *, is_cached: bool = False, **options: Any) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.targetoptions = {"nogil": True, "boundscheck": False, **options}
        self.loads = 0
        """The number of signatures loaded from disk."""
        self._name = f"{function.__module__.removeprefix(f'{_PACKAGE}.')}.{function.__qualname__}"
        self._is_cached = is_cached
        self._ready: dict[tuple[Any, ...], Callable[[tuple[Any, ...]], Any]] = {}

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba has it. Wrappers for Python objects are not compiled, because nothing calls them."""
        import numba

        return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **self.targetoptions)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        kinds = tuple(map(native.kind_of, arguments))
        ready = self._ready.get(kinds)
        return (ready or self._prepare(kinds, arguments))(arguments)

    def _prepare(self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Any]:
        with _compiling:
            if kinds not in self._ready:
                is_kept = self._is_cached and not native.are_in_memory(kinds)
                code = self._read(kinds) if is_kept else None
                if code is None:
                    code = native.compile_code(self.dispatcher, arguments)
                    if is_kept:
                        self._write(kinds, code)
                self._ready[kinds] = native.load(self._name, code)
            return self._ready[kinds]

    def _read(self, kinds: tuple[Any, ...]) -> bytes | None:
        key = self._key(kinds)
        code = _read(self._path(key), key)
        self.loads += code is not None
        return code

    def _write(self, kinds: tuple[Any, ...], code: bytes) -> None:
        """Write a compiled function. A failure is reported once; the function remains usable in memory."""
        if not Compiled.can_write:
            return
        key = self._key(kinds)
        try:
            _write(self._path(key), key, code)
        except OSError as error:
            Compiled.can_write = False
            logging.getLogger(__name__).warning(
                "note: compiled kernels cannot be kept in %s: %s; each command compiles them in memory, "
                "which takes some seconds; set NUMBA_CACHE_DIR to a folder of your own with free space",
                cache_folder() or os.environ.get("NUMBA_CACHE_DIR") or "the cache folder",
                (error.strerror or str(error)).lower(),
            )

    def _key(self, kinds: tuple[Any, ...]) -> bytes:
        """Return the key of the code: everything that it depends on except the sources."""
        return repr((self._name, kinds, native.processor(), _versions())).encode()

    def _path(self, key: bytes) -> Path | None:
        folder = cache_folder()
        return folder and folder / f"{self._name}-{hashlib.sha256(key).hexdigest()[:16]}{_SUFFIX}"


@cache
def _versions() -> tuple[Any, ...]:
    """Return versions of the compiler and its settings, without importing numba."""
    numba = find_spec("numba")
    version = numba and numba.origin and (Path(numba.origin).parent / "_version.py").read_text()
    settings = sorted(one for one in os.environ.items() if one[0].startswith("NUMBA_") and one[0] != "NUMBA_CACHE_DIR")
    return version, settings, np.__version__, sys.implementation.cache_tag, sys.version


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
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen) / own
        return
    yield here / "__pycache__" / name
    with suppress(RuntimeError):  # no home folder
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ooc-pegasos" / name
    with suppress(OSError):  # no temporary folder
        yield Path(tempfile.gettempdir()) / own
