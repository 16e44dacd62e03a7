"""Training on several machines, with the same certificate: rows stay where they are, vectors travel."""

from ooc_pegasos.distributed.training import train_dask

__all__ = ["train_dask"]
