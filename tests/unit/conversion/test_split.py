"""Test rows that are reserved when inputs are converted."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate, seen_in_training
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.store.drop import drop
from ooc_pegasos.store.verify import verify
from support.file_bytes import folder_bytes
from support.table_files import write_frame

ROWS = 3000


def numbered_table(seed=0, rows=ROWS):
    """A table whose column n is the number of a row."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"n": np.arange(1, rows + 1) + rows * seed, "a": rng.standard_normal(rows)})
    frame["word"] = rng.choice(["x", "y", "z"], rows)
    frame["user"] = [f"u{number}" for number in rng.integers(0, 400, rows)]
    frame["y"] = np.where(frame["a"] + rng.standard_normal(rows) > 0, "yes", "no")
    return frame


CONFIG = ConvertConfig(label="y", numeric=("n",), standardize=False, test=0.25)


def numbers(store):
    """The numbers of the rows of a store, which are its only feature."""
    return sorted(store.to_scipy()[0].toarray()[:, 0].astype(int).tolist())


def numbered_file(folder, suffix, frame=None):
    path, frame = folder / f"rows{suffix}", numbered_table() if frame is None else frame
    if suffix in (".parquet", ".csv", ".jsonl"):
        return write_frame(frame, path)
    if suffix == ".svm":
        pairs = zip(frame["y"], frame["n"], strict=True)
        path.write_text("".join(f"{'+1' if y == 'yes' else '-1'} 1:{n}\n" for y, n in pairs))
    else:
        sp.save_npz(path, sp.csr_matrix(frame[["n"]].to_numpy(np.float32)))
        np.save(folder / "labels.npy", np.where(frame["y"] == "yes", 1, -1))
    return path


def config_for(suffix, folder, **options):
    if suffix in (".svm", ".npz"):
        config = ConvertConfig(test=0.25, labels=str(folder / "labels.npy") if suffix == ".npz" else None)
    else:
        config = CONFIG
    return dataclasses.replace(config, **options)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".svm", ".npz"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_in_one_part(tmp_path, suffix, shuffle):
    path = numbered_file(tmp_path, suffix)
    store = convert(path, tmp_path / "s", config_for(suffix, tmp_path, shuffle=shuffle, block_size=4096))
    assert sorted(numbers(store) + numbers(store.test)) == list(range(1, ROWS + 1))
    assert store.test.rows == pytest.approx(ROWS / 4, abs=4 * np.sqrt(ROWS * 3 / 16))
    assert store.manifest.labels.classes == store.test.manifest.labels.classes
    for one in (store, store.test):
        assert verify(one).problems == []
        assert Store.open(one.path).manifest == one.manifest
    again = convert(path, tmp_path / "again", config_for(suffix, tmp_path, shuffle=shuffle, block_size=4096, threads=1))
    assert numbers(again.test) == numbers(store.test)


def test_rows_of_an_id_stay_together_in_any_file(tmp_path):
    frame, config = numbered_table(), dataclasses.replace(CONFIG, id="user")
    parts = {}
    for name, some in (("whole", frame), ("reversed", frame[::-1]), ("half", frame[: ROWS // 2])):
        (tmp_path / name).mkdir()
        store = convert(numbered_file(tmp_path / name, ".csv", some), tmp_path / name / "s", config)
        users = frame.set_index("n")["user"]
        found = [set(users[numbers(one)]) for one in (store, store.test)]
        assert not found[0] & found[1]
        parts[name] = found
    assert parts["whole"] == parts["reversed"]
    assert parts["half"][1] <= parts["whole"][1]


def test_weights_beside_go_with_their_rows(tmp_path):
    frame = numbered_table()
    (tmp_path / "w.txt").write_text("".join(f"{number}\n" for number in frame["n"]))
    config = dataclasses.replace(CONFIG, weights=str(tmp_path / "w.txt"), block_size=4096)
    store = convert(numbered_file(tmp_path, ".csv"), tmp_path / "s", config)
    for one in (store, store.test):
        matrix, _labels = one.to_scipy()
        assert (matrix.toarray()[:, 0] == one.weights()).all()


def test_bad_rows_are_skipped_in_both_parts(tmp_path):
    frame = numbered_table().astype({"n": object})
    frame.loc[[7, 1000, 2500], "n"] = "seven"
    config = dataclasses.replace(CONFIG, on_bad_row="skip", block_size=4096)
    frame["n"] = frame["n"].astype(str)
    store = convert(numbered_file(tmp_path, ".csv", frame), tmp_path / "s", config)
    assert store.rows + store.test.rows == ROWS - 3
    assert store.manifest.rejected == 3


def test_classes_of_test_rows_alone_are_known(tmp_path):
    frame = numbered_table()
    frame["y"] = [f"c{number % 40}" for number in frame["n"]]
    frame = frame.groupby("y").head(2)
    store = convert(numbered_file(tmp_path, ".csv", frame), tmp_path / "s", dataclasses.replace(CONFIG, test=0.5))
    assert store.manifest.labels.classes == store.test.manifest.labels.classes
    assert len(store.manifest.labels.classes) == 40
    assert 0 in store.manifest.labels.counts
    model = train(store, TrainConfig(lam=0.1)).model
    assert evaluate(model, store.test.path)["rows"] == store.test.rows


def test_small_files_may_have_no_row_in_a_part(tmp_path):
    paths = []
    for number in range(12):
        path = tmp_path / f"{number}.csv"
        numbered_table(number, 2).to_csv(path, index=False)
        paths.append(str(path))
    store = convert(paths, tmp_path / "s", CONFIG)
    assert store.rows + store.test.rows == 24


def test_appended_rows_are_split_alike(tmp_path):
    first, second = (tmp_path / f"{seed}.csv" for seed in (0, 1))
    for seed, path in enumerate((first, second)):
        numbered_table(seed).to_csv(path, index=False)
    convert(first, tmp_path / "s", dataclasses.replace(CONFIG, id="user"))
    store = convert(second, tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    assert sorted(numbers(store) + numbers(store.test)) == list(range(1, 2 * ROWS + 1))
    users = pd.concat([numbered_table(0), numbered_table(1)]).set_index("n")["user"]
    assert not set(users[numbers(store)]) & set(users[numbers(store.test)])
    with pytest.raises(UsageError, match=r"test=0\.5: the store was made with test=0\.25"):
        convert(second, tmp_path / "s", ConvertConfig(test=0.5), existing=Existing(append=True))
    convert(first, tmp_path / "t", dataclasses.replace(CONFIG, test=None))
    with pytest.raises(UsageError, match="the store was made with test=0"):
        convert(second, tmp_path / "t", ConvertConfig(test=0.5), existing=Existing(append=True))


def test_a_finished_part_is_not_made_again(tmp_path):
    path = numbered_file(tmp_path, ".csv")
    whole = convert(path, tmp_path / "whole", CONFIG)
    store = convert(path, tmp_path / "s", CONFIG)
    shutil.rmtree(store.test.path)  # as if interrupted between both parts
    before = {file.name: file.stat().st_mtime_ns for file in store.path.iterdir()}
    again = convert(path, tmp_path / "s", CONFIG, existing=Existing(resume=True))
    assert {file.name: file.stat().st_mtime_ns for file in store.path.iterdir()} == before
    assert numbers(again.test) == numbers(whole.test)
    other = convert(path, tmp_path / "s", dataclasses.replace(CONFIG, test=0.5), existing=Existing(force=True))
    assert other.test.rows > whole.test.rows
    with pytest.raises(InputError, match="exists already, made from other inputs or with other options"):
        convert(path, tmp_path / "s", dataclasses.replace(CONFIG, test=0.1), existing=Existing(resume=True))


@pytest.mark.parametrize("appended", [False, True])
def test_an_interrupted_conversion_is_finished_by_the_same_command(tmp_path, appended):
    paths = [write_frame(numbered_table(seed), tmp_path / f"{seed}.csv") for seed in (0, 1, 2)]
    last, existing = paths[appended], Existing(append=appended)
    if appended:
        convert(paths[0], tmp_path / "s", CONFIG)
        shutil.copytree(tmp_path / "s.test", tmp_path / "before")
    convert(last, tmp_path / "s", CONFIG, existing=existing)
    expected = {folder: folder_bytes(tmp_path / folder) for folder in ("s", "s.test")}
    shutil.rmtree(tmp_path / "s.test")
    if appended:
        shutil.move(tmp_path / "before", tmp_path / "s.test")
    with pytest.raises(InputError, match=r"s\.test: has no test rows of .*; run that conversion again to finish it"):
        convert(paths[2], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    convert(last, tmp_path / "s", CONFIG, existing=existing)
    assert {folder: folder_bytes(tmp_path / folder) for folder in ("s", "s.test")} == expected
    store = convert(paths[2], tmp_path / "s", ConvertConfig(), existing=Existing(append=True))
    assert len(set(numbers(store) + numbers(store.test))) == store.rows + store.test.rows == (2 + appended) * ROWS


def test_test_rows_of_another_store_are_not_used(tmp_path):
    path = numbered_file(tmp_path, ".csv")
    convert(path, tmp_path / "s", CONFIG)
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(InputError, match=r"s\.test: exists already"):
        convert(path, tmp_path / "s", CONFIG)
    store = convert(path, tmp_path / "s", dataclasses.replace(CONFIG, test=None))
    assert store.test is None
    other = convert(path, tmp_path / "s", dataclasses.replace(CONFIG, test=0.5), existing=Existing(force=True))
    assert sorted(numbers(other) + numbers(other.test)) == list(range(1, ROWS + 1))


@pytest.mark.parametrize("what", ["drop", "expire"])
def test_rows_leave_both_parts(tmp_path, what):
    first, second = (write_frame(numbered_table(seed), tmp_path / f"{seed}.csv") for seed in (0, 1))
    os.utime(first, ns=(10**9, 10**9))
    for path in (first, second):
        convert(path, tmp_path / "s", CONFIG, existing=Existing(append=path is second))
    if what == "drop":
        assert drop(tmp_path / "s", [str(first)]).rows == ROWS
    else:
        expire(tmp_path / "s", 2 * 10**9)
    store = Store.open(tmp_path / "s")
    assert sorted(numbers(store) + numbers(store.test)) == list(range(ROWS + 1, 2 * ROWS + 1))


def test_a_preset_and_a_split(tmp_path):
    rng = np.random.default_rng(0)
    words = rng.choice(["ab", "cd", ""], (400, 26))
    cells = [[str(number % 2), *map(str, rng.integers(0, 9, 13)), *words[number]] for number in range(400)]
    (tmp_path / "day_0.tsv").write_text("".join("\t".join(row) + "\n" for row in cells))
    store = convert(tmp_path / "day_0.tsv", tmp_path / "s", ConvertConfig(preset="criteo", test=0.25))
    assert store.rows + store.test.rows == 400
    assert store.manifest.recipe == store.test.manifest.recipe


def test_test_rows_are_not_those_of_the_training(tmp_path):
    path = numbered_file(tmp_path, ".csv")
    store = convert(path, tmp_path / "s", CONFIG)
    model = train(store, TrainConfig(lam=0.1)).model
    assert not seen_in_training(model, store.test.path)
    assert seen_in_training(model, store.path)
    assert seen_in_training(model, path)
    assert seen_in_training(train(store.test, TrainConfig(lam=0.1)).model, store.test.path)


def test_pipes_and_wrong_fractions_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.svm")
    with pytest.raises(UsageError, match="test reads the inputs twice"):
        convert(tmp_path / "pipe.svm", tmp_path / "s", ConvertConfig(test=0.2))
    for fraction in (0.0, 1.0, -1.0):
        with pytest.raises(UsageError, match="a fraction between 0 and 1"):
            ConvertConfig(test=fraction)


def test_commands(tmp_path, oocpeg):
    frame = numbered_table()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    words = ("--label", "y", "--ignore", "n", "--ignore", "user", "--test", "0.25")
    found = oocpeg("convert", "rows.csv", "-o", "s", *words).stdout
    assert "s.test: " in found
    oocpeg("train", "s", "-o", "m", "--lambda", "0.01")
    result = json.loads(oocpeg("evaluate", "m", "s", "--part", "test", "--json").stdout)
    assert result["rows"] == Store.open(tmp_path / "s").test.rows
    assert result["seen_in_training"] is False
    predicted = oocpeg("predict", "m", "s", "--part", "test", "-o", "-").stdout
    assert len(predicted.splitlines()) == result["rows"] + 1
    assert "s.test: has no test part" in oocpeg("evaluate", "m", "s.test", "--part", "test", code=2).stderr
    at_once = oocpeg("train", "rows.csv", "-o", "m2", "--lambda", "0.01", *words, "--json").stdout
    assert json.loads(at_once)["test"]["error"] == result["error"]
    assert json.loads(at_once)["conversion"]["test_rows"] == result["rows"]
    shown = oocpeg("train", "rows.csv", "-o", "m2", "--lambda", "0.01", *words, "--force").stdout
    assert f"test on {result['rows']:,} rows, error {100 * result['error']:.2f} %" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m2", "rows.csv", "s", "s.test"]
