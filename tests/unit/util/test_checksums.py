"""XXH64 against the reference implementation."""

import random

import pytest
import xxhash

from ooc_pegasos.util.checksums import RunningHash, xxh64_hex


@pytest.mark.parametrize("size", [*range(70), 127, 1000, 65_537])
def test_like_the_reference(size):
    data = random.Random(size).randbytes(size)
    assert xxh64_hex(data) == xxhash.xxh64(data).hexdigest()


@pytest.mark.parametrize("seed", range(20))
def test_in_pieces_and_from_a_kept_state(seed):
    rng = random.Random(seed)
    data = rng.randbytes(3000)
    running, at = RunningHash(), 0
    while at < len(data):
        step = rng.choice([0, 1, 7, 31, 32, 33, 500])
        running.update(data[at : at + step])
        running = RunningHash.resume(running.state())
        at += step
    assert running.hexdigest() == xxhash.xxh64(data).hexdigest()
    assert running.total == len(data)
