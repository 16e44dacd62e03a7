"""JSON lines: blocks of whole lines, an object each, to record batches, and the problems of bad lines.

A line is good if Arrow reads it as one object whose fields have the types wanted. Keys that are not wanted may hold
anything; a key that is not there is a null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_pegasos.errors import InputError
from ooc_pegasos.readers.base import TO_UTF8, BadRow
from ooc_pegasos.readers.delimited import batch_from, cut_lines, line_array

if TYPE_CHECKING:
    import pyarrow as pa

_SPACE = " \t\r\n"
_FEW = 32


def names_of(head: bytes) -> list[str]:
    """Return the keys of the first object in `head`."""
    line = head.lstrip().partition(b"\n")[0]
    if not line:
        raise InputError("there is no object in the first lines; write one JSON object a line")
    try:
        first = _parsed(line.decode())
    except UnicodeDecodeError:
        raise InputError(f"the first object is not UTF-8 text; {TO_UTF8}") from None
    except (ValueError, RecursionError) as error:
        if head.lstrip().startswith(b"["):
            raise InputError("a JSON array; write one object a line, as with 'jq -c .[]'") from None
        raise InputError(f"the first object cannot be read ({error}); write one JSON object a line") from None
    if not isinstance(first, dict):
        raise InputError(f"the first line is {_kind(first)}, not a JSON object; write one object a line")
    return list(first)


def batch_of(
    text: np.ndarray, length: int, fields: Mapping[str, pa.DataType], max_described: int
) -> tuple[pa.RecordBatch, np.ndarray, int, list[BadRow], int]:
    """Read the lines in `text[:length]`, which ends with a line feed.

    (the keys in `fields` of the good rows; the line of each such row; number of lines; the first bad rows, at most
    `max_described`; number of bad rows.) `fields` names at least one key.
    """
    import pyarrow as pa

    text = text[:length]
    schema = pa.schema(list(fields.items()))
    starts, ends = cut_lines(text)
    filled, shaped = _shapes(text, starts, ends)
    lines = np.flatnonzero(filled)
    if shaped[lines].all():
        batch = _read(text, schema, len(lines))
        if not isinstance(batch, str):
            return batch, lines, len(starts), [], 0
    problems: dict[int, str] = {}
    rows: dict[int, bytes] = {}
    for line in lines.tolist():
        row = text[starts[line] : ends[line]].tobytes().rstrip()
        if shaped[line]:
            rows[line] = row + b"\n"
        else:
            problems[line] = _malformed(row)
    batch = _read_good_rows(rows, schema, fields, problems)
    described = [BadRow(line, problems[line]) for line in sorted(problems)[:max_described]]
    return batch, np.array(list(rows), np.int64), len(starts), described, len(problems)


def _shapes(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (mask of lines that are not blank, mask of lines that begin with { and end with }).

    If all begin and end so, no object reaches from one line into the next, because valid JSON never has } directly
    before {. Then there are as many objects as lines only if each line holds one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    last = np.maximum(ends - 1, starts)
    last -= (text[last] == 13) & (last > starts)
    shaped = (text[starts] == 123) & (text[last] == 125)
    if shaped.all():
        return shaped, shaped
    trimmed = pc.ascii_trim(line_array(text, starts, pa.string()), _SPACE)
    filled = pc.binary_length(trimmed).to_numpy(zero_copy_only=False) > 0
    shaped = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}")).to_numpy(zero_copy_only=False)
    return filled, shaped


def _read(text: Any, schema: pa.Schema, rows: int) -> pa.RecordBatch | str:
    """Return the rows, or the problem of one of them."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    if not rows:  # Arrow takes this for an error
        return batch_from(schema.empty_table())
    try:
        table = arrow_json.read_json(
            pa.BufferReader(pa.py_buffer(text)),
            # One block: as many bytes as there are, and one more so that the end is seen at once.
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        )
        batch = batch_from(table)
        batch.validate(full=True)  # Arrow does not check UTF-8 before
    except pa.ArrowInvalid as error:
        return str(error).partition("\n")[0].removeprefix("JSON parse error: ").removesuffix(" in row 0")
    if batch.num_rows != rows:
        return f"{batch.num_rows} objects"
    if not all(_is_finite(column) for column in batch.columns):
        return "a number is not finite"
    return batch


def _is_finite(array: Any) -> bool:
    """True if all numbers in an array, at any depth, are finite."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(array.type):
        return pc.all(pc.is_finite(array)).as_py() is not False
    if pa.types.is_list(array.type):
        return _is_finite(array.flatten())
    if pa.types.is_struct(array.type):
        return all(_is_finite(array.field(place)) for place in range(array.type.num_fields))
    return True


def _read_good_rows(
    rows: dict[int, bytes], schema: pa.Schema, fields: Mapping[str, pa.DataType], problems: dict[int, str]
) -> pa.RecordBatch:
    """Return the rows, by line, without those that Arrow does not read, which move to `problems`.

    Bisection finds these rows, down to a few that are read one by one. Arrow decides which rows are good, so that the
    result does not depend on the neighbours of a row; to read all rows singly is slow where most are bad.
    """
    parts = [(list(rows), False)]
    while parts:
        part, are_checked = parts.pop()
        outcome = _read(b"".join(rows[line] for line in part), schema, len(part))
        if not isinstance(outcome, str):
            continue
        if not are_checked and len(part) <= _FEW:
            found = {line: problem for line in part if (problem := _problem(rows[line], fields))}
            problems.update(found)
            parts.append(([line for line in part if line not in found], True))
        elif len(part) == 1:
            problems[part[0]] = f"the object cannot be read ({outcome}); correct it"
        else:
            middle = len(part) // 2
            parts += [(part[middle:], are_checked), (part[:middle], are_checked)]
    for line in problems:
        rows.pop(line, None)
    batch = _read(b"".join(rows.values()), schema, len(rows))
    if isinstance(batch, str):  # never seen
        raise InputError(f"objects cannot be read together ({batch}); write one JSON object a line")
    return batch


def _parsed(line: str) -> Any:
    return json.loads(line, parse_int=_int)


def _int(digits: str) -> int | float:
    return int(digits) if len(digits) < 1000 else math.inf  # Python refuses more than a few thousand


def _malformed(row: bytes) -> str:
    try:
        found = _parsed(row.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as error:
        return f"this is not JSON ({error.msg} at character {error.pos + 1}); write one object a line"
    except RecursionError:
        return "this is not a JSON object; write one object a line"
    return f"the line is {_kind(found)}, not a JSON object; write one object a line"


def _problem(row: bytes, fields: Mapping[str, pa.DataType]) -> str | None:
    """Return the problem of a line, or None where only Arrow can find one."""
    try:
        found = _parsed(row.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as error:
        if b"Inf" in row:  # which Arrow reads, in keys that are not wanted
            return None
        return f"this is not JSON ({error.msg} at character {error.pos + 1}); write one object a line"
    except RecursionError:
        return None
    return _problem_of_fields(found, fields, "")


def _problem_of_fields(found: dict[str, Any], fields: Mapping[str, pa.DataType], within: str) -> str | None:
    """Return the problem of an object, or of one within others, or None."""
    import pyarrow as pa

    for name, kind in fields.items():
        value, key = found.get(name), f"{within}{name}"
        if value is not None and isinstance(value, dict) and pa.types.is_struct(kind):
            inner = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
            if problem := _problem_of_fields(value, inner, f"{key}."):
                return problem
        elif value is not None and (problem := _problem_of_value(value, kind)):
            return f"the value {_shown(value)} of key {key!r} {problem}"
    return None


def _problem_of_value(value: Any, kind: Any) -> str | None:
    """Return the problem of a value that is not of this type, with advice, or None; only some types are checked."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "is not a number; correct it, or give the key by {categorical} if all its values are text"
        if not _finite(value):
            return "is not finite; correct it, or write null"
    elif pa.types.is_string(kind):
        if not isinstance(value, str):
            return "is not text; put it in quotes"
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            return f"is not UTF-8 text; {TO_UTF8}"
    elif pa.types.is_int64(kind):
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            return "is not a whole number of 64 bits; correct it"
    elif pa.types.is_list(kind):
        if not isinstance(value, list) or any(
            _problem_of_value(item, kind.value_type) for item in value if item is not None
        ):
            return f"is not a list of {_wanted(kind.value_type)}; correct it"
    elif pa.types.is_struct(kind):
        members = [kind.field(i) for i in range(kind.num_fields)]
        if not isinstance(value, dict) or any(
            _problem_of_value(value[member.name], member.type)
            for member in members
            if value.get(member.name) is not None
        ):
            return f"is not an object of {_wanted(kind)}; correct it"
    return None


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def _wanted(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return "numbers"
    if pa.types.is_integer(kind):
        return "whole numbers"
    if pa.types.is_struct(kind):
        members = [kind.field(i) for i in range(kind.num_fields)]
        return "{" + ", ".join(f'"{member.name}": {_wanted(member.type)}' for member in members) + "}"
    return "texts" if pa.types.is_string(kind) else str(kind)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "a text" if isinstance(value, str) else f"the value {_shown(value)}"


def _shown(value: Any) -> str:
    """Return a value as JSON, cut to fit a message."""
    try:
        written = json.dumps(value)
    except (RecursionError, ValueError):
        return "given"
    return written if len(written) <= 41 else written[:40] + "..."
