"""Collections to parts that workers hold in memory, or make anew in each round where they do not fit: no store.

Two passes, of partitions some at a time: one tells how large they are and all labels there are; then partitions that
follow each other become parts, each one block; or, where workers hold them already, those that lie with the same one,
so that no rows have to move. What is known of all of them is a manifest, though nothing of it lies on a disk.
"""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.from_memory import blocks_of_array, refuse_beside, refuse_delayed
from ooc_pegasos.conversion.staging import types_of
from ooc_pegasos.distributed import worker_partitions
from ooc_pegasos.distributed.cluster import Worker, workers_of
from ooc_pegasos.distributed.worker_partitions import Finished, Look, Settings, Summary, bytes_of
from ooc_pegasos.distributed.worker_pool import CANCELLED
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.formats import ANY
from ooc_pegasos.readers.arrays import ArraysFormat
from ooc_pegasos.readers.base import looks_like_a_number
from ooc_pegasos.readers.registry import new_recipe
from ooc_pegasos.readers.sources import Called
from ooc_pegasos.readers.tables import TablesFormat
from ooc_pegasos.store import manifest
from ooc_pegasos.store.append_expire import only, statistics_of_all
from ooc_pegasos.store.labels import LabelCollector, LabelMap, allowed_keys, settle
from ooc_pegasos.store.manifest import Layout, Manifest, Recipe
from ooc_pegasos.store.store import Store

_NAME = "the collection"
SHARE_OF_MEMORY = 0.4
"""Of the workers' memory that rows may take: while they become parts they are there twice."""
_SHARE_OF_FRAMES = 0.25
"""And partitions of a dataframe, until they are rows."""
_SHARE_OF_A_PART = 0.2
"""Of a thread's share of a worker's memory, that a part may take which is made anew in each round."""
_AT_A_TIME = 4
"""Partitions a thread that are looked at to begin with, when it is not known whether all fit."""
_EVEN = 1.25
"""Factor on its share of persisted rows that a thread may have before rows are distributed anew."""
_DEFAULTS = ConvertConfig()


def is_collection(given: Any) -> bool:
    """True if this is a Dask collection, or claims to be one."""
    return hasattr(given, "__dask_graph__")


class RowsOfParts:
    """The rows of parts: held by the workers, or made again whenever they are asked for."""

    remark = ""

    def __init__(
        self, client: Any, makers: list[Any], homes: list[str], at_a_time: int | None, made_of: WeakSet[Any]
    ) -> None:
        self._client, self._makers, self._made_of = client, makers, made_of
        self.homes, self.at_a_time = homes, at_a_time
        self._held: dict[int, Any] = {}

    def of(self, part: int, home: str) -> Any:
        """A future of the rows of a part, which is at home with this worker."""
        if part in self._held:
            return self._held[part]
        future = self._client.compute(self._makers[part], workers=[home], allow_other_workers=True)
        if not self.at_a_time:
            self._held[part] = future
        return future

    def close(self) -> None:
        """Have workers let go of what parts were made of."""
        _release(self._made_of)


def _release(futures: WeakSet[Any]) -> None:
    """Let go of what workers hold, whoever still refers to it: an exception that is kept refers to a lot."""
    with suppress(Exception):  # of a scheduler that is gone
        for future in list(futures):
            future.release()


def hold(
    client: Any,
    collection: Any,
    labels: Any,
    weights: Any,
    config: ConvertConfig,
    parts: int | None,
    note: Callable[[str], None],
) -> tuple[Store, RowsOfParts]:
    """(what would be the store, the rows of each part) of a collection."""
    refuse_delayed(collection)
    _refuse(config)
    reading = _Reading(client, config, note)
    try:
        if hasattr(collection, "to_delayed") and hasattr(collection, "chunks"):
            reading.array(collection, labels, weights)
        elif hasattr(collection, "to_delayed") and hasattr(collection, "columns"):
            refuse_beside(labels, weights)
            reading.frame(collection)
        else:
            problem = f"a {type(collection).__name__} cannot be trained on; give a dask.array or a dask.dataframe"
            raise UsageError(f"{problem}, like that of bag.to_dataframe()")
        return reading.parts(parts)
    except BaseException:
        _release(reading.futures)
        raise


def _refuse(config: ConvertConfig) -> None:
    """Options that take more passes, or files."""
    for name in ("dictionary", "idf", "standardize", "feature_names", "weights", "labels", "preset", "on_bad_row"):
        if getattr(config, name) != getattr(_DEFAULTS, name):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is for stores; write one with Store.from_dask, and train on that")


class _Reading:
    """Rows of a collection on the workers."""

    settings: Settings
    rows: list[Any]
    """Of each partition, delayed, or futures if workers have them; or, with `raw`, blocks of an array as they are."""
    raw: bool = False
    places: list[str]
    """The workers that had the partitions before anything was asked of them; none if not all were there."""

    def __init__(self, client: Any, config: ConvertConfig, note: Callable[[str], None]) -> None:
        self.client, self.config, self.note = client, config, note
        self.workers = workers_of(client)
        self.threads = sum(worker.threads for worker in self.workers)
        self.memory = sum(worker.memory for worker in self.workers)
        self.token = secrets.token_hex(4)
        self.futures: WeakSet[Any] = WeakSet()

    def _compute(self, delayed: list[Any], home: str = "") -> list[Any]:
        """Futures of what is delayed, which is computed at a worker's if that is there."""
        where = {"workers": [home], "allow_other_workers": True} if home else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)  # labels that are no collection
            futures: list[Any] = self.client.compute(delayed, **where)
        self.futures.update(futures)
        return futures

    def _delayed(self, what: str, number: int, work: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Some work on what is delayed, with settings that Dask need not look into."""
        from dask.delayed import delayed

        ready = delayed(partial(work, **settings), pure=False, traverse=False)
        return ready(*arguments, dask_key_name=f"{what}-{self.token}-{number}")

    def _gather(self, futures: list[Any]) -> list[Any]:
        from distributed.scheduler import KilledWorker

        try:
            found: list[Any] = self.client.gather(futures)
        except (KilledWorker, MemoryError) as error:
            problem = "workers died while they made a partition, most likely for want of memory"
            raise InputError(f"{problem}; make partitions smaller, or give workers more memory") from error
        except CANCELLED as error:
            if self.client.status != "running":
                raise
            raise InputError("partitions were lost with their worker; make the collection again") from error
        return found

    def _look(
        self, what: str, given: list[Any], work: Callable[..., Any], size: Callable[[Any], int], share: float
    ) -> tuple[list[Any], list[Any] | None]:
        """(what some work tells of each of the given, futures of these if all fit in a share of the memory)."""
        told: list[Any] = []
        kept: list[Any] | None = []
        first, step = 0, _AT_A_TIME * self.threads
        while first < len(given):
            futures = self._compute(given[first : first + step])
            looks = [
                self.client.submit(work, future, first + at, key=f"{what}-{self.token}-{first + at}", pure=False)
                for at, future in enumerate(futures)
            ]
            self.futures.update(looks)
            told += self._gather(looks)
            fits = kept is not None and sum(map(size, told)) <= share * self.memory
            kept = [*kept, *futures] if fits and kept is not None else None
            del futures, looks
            first = len(told)
            if sum(map(size, told)) * len(given) <= share * self.memory * first:
                step *= 2  # it seems that all will fit
        return told, kept

    def _places(self, collection: Any, number: int) -> list[str]:
        """Return the workers of persisted partitions, which do not change until the partitions are moved."""
        from distributed import futures_of, wait

        of_collection: Any = futures_of
        wait_for: Any = wait
        keys = set(map(str, _keys_of(collection)))
        made = [future for future in of_collection(collection) if str(future.key) in keys]
        if len(made) < number:
            return []
        wait_for(made)  # it may have been persisted just now
        where = {str(key): sorted(workers) for key, workers in self.client.who_has(collection).items()}
        found = [where.get(str(key)) for key in _keys_of(collection)]
        return [one[0] for one in found if one] if len(found) == number and all(found) else []

    def _sizes(self) -> tuple[list[Summary], list[Any] | None]:
        """(how large the rows of blocks are that workers have, the blocks if those rows fit beside them).

        A task for each thread: of more than that others would take some, with a copy of the blocks.
        """
        threads = self.client.nthreads()
        asked, futures = [], []
        for worker in sorted(set(self.places)):
            there = [at for at, place in enumerate(self.places) if place == worker]
            number = threads.get(worker, 1)
            for some in filter(None, (there[first::number] for first in range(number))):
                asked += some
                settings = {"settings": self.settings, "numbers": some}
                blocks = [self.rows[at] for at in some]
                task = self._delayed(
                    "size-of-partitions", some[0], worker_partitions.sizes_of_blocks, blocks, **settings
                )
                futures += self._compute([task], worker)
        found = [one for some in self._gather(futures) for one in some]
        told = [one for _at, one in sorted(zip(asked, found, strict=True), key=lambda pair: pair[0])]
        return told, self.rows if sum(map(_bytes_of, told)) <= SHARE_OF_MEMORY * self.memory else None

    # --- partitions -------------------------------------------------------------------------------

    def array(self, collection: Any, labels: Any, weights: Any) -> None:
        """Take the blocks of an array."""
        config = self.config
        if config.format not in (ANY, ArraysFormat.name) or config.label is not None:
            raise UsageError("a dask.array is read as arrays, with labels=; leave out {format} and {label}")
        blocks = blocks_of_array(collection, labels, weights, "train_dask(client, x, labels=y)")
        self.places = self._places(collection, len(blocks))
        recipe = new_recipe(dataclasses.replace(config, format=ArraysFormat.name), [_NAME], self.note)
        text = config.declared_labels().wants_text()
        if text is None:
            text = (labels if hasattr(labels, "dtype") else np.asarray(labels)).dtype.kind in "OUT"
        self.settings = self._settings(recipe, text)
        if self.places:  # so they cost nothing until a part is made, for which each is copied once
            self.rows, self.raw = blocks, True
            return
        self.rows = [
            self._delayed(
                "rows-of-partition",
                at,
                worker_partitions.rows_of_block,
                *block,
                settings=self.settings,
                name=f"part {at}",
            )
            for at, block in enumerate(blocks)
        ]

    def frame(self, collection: Any) -> None:
        """Take the partitions of a dataframe; what they are is seen when all have been looked at."""
        config = self.config
        if config.format not in (ANY, TablesFormat.name):
            raise UsageError(f"{{format={config.format}}}: a dask.dataframe is a table; leave it out")
        frames = list(collection.to_delayed())
        self.places = self._places(collection, len(frames))
        work = partial(worker_partitions.look_at, label=config.label)
        looks: list[Look]
        looks, kept = self._look("look-at-partition", frames, work, lambda look: look.bytes, _SHARE_OF_FRAMES)
        schemas = [(f"part {at}", look.schema) for at, look in enumerate(looks) if look.schema is not None]
        recipe = self._recipe_of(schemas)
        assert recipe.table is not None
        text = config.declared_labels().wants_text()
        if text is None:
            words = [word for look in looks for word in look.words]
            text = bool(words) and not any(map(looks_like_a_number, words))
        self.settings = self._settings(recipe, text)
        self.rows = [
            self._delayed(
                "rows-of-partition",
                at,
                worker_partitions.rows_of_part,
                frame,
                settings=self.settings,
                name=f"part {at}",
            )
            for at, frame in enumerate(kept or frames)
        ]

    def _recipe_of(self, schemas: list[tuple[str, Any]]) -> Recipe:
        import pyarrow as pa

        known, _where = types_of(schemas, self.config.categorical)
        if not known:
            raise InputError("the collection has no rows; check how it was made")
        with tempfile.TemporaryDirectory() as folder:
            file, schema = Path(folder) / "empty.arrow", pa.schema(list(known.items()))
            with pa.ipc.new_file(str(file), schema):
                pass
            config = dataclasses.replace(self.config, format=TablesFormat.name)
            return new_recipe(config, [Called(file, _NAME)], self.note)

    def _settings(self, recipe: Recipe, text: bool) -> Settings:
        declared = self.config.declared_labels()
        return Settings(recipe, text, declared.has_classes(), allowed_keys(declared, text))

    # --- parts ------------------------------------------------------------------------------------

    def parts(self, number: int | None) -> tuple[Store, RowsOfParts]:
        """Cut the partitions into parts."""
        began = time.perf_counter()
        recipe = self.settings.recipe
        told: list[Summary]
        if self.raw:
            told, kept = self._sizes()
        else:
            work = partial(worker_partitions.summary_of, settings=self.settings)
            told, kept = self._look("size-of-partition", self.rows, work, _bytes_of, SHARE_OF_MEMORY)
        seconds = time.perf_counter() - began
        there = [at for at, one in enumerate(told) if one.rows]
        if not there:
            raise InputError("the collection has no rows; check how it was made")
        rows = [(kept or self.rows)[at] for at in there]
        places = [self.places[at] for at in there] if self.places else []
        told = [told[at] for at in there]
        self.rows = []
        seen = LabelCollector(self.settings.text_labels)
        for one in told:
            seen.add(one.labels, one.names)
        meaning, features = settle(seen, self.config.declared_labels()), _features(recipe, told)
        groups = self._groups_as_they_lie(told, places) if number is None and kept is not None else []
        if kept is None:
            number = _enough_parts(told, self.workers, number)
        groups = groups or _cut(told, number or self.threads)
        finished = [
            self._delayed(
                "part",
                at,
                worker_partitions.finish,
                [rows[one] for one in group],
                settings=self.settings if self.raw else None,
                numbers=[there[one] for one in group],
                rows=sum(told[one].rows for one in group),
                entries=sum(told[one].entries for one in group),
                recipe=recipe,
                meaning=meaning,
                features=features,
                place=at,
            )
            for at, group in enumerate(groups)
        ]
        homes = [""] * len(groups)
        if kept is not None:
            where = {} if self.raw else self.client.who_has(rows)
            homes = self._homes([[place] for place in places] or [where.get(row.key, ()) for row in rows], groups)
        del rows
        if kept is not None:
            kept = None
            finished = [self._compute([one], home)[0] for one, home in zip(finished, homes, strict=True)]
            known = self._known(finished, len(finished))
            at_a_time = None
        else:
            known = self._known(finished, self.threads)
            at_a_time = self.threads
        made = _manifest(recipe, meaning, features, known)
        makers = [
            self._delayed("rows-of-part", at, worker_partitions.held_of, one, made=only(made, at, at + 1))
            for at, one in enumerate(finished)
        ]
        found = RowsOfParts(self.client, makers, homes, at_a_time, self.futures)
        if at_a_time:
            needed, room = sum(map(_bytes_of, told)), SHARE_OF_MEMORY * self.memory
            found.remark = (
                f"the rows of the collection take {needed / 1e9:.3g} GB, and workers hold up to "
                f"{room / 1e9:.3g} GB: so they are made anew in each round, which took {seconds:.2g} "
                f"seconds; a store (Store.from_dask) is read faster, or give workers more memory"
            )
        return Store(Path(_NAME), made), found

    def _groups_as_they_lie(self, told: list[Summary], places: list[str]) -> list[list[int]]:
        """Partitions of each part, all with one worker; none if some would be much larger than others."""
        if not places:
            return []
        threads = self.client.nthreads()
        of_workers = [[at for at, place in enumerate(places) if place == worker] for worker in threads]
        groups = []
        for there, number in zip(of_workers, threads.values(), strict=True):
            if there:
                cuts = _cut([told[at] for at in there], number)
                groups += [[there[at] for at in cut] for cut in cuts]
        sizes = [sum(_bytes_of(told[at]) for at in group) for group in groups]
        even = len(places) == sum(map(len, groups)) and max(sizes, default=0) * self.threads <= _EVEN * sum(sizes)
        return sorted(groups) if even else []

    def _homes(self, where: list[Sequence[str]], groups: list[list[int]]) -> list[str]:
        """A worker for each part: of those that have not their share of parts, one that has most of its partitions."""
        threads = self.client.nthreads()
        left = {worker: -(-len(groups) * threads[worker] // sum(threads.values())) for worker in sorted(threads)}
        homes = []
        for group in groups:
            there = [worker for at in group for worker in where[at]]
            homes.append(max((worker for worker in left if left[worker]), key=there.count, default=""))
            if homes[-1]:
                left[homes[-1]] -= 1
        return homes

    def _known(self, finished: list[Any], step: int) -> list[Finished]:
        """Return the descriptions of parts, of which some are made at a time."""
        known: list[Finished] = []
        for first in range(0, len(finished), step):
            some = [
                self._delayed("about-part", first + at, worker_partitions.without_rows, one)
                for at, one in enumerate(finished[first : first + step])
            ]
            known += self._gather(self._compute(some))
        return known


def _keys_of(collection: Any) -> list[Any]:
    """The keys of partitions in their order, those of one block a row of an array."""
    keys = collection.__dask_keys__()
    return [key[0] if isinstance(key, list) else key for key in keys]


def _bytes_of(one: Summary) -> int:
    return bytes_of(one.rows, one.entries)


def _features(recipe: Recipe, told: Sequence[Summary]) -> int:
    features = max(one.features for one in told)
    if recipe.table is None and len({one.features for one in told}) > 1:
        raise InputError(f"blocks of {min(one.features for one in told):,} to {features:,} columns; make them alike")
    return features if recipe.features is None else recipe.features


def _enough_parts(told: Sequence[Summary], workers: Sequence[Worker], number: int | None) -> int:
    """As many parts as are needed for a worker to make one for each of its threads at a time."""
    room = int(_SHARE_OF_A_PART * min(worker.memory / worker.threads for worker in workers))
    largest, threads = max(map(_bytes_of, told)), sum(worker.threads for worker in workers)
    if largest > room:
        problem = f"the rows of a partition take {largest / 1e6:.3g} MB, and a worker has {room / 1e6:.3g} MB for them"
        raise InputError(f"{problem}; make partitions smaller, or write a store with Store.from_dask")
    found = max(number or threads, threads)
    while found < len(told) and max(sum(_bytes_of(told[at]) for at in group) for group in _cut(told, found)) > room:
        found = min(found + max(found // 8, 1), len(told))
    if number is not None and number < found:
        raise UsageError(f"{number} parts are too large for the memory of workers; give {found}, or leave it open")
    return found


def _cut(told: Sequence[Summary], number: int) -> list[list[int]]:
    """The partitions of parts of about the same size, none of them empty, that follow each other."""
    number = max(1, min(number, len(told)))
    sizes = np.array([_bytes_of(one) for one in told])
    middles = np.cumsum(sizes) - sizes / 2
    cuts = np.searchsorted(middles, sizes.sum() * np.arange(1, number) / number)
    cuts = np.maximum.accumulate(np.maximum(cuts - np.arange(1, number), 0)) + np.arange(1, number)
    bounds = [0, *np.minimum(cuts, len(told) - number + np.arange(1, number)).tolist(), len(told)]
    return [list(range(first, end)) for first, end in pairwise(bounds)]


def _manifest(recipe: Recipe, meaning: LabelMap, features: int, known: list[Finished]) -> Manifest:
    chunks = [one.chunk for one in known]
    rows = sum(chunk.rows for chunk in chunks)
    parts = [
        manifest.Part(chunk.rows, 1, 0, one)
        for chunk, one in zip(chunks, (one.statistics for one in known), strict=True)
    ]
    counts = [sum(column) for column in zip(*(chunk.label_counts for chunk in chunks), strict=True)]
    return Manifest(
        manifest.FORMAT,
        manifest.VERSION,
        rows,
        features,
        sum(chunk.nonzeros for chunk in chunks),
        dataclasses.replace(meaning.info, counts=counts),
        Layout("uint32", "float32", meaning.kind, []),
        recipe,
        statistics_of_all(parts),
        None,
        0,
        chunks,
        [],
        __version__,
    )
