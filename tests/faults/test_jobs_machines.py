"""`oocpeg run` with faults of the machine: the model in use stays, and the next run recovers."""

import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from machine import little_memory, small_disk
from places import CLOCKS, MEDDLE, filled, fixtures, holding, mode_of, one_error, wait_for

from ooc_pegasos import Store, verify
from ooc_pegasos.errors import InputError
from ooc_pegasos.jobs import run as running
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.run import run
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.util.locks import locked
from support.file_bytes import folder_bytes
from support.nights import (
    DAY,
    EXPIRING_JOB,
    NOON,
    Outcome,
    after_first_night,
    check_untorn,
    outcome_of,
    put_random_day,
    run_night,
)
from support.rows import random_rows, svmlight_text
from support.soak import in_soak

commands, quick, powerless, disk, closed = fixtures
STEPS: dict[str, tuple[object, str]] = {
    "plan": (running, "plan"),
    "append": (running.JobRun, "append"),
    "expire": (running, "expire"),
    "train": (running, "train"),
    "compare": (running.JobRun, "compare"),
    "publish": (Versions, "publish"),
    "switch": (Versions, "switch"),
    "prune": (Versions, "prune"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the second night comes to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    place = after_first_night(folder, folder / "place")
    assert run_night(place, 3)["outcome"] == "promoted"
    return outcome_of(place)


@contextmanager
def fault_at(step: str, begin: Callable[[], object], patched: pytest.MonkeyPatch) -> Iterator[None]:
    """Something begins just before a step."""
    home, name = STEPS[step]
    original = getattr(home, name)

    def disturbed(*words: object, **named: object) -> object:
        begin()
        return original(*words, **named)

    with patched.context() as one:
        one.setattr(home, name, disturbed)
        yield


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", ["full", "too many files"])
def test_disk_or_descriptors_exhausted_after_a_step(tmp_path, monkeypatch, undisturbed, step, fault):
    """Disk space or file descriptors are exhausted."""
    place = tmp_path / "small"
    with small_disk(place, "16m"):
        after_first_night(tmp_path, place)
        first = os.readlink(place / "models" / "current")
        old = folder_bytes(place / "models" / first)
        ballast, limits = place / "ballast", resource.getrlimit(resource.RLIMIT_NOFILE)

        def begin() -> None:
            if fault == "too many files":
                with open(os.devnull) as file:  # of all numbers that files may have, the next is one too many
                    lowest = file.fileno()
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
                return
            there = os.statvfs(place)
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(there.f_bavail * there.f_frsize, 1))

        ended = None
        with fault_at(step, begin, monkeypatch):
            try:
                record = run_night(place, 3)
            except InputError as error:
                ended = error
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                ballast.unlink(missing_ok=True)
        if ended is None:  # what is left to do needs no room, or cannot fail the run any more
            assert step in ("prune", "publish", "switch") or (fault == "full" and step == "expire")
            assert record["outcome"] == "promoted"
        else:
            assert ("free some space" if fault == "full" else "open files") in str(ended)
        check_untorn(place, {first, undisturbed[0]})
        if os.readlink(place / "models" / "current") == first:
            assert folder_bytes(place / "models" / first) == old
        assert run_night(place, 3)["outcome"] in ("promoted", "unchanged")
        found = outcome_of(place)
        assert found[1:] == undisturbed[1:]
        assert not list(place.glob("*.unfinished*"))
        assert Versions(place / "models").names() == [found[0]]


def test_a_disk_that_is_read_only(tmp_path, quick):
    place = tmp_path / "small"
    with small_disk(place, "16m") as mount:
        after_first_night(tmp_path, place)
        before = folder_bytes(place)
        mount("ro")
        try:
            for words in (["run", place / "job.toml"], ["rollback", place / "models"]):
                assert (
                    "read-only file system" in one_error(quick(*words, code=3), str(place), "write elsewhere").lower()
                )
            quick("run", place / "job.toml", "--dry-run", code=None)  # which writes nothing
        finally:
            mount("rw")
        assert folder_bytes(place) == before


def test_a_disk_that_fills_up_while_files_are_appended(tmp_path, quick):
    """Text with an unusual compression ratio, for which the estimate is too small."""
    place = tmp_path / "small"
    with small_disk(place, "24m"):
        after_first_night(tmp_path, place)
        before, store = os.readlink(place / "models" / "current"), folder_bytes(place / "clicks.store")
        text = (svmlight_text(*random_rows(50, 60, 4, 0.2)) * 15_000).encode()
        packed = tmp_path / "incoming" / "day-4.svm.gz"
        packed.write_bytes(gzip.compress(text))
        assert len(text) > 20 * packed.stat().st_size
        os.utime(packed, (time.time(),) * 2)
        (tmp_path / "small" / "job.toml").write_text(EXPIRING_JOB.replace("expire_days = 1.5", ""))
        one_error(quick("run", place / "job.toml", code=3), "the disk is full", "free some space")
        assert os.readlink(place / "models" / "current") == before
        assert folder_bytes(place / "clicks.store") == store
        assert not list(place.glob("*.unfinished*"))
        packed.unlink()
        quick("run", place / "job.toml")


@pytest.mark.parametrize("lam", ["", "lam = 1e-3"])
def test_estimated_disk_space_suffices(tmp_path, disk, lam):
    """A run completes with the estimated space, and does not begin with less."""
    (disk / "job.toml").write_text(EXPIRING_JOB.replace("lam = 1e-3", lam).replace("features = 60", "features = 2000"))
    (tmp_path / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 9, 0.2)))
    put_random_day(tmp_path, 1, 300, 2000)
    job = Job.load(disk / "job.toml")
    moment = datetime.fromtimestamp(NOON + DAY * 1.5, UTC)
    planned = running.plan(job, moment)
    (one,) = planned.space
    before = folder_bytes(disk)
    with filled(disk, one.needed - 8192), pytest.raises(InputError, match="the run needs about"):
        run(job, now=lambda: moment)
    assert {name for name in folder_bytes(disk) if not name.startswith(("models/", "log", "job.prom"))} == set(
        before
    ) - {"log.jsonl"}
    shutil.rmtree(disk / "models")
    with filled(disk, one.needed + 16384):
        assert run_night(disk, 1)["outcome"] == "promoted"
    assert one.needed < 20 * sum(len(content) for content in folder_bytes(tmp_path / "incoming").values())


def test_folders_and_files_without_write_permission(tmp_path, powerless):
    place = after_first_night(tmp_path, tmp_path / "place")
    os.utime(put_random_day(tmp_path, 3), (time.time(),) * 2)
    (place / "job.toml").write_text(EXPIRING_JOB.replace("expire_days = 1.5", ""))
    before = {name: content for name, content in folder_bytes(place / "models").items() if not name.endswith("lock")}
    chunk = next((place / "clicks.store").glob("chunk-*"))
    version = place / "models" / "current"
    for path, mode, code in (
        (place / "models", 0o555, 3),
        (place, 0o555, 3),
        (place / "clicks.store", 0o555, 3),
        (tmp_path / "incoming" / "day-3.svm", 0, 3),
        (tmp_path / "golden.svm", 0, 3),
        (version / "model", 0, 3),
        (place / "clicks.store" / "manifest.json", 0, 3),
        (chunk, 0, 5),
        (place / "job.toml", 0, 3),
    ):
        with mode_of(path, mode):
            said = one_error(powerless("run", place / "job.toml", "-q", code=code), path.name)
        assert "ermission denied" in said, said
        left = {name: content for name, content in folder_bytes(place / "models").items() if name in before}
        assert left == before, path
        assert verify(Store.open(place / "clicks.store")).problems == []
    powerless("run", place / "job.toml")
    assert Store.open(place / "clicks.store").rows == 2000


@pytest.mark.parametrize("accident", MEDDLE)
def test_an_input_that_changes_while_it_is_appended(tmp_path, monkeypatch, undisturbed, accident):
    from ooc_pegasos.readers.svmlight import SvmlightReader

    place = after_first_night(tmp_path, tmp_path / "place")
    (place / "job.toml").write_text(EXPIRING_JOB.replace("[convert]", "[convert]\nblock_size = 5000\nthreads = 1"))
    source = tmp_path / "incoming" / "day-3.svm"
    content, moment = source.read_bytes(), source.stat()
    first, store = os.readlink(place / "models" / "current"), folder_bytes(place / "clicks.store")
    read, calls = SvmlightReader.read, [0]

    def meddle(reader: SvmlightReader, task: object) -> object:
        if os.path.basename(reader.sources[0].name) == source.name:  # reference sets are read before
            calls[0] += 1
            if calls[0] == 1:
                MEDDLE[accident](source)
        return read(reader, task)

    with monkeypatch.context() as patched:
        patched.setattr(SvmlightReader, "read", meddle)
        with pytest.raises(InputError, match=r"day-3\.svm(:\d+)?: .*;"):
            run_night(place, 3)
    assert os.readlink(place / "models" / "current") == first
    assert folder_bytes(place / "clicks.store") == store
    source.write_bytes(content)
    os.utime(source, ns=(moment.st_atime_ns, moment.st_mtime_ns))
    assert run_night(place, 3)["outcome"] == "promoted"
    assert outcome_of(place)[1:] == undisturbed[1:]


@pytest.mark.parametrize("turn", in_soak(["backwards"], ["backwards", "jumping", "standing still"]))
def test_clocks_that_go_wrong(tmp_path, quick, turn):
    """The model is the same; that versions stay in order is seen in tests/integration/test_jobs.py."""
    for name in ("good", "bad"):
        place = tmp_path / name
        place.mkdir()
        (place / "job.toml").write_text(EXPIRING_JOB.replace("expire_days = 1.5", ""))
        (tmp_path / "golden.svm").write_text(svmlight_text(*random_rows(100, 60, 9, 0.2)))
        put_random_day(tmp_path, 1)
        if name == "good":
            quick("run", place / "job.toml")
        else:
            command = [sys.executable, "-c", CLOCKS, turn, "run", str(place / "job.toml")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            record = json.loads((place / "models" / "current" / "run.json").read_text())
            assert min(record["seconds"].values()) >= 0
    assert outcome_of(tmp_path / "good")[1:] == outcome_of(tmp_path / "bad")[1:]


@contextmanager
def at_work(folder: Path, place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the job, and waits while it trains."""
    (place / "job.toml").write_text(
        EXPIRING_JOB.replace(
            "tolerance = 1e-3", "tolerance = 1e-15\nmax_epochs = 100000000\nalgorithm = 'sgd-s'"
        ).replace("expire_days = 1.5", "")
    )
    with holding(folder, "run", place / "job.toml") as child:
        wait_for(place / "models" / ".lock", child)
        while not (place / "models" / ".run" / "checkpoint" / "training.checkpoint").exists():
            assert child.poll() is None
            time.sleep(0.01)
        yield child


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_second_process_after_the_first_is_killed(tmp_path, quick, ending):
    """The error of the second process names the first; when that is gone, the lock is free."""
    place = after_first_night(tmp_path, tmp_path / "place")
    first = os.readlink(place / "models" / "current")
    model = (place / "models" / first / "model").read_bytes()
    with at_work(tmp_path, place) as child:
        for words in (["run", place / "job.toml"], ["rollback", place / "models"]):
            one_error(quick(*words, code=6), f"process {child.pid} is at work on it", "wait for it or stop it")
        child.send_signal(ending)
        assert child.wait() == (-ending if ending == signal.SIGKILL else 130)
    check_untorn(place, {first})
    assert (place / "models" / first / "model").read_bytes() == model
    if ending != signal.SIGKILL:
        newest = sorted((place / "models" / "runs").glob("*.json"))[-1]
        record = json.loads(newest.read_text())
        assert (record["outcome"], record["exit_code"]) == ("interrupted", 130)
    (place / "job.toml").write_text(EXPIRING_JOB.replace("expire_days = 1.5", ""))
    quick("run", place / "job.toml")
    assert os.readlink(place / "models" / "current") != first
    assert Store.open(place / "clicks.store").rows == 2000


def test_rows_can_be_appended_while_a_job_trains(tmp_path, quick):
    """The lock of the store is not held during training, which uses the rows from its start."""
    place = after_first_night(tmp_path, tmp_path / "place")
    with at_work(tmp_path, place) as child:
        put_random_day(tmp_path, 5)
        quick("convert", tmp_path / "incoming" / "day-5.svm", "-o", place / "clicks.store", "--append")
        time.sleep(0.1)
        assert child.poll() is None
    assert Store.open(place / "clicks.store").rows == 3000
    (place / "job.toml").write_text(EXPIRING_JOB.replace("expire_days = 1.5", ""))
    quick("run", place / "job.toml")
    assert Store.open(place / "clicks.store").rows == 3000
    assert len(Versions(place / "models").names()) == 1


def test_a_store_that_is_in_use(tmp_path, undisturbed):
    """The store is in use when rows expire: they were appended, and are not appended again."""
    from ooc_pegasos.errors import LockedError

    place = after_first_night(tmp_path, tmp_path / "place")
    lock = place / "clicks.store.unfinished" / "lock"

    def expire_while_locked(store: Path, before_ns: int) -> int:
        with locked(lock, "another"):
            return expire(store, before_ns)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "expire", expire_while_locked)
        with pytest.raises(LockedError, match=f"process {os.getpid()} is at work"):
            run_night(place, 3)
    check_untorn(place, {min(Versions(place / "models").names())})
    assert run_night(place, 3)["outcome"] == "promoted"
    assert outcome_of(place) == undisturbed


@pytest.mark.disk  # files in memory would count
@pytest.mark.parametrize("megabytes", in_soak([200], [120, 160, 200, 260, 320]))
@pytest.mark.parametrize("step", ["convert", "train"])
def test_out_of_memory(tmp_path, oocpeg, step, megabytes):
    """With too large a memory budget the run is killed or fails, and resumes with a smaller one."""
    place = after_first_night(tmp_path, tmp_path / "place")
    small = EXPIRING_JOB.replace("expire_days = 1.5", "").replace("features = 60", "features = 1000")
    shutil.rmtree(place / "clicks.store")
    shutil.rmtree(place / "models")
    (place / "job.toml").write_text(small)
    oocpeg("run", place / "job.toml")
    first = os.readlink(place / "models" / "current")
    values = np.random.default_rng(5).random((200, 200))
    lines = [
        f"{1 - 2 * (i % 2)} " + " ".join(f"{5 * j + 1}:{v:.3f}" for j, v in enumerate(row))
        for i, row in enumerate(values)
    ]
    (tmp_path / "incoming" / "large.svm").write_text(("\n".join(lines) + "\n") * 150)
    much = small.replace(f"[{step}]", f'[{step}]\nmemory = "64GB"')
    if step == "train":
        much = much.replace("[train]", '[train]\nloading = "read"').replace("[convert]", '[convert]\nmemory = "32MB"')
    (place / "job.toml").write_text(much)
    with little_memory(megabytes << 20) as enter:
        done = oocpeg("run", place / "job.toml", code=None, preexec_fn=enter)
    check_untorn(place, {first, *([] if done.returncode else Versions(place / "models").names())})
    if done.returncode:
        assert done.returncode in (-signal.SIGKILL, 3), (done.returncode, done.stderr)
        if done.returncode == 3:
            one_error(done, "memory")
    (place / "job.toml").write_text(small.replace("[convert]", '[convert]\nmemory = "64MB"'))
    oocpeg("run", place / "job.toml")
    assert Store.open(place / "clicks.store").rows == 32_000
    assert os.readlink(place / "models" / "current") != first
    assert not list(place.glob("*.unfinished*"))
