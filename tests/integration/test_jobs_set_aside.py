"""Jobs with `provisional`: files whose model is refused leave the store again, and later runs leave them out."""

import json
import os
import shutil

import pytest

from ooc_pegasos import Store, convert
from ooc_pegasos.errors import CorruptFileError, UsageError
from ooc_pegasos.jobs import run as running
from ooc_pegasos.jobs.plan import plan
from ooc_pegasos.jobs.run import preview, run
from ooc_pegasos.jobs.versions import Versions
from support.file_bytes import folder_bytes
from support.nights import clock_of, job_of, put_day, version_in_use

GATE = "max_relative_regression = 0.01"


def after_a_good_night(folder, more="provisional = true"):
    folder.mkdir(exist_ok=True)
    job = job_of(folder, more=more, gate=GATE)
    put_day(folder, 1)
    assert run(job, now=clock_of(1))["outcome"] == "promoted"
    return job


def names_in_store(store):
    return [os.path.basename(source.name) for source in Store.open(store).manifest.sources]


def test_files_of_a_refused_model_leave_the_store_and_are_left_out(tmp_path):
    job = after_a_good_night(tmp_path)
    before, version = folder_bytes(tmp_path / "clicks.store"), version_in_use(tmp_path)
    bad = put_day(tmp_path, 2, rows=1500, flip=True)
    record = run(job, now=clock_of(2))
    assert (record["outcome"], record["exit_code"], record["store"]["new_rows"]) == ("refused", 7, 1500)
    assert folder_bytes(tmp_path / "clicks.store") == before
    assert version_in_use(tmp_path) == version
    (aside,) = record["set_aside"]
    assert (aside["name"], aside["run"]) == (str(bad), record["run"])
    assert "golden.svm: roc_auc" in aside["reason"]
    kept = json.loads((tmp_path / "models" / "refused" / record["run"] / "run.json").read_text())
    assert kept["set_aside"] == record["set_aside"]
    assert not (tmp_path / "models" / ".run").exists()

    left = plan(job, clock_of(3)())
    assert (left.new, [one.source.name for one in left.set_aside]) == ([], [str(bad)])
    assert any(f"{bad}: refused by run {record['run']}, golden.svm: roc_auc" in line for line in left.lines())
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"
    put_day(tmp_path, 4)
    later = run(job_of(tmp_path, more="provisional = true", gate="max_relative_regression = 0.5"), now=clock_of(4))
    assert (later["outcome"], names_in_store(tmp_path / "clicks.store")) == ("promoted", ["day-01.svm", "day-04.svm"])
    assert later["set_aside"] == record["set_aside"]
    metrics = (tmp_path / "oocpeg.prom").read_text()
    assert 'oocpeg_files_set_aside{name="nightly"} 1' in metrics


def test_without_the_option_refused_files_stay(tmp_path):
    job = after_a_good_night(tmp_path, more="")
    put_day(tmp_path, 2, rows=1500, flip=True)
    record = run(job, now=clock_of(2))
    assert (record["outcome"], record["set_aside"]) == ("refused", [])
    assert names_in_store(tmp_path / "clicks.store") == ["day-01.svm", "day-02.svm"]
    assert not (tmp_path / "models" / "set-aside.json").exists()


def test_copies_stay_set_aside_and_corrected_files_do_not(tmp_path):
    job = after_a_good_night(tmp_path)
    bad = put_day(tmp_path, 2, rows=1500, flip=True)
    run(job, now=clock_of(2))
    os.utime(bad, (1, 1))
    shutil.copy(bad, bad.with_name("copy.svm"))
    assert plan(job, clock_of(3)()).new == []
    bad.with_name("copy.svm").unlink()
    moved = bad.rename(bad.with_name("moved.svm"))
    left = plan(job, clock_of(3)())
    assert (left.new, [one.source.name for one in left.set_aside]) == ([], [str(bad)])
    assert plan(job, clock_of(3)(), ["moved.svm"]).new == plan(job, clock_of(3)(), [str(bad)]).new == [str(moved)]
    moved.unlink()
    put_day(tmp_path, 2)  # corrected
    lax = job_of(tmp_path, more="provisional = true", gate="max_relative_regression = 0.5")
    record = run(lax, now=clock_of(3))
    assert (record["outcome"], record["inputs"], record["set_aside"]) == ("promoted", [str(bad)], [])
    assert json.loads((tmp_path / "models" / "set-aside.json").read_text())["files"] == []


def test_a_file_is_tried_again_on_demand(tmp_path, oocpeg):
    after_a_good_night(tmp_path)
    put_day(tmp_path, 2, rows=1500, flip=True)
    good = put_day(tmp_path, 3)
    refused = oocpeg("run", "nightly.toml", code=7).stdout  # both: their rows are mixed
    assert "2 files are no longer in the store" in refused
    assert names_in_store(tmp_path / "clicks.store") == ["day-01.svm"]
    planned = oocpeg("run", "nightly.toml", "--dry-run", "--retry", "day-03.svm").stdout
    assert "append 1 file (1 in the store already)" in planned
    assert "leave out 1 file set aside; --retry FILE appends one again" in planned
    assert "error: --retry day-04.svm: no input of the job that is set aside; there are " in (
        oocpeg("run", "nightly.toml", "--retry", "day-04.svm", code=2).stderr
    )
    assert "set aside, as the model was refused: 1 file is" in (
        oocpeg("run", "nightly.toml", "--retry", "day-02.svm", code=7).stdout
    )
    lax = job_of(tmp_path, more="provisional = true", gate="max_relative_regression = 0.5")
    record = run(lax, retry=["incoming/day-03.svm"])
    assert (record["outcome"], record["inputs"]) == ("promoted", [str(good)])
    assert names_in_store(tmp_path / "clicks.store") == ["day-01.svm", "day-03.svm"]
    assert [os.path.basename(one["name"]) for one in record["set_aside"]] == ["day-02.svm"]
    assert [os.path.basename(one.source.name) for one in plan(lax, clock_of(9)()).set_aside] == ["day-02.svm"]


def test_a_file_accepted_by_hand_stays(tmp_path):
    job = after_a_good_night(tmp_path)
    bad = put_day(tmp_path, 2, rows=1500, flip=True)
    run(job, now=clock_of(2))
    convert([str(bad)], tmp_path / "clicks.store", existing=running.Existing(append=True))
    planned = plan(job, clock_of(3)())
    assert (planned.new, planned.known, planned.set_aside) == ([], 2, [])
    run(job, now=clock_of(3))
    assert names_in_store(tmp_path / "clicks.store") == ["day-01.svm", "day-02.svm"]


def test_the_files_of_the_first_model_stay(tmp_path, oocpeg):
    job_of(tmp_path, more="provisional = true", gate="min_auc = 0.9999")
    put_day(tmp_path, 1)
    ended = oocpeg("run", "nightly.toml", code=7)
    assert "no model is in use yet, so no file is set aside" in ended.stderr
    assert names_in_store(tmp_path / "clicks.store") == ["day-01.svm"]


def test_the_only_rows_of_a_store_stay(tmp_path, oocpeg):
    """The rows of the first night expire, so that only the new file would have rows."""
    after_a_good_night(tmp_path)
    put_day(tmp_path, 40, rows=1500, flip=True)
    job = job_of(tmp_path, more="provisional = true\nexpire_days = 30", gate=GATE)
    record = run(job, now=clock_of(40))
    assert (record["outcome"], record["store"]["expired_rows"], record["set_aside"]) == ("refused", 300, [])
    assert names_in_store(tmp_path / "clicks.store") == ["day-40.svm"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["append", "train_candidate", "compare", "refuse", "drop", "update", "prune"])
@pytest.mark.parametrize("after", [False, True])
def test_refused_and_killed_between_any_two_steps(tmp_path, monkeypatch, step, after):
    job = after_a_good_night(tmp_path)
    before = folder_bytes(tmp_path / "clicks.store")
    bad = put_day(tmp_path, 2, rows=1500, flip=True)
    home = {"refuse": Versions, "prune": Versions, "drop": running, "update": running.set_aside}
    place = home.get(step, running.JobRun)
    original = getattr(place, step)

    def stopped(*arguments):
        if after:
            original(*arguments)
        raise SystemExit  # as if the process were gone: nothing catches it

    with monkeypatch.context() as patched:
        patched.setattr(place, step, stopped)
        with pytest.raises(SystemExit):
            run(job, now=clock_of(2))
    assert preview(job, clock_of(2.5)()).unfinished == "2026-11-20T02-00-00"
    record = run(job, now=clock_of(2.5))
    assert (record["outcome"], record["run"]) == ("refused", "2026-11-20T02-00-00")
    assert [one["name"] for one in record["set_aside"]] == [str(bad)]
    assert folder_bytes(tmp_path / "clicks.store") == before
    assert plan(job, clock_of(3)()).new == []
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"


def die(*_arguments):
    raise SystemExit


@pytest.mark.parametrize("changed", [False, True])
def test_an_interrupted_retry_is_not_repeated(tmp_path, monkeypatch, changed):
    job = after_a_good_night(tmp_path)
    bad = put_day(tmp_path, 2, rows=1500, flip=True)
    run(job, now=clock_of(2))
    with monkeypatch.context() as patched:
        patched.setattr(running.JobRun, "compare", die)
        with pytest.raises(SystemExit):
            run(job, now=clock_of(3), retry=["day-02.svm"])
    if changed:  # the rows are carried to the next run
        job = job_of(tmp_path, more="provisional = true", gate=GATE, train="seed = 3")
    record = run(job, now=clock_of(4), retry=[] if changed else ["day-02.svm"])
    assert (record["outcome"], record["inputs"]) == ("refused", [str(bad)])
    assert (record["run"] == "2026-11-21T02-00-00") is not changed
    assert names_in_store(tmp_path / "clicks.store") == ["day-01.svm"]
    assert len(record["set_aside"]) == 1


def test_a_damaged_list_is_refused(tmp_path):
    job = after_a_good_night(tmp_path)
    put_day(tmp_path, 2, rows=1500, flip=True)
    run(job, now=clock_of(2))
    listed = tmp_path / "models" / "set-aside.json"
    listed.write_text(listed.read_text().replace("1500", "1501"))
    with pytest.raises(CorruptFileError, match=r"set-aside\.json: the checksum does not match.*; remove it"):
        plan(job, clock_of(3)())
    listed.unlink()
    with pytest.raises(UsageError, match=r"retry=x"):
        plan(job, clock_of(3)(), ["x"])
