"""Scheduled jobs: append, expire, train, promote, refuse, and the files of a run."""

import json
import os
import shutil
import signal
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import roc_auc_score

from ooc_pegasos import Store, TrainConfig, train
from ooc_pegasos.errors import CorruptFileError, InputError, LockedError, UsageError
from ooc_pegasos.jobs import gate
from ooc_pegasos.jobs import run as running
from ooc_pegasos.jobs.job import Gate, Job
from ooc_pegasos.jobs.plan import plan
from ooc_pegasos.jobs.run import rollback, run
from ooc_pegasos.jobs.versions import Versions
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.store.verify import verify
from ooc_pegasos.util.locks import locked
from support.file_bytes import folder_bytes
from support.nights import JOB, changed_job, clock_of, job_of, put_day, version_in_use
from support.rows import svmlight_text
from support.stores import interrupted_after


def test_three_nights(tmp_path):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    assert (first["outcome"], first["exit_code"], first["run"]) == ("promoted", 0, "2026-11-19T02-00-00")
    assert version_in_use(tmp_path) == first["run"]
    assert first["store"]["rows"] == 300
    unchanged = run(job, now=clock_of(2))
    assert unchanged["outcome"] == "unchanged"
    assert Versions(tmp_path / "models").names() == [first["run"]]
    put_day(tmp_path, 3)
    third = run(job, now=clock_of(3))
    assert third["inputs"] == [str(tmp_path / "incoming" / "day-03.svm")]
    assert (third["outcome"], third["store"]["new_rows"], third["store"]["rows"]) == ("promoted", 300, 600)
    assert third["champion"] == first["run"]
    model = Model.load(tmp_path / "models" / "current" / "model")
    assert model.info.certificate.converged
    assert third["metrics"]["golden.svm"]["challenger"] == evaluate(model, str(tmp_path / "golden.svm"))
    old = Model.load(tmp_path / "models" / first["run"] / "model")
    assert third["metrics"]["golden.svm"]["champion"] == evaluate(old, str(tmp_path / "golden.svm"))
    assert {path.name for path in (tmp_path / "models" / third["run"]).iterdir()} == {
        "model",
        "run.json",
        "epochs.jsonl",
    }
    assert not (tmp_path / "models" / ".run").exists()
    assert not verify(Store.open(tmp_path / "clicks.store")).problems


def test_other_options_are_trained_anew(tmp_path):
    put_day(tmp_path, 1)
    run(job_of(tmp_path), now=clock_of(1))
    again = run(job_of(tmp_path, train="seed = 5", gate="max_relative_regression = 0.5"), now=clock_of(2))
    assert again["outcome"] == "promoted"
    assert Model.load(tmp_path / "models" / "current" / "model").info.seed == 5


def test_a_worse_model_is_refused_and_the_old_one_stays(tmp_path):
    job = job_of(tmp_path, gate="max_relative_regression = 0.01")
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    before = folder_bytes(tmp_path / "models" / first["run"])
    put_day(tmp_path, 2, rows=1500, flip=True)  # wrong labels
    second = run(job, now=clock_of(2))
    assert (second["outcome"], second["exit_code"]) == ("refused", 7)
    failed = [check for check in second["checks"] if not check["passed"]]
    assert any("golden.svm: roc_auc" in check["what"] for check in failed)
    assert version_in_use(tmp_path) == first["run"]
    assert folder_bytes(tmp_path / "models" / first["run"]) == before
    assert (tmp_path / "models" / "refused" / second["run"] / "model").exists()
    assert second["drift"]["new"]["label_shares"] != second["drift"]["before"]["label_shares"]


@pytest.mark.parametrize(
    ("gate_text", "train", "failing"),
    [
        ("min_auc = 0.9999", "", "area under the ROC curve"),
        ("", "max_epochs = 1\nalgorithm = 'pegasos'", "certified"),
        ("", "max_epochs = 1\nlam = 1e-9", "certified"),
    ],
)
def test_the_first_model_has_to_pass_as_well(tmp_path, gate_text, train, failing):
    put_day(tmp_path, 1)
    if "lam" in train:
        (tmp_path / "nightly.toml").write_text("")
        text = JOB.format(more="", train="max_epochs = 1", gate=gate_text).replace("lam = 1e-3", "lam = 1e-9")
        job_of(tmp_path)
        (tmp_path / "nightly.toml").write_text(text)
        job = Job.load(tmp_path / "nightly.toml")
    else:
        job = job_of(tmp_path, train=train, gate=gate_text)
    record = run(job, now=clock_of(1))
    assert record["exit_code"] == 7
    assert any(failing in check["what"] for check in record["checks"] if not check["passed"])
    assert not (tmp_path / "models" / "current").exists()
    assert Versions(tmp_path / "models").names() == []
    allowed = run(
        job_of(tmp_path, train=train if "lam" not in train else "", gate="require_certified = false"), now=clock_of(2)
    )
    assert allowed["exit_code"] == 0


def test_rows_expire(tmp_path):
    job = job_of(tmp_path, more="expire_days = 2.5", gate="max_relative_regression = 0.5")
    for day in range(1, 6):
        put_day(tmp_path, day)
        record = run(job, now=clock_of(day))
        assert record["outcome"] == "promoted"
    store = Store.open(tmp_path / "clicks.store")
    assert [source.name[-6:] for source in store.manifest.sources] == ["03.svm", "04.svm", "05.svm"]
    assert (store.rows, store.manifest.first_row) == (900, 600)
    assert record["store"]["expired_rows"] == 300
    told = plan(job, clock_of(5)())
    assert (told.new, told.known, told.too_old) == ([], 3, 2)  # what has expired does not come back
    with pytest.raises(InputError, match="there are no new files"):
        plan(job, clock_of(50)())


def test_known_files_are_known_by_content(tmp_path):
    job = job_of(tmp_path)
    path = put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    os.utime(path, (1, 1))
    shutil.copy(path, path.with_name("copy.svm"))
    assert plan(job, clock_of(2)()).new == []
    path.write_text(path.read_text() + "1 1:1\n")
    with pytest.raises(InputError, match=r"day-01.svm: changed after the store was made of it"):
        plan(job, clock_of(2)())


def test_versions_are_kept_and_rolled_back(tmp_path, oocpeg):
    job = job_of(tmp_path, more="keep = 2", gate="max_relative_regression = 0.5")
    names = []
    for day in range(1, 5):
        put_day(tmp_path, day)
        names.append(run(job, now=clock_of(day))["run"])
    assert Versions(tmp_path / "models").names() == names[2:]
    oocpeg("rollback", tmp_path / "models")
    assert version_in_use(tmp_path) == names[2]
    assert "does not exist or is not known" in oocpeg("rollback", tmp_path / "models", code=3).stderr
    oocpeg("rollback", tmp_path / "models", "--to", names[3])
    assert version_in_use(tmp_path) == names[3]
    assert "there are" in oocpeg("rollback", tmp_path / "models", "--to", "2020-01-01T00-00-00", code=2).stderr
    oocpeg("rollback", tmp_path / "models", "--to", names[2])
    put_day(tmp_path, 9)  # what is in use is compared with, and kept
    record = run(job, now=clock_of(9))
    assert record["champion"] == names[2]
    assert Versions(tmp_path / "models").names() == [names[2], record["run"]]
    oocpeg("rollback", tmp_path / "models")  # not to what was made last before it, which was rolled back
    assert version_in_use(tmp_path) == names[2]


def test_a_clock_that_was_set_back(tmp_path):
    job = job_of(tmp_path, gate="max_relative_regression = 0.5")
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    put_day(tmp_path, 2)
    second = run(job, now=clock_of(-5))
    assert second["run"] > first["run"]
    assert version_in_use(tmp_path) == second["run"] == "2026-11-19T02-00-01"


STEPS = ["append", "train_candidate", "compare"]


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STEPS, "expire", "publish", "prune"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_between_any_two_steps_and_resumed(tmp_path, monkeypatch, step, after):
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        job = job_of(folder, more="expire_days = 30", gate="max_relative_regression = 0.5")
        put_day(folder, 1)
        run(job, now=clock_of(1))
        put_day(folder, 2)
        if name == "killed":
            home = {"publish": Versions, "prune": Versions, "expire": running}.get(step, running.JobRun)
            original = getattr(home, step)

            def killed(*arguments, original=original):
                if after:
                    original(*arguments)
                raise SystemExit  # as if the process were gone: nothing catches it

            with monkeypatch.context() as patched:
                patched.setattr(home, step, killed)
                with pytest.raises(SystemExit):
                    run(job, now=clock_of(2))
            current = version_in_use(folder)
            assert Model.load(folder / "models" / current / "model").info.certificate.converged
        record = run(job, now=clock_of(2.5) if name == "killed" else clock_of(2))
    assert record["outcome"] in ("promoted", "unchanged")
    version = "2026-11-20T02-00-00"
    assert version_in_use(tmp_path / "whole") == version_in_use(tmp_path / "killed") == version
    for name in ("model", "epochs.jsonl"):
        one, other = ((tmp_path / which / "models" / version / name).read_bytes() for which in ("whole", "killed"))
        if name == "model":
            assert same_model(one, other, tmp_path)
    store = folder_bytes(tmp_path / "killed" / "clicks.store")
    assert {n: b for n, b in store.items() if n.startswith("chunk")} == {
        n: b for n, b in folder_bytes(tmp_path / "whole" / "clicks.store").items() if n.startswith("chunk")
    }
    assert not (tmp_path / "killed" / "models" / ".run").exists()


def same_model(one, other, folder):
    (folder / "one").write_bytes(one)
    (folder / "other").write_bytes(other)
    a, b = Model.load(folder / "one"), Model.load(folder / "other")
    return a.weights.tobytes() == b.weights.tobytes() and a.info.certificate == b.info.certificate


def test_bad_input_fails_and_changes_nothing(tmp_path):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    before = folder_bytes(tmp_path / "clicks.store")
    bad = put_day(tmp_path, 2)
    bad.write_text(bad.read_text() + "1 5:nonsense\n")
    with pytest.raises(InputError, match=r"day-02.svm:301: "):
        run(job, now=clock_of(2))
    assert folder_bytes(tmp_path / "clicks.store") == before
    assert version_in_use(tmp_path) == first["run"]
    record = json.loads((tmp_path / "models" / "runs" / "2026-11-20T02-00-00.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("failed", 3)
    assert 'oocpeg_run_exit_code{name="nightly"} 3' in (tmp_path / "oocpeg.prom").read_text()
    put_day(tmp_path, 2)  # corrected
    assert run(job_of(tmp_path, gate="max_relative_regression = 0.5"), now=clock_of(3))["outcome"] == "promoted"


def test_options_that_are_not_those_of_the_store(tmp_path):
    put_day(tmp_path, 1)
    run(job_of(tmp_path), now=clock_of(1))
    put_day(tmp_path, 2)
    text = (tmp_path / "nightly.toml").read_text().replace("features = 40", "features = 40\nnormalize = 'l2'")
    (tmp_path / "nightly.toml").write_text(text)
    with pytest.raises(UsageError, match="normalize=l2: the store was made"):
        run(Job.load(tmp_path / "nightly.toml"), now=clock_of(2))


def test_insufficient_disk_space_is_refused_before_training(tmp_path):
    put_day(tmp_path, 1)
    with pytest.raises(InputError, match="are to stay free"):
        run(job_of(tmp_path, more="").__class__.load(too_much(tmp_path)), now=clock_of(1))
    assert not (tmp_path / "clicks.store").exists()


def too_much(folder):
    path = folder / "nightly.toml"
    path.write_text(path.read_text().replace('reserve = "1MB"', 'reserve = "900000TB"'))
    return path


def test_one_at_a_time(tmp_path, oocpeg):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    (tmp_path / "models").mkdir()
    with locked(tmp_path / "models" / ".lock", "another"), pytest.raises(LockedError, match=f"process {os.getpid()}"):
        run(job)
    with locked(tmp_path / "models" / ".lock", "another"):
        told = oocpeg("rollback", tmp_path / "models", code=6).stderr
    assert f"process {os.getpid()} is at work" in told


def test_the_command(tmp_path, oocpeg):
    job_of(
        tmp_path, more=f"notify = '''{sys.executable} -c \"import sys; open('told', 'w').write(sys.stdin.read())\"'''"
    )
    put_day(tmp_path, 1)
    planned = oocpeg("run", "nightly.toml", "--dry-run").stdout
    assert "append 1 file (0 in the store already)" in planned
    assert "day-01.svm" in planned
    assert not (tmp_path / "models").exists()
    told = oocpeg("run", "nightly.toml").stdout
    assert "promoted" in told
    assert "passed: the gap is certified" in told
    record = json.loads((tmp_path / "told").read_text())
    assert record["outcome"] == "promoted"
    steps = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps[:4] == ["plan begins", "plan done", "append begins", "append done"]
    assert steps[-1] == "promoted"
    record = json.loads(oocpeg("run", "nightly.toml", "--json").stdout)
    assert record["outcome"] == "unchanged"
    put_day(tmp_path, 2, rows=1500, flip=True)
    told = oocpeg("run", "nightly.toml", "-q", code=7).stdout
    assert "FAILED: golden.svm: roc_auc" in told


def test_metrics_are_in_the_format_of_prometheus(tmp_path):
    job = job_of(tmp_path, gate="max_relative_regression = 0.5")
    for day in (1, 2):
        put_day(tmp_path, day)
        record = run(job, now=clock_of(day))
    names, seen = [], set()
    for line in (tmp_path / "oocpeg.prom").read_text().splitlines():
        if line.startswith("#"):
            if line.startswith("# HELP"):
                names.append(line.split(" ")[2])
            continue
        assert line.startswith(names[-1] + "{"), line  # samples of a name stand together, below its help
        name, value = line.rsplit(" ", 1)
        assert name not in seen
        seen.add(name)
        float(value)
    assert len(set(names)) == len(names)
    assert f'oocpeg_new_rows{{name="nightly"}} {record["store"]["new_rows"]}' in (tmp_path / "oocpeg.prom").read_text()
    assert 'oocpeg_run_outcome{name="nightly",outcome="promoted"} 1' in (tmp_path / "oocpeg.prom").read_text()


def test_lambda_is_searched_once(tmp_path):
    text = JOB.replace("lam = 1e-3\n", "").format(more="", train="", gate="max_relative_regression = 0.9")
    job_of(tmp_path)
    (tmp_path / "nightly.toml").write_text(text)
    job = Job.load(tmp_path / "nightly.toml")
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    put_day(tmp_path, 2)
    second = run(job, now=clock_of(2))
    assert second["model"]["lambda"] == first["model"]["lambda"]
    assert "is that of the model in use" in second["model"]["why"]


def test_warm_start_from_the_weights_in_use(tmp_path):
    text = JOB.replace("lam = 1e-3", "lam = 100.0").format(more="", train="", gate="max_relative_regression = 0.9")
    job_of(tmp_path)
    (tmp_path / "nightly.toml").write_text(text)
    job = Job.load(tmp_path / "nightly.toml")
    put_day(tmp_path, 1, rows=2000)
    assert not run(job, now=clock_of(1))["model"]["warm_start"]
    put_day(tmp_path, 2, rows=100)
    warm = run(job, now=clock_of(2))
    assert warm["model"]["warm_start"]
    assert warm["model"]["converged"]


# --- the gate -----------------------------------------------------------------------------------------


def measured(scores, labels):
    return gate.Measured(
        {"roc_auc": roc_auc_score(labels > 0, scores)}, scores, labels, np.maximum(0, 1 - labels * scores)
    )


def test_resampled_areas_are_those_of_scikit_learn():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=200).round(1)
    labels = np.where(rng.random(200) < 0.4, 1.0, -1.0)
    area = gate._resampled("roc_auc", measured(scores, labels))
    for _ in range(20):
        times = np.bincount(rng.integers(0, 200, 200), minlength=200).astype(float)
        assert area(times) == pytest.approx(roc_auc_score(labels > 0, scores, sample_weight=times))
    error = gate._resampled("error", measured(scores, labels))
    times = np.bincount(rng.integers(0, 200, 200), minlength=200).astype(float)
    repeated = np.repeat((scores > 0) != (labels > 0), times.astype(int))
    assert error(times) == pytest.approx(repeated.mean())


def test_significance_of_a_difference():
    rng = np.random.default_rng(4)
    labels = np.where(rng.random(3000) < 0.5, 1.0, -1.0)
    good, bad = labels + rng.normal(size=3000), labels + 3 * rng.normal(size=3000)
    assert gate.confidence("roc_auc", measured(bad, labels), measured(good, labels), 0.0) == 1.0
    assert gate.confidence("roc_auc", measured(good, labels), measured(bad, labels), 0.01) == 0.0
    same = gate.confidence("error", measured(good, labels), measured(labels + rng.normal(size=3000), labels), 0.0)
    assert 0.0 < same < 1.0


def test_the_sample_is_the_same_for_every_model():
    for rows in (10, 100_000, 250_001):
        seen = []
        for blocks in (1, 7):
            sample = gate._Sample()
            parts = np.array_split(np.arange(rows, dtype=np.float64), blocks)
            for _block in sample.watch(gate.Scored(part, part) for part in parts):
                pass
            seen.append(sample.rows())
        assert np.array_equal(seen[0][0], seen[1][0])
        assert np.array_equal(seen[0][0], seen[0][1])
        assert len(seen[0][0]) <= 100_000
        assert len(seen[0][0]) >= min(rows, 50_000)


@pytest.mark.parametrize("lam", ["lam = 1e-3", "", "lam = [1e-3, 1e-2]"], ids=["one", "default", "several"])
def test_holdout_rows_are_measured_separately(tmp_path, lam):
    """Neither the best lambda nor another one is trained on the rows by which models are compared."""
    job_of(tmp_path)
    job = changed_job(tmp_path, ("lam = 1e-3", lam))
    put_day(tmp_path, 1)
    record = run(job, now=clock_of(1))
    store = Store.open(tmp_path / "clicks.store")
    from ooc_pegasos.loading.window import Folds

    folds = Folds(store, 0.1, None)
    apart = np.concatenate([folds.of(chunk) == 0 for chunk in range(len(store.manifest.chunks))])
    matrix, labels = store.to_scipy()
    model = Model.load(tmp_path / "models" / "current" / "model")
    scores = model.decision_function(matrix[apart])
    assert record["metrics"]["holdout"]["challenger"]["rows"] == apart.sum()
    assert record["metrics"]["holdout"]["challenger"]["roc_auc"] == pytest.approx(roc_auc_score(labels[apart], scores))
    objective = model.info.lam / 2 * (model.weights @ model.weights + float(model.bias) ** 2)
    objective += np.maximum(0, 1 - labels[~apart] * model.decision_function(matrix[~apart])).mean()
    assert model.info.certificate.primal == pytest.approx(objective, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing key 'store'"),
        ("store = 's'\nmodels = 'm'\ninputs = []", "name at least one"),
        ("store = 's'\nmodels = 'm'\ninputs = ['a']\nkeep = 0", "keep 0 is out of range"),
        ("store = 's'\nmodels = 'm'\ninputs = ['a']\n[gate]\nconfidence = 2.0", "out of range"),
        ("store = 's'\nmodels = 'm'\ninputs = ['a']\n[gate]\nmetric = 'luck'", "should be"),
        ("store = 's'\nmodels = 'm'\ninputs = ['a']\n[train]\nfolds = 3", "no holdout rows"),
        ("store = 's'\nmodels = 'm'\ninputs = ['a']\n[convert]\nweights = 'w'", "use columns"),
        ("store = 's'\nmodels = 'm'\ninputs = ['a']\nspeed = 9", "unknown key 'speed'"),
        ("this is not toml", "not a TOML file"),
    ],
)
def test_job_files_that_are_wrong(tmp_path, oocpeg, text, message):
    (tmp_path / "job.toml").write_text(text)
    assert message in oocpeg("run", "job.toml", code=2).stderr


def test_a_damaged_link_and_state(tmp_path):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    put_day(tmp_path, 2)
    link = tmp_path / "models" / "current"
    link.unlink()
    os.symlink("../../etc", link)
    with pytest.raises(CorruptFileError, match="oocpeg rollback"):
        run(job, now=clock_of(2))
    rollback(Versions(tmp_path / "models"), "2026-11-19T02-00-00")
    (tmp_path / "models" / ".run").mkdir(exist_ok=True)
    (tmp_path / "models" / ".run" / "state.json").write_text("{")
    with pytest.raises(CorruptFileError, match="to begin anew"):
        run(job, now=clock_of(2))


def test_ctrl_c_and_the_next_run_goes_on(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    original = running.train

    def interrupted(*arguments, **named):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(running, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(job, now=clock_of(1))
    record = json.loads((tmp_path / "models" / "runs" / "2026-11-19T02-00-00.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("interrupted", 130)
    assert run(job, now=clock_of(2))["outcome"] == "promoted"
    assert version_in_use(tmp_path) == "2026-11-19T02-00-00"


def test_defaults_say_what_is_compared():
    job = Job("s", "m", ("i",))
    assert job.training() == TrainConfig(holdout=0.1, refit=False)
    assert Job("s", "m", ("i",), train=TrainConfig(lam=0.1)).training() == TrainConfig(lam=0.1, holdout=0.1)
    assert Gate().require_certified


# --- models that were made before ---------------------------------------------------------------


def test_a_refused_model_is_not_trained_again_while_nothing_changes(tmp_path):
    job = job_of(tmp_path, gate="max_relative_regression = 0.01")
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    put_day(tmp_path, 2, rows=1500, flip=True)
    assert run(job, now=clock_of(2))["outcome"] == "refused"
    again = run(job, now=clock_of(3))
    assert (again["outcome"], again["exit_code"], again["model"]) == ("unchanged", 0, None)
    assert version_in_use(tmp_path) == first["run"]
    lax = job_of(tmp_path, gate="max_relative_regression = 0.999\nrequire_certified = false")
    assert run(lax, now=clock_of(4))["outcome"] == "promoted"
    put_day(tmp_path, 5)
    assert run(job, now=clock_of(5))["model"] is not None


def test_a_model_that_was_rolled_back_is_not_promoted_again_while_nothing_changes(tmp_path):
    job = job_of(tmp_path, gate="max_relative_regression = 0.5")
    put_day(tmp_path, 1)
    first = run(job, now=clock_of(1))
    put_day(tmp_path, 2)
    second = run(job, now=clock_of(2))
    assert second["outcome"] == "promoted"
    assert rollback(Versions(tmp_path / "models")) == (second["run"], first["run"])
    assert run(job, now=clock_of(3))["outcome"] == "unchanged"
    assert version_in_use(tmp_path) == first["run"]
    put_day(tmp_path, 4)
    assert run(job, now=clock_of(4))["outcome"] == "promoted"


def test_a_difference_that_may_be_chance_is_no_reason_to_refuse(tmp_path):
    """Of two models of equal quality one is always a little worse on the rows of a night."""
    outcomes = []
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        job = job_of(folder)
        for day in (1, 2):
            put_day(folder, 100 * seed + day, rows=300)
            record = run(job, now=clock_of(day))
            outcomes.append(record["outcome"])
        comparison = next(check["what"] for check in record["checks"] if "relative regression" in check["what"])
        assert " against " in comparison
    assert outcomes == ["promoted"] * 12


# --- the loss -------------------------------------------------------------------------------------


def put_targets(folder, name, seed, share_wrong):
    """Rows of real targets of which some are far too large."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((800, 8)).astype(np.float32)
    targets = x @ np.linspace(-1, 2, 8) + 0.3 * rng.standard_normal(800)
    targets[rng.random(800) < share_wrong] += 100
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(svmlight_text(sp.csr_matrix(x), targets))
    return path


def regression_job(folder, more="", train=""):
    put_targets(folder, "golden.svm", 100, 0)
    text = (
        JOB.replace("lam = 1e-3\n", "")
        .replace("[convert]", "[convert]\ntask = 'regression'")
        .replace("features = 40", "features = 8")
    )
    (folder / "nightly.toml").write_text(text.format(more=more, train=train, gate="max_relative_regression = 0.5"))
    return Job.load(folder / "nightly.toml")


@pytest.mark.parametrize("holdout", [0.1, 0.5])
def test_the_search_of_a_job_chooses_a_robust_loss_and_later_runs_keep_it(tmp_path, holdout):
    job = regression_job(tmp_path, train=f"holdout = {holdout}")
    put_targets(tmp_path, "incoming/day-01.svm", 1, 0.03)
    first = run(job, now=clock_of(1))
    model = Model.load(tmp_path / "models" / "current" / "model")
    assert (first["outcome"], first["model"]["loss"], model.info.loss) == ("promoted", "huber", "huber")
    robust = first["metrics"]["golden.svm"]["challenger"]["mean_absolute_error"]
    assert robust < 0.3  # sqrt(2/pi) times the noise, 0.3, is 0.24
    known = {"loss": "huber", "loss_parameter": model.info.parameter, "lam": model.info.lam, "bias": "free"}
    for rows in (holdout, 0.0):  # no model is trained on the holdout rows
        alike = train(tmp_path / "clicks.store", TrainConfig(**known, holdout=rows, tolerance=1e-3)).model.info
        is_same = abs(model.info.certificate.primal / alike.certificate.primal - 1) < 0.006
        assert is_same == (rows == holdout)

    put_targets(tmp_path, "incoming/day-02.svm", 2, 0.03)
    second = run(job, now=clock_of(2))
    assert (second["model"]["loss"], second["model"]["lambda"]) == ("huber", first["model"]["lambda"])
    again = Model.load(tmp_path / "models" / "current" / "model")
    assert again.info.parameter == model.info.parameter
    put_targets(tmp_path, "incoming/day-03.svm", 3, 0.03)
    assert run(job, now=clock_of(3))["model"]["loss"] == "huber"

    put_targets(tmp_path, "incoming/day-04.svm", 4, 0.03)
    retuned = run(regression_job(tmp_path, "retune = true", f"holdout = {holdout}"), now=clock_of(4))
    assert retuned["model"]["loss"] == "huber"
    assert Model.load(tmp_path / "models" / "current" / "model").info.parameter != model.info.parameter
    given = run(regression_job(tmp_path, "retune = true", "loss = 'squared'"), now=clock_of(5))
    assert given["model"]["loss"] == "squared"


@pytest.mark.parametrize("slices", [3, 30, 60])
def test_an_interrupted_search_of_a_job_is_resumed(tmp_path, slices):
    for name in ("whole", "interrupted"):
        (tmp_path / name).mkdir()
        job = regression_job(tmp_path / name, train="checkpoint_epochs = 1")
        put_targets(tmp_path / name, "incoming/day-01.svm", 1, 0.03)
        if name == "interrupted":
            with interrupted_after(slices):
                run(job, now=clock_of(1))
        assert run(job, now=clock_of(1))["model"]["loss"] == "huber"
    one, other = (tmp_path / name / "models" / "current" / "model" for name in ("whole", "interrupted"))
    assert same_model(one.read_bytes(), other.read_bytes(), tmp_path)


def test_a_loss_that_the_job_gave_is_not_kept_without_it(tmp_path):
    put_targets(tmp_path, "incoming/day-01.svm", 1, 0)
    assert run(regression_job(tmp_path, train="loss = 'huber'"), now=clock_of(1))["model"]["loss"] == "huber"
    put_targets(tmp_path, "incoming/day-02.svm", 2, 0)
    assert run(regression_job(tmp_path), now=clock_of(2))["model"]["loss"] == "squared"
