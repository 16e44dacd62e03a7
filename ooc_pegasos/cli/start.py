"""Entry point of `oocpeg`, which installs signal handlers before the slow imports.

Python handles Ctrl-C itself in the milliseconds before the first line here.
"""

import os

from ooc_pegasos.exit_codes import INTERRUPTED
from ooc_pegasos.util.signals import listen

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from types import FrameType


def _end(_signal: int, _frame: "FrameType | None") -> None:
    """End at once: there is nothing to clean up, and a module that is being imported might catch an exception."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run `oocpeg`; the command line installs its own signal handlers when it is imported."""
    listen(_end)
    # OpenBLAS's threads are not used, and starting them without enough memory hangs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ooc_pegasos.cli.main import main as command_line

    command_line()
