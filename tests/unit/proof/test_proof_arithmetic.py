"""Scores and sums for the check of proofs are within their error bounds of exact arithmetic."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Store
from ooc_pegasos.proof.arithmetic import Pairs, Plain, sum_over

ROWS, FEATURES, COLUMNS = 300, 9, 2


def make_store(folder, binary, spread):
    rng = np.random.default_rng(spread)
    values = rng.standard_normal((ROWS, FEATURES)) * 10.0 ** rng.uniform(-spread, spread, (ROWS, FEATURES))
    values *= rng.random((ROWS, FEATURES)) < 0.5
    matrix = sp.csr_matrix((values != 0 if binary else values).astype(np.float32))
    labels = np.where(rng.random(ROWS) < 0.5, 1, -1)
    return Store.from_scipy(matrix, labels, folder / "store", config=ConvertConfig(chunk_size=1024, shuffle=False))


def exact_dot(a, b):
    return sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)), Fraction(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Plain, Pairs])
@pytest.mark.parametrize("spread", [0, 6])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_errors_are_within_their_bounds(kind, spread, binary, threads, tmp_path):
    store = make_store(tmp_path, binary, spread)
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((COLUMNS, FEATURES)) * 10.0 ** rng.uniform(-spread, spread, (COLUMNS, FEATURES))
    biases, q = rng.standard_normal(COLUMNS), rng.standard_normal((ROWS, COLUMNS))
    q *= 10.0 ** rng.uniform(-spread, spread, (ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < 0.7)
    rest = q * 2.0**-54 if kind is Pairs else np.zeros(q.shape)
    parts = [kind(weights, biases) for _ in range(threads)]
    scores, sizes = np.empty((ROWS, COLUMNS, 3)), np.empty(ROWS)

    def work(block, begin, end, first, thread):
        part, reach = slice(first + begin, first + end), np.zeros((1, COLUMNS))
        for k in range(COLUMNS):
            z = np.empty((end - begin, 4))
            assert parts[thread].add(k, begin, block, q[part, k].copy(), rest[part, k].copy(), z) == -1
            scores[part, k], sizes[part], reach[0, k] = z[:, :3], z[:, 3], abs(q[part, k]) @ z[:, 3]
        parts[thread].end_rows(end - begin, int(block.indptr[end]) - int(block.indptr[begin]))
        return reach

    assert len(store.manifest.chunks) > 2
    reach = sum_over(store, threads, 7, work)[0]
    vector, error, row_norm = parts[0].total(parts[1:])
    dense = store.to_scipy()[0].toarray().astype(np.float64)
    for i, x in enumerate(dense):
        assert exact_dot(x, x) <= Fraction(row_norm * sizes[i] * (1 + 1e-12)) ** 2
        for k in range(COLUMNS):
            high, low, off = map(Fraction, scores[i, k].tolist())
            assert abs(high + low - exact_dot(x, weights[k]) - Fraction(biases[k])) <= off
            assert off <= abs(biases[k]) * 1e-13 + 1e-13 * sum(abs(a * w) for a, w in zip(x, weights[k], strict=True))
    for k in range(COLUMNS):
        exact = [exact_dot(x, q[:, k]) + exact_dot(x, rest[:, k]) for x in dense.T]
        away = [Fraction(float(found)) - real for found, real in zip(vector[k], exact, strict=True)]
        # the vector of pairs is rounded once more, when it is returned
        spare = Fraction(1, 2**53) * sum(abs(real) for real in exact)
        assert sum(one * one for one in away) <= (Fraction(error * reach[k]) + spare) ** 2


@pytest.mark.parametrize("kind", [Plain, Pairs])
@pytest.mark.parametrize("is_decoded", [False, True])
@pytest.mark.parametrize("wrong", ["out of range", "twice"])
def test_rows_with_wrong_indices_are_reported(kind, is_decoded, wrong, tmp_path):
    """An index out of range, or one that does not increase, is found before anything is read or written there."""
    block = make_store(tmp_path, False, 0).block(0)
    block = block.decode() if is_decoded else block
    assert block.coding == ("uint32" if is_decoded else "gap8")
    row = next(row for row in range(5, block.rows) if block.indptr[row + 1] - block.indptr[row] > 2)
    indices = block.indices.copy()
    entry = block.indptr[row] + 2
    indices[entry] = FEATURES if wrong == "out of range" else indices[entry - 1] if is_decoded else 0
    sums, ones = kind(np.ones((1, FEATURES)), np.zeros(1)), np.ones(block.rows)
    assert sums.add(0, 0, replace(block, indices=indices), ones, 0 * ones, np.empty((block.rows, 4))) == row
