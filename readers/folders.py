"""Folders of plain text: a folder for each class with a document per file; without labels, files in any folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.declared_labels import is_number
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers.base import (
    DEFAULT_MEMORY,
    DESCRIBED_BAD_ROWS,
    BadRow,
    Format,
    LoadedTask,
    Note,
    ParsedBlock,
    Reader,
    ReadOptions,
    fixed_features,
    refuse_no_hash,
    tokens_of,
)
from ooc_pegasos.readers.feature_names import UnnamedBuckets
from ooc_pegasos.readers.hash_size import hashing_of
from ooc_pegasos.readers.sources import MEMORY_OF_LINE, Stamp
from ooc_pegasos.readers.tokens import TextHasher
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.labels import key_of
from ooc_pegasos.store.manifest import Recipe, SourceInfo
from ooc_pegasos.store.recipe import Hashing, Tokens
from ooc_pegasos.util.buffers import Pool
from ooc_pegasos.util.checksums import RunningHash, xxh64_hex

BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Document:
    """A file: number of its class, name below the root, size and time when it was listed."""

    group: int
    name: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class _Batch:
    """The content of a task: consecutive documents and their bytes."""

    documents: list[_Document]
    contents: list[bytes]

    @property
    def nbytes(self) -> int:
        """Bytes of all documents."""
        return sum(map(len, self.contents))


class FolderSource:
    """The documents below a root, listed first and then read once; `info()` is their fingerprint.

    The fingerprint's checksum is the XXH64 of a line `name size xxh64` for each document, sorted by name.
    """

    def __init__(self, root: str, by_class: bool = True) -> None:
        self.name = root
        self.classes: list[str] = []
        self.documents: list[_Document] = []
        self._hash = RunningHash()
        self._bytes = 0
        self._seen: set[tuple[int, int]] = set()
        self._changed_ns = 0
        try:
            self._list() if by_class else self._walk(0, "")
        except OSError as error:
            where = _printable(os.fsdecode(error.filename or root))
            raise InputError(f"{where}: {error.strerror}; check the path and its permissions") from error
        if not self.documents:
            what = "no documents in its folders; put each into a file of its class's folder"
            raise InputError(f"{_printable(root)}: {what if by_class else 'no documents in it; check the path'}")
        self.documents.sort(key=lambda document: os.fsencode(document.name))

    @property
    def stamp(self) -> Stamp:
        """Size of all documents, and the time of the last change to a document or folder."""
        return Stamp(sum(document.size for document in self.documents), self._changed_ns, True)

    def batches(self, start: int, state: dict[str, Any] | None, most: int) -> Iterator[LoadedTask]:
        """Yield the documents from number `start` on, at most `most` and BLOCK_BYTES at a time, or a single larger one.

        They are read here, not by the threads that parse them, because the checksum takes them in order.
        """
        self._resume(start, state)
        while start < len(self.documents):
            end, size = start, 0
            while end < len(self.documents) and end - start < most:
                size += self.documents[end].size
                if size > BLOCK_BYTES and end > start:
                    break
                end += 1
            documents = self.documents[start:end]
            batch = _Batch(documents, [self._content(document) for document in documents])
            before = self._bytes
            for document, content in zip(documents, batch.contents, strict=True):
                line = os.fsencode(document.name) + f" {len(content)} {xxh64_hex(content)}\n".encode()
                self._hash.update(line)
                self._bytes += len(content)
            last = _printable(documents[-1].name)
            state_after = {"hash": self._hash.state(), "bytes": self._bytes, "last": last}
            yield LoadedTask(0, end, self._bytes - before, batch, state_after)
            start = end

    def info(self, rows: int) -> SourceInfo:
        """Return the fingerprint of the documents read."""
        return SourceInfo(self.name, self._bytes, self._hash.hexdigest(), rows)

    def read_all(self) -> str:
        """Read all documents and return the checksum of the fingerprint."""
        for _piece in self.batches(0, None, 1000):
            pass
        return self._hash.hexdigest()

    def path(self, document: _Document) -> str:
        """Return the path of a document for messages."""
        return _printable(os.path.join(self.name, document.name))

    def _resume(self, start: int, state: dict[str, Any] | None) -> None:
        """Resume after document number `start` - 1, which must be the same as in the interrupted run."""
        self._hash, self._bytes = RunningHash(), 0
        if start == 0:
            return
        known = self.documents[start - 1].name if start <= len(self.documents) else ""
        if state is None or state["last"] != _printable(known):
            raise InputError(
                f"{_printable(self.name)}: other files than in the interrupted conversion; start over "
                "without {resume}"
            )
        self._hash, self._bytes = RunningHash.resume(state["hash"]), state["bytes"]

    def _content(self, document: _Document) -> bytes:
        try:
            with open(os.path.join(self.name, document.name), "rb", buffering=0) as file:
                content: bytes = file.read()
                status = os.fstat(file.fileno())
        except OSError as error:
            raise InputError(
                f"{self.path(document)}: {error.strerror} while reading; check it and try again"
            ) from error
        if (len(content), status.st_size, status.st_mtime_ns) != (document.size, document.size, document.modified_ns):
            raise InputError(
                f"{self.path(document)}: changed during the conversion; convert again when nobody writes to it"
            )
        return content

    def _list(self) -> None:
        shown = _printable(self.name)
        for name in _entries(self.name):
            path = os.path.join(self.name, name)
            if not os.path.isdir(path):
                raise InputError(
                    f"{_printable(path)}: a file next to the folders of the classes; move it into a folder or elsewhere"
                )
            if _printable(name) != name:
                raise InputError(f"{_printable(path)}: the name of the class is not UTF-8 text; rename the folder")
            self.classes.append(name)
        if not self.classes:
            raise InputError(f"{shown}: no folders in it; make one for each class, with a document per file")
        for group, name in enumerate(self.classes):
            self._walk(group, name)

    def _walk(self, group: int, folder: str) -> None:
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            path = os.path.join(self.name, folder)
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in self._seen:
                raise InputError(f"{_printable(path)}: reached twice, by a link; remove the link")
            self._seen.add((status.st_dev, status.st_ino))
            self._changed_ns = max(self._changed_ns, status.st_mtime_ns)
            for name in _entries(path):
                below = os.path.join(folder, name)
                status = os.stat(os.path.join(self.name, below))
                self._changed_ns = max(self._changed_ns, status.st_mtime_ns)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(below)
                elif stat.S_ISREG(status.st_mode):
                    self.documents.append(_Document(group, below, status.st_size, status.st_mtime_ns))
                else:
                    raise InputError(f"{_printable(os.path.join(path, name))}: neither a file nor a folder; remove it")


class FoldersFormat(Format):
    """Folders of plain text, a folder for each class."""

    name = "folders"
    title = "folders of texts"
    options = frozenset({"dictionary", "idf", "ngrams", "characters", "hash_bits", "hash_signed", "feature_names"})
    reads_folders = True
    id_name = "document"

    def check_inputs(self, inputs: Sequence[str]) -> None:
        """Raise UsageError for more than a folder."""
        if len(inputs) != 1 or not os.path.isdir(inputs[0]):
            raise UsageError("{format=folders}: give one folder, which has a folder of texts for each class")

    def check_options(self, config: ConvertConfig) -> None:
        """Raise UsageError for values that an option cannot have with texts."""
        refuse_no_hash(config, self.title)

    def recipe(self, config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
        """Return the recipe of a new store."""
        hashing, recipe = hashing_of(config, names), super().recipe(config, names, note)
        features = fixed_features(hashing.buckets, config)
        return replace(recipe, hashing=hashing, tokens=tokens_of(config), features=features)

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open a folder."""
        hasher = TextHasher(recipe.tokens or Tokens(), recipe.hashing or Hashing(), options.vocabulary)
        return TextFoldersReader(
            names[0],
            hasher,
            options.text_labels,
            stop_at_bad=options.stop_at_bad,
            with_labels=options.with_labels,
            names=options.feature_names,
            memory=options.memory,
        )

    def labels_are_text(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> bool:
        """Return True: labels are the names of folders."""
        return True


class TextFoldersReader:
    """Reader of folders; a task is some documents, read but not parsed."""

    unit = "row"
    memory_per_byte = 10

    def __init__(
        self,
        root: str,
        hasher: TextHasher,
        text_labels: bool,
        block_documents: int = 1000,
        stop_at_bad: bool = True,
        with_labels: bool = True,
        names: int = 0,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        """`names` is the number of names of hashed features to keep."""
        if not Path(root).is_dir():
            raise InputError(f"{_printable(root)}: no such folder; check the path")
        self.hasher = hasher
        self._source = FolderSource(root, with_labels)
        self.sources = [self._source]
        for document in self._source.documents:
            if document.size > BLOCK_BYTES and document.size * MEMORY_OF_LINE > memory:
                sizes = f"{document.size / 1e6:,.0f} MB takes {document.size * MEMORY_OF_LINE / 1e6:,.0f} MB of memory"
                problem = f"a document of {sizes}, and {memory / 1e6:,.0f} MB may be used"
                raise InputError(
                    f"{self._source.path(document)}: {problem}; give more, with {{memory}}, or leave it out"
                )
        self._most = max(block_documents, 1)
        self._stop_at_bad = stop_at_bad
        self._unnamed = UnnamedBuckets(hasher.features, 0 if hasher.hashing.dictionary else names)
        self._pool = Pool()
        for name in self._source.classes:
            if not text_labels and not is_number(name):
                raise InputError(
                    f"{os.path.join(root, name)}: the name of the class is not a number; rename the folder, "
                    "or if labels are words name them with {classes}"
                )
        keys = [key_of(name, text_labels) for name in self._source.classes]
        self._keys = np.array(keys if with_labels else [0], np.uint64)
        self._names = dict(zip(keys, self._source.classes, strict=True)) if text_labels else {}

    def tasks(self, source: int = 0, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[LoadedTask]:
        """Yield all batches from document number `start` on."""
        if source == 0:
            yield from self._source.batches(start, state, self._most)

    def read(self, task: LoadedTask) -> ParsedBlock:
        """Hash the documents of a batch."""
        import pyarrow as pa

        documents, contents = task.content.documents, task.content.contents
        strings, bad = self._texts(documents, contents)
        tried = len(documents) if not (bad and self._stop_at_bad) else bad[0].line + 1
        wrong = {row.line for row in bad}
        numbers_left = [number for number in range(tried) if number not in wrong] if wrong else range(tried)
        if strings is None:
            strings = pa.array([contents[number] for number in numbers_left], pa.large_binary()).cast(pa.large_string())
        features = self._unnamed.new()
        self._unnamed.name_words(self.hasher, strings, features)
        lengths, indices, values = self.hasher.part(strings)
        rows = len(lengths)
        scratch = self._pool.take()
        labels = scratch.array("labels", rows)
        indptr = scratch.array("indptr", rows + 1, np.int64)
        lines = scratch.array("lines", rows, np.int64)
        numbers = scratch.array("numbers", rows, np.uint32)
        indptr[0] = 0
        np.cumsum(lengths, out=indptr[1:])
        lines[:] = numbers[:] = numbers_left
        keys = self._keys[[documents[number].group for number in numbers_left]]
        labels.view(np.uint64)[:] = keys
        names = {key: self._names[key] for key in np.unique(keys).tolist()} if self._names else {}
        block = CsrBlock(indptr, indices, values, labels, self.hasher.features)
        described = bad[:DESCRIBED_BAD_ROWS]
        ids = pa.array([_printable(documents[number].name) for number in numbers_left], pa.string())
        return ParsedBlock(task, block, lines, numbers, tried, described, len(bad), names, scratch, ids, features)

    def search(self, buckets: np.ndarray) -> None:
        """Record the names of some buckets alone."""
        self._unnamed.only(buckets)

    def named(self, features: dict[int, str]) -> None:
        """Record names of buckets."""
        self._unnamed.named(features)

    def strings(self, task: LoadedTask) -> Iterator[tuple[None, Any]]:
        """Yield the texts of a batch, as `TablesReader.strings` does."""
        import pyarrow as pa

        strings, bad = self._texts(task.content.documents, task.content.contents)
        if strings is None:
            wrong = {row.line for row in bad}
            good = [content for number, content in enumerate(task.content.contents) if number not in wrong]
            strings = pa.array(good, pa.large_binary()).cast(pa.large_string())
        yield None, strings

    def release(self, parsed: ParsedBlock) -> None:
        """Take back the arrays of `parsed` for another block."""
        self._pool.give_back(parsed.scratch)

    def _texts(self, documents: list[_Document], contents: list[bytes]) -> tuple[Any, list[BadRow]]:
        """Return (all documents as an Arrow array or None, documents of invalid UTF-8, only the first to stop at)."""
        import pyarrow as pa

        try:
            return pa.array(contents, pa.large_binary()).cast(pa.large_string()), []
        except pa.ArrowInvalid:
            pass
        bad = []
        for number, content in enumerate(contents):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                where = self._source.path(documents[number])
                bad.append(BadRow(number, f"{where} is not UTF-8 text from byte {error.start + 1:,} on; convert it"))
                if self._stop_at_bad:
                    break
        return None, bad


def _entries(folder: str) -> list[str]:
    """Return the names in a folder without hidden ones, in an order that is independent of the locale."""
    return sorted((name for name in os.listdir(folder) if not name.startswith(".")), key=os.fsencode)


def _printable(name: str) -> str:
    """Return a name that can be printed and stored, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
