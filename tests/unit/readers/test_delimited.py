"""Delimited text: against Python's csv module, and every kind of bad row with its line and advice."""

import contextlib
import csv
import io
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.compiled.parse.lines import PADDING
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import delimited
from ooc_pegasos.readers.base import TO_UTF8
from ooc_pegasos.readers.delimited import batch_of, names_of

OPEN = "a quote is still open where the line ends; " + delimited._OPEN_ADVICE
RETURN = "a carriage return within the line; end lines with a line feed"
KINDS = {"a": "number", "b": "string"}


def read_batch(data, names=("a", "b"), kinds=KINDS, delimiter=",", skip_first=False, most=1000):
    """The batch as a list of rows, and the rest; checked to account for every line. The buffer ends in rubbish."""
    data = data.encode() if isinstance(data, str) else data
    text = np.frombuffer(data + b'"rubbish', np.uint8).copy()
    before = text.copy()
    batch, lines, line_count, described, bad = batch_of(
        text, len(data), list(names), dict(kinds), delimiter, skip_first, most
    )
    assert np.array_equal(text, before)
    text[:] = 0  # what was read does not depend on it
    batch.validate(full=True)
    strings = pa.dictionary(pa.int32(), pa.string())
    assert batch.schema == pa.schema([(k, pa.float64() if v == "number" else strings) for k, v in kinds.items()])
    assert line_count == data.count(b"\n")
    blank = sum(line in (b"", b"\r") for line in data.split(b"\n")[int(skip_first) : -1])
    assert batch.num_rows == len(lines) == line_count - blank - bad - skip_first
    assert len(described) == min(bad, most)
    every = [*lines.tolist(), *(row.line for row in described)]
    assert len(set(every)) == len(every)
    assert all(np.diff(lines) > 0)
    assert [row.line for row in described] == sorted(row.line for row in described)
    assert all("\n" not in row.problem and "; " in row.problem for row in described)
    rows = list(zip(*(batch.column(name).to_pylist() for name in kinds), strict=True))
    return rows, lines.tolist(), {row.line: row.problem for row in described}


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**30), 10**30))
WORDS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=8),
    st.text(st.sampled_from('",;\t |xé'), max_size=6),
)


def cell_text(value, delimiter, quoted):
    if value is None:
        return ""
    word = value if isinstance(value, str) else repr(value)
    if quoted or word == "" or '"' in word or delimiter in word:
        return '"' + word.replace('"', '""') + '"'
    return word


@st.composite
def tables(draw):
    """(text, what csv reads, kinds, delimiter, lines of the rows)."""
    delimiter = draw(st.sampled_from([",", "\t", ";", "|", "^", " "]))
    kinds = draw(st.lists(st.sampled_from(["number", "string"]), min_size=2, max_size=5))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines, rows, numbers = [], [], []
    for _ in range(draw(st.integers(0, 8))):
        lines += [""] * draw(st.sampled_from([0, 0, 0, 1, 2]))
        row = [draw(NUMBERS if kind == "number" else WORDS) for kind in kinds]
        numbers.append(len(lines))
        rows.append(row)
        lines.append(delimiter.join(cell_text(value, delimiter, draw(st.booleans())) for value in row))
    return "".join(line + end for line in lines), rows, kinds, delimiter, numbers


@given(tables(), st.data())
@settings(max_examples=200)
def test_like_the_csv_module(table, data):
    text, rows, kinds, delimiter, numbers = table
    names = [f"c{place}" for place in range(len(kinds))]
    wanted = data.draw(st.lists(st.sampled_from(range(len(kinds))), min_size=1, unique=True))
    expected = [tuple(float(r[p]) if isinstance(r[p], int) else r[p] for p in wanted) for r in rows]
    found, lines, bad = read_batch(text, names, {names[p]: kinds[p] for p in wanted}, delimiter)
    assert (found, lines, bad) == (expected, numbers, {})
    by_csv = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    assert [[cell or "" for cell in row] for row in by_csv] == [
        ["" if value is None else value if isinstance(value, str) else repr(value) for value in row] for row in rows
    ]
    # With bad rows around them the same rows are found, though on another way.
    worse = f"1{delimiter}\n" * (len(kinds) > 2) + '"\n' + text + '"'
    found, lines, bad = read_batch(worse + "\n", names, {names[p]: kinds[p] for p in wanted}, delimiter)
    shift = 1 + (len(kinds) > 2)
    assert (found, lines) == (expected, [number + shift for number in numbers])
    assert list(bad) == [*range(shift), text.count("\n") + shift]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("12345678901234567890123", 12345678901234567890123.0),
        ("1e5", 1e5),
        ("-1E+05", -1e5),
        ("2.5e-3", 2.5e-3),
        ("1e-999", 0.0),
        ("+7", 7.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0", -0.0),
        ("007", 7.0),
        (" 1", 1.0),
        ("1 \t", 1.0),
        ('"3"', 3.0),
        ('" 3 "', 3.0),
        ('"3"4', 34.0),
        ("", None),
        ("0.1234567890123456789012345", 0.1234567890123456789012345),
    ],
)
def test_spellings_of_numbers(word, value):
    assert read_batch(f"{word},x\n") == ([(value, "x")], [0], {})
    rows, lines, _ = read_batch(f'{word},x\n"\n')
    assert (rows, lines) == ([(value, "x")], [0])
    assert value is None or math.copysign(1, rows[0][0]) == math.copysign(1, value)


NO_NUMBERS = [
    "abc",
    "0x10",
    "1_000",
    "1e",
    "e5",
    ".",
    "-",
    "+-1",
    "--1",
    "1 2",
    "1,5",
    "\u0661",
    "a\0",
    "true",
    " ",
    "NA",
]


@pytest.mark.parametrize("word", [*NO_NUMBERS, "null", "NULL", "None", "N/A", "#N/A", "-", "1d5"])
def test_what_is_no_number(word):
    rows, lines, bad = read_batch(f'1,x\n"{word}",y\n2,z\n')
    assert (rows, lines) == ([(1, "x"), (2, "z")], [0, 2])
    advice = "correct it, or give the column by {categorical=a}"
    assert bad == {1: f"the value {word!r} in column 'a' is not a number; {advice}"}


@pytest.mark.parametrize("word", ["NaN", "nan", "inf", "-Infinity", "INF", "1e999", "-1e400", "9" * 400, "nan(1)"])
def test_what_is_not_finite(word):
    rows, lines, bad = read_batch(f"1,x\n{word},y\n2,z\n")
    assert (rows, lines) == ([(1, "x"), (2, "z")], [0, 2])
    advice = "correct it, or give the column by {categorical=a}"
    assert bad == {1: f"the value {word[:40]!r} in column 'a' is not a finite number; {advice}"}


@given(st.text(st.sampled_from('01.+-eE naif\t"x'), max_size=6))
@settings(max_examples=400)
def test_both_parsers_accept_the_same_numbers(word):
    rows, _, bad = read_batch(f"{word},x\n")
    again, _, worse = read_batch(f'{word},x\n"\n')
    assert rows == again
    assert worse == {**bad, 1: OPEN}


def test_nulls_are_empty_cells_without_quotes_and_nothing_else():
    text = '1,NA\n2,\n3,""\n4,null\n5,nan\n6, \n,""\n'
    expected = [(1, "NA"), (2, None), (3, ""), (4, "null"), (5, "nan"), (6, " "), (None, "")]
    assert read_batch(text)[0] == expected
    assert read_batch(text + '"\n')[0] == expected
    problem = (
        "quotes with nothing between them in column 'a' are not a number; leave the quotes out, "
        "or give the column by {categorical=a}"
    )
    assert read_batch('1,x\n"",y\n')[2] == {1: problem}


def test_ragged_rows():
    rows, lines, bad = read_batch('1,x\n\n2,y,z\n3\n4,u\n5,"a,b"\n6,a,b,\xe9,\n')
    assert (rows, lines) == ([(1, "x"), (4, "u"), (5, "a,b")], [0, 4, 5])
    assert bad == {
        2: "3 cells instead of 2; quote cells that hold the delimiter",
        3: "1 cell instead of 2; quote cells that hold the delimiter",
        6: "5 cells instead of 2; quote cells that hold the delimiter",
    }


def test_ragged_rows_that_are_not_text_are_still_described(capfd):
    assert read_batch(b"1,x\n2,\xff,\xff\n")[2] == {1: "3 cells instead of 2; quote cells that hold the delimiter"}
    assert capfd.readouterr().err == ""


def test_open_quotes_affect_no_other_row():
    for text, wrong in [
        ('1,"x\n2,y\n3,z"\n4,u\n', [0]),
        ('1,"x\n2,y\n3,z\n4,u\n', [0]),
        ('1,x\n2,y\n3,z\n4,"u\n', [3]),
        ('1,x\n2,"y""\n3,z\n4,"u"\n', [1]),
        ('1,x\n2,"y\n3,"z\n4,u\n', [1, 2]),
        ('1,x\n2,"y\n3,"z"\n4,u""\n', [1]),
        ('1,"x\n"2,y\n3,z\n4,u\n', [0, 1]),
    ]:
        rows, lines, bad = read_batch(text)
        assert bad == dict.fromkeys(wrong, OPEN)
        assert lines == [line for line in range(4) if line not in wrong]
        assert [row[0] for row in rows] == [line + 1 for line in lines]
    assert read_batch('1,"x\n\n\n')[2] == {0: OPEN}
    assert read_batch('1,"x\r\n\r\n')[2] == {0: OPEN}


def test_quotes_within_cells():
    expected = [(1, "xy"), (2, 'a"b"c'), (3, 'q"r'), (4, 'x"'), (5, 'a"b')]
    text = '1,"x"y\n2,a"b"c\n3,"q""r"\n4,x"\n5,"a"b'.replace('"a"b', 'a"b') + "\n"
    assert read_batch(text)[0] == expected
    assert read_batch(text + "1\n")[0] == expected


def test_line_ends():
    expected = [(1, "x"), (2, None), (3, "y")]
    assert read_batch('1,x\r\n2,\r\n\r\n3,"y"\r\n')[:2] == (expected, [0, 1, 3])
    assert read_batch('1,x\r\n2,\n\r\n\n3,"y"\r\n')[:2] == (expected, [0, 1, 4])
    rows, lines, bad = read_batch('1,x\n2,y\r3,z\n4,"u\rv"\n\n5,w\n6,w\r\r\n')
    assert (rows, lines) == ([(1, "x"), (5, "w")], [0, 4])
    assert bad == {1: RETURN, 2: RETURN, 5: RETURN}


def test_not_utf8_counts_where_it_is_read():
    data = b"1,x,\xff\n2,\xff,z\n3,\xc3,\xa9\n\xff,x,y\n4,\xc3\xa9,y\n"
    rows, lines, bad = read_batch(data, ["a", "b", "c"], KINDS)
    assert (rows, lines) == ([(1, "x"), (4, "é")], [0, 4])
    assert bad == {
        1: r"the value b'\xff' in column 'b' is not UTF-8 text; " + TO_UTF8,
        2: r"the value b'\xc3' in column 'b' is not UTF-8 text; " + TO_UTF8,
        3: r"the value '\\xff' in column 'a' is not a number; correct it, or give the column by {categorical=a}",
    }
    assert len(read_batch(b"1,\xff\n" * 500 + b"2,x\n")[2]) == 500


@given(
    st.lists(st.binary(max_size=5) | st.sampled_from([b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]), max_size=9)
)
@settings(max_examples=200)
def test_what_is_utf8(cells):
    good = {}
    for line, cell in enumerate(cells):
        cell = cell.translate(None, b'\r\n,"')
        cells[line] = b"1," + cell + b"\n"
        with contextlib.suppress(UnicodeDecodeError):
            good[line] = (1, cell.decode() or None)
    rows, lines, bad = read_batch(b"".join(cells))
    assert (dict(zip(lines, rows, strict=True)), [*bad]) == (good, [n for n in range(len(cells)) if n not in good])


def test_blank_and_empty_blocks():
    for data, skip in [("", False), ("\n\n\n", False), ("\r\n\r\n", False), ("a,b\n", True), ("a,b\n\n\r\n", True)]:
        assert read_batch(data, skip_first=skip) == ([], [], {})
    assert read_batch("\n\n", ["a"], {"a": "number"}) == ([], [], {})
    assert read_batch("x\n" * 3, ["a"], {"a": "number"})[:2] == ([], [])


def test_one_column():
    assert read_batch("1\n\n 2\n\n", ["a"], {"a": "number"}) == ([(1,), (2,)], [0, 2], {})
    assert read_batch('x\n\n""\n \n', ["b"], {"b": "string"}) == ([("x",), ("",), (" ",)], [0, 2, 3], {})


def test_the_first_line_is_skipped_and_counted():
    assert read_batch("a,b\n1,x\n", skip_first=True) == ([(1, "x")], [1], {})
    assert list(read_batch("a,b\n1,x\nz,x\n", skip_first=True)[2]) == [2]


def test_columns_that_are_not_wanted_may_hold_anything():
    assert read_batch(b"1,\xff,x\n2,abc,y\n", ["a", "c", "b"], {"b": "string", "a": "number"})[0] == [
        ("x", 1),
        ("y", 2),
    ]


def test_the_first_problems_are_described_and_all_are_counted():
    text = np.frombuffer(b"x,y\n" * 10 + b"1,z\n", np.uint8)
    batch, lines, _, described, bad = batch_of(text, len(text), ["a", "b"], KINDS, ",", False, 3)
    assert (batch.num_rows, lines.tolist(), [row.line for row in described], bad) == (1, [10], [0, 1, 2], 10)


def test_a_mark_that_begins_a_block_is_not_removed():
    assert read_batch("\ufeffx,1\n", kinds={"a": "string", "b": "number"})[0] == [("\ufeffx", 1)]
    assert list(read_batch("\ufeff1,x\n2,y\n")[2]) == [0]


def test_a_large_block_is_one_batch():
    count = 1_200_000
    text = b"1,abcdefgh\n" * count
    array = np.frombuffer(text, np.uint8)
    batch, lines, line_count, _, _ = batch_of(array, len(array), ["a", "b"], KINDS, ",", False, 1)
    assert batch.num_rows == line_count == count
    assert np.array_equal(lines, np.arange(count))
    long = "x" * 5_000_000
    assert read_batch(f'1,"{long}"\n2,y\n')[0] == [(1, long), (2, "y")]
    assert read_batch(f"1,{long}\n2\n")[0] == [(1, long)]


def test_words_are_coded_like_arrow():
    """Words of any length, alike in their first or last bytes, among them words of the length of a key and longer."""
    rng = random.Random(5)
    stems = ["", "a", "b", "é", "0123456", "01234567", "01234568", "x" * 31, "y" * 31]
    words = [rng.choice(stems) + rng.choice(stems) + rng.choice("abcdefgh") * rng.randrange(3) for _ in range(4000)]
    words += [f"{number:08x}" for number in range(3000)] * 2 + [f"{number:x}" * 9 for number in range(3000)]
    text = np.frombuffer("".join(f"{word};1;{word[:2]}\n" for word in words).encode() + bytes(PADDING), np.uint8).copy()
    reader = delimited.CellReader(["w", "n", "s"], {"s": "string", "n": "number", "w": "string"}, ";")
    batch, lines, line_count = reader.batch(text, len(text) - PADDING, False)
    assert batch.schema.names == ["s", "n", "w"]
    assert (lines.tolist(), line_count) == (list(range(len(words))), len(words))
    for name, column in (("w", words), ("s", [word[:2] for word in words])):
        expected = pa.array([word or None for word in column]).dictionary_encode()
        assert batch.column(name).equals(expected)
    assert batch.column("n").equals(pa.array([1.0] * len(words)))


@pytest.mark.parametrize(
    "line", ['a,b"', 'a,"b""c"', 'a,"b"c', 'a,"b', "a,b\0", "a,b\rc", "a,b,c", "a", b"a,\xff", b"a,\xed\xa0\x80"]
)
def test_unusual_lines_are_left_to_arrow(line):
    text = b"x,y\n" * 20 + (line if isinstance(line, bytes) else line.encode()) + b"\n"
    padded = np.frombuffer(text + bytes(PADDING), np.uint8).copy()
    reader = delimited.CellReader(["a", "b"], {"a": "string", "b": "string"}, ",")
    assert reader.batch(padded, len(text), False) is None
    assert reader.batch(padded, 20 * 4, False)[0].num_rows == 20


def test_a_good_block_is_parsed_once(monkeypatch):
    calls = []
    real = delimited.read_csv
    monkeypatch.setattr(delimited, "read_csv", lambda *args: calls.append(1) or real(*args))
    assert len(read_batch('1,"x,y"\r\n\r\n,é\r\n')[0]) == 2
    assert calls == [1]


SEED_TEXT = 'a,b,c\n1,"x, y",2\r\n\n3.5,é""z,\n,"q""r",1e3\n4,"",-7\n'.encode()


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=400)
def test_mutated_bytes_lose_no_line(seed):
    chance = random.Random(seed)
    data = bytearray(SEED_TEXT * chance.randint(1, 3))
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(data))
        data[at : at + chance.choice([0, 1, 1, 2])] = chance.choice(
            [b'"', b",", b"\r", b"\n", b"\xff", b"\0", b"\xc3", b" ", bytes([chance.randrange(256)])]
        )
    data = bytes(data) + b"\n"
    kinds = {"a": "number", "b": "string", "c": "number"}
    rows, lines, bad = read_batch(data, ["a", "b", "c"], kinds)  # which accounts for every line
    # Each line on its own fares as it does among the others.
    for line, raw in enumerate(data.split(b"\n")[:-1]):
        alone, _, problem = read_batch(raw + b"\n", ["a", "b", "c"], kinds)
        assert alone == ([rows[lines.index(line)]] if line in lines else [])
        assert problem == ({0: bad[line]} if line in bad else {})


def test_names():
    assert names_of(b'a,"b ""c"", d",e\r\n1,2,3\n', ",", True) == ["a", 'b "c", d', "e"]
    assert names_of('"é"\tb\n'.encode(), "\t", True) == ["é", "b"]
    assert names_of(b'x,"y,z",\n', ",", False) == ["0", "1", "2"]
    assert names_of(b"x", ",", False) == ["0"]
    assert names_of(b",a,\n", ",", True) == ["Unnamed: 0", "a", "Unnamed: 2"]
    assert names_of(b"x" * 200_000 + b",y", ",", False) == ["0", "1"]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"a,b,a\n", "two columns have the name 'a'; rename one, or use no_header"),
        (b"\n1,2\n", "the first line is empty; begin the file with the names of its columns, or its first row"),
        (b"", "the first line is empty; begin the file with the names of its columns, or its first row"),
        (
            b"a,\xff\n",
            "the first line is not UTF-8 text; " + TO_UTF8,
        ),
        (b'a,"b\nc"\n', "the first line ends within a quote; close it, or convert with multiline"),
        (b"a\rb\n", "a carriage return within the first line; end lines with a line feed"),
    ],
)
def test_bad_names(head, message):
    with pytest.raises(InputError, match=message):
        names_of(head, ",", True)


# --- line breaks in quotes ------------------------------------------------------------------------


def read_multiline(data, kinds=KINDS, skip_first=False):
    data = data.encode() if isinstance(data, str) else data
    text = np.frombuffer(data, np.uint8).copy()
    found = batch_of(text, len(data), list(kinds), dict(kinds), ",", skip_first, 1000, multiline=True)
    batch, lines, line_count, described, bad = found
    assert (line_count, len(described)) == (data.count(b"\n"), bad)
    batch.validate(full=True)
    rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return rows, lines.tolist(), {row.line: row.problem for row in described}


def test_line_breaks_in_quotes():
    text = '1,"two\nlines"\n2,"a ""quote""\n\n, and\r\nmore"\n\n3,x\r\n4,"\n"\n'
    expected = [(1, "two\nlines"), (2, 'a "quote"\n\n, and\r\nmore'), (3, "x"), (4, "\n")]
    assert read_multiline(text) == (expected, [0, 2, 7, 8], {})
    rows, lines, bad = read_multiline("a,b\n" + text + '5,"u\nv",w\nx,"y\nz"\n6,good\n', skip_first=True)
    assert (rows, lines) == ([*expected, (6, "good")], [1, 3, 8, 9, 15])
    assert bad == {
        11: "3 cells instead of 2, over 2 lines; quote cells that hold the delimiter",
        13: "the value 'x' in column 'a' is not a number; correct it, or give the column by {categorical=a}",
    }
    assert read_multiline('"a\nname",b\n1,"x\ny"\n', skip_first=True)[:2] == ([(1, "x\ny")], [2])
    assert names_of(b'"a\nname",b\n1,2\n', ",", True, multiline=True) == ["a\nname", "b"]


def test_a_quote_that_is_never_closed():
    rows, lines, bad = read_multiline('1,x\n2,"y\n3,z\n')
    assert (rows, lines, bad) == ([(1, "x")], [0], {1: "a quote that is never closed, over 2 lines; close it"})
    rows, lines, bad = read_multiline('1,"x\ny\rz"\n2,y\rz\n3,u\n')
    assert (rows, lines, bad) == ([(1, "x\ny\rz"), (3, "u")], [0, 3], {2: RETURN})


@given(
    st.lists(st.tuples(st.integers(0, 99), st.text(st.sampled_from('",\n\r x\u00e9'), max_size=8)), max_size=8),
    st.lists(st.integers(0, 7), max_size=2),
)
@settings(max_examples=400)
def test_line_breaks_like_the_csv_module(rows, spoiled):
    sink, expected, wrong, line = io.StringIO(), [], [], 0
    for number, (a, b) in enumerate(rows):
        cells = [a, b, "more"] if number in spoiled else [a, b]
        before = sink.tell()
        csv.writer(sink, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerow(cells)
        if number in spoiled:
            wrong.append(line)
        else:
            expected.append((line, (float(a), b)))
        line += sink.getvalue()[before:].count("\n")
    found, lines, bad = read_multiline(sink.getvalue())
    assert list(zip(lines, found, strict=True)) == expected
    assert list(bad) == wrong


@given(st.integers(0, 2**32))
@settings(max_examples=400)
def test_mutated_bytes_among_line_breaks_lose_nothing(seed):
    """What is good and where each row begins is what Python's csv module says."""
    chance = random.Random(seed)
    data = bytearray('1,"x, y\n z"\r\n\n3.5,é""z\n,"q""r\n"\n4,""\n'.encode() * chance.randint(1, 3))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(data))
        data[at : at + chance.choice([0, 1, 1, 2])] = chance.choice([b'"', b",", b"\n", b" ", b"x", b"1"])
    text = data.decode(errors="replace") + "\n"
    if "\r" in text.replace("\r\n", ""):
        return
    kinds = {"a": "string", "b": "string"}
    rows, lines, bad = read_multiline(text, kinds)
    expected, line, pending = {}, 0, []
    for piece in text.split("\n")[:-1]:
        pending.append(piece + "\n")
        cells = next(csv.reader(pending))
        joined = "".join(pending)
        if cells and _is_open_at_end(joined):
            continue
        if len(cells) == 2:
            expected[line] = tuple(cells)
        elif cells:
            assert line in bad
        line += len(pending)
        pending = []
    if pending:
        assert "never closed" in bad[line] or "still open" in bad[line]
    plain = {at: tuple("" if cell is None else cell for cell in row) for at, row in zip(lines, rows, strict=True)}
    assert plain == expected


def _is_open_at_end(record):
    """Whether a quote that opened a cell has not been closed, character by character."""
    at, start, quoted = 0, True, False
    while at < len(record):
        letter = record[at]
        if quoted:
            if letter == '"' and record[at + 1 : at + 2] == '"':
                at += 1
            elif letter == '"':
                quoted = False
        elif start and letter == '"':
            quoted = True
        start = not quoted and letter in ",\n"
        at += 1
    return quoted


@pytest.mark.parametrize(("delimiter", "fits"), [(";", True), (",", False), ("\t", False)])
def test_another_delimiter_than_the_stores_is_refused(tmp_path, delimiter, fits):
    path, more, store = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "a.store"
    path.write_text("y;a\n1;2\n0;3\n")
    more.write_text("y;a\n1;4\n")
    convert([str(path)], store, ConvertConfig(label="y", delimiter=";", values="float32"))
    with contextlib.ExitStack() as stack:
        if not fits:
            told = r"delimiter=.* the store was made with ;; leave it out"
            stack.enter_context(pytest.raises(UsageError, match=told))
        convert([str(more)], store, ConvertConfig(delimiter=delimiter), existing=Existing(append=True))
    assert Store.open(store).rows == 2 + fits
