"""The result of a run, completed: names of features, comparison with a constant answer, warnings."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable

import numpy as np

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.loading.window import Folds
from ooc_pegasos.scoring.evaluate import loss_of_constant
from ooc_pegasos.scoring.find_names import FindNames, with_names
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.store import Store
from ooc_pegasos.training.result import TrainResult
from ooc_pegasos.training.selection import Round

SumOfLosses = Callable[[str, float | None, float], float]
"""Returns the sum of the losses of all rows if the answer to each is a number, given a loss and its parameter."""
_PACKAGES = ("ooc_pegasos", "readers")


def finished(one: Round, store: Store, model: Model, find: FindNames | None = None) -> Model:
    """Return the model of the last run, with the results of the search before, and with names of features."""
    return with_names(one.complete(model) if one.complete else model, store, find)


def compared_with_constant(
    result: TrainResult, store: Store, config: TrainConfig, sum_of: SumOfLosses | None = None
) -> TrainResult:
    """Return the result with the loss of a constant answer, of real targets, or its error on the holdout rows.

    `sum_of` is for rows that are not in files.
    """
    made, info = store.manifest, result.model.info
    if not result.holdout or not (sum_of or store.has_files):
        return result
    if made.labels.task != "regression":
        is_known = store.has_files and config.holdout_fraction and not config.folds
        return dataclasses.replace(result, constant_error=_error_of_most(store, config) if is_known else None)
    if made.weighted:
        return result

    def sum_in_files(loss: str, parameter: float | None, answer: float) -> float:
        return sum(loss_of_constant(loss, parameter, answer, labels) for labels in store.labels_by_chunk())

    total = (sum_of or sum_in_files)(info.loss, info.parameter, store.targets.mean)
    return dataclasses.replace(result, constant_loss=total / store.rows)


def _error_of_most(store: Store, config: TrainConfig) -> float | None:
    """Return the error on the holdout rows if the answer to each is the most frequent class of all rows."""
    folds, labels = Folds(store, config.holdout_fraction, None), store.manifest.labels
    most = int(np.argmax(labels.counts))
    code = 2 * most - 1 if labels.task == "binary" else most
    rows = errors = 0
    for chunk, found in enumerate(store.labels_by_chunk()):
        held_out = found[folds.of(chunk) == 0]
        rows, errors = rows + len(held_out), errors + int((held_out != code).sum())
    return errors / rows if rows else None


def warned(result: TrainResult) -> TrainResult:
    """Return the result, after a warning for each of its problems at the line outside the package that asked for it."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        level, frame = level + 1, frame.f_back
    for text in result.warnings:
        warnings.warn(text, UserWarning, stacklevel=level)
    return result
