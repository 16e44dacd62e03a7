"""Record batches of tables that are not in memory as a whole: LazyFrames of polars, datasets of Hugging Face, rows.

Neither library is imported before an object of it is given; datasets are known by their methods `with_format` and
`iter`. A stream is read once, so it is staged in files. The types of its batches may differ.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.util.short_names import short

ROWS = 1 << 12
"""Rows of a batch, few enough for long texts."""
TRAIN, TEST = "train", "test"


def is_dataset(data: Any) -> bool:
    """True for a dataset of Hugging Face, iterable or not."""
    return hasattr(data, "with_format") and hasattr(data, "iter")


def is_lazy(data: Any) -> bool:
    """True for a LazyFrame of polars, which warns when its columns are read."""
    return type(data).__name__ == "LazyFrame"


def is_stream(data: Any) -> bool:
    """True for data that is no list of names of files: a table, a stream of rows, or the splits of a dataset."""
    return hasattr(data, "__arrow_c_stream__") or is_lazy(data) or is_dataset(data) or isinstance(data, Mapping)


def splits_of(data: Any) -> Mapping[str, Any] | None:
    """Return the splits of a dataset of Hugging Face, of which one is named `train`; None for other data."""
    if not isinstance(data, Mapping) or not data or not all(map(is_dataset, data.values())):
        return None
    if TRAIN not in data:
        raise UsageError(f"none of the splits {', '.join(map(str, data))} is named {TRAIN}; give one of them")
    return data


def note_on_splits(splits: Mapping[str, Any], used: tuple[str, ...]) -> str | None:
    """Return a note if a dataset has other splits than those that are used."""
    others = [str(name) for name in splits if name not in used]
    return f"not used: the split {', '.join(others)} of the dataset; give it separately if needed" if others else None


def batches_of_lazy(frame: Any, name: str) -> Iterator[Any]:
    """Yield the record batches of a LazyFrame, computed by the streaming engine, in order."""
    import polars as pl

    try:
        if hasattr(frame, "collect_batches"):
            for piece in frame.collect_batches(chunk_size=ROWS, maintain_order=True, engine="streaming"):
                yield from piece.to_arrow().to_batches()
            return
        import pyarrow.parquet as pq

        with tempfile.TemporaryDirectory(prefix="oocpeg-") as folder:  # older versions of polars
            file = os.path.join(folder, "rows.parquet")
            frame.sink_parquet(file)
            with pq.ParquetFile(file) as opened:
                yield from opened.iter_batches(batch_size=ROWS)
    except pl.exceptions.PolarsError as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(f"{name}: the LazyFrame cannot be computed: {problem}; correct the query") from error


def batches_of_dataset(data: Any, name: str) -> Iterator[Any]:
    """Yield the record batches of a dataset of Hugging Face."""
    import pyarrow as pa

    schema = getattr(getattr(data, "features", None), "arrow_schema", None)
    for part in _with_format_to_read(data).iter(batch_size=ROWS):
        if isinstance(part, Mapping):
            part = _table(lambda part=part: pa.Table.from_pydict(dict(part), schema=schema), name)
        yield from part.to_batches()


def _with_format_to_read(data: Any) -> Any:
    """Return a dataset that yields Arrow tables, or dictionaries of lists where its rows are objects of Python.

    Of such rows the library makes an Arrow table each, and fails where their types differ, as of an empty list.
    """
    source = getattr(data, "_ex_iterable", None)
    if source is None or getattr(source, "iter_arrow", None):
        return data.with_format("arrow")
    can_decode = hasattr(data, "decode") and data.features is not None
    return (data.decode(False) if can_decode else data).with_format(None)


def refuse_splits(data: Any) -> None:
    """Raise UsageError for all splits of a dataset where one is needed."""
    if isinstance(data, Mapping) and data and all(map(is_dataset, data.values())):
        raise UsageError(f"these are the splits {', '.join(map(str, data))} of a dataset; give one of them")


def batches_of_rows(rows: Iterable[Any], name: str) -> Iterator[Any]:
    """Yield record batches of dictionaries."""
    remaining = iter(rows)
    while some := list(islice(remaining, ROWS)):
        yield from table_of_rows(some, name).to_batches()


def table_of_rows(rows: list[Any], name: str) -> Any:
    """Return a table of dictionaries; missing values are null."""
    import pyarrow as pa

    odd = next((row for row in rows if not isinstance(row, dict)), None)
    if odd is not None:
        raise UsageError(f"{name}: a row is a {type(odd).__name__}; make every row a dictionary, column to value")
    columns = {}
    for column in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(column) for row in rows]
        columns[str(column)] = _table(lambda values=values: pa.array(values), f"{name}: column '{short(str(column))}'")
    return pa.table(columns)


def _table(make: Any, what: str) -> Any:
    """Return what a function makes of Python's values, which may be of several types."""
    import pyarrow as pa

    try:
        return make()
    except (pa.ArrowException, OverflowError, TypeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(f"{what}: {problem}; give its values one type") from error
