"""Dates and times as features: day of the week, month, hour, and years since 2020."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_pegasos.readers.arrow_strings import as_strings
from ooc_pegasos.store.recipe import Column, DateOrder

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
HOURS = tuple(str(hour) for hour in range(24))
_TIME = r"(?:(?:[T ]|, ?)(?P<H>[0-9]{1,2}):[0-9]{2}.*)?$"
_YEAR_FIRST = r"^(?P<y>[0-9]{4})[-/.](?P<m>[0-9]{1,2})[-/.](?P<d>[0-9]{1,2})" + _TIME
_YEAR_LAST = r"^(?P<{}>[0-9]{{1,2}})[-/.](?P<{}>[0-9]{{1,2}})[-/.](?P<y>[0-9]{{4}})"
_PATTERNS: dict[DateOrder, str] = {
    "ymd": _YEAR_FIRST,
    "dmy": _YEAR_LAST.format("d", "m") + _TIME,
    "mdy": _YEAR_LAST.format("m", "d") + _TIME,
}
_SECONDS = r"^[0-9]{9,16}$"
"""Seconds, milliseconds or microseconds since 1970."""
_LARGEST_SECONDS = 1e11
_DAY, _YEAR, _ORIGIN = 86_400, 365.25, 18_262
"""Seconds of a day, days of a year, and the days from 1970 to 2020."""


@dataclass(frozen=True)
class Times:
    """The times of a column. Nothing of a row counts that is not present."""

    present: np.ndarray
    wrong: np.ndarray
    """True for cells that are not null and not a time."""
    days: np.ndarray
    """Days since 1970."""
    hours: np.ndarray
    """The hour; -1 for dates without a time."""

    @property
    def weekdays(self) -> np.ndarray:
        """The day of the week, 0 for Monday."""
        found: np.ndarray = (self.days + 3) % 7
        return found

    @property
    def months(self) -> np.ndarray:
        """The month, 0 for January."""
        found: np.ndarray = self.days.astype("M8[D]").astype("M8[M]").astype(np.int64) % 12
        return found

    @property
    def years(self) -> np.ndarray:
        """Years since 2020, with fractions."""
        found: np.ndarray = (self.days - _ORIGIN) / _YEAR
        return found


def parts_of(times: Times) -> Iterator[tuple[str, np.ndarray, tuple[str, ...]]]:
    """Yield (name, number of the word of each row, or -1; words) of the parts of times that are categories."""
    yield "weekday", times.weekdays, WEEKDAYS
    yield "month", times.months, MONTHS
    yield "hour", times.hours, HOURS


def words_of_dates(column: Column, array: Any) -> Iterator[tuple[str, Any]]:
    """Yield (prefix of feature names, words) of each part of the times of a column."""
    import pyarrow as pa

    times = times_of(array, column.date_order)
    for part, codes, words in parts_of(times):
        missing = ~times.present | (codes < 0)
        yield f"{column.name}:{part}=", pa.array(words).take(pa.array(codes, mask=missing))


def date_order_of(words: Sequence[str]) -> DateOrder | None:
    """Return the order of year, month and day in all words, or None; month and day if both orders are possible."""
    if words and all(re.match(_SECONDS, word) for word in words):
        return "ymd"
    found = [order for order in _PATTERNS if words and all(_is_date(word, order) for word in words)]
    if len(found) == 2 and all("." in word for word in words):
        return "dmy"  # nobody writes the month first with points
    return found[-1] if found else None


def _is_date(word: str, order: DateOrder) -> bool:
    match = re.match(_PATTERNS[order], word)
    return match is not None and 1 <= int(match["m"]) <= 12 and 1 <= int(match["d"]) <= 31


def times_of(array: Any, order: DateOrder) -> Times:
    """Return the times of a column of texts, dates, times or seconds since 1970."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        every, codes = times_of(array.dictionary, order), array.indices
        missing = np.asarray(codes.is_null())
        if not len(every.days):
            nothing = np.zeros(len(array), np.int64)
            return Times(~missing, np.zeros(len(array), bool), nothing, nothing - 1)
        at = codes.fill_null(0).to_numpy(zero_copy_only=False)
        return Times(every.present[at] & ~missing, every.wrong[at] & ~missing, every.days[at], every.hours[at])
    present = np.asarray(array.is_valid())
    if pa.types.is_date(kind):
        days = array.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Times(present, np.zeros(len(days), bool), days, np.full(len(days), -1))
    if pa.types.is_timestamp(kind):
        naive = array.cast(pa.timestamp(kind.unit)).cast(pa.int64()).fill_null(0)
        scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return _of_seconds(naive.to_numpy(zero_copy_only=False) // scale, present, np.zeros(len(array), bool))
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return _of_numbers(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), present)
    return _of_words(as_strings(array), order, present)


def _of_numbers(numbers: np.ndarray, present: np.ndarray) -> Times:
    """Return the times of seconds since 1970, or milliseconds or microseconds if they are large."""
    sizes = np.abs(numbers)
    wrong = present & ~(sizes < _LARGEST_SECONDS * 1e6)
    units = np.select([sizes >= _LARGEST_SECONDS * 1e3, sizes >= _LARGEST_SECONDS], [1e6, 1e3], 1.0)
    seconds = np.where(present & ~wrong, numbers, 0.0) / units
    return _of_seconds(np.floor(seconds).astype(np.int64), present, wrong)


def _of_seconds(seconds: np.ndarray, present: np.ndarray, wrong: np.ndarray) -> Times:
    return Times(present & ~wrong, wrong, seconds // _DAY, seconds % _DAY // 3600)


def _of_words(words: Any, order: DateOrder, present: np.ndarray) -> Times:
    import pyarrow as pa
    import pyarrow.compute as pc

    is_number = np.asarray(pc.fill_null(pc.match_substring_regex(words, _SECONDS), False))
    if is_number.any():
        numbers = pc.if_else(pa.array(is_number), words, pa.scalar(None, words.type)).cast(pa.float64())
        of_numbers = _of_numbers(numbers.to_numpy(zero_copy_only=False), is_number)
    parts = pc.extract_regex(words, _PATTERNS[order])
    fits = np.asarray(parts.is_valid())

    def field(name: str, other: int) -> np.ndarray:
        given = pc.struct_field(parts, name)
        given = pc.if_else(pc.fill_null(pc.not_equal(given, ""), False), given, pa.scalar(None, given.type))
        found: np.ndarray = pc.fill_null(given.cast(pa.int64()), other).to_numpy(zero_copy_only=False)
        return found

    year, month, day, hours = field("y", 1970), field("m", 1), field("d", 1), field("H", -1)
    months = (year - 1970) * 12 + np.clip(month, 1, 12) - 1
    days = months.astype("M8[M]").astype("M8[D]").astype(np.int64) + day - 1
    is_real = (
        (month >= 1) & (month <= 12) & (hours < 24) & (days.astype("M8[D]").astype("M8[M]").astype(np.int64) == months)
    )
    fits &= is_real & (day >= 1)
    if is_number.any():
        fits |= is_number
        days, hours = np.where(is_number, of_numbers.days, days), np.where(is_number, of_numbers.hours, hours)
    present = present & np.asarray(pc.fill_null(pc.not_equal(words, ""), False))
    return Times(present & fits, present & ~fits, days, hours)
