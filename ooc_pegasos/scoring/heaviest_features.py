"""The features with the largest weights in a model, with their names and the signs from signed hashing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooc_pegasos.readers.feature_index import HashedIndex
from ooc_pegasos.readers.vectorize import is_dense
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.vocabulary import Vocabulary

_LEAST = 3
"""Features that are shown for a class at least."""
Weighed = tuple[int, str | None, np.ndarray]
"""Index, as the data counts, name, and the weight or one a class of a feature."""


def signs(names: Mapping[int, str], recipe: Recipe) -> dict[int, float]:
    """Return the factors of values from signed hashing: 1 or -1."""
    table, hashing = recipe.table, recipe.hashing_of_names
    if hashing is None or (table and is_dense(table)) or not hashing.signed or hashing.dictionary:
        return {}
    places = HashedIndex(hashing)
    return {place: places.one(name)[1] for place, name in names.items()}


def weighed(weights: np.ndarray, number: int, vocabulary: Vocabulary, recipe: Recipe) -> list[Weighed]:
    """Return the heaviest features, with the signs of signed hashing."""
    chosen = heaviest(weights, number).tolist()
    names = dict(zip(chosen, vocabulary.names_of(chosen), strict=True))
    sign = signs({place: name for place, name in names.items() if name is not None}, recipe)
    return [(place + recipe.index_base, names[place], weights[place] * sign.get(place, 1.0)) for place in chosen]


def weighed_by_class(weights: np.ndarray, number: int, vocabulary: Vocabulary, recipe: Recipe) -> list[list[Weighed]]:
    """Return, for each class, the features that speak most for it: of `number` in all, but some for each."""
    each, lists = max(number // weights.shape[1], _LEAST), []
    for column in weights.T:
        found = weighed(column, 8 * each, vocabulary, recipe)  # about half of them speak against it
        lists.append([one for one in found if one[2] > 0][:each] or found[:each])
    return lists


def heaviest(weights: np.ndarray, number: int) -> np.ndarray:
    """Return the features with the largest absolute weight in any class, in decreasing order."""
    size = np.abs(weights).max(axis=1) if weights.ndim > 1 else np.abs(weights)
    number = min(number, int(np.count_nonzero(size)))
    some = np.argpartition(-size, number - 1)[:number] if 0 < number < len(size) else np.flatnonzero(size)
    chosen: np.ndarray = some[np.lexsort((some, -size[some]))]
    return chosen
