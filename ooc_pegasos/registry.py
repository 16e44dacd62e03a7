"""Registries of what options choose by name: losses, samplers, algorithms, formats.

The names of built-in things are listed, so that configurations and the command line know them without importing the
modules that define them, which import numba. The lists are types, so that type checkers find misspelt names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, NewType, TypeAlias, TypeVar, get_args

from ooc_pegasos.errors import UsageError

Thing = TypeVar("Thing")
Registered = NewType("Registered", str)
"""For type checkers: a name that is checked when the program runs, like that of a registered loss."""
BuiltInLoss = Literal[
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
]
BuiltInSampler = Literal["permutation", "fixed", "iid", "sequential"]
BuiltInFormat = Literal["svmlight", "vw", "table", "arrays", "folders", "text-lines"]
BuiltInAlgorithm = Literal["sdca", "sgd-s", "sgd-m", "sgd-r", "pegasos"]
LossName: TypeAlias = BuiltInLoss | Registered
SamplerName: TypeAlias = BuiltInSampler | Registered
FormatName: TypeAlias = Literal["auto"] | BuiltInFormat | Registered
AlgorithmName: TypeAlias = Literal["auto"] | BuiltInAlgorithm | Registered


FILE_TYPES = {"csv": "table", "tsv": "table", "jsonl": "table"}
"""Types of files that the option `format` takes, with their format."""


class Registry(Mapping[str, Thing]):
    """Things of one kind by name: the built-in ones in the order of their list, then those registered later."""

    def __init__(
        self, option: str, home: str = "", names: tuple[str, ...] = (), other_names: Mapping[str, str] | None = None
    ) -> None:
        """`option` is the option that chooses by name, `home` the module that registers the things in `names`.

        `other_names` are names that other programs use, with ours.
        """
        self._option, self._home, self._names = option, home, names
        self._other_names = other_names or {}
        self._things: dict[str, Thing] = {}

    def register(self, name: str, thing: Thing) -> None:
        """Add a thing under a new name."""
        if name in self._things:
            raise UsageError(f"{{{self._option}={name}}} is registered already; choose another name")
        self._things[name] = thing

    def unregister(self, name: str) -> None:
        """Remove a thing that was registered."""
        del self._things[name]

    def our_name(self, name: str) -> str:
        """Return our name for a thing, given ours or that of another program."""
        known = name.lower().replace("_", "-")
        return name if name in self else known if known in self else self._other_names.get(known, name)

    def find(self, name: str) -> Thing:
        """Return the thing of a name. Raises UsageError that lists the names."""
        if name not in self:
            raise UsageError(f"{{{self._option}={name}}} is unknown; choose one of {', '.join(self)}")
        return self[name]

    def is_built_in(self, name: str) -> bool:
        """True if every process knows a name."""
        return name in self._names

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
    get_args(BuiltInLoss),
    {
        "svm": "hinge",
        "log": "logistic",
        "log-loss": "logistic",
        "logloss": "logistic",
        "cross-entropy": "logistic",
        "l2": "squared",
        "mse": "squared",
        "ridge": "squared",
        "squared-error": "squared",
        "least-squares": "squared",
        "l1": "absolute",
        "mae": "absolute",
        "absolute-error": "absolute",
        "svr": "epsilon-insensitive",
        "modified-huber": "smoothed-hinge",
    },
)
"""Of `objective.losses.Loss`; `objective.losses.register` adds to it."""
SAMPLERS: Registry[Any] = Registry("sampling", "ooc_pegasos.loading.samplers", get_args(BuiltInSampler))
"""Of `loading.samplers.Sampler`; `loading.samplers.register` adds to it."""
