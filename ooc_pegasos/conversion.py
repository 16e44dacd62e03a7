"""Inputs of any size to a store, in two passes and within a memory budget.

First pass (`ingest`): text is parsed on all cores and its rows go to buckets on disk; to shuffle, each
row to a random bucket, else to the same one until it is full. Second pass (`assemble`): each bucket is
read back, permuted, coded and written as chunks. A random bucket for each row followed by a random
order within each bucket is a uniformly random permutation of all rows. Everything happens in
`STORE.unfinished/`, and the store appears by a rename at the end.
"""

from __future__ import annotations

import dataclasses
import decimal
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos import __version__, feature_names, manifest, typed
from ooc_pegasos.assemble import Assembled, Assembly, AssemblyPlan, RowStatistics, choose_coding, coded_sizes
from ooc_pegasos.block import LEVELS
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import DamagedError, InputError, OocPegasosError, UsageError
from ooc_pegasos.files import locked, sync_folder, write_atomically, writing_errors
from ooc_pegasos.ingest import Ingest, IngestPlan
from ooc_pegasos.journal import Journal
from ooc_pegasos.labels import Declared, LabelMap, settle
from ooc_pegasos.manifest import ChunkInfo, LabelInfo, Layout, Manifest, Recipe, Statistics
from ooc_pegasos.progress import Progress
from ooc_pegasos.readers import opening, sources
from ooc_pegasos.readers.reading import LARGEST_INDEX
from ooc_pegasos.store import REJECTED_FILE, Store

_NOT_IN_PLAN = ("memory", "threads", "block_size")
_SOME_CORES, _WORTH_A_CORE = 8, 24 << 20  # buckets, and bytes of rows in each
_PLAN = "plan.json"
_BITS_OF_ONE = 0x3F800000
_STREAM_SIZE = 4 << 30  # what standard input is taken to hold


@dataclass(frozen=True)
class Existing:
    """What to do about a store that is there already."""

    force: bool = False
    append: bool = False
    resume: bool = False


def convert(
    inputs: Sequence[str],
    output: str | Path,
    config: ConvertConfig | None = None,
    *,
    existing: Existing | None = None,
    progress: Progress | None = None,
) -> Store:
    """Make the store `output` from svmlight `inputs` and open it."""
    config = config or ConvertConfig()
    existing = existing or Existing()
    target = Path(output)
    scratch = Path(os.path.abspath(target) + ".unfinished")
    with writing_errors(target):
        before = _check_output(target, existing)
        names, kind = opening.find(inputs)
        config = dataclasses.replace(
            config,
            weights=_weights_file(config.weights, names),
            format=kind if config.format == "auto" else config.format,
        )
        if existing.resume and before and not existing.force and not (scratch / _PLAN).exists():
            if _made_from(before, names, config, existing.append):
                return Store.open(target)
            if not existing.append:
                problem = "exists already, made from other inputs or with other options"
                raise InputError(f"{target}: {problem}; add --force to replace it")
        if scratch.is_dir() and any(scratch.iterdir()) and not (scratch / "lock").exists():
            raise InputError(f"{scratch}: not made by oocpeg, and in the way; move it elsewhere")
        with locked(scratch / "lock", str(target)):
            before = _check_output(target, existing)  # another process may have been faster
            _work(target, scratch, names, config, before if existing.append else None, existing, progress or Progress())
    return Store.open(target)


def _weights_file(given: str | None, names: list[str]) -> str | None:
    """The one file that --weights names, checked to be there and to be no input."""
    if given is None:
        return None
    found = sources.expand([given])
    if len(found) > 1:
        raise UsageError(
            f"--weights {given}: {len(found)} files match; name one, with the weights of all inputs in order"
        )
    if sources.STDIN in found and sources.STDIN in names:
        raise UsageError("--weights -: standard input is the data already; name a file")
    if os.path.realpath(found[0]) in map(os.path.realpath, names):
        raise UsageError(f"--weights {given}: is an input as well; name the file of the weights")
    return found[0]


def _work(
    target: Path,
    scratch: Path,
    names: list[str],
    config: ConvertConfig,
    base: Manifest | None,
    existing: Existing,
    progress: Progress,
) -> None:
    """Run one job, and leave a scratch folder only if it can be taken up again."""
    keep = existing.resume and (scratch / _PLAN).exists()
    try:
        if base:
            _check_base(Store.open(target), config)
        job = _Job(target, scratch, names, config, base, existing, progress)
        keep = False
        job.run()
    except (InputError, DamagedError, UsageError, OSError, MemoryError):
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    except KeyboardInterrupt:
        if not (scratch / _PLAN).exists():
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    done = scratch.with_name(scratch.name + "~")
    shutil.rmtree(done, ignore_errors=True)
    os.rename(scratch, done)  # so that no half of it can be taken for something to resume
    shutil.rmtree(done)


def _check_output(target: Path, existing: Existing) -> Manifest | None:
    """The manifest of the store that is there, if there is one and it may be touched."""
    if existing.force and existing.append:
        raise UsageError("--force replaces the store, --append adds to it; choose one")
    if not target.parent.exists():
        raise InputError(f"{target.parent}: no such folder; create it first")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not (target / manifest.FILE_NAME).exists():
        raise InputError(f"{target}: exists and is not a store; remove it or choose another name")
    if not (existing.force or existing.append or existing.resume):
        raise InputError(f"{target}: exists already; add --force to replace it or --append to add to it")
    try:
        return manifest.read(target)
    except OocPegasosError:
        if existing.force:
            return None
        raise


def _made_from(store: Manifest, names: list[str], config: ConvertConfig, append: bool) -> bool:
    """Whether the last sources of a store are just these files: then there is nothing left to resume."""
    seed = config.seed if config.shuffle else None
    recipe = store.recipe
    if not append and (recipe.normalize, recipe.values, recipe.features, store.shuffle_seed) != (
        config.normalize,
        config.rounding,
        config.features,
        seed,
    ):
        return False
    if config.values == "float32" and store.layout.values != "float32":
        return False
    made_from = [(source.name, source.size, source.xxh64) for source in store.sources[-len(names) :]]
    if [(name, sources.stamp_of(name).size) for name in names] != [known[:2] for known in made_from]:
        return False
    weights = None
    if config.weights is not None:
        weights = sources.hash_of(config.weights) if sources.stamp_of(config.weights).regular else "?"
    if any(source.weights != weights for source in store.sources[-len(names) :]):
        return False
    return [(name, size, sources.hash_of(name)) for name, size, _hash in made_from] == made_from


def _check_base(store: Store, config: ConvertConfig) -> None:
    """Refuse to append with options that contradict the store."""
    recipe, coding = store.manifest.recipe, store.manifest.layout.values
    exact = {"float32": "float32", "code8": "codes of one byte", None: "values that are all 1"}
    known: dict[str, Any] = {"normalize": recipe.normalize, "values": recipe.values or exact[coding]}
    known |= {"features": recipe.features, "index_base": str(recipe.index_base)}
    for name, value in known.items():
        given = getattr(config, name)
        if given not in (None, "auto", value):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {given}: the store was made with {value}; leave it out to append")
    if config.declared() != Declared():
        raise UsageError("--task, --classes and --positive-label are those of the store; leave them out to append")


class _Job:
    """One conversion, new or taken up again."""

    def __init__(
        self,
        target: Path,
        scratch: Path,
        names: list[str],
        config: ConvertConfig,
        base: Manifest | None,
        existing: Existing,
        progress: Progress,
    ) -> None:
        self.target = target
        self.scratch = scratch
        self.names = names
        self.config = config
        self.base = base
        self.progress = progress
        self.declared = Declared.by(base.labels) if base else config.declared()
        self.stamps = [sources.stamp_of(name) for name in names]
        self.weights_stamp = None if config.weights is None else sources.stamp_of(config.weights)
        self.plan_path = scratch / _PLAN
        if existing.resume and self.plan_path.exists():
            self.plan = self._recorded_plan()
        else:
            if self.plan_path.exists():
                progress.note("an unfinished conversion is discarded; --resume would have continued it")
            self._start_over()
        if base and base.weighted and config.weights is None:
            progress.note(f"the new rows count 1 each: the rows of {target} have weights, and no --weights was given")

    @property
    def can_be_read_again(self) -> bool:
        """Whether what is read are files, not pipes."""
        return all(stamp.regular for stamp in [*self.stamps, *filter(None, [self.weights_stamp])])

    def _request(self) -> dict[str, Any]:
        """What must be the same for a conversion to be taken up again."""
        settings = dataclasses.asdict(self.config)
        request = {name: value for name, value in settings.items() if name not in _NOT_IN_PLAN}
        request["inputs"] = [
            [name, *dataclasses.astuple(stamp)] for name, stamp in zip(self.names, self.stamps, strict=True)
        ]
        if self.weights_stamp:
            request["weights"] = [self.config.weights, *dataclasses.astuple(self.weights_stamp)]
        request["append_to"] = manifest.encode(self.base).decode() if self.base else None
        request["written_by"] = __version__
        normal: dict[str, Any] = json.loads(json.dumps(request))
        return normal

    def _recorded_plan(self) -> IngestPlan:
        if not self.can_be_read_again:
            raise UsageError("--resume: standard input and pipes cannot be read again; start over without --resume")
        recorded = json.loads(self.plan_path.read_text())
        wanted = self._request()
        if self.published():
            wanted["append_to"] = recorded["request"]["append_to"]
        for name, value in wanted.items():
            if recorded["request"].get(name) != value:
                what = f"the {name} were" if name in ("inputs", "weights") else f"'{name.replace('_', '-')}' was"
                raise UsageError(f"--resume: {what} different when the conversion began; start over without --resume")
        self.rejected_before = recorded["rejected_before"]
        return typed.load(IngestPlan, recorded["ingest"])

    def _start_over(self) -> None:
        for path in self.scratch.iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.scratch / "store").mkdir()
        self.plan = self._new_plan()
        listed = self.target / REJECTED_FILE
        self.rejected_before = listed.stat().st_size if self.base and listed.exists() else 0
        recorded = {
            "request": self._request(),
            "ingest": dataclasses.asdict(self.plan),
            "rejected_before": self.rejected_before,
        }
        if self.can_be_read_again:
            write_atomically(self.plan_path, json.dumps(recorded).encode())

    def _new_plan(self) -> IngestPlan:
        config, kind = self.config, self.config.format
        recipe = self.base.recipe if self.base else opening.new_recipe(config, self.names, self.progress.note)
        if recipe.reader != kind and not {recipe.reader, kind} <= set(opening.PLAIN):
            problem = f"made of {recipe.reader}, and these inputs are read as {kind}"
            raise InputError(f"{self.target}: {problem}; append inputs of the same kind")
        text = self.declared.wants_text()
        if text is None:
            regular = [name for name, stamp in zip(self.names, self.stamps, strict=True) if stamp.regular]
            text = kind == "folders" or (
                bool(regular) and opening.labels_are_text(regular[:1], kind, recipe, config.labels)
            )
        base = recipe.index_base if self.base or kind != "svmlight" else {"0": 0, "1": 1}.get(config.index_base)
        features = recipe.features
        largest = LARGEST_INDEX
        if features is not None:
            largest = features - 1 if base == 0 else features
        return IngestPlan(
            self.names,
            text,
            base or 0,
            largest,
            config.on_bad_row == "skip",
            bool(recipe.normalize),
            recipe.values,
            config.seed if config.shuffle else None,
            self._bucket_number(recipe),
            config.bucket_limit() if config.shuffle else min(config.bucket_limit(), config.chunk_size),
            config.text_block(),
            recipe,
            config.feature_names,
            config.weights,
            config.labels,
        )

    def _bucket_number(self, recipe: Recipe) -> int:
        """So many that each fits the memory budget; where rows are many, at least one for each of some cores."""
        expected = 0.0
        for name, stamp in zip(self.names, self.stamps, strict=True):
            size = stamp.size if stamp.regular else _STREAM_SIZE
            expected += opening.bytes_of_rows(name, size, recipe)
        least = min(_SOME_CORES, expected // _WORTH_A_CORE)
        return int(min(256, max(1 + expected // self.config.bucket_limit(), least)))

    def published(self) -> bool:
        """Whether the store is in place already and only the scratch folder is left."""
        intended = self.scratch / manifest.FILE_NAME
        current = self.target / manifest.FILE_NAME
        return intended.exists() and current.exists() and intended.read_bytes() == current.read_bytes()

    def run(self) -> None:
        """Both passes, then publish."""
        if self.published():
            self._remove_what_nobody_names(manifest.read(self.target))
            return
        if (self.scratch / manifest.FILE_NAME).exists():  # stopped while the store was put in place
            self._put_in_place(manifest.read(self.scratch))
            return
        with (
            closing(Journal(self.scratch / "read.journal")) as read_journal,
            closing(Journal(self.scratch / "write.journal")) as write_journal,
        ):
            self._run(read_journal, write_journal)
        self.progress.end()

    def _run(self, read_journal: Journal, write_journal: Journal) -> None:
        config = self.config
        assembled_before = {event["bucket"] for _end, event in write_journal.events()}
        ingest = Ingest(self.plan, self.declared, self.scratch, read_journal)
        read_journal.truncate(ingest.replay(read_journal.events(), assembled_before))
        self.progress.begin("reading", sum(stamp.size for stamp in self.stamps))
        reader = opening.reader_for(
            self.names,
            self.plan.recipe,
            self.plan.block_size,
            text_labels=self.plan.text_labels,
            smallest_index=self.plan.smallest_index,
            largest_index=self.plan.largest_index,
            stop_at_bad=not self.plan.skip_bad,
            feature_names=self.plan.feature_names,
            labels=self.plan.labels,
            label_column=self.plan.recipe.label_column,
        )
        ingest.run(reader, config.reading_threads(), self.progress.advance)
        if ingest.totals.rows == 0:
            rejected = f"{ingest.totals.rejected:,} were rejected"
            raise InputError(f"{self.names[0]}: no row to keep, {rejected}; check the file")
        labels = settle(ingest.totals.collector, self.declared)
        plan = self._assembly_plan(ingest, labels)
        labels = dataclasses.replace(labels, kind=plan.layout.labels)
        assembly = Assembly(plan, labels, ingest.spill, self.scratch / "store", write_journal)
        assembly.replay(write_journal.events())
        self.progress.begin("writing", sum(ingest.totals.sizes.values()))
        room = 2 * config.bucket_limit() + 2 * min(config.chunk_size, 2 * config.bucket_limit())
        threads = max(1, min(config.workers, config.memory // room))
        assembled = assembly.run(ingest.buckets(), threads, self.progress.advance)
        self._publish(ingest, plan, labels, assembled)

    def _assembly_plan(self, ingest: Ingest, labels: LabelMap) -> AssemblyPlan:
        totals, config = ingest.totals, self.config
        index_base = self._index_base(totals.smallest)
        features = max(totals.largest - index_base + 1, 0)
        limit = self.plan.recipe.features
        if limit is not None:
            if features > limit:
                raise InputError(
                    f"{totals.largest_at}: index {totals.largest} in 0-based data is above --features {limit}; raise it"
                )
            features = limit
        stats = np.sum([counts for _bucket, counts in ingest.buckets()], axis=0)
        values, levels = self._value_coding(totals.levels)
        coding: Any = choose_coding(stats, index_base, values)
        layout = Layout(coding, values, labels.kind, levels)
        if self.base:
            layout = self._layout_to_append(layout, totals.levels, stats)
            features = max(features, self.base.features)
        return AssemblyPlan(
            layout,
            index_base,
            features,
            self.plan.normalize,
            self.plan.rounding,
            self.plan.shuffle_seed,
            config.chunk_size,
            self.plan.bucket_limit,
        )

    def _value_coding(self, levels: set[int] | None) -> tuple[Any, list[float]]:
        """The coding of values that was asked for, else that with the fewest bytes, and its table.

        `levels` are the bits of all values, None if they are many.
        """
        if levels is None or self.config.values == "float32":
            return self.plan.rounding or "float32", []
        if levels <= {_BITS_OF_ONE}:
            return None, []
        return "code8", [0.0, *_levels_in_order(levels - {0})]

    def _index_base(self, smallest: int) -> int:
        if self.base:
            return self.base.recipe.index_base
        if self.plan.recipe.reader != "svmlight":
            return 0
        if self.config.index_base != "auto":
            return int(self.config.index_base)
        return 0 if smallest == 0 else 1

    def _layout_to_append(self, needed: Layout, levels: set[int] | None, stats: np.ndarray) -> Layout:
        """The layout of the store that is appended to; new rows that do not fit it are refused."""
        assert self.base
        layout = self.base.layout
        remedy = "convert all inputs together; with --values float32 any values can be appended later"
        if needed.values and not layout.values:
            problem = "all its values are 1 and not stored, but the new rows have others"
            raise InputError(f"{self.target}: {problem}; {remedy}")
        if needed.labels == "float64" and layout.labels == "float32":
            problem = "its labels are float32, which some new labels do not fit"
            raise InputError(f"{self.target}: {problem}; convert all inputs together")
        if layout.values == "code8":
            table = [*layout.levels]
            if levels is not None:
                known = set(np.array(table, np.float32).view(np.uint32).tolist())
                table += _levels_in_order(levels - known)
            if levels is None or len(table) > LEVELS:
                problem = f"its values are places in a table of {LEVELS}, too few for those of the new rows as well"
                raise InputError(f"{self.target}: {problem}; {remedy}")
            layout = dataclasses.replace(layout, levels=table)
        sizes = coded_sizes(stats, self.base.recipe.index_base, layout.values)
        if sizes[layout.index_coding] > 4 * min(sizes.values()):
            problem = f"its index coding, {layout.index_coding}, would make the new rows four times larger than needed"
            raise InputError(f"{self.target}: {problem}; convert all inputs together")
        return layout

    def _publish(self, ingest: Ingest, plan: AssemblyPlan, labels: LabelMap, assembled: list[Assembled]) -> None:
        """Give the chunks their names and put the store in place by one rename."""
        built = self.scratch / "store"
        chunks: list[ChunkInfo] = []
        first = len(self.base.chunks) if self.base else 0
        for chunk in (chunk for part in assembled for chunk in part.chunks):
            name = f"chunk-{first + len(chunks):06d}-{chunk.crc32}.arrow"
            if (built / chunk.file).exists():
                os.rename(built / chunk.file, built / name)
            chunks.append(dataclasses.replace(chunk, file=name))
        made = self._manifest(ingest, plan, labels.info, chunks, assembled)
        known = feature_names.read(self.target, self.base.names) if self.base and self.base.names else {}
        if ingest.names or known:
            made = dataclasses.replace(made, names=feature_names.write(built, ingest.names | known))
        if ingest.totals.rejected:
            self._write_rejected(ingest.rejected_path, built / REJECTED_FILE)
        manifest.write(self.scratch, made)  # from here on nothing is left to do but to move files
        self._put_in_place(made)

    def _put_in_place(self, made: Manifest) -> None:
        """Move what is built, or what is left of it there, to where the store is to be."""
        built = self.scratch / "store"
        for path in built.glob(".*.tmp"):  # of a process that was killed
            path.unlink()
        if (self.target / manifest.FILE_NAME).exists():
            self._swap(built, made)
        else:
            manifest.write(built, made)
            os.rename(built, self.target)
            sync_folder(self.target.parent)

    def _write_rejected(self, new: Path, to: Path) -> None:
        before = self.target / REJECTED_FILE
        content = before.read_bytes()[: self.rejected_before] if self.rejected_before else b""
        write_atomically(to, content + new.read_bytes())

    def _swap(self, built: Path, made: Manifest) -> None:
        """Replace or extend a store: new files first, then the manifest, then the files nobody names any more."""
        for path in built.iterdir():
            os.rename(path, self.target / path.name)
        sync_folder(self.target)
        manifest.write(self.target, made)
        self._remove_what_nobody_names(made)

    def _remove_what_nobody_names(self, made: Manifest) -> None:
        keep = {chunk.file for chunk in made.chunks}
        if made.names:
            keep.add(made.names.file)
        for path in self.target.glob(f".{manifest.FILE_NAME}.*.tmp"):  # of a process that was killed
            path.unlink()
        for path in [*self.target.glob("chunk-*.arrow"), *self.target.glob("features-*.arrow")]:
            if path.name not in keep:
                path.unlink()
        if not made.rejected:
            (self.target / REJECTED_FILE).unlink(missing_ok=True)

    def _manifest(
        self, ingest: Ingest, plan: AssemblyPlan, info: LabelInfo, chunks: list[ChunkInfo], assembled: list[Assembled]
    ) -> Manifest:
        totals, base = ingest.totals, self.base
        rows = sum((part.statistics for part in assembled), RowStatistics())
        counts = info.counts
        if base:
            old = base.statistics
            rows += RowStatistics(
                old.mean_row_norm * base.rows,
                old.max_row_norm,
                old.max_row_nonzeros,
                old.empty_rows,
                old.rounding_error,
                base.weight_sum,
                old.max_weight,
                old.largest_square,
            )
            chunks = [*base.chunks, *chunks]
            counts = [a + b for a, b in zip(base.labels.counts, info.counts, strict=True)]
        number = sum(chunk.rows for chunk in chunks)
        weighted = any(chunk.starts.weights is not None for chunk in chunks)
        weights = totals.weights.xxh64 if totals.weights else None
        new_sources = [dataclasses.replace(source, weights=weights) for source in totals.sources]
        normalize: Any = "l2" if plan.normalize else None
        return Manifest(
            format=manifest.FORMAT,
            version=manifest.VERSION,
            rows=number,
            features=plan.features,
            nonzeros=sum(chunk.nonzeros for chunk in chunks),
            labels=dataclasses.replace(info, counts=counts),
            layout=plan.layout,
            recipe=dataclasses.replace(
                self.plan.recipe, index_base=plan.index_base, normalize=normalize, values=plan.rounding
            ),
            statistics=Statistics(
                rows.max_norm,
                rows.norm_sum / number,
                rows.max_nonzeros,
                rows.empty,
                rows.rounding_error,
                rows.weight_sum / number,
                rows.max_weight,
                rows.max_weighted_square if weighted else None,
            ),
            shuffle_seed=self.plan.shuffle_seed if not base or base.shuffle_seed is not None else None,
            rejected=totals.rejected + (base.rejected if base else 0),
            chunks=chunks,
            sources=[*(base.sources if base else []), *new_sources],
            written_by=f"ooc-pegasos {__version__}",
        )


def _levels_in_order(bits: Iterable[int]) -> list[float]:
    """The values with these bits from the smallest to the largest."""
    return sorted(np.array(list(bits), np.uint32).view(np.float32).tolist())


def rounding_words(made: Manifest) -> str:
    """What rounding did to the values of a store."""
    error = made.statistics.rounding_error
    above = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING).create_decimal_from_float(error)
    told = f"relative error at most {float(above):.1e}" if error else "none changed by it"
    return f"values rounded to {made.recipe.values}: {told}"
