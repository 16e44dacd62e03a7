"""The registry of input formats: detection, options, recipes and readers, whatever the format.

The command line and configurations know the names alone (`ooc_pegasos/formats.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.formats import ANY, FORMATS
from ooc_pegasos.options import options_of
from ooc_pegasos.readers import columns_plan, sources
from ooc_pegasos.readers.arrays import ArraysFormat
from ooc_pegasos.readers.base import COMPRESSIONS, Format, Note, Reader, ReadOptions
from ooc_pegasos.readers.folders import FoldersFormat, FolderSource
from ooc_pegasos.readers.lines import LinesFormat
from ooc_pegasos.readers.names import expand
from ooc_pegasos.readers.pipes import PipePath
from ooc_pegasos.readers.remote import is_remote
from ooc_pegasos.readers.sources import STDIN, Stamp, display_name, first_bytes, open_input, path_of
from ooc_pegasos.readers.svmlight import SvmlightFormat
from ooc_pegasos.readers.tables import TablesFormat
from ooc_pegasos.readers.vw import VwFormat
from ooc_pegasos.store import manifest
from ooc_pegasos.store.manifest import Recipe
from ooc_pegasos.store.recipe import Hashing
from ooc_pegasos.util.kind_of_path import VERSIONS, foreign_kind, kind_of_path

_DEFAULTS = ConvertConfig()
_NO_CHANGE = {("index_base", "0"), ("ngrams", "1"), ("idf", False), ("nulls", "absent")}
"""Values of options that change nothing in formats without the option."""
_CHECKED = 16
"""Files whose first bytes are compared with those of files that are often named by mistake."""
_BYTES_A_ROW, BYTES_PER_ENTRY = 12, 8
ROWS_PER_TEXT, _ROWS_PER_TABLE = 0.6, 1.3
"""Bytes of rows by bytes of text; compressed text is assumed to be a quarter of its size."""


def register(kind: type[Format]) -> None:
    """Add a format, whose options are fields of `ConvertConfig`."""
    unknown = kind.options - set(options_of(ConvertConfig))
    if unknown:
        problem = f"declares the option '{min(unknown)}', which is not a field of ConvertConfig"
        raise UsageError(f"{{format={kind.name}}} {problem}; remove it")
    FORMATS.register(kind.name, kind())


def unregister(name: str) -> None:
    """Remove a format."""
    FORMATS.unregister(name)


for _kind in (SvmlightFormat, VwFormat, TablesFormat, ArraysFormat, FoldersFormat, LinesFormat):
    register(_kind)


def format_of(name: str) -> Format:
    """Return the format of a name. Raises UsageError."""
    found: Format = FORMATS.find(name)
    return found


def can_be_mixed(name: str, other: str) -> bool:
    """True if files of these formats can be in one store, or be scored by one model."""
    return name == other or (format_of(name).has_plain_indices and format_of(other).has_plain_indices)


def detect(name: str) -> str | None:
    """Return the format of a file by its first bytes or its name; None if neither is known."""
    for clues in (first_bytes(name), ""), (b"", path_of(name)):  # names mislead more often than first bytes
        if found := [name for name, kind in FORMATS.items() if kind.detect(*clues)]:
            return found[0]
    return None


def find(inputs: Sequence[str], wanted: str = ANY, otherwise: str | None = None) -> tuple[list[str], str]:
    """Return (the files that inputs name, their format); folders are replaced by the files in them.

    `wanted` is the format that an option names; `otherwise`, that of files that no format detects.
    """
    if wanted != ANY and format_of(wanted).reads_folders:
        format_of(wanted).check_inputs(inputs)
        return list(inputs), wanted
    names: list[str] = []
    for given in inputs:
        _refuse_other_kinds(given)
        if not os.path.isdir(given):
            names += expand([given])
        elif found := _files_in(given):
            names += [f"{given.rstrip('/')}/./{path}" for path in found]  # see `columns_plan.partition_of`
        elif wanted != ANY or any(e.is_file() and not e.name.startswith(".") for e in os.scandir(given)):
            problem = "is a folder without tables" + (", and has more in it than folders of texts" * (wanted == ANY))
            raise InputError(f"{given}: {problem}; name the files in it, for example '{given}/*.svm'")
        elif len(inputs) == 1:
            return [given], next(name for name, kind in FORMATS.items() if kind.reads_folders)
        else:
            raise InputError(f"{given}: a folder without tables; convert a folder of texts by itself")
    expand([name for name in names if name != STDIN])  # refuses files that are named twice
    _refuse_stores(names)
    for name in names[:_CHECKED]:
        if foreign := foreign_kind(first_bytes(name), path_of(name)):
            raise InputError(
                f"{display_name(name)}: {foreign}, not data; name rows in text, CSV or Parquet, for example"
            )
    if wanted != ANY:
        return _kept(names, wanted), wanted
    fallback = _fallback(otherwise)
    formats = {name: detect(name) or fallback for name in names}
    first = names[0]
    for name in names:
        if formats[name] != formats[first]:
            problem = f"read as {formats[name]}, but {display_name(first)} as {formats[first]}"
            raise InputError(f"{display_name(name)}: {problem}; convert files of one format at a time, with {{append}}")
    return _kept(names, formats[first]), formats[first]


def find_for(inputs: Sequence[str], config: ConvertConfig) -> tuple[list[str], str]:
    """Return (the files that inputs name, their format) for a conversion; beside a file of labels, text is lines."""
    text = (name for name, kind in FORMATS.items() if kind.is_text and "labels" in kind.options)
    return find(inputs, config.format, next(text, None) if config.labels else None)


def _kept(names: list[str], kind: str) -> list[str]:
    """Return the names, with the pipes that a format has to open several times as such."""
    if "dictionary" not in format_of(kind).options:  # the inputs are read once
        return names
    return [name if os.path.isfile(name) or stamp_of(name).regular else PipePath(name) for name in names]


def _refuse_other_kinds(given: str) -> None:
    """Raise InputError for folders and files of oocpeg that have no rows."""
    kind = kind_of_path(given)
    if kind in ("a model", "a proof", "a checkpoint", "a version of a job", VERSIONS, "a folder of checkpoints"):
        raise InputError(f"{given}: {kind}, not data; name files with rows, or a store")


def _fallback(name: str | None) -> str:
    """Return the format of a file that no format detects; `name` is the format of other files, or None."""
    return name if name is not None and name in FORMATS and format_of(name).is_text else next(iter(FORMATS))


def _refuse_stores(names: Sequence[str]) -> None:
    """Raise InputError for files of stores: they are Arrow files, but their columns are coded."""
    suspects = [name for name in names if manifest.names_file(path_of(name).rpartition("/")[2])]
    by_manifest = {_beside(name, manifest.FILE_NAME): name for name in suspects}
    for path, name in by_manifest.items():
        try:
            with open_input(path) as file:
                found = manifest.is_one(file.read())
        except (OSError, InputError):  # there is no such file
            found = False
        if found:
            store = path_of(name).rpartition("/")[0]
            store = store if is_remote(name) else os.path.normpath(store)
            problem = "is a store, whose files are not tables; convert the files it was made of, or train on the store"
            raise InputError(f"{store}: {problem}")


def _beside(name: str, other: str) -> str:
    """Return the path of another file in the folder of an input."""
    path, question, options = name.partition("?") if is_remote(name) else (name, "", "")
    folder, slash, _name = path.rpartition("/")
    return folder + slash + other + question + options


def _files_in(folder: str) -> list[str]:
    """Return the files of a folder whose names have the form of an input, in sorted order."""
    return sorted({path for kind in FORMATS.values() for path in kind.files_in(folder)})


def stamp_of(name: str) -> Stamp:
    """Return size and time of an input, which change with its content; of a folder, those of all files in it."""
    if not os.path.isdir(name):
        return sources.stamp_of(name)
    return FolderSource(name).stamp


def hash_of(name: str) -> str:
    """Return the checksum of an input, a file or a folder of texts."""
    if not os.path.isdir(name):
        return sources.hash_of(name)
    return FolderSource(name).read_all()


def new_recipe(config: ConvertConfig, names: Sequence[str], note: Note) -> Recipe:
    """Return the recipe of a new store; `note` takes remarks on choices made."""
    check_options(config, names)
    return format_of(config.format).recipe(config, names, note)


def with_most_bits(config: ConvertConfig) -> ConvertConfig:
    """Return the options with the hash space of large inputs, for names whose number is not known."""
    hashes = "hash_bits" in format_of(config.format).options
    if not hashes or config.hash_bits is not None or config.dictionary is not None:
        return config
    return dataclasses.replace(config, hash_bits=Hashing.bits)


def check_options(config: ConvertConfig, names: Sequence[str]) -> None:
    """Raise UsageError for options that the format does not understand."""
    chosen = format_of(config.format)
    for option in options_of(ConvertConfig):
        given = getattr(config, option)
        if option in chosen.options or given == getattr(_DEFAULTS, option) or (option, given) in _NO_CHANGE:
            continue
        if suitable := titles_with(option):
            what = f"{display_name(names[0])} is read as {chosen.name}"
            other = ", or give {format}" if names[0] == STDIN and suitable else ""
            raise UsageError(f"{{{option}}} is for {suitable}, and {what}; leave it out{other}")
    chosen.check_options(config)


def titles_with(option: str) -> str:
    """Return the formats that understand an option."""
    *first, last = [kind.title for kind in FORMATS.values() if option in kind.options] or [""]
    return " and ".join(filter(None, (", ".join(first), last)))


def reader_for(names: Sequence[str], recipe: Recipe, options: ReadOptions) -> Reader:
    """Open inputs by their recipe; if indices are stored as written, any reader of such files is suitable."""
    chosen = format_of(recipe.reader)
    if chosen.has_plain_indices:
        found = {detect(name) or _fallback(recipe.reader) for name in names}
        if len(found) == 1 and can_be_mixed(recipe.reader, other := found.pop()):
            chosen = format_of(other)
    if chosen.has_columns != (recipe.table is not None):
        problem = f"the recipe and its format, {chosen.name}, disagree on whether there are columns"
        raise CorruptFileError(f"{display_name(names[0])}: {problem}; convert again")
    return chosen.open(names, recipe, options)


def bytes_of_rows(name: str, size: int, recipe: Recipe) -> float:
    """Return the bytes, about, that the rows of an input of `size` bytes take while they are shuffled."""
    if recipe.table is not None and (rows := columns_plan.rows_of(name)) is not None:
        return float(rows) * (_BYTES_A_ROW + BYTES_PER_ENTRY * (len(recipe.table.columns) + len(recipe.table.crosses)))
    compressed = path_of(name).endswith(COMPRESSIONS)
    return size * (_ROWS_PER_TABLE if recipe.table is not None else ROWS_PER_TEXT) * (4 if compressed else 1)


def labels_are_text(names: Sequence[str], recipe: Recipe, config: ConvertConfig) -> bool:
    """True if the first labels that can be read are words."""
    options = ReadOptions(1 << 16, text_labels=True, stop_at_bad=False, labels=config.labels, memory=config.memory)
    return format_of(config.format).labels_are_text(names, recipe.without_findings(), options)
