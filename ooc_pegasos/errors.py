"""Errors, and the exit codes that the command line gives them.

Every message says what is wrong, where, and what to do about it, on one line. Options are written `{tolerance}` or
`{tolerance=0.01}` in it: Python shows them as they stand between the braces, the command line as `--tolerance 0.01`.
"""

import re

from ooc_pegasos import exit_codes

_OPTION = re.compile(r"(?<!\0)\{([A-Za-z][A-Za-z_]*)(?:=([^{}]*))?\}")


def flag_of(name: str) -> str:
    """The spelling of an option on the command line."""
    return "--lambda" if name == "lam" else "--" + name.replace("_", "-")


def literal(text: str) -> str:
    """Return text of the user for a message: nothing in this text is the mark of an option."""
    return text.replace("{", "\0{")


def with_flags(message: str) -> str:
    """Return a message with options as they are written on the command line."""
    return _OPTION.sub(lambda found: f"{flag_of(found[1])} {found[2] or ''}".strip(), message).replace("\0", "")


class OocPegasosError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = exit_codes.INTERNAL_ERROR

    def __init__(self, message: str = "") -> None:
        self._message = "\\n".join(message.splitlines())  # names in it may have line breaks
        super().__init__(_OPTION.sub(lambda found: found[0][1:-1], self._message).replace("\0", ""))

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self._message,)

    def within(self, where: str) -> "OocPegasosError":
        """The same error with where it was found before its message."""
        return type(self)(f"{where}: {self._message}")

    @property
    def with_flags(self) -> str:
        """The message with options as they are written on the command line."""
        return with_flags(self._message)


class UsageError(OocPegasosError, ValueError):
    """Options that contradict each other or have no meaning."""

    exit_code = exit_codes.USAGE


class InputError(OocPegasosError):
    """Data that cannot be read as what it was said to be, or a place that cannot be written."""

    exit_code = exit_codes.INPUT


class PublishedError(InputError):
    """An error after the new state was in place, which must not be taken for one that left the old state."""


class CheckpointMismatchError(InputError):
    """A checkpoint of another run than the one that is to go on."""


class CorruptFileError(OocPegasosError):
    """A store, model or checkpoint whose bytes are not the bytes that were written."""

    exit_code = exit_codes.CORRUPT_FILE


class LockedError(OocPegasosError):
    """Another process is at work on the same thing."""

    exit_code = exit_codes.LOCKED
