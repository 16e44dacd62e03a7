"""The objective (1) exactly, for several candidates at once, added up window by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.kernels import pegasos as kernels
from ooc_pegasos.loading import Loader, Window
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


class Measurement:
    """Candidates, and their sums of losses over the windows so far."""

    def __init__(self, candidates: Sequence[np.ndarray], options: ObjectiveOptions) -> None:
        self.candidates = np.ascontiguousarray(np.stack(candidates))
        self.sums = np.zeros((len(candidates), 3))
        self.windows = 0
        self._options = options

    def add(self, window: Window, loader: Loader, threads: int, check: Callable[[], None]) -> None:
        """Pass over the rows of a window; `check` is called now and then and may raise, and then nothing is added."""
        options, block = self._options, window.block
        class_weights = np.array(options.class_weights)
        weights = np.empty(0, np.float32) if block.weights is None else block.weights

        rest = (*block.entries, block.labels, weights, class_weights, options.loss, window.held_out, self.candidates)

        def piece(stretches: list[tuple[int, int]]) -> np.ndarray:
            sums = np.zeros_like(self.sums)
            for begin, end in stretches:
                bad = kernels.sum_losses(begin, end, *rest, sums)
                if bad >= 0:
                    raise loader.damaged(window, bad)
            return sums

        total = self.sums.copy()
        for sums in ordered_map(piece, pieces(window), threads):
            check()
            total += sums
        self.sums = total
        self.windows += 1

    def result(self) -> list[Objective]:
        """The objective of each candidate, once all windows were added."""
        options = self._options
        return [
            Objective(
                options.lam / 2 * float(candidate @ candidate) + float(sums[0]) / options.training_rows,
                float(sums[1]) / options.held_out_rows if options.held_out_rows else None,
                float(sums[2]) / options.held_out_rows if options.held_out_rows else None,
            )
            for candidate, sums in zip(self.candidates, self.sums, strict=True)
        ]


def pieces(window: Window) -> list[list[tuple[int, int]]]:
    """Cut the rows of a window into pieces of about the same number of entries, wherever its chunks begin.

    A piece is a list of stretches of rows, more than one if it goes over the end of a chunk.
    """
    indptr = window.block.indptr
    lengths = [int(indptr[end] - indptr[begin]) for begin, end in window.stretches]
    number = max(1, -(-sum(lengths) // _PIECE))
    goals = [sum(lengths) * i // number for i in range(1, number)]
    found: list[list[tuple[int, int]]] = [[]]
    before = 0
    for (begin, end), length in zip(window.stretches, lengths, strict=True):
        while goals and goals[0] < before + length:
            cut = begin + int(np.searchsorted(indptr[begin : end + 1], indptr[begin] + goals.pop(0) - before))
            found[-1].append((begin, cut))
            found.append([])
            before, length, begin = before + int(indptr[cut] - indptr[begin]), int(indptr[end] - indptr[cut]), cut
        found[-1].append((begin, end))
        before += length
    return [[(begin, end) for begin, end in piece if end > begin] for piece in found]
