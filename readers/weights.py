"""Weights of rows: a text file with a number a line, a line for each row of all inputs."""

from __future__ import annotations

import numpy as np

from ooc_pegasos.compiled.parse import weights as kernels
from ooc_pegasos.readers.number_lines import NumberLines
from ooc_pegasos.store.manifest import SourceInfo

_PIECE = 1 << 16

_PROBLEMS = {
    kernels.EMPTY: "an empty line where a weight should be; give every row of the inputs one",
    kernels.NO_NUMBER: "the weight '{token}' is not a number; correct it",
    kernels.OUT_OF_RANGE: "the weight '{token}' is not from 1e-9 to 1e9; leave out rows that are not to count, and "
    "scale the weights of the others",
    kernels.MORE_THAN_ONE: "'{token}' after the weight; give one number a line",
}


class WeightsReader(NumberLines):
    """Reader of the weights of a file, in order."""

    content = "weights"
    problems = _PROBLEMS

    def parse(self, text: np.ndarray, at: int, end: int, out: np.ndarray) -> tuple[int, int, int]:
        """See `NumberLines`."""
        return kernels.parse_weights(text, at, end, out)

    def take(self, count: int) -> np.ndarray:
        """Return the next `count` weights as float32, or fewer at the end of the file."""
        weights = np.empty(count, np.float32)
        return weights[: self.fill(weights)]

    def skip(self, count: int) -> None:
        """Skip the next `count` weights."""
        for begin in range(0, count, _PIECE):
            self.take(min(_PIECE, count - begin))

    def finish(self) -> SourceInfo:
        """Return the fingerprint of the file. Raises InputError if weights are left."""
        if not self.is_at_end:
            problem = f"a line too many: all inputs together have {self.rows_read:,} rows, bad ones included"
            raise self.error(f"{problem}; give one weight for each, in their order")
        return self.source.info(self.rows_read)
