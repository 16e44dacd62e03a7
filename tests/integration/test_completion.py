"""Completion in the shell, as bash asks for it: words of options, columns of the inputs, versions and sources."""

import bz2
import gzip
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, convert
from ooc_pegasos.cli.completion import columns_of
from ooc_pegasos.config import ConvertConfig as Options
from ooc_pegasos.config import TrainConfig
from ooc_pegasos.options import options_of
from ooc_pegasos.registry import LOSSES

NAMES = ["clicked", "user id", "city", "price"]
HEAD = ",".join(NAMES)
CODE = """
import sys
sys.argv = ["oocpeg"]
try:
    from ooc_pegasos.cli.start import main
    main()
finally:
    print(*sorted({"numba", "numpy", "pyarrow", "dask"} & set(sys.modules)), file=sys.stderr)
"""


def completed(folder, line, shell="bash"):
    """Return the completions of the last word of a command line, and the slow imports that were needed."""
    words = re.split(r"(?<!\\) ", line)
    position = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    position["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    env = {**os.environ, **position, "_OOCPEG_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=folder, env=env, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split("\n")[:-1], done.stderr.split()


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The same table in files of several kinds, with others that are no tables."""
    folder = tmp_path_factory.mktemp("tables")
    rows = [{"clicked": n % 2, "user id": f"u{n}", "city": "Rome", "price": 1.5 * n} for n in range(20)]
    text = "".join(f"{n % 2},u{n},Rome,{1.5 * n}\n" for n in range(20))
    (folder / "in.csv").write_text(f"\ufeff{HEAD}\r\n{text}")
    (folder / "in.tsv.gz").write_bytes(gzip.compress(HEAD.replace(",", "\t").encode() + b"\n"))
    (folder / "semi.csv.bz2").write_bytes(bz2.compress(HEAD.replace(",", ";").encode() + b"\n1;2;3;4\n"))
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "in.parquet")
    with pa.ipc.new_file(folder / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.output_stream(folder / "in.csv.zst", compression="zstd") as stream:
        stream.write(f"{HEAD}\n{text}".encode())
    (folder / "parts").mkdir()
    (folder / "parts" / "a.csv").write_text(f"{HEAD}\n{text}")
    convert(folder / "parts" / "a.csv", folder / "store", ConvertConfig(label="clicked", id="user id"))
    (folder / "empty.csv").write_text("")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 9)
    (folder / "broken.json").write_text("{")
    (folder / "broken.parquet").write_bytes(b"PAR1" + bytes(99))
    (folder / "hostile.csv").write_text("\x1b[2Jx,fine\n")
    (folder / "in.svm").write_text("1 1:2\n")
    for version in ("2024-01", "2024-02"):
        (folder / "models" / version).mkdir(parents=True)
        (folder / "models" / version / "model").write_text("")
    (folder / "models" / "current").symlink_to("2024-02")
    (folder / "models" / "records").mkdir()
    return folder


@pytest.mark.parametrize(
    "name",
    ["in.csv", "in.tsv.gz", "semi.csv.bz2", "in.jsonl", "in.parquet", "in.arrow", "in.csv.zst", "parts", "store"],
)
def test_columns_of_files(tables, name):
    assert columns_of(tables / name) == NAMES


def test_columns_without_a_header_are_numbers(tables):
    assert columns_of(tables / "in.csv", has_header=False) == ["0", "1", "2", "3"]
    assert columns_of(tables / "in.csv", delimiter="|") == [HEAD]


@pytest.mark.parametrize(
    ("line", "wanted", "imports"),
    [
        ("oocpeg train in.csv --label ", ["clicked", r"user\ id", "city", "price"], []),
        ("oocpeg train in.csv -o m --id u", [r"user\ id"], []),
        ("oocpeg train in.csv --id user\\ i", [r"user\ id"], []),
        ("oocpeg train --label clicked in.csv in.jsonl --numeric price --categorical c", ["clicked", "city"], []),
        ("oocpeg convert i*.tsv.gz --ignore ci", ["city"], []),
        ("oocpeg convert in.csv --no-header --text ", ["0", "1", "2", "3"], []),
        ("oocpeg train store --dates ", ["clicked", r"user\ id", "city", "price"], []),
        ("oocpeg train in.parquet --weight p", ["price"], ["numpy", "pyarrow"]),
        ("oocpeg train empty.csv binary.csv broken.json broken.parquet in.svm nowhere.csv models --label ", [], None),
        ("oocpeg train hostile.csv --label ", ["fine"], []),
        ("oocpeg train --label ", [], []),
        ("oocpeg train in.csv --loss multi", ["multiclass-hinge", "multiclass-logistic"], []),
        ("oocpeg train in.csv --select-by b", ["balanced-error"], []),
        ("oocpeg convert in.csv --format ", ["auto", "svmlight", "vw", "table", "arrays", "folders", "text-lines"], []),
        ("oocpeg train in.csv --class-weight ", ["balanced"], []),
        ("oocpeg evaluate m store --part te", ["test"], []),
        ("oocpeg rollback models --to ", ["2024-01", "2024-02"], []),
        ("oocpeg train nothing --tolerance ", [], []),
    ],
)
def test_completions_in_bash(tables, line, wanted, imports):
    found, modules = completed(tables, line)
    assert [word for word in found if word] == wanted
    assert imports is None or modules == imports


def test_sources_of_a_store(tables):
    assert completed(tables, "oocpeg drop store --source ")[0] == [str(tables / "parts" / "a.csv")]


def test_other_shells_quote_words_themselves(tables):
    (found, _modules) = completed(tables, "oocpeg train in.csv --id us", "fish")
    assert found == ["user id"]


def test_every_option_with_words_has_a_completion():
    from typer.main import get_command

    from ooc_pegasos.cli.main import app

    commands = get_command(app).commands
    for name, configs in (("convert", [Options]), ("train", [Options, TrainConfig])):
        completing = {
            one.name for one in commands[name].params if getattr(one, "_custom_shell_complete", None) is not None
        }
        for config in configs:
            declared = {one.name for one in options_of(config).values() if not one.is_hidden}
            wanted = {one.name for one in options_of(config).values() if one.words() or one.is_column}
            assert wanted & declared <= completing
    columns = {"label", "weight", "id", "numeric", "categorical", "text", "dates", "ignore"}
    assert {one.name for one in options_of(Options).values() if one.is_column} == columns
    assert options_of(TrainConfig)["loss"].words() == tuple(LOSSES)
