"""Rows appended and rows expired: what is left, what the manifest says of it, and which rows are kept apart."""

import dataclasses
import os

import numpy as np
import pytest
from conftest import random_rows, same_matrix, svmlight_text

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion import Existing
from ooc_pegasos.errors import InputError, LockedError
from ooc_pegasos.files import locked
from ooc_pegasos.growth import expire, expired_parts
from ooc_pegasos.loading.window import Folds
from ooc_pegasos.verification import verify

DAY = 86_400 * 10**9


def day_file(folder, day, rows=60, weighted=False):
    """A file that was last changed on some day."""
    path = folder / f"day-{day}.svm"
    path.write_text(svmlight_text(*random_rows(rows, 50, day)))
    os.utime(path, ns=(day * DAY, day * DAY))
    if weighted:
        (folder / f"day-{day}.weights").write_text("".join(f"{1 + day + row % 3}\n" for row in range(rows)))
    return str(path)


def store_of_days(folder, days, weighted=False, **options):
    settings = {"shuffle": False, "values": "float32", "chunk_size": 4096, "features": 50, "index_base": "1", **options}
    config = ConvertConfig(**settings)
    later = ConvertConfig(shuffle=settings["shuffle"], chunk_size=4096)
    for number, day in enumerate(days):
        source = day_file(folder, day, weighted=weighted)
        weights = str(folder / f"day-{day}.weights") if weighted else None
        chosen = dataclasses.replace(later if number else config, weights=weights)
        store = convert([source], folder / "store", chosen, existing=Existing(append=number > 0))
    return store


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_left_is_as_if_the_rest_had_never_been(tmp_path, weighted):
    (tmp_path / "all").mkdir()
    (tmp_path / "some").mkdir()
    store_of_days(tmp_path / "all", [1, 2, 3, 4], weighted)
    gone = expire(tmp_path / "all" / "store", 3 * DAY)
    assert gone == 120
    left, fresh = Store.open(tmp_path / "all" / "store"), store_of_days(tmp_path / "some", [3, 4], weighted)
    (a, labels), (b, others) = left.to_scipy(), fresh.to_scipy()
    assert same_matrix(a, b)
    assert np.array_equal(labels, others)
    assert np.array_equal(left.weights(), fresh.weights())
    assert dataclasses.asdict(left.manifest.statistics) == pytest.approx(dataclasses.asdict(fresh.manifest.statistics))
    assert (left.manifest.labels, left.rows, left.nonzeros) == (fresh.manifest.labels, fresh.rows, fresh.nonzeros)
    assert left.manifest.first_row == 120
    assert not verify(left).problems
    assert not verify(left).strays
    assert not list((tmp_path / "all").glob("*.unfinished"))


def test_rows_kept_apart_stay_apart(tmp_path):
    store = store_of_days(tmp_path, [1, 2, 3])
    before = np.concatenate([Folds(store, 0.2, None).of(chunk) for chunk in range(len(store.manifest.chunks))])
    expire(store.path, 2 * DAY)
    left = Store.open(store.path)
    after = np.concatenate([Folds(left, 0.2, None).of(chunk) for chunk in range(len(left.manifest.chunks))])
    assert np.array_equal(after, before[60:])
    assert (after == 0).any()


def test_only_from_the_oldest_on_and_never_all(tmp_path):
    store = store_of_days(tmp_path, [2, 1, 5, 3])
    assert expired_parts(store.manifest, 2 * DAY) == 0  # the part of day 1 came after that of day 2
    assert expired_parts(store.manifest, 4 * DAY) == 2
    assert expire(store.path, 1 * DAY) == 0
    assert Store.open(store.path).manifest == store.manifest
    with pytest.raises(InputError, match="all its rows are older"):
        expire(store.path, 9 * DAY)
    with (
        locked(tmp_path / "store.unfinished" / "lock", "another"),
        pytest.raises(LockedError, match=f"process {os.getpid()} is at work"),
    ):
        expire(store.path, 4 * DAY)


def test_append_expire_append(tmp_path):
    """The same rows come again after their first coming has expired."""
    store = store_of_days(tmp_path, [1, 2, 3], shuffle=True)
    expire(store.path, 3 * DAY)
    source = day_file(tmp_path, 3)
    os.utime(source, ns=(7 * DAY, 7 * DAY))
    grown = convert([source], store.path, ConvertConfig(chunk_size=4096), existing=Existing(append=True))
    assert grown.rows == 120
    assert len({chunk.file for chunk in grown.manifest.chunks}) == len(grown.manifest.chunks)
    assert [part.rows for part in grown.manifest.all_parts()] == [60, 60]
    assert not verify(grown).problems
    assert expire(store.path, 5 * DAY) == 60
    assert train(Store.open(store.path), TrainConfig(lam=0.01, holdout=0.2)).model.info.certificate.converged


def test_inputs_of_unknown_age_do_not_expire(tmp_path):
    matrix, labels = random_rows(30, 20, 0)
    store = Store.from_scipy(matrix, labels, tmp_path / "store")
    assert store.manifest.sources[0].modified_ns is None
    assert expired_parts(store.manifest, 2**62) == 0
