"""Files as they come: with marks, odd names, odd types, and folders with more in them than data."""

import gzip

import pytest

from ooc_pegasos import ConvertConfig, convert
from ooc_pegasos.errors import InputError

SMALL = ConvertConfig(shuffle=False, hash_bits=10)
MARK = "\ufeff"


def dense_of(store):
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
        assert dense_of(store) == [[1.5], [2], [4]] * 20


def test_a_mark_of_utf8_before_other_text(tmp_path):
    for name, text in (
        ("a.jsonl", '{"label": 1, "p": 2}\n{"label": 0, "p": 3}\n'),
        ("a.svm", "1 1:2\n0 1:3\n"),
        ("a.vw", "1 | 0:2\n0 | 0:3\n"),
    ):
        (tmp_path / name).write_text(MARK + text)
        config = ConvertConfig(shuffle=False, hash_bits=0 if name == "a.vw" else None)
        store = convert([str(tmp_path / name)], tmp_path / f"{name}.store", config)
        assert dense_of(store) == [[2], [3]]


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
