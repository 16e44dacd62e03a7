"""The worker pool of a run: assigns parts to workers, submits tasks, sums results, recovers from lost workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakSet

from ooc_pegasos.distributed import store_parts as data
from ooc_pegasos.distributed.cluster import check, worker_descriptions
from ooc_pegasos.distributed.store_parts import Part
from ooc_pegasos.distributed.worker_round import RoundResult
from ooc_pegasos.errors import InputError, OocPegasosError

CANCELLED = (concurrent.futures.CancelledError, asyncio.CancelledError)
_POLL_SECONDS = 0.25
"""Seconds between checks whether the run has to stop."""
_CHECK_SECONDS = 1.0
"""Seconds between checks for lost workers."""
_STATUS_SECONDS = 10.0
"""Seconds between checks for paused workers."""
WORKER_TIMEOUT = 300
"""Seconds to wait for another worker when all are gone."""
_ATTEMPTS = 5
"""Attempts at a round whose results or states were lost with a worker."""
SMALL_BYTES = 1 << 22
"""A message of at most this many bytes, times parts, is sent with each task; a larger one is broadcast."""
FAN_OUT = 8
"""Fan-out of the broadcast tree."""


class LostError(Exception):
    """Results were lost with a worker, and have to be recomputed."""


class Rows(Protocol):
    """The rows of parts that are not in a store."""

    workers_of_parts: list[str]
    """The preferred worker of each part: it has the rows, or most of them; "": any."""
    max_in_memory: int | None
    """Number of parts that may be in the memory of workers at once; None: all."""

    def of(self, part: int, worker: str) -> Any:
        """Return a future of the rows of a part, which is assigned to this worker."""


class WorkerPool:
    """The workers of a client. `poll` is called periodically with the number of processed rows, and may raise."""

    def __init__(
        self,
        client: Any,
        parts: list[Part],
        rows: Rows | None,
        poll: Callable[[int], None],
        note: Callable[[str], None],
    ) -> None:
        self.client = client
        self.parts = parts
        self.run = parts[0].run
        self.bytes_moved = 0
        self.tasks = 0
        self.seconds_waiting = 0.0
        self._rows = rows
        self._poll, self._note = poll, note
        self._assigned_workers = list(rows.workers_of_parts) if rows else [""] * len(parts)
        self._futures: WeakSet[Any] = WeakSet()
        self.row_states: list[Any] = []
        """Futures of the states of rows, which the next round needs."""
        self._workers: set[str] = set()
        self._paused: set[str] = set()
        self._checked_at = self._next_status = time.monotonic()

    # --- assignment ------------------------------------------------------------------------------------

    def _assign_workers(self) -> list[str]:
        """Return the workers, after reassigning parts whose worker is gone, or which another worker has room for."""
        threads = self._threads()
        loads = dict.fromkeys(sorted(threads), 0)
        for worker in self._assigned_workers:
            if worker in loads:
                loads[worker] += 1

        def after_one_more(worker: str) -> float:
            return (loads[worker] + 1) / threads[worker]

        for number, worker in enumerate(self._assigned_workers):
            if worker not in loads:
                self._assigned_workers[number] = found = min(loads, key=after_one_more)
                loads[found] += 1
        while True:
            fullest = max(loads, key=lambda worker: loads[worker] / threads[worker])
            emptiest = min(loads, key=after_one_more)
            if loads[fullest] / threads[fullest] <= after_one_more(emptiest):
                self._workers = set(loads)
                return list(loads)
            number = max(number for number, worker in enumerate(self._assigned_workers) if worker == fullest)
            self._assigned_workers[number] = emptiest
            loads[fullest], loads[emptiest] = loads[fullest] - 1, loads[emptiest] + 1

    def _threads(self) -> dict[str, int]:
        """Return the threads of each worker; without workers, wait for some."""
        began = 0.0
        while not (found := self.client.nthreads()):
            self._poll(0)
            if not began:
                began = time.monotonic()
                self._note(f"all workers are gone; waiting for others, up to {WORKER_TIMEOUT} seconds")
            if time.monotonic() - began > WORKER_TIMEOUT:
                problem = f"all workers are gone, and no other has come in {WORKER_TIMEOUT} seconds"
                raise InputError(f"{problem}; start some, and resume from the checkpoint if there is one")
            time.sleep(_POLL_SECONDS)
        return dict(found)

    def check_states(self) -> None:
        """Raise LostError if states of rows were lost with a worker."""
        if self.row_states and not all(self.client.who_has(self.row_states).values()):
            raise LostError("states of rows")

    # --- work -------------------------------------------------------------------------------------

    def submit(self, what: str, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return a future of a task; `what` is its name on the dashboard of Dask."""
        self.tasks += 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            key = f"{what}-{self.run}-{self.tasks}"
            future = self.client.submit(work, *arguments, key=key, pure=False, **options)
        self._futures.add(future)
        return future

    def submit_all(self, what: str, work: Callable[..., Any], message: Any, more: Sequence[Any] = ()) -> list[Any]:
        """Return futures of a task for each part; all get the same message."""
        workers = self._assign_workers()
        little = self._is_small(message)
        shared = [message] if little else self._broadcast(message, workers)
        self.bytes_moved += _bytes_of(message) * len(self.parts if little else workers)
        futures: list[Any] = []
        max_in_memory = (self._rows and self._rows.max_in_memory) or len(self.parts)
        for part in self.parts:
            number = part.number
            if number and number % max_in_memory == 0:
                self.wait(futures[-max_in_memory:])
            worker = self._assigned_workers[number]
            options: dict[str, Any] = {"workers": [worker]}  # only this worker has the rows in memory
            if self._rows is not None:
                options["in_memory"] = self._rows.of(number, worker)
            arguments = (part, shared[number % len(shared)], *([more[number]] if more else []))
            futures.append(self.submit(what, work, *arguments, **options))
        return futures

    def scheduler_copies(self, message: Any) -> int:
        """Return the number of copies that the scheduler keeps: one for each part if the message is small, else one."""
        return len(self.parts) if self._is_small(message) else 1

    def _is_small(self, message: Any) -> bool:
        return _bytes_of(message) * len(self.parts) <= SMALL_BYTES

    def _broadcast(self, message: Any, workers: list[str]) -> list[Any]:
        """Send a message to all workers as a tree of futures; the scheduler keeps a copy for recovery."""
        shared = [self.submit("broadcast", _identity, message)]
        while len(shared) * FAN_OUT < len(workers):
            number = min(len(shared) * FAN_OUT, len(workers))
            shared = [
                self.submit(
                    "relay", _identity, shared[at % len(shared)], workers=[workers[at]], allow_other_workers=True
                )
                for at in range(number)
            ]
        return shared

    def summed(self, futures: list[Any], add: Callable[[Any, Any], Any]) -> Any:
        """Return the sum of results, added in pairs in a fixed order: on the workers, and the last two here."""
        level = futures
        while len(level) > 2:
            pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
            level = [self.submit("sum", add, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
        last = self.results(level, futures)
        found = add(*last) if len(last) == 2 else last[0]
        if isinstance(found, RoundResult):
            self.bytes_moved += found.bytes + last[0].own_bytes
        return found

    def scatter(self, part: int, state: Any) -> Any:
        """Return a future of data from the client, at the worker of a part."""
        self._assign_workers()
        try:
            future = self.client.scatter(state, workers=[self._assigned_workers[part]], hash=False)
        except (TimeoutError, ValueError, KeyError) as error:  # the worker has just been lost
            raise LostError(str(error)) from error
        self._futures.add(future)
        return future

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, futures: Sequence[Any], of_parts: Sequence[Any] = ()) -> None:
        """Wait for futures, polling."""
        from distributed import wait

        wait_for: Any = wait
        began = time.perf_counter()
        for future in futures:
            while not future.done():
                pairs = zip(self.parts, of_parts, strict=False)
                self._poll(sum(part.rows for part, one in pairs if one.done()))
                with suppress(TimeoutError, *CANCELLED):
                    wait_for([future], timeout=_POLL_SECONDS)
                self._check_workers()
        self.seconds_waiting += time.perf_counter() - began

    def _check_workers(self) -> None:
        """Raise LostError if a worker with parts is gone: the tasks of a part run on its worker only."""
        if time.monotonic() - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        workers = set(self._threads())
        gone, self._workers = self._workers - workers, workers
        if gone:
            self.check_states()
            if gone & set(self._assigned_workers):
                raise LostError(", ".join(sorted(gone)))
        if self._checked_at > self._next_status:
            self._next_status = self._checked_at + _STATUS_SECONDS
            message = worker_descriptions(self.client)
            for worker in set(self._assigned_workers) & set(message):
                if message[worker].get("status") == "paused" and worker not in self._paused:
                    self._paused.add(worker)
                    problem = f"the worker {worker} pauses, as its memory is nearly full"
                    self._note(f"{problem}; if it stays paused, give it more memory, or use more parts")

    def results(self, futures: list[Any], of_parts: Sequence[Any] = ()) -> list[Any]:
        """Return the results of some work. Raises LostError if the work has to be repeated."""
        from distributed.scheduler import KilledWorker

        self.wait(futures, of_parts)
        try:
            found: list[Any] = self.client.gather(futures)
            return found
        except KilledWorker as error:
            problem = "several workers died at the same task, most likely out of memory"
            raise InputError(f"{problem}; give them more memory, or use more parts and a smaller {{memory}}") from error
        except CANCELLED as error:
            raise LostError(str(error)) from error
        except MemoryError as error:
            raise InputError("a worker is out of memory; give it more, or use more parts") from error
        except (ImportError, AttributeError, TypeError):
            check(self.client)  # a new worker may have another version
            raise

    def with_retries(self, work: Callable[[], Any], restore: Callable[[], None] = lambda: None) -> Any:
        """Call `work`, again after `restore` if results were lost with a worker, up to _ATTEMPTS times."""
        lost: LostError | None = None
        for _attempt in range(_ATTEMPTS):
            try:
                if lost:
                    restore()
                return work()
            except LostError as error:
                if self.client.status != "running":
                    raise
                lost = error
        problem = f"workers were lost again and again (the last: {lost}), most likely out of memory"
        raise InputError(f"{problem}; give them more, or use more parts")

    def close(self) -> None:
        """Release all futures and states on the workers."""
        with suppress(Exception):
            for future in list(self._futures):  # `cancel` would fail if others depend on the future
                future.release()
            self.client.run(data.close_run, self.run, on_error="ignore")


@contextmanager
def scheduler_errors(client: Any) -> Iterator[None]:
    """Convert errors of a client whose scheduler is gone into InputError."""
    try:
        yield
    except OocPegasosError:
        raise
    except Exception as error:
        of_comm = isinstance(error, OSError) and error.errno is None
        if client.status == "running" and not of_comm and not isinstance(error, LostError):
            raise
        problem = " ".join(str(error).split())[:200]
        where = getattr(client.scheduler, "address", "the cluster")
        raise InputError(
            f"{where}: the scheduler does not answer ({problem}); start it again, and resume from the "
            f"checkpoint if there is one"
        ) from error


def _identity(message: Any) -> Any:
    return message


def _bytes_of(message: Any) -> int:
    return sum(packed.bytes for packed in getattr(message, "vectors", {}).values())
