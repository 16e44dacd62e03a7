"""`evaluate` and `predict`: a model on data, streaming."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.files import sync_folder, writing_errors
from ooc_pegasos.metrics import BinaryMetrics
from ooc_pegasos.model import Model
from ooc_pegasos.parallel import cores
from ooc_pegasos.scoring import score


def evaluate(model: Model, data: str | Path, threads: int | None = None) -> dict[str, Any]:
    """The metrics of a model on a store or a raw file."""
    metrics = BinaryMetrics()
    for scored in score(model, str(data), threads or cores(), with_labels=True):
        assert scored.labels is not None
        metrics.add(scored.scores, scored.labels)
    if metrics.rows == 0:
        raise InputError(f"{data}: no rows in it; check how it was made")
    return metrics.result(model.info.lam / 2 * float(model.weights @ model.weights))


def predict(model: Model, data: str | Path, output: str | Path, threads: int | None = None) -> int:
    """Write the score and the label of each row to a .parquet, .csv or .arrow file; returns the rows."""
    import pyarrow as pa

    target = Path(output)
    labels = pa.string() if isinstance(model.labels_of(np.zeros(1))[0], str) else pa.float64()
    schema = pa.schema([("score", pa.float64()), ("label", labels)])
    rows = 0
    with writing_errors(target), _writer(target, schema) as writer:
        for scored in score(model, str(data), threads or cores(), with_labels=False):
            columns = [pa.array(scored.scores), pa.array(model.labels_of(scored.scores), labels)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            rows += len(scored.scores)
    return rows


@contextmanager
def _writer(target: Path, schema: Any) -> Iterator[Any]:
    """A writer of the kind the name asks for; the file appears when all is written."""
    import pyarrow as pa

    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    kind = target.suffix.lower()
    try:
        if kind == ".parquet":
            import pyarrow.parquet

            made: Any = pyarrow.parquet.ParquetWriter(str(temporary), schema)
        elif kind == ".csv":
            import pyarrow.csv

            made = pyarrow.csv.CSVWriter(str(temporary), schema)
        elif kind in (".arrow", ".feather"):
            made = pa.ipc.new_file(str(temporary), schema)
        else:
            raise UsageError(f"{target}: the name says no format; end it in .parquet, .csv or .arrow")
        with made as writer:
            yield writer
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)
