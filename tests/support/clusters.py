"""Dask clusters whose workers are threads of this process."""

from contextlib import contextmanager


@contextmanager
def workers_of_this_process(number=2):
    """(cluster, client): workers of a thread each, in the process of the tests."""
    import distributed

    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0", "memory_limit": "1GB"}
    with (
        workers_that_never_pause(),
        distributed.LocalCluster(n_workers=number, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster, client


def workers_that_never_pause():
    """For workers in this process: what tests before them have left in its memory counts as theirs."""
    import dask

    return dask.config.set({f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause")})
