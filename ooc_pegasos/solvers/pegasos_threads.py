"""Parallel Pegasos: threads process disjoint rows, and their results are averaged exactly.

Of a round of n rows, thread k processes n_k. It starts from `a n_k/n` with the count `t n_k/n` and the delay `d n_k/n`,
which are the same weights for all threads; at the end the vectors, counts and sums are added. Then `a` is again the
exact sum of all updates and every row was processed once, so the certificate holds unchanged. Results are deterministic
for a given number of threads, unlike with lock-free updates (Hogwild).
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import BY_BATCH, BY_SUBGRADIENT, ERRORS, LOSS, MAGNITUDE, NORM2, S, T
from ooc_pegasos.solvers.base import SLICE_ENTRIES
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.store.csr_block import CsrBlock

MIN_CLOCK = 10.0
"""Minimum of lam m / threads: below, averaging costs more progress than threads save time."""
_MIN_ROUND_ENTRIES = 16 * SLICE_ENTRIES
"""Minimum number of entries per thread and round: about 0.2 seconds. Shorter rounds have more scheduling overhead."""
_ENTRIES_PER_FEATURE = 64
"""Minimum number of entries per feature and round, so that summing vectors costs little."""


class Averaging:
    """Pegasos in several threads. Between rounds `solver` has the complete state."""

    def __init__(self, solver: Pegasos, threads: int) -> None:
        self.solver = solver
        self.threads = threads
        self._workers = [Pegasos(solver.options, len(solver.a)) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1)

    @staticmethod
    def clock_problem(clock: float, threads: int) -> str | None:
        """Return why lam m is too small for averaging, or None."""
        if clock / threads >= MIN_CLOCK:
            return None
        below = f"below {MIN_CLOCK * threads:g} averaging in {threads} threads costs more than it gains"
        return f"lambda times rows is {clock:.3g}, and {below}"

    @staticmethod
    def problem(options: PegasosOptions, rows: int, threads: int) -> str | None:
        """Return why threads would not help, or None."""
        problem = Averaging.clock_problem(options.lam * rows, threads)
        if problem:
            return problem
        if options.average:
            return "averages of iterates need a single thread"
        if options.batch_size > 1 or options.project or options.free in (BY_SUBGRADIENT, BY_BATCH):
            return "batches, projections and a free bias need a single thread"
        return None

    def rows_at_a_time(self, block: CsrBlock) -> int:
        """Number of rows of a block in a round."""
        entries = self.threads * max(_MIN_ROUND_ENTRIES, _ENTRIES_PER_FEATURE * block.features)
        return max(self.threads, entries * block.rows // max(len(block.indices), 1))

    def process(self, block: CsrBlock, order: np.ndarray, begin: int, end: int, repeats: int) -> int:
        """Process rows `order[begin:end]` of a block; return the row that has an index out of range, or -1."""
        if begin == end:
            return -1
        cuts = np.linspace(begin, end, self.threads + 1).astype(np.int64).tolist()
        whole, options = self.solver, self.solver.options

        def work(number: int) -> int:
            worker, first, last = self._workers[number], cuts[number], cuts[number + 1]
            share = (last - first) / (end - begin)
            worker.options = dataclasses.replace(options, delay=options.delay * share)
            np.multiply(whole.a, share, out=worker.a)
            worker.record_target = whole.record_target
            worker.state[:] = whole.state
            worker.state[[S, LOSS, ERRORS, NORM2, MAGNITUDE]] = 0.0
            worker.state[T] = whole.state[T] * share
            return worker.process(block, order, first, last, repeats)

        others = [self._pool.submit(work, number) for number in range(1, self.threads)]
        bad = max(work(0), *(other.result() for other in others))  # the calling thread works as well
        np.add(self._workers[0].a, self._workers[1].a, out=whole.a)
        for worker in self._workers[2:]:
            whole.a += worker.a
        for worker in self._workers:
            whole.state[[S, LOSS, ERRORS, MAGNITUDE]] += worker.state[[S, LOSS, ERRORS, MAGNITUDE]]
        whole.state[T] += repeats * (end - begin)
        return bad
