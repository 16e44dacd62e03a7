"""Golden sets of jobs, looked at before anything is done; files to be scored whose names do not say what they are."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import svmlight_text
from nights import job_of, night, put, rows_of

from ooc_pegasos import ConvertConfig, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.evaluation import evaluate, predict
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.plan import plan
from ooc_pegasos.jobs.run import run

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


def vw_text(rows, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=rows)
    return "".join(f"{2 * y - 1} |n a:{y + 0.3 * rng.normal():.3f} b:{rng.normal():.3f}\n" for y in labels)


WRITERS = {"table": table_text, "vw": vw_text}


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


def refused(job, kind, message, day=2):
    with pytest.raises(kind, match=message):
        plan(job, night(day)())


# --- files whose names do not say what they are -----------------------------------------------------------


@pytest.mark.parametrize(("kind", "suffix"), [("table", "dat"), ("table", "txt.gz"), ("vw", "txt"), ("vw", "rows")])
def test_a_file_that_does_not_say_what_it_is_is_read_as_the_model_reads(tmp_path, kind, suffix):
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


def test_what_it_then_is_not_is_refused_with_its_line(tmp_path):
    (tmp_path / "in.dat").write_text(table_text(200, 1))
    (tmp_path / "in.vw").write_text(vw_text(200, 1))
    table = ConvertConfig(format="table", delimiter="|", label="y")
    of_table = train(convert([str(tmp_path / "in.dat")], tmp_path / "a", table), TrainConfig(lam=0.01)).model
    of_vw = train(convert([str(tmp_path / "in.vw")], tmp_path / "b"), TrainConfig(lam=0.01)).model
    matrix, labels = rows_of(5, 1)
    for name in ("rows.txt", "rows.svm", "rows.svm.gz"):
        (tmp_path / name).write_text(svmlight_text(matrix, labels))
    with pytest.raises(InputError, match=r"rows.txt: no column 'a', 'b', 'y'; the columns are"):
        evaluate(of_table, tmp_path / "rows.txt")
    with pytest.raises(InputError, match=r"rows.txt:1: no '\|' in the line"):
        evaluate(of_vw, tmp_path / "rows.txt")
    (tmp_path / "half.txt").write_text(vw_text(3, 1) + "1 3:1\n")
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
def test_golden_sets_that_do_not_say_what_they_are(tmp_path, options, suffix):
    writer = WRITERS["table" if options == TABLE else "vw"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"1.{suffix}").write_text(writer(200, 1))
    (tmp_path / f"golden.{suffix}").write_text(writer(100, 2))
    job = job_with(tmp_path, options, f'["in/*.{suffix}"]', f'["golden.{suffix}"]')
    assert plan(job, night(1)()).golden == 1
    assert run(job, now=night(1))["metrics"][f"golden.{suffix}"]["challenger"]["rows"] == 100
    (tmp_path / "in" / f"2.{suffix}").write_text(writer(200, 3))
    assert run(job, now=night(2))["outcome"] == "promoted"


# --- options that contradict the store --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("features = 40", "features = 40\nnormalize = 'l2'"), "--normalize l2: the store was made otherwise"),
        (("features = 40", "features = 50"), "--features 50: the store was made with 40"),
        (("features = 40", "features = 40\ntask = 'regression'"), "--task regression: the store was made with binary"),
        (("index_base = 1", "format = 'vw'"), "--format vw: the store was made of svmlight"),
        (("index_base = 1", "hash_bits = 9"), "--hash-bits is for .* read as svmlight; leave it out"),
    ],
)
def test_options_that_contradict_the_store_though_nothing_is_new(tmp_path, oocpeg, change, message):
    put(tmp_path, 1)
    run(job_of(tmp_path), now=night(1))
    plan(nightly(tmp_path), night(2)())
    job = nightly(tmp_path, change)
    refused(job, UsageError, message)
    with pytest.raises(UsageError, match=message):
        run(job, now=night(2))
    put(tmp_path, 2)
    refused(job, UsageError, message)
