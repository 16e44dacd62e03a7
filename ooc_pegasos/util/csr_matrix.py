"""Matrices in memory, of any kind, as scipy sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_pegasos.errors import InputError


def csr_of(matrix: Any, name: str) -> Any:
    """Return a matrix of any kind (scipy, pydata/sparse, numpy, lists, dataframes of numbers) as CSR of scipy."""
    import scipy.sparse as sp

    if not sp.issparse(matrix):
        matrix = matrix.to_coo() if hasattr(matrix, "to_coo") else matrix  # pydata/sparse
        if not hasattr(matrix, "to_scipy_sparse"):
            refuse_masked(matrix, "values", name)
            matrix = _dense_of(matrix, name)
    if len(matrix.shape) != 2:
        raise InputError(f"{name}: rows of shape {matrix.shape}; give a matrix, with a row for each example")
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"{name}: values of type {matrix.dtype}; give numbers, for example with astype('float32')")
    if hasattr(matrix, "to_scipy_sparse"):
        if matrix.fill_value != 0:
            problem = f"entries that are not stored are {matrix.fill_value}"
            raise InputError(f"{name}: {problem}; give a sparse array whose fill_value is 0")
        matrix = matrix.to_scipy_sparse()
    return sp.csr_matrix(matrix if matrix.dtype != np.float16 else matrix.astype(np.float32))


def _dense_of(given: Any, name: str) -> np.ndarray:
    """Return a dense array of lists of lists or a dataframe of numbers."""
    try:
        return np.asarray(given)
    except (TypeError, ValueError, OverflowError) as error:
        problem = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"{name}: {problem}; give a matrix of numbers, with rows of one length") from error


def refuse_masked(given: Any, what: str, name: str) -> None:
    """Refuse a masked array; `what` is its content and `name` its name in messages."""
    if np.ma.is_masked(given):
        raise InputError(f"{name}: some {what} are masked; leave out their rows, or fill them with .filled(value)")
