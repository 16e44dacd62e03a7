"""The kind of data at a path, by its first bytes or by the files in a folder, for messages about the wrong kind."""

from __future__ import annotations

import os
from pathlib import Path

from ooc_pegasos.errors import CorruptFileError, InputError

MANIFEST, MODEL, CHECKPOINT = "manifest.json", "model", "training.checkpoint"
"""Names of files in a folder that is a store, of the model in a version of a job, and in a folder of checkpoints."""
VERSIONS = "a folder of models"
"""The kind of the folder with the versions of a job."""
_MARKS = {b"ooc-pegasos model": "a model", b"ooc-pegasos-checkpoint": "a checkpoint"}
"""Texts at the beginning of Arrow files."""
_FOREIGN = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"SQLite f": "a SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"\x7fELF": "a program",
    b"\xd0\xcf\x11\xe0": "an Office document",
}
"""Beginnings of files that are often named by mistake."""
_OFFICE = (".xlsx", ".xlsm", ".ods", ".docx")
"""Ends of names of Office documents, which are ZIP archives."""
_HEAD = 1 << 16


def foreign_kind(begin: bytes, name: str) -> str:
    """Return the kind of a file with these first bytes, 8 or more, if no command can use such a file; else ""."""
    if begin.startswith(b"PK\x03\x04") and name.lower().endswith(_OFFICE):
        return "an Office document"
    return next((kind for mark, kind in _FOREIGN.items() if begin.startswith(mark)), "")


def kind_of_path(path: str | Path) -> str:
    """Return the kind of data at a path: "a store", "a model", "a proof" and so on; "" if it is unknown."""
    place = Path(path)
    try:
        if place.is_dir():
            return _kind_of_folder(place)
        if not place.is_file():  # a pipe can be read only once
            return ""
        with place.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return ""
    if head.startswith(b"OOCPROOF"):
        return "a proof"
    if not head.startswith(b"ARROW1"):
        return foreign_kind(head, str(path))
    return next((kind for mark, kind in _MARKS.items() if mark in head), "an Arrow file")


def _kind_of_folder(folder: Path) -> str:
    if (folder / MANIFEST).is_file():
        return "a store"
    if (folder / MODEL).is_file():
        return "a version of a job"
    if (folder / "current").exists():
        return VERSIONS
    return "a folder of checkpoints" if (folder / CHECKPOINT).is_file() else "a folder"


def refuse_other_than_model(path: str | Path) -> None:
    """Raise an error if a path cannot be a model, judged by its first bytes."""
    if (Path(path) / MODEL).is_file():  # a version of a job
        return
    kind = kind_of_path(path)
    if Path(path).is_dir():
        advice = f"a version in it, like {path}/current" if kind == VERSIONS else "a file made by 'oocpeg train'"
        raise InputError(f"{path}: {kind}, not a model; name {advice}")
    try:
        os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or 'unreadable').lower()}; check the path") from error
    is_text = not kind and Path(path).is_file() and _can_be_opened(path)  # else who reads it names the cause
    if is_text or kind not in ("a model", "an Arrow file", ""):
        what = f"{kind}, not a model" if kind else "not a model"
        raise CorruptFileError(f"{path}: {what}; name a file made by 'oocpeg train'")


def _can_be_opened(path: str | Path) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False
