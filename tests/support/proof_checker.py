"""A checker of proofs by docs/proof-format.md alone: numpy, Arrow to open files, and nothing of ooc_pegasos."""

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa


def terms(loss, p, y, z, b):  # (l(z), d(b), False where b is outside the domain)
    q, t, r = y * b, 1 - y * z, abs(z - y)
    box, log = (q >= 0) & (q <= 1), np.log(np.where(q > 0, q, 1))
    return {
        "hinge": (np.maximum(t, 0), q, box),
        "smoothed-hinge": (np.where(t > p, t - p / 2, np.maximum(t, 0) ** 2 / 2 / (p or 1)), q - p * b * b / 2, box),
        "squared-hinge": (np.maximum(t, 0) ** 2, q - b * b / 4, q >= 0),
        "squared": (r * r / 2, q - b * b / 2, b == b),
        "logistic": (np.logaddexp(0, -y * z), -q * log - (1 - q) * np.log1p(-np.where(q < 1, q, 0)), box),
        "epsilon-insensitive": (np.maximum(r - p, 0), q - p * abs(b), abs(b) <= 1),
        "absolute": (r, q, abs(b) <= 1),
        "huber": (np.where(r > p, p * (r - p / 2), r * r / 2), q - b * b / 2, abs(b) <= p),
    }[loss]


def terms_at_once(loss, costs, own, z, b):  # the same for joint losses; completes b
    b[own] = 0
    q, z = -b, z - z[own][:, None]
    q[own], b[own] = 1 + b.sum(1), -b.sum(1)
    dual = (q * costs).sum(1) if loss == "multiclass-hinge" else -(q * np.log(q + (q <= 0))).sum(1)
    value = (costs + z).max(1) if loss == "multiclass-hinge" else np.logaddexp.reduce(z, 1)
    return [np.outer(one, np.arange(z.shape[1]) == 0) for one in (value, dual)] + [q >= 0]


def entries(batch):  # (rows, indices, values) of the entries of a chunk, escapes left out
    items, at = batch["features"].values, batch["features"].offsets.to_numpy().astype(int)
    gaps, x = (items.field(0), items.field(1)) if pa.types.is_struct(items.type) else (items, np.ones(len(items)))
    gaps, x = gaps.to_numpy(), np.array(x.dictionary_decode() if hasattr(x, "dictionary") else x)
    x = (x.astype("u4") << 16).view("f4").astype(float) if x.dtype == "u2" else x.astype(float)  # bfloat16
    escape, row = {1: 255, 2: 65535, 4: -1}[gaps.itemsize], np.repeat(np.arange(len(at) - 1), np.diff(at))
    sums, used = np.concatenate([[0], np.cumsum(gaps.astype(int))]), gaps != escape
    return row[used], (gaps if escape < 0 else sums[1:] - sums[at[:-1]][row])[used], x[used]


def check(model, store, proof):  # (P, D), added over classes, if nothing is wrong
    raw, made = Path(proof).read_bytes(), json.loads((Path(store) / "manifest.json").read_text())
    start, F, first = 16 + int.from_bytes(raw[8:16], "little"), made["features"], 0
    head, table = json.loads(raw[16:start]), pa.ipc.open_file(model).read_all()
    same = (head["store"], head["model"]) == (made["checksum"], hashlib.sha256(Path(model).read_bytes()).hexdigest())
    assert (zlib.crc32(raw[:-4]), same) == (int.from_bytes(raw[-4:], "little"), True)
    told, K, sums, shares = head["problem"], head["columns"], 0, np.array(head["problem"]["class_weights"])
    free, betas = told["bias"] == "free", np.frombuffer(raw[start:-4], head["numbers"]).reshape(-1, K)
    W, s, N = np.zeros((F + 1, K)), 1.0 if free else told["bias_value"], F if free else F + 1
    W[table["feature"].to_numpy()] = np.array(table["weight"].to_pylist()).reshape(-1, K)
    W[F], V = np.ravel(json.loads(table.schema.metadata[b"ooc-pegasos"])["bias"]) / (s or 1), np.zeros((2, F + 1, K))
    for batch in (pa.ipc.open_file(Path(store) / chunk["file"]).get_batch(0) for chunk in made["chunks"]):
        n, y, (row, index, x) = batch.num_rows, np.array(batch["label"], float)[:, None], entries(batch)
        row, index, x = np.r_[row, np.arange(n)], np.r_[index, np.full(n, F)], np.r_[x, np.full(n, s)]
        h = (np.arange(first, first + n, dtype="u8") + np.uint64(made["first_row"] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        kept = ((h ^ (h >> np.uint64(31))) >> np.uint64(11) >= told["left_out"])[:, None]
        c = kept * (np.array(batch["weight"], float)[:, None] if "weight" in batch.schema.names else 1.0)
        z = np.stack([np.bincount(row, x * W[index, k], n) for k in range(K)], 1)
        b, first, own = betas[first : first + n] * kept, first + n, (np.arange(n), y[:, 0].astype(int))
        if told["costs"]:
            c = c * shares[0][own[1], None]
            found = terms_at_once(told["loss"], np.array(told["costs"])[own[1]], own, z, b)
        else:
            y = y if K == 1 else np.where(y == np.arange(K), 1.0, -1.0)
            found, c = terms(told["loss"], told["parameter"], y, z, b), c * np.where(y > 0, shares[:, 1], shares[:, 0])
        assert found[2].all()
        signs = np.array([b > 0, b <= 0])  # sums of both apart, as a free bias scales one of them
        sums = sums + np.array([c * found[0], kept + 0 * z, *(c * found[1] * signs)]).sum(1)
        V += [np.stack([np.bincount(index, x * q[row, k], F + 1) for k in range(K)], 1) for q in c * b * signs]
    m, masses = sums[1], abs(V[:, F])
    r = masses.min(0) / np.maximum(masses, 1e-300) if free else np.ones((2, K))
    P = sums[0] / m + told["lam"] / 2 * (W[:N] ** 2).sum(0)
    D = (r * sums[2:]).sum(0) / m - ((r[:, None] * V).sum(0)[:N] ** 2).sum(0) / (2 * told["lam"] * m**2)
    P, D = (np.atleast_1d(one.sum() if told["costs"] else one) for one in (P, D))
    claims = np.array([[claim["primal"], claim["lower_bound"]] for claim in head["claims"]])
    assert (np.maximum(P - claims[:, 0], claims[:, 1] - np.maximum(D, 0)) <= 1e-9 * claims[:, 0]).all()
    return float(P.sum()), float(np.maximum(D, 0).sum())
