"""Write tests/golden: small stores, models, checkpoints and a proof that later versions must read as this version does.

Run this only to add files, or after an intended change of a format or a result, and say in CHANGELOG.md what changed:
the files that git then shows as modified are those that users have to make again. See tests/golden/README.md.
"""

import dataclasses
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from llvmlite import binding

from ooc_pegasos import ConvertConfig, Existing, Model, Store, TrainConfig, __version__, convert, train
from ooc_pegasos.reporting.progress import TrainingProgress
from ooc_pegasos.scoring.evaluate import predict
from ooc_pegasos.store import manifest

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
WORDS = ["red", "green", "blue", "old", "new", "small", "large", "first", "last", "Élan", "north", "south"]
CITIES = ["Rome", "Oslo", "Lima", ""]

TEXTS = {
    "format": "table",
    "label": "clicked",
    "id": "user",
    "categorical": ("city",),
    "text": ("title",),
    "standardize": False,
}
STORES = {
    "binary": (["binary.svm"], {"seed": 1, "chunk_size": 1024, "values": "float32"}),
    "in-order": (["binary.svm"], {"shuffle": False}),
    "weighted": (["gaps.svm"], {"weights": "weights.txt", "normalize": "l2"}),
    "multiclass": (["multiclass.svm"], {"classes": ("setosa", "virginica", "versicolor")}),
    "regression": (["regression.svm"], {"seed": 3}),
    "far": (["far.svm"], {}),
    "wide": (["wide.svm"], {"index_base": "0", "values": "float32"}),
    "appended": (["gaps.svm", "more.svm"], {"values": "float32"}),
    "hashed": (["events.csv"], {**TEXTS, "hash_bits": 12, "feature_names": 200, "ngrams": "1:2"}),
    "dictionary": (["events.csv"], {**TEXTS, "dictionary": 30, "idf": True}),
    "counts": (["texts.csv"], {"format": "table", "text": ("title", "body"), "idf": True, "normalize": "l2"}),
}
"""Sources and options of conversions. The sources of `appended` are appended one after the other."""

MODELS = {
    "binary": ("binary", {"lam": 0.01, "tolerance": 0.1, "bias": "feature"}),
    "pegasos": ("in-order", {"lam": 0.1, "tolerance": 0.1, "algorithm": "sgd-s", "seed": 5}),
    "free-bias": ("binary", {"lam": 0.02, "bias": "free", "max_epochs": 3}),
    "weighted": ("weighted", {"lam": 0.01, "loss": "smoothed-hinge", "class_weight": "balanced", "max_epochs": 3}),
    "classes-at-once": ("multiclass", {"lam": 0.02, "loss": "multiclass-hinge", "max_epochs": 3}),
    "one-vs-rest": ("multiclass", {"lam": 0.02, "max_epochs": 3}),
    "regression": ("regression", {"lam": 0.05, "loss": "huber", "bias": "feature", "max_epochs": 3}),
    "lambda-path": ("binary", {"holdout": 0.25, "max_epochs": 3, "select_by": "loss", "refit": False}),
    "hashed": ("hashed", {"lam": 0.02, "max_epochs": 3}),
    "dictionary": ("dictionary", {"lam": 0.02, "max_epochs": 3}),
    "logistic": ("binary", {"lam": 0.1, "loss": "logistic", "max_epochs": 3}),
    "calibrated": ("binary", {"lam": 0.02, "holdout": 0.3, "calibrate": "platt", "max_epochs": 3}),
}
"""The store and the options of each model."""

PROOF = "binary"
"""The model that has a proof."""

WINDOWS = {"memory": 100_000, "bias": "feature", "tolerance": 1e-9, "max_epochs": 4, "checkpoint_minutes": 1000}
CHECKPOINTS = {
    "sdca": ("binary", {"lam": 0.01, "algorithm": "sdca", **WINDOWS}),
    "sgd": ("binary", {"lam": 0.05, "algorithm": "sgd-s", "average": True, **WINDOWS}),
}
"""Runs that are interrupted in the middle of their third epoch, and then resumed."""


def here() -> dict[str, object]:
    """Return the platform, on which last bits of exponentials and logarithms depend, and versions of libraries."""
    features = binding.get_host_cpu_features()
    return {
        "version": __version__,
        "cpu": binding.get_host_cpu_name(),
        "instructions": [name for name in ("avx2", "avx512f", "fma") if features.get(name)],
        "libc": " ".join(platform.libc_ver()),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }


# --- sources ------------------------------------------------------------------------------------


def write_sources(folder: Path) -> None:
    """Write the inputs of the conversions. Python guarantees `random()` of a seed not to change."""
    folder.mkdir(parents=True)
    draw = random.Random(7).random

    def entries(features: int, digits: int, most: int) -> str:
        """Draw an index; most are small, so that some gaps are large."""
        indices = sorted({1 + int(draw() ** 3 * features) for _ in range(1 + int(most * draw()))})
        return " ".join(f"{index}:{round(2 * draw() - 1, digits) or 1}" for index in indices)

    def lines(count: int, label: Callable[[], object], features: int, digits: int = 1, most: int = 9) -> str:
        return "".join(f"{label()} {entries(features, digits, most)}\n" for _ in range(count))

    def sign() -> int:
        return 1 if draw() < 0.4 else -1

    def flower() -> str:
        return ["setosa", "virginica", "versicolor"][int(3 * draw())]

    made = {
        "binary.svm": lines(60, sign, 40, 3, 20),
        "more.svm": lines(20, sign, 60),
        "weights.txt": "".join(f"{int(4 * draw()) / 2 + 0.5}\n" for _ in range(30)),
        "multiclass.svm": lines(40, flower, 25),
        "regression.svm": lines(30, lambda: f"{10 * draw() - 3:.4f}", 20),
        "gaps.svm": lines(30, sign, 1000),
        "far.svm": lines(30, sign, 300_000),
        "wide.svm": lines(12, sign, 4_000_000_000),
        "events.csv": "clicked,user,city,price,age,title\n" + "".join(map(event, range(32), [draw] * 32)),
        "texts.csv": "y,title,body\n"
        + "".join(f"{number % 2},{words(draw, 3)},{words(draw, 30)}\n" for number in range(60)),
    }
    for name, text in made.items():
        (folder / name).write_text(text)
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))


def words(draw: Callable[[], float], most: int) -> str:
    """Return up to so many words."""
    return " ".join(WORDS[int(draw() ** 2 * len(WORDS))] for _ in range(int(most * draw())))


def event(number: int, draw: Callable[[], float]) -> str:
    """Return a line of a table."""
    title = " ".join(WORDS[int(draw() ** 2 * len(WORDS))] for _ in range(1 + int(5 * draw())))
    price = "" if draw() < 0.1 else f"{100 * draw():.2f}"
    city = CITIES[int(draw() * len(CITIES))]
    return f"{int(('red' in title) ^ (draw() < 0.2))},user-{number},{city},{price},{20 + int(50 * draw())},{title}\n"


# --- outputs -----------------------------------------------------------------------


def make_store(name: str, sources: Path, store: Path) -> Store:
    """Convert the sources of a store."""
    names, options = STORES[name]
    with chdir(sources):
        parts = [[source] for source in names] if name == "appended" else [names]
        for number, part in enumerate(parts):
            made = convert(part, store, ConvertConfig(**options), existing=Existing(append=number > 0))
    return made


def forget_the_folder(store: Store) -> Store:
    """Give the sources of a store names that do not depend on this machine."""
    sources = [
        dataclasses.replace(source, name=f"/golden/{Path(source.name).name}") for source in store.manifest.sources
    ]
    manifest.write(store.path, dataclasses.replace(store.manifest, sources=sources))
    return Store.open(store.path)


def rows_of(store: Store) -> list[str]:
    """Return the rows of a store as text: label, weight, identifier, then index:value from index 0 on."""
    lines = []
    for number, block in enumerate(store.blocks()):
        matrix, ids = block.to_scipy().astype(np.float32), store.ids(number)
        for row in range(block.rows):
            weight = 1.0 if block.weights is None else float(block.weights[row])
            told = "-" if ids is None else ids[row].as_py()
            begin, end = matrix.indptr[row : row + 2]
            pairs = zip(matrix.indices[begin:end], matrix.data[begin:end], strict=True)
            entries = [f"{index}:{value!s}" for index, value in pairs]
            lines.append(" ".join([repr(float(block.labels[row])), repr(weight), str(told), *entries]))
    return lines


def make_model(name: str, stores: Path, proof: Path | None = None) -> Model:
    """Train a model, and write its proof if requested."""
    store, options = MODELS[name]
    return train(stores / store, TrainConfig(**options), proof=proof, progress=TrainingProgress()).model


class Interruption(TrainingProgress):
    """Progress that interrupts a run in the middle of an epoch."""

    def presented(self, epoch: int, rows: int, total: int) -> None:
        if epoch == 2 and rows > total // 3:
            signal.raise_signal(signal.SIGINT)


def interrupt(name: str, stores: Path, folder: Path) -> None:
    """Leave the checkpoint of an interrupted run."""
    store, options = CHECKPOINTS[name]
    with suppress(KeyboardInterrupt):
        train(stores / store, TrainConfig(**options), checkpoint=folder, progress=Interruption())
        sys.exit(f"{name}: the run came to its end before it was interrupted")
    (folder / "lock").unlink()  # names this machine


def resume(name: str, stores: Path, folder: Path) -> Model:
    """Resume training from a checkpoint to the end."""
    store, options = CHECKPOINTS[name]
    return train(
        stores / store, TrainConfig(**options), checkpoint=folder, resume=True, progress=TrainingProgress()
    ).model


def source_of(model: str, sources: Path) -> Path:
    """Return the file whose scores by a model are recorded."""
    name = STORES[MODELS[model][0]][0][0]
    return sources / ("more.svm" if name == "binary.svm" else name)


def make_all(golden: Path) -> None:
    """Write everything into a new folder."""
    sources, stores = golden / "sources", golden / "stores"
    write_sources(sources)
    for folder in ("stores", "models", "scores", "checkpoints"):
        (golden / folder).mkdir()
    for name in STORES:
        store = forget_the_folder(make_store(name, sources, stores / name))
        (stores / f"{name}.rows").write_text("".join(f"{line}\n" for line in rows_of(store)))
    for name in MODELS:
        model = make_model(name, stores, golden / f"{name}.proof" if name == PROOF else None)
        model.save(golden / "models" / f"{name}.model")
        target = golden / "scores" / f"{name}.csv"
        predict(model, source_of(name, sources), target, proba=model.has_probabilities)
    for name in CHECKPOINTS:
        folder = golden / "checkpoints" / name
        interrupt(name, stores, folder)
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            resume(name, stores, Path(copy)).save(golden / "checkpoints" / f"{name}.model")
    (golden / "made.json").write_text(json.dumps(here(), indent=2) + "\n")


def main() -> None:
    """Replace everything except README.md."""
    with tempfile.TemporaryDirectory(dir=GOLDEN.parent) as folder:
        made = Path(folder) / "golden"
        make_all(made)
        shutil.copy(GOLDEN / "README.md", made)
        shutil.rmtree(GOLDEN)
        made.rename(GOLDEN)
    sizes = [path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()]
    print(f"{len(sizes)} files, {sum(sizes):,} bytes")


if __name__ == "__main__":
    main()
