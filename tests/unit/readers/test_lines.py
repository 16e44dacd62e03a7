"""Text with a document a line, against scikit-learn; its labels before a tab, as in fastText, or in a file."""

import gzip
import json

import numpy as np
import pyarrow.csv
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.model import Model
from support.file_bytes import folder_bytes, write_files

WORDS = ["red", "blue", "Ärger", "x1", "a", "e\u0301", "\u3000", "__label__red", "0"]


def texts_with_labels(number, seed=0):
    """Texts without line breaks, some of them empty, and their labels."""
    rng = np.random.default_rng(seed)
    texts = ["  ".join(rng.choice(WORDS[:-2], rng.integers(0, 9))) for _ in range(number)]
    return texts, rng.choice(["ham", "spam", "größe"], number).tolist()


def write_documents(folder, texts, labels, form, end="\n"):
    """Write a file of documents; return (its path, the path of the file of labels or None)."""
    if form == "fasttext":
        rows = [f"__label__{label} {text}" for label, text in zip(labels, texts, strict=True)]
    elif form == "tab":
        rows = [f"{label}\t{text}" for label, text in zip(labels, texts, strict=True)]
    else:
        rows = texts
    content = end.join(rows) + end * (form != "file" or bool(texts and not texts[-1]))
    file = {"labels.txt": "".join(f"{label}\n" for label in labels)} if form == "file" else {}
    write_files(folder, {"docs.txt": content} | file)
    return str(folder / "docs.txt"), str(folder / "labels.txt") if form == "file" else None


def stored_lines(folder, source, labels, **options):
    return convert([source], folder / "s", ConvertConfig(format="text-lines", labels=labels, shuffle=False, **options))


def words_in(store):
    classes = store.manifest.labels.classes
    codes = np.concatenate([block.labels for block in store.blocks()])
    return [classes[int(code)] for code in codes]


@pytest.mark.parametrize("form", ["tab", "fasttext", "file"])
@pytest.mark.parametrize(
    ("end", "options", "analyzer", "lengths"),
    [
        ("\n", {}, "word", (1, 1)),
        ("\r\n", {"characters": True, "ngrams": "1:3"}, "char", (1, 3)),
        ("\n", {"ngrams": "1:2", "block_size": 300}, "word", (1, 2)),
    ],
)
def test_rows_are_those_of_scikit_learn(tmp_path, form, end, options, analyzer, lengths):
    texts, labels = texts_with_labels(200)
    store = stored_lines(tmp_path, *write_documents(tmp_path, texts, labels, form, end), hash_bits=10, **options)
    hashed = HashingVectorizer(n_features=1024, norm=None, analyzer=analyzer, ngram_range=lengths)
    stripped = [text.lstrip(" ") if form == "fasttext" else text for text in texts]
    truth = hashed.transform(stripped)
    assert (store.to_scipy()[0] != truth).nnz == 0
    assert words_in(store) == labels


@pytest.mark.parametrize("form", ["tab", "file"])
def test_document_frequencies_and_dictionaries(tmp_path, form):
    texts, labels = texts_with_labels(300, seed=1)
    options = {"hash_bits": 10, "idf": True, "normalize": "l2", "block_size": 700}
    store = stored_lines(tmp_path, *write_documents(tmp_path, texts, labels, form), **options)
    truth = TfidfTransformer().fit_transform(HashingVectorizer(n_features=1024, norm=None).transform(texts))
    assert abs(store.to_scipy()[0] - truth).max() < 1e-6
    counted = CountVectorizer().fit(texts)
    source, file = write_documents(tmp_path, texts, labels, form)
    store = convert(
        [source], tmp_path / "d", ConvertConfig(format="text-lines", labels=file, dictionary=9, shuffle=False)
    )
    assert (store.to_scipy()[0] != counted.transform(texts)).nnz == 0


@pytest.mark.parametrize(("labels", "task"), [([1.5, 2.25, -3.0, 0.5], "regression"), ([2, 1, 2, 1], "binary")])
@pytest.mark.parametrize("form", ["tab", "file", "npy"])
def test_labels_that_are_numbers(tmp_path, labels, task, form):
    source, file = write_documents(tmp_path, ["a b", "red", "", "blue"], labels, "file" if form == "npy" else form)
    if form == "npy":
        file = str(tmp_path / "labels.npy")
        np.save(file, np.array(labels))
    store = stored_lines(tmp_path, source, file)
    assert store.manifest.labels.task == task
    found = np.concatenate([block.labels for block in store.blocks()])
    assert found.tolist() == (labels if task == "regression" else [2 * label - 3 for label in labels])


def test_bad_lines_are_skipped_with_their_labels(tmp_path):
    rows = [b"red\tx", b"no tab", b"", b"red\tx \xff", b"\tempty", b"__label__red __label__blue two", b"blue\tx"]
    (tmp_path / "docs.txt").write_bytes(b"\n".join(rows))
    for line, problem in ((2, "no label"), (4, "not UTF-8"), (5, "no label"), (6, "several labels")):
        (tmp_path / "one.txt").write_bytes(b"red\tx\n" * (line - 1) + rows[line - 1])
        with pytest.raises(InputError, match=rf"one\.txt:{line}: {problem}"):
            stored_lines(tmp_path, str(tmp_path / "one.txt"), None)
    store = stored_lines(tmp_path, str(tmp_path / "docs.txt"), None, on_bad_row="skip")
    assert np.concatenate([block.labels for block in store.blocks()]).tolist() == [1, -1]  # red, blue
    listed = [json.loads(line)["line"] for line in (store.path / "rejected.jsonl").read_text().splitlines()]
    assert listed == [2, 4, 5, 6]
    (tmp_path / "labels.txt").write_text("a\nb\nb\na\nb\na\nb\n")
    config = ConvertConfig(labels=str(tmp_path / "labels.txt"), on_bad_row="skip", shuffle=False)
    store = convert([str(tmp_path / "docs.txt")], tmp_path / "f", config)  # of text beside labels lines are documents
    assert np.concatenate([block.labels for block in store.blocks()]).tolist() == [-1, 1, 1, 1, -1, 1]


@pytest.mark.parametrize("kind", ["txt", "npy"])
@pytest.mark.parametrize(("number", "problem"), [(2, "labels end after 2"), (4, "label too many|labels are 4")])
def test_wrong_number_of_labels(tmp_path, number, problem, kind):
    source, file = write_documents(tmp_path, ["a", "b", "c"], [1, 2, 1, 2][:number], "file")
    if kind == "npy":
        np.save(file := str(tmp_path / "labels.npy"), np.array([1, 2, 1, 2][:number]))
    with pytest.raises(InputError, match=problem):
        stored_lines(tmp_path, source, file)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_an_interrupted_conversion_takes_the_labels_of_the_lines_that_are_left(tmp_path, monkeypatch, compressed):
    sources, number = [], 0
    for name in ("one", "two"):
        texts, _labels = texts_with_labels(60, seed=len(sources))
        content = "".join(f"{text} n{number + at}\n" for at, text in enumerate(texts)).encode()
        sources.append(str(tmp_path / name))
        (tmp_path / name).write_bytes(gzip.compress(content) if compressed else content)
        number += 60
    (tmp_path / "labels.txt").write_text("".join(f"{at}\n" for at in range(number)))
    config = ConvertConfig(
        format="text-lines", labels=str(tmp_path / "labels.txt"), task="regression", block_size=300, shuffle=False
    )
    whole = convert(sources, tmp_path / "whole", config)
    assert np.concatenate([block.labels for block in whole.blocks()]).tolist() == list(range(number))
    take = Ingest.take
    for stop in (3, 9):  # in the first input and in the second
        taken = []

        def some(ingest, prepared, taken=taken, stop=stop):
            if len(taken) == stop:
                raise KeyboardInterrupt
            taken.append(prepared)
            take(ingest, prepared)

        target = tmp_path / f"store{stop}"
        with monkeypatch.context() as patched:
            patched.setattr(Ingest, "take", some)
            with pytest.raises(KeyboardInterrupt):
                convert(sources, target, config)
        store = convert(sources, target, config, existing=Existing(resume=True))
        assert folder_bytes(store.path) == folder_bytes(whole.path)


@pytest.mark.parametrize("form", ["tab", "fasttext", "file"])
def test_models_score_lines_with_and_without_labels(tmp_path, form):
    rng = np.random.default_rng(2)
    labels = rng.choice(["ham", "spam"], 80).tolist()
    texts = [f"{'money' if label == 'spam' else 'dinner'} {rng.choice(WORDS[:4])}" for label in labels]
    source, file = write_documents(tmp_path, texts, labels, form)
    model = train(stored_lines(tmp_path, source, file), TrainConfig(lam=1e-3)).model
    model.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    hashed = HashingVectorizer(n_features=model.info.features, norm=None).transform(texts)
    truth = model.decision_function(sp.csr_matrix(hashed))
    error = float(((truth > 0) != (np.array(labels) == "spam")).mean())
    for other in ("tab", "fasttext", "file"):
        data, its_labels = write_documents(tmp_path / other, texts, labels, other)
        if other == form or other == "file" or form != "file":
            assert evaluate(model, data, labels=its_labels)["error"] == error
        if other == "file" or form != "file":  # a tab is a part of the text if labels were in a file
            predict(model, data, tmp_path / "out.csv")
            table = pyarrow.csv.read_csv(tmp_path / "out.csv")
            np.testing.assert_allclose(table.column("score").to_numpy(), truth, rtol=1e-6, atol=1e-7)
    plain, _labels = write_documents(tmp_path / "plain", texts, labels, "file")
    with pytest.raises(InputError, match=r"docs\.txt(:1)?: no label.*name the file of labels with labels"):
        evaluate(model, plain)


def test_formats_are_found_and_refused(tmp_path, oocpeg):
    texts, labels = texts_with_labels(40)
    source, _file = write_documents(tmp_path, [f"w {text}" for text in texts], labels, "fasttext")
    assert convert([source], tmp_path / "found").manifest.recipe.reader == "text-lines"
    source, _file = write_documents(tmp_path, ["one two", "three"], ["a", "b"], "tab")
    with pytest.raises(InputError, match=r"docs\.txt:1: the label 'a' is not a number.*give format=text-lines"):
        convert([source], tmp_path / "s")
    with pytest.raises(UsageError, match="hash_bits=0"):
        stored_lines(tmp_path, source, None, hash_bits=0)
    with pytest.raises(UsageError, match=r"categorical is for tables, and .* is read as text-lines"):
        stored_lines(tmp_path, source, None, categorical=("a",))
    piped = oocpeg("convert", "-", "--format", "text-lines", "--idf", "-o", "p.store", input="a\tone two\nb\tthree\n")
    assert "2 rows" in piped.stdout
    shown = oocpeg("train", "docs.txt", "--format", "text-lines", "--lambda", "0.1", "-o", "m", "--json").stdout
    assert json.loads(shown)["certified"]
    assert "three" in oocpeg("inspect", "m").stdout
