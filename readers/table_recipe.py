"""The recipe of tables: which columns count, as what, by options or by their types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Any

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.declared_labels import NULL_LABELS
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.option_texts import parse_split
from ooc_pegasos.readers import columns_plan
from ooc_pegasos.readers.arrow_strings import is_list, is_tags
from ooc_pegasos.readers.base import DEFAULT_MEMORY, Note, tokens_of
from ooc_pegasos.readers.hash_size import hashing_of
from ooc_pegasos.readers.sources import display_name
from ooc_pegasos.readers.spelling import spelling_by_type
from ooc_pegasos.store.recipe import Column, Hashing, Kind, Table, named_by
from ooc_pegasos.util.short_names import listed, short

OPTIONS = (
    *("label", "weight", "id", "numeric", "categorical", "text", "dates", "ignore", "preset", "nulls", "log1p", "clip"),
    *("header", "delimiter", "multiline"),
)
"""Options of conversions that say which columns count, and how a table is read."""
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Names of columns that have no name or are the index of a pandas table; data only where options name them."""
LABELS = ("label", "target", "y", "class", "click", "clicked")
"""Names of the column of labels, where no option names it."""


def new_table(config: ConvertConfig, names: Sequence[str], note: Note) -> Table:
    """Return the table that the options describe, for files like the first."""
    wanted = {option: getattr(config, option) for option in (*OPTIONS, "split")} | {"nulls": config.nulls or "absent"}
    if config.delimiter is None:
        del wanted["delimiter"]
    wanted["label_is_null"] = any(one in NULL_LABELS for one in config.declared_labels().positive)
    wanted |= {"hashing": Hashing(config.hash_bits or Hashing.bits, config.hash_signed), "tokens": tokens_of(config)}
    table, remarks = plan_table(names[0], wanted, config.memory)
    if any(column.kind in ("categorical", "text", "dates") for column in table.columns):
        table = dataclasses.replace(table, hashing=hashing_of(config, names))
    for remark in remarks:
        note(remark)
    for option, is_given in {"ngrams": config.ngram_range() != (1, 1), "characters": config.characters}.items():
        if is_given and not any(c.kind == "text" for c in table.columns):
            raise UsageError(f"{{{option}}}: no column is text; leave it out, or name one with {{text}}")
    return table


def plan_table(name: str, wanted: dict[str, Any], memory: int = DEFAULT_MEMORY) -> tuple[Table, list[str]]:
    """Return (the columns that count in tables like file `name`, remarks on choices made).

    `wanted` has the options given: label, weight, id, numeric, categorical, text (patterns), header, delimiter and the
    other fields of `Table`.
    """
    patterns: dict[Kind, Any] = {
        "numeric": wanted.pop("numeric"),
        "categorical": wanted.pop("categorical"),
        "text": wanted.pop("text"),
        "dates": wanted.pop("dates", ()),
    }
    preset, ignored, split = wanted.pop("preset", None), wanted.pop("ignore", ()), wanted.pop("split", None)
    remarks = []
    if "delimiter" not in wanted:
        wanted["delimiter"] = columns_plan.delimiter_of(name)
        if wanted["delimiter"] != columns_plan.usual_delimiter(name):
            remarks.append("the delimiter is {!r}".format(wanted["delimiter"]))
    if preset == "criteo":
        named = (*patterns.items(), ("ignore", ignored), ("label", wanted.get("label")))
        given = [option for option, found in named if found]
        if given:
            raise UsageError(f"{{{given[0]}}} and {{preset=criteo}}, which names all columns; leave one out")
        return criteo(wanted), []
    read = {option: wanted[option] for option in ("header", "delimiter", "multiline") if option in wanted}
    blank = Table([], None, **read)
    known = columns_plan.schema_of(name, blank, memory)
    label = wanted.pop("label", None)
    if label is None:
        label = next((column for column in LABELS if column in known), None)
        if label is None:
            problem = f"which column has the labels? Give {{label=COLUMN}}; {columns_plan.columns_in_words(known)}"
            raise UsageError(f"{display_name(name)}: {problem}")
        remarks.append(f"labels are taken from column '{short(label)}'")
    for option, column in (("label", label), ("weight", wanted.get("weight")), ("id", wanted.get("id"))):
        if column is not None and column not in known:
            raise UsageError(f"{{{option}={short(column)}}}: {columns_plan.difference([column], known)}")
    taken = {label, wanted.get("weight"), wanted.get("id")}
    if label in (wanted.get("weight"), wanted.get("id")):
        option = "weight" if label == wanted.get("weight") else "id"
        raise UsageError(f"{{{option}={short(label)}}}: this column is the label; name another, or leave it out")
    unused = _ignored(ignored, known, taken)
    of_split = parse_split(split)[0] if split else None
    if of_split is not None and of_split not in known:
        raise UsageError(f"{{split={split}}}: {columns_plan.difference([of_split], known)}")
    if of_split is not None and of_split not in {*taken, *(one for given in patterns.values() for one in given)}:
        unused.add(of_split)
        remarks.append(f"column '{of_split}' splits the rows, and is no feature")
    chosen: dict[str, Kind] = {}
    for kind, given in patterns.items():
        for pattern in given:
            found = [column for column in named_by([pattern], known) if column not in taken and column not in unused]
            if not found and pattern in taken:
                raise UsageError(
                    f"{{{kind}={short(pattern)}}}: this column is the label, the weight or the id; choose one"
                )
            if not found and pattern in unused:
                raise UsageError(f"{{{kind}={short(pattern)}}} and {{ignore={short(pattern)}}}; leave one out")
            if not found:
                raise UsageError(f"{{{kind}={short(pattern)}}}: {columns_plan.difference([pattern], known)}")
            for column in found:
                if chosen.get(column, kind) != kind:
                    problem = f"is given by {{{chosen[column]}}} and by {{{kind}}}"
                    raise UsageError(f"column '{short(column)}' {problem}; choose one")
                chosen[column] = kind
    if set(chosen.values()) <= {"dates"}:  # the others by their types
        left_out = [column for column in known if is_index(column) and column not in taken]
        others = {*taken, *left_out, *chosen, *unused}
        chosen |= {column: kind_by_type(known[column]) for column in known if column not in others}
        by_index = [column for column, kind in chosen.items() if kind == "entries"]
        tags = [column for column in by_index if len(chosen) > 1 and is_tags(known[column], "integers")]
        chosen |= dict.fromkeys(tags, "categorical")
        _refuse_lists_of_structs(name, {column: known[column] for column in known if column in chosen})
        groups = {
            kind: [c for c, found in chosen.items() if found == kind]
            for kind in ("numeric", "categorical", "dates", "entries")
        }
        groups["lists of integers taken as categories, not as indices, because there are other columns"] = tags
        groups["left out, as the index of a pandas table or without a name"] = left_out
        remarks += [f"{kind}: {listed(columns)}" for kind, columns in groups.items() if columns]
    if not chosen:
        problem = f"no column besides the label; {columns_plan.columns_in_words(known)}"
        if len(known) == 1 and not wanted.get("header", True):
            problem += "; if lines have more than one, give {delimiter}, like {delimiter=' '}"
        raise UsageError(f"{display_name(name)}: {problem}")
    is_text = columns_plan.file_type_of(name) in ("delimited", None)
    columns = [
        Column(
            column, kind, spelling="verbatim" if is_text or kind != "categorical" else spelling_by_type(known[column])
        )
        for column, kind in ((column, chosen[column]) for column in known if column in chosen)
    ]
    for column in columns:
        if columns_plan.file_type_of(name) != "delimited":
            use = "amount" if column.kind == "numeric" else column.kind  # its cells decide, if it is a text
            columns_plan.check_type(display_name(name), column.name, known[column.name], use)
    lists = [column for column in columns if column.kind == "entries"]
    if lists and len(columns) > 1:
        raise UsageError(
            f"{display_name(name)}: column '{short(lists[0].name)}' has indices of its own, which do not go "
            f"together with hashed columns; leave it out, with {{ignore={short(lists[0].name)}}}, or all others"
        )
    if lists and wanted.get("nulls") == "mark":
        raise UsageError(
            f"{{nulls=mark}}: the indices of column '{short(lists[0].name)}' have no room for it; leave it out"
        )
    return Table(columns, label, **wanted), remarks


def _refuse_lists_of_structs(name: str, kinds: dict[str, Any]) -> None:
    """Raise InputError for columns of lists of structs that are not (index, value)."""
    import pyarrow as pa

    found = {
        column: problem
        for column, kind in kinds.items()
        if is_list(kind) and pa.types.is_struct(kind.value_type) and (problem := columns_plan.problem_of_entries(kind))
    }
    if found:
        listed = ", ".join(f"'{column}' ({problem.removeprefix('and ')})" for column, problem in found.items())
        advice = "write what counts as columns of their own or as lists of words, and leave the lists out, with "
        advice += " ".join(f"{{ignore={column}}}" for column in found)
        raise InputError(f"{display_name(name)}: lists of structs have no features: {listed}; {advice}")


def _ignored(patterns: Sequence[str], known: Collection[str], taken: Collection[str | None]) -> set[str]:
    """Return the columns that are not to be used. Raises UsageError for patterns without a column."""
    for pattern in patterns:
        found = named_by([pattern], known)
        if not found:
            raise UsageError(f"{{ignore={short(pattern)}}}: {columns_plan.difference([pattern], dict.fromkeys(known))}")
        if pattern in taken:
            raise UsageError(f"{{ignore={short(pattern)}}}: this column is the label, the weight or the id; choose one")
    return set(named_by(patterns, known)) - set(taken)


def criteo(wanted: dict[str, Any]) -> Table:
    """Return the table of the Criteo click logs: tabs, no header, a label, 13 numbers and 26 categories."""
    columns = [Column(str(i), "numeric") for i in range(1, 14)] + [Column(str(i), "categorical") for i in range(14, 40)]
    given = {name: value for name, value in wanted.items() if name not in ("label", "header", "delimiter")}
    return Table(columns, "0", header=False, delimiter="\t", **given)


def is_index(column: str) -> bool:
    """True for a column without a name, or the index of a pandas table."""
    return _INDEX.fullmatch(column) is not None


def kind_by_type(kind: Any) -> Kind:
    """Return the use of a column that no option names, by its Arrow type."""
    import pyarrow as pa

    if pa.types.is_nested(kind):
        return "categorical" if is_tags(kind) else "entries"
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "numeric" if numbers else "categorical"
