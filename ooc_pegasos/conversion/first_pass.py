"""First pass of a conversion: parse the inputs, write rows to buckets on disk, and collect statistics."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooc_pegasos.compiled.rows import values as kernels
from ooc_pegasos.compiled.rows.coding import random_buckets
from ooc_pegasos.compiled.rows.counts import counts_of
from ooc_pegasos.compiled.rows.values import ROUNDINGS
from ooc_pegasos.conversion.buckets import Scattered, Spill, identify, scatter, weigh
from ooc_pegasos.conversion.journal import Journal
from ooc_pegasos.conversion.pass_statistics import IngestPlan, Totals
from ooc_pegasos.conversion.split import chosen_rows, rows_of_part
from ooc_pegasos.declared_labels import Declared
from ooc_pegasos.errors import InputError, with_flags
from ooc_pegasos.readers.base import DESCRIBED_BAD_ROWS, BadRow, ParsedBlock, Reader, memory_of, row_location
from ooc_pegasos.readers.sources import LongLineError, display_name
from ooc_pegasos.readers.weights import WeightsReader
from ooc_pegasos.store.csr_block import LEVELS, NO_LEVELS, OVERFLOWS, CsrBlock, read_only
from ooc_pegasos.store.labels import Distinct, LabelCollector, allowed_keys, distinct_of
from ooc_pegasos.util.files import cut_file, open_in_place
from ooc_pegasos.util.short_names import listed, shortened
from ooc_pegasos.util.thread_map import ordered_map


@dataclass
class Prepared:
    """A parsed block, sorted by bucket, with its statistics."""

    parsed: ParsedBlock
    scattered: Scattered
    labels: Distinct
    levels: list[int] | None
    counts: list[int] | None
    buckets: np.ndarray
    left_out: int = 0
    """Number of rows of the other part of a split."""


class Ingest:
    """The first pass, from the last event of the journal to the end of the last source."""

    def __init__(
        self,
        plan: IngestPlan,
        declared: Declared,
        folder: Path,
        journal: Journal,
        idf: np.ndarray = NO_LEVELS,
        room: int = 0,
    ) -> None:
        """`room` is the bytes of rows that are kept in memory unless an interrupted conversion is resumed."""
        self.plan = plan
        self.idf = read_only(idf)
        """The idf of each feature; empty without tf-idf."""
        self.spill = Spill(folder, room)
        self.totals = Totals(LabelCollector(plan.text_labels))
        self._journal = journal
        self._declared = declared
        self._allowed = allowed_keys(declared, plan.text_labels)
        self._allowed_keys = np.array(sorted(self._allowed or ()), np.uint64)
        self._rejected_path = folder / "rejected.jsonl"
        self._named_path = folder / "features.jsonl"
        self._weights: WeightsReader | None = None
        self._unit = "line"
        self._named: Callable[[dict[int, str]], None] | None = None
        self.names: dict[int, str] = {}
        """Names of hashed features, up to the number requested."""

    @property
    def rejected_path(self) -> Path:
        """The file that lists rejected rows."""
        return self._rejected_path

    def replay(self, events: Iterable[tuple[int, dict[str, Any]]], assembled: Collection[int]) -> int:
        """Restore the state after the last event whose rows are all on disk, in buckets or in chunks.

        Returns the size of the journal up to that event.
        """
        whole: dict[int, int] = {}
        size = 0
        for end, event in events:
            if not (self._is_whole(event, whole, assembled) and self._lists_are_whole(event)):
                break
            self.totals.apply(event)
            size = end
        for bucket in {*self.totals.sizes, *whole}.difference(assembled):
            self.spill.truncate(bucket, self.totals.sizes.get(bucket, 0))
        for path in self.spill.folder.glob("bucket-*.rows"):
            if int(path.stem.removeprefix("bucket-")) not in self.totals.sizes:
                path.unlink()
        for path, length in (
            (self._rejected_path, self.totals.rejected_bytes),
            (self._named_path, self.totals.named_bytes),
        ):
            if path.exists():
                cut_file(path, length)
        if size:
            self.spill.write_out()
        return size

    def _is_whole(self, event: dict[str, Any], whole: dict[int, int], assembled: Collection[int]) -> bool:
        """True if the rows of an event are in the buckets, verified by checksums."""
        for bucket, (grown, _counts) in enumerate(event.get("buckets", []), event.get("first_bucket", 0)):
            if bucket in assembled:
                continue
            if bucket not in whole:
                whole[bucket] = max((end for end, _columns in self.spill.segments(bucket)), default=0)
            if self.totals.sizes.get(bucket, 0) + grown > whole[bucket]:
                return False
        return True

    def _lists_are_whole(self, event: dict[str, Any]) -> bool:
        """True if the rejected rows and the names of an event are in their files, verified by checksums."""
        totals = self.totals
        for kind, path, at in (
            ("rejected", self._rejected_path, totals.rejected_bytes),
            ("named", self._named_path, totals.named_bytes),
        ):
            size = event.get(f"{kind}_bytes", 0)
            if size and not (path.exists() and _crc_of(path, at, size) == event[f"{kind}_crc32"]):
                return False
        return True

    def run(self, reader: Reader, threads: int, advance: Callable[[int], None], memory: int) -> None:
        """Read the remaining input. Blocks in flight take at most `memory`, except for a single larger block."""
        totals = self.totals
        self._unit = reader.unit
        self._named = getattr(reader, "named", None)
        self.names |= self._read_names()
        if self._named is not None and self.names:
            self._named(self.names)
        read = self._prepare_with(reader)
        memory -= self.spill.room
        tasks = enumerate(reader.tasks(totals.source, totals.end, totals.hash_state), totals.blocks)

        def size(numbered: tuple[int, Any]) -> int:
            needed = memory_of(reader, numbered[1])
            if needed > memory:  # a long row has the memory of the rows before it
                self.spill.write_out()
            return needed

        try:
            if self.plan.weights is not None and totals.weights is None:
                self._weights = WeightsReader(self.plan.weights)
                self._weights.skip(totals.rows + totals.rejected + totals.left_out)
            for prepared in ordered_map(read, tasks, threads, size, memory):
                self.finish_sources(reader, prepared.parsed.task.source)
                self.take(prepared)
                reader.release(prepared.parsed)
                advance(prepared.parsed.task.consumed)
            self.finish_sources(reader, len(reader.sources))
            if self._weights is not None:
                event = {"weights": dataclasses.asdict(self._weights.finish())}
                self._journal.add(event)
                totals.apply(event)
        except LongLineError as error:
            self.finish_sources(reader, error.source)
            name = display_name(self.plan.names[error.source])
            raise InputError(f"{self._place(name, 0)}: {error.problem}") from error
        finally:
            self.spill.close()
            if self._weights is not None:
                self._weights.close()

    def _prepare_with(self, reader: Reader) -> Callable[[tuple[int, Any]], Prepared]:
        def prepare(numbered: tuple[int, Any]) -> Prepared:
            number, task = numbered
            parsed = self._keep_what_fits(self._keep_declared(reader.read(task)))
            labels = distinct_of(parsed.block.labels, self.plan.text_labels, self._declared.has_classes())
            rows = parsed.block.rows
            if self.plan.split is not None and not self.plan.split.is_given:
                parsed = rows_of_part(parsed, number, self.plan.split)
                labels = self._in_part(labels, parsed)
            block = parsed.block
            buckets = np.zeros(block.rows, np.int64)
            if self.plan.shuffle_seed is not None and self.plan.buckets > 1:
                random_buckets(number << 32, self.plan.shuffle_seed, buckets, self.plan.buckets)
            assert block.values is not None
            levels, counts = self._levels_of(block.indptr, block.values), self._counts_of(block)
            among = self.plan.buckets if self.plan.shuffle_seed is not None else 1
            scattered = scatter(
                number, block.labels, block.indptr, block.indices, block.values, buckets, among, parsed.scratch
            )
            if parsed.ids is not None:
                identify(scattered, parsed.ids, buckets)
            return Prepared(parsed, scattered, labels, levels, counts, buckets, left_out=rows - block.rows)

        return prepare

    def _in_part(self, labels: Distinct, parsed: ParsedBlock) -> Distinct:
        """Return the labels of a block with the counts of the rows of a part: all classes are known in both parts."""
        kept = distinct_of(parsed.block.labels, self.plan.text_labels, self._declared.has_classes())
        counts = dict(zip(kept.keys, kept.counts, strict=True))
        return dataclasses.replace(labels, counts=[counts.get(key, 0) for key in labels.keys], rows=kept.rows)

    def _keep_declared(self, parsed: ParsedBlock) -> ParsedBlock:
        """Move rows with an undeclared label from the block to the rejected rows."""
        if self._allowed is None:
            return parsed
        block = parsed.block
        keep = np.isin(block.labels.view(np.uint64), self._allowed_keys)
        if keep.all():
            return parsed
        known = listed(self._allowed.values(), 5)
        names = LabelCollector(self.plan.text_labels, names=parsed.names)
        bits = block.labels.view(np.uint64)

        def problem(row: int) -> str:
            name = names.name(int(bits[row]))
            return f"the label {shortened(name)!r} is not one of {known}; correct it or declare it with {{classes}}"

        return _without(parsed, keep, problem)

    def _keep_what_fits(self, parsed: ParsedBlock) -> ParsedBlock:
        """Move rows with a value that would be rounded to infinity from the block to the rejected rows."""
        rounding = self.plan.rounding
        if rounding is None or self.plan.normalize:  # no value of a normalized row overflows
            return parsed
        values, indptr = parsed.block.values, parsed.block.indptr
        assert values is not None
        large = np.flatnonzero(np.abs(values) >= OVERFLOWS[rounding])
        if not len(large):
            return parsed
        rows, first = np.unique(np.searchsorted(indptr, large, "right") - 1, return_index=True)
        first_large = dict(zip(rows.tolist(), large[first].tolist(), strict=True))
        keep = np.ones(parsed.block.rows, bool)
        keep[rows] = False
        others = "bfloat16 or float32" if rounding == "float16" else "float32"

        def problem(row: int) -> str:
            return f"the value {values[first_large[row]]:g} is too large for {rounding}; use {{values={others}}}"

        return _without(parsed, keep, problem)

    def _levels_of(self, indptr: np.ndarray, values: np.ndarray) -> list[int] | None:
        """Return the distinct rounded values of a block as bits; None if this or an earlier block has too many."""
        if self.totals.levels is None:
            return None
        found = np.empty(LEVELS, np.uint32)
        number = kernels.distinct_values(indptr, values, self.plan.normalize, ROUNDINGS[self.plan.rounding], found)
        return None if number < 0 else found[:number].tolist()

    def _counts_of(self, block: CsrBlock) -> list[int] | None:
        """Return the distinct counts of words of a block as bits; None if values are others, or counts too many."""
        if self.totals.counts is None or not self.plan.recipe.counts_words:
            return None
        found = np.empty(LEVELS, np.uint32)
        number = distinct_counts(block, self.idf, found)
        return None if number < 0 else found[:number].tolist()

    def take(self, prepared: Prepared) -> None:
        """Write a block to the buckets and the journal."""
        parsed, scattered, totals = prepared.parsed, prepared.scattered, self.totals
        name = display_name(self.plan.names[parsed.task.source])
        if parsed.bad and not self.plan.skip_bad:
            bad = parsed.bad[0]
            raise InputError(f"{self._place(name, bad.line)}: {bad.problem}")
        self._refuse_third_label(prepared, name)
        if self._weights is not None:
            weigh(scattered, self._next_weights(self._weights, prepared, name), prepared.buckets, parsed.scratch)
        elif parsed.block.weights is not None:
            weigh(scattered, parsed.block.weights, prepared.buckets, parsed.scratch)
        first = 0
        if self.plan.shuffle_seed is None and totals.sizes:
            first = max(totals.sizes)
            first += totals.sizes[first] >= self.plan.bucket_limit
        grown = self.spill.append(scattered, first)
        largest_line = int(parsed.lines[scattered.largest_row]) if parsed.block.rows else 0
        event = {
            "end": parsed.task.end,
            "hash": parsed.task.hash_state,
            "lines": parsed.line_count,
            "rows": parsed.block.rows,
            "rejected": parsed.bad_lines,
            "left_out": prepared.left_out,
            **_noted("rejected", self._rejected_path, self._rejected_lines(name, parsed)),
            **_noted("named", self._named_path, self._names_lines(parsed)),
            "levels": _new_levels(prepared.levels, totals.levels),
            "counts": _new_levels(prepared.counts, totals.counts),
            "smallest": int(scattered.smallest),
            "largest": int(scattered.largest),
            "largest_at": self._place(name, largest_line),
            "first_bucket": first,
            "buckets": [[size, counts.tolist()] for size, counts in zip(grown, scattered.stats, strict=True)],
            "labels": dataclasses.asdict(prepared.labels),
            "ids": str(parsed.ids.type) if scattered.ids else None,
            "names": {str(key): text for key, text in parsed.names.items()},
        }
        self._journal.add(event)
        totals.apply(event)

    def _next_weights(self, reader: WeightsReader, prepared: Prepared, name: str) -> np.ndarray:
        """Return the weights of the rows of a block; a rejected row, or one of the other part, uses up its weight."""
        parsed = prepared.parsed
        rows = parsed.block.rows + parsed.bad_lines + prepared.left_out
        weights = reader.take(rows)
        if len(weights) < rows:
            row = int(np.searchsorted(parsed.numbers, len(weights)))
            where = f"row {reader.rows_read + 1:,} of the inputs is in {name}"
            if row < parsed.block.rows and parsed.numbers[row] == len(weights):
                where = f"{self._place(name, int(parsed.lines[row]))} is row {reader.rows_read + 1:,} of the inputs"
            problem = f"the weights end after {reader.rows_read:,}, and {where}"
            raise InputError(
                f"{display_name(reader.name)}:{reader.rows_read + 1}: {problem}; give every row one, in their order"
            )
        return weights[parsed.numbers] if rows > parsed.block.rows else weights

    def _place(self, name: str, line: int) -> str:
        """Return the position of a line or row of the current block, for messages."""
        return row_location(name, self._unit, self.totals.lines + line + 1)

    def _refuse_third_label(self, prepared: Prepared, name: str) -> None:
        declared, totals = self._declared, self.totals
        if declared.task != "binary" or declared.positive or declared.classes:
            return
        seen = set(totals.collector.counts)
        names = LabelCollector(self.plan.text_labels, names=prepared.parsed.names)
        for key, row in sorted(zip(prepared.labels.keys, prepared.labels.first_rows, strict=True), key=lambda x: x[1]):
            if key not in seen and len(seen) == 2:
                where = self._place(name, int(prepared.parsed.lines[row]))
                raise InputError(
                    f"{where}: a third label, {names.name(key)!r}, where {{task=binary}} allows two; "
                    "correct it, or say {positive_label} or {task=multiclass}"
                )
            seen.add(key)

    def _rejected_lines(self, name: str, parsed: ParsedBlock) -> bytes:
        if not parsed.bad:
            return b""
        first = self.totals.lines + 1
        listed = [{"source": name, "line": first + row.line, "problem": with_flags(row.problem)} for row in parsed.bad]
        if parsed.bad_lines > len(parsed.bad):
            more = f"{parsed.bad_lines - len(parsed.bad):,} more bad rows up to line {first + parsed.line_count - 1:,}"
            listed.append({"source": name, "line": first + parsed.bad[-1].line, "problem": more})
        return "".join(json.dumps(line) + "\n" for line in listed).encode()

    def _names_lines(self, parsed: ParsedBlock) -> bytes:
        """Return the lines for names of features that had no name."""
        new = {place: name for place, name in parsed.features.items() if place not in self.names}
        new = dict(list(new.items())[: self.plan.feature_names - len(self.names)])
        if not new:
            return b""
        self.names |= new
        if self._named is not None:
            self._named(new)
        return "".join(json.dumps([place, name]) + "\n" for place, name in new.items()).encode()

    def _read_names(self) -> dict[int, str]:
        if not self._named_path.exists():
            return {}
        return dict(map(json.loads, self._named_path.read_text().splitlines()))

    def finish_sources(self, reader: Reader, upto: int) -> None:
        """Record the fingerprints of the sources before number `upto`."""
        while self.totals.source < upto:
            totals = self.totals
            source = reader.sources[totals.source]
            info = source.info(totals.source_rows)
            if totals.source_rows == 0 and (self.plan.split is None or self.plan.split.is_given):
                name = info.name
                if not self.plan.skip_bad:
                    problem = "the file is empty" if info.size == 0 else "no rows in it"
                    raise InputError(
                        f"{row_location(name, self._unit, 1)}: {problem}; leave it out or check how it was made"
                    )
            event = {"finished": dataclasses.asdict(info)}
            self._journal.add(event)
            totals.apply(event)

    def buckets(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield every non-empty bucket with its statistics."""
        for bucket in sorted(self.totals.stats):
            if self.totals.stats[bucket][0]:
                yield bucket, self.totals.stats[bucket]


def distinct_counts(block: CsrBlock, idf: np.ndarray, found: np.ndarray) -> int:
    """Find the distinct counts of words, as bits; return their number, or -1 as `distinct_values`, or if none fit."""
    assert block.values is not None
    counts = np.empty(len(block.values), np.float32)
    if not counts_of(read_only(block.indices), read_only(block.values), read_only(idf), counts):
        return -1
    return kernels.distinct_values(block.indptr, counts, False, 0, found)


def _new_levels(levels: list[int] | None, known: set[int] | None) -> list[int] | None:
    """Return the values that no earlier block has, to keep the journal short."""
    return None if levels is None or known is None else [bits for bits in levels if bits not in known]


def _noted(kind: str, path: Path, lines: bytes) -> dict[str, int]:
    """Append lines to a list, and return their size and checksum for the journal."""
    if lines:
        with open(path, "ab", opener=open_in_place) as file:
            file.write(lines)
    return {f"{kind}_bytes": len(lines), f"{kind}_crc32": zlib.crc32(lines)}


def _crc_of(path: Path, at: int, size: int) -> int:
    with open(path, "rb") as file:
        file.seek(at)
        return zlib.crc32(file.read(size))


def _without(parsed: ParsedBlock, keep: np.ndarray, problem: Callable[[int], str]) -> ParsedBlock:
    """Move the rows not to `keep` from the block to the rejected rows."""
    wrong = np.flatnonzero(~keep)
    for row in wrong[:DESCRIBED_BAD_ROWS].tolist():
        parsed.bad.append(BadRow(int(parsed.lines[row]), problem(row)))
    parsed.bad.sort(key=lambda bad: bad.line)
    return dataclasses.replace(chosen_rows(parsed, keep), bad_lines=parsed.bad_lines + len(wrong))
