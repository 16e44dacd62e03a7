"""The Vowpal Wabbit reader, against scikit-learn's hashing and a parser of twenty lines, and the svmlight reader."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher
from sklearn.utils import murmurhash3_32

from ooc_pegasos.compiled.parse import vw as kernels
from ooc_pegasos.compiled.parse.lines import PADDING
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.conversion.pipeline import convert
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.readers import svmlight
from ooc_pegasos.readers.base import DESCRIBED_BAD_ROWS, ParsedBlock
from ooc_pegasos.readers.sources import TextBlock
from ooc_pegasos.readers.vw import PROBLEMS, Settings, VwReader
from ooc_pegasos.scoring.heaviest_features import signs
from ooc_pegasos.store import vocabulary
from ooc_pegasos.store.labels import key_of
from ooc_pegasos.store.recipe import Hashing
from support.rows import random_rows, svmlight_text

HASHED = Hashing(bits=6)
Row = tuple[float, float, str, list[tuple[int, float]]]


def parsed_rows(parsed: ParsedBlock) -> list[Row]:
    block = parsed.block
    weights = np.ones(block.rows) if block.weights is None else block.weights
    tags = [""] * block.rows if parsed.ids is None else [tag or "" for tag in parsed.ids.to_pylist()]
    assert len(tags) == len(weights) == len(parsed.lines) == len(parsed.numbers) == len(block.indptr) - 1
    rows = []
    for row, tag in enumerate(tags):
        part = slice(block.indptr[row], block.indptr[row + 1])
        entries = list(zip(block.indices[part].tolist(), block.values[part].tolist(), strict=True))
        rows.append((float(block.labels[row]), float(weights[row]), tag, entries))
    return rows


def read_vw(folder: Path, text: str | bytes, block_size: int = 1 << 16, **options: object):
    """(rows, their lines, bad rows as (line, problem)) of a file, lines counted from 1."""
    source = folder / "in.vw"
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    reader = VwReader([str(source)], Settings(**options), block_size)
    rows, lines, bad, before = [], [], [], 1
    for task in reader.tasks():
        parsed = reader.read(task)
        rows += parsed_rows(parsed)
        lines += (parsed.lines + before).tolist()
        bad += [(row.line + before, row.problem) for row in parsed.bad]
        before += parsed.line_count
        reader.release(parsed)
    return rows, lines, bad


@cache
def bucket_and_sign(token: str, bits: int, signed: bool) -> tuple[int, float]:
    row = FeatureHasher(2**bits, input_type="string", alternate_sign=signed).transform([[token]])
    return int(row.indices[0]), float(row.data[0])


def parse_line(line: str, hashing: Hashing) -> Row:
    head, _bar, rest = line.partition("|")
    words, tag, sums = head.split(), "", {}
    if words and (words[-1].startswith("'") or not head[-1].isspace()):
        tag = words.pop().removeprefix("'")
    for section in rest.split("|"):
        first, *features = section.split() if section and not section[0].isspace() else ["", *section.split()]
        namespace, _colon, scale = first.partition(":")
        unnamed = 0
        for feature in features:
            name, _colon, value = feature.partition(":")
            if not name:
                name, unnamed = str(unnamed), unnamed + 1
            token = f"{namespace}^{name}" if namespace else name
            place, sign = bucket_and_sign(token, hashing.bits, hashing.signed)
            sums[place] = sums.get(place, 0.0) + sign * float(value or 1) * float(scale or 1)
    entries = [(place, float(np.float32(sums[place]))) for place in sorted(sums) if np.float32(sums[place]) != 0]
    return float(words[0]), float(np.float32(words[1] if len(words) > 1 else 1)), tag, entries


BLANKS = st.sampled_from([" ", "  ", "\t", " \t "])
NAMES = st.one_of(
    st.text(st.characters(exclude_characters="|:\x85\xa0", exclude_categories=["Z", "C"]), min_size=1, max_size=9),
    st.sampled_from(["a", "b", "^", "a^b", "#", "'x", "0", "17", "é"]),
)
NUMBERS = st.one_of(
    st.floats(-1e6, 1e6, width=32).map(repr), st.sampled_from(["0", "-0", "1", "-1", ".5", "2.", "+3", "1e-3", "1E2"])
)


@st.composite
def features(draw) -> str:
    name = draw(st.one_of(NAMES, st.just("")))
    value = draw(NUMBERS.map(":{}".format) if not name else st.one_of(st.just(""), NUMBERS.map(":{}".format)))
    return draw(BLANKS) + name + value


@st.composite
def vw_lines(draw) -> str:
    head = draw(NUMBERS)
    if draw(st.booleans()):
        head += draw(BLANKS) + draw(st.sampled_from(["1", "1.0", "0.25", "3e5", "1e-9", "0.1"]))
    tag = draw(st.one_of(st.just(""), st.just("'"), NAMES, NAMES.map("'{}".format)))
    head += draw(BLANKS) + tag
    if tag.startswith("'"):
        head += draw(st.sampled_from(["", " "]))
    sections = []
    for _ in range(draw(st.integers(1, 3))):
        namespace = draw(st.one_of(st.just(""), NAMES))
        scale = draw(st.one_of(st.just(""), NUMBERS.map(":{}".format))) if namespace else ""
        sections.append(namespace + scale + "".join(draw(st.lists(features(), max_size=5))))
        sections[-1] += draw(st.sampled_from(["", " "]))
    return head + "|" + "|".join(sections)


@pytest.mark.slow
@given(
    st.lists(vw_lines(), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n"]),
    st.integers(64, 400),
    st.sampled_from([Hashing(1), Hashing(5, False), Hashing(18), Hashing(30), Hashing(30, False)]),
)
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_rows_like_a_textbook_parser_and_scikit_learn(tmp_path, lines, line_end, block, hashing):
    rows, found_lines, bad = read_vw(tmp_path, line_end.join(lines), block, hashing=hashing)
    assert bad == []
    assert rows == [parse_line(line, hashing) for line in lines]
    assert found_lines == [1 + k * line_end.count("\n") for k in range(len(lines))]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", [3, 12, 22])
def test_long_rows_like_scikit_learn(tmp_path, bits, signed):
    rng = np.random.default_rng(bits)
    tokens = [
        [(f"n{k % 3}^{'x' * (k % 7)}{k}", int(rng.integers(-8, 9)) / 4) for k in range(n)] for n in (2000, 60, 49)
    ]
    text = ""
    for row in tokens:
        spaces = ([(name[3:], value) for name, value in row if name[1] == str(k)] for k in range(3))
        sections = (f"n{k} " + " ".join(f"{n}:{v}" for n, v in space) for k, space in enumerate(spaces))
        text += "1 |" + " |".join(sections) + "\n"
    expected = FeatureHasher(2**bits, input_type="pair", alternate_sign=signed).transform(tokens)
    expected.eliminate_zeros()
    rows, _lines, _bad = read_vw(tmp_path, text, hashing=Hashing(bits, signed))
    for row, (_label, _weight, _tag, entries) in enumerate(rows):
        part = slice(expected.indptr[row], expected.indptr[row + 1])
        assert entries == list(zip(expected.indices[part].tolist(), expected.data[part].tolist(), strict=True))


def test_features_without_a_name_are_counted_as_vowpal_wabbit_does(tmp_path):
    workspace = pytest.importorskip("vowpalwabbit").Workspace("--quiet --noconstant -b 20")

    def by_vowpal_wabbit(line: str) -> list[tuple[int, float]]:
        example = workspace.example(line)
        found = sorted((place % 2**20, value) for place, value in example.iter_features())
        workspace.finish_example(example)
        return found

    line = "1 |n a:7 :0 :3 :0.5 0012:1 :2|m :2 |n x " + " ".join(f":{k}" for k in range(1, 120)) + " | :4 :5"
    sections = [section.split(" ") for section in line.split("|")[1:]]
    named = "1 "
    for space, *words in sections:
        numbers = iter(range(200))
        named += f"|{space} " + " ".join(f"{next(numbers)}{word}" if word[:1] == ":" else word for word in words) + " "
    assert by_vowpal_wabbit(line) == by_vowpal_wabbit(named)
    for bits in (5, 22):
        found, expected = (read_vw(tmp_path, text, hashing=Hashing(bits))[0] for text in (line, named))
        assert found == expected == [parse_line(line, Hashing(bits))]


@pytest.mark.slow
def test_names_are_the_first_met(tmp_path):
    text = (
        "1 |n a:1 :2 b |m a |n :3 c:0\nx |n bad\n1 |n late :7 bad2:x\n1 | bad :4 a b\n1 |n \udcff a late a^b |n^a b\n"
    )
    tokens = ["n^a", "n^0", "n^b", "m^a", "n^c", "bad", "0", "a", "b", "n^late", "n^a^b"]
    (tmp_path / "in.vw").write_bytes(text.encode(errors="surrogateescape"))
    for bits in (1, 4, 22, 31):
        first = {}
        for token in tokens:
            first.setdefault(bucket_and_sign(token, min(bits, 30), False)[0] if bits < 31 else token, token)
        for wanted in (0, 1, 3, len(first), 100):
            options = Settings(Hashing(bits), stop_at_bad=False, feature_names=wanted)
            reader = VwReader([str(tmp_path / "in.vw")], options, 1 << 16)
            parsed = reader.read(next(reader.tasks()))
            assert parsed.bad_lines == 2
            assert list(parsed.features.values()) == list(first.values())[:wanted]
            if bits < 31:
                assert list(parsed.features) == list(first)[:wanted]


def test_rows_are_the_same_with_names(tmp_path):
    rng = np.random.default_rng(3)
    lines = [f"1 |a {' '.join(f'{w}:{w % 7}' for w in rng.integers(0, 5000, 40))}" for _ in range(300)]
    rows = read_vw(tmp_path, "\n".join(lines), hashing=Hashing(10))[0]
    for wanted in (1, 500, 10**7):
        assert read_vw(tmp_path, "\n".join(lines), 2000, hashing=Hashing(10), feature_names=wanted)[0] == rows


@pytest.mark.parametrize("signed", [True, False])
def test_stores_have_the_first_names_whatever_the_threads(tmp_path, signed):
    rng = np.random.default_rng(4)
    lines, met = [], {}
    for row in range(900):
        words = [f"w{word}" for word in rng.zipf(1.3, 9) % 700]
        lines.append(f"{row % 2} |text {' '.join(words)} |user :1 u{row % 50}")
        for token in [*(f"text^{word}" for word in words), "user^0", f"user^u{row % 50}"]:
            met.setdefault(bucket_and_sign(token, 12, signed)[0], token)
    (tmp_path / "in.vw").write_text("\n".join(lines) + "\n")
    for wanted, threads in ((200, 1), (200, 2), (200, 2), (100_000, 2)):
        options = ConvertConfig(hash_bits=12, hash_signed=signed, feature_names=wanted, threads=threads, block_size=512)
        store = convert([str(tmp_path / "in.vw")], tmp_path / "store", options, existing=Existing(force=True))
        names = vocabulary.of_store(store.path, store.manifest).known_names()
        assert names == dict(list(met.items())[:wanted])
        assert len(names) == min(wanted, len(met))
    expected = {place: bucket_and_sign(name, 12, True)[1] for place, name in names.items()} if signed else {}
    assert signs(names, store.manifest.recipe) == expected
    assert not signed or set(expected.values()) == {-1.0, 1.0}
    plain = [f"{row % 2} | {row}" for row in range(9)]
    (tmp_path / "in.vw").write_text("\n".join(plain) + "\n")
    options = ConvertConfig(hash_bits=0, feature_names=10)
    store = convert([str(tmp_path / "in.vw")], tmp_path / "plain", options)
    assert vocabulary.of_store(store.path, store.manifest).known_names() == {}


def test_the_hash_that_has_no_absolute_value(tmp_path):
    assert murmurhash3_32("aaaiTBFZ") == -(2**31)
    for bits in (1, 22, 30):
        assert bucket_and_sign("aaaiTBFZ", bits, True) == (0, -1.0)
        assert read_vw(tmp_path, "1 | aaaiTBFZ", hashing=Hashing(bits))[0] == [(1, 1, "", [(0, -1.0)])]


def blocks_read_by(reader) -> tuple[np.ndarray, ...]:
    parsed = [reader.read(task) for task in reader.tasks()]
    assert not any(block.bad for block in parsed)
    lengths = np.concatenate([np.diff(block.block.indptr) for block in parsed])
    of_all = (
        np.concatenate([getattr(block.block, name) for block in parsed]) for name in ("labels", "indices", "values")
    )
    return (lengths, *of_all, np.concatenate([block.numbers for block in parsed]))


def test_plain_rows_like_the_svmlight_reader(tmp_path):
    matrix, labels = random_rows(400, 3000, seed=1)
    text = svmlight_text(matrix, labels)
    (tmp_path / "in.svm").write_text(text)
    words = [line.split(" ") for line in text.splitlines()]
    rng = np.random.default_rng(1)
    shuffled = [" ".join([word[0], ["|", "|f"][row % 2], *rng.permutation(word[1:])]) for row, word in enumerate(words)]
    (tmp_path / "in.vw").write_text("\n".join(shuffled) + "\n")
    for block in (64, 5000):
        expected = blocks_read_by(svmlight.SvmlightReader([str(tmp_path / "in.svm")], svmlight.Settings(), block))
        found = blocks_read_by(VwReader([str(tmp_path / "in.vw")], Settings(), block))
        for one, other in zip(found[:4], expected[:4], strict=True):
            assert one.dtype == other.dtype
            assert one.tobytes() == other.tobytes()


ODD_BUT_LEGAL = {
    "1 |": (1, 1, "", []),
    "-0 || 3|": (0, 1, "", [(3, 1)]),
    "1 |a|b 3 9:0 2:1e-60 |c": (1, 1, "", [(3, 1)]),
    "2.5 |a 7:2|a:.5 3:3|a 1:1": (2.5, 1, "", [(1, 1), (3, 1.5), (7, 2)]),
    "1 2 tag| 3:1\r": (1, 2, "tag", [(3, 1)]),
    "1 '| 3": (1, 1, "", [(3, 1)]),
    "1 ''a'b:c'  |x:-2 3:1.5": (1, 1, "'a'b:c'", [(3, -3)]),
    "1 0.5 'é\t| 4294967294:3 0007:1": (1, 0.5, "é", [(7, 1), (2**32 - 2, 3)]),
    "1 |x :2 7:3 :4|x 5:1": (1, 1, "", [(0, 2), (1, 4), (5, 1), (7, 3)]),
    "1 |x:0 3:1 4:5": (1, 1, "", []),
    "1 | 3:0.30000001192092896|": (1, 1, "", [(3, float(np.float32(0.3)))]),
    f"1 | 3:{'1' * 30}e-29|": (1, 1, "", [(3, float(np.float32(1.1111111111)))]),
}


@pytest.mark.parametrize("block", [64, 1 << 16])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_odd_but_legal_lines(tmp_path, line_end, block):
    rows, _lines, bad = read_vw(tmp_path, b"\xef\xbb\xbf" + line_end.join(ODD_BUT_LEGAL).encode(), block)
    assert bad == []
    assert rows == list(ODD_BUT_LEGAL.values())


def test_weights_and_tags_only_where_there_are_some(tmp_path):
    (tmp_path / "in.vw").write_text("1 1.0 | 3\n" * 20 + "1 2 't| 3\n")
    reader = VwReader([str(tmp_path / "in.vw")], Settings(), 64)
    *without, last = [reader.read(task) for task in reader.tasks()]
    assert all(parsed.block.weights is None and parsed.ids is None for parsed in without)
    assert last.block.weights.dtype == np.float32
    assert last.block.weights[-1] == 2
    assert last.ids.to_pylist()[-1] == "t"


def test_rows_without_labels_to_be_scored(tmp_path):
    text = "|a 3\n'x |a 4\ny| 5\n-1 2 'z| 6\n"
    rows, _lines, bad = read_vw(tmp_path, text, labels=False)
    assert bad == []
    assert rows == [(0, 1, "", [(3, 1)]), (0, 1, "x", [(4, 1)]), (0, 1, "y", [(5, 1)]), (-1, 2, "z", [(6, 1)])]


def test_labels_that_are_words(tmp_path):
    (tmp_path / "in.vw").write_text("cat 2 't| 3\nkätzchen | 4\ncat | 5\n1.0 | 6\n|x 7\n")
    reader = VwReader([str(tmp_path / "in.vw")], Settings(text_labels=True, labels=False), 1 << 16)
    parsed = reader.read(next(reader.tasks()))
    keys = [key_of(word, True) for word in ("cat", "kätzchen", "cat", "1.0")]
    assert parsed.block.labels.view(np.uint64).tolist() == [*keys, 0]
    assert parsed.names == dict(zip(keys, ("cat", "kätzchen", "cat", "1.0"), strict=True))


TOO_LONG = "x" * (kernels.LONGEST_NAMESPACE + 1)
BAD_EITHER_WAY = [
    ("1 3:1 4:1", "no '|' in the line that begins with '1'"),
    ("word", "no '|' in the line that begins with 'word'"),
    ("a b 'c d", "no '|' in the line that begins with"),
    ("|a 3", "no label"),
    ("1|a 3", "no label"),
    ("'tag | 3", "no label"),
    ("spam | 3", "label 'spam' is not a number"),
    ("1#2 | 3", "label '1#2' is not a number"),
    ("0x1 | 3", "label '0x1' is not a number"),
    ("nan | 3", "label 'nan' is not finite"),
    ("1e999 | 3", "label '1e999' is not finite"),
    ("1,2 | 3", "'1,2' is more than one label"),
    ("1:2.5 | 3", "label '1:2.5' has a cost"),
    ("1 tag | 3", "importance 'tag' is not a number; correct it, or if it is a tag put a ' before it"),
    ("1 0 | 3", "importance '0' is not from 1e-9 to 1e9"),
    ("1 -1 | 3", "importance '-1' is not from"),
    ("1 1e-10 | 3", "importance '1e-10' is not from"),
    ("1 1e10 | 3", "importance '1e10' is not from"),
    ("1 inf | 3", "importance 'inf' is not from"),
    ("1 1 0.5 | 3", "'0.5' after the importance is an initial prediction"),
    ("1 1 0.5 't| 3", "'0.5' after the importance is an initial prediction"),
    ("1 1 tag | 3", "'tag' after the importance is an initial prediction"),
    ("1 'tag 2 | 3", "tag ''tag' is not the last word before the bar"),
    ("1 '\udcff | 3", "tag ''\\xff' is not UTF-8"),
    ("1 \udced\udca0\udc80| 3", "is not UTF-8"),
    ("1 |:3 3", "':' right after the bar"),
    (f"1 |{TOO_LONG} 3", "more than 4,096 bytes"),
    ("1 |a:x 3", "scale 'x' of namespace 'a' is not a number"),
    ("1 |a: 3", "scale '' of namespace 'a' is not a number"),
    ("1 |a:1:2 3", "scale '1:2' of namespace 'a' is not a number"),
    ("1 |a:nan 3", "scale 'nan' of namespace 'a' is not finite"),
    ("1 |a:1e999| 3", "scale '1e999' of namespace 'a' is not finite"),
    ("1 |a : 3", "value '' of feature '' is not a number"),
    ("1 |a 3 :red", "value 'red' of feature '' is not a number; correct it, or if it is a word write name=word"),
    ("1 |a 3:x", "value 'x' of feature '3' is not a number"),
    ("1 |a 3:x|b 4", "value 'x' of feature '3' is not a number"),
    ("1 |a 3:", "value '' of feature '3' is not a number"),
    ("1 |a 3:|", "value '' of feature '3' is not a number"),
    ("1 |a 3:-|", "value '-' of feature '3' is not a number"),
    ("1 |a 3:4:5", "value '4:5' of feature '3' is not a number"),
    ("1 |a 3:1e| 4", "value '1e' of feature '3' is not a number"),
    ("1 |a 3:1#2", "value '1#2' of feature '3' is not a number"),
    ("1 |a 3:nan", "value 'nan' of feature '3' is not finite"),
    ("1 |a 3:-inf 4", "value '-inf' of feature '3' is not finite"),
    ("1 |a 3:1e39", "value of feature '3' is too large"),
    ("1 |a 3:1e400|", "value of feature '3' is too large"),
    ("1 |a:1e30 3:1e30", "value of feature '3' is too large"),
    ("1 |a:1e300 3:1e300", "value of feature '3' is too large"),
    ("\0\1\2", "zero byte"),
    ("1 |a\0 3", "zero byte"),
    ("1 |a 3\0", "zero byte"),
    ("1 |a 3:1 \0", "zero byte"),
]
BAD_IF_PLAIN = [
    ("1 |a word", "name of feature 'word' is not an index; hash the names, with {hash_bits}"),
    ("1 |a -3:1", "name of feature '-3' is not an index"),
    ("1 |a 3.0:1", "name of feature '3.0' is not an index"),
    ("1 |a 3 |b 4", "namespaces 'a' and 'b' in one row"),
    ("1 |a 3 |aa 4", "namespaces 'a' and 'aa' in one row"),
    ("1 | 3 |b:2 4", "namespaces '' and 'b' in one row"),
    ("1 |b 3 | 4", "namespaces 'b' and '' in one row"),
    ("1 |a 4294967295", "index in '4294967295' is above the limit of 4,294,967,294"),
    ("1 |a 99999999999999999999:1", "above the limit"),
    ("1 |a 3:1 4:2 3:0", "index 3 occurs twice"),
    ("1 |a :1 :2 1:5", "index 1 occurs twice"),
    ("1 |a " + " ".join(map(str, range(100, 0, -1))) + " 77", "index 77 occurs twice"),
]
BAD_IF_HASHED = [("1 |a 3:3e38 3:3e38", "add up to more than float32")]


@pytest.mark.parametrize("hashing", [None, HASHED])
def test_bad_rows_are_described_counted_and_dropped(tmp_path, hashing):
    bad_rows = BAD_EITHER_WAY + (BAD_IF_HASHED if hashing else BAD_IF_PLAIN)
    good = [f"{k} {k + 1} 'tag{k}| {k}:{k + 0.5} {k + 7}" for k in range(len(bad_rows))]
    lines = [line for pair in zip(good, (row for row, _problem in bad_rows), strict=True) for line in pair]
    text = "\n".join(lines).encode(errors="surrogateescape")
    expected, _lines, _bad = read_vw(tmp_path, "\n".join(good), hashing=hashing)
    for block in (64, 1 << 16):
        rows, found, bad = read_vw(tmp_path, text, block, hashing=hashing, stop_at_bad=False)
        assert rows == expected
        assert found == list(range(1, 2 * len(good), 2))
        assert [line for line, _problem in bad] == list(range(2, 2 * len(good) + 1, 2))
        for (_line, problem), (row, words) in zip(bad, bad_rows, strict=True):
            assert words in problem, row
            assert "\n" not in problem


@pytest.mark.parametrize(("row", "words"), [BAD_EITHER_WAY[0], BAD_EITHER_WAY[5], *BAD_IF_PLAIN])
def test_the_first_bad_row_is_enough(tmp_path, row, words):
    rows, _lines, bad = read_vw(tmp_path, f"1 | 1\n\n{row}\n1 | 2\nspam\n")
    assert len(rows) == len(bad) == 1
    assert bad[0][0] == 3
    assert words in bad[0][1]


OTHER_BAD_ROWS = [
    ("1 | 0:2", "index 0 in 1-based data, '0:2'", {"smallest_index": 1}),
    ("1 | :2", "index 0 in 1-based data, ':2'", {"smallest_index": 1}),
    ("1 | 10:2", "index in '10:2' is above the limit of 9;", {"largest_index": 9}),
    ("\udcff | 1", "label '\\xff' is not UTF-8", {"text_labels": True}),
    ("a,b | 1", "'a,b' is more than one label", {"text_labels": True}),
]


@pytest.mark.parametrize(("row", "words", "options"), OTHER_BAD_ROWS)
def test_other_bad_rows(tmp_path, row, words, options):
    _rows, _lines, bad = read_vw(tmp_path, row.encode(errors="surrogateescape"), **options)
    assert words in bad[0][1]


def test_every_problem_has_a_message_with_advice(tmp_path):
    cases = [(row, {}) for row, _words in BAD_EITHER_WAY + BAD_IF_PLAIN]
    cases += [(row, {"hashing": HASHED}) for row, _words in BAD_IF_HASHED]
    cases += [(row, options) for row, _words, options in OTHER_BAD_ROWS]
    met = [read_vw(tmp_path, row.encode(errors="surrogateescape"), **options)[2][0][1] for row, options in cases]
    assert set(PROBLEMS) == set(range(kernels.BAR_MISSING, kernels.NUL_BYTE + 1))
    for words in PROBLEMS.values():
        assert "; " in words
        pattern = ".*".join(map(re.escape, re.split(r"(?<!{){\w+}", words)))
        pattern = pattern.replace(r"\{\{", r"\{").replace(r"\}\}", r"\}")
        assert any(re.fullmatch(pattern, problem) for problem in met), words


def test_not_all_bad_rows_are_described(tmp_path):
    (tmp_path / "in.vw").write_text("spam\n" * 3000 + "1 | 1\n")
    reader = VwReader([str(tmp_path / "in.vw")], Settings(stop_at_bad=False), 1 << 16)
    parsed = reader.read(next(reader.tasks()))
    assert (len(parsed.bad), parsed.bad_lines, parsed.line_count) == (DESCRIBED_BAD_ROWS, 3000, 3001)
    assert (parsed.lines.tolist(), parsed.numbers.tolist()) == ([3000], [3000])


SEEDS = [
    b"1 2 'tag |a:0.5 x:1 y z:-3.25e2|b x:1 |c 17\r\n-1 |a x y:2\n\n0.5 tagged|ns:2 f:1.5 g\n",
    b"1 | 3:1 17:2.5 4\n-1 1.5 'x|f 9 8 7:1e-3\n1 |f 1:1|f 2:2\n",
    "é 'ü|n\u00e9 \u4e2d:1 \U0001f600:2\n2 1 |a 1 |b 1\n".encode(),
]
DAMAGE = list(b"|:' \t\r\n\0#+-.,e019\x80\xff\xc3\xe0\xf4na")


def mutated(rng: np.random.Generator) -> bytes:
    text = bytearray(SEEDS[rng.integers(len(SEEDS))] * int(rng.integers(1, 4)))
    for _ in range(rng.integers(1, 9)):
        at = int(rng.integers(len(text)))
        byte = DAMAGE[rng.integers(len(DAMAGE))] if rng.random() < 0.8 else int(rng.integers(256))
        kind = rng.integers(4)
        if kind == 0:
            text[at] = byte
        elif kind == 1:
            text.insert(at, byte)
        elif kind == 2 and len(text) > 1:
            del text[at]
        else:
            other = int(rng.integers(len(text)))
            text[at:at] = text[other : other + int(rng.integers(12))]
    return bytes(text)


@pytest.mark.parametrize("hashing", [None, Hashing(5), Hashing(22, False)])
@pytest.mark.parametrize("words", [False, True])
def test_damaged_text_parses_or_is_refused(hashing, words):
    rng = np.random.default_rng(words)
    options = Settings(hashing, text_labels=words, largest_index=40, stop_at_bad=False, labels=words)
    reader = VwReader([], options, 64)
    largest = 40 if hashing is None else 2**hashing.bits - 1
    kept = 0
    for _ in range(1500):
        raw = mutated(rng)
        raw += b"" if raw.endswith(b"\n") else b"\n"
        text = np.frombuffer(raw + b"\n" + bytes(PADDING), np.uint8).copy()
        parsed = reader.read(TextBlock(0, text, len(raw), 0, len(raw), len(raw), None))
        block = parsed.block
        rows = sum(bool(line.strip(b" \t\v\f\r")) for line in raw.split(b"\n"))
        assert parsed.line_count == raw.count(b"\n")
        assert block.rows + parsed.bad_lines == rows
        assert len(parsed.bad) == parsed.bad_lines
        assert np.isfinite(block.values).all()
        assert (block.values != 0).all()
        for row in range(block.rows):
            indices = block.indices[block.indptr[row] : block.indptr[row + 1]].astype(np.int64)
            assert (np.diff(indices) > 0).all()
            assert ((indices >= 0) & (indices <= largest)).all()
        if parsed.ids is not None:
            parsed.ids.validate(full=True)
        kept += block.rows
        reader.release(parsed)
    assert kept > 1500


def test_a_line_longer_than_a_block(tmp_path):
    long = "1 |f " + " ".join(f"{k}:{k}" for k in range(50_000, 0, -1))
    rows, _lines, _bad = read_vw(tmp_path, f"-1 | 1\n{long}\n-1 | 2\n", 64)
    assert [len(entries) for _label, _weight, _tag, entries in rows] == [1, 50_000, 1]
    assert rows[1][3] == [(k, float(k)) for k in range(1, 50_001)]


def test_preview(tmp_path):
    (tmp_path / "a.vw").write_text("1 |a b:2 c\n-1 |a c\n")
    assert len(preview([str(tmp_path / "a.vw")], ConvertConfig()).rows) == 2
