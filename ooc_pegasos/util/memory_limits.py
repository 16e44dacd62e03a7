"""Limits on the memory of this process, and the memory that it uses."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from ooc_pegasos.errors import InputError

_LIMITS = (
    (resource.RLIMIT_AS, "ulimit -v", 1_000_000_000),
    (resource.RLIMIT_DATA, "ulimit -d", 500_000_000),
)
"""Limits, how to change each, and the bytes of it that numpy, numba and pyarrow need before any data is read."""
_LEAST_GROUP = 128 << 20
"""Memory in bytes that the same libraries touch."""
_NOT_LOADED = ("failed to map segment", "annot allocate memory")
"""Messages of the dynamic linker when there is no memory to load a library."""


def refuse_low_limits(root: Path = Path("/")) -> None:
    """Raise an error if a limit leaves too little memory to load the libraries.

    If memory runs out while they load, OpenBLAS hangs, and LLVM and Arrow abort the process; neither can be caught.
    """
    limits = [(_limit_of(number), name, needed) for number, name, needed in _LIMITS]
    limits.append((_group_limit(root), "the limit of the control group", _LEAST_GROUP))
    for allowed, name, needed in limits:
        if allowed is not None and allowed < needed:
            sizes = f"{allowed / 1e6:,.0f} MB of memory are allowed ({name}), and {needed / 1e6:,.0f} MB are needed"
            raise InputError(f"{sizes} before any data is read; raise this limit")


def shortage(error: BaseException) -> str | None:
    """Return a message if an exception reports that memory or threads ran out, else None."""
    text = str(error)
    if isinstance(error, RuntimeError):
        if "can't start new thread" not in text:
            return None
        return "no more threads can be started; give fewer --threads, or raise the limits (ulimit -u, ulimit -v)"
    is_linker = isinstance(error, OSError | ImportError) and any(words in text for words in _NOT_LOADED)
    if not (isinstance(error, MemoryError) or is_linker or getattr(error, "errno", None) == errno.ENOMEM):
        return None
    for number, name, _needed in _LIMITS:
        if (allowed := _limit_of(number)) is not None:
            return f"out of memory, of which {allowed / 1e6:,.0f} MB are allowed ({name}); " + _LESS_OR_MORE
    return "out of memory; give a smaller --memory"


_LESS_OR_MORE = "give a smaller --memory, or raise this limit"


def _limit_of(number: int) -> int | None:
    allowed = resource.getrlimit(number)[0]
    return None if allowed == resource.RLIM_INFINITY else allowed


def _group_limit(root: Path) -> int | None:
    """Return the lowest memory limit of the control groups of this process, None if there is none."""
    found = []
    for folder, limit, _used, _cache in _groups(root):
        try:
            found.append(int((folder / limit).read_text()))
        except (OSError, ValueError):
            continue  # no limit here ("max"), or no such group
    return min(found, default=None)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes available without swapping, within `ulimit -v` and the limits of control groups (v1 and v2).

    The page cache of a control group counts as free, because the system reclaims it on demand.
    """
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass  # not Linux: the physical memory is the best estimate
    if (allowed := _limit_of(resource.RLIMIT_AS)) is not None:
        free = min(free, max(allowed - _address_space(), 0))
    for folder, limit, used, cache in _groups(root):
        try:
            most = int((folder / limit).read_text())
            held = int((folder / used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            held -= sum(int(stat.get(f"{cache}{name}", 0)) for name in ("inactive_file", "active_file"))
            free = min(free, max(most - max(held, 0), 0))
        except (OSError, ValueError):
            continue  # no limit here ("max"), or no such group
    return free


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the control groups of this process: folder, names of limit and usage, prefix of the cache statistics.

    Inside a container the group's folder is often mounted as the root of the hierarchy, so the root is checked as well.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/", "0:memory:/"]:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        folder = top / path.strip("/")
        while True:
            yield (folder, *names)
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


def peak_rss() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _address_space() -> int:
    """Return the bytes of address space in use, which `ulimit -v` limits."""
    return _status("VmSize") or 0


def _status(name: str) -> int | None:
    """Return a field of /proc/self/status in bytes, None if there is none."""
    try:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))
    except (OSError, StopIteration):
        return None
