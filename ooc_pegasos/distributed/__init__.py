"""Training and scoring on Dask workers: rows stay where they are, vectors travel.
May import: all but cli, jobs.
"""

from ooc_pegasos.distributed.api import train_dask
from ooc_pegasos.distributed.scoring import evaluate_dask, predict_dask, predict_store

__all__ = ["evaluate_dask", "predict_dask", "predict_store", "train_dask"]
