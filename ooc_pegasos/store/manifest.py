"""manifest.json: everything about a store except its rows. See docs/store-format.md."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ooc_pegasos.errors import CorruptFileError, InputError
from ooc_pegasos.formats import FORMATS
from ooc_pegasos.option_texts import is_split
from ooc_pegasos.store.csr_block import COUNTS, LEVELS, coding_in_files, entry_bytes
from ooc_pegasos.store.label_rule import problem_of_rule
from ooc_pegasos.store.recipe import Hashing, Table, Tokens, problem_of_hashing, problem_of_table, problem_of_tokens
from ooc_pegasos.util import json_checksum, typed_json
from ooc_pegasos.util.files import read_file, write_atomically
from ooc_pegasos.util.kind_of_path import kind_of_path
from ooc_pegasos.util.typed_json import omitted_default

FORMAT, VERSION = "ooc-pegasos store", 1
VERSION_OF_COUNTS = 2
"""The version of a store whose files contain counts, which programs that know version 1 alone cannot read."""
FILE_NAME = "manifest.json"
_LARGEST = 1e100
"""Above all norms and weights of rows, with a finite square."""
MOST_FEATURES = 2**32 - 1
_MOST_ROWS = 2**62
PAGE = 4096
"""Indices and values begin at multiples of this number, so that they can be mapped, or read to their final address."""
_CHUNK_NAME = re.compile(r"chunk-\d{6,}-[0-9a-f]{8}\.arrow")
_IDS_NAME = re.compile(r"ids-\d{6,}-[0-9a-f]{8}\.arrow")
_VOCABULARY_NAME = re.compile(r"features-[0-9a-f]{16}\.arrow")

Task = Literal["binary", "multiclass", "regression"]


def round_up(count: int, unit: int = PAGE) -> int:
    """Return the next multiple of `unit`, by default a page."""
    return -(-count // unit) * unit


@dataclass(frozen=True)
class Starts:
    """Offsets of the columns in a chunk file. Indices and values begin at page boundaries."""

    labels: int
    weights: int | None
    offsets: int
    indices: int
    values: int | None


@dataclass(frozen=True)
class IdsInfo:
    """The file with the identifiers of the rows of a chunk; see `store/row_ids.py`."""

    file: str
    bytes: int
    xxh64: str


@dataclass(frozen=True)
class ChunkInfo:
    """A chunk file. `entries` includes escapes."""

    file: str
    rows: int
    nonzeros: int
    entries: int
    bytes: int
    crc32: str
    xxh64: str
    label_counts: list[int]
    starts: Starts
    ids: IdsInfo | None = None
    """None if no row has an identifier. Training never opens this file."""

    @property
    def files(self) -> list[str]:
        """The names of all files of the chunk."""
        return [self.file, self.ids.file] if self.ids else [self.file]


@dataclass(frozen=True)
class SourceInfo:
    """Fingerprint of an input: size and XXH64 of its bytes on disk."""

    name: str
    """The absolute path of a file, a URL without its secrets, or another name such as `memory`."""
    size: int
    xxh64: str
    rows: int
    weights: str | None = None
    """XXH64 of the file of weights; None if there was none and all weights are 1."""
    labels: str | None = None
    """XXH64 of the file of labels; None if there was none, or the labels came from a pipe."""
    modified_ns: int | None = None
    """Time of the last change; None if not known."""
    samples: str | None = None
    """XXH64 of some of its blocks, see `readers.sources.samples_of`; None if not known."""

    @property
    def fingerprint(self) -> str | None:
        """Size and samples of the content; None if not known."""
        return None if self.samples is None else f"{self.size}:{self.samples}"


@dataclass(frozen=True)
class LabelInfo:
    """Meaning of the stored labels: -1 and 1 (binary), 0, 1, ... (multiclass), the target (regression).

    `classes` are the labels in the spelling of the input: the negative and the positive label, or by class number. With
    `rest`, every label but the last class is negative. `text`: labels are words, compared byte by byte.
    """

    task: Task
    classes: list[str]
    rest: bool
    counts: list[int]
    text: bool
    positive: list[str] | None = omitted_default(None)  # noqa: RUF009 (None is no list that is shared)
    """With `rest`, the rule of positive labels, see `store/label_rule.py`; None: the last class alone."""


@dataclass(frozen=True)
class Layout:
    """Codings of the columns, the same for all chunks of a store. `levels` are those of `code8` and `count8`."""

    index_coding: Literal["gap8", "gap16", "uint32"]
    values: Literal["float32", "float16", "bfloat16", "code8", "count8"] | None
    labels: Literal["float32", "float64"]
    levels: list[float]

    @property
    def version(self) -> int:
        """The version of the format of a store with this layout."""
        return VERSION_OF_COUNTS if self.values == COUNTS else VERSION


@dataclass(frozen=True)
class Recipe:
    """Map from a row of the input to a row of the store; also applied to append and to score new files."""

    reader: str
    index_base: int
    features: int | None
    normalize: Literal["l2"] | None
    values: Literal["float16", "bfloat16"] | None
    """The type to which values were rounded, as the last step."""
    table: Table | None = None
    """The columns used, if the inputs are tables."""
    hashing: Hashing | None = None
    """Hashing of feature names, if the input is text, with or without names."""
    label_column: int | None = None
    """The column of labels in dense arrays."""
    tokens: Tokens | None = None
    """The tokens of text, if rows are whole texts."""

    @property
    def needs_vocabulary(self) -> bool:
        """True if rows also depend on a vocabulary: a dictionary of names, or document frequencies."""
        hashing, tokens = self.hashing_of_names, self.tokens_of_texts
        return bool((hashing and hashing.dictionary) or (tokens and tokens.texts))

    def without_findings(self) -> Recipe:
        """Return the recipe without the results of a pass over the inputs."""
        hashing = self.hashing and replace(self.hashing, dictionary=0)
        tokens, table = self.tokens and replace(self.tokens, texts=0), self.table
        if table:
            columns = [replace(column, scale=1.0, shift=0.0) for column in table.columns]
            whole = replace(table.hashing, dictionary=0), replace(table.tokens, texts=0)
            table = replace(table, columns=columns, scaling="none", hashing=whole[0], tokens=whole[1])
        return replace(self, hashing=hashing, tokens=tokens, table=table)

    def with_bits(self, bits: int) -> Recipe:
        """Return the recipe with another number of buckets, if it hashes names."""
        if self.table and self.features == self.table.hashing.buckets:
            hashing = replace(self.table.hashing, bits=bits)
            return replace(self, table=replace(self.table, hashing=hashing), features=hashing.buckets)
        if self.table:
            return replace(self, table=replace(self.table, hashing=replace(self.table.hashing, bits=bits)))
        if self.hashing is None:
            return self
        hashing = replace(self.hashing, bits=bits)
        return replace(self, hashing=hashing, features=hashing.buckets)

    @property
    def counts_words(self) -> bool:
        """True if values are counts of words, times idf or divided by norms, as far as other columns add none."""
        has_texts = any(column.kind == "text" for column in self.table.columns) if self.table else bool(self.tokens)
        tokens = self.tokens_of_texts
        return has_texts and self.values is None and bool((tokens and tokens.texts) or self.normalize)

    @property
    def hashing_of_names(self) -> Hashing | None:
        """The hashing of feature names, of the table or of the recipe."""
        return self.table.hashing if self.table else self.hashing

    @property
    def tokens_of_texts(self) -> Tokens | None:
        """The tokens of texts, of the table or of the recipe."""
        return self.table.tokens if self.table else self.tokens


@dataclass(frozen=True)
class VocabularyInfo:
    """The file with properties of features: names and document frequencies."""

    file: str
    features: int
    bytes: int
    xxh64: str


@dataclass(frozen=True)
class Statistics:
    """Statistics of the stored rows."""

    max_row_norm: float
    mean_row_norm: float
    max_row_nonzeros: int
    empty_rows: int
    rounding_error: float
    """The largest relative rounding error of a value, 0 if all are exact."""
    mean_weight: float = 1.0
    max_weight: float = 1.0
    max_weighted_square: float | None = None
    """The largest c ||x||^2 of a row x with weight c; None if all weights are 1."""

    @property
    def largest_square(self) -> float:
        """The largest c ||x||^2 of a row, with c = 1 without weights."""
        return self.max_row_norm**2 if self.max_weighted_square is None else self.max_weighted_square


@dataclass(frozen=True)
class Part:
    """The rows of one conversion: its numbers of chunks and sources, and the statistics of its rows."""

    rows: int
    chunks: int
    sources: int
    statistics: Statistics
    rejected: int = omitted_default(0)
    """Rejected rows."""


@dataclass(frozen=True)
class Split:
    """The rows of a store, if others of the same inputs are reserved for tests."""

    part: Literal["train", "test"]
    fraction: float
    """The share of the rows that are for tests; 0 if a rule chooses them."""
    rule: str | None = omitted_default(None)
    """A rule for the rows that are for tests, like `date>=2026-10-01`."""
    is_given: bool = omitted_default(False)
    """True if the inputs were in two parts already, so that rows that are appended are in the part of the store."""


@dataclass(frozen=True)
class Manifest:
    """The manifest without its own checksum."""

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
    vocabulary: VocabularyInfo | None = None
    """None if nothing is known about features; see `store/vocabulary.py`."""
    parts: list[Part] = field(default_factory=list)
    """One for each conversion that has appended rows; empty if there was only one. See `store/append_expire.py`."""
    first_row: int = 0
    """The number of the first row, which is the number of expired rows."""
    split: Split | None = omitted_default(None)  # noqa: RUF009 (Split is frozen)
    """None if all rows of the inputs are in the store."""

    def all_parts(self) -> list[Part]:
        """Return the parts of the store, at least one."""
        return self.parts or [Part(self.rows, len(self.chunks), len(self.sources), self.statistics, self.rejected)]

    @property
    def bytes(self) -> int:
        """The size of all chunk files."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def weighted(self) -> bool:
        """True if some row has a weight other than 1."""
        return any(chunk.starts.weights is not None for chunk in self.chunks)

    @property
    def weight_sum(self) -> float:
        """The sum of the weights of all rows."""
        return self.statistics.mean_weight * self.rows

    def grouping_by_label(self) -> float:
        """Return the share of the variance of labels between chunks: about 0 in random order, 1 if sorted."""
        total = self.rows - sum(count**2 for count in self.labels.counts) / self.rows
        if self.labels.task == "regression" or total <= 0:
            return 0.0
        within = sum(c.rows - sum(n**2 for n in c.label_counts) / c.rows for c in self.chunks if c.rows)
        return 1 - within / total


def test_path(store: str | Path) -> Path:
    """Return the place of the store of the test rows that go with a store."""
    return Path(f"{store}.test")


def with_test_rows(store: str | Path, made: Manifest) -> Path | None:
    """Return the store of the test rows of a store, given its manifest; None if there is none, or one of other rows."""
    place, split = test_path(store), made.split
    if split is None or split.part != "train" or not (place / FILE_NAME).exists():
        return None
    test = read(place)
    goes_with = test.split == replace(split, part="test") and test.recipe == made.recipe
    return place if goes_with else None


def encode(manifest: Manifest) -> bytes:
    """Return the content of the file: readable JSON whose last key is the CRC-32 of the rest."""
    return json_checksum.encode(typed_json.dump(manifest))


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a store atomically."""
    write_atomically(folder / FILE_NAME, encode(manifest))


def read(folder: Path) -> Manifest:
    """Read and check the manifest of a store."""
    path = folder / FILE_NAME
    try:
        content = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        kind = kind_of_path(folder)
        if kind not in ("", "a folder", "an Arrow file"):
            raise InputError(f"{folder}: {kind}, not a store; name a store made by 'oocpeg convert'") from None
        if folder.is_file():
            raise InputError(f"{folder}: a file, not a store; make a store of it with 'oocpeg convert'") from None
        if folder.exists():
            raise InputError(f"{folder}: not a store (no {FILE_NAME} in it); make one with 'oocpeg convert'") from None
        raise InputError(f"{folder}: no such store; make one with 'oocpeg convert'") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check its permissions") from error
    return decode(content, path)


def is_one(content: bytes) -> bool:
    """True if the bytes are a manifest of this format, possibly damaged or of another version."""
    try:
        table: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(table, dict) and table.get("format") == FORMAT


def names_file(name: str) -> bool:
    """True if the name is that of an Arrow file of a store."""
    return any(pattern.fullmatch(name) for pattern in (_CHUNK_NAME, _IDS_NAME, _VOCABULARY_NAME))


def decode(content: bytes, path: Path) -> Manifest:
    """Check the bytes of a manifest: syntax, version, types, checksum, names and sums."""
    advice = "restore the store or convert again"
    try:
        table: Any = json.loads(content)
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise CorruptFileError(f"{path}: not the manifest of an ooc-pegasos store; {advice}")
        if not json_checksum.is_sound(table):
            raise CorruptFileError(f"{path}: the checksum does not match, so the file was changed or damaged; {advice}")
        if table.get("version") not in (VERSION, VERSION_OF_COUNTS):
            known = f"{VERSION} and {VERSION_OF_COUNTS}"
            found = f"format version {table.get('version')!r}, where this program reads {known}"
            raise InputError(f"{path}: {found}; update the program or convert again")
        manifest = typed_json.load(Manifest, {key: value for key, value in table.items() if key != "checksum"})
    except (ValueError, RecursionError) as error:  # of json, unicode or typed
        raise CorruptFileError(f"{path}: {error}; {advice}") from error
    problem = inconsistency(manifest)
    if problem:
        raise CorruptFileError(f"{path}: {problem}; {advice}")
    return manifest


def inconsistency(manifest: Manifest) -> str | None:
    """Return a contradiction within the manifest, or None."""
    if manifest.version != manifest.layout.version:
        return f"format version {manifest.version} with values as {manifest.layout.values}"
    for chunk in manifest.chunks:
        if not _CHUNK_NAME.fullmatch(chunk.file):
            return f"{chunk.file!r} is not the name of a chunk file"
        if chunk.ids and not _IDS_NAME.fullmatch(chunk.ids.file):
            return f"{chunk.ids.file!r} is not the name of a file of ids"
        counts = (chunk.rows, chunk.nonzeros, chunk.entries, chunk.bytes, chunk.ids.bytes if chunk.ids else 0)
        if min(*counts, *chunk.label_counts) < 0:
            return f"{chunk.file}: a negative count"
        if not _columns_fit(chunk, manifest.layout):
            return f"{chunk.file}: its columns are not where they could be"
    files = [file for chunk in manifest.chunks for file in chunk.files]
    if len(set(files)) != len(files):
        return "a file is named twice"
    if manifest.rows != sum(chunk.rows for chunk in manifest.chunks):
        return "the chunks' rows do not add up"
    if manifest.nonzeros != sum(chunk.nonzeros for chunk in manifest.chunks):
        return "the chunks' non-zeros do not add up"
    has_codes = coding_in_files(manifest.layout.values) == "code8"
    if len(manifest.layout.levels) > LEVELS or has_codes != bool(manifest.layout.levels):
        return "a table of levels that does not fit the coding of values"
    if any(level != (0 if place == 0 else _float32(level)) for place, level in enumerate(manifest.layout.levels)):
        return "a table of levels that are not float32, or do not begin with 0"
    if not 0 <= manifest.features <= MOST_FEATURES:
        return f"{manifest.features} features"
    if manifest.rows == 0:
        return "no rows"
    if manifest.labels.task != "regression":
        sums = [sum(counts) for counts in zip(*(chunk.label_counts for chunk in manifest.chunks), strict=False)]
        if len(manifest.labels.classes) < 2 or len(sums) != len(manifest.labels.classes):
            return "labels and their counts differ in number"
        if sums != manifest.labels.counts or sum(sums) != manifest.rows:
            return "the chunks' label counts do not add up"
    wrong = problem_of_labels(manifest.labels)
    if wrong:
        return wrong
    if manifest.vocabulary and not _VOCABULARY_NAME.fullmatch(manifest.vocabulary.file):
        return f"{manifest.vocabulary.file!r} is not the name of a file of features"
    if manifest.split and manifest.split.rule is not None and not is_split(manifest.split.rule):
        return "a rule for test rows that cannot be applied"
    recipe = manifest.recipe
    wrong = problem_of_recipe(recipe)
    if wrong:
        return f"a recipe with {wrong}"
    if recipe.needs_vocabulary and manifest.vocabulary is None:
        return "a recipe that needs a vocabulary, and none"
    if manifest.parts and _totals(manifest.parts) != (manifest.rows, len(manifest.chunks), len(manifest.sources)):
        return "parts that do not add up"
    if max(manifest.first_row, manifest.rows) > _MOST_ROWS:
        return f"more than {_MOST_ROWS:,} rows"
    if min([0, manifest.first_row, *(min(p.rows, p.chunks, p.sources) for p in manifest.parts)]) < 0:
        return "a negative count"
    known = manifest.statistics
    numbers = [known.max_row_norm, known.mean_row_norm, known.rounding_error, known.mean_weight, known.max_weight]
    numbers += [known.max_weighted_square or 0.0, known.max_row_nonzeros, known.empty_rows]
    if not all(0 <= number < _LARGEST for number in numbers):
        return "a number among the statistics is none that rows can have"
    if not 0 < known.mean_weight <= known.max_weight * (1 + 1e-9):  # a mean may be rounded
        return "the statistics of the weights contradict each other"
    if not manifest.weighted and (known.mean_weight, known.max_weight, known.max_weighted_square) != (1, 1, None):
        return "the statistics mention weights, but no row has one"
    return None


def _totals(parts: list[Part]) -> tuple[int, int, int]:
    """Return the numbers of rows, chunks and sources of all parts."""
    return sum(p.rows for p in parts), sum(p.chunks for p in parts), sum(p.sources for p in parts)


def problem_of_labels(labels: LabelInfo) -> str | None:
    """Return a contradiction within the labels, or None."""
    least, most = {"binary": (2, 2), "multiclass": (2, math.inf), "regression": (0, 0)}[labels.task]
    if not least <= len(labels.classes) <= most or len(set(labels.classes)) != len(labels.classes):
        return f"{len(labels.classes)} classes of a {labels.task} task, or one of them twice"
    if not labels.text and not labels.rest and not all(map(_is_number, labels.classes)):
        return "classes that should be numbers and are not"
    if labels.positive is not None:
        return problem_of_rule(labels.positive, labels.text) if labels.rest else "a rule for labels that have none"
    return None


def _is_number(word: str) -> bool:
    try:
        return not math.isnan(float(word))
    except ValueError:
        return False


def problem_of_recipe(recipe: Recipe) -> str | None:
    """Return a contradiction within a recipe, or None."""
    if recipe.reader not in FORMATS:
        return f"the format {recipe.reader!r}, which is not registered"
    if recipe.index_base not in (0, 1):
        return f"indices from {recipe.index_base}"
    if recipe.features is not None and not 0 <= recipe.features <= MOST_FEATURES:
        return f"{recipe.features} features"
    if recipe.table:
        return problem_of_table(recipe.table)
    problem = problem_of_hashing(recipe.hashing) if recipe.hashing else None
    return problem or (problem_of_tokens(recipe.tokens) if recipe.tokens else None)


def _float32(number: float) -> float:
    """Return the nearest finite float32, or NaN."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0]) if math.isfinite(number) else math.nan
    except OverflowError:
        return math.nan


def _columns_fit(chunk: ChunkInfo, layout: Layout) -> bool:
    """True if each column lies within the file, in order, with entries at page boundaries."""
    starts, index = chunk.starts, entry_bytes(layout.index_coding, None)
    value = entry_bytes(layout.index_coding, layout.values) - index
    after_indices = starts.indices + index * chunk.entries
    values = starts.values if starts.values is not None else after_indices
    if starts.indices % PAGE or (starts.values is None) != (layout.values is None):
        return False
    if starts.values is not None and starts.values != round_up(after_indices):
        return False
    weights = starts.offsets if starts.weights is None else starts.weights
    label = 4 if layout.labels == "float32" else 8
    return (
        starts.labels >= 0
        and starts.labels % 8 == weights % 8 == starts.offsets % 8 == 0
        and starts.labels + label * chunk.rows <= weights
        and (starts.weights is None or weights + 4 * chunk.rows <= starts.offsets)
        and starts.offsets + 4 * (chunk.rows + 1) <= starts.indices
        and values + value * chunk.entries <= chunk.bytes
    )


def checksum_of(manifest: Manifest) -> str:
    """Return the checksum in the file, which identifies the content of a store."""
    return json_checksum.checksum_of(typed_json.dump(manifest))
