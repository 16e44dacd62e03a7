"""Control characters in names that come from files: escaped in all text for people, exact in JSON and in files."""

import csv
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos.util.escaping import escaped, printable
from support.fork_server import COMMAND, program
from support.nights import job_of, put_day
from support.rows import random_rows
from support.stores import store_of
from support.terminals import _CONTROLS, Terminal, check_shown

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\r\n\t\u2028x"
SEEN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\r\n"


def run_escaped(folder, *words, code=0):
    """What a command prints, of which no character commands a terminal, nor on one that is a terminal."""
    child = program(COMMAND, *words, folder=folder, env={**os.environ, "COLUMNS": "200"})
    out, err = child.communicate()
    assert child.returncode == code, (out, err)
    for text in (out, err):
        assert "Traceback" not in text, text
        assert not _CONTROLS.search(text), repr(text)
        assert "\nowned" not in text
    return out, err


def on_a_terminal(folder, *words, code=0):
    ended, shown = Terminal(folder, *words, columns=200).end()
    assert ended == code, shown
    check_shown(shown, 200)
    return shown


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table whose file, columns, labels and values have hostile names, its store, and a model."""
    folder = tmp_path_factory.mktemp("place")
    labels = [f"no{HOSTILE}", f"yes{HOSTILE}", f"maybe{HOSTILE}"]
    table = pa.table({f"label{HOSTILE}": labels * 30, f"column{HOSTILE}": [f"one{HOSTILE}", f"two{HOSTILE}"] * 45})
    pq.write_table(table, folder / f"in{HOSTILE}.parquet")
    options = ("--label", f"label{HOSTILE}", "--feature-names", "100", "--hash-bits", "10")
    out, err = run_escaped(folder, "convert", f"in{HOSTILE}.parquet", "-o", f"s{HOSTILE}", *options)
    assert f"s{SEEN}" in out
    assert f"yes{SEEN}" in out
    assert f"column{SEEN}" in err  # what columns were taken for
    run_escaped(folder, "train", f"s{HOSTILE}", "-o", f"m{HOSTILE}", "--lambda", "0.1")
    return folder


@pytest.mark.slow
def test_text_of_stores_and_models(place):
    store, model, data = f"s{HOSTILE}", f"m{HOSTILE}", f"in{HOSTILE}.parquet"
    for words, wanted in [
        (("info", store), (f"s{SEEN}", f"in{SEEN}", f"label no{SEEN}")),
        (("info", store, "--features"), (f"column{SEEN}", f"=one{SEEN}")),
        (("verify", store), (f"s{SEEN}",)),
        (("inspect", model), (f"column{SEEN}",)),
        (("evaluate", model, data), (f"yes{SEEN}",)),
        (("predict", model, data, "-o", f"p{HOSTILE}.csv", "--force"), (f"p{SEEN}",)),
        (("train", store, "-o", f"again{HOSTILE}", "--lambda", "0.1", "--force"), (f"again{SEEN}",)),
        (("convert", data, "--dry-run", "--label", f"label{HOSTILE}"), (f"column{SEEN}",)),
    ]:
        out, _err = run_escaped(place, *words)
        for name in wanted:
            assert name in out, (words, out)
    assert f"label no{SEEN}" in on_a_terminal(place, "info", store)
    assert f"again{SEEN}" in on_a_terminal(place, "train", store, "-o", f"again{HOSTILE}", "--force")


def test_lines_are_lines(place):
    """A name with a line break takes one line of a table, and columns of a table stand below each other."""
    out, _err = run_escaped(place, "info", f"s{HOSTILE}", "--features")
    assert len(out.splitlines()) == 2
    out, _err = run_escaped(place, "evaluate", f"m{HOSTILE}", f"s{HOSTILE}")
    table = out.splitlines()[-5:-1]  # before the line that the model was trained on these rows
    assert len({len(line) for line in table}) == 1, table


@pytest.mark.slow
def test_errors(place, tmp_path):
    name = f"nothing{HOSTILE}"
    for words, code in [
        (("info", name), 3),
        (("convert", name, "-o", "new"), 3),
        (("evaluate", name, "x"), 3),
        (("run", name), 3),
        (("rollback", name), 3),
        (("convert", f"in{HOSTILE}.parquet", "-o", "new", "--label", name), 2),
        (("train", f"s{HOSTILE}", "-o", "new", "--lambda", name), 2),
        (("train", f"s{HOSTILE}", "-o", "new", "--config", name), 3),
        (("info", f"s{HOSTILE}", name), 2),
        (("train", f"s{HOSTILE}", "-o", "new", f"--{name}"), 2),
        ((name,), 2),
    ]:
        _out, err = run_escaped(place, *words, code=code)
        assert r"nothing\x1b]0;owned" in err, err
    on_a_terminal(place, "info", name, code=3)
    on_a_terminal(place, name, code=2)
    other = pa.table({f"label{HOSTILE}": ["none of these\x1b[2J"] * 3, f"column{HOSTILE}": ["a"] * 3})
    pq.write_table(other, tmp_path / "other.parquet")
    _out, err = run_escaped(place, "evaluate", f"m{HOSTILE}", tmp_path / "other.parquet", code=3)
    assert r"none of these\x1b[2J" in err


def test_json_and_files_are_exact(place, tmp_path):
    out, _err = run_escaped(place, "info", f"s{HOSTILE}", "--json")
    told = json.loads(out)
    assert set(told["labels"]) == {f"{name}{HOSTILE}" for name in ("no", "yes", "maybe")}
    assert told["sources"][0]["name"].endswith(f"in{HOSTILE}.parquet")
    out, _err = run_escaped(place, "info", f"s{HOSTILE}", "--features", "--json")
    assert f"column{HOSTILE}=one{HOSTILE}" in json.loads(out)["names"].values()
    out, _err = run_escaped(place, "inspect", f"m{HOSTILE}", "--json")
    assert json.loads(out)["classes"] == reported_classes(told)
    scores = tmp_path / "scores.csv"
    run_escaped(place, "predict", f"m{HOSTILE}", f"in{HOSTILE}.parquet", "-o", scores)
    with open(scores, newline="") as file:
        labels = {row["label"] for row in csv.DictReader(file)}
    assert labels <= set(told["labels"])
    assert labels


def reported_classes(told):
    return list(told["labels"])


def test_names_of_jobs(tmp_path):
    job_of(tmp_path)
    job = tmp_path / "nightly.toml"
    text = job.read_text()
    job.write_text(f"name = {json.dumps('job' + HOSTILE.replace(chr(0x7F), ''))}\n" + text)
    put_day(tmp_path, 1)
    run_escaped(tmp_path, "run", "nightly.toml", "--dry-run")
    out, _err = run_escaped(tmp_path, "run", "nightly.toml")
    assert r"job\x1b]0;owned" in out
    out, _err = run_escaped(tmp_path, "run", "nightly.toml", "--json")
    assert json.loads(out)["job"] == "job" + HOSTILE.replace("\x7f", "")


def test_notes_and_tracebacks():
    """All of stderr is text for people, also what Python prints of an error in the program itself."""
    code = "import sys; from ooc_pegasos.cli import streams; streams.guard(); "
    code += f"from ooc_pegasos.reporting.progress import LoggedTraining; LoggedTraining().note({HOSTILE!r}); "
    done = subprocess.run(
        [sys.executable, "-c", code + f"raise RuntimeError({HOSTILE!r})"], capture_output=True, text=True
    )
    assert not _CONTROLS.search(done.stderr), repr(done.stderr)
    assert done.stderr.startswith(f"note: {SEEN}")
    assert r"RuntimeError: \x1b]0;owned" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "utf-8:surrogateescape"])
def test_control_characters_are_escaped_in_every_encoding(tmp_path, encoding):
    """Bytes of names that are invalid UTF-8 could be control characters of eight bits."""
    name = os.fsencode(HOSTILE) + b"\x9b2J\xff"
    store = store_of(tmp_path, *random_rows(20, 5, 1, 0.5))
    os.rename(store.path, os.fsencode(tmp_path) + b"/" + name)
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "ooc_pegasos", "info", name]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"rows" in done.stdout
    assert not set(done.stdout) & {*range(0x20), 0x7F, *range(0x80, 0xA0)} - set(b"\t\n"), done.stdout


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_printable_text_stays(text):
    assert not _CONTROLS.search(escaped(text))
    assert not _CONTROLS.search(printable(text))
    assert len(printable(text).splitlines()) <= 1
    if text.isprintable():
        assert escaped(text) == printable(text) == text
    assert escaped("a\n\tb") == "a\n\tb"
