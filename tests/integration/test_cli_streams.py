"""Standard streams that are closed, full or broken pipes, and signals at startup."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from support.nights import job_of, put_day
from support.paths import ROOT

OOCPEG = f"{shlex.quote(sys.executable)} -m ooc_pegasos"


def shell(folder, line, code=0):
    """What a line of a shell prints, with `oocpeg` as a process of its own."""
    line = line.replace("oocpeg ", OOCPEG + " ")
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=300)
    for wrong in ("Traceback", "Exception ignored"):
        assert wrong not in done.stderr, done.stderr
    assert done.returncode == code, (line, done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture
def stored(tmp_path, oocpeg):
    (tmp_path / "in.svm").write_text("1 1:0.5 2:1\n-1 2:2\n" * 20)
    oocpeg("convert", "in.svm", "-o", "store", "-q")
    return tmp_path


# --- closed -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(stored, closed):
    shell(stored, f"oocpeg convert in.svm -o closed.store {closed}")
    shell(stored, f"oocpeg info closed.store {closed}")
    shell(stored, f"oocpeg info nowhere {closed}", code=3)
    shell(stored, f"oocpeg nonsense {closed}", code=2)


@pytest.mark.slow
def test_a_job_without_standard_error(tmp_path):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    assert "promoted" in shell(tmp_path, "oocpeg run nightly.toml 2>&-").stdout


def test_closed_standard_input(stored):
    assert "standard input is closed" in shell(stored, "oocpeg convert - -o s <&-", code=3).stderr


def test_files_do_not_get_the_numbers_of_closed_streams(tmp_path):
    code = "import os; from ooc_pegasos.cli import streams; streams.guard(); file = os.open('file', os.O_CREAT); "
    code += "open('told', 'w').write(f'{file} {os.fstat(2).st_rdev == os.stat(os.devnull).st_rdev}')"
    shell(tmp_path, f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} <&- >&- 2>&-")
    assert (tmp_path / "told").read_text() == "3 True"


# --- full disks and broken pipes ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("words", ["info store", "--help", "convert in.svm -o other.store"])
def test_output_that_cannot_be_written(stored, words):
    told = shell(stored, f"oocpeg {words} >/dev/full", code=3).stderr.splitlines()
    assert told[-1] == "error: standard output: No space left on device; check the output"
    told = shell(stored, f"rm -rf other.store; oocpeg {words} >/dev/full 2>/dev/full", code=3)
    assert (told.stdout, told.stderr) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"), [("info nowhere", 3), ("--nonsense", 2), ("convert in.svm -o other.store", 0)]
)
def test_messages_that_cannot_be_written_change_nothing(stored, words, code):
    shell(stored, f"oocpeg {words} 2>/dev/full", code=code)
    shell(stored, f"rm -rf other.store; (sleep 0.1; oocpeg {words}; echo $? >code) 2>&1 >/dev/null | true; cat code")
    assert (stored / "code").read_text() == f"{code}\n"


@pytest.mark.slow
def test_broken_pipe(stored):
    for words in ("info store", "--help"):
        done = shell(stored, f"(sleep 0.1; oocpeg {words}) | true; echo ${{PIPESTATUS[0]}}")
        assert (done.stdout, done.stderr) == ("141\n", "")
    assert shell(stored, "oocpeg info store | head -1").stdout == "store\n"


@pytest.mark.slow
@pytest.mark.parametrize("output", [">/dev/full", "| true"])
def test_a_job_without_output(tmp_path, output):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    done = shell(tmp_path, f"oocpeg run nightly.toml {output}; exit ${{PIPESTATUS[0]}}")
    assert done.stderr.splitlines()[-1].startswith("note: standard output: ")
    put_day(tmp_path, 2, rows=1500, flip=True)
    shell(tmp_path, f"oocpeg run nightly.toml --json 2>/dev/full {output}; exit ${{PIPESTATUS[0]}}", code=7)
    ends = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [end["exit_code"] for end in ends if "exit_code" in end] == [0, 7]
    shell(tmp_path, "oocpeg run nightly.toml --dry-run >/dev/full", code=3)  # prints only


@pytest.mark.slow
def test_names_of_invalid_utf8_are_escaped(tmp_path):
    odd = b"\xff.store"
    command = [sys.executable, "-m", "ooc_pegasos"]
    (tmp_path / "in.svm").write_text("1 1:1\n-1 2:1\n")
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([*command, "convert", "in.svm", "-o", odd], cwd=tmp_path, env=env, capture_output=True)
    assert (done.returncode, rb"\udcff.store" in done.stdout) == (0, True), done.stderr


# --- stopped ------------------------------------------------------------------------------------------

STOPPED = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder())
sys.argv = ["oocpeg", "info", "store"]
from ooc_pegasos.cli.start import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "module", ["ooc_pegasos.cli.main", "typer", "ooc_pegasos.reporting.text", "numpy", "numpy.linalg"]
)
def test_stopped_while_it_imports(stored, number, module):
    code = STOPPED.format(module=module, number=int(number))
    done = subprocess.run([sys.executable, "-c", code], cwd=stored, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LOST = """
import os, signal, sys, time

class Calls:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ooc_pegasos.reporting.text":
            Calls()
            time.sleep(60)

sys.meta_path.insert(0, Finder())
sys.argv = ["oocpeg", "info", "store"]
from ooc_pegasos.cli.start import main
main()
"""


def test_an_interruption_dropped_by_python_is_repeated(stored):
    done = subprocess.run([sys.executable, "-c", LOST], cwd=stored, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ignored_signals_stay_ignored(stored, number):
    code = f"import signal; signal.signal({int(number)}, signal.SIG_IGN)"
    code += STOPPED.format(module="typer", number=int(number))
    done = subprocess.run([sys.executable, "-c", code], cwd=stored, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rows" in done.stdout


def test_startup_imports():
    """Modules imported before signal handlers are installed."""
    code = "import sys; before = set(sys.modules); import ooc_pegasos.cli.start; print(*set(sys.modules) - before)"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "re", "typer", "dataclasses"} & set(done.stdout.split())
