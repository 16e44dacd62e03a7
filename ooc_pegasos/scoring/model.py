"""Model: one Arrow file with the non-zero weights, and everything else as JSON in its metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos.errors import CorruptFileError, InputError, UsageError
from ooc_pegasos.objective.certificate import relative_accuracy
from ooc_pegasos.objective.lambda_path import Trial
from ooc_pegasos.registry import LOSSES
from ooc_pegasos.reporting.history import EpochRecord
from ooc_pegasos.scoring.calibration import Calibration
from ooc_pegasos.store.manifest import MOST_FEATURES, LabelInfo, Recipe, problem_of_labels, problem_of_recipe
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.arrow import array_of, numbers_of
from ooc_pegasos.util.arrow_checksum import PLACE, is_sealed, seal
from ooc_pegasos.util.csr_matrix import csr_of
from ooc_pegasos.util.files import read_file, write_atomically, writing_errors
from ooc_pegasos.util.kind_of_path import MODEL, refuse_other_than_model

if TYPE_CHECKING:
    import scipy.sparse

    from ooc_pegasos.aliases import ArrowTable, Labels, Matrix
    from ooc_pegasos.store.store import Store

FORMAT, VERSION = "ooc-pegasos model", 1
_KEY = b"ooc-pegasos"
_ROWS = "memory"
"""Name of in-memory rows in messages."""
_MOST_SHOWN = 10
"""Number of features shown in a notebook."""


@dataclass(frozen=True)
class Certificate:
    """Bounds on the distance to the optimum; `lower_bound` and `gap` are None if not known."""

    primal: float
    lower_bound: float | None
    gap: float | None
    converged: bool

    @property
    def relative_accuracy(self) -> float | None:
        """(P - D)/D: an upper bound on the excess of the objective over the optimum, relative to the lower bound."""
        return relative_accuracy(self.primal, self.lower_bound)


@dataclass(frozen=True)
class ModelInfo:
    """Origin of a model and meaning of its scores."""

    features: int
    lam: float
    loss: str
    parameter: float
    """Parameter of the loss, 0 if it has none."""
    costs: list[list[float]] | None
    """Costs of confusing classes, if all classes were trained at once."""
    algorithm: str
    sampling: str
    seed: int
    epochs: int
    certificate: Certificate
    history: list[EpochRecord]
    trials: list[Trial]
    """Holdout metrics of each lambda that was compared."""
    calibrations: list[Calibration]
    """Maps from scores to probabilities, one a class; empty if not fitted."""
    labels: LabelInfo
    recipe: Recipe
    config: dict[str, Any]
    store_checksum: str
    versions: dict[str, str]
    sources: list[str] = field(default_factory=list)
    """Fingerprints of the first inputs of the store, see `SourceInfo.fingerprint`."""


def _compact(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a `ModelInfo` without sources if there are none, as older versions wrote it."""
    return {name: value for name, value in table.items() if name != "sources" or value}


def _problem_of(info: ModelInfo, features: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> str | None:
    """Return a contradiction within a model, or None; compiled loops do not check."""
    if not 0 <= info.features <= MOST_FEATURES or (features >= info.features).any():
        return "a feature is out of range"
    wrong = problem_of_labels(info.labels) or problem_of_recipe(info.recipe)
    if wrong:
        return wrong
    several = info.labels.task == "multiclass"
    classes = len(info.labels.classes)
    if bias.shape != ((classes,) if several else ()) or weights.shape != (len(features), *bias.shape):
        return "weights that are not those of its classes"
    if weights.dtype != np.float64 or not np.isfinite(weights).all() or not np.isfinite(bias).all():
        return "a weight is not a number"
    known = LOSSES.get(info.loss)
    if known is None or known.task not in (info.labels.task, "binary" if several else ""):
        return f"a loss {info.loss!r} that is not for its labels"
    if (known.task == "multiclass") != (info.costs is not None):
        return "costs that do not go with its loss"
    if info.costs is not None and {len(info.costs), *map(len, info.costs)} != {classes}:
        return "costs that are not those of its classes"
    if info.calibrations and len(info.calibrations) != (classes if several else 1):
        return "probabilities that are not those of its classes"
    if not all(one.is_sound() for one in info.calibrations):
        return "probabilities that cannot be"
    scale = info.config.get("bias_scale", 1.0)
    if type(scale) not in (int, float) or not 0 < scale < np.inf:
        return "a scale of the bias that cannot be"
    return None


def check_width(columns: float, features: int, name: str) -> None:
    """Refuse a matrix with fewer columns than the model has features, because the missing columns are unknown."""
    if columns < features:
        problem = f"{name}: a matrix of {columns:,} columns, but the model has {features:,} features"
        raise InputError(f"{problem}; give it all columns, in the order of the training data")


def _check_values(matrix: scipy.sparse.csr_matrix) -> None:
    """Refuse values that no store can have; their scores would be NaN, and yet be assigned a class."""
    values = matrix.data[: matrix.nnz]
    with np.errstate(over="ignore", invalid="ignore"):
        ends = (values.min(), values.max()) if values.size else ()  # both are nan if any value is
        if all(np.isfinite(np.float32(end)) for end in ends):
            return
        place = int(np.flatnonzero(~np.isfinite(values.astype(np.float32)))[0])
    value, row = values[place], int(np.searchsorted(matrix.indptr, place, "right"))
    where = f"{_ROWS}: row {row:,}: the value {value:g} in column {matrix.indices[place]}"
    if np.isfinite(value):
        raise InputError(f"{where} is too large for float32; scale the data")
    raise InputError(f"{where} is not finite; leave out the row or correct it")


@dataclass(frozen=True, repr=False)
class Model:
    """Weights with their origin: one vector, or for several classes a matrix with a column each."""

    weights: np.ndarray
    info: ModelInfo = field(repr=False)
    bias: np.ndarray = field(default_factory=lambda: np.array(0.0))
    """Bias, added to scores: one number, or one a class."""
    vocabulary: Vocabulary = field(default_factory=Vocabulary, repr=False)
    """Names and document frequencies of features."""

    def save(self, path: str | Path) -> None:
        """Write the model atomically."""
        content = self.encode()
        with writing_errors(Path(path)):
            write_atomically(Path(path), content)

    def encode(self) -> bytes:
        """Return the content of the file that `save` writes."""
        import pyarrow as pa

        several = self.weights.ndim > 1
        chosen = np.flatnonzero(self.weights.any(axis=1) if several else self.weights)
        if self.info.recipe.needs_vocabulary:  # includes features of weight 0
            chosen = np.union1d(chosen, self.vocabulary.places.astype(np.int64))
        features, weights = chosen.astype(np.uint32), self.weights[chosen]
        column = array_of(weights.ravel())
        if several:
            column = pa.FixedSizeListArray.from_arrays(column, weights.shape[1])
        table = _compact(typed_json.dump(self.info))
        content = json.dumps(table, allow_nan=False)
        head = {"format": FORMAT, "version": VERSION, "info": content, "bias": self.bias.tolist()}
        fields = [pa.field("feature", pa.uint32(), nullable=False), pa.field("weight", column.type, nullable=False)]
        columns = [array_of(features), column]
        for name, known in self.vocabulary.at(chosen).columns().items():
            fields.append(pa.field(name, known.type))
            columns.append(known)
        schema = pa.schema(fields, metadata={_KEY: json.dumps(head).encode(), **PLACE})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        return seal(sink.getvalue().to_pybytes())

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read a model and check every byte."""
        import pyarrow as pa

        if (Path(path) / MODEL).is_file():  # a version of a job
            path = Path(path) / MODEL
        refuse_other_than_model(path)
        try:
            content = read_file(Path(path))
        except OSError as error:
            raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
        try:
            if not is_sealed(content):
                problem = "not a model made by oocpeg, or damaged (the checksum does not match)"
                raise CorruptFileError(f"{path}: {problem}; train again")
            table = pa.ipc.open_file(content).read_all()
            table.validate()
            head = json.loads(table.schema.metadata[_KEY])
            if (head["format"], head["version"]) != (FORMAT, VERSION):
                raise InputError(f"{path}: not a model of this version; train again")
            vocabulary = Vocabulary.of_columns(table.drop_columns("weight"))
            features = vocabulary.places
            info = typed_json.load(ModelInfo, json.loads(head["info"]))
            json.dumps(typed_json.dump(info), allow_nan=False)  # raises for NaN and infinities
            column, bias = table.column("weight").combine_chunks(), np.array(head["bias"], np.float64)
            numbers = column.flatten() if bias.ndim else column
            if column.null_count or numbers.null_count:
                raise ValueError("weights that are missing")
            weights = numbers_of(numbers).reshape(-1, *bias.shape)
        except (
            pa.ArrowException,
            AttributeError,
            KeyError,
            OverflowError,
            TypeError,
            ValueError,
            RecursionError,
            OSError,
        ) as error:
            problem = " ".join(str(error).split())[:100]
            raise CorruptFileError(f"{path}: not a model of oocpeg, or damaged ({problem}); train again") from error
        wrong = _problem_of(info, features, weights, bias) or vocabulary.check(info.recipe)
        if wrong:
            raise CorruptFileError(f"{path}: {wrong}; train again")
        try:
            dense = np.zeros((info.features, *bias.shape))
        except MemoryError:
            problem = f"{info.features:,} features take more memory than there is"
            raise InputError(f"{path}: {problem}; use a larger machine") from None
        dense[features] = weights
        return cls(dense, info, bias, vocabulary)

    def __repr__(self) -> str:
        info = self.info
        what = "real targets" if info.labels.task == "regression" else f"{len(info.labels.classes)} classes"
        gap = info.certificate.gap
        proven = "no certificate" if gap is None else f"certified gap {100 * gap:.3g} %"
        return f"Model({info.loss}, {what}, {info.features:,} features, lambda {info.lam:.6g}, {proven})"

    def _repr_html_(self) -> str:
        from ooc_pegasos.reporting.notebook import model_html
        from ooc_pegasos.scoring.heaviest_features import weighed

        return model_html(self, weighed(self.weights, _MOST_SHOWN, self.vocabulary, self.info.recipe))

    @property
    def has_probabilities(self) -> bool:
        """True if scores have probabilities: by a calibration, or by the logistic loss."""
        return bool(self.info.calibrations) or LOSSES[self.info.loss].has_probabilities

    def check_probabilities(self) -> None:
        """Refuse a model without probabilities."""
        if self.info.labels.task == "regression":
            raise UsageError("the model is one of real targets, which have no probabilities; leave out {proba}")
        if not self.has_probabilities:
            raise UsageError(
                "the model has no probabilities; train it with {calibrate=platt} or isotonic, or {loss=logistic}"
            )

    def probabilities_of(self, scores: np.ndarray) -> np.ndarray:
        """Return the probability of the positive class for each score, or of each class, adding up to 1."""
        self.check_probabilities()
        columns = scores[:, None] if scores.ndim == 1 else scores
        if self.info.calibrations:
            found = [one.apply(columns[:, number]) for number, one in enumerate(self.info.calibrations)]
            probabilities = np.stack(found, axis=1)
        elif self.info.costs is not None:
            probabilities = np.exp(columns - columns.max(axis=1, keepdims=True))
        else:
            with np.errstate(over="ignore"):
                probabilities = 1.0 / (1.0 + np.exp(-columns))
        if scores.ndim == 1:
            return np.ascontiguousarray(probabilities[:, 0])
        total = probabilities.sum(axis=1, keepdims=True)
        equal = np.full_like(probabilities, 1.0 / probabilities.shape[1])
        np.divide(probabilities, total, out=equal, where=total > 0)
        shares: np.ndarray = equal
        return shares

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of the columns of `predict_proba`; empty for real targets."""
        return self._names_of_classes()

    def predict_proba(self, rows: Matrix | ArrowTable) -> np.ndarray:
        """Return the probability of each class, one row for each; rows as for `decision_function`."""
        found = self.probabilities_of(self.decision_function(rows))
        return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found

    def evaluate(self, data: str | Path | Store | Matrix | ArrowTable, labels: Labels | None = None) -> dict[str, Any]:
        """Return the metrics on a store, a file, a table with the column of labels, or rows and their labels."""
        from ooc_pegasos.scoring.in_memory import evaluate_data

        return evaluate_data(self, data, labels)

    def top_features(self, number: int = 20) -> list[tuple[str, float | list[float]]]:
        """Return the features with the largest weights, by name where it is known, with weights as in the data.

        With several classes a feature has a weight for each. Features without a known name have their index.
        """
        from ooc_pegasos.scoring.heaviest_features import weighed

        found = weighed(self.weights, number, self.vocabulary, self.info.recipe)
        return [(str(index) if name is None else name, weight.tolist()) for index, name, weight in found]

    def decision_function(self, rows: Matrix | ArrowTable) -> np.ndarray:
        """Return the score of each row, or one a class.

        For a model of a table: a table of pyarrow, pandas or polars, whose columns are found by name. Else a matrix as
        for `Store.from_scipy`: sparse in any format, an array, lists, a dataframe of numbers, with the columns of the
        store. Further columns are ignored; fewer columns are refused.
        """
        if self.info.recipe.table is not None:
            from ooc_pegasos.scoring.in_memory import is_table, scores_of_table

            if is_table(rows):
                return scores_of_table(self, rows)
        matrix = csr_of(rows, _ROWS)
        check_width(matrix.shape[1], len(self.weights), _ROWS)
        _check_values(matrix)
        known = len(self.weights)
        matrix = matrix if known == matrix.shape[1] else matrix[:, :known]
        products: np.ndarray = matrix.astype(np.float64, copy=False) @ self.weights
        scores: np.ndarray = products + self.bias
        return scores

    def predict(self, rows: Matrix | ArrowTable) -> np.ndarray:
        """Return the label of each row in the spelling of the training data; rows as for `decision_function`."""
        return self.labels_of(self.decision_function(rows))

    def labels_of(self, scores: np.ndarray) -> np.ndarray:
        """Return labels for scores: numbers if the labels were numbers, else words."""
        labels = self.info.labels
        if labels.task == "regression":
            return scores
        names = self._names_of_classes()
        chosen: np.ndarray = scores.argmax(axis=1) if scores.ndim > 1 else (scores > 0).astype(np.int64)
        found: np.ndarray = names[chosen]
        return found

    def _names_of_classes(self) -> np.ndarray:
        labels = self.info.labels
        names = np.array(labels.classes)
        return names if labels.text or labels.rest else names.astype(np.float64)
