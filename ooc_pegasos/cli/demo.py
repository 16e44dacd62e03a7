"""`oocpeg demo`: the whole job on real data that comes with the package, shown as the commands to type."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import ooc_pegasos

DATA = Path(ooc_pegasos.__file__).parent / "data"

_STORY = [
    (
        "Census records of 32,561 people, as compressed text. Once and for all, make a store of them:",
        ["convert", "{data}/a9a.svm.xz", "-o", "{folder}/a9a.store", "--force"],
    ),
    ("What is in it:", ["info", "{folder}/a9a.store"]),
    (
        "Train a linear SVM, and stop when it is proved to be within 1 % of the optimum:",
        ["train", "{folder}/a9a.store", "-o", "{folder}/a9a.model", "--lambda", "1e-4", "--force"],
    ),
    (
        "How good it is on 16,281 people it has not seen, straight from the text:",
        ["evaluate", "{folder}/a9a.model", "{data}/a9a.test.svm.xz"],
    ),
]
_NEXT = """\
What to try next:
  oocpeg convert YOUR_FILES... -o your.store      any svmlight files, compressed or not
  oocpeg train your.store -o your.model           eight lambdas at once, the best is kept
  oocpeg train {folder}/a9a.store -o {folder}/exact.model --lambda 1e-2 --tolerance 1e-3
  oocpeg predict {folder}/a9a.model {data}/a9a.test.svm.xz -o {folder}/scores.csv
  oocpeg verify {folder}/a9a.store
  oocpeg train --help"""


def run(folder: Path, call: Callable[[list[str]], None], say: Callable[[str], None]) -> None:
    """Tell the story: `call` runs a command line, `say` prints."""
    folder.mkdir(parents=True, exist_ok=True)
    for text, words in _STORY:
        command = [word.format(folder=folder, data=DATA) for word in words]
        say(f"\n{text}\n$ oocpeg {shlex.join(command)}")
        call(command)
    say("\n" + _NEXT.format(folder=folder, data=DATA))
