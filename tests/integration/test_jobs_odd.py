"""Jobs in unusual situations: no data is lost, problems are reported, and no run gets stuck."""

import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xxhash

from ooc_pegasos import Existing, Store, convert
from ooc_pegasos.errors import CorruptFileError, InputError, LockedError, UsageError
from ooc_pegasos.jobs import gate, records, state
from ooc_pegasos.jobs import run as running
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.plan import plan
from ooc_pegasos.jobs.run import rollback, run
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.readers import sources
from ooc_pegasos.util.json_checksum import decode, encode
from ooc_pegasos.util.locks import locked
from support.file_bytes import folder_bytes
from support.nights import JOB, changed_job, clock_of, job_of, job_rows, put_day, version_in_use
from support.rows import svmlight_text

LAX = "max_relative_regression = 0.9"


# --- what a job file names ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b", "[x] *y?", "line\nbreak", "ünïcode"])
def test_folders_and_files_of_any_name(tmp_path, oocpeg, name):
    folder = tmp_path / name
    folder.mkdir()
    job_of(folder)
    put_day(folder, 1)
    put_day(folder, 2).rename(folder / "incoming" / f"{name}.svm")
    planned = oocpeg("run", folder / "nightly.toml", "--dry-run").stdout
    assert "append 2 files" in planned
    assert len(planned.splitlines()) == 5
    record = json.loads(oocpeg("run", folder / "nightly.toml", "--json").stdout)
    assert record["store"]["new_rows"] == 600
    assert {one["name"] for one in record["fingerprints"]} == set(record["inputs"])
    assert plan(Job.load(folder / "nightly.toml"), clock_of(3)()).new == []


def test_where_subfolders_begin_that_are_columns(tmp_path):
    for day in (1, 2):
        (tmp_path / "data" / f"day={day}").mkdir(parents=True)
        rows = "".join(f"{i % 2},{i % 2 + 0.1 * i}\n" for i in range(200))
        (tmp_path / "data" / f"day={day}" / "x.csv").write_text("label,x\n" + rows)
    job = job_of(tmp_path)
    text = 'features = 40\nindex_base = 1\nvalues = "float32"', 'categorical = ["day"]\nnumeric = ["x"]\nhash_bits = 4'
    job = changed_job(tmp_path, ('"incoming/*.svm"', '"data/./*/*.csv"'), ('golden = ["golden.svm"]\n', ""), text)
    assert run(job, now=clock_of(1))["outcome"] == "promoted"


def test_reference_sets_of_equal_names_are_all_measured(tmp_path):
    job = job_of(tmp_path, gate="min_auc = 0.8")
    put_day(tmp_path, 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "golden.svm").write_text(svmlight_text(*job_rows(100, 7, flip=True)))
    shutil.copy(tmp_path / "golden.svm", tmp_path / "holdout")
    job = changed_job(tmp_path, ('["golden.svm"]', '["golden.svm", "other/golden.svm", "holdout"]'))
    record = run(job, now=clock_of(1))
    places = [str(tmp_path / name) for name in ("golden.svm", "other/golden.svm", "holdout")]
    assert list(record["metrics"]) == ["holdout", *places]
    assert [check["what"] for check in record["checks"] if not check["passed"]] == [
        f"{places[1]}: area under the ROC curve"
    ]


def test_errors_are_found_before_training(tmp_path):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    first = run(changed_job(tmp_path), now=clock_of(1))
    before = folder_bytes(tmp_path / "clicks.store")
    put_day(tmp_path, 2)
    other = tmp_path / "other.store"
    convert([str(tmp_path / "golden.svm")], other, dataclasses.replace(changed_job(tmp_path).convert, normalize="l2"))
    (tmp_path / "table.csv").write_text("label,x\n1,2\n-1,3\n")
    for setting, problem in (
        (("golden.svm", "nowhere.svm"), "nowhere.svm: no such file"),
        (("golden.svm", "other.store"), "made with normalize l2, the model's data with normalize no"),
        (("golden.svm", "table.csv"), "read as table"),
        (("log.jsonl", "no/log.jsonl"), "no such folder"),
        (("oocpeg.prom", "no/oocpeg.prom"), "no such folder"),
    ):
        text = (tmp_path / "nightly.toml").read_text()
        with pytest.raises(InputError, match=problem):
            run(changed_job(tmp_path, setting), now=clock_of(2))
        (tmp_path / "nightly.toml").write_text(text)
    (tmp_path / "models" / "current").unlink()
    os.symlink("2020-01-01T00-00-00", tmp_path / "models" / "current")
    with pytest.raises(CorruptFileError, match="where no model is; put another version in its"):
        run(changed_job(tmp_path), now=clock_of(2))
    assert folder_bytes(tmp_path / "clicks.store") == before
    with pytest.raises(InputError, match="name one with to"):  # which was in use, nobody knows
        rollback(Versions(tmp_path / "models"))
    assert rollback(Versions(tmp_path / "models"), first["run"]) == ("2020-01-01T00-00-00", first["run"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('reserve = "1MB"', "reserve = -1", "reserve -1 is out of range"),
        ('reserve = "1MB"', "reserve = 1" + "0" * 400, "out of range"),
        ('reserve = "1MB"', 'reserve = "lots"', "'lots' is not a size"),
        ('reserve = "1MB"', "notify = ''", "notify: names no command"),
        ('reserve = "1MB"', "notify = 'say \"no'", "notify: no closing quotation"),
        ('inputs = ["incoming/*.svm"]', 'inputs = "incoming"', "'inputs' should be a list"),
        ('inputs = ["incoming/*.svm"]', "inputs = [3]", "'inputs[0]' should be str"),
        ("[gate]", "[gates]", "unknown key 'gates'"),
        ("[gate]", "[gate]\nmin_acu = 0.7", "unknown key 'gate.min_acu'"),
        ("[gate]", "[gate]\nmin_auc = '0.7'", "'gate.min_auc' should be float or None"),
        ("[train]", "[train]\nholdout = 0", "golden"),
        ("lam = 1e-3", "lam = 'x'", "--lambda x is not understood"),
        ("[convert]", "convert = 3\n[other]", "unknown key 'other'"),
    ],
)
def test_job_files_that_are_wrong(tmp_path, oocpeg, old, new, message):
    job_of(tmp_path)
    text = (tmp_path / "nightly.toml").read_text().replace(old, new)
    (tmp_path / "nightly.toml").write_text(text.replace('golden = ["golden.svm"]', "") if "golden" in message else text)
    for more in ((), ("--dry-run",)):
        said = oocpeg("run", "nightly.toml", *more, code=2).stderr
        assert message in said
        assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("log", "metrics", "message"),
    [
        ("log.jsonl", "nightly.toml", "metrics: {}/nightly.toml is the job file itself; name another file"),
        ("./nightly.toml", "oocpeg.prom", "log: {}/./nightly.toml is the job file itself"),
        ("link.toml", "oocpeg.prom", "log: {}/link.toml is the job file itself"),
        ("same", "incoming/../same", "metrics: {}/incoming/../same is the log as well"),
        ("log.jsonl", "models", "metrics: {}/models is the folder of models"),
        ("clicks.store", "oocpeg.prom", "log: {}/clicks.store is the store"),
        ("log.jsonl", "clicks.store/manifest.json", "metrics: {0}/clicks.store/manifest.json is in the store {0}/"),
        ("golden.svm", "oocpeg.prom", "log: {}/golden.svm is a reference set, or in one"),
    ],
)
def test_overwriting_inputs_is_refused_before_the_run(tmp_path, oocpeg, log, metrics, message):
    job_of(tmp_path)
    path = put_day(tmp_path, 1).parent.parent / "nightly.toml"
    path.write_text(path.read_text().replace("log.jsonl", log).replace("oocpeg.prom", metrics))
    (tmp_path / "link.toml").symlink_to("nightly.toml")
    before = folder_bytes(tmp_path)
    for more in ((), ("--dry-run",)):
        said = oocpeg("run", path, *more, code=2).stderr
        assert f"error: {path}: " + message.format(tmp_path) in said
        assert len(said.splitlines()) == 1
    assert folder_bytes(tmp_path) == before


def test_probabilities_are_fitted_to_the_holdout_rows_of_a_job(tmp_path):
    put_day(tmp_path, 1)
    job = job_of(tmp_path, train="calibrate = 'platt'", gate=LAX)
    assert (job.train.holdout, job.training().holdout) == (0.1, 0.1)
    assert run(job, now=clock_of(1))["outcome"] == "promoted"
    with pytest.raises(UsageError, match="calibrate needs rows that no model is trained on"):
        job_of(tmp_path, train="calibrate = 'platt'\nholdout = 0")
    for train in ("folds = 3", "bias = 'search'"):
        with pytest.raises(UsageError, match="folds and bias = 'search' have no holdout rows to compare by"):
            job_of(tmp_path, train=train)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pipe", "empty", "folder", "dangling"])
def test_missing_inputs(tmp_path, oocpeg, what):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    odd = tmp_path / "incoming" / "odd.svm"
    {"pipe": os.mkfifo, "empty": lambda path: path.touch(), "folder": os.mkdir}.get(
        what, lambda path: path.symlink_to("nowhere")
    )(odd)
    problem = {
        "pipe": "neither a file nor a folder",
        "empty": "the file is empty",
        "folder": "is a folder",
        "dangling": "no such file",
    }
    assert problem[what] in oocpeg("run", "nightly.toml", code=3).stderr.lower()
    assert not (tmp_path / "clicks.store").exists()
    (os.rmdir if what == "folder" else os.unlink)(odd)
    oocpeg("run", "nightly.toml")


def test_no_job_file(oocpeg):
    assert "no such file" in oocpeg("run", "nothing.toml", code=3).stderr.lower()
    assert ".: a folder, not a TOML file" in oocpeg("run", ".", code=3).stderr


# --- what it does about it ------------------------------------------------------------------------


def test_nothing_new_and_nothing_at_all(tmp_path):
    job = job_of(tmp_path)
    with pytest.raises(InputError, match="no new file, and no store"):
        run(job, now=clock_of(1))
    put_day(tmp_path, 1)
    run(job, now=clock_of(2))
    shutil.rmtree(tmp_path / "incoming")
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"


def test_too_few_rows_for_a_holdout_until_there_are_more(tmp_path):
    """A failed step is not repeated while new input that would help is waiting."""
    job_of(tmp_path)
    job = changed_job(tmp_path, ("lam = 1e-3\n", ""))
    path = put_day(tmp_path, 1, rows=10)
    path.write_text("1 1:1\n-1 2:1\n")
    for day in (1, 2):
        with pytest.raises(UsageError, match="selects no holdout rows"):
            run(job, now=clock_of(day))
    put_day(tmp_path, 3, rows=500)
    record = run(job, now=clock_of(3))
    assert (record["outcome"], record["run"], record["store"]["rows"]) == ("promoted", "2026-11-21T02-00-00", 502)


def test_a_run_that_failed_in_the_comparison_is_resumed_there(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)

    def fails(model, data, judge):  # as it does for a bad row far into the reference set
        raise InputError(f"{data}:123456: a bad row")

    with monkeypatch.context() as patched:
        patched.setattr(gate, "measure", fails)
        with pytest.raises(InputError, match="a bad row"):
            run(job, now=clock_of(1))
    with monkeypatch.context() as patched:
        patched.setattr(running, "train", None)  # it is not needed any more
        record = run(job, now=clock_of(2))
    assert (record["outcome"], record["run"]) == ("promoted", "2026-11-19T02-00-00")


def test_an_unfinished_conversion_of_other_files_is_discarded(tmp_path, monkeypatch):
    """The run was killed while it appended, and when it goes on there are other files."""
    job = job_of(tmp_path, gate=LAX)
    put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    put_day(tmp_path, 2)

    def killed(*_words):
        raise SystemExit

    from ooc_pegasos.conversion.pipeline import Conversion

    with monkeypatch.context() as patched:
        patched.setattr(Conversion, "publish", killed)
        with pytest.raises(SystemExit):
            run(job, now=clock_of(2))
    assert (tmp_path / "clicks.store.unfinished" / "plan.json").exists()
    shutil.copy(tmp_path / "incoming" / "day-01.svm", tmp_path / "incoming" / "day-02.svm")  # which changes it
    put_day(tmp_path, 3)
    outcomes = []
    for day in (3, 4):
        try:
            outcomes.append(run(job, now=clock_of(day))["outcome"])
        except InputError:
            outcomes.append("failed")
    assert outcomes[-1] in ("promoted", "unchanged")
    assert not (tmp_path / "clicks.store.unfinished").exists()
    assert Store.open(tmp_path / "clicks.store").rows in (600, 900)


def test_a_resumed_run_starts_the_next_only_with_new_input(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    for day, more in ((1, False), (2, True)):
        put_day(tmp_path, day)

        def killed(*_words, **_named):
            raise SystemExit

        with monkeypatch.context() as patched:
            patched.setattr(running, "train", killed)
            with pytest.raises(SystemExit):
                run(job, now=clock_of(day))
        if more:
            put_day(tmp_path, 5)
        record = run(job, now=clock_of(day + 0.5))
        assert record["outcome"] == "promoted"
        assert record["store"]["new_rows"] == 300
        assert record["run"][11:13] == ("14" if more else "02")


def test_a_store_that_was_replaced(tmp_path):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    first = run(changed_job(tmp_path), now=clock_of(1))
    shutil.rmtree(tmp_path / "clicks.store")
    job = changed_job(tmp_path, ("[convert]", '[convert]\nnormalize = "l2"'))
    with pytest.raises(InputError, match="use another folder of models"):
        run(job, now=clock_of(2))
    assert version_in_use(tmp_path) == first["run"]
    shutil.rmtree(tmp_path / "clicks.store")
    shutil.rmtree(tmp_path / "models" / ".run")
    job = changed_job(tmp_path, ('normalize = "l2"\n', ""))
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"


def test_the_models_are_gone(tmp_path, oocpeg):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    oocpeg("run", "nightly.toml")
    shutil.rmtree(tmp_path / "models")
    assert "no model was in use to compare with" in oocpeg("run", "nightly.toml").stdout


def test_a_damaged_store_is_not_trained_on(tmp_path, oocpeg):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    oocpeg("run", "nightly.toml", "-q")
    before = folder_bytes(tmp_path / "models")
    chunk = next((tmp_path / "clicks.store").glob("chunk-*"))
    content = bytearray(chunk.read_bytes())
    content[5000] ^= 1
    chunk.write_bytes(content)
    put_day(tmp_path, 2)
    for _again in range(2):
        assert "the checksum does not match" in oocpeg("run", "nightly.toml", code=5).stderr
    left = folder_bytes(tmp_path / "models")
    assert {name: left[name] for name in before if not name.endswith("lock")} == {
        name: content for name, content in before.items() if not name.endswith("lock")
    }


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, "{", "[]", "3", "{}", '{"training": 3}', "\0", "[" * 100_000])
def test_a_record_that_cannot_be_read_means_training_once_more(tmp_path, content):
    job = job_of(tmp_path, gate=LAX)
    put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    path = tmp_path / "models" / "current" / "run.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert run(job, now=clock_of(2))["outcome"] == "promoted"
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"


def state_after(folder, monkeypatch, step):
    """The state of a run that was killed after a step."""
    job = job_of(folder, gate=LAX)
    put_day(folder, 1)
    with monkeypatch.context() as patched:
        where, what = {"train_candidate": (running.JobRun, "compare"), "compare": (Versions, "publish")}[step]
        patched.setattr(where, what, lambda *_words: sys.exit())
        with pytest.raises(SystemExit):
            run(job, now=clock_of(1))
    return job, folder / "models" / ".run" / "state.json"


def test_an_invalid_state_is_refused_in_one_line(tmp_path, monkeypatch):
    job, path = state_after(tmp_path, monkeypatch, "train_candidate")
    table = decode(path.read_bytes())
    good = path.read_bytes()
    wrong = [b"", b"{", b"[]", b"3", b"{}", good[:-3], good.replace(b"2026", b"2027", 1), b"[" * 100_000]
    for change in (
        {"run": "../../x"},
        {"run": None},
        {"append": {"rows": "x"}},
        {"seconds": []},
        {"plan": {"new": 3}},
        {"train": 3},
        {"train": None, "compare": table["compare"] or {"checks": []}},
        {"nonsense": 1},
    ):
        wrong.append(encode({**table, **change}))
    del table["job"]
    wrong.append(encode(table))
    for content in wrong:
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"state\.json: .*; remove .* to begin anew") as caught:
            run(job, now=clock_of(2))
        assert len(str(caught.value).splitlines()) == 1
    path.write_bytes(good)
    assert run(job, now=clock_of(2))["run"] == "2026-11-19T02-00-00"


# --- the gate -------------------------------------------------------------------------------------


def test_a_champion_without_errors(tmp_path, oocpeg):
    """Nothing is a share of nothing, and JSON has no infinity."""
    job_of(tmp_path, gate="metric = 'error'")
    changed_job(tmp_path, ("features = 40", "features = 2"))
    (tmp_path / "golden.svm").write_text("1 1:1\n-1 2:1\n" * 50)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "a.svm").write_text("1 1:1\n-1 2:1\n" * 200)
    oocpeg("run", "nightly.toml")
    (tmp_path / "incoming" / "b.svm").write_text("-1 1:1\n1 2:1\n" * 2000)
    done = oocpeg("run", "nightly.toml", "--json", code=7)
    record = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(word))
    check = next(check for check in record["checks"] if check["what"].startswith("golden.svm"))
    assert (check["passed"], check["found"], check["needed"]) == (False, 1.0, 0.0)
    for path in [*(tmp_path / "models").rglob("*.json"), tmp_path / "log.jsonl"]:
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(text, parse_constant=lambda word: pytest.fail(word))


def test_undefined_resamples_are_no_evidence():
    labels = np.where(np.arange(1000) < 2, 1.0, -1.0)  # about one resample in seven has no positive row
    found = gate.Measured({"roc_auc": 1.0}, labels.copy(), labels, labels * 0)
    sure = gate.confidence("roc_auc", found, found, 0.0)
    assert 0.75 < sure < 0.95


def test_regression_is_a_share_of_the_champions():
    assert gate.regression("roc_auc", 0.8, 0.76) == pytest.approx(0.05)
    assert gate.regression("error", 0.2, 0.25) == pytest.approx(0.25)
    assert gate.regression("error", 0.0, 0.0) == 0
    assert math.isinf(gate.regression("error", 0.0, 0.1))


# --- reports --------------------------------------------------------------------------------

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (-?[0-9.e+-]+)\n')
"""As the text format has it: https://prometheus.io/docs/instrumenting/exposition_formats/"""


def test_metrics_are_replaced_atomically_with_any_names(tmp_path, monkeypatch):
    job = dataclasses.replace(job_of(tmp_path, more="name = 'a \"b\" \\\\ c\\nd'"), name='a "b" \\ c\nd')
    put_day(tmp_path, 1)
    seen = []
    original = os.replace

    def replace(old, new):
        if str(new).endswith("oocpeg.prom"):
            assert not str(old).endswith(".prom")  # the exporter takes no half of it
            seen.append(str(old))
        original(old, new)

    monkeypatch.setattr(os, "replace", replace)
    run(job, now=clock_of(1))
    assert len(seen) == 1
    text = (tmp_path / "oocpeg.prom").read_text()
    families = re.findall(r"# HELP ([a-z_]+) [^\n]+\n# TYPE \1 gauge\n((?:\1\{.+\n)+)", text)
    assert "".join(f"# {name}" for name, _ in families).count("#") == text.count("# HELP") == text.count("# TYPE")
    samples = [line for _name, lines in families for line in lines.splitlines(keepends=True)]
    assert all(SAMPLE.fullmatch(line) for line in samples)
    assert len(samples) + 2 * len(families) == len(text.splitlines())
    assert len({line.rsplit(" ", 1)[0] for line in samples}) == len(samples)
    assert 'oocpeg_model_certified{name="a \\"b\\" \\\\ c\\nd"} 1\n' in text


def test_a_record_suffices_to_repeat_a_run(tmp_path):
    job = job_of(tmp_path, gate=LAX)
    for day in (1, 2):
        path = put_day(tmp_path, day)
        record = run(job, now=clock_of(day))
    told = json.loads((tmp_path / "models" / "current" / "run.json").read_text())
    for name in ("job", "run", "outcome", "exit_code", "inputs", "fingerprints", "options", "training", "versions"):
        assert told[name] == record[name]
    assert told["fingerprints"] == [
        {
            "name": str(path),
            "size": path.stat().st_size,
            "modified_ns": path.stat().st_mtime_ns,
            "samples": xxhash.xxh64(path.read_bytes()).hexdigest(),
            "xxh64": xxhash.xxh64(path.read_bytes()).hexdigest(),
            "rows": 300,
        }
    ]
    assert set(told["versions"]) == {"ooc-pegasos", "python", "numpy", "numba", "pyarrow"}
    assert set(told["seconds"]) == {"plan", "append", "drift", "expire", "train", "compare"}
    assert told["model"]["gap"] <= 0.01
    assert (told["champion"], told["in_use"]) == ("2026-11-19T02-00-00", "2026-11-20T02-00-00")
    assert set(told["drift"]) == {"before", "new"}
    assert told["metrics"]["golden.svm"]["champion"]["roc_auc"] > 0.5
    assert told["peak_rss"] > 0


def test_notify_on_the_command_line_and_that_it_fails(tmp_path, oocpeg):
    job_of(tmp_path, more="notify = 'false'")
    put_day(tmp_path, 1)
    assert "notify: false: exit code 1" in oocpeg("run", "nightly.toml").stderr
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["problems"] == [
        "notify: false: exit code 1: "
    ]
    command = f"{sys.executable} -c \"import os, sys; open('told', 'w').write(os.environ['OOCPEG_OUTCOME'])\""
    oocpeg("run", "nightly.toml", "--notify", command)
    assert (tmp_path / "told").read_text() == "unchanged"
    path = put_day(tmp_path, 2)
    path.write_text("nonsense\n")
    oocpeg("run", "nightly.toml", "-q", "--notify", command, code=3)
    assert (tmp_path / "told").read_text() == "failed"
    assert "no such file" in oocpeg("run", "nightly.toml", "--notify", "nothing-like-it", code=3).stderr.lower()
    assert "notify: names no command" in oocpeg("run", "nightly.toml", "--notify", " ", code=2).stderr


def test_a_command_to_notify_that_hangs():
    began = time.monotonic()
    problem = records.notify(f"{sys.executable} -c 'import time; time.sleep(60)'", TOLD, seconds=0.2)
    assert problem.endswith("took longer than 0.2 seconds, and was stopped")
    assert time.monotonic() - began < 20


TOLD = {"job": "j", "outcome": "o"}


def script(folder, text):
    """Write a script and return its path."""
    path = folder / "send mail.sh"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return shlex.quote(str(path))


def gone(path):
    """Whether the process whose number stands in a file has ended, now or very soon."""
    for _again in range(250):
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{path.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


def test_a_command_to_notify_that_prints_without_end(tmp_path):
    command = script(tmp_path, f"echo $$ >{shlex.quote(str(tmp_path))}/number; yes no >&2 & exec yes")
    before = records.peak_rss()
    assert "took longer than 1 seconds" in records.notify(command, TOLD, seconds=1)
    assert records.peak_rss() - before < 10**8
    assert gone(tmp_path / "number")


def test_background_processes_of_the_notify_command_are_not_awaited(tmp_path):
    began = time.monotonic()
    (tmp_path / "said").write_bytes("Grü".encode() + b"\xdfe\x1b[2J")
    command = script(tmp_path, f"sleep 20 & cat {shlex.quote(str(tmp_path))}/said >&2; exit 3")
    told = records.notify(command, TOLD)
    assert time.monotonic() - began < 10
    assert "exit code 3: Grü\\xdfe\\x1b[2J" in told
    assert told.isprintable()
    whole = json.dumps({**TOLD, "inputs": ["x" * 1_000_000]})
    command = script(tmp_path, f"test $(wc -c) -eq {len(whole)} && test $OOCPEG_JOB = j && exec >&2 2>&-")
    assert records.notify(command, json.loads(whole)) is None
    assert "exit code -9" in records.notify(script(tmp_path, "kill -9 $$"), TOLD)
    told = records.notify(script(tmp_path, "yes | head -c 1000000 >&2; yes | head -c 900000 >&2; exit 4"), TOLD)
    assert r"exit code 4: y\ny\n" in told
    assert len(told) < 900


def test_ctrl_c_during_notification(tmp_path, monkeypatch):
    number = tmp_path / "number"
    command = script(tmp_path, f"echo $$ >{shlex.quote(str(number))}; sleep 60")
    heard = records.read_pipe

    def interrupted(*words):
        if number.exists() and number.read_text():
            raise KeyboardInterrupt
        return heard(*words)

    monkeypatch.setattr(records, "read_pipe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        records.notify(command, TOLD)
    assert gone(number)


def test_the_notify_command_is_relative_to_the_job_file(tmp_path, oocpeg):
    folder = tmp_path / "job's own"
    folder.mkdir()
    script(folder, 'echo "$1 $OOCPEG_OUTCOME" >told')
    for command in ('"./send mail.sh" "a b"', '"../job\'s own/send mail.sh" "a b"'):
        job_of(folder, more=f"notify = {json.dumps(command)}")
        put_day(folder, 1)
        assert "notify" not in oocpeg("run", folder / "nightly.toml").stderr
        assert (tmp_path / "told").read_text().startswith("a b ")
        (tmp_path / "told").unlink()
    said = oocpeg("run", folder / "nightly.toml", "--notify", "'./send mail.sh'").stderr
    assert "no such file" in said.lower()
    assert Job.load(folder / "nightly.toml", "./x y").notify == "./x y"
    for command in ("mail -s 'a b' me@here", "/bin/true  a/b"):
        job_of(folder, more=f"notify = {json.dumps(command)}")
        assert Job.load(folder / "nightly.toml").notify == command


@pytest.mark.parametrize("reader", [False, True])
def test_a_log_that_is_a_pipe(tmp_path, reader):
    """A run waits for nobody who might read it."""
    os.mkfifo(tmp_path / "log.jsonl")
    log = records.Log(str(tmp_path / "log.jsonl"), job="j")
    if reader:
        descriptor = os.open(tmp_path / "log.jsonl", os.O_RDONLY | os.O_NONBLOCK)
        log.write("begins")
        assert json.loads(os.read(descriptor, 10_000))["event"] == "begins"
        assert log.problem is None
        log.write("much", names=["x" * 1_000_000])
        assert log.problem.endswith("log.jsonl: a line was cut short")
        os.close(descriptor)
        return
    put_day(tmp_path, 1)
    assert run(job_of(tmp_path), now=clock_of(1))["outcome"] == "promoted"
    log.write("begins")
    assert log.problem.endswith("log.jsonl: No such device or address")


def test_a_second_run_reports_the_lock(tmp_path):
    told = tmp_path / "told"
    command = f"{sys.executable} -c \"import sys; open('{told}', 'w').write(sys.stdin.read())\""
    job = Job.load(tmp_path / "nightly.toml", command) if job_of(tmp_path) else None
    (tmp_path / "models").mkdir()
    with locked(tmp_path / "models" / ".lock", "another"), pytest.raises(LockedError):
        run(job, now=clock_of(1))
    record = json.loads(told.read_text())
    assert (record["outcome"], record["exit_code"]) == ("failed", 6)
    assert json.loads((tmp_path / "log.jsonl").read_text())["exit_code"] == 6
    assert not (tmp_path / "oocpeg.prom").exists()  # that is for who holds the lock


def test_unexpected_errors_are_recorded(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)

    def broken(*_words, **_named):
        raise ZeroDivisionError("by nought")

    with monkeypatch.context() as patched:
        patched.setattr(running, "train", broken)
        with pytest.raises(ZeroDivisionError):
            run(job, now=clock_of(1))
    record = json.loads((tmp_path / "models" / "runs" / "2026-11-19T02-00-00.json").read_text())
    assert (record["outcome"], record["exit_code"], record["error"]) == ("failed", 1, "ZeroDivisionError: by nought")
    assert run(job, now=clock_of(2))["outcome"] == "promoted"


def test_quiet_and_json_together(tmp_path, oocpeg):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    done = oocpeg("run", "nightly.toml", "--quiet", "--json")
    assert (json.loads(done.stdout)["outcome"], done.stderr) == ("promoted", "")
    planned = json.loads(oocpeg("run", "nightly.toml", "--quiet", "--json", "--dry-run").stdout)
    assert (planned["new"], planned["known"], planned["champion"]) == ([], 1, version_in_use(tmp_path))
    assert oocpeg("run", "nightly.toml", "--quiet").stdout == ""


# --- stores that others use -----------------------------------------------------------------------


def test_changed_sources_are_detected_in_all_folders(tmp_path):
    """Also one that the patterns do not name any more, or that is older than the window."""
    job = job_of(tmp_path, more="expire_days = 5", gate=LAX)
    path = put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    moved = tmp_path / "incoming" / "day-01.old"
    moment = path.stat().st_mtime_ns
    path.write_text(path.read_text()[:-40] + "\n")
    os.utime(path, ns=(moment, moment - 10**9 * 86_400 * 30))
    put_day(tmp_path, 2)
    with pytest.raises(InputError, match=r"day-01\.svm: changed after the store was made of it"):
        run(job, now=clock_of(2))
    path.rename(moved)  # missing files are not compared
    assert run(job, now=clock_of(2))["outcome"] == "promoted"


def test_a_source_that_changed_in_place_is_refused_before_anything_is_done(tmp_path):
    """Its size and time are what they were: its samples are not."""
    job = job_of(tmp_path, gate=LAX)
    path = put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    before = folder_bytes(tmp_path / "clicks.store"), version_in_use(tmp_path)
    moment, content = path.stat().st_mtime_ns, path.read_bytes()
    path.write_bytes(content.replace(b"\n1 ", b"\n2 ", 1))
    os.utime(path, ns=(moment, moment))
    put_day(tmp_path, 2)
    with pytest.raises(InputError, match=r"day-01\.svm: changed after the store was made of it"):
        run(job, now=clock_of(2))
    assert (folder_bytes(tmp_path / "clicks.store"), version_in_use(tmp_path)) == before
    path.write_bytes(content)
    os.utime(path, ns=(moment, moment))
    assert run(job, now=clock_of(2))["outcome"] == "promoted"


def test_a_store_that_was_made_from_another_folder(tmp_path, monkeypatch):
    """Its files are known by where they are, and not by what they were called from there."""
    job = job_of(tmp_path, gate=LAX)
    path = put_day(tmp_path, 1)
    monkeypatch.chdir(tmp_path / "incoming")
    convert(["./day-01.svm"], tmp_path / "clicks.store", job.convert)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copy(tmp_path / "golden.svm", "day-01.svm")  # another file of that name
    with monkeypatch.context() as patched:
        patched.setattr(sources, "hash_of", None)  # no byte has to be read besides samples
        assert (plan(job, clock_of(2)()).new, plan(job, clock_of(2)()).known) == ([], 1)
    put_day(tmp_path, 1, noise=0.4)
    with pytest.raises(InputError, match=r"incoming/day-01\.svm: changed after the store was made of it"):
        run(job, now=clock_of(2))
    path.unlink()
    put_day(tmp_path, 2)
    assert run(job, now=clock_of(2))["store"]["new_rows"] == 300


def test_a_folder_of_tables_is_known_by_name(tmp_path, monkeypatch):
    """Whose names have a mark where the folders begin that are columns."""
    job_of(tmp_path, gate=LAX)
    text = (tmp_path / "nightly.toml").read_text()
    text = text.replace('"incoming/*.svm"', '"sub/../tables"').replace('golden = ["golden.svm"]', "")
    (tmp_path / "nightly.toml").write_text(text.replace("features = 40\nindex_base = 1\n", ""))
    (tmp_path / "sub").mkdir()
    rng = np.random.default_rng(0)
    for day in (1, 2):
        (tmp_path / "tables" / f"day={day}").mkdir(parents=True)
        rows = "".join(f"{x > 0:d},{x}\n" for x in rng.normal(size=200))
        (tmp_path / "tables" / f"day={day}" / "a.csv").write_text("label,x\n" + rows)
    job = Job.load(tmp_path / "nightly.toml")
    assert run(job, now=clock_of(1))["store"]["new_rows"] == 400
    names = [source.name for source in Store.open(job.store).manifest.sources]
    assert names == [f"{tmp_path}/tables/day={day}/a.csv" for day in (1, 2)]
    monkeypatch.setattr(sources, "hash_of", None)
    assert plan(job, clock_of(2)()).known == 2


def test_a_folder_of_texts_is_known_again(tmp_path):
    job_of(tmp_path, gate=LAX)
    text = (tmp_path / "nightly.toml").read_text()
    text = text.replace('"incoming/*.svm"', '"texts"').replace('golden = ["golden.svm"]', "")
    (tmp_path / "nightly.toml").write_text(text.replace("features = 40\nindex_base = 1\n", ""))
    for number in range(60):
        for word in ("good", "bad"):
            (tmp_path / "texts" / word).mkdir(parents=True, exist_ok=True)
            (tmp_path / "texts" / word / str(number)).write_text(f"{word} {number}")
    job = Job.load(tmp_path / "nightly.toml")
    assert run(job, now=clock_of(1))["outcome"] == "promoted"
    assert run(job, now=clock_of(2))["outcome"] == "unchanged"
    (tmp_path / "texts" / "good" / "0").write_text("worse")
    with pytest.raises(InputError, match="texts: changed after it was appended"):
        run(job, now=clock_of(3))


@pytest.mark.slow
def test_two_jobs_on_one_store(tmp_path, oocpeg):
    """The second finds the rows in the store, and trains its own model on them."""
    job_of(tmp_path, gate=LAX)
    put_day(tmp_path, 1)
    oocpeg("run", "nightly.toml")
    text = (tmp_path / "nightly.toml").read_text().replace('"models"', '"others"').replace("lam = 1e-3", "lam = 1e-2")
    (tmp_path / "second.toml").write_text(text)
    record = json.loads(oocpeg("run", "second.toml", "--json").stdout)
    assert (record["outcome"], record["store"]["rows"], record["store"]["new_rows"]) == ("promoted", 300, 0)
    assert record["model"]["lambda"] == 1e-2
    with locked(tmp_path / "clicks.store.unfinished" / "lock", "another"):
        put_day(tmp_path, 2)
        said = oocpeg("run", "second.toml", code=6).stderr
    assert f"clicks.store: process {os.getpid()} is at work on it" in said
    assert "wait for it" in said
    oocpeg("run", "second.toml")
    oocpeg("run", "nightly.toml")


def test_two_trainings_of_one_model(tmp_path, oocpeg):
    put_day(tmp_path, 1)
    convert([str(tmp_path / "incoming" / "day-01.svm")], tmp_path / "store")
    words = ("train", "store", "-o", "model", "--lambda", "0.1", "--force")
    oocpeg(*words)
    before = (tmp_path / "model").read_bytes()
    with locked(tmp_path / ".model.lock", "another"):
        said = oocpeg(*words, code=6).stderr
    assert f"model: process {os.getpid()} is at work on it; wait for it or stop it" in said
    assert (tmp_path / "model").read_bytes() == before
    assert (tmp_path / ".model.lock").exists()  # as if its holder had been killed
    oocpeg(*words)
    assert not (tmp_path / ".model.lock").exists()


def test_a_store_that_grows_while_it_is_trained_on(tmp_path):
    """Who reads and who appends do not wait for each other; each has the store whole."""
    for day in (1, 2):
        put_day(tmp_path, day)
    store = convert([str(tmp_path / "incoming" / "day-01.svm")], tmp_path / "store")
    command = [sys.executable, "-m", "ooc_pegasos", "train", "store", "-o", "model", "--lambda", "1e-6", "--quiet"]
    command += ["--tolerance", "1e-12", "--max-epochs", "100000000", "--checkpoint", "c", "--checkpoint-epochs", "1"]
    child = subprocess.Popen([*command, "--algorithm", "sgd-s"], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        while not (tmp_path / "c" / "training.checkpoint").exists():
            assert child.poll() is None
            time.sleep(0.02)
        source = [str(tmp_path / "incoming" / "day-02.svm")]
        assert convert(source, tmp_path / "store", existing=Existing(append=True)).rows == 600
        time.sleep(0.2)
        assert child.poll() is None
    finally:
        child.terminate()
        _out, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert store.rows == 300


def test_the_state_is_read_by_its_own_words(tmp_path, monkeypatch):
    _job, path = state_after(tmp_path, monkeypatch, "compare")
    found = state.load(path.parent)
    assert found.compare.rows == 300
    assert found.train.converged
    found.save(tmp_path)
    assert state.load(tmp_path) == found
    assert JOB  # the same words as the other tests
