"""Scores and metrics of rows in memory: matrices, and tables whose columns the model knows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos.conversion.partition_rows import rows_of_table
from ooc_pegasos.conversion.staging import batches_of
from ooc_pegasos.conversion.streams import is_dataset, is_lazy, refuse_splits
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers.vectorize import Vectorizer, null_labels
from ooc_pegasos.scoring.evaluate import evaluate, metrics_of
from ooc_pegasos.scoring.score import Scored, Scorer, needed, score_block
from ooc_pegasos.store.label_rule import LabelRule
from ooc_pegasos.util.short_names import listed, shortened

if TYPE_CHECKING:
    from ooc_pegasos.scoring.model import Model

_ROWS = "memory"
"""Name of in-memory rows in messages."""


def is_table(data: Any) -> bool:
    """True for a table of pyarrow, pandas, polars or datasets, or an object that exports itself as one.

    Raises UsageError for all splits of a dataset.
    """
    refuse_splits(data)
    return hasattr(data, "__arrow_c_stream__") or is_lazy(data) or is_dataset(data) or hasattr(data, "columns")


def scores_of_table(model: Model, data: Any) -> np.ndarray:
    """Return the scores of the rows of a table, whose columns are found by name."""
    recipe = needed(model.info.recipe, ids=False)
    assert recipe.table is not None
    vectorizer = Vectorizer(recipe.table, model.info.labels.text, with_labels=False, vocabulary=model.vocabulary)
    scorer = Scorer(model, 0)
    parts = [score_block(model, scorer, found.block) for found in rows_of_table(data, vectorizer, _ROWS)]
    return np.concatenate([scorer.new_scores(0), *parts])


def evaluate_data(model: Model, data: Any, labels: Any) -> dict[str, Any]:
    """Return the metrics of a model on a store, files, a table with its labels, or rows and labels in memory."""
    if labels is None and (isinstance(data, str) or hasattr(data, "__fspath__")):
        return evaluate(model, str(data))
    if labels is None and hasattr(data, "manifest"):
        return evaluate(model, str(data.path))
    if labels is None:
        labels = _labels_in(model, data)
        if model.info.recipe.table and model.info.recipe.table.label_is_null:
            import pyarrow as pa

            labels = null_labels(pa.array(np.asarray(labels), from_pandas=True))
    scores = model.decision_function(data)
    codes = _codes_of(model, np.asarray(labels))
    if len(codes) != len(scores):
        raise InputError(f"{_ROWS}: {len(scores):,} rows and {len(codes):,} labels; give every row one")
    return metrics_of(model, [Scored(scores, codes)], _ROWS)


def _labels_in(model: Model, data: Any) -> Any:
    """Return the column of a table that has the labels."""
    table = model.info.recipe.table
    if not is_table(data) or table is None or table.label is None:
        raise UsageError("evaluate needs labels: give them as the second argument")
    try:
        found = data[table.label]
        return list(found) if is_dataset(data) else found  # columns of some datasets are read here
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if "." in table.label and not is_lazy(data):  # perhaps a field of a struct
            schema, batches = batches_of(data, _ROWS)
            if table.label in schema.names:
                return np.concatenate([np.asarray(batch.column(table.label)) for batch in batches])
        raise InputError(
            f"{_ROWS}: no column {shortened(table.label)!r} with labels; give labels as the second argument"
        ) from error


def _codes_of(model: Model, labels: np.ndarray) -> np.ndarray:
    """Return the stored labels: targets, -1 and 1, or the numbers of classes."""
    info = model.info.labels
    if info.task == "regression":
        return labels.astype(np.float64)
    key = str if info.text else float
    if info.text and labels.dtype.kind == "b":  # files spell them True or true
        spelled = {name.lower(): name for name in info.classes}
        labels = np.array([spelled.get(str(one).lower(), str(one)) for one in (False, True)])[labels.astype(np.int64)]
    try:
        keys = [key(one) for one in labels.tolist()]
    except (TypeError, ValueError) as error:
        raise InputError(f"{_ROWS}: {error}; the labels of the model are numbers, give numbers") from error
    if info.positive is not None:
        rule = LabelRule(tuple(info.positive), info.text)
        return 2.0 * np.array(rule.of_names([str(one) for one in keys])) - 1
    if info.rest:
        return np.array([1.0 if one == key(info.classes[-1]) else -1.0 for one in keys])
    numbers = {key(name): number for number, name in enumerate(info.classes)}
    unknown = next((one for one in keys if one not in numbers), None)
    if unknown is not None:
        raise InputError(f"{_ROWS}: the model has no class {unknown!r}; its classes are {listed(info.classes)}")
    codes = np.array([numbers[one] for one in keys], np.float64)
    return 2 * codes - 1 if info.task == "binary" else codes
