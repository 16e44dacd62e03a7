"""Test rows that a rule on a column chooses."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.store.drop import drop
from ooc_pegasos.store.verify import verify
from ooc_pegasos.training.api import fit
from support.file_bytes import folder_bytes

ROWS = 500
BOUND = pd.Timestamp("2026-10-01 12:30:00.5")


def dated_table(seed=0, rows=ROWS, days=0):
    """A table whose column n is the number of a row, with columns to split it by."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"n": np.arange(1, rows + 1) + 10_000 * seed})
    frame["y"] = rng.choice(["no", "yes"], rows)
    shift = pd.to_timedelta(rng.integers(-20_000, 20_000, rows), unit="min") + pd.Timedelta(days=days)
    frame["time"] = (BOUND + shift).astype("datetime64[us]")
    frame.loc[rows // 2, "time"] = BOUND + pd.Timedelta(days=days)
    frame["fold"] = rng.integers(0, 10, rows)
    frame["share"] = rng.normal(size=rows).round(2)
    frame["part"] = rng.choice(["train", "test", "test-2", "other"], rows)
    return frame


def written(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False, date_format="%Y-%m-%dT%H:%M:%S.%f")
    elif path.suffix == ".jsonl":
        frame = frame.assign(time=frame["time"].astype(str))
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    else:
        frame.to_parquet(path, index=False)
    return path


def rule_config(rule, **options):
    return ConvertConfig(label="y", numeric=("n",), standardize=False, split=rule, values="float32", **options)


def row_numbers(store):
    return sorted(store.to_scipy()[0].toarray()[:, 0].astype(int).tolist())


RULES = {
    f"time>={BOUND.isoformat()}": lambda f: f["time"] >= BOUND,
    "time < 2026-10-01": lambda f: f["time"] < pd.Timestamp("2026-10-01"),
    "fold>=7": lambda f: f["fold"] >= 7,
    "fold=3": lambda f: f["fold"] == 3,
    "share<-0.5": lambda f: f["share"] < -0.5,
    "share<=-0.52": lambda f: f["share"] <= -0.52,
    "part=test": lambda f: f["part"] == "test",
    "part=te*": lambda f: f["part"].str.startswith("te"),
    "n>250": lambda f: f["n"] > 250,
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("rule", RULES)
def test_rows_that_match_are_the_test_part(tmp_path, suffix, rule):
    frame = dated_table()
    path = written(frame, tmp_path / f"rows{suffix}")
    store = convert(path, tmp_path / "s", rule_config(rule, block_size=2048))
    is_test = RULES[rule](frame)
    assert row_numbers(store.test) == frame["n"][is_test].tolist()
    assert row_numbers(store) == frame["n"][~is_test].tolist()
    assert store.manifest.recipe == store.test.manifest.recipe
    assert [column.name for column in store.manifest.recipe.table.columns] == ["n"]
    assert verify(store).problems == verify(store.test).problems == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("ns"),
        pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
)
def test_types_of_times(tmp_path, kind):
    frame = dated_table(rows=100)
    times = pa.array(frame["time"].dt.floor("D").astype("datetime64[s]"))
    if pa.types.is_dictionary(kind):
        cells = times.cast(pa.date32()).cast(pa.string()).dictionary_encode()
    else:
        cells = times.cast(kind)
    table = pa.table({"n": frame["n"], "y": frame["y"], "when": cells})
    pq.write_table(table, tmp_path / "rows.parquet")
    store = convert(tmp_path / "rows.parquet", tmp_path / "s", rule_config("when>=2026-10-03"))
    assert row_numbers(store.test) == frame["n"][frame["time"] >= pd.Timestamp("2026-10-03")].tolist()


def test_column_is_no_feature_unless_it_is_named(tmp_path):
    path = written(dated_table(), tmp_path / "rows.csv")
    plain = ConvertConfig(label="y", split="fold>=7")
    names = lambda store: [column.name for column in store.manifest.recipe.table.columns]  # noqa: E731
    assert names(convert(path, tmp_path / "s", plain)) == ["n", "time", "share", "part"]
    named = dataclasses.replace(plain, numeric=("n", "fold"))
    assert names(convert(path, tmp_path / "t", named)) == ["n", "fold"]
    assert names(convert(path, tmp_path / "u", dataclasses.replace(plain, numeric=("[nf]*",)))) == ["n"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_value_that_cannot_be_compared(tmp_path, suffix):
    frame = dated_table().assign(time=lambda f: f["time"].astype(str))
    frame.loc[7, "time"] = "soon"
    frame.loc[9, "time"] = "2026-02-30"
    frame.loc[11, "time"] = None
    if suffix == ".jsonl":
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    else:
        path = written(frame, tmp_path / f"rows{suffix}")
    where = {".csv": r"rows\.csv:9", ".jsonl": r"rows\.jsonl:8", ".parquet": r"rows\.parquet: row 8"}[suffix]
    config = rule_config("time>=2026-10-01")
    problem = f"{where}: 'soon' in column 'time', which splits the rows, is not a date or time like 2026-12-31"
    with pytest.raises(InputError, match=problem):
        convert(path, tmp_path / "s", config)
    store = convert(path, tmp_path / "s", dataclasses.replace(config, on_bad_row="skip"))
    good = frame.drop([7, 9, 11])
    is_test = pd.to_datetime(good["time"], format="ISO8601") >= pd.Timestamp("2026-10-01")
    assert row_numbers(store.test) == good["n"][is_test].tolist()
    assert row_numbers(store) == good["n"][~is_test].tolist()


def test_appended_rows_are_split_by_the_rule(tmp_path):
    first, second = dated_table(), dated_table(1)
    paths = [written(frame, tmp_path / f"{seed}.csv") for seed, frame in enumerate((first, second))]
    convert(paths[0], tmp_path / "s", rule_config("fold>=7"))
    store = convert(paths[1], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    both = pd.concat([first, second])
    assert row_numbers(store.test) == sorted(both["n"][both["fold"] >= 7])
    for other in ({"split": "fold>=8"}, {"test": 0.5}):
        with pytest.raises(UsageError, match=r"the store was made with split=fold>=7; leave it out"):
            convert(paths[1], tmp_path / "s", ConvertConfig(**other), existing=Existing(append=True))
    convert(paths[1], tmp_path / "s", ConvertConfig(split="fold >= 7"), existing=Existing(append=True))
    written(second.drop(columns="fold"), paths[1])
    with pytest.raises(InputError, match="no column 'fold'"):
        convert(paths[1], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    like = convert(paths[1], tmp_path / "like", ConvertConfig(like=str(tmp_path / "s")))  # all rows, in the same way
    assert (like.rows, like.test) == (ROWS, None)


@pytest.mark.parametrize("days", [100, -100])
def test_appended_files_may_be_in_one_part(tmp_path, days):
    frames = [dated_table(), dated_table(1, days=days), dated_table(2)]
    paths = [written(frame, tmp_path / f"{seed}.csv") for seed, frame in enumerate(frames)]
    for path, modified in zip(paths, (3, 1, 2), strict=True):
        os.utime(path, ns=(modified * 10**9,) * 2)
    rule = "time>=2026-10-01"
    convert(paths[0], tmp_path / "s", rule_config(rule))
    shutil.copytree(tmp_path / "s.test", tmp_path / "before")
    convert(paths[1], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    expected = {folder: folder_bytes(tmp_path / folder) for folder in ("s", "s.test")}
    shutil.rmtree(tmp_path / "s.test")  # as if interrupted between both parts
    shutil.move(tmp_path / "before", tmp_path / "s.test")
    with pytest.raises(InputError, match="run that conversion again to finish it"):
        convert(paths[2], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    convert(paths[1], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    assert {folder: folder_bytes(tmp_path / folder) for folder in ("s", "s.test")} == expected
    store = convert(paths[2], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))

    def check(*seeds):
        every = pd.concat([frames[seed] for seed in seeds])
        is_test = every["time"] >= pd.Timestamp("2026-10-01")
        found = Store.open(tmp_path / "s")
        assert row_numbers(found.test) == sorted(every["n"][is_test])
        assert row_numbers(found) == sorted(every["n"][~is_test])
        assert verify(found).problems == verify(found.test).problems == []
        fresh = convert(
            [paths[seed] for seed in seeds], tmp_path / "fresh", rule_config(rule), existing=Existing(force=True)
        )
        for one, other in ((found, fresh), (found.test, fresh.test)):
            assert dataclasses.astuple(one.manifest.statistics) == pytest.approx(
                dataclasses.astuple(other.manifest.statistics)
            )

    check(0, 1, 2)
    drop(store.path, [str(paths[2])])
    check(0, 1)
    with pytest.raises(InputError, match="all its rows are of these files; remove the store instead"):
        drop(store.path, [str(paths[0])])
    check(0, 1)
    drop(store.path, [str(paths[1])])
    check(0)


def test_rows_of_one_part_alone_do_not_expire(tmp_path):
    paths = [written(dated_table(seed, days=100 * seed), tmp_path / f"{seed}.csv") for seed in (0, 1)]
    os.utime(paths[0], ns=(10**9, 10**9))
    for path in paths:
        convert(path, tmp_path / "s", rule_config("time>=2026-10-01"), existing=Existing(append=path is paths[1]))
    before = folder_bytes(tmp_path / "s"), folder_bytes(tmp_path / "s.test")
    with pytest.raises(InputError, match="all its rows are older than that; make a new store"):
        expire(tmp_path / "s", 2 * 10**9)  # no row to train on would be left
    assert (folder_bytes(tmp_path / "s"), folder_bytes(tmp_path / "s.test")) == before


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("fold>=10", "split=fold>=10: no row is for tests, of 500; choose another"),
        ("fold>=0", "split=fold>=0: every row is for tests, of 500"),
        ("folds=1", r"no column 'folds' \(is it 'fold'\?\)"),
        ("time>=7", "column 'time' is of type timestamp.*, which cannot be compared with 7"),
        ("n>=2026-10-01", "column 'n' is of type int64, which cannot be compared with 2026-10-01"),
    ],
)
def test_rules_that_do_not_fit(tmp_path, rule, problem):
    path = written(dated_table(), tmp_path / "rows.parquet")
    with pytest.raises((InputError, UsageError), match=problem):
        convert(path, tmp_path / "s", rule_config(rule))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "rule", ["fold", "=test", "fold=", "fold>=many", "fold>=nan", "date>2026-02-30", "fold>=<7", ""]
)
def test_rules_that_are_not_understood(rule):
    with pytest.raises(UsageError, match="split: "):
        ConvertConfig(split=rule)


def test_what_is_refused(tmp_path):
    (tmp_path / "rows.svm").write_text("1 1:1\n-1 1:2\n")
    with pytest.raises(UsageError, match=r"split is for tables, and .*rows\.svm is read as svmlight"):
        convert(tmp_path / "rows.svm", tmp_path / "s", ConvertConfig(split="fold=test"))
    with pytest.raises(UsageError, match="test and split both choose the rows for tests; give one"):
        ConvertConfig(test=0.1, split="fold=test")
    with pytest.raises(UsageError, match="split: the store is removed at the end"):
        fit(dated_table(), label="y", recipe=ConvertConfig(split="fold>=7"))


def test_a_finished_split_is_not_made_again(tmp_path):
    path = written(dated_table(), tmp_path / "rows.csv")
    store = convert(path, tmp_path / "s", rule_config("fold>=7"))
    before = {file: file.stat().st_mtime_ns for one in (store, store.test) for file in one.path.iterdir()}
    again = convert(path, tmp_path / "s", rule_config(" fold >= 7"), existing=Existing(reuse=True))
    assert {file: file.stat().st_mtime_ns for one in (again, again.test) for file in one.path.iterdir()} == before
    with pytest.raises(InputError, match="exists already, made from other inputs or with other options"):
        convert(path, tmp_path / "s", rule_config("fold>=8"), existing=Existing(reuse=True))


def test_split_on_the_command_line(tmp_path, oocpeg):
    frame = dated_table().drop(columns=["n", "time"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    tests = int((frame["part"] == "test").sum())
    found = oocpeg("convert", "rows.csv", "-o", "s", "--label", "y", "--split", "part=test")
    assert f"s.test: {tests} rows reserved for tests" in found.stdout
    assert "column 'part' splits the rows, and is no feature" in found.stderr
    oocpeg("train", "s", "-o", "m", "--lambda", "0.01")
    result = json.loads(oocpeg("evaluate", "m", "s", "--part", "test", "--json").stdout)
    assert (result["rows"], result["seen_in_training"]) == (tests, False)
    frame.drop(columns="part").to_csv(tmp_path / "new.csv", index=False)  # predictions do not need the column
    assert len(oocpeg("predict", "m", "new.csv", "-o", "-").stdout.splitlines()) == ROWS + 1
    words = ("train", "rows.csv", "-o", "m2", "--lambda", "0.01", "--label", "y", "--split", "part=test", "--json")
    assert json.loads(oocpeg(*words).stdout)["test"]["error"] == result["error"]
