"""Arrow arrays of strings and their bytes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

# A pattern of bytes, because Arrow matches binary cells byte by byte.
_UTF8 = (
    r"^(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|(?:\xe0[\xa0-\xbf]|\xed[\x80-\x9f]|[\xe1-\xec\xee\xef][\x80-\xbf])[\x80-\xbf]"
    r"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf][\x80-\xbf])*$"
)
_ZEROS = (r"\.0+($|[Z+-])", r"\1"), (r"(\.[0-9]*[1-9])0+($|[Z+-])", r"\1\2")
_INT64 = 2.0**63
"""Whole numbers from here on, and below the negative, do not fit int64."""


def as_strings(array: Any) -> Any:
    """Return an array as strings without a dictionary; equal values have equal strings in columns of any type.

    5, 5.0 and 5.00 are "5", and so on as far as int64 goes; a time has no more digits after the second than it needs.
    Strings stay as they are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_strings(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    words = pc.cast(array, pa.string())
    if pa.types.is_floating(kind):
        numbers = pc.cast(array, pa.float64())
        small = pc.and_(pc.greater_equal(numbers, -_INT64), pc.less(numbers, _INT64))
        whole = pc.and_(pc.equal(pc.floor(numbers), numbers), small)
        return pc.if_else(whole, pc.cast(pc.if_else(whole, numbers, 0.0), pa.int64()).cast(pa.string()), words)
    if pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        for pattern, replacement in _ZEROS:
            words = pc.replace_substring_regex(words, pattern, replacement)
    return words


def without_infinite(array: Any) -> tuple[Any, np.ndarray]:
    """Return (an Arrow array with nulls for NaN and infinity, mask of these), which would else become categories."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(array.type)
    if not pa.types.is_floating(array.type.value_type if coded else array.type):
        return array, np.empty(0, np.int64)
    cells = array.dictionary_decode() if coded else array
    fine = pc.fill_null(pc.is_finite(pc.cast(cells, pa.float64())), True)
    wrong = np.flatnonzero(~fine.to_numpy(zero_copy_only=False))
    return (pc.if_else(fine, cells, pa.scalar(None, cells.type)), wrong) if len(wrong) else (array, wrong)


def not_utf8(cells: Any) -> np.ndarray:
    """Return a mask of the invalid UTF-8 in an Arrow array of bytes."""
    import pyarrow.compute as pc

    fine = pc.fill_null(pc.match_substring_regex(cells, _UTF8), True)
    return np.flatnonzero(~fine.to_numpy(zero_copy_only=False))


def checked(column: Any) -> tuple[Any, np.ndarray, Any]:
    """Return (an Arrow array without invalid UTF-8, the rows of these cells, all cells as bytes if there are any).

    Raises an error of Arrow if offsets or codes are invalid: those of a file are checked here first.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if coded else column.type
    words = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    if kind not in words.values() and not pa.types.is_fixed_size_binary(kind):
        try:
            column.validate(full=True)
            return column, np.empty(0, np.int64), None
        except pa.ArrowInvalid:
            if kind not in words:
                raise
    cells = column.dictionary if coded else column
    if kind in words:
        cells = cells.view(words[kind])
    cells = pa.DictionaryArray.from_arrays(column.indices, cells, safe=False) if coded else cells
    cells.validate(full=True)
    cells = (cells.dictionary_decode() if coded else cells).cast(pa.large_binary())
    wrong = not_utf8(cells)
    if len(wrong):
        mask = np.zeros(len(cells), bool)
        mask[wrong] = True
        column = pc.if_else(pa.array(mask), pa.scalar(None, cells.type), cells)
    return column if coded and not len(wrong) else as_strings(column), wrong, cells


def buffers_of(strings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (bytes, offsets) of an Arrow array of strings, both read-only; a null is empty."""
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
    """Return an Arrow array of bytes and int64 offsets."""
    import pyarrow as pa

    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def with_prefix(prefix: str, strings: Any) -> Any:
    """Return the strings with a prefix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = strings.type
    return pc.binary_join_element_wise(pa.scalar(prefix, kind), strings, pa.scalar("", kind))


def is_list(kind: Any) -> bool:
    """True for the types of lists."""
    import pyarrow as pa

    return any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def is_tags(kind: Any, of: Literal["words", "integers", "all"] = "words") -> bool:
    """True for the type of lists of words, of integers, or of words or any numbers."""
    import pyarrow as pa

    if not is_list(kind):
        return False
    inner = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
    words = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    others = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(test(inner) for test in {"words": words, "integers": others[:1], "all": (*words, *others)}[of])


def items_of(lists: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return (items of an Arrow array of lists as strings, without nulls; the row of each; rows with infinite items).

    Infinite items, and NaN, are not among the items.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pc.list_parent_indices(lists).cast(pa.int64())
    finite, wrong = without_infinite(pc.list_flatten(lists))
    items = as_strings(finite)
    there = items.is_valid()
    found: np.ndarray = rows.filter(there).to_numpy(zero_copy_only=False)
    return items.filter(there), found, np.unique(np.asarray(rows)[wrong])
