"""Where `oocpeg` begins: its first moments go into imports, and if it is stopped then it ends without a word."""

from __future__ import annotations

import os

INTERRUPTED = 130

try:
    import signal
except KeyboardInterrupt:  # nobody listens yet
    os._exit(INTERRUPTED)

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def listen(handler: Callable[[int, FrameType | None], object]) -> None:
    """Have this called at Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as it is for what a shell starts in the background
        signal.signal(signal.SIGINT, handler)


def _end(_signal: int, _frame: FrameType | None) -> None:
    """Nothing is done so far that would have to be put away, and an exception might get lost in what is imported."""
    os._exit(INTERRUPTED)


def main() -> None:
    """The `oocpeg` command; the command line listens to signals itself as soon as it is there."""
    listen(_end)
    # Its threads are not used here, and without memory for them their start never returns.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ooc_pegasos.cli import main as command_line

    command_line()
