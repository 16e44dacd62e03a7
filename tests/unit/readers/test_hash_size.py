"""The number of buckets of hashed names: by the size of the inputs, unless an option gives it."""

import dataclasses
import itertools
import os

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from sklearn.feature_extraction import FeatureHasher

from ooc_pegasos import ConvertConfig, Existing, Store, convert
from ooc_pegasos.conversion.preview import preview
from ooc_pegasos.distributed import collections
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.jobs.disk_space import space_for
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.jobs.run import run
from ooc_pegasos.readers import registry
from support.nights import NIGHT

MOST = 22


def bits_of(names, **options):
    recipe = registry.new_recipe(
        ConvertConfig(**{"format": "vw", **options}), list(map(str, names)), lambda _note: None
    )
    assert recipe.features in (None, recipe.hashing_of_names.buckets)
    return recipe.hashing_of_names.bits


def expected(size):
    """The fewest bits of a bucket for every four bytes, from 10 to 22."""
    return next(bits for bits in range(10, MOST + 1) if 4 * 2**bits >= size or bits == MOST)


def file_of(path, size):
    """A file with a hole, which takes no disk."""
    with open(path, "wb") as file:
        file.truncate(size)
    return path


SIZES = [1, 2, 2047, 2048, 2049, 4096, 4097, *(2**k + d for k in (13, 16, 19, 23, 24, 25) for d in (-1, 0, 1)), 10**12]


@pytest.mark.parametrize("size", SIZES)
def test_boundaries(tmp_path, size):
    assert bits_of([file_of(tmp_path / "in.vw", size)]) == expected(size)


def test_sizes_add_up(tmp_path):
    files = [file_of(tmp_path / f"{number}.vw", 2**20 // 8) for number in range(9)]
    assert bits_of(files[:8]) == 18
    assert bits_of(files) == 19
    assert bits_of([*files, file_of(tmp_path / "large.vw", 2**40)]) == MOST


def test_an_option_gives_the_bits(tmp_path):
    file = file_of(tmp_path / "in.vw", 3000)
    assert [bits_of([file], hash_bits=bits) for bits in (1, 22, 31)] == [1, 22, 31]


def test_a_folder_of_small_files(tmp_path):
    """Files in all folders below count, and names that are no files do not."""
    for number in range(600):
        folder = tmp_path / "texts" / "ab"[number % 2] / str(number % 7)
        folder.mkdir(parents=True, exist_ok=True)
        file_of(folder / f"{number}.txt", 100)
    (tmp_path / "texts" / "a" / "broken").symlink_to("nowhere")
    assert bits_of([tmp_path / "texts"], format="folders") == expected(60_000) == 14
    file_of(tmp_path / "texts" / "b" / "large.txt", 2**30)
    assert bits_of([tmp_path / "texts"], format="folders") == MOST


def test_pipes_have_the_most_bits(tmp_path):
    """Their size is not known."""
    os.mkfifo(tmp_path / "pipe")
    assert bits_of(["-"]) == bits_of([tmp_path / "pipe"]) == MOST
    assert bits_of([file_of(tmp_path / "in.vw", 5), "-"]) == MOST


@pytest.mark.slow
def test_standard_input_has_the_most_bits(tmp_path, oocpeg):
    oocpeg("convert", "-", "--format", "vw", "-o", "store", input="1 | a\n-1 | b\n")
    assert Store.open(tmp_path / "store").features == 1 << MOST


def test_remote_files_have_sizes():
    with fsspec.open("memory://sizes/in.vw", "wb") as file:
        file.write(b"1 | a\n" * 1000)
    assert bits_of(["memory://sizes/in.vw"]) == expected(6000)


def csv_of_rows(folder, rows, name="in.csv", category=True):
    rng = np.random.default_rng(rows)
    lines = [f"{i % 2},{rng.integers(0, 9)}" + (f",c{rng.integers(0, 9)}" if category else "") for i in range(rows)]
    (folder / name).write_text("y,x" + (",c" if category else "") + "\n" + "\n".join(lines) + "\n")
    return str(folder / name)


def test_rows_are_those_of_scikit_learn(tmp_path):
    name = csv_of_rows(tmp_path, 900)
    rows = [line.split(",") for line in (tmp_path / "in.csv").read_text().splitlines()[1:]]
    dicts = [{"x": int(x), f"c={c}": 1} for _y, x, c in rows]
    config = ConvertConfig(label="y", shuffle=False, standardize=False)
    store = convert([name], tmp_path / "store", config)
    bits = expected(os.path.getsize(name))
    assert store.features == 2**bits == 2048
    assert np.array_equal(store.to_scipy()[0].toarray(), FeatureHasher(2**bits).transform(dicts).toarray())


def test_stores_without_a_hash_do_not_differ_by_size(tmp_path):
    """Numbers alone, and names in a dictionary, are not hashed."""
    for options, category in (({}, False), ({"dictionary": 100}, True)):
        recipes = []
        for rows in (20, 3000):
            config = ConvertConfig(label="y", standardize=False, **options)
            store = convert([csv_of_rows(tmp_path, rows, "in.csv", category)], tmp_path / f"{category}{rows}", config)
            recipes.append(dataclasses.replace(store.manifest.recipe, features=None))
            assert store.features < 100
        assert recipes[0].without_findings() == recipes[1].without_findings()


def test_a_store_that_grows_has_the_most_bits(tmp_path):
    """As those of jobs, whose first inputs may be small; not where an option gives the bits, or there is no hash."""
    name, grows = csv_of_rows(tmp_path, 20), Existing(grows=True)
    for options, features in (
        ({}, 1 << MOST),
        ({"hash_bits": 9}, 1 << 9),
        ({"dictionary": 50}, None),
        ({"numeric": ("x",)}, 1),
    ):
        config = ConvertConfig(label="y", **options)
        store = convert([name], tmp_path / str(features), config, existing=grows)
        assert store.features == features or (features is None and store.features < 50)
    (tmp_path / "in.svm").write_text("1 1:1\n-1 2:1\n")
    assert convert([str(tmp_path / "in.svm")], tmp_path / "svm", existing=grows).features == 2


def test_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.vw").write_text("1 | a b\n-1 | b c\n" * 50)
    (tmp_path / "job.toml").write_text(
        'store = "s"\nmodels = "models"\ninputs = ["in*.vw"]\nreserve = "1MB"\n[train]\nlam = 0.1\nmax_epochs = 2\n'
    )
    job = Job.load(tmp_path / "job.toml")
    small, large = (space_for(one, None, ["in.vw"], looking=False)[0].needed for one in (with_bits(job, 10), job))
    assert large > small + 2 * 8 * (1 << MOST)
    run(job, now=lambda: NIGHT)
    assert Store.open(tmp_path / "s").features == 1 << MOST


def with_bits(job, bits):
    return dataclasses.replace(job, convert=dataclasses.replace(job.convert, hash_bits=bits))


def test_collections_have_the_most_bits():
    """The size of their rows is not known before they are read."""
    reading = object.__new__(collections._CollectionReader)
    notes = []
    reading.config, reading.note = ConvertConfig(label="y"), notes.append
    schema = pa.schema([("y", pa.int64()), ("x", pa.float64()), ("c", pa.string())])
    assert reading._recipe_of([("part 0", schema)]).features == 1 << MOST
    assert any("used as they are; Store.from_dask makes a store that scales them" in note for note in notes)
    reading.config = ConvertConfig(label="y", hash_bits=8)
    assert reading._recipe_of([("part 0", schema)]).features == 1 << 8
    collections._refuse(ConvertConfig(standardize=False))
    for refused in ({"standardize": True}, {"like": "s"}):
        with pytest.raises(UsageError, match=f"--{next(iter(refused))} is for stores"):
            collections._refuse(ConvertConfig(**refused))


def test_data_in_memory_has_the_bits_of_its_file(tmp_path):
    for rows in (10, 20_000):
        frame = pa.table({"y": np.arange(rows) % 2, "c": [f"c{i}" for i in range(rows)]})
        store = Store.from_arrow(frame, tmp_path / f"s{rows}", ConvertConfig(label="y"))
        assert store.features == 2 ** expected(store.manifest.sources[0].size)


# --- stores of earlier inputs -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kept_store_while_files_grow(tmp_path, oocpeg):
    """The store is used again for the same files alone, with the bits that it has."""
    numbers = itertools.count()

    def train(*words, code=0):
        model = f"model-{next(numbers)}"
        fixed = ["--label", "y", "--store", "kept", "-o", model, "--lambda", "0.1", "-q"]
        return oocpeg("train", *words, *fixed, code=code)

    name, kept = csv_of_rows(tmp_path, 200), tmp_path / "kept"
    train(name)
    before = (kept / "manifest.json").read_bytes()
    assert Store.open(kept).features == 1024
    for same in ([], ["--force"], ["--hash-bits", "10"]):
        train(name, *same)
        assert (kept / "manifest.json").read_bytes() == before, "used again"
    told = "kept: exists already, made from other inputs or with other options; add --force"
    assert told in train(name, "--hash-bits", "11", code=3).stderr
    csv_of_rows(tmp_path, 3000)
    assert told in train(name, code=3).stderr
    train(name, "--force")
    assert Store.open(kept).features == 2 ** expected(os.path.getsize(name)) > 1024


def test_a_store_that_was_appended_to(tmp_path):
    """It is that of both files, with the bits and scales of the first, and not that of the second alone."""
    one, two = csv_of_rows(tmp_path, 200, "one.csv"), csv_of_rows(tmp_path, 3000, "two.csv")
    config, reuse = ConvertConfig(label="y"), Existing(reuse=True)
    store = convert([one], tmp_path / "s", config)
    store = convert([two], store.path, config, existing=Existing(append=True))
    assert (store.features, store.rows) == (1024, 3200)
    assert convert([one, two], store.path, config, existing=reuse).manifest == store.manifest
    for files in ([two], [one], [two, one]):
        with pytest.raises(InputError, match="made from other inputs"):
            convert(files, store.path, config, existing=reuse)
    again = convert([two], store.path, config, existing=Existing(append=True, resume=True))
    assert again.manifest == store.manifest, "nothing is left to be done"


def test_a_kept_store_with_other_labels(tmp_path):
    name, reuse = csv_of_rows(tmp_path, 300), Existing(reuse=True)
    store = convert([name], tmp_path / "s", ConvertConfig(label="y"))
    for same in ({}, {"task": "binary"}, {"classes": ("0", "1")}, {"positive_label": "1"}):
        assert convert([name], store.path, ConvertConfig(label="y", **same), existing=reuse).manifest == store.manifest
    for other in ({"task": "regression"}, {"classes": ("1", "0")}, {"positive_label": "0"}, {"label": "x"}):
        with pytest.raises(InputError, match="made from other inputs or with other options"):
            convert([name], store.path, ConvertConfig(**{"label": "y", **other}), existing=reuse)


def test_a_preview_has_the_bits_of_the_store(tmp_path):
    recipe = preview([csv_of_rows(tmp_path, 900)], ConvertConfig(label="y")).recipe
    assert (recipe.features, recipe.hashing_of_names.bits) == (2048, 11)
