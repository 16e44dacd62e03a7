"""Bit flips anywhere in written files are detected by the first use, without `verify`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ooc_pegasos import ConvertConfig, Model, OocPegasosError, Store, TrainConfig, convert, train, verify
from ooc_pegasos.scoring.evaluate import evaluate, predict
from ooc_pegasos.scoring.model import Model as ModelFile
from ooc_pegasos.store.vocabulary import of_store
from support.file_bytes import flipped
from support.rows import random_rows
from support.soak import in_soak
from support.stores import least_memory, store_of

FLIPS = in_soak(150, 1000)


def flip_and_use(seed: int, files: list[Path], use: Callable[[], object], flips: int = FLIPS) -> None:
    """Flip bits of the files, one at a time; `use` must fail each time with a one-line error."""
    rng = np.random.default_rng(seed)
    for number in range(flips):
        file = files[number % len(files)]
        content = file.read_bytes()
        damaged, where = flipped(rng, content)
        file.write_bytes(damaged)
        try:
            use()
        except OocPegasosError as error:
            assert error.exit_code in (2, 3, 5), (file.name, where, error)
            assert "\n" not in str(error)
        else:
            pytest.fail(f"{file.name}: {where} was not missed")
        finally:
            file.write_bytes(content)
    use()


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    """A store of numbers with several chunks, one of words with a vocabulary, and a model of each."""
    folder = tmp_path_factory.mktemp("bits")
    store = store_of(folder, *random_rows(200, 90, seed=7), chunk_size=2048)
    train(store, TrainConfig(lam=0.1, max_epochs=1)).model.save(folder / "numbers.model")
    rows = "".join(f"{1 if row % 2 else -1},{'red' if row % 3 else 'blue'},{row},u{row}\n" for row in range(60))
    (folder / "in.csv").write_text("label,colour,size,user\n" + rows)
    config = ConvertConfig(dictionary=10, chunk_size=1024, id="user")
    words = convert([str(folder / "in.csv")], folder / "words", config)
    train(words, TrainConfig(lam=0.1, max_epochs=1)).model.save(folder / "words.model")
    return folder


def uses_of(folder: Path, store: Path, model: str, way: str) -> Callable[[], object]:
    """Operations that read all of a store."""
    made = Model.load(folder / model)
    if way == "verify":
        return lambda: refuse(verify(Store.open(store)).problems)
    if way == "predict":
        return lambda: predict(made, store, folder / "predicted.csv", 1)
    if way == "evaluate":
        return lambda: evaluate(made, store, 1)

    def training() -> object:
        opened = Store.open(store)
        some = {"memory": least_memory(opened)} if way == "read" else {}
        config = TrainConfig(lam=0.1, max_epochs=1, threads=1, loading=way, **some)  # type: ignore[arg-type]
        return train(opened, config)

    return training


def refuse(problems: list[str]) -> None:
    if problems:
        from ooc_pegasos.errors import CorruptFileError

        raise CorruptFileError(problems[0])


@pytest.mark.parametrize("way", ["mapped", "read", "predict", "evaluate", "verify"])
@pytest.mark.parametrize("name", ["manifest.json", "chunk-*"])
def test_stores(scene, name, way):
    files = sorted((scene / "store").glob(name))
    flip_and_use(1, files, uses_of(scene, scene / "store", "numbers.model", way), max(FLIPS // 5, 30))


@pytest.mark.parametrize("way", ["mapped", "read", "predict", "evaluate", "verify"])
def test_vocabularies(scene, way):
    files = sorted((scene / "words").glob("features-*"))
    assert len(files) == 1
    flip_and_use(2, files, uses_of(scene, scene / "words", "words.model", way), max(FLIPS // 5, 30))


@pytest.mark.parametrize("way", ["predict", "verify"])
def test_ids(scene, way):
    files = sorted((scene / "words").glob("ids-*"))
    assert files
    flip_and_use(7, files, uses_of(scene, scene / "words", "words.model", way), max(FLIPS // 5, 30))


@pytest.mark.parametrize("name", ["numbers.model", "words.model"])
def test_models(scene, name):
    flip_and_use(3, [scene / name], lambda: ModelFile.load(scene / name))


@pytest.mark.parametrize("name", ["numbers.model", "words.model"])
def test_predicting_by_command(scene, oocpeg, name):
    file, rng = scene / name, np.random.default_rng(4)
    content = bytearray(file.read_bytes())
    content[rng.integers(len(content))] ^= 4
    damaged = scene / "damaged.model"
    damaged.write_bytes(content)
    said = oocpeg("predict", damaged, scene / "store", "-o", scene / "out.csv", code=5).stderr
    assert len(said.strip().splitlines()) == 1


RUNS = {
    "ascent": {"algorithm": "sdca", "lam": 0.1},
    "ascent in windows": {"algorithm": "sdca", "lam": 0.1, "memory": "least"},
    "ascent of several": {"algorithm": "sdca", "lam": (0.1, 0.2, 0.3), "refit": False},
    "pegasos": {"algorithm": "sgd-s", "lam": 0.1},
    "pegasos of several": {"algorithm": "sgd-s", "lam": (0.1, 0.2, 0.3), "refit": False},
    "ascent after a search": {"algorithm": "sdca", "lam": (0.1, 0.2, 0.3)},
}


@pytest.mark.parametrize("name", RUNS)
def test_checkpoints(scene, tmp_path, name):
    store = Store.open(scene / "store")
    told = dict(RUNS[name])
    if told.pop("memory", None):
        told["memory"] = least_memory(store) * 2
    common = {"tolerance": 1e-12, "checkpoint_epochs": 1, "threads": 1, **told}
    begun = tmp_path / "begun"
    train(store, TrainConfig(**common, max_epochs=2), checkpoint=begun)
    files = sorted(begun.rglob("*.checkpoint"))
    assert len(files) == 1 + name.startswith("ascent") + name.endswith("search")
    resumed = tmp_path / "resumed"

    def resume() -> object:
        shutil.rmtree(resumed, ignore_errors=True)
        shutil.copytree(begun, resumed)
        return train(store, TrainConfig(**common, max_epochs=3), checkpoint=resumed, resume=True)

    flip_and_use(5, files, resume, max(FLIPS // 5, 30) * len(files))


def test_feature_statistics_are_checked_when_used(scene):
    store = Store.open(scene / "words")
    files = sorted(store.path.glob("features-*"))
    flip_and_use(6, files, lambda: of_store(store.path, store.manifest))
