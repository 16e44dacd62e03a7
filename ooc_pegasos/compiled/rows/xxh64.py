"""XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): a checksum at memory speed, which `xxhsum -H64` verifies.

XXH64 detects accidental changes of a file, not forgery.
"""

import numpy as np

from ooc_pegasos.compiled.intrinsics import load_u64
from ooc_pegasos.compiled.jit import inlined, kernel

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@inlined
def _rotate(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(lane, word):
    return _rotate(lane + word * _P2, 31) * _P1


@kernel
def absorb_stripes(data: np.ndarray, lanes: np.ndarray) -> None:
    """Update the four `lanes` with the whole 32-byte stripes of `data`."""
    one, two, three, four = lanes[0], lanes[1], lanes[2], lanes[3]
    for at in range(0, len(data) // 32 * 32, 32):
        one = _round(one, load_u64(data, at))
        two = _round(two, load_u64(data, at + 8))
        three = _round(three, load_u64(data, at + 16))
        four = _round(four, load_u64(data, at + 24))
    lanes[0], lanes[1], lanes[2], lanes[3] = one, two, three, four


@kernel
def finish(lanes: np.ndarray, total: int, tail: np.ndarray) -> int:
    """Return the hash of `total` bytes whose last, incomplete stripe is `tail` (padded to 40 bytes)."""
    if total >= 32:
        state = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
        for lane in range(4):
            state = (state ^ _round(np.uint64(0), lanes[lane])) * _P1 + _P4
    else:
        state = _P5
    state = state + np.uint64(total)
    at = 0
    left = total % 32
    while left >= 8:
        state = _rotate(state ^ _round(np.uint64(0), load_u64(tail, at)), 27) * _P1 + _P4
        at += 8
        left -= 8
    if left >= 4:
        word = load_u64(tail, at) & np.uint64(0xFFFFFFFF)
        state = _rotate(state ^ (word * _P1), 23) * _P2 + _P3
        at += 4
        left -= 4
    while left > 0:
        state = _rotate(state ^ (np.uint64(tail[at]) * _P5), 11) * _P1
        at += 1
        left -= 1
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


START = (int(_P1) + int(_P2), int(_P2), 0, -int(_P1))
"""Initial values of the four lanes (seed 0), modulo 2^64."""
