"""Every command in terminals of any width and encoding, resized, or that disappear; and displays that fail."""

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos import Model, TrainConfig, train
from ooc_pegasos.cli.main import app
from ooc_pegasos.reporting.progress import (
    LoggedTraining,
    Progress,
    TrainingProgress,
    duration_words,
    epochs_left,
    guarded,
)
from support.nights import job_of, put_day
from support.rows import random_rows
from support.soak import SOAK
from support.stores import store_of
from support.terminals import EVERY_TEXT, Terminal, check_shown


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with rows, a store, a model and a job; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("place")
    matrix, labels = random_rows(300, 30, 1, 0.3)
    train(store_of(folder, matrix, labels), TrainConfig(lam=0.01, loss="logistic")).model.save(folder / "model")
    job_of(folder)
    put_day(folder, 1)
    return folder


# --- every command ------------------------------------------------------------------------------------

NAMES = [command.name or command.callback.__name__ for command in app.registered_commands]
COMMANDS = [
    *(([name, "--help"], 0) for name in NAMES),
    (["--help"], 0),
    (["--version"], 0),
    ([], None),
    (["--show-completion"], None),
    (["nonsense"], 2),
    (["info", "store", "--nonsense"], 2),
    (["info", "nowhere"], 3),
    (["convert", "in.svm", "-o", "new"], 0),
    (["convert", "in.svm", "-o", "new", "--json"], 0),
    (["convert", "in.svm", "--dry-run"], 0),
    (["info", "store"], 0),
    (["info", "store", "--features"], 0),
    (["info", "store", "--json"], 0),
    (["verify", "store", "--sources"], 0),
    (["train", "store", "-o", "new"], 0),
    (["train", "store", "-o", "new", "--calibrate", "isotonic", "--profile", "--json"], 0),
    (["train", "store", "-o", "new", "--lambda", "1e-7", "--tolerance", "1e-6", "--max-epochs", "400"], 4),
    (["evaluate", "model", "in.svm"], 0),
    (["predict", "model", "in.svm", "-o", "scores.csv", "--proba"], 0),
    (["inspect", "model"], 0),
    (["run", "nightly.toml", "--dry-run"], 0),
    (["run", "nightly.toml"], 0),
    (["run", "nowhere.toml"], 3),
    (["rollback", "nowhere"], 3),
    (["rollback", "models"], 3),
    (["demo"], 0),
]
KINDS = list(itertools.product((1, 2, 20, 80, 300, 0) if SOAK else (20, 80), ("utf-8", "latin-1", "ascii")))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "words", "code"), [(at, *one) for at, one in enumerate(COMMANDS)])
def test_every_command_in_a_terminal(tmp_path, place, number, words, code):
    if words == ["demo"] and not SOAK:
        pytest.skip("its commands are all here; whole in the soak")
    for columns, encoding in KINDS if SOAK else KINDS[number % len(KINDS) :: 4]:
        folder = tmp_path / f"{columns}-{encoding}"
        shutil.copytree(place, folder)
        terminal = Terminal(folder, *words, columns=columns, encoding=encoding, before=EVERY_TEXT)
        ended, shown = terminal.end()
        assert code in (ended, None), shown
        assert shown
        check_shown(shown, columns or 80)
        if "--json" in words:
            assert json.loads(shown.splitlines()[-1].rpartition("\x1b[K")[2])


def _latin_1(folder):
    """An environment whose encoding is Latin-1, by a locale of that kind where one can be made."""
    made = folder / "latin_1.ISO-8859-1"
    if shutil.which("localedef"):
        subprocess.run(["localedef", "-c", "-f", "ISO-8859-1", "-i", "en_US", made], capture_output=True)
    if not made.is_dir():
        return {"PYTHONIOENCODING": "latin-1"}
    return {"LOCPATH": str(folder), "LC_ALL": made.name, "PYTHONUTF8": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["C", "C without UTF-8", "Latin-1"])
def test_a_terminal_of_another_locale(tmp_path, place, kind):
    environment = {"LC_ALL": "C"}
    if kind == "C without UTF-8":
        environment |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    elif kind == "Latin-1":
        environment = _latin_1(tmp_path)
    name = "d\u00e9j\u00e0 \u4e2d\x9b31m.svm" if kind != "C without UTF-8" else "in.svm"
    shutil.copy(place / "in.svm", os.fsencode(tmp_path) + b"/" + name.encode())
    words = ("convert", name, "-o", "new")
    terminal = Terminal(tmp_path, *words, columns=20, encoding="latin-1", environment=environment)
    code, shown = terminal.end()
    assert code == 0, shown
    check_shown(shown.encode("latin-1").decode("utf-8") if kind == "C" else shown, 20)


def test_rows_that_are_typed(tmp_path):
    terminal = Terminal(tmp_path, "convert", "-", "-o", "new", before=EVERY_TEXT)
    terminal.wait_for("reading")
    for text in ("1 1:0.5 2:1\n-1 2:2\n", "\x04", "\x04"):
        terminal.type(text)
        time.sleep(0.1)
    code, shown = terminal.end()
    assert code == 0, shown
    assert "2 rows" in shown
    check_shown(shown, 80)


def test_status_lines_of_conversions_and_training(tmp_path, place):
    code, shown = Terminal(place, "convert", "in.svm", "-o", tmp_path / "new", before=EVERY_TEXT).end()
    assert code == 0
    statuses = " ".join(check_shown(shown, 80))
    for words in ("1/2 reading rows 100 %", "2/2 writing chunks 100 %", "MB of", "MB/s"):
        assert words in statuses
    options = ("--lambda", "0.01", "--tolerance", "1e-3", "--holdout", "0.2")
    words = ("train", "store", "-o", tmp_path / "m", *options)
    code, shown = Terminal(place, *words, columns=250, before=EVERY_TEXT).end()
    statuses = " ".join(check_shown(shown, 250))
    for words in ("loading", "epoch", "rows/s", "objective", "at least", "gap", "holdout error"):
        assert words in statuses, words
    assert "holdout: error" in shown


def test_a_terminal_that_is_resized(tmp_path, place):
    words = (
        "train",
        "store",
        "-o",
        tmp_path / "m",
        "--lambda",
        "1e-7",
        "--tolerance",
        "1e-9",
        "--max-epochs",
        "1000000",
    )
    terminal = Terminal(place, *words, columns=120, before=EVERY_TEXT)
    terminal.wait_for("after epoch 100")
    for columns in (20, 3, 200, 1, 60):
        terminal.resize(columns)
        time.sleep(0.1)
        begin = terminal.wait_for("epoch")
        time.sleep(0.1)
        texts = check_shown(terminal.shown(begin).partition("\x1b[K")[2].rpartition("\x1b[K")[0] + "\x1b[K", columns)
        assert texts
        if columns >= 20:
            assert all(text.startswith("training: epoch ") for text in texts)
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 130
    assert shown.endswith("interrupted; no --checkpoint was given\r\n")


def test_a_terminal_that_calls_itself_dumb_gets_notes_alone(tmp_path, place):
    words = ("train", "store", "-o", tmp_path / "m", "--lambda", "0.01")
    terminal = Terminal(place, *words, before="import os\nos.environ['TERM'] = 'dumb'\n" + EVERY_TEXT)
    code, shown = terminal.end()
    assert code == 0
    assert check_shown(shown, 80) == []


# --- estimates ----------------------------------------------------------------------------------------


def test_estimates_that_are_too_large_are_none():
    assert epochs_left([0.5, 0.499999, 0.4999], 0.01) == math.inf
    assert epochs_left([0.5, 0.49, 0.48], 1e-300) > 1e10
    assert epochs_left([0.5, 0.2, 0.1], 0.2) == 0
    for gaps in ([0.5, math.inf, 0.1], [0.5, math.nan, 0.1], [0.5, 0.1, 0.0], [0.1, 0.2, 0.3], [0.1, 0.1, 0.1], []):
        assert epochs_left(gaps, 0.01) is None
    assert epochs_left([0.5, 0.2, 0.1], 0.0) is None


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1)


@given(st.lists(NUMBERS, max_size=12), NUMBERS)
def test_estimates_never_fail_and_are_the_power_law(gaps, tolerance):
    found = epochs_left(gaps, tolerance)
    words = duration_words(found)
    if found is None or found > 86_400:
        assert words is None
    else:
        assert found >= 0
        assert words
        number, middle, last = len(gaps), gaps[len(gaps) // 2], gaps[-1]
        slope = math.log(middle / last) / math.log(number / (number // 2 + 1)) if last > 1e-300 else 0
        if slope > 1e-6 and 1e-200 < tolerance < last:
            assert found == pytest.approx(number * ((last / tolerance) ** (1 / slope) - 1), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.6, "60 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3540, "59 min"),
        (3580, "1:00 h"),
        (3 * 3600 + 5 * 60, "3:05 h"),
        (86_399, "24:00 h"),
        (86_401, None),
        (math.inf, None),
        (math.nan, None),
        (-1, None),
        (None, None),
    ],
)
def test_durations(seconds, words):
    assert duration_words(seconds) == words


HOURS = """
import time
real, began = time.monotonic, time.monotonic()
time.monotonic = lambda: began + 1e4 * (real() - began)
"""


def test_a_run_of_hours(tmp_path, place):
    words = ("train", "store", "-o", tmp_path / "m", "--lambda", "1e-5", "--tolerance", "1e-3", "--max-epochs", "3000")
    code, shown = Terminal(place, *words, columns=200, before=HOURS + EVERY_TEXT).end()
    assert code in (0, 4), shown
    statuses = " ".join(check_shown(shown, 200))
    assert " h left" in statuses or " min left" in statuses


# --- the guard ----------------------------------------------------------------------------------------

FAILS = "import ooc_pegasos.reporting.progress as progress\ndef fail(*_given): raise {}\nprogress.{} = fail\n"
FAILURES = [
    ("ValueError('\\x1b[2J')", "epoch_line"),
    ("OverflowError()", "epochs_left"),
    ("OSError(5, 'Input/output error')", "_columns"),
    ("MemoryError()", "StatusLine.show"),
    ("UnicodeEncodeError('ascii', '', 0, 1, '')", "StatusLine._write"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "place_of_it"), FAILURES)
def test_a_display_that_fails_ends_no_run(tmp_path, place, error, place_of_it):
    words = ("train", "store", "-o", tmp_path / "m", "--lambda", "0.01")
    code, shown = Terminal(place, *words, columns=200, before=EVERY_TEXT + FAILS.format(error, place_of_it)).end()
    assert code == 0, shown
    check_shown(shown, 200)
    assert shown.count("note: the progress display failed") == 1
    assert f"({error.partition('(')[0]}: " in shown
    assert len(Model.load(tmp_path / "m").weights) == 30
    words = ("convert", "in.svm", "-o", tmp_path / "new")
    code, shown = Terminal(place, *words, columns=200, before=EVERY_TEXT + FAILS.format(error, place_of_it)).end()
    assert code == 0, shown
    assert shown.count("note: the progress display failed") == ("epoch" not in place_of_it)


def displays():
    import ooc_pegasos.reporting.notebook

    found = [Progress, TrainingProgress]
    for kind in found:
        found += kind.__subclasses__()
    return [
        kind
        for kind in found[2:]
        if kind.__module__ in ("ooc_pegasos.reporting.progress", ooc_pegasos.reporting.notebook.__name__)
    ]


def test_all_displays_are_guarded():
    kinds = displays()
    assert {
        "NotedProgress",
        "LiveProgress",
        "LoggedProgress",
        "LoggedTraining",
        "LiveTraining",
        "NotebookTraining",
    } <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        for name in vars(TrainingProgress).keys() | vars(Progress).keys():
            if name in vars(kind) and not name.startswith("__"):
                assert hasattr(vars(kind)[name], "__wrapped__"), (kind, name)


def test_a_log_and_a_notebook_that_fail_end_no_run(place, capsys, monkeypatch):
    from ooc_pegasos import Store
    from ooc_pegasos.reporting.notebook import NotebookTraining

    def fail(*_given, **_named):
        raise RuntimeError("no display")

    pytest.importorskip("IPython")
    monkeypatch.setattr("IPython.display.display", fail)
    monkeypatch.setattr("ooc_pegasos.reporting.progress.epoch_line", fail)
    for progress in (LoggedTraining(seconds=0.0), NotebookTraining()):
        result = train(Store.open(place / "store"), TrainConfig(lam=0.01), progress=progress)
        progress.note("later")
        progress.end()
        assert result.converged
        told = capsys.readouterr().err
        assert told.count("the progress display failed (RuntimeError: no display); the job continues") == 1
        assert told.endswith("note: later\n")


def test_the_guard_lets_interruptions_pass():
    @guarded
    class Stops(TrainingProgress):
        def note(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stops().note("")


@pytest.mark.parametrize("stream", [None, "closed", "broken"])
def test_notes_where_there_is_no_stderr(monkeypatch, tmp_path, stream):
    with open(tmp_path / "file", "w") as file:
        pass
    if stream == "broken":
        ours, theirs = os.pipe()
        os.close(ours)
        file = os.fdopen(theirs, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", None if stream is None else file)
    LoggedTraining(seconds=0.0).note("text")
    if stream == "broken":
        with pytest.raises(OSError, match="Broken pipe"):
            file.close()


# --- a terminal that disappears -----------------------------------------------------------------------

LONG = ("--lambda", "1e-7", "--tolerance", "1e-9", "--max-epochs", "30000", "--seed", "5")
IGNORING = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory):
    """The bytes of the model of a long run."""
    model = tmp_path_factory.mktemp("undisturbed") / "m"
    code, _shown = Terminal(place, "train", "store", "-o", model, *LONG).end()
    assert code == 4
    return model.read_bytes()


@pytest.mark.slow
def test_a_run_whose_terminal_disappears_is_stopped_by_sighup(tmp_path, place, undisturbed):
    words = ("train", "store", "-o", tmp_path / "m", *LONG, "--checkpoint", tmp_path / "ck")
    terminal = Terminal(place, *words, before=EVERY_TEXT)
    terminal.wait_for("after epoch 20")
    assert terminal.close() == 130
    assert not (tmp_path / "m").exists()
    assert any((tmp_path / "ck").iterdir())
    code, shown = Terminal(place, *words, "--resume").end()
    assert code == 4, shown
    assert (tmp_path / "m").read_bytes() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("output", ["terminal", "file"])
def test_a_run_that_ignores_sighup_goes_on_without_its_terminal(tmp_path, place, undisturbed, output):
    words = ("train", "store", "-o", tmp_path / "m", *LONG)
    to_file = f"import os\nos.dup2(os.open({str(tmp_path / 'out')!r}, os.O_WRONLY | os.O_CREAT), 1)\n"
    before = IGNORING + EVERY_TEXT + (to_file if output == "file" else "")
    terminal = Terminal(place, *words, before=before)
    terminal.wait_for("after epoch 20")
    code = terminal.close()
    assert (tmp_path / "m").read_bytes() == undisturbed
    if output == "file":
        assert code == 4
        assert "NOT within the tolerance" in (tmp_path / "out").read_text()
    else:
        assert code == 3  # the error cannot be printed


SLOW = """
import time
from ooc_pegasos.readers.svmlight import SvmlightReader
read = SvmlightReader.read
def slowly(self, task):
    time.sleep(0.3)
    return read(self, task)
SvmlightReader.read = slowly
"""


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True])
def test_a_conversion_whose_terminal_disappears(tmp_path, place, ignored):
    names = [f"{number}.svm" for number in range(6)]
    for name in names:
        shutil.copy(place / "in.svm", tmp_path / name)
    words = ("convert", *names, "-o", "new", "--threads", "1")
    terminal = Terminal(tmp_path, *words, before=(IGNORING if ignored else "") + EVERY_TEXT + SLOW)
    terminal.wait_for("reading rows 1")
    code = terminal.close()
    if ignored:
        assert code == 3
    else:
        assert code == 130
        code, shown = Terminal(tmp_path, *words, "--resume").end()
        assert code == 0, shown
    code, shown = Terminal(tmp_path, "verify", "new").end()
    assert code == 0, shown
    assert "1,800 rows" in shown


def test_a_job_whose_terminal_disappears(tmp_path):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    terminal = Terminal(tmp_path, "run", "nightly.toml", before=EVERY_TEXT)
    terminal.wait_for("loading|reading|epoch")
    assert terminal.close() == 130
    code, shown = Terminal(tmp_path, "run", "nightly.toml", "-q", "--json").end()
    assert code == 0, shown
    assert json.loads(shown.splitlines()[-1])["outcome"] == "promoted"


# --- signals ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_ignored(tmp_path, place, undisturbed, number):
    words = ("train", "store", "-o", tmp_path / "m", *LONG)
    before = f"import signal\nsignal.signal({int(number)}, signal.SIG_IGN)\n" + EVERY_TEXT
    terminal = Terminal(place, *words, before=before)
    terminal.wait_for("after epoch 20")
    os.kill(terminal.pid, number)
    code, shown = terminal.end()
    assert code == 4, shown
    assert (tmp_path / "m").read_bytes() == undisturbed


def test_ctrl_c_at_any_early_moment(place):
    """Before our first line runs, the interpreter itself may end with a traceback, in which we do not appear."""
    rng = np.random.default_rng(int(time.time()) if SOAK else 7)
    ours = 0
    for seconds in rng.uniform(0.0, 0.8, 300 if SOAK else 8):
        command = [sys.executable, "-m", "ooc_pegasos", "info", "store"]
        number = [signal.SIGINT, signal.SIGHUP, signal.SIGTERM][ours % 3 if SOAK else 0]
        child = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
        told = (seconds, child.returncode, out, err)
        if child.returncode == 0:
            assert "rows" in out, told
            assert not err, told
        elif child.returncode == 130:
            assert not err, told
            ours += 1
        else:
            assert "ooc_pegasos/" not in err.replace("site-packages", ""), told
            assert child.returncode in (-number, 1), told
    assert ours
