"""Reference sets of jobs, checked before a run; files to be scored whose format is unknown."""

import dataclasses
import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, Model, Store, TrainConfig, convert, train
from ooc_pegasos.conversion import source_check
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.plan import plan
from ooc_pegasos.jobs.reference_sets import check_reference_sets, refuse_trained_on
from ooc_pegasos.jobs.run import run
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.score import Meaning, check_data
from support.file_bytes import folder_bytes
from support.nights import clock_of, job_of, job_rows, put_day
from support.rows import svmlight_text

TABLE = 'format = "table"\ndelimiter = "|"\nlabel = "y"'
VW = 'format = "vw"\nhash_bits = 8'


def table_text(rows, seed, mark="|", columns=("y", "a", "b")):
    rng = np.random.default_rng(seed)
    lines = [mark.join(columns)]
    for _ in range(rows):
        label = int(rng.integers(2))
        cells = {"y": label, "a": round(label + 0.3 * rng.normal(), 3), "b": round(rng.normal(), 3)}
        lines.append(mark.join(str(cells.get(column, 0)) for column in columns))
    return "\n".join(lines) + "\n"


def golden_vw_text(rows, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=rows)
    return "".join(f"{2 * y - 1} |n a:{y + 0.3 * rng.normal():.3f} b:{rng.normal():.3f}\n" for y in labels)


WRITERS = {"table": table_text, "vw": golden_vw_text}


def job_with(folder, options, pattern, golden):
    """A job whose options of conversion are others than those of `nights`."""
    (folder / "job.toml").write_text(
        f'store = "s.store"\nmodels = "m"\ninputs = {pattern}\ngolden = {golden}\nreserve = "1MB"\n'
        f"[convert]\n{options}\n[train]\nlam = 1e-2\n[gate]\nmax_relative_regression = 0.9\n"
    )
    return Job.load(folder / "job.toml")


def nightly(folder, *changes):
    """The job of `nights` with other words in its file, which it keeps for this once."""
    path = folder / "nightly.toml"
    before = path.read_text()
    text = before
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    job = Job.load(path)
    path.write_text(before)
    return job


def check_job_refused(job, kind, message, day=2):
    with pytest.raises(kind, match=message):
        plan(job, clock_of(day)())


# --- files whose names do not say what they are -----------------------------------------------------------


@pytest.mark.parametrize(("kind", "suffix"), [("table", "dat"), ("table", "txt.gz"), ("vw", "txt"), ("vw", "rows")])
def test_a_file_of_unknown_format_is_read_as_the_model_does(tmp_path, kind, suffix):
    table = ConvertConfig(format="table", delimiter="|", label="y")
    config = table if kind == "table" else ConvertConfig(format="vw", hash_bits=8)
    packed = (lambda text: gzip.compress(text.encode())) if suffix.endswith("gz") else str.encode
    for name, rows in (("in", 200), ("new", 50)):
        (tmp_path / f"{name}.{suffix}").write_bytes(packed(WRITERS[kind](rows, rows)))
    store = convert([str(tmp_path / f"in.{suffix}")], tmp_path / "store", config)
    model = train(store, TrainConfig(lam=0.01)).model
    said = tmp_path / ("new.csv" if kind == "table" else "new.vw")
    said.write_text(WRITERS[kind](50, 50))
    found = evaluate(model, tmp_path / f"new.{suffix}")
    assert found == evaluate(model, said)
    assert found["rows"] == 50
    assert predict(model, tmp_path / f"new.{suffix}", tmp_path / "p.parquet") == 50


def test_a_file_of_another_format_is_refused_with_its_line(tmp_path):
    (tmp_path / "in.dat").write_text(table_text(200, 1))
    (tmp_path / "in.vw").write_text(golden_vw_text(200, 1))
    table = ConvertConfig(format="table", delimiter="|", label="y")
    of_table = train(convert([str(tmp_path / "in.dat")], tmp_path / "a", table), TrainConfig(lam=0.01)).model
    of_vw = train(convert([str(tmp_path / "in.vw")], tmp_path / "b"), TrainConfig(lam=0.01)).model
    matrix, labels = job_rows(5, 1)
    for name in ("rows.txt", "rows.svm", "rows.svm.gz"):
        (tmp_path / name).write_text(svmlight_text(matrix, labels))
    with pytest.raises(InputError, match=r"rows.txt: no column 'a', 'b', 'y'; the columns are"):
        evaluate(of_table, tmp_path / "rows.txt")
    with pytest.raises(InputError, match=r"rows.txt:1: no '\|' in the line"):
        evaluate(of_vw, tmp_path / "rows.txt")
    (tmp_path / "half.txt").write_text(golden_vw_text(3, 1) + "1 3:1\n")
    with pytest.raises(InputError, match=r"half.txt:4: no '\|' in the line"):
        evaluate(of_vw, tmp_path / "half.txt")
    pq.write_table(pa.table({"y": [0, 1], "a": [0.1, 0.2], "b": [1.0, 2.0]}), tmp_path / "table.dat")
    assert evaluate(of_table, tmp_path / "table.dat")["rows"] == 2  # which its first bytes say
    for model, name, read, other in (
        (of_table, "rows.svm", "svmlight", "table"),
        (of_table, "rows.svm.gz", "svmlight", "table"),
        (of_table, "in.vw", "vw", "table"),
        (of_vw, "rows.svm", "svmlight", "vw"),
        (of_vw, "table.dat", "table", "vw"),
    ):
        with pytest.raises(InputError, match=f"read as {read}, but the model was trained on data read as {other}"):
            evaluate(model, tmp_path / name)


@pytest.mark.parametrize(("options", "suffix"), [(TABLE, "dat"), (VW, "txt")])
def test_reference_sets_of_unknown_format(tmp_path, options, suffix):
    writer = WRITERS["table" if options == TABLE else "vw"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"1.{suffix}").write_text(writer(200, 1))
    (tmp_path / f"golden.{suffix}").write_text(writer(100, 2))
    job = job_with(tmp_path, options, f'["in/*.{suffix}"]', f'["golden.{suffix}"]')
    assert plan(job, clock_of(1)()).golden_sets == 1
    assert run(job, now=clock_of(1))["metrics"][f"golden.{suffix}"]["challenger"]["rows"] == 100
    (tmp_path / "in" / f"2.{suffix}").write_text(writer(200, 3))
    assert run(job, now=clock_of(2))["outcome"] == "promoted"


# --- what models cannot be measured on --------------------------------------------------------------------


def test_reference_tables_are_read_before_training(tmp_path, oocpeg):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text(table_text(200, 1, ","))
    (tmp_path / "golden.csv").write_text(table_text(100, 2, ","))
    job = job_with(tmp_path, 'label = "y"', '["in/*.csv"]', '["golden.csv"]')
    run(job, now=clock_of(1))
    before = folder_bytes(tmp_path / "s.store")
    good = (tmp_path / "golden.csv").read_text()
    (tmp_path / "in" / "2.csv").write_text(table_text(200, 3, ","))
    lines = good.splitlines()
    for text, problem in (
        (table_text(100, 2, ",", ("y", "a")), r"golden.csv: no column 'b'"),
        (table_text(100, 2, ",", ("a", "b")), r"golden.csv: no column 'y'"),
        ("\n".join([*lines[:3], "2,0.1,0.2", *lines[3:]]), r"golden.csv:4: the label '2' is not one of 0, 1"),
        ("\n".join([lines[0], "1,much,0.2", *lines[1:]]), r"golden.csv:2: "),
        (lines[0] + "\n", r"golden.csv: no rows in it"),
    ):
        (tmp_path / "golden.csv").write_text(text)
        check_job_refused(job, InputError, problem)
        with pytest.raises(InputError, match=problem):
            run(job, now=clock_of(2))
    said = oocpeg("run", "job.toml", "--dry-run", code=3).stderr
    assert "golden.csv: no rows in it" in said
    assert folder_bytes(tmp_path / "s.store") == before
    (tmp_path / "golden.csv").write_text(good)
    assert plan(job, clock_of(2)()).new == [str(tmp_path / "in" / "2.csv")]


def test_reference_stores_need_the_labels_and_the_vocabulary_of_the_store(tmp_path):
    rng = np.random.default_rng(1)
    words = np.array(["red", "green", "blue", "grey"])
    for name, seen in (("in", words), ("same", words), ("other", words[::-1][:3])):
        labels = np.arange(60) % 2
        table = pa.table({"y": np.where(labels, "yes", "no"), "c": seen[rng.integers(len(seen), size=60)]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    options = 'label = "y"\ncategorical = ["c"]\ndictionary = 10'
    job = job_with(tmp_path, options, '["in.parquet"]', '["same.parquet"]')
    run(job, now=clock_of(1))
    store = Store.open(tmp_path / "s.store")
    convert([str(tmp_path / "other.parquet")], tmp_path / "other.store", job.convert)
    turned = dataclasses.replace(job.convert, positive_label="no")
    convert([str(tmp_path / "same.parquet")], tmp_path / "turned.store", turned)
    at = {name: str(tmp_path / name) for name in ("same.parquet", "other.store", "turned.store")}
    check_reference_sets(dataclasses.replace(job, golden=(at["same.parquet"],)), store)
    for name, problem in (
        ("other.store", "other.store: made with"),
        ("turned.store", r"turned.store: its labels are \['yes', 'no'\], the model's are \['no', 'yes'\]"),
    ):
        golden = dataclasses.replace(job, golden=(at["same.parquet"], at[name]))
        with pytest.raises(InputError, match=problem):
            check_reference_sets(golden, store)
        check_job_refused(golden, InputError, problem)


def test_the_same_is_refused_without_a_model_as_with_it(tmp_path):
    """Values that cannot be rounded are refused, unknown features are not."""
    put_day(tmp_path, 1)
    source = str(tmp_path / "incoming" / "day-01.svm")
    rounded = convert([source], tmp_path / "rounded", ConvertConfig(values="float16", normalize=None))
    model = train(rounded, TrainConfig(lam=0.01, algorithm="sgd-s", max_epochs=3)).model
    (tmp_path / "large.svm").write_text("1 1:1e6\n")
    (tmp_path / "unknown.svm").write_text("1 1:1 99:3\n-1 2:1\n")
    for data, problem in (("large.svm", "is too large for float16"), ("unknown.svm", None), ("none.svm", "no such")):
        for look in (
            lambda data: evaluate(model, data),
            lambda data: check_data(Meaning.of_store(rounded), data),
            lambda data: check_data(Meaning.of_model(model), data),
        ):
            if problem is None:
                look(str(tmp_path / data))
                continue
            with pytest.raises(InputError, match=problem):
                look(str(tmp_path / data))


def test_only_the_first_block_is_read(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    golden = tmp_path / "golden.svm"
    golden.write_text("# rows checked by hand\n" * 2000 + golden.read_text() + "1 5:nonsense\n")
    monkeypatch.setattr("ooc_pegasos.scoring.score.TEXT_BLOCK", 1 << 10)
    store = Store.open(tmp_path / "clicks.store")
    check_reference_sets(job, store)  # and finds a block that has rows
    with pytest.raises(InputError, match=r"golden.svm:2401: "):
        evaluate(Model.load(tmp_path / "models" / "current" / "model"), golden)


# --- what models are trained on ---------------------------------------------------------------------------


@pytest.mark.parametrize("spelled", ["clicks.store", "./incoming/../clicks.store", "link.store"])
def test_the_store_of_the_job_is_not_a_reference_set(tmp_path, oocpeg, spelled):
    job_of(tmp_path)
    put_day(tmp_path, 1)
    os.symlink("clicks.store", tmp_path / "link.store")
    job = nightly(tmp_path, ("golden.svm", spelled))
    check_job_refused(job, UsageError, "a reference set, and the store that models are trained on; name rows", day=1)
    run(job_of(tmp_path), now=clock_of(1))
    check_job_refused(job, UsageError, "a reference set, and the store that models are trained on; name rows")
    text = (tmp_path / "nightly.toml").read_text().replace("golden.svm", spelled)
    (tmp_path / "nightly.toml").write_text(text)
    assert spelled.split("/")[-1] in oocpeg("run", "nightly.toml", code=2).stderr


@pytest.mark.parametrize("how", ["itself", "link", "copy", "pattern", "store"])
def test_inputs_are_not_reference_sets(tmp_path, how):
    """Neither before they are appended nor after."""
    job_of(tmp_path)
    put_day(tmp_path, 1)
    source, golden = put_day(tmp_path, 2), tmp_path / "golden.svm"
    golden.unlink()
    change = ("golden.svm", "golden.svm")
    if how == "itself":
        change = ("golden.svm", "incoming/day-02.svm")
    elif how == "pattern":
        change = ("golden.svm", "incoming/../incoming/day-0[2-9].svm")
    elif how == "link":
        os.symlink(source, golden)
    elif how == "copy":
        shutil.copy(source, golden)
    else:
        convert([str(source)], golden, nightly(tmp_path).convert)
    job = nightly(tmp_path, change)
    check_job_refused(
        job, UsageError, r"a reference set with rows of an input of the job, .*day-02.svm; take it out", day=2
    )
    assert not (tmp_path / "clicks.store").exists()
    run(nightly(tmp_path, ('golden = ["golden.svm"]\n', "")), now=clock_of(2))
    check_job_refused(
        job, UsageError, r"a reference set with rows that models are trained on, those of .*day-02.svm", day=3
    )


def test_inputs_and_reference_set_by_two_patterns(tmp_path, oocpeg):
    """As one writes a job file in a hurry."""
    job_of(tmp_path)
    put_day(tmp_path, 1)
    text = (tmp_path / "nightly.toml").read_text().replace('["incoming/*.svm"]', '["incoming/*.svm", "*.svm"]')
    (tmp_path / "nightly.toml").write_text(text)
    for more in (("--dry-run",), ()):
        said = oocpeg("run", "nightly.toml", *more, code=2).stderr
        assert "golden.svm: a reference set with rows of an input of the job" in said
    assert not (tmp_path / "clicks.store").exists()


def test_contents_are_compared_only_if_sizes_are_equal(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    put_day(tmp_path, 1)
    run(job, now=clock_of(1))
    hashed = []
    hash_of = source_check.hash_of
    monkeypatch.setattr(source_check, "hash_of", lambda name: hashed.append(Path(name).name) or hash_of(name))
    put_day(tmp_path, 2)
    plan(job, clock_of(2)())
    assert "golden.svm" not in hashed
    size = (tmp_path / "incoming" / "day-01.svm").stat().st_size
    content = (tmp_path / "golden.svm").read_bytes()[:size]
    (tmp_path / "golden.svm").write_bytes(content[: content.rfind(b"\n")].ljust(size))
    plan(job, clock_of(2)())
    assert hashed.count("golden.svm") == 1


def test_folders_of_texts_as_reference_sets(tmp_path):
    for folder in ("mails", "golden"):
        for name, word in (("good", "fine"), ("bad", "poor")):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(30):
                (tmp_path / folder / name / f"{number}.txt").write_text(f"{word} words {number} {folder}")
    job = job_with(tmp_path, "hash_bits = 10", '["mails"]', '["golden"]')
    itself = job_with(tmp_path, "hash_bits = 10", '["mails"]', '["mails"]')
    check_job_refused(itself, UsageError, "a reference set with rows of an input of the job, .*mails", day=1)
    run(job, now=clock_of(1))
    store = Store.open(tmp_path / "s.store")
    refuse_trained_on(job, [], store.manifest)
    with pytest.raises(UsageError, match="a reference set with rows that models are trained on"):
        refuse_trained_on(itself, [], store.manifest)
    check_reference_sets(job, store)
    (tmp_path / "golden" / "bad").rename(tmp_path / "golden" / "awful")
    with pytest.raises(InputError, match="the label 'awful' is not one of bad, good"):
        check_reference_sets(job, store)


# --- options that contradict the store --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("features = 40", "features = 40\nnormalize = 'l2'"), "normalize=l2: the store was made otherwise"),
        (("features = 40", "features = 50"), "features=50: the store was made with 40"),
        (("features = 40", "features = 40\ntask = 'regression'"), "task=regression: the store was made with binary"),
        (("index_base = 1", "format = 'vw'"), "format=vw: the store was made of svmlight"),
        (("index_base = 1", "hash_bits = 9"), "hash_bits is for .* read as svmlight; leave it out"),
    ],
)
def test_options_that_contradict_the_store_though_nothing_is_new(tmp_path, change, message):
    put_day(tmp_path, 1)
    run(job_of(tmp_path), now=clock_of(1))
    plan(nightly(tmp_path), clock_of(2)())
    job = nightly(tmp_path, change)
    check_job_refused(job, UsageError, message)
    with pytest.raises(UsageError, match=message):
        run(job, now=clock_of(2))
    put_day(tmp_path, 2)
    check_job_refused(job, UsageError, message)
