"""Rules that make a binary problem of several labels: the positive ones match patterns or comparisons."""

from __future__ import annotations

import fnmatch
import glob
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.declared_labels import Declared, alternatives_of, bounds_of, is_number, is_rule
from ooc_pegasos.errors import InputError

_COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SHOWN = 5
"""Labels shown in messages."""


@dataclass(frozen=True)
class LabelRule:
    """The positive labels: words that match a shell pattern; numbers that are equal, in a range or by comparison."""

    patterns: tuple[str, ...]
    as_text: bool

    def of_words(self, words: Iterable[str]) -> list[bool]:
        """Return for each word if it is positive."""
        matching = re.compile("|".join(fnmatch.translate(one) for one in self.patterns)).match
        return [matching(word) is not None for word in words]

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return for each number if it is positive."""
        found = np.zeros(len(numbers), bool)
        for one in self.patterns:
            bounds = bounds_of(one) or [("=", float(one))]
            found |= np.logical_and.reduce([_COMPARE[sign](numbers, bound) for sign, bound in bounds])
        return found

    def of_names(self, names: Sequence[str]) -> list[bool]:
        """Return for each label, in the spelling of the input, if it is positive."""
        if self.as_text:
            return self.of_words(names)
        matches: list[bool] = self.of_numbers(np.array(names, np.float64)).tolist()
        return matches


def rule_of(declared: Declared, known: Sequence[str], as_text: bool) -> LabelRule | None:
    """Return the rule that the options or the store declare, None for a single label.

    `known` are the labels that occur. Raises InputError if a new rule matches none of them, or all.
    """
    if declared.rest:
        return LabelRule(declared.positive, as_text) if declared.is_rule else None
    (only, *more) = declared.positive
    if not more and (not is_rule(only) or only in known):
        return None
    # a label that occurs is that label alone, also if it could be a pattern
    parts = [part for one in declared.positive for part in ([one] if one in known else alternatives_of(one))]
    if not all(parts):
        raise InputError(f"{{positive_label={','.join(declared.positive)}}}: nothing beside a '|'; remove it")
    if not as_text and not all(bounds_of(one) or is_number(one) for one in parts):
        return None  # refused as a label that does not occur
    rule = LabelRule(tuple(glob.escape(one) if as_text and one in known else one for one in parts), as_text)
    if known:
        shown = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        for given, one in zip(parts, rule.patterns, strict=True):
            if not any(LabelRule((one,), as_text).of_names(known)):
                words = "; comparisons are for labels that are numbers" * (as_text and bool(bounds_of(one)))
                raise InputError(f"no label matches {{positive_label={given}}}; the labels are {shown}{words}")
        if all(rule.of_names(known)):
            given = ",".join(declared.positive)
            raise InputError(f"every label matches {{positive_label={given}}}, so none is negative: {shown}; narrow it")
    return rule


def refuse_one_side(rule: LabelRule, counts: Sequence[int]) -> None:
    """Raise InputError if no row is negative, or none is positive."""
    if not all(counts):
        given, which = ",".join(rule.patterns), "every" if counts[1] else "no"
        raise InputError(f"{which} label matches {{positive_label={given}}}; correct it")


def words_of_rule(rule: LabelRule, known: Sequence[str]) -> str:
    """Return the effect of a rule on the labels that occur, for a remark."""
    matches = rule.of_names(known)
    positive = [name for name, one in zip(known, matches, strict=True) if one]
    examples = ", ".join(positive[:_SHOWN]) + (", ..." if len(positive) > _SHOWN else "")
    return f"{len(positive):,} of {len(known):,} labels match {', '.join(rule.patterns)}, and are positive: {examples}"


def problem_of_rule(patterns: Sequence[str], as_text: bool) -> str | None:
    """Return why a rule cannot be applied, or None."""
    if not patterns:
        return "a rule for labels without a pattern"
    if not as_text and not all(bounds_of(one) or is_number(one) for one in patterns):
        return "a rule for numeric labels that is no comparison"
    return None


def is_same_rule(patterns: Sequence[str], given: Sequence[str]) -> bool:
    """True if the options give the rule of a store, in which alternatives are separate and labels are escaped."""
    parts: list[str] = []
    for option in given:
        is_whole = len(parts) < len(patterns) and patterns[len(parts)] in (option, glob.escape(option))
        parts += [option] if is_whole else alternatives_of(option)
    return len(patterns) == len(parts) and all(
        one in (part, glob.escape(part)) for one, part in zip(patterns, parts, strict=True)
    )
