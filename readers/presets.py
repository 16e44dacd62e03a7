"""Presets of options for typical tables, expanded into ordinary options before anything else is done with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.option_texts import parse_split
from ooc_pegasos.readers import columns_plan, registry, table_recipe
from ooc_pegasos.readers.arrow_strings import is_tags
from ooc_pegasos.readers.hash_size import bits_for
from ooc_pegasos.readers.sources import display_name
from ooc_pegasos.store.recipe import Kind, Table, named_by

_CLICK_BITS = 24
"""Bits of the hash space of large click logs, whose ids have more values than words have in texts."""


def expanded(
    config: ConvertConfig, names: Sequence[str], *, grows: bool = False, is_like: bool = False
) -> ConvertConfig:
    """Return the options with those that a preset stands for; given options are kept.

    `grows` is for stores to which files of unknown sizes are appended. With `is_like` rows are made as an existing
    store has them, with its hash.
    """
    if config.preset not in ("text", "clicks") or not registry.format_of(config.format).has_columns:
        return config
    known, taken = _columns(config, names[0])
    free = [column for column in known if column not in taken]
    chosen: dict[str, Kind] = {}
    for column in free:
        kind = (_kind_of_text if config.preset == "text" else _kind_of_click)(known[column])
        if kind is not None:
            chosen[column] = kind
    by_kind: dict[str, Any] = {
        kind: (*getattr(config, kind), *(column for column, found in chosen.items() if found == kind))
        for kind in ("numeric", "categorical", "text")
    }
    if config.preset == "text":
        if not by_kind["text"]:
            raise UsageError(f"{{preset=text}}: no column of {display_name(names[0])} is text; leave it out")
        if config.characters and config.ngrams is None:
            raise UsageError("{preset=text} is for n-grams of words; add {ngrams}, like {ngrams=3:5}, or leave it out")
        others: dict[str, Any] = {"ngrams": "1:2", "idf": True, "normalize": "l2"}
    else:
        others = {"nulls": "mark", "standardize": False}
        if config.dictionary is None and not is_like:
            others["hash_bits"] = _CLICK_BITS if grows else bits_for(names, _CLICK_BITS)
    given = {name for name, value in vars(config).items() if value is not None}
    return dataclasses.replace(
        config, preset=None, **by_kind, **{name: value for name, value in others.items() if name not in given}
    )


def _columns(config: ConvertConfig, name: str) -> tuple[dict[str, Any], set[str | None]]:
    """Return (the columns of a file with their types, those for which options give a use)."""
    delimiter = config.delimiter or columns_plan.delimiter_of(name)
    blank = Table([], None, header=config.header, delimiter=delimiter, multiline=config.multiline)
    known = columns_plan.schema_of(name, blank, config.memory)
    label = config.label or next((column for column in table_recipe.LABELS if column in known), None)
    patterns = (*config.numeric, *config.categorical, *config.text, *config.dates, *config.ignore)
    unnamed = [column for column in known if table_recipe.is_index(column)]
    of_split = parse_split(config.split)[0] if config.split else None
    return known, {label, config.weight, config.id, of_split, *named_by(patterns, known), *unnamed}


def _kind_of_text(kind: Any) -> Kind | None:
    import pyarrow as pa

    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if columns_plan.is_text(inner):
        return "text"
    found = table_recipe.kind_by_type(kind)
    return None if found == "entries" else found


def _kind_of_click(kind: Any) -> Kind | None:
    import pyarrow as pa

    if pa.types.is_nested(kind):
        return "categorical" if is_tags(kind, "all") else None
    return "numeric" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "categorical"
