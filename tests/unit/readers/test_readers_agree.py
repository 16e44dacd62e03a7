"""The same rows through every format give the same store, byte by byte."""

import itertools
import json
from pathlib import Path

import dask.array as da
import dask.bag as db
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from dask.delayed import delayed

from ooc_pegasos import ConvertConfig, Store, convert
from support.file_bytes import folder_bytes
from support.rows import random_rows, same_matrix, svmlight_text

SIZES = [(1, 1, 1.0), (7, 5, 0.3), (300, 60, 0.05), (40, 5000, 0.002)]


def rows_with_labels(rows: int, features: int, density: float, seed: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Random rows of which the last column, both labels and, if there are many, empty rows are part."""
    matrix, labels = random_rows(rows, features, seed, density)
    matrix = matrix.tolil()
    matrix[rows - 1, features - 1] = 0.1
    matrix = matrix.tocsr()
    matrix.sort_indices()
    labels[:2] = [-1, 1][: len(labels)]
    return matrix.astype(np.float32), labels


def pairs_of(matrix: sp.csr_matrix) -> list[list[dict]]:
    cut = [slice(*matrix.indptr[i : i + 2]) for i in range(matrix.shape[0])]
    return [
        [{"index": int(j), "value": float(v)} for j, v in zip(matrix.indices[s], matrix.data[s], strict=True)]
        for s in cut
    ]


def write_all(folder: Path, matrix: sp.csr_matrix, labels: np.ndarray, weights: np.ndarray | None) -> dict:
    """Files in every format, and what the configuration of each must say."""
    made: dict[str, tuple[Path, dict]] = {}
    table = {"label": "y"} | ({"weight": "w"} if weights is not None else {})
    pairs = pairs_of(matrix)
    told = [""] * len(labels) if weights is None else [f" {float(w)!r}" for w in weights]

    made["svmlight"] = (folder / "in.svm", {"index_base": "0"})
    made["svmlight"][0].write_text(svmlight_text(matrix, labels, base=0))
    if weights is not None:
        (folder / "weights.txt").write_text("".join(f"{float(w)!r}\n" for w in weights))
        made["svmlight"][1]["weights"] = str(folder / "weights.txt")

    made["vw"] = (folder / "in.vw", {"hash_bits": 0})
    lines = [
        f"{label}{w} | " + " ".join(f"{pair['index']}:{pair['value']!r}" for pair in row)
        for label, w, row in zip(labels, told, pairs, strict=True)
    ]
    made["vw"][0].write_text("\n".join(lines) + "\n")

    extra = {} if weights is None else {"weights": weights}
    for name, save in (("npz", np.savez), ("npz compressed", np.savez_compressed)):
        made[name] = (folder / f"{name}.npz", {})
        shape = np.array(matrix.shape)
        parts = {"indices": matrix.indices, "indptr": matrix.indptr, "data": matrix.data, "labels": labels}
        save(made[name][0], format=np.array(b"csr"), shape=shape, **parts, **extra)

    if weights is None:
        made["npy"] = (folder / "in.npy", {"labels": str(folder / "labels.npy")})
        np.save(made["npy"][0], matrix.toarray())
        np.save(folder / "labels.npy", labels)

    rows = [
        {"y": int(label), "x": row} | ({} if weights is None else {"w": float(weights[i])})
        for i, (label, row) in enumerate(zip(labels, pairs, strict=True))
    ]
    made["json lines"] = (folder / "in.jsonl", table)
    made["json lines"][0].write_text("".join(json.dumps(row) + "\n" for row in rows))

    made["parquet"] = (folder / "in.parquet", table)
    pq.write_table(table_of_rows(rows), made["parquet"][0])
    return made


def table_of_rows(rows: list[dict]) -> pa.Table:
    entries = pa.list_(pa.struct([("index", pa.int64()), ("value", pa.float32())]))
    fields = [("y", pa.int8()), ("x", entries)] + ([("w", pa.float32())] if "w" in rows[0] else [])
    return pa.Table.from_pylist(rows, pa.schema(fields))


def collected(
    folder: Path, matrix: sp.csr_matrix, labels: np.ndarray, weights: np.ndarray | None, options: dict, cut: int = 1
) -> dict:
    """Stores of what is in memory; collections fall into `cut` pieces."""
    plain = ConvertConfig(**options)
    tables = ConvertConfig(**options, **{"label": "y"} | ({"weight": "w"} if weights is not None else {}))
    pairs = pairs_of(matrix)
    rows = [
        {"y": int(label), "x": row} | ({} if weights is None else {"w": float(weights[i])})
        for i, (label, row) in enumerate(zip(labels, pairs, strict=True))
    ]
    made = {
        kind.__name__: Store.from_scipy(kind(matrix), labels, folder / kind.__name__, weights, plain)
        for kind in (sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, sp.csr_array)
    }
    made["dense"] = Store.from_scipy(matrix.toarray(), labels, folder / "dense", weights, plain)
    made["from_arrow"] = Store.from_arrow(table_of_rows(rows), folder / "arrow", tables)
    bag = db.from_sequence(rows, npartitions=cut)
    made["bag"] = Store.from_dask(bag, folder / "bag", config=tables)
    if weights is None:
        cuts = np.linspace(0, matrix.shape[0], min(cut, matrix.shape[0]) + 1).astype(int).tolist()
        parts = [(matrix[a:b], (b - a, matrix.shape[1])) for a, b in itertools.pairwise(cuts)]
        sparse = da.concatenate(
            [da.from_delayed(delayed(part), shape, np.float32, meta=sp.csr_matrix((0, 0))) for part, shape in parts]
        )
        made["sparse blocks"] = Store.from_dask(sparse, folder / "sparse", labels, plain)
        chunk = max(1, -(-matrix.shape[0] // cut))
        dense = da.from_array(matrix.toarray(), (chunk, -1))
        y = da.from_array(labels, chunk)
        made["dense blocks"] = Store.from_dask(dense, folder / "dense blocks", y, plain)
        made["mapped blocks"] = Store.from_dask(dense.map_blocks(sp.csr_matrix), folder / "mapped", y, plain)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "features", "density"), SIZES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_format_gives_the_same_chunks(tmp_path, rows, features, density, weighted, shuffle):
    matrix, labels = rows_with_labels(rows, features, density, seed=rows)
    rng = np.random.default_rng(1)
    weights = rng.choice(np.array([0.25, 1, 3.5], np.float32), rows) if weighted else None
    if weighted:
        weights[0] = 0.5
    options = {"shuffle": shuffle, "seed": 5, "classes": ("-1", "1"), "chunk_size": 2048}
    stores = {}
    for name, (file, more) in write_all(tmp_path, matrix, labels, weights).items():
        stores[name] = convert([str(file)], tmp_path / f"store of {name}", ConvertConfig(**options, **more))
    stores |= collected(tmp_path, matrix, labels, weights, options)
    assert len(stores) == 12 + 4 * (not weighted) + 1
    truth = stores["svmlight"]
    got, y = truth.to_scipy()
    if not shuffle:
        assert same_matrix(got, matrix)
        assert y.tolist() == labels.tolist()
        assert truth.weights().tolist() == (weights.tolist() if weighted else [1] * rows)
    chunks = {name: content for name, content in folder_bytes(truth.path).items() if name != "manifest.json"}
    assert (rows < 300) or len(chunks) > 1
    for name, store in stores.items():
        there = {file: content for file, content in folder_bytes(store.path).items() if file != "manifest.json"}
        assert there == chunks, name
        assert (store.rows, store.features, store.nonzeros) == (rows, features, truth.nonzeros), name
        assert store.manifest.labels == truth.manifest.labels, name
        assert store.manifest.statistics == truth.manifest.statistics, name


def test_collections_in_pieces_have_the_same_rows_in_the_same_order(tmp_path):
    """Chunks end where pieces do, so that only rows can be compared."""
    matrix, labels = rows_with_labels(50, 20, 0.1, seed=3)
    weights = np.linspace(0.5, 2, 50, dtype=np.float32)
    options = {"shuffle": False, "classes": ("-1", "1")}
    for given in (None, weights):
        folder = tmp_path / str(given is None)
        folder.mkdir()
        for name, store in collected(folder, matrix, labels, given, options, cut=3).items():
            assert same_matrix(store.to_scipy()[0], matrix), name
            assert store.to_scipy()[1].tolist() == labels.tolist(), name
            assert store.weights().tolist() == ([1] * 50 if given is None else given.tolist()), name


def test_last_columns_that_are_empty_count_where_the_format_has_them(tmp_path):
    """A matrix does; of text and tables features are those up to the last entry. Or as many as are asked for."""
    matrix, labels = sp.csr_matrix(np.eye(4, 9, dtype=np.float32)), np.array([-1, 1, -1, 1])
    files = write_all(tmp_path, matrix, labels, None)
    for name, (file, more) in files.items():
        store = convert([str(file)], tmp_path / name, ConvertConfig(classes=("-1", "1"), **more))
        assert store.features == (9 if name.startswith(("npz", "npy")) else 4), name
        config = ConvertConfig(classes=("-1", "1"), features=9, **more)
        store = convert([str(file)], tmp_path / f"{name} 9", config)
        assert store.features == 9, name


def test_stored_zeros(tmp_path):
    """The rows are the same, but only svmlight text keeps a zero that is written down as an entry."""
    matrix = sp.csr_matrix((np.array([1, 0, 2], np.float32), [0, 1, 1], [0, 2, 3]), (2, 2))
    labels = np.array([-1, 1])
    found = {}
    for name, (file, more) in write_all(tmp_path, matrix, labels, None).items():
        config = ConvertConfig(classes=("-1", "1"), shuffle=False, **more)
        found[name] = convert([str(file)], tmp_path / name, config)
    for name, store in found.items():
        assert store.to_scipy()[0].toarray().tolist() == [[1, 0], [0, 2]], name
    assert {name: store.nonzeros for name, store in found.items()} == dict.fromkeys(found, 2) | {"svmlight": 3}
