"""Drift: differences between new rows and earlier rows in labels, features and scores of the champion."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.store import Store

_CHUNKS = 8
"""Number of chunks sampled on each side."""


@dataclass(frozen=True)
class Side:
    """Statistics of the earlier or the new rows. Scores are None without a champion."""

    rows: int
    label_shares: dict[str, float]
    """Shares of the classes."""
    nonzeros_per_row: float
    mean_label: float | None = None
    """Mean of real targets."""
    deviation_of_labels: float | None = None
    known_features: float | None = None
    """Share of non-zeros whose feature has a weight in the champion."""
    mean_score: float | None = None
    deviation_of_scores: float | None = None


def drift(store: Store, new_sources: int, champion: Model | None) -> dict[str, Side] | None:
    """Return the statistics of the rows of the last sources and of those before; None if either is empty."""
    made = store.manifest
    first, before = 0, len(made.sources) - new_sources
    for part in made.all_parts():
        if before <= 0:
            break
        first, before = first + part.chunks, before - part.sources
    if not 0 < first < len(made.chunks):
        return None
    sides = {"before": range(first), "new": range(first, len(made.chunks))}
    return {name: _side(store, chunks, champion) for name, chunks in sides.items()}


def _side(store: Store, chunks: range, champion: Model | None) -> Side:
    infos = [store.manifest.chunks[number] for number in chunks]
    rows = sum(info.rows for info in infos)
    counts = [sum(column) for column in zip(*(info.label_counts for info in infos), strict=True)]
    shares = {label: count / rows for label, count in zip(store.manifest.labels.classes, counts, strict=False)}
    nonzeros = sum(info.nonzeros for info in infos) / rows
    some = [store.block(number) for number in chunks[:: -(-len(chunks) // _CHUNKS)]]
    labels: tuple[float, ...] = ()
    if store.manifest.labels.task == "regression":
        targets = np.concatenate([block.labels for block in some]).astype(np.float64)
        labels = (float(targets.mean()), float(targets.std()))
    side = Side(rows, shares, nonzeros, *labels)
    if champion is None:
        return side
    weighs = np.asarray(champion.weights.reshape(len(champion.weights), -1).any(axis=1))
    scores, known, entries = [], 0, 0
    for block in some:
        matrix = block.to_scipy()
        inside = matrix.indices[matrix.indices < len(weighs)]
        known += int(weighs[inside].sum())
        entries += matrix.nnz
        # the store may have fewer features than the model
        matrix.resize(matrix.shape[0], max(matrix.shape[1], len(weighs)))
        scores.append(champion.decision_function(matrix).ravel())
    every = np.concatenate(scores)
    return dataclasses.replace(
        side,
        known_features=known / entries if entries else 1.0,
        mean_score=float(every.mean()),
        deviation_of_scores=float(every.std()),
    )
