"""A format that is defined here alone is in help and errors; it is detected, converted, appended and scored."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, convert, train
from ooc_pegasos.config import load_toml
from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.formats import FORMATS
from ooc_pegasos.readers import registry
from ooc_pegasos.readers.base import LARGEST_INDEX, BadRow, Format, ParsedBlock
from ooc_pegasos.readers.text_reader import TextReader
from ooc_pegasos.scoring.score import score
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.labels import key_of
from support.rows import random_rows, same_matrix, svmlight_text

ROOT = Path(__file__).resolve().parents[3]


class PairsFormat(Format):
    """Text: a line `label; index=value, index=value, ...` for each row, indices from 0 in increasing order."""

    name = "pairs"
    title = "text of pairs"
    suffixes = (".pairs",)
    options = frozenset({"characters"})  # for the sake of the messages
    is_text = True
    has_plain_indices = True

    def open(self, names, recipe, options):
        return PairsReader(names, options)


class PairsReader(TextReader):
    def __init__(self, names, options):
        super().__init__(names, options.block_size, options.memory, PairsFormat.title)
        self.options = options

    def parse(self, task, scratch):
        keys, names, indptr, indices, values, lines, numbers, bad = [], {}, [0], [], [], [], [], []
        text = task.text[: task.length].tobytes().decode().splitlines()
        for line, row in enumerate(text):
            try:
                label, _, rest = row.partition(";")
                pairs = [pair.split("=") for pair in rest.split(",") if pair.strip()]
                found = [int(index) for index, _value in pairs], [float(value) for _index, value in pairs]
                keys.append(key_of(label, self.options.text_labels) if self.options.with_labels else 0)
            except ValueError as error:
                bad.append(BadRow(line, f"{error}; write label; index=value, ..., or skip with {{on_bad_row=skip}}"))
                if self.options.stop_at_bad:
                    break
                continue
            names |= {keys[-1]: label} if self.options.text_labels else {}
            indices += found[0]
            values += found[1]
            indptr.append(len(indices))
            lines.append(line)
            numbers.append(len(lines) + len(bad) - 1)
        block = CsrBlock(
            np.array(indptr),
            np.array(indices, np.uint32),
            np.array(values, np.float32),
            np.array(keys, np.uint64).view(np.float64),
            LARGEST_INDEX + 1,
        )
        rows = np.array(lines, np.int64), np.array(numbers, np.uint32)
        return ParsedBlock(task, block, *rows, len(text), bad, len(bad), names, scratch)


@pytest.fixture
def pairs():
    registry.register(PairsFormat)
    yield
    registry.unregister("pairs")


def pairs_text(matrix, labels):
    lines = []
    for row, label in enumerate(labels):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        entries = zip(matrix.indices[part], matrix.data[part], strict=True)
        lines.append(f"{label};" + ",".join(f"{index}={float(value)!r}" for index, value in entries))
    return "\n".join(lines) + "\n"


def write_pairs(folder, rows=200, seed=1):
    """The same rows as pairs, by suffix and without, and as svmlight text."""
    matrix, labels = random_rows(rows, 30, seed, density=0.3)
    (folder / "in.pairs").write_text(pairs_text(matrix, labels))
    (folder / "in.txt").write_text(pairs_text(matrix, labels))
    (folder / "in.svm").write_text(svmlight_text(matrix, labels, base=0))
    return matrix, labels


@pytest.mark.usefixtures("pairs")
def test_a_registered_format_is_converted_and_appended(tmp_path):
    matrix, labels = write_pairs(tmp_path)
    config = ConvertConfig(shuffle=False, block_size=1000)
    stores = [
        convert([str(tmp_path / "in.pairs")], tmp_path / "by-suffix", config),
        convert([str(tmp_path / "in.txt")], tmp_path / "by-option", ConvertConfig(shuffle=False, format="pairs")),
        convert([str(tmp_path / "in.svm")], tmp_path / "svmlight", ConvertConfig(shuffle=False, index_base="0")),
    ]
    for store in stores:
        found, found_labels = store.to_scipy()
        assert same_matrix(found, matrix)
        assert np.array_equal(found_labels, labels)
    assert [store.manifest.recipe.reader for store in stores] == ["pairs", "pairs", "svmlight"]
    # indices are stored as written, so formats like this can be mixed
    for store, name in zip(stores, ("in.svm", "in.pairs", "in.pairs"), strict=True):
        assert convert([str(tmp_path / name)], store.path, existing=Existing(append=True)).rows == 400


@pytest.mark.usefixtures("pairs")
def test_labels_that_are_words_are_detected(tmp_path):
    (tmp_path / "in.pairs").write_text("spam;0=1\nham;1=2\n" * 5)
    assert convert([str(tmp_path / "in.pairs")], tmp_path / "store").manifest.labels.classes == ["ham", "spam"]


@pytest.mark.usefixtures("pairs")
def test_a_model_reads_raw_files_of_a_registered_format(tmp_path):
    matrix, labels = write_pairs(tmp_path)
    store = convert([str(tmp_path / "in.pairs")], tmp_path / "store")
    train(store, TrainConfig(lam=1e-2)).model.save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    expected = model.decision_function(matrix)
    for name in ("in.pairs", "in.txt", "in.svm"):
        blocks = list(score(model, str(tmp_path / name), 1, with_labels=True))
        assert np.allclose(np.concatenate([block.scores for block in blocks]), expected, rtol=1e-6)
        assert np.array_equal(np.concatenate([block.labels for block in blocks]), labels)


@pytest.mark.usefixtures("pairs")
def test_bad_rows_of_a_registered_format(tmp_path):
    (tmp_path / "in.pairs").write_text("1;0=1\n-1;1=x\n-1;2=2\n")
    with pytest.raises(InputError, match=r"in\.pairs:2: could not convert string .*'x'; .* with on_bad_row=skip$"):
        convert([str(tmp_path / "in.pairs")], tmp_path / "store")
    store = convert([str(tmp_path / "in.pairs")], tmp_path / "store", ConvertConfig(on_bad_row="skip"))
    assert store.rows == 2
    (rejected,) = map(json.loads, (store.path / "rejected.jsonl").read_text().splitlines())
    assert rejected["line"] == 2
    assert rejected["problem"].endswith("skip with --on-bad-row skip")


@pytest.mark.usefixtures("pairs")
def test_options_that_a_format_does_not_understand_are_refused_with_both_sides(tmp_path):
    write_pairs(tmp_path)
    source = str(tmp_path / "in.pairs")
    message = r"^hash_bits is for Vowpal Wabbit text, tables, folders of texts and lines of text, and .*"
    message += r"in\.pairs is read as pairs;"
    with pytest.raises(UsageError, match=message):
        convert([source], tmp_path / "store", ConvertConfig(hash_bits=9))
    with pytest.raises(
        UsageError, match=r"^characters is for .* and text of pairs, and .*in\.svm is read as svmlight;"
    ):
        convert([str(tmp_path / "in.svm")], tmp_path / "store", ConvertConfig(characters=True))
    convert([source], tmp_path / "store", ConvertConfig(characters=True))
    (tmp_path / "in.csv").write_text("label,a\n1,2\n0,3\n")
    with pytest.raises(InputError, match=r"in\.csv: read as table, but .*in\.pairs as pairs; .* with append$"):
        convert([source, str(tmp_path / "in.csv")], tmp_path / "other")
    table = convert([str(tmp_path / "in.csv")], tmp_path / "table")
    with pytest.raises(InputError, match="made of table, and these inputs are read as pairs"):
        convert([source], table.path, existing=Existing(append=True))
    model = train(table, TrainConfig(lam=1)).model
    with pytest.raises(InputError, match=r"in\.pairs: read as pairs, but the model was trained on data read as table"):
        list(score(model, source, 1, with_labels=False))


@pytest.mark.usefixtures("pairs")
def test_errors_list_the_registered_formats(tmp_path):
    listed = "format=xls is unknown; choose one of auto, svmlight, vw, table, arrays, folders, text-lines, pairs$"
    with pytest.raises(UsageError, match=listed):
        ConvertConfig(format="xls")
    (tmp_path / "job.toml").write_text('format = "xls"')
    with pytest.raises(UsageError, match=f"job.toml: {listed}"):
        load_toml(ConvertConfig, tmp_path / "job.toml")
    with pytest.raises(UsageError, match="format=pairs is registered already"):
        registry.register(PairsFormat)


def test_declarations_of_formats_that_cannot_be(pairs):
    unknown = type("Unknown", (PairsFormat,), {"name": "unknown", "options": frozenset({"colour"})})
    with pytest.raises(UsageError, match="format=unknown declares the option 'colour', which is not a field"):
        registry.register(unknown)
    assert "unknown" not in FORMATS


def test_the_command_line_lists_a_format_that_is_registered_before(tmp_path):
    write_pairs(tmp_path)
    code = """
import json, sys
import test_format_registry as own

own.registry.register(own.PairsFormat)
from ooc_pegasos.cli.main import main

for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        print(f"exit code {end.code}", flush=True)
"""
    commands = (
        "convert --help",
        "convert in.txt -o s --format pairs",
        "train s -o m --lambda 0.01",
        "evaluate m in.pairs --json",
        "predict m in.pairs -o predicted.csv",
        "convert in.txt -o t --format pear",
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])
    words = [sys.executable, "-c", code, json.dumps([line.split() for line in commands])]
    env = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    outputs = re.split(r"exit code (\w+)\n", done.stdout)
    assert outputs[1::2] == ["0", "0", "0", "0", "0", "2"], (done.stdout, done.stderr)
    assert "auto, svmlight, vw, table, arrays, folders, text-lines, pairs" in " ".join(outputs[0].split())
    assert json.loads(outputs[6].splitlines()[-1])["rows"] == 200
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 201
    expected = (
        "error: --format pear is unknown; choose one of auto, svmlight, vw, table, arrays, folders, text-lines, pairs\n"
    )
    assert done.stderr.endswith(expected)


def test_a_store_of_a_format_that_is_not_registered(tmp_path):
    write_pairs(tmp_path)
    registry.register(PairsFormat)
    try:
        convert([str(tmp_path / "in.pairs")], tmp_path / "store")
    finally:
        registry.unregister("pairs")
    with pytest.raises(CorruptFileError, match="the format 'pairs', which is not registered"):
        Store.open(tmp_path / "store")


def test_built_in_formats_are_listed_where_nothing_is_imported():
    """The names that the command line knows are those of the classes, and the classes are complete."""
    for name, kind in FORMATS.items():
        assert kind.name == name
        assert kind.title
        assert type(kind).open is not Format.open
    code = "import sys, ooc_pegasos.formats as f; print(*f.choices(), {'numba', 'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("auto svmlight vw table arrays folders text-lines set()\n", "")


def test_first_bytes_win_over_names(tmp_path):
    """A Parquet file that is called svmlight text is a table."""
    (tmp_path / "a.svm").write_bytes(b"PAR1 and so on")
    (tmp_path / "b.svm.gz").write_bytes(b"1 1:1\n")
    assert registry.detect(str(tmp_path / "a.svm")) == "table"
    assert registry.detect(str(tmp_path / "b.svm.gz")) == "svmlight"
    assert registry.detect("-") is None
