"""Killing a process at any instant, small disks, and control groups with little memory."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.fork_server import Process

# --- being killed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Something that may be killed at any instant.

    `start(die_before, again)` begins it, or goes on with it if it was begun before; it dies before that step, if it is
    not 0. `prepare()` brings back the state before the first start, `check_untorn()` refuses halves, `finish()` goes on
    to the end, and `same()` refuses anything but what an undisturbed run leaves.
    """

    prepare: Callable[[], None]
    start: Callable[[int, bool], Process]
    check_untorn: Callable[[], None]
    same: Callable[[], None]

    def finish(self) -> float:
        """Go on to the end; returns the seconds that took."""
        began = time.monotonic()
        self.start(0, True).succeed()
        return time.monotonic() - began


def kill_at_random(job: Job, kills: int, seed: int = 0) -> int:
    """Kill a job so many times, at instants spread evenly over all that it takes; returns how many hit it alive.

    Every other time what goes on with it is killed as well. What came too late does not count, and is tried again.
    """
    rng = random.Random(seed)
    job.prepare()
    began = time.monotonic()
    job.start(0, False).succeed()
    length = time.monotonic() - began
    job.same()
    hit = 0
    for attempt in range(10 * kills):
        if hit >= kills:
            break
        job.prepare()
        instants = [(attempt % kills + rng.random()) / kills * length]
        while rng.random() < 0.5:
            instants.append(rng.uniform(0, length))
        for number, instant in enumerate(instants):
            child = job.start(0, number > 0)
            if not child.has_ended(instant):
                child.kill()
            code = child.wait()
            assert code in (0, -signal.SIGKILL), job
            hit += code != 0
            job.check_untorn()
            if code == 0:
                break
        job.finish()
        job.same()
    return hit


def kill_at_steps(job: Job, most: int) -> tuple[int, int]:
    """Kill a job before each step it takes, or before so many of them; returns how many were tried, and how many are.

    Between two steps a job computes and writes to files that it has opened: the instants that matter are few, and some
    of them far too short to be hit by chance.
    """
    job.prepare()
    child = job.start(0, False)
    child.succeed()
    job.same()
    steps = child.steps
    assert steps > 0
    tried = sorted({1 + number * (steps - 1) // max(most - 1, 1) for number in range(most)}) if most < steps else None
    for step in tried or range(1, steps + 1):
        job.prepare()
        child = job.start(step, False)
        assert child.wait() in (0, -signal.SIGKILL), step
        job.check_untorn()
        job.finish()
        job.same()
    return len(tried) if tried else steps, steps


# --- machines -----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Callable[..., None]]:
    """A file system of this size at `place`; what is given remounts it (`mount("ro")`).

    Skips where that is not allowed.
    """
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")

    def mount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)

    try:
        yield mount
    finally:
        if subprocess.run(["umount", place], capture_output=True).returncode:
            subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


def without_power() -> None:
    """What root may do beyond everybody else is gone, from now on and for programs begun from here."""
    if os.geteuid() != 0:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    powers = (1, 2, 3)  # to override permissions of files, to read any, to act as their owner
    head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    failed = any(libc.prctl(24, power, 0, 0, 0) for power in powers) or libc.capget(head, sets)
    for number in range(3):
        sets[number] &= ~sum(1 << power for power in powers)
    if failed or libc.capset(head, sets):
        raise OSError(ctypes.get_errno(), "giving up power")


@contextmanager
def little_memory(limit: int) -> Iterator[Callable[[], None]]:
    """A control group with so many bytes of memory, version 1 or 2; what is given puts a new process there.

    Where no group can be made, a limit on addresses takes its place.
    """
    import resource

    name = f"oocpeg-test-{os.getpid()}"
    root = Path("/sys/fs/cgroup")
    for top, file in ((root / "memory", "memory.limit_in_bytes"), (root, "memory.max")):
        group = top / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
            for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                if (group / swap).exists():
                    (group / swap).write_text(str(limit) if "memsw" in swap else "0")
        except OSError:
            group.rmdir()
            continue
        procs = str(group / "cgroup.procs")

        def enter(procs: str = procs) -> None:
            with open(procs, "w") as file:
                file.write(str(os.getpid()))

        try:
            yield enter
        finally:
            for _ in range(100):  # the last process may be on its way out
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)
            assert not group.exists(), group
        return
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * limit, 8 * limit))
