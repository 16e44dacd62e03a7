"""What can go wrong, and the exit code the command line gives it.

Every message says what is wrong, where, and what to do about it, on one line.
"""


class OocPegasosError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__("\\n".join(message.splitlines()))  # names in it may have line breaks


class UsageError(OocPegasosError):
    """Options that contradict each other or have no meaning."""

    exit_code = 2


class InputError(OocPegasosError):
    """Data that cannot be read as what it was said to be, or a place that cannot be written."""

    exit_code = 3


class PublishedError(InputError):
    """An error after the new state was in place, which must not be taken for one that left the old state."""


class OtherRunError(InputError):
    """A checkpoint of another run than the one that is to go on."""


class DamagedError(OocPegasosError):
    """A store, model or checkpoint whose bytes are not the bytes that were written."""

    exit_code = 5


class LockedError(OocPegasosError):
    """Another process is at work on the same thing."""

    exit_code = 6
