"""Rows of files that are taken out of a store again."""

import json

import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, LockedError, UsageError
from ooc_pegasos.store.drop import Dropped, drop
from ooc_pegasos.store.verify import verify
from ooc_pegasos.util.locks import in_use, locked
from support.file_bytes import folder_bytes
from support.rows import random_rows, same_matrix, svmlight_text

CONFIG = ConvertConfig(chunk_size=2048, values="float32", features=40, index_base="1", on_bad_row="skip", threads=1)


def bad_file(folder, name, seed, bad=0):
    path = folder / name
    path.write_text("rubbish\n" * bad + svmlight_text(*random_rows(70, 40, seed, 0.3)))
    return str(path)


def store_of_conversions(target, conversions, config=CONFIG):
    """A store of one conversion after the other."""
    for number, paths in enumerate(conversions):
        later = ConvertConfig(chunk_size=2048, on_bad_row="skip", threads=1, shuffle=config.shuffle)
        store = convert(paths, target, later if number else config, existing=Existing(append=number > 0))
    return store


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("keep", [1, 2])
def test_dropping_what_was_appended_last_leaves_the_store_that_was_before(tmp_path, keep, bad):
    files = [[bad_file(tmp_path, f"{number}.svm", number, bad)] for number in range(4)]
    wanted = folder_bytes(store_of_conversions(tmp_path / "some", files[:keep]).path)
    store_of_conversions(tmp_path / "all", files)
    gone = [path for paths in files[keep:] for path in paths]
    assert drop(tmp_path / "all", gone) == Dropped(70 * len(gone), 70 * keep)
    assert folder_bytes(tmp_path / "all") == wanted
    assert not (tmp_path / "all.unfinished").exists()


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_after_the_dropped_ones_are_those_of_a_store_without_them(tmp_path, shuffle):
    files = [[bad_file(tmp_path, f"{number}.svm", number, number)] for number in range(4)]
    config = ConvertConfig(**{**vars(CONFIG), "shuffle": shuffle})
    store_of_conversions(tmp_path / "all", files, config)
    drop(tmp_path / "all", ["1.svm"])
    left, wanted = Store.open(tmp_path / "all"), store_of_conversions(tmp_path / "some", [files[0], *files[2:]], config)
    assert verify(left).problems == verify(left).strays == []
    same_matrix(left.to_scipy()[0], wanted.to_scipy()[0])
    assert (left.to_scipy()[1] == wanted.to_scipy()[1]).all()
    for name in ("rows", "features", "labels", "statistics", "rejected", "sources", "parts", "first_row"):
        assert getattr(left.manifest, name) == getattr(wanted.manifest, name), name
    assert [chunk.xxh64 for chunk in left.manifest.chunks] == [chunk.xxh64 for chunk in wanted.manifest.chunks]
    listing = [json.loads(line) for line in (left.path / "rejected.jsonl").read_text().splitlines()]
    assert {line["source"].rpartition("/")[2] for line in listing} == {"2.svm", "3.svm"}
    options = TrainConfig(lam=0.01, holdout=0.3, threads=1)
    assert (train(left, options).model.weights == train(wanted, options).model.weights).all()
    appended = convert(files[1], left.path, ConvertConfig(on_bad_row="skip"), existing=Existing(append=True))
    assert appended.rows == 280
    assert not verify(appended).problems


def test_what_cannot_be_dropped(tmp_path):
    first, second, third = (bad_file(tmp_path, f"{number}.svm", number) for number in range(3))
    store_of_conversions(tmp_path / "s", [[first], [second, third]])
    before = folder_bytes(tmp_path / "s")
    for names, kind, problem in (
        (["nowhere.svm"], UsageError, r"source=.*nowhere.svm: .*s has no such source; the sources are "),
        ([second], InputError, "mixed with those of 1 other files of the same conversion, like .*2.svm; name them all"),
        ([first, second, third], InputError, "all its rows are of these files"),
    ):
        with pytest.raises(kind, match=problem):
            drop(tmp_path / "s", names)
        assert folder_bytes(tmp_path / "s") == before
    lock = locked(tmp_path / "s.unfinished" / "lock", "another")
    with lock, pytest.raises(LockedError, match="at work"):
        drop(tmp_path / "s", [second, third])
    assert drop(tmp_path / "s", ["1.svm", third]) == Dropped(140, 70)


def test_readers_keep_the_files_that_they_opened(tmp_path):
    files = [[bad_file(tmp_path, f"{number}.svm", number)] for number in range(2)]
    store = store_of_conversions(tmp_path / "s", files)
    with in_use(store.path):
        drop(store.path, files[1])
        assert sum(block.rows for block in store.blocks()) == 140
    assert Store.open(store.path).rows == 70


def test_the_command_drops_test_rows_as_well(tmp_path, oocpeg):
    for number in range(2):
        bad_file(tmp_path, f"{number}.svm", number)
    oocpeg("convert", "0.svm", "-o", "s", "--features", "40", "--test", "0.3")
    before = {name: folder_bytes(tmp_path / name) for name in ("s", "s.test")}
    oocpeg("convert", "1.svm", "-o", "s", "--append")
    assert oocpeg("drop", "s", "--source", "1.svm").stdout.startswith("s: 70 rows dropped, ")
    assert {name: folder_bytes(tmp_path / name) for name in ("s", "s.test")} == before
    assert "has no such source" in oocpeg("drop", "s", "--source", "1.svm", code=2).stderr
    assert json.loads(oocpeg("info", "s", "--json").stdout)["rows"] < 70
