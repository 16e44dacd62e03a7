"""Training and scoring on several machines, to the same certificate: rows stay where they are, vectors travel."""

from ooc_pegasos.distributed.scoring import evaluate_dask, predict_dask, predict_store
from ooc_pegasos.distributed.training import train_dask

__all__ = ["evaluate_dask", "predict_dask", "predict_store", "train_dask"]
