"""The interface of input formats: a format opens inputs with a reader, which cuts them into tasks and parses these.

Tasks come in order; several threads parse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.manifest import Recipe, SourceInfo
from ooc_pegasos.store.recipe import Tokens
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util.buffers import Scratch

Block = TypeVar("Block")
TO_UTF8 = "convert the file to UTF-8, as with 'iconv -f cp1252 -t utf-8'"
LARGEST_INDEX = 2**32 - 2
DESCRIBED_BAD_ROWS = 1000
"""Bad rows of a block that are described; the others are counted."""
DEFAULT_MEMORY = 1 << 30
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
"""Ends of the names of compressed files."""


class Source(Protocol):
    """An input, all of which was read."""

    name: str

    def info(self, rows: int) -> SourceInfo:
        """Return the fingerprint."""


class Task(Protocol):
    """A part of an input that is not parsed yet."""

    @property
    def source(self) -> int:
        """Number of the input."""

    @property
    def end(self) -> int:
        """Position in the input where the task ends, in a unit of the reader, for `Reader.tasks`."""

    @property
    def consumed(self) -> int:
        """Bytes of the input on disk, for the progress display."""

    @property
    def hash_state(self) -> dict[str, Any] | None:
        """State that `Reader.tasks` needs besides `end` to resume there, or None."""


@dataclass
class LoadedTask:
    """A task whose content is in memory."""

    source: int
    end: int
    consumed: int
    content: Any
    hash_state: dict[str, Any] | None = None


@dataclass(frozen=True)
class BadRow:
    """A bad row: its line or number, counted from 0 at the start of its block, and the problem."""

    line: int
    problem: str


@dataclass
class ParsedBlock:
    """The rows of a task. Indices increase within a row; they are as written, whatever their base.

    With text labels, `block.labels` holds the bits of the hash of each label, and `names` maps hashes to labels.
    """

    task: Any
    block: CsrBlock
    lines: np.ndarray
    """Line of each good row, counted from the start of the block; its number, if the input has no lines."""
    numbers: np.ndarray
    """Number of each good row in the block, bad rows included."""
    line_count: int
    """Lines, or rows if there are no lines, of the block, bad rows included."""
    bad: list[BadRow]
    """The first DESCRIBED_BAD_ROWS bad rows."""
    bad_lines: int
    """Number of bad rows."""
    names: dict[int, str]
    scratch: Scratch
    """Memory of the arrays; see `Reader.release`."""
    ids: Any = None
    """An Arrow array with the identifier of each row, or None."""
    features: dict[int, str] = field(default_factory=dict)
    """Names of hashed features that occurred here first, where names are kept."""
    is_test: np.ndarray | None = None
    """Mask of the rows for tests, where a rule chooses them."""


class Reader(Protocol):
    """Reader of some inputs."""

    @property
    def sources(self) -> Sequence[Source]:
        """The inputs, by number."""

    @property
    def unit(self) -> str:
        """Unit of `ParsedBlock.lines`: "line" or "row"."""

    @property
    def memory_per_byte(self) -> int:
        """Bytes of memory, about, that a byte of a task takes until its rows are on disk."""

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """Yield all tasks in order, from position `start` of input number `source` on."""

    def read(self, task: Any) -> ParsedBlock:
        """Parse a task, thread-safe. Raises InputError for problems that concern more than a row."""

    def release(self, parsed: ParsedBlock) -> None:
        """Take back the arrays of `parsed` for another block."""


def chained(
    inputs: Iterable[Callable[[int, dict[str, Any] | None], Iterator[Block]]], start: int, state: dict[str, Any] | None
) -> Iterator[Block]:
    """Return the blocks of several inputs, of the first one from a position on."""
    positions = chain([(start, state)], repeat((0, None)))
    return chain.from_iterable(blocks(*position) for blocks, position in zip(inputs, positions, strict=False))


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader besides the recipe, all fixed before the first row."""

    block_size: int = 1 << 20
    """Bytes of a task, about."""
    text_labels: bool = False
    """True if labels are words."""
    smallest_index: int = 0
    """The first index: 1 where the store or the model counts from 1."""
    largest_index: int = LARGEST_INDEX
    stop_at_bad: bool = True
    with_labels: bool = True
    """If False, rows need no labels, and all labels are 0."""
    feature_names: int = 0
    """Number of names of hashed features to keep."""
    labels: str | None = None
    """The file of labels."""
    vocabulary: Vocabulary | None = None
    """The vocabulary that the recipe needs."""
    memory: int = DEFAULT_MEMORY
    """Bytes that a long row may take."""
    split: str | None = None
    """The rule for the rows that are for tests."""


Note = Callable[[str], None]
"""Takes a remark for the user."""


class Format:
    """An input format: which files are of this format, which options it understands, and how their rows are read.

    `registry.register` adds a format.
    """

    name: ClassVar[str]
    """The value of the option `format`; stores and models keep this name."""
    title: ClassVar[str]
    """The plural in messages: "tables"."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Ends of file names, in front of that of a compression."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Options of `ConvertConfig` that only some formats understand, this one among them."""
    is_text: ClassVar[bool] = False
    """True if a file that no format detects may be of this format."""
    has_plain_indices: ClassVar[bool] = False
    """True if indices are stored as written: files of all these formats can be in one store."""
    has_columns: ClassVar[bool] = False
    """True if the recipe selects columns."""
    reads_folders: ClassVar[bool] = False
    """True if an input is a folder."""
    searches_folders: ClassVar[bool] = False
    """True if an input may be a folder with files of this format; see `files_in`."""
    id_name: ClassVar[str] = "id"
    """Name of the identifiers of rows, in predictions."""

    @property
    def has_index_base(self) -> bool:
        """True if the first index is 0 or 1, as the option or the smallest index says."""
        return "index_base" in self.options

    def detect(self, first_bytes: bytes, name: str) -> bool:
        """True if a file is of this format by its first bytes or by its name; each may be empty."""
        return without_compression(name).endswith(self.suffixes)

    def files_in(self, folder: str) -> list[str]:
        """Return the paths of the files of this format in a folder, from there on."""
        return []

    def check_inputs(self, inputs: Sequence[str]) -> None:
        """Raise UsageError for inputs that cannot be read together."""

    def check_options(self, config: ConvertConfig) -> None:
        """Raise UsageError for values that an option cannot have with this format."""

    def recipe(self, config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
        """Return the recipe of a new store; `note` takes remarks on choices made."""
        return Recipe(self.name, 0, config.features, config.normalize, config.rounding)

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open inputs."""
        raise NotImplementedError

    def labels_are_text(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> bool:
        """True if the first labels that can be read are words."""
        try:
            reader = self.open(names, recipe, options)
            for task in reader.tasks():
                if found := reader.read(task).names.values():
                    return not any(looks_like_a_number(name) for name in found)
        except InputError:
            pass  # the first such row is refused when it is read
        return False


def refuse_no_hash(config: ConvertConfig, title: str) -> None:
    """Raise UsageError if hashing is off, for a format whose feature names are not indices."""
    if config.hash_bits == 0:
        raise UsageError(f"{{hash_bits=0}}: feature names in {title} are not indices; choose 1 to 31")


def tokens_of(config: ConvertConfig) -> Tokens:
    """Return the n-grams that the options ask for."""
    least, most = config.ngram_range()
    return Tokens(characters=config.characters, least=least, most=most)


def fixed_features(features: int | None, config: ConvertConfig) -> int | None:
    """Return the number of features where the columns or the hash determine it. Raises UsageError."""
    if features is not None and config.features not in (None, features):
        problem = "the columns, {hash_bits} or {dictionary} determine the number of features"
        raise UsageError(f"{{features={config.features}}}: {problem}; leave it out")
    return config.features if features is None else features


def looks_like_a_number(word: str) -> bool:
    """True if a word can be read as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def without_compression(name: str) -> str:
    """Return the name of a file in lower case, without the end that a compression adds."""
    stem = name.lower()
    for suffix in COMPRESSIONS:
        stem = stem.removesuffix(suffix)
    return stem


def memory_of(reader: Reader, task: Any) -> int:
    """Return the bytes of memory, about, that a task takes until its rows are on disk; 0 if its content is on disk."""
    held: int = task.length if hasattr(task, "length") else _bytes_of(getattr(task, "content", None))
    return held * reader.memory_per_byte


def row_location(name: str, unit: str, number: int) -> str:
    """Return the position of a row for messages, counted from 1: `name:12` or `name: row 12`."""
    return f"{name}:{number}" if unit == "line" else f"{name}: row {number:,}"


def _bytes_of(content: Any) -> int:
    """Return the bytes of a record batch or an array, 0 for None."""
    try:
        return int(getattr(content, "nbytes", 0))
    except TypeError:  # old versions of pyarrow do not know the size of string views
        return int(content.get_total_buffer_size())
