"""The kind of data at a path, by its first bytes or by the files in a folder, for messages about the wrong kind."""

from __future__ import annotations

from pathlib import Path

MANIFEST, MODEL, CHECKPOINT = "manifest.json", "model", "training.checkpoint"
"""Names of files in a folder that is a store, of the model in a version of a job, and in a folder of checkpoints."""
_MARKS = {b"ooc-pegasos model": "a model", b"ooc-pegasos-checkpoint": "a checkpoint"}
"""Texts at the beginning of Arrow files."""
_HEAD = 1 << 16


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
        return ""
    return next((kind for mark, kind in _MARKS.items() if mark in head), "an Arrow file")


def _kind_of_folder(folder: Path) -> str:
    if (folder / MANIFEST).is_file():
        return "a store"
    if (folder / MODEL).is_file():
        return "a version of a job"
    if (folder / "current").exists():
        return "a folder of models"
    return "a folder of checkpoints" if (folder / CHECKPOINT).is_file() else "a folder"
