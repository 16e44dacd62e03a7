"""Plan and statistics of the first pass of a conversion, both recorded in the scratch folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ooc_pegasos.store.csr_block import LEVELS
from ooc_pegasos.store.labels import Distinct, LabelCollector
from ooc_pegasos.store.manifest import Recipe, SourceInfo, Split, VocabularyInfo

MOST_BUCKETS = 256


@dataclass(frozen=True)
class IngestPlan:
    """Settings of the first pass; recorded, so that a resumed conversion places rows alike."""

    names: list[str]
    text_labels: bool
    smallest_index: int
    largest_index: int
    skip_bad: bool
    normalize: bool
    rounding: Literal["float16", "bfloat16"] | None
    shuffle_seed: int | None
    buckets: int
    bucket_limit: int
    block_size: int
    recipe: Recipe
    feature_names: int
    weights: str | None = None
    labels: str | None = None
    vocabulary: VocabularyInfo | None = None
    """The vocabulary of the recipe, in the scratch folder."""
    split: Split | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= MOST_BUCKETS:  # compiled loops rely on it
            raise ValueError(f"{self.buckets:,} buckets")


@dataclass
class Totals:
    """Statistics of the blocks so far. Changed by `apply` alone, also when the journal is replayed."""

    collector: LabelCollector
    blocks: int = 0
    source: int = 0
    end: int = 0
    hash_state: dict[str, Any] | None = None
    lines: int = 0
    source_rows: int = 0
    rows: int = 0
    rejected: int = 0
    left_out: int = 0
    """Rows of the other part of a split."""
    rejected_bytes: int = 0
    named_bytes: int = 0
    levels: set[int] | None = field(default_factory=set)
    """The bits of all distinct stored values; None if there are too many for `code8`."""
    counts: set[int] | None = field(default_factory=set)
    """The bits of all distinct counts of words; None if there are too many, or values are not products of counts."""
    smallest: int = 1 << 40
    largest: int = -1
    largest_at: str = ""
    stats: dict[int, np.ndarray] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    sources: list[SourceInfo] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    """The Arrow types of the ids."""
    weights: SourceInfo | None = None
    """The fingerprint of the file of weights, after all of it was read."""

    def apply(self, event: dict[str, Any]) -> None:
        """Add the statistics of an event."""
        if "finished" in event:
            self.sources.append(SourceInfo(**event["finished"]))
            self.source += 1
            self.end, self.hash_state, self.lines, self.source_rows = 0, None, 0, 0
            return
        if "weights" in event:
            self.weights = SourceInfo(**event["weights"])
            return
        self.blocks += 1
        self.end, self.hash_state = event["end"], event["hash"]
        self.lines += event["lines"]
        self.rows += event["rows"]
        self.source_rows += event["rows"]
        self.rejected += event["rejected"]
        self.left_out += event.get("left_out", 0)
        self.rejected_bytes += event["rejected_bytes"]
        self.named_bytes += event["named_bytes"]
        self.levels = _joined(self.levels, event["levels"])
        self.counts = _joined(self.counts, event.get("counts"))
        self.smallest = min(self.smallest, event["smallest"])
        if event["largest"] > self.largest:
            self.largest, self.largest_at = event["largest"], event["largest_at"]
        for bucket, (grown, counts) in enumerate(event["buckets"], event["first_bucket"]):
            self.sizes[bucket] = self.sizes.get(bucket, 0) + grown
            self.stats[bucket] = self.stats.get(bucket, np.zeros(6, np.int64)) + np.array(counts, np.int64)
        if event["ids"] is not None:
            self.ids.add(event["ids"])
        names = {int(key): name for key, name in event["names"].items()}
        self.collector.add(Distinct(**event["labels"]), names)


def _joined(known: set[int] | None, new: list[int] | None) -> set[int] | None:
    """Return all levels, None if there are too many."""
    if known is None or new is None:
        return None
    levels = known.union(new)
    return levels if len(levels - {0}) < LEVELS else None  # 0.0 has a code in any case
