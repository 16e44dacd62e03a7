"""Model: one Arrow file with the weights that are not 0, and everything else as JSON in its metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos import typed
from ooc_pegasos.errors import DamagedError, InputError
from ooc_pegasos.files import write_atomically, writing_errors
from ooc_pegasos.manifest import LabelInfo, Recipe
from ooc_pegasos.seal import PLACE, is_sealed, seal

if TYPE_CHECKING:
    import scipy.sparse

FORMAT, VERSION = "ooc-pegasos model", 1
_KEY = b"ooc-pegasos"


@dataclass(frozen=True)
class Certificate:
    """What is known of the distance to the optimum: `lower_bound` and `gap` are None if nothing is."""

    primal: float
    lower_bound: float | None
    gap: float | None
    converged: bool


@dataclass(frozen=True)
class ModelInfo:
    """How a model came about and how its scores are to be read."""

    features: int
    lam: float
    loss: str
    algorithm: str
    sampling: str
    seed: int
    epochs: int
    certificate: Certificate
    history: list[dict[str, Any]]
    labels: LabelInfo
    recipe: Recipe
    config: dict[str, Any]
    store_checksum: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Model:
    """Weights and what is known of them."""

    weights: np.ndarray
    info: ModelInfo = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write the model, all or nothing."""
        import pyarrow as pa

        chosen = np.flatnonzero(self.weights)
        features, weights = chosen.astype(np.uint32), self.weights[chosen]
        table = typed.dump(self.info)
        content = json.dumps(table, allow_nan=False)
        head = {"format": FORMAT, "version": VERSION, "info": content}
        schema = pa.schema(
            [pa.field("feature", pa.uint32(), nullable=False), pa.field("weight", pa.float64(), nullable=False)],
            metadata={_KEY: json.dumps(head).encode(), **PLACE},
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([pa.array(features), pa.array(weights)], schema=schema))
        with writing_errors(Path(path)):
            write_atomically(Path(path), seal(sink.getvalue().to_pybytes()))

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read a model and check every byte that matters."""
        import pyarrow as pa

        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
        try:
            if not is_sealed(content):
                problem = "not a model made by oocpeg, or damaged (the checksum does not match)"
                raise DamagedError(f"{path}: {problem}; train again")
            table = pa.ipc.open_file(content).read_all()
            head = json.loads(table.schema.metadata[_KEY])
            if (head["format"], head["version"]) != (FORMAT, VERSION):
                raise InputError(f"{path}: not a model of this version; train again")
            features, weights = (table.column(name).combine_chunks().to_numpy() for name in ("feature", "weight"))
            info = typed.load(ModelInfo, json.loads(head["info"]))
        except (pa.ArrowException, KeyError, TypeError, ValueError, RecursionError, OSError) as error:
            problem = " ".join(str(error).split())[:100]
            raise DamagedError(f"{path}: not a model of oocpeg, or damaged ({problem}); train again") from error
        if (len(features) and (np.diff(features.astype(np.int64)) <= 0).any()) or (features >= info.features).any():
            raise DamagedError(f"{path}: a feature is out of range; train again")
        dense = np.zeros(info.features)
        dense[features] = weights
        return cls(dense, info)

    def decision_function(self, rows: scipy.sparse.csr_matrix) -> np.ndarray:
        """The score of each row of a CSR matrix; features the model does not know count for nothing."""
        known = min(rows.shape[1], len(self.weights))
        scores = rows[:, :known].astype(np.float64) @ self.weights[:known]
        return np.asarray(scores).ravel()

    def predict(self, rows: scipy.sparse.csr_matrix) -> np.ndarray:
        """The label of each row, as the training data spelled it."""
        return self.labels_of(self.decision_function(rows))

    def labels_of(self, scores: np.ndarray) -> np.ndarray:
        """Labels for scores: numbers where the labels were numbers, else words."""
        labels = self.info.labels
        if labels.task == "regression":
            return scores
        names = np.array(labels.classes)
        if not labels.text and not labels.rest:
            names = names.astype(np.float64)
        return names[(scores > 0).astype(np.int64)]
