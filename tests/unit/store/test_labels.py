"""Interpretation of labels."""

import numpy as np
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
