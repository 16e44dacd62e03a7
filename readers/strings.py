"""Arrow arrays of strings, and the bytes in them."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_strings(array: Any) -> Any:
    """The same as strings, without a dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_strings(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    return pc.cast(array, pa.string())


def buffers_of(strings: Any) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, offsets) of an Arrow array of strings, neither to be written to; a null is empty."""
    import pyarrow as pa

    kind = np.int64 if pa.types.is_large_string(strings.type) or pa.types.is_large_binary(strings.type) else np.int32
    if strings.null_count:
        strings = strings.fill_null("")
    _valid, offsets, data = strings.buffers()
    if offsets is None or not len(strings):
        ends = np.zeros(len(strings) + 1, kind)
        ends.flags.writeable = False
        return np.frombuffer(b"", np.uint8), ends
    ends = np.frombuffer(offsets, kind, len(strings) + 1, strings.offset * np.dtype(kind).itemsize)
    return np.frombuffer(data if data is not None else b"", np.uint8), ends


def strings_of(data: np.ndarray, offsets: np.ndarray) -> Any:
    """The other way round: offsets are int64."""
    import pyarrow as pa

    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def with_prefix(prefix: str, strings: Any) -> Any:
    """Each string with something before it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = strings.type
    return pc.binary_join_element_wise(pa.scalar(prefix, kind), strings, pa.scalar("", kind))
