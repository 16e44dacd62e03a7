"""Proof files: the dual variables of all rows and the bounds that they prove for a model. See docs/proof-format.md."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ooc_pegasos.config import TrainConfig
from ooc_pegasos.errors import CorruptFileError, InputError
from ooc_pegasos.util import typed_json
from ooc_pegasos.util.files import open_file, read_file, replacing, writing_errors

if TYPE_CHECKING:
    from ooc_pegasos.objective.problem import Problem
    from ooc_pegasos.scoring.model import Model
    from ooc_pegasos.solvers.proof_record import DualRecord
    from ooc_pegasos.store.csr_block import CsrBlock
    from ooc_pegasos.store.manifest import ChunkInfo
    from ooc_pegasos.store.store import Store

MAGIC = b"OOCPROOF"
FORMAT, VERSION = "ooc-pegasos proof", 1
REAL = ("epsilon-insensitive", "absolute", "huber", "squared")
"""Losses of real targets."""
_ALIGNMENT, _MOST_HEADER = 64, 1 << 24
_BELOW_ONE = 1 - 2.0**-45
_PIECE = 1 << 22
_ALLOWED = 1e-9
"""Relative tolerance: training rounds differently from the check."""


@dataclass(frozen=True)
class Claim:
    """Objective of the model (or of one class against the rest) and a lower bound on the optimum."""

    primal: float
    lower_bound: float


@dataclass(frozen=True)
class ProofProblem:
    """The problem that the dual variables belong to."""

    loss: str
    parameter: float
    lam: float
    bias: Literal["none", "feature", "free"]
    bias_value: float
    """The value of the constant feature; 0 if there is none."""
    class_weights: list[list[float]]
    """For each claim the weights of the negative and the positive class, or of all classes."""
    costs: list[list[float]] | None
    left_out: int
    """Threshold: rows with a smaller hash are holdout rows."""


@dataclass(frozen=True)
class Header:
    """Header of a proof file."""

    format: str
    version: int
    store: str
    """Checksum of the store's manifest."""
    model: str
    """SHA-256 of the model file."""
    rows: int
    columns: int
    numbers: Literal["float32", "float64"]
    problem: ProofProblem
    claims: list[Claim]


@dataclass(frozen=True)
class Proof:
    """A proof file with a valid checksum; `duals` is mapped, with a line for each row of the store."""

    path: Path
    header: Header
    duals: np.ndarray
    first_row: int = 0
    """The number of the store's first row."""

    def are_trained_on(self, begin: int, end: int) -> np.ndarray:
        """Return a mask of rows begin to end: True for training rows."""
        return _are_trained_on(begin, end, self.first_row, self.header.problem.left_out)


def _are_trained_on(begin: int, end: int, first_row: int, left_out: int) -> np.ndarray:
    """Return a mask of rows begin to end: True for training rows, by a hash of the row number (splitmix64)."""
    word = np.arange(begin + 1, end + 1, dtype=np.uint64) + np.uint64(first_row)
    word *= np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    kept: np.ndarray = (word ^ (word >> np.uint64(31))) >> np.uint64(11) >= np.uint64(left_out)
    return kept


@dataclass(frozen=True)
class ProofRows:
    """Rows of a store and their dual variables, which are 0 for rows that are not part of the problem."""

    path: Path
    where: str
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    """(True if part of the problem, dual variables, labels, weights)."""

    def require(self, is_sound: object) -> None:
        """Raise CorruptFileError if the rows of the store are invalid."""
        if not is_sound:
            problem = "of the store have an invalid index, label or weight"
            raise CorruptFileError(f"{self.where} {problem}; restore the store")

    def require_domain(self, is_inside: object) -> None:
        """Raise CorruptFileError if a dual variable is outside its domain."""
        if not is_inside:
            raise CorruptFileError(f"{self.path}: a dual variable in {self.where} is outside its domain; train again")


def rows_of(proof: Proof, block: CsrBlock, begin: int, end: int, first: int) -> ProofRows:
    """Return rows begin to end of a chunk whose first row in the store is `first`. Raises CorruptFileError."""
    kept = proof.are_trained_on(first + begin, first + end)
    betas = proof.duals[first + begin : first + end].astype(np.float64)
    betas[~kept] = 0.0
    labels = block.labels[begin:end].astype(np.float64)
    weights = np.ones(end - begin) if block.weights is None else block.weights[begin:end].astype(np.float64)
    where = f"rows {first + begin:,} to {first + end - 1:,}"
    rows, columns = ProofRows(proof.path, where, (kept, betas, labels, weights)), proof.header.columns
    allowed = (labels >= 0) & (labels < columns) & (labels == np.floor(labels)) if columns > 1 else abs(labels) == 1
    if proof.header.problem.loss in REAL:
        allowed = np.isfinite(labels)
    rows.require((allowed & (weights > 0) & np.isfinite(weights)).all())
    return rows


def fingerprint(content: bytes) -> str:
    """Return the SHA-256 of a model file, which identifies the model."""
    return hashlib.sha256(content).hexdigest()


def labels_and_weights(store: Store, chunk: ChunkInfo) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and weights of the rows of a chunk."""
    path, kind = store.path / chunk.file, np.dtype(store.manifest.layout.labels)
    labels = np.fromfile(path, kind, chunk.rows, offset=chunk.starts.labels)
    if chunk.starts.weights is None:
        return labels, np.ones(chunk.rows, np.float32)
    return labels, np.fromfile(path, "<f4", chunk.rows, offset=chunk.starts.weights)


# --- writing ------------------------------------------------------------------------------------------


def write_proof(
    path: Path,
    store: Store,
    model: Model,
    problem: Problem,
    kept: list[int],
    claims: list[Claim],
    record: DualRecord,
    holdout: float,
) -> None:
    """Write the dual variables of the models `kept`, atomically, chunk by chunk."""
    specs, feature = [problem.specs[number] for number in kept], problem.bias and not problem.has_free_bias
    header_problem = ProofProblem(
        loss=problem.loss.name,
        parameter=problem.own_parameter,
        lam=specs[0].lam,
        bias="free" if problem.has_free_bias else "feature" if feature else "none",
        bias_value=problem.bias if feature else 0.0,
        class_weights=[list(map(float, spec.class_weights)) for spec in specs],
        costs=None if problem.costs is None else problem.costs.tolist(),
        left_out=int(holdout * 2**53),
    )
    columns = len(kept) * record.width
    header = Header(
        FORMAT,
        VERSION,
        store.checksum,
        fingerprint(model.encode()),
        store.rows,
        columns,
        "float64",
        header_problem,
        claims,
    )
    with writing_errors(path), replacing(path) as file:
        checksum = 0
        for piece in _content(header, _Columns(store, problem, kept, record, header_problem.left_out)):
            file.write(piece)
            checksum = zlib.crc32(piece, checksum)
        file.write(checksum.to_bytes(4, "little"))


def _content(header: Header, columns: _Columns) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a proof file without its checksum."""
    text = json.dumps(typed_json.dump(header), allow_nan=False).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % _ALIGNMENT)
    yield MAGIC + len(text).to_bytes(8, "little") + text
    for duals in columns:
        yield np.ascontiguousarray(duals, "<f8").tobytes()


@dataclass(frozen=True)
class _Columns:
    """The dual variables of the models `kept` as written: chunk by chunk, without the weights of rows."""

    store: Store
    problem: Problem
    kept: list[int]
    record: DualRecord
    left_out: int

    def __iter__(self) -> Iterator[np.ndarray]:
        scales = self._scales() if self.problem.has_free_bias else None
        for _first, duals, _weights in self._chunks():
            yield duals if scales is None else duals * np.where(duals > 0, scales[0], scales[1])

    def _chunks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (number of the first row, dual variables, weights in each column) of each chunk."""
        first, regression = 0, self.problem.loss.task == "regression"
        for chunk in self.store.manifest.chunks:
            duals = self.record.best(self.kept, first, first + chunk.rows)
            labels, of_rows = labels_and_weights(self.store, chunk)
            weights = np.ones(duals.shape)
            for place, number in enumerate(self.kept if self.problem.costs is None else []):
                spec, leaning = self.problem.specs[number], self.record.leaning[number]
                positive = labels == spec.one_class if spec.one_class >= 0 else labels > 0
                weights[:, place] = np.where(positive, spec.class_weights[1], spec.class_weights[0]) * of_rows
                if self.record.weighted[number]:
                    duals[:, place] /= weights[:, place]
                if leaning:
                    duals[:, place] += np.where(regression | (positive == (leaning > 0)), leaning, 0.0)
            yield first, _within_domain(duals, self.problem), weights
            first += chunk.rows

    def _scales(self) -> np.ndarray:
        """Return factors of the positive and of the negative variables of each model, one of which is 1.

        They make the weighted sum over the training rows 0, as a bias without regularisation requires. Training
        satisfies that up to rounding errors.
        """
        sums = []
        for first, duals, weights in self._chunks():
            trained = _are_trained_on(first, first + len(duals), self.store.manifest.first_row, self.left_out)
            masses = (duals * weights)[trained].T
            sums.append([[math.fsum(sign * line[sign * line > 0]) for line in masses] for sign in (1, -1)])
        totals = np.array([[math.fsum(parts) for parts in of_sign] for of_sign in np.transpose(sums, (1, 2, 0))])
        least: np.ndarray = totals.min(axis=0)
        return least / np.where(totals > 0, totals, 1.0)


def _within_domain(duals: np.ndarray, problem: Problem) -> np.ndarray:
    """Return dual variables clipped to the domain of the conjugate loss, which rounding may have left."""
    if problem.costs is not None:
        total = -np.minimum(duals, 0.0).sum(axis=1, keepdims=True)
        scales = np.where(total > _BELOW_ONE, _BELOW_ONE / np.maximum(total, _BELOW_ONE), 1.0)
        return duals * scales
    largest = problem.loss.largest_slope(problem.parameter)
    return duals.clip(-largest, largest)


# --- reading ------------------------------------------------------------------------------------------


def read_proof(path: Path) -> Proof:
    """Read a proof and check size, types and checksum."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(len(MAGIC) + 8)
            length = int.from_bytes(head[len(MAGIC) :], "little")
            if head[: len(MAGIC)] != MAGIC or not 0 < length <= min(size, _MOST_HEADER):
                raise CorruptFileError(f"{path}: not a proof made by 'oocpeg train --proof'; train again")
            text = file.read(length)
            checksum, left = zlib.crc32(head + text), size - len(head) - length - 4
            while left > 0 and (piece := file.read(min(left, _PIECE))):
                checksum, left = zlib.crc32(piece, checksum), left - len(piece)
            if left != 0 or file.read(4) != checksum.to_bytes(4, "little"):
                raise CorruptFileError(
                    f"{path}: the checksum does not match, so the proof is cut or damaged; train again"
                )
        header = typed_json.load(Header, json.loads(text))
        start, kind = len(head) + length, np.dtype(header.numbers).newbyteorder("<")
        shape = (header.rows, header.columns)
        if (header.format, header.version) != (FORMAT, VERSION):
            raise InputError(f"{path}: not a proof of this version; update the program or train again")
        if min(shape) < 1 or size != start + shape[0] * shape[1] * kind.itemsize + 4:
            raise CorruptFileError(f"{path}: {size:,} bytes do not hold {shape[0]:,} rows; train again")
        return Proof(path, header, np.memmap(path, kind, "r", start, shape))
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:100]
        raise CorruptFileError(f"{path}: not a proof of oocpeg ({problem}); train again") from error


def belonging(path: Path, model_file: Path, store: Store) -> tuple[Proof, np.ndarray, np.ndarray]:
    """Return a proof, and the weights and biases of its model, with a line for each column of the proof.

    Raises CorruptFileError if the proof belongs to another model or store.
    """
    from ooc_pegasos.scoring.model import Model

    proof, model = read_proof(path), Model.load(model_file)
    header, info = proof.header, model.info
    if header.model != fingerprint(read_file(model_file)):
        raise CorruptFileError(
            f"{path}: the proof of another model than {model_file}; give the model it was written with"
        )
    if (header.store, header.rows, info.features) != (store.checksum, store.rows, store.features):
        problem = "the proof of another store, or of other rows or another order of rows"
        raise CorruptFileError(f"{path}: {problem} than {store.path}; give the store that the model was trained on")
    columns = model.bias.size
    if (header.columns, len(header.claims)) != (columns, 1 if info.costs else columns):
        raise CorruptFileError(f"{path}: {header.columns} columns for a model of {columns}; train again")
    expected = dataclasses.asdict(_problem_of(model, store))
    for name, value in dataclasses.asdict(header.problem).items():
        if value != expected[name]:
            raise CorruptFileError(f"{path}: {name} is {value}, of the model {expected[name]}; train again")
    proof = dataclasses.replace(proof, first_row=store.manifest.first_row)
    return proof, np.ascontiguousarray(model.weights.reshape(-1, columns).T), model.bias.reshape(-1)


def _problem_of(model: Model, store: Store) -> ProofProblem:
    """Return the problem that the model solves."""
    info, counts = model.info, store.manifest.labels.counts
    settings = typed_json.load(TrainConfig, info.config)
    claims = model.bias.size if info.costs is None else 1
    given: Any = settings.class_weight or (1.0,) * (2 if info.costs is None else model.bias.size)
    shares = [list(given)] * claims
    if given == "balanced":
        several = info.costs is None and model.bias.ndim > 0
        tables = [[sum(counts) - count, count] for count in counts] if several else [counts]
        shares = [[sum(table) / (len(table) * count) for count in table] for table in tables]
    scale = settings.bias_scale if settings.biased == "feature" else 0.0
    left_out = 0 if settings.is_search else int(settings.holdout_fraction * 2**53)
    way: Any = {"none": "none", "feature": "feature"}.get(settings.biased, "free")
    return ProofProblem(info.loss, info.parameter, info.lam, way, scale, shares, info.costs, left_out)


def is_reached(proof: Proof, found: list[Claim]) -> bool:
    """True if each claim of a proof was confirmed, up to the rounding errors of training."""
    pairs = zip(proof.header.claims, found, strict=True)
    return all(_reaches(one, claim) for claim, one in pairs)


def _reaches(one: Claim, claim: Claim) -> bool:
    slack = _ALLOWED * claim.primal
    return one.primal <= claim.primal + slack and one.lower_bound >= claim.lower_bound - slack


def refuse_overclaiming(proof: Proof, found: list[Claim]) -> None:
    """Raise CorruptFileError if a proof claims more than was confirmed."""
    for claim, one in zip(proof.header.claims, found, strict=True):
        if not _reaches(one, claim):
            claimed = f"claims an objective of {claim.primal:.9g} and a bound of {claim.lower_bound:.9g}"
            shown = f"the objective is {one.primal:.9g} and the bound {one.lower_bound:.9g}"
            raise CorruptFileError(f"{proof.path}: {claimed}, but {shown}; train again")
