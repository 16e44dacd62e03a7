"""Rows that stay in memory while a store larger than memory is read."""

import dataclasses

import numpy as np
import pytest
from numpy.random import default_rng

from ooc_pegasos import TrainConfig, train
from ooc_pegasos.loading.loader import open_loader
from ooc_pegasos.loading.window import Window
from ooc_pegasos.solvers.row_cache import RowCache, _heaviest
from ooc_pegasos.solvers.row_group import Group
from support.optima import least_objective
from support.rows import random_rows
from support.stores import all_memory, interrupt_at_check, store_of


def many_windows(tmp_path, rows=8000, features=300, seed=0, chunk_size=16_000, **options):
    """A store of many chunks, its rows and labels."""
    matrix, _labels = random_rows(rows, features, seed, 0.05)
    rng = np.random.default_rng(seed)
    scores = matrix @ rng.standard_normal(features)
    labels = np.where(scores + 0.3 * scores.std() * rng.standard_normal(rows) > 0, 1, -1)
    return store_of(tmp_path, matrix, labels, chunk_size=chunk_size, **options), matrix, labels


def test_few_reads_suffice(tmp_path):
    """Without the cache a pass over the data visits each row once; this problem then takes some dozen passes."""
    store, matrix, labels = many_windows(tmp_path, 4000, 150)
    config = TrainConfig(lam=0.3 / store.rows, bias="none", tolerance=0.01)
    in_memory = train(store, config)
    found = train(store, dataclasses.replace(config, memory=int(0.5 * all_memory(store))))
    assert found.windows > 4
    assert found.converged
    assert found.epochs <= 10 < in_memory.epochs
    least = least_objective("hinge", 0.0, matrix.toarray(), labels, config.lam, np.ones(store.rows))
    assert found.lower_bound <= least * (1 + 1e-6)
    assert found.primal <= least * 1.0101
    w = found.model.weights[: matrix.shape[1]]
    losses = np.maximum(0, 1 - labels * (matrix @ w))
    assert found.primal == pytest.approx(losses.mean() + config.lam * (w @ w) / 2, rel=1e-9)


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared-hinge"])
@pytest.mark.parametrize("bias", ["none", "feature", pytest.param("free", marks=pytest.mark.slow)])
def test_certificates_with_cached_rows(tmp_path, loss, bias):
    store, _matrix, _labels = many_windows(tmp_path, 3000, 60, chunk_size=6_000)
    config = TrainConfig(lam=(0.3, 1e-3, 1e-4), loss=loss, bias=bias, algorithm="sdca", refit=False, tolerance=1e-3)
    exact = train(store, dataclasses.replace(config, tolerance=1e-6))
    found = train(store, dataclasses.replace(config, memory=int(0.5 * all_memory(store)), max_epochs=300))
    assert found.windows > 3
    for one, truth in zip(found.models, exact.models, strict=True):
        assert one.certificate.converged
        assert one.certificate.lower_bound <= truth.certificate.primal
        assert one.certificate.primal >= truth.certificate.lower_bound
        assert one.certificate.primal <= truth.certificate.primal * 1.0011


@pytest.mark.parametrize(
    "options",
    [
        {"lam": 1e-4},
        pytest.param({"lam": (1e-3, 1e-4, 1e-5)}, marks=pytest.mark.slow),
        pytest.param({"lam": 1e-4, "bias": "free"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_interrupted_with_cached_rows_and_resumed_to_the_same_bytes(tmp_path, options):
    store, _matrix, _labels = many_windows(tmp_path, 3000, 60, chunk_size=6_000)
    half = {"algorithm": "sdca", "memory": int(0.5 * all_memory(store)), "refit": False}
    config = TrainConfig(**{"tolerance": 1e-3, "bias": "feature", "max_epochs": 8, **half, **options})
    whole = train(store, config)
    interrupted = 0
    for at in (1, 40, 77, 100, 163, 250, 391, 700):
        place = tmp_path / f"checkpoint-{at}"
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at_check(patched, at)
            try:
                train(store, config, checkpoint=place)
                break
            except KeyboardInterrupt:
                interrupted += 1
        again = train(store, config, checkpoint=place, resume=True)
        for one, other in zip(again.models, whole.models, strict=True):
            assert one.history == other.history
            assert one.certificate == other.certificate
        assert again.model.weights.tobytes() == whole.model.weights.tobytes()
    assert interrupted > 4


@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("features", [60, 5000, 1_000_000])
def test_copies_of_rows(tmp_path, values, features):
    """Whatever the codings, copies have the rows, labels, weights and states of their origin, after gaps are closed."""
    matrix, labels = random_rows(2000, features, 1, 6 / features)
    (tmp_path / "w.txt").write_text("".join(f"{1 + row / 7}\n" for row in range(2000)))
    store = store_of(
        tmp_path, matrix, labels, values=values, weights=str(tmp_path / "w.txt"), shuffle=False, chunk_size=4096
    )
    cache = RowCache(open_loader(store, int(0.4 * all_memory(store))), 2, 9)
    cache.capacity, stored = 50_000, store.to_scipy()[0]
    group, first_rows, rng = Group([0, 1], 2), [0, *np.cumsum([c.rows for c in store.manifest.chunks])], default_rng(0)
    for chunk in rng.permutation(np.repeat(np.arange(len(first_rows) - 1), 4)):
        cache.take((chunk,))
        numbers = np.arange(first_rows[chunk], first_rows[chunk + 1])
        window = Window((chunk,), store.block(chunk), [(0, len(numbers))], np.empty(0, np.uint8), numbers - numbers[0])
        group.duals = np.repeat(numbers, 2).astype(np.float32)
        group.inactive_until = rng.integers(1, 18, 2 * len(numbers)).astype(np.uint8)
        cache.script = [(0, False)]
        cache.exchange(window, first_rows, [group])
        cache.add(window, [group], 1 / np.arange(1, 1 + len(numbers), dtype=np.float32))
        kept, places = cache.rows, cache.sequence
        assert (kept.part(cache._end, places).block.to_scipy()[places] != stored[kept.numbers[places]]).nnz == 0
        assert (kept.block.labels[places] == labels[kept.numbers[places]]).all()
        assert kept.block.weights[places] == pytest.approx(1 + kept.numbers[places] / 7)
        assert (kept.groups[0].table("duals")[places, 1] == kept.numbers[places]).all()
        assert len(np.unique(kept.numbers[places])) == len(places)
        assert [kept.chunk_of(place) for place in places[:5]] == [
            np.searchsorted(first_rows, number, side="right") - 1 for number in kept.numbers[places[:5]]
        ]
    assert 50 < len(places) < 1500


def test_the_heaviest_rows_stay():
    """Against a sort of all rows."""
    rng = np.random.default_rng(0)
    for _case in range(300):
        sizes = rng.integers(0, 40, 2)
        ranks = [rng.integers(0, 5, size) for size in sizes]
        costs = [rng.integers(1, 9, size) for size in sizes]
        capacity = int(rng.integers(0, sum(sizes.tolist()) * 6 + 1))
        kept = _heaviest(ranks, costs, capacity)
        rank, cost, keep = (np.concatenate(one) for one in (ranks, costs, kept))
        assert cost[keep].sum() <= capacity
        assert not keep[rank == 0].any()
        left = ~keep & (rank > 0)
        if left.any():
            least = rank[keep].min(initial=9)
            assert (keep[rank > rank[left].max()]).all()
            assert rank[left].max() <= least or cost[keep].sum() + cost[left & (rank > least)].min() > capacity


def test_passes_are_counted_modulo_256(tmp_path):
    """A row that is active stays active however many passes do not visit it."""
    matrix, labels = random_rows(200, 50, 1, 0.2)
    store = store_of(tmp_path, matrix, labels, shuffle=False, chunk_size=1024)
    cache, group = RowCache(open_loader(store, int(0.6 * all_memory(store))), 1, 9), Group([0], 1)
    first_rows = [0, *np.cumsum([c.rows for c in store.manifest.chunks])]
    rows = first_rows[1]
    window = Window((0,), store.block(0), [(0, rows)], np.empty(0, np.uint8), np.arange(rows))
    none = dataclasses.replace(window, order=np.empty(0, np.int64))
    cache.script, group.duals, group.inactive_until = [(0, False)], np.ones(rows, np.float32), np.zeros(rows, np.uint8)
    cache.exchange(window, first_rows, [group])
    cache.add(window, [group], np.ones(rows, np.float32))
    assert len(cache.sequence) == rows
    for _visit in range(300):
        cache.finish(cache.piece(window, 0, [0], once=False), is_settled=False)
        cache.passes += 4
        cache.exchange(none, first_rows, [group])
        until = cache.rows.groups[0].inactive_until[:rows]
        assert not any(0 < (int(one) - cache.passes) % 256 < 128 for one in until)
