"""A client of `dask.distributed` for the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ooc_pegasos.errors import InputError, UsageError

_PATIENCE = 10
"""Seconds to wait for a scheduler and its first worker."""


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """A client of the scheduler at an address like tcp://host:8786, or of `local:N`, N processes on this machine."""
    try:
        import distributed
    except ImportError:
        raise UsageError("--scheduler needs dask.distributed; pip install 'ooc-pegasos[distributed]'") from None
    client_of: Any = distributed.Client
    local = re.fullmatch(r"local:(\d{1,4})", scheduler)
    if local:
        number = int(local[1])
        if number < 1:
            raise UsageError("--scheduler local:N needs at least one worker, like local:2")
        local_cluster: Any = distributed.LocalCluster
        with (
            local_cluster(n_workers=number, threads_per_worker=1, dashboard_address=":0") as cluster,
            client_of(cluster) as client,
        ):
            yield client
        return
    if not re.fullmatch(r"[a-z]+://.+", scheduler):
        raise UsageError(f"--scheduler {scheduler}: give an address like tcp://host:8786, or local:2")
    try:
        client = client_of(scheduler, timeout=_PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(f"{scheduler}: no scheduler answers ({problem}); check the address") from error
    with client:
        yield client
