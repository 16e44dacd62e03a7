"""Row states of dual coordinate ascent: a dual variable and the epoch of re-activation, per row and model.

If the store is one window the states stay in memory. Otherwise they are in memory-mapped files in the order of the
store: the states of a window are loaded by `enter` and saved by `leave`.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.sdca import inverse_squares
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.loading.window import Window
from ooc_pegasos.solvers.row_cache import PASSES, RowCache
from ooc_pegasos.solvers.row_group import KINDS, Group
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.checkpoint import whole
from ooc_pegasos.util.files import create_file, sync_folder, writing_errors

BYTES_PER_MODEL = 5
"""Bytes of a row for each column of a panel: the dual variable (float32) and the epoch of re-activation (uint8)."""
BYTES_PER_ROW = 4
"""Bytes of a row for its inverse squared norm."""
MAX_NORM = 1e18
"""Norm of a row above which the inverse squared norm underflows in float32."""
_PIECE = 1 << 22
_FILE = re.compile(r"rows-\d+\.checkpoint")


class RowStates:
    """The states of all rows for all groups."""

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
        self.cache: RowCache | None = None

    @property
    def typical_square(self) -> float:
        """Typical weight times squared norm of a row, rounded to a power of two since means depend on the chunks."""
        statistics = self._store.manifest.statistics
        typical = statistics.mean_weight * (statistics.mean_row_norm**2 + self._bias**2)
        return 2.0 ** round(math.log2(typical)) if typical > 0 else 0.0

    def without_rows(self) -> RowStates:
        """Return empty states."""
        return RowStates(self._store, self._bias, True, None)

    # --- windows ----------------------------------------------------------------------------------

    def enter(self, window: Window) -> None:
        """Load the states of the rows of a window to the arrays of the groups."""
        rows = window.block.rows
        if self._entered is not None and self._one_window:
            return
        self._entered = window
        for number, group in enumerate(self.groups):
            for name, kind in KINDS.items():
                if self._one_window and len(getattr(group, name)):
                    continue  # restored from a checkpoint
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
        """Save the states of the rows of the entered window."""
        if self._entered is None or self._one_window:
            return
        for number, group in enumerate(self.groups):
            for name in KINDS:
                self._copy(self._entered, getattr(group, name), self._files[number, name], group.width, to_file=True)

    # --- cached rows ------------------------------------------------------------------------------

    def drop_cache(self) -> None:
        """Go on without cached rows."""
        if self.cache:
            self.cache.close()
        self.cache = None

    def release(self, chunks: tuple[int, ...]) -> None:
        """Save the states of the cached rows of some chunks, which are read again."""
        if self.cache:
            self._save(self.cache.take(chunks), active=True)

    def exchange(self) -> None:
        """Put active rows of the entered window into the cache. When it is read again, all its rows are active."""
        if self.cache and self._entered is not None:
            self._save(self.cache.exchange(self._entered, self._first_rows, self.groups), active=True)
            self.cache.add(self._entered, self.groups, self.inverses)
            for group in self.groups:
                group.inactive_until[:] = 0

    def flush(self) -> None:
        """Save the states of all cached rows, which stay cached."""
        if self.cache:
            self._save(self.cache.sequence)

    def _save(self, places: np.ndarray, active: bool = False) -> None:
        """Save the states of cached rows, as active ones or as they are."""
        if self.cache is None or self.cache.rows is None:
            return
        numbers = self.cache.rows.numbers[places]
        for number, group in enumerate(self.cache.rows.groups):
            for name in KINDS:
                states = 0 if active and name == "inactive_until" else group.table(name)[places]
                self._files[number, name].reshape(-1, group.width)[numbers] = states

    def _reload(self) -> None:
        """Load the states of all cached rows."""
        if self.cache is None or self.cache.rows is None:
            return
        rows, places = self.cache.rows, self.cache.sequence
        rows.groups = [Group(group.models, group.width) for group in self.groups]
        for number, group in enumerate(rows.groups):
            group.allocate(len(rows.numbers))
            for name in KINDS:
                group.table(name)[places] = self._files[number, name].reshape(-1, group.width)[rows.numbers[places]]

    def read_again(self, windows: Callable[[], Iterator[Window]]) -> None:
        """Read the rows that an interrupted run had cached."""
        if self.cache and len(self.cache.wanted):
            for window in windows():
                self.cache.read_again(window, self._first_rows, self.groups)
            self.cache.restore_sequence()
            self._reload()
            rows = self.cache.rows
            if rows is not None:
                inverse_squares(0, len(self.cache.sequence), *rows.block.entries, self._bias, rows.inverses)

    def _norms(self, window: Window) -> None:
        for begin, end in window.row_ranges:
            inverse_squares(begin, end, *window.block.entries, self._bias, self.inverses)

    def _copy(self, window: Window, array: np.ndarray, file: np.ndarray, width: int, *, to_file: bool) -> None:
        """Copy between the rows of a window's block and those of the store."""
        for chunk, (begin, end) in zip(window.chunks, window.row_ranges, strict=True):
            first = self._first_rows[chunk]
            loaded = array[begin * width : end * width]
            stored = file[first * width : (first + end - begin) * width]
            if to_file:
                stored[:] = loaded
            else:
                loaded[:] = stored

    # --- groups -----------------------------------------------------------------------------------

    def regroup(self, groups: list[tuple[list[int], int]]) -> None:
        """Change the groups to other groups of the same models: (models, width) of each."""
        if [(group.models, group.width) for group in self.groups] == groups:
            return
        self.leave()
        self.flush()
        old = self.groups
        column_of = {
            model: (number, column) for number, group in enumerate(old) for column, model in enumerate(group.models)
        }
        before = dict(self._files)
        self.groups = [Group(models, width) for models, width in groups]
        self._files = {}
        for number, group in enumerate(self.groups):
            for name, kind in KINDS.items():
                if not self._one_window:
                    target = self._files[number, name] = self._new_file(kind, self._store.rows * group.width)
                elif old and len(old[0].duals):
                    target = np.zeros(len(old[0].duals) // old[0].width * group.width, kind)
                    setattr(group, name, target)
                else:
                    continue  # allocated by `enter`
                for column, model in enumerate(group.models):
                    if model in column_of:
                        source, at = column_of[model]
                        origin = before[source, name] if not self._one_window else getattr(old[source], name)
                        _copy_column(origin, old[source].width, at, target, group.width, column)
        if not self._one_window:
            self._entered = None
        self._reload()

    # --- files ------------------------------------------------------------------------------------

    def _inverses(self) -> np.ndarray:
        if self._inverses_file is None:
            self._inverses_file = self._new_file(np.float32, self._store.rows)
        return self._inverses_file

    def _new_file(self, kind: Any, items: int) -> np.ndarray:
        return mapped_file(self._scratch, kind, items)

    def duals_of(self, model: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the dual variables of a model by chunk: (number of the first row, values)."""
        self.flush()
        number, group = next((number, group) for number, group in enumerate(self.groups) if model in group.models)
        at = group.models.index(model)
        table = (group.duals if self._one_window else self._files[number, "duals"]).reshape(-1, group.width)
        for chunk, (first, end) in enumerate(pairwise(self._first_rows)):
            begin = first + chunk if self._one_window else first  # a block has a gap after each chunk
            yield first, table[begin : begin + end - first, at]

    def close(self) -> None:
        """Release the files."""
        self._files = {}
        self._inverses_file = None

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self, path: Path) -> dict[str, Any]:
        """Write all states to a file, sync it, and return its description for the checkpoint."""
        self.leave()
        self.flush()
        checksum, size = 0, 0
        with create_file(path) as file:
            for number, group in enumerate(self.groups):
                for name in KINDS:
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

    def restore(self, folder: Path, description: dict[str, Any]) -> None:
        """Restore saved states."""
        if not _FILE.fullmatch(description["file"]):
            raise ValueError(f"{description['file']!r} is not the name of a file of rows")
        path = folder / description["file"]
        advice = "start without {resume}"
        self.groups = [Group(models, width) for models, width in description["groups"]]
        # the block has the rows of the store and a gap after each chunk
        rows = self._store.rows + (len(self._store.manifest.chunks) if self._one_window else 0)
        needed = rows * sum(group.width for group in self.groups) * BYTES_PER_MODEL
        if description["bytes"] != needed and not (self._one_window and description["bytes"] == 0):
            raise ValueError(f"{description['bytes']!r:.40} bytes of rows instead of {needed:,}")
        try:
            if path.stat().st_size != description["bytes"]:
                raise CorruptFileError(
                    f"{path}: {path.stat().st_size:,} bytes instead of {description['bytes']:,}; {advice}"
                )
            if self._one_window and not description["bytes"]:
                return  # interrupted before the first window: allocated by `enter`
            checksum = 0
            with open(path, "rb") as file:
                for number, group in enumerate(self.groups):
                    for name, kind in KINDS.items():
                        if self._one_window:
                            target = np.empty(rows * group.width, kind)
                            setattr(group, name, target)
                        else:
                            target = self._files[number, name] = self._new_file(kind, rows * group.width)
                        content = target.data.cast("B")
                        for at in range(0, len(content), _PIECE):
                            got = file.readinto(content[at : at + _PIECE])
                            checksum = zlib.crc32(content[at : at + got], checksum)
        except OSError as error:
            self.close()
            raise CorruptFileError(f"{path}: {error.strerror}; {advice}") from error
        if checksum != description["crc32"]:
            self.close()
            raise CorruptFileError(f"{path}: the checksum does not match, so it is damaged; {advice}")

    def restore_cached(self, facts: dict[str, Any], numbers: np.ndarray) -> None:
        """Restore which rows were cached; they are read again before training goes on."""
        assert self.cache is not None
        cache, numbers = self.cache, numbers.astype(np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self._store.rows):
            raise ValueError("cached rows that the store does not have")
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError("cached rows that are there twice")
        cache.wanted, cache.passes = numbers, whole(facts["passes"], 0, 2**62, "passes")
        cache.script = [
            (whole(number, 0, PASSES - 1, "pass"), bool(is_cached)) for number, is_cached in facts["script"]
        ]
        if not len(numbers) and any(is_cached for _number, is_cached in cache.script):
            raise ValueError("no cached rows")
        cache.is_settled, cache.are_rows_settled = map(bool, facts["settled"])


def mapped_file(folder: Path | None, kind: Any, items: int) -> np.ndarray:
    """Return a memory-mapped file of zeros. Disk space is allocated here, so a full disk raises an error immediately.

    The file is unnamed, so the system removes it when the run ends, even by a kill.
    """
    folder = folder or Path(tempfile.gettempdir())
    with writing_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, max(items * np.dtype(kind).itemsize, 1))
        return np.memmap(file, dtype=kind, mode="r+", shape=(items,))


def _copy_column(
    origin: np.ndarray, origin_width: int, at: int, target: np.ndarray, into_width: int, column: int
) -> None:
    target.reshape(-1, into_width)[:, column] = origin.reshape(-1, origin_width)[:, at]
