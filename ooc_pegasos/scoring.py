"""Scores of a model on a store or on raw files, block by block and in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ooc_pegasos import manifest
from ooc_pegasos.block import OVERFLOWS, CsrBlock
from ooc_pegasos.errors import InputError
from ooc_pegasos.kernels import pegasos as kernels
from ooc_pegasos.kernels.rows import normalize_rows
from ooc_pegasos.kernels.values import ROUNDINGS, round_values
from ooc_pegasos.labels import Declared, LabelCollector, LabelMap, settle
from ooc_pegasos.loading import Loader, Window, open_loader
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.model import Model
from ooc_pegasos.objective import pieces
from ooc_pegasos.parallel import ordered_map
from ooc_pegasos.readers import sources, svmlight
from ooc_pegasos.readers.sources import TextBlock
from ooc_pegasos.store import Store

_TEXT_BLOCK = 8 << 20


@dataclass(frozen=True)
class Scored:
    """Some rows' scores and, where they are wanted, their labels of -1 and 1."""

    scores: np.ndarray
    labels: np.ndarray | None


def score(model: Model, data: str, threads: int, with_labels: bool) -> Iterator[Scored]:
    """All rows of `data`, a store or a raw file, in order."""
    if (Path(data) / manifest.FILE_NAME).exists() or Path(data).is_dir():
        return _score_store(model, Store.open(data), threads, with_labels)
    return _score_file(model, data, threads, with_labels)


def two_chunks(store: Store) -> int:
    """The least memory in which a store can be read: a chunk in use and the next."""
    return 2 * max(map(cost_of, store.manifest.chunks))


def _score_store(model: Model, store: Store, threads: int, with_labels: bool) -> Iterator[Scored]:
    made, trained = store.manifest, model.info
    if dataclasses.replace(made.recipe, features=None) != dataclasses.replace(trained.recipe, features=None):
        problem = f"{store.path}: made with {_recipe(made.recipe)}, the model's data with {_recipe(trained.recipe)}"
        raise InputError(f"{problem}; convert it the same way")
    if with_labels and (made.labels.task, made.labels.classes) != (trained.labels.task, trained.labels.classes):
        problem = f"{store.path}: its labels are {made.labels.classes}, the model's are {trained.labels.classes}"
        raise InputError(f"{problem}; convert it with --classes {','.join(trained.labels.classes)}")
    weights = np.zeros(max(store.features, len(model.weights)))
    weights[: len(model.weights)] = model.weights
    loader = open_loader(store, two_chunks(store), threads=threads)
    for window in loader.stream(loader.in_order()):
        scores = _scores(loader, window, weights, threads)
        loader.check_unchanged()
        for begin, end in window.stretches:
            yield Scored(scores[begin:end], window.block.labels[begin:end].copy() if with_labels else None)


def _scores(loader: Loader, window: Window, weights: np.ndarray, threads: int) -> np.ndarray:
    """Scores of the rows of a window."""
    scores = np.empty(window.block.rows)

    def piece(stretches: list[tuple[int, int]]) -> None:
        for begin, end in stretches:
            bad = kernels.score_rows(begin, end, *window.block.entries, weights, scores[begin:end])
            if bad >= 0:
                raise loader.damaged(window, bad)

    for _done in ordered_map(piece, pieces(window), threads):
        pass
    return scores


def _score_file(model: Model, data: str, threads: int, with_labels: bool) -> Iterator[Scored]:
    info = model.info
    names = sources.expand([data])
    declared = Declared.by(info.labels)
    labels = settle(LabelCollector(info.labels.text), declared)
    # without labels any word will do in their place, so that files to be predicted may hold a dummy
    settings = svmlight.Settings(
        text_labels=info.labels.text if with_labels else True, smallest_index=info.recipe.index_base
    )
    reader = svmlight.SvmlightReader(names, settings, _TEXT_BLOCK)
    weights = model.weights if len(model.weights) else np.zeros(1)
    line = source = 0

    def read(task: TextBlock) -> tuple[svmlight.ParsedBlock, np.ndarray]:
        parsed = reader.read(task)
        block = _known_features(parsed.block, model)
        scores = np.empty(block.rows)
        kernels.score_rows(0, block.rows, *block.entries, weights, scores)
        return parsed, scores

    for parsed, scores in ordered_map(read, reader.tasks(), threads):
        if parsed.task.source != source:
            line, source = 0, parsed.task.source
        name = sources.spoken(names[source])
        if parsed.bad:
            raise InputError(f"{name}:{line + parsed.bad[0].line + 1}: {parsed.bad[0].problem}")
        yield Scored(scores, _stored_labels(parsed, labels, f"{name}:", line) if with_labels else None)
        line += parsed.line_count
        reader.release(parsed)


def _known_features(block: CsrBlock, model: Model) -> CsrBlock:
    """Indices from 0, rows scaled as the model's were, and features the model does not know without effect."""
    assert block.values is not None
    indices, values = block.indices - np.uint32(model.info.recipe.index_base), block.values
    rounding = model.info.recipe.values
    if model.info.recipe.normalize:
        normalize_rows(block.indptr, values)
    unknown = indices >= len(model.weights)
    if unknown.any():
        indices[unknown], values[unknown] = 0, 0
    if rounding:
        large = np.flatnonzero(np.abs(values) >= OVERFLOWS[rounding])
        if len(large):
            problem = f"the value {values[large[0]]:g} is too large for {rounding}, as the model's data was stored"
            raise InputError(f"{problem}; correct it")
        round_values(values, ROUNDINGS[rounding])
    return CsrBlock(block.indptr, indices, values, block.labels, len(model.weights))


def _stored_labels(parsed: svmlight.ParsedBlock, labels: LabelMap, where: str, line: int) -> np.ndarray:
    keys = parsed.block.labels
    if labels.otherwise is None and labels.info.task != "regression":
        unknown = np.flatnonzero(~np.isin(keys.view(np.uint64), labels.keys))
        if len(unknown):
            row = int(unknown[0])
            name = LabelCollector(labels.info.text, names=parsed.names).name(int(keys.view(np.uint64)[row]))
            known = ", ".join(labels.info.classes)
            number = line + int(parsed.lines[row]) + 1
            raise InputError(f"{where}{number}: the label {name!r} is not one of {known}; correct it")
    return labels.apply(keys)


def _recipe(recipe: manifest.Recipe) -> str:
    values = f" and values {recipe.values}" if recipe.values else ""
    return f"indices from {recipe.index_base} and normalize {recipe.normalize or 'no'}{values}"
