"""How the rows that have just come differ from those before: labels, features, and what the champion says of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_pegasos.model import Model
from ooc_pegasos.store import Store

_CHUNKS = 8
"""Of each side, spread over it, are looked at."""


def drift(store: Store, new_parts: int, champion: Model | None) -> dict[str, Any] | None:
    """Figures of the rows of the last parts beside those before; None if there are no rows before."""
    made = store.manifest
    parts = made.all_parts()
    if not 0 < new_parts < len(parts):
        return None
    first = sum(part.chunks for part in parts[:-new_parts])
    sides = {"before": range(first), "new": range(first, len(made.chunks))}
    return {name: _side(store, chunks, champion) for name, chunks in sides.items()}


def _side(store: Store, chunks: range, champion: Model | None) -> dict[str, Any]:
    infos = [store.manifest.chunks[number] for number in chunks]
    rows = sum(info.rows for info in infos)
    counts = [sum(column) for column in zip(*(info.label_counts for info in infos), strict=True)]
    found: dict[str, Any] = {
        "rows": rows,
        "label_shares": {
            label: count / rows for label, count in zip(store.manifest.labels.classes, counts, strict=False)
        },
        "nonzeros_per_row": sum(info.nonzeros for info in infos) / rows,
    }
    if champion is None:
        return found
    weighs = np.asarray(champion.weights.reshape(len(champion.weights), -1).any(axis=1))
    scores, known, entries = [], 0, 0
    for number in chunks[:: -(-len(chunks) // _CHUNKS)]:
        matrix = store.block(number).to_scipy()
        inside = matrix.indices[matrix.indices < len(weighs)]
        known += int(weighs[inside].sum())
        entries += matrix.nnz
        scores.append(champion.decision_function(matrix).ravel())
    every = np.concatenate(scores)
    found["known_features"] = known / entries if entries else 1.0
    return found | {"mean_score": float(every.mean()), "deviation_of_scores": float(every.std())}
