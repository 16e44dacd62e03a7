"""What a conversion has finished, one line an event, so that it can be taken up again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ooc_pegasos.util.files import open_in_place


class Journal:
    """An append-only file of JSON events, each with its checksum; a torn last line does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0, opener=open_in_place)  # noqa: SIM115 (closed by close)
        self.truncate(max((end for end, _event in self.events()), default=0))

    def add(self, event: dict[str, Any]) -> None:
        """Write one event."""
        content = json.dumps(event, separators=(",", ":")).encode()
        line = memoryview(b"%08x %s\n" % (zlib.crc32(content), content))
        while line:
            line = line[self._file.write(line) :]

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(position after it, event) for all whole lines."""
        at = 0
        with open(self._path, "rb") as file:
            for line in file:
                content = line[9:-1]
                if not line.endswith(b"\n") or line[:8] != b"%08x" % zlib.crc32(content):
                    return
                at += len(line)
                yield at, json.loads(content)

    def truncate(self, size: int) -> None:
        """Forget the events after position `size`."""
        self._file.truncate(size)

    def close(self) -> None:
        """Close the file. An error is ignored: what is not in it is done again."""
        with suppress(OSError):
            self._file.close()
