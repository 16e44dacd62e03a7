"""The kernels, against ten lines of numpy written from Fig. 1 and Fig. 2 of the 2011 paper, and equation (6)."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos.compiled.fit import losses, panel_steps, sums
from ooc_pegasos.compiled.fit import pegasos as kernels
from ooc_pegasos.solvers.pegasos import Pegasos, PegasosOptions
from ooc_pegasos.solvers.pegasos_threads import Averaging
from ooc_pegasos.store.csr_block import CODINGS, VALUE_CODINGS
from support.codings import coded, few_values
from support.rows import random_rows


def solver(features: int, lam: float, **options: object) -> Pegasos:
    chosen = {
        "delay": 0.0,
        "loss": losses.HINGE,
        "class_weights": (1.0, 1.0),
        "batch_size": 1,
        "project": False,
        "average": False,
        "average_everything": True,
    }
    return Pegasos(PegasosOptions(lam=lam, **{**chosen, **options}), features)


def figure_two(x, y, order, lam, k, project):
    """Fig. 2 of the paper (Fig. 1 is k = 1), with its iterates."""
    w, iterates = np.zeros(x.shape[1]), []
    for t, begin in enumerate(range(0, len(order), k), start=1):
        batch = order[begin : begin + k]
        errors = [i for i in batch if y[i] * (w @ x[i]) < 1]
        w = (1 - 1 / t) * w + (1 / (lam * t)) / k * sum((y[i] * x[i] for i in errors), np.zeros_like(w))
        if project and np.linalg.norm(w) > 0:
            w = min(1, 1 / np.sqrt(lam) / np.linalg.norm(w)) * w
        iterates.append(w)
    return w, np.array(iterates)


@pytest.mark.slow
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("k", [1, 64])
def test_like_the_figures_of_the_paper(coding, k, project, ones):
    matrix, labels = random_rows(640, 700, seed=1, density=0.02)
    if ones:
        matrix.data[:] = 1
    block, dense = coded(matrix, labels, coding), matrix.toarray().astype(np.float64)
    order = np.random.default_rng(2).permutation(640)
    for lam in (0.003, 0.2):
        expected, iterates = figure_two(dense, labels, order, lam, k, project)
        for average in (False, True):
            found = solver(700, lam, batch_size=k, project=project, average=average)
            for begin in (0, 128, 192):  # in three calls, as the trainer does
                end = {0: 128, 128: 192, 192: 640}[begin]
                found.process(block, order, begin, end, 1)
            np.testing.assert_allclose(found.last(), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
            if average:
                mean = iterates.mean(axis=0)
                np.testing.assert_allclose(found.average(), mean, rtol=1e-9, atol=1e-9 * np.abs(mean).max())


def test_the_projection_binds_in_that_test():
    matrix, labels = random_rows(640, 700, seed=1, density=0.02)
    order = np.random.default_rng(2).permutation(640)
    dense = matrix.toarray().astype(np.float64)
    apart = [figure_two(dense, labels, order, 0.2, 1, project)[1] for project in (False, True)]
    assert np.abs(apart[0] - apart[1]).max() > 0.01


def test_margin_errors_are_counted_exactly():
    matrix, labels = random_rows(500, 50, seed=3, density=0.2)
    found = solver(50, 0.01)
    found.process(coded(matrix, labels, "gap8"), np.arange(500), 0, 500, 1)
    w, dense, errors = np.zeros(50), matrix.toarray().astype(np.float64), 0
    for t, (x, y) in enumerate(zip(dense, labels, strict=True), start=1):
        error = y * (w @ x) < 1
        errors += error
        w = (1 - 1 / t) * w + error * y * x / (0.01 * t)
    assert found.dual_sum == errors


@given(
    st.integers(1, 20),
    st.floats(1e-6, 10),
    st.floats(0, 50),
    st.floats(-60, 60),
)
def test_equation_6_by_brute_force(repeats, lam, square, delta):
    """Make `repeats` updates with a row and count the margin errors."""
    margin, errors = delta, 0
    near = False
    for _ in range(repeats):
        near |= abs(margin) < 1e-9 * (1 + abs(delta) + repeats * (square + lam))
        if margin <= 0:
            errors += 1
            margin += square
        margin -= lam
    ratio = ((repeats - 1) * lam - delta) / max(square, lam)
    if not near and abs(ratio - round(ratio)) > 1e-9:
        assert kernels.multiple_errors(delta, repeats, lam, square) == errors


def test_repeated_updates_are_consecutive_updates():
    matrix, labels = random_rows(300, 60, seed=4, density=0.2)
    block = coded(matrix, labels, "gap8")
    for weights in ((1.0, 1.0), (0.5, 3.0)):
        one = solver(60, 0.05, class_weights=weights)
        one.process(block, np.repeat(np.arange(300), 5), 0, 1500, 1)
        many = solver(60, 0.05, class_weights=weights)
        many.process(block, np.arange(300), 0, 300, 5)
        assert many.t == one.t == 1500
        np.testing.assert_allclose(many.a, one.a, rtol=1e-9, atol=1e-12)
        assert many.dual_sum == pytest.approx(one.dual_sum)


@pytest.mark.slow
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("repeats", [1, 5])
def test_prefetching_weights_changes_nothing(monkeypatch, ones, repeats):
    from ooc_pegasos.solvers import pegasos

    matrix, labels = random_rows(300, 4000, seed=5)
    if ones:
        matrix.data[:] = 1
    found = []
    for large in (1, 1 << 40):
        monkeypatch.setattr(pegasos, "LARGE_WEIGHTS", large)
        one = solver(4000, 0.01)
        one.process(coded(matrix, labels, "gap16"), np.arange(300), 0, 300, repeats)
        found.append(one.a.tobytes())
    assert found[0] == found[1]


@pytest.mark.slow
@given(st.lists(st.integers(0, 999), min_size=0, max_size=40, unique=True), st.sampled_from([*CODINGS]))
def test_inner_product_and_update_of_one_row(features, coding):
    features = sorted(features)
    rng = np.random.default_rng(len(features))
    values = rng.standard_normal(len(features)).astype(np.float32)
    matrix = sp.csr_matrix((values, features, [0, len(features)]), shape=(1, 1000))
    block, a = coded(matrix, np.ones(1), coding), rng.standard_normal(1000)
    begin, end = int(block.indptr[0]), int(block.indptr[1])
    dense = matrix.toarray().ravel().astype(np.float64)
    found = kernels.dot(block.indices, block.values, block.levels, begin, end, a)
    assert found == pytest.approx(float(dense @ a), rel=1e-12, abs=1e-12)
    after = a.copy()
    kernels.add_row(block.indices, block.values, block.levels, begin, end, after, -2.5)
    np.testing.assert_allclose(after, a - 2.5 * dense, rtol=1e-15)
    square = kernels.square_norm(block.values, block.levels, begin, end, block.indices)
    assert square == pytest.approx(float(dense @ dense), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("values", VALUE_CODINGS)
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("options", [{}, {"batch_size": 7, "project": True, "average": True}, {"repeats": 5}], ids=str)
def test_the_coding_of_values_does_not_matter(coding, values, options):
    matrix, labels = few_values(200, 900, seed=6)
    repeats = options.get("repeats", 1)
    options = {name: value for name, value in options.items() if name != "repeats"}
    found = []
    for block in (coded(matrix, labels, coding, "float32"), coded(matrix, labels, coding, values)):
        one = solver(900, 0.01, **options)
        assert one.process(block, np.arange(200), 0, 200, repeats) == -1
        scores = np.empty(200)
        assert kernels.score_rows(0, 200, *block.entries, one.a, scores) == -1
        found.append((one.a.tobytes(), one.b.tobytes(), one.state.tobytes(), scores.tobytes()))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("values", [None, *VALUE_CODINGS])
@pytest.mark.parametrize("coding", CODINGS)
def test_an_index_out_of_range_reaches_no_memory(monkeypatch, coding, values):
    """Each kernel says which row it is; the weights beyond the end, which nobody may touch, stay what they were."""
    from ooc_pegasos.solvers import pegasos

    matrix, labels = few_values(40, 900, seed=7)
    if values is None:
        matrix.data[:] = 1
    block = coded(matrix, labels, coding, values)
    largest = [int(matrix.indices[matrix.indptr[row + 1] - 1]) for row in range(40)]
    bad = int(np.argmax(largest))
    features = largest[bad]  # so that this row, or one like it, reaches one too far
    allowed = {row for row in range(40) if largest[row] >= features}
    for options in ({}, {"batch_size": 7}, {"repeats": 5}, {"large": True}):
        monkeypatch.setattr(pegasos, "LARGE_WEIGHTS", 1 if "large" in options else 1 << 40)
        one = solver(features, 0.01, batch_size=options.get("batch_size", 1))
        beyond = np.full(features + 2000, 7.0)
        beyond[:features] = 0
        one.a = beyond[:features]
        assert one.process(block, np.arange(40), 0, 40, options.get("repeats", 1)) in allowed
        assert (beyond[features:] == 7).all()
    assert kernels.score_rows(0, 40, *block.entries, np.ones(features), np.empty(40)) in allowed
    empty = np.empty(0, np.float32)
    rows = (
        block.labels,
        empty,
        np.empty(0, np.uint8),
        losses.HINGE,
        0.0,
        0.0,
    )
    table, totals = np.zeros((panel_steps.TABLE_SIZE, 1)), np.zeros((sums.SUMS_SIZE, 1))
    for twice in (0.0, 1.0):
        table[panel_steps.COMPENSATED] = twice
        assert sums.sum_losses(0, 40, *block.entries, *rows, table, np.ones((1, features)), totals) in allowed


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("repeats", [1, 5])
def test_averaging_threads_follow_the_equations(threads, repeats):
    """Each starts from its share of a, t and the delay; the sums are those of all. Ten lines, row by row."""
    matrix, labels = random_rows(301, 80, seed=8, density=0.2)
    dense, lam, delay = matrix.toarray().astype(np.float64), 0.05, 40.0
    order = np.random.default_rng(9).permutation(301)
    a, t, dual = np.zeros(80), 0.0, 0.0
    whole = solver(80, lam, delay=delay)
    averaging = Averaging(whole, threads)
    for begin, end in ((0, 150), (150, 301)):
        parts = np.split(order[begin:end], np.linspace(0, end - begin, threads + 1).astype(int)[1:-1])
        total = np.zeros(80)
        for part in parts:
            share = len(part) / (end - begin)
            mine, clock = a * share, (t + delay) * share
            for row in np.repeat(part, repeats):
                error = labels[row] * (dense[row] @ mine) <= lam * clock
                mine, clock, dual = mine + error * labels[row] * dense[row], clock + 1, dual + error
            total += mine
        a, t = total, t + repeats * (end - begin)
        assert averaging.process(coded(matrix, labels, "gap8"), order, begin, end, repeats) == -1
    np.testing.assert_allclose(whole.a, a, rtol=1e-9, atol=1e-12)
    assert (whole.t, whole.dual_sum) == (t, dual)
