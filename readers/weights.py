"""Weights of rows: a text file with a number a line, a line for each row of all inputs."""

from __future__ import annotations

from collections import deque

import numpy as np

from ooc_pegasos.compiled.parse import weights as kernels
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.sources import TextBlock, TextSource, display_name
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.manifest import SourceInfo

BLOCK_BYTES = 1 << 18
_PIECE = 1 << 16

_PROBLEMS = {
    kernels.EMPTY: "an empty line where a weight should be; give every row of the inputs one",
    kernels.NO_NUMBER: "the weight '{token}' is not a number; correct it",
    kernels.OUT_OF_RANGE: "the weight '{token}' is not from 1e-9 to 1e9; leave out rows that are not to count, and "
    "scale the weights of the others",
    kernels.MORE_THAN_ONE: "'{token}' after the weight; give one number a line",
}


class WeightsReader:
    """Reader of the weights of a file, in order."""

    def __init__(self, name: str) -> None:
        self.rows_read = 0
        self.name = name
        self._spare: deque[np.ndarray] = deque()
        self._source = TextSource(name, 0, BLOCK_BYTES, self._spare, "a text file of weights")
        self._blocks = self._source.blocks()
        self._block: TextBlock | None = None
        self._at = 0

    def take(self, count: int) -> np.ndarray:
        """Return the next `count` weights as float32, or fewer at the end of the file."""
        weights = np.empty(count, np.float32)
        filled = 0
        while filled < count and (block := self._unread()):
            code, number, self._at = kernels.parse_weights(
                read_only(block.text), self._at, block.length, weights[filled:]
            )
            filled += number
            self.rows_read += number
            if code != kernels.SOUND:
                raise InputError(f"{display_name(self.name)}:{self.rows_read + 1}: {self._problem(block, code)}")
        return weights[:filled]

    def skip(self, count: int) -> None:
        """Skip the next `count` weights."""
        for begin in range(0, count, _PIECE):
            self.take(min(_PIECE, count - begin))

    def finish(self) -> SourceInfo:
        """Return the fingerprint of the file. Raises InputError if weights are left."""
        if self._unread():
            problem = f"a line too many: all inputs together have {self.rows_read:,} rows, bad ones included"
            raise InputError(
                f"{display_name(self.name)}:{self.rows_read + 1}: {problem}; give one weight for each, in their order"
            )
        return self._source.info(self.rows_read)

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()

    def _unread(self) -> TextBlock | None:
        """Return the block with the next weights, or None."""
        if self._block is None or self._at == self._block.length:
            if self._block is not None:
                self._spare.append(self._block.text)
            self._block, self._at = next(self._blocks, None), 0
        return self._block

    def _problem(self, block: TextBlock, code: int) -> str:
        excerpt = block.text[self._at : self._at + 41].tobytes().partition(b"\n")[0]
        if excerpt.startswith(b"\0"):
            return "a zero byte, so this is not text; check that it is the file of weights"
        token = (excerpt.split() or [excerpt])[0].decode("ascii", "backslashreplace")
        return _PROBLEMS[code].format(token=token)
