"""Columns of a table to sparse rows: each column adds a part to every row, and parts are joined row by row.

Nothing is coerced: a row with a value that is not a finite number, in a numeric column, is a bad row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ooc_pegasos.compiled.parse import hashing as kernels
from ooc_pegasos.declared_labels import EXACT, NULL_LABELS
from ooc_pegasos.errors import InputError, literal
from ooc_pegasos.readers.amounts import amounts_of
from ooc_pegasos.readers.arrow_strings import as_strings, is_list, items_of, without_infinite
from ooc_pegasos.readers.base import DESCRIBED_BAD_ROWS, LARGEST_INDEX, BadRow
from ooc_pegasos.readers.crosses import crossed, prefix_of
from ooc_pegasos.readers.dates import parts_of, times_of
from ooc_pegasos.readers.feature_index import NOT_FOUND
from ooc_pegasos.readers.feature_names import NewNames, UnnamedBuckets
from ooc_pegasos.readers.spelling import category_words, needs_spelling
from ooc_pegasos.readers.tokens import TextHasher
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.labels import key_of
from ooc_pegasos.store.recipe import Column, Table
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.short_names import short

MIN_WEIGHT, MAX_WEIGHT = 1e-9, 1e9


class ColumnEntries(NamedTuple):
    """The entries that a column adds to each row."""

    lengths: np.ndarray
    indices: np.ndarray
    values: np.ndarray


@dataclass
class Vectors:
    """The good rows of a batch."""

    block: CsrBlock
    good: np.ndarray
    """Numbers of the rows in the batch."""
    bad: list[BadRow]
    bad_rows: int
    names: dict[int, str]
    """Text labels by the bits of their hash."""
    features: dict[int, str]
    """New names of buckets."""


class Problems:
    """The bad rows of a batch, and the problems of the first ones."""

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, bool)
        self._problems: dict[int, str] = {}

    def add(self, rows: np.ndarray, describe: Callable[[int], str]) -> None:
        """Mark rows as bad; `describe` returns the problem of a row, and is called for the first rows alone."""
        for row in rows[: DESCRIBED_BAD_ROWS + 1].tolist():
            self._problems.setdefault(row, describe(row))
        self.bad[rows] = True

    def described(self) -> list[BadRow]:
        """Return the first bad rows in order."""
        return [BadRow(row, self._problems[row]) for row in sorted(self._problems)[:DESCRIBED_BAD_ROWS]]


class Vectorizer:
    """Vectorizer of batches of a table, safe for any number of threads."""

    def __init__(
        self,
        table: Table,
        text_labels: bool,
        *,
        with_labels: bool = True,
        names: int = 0,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.table = table
        self._text_labels = text_labels
        self._with_labels = with_labels
        self._hasher = TextHasher(table.tokens, table.hashing, vocabulary)
        self._feature_index = self._hasher.index
        self._dense = is_dense(table)
        self._unnamed = UnnamedBuckets(features_of(table) or 0, 0 if table.hashing.dictionary else names)
        numbers = {column.name: column for column in table.columns if column.kind == "numeric"}
        self._numeric_columns = numbers
        marked = [column.name for column in table.columns] if table.nulls == "mark" else []
        by_name = {column.name: column for column in table.columns}
        self.crosses = [(prefix_of(names), [by_name[name] for name in names]) for names in table.crosses]
        """Prefix of the names of features, and columns, of each cross."""
        self._numbers = {name: index for index, name in enumerate(numbers)}
        self._indices = {name: self._index_of(name, False) for name in numbers}
        self._null_indices = {name: self._index_of(name, True) for name in marked}

    @property
    def wanted(self) -> list[str]:
        """Return the columns needed."""
        table = self.table
        extra = [table.label] if self._with_labels else []
        names = [column.name for column in table.columns] + [*extra, table.weight, table.id]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def takes_numbers(self) -> bool:
        """True if `vectors` accepts all features as a matrix."""
        are_plain = all(column.use == "numeric" for column in self.table.columns)
        return are_plain and self.table.nulls != "bad" and self._unnamed.left <= 0

    def vectors(self, batch: Any, numbers: np.ndarray | None = None, problems: Problems | None = None) -> Vectors:
        """Return the rows of an Arrow record batch; `numbers` is the matrix of its numeric columns, NaN for nulls.

        `problems` are those that are known already.
        """
        rows = batch.num_rows if numbers is None else len(numbers)
        problems = problems or Problems(rows)
        new = self._unnamed.new()
        if numbers is None:
            parts: list[ColumnEntries] = []
            texts: list[ColumnEntries] = []
            for column in self.table.columns:
                if column.kind == "text":
                    texts.append(self._text(as_strings(batch.column(column.name)), new))
                parts += self.parts(column, batch.column(column.name), problems, new)
            parts += self._weighted(rows, texts)
            parts += [self._cross(prefix, columns, batch, new) for prefix, columns in self.crosses]
        labels, names = self._labels(batch, problems)
        weights = self._weights(batch, problems)
        indptr, indices, values = join(rows, parts) if numbers is None else self._entries_of(numbers)
        large = np.flatnonzero(~np.isfinite(values))
        if len(large):
            wrong = np.unique(np.searchsorted(indptr, large, "right") - 1)
            problems.add(wrong, lambda _row: "a value is too large for float32; scale the data, or clip it with {clip}")
        good = np.flatnonzero(~problems.bad)
        if len(good) < rows:
            lengths = np.diff(indptr)
            entries = np.repeat(~problems.bad, lengths)
            indptr = np.concatenate([[0], np.cumsum(lengths[good])])
            indices, values, labels = indices[entries], values[entries], labels[good]
            weights = None if weights is None else weights[good]
        features = features_of(self.table) or LARGEST_INDEX + 1
        block = CsrBlock(indptr, indices, values, labels, features, weights)
        return Vectors(block, good, problems.described(), int(problems.bad.sum()), names, new)

    def _entries_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries of a matrix of finite numbers with NaN for nulls, as `_numeric` does."""
        nulls = np.isnan(numbers)
        numbers = self._limited(np.where(nulls, 0.0, numbers))
        shifts, scales = np.array([(column.shift, column.scale) for column in self.table.columns]).T
        with np.errstate(over="ignore"):
            values = ((numbers - shifts) * scales).astype(np.float32)
        values[nulls] = 0.0
        if self.table.nulls == "mark":
            values = np.concatenate([values, nulls.astype(np.float32)], axis=1)
        rows, indices = np.nonzero(values)
        indptr = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=len(values)), out=indptr[1:])
        return indptr, indices.astype(np.uint32), values[rows, indices]

    def _limited(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers after the options log1p and clip; both keep NaN."""
        if self.table.log1p:
            numbers = np.copysign(np.log1p(np.abs(numbers)), numbers)
        return numbers if self.table.clip is None else np.clip(numbers, -self.table.clip, self.table.clip)

    def numbers(self, batch: Any, numbers: np.ndarray | None = None) -> np.ndarray:
        """Return the numeric columns of the good rows of a batch before they are scaled, NaN for nulls.

        `numbers` is the matrix of the columns if that was read. Rows that are bad by other columns are good here.
        """
        if numbers is None:
            numbers = np.empty((batch.num_rows, len(self._numbers)))
            bad = np.zeros(batch.num_rows, bool)
            for name, at in self._numbers.items():
                array = _plain(self._numeric_columns[name], batch.column(name))
                numbers[:, at] = as_numbers(array)
                wrong = ~np.isfinite(numbers[:, at])
                if array.null_count and self.table.nulls != "bad":
                    wrong &= ~np.asarray(array.is_null(nan_is_null=False))
                bad |= wrong
            numbers = numbers[~bad]
        return self._limited(numbers)

    def named(self, features: dict[int, str]) -> None:
        """Record names of buckets."""
        self._unnamed.named(features)

    def search(self, buckets: np.ndarray) -> None:
        """Record the names of some buckets alone."""
        self._unnamed.only(buckets)

    # --- columns ----------------------------------------------------------------------------------

    def _index_of(self, column: str, null: bool) -> tuple[int, float]:
        """Return (index, sign) of a numeric column, or of the feature that marks its nulls."""
        if self._dense:
            return self._numbers[column] + (len(self._numbers) if null else 0), 1.0
        return self._feature_index.one(f"{column}=null" if null else column)

    def parts(self, column: Column, given: Any, problems: Problems, new: NewNames) -> Iterable[ColumnEntries]:
        """Yield the entries that a column adds, without those of texts."""
        array = _plain(column, given)
        nulls = np.asarray(array.is_null(nan_is_null=False)) if array.null_count else None
        if nulls is not None and self.table.nulls == "bad":
            wrong = np.flatnonzero(nulls)
            problem = f"no value in column '{short(column.name)}'; fill it in, or give {{nulls=absent}}"
            problems.add(wrong, lambda _row: problem)
        if column.kind == "numeric":
            yield self._numeric(column, array, given, nulls, problems, new)
        elif column.kind == "dates":
            yield from self._dates(column, array, problems, new)
        elif column.kind == "categorical":
            yield self._categorical(column, array, problems, new)
        elif column.kind == "entries":
            yield _entries(column, array, nulls, problems)
        if nulls is not None and self.table.nulls == "mark":
            index, sign = self._null_indices[column.name]
            self._unnamed.name(np.array([index]), lambda _at: f"{column.name}=null", new)
            yield _single_entries(nulls, np.full(len(nulls), index, np.uint32), np.full(len(nulls), sign, np.float32))

    def _numeric(
        self, column: Column, array: Any, given: Any, nulls: np.ndarray | None, problems: Problems, new: NewNames
    ) -> ColumnEntries:
        numbers = as_numbers(array)
        wrong = ~np.isfinite(numbers)
        if nulls is not None:
            wrong &= ~nulls
            numbers = np.where(nulls, 0.0, numbers)
        if wrong.any():
            problems.add(np.flatnonzero(wrong), lambda row: _not_a_number(column, given[row].as_py()))
            numbers = np.where(wrong, 0.0, numbers)
        numbers = self._limited(numbers)
        index, sign = self._indices[column.name]
        self._unnamed.name(np.array([index]), lambda _at: column.name, new)
        with np.errstate(over="ignore"):
            values = ((numbers - column.shift) * (column.scale * sign)).astype(np.float32)
        if nulls is not None:
            values[nulls] = 0.0
        return _single_entries(values != 0, np.full(len(values), index, np.uint32), values)

    def _categorical(self, column: Column, given: Any, problems: Problems, new: NewNames) -> ColumnEntries:
        import pyarrow as pa

        if is_list(given.type):
            return self._tags(column, given, problems, new)
        array, wrong = without_infinite(given)
        problems.add(wrong, lambda row: _not_finite(column, given[row].as_py()))
        nulls = np.asarray(array.is_null(nan_is_null=False)) if array.null_count else None
        prefix = f"{column.name}="
        is_present = ~nulls if nulls is not None else np.ones(len(array), bool)
        if pa.types.is_dictionary(array.type) and len(array.dictionary) > len(array):
            array = array.dictionary_decode()  # the dictionary of the whole file; a batch uses few of its values
        is_long = new.wanted > 0 or needs_spelling(column, array.type)
        if is_long and not pa.types.is_dictionary(array.type):
            array = as_strings(array).dictionary_encode()
        if not pa.types.is_dictionary(array.type):
            indices, signs = self._feature_index.of(as_strings(array), prefix)
            return _single_entries(is_present & (indices != NOT_FOUND), indices, signs)
        words = category_words(column, array.dictionary)
        indices, signs = self._feature_index.of(words, prefix)
        codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False) if nulls is not None else array.indices
        codes = np.asarray(codes)
        if not len(indices):  # all cells are null
            return _single_entries(is_present, np.zeros(len(array), np.uint32), np.zeros(len(array), np.float32))
        if new.has_room:
            used = np.zeros(len(words), bool)
            used[codes[is_present]] = True
            used_codes = np.flatnonzero(used)
            self._unnamed.name(
                indices[used_codes], lambda at: f"{column.name}={words[int(used_codes[at])].as_py()}", new
            )
        indices = indices[codes]
        return _single_entries(is_present & (indices != NOT_FOUND), indices, signs[codes])

    def _tags(self, column: Column, lists: Any, problems: Problems, new: NewNames) -> ColumnEntries:
        """Return the part of a column of lists of words or numbers: each word of a list once."""
        items, rows, wrong = items_of(lists)
        problem = f"a number in a list in column '{column.name}' is not finite; correct it, or leave it out"
        problems.add(wrong, lambda _row: problem)
        coded, prefix = items.dictionary_encode(), f"{column.name}="
        words = coded.dictionary
        indices, signs = self._feature_index.of(words, prefix)
        self._unnamed.name(indices, lambda at: f"{prefix}{words[at].as_py()}", new)
        number = max(len(words), 1)
        once = np.unique(rows * number + np.asarray(coded.indices))
        rows, codes = once // number, once % number
        known = indices[codes] != NOT_FOUND if len(codes) else np.zeros(0, bool)
        rows, codes = rows[known], codes[known]
        lengths = np.bincount(rows, minlength=len(lists)).astype(np.uint32)
        return ColumnEntries(lengths, indices[codes], signs[codes])

    def _cross(self, prefix: str, columns: list[Column], batch: Any, new: NewNames) -> ColumnEntries:
        """Return the part of a cross."""
        codes, words = crossed(batch, columns)
        indices, signs = self._feature_index.of(words, prefix)
        self._unnamed.name(indices, lambda at: f"{prefix}{words[at].as_py()}", new)
        if not len(indices):
            return _single_entries(codes >= 0, np.zeros(len(codes), np.uint32), np.zeros(len(codes), np.float32))
        return _single_entries((codes >= 0) & (indices[codes] != NOT_FOUND), indices[codes], signs[codes])

    def _dates(self, column: Column, array: Any, problems: Problems, new: NewNames) -> Iterable[ColumnEntries]:
        import pyarrow as pa

        times = times_of(array, column.date_order)
        advice = "write it like 2024-12-31 13:45, correct it, or leave it empty"
        problems.add(
            np.flatnonzero(times.wrong),
            lambda row: f"{literal(repr(array[row].as_py()))} in column '{short(column.name)}' is not a date; {advice}",
        )
        for part, codes, words in parts_of(times):
            prefix, is_present = f"{column.name}:{part}=", times.present & (codes >= 0)
            indices, signs = self._feature_index.of(pa.array(words), prefix)
            if new.has_room:
                used = np.unique(codes[is_present])
                self._unnamed.name(indices[used], lambda at: prefix + words[int(used[at])], new)  # noqa: B023
            indices, signs = indices[codes], signs[codes]
            yield _single_entries(is_present & (indices != NOT_FOUND), indices, signs)
        name = f"{column.name}:years"
        index, sign = self._feature_index.one(name)
        self._unnamed.name(np.array([index]), lambda _at: name, new)
        values = np.where(times.present, times.years * sign, 0.0).astype(np.float32)
        yield _single_entries(values != 0, np.full(len(values), index, np.uint32), values)

    def _text(self, strings: Any, new: NewNames) -> ColumnEntries:
        self._unnamed.name_words(self._hasher, strings, new)
        return ColumnEntries(*self._hasher.counts(strings))

    def _weighted(self, rows: int, texts: list[ColumnEntries]) -> list[ColumnEntries]:
        """Return the part of all columns of text: counts are added up before they are multiplied by the idf."""
        if len(texts) > 1:
            indptr, indices, counts = join(rows, texts)
            texts = [ColumnEntries(np.diff(indptr).astype(np.uint32), indices, counts)]
        return [one._replace(values=self._hasher.weighted(one.indices, one.values)) for one in texts]

    # --- labels and weights -----------------------------------------------------------------------

    def _labels(self, batch: Any, problems: Problems) -> tuple[np.ndarray, dict[int, str]]:
        import pyarrow as pa

        name = self.table.label
        if not self._with_labels or name is None:
            return np.zeros(len(problems.bad)), {}
        array = null_labels(batch.column(name)) if self.table.label_is_null else batch.column(name)
        if array.null_count:
            missing = np.flatnonzero(np.asarray(array.is_null()))
            advice = "give every row one, or leave it out, as conversions do with {on_bad_row=skip}"
            problems.add(missing, lambda _row: f"no label in column '{short(name)}'; {advice}")
        if self._text_labels:
            keys, names = _keys_of(array)
            empty = np.array([key for key, word in names.items() if not word], np.uint64)
            if len(empty):
                wrong = np.flatnonzero(np.isin(keys.view(np.uint64), empty))
                problems.add(
                    wrong, lambda _row: f"an empty label in column '{short(name)}'; give every row one, or leave it out"
                )
            return keys, {key: word for key, word in names.items() if word}
        numbers, wrong = parsed_numbers(array)
        if pa.types.is_integer(array.type):
            wrong |= np.abs(numbers) >= EXACT  # larger integers are not distinct in float64
        wrong &= ~problems.bad

        def problem(row: int) -> str:
            label = array[row].as_py()
            if isinstance(label, int):
                return f"the label {label} is not below 2^53; write labels as words"
            shown = literal(repr(label))
            return f"the label {shown} is not a finite number; correct it, or name words with {{classes}}"

        problems.add(np.flatnonzero(wrong), problem)
        return np.where(wrong | problems.bad, 0.0, numbers) + 0.0, {}

    def _weights(self, batch: Any, problems: Problems) -> np.ndarray | None:
        name = self.table.weight
        if name is None:
            return None
        array = batch.column(name)
        numbers, wrong = parsed_numbers(array)
        wrong |= ~((numbers >= MIN_WEIGHT) & (numbers <= MAX_WEIGHT))
        problems.add(
            np.flatnonzero(wrong), lambda row: f"the weight {array[row].as_py()!r} is not from 1e-9 to 1e9; correct it"
        )
        return np.where(wrong, 1.0, numbers).astype(np.float32)


def is_dense(table: Table) -> bool:
    """True if all columns are numbers: then the index of a feature is the number of its column, without hashing."""
    return all(column.kind == "numeric" for column in table.columns)


def features_of(table: Table) -> int | None:
    """Return the number of features; None for columns of indices."""
    if any(column.kind == "entries" for column in table.columns):
        return None
    return len(table.columns) * (2 if table.nulls == "mark" else 1) if is_dense(table) else table.hashing.buckets


def join(rows: int, parts: list[ColumnEntries]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows joined from parts, with sorted indices, equal indices added up."""
    indptr = np.zeros(rows + 1, np.int64)
    for part in parts:
        indptr[1:] += part.lengths
    np.cumsum(indptr, out=indptr)
    indices, values = np.empty(indptr[-1], np.uint32), np.empty(indptr[-1], np.float32)
    cursor = indptr[:-1].copy()
    for part in parts:
        kernels.append_part(part.lengths, part.indices, part.values, cursor, indices, values)
    count = kernels.merge_rows(indptr, indices, values)
    return indptr, indices[:count], values[:count]


def as_numbers(array: Any) -> np.ndarray:
    """Return an Arrow array of numbers as float64, with NaN for nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_float64(array.type):
        array = pc.cast(array, pa.float64(), safe=False)
    numbers: np.ndarray = array.to_numpy(zero_copy_only=False)
    return numbers


def null_labels(array: Any) -> Any:
    """Return for each label the class that says if it is missing."""
    import pyarrow.compute as pc

    return pc.if_else(pc.is_null(array), NULL_LABELS[1], NULL_LABELS[0])


def _plain(column: Column, array: Any) -> Any:
    """Return a column with amounts as numbers."""
    return array if column.decimal_mark is None else amounts_of(array, column.decimal_mark)


def _not_a_number(column: Column, value: Any) -> str:
    if column.decimal_mark is None:
        return _not_finite(column, value)
    example = {".": "1,234.56", ",": "1.234,56"}[column.decimal_mark]
    shown = literal(repr(value))
    problem = f"the value {shown} in column '{short(column.name)}' is not an amount like {example}"
    return f"{problem}; correct it or leave it empty"


def _not_finite(column: Column, value: float) -> str:
    return f"the value {value} in column '{short(column.name)}' is not finite; correct it or leave it empty"


def parsed_numbers(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return (numbers, mask of cells that are not numbers) of a column of numbers or of text that contains numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        words = pc.utf8_trim_whitespace(as_strings(array))
        try:
            array = pc.cast(words, pa.float64())
        except pa.ArrowInvalid:
            array = pa.array([_number(word) for word in words.to_pylist()], pa.float64())
    numbers = as_numbers(array)
    return numbers, ~np.isfinite(numbers)


def _number(word: str | None) -> float | None:
    try:
        return float(word) if word is not None and "_" not in word else None
    except ValueError:
        return None


def _keys_of(array: Any) -> tuple[np.ndarray, dict[int, str]]:
    """Return (bits of the hashes of text labels, word of each hash)."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        array = as_strings(array).dictionary_encode()
    words = as_strings(array.dictionary).to_pylist()
    names = {key_of(word, True): word for word in words if word is not None}
    keys = np.array([0 if word is None else key_of(word, True) for word in words] or [0], np.uint64)
    codes = np.asarray(array.indices.fill_null(0))
    found = np.unique(codes)
    used = {int(key) for key in keys[found]}
    return keys[codes].view(np.float64), {key: name for key, name in names.items() if key in used}


def _single_entries(is_present: np.ndarray, indices: np.ndarray, values: np.ndarray) -> ColumnEntries:
    """Return a part with at most one entry a row."""
    if is_present.all():
        return ColumnEntries(np.ones(len(is_present), np.uint32), indices, values)
    return ColumnEntries(is_present.astype(np.uint32), indices[is_present], values[is_present])


def _entries(column: Column, array: Any, nulls: np.ndarray | None, problems: Problems) -> ColumnEntries:
    """Return the part of a column of lists of indices, of lists of (index, value), or of maps."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    kind = array.type
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(kind):
        indices, values = array.keys[first:last], array.items[first:last]
    else:
        inner = array.values[first:last]
        indices, values = inner, None
        if pa.types.is_struct(inner.type):
            index, value = fields_of_entries(inner.type)
            fields = inner.flatten()  # a null struct has null fields
            indices, values = fields[index], fields[value]
    lengths = np.diff(offsets)
    features = as_numbers(indices)
    numbers = np.ones(len(features)) if values is None else as_numbers(values)
    if nulls is not None:  # null lists may have entries, which are ignored
        is_present = np.repeat(~nulls, lengths)
        features, numbers, lengths = features[is_present], numbers[is_present], np.where(nulls, 0, lengths)
    wrong = ~((features >= 0) & (features <= LARGEST_INDEX)) | ~np.isfinite(numbers)
    if wrong.any():
        ends = np.cumsum(lengths)
        rows = np.unique(np.searchsorted(ends, np.flatnonzero(wrong), "right"))
        where = f"in column '{short(column.name)}'"
        problem = f"an index {where} is missing or not from 0 to {LARGEST_INDEX:,}, or a value is none"
        problems.add(rows, lambda _row: f"{problem}; correct it")
        features, numbers = np.where(wrong, 0, features), np.where(wrong, 0.0, numbers)
    with np.errstate(over="ignore"):
        values32 = (numbers * column.scale).astype(np.float32)
    return ColumnEntries(lengths.astype(np.uint32), features.astype(np.uint32), values32)


def fields_of_entries(kind: Any) -> tuple[int, int]:
    """Return the numbers of the fields (index, value) of a struct: by name, or the first and the second."""
    names = [kind.field(at).name for at in range(kind.num_fields)]
    return (names.index("index"), names.index("value")) if {"index", "value"} <= set(names) else (0, 1)


def refuse(name: str, problem: str) -> InputError:
    """Return the error for an input with other columns."""
    return InputError(f"{name}: {problem}")
