"""Progress journal of a conversion: one line for each event, from which an interrupted conversion resumes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ooc_pegasos.util.files import open_in_place


class Journal:
    """An append-only file of JSON events with checksums; an incomplete last line is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0, opener=open_in_place)  # noqa: SIM115 (closed by close)
        self.truncate(max((end for end, _event in self.events()), default=0))

    def add(self, event: dict[str, Any]) -> None:
        """Append an event."""
        content = json.dumps(event, separators=(",", ":")).encode()
        line = memoryview(b"%08x %s\n" % (zlib.crc32(content), content))
        while line:
            line = line[self._file.write(line) :]

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (end position, event) of all complete lines."""
        at = 0
        with open(self._path, "rb") as file:
            for line in file:
                content = line[9:-1]
                if not line.endswith(b"\n") or line[:8] != b"%08x" % zlib.crc32(content):
                    return
                at += len(line)
                yield at, json.loads(content)

    def truncate(self, size: int) -> None:
        """Remove the events after position `size`."""
        self._file.truncate(size)

    def close(self) -> None:
        """Close the file. An error is ignored, because a missing event is only repeated work."""
        with suppress(OSError):
            self._file.close()
