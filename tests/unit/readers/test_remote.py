"""Inputs that are URLs: an S3 server in this process, and fsspec's file system in memory."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.fs
import pyarrow.parquet
import pytest

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.remote import url_without_secrets
from ooc_pegasos.scoring.evaluate import evaluate
from support.rows import random_rows, svmlight_text
from support.stores import chunk_bytes


@pytest.fixture(scope="module")
def bucket():
    """What to put between name and question mark, and a way to write files."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patched:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patched.setenv(name, "testing")
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patched.setenv("NO_PROXY", "127.0.0.1")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        server.start()
        try:
            host, port = server.get_host_and_port()
            options = f"?scheme=http&endpoint_override={host}:{port}&region=us-east-1&allow_bucket_creation=true"
            filesystem, _path = pa.fs.FileSystem.from_uri(f"s3://events{options}")
            filesystem.create_dir("events")
            yield filesystem, options
        finally:
            server.stop()


@pytest.fixture
def events():
    rng = np.random.default_rng(3)
    return pa.table(
        {"label": rng.integers(0, 2, 500), "x": rng.random(500), "city": rng.choice(["Rome", "Oslo", "Lima"], 500)}
    )


@pytest.mark.slow
def test_a_table_in_s3_is_the_table_here(bucket, events, tmp_path):
    filesystem, options = bucket
    for day in (1, 2):
        part = events.slice((day - 1) * 250, 250)
        with filesystem.open_output_stream(f"events/days/day-{day}.parquet") as file:
            pa.parquet.write_table(part, file)
        pa.parquet.write_table(part, tmp_path / f"day-{day}.parquet")
    filesystem.open_output_stream("events/days/_SUCCESS").close()  # as other programs leave it
    here = convert([str(tmp_path / "day-*.parquet")], tmp_path / "here")
    for number, url in enumerate(("s3://events/days/day-*.parquet", "s3://events/days")):
        there = convert([url + options], tmp_path / f"there-{number}")
        assert chunk_bytes(there) == chunk_bytes(here)
        assert [source.name for source in there.manifest.sources] == [
            "s3://events/days/day-1.parquet",
            "s3://events/days/day-2.parquet",
        ]
        assert [source.xxh64 for source in there.manifest.sources] == [source.xxh64 for source in here.manifest.sources]
    model = train(here, TrainConfig(lam=0.01)).model
    assert evaluate(model, f"s3://events/days/day-1.parquet{options}") == evaluate(model, tmp_path / "day-1.parquet")


def test_text_in_s3(bucket, tmp_path):
    filesystem, options = bucket
    text = svmlight_text(*random_rows(300, 40, 1)).encode()
    with filesystem.open_output_stream("events/rows.svm", compression=None) as file:
        file.write(text)
    (tmp_path / "rows.svm").write_bytes(text)
    url = f"s3://events/rows.svm{options}"
    there = convert([url], tmp_path / "there", ConvertConfig(block_size=2000))
    here = convert([str(tmp_path / "rows.svm")], tmp_path / "here", ConvertConfig(block_size=2000))
    assert chunk_bytes(there) == chunk_bytes(here)
    assert there.manifest.sources[0].xxh64 == here.manifest.sources[0].xxh64
    again = convert([url], there.path, ConvertConfig(block_size=2000), existing=Existing(resume=True))
    assert again.manifest == there.manifest, "nothing is left to be done"
    assert preview([url], ConvertConfig()).inputs == ["s3://events/rows.svm"]


def test_an_arrow_file_and_lines_by_fsspec(events, tmp_path):
    import fsspec

    with fsspec.open("memory://data/a.arrow", "wb") as file, pa.ipc.new_file(file, events.schema) as writer:
        writer.write_table(events)
    with fsspec.open("memory://data/b.csv", "wb") as file:
        pa.csv.write_csv(events, file)
    pa.feather.write_feather(events, tmp_path / "a.arrow", compression="uncompressed")
    here = convert([str(tmp_path / "a.arrow")], tmp_path / "here")
    for number, name in enumerate(("a.arrow", "b.csv")):
        assert chunk_bytes(convert([f"memory://data/{name}"], tmp_path / f"there-{number}")) == chunk_bytes(here)


def test_addresses_that_lead_nowhere(bucket, tmp_path):
    _filesystem, options = bucket
    for url, problem in (
        (f"s3://events/nothing.parquet{options}", "no such file"),
        (f"s3://nowhere/x.parquet{options}", "check the address"),
        ("nosuch://place/x.parquet", "check the address"),
    ):
        with pytest.raises(InputError, match=problem):
            convert([url], tmp_path / "store")
    assert not os.listdir(tmp_path)


def test_secrets_are_not_printed():
    assert url_without_secrets("s3://key:secret@bucket/a/b.parquet?region=x&token=y") == "s3://bucket/a/b.parquet"


def test_a_file_system_that_fails_in_its_own_way(tmp_path, monkeypatch):
    import fsspec.core

    def fails(_url):
        raise RuntimeError("no such token")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fails)
    with pytest.raises(InputError, match=r"odd://x/y.csv: .*fsspec: no such token; check the address"):
        convert(["odd://x/y.csv"], tmp_path / "store")
