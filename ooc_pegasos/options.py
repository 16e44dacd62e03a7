"""Declarations of options: everything about an option is declared with its field in a configuration dataclass.

The command line, the keys of TOML files, checks and the reference page are made from these declarations.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ooc_pegasos.errors import UsageError, flag_of

Value = TypeVar("Value")
_KEY = "option"


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, both included."""

    least: float
    most: float
    words: str
    """The range in words, for messages."""

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most


POSITIVE = Range(math.nextafter(0.0, 1.0), math.nextafter(math.inf, 0.0), "a positive number")


@dataclass(frozen=True)
class Option:
    """The declaration of an option."""

    help: str
    group: str
    """The panel of the help."""
    name: str = ""
    """The name of the field; filled in by `options_of`."""
    flags: tuple[str, ...] = ()
    """The spelling on the command line, if it differs from the name with hyphens."""
    metavar: str = ""
    default: str = ""
    """The default in words, if the default of the field is not clear enough."""
    allowed: Range | None = None
    one_of: Callable[[], Iterable[str]] | None = None
    """Returns the words that the option takes, if a registry has them; else they are in the type of the field."""
    parse: Callable[[str], Any] | None = None
    """Parser of text, wherever the text comes from."""
    parse_words: Callable[[str], Any] | None = None
    """Parser of text on the command line."""
    is_repeated: bool = False
    """True if the option may be given several times on the command line."""
    is_column: bool = False
    """True if its values are columns of the inputs."""
    is_hidden: bool = False
    """True if the option can only be set in Python and in TOML files."""
    hint: Any = None
    """The type of the field; filled in by `options_of`."""

    @property
    def flag(self) -> str:
        """The spelling in messages."""
        return self.flags[0].partition("/")[0] if self.flags else flag_of(self.name)

    def choices(self) -> tuple[str, ...]:
        """Return the words that the option takes, if it takes words only."""
        return tuple(self.one_of()) if self.one_of else _choices_of(self.hint)

    def words(self) -> tuple[str, ...]:
        """Return the words that the option takes, also if it takes other values besides."""
        parts = get_args(self.hint) if get_origin(self.hint) in (Union, types.UnionType) else (self.hint,)
        return self.choices() or sum(map(_choices_of, parts), ())

    def value_of(self, text: str, *, on_command_line: bool = False) -> Any:
        """Parse text if the option has a parser. Raises UsageError."""
        parse = self.parse or (self.parse_words if on_command_line else None)
        try:
            return parse(text) if parse else text
        except UsageError as error:
            raise error.within(f"{{{self.name}}}") from None

    def check(self, value: Any) -> None:
        """Raise UsageError if a value is out of range, or not one of the words that the option takes."""
        if self.one_of and value is not None and value not in self.choices():
            raise UsageError(f"{{{self.name}={value}}} is unknown; choose one of {', '.join(self.choices())}")
        if self.allowed is not None and value is not None and value not in self.allowed:
            shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
            raise UsageError(f"{{{self.name}={shown}}} is out of range; choose {self.allowed.words}")


def option(default: Value, text: str, group: str, *, default_text: str = "", **more: Any) -> Value:
    """Declare a field of a configuration dataclass by its help text and panel; `more` are other fields of `Option`."""
    declared = Option(text, group, default=default_text, **more)
    field: Any = dataclasses.field(default=default, metadata={_KEY: declared})
    return field  # type: ignore[no-any-return]


@cache
def options_of(config: type) -> dict[str, Option]:
    """Return the options of a configuration dataclass by name, in the order of their declaration."""
    hints = get_type_hints(config)
    found = {}
    for field in dataclasses.fields(config):
        declared: Option = field.metadata[_KEY]
        shown = declared.default or _default_of(field.default)
        found[field.name] = dataclasses.replace(declared, name=field.name, hint=hints[field.name], default=shown)
    return found


def check(config: Any) -> None:
    """Raise UsageError if a field of a configuration dataclass is out of range."""
    kind: type = type(config)
    for name, declared in options_of(kind).items():
        declared.check(getattr(config, name))


def _default_of(value: Any) -> str:
    if value is None or isinstance(value, bool) or value == ():
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices_of(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        found = [_choices_of(part) for part in get_args(hint) if part is not types.NoneType]
        return sum(found, ()) if all(found) else ()
    return ()


def by_group(config: type, groups: tuple[str, ...]) -> Iterator[Option]:
    """Return the options in the order of the groups, and within a group in the order of declaration."""
    declared = options_of(config).values()
    return (one for group in groups for one in declared if one.group == group)


class Described:
    """The docstring of a configuration dataclass, with a line for each option, made when it is read."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, _instance: object, config: type) -> str:
        lines = (f"    {one.name}: {one.help}" for one in options_of(config).values())
        return "\n".join([self._summary, "", "Options:", *lines])
