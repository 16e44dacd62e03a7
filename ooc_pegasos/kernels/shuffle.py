"""A uniformly random order, without the GIL: numpy's shuffle keeps all other threads waiting.

Random numbers are xoshiro256** (Blackman and Vigna, prng.di.unimi.it), bounded without bias as Lemire does ("Fast
random integer generation in an interval", 2019). Places to swap are drawn some ahead, so that memory is asked for them
in time.
"""

import numpy as np

from ooc_pegasos.kernels.intrinsics import multiply_high, prefetch
from ooc_pegasos.kernels.jit import inlined, kernel

_AHEAD = 32


@inlined
def _rotate(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@kernel
def next_word(state: np.ndarray) -> int:
    """The next 64 random bits."""
    result = _rotate(state[1] * np.uint64(5), 7) * np.uint64(9)
    moved = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= moved
    state[3] = _rotate(state[3], 45)
    return result


@kernel
def below(bound: int, state: np.ndarray) -> int:
    """A random number from 0 to below `bound`, each as likely as the others."""
    bound = np.uint64(bound)
    word = next_word(state)
    low = word * bound
    if low < bound:
        floor = (np.uint64(0) - bound) % bound
        while low < floor:
            word = next_word(state)
            low = word * bound
    return multiply_high(word, bound)


@kernel
def shuffle(order: np.ndarray, state: np.ndarray) -> None:
    """Put `order` in random order (Fisher and Yates); `state` is four random words."""
    places = np.empty(_AHEAD, np.int64)
    last = len(order) - 1
    while last > 0:
        count = min(_AHEAD, last)
        for i in range(count):
            places[i] = np.int64(below(last - i + 1, state))
            prefetch(order, places[i])
        for i in range(count):
            here, there = last - i, places[i]
            order[here], order[there] = order[there], order[here]
        last -= count
