"""Output of a run while it trains: progress, notes and the log."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ooc_pegasos.reporting.history import EpochRecord
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.util.files import open_in_place, sync_folder, write_atomically, writing_errors


class Report:
    """Progress, notes and log of a run."""

    def __init__(self, progress: TrainingProgress) -> None:
        self.notes: list[str] = []
        self.log: io.FileIO | None = None
        self.round = 0
        """The number of the round in a search for lambda; 0 without one."""
        self._progress = progress

    def note(self, text: str) -> None:
        """Display a note, and keep it for the result."""
        self.notes.append(text)
        self._progress.note(text)

    def presented(self, epoch: int, rows: int, total: int) -> None:
        """Display how many rows of an epoch are done."""
        self._progress.presented(epoch, rows, total)

    def epoch_done(
        self,
        records: Mapping[int, EpochRecord],
        several: bool,
        costs: Callable[[], dict[str, Any]],
        tolerance: float,
    ) -> None:
        """Display the model that is farthest from its tolerance, and write a line of the log for each model.

        With `several` models in the run each line begins with the number of the model. `costs()` end each line.
        """
        worst = max(records.values(), key=lambda record: record.estimated_gap or 0.0)
        self._progress.epoch_done(worst, tolerance, len(records))
        if self.log:
            spent = costs()
            which = {"round": self.round} if self.round else {}
            tables = {model: which | record.table() | spent for model, record in records.items()}
            lines = [{"model": model, **table} if several else table for model, table in tables.items()]
            self._write(self.log, "".join(json.dumps(line) + "\n" for line in lines))

    @staticmethod
    def _write(log: io.FileIO, lines: str) -> None:
        with writing_errors(Path(str(log.name))):
            content = memoryview(lines.encode())
            while content:
                content = content[log.write(content) :]

    def sync_log(self) -> None:
        """Sync the log before a checkpoint refers to its lines, if it is a file."""
        log = self.log
        if log is not None and stat.S_ISREG(os.fstat(log.fileno()).st_mode):
            with writing_errors(Path(str(log.name))):
                os.fsync(log.fileno())
                sync_folder(Path(str(log.name)).parent)


def open_log(path: Path, lines: int) -> io.FileIO:
    """Open the log after its first `lines`, which belong to the checkpoint; later lines are written again."""
    resumed = lines and path.is_file() and not path.is_symlink()
    if resumed:
        kept = path.read_bytes().splitlines(keepends=True)[:lines]
        write_atomically(path, b"".join(kept))
    file = io.FileIO(path, "a" if resumed else "w", opener=partial(open_in_place, streams=True))
    os.set_blocking(file.fileno(), True)
    return file
