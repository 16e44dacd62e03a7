"""Conversion of JSON and TOML tables to frozen dataclasses and back; types are checked, unknown keys refused.

A dataclass whose table is not that of its fields has the methods `table` and `from_table`.
"""

import dataclasses
import os
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_OMITTED = "omitted"
_NO_VALUE = object()


class TypedError(ValueError):
    """A table that does not fit its dataclass; the message contains the key and the problem."""


def load(cls: type[Record], table: Any, where: str = "") -> Record:
    """Return a `cls` made of `table`. Raises TypedError."""
    if not isinstance(table, dict):
        raise TypedError(f"{where or 'the whole'} should be a table, not {_kind(table)}")
    hints = _hints_of(cls)  # type: ignore[arg-type]
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise TypedError(f"unknown key {_path(where, unknown[0])!r}; known: {', '.join(fields)}")
    chosen = {}
    for name, field in fields.items():
        if name in table:
            chosen[name] = _check(hints[name], table[name], _path(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise TypedError(f"missing key {_path(where, name)!r}")
    return cls(**chosen)


def settle(record: Any, plainly: Callable[[str, Any], Any]) -> None:
    """Check the fields of a new dataclass, frozen or not, as `load` checks a table; numpy numbers become Python's.

    `plainly` maps a name and a value to the canonical form of a value that can be written in several ways.
    """
    kind: Any = type(record)
    defaults = _defaults_of(kind)
    for name, wanted in _hints_of(kind).items():
        value = getattr(record, name)
        if value is not defaults[name]:  # defaults are valid
            object.__setattr__(record, name, _check(wanted, plainly(name, _native(value)), name))


def _native(value: Any) -> Any:
    """Return numbers and lists for those of numpy, and text for paths."""
    if isinstance(value, list | tuple):
        return [_native(one) for one in value]
    if hasattr(value, "tolist"):  # scalars and arrays alike
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@cache
def _defaults_of(cls: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}


@cache
def _hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def dump(record: Any) -> dict[str, Any]:
    """Return the table of a dataclass, ready for JSON."""
    if hasattr(record, "from_table"):
        table: dict[str, Any] = record.table()
        return table
    kind: Any = type(record)
    values = ((name, getattr(record, name), omitted) for name, omitted in _names_of(kind))
    return {name: _plain(value) for name, value, omitted in values if value != omitted}


@cache
def _names_of(cls: type) -> list[tuple[str, Any]]:
    """Return the fields with the values that are not written."""
    fields = dataclasses.fields(cls)
    return [(field.name, field.default if field.metadata.get(_OMITTED) else _NO_VALUE) for field in fields]


def omitted_default(value: Any) -> Any:
    """Return a field that is not written if it has its default, so that earlier versions read the table."""
    return dataclasses.field(default=value, metadata={_OMITTED: True})


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return dump(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _check(wanted: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        others = [option for option in arguments if option is not types.NoneType]
        if len(others) == 1 and get_origin(others[0]) is Literal:
            return _check(others[0], value, where)  # its message lists the words
        for option in arguments:
            try:
                return _check(option, value, where)
            except TypedError:
                continue
        raise TypedError(f"{where!r} should be {_name(wanted)}, not {_kind(value)}")
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise TypedError(f"{where!r} should be a list, not {_kind(value)}")
        items = [_check(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin is dict:
        if not isinstance(value, dict):
            raise TypedError(f"{where!r} should be a table, not {_kind(value)}")
        return {str(key): _check(arguments[1], item, _path(where, str(key))) for key, item in value.items()}
    if origin is not None:  # Literal
        if not any(type(value) is type(one) and value == one for one in arguments):
            raise TypedError(f"{where!r} should be one of {', '.join(map(str, arguments))}, not {value!r:.60}")
        return value
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return wanted.from_table(value) if hasattr(wanted, "from_table") else load(wanted, value, where)
    if wanted is Any:
        return value
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise TypedError(f"{where!r} is a number too large: {_kind(value)}") from None
    if type(value) is not wanted and not (wanted is type(None) and value is None):
        raise TypedError(f"{where!r} should be {_name(wanted)}, not {_kind(value)}")
    return value


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _name(wanted: Any) -> str:
    if get_origin(wanted) is Literal:
        return " or ".join(map(str, get_args(wanted)))
    if get_args(wanted) and get_origin(wanted) in (Union, types.UnionType):
        return " or ".join(_name(option) for option in get_args(wanted))
    if get_origin(wanted) in (tuple, list):
        return f"list of {_name(get_args(wanted)[0])}"
    return "None" if wanted is type(None) else getattr(wanted, "__name__", str(wanted))


def _kind(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
