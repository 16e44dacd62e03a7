"""Writing files so that a crash leaves the old one or the new one, and names that stay inside a folder."""

import errno
import fcntl
import glob
import io
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ooc_pegasos.errors import DamagedError, InputError, LockedError, OocPegasosError, PublishedError, UsageError


class UnsyncedError(OSError):
    """A file is in place under its name (`filename`), but its folder could not be synced to disk."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by a file of this content."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end: fsync, rename, fsync of the folder.

    It is locked meanwhile, so that what processes have left that were killed can be told from the work of others,
    and is removed.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        _remove_unless_locked(left)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = _locked_file(temporary)
    try:
        yield temporary
        os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    finally:
        close(descriptor)
    sync_name(path)


def _locked_file(path: Path) -> int:
    """The descriptor of a new file that is locked and still there."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        close(descriptor)  # somebody took it for a left-over between the two


def _remove_unless_locked(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # it has been renamed meanwhile, or it is somebody else's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            path.unlink()
    except OSError:
        pass  # somebody is writing it
    finally:
        close(descriptor)


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two names are one file, by whatever links."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def is_within(place: str | Path, folder: str | Path) -> bool:
    """Whether it is a folder or file, or something in it."""
    inner, outer = os.path.realpath(place), os.path.realpath(folder)
    return is_same_file(place, folder) or inner.startswith(os.path.join(outer, ""))


def refuse_to_write_over(option: str, place: str | Path | None, others: Mapping[str, str | Path | None]) -> None:
    """Refuse an output that would take the place of something that is needed, or of another output."""
    for what, other in others.items():
        if place is not None and other is not None and is_within(place, other):
            raise UsageError(f"{option} {place}: is {what}, or in it; name another file")


class ReadOnlyFile(io.FileIO):
    """A file to read. Errors of closing it are ignored, as there is nothing to lose."""

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            super().close()


def close(descriptor: int) -> None:
    """Close a descriptor of a file that is synced, locked or only read: an error then loses nothing, and is ignored."""
    with suppress(OSError):
        os.close(descriptor)


def open_file(path: Path) -> BinaryIO:
    """A file, which is a file: devices and pipes may never end, or never begin."""
    file = io.BufferedReader(ReadOnlyFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_file(path: Path, size: int | None = None) -> bytes:
    """All of a file; nothing if it has another size than this, if one is given."""
    with open_file(path) as file:
        return file.read() if size in (None, os.fstat(file.fileno()).st_size) else b""


def sync_file(path: Path) -> None:
    """Bring the bytes of a file to the disk."""
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
    """Remove a folder with all in it, as far as possible; True if nothing of it is left."""
    for _attempt in range(2):  # an error that passes leaves nothing
        with suppress(OSError):  # of closing a folder, which `ignore_errors` does not cover
            shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def published_error(what: str | Path, error: Exception, advice: str) -> PublishedError:
    """The error to raise for one that happened when the new state of `what` was in place already."""
    problem = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return PublishedError(f"{what}: the new state is in place, but was not finished ({problem.lower()}); {advice}")


_SCARCE = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close what has many files open",
    errno.ENOMEM: "give a smaller --memory",
}
_ADVICE = {
    errno.EROFS: "write elsewhere",
    errno.EACCES: "change the permissions or write elsewhere",
    errno.EPERM: "change the permissions or write elsewhere",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EIO: "check the disk",
    errno.EEXIST: "remove it or choose another name",
    **_SCARCE,
}


def unreadable(path: Path, error: OSError, advice: str) -> OocPegasosError:
    """What to raise of a file that is part of a whole: it is damaged, unless the machine is short of something."""
    if error.errno in _SCARCE:
        return InputError(f"{path}: {(error.strerror or str(error)).lower()}; {_SCARCE[error.errno]}")
    return DamagedError(f"{path}: {error.strerror or error}; {advice}")


@contextmanager
def writing_errors(place: Path) -> Iterator[None]:
    """Turn what the operating system says when `place` cannot be written into one line that helps."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UnsyncedError) and error.filename == os.fspath(place):
            raise published_error(place, error, "check the disk, as a power cut may undo it") from error
        name = error.filename or place
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"{place}: the disk is full; free some space or write elsewhere, then run again"
            ) from error
        advice = _ADVICE.get(error.errno or 0, "check the path")
        raise InputError(f"{name}: {(error.strerror or str(error)).lower()}; {advice}") from error


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; it vanishes with the process, however that ends."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            if path.parent.exists():
                raise
            continue  # who held it before has just taken the folder away
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            close(descriptor)
            raise LockedError(f"{what}: process {holder} is at work on it; wait for it or stop it") from None
        if path.exists() and os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            break
        close(descriptor)  # the holder removed the file just before letting go
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        close(descriptor)


@contextmanager
def making(path: Path) -> Iterator[None]:
    """Hold the lock of a file that takes long to make, so that no other process makes it too; nothing of it is left."""
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks
            stack.enter_context(locked(lock, str(path)))
            stack.callback(_remove_lock, lock)
        yield


def _remove_lock(lock: Path) -> None:
    """Remove a lock file; one that stays is in nobody's way."""
    with suppress(OSError):
        lock.unlink()


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """While this lasts nobody removes what `unused` guards; any number of processes may hold it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks, where nobody waits for them either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        close(descriptor)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Whether nobody holds `in_use`; if so, nobody can until this ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except BlockingIOError:
        free = False
    except OSError:
        free = True
    try:
        yield free
    finally:
        close(descriptor)
