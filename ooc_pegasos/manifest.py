"""manifest.json: all that is known of a store besides its rows. See docs/store-format.md."""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ooc_pegasos import typed
from ooc_pegasos.errors import DamagedError, InputError
from ooc_pegasos.files import write_atomically

FORMAT, VERSION = "ooc-pegasos store", 1
FILE_NAME = "manifest.json"
_CHUNK_NAME = re.compile(r"chunk-\d{6,}-[0-9a-f]{8}\.arrow")

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class ChunkInfo:
    """One chunk file."""

    file: str
    rows: int
    nonzeros: int
    entries: int
    bytes: int
    crc32: str
    label_counts: list[int]


@dataclass(frozen=True)
class SourceInfo:
    """The fingerprint of one input: size and XXH64 of its bytes as they lay on disk."""

    name: str
    size: int
    xxh64: str
    rows: int


@dataclass(frozen=True)
class LabelInfo:
    """What labels mean. In chunks: -1 and 1 (binary), 0, 1, ... (multiclass), the target (regression).

    `classes` are the labels as the input spells them: the negative and the positive one, or by class number.
    With `rest`, every label but the last class is negative. `text`: labels are words, compared byte by byte.
    """

    task: Task
    classes: list[str]
    rest: bool
    counts: list[int]
    text: bool


@dataclass(frozen=True)
class Layout:
    """How chunks code their columns; the same for all chunks of a store."""

    index_coding: Literal["gap8", "gap16", "uint32"]
    values: Literal["float32"] | None
    labels: Literal["float32", "float64"]


@dataclass(frozen=True)
class Recipe:
    """What turns a row of the input into a row of the store; needed again to append or to score new files."""

    reader: str
    index_base: int
    features: int | None
    normalize: Literal["l2"] | None


@dataclass(frozen=True)
class Statistics:
    """Of the rows as stored."""

    max_row_norm: float
    mean_row_norm: float
    max_row_nonzeros: int
    empty_rows: int


@dataclass(frozen=True)
class Manifest:
    """The whole manifest, less its own checksum."""

    format: str
    version: int
    rows: int
    features: int
    nonzeros: int
    labels: LabelInfo
    layout: Layout
    recipe: Recipe
    statistics: Statistics
    shuffle_seed: int | None
    rejected: int
    chunks: list[ChunkInfo]
    sources: list[SourceInfo]
    written_by: str

    @property
    def bytes(self) -> int:
        """Size of all chunk files."""
        return sum(chunk.bytes for chunk in self.chunks)


def encode(manifest: Manifest) -> bytes:
    """The file's content: readable JSON whose last key is the CRC-32 of the rest."""
    table = typed.dump(manifest)
    table["checksum"] = _checksum(table)
    return (json.dumps(table, indent=1, allow_nan=False) + "\n").encode()


def write(folder: Path, manifest: Manifest) -> None:
    """Make `folder` hold the store that `manifest` describes, from this instant on."""
    write_atomically(folder / FILE_NAME, encode(manifest))


def read(folder: Path) -> Manifest:
    """Read and check the manifest of a store."""
    path = folder / FILE_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            raise InputError(f"{folder}: not a store (no {FILE_NAME} in it); make one with 'oocpeg convert'") from None
        raise InputError(f"{folder}: no such store; make one with 'oocpeg convert'") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check its permissions") from error
    return decode(content, path)


def decode(content: bytes, path: Path) -> Manifest:
    """Check the bytes of a manifest: syntax, version, types, checksum, names and sums."""
    advice = "restore the store or convert again"
    try:
        table: Any = json.loads(content)
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise DamagedError(f"{path}: not the manifest of an ooc-pegasos store; {advice}")
        if table.pop("checksum", None) != _checksum(table):
            raise DamagedError(f"{path}: the checksum does not match, so the file was changed or damaged; {advice}")
        if table.get("version") != VERSION:
            found = f"format version {table.get('version')!r}, where this program reads {VERSION}"
            raise InputError(f"{path}: {found}; update the program or convert again")
        manifest = typed.load(Manifest, table)
    except (ValueError, RecursionError) as error:  # of json, unicode or typed
        raise DamagedError(f"{path}: {error}; {advice}") from error
    problem = inconsistency(manifest)
    if problem:
        raise DamagedError(f"{path}: {problem}; {advice}")
    return manifest


def inconsistency(manifest: Manifest) -> str | None:
    """What in the manifest contradicts itself, if anything."""
    for chunk in manifest.chunks:
        if not _CHUNK_NAME.fullmatch(chunk.file):
            return f"{chunk.file!r} is not the name of a chunk file"
        if min(chunk.rows, chunk.nonzeros, chunk.entries, chunk.bytes, *chunk.label_counts, 0) < 0:
            return f"{chunk.file}: a negative count"
    if len({chunk.file for chunk in manifest.chunks}) != len(manifest.chunks):
        return "a chunk file is named twice"
    if manifest.rows != sum(chunk.rows for chunk in manifest.chunks):
        return "the chunks' rows do not add up"
    if manifest.nonzeros != sum(chunk.nonzeros for chunk in manifest.chunks):
        return "the chunks' non-zeros do not add up"
    if not 0 <= manifest.features <= 2**32 - 1:
        return f"{manifest.features} features"
    if manifest.rows == 0:
        return "no rows"
    if manifest.labels.task != "regression":
        sums = [sum(counts) for counts in zip(*(chunk.label_counts for chunk in manifest.chunks), strict=False)]
        if len(manifest.labels.classes) < 2 or len(sums) != len(manifest.labels.classes):
            return "labels and their counts differ in number"
        if sums != manifest.labels.counts or sum(sums) != manifest.rows:
            return "the chunks' label counts do not add up"
    if not all(map(math.isfinite, (manifest.statistics.max_row_norm, manifest.statistics.mean_row_norm))):
        return "a row norm is not finite"
    return None


def checksum_of(manifest: Manifest) -> str:
    """The checksum that stands in the file: it identifies the content of a store."""
    return _checksum(typed.dump(manifest))


def _checksum(table: dict[str, Any]) -> str:
    canonical = json.dumps({key: table[key] for key in table if key != "checksum"}, sort_keys=True)
    return f"{zlib.crc32(canonical.encode()):08x}"
