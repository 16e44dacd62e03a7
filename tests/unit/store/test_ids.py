"""Ids of rows: in files next to the chunks, and in predictions."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import time
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, convert, train
from ooc_pegasos.conversion.journal import Journal
from ooc_pegasos.conversion.second_pass import Assembly
from ooc_pegasos.errors import CorruptFileError, InputError
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store.append_expire import expire
from ooc_pegasos.store.verify import verify
from ooc_pegasos.util.checksums import xxh64_hex
from ooc_pegasos.util.locks import in_use
from support.file_bytes import folder_bytes
from support.stores import small_buckets

APPEND, FORCE, RESUME = Existing(append=True), Existing(force=True), Existing(resume=True)
DAY = 86_400 * 10**9


def people(rows, ids, seed=0):
    """A table with the id column `who`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rows)
    y = (x + rng.standard_normal(rows) > 0).astype(np.int64)
    return pa.table({"y": y, "x": x, "z": rng.standard_normal(rows), "who": ids})


def config_with_ids(**options):
    made = {"label": "y", "id": "who", "values": "float32", "chunk_size": 2048, "block_size": 300, "seed": 3}
    if "label" in options:
        made["hash_bits"] = 12
    else:
        made["standardize"] = False
    return ConvertConfig(**(made | options))


def predictions(model, data, out):
    """(the table, its rows without their order)."""
    predict(model, data, out)
    table = pq.read_table(out)
    return table, sorted(map(repr, zip(*table.to_pydict().values(), strict=True)))


NUMBERS = np.arange(1500) * 7 - 900
WORDS = [f"é{i}" * (i % 5) for i in range(1500)]
KINDS = {
    "int64": (pa.array(NUMBERS), "int64"),
    "int16": (pa.array(NUMBERS, pa.int16()), "int64"),
    "uint64": (pa.array([2**64 - 1 - i for i in range(1500)], pa.uint64()), "uint64"),
    "nulls": (pa.array([None if i % 3 else i for i in range(1500)]), "int64"),
    "string": (pa.array(WORDS), "string"),
    "large_string": (pa.array(WORDS, pa.large_string()), "string"),
    "string_view": (pa.array(WORDS).cast(pa.string_view()), "string"),
    "words or null": (pa.array([None if i % 4 == 0 else WORDS[i] for i in range(1500)]), "string"),
    "dictionary": (pa.array([None if i % 9 == 0 else f"g{i % 40}" for i in range(1500)]).dictionary_encode(), "string"),
    "dictionary of int32": (pa.array(range(1500), pa.int32()).dictionary_encode(), "int64"),
    "float32": (pa.array(NUMBERS, pa.float32()), "double"),
    "timestamp": (pa.array(NUMBERS, pa.timestamp("us", "UTC")), "timestamp[us, tz=UTC]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_store_and_the_file_give_the_same_predictions(tmp_path, monkeypatch, kind):
    """In one bucket, in several and in such as are split: the same scores, bit by bit, beside the same ids."""
    ids, expected = KINDS[kind]
    split, splits = Assembly.split, []
    monkeypatch.setattr(Assembly, "split", lambda *given: splits.append(given) or split(*given))
    pq.write_table(people(1500, ids), tmp_path / "in.parquet")
    model, raw = None, None
    for limit in (1 << 30, 8000, 1500):
        small_buckets(monkeypatch, limit)
        monkeypatch.setattr("ooc_pegasos.readers.registry.BYTES_PER_ENTRY", 8 if limit > 1500 else 0.01)
        store = convert([str(tmp_path / "in.parquet")], tmp_path / f"store{limit}", config_with_ids())
        assert len(store.manifest.chunks) > 5
        assert verify(store).problems == verify(store).strays == []
        assert str(store.id_type()) == expected
        if model is None:
            model = train(store, TrainConfig(lam=0.01)).model
            raw, raw_rows = predictions(model, tmp_path / "in.parquet", tmp_path / "raw.parquet")
            assert raw.column("who").null_count == ids.null_count
        found, rows = predictions(model, store.path, tmp_path / "out.parquet")
        assert found.schema == raw.schema
        assert rows == raw_rows
        assert not found.equals(raw)  # in another order
        assert bool(splits) == (limit == 1500)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_text_tables(tmp_path, ending):
    table = people(600, [f"{i}" if i % 3 else "" for i in range(600)] if ending == "csv" else list(range(600)))
    file = tmp_path / f"in.{ending}"
    if ending == "csv":
        pyarrow.csv.write_csv(table, file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    store = convert([str(file)], tmp_path / "store", config_with_ids(block_size=4000))
    model = train(store, TrainConfig(lam=0.01)).model
    found, rows = predictions(model, store.path, tmp_path / "out.parquet")
    raw, raw_rows = predictions(model, file, tmp_path / "raw.parquet")
    assert (found.schema, rows) == (raw.schema, raw_rows)
    assert str(found.schema.field("who").type) == ("string" if ending == "csv" else "int64")


def test_ids_of_rows_that_are_left(tmp_path):
    """Rows are skipped by the reader, because of their labels and because of their size."""
    table = people(900, list(range(900)))
    x = table.column("x").to_numpy().copy()
    x[::7], x[3::11] = np.nan, 1e30
    y = table.column("y").to_numpy().copy()
    y[::5] = 9
    pq.write_table(table.set_column(0, "y", pa.array(y)).set_column(1, "x", pa.array(x)), tmp_path / "in.parquet")
    options = config_with_ids(on_bad_row="skip", classes=("0", "1"), values="float16", shuffle=False)
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", options)
    left = np.flatnonzero(np.isfinite(x) & (x < 1e30) & (y < 9))
    found = [store.ids(number) for number in range(len(store.manifest.chunks))]
    assert pa.chunked_array(found).to_pylist() == left.tolist()


def tagged_vw_text(rows, tags, seed):
    rng = np.random.default_rng(seed)
    return "".join(f"{rng.choice([-1, 1])} {tags(i)}|f a:{rng.normal():.6f} b:{1 + i % 5}\n" for i in range(rows))


def test_tags_and_parts_without_any(tmp_path):
    source = tmp_path / "in.vw"
    source.write_text(tagged_vw_text(700, lambda i: f"'t{i} " if 300 < i < 600 and i % 2 else "", 1))
    options = config_with_ids(label=None, id=None)
    store = convert([str(source)], tmp_path / "store", options)
    model = train(store, TrainConfig(lam=1.0)).model
    found, rows = predictions(model, store.path, tmp_path / "out.parquet")
    assert sorted(filter(None, found.column("tag").to_pylist())) == sorted(f"t{i}" for i in range(301, 600, 2))
    tagged = tmp_path / "tagged.vw"  # of a file the first block says whether there are tags
    tagged.write_text("1 'first|f a:1\n" + source.read_text())
    raw, raw_rows = predictions(model, tagged, tmp_path / "raw.parquet")
    assert raw.column("tag").null_count == 550
    assert set(rows) < set(raw_rows)
    source.write_text(tagged_vw_text(200, lambda _i: "", 2))
    store = convert([str(source)], store.path, config_with_ids(label=None, id=None), existing=APPEND)
    kinds = [chunk.ids is None for chunk in store.manifest.chunks]
    assert kinds[0] is False
    assert kinds[-1] is True
    found, _rows = predictions(model, store.path, tmp_path / "out.parquet")
    assert (found.num_rows, found.column("tag").null_count) == (900, 750)
    assert verify(store).problems == []
    plain = convert([str(source)], tmp_path / "plain", config_with_ids(label=None, id=None))
    assert "tag" not in predictions(model, plain.path, tmp_path / "out.parquet")[0].column_names
    assert not list(plain.path.glob("ids-*"))


def test_ids_of_several_types(tmp_path):
    """In one store they become words; of raw files they are what those of the first are, or it is said why not."""
    (tmp_path / "in").mkdir()
    pq.write_table(people(300, list(range(300))), tmp_path / "in" / "a.parquet")
    pq.write_table(people(300, [f"w{i}" for i in range(300)], 1), tmp_path / "in" / "b.parquet")
    store = convert([str(tmp_path / "in")], tmp_path / "store", config_with_ids())
    wanted = sorted([*map(str, range(300)), *(f"w{i}" for i in range(300))])
    model = train(store, TrainConfig(lam=0.01)).model
    assert sorted(predictions(model, store.path, tmp_path / "out.parquet")[0].column("who").to_pylist()) == wanted
    with pytest.raises(InputError, match="column 'who': ids of type string after others of type int64"):
        predict(model, tmp_path / "in", tmp_path / "out.parquet")
    grown = convert([str(tmp_path / "in" / "a.parquet")], tmp_path / "grown", config_with_ids())
    grown = convert([str(tmp_path / "in" / "b.parquet")], grown.path, config_with_ids(), existing=APPEND)
    assert sorted(predictions(model, grown.path, tmp_path / "out.parquet")[0].column("who").to_pylist()) == wanted
    for odd in ([[i] for i in range(300)], [b"x"] * 300, pa.array(range(300), pa.duration("s"))):
        pq.write_table(people(300, odd), tmp_path / "odd.parquet")
        with pytest.raises(InputError, match=r"column 'who' is of type .*, and ids are numbers, words or times"):
            convert([str(tmp_path / "odd.parquet")], tmp_path / "no", config_with_ids())


def test_no_ids_at_all(tmp_path):
    pq.write_table(people(300, pa.nulls(300, pa.int64())), tmp_path / "in.parquet")
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_with_ids())
    assert {chunk.ids for chunk in store.manifest.chunks} == {None}
    model = train(store, TrainConfig(lam=0.01)).model
    assert predictions(model, store.path, tmp_path / "out.parquet")[0].column("who").null_count == 300
    pq.write_table(people(0, pa.array([], pa.int32()).dictionary_encode()), tmp_path / "empty.parquet")
    empty = predictions(model, tmp_path / "empty.parquet", tmp_path / "out.parquet")[0]
    assert (empty.num_rows, empty.column_names, str(empty.schema.field(0).type)) == (
        0,
        ["who", "score", "label"],
        "int64",
    )
    pq.write_table(people(5, list(range(5))).drop_columns("who"), tmp_path / "without.parquet")
    with pytest.raises(InputError, match="no column 'who'"):
        predict(model, tmp_path / "without.parquet", tmp_path / "out.parquet")
    assert evaluate(model, tmp_path / "without.parquet")["rows"] == 5


def test_ids_do_not_change_rows_or_models(tmp_path):
    pq.write_table(people(900, [f"{i:040}" for i in range(900)]), tmp_path / "in.parquet")
    columns = {"numeric": ("x", "z")}
    plain = convert(
        [str(tmp_path / "in.parquet")], tmp_path / "plain", config_with_ids(id=None, chunk_size=8192, **columns)
    )
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_with_ids(chunk_size=8192, **columns))
    assert sum(chunk.ids.bytes for chunk in store.manifest.chunks) > 40 * 900
    assert max(chunk.ids.bytes for chunk in store.manifest.chunks) < 10_000  # however small the rows
    assert np.array_equal(plain.to_scipy()[0].toarray(), store.to_scipy()[0].toarray())
    model = train(plain, TrainConfig(lam=0.01)).model
    assert predictions(model, store.path, tmp_path / "out.parquet")[0].column_names == ["who", "score", "label"]
    assert predictions(model, plain.path, tmp_path / "out.parquet")[0].column_names == ["score", "label"]


def test_training_does_not_open_them(tmp_path, oocpeg):
    pq.write_table(people(600, list(range(600))), tmp_path / "in.parquet")
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_with_ids())
    expected = train(store, TrainConfig(lam=0.01)).model
    for path in store.path.glob("ids-*"):
        path.unlink()
    model = train(Store.open(store.path), TrainConfig(lam=0.01)).model
    assert np.array_equal(model.weights, expected.weights)
    assert evaluate(model, store.path)["rows"] == 600
    with pytest.raises(CorruptFileError, match=r"ids-000000-.*: No such file"):
        predict(model, store.path, tmp_path / "out.parquet")
    assert "No such file" in oocpeg("verify", "store", code=5).stdout


def test_every_flipped_bit_is_noticed(tmp_path):
    pq.write_table(people(300, [f"w{i}" for i in range(300)]), tmp_path / "in.parquet")
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_with_ids())
    model = train(store, TrainConfig(lam=0.01)).model
    path = store.path / store.manifest.chunks[1].ids.file
    sound = path.read_bytes()
    for at in (0, 9, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        problems = verify(store).problems
        assert len(problems) == 1
        assert path.name in problems[0]
        with pytest.raises(CorruptFileError, match=path.name):
            predict(model, store.path, tmp_path / "out.parquet")
    path.write_bytes(sound[:-8])
    assert "bytes instead of" in verify(store).problems[0]
    path.write_bytes(sound)
    assert verify(store).problems == []
    other = store.manifest.chunks[0].ids  # of another chunk, with fewer or more rows or not
    swapped = dataclasses.replace(store.manifest.chunks[1], ids=other, rows=store.manifest.chunks[1].rows + 1)
    changed = dataclasses.replace(store, manifest=dataclasses.replace(store.manifest, chunks=[swapped]))
    with pytest.raises(CorruptFileError, match="not the ids of these rows"):
        changed.ids(0)


@pytest.mark.parametrize("name", ["../ids-000000-00000000.arrow", "/etc/passwd", "ids-0-00000000.arrow", "twice"])
def test_names_stay_inside_the_store(tmp_path, name):
    pq.write_table(people(300, list(range(300))), tmp_path / "in.parquet")
    store = convert([str(tmp_path / "in.parquet")], tmp_path / "store", config_with_ids())
    path = store.path / "manifest.json"
    table = json.loads(path.read_text())
    del table["checksum"]
    table["chunks"][0]["ids"]["file"] = table["chunks"][1]["ids"]["file"] if name == "twice" else name
    table["checksum"] = f"{zlib.crc32(json.dumps(table, sort_keys=True).encode()):08x}"
    path.write_text(json.dumps(table))
    with pytest.raises(CorruptFileError, match="named twice" if name == "twice" else "not the name of a file of ids"):
        Store.open(store.path)


def day(folder, number, rows=200):
    file = folder / f"day-{number}.parquet"
    pq.write_table(people(rows, [f"{number}/{i}" for i in range(rows)], number), file)
    os.utime(file, ns=(number * DAY, number * DAY))
    return str(file)


def test_append_expire_and_force(tmp_path):
    store = convert([day(tmp_path, 1)], tmp_path / "store", config_with_ids())
    model = train(store, TrainConfig(lam=0.01)).model
    for number in (2, 3):
        store = convert([day(tmp_path, number)], store.path, config_with_ids(), existing=APPEND)
    found, rows = predictions(model, store.path, tmp_path / "out.parquet")
    parts = [predictions(model, tmp_path / f"day-{n}.parquet", tmp_path / "raw.parquet")[1] for n in (1, 2, 3)]
    assert rows == sorted(row for part in parts for row in part)
    assert [who[0] for who in found.column("who").to_pylist()] == ["1"] * 200 + ["2"] * 200 + ["3"] * 200
    old = {path.name for path in store.path.glob("ids-*")}
    with in_use(store.path):
        expire(store.path, 2 * DAY)
        assert {path.name for path in store.path.glob("ids-*")} == old  # as long as somebody may read them
    expire(store.path, 3 * DAY)
    left = Store.open(store.path)
    assert {path.name for path in store.path.glob("ids-*")} == {chunk.ids.file for chunk in left.manifest.chunks}
    assert predictions(model, store.path, tmp_path / "out.parquet")[1] == parts[2]
    assert verify(left).problems == verify(left).strays == []
    replaced = convert([day(tmp_path, 1)], store.path, config_with_ids(), existing=FORCE)
    fresh = convert([day(tmp_path, 1)], tmp_path / "fresh", config_with_ids())
    assert folder_bytes(replaced.path) == folder_bytes(fresh.path)
    convert([day(tmp_path, 1)], store.path, config_with_ids(id=None, numeric=("x", "z")), existing=FORCE)
    assert not list(store.path.glob("ids-*"))


# --- being stopped, and going on ------------------------------------------------------------------


class Stopped(KeyboardInterrupt):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_stopped_anywhere_and_resumed_gives_the_same_bytes(tmp_path, monkeypatch, shuffle):
    """Between any two events of the journals, and any two renames, of an append after some rows have expired."""
    small_buckets(monkeypatch, 4000)
    options = config_with_ids(shuffle=shuffle)
    more = [day(tmp_path, 3, 700), day(tmp_path, 4, 400)]

    def begun(target):
        convert([day(tmp_path, 1)], target, options)
        convert([day(tmp_path, 2)], target, options, existing=APPEND)
        expire(target, 2 * DAY)
        return target

    expected = folder_bytes(convert(more, begun(tmp_path / "whole"), options, existing=APPEND).path)
    assert sum(name.startswith("ids-") for name in expected) > 10
    left = 0

    def counted(real):
        def step(*given):
            nonlocal left
            left -= 1
            if left == 0:
                raise Stopped
            return real(*given)

        return step

    base = folder_bytes(begun(tmp_path / "base"))
    stops, number = 0, 1
    while True:
        target = tmp_path / f"store{number}"
        target.mkdir()
        for name, content in base.items():
            (target / name).write_bytes(content)
        left = number
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "add", counted(Journal.add))
            patched.setattr("ooc_pegasos.conversion.pipeline.os.rename", counted(os.rename))
            try:
                convert(more, target, options, existing=APPEND)
                done = True
            except Stopped:
                done = False
        if not done:
            stops += 1
            convert(more, target, options, existing=Existing(append=True, resume=True))
        assert folder_bytes(target) == expected, number
        if done:
            break
        number += 1 + number // 8
    assert stops > 15


CHILD = """
import sys
from ooc_pegasos import ConvertConfig, Existing, convert
ConvertConfig.bucket_limit = lambda _config: 40_000
config = ConvertConfig(label="y", id="who", values="float32", chunk_size=20_000, block_size=4_000, threads=2)
convert([sys.argv[1]], sys.argv[2], config, existing=Existing(resume=True))
"""


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bytes(tmp_path):
    source = tmp_path / "in.csv"
    pyarrow.csv.write_csv(people(15_000, [f"person {i}" if i % 7 else None for i in range(15_000)]), source)

    def start(target):
        return subprocess.Popen([sys.executable, "-c", CHILD, source, target])

    began = time.monotonic()
    assert start(tmp_path / "whole").wait(120) == 0
    length, rng, killed = time.monotonic() - began, random.Random(1), 0
    for attempt in range(2):
        target = tmp_path / f"store{attempt}"
        for _ in range(3):
            child = start(target)
            while not target.with_name(target.name + ".unfinished").exists() and child.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.5) * length)
            killed += child.poll() is None
            child.kill()
            child.wait()
        assert start(target).wait(120) == 0
        assert folder_bytes(target) == folder_bytes(tmp_path / "whole")
    assert killed > 0


def test_damaged_ids_on_the_way_are_read_again(tmp_path, monkeypatch):
    small_buckets(monkeypatch, 4000)
    source = day(tmp_path, 1, 1500)
    expected = folder_bytes(convert([source], tmp_path / "whole", config_with_ids()).path)

    def stop(_assembly, *_given):
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr("ooc_pegasos.conversion.second_pass.Assembly.run", stop)
        with pytest.raises(Stopped):
            convert([source], tmp_path / "store", config_with_ids())
    bucket = sorted((tmp_path / "store.unfinished").glob("bucket-*.rows"))[0]
    content = bytearray(bucket.read_bytes())
    at = content.rindex(b"1/1")
    content[at] ^= 1
    bucket.write_bytes(content)
    convert([source], tmp_path / "store", config_with_ids(), existing=RESUME)
    assert folder_bytes(tmp_path / "store") == expected


@pytest.mark.parametrize("kind", [pa.struct([]), pa.list_(pa.int64()), pa.duration("s"), pa.binary()])
def test_ids_of_invalid_types(tmp_path, kind):
    """What can be written nowhere is refused when it is read, whatever the checksums say."""
    store = convert([day(tmp_path, 1, 30)], tmp_path / "store", config_with_ids())
    model = train(store, TrainConfig(lam=0.1)).model
    table = json.loads((store.path / "manifest.json").read_text())
    for chunk in table["chunks"]:
        column = pa.array([None] * chunk["rows"], pa.null()).cast(kind)
        batch = pa.record_batch([column], schema=pa.schema([("id", kind)]))
        with (
            pa.OSFile(str(store.path / chunk["ids"]["file"]), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as out,
        ):
            out.write_batch(batch)
        content = (store.path / chunk["ids"]["file"]).read_bytes()
        chunk["ids"] |= {"bytes": len(content), "xxh64": xxh64_hex(np.frombuffer(content, np.uint8))}
    del table["checksum"]
    table["checksum"] = f"{zlib.crc32(json.dumps(table, sort_keys=True).encode()):08x}"
    (store.path / "manifest.json").write_text(json.dumps(table))
    with pytest.raises(CorruptFileError, match=rf"ids of type {re.escape(str(kind))}; restore it or convert again"):
        predict(model, store.path, tmp_path / "scores.parquet")
