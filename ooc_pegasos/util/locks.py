"""Locks: one process at a time writes an output, and no file is removed that another process reads.

The lock on an output is an flock on its lock file, which ends with the process. Where the file system does not support
flock, the process that is recorded in the lock file holds the lock until it releases the lock or ends.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ooc_pegasos.errors import LockedError
from ooc_pegasos.util.files import close, is_still, open_file, open_in_place, open_new, writing_errors

Flock = Callable[[int, int], None]
Note = Callable[[str], None]
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_RECORD_SIZE = 512
"""Size of a record in bytes. All records have the same size, so that a single write replaces a record."""
_ATTEMPTS, _PAUSE = 20, 0.05
"""Attempts to read a record that may be incomplete because it is being written, and the seconds between them."""
noted_devices = set[int]()
"""File systems without flock for which the note was given."""


@contextmanager
def locked(path: Path, what: str, note: Note | None = None, *, flock: Flock = fcntl.flock) -> Iterator[None]:
    """Hold the lock on `what`, whose lock file is `path`. Raises LockedError if another process holds the lock.

    The lock file stays, unless the caller removes it while the lock is held. `note` is called once for each file system
    without flock.
    """
    owner = Owner.this_process()
    descriptor = _acquire(path, what, owner, flock)
    try:
        _remove_left_overs(path)
        if descriptor is None:
            _note_missing_flock(path, note)
        yield
    finally:
        if os.getpid() == owner.pid:  # not in a fork
            with suppress(OSError):  # the lock ends with the process at the latest
                _release(path, owner) if descriptor is None else _write(descriptor, replace(owner, pid=0))
        if descriptor is not None:
            close(descriptor)


def _note_missing_flock(path: Path, note: Note | None) -> None:
    device = os.stat(path.parent).st_dev
    if note and device not in noted_devices:
        noted_devices.add(device)
        note(f"{path.parent}: this file system does not support flock; the lock file {path.name} is used instead")


@contextmanager
def making(path: Path, note: Note | None = None) -> Iterator[None]:
    """Hold the lock on a file while it is made. The lock file is removed at the end."""
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        with writing_errors(path):
            stack.enter_context(locked(lock, str(path), note))
        try:
            yield
        finally:
            with suppress(OSError):  # a left-over lock file does no harm
                lock.unlink()


# --- owners -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owner:
    """The process recorded in a lock file."""

    token: str
    """Random, different for each time that a lock is taken."""
    pid: int
    """0 after the lock was released."""
    start: int
    """Start time of the process in clock ticks since boot; it distinguishes processes with the same pid."""
    host: str
    machine: str
    boot: str
    namespace: str
    """The pid namespace: in another one, for example of a container, the same pid is another process."""
    has_flock: bool = True
    """False if the record itself is the lock."""

    @classmethod
    def this_process(cls) -> "Owner":
        """Return a new owner for this process."""
        pid = os.getpid()
        boot, machine = _content_of("/proc/sys/kernel/random/boot_id"), _content_of("/etc/machine-id")
        namespace = ""
        with suppress(OSError):
            namespace = os.readlink("/proc/self/ns/pid")
        token, host = secrets.token_hex(8), socket.gethostname()[:64]
        return cls(token, pid, _start_of(pid) or 0, host, machine[:64], boot[:64], namespace[:64])

    @classmethod
    def parse(cls, content: bytes) -> "Owner | None":
        """Return the owner in a lock file; None if the content is not a record."""
        try:
            owner = cls(**json.loads(content))
        except (ValueError, TypeError, RecursionError):
            return None
        values = asdict(owner)
        sound = {name: type(value) for name, value in values.items()} == cls.__annotations__
        sound = sound and all(text.isprintable() for text in values.values() if isinstance(text, str))
        sound = sound and 0 <= owner.pid < 2**31 and bool(re.fullmatch("[0-9a-f]{16}", owner.token))
        return owner if sound else None

    def record(self) -> bytes:
        """Return the content of a lock file."""
        return json.dumps(asdict(self)).encode().ljust(_RECORD_SIZE - 1) + b"\n"

    def has_ended(self) -> bool:
        """True if the process has certainly ended, or has released the lock."""
        here = Owner.this_process()
        if not self.pid:
            return True
        if self.host != here.host:
            return False
        if self.boot != here.boot:  # the same machine was started again, or another machine has the same name
            return bool(self.machine) and self.machine == here.machine
        if self.namespace != here.namespace:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _start_of(self.pid) not in (self.start, None)


def _content_of(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError):
        return ""


def _start_of(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; -1 if it has ended, None if not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        is_dead = fields[0] in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) <= 1
        return -1 if is_dead else int(fields[19])
    except (OSError, ValueError, IndexError):  # /proc may hide the processes of other users
        return None


# --- lock files ---------------------------------------------------------------------------------------


def _acquire(path: Path, what: str, owner: Owner, flock: Flock) -> int | None:
    """Return the descriptor of the lock file with an flock on it; None if the record is the lock, without flock."""
    while True:
        with ExitStack() as stack:
            descriptor = _open(path, owner)
            stack.callback(close, descriptor)
            if _has_flock(descriptor, path, what, flock):
                if not is_still(path, descriptor):
                    continue  # the holder removed the file just before releasing the lock
                found = _parsed(descriptor)
                if found and not found.has_flock and not found.has_ended():  # flock failed when the holder called it
                    raise _refusal(path, what, found)
                _write(descriptor, owner)
                stack.pop_all()
                return descriptor
        with suppress(FileNotFoundError):  # the holder removed the file just before releasing the lock
            _take(path, what, replace(owner, has_flock=False))
            return None


def _has_flock(descriptor: int, path: Path, what: str, flock: Flock) -> bool:
    """Lock an open file; False if the file system does not support that. Raises LockedError."""
    try:
        flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        raise _refusal(path, what, _parsed(descriptor), by_flock=True) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False


def _parsed(descriptor: int) -> Owner | None:
    return Owner.parse(os.pread(descriptor, _RECORD_SIZE, 0))


def _open(path: Path, owner: Owner) -> int:
    """Open the lock file, or create it with a record of `owner`."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _create(path, owner)
        except FileExistsError:
            with suppress(FileNotFoundError):  # its holder has just removed it
                return _open_existing(path)
        except FileNotFoundError:  # its holder has just removed the folder
            if path.parent.exists():
                raise


def _open_existing(path: Path) -> int:
    """Open the lock file once its creator has removed the second name, or has ended. Raises OSError."""
    for _attempt in range(_ATTEMPTS):
        try:
            return open_in_place(path, os.O_RDWR)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
        _remove_left_overs(path)
        time.sleep(_PAUSE)
    return open_in_place(path, os.O_RDWR)


def _create(path: Path, owner: Owner) -> int:
    """Create a file with a record of `owner`, all or nothing. Raises FileExistsError."""
    temporary = path.with_name(f".{path.name}.{owner.token}.tmp")
    descriptor = open_new(temporary)
    try:
        _write(descriptor, owner)
        _put(temporary, path, owner)
        return descriptor
    except BaseException:
        close(descriptor)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def _put(temporary: Path, path: Path, owner: Owner) -> None:
    """Give a file a name that is not in use. Raises FileExistsError."""
    try:
        os.link(temporary, path)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # a file system without hard links
        descriptor = open_new(path)
        try:
            _write(descriptor, owner)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            close(descriptor)


def has_lock(path: Path) -> bool:
    """True if a lock file exists, or a crash interrupted its creation."""
    return path.exists() or bool(_left_overs(path))


def _left_overs(path: Path) -> list[Path]:
    """Return temporary names of a lock file, which processes leave that end while they create the file."""
    form = re.compile(rf"\.{re.escape(path.name)}(\.[0-9a-f]{{16}})+\.tmp")
    with suppress(OSError):  # a folder that cannot be listed
        return [path.with_name(name) for name in os.listdir(path.parent) if form.fullmatch(name)]
    return []


def _remove_left_overs(path: Path) -> None:
    """Remove the left-over names of a lock file whose creators have ended."""
    for temporary in _left_overs(path):
        with suppress(OSError):  # its creator was faster
            with open_file(temporary) as file:
                owner = Owner.parse(file.read(_RECORD_SIZE))
            if owner and owner.has_ended():
                temporary.unlink()


def _write(descriptor: int, owner: Owner) -> None:
    if os.pwrite(descriptor, owner.record(), 0) < _RECORD_SIZE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, _RECORD_SIZE)  # older versions wrote longer records


def _rewrite(path: Path, owner: Owner) -> None:
    descriptor = open_in_place(path, os.O_RDWR)
    try:
        _write(descriptor, owner)
        os.fsync(descriptor)
    finally:
        close(descriptor)


def _read(path: Path) -> Owner | None:
    """Return the owner in a lock file; None if the content is not a record. Raises FileNotFoundError."""
    for _attempt in range(_ATTEMPTS):
        with open_file(path) as file:
            owner = Owner.parse(file.read(_RECORD_SIZE))
        if owner:
            return owner
        time.sleep(_PAUSE)  # it may be incomplete
    return None


def _release(path: Path, owner: Owner) -> None:
    """Record that the owner has released the lock, if the lock file still names the owner."""
    found = _read(path)
    if found and found.token == owner.token:
        _rewrite(path, replace(found, pid=0))


# --- without flock ------------------------------------------------------------------------------------


def _take(path: Path, what: str, owner: Owner) -> None:
    """Make `owner` the holder of a lock whose file is there. Raises LockedError and FileNotFoundError.

    The process that creates the file with the token of an ended owner in its name succeeds that owner; only one can.
    The holder is the end of this chain of successors, which begins with the lock file. A successor that finds itself at
    the end moves its record to the lock file and removes the rest of the chain. A process that acts on a record that it
    read before that move creates a file outside the chain, and finds so when it follows the chain again.
    """
    claim = None
    try:
        while True:
            last = _holder(path)
            if last and last.token == owner.token:
                break
            if claim:
                claim.unlink(missing_ok=True)
                claim = None
            if last is None or not last.has_ended():
                raise _refusal(path, what, last)
            with suppress(FileExistsError):
                close(_create(_successor_of(path, last), owner))
                claim = _successor_of(path, last)
        _rewrite(path, owner)
    except BaseException:
        with suppress(OSError):
            _release(path, owner)
        if claim:
            claim.unlink(missing_ok=True)
        raise
    successor = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{16}}")
    with suppress(OSError):  # left-over files do no harm
        for name in filter(successor.fullmatch, os.listdir(path.parent)):
            path.with_name(name).unlink(missing_ok=True)


def _successor_of(path: Path, owner: Owner) -> Path:
    return path.with_name(f"{path.name}.{owner.token}")


def _holder(path: Path) -> Owner | None:
    """Return the end of the chain of successors; None if its record cannot be read. Raises FileNotFoundError."""
    owner = _read(path)
    with suppress(FileNotFoundError):
        while owner:
            owner = _read(_successor_of(path, owner))
    return owner


def _refusal(path: Path, what: str, found: Owner | None, *, by_flock: bool = False) -> LockedError:
    """Return the error that names the holder of a lock."""
    if found is None and not by_flock:
        advice = f"remove {path} if no other process is at work on it"
        return LockedError(f"{what}: the lock file {path} names no process; {advice}")
    if found is None or not found.pid:  # the holder is just writing the record
        return LockedError(f"{what}: another process is at work on it; wait for it or stop it")
    here = Owner.this_process()
    process = f"process {found.pid}" + (f" on {found.host}" if found.host != here.host else "")
    if found.host == here.host and found.namespace != here.namespace:
        process += " of another container"
    is_visible = (found.host, found.boot, found.namespace) == (here.host, here.boot, here.namespace)
    advice = "or stop it" if by_flock or is_visible else f"or, if it has ended, remove {path}"
    return LockedError(f"{what}: {process} is at work on it; wait for it {advice}")


# --- files in use -------------------------------------------------------------------------------------


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold a shared lock on a folder, which keeps `unused` from yielding True. Any number of processes may hold it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks, where no process waits for them either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        close(descriptor)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yield True if no process holds `in_use`; then none can until this context ends."""
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
