"""Uniformly random permutations without the GIL, which numpy's shuffle holds.

Random numbers are xoshiro256** (Blackman and Vigna, prng.di.unimi.it), bounded without bias by Lemire's method ("Fast
random integer generation in an interval", 2019). For orders larger than a cache, swap positions are drawn ahead and
prefetched.
"""

import numpy as np

from ooc_pegasos.compiled.intrinsics import multiply_high, prefetch
from ooc_pegasos.compiled.jit import inlined, kernel

_AHEAD = 32
_CACHED = 1 << 19
"""Number of rows that fit a cache, below which prefetching costs more than it saves."""


@inlined
def _rotate(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def next_word(one, two, three, four):
    """Return the next 64 random bits, and the state after them."""
    result = _rotate(two * np.uint64(5), 7) * np.uint64(9)
    moved = two << np.uint64(17)
    three ^= one
    four ^= two
    two ^= three
    one ^= four
    three ^= moved
    four = _rotate(four, 45)
    return result, one, two, three, four


@inlined
def below(bound, one, two, three, four):
    """Return a uniformly random integer from 0 to below `bound`, and the state after it."""
    word, one, two, three, four = next_word(one, two, three, four)
    low = word * bound
    if low < bound:
        floor = (np.uint64(0) - bound) % bound
        while low < floor:
            word, one, two, three, four = next_word(one, two, three, four)
            low = word * bound
    return multiply_high(word, bound), one, two, three, four


@inlined
def _swap(order, here, there):
    row = order[here]
    order[here] = order[there]
    order[there] = row


@kernel
def shuffle(order: np.ndarray, state: np.ndarray) -> None:
    """Permute `order` randomly (Fisher and Yates); `state` is four random words."""
    one, two, three, four = state
    places = np.empty(_AHEAD, np.uint64)
    left = len(order)
    while left > _CACHED:
        for i in range(_AHEAD):
            there, one, two, three, four = below(np.uint64(left - i), one, two, three, four)
            places[np.uint64(i)] = there
            prefetch(order, np.int64(there))
        for i in range(_AHEAD):
            _swap(order, np.uint64(left - 1 - i), places[np.uint64(i)])
        left -= _AHEAD
    for last in range(left - 1, 0, -1):
        there, one, two, three, four = below(np.uint64(last + 1), one, two, three, four)
        _swap(order, np.uint64(last), there)
