"""Scores on several machines: of collections lazily, partition by partition, and of stores part by part."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos.conversion.from_memory import refuse_delayed, room_beside
from ooc_pegasos.conversion.partition_rows import refuse_missing, rows_of_frame, rows_of_matrix
from ooc_pegasos.distributed.store_parts import cut_store, shared_path
from ooc_pegasos.errors import InputError, OocPegasosError, UsageError
from ooc_pegasos.readers import nested
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

if TYPE_CHECKING:
    from ooc_pegasos.aliases import Collection, DaskClient

_MAX_FILES = 1000
_PARTITION = "a partition"


# --- collections --------------------------------------------------------------------------------------


def predict_dask(model: Model, collection: Collection, proba: bool = False) -> Collection:
    """Return the scores of a model on a Dask collection, lazily.

    A dask.dataframe with the columns of the model's recipe becomes a dataframe with the columns of `predict`: score,
    label and, with `proba`, probability; the index is kept. A dask.array, dense or of sparse blocks, becomes a
    dask.array of scores, or of probabilities, with a column for each class if there are more than two.
    """
    from dask.delayed import delayed

    refuse_delayed(collection)
    if proba:
        model.check_probabilities()
    scorer = _PartitionScorer(model, proba)
    shared = delayed(_identity, pure=False)(delayed(scorer, traverse=False))
    given: Any = collection
    scores: Collection
    if hasattr(given, "to_delayed") and hasattr(given, "chunks"):
        scores = _array_of(scorer, shared, given)
    elif hasattr(given, "map_partitions") and hasattr(given, "columns"):
        scorer.check_columns(given.columns)
        scores = given.map_partitions(_frame_of, shared, meta=scorer.frame(given._meta))
    else:
        raise UsageError(f"a {type(given).__name__} can not be scored; give a dask.dataframe or a dask.array")
    return scores


def _array_of(scorer: _PartitionScorer, shared: Any, collection: Any) -> Any:
    if collection.ndim != 2:
        raise UsageError(f"a dask.array of {collection.ndim} dimensions; give one with a row for each example: two")
    if len(collection.chunks[1]) > 1:
        if np.isnan(collection.shape[1]):
            raise UsageError("columns are split into several blocks of unknown size; compute_chunk_sizes() first")
        collection = collection.rechunk({1: -1})
    scorer.check_width(collection.shape[1])
    sample = scorer.scores(np.zeros((0, 1)))
    if sample.ndim == 1:
        return collection.map_blocks(_scores_of, shared, dtype=sample.dtype, drop_axis=1, meta=sample)
    chunks = (collection.chunks[0], (sample.shape[1],))
    return collection.map_blocks(_scores_of, shared, dtype=sample.dtype, chunks=chunks, meta=sample)


class _PartitionScorer:
    """Scorer of partitions. It is pickled as the model alone, and built again on the worker."""

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
        return _PartitionScorer, (self.model, self.proba)

    def check_columns(self, columns: Any) -> None:
        """Refuse a dataframe without the needed columns."""
        if self._vectorizer is None:
            problem = f"the model was trained on data read as {self._recipe.reader}, not on a table"
            raise UsageError(f"{problem}; give {'a dask.array' if self._has_plain_indices else 'files'}")
        refuse_missing(nested.missing_columns(self._vectorizer.wanted, columns), columns, "the collection")
        if (id_column := self._vectorizer.table.id) is not None and id_column not in columns:
            raise InputError(
                f"the collection: '{id_column}' is a field of a struct; make the ids a column of their own"
            )

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
        id_column = self._vectorizer.table.id
        named = dict(zip(names_of_columns(self.model, self.proba), found, strict=True))
        made = part[[] if id_column is None else [id_column]].assign(**named)
        return made.astype({"label": "str"}) if labels.dtype.kind == "U" else made


def _columns(table: np.ndarray) -> list[np.ndarray]:
    return list(table.T) if table.ndim > 1 else [table]


def _identity(given: Any) -> Any:
    return given


def _scores_of(block: Any, scorer: _PartitionScorer) -> np.ndarray:
    return scorer.scores(block)


def _frame_of(part: Any, scorer: _PartitionScorer) -> Any:
    return scorer.frame(part)


# --- stores -------------------------------------------------------------------------------------------


def predict_store(
    client: DaskClient, model: Model, store: Store | str | Path, folder: str | Path, proba: bool = False
) -> int:
    """Write predictions as a folder of Parquet files, in the order of the store; return the number of rows.

    A file has the rows of a chunk, or of several if there are more than 1,000 chunks. The folder appears when all files
    are written; it must be on a file system that the workers share.
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
            bounds = cut_store(opened, _MAX_FILES)
            names = [f"part-{number:05d}.parquet" for number in range(len(bounds))]
            work = [(bound, (str(room / name), proba, id_type)) for bound, name in zip(bounds, names, strict=True)]
            written = _map_parts(client, _write_part, model, opened, work)
            for name, (_rows, size) in zip(names, written, strict=True):
                if not (room / name).is_file() or (room / name).stat().st_size != size:
                    raise InputError(f"{target}: {name} is missing; {_SHARED}")
            os.replace(room, target)
            sync_name(target)
    return sum(rows for rows, _size in written)


def evaluate_dask(client: DaskClient, model: Model, store: Store | str | Path) -> dict[str, Any]:
    """Return the metrics of `evaluate` for a model on a store; the workers score parts.

    If the areas under curves are exact, scores and labels are sent to the client; for more rows, histograms.
    """
    opened = store if isinstance(store, Store) else Store.open(store)
    check_store(model, opened, with_labels=True)
    exact = EXACT_ROWS if opened.rows <= EXACT_ROWS else 0
    with in_use(opened.path):
        bounds = cut_store(opened, 4 * max(1, sum(client.nthreads().values())))
        tally: Tally = _map_parts(
            client, _tally_part, model, opened, [(bound, (exact,)) for bound in bounds], _merge_tallies
        )
    return tally.result(model, str(opened.path))


_SHARED = "workers must share its file system; choose a path that all of them see"


def _map_parts(
    client: Any,
    work: Callable[..., Any],
    model: Model,
    store: Store,
    parts: list[tuple[tuple[int, int], tuple[Any, ...]]],
    merge: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Return the results of `work` for all parts of a store, in order; with `merge`, combined."""
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    if not client.nthreads():
        raise InputError("the cluster has no workers; start some, or wait for them with client.wait_for_workers(1)")
    location = (shared_path(store.path), store.checksum)
    futures: list[Any] = []
    done = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            shared = client.submit(_identity, model, pure=False)
        futures = [client.submit(work, shared, location, bound, *more, pure=False) for bound, more in parts]
        while merge is not None and len(futures) > 1:  # in pairs, in a fixed order
            pairs = [futures[at : at + 2] for at in range(0, len(futures), 2)]
            futures = [client.submit(merge, *pair, pure=False) if len(pair) == 2 else pair[0] for pair in pairs]
        found = client.gather(futures if merge is None else futures[0])
        done = True
        return found
    except (KilledWorker, FutureCancelledError) as error:
        raise OocPegasosError(f"workers were lost again and again ({error}); give them more memory") from error
    finally:
        if not done:
            client.cancel(futures)
        shared, futures = None, []  # else the traceback would keep them alive


def _part_of(location: tuple[str, str], bound: tuple[int, int]) -> Store:
    """Return some chunks of a store, on a worker."""
    path, checksum = location
    try:
        whole = Store.open(path)
    except InputError as error:
        raise InputError(f"{error}; every worker must see the store under this path") from error
    if whole.checksum != checksum:
        raise InputError(f"{path}: not the store that the client sees; give all machines the same one")
    return Store(whole.path, only(whole.manifest, *bound))


def _write_part(
    model: Model, location: tuple[str, str], bound: tuple[int, int], file: str, proba: bool, id_type: Any
) -> tuple[int, int]:
    """Write the predictions of a part; return (rows, bytes)."""
    part, target = _part_of(location, bound), Path(file)
    if not target.parent.is_dir():
        here = f"the worker on {socket.gethostname()} does not see {target.parent.parent}, or not its new files"
        raise InputError(f"{here}; {_SHARED}")
    rows = write_scores(model, score_store(model, part, 1, False, id_type), target, proba)
    return rows, target.stat().st_size


def _tally_part(model: Model, location: tuple[str, str], bound: tuple[int, int], exact: int) -> Tally:
    tally = Tally(model, exact)
    tally.take(model, score_store(model, _part_of(location, bound), 1, True, None))
    return tally


def _merge_tallies(one: Tally, other: Tally) -> Tally:
    """Return the sum; neither tally is changed, since Dask may repeat the task."""
    new = one.copy()
    new.merge(other)
    return new
