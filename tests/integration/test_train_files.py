"""`oocpeg train` on files: a conversion and a training run in one command."""

import json
import signal
import subprocess
import sys
import time

import pytest

from ooc_pegasos import Store
from support.rows import random_rows, svmlight_text


@pytest.fixture
def text(tmp_path):
    (tmp_path / "rows.svm").write_text(svmlight_text(*random_rows(300, 20, 3, 0.3)))
    return "rows.svm"


def test_the_model_is_that_of_two_commands(tmp_path, text, oocpeg):
    oocpeg("convert", text, "-o", "s", "--seed", "7")
    oocpeg("train", "s", "-o", "two", "--lambda", "0.01", "--seed", "7")
    done = oocpeg("train", text, "-o", "one", "--lambda", "0.01", "--seed", "7", "--scratch", ".")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert done.stdout.startswith(f"{text}: 300 rows, 20 features")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "rows.svm", "s", "two"], "nothing is left"


def test_options_of_both(tmp_path, oocpeg):
    (tmp_path / "a.csv").write_text("city,age,bought\n" + "Oslo,30,yes\nLima,40,no\n" * 50)
    (tmp_path / "b.csv").write_text("city,age,bought\n" + "Rome,30,no\n" * 20)
    (tmp_path / "options.toml").write_text('label = "bought"\n')
    for words in (["--label", "bought"], ["--recipe", "options.toml"]):
        words = ["*.csv", *words, "--numeric", "age", "--loss", "logistic", "--lambda", "0.1", "-o", "m", "--force"]
        done = oocpeg("train", *words, "--json", "--store", "kept", "--memory", "1GB")
        told = json.loads(done.stdout)
        assert (told["conversion"]["rows"], told["loss"], told["conversion"]["output"]) == (120, "logistic", "kept")
    assert Store.open(tmp_path / "kept").rows == 120


def test_a_kept_store_is_used_again(tmp_path, text, oocpeg):
    oocpeg("train", text, "-o", "one", "--lambda", "0.01", "--store", "kept")
    before = (tmp_path / "kept" / "manifest.json").stat()
    oocpeg("train", text, "-o", "two", "--lambda", "0.1", "--store", "kept")
    assert (tmp_path / "kept" / "manifest.json").stat() == before
    failed = oocpeg("train", text, "-o", "three", "--store", "kept", "--values", "float16", code=3)
    assert "kept: exists already, made from other inputs or with other options; add --force" in failed.stderr
    oocpeg("train", text, "-o", "three", "--store", "kept", "--values", "float16", "--force")
    assert Store.open(tmp_path / "kept").manifest.recipe.values == "float16"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s", "--label", "y"], "--label is for files that are converted, but s is a store; leave it out"),
        (["s", "--store", "t"], "--store is for files that are converted, but s is a store; leave it out"),
        (["s", "rows.svm"], "s: is a store; give one store, or files, but not several stores or both"),
        (["rows.svm", "--checkpoint", "c"], "--checkpoint needs the store of the files later; keep it with --store"),
        (["rows.svm", "--proof", "p"], "--proof needs the store of the files later; keep it with --store"),
    ],
)
def test_options_that_do_not_fit(text, oocpeg, words, message):
    oocpeg("convert", text, "-o", "s")
    assert f"error: {message}" in oocpeg("train", *words, "-o", "m", code=2).stderr


def test_the_model_is_not_written_over_an_input(text, oocpeg):
    failed = oocpeg("train", text, "-o", text, "--force", code=2)
    assert f"--output {text}: is the input {text}, or in it; name another file" in failed.stderr


def test_no_rows_of_a_temporary_store_stay_after_an_interruption(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "rows.svm").write_text(svmlight_text(*random_rows(3000, 200, 3, 0.3)))
    words = ["train", "rows.svm", "-o", "m", "--lambda", "1e-9", "--tolerance", "1e-12", "--scratch", "scratch"]
    child = subprocess.Popen(
        [sys.executable, "-m", "ooc_pegasos", *words, "--max-epochs", "1000000"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("scratch/oocpeg-*/store/manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert list(tmp_path.glob("scratch/*")) == []
