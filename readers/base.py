"""What every reader gives: its inputs cut into tasks, in order, each of which any thread can turn into rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.manifest import SourceInfo
from ooc_pegasos.util.buffers import Scratch

LARGEST_INDEX = 2**32 - 2
DESCRIBED_BAD_ROWS = 1000
"""Of each block; the others are counted."""


class Source(Protocol):
    """One input, once all of it was read."""

    name: str

    def info(self, rows: int) -> SourceInfo:
        """Its fingerprint."""


class Task(Protocol):
    """A piece of an input that was not turned into rows yet."""

    @property
    def source(self) -> int:
        """Number of the input."""

    @property
    def end(self) -> int:
        """Where in the input it ends, in a measure of the reader's own that `Reader.tasks` understands."""

    @property
    def consumed(self) -> int:
        """Bytes of the input as it lies on disk, for the display."""

    @property
    def hash_state(self) -> dict[str, Any] | None:
        """What `Reader.tasks` needs besides `end` to go on from there, if anything."""


@dataclass
class Piece:
    """A task of readers that do not read text."""

    source: int
    end: int
    consumed: int
    content: Any
    hash_state: dict[str, Any] | None = None


@dataclass(frozen=True)
class BadRow:
    """A row that breaks a rule: its line or number, counted from 0 at the start of its block, and what is wrong."""

    line: int
    problem: str


@dataclass
class ParsedBlock:
    """The rows of one task. Indices of a row increase; they are as written, whatever their base.

    With text labels, `block.labels` holds the bits of each label's hash and `names` says which text it is.
    """

    task: Any
    block: CsrBlock
    lines: np.ndarray
    """Line of each row that is left, counted from the start of the block; or its number, if there are no lines."""
    numbers: np.ndarray
    """Which row of the block each row was, bad ones included."""
    line_count: int
    """Lines, or rows if there are no lines, of the block: bad ones included."""
    bad: list[BadRow]
    bad_lines: int
    """How many rows were bad; `bad` describes at most DESCRIBED_BAD_ROWS of them."""
    names: dict[int, str]
    scratch: Scratch
    """What the arrays are part of; see `Reader.release`."""
    ids: Any = None
    """An Arrow array with the identifier of each row, where there is one."""
    features: dict[int, str] = field(default_factory=dict)
    """Names of hashed features that were met first here, where they are wanted."""


class Reader(Protocol):
    """A way to read some inputs."""

    @property
    def sources(self) -> Sequence[Source]:
        """The inputs, by number."""

    @property
    def unit(self) -> str:
        """What `ParsedBlock.lines` counts: "line" or "row"."""

    @property
    def memory_per_byte(self) -> int:
        """About how many bytes of memory a byte of a task takes until its rows are on disk."""

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """All tasks from input number `source` on, of that from position `start` on, in order."""

    def read(self, task: Any) -> ParsedBlock:
        """Turn a task into rows; several threads may do so at a time. Raises InputError for what is no single row."""

    def release(self, parsed: ParsedBlock) -> None:
        """The arrays of `parsed` may be used for another block."""


def memory_of(reader: Reader, task: Any) -> int:
    """Return about how much memory a task takes until its rows are on disk; 0 if its content is on disk."""
    held: int = task.length if hasattr(task, "length") else _bytes_of(getattr(task, "content", None))
    return held * reader.memory_per_byte


def place(name: str, unit: str, number: int) -> str:
    """Where a row stands, for messages: `name:12` or `name: row 12`, counted from 1."""
    return f"{name}:{number}" if unit == "line" else f"{name}: row {number:,}"


def _bytes_of(content: Any) -> int:
    """Bytes of a record batch, an array or nothing."""
    try:
        return int(getattr(content, "nbytes", 0))
    except TypeError:  # old versions of pyarrow cannot tell for string views
        return int(content.get_total_buffer_size())
