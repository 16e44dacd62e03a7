"""Combinations of parameters: all of them in `make test-all`, a few in `make test`."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def covering(*dimensions: Iterable[Any]) -> list[Any]:
    """Return the product of some lists of values; all but a few combinations, in which each value occurs, are `slow`.

    A tuple stands for the values of several parameters. A value that is marked makes its combinations marked.
    """
    values = [[one if hasattr(one, "marks") else pytest.param(one) for one in given] for given in dimensions]
    fast = _covering([[number for number, one in enumerate(given) if not one.marks] for given in values])
    found = []
    for numbers in itertools.product(*(range(len(given)) for given in values)):
        chosen = [given[number] for given, number in zip(values, numbers, strict=True)]
        parts = [
            part for one in chosen for value in one.values for part in (value if type(value) is tuple else (value,))
        ]
        marks = {mark.name: mark for one in chosen for mark in one.marks}
        if numbers not in fast:
            marks["slow"] = pytest.mark.slow
        found.append(pytest.param(*parts, marks=list(marks.values()), id="-".join(map(str, parts))))
    return found


def _covering(lists: list[list[int]]) -> set[tuple[int, ...]]:
    """Return combinations in which each number occurs; the longest list is gone through once if that is enough."""
    strides, stride = {}, 1
    for place in sorted(range(len(lists)), key=lambda place: -len(lists[place]))[1:]:
        strides[place] = stride
        stride *= len(lists[place])
    found: set[tuple[int, ...]] = set()
    for step in itertools.count():
        found.add(tuple(one[step // strides.get(place, 1) % len(one)] for place, one in enumerate(lists)))
        if all(len({some[place] for some in found}) == len(one) for place, one in enumerate(lists)):
            return found
    raise AssertionError
