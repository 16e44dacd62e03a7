"""Tables from standard input and named pipes."""

import gzip
import json
import os
import sys
import threading

import numpy as np
import pandas as pd
import pytest

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import pipes
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.model import Model
from support.file_bytes import folder_bytes


def piped_table(rows=3000):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(100, 5, rows).round(3), "city": rng.choice(["Rome", "Oslo", "Lima"], rows)})
    return frame.assign(y=np.where(rng.normal(size=rows) + (frame["city"] == "Oslo") > 0, "yes", "no"))


TEXTS = {
    "csv": lambda frame: frame.to_csv(index=False).encode(),
    "tsv": lambda frame: frame.to_csv(index=False, sep="\t").encode(),
    "jsonl": lambda frame: frame.to_json(orient="records", lines=True).encode(),
}


class Remarks(Progress):
    """Keeps notes."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def feed(tmp_path, monkeypatch):
    """Send bytes through standard input or a named pipe, and return its name."""
    writers, readers = [], []

    def feed(content, name="-"):
        if name == "-":
            reading, writing = os.pipe()
            readers.append(os.fdopen(reading))
            monkeypatch.setattr(sys, "stdin", readers[-1])
            opened = lambda: os.fdopen(writing, "wb")  # noqa: E731
        else:
            if not (tmp_path / name).exists():
                os.mkfifo(tmp_path / name)
            opened = lambda: open(tmp_path / name, "wb")  # noqa: E731, SIM115

        def write():
            with opened() as file:
                file.write(content)

        writers.append(threading.Thread(target=write, daemon=True))
        writers[-1].start()
        return name if name == "-" else str(tmp_path / name)

    yield feed
    for writer in writers:
        writer.join(10)
        assert not writer.is_alive()
    for reader in readers:
        reader.close()
    assert not pipes._pipes


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", ["-", "pipe"])
@pytest.mark.parametrize(
    "options", [{}, {"standardize": True}, {"dictionary": 3, "label": "y"}, {"id": "city"}, {"block_size": 4096}]
)
def test_rows_are_those_of_a_file(tmp_path, feed, kind, name, options):
    content = TEXTS[kind](piped_table())
    (tmp_path / f"rows.{kind}").write_bytes(content)
    bits = {} if "dictionary" in options else {"hash_bits": 10}
    config = ConvertConfig(**{"label": "y", "format": kind, "shuffle": False, **bits, **options})
    expected = convert(str(tmp_path / f"rows.{kind}"), tmp_path / "expected", config)
    remarks = Remarks()
    store = convert(feed(content, name), tmp_path / "s", config, progress=remarks)
    assert store.manifest.recipe == expected.manifest.recipe
    assert store.manifest.labels == expected.manifest.labels
    matrices = [one.to_scipy() for one in (store, expected)]
    assert (matrices[0][0] != matrices[1][0]).nnz == 0
    assert np.array_equal(matrices[0][1], matrices[1][1])
    assert store.manifest.sources[0].xxh64 == expected.manifest.sources[0].xxh64
    is_copied = any(
        "is copied to a temporary file beside the store, because it is read twice" in n for n in remarks.notes
    )
    assert is_copied == bool({"standardize", "dictionary"} & options.keys())
    left = {"expected", "s", "pipe", f"rows.{kind}"} - ({"pipe"} if name == "-" else set())
    assert {path.name for path in tmp_path.iterdir()} == left


def test_models_read_pipes(tmp_path, feed):
    frame = piped_table()
    contents = {kind: TEXTS[kind](frame) for kind in TEXTS}
    (tmp_path / "rows.csv").write_bytes(contents["csv"])
    store = convert(str(tmp_path / "rows.csv"), tmp_path / "s", ConvertConfig(label="y", hash_bits=10))
    train(store, TrainConfig(lam=1e-2)).model.save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    expected = evaluate(model, str(tmp_path / "rows.csv"))
    predict(model, str(tmp_path / "rows.csv"), tmp_path / "expected.csv")
    for kind, content in [*contents.items(), ("packed", gzip.compress(contents["jsonl"]))]:
        for name in ("-", "pipe"):
            found = evaluate(model, feed(content, name))
            assert {key: found[key] for key in ("rows", "error")} == {key: expected[key] for key in ("rows", "error")}
            predict(model, feed(content, name), tmp_path / f"{kind}{name}.csv")
            pd.testing.assert_frame_equal(
                pd.read_csv(tmp_path / f"{kind}{name}.csv"), pd.read_csv(tmp_path / "expected.csv")
            )


def test_appended_and_like(tmp_path, feed):
    content = TEXTS["csv"](piped_table())
    config = ConvertConfig(label="y", hash_bits=10, format="csv", values="float32")
    convert(feed(content), tmp_path / "s", config)
    store = convert(feed(content), tmp_path / "s", ConvertConfig(format="csv"), existing=Existing(append=True))
    like = convert(feed(content), tmp_path / "like", ConvertConfig(format="csv", like=str(tmp_path / "s")))
    assert (store.rows, like.rows) == (6000, 3000)
    assert like.manifest.recipe == store.manifest.recipe


def test_little_of_a_pipe_is_kept(tmp_path, feed, monkeypatch):
    content = TEXTS["csv"](piped_table(200_000))
    kept = []
    close = pipes._Pipe.close
    monkeypatch.setattr(pipes._Pipe, "close", lambda pipe: (kept.append(pipe.kept), close(pipe)))
    config = ConvertConfig(label="y", hash_bits=10, format="csv", standardize=False, block_size=1 << 16)
    assert convert(feed(content), tmp_path / "s", config).rows == 200_000
    assert kept[0] <= 2 << 20 < len(content)


def test_what_cannot_come_from_a_pipe(tmp_path, feed):
    frame = piped_table()
    frame.to_parquet(tmp_path / "rows.parquet")
    config = ConvertConfig(label="y", format="table")
    with pytest.raises(InputError, match="standard input: a table of parquet cannot come from a pipe; name a file"):
        convert(feed((tmp_path / "rows.parquet").read_bytes()[:1000]), tmp_path / "s", config)
    for option in ({"test": 0.1}, {"split": "city=Rome"}):
        with pytest.raises(UsageError, match="reads the inputs twice, so they cannot come from a pipe"):
            convert("-", tmp_path / "s", ConvertConfig(label="y", format="csv", **option))
    with pytest.raises(UsageError, match="standard input is read as svmlight; leave it out, or give format"):
        convert("-", tmp_path / "s", ConvertConfig(label="y"))
    with pytest.raises(InputError, match="standard input: the file is empty"):
        convert(feed(b""), tmp_path / "s", config)
    with pytest.raises(InputError, match=r"standard input:3001: .*"):
        convert(feed(TEXTS["csv"](frame)[:-5] + b",1,2\n"), tmp_path / "s", config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet"]


def test_files_of_other_names(tmp_path):
    frame, config = piped_table(), ConvertConfig(label="y", format="jsonl", hash_bits=10)
    for packed in (False, True):
        content = TEXTS["jsonl"](frame)
        (tmp_path / "visits.log").write_bytes(gzip.compress(content) if packed else b"\xef\xbb\xbf" + content)
        store = convert(str(tmp_path / "visits.log"), tmp_path / "s", config, existing=Existing(force=True))
        assert (store.rows, len(store.manifest.recipe.table.columns)) == (3000, 2)
    assert ConvertConfig(format="tsv").delimiter == "\t"
    assert ConvertConfig(format="csv").format == "table"


def test_pipes_on_the_command_line(tmp_path, oocpeg):
    text = TEXTS["csv"](piped_table()).decode()
    words = ("--format", "csv", "--label", "y", "--lambda", "0.01", "--hash-bits", "10")
    oocpeg("train", "-", "-o", "m", *words, input=text)
    (tmp_path / "rows.csv").write_text(text)
    oocpeg("train", "rows.csv", "-o", "m2", *words)
    found = [json.loads(oocpeg("evaluate", one, "rows.csv", "--json").stdout)["error"] for one in ("m", "m2")]
    assert found[0] == pytest.approx(found[1], abs=0.02)  # rows are in another order
    assert folder_bytes(tmp_path).keys() == {"m", "m2", "rows.csv"}
