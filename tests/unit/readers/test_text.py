"""Text as rows against scikit-learn's HashingVectorizer, and folders of text."""

import os
import sys

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer

from ooc_pegasos.compiled.parse import text as kernels
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import folders
from ooc_pegasos.readers.feature_index import HashedIndex
from ooc_pegasos.readers.folders import TextFoldersReader
from ooc_pegasos.readers.tokens import TextHasher, _tables
from ooc_pegasos.store.labels import key_of
from ooc_pegasos.store.recipe import Hashing, Tokens
from ooc_pegasos.util.checksums import xxh64_hex
from support.file_bytes import write_files

WORDS = Tokens()
NO_DICTIONARY = HashedIndex(Hashing()).dictionary
N_GRAMS = [(False, 1, 1), (False, 1, 2), (False, 2, 3), (True, 1, 1), (True, 2, 4)]


def vectorized(documents, tokens, hashing):
    vectorizer = HashingVectorizer(
        n_features=2**hashing.bits,
        alternate_sign=hashing.signed,
        norm=None,
        lowercase=tokens.lowercase,
        ngram_range=(tokens.least, tokens.most),
        analyzer="char" if tokens.characters else "word",
    )
    matrix = vectorizer.transform(documents)
    matrix.eliminate_zeros()
    return matrix


def check_hashing(documents, tokens, hashing, strings=None):
    lengths, indices, values = TextHasher(tokens, hashing).part(pa.array(documents) if strings is None else strings)
    assert (lengths.dtype, indices.dtype, values.dtype) == (np.uint32, np.uint32, np.float32)
    expected = vectorized(documents, tokens, hashing)
    assert np.array_equal(lengths, np.diff(expected.indptr))
    assert np.array_equal(indices, expected.indices)
    assert np.array_equal(values, expected.data)


odd = st.sampled_from(
    [
        *"aAbB_0 \t\n\r\x0b\x1c\x85\xa0\u2003\u3000.,'-\0",
        "e\u0301",
        "\u0301",
        "\u200d",
        "İ",
        "ı",
        "ß",
        "ẞ",
        "Σ",
        "ς",
        "K",
        "ΑΣ",
        "中",
        "文字",
        "😀",
        "👩\u200d👩",
        "Ⱥ",
        "ǅ",
        "Å",
        "٣",
        "\U00010400",
        "\U0001d7d8",
        "\ufeff",
        "\uffff",
        "ﬁ",
        "न",
        "ि",
    ]
)
documents_strategy = st.lists(
    st.one_of(st.lists(odd, max_size=30).map("".join), st.text(max_size=30)), min_size=1, max_size=4
)


@pytest.mark.parametrize(("characters", "least", "most"), N_GRAMS)
@given(documents=documents_strategy, lowercase=st.booleans(), signed=st.booleans(), bits=st.sampled_from([2, 18, 30]))
@example(documents=["ΟΔΥΣΣΕΥΣ ΣΣ", "İİ ii Kelvin ßß", "", "  ", "a", "a  \t b"], lowercase=True, signed=True, bits=18)
@settings(max_examples=60)
def test_like_hashing_vectorizer(characters, least, most, documents, lowercase, signed, bits):
    check_hashing(documents, Tokens(lowercase, characters, least, most), Hashing(bits, signed))


@pytest.mark.parametrize(("characters", "least", "most"), N_GRAMS)
def test_long_documents(characters, least, most):
    rng = np.random.default_rng(1)
    words = np.array(["Ab", "cD", "é", "ΣΑΣ", "Ünder", "中文", "x_1", "..", "\t", "foo", "bar\n", "baz", ""])
    documents = [" ".join(rng.choice(words, size)) for size in (3000, 0, 20, 31, 32, 33, 700)]
    check_hashing(documents, Tokens(True, characters, least, most), Hashing(12))


@pytest.mark.slow
def test_every_code_point():
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    documents = [
        "".join(f"{character}{character} " for character in every[at : at + 512]) for at in range(0, len(every), 512)
    ]
    for tokens in (Tokens(), Tokens(lowercase=False), Tokens(characters=True)):
        check_hashing(documents, tokens, Hashing(20))


def test_only_odd_cases_need_python():
    classes, _ = _tables()
    found = {chr(code) for code in np.flatnonzero(classes & kernels.CONTEXT)}
    assert {"İ", "Σ"} <= found
    assert len(found) < 10


def test_arrow_layouts():
    documents = ["first document", "", "second Σ document", "the third"]
    with_null = [documents[0], None, *documents[2:]]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        check_hashing(documents, WORDS, Hashing(), pa.array(with_null, kind))
        check_hashing(documents, WORDS, Hashing(), pa.array(["before", *with_null, "after"], kind).slice(1, 4))
        check_hashing(documents, WORDS, Hashing(), pa.chunked_array([pa.array(with_null, kind)]).chunk(0))
    # a null may hide text
    hidden = pa.Array.from_buffers(
        pa.string(),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 5, 10], np.int32)), pa.py_buffer(b"alphagamma")],
    )
    check_hashing(["", "gamma"], WORDS, Hashing(), hidden)
    for empty in (pa.array([], pa.string()), pa.array(["x"]).slice(1), pa.array(["xx"]).slice(0, 0)):
        lengths, indices, values = TextHasher(WORDS, Hashing()).part(empty)
        assert len(lengths) == len(indices) == len(values) == 0


@pytest.mark.slow
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_invalid_utf8_stays_within_bounds(contents, characters, lowercase):
    offsets = np.concatenate([[0], np.cumsum([len(content) for content in contents])])
    data = np.frombuffer(b"".join(contents), np.uint8)
    classes, lower = _tables()
    ready = np.zeros(len(contents), np.bool_)
    kernels.find_context(data, offsets, classes, ready)
    lengths, indices, values = kernels.hash_documents(
        data, offsets, ready, classes, lower, lowercase, characters, 1, 2, 20, True, NO_DICTIONARY
    )
    assert len(indices) == len(values) == lengths.sum()
    assert (lengths <= 2 * np.diff(offsets)).all()
    assert (indices < 2**20).all()
    text, ends, rows = kernels.cut_documents(data, offsets, ready, classes, lower, lowercase, characters, 1, 2)
    assert len(ends) == len(rows) + 1
    assert ends[-1] == len(text)
    assert (np.bincount(rows, minlength=len(contents)) >= lengths).all()


def test_offsets_that_are_wrong_stay_within_bounds():
    data = np.frombuffer(b"one two", np.uint8)
    classes, lower = _tables()
    offsets = np.array([-9, 4, 2**40, 1], np.int64)
    ready = np.zeros(3, np.bool_)
    assert kernels.find_context(data, offsets, classes, ready) == 0
    lengths, _, _ = kernels.hash_documents(
        data, offsets, ready, classes, lower, True, False, 1, 1, 20, True, NO_DICTIONARY
    )
    assert lengths.tolist() == [1, 1, 0]


def test_documents_are_counted():
    documents = ["one two two", "two three", "", "one"]
    hashing = Hashing(8)
    counts = np.zeros(256, np.int64)
    hasher = TextHasher(WORDS, hashing)
    hasher.count_documents(pa.array(documents), counts)
    hasher.count_documents(pa.array(documents[:1]), counts)
    expected = vectorized([*documents, documents[0]], WORDS, hashing)
    assert np.array_equal(counts, np.bincount(expected.indices, minlength=256))
    for wrong in (np.zeros(255, np.int64), np.zeros(256)):
        with pytest.raises(ValueError, match="256"):
            hasher.count_documents(pa.array(documents), wrong)


@pytest.mark.parametrize(
    ("tokens", "hashing"),
    [(Tokens(least=0), Hashing()), (Tokens(least=3, most=2), Hashing()), (WORDS, Hashing(0)), (WORDS, Hashing(32))],
)
def test_what_cannot_be_is_refused(tokens, hashing):
    with pytest.raises(UsageError):
        TextHasher(tokens, hashing)


DOCUMENTS = {
    "bad/1.txt": "Dull and slow",
    "bad/2.txt": "slow",
    "good/10.txt": "",
    "good/2.txt": "Sharp and ΣΑΣ",
    "good/more/deep/x": "nested words",
    "good/z": "last words of all",
}
HASHER = TextHasher(Tokens(most=2), Hashing(18))


def reader_of(root, **options):
    return TextFoldersReader(str(root), HASHER, **{"text_labels": True, **options})


def rows_read_by(reader, start=0, state=None):
    """(matrix, keys, names) of what a reader reads."""
    matrices, keys, names = [], [], {}
    for task in reader.tasks(0, start, state):
        parsed = reader.read(task)
        block = parsed.block
        assert not parsed.bad
        assert parsed.line_count == block.rows == parsed.bad_lines + len(parsed.lines)
        assert parsed.lines.tolist() == parsed.numbers.tolist() == list(range(block.rows))
        matrix = sp.csr_matrix((block.values, block.indices, block.indptr), (block.rows, block.features))
        matrices.append(matrix.copy())
        keys += block.labels.view(np.uint64).tolist()
        names |= parsed.names
        reader.release(parsed)
    return sp.vstack(matrices, "csr"), keys, names


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_folders_round_trip(tmp_path, most):
    root = write_files(tmp_path, {**DOCUMENTS, ".hidden/x": "no", "good/.x": b"\xff", "good/.git/y": "no", ".z": "no"})
    reader = reader_of(root, block_documents=most)
    matrix, keys, names = rows_read_by(reader)
    expected = vectorized(DOCUMENTS.values(), HASHER.tokens, HASHER.hashing)
    assert (matrix != expected).nnz == 0
    assert matrix.shape == expected.shape
    assert keys == [key_of(name.split("/")[0], True) for name in DOCUMENTS]
    assert names == {key_of(name, True): name for name in ("bad", "good")}
    info = reader.sources[0].info(6)
    sizes = [len(content.encode()) for content in DOCUMENTS.values()]
    lines = [
        f"{name} {size} {xxh64_hex(content.encode())}\n"
        for (name, content), size in zip(DOCUMENTS.items(), sizes, strict=True)
    ]
    assert (info.name, info.size, info.rows) == (root, sum(sizes), 6)
    assert info.xxh64 == xxh64_hex("".join(lines).encode())


def test_folders_are_cut_by_size(tmp_path, monkeypatch):
    root = write_files(tmp_path, {f"a/{number}": "x" * size for number, size in enumerate([3, 3, 4, 30, 5, 5, 1])})
    monkeypatch.setattr(folders, "BLOCK_BYTES", 10)
    tasks = list(reader_of(root).tasks())
    assert [task.end for task in tasks] == [3, 4, 6, 7]
    assert [task.consumed for task in tasks] == [10, 30, 10, 1]


def test_folders_are_resumed(tmp_path):
    root = write_files(tmp_path, DOCUMENTS)
    whole = reader_of(root, block_documents=2)
    matrix, keys, _ = rows_read_by(whole)
    for task in list(whole.tasks())[:-1]:
        again = reader_of(root, block_documents=2)
        rest, rest_keys, _ = rows_read_by(again, task.end, task.hash_state)
        assert (rest != matrix[task.end :]).nnz == 0
        assert rest_keys == keys[task.end :]
        assert again.sources[0].info(6) == whole.sources[0].info(6)
    assert list(reader_of(root).tasks(1)) == []
    first = next(whole.tasks())
    (tmp_path / "bad" / "0.txt").write_text("new")
    with pytest.raises(InputError, match="start over without resume"):
        next(reader_of(root).tasks(0, first.end, first.hash_state))


def test_folders_with_numbers_for_names(tmp_path):
    root = write_files(tmp_path, {"1/a": "x", "-1/b": "y", "-1/c": "z"})
    reader = reader_of(root, text_labels=False)
    parsed = reader.read(next(reader.tasks()))
    assert parsed.block.labels.tolist() == [-1, -1, 1]
    assert parsed.names == {}
    write_files(tmp_path, {"one/a": "x"})
    with pytest.raises(InputError, match="one: the name of the class is not a number"):
        reader_of(root, text_labels=False)


def test_folders_with_bad_documents(tmp_path):
    root = write_files(tmp_path, {**DOCUMENTS, "bad/15.txt": b"caf\xe9", "good/5.txt": b"\xff"})
    reader = reader_of(root)
    parsed = reader.read(next(reader.tasks()))
    assert [row.line for row in parsed.bad] == [1]
    assert parsed.bad[0].problem == f"{root}/bad/15.txt is not UTF-8 text from byte 4 on; convert it"
    assert (parsed.line_count, parsed.bad_lines, parsed.block.rows) == (2, 1, 1)
    reader = reader_of(root, stop_at_bad=False)
    parsed = reader.read(next(reader.tasks()))
    assert [row.line for row in parsed.bad] == [1, 5]
    assert (parsed.line_count, parsed.bad_lines, parsed.block.rows) == (8, 2, 6)
    assert parsed.lines.tolist() == parsed.numbers.tolist() == [0, 2, 3, 4, 6, 7]
    expected = vectorized(DOCUMENTS.values(), HASHER.tokens, HASHER.hashing)
    assert np.array_equal(parsed.block.indices, expected.indices)
    assert parsed.block.labels.view(np.uint64).tolist() == [key_of(name.split("/")[0], True) for name in DOCUMENTS]


def test_folders_where_nothing_is_text(tmp_path):
    reader = reader_of(write_files(tmp_path, {"a/1": b"\xff", "a/2": b"\xfe"}), stop_at_bad=False)
    parsed = reader.read(next(reader.tasks()))
    assert (parsed.line_count, parsed.bad_lines, parsed.block.rows) == (2, 2, 0)
    assert parsed.block.indptr.tolist() == [0]


def test_folders_that_are_refused(tmp_path):
    cases = {
        "no such folder": lambda root: None,
        "no folders in it; make one for each class": lambda root: root.mkdir(),
        "x: a file next to the folders": lambda root: write_files(root, {"a/1": "x", "x": "y"}),
        "no documents in its folders": lambda root: (root / "a").mkdir(parents=True),
        "a/back: reached twice": lambda root: (
            write_files(root, {"a/1": "x"}),
            os.symlink(root / "a", root / "a/back"),
        ),
        "a/pipe: neither a file": lambda root: (write_files(root, {"a/1": "x"}), os.mkfifo(root / "a/pipe")),
        "not UTF-8 text; rename": lambda root: os.makedirs(os.fsencode(root) + b"/caf\xe9"),
        "gone: No such file": lambda root: (write_files(root, {"a/1": "x"}), os.symlink("nowhere", root / "a/gone")),
    }
    for number, (message, prepare) in enumerate(cases.items()):
        root = tmp_path / str(number)
        prepare(root)
        with pytest.raises(InputError, match=message):
            reader_of(root)


def test_a_document_that_changes_is_noticed(tmp_path):
    root = write_files(tmp_path, DOCUMENTS)
    reader = reader_of(root)
    write_files(tmp_path, {"good/z": "last words of alL and more"})
    with pytest.raises(InputError, match="good/z: changed during the conversion"):
        list(reader.tasks())
    reader = reader_of(root)
    (tmp_path / "good" / "z").unlink()
    with pytest.raises(InputError, match="good/z: No such file or directory while reading"):
        list(reader.tasks())
