"""The rows that a rule on a column reserves for tests, like `date>=2026-10-01` or `fold=test`."""

from __future__ import annotations

import fnmatch
import glob
import operator
import re
from typing import Any

import numpy as np

from ooc_pegasos.declared_labels import is_number
from ooc_pegasos.errors import InputError, literal
from ooc_pegasos.option_texts import is_iso_time, parse_split
from ooc_pegasos.readers.arrow_strings import as_strings
from ooc_pegasos.readers.vectorize import Problems, parsed_numbers

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_TIME = r"(?:[T ](?P<H>[0-9]{2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2}(?:\.[0-9]+)?))?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?$"
_ISO = r"^(?P<y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})" + _TIME
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


class SplitRule:
    """A rule that says for each row of a table if it is for tests."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.column, self._sign, self._value = parse_split(text)

    def test_rows(self, array: Any, problems: Problems) -> np.ndarray:
        """Return a mask of the rows for tests; rows that cannot be compared are problems."""
        import pyarrow as pa

        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if pa.types.is_nested(kind):
            raise self._refused(kind)
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        matches, wrong = self._of_values(coded.dictionary)
        missing = np.asarray(coded.is_null())
        codes = np.asarray(coded.indices.fill_null(0).to_numpy(zero_copy_only=False))
        found, bad = np.zeros(len(array), bool), missing.copy()
        if len(matches):
            found, bad = matches[codes] & ~missing, wrong[codes] | missing
        if self._sign != "=":
            what = "a number" if is_number(self._value) else "a date or time like 2026-12-31 or 2026-12-31T13:45:00"
            problems.add(
                np.flatnonzero(bad),
                lambda row: (
                    f"{literal(repr(array[row].as_py()))} in column '{self.column}', which splits the rows, is "
                    f"not {what}; correct it"
                ),
            )
        return found

    def _of_values(self, values: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return (mask of the distinct values that match, mask of those that cannot be compared)."""
        import pyarrow as pa

        nothing = np.zeros(len(values), bool)
        compare = _COMPARE[self._sign]
        found, wrong = nothing, nothing
        if is_number(self._value):
            if pa.types.is_temporal(values.type):
                raise self._refused(values.type)
            numbers, wrong = parsed_numbers(values)
            found = compare(np.where(wrong, np.nan, numbers), float(self._value))
        elif is_iso_time(self._value):
            seconds = self._seconds_of(values)
            wrong = np.isnan(seconds)
            found = compare(seconds, self._seconds_of(pa.array([self._value]))[0])
        if self._sign == "=":
            words = as_strings(values)
            if glob.has_magic(self._value):
                matching = re.compile(fnmatch.translate(self._value)).match
                equal = np.array([word is not None and matching(word) is not None for word in words.to_pylist()], bool)
            else:
                equal = np.asarray(pa.compute.equal(words, self._value).fill_null(False))
            found = found | equal
        return found, wrong

    def _seconds_of(self, values: Any) -> np.ndarray:
        """Return the seconds since 1970 of times, dates or texts, NaN for others; zones are ignored, as for dates."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = values.type
        if pa.types.is_date(kind):
            days = pc.cast(pc.cast(values, pa.date32()), pa.int32())
            return _numbers(days) * _DAY
        if pa.types.is_timestamp(kind):
            return _numbers(pc.cast(pc.cast(values, pa.timestamp(kind.unit)), pa.int64())) / _UNITS[kind.unit]
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            if self._sign == "=":
                return np.full(len(values), np.nan)
            raise self._refused(kind)
        parts = pc.extract_regex(as_strings(values), _ISO)

        def field(name: str, other: float) -> np.ndarray:
            given = pc.struct_field(parts, name)
            given = pc.if_else(pc.equal(given, ""), pa.scalar(None, given.type), given)
            numbers = _numbers(pc.cast(given, pa.float64()))
            return np.where(np.isnan(numbers), other, numbers)

        year, month, day = field("y", 1970), field("m", 1), field("d", 1)
        months = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype(np.int64)
        days = months.astype("M8[M]").astype("M8[D]").astype(np.int64) + day.astype(np.int64) - 1
        is_real = (days.astype("M8[D]").astype("M8[M]").astype(np.int64) == months) & (month >= 1) & (month <= 12)
        hour, minute, second = field("H", 0), field("M", 0), field("S", 0)
        is_real &= (hour < 24) & (minute < 60) & (second < 61) & np.asarray(parts.is_valid())
        found: np.ndarray = np.where(is_real, days * _DAY + hour * 3600 + minute * 60 + second, np.nan)
        return found

    def _refused(self, kind: Any) -> InputError:
        problem = f"column '{self.column}' is of type {kind}, which cannot be compared with {self._value}"
        return InputError(f"{problem}; give {{split}} another value, or another column")


def _numbers(array: Any) -> np.ndarray:
    """Return an Arrow array of numbers as float64, NaN for nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: np.ndarray = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return found
