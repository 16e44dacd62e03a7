"""Run the notebooks and store their outputs: `python scripts/render_notebooks.py [NOTEBOOK ...] [--output FOLDER]`.

Each runs in a kernel of its own with a temporary folder as its working folder, and must leave that empty.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120
"""Seconds for a cell."""


def render(path: Path, target: Path) -> float:
    """Run a notebook and write it with its outputs; return the seconds it took. Raises if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
        left = os.listdir(folder)
    if left:
        raise SystemExit(f"{path.name} left {left}")
    seconds = time.perf_counter() - began
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return seconds


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted((ROOT / "notebooks").glob("*.ipynb")))
    parser.add_argument("--output", type=Path, help="a folder for what comes out; by default it stays where it is")
    words = parser.parse_args()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # notebook kernels import this package
    with tempfile.TemporaryDirectory() as settings:
        # no settings or history of the user
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            os.environ[name] = str(Path(settings) / name.lower())
        for path in words.notebooks:
            seconds = render(path, (words.output or path.parent) / path.name)
            print(f"{path.name}: {seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
