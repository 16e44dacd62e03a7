"""How every kernel is compiled: without the GIL, and cached on disk under a name that cannot go stale.

numba looks only at the one file a function stands in to decide whether its cached machine code is
still good, so a change in a file it calls into would go unnoticed. Here the cache folder is named
after the content of all kernel files instead.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile `function` on first use, without the GIL, cached on disk."""
    chosen = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = chosen or str(cache_folder())
    try:
        compiled: Function = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    finally:
        numba.config.CACHE_DIR = chosen
    return compiled


def inlined(function: Function) -> Function:
    """A small function that exists only inside the kernels that call it."""
    compiled: Function = numba.njit(nogil=True, inline="always", boundscheck=False)(function)
    return compiled


@cache
def cache_folder() -> Path:
    """The first writable of: beside the kernels, the user's cache folder, a temporary folder."""
    here = Path(__file__).parent
    content = hashlib.sha256()
    for path in sorted(here.glob("*.py")):
        content.update(path.read_bytes())
    name = f"kernels-{content.hexdigest()[:16]}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for parent in (here / "__pycache__", user_cache / "ooc-pegasos"):
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return _temporary_folder(name)


def _temporary_folder(name: str) -> Path:
    """A folder for this user alone, the same at every start: code is loaded from it."""
    mine = Path(tempfile.gettempdir()) / f"ooc-pegasos-{os.getuid()}"
    try:
        mine.mkdir(mode=0o700, exist_ok=True)
        status = mine.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            (mine / name).mkdir(exist_ok=True)
            return mine / name
    except OSError:
        pass  # somebody else's file is in the way
    return Path(tempfile.mkdtemp(prefix="ooc-pegasos-kernels-"))


def is_compiled() -> bool:
    """Whether some kernels are on disk already; if not, the first use of each takes a few seconds."""
    folder = Path(numba.config.CACHE_DIR or cache_folder())
    return any(folder.rglob("*.nbi"))
