"""The command line: fast help, stable JSON keys, exit codes, one-line errors."""

import json
import os
import re
import subprocess
import sys

import pytest

import ooc_pegasos
from ooc_pegasos.cli.main import app
from support.paths import ROOT
from support.rows import random_rows, svmlight_text


@pytest.fixture
def data(tmp_path):
    matrix, labels = random_rows(300, 100, seed=1)
    path = tmp_path / "in.svm"
    path.write_text(svmlight_text(matrix, labels))
    return path


def single_error_line(done) -> str:
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_help_imports_nothing_slow():
    code = "import sys, runpy; sys.argv = ['oocpeg', '--help']\ntry: runpy.run_module('ooc_pegasos')\n"
    code += (
        "except SystemExit: print('LOADED', sorted({'numba', 'pyarrow', 'dask', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    assert "convert" in done.stdout


def commands() -> list[str]:
    return [command.name or command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("command", commands())
def test_help_of_every_command_has_an_example(oocpeg, command):
    text = oocpeg(command, "--help").stdout
    assert re.search(rf"Examples:\s+oocpeg {command}", text)
    assert any(f"oocpeg {command}" in page.read_text() for page in (ROOT / "docs").glob("*.md"))


def test_version(oocpeg):
    assert oocpeg("--version").stdout.strip() == f"oocpeg {ooc_pegasos.__version__}"


def test_convert_info_verify_with_json(oocpeg, data):
    done = oocpeg("convert", data, "-o", "store", "--json", "--features", 100)
    result = json.loads(done.stdout.splitlines()[-1])
    assert {"rows", "features", "nonzeros", "chunks", "bytes", "rejected", "seconds", "output"} <= set(result)
    assert (result["rows"], result["features"]) == (300, 100)
    assert done.stderr == "" or done.stderr.startswith("note: ")
    told = json.loads(oocpeg("info", "store", "--json").stdout)
    keys = {"rows", "features", "nonzeros", "bytes", "bytes_per_nonzero", "task", "labels", "max_row_norm", "chunks"}
    assert keys <= set(told)
    assert sum(told["labels"].values()) == 300
    found = json.loads(oocpeg("verify", "store", "--json").stdout)
    assert (found["problems"], found["rows"]) == ([], 300)


def test_info_as_text(oocpeg, data):
    oocpeg("convert", data, "-o", "store", "--quiet")
    text = oocpeg("info", "store").stdout
    for word in ("rows", "features", "non-zeros", "density", "label -1", "row norms", "chunks", "in.svm", "xxh64"):
        assert word in text


def test_info_measures_the_disk_only_when_asked(oocpeg, data, tmp_path):
    oocpeg("convert", data, "-o", "store", "--quiet")
    size = sum(path.stat().st_size for path in (tmp_path / "store").glob("chunk-*"))
    measured = {"disk_bytes_per_second", "disk_sample_bytes", "epoch_seconds_from_disk"}
    without = json.loads(oocpeg("info", "store", "--json").stdout)
    assert {name for name in without if without[name] is None} >= measured
    assert without["epoch_seconds_in_memory"] > 0
    assert "s from disk" not in oocpeg("info", "store").stdout
    found = json.loads(oocpeg("info", "store", "--benchmark", "--json").stdout)
    assert found["epoch_seconds_from_disk"] >= found["epoch_seconds_in_memory"]
    assert found["disk_bytes_per_second"] > 0
    assert found["disk_sample_bytes"] == size
    assert "s from disk" in oocpeg("info", "store", "--benchmark").stdout
    assert "one" in single_error_line(oocpeg("info", "store", "--benchmark", "--features", code=2))


@pytest.mark.slow
def test_verify_reports_damage(oocpeg, data, tmp_path):
    oocpeg("convert", data, "-o", "store", "--chunk-size", "2kB")
    chunk = sorted((tmp_path / "store").glob("chunk-*"))[1]
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 4
    chunk.write_bytes(content)
    (tmp_path / "store" / "notes.txt").write_text("mine")
    done = oocpeg("verify", "store", code=5)
    assert chunk.name in done.stdout
    assert "1 problems" in done.stdout
    assert "notes.txt: not part of the store" in done.stdout
    (tmp_path / "store" / "manifest.json").write_text("{")
    assert "manifest.json" in single_error_line(oocpeg("verify", "store", code=5))


@pytest.mark.slow
def test_standard_input(oocpeg, data):
    oocpeg("convert", "-", "-o", "store", input=data.read_text())
    told = json.loads(oocpeg("info", "store", "--json").stdout)
    assert told["rows"] == 300
    assert told["sources"][0]["name"] == "standard input"
    assert told["sources"][0]["size"] == data.stat().st_size


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["convert", "in.svm"], 2, "output"),
        (["convert", "in.svm", "-o", "s", "--memory", "lots"], 2, "'lots' is not a size"),
        (["convert", "in.svm", "-o", "s", "--memory", "1MB"], 2, "at least 32MB"),
        (["convert", "in.svm", "-o", "s", "--chunk-size", "1"], 2, "1kB to 1GB"),
        (["convert", "in.svm", "-o", "s", "--normalize", "l1"], 2, "--normalize should be"),
        (["convert", "in.svm", "-o", "s", "--task", "guess"], 2, "--task should be one of auto, binary"),
        (["convert", "in.svm", "-o", "s", "--threads", "0"], 2, "choose 1 to 4096"),
        (["convert", "in.svm", "-o", "s", "--seed", "-1"], 2, "out of range"),
        (["convert", "in.svm", "-o", "s", "--force", "--append"], 2, "choose one"),
        (["convert", "in.svm", "-o", "s", "--config", "bad.toml"], 2, "unknown key 'chunk'"),
        (["convert", "in.svm", "-o", "s", "--config", "none.toml"], 3, "none.toml"),
        (["convert", "none.svm", "-o", "s"], 3, "none.svm: no such file"),
        (["convert", "none*.svm", "-o", "s"], 3, "no file matches"),
        (["convert", ".", "-o", "s"], 3, "is a folder"),
        (["convert", "in.svm", "in.svm", "-o", "s"], 3, "named twice"),
        (["convert", "in.svm", "-o", "in.svm"], 3, "exists and is not a store"),
        (["train", "s", "-o", "m", "--parts", "2"], 2, "add --scheduler"),
        (["train", "s", "-o", "m", "--checkpoint-epochs", "2"], 2, "add --checkpoint DIR"),
        (["train", "s", "-o", "m", "--lambda", "1e-3,1e-4,0.001"], 2, "contains 0.001 twice"),
        (["info", "nowhere"], 3, "no such store"),
        (["verify", "."], 3, "not a store"),
    ],
)
def test_mistakes(oocpeg, data, tmp_path, words, code, problem):
    (tmp_path / "bad.toml").write_text("chunk = 3\n")
    done = oocpeg(*words, code=code)
    assert problem in done.stderr
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "s.unfinished").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code"), [(["info", "nowhere"], 3), (["info"], 2), (["info", "store"], 0)])
def test_exit_codes_of_the_program_itself(oocpeg, data, tmp_path, words, code):
    """Others run it as a fork of an interpreter that is warm already."""
    oocpeg("convert", data, "-o", "store")
    done = subprocess.run([sys.executable, "-m", "ooc_pegasos", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert (bool(done.stdout), bool(done.stderr)) == (code == 0, code != 0)


def test_toml_and_options(oocpeg, data, tmp_path):
    (tmp_path / "job.toml").write_text('chunk_size = "2kB"\nshuffle = false\nfeatures = 150\n')
    oocpeg("convert", data, "-o", "store", "--config", "job.toml", "--features", "120")
    told = json.loads(oocpeg("info", "store", "--json").stdout)
    assert (told["features"], told["shuffle_seed"]) == (120, None)
    assert told["chunks"] > 1


def test_demo_prints_commands(oocpeg):
    text = oocpeg("demo", "--folder", "here").stdout
    assert re.findall(r"^\$ oocpeg (\w+)", text, re.MULTILINE)[:2] == ["train", "info"]
    assert "Next steps" in text
    oocpeg("demo", "--folder", "here")  # again


def test_time_left_is_extrapolated():
    from ooc_pegasos.reporting.progress import epochs_left

    gaps = [0.5 / epoch for epoch in range(1, 11)]
    assert epochs_left(gaps, 0.01) == pytest.approx(40, rel=0.01)
    assert epochs_left(gaps[:2], 0.01) is None
    assert epochs_left([0.1, 0.1, 0.1], 0.01) is None


def test_outputs_that_would_overwrite_inputs(tmp_path, oocpeg):
    (tmp_path / "d.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    oocpeg("convert", "d.svm", "-o", "d.store")
    oocpeg("train", "d.store", "-o", "d.model", "--lambda", "0.1")
    os.symlink("d.model", tmp_path / "latest")
    kept = {path: path.read_bytes() for path in [tmp_path / "d.model", *(tmp_path / "d.store").iterdir()]}
    train = ("train", "d.store", "--lambda", "0.1", "--force")
    for words, said in (
        ((*train, "-o", "new", "--log", "d.store/manifest.json"), "--log d.store/manifest.json: is the store"),
        ((*train, "-o", "new", "--log", "new"), "--log new: is the output"),
        ((*train, "-o", "new", "--log", "latest", "--warm-start", "d.model"), "is the model of --warm-start"),
        ((*train, "-o", "d.store/manifest.json"), "--output d.store/manifest.json: is the store"),
        (("predict", "d.model", "d.svm", "-o", "latest", "--force"), "--output latest: is the model"),
        (("predict", "d.model", "d.store", "-o", "d.store/manifest.json", "--force"), "is the data d.store, or in it"),
    ):
        assert said in oocpeg(*words, code=2).stderr
    assert kept == {path: path.read_bytes() for path in kept}
    assert not (tmp_path / "new").exists()
    oocpeg(*train, "-o", "d.model", "--warm-start", "d.model", "--log", "d.jsonl")  # to make a model better is fine


def test_inspect_counts_features_as_the_data_does(tmp_path, oocpeg):
    for base in (0, 1):
        (tmp_path / "d.svm").write_text(f"1 {base}:5\n-1 {base + 7}:4\n" * 20)
        oocpeg("convert", "d.svm", "-o", "d.store", "--index-base", base, "--force")
        oocpeg("train", "d.store", "-o", "d.model", "--lambda", "0.1", "--force")
        lines = [line.split() for line in oocpeg("inspect", "d.model").stdout.splitlines()[1:]]
        assert lines[0::2] == [["for", "1:"], ["for", "-1:"]]
        assert [line[1] for line in lines[1::2]] == [f"#{base}", f"#{base + 7}"]
        told = json.loads(oocpeg("inspect", "d.model", "--json").stdout)
        assert {one["feature"] for one in told["features"]} == {base, base + 7}
