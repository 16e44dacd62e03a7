"""How much the tests try: little in `make test` and `make test-all`, much more in `make soak`."""

import os
from typing import TypeVar

Amount = TypeVar("Amount")
SOAK = os.environ.get("OOCPEG_SOAK") == "1"


def in_soak(short: Amount, long: Amount) -> Amount:
    """Return `long` in a soak, else `short`."""
    return long if SOAK else short
