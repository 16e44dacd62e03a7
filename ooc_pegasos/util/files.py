"""Atomic writes, which leave the old file or the new one after a crash, and checks of paths."""

import errno
import fcntl
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ooc_pegasos.errors import CorruptFileError, InputError, OocPegasosError, PublishedError, UsageError


class UnsyncedError(OSError):
    """A file has its final name (`filename`), but its folder could not be synced to disk."""


def open_in_place(path: str | Path, flags: int, *, streams: bool = False) -> int:
    """Open a file to change its content: only a regular file, not a symbolic link, and without other hard links.

    Anyone who may write to the folder could have placed a link there, and the target of the link would be overwritten.
    With `streams` a pipe or a terminal is accepted too, also through a link such as /dev/stdout. The descriptor is
    non-blocking, which matters to streams only. O_TRUNC takes effect after the checks. Raises OSError.
    """
    cut, flags = flags & os.O_TRUNC, flags & ~os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    linked = False
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        linked = error.errno == errno.ELOOP
        if error.errno == errno.ENXIO and not streams:  # a pipe that nobody reads
            raise _refused(path, errno.ENXIO) from None
        if not linked:
            raise
        if not streams or not os.path.exists(path):
            raise _refused(path, errno.ELOOP) from None
        descriptor = os.open(path, flags & ~os.O_CREAT, 0o666)
    status = os.fstat(descriptor)
    regular, stream = stat.S_ISREG(status.st_mode), stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode)
    problem = None
    if regular:
        problem = errno.ELOOP if linked else errno.EMLINK if status.st_nlink > 1 else None
    elif not (stream and streams):
        problem = errno.ENXIO
    if problem:
        close(descriptor)
        raise _refused(path, problem)
    if regular and cut:
        os.ftruncate(descriptor, 0)
    return descriptor


_REFUSED = {
    errno.ELOOP: "is a symbolic link",
    errno.EMLINK: "is a hard link to a file that has other names",
    errno.ENXIO: "is not a regular file",
}


def _refused(path: str | Path, problem: int) -> OSError:
    return OSError(problem, _REFUSED[problem], str(path))


def open_new(path: Path) -> int:
    """Create a file whose name is not in use. Raises FileExistsError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def cut_file(path: Path, size: int) -> None:
    """Truncate a file to its first `size` bytes."""
    descriptor = open_in_place(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def create_file(path: Path, *, buffered: bool = True) -> BinaryIO:
    """Create a file; an existing file is replaced, and the target of an existing symbolic link is not changed."""
    path.unlink(missing_ok=True)
    return open(open_new(path), "wb", buffering=-1 if buffered else 0)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by a file with this content, atomically."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` at the end: fsync, rename, fsync of the folder.

    A symbolic link of this name is replaced, and its target is not changed. The new file is locked while it is written:
    so files left by killed processes can be recognised, and are removed.
    """
    _remove_left_overs(path)
    temporary, file = _locked_file(path)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):  # the file is synced, or not needed
            file.close()
    sync_name(path)


def check_can_be_replaced(path: Path) -> None:
    """Create a file next to `path` and remove it. Raises OSError if `replacing` would."""
    temporary, file = _locked_file(path)
    file.close()
    temporary.unlink(missing_ok=True)


def _locked_file(path: Path) -> tuple[Path, BinaryIO]:
    """Return a new temporary file next to `path`, locked."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        file = open(open_new(temporary), "wb")  # noqa: SIM115 (the caller closes it)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if is_still(temporary, file.fileno()):
            return temporary, file
        file.close()  # another process removed it as a left-over before it was locked


def is_still(path: Path, descriptor: int) -> bool:
    """True if `path` still names the open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_left_overs(path: Path) -> None:
    """Remove the temporary files of `path` that no process is writing."""
    form = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]+\.tmp")
    names = list[str]()
    with suppress(OSError):  # a folder that is writable but not readable
        names = [name for name in os.listdir(path.parent) if form.fullmatch(name)]
    for temporary in map(path.with_name, names):
        with suppress(OSError):  # it is locked, was renamed, or belongs to another user
            descriptor = open_in_place(temporary, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_still(temporary, descriptor):
                    temporary.unlink()
            finally:
                close(descriptor)


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """True if two paths lead to the same file, also by links."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # a path does not exist yet
        return os.path.realpath(one) == os.path.realpath(other)


def is_within(place: str | Path, folder: str | Path) -> bool:
    """True if `place` is a folder or a file in it."""
    inner, outer = os.path.realpath(place), os.path.realpath(folder)
    return is_same_file(place, folder) or inner.startswith(os.path.join(outer, ""))


def refuse_to_write_over(option: str, place: str | Path | None, others: Mapping[str, str | Path | None]) -> None:
    """Refuse an output that would overwrite a file that is needed, or another output."""
    for what, other in others.items():
        if place is not None and other is not None and is_within(place, other):
            raise UsageError(f"{option} {place}: is {what}, or in it; name another file")


class ReadOnlyFile(io.FileIO):
    """A file to read. Errors of closing it are ignored, as no data can be lost."""

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            super().close()


def close(descriptor: int) -> None:
    """Close the descriptor of a file that is synced, locked or only read; an error loses no data and is ignored."""
    with suppress(OSError):
        os.close(descriptor)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file; devices and pipes, which may block or never end, are refused. Raises OSError."""
    file = io.BufferedReader(ReadOnlyFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_file(path: Path, size: int | None = None) -> bytes:
    """Return the content of a file, or no bytes if its size is not `size`."""
    with open_file(path) as file:
        return file.read() if size in (None, os.fstat(file.fileno()).st_size) else b""


def sync_file(path: Path) -> None:
    """Write the cached bytes of a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power cut."""
    sync_file(folder)


def sync_name(path: Path) -> None:
    """Make the name of a file that was put in place survive a power cut. Raises UnsyncedError."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise UnsyncedError(error.errno, error.strerror, str(path)) from error


def remove_folder(folder: Path) -> bool:
    """Remove a folder and its content as far as possible; return True if nothing is left."""
    for _attempt in range(2):  # a second attempt succeeds after a transient error
        with suppress(OSError):  # of closing a folder, which `ignore_errors` does not cover
            shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def published_error(what: str | Path, error: Exception, advice: str) -> PublishedError:
    """Return the error to raise if finishing fails after the new state of `what` is in place."""
    problem = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return PublishedError(f"{what}: the new state is in place, but was not finished ({problem.lower()}); {advice}")


_SCARCE = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close programs that have many files open",
    errno.ENOMEM: "give a smaller --memory",
}
_ADVICE = {
    errno.EROFS: "write elsewhere",
    errno.EACCES: "change the permissions or write elsewhere",
    errno.EPERM: "change the permissions or write elsewhere",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EIO: "check the disk",
    errno.EEXIST: "remove it or choose another name",
    **dict.fromkeys(_REFUSED, "remove it or choose another name"),
    **_SCARCE,
}


def unreadable(path: Path, error: OSError, advice: str) -> OocPegasosError:
    """Return the error for an unreadable file of a store or model: damaged, unless the machine lacks resources."""
    if error.errno in _SCARCE:
        return InputError(f"{path}: {(error.strerror or str(error)).lower()}; {_SCARCE[error.errno]}")
    return CorruptFileError(f"{path}: {error.strerror or error}; {advice}")


@contextmanager
def writing_errors(place: Path) -> Iterator[None]:
    """Turn errors of the operating system while `place` is written into messages with advice."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UnsyncedError) and error.filename == os.fspath(place):
            raise published_error(place, error, "check the disk; a power failure may undo the change") from error
        name = error.filename or place
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"{place}: the disk is full; free some space or write elsewhere, then run again"
            ) from error
        advice = _ADVICE.get(error.errno or 0, "check the path")
        raise InputError(f"{name}: {(error.strerror or str(error)).lower()}; {advice}") from error
