"""Very long lines and very many columns: read within the memory that may be used, or refused with their size."""

import bz2
import gzip
import io
import lzma
import random
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.compiled.parse.lines import PADDING
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers import columns_plan, delimited
from ooc_pegasos.util.thread_map import ordered_map

MB = 10**6
LIBRARIES = 290 * MB
"""Peak memory of a conversion of a few rows of a table, at most."""
_MEASURED = """
import sys
import ooc_pegasos.cli.start as command
try:
    command.main()
except SystemExit as end:
    status = open("/proc/self/status").read()
    print(end.code or 0, int(status.split("VmHWM:")[1].split()[0]) << 10)
"""


def converted(folder, *words):
    """Run `oocpeg convert`, return its exit code, peak memory and messages."""
    command = [sys.executable, "-c", _MEASURED, "convert", *map(str, words), "-o", "s", "--quiet"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    code, peak = map(int, done.stdout.split())
    return code, peak, done.stderr


# --- long lines ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_long_line_in_a_compressed_file(tmp_path):
    """A line of 300 MB, of which the file is a small part, is refused within the memory that may be used."""
    with gzip.open(tmp_path / "in.svm.gz", "wb", 1) as file:
        file.write(b"1 1:1\n-1 2:1\n1 1:")
        for _ in range(300):
            file.write(b"0" * MB)
        file.write(b"\n1 1:1\n")
    code, peak, said = converted(tmp_path, "in.svm.gz", "--memory", "64MB")
    sizes = "a line of 300 MB, which takes 2,400 MB of memory, and 67 MB may be used"
    assert code == 3
    assert said.startswith(f"error: in.svm.gz:3: {sizes}; give more, with --memory, or check that this is svmlight")
    assert peak < LIBRARIES + 67 * MB


_ROWS = {
    "in.svm": (b"", b"1 1:1\n", b"1 1:"),
    "in.vw": (b"", b"1 | a\n", b"1 | "),
    "in.csv": (b"label,x\n", b"1,2\n", b"1,"),
    "in.jsonl": (b"", b'{"label": 1, "x": 2}\n', b'{"label": 1, "x": 2'),
}


def rows_before(name, count):
    """The beginning of a file, up to the point where a long line goes on, and the number of that line."""
    head, row, begun = _ROWS[name]
    return head + count * row + begun, len(head.splitlines()) + count + 1


@pytest.mark.parametrize("count", [0, 30_000])
@pytest.mark.parametrize("name", _ROWS)
def test_location_of_a_long_line(tmp_path, name, count):
    """Whatever the format, the message has the line, its size and the memory needed, also in a second file."""
    before, line = rows_before(name, count)
    with open(tmp_path / name, "wb") as file:
        file.write(before)
        file.write(b"0" * (20 * MB))
        file.write(b"\n")
    other = tmp_path / f"first-{name}"
    other.write_bytes(_ROWS[name][0] + _ROWS[name][1] * 3)
    config = ConvertConfig(memory=64 << 20, numeric=("x",) if name in ("in.csv", "in.jsonl") else ())
    for inputs in ([tmp_path / name], [other, tmp_path / name]):
        with pytest.raises(InputError) as caught:
            convert([str(path) for path in inputs], tmp_path / "s", config, existing=Existing(force=True))
        each = 8 if name == "in.svm" else 16
        begin = (
            f"{tmp_path / name}:{line}: a line of 20 MB, which takes {20 * each} MB of memory, and 67 MB may be used"
        )
        assert str(caught.value).startswith(begin)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_long_line_in_every_compression(tmp_path, ending):
    """Streams of all kinds are read on to the end of the line."""
    content = b"1 1:1\n1 1:" + b"0" * (20 * MB) + b"\n"
    packed = {
        ".gz": gzip.compress,
        ".bz2": lambda text: bz2.compress(text, 1),
        ".xz": lambda text: lzma.compress(text, preset=0),
        ".zst": lambda text: pa.compress(text, "zstd", asbytes=True),
    }
    (tmp_path / f"in.svm{ending}").write_bytes(packed[ending](content))
    with pytest.raises(InputError, match=r"in\.svm\.\w+:2: a line of 20 MB, which takes 160 MB of memory"):
        convert([str(tmp_path / f"in.svm{ending}")], tmp_path / "s", ConvertConfig(memory=64 << 20))


@pytest.mark.slow
def test_endless_line(tmp_path):
    """A line that no memory is enough for is not read to its end."""
    with open(tmp_path / "in.svm", "wb") as file:
        file.truncate(50 * 10**9)  # a hole, which takes no disk
    began = time.monotonic()
    with pytest.raises(InputError, match=r"in.svm:1: a line of more than 1,07\d MB, .* used; check that"):
        convert([str(tmp_path / "in.svm")], tmp_path / "s", ConvertConfig(memory=64 << 20))
    assert time.monotonic() - began < 60


def test_long_document(tmp_path):
    """A text that is a file of its own is refused by its size alone."""
    for name in ("a", "b"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "1.txt").write_text("some words")
    with open(tmp_path / "texts/b/2.txt", "wb") as file:
        file.truncate(30 * MB)
    with pytest.raises(InputError, match=r"b/2.txt: a document of 30 MB takes 480 MB of memory, and 67 MB may be used"):
        convert([str(tmp_path / "texts")], tmp_path / "s", ConvertConfig(memory=64 << 20))


def test_more_memory_takes_a_long_line(tmp_path):
    """A conversion that was refused goes on with more memory, to the rows that the file has."""
    long = " ".join(f"{index}:1" for index in range(1, 700_001))
    (tmp_path / "in.svm").write_text("1 1:2\n-1 2:3\n" * 9000 + f"1 {long}\n-1 5:1\n")
    options = {"shuffle": False, "classes": ("-1", "1")}
    with pytest.raises(InputError, match=r"in.svm:18001: a line of 6 MB, which takes 50 MB of memory, and 34 MB"):
        convert([str(tmp_path / "in.svm")], tmp_path / "s", ConvertConfig(memory=32 << 20, **options))
    config = ConvertConfig(memory=128 << 20, **options)
    store = convert([str(tmp_path / "in.svm")], tmp_path / "s", config, existing=Existing(resume=True))
    assert (store.rows, store.manifest.nonzeros) == (18_002, 18_000 + 700_000 + 1)


# --- many columns -------------------------------------------------------------------------------


def table(columns, rows, seed):
    """A matrix of small numbers and labels, and both as CSV."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-9, 10, (rows, columns)) * rng.integers(0, 2, (rows, columns)) / 4
    labels = np.arange(rows) % 2
    text = "label," + ",".join(f"c{j}" for j in range(columns)) + "\n"
    text += "".join(
        f"{label}," + ",".join(map(repr, row)) + "\n" for label, row in zip(labels, matrix.tolist(), strict=True)
    )
    return matrix, labels, text


@pytest.mark.slow
def test_many_columns(tmp_path):
    """20,000 columns take little memory each, and their numbers are those that were written."""
    matrix, _labels, text = table(20_000, 6, 1)
    (tmp_path / "in.csv").write_text(text)
    for scaling in (["--standardize"], ["--no-standardize"]):
        code, peak, said = converted(tmp_path, "in.csv", "--memory", "100MB", "--no-shuffle", "--force", *scaling)
        assert (code, said) == (0, "")
        assert peak < LIBRARIES + 100 * MB
    assert np.array_equal(Store.open(tmp_path / "s").to_scipy()[0].toarray(), matrix)


@pytest.mark.slow
def test_too_many_columns(tmp_path):
    """A header that cannot fit is refused by the number of its columns, before it is taken apart."""
    with open(tmp_path / "in.csv", "w") as file:
        file.write("label," + ",".join(f"c{j}" for j in range(1_999_999)) + "\n1" + ",0" * 1_999_999 + "\n")
    code, peak, said = converted(tmp_path, "in.csv")
    assert code == 3
    assert said.startswith("error: in.csv: 2,000,000 columns take 5,000 MB of memory, and 1,074 MB may be used;")
    assert peak < LIBRARIES + 200 * MB


@pytest.mark.parametrize(
    "form", ["csv", *(pytest.param(form, marks=pytest.mark.slow) for form in ("jsonl", "parquet", "arrow"))]
)
def test_too_many_columns_for_arrow(tmp_path, form):
    """Columns that only Arrow can read are refused by what it takes for each; if fewer are named they are read."""
    names = ["label", *(f"c{j}" for j in range(11_999))]
    path = tmp_path / f"in.{form}"
    rows = [[1, *(["a"] * 11_999)], [0, *(["b"] * 11_999)]]
    if form == "csv":
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in [names, *rows]))
    elif form == "jsonl":
        path.write_text("".join(str(dict(zip(names, row, strict=True))).replace("'", '"') + "\n" for row in rows))
    else:
        made = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names)
        if form == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(made, path)
        else:
            with pa.ipc.new_file(path, made.schema) as file:
                file.write_table(made)
    memory = 40 << 20
    each = columns_plan.MEMORY_OF_COLUMN[{"csv": "delimited", "jsonl": "jsonlines"}.get(form, form)]
    said = rf"in.{form}: 12,000 columns take {12_000 * each / 1e6:.0f} MB of memory, and 42 MB may be used"
    with pytest.raises(InputError, match=said):
        convert([str(path)], tmp_path / "s", ConvertConfig(memory=memory))
    if form != "jsonl":  # all its keys are read
        assert convert([str(path)], tmp_path / "s", ConvertConfig(memory=memory, categorical=("c1", "c2"))).rows == 2


@pytest.mark.slow
def test_large_footer(tmp_path):
    """The description of a Parquet file is not read if it is larger than memory."""
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"c{j}": [1] for j in range(30_000)}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"in.parquet: its columns and row groups are described in \d MB, which take"):
        convert([str(tmp_path / "in.parquet")], tmp_path / "s", ConvertConfig(memory=32 << 20))


def test_types_of_wide_tables(tmp_path):
    """A column is numeric where all cells that are not empty are numbers, though the first block has names alone."""
    cells = ["1", "-2.5", "", "1e3", ".5", "nan", "5."]
    words = ["x", "+5", "1,", "0x10", "true", "2020-01-01", "5 5"]
    long = "n" * 600
    names = ["label", *(f"{long}{j}" for j in range(2_500))]
    row = ["1", *(cells[j % 7] for j in range(2_500))]
    other = ["0", *("" if j % 2 else "7" for j in range(2_500))]
    for at, word in enumerate(words):
        other[100 + 7 * at] = word.replace(",", "")
    other[100 + 14] = "1 x"
    (tmp_path / "in.csv").write_text("\n".join(map(",".join, [names, row, other])) + "\n")
    kinds = list(columns_plan.schema_of(str(tmp_path / "in.csv")).values())
    no_numbers = {100 + 7 * at for at in range(7)}
    for at in range(1, 2_501):
        is_number = at not in no_numbers and any((row[at], other[at]))
        assert pa.types.is_floating(kinds[at]) == is_number, (at, row[at], other[at])


_CELLS = ["0", "1", "-3", "2.5", "1e3", "1E-7", ".5", "5.", "", "", "12345678901234567890", "0.1", "123456789.25", "-0"]
_ODD = ["+5", " 5", "5 ", "nan", "inf", "x", '"5"', '"', "1e999", "5#", "-", "1\r2", "\0", "é", "5e", "0" * 50, "a b"]


def test_cells_are_those_of_arrow():
    """Text is read as Arrow reads it, and as Python does, or left to Arrow."""
    rng = random.Random(3)
    read = 0
    for case in range(1500):
        columns, odd = rng.randrange(1, 6), rng.random() < 0.3
        quoted = rng.choice([0, 0, 0.5, 1])
        names = [f"c{j}" for j in range(columns)]
        kinds = {name: rng.choice(["number", "number", "string"]) for name in names if rng.random() < 0.8}
        kinds = kinds or {"c0": "number"}
        delimiter, feed = rng.choice(",;\t|"), rng.choice(["\n", "\n", "\r\n"])
        rows = []
        for _ in range(rng.randrange(6)):
            cells = [rng.choice(_ODD if odd and rng.random() < 0.1 else _CELLS) for _ in names]
            cells = [f'"{cell}"' if cell and '"' not in cell and rng.random() < quoted else cell for cell in cells]
            rows.append(delimiter.join(cells + ["7"] * (odd and rng.random() < 0.05)))
        text = "".join(row + feed for row in rows)
        header = delimiter.join(names) + feed if case % 2 else ""
        content = np.frombuffer((header + text).encode() + b"\n" + bytes(PADDING), np.uint8).copy()
        length = len(content) - PADDING
        if not header and not rows:
            continue
        found = delimited.CellReader(names, kinds, delimiter).read(content, length, bool(header))
        batch, lines, line_count, _bad, bad_rows = delimited.batch_of(
            content, length, names, kinds, delimiter, bool(header), 9
        )
        if found is None:
            assert odd
            continue
        read += 1
        assert bad_rows == 0
        assert np.array_equal(found.lines, lines)
        assert found.line_count == line_count
        numbers = [name for name, kind in kinds.items() if kind == "number"]
        for place, name in enumerate(numbers):
            expected = batch.column(name).to_numpy(zero_copy_only=False)
            assert found.numbers[:, place].tobytes() == np.where(np.isnan(expected), np.nan, expected).tobytes()
        for name in kinds.keys() - set(numbers):
            assert found.words.column(name).to_pylist() == batch.column(name).to_pylist()
        body = io.StringIO(text, newline="\n").read().replace("\r\n", "\n").split("\n")
        cells = [row.split(delimiter) for row in body if row]
        python = [[float(row[names.index(name)].strip('"') or "nan") for name in numbers] for row in cells]
        assert np.array_equal(np.array(python).reshape(found.numbers.shape), found.numbers, equal_nan=True)
    assert read > 700


@pytest.mark.parametrize("options", [{}, {"log1p": True, "clip": 1.5}, {"nulls": "mark"}, {"standardize": True}])
def test_rows_do_not_depend_on_the_way_of_reading(tmp_path, options, monkeypatch):
    """A store of numbers read as cells has the bytes of one that Arrow has read."""
    rng = random.Random(7)
    rows = [",".join([str(i % 2), *(rng.choice(_CELLS) for _ in range(9))]) for i in range(500)]
    (tmp_path / "in.csv").write_text("label," + ",".join("abcdefghi") + "\n" + "\n".join(rows) + "\n")
    config = ConvertConfig(numeric=tuple("abcdefghi"), memory=32 << 20, **options)
    convert([str(tmp_path / "in.csv")], tmp_path / "cells", config)
    monkeypatch.setattr(delimited.CellReader, "read", lambda *_given: None)
    convert([str(tmp_path / "in.csv")], tmp_path / "arrow", config)
    left, right = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("cells", "arrow"))
    assert left == right


# --- work under way -----------------------------------------------------------------------------


def test_items_under_way_fit():
    """Of several items that are taken ahead the sizes add up to the room at most, and results keep their order."""
    under_way, most = set(), []

    def work(item):
        time.sleep(0.001)
        return item

    def items():
        for number, size in enumerate([1, 1, 9, 1, 1, 1, 20, 3, 3, 3, 3, 1]):
            under_way.add((number, size))
            yield number, size

    for number, item in enumerate(ordered_map(work, items(), 4, lambda item: item[1], 10)):
        assert item[0] == number
        most.append(sum(size for _number, size in under_way))
        under_way.discard(item)
    assert len(most) == 12
    # what was taken last is not under way yet while it waits for room
    assert max(most) <= 10 + 20


def test_error_of_items_comes_after_results():
    """What came before an error of the items is not lost."""

    def items():
        yield from range(3)
        raise InputError("no more")

    for threads in (1, 2, 8):
        found = []
        results = ordered_map(lambda item: item, items(), threads)
        with pytest.raises(InputError, match="no more"):
            found.extend(results)
        assert found == [0, 1, 2]
