"""Proofs: every loss and algorithm proves its bound, an independent checker agrees, and nothing that is wrong passes."""

import dataclasses
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import least_memory, random_rows, store_of

from ooc_pegasos import ConvertConfig, Existing, Store, TrainConfig, TrainResult, convert, train
from ooc_pegasos.errors import DamagedError, UsageError
from ooc_pegasos.proof import Claim, read_proof
from ooc_pegasos.proving import prove

BINARY = ("hinge", "logistic", "smoothed-hinge")
REAL = ("epsilon-insensitive", "absolute", "huber")
AT_ONCE = ("multiclass-hinge", "multiclass-logistic")
ROWS = 300


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Weighted rows in several chunks: of two classes, of four, with real targets."""
    folder = tmp_path_factory.mktemp("stores")
    matrix, _signs = random_rows(ROWS, 60, 3, 0.1)
    rng = np.random.default_rng(4)
    scores = matrix @ rng.standard_normal((60, 4)) + 0.3 * rng.standard_normal((ROWS, 4))
    weights = rng.choice(np.array([0.1, 1, 3.7], np.float32), ROWS)
    labels = {"binary": np.where(scores[:, 0] > 0, 1, -1), "several": scores.argmax(axis=1), "real": scores[:, 0]}
    config = ConvertConfig(shuffle=False, chunk_size=4096, task="auto")
    return {
        kind: Store.from_scipy(
            matrix,
            of_kind.astype(np.float64),
            folder / kind,
            weights,
            dataclasses.replace(config, task="regression" if kind == "real" else "auto"),
        )
        for kind, of_kind in labels.items()
    }


def store_for(stores: dict[str, Store], loss: str) -> Store:
    return stores["real" if loss in REAL else "several" if loss in AT_ONCE else "binary"]


def proved(store: Store, folder: Path, config: TrainConfig, **options: object) -> tuple[TrainResult, list[Claim]]:
    """Train, save the model, and check its proof."""
    result = train(store, config, proof=folder / "proof", **options)
    result.model.save(folder / "model")
    return result, prove(folder / "model", store.path, folder / "proof")


def check(result: TrainResult, found: list[Claim]) -> None:
    """What was proved is what was reported, or a better bound."""
    primal, bound = sum(one.primal for one in found), sum(one.lower_bound for one in found)
    told = result.model.info.certificate
    assert told.primal == pytest.approx(primal, rel=1e-11)
    assert max(told.lower_bound or 0.0, 0.0) - 1e-11 * primal <= bound <= primal
    assert bound > 0


MANNERS: dict[str, dict[str, object]] = {
    "sdca": {"algorithm": "sdca"},
    "sgd-s": {"algorithm": "sgd-s"},
    "batches": {"algorithm": "sgd-s", "batch_size": 7},
    "average": {"algorithm": "sgd-s", "average": True},
    "projection": {"algorithm": "sgd-s", "project": True, "batch_size": 3, "delay": 0.0},
    "pegasos": {"algorithm": "pegasos", "sampling": "permutation"},
    "bias": {"algorithm": "sgd-s", "bias": "feature", "bias_scale": 0.3},
    "holdout": {"algorithm": "sdca", "holdout": 0.3},
    "path": {"algorithm": "sgd-s", "lam": "1e-2:1:4"},
    "path of sdca": {"algorithm": "sdca", "lam": "1e-2:1:4", "folds": 3},
    "lambda continuation": {"algorithm": "sdca", "lam": 1e-5, "tolerance": 0.3},
}


@pytest.mark.parametrize("out_of_core", [False, True])
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("loss", BINARY + REAL)
def test_every_loss_and_algorithm_proves_its_bound(loss, manner, out_of_core, stores, tmp_path):
    store = store_for(stores, loss)
    memory = None
    if out_of_core:
        memory = 8 * least_memory(store)
    options = {"lam": 0.05, "loss": loss, "max_epochs": 6, "tolerance": 1e-6, "memory": memory} | MANNERS[manner]
    check(*proved(store, tmp_path, TrainConfig(**options)))
