"""Arrays: .npz, .npy and memory, against scipy, damaged in every way."""

import dataclasses
import io
import json
import os
import re
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.conversion import pipeline
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers.arrays import ArraysReader
from ooc_pegasos.readers.base import LARGEST_INDEX
from ooc_pegasos.readers.matrices import Settings, labels_are_text
from ooc_pegasos.scoring.score import score
from ooc_pegasos.store.labels import key_of
from support.file_bytes import folder_bytes

BLOCK = 1 << 16


def save(path, matrix, compressed=False, **members):
    """As scipy's save_npz does, with more members; checked against it below."""
    form = matrix.tocsr()
    kinds = {"format": b"csr", "shape": form.shape, "data": form.data, "indices": form.indices, "indptr": form.indptr}
    (np.savez_compressed if compressed else np.savez)(path, **{**kinds, **members})
    return str(path)


def save_npy(path, array):
    np.save(path, array)
    return str(path)


def gather(reader, source=0, start=0, state=None, columns=None):
    """(matrix, labels, weights, names, bad as (row, problem), tasks) of all that is left."""
    indptr, indices, values, labels, weights, names, bad, tasks, row = [0], [], [], [], [], {}, [], [], 0
    for task in reader.tasks(source, start, state):
        parsed = reader.read(task)
        block = parsed.block
        assert (block.indices.dtype, block.values.dtype, block.labels.dtype) == (np.uint32, np.float32, np.float64)
        assert block.rows == len(parsed.lines) == len(parsed.numbers) == parsed.line_count - parsed.bad_lines
        assert np.array_equal(parsed.lines, parsed.numbers)
        indptr += (block.indptr[1:].astype(np.int64) + indptr[-1]).tolist()
        indices.append(block.indices.copy())
        values.append(block.values.copy())
        labels.append(block.labels.copy())
        if block.weights is not None:
            weights.append(block.weights.copy())
        names.update(parsed.names)
        bad += [(row + wrong.line, wrong.problem) for wrong in parsed.bad]
        row += parsed.line_count
        tasks.append((task.source, task.end, task.hash_state, task.consumed))
        reader.release(parsed)
    joined = [np.concatenate(part) if part else np.empty(0) for part in (indices, values, labels, weights)]
    width = columns or (int(joined[0].max()) + 1 if len(joined[0]) else 0)
    matrix = sp.csr_matrix((joined[1], joined[0].astype(np.int64), indptr), shape=(len(indptr) - 1, width))
    return matrix, joined[2], joined[3], names, bad, tasks


def check_rows(found, matrix, labels):
    """The rows are those of `matrix` in float32, in order and without zeros."""
    expected = sp.csr_matrix(matrix, copy=True).astype(np.float32)
    expected.eliminate_zeros()
    expected.sort_indices()
    assert found[0].shape[0] == expected.shape[0]
    assert np.array_equal(found[0].indptr, expected.indptr)
    assert np.array_equal(found[0].indices, expected.indices)
    assert found[0].data.tobytes() == expected.data.tobytes()
    assert np.array_equal(found[1], np.asarray(labels, np.float64))


def sample(rows, columns, seed, dtype=np.float64, density=0.3):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((rows, columns)) < density, rng.standard_normal((rows, columns)) * 9, 0)
    return sp.csr_matrix(dense.astype(dtype)), rng.choice([-1, 1], rows)


DTYPES = [np.float16, np.float32, np.float64, ">f8", np.int8, np.int64, np.uint16, ">i4", bool, np.longdouble]


@pytest.mark.slow
@given(
    st.integers(0, 40),
    st.integers(0, 20),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 64, 500, BLOCK]),
    st.integers(0, 99),
)
@settings(max_examples=80)
def test_sparse_as_scipy_has_it(tmp_path_factory, rows, columns, dtype, compressed, wide, block, seed):
    matrix, labels = sample(rows, columns, seed, np.float64)
    data = matrix.data.astype(dtype)
    kind = np.int64 if wide else np.int32
    stored = sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), matrix.shape)
    path = tmp_path_factory.mktemp("a") / "in.npz"
    save(
        path,
        stored,
        compressed,
        data=data,
        labels=labels,
        indices=matrix.indices.astype(kind),
        indptr=matrix.indptr.astype(kind),
    )
    with np.errstate(over="ignore"):
        plain = sp.csr_matrix((data.astype(np.float32), matrix.indices, matrix.indptr), matrix.shape)
    reader = ArraysReader([str(path)], Settings(), block)
    found = gather(reader)
    check_rows(found, plain, labels)
    assert reader.features() == columns
    total = sum(consumed for *_, consumed in found[5])
    assert total <= path.stat().st_size
    for source, end, state, _consumed in found[5]:
        for given_state in (state, None):
            rest = gather(ArraysReader([str(path)], Settings(), block), source, end, given_state, columns)
            check_rows(rest, plain[end:], labels[end:])
            ends = [task[1] for task in found[5] if task[1] > end]
            assert [task[1] for task in rest[5]] == ends, "a resumed run cuts alike"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_what_scipy_saves(tmp_path, compressed, kind):
    matrix, labels = sample(300, 50, 1)
    sp.save_npz(tmp_path / "in.npz", kind(matrix), compressed)
    np.save(tmp_path / "labels.npy", labels)
    reader = ArraysReader([str(tmp_path / "in.npz")], Settings(labels=str(tmp_path / "labels.npy")), 1000)
    check_rows(gather(reader), matrix, labels)
    info = reader.sources[0].info(300)
    content = (tmp_path / "in.npz").read_bytes()
    assert (info.name, info.size, info.rows) == (str(tmp_path / "in.npz"), len(content), 300)
    assert info.xxh64 == xxhash.xxh64_hexdigest(content)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(tmp_path, method):
    matrix, labels = sample(200, 30, 2)
    save(tmp_path / "a.npz", matrix, y=labels)
    with zipfile.ZipFile(tmp_path / "a.npz") as old, zipfile.ZipFile(tmp_path / "b.npz", "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    check_rows(gather(ArraysReader([str(tmp_path / "b.npz")], Settings(), 700)), matrix, labels)
    content = bytearray((tmp_path / "b.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "c.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"c\.npz.*again"):
        gather(ArraysReader([str(tmp_path / "c.npz")], Settings(), 700))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("block", [1, 300, BLOCK])
def test_dense(tmp_path, dtype, order, block):
    matrix, labels = sample(60, 11, 3)
    with np.errstate(over="ignore", invalid="ignore"):
        dense = np.asarray(matrix.toarray().astype(dtype), order=order)
    save_npy(tmp_path / "in.npy", dense)
    save_npy(tmp_path / "labels.npy", labels[:, None])
    plain = sp.csr_matrix(dense.astype(np.float32))
    options = Settings(labels=str(tmp_path / "labels.npy"))
    found = gather(ArraysReader([str(tmp_path / "in.npy")], options, block))
    check_rows(found, plain, labels)
    for source, end, state, _consumed in found[5][:: max(1, len(found[5]) // 5)]:
        rest = gather(ArraysReader([str(tmp_path / "in.npy")], options, block), source, end, state)
        check_rows(rest, plain[end:], labels[end:])
    assert sum(task[3] for task in found[5]) == dense.nbytes


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (0, 0), (1, 7)])
def test_dense_of_odd_shapes(tmp_path, shape):
    dense, labels = np.ones(shape), np.ones(shape[0])
    options = Settings(labels=save_npy(tmp_path / "l.npy", labels))
    check_rows(gather(ArraysReader([save_npy(tmp_path / "in.npy", dense)], options, 64)), dense, labels)


@pytest.mark.parametrize("column", [0, 2, 4, -1, -5])
def test_a_column_for_labels(tmp_path, column):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((20, 5))
    dense[:, column] = rng.integers(0, 3, 20)
    path = save_npy(tmp_path / "in.npy", dense)
    expected = np.delete(dense, column, axis=1)
    reader = ArraysReader([path], Settings(label_column=column), 100)
    assert reader.features() == 4
    check_rows(gather(reader), expected, dense[:, column])
    check_rows(
        gather(ArraysReader([path], Settings(label_column=column, with_labels=False), 99)), expected, np.zeros(20)
    )


@pytest.mark.slow
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("block", [64, BLOCK])
def test_several_inputs_and_one_file_of_labels(tmp_path, as_text, block):
    first, labels_of_first = sample(30, 9, 4)
    second, labels_of_second = sample(40, 12, 5)
    third, labels_of_third = sample(50, 6, 6)
    names = [
        save(tmp_path / "1.npz", first),
        save(tmp_path / "2.npz", second, compressed=True, labels=labels_of_second),
        save_npy(tmp_path / "3.npy", third.toarray()),
    ]
    shared = np.concatenate([labels_of_first, labels_of_third])
    if as_text:
        (tmp_path / "l.txt").write_text("".join(f"{label}\n" for label in shared))
    else:
        np.save(tmp_path / "l.npy", shared)
    options = Settings(labels=str(tmp_path / ("l.txt" if as_text else "l.npy")))
    first.resize(30, 12)
    third.resize(50, 12)
    matrix = sp.vstack([first, second, third]).tocsr()
    labels = np.concatenate([labels_of_first, labels_of_second, labels_of_third])
    found = gather(ArraysReader(names, options, block))
    check_rows(found, matrix, labels)
    begins = [0, 30, 70]
    for source, end, state, _consumed in found[5]:
        rest = gather(ArraysReader(names, options, block), source, end, state)
        check_rows(rest, matrix[begins[source] + end :], labels[begins[source] + end :])
    assert not list(ArraysReader(names, options, block).tasks(3))


def test_labels_that_are_words(tmp_path):
    matrix, _labels = sample(50, 9, 7)
    words = np.random.default_rng(1).choice(["ham", "späm", "日本", "🎉 party", "a\0b"], 50)
    for array in (words, words.astype(words.dtype.newbyteorder(">"))):
        path = save(tmp_path / "in.npz", matrix, labels=array)
        assert labels_are_text([path])
        _found, labels, _weights, names, *_ = gather(ArraysReader([path], Settings(text_labels=True), 300))
        assert [names[key] for key in labels.view(np.uint64).tolist()] == words.tolist()
        assert all(key == key_of(word, True) for key, word in names.items())
        with pytest.raises(InputError, match=r"in\.npz: the labels are words; name them with classes"):
            gather(ArraysReader([path], Settings(), 300))


@pytest.mark.parametrize("labels", [[1.0, -0.0, 0.5, 1e300], [3, 2**53 + 1, -7, 3], [True, False, True, True]])
def test_numbers_taken_for_words(tmp_path, labels):
    path = save(tmp_path / "in.npz", sp.csr_matrix(np.eye(4)), labels=np.array(labels))
    assert not labels_are_text([path])
    _found, keys, _weights, names, *_ = gather(ArraysReader([path], Settings(text_labels=True), 20))
    spelled = [names[key] for key in keys.view(np.uint64).tolist()]
    assert [float(word) for word in spelled] == [float(label) for label in labels]
    assert all(key == key_of(word, True) for key, word in names.items())
    assert "-0" not in spelled
    assert "1.0" not in spelled


def test_whether_labels_are_text(tmp_path):
    path = save(tmp_path / "in.npz", sp.csr_matrix(np.eye(2)))
    dense = save_npy(tmp_path / "in.npy", np.eye(2))
    assert not labels_are_text([path, dense])
    assert labels_are_text([path, dense], save_npy(tmp_path / "w.npy", np.array(["a", "b"])))
    (tmp_path / "l.txt").write_text("1\n2\n")
    assert not labels_are_text([dense], str(tmp_path / "l.txt"))


def test_weights(tmp_path):
    matrix, labels = sample(20, 9, 8)
    weights = np.linspace(0.5, 2, 20)
    path = save(tmp_path / "in.npz", matrix, labels=labels, weights=weights)
    found = gather(ArraysReader([path], Settings(), 100))
    assert np.array_equal(found[2], weights.astype(np.float32))
    weights[[3, 7, 9]] = 0, np.nan, 1e300
    path = save(tmp_path / "in.npz", matrix, labels=labels, weights=weights)
    found = gather(ArraysReader([path], Settings(stop_at_bad=False), 100))
    assert [row for row, _problem in found[4]] == [3, 7, 9]
    assert "not from 1e-9 to 1e9" in found[4][0][1]
    assert np.array_equal(found[2], np.delete(weights, [3, 7, 9]).astype(np.float32))
    assert not len(gather(ArraysReader([path], Settings(with_labels=False), 100))[2])


def test_without_labels(tmp_path):
    matrix, _labels = sample(20, 9, 9)
    options = Settings(with_labels=False)
    for labels in ({}, {"labels": np.full(20, np.nan)}, {"y": np.full(20, "word")}):
        path = save(tmp_path / "in.npz", matrix, **labels)
        check_rows(gather(ArraysReader([path], options, 100)), matrix, np.zeros(20))


def test_rows_in_disorder_are_sorted(tmp_path):
    rng = np.random.default_rng(2)
    lengths = [0, 1, 2, 3, 7, 100, 1000]
    indices = np.concatenate([rng.permutation(1000)[:length] for length in lengths])
    data = rng.standard_normal(len(indices))
    data[::5] = 0
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    parts = {"data": data, "indices": indices, "indptr": indptr, "labels": np.arange(7.0)}
    path = save(tmp_path / "in.npz", sp.csr_matrix((7, 1000)), **parts)
    matrix = sp.csr_matrix((data, indices, indptr), (7, 1000))
    check_rows(gather(ArraysReader([path], Settings(), 500)), matrix, np.arange(7))


BAD = {
    1: "the column 4 occurs twice in the row; call sum_duplicates() on the matrix first",
    2: "the value nan in column 3 is not finite; remove the row or correct it",
    3: "the value 1e+39 in column 5 is too large for float32; scale the data",
    4: "the value -inf in column 0 is not finite; remove the row or correct it",
    5: "the label is not finite; remove the row or correct it",
    6: "the column 9 is above the limit of 8; allow more {features} (at most 4,294,967,294)",
}


def bad_parts():
    data = [1.0, 0.0, 2, np.nan, 1e39, -np.inf, 1, 1, 1e-50, 7]
    indices = np.array([2, 4, 4, 3, 5, 0, 1, 9, 2, 3])
    indptr = np.array([0, 1, 3, 4, 5, 6, 7, 8, 10])
    labels = np.array([1, 1, 1, 1, 1, np.nan, 1, -1])
    return np.array(data), indices, indptr, labels


@pytest.mark.parametrize("block", [1, 64, BLOCK])
@pytest.mark.parametrize("compressed", [False, True])
def test_bad_rows(tmp_path, block, compressed):
    data, indices, indptr, labels = bad_parts()
    parts = {"data": data, "indices": indices, "indptr": indptr, "labels": labels}
    path = save(tmp_path / "in.npz", sp.csr_matrix((8, 10)), compressed, **parts)
    found = gather(ArraysReader([path], Settings(stop_at_bad=False, largest_index=8), block))
    assert found[4] == list(BAD.items())
    assert found[0].toarray().tolist() == [[0, 0, 1, 0], [0, 0, 0, 7]]
    assert found[1].tolist() == [1, -1]
    reader = ArraysReader([path], Settings(largest_index=8), block)
    parsed = next(parsed for task in reader.tasks() if (parsed := reader.read(task)).bad)
    assert len(parsed.bad) == parsed.bad_lines == 1
    assert parsed.bad[0].problem == BAD[1]


def test_bad_rows_of_dense_arrays(tmp_path):
    dense = np.ones((6, 4))
    dense[1, 2], dense[2, 0], dense[3, 3], dense[4, 1] = np.nan, 1e39, np.inf, np.nan
    path = save_npy(tmp_path / "in.npy", dense)
    found = gather(ArraysReader([path], Settings(label_column=1, stop_at_bad=False), 64))
    assert found[4] == [
        (1, "the value nan in column 2 is not finite; remove the row or correct it"),
        (2, "the value 1e+39 in column 0 is too large for float32; scale the data"),
        (3, "the value inf in column 3 is not finite; remove the row or correct it"),
        (4, "the label is not finite; remove the row or correct it"),
    ]
    assert found[0].shape == (2, 3)
    found = gather(ArraysReader([path], Settings(label_column=1, stop_at_bad=False, largest_index=1), 64))
    assert len(found[4]) == 6
    assert found[4][0][1].startswith("the column 2 is above the limit of 1")


def test_bad_words(tmp_path):
    words = np.array(["a", "", "b", "c"])
    words.view(np.uint32)[2:] = 0xD800, 0x110000
    path = save(tmp_path / "in.npz", sp.csr_matrix(np.eye(4)), labels=words)
    found = gather(ArraysReader([path], Settings(text_labels=True, stop_at_bad=False), 64))
    assert [problem.partition(";")[0] for _row, problem in found[4]] == [
        "the label is an empty word",
        "the label is not Unicode text",
        "the label is not Unicode text",
    ]
    assert list(found[3].values()) == ["a"]


def test_a_value_that_float32_holds_only_just(tmp_path):
    largest = float(np.finfo(np.float32).max)
    for value, fits in ((largest, True), (largest * (1 + 2.0**-26), True), (largest * (1 + 2.0**-24), False)):
        path = save(tmp_path / "in.npz", sp.csr_matrix([[value]]), labels=np.ones(1))
        assert bool(gather(ArraysReader([path], Settings(stop_at_bad=False), 64))[4]) is not fits


def check_refused(words, *names, **options):
    with pytest.raises(InputError, match=words) as caught:
        gather(ArraysReader([str(name) for name in names], Settings(**options), 256))
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "says what to do"
    return message


SPOILED = [
    ("indptr begins with 1, not 0", {"indptr": [1, 1, 2, 3]}),
    ("row 2: indptr decreases from 2 to 1", {"indptr": [0, 2, 1, 3]}),
    ("row 2: indptr decreases from 2 to -9,223,372,036,854,775,808", {"indptr": [0, 2, -(2**63), 3]}),
    ("row 3: indptr says 4, but there are only 3 entries", {"indptr": [0, 1, 2, 4]}),
    ("row 1: indptr says 9,223,372,036,854,775,807, but", {"indptr": [0, 2**63 - 1, 2**63 - 1, 2**63 - 1]}),
    ("indptr.npy has 3 entries where 4 belong", {"indptr": [0, 1, 3]}),
    ("data.npy has 2 entries where 3 belong", {"data": [1.0, 2.0]}),
    ("row 2: the column -1 is not among the 3", {"indices": [0, -1, 2]}),
    ("row 3: the column 3 is not among the 3", {"indices": [0, 1, 3]}),
    ("row 1: the column 9223372036854775808 is not", {"indices": np.array([2**63, 1, 2], np.uint64)}),
    ("labels.npy has 2 entries where 3 belong", {"labels": [1, 2]}),
    ("labels.npy has the shape", {"labels": [[1, 2], [1, 2], [1, 2]]}),
    ("labels.npy is of type complex128; save numbers or words", {"labels": [1j, 2, 3]}),
    ("labels.npy is of type .S1", {"labels": np.array([b"a", b"b", b"c"])}),
    ("weights.npy has 1 entries where 3 belong", {"weights": [1.0]}),
    ("weights.npy is of type .U1", {"weights": ["a", "b", "c"]}),
    ("indices.npy is of type float64; save integers", {"indices": [0.0, 1.0, 2.0]}),
    ("data.npy is of type complex128; save real numbers", {"data": [1j, 1, 1]}),
    ("shape does not hold two counts", {"shape": [3]}),
    ("shape does not hold two counts", {"shape": [3, -3]}),
    ("a matrix in the format 'csc'; save it as CSR: matrix.tocsr", {"format": b"csc"}),
    ("a matrix in the format 'coo'; save it as CSR: matrix.tocsr()", {"format": np.array("coo")}),
    ("no matrix of scipy's", {"format": 7}),
    ("labels.npy holds Python objects, which are never loaded", {"labels": np.array([1, None, "a"], object)}),
]


@pytest.mark.parametrize(("words", "spoiled"), SPOILED)
@pytest.mark.parametrize("compressed", [False, True])
def test_spoiled_members(tmp_path, words, spoiled, compressed):
    parts = {key: value if isinstance(value, bytes) else np.asarray(value) for key, value in spoiled.items()}
    path = save(tmp_path / "in.npz", sp.csr_matrix(np.eye(3)), compressed, **{"labels": np.ones(3), **parts})
    assert check_refused(words, path).startswith(path + ": ")


def test_wrong_files(tmp_path):
    dense = save_npy(tmp_path / "in.npy", np.eye(3))
    sparse = save(tmp_path / "in.npz", sp.csr_matrix(np.eye(3)))
    labelled = save(tmp_path / "with.npz", sp.csr_matrix(np.eye(3)), y=np.ones(3))
    labels = save_npy(tmp_path / "labels.npy", np.ones(3))
    check_refused("no labels; save them as a member 'labels' or name their file with labels", sparse)
    check_refused("no labels; name their file with labels or their column with label, as a number", dense)
    check_refused("no column 3 among 3", dense, label_column=3)
    check_refused("no column -4 among 3", dense, label_column=-4)
    check_refused("has no label column", labelled, label_column=1)
    check_refused("the inputs have labels of their own; leave out labels", labelled, labels=labels)
    check_refused("3 labels where the inputs have 6 rows", dense, sparse, labels=labels)
    check_refused("No such file or directory", dense, labels=str(tmp_path / "no.npy"))
    check_refused("No such file or directory", tmp_path / "no.npz")
    check_refused("Is a directory", tmp_path)
    check_refused("from files of this machine alone", "-")
    check_refused("neither an .npz nor a .npy file", __file__, labels=labels)
    check_refused("array of 1 dimensions", save_npy(tmp_path / "1.npy", np.ones(3)), labels=labels)
    check_refused("array of 3 dimensions", save_npy(tmp_path / "2.npy", np.ones((3, 1, 1))), labels=labels)
    check_refused("array of type complex128", save_npy(tmp_path / "3.npy", np.ones((3, 1), complex)), labels=labels)
    check_refused("array of type \\[", save_npy(tmp_path / "4.npy", np.zeros((3, 1), "i4,f4")), labels=labels)
    objects = np.array([[{}], [1], [2]], object)
    check_refused("Python objects, which are never loaded", save_npy(tmp_path / "5.npy", objects), labels=labels)
    check_refused("Python objects, which are", dense, labels=save_npy(tmp_path / "6.npy", objects[:, 0]))
    check_refused("the array is of type complex128", dense, labels=save_npy(tmp_path / "7.npy", np.ones(3, complex)))
    check_refused("the array has the shape", dense, labels=dense)
    check_refused("the labels are words", dense, labels=save_npy(tmp_path / "8.npy", np.array(["a", "b", "c"])))
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    check_refused("save it with scipy.sparse.save_npz", tmp_path / "other.npz")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    check_refused("save it with scipy.sparse.save_npz", tmp_path / "empty.npz")
    with pytest.raises(UsageError, match="leave out"):
        ArraysReader([dense], Settings(labels=labels, label_column=0), 64)
    with pytest.raises(InputError, match="shorter than when"):
        gather(ArraysReader([labelled], Settings(), 64), 0, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\n2\n", r"l\.txt: the labels end after 2, but there are 3 rows; give"),
        ("1\n2\n3\n4\n", r"l\.txt:4: a label too many: there are 3 rows; give"),
        ("1\nham\n3\n", r"l\.txt:2: the label 'ham' is not a number; correct"),
        ("1\n\n3\n", r"l\.txt:2: an empty line"),
        ("1\n2 3\n3\n", r"l\.txt:2: '3' after the label"),
        ("", r"l\.txt: the labels end after 0"),
    ],
)
def test_wrong_text_files_of_labels(tmp_path, text, words):
    dense = save_npy(tmp_path / "in.npy", np.eye(3))
    (tmp_path / "l.txt").write_text(text)
    check_refused(words, dense, labels=str(tmp_path / "l.txt"))


def test_text_labels_that_are_not_finite(tmp_path):
    dense = save_npy(tmp_path / "in.npy", np.eye(3))
    (tmp_path / "l.txt").write_text("1\n -inf \n3")
    found = gather(ArraysReader([dense], Settings(labels=str(tmp_path / "l.txt"), stop_at_bad=False), 64))
    assert found[4] == [(1, BAD[5])]
    assert found[1].tolist() == [1, 3]


def test_truncated_or_longer_files(tmp_path):
    labels = save_npy(tmp_path / "labels.npy", np.ones(30))
    matrix, y = sample(30, 10, 12)
    for name in (save_npy(tmp_path / "in.npy", np.ones((30, 4))), save(tmp_path / "in.npz", matrix, y=y)):
        content = Path(name).read_bytes()
        for size in [*range(0, 200, 7), *range(200, len(content), 97), len(content) - 1]:
            (tmp_path / "cut").write_bytes(content[:size])
            check_refused(r"cut: (the file is truncated or damaged|neither)", tmp_path / "cut", labels=labels)
    (tmp_path / "cut").write_bytes((tmp_path / "in.npy").read_bytes() + b"0")
    check_refused("truncated or damaged", tmp_path / "cut", labels=labels)


def test_a_file_that_changes(tmp_path):
    matrix, y = sample(300, 10, 13)
    path = save(tmp_path / "in.npz", matrix, y=y)
    reader = ArraysReader([path], Settings(), 64)
    tasks = reader.tasks()
    next(tasks)
    content = Path(path).read_bytes()
    (tmp_path / "in.npz").write_bytes(content[:100])
    with pytest.raises(InputError, match="changed during the conversion"):
        next(tasks)
    with pytest.raises(InputError, match="changed during the conversion"):
        reader.sources[0].info(300)


def test_a_checksum_that_does_not_match(tmp_path):
    matrix, y = sample(300, 10, 14)
    for compressed in (False, True):
        path = tmp_path / "in.npz"
        save(path, matrix, compressed, y=y)
        content = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("data.npy")
        content[member.header_offset + 200 + member.compress_size // 2] ^= 4
        path.write_bytes(content)
        for start in (0, 100, 300):  # however little is left to do, all of it is checked
            with pytest.raises(InputError, match=r"in\.npz: .*again"):
                gather(ArraysReader([str(path)], Settings(), 256), 0, start)


def test_a_row_with_too_many_entries(tmp_path):
    count = (1 << 20) + 1
    parts = {"data": np.ones(count, np.int8), "indices": np.zeros(count, np.int8), "indptr": np.array([0, count])}
    path = save(tmp_path / "in.npz", sp.csr_matrix((1, 3)), compressed=True, labels=np.ones(1), **parts)
    check_refused("1,048,577 entries, but only 3 columns", path)


@pytest.mark.parametrize(("count", "words"), [(1 << 50, "entries, but only"), (1 << 31, "ends too early")])
def test_false_sizes(tmp_path, count, words):
    """A header may claim petabytes; no memory is taken before there are as many bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|i1", "fortran_order": False, "shape": (count,)})
    save(tmp_path / "a.npz", sp.csr_matrix((1, 2**32)), indptr=np.array([0, count]), labels=np.ones(1))
    with (
        zipfile.ZipFile(tmp_path / "a.npz") as old,
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            lie = name in ("data.npy", "indices.npy")
            new.writestr(name, header.getvalue() if lie else old.read(name))
            if lie:
                new.getinfo(name).file_size = header.tell() + count
    check_refused(words, tmp_path / "b.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_flipped_bytes(tmp_path, compressed):
    matrix, y = sample(40, 8, 15)
    path = save(tmp_path / "in.npz", matrix, compressed, y=y, weights=np.ones(40))
    content = Path(path).read_bytes()
    rng = np.random.default_rng(16)
    other = tmp_path / "other.npz"
    survived = 0
    for _ in range(400):
        spoiled = bytearray(content)
        for at in rng.integers(0, len(content), rng.integers(1, 4)):
            spoiled[at] = rng.integers(0, 256)
        other.write_bytes(spoiled)
        try:
            found = gather(ArraysReader([str(other)], Settings(stop_at_bad=False), 256))
        except InputError as error:
            assert re.match(rf"{re.escape(str(other))}: .*; ", str(error)), error
            assert "\n" not in str(error)
            continue
        survived += 1
        assert not found[4]
        check_rows(found, matrix, y)
    assert 0 < survived < 300


@pytest.mark.slow
@pytest.mark.parametrize("member", ["indptr", "indices", "data", "shape", "y", "format"])
def test_flipped_bytes_with_a_valid_checksum(tmp_path, member):
    matrix, y = sample(40, 8, 17)
    path = save(tmp_path / "in.npz", matrix, y=y)
    rng = np.random.default_rng(18)
    other = tmp_path / "other.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for turn in range(120):
        spoiled = bytearray(members[f"{member}.npy"])
        for at in rng.integers(0, len(spoiled), rng.integers(1, 4)):
            spoiled[at] = rng.integers(0, 256)
        with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED if turn % 2 else zipfile.ZIP_STORED) as archive:
            for name, raw in members.items():
                archive.writestr(name, bytes(spoiled) if name == f"{member}.npy" else raw)
        try:
            found = gather(ArraysReader([str(other)], Settings(stop_at_bad=False), 256))
        except InputError as error:
            assert re.match(rf"{re.escape(str(other))}: .*; ", str(error)), error
            continue
        assert np.isfinite(found[0].data).all()
        assert found[0].has_canonical_format


def test_flipped_bytes_of_a_dense_array(tmp_path):
    labels = save_npy(tmp_path / "labels.npy", np.ones(12))
    content = Path(save_npy(tmp_path / "in.npy", np.ones((12, 3)))).read_bytes()
    refused = 0
    for at in range(128):
        for byte in (0, 40, 48, 57, 79, 255):
            spoiled = bytearray(content)
            spoiled[at] = byte
            (tmp_path / "other.npy").write_bytes(spoiled)
            try:
                reader = ArraysReader([str(tmp_path / "other.npy")], Settings(labels=labels, stop_at_bad=False), 64)
                found = gather(reader)
            except InputError as error:
                assert "other.npy" in str(error) or "labels.npy" in str(error), error
                refused += 1
                continue
            assert found[0].shape[0] == 12
            assert np.isfinite(found[0].data).all()
            assert found[0].has_canonical_format
    assert refused > 128


def test_arrays_of_no_bytes_and_the_largest_index(tmp_path):
    wide = sp.csr_matrix(([1.0, 2.0], ([0, 1], [0, LARGEST_INDEX])), shape=(2, 2**33))
    path = save(tmp_path / "in.npz", wide, labels=np.ones(2))
    assert gather(ArraysReader([path], Settings(), 64))[0].indices.tolist() == [0, LARGEST_INDEX]
    wide.indices[1] += 1
    path = save(tmp_path / "in.npz", wide, labels=np.ones(2))
    found = gather(ArraysReader([path], Settings(stop_at_bad=False, largest_index=2**40), 64))
    assert found[4][0][1].startswith("the column 4294967295 is above the limit of")


# --- stores of arrays ---------------------------------------------------------------------------------

PLAIN = ConvertConfig(shuffle=False)


def narrow(path, columns, last=True):
    """A matrix of so many columns, of which the last but one is used and the last is empty, or is not."""
    dense = np.zeros((4, columns))
    dense[:, columns - 2] = [1, 2, 3, 4]
    dense[0, columns - 1] = 0 if last else 5
    return dense, save(path, sp.csr_matrix(dense), labels=np.array([1, -1, 1, -1]))


def test_columns_that_are_empty_count(tmp_path):
    dense, wide = narrow(tmp_path / "wide.npz", 10)
    _dense, other = narrow(tmp_path / "other.npz", 6)
    assert convert([other, wide], tmp_path / "both", PLAIN).features == 10
    store = convert([other], tmp_path / "store", PLAIN)
    assert store.features == 6
    assert convert([wide], store.path, PLAIN, existing=Existing(append=True)).features == 10
    assert convert([other], store.path, PLAIN, existing=Existing(append=True)).features == 10
    for features in (9, 20):
        store = convert([wide], tmp_path / f"{features}", dataclasses.replace(PLAIN, features=features))
        assert store.features == features
        assert np.array_equal(store.to_scipy()[0].toarray()[:, :9], dense[:, : min(features, 9)])
    with pytest.raises(InputError, match="the column 8 is above the limit of 7; allow more features"):
        convert([wide], tmp_path / "8", dataclasses.replace(PLAIN, features=8))
    labels = save_npy(tmp_path / "l.npy", np.array([1, -1, 1, -1]))
    config = dataclasses.replace(PLAIN, labels=labels)
    assert convert([save_npy(tmp_path / "in.npy", dense)], tmp_path / "dense", config).features == 10
    of_column = np.column_stack([[1, -1, 1, -1], dense])  # whose label is no feature
    config = dataclasses.replace(PLAIN, label="0", format="arrays")
    assert convert([save_npy(tmp_path / "in.npy", of_column)], tmp_path / "column", config).features == 10


def test_matrices_that_are_too_wide(tmp_path):
    wide = sp.csr_matrix(([1.0, 2.0], ([0, 1], [0, 7])), shape=(2, 2**32))
    path = save(tmp_path / "in.npz", wide, labels=np.array([1, 2]))
    with pytest.raises(InputError, match="of 4,294,967,296 columns is too wide; limit the columns with features"):
        convert([path], tmp_path / "store", PLAIN)
    assert convert([path], tmp_path / "store", dataclasses.replace(PLAIN, features=8)).features == 8


def test_columns_and_indices_that_count_from_1(tmp_path):
    """Column 0 is what svmlight text calls 1 if it counts from there: in stores and for models."""
    dense, path = narrow(tmp_path / "in.npz", 5, last=False)
    rows = [" ".join(f"{j + 1}:{x:g}" for j, x in enumerate(row) if x) for row in dense]
    text = [f"{label} {row}\n" for label, row in zip([1, -1, 1, -1], rows, strict=True)]
    (tmp_path / "in.svm").write_text("".join(text) + "1 1:7\n")  # so that it is seen to count from 1
    store = convert([str(tmp_path / "in.svm")], tmp_path / "store", PLAIN)
    assert store.manifest.recipe.index_base == 1
    first = store.to_scipy()[0].toarray()
    assert np.array_equal(first[:4], dense)
    model = train(store, TrainConfig(lam=0.1, max_epochs=3)).model
    expected = dense @ model.weights + model.bias
    assert np.abs(expected).min() > 0
    (scored,) = score(model, path, 1, with_labels=True)
    assert np.allclose(scored.scores, expected)
    store = convert([path], store.path, PLAIN, existing=Existing(append=True))
    assert np.array_equal(store.to_scipy()[0].toarray(), np.vstack([first, dense]))
    assert store.manifest.recipe.index_base == 1
    limited = convert([str(tmp_path / "in.svm")], tmp_path / "limited", dataclasses.replace(PLAIN, features=5))
    assert convert([path], limited.path, PLAIN, existing=Existing(append=True)).rows == 9
    _dense, wider = narrow(tmp_path / "wider.npz", 7)
    with pytest.raises(InputError, match="the column 5 is above the limit of 4"):
        convert([wider], limited.path, PLAIN, existing=Existing(append=True))


def labelled(tmp_path, labels):
    """A matrix of 2,000 rows and a file with its labels."""
    matrix, _ = sample(2000, 5, 3)
    return save(tmp_path / "in.npz", matrix), save_npy(tmp_path / "l.npy", labels)


def test_the_file_of_labels_is_known_again(tmp_path):
    given = np.resize([1.0, -1.0], 2000)
    path, labels = labelled(tmp_path, given)
    config, resume = dataclasses.replace(PLAIN, labels=labels), Existing(resume=True)
    store = convert([path], tmp_path / "store", config, existing=resume)
    assert store.manifest.sources[0].labels == xxhash.xxh64_hexdigest(Path(labels).read_bytes())
    assert convert([path], store.path, config, existing=resume).rows == 2000
    other = save_npy(tmp_path / "other.npy", -given)
    with pytest.raises(InputError, match="made from other inputs or with other options"):
        convert([path], store.path, dataclasses.replace(config, labels=other), existing=resume)
    save_npy(tmp_path / "l.npy", -given)
    with pytest.raises(InputError, match="made from other inputs or with other options"):
        convert([path], store.path, config, existing=resume)


def test_a_conversion_is_resumed_with_the_same_labels_only(tmp_path, monkeypatch):
    given = np.resize([1.0, -1.0], 2000)
    path, labels = labelled(tmp_path, given)
    config = dataclasses.replace(PLAIN, labels=labels, block_size=1000)
    whole = convert([path], tmp_path / "whole", config)
    with monkeypatch.context() as patched:  # the power goes
        patched.setattr(pipeline.Conversion, "publish", lambda *_given: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            convert([path], tmp_path / "store", config)
    written = Path(labels).read_bytes()
    time.sleep(0.01)
    save_npy(tmp_path / "l.npy", -given)
    with pytest.raises(UsageError, match="resume: the labels were different when the conversion began; start over"):
        convert([path], tmp_path / "store", config, existing=Existing(resume=True))
    (tmp_path / "l.npy").write_bytes(written)
    before = json.loads((tmp_path / "store.unfinished" / "plan.json").read_text())["request"]["labels"]
    os.utime(labels, ns=(before[2], before[2]))
    convert([path], tmp_path / "store", config, existing=Existing(resume=True))
    assert folder_bytes(tmp_path / "store") == folder_bytes(whole.path)
