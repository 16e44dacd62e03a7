"""Every notebook runs from its first cell to its last, and what it shows in the repository is what came out."""

import os
import subprocess
import sys

import nbformat
import pytest

from support.paths import ROOT

pytestmark = pytest.mark.notebook

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def outputs(path):
    """Of each cell of code, what kinds of things it shows."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    told = [[out for out in cell.outputs if out.get("name") != "stderr"] for cell in cells]  # warnings come and go
    return [{(out.output_type, *sorted(out.get("data", {}))) for out in outs} for outs in told]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path, tmp_path):
    script = ROOT / "scripts" / "render_notebooks.py"
    command = [sys.executable, str(script), str(path), "--output", str(tmp_path / "out")]
    temporary = tmp_path / "t"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(os.listdir(tmp_path)) == ["out", "t"]
    assert not list(temporary.iterdir()), "something was left behind"
    assert outputs(tmp_path / "out" / path.name) == outputs(path), "run scripts/render_notebooks.py"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_rendered(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [out for cell in cells for out in cell.outputs]
    assert not [out for out in shown if out.output_type == "error"]
    assert any("<svg" in out.get("data", {}).get("text/html", "") for out in shown)


def test_there_are_four():
    assert len(NOTEBOOKS) == 4
    first = nbformat.read(NOTEBOOKS[0], as_version=4).cells
    assert sum(cell.cell_type == "code" for cell in first) == 10, "as it says"
