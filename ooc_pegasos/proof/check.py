"""Check of a proof: objective and lower bound, recomputed in one pass over the store and rounded outward.

Formulas and error bounds are those of docs/proof-format.md. No code of training is imported here, neither its losses
nor its compiled loops.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.proof_sums import TINY, U
from ooc_pegasos.proof.arithmetic import Arithmetic, Pairs, Plain, sum_over
from ooc_pegasos.proof.proof_file import REAL, Claim, Proof, belonging, is_reached, refuse_overclaiming, rows_of
from ooc_pegasos.store.csr_block import CsrBlock
from ooc_pegasos.store.store import Store

SUMMED = 256 * U  # error of numpy's pairwise sums, relative to the sum of absolute values
LOSS, DUAL, WORTH, ERROR, UP, DOWN, REACH, COUNT, LINES = range(9)  # lines of `Sums.sums`
MOST_ROWS = 1 << 12
CURVATURES = {"smoothed-hinge": None, "squared-hinge": 0.5, "huber": 1.0, "squared": 1.0}
"""Of the conjugate losses; None: the parameter."""


def difference(a: Any, b: Any, rest: Any) -> Any:
    """Return a - b + rest with small |rest|, correct to a few units in the last place."""
    high = a - b
    part = high - a
    return high + ((a - (high - part)) - (b + part) + rest)


def loss_above(loss: str, parameter: float, y: np.ndarray, z: np.ndarray) -> Any:
    """Return the losses of scores, rounded up."""
    high, low, error = z[:, 0], z[:, 1], z[:, 2]
    if loss == "logistic":
        margin = y * high - 4 * U * abs(high) - error
        return (np.log1p(np.exp(-abs(margin))) + np.maximum(-margin, 0)) * (1 + 32 * U)
    off = difference(1.0, y * high, -y * low) if "hinge" in loss else abs(difference(high, y, low))
    off = np.maximum(off + 4 * U * abs(off) + error, 0)
    if loss == "hinge" or loss == "absolute":
        return off
    if loss == "epsilon-insensitive":
        return np.maximum(off - parameter, 0) * (1 + 8 * U)
    if loss == "squared-hinge" or loss == "squared":
        return off * off / (1 if loss == "squared-hinge" else 2) * (1 + 8 * U)
    if loss == "huber":
        return np.where(off > parameter, parameter * (off - parameter / 2), off * off / 2) * (1 + 8 * U)
    curved = off * off / max(parameter, 1e-300) / 2
    return np.where(off > parameter, off - parameter / 2, curved) * (1 + 8 * U)


def dual_below(loss: str, parameter: float, y: np.ndarray, c: np.ndarray, q: np.ndarray) -> Any:
    """Return (-c l*(-q / c), error bounds)."""
    if loss == "logistic":
        p = np.minimum(y * q / c, 1.0)
        with np.errstate(all="ignore"):
            left, right = np.where(p > 0, -p * np.log(p), 0.0), np.where(p < 1, -np.log1p(-p), 0.0)
        return c * (left + (1 - p) * right), 64 * U * c * (left + right)
    less = parameter * abs(q) if loss == "epsilon-insensitive" else np.zeros(1)
    if loss in CURVATURES:
        less = (CURVATURES[loss] or parameter) * q * q / (2 * c)
    return q * y - less, 8 * U * (abs(q * y) + less)


def classes_above(loss: str, costs: np.ndarray, z: np.ndarray, own: Any) -> Any:
    """Return multiclass losses of scores z[row, class], rounded up; `own` are the indices of the true classes."""
    short = difference(z[..., 0], z[own][:, :1], z[..., 1] - z[own][:, 1:2])
    slack = 8 * U * abs(short).max(axis=1) + 4 * z[..., 2].max(axis=1)
    if loss == "multiclass-hinge":
        cost = costs[own[1]]
        return (cost + short).max(axis=1) + slack + 8 * U * cost.max(axis=1)
    most, chosen = short.max(axis=1), short.argmax(axis=1)
    others = np.exp(short - most[:, None])
    others[np.arange(len(short)), chosen] = 0
    value = (most + np.log1p(others.sum(axis=1))) * (1 + (64 + 4 * short.shape[1]) * U)
    return value + 2 * slack * np.minimum(value, 1)


def classes_below(loss: str, costs: np.ndarray, c: np.ndarray, betas: np.ndarray, own: Any) -> Any:
    """Return (-c l*, error bounds, the dual variables of the true classes) of multiclass losses."""
    rest, more = 1 + betas.sum(axis=1), 2 + betas.shape[1]
    if loss == "multiclass-hinge":
        value = -(betas * costs[own[1]]).sum(axis=1)
        return c * value, 8 * more * U * c * value, rest
    with np.errstate(all="ignore"):
        value = np.where(betas < 0, betas * np.log(-betas), 0).sum(axis=1)
        last = -np.log(np.maximum(rest, TINY))
    return c * (value + np.maximum(rest, 0) * last), c * (64 * U * value + 32 * more * U * (1 + last)), rest


class Sums:
    """Sums over rows of a proof, and the check of their dual variables."""

    def __init__(self, proof: Proof, block: CsrBlock, begin: int, end: int, first: int) -> None:
        self.block, self.begin, self.problem, self.columns = block, begin, proof.header.problem, proof.header.columns
        self.rows = rows_of(proof, block, begin, end, first)
        self.kept, self.betas, self.labels, self.weights = self.rows.arrays
        self.sums, self.shares = np.zeros((LINES, self.columns)), np.array(self.problem.class_weights)
        self.sums[COUNT] = self.kept.sum()

    def scores(self, k: int, q: np.ndarray, rest: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        """Add dual variables q + rest to the sums of column k and return the scores of the rows."""
        z = np.empty((len(q), 4))
        self.rows.require(arithmetic.add(k, self.begin, self.block, q, rest, z) < 0)
        self.sums[UP, k], self.sums[DOWN, k] = np.maximum(q, 0).sum(), -np.minimum(q, 0).sum()
        self.sums[REACH, k] = abs(q) @ z[:, 3]
        return z

    def check_column(self, k: int, arithmetic: Arithmetic) -> None:
        """Add the sums of a column that is a binary or regression problem."""
        problem, loss = self.problem, self.problem.loss
        y = np.where(self.labels == k, 1.0, -1.0) if self.columns > 1 else self.labels
        c, b = self.shares[k, (y > 0).astype(int)] * self.weights, self.betas[:, k]
        size = abs(b) if loss in REAL else b * y
        largest = problem.parameter if loss == "huber" else np.inf if loss.startswith("squared") else 1
        self.rows.require_domain(((size >= 0) & (size <= largest)).all())
        q = c * b * (1 - 4 * U if loss == "huber" else 1)
        z, (value, error) = (
            self.scores(k, q, np.zeros(len(q)), arithmetic),
            dual_below(loss, problem.parameter, y, c, q),
        )
        self.sums[LOSS, k] = (c * loss_above(loss, problem.parameter, y, z))[self.kept].sum()
        self.sums[DUAL, k], self.sums[WORTH, k], self.sums[ERROR, k] = value.sum(), abs(value).sum(), error.sum()

    def check_at_once(self, costs: np.ndarray, arithmetic: Arithmetic) -> None:
        """Add the sums of a multiclass problem."""
        n, columns, own = len(self.labels), self.columns, (np.arange(len(self.labels)), self.labels.astype(int))
        c, b = self.shares[0, own[1]] * self.weights, self.betas.copy()
        b[own] = 0
        value, error, rest = classes_below(self.problem.loss, costs, c, b, own)
        self.rows.require_domain((b <= 0).all() and (rest >= 0).all())
        q, high, low = c[:, None] * b * (1 - 4 * (2 + columns) * U), np.zeros(n), np.zeros(n)
        for k in range(columns):
            total = high - q[:, k]
            low, high = low + ((high - (total - (total - high))) - (q[:, k] + (total - high))), total
        ways = ((np.where(own[1] == k, high, q[:, k]), low * (own[1] == k)) for k in range(columns))
        z = np.stack([self.scores(k, *way, arithmetic) for k, way in enumerate(ways)], axis=1)
        self.sums[LOSS, 0] = (c * classes_above(self.problem.loss, costs, z, own))[self.kept].sum()
        self.sums[DUAL, 0] = value[self.kept].sum()
        self.sums[WORTH, 0], self.sums[ERROR, 0] = abs(value[self.kept]).sum(), error.sum()


def verdict(
    store: Store,
    proof: Proof,
    weights: np.ndarray,
    biases: np.ndarray,
    arithmetics: list[Arithmetic],
    advance: Callable[[int], None],
) -> list[Claim]:
    """Return objectives rounded up and lower bounds rounded down, from a pass with one thread for each arithmetic."""
    problem, columns = proof.header.problem, proof.header.columns

    def work(block: CsrBlock, begin: int, end: int, first: int, thread: int) -> np.ndarray:
        some = Sums(proof, block, begin, end, first)
        if problem.costs is not None:
            some.check_at_once(np.array(problem.costs), arithmetics[thread])
        else:
            for k in range(columns):
                some.check_column(k, arithmetics[thread])
        arithmetics[thread].end_rows(end - begin, int(block.indptr[end]) - int(block.indptr[begin]))
        return some.sums

    sums = sum_over(store, len(arithmetics), max(MOST_ROWS // columns, 256), work, advance)
    vector, vector_error, row_norm = arithmetics[0].total(arithmetics[1:])
    rows, constant, size = sums[COUNT, 0], problem.bias_value, sums[UP] + sums[DOWN]
    squares = (weights**2).sum(axis=1) + ((biases / constant) ** 2 if constant else 0.0)
    off = abs(sums[UP] - sums[DOWN]) + (2 * SUMMED + columns * U) * size
    norms = np.sqrt((vector**2).sum(axis=1)) * (1 + SUMMED) + vector_error * sums[REACH] + 1e-290
    norms = np.hypot(norms, constant * off) * (1 + 8 * U)
    error = sums[ERROR] * (1 + SUMMED) + SUMMED * sums[WORTH]
    if problem.bias == "free":  # the dual variables of the larger sum are scaled down, so that all add up to 0
        part = np.minimum(off / np.maximum(np.maximum(sums[UP], sums[DOWN]), TINY), 1) * (1 + 4 * SUMMED)
        error, norms = error + part * sums[WORTH], norms + part * row_norm * sums[REACH]
    primal = (problem.lam / 2 * squares * (1 + 2 * SUMMED) + sums[LOSS] / rows * (1 + 2 * SUMMED)) * (1 + 8 * U)
    gain, cost = sums[DUAL] / rows, (norms / rows / math.sqrt(2 * problem.lam)) ** 2 * (1 + 16 * U)
    bound = gain - cost - 4 * U * (abs(gain) + cost) - error / rows * (1 + 8 * U)
    if problem.costs is not None:
        primal, bound = primal.sum(keepdims=True), bound.sum(keepdims=True)
    primal, bound = primal * (1 + 8 * U), np.maximum(bound * (1 - 8 * U), 0)
    return [Claim(*pair) for pair in zip(primal.tolist(), bound.tolist(), strict=True)]


def prove(
    model_file: Path,
    store_path: Path,
    proof_file: Path,
    threads: int = 2,
    begin: Callable[[str, int], None] = lambda _what, _bytes: None,
    advance: Callable[[int], None] = lambda _bytes: None,
) -> list[Claim]:
    """Return for each claim of a proof the recomputed objective and lower bound.

    `begin` and `advance` are those of a display of progress.
    Raises CorruptFileError if the proof is not of this model and store, or claims more than it proves.
    """
    store = Store.open(store_path)
    proof, weights, biases = belonging(proof_file, model_file, store)
    kinds: tuple[type[Arithmetic], ...] = (Plain, Pairs)
    for kind, what in zip(kinds, ("checking the proof", "checking with more digits"), strict=True):
        begin(what, store.manifest.bytes)
        found = verdict(store, proof, weights, biases, [kind(weights, biases) for _ in range(threads)], advance)
        if is_reached(proof, found):
            break
    refuse_overclaiming(proof, found)
    return found
