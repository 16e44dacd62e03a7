"""Arrow arrays over numpy's memory. `pyarrow.array` imports pandas, wherever that is installed, to see what it got."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_of(numbers: np.ndarray) -> Any:
    """The same numbers, without a copy."""
    import pyarrow as pa

    whole = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(pa.from_numpy_dtype(whole.dtype), len(whole), [None, pa.py_buffer(whole)])
