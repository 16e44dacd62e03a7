"""Faults of the machine: each ends with its exit code and a one-line message, and damages nothing."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from machine import little_memory
from places import CLOCKS, MEDDLE, files_without_locks, filled, fixtures, holding, mode_of, one_error, spread, wait_for

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, convert, train, verify
from support.file_bytes import folder_bytes
from support.rows import random_rows
from support.soak import in_soak
from support.stores import least_memory, store_of

commands, quick, powerless, disk, closed = fixtures
TRAIN = ["--lambda", "1e-4", "--tolerance", "1e-12", "--max-epochs", "8", "--quiet"]


# --- full disks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["new", "append", "force"])
def test_converting_to_a_disk_that_fills_up(tmp_path, disk, quick, mode):
    """At any point, the old store or none remains without other files, and running again succeeds."""
    source, target = spread(8000, tmp_path), disk / "store"
    words = ["convert", source, "-o", target, "--chunk-size", "100kB"] + ([f"--{mode}"] if mode != "new" else [])
    if mode != "new":
        convert([str(spread(500, tmp_path, "old.svm", 2))], target, ConvertConfig(shuffle=False))
    before = folder_bytes(disk)
    full = 0
    rng = random.Random(3)
    for attempt in range(in_soak(5, 60)):
        free = int((attempt + rng.random()) / in_soak(5, 60) * 1.2e6)
        with filled(disk, free):
            done = quick(*words, code=None)
            if done.returncode == 0:
                break
            assert done.returncode == 3
            one_error(done, "the disk is full", str(target), "free some space")
            full += 1
        assert folder_bytes(disk) == before
    assert full >= 2
    assert verify(Store.open(target)).problems == []


@pytest.mark.parametrize("algorithm", ["sgd-s", "sdca"])
@pytest.mark.parametrize("what", ["model", "checkpoint", "log", "scratch"])
def test_training_with_a_disk_that_is_full(tmp_path, disk, quick, algorithm, what):
    store = store_of(tmp_path, *random_rows(4000, 300, 1), chunk_size=20_000)
    words = ["train", store.path, *TRAIN, "--algorithm", algorithm, "--force"]
    quick(*words, "-o", disk / "model" if what == "model" else "model", code=4)
    places = {"checkpoint": ["--checkpoint", disk / "c"], "log": ["--log", disk / "log"], "model": []}
    memory = ["--memory", str(least_memory(store))]
    words += ["-o", disk / "model" if what == "model" else "model"]
    words += {**places, "scratch": ["--scratch", disk, *memory]}[what]
    before, old = folder_bytes(disk), (disk if what == "model" else tmp_path).joinpath("model").read_bytes()
    if what == "checkpoint":
        words += ["--checkpoint-epochs", "1"]
    with filled(disk, 0):
        done = quick(*words, code=None)
        if what == "scratch" and algorithm == "sgd-s":  # which keeps nothing of rows
            assert done.returncode == 4
        else:
            assert done.returncode == 3, done.stderr
            one_error(done, "the disk is full", str(disk), "free some space")
    assert {name: content for name, content in files_without_locks(disk).items() if content or name in before} == before
    if done.returncode == 3:
        assert (disk if what == "model" else tmp_path).joinpath("model").read_bytes() == old
    again = quick(*words, *(["--resume"] if what == "checkpoint" else []), code=4)
    assert "Traceback" not in again.stderr


def test_a_checkpoint_that_no_longer_fits(tmp_path, disk, quick):
    """The last checkpoint stays, and the run resumes from it to the same model."""
    store = store_of(tmp_path, *random_rows(4000, 300, 1), chunk_size=20_000)
    words = ["train", store.path, *TRAIN, "--algorithm", "sdca", "--checkpoint", disk / "c", "--checkpoint-epochs", "2"]
    quick(*words, "-o", "m", "--max-epochs", "4", code=4)
    shutil.copytree(disk / "c", tmp_path / "c")
    words[words.index(disk / "c")] = tmp_path / "c"
    quick(*words, "-o", "whole", "--resume", code=4)
    words[words.index(tmp_path / "c")] = disk / "c"
    kept = files_without_locks(disk)
    with filled(disk, 30_000):
        one_error(quick(*words, "-o", "model", "--resume", code=3), "the disk is full", str(disk / "c"))
    assert files_without_locks(disk) == kept
    quick(*words, "-o", "model", "--resume", code=4)
    assert (tmp_path / "model").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_scores_to_a_disk_that_is_full(tmp_path, disk, quick, ending):
    source = spread(20_000, tmp_path)
    train(convert([str(source)], tmp_path / "store"), TrainConfig(lam=0.1)).model.save(tmp_path / "model")
    target = disk / f"scores.{ending}"
    target.write_bytes(b"older ones")
    with filled(disk, 100_000):
        one_error(quick("predict", "model", source, "-o", target, "--force", code=3), "the disk is full", str(target))
    assert folder_bytes(disk) == {target.name: b"older ones"}


def test_a_limit_on_the_size_of_files(tmp_path, oocpeg):
    source = spread(8000, tmp_path)
    convert([str(spread(500, tmp_path, "old.svm", 2))], tmp_path / "store")
    before = folder_bytes(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = oocpeg("convert", source, "-o", "store", "--force", code=3, preexec_fn=limit)
    one_error(done, "file too large", "ulimit -f")
    assert folder_bytes(tmp_path) == before


# --- files and folders that cannot be written or read ------------------------------------------------------


def test_output_folders_that_cannot_be_written(tmp_path, closed):
    source, place = spread(500, tmp_path), tmp_path / "place"
    store = convert([str(source)], place / "store")
    train(store, TrainConfig(lam=0.1)).model.save(place / "model")
    (place / "c").mkdir()
    before = folder_bytes(place)
    with closed() as (oocpeg, problem):
        for words in (
            ["convert", source, "-o", place / "new"],
            ["convert", source, "-o", place / "store", "--append"],
            ["convert", source, "-o", place / "store", "--force"],
            ["train", place / "store", "-o", place / "new", "--lambda", "0.1"],
            ["train", place / "store", "-o", place / "model", "--lambda", "0.1", "--force"],
            ["train", place / "store", "-o", "m", "--lambda", "0.1", "--log", place / "log"],
            ["train", place / "store", "-o", "m", "--lambda", "0.1", "--checkpoint", place / "d"],
            ["predict", place / "model", source, "-o", place / "scores.csv"],
            ["predict", place / "model", source, "-o", place / "scores.parquet"],
        ):
            done = oocpeg(*words, code=3)
            assert problem in one_error(done, str(place), "write elsewhere").lower()
        oocpeg("verify", place / "store")  # which writes nothing
        oocpeg("evaluate", place / "model", place / "store")
        oocpeg("train", place / "store", "-o", "m", "--lambda", "0.1")
    assert folder_bytes(place) == before
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_read(tmp_path, powerless):
    source = spread(3000, tmp_path)
    store = convert([str(source)], tmp_path / "store", ConvertConfig(chunk_size=20_000))
    train(store, TrainConfig(lam=0.1)).model.save(tmp_path / "model")
    chunk = store.path / store.manifest.chunks[2].file
    before = folder_bytes(tmp_path)
    train_it = ["train", "store", "-o", "m", "--lambda", "0.1"]
    for file, code, *commands in (
        (chunk, 5, train_it, [*train_it, "--loading", "read"], ["evaluate", "model", "store"], ["verify", "store"]),
        (store.path / "manifest.json", 3, train_it, ["info", "store"], ["convert", source, "-o", "store", "--append"]),
        (tmp_path / "model", 3, ["evaluate", "model", "store"], ["inspect", "model"]),
        (source, 3, ["convert", source, "-o", "new"], ["predict", "model", source, "-o", "s.csv"]),
    ):
        with mode_of(file, 0):
            for words in commands:
                done = powerless(*words, code=code)
                assert "ermission denied" in done.stderr + done.stdout
                assert str(file.name) in done.stderr + done.stdout
                if words[0] != "verify":
                    one_error(done, file.name)
    assert folder_bytes(tmp_path) == before


# --- files that change --------------------------------------------------------------------------


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("accident", MEDDLE)
def test_an_input_that_changes_while_it_is_converted(tmp_path, monkeypatch, accident, append):
    """A change at any block is an error; the old store is unchanged, and the next conversion succeeds."""
    from ooc_pegasos.errors import InputError
    from ooc_pegasos.readers.svmlight import SvmlightReader

    source = spread(1500, tmp_path)
    content, moment = source.read_bytes(), source.stat()
    target = tmp_path / "store"
    if append:
        convert([str(spread(300, tmp_path, "old.svm", 2))], target)
    before = folder_bytes(target) if append else {}
    config, existing = ConvertConfig(block_size=20_000, threads=1), Existing(append=append)
    read, calls = SvmlightReader.read, [0]
    with monkeypatch.context() as patched:
        patched.setattr(SvmlightReader, "read", lambda *words: calls.__setitem__(0, calls[0] + 1) or read(*words))
        convert([str(source)], tmp_path / "other", config)
    blocks = calls[0]
    assert blocks > 4
    for at in range(1, blocks - 1, in_soak(9, 1)):  # the first read may be a look at what labels are
        calls[0] = 0

        def meddle(reader: SvmlightReader, task: object, at: int = at) -> object:
            calls[0] += 1
            if calls[0] == at + 1:
                MEDDLE[accident](source)
            return read(reader, task)

        with monkeypatch.context() as patched:
            patched.setattr(SvmlightReader, "read", meddle)
            with pytest.raises(InputError, match=r"in\.svm(:\d+)?: .*;") as raised:
                convert([str(source)], target, config, existing=existing)
        assert raised.value.exit_code == 3
        assert (folder_bytes(target) if append else target.exists()) == (before if append else False)
        assert not (tmp_path / "store.unfinished").exists()
        source.write_bytes(content)
        os.utime(source, ns=(moment.st_atime_ns, moment.st_mtime_ns))
    convert([str(source)], target, config, existing=existing)
    assert verify(Store.open(target)).problems == []


# --- clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", in_soak(["backwards", "standing still"], ["backwards", "jumping", "standing still"]))
def test_clocks_that_go_wrong(tmp_path, quick, turn):
    """Results do not depend on the clock."""
    source = spread(3000, tmp_path)
    quick("convert", source, "-o", "store")
    for name in ("sgd-s", "sdca"):
        quick("train", "store", "-o", name, *TRAIN, "--algorithm", name, code=4)

    def turned(*words: object, code: int) -> None:
        command = [sys.executable, "-c", CLOCKS, turn, *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20)
        assert done.returncode == code, (done.stdout, done.stderr)

    turned("convert", source, "-o", "store2", code=0)
    assert folder_bytes(tmp_path / "store2") == folder_bytes(tmp_path / "store")
    for name in ("sgd-s", "sdca"):
        words = ["train", "store", "-o", "again", "--force", *TRAIN[:-1], "--algorithm", name, "--log", "log"]
        turned(*words, "--profile", "--json", "--checkpoint", f"c-{name}", code=4)
        assert (tmp_path / "again").read_bytes() == (tmp_path / name).read_bytes()
    turned("verify", "store", code=0)
    turned("evaluate", "again", "store", code=0)
    turned("predict", "again", source, "-o", "s.csv", "--json", code=0)


# --- two at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["new", "append", "force"])
def test_two_conversions_at_once(tmp_path, quick, mode):
    """The error of the second process names the first; when that is killed, the lock is free."""
    source = spread(300, tmp_path)
    options = [] if mode == "new" else [f"--{mode}"]
    if mode != "new":
        convert([str(source)], tmp_path / "store")
    before = folder_bytes(tmp_path / "store") if mode != "new" else {}
    os.mkfifo(tmp_path / "pipe")
    with holding(tmp_path, "convert", "pipe", "-o", "store", *options) as child, open(tmp_path / "pipe", "w") as pipe:
        pipe.write("1 1:1\n-1 1:2\n")
        pipe.flush()
        wait_for(tmp_path / "store.unfinished" / "lock", child)
        for _ in range(2):
            done = quick("convert", source, "-o", "store", *options, code=6)
            one_error(done, "store", f"process {child.pid} is at work on it", "wait for it or stop it")
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert (folder_bytes(tmp_path / "store") if mode != "new" else {}) == before
        quick("convert", source, "-o", "store", *options)
    assert verify(Store.open(tmp_path / "store")).problems == []
    assert not (tmp_path / "store.unfinished").exists()


def test_two_runs_in_one_folder_of_checkpoints(tmp_path, quick):
    store = store_of(tmp_path, *random_rows(3000, 300, 1))
    words = ["train", store.path, "-o", "m", "--lambda", "1e-7", "--tolerance", "1e-12", "--checkpoint", "c"]
    words += ["--checkpoint-epochs", "1", "--algorithm", "sgd-s", "--quiet"]
    with holding(tmp_path, *words, "--max-epochs", "1000000") as child:
        wait_for(tmp_path / "c" / "lock", child)
        for resume in ([], ["--resume"]):
            one_error(quick(*words, *resume, code=6), f"process {child.pid} is at work on it", "wait for it or stop it")
        while not (tmp_path / "c" / "training.checkpoint").exists():
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        quick(*words, "--max-epochs", "3", "--resume", code=4)
    Model.load(tmp_path / "m")


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.disk  # files in memory would count
@pytest.mark.parametrize("megabytes", in_soak([200], [120, 160, 200, 260, 320]))
@pytest.mark.parametrize("command", ["convert", "train"])
def test_out_of_memory(tmp_path, oocpeg, command, megabytes):
    """With too large a memory budget a command is killed or fails; old files stay."""
    rng = np.random.default_rng(5)
    lines = [
        f"{1 - 2 * (i % 2)} " + " ".join(f"{5 * j + 1}:{v:.3f}" for j, v in enumerate(rng.random(200)))
        for i in range(200)
    ]
    source = tmp_path / "in.svm"
    source.write_text(("\n".join(lines) + "\n") * 150)
    store = convert([str(spread(500, tmp_path, "old.svm", 2))], tmp_path / "store")
    if command == "train":
        convert([str(source)], tmp_path / "large")
    train(store, TrainConfig(lam=0.1)).model.save(tmp_path / "model")
    before = {name: content for name, content in files_without_locks(tmp_path).items() if ".unfinished" not in name}
    words = {
        "convert": ["convert", source, "-o", "store", "--force", "--memory", "64GB"],
        "train": [
            "train",
            "large",
            "-o",
            "model",
            "--force",
            "--lambda",
            "1e-4",
            "--memory",
            "64GB",
            "--loading",
            "read",
        ],
    }[command]
    with little_memory(megabytes << 20) as enter:
        done = oocpeg(*words, code=None, preexec_fn=enter)
    left = {name: content for name, content in files_without_locks(tmp_path).items() if ".unfinished" not in name}
    if done.returncode == 0:
        return  # it was enough
    assert done.returncode in (-signal.SIGKILL, 3), (done.returncode, done.stderr)
    if done.returncode == 3:
        one_error(done, "memory", "give a smaller --memory")
    if command == "train" and done.returncode == -signal.SIGKILL and left != before:  # when all was done
        assert {name: left[name] for name in left if name != "model"}.items() <= before.items()
        Model.load(tmp_path / "model")
        return
    assert left == before
    if command == "convert":
        oocpeg(*words[:-1], "32MB")
        assert verify(Store.open(tmp_path / "store")).problems == []
