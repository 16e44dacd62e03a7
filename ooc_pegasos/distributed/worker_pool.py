"""The workers of a run: each part has its home, work goes there, what is found is added up, and nothing is left."""

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
from ooc_pegasos.distributed.cluster import check, told_of_workers
from ooc_pegasos.distributed.store_parts import Part
from ooc_pegasos.distributed.worker_round import Contribution
from ooc_pegasos.errors import InputError, OocPegasosError

CANCELLED = (concurrent.futures.CancelledError, asyncio.CancelledError)
_LOOK = 0.25
"""Seconds between two looks at whether somebody wants to stop."""
_LOOK_FOR_WORKERS = 1.0
"""And at whether all workers are there."""
_REPORT = 10.0
"""And at whether they are well."""
WORKER_WAIT_SECONDS = 300
"""Seconds to wait for another worker when all are gone."""
_ATTEMPTS = 5
"""To do a round, of which each but the last has lost something that nobody can make again."""
SMALL_BYTES = 1 << 22
"""Bytes that go with the work of all parts; more go to one worker, which takes a step longer, and then to others."""
FAN_OUT = 8
"""Workers that a vector is sent to by one that has it, before those send it on."""


class LostError(Exception):
    """Results were lost with a worker, and have to be recomputed."""


class Rows(Protocol):
    """The rows of parts that are in no store."""

    homes: list[str]
    """The worker of each part that has its rows, or that would have to move least of them; "": whichever."""
    at_a_time: int | None
    """Number of parts that may be in the memory of workers at once; None: all."""

    def of(self, part: int, home: str) -> Any:
        """A future of the rows of a part, which is at home with this worker."""


class Crew:
    """Work for the workers of a client. `look_up` is called now and then with the rows that are done, and may raise."""

    def __init__(
        self,
        client: Any,
        parts: list[Part],
        rows: Rows | None,
        look_up: Callable[[int], None],
        note: Callable[[str], None],
    ) -> None:
        self.client = client
        self.parts = parts
        self.run = parts[0].run
        self.bytes_moved = 0
        self.tasks = 0
        self.seconds_waiting = 0.0
        self._rows = rows
        self._look_up, self._note = look_up, note
        self._homes = list(rows.homes) if rows else [""] * len(parts)
        self._futures: WeakSet[Any] = WeakSet()
        self.kept: list[Any] = []
        """Futures that the next round needs."""
        self._workers: set[str] = set()
        self._paused: set[str] = set()
        self._looked = self._next_report = time.monotonic()

    # --- where ------------------------------------------------------------------------------------

    def _settle(self) -> list[str]:
        """The workers there are; each part stays with its own, unless that is gone or another has much less to do."""
        threads = self._threads()
        loads = dict.fromkeys(sorted(threads), 0)
        for home in self._homes:
            if home in loads:
                loads[home] += 1

        def after_one_more(worker: str) -> float:
            return (loads[worker] + 1) / threads[worker]

        for number, home in enumerate(self._homes):
            if home not in loads:
                self._homes[number] = found = min(loads, key=after_one_more)
                loads[found] += 1
        while True:
            fullest = max(loads, key=lambda worker: loads[worker] / threads[worker])
            emptiest = min(loads, key=after_one_more)
            if loads[fullest] / threads[fullest] <= after_one_more(emptiest):
                self._workers = set(loads)
                return list(loads)
            number = max(number for number, home in enumerate(self._homes) if home == fullest)
            self._homes[number] = emptiest
            loads[fullest], loads[emptiest] = loads[fullest] - 1, loads[emptiest] + 1

    def _threads(self) -> dict[str, int]:
        """Of each worker there is; if there is none, others are waited for."""
        began = 0.0
        while not (found := self.client.nthreads()):
            self._look_up(0)
            if not began:
                began = time.monotonic()
                self._note(f"all workers are gone; waiting for others, up to {WORKER_WAIT_SECONDS} seconds")
            if time.monotonic() - began > WORKER_WAIT_SECONDS:
                problem = f"all workers are gone, and no other has come in {WORKER_WAIT_SECONDS} seconds"
                raise InputError(f"{problem}; start some, and resume from the checkpoint if there is one")
            time.sleep(_LOOK)
        return dict(found)

    def check_kept(self) -> None:
        """Raise LostError if a worker has taken anything along that is kept from round to round."""
        if self.kept and not all(self.client.who_has(self.kept).values()):
            raise LostError("what was known of rows")

    # --- work -------------------------------------------------------------------------------------

    def submit(self, what: str, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A future of some work. Its name is what people read who look at the workers, so it begins with words."""
        self.tasks += 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            key = f"{what}-{self.run}-{self.tasks}"
            future = self.client.submit(work, *arguments, key=key, pure=False, **options)
        self._futures.add(future)
        return future

    def everywhere(self, what: str, work: Callable[..., Any], told: Any, more: Sequence[Any] = ()) -> list[Any]:
        """Futures of some work on all parts, who are all told the same."""
        workers = self._settle()
        little = self._is_little(told)
        shared = [told] if little else self._tell(told, workers)
        self.bytes_moved += _bytes_of(told) * len(self.parts if little else workers)
        futures: list[Any] = []
        at_a_time = (self._rows and self._rows.at_a_time) or len(self.parts)
        for part in self.parts:
            number = part.number
            if number and number % at_a_time == 0:
                self.wait(futures[-at_a_time:])
            home = self._homes[number]
            options: dict[str, Any] = {"workers": [home]}  # nobody else has its rows at hand
            if self._rows is not None:
                options["held"] = self._rows.of(number, home)
                self._futures.add(options["held"])
            arguments = (part, shared[number % len(shared)], *([more[number]] if more else []))
            futures.append(self.submit(what, work, *arguments, **options))
        return futures

    def copies_of(self, told: Any) -> int:
        """Return the number of copies that the scheduler keeps: one for each part if the message is small, else one."""
        return len(self.parts) if self._is_little(told) else 1

    def _is_little(self, told: Any) -> bool:
        return _bytes_of(told) * len(self.parts) <= SMALL_BYTES

    def _tell(self, told: Any, workers: list[str]) -> list[Any]:
        """Futures of something that all workers want. The scheduler keeps it, so no worker that dies takes it along.

        Where there are many workers, some pass it on to some others, and so on, so that none has to send it to all.
        """
        shared = [self.submit("what-all-are-told", _same, told)]
        while len(shared) * FAN_OUT < len(workers):
            number = min(len(shared) * FAN_OUT, len(workers))
            shared = [
                self.submit(
                    "passed-on", _same, shared[at % len(shared)], workers=[workers[at]], allow_other_workers=True
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
        if isinstance(found, Contribution):
            self.bytes_moved += found.bytes + last[0].own_bytes
        return found

    def scatter(self, part: int, state: Any) -> Any:
        """A future of something that workers cannot make, at the home of a part."""
        self._settle()
        try:
            future = self.client.scatter(state, workers=[self._homes[part]], hash=False)
        except (TimeoutError, ValueError, KeyError) as error:  # it has just died
            raise LostError(str(error)) from error
        self._futures.add(future)
        return future

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, futures: Sequence[Any], of_parts: Sequence[Any] = ()) -> None:
        """Wait for some futures, looking up now and then."""
        from distributed import wait

        wait_for: Any = wait
        began = time.perf_counter()
        for future in futures:
            while not future.done():
                pairs = zip(self.parts, of_parts, strict=False)
                self._look_up(sum(part.rows for part, one in pairs if one.done()))
                with suppress(TimeoutError, *CANCELLED):
                    wait_for([future], timeout=_LOOK)
                self._look_for_workers()
        self.seconds_waiting += time.perf_counter() - began

    def _look_for_workers(self) -> None:
        """A part's work is done at its home and nowhere else; if that is gone, it has to be given another."""
        if time.monotonic() - self._looked < _LOOK_FOR_WORKERS:
            return
        self._looked = time.monotonic()
        workers = set(self._threads())
        gone, self._workers = self._workers - workers, workers
        if gone:
            self.check_kept()
            if gone & set(self._homes):
                raise LostError(", ".join(sorted(gone)))
        if self._looked > self._next_report:
            self._next_report = self._looked + _REPORT
            told = told_of_workers(self.client)
            for worker in set(self._homes) & set(told):
                if told[worker].get("status") == "paused" and worker not in self._paused:
                    self._paused.add(worker)
                    problem = f"the worker {worker} pauses, as its memory is nearly full"
                    self._note(f"{problem}; if it does not go on, give it more, or use more parts")

    def results(self, futures: list[Any], of_parts: Sequence[Any] = ()) -> list[Any]:
        """Return the results of some work. Raises LostError if the work has to be repeated."""
        from distributed.scheduler import KilledWorker

        self.wait(futures, of_parts)
        try:
            found: list[Any] = self.client.gather(futures)
            return found
        except KilledWorker as error:
            problem = "workers died one after the other of the same piece of work, most likely for want of memory"
            raise InputError(f"{problem}; give them more memory, or use more parts and a smaller {{memory}}") from error
        except CANCELLED as error:
            raise LostError(str(error)) from error
        except MemoryError as error:
            raise InputError("a worker is out of memory; give it more, or use more parts") from error
        except (ImportError, AttributeError, TypeError):
            check(self.client)  # one that has come later may be of another version
            raise

    def insistently(self, work: Callable[[], Any], begin_again: Callable[[], None] = lambda: None) -> Any:
        """Do some work, and do it again if something was lost that nobody but the client can bring back."""
        lost: LostError | None = None
        for _attempt in range(_ATTEMPTS):
            try:
                if lost:
                    begin_again()
                return work()
            except LostError as error:
                if self.client.status != "running":
                    raise
                lost = error
        problem = f"workers were lost again and again (the last: {lost}), most likely for want of memory"
        raise InputError(f"{problem}; give them more, or use more parts")

    def close(self) -> None:
        """Leave nothing on the workers."""
        with suppress(Exception):
            for future in list(self._futures):  # not `cancel`, which is the end of a client if others depend on it
                future.release()
            self.client.run(data.forget, self.run, on_error="ignore")


@contextmanager
def speaking(client: Any) -> Iterator[None]:
    """Turn what a client says whose scheduler is gone into one line."""
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
            f"{where}: the scheduler does not answer any more ({problem}); start it again, and resume from the "
            f"checkpoint if there is one"
        ) from error


def _same(told: Any) -> Any:
    return told


def _bytes_of(told: Any) -> int:
    return sum(packed.bytes for packed in getattr(told, "vectors", {}).values())
