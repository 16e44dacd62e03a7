"""The cluster: a client of it for the command line, and what its workers have."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ooc_pegasos import __version__
from ooc_pegasos.config import MIB
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.objective.model_panel import width_of
from ooc_pegasos.solvers.base import APART
from ooc_pegasos.solvers.dual_store import BYTES_A_MODEL, BYTES_A_ROW
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.memory_limits import available_memory

if TYPE_CHECKING:
    from ooc_pegasos.distributed.store_parts import Part

_NO_WORKERS = "the cluster has no workers; start some, or wait for them with client.wait_for_workers(1)"
_PATIENCE = 10
"""Seconds to wait for a scheduler."""
_LOCAL_PATIENCE = 120
"""And for workers on this machine, which may be busy."""
SHARE_OF_ROWS, SHARE_OF_STATES = 0.4, 0.3
"""Of a worker's memory, for the rows of its parts, and for what dual coordinate ascent knows of them."""
_COPIES = 3
"""Of that at the end of a round: what was known before, what is known now, and what is being worked on."""


def dask_setup(_worker: Any) -> None:
    """Have a worker on this machine ignore what all processes of a terminal get: the client stops its workers."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """A client of the scheduler at an address like tcp://host:8786, or of `local:N`, N processes on this machine."""
    try:
        import distributed
    except ImportError:
        raise UsageError("{scheduler} needs dask.distributed; pip install 'ooc-pegasos[distributed]'") from None
    client_of: Any = distributed.Client
    local = re.fullmatch(r"local:(\d{1,4})", scheduler)
    if local:
        number = int(local[1])
        if number < 1:
            raise UsageError("{scheduler=local:N} needs at least one worker, like local:2")
        local_cluster: Any = distributed.LocalCluster
        options = {
            "n_workers": number,
            "threads_per_worker": 1,
            "host": "127.0.0.1",
            "dashboard_address": "127.0.0.1:0",
            "preload": __name__,
        }
        with local_cluster(**options) as cluster, client_of(cluster) as client:
            client.wait_for_workers(number, timeout=_LOCAL_PATIENCE)  # parts are as many as there are
            yield client
        return
    if not re.fullmatch(r"[a-z]+://.+", scheduler):
        raise UsageError(f"{{scheduler={scheduler}}}: give an address like tcp://host:8786, or local:2")
    if scheduler.startswith("tls://"):
        _check_certificates(scheduler)
    try:
        client = client_of(scheduler, timeout=_PATIENCE)
    except Exception as error:  # whatever answers there may be no scheduler
        problem = " ".join(str(error).split())[:200]
        advice = "check the address, and the certificates if the scheduler uses TLS"
        raise InputError(f"{scheduler}: no scheduler answers ({problem}); {advice}") from error
    with client:
        yield client


def _check_certificates(scheduler: str) -> None:
    """Refuse TLS without the certificates that a client needs, of which Dask would not say which is missing."""
    import dask

    if dask.config.get("distributed.client.security-loader", None):
        return
    for name in ("ca-file", "client.cert", "client.key"):
        setting = f"distributed.comm.tls.{name}"
        file = dask.config.get(setting, None)
        if file is None and name != "client.key":  # which may be in the file of the certificate
            raise InputError(f"{scheduler}: Dask's setting {setting} is missing; set it as docs/security.md shows")
        if file is not None and "\n" not in str(file):  # or the certificate itself
            try:
                open(file).close()
            except OSError as error:
                problem = f"the file of Dask's setting {setting} cannot be read ({error.strerror})"
                raise InputError(f"{scheduler}: {problem}: {file}; check the path") from error


@dataclass(frozen=True)
class Worker:
    """Description of a worker."""

    threads: int
    memory: int
    """Its limit, or what its machine has free if it has none."""
    alone: bool
    """In its process."""


def check(client: Any) -> None:
    """Refuse a client that is none, workers there are none of, and workers of another version."""
    if not hasattr(client, "submit") or not hasattr(client, "scheduler_info"):
        raise UsageError(f"a {type(client).__name__} is no client; give distributed.Client(...)")
    if client.asynchronous:
        raise UsageError("the client is asynchronous; give one that waits: distributed.Client(...)")
    if not client.nthreads():
        raise InputError(_NO_WORKERS)
    for address, found in client.run(_version_asker(), on_error="return").items():
        if found != __version__:
            has = f"has ooc-pegasos {found}" if isinstance(found, str) else "has no ooc-pegasos"
            problem = f"the worker {address} {has}, and the client {__version__}"
            raise InputError(f"{problem}; install the same everywhere")


def _version_asker() -> Callable[[], str | None]:
    """A function inside a function travels as it is, so it needs nothing of this package where it arrives."""

    def version() -> str | None:
        try:
            import ooc_pegasos
        except ImportError:
            return None
        return ooc_pegasos.__version__

    return version


def told_of_workers(client: Any) -> dict[str, Any]:
    """Return the scheduler's description of each worker. Not from `scheduler_info`, which the client replaces."""
    workers: dict[str, Any] = client.sync(client.scheduler.identity)["workers"]
    return workers


def workers_of(client: Any) -> list[Worker]:
    """The workers there are."""
    told = told_of_workers(client)
    if not told:
        raise InputError(_NO_WORKERS)
    hosts = [worker["host"] for worker in told.values()]
    without = [address for address, worker in told.items() if not worker["memory_limit"]]
    free = client.run(available_memory, workers=without) if without else {}
    return [
        Worker(
            worker["nthreads"],
            worker["memory_limit"] or free[address] // hosts.count(worker["host"]),
            not address.startswith("inproc"),
        )
        for address, worker in told.items()
    ]


def memory_of_parts(workers: Sequence[Worker], together: int) -> int:
    """Bytes that each of so many parts of a worker may have for its rows."""
    least = min(worker.memory for worker in workers)
    return max(int(SHARE_OF_ROWS * least / together) // MIB, 1) * MIB


def room_problem(client: Any, parts: Sequence[Part], store: Store, models: int) -> str | None:
    """Why dual coordinate ascent cannot be had, if so: what it knows of rows is too much for the workers."""
    workers = workers_of(client)
    rows = [sum(chunk.rows for chunk in store.manifest.chunks[part.first : part.end]) for part in parts]
    together = -(-len(parts) // len(workers))
    of_one = sum(sorted(rows)[-together:])
    columns = models if models <= APART else width_of(models)
    needed = of_one * (BYTES_A_ROW + _COPIES * BYTES_A_MODEL * columns)
    least = min(worker.memory for worker in workers)
    if needed <= SHARE_OF_STATES * least:
        return None
    return f"dual coordinate ascent keeps {needed / 1e9:.3g} GB on a worker, of which one has {least / 1e9:.3g} GB"
