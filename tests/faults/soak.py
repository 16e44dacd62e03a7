"""How long the tests of faults go on: seconds in `make test`, much longer in `make soak`."""

import os

SOAK = os.environ.get("OOCPEG_SOAK") == "1"


def tries(short: int, long: int) -> int:
    """How many there are of something."""
    return long if SOAK else short
