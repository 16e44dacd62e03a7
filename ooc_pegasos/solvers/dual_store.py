"""The state of dual coordinate ascent for each row: one dual variable a model, and when the row is looked at again.

If the store is one window all of it stays in memory. If not, it lies in files with a line a row, in the order of the
store: a window's part is read when it is entered, and written when it is left.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.sdca import inverse_squares
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.files import create_file, sync_folder, writing_errors

BYTES_A_MODEL = 5
"""That a row takes for each column of a panel: a float32 and the epoch when it wakes."""
BYTES_A_ROW = 4
"""And besides: one over its squared norm."""
LONGEST = 1e18
"""The norm of a row beyond which that is next to nothing for a float32."""
_PIECE = 1 << 22
_FILE = re.compile(r"rows-\d+\.checkpoint")
_KINDS: dict[str, Any] = {"duals": np.float32, "until": np.uint8}


class Group:
    """The state of rows for models that are presented together: `width` columns, the first of which have a model."""

    def __init__(self, models: Sequence[int], width: int) -> None:
        self.models = list(models)
        self.width = width
        self.duals = np.empty(0, np.float32)
        self.until = np.empty(0, np.uint8)


class RowStates:
    """The state of all rows for all groups."""

    def __init__(self, store: Store, bias: float, one_window: bool, scratch: Path | None) -> None:
        self._store = store
        self._bias = bias
        self._first_rows = [0, *accumulate(chunk.rows for chunk in store.manifest.chunks)]
        self._one_window = one_window
        self._scratch = scratch
        self.groups: list[Group] = []
        self.inverses = np.empty(0, np.float32)
        self._files: dict[tuple[int, str], np.ndarray] = {}
        self._inverses_file: np.ndarray | None = None
        self._entered: Window | None = None

    @property
    def typical_square(self) -> float:
        """About what a row's weight times its squared norm is: a power of two, as means depend on how rows are cut."""
        statistics = self._store.manifest.statistics
        typical = statistics.mean_weight * (statistics.mean_row_norm**2 + self._bias**2)
        return 2.0 ** round(math.log2(typical)) if typical > 0 else 0.0

    def without_rows(self) -> RowStates:
        """Another, of which nothing is known."""
        return RowStates(self._store, self._bias, True, None)

    # --- windows ----------------------------------------------------------------------------------

    def enter(self, window: Window) -> None:
        """Bring the state of the rows of a window to the arrays of the groups."""
        rows = window.block.rows
        if self._entered is not None and self._one_window:
            return
        self._entered = window
        for number, group in enumerate(self.groups):
            for name, kind in _KINDS.items():
                if self._one_window and len(getattr(group, name)):
                    continue  # from a checkpoint
                array = np.zeros(rows * group.width, kind)
                if not self._one_window:
                    self._copy(window, array, self._files[number, name], group.width, to_file=False)
                setattr(group, name, array)
        self.inverses = np.zeros(rows, np.float32)
        if self._one_window:
            self._norms(window)
            return
        known = self._inverses()
        self._copy(window, self.inverses, known, 1, to_file=False)
        if any((self.inverses[begin:end] == 0.0).any() for begin, end in window.row_ranges):
            self._norms(window)
            self._copy(window, self.inverses, known, 1, to_file=True)

    def leave(self) -> None:
        """Keep the state of the rows of the window that was entered."""
        if self._entered is None or self._one_window:
            return
        for number, group in enumerate(self.groups):
            for name in _KINDS:
                self._copy(self._entered, getattr(group, name), self._files[number, name], group.width, to_file=True)

    def _norms(self, window: Window) -> None:
        for begin, end in window.row_ranges:
            inverse_squares(begin, end, *window.block.entries, self._bias, self.inverses)

    def _copy(self, window: Window, array: np.ndarray, file: np.ndarray, width: int, *, to_file: bool) -> None:
        """Between the rows of a window's block and those of the store."""
        for chunk, (begin, end) in zip(window.chunks, window.row_ranges, strict=True):
            first = self._first_rows[chunk]
            here = array[begin * width : end * width]
            there = file[first * width : (first + end - begin) * width]
            if to_file:
                there[:] = here
            else:
                here[:] = there

    # --- groups -----------------------------------------------------------------------------------

    def regroup(self, wanted: list[tuple[list[int], int]]) -> None:
        """Other groups of some of the models that there are: (models, width) of each."""
        if [(group.models, group.width) for group in self.groups] == wanted:
            return
        self.leave()
        old = self.groups
        place = {
            model: (number, column) for number, group in enumerate(old) for column, model in enumerate(group.models)
        }
        before = dict(self._files)
        self.groups = [Group(models, width) for models, width in wanted]
        self._files = {}
        for number, group in enumerate(self.groups):
            for name, kind in _KINDS.items():
                if not self._one_window:
                    into = self._files[number, name] = self._new_file(kind, self._store.rows * group.width)
                elif old and len(old[0].duals):
                    into = np.zeros(len(old[0].duals) // old[0].width * group.width, kind)
                    setattr(group, name, into)
                else:
                    continue  # made when the window is entered
                for column, model in enumerate(group.models):
                    if model in place:
                        source, at = place[model]
                        origin = before[source, name] if not self._one_window else getattr(old[source], name)
                        _copy_column(origin, old[source].width, at, into, group.width, column)
        if not self._one_window:
            self._entered = None

    # --- files ------------------------------------------------------------------------------------

    def _inverses(self) -> np.ndarray:
        if self._inverses_file is None:
            self._inverses_file = self._new_file(np.float32, self._store.rows)
        return self._inverses_file

    def _new_file(self, kind: Any, items: int) -> np.ndarray:
        return mapped_file(self._scratch, kind, items)

    def duals_of(self, model: int) -> Iterator[tuple[int, np.ndarray]]:
        """The dual variables of a model chunk by chunk: (number of the first row, one number a row)."""
        number, group = next((number, group) for number, group in enumerate(self.groups) if model in group.models)
        at = group.models.index(model)
        table = (group.duals if self._one_window else self._files[number, "duals"]).reshape(-1, group.width)
        for chunk, (first, end) in enumerate(pairwise(self._first_rows)):
            begin = first + chunk if self._one_window else first  # a block has a gap after each chunk
            yield first, table[begin : begin + end - first, at]

    def close(self) -> None:
        """Let go of the files."""
        self._files = {}
        self._inverses_file = None

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self, path: Path) -> dict[str, Any]:
        """Write everything to one file, sync it, and say how it can be checked."""
        self.leave()
        checksum, size = 0, 0
        with create_file(path) as file:
            for number, group in enumerate(self.groups):
                for name in _KINDS:
                    array = self._files[number, name] if not self._one_window else getattr(group, name)
                    content = np.ascontiguousarray(array).data.cast("B")
                    for at in range(0, len(content), _PIECE):
                        piece = content[at : at + _PIECE]
                        checksum = zlib.crc32(piece, checksum)
                        size += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
        groups = [[group.models, group.width] for group in self.groups]
        return {"file": path.name, "bytes": size, "crc32": checksum, "groups": groups}

    def restore(self, folder: Path, told: dict[str, Any]) -> None:
        """Take up what was saved."""
        if not _FILE.fullmatch(told["file"]):
            raise ValueError(f"{told['file']!r} is not the name of a file of rows")
        path = folder / told["file"]
        advice = "start without {resume}"
        self.groups = [Group(models, width) for models, width in told["groups"]]
        # of the block, whose rows are those of the store and a gap after each chunk
        rows = self._store.rows + (len(self._store.manifest.chunks) if self._one_window else 0)
        needed = rows * sum(group.width for group in self.groups) * BYTES_A_MODEL
        if told["bytes"] != needed and not (self._one_window and told["bytes"] == 0):
            raise ValueError(f"{told['bytes']!r:.40} bytes of rows instead of {needed:,}")
        try:
            if path.stat().st_size != told["bytes"]:
                raise CorruptFileError(f"{path}: {path.stat().st_size:,} bytes instead of {told['bytes']:,}; {advice}")
            if self._one_window and not told["bytes"]:
                return  # it was interrupted before there was anything: made when the window is entered
            checksum = 0
            with open(path, "rb") as file:
                for number, group in enumerate(self.groups):
                    for name, kind in _KINDS.items():
                        if self._one_window:
                            into = np.empty(rows * group.width, kind)
                            setattr(group, name, into)
                        else:
                            into = self._files[number, name] = self._new_file(kind, rows * group.width)
                        content = into.data.cast("B")
                        for at in range(0, len(content), _PIECE):
                            got = file.readinto(content[at : at + _PIECE])
                            checksum = zlib.crc32(content[at : at + got], checksum)
        except OSError as error:
            self.close()
            raise CorruptFileError(f"{path}: {error.strerror}; {advice}") from error
        if checksum != told["crc32"]:
            self.close()
            raise CorruptFileError(f"{path}: the checksum does not match, so it is damaged; {advice}")


def mapped_file(folder: Path | None, kind: Any, items: int) -> np.ndarray:
    """A file of zeros, mapped. It has its room on the disk, so that a full one is felt here and not later.

    It has no name, so it is gone as soon as nobody holds it, however a run ends.
    """
    folder = folder or Path(tempfile.gettempdir())
    with writing_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, max(items * np.dtype(kind).itemsize, 1))
        return np.memmap(file, dtype=kind, mode="r+", shape=(items,))


def _copy_column(
    origin: np.ndarray, origin_width: int, at: int, into: np.ndarray, into_width: int, column: int
) -> None:
    into.reshape(-1, into_width)[:, column] = origin.reshape(-1, origin_width)[:, at]
