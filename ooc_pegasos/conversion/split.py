"""Test rows, reserved when inputs are converted: the same ones whenever the same inputs are converted."""

from __future__ import annotations

import dataclasses

import numpy as np

from ooc_pegasos.compiled.parse.svmlight import hash_spans
from ooc_pegasos.readers.arrow_strings import as_strings, buffers_of
from ooc_pegasos.readers.base import ParsedBlock
from ooc_pegasos.store.manifest import Split
from ooc_pegasos.util.arrow import array_of


def rows_of_part(parsed: ParsedBlock, block_number: int, split: Split) -> ParsedBlock:
    """Return the rows of a block that belong to a part of the split.

    They are chosen by a rule, or by a hash of their ids, or, without ids, of their positions in the inputs.
    """
    if parsed.is_test is not None:
        chosen = parsed.is_test
    elif parsed.ids is not None:
        data, offsets = buffers_of(as_strings(parsed.ids))
        spans = np.stack([offsets[:-1], offsets[1:]], axis=1).astype(np.int64)
        keys = np.empty(len(spans), np.uint64)
        hash_spans(data, spans, len(spans), keys)
        chosen = _uniform(keys) < split.fraction
    else:
        chosen = (
            _uniform((np.uint64(block_number) << np.uint64(32)) | parsed.numbers.astype(np.uint64)) < split.fraction
        )
    keep = chosen == (split.part == "test")
    return parsed if keep.all() else chosen_rows(parsed, keep)


def chosen_rows(parsed: ParsedBlock, keep: np.ndarray) -> ParsedBlock:
    """Return a block without some of its rows."""
    block = parsed.block
    assert block.values is not None
    lengths = np.diff(block.indptr)
    entries = np.repeat(keep, lengths)
    block = dataclasses.replace(
        block,
        indptr=np.concatenate([[0], np.cumsum(lengths[keep])]),
        indices=block.indices[entries],
        values=block.values[entries],
        labels=block.labels[keep],
        weights=None if block.weights is None else block.weights[keep],
    )
    ids = None if parsed.ids is None else parsed.ids.take(array_of(np.flatnonzero(keep)))
    is_test = None if parsed.is_test is None else parsed.is_test[keep]
    lines, numbers = parsed.lines[keep], parsed.numbers[keep]
    return dataclasses.replace(parsed, block=block, lines=lines, numbers=numbers, ids=ids, is_test=is_test)


def _uniform(keys: np.ndarray) -> np.ndarray:
    """Return a number from 0 to 1 for each key (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = keys + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    found: np.ndarray = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found
