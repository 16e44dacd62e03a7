"""Interpretation of labels."""

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, Existing, OocPegasosError, Store, convert
from ooc_pegasos.errors import InputError, UsageError


def stored_labels(folder, given, **options):
    source = folder / "in.svm"
    source.write_text("".join(f"{label} 1:1\n" for label in given))
    config = ConvertConfig(**{"shuffle": False, "block_size": 64, **options})
    store = convert([str(source)], folder / "store", config, existing=Existing(force=True))
    found = np.concatenate([block.labels for block in store.blocks()])
    return store.manifest.labels, found


@pytest.mark.parametrize(
    ("given", "negative", "positive"),
    [
        (["-1", "+1", "1.0"], "-1", "1"),
        (["0", "1", "0"], "0", "1"),
        (["2", "1", "1"], "1", "2"),
        (["-0.5", "7"], "-0.5", "7"),
        (["spam", "ham", "spam"], "ham", "spam"),
    ],
)
def test_two_labels_are_binary_and_the_larger_is_positive(tmp_path, given, negative, positive):
    info, found = stored_labels(tmp_path, given * 20)
    assert (info.task, info.classes) == ("binary", [negative, positive])
    same = {"+1": "1", "1.0": "1"}
    assert found.tolist() == [1 if same.get(label, label) == positive else -1 for label in given] * 20
    assert info.counts == [(found < 0).sum(), (found > 0).sum()]


def test_positive_label(tmp_path):
    info, found = stored_labels(tmp_path, ["1", "2"] * 9, positive_label="1")
    assert (info.classes, found[:2].tolist()) == (["2", "1"], [1, -1])
    info, found = stored_labels(tmp_path, ["a", "b", "c", "b"], positive_label="b")
    assert (info.task, info.rest, info.classes) == ("binary", True, ["not b", "b"])
    assert found.tolist() == [-1, 1, -1, 1]
    with pytest.raises(InputError, match="no row has the positive label d; the labels are a, b, c"):
        stored_labels(tmp_path, ["a", "b", "c"], positive_label="d")


def test_many_classes(tmp_path):
    rng = np.random.default_rng(1)
    given = rng.integers(0, 105, 5000)
    info, found = stored_labels(tmp_path, given)
    assert info.task == "multiclass"
    assert info.classes == [str(i) for i in range(105)]
    assert np.array_equal(found, given)
    assert info.counts == np.bincount(given).tolist()
    info, found = stored_labels(tmp_path, ["10", "9", "-3"])  # by size, not by spelling
    assert (info.classes, found.tolist()) == (["-3", "9", "10"], [2, 1, 0])
    info, found = stored_labels(tmp_path, ["zoo", "art", "new"] * 30)
    assert (info.classes, found[:3].tolist()) == (["art", "new", "zoo"], [2, 0, 1])


def test_real_targets(tmp_path):
    given = [0.5, 1.25, -3.0, 0.5]
    info, found = stored_labels(tmp_path, given)
    assert (info.task, info.classes, found.dtype) == ("regression", [], np.float32)
    assert found.tolist() == given
    given = np.random.default_rng(2).standard_normal(300)
    info, found = stored_labels(tmp_path, map(repr, map(float, given)))
    assert found.dtype == np.float64
    assert np.array_equal(found, given)
    info, found = stored_labels(tmp_path, [3, 1, 2], task="regression")
    assert (info.task, found.tolist()) == ("regression", [3, 1, 2])


def whole_numbers(different, rows):
    """So many different whole numbers in so many rows, each at least once."""
    return [7 * (i % different) - 100 for i in range(rows)]


@pytest.mark.parametrize(
    ("different", "rows", "task"),
    [
        (2, 2, "binary"),
        (3, 3, "multiclass"),
        (50, 50, "multiclass"),
        (51, 51, "regression"),
        (51, 509, "regression"),
        (51, 510, "multiclass"),
        (52, 519, "regression"),
        (52, 520, "multiclass"),
        (1000, 9_999, "regression"),
        (1000, 10_000, "multiclass"),
        (1001, 10_009, "regression"),
        (1001, 10_010, None),
        (65_536, 70_000, "regression"),
        (65_537, 70_000, "regression"),
        (65_537, 655_369, "regression"),
        (65_537, 655_370, "stop"),
    ],
)
def test_whole_numbers_that_are_targets(tmp_path, different, rows, task):
    """More than 50 and more than a tenth of the rows are targets; of more than 1,000 others the user decides."""
    given = whole_numbers(different, rows)
    if task in (None, "stop"):
        told = "the labels are 1,001 different numbers; say task=regression if they are quantities, or task=multiclass"
        if task == "stop":
            told = "the labels are more than 65,536 different numbers; say task=regression if they are quantities$"
        with pytest.raises(InputError, match=told):
            stored_labels(tmp_path, given, block_size=1 << 20)
        assert list(tmp_path.iterdir()) == [tmp_path / "in.svm"]
        return
    info, found = stored_labels(tmp_path, given, block_size=1 << 20)
    assert info.task == task
    if task == "regression":
        assert (info.classes, found.tolist()) == ([], given)
    else:
        names = sorted(set(given))
        assert info.classes == list(map(str, names))
        codes = {name: 2 * at - 1 if different == 2 else at for at, name in enumerate(names)}
        assert found.tolist() == [codes[label] for label in given]


@pytest.mark.parametrize(
    ("options", "task", "classes"),
    [
        ({"task": "multiclass"}, "multiclass", 1001),
        ({"task": "regression"}, "regression", 0),
        ({"positive_label": "5"}, "binary", 2),
        ({"classes": tuple(map(str, range(1100)))}, "multiclass", 1100),
    ],
)
def test_many_whole_numbers_with_an_option(tmp_path, options, task, classes):
    for rows in (1200, 10_010):
        given = [i % 1001 for i in range(rows)]
        info, _found = stored_labels(tmp_path, given, block_size=1 << 20, **options)
        assert (info.task, len(info.classes)) == (task, classes)


@pytest.mark.parametrize("rows", [60, 3000])
def test_many_words_are_classes(tmp_path, rows):
    info, _found = stored_labels(tmp_path, [f"w{i}" for i in range(rows)], block_size=1 << 20)
    assert (info.task, len(info.classes)) == ("multiclass", rows)


def test_too_many_words(tmp_path):
    with pytest.raises(InputError, match="more than 65,536 different labels, too many for classes; check the column"):
        stored_labels(tmp_path, [f"w{i}" for i in range(65_537)], block_size=1 << 20)


@pytest.mark.parametrize(
    ("given", "task"),
    [
        ([0.5, 2] * 30, "binary"),
        ([0.5, 2, 3] * 30, "regression"),
        (["1.0", "2e0", "+3"] * 30, "multiclass"),
        ([-i for i in range(51)], "regression"),
        ([*range(51), *[0] * 1000], "multiclass"),
        ([*range(2000, 2060), 2000.5], "regression"),
    ],
)
def test_fractions_and_other_spellings(tmp_path, given, task):
    assert stored_labels(tmp_path, given)[0].task == task


def test_rejected_rows_do_not_count(tmp_path):
    """51 numbers in 510 rows would be classes."""
    lines = [f"{i % 51} 1:1\n" for i in range(510)]
    lines[7] = "many 1:1\n"
    (tmp_path / "in.svm").write_text("".join(lines))
    store = convert([str(tmp_path / "in.svm")], tmp_path / "s", ConvertConfig(on_bad_row="skip"))
    assert (store.rows, store.manifest.labels.task) == (509, "regression")


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl", "in.parquet", "in.vw", "memory"])
def test_the_rule_in_every_format(tmp_path, name):
    for rows, task in ((509, "regression"), (510, "multiclass")):
        labels = whole_numbers(51, rows)
        if name == "memory":
            store = Store.from_scipy(np.eye(1)[[0] * rows], np.array(labels), tmp_path / f"{rows}")
            assert store.manifest.labels.task == task
            continue
        frame = pd.DataFrame({"label": labels, "x": 1.5})
        if name == "in.csv":
            frame.to_csv(tmp_path / name, index=False)
        elif name == "in.jsonl":
            frame.to_json(tmp_path / name, orient="records", lines=True)
        elif name == "in.parquet":
            frame.to_parquet(tmp_path / name)
        else:
            (tmp_path / name).write_text("".join(f"{label} | x\n" for label in labels))
        store = convert([str(tmp_path / name)], tmp_path / f"{rows}", ConvertConfig(block_size=500))
        assert store.manifest.labels.task == task


def test_appended_labels_are_those_of_the_store(tmp_path):
    """Whatever the numbers of different labels."""
    _info, _found = stored_labels(tmp_path, whole_numbers(60, 60))
    (tmp_path / "more.svm").write_text("1 1:1\n2 1:1\n" * 300)
    store = convert([str(tmp_path / "more.svm")], tmp_path / "store", existing=Existing(append=True))
    assert (store.manifest.labels.task, store.rows) == ("regression", 660)
    _info, _found = stored_labels(tmp_path, ["1", "2"])
    (tmp_path / "more.svm").write_text("3 1:1\n")
    with pytest.raises(InputError, match="the label '3' is not one of 1, 2"):
        convert([str(tmp_path / "more.svm")], tmp_path / "store", existing=Existing(append=True))


def test_declared_classes(tmp_path):
    info, found = stored_labels(tmp_path, ["1", "1"], classes=("-1", "1"))
    assert (info.classes, info.counts, found.tolist()) == (["-1", "1"], [0, 2], [1, 1])
    info, found = stored_labels(tmp_path, ["b", "a"], classes=("c", "b", "a"))
    assert (info.task, found.tolist()) == ("multiclass", [1, 2])
    with pytest.raises(InputError, match=r"in\.svm:3: the label '2' is not one of -1, 1"):
        stored_labels(tmp_path, ["1", "-1", "2", "3"], classes=("-1", "1"))
    info, found = stored_labels(tmp_path, ["1", "-1", "2", "3", "1"], classes=("-1", "1"), on_bad_row="skip")
    assert found.tolist() == [1, -1, 1]


@pytest.mark.parametrize(
    ("given", "options", "problem"),
    [
        (["1", "1"], {}, "every row has the label 1; name all labels with classes"),
        (["1", "2", "3"], {"task": "binary"}, r"in\.svm:3: a third label, '3', where task=binary allows two"),
        (["a", "b"], {"task": "regression"}, r"in\.svm:1: the label 'a' is not a number"),
        (["1", "a"], {}, r"in\.svm:2: the label 'a' is not a number"),
    ],
)
def test_labels_that_need_a_word(tmp_path, given, options, problem):
    with pytest.raises(InputError, match=problem):
        stored_labels(tmp_path, given, **{"block_size": 1 << 20, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"classes": ("a", "a")},
        {"task": "regression", "classes": ("a", "b")},
        {"task": "multiclass", "positive_label": "a"},
        {"classes": ("a", "b"), "positive_label": "c"},
        {"task": "binary", "classes": ("a", "b", "c")},
    ],
)
def test_contradictions(options):
    with pytest.raises(UsageError):
        ConvertConfig(**options)


def test_numbers_are_text_if_the_classes_say_so(tmp_path):
    info, found = stored_labels(tmp_path, ["1", "x", "1"], classes=("1", "x"))
    assert (info.text, found.tolist()) == (True, [-1, 1, -1])
    assert issubclass(UsageError, OocPegasosError)


BEYOND = ["1", "9007199254740993", "9007199254740992"]
NEIGHBOURS = r"the label 9007199254740992 is not below 2\^53.* write labels as words or as smaller numbers"


@pytest.mark.parametrize(
    ("name", "begin", "row"),
    [
        ("in.svm", "", "{} 1:1\n"),
        ("in.vw", "", "{} | a\n"),
        ("in.csv", "label,x\n", "{},1\n"),
        ("in.jsonl", "", '{{"label": {}, "x": 1}}\n'),
        ("in.jsonl", "", '{{"label": {}.0, "x": 1}}\n'),
    ],
)
def test_classes_that_float64_cannot_tell_apart_are_refused(tmp_path, name, begin, row):
    source = tmp_path / name
    source.write_text(begin + "".join(map(row.format, BEYOND)))
    for options in ({}, {"task": "multiclass"}, {"positive_label": "1"}):
        with pytest.raises(InputError, match=r"the label 900719925474099[23] is not below"):
            convert([str(source)], tmp_path / "store", ConvertConfig(shuffle=False, **options))
    assert not (tmp_path / "store").exists()


def test_classes_of_arrays_that_float64_cannot_tell_apart_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    (tmp_path / "yl.txt").write_text("\n".join(BEYOND))
    for kind in (np.int64, np.uint64):
        labels = np.array(BEYOND, kind)
        np.save(tmp_path / "yl.npy", labels)
        for file in ("yl.npy", "yl.txt"):
            with pytest.raises(InputError, match=NEIGHBOURS):
                convert([str(tmp_path / "x.npy")], tmp_path / "s", ConvertConfig(labels=str(tmp_path / file)))
        with pytest.raises(InputError, match=NEIGHBOURS):
            Store.from_scipy(np.eye(3), labels, tmp_path / "s")


def test_how_large_classes_and_targets_may_be(tmp_path):
    most = str(2**53 - 1)
    assert stored_labels(tmp_path, [most, "-" + most, "0"])[0].classes == ["-" + most, "0", most]
    with pytest.raises(InputError, match="the label -9007199254740992 is"):
        stored_labels(tmp_path, ["-9007199254740993", "1"])
    info, found = stored_labels(tmp_path, BEYOND, task="regression")
    assert (info.task, found.tolist()) == ("regression", [1, 2**53, 2**53])
    info, found = stored_labels(tmp_path, BEYOND, classes=("a", *BEYOND))
    assert (info.text, found.tolist()) == (True, [1, 2, 3])
    for options in ({"classes": BEYOND}, {"positive_label": BEYOND[1]}):
        with pytest.raises(UsageError, match=NEIGHBOURS):
            ConvertConfig(**options)
