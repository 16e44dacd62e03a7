"""A finished conversion takes its place: a new store by one rename, an old one extended or replaced."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc_pegasos import __version__
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.conversion.second_pass import Assembled, AssemblyPlan, RowStatistics, named
from ooc_pegasos.store import manifest, vocabulary
from ooc_pegasos.store.append_expire import joined, remove_strays
from ooc_pegasos.store.manifest import ChunkInfo, LabelInfo, Manifest, SourceInfo, Statistics
from ooc_pegasos.store.store import REJECTED_FILE
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.files import sync_folder, write_atomically


@dataclass(frozen=True)
class Place:
    """Where a store is made, and where it is going to stand."""

    target: Path
    scratch: Path
    base: Manifest | None = None
    """Of the store that is appended to."""

    def published(self) -> bool:
        """True if the store is in place already and only the scratch folder is left.

        That folder is what tells that the rows are in the store, so it stays until nothing else is left to be done.
        """
        intended = self.scratch / "manifest.json"
        current = self.target / manifest.FILE_NAME
        return intended.exists() and current.exists() and intended.read_bytes() == current.read_bytes()

    @property
    def first_chunk(self) -> int:
        """The number of the first new one: above all that there are, of which the first may have expired."""
        return 1 + max((int(chunk.file.split("-")[1]) for chunk in self.base.chunks), default=-1) if self.base else 0

    def named(self, assembled: list[Assembled]) -> list[ChunkInfo]:
        """The new chunks, which have the names now that they keep."""
        built = self.scratch / "store"
        for path in built.glob(".*.tmp"):  # of a process that was killed
            path.unlink()
        chunks: list[ChunkInfo] = []
        for chunk in (chunk for part in assembled for chunk in part.chunks):
            chunks.append(named(self.first_chunk + len(chunks), chunk))
            for old, new in zip(chunk.files, chunks[-1].files, strict=True):
                if (built / old).exists():
                    os.rename(built / old, built / new)
        return chunks

    def publish(self, made: Manifest, known: Vocabulary, rejected: bytes) -> None:
        """Put the store in place by one rename: what is new, what is known of its features, and what was rejected."""
        built = self.scratch / "store"
        if self.base:
            made = joined(self.base, made)
        if len(known):
            made = dataclasses.replace(made, vocabulary=vocabulary.write(built, known))
        if rejected:
            write_atomically(built / REJECTED_FILE, rejected)
        content = manifest.encode(made)
        write_atomically(self.scratch / "manifest.json", content)
        sync_folder(self.scratch.parent)
        if (self.target / manifest.FILE_NAME).exists():
            self._swap(built, made)
        else:
            write_atomically(built / manifest.FILE_NAME, content)
            os.rename(built, self.target)

    def finish(self) -> list[Path]:
        """Bring the rest of a store in line with the manifest that is in place; returns what could not be removed."""
        made = manifest.read(self.target)
        built = self.scratch / "store"
        listing = built / REJECTED_FILE
        if built.exists():
            self._move(built)
        if made.rejected and listing.exists():
            os.rename(listing, self.target / REJECTED_FILE)
        if not made.rejected:
            (self.target / REJECTED_FILE).unlink(missing_ok=True)
        sync_folder(self.target)
        sync_folder(self.target.parent)
        return remove_strays(self.target, made)

    def _swap(self, built: Path, made: Manifest) -> None:
        """Replace or extend a store: new files first, then the manifest."""
        self._move(built)
        manifest.write(self.target, made)

    def _move(self, built: Path) -> None:
        """Bring new files to where the store is."""
        for path in built.iterdir():
            if path.name not in (REJECTED_FILE, manifest.FILE_NAME):
                os.rename(path, self.target / path.name)
        sync_folder(self.target)


def manifest_of(
    ingest: Ingest,
    plan: AssemblyPlan,
    info: LabelInfo,
    chunks: list[ChunkInfo],
    assembled: list[Assembled],
    sources: list[SourceInfo],
) -> Manifest:
    """Of the new rows alone."""
    rows = sum((part.statistics for part in assembled), RowStatistics())
    number = sum(chunk.rows for chunk in chunks)
    weighted = any(chunk.starts.weights is not None for chunk in chunks)
    normalize: Any = "l2" if plan.normalize else None
    return Manifest(
        format=manifest.FORMAT,
        version=manifest.VERSION,
        rows=number,
        features=plan.features,
        nonzeros=sum(chunk.nonzeros for chunk in chunks),
        labels=info,
        layout=plan.layout,
        recipe=dataclasses.replace(
            ingest.plan.recipe, index_base=plan.index_base, normalize=normalize, values=plan.rounding
        ),
        statistics=Statistics(
            rows.max_norm,
            rows.norm_sum / number,
            rows.max_nonzeros,
            rows.empty,
            rows.rounding_error,
            rows.weight_sum / number,
            rows.max_weight,
            rows.max_weighted_square if weighted else None,
        ),
        shuffle_seed=ingest.plan.shuffle_seed,
        rejected=ingest.totals.rejected,
        chunks=chunks,
        sources=sources,
        written_by=f"ooc-pegasos {__version__}",
    )
