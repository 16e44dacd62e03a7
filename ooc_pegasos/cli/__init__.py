"""The command line: parse, call, print, and turn errors into exit codes. No logic.

Each command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

# in the order in which --help shows their commands
from ooc_pegasos.cli import stores, training, models, jobs  # isort: skip
from ooc_pegasos.cli.options import app
from ooc_pegasos.errors import InputError, OocPegasosError

__all__ = ["app", "jobs", "main", "models", "stores", "training"]


def _interrupt(_signal: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The `oocpeg` command."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except OocPegasosError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # stdout is closed or full, for example
        print(f"error: {error.filename or 'output'}: {error.strerror}; check where the output goes", file=sys.stderr)
        sys.exit(InputError.exit_code)
    except MemoryError:
        print("error: out of memory; give a smaller --memory", file=sys.stderr)
        sys.exit(InputError.exit_code)
