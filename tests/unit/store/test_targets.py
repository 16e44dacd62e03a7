"""Sizes of real targets, counted in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_pegasos.store.targets import TargetSizes


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), min_size=1, max_size=6))
def test_pieces_add_up(pieces):
    found = sum((TargetSizes.of(np.array(piece)) for piece in pieces), TargetSizes())
    values = np.array([value for piece in pieces for value in piece])
    assert found.rows == len(values)
    if len(values):
        assert found.mean == pytest.approx(values.mean(), abs=1e-6)
        assert found.deviation == pytest.approx(values.std(), abs=1e-4)
        assert found.largest == np.abs(values).max()


def test_a_large_offset_takes_no_digits():
    values = 1e9 + np.arange(1000) / 1000
    found = sum((TargetSizes.of(piece) for piece in np.split(values, 10)), TargetSizes())
    assert found.deviation == pytest.approx(values.std(), rel=1e-6)


def test_huge_targets_and_no_rows():
    assert (TargetSizes() + TargetSizes.of(np.array([1e200, -1e200]))).deviation == np.inf
    assert (TargetSizes() + TargetSizes.of(np.array([3e200, 1e200]))).deviation == np.inf
    assert TargetSizes.of(np.empty(0)).deviation == 0.0
