"""Vowpal Wabbit text: `[label [importance]] ['tag]|[namespace[:scale]] feature[:value] ... |...`, one row a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse import vw as kernels
from ooc_pegasos.compiled.parse.lines import PADDING
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import literal
from ooc_pegasos.readers.base import (
    DEFAULT_MEMORY,
    DESCRIBED_BAD_ROWS,
    LARGEST_INDEX,
    TO_UTF8,
    BadRow,
    Format,
    Note,
    ParsedBlock,
    Reader,
    ReadOptions,
    fixed_features,
)
from ooc_pegasos.readers.feature_names import UnnamedBuckets
from ooc_pegasos.readers.hash_size import hashing_of
from ooc_pegasos.readers.sources import TextBlock
from ooc_pegasos.readers.text_reader import RowArrays, TextReader, name_labels
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.recipe import Hashing
from ooc_pegasos.util.buffers import Scratch

PROBLEMS = {
    kernels.BAR_MISSING: "no '|' in the line that begins with {line}; put one before the features, and check that this "
    "is Vowpal Wabbit text",
    kernels.LABEL_MISSING: "no label; put one first, with a blank between it and the bar (what touches the bar is a "
    "tag)",
    kernels.LABEL_NOT_NUMBER: "the label {word} is not a number; correct it, or if labels are words name them with "
    "{{classes}}",
    kernels.LABEL_NOT_FINITE: "the label {word} is not finite; remove the row or correct it",
    kernels.LABEL_SEVERAL: "{word} is more than one label; give every row one",
    kernels.LABEL_WITH_COST: "the label {word} has a cost; give every row one plain label",
    kernels.LABEL_NOT_UTF8: f"the label {{word}} is not UTF-8 text; {TO_UTF8}",
    kernels.IMPORTANCE_NOT_NUMBER: "the importance {word} is not a number; correct it, or if it is a tag put a ' "
    "before it",
    kernels.IMPORTANCE_OUT_OF_RANGE: "the importance {word} is not from 1e-9 to 1e9; leave out rows that are not to "
    "count, and scale the importance of the others",
    kernels.BASE: "{word} after the importance is an initial prediction (base), which is not supported; remove it, or "
    "if it is a tag put a ' before it",
    kernels.TAG_MISPLACED: "the tag {word} is not the last word before the bar; put it there",
    kernels.TAG_NOT_UTF8: f"the tag {{word}} is not UTF-8 text; {TO_UTF8}",
    kernels.NAMESPACE_UNNAMED: "a ':' right after the bar; name the namespace, or put a blank after the bar",
    kernels.NAMESPACE_TOO_LONG: f"a namespace with a name of more than {kernels.LONGEST_NAMESPACE:,} bytes; shorten "
    "it, and check that this is Vowpal Wabbit text",
    kernels.NAMESPACES_SEVERAL: "features of the namespaces {name} and {other} in one row, where the names of features "
    "are their indices; hash the names, with {{hash_bits}}",
    kernels.SCALE_NOT_NUMBER: "the scale {value} of namespace {name} is not a number; correct it",
    kernels.SCALE_NOT_FINITE: "the scale {value} of namespace {name} is not finite; correct it",
    kernels.FEATURE_NO_INDEX: "the name of feature {name} is not an index; hash the names, with {{hash_bits}}",
    kernels.INDEX_TOO_SMALL: "index 0 in 1-based data, {word}; correct it or convert with {{index_base=0}}",
    kernels.INDEX_TOO_LARGE: "the index in {word} is above the limit of {limit}; correct it or allow more {{features}} "
    "(at most 4,294,967,294), or hash the names, with {{hash_bits}}",
    kernels.INDEX_DUPLICATE: "the index {number} occurs twice in the row; correct it",
    kernels.VALUE_NOT_NUMBER: "the value {value} of feature {name} is not a number; correct it, or if it is a word "
    "write name=word",
    kernels.VALUE_NOT_FINITE: "the value {value} of feature {name} is not finite; remove the row or correct it",
    kernels.VALUE_TOO_LARGE: "the value of feature {name} is too large for float32; scale the data",
    kernels.SUM_TOO_LARGE: "the values of features in bucket {number} add up to more than float32 can hold; "
    "scale the data",
    kernels.NUL_BYTE: "a zero byte, so the file is not text; check that it is a Vowpal Wabbit file",
}

_BLANKS = b" \t\v\f\r\n"


@dataclass(frozen=True)
class Settings:
    """Options of the reader, all fixed before the first row."""

    hashing: Hashing | None = None
    """Hashing of names to indices; None: names are indices, from `smallest_index` to `largest_index`."""
    text_labels: bool = False
    smallest_index: int = 0
    largest_index: int = LARGEST_INDEX
    stop_at_bad: bool = True
    labels: bool = True
    """True if every row must have a label; else a missing label is 0."""
    feature_names: int = 0
    """Number of names of hashed features to keep."""


class VwFormat(Format):
    """Vowpal Wabbit text. Importances are weights, and tags are identifiers."""

    name = "vw"
    title = "Vowpal Wabbit text"
    suffixes = (".vw",)
    options = frozenset({"hash_bits", "hash_signed", "feature_names"})
    is_text = True
    id_name = "tag"

    def recipe(self, config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
        """Return the recipe of a new store."""
        recipe = super().recipe(config, names, note)
        if config.hash_bits == 0:  # names are indices
            return recipe
        hashing = hashing_of(config, names)
        return replace(recipe, hashing=hashing, features=fixed_features(hashing.buckets, config))

    def open(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
        """Open text files."""
        settings = Settings(
            recipe.hashing,
            options.text_labels,
            options.smallest_index,
            options.largest_index,
            options.stop_at_bad,
            options.with_labels,
            options.feature_names,
        )
        return VwReader(names, settings, options.block_size, options.memory)

    def labels_are_text(self, names: Sequence[str], recipe: Recipe, options: ReadOptions) -> bool:
        """Return False: labels are numbers in this format, unless options declare words."""
        return False


class VwReader(TextReader):
    """Reader of Vowpal Wabbit text."""

    def __init__(self, names: Sequence[str], settings: Settings, block_size: int, memory: int = DEFAULT_MEMORY) -> None:
        super().__init__(names, block_size, memory, VwFormat.title)
        self.settings = settings
        hashing = settings.hashing
        self._unnamed = UnnamedBuckets(1 << hashing.bits, settings.feature_names) if hashing else UnnamedBuckets(0, 0)

    def parse(self, task: TextBlock, scratch: Scratch) -> ParsedBlock:
        """Parse a block."""
        settings = self.settings
        text, length = read_only(task.text), task.length
        feeds, blanks = kernels.count_lines_and_blanks(text[:length])
        arrays = RowArrays.of(scratch, feeds + 1, blanks + 1)
        weights = scratch.array("weights", feeds + 1, np.float32)
        label_spans = scratch.array("label spans", 2 * feeds + 2, np.int64).reshape(-1, 2)
        tag_spans = scratch.array("tag spans", 2 * feeds + 2, np.int64).reshape(-1, 2)
        bad = np.empty((1 if settings.stop_at_bad else DESCRIBED_BAD_ROWS, 4), np.int64)
        wanted = min(max(self._unnamed.left, 0), blanks + 1)
        known = seen = named = None
        if wanted:
            known, named = self._unnamed.known, np.empty((wanted, 6), np.int64)
            seen = np.zeros(1 << (2 * wanted).bit_length(), np.int64)
        rows, bad_lines, line_count, features = kernels.parse_vw(
            text,
            length,
            settings.text_labels,
            settings.labels,
            settings.hashing.bits if settings.hashing else kernels.PLAIN,
            settings.hashing is not None and settings.hashing.signed,
            settings.smallest_index,
            settings.largest_index,
            settings.stop_at_bad,
            arrays.labels,
            weights,
            arrays.indptr,
            arrays.indices,
            arrays.values,
            arrays.lines,
            arrays.numbers,
            label_spans,
            tag_spans,
            scratch.array("name", length + PADDING, np.uint8),
            scratch.array("buckets", blanks + 1, np.uint32),
            scratch.array("sums", blanks + 1),
            scratch.array("spare buckets", blanks + 1, np.uint32),
            scratch.array("spare sums", blanks + 1),
            bad,
            known,
            seen,
            named,
        )
        problems = [self._describe(text, row) for row in bad[:bad_lines]]
        names = name_labels(text, label_spans[:rows], arrays.labels[:rows]) if settings.text_labels else {}
        new_names = named[:features].tolist() if named is not None else []
        return ParsedBlock(
            task,
            arrays.block(rows, weights[:rows] if (weights[:rows] != 1).any() else None),
            arrays.lines[:rows],
            arrays.numbers[:rows],
            line_count,
            problems,
            bad_lines,
            names,
            scratch,
            _strings(text, tag_spans[:rows]),
            {bucket: _name(text, *spans) for bucket, *spans in new_names},
        )

    def search(self, buckets: np.ndarray) -> None:
        """Record the names of some buckets alone."""
        self._unnamed.only(buckets)

    def named(self, features: dict[int, str]) -> None:
        """Record names of buckets."""
        self._unnamed.named(features)

    def _describe(self, text: np.ndarray, bad: np.ndarray) -> BadRow:
        code, line, at, detail = (int(x) for x in bad)
        words = {
            "line": _excerpt(text, at, _BLANKS),
            "word": _excerpt(text, at, _BLANKS + b"|"),
            "name": _excerpt(text, at, _BLANKS + b"|:"),
            "value": _excerpt(text, detail, _BLANKS + b"|") if detail < len(text) else "",
            "other": _excerpt(text, detail, _BLANKS + b"|:") if detail < len(text) else "",
            "number": f"{detail}",
            "limit": f"{self.settings.largest_index:,}",
        }
        return BadRow(line, PROBLEMS[code].format(**words))


def _name(text: np.ndarray, space: int, space_end: int, begin: int, end: int, number: int) -> str:
    """Return the token that was hashed: `namespace^feature`, or the part of it that the text has."""
    name = text[begin:end].tobytes().decode() if begin < end else f"{number}"
    return f"{text[space:space_end].tobytes().decode()}^{name}" if space < space_end else name


def _excerpt(text: np.ndarray, at: int, ends: bytes) -> str:
    """Return the text at a position, up to one of these bytes or 40 bytes, in quotes."""
    found = text[at : at + 40].tobytes()
    end = min((k for k in (found.find(b) for b in ends) if k >= 0), default=len(found))
    return literal(f"'{found[:end].decode('ascii', 'backslashreplace')}'")


def _strings(text: np.ndarray, spans: np.ndarray) -> Any:
    """Return spans of the text as an Arrow array, empty spans as nulls; None if all are empty."""
    offsets = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    if offsets[-1] == 0:
        return None
    import pyarrow as pa

    data = np.empty(offsets[-1], np.uint8)
    kernels.gather_spans(text, spans, offsets, data)
    present = np.packbits(spans[:, 0] < spans[:, 1], bitorder="little")
    return pa.StringArray.from_buffers(len(spans), *map(pa.py_buffer, (offsets, data, present)))
