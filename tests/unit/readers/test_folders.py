"""Folders of texts end to end: converted, resumed, scored with and without labels."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ooc_pegasos import ConvertConfig, Existing, TrainConfig, convert, train
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.readers import folders
from ooc_pegasos.readers.feature_index import HashedIndex
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.store import vocabulary
from support.file_bytes import folder_bytes, write_files


def many(root: Path, number: int = 60) -> str:
    """Texts of two classes, one of which knows other words."""
    rng = np.random.default_rng(0)
    words = np.array(["red", "blue", "hat", "shoes", "Ärger", "x1"])
    texts = {}
    for i in range(number):
        some = " ".join(rng.choice(words[:4] if i % 2 else words[2:], 6))
        texts[f"{'good' if i % 2 else 'bad'}/{i % 5}/{i:03}.txt"] = some
    return write_files(root, texts)


@pytest.mark.parametrize("options", [{}, {"dictionary": 20, "idf": True, "normalize": "l2", "ngrams": "1:2"}], ids=str)
def test_a_model_of_folders_scores_texts_with_and_without_labels(tmp_path, options):
    root = many(tmp_path / "texts")
    store = convert([root], tmp_path / "store", ConvertConfig(shuffle=False, **options))
    names = sorted(str(path.relative_to(root)) for path in Path(root).rglob("*.txt"))
    assert len(store.manifest.chunks) == 1, "few texts need few buckets"
    assert store.ids(0).to_pylist() == names
    model = train(store, TrainConfig(lam=0.01, bias="feature")).model
    assert evaluate(model, root)["rows"] == 60
    predict(model, store.path, tmp_path / "store.parquet")
    predict(model, root, tmp_path / "texts.parquet")
    expected = pq.read_table(tmp_path / "store.parquet")
    assert expected.equals(pq.read_table(tmp_path / "texts.parquet"))
    assert expected.column_names == ["document", "score", "label"]
    flat = tmp_path / "flat"
    for name in names:
        write_files(flat, {name.replace("/", "-"): (Path(root) / name).read_bytes()})
    assert predict(model, flat, tmp_path / "flat.parquet") == 60
    found = pq.read_table(tmp_path / "flat.parquet")
    assert found.column("document").to_pylist() == [name.replace("/", "-") for name in names]
    assert found.column("score").equals(expected.column("score"))
    with pytest.raises(InputError, match="a file next to the folders of the classes"):
        evaluate(model, flat)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="nothing: no documents in it"):
        predict(model, tmp_path / "nothing", tmp_path / "out.parquet")


def test_a_conversion_of_folders_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    root, config = many(tmp_path / "texts"), ConvertConfig(hash_bits=12)
    monkeypatch.setattr(folders, "BLOCK_BYTES", 300)
    whole = convert([root], tmp_path / "whole", config)
    take, taken = Ingest.take, []

    def some(ingest, prepared):
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(prepared.parsed.task.end)
        take(ingest, prepared)

    with monkeypatch.context() as patched:
        patched.setattr(Ingest, "take", some)
        with pytest.raises(KeyboardInterrupt):
            convert([root], tmp_path / "store", config)
    seen = []
    monkeypatch.setattr(Ingest, "take", lambda ingest, one: (seen.append(one.parsed.task.end), take(ingest, one)))
    store = convert([root], tmp_path / "store", config, existing=Existing(resume=True))
    assert min(seen) > max(taken)
    assert folder_bytes(store.path) == folder_bytes(whole.path)
    monkeypatch.undo()
    again = convert([root], tmp_path / "store", config, existing=Existing(resume=True))
    assert folder_bytes(again.path) == folder_bytes(whole.path), "nothing is left to be done"
    write_files(Path(root), {"good/0/001.txt": "other"})
    with pytest.raises(InputError, match="made from other inputs"):
        convert([root], tmp_path / "store", config, existing=Existing(resume=True))


def test_folders_of_texts_with_tables_among_them(tmp_path):
    root = write_files(tmp_path / "texts", {"a/1.txt": "one two", "b/1.csv": "three,four", "b/2.txt": "five"})
    with pytest.raises(UsageError, match="which column has the labels"):
        convert([root], tmp_path / "store")
    assert convert([root], tmp_path / "store", ConvertConfig(format="folders")).rows == 3
    with pytest.raises(UsageError, match="format=folders: give one folder"):
        convert([root, root], tmp_path / "other", ConvertConfig(format="folders"))
    with pytest.raises(InputError, match="is a folder without tables; name the files in it"):
        convert([many(tmp_path / "more")], tmp_path / "other", ConvertConfig(format="vw"))


@pytest.mark.parametrize("threads", [1, 2])
def test_words_have_names(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(folders, "BLOCK_BYTES", 300)
    root = many(tmp_path / "texts")
    store = convert([root], tmp_path / "store", ConvertConfig(feature_names=100, threads=threads))
    names = vocabulary.of_store(store.path, store.manifest).known_names()
    assert sorted(names.values()) == sorted(["red", "blue", "hat", "shoes", "ärger", "x1"])
    hasher = HashedIndex(store.manifest.recipe.hashing)
    assert all(hasher.one(name)[0] == place for place, name in names.items())
    some = convert([root], tmp_path / "some", ConvertConfig(feature_names=3, threads=threads))
    assert len(vocabulary.of_store(some.path, some.manifest).known_names()) == 3
