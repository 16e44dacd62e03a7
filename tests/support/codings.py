"""Rows in each coding of the store."""

import numpy as np
import scipy.sparse as sp

from ooc_pegasos.store.csr_block import CODINGS, NO_LEVELS, CsrBlock, all_levels, escape_of
from support.rows import random_rows


def coded(matrix: sp.csr_matrix, labels: np.ndarray, coding: str, values: str | None = None) -> CsrBlock:
    """A matrix in a coding of the store, entry by entry as docs/store-format.md says."""
    escape, codes, out, offsets = escape_of(coding), [], [], [0]
    for row in range(matrix.shape[0]):
        before = 0
        for at in range(matrix.indptr[row], matrix.indptr[row + 1]):
            index = int(matrix.indices[at])
            code = index - before if escape else index
            while escape and code >= escape:
                codes.append(escape)
                out.append(0.0)
                code -= escape
            codes.append(code)
            out.append(float(matrix.data[at]))
            before = index
        offsets.append(len(codes))
    stored, levels = np.array(out, np.float32), NO_LEVELS
    if values == "code8":
        table, stored = np.unique(np.append(stored, np.float32(0)), return_inverse=True)
        stored, levels = stored[:-1].astype(np.uint8), all_levels(table)
    elif values == "bfloat16":
        bits = stored.view(np.uint32)  # the upper half, rounded to nearest even
        stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    elif values == "float16":
        stored = stored.astype(np.float16)
    elif values is None and (matrix.data == 1).all():
        stored = None
    indices = np.array(codes, CODINGS[coding])
    return CsrBlock(np.array(offsets), indices, stored, labels.astype(np.float32), matrix.shape[1], levels=levels)


def few_values(rows: int, features: int, seed: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Rows whose values every coding holds exactly."""
    matrix, labels = random_rows(rows, features, seed)
    matrix.data = np.random.default_rng(seed).choice(np.array([-1.5, 0.25, 1, 2, 96], np.float32), len(matrix.data))
    return matrix, labels
