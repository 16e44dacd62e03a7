"""Dask collections to parts in the memory of workers, or recomputed in each round if they do not fit; without a store.

Two passes over the partitions: the first returns their sizes and labels; the second joins consecutive partitions, or
persisted partitions on the same worker, to parts of one block each. A manifest in memory describes the parts.
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
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from ooc_pegasos import __version__
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.from_memory import blocks_of_array, refuse_beside, refuse_delayed
from ooc_pegasos.conversion.staging import types_of
from ooc_pegasos.distributed import worker_partitions
from ooc_pegasos.distributed.cluster import Worker, workers_of
from ooc_pegasos.distributed.worker_partitions import FinishedPart, PartitionPreview, Settings, Summary, bytes_of
from ooc_pegasos.distributed.worker_pool import CANCELLED
from ooc_pegasos.errors import InputError, UsageError
from ooc_pegasos.formats import ANY
from ooc_pegasos.readers.arrays import ArraysFormat
from ooc_pegasos.readers.base import looks_like_a_number
from ooc_pegasos.readers.registry import new_recipe, with_most_bits
from ooc_pegasos.readers.sources import NamedPath
from ooc_pegasos.readers.tables import TablesFormat
from ooc_pegasos.store import manifest
from ooc_pegasos.store.append_expire import only, statistics_of_all
from ooc_pegasos.store.labels import LabelCollector, LabelMap, allowed_keys, settle
from ooc_pegasos.store.manifest import Layout, Manifest, Recipe
from ooc_pegasos.store.store import Store
from ooc_pegasos.store.targets import TargetSizes

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from ooc_pegasos.aliases import DaskCollection
    from ooc_pegasos.scoring.model import Model

_NAME = "the collection"
ROWS_SHARE = 0.4
"""Share of the workers' memory for rows, which are in memory twice while parts are made."""
_FRAMES_SHARE = 0.25
"""Share of the workers' memory for partitions of a dataframe, until they are converted."""
_PART_SHARE = 0.2
"""Share of a thread's part of a worker's memory, for a part that is recomputed in each round."""
_FIRST_PARTITIONS = 4
"""Partitions per thread in the first batch, before it is known whether all fit."""
_NAMED_PARTITIONS = 4
"""Partitions of a dataframe that are searched for names of features."""
_MAX_IMBALANCE = 1.25
"""Imbalance of persisted rows above which rows are redistributed: rows of a thread by the mean."""
_FOR_STORES = (
    *("dictionary", "idf", "standardize", "feature_names", "weights", "labels", "preset", "on_bad_row", "like"),
    *("test", "split"),
)
"""Options that need more passes, or files."""
_DEFAULTS = ConvertConfig()


def is_collection(given: object) -> TypeIs[DaskCollection]:
    """True if this is a Dask collection."""
    return hasattr(given, "__dask_graph__")


class RowsOfParts:
    """The rows of parts: in the memory of workers, or recomputed for each request."""

    remark = ""

    def __init__(
        self,
        client: Any,
        tasks: list[Any],
        workers_of_parts: list[str],
        max_in_memory: int | None,
        inputs: WeakSet[Any],
        frames: list[Any],
    ) -> None:
        self._client, self._tasks, self._inputs, self._frames = client, tasks, inputs, frames
        self.workers_of_parts, self.max_in_memory = workers_of_parts, max_in_memory
        self._rows_in_memory: dict[int, Any] = {}

    def of(self, part: int, worker: str) -> Any:
        """Return a future of the rows of a part, which is assigned to this worker."""
        if part in self._rows_in_memory:
            return self._rows_in_memory[part]
        future = self._client.compute(self._tasks[part], workers=[worker], allow_other_workers=True)
        self._inputs.add(future)
        if not self.max_in_memory:
            self._rows_in_memory[part] = future
        return future

    def sum_of(self, loss: str, parameter: float | None, answer: float) -> float:
        """Return the sum of the losses of all rows, which are in memory, if the answer to each is this number."""
        work = partial(worker_partitions.loss_of_part, loss=loss, parameter=parameter, answer=answer)
        parts = [self.of(part, worker) for part, worker in enumerate(self.workers_of_parts)]
        return float(sum(self._client.gather(self._client.map(work, parts, pure=False))))

    def find_names(self, model: Model, wanted: list[int]) -> dict[int, str]:
        """Return the names of some buckets that occur in the first partitions of a dataframe."""
        work = partial(worker_partitions.names_in_part, recipe=model.info.recipe, wanted=wanted)
        found: dict[int, str] = {}
        for frame in self._frames[:_NAMED_PARTITIONS]:
            found |= self._client.submit(work, self._client.compute(frame), pure=False).result()
            if len(found) == len(wanted):
                break
        return found

    def close(self) -> None:
        """Release the inputs and the rows of the parts, which several runs may have used."""
        _release(self._inputs)


def _release(futures: WeakSet[Any]) -> None:
    """Release futures, even if a traceback refers to them."""
    with suppress(Exception):  # the scheduler may be gone
        for future in list(futures):
            future.release()


def read_collection(
    client: Any,
    collection: Any,
    labels: Any,
    weights: Any,
    config: ConvertConfig,
    parts: int | None,
    note: Callable[[str], None],
) -> tuple[Store, RowsOfParts]:
    """Return (a store in memory, the rows of each part) of a collection."""
    refuse_delayed(collection)
    _refuse(config)
    reading = _CollectionReader(client, config, note)
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
    """Refuse options that need more passes, or files."""
    for name in _FOR_STORES:
        if getattr(config, name) not in (getattr(_DEFAULTS, name), False):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is for stores; write one with Store.from_dask, and train on that")


class _CollectionReader:
    """Reader of a collection on the workers."""

    settings: Settings
    rows: list[Any]
    """Rows of each partition, delayed or as futures; with `raw`, the blocks of an array."""
    raw: bool = False
    locations: list[str]
    """The worker of each persisted partition; empty unless all are persisted."""

    def __init__(self, client: Any, config: ConvertConfig, note: Callable[[str], None]) -> None:
        self.client, self.config, self.note = client, config, note
        self.workers = workers_of(client)
        self.threads = sum(worker.threads for worker in self.workers)
        self.memory = sum(worker.memory for worker in self.workers)
        self.token = secrets.token_hex(4)
        self.futures: WeakSet[Any] = WeakSet()
        self.frames: list[Any] = []

    def _compute(self, delayed: list[Any], worker: str = "") -> list[Any]:
        """Return futures of delayed tasks, computed at a worker if given."""
        where = {"workers": [worker], "allow_other_workers": True} if worker else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)  # labels that are not a collection
            futures: list[Any] = self.client.compute(delayed, **where)
        self.futures.update(futures)
        return futures

    def _delayed(self, what: str, number: int, work: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Return a delayed task; `settings` are arguments without Dask objects."""
        from dask.delayed import delayed

        ready = delayed(partial(work, **settings), pure=False, traverse=False)
        return ready(*arguments, dask_key_name=f"{what}-{self.token}-{number}")

    def _gather(self, futures: list[Any]) -> list[Any]:
        from distributed.scheduler import KilledWorker

        try:
            found: list[Any] = self.client.gather(futures)
        except (KilledWorker, MemoryError) as error:
            problem = "workers died while they made a partition, most likely out of memory"
            raise InputError(f"{problem}; make partitions smaller, or give workers more memory") from error
        except CANCELLED as error:
            if self.client.status != "running":
                raise
            raise InputError("partitions were lost with their worker; make the collection again") from error
        return found

    def _summarize(
        self, what: str, given: list[Any], work: Callable[..., Any], size: Callable[[Any], int], share: float
    ) -> tuple[list[Any], list[Any] | None]:
        """Return (summaries of the given partitions, futures of the partitions if all fit in a share of the memory)."""
        summaries: list[Any] = []
        futures_of_rows: list[Any] | None = []
        first, step = 0, _FIRST_PARTITIONS * self.threads
        while first < len(given):
            futures = self._compute(given[first : first + step])
            previews = [
                self.client.submit(work, future, first + at, key=f"{what}-{self.token}-{first + at}", pure=False)
                for at, future in enumerate(futures)
            ]
            self.futures.update(previews)
            summaries += self._gather(previews)
            fits = futures_of_rows is not None and sum(map(size, summaries)) <= share * self.memory
            futures_of_rows = [*futures_of_rows, *futures] if fits and futures_of_rows is not None else None
            del futures, previews
            first = len(summaries)
            if sum(map(size, summaries)) * len(given) <= share * self.memory * first:
                step *= 2  # probably all will fit
        return summaries, futures_of_rows

    def _locations(self, collection: Any, number: int) -> list[str]:
        """Return the workers of persisted partitions, which do not change until the partitions are moved."""
        from distributed import futures_of, wait

        of_collection: Any = futures_of
        wait_for: Any = wait
        keys = set(map(str, _keys_of(collection)))
        made = [future for future in of_collection(collection) if str(future.key) in keys]
        if len(made) < number:
            return []
        wait_for(made)  # persisting may not be finished
        where = {str(key): sorted(workers) for key, workers in self.client.who_has(collection).items()}
        found = [where.get(str(key)) for key in _keys_of(collection)]
        return [one[0] for one in found if one] if len(found) == number and all(found) else []

    def _sizes(self) -> tuple[list[Summary], list[Any] | None]:
        """Return (summaries of persisted blocks, the blocks if their rows fit in memory too).

        One task per thread: workers would steal further tasks, with a copy of the blocks.
        """
        threads = self.client.nthreads()
        request, futures = [], []
        for worker in sorted(set(self.locations)):
            with_rows = [at for at, location in enumerate(self.locations) if location == worker]
            number = threads.get(worker, 1)
            for some in filter(None, (with_rows[first::number] for first in range(number))):
                request += some
                settings = {"settings": self.settings, "numbers": some}
                blocks = [self.rows[at] for at in some]
                task = self._delayed(
                    "size-of-partitions", some[0], worker_partitions.sizes_of_blocks, blocks, **settings
                )
                futures += self._compute([task], worker)
        found = [one for some in self._gather(futures) for one in some]
        summaries = [one for _at, one in sorted(zip(request, found, strict=True), key=lambda pair: pair[0])]
        return summaries, self.rows if sum(map(_bytes_of, summaries)) <= ROWS_SHARE * self.memory else None

    # --- partitions -------------------------------------------------------------------------------

    def array(self, collection: Any, labels: Any, weights: Any) -> None:
        """Take the blocks of an array."""
        config = self.config
        if config.format not in (ANY, ArraysFormat.name) or config.label is not None:
            raise UsageError("a dask.array is read as arrays, with labels=; leave out {format} and {label}")
        blocks = blocks_of_array(collection, labels, weights, "train_dask(client, x, labels=y)")
        self.locations = self._locations(collection, len(blocks))
        recipe = new_recipe(config.of_format(ArraysFormat.name), [_NAME], self.note)
        text = config.declared_labels().wants_text()
        if text is None:
            text = (labels if hasattr(labels, "dtype") else np.asarray(labels)).dtype.kind in "OUT"
        self.settings = self._settings(recipe, text)
        if self.locations:  # each block is copied only when its part is made
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
        """Take the partitions of a dataframe; the schema is known when all have been read."""
        config = self.config
        if config.format not in (ANY, TablesFormat.name):
            raise UsageError(f"{{format={config.format}}}: a dask.dataframe is a table; leave it out")
        self.frames = frames = list(collection.to_delayed())
        self.locations = self._locations(collection, len(frames))
        work = partial(worker_partitions.preview_of, label=config.label)
        previews: list[PartitionPreview]
        previews, futures_of_rows = self._summarize(
            "preview-of-partition", frames, work, lambda preview: preview.bytes, _FRAMES_SHARE
        )
        schemas = [(f"part {at}", preview.schema) for at, preview in enumerate(previews) if preview.schema is not None]
        recipe = self._recipe_of(schemas)
        assert recipe.table is not None
        text = config.declared_labels().wants_text()
        if text is None:
            words = [word for preview in previews for word in preview.words]
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
            for at, frame in enumerate(futures_of_rows or frames)
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
            config = with_most_bits(self.config.of_format(TablesFormat.name))
            recipe = new_recipe(config, [NamedPath(file, _NAME)], self.note)
        columns = recipe.table.columns if recipe.table else []
        if self.config.standardize is None and any(column.kind == "numeric" for column in columns):
            self.note("numbers of a collection are used as they are; Store.from_dask makes a store that scales them")
        return recipe

    def _settings(self, recipe: Recipe, text: bool) -> Settings:
        declared = self.config.declared_labels()
        return Settings(recipe, text, declared.has_classes(), allowed_keys(declared, text))

    # --- parts ------------------------------------------------------------------------------------

    def parts(self, number: int | None) -> tuple[Store, RowsOfParts]:
        """Cut the partitions into parts."""
        began = time.perf_counter()
        recipe = self.settings.recipe
        summaries: list[Summary]
        if self.raw:
            summaries, futures_of_rows = self._sizes()
        else:
            work = partial(worker_partitions.summary_of, settings=self.settings)
            summaries, futures_of_rows = self._summarize("size-of-partition", self.rows, work, _bytes_of, ROWS_SHARE)
        seconds = time.perf_counter() - began
        with_rows = [at for at, one in enumerate(summaries) if one.rows]
        if not with_rows:
            raise InputError("the collection has no rows; check how it was made")
        rows = [(futures_of_rows or self.rows)[at] for at in with_rows]
        locations = [self.locations[at] for at in with_rows] if self.locations else []
        summaries = [summaries[at] for at in with_rows]
        self.rows = []
        seen = LabelCollector(self.settings.text_labels)
        for one in summaries:
            seen.add(one.labels, one.names)
        label_map, features = settle(seen, self.config.declared_labels()), _features(recipe, summaries)
        groups = self._groups_by_worker(summaries, locations) if number is None and futures_of_rows is not None else []
        if futures_of_rows is None:
            number = _number_of_parts(summaries, self.workers, number)
        groups = groups or _cut_evenly(summaries, number or self.threads)
        finished = [
            self._delayed(
                "part",
                at,
                worker_partitions.make_part,
                [rows[one] for one in group],
                settings=self.settings if self.raw else None,
                numbers=[with_rows[one] for one in group],
                rows=sum(summaries[one].rows for one in group),
                entries=sum(summaries[one].entries for one in group),
                recipe=recipe,
                label_map=label_map,
                features=features,
                part=at,
            )
            for at, group in enumerate(groups)
        ]
        workers_of_parts = [""] * len(groups)
        if futures_of_rows is not None:
            where = {} if self.raw else self.client.who_has(rows)
            workers_of_parts = self._assign_workers(
                [[location] for location in locations] or [where.get(row.key, ()) for row in rows], groups
            )
        del rows
        if futures_of_rows is not None:
            futures_of_rows = None
            finished = [self._compute([one], worker)[0] for one, worker in zip(finished, workers_of_parts, strict=True)]
            known = self._known(finished, len(finished))
            max_in_memory = None
        else:
            known = self._known(finished, self.threads)
            max_in_memory = self.threads
        made = _manifest(recipe, label_map, features, known)
        tasks = [
            self._delayed("rows-of-part", at, worker_partitions.checked_part, one, made=only(made, at, at + 1))
            for at, one in enumerate(finished)
        ]
        found = RowsOfParts(self.client, tasks, workers_of_parts, max_in_memory, self.futures, self.frames)
        if max_in_memory:
            needed = sum(map(_bytes_of, summaries))
            found.remark = (
                f"the rows of the collection take {needed / 1e9:.3g} GB, and workers can hold up to "
                f"{ROWS_SHARE * self.memory / 1e9:.3g} GB: so they are recomputed in each round, "
                f"which took {seconds:.2g} seconds; a store (Store.from_dask) is read faster, or give workers more "
                "memory"
            )
        return Store(Path(_NAME), made, sum((one.targets for one in known), TargetSizes())), found

    def _groups_by_worker(self, summaries: list[Summary], locations: list[str]) -> list[list[int]]:
        """Return the partitions of each part, all on one worker; empty if the sizes would be too uneven."""
        if not locations:
            return []
        threads = self.client.nthreads()
        of_workers = [[at for at, location in enumerate(locations) if location == worker] for worker in threads]
        groups = []
        for with_rows, number in zip(of_workers, threads.values(), strict=True):
            if with_rows:
                cuts = _cut_evenly([summaries[at] for at in with_rows], number)
                groups += [[with_rows[at] for at in cut] for cut in cuts]
        sizes = [sum(_bytes_of(summaries[at]) for at in group) for group in groups]
        even = len(locations) == sum(map(len, groups)) and max(sizes, default=0) * self.threads <= _MAX_IMBALANCE * sum(
            sizes
        )
        return sorted(groups) if even else []

    def _assign_workers(self, where: list[Sequence[str]], groups: list[list[int]]) -> list[str]:
        """Return a worker for each part: that with most of its partitions, of those below their share."""
        threads = self.client.nthreads()
        left = {worker: -(-len(groups) * threads[worker] // sum(threads.values())) for worker in sorted(threads)}
        workers_of_parts = []
        for group in groups:
            with_rows = [worker for at in group for worker in where[at]]
            workers_of_parts.append(max((worker for worker in left if left[worker]), key=with_rows.count, default=""))
            if workers_of_parts[-1]:
                left[workers_of_parts[-1]] -= 1
        return workers_of_parts

    def _known(self, finished: list[Any], step: int) -> list[FinishedPart]:
        """Return the descriptions of parts, of which some are made at a time."""
        known: list[FinishedPart] = []
        for first in range(0, len(finished), step):
            some = [
                self._delayed("part-without-rows", first + at, worker_partitions.without_rows, one)
                for at, one in enumerate(finished[first : first + step])
            ]
            known += self._gather(self._compute(some))
        return known


def _keys_of(collection: Any) -> list[Any]:
    """Return the keys of the partitions in order; of an array, one block per row of blocks."""
    keys = collection.__dask_keys__()
    return [key[0] if isinstance(key, list) else key for key in keys]


def _bytes_of(one: Summary) -> int:
    return bytes_of(one.rows, one.entries)


def _features(recipe: Recipe, summaries: Sequence[Summary]) -> int:
    features = max(one.features for one in summaries)
    if recipe.table is None and len({one.features for one in summaries}) > 1:
        raise InputError(
            f"blocks of {min(one.features for one in summaries):,} to {features:,} columns; make them alike"
        )
    return features if recipe.features is None else recipe.features


def _number_of_parts(summaries: Sequence[Summary], workers: Sequence[Worker], number: int | None) -> int:
    """Return the number of parts so that each thread of a worker can make one at a time."""
    room = int(_PART_SHARE * min(worker.memory / worker.threads for worker in workers))
    largest, threads = max(map(_bytes_of, summaries)), sum(worker.threads for worker in workers)
    if largest > room:
        problem = f"the rows of a partition take {largest / 1e6:.3g} MB, and a worker has {room / 1e6:.3g} MB for them"
        raise InputError(f"{problem}; make partitions smaller, or write a store with Store.from_dask")
    found = max(number or threads, threads)
    while (
        found < len(summaries)
        and max(sum(_bytes_of(summaries[at]) for at in group) for group in _cut_evenly(summaries, found)) > room
    ):
        found = min(found + max(found // 8, 1), len(summaries))
    if number is not None and number < found:
        raise UsageError(f"{number} parts are too large for the memory of workers; give {found}, or leave it open")
    return found


def _cut_evenly(summaries: Sequence[Summary], number: int) -> list[list[int]]:
    """Return the partitions of parts: consecutive, of about the same size, none empty."""
    number = max(1, min(number, len(summaries)))
    sizes = np.array([_bytes_of(one) for one in summaries])
    middles = np.cumsum(sizes) - sizes / 2
    cuts = np.searchsorted(middles, sizes.sum() * np.arange(1, number) / number)
    cuts = np.maximum.accumulate(np.maximum(cuts - np.arange(1, number), 0)) + np.arange(1, number)
    bounds = [0, *np.minimum(cuts, len(summaries) - number + np.arange(1, number)).tolist(), len(summaries)]
    return [list(range(first, end)) for first, end in pairwise(bounds)]


def _manifest(recipe: Recipe, label_map: LabelMap, features: int, known: list[FinishedPart]) -> Manifest:
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
        dataclasses.replace(label_map.info, counts=counts),
        Layout("uint32", "float32", label_map.kind, []),
        recipe,
        statistics_of_all(parts),
        None,
        0,
        chunks,
        [],
        __version__,
    )
