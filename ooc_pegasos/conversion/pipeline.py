"""Inputs of any size to a store, in two passes and within a memory budget.

First pass (`first_pass`): text is parsed on all cores, and its rows go to buckets on disk: to a random bucket each, or
without a shuffle to the same bucket until it is full. Second pass (`second_pass`): each bucket is read, permuted, coded
and written as chunks. A random bucket for each row and a random order within each bucket are a uniformly random
permutation of all rows. All files are in `STORE.unfinished/`, and a rename publishes the store at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_pegasos import __version__
from ooc_pegasos.config import ConvertConfig
from ooc_pegasos.conversion.compatibility import refuse_contradiction
from ooc_pegasos.conversion.first_pass import Ingest
from ooc_pegasos.conversion.journal import Journal
from ooc_pegasos.conversion.layout import plan_assembly
from ooc_pegasos.conversion.output_check import (
    BESIDE,
    Existing,
    already_there,
    check_output,
    discard,
    discard_left_overs,
    made_from,
)
from ooc_pegasos.conversion.pass_statistics import MOST_BUCKETS, IngestPlan
from ooc_pegasos.conversion.publish import PLAN_FILE, Place, manifest_of, pending
from ooc_pegasos.conversion.second_pass import Assembled, Assembly, AssemblyPlan
from ooc_pegasos.conversion.streams import is_stream
from ooc_pegasos.errors import CorruptFileError, InputError, OocPegasosError, UsageError
from ooc_pegasos.readers import pipes, presets, registry, sources
from ooc_pegasos.readers.base import LARGEST_INDEX, Reader, ReadOptions
from ooc_pegasos.readers.names import expand
from ooc_pegasos.reporting.progress import Progress
from ooc_pegasos.store import manifest, vocabulary
from ooc_pegasos.store.label_rule import refuse_one_side
from ooc_pegasos.store.labels import LabelMap, declared_by, settle
from ooc_pegasos.store.manifest import Manifest, Part, Recipe, SourceInfo, Split, Statistics
from ooc_pegasos.store.store import REJECTED_FILE, Store
from ooc_pegasos.store.vocabulary import Vocabulary
from ooc_pegasos.util import json_checksum, typed_json
from ooc_pegasos.util.files import published_error, read_file, sync_folder, write_atomically, writing_errors
from ooc_pegasos.util.locks import has_lock, locked

if TYPE_CHECKING:
    from ooc_pegasos.aliases import Table

_NOT_IN_PLAN = ("memory", "threads", "block_size")
_SOME_CORES, _WORTH_A_CORE = 8, 24 << 20  # cores that get a bucket each, and the least bytes of rows for that
_OVERESTIMATE = 2  # rows may take half of the bytes expected
_STREAM_SIZE = 4 << 30  # the assumed size of standard input


def convert(
    inputs: str | Path | Sequence[str | Path] | Table,
    output: str | Path,
    config: ConvertConfig | None = None,
    *,
    existing: Existing | None = None,
    progress: Progress | None = None,
) -> Store:
    """Make the store `output` from `inputs`, one name or several, or a table as for `Store.from_arrow`, and open it.

    With the options `test` and `split` some rows are reserved for tests, in another store; see `conversion/split.py`.
    """
    if not isinstance(inputs, str | Path) and is_stream(inputs):
        table: Any = inputs
        return Store.from_arrow(table, output, config, existing)
    names: Any = [inputs] if isinstance(inputs, str | Path) else inputs
    given: list[str] = [os.fspath(one) for one in names]  # str loses NamedPath
    config, existing, progress = config or ConvertConfig(), existing or Existing(), progress or Progress()
    split = _wanted_split(Path(output), config, existing)
    with pipes.kept_in(Path(output).absolute().parent):
        if split is None:
            of_store = given_split(Path(output)) if existing.append else None
            return convert_part(given, Path(output), config, existing, progress, of_store)
        return _convert_both(given, Path(output), config, existing, progress, split)


def _convert_both(
    given: list[str], output: Path, config: ConvertConfig, existing: Existing, progress: Progress, split: Split
) -> Store:
    """Make the store of the rows to train on, and then that of the test rows; an interrupted one is finished."""
    names = registry.find_for(given, config)[0]
    if not all(registry.stamp_of(name).regular for name in names):
        option = "test" if split.rule is None else "split"
        raise UsageError(f"{{{option}}} reads the inputs twice, so they cannot come from a pipe; name files")
    place, missing = manifest.test_path(output), [] if existing.force else pending(output)
    if not existing.force and not (output / manifest.FILE_NAME).exists() and place.exists():
        raise already_there(place)
    if missing and missing != [sources.manifest_name(name) for name in names]:
        problem = f"has no test rows of {missing[0]} and perhaps others, because their conversion was interrupted"
        raise InputError(f"{place}: {problem}; run that conversion again to finish it")
    if missing:
        progress.note(f"an interrupted conversion has added these inputs to {output} already; it is finished now")
    else:
        convert_part(given, output, config, existing, progress, split)
    try:
        for part in (output, place):
            if missing and Place.of(part).unfinished():
                _finish(part, progress)
        store = Store.open(output)
        if missing and not pending(output):
            return store
        appends = not existing.force and manifest.with_test_rows(output, store.manifest) is not None
        if not appends:  # in a coding to which any values can be appended, as rows are split when they come
            config = dataclasses.replace(config, like=os.fspath(output), values=config.values or "float32")
        is_stale = not appends and (place / manifest.FILE_NAME).exists()  # of a store that was replaced
        then = dataclasses.replace(existing, append=appends, force=existing.force or is_stale)
        convert_part(given, place, config, then, progress, dataclasses.replace(split, part="test"))
    except (OocPegasosError, OSError, MemoryError) as error:
        raise published_error(output, error, "run the same command again to finish") from error
    return store


def _finish(target: Path, progress: Progress) -> None:
    """Complete a store whose conversion was interrupted when its manifest was in place."""
    place = Place.of(target)
    with writing_errors(target), locked(place.scratch / "lock", str(target), progress.note):
        place.finish()
        discard(place.scratch)


def _wanted_split(output: Path, config: ConvertConfig, existing: Existing) -> Split | None:
    """Return the split into rows to train on and test rows; for rows that are appended that of the store."""
    wanted = None
    if config.test is not None or config.split is not None:
        wanted = Split("train", config.test or 0.0, config.split)
    if existing.append and (output / manifest.FILE_NAME).exists():
        split = manifest.read(output).split
        known = split if split and split.part == "train" and not split.is_given else None
        if wanted and wanted != known:
            given = f"split={wanted.rule}" if wanted.rule else f"test={wanted.fraction}"
            other = f"split={known.rule}" if known and known.rule else f"test={known.fraction if known else 0}"
            raise UsageError(f"{{{given}}}: the store was made with {{{other}}}; leave it out")
        return known
    return wanted


def given_split(output: Path) -> Split | None:
    """Return the part that a store is of a data set that had test rows of its own, to which no rows are added."""
    split = manifest.read(output).split if (output / manifest.FILE_NAME).exists() else None
    return split if split and split.is_given else None


def convert_part(
    given: list[str],
    output: Path,
    config: ConvertConfig,
    existing: Existing,
    progress: Progress,
    split: Split | None = None,
) -> Store:
    """Make a store of the rows of a part of a split, or of all rows."""
    config.check_memory()
    if config.like and existing.append and not existing.grows:
        raise UsageError("{like}: rows are appended as the store has them; leave it out")
    place = Place.of(output)
    target, scratch = place.target, place.scratch
    with writing_errors(target):
        before = check_output(target, existing, place.published())
        names, kind = registry.find_for(given, config)
        config = dataclasses.replace(config.of_format(kind), weights=_weights_file(config.weights, names))
        is_like = config.like is not None or (existing.append and before is not None)
        config = presets.expanded(config, names, grows=existing.grows, is_like=is_like)
        like = store_like(config)
        may_be_finished = existing.reuse or (existing.resume and not existing.force)
        if may_be_finished and before and not (scratch / PLAN_FILE).exists():
            is_same_part = before.split == split
            if is_same_part and made_from(before, names, config, existing.append, like.manifest if like else None):
                discard_left_overs(scratch, str(target))
                return Store.open(target)
            if not existing.append and not existing.force:
                problem = "exists already, made from other inputs or with other options"
                raise InputError(f"{target}: {problem}; add {{force}} to replace it")
        is_ours = has_lock(scratch / "lock") or (scratch / PLAN_FILE).exists()
        if scratch.is_dir() and any(scratch.iterdir()) and not is_ours:
            raise InputError(f"{scratch}: not made by oocpeg, and in the way; move it elsewhere")
        with locked(scratch / "lock", str(target), progress.note):
            sync_folder(scratch)  # after a power failure the lock identifies the folder as ours
            before = check_output(target, existing, place.published())  # another process may have made the store
            place = dataclasses.replace(place, base=before if existing.append else None)
            return Conversion(place, names, config, existing, progress, like, split).run()


def _weights_file(given: str | None, names: list[str]) -> str | None:
    """Return the file that --weights names, checked to exist and not to be an input."""
    if given is None:
        return None
    found = expand([given])
    if len(found) > 1:
        raise UsageError(
            f"{{weights={given}}}: {len(found)} files match; name one, with the weights of all inputs in order"
        )
    if sources.STDIN in found and sources.STDIN in names:
        raise UsageError("{weights=-}: standard input is the data already; name a file")
    if os.path.realpath(found[0]) in map(os.path.realpath, names):
        raise UsageError(f"{{weights={given}}}: is an input as well; name the file of the weights")
    return found[0]


def store_like(config: ConvertConfig) -> Store | None:
    """Return the store in whose way rows are made, if the options name one and do not contradict it."""
    if config.like is None:
        return None
    like = Store.open(config.like)
    refuse_contradiction(like.manifest, config)
    return like


def other_format(store: str, reader: str, kind: str) -> InputError:
    """Return the error for inputs of another format than those of the store in whose way rows are made."""
    return InputError(f"{store}: made of {reader}, and these inputs are read as {kind}; give inputs of the same kind")


def may_need_survey(config: ConvertConfig, recipe: Recipe) -> bool:
    """True if inputs are read before rows are made, or the first of their rows."""
    by_sample = config.standardize is None and recipe.table is not None
    return by_sample or bool(config.standardize or config.dictionary or config.idf)


class Conversion:
    """A conversion, new or resumed, by the process that holds the lock on the output."""

    def __init__(
        self,
        place: Place,
        names: list[str],
        config: ConvertConfig,
        existing: Existing,
        progress: Progress,
        like: Store | None = None,
        split: Split | None = None,
    ) -> None:
        self.split = split
        self.place = place
        self.target, self.scratch, self.base = place.target, place.scratch, place.base
        self.names = names
        self.config = config
        self.existing = existing
        self.progress = progress
        self.like = like

    @property
    def pattern(self) -> tuple[Path, Manifest] | None:
        """The store, with its path, in whose way rows are made: that to which they are appended, or another."""
        if self.base:
            return self.target, self.base
        return (self.like.path, self.like.manifest) if self.like else None

    @property
    def _steps(self) -> int:
        """The number of steps for the rows of this part, and of the test rows after those to train on."""
        return 4 if self.split and self.split.part == "train" else 2

    def run(self) -> Store:
        """Convert, and open the store. The scratch folder is kept only if the conversion can be resumed."""
        keep = self.place.published() or (self.existing.resume and (self.scratch / PLAN_FILE).exists())
        is_started = False
        try:
            if self.base:
                refuse_contradiction(Store.open(self.target).manifest, self.config)
            self._start()
            is_started = True
            if not self.place.published():
                self._convert()
            left = self.place.finish()
            store = Store.open(self.target)
        except (InputError, CorruptFileError, UsageError, OSError, MemoryError) as error:
            if is_started and self.place.published():
                can_finish = self.can_be_read_again
                advice = "run the same command again to finish" if can_finish else "do not convert its rows again"
                raise published_error(self.target, error, advice) from error
            if is_started or not keep:
                discard(self.scratch)
            raise
        except KeyboardInterrupt:
            if not (self.scratch / PLAN_FILE).exists():
                discard(self.scratch)
            raise
        for path in [*left, *discard(self.scratch)]:
            note = f"{path}: could not be removed; the store is complete, and the next conversion tries again"
            self.progress.note(note)
        return store

    def _start(self) -> None:
        """Resume the conversion that is recorded in the scratch folder if that is this one, else begin anew."""
        names, config, progress, place = self.names, self.config, self.progress, self.place
        self.declared = declared_by(self.pattern[1].labels) if self.pattern else config.declared_labels()
        self.recorded_names = [sources.manifest_name(name) for name in names]
        self.stamps = [registry.stamp_of(name) for name in names]
        self.beside = {name: file for name in BESIDE if (file := getattr(config, name)) is not None}
        self.beside_stamps = {name: sources.stamp_of(file) for name, file in self.beside.items()}
        self.plan_path = self.scratch / PLAN_FILE
        published = place.published()  # by an interrupted conversion
        recorded = self._recorded()
        if recorded and (self.existing.resume or (published and self._is_wanted(recorded))):
            self.plan = self._resumed_plan(recorded)
            if published and not self.existing.resume:
                progress.note("an interrupted conversion has added these inputs already; nothing was added")
        else:
            if published:
                if not (self.base or self.existing.force):
                    raise already_there(self.target)
                place.finish()
            elif recorded:
                progress.note("an unfinished conversion is discarded; --resume would have continued it")
            self._start_over()
        if self.base and self.base.weighted and config.weights is None:
            what = f"the rows of {self.target} have weights, and no --weights was given"
            progress.note(f"the new rows count 1 each: {what}")

    @property
    def can_be_read_again(self) -> bool:
        """True if all inputs are files, not pipes."""
        return all(stamp.regular for stamp in [*self.stamps, *self.beside_stamps.values()])

    def _request(self) -> dict[str, Any]:
        """Return the inputs and settings that a resumed conversion must share."""
        settings = dataclasses.asdict(self.config)
        request = {name: value for name, value in settings.items() if name not in _NOT_IN_PLAN}
        request["inputs"] = [
            [name, *dataclasses.astuple(stamp)] for name, stamp in zip(self.recorded_names, self.stamps, strict=True)
        ]
        for name, stamp in self.beside_stamps.items():
            request[name] = [sources.manifest_name(self.beside[name]), *dataclasses.astuple(stamp)]
        request["append_to"] = manifest.encode(self.base).decode() if self.base else None
        request["like"] = _request_of(self.like.manifest) if self.like else None
        request["written_by"] = __version__
        normal: dict[str, Any] = json.loads(json.dumps(request))
        return normal

    def _differences(self, recorded: dict[str, Any]) -> list[str]:
        """Return the names of the settings in which the recorded conversion differs from this one."""
        wanted = self._request()
        if self.place.published():
            wanted["append_to"] = recorded["request"]["append_to"]
        return [name for name, value in wanted.items() if recorded["request"].get(name) != value]

    def _recorded(self) -> dict[str, Any] | None:
        """Return the recorded conversion in the scratch folder; None if there is none, or it is damaged."""
        try:
            recorded = json_checksum.decode(read_file(self.plan_path))
            typed_json.load(IngestPlan, recorded["ingest"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, RecursionError):
            self.progress.note(f"{self.plan_path} is damaged; the conversion begins anew")
            return None
        return recorded

    def _is_wanted(self, recorded: dict[str, Any]) -> bool:
        """True if the recorded conversion is this one."""
        alike = (recorded["request"]["append_to"] is None) == (self.base is None)
        return alike and self.can_be_read_again and not self._differences(recorded)

    def _resumed_plan(self, recorded: dict[str, Any]) -> IngestPlan:
        """Return the plan of the recorded conversion. Raises UsageError if it differs from this one."""
        if not self.can_be_read_again:
            raise UsageError("{resume}: standard input and pipes cannot be read again; start over without {resume}")
        for name in self._differences(recorded):
            what = f"the {name} were" if name in ("inputs", *BESIDE) else f"'{name.replace('_', '-')}' was"
            raise UsageError(f"{{resume}}: {what} different when the conversion began; start over without {{resume}}")
        self.rejected_before = recorded["rejected_before"]
        (self.scratch / "store").mkdir(exist_ok=True)  # a power failure may have undone its creation
        plan = typed_json.load(IngestPlan, recorded["ingest"])
        # the same files, by their current names
        return dataclasses.replace(plan, names=self.names, weights=self.config.weights, labels=self.config.labels)

    def _start_over(self) -> None:
        self.plan_path.unlink(missing_ok=True)  # first, so that the rest is not resumed
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
            write_atomically(self.plan_path, json_checksum.encode(recorded))

    def _new_plan(self) -> IngestPlan:
        config, kind = self.config, self.config.format
        recipe, known = self._recipe()
        if not registry.can_be_mixed(recipe.reader, kind):
            raise other_format(str(self.pattern[0] if self.pattern else self.target), recipe.reader, kind)
        text = self.declared.wants_text()
        if text is None:
            inputs = zip(self.names, self.stamps, strict=True)
            first = [name for name, stamp in inputs if stamp.regular or isinstance(name, pipes.PipePath)][:1]
            text = bool(first) and registry.labels_are_text(first, recipe, config)
        detects_base = not self.pattern and registry.format_of(kind).has_index_base
        base = {"0": 0, "1": 1}.get(config.index_base) if detects_base else recipe.index_base
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
            self.split,
        )

    def _recipe(self) -> tuple[Recipe, Vocabulary | None]:
        """Return the recipe, and the vocabulary that it needs, if any."""
        if self.pattern:
            registry.check_options(self.config, self.names)
            path, made = self.pattern
            return made.recipe, vocabulary.of_store(path, made) if made.recipe.needs_vocabulary else None
        config = registry.with_most_bits(self.config) if self.existing.grows else self.config
        recipe = registry.new_recipe(config, self.names, self.progress.note)
        if not may_need_survey(self.config, recipe):
            return recipe, None
        from ooc_pegasos.readers.survey import Survey, steps_of, with_findings

        size = sum(stamp.size for stamp in self.stamps)
        progress = self.progress
        kept = [name for name in self.names if isinstance(name, pipes.PipePath)]
        if kept and (config.standardize or config.dictionary or config.idf):
            what = f"{sources.display_name(kept[0])} is copied to a temporary file beside the store"
            progress.note(f"{what}, because it is read twice")
        progress.expect(steps_of(recipe, self.config) + self._steps)
        return with_findings(
            recipe,
            Survey(self.names, self.config, progress.note, lambda what: progress.begin(what, size), progress.advance),
        )

    def _expected_bytes(self, recipe: Recipe) -> float:
        """Return the bytes, about, that all rows take between the passes."""
        expected = 0.0
        for name, stamp in zip(self.names, self.stamps, strict=True):
            size = stamp.size if stamp.regular else _STREAM_SIZE
            expected += registry.bytes_of_rows(name, size, recipe)
        return expected

    def _bucket_number(self, recipe: Recipe) -> int:
        """Return the number of buckets: each fits the memory budget, and large inputs keep several cores busy."""
        expected = self._expected_bytes(recipe)
        least = min(_SOME_CORES, expected // _WORTH_A_CORE)
        return int(min(MOST_BUCKETS, max(1 + expected // self.config.bucket_limit(), least)))

    def _convert(self) -> None:
        """Run both passes and publish the store."""
        with (
            closing(Journal(self.scratch / "read.journal")) as read_journal,
            closing(Journal(self.scratch / "write.journal")) as write_journal,
        ):
            config = self.config
            assembled_before = {event["bucket"] for _end, event in write_journal.events()}
            known = vocabulary.read(self.scratch, self.plan.vocabulary) if self.plan.vocabulary else None
            room = config.room_for_rows()
            if self._expected_bytes(self.plan.recipe) > _OVERESTIMATE * room:
                room = 0
            ingest = Ingest(
                self.plan, self.declared, self.scratch, read_journal, vocabulary.idf_of(self.plan.recipe, known), room
            )
            read_journal.truncate(ingest.replay(read_journal.events(), assembled_before))
            with ingest.spill.kept_if_interrupted():
                self._run_passes(ingest, write_journal, known)
        self.progress.end()

    def _run_passes(self, ingest: Ingest, write_journal: Journal, known: Vocabulary | None) -> None:
        """Read the rest of the rows, write the chunks, and publish them."""
        config = self.config
        rows = "test rows" if self.split and self.split.part == "test" else "rows"
        self.progress.expect(self._steps)
        self.progress.begin(f"reading {rows}", sum(stamp.size for stamp in self.stamps))
        options = ReadOptions(
            self.plan.block_size,
            text_labels=self.plan.text_labels,
            smallest_index=self.plan.smallest_index,
            largest_index=self.plan.largest_index,
            stop_at_bad=not self.plan.skip_bad,
            feature_names=self.plan.feature_names,
            labels=self.plan.labels,
            vocabulary=known,
            memory=config.memory,
            split=self.plan.split.rule if self.plan.split else None,
        )
        reader = registry.reader_for(self.names, self.plan.recipe, options)
        features = self._columns(reader)
        pipes.begin_last_pass()
        ingest.run(reader, config.reading_threads(), self.progress.advance, config.memory)
        if self.split:
            self._check_part(ingest)
        if ingest.totals.rows == 0 and ingest.totals.left_out:
            self._publish_nothing(ingest)
            return
        if ingest.totals.rows == 0:
            rejected = f"{ingest.totals.rejected:,} were rejected"
            raise InputError(f"{sources.display_name(self.names[0])}: no row to keep, {rejected}; check the file")
        labels = settle(ingest.totals.collector, self.declared)
        if labels.rule and not self.pattern and (words := ingest.totals.collector.words_of(labels.rule)):
            self.progress.note(words)
        pattern = self.pattern and self.pattern[1]
        plan = plan_assembly(ingest, labels, features, config, self.place, pattern)
        labels = dataclasses.replace(labels, kind=plan.layout.labels)
        assembly = Assembly(plan, labels, ingest.spill, self.scratch / "store", write_journal, ingest.idf)
        assembly.replay(write_journal.events(), self.place.first_chunk, self.target)
        self.progress.begin(
            "writing chunks" if rows == "rows" else f"writing {rows}", sum(ingest.totals.sizes.values())
        )
        largest = min(max(ingest.totals.sizes.values()), 2 * config.bucket_limit())
        room = largest + 2 * min(config.chunk_size, largest)
        threads = max(1, min(config.workers, (config.memory - ingest.spill.held) // room))
        assembled = assembly.run(ingest.buckets(), threads, self.progress.advance)
        self.publish(ingest, plan, labels, assembled)

    def _check_part(self, ingest: Ingest) -> None:
        """Refuse a new store whose rows are all in one part; what is appended may be."""
        totals, split = ingest.totals, self.split
        if split is None or split.is_given or (totals.rows and totals.left_out):
            return
        if not self.base and (totals.rows or totals.left_out):
            every = bool(totals.rows) == (split.part == "test")
            given = f"split={split.rule}" if split.rule else f"test={split.fraction}"
            problem = f"{{{given}}}: {'every row' if every else 'no row'} is for tests"
            raise InputError(
                f"{problem}, of {totals.rows + totals.left_out:,}; choose another, so that both parts have rows"
            )
        if not totals.rows and totals.left_out:
            self.progress.note(
                f"{self.target}: no row of these inputs is for {'tests' if split.part == 'test' else 'training'}"
            )

    def _publish_nothing(self, ingest: Ingest) -> None:
        """Append sources of which no row is in this part, so that both parts name the same ones."""
        assert self.base is not None
        made_of, nothing = self._made_of(ingest), Statistics(0.0, 0.0, 0, 0, 0.0)
        counts = [0] * len(self.base.labels.counts)
        made = dataclasses.replace(
            self.base,
            rows=0,
            nonzeros=0,
            labels=dataclasses.replace(self.base.labels, counts=counts),
            rejected=ingest.totals.rejected,
            chunks=[],
            sources=made_of,
            parts=[Part(0, 0, len(made_of), nothing, ingest.totals.rejected)],
        )
        self.place.publish(made, Vocabulary(), self._rejected(ingest))

    def _columns(self, reader: Reader) -> int:
        """Return the number of columns that the inputs declare, with empty ones; 0 if they declare none."""
        declared = getattr(reader, "features", None)
        if declared is None or self.plan.recipe.features is not None:
            return 0
        columns: int = declared()
        if columns > LARGEST_INDEX + 1:
            problem = f"a matrix of {columns:,} columns is too wide; limit the columns with {{features}}"
            raise InputError(f"{sources.display_name(self.names[0])}: {problem}")
        return columns

    def publish(self, ingest: Ingest, plan: AssemblyPlan, labels: LabelMap, assembled: list[Assembled]) -> None:
        """Give the chunks their final names and publish the store."""
        chunks = self.place.named(assembled)
        made = manifest_of(ingest, plan, labels.info, chunks, assembled, self._made_of(ingest))
        if labels.rule and not self.pattern and ingest.totals.collector.many:
            refuse_one_side(labels.rule, made.labels.counts)
        known = Vocabulary()
        if self.plan.vocabulary:
            known = vocabulary.read(self.scratch, self.plan.vocabulary)
        elif self.base and self.base.vocabulary:
            known = vocabulary.of_store(self.target, self.base)
        known = known.named({place: name for place, name in ingest.names.items() if place not in known.known_names()})
        self.place.publish(made, known, self._rejected(ingest))

    def _rejected(self, ingest: Ingest) -> bytes:
        """Return the list of rejected rows, those of the store that is appended to first."""
        if not ingest.totals.rejected:
            return b""
        before = self.target / REJECTED_FILE
        content = before.read_bytes()[: self.rejected_before] if self.rejected_before else b""
        return content + ingest.rejected_path.read_bytes()

    def _made_of(self, ingest: Ingest) -> list[SourceInfo]:
        totals = ingest.totals
        weights = totals.weights.xxh64 if totals.weights else None
        labels = self._labels_hash()
        inputs = zip(totals.sources, self.names, self.recorded_names, self.stamps, strict=True)
        return [
            dataclasses.replace(
                source, name=recorded, weights=weights, labels=labels, modified_ns=_modified(name, stamp)
            )
            for source, name, recorded, stamp in inputs
        ]

    def _labels_hash(self) -> str | None:
        """Return the checksum of the file of labels, None if it cannot be read again."""
        before = self.beside_stamps.get("labels")
        if before is None or not before.regular:
            return None
        file = self.beside["labels"]
        digest = sources.hash_of(file)
        if sources.stamp_of(file) != before:
            problem = "changed during the conversion; convert again when nobody writes to it"
            raise InputError(f"{sources.display_name(file)}: {problem}")
        return digest


def _request_of(like: Manifest) -> list[Any]:
    """Return the parts of a store that determine rows made like its rows, whatever rows are appended."""
    labels, known = like.labels, like.vocabulary
    classes = [labels.task, labels.classes, labels.rest, labels.text, labels.positive]
    return [typed_json.dump(like.recipe), classes, known.xxh64 if known else None]


def _modified(name: str, stamp: sources.Stamp) -> int | None:
    """Return the time of the last change of an input; None for staged files and folders."""
    is_file = stamp.regular and not os.path.isdir(name)
    return stamp.modified_ns if is_file and not isinstance(name, sources.NamedPath) else None
