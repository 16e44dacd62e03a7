"""--quiet, --json and --memory: which commands have them, and that they mean the same everywhere."""

import json
import re

import pytest
from typer.main import get_command

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, convert, train
from ooc_pegasos.cli.main import app
from ooc_pegasos.errors import UsageError
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store.verify import verify
from support.nights import job_of, put_day
from support.paths import ROOT
from support.rows import random_rows, svmlight_text

COMMANDS = get_command(app).commands
OPTIONS = ("--quiet", "--json", "--memory")
WITHOUT = {
    ("demo", "--quiet"): "shows what other commands print",
    ("demo", "--json"): "shows what other commands print",
    ("demo", "--memory"): "its data is small",
    ("info", "--memory"): "reads no rows",
    ("inspect", "--memory"): "reads no rows",
    ("drop", "--memory"): "reads no rows",
    ("rollback", "--memory"): "reads no rows",
    ("prove", "--memory"): "has two chunks in memory, whose size is that of the store",
    ("run", "--memory"): "in the sections [convert] and [train] of the job file",
}


def flags_of(command):
    return {flag for one in COMMANDS[command].params for flag in one.opts}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_command_has_the_option_or_a_reason(command, option):
    assert (option in flags_of(command)) == ((command, option) not in WITHOUT)


def test_the_table_of_the_documentation():
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    found = {command: dict(zip(OPTIONS, cells, strict=True)) for command, *cells in rows if command in COMMANDS}
    assert set(found) == set(COMMANDS)
    for command, cells in found.items():
        for option, cell in cells.items():
            assert cell == ("yes" if option in flags_of(command) else f"no: {WITHOUT[command, option]}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Files, a store with a proof, and a job with two versions."""
    folder = tmp_path_factory.mktemp("scene")
    matrix, labels = random_rows(3000, 40, 1, 0.3)
    (folder / "in.svm").write_text(svmlight_text(matrix, labels))
    (folder / "more.svm").write_text(svmlight_text(*random_rows(300, 40, 2, 0.3)))
    (folder / "in.csv").write_text("y,city\n" + "".join(f"{n % 2},c{n % 7}\n" for n in range(300)))
    store = convert(folder / "in.svm", folder / "s", ConvertConfig(chunk_size=4096))
    train(store, TrainConfig(lam=0.1, loss="logistic"), proof=folder / "p").model.save(folder / "m")
    job_of(folder)
    put_day(folder, 1)
    return folder


RUNS = [
    ("convert {0}/in.csv -o new --test 0.2 --idf --text city", True),
    ("convert {0}/in.csv --dry-run", False),
    ("info {0}/s", False),
    ("info {0}/m", False),
    ("info {0}/s --benchmark", False),
    ("info {0}/s --features", False),
    ("verify {0}/s --sources", True),
    ("train {0}/in.csv -o model --test 0.2", True),
    ("train {0}/s -o other --lambda 1e-7 --tolerance 1e-9 --max-epochs 2", True),
    ("evaluate {0}/m {0}/in.svm", False),
    ("predict {0}/m {0}/in.svm -o scores.csv", True),
    ("prove {0}/m {0}/s --proof {0}/p", False),
    ("inspect {0}/m", False),
    ("run {0}/nightly.toml --dry-run", False),
    ("run {0}/nightly.toml", True),
    ("rollback {0}/models --to {1}", True),
]


@pytest.mark.slow
def test_json_is_one_document_and_quiet_is_silent(scene, oocpeg, tmp_path):
    for words, is_summary in RUNS:
        current = (scene / "models" / "current").resolve().name  # a version after the run of the job
        words = words.format(scene, current).split()
        done = oocpeg(*words, "--json", code=None)
        assert done.returncode in (0, 4), (words, done.stderr)
        assert isinstance(json.loads(done.stdout), dict), words
        again = [*words, "--force"] if words[0] in ("train", "convert", "predict") and "-o" in words else words
        done = oocpeg(*again, "--quiet", code=None)
        assert done.returncode in (0, 4), (words, done.stderr)
        assert done.stderr == "", words
        assert (done.stdout == "") == is_summary, words
    appended = oocpeg("convert", scene / "more.svm", "-o", scene / "s", "--append", "--json")
    assert json.loads(appended.stdout)["rows"] == 3300
    done = oocpeg("drop", scene / "s", "--source", scene / "more.svm", "--quiet")
    assert done.stdout + done.stderr == ""
    oocpeg("convert", scene / "more.svm", "-o", scene / "s", "--append", "--quiet")
    done = oocpeg("drop", scene / "s", "--source", scene / "more.svm", "--json")
    assert json.loads(done.stdout)["dropped_rows"] == 300
    assert oocpeg("info", "nowhere", "--json", code=3).stdout == ""


def test_less_memory_gives_the_same_results(scene, tmp_path):
    model, size = Model.load(scene / "m"), 32 << 20
    for data in (scene / "in.svm", scene / "s"):
        one, other = evaluate(model, data, memory=size), evaluate(model, data)
        assert one["confusion"] == other["confusion"]
        assert one["mean_loss"] == pytest.approx(other["mean_loss"], rel=1e-12)
        for name, memory in (("a.csv", None), ("b.csv", size)):
            predict(model, data, tmp_path / name, memory=memory)
        assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    store = Store.open(scene / "s")
    assert vars(verify(store, memory=size)) == vars(verify(store))
    for run in (lambda: evaluate(model, scene / "s", memory=1000), lambda: verify(store, memory=1000)):
        with pytest.raises(UsageError, match=r"memory=1000: .*chunk.* bytes"):
            run()


def test_memory_limits_the_rows_that_are_read_at_a_time(scene, tmp_path, monkeypatch):
    from ooc_pegasos.scoring import score

    text, most = (scene / "in.svm").read_text() * 20, {}
    (tmp_path / "large.svm").write_text(text)
    model = Model.load(scene / "m")
    for memory in (None, 32 << 20):
        blocks = score._Rows(score.Meaning.of_model(model), str(tmp_path / "large.svm"), True, memory)
        most[memory] = max(parsed.task.length for parsed, _made in blocks.blocks(2, lambda block: block.rows))
    assert most[None] == pytest.approx(min(len(text), 8 << 20), rel=0.01)
    assert most[32 << 20] <= (32 << 20) / 64


@pytest.mark.parametrize("command", [name for name in COMMANDS if (name, "--memory") not in WITHOUT])
@pytest.mark.parametrize(("size", "told"), [("much", "not a size"), ("1kB", "at least 32MB"), ("0", "choose")])
def test_sizes_of_memory_are_checked(scene, oocpeg, command, size, told):
    words = {
        "convert": [scene / "in.csv", "-o", "s"],
        "train": [scene / "in.csv", "-o", "m"],
        "evaluate": [scene / "m", scene / "in.svm"],
        "predict": [scene / "m", scene / "in.svm", "-o", "p.csv"],
        "verify": [scene / "s"],
    }[command]
    error = oocpeg(command, *words, "--memory", size, code=2).stderr
    assert told in error
    assert "--memory" in error
    assert len(error.splitlines()) == 1


def test_a_proof_shows_its_progress(scene):
    from support.terminals import EVERY_TEXT, Terminal, check_shown

    code, shown = Terminal(scene, "prove", "m", "s", "--proof", "p", before=EVERY_TEXT).end()
    assert code == 0, shown
    assert "checking the proof 100 %" in " ".join(check_shown(shown, 80))
