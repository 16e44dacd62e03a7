"""Disk space that a run needs, estimated before the run begins."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ooc_pegasos.config import VECTORS, ConvertConfig, TrainConfig
from ooc_pegasos.errors import InputError
from ooc_pegasos.jobs.job import Job
from ooc_pegasos.objective.lambda_path import LENGTH
from ooc_pegasos.readers import presets, registry
from ooc_pegasos.reporting.text import size_text
from ooc_pegasos.solvers.registry import row_bytes
from ooc_pegasos.store.manifest import Manifest, Recipe
from ooc_pegasos.util.escaping import printable

_CHUNKS = 0.6
"""Bytes of chunks for each byte of rows during the shuffle, an upper estimate."""
_ROW = 200
"""Bytes of a row, if there is no store yet."""
_FEATURES, _BYTES_A_FEATURE = 1 << 20, 4
"""Number of features of a new store from text with indices: the first number, or one per so many bytes if fewer."""
_ON_TOP = 64 << 10
"""Allowance for records, the log and folders."""


@dataclass(frozen=True)
class Space:
    """Space needed on a disk, and free space."""

    folder: str
    needed: int
    free: int

    def line(self) -> str:
        """Return the estimate as a line of text."""
        free = size_text(self.free)
        return f"space at {printable(self.folder)}: about {size_text(self.needed)} of {free} that are free"


def space_for(job: Job, made: Manifest | None, new: list[str], looking: bool) -> list[Space]:
    """Return the space that a run needs on each disk; `looking`: lambdas are compared."""
    recipe = made.recipe if made else _new_recipe(job.convert, new)
    sizes = {name: registry.stamp_of(name).size for name in new}
    spilled = sum(registry.bytes_of_rows(name, size, recipe) for name, size in sizes.items())
    if made:
        rows = made.rows + spilled / (12 + 8 * made.nonzeros / made.rows)
        features = made.features
    else:
        rows = spilled / _ROW
        known = job.convert.dictionary or recipe.features
        features = min(_FEATURES, sum(sizes.values()) // _BYTES_A_FEATURE) if known is None else known
    wanted = {
        job.store: int(spilled * (1 + _CHUNKS)) + _ON_TOP,
        job.models: _bytes_of_training(job.training(), features, int(rows), looking) + _ON_TOP,
    }
    by_disk: dict[int, tuple[str, int]] = {}
    for place, needed in wanted.items():
        there = str(next(folder for folder in (Path(place), *Path(place).parents) if folder.exists()))
        disk = os.stat(there).st_dev
        first, so_far = by_disk.get(disk, (there, 0))
        by_disk[disk] = first, so_far + needed
    return [Space(folder, needed, shutil.disk_usage(folder).free) for folder, needed in by_disk.values()]


def refuse_too_little(spaces: list[Space], reserve: int) -> None:
    """Refuse a run that a disk cannot hold."""
    for one in spaces:
        if one.needed + reserve > one.free:
            raise InputError(
                f"{one.folder}: the run needs about {size_text(one.needed)} and {size_text(reserve)} are to stay free, "
                f"but {size_text(one.free)} are; free some space, or set reserve in the job"
            )


def _new_recipe(config: ConvertConfig, new: list[str]) -> Recipe:
    """Return the recipe of a new store, as far as known before the inputs are read."""
    kind = registry.find_for(new, config)[1]
    config = registry.with_most_bits(presets.expanded(config.of_format(kind), new, grows=True))
    return registry.new_recipe(config, new, lambda _remark: None)


def _bytes_of_training(config: TrainConfig, features: int, rows: int, looking: bool) -> int:
    """Return the size of two checkpoints, the new one and the one that it replaces."""
    models = (len(config.lambdas) if config.lambdas else LENGTH) if config.comparing and looking else 1
    vectors = VECTORS + 5 * (models - 1)
    return 2 * (8 * vectors * features + row_bytes(config, models) * rows)
