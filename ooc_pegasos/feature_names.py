"""Names of features: `features-XXXX.arrow` in a store, and what a recipe says by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ooc_pegasos.checksums import xxh64_hex
from ooc_pegasos.errors import DamagedError
from ooc_pegasos.files import write_atomically
from ooc_pegasos.manifest import Manifest, NamesInfo, Recipe


def write(folder: Path, names: Mapping[int, str]) -> NamesInfo:
    """Write names by place; the file is called after its content, so that no older one is ever overwritten."""
    import pyarrow as pa

    places = sorted(names)
    batch = pa.record_batch(
        [pa.array(places, pa.uint32()), pa.array([names[place] for place in places], pa.string())],
        names=["feature", "name"],
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    checksum = xxh64_hex(content)
    file = f"features-{checksum}.arrow"
    write_atomically(folder / file, content.to_pybytes())
    return NamesInfo(file, len(places), content.size, checksum)


def read(folder: Path, info: NamesInfo) -> dict[int, str]:
    """The names that were written, after a check of every byte."""
    import pyarrow as pa

    file = folder / info.file
    advice = "restore it or convert again"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DamagedError(f"{file}: {error.strerror}; {advice}") from error
    if len(content) != info.bytes or xxh64_hex(content) != info.xxh64:
        raise DamagedError(f"{file}: the checksum does not match, so the file was changed or damaged; {advice}")
    table = pa.ipc.open_file(content).read_all()
    return dict(zip(table.column("feature").to_pylist(), table.column("name").to_pylist(), strict=True))


def of_store(folder: Path, made: Manifest) -> dict[int, str]:
    """All names that are known of the features of a store."""
    if made.names is not None:
        return read(folder, made.names)
    return of_recipe(made.recipe)


def of_recipe(recipe: Recipe) -> dict[int, str]:
    """Names that follow from the columns: where all are numbers, each has a place of its own."""
    table = recipe.table
    if table is None or not all(column.kind == "numeric" for column in table.columns):
        return {}
    names = [column.name for column in table.columns]
    if table.nulls == "mark":
        names += [f"{name}=null" for name in names]
    return dict(enumerate(names))


def signs(names: Mapping[int, str], recipe: Recipe) -> dict[int, float]:
    """By which values are multiplied before their weight is: -1 where a signed hash says so."""
    from ooc_pegasos.readers.vectors import Vectorizer, is_dense

    table = recipe.table
    if table is None or is_dense(table) or not table.hashing.signed:
        return {}
    places = Vectorizer(table, False)
    return {place: places.place(name)[1] for place, name in names.items()}


def heaviest(weights: np.ndarray, number: int) -> np.ndarray:
    """The features with the largest weights, of several classes the largest of each, in falling order."""
    size = np.abs(weights).max(axis=1) if weights.ndim > 1 else np.abs(weights)
    number = min(number, int(np.count_nonzero(size)))
    some = np.argpartition(-size, number - 1)[:number] if 0 < number < len(size) else np.flatnonzero(size)
    chosen: np.ndarray = some[np.lexsort((some, -size[some]))]
    return chosen
