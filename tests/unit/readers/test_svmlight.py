"""The svmlight reader, against scikit-learn's and against a parser of ten lines."""

import bz2
import gzip
import io
import json
import lzma
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from ooc_pegasos import ConvertConfig, Existing, OocPegasosError, Store, convert
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.svmlight import Settings, SvmlightReader
from support.rows import random_rows, same_matrix, svmlight_text

IN_ORDER = ConvertConfig(shuffle=False)


def store_of_text(folder: Path, text: str | bytes, **options: object) -> Store:
    source = folder / "in.svm"
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    config = ConvertConfig(**{"shuffle": False, **options})
    return convert([str(source)], folder / "out.store", config, existing=Existing(force=True))


def test_like_scikit_learn(tmp_path):
    matrix, labels = random_rows(500, 3000, seed=1)
    text = svmlight_text(matrix, labels)
    expected, expected_labels = load_svmlight_file(io.BytesIO(text.encode()), dtype=np.float32, zero_based=False)
    found, found_labels = store_of_text(tmp_path, text).to_scipy()
    assert same_matrix(found, expected)
    assert np.array_equal(found_labels, expected_labels)


ODD_BUT_LEGAL = (
    b"\xef\xbb\xbf# a comment, after the mark that some editors put first\r\n"
    b"\n"
    b"+1 qid:7 1:1 2:.5 3:5. 4:-0 5:+2 6:1e-3 7:1E+3 # names: 8:9\r\n"
    b"   -1.0\t2:0.1234567890123456789012345\t 9:123456789.125   \n"
    b"1\n"
    b"-1 00000003:1#glued\n"
    b"1 1:0.30000001192092896 2:3.4028235e38 3:1e-46 4:-1.1754944e-38 5:12345678 6:1234567.8 7:0.00000001"
)


def test_odd_but_legal_lines(tmp_path):
    store = store_of_text(tmp_path, ODD_BUT_LEGAL)
    expected, labels = load_svmlight_file(
        io.BytesIO(ODD_BUT_LEGAL[3:].replace(b"\r", b"").replace(b"#glued", b" ")), dtype=np.float32, zero_based=False
    )
    found, found_labels = store.to_scipy()
    assert same_matrix(found, expected)
    assert np.array_equal(found_labels, labels)


@pytest.mark.parametrize("digits", [1, 5, 9, 15, 16, 17, 18, 25])
def test_values_of_any_length_like_scikit_learn(tmp_path, digits):
    rng = np.random.default_rng(digits)
    values = rng.standard_normal(2000) * 10.0 ** rng.integers(-12, 12, 2000)
    rows = "\n".join(f"{i % 2} 1:{v:.{digits}g} 2:{abs(v):.{digits}e} 9:{v:.{digits}f}" for i, v in enumerate(values))
    expected, _labels = load_svmlight_file(io.BytesIO(rows.encode()), dtype=np.float32, zero_based=False)
    found, _labels = store_of_text(tmp_path, rows).to_scipy()
    assert same_matrix(found, expected)


def test_all_short_values_like_python(tmp_path):
    """Every text of up to four of these characters is read as `float` does, or refused."""
    values = ["".join(text) for size in range(1, 5) for text in product("07.-x", repeat=size)]
    source = tmp_path / "in.svm"
    source.write_text("".join(f"1 1:1 2:{value} 3:7\n" for value in values))
    settings = Settings(stop_at_bad=False)
    reader = SvmlightReader([str(source)], settings, 1 << 16)
    (parsed,) = (reader.read(task) for task in reader.tasks())
    numbers = {line: value for line, text in enumerate(values) if (value := number_or_none(text)) is not None}
    assert parsed.lines.tolist() == list(numbers)
    assert parsed.block.values.reshape(-1, 3)[:, 1].tolist() == [np.float32(value) for value in numbers.values()]
    assert parsed.bad_lines == len(values) - len(numbers) > 0


def number_or_none(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


BAD_ROWS = [
    ("1 3", "not of the form index:value"),
    ("1 3:", "value in '3:' is not a number"),
    ("1 :3", "not of the form"),
    ("1 a:3", "not of the form"),
    ("1 3:4:5", "not a number"),
    ("1 3:0x1", "not a number"),
    ("1 3:1_0", "not a number"),
    ("1 3:nan", "not finite"),
    ("1 3:-inf", "not finite"),
    ("1 3:1e39", "too large for float32"),
    ("1 3:1e400", "too large for float32"),
    ("1 -3:1", "negative index"),
    ("1 4294967296:1", "above the limit"),
    ("1 99999999999999999999:1", "above the limit"),
    ("1 3:1 3:2", "occurs twice"),
    ("1 3:1 2:2", "below the one before"),
    ("nan 3:1", "label 'nan' is not finite"),
    ("1e999 3:1", "not finite"),
    ("spam 3:1", "not a number"),
    ("1,2 3:1", "more than one label"),
    ("3:1 4:1", "begins with '3:1', not with a label"),
    ("1 3:1 qid:4", "not of the form"),
    ("1 qid:x 3:1", "not of the form"),
    ("1 3:1 \x00", "zero byte"),
    ("\x00\x01\x02", "zero byte"),
]


@pytest.mark.parametrize(("row", "problem"), BAD_ROWS)
def test_bad_rows_stop_with_file_and_line(tmp_path, row, problem):
    with pytest.raises(InputError) as caught:
        store_of_text(tmp_path, f"1 1:1\n# comment\n\n-1 2:1\n{row}\n1 1:1\n")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'in.svm'}:5: ")
    assert problem in message
    assert ";" in message, "a message says what to do"
    assert not (tmp_path / "out.store").exists()
    assert not (tmp_path / "out.store.unfinished").exists()


def test_index_zero_where_indices_start_at_one(tmp_path):
    with pytest.raises(InputError, match=r"in\.svm:2: index 0 in 1-based data, '0:1'"):
        store_of_text(tmp_path, "1 1:1\n-1 0:1\n", index_base="1")


def test_bad_rows_can_be_skipped_and_are_listed(tmp_path):
    good = [f"{1 - 2 * (i % 2)} {i + 1}:{i + 0.5}" for i in range(len(BAD_ROWS))]
    lines = [line for pair in zip(good, (row for row, _problem in BAD_ROWS), strict=True) for line in pair]
    store = store_of_text(tmp_path, "\n".join(lines) + "\n", on_bad_row="skip", block_size=64)
    expected, _labels = load_svmlight_file(io.BytesIO("\n".join(good).encode()), dtype=np.float32, zero_based=False)
    assert same_matrix(store.to_scipy()[0], expected)
    assert store.manifest.rejected == len(BAD_ROWS)
    listed = (store.path / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in listed] == [2 * i + 2 for i in range(len(BAD_ROWS))]
    for line, (_row, problem) in zip(listed, BAD_ROWS, strict=True):
        assert problem in json.loads(line)["problem"]


def ten_lines(text: str, base: int) -> tuple[list[float], list[list[tuple[int, np.float32]]]]:
    labels, rows = [], []
    for line in text.split("\n"):
        words = line.split("#")[0].split()
        if words:
            labels.append(float(words[0]))
            pairs = (word.split(":") for word in words[1:] if not word.startswith("qid:"))
            rows.append([(int(index) - base, np.float32(float(value))) for index, value in pairs])
    return labels, rows


@pytest.mark.slow
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["1", "-1", "+1", "-1.0"]),
            st.dictionaries(
                st.integers(1, 70_000), st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9
            ),
            st.sampled_from(["", " ", "\t", "  # note", "\r", " #3:4"]),
            st.sampled_from([" ", "  ", "\t"]),
        ),
        min_size=1,
        max_size=30,
    ),
    block=st.integers(64, 300),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_like_ten_lines_of_python(tmp_path, rows, block):
    text = "\n".join(
        label + "".join(f"{blank}{index}:{pairs[index]!r}" for index in sorted(pairs)) + tail
        for label, pairs, tail, blank in rows
    )
    store = store_of_text(tmp_path, text, block_size=block, classes=("-1", "1"), index_base="1", chunk_size=1024)
    labels, expected = ten_lines(text, base=1)
    matrix, found_labels = store.to_scipy()
    assert found_labels.tolist() == labels
    for row, pairs in enumerate(expected):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        assert matrix.indices[part].tolist() == [index for index, _value in pairs]
        assert matrix.data[part].tobytes() == np.array([value for _index, value in pairs], np.float32).tobytes()


@pytest.mark.slow
@given(st.binary(max_size=300))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_parse_or_are_refused(tmp_path, content):
    try:
        store = store_of_text(tmp_path, content, block_size=64)
    except OocPegasosError as error:
        assert error.exit_code == 3
        assert "\n" not in str(error)
    else:
        assert store.rows > 0


@pytest.mark.slow
@given(
    st.text(alphabet="01:. -+e#\nqidn\t\r,9\0", max_size=200),
    st.sampled_from([64, 100]),
    st.sampled_from(["stop", "skip"]),
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_almost_svmlight_parses_or_is_refused(tmp_path, text, block, policy):
    try:
        store = store_of_text(tmp_path, text, block_size=block, on_bad_row=policy, classes=("0", "1", "-1", "9", "11"))
    except OocPegasosError as error:
        assert error.exit_code == 3
    else:
        store.to_scipy()


COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed(tmp_path, kind):
    matrix, labels = random_rows(300, 200, seed=2)
    text = svmlight_text(matrix, labels).encode()
    first, second = text[: text.index(b"\n", 2000) + 1], text[text.index(b"\n", 2000) + 1 :]
    path = tmp_path / f"a.svm.{kind}"
    path.write_bytes(COMPRESSORS[kind](first) + COMPRESSORS[kind](second))  # several members are one file
    plain = tmp_path / "a.svm"
    plain.write_bytes(text)
    config = ConvertConfig(shuffle=False, features=200)
    found = convert([str(path)], tmp_path / "found", config).to_scipy()
    expected = convert([str(plain)], tmp_path / "expected", config).to_scipy()
    assert same_matrix(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


@pytest.mark.parametrize("block", [64, 4096, 1 << 20])
@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_few_compressed_bytes_with_many_rows(tmp_path, kind, block):
    """The decompressor has all of its input long before the last output was taken."""
    path = tmp_path / f"a.svm.{kind}"
    path.write_bytes(COMPRESSORS[kind](b"1 1:1\n-1 2:1\n" * 8192) * 2)
    reader = SvmlightReader([str(path)], Settings(), block)
    assert sum(reader.read(task).block.rows for task in reader.tasks()) == 4 * 8192


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_truncated_or_damaged_compressed_files(tmp_path, kind):
    matrix, labels = random_rows(3000, 200, seed=2)
    whole = COMPRESSORS[kind](svmlight_text(matrix, labels).encode())
    path = tmp_path / f"a.svm.{kind}"
    for content in (whole[: len(whole) // 2], whole[:-3], whole[:40] + bytes(50) + whole[90:], whole + b"text"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.svm"):
            convert([str(path)], tmp_path / "out", IN_ORDER)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"# only\n\n  \n", "no rows in it"),
        (b"PAR1" + bytes(100), "damaged, or of another format than its name"),
        (b"PK\x03\x04" + bytes(100), "this is a zip or npz archive"),
        (b"\xff\xfe1\x00", "UTF-16"),
        (bytes(range(256)) * 20, "zero byte"),
    ],
)
def test_files_that_are_no_svmlight(tmp_path, content, problem):
    with pytest.raises(InputError, match=problem):
        store_of_text(tmp_path, content)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_labels_that_are_no_text(tmp_path, policy):
    with pytest.raises(InputError, match=r"in\.svm:2: the label") as caught:
        store_of_text(tmp_path, b"cat 1:1\n\xff\xfe 1:1\ndog 1:1\n", classes=("cat", "dog"))
    assert "not UTF-8" in str(caught.value)
    with pytest.raises(InputError, match=r"in\.svm"):
        store_of_text(tmp_path, b"cat 1:1\n\xff\xfe 1:1\ndog 1:1\n", classes=("cat", "dog"), on_bad_row=policy)
    rubbish = np.random.default_rng(1).bytes(20_000)
    with pytest.raises(InputError, match=r"in\.svm:1: "):
        store_of_text(tmp_path, rubbish)


def test_a_line_longer_than_a_block(tmp_path):
    long = "1 " + " ".join(f"{i}:{i}" for i in range(1, 50_001))
    store = store_of_text(tmp_path, f"-1 1:1\n{long}\n-1 2:1\n", block_size=64)
    matrix, labels = store.to_scipy()
    assert labels.tolist() == [-1, 1, -1]
    assert np.diff(matrix.indptr).tolist() == [1, 50_000, 1]
    assert matrix[1].data.tolist() == [float(np.float32(i)) for i in range(1, 50_001)]
