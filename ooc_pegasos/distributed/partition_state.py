"""The state of partitions, from workers to a file and back, one part at a time."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.fit.sdca import STATE_SIZE
from ooc_pegasos.distributed.worker_round import SdcaState
from ooc_pegasos.errors import CorruptFileError
from ooc_pegasos.objective.model_panel import width_of
from ooc_pegasos.util.checkpoint import whole
from ooc_pegasos.util.files import create_file, sync_folder

KINDS: dict[str, Any] = {"duals": np.float32, "inactive_until": np.uint8}
"""State of each row for a group of models."""
PREFIX = "oocpeg-rows-"
"""Prefix of temporary folders with such files."""
_FILE = re.compile(r"rows-\d+\.checkpoint")
_PIECE = 1 << 22
_ADVICE = "start without --resume"


def remove_left_overs(place: Path) -> None:
    """Remove the temporary folders of killed runs; the folder must be locked."""
    for folder in place.glob(PREFIX + "*"):
        shutil.rmtree(folder, ignore_errors=True)


def next_file(folder: Path) -> Path:
    """Return an unused name for a file of row states next to a checkpoint."""
    number = 1 + max((int(path.stem.split("-")[1]) for path in folder.glob("rows-*.checkpoint")), default=0)
    return folder / f"rows-{number}.checkpoint"


def write(path: Path, states: Iterable[SdcaState]) -> dict[str, Any]:
    """Write the states of all parts to a file, sync it, and return its description for the checkpoint."""
    parts, checksum, size = [], 0, 0
    with create_file(path) as file:
        for state in states:
            arrays = [state.arrays[at, name] for at in range(len(state.groups)) for name in KINDS]
            for array in [*arrays, *state.models.values()]:
                content = np.ascontiguousarray(array).data.cast("B")
                for at in range(0, len(content), _PIECE):
                    piece = content[at : at + _PIECE]
                    checksum = zlib.crc32(piece, checksum)
                    size += file.write(piece)
            groups = [[list(models), width] for models, width in state.groups]
            description = {"groups": groups, "models": list(state.models), "alone": list(state.separate)}
            parts.append(description | {"seen": [list(pair) for pair in state.panel_rows.items()]})
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return {"file": path.name, "bytes": size, "crc32": checksum, "parts": parts}


def read(folder: Path, description: dict[str, Any], rows: list[int], models: int) -> Iterator[SdcaState]:
    """Yield the state of each part, given its number of rows, after a check of the whole file. Raises ValueError."""
    if not _FILE.fullmatch(description["file"]):
        raise ValueError(f"{description['file']!r} is not the name of a file of rows")
    if len(description["parts"]) != len(rows):
        raise ValueError(f"{len(description['parts'])} parts instead of {len(rows)}")
    plans = [_plan(part, count, models) for part, count in zip(description["parts"], rows, strict=True)]
    needed = sum(items * np.dtype(kind).itemsize for plan in plans for _name, kind, items in plan)
    if description["bytes"] != needed:
        raise ValueError(f"{description['bytes']!r:.40} bytes of rows instead of {needed:,}")
    path = folder / description["file"]
    try:
        _check(path, description)
        with open(path, "rb") as file:
            for part, plan in zip(description["parts"], plans, strict=True):
                yield _state(file, path, part, plan)
    except OSError as error:
        raise CorruptFileError(f"{path}: {error.strerror}; {_ADVICE}") from error


_Plan = list[tuple[tuple[int, str], Any, int]]
"""(key, type, size) of the arrays of a part in order: of groups by kind, of models by number."""


def _plan(part: dict[str, Any], rows: int, models: int) -> _Plan:
    known = [whole(model, 0, models - 1, "model") for model in part["models"]]
    for members, width in part["groups"]:
        if not set(members) <= set(known) or width not in (1, width_of(len(members))) or width < len(members):
            raise ValueError(f"a group {members} of {width}")
    plan: _Plan = []
    for at, (_together, width) in enumerate(part["groups"]):
        plan += [((at, name), kind, rows * width) for name, kind in KINDS.items()]
    return plan + [((model, ""), np.float64, STATE_SIZE) for model in known]


def _check(path: Path, description: dict[str, Any]) -> None:
    if path.stat().st_size != description["bytes"]:
        raise CorruptFileError(f"{path}: {path.stat().st_size:,} bytes instead of {description['bytes']:,}; {_ADVICE}")
    checksum = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            checksum = zlib.crc32(piece, checksum)
    if checksum != description["crc32"]:
        raise CorruptFileError(f"{path}: the checksum does not match, so it is damaged; {_ADVICE}")


def _state(file: Any, path: Path, part: dict[str, Any], plan: _Plan) -> SdcaState:
    arrays, states = {}, {}
    for (number, name), kind, items in plan:
        array = np.empty(items, kind)
        if file.readinto(array.data.cast("B")) != array.nbytes:
            raise CorruptFileError(f"{path}: shorter than before; {_ADVICE}")
        if name:
            arrays[number, name] = array
        else:
            states[number] = array
    groups = [(list(models), int(width)) for models, width in part["groups"]]
    separate = tuple(whole(model, 0, 2**31, "model") for model in part["alone"])
    panel_rows = {
        whole(number, 0, max(len(groups) - 1, 0), "group"): whole(rows, 0, 2**62, "rows")
        for number, rows in part["seen"]
    }
    return SdcaState(groups, arrays, states, separate, panel_rows)
