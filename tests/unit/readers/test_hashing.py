"""Hash buckets and signs against scikit-learn's, merged rows against scipy's."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher
from sklearn.utils import murmurhash3_32

from ooc_pegasos.compiled.parse.hashing import append_part, hash_strings, merge_rows, murmur3


def bytes_of(strings, kind=np.int32):
    raw = [text.encode() for text in strings]
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in raw])]).astype(kind)
    return np.frombuffer(b"".join(raw), np.uint8), offsets


def hashed(strings, prefix="", bits=22, signed=True, kind=np.int32):
    data, offsets = bytes_of(strings, kind)
    indices = np.full(len(strings), 7, np.uint32)
    signs = np.zeros(len(strings), np.float32)
    hash_strings(data, offsets, np.frombuffer(prefix.encode(), np.uint8), bits, signed, indices, signs)
    return indices, signs


def hashed_by_sklearn(strings, bits, signed):
    hasher = FeatureHasher(n_features=2**bits, alternate_sign=signed, input_type="string", dtype=np.float32)
    matrix = hasher.transform([[text] for text in strings])
    return matrix.indices, matrix.data


@given(st.binary(max_size=40), st.integers(0, 5), st.integers(0, 5))
def test_murmur3(content, before, after):
    data = np.frombuffer(b"x" * before + content + b"y" * after, np.uint8)
    assert int(murmur3(data, before, before + len(content))) == murmurhash3_32(content, 0, positive=True)


@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=10),
    st.text(max_size=8),
    st.integers(1, 30),
    st.booleans(),
    st.sampled_from([np.int32, np.int64]),
)
@settings(max_examples=60)
def test_strings_as_feature_hasher_has_them(strings, prefix, bits, signed, kind):
    indices, signs = hashed(strings, prefix, bits, signed, kind)
    expected, expected_signs = hashed_by_sklearn([prefix + text for text in strings], bits, signed)
    assert np.array_equal(indices, expected)
    assert np.array_equal(signs, expected_signs)


def test_a_string_longer_than_the_room_for_joined_ones():
    strings = ["a" * 200, "b", "c" * 1000]
    for prefix in ("", "name=", "n" * 100):
        indices, signs = hashed(strings, prefix)
        expected, expected_signs = hashed_by_sklearn([prefix + text for text in strings], 22, True)
        assert np.array_equal(indices, expected)
        assert np.array_equal(signs, expected_signs)


def undo_xorshift(word, shift):
    result = word
    for _ in range(32 // shift + 1):
        result = word ^ (result >> shift)
    return result


def string_with_hash(wanted):
    """Four bytes with this murmur3: every step of it can be undone."""
    whole = 2**32

    def rotated(word, bits):
        return ((word << bits) | (word >> (32 - bits))) % whole

    state = undo_xorshift(wanted, 16) * pow(0xC2B2AE35, -1, whole) % whole
    state = undo_xorshift(state, 13) * pow(0x85EBCA6B, -1, whole) % whole
    state = undo_xorshift(state, 16) ^ 4
    state = (state - 0xE6546B64) * pow(5, -1, whole) % whole
    word = rotated(state, 32 - 13) * pow(0x1B873593, -1, whole) % whole
    return (rotated(word, 32 - 15) * pow(0xCC9E2D51, -1, whole) % whole).to_bytes(4, "little")


@pytest.mark.parametrize("wanted", [0x80000000, 0x80000001, 0x7FFFFFFF, 0xFFFFFFFF, 0])
def test_extreme_hashes(wanted):
    raw = string_with_hash(wanted)
    assert murmurhash3_32(raw, 0, positive=True) == wanted
    for bits in (1, 10, 30):
        indices, signs = np.zeros(1, np.uint32), np.zeros(1, np.float32)
        offsets = np.array([0, 4], np.int32)
        hash_strings(np.frombuffer(raw, np.uint8), offsets, np.empty(0, np.uint8), bits, True, indices, signs)
        expected = FeatureHasher(n_features=2**bits, input_type="pair").transform([[(raw, 1.0)]])
        assert (indices[0], signs[0]) == (expected.indices[0], expected.data[0])


def test_offsets_beyond_the_data_are_cut():
    data = np.frombuffer(b"abcdef", np.uint8)
    indices, signs = np.zeros(3, np.uint32), np.zeros(3, np.float32)
    hash_strings(data, np.array([-5, 3, 1000, 2]), np.empty(0, np.uint8), 20, True, indices, signs)
    expected, expected_signs = hashed_by_sklearn(["abc", "def", ""], 20, True)
    assert np.array_equal(indices, expected)
    assert np.array_equal(signs, expected_signs)


def merged(rows):
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    pairs = [pair for row in rows for pair in row]
    indices = np.array([index for index, _ in pairs], np.uint32)
    values = np.array([value for _, value in pairs], np.float32)
    entries = merge_rows(indptr, indices, values)
    assert indptr[-1] == entries
    return indptr, indices[:entries], values[:entries]


def by_scipy(rows):
    """Sums in float64: scipy's matrix has the entries in their order, and of that type."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    indices = np.array([index for row in rows for index, _ in row], np.int64)
    values = np.array([np.float32(value) for row in rows for _, value in row], np.float64)
    matrix = sp.csr_matrix((values, indices, indptr), shape=(len(rows), 2**32))
    matrix.sum_duplicates()
    matrix.data = matrix.data.astype(np.float32)
    if matrix.nnz:  # scipy cannot do it to so wide an empty matrix
        matrix.eliminate_zeros()
    return matrix.indptr, matrix.indices, matrix.data


small_rows = st.lists(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 300, 70_000, 2**32 - 2]), st.integers(-2, 2)), max_size=8), max_size=8
)


@given(small_rows)
@example([[(5, 1), (5, -1)], [], [(3, 0)], [(1, 1)]])
def test_merged_rows_like_scipy(rows):
    for found, expected in zip(merged(rows), by_scipy(rows), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("length", [47, 48, 49, 5000])
@pytest.mark.parametrize("largest", [30, 255, 70_000, 2**32 - 2])
def test_merged_long_rows_like_scipy(length, largest):
    rng = np.random.default_rng(length)
    rows = [
        list(zip(rng.integers(0, largest, size).tolist(), rng.integers(-9, 10, size).tolist(), strict=True))
        for size in (length, 3, 0, length)
    ]
    for found, expected in zip(merged(rows), by_scipy(rows), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("others", [0, 100])
def test_sums_are_in_order_in_float64_and_rounded_once(others):
    values = [1e30, 1.0, -1e30, 1.0]  # in this order 1, in others 2 or 0
    filling = [(index, 1.0) for index in range(1000, 1000 - others, -1)]
    row = [(9, values[0]), *filling, *[(9, value) for value in values[1:]], (4, 16777216.0), (4, 1.0), (4, 1.0)]
    _, indices, found = merged([row])
    assert dict(zip(indices[:2].tolist(), found[:2].tolist(), strict=True)) == {4: 16777218.0, 9: 1.0}


def test_parts_gathered():
    rng = np.random.default_rng(0)
    rows = 50
    parts = []
    for _ in range(3):
        lengths = rng.integers(0, 4, rows).astype(np.uint32)
        total = int(lengths.sum())
        parts.append((lengths, rng.integers(0, 2**32, total).astype(np.uint32), rng.random(total, np.float32)))
    indptr = np.concatenate([[0], np.cumsum(sum(lengths.astype(np.int64) for lengths, _, _ in parts))])
    indices, values = np.zeros(indptr[-1], np.uint32), np.zeros(indptr[-1], np.float32)
    cursor = indptr[:-1].copy()
    for part in parts:
        assert append_part(*part, cursor, indices, values)
    assert np.array_equal(cursor, indptr[1:])
    for column, expected in ((1, indices), (2, values)):
        pieces = [np.split(part[column], np.cumsum(part[0])[:-1]) for part in parts]
        assert np.array_equal(np.concatenate([piece for row in zip(*pieces, strict=True) for piece in row]), expected)


def test_no_part_is_gathered_beyond_the_ends():
    lengths = np.array([1, 2], np.uint32)
    part = (lengths, np.arange(1, 4, dtype=np.uint32), np.ones(3, np.float32))
    for cursor in ([0, 2], [0, -1], [0, 5], [0]):
        indices, values = np.zeros(4, np.uint32), np.zeros(4, np.float32)
        assert not append_part(*part, np.array(cursor), indices[:3], values[:3])
        assert indices[3] == values[3] == 0
    short = (lengths, part[1][:2], part[2])
    assert not append_part(*short, np.array([0, 1]), np.zeros(9, np.uint32), np.zeros(9, np.float32))
