"""Parallel map over threads with results in order and a bounded number of items in flight."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    size: Callable[[Item], int] = lambda _item: 0,
    room: float = math.inf,
) -> Generator[Result, None, None]:
    """`map` with `threads` threads, at most `threads + 1` items ahead of the result that the caller waits for.

    The sizes of several items in flight add up to at most `room`. An error of `items` is raised after the results of
    the items before it. Closing the generator waits for all threads.
    """
    if threads <= 1:
        for item in items:
            size(item)  # which may release memory
            yield function(item)
        return
    pool = ThreadPoolExecutor(threads)
    under_way: deque[tuple[int, Future[Result]]] = deque()
    taken, problem, following = 0, None, iter(items)

    def oldest() -> Result:
        nonlocal taken
        done, future = under_way.popleft()
        taken -= done
        return future.result()

    try:
        while True:
            try:
                item = next(following)
            except StopIteration:
                break
            except Exception as error:
                problem = error
                break
            new = size(item)
            while under_way and taken + new > room:
                yield oldest()
            taken += new
            under_way.append((new, pool.submit(function, item)))
            if len(under_way) > threads:
                yield oldest()
        while under_way:
            yield oldest()
        if problem is not None:
            raise problem
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
