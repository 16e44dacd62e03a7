"""Text to rows: words or characters, their n-grams counted and hashed, as scikit-learn's HashingVectorizer does it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

from ooc_pegasos.block import read_only
from ooc_pegasos.errors import UsageError
from ooc_pegasos.kernels import text as kernels
from ooc_pegasos.recipe import Hashing, Tokens

MOST_BITS = 31


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """(classes, lower case) of every code point, as this Python has them: so they agree with its `re` and `lower`."""
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
            small = character.lower()
            around = [("a", ""), ("", "a"), ("a", "a")]  # a capital sigma ends a word in another way
            if len(small) > 1 or any((x + character + y).lower() != x + small + y for x, y in around):
                classes[code] |= kernels.CONTEXT
            else:
                lower[code] = ord(small)
    return read_only(classes), read_only(lower)


class TextHasher:
    """What turns texts into rows; any number of threads may use one."""

    def __init__(self, tokens: Tokens, hashing: Hashing) -> None:
        if not 1 <= hashing.bits <= MOST_BITS:
            raise UsageError(f"{hashing.bits} bits for hashed features; give 1 to {MOST_BITS}")
        if not 1 <= tokens.least <= tokens.most:
            raise UsageError(f"n-grams from {tokens.least} to {tokens.most}; give numbers from 1 on, the smaller first")
        self.tokens = tokens
        self.hashing = hashing

    @property
    def features(self) -> int:
        """How many places there are."""
        return 1 << self.hashing.bits

    def part(self, strings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(entries of each text, their indices, their values) of an Arrow array of strings; a null is an empty text.

        The indices of a text increase; n-grams whose signs cancel out in a place have no entry there.
        """
        import pyarrow as pa

        tokens = self.tokens
        if not (pa.types.is_string(strings.type) or pa.types.is_large_string(strings.type)):
            strings = strings.cast(pa.large_string())
        if strings.null_count:
            strings = strings.fill_null("")
        classes, lower = _tables()
        ready = np.zeros(len(strings), np.bool_)
        data, offsets = _bytes_of(strings)
        if tokens.lowercase and kernels.find_context(data, offsets, classes, ready):
            data, offsets = _bytes_of(_lowered(strings, ready))
        lengths, indices, values = kernels.hash_documents(
            data,
            offsets,
            read_only(ready),
            classes,
            lower,
            tokens.lowercase,
            tokens.characters,
            tokens.least,
            tokens.most,
            self.hashing.bits,
            self.hashing.signed,
        )
        return lengths, indices, values

    def count_documents(self, strings: Any, counts: np.ndarray) -> None:
        """Add 1 to `counts` (int64) at each place where a text has an entry, for every text."""
        if counts.dtype != np.int64 or len(counts) != self.features:
            raise ValueError(f"counts must be {self.features} numbers of type int64")
        kernels.count_documents(read_only(self.part(strings)[1]), counts)


def _bytes_of(strings: Any) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, offsets) of an Arrow array of strings without nulls."""
    import pyarrow as pa

    _validity, places, content = strings.buffers()
    kind: Any = np.int64 if pa.types.is_large_string(strings.type) else np.int32
    if places is None or len(strings) == 0:
        return read_only(np.empty(0, np.uint8)), read_only(np.zeros(1, kind))
    data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    offsets = np.frombuffer(places, kind)[strings.offset : strings.offset + len(strings) + 1]
    return read_only(data), read_only(offsets)


def _lowered(strings: Any, which: np.ndarray) -> Any:
    """The same strings, some of them in the lower case that Python's own rules give."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.array(which)
    small = [text.lower() for text in strings.filter(mask).to_pylist()]
    large = strings.cast(pa.large_string())  # some grow
    return pc.replace_with_mask(large, mask, pa.array(small, pa.large_string()))
