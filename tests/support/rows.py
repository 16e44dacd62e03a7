"""Random rows, and rows as text."""

import numpy as np
import scipy.sparse as sp


def svmlight_text(matrix: sp.csr_matrix, labels: np.ndarray, base: int = 1) -> str:
    """A matrix as svmlight text, values with all their digits."""
    lines = []
    for row, label in enumerate(labels):
        entries = range(matrix.indptr[row], matrix.indptr[row + 1])
        pairs = (f"{matrix.indices[at] + base}:{float(matrix.data[at])!r}" for at in entries)
        lines.append(" ".join([f"{label:g}" if isinstance(label, float) else str(label), *pairs]))
    return "\n".join(lines) + "\n"


def random_rows(rows: int, features: int, seed: int, density: float = 0.05) -> tuple[sp.csr_matrix, np.ndarray]:
    """Random float32 rows (some empty) with labels of -1 and 1."""
    rng = np.random.default_rng(seed)
    matrix = sp.random(rows, features, density, "csr", np.float32, rng=rng, data_rvs=rng.standard_normal)
    matrix.sort_indices()
    return matrix, rng.choice([-1, 1], rows)


def same_matrix(left: sp.csr_matrix, right: sp.csr_matrix) -> bool:
    """Same rows, same entries, bit by bit."""
    return (
        left.shape == right.shape
        and np.array_equal(left.indptr, right.indptr)
        and np.array_equal(left.indices, right.indices)
        and left.data.astype(np.float32).tobytes() == right.data.astype(np.float32).tobytes()
    )
