"""The loss that rows need instead of the default one, by the results of a search with that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.objective.lambda_path import Trial
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.scoring.score import score_store
from ooc_pegasos.store.store import Store

CONSTANT_NOTE = (
    "with the hinge loss no lambda is better than always giving the same answer; trained with the logistic "
    "loss instead, whose scores rank the rows (--loss hinge keeps the hinge loss)"
)
RANKING_NOTE = (
    "trained with the logistic loss, because no model classifies these rows well, and none with the hinge loss is "
    "better (--loss hinge keeps the hinge loss)"
)
ROBUST_NOTE = (
    "a few targets are far from all predictions; trained with the Huber loss instead, on which they have less "
    "influence (--loss squared keeps the squared loss)"
)
HARD, NEARLY_CONSTANT = 0.5, 0.95
"""Shares of the error of a constant answer above which another loss may be better, and above which the answers of a
model are nearly constant."""
_HEAVY = 9.0
"""Kurtosis of errors from which a robust loss is tried; that of the normal distribution is 3, of Laplace's 6."""
_APART, _MOST_WRONG, _EXPLAINED = 4.0, 0.1, 0.3
"""Size of unusual errors in median errors, the largest share of them if they are mistakes, and the least share of the
variance of the other targets that a robust model explains then."""
_ROWS = 200_000
"""Rows by which errors are judged."""
_KINK = 1.345 * 1.4826
"""Parameter of the Huber loss in median errors: if errors are normal, 95 % as efficient as the squared loss."""


def ranking_loss() -> str:
    """Return the loss whose scores rank rows even where answers are nearly constant."""
    name: str = next(one.name for one in LOSSES.values() if one.has_probabilities and one.task == "binary")
    return name


def robust_loss() -> str:
    """Return the loss on which wrong targets have less influence."""
    name: str = next(one.name for one in LOSSES.values() if one.is_robust)
    return name


def share_of_constant(chosen: Trial, counts: Sequence[int]) -> float:
    """Return the error of a model as a share of that of the answer that is right for most rows.

    Where classes are rare or hard to separate, that answer has nearly the least hinge loss, and its scores say nothing.
    """
    constant = 1 - max(counts) / sum(counts)
    return (chosen.error or 0.0) / constant if constant else 0.0


@dataclass(frozen=True)
class Errors:
    """Findings in the errors of a model on the first rows, about the loss to use."""

    parameter: float
    """The parameter that the Huber loss should have."""
    have_heavy_tails: bool
    are_gross: bool
    """True if a robust model explains most rows well, and a few are apart from them: their targets are wrong."""


def errors_of(model: Model, store: Store) -> Errors:
    """Return the findings in the errors of a model."""
    errors, targets, rows = [], [], 0
    for scored in score_store(model, store, threads=1, with_labels=True, id_type=None):
        assert scored.labels is not None
        targets.append(scored.labels.astype(np.float64))
        errors.append(targets[-1] - scored.scores)
        rows += len(errors[-1])
        if rows >= _ROWS:
            break
    found = np.concatenate(errors)
    found -= np.median(found)
    square = float((found**2).mean())
    heavy = square > 0 and float((found**4).mean()) > _HEAVY * square * square
    parameter = _KINK * float(np.median(np.abs(found)))
    return Errors(parameter, heavy and parameter > 0, _are_gross(found, np.concatenate(targets)))


def _are_gross(errors: np.ndarray, targets: np.ndarray) -> bool:
    """See `Errors`. `errors` have the median 0.

    Errors of a skewed or heavy-tailed distribution become rarer from each power of two to the next; gross errors are
    more frequent than those of half their size.
    """
    sizes = np.abs(errors)
    unit = float(np.median(sizes))
    usual = sizes <= _APART * unit
    few = 1 - usual.mean() <= _MOST_WRONG
    if not unit or not few or errors[usual].var() > (1 - _EXPLAINED) * targets[usual].var():
        return False
    octaves = np.bincount(np.log2(sizes[~usual] / (_APART * unit)).astype(np.int64))
    beyond = octaves.sum() - np.cumsum(octaves)
    return bool((beyond > 2 * octaves + 4 * np.sqrt(octaves + 1)).any())
