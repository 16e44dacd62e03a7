"""svmlight / libsvm text: `label [qid:n] index:value ... # comment`, one row a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.compiled.parse import svmlight as kernels
from ooc_pegasos.errors import InputError, literal
from ooc_pegasos.readers.base import (
    DEFAULT_MEMORY,
    DESCRIBED_BAD_ROWS,
    LARGEST_INDEX,
    BadRow,
    Format,
    ParsedBlock,
    Reader,
    ReadOptions,
)
from ooc_pegasos.readers.sources import TextBlock, display_name
from ooc_pegasos.readers.text_reader import NotUtf8Error, RowArrays, TextReader, name_labels
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.util.buffers import Scratch

PROBLEMS = {
    kernels.LABEL_NOT_NUMBER: "the label {token} is not a number; correct it, or if labels are words "
    "name them with {{classes}}, or if every line is a document give {{format=text-lines}}",
    kernels.LABEL_NOT_FINITE: "the label {token} is not finite; remove the row or correct it",
    kernels.LABEL_MISSING: "the row begins with {token}, not with a label; put the label first",
    kernels.LABEL_SEVERAL: "{token} is more than one label; give every row one",
    kernels.PAIR_MALFORMED: "{token} is not of the form index:value; correct it, or if this is "
    "another format name it: {{format=csv}} for columns, {{format=text-lines}} for a document a line",
    kernels.INDEX_NEGATIVE: "negative index in {token}; indices start at 0 or 1",
    kernels.INDEX_TOO_SMALL: "index 0 in 1-based data, {token}; correct it or convert with {{index_base=0}}",
    kernels.INDEX_TOO_LARGE: "the index in {token} is above the limit of {limit}; correct it or allow more "
    "{{features}} (at most 4,294,967,294)",
    kernels.INDEX_DUPLICATE: "the index in {token} occurs twice in the row; correct it",
    kernels.INDEX_DECREASING: "the index in {token} is below the one before it; sort the row",
    kernels.VALUE_NOT_NUMBER: "the value in {token} is not a number; correct it",
    kernels.VALUE_NOT_FINITE: "the value in {token} is not finite; remove the row or correct it",
    kernels.VALUE_TOO_LARGE: "the value in {token} is too large for float32; scale the data",
    kernels.NUL_BYTE: "a zero byte, so the file is not text; check that it is an svmlight file",
}


@dataclass(frozen=True)
class Settings:
    """Options of the reader, all fixed before the first row."""

    text_labels: bool = False
    smallest_index: int = 0
    largest_index: int = LARGEST_INDEX
    stop_at_bad: bool = True


class SvmlightFormat(Format):
    """Svmlight text."""

    name = "svmlight"
    title = "svmlight text"
    suffixes = (".svm", ".svmlight", ".libsvm")
    options = frozenset({"index_base"})
    is_text = True
    has_plain_indices = True

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open text files."""
        # without labels any word may be in their place, so that files to be predicted can hold a placeholder
        text_labels = options.text_labels or not options.with_labels
        settings = Settings(text_labels, options.smallest_index, options.largest_index, options.stop_at_bad)
        return SvmlightReader(names, settings, options.block_size, options.memory)


class SvmlightReader(TextReader):
    """Reader of svmlight text."""

    memory_per_byte = 8

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int, memory: int = DEFAULT_MEMORY) -> None:
        super().__init__(names, block_size, memory, SvmlightFormat.title)
        self.settings = settings

    def parse(self, task: TextBlock, scratch: Scratch) -> ParsedBlock:
        """Parse a block."""
        settings = self.settings
        text, length = read_only(task.text), task.length
        feeds, colons = kernels.count_lines_and_pairs(text[:length])
        arrays = RowArrays.of(scratch, feeds + 1, colons + 1)
        spans = np.empty((feeds + 1 if settings.text_labels else 0, 2), np.int64)
        bad = np.empty((1 if settings.stop_at_bad else DESCRIBED_BAD_ROWS, 3), np.int64)
        rows, bad_lines, line_count = kernels.parse_svmlight(
            text,
            length,
            settings.text_labels,
            settings.smallest_index,
            settings.largest_index,
            settings.stop_at_bad,
            arrays.labels,
            arrays.indptr,
            arrays.indices,
            arrays.values,
            arrays.lines,
            arrays.numbers,
            spans,
            bad,
        )
        lines, numbers = arrays.lines[:rows], arrays.numbers[:rows]
        problems = [self._describe(text, row) for row in bad[:bad_lines]]
        names: dict[int, str] = {}
        if settings.text_labels:
            try:
                names = name_labels(text, spans[:rows], arrays.labels[:rows])
            except NotUtf8Error as wrong:
                if not settings.stop_at_bad:  # labels that have no name cannot be compared, so no row can be skipped
                    raise InputError(f"{display_name(self.sources[task.source].name)}: {wrong}") from wrong
                problems.append(BadRow(int(lines[wrong.row]), str(wrong)))
                problems.sort(key=lambda bad_row: bad_row.line)
                bad_lines = len(problems)
        block = arrays.block(rows)
        return ParsedBlock(task, block, lines, numbers, line_count, problems, bad_lines, names, scratch)

    def _describe(self, text: np.ndarray, bad: np.ndarray) -> BadRow:
        code, line, at = (int(x) for x in bad)
        excerpt = text[at : at + 41].tobytes().partition(b"\n")[0]
        token = literal((excerpt.split() or [excerpt])[0].decode("ascii", "backslashreplace"))
        limit = self.settings.largest_index
        return BadRow(line, PROBLEMS[code].format(token=f"'{token}'", limit=f"{limit:,}"))
