"""Lines of text: a document a line, its label before a tab, as `__label__x` in front, or in a file of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse import documents as kernels
from ooc_pegasos.compiled.parse.vw import gather_spans
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import InputError, literal
from ooc_pegasos.readers import matrices, npy
from ooc_pegasos.readers.arrays import PROBLEMS as PROBLEMS_OF_LABELS
from ooc_pegasos.readers.arrays import coded_labels, no_names
from ooc_pegasos.readers.base import (
    TO_UTF8,
    BadRow,
    Format,
    Note,
    ParsedBlock,
    Reader,
    ReadOptions,
    fixed_features,
    refuse_no_hash,
    tokens_of,
)
from ooc_pegasos.readers.feature_names import UnnamedBuckets
from ooc_pegasos.readers.hash_size import hashing_of
from ooc_pegasos.readers.sources import TextBlock, display_name
from ooc_pegasos.readers.text_reader import TextReader, name_labels
from ooc_pegasos.readers.tokens import TextHasher
from ooc_pegasos.readers.vectorize import Problems, parsed_numbers
from ooc_pegasos.store.csr_block import CsrBlock, read_only
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.recipe import Hashing, Tokens
from ooc_pegasos.util.buffers import Scratch

_PROBLEMS = {
    kernels.LABEL_MISSING: "no label; put it first, with a tab after it, or name the file of labels with {labels}",
    kernels.LABEL_SEVERAL: "several labels; give every line one",
}
_IN_LINE = 0
"""The `label_column` of recipes whose lines begin with labels."""


@dataclass
class _Lines(TextBlock):
    """A block with the labels of its lines, if these are in a file of their own."""

    labels: np.ndarray | None = None


class LinesFormat(Format):
    """Text with a document a line."""

    name = "text-lines"
    title = "lines of text"
    suffixes = (".ft.txt",)
    options = frozenset(
        {"dictionary", "idf", "ngrams", "characters", "hash_bits", "hash_signed", "feature_names", "labels"}
    )
    is_text = True

    def detect(self, first_bytes: bytes, name: str) -> bool:
        """True if a file begins with a label of fastText."""
        return first_bytes.startswith(b"__label_") or super().detect(first_bytes, name)

    def check_options(self, config: ConvertConfig) -> None:
        """Raise UsageError for values that an option cannot have with texts."""
        refuse_no_hash(config, self.title)

    def recipe(self, config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
        """Return the recipe of a new store."""
        hashing, recipe = hashing_of(config, names), super().recipe(config, names, note)
        features, column = fixed_features(hashing.buckets, config), None if config.labels else _IN_LINE
        return replace(recipe, hashing=hashing, tokens=tokens_of(config), features=features, label_column=column)

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open text files."""
        return LinesReader(names, recipe, options)

    def labels_are_text(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> bool:
        """True if the first label is a word."""
        if options.labels is not None:
            return matrices.file_has_words(options.labels)
        return super().labels_are_text(names, recipe, options)


class LinesReader(TextReader):
    """Reader of text with a document a line."""

    memory_per_byte = 10

    def __init__(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> None:
        super().__init__(names, options.block_size, options.memory, LinesFormat.title)
        self.hasher = TextHasher(recipe.tokens or Tokens(), recipe.hashing or Hashing(), options.vocabulary)
        self._unnamed = UnnamedBuckets(
            self.hasher.features, 0 if self.hasher.hashing.dictionary else options.feature_names
        )
        self._options = options
        self._labels = options.labels if options.with_labels else None
        self._has_own_labels = recipe.label_column == _IN_LINE and self._labels is None

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[TextBlock]:
        """Yield all blocks from a position on, with the labels of their lines."""
        if self._labels is None:
            if self._options.with_labels and not self._has_own_labels:
                where = display_name(self.sources[source].name)
                raise InputError(f"{where}: no labels; name the file of labels with {{labels}}")
            yield from super().tasks(source, start, state)
            return
        state = state or {"rows": 0, "hash": None}
        labels = matrices.labels_file(self._labels, matrices.Settings(self._options.text_labels), None)
        labels.seek(state["rows"], None)
        rows = state["rows"]
        for block in super().tasks(source, start, state["hash"]):
            count = int(np.count_nonzero(block.text[: block.length] == 10))
            found = labels.take(count)
            if len(found) < count:
                raise self._wrong_number(f"end after {rows + len(found):,}, and the inputs have more lines")
            rows += count
            yield _Lines(**vars(block) | {"hash_state": {"rows": rows, "hash": block.hash_state}}, labels=found)
        labels.finish()
        if isinstance(labels, npy.Array) and labels.length > rows:
            raise self._wrong_number(f"are {labels.length:,}, and the inputs have {rows:,} lines")

    def parse(self, task: TextBlock, scratch: Scratch) -> ParsedBlock:
        """Parse a block."""
        spans, texts, lines, problems = self._cut(task)
        labels, names_of = self._labels_of(task, spans, problems)
        good = np.flatnonzero(~problems.bad)
        labels = labels[good]
        strings, features = _strings(task.text, texts[good]), self._unnamed.new()
        self._unnamed.name_words(self.hasher, strings, features)
        lengths, indices, values = self.hasher.part(strings)
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return ParsedBlock(
            task,
            CsrBlock(indptr, indices, values, labels, self.hasher.features),
            lines[good],
            good.astype(np.uint32),
            _lines_in(task),
            [BadRow(int(lines[row.line]), row.problem) for row in problems.described()],
            int(problems.bad.sum()),
            names_of(labels, good),
            scratch,
            features=features,
        )

    def strings(self, task: TextBlock) -> Iterator[tuple[None, Any]]:
        """Yield the texts of a block, as `TablesReader.strings` does."""
        _spans, texts, _lines, problems = self._cut(task)
        yield None, _strings(task.text, texts[~problems.bad])

    def search(self, buckets: np.ndarray) -> None:
        """Record the names of some buckets alone."""
        self._unnamed.only(buckets)

    def named(self, features: dict[int, str]) -> None:
        """Record names of buckets."""
        self._unnamed.named(features)

    def _wrong_number(self, problem: str) -> InputError:
        return InputError(f"{display_name(str(self._labels))}: the labels {problem}; give every line one, in order")

    def _cut(self, task: TextBlock) -> tuple[np.ndarray, np.ndarray, np.ndarray, Problems]:
        """Return (span of the label, span of the text, line) of each row, and the problems of rows."""
        most = _lines_in(task)
        spans, texts = np.empty((most, 2), np.int64), np.empty((most, 2), np.int64)
        lines, status = np.empty(most, np.int64), np.empty(most, np.int8)
        rows = kernels.cut_lines(
            read_only(task.text), task.length, self._has_own_labels, kernels.PREFIX, spans, texts, lines, status
        )
        spans, texts, lines, problems = spans[:rows], texts[:rows], lines[:rows], Problems(rows)
        if self._options.with_labels:
            bad = np.flatnonzero(status[:rows] != kernels.SOUND)
            problems.add(bad, lambda row: _PROBLEMS[int(status[row])])
        if not _is_utf8(task):
            wrong = [row for row in range(rows) if not _can_be_decoded(task, spans[row], texts[row])]
            problems.add(np.array(wrong, np.int64), lambda _row: f"not UTF-8 text; {TO_UTF8}")
        return spans, texts, lines, problems

    def _labels_of(
        self, task: TextBlock, spans: np.ndarray, problems: Problems
    ) -> tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], dict[int, str]]]:
        """Return (labels or the bits of their hashes, function that returns the names for the rows kept)."""
        labels, text_labels = np.zeros(len(spans)), self._options.text_labels
        if isinstance(task, _Lines):
            faults = np.zeros(len(spans), np.int8)
            names_of = coded_labels(task.labels, text_labels, labels, faults)
            problems.add(np.flatnonzero(faults), lambda row: PROBLEMS_OF_LABELS[int(faults[row])])
            return labels, names_of
        if not self._options.with_labels:
            return labels, no_names
        spans = np.where(problems.bad[:, None], 0, spans)
        if text_labels:
            names = name_labels(task.text, spans, labels)
            return labels, lambda _labels, _kept: names
        words = _strings(task.text, spans)
        labels, wrong = parsed_numbers(words)
        advice = "is not a finite number; correct it, or if labels are words name them with {classes}"
        problems.add(
            np.flatnonzero(wrong & ~problems.bad), lambda row: f"the label {literal(repr(words[row].as_py()))} {advice}"
        )
        return np.where(wrong, 0.0, labels) + 0.0, no_names  # -0 is 0


def _lines_in(task: TextBlock) -> int:
    return int(np.count_nonzero(task.text[: task.length] == 10))


def _strings(text: np.ndarray, spans: np.ndarray) -> Any:
    """Return parts of a text as an Arrow array."""
    import pyarrow as pa

    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    gather_spans(read_only(text), spans, offsets, data)
    return pa.LargeStringArray.from_buffers(len(spans), *map(pa.py_buffer, (offsets, data)))


def _is_utf8(task: TextBlock) -> bool:
    import pyarrow as pa

    ends = np.array([0, task.length])
    try:
        pa.LargeStringArray.from_buffers(1, *map(pa.py_buffer, (ends, task.text))).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _can_be_decoded(task: TextBlock, *spans: np.ndarray) -> bool:
    try:
        for begin, end in spans:
            task.text[begin:end].tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True
