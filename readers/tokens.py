"""Text to rows: n-grams of words or characters, counted and hashed as in scikit-learn's HashingVectorizer."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

from ooc_pegasos.compiled.parse import text as kernels
from ooc_pegasos.errors import UsageError
from ooc_pegasos.readers.arrow_strings import buffers_of
from ooc_pegasos.readers.feature_index import feature_index_of
from ooc_pegasos.store.csr_block import read_only
from ooc_pegasos.store.recipe import Hashing, Tokens
from ooc_pegasos.store.vocabulary import Vocabulary, idf_weights


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return (class, lower case) of every code point, consistent with `re` and `lower` of this Python."""
    classes = np.zeros(kernels.CODE_POINTS, np.uint8)
    lower = np.arange(kernels.CODE_POINTS, dtype=np.int32)
    every = "".join(map(chr, range(kernels.CODE_POINTS)))
    for bit, pattern in ((kernels.WORD, r"\w+"), (kernels.SPACE, r"\s+")):
        for found in re.finditer(pattern, every):
            classes[found.start() : found.end()] |= bit
    for begin in range(0, kernels.CODE_POINTS, 256):
        block = every[begin : begin + 256]
        if block.lower() == block:
            continue
        for code, character in enumerate(block, begin):
            lowered = character.lower()
            around = [("a", ""), ("", "a"), ("a", "a")]  # a capital sigma has another lower case at the end of a word
            if len(lowered) > 1 or any((x + character + y).lower() != x + lowered + y for x, y in around):
                classes[code] |= kernels.CONTEXT
            else:
                lower[code] = ord(lowered)
    return read_only(classes), read_only(lower)


_Cut = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool, bool, int, int]


class TextHasher:
    """Vectorizer of texts, safe for any number of threads."""

    def __init__(self, tokens: Tokens, hashing: Hashing, vocabulary: Vocabulary | None = None) -> None:
        if not 1 <= tokens.least <= tokens.most:
            raise UsageError(f"n-grams from {tokens.least} to {tokens.most}; give numbers from 1 on, the smaller first")
        self.tokens = tokens
        self.hashing = hashing
        self.index = feature_index_of(hashing, vocabulary.names if vocabulary else None)
        self._idf = idf_weights(tokens.texts, self.index.number, vocabulary) if tokens.texts else None

    @property
    def features(self) -> int:
        """Return the number of features."""
        return self.index.number

    def part(self, strings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (entries of each text, their indices, their values) of an Arrow array of strings; nulls are empty.

        The indices of a text increase; n-grams whose signs cancel out in a bucket have no entry.
        """
        lengths, indices, counts = self.counts(strings)
        return lengths, indices, self.weighted(indices, counts)

    def counts(self, strings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `part` before the product with the inverse document frequency."""
        hashing = self.hashing
        dictionary = (hashing.bits, hashing.signed, self.index.dictionary)
        lengths, indices, counts = kernels.hash_documents(*self._cut(strings), *dictionary)
        return lengths, indices, counts

    def weighted(self, indices: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return counts times the inverse document frequencies of their features, rounded to float32."""
        return counts if self._idf is None else counts * self._idf[indices]

    def ngrams(self, strings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (bytes, offsets, number of the text) of all n-grams, ordered by text and length."""
        data, offsets, rows = kernels.cut_documents(*self._cut(strings))
        return read_only(data), read_only(offsets), read_only(rows)

    def count_documents(self, strings: Any, counts: np.ndarray) -> None:
        """Add 1 to `counts` (int64) at each feature of each text."""
        if counts.dtype != np.int64 or len(counts) != self.features:
            raise ValueError(f"counts must be {self.features} numbers of type int64")
        kernels.count_documents(read_only(self.part(strings)[1]), counts)

    def _cut(self, strings: Any) -> _Cut:
        """Return the arguments that compiled functions need to split texts."""
        import pyarrow as pa

        tokens = self.tokens
        if not (pa.types.is_string(strings.type) or pa.types.is_large_string(strings.type)):
            strings = strings.cast(pa.large_string())
        if strings.null_count:
            strings = strings.fill_null("")
        classes, lower = _tables()
        is_lower = np.zeros(len(strings), np.bool_)
        data, offsets = buffers_of(strings)
        if tokens.lowercase and kernels.find_context(data, offsets, classes, is_lower):
            data, offsets = buffers_of(_lowered(strings, is_lower))
        options = (tokens.lowercase, tokens.characters, tokens.least, tokens.most)
        return data, offsets, read_only(is_lower), classes, lower, *options


def _lowered(strings: Any, which: np.ndarray) -> Any:
    """Return the strings, some of them lowered by Python, whose rules depend on the context."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.array(which)
    lowered = [text.lower() for text in strings.filter(mask).to_pylist()]
    large = strings.cast(pa.large_string())  # some strings grow
    return pc.replace_with_mask(large, mask, pa.array(lowered, pa.large_string()))
