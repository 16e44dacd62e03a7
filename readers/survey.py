"""Passes over the inputs before rows are made: scales of numbers, dictionaries of names, document frequencies.

Each is a pass of its own, made only if an option needs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse import dictionary as kernels
from ooc_pegasos.compiled.parse.text import count_documents
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import tables
from ooc_pegasos.readers.arrow_strings import buffers_of, is_list, items_of, strings_of, with_prefix
from ooc_pegasos.readers.base import ReadOptions, memory_of
from ooc_pegasos.readers.sources import display_name
from ooc_pegasos.readers.tokens import TextHasher
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.recipe import Column, Hashing, Table, Tokens
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.arrow import array_of
from ooc_pegasos.util.short_names import listed
from ooc_pegasos.util.thread_map import ordered_map

SAMPLED_TASKS, _SAMPLED_FILES = 8, 8
"""Blocks of rows, and files, from which the sizes of numbers are known by default."""
_SIMILAR = 10.0
"""Ratio of the largest size to the smallest size or deviation up to which numeric columns are not scaled by default."""


@dataclasses.dataclass
class Survey:
    """Inputs and options of the passes."""

    names: Sequence[str]
    config: ConvertConfig
    note: Callable[[str], None]
    begin: Callable[[str], None] = lambda _what: None
    advance: Callable[[int], None] = lambda _bytes: None
    tasks: int | None = None
    """The number of tasks to read, for a preview; None: all."""

    def map_tasks(self, reader: Any, work: Callable[[Any], Any], what: str) -> Iterator[Any]:
        """Yield the results of `work`, on all cores, for each task in order. `what` is the name of this step."""
        self.begin(what)

        def done(task: Any) -> tuple[Any, int]:
            return work(task), task.consumed

        tasks, config = islice(reader.tasks(), self.tasks), self.config
        read = ordered_map(done, tasks, config.reading_threads(), partial(memory_of, reader), config.memory)
        for found, consumed in read:
            yield found
            self.advance(consumed)


def steps_of(recipe: Recipe, config: ConvertConfig) -> int:
    """Return the number of passes over all inputs that `with_findings` makes."""
    return sum(map(bool, (recipe.table and config.standardize, config.dictionary, config.idf)))


def with_findings(recipe: Recipe, survey: Survey) -> tuple[Recipe, Vocabulary | None]:
    """Return (the recipe with the findings, the vocabulary that the recipe needs or None)."""
    config, table = survey.config, recipe.table
    vocabulary = None
    if config.dictionary and table and all(column.kind in ("numeric", "entries") for column in table.columns):
        raise UsageError("{dictionary}: the columns have feature indices already; leave it out")
    if config.idf and table and not any(column.kind == "text" for column in table.columns):
        raise UsageError("{idf}: no column is text; leave it out, or name one with {text}")
    if table and config.standardize is None:
        recipe = dataclasses.replace(recipe, table=_scaled_by_default(table, survey))
    elif table and config.standardize:
        recipe = dataclasses.replace(recipe, table=with_scales(table, survey))
    if config.dictionary:
        names = _dictionary(recipe, survey)
        recipe = _with(recipe, lambda hashing, tokens: (dataclasses.replace(hashing, dictionary=len(names)), tokens))
        vocabulary = Vocabulary(np.arange(len(names), dtype=np.uint32), names)
    if config.idf:
        vocabulary, texts = _document_frequencies(recipe, vocabulary, survey)
        recipe = _with(recipe, lambda hashing, tokens: (hashing, dataclasses.replace(tokens, texts=texts)))
    return recipe, vocabulary


def _with(recipe: Recipe, change: Callable[[Hashing, Tokens], tuple[Hashing, Tokens]]) -> Recipe:
    """Return the recipe with changed hashing and tokens."""
    table = recipe.table
    if table is None:
        hashing, tokens = change(recipe.hashing or Hashing(), recipe.tokens or Tokens())
        return dataclasses.replace(recipe, hashing=hashing, tokens=tokens, features=hashing.buckets)
    hashing, tokens = change(table.hashing, table.tokens)
    table = dataclasses.replace(table, hashing=hashing, tokens=tokens)
    return dataclasses.replace(recipe, table=table, features=hashing.buckets)


# --- scales -------------------------------------------------------------------------------------------


class Moments:
    """Means and variances of the numbers of some columns; nulls do not count."""

    def __init__(self, numbers: np.ndarray) -> None:
        """Take the numbers of some rows: a column for each column of the table, NaN for nulls."""
        there, columns = ~np.isnan(numbers), numbers.shape[1]
        self.rows = len(numbers)
        self.counts = there.sum(axis=0)
        """Numbers that are not null."""
        self.others = (there & (numbers != 0.0)).sum(axis=0)
        """Numbers other than 0."""
        self.are_binary = ~(there & (numbers != 0.0) & (numbers != 1.0)).any(axis=0)
        """True for columns of 0 and 1."""
        self.least = np.where(there, numbers, np.inf).min(axis=0, initial=np.inf)
        self.most = np.where(there, numbers, -np.inf).max(axis=0, initial=-np.inf)
        first = there.argmax(axis=0) if len(numbers) else np.zeros(columns, np.int64)
        self._origin = np.where(self.counts > 0, numbers[first, range(columns)] if len(numbers) else 0.0, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):  # columns with infinite results are not scaled
            # differences from a number of the column lose no digits, however far the column is from 0
            moved = np.where(there, numbers - self._origin, 0.0)
            self._mean = moved.sum(axis=0) / np.maximum(self.counts, 1)
            self._squares = (np.where(there, moved - self._mean, 0.0) ** 2).sum(axis=0)

    def add(self, other: Moments) -> None:
        """Add the numbers of other rows."""
        with np.errstate(over="ignore", invalid="ignore"):
            both = np.maximum(self.counts + other.counts, 1)
            self._origin = np.where(self.counts > 0, self._origin, other._origin)
            apart = np.where(other.counts > 0, (other._origin - self._origin) + (other._mean - self._mean), 0.0)
            self._mean = self._mean + apart * (other.counts / both)
            self._squares = self._squares + other._squares + apart**2 * (self.counts * (other.counts / both))
        self.rows += other.rows
        self.counts = self.counts + other.counts
        self.others = self.others + other.others
        self.are_binary &= other.are_binary
        self.least, self.most = np.minimum(self.least, other.least), np.maximum(self.most, other.most)

    @property
    def means(self) -> np.ndarray:
        """The mean of each column."""
        found: np.ndarray = self._origin + self._mean
        return found

    @property
    def deviations(self) -> np.ndarray:
        """The standard deviation of each column."""
        found: np.ndarray = np.sqrt(self._squares / np.maximum(self.counts, 1))
        return found

    @property
    def sizes(self) -> np.ndarray:
        """The root of the mean square of the numbers other than 0 of each column."""
        with np.errstate(over="ignore", invalid="ignore"):
            of_all: np.ndarray = np.hypot(self.deviations, self.means)
            found: np.ndarray = of_all * np.sqrt(self.counts / np.maximum(self.others, 1))
            return found

    @property
    def are_dense(self) -> np.ndarray:
        """True for columns of which most numbers are not 0."""
        found: np.ndarray = 2 * self.others > self.counts
        return found

    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (shifts, scales) that give columns the standard deviation 1, and dense ones the mean 0.

        A constant column is divided by its size and stays constant.
        """
        varies = self.least < self.most
        with np.errstate(all="ignore"):
            scales = 1 / np.where(varies, self.deviations, np.abs(self.means))
            shifts = np.where(varies & self.are_dense, self.means, 0.0)
        usable = np.isfinite(scales) & (scales > 0) & np.isfinite(shifts)
        return np.where(usable, shifts, 0.0), np.where(usable, scales, 1.0)


def _numeric(table: Table) -> list[Column]:
    return [column for column in table.columns if column.kind == "numeric"]


def _scaled(table: Table, moments: Moments, chosen: np.ndarray) -> Table:
    """Return the table with the scales of the chosen numeric columns."""
    found = {}
    shifts, scales = moments.scales()
    for column, shift, scale, is_chosen in zip(_numeric(table), shifts, scales, chosen, strict=True):
        if is_chosen:
            found[column.name] = dataclasses.replace(column, shift=float(shift), scale=float(scale))
    return dataclasses.replace(table, columns=[found.get(column.name, column) for column in table.columns])


def with_scales(table: Table, survey: Survey) -> Table:
    """Return the table with the means and scales of numeric columns in all rows."""
    if not _numeric(table):
        raise UsageError("{standardize}: no column holds numbers; leave it out")
    moments = Moments(np.empty((0, len(_numeric(table)))))
    _add_numbers(moments, table, survey, survey.names)
    if not moments.rows:
        raise InputError(f"{display_name(survey.names[0])}: no row to keep; check the file")
    return dataclasses.replace(_scaled(table, moments, moments.counts > 0), scaling="all")


def _add_numbers(moments: Moments, table: Table, survey: Survey, names: Sequence[str]) -> None:
    """Add the numeric columns of some files."""
    numbers = dataclasses.replace(table, columns=_numeric(table), crosses=())
    settings = tables.Settings(numbers, stop_at_bad=False, with_labels=False)
    reader = tables.TablesReader(names, settings, survey.config.text_block(), survey.config.memory)
    for more in survey.map_tasks(reader, lambda task: Moments(reader.numbers(task)), "measuring numbers"):
        moments.add(more)


def _scaled_by_default(table: Table, survey: Survey) -> Table:
    """Return the table with scales where numbers would dominate or vanish beside other columns.

    Columns of 0 and 1 have the size of categories already.
    """
    table, columns = dataclasses.replace(table, scaling="sample"), _numeric(table)
    if not columns or any(column.kind == "entries" for column in table.columns):
        return table
    some = survey.names[:: -(-len(survey.names) // _SAMPLED_FILES)]
    tasks = -(-SAMPLED_TASKS // len(some))
    sample = dataclasses.replace(survey, tasks=tasks, begin=lambda _what: None, advance=lambda _bytes: None)
    moments = Moments(np.empty((0, len(columns))))
    with suppress(InputError):  # reported, with the line, when the rows are made
        for name in some:
            _add_numbers(moments, table, sample, [name])
    chosen = ~moments.are_binary
    if not chosen.any():
        return table
    why = "stand beside categories or texts" if len(columns) < len(table.columns) else _differences_of(moments)
    if not why:
        return table
    scaled = [column.name for column, is_chosen in zip(columns, chosen.tolist(), strict=True) if is_chosen]
    survey.note(
        f"numbers are scaled, because they {why} ({listed(scaled, 3)}); --no-standardize keeps them as they are"
    )
    return _scaled(table, moments, chosen)


def _differences_of(moments: Moments) -> str:
    """Return the differences that make scales necessary where all columns are numbers; nothing if there are none."""
    present = moments.others > 0
    sizes = moments.sizes[present]
    if sizes.max() > _SIMILAR * sizes.min():
        return "differ in size"
    can_be_centred = moments.are_dense & ~moments.are_binary & (moments.least < moments.most)
    spreads = np.where(can_be_centred, moments.deviations, moments.sizes)[present]
    return "are far from 0" if sizes.max() > _SIMILAR * spreads.min() else ""


# --- names and texts ----------------------------------------------------------------------------------


def _reader_of_strings(recipe: Recipe, survey: Survey, kinds: tuple[str, ...]) -> Any:
    """Return the reader of columns of these kinds alone."""
    if recipe.table is None:
        from ooc_pegasos.readers import registry

        options = ReadOptions(
            survey.config.text_block(),
            text_labels=True,
            stop_at_bad=False,
            labels=survey.config.labels,
            memory=survey.config.memory,
        )
        return registry.format_of(recipe.reader).open(survey.names, recipe.without_findings(), options)
    columns = [column for column in recipe.table.columns if column.kind in kinds]
    crosses = recipe.table.crosses if "categorical" in kinds else ()
    table = dataclasses.replace(recipe.table, columns=columns, hashing=Hashing(), tokens=Tokens(), crosses=crosses)
    settings = tables.Settings(table, stop_at_bad=False, with_labels=False)
    return tables.TablesReader(survey.names, settings, survey.config.text_block(), survey.config.memory)


def _hasher(recipe: Recipe, vocabulary: Vocabulary | None) -> TextHasher:
    """Return the hasher of the recipe."""
    return TextHasher(recipe.tokens_of_texts or Tokens(), recipe.hashing_of_names or Hashing(), vocabulary)


def _dictionary(recipe: Recipe, survey: Survey) -> Any:
    """Return the names of the dictionary in order: those of numbers and nulls, then the most frequent others."""
    import pyarrow as pa

    most, table = survey.config.dictionary or 0, recipe.table
    fixed = _names_of_columns(table.columns, table.nulls == "mark") if table else []
    if len(fixed) > most:
        raise UsageError(f"{{dictionary={most}}}: the columns alone need {len(fixed)} names; raise it")
    hasher = _hasher(recipe, None)
    counts = NameCounts(survey.config.memory // 2)
    reader = _reader_of_strings(recipe, survey, ("categorical", "text", "dates"))

    def strings(task: Any) -> list[tuple[Any, ...]]:
        found = []
        for prefix, array in reader.strings(task):
            if prefix is None:
                found.append(hasher.ngrams(array))
            elif is_list(array.type):
                items, rows, _wrong = items_of(array)
                found.append((*buffers_of(with_prefix(prefix, items)), read_only(rows)))
            else:
                there = array.is_valid()
                words = with_prefix(prefix, array.filter(there))
                found.append((*buffers_of(words), read_only(np.flatnonzero(np.asarray(there)))))
        return found

    for columns in survey.map_tasks(reader, strings, "counting names"):
        counts.add(columns)
    chosen, left_out = counts.most_frequent(most - len(fixed), fixed)
    if left_out:
        kept = len(fixed) + len(chosen)
        survey.note(f"{left_out:,} names occur in fewer rows than the {kept:,} that are kept, and are left out")
    return pa.array(sorted({*fixed, *chosen}, key=str.encode), pa.large_string())


def _names_of_columns(columns: Sequence[Column], mark: bool) -> list[str]:
    """Return the names of the features that do not depend on the content of rows."""
    names = [column.name for column in columns if column.kind == "numeric"]
    names += [f"{column.name}:years" for column in columns if column.kind == "dates"]
    return names + [f"{column.name}=null" for column in columns if mark]


class NameCounts:
    """Document frequencies of names. Memory grows with the number of different names, up to a limit in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 0
        self._rows = 0
        self._text = np.empty(1 << 16, np.uint8)
        self._hashes = np.empty(1 << 12, np.uint32)
        self._ends = np.zeros(len(self._hashes) + 1, np.int64)
        self._counts = np.empty(len(self._hashes), np.int64)
        self._last = np.empty(len(self._hashes), np.int64)
        self._slots = np.full(kernels.slots_for(len(self._hashes)), -1, np.int32)

    def add(self, columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
        """Count the strings of columns of some rows: bytes, offsets, row of each string."""
        rows = 0
        for data, offsets, positions in columns:
            rows = max(rows, int(positions.max(initial=-1)) + 1)
            done = self._count(data, offsets, positions, 0)
            while done < len(positions):
                self._grow(int(offsets[done + 1]) - int(offsets[done]))
                done = self._count(data, offsets, positions, done)
        self._rows += rows

    def most_frequent(self, most: int, besides: Sequence[str]) -> tuple[list[str], int]:
        """Return (the most frequent names, ties by name; the number of others), of all names but `besides`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        number = self._number
        names = strings_of(self._text[: self._ends[number]], self._ends[: number + 1])
        table = pa.table({"name": names, "rows": array_of(self._counts[:number])})
        table = table.filter(pc.invert(pc.is_in(names, pa.array(besides, names.type))))
        order = pc.sort_indices(table, [("rows", "descending"), ("name", "ascending")])
        chosen = table.column("name").take(order.slice(0, most)).to_pylist()
        return chosen, len(table) - len(chosen)

    def _count(self, data: np.ndarray, offsets: np.ndarray, positions: np.ndarray, first: int) -> int:
        """Count from string number `first` on; return the number of the first that did not fit."""
        table = (self._slots, self._hashes, self._ends, self._text, self._counts, self._last)
        done, self._number = kernels.count_strings(data, offsets, positions, self._rows, first, self._number, *table)
        return int(done)

    def _grow(self, needed: int) -> None:
        """Make room for a name of `needed` bytes."""
        number = self._number
        if int(self._ends[number]) + needed > len(self._text):
            self._text = _grown(self._text, 2 * len(self._text) + needed)
        if number == len(self._hashes):
            room = 2 * number
            self._hashes, self._ends = _grown(self._hashes, room), _grown(self._ends, room + 1)
            self._counts, self._last = _grown(self._counts, room), _grown(self._last, room)
            self._slots = np.empty(kernels.slots_for(room), np.int32)
            kernels.fill_slots(self._hashes, number, self._slots)
        arrays = (self._slots, self._hashes, self._ends, self._counts, self._last, self._text)
        if sum(array.nbytes for array in arrays) > self._max_bytes:
            raise UsageError(
                f"{{dictionary}}: {number:,} different names so far, and more do not fit into half of {{memory}}; "
                "raise it, or leave {dictionary} out, to hash names"
            )


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    grown = np.empty(size, array.dtype)
    grown[: len(array)] = array
    return grown


def _document_frequencies(recipe: Recipe, vocabulary: Vocabulary | None, survey: Survey) -> tuple[Vocabulary, int]:
    """Return (the vocabulary with document frequencies, the number of texts)."""
    hasher = _hasher(recipe, vocabulary)
    counts = np.zeros(hasher.features, np.int64)
    texts = 0
    reader = _reader_of_strings(recipe, survey, ("text",))

    def entries(task: Any) -> list[tuple[int, np.ndarray]]:
        return [(len(array), read_only(hasher.part(array)[1])) for _prefix, array in reader.strings(task)]

    for found in survey.map_tasks(reader, entries, "counting words"):
        for number, indices in found:
            texts += number
            count_documents(indices, counts)
    if not texts:
        raise InputError(f"{display_name(survey.names[0])}: no text in it; check the file")
    if vocabulary is None:
        vocabulary = Vocabulary(np.flatnonzero(counts).astype(np.uint32))
    return dataclasses.replace(vocabulary, texts=counts[vocabulary.places]), texts
