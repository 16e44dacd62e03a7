"""Arrays that are used again. Fresh memory costs more than the work done in it: the system must find and clear it."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

_RARE, _SMALL = 4, 1 << 20
"""An array that is so many times larger than what is wanted, and not small, was made for an exception."""


class Scratch:
    """Arrays by name, each as large as it has ever been asked for, within reason."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str, size: int, kind: Any = np.float64) -> np.ndarray:
        """An array with arbitrary content; whoever was given it before must be done with it."""
        held = self._arrays.get(name)
        if held is None or not size <= len(held) <= _RARE * size + _SMALL or held.dtype != kind:
            self._arrays.pop(name, None)
            held = self._arrays[name] = np.empty(size + size // 8, kind)
        return held[:size]


class Pool:
    """Scratch memory for whoever needs it now."""

    def __init__(self) -> None:
        self._free: deque[Scratch] = deque()

    def take(self) -> Scratch:
        """Some that nobody is using."""
        try:
            return self._free.pop()
        except IndexError:
            return Scratch()

    def give_back(self, scratch: Scratch) -> None:
        """The arrays of `scratch` are not needed any more."""
        self._free.append(scratch)
