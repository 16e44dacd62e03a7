"""The common part of readers of text whose rows are lines: blocks of whole lines, arrays for their rows, labels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse.svmlight import hash_spans
from ooc_pegasos.errors import literal
from ooc_pegasos.readers.base import DEFAULT_MEMORY, LARGEST_INDEX, TO_UTF8, ParsedBlock, chained
from ooc_pegasos.readers.sources import TextBlock, TextSource
from ooc_pegasos.store.csr_block import CsrBlock, read_only
from ooc_pegasos.util.buffers import Pool, Scratch


class TextReader:
    """See `Reader`; a task is a block of whole lines. A subclass parses it."""

    unit = "line"
    memory_per_byte = 16

    def __init__(self, names: Sequence[str], block_size: int, memory: int = DEFAULT_MEMORY, title: str = "text"):
        """`title` is the format in messages, and `memory` the bytes that a long line may take."""
        self._spare: deque[np.ndarray] = deque()
        self._pool = Pool()
        self.sources = [
            TextSource(name, number, block_size, self._spare, title, memory=memory, line_memory=self.memory_per_byte)
            for number, name in enumerate(names)
        ]

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[TextBlock]:
        """Return all blocks from a position on."""
        return chained((one.blocks for one in self.sources[source:]), start, state)

    def read(self, task: TextBlock) -> ParsedBlock:
        """Parse a block; afterwards its text buffer is used for another block."""
        parsed = self.parse(task, self._pool.take())
        self._spare.append(task.text)
        return parsed

    def parse(self, task: TextBlock, scratch: Scratch) -> ParsedBlock:
        """Parse a block; `scratch` has memory for its arrays."""
        raise NotImplementedError

    def release(self, parsed: ParsedBlock) -> None:
        """Take back the arrays of `parsed` for another block."""
        self._pool.give_back(parsed.scratch)


@dataclass
class RowArrays:
    """Arrays that a compiled function fills with the rows of a block."""

    labels: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    lines: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, scratch: Scratch, rows: int, entries: int) -> RowArrays:
        """Return arrays for at most `rows` rows and `entries` entries."""
        return cls(
            scratch.array("labels", rows),
            scratch.array("indptr", rows + 1, np.int64),
            scratch.array("indices", entries, np.uint32),
            scratch.array("values", entries, np.float32),
            scratch.array("lines", rows, np.int64),
            scratch.array("numbers", rows, np.uint32),
        )

    def block(self, rows: int, weights: np.ndarray | None = None) -> CsrBlock:
        """Return the first rows."""
        entries = int(self.indptr[rows])
        arrays = self.indptr[: rows + 1], self.indices[:entries], self.values[:entries], self.labels[:rows]
        return CsrBlock(*arrays, LARGEST_INDEX + 1, weights)


class NotUtf8Error(ValueError):
    """Invalid UTF-8 in a label, and its row in the block."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


def name_labels(text: np.ndarray, spans: np.ndarray, labels: np.ndarray) -> dict[int, str]:
    """Put the bits of hashes of the spans of a text into `labels`, 0 for empty ones; return the text of each hash."""
    hashes = labels.view(np.uint64)
    hash_spans(read_only(text), spans, len(labels), hashes)
    missing = spans[:, 0] == spans[:, 1]
    distinct, first = np.unique(hashes, return_index=True)
    names = {}
    for row, key in sorted(zip(first.tolist(), distinct.tolist(), strict=True)):
        if missing[row]:
            continue
        raw = text[spans[row, 0] : spans[row, 1]].tobytes()
        try:
            names[key] = raw.decode()
        except UnicodeDecodeError:
            problem = f"the label {literal(repr(raw[:40]))} is not UTF-8 text; {TO_UTF8}"
            raise NotUtf8Error(row, problem) from None
    labels[missing] = 0.0
    return names
