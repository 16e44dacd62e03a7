"""Output of a run while it trains: progress, notes and the log."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.training.history import EpochRecord
from ooc_pegasos.util.files import open_in_place, sync_folder, write_atomically, writing_errors


class Report:
    """Progress, notes and log of a run."""

    def __init__(self, progress: TrainingProgress) -> None:
        self.notes: list[str] = []
        self.log: io.FileIO | None = None
        self._progress = progress

    def note(self, text: str) -> None:
        """Display a note, and keep it for the result."""
        self.notes.append(text)
        self._progress.note(text)

    def presented(self, epoch: int, rows: int, total: int) -> None:
        """Display how many rows of an epoch are done."""
        self._progress.presented(epoch, rows, total)

    def epoch_done(
        self, records: Mapping[int, EpochRecord], several: bool, costs: Mapping[str, Any], tolerance: float
    ) -> None:
        """Display the model that is farthest from its tolerance, and write a line of the log for each model.

        With `several` models in the run each line begins with the number of the model. `costs` end each line.
        """
        lines = [{**({"model": model} if several else {}), **one.table()} for model, one in records.items()]
        worst = max(lines, key=lambda line: line["estimated_gap"] or 0.0)
        self._progress.epoch_done({**worst, "models": len(lines)}, tolerance)
        self._write("".join(json.dumps({**line, **costs}) + "\n" for line in lines))

    def _write(self, lines: str) -> None:
        if self.log:
            with writing_errors(Path(str(self.log.name))):
                content = memoryview(lines.encode())
                while content:
                    content = content[self.log.write(content) :]

    def sync_log(self) -> None:
        """Sync the log before a checkpoint refers to its lines. A pipe or a device is left alone."""
        log = self.log
        if log is not None and stat.S_ISREG(os.fstat(log.fileno()).st_mode):
            with writing_errors(Path(str(log.name))):
                os.fsync(log.fileno())
                sync_folder(Path(str(log.name)).parent)


def open_log(path: Path, lines: int) -> io.FileIO:
    """Open the log after its first `lines`, which a checkpoint knows; the lines after them are written again."""
    resumed = lines and path.is_file() and not path.is_symlink()
    if resumed:
        kept = path.read_bytes().splitlines(keepends=True)[:lines]
        write_atomically(path, b"".join(kept))
    file = io.FileIO(path, "a" if resumed else "w", opener=partial(open_in_place, streams=True))
    os.set_blocking(file.fileno(), True)
    return file
