"""Limit on the time from a request to stop to the end of the process, enforced by the kernel instead of Python.

Python calls signal handlers in the main thread, between two bytecode instructions. While that thread is in native code,
no handler runs, and no other thread can run one if the native code holds the GIL. Therefore the first step needs no
Python: on any signal that has a Python handler, the handler in C that is part of Python writes a byte to a pipe
(`set_wakeup_fd`); the kernel reports that byte by SIGUSR1 (`F_SETSIG`); and the handler of SIGUSR1 is the C function
`alarm`. It is called with the number of the signal, 10, so that SIGALRM ends the process 10 seconds later. A Python
handler that does run calls `answered`, which allows the time that a clean stop takes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal

CLEAN_STOP = 300
"""Seconds for a clean stop, which may have to write a checkpoint."""
_state = {"started": False, "answered": False}


def start() -> None:
    """Start the watchdog of this process; to be called in the main thread of a command, not in library use.

    Every Python signal handler that is installed afterwards must call `answered`, and nothing else may set SIGALRM or
    its timer.
    """
    if not hasattr(fcntl, "F_SETSIG"):  # not Linux
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    libc.signal(signal.SIGUSR1, ctypes.cast(libc.alarm, ctypes.c_void_p))
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGUSR1)
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_leave)
    _state["started"] = True


def answered() -> None:
    """Allow the time for a clean stop after the first signal; after others the limit remains 10 seconds."""
    if _state["started"] and not _state["answered"]:
        _state["answered"] = True
        signal.alarm(CLEAN_STOP)


def expect_again() -> None:
    """Treat the next signal as a repetition of the last one, which was lost, not as another request to stop."""
    _state["answered"] = False


def _leave() -> None:
    """Disconnect a forked child from the pipe, whose signals go to its parent."""
    if _state["started"]:
        _state["started"] = False
        signal.set_wakeup_fd(-1)
