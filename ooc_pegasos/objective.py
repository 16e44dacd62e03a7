"""The objective (1) exactly, by a pass over all rows, for several candidates at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ooc_pegasos.kernels import pegasos as kernels
from ooc_pegasos.loader import LoadedWindow, Loader
from ooc_pegasos.parallel import ordered_map

_PIECE = 1 << 22  # entries; sums are added piece by piece, so they do not depend on the number of threads


@dataclass(frozen=True)
class Objective:
    """Of one candidate: the objective on the training rows, and mean loss and error rate on those held out."""

    primal: float
    holdout_loss: float | None
    holdout_error: float | None


@dataclass(frozen=True)
class ObjectiveOptions:
    """What the objective is made of."""

    lam: float
    loss: int
    class_weights: tuple[float, float]
    training_rows: int
    held_out_rows: int


def evaluate(
    loader: Loader, candidates: Sequence[np.ndarray], options: ObjectiveOptions, threads: int
) -> list[Objective]:
    """The objective of each candidate."""
    stacked = np.ascontiguousarray(np.stack(candidates))
    class_weights = np.array(options.class_weights)
    total = np.zeros((len(candidates), 3))
    for loaded in loader.windows_in_order():

        def piece(rows: tuple[int, int], loaded: LoadedWindow = loaded) -> np.ndarray:
            block = loaded.block
            weights = np.empty(0, np.float32) if block.weights is None else block.weights
            sums = np.zeros((len(candidates), 3))
            kernels.sum_losses(
                *rows,
                block.indptr,
                block.indices,
                block.values,
                block.labels,
                weights,
                class_weights,
                options.loss,
                loaded.held_out,
                stacked,
                sums,
            )
            return sums

        for sums in ordered_map(piece, pieces(loaded.block.indptr), threads):
            total += sums
    return [
        Objective(
            options.lam / 2 * float(candidate @ candidate) + float(sums[0]) / options.training_rows,
            float(sums[1]) / options.held_out_rows if options.held_out_rows else None,
            float(sums[2]) / options.held_out_rows if options.held_out_rows else None,
        )
        for candidate, sums in zip(candidates, total, strict=True)
    ]


def pieces(indptr: np.ndarray) -> list[tuple[int, int]]:
    """Cut rows into stretches of about the same number of entries."""
    rows = len(indptr) - 1
    number = max(1, -(-int(indptr[-1] - indptr[0]) // _PIECE))
    goals = indptr[0] + (indptr[-1] - indptr[0]) * np.arange(1, number) // number
    cuts = [0, *np.searchsorted(indptr, goals).tolist(), rows]
    return [(begin, end) for begin, end in pairwise(cuts) if end > begin]
