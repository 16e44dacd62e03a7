"""Dictionaries of names and tf-idf: against scikit-learn, and counted by hand."""

import collections
import json
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.compiled.parse import dictionary as kernels
from ooc_pegasos.conversion import pipeline
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.readers import survey
from ooc_pegasos.readers.arrow_strings import buffers_of
from ooc_pegasos.readers.feature_index import NOT_FOUND, DictionaryIndex
from ooc_pegasos.scoring.evaluate import predict
from ooc_pegasos.scoring.model import Model
from ooc_pegasos.scoring.score import score
from ooc_pegasos.store.verify import verify
from ooc_pegasos.store.vocabulary import of_store
from support.file_bytes import folder_bytes

WORDS = np.array(["rain", "sun", "Snow", "fine", "day", "Été", "über", "ox", "rare", "rarest", "日本"])


def texts_of(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, len(WORDS) + 1) ** 2
    return [" ".join(rng.choice(WORDS, rng.integers(0, 9), p=shares / shares.sum())) for _ in range(rows)]


def texts_file(folder, rows=300, seed=0, name="in.parquet"):
    rng = np.random.default_rng(seed)
    table = pa.table({"y": rng.integers(0, 2, rows), "words": texts_of(rows, seed)})
    pq.write_table(table, folder / name, row_group_size=70)
    return str(folder / name), table.column("words").to_pylist()


def table_of_cities(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "y": rng.integers(0, 2, rows),
            "price": rng.normal(size=rows).round(3) + 10,
            "city": pa.array(rng.choice(["Rome", "Oslo", "Lima", ""], rows), mask=rng.random(rows) < 0.2),
            "zone": rng.integers(0, 40, rows),
        }
    )


def config_of_vocabulary(**more):
    return ConvertConfig(**({"shuffle": False, "values": "float32"} | more))


def folders_of(root, documents):
    for number, text in enumerate(documents):
        folder = root / "texts" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}").write_text(text)
    return str(root / "texts"), [*documents[::2], *documents[1::2]]  # in order of the folders


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("kind", ["table", "folders"])
def test_tf_idf_of_hashed_words_is_that_of_scikit_learn(tmp_path, signed, kind):
    if kind == "table":
        source, documents = texts_file(tmp_path)
        columns = {"text": ("words",)}
    else:
        source, documents = folders_of(tmp_path, texts_of())
        columns = {}
    made = config_of_vocabulary(hash_bits=12, hash_signed=signed, idf=True, ngrams="1:2", block_size=3000, **columns)
    store = convert([source], tmp_path / "store", made)
    hashed = HashingVectorizer(n_features=2**12, alternate_sign=signed, norm=None, ngram_range=(1, 2))
    counts = hashed.transform(documents)
    counts.eliminate_zeros()  # of words at one place whose signs cancel out: no text has what they stand for
    expected = TfidfTransformer(norm=None).fit_transform(counts)
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), expected.toarray(), rtol=1e-6)
    assert store.manifest.recipe.tokens_of_texts.texts == len(documents)
    assert not verify(store).problems


@pytest.mark.parametrize(("ngrams", "characters"), [("1", False), ("1:3", False), ("2:3", True)])
def test_a_dictionary_of_words_is_that_of_scikit_learn(tmp_path, ngrams, characters):
    source, documents = texts_file(tmp_path)
    made = config_of_vocabulary(text=("words",), dictionary=10_000, ngrams=ngrams, characters=characters)
    store = convert([source], tmp_path / "store", made)
    least, _, most = ngrams.partition(":")
    counted = CountVectorizer(ngram_range=(int(least), int(most or least)), analyzer="char" if characters else "word")
    expected = counted.fit_transform(documents)
    assert store.features == expected.shape[1]
    np.testing.assert_array_equal(store.to_scipy()[0].toarray(), expected.toarray())
    names = of_store(store.path, store.manifest).known_names()
    assert [names[place] for place in range(store.features)] == counted.get_feature_names_out().tolist()


@pytest.mark.parametrize("kind", ["table", "folders"])
def test_tf_idf_of_a_dictionary_with_rows_of_length_1(tmp_path, kind):
    source, documents = texts_file(tmp_path) if kind == "table" else folders_of(tmp_path, texts_of())
    columns = {"text": ("words",)} if kind == "table" else {}
    made = config_of_vocabulary(dictionary=10_000, idf=True, normalize="l2", **columns)
    store = convert([source], tmp_path / "store", made)
    expected = TfidfVectorizer().fit_transform(documents)
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), expected.toarray(), rtol=2e-6)


@pytest.mark.parametrize("dictionaries", [True, False])
def test_a_dictionary_of_columns_is_that_of_scikit_learn(tmp_path, dictionaries):
    table = table_of_cities()
    given = table
    if dictionaries:
        given = table.set_column(2, "city", table.column("city").dictionary_encode())
    pq.write_table(given, tmp_path / "in.parquet", row_group_size=70)
    columns = {"numeric": ("price",), "categorical": ("city", "zone"), "standardize": False}
    made = config_of_vocabulary(dictionary=1000, **columns)
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", made)
    rows = [
        {name: str(value) if name == "zone" else value for name, value in row.items() if value is not None}
        for row in table.drop_columns("y").to_pylist()
    ]
    vectorizer = DictVectorizer()
    expected = vectorizer.fit_transform(rows)
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), expected.toarray(), rtol=1e-6)
    names = of_store(store.path, store.manifest).known_names()
    assert list(names.values()) == vectorizer.get_feature_names_out().tolist()


def test_the_names_in_most_rows_are_kept(tmp_path):
    source, documents = texts_file(tmp_path)
    rows = collections.Counter(word for text in documents for word in set(re.findall(r"\w\w+", text.lower())))
    by_rows = sorted(rows, key=lambda word: (-rows[word], word.encode()))
    for most in (1, 3, len(rows) - 1, len(rows)):
        notes = []
        made = config_of_vocabulary(text=("words",), dictionary=most)
        shown = preview([source], made)
        store = convert([source], tmp_path / f"store{most}", made)
        names = of_store(store.path, store.manifest).known_names()
        assert list(names.values()) == sorted(by_rows[:most])
        kept = CountVectorizer(vocabulary=sorted(by_rows[:most])).transform(documents)
        np.testing.assert_array_equal(store.to_scipy()[0].toarray(), kept.toarray())
        notes = [remark for remark in shown.remarks if "are left out" in remark]
        assert bool(notes) == (most < len(rows))


def test_columns_come_before_words(tmp_path):
    pq.write_table(table_of_cities(), tmp_path / "in.parquet")
    made = {"numeric": ("price",), "categorical": ("city",), "nulls": "mark"}
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_of_vocabulary(dictionary=4, **made))
    names = of_store(store.path, store.manifest).known_names()
    assert {"price", "price=null", "city=null"} < set(names.values())
    assert len(names) == 4
    with pytest.raises(UsageError, match="the columns alone need 3 names; raise it"):
        convert([str(tmp_path / "in.parquet")], tmp_path / "other", config_of_vocabulary(dictionary=2, **made))


def scores_by(model, source):
    return np.concatenate([part.scores for part in score(model, source, 2, False)])


def test_new_files_are_scored_with_the_same_vocabulary(tmp_path):
    source, documents = texts_file(tmp_path)
    made = config_of_vocabulary(text=("words",), dictionary=6, idf=True, normalize="l2")
    store = convert([source], tmp_path / "store", made)
    train(store, TrainConfig(lam=1e-2)).model.save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    new, others = texts_file(tmp_path, 50, 1, "new.parquet")
    vocabulary = list(of_store(store.path, store.manifest).known_names().values())
    expected = TfidfVectorizer(vocabulary=vocabulary).fit(documents).transform(others) @ model.weights
    np.testing.assert_allclose(scores_by(model, new), expected, rtol=1e-5, atol=1e-7)
    assert predict(model, new, tmp_path / "out.csv") == 50
    # what the model says of its own data does not depend on whether it is read from the store
    np.testing.assert_allclose(scores_by(model, str(store.path)), scores_by(model, source), rtol=1e-6, atol=1e-9)


def test_a_store_with_a_vocabulary_of_its_own_is_refused(tmp_path):
    source, _documents = texts_file(tmp_path)
    rng = np.random.default_rng(0)
    others = pa.table({"y": [0, 1] * 150, "words": [" ".join(rng.permutation(WORDS[3:])[:4]) for _ in range(300)]})
    new = str(tmp_path / "new.parquet")
    pq.write_table(others, new)
    for made in (
        config_of_vocabulary(text=("words",), dictionary=6),
        config_of_vocabulary(text=("words",), idf=True, hash_bits=8),
    ):
        existing = Existing(force=True)
        store = convert([source], tmp_path / "store", made, existing=existing)
        other = convert([new], tmp_path / "other", made, existing=existing)
        model = train(store, TrainConfig(lam=1e-2, max_epochs=3)).model
        with pytest.raises(InputError, match=r"vocabulary of its own.*give the files"):
            scores_by(model, str(other.path))


def test_appended_rows_have_the_same_indices(tmp_path):
    first, documents = texts_file(tmp_path)
    second, others = texts_file(tmp_path, 40, 1, "new.parquet")
    made = config_of_vocabulary(text=("words",), dictionary=5, idf=True)
    store = convert([first], tmp_path / "store", made)
    names = of_store(store.path, store.manifest)
    store = convert([second], tmp_path / "store", config_of_vocabulary(), existing=Existing(append=True))
    assert of_store(store.path, store.manifest).serves_as(names, store.manifest.recipe)
    vectorizer = TfidfVectorizer(vocabulary=list(names.known_names().values()), norm=None).fit(documents)
    expected = vectorizer.transform(documents + others)
    np.testing.assert_allclose(store.to_scipy()[0].toarray(), expected.toarray(), rtol=1e-6)


def test_a_resumed_conversion_keeps_the_vocabulary(tmp_path, monkeypatch):
    source, _documents = texts_file(tmp_path)
    made = config_of_vocabulary(text=("words",), dictionary=6, idf=True, shuffle=True)
    whole = convert([source], tmp_path / "whole", made)

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "plan_assembly", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert([source], tmp_path / "store", made)
    with monkeypatch.context() as patched:  # nothing is looked for again
        patched.setattr(survey, "with_findings", interrupted)
        convert([source], tmp_path / "store", made, existing=Existing(resume=True))
    assert folder_bytes(tmp_path / "store") == folder_bytes(whole.path)
    assert not list(tmp_path.glob("*.unfinished"))


def test_resume_of_a_finished_store(tmp_path):
    source, _documents = texts_file(tmp_path)
    made = {"text": ("words",), "dictionary": 6, "idf": True}
    store = convert([source], tmp_path / "store", config_of_vocabulary(**made))
    again = Existing(resume=True)
    assert convert([source], store.path, config_of_vocabulary(**made), existing=again).manifest == store.manifest
    for other in ({"idf": False}, {"dictionary": 5}, {"dictionary": None}, {"ngrams": "1:2"}, {"text": ("*",)}):
        if other == {"text": ("*",)}:  # the same columns
            assert (
                convert([source], store.path, config_of_vocabulary(**made | other), existing=again).rows == store.rows
            )
            continue
        with pytest.raises(InputError, match="with other options"):
            convert([source], store.path, config_of_vocabulary(**made | other), existing=again)


def test_names_of_hashed_words(tmp_path):
    source, documents = texts_file(tmp_path)
    store = convert(
        [source], tmp_path / "store", config_of_vocabulary(text=("words",), hash_bits=18, feature_names=1000)
    )
    names = of_store(store.path, store.manifest).known_names()
    counted = CountVectorizer().fit(documents)
    assert sorted(names.values()) == counted.get_feature_names_out().tolist()
    hashed = HashingVectorizer(n_features=2**18, norm=None)
    for place, name in names.items():
        assert hashed.transform([name]).indices.tolist() == [place]
    few = convert(
        [source],
        tmp_path / "few",
        config_of_vocabulary(text=("words",), hash_bits=18, feature_names=4, block_size=2000),
    )
    met = list(dict.fromkeys(word for text in documents for word in re.findall(r"\w\w+", text.lower())))
    assert set(of_store(few.path, few.manifest).known_names().values()) == set(met[:4])


def test_incompatible_options(tmp_path):
    source, _documents = texts_file(tmp_path)
    pq.write_table(table_of_cities(), tmp_path / "events.parquet")
    numbers = str(tmp_path / "events.parquet")
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    for where, wrong, message in (
        (source, {"text": ("words",), "dictionary": 3, "hash_bits": 4}, "give one"),
        (source, {"text": ("words",), "dictionary": 0}, "out of range"),
        (source, {"categorical": ("words",), "idf": True}, "no column is text"),
        (numbers, {"numeric": ("price",), "dictionary": 5}, "feature indices already"),
        (str(tmp_path / "a.svm"), {"dictionary": 5}, "dictionary is for tables"),
        (str(tmp_path / "a.svm"), {"idf": True}, "idf is for tables"),
    ):
        with pytest.raises(UsageError, match=message):
            convert([where], tmp_path / "store", config_of_vocabulary(**wrong))
        assert not list(tmp_path.glob("store*"))


def test_more_names_than_fit_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    words = [" ".join(map(str, rng.integers(10**9, 10**10, 2000))) for _ in range(400)]
    pq.write_table(pa.table({"y": [0, 1] * 200, "words": words}), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=r"different names so far.*raise it, or leave dictionary out"):
        convert(
            [str(tmp_path / "in.parquet")],
            tmp_path / "s",
            config_of_vocabulary(text=("words",), dictionary=9, memory=32 << 20),
        )


def test_a_damaged_vocabulary_is_noticed(tmp_path):
    source, _documents = texts_file(tmp_path)
    store = convert([source], tmp_path / "store", config_of_vocabulary(text=("words",), dictionary=6))
    train(store, TrainConfig(lam=1e-2, max_epochs=2)).model.save(tmp_path / "model")
    file = store.path / store.manifest.vocabulary.file
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert any("checksum does not match" in problem for problem in verify(store).problems)
    with pytest.raises(CorruptFileError, match="checksum does not match"):
        convert([source], store.path, config_of_vocabulary(), existing=Existing(append=True))
    manifest = json.loads((store.path / "manifest.json").read_text())
    assert os.path.basename(file) == manifest["vocabulary"]["file"]


@given(st.lists(st.text(max_size=6), max_size=40, unique=True), st.lists(st.text(max_size=6), max_size=40))
def test_strings_are_found(names, others):
    places = DictionaryIndex(pa.array(names, pa.large_string()))
    found, signs = places.of(pa.array(others, pa.string()))
    known = {name: number for number, name in enumerate(names)}
    assert found.tolist() == [known.get(other, NOT_FOUND) for other in others]
    assert (signs == 1).all()


@given(st.lists(st.lists(st.sampled_from(["a", "b", "", "aa", "ab", "é"]), max_size=5), max_size=20))
def test_names_are_counted_once_a_row(rows):
    counts = survey.NameCounts(1 << 30)
    for batch in (rows[:7], rows[7:]):
        words = [word for row in batch for word in row]
        data, offsets = buffers_of(pa.array(words, pa.string()))
        counts.add([(data, offsets, np.array([at for at, row in enumerate(batch) for _word in row], np.int64))])
    expected = collections.Counter(word for row in rows for word in set(row))
    order = sorted(expected, key=lambda word: (-expected[word], word.encode()))
    assert counts.most_frequent(3, []) == (order[:3], max(len(order) - 3, 0))
    others = [word for word in order if word != "a"]
    assert counts.most_frequent(99, ["a", "unmet"]) == (others, 0)


def test_many_names():
    """More than the first tables hold."""
    words = [f"name{number}" for number in range(50_000)]
    data, offsets = buffers_of(pa.array(words, pa.string()))
    counts = survey.NameCounts(1 << 30)
    counts.add([(data, offsets, np.arange(50_000))])
    counts.add([(data, offsets, np.arange(50_000))])
    chosen, left_out = counts.most_frequent(60_000, [])
    assert chosen == sorted(words)
    assert left_out == 0
    assert kernels.slots_for(50_000) >= 100_000


def test_a_store_opens_without_its_vocabulary_being_read(tmp_path):
    source, _documents = texts_file(tmp_path)
    store = convert([source], tmp_path / "store", config_of_vocabulary(text=("words",), dictionary=6))
    (store.path / store.manifest.vocabulary.file).unlink()
    assert Store.open(store.path).rows == 300
    with pytest.raises(CorruptFileError, match="No such file"):
        of_store(store.path, store.manifest)
