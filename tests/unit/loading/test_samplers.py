"""The order of rows: completeness, randomness and determinism."""

import numpy as np
import pytest
from scipy.stats import chi2

from ooc_pegasos.compiled.rows.shuffle import shuffle
from ooc_pegasos.loading.samplers import EQUALLY_OFTEN, SAMPLERS, Shape

SIZES = (70, 5, 120, 33, 1, 90)
ROWS = sum(SIZES)
STARTS = np.concatenate([[0], np.cumsum(SIZES)])


def shape(budget: int) -> Shape:
    return Shape(SIZES, tuple(10 * size for size in SIZES), budget)


def presented(name: str, budget: int, seed: int, epoch: int) -> np.ndarray:
    """Row numbers of the store, in the order of the plan."""
    order = []
    for window in SAMPLERS[name](shape(budget), seed, epoch):
        rows = np.concatenate([np.arange(STARTS[chunk], STARTS[chunk + 1]) for chunk in window.chunks])
        order.append(window.order(rows))
    return np.concatenate(order)


@pytest.mark.parametrize("budget", [1 << 30, 2600, 1])
@pytest.mark.parametrize("name", EQUALLY_OFTEN)
def test_every_row_once_an_epoch_for_any_windows(name, budget):
    for epoch in range(3):
        assert sorted(presented(name, budget, 1, epoch)) == list(range(ROWS))


@pytest.mark.parametrize("budget", [1 << 30, 2600])
@pytest.mark.parametrize("name", SAMPLERS)
def test_plans_depend_on_seed_and_epoch_only(name, budget):
    first = presented(name, budget, 5, 2)
    assert np.array_equal(first, presented(name, budget, 5, 2))
    same_next_epoch = np.array_equal(first, presented(name, budget, 5, 3))
    assert same_next_epoch == (name in ("fixed", "sequential"))
    assert np.array_equal(first, presented(name, budget, 6, 2)) == (name == "sequential")


def test_windows_fit_the_budget():
    """Each window takes half of the budget, since the next is loaded concurrently."""
    windows = list(SAMPLERS["permutation"](shape(2600), 0, 0))
    assert any(len(window.chunks) > 1 for window in windows)
    for window in windows:
        assert len(window.chunks) == 1 or sum(10 * SIZES[chunk] for chunk in window.chunks) <= 1300


def test_a_store_that_just_fits_is_one_window():
    assert len(list(SAMPLERS["permutation"](shape(10 * ROWS), 0, 0))) == 1
    assert len(list(SAMPLERS["permutation"](shape(10 * ROWS - 1), 0, 0))) > 1
    assert shape(1).min_budget == 2 * 10 * max(SIZES)
    assert Shape((7,), (70,), 1).min_budget == 70


@pytest.mark.parametrize("chunks", [(24,), (5, 12, 7)])
def test_one_window_is_an_exactly_uniform_permutation(chunks):
    """Each row is equally likely at each position, for any chunks."""
    rows, seeds = 24, 4000
    table = np.zeros((rows, rows))
    for seed in range(seeds):
        (window,) = SAMPLERS["permutation"](Shape(chunks, chunks, 1 << 30), seed, 0)
        table[window.order(np.arange(rows)), np.arange(rows)] += 1
    expected = seeds / rows
    assert chi2.sf(((table - expected) ** 2 / expected).sum(), (rows - 1) ** 2) > 1e-4


def test_the_order_does_not_depend_on_the_chunks():
    orders = []
    for chunks in ((300,), (1, 99, 200), (150, 150)):
        (window,) = SAMPLERS["permutation"](Shape(chunks, chunks, 1 << 30), 3, 1)
        orders.append(window.order(np.arange(300)).tobytes())
    assert len(set(orders)) == 1


@pytest.mark.parametrize("budget", [1 << 30, 2600])
def test_iid_is_iid(budget):
    """Counts of rows are multinomial, and in one window draws next to each other are independent."""
    draws = np.concatenate([presented("iid", budget, 7, epoch) for epoch in range(400)])
    assert len(draws) == 400 * ROWS
    counts = np.bincount(draws, minlength=ROWS)
    assert 1e-4 < chi2.sf(((counts - 400) ** 2 / 400).sum(), ROWS - 1) < 1 - 1e-4
    if budget == 1 << 30:
        cells = draws * 8 // ROWS
        table = np.zeros((8, 8))
        np.add.at(table, (cells[:-1], cells[1:]), 1)
        margin = np.bincount(cells, minlength=8) / len(cells)
        expected = np.outer(margin, margin) * (len(cells) - 1)
        assert chi2.sf(((table - expected) ** 2 / expected).sum(), 49) > 1e-4


def textbook_shuffle(rows, state):
    """Fisher and Yates by xoshiro256** and Lemire's bounded numbers, with Python's integers."""
    word, (a, b, c, d) = 2**64, state

    def turned(x, bits):
        return (x << bits | x >> (64 - bits)) % word

    order = list(range(rows))
    for last in range(rows - 1, 0, -1):
        low, bound = -1, last + 1
        while low < word % bound:
            drawn, moved = turned(b * 5 % word, 7) * 9 % word, b << 17
            c, d = c ^ a, d ^ b
            b, a = b ^ c, a ^ d
            c, d = (c ^ moved) % word, turned(d, 45)
            there, low = divmod(drawn * bound, word)
        order[last], order[there] = order[there], order[last]
    return order


@pytest.mark.parametrize("rows", [0, 1, 2, 33, 5000, (1 << 19) + 70])
def test_orders_are_those_of_the_textbook(rows):
    """Also where an order is larger than a cache and places are drawn ahead."""
    state = np.random.SeedSequence([rows, 3]).generate_state(4, np.uint64)
    expected = textbook_shuffle(rows, state.tolist())
    for kind in (np.uint32, np.int64):
        order = np.arange(rows, dtype=kind)
        shuffle(order, state)
        assert order.tolist() == expected
