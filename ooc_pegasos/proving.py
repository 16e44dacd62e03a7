"""Check a proof: objective and lower bound, recomputed in one pass over the store and rounded outward.

Formulas and error bounds are those of docs/proof-format.md. Nothing of training is imported here, neither its losses
nor its compiled loops.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.block import CsrBlock
from ooc_pegasos.errors import DamagedError
from ooc_pegasos.kernels.pairs import SPLITTER, TINY, U, add_rows, score_rows
from ooc_pegasos.parallel import ordered_map
from ooc_pegasos.proof import Claim, Proof, belonging, refuse_overclaiming
from ooc_pegasos.store import Store

SUMMED = 256 * U  # relative to the sum of sizes, of sums by numpy, which adds in pairs
REAL = ("epsilon-insensitive", "absolute", "huber")
LOSS, DUAL, ERROR, MASS, SIZE, REACH, COUNT, LINES = range(8)  # of the sums of some rows
MOST_ROWS = 1 << 14


def difference(a: Any, b: Any, rest: Any) -> Any:
    """A - b + rest with |rest| small: correct to a few units in the last place."""
    high = a - b
    part = high - a
    return high + ((a - (high - part)) - (b + part) + rest)


def loss_above(loss: str, parameter: float, y: np.ndarray, z: np.ndarray) -> Any:
    """Losses of scores, rounded up."""
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
    if loss == "huber":
        return np.where(off > parameter, parameter * (off - parameter / 2), off * off / 2) * (1 + 8 * U)
    curved = off * off / max(parameter, 1e-300) / 2
    return np.where(off > parameter, off - parameter / 2, curved) * (1 + 8 * U)


def dual_below(loss: str, parameter: float, y: np.ndarray, c: np.ndarray, q: np.ndarray) -> Any:
    """(-c l*(-q / c), bounds on the errors)."""
    if loss == "logistic":
        p = np.minimum(y * q / c, 1.0)
        with np.errstate(all="ignore"):
            left, right = np.where(p > 0, -p * np.log(p), 0.0), np.where(p < 1, -np.log1p(-p), 0.0)
        return c * (left + (1 - p) * right), 64 * U * c * (left + right)
    less = parameter * abs(q) if loss == "epsilon-insensitive" else np.zeros(1)
    if loss in ("smoothed-hinge", "huber"):
        less = (parameter if loss == "smoothed-hinge" else 1.0) * q * q / (2 * c)
    return q * y - less, 8 * U * (abs(q * y) + less)


def classes_above(loss: str, costs: np.ndarray, z: np.ndarray, own: Any) -> Any:
    """Losses of scores z[row, class] of all classes at once, rounded up; `own` are the places of the own classes."""
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
    """(-c l*, bounds on the errors, the part of each row that is left to its own class) of all classes at once."""
    rest, more = 1 + betas.sum(axis=1), 2 + betas.shape[1]
    if loss == "multiclass-hinge":
        value = -(betas * costs[own[1]]).sum(axis=1)
        return c * value, 8 * more * U * c * value, rest
    with np.errstate(all="ignore"):
        value = np.where(betas < 0, betas * np.log(-betas), 0).sum(axis=1)
        last = -np.log(np.maximum(rest, TINY))
    return c * (value + np.maximum(rest, 0) * last), c * (64 * U * value + 32 * more * U * (1 + last)), rest


def add_column(
    sums: np.ndarray, begin: int, block: CsrBlock, q: np.ndarray, rest: np.ndarray, z: np.ndarray, pairs: np.ndarray
) -> None:
    """Add dual variables q + rest of rows from `begin` on to the sums and the pairs of a column."""
    add_rows(begin, begin + len(q), *block.entries, q, rest, pairs)
    sums[MASS], sums[SIZE], sums[REACH] = q.sum(), abs(q).sum(), (abs(q) * z[:, 3]).sum()


def check_rows(
    block: CsrBlock, begin: int, end: int, first: int, proof: Proof, model: Any, pairs: np.ndarray
) -> np.ndarray:
    """Sums over rows of a chunk whose first row is `first` in the store; their features' sums are added to `pairs`."""
    told, (halves, biases), n, columns = proof.header.problem, model, end - begin, proof.header.columns
    kept = proof.are_trained_on(first + begin, first + end)
    betas = np.where(kept[:, None], proof.duals[first + begin : first + end].astype(np.float64), 0.0)
    labels = block.labels[begin:end].astype(np.float64)
    weights = np.ones(n) if block.weights is None else block.weights[begin:end].astype(np.float64)
    several, where = columns > 1, f"rows {first + begin:,} to {first + end - 1:,}"
    allowed = np.isfinite(labels) if told.loss in REAL else np.isin(labels, range(columns) if several else (-1, 1))
    z, sums, shares = np.empty((columns, n, 4)), np.zeros((LINES, columns)), np.array(told.class_weights)
    bad = max(score_rows(begin, end, *block.entries, halves[k], biases[k], z[k]) for k in range(columns))
    if bad >= 0 or not (allowed & (weights > 0) & np.isfinite(weights)).all():
        raise DamagedError(f"{where} of the store have an index, label or weight that cannot be; restore the store")
    sums[COUNT], low = kept.sum(), np.zeros(n)
    if told.costs is None:
        for k in range(columns):
            y = np.where(labels == k, 1.0, -1.0) if several else labels
            c, b = shares[k, (y > 0).astype(int)] * weights, betas[:, k]
            size = abs(b) if told.loss in REAL else b * y
            if not ((size >= 0) & (size <= (told.parameter if told.loss == "huber" else 1))).all():
                raise DamagedError(f"{proof.path}: a dual variable in {where} is outside its domain; train again")
            q = c * b * (1 - 4 * U if told.loss == "huber" else 1)
            value, error = dual_below(told.loss, told.parameter, y, c, q)
            sums[LOSS, k] = (c * loss_above(told.loss, told.parameter, y, z[k]))[kept].sum()
            sums[DUAL, k], sums[ERROR, k] = value.sum(), (error + SUMMED * abs(value)).sum()
            add_column(sums[:, k], begin, block, q, low, z[k], pairs[k])
        return sums
    own, costs = (np.arange(n), labels.astype(int)), np.array(told.costs)
    c, b = shares[0, own[1]] * weights, betas.copy()
    b[own] = 0
    value, error, rest = classes_below(told.loss, costs, c, b, own)
    if not ((b <= 0).all() and (rest >= 0).all()):
        raise DamagedError(f"{proof.path}: a dual variable in {where} is outside its domain; train again")
    sums[LOSS, 0] = (c * classes_above(told.loss, costs, z.transpose(1, 0, 2), own))[kept].sum()
    sums[DUAL, 0], sums[ERROR, 0] = value[kept].sum(), (error + SUMMED * abs(value)).sum()
    q, high = c[:, None] * b * (1 - 4 * (2 + columns) * U), np.zeros(n)
    for k in range(columns):
        total = high - q[:, k]
        low, high = low + ((high - (total - (total - high))) - (q[:, k] + (total - high))), total
    for k in range(columns):
        is_own = own[1] == k
        add_column(sums[:, k], begin, block, np.where(is_own, high, q[:, k]), low * is_own, z[k], pairs[k])
    return sums


def pass_over(store: Store, proof: Proof, model: Any, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """(sums, pairs of the features) over all rows; the order of additions depends on `threads` alone."""
    found: list[np.ndarray] = []
    pairs = [np.zeros(model[0].shape) for _ in range(threads)]
    first, step = 0, max(MOST_ROWS // proof.header.columns, 256)

    def work(block: CsrBlock, thread: int) -> list[np.ndarray]:
        begins = range(thread * step, block.rows, threads * step)
        spans = ((begin, min(begin + step, block.rows)) for begin in begins)
        return [check_rows(block, *span, first, proof, model, pairs[thread]) for span in spans]

    chunks = ordered_map(store.block, range(len(store.manifest.chunks)), 2)
    with ThreadPoolExecutor(threads) as pool, closing(chunks) as blocks:
        for block in blocks:
            for sums in pool.map(partial(work, block), range(threads)):
                found += sums
            first += block.rows
    high, low = pairs[0][:, 0::2], pairs[0][:, 1::2]
    for other in pairs[1:]:
        total = high + other[:, 0::2]
        part = total - high
        low, high = low + (high - (total - part)) + (other[:, 0::2] - part) + other[:, 1::2], total
    total = np.array([[math.fsum(numbers) for numbers in line] for line in np.stack(found, axis=2)])
    return total, high + low


def prove(model_file: Path, store_path: Path, proof_file: Path, threads: int = 2) -> list[Claim]:
    """Return for each claim of a proof the objective of the model and the lower bound that were found.

    Raises DamagedError if the proof is not of this model and store, or claims more than it proves.
    """
    store = Store.open(store_path)
    proof, weights, biases = belonging(proof_file, model_file, store)
    told, top = proof.header.problem, weights * SPLITTER
    top = top - (top - weights)
    halves = np.stack([top, weights - top], axis=2).reshape(len(weights), -1)
    sums, vector = pass_over(store, proof, (halves, biases), threads)
    rows, constant = sums[COUNT, 0], told.bias_value
    squares = (weights**2).sum(axis=1) + ((biases / constant) ** 2 if constant else 0.0)
    reach = 8 * (rows * U * U + TINY) * sums[REACH] * math.sqrt(store.features) + 1e-290
    norms = np.sqrt((vector**2).sum(axis=1)) * (1 + SUMMED) + reach
    norms = np.hypot(norms, constant * (abs(sums[MASS]) + 2 * SUMMED * sums[SIZE])) * (1 + 8 * U)
    primal = (told.lam / 2 * squares * (1 + 2 * SUMMED) + sums[LOSS] / rows * (1 + 2 * SUMMED)) * (1 + 8 * U)
    gain, cost = sums[DUAL] / rows, (norms / rows / math.sqrt(2 * told.lam)) ** 2 * (1 + 16 * U)
    bound = gain - cost - 4 * U * (abs(gain) + cost) - sums[ERROR] / rows * (1 + SUMMED)
    if told.costs is not None:
        primal, bound = primal.sum(keepdims=True), bound.sum(keepdims=True)
    primal, bound = primal * (1 + 8 * U), np.maximum(bound * (1 - 8 * U), 0)
    found = [Claim(*pair) for pair in zip(primal.tolist(), bound.tolist(), strict=True)]
    refuse_overclaiming(proof, found)
    return found
