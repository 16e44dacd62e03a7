"""Rows whose labels need a bias, their stores, and which rows are held out."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from ooc_pegasos import Store
from ooc_pegasos.compiled.fit.pegasos import folds_of_rows
from support.stores import store_of


def rows_with_a_bias(task: str, seed: int, rows: int = 200, bias: float = 1.5) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows, one of them empty, with labels from a noisy linear function that is not 0 at 0."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, 5)) * (rng.random((rows, 5)) < 0.8)
    dense[1] = 0
    matrix = sp.csr_matrix(dense.astype(np.float32))
    score = dense @ np.array([2, -1, 0.5, 0, 1]) + bias + 0.7 * rng.standard_normal(rows)
    return matrix, np.where(score > 0, 1, -1) if task == "binary" else np.round(score, 2)


def store_of_task(folder: Path, task: str, matrix: sp.csr_matrix, labels: np.ndarray, **options: object) -> Store:
    """A store of rows for binary classification or regression."""
    folder.mkdir(exist_ok=True)
    real = {} if task == "binary" else {"task": "regression", "classes": ()}
    return store_of(folder, matrix, labels, **{**real, **options})


def weights_in_file(folder: Path, rows: int) -> tuple[np.ndarray, str]:
    """Random weights of rows, and the path of a file with them."""
    weights = np.round(np.random.default_rng(2).exponential(size=rows) * 8 + 1) / 8
    (folder / "weights.txt").write_text("".join(f"{weight}\n" for weight in weights))
    return weights, str(folder / "weights.txt")


def holdout_masks(rows: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the holdout rows and of the training rows."""
    marks = np.empty(rows, np.uint8)
    folds_of_rows(0, int(fraction * 2**53), 0, marks)
    return marks == 0, marks == 1
