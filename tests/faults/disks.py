"""The contents of a disk after a power cut, computed from the journal of a process that ran with shim.c.

The model: bytes of a file are durable once that file was synced, a name once its folder was synced, and each rename is
atomic. All else may or may not be on the disk: any of the later writes of a file, any of the later changes of names.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_RECORD = struct.Struct("<cQQQQQ")


@dataclass(eq=False)
class File:
    """Contents as pieces that were written (offset, bytes) or cuts (size, None), the first `synced` of them durable."""

    pieces: list[tuple[int, bytes | None]] = field(default_factory=list)
    synced: int = 0
    modified_ns: int | None = None
    """None if the file was changed since the beginning."""

    def content(self, number: int) -> bytes:
        """The bytes after the first pieces."""
        made = bytearray()
        for at, piece in self.pieces[:number]:
            end = at if piece is None else at + len(piece)
            made.extend(bytes(max(end - len(made), 0)))
            if piece is None:
                del made[at:]
            else:
                made[at:end] = piece
        return bytes(made)


@dataclass(eq=False)
class Folder:
    """Names of files, folders and links as the process sees them."""

    names: dict[str, Node] = field(default_factory=dict)


Node = File | Folder | str
"""A string is the target of a symbolic link."""


@dataclass(eq=False)
class Renaming:
    """A change of names in one or two folders."""

    changes: list[tuple[Folder, str, Node | None]]
    is_durable: bool = False


Choice = Callable[[], bool]


class Disk:
    """A folder before a process began, and all that the process has changed since."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._nodes: dict[int, File | Folder] = {}
        self._renamings: list[Renaming] = []
        self._before: list[tuple[Folder, dict[str, Node]]] = []
        self._top = self._read(root)

    def _read(self, path: Path) -> Folder:
        folder = Folder()
        self._nodes[path.stat().st_ino] = folder
        for entry in path.iterdir():
            if entry.is_symlink():
                folder.names[entry.name] = os.readlink(entry)
            elif entry.is_dir():
                folder.names[entry.name] = self._read(entry)
            else:
                found = entry.stat()
                node = self._nodes.setdefault(found.st_ino, File([(0, entry.read_bytes())], 1, found.st_mtime_ns))
                folder.names[entry.name] = node
        self._before.append((folder, dict(folder.names)))
        return folder

    # --- what the process does --------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take in one event of the journal."""
        what, first, second = event.what, event.first, event.second
        if what == "c":
            node = self._nodes[event.inode] = File()
            self._rename([(*self._parent(first), node)])
        elif what == "m":
            made = self._nodes[event.inode] = Folder()
            self._before.append((made, {}))
            self._rename([(*self._parent(first), made)])
        elif what == "y":
            self._rename([(*self._parent(second), first)])
        elif what == "u":
            self._rename([(*self._parent(first), None)])
        elif what in "rl":
            folder, name = self._parent(first)
            gone = [(folder, name, None)] if what == "r" else []
            self._rename([(*self._parent(second), folder.names[name]), *gone])
        elif what == "s":
            self._sync(self._nodes.get(event.inode))
        else:
            file = self._nodes.get(event.inode)
            if isinstance(file, File):
                file.pieces.append((event.at, event.content if what == "w" else None))
                file.modified_ns = None

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder = self._top
        *parents, name = Path(path).relative_to(self._root).parts
        for parent in parents:
            inner = folder.names[parent]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def _rename(self, changes: list[tuple[Folder, str, Node | None]]) -> None:
        for folder, name, node in changes:
            _put(folder.names, name, node)
        self._renamings.append(Renaming(changes))

    def _sync(self, node: File | Folder | None) -> None:
        if isinstance(node, File):
            node.synced = len(node.pieces)
        for renaming in self._renamings if isinstance(node, Folder) else []:
            renaming.is_durable |= any(folder is node for folder, _name, _node in renaming.changes)

    # --- what is left of it -----------------------------------------------------------------------

    def after_power_cut(self, has_name: Choice, has_data: Choice) -> Contents:
        """All that is on the disk: durable, or chosen."""
        names = {folder: dict(before) for folder, before in self._before}
        for renaming in self._renamings:
            if renaming.is_durable or has_name():
                for folder, name, node in renaming.changes:
                    _put(names[folder], name, node)
        written: dict[File, int] = {}

        def contents(folder: Folder) -> Contents:
            made: Contents = {}
            for name, node in sorted(names[folder].items()):
                if isinstance(node, File):
                    if node not in written:
                        written[node] = node.synced
                        while written[node] < len(node.pieces) and has_data():
                            written[node] += 1
                    made[name] = (node.content(written[node]), node.modified_ns)
                else:
                    made[name] = contents(node) if isinstance(node, Folder) else node
            return made

        return contents(self._top)


Contents = dict[str, "tuple[bytes, int | None] | Contents | str"]
"""Of a folder, by name: (bytes, time of the last change) of a file, what is in a folder, the target of a link."""


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


@dataclass(frozen=True)
class Event:
    """One record of the journal."""

    what: str
    inode: int
    at: int
    first: str
    second: str
    content: bytes


def events_of(journal: Path) -> list[Event]:
    """All records of a journal."""
    content, at, events = journal.read_bytes(), 0, []

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return content[at - size : at]

    while at < len(content):
        what, inode, where, size, first, second = _RECORD.unpack(take(_RECORD.size))
        names = os.fsdecode(take(first)), os.fsdecode(take(second))
        events.append(Event(what.decode(), inode, where, *names, take(size) if what == b"w" else b""))
    return events


def never() -> bool:
    return False


def always() -> bool:
    return True


def states(disk: Disk, seed: int) -> list[Contents]:
    """Some of what a disk may hold: only what is durable; all names, without the bytes; and at random."""
    rng = random.Random(seed)

    def maybe() -> bool:
        return rng.random() < 0.5

    return [disk.after_power_cut(*which) for which in ((never, never), (always, never), (maybe, maybe))]


def put_back(contents: Contents, root: Path) -> None:
    """Make a folder hold this and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, node in contents.items():
        path = root / name
        if isinstance(node, str):
            path.symlink_to(node)
        elif isinstance(node, dict):
            put_back(node, path)
        else:
            path.write_bytes(node[0])
            if node[1] is not None:
                os.utime(path, ns=(node[1], node[1]))
