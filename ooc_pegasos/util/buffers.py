"""Arrays that are reused, because fresh memory costs more than the work done in it: the system must clear each page."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

_RARE, _SMALL = 4, 1 << 20
"""An array `_RARE` times and `_SMALL` elements larger than requested is an outlier and is replaced."""


class Scratch:
    """Arrays by name, reused and enlarged on request."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str, size: int, kind: Any = np.float64) -> np.ndarray:
        """Return an array with arbitrary content; its memory is that of the last array of the same name."""
        held = self._arrays.get(name)
        if held is None or not size <= len(held) <= _RARE * size + _SMALL or held.dtype != kind:
            self._arrays.pop(name, None)
            held = self._arrays[name] = np.empty(size + size // 8, kind)
        return held[:size]


class Pool:
    """Scratch memory that threads borrow and return."""

    def __init__(self) -> None:
        self._free: deque[Scratch] = deque()

    def take(self) -> Scratch:
        """Return scratch memory that no other thread uses."""
        try:
            return self._free.pop()
        except IndexError:
            return Scratch()

    def give_back(self, scratch: Scratch) -> None:
        """Return borrowed memory to the pool."""
        self._free.append(scratch)
