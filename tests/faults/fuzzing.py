"""Fuzz tests of all functions that open files: `python fuzzing.py FOLDER FORMAT:SEEDS ...`.

Each try writes one file and has it read, converted, trained on or predicted with, by the same functions that the
command line calls. It works or it raises an OocPegasosError; all else is printed with the command to repeat it. It runs
in a process of its own with little memory, so that crashes and excessive memory are detected: `FOLDER/try` has the
current try.
"""

import dataclasses
import faulthandler
import io
import json
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse as sp
from mutations import VALUES, changed, damaged

from ooc_pegasos import ConvertConfig, Existing, Model, OocPegasosError, Store, TrainConfig, convert, train, verify
from ooc_pegasos.config import load_toml
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.plan import plan as plan_job
from ooc_pegasos.jobs.run import run as run_job
from ooc_pegasos.loading.window import cost_of
from ooc_pegasos.reporting.text import run_lines
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.util import json_checksum, typed_json
from ooc_pegasos.util.arrow_checksum import _NAME, _PATTERN, seal
from ooc_pegasos.util.checkpoint import Checkpoint
from ooc_pegasos.util.checksums import xxh64_hex

LONGEST = 60
"""Seconds that a try may take, most of which is for kernels that were never compiled before."""
ROOM = 4 << 30
"""Bytes of addresses that tries may take besides what there was before, threads' stacks and all."""
MOST = 512 << 20
"""Bytes of memory that tries may take."""
ROWS, LARGE = 24, 1 << 20
_WRITE_ROUGHLY = 0.9  # of the tries are only previews

Rng = np.random.Generator
Attempt = Callable[[Rng], None]
REPLACE = Existing(force=True)


def random_entries(seed: int) -> tuple[list[str], list[dict[int, float]]]:
    """Labels and entries of some rows."""
    rng = np.random.default_rng(seed)
    labels = [str(label) for label in rng.choice([-1, 1], ROWS)]
    rows = []
    for _ in range(ROWS):
        features = np.sort(rng.choice(40, rng.integers(0, 6), replace=False))
        rows.append({int(feature): round(float(rng.standard_normal()), 2) for feature in features})
    return labels, rows


def random_svmlight_text(seed: int) -> bytes:
    """As svmlight text."""
    labels, rows = random_entries(seed)
    lines = []
    for label, row in zip(labels, rows, strict=True):
        lines.append(" ".join([label, *(f"{feature + 1}:{value}" for feature, value in row.items())]))
    return ("\n".join(lines) + "\n# a remark\n").encode()


def random_vw_text(seed: int) -> bytes:
    """As Vowpal Wabbit text."""
    labels, rows = random_entries(seed)
    lines = []
    for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
        pairs = " ".join(f"f{feature}:{value}" for feature, value in row.items())
        lines.append(f"{label} 1.5 'tag{number}|a:2 {pairs} |b red 7:0.5")
    return ("\n".join(lines) + "\n").encode()


def random_table(seed: int) -> dict[str, list[Any]]:
    """As columns."""
    labels, rows = random_entries(seed)
    return {
        "label": [int(label) for label in labels],
        "x": [row.get(0, 0.25) if number % 7 else None for number, row in enumerate(rows)],
        "n": list(range(ROWS)),
        "colour": [["red", "blue", 'of "glass"', None][len(row) % 4] for row in rows],
        "words": [f"some words, {label} of them or not" for label in labels],
    }


def lines_text(seed: int) -> bytes:
    """Documents with their labels before a tab, or as in fastText."""
    rng = np.random.default_rng(seed)
    shapes = ["{}\tsome words {}", "__label__{} some Wörter {}"]
    return "".join(shapes[at % 2].format("ab"[rng.integers(2)], at) + "\n" for at in range(ROWS)).encode()


def csv_text(seed: int, delimiter: str = ",") -> bytes:
    """As delimited text."""
    import csv

    table, out = random_table(seed), io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return out.getvalue().encode()


def jsonl_text(seed: int) -> bytes:
    """As JSON lines."""
    table = random_table(seed)
    return "".join(
        json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in zip(*table.values(), strict=True)
    ).encode()


def arrow_bytes(seed: int, kind: str) -> bytes:
    """As Parquet or Arrow, of several kinds."""
    _labels, rows = random_entries(seed)
    table = pa.table(random_table(seed))
    if seed % 3 == 1:
        table = table.set_column(3, "colour", table["colour"].dictionary_encode())
    if seed % 3 == 2:
        entries = [[{"index": feature, "value": value} for feature, value in row.items()] for row in rows]
        table = pa.table({"label": table["label"], "features": entries})
    sink = io.BytesIO()
    if kind == "parquet":
        compression = ["none", "snappy", "zstd"][seed % 3]
        pyarrow.parquet.write_table(table, sink, compression=compression, row_group_size=10)
    else:
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression=[None, "zstd", None][seed % 3])
        with make(sink, table.schema, options=options) as writer:
            writer.write_table(table, 10)
    return sink.getvalue()


def matrix_of(seed: int) -> sp.csr_matrix:
    """As a sparse matrix."""
    _labels, rows = random_entries(seed)
    indptr = np.cumsum([0, *map(len, rows)])
    indices = [feature for row in rows for feature in row]
    return sp.csr_matrix(([value for row in rows for value in row.values()], indices, indptr), shape=(ROWS, 40))


def npz_bytes(seed: int) -> bytes:
    """As scipy writes it."""
    sink = io.BytesIO()
    sp.save_npz(sink, matrix_of(seed), compressed=bool(seed % 2))
    return sink.getvalue()


def other_npz(rng: Rng, content: bytes) -> bytes:
    """The same with one array that does not go with the others."""
    with np.load(io.BytesIO(content)) as found:
        arrays = {name: found[name] for name in found.files}
    name = str(rng.choice(list(arrays)))
    old, what = arrays[name], rng.integers(8)
    flat = old.ravel().copy()
    if what < 4 and len(flat) and flat.dtype.kind in "if":
        most = np.iinfo(flat.dtype).max if flat.dtype.kind == "i" else 3e38
        flat[rng.integers(len(flat))] = rng.choice([-1, 0, 1, 41, 255, 2**31 - 1, most, -most])
    elif what == 4:
        flat = flat[: rng.integers(len(flat) + 1)]
    elif what == 5:
        flat = np.concatenate([flat, flat])
    elif what == 6 and flat.dtype.kind in "if":
        flat = flat.astype(rng.choice(["int8", "uint8", "int64", "uint64", "float16", "float64", "U5", "bool", "S3"]))
    else:
        flat = np.array(0) if rng.random() < 0.5 else flat.reshape(-1, 1)
    arrays[name] = flat
    sink = io.BytesIO()
    np.savez(sink, **arrays)
    return sink.getvalue()


def npy_bytes(seed: int) -> bytes:
    """As numpy writes it."""
    sink = io.BytesIO()
    array = matrix_of(seed).toarray().astype([np.float32, np.float64, np.int32][seed % 3])
    np.save(sink, array if seed % 2 else np.asfortranarray(array))
    return sink.getvalue()


def compressed(seed: int) -> bytes:
    """Text, one time in each of the formats."""
    import bz2
    import gzip
    import lzma

    text = random_svmlight_text(seed)
    kinds: list[Any] = [gzip.compress, bz2.compress, lzma.compress, lambda data: pa.compress(data, "zstd").to_pybytes()]
    return kinds[seed % 4](text)


def _convert(rng: Rng, inputs: list[str], folder: Path, roughly: float = _WRITE_ROUGHLY, **options: Any) -> None:
    """Preview some inputs, or convert them and train on the store."""
    config = ConvertConfig(**{"threads": 1, "on_bad_row": str(rng.choice(["stop", "skip"])), **options})
    if rng.random() < roughly:
        preview(inputs, config)
        return
    if rng.random() < 0.3:
        config = dataclasses.replace(
            config, chunk_size=1024, task=str(rng.choice(["auto", "multiclass", "regression"]))
        )
    store = convert(inputs, folder / "store", config, existing=REPLACE)
    problems = verify(store).problems
    assert not problems, problems
    if store.features < LARGE:
        train(store, TrainConfig(lam=0.1, max_epochs=1, threads=1, memory=1 << 28))


def text_format(make: Callable[[int], bytes], name: str, **options: Any) -> Callable[[Path], Attempt]:
    """One file in one of the formats that `convert` and `predict` read."""

    def prepare(folder: Path) -> Attempt:
        examples = [make(seed) for seed in range(12)]
        file = folder / name
        file.write_bytes(make(0))
        labels = folder / "labels.txt"
        labels.write_text("\n".join(random_entries(0)[0]) + "\n")
        arrays = {"labels": str(labels)} if name.endswith((".npz", ".npy")) else {}
        store = convert([str(file)], folder / "sound", ConvertConfig(threads=1, **options, **arrays), existing=REPLACE)
        model = train(store, TrainConfig(lam=0.1, max_epochs=1, threads=1)).model

        def attempt(rng: Rng) -> None:
            one, other = rng.integers(len(examples), size=2)
            if name.endswith(".npz") and rng.random() < 0.7:
                file.write_bytes(other_npz(rng, examples[one]))
            else:
                file.write_bytes(damaged(rng, examples[one], examples[other]))
            if rng.random() < 0.25:
                predict(model, file, folder / "predicted.csv", 1)
            else:
                _convert(rng, [str(file)], folder, **options, **arrays)

        return attempt

    return prepare


def folders(folder: Path) -> Attempt:
    """Folders of texts."""
    root = folder / "texts"

    def attempt(rng: Rng) -> None:
        shutil.rmtree(root, ignore_errors=True)
        for group in range(int(rng.integers(1, 4))):
            place = root / ["good", "bad", "x" * 200][group]
            place.mkdir(parents=True)
            for number in range(int(rng.integers(0, 4))):
                content = damaged(rng, b"some words, of the kind that people use\n" * 3, csv_text(0))
                (place / f"{number}.txt").write_bytes(content)
        if rng.random() < 0.1:
            (root / "dangling").symlink_to("nowhere")
        if rng.random() < 0.1:
            (root / os.fsdecode(b"\xff\xfe")).mkdir(exist_ok=True)
            (root / os.fsdecode(b"\xff\xfe") / os.fsdecode(b"\x80")).write_text("words")
        extra = [{}, {"idf": True}, {"dictionary": 5}, {"characters": True, "ngrams": "1:3"}][rng.integers(4)]
        _convert(rng, [str(root)], folder, **extra)

    return attempt


def beside(kind: str) -> Callable[[Path], Attempt]:
    """A file with a value for each row: weights, or labels as text or .npy."""

    def prepare(folder: Path) -> Attempt:
        data = folder / ("data.svm" if kind == "weights" else "data.npz")
        data.write_bytes(random_svmlight_text(0) if kind == "weights" else npz_bytes(0))
        sink = io.BytesIO()
        np.save(sink, np.array([int(label) for label in random_entries(0)[0]]))
        words = ["1.5", "2", "0.001"] if kind == "weights" else ["1", "-1", "2e0"]
        text = "".join(f"{words[number % 3]}\n" for number in range(ROWS)).encode()
        file = folder / f"{kind}.txt"

        def attempt(rng: Rng) -> None:
            asnpy = kind == "labels" and rng.random() < 0.5
            file.with_suffix(".npy" if asnpy else ".txt").write_bytes(
                damaged(rng, sink.getvalue() if asnpy else text, text)
            )
            name = str(file.with_suffix(".npy" if asnpy else ".txt"))
            _convert(rng, [str(data)], folder, 0.0 if kind == "weights" else 0.8, **{kind: name})

        return attempt

    return prepare


# --- stores -------------------------------------------------------------------------------------


def use_store(rng: Rng, path: Path, model: Model, folder: Path) -> None:
    """One random operation on a store."""
    store = Store.open(path)
    what = rng.integers(7) if store.features < LARGE else 0  # so many need the memory that they say they need
    if what == 0:
        verify(store)
    elif what == 1:
        store.to_scipy()
        store.weights()
    elif what == 2:
        evaluate(model, path, 1)
    elif what == 3:
        extra = folder / "extra.svm"
        target = folder / "appended"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(path, target)
        shutil.rmtree(target.with_name("appended.unfinished"), ignore_errors=True)
        convert([str(extra)], target, ConvertConfig(threads=1), existing=Existing(append=True))
    else:
        loss = rng.choice(["hinge", "logistic"]) if store.manifest.labels.task == "binary" else None
        train(
            store,
            TrainConfig(
                lam=[0.1, (0.1, 0.2, 0.3)][rng.integers(2)],
                loss=None if loss is None else str(loss),  # type: ignore[arg-type]
                max_epochs=1,
                threads=1,
                bias=[None, "feature"][rng.integers(2)],
                holdout=[None, 0.2][rng.integers(2)],
                algorithm=["auto", "sdca", "sgd-s"][rng.integers(3)],
                loading=[None, "mapped", "read"][rng.integers(3)],
                memory=max(1 << 20, 2 * max(map(cost_of, store.manifest.chunks))) if rng.random() < 0.5 else 1 << 26,
            ),
        )


def stores_of(folder: Path) -> list[tuple[Path, Model]]:
    """Stores of every coding, with a model of each."""
    (folder / "extra.svm").write_bytes(random_svmlight_text(5))
    wide = b"".join(b"%d %d:%d %d:1\n" % (i % 2 or -1, 1 + i, i % 3, 400_000 + i) for i in range(ROWS))
    several = b"".join(b"%d %d:%f\n" % (i % 3, 1 + i % 9, i / 7) for i in range(ROWS))
    weights = folder / "row-weights.txt"
    weights.write_text("".join(f"{1 + i % 3}.5\n" for i in range(ROWS)))
    made = []
    inputs: list[tuple[bytes, str, dict[str, Any]]] = [
        (random_svmlight_text(1), "a.svm", {"classes": ("-1", "1"), "features": 40}),
        (random_svmlight_text(2), "b.svm", {"values": "float16", "weights": str(weights), "chunk_size": 1024}),
        (random_svmlight_text(3), "c.svm", {"values": "float32", "task": "regression"}),
        (wide, "d.svm", {"values": "bfloat16", "features": 500_000}),
        (several, "e.svm", {"task": "multiclass"}),
        (csv_text(4), "f.csv", {"dictionary": 20, "chunk_size": 1024}),
        (jsonl_text(4), "g.jsonl", {"text": ("words",), "idf": True, "hash_bits": 8, "feature_names": 50}),
    ]
    for content, name, options in inputs:
        (folder / name).write_bytes(content)
        config = ConvertConfig(threads=1, **options)
        store = convert([str(folder / name)], folder / f"{name}.store", config, existing=REPLACE)
        made.append((store.path, train(store, TrainConfig(lam=0.1, max_epochs=1, threads=1)).model))
    return made


def resealed(table: dict[str, Any]) -> bytes:
    """A manifest, or another table, with its checksum made right."""
    table = {key: value for key, value in table.items() if key != "checksum"}
    checksum = zlib.crc32(
        json.dumps(table, sort_keys=True).encode()
    )  # as checked.py has it, but for numbers that are none
    return json.dumps({**table, "checksum": f"{checksum:08x}"}).encode()


def copy_of(path: Path, folder: Path) -> Path:
    """A store to be damaged."""
    target = folder / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target)
    return target


def manifest(folder: Path) -> Attempt:
    """A changed manifest, mostly with a valid checksum."""
    stores = stores_of(folder)

    def attempt(rng: Rng) -> None:
        path, model = stores[rng.integers(len(stores))]
        target = copy_of(path, folder)
        content = (target / "manifest.json").read_bytes()
        table = json.loads(content)
        content = damaged(rng, content) if rng.random() < 0.2 else resealed(_changed_manifest(rng, table))
        (target / "manifest.json").write_bytes(content)
        use_store(rng, target, model, folder)

    return attempt


def _changed_manifest(rng: Rng, table: dict[str, Any]) -> dict[str, Any]:
    if rng.random() < 0.5:  # what the numbers are for, rather than what is not one of them
        part = ["chunks", "layout", "labels", "statistics", "recipe", "vocabulary"][rng.integers(6)]
        return {**table, part: changed(rng, {part: table[part]}).get(part)}
    return changed(rng, table)


def chunk(folder: Path) -> Attempt:
    """A chunk file with changed bytes and valid checksums."""
    stores = stores_of(folder)

    def attempt(rng: Rng) -> None:
        path, model = stores[rng.integers(len(stores))]
        target = copy_of(path, folder)
        table = json.loads((target / "manifest.json").read_text())
        told = table["chunks"][rng.integers(len(table["chunks"]))]
        file = target / told["file"]
        content = bytearray(file.read_bytes())
        if rng.random() < 0.7:  # in one of the columns
            starts = [start for start in told["starts"].values() if start is not None]
            for _ in range(int(rng.integers(1, 4))):
                at = starts[rng.integers(len(starts))] + 4 * int(rng.geometric(0.1) - 1)
                piece = content[at : at + 8]
                content[at : at + 8] = (damaged(rng, bytes(piece)) + bytes(8))[: len(piece)]
        else:
            content = bytearray(damaged(rng, bytes(content)))
        file.write_bytes(content)
        told |= {
            "bytes": len(content),
            "crc32": f"{zlib.crc32(content):08x}",
            "xxh64": xxh64_hex(bytes(content) or b""),
        }
        if rng.random() < 0.2:
            told |= changed(rng, {"starts": told["starts"], "entries": told["entries"]})
        (target / "manifest.json").write_bytes(resealed(table))
        use_store(rng, target, model, folder)

    return attempt


def vocabulary(folder: Path) -> Attempt:
    """A vocabulary with changed bytes and a valid checksum."""
    stores = [made for made in stores_of(folder) if list(made[0].glob("features-*"))]
    assert len(stores) == 2

    def attempt(rng: Rng) -> None:
        path, model = stores[rng.integers(len(stores))]
        target = copy_of(path, folder)
        table = json.loads((target / "manifest.json").read_text())
        told = table["vocabulary"]
        content = (target / told["file"]).read_bytes()
        content = _other_columns(rng, content) if rng.random() < 0.5 else damaged(rng, content)
        digest = xxh64_hex(content or b"")
        told |= {"file": f"features-{digest}.arrow", "bytes": len(content), "xxh64": digest}
        (target / told["file"]).write_bytes(content)
        (target / "manifest.json").write_bytes(resealed(table))
        if rng.random() < 0.3:
            from ooc_pegasos.store.vocabulary import of_store

            of_store(target, Store.open(target).manifest).known_names()
        use_store(rng, target, model, folder)

    return attempt


def _other_columns(rng: Rng, content: bytes, change_head: Callable[[bytes], bytes] | None = None) -> bytes:
    """An Arrow file whose columns are others: longer, shorter, of other types, called otherwise."""
    table = pa.ipc.open_file(content).read_all()
    metadata = dict(table.schema.metadata or {})
    if change_head:
        metadata = {key: value if key == b"seal" else change_head(value) for key, value in metadata.items()}
    if not change_head or rng.random() < 0.3:
        for _ in range(int(rng.integers(1, 3))):
            at = int(rng.integers(table.num_columns))
            name, column, what = table.column_names[at], table.column(at).combine_chunks(), rng.integers(9)
            values = column.to_pylist()
            if what == 0 and table.num_columns > 1:
                table = table.remove_column(at)
            elif what == 1:
                table = table.slice(int(rng.integers(0, 3)), max(0, len(table) - int(rng.integers(4))))
            elif what == 2:
                table = pa.concat_tables([table, table])
            elif what == 3:
                table = table.set_column(at, name + "x", column)
            elif what == 4:
                table = table.set_column(at, name, pa.nulls(len(table), column.type))
            elif what == 5 and len(values):
                values[rng.integers(len(values))] = None
                table = table.set_column(at, pa.field(name, column.type), [pa.array(values, column.type)])
            elif what == 6 and len(values):
                number = VALUES[int(rng.integers(len(VALUES)))]
                try:
                    values[rng.integers(len(values))] = number
                    table = table.set_column(at, name, pa.array(values, column.type))
                except (pa.ArrowException, OverflowError, ValueError, TypeError):
                    table = table.append_column("more", column)
            elif what == 7:
                kinds = [
                    pa.int64(),
                    pa.float32(),
                    pa.float64(),
                    pa.uint32(),
                    pa.string(),
                    pa.large_string(),
                    pa.bool_(),
                ]
                kind = kinds[rng.integers(len(kinds))]
                table = table.set_column(
                    at, name, pa.array([None if v is None else _as(kind, v) for v in values], kind)
                )
            else:
                order = rng.permutation(len(table))
                table = table.take(order)
    schema = table.schema.with_metadata(metadata)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(metadata), int(rng.choice([3, 1 << 20])))
    return sink.getvalue()


def _as(kind: Any, value: Any) -> Any:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(value)
    number = float(len(value) if isinstance(value, str | list) else value)
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return bool(number) if pa.types.is_boolean(kind) else number
    return abs(int(number)) % 100 if np.isfinite(number) else 0


# --- models and checkpoints ---------------------------------------------------------------------


def sealed(content: bytes) -> bytes:
    """With its checksum made right, if there is room for it."""
    return seal(_PATTERN.sub(_NAME + b"00000000", content))


def model(folder: Path) -> Attempt:
    """A changed model, mostly with a valid checksum."""
    stores = stores_of(folder)
    files = []
    for number, (path, made) in enumerate(stores):
        files.append((folder / f"{number}.model", path))
        made.save(files[-1][0])
    several = train(Store.open(stores[4][0]), TrainConfig(lam=0.1, max_epochs=1, threads=1, loss="multiclass-hinge"))
    several.model.save(folder / "costs.model")
    config = TrainConfig(lam=0.1, max_epochs=1, threads=1, holdout=0.5, calibrate="isotonic", bias="feature")
    train(Store.open(stores[0][0]), config).model.save(folder / "isotonic.model")
    config = dataclasses.replace(config, calibrate="platt", loss="logistic")
    train(Store.open(stores[0][0]), config).model.save(folder / "platt.model")
    files += [(folder / "costs.model", stores[4][0])]
    files += [(folder / f"{name}.model", stores[0][0]) for name in ("isotonic", "platt")]
    raw = {path: path.with_suffix("") for path, _model in stores}

    def attempt(rng: Rng) -> None:
        file, store = files[rng.integers(len(files))]
        content = file.read_bytes()
        if rng.random() < 0.4:
            content = damaged(rng, content)
            content = sealed(content) if rng.random() < 0.8 else content
        else:
            content = sealed(_other_columns(rng, content, lambda head: _changed_head(rng, head)))
        target = folder / "damaged.model"
        target.write_bytes(content)
        made = Model.load(target)
        what = rng.integers(6)
        if what == 0:
            evaluate(made, store, 1)
        elif what == 1:
            evaluate(made, raw[store], 1)
        elif what == 2:
            predict(made, store, folder / "predicted.parquet", 1, proba=made.has_probabilities)
        elif what == 3:
            predict(made, raw[store], folder / "predicted.csv", 1, proba=made.has_probabilities)
        elif what == 4:
            made.save(folder / "again.model")
            Model.load(folder / "again.model")
        else:
            config = TrainConfig(lam=0.1, max_epochs=1, threads=1, bias="feature" if made.bias.any() else None)
            train(Store.open(store), config, warm_start=made)

    return attempt


def _changed_head(rng: Rng, head: bytes) -> bytes:
    table = json.loads(head)
    inner = next(name for name in ("info", "facts") if name in table)
    if rng.random() < 0.8:
        table[inner] = json.dumps(changed(rng, json.loads(table[inner])))
    else:
        table = changed(rng, table)
    return json.dumps(table).encode()


RUNS: list[dict[str, Any]] = [
    {"algorithm": "sdca", "lam": 0.1},
    {"algorithm": "sdca", "lam": 0.1, "memory": 1},
    {"algorithm": "sdca", "lam": (0.1, 0.2, 0.3, 0.4)},
    {"algorithm": "sdca", "lam": (0.1, 0.2, 0.3, 0.4), "memory": 1, "bias": "feature"},
    {"algorithm": "sgd-s", "lam": 0.1},
    {"algorithm": "sgd-s", "lam": (0.1, 0.2, 0.3), "memory": 1},
    {"algorithm": "sgd-s", "lam": 0.1, "average": True, "sampling": "iid"},
]


def run_config(store: Store, number: int, epochs: int) -> TrainConfig:
    """A training run that leaves checkpoints; `memory` 1 stands for the least."""
    told = dict(RUNS[number])
    if "memory" in told:
        told["memory"] = 2 * max(cost_of(info) + 200 * (info.rows + 1) for info in store.manifest.chunks)
    return TrainConfig(threads=1, tolerance=1e-12, max_epochs=epochs, checkpoint_epochs=1, refit=False, **told)


def checkpoint(folder: Path) -> Attempt:
    """A changed checkpoint, mostly with a valid checksum."""
    (folder / "a.svm").write_bytes(b"".join(map(random_svmlight_text, range(20))))
    config = ConvertConfig(threads=1, chunk_size=1024, features=40)
    store = convert([str(folder / "a.svm")], folder / "a.store", config, existing=REPLACE)
    for number in range(len(RUNS)):
        train(store, run_config(store, number, 2), checkpoint=folder / f"run{number}")

    def attempt(rng: Rng) -> None:
        number = int(rng.integers(len(RUNS)))
        place = folder / "resumed"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / f"run{number}", place)
        file = place / "training.checkpoint"
        rows = list(place.glob("rows-*.checkpoint"))
        what = rng.random()
        if what < 0.2:
            file.write_bytes(sealed(damaged(rng, file.read_bytes())))
        elif what < 0.3 and rows:
            content = damaged(rng, rows[0].read_bytes())
            rows[0].write_bytes(content)
            saved = Checkpoint.load(place)
            assert saved is not None
            saved.facts["solver"]["rows"] |= {"bytes": len(content), "crc32": zlib.crc32(content)}
            saved.save(place)
        elif what < 0.8:
            saved = Checkpoint.load(place)
            assert saved is not None
            facts = saved.facts
            part = ["cursor", "solver", "known", "pending", "best", "budget", "costs"][rng.integers(7)]
            facts = changed(rng, facts) if rng.random() < 0.2 else {**facts, **changed(rng, {part: facts[part]})}
            Checkpoint(saved.arrays, facts).save(place)
        else:
            saved = Checkpoint.load(place)
            assert saved is not None
            arrays = dict(saved.arrays)
            name = list(arrays)[rng.integers(len(arrays))]
            old = arrays[name]
            new = [
                *(old[:-1], np.append(old, 1.0), old[:0], np.full(len(old), np.nan), old * 1e300, -old, None),
                old + 2.0**40,
            ][rng.integers(8)]
            arrays = {key: value for key, value in (arrays | {name: new}).items() if value is not None}
            Checkpoint(arrays, saved.facts).save(place)
        train(store, run_config(store, number, 3), checkpoint=place, resume=True)

    return attempt


# --- what stands beside chunks, and what is left of a conversion ------------------------------------


def ids(folder: Path) -> Attempt:
    """A file of ids with changed bytes and a valid checksum."""
    made = []
    for name, content, options in (
        ("words.csv", csv_text(0), {"id": "colour", "hash_bits": 8}),
        ("numbers.csv", csv_text(1), {"id": "n", "chunk_size": 1024, "hash_bits": 8}),
        ("tags.vw", random_vw_text(2), {"hash_bits": 8}),
    ):
        (folder / name).write_bytes(content)
        config = ConvertConfig(threads=1, **options)
        store = convert([str(folder / name)], folder / f"{name}.store", config, existing=REPLACE)
        made.append((store.path, train(store, TrainConfig(lam=0.1, max_epochs=1, threads=1)).model))

    def attempt(rng: Rng) -> None:
        path, model = made[rng.integers(len(made))]
        target = copy_of(path, folder)
        table = json.loads((target / "manifest.json").read_text())
        told = table["chunks"][rng.integers(len(table["chunks"]))]["ids"]
        content = (target / told["file"]).read_bytes()
        content = _other_columns(rng, content) if rng.random() < 0.5 else damaged(rng, content)
        digest = xxh64_hex(content or b"")
        number = told["file"].split("-")[1]
        (target / told["file"]).unlink()
        told |= {"file": f"ids-{number}-{digest[:8]}.arrow", "bytes": len(content), "xxh64": digest}
        if rng.random() < 0.1:
            told |= changed(rng, told)
        (target / f"ids-{number}-{digest[:8]}.arrow").write_bytes(content)
        (target / "manifest.json").write_bytes(resealed(table))
        store = Store.open(target)
        what = rng.integers(4)
        if what == 0:
            verify(store)
        elif what == 1:
            predict(model, target, folder / ["p.csv", "p.parquet", "p.arrow"][rng.integers(3)], 1)
        else:
            for chunk in range(len(store.manifest.chunks)):
                store.ids(chunk)
            store.id_type()

    return attempt


class _KilledError(BaseException):
    """Simulates a kill: not caught by any handler."""


def unfinished(folder: Path) -> Attempt:
    """The files of a killed conversion, with changed bytes: resuming gives the same store or an error."""
    from unittest.mock import patch

    from ooc_pegasos.conversion.first_pass import Ingest
    from ooc_pegasos.conversion.pipeline import Conversion
    from ooc_pegasos.conversion.second_pass import Assembly

    text = random_svmlight_text(0) * 8 + b"bad row\n" + random_svmlight_text(1) * 8
    (folder / "in.svm").write_bytes(text)
    (folder / "in.csv").write_bytes(csv_text(0) + b"".join(csv_text(seed).split(b"\n", 1)[1] for seed in range(1, 8)))
    (folder / "place").mkdir()
    common: dict[str, Any] = {"threads": 1, "block_size": 4096, "chunk_size": 1024, "on_bad_row": "skip"}
    kinds = [("in.svm", common), ("in.csv", {**common, "hash_bits": 8, "feature_names": 60, "id": "n"})]
    scenes = []
    for number, (name, options) in enumerate(kinds):
        whole = convert([str(folder / name)], folder / "place" / "store", ConvertConfig(**options), existing=REPLACE)
        expected = {path.name: path.read_bytes() for path in whole.path.iterdir()}
        for home, step in ((Ingest, "finish_sources"), (Assembly, "run"), (Conversion, "publish")):
            shutil.rmtree(folder / "place")
            (folder / "place").mkdir()
            calls = [0]
            original = getattr(home, step)

            def killed(*words: Any, original: Any = original, step: str = step, calls: list[int] = calls) -> Any:
                calls[0] += 1
                if step != "finish_sources" or calls[0] == 4:
                    raise _KilledError
                return original(*words)

            try:
                with patch.object(home, step, killed):
                    convert([str(folder / name)], folder / "place" / "store", ConvertConfig(**options))
            except _KilledError:
                pass
            scene = folder / f"{number}-{step}"
            shutil.copytree(folder / "place", scene)
            assert (scene / "store.unfinished" / "plan.json").exists()
            scenes.append((name, options, scene, expected))

    def attempt(rng: Rng) -> None:
        name, options, scene, expected = scenes[rng.integers(len(scenes))]
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(scene, place)
        files = sorted(path for path in (place / "store.unfinished").rglob("*") if path.is_file())
        for _ in range(1 + int(rng.integers(2))):
            file = files[rng.integers(len(files))]
            if rng.random() < 0.1:
                file.unlink(missing_ok=True)
            elif file.exists():
                file.write_bytes(damaged(rng, file.read_bytes()))
        existing = Existing(resume=True)
        store = convert([str(folder / name)], place / "store", ConvertConfig(**options), existing=existing)
        found = {path.name: path.read_bytes() for path in store.path.iterdir()}
        assert found == expected, [key for key in {*found, *expected} if found.get(key) != expected.get(key)]

    return attempt


# --- settings -----------------------------------------------------------------------------------


def _toml(table: dict[str, Any]) -> bytes:
    lines = []
    for key, value in table.items():
        if value is None or isinstance(value, dict):
            continue
        word = json.dumps(value)
        lines.append(f"{key} = {word.replace('Infinity', 'inf').replace('NaN', 'nan')}")
    return "\n".join(lines).encode(errors="surrogatepass")


def settings(cls: Any) -> Callable[[Path], Attempt]:
    """A TOML file for `convert` or for `train`."""

    def prepare(folder: Path) -> Attempt:
        data = folder / "data.csv"
        data.write_bytes(csv_text(0))
        (folder / "a.svm").write_bytes(random_svmlight_text(0))
        sound = convert([str(folder / "a.svm")], folder / "sound", ConvertConfig(threads=1), existing=REPLACE)
        known = {field.name: getattr(cls(), field.name) for field in dataclasses.fields(cls)}
        some = {
            "label": "label",
            "classes": ["-1", "1"],
            "memory": "64MB",
            "numeric": ["x"],
            "hash_bits": 8,
            "clip": 2.0,
        }
        if cls is TrainConfig:
            some = {
                "lam": 0.1,
                "loss": "hinge",
                "bias": "feature",
                "batch_size": 2,
                "holdout": 0.1,
                "algorithm": "sgd-s",
            }
        full = {**known, **some}

        def attempt(rng: Rng) -> None:
            names = rng.choice(list(full), int(rng.integers(1, 6)), replace=False).tolist()
            table = changed(rng, {name: full[name] for name in ({*names, *some} if rng.random() < 0.5 else names)})
            content = _toml(table)
            file = folder / "settings.toml"
            file.write_bytes(damaged(rng, content) if rng.random() < 0.3 else content)
            config = typed_json.load(cls, load_toml(cls, file))
            if cls is TrainConfig:
                little = {"max_seconds": 0.05, "max_epochs": 2}
                train(sound, dataclasses.replace(config, **little))
            else:
                config = dataclasses.replace(config, hash_bits=config.hash_bits and min(config.hash_bits, 20))
                if rng.random() < 0.9:
                    preview([str(data)], config)
                else:
                    convert([str(data)], folder / "store", config, existing=REPLACE)

        return attempt

    return prepare


def costs(folder: Path) -> Attempt:
    """A table of misclassification costs."""
    from ooc_pegasos.option_texts import read_costs

    (folder / "a.svm").write_bytes(b"".join(b"%d %d:1\n" % (i % 3, 1 + i % 7) for i in range(ROWS)))
    config = ConvertConfig(threads=1, task="multiclass")
    store = convert([str(folder / "a.svm")], folder / "sound", config, existing=REPLACE)

    def attempt(rng: Rng) -> None:
        file = folder / "costs.txt"
        file.write_bytes(damaged(rng, b"0 1 2.5\n1, 0, 1\n3 1 0\n", b"0 1\n1 0\n"))
        given = read_costs(str(file))
        train(store, TrainConfig(lam=0.1, max_epochs=1, threads=1, loss="multiclass-hinge", cost=given))

    return attempt


# --- jobs ---------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "store": "s.store",
    "models": "models",
    "inputs": ["in/*.svm"],
    "golden": ["golden.svm"],
    "name": "nightly",
    "expire_days": 9000.5,
    "warm_start": True,
    "retune": False,
    "keep": 2,
    "reserve": 1,
    "log": "log.jsonl",
    "metrics": "job.prom",
}
JOB_PARTS: dict[str, dict[str, Any]] = {
    "convert": {"values": "float32", "features": 40, "index_base": 1, "classes": ["-1", "1"], "threads": 1},
    "train": {"lam": 0.1, "tolerance": 0.05, "threads": 1, "holdout": 0.2},
    "gate": {"max_relative_regression": 0.9, "require_certified": False, "metric": "mean_loss"},
}


def _job_toml(table: dict[str, Any]) -> bytes:
    parts = [_toml({key: value for key, value in table.items() if not isinstance(value, dict)})]
    for key, value in table.items():
        if isinstance(value, dict):
            parts.append(f"[{key}]\n".encode(errors="replace") + _toml(value))
    return b"\n".join(parts) + b"\n"


def _night(folder: Path, extra: dict[str, Any] | None = None) -> Job:
    """A job whose first night is over, with new files for the second."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a.svm").write_bytes(random_svmlight_text(0))
    (folder / "golden.svm").write_bytes(random_svmlight_text(9))
    (folder / "job.toml").write_bytes(_job_toml({**JOB, **JOB_PARTS, **(extra or {})}))
    job = Job.load(folder / "job.toml")
    run_job(job)
    (folder / "in" / "b.svm").write_bytes(random_svmlight_text(1))
    return job


def job(folder: Path) -> Attempt:
    """A job file in a dry run, since its paths may lead anywhere."""
    _night(folder)

    def attempt(rng: Rng) -> None:
        names = rng.choice(list(JOB), int(rng.integers(3, len(JOB) + 1)), replace=False).tolist()
        table = {name: JOB[name] for name in {*names, "store", "models", "inputs"}}
        table |= {name: part for name, part in JOB_PARTS.items() if rng.random() < 0.5}
        if "gate" in table:
            table["gate"] = {**table["gate"], "min_auc": 0.01, "confidence": 0.5}
        content = _job_toml(changed(rng, table))
        (folder / "job.toml").write_bytes(damaged(rng, content) if rng.random() < 0.3 else content)
        loaded = Job.load(folder / "job.toml")
        loaded.digest()
        loaded.training()
        loaded.sets()
        if rng.random() < 0.3:
            plan_job(loaded, datetime.now(UTC)).lines()

    return attempt


def state(folder: Path) -> Attempt:
    """The changed state of a killed run, with a valid checksum."""
    from unittest.mock import patch

    from ooc_pegasos.jobs import records, run, state
    from ooc_pegasos.jobs.versions import Versions

    place = folder / "place"
    place.mkdir()
    found = _night(place)
    shutil.copytree(place, folder / "first", symlinks=True)
    scenes = []
    for home, step in ((run.JobRun, "train_candidate"), (run.JobRun, "compare"), (Versions, "publish")):
        shutil.rmtree(place)
        shutil.copytree(folder / "first", place, symlinks=True)
        try:
            with patch.object(home, step, side_effect=_KilledError):
                run_job(found)
        except _KilledError:
            pass
        scenes.append(shutil.copytree(place, folder / f"before{step}", symlinks=True))

    def attempt(rng: Rng) -> None:
        scene = scenes[rng.integers(len(scenes))]
        content = (scene / "models" / ".run" / "state.json").read_bytes()
        table = json_checksum.decode(content)
        if rng.random() < 0.5:
            part = str(rng.choice(list(table)))
            table |= changed(rng, {part: table[part]})
        else:
            table = changed(rng, table)
        content = damaged(rng, content) if rng.random() < 0.2 else resealed(table)
        if rng.random() < 0.03:
            shutil.rmtree(place)
            shutil.copytree(scene, place, symlinks=True)
            (place / "models" / ".run" / "state.json").write_bytes(content)
            run_job(found)
            return
        (folder / "state.json").write_bytes(content)
        loaded = state.load(folder)
        assert loaded is not None
        record = records.record_of(found, loaded, "refused", 7, datetime.now(UTC))
        records.as_json(record)
        run_lines(record)
        records.write_metrics(folder / "job.prom", record)
        loaded.save(folder)

    return attempt


def record(folder: Path) -> Attempt:
    """The changed record of the model in use, from which the next run finds whether there is new input."""
    from ooc_pegasos.jobs.run import JobRun
    from ooc_pegasos.jobs.versions import Versions
    from ooc_pegasos.reporting.progress import Progress, TrainingProgress

    found = _night(folder)
    (folder / "in" / "b.svm").unlink()
    versions = Versions(found.models)
    path = versions.folder / str(versions.current()) / "run.json"
    content, known = path.read_bytes(), Model.load(versions.model(str(versions.current())))
    store = Store.open(found.store)

    def attempt(rng: Rng) -> None:
        one = json.dumps(changed(rng, json.loads(content))).encode()
        path.write_bytes(damaged(rng, content) if rng.random() < 0.5 else one)
        night = JobRun(found, versions, lambda: datetime.now(UTC), Progress(), TrainingProgress())
        night.state.champion = versions.current()
        assert night._is_due(known, store) in (True, False)
        if rng.random() < 0.001:
            path.write_bytes(content)
            assert run_job(found)["outcome"] == "unchanged"

    return attempt


FORMATS: dict[str, Callable[[Path], Attempt]] = {
    "svmlight": text_format(random_svmlight_text, "in.svm"),
    "vw": text_format(random_vw_text, "in.vw", hash_bits=10),
    "text-lines": text_format(lines_text, "in.txt", format="text-lines", hash_bits=10),
    "csv": text_format(csv_text, "in.csv", hash_bits=10),
    "tsv": text_format(lambda seed: csv_text(seed, "\t"), "in.tsv", hash_bits=10, text=("words",), numeric=("x", "n")),
    "jsonlines": text_format(jsonl_text, "in.jsonl", hash_bits=10),
    "compressed": text_format(compressed, "in.svm.gz"),
    "parquet": text_format(lambda seed: arrow_bytes(seed, "parquet"), "in.parquet", hash_bits=10),
    "arrow": text_format(lambda seed: arrow_bytes(seed, "arrow"), "in.arrow", hash_bits=10),
    "arrow-stream": text_format(lambda seed: arrow_bytes(seed, "stream"), "in.ipc", hash_bits=10),
    "npz": text_format(npz_bytes, "in.npz"),
    "npy": text_format(npy_bytes, "in.npy"),
    "folders": folders,
    "weights": beside("weights"),
    "labels": beside("labels"),
    "recipe": settings(ConvertConfig),
    "config": settings(TrainConfig),
    "manifest": manifest,
    "chunk": chunk,
    "vocabulary": vocabulary,
    "ids": ids,
    "unfinished": unfinished,
    "model": model,
    "checkpoint": checkpoint,
    "costs": costs,
    "job": job,
    "state": state,
    "record": record,
}


# --- running ------------------------------------------------------------------------------------


def _memory() -> tuple[int, int]:
    """(bytes of addresses, bytes of memory at the most)."""
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmSize"].split()[0]) << 10, int(words["VmHWM"].split()[0]) << 10


def run_tries(name: str, first: int, count: int, folder: Path) -> dict[str, Any]:
    """Run some tries of a format, and return their results."""
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    attempt = FORMATS[name](place)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    room = _memory()[0] + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard))
    before = _memory()[1]
    log = os.open(folder / "try", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    refused, slowest = 0, (0.0, 0)
    failures: dict[str, str] = {}
    for seed in range(first, first + count):
        os.pwrite(log, f"{name}:{seed:<20}".encode(), 0)
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        began = time.perf_counter()
        try:
            attempt(np.random.default_rng([zlib.crc32(name.encode()), seed]))
        except OocPegasosError as error:
            refused += 1
            if "\n" in str(error):
                failures.setdefault("a message of several lines", f"OOCPEG_FUZZ={name}:{seed}\n{error}")
        except (Exception, SystemExit, _KilledError) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            ours = [f for f in traceback.extract_tb(error.__traceback__) if "ooc_pegasos" in f.filename][-1:]
            key = f"{type(error).__name__} {frame.filename}:{frame.lineno} {[f.lineno for f in ours]}"
            told = "".join(traceback.format_exception(error, limit=-6))
            failures.setdefault(key, f"OOCPEG_FUZZ={name}:{seed}\n{told}")
        slowest = max(slowest, (time.perf_counter() - began, seed))
        peak = _memory()[1] if seed % 8 == 0 else 0
        if peak > before + MOST:
            failures.setdefault(
                "memory", f"OOCPEG_FUZZ={name}:{seed} or up to 8 before it: {peak - before:,} bytes more"
            )
    faulthandler.cancel_dump_traceback_later()
    os.close(log)
    shutil.rmtree(place)
    return {"format": name, "tries": count, "refused": refused, "slowest": slowest, "failures": list(failures.values())}


def main() -> None:
    """Run what the command line names and print one line of JSON for each."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    folder = Path(sys.argv[1])
    for job in sys.argv[2:]:
        name, first, count = job.split(":")
        print(json.dumps(run_tries(name, int(first), int(count), folder)), flush=True)


if __name__ == "__main__":
    main()
