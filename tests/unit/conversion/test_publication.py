"""Errors after a result is in place: it counts as done, the error says so, and nothing is done twice."""

import errno
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.errors import InputError, PublishedError
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.util.files import write_atomically, writing_errors
from support.file_bytes import folder_bytes
from support.rows import random_rows, svmlight_text
from support.stores import store_of

APPEND = Existing(append=True)


@contextmanager
def failing(name, condition):
    """Make `os.NAME` raise EIO from the instant on at which a condition is true."""
    real = getattr(os, name)

    def call(*words, **options):
        if condition():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*words, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, name, call)
        yield


def grown(store, rows):
    """True when the store has so many rows."""
    return lambda: Store.open(store).rows == rows


def inputs(folder):
    for name, seed in (("old", 1), ("new", 2)):
        (folder / f"{name}.svm").write_text(svmlight_text(*random_rows(50, 20, seed)))
    target = folder / "store"
    convert([str(folder / "old.svm")], target, ConvertConfig(values="float32", features=20, classes=("-1", "1")))
    return target, str(folder / "new.svm")


@pytest.mark.parametrize("resume", [False, True])
def test_rows_are_not_appended_twice(tmp_path, resume):
    target, new = inputs(tmp_path)
    shutil.copytree(target, tmp_path / "undisturbed")
    expected = folder_bytes(convert([new], tmp_path / "undisturbed", existing=APPEND).path)
    with (
        failing("fsync", grown(target, 100)),
        pytest.raises(PublishedError, match=r"store: the new state is in place.*run the same command again"),
    ):
        convert([new], target, existing=APPEND)
    assert Store.open(target).rows == 100
    assert convert([new], target, existing=Existing(append=True, resume=resume)).rows == 100
    assert folder_bytes(target) == expected
    assert not (tmp_path / "store.unfinished").exists()
    assert convert([new], target, existing=APPEND).rows == 150  # appended again on purpose


def test_rows_of_a_pipe_are_in_the_store(tmp_path):
    target, new = inputs(tmp_path)
    pipe = tmp_path / "pipe.svm"
    os.mkfifo(pipe)
    content = Path(new).read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    with (
        failing("fsync", grown(target, 100)),
        pytest.raises(PublishedError, match=r"is in place.*do not convert its rows again"),
    ):
        convert([str(pipe)], target, existing=APPEND)
    writer.join()
    assert Store.open(target).rows == 100


def test_a_new_store_is_recognised_and_another_is_not_replaced(tmp_path):
    new, other = tmp_path / "new.svm", tmp_path / "other.svm"
    new.write_text(svmlight_text(*random_rows(50, 20, 1)))
    other.write_text(svmlight_text(*random_rows(30, 20, 2)))
    target = tmp_path / "store"
    with failing("fsync", target.exists), pytest.raises(PublishedError):
        convert([str(new)], target)
    before = folder_bytes(target)
    with pytest.raises(InputError, match=r"exists already"):
        convert([str(other)], target)
    assert folder_bytes(target) == before
    assert convert([str(new)], target).rows == 50
    assert folder_bytes(target) == before
    with pytest.raises(InputError, match=r"exists already"):
        convert([str(new)], target)


def test_what_cannot_be_removed_is_noted(tmp_path):
    target, new = inputs(tmp_path)
    notes = []

    class Noting(Progress):
        def note(self, text):
            notes.append(text)

    with failing("rmdir", grown(target, 100)):
        assert convert([new], target, existing=APPEND, progress=Noting()).rows == 100
    assert [note for note in notes if "store.unfinished~: could not be removed" in note]
    assert convert([new], target, existing=APPEND).rows == 150
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.svm", "old.svm", "store"]


def test_a_model_that_is_in_place(tmp_path):
    model = train(store_of(tmp_path, *random_rows(50, 20, 1)), TrainConfig(lam=0.1)).model
    place = tmp_path / "model"
    with failing("fsync", place.exists), pytest.raises(PublishedError, match=r"model: the new state is in place"):
        model.save(place)
    assert model.load(place).info == model.info


def test_errors_of_auxiliary_files(tmp_path):
    place = tmp_path / "state.json"
    with (
        failing("fsync", place.exists),
        pytest.raises(InputError, match=r"state.json: input/output error") as raised,
        writing_errors(tmp_path),
    ):
        write_atomically(place, b"{}")
    assert not isinstance(raised.value, PublishedError)


def test_a_version_that_is_in_use(tmp_path):
    versions = Versions(tmp_path)
    link = tmp_path / "current"
    with failing("fsync", link.is_symlink), pytest.raises(PublishedError, match=r"current: the new state is in place"):
        versions.switch("2026-11-01T02-00-00")
    assert os.readlink(link) == "2026-11-01T02-00-00"
