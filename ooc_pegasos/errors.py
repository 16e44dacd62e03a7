"""Errors, and the exit codes that the command line gives them.

Each message contains the problem, its location and advice, on one line. Options in it are written as `{tolerance}` or
`{tolerance=0.01}`. Python shows the text between the braces; the command line shows `--tolerance 0.01`.
"""

import re

from ooc_pegasos import exit_codes

_OPTION = re.compile(r"(?<!\0)\{([A-Za-z][A-Za-z0-9_]*)(?:=([^{}]*))?\}")


def flag_of(name: str) -> str:
    """Return the spelling of an option on the command line."""
    return "--lambda" if name == "lam" else "--" + name.replace("_", "-")


def literal(text: str) -> str:
    """Return text of the user for a message: nothing in this text is the mark of an option."""
    return text.replace("{", "\0{")


def with_flags(message: str) -> str:
    """Return a message with options as they are written on the command line."""
    return _OPTION.sub(lambda found: f"{flag_of(found[1])} {found[2] or ''}".strip(), message).replace("\0", "")


def with_keywords(message: str) -> str:
    """Return a message with options as they are written in Python, as keyword arguments."""
    return _OPTION.sub(lambda found: found[0][1:-1], message).replace("\0", "")


class OocPegasosError(Exception):
    """Base class of all errors that this package raises on purpose."""

    exit_code = exit_codes.INTERNAL_ERROR

    def __init__(self, message: str = "") -> None:
        self._message = "\\n".join(message.splitlines())  # file names may contain line breaks
        super().__init__(with_keywords(self._message))

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self._message,)

    def within(self, where: str) -> "OocPegasosError":
        """Return the same error with its location before the message."""
        return type(self)(f"{where}: {self._message}")

    @property
    def with_flags(self) -> str:
        """The message with options as they are written on the command line."""
        return with_flags(self._message)


class UsageError(OocPegasosError, ValueError):
    """Options that are invalid or contradict each other."""

    exit_code = exit_codes.USAGE


class InputError(OocPegasosError):
    """Input that cannot be read as the declared format, or an output that cannot be written."""

    exit_code = exit_codes.INPUT


class PublishedError(InputError):
    """An error after the new state was in place; unlike other errors, it does not leave the old state."""


class CheckpointMismatchError(InputError):
    """A checkpoint of another run than the one to be resumed."""


class CorruptFileError(OocPegasosError):
    """A store, model or checkpoint whose bytes differ from those that were written."""

    exit_code = exit_codes.CORRUPT_FILE


class LockedError(OocPegasosError):
    """Another process has locked the output."""

    exit_code = exit_codes.LOCKED
