"""Rows like those of RCV1/CCAT, as svmlight text: features by Zipf's law, rows of length 1, a noisy linear truth.

python scripts/make_ccat_like.py OUT.svm [--rows 800000] [--features 47000] [--nonzeros 67] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp


def make(rows: int, features: int, nonzeros: int, seed: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return (float32 CSR matrix, labels of -1 and 1)."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(rng.poisson(nonzeros, rows), 1)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    # the inverse of a Zipf-like distribution function: density 1 / (rank + 20)
    shift = 20.0
    indices = (shift * ((features / shift + 1) ** rng.random(indptr[-1], dtype=np.float32)) - shift).astype(np.int32)
    np.minimum(indices, features - 1, out=indices)
    values = rng.exponential(1.0, indptr[-1]).astype(np.float32) * np.log1p(indices + 1).astype(np.float32)
    matrix = sp.csr_matrix((values, indices, indptr), shape=(rows, features))
    matrix.sum_duplicates()
    matrix.sort_indices()
    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1))).ravel()
    matrix.data /= np.repeat(norms, np.diff(matrix.indptr)).astype(np.float32)
    scores = matrix @ rng.standard_normal(features)
    labels = np.where(scores + 0.3 * scores.std() * rng.standard_normal(rows) > np.quantile(scores, 0.53), 1, -1)
    return matrix, labels


def write(path: Path, matrix: sp.csr_matrix, labels: np.ndarray) -> None:
    """Return svmlight text with nine digits."""
    with path.open("w") as out:
        for row, label in enumerate(labels.tolist()):
            part = slice(matrix.indptr[row], matrix.indptr[row + 1])
            pairs = zip((matrix.indices[part] + 1).tolist(), matrix.data[part].tolist(), strict=True)
            out.write(f"{label} " + " ".join(f"{index}:{value:.9g}" for index, value in pairs) + "\n")


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--features", type=int, default=47_000)
    parser.add_argument("--nonzeros", type=int, default=75, help="draws a row; some fall on the same feature")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    matrix, labels = make(arguments.rows, arguments.features, arguments.nonzeros, arguments.seed)
    write(arguments.out, matrix, labels)
    print(matrix.shape, matrix.nnz, f"{(labels > 0).mean():.3f} positive", file=sys.stderr)


if __name__ == "__main__":
    main()
