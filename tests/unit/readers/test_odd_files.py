"""Files as they come: with marks, odd names, odd types, and folders with more in them than data."""

import csv
import dataclasses
import datetime as dt
import gzip
import io
import json
from decimal import Decimal

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction import FeatureHasher

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.scoring.evaluate import predict

SMALL = ConvertConfig(shuffle=False, hash_bits=10)
MARK = "\ufeff"


def lists_of_values(store):
    return store.to_scipy()[0].toarray().tolist()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [64, 1 << 16])
def test_a_mark_of_utf8_is_no_part_of_the_first_cell(tmp_path, packed, end, block):
    rows = ["red,1.5", '"blue, dark",2', "red,4"] * 20
    for number, header in enumerate((["colour,p"], ['"colour","p"'], [])):
        lines = [*header, *rows]
        name = f"{number}.csv" + (".gz" if packed else "")
        text = (MARK + end.join(lines)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
        label = "colour" if header else "0"
        config = ConvertConfig(shuffle=False, header=bool(header), label=label, block_size=block)
        store = convert([str(tmp_path / name)], tmp_path / f"{number}.store", config)
        assert store.manifest.labels.classes == ["blue, dark", "red"]
        assert lists_of_values(store) == [[1.5], [2], [4]] * 20


def test_a_mark_of_utf8_before_other_text(tmp_path):
    for name, text in (
        ("a.jsonl", '{"label": 1, "p": 2}\n{"label": 0, "p": 3}\n'),
        ("a.svm", "1 1:2\n0 1:3\n"),
        ("a.vw", "1 | 0:2\n0 | 0:3\n"),
    ):
        (tmp_path / name).write_text(MARK + text)
        config = ConvertConfig(shuffle=False, hash_bits=0 if name == "a.vw" else None)
        store = convert([str(tmp_path / name)], tmp_path / f"{name}.store", config)
        assert lists_of_values(store) == [[2], [3]]


def test_a_mark_of_utf8_and_nothing_else(tmp_path):
    for name in ("a.csv", "a.jsonl", "a.svm"):
        (tmp_path / name).write_text(MARK)
        with pytest.raises(InputError, match=rf"{name}.*(empty|no rows|no object)"):
            convert([str(tmp_path / name)], tmp_path / "store")


def test_names_that_begin_with_blanks_are_kept(tmp_path):
    (tmp_path / "a.csv").write_text("   p,label\n1,0\n2,1\n")
    store = convert([str(tmp_path / "a.csv")], tmp_path / "store", SMALL)
    assert [column.name for column in store.manifest.recipe.table.columns] == ["   p"]


def test_a_first_row_with_a_long_text(tmp_path):
    (tmp_path / "a.csv").write_text(f"1,{'x' * 300_000}\n0,y\n")
    config = ConvertConfig(header=False, label="0", hash_bits=10)
    assert convert([str(tmp_path / "a.csv")], tmp_path / "store", config).rows == 2


# --- names ----------------------------------------------------------------------------------------


def test_file_suffixes_are_case_insensitive(tmp_path):
    rows = [("1", "2"), ("0", "3"), ("1", "4")]
    for name, text in (
        ("A.CSV", "label,p\n" + "".join(f"{y},{x}\n" for y, x in rows)),
        ("A.TSV", "label\tp\n" + "".join(f"{y}\t{x}\n" for y, x in rows)),
        ("A.JSONL", "".join(f'{{"label": {y}, "p": {x}}}\n' for y, x in rows)),
        ("a.json", "".join(f'{{"label": {y}, "p": {x}}}\n' for y, x in rows)),
        ("A.VW", "".join(f"{y} | 0:{x}\n" for y, x in rows)),
    ):
        (tmp_path / name).write_text(text)
        config = ConvertConfig(shuffle=False, hash_bits=0 if name == "A.VW" else None)
        assert lists_of_values(convert([str(tmp_path / name)], tmp_path / f"{name}.store", config)) == [[2], [3], [4]]
    with open(tmp_path / "A.NPY", "wb") as file:
        np.save(file, np.array([[1.0, 2.0], [0.0, 3.0], [1.0, 4.0]]))
    store = convert([str(tmp_path / "A.NPY")], tmp_path / "npy.store", ConvertConfig(shuffle=False, label="0"))
    assert lists_of_values(store) == [[2], [3], [4]]


def test_metadata_files_in_folders_are_skipped(tmp_path):
    rows = pa.table({"label": [0, 1, 1], "p": [1.0, 2.0, 3.0]})
    for name in ("_year=1/part.parquet", "_delta_log/checkpoint.parquet", "_temporary/0/x.parquet", ".old/y.parquet"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        pq.write_table(rows, tmp_path / "data" / name)
    (tmp_path / "data" / "_SUCCESS").touch()
    (tmp_path / "data" / "schema.json").write_text("{}")
    store = convert([str(tmp_path / "data")], tmp_path / "store", SMALL)
    assert [source.name for source in store.manifest.sources] == [f"{tmp_path}/data/_year=1/part.parquet"]
    assert [column.name for column in store.manifest.recipe.table.columns] == ["p", "_year"]


def test_a_format_that_was_named_is_that_of_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("label,p\n1,2\n0,3\n")
    (tmp_path / "b.txt").write_text("label,p\n1,4\n")
    names = [str(tmp_path / "a.csv"), str(tmp_path / "b.txt")]
    with pytest.raises(InputError, match=r"b.txt: read as svmlight, but .*a.csv as table"):
        convert(names, tmp_path / "store", SMALL)
    config = ConvertConfig(shuffle=False, format="table")
    assert lists_of_values(convert(names, tmp_path / "store", config)) == [[2], [3], [4]]
    assert preview(names, config).inputs == names


def test_a_preview_of_arrays_knows_the_column_of_labels(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[5.0, 2.0], [6.0, 3.0]]))
    found = preview([str(tmp_path / "a.npy")], ConvertConfig(label="0"))
    assert [(row["label"], row["entries"]) for row in found.rows] == [("5", [(0, 2.0)]), ("6", [(0, 3.0)])]


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("a.csv", {"labels": "y.npy"}, "labels is for arrays and lines of text, and a.csv is read as table"),
        ("a.csv", {"index_base": "1"}, "index_base is for svmlight text"),
        ("a.csv", {"ngrams": "1:2"}, "ngrams: no column is text"),
        ("a.csv", {"characters": True}, "characters: no column is text"),
        ("a.csv", {"features": 100}, "features=100: the columns, hash_bits or dictionary determine the number"),
        ("a.vw", {"features": 100}, "features=100: the columns, hash_bits or dictionary determine the number"),
        ("a.vw", {"ngrams": "2"}, "ngrams is for tables, folders of texts and lines of text, and a.vw is read as vw"),
        ("a.svm", {"hash_bits": 12}, "hash_bits is for Vowpal Wabbit text, tables, folders of texts and lines of text"),
        ("a.svm", {"feature_names": 9}, "feature_names is for"),
        ("a.npy", {"label": "y"}, "label=y: of arrays it is the number of a column"),
        ("a.npy", {"label": "0", "nulls": "mark"}, "nulls is for tables"),
    ],
    ids=str,
)
def test_options_that_would_do_nothing_are_refused(tmp_path, monkeypatch, name, options, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("label,p,c\n1,2,x\n0,3,y\n")
    (tmp_path / "a.vw").write_text("1 | a:1\n0 | a:2\n")
    (tmp_path / "a.svm").write_text("1 1:1\n0 1:2\n")
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0], [0.0, 3.0]]))
    np.save(tmp_path / "y.npy", np.array([1.0, 0.0]))
    with pytest.raises(UsageError, match=problem):
        convert([name], tmp_path / "store", ConvertConfig(**options))


# --- values ---------------------------------------------------------------------------------------


def spoiled(kind, rows=60):
    """Words of a type, of which three are no UTF-8."""
    words = [f"wörd{i % 7}".encode() for i in range(rows)]
    words[3] = words[40] = b"caf\xe9"
    words[50] = b"\xff\xfe" * 200
    words[7] = None
    if pa.types.is_dictionary(kind):
        distinct = sorted({word for word in words if word is not None})
        codes = pa.array([None if word is None else distinct.index(word) for word in words], pa.int32())
        values = pa.array(distinct, pa.binary()).view(kind.value_type)
        return pa.DictionaryArray.from_arrays(codes, values)
    if pa.types.is_string(kind):
        return pa.array(words, pa.binary()).view(kind)
    return pa.array(words, pa.large_binary()).view(kind) if pa.types.is_large_string(kind) else pa.array(words, kind)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.binary())),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_words_that_are_not_utf8_make_bad_rows(tmp_path, kind, form):
    table = pa.table({"label": [0, 1] * 30, "c": spoiled(kind)})
    file = tmp_path / f"a.{form}"
    if form == "parquet":
        try:
            pq.write_table(table, file, row_group_size=25)
        except pa.ArrowNotImplementedError:
            pytest.skip("this type is not written")
    else:
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table, max_chunksize=25)
    problem = r"row 4: the value b'caf\\xe9' in column 'c' is not UTF-8 text; write it as UTF-8"
    with pytest.raises(InputError, match=problem):
        convert([str(file)], tmp_path / "store", SMALL)
    config = dataclasses.replace(SMALL, on_bad_row="skip", categorical=("c",))
    store = convert([str(file)], tmp_path / "store", config)
    listed = [json.loads(line)["line"] for line in (store.path / "rejected.jsonl").read_text().splitlines()]
    assert listed == [4, 41, 51]
    rows = [{"c": f"wörd{i % 7}"} if i != 7 else {} for i in range(60) if i not in (3, 40, 50)]
    assert lists_of_values(store) == FeatureHasher(2**10).transform(rows).toarray().tolist()


def test_equal_values_of_different_types_are_the_same_category(tmp_path):
    ids = [5, 12_345_678_901, 0, 7]
    noon = dt.datetime(2024, 5, 6, 12, 0, 0)
    hours = [noon, noon.replace(microsecond=250_000), noon, noon]
    columns = {
        "whole numbers": [pa.array(ids), pa.array(ids, pa.float64()), pa.array([*map(Decimal, ids)])],
        "more digits": [pa.array([Decimal(i) / 4 for i in ids]), pa.array([i / 4 for i in ids[:1] * 4])],
        "times": [pa.array(hours, pa.timestamp(unit)) for unit in ("ms", "us", "ns")],
        "times of a zone": [pa.array(hours, pa.timestamp(unit, "UTC")) for unit in ("ms", "us", "ns")],
        "hours": [pa.array([hour.time() for hour in hours], kind) for kind in (pa.time32("ms"), pa.time64("ns"))],
    }
    for name, arrays in columns.items():
        found = []
        for number, array in enumerate(arrays):
            file = tmp_path / f"{number}.arrow"
            table = pa.table({"label": [0, 1, 1, 0], "c": array})
            with pa.ipc.new_file(str(file), table.schema) as writer:
                writer.write_table(table)
            config = dataclasses.replace(SMALL, categorical=("c",))
            store = convert([str(file)], tmp_path / "store", config, existing=Existing(force=True))
            found.append(lists_of_values(store)[: 1 if name == "more digits" else 4])
        assert all(one == found[0] for one in found), name
    expected = FeatureHasher(2**10).transform([{"c": str(i)} for i in ids]).toarray().tolist()
    table = pa.table({"label": [0, 1, 1, 0], "c": pa.array(ids, pa.float64())})
    store = convert_table(tmp_path, table, dataclasses.replace(SMALL, categorical=("c",)))
    assert lists_of_values(store) == expected


def convert_table(folder, table, config):
    pq.write_table(table, folder / "in.parquet")
    return convert([str(folder / "in.parquet")], folder / "store", config, existing=Existing(force=True))


def test_labels_beyond_what_float64_counts_are_refused(tmp_path):
    for kind in (pa.int64(), pa.uint64()):
        table = pa.table({"label": pa.array([1, 2**53 + 1, 2**53], kind), "p": [1.0, 2.0, 3.0]})
        with pytest.raises(InputError, match=r"row 2: the label 9007199254740993 is not below 2\^53"):
            convert_table(tmp_path, table, SMALL)
        words = ("a", "1", "9007199254740992", "9007199254740993")
        store = convert_table(tmp_path, table, dataclasses.replace(SMALL, classes=words))
        assert store.to_scipy()[1].tolist() == [1, 3, 2]


def test_json_of_mixed_types_is_reported_at_the_first_change(tmp_path):
    lines = ['{"label": 1, "p": null}', '{"label": 0, "p": 2}', '{"label": 1, "p": 2.5}', '{"label": 0, "p": "x"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"a.jsonl:4: the value \"x\" of key 'p' is not a number"):
        convert([str(tmp_path / "a.jsonl")], tmp_path / "store", SMALL)
    store = convert([str(tmp_path / "a.jsonl")], tmp_path / "store", dataclasses.replace(SMALL, on_bad_row="skip"))
    assert lists_of_values(store) == [[0], [2], [2.5]]


def test_another_delimiter_is_suggested(tmp_path):
    for mark, said in ((";", "';'"), ("\t", r"'\\t'"), ("|", r"'\|'")):
        (tmp_path / "a.csv").write_text(f"label{mark}p\n1{mark}2\n0{mark}3\n")
        problem = f"if that is more than one, give delimiter={said}"
        with pytest.raises(UsageError, match="which column has the labels.*" + problem):
            convert([str(tmp_path / "a.csv")], tmp_path / "store", ConvertConfig(delimiter=","))
        with pytest.raises(UsageError, match="no column 'label'.*" + problem):
            convert(
                [str(tmp_path / "a.csv")], tmp_path / "store", dataclasses.replace(SMALL, label="label", delimiter=",")
            )


def test_a_dictionary_of_more_words_than_a_batch_has_rows(tmp_path):
    words = pa.array([f"w{i}" for i in range(5000)])
    codes = np.random.default_rng(0).integers(0, 5000, 600)
    coded = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 500), words)
    table = pa.table({"label": [0, 1] * 300, "c": coded})
    expected = convert_table(tmp_path, table.set_column(1, "c", coded.dictionary_decode()), SMALL)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    store = convert([str(tmp_path / "a.arrow")], tmp_path / "other", SMALL)
    assert [chunk.xxh64 for chunk in store.manifest.chunks] == [chunk.xxh64 for chunk in expected.manifest.chunks]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("block", [64, 300, 1 << 16])
def test_line_breaks_in_quotes(tmp_path, header, packed, block):
    rng = np.random.default_rng(0)
    words = ["red", "blue\nhat", 'a "quote"\r\n\nand, more', "x" * 150 + "\n", "green"]
    rows = [(i % 2, words[k]) for i, k in enumerate(rng.integers(0, 5, 80))]
    sink = io.StringIO()
    csv.writer(sink).writerows([["label", "t\nwo"]] * header + rows)
    name = tmp_path / ("a.csv" + ".gz" * packed)
    text = (MARK + sink.getvalue()).encode()
    name.write_bytes(gzip.compress(text) if packed else text)
    config = ConvertConfig(
        shuffle=False, hash_bits=10, multiline=True, header=header, label="label" if header else "0", block_size=block
    )
    store = convert([str(name)], tmp_path / "store", config)
    column = "t\nwo" if header else "1"
    assert (
        lists_of_values(store)
        == FeatureHasher(2**10).transform([{column: word} for _y, word in rows]).toarray().tolist()
    )
    model = train(store, TrainConfig(lam=0.1)).model
    assert predict(model, name, tmp_path / "out.parquet") == 80
    if header:
        with pytest.raises(InputError, match="the first line ends within a quote; close it, or convert with multi"):
            convert([str(name)], tmp_path / "other", SMALL)


def test_an_open_quote_is_reported_where_it_opens(tmp_path):
    (tmp_path / "a.csv").write_text("label,t\n" + '1,"a\nb"\n0,c\n' * 20 + '1,"d\n' + "0,e\n" * 30)
    config = dataclasses.replace(SMALL, multiline=True, block_size=64)
    problem = r"a.csv:62: a quote that is never closed, over 31 lines; close it"
    with pytest.raises(InputError, match=problem):
        convert([str(tmp_path / "a.csv")], tmp_path / "store", config)
    with pytest.raises(InputError, match=r"a.csv:2: a quote is still open where the line ends; .* multiline"):
        convert([str(tmp_path / "a.csv")], tmp_path / "store", SMALL)


def test_columns_whose_names_look_like_patterns(tmp_path):
    table = pa.table({"label": [0, 1, 1], "p[1]": [1.0, 2.0, 3.0], "p1": [4.0, 5.0, 6.0], "*": ["a", "b", "c"]})
    store = convert_table(tmp_path, table, dataclasses.replace(SMALL, numeric=("p[1]",)))
    assert [column.name for column in store.manifest.recipe.table.columns] == ["p[1]"]
    store = convert_table(tmp_path, table.drop_columns("p1"), dataclasses.replace(SMALL, numeric=("p[1]",)))
    assert lists_of_values(store) == [[1], [2], [3]]


def test_ids_called_like_what_is_predicted(tmp_path):
    table = pa.table({"y": [0, 1, 1], "p": [1.0, 2.0, 3.0], "score": ["a", "b", "c"]})
    store = convert_table(tmp_path, table, dataclasses.replace(SMALL, label="y", id="score"))
    model = train(store, TrainConfig(lam=0.1)).model
    predict(model, store.path, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["id score", "score", "label"]


@pytest.mark.parametrize("options", [{}, {"values": "float16"}, {"numeric": ("n",)}, {"categorical": ("c",)}], ids=str)
def test_a_preview_estimates_the_size_of_the_store(tmp_path, options):
    rng = np.random.default_rng(0)
    table = pa.table({"label": rng.integers(0, 2, 30_000), "n": rng.random(30_000), "c": rng.integers(0, 50, 30_000)})
    config = dataclasses.replace(SMALL, **options)
    store = convert_table(tmp_path, table, config)
    assert preview([str(tmp_path / "in.parquet")], config).bytes == pytest.approx(store.manifest.bytes, rel=0.2)


def test_the_index_of_a_pandas_table_is_no_data(tmp_path):
    frame = pandas.DataFrame({"label": [0, 1, 1, 0], "p": [1.0, 2.0, 3.0, 4.0]}).iloc[[1, 3, 2]]
    frame.to_csv(tmp_path / "a.csv")
    pandas.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "b.csv", index=False)
    frame.to_parquet(tmp_path / "c.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "c.parquet").names
    for name in ("a.csv", "b.csv", "c.parquet"):
        remarks = preview([str(tmp_path / name)], SMALL).remarks
        assert any(line.startswith("left out, as the index of a pandas table") for line in remarks)
        store = convert([str(tmp_path / name)], tmp_path / f"{name}.store", SMALL)
        assert lists_of_values(store) == [[2], [4], [3]]
    store = convert([str(tmp_path / "a.csv")], tmp_path / "id", dataclasses.replace(SMALL, id="Unnamed: 0"))
    assert store.ids(0).to_pylist() == ["1", "3", "2"]
    store = convert([str(tmp_path / "a.csv")], tmp_path / "number", dataclasses.replace(SMALL, numeric=("Unn*", "p")))
    assert lists_of_values(store) == [[1, 2], [3, 4], [2, 3]]


@pytest.fixture
def with_store(tmp_path, monkeypatch):
    """A folder of a table and a store made of it, with files of ids and of names, and more folders below."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"label": [0, 1, 0, 1], "p": [1.0, 2, 3, 4], "c": list("abab"), "k": [5, 6, 7, 8]})
    (tmp_path / "days" / "old").mkdir(parents=True)
    pq.write_table(table, "days/a.parquet")
    return convert(["days/a.parquet"], "days/old/g.st", dataclasses.replace(SMALL, id="k", feature_names=9))


A_STORE = r"^days/old/g\.st: is a store, .*; convert the files it was made of"


def test_a_store_is_no_table(with_store, oocpeg):
    files = sorted(file.name for file in with_store.path.glob("*.arrow"))
    assert [name.partition("-")[0] for name in files] == ["chunk", "features", "ids"]
    given = ["g.st", "g.st/", "../days", "g.st/chunk-*.arrow", "g.st/*.arrow", *(f"g.st/{name}" for name in files)]
    for one in given:
        place = "days" if one == "../days" else f"days/old/{one}"
        for wanted in ("auto", "table"):
            config = dataclasses.replace(SMALL, format=wanted)
            with pytest.raises(InputError, match=A_STORE):
                convert([place], "other", config)
            with pytest.raises(InputError, match=A_STORE):
                preview([place], config)
    url = f"file://{with_store.path.resolve()}"
    for one in (url, f"{url}/chunk-*.arrow", f"file://{with_store.path.resolve().parents[1]}"):
        with pytest.raises(InputError, match=rf"^{url}: is a store"):
            convert([one], "other", SMALL)
    done = oocpeg("convert", "days/old/g.st", "-o", "g2.st", "--label", "label", code=3)
    assert done.stderr.count("\n") == 1
    assert "days/old/g.st: is a store" in done.stderr


@pytest.mark.parametrize(
    "content", [b"version = 1", b'{"format": "ooc-peg', b"[1]", b'{"format": 3}', b"\xff" * 99, None]
)
def test_other_manifests_do_no_harm(tmp_path, content):
    folder = tmp_path / "tables"
    folder.mkdir()
    pa.feather.write_feather(pa.table({"label": [0, 1], "p": [1.0, 2]}), folder / "chunk-000000-01234567.arrow")
    if content is None:
        (folder / "manifest.json").mkdir()
    else:
        (folder / "manifest.json").write_bytes(content)
    assert convert([str(folder)], tmp_path / "store", SMALL).rows == 2


def test_tables_beside_a_store_are_read(with_store):
    pq.write_table(pa.table({"label": [0, 1], "p": [1.0, 2]}), with_store.path / "mine.parquet")
    assert convert([str(with_store.path / "mine.parquet")], "other", SMALL).rows == 2


def test_stores_are_scored_as_before(with_store):
    model = train(with_store, TrainConfig(lam=0.1)).model
    assert predict(model, with_store.path, "out.parquet") == 4
    with pytest.raises(InputError, match=r"old/g\.st: is a store"):
        predict(model, str(with_store.path / "chunk-*.arrow"), "out.parquet")


@pytest.mark.parametrize(
    ("name", "content", "options", "problem"),
    [
        (
            "in.json",
            '[\n {"y": 1, "x": 2},\n {"y": 0, "x": 3}\n]\n',
            {},
            r"in\.json: a JSON array; write one object a line",
        ),
        (
            "in.data",
            "1 3.198 2.5\n2 0.5 1.5\n",
            {},
            r"in\.data:1: '3\.198' is not.*format=csv for columns, format=text-",
        ),
        (
            "in.txt",
            "1 3 2\n2 0 1\n",
            {"format": "csv", "label": "0", "header": False},
            r"besides the label; .*delimiter=' '",
        ),
        (
            "in.csv",
            "0.66,-0.5,b\n1.5,2,a\n",
            {},
            r"which column has the labels.*if the first line is data, give no_header",
        ),
        ("in.csv", "y,x\n1,2\n,3\n", {}, r"in\.csv:3: no label in column 'y'; .* with on_bad_row=skip"),
    ],
)
def test_files_of_another_shape_are_answered_with_the_option_to_use(tmp_path, name, content, options, problem):
    (tmp_path / name).write_text(content)
    with pytest.raises((InputError, UsageError), match=problem):
        convert([str(tmp_path / name)], tmp_path / "s", ConvertConfig(**options))
