"""Text files with a number a line: weights of rows, labels of matrices."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.sources import TextBlock, TextSource, display_name
from ooc_pegasos.store.csr_block import read_only

BLOCK_BYTES = 1 << 18
SOUND = 0
"""The status of a parser that found no bad line."""


class NumberLines:
    """Reader of the numbers of a file, in order; a subclass has the parser and the messages."""

    content: ClassVar[str]
    """The name of the numbers."""
    problems: ClassVar[dict[int, str]]
    """A message for each status of a bad line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows_read = 0
        self._spare: deque[np.ndarray] = deque()
        self.source = TextSource(name, 0, BLOCK_BYTES, self._spare, f"a text file of {self.content}")
        self._blocks = self.source.blocks()
        self._block: TextBlock | None = None
        self._at = 0

    def parse(self, text: np.ndarray, at: int, end: int, out: np.ndarray) -> tuple[int, int, int]:
        """Parse lines of `text[at:end]` until `out` is full; return (status, numbers read, position)."""
        raise NotImplementedError

    def fill(self, out: np.ndarray) -> int:
        """Read the next numbers into an array; return their number, which is less than asked for at the end."""
        filled = 0
        while filled < len(out) and (block := self._unread()):
            code, number, self._at = self.parse(read_only(block.text), self._at, block.length, out[filled:])
            filled += number
            self.rows_read += number
            if code != SOUND:
                raise self.error(self._problem(block, code))
        return filled

    @property
    def is_at_end(self) -> bool:
        """True if no line is left."""
        return self._unread() is None

    def error(self, problem: str) -> InputError:
        """Return the error for the next line."""
        return InputError(f"{display_name(self.name)}:{self.rows_read + 1}: {problem}")

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()

    def _unread(self) -> TextBlock | None:
        """Return the block with the next numbers, or None."""
        if self._block is None or self._at == self._block.length:
            if self._block is not None:
                self._spare.append(self._block.text)
            self._block, self._at = next(self._blocks, None), 0
        return self._block

    def _problem(self, block: TextBlock, code: int) -> str:
        excerpt = block.text[self._at : self._at + 41].tobytes().partition(b"\n")[0]
        if excerpt.startswith(b"\0"):
            return f"a zero byte, so this is not text; check that it is the file of {self.content}"
        token = (excerpt.split() or [excerpt])[0].decode("ascii", "backslashreplace")
        return self.problems[code].format(token=token)
