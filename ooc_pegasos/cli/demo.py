"""`oocpeg demo`: the main commands on real data that comes with the package."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import ooc_pegasos

DATA = Path(ooc_pegasos.__file__).parent / "data"

_STORY = [
    (
        "Census records of 32,561 people, as compressed text. Convert them to a store, train linear SVMs with eight "
        "lambdas, each proved to be within 0.5 % of its optimum, and keep the best:",
        ["train", "{data}/a9a.svm.xz", "-o", "{folder}/a9a.model", "--store", "{folder}/a9a.store", "--force"],
    ),
    ("Show the store, on which further training runs begin at once:", ["info", "{folder}/a9a.store"]),
    (
        "Evaluate the model on 16,281 other people, directly from the text:",
        ["evaluate", "{folder}/a9a.model", "{data}/a9a.test.svm.xz"],
    ),
]
_NEXT = """\
Next steps:
  oocpeg train YOUR_FILES... -o your.model        svmlight, CSV, JSON, Parquet and more; tables need --label COLUMN
  oocpeg convert YOUR_FILES... -o your.store      once, to train many times
  oocpeg train {folder}/a9a.store -o {folder}/exact.model --lambda 1e-2 --tolerance 1e-3
  oocpeg predict {folder}/a9a.model {data}/a9a.test.svm.xz -o {folder}/scores.csv
  oocpeg verify {folder}/a9a.store
  oocpeg train --help"""


def run(folder: Path, call: Callable[[list[str]], None], say: Callable[[str], None]) -> None:
    """Run the commands of the demo: `call` runs a command line, `say` prints."""
    folder.mkdir(parents=True, exist_ok=True)
    for text, words in _STORY:
        command = [word.format(folder=folder, data=DATA) for word in words]
        say(f"\n{text}\n$ oocpeg {shlex.join(command)}")
        call(command)
    say("\n" + _NEXT.format(folder=folder, data=DATA))
