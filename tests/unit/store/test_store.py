"""The store: a reader written from docs/store-format.md alone, round trips, damage."""

import dataclasses
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Existing, OocPegasosError, Store, TrainConfig, convert, train, verify
from ooc_pegasos.errors import CorruptFileError, InputError
from ooc_pegasos.store.vocabulary import of_store
from support.file_bytes import flipped, write_text
from support.foreign_stores import forge_chunk, independent_reader, rewrite
from support.rows import random_rows, same_matrix, svmlight_text


def make(folder: Path, text: str, **options: object) -> Store:
    config = ConvertConfig(**{"shuffle": False, **options})
    return convert([write_text(folder / "in.svm", text)], folder / "store", config, existing=Existing(force=True))


def independent_reader_without_arrow(folder: Path) -> tuple[sp.csr_matrix, np.ndarray]:
    """The same by somebody who has no Arrow library and trusts the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    layout = manifest["layout"]
    of_index = {"gap8": "<u1", "gap16": "<u2", "uint32": "<u4"}[layout["index_coding"]]
    of_value = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "code8": "<u1", None: None}[layout["values"]]
    labels, lengths, indices, values = [], [], [], []
    for chunk in manifest["chunks"]:
        content = (folder / chunk["file"]).read_bytes()
        starts, entries = chunk["starts"], chunk["entries"]
        labels += np.frombuffer(content, layout["labels"], chunk["rows"], starts["labels"]).tolist()
        offsets = np.frombuffer(content, "<i4", chunk["rows"] + 1, starts["offsets"])
        codes = np.frombuffer(content, of_index, entries, starts["indices"]).astype(np.int64)
        assert starts["indices"] % 4096 == 0
        assert starts["weights"] is None
        value = np.ones(entries, np.float32)
        if of_value:
            assert starts["values"] % 4096 == 0
            value = np.frombuffer(content, of_value, entries, starts["values"])
        if layout["values"] == "bfloat16":
            value = (value.astype(np.uint32) << 16).view(np.float32)
        if layout["values"] == "code8":
            value = np.array(layout["levels"], np.float32)[value]
        for begin, end in pairwise(offsets):
            index, kept = codes[begin:end], np.ones(end - begin, bool)
            if layout["index_coding"] != "uint32":
                kept = index < {"gap8": 255, "gap16": 65_535}[layout["index_coding"]]
                index = np.cumsum(index)
            indices += index[kept].tolist()
            values += value[begin:end][kept].tolist()
            lengths.append(kept.sum())
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    shape = (manifest["rows"], manifest["features"])
    return sp.csr_matrix((np.array(values, np.float32), indices, indptr), shape=shape), np.array(labels)


CODINGS = [
    ("gap8", 200, 0.3),
    ("gap16", 50_000, 0.002),
    ("uint32", 4_000_000_000, None),
]


def rows_of_density(features: int, density: float | None) -> tuple[sp.csr_matrix, np.ndarray]:
    if density is not None:
        return random_rows(200, features, 3, density)
    rng = np.random.default_rng(4)
    indices = np.sort(rng.integers(0, features, (200, 5)), axis=1)
    matrix = sp.csr_matrix(
        (rng.standard_normal(1000).astype(np.float32), indices.ravel(), np.arange(0, 1001, 5)), shape=(200, features)
    )
    return matrix, rng.choice([-1, 1], 200)


def values_for(matrix: sp.csr_matrix, values: str | None) -> dict[str, object]:
    """Give a matrix values that this coding holds exactly; the options that make a store use it."""
    if values is None:
        matrix.data[:] = 1
    elif values == "code8":
        matrix.data = np.round(np.clip(matrix.data, -3, 3), 1)
        return {}
    elif values == "float16":
        matrix.data = matrix.data.astype(np.float16).astype(np.float32)
    elif values == "bfloat16":
        matrix.data = (matrix.data.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return {"values": values}


@pytest.mark.slow
@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16", "code8", None])
@pytest.mark.parametrize(("coding", "features", "density"), CODINGS)
def test_plain_arrow_and_the_format_page_are_enough(tmp_path, coding, features, density, values):
    matrix, labels = rows_of_density(features, density)
    options = values_for(matrix, values)
    store = make(tmp_path, svmlight_text(matrix, labels), features=features, chunk_size=1500, **options)
    layout = store.manifest.layout
    assert (layout.index_coding, layout.values) == (coding, values)
    patterns = {0, *matrix.data.view(np.uint32).tolist()}
    assert len(layout.levels) == (len(patterns) if values == "code8" else 0)
    assert len(store.manifest.chunks) >= 2
    for reader in (independent_reader, independent_reader_without_arrow):
        found, found_labels = reader(store.path)
        assert same_matrix(found, matrix)
        assert np.array_equal(found_labels, labels)
    assert same_matrix(store.to_scipy()[0], matrix)
    assert store.manifest.statistics.rounding_error == 0
    assert verify(store).problems == []


@pytest.mark.slow
@given(
    st.lists(
        st.dictionaries(
            st.one_of(st.integers(0, 600), st.integers(0, 200_000), st.integers(0, 2**32 - 3)),
            st.one_of(st.sampled_from([1.0, 0.0, -0.0]), st.floats(width=32, allow_nan=False, allow_infinity=False)),
            max_size=12,
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([0, 0, 0, 240, 300]),
    st.sampled_from(["0", "1"]),
    st.integers(1024, 3000),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_matrix_round_trips_exactly(tmp_path, rows, different, base, chunk_size):
    features = 2**32 - 2
    rows = [*rows, {index: 1 + index / 1024 for index in range(different)}]
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    indices = np.array([index for row in rows for index in sorted(row)], np.int64)
    values = np.array([row[index] for row in rows for index in sorted(row)], np.float32)
    matrix = sp.csr_matrix((values, indices, indptr), shape=(len(rows), features))
    labels = np.where(np.arange(len(rows)) % 3 == 0, -1, 1)
    store = make(
        tmp_path,
        svmlight_text(matrix, labels, int(base)),
        index_base=base,
        features=features,
        chunk_size=chunk_size,
        classes=("-1", "1"),
    )
    found, found_labels = store.to_scipy()
    assert same_matrix(found, matrix)
    assert np.array_equal(found_labels, labels)
    assert verify(store).problems == []
    entries = sum(chunk.entries for chunk in store.manifest.chunks)
    width = {"gap8": 1, "gap16": 2, "uint32": 4}
    patterns = set(values.view(np.uint32).tolist())
    few = len(patterns | {0}) <= 256
    value = 0 if (values == 1).all() else 1 if few else 4
    assert store.manifest.layout.values == {0: None, 1: "code8", 4: "float32"}[value]
    gaps = np.diff(indices, prepend=0)
    gaps[indptr[:-1][np.diff(indptr) > 0]] = indices[indptr[:-1][np.diff(indptr) > 0]]
    smallest = min(
        len(indices) * (4 + value),
        *(int((1 + gaps // escape).sum()) * (size + value) for size, escape in ((1, 255), (2, 65_535))),
    )
    assert entries * (width[store.manifest.layout.index_coding] + value) == smallest


def test_blocks_are_read_only_views_of_the_file(tmp_path):
    matrix, labels = random_rows(300, 100, seed=5)
    store = make(tmp_path, svmlight_text(matrix, labels), chunk_size=2048)
    blocks = list(store.blocks())
    assert len(blocks) == len(store.manifest.chunks) > 2
    for block, chunk in zip(blocks, store.manifest.chunks, strict=True):
        assert block.rows == chunk.rows
        for column in (block.indptr, block.indices, block.values, block.labels):
            assert not column.flags.writeable
            assert not column.flags.owndata


def test_statistics_and_fingerprints(tmp_path):
    import xxhash

    matrix, labels = random_rows(300, 100, seed=6)
    text = svmlight_text(matrix, labels)
    store = make(tmp_path, text, chunk_size=2048, features=100)
    made = store.manifest
    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1), np.float64)).ravel()
    assert made.statistics.max_row_norm == pytest.approx(norms.max(), rel=1e-6)
    assert made.statistics.mean_row_norm == pytest.approx(norms.mean(), rel=1e-6)
    assert made.statistics.max_row_nonzeros == np.diff(matrix.indptr).max()
    assert made.statistics.empty_rows == (np.diff(matrix.indptr) == 0).sum()
    assert made.labels.counts == [(labels == -1).sum(), (labels == 1).sum()]
    assert np.sum([chunk.label_counts for chunk in made.chunks], axis=0).tolist() == made.labels.counts
    source = made.sources[0]
    assert (source.size, source.rows) == (len(text), 300)
    assert source.xxh64 == xxhash.xxh64(text.encode()).hexdigest()


@pytest.fixture
def sound(tmp_path):
    matrix, labels = random_rows(200, 90, seed=7)
    return make(tmp_path, svmlight_text(matrix, labels), chunk_size=2048)


def use(path: Path) -> None:
    """Everything a reader of the store does."""
    store = Store.open(path)
    store.to_scipy()
    found = verify(store)
    if found.problems:
        raise CorruptFileError(found.problems[0])


def test_every_flipped_bit_is_noticed(sound):
    rng = np.random.default_rng(8)
    files = list(sound.path.iterdir())
    before = {path: path.read_bytes() for path in files}
    for _ in range(300):
        path = files[rng.integers(len(files))]
        path.write_bytes(flipped(rng, before[path])[0])
        with pytest.raises(OocPegasosError) as caught:
            use(sound.path)
        assert caught.value.exit_code in (3, 5)
        path.write_bytes(before[path])
    use(sound.path)


def test_missing_short_and_long_chunks(sound):
    chunk = sound.path / sound.manifest.chunks[1].file
    content = chunk.read_bytes()
    for damage in (content[:-1], content + b"\0", None):
        if damage is None:
            chunk.unlink()
        else:
            chunk.write_bytes(damage)
        with pytest.raises(CorruptFileError, match=chunk.name):
            Store.open(sound.path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rows": "200"}, "'rows' should be int"),
        ({"rows": 199}, "rows do not add up"),
        ({"nonzeros": -1}, "non-zeros do not add up"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"layout": {"index_coding": "gap9", "values": None, "labels": "float32", "levels": []}}, "index_coding"),
        ({"layout": {"index_coding": "gap8", "values": "float32", "labels": "float32", "levels": [0.0]}}, "levels"),
        (
            {"layout": {"index_coding": "gap8", "values": None, "labels": "float32", "levels": []}},
            "not where they could",
        ),
        ({"features": True}, "'features' should be int"),
        ({"chunks": {}}, "'chunks' should be a list"),
        ({"first_row": 2**63}, "more than 4,611,686,018,427,387,904 rows"),
    ],
)
def test_manifests_that_contradict_themselves(sound, changes, problem):
    rewrite(sound.path, **changes)
    with pytest.raises(CorruptFileError, match=problem):
        Store.open(sound.path)


@pytest.mark.parametrize("name", ["../chunk-000000-00000000.arrow", "/etc/passwd", "chunk-000000-00000000.arrow/x", ""])
def test_a_manifest_cannot_name_a_path_outside_its_store(sound, name):
    chunks = json.loads((sound.path / "manifest.json").read_text())["chunks"]
    chunks[0]["file"] = name
    rewrite(sound.path, chunks=chunks)
    with pytest.raises(CorruptFileError, match="not the name of a chunk file"):
        Store.open(sound.path)


def test_other_versions_are_refused(sound):
    rewrite(sound.path, version=3)
    with pytest.raises(InputError, match="format version 3"):
        Store.open(sound.path)


@pytest.mark.parametrize("offset", [10**9, -(10**9)])
def test_offsets_that_lead_out_of_a_chunk_reach_no_kernel(sound, offset):
    indptr = sound.block(1).indptr.copy()
    indptr[5] = offset
    forge_chunk(sound, 1, indptr=indptr)
    with pytest.raises(CorruptFileError, match="row offsets decrease or leave the file"):
        Store.open(sound.path).to_scipy()


@pytest.mark.parametrize("loading", ["mapped", "read"])
@pytest.mark.parametrize(("column", "value"), [("labels", np.nan), ("labels", 3), ("weights", 0), ("weights", np.inf)])
def test_invalid_labels_and_weights_are_not_trained_on(tmp_path, column, value, loading):
    matrix, labels = random_rows(100, 90, seed=7)
    weights = write_text(tmp_path / "weights.txt", "1.5\n" * 100)
    store = make(tmp_path, svmlight_text(matrix, labels), chunk_size=2048, weights=weights)
    changed = getattr(store.block(1), column).copy()
    changed[3] = value
    forge_chunk(store, 1, **{column: changed})
    with pytest.raises(CorruptFileError, match=f"a {column[:-1]} is not a"):
        train(Store.open(store.path), TrainConfig(lam=0.1, loading=loading))


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_row_norm", 1e300), ("max_row_norm", -1.0), ("mean_row_norm", 1e200), ("empty_rows", -1)],
)
def test_impossible_statistics(sound, name, value):
    statistics = dataclasses.asdict(sound.manifest.statistics)
    rewrite(sound.path, statistics={**statistics, name: value})
    with pytest.raises(CorruptFileError, match="none that rows can have"):
        Store.open(sound.path)


@pytest.mark.parametrize("what", ["manifest.json", "features"])
def test_devices_and_pipes_are_not_read(tmp_path, what):
    """A device that never ends, or a pipe that nobody writes to."""
    (tmp_path / "in.csv").write_text("label,colour\n" + "1,red\n-1,blue\n" * 9)
    store = convert([str(tmp_path / "in.csv")], tmp_path / "store", ConvertConfig(dictionary=5))
    path = store.path / (what if what != "features" else store.manifest.vocabulary.file)
    path.unlink()
    for make in (lambda: path.symlink_to("/dev/zero"), lambda: os.mkfifo(path)):
        make()
        with pytest.raises(OocPegasosError, match="not a regular file"):
            verify(Store.open(store.path)) if what == "manifest.json" else of_store(store.path, store.manifest)
        path.unlink()


def test_verify_finds_structure_that_checksums_cannot(sound):
    block = sound.block(1)
    at = int(block.indptr[np.flatnonzero(np.diff(block.indptr) > 2)[0]]) + 1
    values, gaps, labels = block.values.copy(), block.indices.copy(), block.labels.copy()
    values[at], gaps[at], labels[0] = np.nan, 0, 3

    def found(**columns: object) -> str:
        copy = Store.open(shutil.copytree(sound.path, sound.path.with_name("copy")))
        forge_chunk(copy, 1, **columns)
        problems = verify(Store.open(copy.path)).problems
        shutil.rmtree(copy.path)
        assert len(problems) == 1
        assert sound.manifest.chunks[1].file in problems[0]
        return problems[0]

    assert "a value is not finite" in found(values=values)
    assert "indices do not increase" in found(indices=gaps)
    assert "a label is not one of the classes" in found(labels=labels)
    gaps = block.indices.copy()
    gaps[at] = 254
    assert "not below the number of features" in found(indices=gaps)
    gaps[at] = 255
    values = block.values.copy()
    values[at] = 1
    assert "escape entry has a value" in found(indices=gaps, values=values)
    indptr = block.indptr.copy()
    middle = len(indptr) // 2
    indptr[middle] = indptr[middle + 1] + 5
    assert "offsets decrease" in found(indptr=indptr)
    indptr[middle] = block.indptr[middle]
    values = block.values.copy()
    end = int(block.indptr[np.flatnonzero(np.diff(block.indptr) > 2)[0] + 1]) - 1
    gaps, values[end] = block.indices.copy(), 0
    gaps[end] = 255
    features = json.loads((sound.path / "manifest.json").read_text())["features"]
    rewrite(sound.path, features=1000)
    assert "ends with an escape" in found(indices=gaps, values=values)
    rewrite(sound.path, features=features)


def test_a_missing_store(tmp_path):
    with pytest.raises(InputError, match="no such store"):
        Store.open(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"not a store \(no manifest.json"):
        Store.open(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(CorruptFileError, match="not the manifest"):
        Store.open(tmp_path)
