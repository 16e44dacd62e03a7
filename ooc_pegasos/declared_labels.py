"""Labels as options, or an existing store, declare them."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ooc_pegasos.errors import OocPegasosError, UsageError

TaskChoice = Literal["auto", "binary", "multiclass", "regression"]
NULL_LABELS = ("is not null", "is null")
"""The classes where a positive label asks if the label of a row is missing."""
EXACT = 2.0**53
"""From here on several integers share one float64, so different labels could be taken for the same."""


def spell(number: float) -> str:
    """Return a numeric label in its usual spelling: 1, -1, 0.5."""
    return str(int(number)) if number == int(number) and abs(number) < 1e16 else repr(number)


def is_number(text: str) -> bool:
    """True if a label given as an option is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def bounds_of(text: str) -> list[tuple[str, float]]:
    """Return each (sign, bound) of a comparison, like `>=4`, or of a range, like `10..20`; none for other texts."""
    if (parts := re.fullmatch(r"\s*(<=?|>=?)\s*(\S+)\s*", text)) and is_number(parts[2]):
        return [(parts[1], float(parts[2]))]
    ends = text.split("..")
    return [(">=", float(ends[0])), ("<=", float(ends[1]))] if len(ends) == 2 and all(map(is_number, ends)) else []


def alternatives_of(text: str) -> list[str]:
    """Return the parts of a positive label between bars."""
    return [part.strip() for part in text.split("|")] if "|" in text else [text]


def is_rule(text: str) -> bool:
    """True if a positive label, unless it occurs, is a shell pattern, a comparison, a range, or several."""
    return "|" in text or glob.has_magic(text) or bool(bounds_of(text))


def refuse_large(classes: Iterable[float], error: type[OocPegasosError]) -> None:
    """Refuse classes at or above 2^53, because float64 represents several integers by one number there."""
    large = next((number for number in classes if abs(number) >= EXACT), None)
    if large is not None:
        problem = f"the label {spell(large)} is not below 2^53, so others may have been taken for it"
        raise error(f"{problem}; write labels as words or as smaller numbers, or say {{task=regression}}")


@dataclass(frozen=True)
class Declared:
    """Labels as declared by options, or by the store that is appended to."""

    task: TaskChoice = "auto"
    classes: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    """The positive label, or several; a label that does not occur may be a rule, see `store/label_rule.py`."""
    rest: bool = False
    """True if all other labels are negative, whether they occur or not."""
    is_rule: bool = False
    """True if `positive` is the rule of a store."""
    as_text: bool | None = None
    """True if labels are text; None: by the first row."""

    def __post_init__(self) -> None:
        if self.classes and (len(self.classes) < 2 or not all(self.classes)):
            raise UsageError("{classes} needs at least two labels with commas between, like {classes=-1,1}")
        if self.task != "regression" and self.wants_text() is False:
            refuse_large(map(float, filter(is_number, self.named())), UsageError)
        are_numbers = all(is_number(name) for name in self.classes)
        distinct = {float(name) if are_numbers else name for name in self.classes}
        if len(distinct) != len(self.classes):
            raise UsageError("{classes} names a class twice; name each one once")
        if self.task == "regression" and (self.classes or self.positive):
            raise UsageError("{task=regression} has no classes; leave out {classes} and {positive_label}")
        if self.task == "multiclass" and self.positive:
            raise UsageError("{positive_label} makes the task binary; leave out {task=multiclass}")
        if not all(self.positive):
            raise UsageError("{positive_label} is empty; name a label")
        if (null := next((one for one in self.positive if one in NULL_LABELS), None)) and len(self.positive) > 1:
            raise UsageError(f"{{positive_label={null}}} is for all rows with or without a label; leave out the others")
        other = next((one for one in self.positive if one not in self.classes and not is_rule(one)), None)
        if self.classes and other is not None:
            raise UsageError(f"{{positive_label={other}}} is not among {{classes={','.join(self.classes)}}}")
        if self.task == "binary" and len(self.classes) not in (0, 2):
            raise UsageError(f"{{task=binary}} needs two {{classes}}, not {len(self.classes)}")

    def has_classes(self) -> bool:
        """True if labels are declared to be classes."""
        return self.task in ("binary", "multiclass") or bool(self.classes or self.positive)

    def named(self) -> list[str]:
        """Return all declared labels."""
        return [*self.classes, *self.positive]

    def wants_text(self) -> bool | None:
        """Return True if labels must be read as text, False as numbers, None as in the first row."""
        if self.as_text is not None:
            return self.as_text
        if self.task == "regression":
            return False
        parts = [part for name in self.positive for part in alternatives_of(name)]
        named = [name for name in (*self.classes, *parts) if not bounds_of(name)]
        if not named or (len(parts) > len(self.positive) and all(map(is_number, named))):
            return None  # `1|2` may be a word or two numbers
        return not all(is_number(name) for name in named)
