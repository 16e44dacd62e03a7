"""Locks: one process at a time, with flock and without; the lock of an ended process has a single successor."""

import errno
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ooc_pegasos.errors import LockedError
from ooc_pegasos.util import locks
from ooc_pegasos.util.locks import Owner, locked, making
from support.nights import job_of, job_rows, put_day
from support.preloaded import library_in, with_library
from support.rows import svmlight_text
from support.soak import in_soak


def no_flock(code=errno.ENOLCK):
    def fail(_descriptor: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def hold(path, flock=None, what="store", note=None):
    return locked(path, what, note, flock=flock or no_flock())


def record_of(path):
    return json.loads(path.read_text())


def write_record(path, **changes):
    """The record of this process with some facts changed."""
    values = json.loads(Owner.this_process().record()) | {"has_flock": False} | changes
    path.write_text(json.dumps(values))


CHILD = """
import errno, os, signal, sys, threading, time
from ooc_pegasos.errors import LockedError
from ooc_pegasos.util.locks import locked
from pathlib import Path

def no_flock(_descriptor, _operation):
    raise OSError(errno.ENOLCK, "no locks available")
"""
HOLDER = """
with locked(Path(sys.argv[1]), "store", flock=no_flock):
    print("held", flush=True)
    time.sleep(60)
"""


_children = []


def child(script, *words):
    command = [sys.executable, "-c", CHILD + script, *map(str, words)]
    _children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return _children[-1]


@pytest.fixture(autouse=True)
def _nobody_is_left():
    yield
    while _children:
        with _children.pop() as left:
            left.kill()


def killed_holder(path):
    """Have a process take the lock, and kill it; it is not waited for, so it is a zombie."""
    holder = child(HOLDER, path)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match=f"process {holder.pid} is at work on it; wait for it or stop it"), hold(path):
        pass
    holder.kill()
    while b") Z " not in Path(f"/proc/{holder.pid}/stat").read_bytes():
        time.sleep(0.001)
    return holder


# --- with and without flock ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_one_at_a_time_without_flock(tmp_path, code):
    path, flock = tmp_path / "new" / "lock", no_flock(code)
    for _time in range(2):
        with hold(path, flock):
            with pytest.raises(LockedError, match=f"store: process {os.getpid()} is at work on it; wait for it or"):
                hold(path, flock).__enter__()
            assert record_of(path)["pid"] == os.getpid()
        assert record_of(path)["pid"] == 0
    assert os.listdir(path.parent) == ["lock"]


def test_a_file_system_without_hard_links_either(tmp_path, monkeypatch):
    def fail(_source, _name):
        raise PermissionError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", fail)
    killed_holder(tmp_path / "lock").wait()
    for _time in range(2):
        with hold(tmp_path / "lock"), pytest.raises(LockedError, match=f"process {os.getpid()} "):
            hold(tmp_path / "lock").__enter__()
    with locked(tmp_path / "other", "store"), pytest.raises(LockedError, match=f"process {os.getpid()} "):
        locked(tmp_path / "other", "store").__enter__()
    assert sorted(os.listdir(tmp_path)) == ["lock", "other"]


def test_a_note_is_given_once(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "noted_devices", set())
    notes = []
    for name in ("one", "other"):
        with hold(tmp_path / name, note=notes.append):
            pass
    assert notes == [f"{tmp_path}: this file system does not support flock; the lock file one is used instead"]
    with locked(tmp_path / "third", "store", notes.append):
        assert len(notes) == 1


def test_other_errors_are_errors(tmp_path):
    with pytest.raises(OSError, match="Input/output"), hold(tmp_path / "lock", no_flock(errno.EIO)):
        pass


def test_with_flock_the_lock_ends_with_the_process(tmp_path):
    path = tmp_path / "lock"
    holder = child(HOLDER.replace(", flock=no_flock", ""), path)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match=f"process {holder.pid} is at work on it"), locked(path, "store"):
        pass
    holder.kill()
    holder.wait()
    with locked(path, "store"):
        pass


def test_flock_that_fails_for_one_of_two(tmp_path):
    """As it does now and then where a server is asked for it: each respects the other."""
    path = tmp_path / "lock"
    with hold(path), pytest.raises(LockedError, match=f"process {os.getpid()} "), locked(path, "store"):
        pass
    with locked(path, "store"), pytest.raises(LockedError, match=f"process {os.getpid()} "), hold(path):
        pass
    with hold(path):
        pass


def test_removing_the_lock_file_releases_the_lock(tmp_path):
    path = tmp_path / "folder" / "lock"
    with hold(path):
        os.rename(path.parent, tmp_path / "gone")  # as a conversion removes its scratch folder
        with hold(path):
            assert record_of(path)["pid"] == os.getpid()
        assert record_of(path)["pid"] == 0


def test_the_lock_of_a_model_is_removed(tmp_path):
    with making(tmp_path / "model"):
        assert os.listdir(tmp_path) == [".model.lock"]
        with pytest.raises(LockedError), making(tmp_path / "model"):
            pass
    assert os.listdir(tmp_path) == []


# --- owners that have ended ---------------------------------------------------------------------


def test_a_killed_holder_is_succeeded(tmp_path):
    path = tmp_path / "lock"
    holder = killed_holder(path)
    with hold(path):  # a zombie has ended
        assert record_of(path)["pid"] == os.getpid()
    holder.wait()
    assert os.listdir(tmp_path) == ["lock"]
    holder = killed_holder(path)
    holder.wait()
    os.utime(path, (2**33, 2**33))  # in the year 2242: clocks do not matter
    with hold(path):
        pass
    assert os.listdir(tmp_path) == ["lock"]


def test_a_pid_that_is_used_again(tmp_path):
    path = tmp_path / "lock"
    killed_holder(path).wait()
    left = record_of(path)
    for pid in (os.getpid(), 1):
        path.write_text(json.dumps(left | {"pid": pid}))  # alive, but started at another time
        with hold(path):
            pass
    write_record(path, pid=1, start=int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]))
    with pytest.raises(LockedError, match="process 1 is at work"), hold(path):
        pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "elsewhere"}, "process 7 on elsewhere is at work on it; wait for it or, if it has ended, remove"),
        ({"namespace": "pid:[7]"}, "process 7 of another container is at work on it; wait for it or, if it has ended,"),
        (
            {"boot": "before", "machine": "cloned"},
            "process 7 is at work on it; wait for it or, if it has ended, remove",
        ),
        ({"boot": "before", "machine": ""}, "process 7 is at work on it; wait for it or, if it has ended, remove"),
    ],
)
def test_holders_on_other_machines_are_respected(tmp_path, changes, words):
    path = tmp_path / "lock"
    write_record(path, pid=7, **changes)
    before = path.read_bytes()
    with pytest.raises(LockedError, match=words) as refused, hold(path):
        pass
    assert str(path) in str(refused.value)
    assert refused.value.exit_code == 6
    assert path.read_bytes() == before
    path.unlink()  # as the message says
    with hold(path):
        pass


def test_a_machine_that_was_started_again(tmp_path):
    path = tmp_path / "lock"
    write_record(path, boot="before", machine=Owner.this_process().machine or "same")
    here = Owner.this_process().machine
    if not here:
        pytest.skip("this machine has no /etc/machine-id")
    with hold(path):
        pass


@pytest.mark.parametrize(
    "content",
    [b"", b"12345", b"[1, 2]", b"\xff" * 600, b"[" * 500, b'{"pid": 1}'],
)
def test_a_record_that_cannot_be_read_is_respected(tmp_path, monkeypatch, content):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)  # it may just be being written
    path = tmp_path / "lock"
    path.write_bytes(content)
    with pytest.raises(LockedError, match=f"the lock file {path} names no process; remove {path} if"), hold(path):
        pass
    with locked(path, "store"):  # with flock it does not matter
        pass


@pytest.mark.parametrize(
    "changes", [{"pid": -1}, {"pid": 2**40}, {"pid": True}, {"host": "\x1b[2J"}, {"token": "../../x"}, {"more": 1}]
)
def test_invalid_records(tmp_path, changes):
    write_record(tmp_path / "lock", **changes)
    assert Owner.parse((tmp_path / "lock").read_bytes()) is None


def test_a_record_that_is_just_being_written_is_waited_for(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    writer = child(
        "time.sleep(0.3); Path(sys.argv[1]).write_text(sys.argv[2])", path, Owner.this_process().record().decode()
    )
    with pytest.raises(LockedError, match=f"process {os.getpid()} "), hold(path):
        pass
    assert writer.wait() == 0


# --- commands -----------------------------------------------------------------------------------

COMMANDS = """
import json, os, sys
from ooc_pegasos.conversion import pipeline as conversion
from ooc_pegasos.training import api as trainer
from ooc_pegasos.scoring import evaluate as evaluation, score as scoring  # once for all commands
from ooc_pegasos.cli.main import main
import ooc_pegasos.jobs.run, ooc_pegasos.conversion.source_check

def is_chunk(path):
    return str(path).endswith(".arrow") and "bucket-" in str(path)

for words in json.loads(sys.argv[1]):
    sys.stdout.flush()
    sys.stderr.write(f"$ {words[0]}\\n")
    sys.stderr.flush()
    child = os.fork()
    if not child:
        if words[-1] == "KILLED":
            words.pop()
            sys.addaudithook(lambda event, facts: event == "open" and is_chunk(facts[0]) and os.kill(os.getpid(), 9))
        sys.argv[1:] = [os.readlink("models/current") if word == "CURRENT" else word for word in words]
        main()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"{words[0]} ends with {code}", flush=True)
"""


@pytest.mark.slow
def test_commands_without_flock_open_no_link(tmp_path):
    """Every command works where flock fails, and says so once; none opens a file to change it through a link."""
    text = svmlight_text(*job_rows(400, 5))
    (tmp_path / "in.svm").write_text(text + "x bad row\n")
    (tmp_path / "more.svm").write_text(svmlight_text(*job_rows(300, 6)))
    (tmp_path / "bad.svm").write_text("nothing\n")
    job_of(tmp_path)
    put_day(tmp_path, 1)
    how = ["--features", "40", "--on-bad-row", "skip"]
    more = ["--max-epochs", "3", "--tolerance", "1e-9", "--checkpoint", "ck", "--checkpoint-epochs", "1"]
    train = ["train", "store", "--lambda", "1e-4", *more]
    lines = [
        ["convert", "in.svm", "-o", "store", *how],
        ["convert", "more.svm", "-o", "store", "--append", "--on-bad-row", "skip"],
        ["convert", "in.svm", "more.svm", "-o", "store", "--force", "--values", "float32", *how],
        ["convert", "bad.svm", "-o", "none"],
        [*train, "-o", "model", "--algorithm", "sdca", "--log", "log.jsonl"],
        [*train, "-o", "model", "--algorithm", "sdca", "--log", "log.jsonl", "--resume", "--force"],
        [*train, "-o", "other", "--algorithm", "sgd-s"],
        *(["predict", "model", "store", "-o", f"scores.{kind}"] for kind in ("csv", "parquet", "arrow")),
        ["run", "nightly.toml"],
        ["rollback", "models", "--to", "CURRENT"],
        ["convert", "in.svm", "-o", "third", *how, "KILLED"],
        ["convert", "in.svm", "-o", "third", *how, "--resume"],
        ["verify", "third"],
        ["convert", "in.svm", "-o", "held", *how],
    ]
    library, listing = library_in(tmp_path), tmp_path / "listing"
    env = with_library(library, FLOCK_ERRNO=errno.ENOLCK, LIST_FOLDER=tmp_path, LIST_FILE=listing, COLUMNS=200)
    command = [sys.executable, "-c", COMMANDS, json.dumps(lines)]
    with hold(tmp_path / "held.unfinished" / "lock"):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    codes = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if " ends with " in line]
    assert codes == ["0", "0", "0", "3", "4", "4", "4", *"00000", "-9", "0", "0", "6"], done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for words, part in zip(lines, done.stderr.split("$ ")[1:], strict=True):
        if words[-1] == "KILLED":
            continue
        noted = part.count("this file system does not support flock; the lock file ")
        assert noted == (0 if part.startswith(("predict", "verify")) or "error: held" in part else 1), done.stderr
    assert f"error: held: process {os.getpid()} is at work on it; wait for it or stop it" in done.stderr
    opened = listing.read_text().splitlines()
    assert [line for line in opened if not line.startswith("safe ")] == []
    for name in (
        "/read.journal",
        "-0000.arrow",
        ".tmp",
        "/lock",
        "log.jsonl",
        "/rows-",
        "/rejected",
    ):
        assert any(name in line for line in opened), name


# --- races --------------------------------------------------------------------------------------

SLOW = """
lock, go = Path(sys.argv[1]), Path(sys.argv[2])

def wait_before_succeeding(event, words):
    if event == "os.link" and str(words[1]).startswith(str(lock) + ".") and not go.exists():
        print("about to succeed", flush=True)
        while not go.exists():
            time.sleep(0.001)

sys.addaudithook(wait_before_succeeding)
try:
    with locked(lock, "store", flock=no_flock):
        print("held", flush=True)
except LockedError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize("then", ["holds it", "has let go", "was killed", "removed the folder"])
def test_a_slow_process_that_read_the_record_of_an_ended_one(tmp_path, then):
    """It has found that the holder has ended, and before it acts on that another process takes the lock."""
    path, go = tmp_path / "folder" / "lock", tmp_path / "go"
    path.parent.mkdir()
    killed_holder(path).wait()
    slow = child(SLOW, path, go)
    assert slow.stdout.readline() == "about to succeed\n"
    with ExitStack() as stack:
        if then == "was killed":
            killed_holder(path).wait()
        else:
            with ExitStack() as inner:
                inner.enter_context(hold(path))
                if then == "removed the folder":
                    os.rename(path.parent, tmp_path / "gone")
                if then != "has let go":
                    stack.push(inner.pop_all())
            if then == "removed the folder":
                stack.enter_context(hold(path))
        go.touch()
        said = slow.stdout.readline()
        slow.wait()
    if then in ("holds it", "removed the folder"):
        assert said.startswith(f"store: process {os.getpid()} is at work on it")
    else:
        assert said == "held\n"
    assert os.listdir(path.parent) == ["lock"]


STEPS = """
path, left = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()

def die_at(last):
    count = 0
    def trace(frame, event, _value):
        nonlocal count
        if not frame.f_code.co_filename.endswith(("locks.py", "files.py")):
            return None
        count += event == "line"
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

for number in range(1, 10**6, int(sys.argv[3])):
    path.write_bytes(left) if left else path.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        sys.settrace(die_at(number))
        with locked(path, "store", flock=no_flock):
            pass
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with locked(path, "store", flock=no_flock):
        pass
    strays = [name for name in os.listdir(path.parent) if name != "lock" and Path(path.parent, name).stat().st_size]
    assert not strays, (number, strays)
    if code != -signal.SIGKILL:
        print(number, code)
        break
"""


@pytest.mark.parametrize("is_new", [True, False])
def test_killed_before_each_line_of_taking_a_lock(tmp_path, is_new):
    """The next process takes the lock, and at most an empty file is left."""
    path, left = tmp_path / "folder" / "lock", tmp_path / "left"
    killed_holder(path).wait()
    left.write_bytes(b"" if is_new else path.read_bytes())
    every = in_soak(5, 1)
    steps, code = child(STEPS, path, left, every).communicate()[0].split()
    assert int(steps) > 100
    assert code == "0"


RACERS = """
lock, inside, deaths = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def race(number):
    while True:
        try:
            with locked(lock, "store", flock=no_flock):
                try:
                    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    os.write(1, b"TWO ")
                time.sleep(0.0002)
                inside.unlink()
                os.write(1, b"held ")
                number += 1
                if number % 3 == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        except LockedError:
            pass

racers = set()
for number in range(deaths):
    while len(racers) < 4:
        racers.add(os.fork() or race(number))
    racers.remove(os.wait()[0])
for racer in racers:
    os.kill(racer, signal.SIGKILL)
    os.waitpid(racer, 0)
"""


def test_many_at_once_that_are_killed(tmp_path):
    """Each is killed while it holds the lock, so that all others are about to succeed it."""
    path = tmp_path / "lock"
    told = child(RACERS, path, tmp_path / "inside", 100).communicate()[0].split()
    assert told.count("held") >= 100
    assert told.count("TWO") == 0
    with hold(path):
        pass
    assert path.exists()
