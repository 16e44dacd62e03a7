"""Files set aside: inputs that were taken out of the store again, because the model trained with them was refused.

`MODELS/set-aside.json` lists them, so that later runs leave them out until they change or are to be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.store.manifest import SourceInfo
from ooc_pegasos.util import json_checksum, typed_json
from ooc_pegasos.util.escaping import printable
from ooc_pegasos.util.files import read_file, write_atomically

FILE_NAME = "set-aside.json"


@dataclass(frozen=True)
class SetAside:
    """A file that was set aside, the run that refused the model trained with it, and the checks that failed."""

    source: SourceInfo
    run: str
    reason: str

    def line(self) -> str:
        """Return a line of text."""
        return f"{printable(self.source.name)}: refused by run {self.run}, {self.reason}"


@dataclass(frozen=True)
class _Listed:
    files: list[SetAside] = field(default_factory=list)


def load(models: Path) -> list[SetAside]:
    """Return the files that are set aside."""
    path = models / FILE_NAME
    try:
        return typed_json.load(_Listed, json_checksum.decode(read_file(path))).files
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:160]
        advice = "remove it, and the files that it lists are appended again"
        raise CorruptFileError(f"{path}: {problem}; {advice}") from error


def update(models: Path, appended: Sequence[SourceInfo], refused: Iterable[SetAside]) -> None:
    """Remove the files that were appended from the list, and add those that were refused. May be repeated."""
    before = load(models)
    names, contents = {one.name for one in appended}, {(one.size, one.xxh64) for one in appended}
    kept = [
        one for one in before if one.source.name not in names and (one.source.size, one.source.xxh64) not in contents
    ]
    files = [*kept, *refused]
    if files != before:
        write_atomically(models / FILE_NAME, json_checksum.encode(json_checksum.plainly(_Listed(files))))
