"""Predicted time of an epoch, by the model of docs/scaling.md."""

from __future__ import annotations

import math
from itertools import pairwise

CURVE = {17: 1.45, 20: 1.8, 22: 2.7, 24: 3.4, 26: 4.4}
"""Nanoseconds a non-zero by the binary logarithm of the number of features: weights exceed the caches one by one."""
SHARE_OF_DISK = 0.85
"""Share of the disk's own speed that reading reaches while rows are processed."""
WINDOW_SECONDS = 0.0025
"""Seconds to begin a window."""


def nanoseconds_per_nonzero(features: int) -> float:
    """Return the nanoseconds to process an entry in memory with one thread."""
    size = math.log2(max(features, 1))
    points = sorted(CURVE.items())
    if size <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if size <= right:
            return low + (high - low) * (size - left) / (right - left)
    return points[-1][1]


def epoch_seconds(size: int, entries: int, features: int, bytes_per_second: float | None, windows: int = 1) -> float:
    """Return the time of an epoch over `size` bytes: the slower of computing and reading (None: data in memory)."""
    computing = entries * nanoseconds_per_nonzero(features) * 1e-9
    reading = size / (SHARE_OF_DISK * bytes_per_second) if bytes_per_second else 0.0
    return max(computing, reading) + windows * WINDOW_SECONDS
