"""Rows appended and rows expired: what is left, what the manifest says of it, and which rows are kept apart."""

import dataclasses
import os

import numpy as np
import pytest
from conftest import random_rows, same_matrix, svmlight_text

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, LockedError
from ooc_pegasos.existing import Existing
from ooc_pegasos.files import in_use, locked, unused
from ooc_pegasos.growth import expire, expired_parts
from ooc_pegasos.loading.window import Folds
from ooc_pegasos.progress import TrainingProgress
from ooc_pegasos.provenance import changed_sources
from ooc_pegasos.scoring import score
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


def test_who_reads_a_store_is_not_disturbed(tmp_path):
    """What a training or a prediction has begun with stays until it is done."""
    store = store_of_days(tmp_path, [1, 2, 3])
    old = sorted(path.name for path in store.path.glob("chunk-*"))
    with in_use(store.path), in_use(store.path):
        expire(store.path, 2 * DAY)
        assert sorted(path.name for path in store.path.glob("chunk-*")) == old
        rows = sum(block.rows for block in store.blocks())  # as it was opened
        assert rows == 180
    left = Store.open(store.path)
    assert verify(left).strays == [chunk.file for chunk in store.manifest.chunks if chunk not in left.manifest.chunks]
    assert expire(store.path, 3 * DAY) == 60
    assert not verify(Store.open(store.path)).strays


def test_training_and_scoring_hold_the_store(tmp_path, monkeypatch):
    store = store_of_days(tmp_path, [1, 2])
    held = []

    class Listening(TrainingProgress):
        def presented(self, epoch, rows, total):
            with unused(store.path) as free:
                held.append(free)

    model = train(store, TrainConfig(lam=0.01, algorithm="sgd-s", max_epochs=2), progress=Listening()).model
    assert held
    assert not any(held)
    for _block in score(model, str(store.path), 1, with_labels=True):
        with unused(store.path) as free:
            assert not free
    with unused(store.path) as free:
        assert free


def test_sources_that_have_changed(tmp_path, oocpeg):
    store = store_of_days(tmp_path, [1, 2])
    first = tmp_path / "day-1.svm"
    words = ("train", store.path, "-o", "model", "--lambda", "0.01", "--force")
    os.utime(first, ns=(5 * DAY, 5 * DAY))  # touched, and the same
    oocpeg(*words)
    content = first.read_text()
    first.write_text(content.replace("1:", "2:", 1))
    told = oocpeg(*words, code=3).stderr
    assert f"{first}: changed after the store was made of it" in told
    assert "--ignore-sources" in told
    oocpeg(*words, "--ignore-sources")
    os.utime(first, ns=(1 * DAY, 1 * DAY))  # same size, same time: only the bytes tell
    oocpeg(*words)
    assert f"{first}: changed" in oocpeg("verify", store.path, "--sources", code=5).stdout
    first.unlink()
    oocpeg(*words)
    oocpeg("verify", store.path, "--sources")


def test_of_a_name_that_came_twice_the_last_counts(tmp_path):
    store_of_days(tmp_path, [1])
    source = tmp_path / "day-1.svm"
    source.write_text(svmlight_text(*random_rows(30, 50, 7)))
    store = convert([str(source)], tmp_path / "store", ConvertConfig(), existing=Existing(append=True))
    assert changed_sources(store.manifest, every_byte=True) == []
