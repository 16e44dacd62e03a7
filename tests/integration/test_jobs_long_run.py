"""Jobs over many nights: interrupted, rolled back and lost runs, and their records."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import xxhash
from sklearn.datasets import load_svmlight_files

from ooc_pegasos import ConvertConfig, Existing, Model, Store, convert
from ooc_pegasos.conversion import source_check
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.jobs import records
from ooc_pegasos.jobs import run as running
from ooc_pegasos.jobs.job import Gate, Job
from ooc_pegasos.jobs.plan import plan
from ooc_pegasos.jobs.run import preview, rollback, run
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.store.append_expire import expire, expired_parts
from ooc_pegasos.store.manifest import read
from ooc_pegasos.training import state as progression
from ooc_pegasos.util.checkpoint import Checkpoint
from support.nights import JOB, changed_job, clock_of, job_of, job_rows, put_day, version_in_use
from support.rows import svmlight_text

LAX = "max_relative_regression = 0.9"


def nights(folder, job, days):
    """The records of a run a night, each with new rows."""
    told = []
    for day in days:
        put_day(folder, day)
        told.append(run(job, now=clock_of(day)))
    return told


def killed_in(monkeypatch, step, job, day, after=False):
    """A run that is gone, as if by SIGKILL, before or after a step."""
    original = getattr(running.JobRun, step)

    def killed(*arguments):
        if after:
            original(*arguments)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(running.JobRun, step, killed)
        with pytest.raises(SystemExit):
            run(job, now=clock_of(day))


# --- the version in use ----------------------------------------------------------------------


def test_a_lost_link_does_not_open_the_gate(tmp_path, oocpeg):
    job = job_of(tmp_path, more="keep = 1")
    first = nights(tmp_path, job, [1])[0]["run"]
    (tmp_path / "models" / "current").unlink()
    put_day(tmp_path, 2, rows=3000, flip=True)
    with pytest.raises(CorruptFileError, match="there are versions"):
        plan(job, clock_of(2)())
    with pytest.raises(CorruptFileError, match="put it in use again with 'oocpeg rollback --to'"):
        run(job, now=clock_of(2))
    assert Versions(tmp_path / "models").names() == [first]
    assert "--to" in oocpeg("rollback", tmp_path / "models", code=3).stderr
    oocpeg("rollback", tmp_path / "models", "--to", first)
    assert run(job, now=clock_of(2))["outcome"] == "refused"
    assert version_in_use(tmp_path) == first


def test_rolling_back_leads_to_what_was_in_use_before(tmp_path):
    job, versions = job_of(tmp_path, gate=LAX), Versions(tmp_path / "models")
    one, two, bad = (told["run"] for told in nights(tmp_path, job, [1, 2, 3]))
    assert rollback(versions) == (bad, two)
    four = nights(tmp_path, job, [4])[0]["run"]
    assert rollback(versions) == (four, two)
    assert rollback(versions) == (two, one)
    with pytest.raises(InputError, match="does not exist or is not known"):
        rollback(versions)
    assert version_in_use(tmp_path) == one


def test_what_was_rolled_back_is_the_first_to_go(tmp_path):
    job, versions = job_of(tmp_path, more="keep = 2", gate=LAX), Versions(tmp_path / "models")
    _one, two, bad = (told["run"] for told in nights(tmp_path, job, [1, 2, 3]))
    rollback(versions)
    four = nights(tmp_path, job, [4])[0]["run"]
    assert versions.names() == [two, four]
    assert bad not in versions.names()


def test_a_damaged_model_is_not_put_in_use(tmp_path, oocpeg):
    job = job_of(tmp_path, gate=LAX)
    one, two = (told["run"] for told in nights(tmp_path, job, [1, 2]))
    os.truncate(tmp_path / "models" / one / "model", 100)
    told = oocpeg("rollback", tmp_path / "models", code=5).stderr
    assert "choose another version" in told
    assert version_in_use(tmp_path) == two


def test_rolling_back_where_there_is_nothing_of_the_kind(tmp_path, oocpeg):
    (tmp_path / "photos").mkdir()
    assert "no version of a model" in oocpeg("rollback", tmp_path / "photos", code=3).stderr
    assert list((tmp_path / "photos").iterdir()) == []
    first = nights(tmp_path, job_of(tmp_path), [1])[0]["run"]
    told = oocpeg("rollback", tmp_path / "models", "--to", first).stdout
    assert told.rstrip().endswith("as before")
    current = tmp_path / "models" / "current"
    current.unlink()
    shutil.copytree(tmp_path / "models" / first, current)
    assert f"{current}: not a link" in oocpeg("rollback", tmp_path / "models", "--to", first, code=3).stderr


@pytest.mark.parametrize("back", [False, True])
def test_ctrl_c_during_notification_keeps_the_result(tmp_path, monkeypatch, back):
    job = dataclasses.replace(job_of(tmp_path, gate=LAX), notify="true")
    first = nights(tmp_path, dataclasses.replace(job, notify=None), [1])[0]["run"]
    put_day(tmp_path, 2)
    told = []

    def interrupted(command, record):
        told.append(record["outcome"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(records, "notify", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(job, now=clock_of(2))
    second = version_in_use(tmp_path)
    assert (told, second != first) == (["promoted"], True)
    record = json.loads((tmp_path / "models" / "runs" / f"{second}.json").read_text())
    assert (record["outcome"], record["in_use"]) == ("promoted", second)
    assert 'oocpeg_run_exit_code{name="nightly"} 0' in (tmp_path / "oocpeg.prom").read_text()
    if back:  # then what was compared is compared again
        rollback(Versions(tmp_path / "models"))
        record = run(job, now=clock_of(2.5))
        assert record["run"] > second
        assert record["champion"] == first
    else:
        assert run(job, now=clock_of(2.5))["run"] == second
        assert not (tmp_path / "models" / ".run").exists()


def test_a_version_promoted_by_hand_is_the_champion(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    one, two = (told["run"] for told in nights(tmp_path, job, [1, 2]))
    put_day(tmp_path, 3)
    killed_in(monkeypatch, "compare", job, 3)
    state = json.loads((tmp_path / "models" / ".run" / "state.json").read_text())
    assert state["champion"] == two
    os.unlink(tmp_path / "models" / "current")
    os.symlink(one, tmp_path / "models" / "current")
    record = run(job, now=clock_of(3.5))
    assert (record["outcome"], record["champion"]) == ("promoted", one)
    golden = record["metrics"]["golden.svm"]["champion"]
    matrix, labels = load_svmlight_files([str(tmp_path / "golden.svm")], n_features=40, zero_based=False)
    predicted = np.where(Model.load(tmp_path / "models" / one / "model").decision_function(matrix) > 0, 1, -1)
    assert golden["error"] == pytest.approx((predicted != labels).mean())


# --- the rows of a run -----------------------------------------------------------------


def test_a_source_that_changes_while_a_run_is_down_is_noticed(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    first = nights(tmp_path, job, [1])[0]["run"]
    path = put_day(tmp_path, 2)
    killed_in(monkeypatch, "train_candidate", job, 2)
    path.write_text(path.read_text() + "1 1:1\n")
    for again in (2.5, 2.6):
        with pytest.raises(InputError, match=r"day-02.svm: changed after"):
            run(job, now=clock_of(again))
        assert version_in_use(tmp_path) == first
        assert Versions(tmp_path / "models").names() == [first]


def test_skipped_rows_are_reported(tmp_path, oocpeg):
    put_day(tmp_path, 1)
    job_of(tmp_path, gate=LAX)
    job = changed_job(tmp_path, ('values = "float32"', 'values = "float32"\non_bad_row = "skip"'))
    assert run(job, now=clock_of(1))["store"]["rejected_rows"] == 0
    for day, bad in ((2, 7), (3, 4)):
        path = put_day(tmp_path, day)
        path.write_text(path.read_text() + "nonsense\n" * bad)
        told = oocpeg("run", tmp_path / "nightly.toml").stdout
        assert f"{bad} rows rejected" in told
        version = version_in_use(tmp_path)
        record = json.loads((tmp_path / "models" / version / "run.json").read_text())
        assert record["store"]["rejected_rows"] == bad
        assert f'oocpeg_rejected_rows{{name="nightly"}} {bad}' in (tmp_path / "oocpeg.prom").read_text()


def test_early_failures_report_the_version_in_use(tmp_path):
    job = job_of(tmp_path, gate=LAX)
    first = nights(tmp_path, job, [1])[0]["run"]
    path = tmp_path / "incoming" / "day-01.svm"
    content = path.read_bytes()
    path.write_bytes(content + b"1 1:1\n")
    with pytest.raises(InputError):
        run(job, now=clock_of(2))
    path.write_bytes(content)
    (tmp_path / "models" / ".run").mkdir()
    (tmp_path / "models" / ".run" / "state.json").write_text("nonsense")
    with pytest.raises(CorruptFileError, match=r"state.json"):
        run(job, now=clock_of(3))
    for day, code in (("20", 3), ("21", 5)):
        record = json.loads((tmp_path / "models" / "runs" / f"2026-11-{day}T02-00-00.json").read_text())
        assert (record["outcome"], record["exit_code"]) == ("failed", code)
        assert (record["in_use"], record["store"]["rows"]) == (first, 300)
    metrics = (tmp_path / "oocpeg.prom").read_text()
    assert 'oocpeg_run_exit_code{name="nightly"} 5' in metrics
    assert 'oocpeg_model_timestamp_seconds{name="nightly"}' in metrics
    assert 'oocpeg_store_rows{name="nightly"} 300' in metrics


def test_drift_if_all_earlier_rows_expire(tmp_path):
    job = job_of(tmp_path, more="expire_days = 1", gate=LAX)
    told = nights(tmp_path, job, range(1, 5))
    for day, record in enumerate(told, start=1):
        assert record["store"]["expired_rows"] == (300 if day > 1 else 0)
        assert (record["drift"] is None) == (day == 1)
        if day > 1:
            _matrix, labels = job_rows(300, day)
            _matrix, before = job_rows(300, day - 1)
            shares = {side: record["drift"][side]["label_shares"]["1"] for side in ("before", "new")}
            assert shares == {"before": (before > 0).mean(), "new": (labels > 0).mean()}


def test_drift_of_real_targets(tmp_path):
    job_of(tmp_path)
    (tmp_path / "nightly.toml").write_text(
        JOB.format(more="", train="", gate="max_relative_regression = 0.99\nrequire_certified = false")
        .replace('golden = ["golden.svm"]', "")
        .replace("index_base = 1", 'index_base = 1\ntask = "regression"')
    )
    job, targets = Job.load(tmp_path / "nightly.toml"), {}
    for day, shift in ((1, 0), (2, 3)):
        path = put_day(tmp_path, day)
        matrix, _labels = job_rows(300, day)
        targets[day] = np.round(matrix @ np.arange(40.0) + shift, 3)
        path.write_text(svmlight_text(matrix, targets[day]))
        record = run(job, now=clock_of(day))
    for side, day in (("before", 1), ("new", 2)):
        assert record["drift"][side]["mean_label"] == pytest.approx(targets[day].mean())
        assert record["drift"][side]["deviation_of_labels"] == pytest.approx(targets[day].std())
    assert 'oocpeg_mean_label{name="nightly",rows="new"}' in (tmp_path / "oocpeg.prom").read_text()


@pytest.mark.parametrize(("step", "after"), [("append", True), ("converted", True), ("train_candidate", False)])
def test_rows_appended_by_an_abandoned_run_are_trained_on(tmp_path, monkeypatch, step, after):
    job = job_of(tmp_path, gate=LAX)
    nights(tmp_path, job, [1])
    put_day(tmp_path, 2)
    killed_in(monkeypatch, step, job, 2, after)
    job = changed_job(tmp_path, ("lam = 1e-3", "lam = 2e-3"))  # another job, so it begins anew
    killed_in(monkeypatch, "append", job, 2.5)  # and is gone at once
    put_day(tmp_path, 3)
    job = changed_job(tmp_path, ("lam = 2e-3", "lam = 3e-3"))
    record = run(job, now=clock_of(3))
    assert [name[-6:] for name in record["inputs"]] == ["02.svm", "03.svm"]
    assert record["store"]["new_rows"] == 600
    assert record["drift"]["new"]["rows"] == 600
    assert record["drift"]["before"]["rows"] == 300
    assert not (tmp_path / "models" / ".run").exists()


def test_an_input_that_is_moved_away_when_it_is_in_the_store(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    nights(tmp_path, job, [1])
    path = put_day(tmp_path, 2)
    killed_in(monkeypatch, "converted", job, 2, after=True)
    path.unlink()
    record = run(job, now=clock_of(2.5))
    assert (record["outcome"], record["inputs"]) == ("promoted", [str(path)])


def test_records_name_the_reference_sets(tmp_path):
    record = nights(tmp_path, job_of(tmp_path), [1])[0]
    path = tmp_path / "golden.svm"
    digest = xxhash.xxh64_hexdigest(path.read_bytes())
    assert record["golden"] == {"golden.svm": [{"name": str(path), "size": path.stat().st_size, "xxh64": digest}]}


def test_rows_appended_by_a_rolled_back_run_are_known(tmp_path, monkeypatch, oocpeg):
    job = job_of(tmp_path, gate=LAX)
    one, two = (told["run"] for told in nights(tmp_path, job, [1, 2]))
    put_day(tmp_path, 3)
    killed_in(monkeypatch, "compare", job, 3)
    oocpeg("rollback", tmp_path / "models")
    assert version_in_use(tmp_path) == one
    record = run(job, now=clock_of(3.5))
    assert [name[-6:] for name in record["inputs"]] == ["03.svm"]
    assert record["drift"]["new"]["rows"] == 300
    assert (record["champion"], record["run"] > two) == (one, True)
    assert not (tmp_path / "models" / ".run").exists()


def test_bad_rows_of_an_abandoned_run_are_reported_by_the_next(tmp_path, monkeypatch):
    job_of(tmp_path, gate=LAX)
    job = changed_job(tmp_path, ('values = "float32"', 'values = "float32"\non_bad_row = "skip"'))
    nights(tmp_path, job, [1])
    path = put_day(tmp_path, 2)
    path.write_text(path.read_text() + "nonsense\n" * 3)
    killed_in(monkeypatch, "converted", job, 2, after=True)
    assert run(changed_job(tmp_path, ("lam = 1e-3", "lam = 2e-3")), now=clock_of(3))["store"]["rejected_rows"] == 3


def test_expired_rows_are_not_inputs_of_the_next_run(tmp_path, monkeypatch):
    job = job_of(tmp_path, more="expire_days = 2.5", gate=LAX)
    nights(tmp_path, job, [1])
    put_day(tmp_path, 2)
    killed_in(monkeypatch, "train_candidate", job, 2)
    put_day(tmp_path, 5)
    expire(tmp_path / "clicks.store", int(clock_of(3)().timestamp() * 10**9) - 86_400 * 10**9 * 2)
    put_day(tmp_path, 4)
    expired = [source.name[-6:] for source in read(tmp_path / "clicks.store").sources]
    assert expired == ["02.svm"]
    killed_in(monkeypatch, "append", changed_job(tmp_path, ("lam = 1e-3", "lam = 2e-3")), 5, after=True)
    expire(tmp_path / "clicks.store", int(clock_of(3.5)().timestamp() * 10**9))
    record = run(changed_job(tmp_path, ("lam = 2e-3", "lam = 3e-3")), now=clock_of(5))
    assert [name[-6:] for name in record["inputs"]] == ["04.svm", "05.svm"]
    assert record["store"]["new_rows"] == record["store"]["rows"] == 600


# --- what is in the way ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["store", "model", "program"])
def test_an_outdated_checkpoint_is_discarded(tmp_path, monkeypatch, what):
    gate = LAX + "\nrequire_certified = false"
    job = job_of(tmp_path, train='checkpoint_epochs = 1\nalgorithm = "pegasos"', gate=gate)
    one, _two = (told["run"] for told in nights(tmp_path, job, [1, 2]))
    put_day(tmp_path, 3)
    save = Checkpoint.save

    def killed(*arguments):
        save(*arguments)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save", killed)
        with pytest.raises(SystemExit):
            run(job, now=clock_of(3))
    assert list((tmp_path / "models" / ".run" / "checkpoint").iterdir())
    if what == "store":
        more = tmp_path / "more.svm"
        more.write_text(svmlight_text(*job_rows(50, 77)))
        convert([str(more)], job.store, ConvertConfig(values="float32"), existing=Existing(append=True))
    elif what == "model":
        (tmp_path / "models" / "current").unlink()
        os.symlink(one, tmp_path / "models" / "current")
    else:
        monkeypatch.setattr(progression, "__version__", "another")
    assert run(job, now=clock_of(3.5))["outcome"] == "promoted"
    assert run(job, now=clock_of(4))["outcome"] == "unchanged"


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("how", ["killed", "failed"])
def test_a_first_model_that_only_has_to_be_linked_is(tmp_path, monkeypatch, edited, how):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)

    def gone(*_arguments):
        raise SystemExit if how == "killed" else OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Versions, "switch", gone)
        with pytest.raises(SystemExit if how == "killed" else InputError):
            run(job, now=clock_of(1))
    assert not (tmp_path / "models" / "current").exists()
    if edited:
        job = changed_job(tmp_path, ("lam = 1e-3", "lam = 2e-3"), ("[gate]", "[gate]\n" + LAX))
    else:
        assert preview(job, clock_of(1.5)()).unfinished == "2026-11-19T02-00-00"
    record = run(job, now=clock_of(2))
    assert record["outcome"] == "promoted"
    assert version_in_use(tmp_path) == record["run"]
    assert Versions(tmp_path / "models").names()[0] == "2026-11-19T02-00-00"
    assert len(Versions(tmp_path / "models").names()) == 1 + edited  # with other options one more is made
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"


def test_what_has_passed_is_published_though_has_new_input(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    nights(tmp_path, job, [1])
    put_day(tmp_path, 2)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Versions, "publish", full)
        with pytest.raises(InputError, match="the disk is full"):
            run(job, now=clock_of(2))
    put_day(tmp_path, 3)
    assert run(job, now=clock_of(3))["champion"] == "2026-11-20T02-00-00"  # that of night 2 came first
    assert len(Versions(tmp_path / "models").names()) == 3


@pytest.mark.parametrize("first_night", [False, True])
def test_killed_while_an_abandoned_run_is_removed(tmp_path, monkeypatch, first_night):
    job = job_of(tmp_path, gate=LAX)
    put_day(tmp_path, 1)
    if not first_night:
        run(job, now=clock_of(1))
        job = changed_job(tmp_path, ("lam = 1e-3", "lam = 2e-3"))  # so that there is something to do without new rows
    killed_in(monkeypatch, "promote_or_refuse", job, 2)
    job = changed_job(tmp_path, ('golden = ["golden.svm"]', ""))
    rmtree = shutil.rmtree

    def killed(folder, **how):
        rmtree(folder, **how)
        if folder.name == "candidate":
            raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            run(job, now=clock_of(3))
    assert run(job, now=clock_of(4))["outcome"] == "promoted"
    assert not (tmp_path / "models" / ".run").exists()


def test_a_candidate_that_is_gone_is_trained_again(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    nights(tmp_path, job, [1])
    put_day(tmp_path, 2)
    killed_in(monkeypatch, "compare", job, 2)
    shutil.rmtree(tmp_path / "models" / ".run" / "candidate")
    assert run(job, now=clock_of(3))["outcome"] == "promoted"


def test_a_full_disk_when_a_run_is_resumed(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    nights(tmp_path, job, [1])
    put_day(tmp_path, 2)
    killed_in(monkeypatch, "train_candidate", job, 2)
    job = dataclasses.replace(changed_job(tmp_path, ("lam = 1e-3", "lam = 2e-3")), notify="true")
    told, save = [], running.State.save

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(running.State, "save", full)
        patched.setattr(records, "notify", lambda _command, record: told.append(record["outcome"]))
        with pytest.raises(InputError, match="the disk is full"):
            run(job, now=clock_of(3))
    assert running.State.save is save
    assert told == ["failed"]
    assert 'oocpeg_run_exit_code{name="nightly"} 3' in (tmp_path / "oocpeg.prom").read_text()
    record = run(job, now=clock_of(3.5))
    assert (record["outcome"], [name[-6:] for name in record["inputs"]]) == ("promoted", ["02.svm"])


# --- what is compared -----------------------------------------------------------------------------


def test_mean_losses_are_of_one_loss(tmp_path):
    job_of(tmp_path, gate='metric = "mean_loss"\nmax_relative_regression = 0.9')
    job = Job.load(tmp_path / "nightly.toml")
    first = nights(tmp_path, job, [1])[0]["run"]
    job = changed_job(tmp_path, ("lam = 1e-3", 'lam = 0.3\nloss = "smoothed-hinge"'))
    record = run(job, now=clock_of(2))
    matrix, labels = load_svmlight_files([str(tmp_path / "golden.svm")], n_features=40, zero_based=False)
    for which, place in (("champion", first), ("challenger", record["run"])):
        folder = tmp_path / "models" / ("refused" if which == "challenger" and record["exit_code"] else "")
        margins = labels * Model.load(folder / place / "model").decision_function(matrix)
        short = 1 - margins  # a parabola over the last 1 before the margin
        losses = np.where(short > 1, short - 0.5, np.maximum(short, 0) ** 2 / 2)
        assert record["metrics"]["golden.svm"][which]["mean_loss"] == pytest.approx(losses.mean(), rel=1e-6)


@pytest.mark.parametrize(("before", "now"), [(0.05, 0.5), (0.5, 0.05)])
def test_another_holdout_is_compared_on_rows_that_neither_was_trained_on(tmp_path, before, now):
    job_of(tmp_path, gate='metric = "error"\nmax_relative_regression = 0.9\nrequire_certified = false')
    path = put_day(tmp_path, 1, rows=1000)
    matrix, _labels = job_rows(1000, 1)
    path.write_text(svmlight_text(matrix, np.random.default_rng(0).choice([-1, 1], 1000)))  # nothing to be learnt
    for holdout in (before, now):
        job = changed_job(tmp_path, ("tolerance = 0.01\n", f"tolerance = 0.01\nholdout = {holdout}\n"))
        record = run(job, now=clock_of(1 + (holdout == now)))
        changed_job(tmp_path, (f"holdout = {holdout}\n", ""))
    compared = record["metrics"]["holdout"]
    assert compared["champion"]["rows"] == compared["challenger"]["rows"] < 100  # about 50 of 1000
    for which in compared:  # one that had been trained on half of these would know them by heart
        assert 0.25 < compared[which]["error"] < 0.75


def test_a_champion_that_was_trained_on_all_rows_is_not_compared_on_some(tmp_path):
    job_of(tmp_path, gate=LAX, train="holdout = 0")
    nights(tmp_path, Job.load(tmp_path / "nightly.toml"), [1])
    put_day(tmp_path, 2)
    job = changed_job(tmp_path, ("holdout = 0", "holdout = 0.2"))
    record = run(job, now=clock_of(2))
    assert record["outcome"] == "promoted"
    assert record["metrics"]["holdout"]["champion"] is None
    rollback(Versions(tmp_path / "models"))
    put_day(tmp_path, 3)
    job = changed_job(tmp_path, ('golden = ["golden.svm"]', ""))
    record = run(job, now=clock_of(3))
    assert record["outcome"] == "refused"
    assert any("not trained on" in check["what"] for check in record["checks"] if not check["passed"])


@pytest.mark.parametrize(
    ("task", "labels", "setting", "problem"),
    [
        ("regression", "0.5", "min_auc = 0.6", "gate.min_auc is not for real targets"),
        ("regression", "0.5", 'metric = "error"', "is not for real targets; choose mean_absolute_error, mean_loss"),
        ("multiclass", "3", 'metric = "roc_auc"', "is not for several classes; choose error, mean_loss"),
        ("binary", "1", 'metric = "mean_absolute_error"', "is not for two classes; choose roc_auc, error, mean_loss"),
    ],
)
def test_a_gate_that_none_could_pass_is_refused_before_training(tmp_path, task, labels, setting, problem):
    job_of(tmp_path, gate=setting)
    path = put_day(tmp_path, 1)
    path.write_text(path.read_text() + f"{labels} 1:1\n" * 20)
    job = changed_job(tmp_path, ('golden = ["golden.svm"]', ""), ("index_base = 1", f'index_base = 1\ntask = "{task}"'))
    for look in (
        lambda: run(job, now=clock_of(1)),
        lambda: plan(job, clock_of(2)()),
        lambda: run(job, now=clock_of(2)),
    ):
        with pytest.raises(UsageError, match=problem):
            look()
    assert not list((tmp_path / "models").glob("**/model"))
    assert Gate().metric is None


# --- which files are new --------------------------------------------------------------------------


def test_two_files_of_one_content_are_appended_once(tmp_path):
    job = job_of(tmp_path, gate=LAX)
    shutil.copy(put_day(tmp_path, 1), tmp_path / "incoming" / "copy.svm")
    put_day(tmp_path, 2)
    found = plan(job, clock_of(2)())
    assert ([name[-8:] for name in found.new], found.doubled) == (["copy.svm", "y-02.svm"], 1)
    assert any("same content" in line for line in found.lines())
    assert run(job, now=clock_of(2))["store"]["rows"] == 600
    assert plan(job, clock_of(3)()).new == []


def test_the_same_content_in_other_partitions_is_something_else(tmp_path):
    job_of(tmp_path)
    rng = np.random.default_rng(0)
    table = pa.table({"y": rng.integers(0, 2, 100), "x": rng.normal(size=100)})

    def put_table(name):
        folder = tmp_path / "data" / f"country={name}"
        folder.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"

    lines = (
        'store = "s"',
        'models = "models"',
        'inputs = ["data"]',
        'reserve = "1MB"',
        "[convert]",
        'label = "y"',
        "hash_bits = 8",
    )
    text = "\n".join([*lines, "[train]", "lam = 0.1", "[gate]", "max_relative_regression = 0.9"])
    (tmp_path / "nightly.toml").write_text(text)
    job = Job.load(tmp_path / "nightly.toml")
    for name in ("de", "fr"):
        put_table(name)
    assert run(job, now=clock_of(1))["store"]["rows"] == 200
    shutil.copy(put_table("it"), tmp_path / "data" / "country=it" / "b.parquet")
    found = plan(job, clock_of(2)())
    assert (len(found.new), found.known, found.doubled) == (1, 2, 1)
    assert run(job, now=clock_of(2))["store"]["rows"] == 300
    assert plan(job, clock_of(3)()).new == []


def test_files_are_read_no_further_than_it_takes_to_tell_them_apart(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    size = 100_000  # more than is sampled
    for day in range(1, 6):
        path = put_day(tmp_path, day, rows=100)
        path.write_bytes(path.read_bytes().ljust(size))
    run(job, now=clock_of(5))
    hashed, hash_of = [], source_check.hash_of
    monkeypatch.setattr(source_check, "hash_of", lambda name: hashed.append(name) or hash_of(name))
    for day in range(6, 11):
        path = put_day(tmp_path, day, rows=100)
        path.write_bytes(path.read_bytes().ljust(size))
    assert len(plan(job, clock_of(10)()).new) == 5
    assert hashed == []
    touched = tmp_path / "incoming" / "day-01.svm"
    os.utime(touched, (1, 1))
    assert [len(plan(job, clock_of(10)()).new) for _again in range(3)] == [5, 5, 5]
    assert hashed == [str(touched)]


def test_a_link_to_the_latest_file_is_no_second_file(tmp_path, oocpeg):
    job = job_of(tmp_path)
    path = put_day(tmp_path, 1)
    os.symlink(path.name, tmp_path / "incoming" / "a-latest.svm")
    record = run(job, now=clock_of(1))
    assert (record["store"]["rows"], record["inputs"]) == (300, [str(path)])
    words = (path, tmp_path / "incoming" / "a-latest.svm", "-o", tmp_path / "other.store")
    assert "named twice" in oocpeg("convert", *words, code=3).stderr


def test_a_file_with_time_0_is_too_old(tmp_path):
    job = job_of(tmp_path, more="expire_days = 3", gate=LAX)
    os.utime(put_day(tmp_path, 1), (0, 0))
    with pytest.raises(InputError, match=r"no new file.*1 file left out, older than expire_days"):
        run(job, now=clock_of(1))
    assert sorted(path.name for path in tmp_path.glob("*.unfinished")) == []
    put_day(tmp_path, 2)
    run(job, now=clock_of(2))
    assert expired_parts(read(tmp_path / "clicks.store"), 0) == 0


def test_patterns_without_files_are_reported(tmp_path, oocpeg):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    changed_job(tmp_path, ('inputs = ["incoming/*.svm"]', 'inputs = ["incoming/*.svm", "incomming/*.svm"]'))
    assert "incomming/*.svm: no such file" in oocpeg("run", tmp_path / "nightly.toml", "--dry-run").stdout


def test_a_dry_run_reports_a_run_to_be_resumed(tmp_path, monkeypatch):
    job = job_of(tmp_path, gate=LAX)
    nights(tmp_path, job, [1])
    put_day(tmp_path, 2)
    killed_in(monkeypatch, "train_candidate", job, 2)
    found = preview(job, clock_of(3)())
    assert (found.unfinished, [name[-6:] for name in found.new]) == ("2026-11-20T02-00-00", ["02.svm"])
    assert "resume run 2026-11-20T02-00-00" in found.lines()[0]
    assert run(job, now=clock_of(3))["run"] == found.unfinished
    assert preview(job, clock_of(4)()).unfinished is None


def test_runs_have_names_of_their_own_though_the_clock_was_set_back(tmp_path):
    job = job_of(tmp_path)
    nights(tmp_path, job, [5])
    names = [run(job, now=clock_of(day))["run"] for day in (6, 3, 3, 4)]
    assert len(set(names)) == 4
    assert names == sorted(names)
    assert len(list((tmp_path / "models" / "runs").glob("*.json"))) == 5


def test_retune_is_another_option(tmp_path):
    job_of(tmp_path, gate=LAX)
    job = changed_job(tmp_path, ("lam = 1e-3", ""))
    nights(tmp_path, job, [1])
    job = changed_job(tmp_path, ('reserve = "1MB"', 'reserve = "1MB"\nretune = true'))
    assert [run(job, now=clock_of(day))["outcome"] for day in (2, 3)] == ["promoted", "unchanged"]
    assert Store.open(job.store).rows == 300
