"""Limits on memory and threads, and requests to stop that Python cannot answer."""

import resource
import signal
import subprocess
import sys
import time

import pytest

from ooc_pegasos.util import memory_limits
from support.rows import random_rows, svmlight_text

MB = 10**6


def limited(**limits):
    """Return a function that sets resource limits, given in bytes, in a new process."""

    def enter():
        for name, allowed in limits.items():
            number = getattr(resource, f"RLIMIT_{name.upper()}")
            resource.setrlimit(number, (allowed, allowed))

    return enter


@pytest.fixture
def rows(tmp_path):
    """A file of a few rows."""
    path = tmp_path / "in.svm"
    path.write_text(svmlight_text(*random_rows(60, 20, 3, density=0.3)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [100, 400, 700])
@pytest.mark.parametrize("command", ["convert", "train", "info", "predict"])
def test_too_little_address_space(rows, oocpeg, command, megabytes):
    """Libraries that start without memory do not return or abort, so a command is refused before it loads them."""
    words = {
        "convert": ["in.svm", "-o", "s"],
        "train": ["s", "-o", "m"],
        "info": ["s"],
        "predict": ["m", "in.svm", "-o", "p.csv"],
    }[command]
    done = oocpeg(command, *words, code=3, preexec_fn=limited(**{"as": megabytes * MB}))
    allowed = f"{megabytes} MB of memory are allowed (ulimit -v), and 1,000 MB are needed before any data is read"
    assert done.stderr == f"error: {allowed}; raise this limit\n"


@pytest.mark.slow
def test_enough_address_space(rows, oocpeg):
    """What the check demands is what the libraries need: all commands run with that, and with no thread but one."""
    enter = limited(**{"as": 1000 * MB})
    oocpeg("convert", rows, "-o", "s", preexec_fn=enter)
    oocpeg("train", "s", "-o", "m", "--lambda", "0.1", preexec_fn=enter)
    oocpeg("predict", "m", rows, "-o", "p.parquet", preexec_fn=enter)
    oocpeg("info", "s", preexec_fn=limited(data=500 * MB))
    oocpeg("--version", preexec_fn=limited(**{"as": 100 * MB}))


def test_data_limit(oocpeg):
    """The limit on data is checked like that on addresses."""
    done = oocpeg("info", "s", code=3, preexec_fn=limited(data=300 * MB))
    assert "300 MB of memory are allowed (ulimit -d), and 500 MB are needed" in done.stderr


def test_group_limit(tmp_path):
    """The limit of a control group is checked, whatever else is free."""
    group = tmp_path / "sys/fs/cgroup/small"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/small\n")
    (group / "memory.max").write_text(f"{100 << 20}\n")
    with pytest.raises(
        memory_limits.InputError, match=r"105 MB of memory are allowed \(the limit of the control group\)"
    ):
        memory_limits.refuse_low_limits(tmp_path)
    for enough in (f"{200 << 20}\n", "max\n"):
        (group / "memory.max").write_text(enough)
        memory_limits.refuse_low_limits(tmp_path)


def test_available_memory_within_ulimit():
    """Memory that `ulimit -v` does not allow is not available."""
    code = "from ooc_pegasos.util.memory_limits import available_memory; print(available_memory())"
    enter = limited(**{"as": 300 * MB})
    found = subprocess.run([sys.executable, "-c", code], preexec_fn=enter, capture_output=True, text=True, check=True)
    assert 200 * MB < int(found.stdout) < 300 * MB


def test_shortage():
    """Exceptions that report a shortage get a message with advice, and others do not."""
    cannot_load = ImportError("libarrow.so.2600: failed to map segment from shared object")
    for error in (MemoryError(), OSError(12, "Cannot allocate memory"), cannot_load):
        assert memory_limits.shortage(error) == "out of memory; give a smaller --memory"
    assert "fewer --threads" in memory_limits.shortage(RuntimeError("can't start new thread"))
    for error in (ImportError("No module named 'x'"), OSError(2, "No such file"), RuntimeError("other")):
        assert memory_limits.shortage(error) is None


def test_memory_runs_out_in_arrow():
    """Arrow reports its own kind of exception, which does not mean that a file is damaged."""
    code = """if True:
        import sys, pyarrow as pa
        from ooc_pegasos.cli.main import app, main
        from ooc_pegasos.readers.columns_plan import arrow_errors
        @app.command()
        def fill():
            with arrow_errors("x.parquet"):
                pa.allocate_buffer(1 << 60)
        sys.argv = ["oocpeg", "fill"]
        main()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("error: x.parquet: not enough memory (malloc of size")
    assert done.stderr.endswith("; give more memory, or, if the file is damaged, fetch or write it again\n")


# --- requests to stop ---------------------------------------------------------------------------

_NATIVE = """
import ctypes, sys
from ooc_pegasos.util import watchdog
from ooc_pegasos.cli.main import app, main
from ooc_pegasos.training.stop import StopCheck
libc = ctypes.{library}(None)
mutex = ctypes.create_string_buffer(64)
watchdog.CLEAN_STOP = 1

@app.command()
def stuck():
    with StopCheck().listening():
        libc.pthread_mutex_lock(mutex)
        print("ready", flush=True)
        {action}

sys.argv = ["oocpeg", "stuck"]
main()
"""
_LOCK = "libc.pthread_mutex_lock(mutex)"
_LOOP = "import time\n        while True: time.sleep(0.1)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "action", "seconds"),
    [
        pytest.param("PyDLL", _LOCK, 10, id="holding the GIL"),
        pytest.param("CDLL", _LOCK, 10, id="without the GIL"),
        pytest.param("CDLL", _LOOP, 1, id="asked to stop but going on"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_unanswered_signal(library, action, seconds, number):
    """A process that does not stop when it is asked to is ended by SIGALRM."""
    if number == signal.SIGINT and seconds > 1:
        pytest.skip("the same mechanism, and it takes its time")
    code = _NATIVE.format(library=library, action=action)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.5)  # until it is in native code
            began = time.monotonic()
            child.send_signal(number)
            assert child.wait(60) == -signal.SIGALRM
            assert time.monotonic() - began > 0.9 * seconds
        finally:
            child.kill()


def test_answered_signal_leaves_time():
    """Where the handler runs, the 10 seconds of the kernel are replaced by the time of a clean stop."""
    code = "watchdog.CLEAN_STOP = 100".join(_NATIVE.split("watchdog.CLEAN_STOP = 1", 1))
    wait = "import signal\n        while not (left := signal.alarm(0)): pass\n        print(left, flush=True)"
    code = code.format(library="CDLL", action=wait)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert 90 < int(child.stdout.readline()) <= 100
        assert child.wait(60) == 0
