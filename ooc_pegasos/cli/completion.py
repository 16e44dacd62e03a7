"""Completion of values in the shell: words of options, columns of the inputs, versions of a job, sources of a store.

A completion never fails: a file that cannot be read has no columns. The readers of conversions are not used, because
their imports take longer than somebody waits for a completion.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import typer

from ooc_pegasos.util.kind_of_path import MANIFEST, MODEL

_LINE = 1 << 20
"""Most bytes of the first line that are read."""
_FILES = 8
"""Inputs whose columns are completed, and files of a folder that are considered."""
_DELIMITED, _JSON = (".csv", ".tsv", ".tab"), (".jsonl", ".ndjson", ".json")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNSAFE = re.compile(r"([^\w@%+=:,./-])")

Completion = Callable[[typer.Context, str], list[str]]


class _Quoted(str):
    """A word as it is written in a shell. Typer compares it with the word so far, which is not quoted any more."""

    def startswith(self, *_given: Any) -> bool:
        return True


def completion(find: Callable[[typer.Context], Iterable[str]]) -> Completion:
    """Return a completion with the words that a function finds."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        with suppress(Exception):
            words = [word for word in dict.fromkeys(find(ctx)) if word.startswith(incomplete) and word.isprintable()]
            if os.environ.get("_OOCPEG_COMPLETE", "").endswith("bash"):  # other shells quote words themselves
                return [_Quoted(_UNSAFE.sub(r"\\\1", word)) for word in words]
            return words
        return []

    return complete


def one_of(words: Callable[[], Iterable[str]]) -> Completion:
    """Return a completion of the words that an option takes."""
    return completion(lambda _ctx: words())


def _arguments(ctx: typer.Context) -> list[str]:
    """Return the arguments that are not options. Typer has not named them yet where the last option has no value."""
    named = (value for name, value in ctx.params.items() if name in ("inputs", "store", "models") and value)
    lists = (value if isinstance(value, list | tuple) else [value] for value in named)
    return [str(word) for words in lists for word in words] + list(ctx.args)


@completion
def columns(ctx: typer.Context) -> Iterable[str]:
    """Return the columns of the inputs before the word that is completed."""
    for name in _arguments(ctx):
        for path in sorted(glob(name))[:_FILES]:
            with suppress(Exception):
                yield from columns_of(Path(path), ctx.params.get("delimiter"), ctx.params.get("header") is not False)


@completion
def versions(ctx: typer.Context) -> Iterable[str]:
    """Return the versions in the folder of models of a job."""
    for folder in _arguments(ctx):
        yield from sorted(path.parent.name for path in Path(folder).glob(f"*/{MODEL}") if path.parent.name != "current")


@completion
def sources(ctx: typer.Context) -> Iterable[str]:
    """Return the files of which a store was made."""
    for store in _arguments(ctx):
        yield from (source["name"] for source in json.loads((Path(store) / MANIFEST).read_text())["sources"])


def columns_of(path: Path, delimiter: str | None = None, has_header: bool = True) -> list[str]:
    """Return the names of the columns of a table, a folder of tables or a store, from its beginning alone."""
    if (path / MANIFEST).is_file():
        return _columns_of_store(path)
    if path.is_dir():
        some = sorted(one for one in path.iterdir() if one.is_file())[:_FILES]
        return next((found for one in some if (found := columns_of(one, delimiter, has_header))), [])
    if not path.is_file():  # a pipe can be read only once
        return []
    with path.open("rb") as file:
        begin = file.read(6)
    if begin.startswith(b"PAR1"):
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)
    if begin.startswith(b"ARROW1"):
        import pyarrow as pa

        with pa.memory_map(str(path)) as mapped:
            return list(pa.ipc.open_file(mapped).schema.names)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in (*_OPENERS, ".zst") else ""
    suffix = suffixes[-1] if suffixes else ""
    if suffix in _JSON:
        return list(json.loads(_first_line(path, packed)))
    if suffix not in _DELIMITED:
        return []
    line = _first_line(path, packed).decode("utf-8-sig").rstrip("\r\n")
    usual = "\t" if suffix in (".tsv", ".tab") else ","
    mark = delimiter or (usual if usual in line else max(",;\t|", key=line.count))
    cells = next(csv.reader([line], delimiter=mark), [])
    return [name for name in cells if name] if has_header else [str(number) for number in range(len(cells))]


def _first_line(path: Path, packed: str) -> bytes:
    if packed == ".zst":
        import pyarrow as pa

        with pa.input_stream(str(path), compression="zstd") as stream:
            return bytes(stream.read(_LINE)).partition(b"\n")[0]
    with _OPENERS.get(packed, open)(path, "rb") as file:
        return bytes(file.readline(_LINE))


def _columns_of_store(path: Path) -> list[str]:
    """Return the columns of the files of which a store was made, as far as its rows depend on them."""
    table = json.loads((path / MANIFEST).read_text())["recipe"]["table"]
    others = [table[name] for name in ("label", "weight", "id") if table.get(name)]
    return [*others, *(column["name"] for column in table["columns"])]
