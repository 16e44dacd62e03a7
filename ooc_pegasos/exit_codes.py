"""Exit codes of the command line, see docs/exit-codes.md. Without imports, because signal handlers need them first."""

DONE = 0
INTERNAL_ERROR = 1
USAGE = 2
INPUT = 3
NOT_CERTIFIED = 4
CORRUPT_FILE = 5
LOCKED = 6
REFUSED = 7
INTERRUPTED = 130
BROKEN_PIPE = 141
