"""What this process may use of the machine and what it has used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be had without swapping, within the limits of control groups (version 1 and 2).

    What a group holds of files, page cache, counts as free: the system gives it back when it is asked for memory.
    """
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass  # not Linux: all of the memory is the best guess there is
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
    """The control group of this process and those it is in: folder, names of limit and usage, prefix of what is cache.

    Inside a container the group's folder is often mounted as the root of the hierarchy, so that is looked at too.
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
    """Largest resident size of this process so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
