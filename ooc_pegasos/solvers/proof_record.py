"""Dual variables of each row for a proof: those of the best bound of each model, and the sums from which they are made.

They are kept only if a proof is requested, in unnamed files in the order of the store. Pegasos adds -g of each update
to `sums`; the difference of the sums over a window of epochs, divided by the updates per row, is the dual variable of
equation (5). Dual coordinate ascent passes its dual variables. For an unregularized bias the vectors of two more bounds
are kept, which equation (11) combines; equation (10) adds a constant.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.objective.problem import Problem
from ooc_pegasos.solvers.dual_store import mapped_file
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.checkpoint import whole
from ooc_pegasos.util.files import create_file, open_file, sync_folder

RecordTarget = tuple[np.ndarray | None, int, int]
"""The last arguments of a kernel: (record, stride, column)."""
NOT_RECORDED: RecordTarget = (None, 1, 0)
"""Arguments of a kernel that records nothing: for None it is compiled without recording, which is 20 % faster."""
_FILE = re.compile(r"rows-\d+-proof\.checkpoint")
_PIECE = 1 << 16
"""Rows per copy."""


@dataclass(frozen=True)
class RowDuals:
    """Dual variables of all rows for one model, piece by piece."""

    pieces: Iterable[tuple[int, np.ndarray]]
    """(number of the first row, dual variables)."""
    weighted: bool
    """True if they contain the weights of rows."""


class DualRecord:
    """Sums and best dual variables of all models. A model has `width` columns: one, or one per class."""

    def __init__(self, store: Store, problem: Problem, scratch: Path | None) -> None:
        self.width = 1 if problem.costs is None else len(problem.costs)
        self.stride = self.width * len(problem.specs)
        self.weighted = dict.fromkeys(range(len(problem.specs)), False)
        """True if the variables of a model contain the weights of rows."""
        self.leaning = dict.fromkeys(range(len(problem.specs)), 0.0)
        """The constant added, before weights, to the variables of all rows that may have its sign, by model."""
        self._first_rows = [0, *accumulate(chunk.rows for chunk in store.manifest.chunks)]
        self._scratch = scratch
        self._best = self._table()
        self._lines = [self._table(), self._table()] if problem.has_free_bias else []
        """The variables of the decreasing and the increasing line of each model."""
        self._combined: set[int] = set()
        """Models whose best variables are the current combination of both lines."""
        self._sums: np.ndarray | None = None
        self._snapshots: dict[int, np.ndarray] = {}
        self._window: Window | None = None
        self.here = np.empty(0)
        """Sums of the rows of the entered window."""
        self.log_scales = np.zeros((len(self.weighted), 1))
        """Logarithms of the scales that projections have applied to the sums in `here`."""
        self._log_scales_on_file = np.zeros((len(self._first_rows) - 1, len(self.weighted)))
        """The same for the sums on file, by chunk."""

    @property
    def rows(self) -> int:
        """Rows of the store."""
        return self._first_rows[-1]

    def _table(self) -> np.ndarray:
        return mapped_file(self._scratch, np.float64, self.rows * self.stride).reshape(-1, self.stride)

    def columns(self, model: int) -> slice:
        """Columns of a model."""
        return slice(model * self.width, (model + 1) * self.width)

    def target(self, model: int) -> RecordTarget:
        """Return the last arguments of a kernel that records one model: (record, stride, column)."""
        return self.here, self.stride, model * self.width

    # --- sums of Pegasos ----------------------------------------------------------------------------

    def enter(self, window: Window) -> None:
        """Load the sums of the rows of a window to `here`."""
        if self._sums is None:
            self._sums = self._table()
        if self._window is not None and self._window.chunks == window.chunks:
            return
        self._window = window
        self.here = np.zeros(window.block.rows * self.stride)
        for chunk, here, there in self._parts(self._sums):
            scales = np.exp(self.log_scales[:, 0] - self._log_scales_on_file[chunk])
            np.multiply(there, np.repeat(scales, self.width), out=here)

    def leave(self) -> None:
        """Save the sums of the rows of the window."""
        if self._sums is None or self._window is None:
            return
        for chunk, here, there in self._parts(self._sums):
            there[:] = here
            self._log_scales_on_file[chunk] = self.log_scales[:, 0]

    def _parts(self, table: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (chunk, its rows in `here`, its rows in a table) for each chunk of the window."""
        assert self._window is not None
        lines = self.here.reshape(-1, self.stride)
        for chunk, (begin, end) in zip(self._window.chunks, self._window.row_ranges, strict=True):
            first = self._first_rows[chunk]
            yield chunk, lines[begin:end], table[first : first + end - begin]

    def forget_sums(self) -> None:
        """Reset the sums, for a change of the algorithm."""
        self._sums, self._window, self.here, self._snapshots = None, None, np.empty(0), {}

    def snapshot(self, epoch: int, kept: set[int]) -> None:
        """Copy the sums at the end of an epoch; drop those of earlier epochs that are not in `kept`."""
        assert self._sums is not None
        self._snapshots = {number: table for number, table in self._snapshots.items() if number in kept}
        if epoch in kept:
            table = self._snapshots[epoch] = self._table()
            for begin in range(0, self.rows, _PIECE):
                table[begin : begin + _PIECE] = self._sums[begin : begin + _PIECE]

    # --- best variables -----------------------------------------------------------------------------

    def since(self, model: int, snapshot: int, factor: float) -> RowDuals:
        """Return `factor` times the sums since a snapshot, 0 for the start."""
        return RowDuals(self._sums_since(model, snapshot, factor), weighted=False)

    def _sums_since(self, model: int, snapshot: int, factor: float) -> Iterator[tuple[int, np.ndarray]]:
        assert self._sums is not None
        columns, before = self.columns(model), self._snapshots[snapshot] if snapshot else None
        for chunk, (first, end) in enumerate(pairwise(self._first_rows)):
            scale = math.exp(self.log_scales[model, 0] - self._log_scales_on_file[chunk, model])
            for begin in range(first, end, _PIECE):
                rows = slice(begin, min(begin + _PIECE, end))
                sums = self._sums[rows, columns]
                if before is not None:
                    sums = sums - before[rows, columns]
                yield begin, sums * (scale * factor)

    def keep(self, model: int, duals: RowDuals, part: float = 1.0, leaning: float = 0.0) -> None:
        """Keep `part` times some dual variables as the best ones."""
        self._copy(self._best, model, duals, part)
        self.weighted[model], self.leaning[model] = duals.weighted, leaning
        self._combined.discard(model)

    def keep_line(self, model: int, line: int, duals: RowDuals, part: float) -> None:
        """Keep `part` times some dual variables as those of a line."""
        self._copy(self._lines[line], model, duals, part)
        self._combined.discard(model)

    def keep_combination(self, model: int, parts: tuple[float, float], weighted: bool) -> None:
        """Keep the combination of the variables of both lines as the best ones."""
        if model not in self._combined:
            columns = self.columns(model)
            for begin in range(0, self.rows, _PIECE):
                rows = slice(begin, begin + _PIECE)
                mixed = (part * line[rows, columns] for part, line in zip(parts, self._lines, strict=True))
                self._best[rows, columns] = sum(mixed)
            self.weighted[model], self.leaning[model] = weighted, 0.0
            self._combined.add(model)

    def _copy(self, table: np.ndarray, model: int, duals: RowDuals, part: float) -> None:
        for first, piece in duals.pieces:
            into = table[first : first + len(piece), self.columns(model)]
            np.multiply(piece.reshape(into.shape), part, out=into, dtype=np.float64)

    def best(self, models: list[int], begin: int, end: int) -> np.ndarray:
        """Return the best variables of some rows, a column for each model (and class)."""
        return np.concatenate([self._best[begin:end, self.columns(model)] for model in models], axis=1)

    # --- checkpoints --------------------------------------------------------------------------------

    def save(self, path: Path) -> dict[str, Any]:
        """Write all tables to a file, sync it, and return its description for the checkpoint."""
        self.leave()
        checksum, size = 0, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with create_file(path) as file:
            for table in self._tables():
                for begin in range(0, self.rows, _PIECE):
                    piece = np.ascontiguousarray(table[begin : begin + _PIECE]).tobytes()
                    checksum = zlib.crc32(piece, checksum)
                    size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
        return {
            "file": path.name,
            "bytes": size,
            "crc32": checksum,
            "weighted": list(self.weighted.values()),
            "leaning": list(self.leaning.values()),
            "sums": self._sums is not None,
            "snapshots": list(self._snapshots),
            "folded": self.log_scales[:, 0].tolist(),
            "folded_then": self._log_scales_on_file.tolist(),
        }

    def _tables(self) -> list[np.ndarray]:
        return [self._best, *self._lines, *([] if self._sums is None else [self._sums]), *self._snapshots.values()]

    def restore(self, folder: Path, saved: dict[str, Any] | None) -> None:
        """Continue from what was saved."""
        if saved is None:
            problem = "the run to resume was started without {proof}, so its dual variables are missing"
            raise UsageError(f"{folder}: {problem}; start over without {{resume}}, or leave out {{proof}}")
        if not _FILE.fullmatch(saved["file"]):
            raise ValueError(f"{saved['file']!r:.40} is not the name of a file of dual variables")
        path = folder / saved["file"]
        self.weighted = {model: bool(saved["weighted"][model]) for model in self.weighted}
        self.leaning = {model: float(saved["leaning"][model]) for model in self.leaning}
        self._sums = self._table() if saved["sums"] else None
        self._snapshots = {whole(epoch, 1, 2**62, "epoch"): self._table() for epoch in saved["snapshots"]}
        self.log_scales[:, 0] = saved["folded"]
        self._log_scales_on_file[:] = saved["folded_then"]
        checksum, size = 0, 0
        try:
            with open_file(path) as file:
                for table in self._tables():
                    for begin in range(0, self.rows, _PIECE):
                        into = table[begin : begin + _PIECE]
                        piece = file.read(into.nbytes)
                        if len(piece) != into.nbytes:
                            break
                        into[:] = np.frombuffer(piece, np.float64).reshape(into.shape)
                        checksum, size = zlib.crc32(piece, checksum), size + len(piece)
                rest = file.read(1)
        except OSError as error:
            raise CorruptFileError(f"{path}: {error.strerror}; start without {{resume}}") from error
        if (checksum, size, rest) != (saved["crc32"], saved["bytes"], b""):
            raise CorruptFileError(f"{path}: the checksum does not match, so it is damaged; start without {{resume}}")

    def close(self) -> None:
        """Release the files."""
        self.forget_sums()
        self._best, self._lines = np.empty((0, self.stride)), []
