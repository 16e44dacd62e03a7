"""Conversions for commands: with progress, and to a temporary store for a command that reads files once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_pegasos.cli.options import note_compilation
from ooc_pegasos.cli.streams import say
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import UsageError

if TYPE_CHECKING:
    from ooc_pegasos.conversion.output_check import Existing
    from ooc_pegasos.reporting.steps import Steps
    from ooc_pegasos.store.store import Store

_SHARED = frozenset({"memory", "seed", "threads"})
"""Options that conversion and training share, and that therefore also fit a store."""


def run_conversion(
    inputs: Sequence[str], output: Path, settings: ConvertConfig, existing: Existing, quiet: bool, steps: Steps
) -> tuple[Store, float]:
    """Convert with progress; returns the store and the seconds."""
    from ooc_pegasos.conversion.pipeline import convert
    from ooc_pegasos.reporting.progress import progress_for

    progress = progress_for(quiet, steps)
    note_compilation(progress, "rows")
    began = time.perf_counter()
    try:
        store = convert(inputs, output, settings, existing=existing, progress=progress)
    except KeyboardInterrupt:
        progress.end()
        from ooc_pegasos.conversion.publish import pending

        unfinished = output.with_name(output.name + ".unfinished")
        kept = f"run again with --resume to continue (or delete {unfinished})" if unfinished.exists() else "start again"
        if pending(output):
            kept = f"{output} is complete but for its test rows; run again to finish"
        say(f"interrupted; {kept}", err=True)
        raise
    finally:
        progress.end()
    return store, time.perf_counter() - began


@dataclass(frozen=True)
class Inputs:
    """The data that a command reads: a store, or files that are converted to a store first."""

    names: Sequence[str]
    settings: ConvertConfig
    named: frozenset[str]
    """Names of the options of the conversion that were given."""
    keep: Path | None
    """The place of the new store; None: it is removed at the end."""

    @property
    def store(self) -> Path | None:
        """The store, if that is what is read."""
        from ooc_pegasos.util.kind_of_path import MANIFEST

        stores = [Path(name) for name in self.names if (Path(name) / MANIFEST).exists()]
        if stores and len(self.names) > 1:
            raise UsageError(f"{stores[0]}: is a store; give one store, or files, but not several stores or both")
        return stores[0] if stores else None

    def check(self, needed_later: Sequence[str]) -> None:
        """Refuse options that do not fit; `needed_later` are given options for which the store has to stay."""
        if self.store is not None:
            wrong = sorted(self.named - _SHARED)
            if wrong or self.keep is not None:
                flag = f"{{{wrong[0]}}}" if wrong else "{store}"
                raise UsageError(f"{flag} is for files that are converted, but {self.store} is a store; leave it out")
        elif needed_later and self.keep is None:
            raise UsageError(
                f"{needed_later[0]} needs the store of the files later; keep it with {{store}}, like --store my.store"
            )
        else:
            from ooc_pegasos.readers.names import refuse_missing

            refuse_missing(self.names)

    @contextmanager
    def opened(self, folder: Path | None, force: bool, resume: bool, quiet: bool, steps: Steps) -> Iterator[Opened]:
        """Open the store, or convert files; a store that is not kept is made in `folder`, and removed at the end."""
        from ooc_pegasos.conversion.output_check import Existing
        from ooc_pegasos.store.store import Store

        if self.store is not None:
            yield Opened(Store.open(self.store))
        elif self.keep is not None:
            existing = Existing(force=force, resume=resume, reuse=True)
            yield Opened(*run_conversion(self.names, self.keep, self.settings, existing, quiet, steps))
        else:
            with tempfile.TemporaryDirectory(prefix="oocpeg-", dir=folder, ignore_cleanup_errors=True) as scratch:
                target = Path(scratch) / "store"
                made = run_conversion(self.names, target, self.settings, Existing(), quiet, steps)
                yield Opened(*made, is_kept=False)

    @property
    def title(self) -> str:
        """The new store or the files, in the output of a command."""
        if self.keep is not None:
            return str(self.keep)
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1:,} more"


@dataclass(frozen=True)
class Opened:
    """An open store, and the seconds of its conversion if it was converted now."""

    store: Store
    seconds: float | None = None
    is_kept: bool = True

    def summary(self, title: str) -> dict[str, Any]:
        """Return the summary of the conversion for JSON, if there was one."""
        from ooc_pegasos.reporting.text import conversion_summary

        return {} if self.seconds is None else {"conversion": conversion_summary(self.store, title, self.seconds)}

    def lines(self, title: str) -> list[str]:
        """Return the result of the conversion as lines of text, if there was one."""
        from ooc_pegasos.reporting.text import conversion_lines

        return [] if self.seconds is None else conversion_lines(self.store, title, self.seconds, self.is_kept)
