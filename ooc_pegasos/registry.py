"""Registries of what options choose by name: losses, samplers, algorithms, formats.

The names of built-in things are listed, so that configurations and the command line know them without importing the
modules that define them, which import numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from ooc_pegasos.errors import UsageError

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing]):
    """Things of one kind by name: the built-in ones in the order of their list, then those registered later."""

    def __init__(self, option: str, home: str = "", names: tuple[str, ...] = ()) -> None:
        """`option` is the option that chooses by name, `home` the module that registers the things in `names`."""
        self._option, self._home, self._names = option, home, names
        self._things: dict[str, Thing] = {}

    def register(self, name: str, thing: Thing) -> None:
        """Add a thing under a new name."""
        if name in self._things:
            raise UsageError(f"{{{self._option}={name}}} is registered already; choose another name")
        self._things[name] = thing

    def unregister(self, name: str) -> None:
        """Remove a thing that was registered."""
        del self._things[name]

    def find(self, name: str) -> Thing:
        """Return the thing of a name. Raises UsageError that lists the names."""
        if name not in self:
            raise UsageError(f"{{{self._option}={name}}} is unknown; choose one of {', '.join(self)}")
        return self[name]

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things and name in self._names:
            import_module(self._home)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._things

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from (name for name in self._things if name not in self._names)

    def __len__(self) -> int:
        return len(list(iter(self)))


LOSSES: Registry[Any] = Registry(
    "loss",
    "ooc_pegasos.objective.losses",
    (
        "hinge",
        "logistic",
        "smoothed-hinge",
        "squared-hinge",
        "epsilon-insensitive",
        "absolute",
        "huber",
        "squared",
        "multiclass-hinge",
        "multiclass-logistic",
    ),
)
"""Of `objective.losses.Loss`; `objective.losses.register` adds to it."""
SAMPLERS: Registry[Callable[..., Any]] = Registry(
    "sampling", "ooc_pegasos.loading.samplers", ("permutation", "fixed", "iid", "sequential")
)
"""Of `loading.samplers.Sampler`; `loading.samplers.register` adds to it."""
