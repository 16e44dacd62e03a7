"""Arrays: scipy's CSR matrices in .npz files and dense .npy files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse import arrays as kernels
from ooc_pegasos.compiled.parse.weights import MAX_WEIGHT, MIN_WEIGHT
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.declared_labels import spell
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import matrices, npy
from ooc_pegasos.readers.base import (
    DESCRIBED_BAD_ROWS,
    LARGEST_INDEX,
    BadRow,
    Format,
    LoadedTask,
    Note,
    ParsedBlock,
    Reader,
    ReadOptions,
    row_location,
)
from ooc_pegasos.readers.matrices import FileSource, Matrix, Settings, labels_file
from ooc_pegasos.readers.sources import display_name
from ooc_pegasos.store.csr_block import CsrBlock, read_only
from ooc_pegasos.store.labels import key_of
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.util.buffers import Pool, Scratch

PROBLEMS = {
    kernels.INDEX_TOO_LARGE: "the column {index} is above the limit of {limit}; allow more {{features}} "
    "(at most 4,294,967,294)",
    kernels.INDEX_DUPLICATE: "the column {index} occurs twice in the row; call sum_duplicates() on the matrix first",
    kernels.VALUE_NOT_FINITE: "the value {value} in column {index} is not finite; remove the row or correct it",
    kernels.LABEL_NOT_FINITE: "the label is not finite; remove the row or correct it",
    kernels.LABEL_EMPTY: "the label is an empty word; give every row a label",
    kernels.LABEL_NOT_TEXT: "the label is not Unicode text; correct it",
    kernels.WEIGHT_OUT_OF_RANGE: "the weight is not from 1e-9 to 1e9; leave out rows that are not to count, and "
    "scale the weights of the others",
}
_VALUE_TOO_LARGE = "the value {value} in column {index} is too large for float32; scale the data"

_LONG_ROW = 1 << 20
"""Entries of a row above which a row with more entries than columns is refused before its entries are read."""


@dataclass
class _Rows:
    """The content of a task: some rows as stored in the input."""

    first: int
    columns: int
    indptr: np.ndarray | None
    indices: np.ndarray | None
    data: np.ndarray
    labels: np.ndarray | None
    weights: np.ndarray | None
    label_column: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.data) if self.indptr is None else len(self.indptr) - 1


def rows_of(matrix: Any, labels: np.ndarray | None, weights: np.ndarray | None) -> LoadedTask:
    """Return a task of all rows of a CSR matrix of scipy."""
    rows, columns = matrix.shape
    indptr = matrix.indptr.astype(np.int64)
    _check_indptr(indptr, 0, len(matrix.data), 0, "a matrix")
    content = _Rows(0, int(columns), indptr, matrix.indices, matrix.data, labels, weights, -1)
    return LoadedTask(0, int(rows), 0, content)


class ArraysFormat(Format):
    """Matrices: .npz and .npy."""

    name = "arrays"
    title = "arrays"
    suffixes = (".npz", ".npy")
    options = frozenset({"label", "labels"})
    has_plain_indices = True

    def check_options(self, config: ConvertConfig) -> None:
        """Raise UsageError for a label that is not the number of a column."""
        if config.label is not None and not config.label.removeprefix("-").isdigit():
            problem = "of arrays it is the number of a column, as 0 or -1"
            raise UsageError(f"{{label={config.label}}}: {problem}; see {{labels}} as well")

    def recipe(self, config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
        """Return the recipe of a new store."""
        recipe = super().recipe(config, names, note)
        return recipe if config.label is None else replace(recipe, label_column=int(config.label))

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open matrices."""
        settings = Settings(
            options.text_labels,
            options.labels if options.with_labels else None,
            recipe.label_column,
            options.smallest_index,
            options.largest_index,
            options.stop_at_bad,
            options.with_labels,
        )
        return ArraysReader(names, settings, options.block_size)

    def labels_are_text(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> bool:
        """True if labels are stored as words."""
        return matrices.labels_are_text(names, options.labels)


class ArraysReader:
    """Reader of arrays; a task is some rows of a file, and its `end` the number of rows up to there."""

    unit = "row"
    memory_per_byte = 6

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int) -> None:
        if settings.labels is not None and settings.label_column is not None:
            raise UsageError("labels are in a file or in a column; leave out {labels} or {label}")
        self.sources = [FileSource(name) for name in names]
        self.settings = settings
        self._block_size = max(block_size, 1)
        self._pool = Pool()
        self._headers: list[tuple[int, int, bool]] | None = None
        self._entry = 0
        """Number of entries of the current matrix in the tasks so far."""

    def features(self) -> int:
        """Return the number of columns of the widest input, empty columns included."""
        return max((columns for _rows, columns, _shared in self._read_headers()), default=0)

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[LoadedTask]:
        """Yield all tasks from a position on. The headers of all inputs are checked first."""
        needed = [rows if shared else 0 for rows, _columns, shared in self._read_headers()]
        labels = self._shared_labels(sum(needed))
        if labels is not None:
            labels.seek(sum(needed[:source]) + min(start, sum(needed[source : source + 1])), None)
        for number in range(source, len(self.sources)):
            with self.sources[number].open(self.settings) as matrix:
                own = matrix.labels is not None or matrix.label_column >= 0
                yield from self._pieces(number, matrix, None if own else labels, start, state)
            start, state = 0, None
        if labels is not None:
            labels.finish()

    def read(self, task: LoadedTask) -> ParsedBlock:
        """Check and sort the rows of a task."""
        settings, content = self.settings, task.content
        count = content.count
        scratch = self._pool.take()
        faults = scratch.array("faults", count, np.int8)
        faults[:] = 0
        labels = scratch.array("labels", count)
        texts = coded_labels(content.labels, settings.text_labels, labels, faults)
        weights = _weights_of(content, faults)
        indptr = scratch.array("indptr", count + 1, np.int64)
        kept = scratch.array("lines", count, np.int64)
        bad = np.empty((1 if settings.stop_at_bad else DESCRIBED_BAD_ROWS, 3), np.int64)
        limit = min(settings.largest_index, LARGEST_INDEX) - settings.first_index
        options = (limit, settings.stop_at_bad, indptr)
        if content.indptr is None:
            values = _as(content.data, (np.float32,), scratch, "raw values")
            entries = int(np.count_nonzero(values))
            indices = scratch.array("indices", entries, np.uint32)
            found = scratch.array("values", entries, np.float32)
            rows, bad_rows = kernels.dense_rows(
                values, read_only(faults), content.label_column, *options, indices, found, kept, bad
            )
        else:
            entries = len(content.data)
            indices = scratch.array("indices", entries, np.uint32)
            found = scratch.array("values", entries, np.float32)
            outside, row, rows, bad_rows = kernels.csr_rows(
                read_only(content.indptr),
                _as(content.indices, (np.int64, np.int32), scratch, "raw indices"),
                _as(content.data, (np.float32, np.float64), scratch, "raw values"),
                read_only(faults),
                content.columns,
                *options,
                indices,
                found,
                kept,
                bad,
            )
            if outside >= 0:
                where = row_location(display_name(self.sources[task.source].name), self.unit, content.first + row + 1)
                problem = f"the column {content.indices[outside]} is not among the {content.columns:,} of the matrix"
                raise InputError(f"{where}: {problem}; the matrix is damaged, make it again")
        problems = [self._describe(content, *row) for row in bad[:bad_rows].tolist()]
        pairs = int(indptr[rows])
        if settings.first_index:
            indices[:pairs] += np.uint32(settings.first_index)
        if rows < count:
            labels[:rows] = labels[kept[:rows]]
            weights = None if weights is None else weights[kept[:rows]]
        numbers = scratch.array("numbers", rows, np.uint32)
        numbers[:] = kept[:rows]
        names = texts(labels[:rows], kept)
        block = CsrBlock(indptr[: rows + 1], indices[:pairs], found[:pairs], labels[:rows], LARGEST_INDEX + 1, weights)
        return ParsedBlock(task, block, kept[:rows], numbers, count, problems, bad_rows, names, scratch)

    def release(self, parsed: ParsedBlock) -> None:
        """Take back the arrays of `parsed` for another block."""
        self._pool.give_back(parsed.scratch)

    def _describe(self, content: _Rows, code: int, row: int, where: int) -> BadRow:
        index, value, words = where, 0.0, PROBLEMS[code]
        if code in (kernels.INDEX_TOO_LARGE, kernels.VALUE_NOT_FINITE):
            if content.indices is not None:
                index, number = int(content.indices[where]), content.data[where]
            else:
                number = content.data[row, where]
            value = float(number)
            if code == kernels.VALUE_NOT_FINITE and np.isfinite(number):
                words = _VALUE_TOO_LARGE
        limit = self.settings.largest_index - self.settings.first_index
        shift = 1 if code == kernels.INDEX_TOO_LARGE and 0 <= content.label_column < index else 0
        return BadRow(row, words.format(index=index - shift, value=f"{value:g}", limit=f"{limit:,}"))

    def _pieces(
        self, number: int, matrix: Matrix, labels: npy.Column | None, start: int, state: dict[str, Any] | None
    ) -> Iterator[LoadedTask]:
        """Yield tasks from row `start` on; all columns but `labels`, which may be shared, skip the rows before."""
        name, parts = display_name(self.sources[number].name), matrix.parts()
        if start > matrix.rows:
            raise InputError(f"{name}: shorter than when the conversion began; start over without {{resume}}")
        self._seek(start, name, matrix, state or {})
        at = start
        taken = sum(part.bytes_read for part in parts.values())
        own = matrix.labels or labels
        while at < matrix.rows:
            matrix.check()
            if matrix.indptr is not None:
                rows = self._next_sparse(matrix, at, name)
            else:
                data = matrix.data.take(min(matrix.rows - at, max(1, self._block_size // matrix.row_bytes)))
                rows = _Rows(at, matrix.columns, None, None, data, None, None, matrix.label_column)
            if matrix.label_column >= 0 and self.settings.with_labels:
                rows.labels = rows.data[:, matrix.label_column]
            elif own is not None:
                rows.labels = own.take(rows.count)
            if matrix.weights is not None:
                rows.weights = matrix.weights.take(rows.count)
            at += rows.count
            before, taken = taken, sum(part.bytes_read for part in parts.values())
            sums = {key: part.crc for key, part in parts.items() if part.crc is not None}
            yield LoadedTask(number, at, taken - before, rows, {"crc": sums} if sums else None)
        if matrix.rows == 0 and matrix.indptr is not None:
            _check_indptr(matrix.indptr.peek(1).astype(np.int64), 0, matrix.data.length, 0, name)
        for part in parts.values():
            part.finish()
        matrix.check()

    def _seek(self, start: int, name: str, matrix: Matrix, state: dict[str, Any]) -> None:
        sums = state.get("crc", {})
        parts = matrix.parts()
        for key in parts.keys() & {"indptr", "labels", "weights"}:
            parts[key].seek(start, sums.get(key))
        entry = start
        if matrix.indptr is not None:
            entry = int(matrix.indptr.peek(1).astype(np.int64)[0]) if start else 0
            if not 0 <= entry <= matrix.data.length:
                raise npy.damaged(name, f"indptr leaves the data at row {start:,}")
        for key in parts.keys() & {"indices", "data"}:
            parts[key].seek(entry, sums.get(key))
        self._entry = entry

    def _next_sparse(self, matrix: Matrix, at: int, name: str) -> _Rows:
        """Return the rows of the next block, at least one; their number depends on the position alone."""
        assert matrix.indptr is not None
        assert matrix.indices is not None
        ahead = min(matrix.rows - at, max(1, self._block_size // matrix.row_bytes))
        indptr = matrix.indptr.peek(ahead + 1).astype(np.int64)
        _check_indptr(indptr, self._entry, matrix.data.length, at, name)
        sizes = (indptr[1:] - indptr[0]) * matrix.entry_bytes + np.arange(1, ahead + 1) * matrix.row_bytes
        count = max(1, int(np.searchsorted(sizes, self._block_size, "right")))
        entries = int(indptr[count] - indptr[0])
        if count == 1 and entries > max(matrix.columns, _LONG_ROW):
            raise InputError(
                f"{row_location(name, self.unit, at + 1)}: {entries:,} entries, but only {matrix.columns:,} "
                "columns; call sum_duplicates() on the matrix and save it again"
            )
        matrix.indptr.take(count)
        self._entry = int(indptr[count])
        indices, data = matrix.indices.take(entries), matrix.data.take(entries)
        return _Rows(at, matrix.columns, indptr[: count + 1], indices, data, None, None, -1)

    def _read_headers(self) -> list[tuple[int, int, bool]]:
        """Return (rows, columns, True if its labels are in the file of labels) of each input."""
        if self._headers is None:
            headers = []
            for source in self.sources:
                with source.open(self.settings) as matrix:
                    shared = self.settings.labels is not None and matrix.labels is None
                    headers.append((matrix.rows, matrix.columns - (matrix.label_column >= 0), shared))
            self._headers = headers
        return self._headers

    def _shared_labels(self, length: int) -> npy.Column | None:
        settings = self.settings
        if settings.labels is None or not settings.with_labels:
            return None
        if not any(shared for _rows, _columns, shared in self._read_headers()):
            raise InputError(
                f"{display_name(settings.labels)}: the inputs have labels of their own; leave out {{labels}}"
            )
        return labels_file(settings.labels, settings, length)


def _check_indptr(indptr: np.ndarray, first: int, entries: int, row: int, name: str) -> None:
    """Raise InputError unless indptr begins with `first`, never decreases and stays within the data."""
    if indptr[0] != first:
        raise InputError(
            f"{name}: indptr begins with {indptr[0]:,}, not {first:,}; the matrix is damaged, make it again"
        )
    falling = np.flatnonzero(indptr[1:] < indptr[:-1])
    wrong = int(falling[0]) if len(falling) else None
    far = np.flatnonzero(indptr > entries)
    if len(far) and (wrong is None or far[0] <= wrong + 1):
        problem = f"indptr says {indptr[far[0]]:,}, but there are only {entries:,} entries"
        raise InputError(
            f"{row_location(name, 'row', row + int(far[0]))}: {problem}; the matrix is damaged, make it again"
        )
    if wrong is not None:
        problem = f"indptr decreases from {indptr[wrong]:,} to {indptr[wrong + 1]:,}"
        raise InputError(
            f"{row_location(name, 'row', row + wrong + 1)}: {problem}; the matrix is damaged, make it again"
        )


def _as(array: np.ndarray, kinds: Sequence[Any], scratch: Scratch, name: str) -> np.ndarray:
    """Return the array for compiled functions: of an allowed type, else of the first, aligned, C order, read-only."""
    if array.dtype not in kinds or not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        plain = scratch.array(name, array.size, kinds[0]).reshape(array.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # compiled functions report infinite values
            np.copyto(plain, array, casting="unsafe")
        array = plain
    view: np.ndarray = read_only(array)
    return view


def _weights_of(content: _Rows, faults: np.ndarray) -> np.ndarray | None:
    """Return the weights of rows or None; rows with invalid weights are marked in `faults`."""
    if content.weights is None:
        return None
    weights = content.weights.astype(np.float64)
    faults[(faults == 0) & ~((weights >= MIN_WEIGHT) & (weights <= MAX_WEIGHT))] = kernels.WEIGHT_OUT_OF_RANGE
    with np.errstate(over="ignore"):
        return weights.astype(np.float32)


def coded_labels(
    raw: np.ndarray | None, text_labels: bool, labels: np.ndarray, faults: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], dict[int, str]]:
    """Put labels, or the bits of their hashes, into `labels`, and mark faults.

    Returns the function that returns the names for the rows kept.
    """
    if raw is None:
        labels[:] = 0
        return no_names
    if raw.dtype.kind == "U":
        words = np.require(raw, raw.dtype.newbyteorder("="), ["C", "A"])
        points = words.view(np.uint32).reshape(len(labels), -1)
        kernels.hash_words(read_only(points), labels.view(np.uint64), faults)
        return lambda kept_labels, kept: _words(words, kept_labels, kept)
    if raw.dtype.kind == "f":
        faults[~np.isfinite(raw)] = kernels.LABEL_NOT_FINITE
    if not text_labels:
        with np.errstate(over="ignore"):
            labels[:] = raw
        labels += 0.0  # -0 is 0
        faults[~np.isfinite(labels)] = kernels.LABEL_NOT_FINITE  # labels of more than 64 bits may overflow
        return no_names
    distinct, which = np.unique(np.where(faults == 0, raw, raw.dtype.type(0)), return_inverse=True)
    spelled = [spell(float(x)) if raw.dtype.kind == "f" else str(int(x)) for x in distinct.tolist()]
    keys = np.array([key_of(text, True) for text in spelled], np.uint64)
    labels.view(np.uint64)[:] = keys[which.reshape(-1)]
    known = dict(zip(keys.tolist(), spelled, strict=True))
    return lambda kept_labels, _kept: {key: known[key] for key in np.unique(kept_labels.view(np.uint64)).tolist()}


def no_names(labels: np.ndarray, kept: np.ndarray) -> dict[int, str]:
    """Return nothing: labels are numbers."""
    return {}


def _words(words: np.ndarray, labels: np.ndarray, kept: np.ndarray) -> dict[int, str]:
    """Return the word of each hash, in order of occurrence."""
    distinct, first = np.unique(labels.view(np.uint64), return_index=True)
    return {key: str(words[kept[row]]) for row, key in sorted(zip(first.tolist(), distinct.tolist(), strict=True))}
