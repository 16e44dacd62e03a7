"""Layers that only forward rows are not to come back: the functions that a row passes are counted."""

import subprocess
import sys

import pytest

from support.paths import ROOT


@pytest.mark.slow
def test_a_row_passes_few_functions():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "count_hops.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line.partition(":")[0] for line in counted] == [
        "convert svmlight",
        "convert CSV",
        "train, mapped",
        "train, read ahead",
    ]
