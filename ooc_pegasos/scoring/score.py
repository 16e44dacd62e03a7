"""Scores of a model on a store or on raw files, block by block and in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ooc_pegasos.compiled.fit.pegasos import score_rows
from ooc_pegasos.compiled.fit.sums import score_panel
from ooc_pegasos.compiled.rows.coding import normalize_rows
from ooc_pegasos.compiled.rows.values import ROUNDINGS, round_values
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.formats import ANY
from ooc_pegasos.loading.loader import Loader, open_loader
from ooc_pegasos.loading.window import Window, cost_of
from ooc_pegasos.objective.exact_pass import pieces
from ooc_pegasos.objective.model_panel import fill_panel, new_panel, width_of
from ooc_pegasos.readers import columns_plan, pipes, registry, sources
from ooc_pegasos.readers.base import DEFAULT_MEMORY, ParsedBlock, ReadOptions, memory_of, row_location
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store import manifest, row_ids, vocabulary
from ooc_pegasos.store.csr_block import OVERFLOWS, CsrBlock
from ooc_pegasos.store.labels import LabelCollector, LabelMap, declared_by, settle
from ooc_pegasos.store.recipe import Column
from ooc_pegasos.store.store import Store
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.locks import in_use
from ooc_pegasos.util.memory_limits import available_memory
from ooc_pegasos.util.short_names import listed, shortened
from ooc_pegasos.util.thread_map import ordered_map

TEXT_BLOCK = 8 << 20
Made = TypeVar("Made")


@dataclass(frozen=True)
class Scored:
    """Scores of rows, one a row or one a class, and optionally their labels as stored."""

    scores: np.ndarray
    labels: np.ndarray | None
    ids: Any = None
    """An Arrow array of row ids, if the data has them; of one type in all blocks of a store."""
    id_name: str = ""


@dataclass(frozen=True)
class Meaning:
    """Encoding of rows and labels of a model or store, with which other data is read in the same way."""

    recipe: manifest.Recipe
    labels: manifest.LabelInfo
    features: int
    vocabulary: Vocabulary

    @classmethod
    def of_model(cls, model: Model) -> Meaning:
        """Return the encoding of a model."""
        return cls(model.info.recipe, model.info.labels, len(model.weights), model.vocabulary)

    @classmethod
    def of_store(cls, store: Store) -> Meaning:
        """Return the encoding of a store, and so of every model trained on it."""
        made = store.manifest
        known = vocabulary.of_store(store.path, made) if made.recipe.needs_vocabulary else Vocabulary()
        return cls(made.recipe, made.labels, made.features, known)


def _ignore(_bytes: int) -> None:
    """Count nothing."""


def score(
    model: Model,
    data: str,
    threads: int,
    with_labels: bool,
    advance: Callable[[int], None] = _ignore,
    memory: int | None = None,
    labels: str | None = None,
) -> Iterator[Scored]:
    """Return the scores of all rows of `data`, a store or a raw file, in order; `advance` counts bytes.

    `memory` is for rows: by default half of the free memory. Of a store two chunks are in memory. `labels` is the file
    of labels of a matrix that has none.
    """
    if is_store(data, model.info.recipe):
        if labels is not None:
            raise UsageError(f"{{labels}} is for files without labels, but {data} is a store; leave it out")
        store = Store.open(data)
        check_store(model, store, with_labels)
        if memory is not None and memory < two_chunks(store):
            raise UsageError(
                f"{{memory={memory}}}: two chunks of {data} take {two_chunks(store):,} bytes; give as much"
            )
        return score_store(model, store, threads, with_labels, None if with_labels else store.id_type(), advance)
    return _score_file(model, data, threads, with_labels, advance, memory, labels)


def size_of(model: Model, data: str) -> int:
    """Return the bytes of a store or of raw files, as `score` counts them; 0 for pipes, and if they are not known."""
    try:
        if is_store(data, model.info.recipe):
            return Store.open(data).manifest.bytes
        return sum(registry.stamp_of(name).size for name in files_for(data, model.info.recipe))
    except OocPegasosError:  # reported where the rows are read
        return 0


def check_data(known: Meaning, data: str) -> None:
    """Refuse a store or files on which no model with this encoding could be evaluated.

    Files are read only up to the first row with its label.
    """
    if is_store(data, known.recipe):
        _check_meaning(known, Store.open(data), with_labels=True)
        return
    blocks = _Rows(known, data, with_labels=True).blocks(1, lambda block: _known_features(block, known))
    if not any(parsed.block.rows for parsed, _rows in blocks):
        raise InputError(f"{data}: no rows in it; check how it was made")


def is_store(data: str, recipe: manifest.Recipe) -> bool:
    """True if `data` is to be opened as a store, and not read by the recipe."""
    known = registry.format_of(recipe.reader)
    raw = known.searches_folders or known.reads_folders
    return (Path(data) / manifest.FILE_NAME).exists() or (Path(data).is_dir() and not raw)


def two_chunks(store: Store) -> int:
    """Return the least memory in which a store can be read: for a chunk in use and the next one."""
    return 2 * max(cost_of(chunk, store.manifest.layout) for chunk in store.manifest.chunks)


def check_store(model: Model, store: Store, with_labels: bool) -> None:
    """Refuse a store whose encoding differs from the model's."""
    _check_meaning(Meaning.of_model(model), store, with_labels)


def _check_meaning(known: Meaning, store: Store, with_labels: bool) -> None:
    """Refuse a store with another encoding; labels are compared only `with_labels`."""
    made = store.manifest
    _refuse_other_recipe(str(store.path), made.recipe, known.recipe)
    if known.recipe.needs_vocabulary and not known.vocabulary.serves_as(
        vocabulary.of_store(store.path, made), made.recipe
    ):
        problem = f"{store.path}: made with a vocabulary of its own, not the model's"
        raise InputError(f"{problem}; give the files it was made from, which the model can read")
    one, other = made.labels, known.labels
    if with_labels and (one.task, one.classes, one.positive) != (other.task, other.classes, other.positive):
        problem = f"{store.path}: its labels are {made.labels.classes}, the model's are {known.labels.classes}"
        how = f"classes={','.join(known.labels.classes)}"
        how = f"positive_label={','.join(known.labels.classes[1:])}" if known.labels.rest else how
        raise InputError(f"{problem}; convert it with {{{how}}}")


def _refuse_other_recipe(where: str, made: manifest.Recipe, wanted: manifest.Recipe) -> None:
    """Refuse a store with another recipe, and report the differences."""
    one, other = _of_scores(made), _of_scores(wanted)
    if one != other:
        problem = f"{where}: made with {_differences(one, other)}, the model's data with {_differences(other, one)}"
        raise InputError(f"{problem}; convert it with {{like}} and the store of the model, or give its files")


def score_store(
    model: Model, store: Store, threads: int, with_labels: bool, id_type: Any, advance: Callable[[int], None] = _ignore
) -> Iterator[Scored]:
    """Return the scores of all rows of a store in order, checked; `id_type` is the type of ids, None for no ids."""
    scorer = Scorer(model, store.features)
    with in_use(store.path):
        loader = open_loader(store, two_chunks(store), threads=threads)
        for window in loader.stream(loader.in_order()):
            scores = scorer.window(loader, window, threads)
            loader.check_unchanged()
            for chunk, (begin, end) in zip(window.chunks, window.row_ranges, strict=True):
                labels = window.block.labels[begin:end].copy() if with_labels else None
                found = None if id_type is None else row_ids.of_type(store.ids(chunk), end - begin, id_type)
                yield Scored(scores[begin:end], labels, found, _id_name(store.manifest.recipe))
                advance(store.manifest.chunks[chunk].bytes)


class Scorer:
    """A model prepared to score blocks of rows with at least `features` features."""

    def __init__(self, model: Model, features: int) -> None:
        self._bias, self._classes = model.bias, model.bias.shape
        self._features = max(features, len(model.weights), 1)
        if not self._classes:
            self._weights = np.zeros(self._features)
            self._weights[: len(model.weights)] = model.weights
        else:
            self._width = width_of(self._classes[0])
            self._weights = new_panel(self._features, self._width)
            fill_panel(self._weights[: len(model.weights) * self._width], self._width, list(model.weights.T))

    def new_scores(self, rows: int) -> np.ndarray:
        """Return an array for the scores of some rows."""
        return np.empty((rows, *self._classes))

    def rows(self, block: CsrBlock, begin: int, end: int, scores: np.ndarray) -> int:
        """Write the scores of rows begin to end to `scores`; return the row with an invalid index, or -1."""
        if self._classes:
            what = (self._features, self._width, self._weights, self._bias)
            return int(score_panel(begin, end, *block.entries, *what, scores))
        bad = int(score_rows(begin, end, *block.entries, self._weights, scores))
        scores += self._bias
        return bad

    def window(self, loader: Loader, window: Window, threads: int) -> np.ndarray:
        """Return the scores of the rows of a window."""
        scores = self.new_scores(window.block.rows)

        def piece(row_ranges: list[tuple[int, int]]) -> None:
            for begin, end in row_ranges:
                bad = self.rows(window.block, begin, end, scores[begin:end])
                if bad >= 0:
                    raise loader.damaged(window, bad)

        for _done in ordered_map(piece, pieces(window), threads):
            pass
        return scores


def files_for(data: str, recipe: manifest.Recipe) -> list[str]:
    """Return the files that a name or a pattern matches, of a format that a model of this recipe can read.

    Files whose format cannot be detected by first bytes or names are taken to have the format of the recipe: its reader
    refuses invalid lines.
    """
    in_folders = registry.format_of(recipe.reader).reads_folders and Path(data).is_dir()  # without labels in any
    names, kind = registry.find([data], recipe.reader if in_folders else ANY, recipe.reader)
    if not registry.can_be_mixed(kind, recipe.reader):
        problem = f"read as {kind}, but the model was trained on data read as {recipe.reader}"
        raise InputError(f"{data}: {problem}; give it data of that kind, or a store")
    return names


class _Rows:
    """Rows of raw files in the encoding of a model, with or without labels."""

    def __init__(
        self,
        known: Meaning,
        data: str,
        with_labels: bool,
        memory: int | None = None,
        labels_file: str | None = None,
    ) -> None:
        recipe, info = known.recipe, known.labels
        self.names = files_for(data, recipe)
        kind = registry.detect(self.names[0]) or recipe.reader
        if labels_file is not None and "labels" not in registry.format_of(kind).options:
            problem = (
                f"is for {registry.titles_with('labels')}, and {sources.display_name(self.names[0])} is read as {kind}"
            )
            raise UsageError(f"{{labels}} {problem}; leave it out")
        declared = declared_by(info)
        self.labels = settle(LabelCollector(info.text, single_exact=False), declared)
        self._with_labels = with_labels
        self._memory = memory or max(DEFAULT_MEMORY, available_memory() // 2)
        # without labels any word is accepted in their place, so that files to be predicted may contain a placeholder
        options = ReadOptions(
            min(TEXT_BLOCK, self._memory // 64),
            text_labels=info.text and with_labels,
            smallest_index=recipe.index_base,
            with_labels=with_labels,
            labels=labels_file,
            vocabulary=known.vocabulary,
            memory=self._memory,
        )
        self._reader = registry.reader_for(self.names, needed(recipe, ids=not with_labels), options)

    def blocks(self, threads: int, work: Callable[[CsrBlock], Made]) -> Iterator[tuple[ParsedBlock, Made]]:
        """Yield all blocks in order, with the result of `work`; raise InputError with the line of a bad row."""
        reader = self._reader
        line = source = 0

        def read(task: Any) -> tuple[ParsedBlock, Made]:
            parsed = reader.read(task)
            return parsed, work(parsed.block)

        try:
            for parsed, made in ordered_map(read, reader.tasks(), threads, partial(memory_of, reader), self._memory):
                if parsed.task.source != source:
                    line, source = 0, parsed.task.source
                self._refuse_bad(parsed, sources.display_name(self.names[source]), line)
                yield parsed, made
                line += parsed.line_count
                reader.release(parsed)
        except sources.LongLineError as error:
            line = line if error.source == source else 0
            where = row_location(sources.display_name(self.names[error.source]), reader.unit, line + 1)
            raise InputError(f"{where}: {error.problem}") from error

    def _refuse_bad(self, parsed: ParsedBlock, name: str, before: int) -> None:
        """Refuse a bad row or, if labels are needed, an unknown label; `before` lines precede the block."""
        if parsed.bad:
            where = row_location(name, self._reader.unit, before + parsed.bad[0].line + 1)
            raise InputError(f"{where}: {parsed.bad[0].problem}")
        if self._with_labels:
            _refuse_unknown(
                parsed,
                self.labels,
                lambda row: row_location(name, self._reader.unit, before + int(parsed.lines[row]) + 1),
            )


def _score_file(
    model: Model,
    data: str,
    threads: int,
    with_labels: bool,
    advance: Callable[[int], None],
    memory: int | None,
    labels_file: str | None,
) -> Iterator[Scored]:
    import pyarrow as pa

    recipe = model.info.recipe
    files = _Rows(Meaning.of_model(model), data, with_labels, memory, labels_file)
    scorer = Scorer(model, 0)
    anything = False
    pipes.begin_last_pass()
    for parsed, scores in files.blocks(threads, lambda block: score_block(model, scorer, block)):
        anything = True
        labels = files.labels.knowing(parsed.names).apply(parsed.block.labels) if with_labels else None
        yield Scored(scores, labels, parsed.ids, _id_name(recipe))
        advance(parsed.task.consumed)
    # ids have a type even if there are no rows
    if not anything and recipe.table and recipe.table.id and not with_labels:
        kind = columns_plan.schema_of(files.names[0], recipe.table)[recipe.table.id]
        yield Scored(scorer.new_scores(0), None, row_ids.plain(pa.nulls(0, kind)), recipe.table.id)


def score_block(model: Model, scorer: Scorer, block: CsrBlock) -> np.ndarray:
    """Return the scores of rows that a reader of the model's recipe has parsed."""
    block = _known_features(block, Meaning.of_model(model))
    scores = scorer.new_scores(block.rows)
    scorer.rows(block, 0, block.rows, scores)
    return scores


def _id_name(recipe: manifest.Recipe) -> str:
    """Return the name of the ids: that of the column, or that which the format gives them."""
    if recipe.table:
        return recipe.table.id or ""
    return registry.format_of(recipe.reader).id_name


def needed(recipe: manifest.Recipe, *, ids: bool) -> manifest.Recipe:
    """Return the recipe without columns that do not affect scores: weights and optionally ids."""
    if recipe.table is None:
        return recipe
    table = dataclasses.replace(recipe.table, weight=None, id=recipe.table.id if ids else None)
    return dataclasses.replace(recipe, table=table)


def _of_scores(recipe: manifest.Recipe) -> manifest.Recipe:
    """Return the part of a recipe that two stores must share for rows to have the same encoding."""
    recipe = dataclasses.replace(needed(recipe, ids=False), features=None)
    table = recipe.table and dataclasses.replace(recipe.table, scaling="none")
    return dataclasses.replace(recipe, table=table)


def _known_features(block: CsrBlock, known: Meaning) -> CsrBlock:
    """Return a block with indices from 0, in the scale of the training data, and with unknown features set to 0."""
    assert block.values is not None
    indices, values = block.indices - np.uint32(known.recipe.index_base), block.values
    rounding = known.recipe.values
    if known.recipe.normalize:
        normalize_rows(block.indptr, values)
    unknown = indices >= known.features
    if unknown.any():
        indices[unknown], values[unknown] = 0, 0
    if rounding:
        large = np.flatnonzero(np.abs(values) >= OVERFLOWS[rounding])
        if len(large):
            problem = f"the value {values[large[0]]:g} is too large for {rounding}, as the model's data was stored"
            raise InputError(f"{problem}; correct it")
        round_values(values, ROUNDINGS[rounding])
    return CsrBlock(block.indptr, indices, values, block.labels, known.features)


def _refuse_unknown(parsed: ParsedBlock, labels: LabelMap, where: Callable[[int], str]) -> None:
    """Refuse a label that the model does not have."""
    if labels.otherwise is not None or labels.info.task == "regression":
        return
    keys = parsed.block.labels.view(np.uint64)
    unknown = np.flatnonzero(~np.isin(keys, labels.keys))
    if len(unknown):
        row = int(unknown[0])
        name = LabelCollector(labels.info.text, names=parsed.names).name(int(keys[row]))
        known = listed(labels.info.classes)
        raise InputError(f"{where(row)}: the label {shortened(name)!r} is not one of {known}; correct it")


def _differences(recipe: Any, other: Any) -> str:
    """Return the settings of a recipe that differ in another."""
    found = []
    for field in dataclasses.fields(recipe):
        mine, theirs = getattr(recipe, field.name), getattr(other, field.name)
        if mine == theirs:
            continue
        if dataclasses.is_dataclass(mine) and dataclasses.is_dataclass(theirs):
            found.append(_differences(mine, theirs))
        elif field.name == "columns" and _without_scales(mine) == _without_scales(theirs):
            names = [one.name for one, other in zip(mine, theirs, strict=True) if one != other]
            is_scaled = any(one.is_scaled for one in mine)
            found.append(f"{'its own scales' if is_scaled else 'no scales'} of {listed(names)}")
        elif field.name == "index_base":
            found.append(f"indices from {mine}")
        else:
            found.append(f"{field.name} {_short(mine, theirs)}")
    return ", ".join(found)


def _without_scales(columns: list[Column]) -> list[Column]:
    """Return columns whose numbers are used as they are."""
    return [dataclasses.replace(column, scale=1.0, shift=0.0) for column in columns]


def _short(mine: Any, theirs: Any) -> str:
    """Return a setting; of a list only the items that differ."""
    if isinstance(mine, list) and isinstance(theirs, list):
        names = [str(getattr(one, "name", one)) for one in mine if one not in theirs]
        return listed(names) if names else "without them"
    return "no" if mine is None else str(mine) if not dataclasses.is_dataclass(mine) else type(mine).__name__
