"""Presets are ordinary options: the recipe is that of the options given by hand, and given options are kept."""

import dataclasses
import json
from fnmatch import fnmatch

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.output_check import Existing
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import UsageError
from ooc_pegasos.readers import presets
from ooc_pegasos.readers.hash_size import bits_for
from ooc_pegasos.scoring.evaluate import evaluate
from ooc_pegasos.store.recipe import Table
from support.file_bytes import folder_bytes


def mails(rows=300, seed=0):
    """Texts of which words, and pairs of words, give the class."""
    rng = np.random.default_rng(seed)
    words = np.array(["win", "cash", "not", "hello", "report", "the"])[rng.integers(0, 6, (rows, 8))]
    return pa.table(
        {
            "label": np.where((words == "win").any(axis=1), "spam", "ham"),
            "subject": [" ".join(row[:3]) for row in words],
            "body": [" ".join(row[3:]) for row in words],
            "size": rng.gamma(2, 20, rows).round(1),
            "sender": rng.choice(["ann", "bob"], rows),
            "key": [f"k{number}" for number in range(rows)],
            "a*b": rng.integers(0, 9, rows),
        }
    )


def logs(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 40, rows)
    return pa.table(
        {
            "clicked": (user % 3 == 0).astype(int),
            "user": user,
            "site": pa.array(rng.choice(["x.com", "y.com", None], rows)),
            "mobile": rng.integers(0, 2, rows).astype(bool),
            "price": rng.random(rows).round(3),
            "tags": [["a", "b"][: number % 3] for number in range(rows)],
            "key": np.arange(rows),
        }
    )


@pytest.fixture
def folder(tmp_path):
    pq.write_table(mails(), tmp_path / "mails.parquet")
    pq.write_table(logs(), tmp_path / "logs.parquet")
    return tmp_path


TEXT = {"ngrams": "1:2", "idf": True, "normalize": "l2"}
CLICKS = {"nulls": "mark", "standardize": False}
STRINGS, NUMBERS = ("subject", "body", "sender", "key"), ("size", "a*b")
CATEGORIES = ("user", "site", "mobile", "tags", "key")
CASES = [
    ("mails", {"preset": "text"}, {"text": STRINGS, "numeric": NUMBERS, **TEXT}),
    ("mails", {"preset": "text", "id": "key"}, {"id": "key", "text": STRINGS[:3], "numeric": NUMBERS, **TEXT}),
    (
        "mails",
        {"preset": "text", "categorical": ("sender",), "ignore": ("key", "a[*]b"), "ngrams": "1", "idf": False},
        {"text": STRINGS[:2], "numeric": ("size",), "categorical": ("sender",), "normalize": "l2"},
    ),
    (
        "mails",
        {"preset": "text", "characters": True, "ngrams": "3:4", "hash_bits": 12, "standardize": False},
        {"text": STRINGS, "numeric": NUMBERS, "characters": True, "hash_bits": 12, "standardize": False}
        | {**TEXT, "ngrams": "3:4"},
    ),
    ("logs", {"preset": "clicks"}, {"categorical": CATEGORIES, "numeric": ("price",), **CLICKS, "hash_bits": 11}),
    (
        "logs",
        {"preset": "clicks", "label": "mobile", "ignore": ("k*",), "nulls": "absent", "standardize": True},
        {"label": "mobile", "categorical": ("clicked", "user", "site", "tags"), "numeric": ("price",)}
        | {"standardize": True, "hash_bits": 11},
    ),
    (
        "logs",
        {"preset": "clicks", "numeric": ("user",), "dictionary": 500, "id": "key"},
        {"categorical": ("site", "mobile", "tags"), "numeric": ("user", "price"), "dictionary": 500, "id": "key"}
        | CLICKS,
    ),
]


@pytest.mark.parametrize(("name", "given", "by_hand"), CASES)
def test_a_preset_is_the_same_as_its_options(folder, name, given, by_hand):
    file = folder / f"{name}.parquet"
    if "hash_bits" in by_hand and given["preset"] == "clicks":
        assert by_hand["hash_bits"] == bits_for([str(file)])
    one = convert(file, folder / "one", ConvertConfig(**given))
    other = convert(file, folder / "other", ConvertConfig(**by_hand))
    assert one.manifest.recipe == other.manifest.recipe
    assert folder_bytes(folder / "one") == folder_bytes(folder / "other")
    assert preview([str(file)], ConvertConfig(**given)).recipe.table.columns == other.manifest.recipe.table.columns


@pytest.mark.parametrize("kind", ["csv", "jsonl", "arrow"])
def test_presets_of_other_files(tmp_path, kind):
    table = mails().select(["label", "subject", "size", "a*b"])
    file = tmp_path / f"in.{kind}"
    if kind == "csv":
        pa.csv.write_csv(table, file)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    recipe = convert(file, tmp_path / "s", ConvertConfig(preset="text")).manifest.recipe
    kinds = {column.name: column.kind for column in recipe.table.columns}
    assert kinds == {"subject": "text", "size": "numeric", "a*b": "numeric"}
    assert (recipe.table.tokens.least, recipe.table.tokens.most, recipe.normalize) == (1, 2, "l2")


def test_tables_in_memory(tmp_path):
    store = Store.from_arrow(logs(), tmp_path / "s", ConvertConfig(preset="clicks", label="clicked"))
    assert {one.name for one in store.manifest.recipe.table.columns if one.kind == "categorical"} == set(CATEGORIES)
    assert store.manifest.recipe.table.nulls == "mark"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("logs", {"preset": "text", "ignore": ("site",)}, "preset=text: no column of .* is text"),
        ("mails", {"preset": "text", "characters": True}, "add ngrams, like ngrams=3:5"),
        ("logs", {"preset": "clicks", "idf": True}, "idf: no column is text"),
        ("logs", {"preset": "clicks", "ngrams": "1:2"}, "ngrams: no column is text"),
        ("logs", {"preset": "clicks", "dictionary": 9, "hash_bits": 9}, "give one"),
        ("logs", {"preset": "clicks", "label": "nothing"}, "no column 'nothing'"),
        ("mails", {"preset": "text", "text": ("label",)}, "this column is the label"),
    ],
)
def test_contradictions_are_errors(folder, name, options, told):
    with pytest.raises(UsageError, match=told):
        convert(folder / f"{name}.parquet", folder / "s", ConvertConfig(**options))
    assert not (folder / "s").exists()


def test_presets_are_for_tables(tmp_path):
    (tmp_path / "in.svm").write_text("1 1:2\n-1 2:1\n")
    for preset in ("text", "clicks"):
        with pytest.raises(UsageError, match="preset is for tables"):
            convert(tmp_path / "in.svm", tmp_path / "s", ConvertConfig(preset=preset))


@pytest.mark.parametrize(("name", "preset"), [("mails", "text"), ("logs", "clicks")])
def test_rows_are_appended_and_made_like_those_of_a_preset(folder, name, preset):
    config = ConvertConfig(preset=preset)
    store = convert(folder / f"{name}.parquet", folder / "s", config)
    make = {"mails": mails, "logs": logs}[name]
    pq.write_table(make(3000, 1), folder / "more.parquet")  # its size alone would give another hash
    like = dataclasses.replace(config, like=str(folder / "s"))
    assert convert(folder / "more.parquet", folder / "l", like).manifest.recipe == store.manifest.recipe
    grown = convert(folder / "more.parquet", folder / "s", config, existing=Existing(append=True))
    assert grown.rows == 3300
    other = dataclasses.replace(config, like=str(folder / "s"), preset="clicks" if preset == "text" else "text")
    with pytest.raises(UsageError):
        convert(folder / "more.parquet", folder / "o", other)


def test_a_store_that_grows_has_the_largest_hash(folder):
    config = presets.expanded(
        ConvertConfig(preset="clicks", format="table"), [str(folder / "logs.parquet")], grows=True
    )
    assert config.hash_bits == 24


def test_a_test_part_is_read_by_the_same_preset(folder):
    store = convert(folder / "mails.parquet", folder / "s", ConvertConfig(preset="text", test=0.3))
    assert store.test.manifest.recipe == store.manifest.recipe
    result = train(store, TrainConfig(lam=1e-3))
    assert evaluate(result.model, store.test.path)["error"] < 0.1
    assert evaluate(result.model, folder / "mails.parquet")["error"] < 0.1


def test_options_of_the_command_line_and_of_files(folder, oocpeg):
    (folder / "recipe.toml").write_text('preset = "text"\nidf = false\n')
    oocpeg("convert", folder / "mails.parquet", "-o", folder / "a", "--config", folder / "recipe.toml")
    oocpeg("convert", folder / "mails.parquet", "-o", folder / "b", "--preset", "text", "--no-idf")
    assert folder_bytes(folder / "a") == folder_bytes(folder / "b")
    assert Store.open(folder / "a").manifest.recipe.table.tokens.texts == 0
    resumed = oocpeg("train", folder / "mails.parquet", "--preset", "text", "--store", folder / "c", "-o", folder / "m")
    assert "error" not in resumed.stderr
    again = ("--store", folder / "c", "-o", folder / "m", "--force", "--json")
    by_hand = [f"--text={name}" for name in STRINGS] + [f"--numeric={name}" for name in NUMBERS]
    options = [*by_hand, "--ngrams", "1:2", "--idf", "--normalize", "l2"]
    before = (folder / "c" / "manifest.json").stat().st_mtime_ns
    oocpeg("train", folder / "mails.parquet", *options, *again)
    assert (folder / "c" / "manifest.json").stat().st_mtime_ns == before, "the store is that of these options"


def test_the_columns_of_an_expanded_preset_are_named_exactly(folder):
    config = presets.expanded(ConvertConfig(preset="text", format="table"), [str(folder / "mails.parquet")])
    assert config.preset is None
    assert "a*b" in config.numeric
    assert fnmatch("axb", "a*b")  # a pattern, but equal to a name
    assert isinstance(convert(folder / "mails.parquet", folder / "s", config).manifest.recipe.table, Table)
