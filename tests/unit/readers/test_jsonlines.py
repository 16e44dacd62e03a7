"""JSON lines: against Python's json module, and every kind of bad row with its line and advice."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.base import TO_UTF8
from ooc_pegasos.readers.jsonlines import batch_of, names_of

PAIRS = pa.list_(pa.struct([("index", pa.int64()), ("value", pa.float64())]))
FIELDS = {"n": pa.float64(), "s": pa.string(), "l": pa.list_(pa.int64()), "p": PAIRS}
GOOD = b'{"n": 1}\n'


def read_records(data, fields=FIELDS, most=1000):
    """(rows, their lines, bad rows by line), checked to account for every line."""
    data = data.encode() if isinstance(data, str) else data
    text = np.frombuffer(data + b"{rubbish", np.uint8).copy()
    batch, lines, line_count, described, bad = batch_of(text, len(data), fields, most)
    text[:] = 0  # what was read does not depend on it
    batch.validate(full=True)
    assert batch.schema == pa.schema(list(fields.items()))
    assert line_count == data.count(b"\n")
    blank = sum(not line.strip(b" \t\r") for line in data.split(b"\n")[:-1])
    assert batch.num_rows == len(lines) == line_count - blank - bad
    assert len(described) == min(bad, most)
    assert [row.line for row in described] == sorted({row.line for row in described})
    assert not {row.line for row in described} & set(lines.tolist())
    assert all(np.diff(lines) > 0)
    assert all("\n" not in row.problem and "; " in row.problem for row in described)
    return batch.to_pylist(), lines.tolist(), {row.line: row.problem for row in described}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANY = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | FLOATS | st.integers(-(10**30), 10**30),
        "s": st.none() | TEXT,
        "l": st.none() | st.lists(INTS | st.none(), max_size=3),
        "p": st.none() | st.lists(st.fixed_dictionaries({"index": INTS, "value": FLOATS}), max_size=3),
        "other": ANY,
        "oth\u00e9r": ANY,
    },
)


@given(st.lists(OBJECTS, max_size=6), st.booleans(), st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\n \t\r\n"]))
@settings(max_examples=200)
def test_like_the_json_module(objects, ascii_only, end):
    text = "".join(json.dumps(one, ensure_ascii=ascii_only) + end for one in objects)
    expected = [{name: one.get(name) for name in FIELDS} for one in objects]
    for one in expected:
        one["n"] = None if one["n"] is None else float(one["n"])
    lines = [place * end.count("\n") for place in range(len(objects))]
    assert read_records(text) == (expected, lines, {})
    # With bad rows around them the same rows are found, though on another way.
    rows, found, bad = read_records("{\n" + text + "7\n")
    assert (rows, found, list(bad)) == (expected, [line + 1 for line in lines], [0, text.count("\n") + 1])


NOT_A_NUMBER = "is not a number; correct it, or give the key by {categorical} if all its values are text"
NOT_FINITE = "is not finite; correct it, or write null"
NOT_INTS = "is not a list of whole numbers; correct it"
NOT_PAIRS = 'is not a list of {"index": whole numbers, "value": numbers}; correct it'


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("n", '"abc"', NOT_A_NUMBER),
        ("n", '"1"', NOT_A_NUMBER),
        ("n", "true", NOT_A_NUMBER),
        ("n", "false", NOT_A_NUMBER),
        ("n", "[1]", NOT_A_NUMBER),
        ("n", "{}", NOT_A_NUMBER),
        ("n", "NaN", NOT_FINITE),
        ("n", "-Infinity", NOT_FINITE),
        ("s", "12", "is not text; put it in quotes"),
        ("s", "true", "is not text; put it in quotes"),
        ("s", "[]", "is not text; put it in quotes"),
        ("l", "3", NOT_INTS),
        ("l", "[1.5]", NOT_INTS),
        ("l", "[1.0]", NOT_INTS),
        ("l", "[true]", NOT_INTS),
        ("l", '["1"]', NOT_INTS),
        ("l", "[9223372036854775808]", NOT_INTS),
        ("l", "[[1]]", NOT_INTS),
        ("p", "[1]", NOT_PAIRS),
        ("p", "[[1, 2]]", NOT_PAIRS),
        ("p", '[{"index": "x"}]', NOT_PAIRS),
        ("p", '[{"value": NaN}]', NOT_PAIRS),
        ("p", '[{"index": 1.5}]', NOT_PAIRS),
    ],
)
def test_wrong_types(name, value, problem):
    text = GOOD + b"\n" + f'{{"{name}": {value}}}\n'.encode() + GOOD
    rows, lines, bad = read_records(text)
    assert ([row["n"] for row in rows], lines) == ([1, 1], [0, 3])
    assert bad == {2: f"the value {value} of key '{name}' {problem}"}


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "9" * 5000])
def test_numbers_that_are_too_large(value):
    (problem,) = read_records(GOOD + b'{"n": ' + value.encode() + b"}\n")[2].values()
    assert problem.endswith(NOT_FINITE)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"n": 1', "this is not JSON (Expecting ',' delimiter at character 8); write one object a line"),
        (b'{"n": 1,}', "this is not JSON ("),
        (b'{"n": 1},', "this is not JSON (Extra data at character 9); write one object a line"),
        (b'{"n": 1}{"n": 2}', "this is not JSON (Extra data at character 9); write one object a line"),
        (b'{"n": 1}\r{"n": 2}', "this is not JSON (Extra data at character 10); write one object a line"),
        (b'{"n": 01}', "this is not JSON (Expecting ',' delimiter at character 8); write one object a line"),
        (b'{"n": +1}', "this is not JSON (Expecting value at character 7); write one object a line"),
        (b'{"s": "a\tb"}', "this is not JSON (Invalid control character at at character 9); write one object a line"),
        (b'{"n": 1}\0', "this is not JSON (Extra data at character 9); write one object a line"),
        (b"[1, 2]", "the line is a list, not a JSON object; write one object a line"),
        (b'"x"', "the line is a text, not a JSON object; write one object a line"),
        (b"3", "the line is the value 3, not a JSON object; write one object a line"),
        (b"null", "the line is the value null, not a JSON object; write one object a line"),
        (
            b'{"s": "\xff"}',
            "the value \"\\udcff\" of key 's' is not UTF-8 text; " + TO_UTF8,
        ),
        (
            b'{"s": "\\ud800"}',
            "the value \"\\ud800\" of key 's' is not UTF-8 text; " + TO_UTF8,
        ),
        (b'{"n": 1, "n": 2}', "the object cannot be read ("),
        (b'{"x": "\\ud800"}', "the object cannot be read ("),
        (b'{"x": 1e999}', "the object cannot be read ("),
    ],
)
def test_malformed_lines(line, problem):
    rows, lines, bad = read_records(b"\n" + GOOD * 3 + line + b"\n" + GOOD * 2)
    assert ([row["n"] for row in rows], lines, list(bad)) == ([1] * 5, [1, 2, 3, 5, 6], [4])
    if problem.endswith("("):  # what follows are words of Python or Arrow that change with their version
        assert bad[4].startswith(problem)
        assert bad[4].endswith(("; correct it", "; write one object a line"))
    else:
        assert bad == {4: problem}


def test_an_object_over_several_lines_is_bad_lines():
    rows, lines, bad = read_records(b'{"n":\n2}\n{"n": 3}{"n": 4}\n' + GOOD)
    assert ([row["n"] for row in rows], lines, list(bad)) == ([1], [3], [0, 1, 2])
    # As many objects as lines, and yet not one each.
    rows, lines, bad = read_records(b'{"l":\n[]}{"n": 3}\n')
    assert (rows, list(bad)) == ([], [0, 1])


def test_keys_that_are_not_wanted_may_hold_anything():
    for value in [b"NaN", b"Inf", b'"\xff"', b"[" * 5000 + b"]" * 5000, b"9" * 5000, b'{"n": true, "n": false}']:
        line = b'{"n": 2, "x": ' + value + b"}\n"
        assert [row["n"] for row in read_records(line)[0]] == [2]
        assert [row["n"] for row in read_records(line + b"{\n")[0]] == [2]
    assert read_records(b'{"\xff": 1}\n{\n')[1] == [0]


def test_blank_and_empty_blocks():
    for data in ["", "\n\n", " \n\t\r\n\n"]:
        assert read_records(data) == ([], [], {})
    assert read_records("x\n\n")[:2] == ([], [])
    assert read_records("{}\n{}\n")[0] == [dict.fromkeys(FIELDS)] * 2


def test_the_first_problems_are_described_and_all_are_counted():
    text = np.frombuffer(b"{\n" * 10 + GOOD, np.uint8)
    batch, lines, _, described, bad = batch_of(text, len(text), FIELDS, 3)
    assert (batch.num_rows, lines.tolist(), [row.line for row in described], bad) == (1, [10], [0, 1, 2], 10)


def test_large_blocks():
    rows, lines, _ = read_records(b'{"n":1}\n' * 150_000, {"n": pa.float64()})
    assert len(rows) == 150_000
    assert lines == list(range(150_000))
    long = "x" * 5_000_000
    assert read_records(json.dumps({"s": long}) + "\n" + "{}\n", {"s": pa.string()})[0] == [{"s": long}, {"s": None}]


def test_many_bad_rows():
    text = b'{"n": 1, "n": 2}\n{"n": 3}\n' * 500
    rows, lines, bad = read_records(text)
    assert [row["n"] for row in rows] == [3] * 500
    assert (lines, list(bad)) == (list(range(1, 1000, 2)), list(range(0, 1000, 2)))


SEED_TEXT = (
    '{"n": 1.5, "s": "é\\n", "l": [1, 2], "p": [{"index": 3, "value": 2}]}\r\n\n{"s": null}\n'
    '{"n": -1e3, "x": {"y": [1, {}]}, "l": []}\n'
).encode()


@given(st.integers(0, 2**32))
@settings(max_examples=500)
def test_mutated_bytes_lose_no_line(seed):
    chance = random.Random(seed)
    data = bytearray(SEED_TEXT * chance.randint(1, 3))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data))
        data[at : at + chance.choice([0, 1, 1, 2])] = chance.choice(
            [b'"', b",", b"\r", b"\n", b"\xff", b"\0", b"{", b"}", b"}{", b"1", bytes([chance.randrange(256)])]
        )
    data = bytes(data) + b"\n"
    rows, lines, bad = read_records(data)  # which accounts for every line
    # Each line on its own fares as it does among the others.
    for line, raw in enumerate(data.split(b"\n")[:-1]):
        alone, _, problem = read_records(raw + b"\n")
        assert alone == ([rows[lines.index(line)]] if line in lines else [])
        assert problem == ({0: bad[line]} if line in bad else {})


def test_names():
    assert names_of(b'\n \r\n{"b": 1, "a": {"c": 2}}\n{"d": 1}\n') == ["b", "a"]
    assert names_of(b"   {}\n") == []


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "there is no object in the first lines; write one JSON object a line"),
        (b"[1]\n", "the first line is a list, not a JSON object; write one object a line"),
        (b'{"a":\n1}\n', "the first object cannot be read"),
        (
            b'{"\xff": 1}\n',
            "the first object is not UTF-8 text; " + TO_UTF8,
        ),
        (b'{"a": ' + b"[" * 100_000 + b"\n", "the first object cannot be read"),
    ],
)
def test_bad_names(head, message):
    with pytest.raises(InputError, match=message):
        names_of(head)
