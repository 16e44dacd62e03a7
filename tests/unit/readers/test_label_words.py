"""Text files of labels that are words, for matrices."""

import gzip
import json

import numpy as np
import pytest
import scipy.sparse as sp

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.scoring.model import Model

WORDS = ["ham", "spam", "not sure", "größe", "1"]


def matrix_and_words(folder, words, name="in.npz", labels="labels.txt"):
    """Write a matrix whose first column is the number of the word of each row."""
    numbers = [WORDS.index(word) + 1 for word in words]
    matrix = np.stack([np.array(numbers, np.float32), np.arange(1, len(words) + 1)], axis=1)
    sp.save_npz(folder / name, sp.csr_matrix(matrix)) if name.endswith("z") else np.save(folder / name, matrix)
    text = "".join(f"{word}\n" for word in words).encode()
    (folder / labels).write_bytes(gzip.compress(text) if labels.endswith("gz") else text)
    return str(folder / name), str(folder / labels)


@pytest.mark.parametrize("name", ["in.npz", "in.npy"])
@pytest.mark.parametrize("labels", ["labels.txt", "labels.gz"])
@pytest.mark.parametrize("number", [2, 5])
def test_words_are_classes(tmp_path, name, labels, number):
    words = np.random.default_rng(0).choice(WORDS[:number], 60_000).tolist()
    words[0] = "ham"  # the first label is no number
    data, file = matrix_and_words(tmp_path, words, name, labels)
    store = convert(data, tmp_path / "s", ConvertConfig(labels=file, shuffle=False, block_size=5000))
    info = store.manifest.labels
    assert (info.text, info.classes) == (True, sorted(WORDS[:number]))
    assert info.counts == [words.count(one) for one in info.classes]
    matrix, found = store.to_scipy()
    codes = np.maximum(found, 0).astype(int)
    assert [info.classes[code] for code in codes] == words
    assert [WORDS[at - 1] for at in matrix.toarray()[:, 0].astype(int)] == words


def test_numbers_stay_numbers_unless_words_are_named(tmp_path):
    data, file = matrix_and_words(tmp_path, ["1"] * 3 + ["ham"])
    with pytest.raises(InputError, match=r"labels\.txt:4: the label 'ham' is not a number; .* name words with classes"):
        convert(data, tmp_path / "s", ConvertConfig(labels=file))
    store = convert(data, tmp_path / "s", ConvertConfig(labels=file, classes=("ham", "1")))
    assert store.manifest.labels.counts == [1, 3]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"ham\nspam\n", r"the labels end after 2, but there are 3 rows"),
        (b"ham\nspam\nham\nspam\n", r"labels\.txt:4: a label too many: there are 3 rows"),
        (b"ham\n \nspam\n", r"labels\.txt:2: an empty line where a label should be"),
        (b"ham\nspam\n\xff\n", r"labels\.txt:3: invalid UTF-8"),
        (b"ham\nsp\0am\nham\n", r"labels\.txt:2: a zero byte"),
        (b"ham\n" + b"x" * 500 + b"\nham\n", r"labels\.txt:2: a label of more than 400 bytes"),
    ],
)
def test_wrong_files_of_words(tmp_path, text, problem):
    data, file = matrix_and_words(tmp_path, ["ham", "spam", "ham"])
    (tmp_path / "labels.txt").write_bytes(text)
    with pytest.raises(InputError, match=problem):
        convert(data, tmp_path / "s", ConvertConfig(labels=file))
    assert not (tmp_path / "s").exists()


def test_lines_may_end_as_in_other_systems(tmp_path):
    data, file = matrix_and_words(tmp_path, ["ham", "spam", "not sure"])
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfham\r\nspam \r\n\tnot sure")
    store = convert(data, tmp_path / "s", ConvertConfig(labels=file))
    assert store.manifest.labels.classes == ["ham", "not sure", "spam"]


@pytest.mark.parametrize("positive", [None, "s*"])
def test_models_are_evaluated_with_a_file_of_labels(tmp_path, positive, oocpeg):
    words = np.random.default_rng(1).choice(["ham", "spam", "not sure"], 300).tolist()
    data, file = matrix_and_words(tmp_path, words)
    config = ConvertConfig(labels=file, positive_label=positive, values="float32")
    store = convert(data, tmp_path / "s", config)
    train(store, TrainConfig(lam=1e-2)).model.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    later = ["spam", "ham", "ham", "not sure", "spam"]
    new, labels = matrix_and_words(tmp_path, later, "new.npz", "new.txt")
    predicted = model.predict(sp.load_npz(new))
    truth = [("s*" if one.startswith("s") else "not s*") for one in later] if positive else later
    wrong = float((predicted != np.array(truth)).mean())
    assert evaluate(model, new, labels=labels)["error"] == wrong
    shown = oocpeg("evaluate", "m", "new.npz", "--labels", "new.txt", "--json").stdout
    assert json.loads(shown)["error"] == wrong
    store = convert(new, tmp_path / "s", ConvertConfig(labels=labels), existing=Existing(append=True))
    assert store.rows == 305
    like = convert(new, tmp_path / "like", ConvertConfig(labels=labels, like=str(tmp_path / "s")))
    assert evaluate(model, str(like.path))["error"] == wrong
    with pytest.raises(InputError, match=r"new\.npz: no labels; .*name their file with labels"):
        evaluate(model, new)
    with pytest.raises(UsageError, match=r"labels is for files without labels, but .* is a store"):
        evaluate(model, str(like.path), labels=labels)
    with pytest.raises(UsageError, match="labels is for one name or pattern"):
        evaluate(model, [data, new], labels=labels)
    (tmp_path / "rows.svm").write_text("ham 1:1\n")
    with pytest.raises(
        UsageError, match=r"labels is for arrays and lines of text, and .*rows\.svm is read as svmlight"
    ):
        evaluate(model, str(tmp_path / "rows.svm"), labels=labels)
