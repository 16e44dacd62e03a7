"""Publication of a finished conversion: a new store by one rename, or an existing store extended or replaced."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooc_pegasos import __version__
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.conversion.second_pass import Assembled, AssemblyPlan, RowStatistics, named
from ooc_pegasos.errors import InputError
from ooc_pegasos.store import manifest, vocabulary
from ooc_pegasos.store.append_expire import joined, remove_strays
from ooc_pegasos.store.manifest import ChunkInfo, LabelInfo, Manifest, SourceInfo, Statistics
from ooc_pegasos.store.store import REJECTED_FILE
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.files import sync_folder, write_atomically

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Place:
    """Paths of a conversion: the store, the scratch folder, and the store that is appended to."""

    target: Path
    scratch: Path
    base: Manifest | None = None
    """Manifest of the store that is appended to."""

    @classmethod
    def of(cls, store: str | Path) -> Place:
        """Return the paths of a conversion to a new store."""
        return cls(Path(store), Path(os.path.abspath(store) + ".unfinished"))

    def published(self) -> bool:
        """True if the store is in place and only the scratch folder is left.

        The scratch folder records that the rows are in the store, so the folder remains until everything else is done.
        """
        intended = self.scratch / "manifest.json"
        current = self.target / manifest.FILE_NAME
        return intended.exists() and current.exists() and intended.read_bytes() == current.read_bytes()

    def unfinished(self) -> bool:
        """True if a conversion was interrupted after the store was in place."""
        return self.published() and (self.scratch / PLAN_FILE).exists()

    @property
    def first_chunk(self) -> int:
        """The number of the first new chunk, above all existing numbers; the first chunks may have expired."""
        return 1 + max((int(chunk.file.split("-")[1]) for chunk in self.base.chunks), default=-1) if self.base else 0

    def named(self, assembled: list[Assembled]) -> list[ChunkInfo]:
        """Rename the new chunks to their final names, and return them."""
        built = self.scratch / "store"
        for path in built.glob(".*.tmp"):  # left by a killed process
            path.unlink()
        chunks: list[ChunkInfo] = []
        for chunk in (chunk for part in assembled for chunk in part.chunks):
            chunks.append(named(self.first_chunk + len(chunks), chunk))
            for old, new in zip(chunk.files, chunks[-1].files, strict=True):
                if (built / old).exists():
                    os.rename(built / old, built / new)
        return chunks

    def publish(self, made: Manifest, known: Vocabulary, rejected: bytes) -> None:
        """Publish the store with its new chunks, vocabulary and list of rejected rows by one rename."""
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
        """Complete the files of a store whose manifest is in place; return those that could not be removed."""
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
        """Move new files to the store."""
        for path in built.iterdir():
            if path.name not in (REJECTED_FILE, manifest.FILE_NAME):
                os.rename(path, self.target / path.name)
        sync_folder(self.target)


def pending(store: str | Path) -> list[str]:
    """Return the sources whose test rows are missing, because a conversion was interrupted after its first part."""
    with suppress(InputError, OSError):
        made = manifest.read(Path(store))
        if made.split is None or made.split.part != "train" or made.split.is_given:
            return []
        place = manifest.with_test_rows(store, made)
        test = manifest.read(place) if place else None
        if test and Place.of(manifest.test_path(store)).unfinished():
            return [source.name for source in test.sources[-test.all_parts()[-1].sources :]]
        missing = Counter(source.name for source in made.sources)
        missing -= Counter(source.name for source in test.sources) if test else Counter()
        return [source.name for source in made.sources[-missing.total() :]] if missing else []
    return []


def manifest_of(
    ingest: Ingest,
    plan: AssemblyPlan,
    info: LabelInfo,
    chunks: list[ChunkInfo],
    assembled: list[Assembled],
    sources: list[SourceInfo],
) -> Manifest:
    """Return the manifest of the new rows alone."""
    rows = sum((part.statistics for part in assembled), RowStatistics())
    number = sum(chunk.rows for chunk in chunks)
    weighted = any(chunk.starts.weights is not None for chunk in chunks)
    normalize: Any = "l2" if plan.normalize else None
    if info.task != "regression":  # the collector has not counted the labels if there are very many
        info = dataclasses.replace(
            info, counts=[sum(c) for c in zip(*(one.label_counts for one in chunks), strict=True)]
        )
    return Manifest(
        format=manifest.FORMAT,
        version=plan.layout.version,
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
        split=ingest.plan.split,
    )
