"""Several threads present disjoint rows, and what they have learnt is added up exactly.

Of a round of n rows, thread k presents n_k. It starts from `a n_k/n` with the count `t n_k/n` and the delay `d n_k/n`,
so from the same weights as the others; at the end the vectors, counts and sums are added. Then `a` is again the exact
sum of all updates and every row was presented once, so the certificate holds as it stands. For a given number of
threads the result is always the same, unlike that of threads that write to one vector without locks.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import BY_SUBGRADIENT, ERRORS, LOSS, MAGNITUDE, NORM2, OF_BATCH, S, T
from ooc_pegasos.solvers.base import SLICE
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.store.csr_block import CsrBlock

LEAST = 10.0
"""lam m / threads from which on threads pay: below, what each learns alone is worth less than the time it saves."""
_ROUND = 16 * SLICE
"""Entries each thread presents in a round, a fifth of a second: shorter ones gain nothing and are badly scheduled."""
_ENTRIES_A_FEATURE = 64
"""And at least so many for each feature: adding up then costs little beside them."""


class Averaging:
    """Pegasos in several threads. Between two rounds all that is known is in `solver`."""

    def __init__(self, solver: Pegasos, threads: int) -> None:
        self.solver = solver
        self.threads = threads
        self._workers = [Pegasos(solver.options, len(solver.a)) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1)

    @staticmethod
    def clock_problem(clock: float, threads: int) -> str | None:
        """True if lam m is too small."""
        if clock / threads >= LEAST:
            return None
        below = f"below {LEAST * threads:g} {threads} threads that average gain less than they cost"
        return f"lambda times rows is {clock:.3g}, and {below}"

    @staticmethod
    def problem(options: PegasosOptions, rows: int, threads: int) -> str | None:
        """Why threads would not help, if so."""
        low = Averaging.clock_problem(options.lam * rows, threads)
        if low:
            return low
        if options.average:
            return "averages of iterates are kept by one"
        if options.batch_size > 1 or options.project or options.free in (BY_SUBGRADIENT, OF_BATCH):
            return "batches, projections and a free bias are the work of one"
        return None

    def rows_at_a_time(self, block: CsrBlock) -> int:
        """Number of rows of a block in a round."""
        entries = self.threads * max(_ROUND, _ENTRIES_A_FEATURE * block.features)
        return max(self.threads, entries * block.rows // max(len(block.indices), 1))

    def present(self, block: CsrBlock, order: np.ndarray, begin: int, end: int, repeats: int) -> int:
        """Present rows `order[begin:end]` of a block; returns the row that has an index out of range, or -1."""
        if begin == end:
            return -1
        cuts = np.linspace(begin, end, self.threads + 1).astype(np.int64).tolist()
        whole, options = self.solver, self.solver.options

        def work(number: int) -> int:
            worker, first, last = self._workers[number], cuts[number], cuts[number + 1]
            share = (last - first) / (end - begin)
            worker.options = dataclasses.replace(options, delay=options.delay * share)
            np.multiply(whole.a, share, out=worker.a)
            worker.recorded = whole.recorded
            worker.state[:] = whole.state
            worker.state[[S, LOSS, ERRORS, NORM2, MAGNITUDE]] = 0.0
            worker.state[T] = whole.state[T] * share
            return worker.present(block, order, first, last, repeats)

        others = [self._pool.submit(work, number) for number in range(1, self.threads)]
        bad = max(work(0), *(other.result() for other in others))  # the caller's thread need not be woken
        np.add(self._workers[0].a, self._workers[1].a, out=whole.a)
        for worker in self._workers[2:]:
            whole.a += worker.a
        for worker in self._workers:
            whole.state[[S, LOSS, ERRORS, MAGNITUDE]] += worker.state[[S, LOSS, ERRORS, MAGNITUDE]]
        whole.state[T] += repeats * (end - begin)
        return bad
