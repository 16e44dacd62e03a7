"""Labels of an input, and their codes in a store.

While rows are read, a label is a key of 64 bits: the bits of the number, or a hash of the text. After the last row the
keys are mapped to codes: negative and positive, a class number, or a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ooc_pegasos.compiled.rows import coding as kernels
from ooc_pegasos.declared_labels import Declared, refuse_large, spell
from ooc_pegasos.errors import InputError
from ooc_pegasos.store.label_rule import LabelRule, rule_of, words_of_rule
from ooc_pegasos.store.manifest import LabelInfo, Task
from ooc_pegasos.util.short_names import listed, short

MOST_CLASSES = 65_536
_FEW_LABELS, _ROWS_OF_CLASS, _SURELY_CLASSES = 50, 10, 1_000
"""Numbers of whole labels that are classes in any case, of rows of a class on average, and of labels that are classes
without a question."""


def key_of(text: str, as_text: bool) -> int:
    """Return the key of the label `text`."""
    if as_text:
        raw = np.frombuffer(text.encode(), np.uint8)
        hashes = np.empty(1, np.uint64)
        from ooc_pegasos.compiled.parse.svmlight import hash_spans

        hash_spans(raw, np.array([[0, len(raw)]]), 1, hashes)
        return int(hashes[0])
    return int(np.array([float(text) + 0.0]).view(np.uint64)[0])


def declared_by(info: LabelInfo) -> Declared:
    """Return the labels that an existing store declares."""
    if info.task == "regression":
        return Declared("regression", as_text=False)
    classes = tuple(str(name) for name in info.classes)
    if info.rest:
        positive = tuple(info.positive or classes[1:])
        return Declared("binary", (), positive, rest=True, is_rule=info.positive is not None, as_text=info.text)
    return Declared(info.task, classes, classes[1:] if info.task == "binary" else (), as_text=info.text)


def allowed_keys(declared: Declared, as_text: bool) -> dict[int, str] | None:
    """Return the keys of the allowed labels, or None if all labels are allowed."""
    return {key_of(name, as_text): name for name in declared.classes} if declared.classes else None


@dataclass
class Distinct:
    """The distinct labels of a block: keys, counts, and the first row of each."""

    keys: list[int]
    counts: list[int]
    first_rows: list[int]
    many: bool
    """True if there are too many for classes; then `keys` is empty."""
    fractional: bool
    single_exact: bool
    """True if float32 represents all of them exactly."""
    rows: int = 0


def distinct_of(labels: np.ndarray, as_text: bool, classes: bool) -> Distinct:
    """Count the labels of a block. Unless declared as `classes`, several fractions are regression targets."""
    bits = labels.view(np.uint64)
    keys, counts, first = np.empty(16, np.uint64), np.empty(16, np.int64), np.empty(16, np.int64)
    found = kernels.distinct_labels(bits, keys, counts, first)
    if found >= 0:
        keys, counts, first = keys[:found], counts[:found], first[:found]
    else:
        keys, first, counts = np.unique(bits, return_index=True, return_counts=True)
    numbers = np.empty(0) if as_text else keys.view(np.float64)
    fractional = bool((numbers != np.floor(numbers)).any())
    with np.errstate(over="ignore"):
        exact = bool((numbers.astype(np.float32) == numbers).all())
    if len(keys) > MOST_CLASSES or (fractional and len(keys) > 16 and not classes):
        return Distinct([], [], [], True, fractional, exact, len(labels))
    return Distinct(keys.tolist(), counts.tolist(), first.tolist(), False, fractional, exact, len(labels))


@dataclass
class LabelCollector:
    """All distinct labels so far."""

    as_text: bool
    counts: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    many: bool = False
    fractional: bool = False
    single_exact: bool = True
    rows: int = 0

    def add(self, seen: Distinct, names: dict[int, str]) -> None:
        """Add the labels of a block."""
        self.rows += seen.rows
        self.fractional |= seen.fractional
        self.single_exact &= seen.single_exact
        self.many |= seen.many
        if not self.many:
            for key, count in zip(seen.keys, seen.counts, strict=True):
                self.counts[key] = self.counts.get(key, 0) + count
            self.names.update(names)
            self.many = len(self.counts) > MOST_CLASSES
        if self.many:
            self.counts.clear()
            self.names.clear()

    @property
    def number(self) -> int:
        """The number of different labels, or the least that it can be."""
        return MOST_CLASSES + 1 if self.many else len(self.counts)

    def name(self, key: int) -> str:
        """Return the label of a key in the spelling of the input."""
        return self.names.get(key, "?") if self.as_text else spell(_number(key))  # "?": no text at all

    def words_of(self, rule: LabelRule) -> str | None:
        """Return the effect of a rule as a remark; None if there are too many labels."""
        return None if self.many else words_of_rule(rule, [self.name(key) for key in self.in_order()])

    def in_order(self) -> list[int]:
        """Return the keys sorted by number, or alphabetically."""
        if self.as_text:
            return sorted(self.counts, key=self.names.__getitem__)
        return sorted(self.counts, key=_number)


@dataclass(frozen=True)
class LabelMap:
    """Map from keys to stored labels."""

    info: LabelInfo
    keys: np.ndarray
    codes: np.ndarray
    otherwise: float | None
    kind: Literal["float32", "float64"]
    rule: LabelRule | None = None
    """The rule of positive labels; `keys` are the words that match."""

    def knowing(self, names: dict[int, str]) -> LabelMap:
        """Return the map for labels that may be new: with a rule, they are positive if they match."""
        if self.rule is None or not names:
            return self
        matches = self.rule.of_words(names.values())
        keys = np.array(sorted(key for key, one in zip(names, matches, strict=True) if one), np.uint64)
        return replace(self, keys=keys, codes=np.ones(len(keys), np.float32))

    def apply(self, labels: np.ndarray) -> np.ndarray:
        """Return the stored labels of a column of keys."""
        if self.info.task == "regression":
            return labels.astype(self.kind)
        if self.rule is not None and not self.info.text:
            return np.where(self.rule.of_numbers(labels), np.float32(1), np.float32(-1))
        if not len(self.keys):
            return np.full(len(labels), self.otherwise, np.float32)
        bits = labels.view(np.uint64)
        at = np.minimum(np.searchsorted(self.keys, bits), len(self.keys) - 1)
        codes = self.codes[at]
        if self.otherwise is not None:
            codes = np.where(self.keys[at] == bits, codes, np.float32(self.otherwise))
        return codes

    def count(self, stored: np.ndarray) -> list[int]:
        """Return the number of rows of each class, in the order of `info.classes`."""
        if self.info.task == "regression":
            return []
        if self.info.task == "binary":
            positive = int((stored > 0).sum())
            return [len(stored) - positive, positive]
        counts: list[int] = np.bincount(stored.astype(np.int64), minlength=len(self.info.classes)).tolist()
        return counts


def settle(seen: LabelCollector, declared: Declared) -> LabelMap:
    """Map keys to stored labels. Raises InputError if the task or the classes must be declared."""
    task = declared.task
    if task == "auto" and not declared.positive and not declared.classes:
        if _are_targets(seen):
            task = "regression"
        elif seen.number > _SURELY_CLASSES and not seen.as_text:
            shown = f"more than {MOST_CLASSES:,}" if seen.many else f"{seen.number:,}"
            or_classes = "" if seen.many else ", or {task=multiclass} if they are names of classes"
            raise InputError(
                f"the labels are {shown} different numbers; say {{task=regression}} if they are quantities{or_classes}"
            )
    if task == "regression":
        kind: Literal["float32", "float64"] = "float32" if seen.single_exact else "float64"
        return LabelMap(_info("regression", [], [], seen), np.empty(0, np.uint64), np.empty(0), None, kind)
    known = list(declared.classes) or [seen.name(key) for key in seen.in_order()]
    rule = rule_of(declared, known, seen.as_text) if declared.positive else None
    if rule and not rule.as_text:  # any number of different labels
        return _map_of_rule(rule, seen)
    if seen.many:
        advice = "check the column of labels" if seen.as_text else "say {task=regression}"
        raise InputError(f"more than {MOST_CLASSES:,} different labels, too many for classes; {advice}")
    if not seen.as_text:
        refuse_large(map(_number, seen.counts), InputError)
    if rule:
        return _map_of_rule(rule, seen)
    if declared.positive:
        return _one_against(declared, seen)
    keys = [key_of(name, seen.as_text) for name in declared.classes] or seen.in_order()
    names = list(declared.classes) or [seen.name(key) for key in keys]
    if len(keys) < 2:
        only = names[0] if names else "?"
        raise InputError(
            f"every row has the label {short(only)}; name all labels with {{classes}}, for example {{classes=-1,1}}"
        )
    if task == "binary" and len(keys) > 2:
        shown = listed(names, 5)
        raise InputError(
            f"{len(keys)} different labels ({shown}), not two; say {{positive_label}} or {{task=multiclass}}"
        )
    if len(keys) == 2 and task != "multiclass":
        return _map("binary", keys, names, [-1.0, 1.0], seen)
    return _map("multiclass", keys, names, range(len(keys)), seen)


def _are_targets(seen: LabelCollector) -> bool:
    """True if the labels are numbers that are no classes: fractions, or nearly as many whole numbers as rows."""
    if seen.as_text or (seen.fractional and seen.number <= 2):
        return False
    return seen.fractional or seen.number > max(_FEW_LABELS, seen.rows / _ROWS_OF_CLASS)


def _one_against(declared: Declared, seen: LabelCollector) -> LabelMap:
    """Map the positive class to 1 and all others to -1."""
    (name_of_positive,) = declared.positive
    positive = key_of(name_of_positive, seen.as_text)
    known = [key_of(name, seen.as_text) for name in declared.classes] or seen.in_order()
    others = [key for key in known if key != positive]
    if not declared.rest and len(others) == 1:
        name = next((n for n in declared.classes if n != name_of_positive), None) or seen.name(others[0])
        return _map("binary", [others[0], positive], [name, name_of_positive], [-1.0, 1.0], seen)
    if not declared.rest and positive not in known:
        shown = listed([seen.name(key) for key in known], 5)
        raise InputError(f"no row has the positive label {short(name_of_positive)}; the labels are {shown}")
    rest = sum(count for key, count in seen.counts.items() if key != positive)
    counts = [rest, seen.counts.get(positive, 0)]
    info = LabelInfo("binary", [f"not {name_of_positive}", name_of_positive], True, counts, seen.as_text)
    return LabelMap(info, np.array([positive], np.uint64), np.ones(1, np.float32), -1.0, "float32")


def _map_of_rule(rule: LabelRule, seen: LabelCollector) -> LabelMap:
    """Map the labels that match a rule to 1 and all others to -1."""
    order = seen.in_order()
    matches = rule.of_names([seen.name(key) for key in order])
    counts = [sum(seen.counts[key] for key, one in zip(order, matches, strict=True) if one == side) for side in (0, 1)]
    keys = np.array(sorted(key for key, one in zip(order, matches, strict=True) if one), np.uint64)
    name = ", ".join(rule.patterns)
    info = LabelInfo("binary", [f"not {name}", name], True, counts, seen.as_text, list(rule.patterns))
    return LabelMap(info, keys, np.ones(len(keys), np.float32), -1.0, "float32", rule)


def _map(
    task: Task, keys: Sequence[int], names: Sequence[str], codes: Iterable[float], seen: LabelCollector
) -> LabelMap:
    ordered = np.argsort(np.array(keys, np.uint64))
    counts = [seen.counts.get(key, 0) for key in keys]
    sorted_keys = np.array(keys, np.uint64)[ordered]
    sorted_codes = np.array(list(codes), np.float32)[ordered]
    return LabelMap(_info(task, list(names), counts, seen), sorted_keys, sorted_codes, None, "float32")


def _info(task: Task, names: list[str], counts: list[int], seen: LabelCollector) -> LabelInfo:
    return LabelInfo(task, names, False, counts, seen.as_text)


def _number(key: int) -> float:
    return float(np.array([key], np.uint64).view(np.float64)[0])
