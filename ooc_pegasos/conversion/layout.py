"""Choice of the layout of a store, after the first pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.conversion.publish import Place
from ooc_pegasos.conversion.second_pass import AssemblyPlan, choose_coding, coded_sizes
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import registry
from ooc_pegasos.store.csr_block import COUNTS, LEVELS, coding_in_files
from ooc_pegasos.store.labels import LabelMap
from ooc_pegasos.store.manifest import Layout, Manifest

_BITS_OF_ONE = 0x3F800000
_SPARE_CODES = 32
"""Number of codes that a new store leaves for large counts of rows that are appended."""


def plan_assembly(
    ingest: Ingest, labels: LabelMap, columns: int, config: ConvertConfig, place: Place, pattern: Manifest | None
) -> AssemblyPlan:
    """Return the plan of the second pass.

    `columns` is the number of columns that the inputs declare, `pattern` the store in whose way rows are made.
    """
    totals, plan, base = ingest.totals, ingest.plan, place.base
    index_base = _index_base(ingest, config, pattern)
    features = max(columns, totals.largest - index_base + 1, 0)
    limit = plan.recipe.features
    if limit is not None:
        if features > limit:
            raise InputError(
                f"{totals.largest_at}: index {totals.largest} in 0-based data is above {{features={limit}}}; raise it"
            )
        features = limit
    stats = np.sum([counts for _bucket, counts in ingest.buckets()], axis=0)
    values, levels = _value_coding(totals.levels, ingest, config)
    coding: Any = choose_coding(stats, index_base, values)
    layout = Layout(coding, values, labels.kind, levels)
    if base:
        new = totals.counts if base.layout.values == COUNTS else totals.levels
        layout = _layout_to_append(layout, new, stats, place.target, base)
    if pattern:
        features = max(features, pattern.features)
    return AssemblyPlan(
        layout,
        index_base,
        features,
        plan.normalize,
        plan.rounding,
        plan.shuffle_seed,
        config.chunk_size,
        plan.bucket_limit,
        len(totals.ids) > 1,
    )


def _value_coding(levels: set[int] | None, ingest: Ingest, config: ConvertConfig) -> tuple[Any, list[float]]:
    """Return the requested coding of values, else the most compact, and its dictionary.

    `levels` are the bits of all distinct values, None if there are too many.
    """
    counts = ingest.totals.counts
    if levels is None and counts is not None and len(counts) < LEVELS - _SPARE_CODES and config.values is None:
        return COUNTS, [0.0, *_levels_in_order(_with_likely_counts(counts) - {0})]
    if levels is None or config.values == "float32":
        return ingest.plan.rounding or "float32", []
    if levels <= {_BITS_OF_ONE}:
        return None, []
    return "code8", [0.0, *_levels_in_order(levels - {0})]


def _with_likely_counts(counts: set[int]) -> set[int]:
    """Return counts, as bits, and the smallest whole numbers besides them: rows that are appended may have these."""
    found = set(counts)
    signs = (1, -1) if any(bits >> 31 for bits in counts) else (1,)
    for number in range(1, LEVELS):
        bits = np.array([sign * number for sign in signs], np.float32).view(np.uint32)
        if len(found) + len(signs) > LEVELS - _SPARE_CODES:
            break
        found.update(bits.tolist())
    return found


def _index_base(ingest: Ingest, config: ConvertConfig, pattern: Manifest | None) -> int:
    if pattern:
        return pattern.recipe.index_base
    if not registry.format_of(ingest.plan.recipe.reader).has_index_base:
        return 0
    if config.index_base != "auto":
        return int(config.index_base)
    return 0 if ingest.totals.smallest == 0 else 1


def _layout_to_append(
    needed: Layout, levels: set[int] | None, stats: np.ndarray, target: Path, base: Manifest
) -> Layout:
    """Return the layout of the store that is appended to; refuse new rows that do not fit."""
    layout = base.layout
    remedy = "convert all inputs together; with {values=float32} any values can be appended later"
    if needed.values and not layout.values:
        problem = "all its values are 1 and not stored, but the new rows have others"
        raise InputError(f"{target}: {problem}; {remedy}")
    if needed.labels == "float64" and layout.labels == "float32":
        problem = "its labels are float32, which some new labels do not fit"
        raise InputError(f"{target}: {problem}; convert all inputs together")
    if coding_in_files(layout.values) == "code8":
        table = [*layout.levels]
        if levels is not None:
            known = set(np.array(table, np.float32).view(np.uint32).tolist())
            table += _levels_in_order(levels - known)
        if levels is None or len(table) > LEVELS:
            problem = f"its values are codes in a dictionary of {LEVELS} values, too few with those of the new rows"
            if layout.values == COUNTS:
                problem = f"its values are {LEVELS} counts of words at most, and the new rows have more or other values"
            raise InputError(f"{target}: {problem}; {remedy}")
        layout = dataclasses.replace(layout, levels=table)
    sizes = coded_sizes(stats, base.recipe.index_base, layout.values)
    if sizes[layout.index_coding] > 4 * min(sizes.values()):
        problem = f"its index coding, {layout.index_coding}, would make the new rows four times larger than needed"
        raise InputError(f"{target}: {problem}; convert all inputs together")
    return layout


def _levels_in_order(bits: Iterable[int]) -> list[float]:
    """Return the values with these bits in increasing order."""
    return sorted(np.array(list(bits), np.uint32).view(np.float32).tolist())
