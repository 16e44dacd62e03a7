"""svmlight / libsvm text: `label [qid:n] index:value ... # comment`, one row a line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse import svmlight as kernels
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.base import DESCRIBED_BAD_ROWS, LARGEST_INDEX, BadRow, ParsedBlock, Reader
from ooc_pegasos.readers.sources import DEFAULT_MEMORY, TextBlock, TextSource, spoken
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.util.buffers import Pool

NAME = "svmlight"

PROBLEMS = {
    kernels.LABEL_NOT_NUMBER: "the label {token} is not a number; correct it, or if labels are words "
    "name them with --classes",
    kernels.LABEL_NOT_FINITE: "the label {token} is not finite; remove the row or correct it",
    kernels.LABEL_MISSING: "the row begins with {token}, not with a label; put the label first",
    kernels.LABEL_SEVERAL: "{token} is more than one label; give every row one",
    kernels.PAIR_MALFORMED: "{token} is not of the form index:value; correct it",
    kernels.INDEX_NEGATIVE: "negative index in {token}; indices start at 0 or 1",
    kernels.INDEX_TOO_SMALL: "index 0 in 1-based data, {token}; correct it or convert with --index-base 0",
    kernels.INDEX_TOO_LARGE: "the index in {token} is above the limit of {limit}; correct it or allow more "
    "--features (at most 4,294,967,294)",
    kernels.INDEX_DUPLICATE: "the index in {token} stands twice in the row; correct it",
    kernels.INDEX_DECREASING: "the index in {token} is below the one before it; sort the row",
    kernels.VALUE_NOT_NUMBER: "the value in {token} is not a number; correct it",
    kernels.VALUE_NOT_FINITE: "the value in {token} is not finite; remove the row or correct it",
    kernels.VALUE_TOO_LARGE: "the value in {token} is too large for float32; scale the data",
    kernels.NUL_BYTE: "a zero byte, so this is not text; check that it is an svmlight file",
}


@dataclass(frozen=True)
class Settings:
    """How to read the text; all of it is fixed before the first row."""

    text_labels: bool = False
    smallest_index: int = 0
    largest_index: int = LARGEST_INDEX
    stop_at_bad: bool = True


class _NotUtf8Error(ValueError):
    """A label of bytes that are no text, and its row in the block."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


class SvmlightReader:
    """See `Reader`; a task is a block of whole lines."""

    unit = "line"
    memory_per_byte = 8

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int, memory: int = DEFAULT_MEMORY) -> None:
        self.settings = settings
        self._spare: deque[np.ndarray] = deque()
        self._pool = Pool()
        self.sources = [
            TextSource(name, i, block_size, self._spare, memory=memory, line_memory=self.memory_per_byte)
            for i, name in enumerate(names)
        ]

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[TextBlock]:
        """All blocks from a position on."""
        for number in range(source, len(self.sources)):
            yield from self.sources[number].blocks(start, state)
            start, state = 0, None

    def read(self, task: TextBlock) -> ParsedBlock:
        """Parse one block; afterwards its text buffer is used for another one."""
        settings = self.settings
        text, length = task.text, task.length
        feeds, colons = kernels.count_lines_and_pairs(_read_only(text[:length]))
        scratch = self._pool.take()
        labels = scratch.array("labels", feeds + 1)
        indptr = scratch.array("indptr", feeds + 2, np.int64)
        indices = scratch.array("indices", colons + 1, np.uint32)
        values = scratch.array("values", colons + 1, np.float32)
        lines = scratch.array("lines", feeds + 1, np.int64)
        numbers = scratch.array("numbers", feeds + 1, np.uint32)
        spans = np.empty((feeds + 1 if settings.text_labels else 0, 2), np.int64)
        bad = np.empty((1 if settings.stop_at_bad else DESCRIBED_BAD_ROWS, 3), np.int64)
        rows, bad_lines, line_count = kernels.parse_svmlight(
            _read_only(text),
            length,
            settings.text_labels,
            settings.smallest_index,
            settings.largest_index,
            settings.stop_at_bad,
            labels,
            indptr,
            indices,
            values,
            lines,
            numbers,
            spans,
            bad,
        )
        problems = [self._describe(text, row) for row in bad[:bad_lines]]
        names: dict[int, str] = {}
        if settings.text_labels:
            try:
                names = self._name_labels(text, spans, labels[:rows])
            except _NotUtf8Error as wrong:
                if not settings.stop_at_bad:  # such rows cannot be told apart by name, so they cannot be skipped
                    raise InputError(f"{spoken(self.sources[task.source].name)}: {wrong}") from wrong
                problems.append(BadRow(int(lines[wrong.row]), str(wrong)))
                problems.sort(key=lambda bad_row: bad_row.line)
                bad_lines = len(problems)
        self._spare.append(text)
        pairs = int(indptr[rows])
        block = CsrBlock(indptr[: rows + 1], indices[:pairs], values[:pairs], labels[:rows], LARGEST_INDEX + 1)
        return ParsedBlock(task, block, lines[:rows], numbers[:rows], line_count, problems, bad_lines, names, scratch)

    def release(self, parsed: ParsedBlock) -> None:
        """The arrays of `parsed` may be used for another block."""
        self._pool.give_back(parsed.scratch)

    def _name_labels(self, text: np.ndarray, spans: np.ndarray, labels: np.ndarray) -> dict[int, str]:
        hashes = labels.view(np.uint64)
        kernels.hash_spans(_read_only(text), spans, len(labels), hashes)
        distinct, first = np.unique(hashes, return_index=True)
        names = {}
        for row, key in sorted(zip(first.tolist(), distinct.tolist(), strict=True)):
            raw = text[spans[row, 0] : spans[row, 1]].tobytes()
            try:
                names[key] = raw.decode()
            except UnicodeDecodeError:
                raise _NotUtf8Error(
                    row, f"the label {raw[:40]!r} is not UTF-8 text; convert the file to UTF-8"
                ) from None
        return names

    def _describe(self, text: np.ndarray, bad: np.ndarray) -> BadRow:
        code, line, at = (int(x) for x in bad)
        excerpt = text[at : at + 41].tobytes().partition(b"\n")[0]
        token = (excerpt.split() or [excerpt])[0].decode("ascii", "backslashreplace")
        limit = self.settings.largest_index
        return BadRow(line, PROBLEMS[code].format(token=f"'{token}'", limit=f"{limit:,}"))


def labels_are_text(names: Sequence[str], memory: int = DEFAULT_MEMORY) -> bool:
    """Whether the first rows that can be read have words for labels: no number among those of their block."""
    reader = SvmlightReader(names, Settings(text_labels=True, stop_at_bad=False), 1 << 16, memory)
    try:
        return are_words(reader)
    except InputError:
        return False  # the first such row will be refused where it stands


def are_words(reader: Reader) -> bool:
    """True if none of the first labels that can be read is a number."""
    for task in reader.tasks():
        if found := reader.read(task).names.values():
            return not any(looks_like_a_number(name) for name in found)
    return False


def looks_like_a_number(word: str) -> bool:
    """Whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_only(array: np.ndarray) -> np.ndarray:
    """A view that numba compiles for once, whether the array behind it may be written or not."""
    view = array.view()
    view.flags.writeable = False
    return view
