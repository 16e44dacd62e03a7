"""Evaluation and prediction: a model applied to a store or to files, in a stream."""

from __future__ import annotations

import codecs
import copy
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.multiclass import class_losses_of
from ooc_pegasos.compiled.fit.sums import losses_of
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import pipes
from ooc_pegasos.readers.sources import path_of, samples_of
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.scoring.metrics import (
    EXACT_ROWS,
    BinaryMetrics,
    MulticlassMetrics,
    ProbabilityMetrics,
    RegressionMetrics,
)
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.scoring.score import Scored, files_for, is_store, score, size_of
from ooc_pegasos.store import row_ids
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.arrow import array_of
from ooc_pegasos.util.files import replacing, writing_errors
from ooc_pegasos.util.short_names import short
from ooc_pegasos.util.thread_map import cores

STDOUT = "-"
Data = str | Path | Sequence[str | Path]
"""A store or raw files: a name, a pattern, or several."""


def evaluate(
    model: Model,
    data: Data,
    threads: int | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
    *,
    labels: str | Path | None = None,
) -> dict[str, Any]:
    """Return the metrics of a model on a store or raw files; `labels` is the file of labels of matrices without any."""
    names, progress = names_of(data), progress or Progress()
    progress.begin("evaluating", sum(size_of(model, name) for name in names))
    if labels is not None and len(names) > 1:
        raise UsageError("{labels} is for one name or pattern of files; name one")
    file = None if labels is None else str(labels)
    blocks = (score(model, name, threads or cores(), True, progress.advance, memory, file) for name in names)
    with pipes.kept_in(None):
        return metrics_of(model, chain.from_iterable(blocks), ", ".join(names))


def names_of(data: Data) -> list[str]:
    """Return the names of the data, of which there may be one or several."""
    return [str(data)] if isinstance(data, str | Path) else [str(one) for one in data]


def seen_in_training(model: Model, data: Data) -> bool:
    """True if some of the data is known to be data that the model was trained on: the same store, or files in it."""
    return any(_is_seen(model, name) for name in names_of(data))


def _is_seen(model: Model, data: str) -> bool:
    recipe, known = model.info.recipe, set(model.info.sources)
    if is_store(data, recipe):
        store = Store.open(data)
        sources, split = store.manifest.sources, store.manifest.split
        if split and split.part == "test":  # other rows of the same files
            return store.checksum == model.info.store_checksum
        return store.checksum == model.info.store_checksum or any(one.fingerprint in known for one in sources)
    try:
        names = files_for(data, recipe)
        return any(f"{os.stat(path_of(name)).st_size}:{samples_of(name)}" in known for name in names)
    except OSError:
        return False


def metrics_of(model: Model, blocks: Iterable[Scored], what: str) -> dict[str, Any]:
    """Return the metrics of a model on scored rows; `what` names the rows in messages."""
    tally = Tally(model, EXACT_ROWS)
    tally.take(model, blocks)
    return tally.result(model, what)


class Tally:
    """Metrics of a model, accumulated over scored rows; those of several machines can be merged."""

    def __init__(self, model: Model, exact_rows: int) -> None:
        labels = model.info.labels
        self.metrics: Any = BinaryMetrics(exact_rows)
        if labels.task != "binary":
            self.metrics = RegressionMetrics()
            if labels.task == "multiclass":
                self.metrics = MulticlassMetrics(len(labels.classes))
        self.probable = ProbabilityMetrics() if labels.task == "binary" and model.has_probabilities else None

    def take(self, model: Model, blocks: Iterable[Scored]) -> None:
        """Add rows."""
        for scored in blocks:
            assert scored.labels is not None
            losses = losses_of_rows(model, scored.scores, scored.labels)
            several = model.info.labels.task == "multiclass"
            self.metrics.add(scored.scores.argmax(axis=1) if several else scored.scores, scored.labels, losses)
            if self.probable:
                self.probable.add(model.probabilities_of(scored.scores), scored.labels)

    def merge(self, other: Tally) -> None:
        """Add the rows of another tally, which follow those of this one."""
        self.metrics.merge(other.metrics)
        if self.probable and other.probable:
            self.probable.merge(other.probable)

    def copy(self) -> Tally:
        """Return a copy."""
        return copy.deepcopy(self)

    def result(self, model: Model, what: str) -> dict[str, Any]:
        """Return all metrics; `what` names the rows in messages."""
        # the bias of a constant feature is regularised like a weight
        config, bias = model.info.config, model.bias.ravel()
        scale = float(config.get("bias_scale", 1.0)) if config.get("bias") == "feature" else 0.0
        square = float((model.weights**2).sum()) + (float((bias / scale) @ (bias / scale)) if scale else 0.0)
        result: dict[str, Any] = self.metrics.result(model.info.lam / 2 * square)
        if result["rows"] == 0:
            raise InputError(f"{what}: no rows in it; check how it was made")
        if self.probable:
            found = self.probable.result()
            result |= {"log_loss": found["log_loss"], "brier": found["brier"]}
        return {"task": model.info.labels.task, **result}


def loss_of_constant(loss: str, parameter: float | None, answer: float, labels: np.ndarray) -> float:
    """Return the sum of the losses of rows with real targets if the answer to each is this number."""
    losses = np.zeros(len(labels))
    losses_of(LOSSES[loss].number, parameter, np.full(len(labels), answer), labels, -1.0, losses)
    return float(losses.sum())


def losses_of_rows(model: Model, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the loss of each row, with several classes the sum of their losses."""
    number, parameter = LOSSES[model.info.loss].number, model.info.parameter
    losses = np.zeros(len(labels))
    if model.info.costs is not None:
        class_losses_of(number, np.array(model.info.costs), scores, labels, losses)
        return losses
    if scores.ndim == 1:
        losses_of(number, parameter, scores, labels, -1.0, losses)
    else:
        for one_class in range(scores.shape[1]):
            losses_of(number, parameter, scores[:, one_class].copy(), labels, float(one_class), losses)
    return losses


def predict(
    model: Model,
    data: Data,
    output: str | Path,
    threads: int | None = None,
    *,
    proba: bool = False,
    progress: Progress | None = None,
    memory: int | None = None,
) -> int:
    """Write score, label and optionally probability of each row to a .parquet, .csv or .arrow file; return the rows.

    With several classes there are a score and a probability for each class. The output `-` is CSV on standard output.
    """
    if proba:
        model.check_probabilities()
    names, progress = names_of(data), progress or Progress()
    progress.begin("predicting", sum(size_of(model, name) for name in names))
    blocks = (score(model, name, threads or cores(), False, progress.advance, memory) for name in names)
    with pipes.kept_in(None):
        return write_scores(model, chain.from_iterable(blocks), Path(output), proba)


def names_of_columns(model: Model, proba: bool) -> list[str]:
    """Return the columns of predictions: score, label and optionally probability, or one a class."""
    endings = [f" {name}" for name in model.info.labels.classes] if model.bias.ndim else [""]
    names = [*(f"score{ending}" for ending in endings), "label"]
    return names + [f"probability{ending}" for ending in endings] if proba else names


def write_scores(model: Model, blocks: Iterable[Scored], target: Path, proba: bool) -> int:
    """Write scores and labels of rows to a file, atomically; return the number of rows."""
    import pyarrow as pa

    some = np.zeros((1, *model.bias.shape))
    labels = pa.string() if isinstance(model.labels_of(some)[0], str) else pa.float64()
    names = names_of_columns(model, proba)
    schema = pa.schema([(name, labels if name == "label" else pa.float64()) for name in names])
    rows, found = 0, iter(blocks)
    first = next(found, None)
    if first is not None and first.ids is not None:  # the row ids are the first column
        called = f"id {first.id_name}" if first.id_name in names else first.id_name  # a column called `score`
        schema = schema.insert(0, pa.field(called, first.ids.type))
    with writing_errors(target), _writer(target, schema) as writer:
        for scored in chain([first] if first is not None else [], found):
            columns = [*_columns(scored.scores), pa.array(model.labels_of(scored.scores), labels)]
            if proba:
                columns += _columns(model.probabilities_of(scored.scores))
            if len(schema) > len(columns):
                columns = [_ids_as(scored, schema.field(0).type), *columns]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            rows += len(scored.scores)
    return rows


def _ids_as(scored: Scored, kind: Any) -> Any:
    """Return the ids of rows as the type of the preceding rows."""
    import pyarrow as pa

    try:
        return row_ids.of_type(scored.ids, len(scored.scores), kind)
    except pa.ArrowException as error:
        problem = f"ids of type {scored.ids.type} after others of type {kind}"
        raise InputError(f"column '{short(scored.id_name)}': {problem}; predict such files one by one") from error


def _columns(table: np.ndarray) -> list[Any]:
    return [array_of(column) for column in (table.T.copy() if table.ndim > 1 else [table])]


class _StandardOutput:
    """A binary file that writes UTF-8 to standard output, which commands replace by a stream of text."""

    closed = False

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def write(self, content: Any) -> int:
        """Write some bytes."""
        sys.stdout.write(self._decoder.decode(bytes(content)))
        return len(content)

    def flush(self) -> None:
        """Write what is buffered."""
        sys.stdout.flush()


@contextmanager
def _writer(target: Path, schema: Any) -> Iterator[Any]:
    """Yield a writer of the format that the suffix names; the file appears when complete."""
    import pyarrow as pa

    if str(target) == STDOUT:
        import pyarrow.csv

        with pyarrow.csv.CSVWriter(_StandardOutput(), schema) as writer:
            yield writer
        return
    kind = target.suffix.lower()
    with replacing(target) as file:
        if kind == ".parquet":
            import pyarrow.parquet

            made: Any = pyarrow.parquet.ParquetWriter(file, schema)
        elif kind == ".csv":
            import pyarrow.csv

            made = pyarrow.csv.CSVWriter(file, schema)
        elif kind in (".arrow", ".feather"):
            made = pa.ipc.new_file(file, schema)
        else:
            raise UsageError(f"{target}: the name has no known suffix; end it in .parquet, .csv or .arrow")
        with made as writer:
            yield writer
