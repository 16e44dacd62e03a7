"""The cluster: a client for the command line, and the threads and memory of the workers."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ooc_pegasos import __version__
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.objective.model_panel import width_of
from ooc_pegasos.option_texts import MIB
from ooc_pegasos.registry import LOSSES, SAMPLERS, Registry
from ooc_pegasos.solvers.dual_store import BYTES_PER_MODEL, BYTES_PER_ROW
from ooc_pegasos.solvers.row_group import MAX_SEPARATE
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.memory_limits import available_memory

if TYPE_CHECKING:
    from ooc_pegasos.distributed.store_parts import Part

_NO_WORKERS = "the cluster has no workers; start some, or wait for them with client.wait_for_workers(1)"
_REGISTRIES: dict[str, Registry[Any]] = {"loss": LOSSES, "sampling": SAMPLERS}
_CONNECT_TIMEOUT = 10
"""Seconds to wait for a scheduler."""
_LOCAL_TIMEOUT = 120
"""Seconds to wait for workers on this machine, which may be busy."""
ROWS_SHARE, STATES_SHARE = 0.4, 0.3
"""Shares of a worker's memory for the rows of its parts, and for the states of dual coordinate ascent."""
_COPIES = 3
"""Copies of the states at the end of a round: before, after, and in use."""


def dask_setup(_worker: Any) -> None:
    """Let a local worker ignore signals that a terminal sends to all processes: the client stops its workers."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """Connect to the scheduler at an address like tcp://host:8786, or to `local:N`: N processes on this machine."""
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
            client.wait_for_workers(number, timeout=_LOCAL_TIMEOUT)  # the number of parts depends on it
            yield client
        return
    if not re.fullmatch(r"[a-z]+://.+", scheduler):
        raise UsageError(f"{{scheduler={scheduler}}}: give an address like tcp://host:8786, or local:2")
    if scheduler.startswith("tls://"):
        _check_certificates(scheduler)
    try:
        client = client_of(scheduler, timeout=_CONNECT_TIMEOUT)
    except Exception as error:  # another service may answer at the address
        problem = " ".join(str(error).split())[:200]
        advice = "check the address, and the certificates if the scheduler uses TLS"
        raise InputError(f"{scheduler}: no scheduler answers ({problem}); {advice}") from error
    with client:
        yield client


def _check_certificates(scheduler: str) -> None:
    """Raise InputError for a missing or unreadable TLS certificate, which Dask does not name."""
    import dask

    if dask.config.get("distributed.client.security-loader", None):
        return
    for name in ("ca-file", "client.cert", "client.key"):
        setting = f"distributed.comm.tls.{name}"
        file = dask.config.get(setting, None)
        if file is None and name != "client.key":  # the key may be in the file of the certificate
            raise InputError(f"{scheduler}: Dask's setting {setting} is missing; set it as docs/security.md shows")
        if file is not None and "\n" not in str(file):  # the setting may be the certificate itself
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
    """The memory limit, or without a limit, a share of the free memory of the machine."""
    own_process: bool
    """True if the worker has a process of its own."""


def check(client: Any) -> None:
    """Refuse objects that are not clients, clusters without workers, and workers with another version."""
    if not hasattr(client, "submit") or not hasattr(client, "scheduler_info"):
        raise UsageError(f"a {type(client).__name__} is not a client; give distributed.Client(...)")
    if client.asynchronous:
        raise UsageError("the client is asynchronous; give a synchronous one: distributed.Client(...)")
    if not client.nthreads():
        raise InputError(_NO_WORKERS)
    for address, found in client.run(_version_query(), on_error="return").items():
        if found != __version__:
            has = f"has ooc-pegasos {found}" if isinstance(found, str) else "has no ooc-pegasos"
            problem = f"the worker {address} {has}, and the client {__version__}"
            raise InputError(f"{problem}; install the same everywhere")


def check_registered(client: Any, names: Mapping[str, str | None]) -> None:
    """Refuse losses and samplers, by option, that are registered here and not on all workers."""
    added = {option: name for option, name in names.items() if name and not _REGISTRIES[option].is_built_in(name)}
    for address, missing in (client.run(_unknown, added) if added else {}).items():
        for mark in missing:
            raise UsageError(
                f"{mark} is not registered on the worker {address}; have it import the module that registers it, "
                "as with dask worker --preload, or train on one machine"
            )


def _unknown(names: dict[str, str]) -> list[str]:
    """Return marks of the options whose values are unknown in this process."""
    return [f"{{{option}={name}}}" for option, name in names.items() if name not in _REGISTRIES[option]]


def _version_query() -> Callable[[], str | None]:
    """Return a function that is pickled by value, since the package may be missing on the worker."""

    def version() -> str | None:
        try:
            import ooc_pegasos
        except ImportError:
            return None
        return ooc_pegasos.__version__

    return version


def worker_descriptions(client: Any) -> dict[str, Any]:
    """Return the scheduler's description of each worker; the client may change that of `scheduler_info`."""
    workers: dict[str, Any] = client.sync(client.scheduler.identity)["workers"]
    return workers


def workers_of(client: Any) -> list[Worker]:
    """Return the workers."""
    descriptions = worker_descriptions(client)
    if not descriptions:
        raise InputError(_NO_WORKERS)
    hosts = [worker["host"] for worker in descriptions.values()]
    unlimited = [address for address, worker in descriptions.items() if not worker["memory_limit"]]
    free = client.run(available_memory, workers=unlimited) if unlimited else {}
    return [
        Worker(
            worker["nthreads"],
            worker["memory_limit"] or free[address] // hosts.count(worker["host"]),
            not address.startswith("inproc"),
        )
        for address, worker in descriptions.items()
    ]


def memory_of_part(workers: Sequence[Worker], parts_per_worker: int) -> int:
    """Return the bytes for the rows of a part, with a number of parts per worker."""
    smallest = min(worker.memory for worker in workers)
    return max(int(ROWS_SHARE * smallest / parts_per_worker) // MIB, 1) * MIB


def memory_problem(client: Any, parts: Sequence[Part], store: Store, models: int) -> str | None:
    """Return why the states of dual coordinate ascent do not fit on the workers, or None."""
    workers = workers_of(client)
    rows = [sum(chunk.rows for chunk in store.manifest.chunks[part.first : part.end]) for part in parts]
    parts_per_worker = -(-len(parts) // len(workers))
    rows_of_worker = sum(sorted(rows)[-parts_per_worker:])
    columns = models if models <= MAX_SEPARATE else width_of(models)
    needed = rows_of_worker * (BYTES_PER_ROW + _COPIES * BYTES_PER_MODEL * columns)
    smallest = min(worker.memory for worker in workers)
    if needed <= STATES_SHARE * smallest:
        return None
    return f"dual coordinate ascent needs {needed / 1e9:.3g} GB on a worker, and one has {smallest / 1e9:.3g} GB"
