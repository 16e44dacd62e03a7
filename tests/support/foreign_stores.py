"""Stores read and changed without the package, from docs/store-format.md alone."""

import dataclasses
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from ooc_pegasos import Store
from ooc_pegasos.store.chunk_file import write_chunk


def independent_reader(folder: Path) -> tuple[sp.csr_matrix, np.ndarray]:
    """Read the rows and labels of a store as docs/store-format.md describes."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("ooc-pegasos store", 1)
    labels, indptr, indices, values = [], [0], [], []
    for chunk in manifest["chunks"]:
        content = (folder / chunk["file"]).read_bytes()
        assert f"{zlib.crc32(content):08x}" == chunk["crc32"]
        batches = pa.ipc.open_file(content)
        assert batches.num_record_batches == 1
        batch = batches.get_batch(0)
        batch.validate(full=True)
        labels += batch.column("label").to_pylist()
        for row in batch.column("features").to_pylist():
            index = 0
            for entry in row:
                code = entry if isinstance(entry, int) else entry.get("gap", entry.get("index"))
                if isinstance(entry, int):
                    value = 1.0
                elif "bfloat16" in entry:
                    value = struct.unpack("<f", struct.pack("<HH", 0, entry["bfloat16"]))[0]
                else:
                    value = float(entry["value"])
                if manifest["layout"]["index_coding"] == "uint32":
                    index = code
                else:
                    index += code
                    if code == {"gap8": 255, "gap16": 65_535}[manifest["layout"]["index_coding"]]:
                        assert isinstance(entry, int) or value == 0
                        continue
                indices.append(index)
                values.append(value)
            indptr.append(len(indices))
    shape = (manifest["rows"], manifest["features"])
    return sp.csr_matrix((np.array(values, np.float32), indices, indptr), shape=shape), np.array(labels)


def rewrite(folder: Path, **changes: object) -> None:
    """Change the manifest and make its checksum right again."""
    path = folder / "manifest.json"
    table = {**json.loads(path.read_text()), **changes}
    del table["checksum"]
    table["checksum"] = f"{zlib.crc32(json.dumps(table, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(table))


def forge_chunk(sound: Store, number: int, **columns: object) -> None:
    """Write a chunk with other columns and a manifest that vouches for it."""
    block = dataclasses.replace(sound.block(number), **columns)
    path = sound.path / sound.manifest.chunks[number].file
    written = write_chunk(path.with_suffix(".new"), block)  # the block's columns are the file itself
    path.with_suffix(".new").rename(path)
    chunks = json.loads((sound.path / "manifest.json").read_text())["chunks"]
    chunks[number].update(dataclasses.asdict(written), entries=len(block.indices))
    rewrite(sound.path, chunks=chunks)
