"""Which reader reads what, and what it needs to know: the one place that knows all readers.

Each is imported when it is needed, with its kernels.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import columns_plan, sources, svmlight, tables
from ooc_pegasos.readers.base import LARGEST_INDEX, Reader
from ooc_pegasos.readers.remote import is_beside, is_remote
from ooc_pegasos.readers.sources import STDIN, Stamp, expand, open_input, path_of, spoken
from ooc_pegasos.store import manifest
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.recipe import Column, Hashing, Kind, Table, Tokens, named_by
from ooc_pegasos.store.vocabulary import Vocabulary

Format = Literal["auto", "svmlight", "vw", "table", "arrays", "folders"]
_OF_TABLES = (
    *("label", "weight", "id", "numeric", "categorical", "text", "preset", "nulls", "log1p", "clip"),
    *("header", "delimiter", "multiline"),
)
_SUITS = {
    **dict.fromkeys((*_OF_TABLES, "standardize"), ("table",)),
    **dict.fromkeys(("dictionary", "idf", "ngrams", "characters"), ("table", "folders")),
    **dict.fromkeys(("hash_bits", "hash_signed", "feature_names"), ("table", "folders", "vw")),
    "labels": ("arrays",),
    "index_base": ("svmlight",),
}
"""The kinds of inputs that an option is for; other options are for all."""
_SPOKEN = {"table": "tables", "folders": "folders of texts", "vw": "Vowpal Wabbit text", "svmlight": "svmlight text"}
_DEFAULTS = ConvertConfig()
_BYTES_A_ROW, _BYTES_AN_ENTRY = 12, 8
_ROWS_PER_TEXT, _ROWS_PER_TABLE = 0.6, 1.3
"""Bytes of rows against those of text; compressed text is taken to be a quarter."""
_TEXT: tuple[Format, ...] = ("svmlight", "vw", "table")
"""What a file may be whose name and first bytes say nothing."""
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""What columns are called that nobody has named: no data, unless they are asked for."""
_LABELS = ("label", "target", "y", "class", "click", "clicked")


def find(inputs: Sequence[str], wanted: Format = "auto", otherwise: str = "svmlight") -> tuple[list[str], Format]:
    """(the files that inputs name, how they are read): folders of tables become the files in them.

    `wanted` is how they are to be read if that was said; `otherwise`, how those are that say nothing themselves.
    """
    if wanted == "folders":
        if len(inputs) != 1 or not os.path.isdir(inputs[0]):
            raise UsageError("{format=folders}: give one folder, which has a folder of texts for each class")
        return [inputs[0]], "folders"
    names: list[str] = []
    for given in inputs:
        if not os.path.isdir(given):
            names += expand([given])
        elif found := _tables_in(given):
            names += [f"{given.rstrip('/')}/./{path}" for path in found]  # see `schemas.partition_of`
        elif wanted != "auto" or any(e.is_file() and not e.name.startswith(".") for e in os.scandir(given)):
            problem = "is a folder without tables" + (", and has more in it than folders of texts" * (wanted == "auto"))
            raise InputError(f"{given}: {problem}; name the files in it, for example '{given}/*.svm'")
        elif len(inputs) == 1:
            return [given], "folders"
        else:
            raise InputError(f"{given}: a folder without tables; convert a folder of texts by itself")
    expand([name for name in names if name != STDIN])  # each of them once
    _refuse_stores(names)
    if wanted != "auto":
        return names, wanted
    fallback: Format = next((kind for kind in _TEXT if kind == otherwise), "svmlight")
    kinds = {name: _told_kind(name) or fallback for name in names}
    if len(set(kinds.values())) > 1:
        one, *_rest = names
        other = next(name for name in names if kinds[name] != kinds[one])
        raise InputError(
            f"{spoken(other)}: read as {kinds[other]}, but {spoken(one)} as {kinds[one]}; convert one kind at a time, "
            "with {append}"
        )
    return names, kinds[names[0]]


def _refuse_stores(names: Sequence[str]) -> None:
    """Refuse files of stores: they are Arrow, but their columns are gaps and codes, which are no data as they stand."""
    suspects = [name for name in names if manifest.names_file(path_of(name).rpartition("/")[2])]
    by_manifest = {_beside(name, manifest.FILE_NAME): name for name in suspects}
    for place, name in by_manifest.items():
        try:
            with open_input(place) as file:
                found = manifest.is_one(file.read())
        except (OSError, InputError):  # of a file that is not there, here or elsewhere
            found = False
        if found:
            store = path_of(name).rpartition("/")[0]
            store = store if is_remote(name) else os.path.normpath(store)
            problem = "is a store, whose files are no tables; convert the files that it was made of, or train on it"
            raise InputError(f"{store}: {problem} as it is")


def _beside(name: str, other: str) -> str:
    """Another file in the folder of an input."""
    path, question, options = name.partition("?") if is_remote(name) else (name, "", "")
    folder, slash, _name = path.rpartition("/")
    return folder + slash + other + question + options


def _tables_in(folder: str) -> list[str]:
    """The files in a folder that are tables, without what other programs keep beside them: `_SUCCESS`, `.crc`."""
    paths = (
        path
        for pattern in columns_plan.patterns()
        for path in glob.glob(f"**/{pattern}", root_dir=folder, recursive=True)
    )
    return sorted({path for path in paths if not is_beside(path)})


def stamp_of(name: str) -> Stamp:
    """What tells at a glance whether an input is still the same, folders of texts included."""
    if not os.path.isdir(name):
        return sources.stamp_of(name)
    from ooc_pegasos.readers.folders import FolderSource

    return FolderSource(name).stamp


def hash_of(name: str) -> str:
    """The checksum of an input, folders of texts included."""
    if not os.path.isdir(name):
        return sources.hash_of(name)
    from ooc_pegasos.readers.folders import FolderSource

    return FolderSource(name).read_all()


def _told_kind(name: str) -> Format | None:
    """What a file is by its first bytes or its name; None if neither says."""
    if columns_plan.form_of(name) is not None:
        return "table"
    stem = path_of(name).lower()
    for suffix in (".gz", ".bz2", ".xz", ".zst"):
        stem = stem.removesuffix(suffix)
    if stem.endswith((".npz", ".npy")):
        return "arrays"
    if stem.endswith(".vw"):
        return "vw"
    return "svmlight" if stem.endswith((".svm", ".svmlight", ".libsvm")) else None


def new_recipe(config: ConvertConfig, names: Sequence[str], note: Callable[[str], None]) -> Recipe:
    """How the rows of a new store are made; `note` is told what was taken for what."""
    kind = config.format
    refuse_unsuited(config, names)
    recipe = Recipe(kind, 0, config.features, config.normalize, config.rounding)
    least, most = config.ngram_range()
    tokens = Tokens(characters=config.characters, least=least, most=most)
    hashing = Hashing(config.hash_bits or 22, config.hash_signed)
    if kind == "table":
        table = _new_table(config, names[0], hashing, tokens, note)
        from ooc_pegasos.readers.vectorize import features_of

        return dataclasses.replace(recipe, table=table, features=_fixed(features_of(table), config))
    if kind == "arrays" and config.label is not None:
        return dataclasses.replace(recipe, label_column=int(config.label))
    if kind == "folders":
        return dataclasses.replace(recipe, hashing=hashing, tokens=tokens, features=_fixed(hashing.places, config))
    if kind == "vw" and config.hash_bits != 0:
        return dataclasses.replace(recipe, hashing=hashing, features=_fixed(hashing.places, config))
    return recipe


def refuse_unsuited(config: ConvertConfig, names: Sequence[str]) -> None:
    """Refuse options that do nothing for such inputs."""
    kind, what = config.format, spoken(names[0])
    for name, kinds in _SUITS.items():
        given = getattr(config, name)
        if kind in kinds or given == getattr(_DEFAULTS, name) or (name, given) == ("index_base", "0"):
            continue
        if (name, kind) == ("label", "arrays"):
            if given.removeprefix("-").isdigit():
                continue
            raise UsageError(
                f"{{label={given}}}: of arrays it is the number of a column, as 0 or -1; see {{labels}} as well"
            )
        told = " and ".join(_SPOKEN.get(one, one) for one in kinds)
        raise UsageError(f"--{name.replace('_', '-')} is for {told}, and {what} is read as {kind}; leave it out")
    if config.hash_bits == 0 and kind != "vw":
        raise UsageError("{hash_bits=0} is for Vowpal Wabbit text; choose 1 to 31")


def _fixed(features: int | None, config: ConvertConfig) -> int | None:
    """How many features there are, where the columns or the hash say so."""
    if features is not None and config.features not in (None, features):
        problem = "the columns, {hash_bits} or {dictionary} say how many features there are"
        raise UsageError(f"{{features={config.features}}}: {problem}; leave it out")
    return config.features if features is None else features


def _new_table(
    config: ConvertConfig, name: str, hashing: Hashing, tokens: Tokens, note: Callable[[str], None]
) -> Table:
    wanted = {option: getattr(config, option) for option in _OF_TABLES}
    if config.delimiter is None:
        del wanted["delimiter"]
    table, remarks = plan_table(name, wanted | {"hashing": hashing, "tokens": tokens}, config.memory)
    for remark in remarks:
        note(remark)
    for option in ("ngrams", "characters"):
        if getattr(config, option) != getattr(_DEFAULTS, option) and not any(c.kind == "text" for c in table.columns):
            raise UsageError(f"{{{option}}}: no column is text; leave it out, or name one with {{text}}")
    return table


def plan_table(name: str, wanted: dict[str, Any], memory: int = sources.DEFAULT_MEMORY) -> tuple[Table, list[str]]:
    """The columns that count in tables like file `name`, and remarks on what was taken for what.

    `wanted` has what was said: label, weight, id, numeric, categorical, text (patterns), header, delimiter and the
    other fields of `Table`.
    """
    patterns: dict[Kind, Any] = {
        "numeric": wanted.pop("numeric"),
        "categorical": wanted.pop("categorical"),
        "text": wanted.pop("text"),
    }
    preset = wanted.pop("preset", None)
    wanted.setdefault("delimiter", columns_plan.delimiter_of(name))
    if preset == "criteo":
        given = [option for option, found in (*patterns.items(), ("label", wanted.get("label"))) if found]
        if given:
            raise UsageError(f"{{{given[0]}}} and {{preset=criteo}}, which says what its columns are; leave one out")
        return criteo(wanted), []
    read = {option: wanted[option] for option in ("header", "delimiter", "multiline") if option in wanted}
    blank = Table([], None, **read)
    known = columns_plan.schema_of(name, blank, memory)
    remarks = []
    label = wanted.pop("label", None)
    if label is None:
        label = next((column for column in _LABELS if column in known), None)
        if label is None:
            problem = f"which column has the labels? Say {{label=COLUMN}}; {columns_plan.columns_in_words(known)}"
            raise UsageError(f"{spoken(name)}: {problem}")
        remarks.append(f"labels are taken from column '{label}'")
    for option, column in (("--label", label), ("--weight", wanted.get("weight")), ("--id", wanted.get("id"))):
        if column is not None and column not in known:
            raise UsageError(f"{option} {column}: {columns_plan.difference([column], known)}")
    taken = {label, wanted.get("weight"), wanted.get("id")}
    if label in (wanted.get("weight"), wanted.get("id")):
        option = "weight" if label == wanted.get("weight") else "id"
        raise UsageError(f"--{option} {label}: this column is the label; name another, or leave it out")
    chosen: dict[str, Kind] = {}
    for kind, given in patterns.items():
        for pattern in given:
            found = [column for column in named_by([pattern], known) if column not in taken]
            if not found and pattern in taken:
                raise UsageError(f"--{kind} {pattern}: this column is the label, the weight or the id; choose one")
            if not found:
                raise UsageError(f"--{kind} {pattern}: {columns_plan.difference([pattern], known)}")
            for column in found:
                if chosen.get(column, kind) != kind:
                    raise UsageError(f"column '{column}' is given by --{chosen[column]} and by --{kind}; choose one")
                chosen[column] = kind
    if not chosen:
        left_out = [column for column in known if _INDEX.fullmatch(column) and column not in taken]
        others = {*taken, *left_out}
        chosen = {column: _kind_by_type(known[column]) for column in known if column not in others}
        told = {
            kind: [c for c, found in chosen.items() if found == kind] for kind in ("numeric", "categorical", "entries")
        }
        told["left out, as the index of a pandas table or without a name"] = left_out
        remarks += [f"{kind}: {_some(columns)}" for kind, columns in told.items() if columns]
    if not chosen:
        raise UsageError(f"{spoken(name)}: no column besides the label; check the file")
    columns = [Column(column, chosen[column]) for column in known if column in chosen]
    for column in columns:
        if columns_plan.form_of(name) != "delimited":
            columns_plan.check_type(spoken(name), column.name, known[column.name], column.kind)
    lists = [column for column in columns if column.kind == "entries"]
    if lists and len(columns) > 1:
        raise UsageError(
            f"{spoken(name)}: column '{lists[0].name}' has indices of its own, which do not go together with hashed "
            "columns; leave the others out by naming columns with {numeric}, {categorical} or {text}"
        )
    if lists and wanted.get("nulls") == "mark":
        raise UsageError(f"{{nulls=mark}}: the indices of column '{lists[0].name}' have no room for it; leave it out")
    return Table(columns, label, **wanted), remarks


def criteo(wanted: dict[str, Any]) -> Table:
    """The Criteo click logs: tabs, no header, a label, 13 numbers and 26 categories."""
    columns = [Column(str(i), "numeric") for i in range(1, 14)] + [Column(str(i), "categorical") for i in range(14, 40)]
    given = {name: value for name, value in wanted.items() if name not in ("label", "header", "delimiter")}
    return Table(columns, "0", header=False, delimiter="\t", **given)


def _kind_by_type(kind: Any) -> Kind:
    import pyarrow as pa

    if pa.types.is_nested(kind):
        return "entries"
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "numeric" if numbers else "categorical"


def _some(columns: list[str]) -> str:
    return ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")


def reader_for(
    names: Sequence[str],
    recipe: Recipe,
    block_size: int,
    *,
    text_labels: bool,
    smallest_index: int = 0,
    largest_index: int = LARGEST_INDEX,
    stop_at_bad: bool = True,
    with_labels: bool = True,
    feature_names: int = 0,
    labels: str | None = None,
    label_column: int | None = None,
    vocabulary: Vocabulary | None = None,
    memory: int = sources.DEFAULT_MEMORY,
) -> Reader:
    """The reader of a recipe for some files, which may need a vocabulary; `memory` limits the width of rows."""
    kind = recipe.reader
    if kind in PLAIN:  # indices as they stand: any reader of such will do
        found = {_told_kind(name) or "svmlight" for name in names}
        kind = found.pop() if len(found) == 1 and found <= set(PLAIN) else kind
    if kind == "table":
        assert recipe.table is not None
        table = tables.Settings(recipe.table, text_labels, stop_at_bad, with_labels, feature_names, vocabulary)
        return tables.TablesReader(names, table, block_size, memory)
    if kind == "folders":
        from ooc_pegasos.readers import folders
        from ooc_pegasos.readers.tokens import TextHasher

        hasher = TextHasher(recipe.tokens or Tokens(), recipe.hashing or Hashing(), vocabulary)
        return folders.TextFoldersReader(
            names[0],
            hasher,
            text_labels,
            stop_at_bad=stop_at_bad,
            with_labels=with_labels,
            names=feature_names,
            memory=memory,
        )
    if kind == "vw":
        from ooc_pegasos.readers import vw

        said = vw.Settings(
            recipe.hashing, text_labels, smallest_index, largest_index, stop_at_bad, with_labels, feature_names
        )
        return vw.VwReader(names, said, block_size, memory)
    if kind == "arrays":
        from ooc_pegasos.readers import arrays, matrices

        given = matrices.Settings(
            text_labels,
            labels if with_labels else None,
            label_column,
            smallest_index,
            largest_index,
            stop_at_bad,
            with_labels,
        )
        return arrays.ArraysReader(names, given, block_size)
    plain = svmlight.Settings(text_labels, smallest_index, largest_index, stop_at_bad)
    return svmlight.SvmlightReader(names, plain, block_size, memory)


PLAIN = ("svmlight", "arrays")


def bytes_of_rows(name: str, size: int, recipe: Recipe) -> float:
    """About what the rows of an input of some bytes take while they are shuffled."""
    if recipe.table is not None and (rows := columns_plan.rows_of(name)) is not None:
        return float(rows) * (_BYTES_A_ROW + _BYTES_AN_ENTRY * len(recipe.table.columns))
    compressed = path_of(name).endswith((".gz", ".bz2", ".xz", ".zst"))
    return size * (_ROWS_PER_TABLE if recipe.table is not None else _ROWS_PER_TEXT) * (4 if compressed else 1)


def labels_are_text(
    names: Sequence[str],
    kind: str,
    recipe: Recipe,
    labels: str | None = None,
    memory: int = sources.DEFAULT_MEMORY,
) -> bool:
    """Whether the first labels that can be read are words."""
    if kind == "svmlight":
        return svmlight.labels_are_text(names, memory)
    if kind == "folders":
        return True
    if kind == "vw":
        return False
    if kind == "arrays":
        from ooc_pegasos.readers import matrices

        return matrices.labels_are_text(names, labels)
    plain = recipe.without_findings()
    reader = reader_for(names[:1], plain, 1 << 16, text_labels=True, stop_at_bad=False, memory=memory)
    try:
        return svmlight.are_words(reader)
    except sources.LongLineError:
        return False  # it will be refused where it stands
