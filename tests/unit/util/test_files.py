"""Files are opened through no link that somebody else made, and a temporary file belongs to one writer."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.conversion.buckets import Spill
from ooc_pegasos.conversion.journal import Journal
from ooc_pegasos.conversion.pipeline import convert
from ooc_pegasos.errors import InputError
from ooc_pegasos.jobs.run import run
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.store.chunk_file import ChecksummedFile
from ooc_pegasos.training.api import train
from ooc_pegasos.util.files import create_file, cut_file, open_in_place, replacing, write_atomically
from ooc_pegasos.util.locks import making
from support.nights import clock_of, job_of, put_day
from support.rows import random_rows
from support.stores import store_of

PRECIOUS = b"precious" * 100
KINDS = {
    "symbolic": "is a symbolic link",
    "dangling": "is a symbolic link",
    "hard": "is a hard link to a file that has other names",
    "pipe": "is not a regular file",
}


@pytest.fixture
def precious(tmp_path):
    """A file that nothing may be written to, and a name at which nothing may be created."""
    path = tmp_path / "precious"
    path.write_bytes(PRECIOUS)
    yield path
    assert path.read_bytes() == PRECIOUS
    assert not (tmp_path / "nothing").exists()


def plant(kind, precious, path):
    """Put a link or a pipe where a file is going to be opened."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard":
        os.link(precious, path)
    else:
        path.symlink_to(precious if kind == "symbolic" else precious.with_name("nothing"))


def small_store(tmp_path):
    return store_of(tmp_path, *random_rows(60, 9, 3, 0.5))


# --- opened in place ----------------------------------------------------------------------------


def make_model(tmp_path):
    with making(tmp_path / "model"):
        raise AssertionError("the lock file was opened")


def train_with_checkpoint(tmp_path):
    train(small_store(tmp_path), TrainConfig(lam=0.1), checkpoint=tmp_path / "ck")


LOCKS = {
    "new.unfinished/lock": lambda tmp_path: convert(
        [str(small_store(tmp_path).path.parent / "in.svm")], tmp_path / "new"
    ),
    "store.unfinished/lock": lambda tmp_path: expire(tmp_path / "store", 0),
    "ck/lock": train_with_checkpoint,
    ".model.lock": make_model,
    "models/.lock": lambda tmp_path: run(job_of(tmp_path), now=clock_of(1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_that_are_links(tmp_path, precious, name, kind):
    path = tmp_path / name
    plant(kind, precious, path)
    if kind == "dangling" and path.parent.name.endswith(".unfinished"):
        (path.parent / "plan.json").write_text("{}")  # or the folder would be refused as somebody else's
    with pytest.raises(InputError) as refused:
        LOCKS[name](tmp_path)
    assert str(refused.value) == f"{path}: {KINDS[kind]}; remove it or choose another name"
    assert os.path.lexists(path)


OPENED = {
    "journal": lambda path: Journal(path),
    "bucket": lambda path: Spill(path.parent)._descriptor(0),
    "bucket that is cut": lambda path: cut_file(path, 5),
    "file that is cut as it is opened": lambda path: open_in_place(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", OPENED)
def test_scratch_files_that_are_links(tmp_path, precious, what, kind):
    path = tmp_path / "bucket-000000.rows"
    plant(kind, precious, path)
    with pytest.raises(OSError, match=KINDS[kind]):
        OPENED[what](path)


@pytest.mark.parametrize("kind", KINDS)
def test_new_files_take_the_place_of_links(tmp_path, precious, kind):
    for name, create in (("chunk", ChecksummedFile), ("rows", create_file)):
        plant(kind, precious, tmp_path / name)
        file = create(tmp_path / name)
        file.write(b"new")
        file.close()
        assert (tmp_path / name).read_bytes() == b"new"
        assert not (tmp_path / name).is_symlink()


# --- files that the user names ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_is_a_link_is_replaced(tmp_path, precious, kind):
    path = tmp_path / "current.model"
    plant(kind, precious, path)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


def test_commands_replace_an_output_that_is_a_link(tmp_path, precious, oocpeg):
    small_store(tmp_path)
    oocpeg("train", "store", "-o", "model", "--lambda", "0.1", "-q")
    for name, words in {
        "current.model": ("train", "store", "--lambda", "0.1", "--force"),
        "scores.csv": ("predict", "model", "store", "--force"),
    }.items():
        plant("symbolic", precious, tmp_path / name)
        oocpeg(*words[:-1], "-o", name, code=3)  # something is there
        assert (tmp_path / name).is_symlink()
        oocpeg(*words, "-o", name)
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard"])
def test_a_log_that_is_a_link_is_refused(tmp_path, precious, monkeypatch, kind):
    log = tmp_path / "log.jsonl"
    plant(kind, precious, log)
    with pytest.raises(InputError) as refused:
        train(small_store(tmp_path), TrainConfig(lam=0.1), log=log)
    assert str(refused.value) == f"{log}: {KINDS[kind]}; remove it or choose another name"
    put_day(tmp_path, 1)
    notes, progress = [], Progress()
    monkeypatch.setattr(progress, "note", notes.append)
    assert run(job_of(tmp_path), now=clock_of(1), progress=progress)["outcome"] == "promoted"
    assert f"the log could not be written: {log}: {KINDS[kind]}" in notes


def test_a_log_may_be_a_pipe(tmp_path):
    """With a reader, also by a link such as /dev/stdout; without one it is refused at once."""
    store, config = small_store(tmp_path), TrainConfig(lam=0.1, tolerance=0.5)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe"):
        train(store, config, log=tmp_path / "pipe")
    heard = []
    reader = threading.Thread(target=lambda: heard.extend((tmp_path / "pipe").read_text().splitlines()))
    reader.start()
    while True:  # until it reads
        with suppress(OSError):
            os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))
            break
    reader.join()
    reader = threading.Thread(target=lambda: heard.extend((tmp_path / "pipe").read_text().splitlines()))
    reader.start()
    waiting = os.open(tmp_path / "pipe", os.O_RDWR)  # so that there is a reader in any case
    train(store, config, log=tmp_path / "pipe")
    os.close(waiting)
    reader.join()
    assert heard
    assert json.loads(heard[0])["epoch"] == 1
    command = [sys.executable, "-m", "ooc_pegasos", "train", str(store.path), "-o", str(tmp_path / "model"), "-q"]
    command += ["--lambda", "0.1", "--log", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[0])["epoch"] == 1


# --- temporary files ----------------------------------------------------------------------------


def test_temporary_files_of_processes_with_one_pid(tmp_path):
    """Two containers may have processes of the same pid: each writes a file of its own."""
    path = tmp_path / "q.csv"
    with replacing(path) as one, replacing(path) as other:
        assert len({*os.listdir(tmp_path)}) == 2
        one.write(b"one")
        other.write(b"other")
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["q.csv"]


def test_left_over_temporary_files_are_removed(tmp_path, precious):
    path, in_use = tmp_path / "q.csv", tmp_path / ".q.csv.00000000000000aa.tmp"
    left = [".q.csv.123.tmp", ".q.csv.0123456789abcdef.tmp"]
    others = [".q.csv.backup.tmp", ".q.0123456789abcdef.tmp", "q.csv.0123456789abcdef.tmp", ".q_csv.12.tmp"]
    for name in (*left, *others, in_use.name):
        (tmp_path / name).write_bytes(b"some")
    plant("symbolic", precious, tmp_path / ".q.csv.ab.tmp")
    plant("pipe", precious, tmp_path / ".q.csv.cd.tmp")
    with in_use.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_atomically(path, b"new")
        assert sorted(os.listdir(tmp_path)) == sorted(
            [*others, in_use.name, ".q.csv.ab.tmp", ".q.csv.cd.tmp", "q.csv", "precious"]
        )
    write_atomically(path, b"newer")
    assert not in_use.exists()


def test_a_killed_writer_leaves_a_file_that_the_next_removes(tmp_path):
    code = "import os, sys\nfrom pathlib import Path\nfrom ooc_pegasos.util.files import replacing\n"
    code += "with replacing(Path(sys.argv[1])) as file:\n    file.write(b'x')\n    os.kill(os.getpid(), 9)"
    path = tmp_path / "model"
    for _time in range(2):
        subprocess.run([sys.executable, "-c", code, str(path)], check=False)
        assert len(os.listdir(tmp_path)) == 1  # not of the one before
    write_atomically(path, b"new")
    assert os.listdir(tmp_path) == ["model"]
