"""Inputs of any size to a store, in two passes and within a memory budget.

First pass (`ingest`): text is parsed on all cores and its rows go to buckets on disk; to shuffle, each
row to a random bucket, else to the same one until it is full. Second pass (`assemble`): each bucket is
read back, permuted, coded and written as chunks. A random bucket for each row followed by a random
order within each bucket is a uniformly random permutation of all rows. Everything happens in
`STORE.unfinished/`, and the store appears by a rename at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos import __version__, checked, manifest, typed, vocabulary
from ooc_pegasos.agreement import comes_of, refuse_contradiction
from ooc_pegasos.assemble import Assembled, Assembly, AssemblyPlan, RowStatistics, choose_coding, coded_sizes, named
from ooc_pegasos.block import LEVELS
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.errors import DamagedError, InputError, OocPegasosError, UsageError
from ooc_pegasos.files import locked, read_file, sync_folder, write_atomically, writing_errors
from ooc_pegasos.growth import joined, remove_strays
from ooc_pegasos.ingest import Ingest, IngestPlan
from ooc_pegasos.journal import Journal
from ooc_pegasos.labels import Declared, LabelMap, settle
from ooc_pegasos.manifest import ChunkInfo, LabelInfo, Layout, Manifest, Recipe, Statistics
from ooc_pegasos.progress import Progress
from ooc_pegasos.readers import opening, sources
from ooc_pegasos.readers.reading import LARGEST_INDEX, Reader
from ooc_pegasos.store import REJECTED_FILE, Store
from ooc_pegasos.vocabulary import Vocabulary

_NOT_IN_PLAN = ("memory", "threads", "block_size")
_SOME_CORES, _WORTH_A_CORE = 8, 24 << 20  # buckets, and bytes of rows in each
_PLAN = "plan.json"
_BESIDE = ("weights", "labels")
"""Settings that name a file with something for each row of the inputs."""
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
    """Make the store `output` from `inputs` and open it."""
    config = config or ConvertConfig()
    existing = existing or Existing()
    target = Path(output)
    scratch = Path(os.path.abspath(target) + ".unfinished")
    with writing_errors(target):
        before = check_output(target, existing)
        names, kind = opening.find(inputs, config.format)
        config = dataclasses.replace(config, weights=_weights_file(config.weights, names), format=kind)
        if existing.resume and before and not existing.force and not (scratch / _PLAN).exists():
            if _made_from(before, names, config, existing.append):
                _discard_left_overs(scratch, str(target))
                return Store.open(target)
            if not existing.append:
                problem = "exists already, made from other inputs or with other options"
                raise InputError(f"{target}: {problem}; add --force to replace it")
        if scratch.is_dir() and any(scratch.iterdir()) and not (scratch / "lock").exists():
            raise InputError(f"{scratch}: not made by oocpeg, and in the way; move it elsewhere")
        with locked(scratch / "lock", str(target)):
            before = check_output(target, existing)  # another process may have been faster
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
            refuse_contradiction(Store.open(target).manifest, config)
        job = _Job(target, scratch, names, config, base, existing, progress)
        keep = False
        job.run()
    except (InputError, DamagedError, UsageError, OSError, MemoryError):
        if not keep:
            _discard(scratch)
        raise
    except KeyboardInterrupt:
        if not (scratch / _PLAN).exists():
            _discard(scratch)
        raise
    _discard(scratch)


def _discard(scratch: Path) -> None:
    """Take the scratch folder away, and what is left of one that was being taken away by a process that was killed."""
    gone = scratch.with_name(scratch.name + "~")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rename(scratch, gone)  # so that no half of it can be taken for something to resume
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(gone, ignore_errors=True)


def _discard_left_overs(scratch: Path, what: str) -> None:
    """Take away what a process has left that was killed when all was done, or before it had begun."""
    shutil.rmtree(scratch.with_name(scratch.name + "~"), ignore_errors=True)
    if (scratch / "lock").exists():
        with locked(scratch / "lock", what):
            _discard(scratch)
    with contextlib.suppress(OSError):
        scratch.rmdir()


def check_output(target: Path, existing: Existing) -> Manifest | None:
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
    if not append and store.shuffle_seed != (config.seed if config.shuffle else None):
        return False
    if not append and not comes_of(store.recipe, opening.new_recipe(config, names, lambda _remark: None), config):
        return False
    if config.values == "float32" and store.layout.values != "float32":
        return False
    made_from = [(source.name, source.size, source.xxh64) for source in store.sources[-len(names) :]]
    if [(sources.spoken(name), opening.stamp_of(name).size) for name in names] != [known[:2] for known in made_from]:
        return False
    for setting in _BESIDE:
        file, digest = getattr(config, setting), None
        if file is not None:
            digest = sources.hash_of(file) if sources.stamp_of(file).regular else "?"
        if any(getattr(source, setting) != digest for source in store.sources[-len(names) :]):
            return False
    return [opening.hash_of(name) for name in names] == [xxh64 for _name, _size, xxh64 in made_from]


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
        self.stamps = [opening.stamp_of(name) for name in names]
        self.beside = {name: file for name in _BESIDE if (file := getattr(config, name)) is not None}
        self.beside_stamps = {name: sources.stamp_of(file) for name, file in self.beside.items()}
        self.plan_path = scratch / _PLAN
        published = self.published()
        if published:  # and the process was killed before it had tidied up
            self._finish_publishing(manifest.read(target))
        recorded = self._recorded()
        if recorded and (existing.resume or (published and self._is_wanted(recorded))):
            self.plan = self._taken_up(recorded)
            if published and not existing.resume:
                progress.note("these inputs were in the store when the last conversion was killed; nothing was added")
        else:
            if recorded and not published:
                progress.note("an unfinished conversion is discarded; --resume would have continued it")
            self._start_over()
        if base and base.weighted and config.weights is None:
            progress.note(f"the new rows count 1 each: the rows of {target} have weights, and no --weights was given")

    @property
    def can_be_read_again(self) -> bool:
        """Whether what is read are files, not pipes."""
        return all(stamp.regular for stamp in [*self.stamps, *self.beside_stamps.values()])

    def _request(self) -> dict[str, Any]:
        """What must be the same for a conversion to be taken up again."""
        settings = dataclasses.asdict(self.config)
        request = {name: value for name, value in settings.items() if name not in _NOT_IN_PLAN}
        request["inputs"] = [
            [name, *dataclasses.astuple(stamp)] for name, stamp in zip(self.names, self.stamps, strict=True)
        ]
        for name, stamp in self.beside_stamps.items():
            request[name] = [self.beside[name], *dataclasses.astuple(stamp)]
        request["append_to"] = manifest.encode(self.base).decode() if self.base else None
        request["written_by"] = __version__
        normal: dict[str, Any] = json.loads(json.dumps(request))
        return normal

    def _differences(self, recorded: dict[str, Any]) -> list[str]:
        """What the conversion that was begun is not as this one."""
        wanted = self._request()
        if self.published():
            wanted["append_to"] = recorded["request"]["append_to"]
        return [name for name, value in wanted.items() if recorded["request"].get(name) != value]

    def _recorded(self) -> dict[str, Any] | None:
        """What stands in the scratch folder of a conversion that was begun, if there was one and it can be read."""
        try:
            recorded = checked.decode(read_file(self.plan_path))
            typed.load(IngestPlan, recorded["ingest"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, RecursionError):
            self.progress.note(f"{self.plan_path} is damaged: all is read again")
            return None
        return recorded

    def _is_wanted(self, recorded: dict[str, Any]) -> bool:
        """Whether the conversion that was begun is this one."""
        alike = (recorded["request"]["append_to"] is None) == (self.base is None)
        return alike and self.can_be_read_again and not self._differences(recorded)

    def _taken_up(self, recorded: dict[str, Any]) -> IngestPlan:
        """The plan of the conversion that was begun, if it is this one."""
        if not self.can_be_read_again:
            raise UsageError("--resume: standard input and pipes cannot be read again; start over without --resume")
        for name in self._differences(recorded):
            what = f"the {name} were" if name in ("inputs", *_BESIDE) else f"'{name.replace('_', '-')}' was"
            raise UsageError(f"--resume: {what} different when the conversion began; start over without --resume")
        self.rejected_before = recorded["rejected_before"]
        return typed.load(IngestPlan, recorded["ingest"])

    def _start_over(self) -> None:
        self.plan_path.unlink(missing_ok=True)  # first: without it nothing of the rest is taken up again
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
            write_atomically(self.plan_path, checked.encode(recorded))

    def _new_plan(self) -> IngestPlan:
        config, kind = self.config, self.config.format
        recipe, known = self._recipe()
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
            vocabulary.write(self.scratch, known) if known else None,
        )

    def _recipe(self) -> tuple[Recipe, Vocabulary | None]:
        """How rows are made, and the vocabulary that this needs, if any."""
        if self.base:
            opening.refuse_unsuited(self.config, self.names)
            recipe = self.base.recipe
            return recipe, vocabulary.of_store(self.target, self.base) if recipe.needs_vocabulary else None
        recipe = opening.new_recipe(self.config, self.names, self.progress.note)
        if not (self.config.standardize or self.config.dictionary or self.config.idf):
            return recipe, None
        from ooc_pegasos.readers.survey import Survey, surveyed

        size = sum(stamp.size for stamp in self.stamps)
        progress = self.progress
        return surveyed(
            recipe,
            Survey(self.names, self.config, progress.note, lambda what: progress.begin(what, size), progress.advance),
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
        intended = self.scratch / "manifest.json"
        current = self.target / manifest.FILE_NAME
        return intended.exists() and current.exists() and intended.read_bytes() == current.read_bytes()

    def run(self) -> None:
        """Both passes, then publish."""
        if self.published():
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
            vocabulary=vocabulary.read(self.scratch, self.plan.vocabulary) if self.plan.vocabulary else None,
        )
        features = self._columns(reader)
        ingest.run(reader, config.reading_threads(), self.progress.advance)
        if ingest.totals.rows == 0:
            rejected = f"{ingest.totals.rejected:,} were rejected"
            raise InputError(f"{sources.spoken(self.names[0])}: no row to keep, {rejected}; check the file")
        labels = settle(ingest.totals.collector, self.declared)
        plan = self._assembly_plan(ingest, labels, features)
        labels = dataclasses.replace(labels, kind=plan.layout.labels)
        assembly = Assembly(plan, labels, ingest.spill, self.scratch / "store", write_journal)
        assembly.replay(write_journal.events(), self._first_chunk, self.target)
        self.progress.begin("writing", sum(ingest.totals.sizes.values()))
        room = 2 * config.bucket_limit() + 2 * min(config.chunk_size, 2 * config.bucket_limit())
        threads = max(1, min(config.workers, config.memory // room))
        assembled = assembly.run(ingest.buckets(), threads, self.progress.advance)
        self._publish(ingest, plan, labels, assembled)

    def _columns(self, reader: Reader) -> int:
        """How many columns the inputs say that they have, empty ones included; 0 if they do not."""
        told = getattr(reader, "features", None)
        if told is None or self.plan.recipe.features is not None:
            return 0
        columns: int = told()
        if columns > LARGEST_INDEX + 1:
            problem = f"a matrix of {columns:,} columns is too wide; say with --features how many of them count"
            raise InputError(f"{sources.spoken(self.names[0])}: {problem}")
        return columns

    def _assembly_plan(self, ingest: Ingest, labels: LabelMap, features: int) -> AssemblyPlan:
        totals, config = ingest.totals, self.config
        index_base = self._index_base(totals.smallest)
        features = max(features, totals.largest - index_base + 1, 0)
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
            len(totals.ids) > 1,
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

    @property
    def _first_chunk(self) -> int:
        """The number of the first new one: above all that there are, of which the first may have expired."""
        return 1 + max((int(chunk.file.split("-")[1]) for chunk in self.base.chunks), default=-1) if self.base else 0

    def _publish(self, ingest: Ingest, plan: AssemblyPlan, labels: LabelMap, assembled: list[Assembled]) -> None:
        """Give the chunks their names and put the store in place by one rename."""
        built = self.scratch / "store"
        for path in built.glob(".*.tmp"):  # of a process that was killed
            path.unlink()
        chunks: list[ChunkInfo] = []
        for chunk in (chunk for part in assembled for chunk in part.chunks):
            chunks.append(named(self._first_chunk + len(chunks), chunk))
            for old, new in zip(chunk.files, chunks[-1].files, strict=True):
                if (built / old).exists():
                    os.rename(built / old, built / new)
        made = self._manifest(ingest, plan, labels.info, chunks, assembled)
        if self.base:
            made = joined(self.base, made)
        known = Vocabulary()
        if self.plan.vocabulary:
            known = vocabulary.read(self.scratch, self.plan.vocabulary)
        elif self.base and self.base.vocabulary:
            known = vocabulary.of_store(self.target, self.base)
        known = known.named({place: name for place, name in ingest.names.items() if place not in known.known_names()})
        if len(known):
            made = dataclasses.replace(made, vocabulary=vocabulary.write(built, known))
        if ingest.totals.rejected:
            self._write_rejected(ingest.rejected_path, built / REJECTED_FILE)
        content = manifest.encode(made)
        write_atomically(self.scratch / "manifest.json", content)
        if (self.target / manifest.FILE_NAME).exists():
            self._swap(built, made)
        else:
            write_atomically(built / manifest.FILE_NAME, content)
            os.rename(built, self.target)
            sync_folder(self.target.parent)

    def _write_rejected(self, new: Path, to: Path) -> None:
        before = self.target / REJECTED_FILE
        content = before.read_bytes()[: self.rejected_before] if self.rejected_before else b""
        write_atomically(to, content + new.read_bytes())

    def _swap(self, built: Path, made: Manifest) -> None:
        """Replace or extend a store: new files first, then the manifest, then what nobody names any more."""
        for path in built.iterdir():
            if path.name != REJECTED_FILE:
                os.rename(path, self.target / path.name)
        sync_folder(self.target)
        manifest.write(self.target, made)
        self._finish_publishing(made)

    def _finish_publishing(self, made: Manifest) -> None:
        """Bring the rest of a store in line with the manifest that is in place."""
        listing = self.scratch / "store" / REJECTED_FILE
        if made.rejected and listing.exists():
            os.rename(listing, self.target / REJECTED_FILE)
            sync_folder(self.target)
        remove_strays(self.target, made)
        if not made.rejected:
            (self.target / REJECTED_FILE).unlink(missing_ok=True)

    def _labels_hash(self) -> str | None:
        """Of the file of labels, if it can be read once more."""
        before = self.beside_stamps.get("labels")
        if before is None or not before.regular:
            return None
        file = self.beside["labels"]
        digest = sources.hash_of(file)
        if sources.stamp_of(file) != before:
            problem = "changed during the conversion; convert again when nobody writes to it"
            raise InputError(f"{sources.spoken(file)}: {problem}")
        return digest

    def _manifest(
        self, ingest: Ingest, plan: AssemblyPlan, info: LabelInfo, chunks: list[ChunkInfo], assembled: list[Assembled]
    ) -> Manifest:
        """Of the new rows alone."""
        totals = ingest.totals
        rows = sum((part.statistics for part in assembled), RowStatistics())
        number = sum(chunk.rows for chunk in chunks)
        weighted = any(chunk.starts.weights is not None for chunk in chunks)
        weights = totals.weights.xxh64 if totals.weights else None
        labels = self._labels_hash()
        made_of = [
            dataclasses.replace(source, weights=weights, labels=labels, modified_ns=_modified(name, stamp))
            for source, name, stamp in zip(totals.sources, self.names, self.stamps, strict=True)
        ]
        normalize: Any = "l2" if plan.normalize else None
        return Manifest(
            format=manifest.FORMAT,
            version=manifest.VERSION,
            rows=number,
            features=plan.features,
            nonzeros=sum(chunk.nonzeros for chunk in chunks),
            labels=info,
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
            shuffle_seed=self.plan.shuffle_seed,
            rejected=totals.rejected,
            chunks=chunks,
            sources=made_of,
            written_by=f"ooc-pegasos {__version__}",
        )


def _modified(name: str, stamp: sources.Stamp) -> int | None:
    """When a file was last changed, where that means something: not of a piece that was written for the occasion."""
    is_file = stamp.regular and not os.path.isdir(name)
    return stamp.modified_ns if is_file and not isinstance(name, sources.Called) else None


def _levels_in_order(bits: Iterable[int]) -> list[float]:
    """The values with these bits from the smallest to the largest."""
    return sorted(np.array(list(bits), np.uint32).view(np.float32).tolist())
