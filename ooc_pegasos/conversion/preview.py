"""Dry run of a conversion: the recipe, some rows as vectors, and the expected size and time."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.compiled.rows.values import ROUNDINGS, distinct_values
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.buckets import scatter
from ooc_pegasos.conversion.first_pass import distinct_counts
from ooc_pegasos.conversion.pipeline import may_need_survey, other_format, store_like
from ooc_pegasos.conversion.second_pass import coded_sizes
from ooc_pegasos.declared_labels import Declared
from ooc_pegasos.errors import InputError, with_flags
from ooc_pegasos.readers import presets, registry, sources
from ooc_pegasos.readers.base import ReadOptions
from ooc_pegasos.reporting.text import size_text
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.csr_block import COUNTS, LEVELS, CsrBlock
from ooc_pegasos.store.labels import LabelCollector, declared_by
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.buffers import Scratch
from ooc_pegasos.util.short_names import listed, short

_SHOWN_ROWS, _SHOWN_ENTRIES = 3, 12
_SURVEYED = 2  # tasks
_BYTES_A_ROW, _PASSES = 8, 2.0
"""Bytes of a row besides its entries, and the ratio of both passes' time to parsing; both estimates."""


@dataclass(frozen=True)
class Preview:
    """Result of a dry run."""

    inputs: list[str]
    recipe: Recipe
    remarks: list[str]
    rows: list[dict[str, Any]]
    problems: list[str]
    bytes: float
    """Estimated size of the store."""
    seconds: float

    def table(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return dataclasses.asdict(self) | {"recipe": typed_json.dump(self.recipe)}

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        recipe = typed_json.dump(self.recipe)
        table = recipe.pop("table") or {}
        columns = table.pop("columns", [])
        lines = [f"inputs: {len(self.inputs):,} read as {self.recipe.reader}, the first is {self.inputs[0]}"]
        lines += self.remarks
        lines += [f"recipe: {_words(recipe)}"]
        if table:
            lines.append(f"table: {_words(table)}")
        for kind in ("numeric", "categorical", "text", "dates", "entries"):
            names = [column["name"] for column in columns if column["kind"] == kind]
            if names:
                lines.append(f"  {kind}: {listed(names, 20)}")
        for row in self.rows:
            entries = " ".join(f"{index}:{value:g}" for index, value in row["entries"][:_SHOWN_ENTRIES])
            lines.append(f"row {row['row']:,}: {short(row['label'])} {entries}" + (" ..." if row["more"] else ""))
        lines += [f"bad: {problem}" for problem in self.problems]
        lines.append(f"the store will take about {size_text(round(self.bytes))}, and about {self.seconds:.0f} seconds")
        return lines


def preview(inputs: Sequence[str], config: ConvertConfig) -> Preview:
    """Read the beginning of the inputs and return the result."""
    names, kind = registry.find_for(inputs, config)
    if sources.STDIN in names:
        raise InputError("standard input can be read only once; name a file to see what would be done with it")
    config.check_memory()
    config = presets.expanded(config.of_format(kind), names, is_like=config.like is not None)
    remarks: list[str] = []
    recipe, declared, known = _plan(names, config, remarks)
    text = declared.wants_text()
    if text is None:
        text = registry.labels_are_text(names[:1], recipe, config)
    block_size = min(config.text_block(), 1 << 20)
    options = ReadOptions(
        block_size, text_labels=text, stop_at_bad=False, labels=config.labels, vocabulary=known, memory=config.memory
    )
    reader = registry.reader_for(names, recipe, options)
    task = next(iter(reader.tasks()), None)
    if task is None:
        raise InputError(f"{sources.display_name(names[0])}: no rows in it; leave it out or check how it was made")
    reader.read(task)  # so that compilation is not timed
    began = time.perf_counter()
    task = next(iter(reader.tasks()))
    parsed = reader.read(task)
    seconds = time.perf_counter() - began
    total = sum(registry.stamp_of(name).size for name in names)
    share = total / max(task.consumed, 1)
    block = parsed.block
    labels = LabelCollector(text, names=parsed.names)
    rows = []
    for row in range(min(_SHOWN_ROWS, block.rows)):
        first, last = int(block.indptr[row]), int(block.indptr[row + 1])
        values = block.values if block.values is not None else np.ones(last)
        entries = [
            (int(block.indices[at]), float(values[at])) for at in range(first, min(last, first + _SHOWN_ENTRIES))
        ]
        label = labels.name(int(block.labels[row : row + 1].view(np.uint64)[0]))
        more = last - first > _SHOWN_ENTRIES
        rows.append({"row": int(parsed.numbers[row]) + 1, "label": label, "entries": entries, "more": more})
    where = f"{sources.display_name(names[0])}, {reader.unit}"
    problems = [f"{where} {bad.line + 1}: {with_flags(bad.problem)}" for bad in parsed.bad[:3]]
    size = _bytes_of(block, config, recipe, vocabulary.idf_of(recipe, known)) * share
    return Preview(
        [sources.display_name(name) for name in names],
        recipe,
        remarks,
        rows,
        problems,
        size,
        seconds * share * _PASSES / config.workers,
    )


def _plan(names: list[str], config: ConvertConfig, remarks: list[str]) -> tuple[Recipe, Declared, Vocabulary | None]:
    """Return (the recipe, the declared labels, the vocabulary that the recipe needs or None)."""
    if like := store_like(config):
        registry.check_options(config, names)
        recipe = like.manifest.recipe
        if not registry.can_be_mixed(recipe.reader, config.format):
            raise other_format(str(like.path), recipe.reader, config.format)
        known = vocabulary.of_store(like.path, like.manifest) if recipe.needs_vocabulary else None
        return recipe, declared_by(like.manifest.labels), known
    recipe = registry.new_recipe(config, names, remarks.append)
    if not may_need_survey(config, recipe):
        return recipe, config.declared_labels(), None
    from ooc_pegasos.readers.survey import Survey, with_findings

    recipe, known = with_findings(recipe, Survey(names, config, remarks.append, tasks=_SURVEYED))
    if config.standardize or config.dictionary or config.idf:
        remarks.append("dictionary, idf and standard deviations are those of the beginning of the first input only")
    return recipe, config.declared_labels(), known


def _bytes_of(block: CsrBlock, config: ConvertConfig, recipe: Recipe, idf: np.ndarray) -> int:
    """Return the estimated size of rows in a store."""
    assert block.values is not None
    nowhere = np.zeros(block.rows, np.int64)
    scattered = scatter(0, block.labels, block.indptr, block.indices, block.values, nowhere, 1, Scratch())
    rounding = ROUNDINGS[config.rounding]
    levels = distinct_values(
        block.indptr, block.values, config.normalize is not None, rounding, np.empty(LEVELS, np.uint32)
    )
    coding: str = config.rounding or "float32" if levels < 0 or config.values == "float32" else "code8"
    has_counts = levels < 0 and config.values is None and recipe.counts_words
    if has_counts and distinct_counts(block, idf, np.empty(LEVELS, np.uint32)) >= 0:
        coding = COUNTS
    only_ones = levels == 1 and bool((block.values == 1).all())
    return min(coded_sizes(scattered.stats[0], 0, None if only_ones else coding).values()) + _BYTES_A_ROW * block.rows


def _words(table: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in table.items() if value not in (None, [], {}))
