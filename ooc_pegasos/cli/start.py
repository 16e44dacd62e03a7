"""Entry point of `oocpeg`: listen to signals first, since what comes first is imports, which take a while.

Python itself takes some milliseconds before the first line here; Ctrl-C in these is handled by Python.
"""

import os

from ooc_pegasos.exit_codes import INTERRUPTED
from ooc_pegasos.util.signals import listen

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from types import FrameType


def _end(_signal: int, _frame: "FrameType | None") -> None:
    """End at once: there is nothing to clean up yet, and a module that is being imported might catch an exception."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run `oocpeg`; the command line listens to signals itself as soon as it is there."""
    listen(_end)
    # Its threads are not used here, and without memory for them their start never returns.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ooc_pegasos.cli.main import main as command_line

    command_line()
