"""Scores on several machines: of collections lazily, partition by partition, and of stores part by part."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.conversion.from_memory import refuse_delayed, room_beside
from ooc_pegasos.conversion.partition_rows import rows_of_frame, rows_of_matrix
from ooc_pegasos.distributed.store_parts import cut, same_store
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.readers import columns_plan
from ooc_pegasos.readers.registry import format_of
from ooc_pegasos.readers.vectorize import Vectorizer
from ooc_pegasos.scoring.evaluate import Tally, names_of_columns, write_scores
from ooc_pegasos.scoring.metrics import EXACT_ROWS
from ooc_pegasos.scoring.model import Model, check_width
from ooc_pegasos.scoring.score import Scorer, check_store, needed, score_block, score_store
from ooc_pegasos.store.append_expire import only
from ooc_pegasos.store.store import Store
from ooc_pegasos.util.files import sync_name, writing_errors
from ooc_pegasos.util.locks import in_use

_MOST_FILES = 1000
_PARTITION = "a partition"


# --- collections --------------------------------------------------------------------------------------


def predict_dask(model: Model, collection: Any, proba: bool = False) -> Any:
    """The scores of a model on a Dask collection: lazy, nothing is gathered, and on whatever scheduler is set.

    A dask.dataframe with the columns that the model's recipe names becomes one of score, label and, if wanted,
    probability, with the index it has; what `predict` calls these columns, they are called here. A dask.array, dense or
    of sparse blocks, becomes a dask.array of scores, or of probabilities, with a column a class if there are several.
    """
    from dask.delayed import delayed

    refuse_delayed(collection)
    if proba:
        model.check_probabilities()
    ready = _Ready(model, proba)
    shared = delayed(_same, pure=False)(delayed(ready, traverse=False))
    if hasattr(collection, "to_delayed") and hasattr(collection, "chunks"):
        return _array_of(ready, shared, collection)
    if hasattr(collection, "map_partitions") and hasattr(collection, "columns"):
        ready.check_columns(collection.columns)
        return collection.map_partitions(_frame_of, shared, meta=ready.frame(collection._meta))
    raise UsageError(f"a {type(collection).__name__} can not be scored; give a dask.dataframe or a dask.array")


def _array_of(ready: _Ready, shared: Any, collection: Any) -> Any:
    if collection.ndim != 2:
        raise UsageError(f"a dask.array of {collection.ndim} dimensions; give one with a row for each example: two")
    if len(collection.chunks[1]) > 1:
        if np.isnan(collection.shape[1]):
            raise UsageError("columns fall into several blocks, of unknown size; compute_chunk_sizes() first")
        collection = collection.rechunk({1: -1})
    ready.check_width(collection.shape[1])
    some = ready.scores(np.zeros((0, 1)))
    if some.ndim == 1:
        return collection.map_blocks(_scores_of, shared, dtype=some.dtype, drop_axis=1, meta=some)
    chunks = (collection.chunks[0], (some.shape[1],))
    return collection.map_blocks(_scores_of, shared, dtype=some.dtype, chunks=chunks, meta=some)


class _Ready:
    """A model ready to score partitions. It travels as the model, and is made ready where it arrives."""

    def __init__(self, model: Model, proba: bool) -> None:
        self.model, self.proba = model, proba
        self._scorer = Scorer(model, 0)
        self._recipe = needed(model.info.recipe, ids=True)
        table = self._recipe.table
        self._has_plain_indices = format_of(self._recipe.reader).has_plain_indices
        self._vectorizer = None
        if table is not None:
            text = model.info.labels.text
            self._vectorizer = Vectorizer(table, text, with_labels=False, vocabulary=model.vocabulary)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Ready, (self.model, self.proba)

    def check_columns(self, columns: Any) -> None:
        """Refuse a dataframe without those that are needed."""
        if self._vectorizer is None:
            problem = f"the model was trained on data read as {self._recipe.reader}, not on a table"
            raise UsageError(f"{problem}; give {'a dask.array' if self._has_plain_indices else 'files'}")
        known = dict.fromkeys(map(str, columns))
        missing = [column for column in self._vectorizer.wanted if column not in columns]
        if missing:
            raise InputError(f"the collection: {columns_plan.difference(missing, known)}")

    def check_width(self, columns: float) -> None:
        """Refuse an array that cannot be scored; NaN columns are an unknown number."""
        reader, label = self._recipe.reader, self._recipe.label_column
        if not self._has_plain_indices:
            what = "files" if self._recipe.table is None else "a dask.dataframe"
            raise UsageError(f"the model was trained on data read as {reader}, not on an array; give {what}")
        if label is not None and columns > self.model.info.features:
            problem = f"{columns:,} columns, where the model has {self.model.info.features:,} features"
            raise UsageError(f"{problem} and its data had labels in column {label}; leave that out")
        check_width(columns, self.model.info.features, "the collection")

    def scores(self, matrix: Any) -> np.ndarray:
        """Scores, or probabilities, of the rows of a matrix."""
        parsed = rows_of_matrix(matrix, None, None, _PARTITION, first_index=self._recipe.index_base)
        scores = score_block(self.model, self._scorer, parsed.block)
        return self.model.probabilities_of(scores) if self.proba else scores

    def frame(self, part: Any) -> Any:
        """Return the columns of predictions for the rows of a dataframe."""
        assert self._vectorizer is not None
        blocks = [found.block for found in rows_of_frame(part, self._vectorizer, _PARTITION)]
        parts = [score_block(self.model, self._scorer, block) for block in blocks]
        scores = np.concatenate([self._scorer.new_scores(0), *parts])
        labels: Any = self.model.labels_of(scores)
        found = [*_columns(scores), labels]
        if self.proba:
            found += _columns(self.model.probabilities_of(scores))
        of_id = self._vectorizer.table.id
        named = dict(zip(names_of_columns(self.model, self.proba), found, strict=True))
        made = part[[] if of_id is None else [of_id]].assign(**named)
        return made.astype({"label": "str"}) if labels.dtype.kind == "U" else made


def _columns(table: np.ndarray) -> list[np.ndarray]:
    return list(table.T) if table.ndim > 1 else [table]


def _same(given: Any) -> Any:
    return given


def _scores_of(block: Any, ready: _Ready) -> np.ndarray:
    return ready.scores(block)


def _frame_of(part: Any, ready: _Ready) -> Any:
    return ready.frame(part)


# --- stores -------------------------------------------------------------------------------------------


def predict_store(client: Any, model: Model, store: Store | str | Path, folder: str | Path, proba: bool = False) -> int:
    """Write what `predict` writes as a folder of Parquet files, in the order of the store; returns the rows.

    The files are those of parts of the store, one a chunk unless these are more than a thousand. The folder appears
    when all of them are written; it must be on a file system that the workers share.
    """
    if proba:
        model.check_probabilities()
    opened = store if isinstance(store, Store) else Store.open(store)
    check_store(model, opened, with_labels=False)
    target = Path(folder).absolute()
    with in_use(opened.path), writing_errors(target):
        if not target.parent.exists():
            raise InputError(f"{target.parent}: no such folder; create it first")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(f"{target}: exists already; remove it or choose another name")
        with room_beside(target) as room:
            id_type = opened.id_type()
            bounds = cut(opened, _MOST_FILES)
            names = [f"part-{number:05d}.parquet" for number in range(len(bounds))]
            work = [(bound, (str(room / name), proba, id_type)) for bound, name in zip(bounds, names, strict=True)]
            written = _everywhere(client, _write_part, model, opened, work)
            for name, (_rows, size) in zip(names, written, strict=True):
                if not (room / name).is_file() or (room / name).stat().st_size != size:
                    raise InputError(f"{target}: {name} is not there; {_SHARED}")
            os.replace(room, target)
            sync_name(target)
    return sum(rows for rows, _size in written)


def evaluate_dask(client: Any, model: Model, store: Store | str | Path) -> dict[str, Any]:
    """The metrics of a model on a store, as `evaluate` has them; workers score their parts, and tell what they found.

    Up to as many rows as the areas under curves are exact for, scores and labels travel; beyond, bins.
    """
    opened = store if isinstance(store, Store) else Store.open(store)
    check_store(model, opened, with_labels=True)
    exact = EXACT_ROWS if opened.rows <= EXACT_ROWS else 0
    with in_use(opened.path):
        bounds = cut(opened, 4 * max(1, sum(client.nthreads().values())))
        tally: Tally = _everywhere(client, _tally_part, model, opened, [(bound, (exact,)) for bound in bounds], _merged)
    return tally.result(model, str(opened.path))


_SHARED = "workers must share its file system; choose a path that all of them see"


def _everywhere(
    client: Any,
    work: Callable[..., Any],
    model: Model,
    store: Store,
    parts: list[tuple[tuple[int, int], tuple[Any, ...]]],
    merge: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Return the results of some work on all parts of a store, in order; with `merge`, as one."""
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    if not client.nthreads():
        raise InputError("the cluster has no workers; start some, or wait for them with client.wait_for_workers(1)")
    place = (same_store(store.path), store.checksum)
    futures: list[Any] = []
    done = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            shared = client.submit(_same, model, pure=False)
        futures = [client.submit(work, shared, place, bound, *more, pure=False) for bound, more in parts]
        while merge is not None and len(futures) > 1:  # two by two, always in the same order
            pairs = [futures[at : at + 2] for at in range(0, len(futures), 2)]
            futures = [client.submit(merge, *pair, pure=False) if len(pair) == 2 else pair[0] for pair in pairs]
        found = client.gather(futures if merge is None else futures[0])
        done = True
        return found
    except (KilledWorker, FutureCancelledError) as error:
        raise OocPegasosError(f"workers were lost again and again ({error}); give them more memory") from error
    finally:
        if not done:
            client.cancel(futures)  # on which nothing depends
        shared, futures = None, []  # or what is raised would hold them


def _part_of(place: tuple[str, str], bound: tuple[int, int]) -> Store:
    """Some chunks of a store, on a worker."""
    path, checksum = place
    try:
        whole = Store.open(path)
    except InputError as error:
        raise InputError(f"{error}; every worker must see the store under this path") from error
    if whole.checksum != checksum:
        raise InputError(f"{path}: not the store that the client sees; give all machines the same one")
    return Store(whole.path, only(whole.manifest, *bound))


def _write_part(
    model: Model, place: tuple[str, str], bound: tuple[int, int], file: str, proba: bool, id_type: Any
) -> tuple[int, int]:
    """(rows, bytes) of the file of a part."""
    part, target = _part_of(place, bound), Path(file)
    if not target.parent.is_dir():
        here = f"the worker on {socket.gethostname()} does not see {target.parent.parent}, or not what is new in it"
        raise InputError(f"{here}; {_SHARED}")
    rows = write_scores(model, score_store(model, part, 1, False, id_type), target, proba)
    return rows, target.stat().st_size


def _tally_part(model: Model, place: tuple[str, str], bound: tuple[int, int], exact: int) -> Tally:
    tally = Tally(model, exact)
    tally.take(model, score_store(model, _part_of(place, bound), 1, True, None))
    return tally


def _merged(one: Tally, other: Tally) -> Tally:
    """Two as one; neither is changed, as they may be asked for again."""
    new = one.copy()
    new.merge(other)
    return new
