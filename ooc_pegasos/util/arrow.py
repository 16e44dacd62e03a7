"""Arrow arrays over numpy's memory. `pyarrow.array` and `to_numpy` import pandas wherever it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_of(numbers: np.ndarray) -> Any:
    """Return an Arrow array over the memory of a numpy array."""
    import pyarrow as pa

    whole = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(pa.from_numpy_dtype(whole.dtype), len(whole), [None, pa.py_buffer(whole)])


_KINDS = {"float": np.float32, "double": np.float64, "uint32": np.uint32, "int64": np.int64}


def numbers_of(column: Any) -> np.ndarray:
    """Return a numpy array over the memory of an Arrow array without nulls."""
    kind = np.dtype(_KINDS[str(column.type)])
    held = column.buffers()[1]
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(held, kind, len(column), column.offset * kind.itemsize)
