"""Dask clusters whose workers are threads of this process, and what runs on them need."""

from contextlib import contextmanager

import numpy as np

from ooc_pegasos.reporting.progress import TrainingProgress
from support.rows import random_rows
from support.stores import store_of


@contextmanager
def workers_of_this_process(number=2, *, by_default=True):
    """(cluster, client): workers of a thread each, in the process of the tests; by default Dask computes on them."""
    import distributed

    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0", "memory_limit": "1GB"}
    with (
        workers_that_never_pause(),
        distributed.LocalCluster(n_workers=number, **options) as cluster,
        distributed.Client(cluster, set_as_default=by_default) as client,
    ):
        yield cluster, client


def workers_that_never_pause():
    """For workers in this process: what tests before them have left in its memory counts as theirs."""
    import dask

    return dask.config.set({f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause")})


def store_of_parts(folder, rows=600, features=40, seed=0, **options):
    """A store of several chunks of rows that are nearly separable."""
    matrix, _labels = random_rows(rows, features, seed, 0.3)
    truth = np.random.default_rng(9).normal(size=features)
    labels = np.where(matrix @ truth + np.random.default_rng(seed).normal(size=rows) > 0, 1, -1)
    return store_of(folder, matrix, labels, chunk_size=4096, **options)


def weight_bytes(result):
    """The bytes of the weights of a result."""
    return result.model.weights.tobytes()


class EpochProgress(TrainingProgress):
    """Progress that does something at the end of an epoch."""

    on_epoch = staticmethod(lambda *_more: None)
    epochs = 0

    def epoch_done(self, record, tolerance, models):
        self.epochs += 1
        type(self).on_epoch(self.epochs)
