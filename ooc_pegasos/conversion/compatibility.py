"""Compatibility of options with the recipe of an existing store."""

from __future__ import annotations

import dataclasses
from typing import Any

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import UsageError
from ooc_pegasos.readers.crosses import columns_in
from ooc_pegasos.store.label_rule import is_same_rule
from ooc_pegasos.store.manifest import LabelInfo, Manifest, Recipe
from ooc_pegasos.store.recipe import Table, named_by
from ooc_pegasos.util.short_names import short

_DEFAULTS = ConvertConfig()
_SCALINGS = {None: "sample", True: "all", False: "none"}
"""Rows that determine scales, by the option standardize."""


def comes_of(recipe: Recipe, wanted: Recipe, config: ConvertConfig) -> bool:
    """True if these options give the recipe of a store, except for the results of a survey of the inputs."""
    hashing, tokens = recipe.hashing_of_names, recipe.tokens_of_texts
    names = hashing.dictionary if hashing else 0
    if recipe.table and _scaling_of(recipe.table) != _SCALINGS[config.standardize]:
        return False
    found = (bool(tokens and tokens.texts), bool(names))
    if found != (bool(config.idf), config.dictionary is not None) or names > (config.dictionary or 0):
        return False
    if config.hash_bits is None and hashing:  # by the size of the inputs
        wanted = wanted.with_bits(hashing.bits)
    if recipe.table and wanted.table and all(column.spelling == "verbatim" for column in recipe.table.columns):
        # stores of earlier versions have no spellings
        columns = [dataclasses.replace(column, spelling="verbatim") for column in wanted.table.columns]
        wanted = dataclasses.replace(wanted, table=dataclasses.replace(wanted.table, columns=columns))
    known = dataclasses.replace(recipe.without_findings(), index_base=wanted.index_base)
    return known == (dataclasses.replace(wanted, features=recipe.features) if names else wanted)


def _scaling_of(table: Table) -> str:
    """Return the rows that determined the scales; stores of earlier versions do not name them."""
    is_scaled = any(column.is_scaled for column in table.columns)
    return "all" if is_scaled and table.scaling == "none" else table.scaling


def refuse_contradiction(made: Manifest, config: ConvertConfig) -> None:
    """Refuse options that contradict a store whose rows are made in the same way; options that agree are accepted."""
    known = _options_of(made, config)
    for name, value in known.items():
        given = getattr(config, name)
        if given in (None, getattr(_DEFAULTS, name), value) or (name == "dictionary" and value and given >= value):
            continue
        mark = ("no_" if given is False else "") + name
        mark += "" if isinstance(given, bool) else f"={_text_of(given)}"
        how = "otherwise" if value is None or isinstance(value, bool) else f"with {_text_of(value)}"
        raise UsageError(f"{{{mark}}}: the store was made {how}; leave it out")
    table = made.recipe.table
    for kind in ("numeric", "categorical", "text", "dates"):
        patterns = getattr(config, kind)
        if patterns and table:
            _refuse_other_columns(kind, patterns, table)
    used = named_by(config.ignore, [column.name for column in table.columns]) if table else []
    if used:
        raise UsageError(f"{{ignore={' '.join(config.ignore)}}}: the store has column '{short(used[0])}'; leave it out")


def _text_of(value: Any) -> str:
    if isinstance(value, tuple):
        return (" " if any("," in one for one in value) else ",").join(value)
    return str(value).replace("\t", "\\t")


def _options_of(made: Manifest, config: ConvertConfig) -> dict[str, Any]:
    """Return the options by which the store was made; equivalent spellings are written as in `config`."""
    recipe, labels, coding = made.recipe, made.labels, made.layout.values
    exact = {
        "float32": "float32",
        "code8": "codes of one byte",
        "count8": "counts of one byte",
        None: "values that are all 1",
    }
    known: dict[str, Any] = {
        "normalize": recipe.normalize,
        "values": recipe.values or exact[str(coding) if coding else None],
        "features": recipe.features,
        "index_base": str(recipe.index_base),
        "task": labels.task,
        "classes": tuple(labels.classes) if labels.task != "regression" and not labels.rest else (),
        "positive_label": _positive_of(labels, config.positive_label),
    }
    if config.like and not recipe.values:  # another store may have exact values in another coding
        known["values"] = "float32" if config.values == "float32" else None
    hashing, tokens, table = recipe.hashing_of_names, recipe.tokens_of_texts, recipe.table
    if hashing:
        hashed = not hashing.dictionary
        known |= {"hash_bits": hashing.bits if hashed else None, "hash_signed": hashing.signed}
        known["dictionary"] = None if hashed else hashing.dictionary
    if tokens:
        ngrams = str(tokens.least) if tokens.least == tokens.most else f"{tokens.least}:{tokens.most}"
        known["ngrams"] = config.ngrams if config.ngram_range() == (tokens.least, tokens.most) else ngrams
        known |= {"characters": tokens.characters, "idf": tokens.texts > 0}
    if table:
        known |= {name: getattr(table, name) for name in ("label", "weight", "id", "nulls", "log1p", "clip")}
        known |= {"header": table.header, "multiline": table.multiline, "delimiter": table.delimiter}
        crosses = tuple(map(columns_in, config.cross)) == table.crosses
        known["cross"] = config.cross if crosses else tuple(map(",".join, table.crosses)) or None
        known |= {"standardize": any(column.is_scaled for column in table.columns)}
    return known


def _positive_of(labels: LabelInfo, given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    """Return the positive label, or labels, of a store; as they are `given`, if that is the same."""
    if labels.positive is None:
        return labels.classes[-1] if labels.task == "binary" else None
    if is_same_rule(labels.positive, (given,) if isinstance(given, str) else given or ()):
        return given
    return tuple(labels.positive)


def _refuse_other_columns(kind: str, patterns: tuple[str, ...], table: Table) -> None:
    """Refuse patterns that match other columns of a kind than the store has."""
    meant = named_by(patterns, [column.name for column in table.columns])
    for column in table.columns:
        named = column.name in meant
        if named != (column.kind == kind):
            which = f"column '{short(column.name)}' is {'' if named else 'not '}among these"
            problem = f"{which}, and is {column.kind} in the store"
            raise UsageError(f"{{{kind}={' '.join(patterns)}}}: {problem}; leave it out")
