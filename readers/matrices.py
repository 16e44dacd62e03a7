"""Open files with matrices: scipy's CSR in .npz, dense .npy, and the files of their labels."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ooc_pegasos.compiled.parse import arrays as kernels
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import npy
from ooc_pegasos.readers.base import LARGEST_INDEX, TO_UTF8, looks_like_a_number
from ooc_pegasos.readers.number_lines import NumberLines
from ooc_pegasos.readers.sources import STDIN, Stamp, TextSource, display_name, hash_of, samples_of, stamp_of
from ooc_pegasos.store.manifest import SourceInfo

_LINE_PROBLEMS = {
    kernels.EMPTY: "an empty line where a label should be; give every row of the inputs one",
    kernels.NO_NUMBER: "the label '{token}' is not a number; correct it, or name words with {{classes}}",
    kernels.MORE_THAN_ONE: "'{token}' after the label; give one number a line",
}

_LABEL_MEMBERS = ("labels", "y")
_LONGEST_WORD = 400
"""Bytes of a label in a text file; numpy pads all words of an array to the longest."""


@dataclass(frozen=True)
class Settings:
    """Options of the reader, all fixed before the first row."""

    text_labels: bool = False
    labels: str | None = None
    """A .npy file, or text with a label a line: labels of the rows of all inputs that have none themselves."""
    label_column: int | None = None
    """The column of dense arrays that is the label, from the end if negative; later columns move up."""
    first_index: int = 0
    """Index of the first column: 1 where the store or the model counts from 1."""
    largest_index: int = LARGEST_INDEX
    stop_at_bad: bool = True
    with_labels: bool = True
    """If False, labels and weights are not read, and all labels are 0."""


@dataclass
class Matrix:
    """An open input."""

    rows: int
    columns: int
    data: npy.Column
    """Entries, or rows of a dense array, which has no `indptr` and no `indices`."""
    row_bytes: int
    indptr: npy.PeekableColumn | None = None
    indices: npy.Column | None = None
    entry_bytes: int = 0
    labels: npy.Column | None = None
    weights: npy.Column | None = None
    label_column: int = -1
    """Number of the column of labels, or -1."""
    check: Callable[[], None] = lambda: None
    """Raises InputError if the input has changed since it was opened."""

    def parts(self) -> dict[str, npy.Column]:
        """Return the columns of the file."""
        named = ("indptr", "indices", "data", "labels", "weights")
        return {name: part for name in named if (part := getattr(self, name)) is not None}


class FileSource:
    """An .npz or .npy file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stamp: Stamp | None = None

    def info(self, rows: int) -> SourceInfo:
        """Return the fingerprint of the file, all of which was read."""
        name_shown, before = display_name(self.name), self._stamp or stamp_of(self.name)
        with npy.decoding_errors(name_shown):
            digest, samples = hash_of(self.name), samples_of(self.name)
        npy.check_unchanged(self.name, before)
        return SourceInfo(name_shown, before.size, digest, rows, samples=samples)

    @contextmanager
    def open(self, settings: Settings) -> Iterator[Matrix]:
        """Open the file and check its headers."""
        name_shown = display_name(self.name)
        with ExitStack() as stack:
            file = stack.enter_context(npy.open_array(self.name))
            stamp = self._stamp = Stamp.of(os.fstat(file.fileno()))
            if not stamp.regular:
                raise InputError(f"{name_shown}: arrays are read from files alone; save it to one and name that")
            head = file.read(6)
            if head[:4] in (npy.ZIP, npy.EMPTY_ZIP):
                matrix = _sparse(npy.Archive(name_shown, file, stamp.size, stack), settings, name_shown)
            elif head == npy.NPY:
                matrix = _dense(npy.map_npy(file, stamp.size, name_shown), settings, name_shown)
            else:
                raise InputError(
                    f"{name_shown}: neither an .npz nor a .npy file; check how it was made, or {npy.SAVE_AGAIN}"
                )
            matrix.check = lambda: npy.check_unchanged(self.name, stamp)
            yield matrix


def _sparse(archive: npy.Archive, settings: Settings, name: str) -> Matrix:
    """Open a file of scipy's save_npz, with labels and weights as further members."""
    if settings.label_column is not None:
        raise InputError(f"{name}: a sparse matrix has no label column; add a member 'labels' or give {{labels}}")
    kind = archive.small("format")
    if kind is None or kind.dtype.kind not in "SU" or kind.size != 1:
        raise InputError(f"{name}: no matrix of scipy's; save it with scipy.sparse.save_npz(file, matrix.tocsr())")
    spelled = str(np.char.decode(kind, "latin1").item() if kind.dtype.kind == "S" else kind.item())
    if spelled != "csr":
        raise InputError(f"{name}: a matrix in the format {spelled!r}; save it as CSR: matrix.tocsr()")
    shape = archive.small("shape")
    if shape is None or shape.dtype.kind not in "iu" or shape.shape != (2,) or shape.min() < 0:
        raise npy.damaged(name, "the member shape does not hold two counts")
    rows, columns = map(int, shape)
    indptr = archive.column("indptr", "iu", rows + 1)
    indices = archive.column("indices", "iu", None)
    data = archive.column("data", "biuf", indices.length)
    entry, row = indices.dtype.itemsize + data.dtype.itemsize, indptr.dtype.itemsize + 8
    matrix = Matrix(rows, columns, data, row, indptr, indices, entry)
    if settings.with_labels:
        found = next((member for member in _LABEL_MEMBERS if member in archive), None)
        if found is not None:
            matrix.labels = archive.column(found, "biufU", rows)
            _check_words(matrix.labels, settings, name)
        elif settings.labels is None:
            raise InputError(f"{name}: no labels; save them as a member 'labels' or name their file with {{labels}}")
        matrix.weights = archive.column("weights", "biuf", rows) if "weights" in archive else None
    return matrix


def _dense(array: np.ndarray, settings: Settings, name: str) -> Matrix:
    """Open an array of two dimensions."""
    if array.ndim != 2:
        raise InputError(f"{name}: an array of {array.ndim} dimensions; save a row for each example: two dimensions")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: an array of type {array.dtype}; save real numbers")
    rows, columns = array.shape
    matrix = Matrix(rows, columns, npy.Array(array), array.dtype.itemsize * columns + 8)
    if settings.label_column is not None:
        matrix.label_column = settings.label_column + (columns if settings.label_column < 0 else 0)
        if not 0 <= matrix.label_column < columns:
            problem = f"no column {settings.label_column} among {columns:,} (the first is 0)"
            raise InputError(f"{name}: {problem}; correct {{label}}")
    elif settings.with_labels and settings.labels is None:
        raise InputError(
            f"{name}: no labels; name their file with {{labels}} or their column with {{label}}, as a number"
        )
    return matrix


def _check_words(labels: npy.Column, settings: Settings, name: str) -> None:
    if labels.dtype.kind == "U" and not settings.text_labels:
        raise InputError(f"{name}: the labels are words; name them with {{classes}}")


class _TextLabels(NumberLines):
    """Labels in a text file with a number a line."""

    content = "labels"
    problems = _LINE_PROBLEMS
    dtype: np.dtype[Any] = np.dtype(np.float64)
    crc: int | None = None
    bytes_read = 0

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name)
        self.length = length

    def parse(self, text: np.ndarray, at: int, end: int, out: np.ndarray) -> tuple[int, int, int]:
        """See `NumberLines`."""
        return kernels.parse_labels(text, at, end, out)

    def take(self, count: int) -> np.ndarray:
        labels = np.empty(count)
        return labels if self.fill(labels) == count else self.refuse_end()

    def refuse_end(self) -> NoReturn:
        """Raise InputError for a file with too few labels."""
        rows = f"there are {self.length:,} rows" if self.length else "the inputs have more lines"
        problem = f"the labels end after {self.rows_read:,}, but {rows}"
        raise InputError(f"{display_name(self.name)}: {problem}; give every row of the inputs one, in their order")

    def seek(self, position: int, crc: int | None) -> None:
        while self.rows_read < position:
            self.take(min(npy.STEP, position - self.rows_read))

    def finish(self) -> None:
        if not self.is_at_end:
            raise self.error(
                f"a label too many: there are {self.rows_read:,} rows; "
                "give every row of the inputs that have no labels of their own one, in their order"
            )


class _TextWords(_TextLabels):
    """Labels in a text file with a label a line, which may have spaces within."""

    dtype = np.dtype(np.str_)

    def fill_words(self, count: int) -> Iterator[np.ndarray]:
        """Yield the next labels, up to `count`, in arrays."""
        while count and (block := self._unread()):
            text = block.text[self._at : block.length]
            ends = np.flatnonzero(text == 10)[:count] + 1
            lengths = np.diff(ends, prepend=0)
            if (lengths > _LONGEST_WORD).any():
                self.rows_read += int(np.argmax(lengths > _LONGEST_WORD))
                raise self.error(f"a label of more than {_LONGEST_WORD} bytes; check that it is the file of labels")
            piece = text[: ends[-1]].tobytes()
            if b"\0" in piece:
                self.rows_read += piece[: piece.index(b"\0")].count(b"\n")
                raise self.error("a zero byte, so this is not text; check that it is the file of labels")
            try:
                words = np.char.strip(np.array(piece.decode().split("\n")[:-1]))
            except UnicodeDecodeError as error:
                self.rows_read += piece[: error.start].count(b"\n")
                raise self.error(f"invalid UTF-8; {TO_UTF8}") from None
            if (words == "").any():
                self.rows_read += int(np.argmax(words == ""))
                raise self.error(_LINE_PROBLEMS[kernels.EMPTY])
            self._at += int(ends[-1])
            self.rows_read += len(words)
            count -= len(words)
            yield words

    def take(self, count: int) -> np.ndarray:
        words = np.concatenate([np.empty(0, self.dtype), *self.fill_words(count)])
        return words if len(words) == count else self.refuse_end()


def _first_is_word(name: str) -> bool:
    """True if the first label of a text file is a word."""
    blocks = TextSource(name, 0, _LONGEST_WORD, deque()).blocks()
    text = next((block.text[: block.length].tobytes() for block in blocks), b"0")
    blocks.close()
    return not looks_like_a_number(text.partition(b"\n")[0].decode(errors="replace"))


def labels_file(name: str, settings: Settings, length: int | None) -> npy.Column:
    """Open the file of labels and check its length."""
    name_shown = display_name(name)
    with npy.open_array(name) as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        with npy.decoding_errors(name_shown):
            head = file.read(6) if stamp.regular else b""
        if head != npy.NPY:
            return (_TextWords if settings.text_labels else _TextLabels)(name, length or 0)
        array = npy.map_npy(file, stamp.size, name_shown)
    npy.check_column(array.shape, array.dtype, name_shown, "the array", "biufU")
    labels = npy.Array(array.reshape(-1), lambda: npy.check_unchanged(name, stamp))
    _check_words(labels, settings, name_shown)
    if length is not None and labels.length != length:
        problem = f"{labels.length:,} labels where the inputs have {length:,} rows without one of their own"
        raise InputError(f"{name_shown}: {problem}; give each of those one, in their order")
    return labels


def labels_are_text(names: Sequence[str], labels: str | None = None) -> bool:
    """True if the labels of the inputs, or in the file of labels, are words, by the first array of labels."""
    settings = Settings(text_labels=True, labels=labels or STDIN)  # prevents an error for inputs without labels
    for name in names:
        with FileSource(name).open(settings) as matrix:
            if matrix.labels is not None:
                return matrix.labels.dtype.kind == "U"
    return labels is not None and file_has_words(labels)


def file_has_words(labels: str) -> bool:
    """True if the labels in a file are words, by the first."""
    found = labels_file(labels, Settings(text_labels=True), None)
    if isinstance(found, _TextWords):
        found.close()
        return stamp_of(labels).regular and _first_is_word(labels)
    return found.dtype.kind == "U"
